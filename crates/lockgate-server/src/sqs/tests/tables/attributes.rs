//! GetQueueAttributes and SetQueueAttributes, and which values attributes may have.

use serde_json::{Value, json};

use super::{
    Row, arn,
    codes::{
        ATTRIBUTE_NAME, ATTRIBUTE_VALUE, INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, OVER_LIMIT,
        SERIALIZATION,
    },
    dead_letters, row, url,
};

/// How a request that sets attributes of `q` is made.
pub(super) type Sets<'a> = dyn Fn(Row, &[(&str, &str)]) -> Row + 'a;

/// Numbers: name, smallest, one below, largest, one above.
const NUMBERS: [(&str, &str, &str, &str, &str); 6] = [
    ("VisibilityTimeout", "0", "-1", "43200", "43201"),
    ("MaximumMessageSize", "1024", "1023", "1048576", "1048577"),
    ("MessageRetentionPeriod", "60", "59", "1209600", "1209601"),
    ("DelaySeconds", "0", "-1", "900", "901"),
    ("ReceiveMessageWaitTimeSeconds", "0", "-1", "20", "21"),
    ("KmsDataKeyReusePeriodSeconds", "60", "59", "86400", "86401"),
];

/// Rows about the values of a standard queue's attributes, for each action that sets them.
pub(super) fn values(sets: &Sets<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, min, below, max, above) in NUMBERS {
        for value in [min, max] {
            rows.push(
                sets(row(format!("{name} of {value}")), &[(name, value)])
                    .works()
                    .then_attribute("q", name, json!(value)),
            );
        }
        for value in [
            below,
            above,
            "",
            "x",
            "1.0",
            "1e3",
            "+60",
            " 60",
            "99999999999999999999",
        ] {
            rows.push(
                sets(row(format!("{name} of {value:?}")), &[(name, value)]).refused(
                    &ATTRIBUTE_VALUE,
                    format!("Invalid value for the parameter {name}."),
                ),
            );
        }
    }
    for name in ["Nonsense", "delaySeconds", "All", ""]
        .into_iter()
        .chain(READ_ONLY)
    {
        rows.push(
            sets(row(format!("the attribute {name:?}")), &[(name, "1")])
                .refused(&ATTRIBUTE_NAME, format!("Unknown Attribute {name}.")),
        );
    }
    rows.extend([
        sets(
            row("one that is wrong among others"),
            &[("DelaySeconds", "1"), ("VisibilityTimeout", "x")],
        )
        .refused(
            &ATTRIBUTE_VALUE,
            "Invalid value for the parameter VisibilityTimeout.",
        ),
        sets(
            row("content-based deduplication of a standard queue"),
            &[("ContentBasedDeduplication", "true")],
        )
        .refused(
            &ATTRIBUTE_NAME,
            "Unknown Attribute ContentBasedDeduplication.",
        ),
        sets(
            row("the deduplication scope of a standard queue"),
            &[("DeduplicationScope", "queue")],
        )
        .refused(
            &ATTRIBUTE_NAME,
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        sets(
            row("the throughput limit of a standard queue"),
            &[("FifoThroughputLimit", "perQueue")],
        )
        .refused(
            &ATTRIBUTE_NAME,
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
        sets(
            row("a policy"),
            &[("Policy", "{\"Version\":\"2012-10-17\"}")],
        )
        .works()
        .then_attribute("q", "Policy", json!("{\"Version\":\"2012-10-17\"}")),
        sets(row("an empty policy"), &[("Policy", "")])
            .works()
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["Policy"]}),
                json!({}),
            ),
        sets(
            row("KMS, which ends SSE"),
            &[("KmsMasterKeyId", "alias/aws/sqs")],
        )
        .works()
        .then_attribute("q", "KmsMasterKeyId", json!("alias/aws/sqs"))
        .then_attribute("q", "KmsDataKeyReusePeriodSeconds", json!("300"))
        .then_attribute("q", "SqsManagedSseEnabled", json!("false")),
        sets(
            row("KMS and SSE at once"),
            &[("KmsMasterKeyId", "k"), ("SqsManagedSseEnabled", "true")],
        )
        .refused(
            &ATTRIBUTE_NAME,
            "You can use one type of server-side encryption (SSE) at one time. You can either \
                 enable KMS SSE or SQS SSE.",
        ),
        sets(row("no SSE"), &[("SqsManagedSseEnabled", "false")])
            .works()
            .then_attribute("q", "SqsManagedSseEnabled", json!("false")),
        sets(
            row("SSE that is neither true nor false"),
            &[("SqsManagedSseEnabled", "yes")],
        )
        .refused(
            &ATTRIBUTE_VALUE,
            "Invalid value for the parameter SqsManagedSseEnabled.",
        ),
    ]);
    rows.extend(policies(sets));
    for policy in ["x", "[]", "\"\"", "{"] {
        rows.push(
            sets(row(format!("the policy {policy}")), &[("Policy", policy)])
                .refused(&ATTRIBUTE_VALUE, "Invalid value for the parameter Policy."),
        );
    }
    rows
}

/// Rows about how much a policy may say.
fn policies(sets: &Sets<'_>) -> Vec<Row> {
    let statements = |count: usize| {
        let statement = json!({"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"});
        json!({"Version": "2012-10-17", "Statement": vec![statement; count]}).to_string()
    };
    let actions =
        |count: usize| json!({"Statement": {"Action": vec!["sqs:SendMessage"; count]}}).to_string();
    let bytes = |count: usize| {
        let id = "x".repeat(count - json!({"Id": ""}).to_string().len());
        json!({"Id": id}).to_string()
    };
    let mut rows = Vec::new();
    for (what, policy) in [
        ("20 statements", statements(20)),
        ("7 actions in a statement", actions(7)),
        ("8192 bytes", bytes(8192)),
    ] {
        rows.push(
            sets(row(format!("a policy of {what}")), &[("Policy", &policy)])
                .works()
                .then_attribute("q", "Policy", json!(policy)),
        );
    }
    for (what, policy, message) in [
        (
            "21 statements",
            statements(21),
            "21 statements were found in the submitted policy, max allowed is 20",
        ),
        (
            "8 actions in a statement",
            actions(8),
            "8 actions were found in a statement from the submitted policy, max allowed is 7",
        ),
        (
            "8193 bytes",
            bytes(8193),
            "Submitted policy is over max allowed size.",
        ),
    ] {
        rows.push(
            sets(row(format!("a policy of {what}")), &[("Policy", &policy)])
                .refused(&OVER_LIMIT, message),
        );
    }
    let nested = |depth: usize| {
        format!(
            "{{\"a\":{}{}}}",
            "[".repeat(depth - 1),
            "]".repeat(depth - 1)
        )
    };
    rows.push(sets(row("a policy of 127 levels"), &[("Policy", &nested(127))]).works());
    rows.push(
        sets(row("a policy of 128 levels"), &[("Policy", &nested(128))]).refused(
            &ATTRIBUTE_VALUE,
            "Invalid value for the parameter Policy. Reason: recursion limit exceeded at line 1 column \
             132.",
        ),
    );
    rows
}

const READ_ONLY: [&str; 6] = [
    "QueueArn",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
];

pub(super) fn set_queue_attributes() -> Vec<Row> {
    let set =
        |queue: &str, attributes: Value| json!({"QueueUrl": url(queue), "Attributes": attributes});
    let mut rows = vec![
        row("several at once")
            .queue_with("q", json!({"DelaySeconds": "7"}))
            .asks(set(
                "q",
                json!({"VisibilityTimeout": "1", "ReceiveMessageWaitTimeSeconds": "2"}),
            ))
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["All"]}),
                json!({"Attributes": {"VisibilityTimeout": "1", "DelaySeconds": "7",
                    "ReceiveMessageWaitTimeSeconds": "2"}}),
            ),
        row("a policy is taken away")
            .queue_with("q", json!({"Policy": "{}"}))
            .asks(set("q", json!({"Policy": ""})))
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["Policy"]}),
                json!({}),
            ),
        row("SSE, which ends KMS")
            .queue_with(
                "q",
                json!({"KmsMasterKeyId": "k", "KmsDataKeyReusePeriodSeconds": "60"}),
            )
            .asks(set("q", json!({"SqsManagedSseEnabled": "true"})))
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["All"]}),
                json!({"Attributes": {"SqsManagedSseEnabled": "true", "KmsMasterKeyId": null,
                    "KmsDataKeyReusePeriodSeconds": null}}),
            ),
        row("high throughput")
            .queue("q.fifo")
            .asks(set(
                "q.fifo",
                json!({"DeduplicationScope": "messageGroup",
                "FifoThroughputLimit": "perMessageGroupId", "ContentBasedDeduplication": "true"}),
            ))
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q.fifo"), "AttributeNames": ["All"]}),
                json!({"Attributes": {"DeduplicationScope": "messageGroup", "FifoQueue": "true",
                    "FifoThroughputLimit": "perMessageGroupId",
                    "ContentBasedDeduplication": "true"}}),
            ),
        row("FifoQueue as it is")
            .queue("q.fifo")
            .asks(set("q.fifo", json!({"FifoQueue": "true"})))
            .answers(json!({})),
        row("a FIFO queue is to become a standard one")
            .queue("q.fifo")
            .asks(set("q.fifo", json!({"FifoQueue": "false"})))
            .refused(
                &ATTRIBUTE_VALUE,
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not \
                 supported.",
            ),
        row("a standard queue is to become a FIFO one")
            .queue("q")
            .asks(set("q", json!({"FifoQueue": "true"})))
            .refused(&ATTRIBUTE_NAME, "Unknown Attribute FifoQueue."),
        row("throughput by group without that scope")
            .queue("q.fifo")
            .asks(set(
                "q.fifo",
                json!({"FifoThroughputLimit": "perMessageGroupId"}),
            ))
            .refused(
                &ATTRIBUTE_VALUE,
                "Invalid value for the parameter FifoThroughputLimit. Reason: The \
                 FifoThroughputLimit value can be set to perMessageGroupId only when the \
                 DeduplicationScope value is messageGroup.",
            ),
        row("no attributes")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(
                &MISSING,
                "The request must contain the parameter Attribute.Name.",
            ),
        row("an empty list of attributes")
            .queue("q")
            .asks(set("q", json!({})))
            .refused(
                &MISSING,
                "The request must contain the parameter Attribute.Name.",
            ),
        row("no queue is named")
            .asks(json!({"Attributes": {"DelaySeconds": "1"}}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(set("none", json!({"DelaySeconds": "1"})))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("an attribute that is null")
            .queue("q")
            .asks(set("q", json!({"DelaySeconds": null})))
            .refused(
                &SERIALIZATION,
                "invalid type: null, expected a string at line 1 column 34",
            )
            .in_json_only(),
    ];
    for (name, value) in [
        ("FifoQueue", "maybe"),
        ("ContentBasedDeduplication", "yes"),
        ("ContentBasedDeduplication", ""),
        ("DeduplicationScope", "group"),
        ("DeduplicationScope", "MessageGroup"),
        ("FifoThroughputLimit", "perGroup"),
    ] {
        rows.push(
            row(format!("{name} of {value:?}"))
                .queue("q.fifo")
                .asks(set("q.fifo", json!({name: value})))
                .refused(
                    &ATTRIBUTE_VALUE,
                    format!("Invalid value for the parameter {name}."),
                ),
        );
    }
    let sets = |row: Row, given: &[(&str, &str)]| {
        let mut input = set("q", json!({}));
        for (name, value) in given {
            input["Attributes"][name] = json!(value);
        }
        row.queue("q").asks(input)
    };
    rows.extend(values(&sets));
    rows.extend(dead_letters::policies(&sets));
    rows.extend(bounds(&sets));
    rows
}

/// Rows about texts that are kept as they are: none may be of any length.
fn bounds(sets: &Sets<'_>) -> Vec<Row> {
    let key = |len: usize| "k".repeat(len);
    let zeros = format!("{}60", "0".repeat(5_000));
    let padded = format!(
        "{{\"redrivePermission\":\"allowAll\"}}{}",
        " ".repeat(8_192)
    );
    let principals = |count: usize| {
        let ids: Vec<_> = (0..count).map(|number| number.to_string()).collect();
        json!({"Statement": [{"Principal": {"AWS": ids}}]}).to_string()
    };
    vec![
        sets(
            row("a key id of 2,048 bytes"),
            &[("KmsMasterKeyId", &key(2_048))],
        )
        .works(),
        sets(
            row("a key id of 2,049 bytes"),
            &[("KmsMasterKeyId", &key(2_049))],
        )
        .refused(
            &ATTRIBUTE_VALUE,
            "Invalid value for the parameter KmsMasterKeyId.",
        ),
        sets(
            row("a period with many zeros in front"),
            &[
                ("KmsMasterKeyId", "k"),
                ("KmsDataKeyReusePeriodSeconds", &zeros),
            ],
        )
        .works()
        .then_attribute("q", "KmsDataKeyReusePeriodSeconds", json!("60")),
        sets(
            row("a redrive allow policy with many blanks behind"),
            &[("RedriveAllowPolicy", &padded)],
        )
        .refused(
            &INVALID,
            format!(
                "Value {:.1024}... for parameter RedriveAllowPolicy is invalid. Reason: Amazon SQS \
                 can't create the redrive allow policy. It must not be longer than 8,192 bytes.",
                padded
            ),
        ),
        sets(row("fifty principals"), &[("Policy", &principals(50))]).works(),
        sets(row("fifty-one principals"), &[("Policy", &principals(51))]).refused(
            &OVER_LIMIT,
            "51 principals were found in a statement from the submitted policy, max allowed is 50",
        ),
    ]
}

pub(super) fn get_queue_attributes() -> Vec<Row> {
    let get = |queue: &str, names: Value| json!({"QueueUrl": url(queue), "AttributeNames": names});
    let mut rows = vec![
        row("all of a standard queue")
            .queue("q")
            .asks(get("q", json!(["All"])))
            .answers(json!({"Attributes": {
                "QueueArn": arn("q"),
                "ApproximateNumberOfMessages": "0",
                "ApproximateNumberOfMessagesNotVisible": "0",
                "ApproximateNumberOfMessagesDelayed": "0",
                "CreatedTimestamp": "*",
                "LastModifiedTimestamp": "*",
                "VisibilityTimeout": "30",
                "MaximumMessageSize": "1048576",
                "MessageRetentionPeriod": "345600",
                "DelaySeconds": "0",
                "ReceiveMessageWaitTimeSeconds": "0",
                "SqsManagedSseEnabled": "true",
                "Policy": null,
                "RedrivePolicy": null,
                "RedriveAllowPolicy": null,
                "KmsMasterKeyId": null,
                "KmsDataKeyReusePeriodSeconds": null,
                "FifoQueue": null,
                "ContentBasedDeduplication": null,
                "DeduplicationScope": null,
                "FifoThroughputLimit": null,
            }})),
        row("all of a FIFO queue")
            .queue("q.fifo")
            .asks(get("q.fifo", json!(["All"])))
            .answers(json!({"Attributes": {
                "QueueArn": arn("q.fifo"),
                "FifoQueue": "true",
                "ContentBasedDeduplication": "false",
                "DeduplicationScope": "queue",
                "FifoThroughputLimit": "perQueue",
            }})),
        row("counts")
            .queue("q")
            .message("q", "a")
            .received("q")
            .message("q", "b")
            .message("q", "c")
            .given(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "d", "DelaySeconds": 1}),
            )
            .given(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "e", "DelaySeconds": 2}),
            )
            .given(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "f", "DelaySeconds": 3}),
            )
            .asks(get(
                "q",
                json!([
                    "ApproximateNumberOfMessages",
                    "ApproximateNumberOfMessagesNotVisible",
                    "ApproximateNumberOfMessagesDelayed"
                ]),
            ))
            .answers(json!({"Attributes": {
                "ApproximateNumberOfMessages": "2",
                "ApproximateNumberOfMessagesNotVisible": "1",
                "ApproximateNumberOfMessagesDelayed": "3",
            }})),
        row("just those asked for")
            .queue("q")
            .asks(get("q", json!(["DelaySeconds", "DelaySeconds"])))
            .answers(
                json!({"Attributes": {"DelaySeconds": "0", "VisibilityTimeout": null,
                "QueueArn": null}}),
            ),
        row("all, and one by name")
            .queue("q")
            .asks(get("q", json!(["QueueArn", "All"])))
            .answers(json!({"Attributes": {"QueueArn": arn("q"), "DelaySeconds": "0"}})),
        row("no names")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .answers(json!({})),
        row("an empty list of names")
            .queue("q")
            .asks(get("q", json!([])))
            .answers(json!({})),
        row("one that it does not have")
            .queue("q")
            .asks(get("q", json!(["Policy"])))
            .answers(json!({})),
        row("one of the other kind of queue")
            .queue("q")
            .asks(get("q", json!(["FifoQueue", "DelaySeconds"])))
            .answers(json!({"Attributes": {"FifoQueue": null, "DelaySeconds": "0"}})),
        row("the time of a change")
            .queue("q")
            .after(5_000)
            .given(
                "SetQueueAttributes",
                json!({"QueueUrl": url("q"), "Attributes": {"DelaySeconds": "1"}}),
            )
            .given(
                "GetQueueAttributes",
                get("q", json!(["LastModifiedTimestamp"])),
            )
            .asks(get("q", json!(["All"])))
            .answers(json!({"Attributes": {
                "LastModifiedTimestamp": "{3/Attributes/LastModifiedTimestamp}"}})),
        row("no queue is named")
            .asks(json!({"AttributeNames": ["All"]}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(get("none", json!(["All"])))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("names that are no list")
            .queue("q")
            .asks(get("q", json!("All")))
            .refused(
                &SERIALIZATION,
                "invalid type: string \"All\", expected a sequence at line 1 column 23",
            )
            .in_json_only(),
    ];
    for name in ["", "Nonsense", "all", "SenderId", "lockgate.x"] {
        rows.push(
            row(format!("the name {name:?}"))
                .queue("q")
                .asks(get("q", json!(["QueueArn", name])))
                .refused(&ATTRIBUTE_NAME, format!("Unknown Attribute {name}.")),
        );
    }
    rows
}

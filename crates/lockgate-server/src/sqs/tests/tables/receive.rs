//! ReceiveMessage.

use serde_json::{Value, json};

use super::{
    Row,
    codes::{ATTRIBUTE_NAME, INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, OVER_LIMIT, SERIALIZATION},
    huge_integers, row,
    send::{invalid, with},
    url,
};

fn receive(queue: &str, more: &Value) -> Value {
    let mut input = json!({"QueueUrl": url(queue)});
    with(&mut input, more);
    input
}

pub(super) fn receive_message() -> Vec<Row> {
    let mut rows = plain();
    rows.extend(numbers());
    rows.extend(filters());
    rows.extend(order());
    rows
}

fn plain() -> Vec<Row> {
    vec![
        row("an empty queue")
            .queue("q")
            .asks(receive("q", &json!({})))
            .answers(json!({})),
        row("a message, with nothing that was not asked for")
            .queue("q")
            .message("q", "abc")
            .asks(receive("q", &json!({})))
            .answers(
                json!({"Messages": [{"Body": "abc", "MessageId": "{2/MessageId}",
                "MD5OfBody": "900150983cd24fb0d6963f7d28e17f72", "ReceiptHandle": "*",
                "Attributes": null, "MessageAttributes": null, "MD5OfMessageAttributes": null}]}),
            )
            .then("ReceiveMessage", receive("q", &json!({})), json!({})),
        row("one of two, when no number is given")
            .queue("q")
            .message("q", "a")
            .message("q", "b")
            .asks(receive("q", &json!({})))
            .answers(json!({"Messages": [{"Body": "a"}]})),
        row("a message is in flight")
            .queue("q")
            .message("q", "x")
            .received("q")
            .after(29_999)
            .asks(receive("q", &json!({})))
            .answers(json!({})),
        row("its time is over")
            .queue("q")
            .message("q", "x")
            .received("q")
            .after(30_000)
            .asks(receive(
                "q",
                &json!({"MessageSystemAttributeNames": ["ApproximateReceiveCount"]}),
            ))
            .answers(json!({"Messages": [{"Body": "x",
                "Attributes": {"ApproximateReceiveCount": "2"}}]})),
        row("a message is delayed")
            .queue_with("q", json!({"DelaySeconds": "2"}))
            .message("q", "x")
            .after(1_999)
            .asks(receive("q", &json!({})))
            .answers(json!({})),
        row("a delay is over")
            .queue_with("q", json!({"DelaySeconds": "2"}))
            .message("q", "x")
            .after(2_000)
            .asks(receive("q", &json!({})))
            .answers(json!({"Messages": [{"Body": "x"}]})),
        row("its retention is over")
            .queue_with("q", json!({"MessageRetentionPeriod": "60"}))
            .message("q", "x")
            .after(60_000)
            .asks(receive("q", &json!({})))
            .answers(json!({})),
        row("too often received, it is a dead letter")
            .queue("dead")
            .queue_with(
                "q",
                json!({"VisibilityTimeout": "0", "RedrivePolicy": json!({
                "deadLetterTargetArn": super::arn("dead"), "maxReceiveCount": 1}).to_string()}),
            )
            .message("q", "x")
            .received("q")
            .asks(receive("q", &json!({})))
            .answers(json!({}))
            .then(
                "ReceiveMessage",
                receive("dead", &json!({"AttributeNames": ["All"]})),
                json!({"Messages": [{"Body": "x", "MessageId": "{3/MessageId}", "Attributes": {
                    "DeadLetterQueueSourceArn": super::arn("q")}}]}),
            ),
        row("a dead letter of a FIFO queue has its MessageId as deduplication id")
            .queue("dead.fifo")
            .queue_with(
                "q.fifo",
                json!({"VisibilityTimeout": "0", "RedrivePolicy": json!({
                "deadLetterTargetArn": super::arn("dead.fifo"), "maxReceiveCount": 1}).to_string()}),
            )
            .message("q.fifo", "x")
            .received("q.fifo")
            .received("q.fifo")
            .message("dead.fifo", "x")
            .asks(receive("dead.fifo", &json!({"AttributeNames": ["All"],
                "MaxNumberOfMessages": 10})))
            .answers(json!({"Messages": [
                {"MessageId": "{3/MessageId}", "Attributes": {
                    "MessageDeduplicationId": "{3/MessageId}", "MessageGroupId": "g"}},
                {"MessageId": "{6/MessageId}", "Attributes": {
                    "MessageDeduplicationId": "x", "DeadLetterQueueSourceArn": null}},
            ]})),
        row("as many in flight as may be")
            .given(
                "CreateQueue",
                json!({"QueueName": "q", "tags": {"lockgate:in-flight-max": "1"}}),
            )
            .message("q", "a")
            .message("q", "b")
            .given("ReceiveMessage", receive("q", &json!({})))
            .asks(receive("q", &json!({})))
            .refused(
                &OVER_LIMIT,
                "Too many messages have been received without being deleted. Please delete your \
                 received messages or let them timeout before receiving more.",
            ),
        row("as many of a FIFO queue in flight as may be")
            .given(
                "CreateQueue",
                json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"},
                "tags": {"lockgate:in-flight-max": "1"}}),
            )
            .message("q.fifo", "a")
            .message("q.fifo", "b")
            .given("ReceiveMessage", receive("q.fifo", &json!({})))
            .asks(receive("q.fifo", &json!({})))
            .answers(json!({})),
        row("no queue is named")
            .asks(json!({"MaxNumberOfMessages": 1}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(receive("none", &json!({})))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]
}

fn numbers() -> Vec<Row> {
    let eleven = |name: &str| {
        (0..11).fold(row(name).queue("q"), |row, n| {
            row.message("q", &n.to_string())
        })
    };
    let bodies = |count: u32| {
        (0..count)
            .map(|n| json!({"Body": n.to_string()}))
            .collect::<Vec<_>>()
    };
    let mut rows = vec![
        eleven("ten of eleven")
            .asks(receive("q", &json!({"MaxNumberOfMessages": 10})))
            .answers(json!({"Messages": bodies(10)})),
        eleven("one of eleven")
            .asks(receive("q", &json!({"MaxNumberOfMessages": 1})))
            .answers(json!({"Messages": bodies(1)})),
        row("a visibility of zero")
            .queue("q")
            .message("q", "x")
            .asks(receive("q", &json!({"VisibilityTimeout": 0})))
            .answers(json!({"Messages": [{"Body": "x"}]}))
            .then(
                "ReceiveMessage",
                receive("q", &json!({})),
                json!({"Messages": [{"Body": "x"}]}),
            ),
        row("the longest visibility")
            .queue("q")
            .message("q", "x")
            .asks(receive("q", &json!({"VisibilityTimeout": 43_200})))
            .answers(json!({"Messages": [{"Body": "x"}]})),
        row("a wait of zero on a queue that waits")
            .queue_with("q", json!({"ReceiveMessageWaitTimeSeconds": "20"}))
            .asks(receive("q", &json!({"WaitTimeSeconds": 0})))
            .answers(json!({})),
        row("the longest wait, when there is a message")
            .queue("q")
            .message("q", "x")
            .asks(receive("q", &json!({"WaitTimeSeconds": 20})))
            .answers(json!({"Messages": [{"Body": "x"}]})),
    ];
    for (parameter, wrong, rule) in [
        (
            "MaxNumberOfMessages",
            [0, 11],
            "Must be between 1 and 10, if provided.",
        ),
        (
            "WaitTimeSeconds",
            [21, 300],
            "Must be >= 0 and <= 20, if provided.",
        ),
        (
            "VisibilityTimeout",
            [43_201, 50_000],
            "Must be >= 0 and <= 43200, if provided.",
        ),
    ] {
        for number in wrong.into_iter().chain(huge_integers()) {
            rows.push(
                row(format!("{parameter} of {number}"))
                    .queue("q")
                    .message("q", "x")
                    .asks(receive("q", &json!({parameter: number})))
                    .refused(&INVALID, invalid(&number.to_string(), parameter, rule)),
            );
        }
        let column = parameter.len() + 7;
        rows.push(
            row(format!("{parameter} that is a text"))
                .asks(json!({parameter: "x"}))
                .refused(
                    &SERIALIZATION,
                    format!("STRING_VALUE can not be converted to an Integer (invalid type: string \"x\", expected i64 at line 1 column {column})"),
                )
                .but_in_query(&INVALID, invalid("x", parameter, "Must be an integer.")),
        );
    }
    rows
}

fn filters() -> Vec<Row> {
    let text = |value: &str| json!({"DataType": "String", "StringValue": value});
    let sent = |name: &str| {
        row(name).queue("q").given(
            "SendMessage",
            json!({"QueueUrl": url("q"), "MessageBody": "x",
            "MessageGroupId": "g", "MessageAttributes": {"Help.Me": text("Me"),
                "Hello": text("There"), "General": text("Kenobi")}}),
        )
    };
    let mut rows = Vec::new();
    let three = ["General", "Hello", "Help.Me"];
    for (names, passed, digest) in [
        (
            json!(["All"]),
            &three[..],
            "4c360f3fdafd970e05fae2f149d997f5",
        ),
        (json!([".*"]), &three, "4c360f3fdafd970e05fae2f149d997f5"),
        (
            json!(["Hello"]),
            &["Hello"],
            "a311262e065454b75da111d535b8dacd",
        ),
        (
            json!(["Hel.*"]),
            &["Hello", "Help.Me"],
            "83fee93c1bcd8b9a5a923ffacdc636c7",
        ),
        (
            json!(["Help.*"]),
            &["Help.Me"],
            "e3559934329581483df4474944b301c4",
        ),
        (
            json!(["Help.Me", "Hello", "None"]),
            &["Hello", "Help.Me"],
            "83fee93c1bcd8b9a5a923ffacdc636c7",
        ),
        (
            json!(["Help.Me", "All"]),
            &three,
            "4c360f3fdafd970e05fae2f149d997f5",
        ),
        (json!(["None"]), &[], ""),
        (json!(["Hel"]), &[], ""),
        (json!(["hello"]), &[], ""),
        (json!(["AWS."]), &[], ""),
    ] {
        let mut message = json!({"Body": "x", "MD5OfMessageAttributes": digest,
            "MessageAttributes": {}});
        for name in three {
            let is_passed = passed.contains(&name);
            message["MessageAttributes"][name] =
                json!(is_passed.then_some(json!({"DataType": "String"})));
        }
        if passed.is_empty() {
            message["MessageAttributes"] = Value::Null;
            message["MD5OfMessageAttributes"] = Value::Null;
        }
        rows.push(
            sent(&format!("the attributes {names}"))
                .asks(receive("q", &json!({"MessageAttributeNames": names})))
                .answers(json!({"Messages": [message]})),
        );
    }
    let system = json!({"SenderId": "000000000000", "SentTimestamp": "*",
        "ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": "*",
        "MessageGroupId": "g", "SequenceNumber": null, "MessageDeduplicationId": null,
        "AWSTraceHeader": null, "DeadLetterQueueSourceArn": null});
    for list in ["AttributeNames", "MessageSystemAttributeNames"] {
        rows.extend([
            sent(&format!("{list} of all"))
                .asks(receive("q", &json!({list: ["All"]})))
                .answers(json!({"Messages": [{"Attributes": system, "MessageAttributes": null}]})),
            sent(&format!("{list} of one"))
                .asks(receive("q", &json!({list: ["SenderId"]})))
                .answers(
                    json!({"Messages": [{"Attributes": {"SenderId": "000000000000",
                    "SentTimestamp": null}}]}),
                ),
            sent(&format!("{list} of one that the message does not have"))
                .asks(receive("q", &json!({list: ["AWSTraceHeader"]})))
                .answers(json!({"Messages": [{"Attributes": null}]})),
            sent(&format!("{list} of one that is unknown"))
                .asks(receive("q", &json!({list: ["SenderId", "Nonsense"]})))
                .refused(&ATTRIBUTE_NAME, "Unknown Attribute Nonsense."),
            sent(&format!("{list} of an empty name"))
                .asks(receive("q", &json!({list: [""]})))
                .refused(&ATTRIBUTE_NAME, "Unknown Attribute ."),
        ]);
    }
    rows.extend([
        sent("both lists of system attributes count")
            .asks(receive(
                "q",
                &json!({"AttributeNames": ["SenderId"],
                "MessageSystemAttributeNames": ["ApproximateReceiveCount"]}),
            ))
            .answers(
                json!({"Messages": [{"Attributes": {"SenderId": "000000000000",
                "ApproximateReceiveCount": "1", "SentTimestamp": null}}]}),
            ),
        row("all system attributes of a FIFO message")
            .queue("q.fifo")
            .message("q.fifo", "x")
            .asks(receive("q.fifo", &json!({"AttributeNames": ["All"]})))
            .answers(json!({"Messages": [{"Attributes": {"MessageGroupId": "g",
                "MessageDeduplicationId": "x", "SequenceNumber": "10000000000000000001",
                "SenderId": "000000000000", "ApproximateReceiveCount": "1"}}]})),
    ]);
    rows
}

/// What a FIFO queue hands out, and the id of a repeatable receive.
fn order() -> Vec<Row> {
    let sent = |row: Row, group: &str, body: &str| {
        row.given(
            "SendMessage",
            json!({"QueueUrl": url("q.fifo"), "MessageBody": body,
            "MessageGroupId": group, "MessageDeduplicationId": body}),
        )
    };
    let three = |name: &str| {
        let row = sent(row(name).queue("q.fifo"), "a", "a1");
        sent(sent(row, "a", "a2"), "b", "b1")
    };
    let longest = "x".repeat(128);
    let mut rows = vec![
        three("a group in its order")
            .asks(receive("q.fifo", &json!({"MaxNumberOfMessages": 2})))
            .answers(json!({"Messages": [{"Body": "a1"}, {"Body": "a2"}]})),
        three("another group, while one is in flight")
            .given("ReceiveMessage", receive("q.fifo", &json!({})))
            .asks(receive("q.fifo", &json!({"MaxNumberOfMessages": 10})))
            .answers(json!({"Messages": [{"Body": "b1"}]})),
        three("the next of a group, when the one before is deleted")
            .given("ReceiveMessage", receive("q.fifo", &json!({})))
            .given(
                "DeleteMessage",
                json!({"QueueUrl": url("q.fifo"),
                "ReceiptHandle": "{5/Messages/0/ReceiptHandle}"}),
            )
            .given("ReceiveMessage", receive("q.fifo", &json!({})))
            .asks(receive("q.fifo", &json!({"MaxNumberOfMessages": 10})))
            .answers(json!({"Messages": [{"Body": "*"}]})),
        row("a group again in its order, when it was not deleted in time")
            .queue("q.fifo")
            .message("q.fifo", "1")
            .message("q.fifo", "2")
            .message("q.fifo", "3")
            .given(
                "ReceiveMessage",
                receive("q.fifo", &json!({"MaxNumberOfMessages": 2})),
            )
            .after(30_000)
            .asks(receive("q.fifo", &json!({"MaxNumberOfMessages": 10})))
            .answers(json!({"Messages": [{"Body": "1"}, {"Body": "2"}, {"Body": "3"}]})),
        three("again by its id")
            .given(
                "ReceiveMessage",
                receive("q.fifo", &json!({"ReceiveRequestAttemptId": "id"})),
            )
            .asks(receive("q.fifo", &json!({"ReceiveRequestAttemptId": "id"})))
            .answers(
                json!({"Messages": [{"Body": "a1", "MessageId": "{5/Messages/0/MessageId}",
                "ReceiptHandle": "{5/Messages/0/ReceiptHandle}"}]}),
            ),
        three("by another id")
            .given(
                "ReceiveMessage",
                receive("q.fifo", &json!({"ReceiveRequestAttemptId": "id"})),
            )
            .asks(receive(
                "q.fifo",
                &json!({"ReceiveRequestAttemptId": "other"}),
            ))
            .answers(json!({"Messages": [{"Body": "b1"}]})),
        row("again by its id from a standard queue, where it means nothing")
            .queue("q")
            .message("q", "x")
            .given(
                "ReceiveMessage",
                receive("q", &json!({"ReceiveRequestAttemptId": "id"})),
            )
            .asks(receive("q", &json!({"ReceiveRequestAttemptId": "id"})))
            .answers(json!({})),
        three("with an id to repeat it by")
            .asks(receive(
                "q.fifo",
                &json!({"ReceiveRequestAttemptId": longest}),
            ))
            .answers(json!({"Messages": [{"Body": "a1"}]})),
    ];
    for id in ["a b", "ä", &"x".repeat(129)] {
        rows.push(
            three(&format!("the id {id:?} to repeat it by"))
                .asks(receive("q.fifo", &json!({"ReceiveRequestAttemptId": id})))
                .refused(
                    &INVALID,
                    invalid(
                        id,
                        "ReceiveRequestAttemptId",
                        "ReceiveRequestAttemptId can only include alphanumeric and punctuation \
                         characters. 1 to 128 in length.",
                    ),
                ),
        );
    }
    rows
}

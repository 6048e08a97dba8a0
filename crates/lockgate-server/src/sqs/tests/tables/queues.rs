//! CreateQueue, GetQueueUrl, ListQueues, DeleteQueue.

use serde_json::{Value, json};

use super::{
    Row, arn, attributes,
    codes::{
        ATTRIBUTE_NAME, INVALID, MISSING, NAME_EXISTS, NO_QUEUE, NO_QUEUE_TEXT, SERIALIZATION,
    },
    dead_letters, huge_integers, row, tags, url,
};

const STANDARD_NAME: &str =
    "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
const FIFO_NAME: &str = "The name of a FIFO queue can only include alphanumeric characters, \
    hyphens, or underscores, must end with .fifo suffix and be 1 to 80 in length";

pub(super) fn create_queue() -> Vec<Row> {
    let made = |name: &str| json!({"QueueUrl": url(name)});
    let fifo = |name: &str| json!({"QueueName": name, "Attributes": {"FifoQueue": "true"}});
    let with = |attributes: Value| json!({"QueueName": "q", "Attributes": attributes});
    let longest = "x".repeat(80);
    let longest_fifo = format!("{}.fifo", "x".repeat(75));
    let mut rows = vec![
        row("a queue")
            .asks(json!({"QueueName": "q"}))
            .answers(made("q")),
        row("a FIFO queue")
            .asks(fifo("q.fifo"))
            .answers(made("q.fifo")),
        row("a name of 80 characters")
            .asks(json!({"QueueName": longest}))
            .answers(made(&longest)),
        row("a FIFO name of 80 characters")
            .asks(fifo(&longest_fifo))
            .answers(made(&longest_fifo)),
        row("a name of all that is allowed")
            .asks(json!({"QueueName": "-_09azAZ"}))
            .answers(made("-_09azAZ")),
        row("names differ by case")
            .queue_with("q", json!({"DelaySeconds": "1"}))
            .asks(json!({"QueueName": "Q", "Attributes": {"DelaySeconds": "2"}}))
            .answers(made("Q")),
        row("no name").refused(
            &INVALID,
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
        ),
        row("no name but attributes")
            .asks(json!({"Attributes": {"DelaySeconds": "1"}}))
            .refused(
                &INVALID,
                "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
            ),
    ];
    let too_long = "x".repeat(81);
    let too_long_fifo = format!("x{longest_fifo}");
    for name in [
        "", "a b", "a.b", "a/b", "a:b", "ä", "q.fifo", ".fifo", &too_long,
    ] {
        rows.push(
            row(format!("a standard queue named {name:?}"))
                .asks(json!({"QueueName": name}))
                .refused(&INVALID, STANDARD_NAME),
        );
    }
    for name in [
        "",
        ".fifo",
        "q",
        "q.FIFO",
        "a.b.fifo",
        "a b.fifo",
        "q.fifo.fifo",
        &too_long_fifo,
    ] {
        rows.push(
            row(format!("a FIFO queue named {name:?}"))
                .asks(fifo(name))
                .refused(&INVALID, FIFO_NAME),
        );
    }
    rows.extend([
        row("again")
            .queue("q")
            .asks(json!({"QueueName": "q"}))
            .answers(made("q")),
        row("again with the same attributes")
            .queue_with("q", json!({"DelaySeconds": "1", "VisibilityTimeout": "2"}))
            .asks(with(json!({"DelaySeconds": "1", "VisibilityTimeout": "2"})))
            .answers(made("q")),
        row("again with some of the attributes")
            .queue_with("q", json!({"DelaySeconds": "1", "VisibilityTimeout": "2"}))
            .asks(with(json!({"VisibilityTimeout": "2"})))
            .answers(made("q")),
        row("again with defaults spelled out")
            .queue("q")
            .asks(with(
                json!({"VisibilityTimeout": "30", "MaximumMessageSize": "1048576"}),
            ))
            .answers(made("q")),
        row("again with the same policy in other words")
            .queue_with("q", json!({"Policy": "{\"a\":1,\"b\":2}"}))
            .asks(with(json!({"Policy": "{ \"b\": 2, \"a\": 1 }"})))
            .answers(made("q")),
        row("again as FIFO")
            .queue("q.fifo")
            .asks(fifo("q.fifo"))
            .answers(made("q.fifo")),
        row("again with other tags")
            .given("CreateQueue", json!({"QueueName": "q", "tags": {"a": "1"}}))
            .asks(json!({"QueueName": "q", "tags": {"a": "2", "b": "3"}}))
            .answers(made("q"))
            .then(
                "ListQueueTags",
                json!({"QueueUrl": url("q")}),
                json!({"Tags": {"a": "1", "b": null}}),
            ),
        row("at once after it was deleted")
            .queue_with("q", json!({"DelaySeconds": "1"}))
            .message("q", "x")
            .given("DeleteQueue", json!({"QueueUrl": url("q")}))
            .asks(with(json!({"DelaySeconds": "2"})))
            .answers(made("q"))
            .then_attribute("q", "ApproximateNumberOfMessagesDelayed", json!("0")),
    ]);
    for (attribute, before, after) in [
        ("DelaySeconds", "1", "2"),
        ("VisibilityTimeout", "30", "31"),
        ("MessageRetentionPeriod", "60", "61"),
        ("MaximumMessageSize", "1024", "1025"),
        ("ReceiveMessageWaitTimeSeconds", "0", "20"),
        ("Policy", "{\"a\":1}", "{\"a\":2}"),
        ("KmsMasterKeyId", "a", "b"),
        ("SqsManagedSseEnabled", "true", "false"),
    ] {
        rows.push(
            row(format!("again with another {attribute}"))
                .given("CreateQueue", with(json!({attribute: before})))
                .asks(with(json!({attribute: after})))
                .refused(
                    &NAME_EXISTS,
                    format!(
                        "A queue already exists with the same name and a different value for \
                         attribute {attribute}"
                    ),
                ),
        );
    }
    rows.extend([
        row("again with an attribute that it does not have")
            .queue("q")
            .queue("dead")
            .asks(with(json!({"RedrivePolicy": json!({
                "deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}).to_string()})))
            .refused(
                &NAME_EXISTS,
                "A queue already exists with the same name and a different value for attribute \
                 RedrivePolicy",
            ),
        row("again with another FIFO attribute")
            .queue("q.fifo")
            .asks(json!({"QueueName": "q.fifo",
                "Attributes": {"FifoQueue": "true", "ContentBasedDeduplication": "true"}}))
            .refused(
                &NAME_EXISTS,
                "A queue already exists with the same name and a different value for attribute \
                 ContentBasedDeduplication",
            ),
        row("FifoQueue that is false")
            .asks(with(json!({"FifoQueue": "false"})))
            .refused(&ATTRIBUTE_NAME, "Unknown Attribute FifoQueue."),
        row("a name that is a number")
            .asks(json!({"QueueName": 7}))
            .refused(
                &SERIALIZATION,
                "NUMBER_VALUE can not be converted to a String (invalid type: integer `7`, expected a string at line 1 column 14)",
            )
            .in_json_only(),
        row("a name that is true")
            .asks(json!({"QueueName": true}))
            .refused(
                &SERIALIZATION,
                "TRUE_VALUE can not be converted to a String (invalid type: boolean `true`, \
                 expected a string at line 1 column 17)",
            )
            .in_json_only(),
        row("a name that is a list")
            .asks(json!({"QueueName": []}))
            .refused(
                &SERIALIZATION,
                "Start of list found where not expected (invalid type: sequence, expected a string \
                 at line 1 column 13)",
            )
            .in_json_only(),
        row("attributes that are a list")
            .asks(json!({"QueueName": "q", "Attributes": ["DelaySeconds"]}))
            .refused(
                &SERIALIZATION,
                "invalid type: sequence, expected a map at line 1 column 15",
            )
            .in_json_only(),
        row("an attribute that is a number")
            .asks(with(json!({"DelaySeconds": 1})))
            .refused(
                &SERIALIZATION,
                "NUMBER_VALUE can not be converted to a String (invalid type: integer `1`, expected a string at line 1 column 31)",
            )
            .in_json_only(),
    ]);
    let creates = |row: Row, given: &[(&str, &str)], extra: &Value| {
        let mut input = json!({"QueueName": "q", "Attributes": {}});
        for (name, value) in given {
            input["Attributes"][name] = json!(value);
        }
        if let Some(extra) = extra.as_object() {
            input
                .as_object_mut()
                .expect("an object")
                .extend(extra.clone());
        }
        row.asks(input)
    };
    rows.extend(attributes::values(&|row, given| {
        creates(row, given, &json!({}))
    }));
    rows.extend(dead_letters::policies(&|row, given| {
        creates(row, given, &json!({}))
    }));
    rows.extend(tags::limits(&|row, tags| {
        creates(row, &[], &json!({"tags": tags}))
    }));
    rows
}

pub(super) fn get_queue_url() -> Vec<Row> {
    let mut rows = vec![
        row("a queue")
            .queue("q")
            .asks(json!({"QueueName": "q"}))
            .answers(json!({"QueueUrl": url("q")})),
        row("a FIFO queue")
            .queue("q.fifo")
            .asks(json!({"QueueName": "q.fifo"}))
            .answers(json!({"QueueUrl": url("q.fifo")})),
        row("of our account")
            .queue("q")
            .asks(json!({"QueueName": "q", "QueueOwnerAWSAccountId": "000000000000"}))
            .answers(json!({"QueueUrl": url("q")})),
        row("of another account")
            .queue("q")
            .asks(json!({"QueueName": "q", "QueueOwnerAWSAccountId": "111111111111"}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("a deleted queue")
            .queue("q")
            .given("DeleteQueue", json!({"QueueUrl": url("q")}))
            .asks(json!({"QueueName": "q"}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("no name").refused(
            &INVALID,
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
        ),
        row("names differ by case")
            .queue("q")
            .asks(json!({"QueueName": "Q"}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ];
    for name in ["", "none", "q.fifo", "a/b c", &"x".repeat(81)] {
        rows.push(
            row(format!("{name:?}, which is not there"))
                .queue("q")
                .asks(json!({"QueueName": name}))
                .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        );
    }
    rows
}

pub(super) fn list_queues() -> Vec<Row> {
    let urls = |names: &[&str]| names.iter().map(|name| url(name)).collect::<Vec<_>>();
    let four = |name: &str| {
        row(name)
            .queue("b2")
            .queue("a")
            .queue("b1.fifo")
            .queue("b3")
    };
    let range = "MaxResults must be an integer between 1 and 1000.";
    let mut rows = vec![
        row("no queues").answers(json!({})),
        four("all, in order of their names")
            .answers(json!({"QueueUrls": urls(&["a", "b1.fifo", "b2", "b3"]), "NextToken": null})),
        four("by a prefix")
            .asks(json!({"QueueNamePrefix": "b"}))
            .answers(json!({"QueueUrls": urls(&["b1.fifo", "b2", "b3"])})),
        four("by a prefix that is a whole name")
            .asks(json!({"QueueNamePrefix": "b1.fifo"}))
            .answers(json!({"QueueUrls": urls(&["b1.fifo"])})),
        four("by a prefix of another case")
            .asks(json!({"QueueNamePrefix": "B"}))
            .answers(json!({})),
        four("by a prefix that no name can have")
            .asks(json!({"QueueNamePrefix": "/"}))
            .answers(json!({})),
        four("by an empty prefix")
            .asks(json!({"QueueNamePrefix": ""}))
            .answers(json!({"QueueUrls": urls(&["a", "b1.fifo", "b2", "b3"])})),
        four("page by page")
            .asks(json!({"QueueNamePrefix": "b", "MaxResults": 2}))
            .answers(json!({"QueueUrls": urls(&["b1.fifo", "b2"]), "NextToken": "*"}))
            .then(
                "ListQueues",
                json!({"QueueNamePrefix": "b", "MaxResults": 2, "NextToken": "{5/NextToken}"}),
                json!({"QueueUrls": urls(&["b3"]), "NextToken": null}),
            ),
        four("a page for each")
            .asks(json!({"MaxResults": 1}))
            .answers(json!({"QueueUrls": urls(&["a"]), "NextToken": "*"}))
            .then(
                "ListQueues",
                json!({"MaxResults": 1, "NextToken": "{5/NextToken}"}),
                json!({"QueueUrls": urls(&["b1.fifo"]), "NextToken": "*"}),
            ),
        four("a page that holds just all")
            .asks(json!({"MaxResults": 4}))
            .answers(json!({"QueueUrls": urls(&["a", "b1.fifo", "b2", "b3"]), "NextToken": null})),
        four("the largest page")
            .asks(json!({"MaxResults": 1000}))
            .answers(json!({"QueueUrls": urls(&["a", "b1.fifo", "b2", "b3"]), "NextToken": null})),
        row("a token that was made up")
            .asks(json!({"MaxResults": 1, "NextToken": "?"}))
            .refused(&INVALID, "Invalid or expired next token."),
        row("an empty token")
            .asks(json!({"MaxResults": 1, "NextToken": ""}))
            .refused(&INVALID, "Invalid or expired next token."),
        row("a number that is a text")
            .asks(json!({"MaxResults": "x"}))
            .refused(
                &SERIALIZATION,
                "STRING_VALUE can not be converted to an Integer (invalid type: string \"x\", expected i64 at line 1 column 17)",
            )
            .but_in_query(
                &INVALID,
                "Value x for parameter MaxResults is invalid. Reason: Must be an integer.",
            ),
    ];
    for max in [0, 1001].into_iter().chain(huge_integers()) {
        rows.push(
            row(format!("a page of {max}"))
                .asks(json!({"MaxResults": max}))
                .refused(
                    &INVALID,
                    format!("Value for parameter MaxResults is invalid. Reason: {range}"),
                ),
        );
    }
    rows
}

pub(super) fn delete_queue() -> Vec<Row> {
    let mut rows = vec![
        row("a queue with messages in every state")
            .queue("q")
            .message("q", "in flight")
            .received("q")
            .message("q", "waiting")
            .given(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "x", "DelaySeconds": 9}),
            )
            .asks(json!({"QueueUrl": url("q")}))
            .answers(json!({}))
            .then("ListQueues", json!({}), json!({}))
            .then_refused(
                "GetQueueUrl",
                json!({"QueueName": "q"}),
                &NO_QUEUE,
                NO_QUEUE_TEXT,
            )
            .then_refused(
                "ReceiveMessage",
                json!({"QueueUrl": url("q")}),
                &NO_QUEUE,
                NO_QUEUE_TEXT,
            )
            .then_refused(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "x"}),
                &NO_QUEUE,
                NO_QUEUE_TEXT,
            )
            .then_refused(
                "DeleteQueue",
                json!({"QueueUrl": url("q")}),
                &NO_QUEUE,
                NO_QUEUE_TEXT,
            ),
        row("no queue is named")
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
    ];
    for (what, queue) in [
        (
            "another host's URL",
            "https://sqs.us-east-1.amazonaws.com/000000000000/q",
        ),
        (
            "a URL below a prefix",
            "http://proxy/some/prefix/000000000000/q",
        ),
        ("a bare name", "q"),
    ] {
        rows.push(
            row(format!("named by {what}"))
                .queue("q")
                .asks(json!({"QueueUrl": queue}))
                .answers(json!({}))
                .then("ListQueues", json!({}), json!({})),
        );
    }
    for (what, queue) in [
        ("an empty URL", String::new()),
        ("a URL without a queue", "http://localhost:9324".to_owned()),
        ("a queue that is not there", url("none")),
        ("a queue of another case", url("Q")),
        (
            "another account's queue",
            "http://localhost:9324/111111111111/q".to_owned(),
        ),
        ("a name that none can have", url("a b")),
    ] {
        rows.push(
            row(what)
                .queue("q")
                .asks(json!({"QueueUrl": queue}))
                .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        );
    }
    rows
}

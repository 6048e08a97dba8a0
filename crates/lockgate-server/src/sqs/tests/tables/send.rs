//! SendMessage.

use serde_json::{Value, json};

use super::{
    Row,
    codes::{CONTENTS, INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, SERIALIZATION},
    message_attributes, row, url,
};

pub(super) const NEEDS_DEDUPLICATION: &str = "The queue should either have \
    ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly";

/// The largest message, and all messages of a batch, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 1_048_576;

/// A message for the standard queue `q`.
fn standard(body: &str) -> Value {
    json!({"QueueUrl": url("q"), "MessageBody": body})
}

/// A message for the FIFO queue `q.fifo`, with more members or, by `null`, fewer.
fn fifo(body: &str, more: &Value) -> Value {
    let mut input = json!({"QueueUrl": url("q.fifo"), "MessageBody": body,
        "MessageGroupId": "g", "MessageDeduplicationId": "d"});
    with(&mut input, more);
    input
}

/// Changes members of a request; `null` takes one out.
pub(super) fn with(input: &mut Value, more: &Value) {
    let members = input.as_object_mut().expect("an object");
    for (name, value) in more.as_object().expect("an object") {
        if value.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
}

fn receives(queue: &str) -> Value {
    json!({"QueueUrl": url(queue), "MaxNumberOfMessages": 10,
        "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]})
}

pub(super) fn invalid(value: &str, parameter: &str, reason: &str) -> String {
    format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}")
}

pub(super) fn send_message() -> Vec<Row> {
    let mut rows = bodies();
    rows.extend(delays());
    rows.extend(groups());
    rows.extend(deduplication());
    rows.extend(message_attributes::rows(&|row, attributes| {
        row.queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": "x",
            "MessageAttributes": attributes}))
    }));
    rows.extend(system_attributes());
    rows
}

fn bodies() -> Vec<Row> {
    let largest = "x".repeat(MESSAGE_BYTES_MAX);
    let too_large = |max: usize| {
        format!(
            "One or more parameters are invalid. Reason: Message must be shorter than {max} bytes."
        )
    };
    let mut rows = vec![
        row("a message")
            .queue("q")
            .asks(standard("abc"))
            .answers(json!({"MessageId": "*",
                "MD5OfMessageBody": "900150983cd24fb0d6963f7d28e17f72",
                "MD5OfMessageAttributes": null, "MD5OfMessageSystemAttributes": null,
                "SequenceNumber": null}))
            .then(
                "ReceiveMessage",
                receives("q"),
                json!({"Messages": [{
                "Body": "abc", "MD5OfBody": "900150983cd24fb0d6963f7d28e17f72",
                "MessageId": "{2/MessageId}", "MD5OfMessageAttributes": null}]}),
            ),
        row("a body of all kinds of characters")
            .queue("q")
            .asks(standard("größer \u{1f600}\r\n\t"))
            .answers(json!({"MD5OfMessageBody": "8551b227aad4ace8ead7fc8150d8f907"}))
            .then(
                "ReceiveMessage",
                receives("q"),
                json!({"Messages": [{
                "Body": "größer \u{1f600}\r\n\t"}]}),
            ),
        row("a body of markup")
            .queue("q")
            .asks(standard("<a href=\"x\">&amp;</a>]]>%20+"))
            .answers(json!({"MessageId": "*"}))
            .then(
                "ReceiveMessage",
                receives("q"),
                json!({"Messages": [{
                "Body": "<a href=\"x\">&amp;</a>]]>%20+"}]}),
            ),
        row("the ends of the allowed ranges")
            .queue("q")
            .asks(standard(
                "\u{20}\u{d7ff}\u{e000}\u{fffd}\u{10000}\u{10ffff}",
            ))
            .answers(json!({"MessageId": "*"})),
        row("a space")
            .queue("q")
            .asks(standard(" "))
            .answers(json!({"MessageId": "*"})),
        row("the largest body")
            .queue("q")
            .asks(standard(&largest))
            .answers(json!({"MD5OfMessageBody": "b561f87202d04959e37588ee05cf5b10"})),
        row("one byte more")
            .queue("q")
            .asks(standard(&format!("{largest}x")))
            .refused(&INVALID, too_large(MESSAGE_BYTES_MAX)),
        row("the largest with an attribute: name, type and value count")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": &largest[9..],
                "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "AAE="}}}))
            .answers(json!({"MessageId": "*"})),
        row("one byte more with an attribute")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": &largest[8..],
                "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "AAE="}}}))
            .refused(&INVALID, too_large(MESSAGE_BYTES_MAX)),
        row("the largest of a queue's own limit, in bytes")
            .queue_with("q", json!({"MaximumMessageSize": "1024"}))
            .asks(standard(&"ä".repeat(512)))
            .answers(json!({"MessageId": "*"})),
        row("one byte more than a queue's own limit")
            .queue_with("q", json!({"MaximumMessageSize": "1024"}))
            .asks(standard(&format!("{}x", "ä".repeat(512))))
            .refused(&INVALID, too_large(1024)),
        row("no body")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(
                &MISSING,
                "The request must contain the parameter MessageBody.",
            ),
        row("an empty body").queue("q").asks(standard("")).refused(
            &MISSING,
            "The request must contain the parameter MessageBody.",
        ),
        row("a body that is null")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": null}))
            .refused(
                &MISSING,
                "The request must contain the parameter MessageBody.",
            )
            .in_json_only(),
        row("a body that is an object")
            .queue("q")
            .asks(json!({"MessageBody": {"a": 1}, "QueueUrl": url("q")}))
            .refused(
                &SERIALIZATION,
                "Start of structure or map found where not expected. (invalid type: map, expected a string at line 1 column 15)",
            )
            .in_json_only(),
        row("no queue is named")
            .asks(json!({"MessageBody": "x"}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(json!({"QueueUrl": url("none"), "MessageBody": "x"}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ];
    for (found, name) in [
        ('\0', "0"),
        ('\u{8}', "8"),
        ('\u{b}', "B"),
        ('\u{c}', "C"),
        ('\u{e}', "E"),
        ('\u{1f}', "1F"),
        ('\u{fffe}', "FFFE"),
        ('\u{ffff}', "FFFF"),
    ] {
        rows.push(
            row(format!("the character #x{name}"))
                .queue("q")
                .asks(standard(&format!("ok{found}ok")))
                .refused(
                    &CONTENTS,
                    message_attributes::forbidden(name, "message body"),
                ),
        );
    }
    rows
}

fn delays() -> Vec<Row> {
    let delayed = |seconds: Value| {
        let mut input = standard("x");
        input["DelaySeconds"] = seconds;
        input
    };
    let count = |row: Row, name: &str, value: &str| {
        row.then_attribute(
            "q",
            &format!("ApproximateNumberOfMessages{name}"),
            json!(value),
        )
    };
    let range = "DelaySeconds must be >= 0 and <= 900.";
    let mut rows = vec![
        count(
            row("the longest delay")
                .queue("q")
                .asks(delayed(json!(900)))
                .answers(json!({"MessageId": "*"})),
            "Delayed",
            "1",
        ),
        count(
            row("no delay on a queue that has one")
                .queue_with("q", json!({"DelaySeconds": "9"}))
                .asks(delayed(json!(0)))
                .answers(json!({"MessageId": "*"})),
            "Delayed",
            "0",
        ),
        count(
            row("the queue's delay")
                .queue_with("q", json!({"DelaySeconds": "9"}))
                .asks(standard("x"))
                .answers(json!({"MessageId": "*"})),
            "Delayed",
            "1",
        ),
        row("a delay that is a text")
            .queue("q")
            .asks(delayed(json!("soon")))
            .refused(
                &SERIALIZATION,
                "STRING_VALUE can not be converted to an Integer (invalid type: string \"soon\", expected i64 at line 1 column 22)",
            )
            .but_in_query(
                &INVALID,
                invalid("soon", "DelaySeconds", "Must be an integer."),
            ),
        row("a delay that is a fraction")
            .queue("q")
            .asks(delayed(json!(1.5)))
            .refused(
                &SERIALIZATION,
                "invalid type: floating point `1.5`, expected i64 at line 1 column 19",
            )
            .but_in_query(
                &INVALID,
                invalid("1.5", "DelaySeconds", "Must be an integer."),
            ),
        row("no delay on a FIFO queue")
            .queue("q.fifo")
            .asks(fifo("x", &json!({"DelaySeconds": 0})))
            .answers(json!({"MessageId": "*"})),
    ];
    for seconds in [-1, 901, i64::MIN, i64::MAX] {
        rows.push(
            row(format!("a delay of {seconds}"))
                .queue("q")
                .asks(delayed(json!(seconds)))
                .refused(
                    &INVALID,
                    invalid(&seconds.to_string(), "DelaySeconds", range),
                ),
        );
    }
    for seconds in [1, 900, 901, -1] {
        rows.push(
            row(format!("a delay of {seconds} on a FIFO queue"))
                .queue("q.fifo")
                .asks(fifo("x", &json!({"DelaySeconds": seconds})))
                .refused(
                    &INVALID,
                    invalid(
                        &seconds.to_string(),
                        "DelaySeconds",
                        "The request include parameter that is not valid for this queue type.",
                    ),
                ),
        );
    }
    rows
}

/// What ids of groups and for deduplication may have in them, and what not.
fn ids() -> ([String; 3], [String; 6]) {
    let good = [
        "a".to_owned(),
        "x".repeat(128),
        "azAZ09!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~".to_owned(),
    ];
    let bad = ["", "a b", "ä", "a\nb", "a\u{7f}"].map(str::to_owned);
    let [a, b, c, d, e] = bad;
    (good, [a, b, c, d, e, "x".repeat(129)])
}

fn groups() -> Vec<Row> {
    let (good, bad) = ids();
    let mut rows = vec![
        row("a FIFO message")
            .queue("q.fifo")
            .asks(fifo("abc", &json!({})))
            .answers(
                json!({"MessageId": "*", "SequenceNumber": "10000000000000000001",
                "MD5OfMessageBody": "900150983cd24fb0d6963f7d28e17f72"}),
            )
            .then(
                "ReceiveMessage",
                receives("q.fifo"),
                json!({"Messages": [{
                "Body": "abc", "Attributes": {"MessageGroupId": "g", "MessageDeduplicationId": "d",
                    "SequenceNumber": "10000000000000000001"}}]}),
            ),
        row("no group on a FIFO queue")
            .queue("q.fifo")
            .asks(fifo("x", &json!({"MessageGroupId": null})))
            .refused(
                &MISSING,
                "The request must contain the parameter MessageGroupId.",
            ),
    ];
    for id in good {
        rows.push(
            row(format!("the group {id:?}"))
                .queue("q.fifo")
                .asks(fifo("x", &json!({"MessageGroupId": id})))
                .answers(json!({"MessageId": "*"}))
                .then(
                    "ReceiveMessage",
                    receives("q.fifo"),
                    json!({"Messages": [{
                    "Attributes": {"MessageGroupId": id}}]}),
                ),
        );
        let mut input = standard("x");
        input["MessageGroupId"] = json!(id);
        rows.push(
            row(format!("the group {id:?} on a standard queue"))
                .queue("q")
                .asks(input)
                .answers(json!({"MessageId": "*"}))
                .then(
                    "ReceiveMessage",
                    receives("q"),
                    json!({"Messages": [{
                    "Attributes": {"MessageGroupId": id}}]}),
                ),
        );
    }
    for id in bad {
        let text = invalid(
            &id,
            "MessageGroupId",
            "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in \
             length.",
        );
        rows.push(
            row(format!("the group {id:?}"))
                .queue("q.fifo")
                .asks(fifo("x", &json!({"MessageGroupId": id})))
                .refused(&INVALID, text.clone()),
        );
        let mut input = standard("x");
        input["MessageGroupId"] = json!(id);
        rows.push(
            row(format!("the group {id:?} on a standard queue"))
                .queue("q")
                .asks(input)
                .refused(&INVALID, text),
        );
    }
    rows
}

fn deduplication() -> Vec<Row> {
    let (good, bad) = ids();
    let without = json!({"MessageDeduplicationId": null});
    let by_content = json!({"ContentBasedDeduplication": "true"});
    let attribute = json!({"MessageAttributes": {"a": {"DataType": "String", "StringValue": "x"}},
        "MessageDeduplicationId": null});
    let first = "{2/MessageId}";
    let again = json!({"MessageId": first, "SequenceNumber": "10000000000000000001"});
    let anew = json!({"MessageId": "*", "SequenceNumber": "10000000000000000002"});
    let mut rows =
        vec![
        row("a duplicate")
            .queue("q.fifo")
            .given("SendMessage", fifo("x", &json!({})))
            .after(299_999)
            .asks(fifo("other body", &json!({"MessageGroupId": "other"})))
            .answers(again.clone())
            .then_attribute("q.fifo", "ApproximateNumberOfMessages", json!("1")),
        row("the same id after five minutes")
            .queue("q.fifo")
            .given("SendMessage", fifo("x", &json!({})))
            .after(300_000)
            .asks(fifo("x", &json!({})))
            .answers(anew.clone())
            .then_attribute("q.fifo", "ApproximateNumberOfMessages", json!("2")),
        row("a duplicate by its content, whatever its attributes")
            .queue_with("q.fifo", by_content.clone())
            .given("SendMessage", fifo("x", &without))
            .asks(fifo("x", &attribute))
            .answers(again.clone()),
        row("the content's digest is its id")
            .queue_with("q.fifo", by_content.clone())
            .asks(fifo("abc", &without))
            .answers(json!({"MessageId": "*"}))
            .then("ReceiveMessage", receives("q.fifo"), json!({"Messages": [{"Attributes": {
                "MessageDeduplicationId":
                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}]})),
        row("the same content with an id of its own")
            .queue_with("q.fifo", by_content)
            .given("SendMessage", fifo("x", &without))
            .asks(fifo("x", &json!({})))
            .answers(anew.clone()),
        row("the same id in another group, which is the scope")
            .queue_with("q.fifo", json!({"DeduplicationScope": "messageGroup"}))
            .given("SendMessage", fifo("x", &json!({})))
            .asks(fifo("x", &json!({"MessageGroupId": "other"})))
            .answers(anew),
        row("the same id in the same group, which is the scope")
            .queue_with("q.fifo", json!({"DeduplicationScope": "messageGroup"}))
            .given("SendMessage", fifo("x", &json!({})))
            .asks(fifo("x", &json!({})))
            .answers(again),
        row("no deduplication id")
            .queue("q.fifo")
            .asks(fifo("x", &without))
            .refused(&INVALID, NEEDS_DEDUPLICATION),
        row("a deduplication id on a standard queue")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": "x", "MessageDeduplicationId": "d"}))
            .refused(
                &INVALID,
                invalid(
                    "d",
                    "MessageDeduplicationId",
                    "The request includes a parameter that is not valid for this queue type.",
                ),
            ),
    ];
    for id in good {
        rows.push(
            row(format!("the deduplication id {id:?}"))
                .queue("q.fifo")
                .asks(fifo("x", &json!({"MessageDeduplicationId": id})))
                .answers(json!({"MessageId": "*"})),
        );
    }
    for id in bad {
        rows.push(
            row(format!("the deduplication id {id:?}"))
                .queue("q.fifo")
                .asks(fifo("x", &json!({"MessageDeduplicationId": id})))
                .refused(
                    &INVALID,
                    invalid(
                        &id,
                        "MessageDeduplicationId",
                        "MessageDeduplicationId can only include alphanumeric and punctuation \
                         characters. 1 to 128 in length.",
                    ),
                ),
        );
    }
    rows
}

fn system_attributes() -> Vec<Row> {
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793";
    let sent = |row: Row, attributes: Value| {
        row.queue("q")
            .asks(json!({"QueueUrl": url("q"), "MessageBody": "x",
            "MessageSystemAttributes": attributes}))
    };
    let system =
        |problem: &str| format!("Message (system) attribute 'AWSTraceHeader' must {problem}");
    vec![
        sent(
            row("a trace"),
            json!({"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}),
        )
        .answers(
            json!({"MD5OfMessageSystemAttributes": "62a56dd927315f2b2e12832b84617ea5",
            "MD5OfMessageAttributes": null}),
        )
        .then(
            "ReceiveMessage",
            receives("q"),
            json!({"Messages": [{
            "Attributes": {"AWSTraceHeader": trace}}]}),
        ),
        sent(
            row("a trace that is a number"),
            json!({"AWSTraceHeader": {"DataType": "Number", "StringValue": "1"}}),
        )
        .refused(&INVALID, system("have the type 'String'.")),
        sent(
            row("an empty trace"),
            json!({"AWSTraceHeader": {"DataType": "String", "StringValue": ""}}),
        )
        .refused(
            &INVALID,
            system("contain a non-empty value of type 'String'."),
        ),
        sent(
            row("a trace without a value"),
            json!({"AWSTraceHeader": {"DataType": "String"}}),
        )
        .refused(
            &INVALID,
            system("contain a non-empty value of type 'String'."),
        ),
        sent(
            row("a trace with a forbidden character"),
            json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "a\u{1}"}}),
        )
        .refused(
            &INVALID,
            message_attributes::forbidden("1", "message attribute value"),
        ),
        sent(
            row("a system attribute that is not the sender's to set"),
            json!({"SenderId": {"DataType": "String", "StringValue": "x"}}),
        )
        .refused(
            &INVALID,
            "Message system attribute name 'SenderId' is invalid.",
        ),
    ]
}

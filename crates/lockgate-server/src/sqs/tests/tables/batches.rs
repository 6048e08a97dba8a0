//! SendMessageBatch, DeleteMessageBatch, ChangeMessageVisibilityBatch.

use serde_json::{Value, json};

use super::{
    Row,
    codes::{
        BATCH_TOO_LONG, CONTENTS, Code, EMPTY_BATCH, ENTRY_ID, ENTRY_IDS_NOT_DISTINCT, HANDLE,
        INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, TOO_MANY_ENTRIES,
    },
    message_attributes, row,
    send::{MESSAGE_BYTES_MAX, NEEDS_DEDUPLICATION, with},
    settle, url,
};

/// How a batch of this action is made: its action, and an entry that is right.
struct Batch {
    action: &'static str,
    entry: fn(id: &str) -> Value,
}

fn ask(queue: &str, entries: Vec<Value>) -> Value {
    json!({"QueueUrl": url(queue), "Entries": entries})
}

/// An entry that was refused, as the answer has it.
fn failed(id: &str, code: &Code, message: impl Into<String>) -> Value {
    json!({"Id": id, "Code": code.legacy, "Message": message.into(), "SenderFault": true})
}

/// Rows about what holds for a batch as a whole.
fn as_a_whole(batch: &Batch) -> Vec<Row> {
    let name = format!("{}RequestEntry", batch.action);
    let ids = |ids: &[&str]| ids.iter().map(|id| (batch.entry)(id)).collect::<Vec<_>>();
    let many = |count: usize| {
        (0..count)
            .map(|number| (batch.entry)(&number.to_string()))
            .collect::<Vec<_>>()
    };
    let without_id = |id: &str| {
        let mut entry = (batch.entry)(id);
        entry.as_object_mut().expect("an object").remove("Id");
        entry
    };
    let empty = format!("There should be at least one {name} in the request.");
    let too_long = "i".repeat(81);
    let mut rows = vec![
        row("no entries")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(&EMPTY_BATCH, empty.clone()),
        row("an empty list of entries")
            .queue("q")
            .asks(ask("q", vec![]))
            .refused(&EMPTY_BATCH, empty),
        row("eleven entries")
            .queue("q")
            .asks(ask("q", many(11)))
            .refused(
                &TOO_MANY_ENTRIES,
                "Maximum number of entries per request are 10. You have sent 11.",
            ),
        row("an id twice")
            .queue("q")
            .asks(ask("q", ids(&["1", "2", "2", "1"])))
            .refused(&ENTRY_IDS_NOT_DISTINCT, "Id 2 repeated."),
        row("no id")
            .queue("q")
            .asks(ask("q", vec![without_id("1")]))
            .refused(
                &MISSING,
                format!("The request must contain the parameter {name}.1.Id."),
            ),
        row("no id in the second")
            .queue("q")
            .asks(ask("q", vec![(batch.entry)("1"), without_id("2")]))
            .refused(
                &MISSING,
                format!("The request must contain the parameter {name}.2.Id."),
            ),
        row("no queue is named")
            .asks(json!({"Entries": ids(&["1"])}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(ask("none", ids(&["1"])))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ];
    for id in ["", "a b", "a.b", "a:b", "ä", &too_long] {
        rows.push(row(format!("the id {id:?}")).queue("q").asks(ask("q", ids(&["1", id]))).refused(
            &ENTRY_ID,
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
             It can be at most 80 letters long.",
        ));
    }
    rows
}

fn receives(queue: &str) -> Value {
    json!({"QueueUrl": url(queue), "MaxNumberOfMessages": 10})
}

pub(super) fn send_message_batch() -> Vec<Row> {
    let mut rows = as_a_whole(&Batch {
        action: "SendMessageBatch",
        entry: |id| json!({"Id": id, "MessageBody": "x"}),
    });
    rows.extend(sent());
    rows.extend(sent_to_a_fifo_queue());
    rows.extend(sizes());
    rows
}

fn sent() -> Vec<Row> {
    let longest = "i".repeat(80);
    let range = "DelaySeconds must be >= 0 and <= 900";
    let missing_body = |number: usize| {
        format!(
            "The request must contain the parameter \
             SendMessageBatchRequestEntry.{number}.MessageBody."
        )
    };
    vec![
        row("several messages")
            .queue("q")
            .asks(ask("q", vec![
                json!({"Id": "1", "MessageBody": "a"}),
                json!({"Id": "-_azAZ09", "MessageBody": "b", "MessageAttributes": {
                    "a": {"DataType": "String", "StringValue": "x"}}}),
                json!({"Id": longest, "MessageBody": "c", "MessageSystemAttributes": {
                    "AWSTraceHeader": {"DataType": "String",
                        "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}}),
            ]))
            .answers(json!({"Failed": null, "Successful": [
                {"Id": "1", "MessageId": "*", "SequenceNumber": null,
                    "MD5OfMessageBody": "0cc175b9c0f1b6a831c399e269772661",
                    "MD5OfMessageAttributes": null, "MD5OfMessageSystemAttributes": null},
                {"Id": "-_azAZ09", "MessageId": "*",
                    "MD5OfMessageBody": "92eb5ffee6ae2fec3ad71c777531578f",
                    "MD5OfMessageAttributes": "a512aac9938034acb0b3c3d965944bf1"},
                {"Id": longest, "MessageId": "*",
                    "MD5OfMessageBody": "4a8a08f09d37b73795649038408b5f33",
                    "MD5OfMessageSystemAttributes": "62a56dd927315f2b2e12832b84617ea5"},
            ]}))
            .then("ReceiveMessage", receives("q"), json!({"Messages": [
                {"Body": "a", "MessageId": "{2/Successful/0/MessageId}"}, {"Body": "b"},
                {"Body": "c"}]})),
        row("ten messages")
            .queue("q")
            .asks(ask("q", (0..10).map(|n| json!({"Id": n.to_string(), "MessageBody": "x"})).collect()))
            .answers(json!({"Failed": null, "Successful": "*"}))
            .then_attribute("q", "ApproximateNumberOfMessages", json!("10")),
        row("each delayed by its own")
            .queue("q")
            .asks(ask("q", vec![
                json!({"Id": "1", "MessageBody": "x", "DelaySeconds": 900}),
                json!({"Id": "2", "MessageBody": "x", "DelaySeconds": 0}),
            ]))
            .answers(json!({"Failed": null, "Successful": [{"Id": "1"}, {"Id": "2"}]}))
            .then_attribute("q", "ApproximateNumberOfMessagesDelayed", json!("1")),
        row("all that can be wrong with an entry")
            .queue("q")
            .asks(ask("q", vec![
                json!({"Id": "good", "MessageBody": "x"}),
                json!({"Id": "none"}),
                json!({"Id": "empty", "MessageBody": ""}),
                json!({"Id": "character", "MessageBody": "\u{1}"}),
                json!({"Id": "late", "MessageBody": "x", "DelaySeconds": 901}),
                json!({"Id": "early", "MessageBody": "x", "DelaySeconds": -1}),
                json!({"Id": "attribute", "MessageBody": "x", "MessageAttributes": {
                    "a": {"DataType": "String", "StringValue": ""}}}),
                json!({"Id": "system", "MessageBody": "x", "MessageSystemAttributes": {
                    "SenderId": {"DataType": "String", "StringValue": "x"}}}),
                json!({"Id": "group", "MessageBody": "x", "MessageGroupId": "a b"}),
                json!({"Id": "id", "MessageBody": "x", "MessageDeduplicationId": "d"}),
            ]))
            .answers(json!({"Successful": [{"Id": "good"}], "Failed": [
                failed("none", &MISSING, missing_body(2)),
                failed("empty", &MISSING, missing_body(3)),
                failed("character", &CONTENTS, message_attributes::forbidden("1", "message body")),
                failed("late", &INVALID, range),
                failed("early", &INVALID, range),
                failed("attribute", &INVALID,
                    "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
                failed("system", &INVALID, "Message system attribute name 'SenderId' is invalid."),
                failed("group", &INVALID,
                    "MessageGroupId can only include alphanumeric and punctuation characters. 1 to \
                     128 in length"),
                failed("id", &INVALID,
                    "The request includes a parameter that is not valid for this queue type"),
            ]}))
            .then_attribute("q", "ApproximateNumberOfMessages", json!("1")),
        row("none that is right")
            .queue("q")
            .asks(ask("q", vec![json!({"Id": "1", "MessageBody": ""})]))
            .answers(json!({"Successful": null, "Failed": [failed("1", &MISSING, missing_body(1))]})),
    ]
}

fn sent_to_a_fifo_queue() -> Vec<Row> {
    let entry = |id: &str, more: &Value| {
        let mut entry = json!({"Id": id, "MessageBody": id, "MessageGroupId": "g",
            "MessageDeduplicationId": id});
        with(&mut entry, more);
        entry
    };
    vec![
        row("FIFO messages")
            .queue("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![entry("a", &json!({})), entry("b", &json!({}))],
            ))
            .answers(json!({"Failed": null, "Successful": [
                {"Id": "a", "SequenceNumber": "10000000000000000001"},
                {"Id": "b", "SequenceNumber": "10000000000000000002"}]}))
            .then(
                "ReceiveMessage",
                receives("q.fifo"),
                json!({"Messages": [
                {"Body": "a"}, {"Body": "b"}]}),
            ),
        row("a duplicate within the batch")
            .queue("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![
                    entry("a", &json!({})),
                    entry("b", &json!({"MessageDeduplicationId": "a"})),
                ],
            ))
            .answers(json!({"Failed": null, "Successful": [
                {"Id": "a", "SequenceNumber": "10000000000000000001"},
                {"Id": "b", "SequenceNumber": "10000000000000000001"}]}))
            .then_attribute("q.fifo", "ApproximateNumberOfMessages", json!("1")),
        row("deduplicated by content")
            .queue_with("q.fifo", json!({"ContentBasedDeduplication": "true"}))
            .asks(ask(
                "q.fifo",
                vec![entry("a", &json!({"MessageDeduplicationId": null}))],
            ))
            .answers(json!({"Failed": null, "Successful": [{"Id": "a"}]})),
        row("a delay in a FIFO queue")
            .queue("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![
                    entry("a", &json!({"DelaySeconds": 1})),
                    entry("b", &json!({"DelaySeconds": 0})),
                ],
            ))
            .answers(
                json!({"Successful": [{"Id": "b"}], "Failed": [failed("a", &INVALID,
                "The request include parameter that is not valid for this queue type")]}),
            ),
        row("no group in one of a FIFO queue's")
            .queue("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![
                    entry("a", &json!({})),
                    entry("b", &json!({"MessageGroupId": null})),
                ],
            ))
            .refused(
                &INVALID,
                "The request must contain the parameter MessageGroupId.",
            ),
        row("neither group nor deduplication id in one of a FIFO queue's")
            .queue("q.fifo")
            .asks(ask("q.fifo", vec![json!({"Id": "a", "MessageBody": "x"})]))
            .refused(
                &INVALID,
                "The request must contain the parameter MessageGroupId.",
            ),
        row("no deduplication id in one of a FIFO queue's")
            .queue("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![
                    entry("a", &json!({})),
                    entry("b", &json!({"MessageDeduplicationId": null})),
                ],
            ))
            .refused(&INVALID, NEEDS_DEDUPLICATION),
    ]
}

fn sizes() -> Vec<Row> {
    let half = "x".repeat(MESSAGE_BYTES_MAX / 2);
    let two = |extra: &str| {
        ask(
            "q",
            vec![
                json!({"Id": "1", "MessageBody": half}),
                json!({"Id": "2", "MessageBody": format!("{half}{extra}")}),
            ],
        )
    };
    let too_long = |sent: usize| {
        format!("Batch requests cannot be longer than 1048576 bytes. You have sent {sent} bytes.")
    };
    vec![
        row("the largest sum")
            .queue("q")
            .asks(two(""))
            .answers(json!({"Failed": null, "Successful": [{"Id": "1"}, {"Id": "2"}]})),
        row("one byte more in the sum")
            .queue("q")
            .asks(two("x"))
            .refused(&BATCH_TOO_LONG, too_long(MESSAGE_BYTES_MAX + 1)),
        row("one message that is larger than a batch")
            .queue("q")
            .asks(ask(
                "q",
                vec![json!({"Id": "1", "MessageBody": format!("{half}{half}x")})],
            ))
            .refused(&BATCH_TOO_LONG, too_long(MESSAGE_BYTES_MAX + 1)),
        row("one that is larger than the queue's own limit")
            .queue_with("q", json!({"MaximumMessageSize": "1024"}))
            .asks(ask(
                "q",
                vec![
                    json!({"Id": "1", "MessageBody": "x".repeat(1024)}),
                    json!({"Id": "2", "MessageBody": "x".repeat(1025)}),
                ],
            ))
            .answers(
                json!({"Successful": [{"Id": "1"}], "Failed": [failed("2", &INVALID,
                "One or more parameters cannot be validated. Reason: Message must be shorter than \
                 1024 bytes.")]}),
            ),
    ]
}

/// A queue with three messages in flight; their handles.
fn held(name: &str) -> Row {
    row(name)
        .queue("q")
        .message("q", "a")
        .message("q", "b")
        .message("q", "c")
        .received("q")
}

fn handle(number: usize) -> String {
    format!("{{5/Messages/{number}/ReceiptHandle}}")
}

pub(super) fn delete_message_batch() -> Vec<Row> {
    let mut rows = as_a_whole(&Batch {
        action: "DeleteMessageBatch",
        entry: |id| json!({"Id": id, "ReceiptHandle": "x"}),
    });
    let entry = |id: &str, handle: &str| json!({"Id": id, "ReceiptHandle": handle});
    rows.extend([
        held("each by itself")
            .asks(ask(
                "q",
                vec![
                    entry("1", &handle(0)),
                    entry("2", "garbage"),
                    json!({"Id": "3"}),
                    entry("4", ""),
                    entry("5", &handle(2)),
                ],
            ))
            .answers(json!({"Successful": [{"Id": "1"}, {"Id": "5"}], "Failed": [
                failed("2", &HANDLE, settle::not_valid("garbage")),
                failed("3", &MISSING, "The request must contain the parameter \
                    DeleteMessageBatchRequestEntry.3.ReceiptHandle."),
                failed("4", &MISSING, "The request must contain the parameter \
                    DeleteMessageBatchRequestEntry.4.ReceiptHandle."),
            ]}))
            .then_attribute("q", "ApproximateNumberOfMessagesNotVisible", json!("1")),
        held("one twice")
            .asks(ask(
                "q",
                vec![entry("1", &handle(0)), entry("2", &handle(0))],
            ))
            .answers(json!({"Successful": [{"Id": "1"}, {"Id": "2"}], "Failed": null})),
        held("another queue's")
            .queue("p")
            .asks(ask("p", vec![entry("1", &handle(0))]))
            .answers(json!({"Successful": null, "Failed": [
                failed("1", &HANDLE, settle::of_another_queue(&handle(0)))]}))
            .then_attribute("q", "ApproximateNumberOfMessagesNotVisible", json!("3")),
        row("expired, of a FIFO queue")
            .queue("q.fifo")
            .message("q.fifo", "x")
            .received("q.fifo")
            .after(30_000)
            .asks(ask(
                "q.fifo",
                vec![entry("1", "{3/Messages/0/ReceiptHandle}")],
            ))
            .answers(json!({"Successful": null, "Failed": [failed("1", &HANDLE,
                "The receipt handle has expired")]})),
        row("of a FIFO queue's message that went to the dead-letter queue")
            .queue("dead.fifo")
            .queue_with(
                "q.fifo",
                json!({"RedrivePolicy": settle::redrive("dead.fifo")}),
            )
            .message("q.fifo", "x")
            .received("q.fifo")
            .after(30_000)
            .received("q.fifo")
            .asks(ask(
                "q.fifo",
                vec![entry("1", "{4/Messages/0/ReceiptHandle}")],
            ))
            .answers(json!({"Successful": null, "Failed": [failed("1", &HANDLE,
                "The receipt handle has expired")]})),
    ]);
    rows
}

pub(super) fn change_message_visibility_batch() -> Vec<Row> {
    let mut rows = as_a_whole(&Batch {
        action: "ChangeMessageVisibilityBatch",
        entry: |id| json!({"Id": id, "ReceiptHandle": "x", "VisibilityTimeout": 1}),
    });
    let entry = |id: &str, handle: &str, seconds: i64| json!({"Id": id, "ReceiptHandle": handle, "VisibilityTimeout": seconds});
    let missing = |parameter: &str| {
        format!(
            "The request must contain the parameter \
             ChangeMessageVisibilityBatchRequestEntry.{parameter}."
        )
    };
    let range = "VisibilityTimeout must be an integer between 0 and 43200";
    rows.extend([
        held("each by itself")
            .asks(ask(
                "q",
                vec![
                    entry("1", &handle(0), 0),
                    entry("2", "garbage", 0),
                    json!({"Id": "3", "VisibilityTimeout": 0}),
                    json!({"Id": "4", "ReceiptHandle": handle(1)}),
                    entry("5", &handle(1), 43_201),
                    entry("6", &handle(1), -1),
                    entry("7", &handle(2), 43_200),
                    entry("8", "garbage", 43_201),
                ],
            ))
            .answers(json!({"Successful": [{"Id": "1"}, {"Id": "7"}], "Failed": [
                failed("2", &HANDLE, settle::not_valid("garbage")),
                failed("3", &MISSING, missing("3.ReceiptHandle")),
                failed("4", &MISSING, missing("4.VisibilityTimeout")),
                failed("5", &INVALID, range),
                failed("6", &INVALID, range),
                failed("8", &INVALID, range),
            ]}))
            .then_attribute("q", "ApproximateNumberOfMessages", json!("1")),
        row("expired, of a FIFO queue")
            .queue("q.fifo")
            .message("q.fifo", "x")
            .received("q.fifo")
            .after(30_000)
            .asks(ask(
                "q.fifo",
                vec![entry("1", "{3/Messages/0/ReceiptHandle}", 5)],
            ))
            .answers(json!({"Successful": null, "Failed": [failed("1", &HANDLE,
                "The receipt handle has expired")]})),
        held("another queue's")
            .queue("p")
            .asks(ask("p", vec![entry("1", &handle(0), 0)]))
            .answers(json!({"Successful": null, "Failed": [
                failed("1", &HANDLE, settle::of_another_queue(&handle(0)))]}))
            .then_attribute("q", "ApproximateNumberOfMessagesNotVisible", json!("3")),
        held("deleted meanwhile, or beyond 12 hours")
            .given(
                "DeleteMessage",
                json!({"QueueUrl": url("q"), "ReceiptHandle": handle(0)}),
            )
            .after(1_000)
            .asks(ask(
                "q",
                vec![entry("1", &handle(0), 5), entry("2", &handle(1), 43_200)],
            ))
            .answers(json!({"Successful": null, "Failed": [
                failed("1", &HANDLE,
                    "Message does not exist or is not available for visibility timeout change"),
                failed("2", &INVALID,
                    "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"),
            ]})),
    ]);
    rows
}

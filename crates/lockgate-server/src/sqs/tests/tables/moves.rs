//! StartMessageMoveTask, CancelMessageMoveTask, ListMessageMoveTasks.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    Row, arn,
    codes::{INVALID, MISSING, NOT_FOUND, SERIALIZATION},
    row,
    send::{invalid, with},
    url,
};

/// A dead-letter queue `dead` with ten messages, its source, and two other queues.
fn dead(name: impl Into<String>) -> Row {
    let policy = json!({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}).to_string();
    let entries: Vec<Value> = (0..10)
        .map(|n| json!({"Id": n.to_string(), "MessageBody": "x"}))
        .collect();
    row(name)
        .queue("dead")
        .queue_with("source", json!({"RedrivePolicy": policy}))
        .queue("other")
        .queue("other.fifo")
        .given(
            "SendMessageBatch",
            json!({"QueueUrl": url("dead"), "Entries": entries}),
        )
}

fn start(more: &Value) -> Value {
    let mut input = json!({"SourceArn": arn("dead"), "DestinationArn": arn("other")});
    with(&mut input, more);
    input
}

/// A task that does not end by itself while the row lasts: a message in a second, of ten. Its
/// handle is `{6/TaskHandle}`.
fn running(name: impl Into<String>) -> Row {
    dead(name)
        .given(
            "StartMessageMoveTask",
            start(&json!({"MaxNumberOfMessagesPerSecond": 1})),
        )
        .moving()
}

fn not_there(parameter: &str) -> String {
    format!("The resource that you specified for the {parameter} parameter doesn't exist.")
}

fn no_arn(parameter: &str) -> String {
    format!(
        "You must use this format to specify the {parameter}: \
         arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
    )
}

/// Rows of sources that name no queue; `asks` makes the request.
fn bad_sources(asks: impl Fn(&str) -> Value) -> Vec<Row> {
    let strange = |source: &str| dead(format!("the source {source:?}")).asks(asks(source));
    let mut rows = Vec::new();
    for source in ["", "x", &url("dead"), "arn:aws:sqs:us-east-1:000000000000"] {
        rows.push(strange(source).refused(&INVALID, no_arn("SourceArn")));
    }
    for source in [
        &arn("none"),
        "arn:aws:sqs:us-east-1:000000000000:x:dead",
        "arn:aws:sqs:eu-west-1:000000000000:dead",
        "arn:aws:sqs:us-east-1:111111111111:dead",
        "arn:aws:sns:us-east-1:000000000000:dead",
    ] {
        rows.push(strange(source).refused(&NOT_FOUND, not_there("SourceArn")));
    }
    rows
}

pub(super) fn start_message_move_task() -> Vec<Row> {
    let range = "Value for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: You must enter a \
        number that's between 1 and 500.";
    let mut rows = vec![
        dead("to a queue that is named")
            .asks(start(&json!({})))
            .answers(json!({"TaskHandle": "*"})),
        dead("back to where they came from")
            .asks(start(&json!({"DestinationArn": null})))
            .answers(json!({"TaskHandle": "*"})),
        dead("an empty destination")
            .asks(start(&json!({"DestinationArn": ""})))
            .refused(&INVALID, no_arn("DestinationArn")),
        dead("a destination that is no ARN")
            .asks(start(&json!({"DestinationArn": "other"})))
            .refused(&INVALID, no_arn("DestinationArn")),
        dead("the highest rate")
            .asks(start(&json!({"MaxNumberOfMessagesPerSecond": 500})))
            .answers(json!({"TaskHandle": "*"})),
        dead("a queue that is nobody's dead-letter queue")
            .asks(start(&json!({"SourceArn": arn("source")})))
            .refused(&INVALID, "Source queue must be configured as a Dead Letter Queue."),
        dead("a destination that is not there")
            .asks(start(&json!({"DestinationArn": arn("none")})))
            .refused(&NOT_FOUND, not_there("DestinationArn")),
        dead("a destination that is the source")
            .asks(start(&json!({"DestinationArn": arn("dead")})))
            .refused(
                &INVALID,
                "Source queue arn and destination queue arn cannot be the same.",
            ),
        dead("a destination of the other kind")
            .asks(start(&json!({"DestinationArn": arn("other.fifo")})))
            .refused(
                &INVALID,
                "The source queue and destination queue must be of the same queue type.",
            ),
        running("while another task runs").asks(start(&json!({}))).refused(
            &INVALID,
            "There is already a task running. Only one active task is allowed for a source queue \
             arn at a given time.",
        ),
        dead("no source")
            .asks(start(&json!({"SourceArn": null})))
            .refused(&MISSING, "The request must contain the parameter SourceArn."),
        dead("a rate that is a text")
            .asks(json!({"MaxNumberOfMessagesPerSecond": "x"}))
            .refused(
                &SERIALIZATION,
                "STRING_VALUE can not be converted to an Integer (invalid type: string \"x\", expected i64 at line 1 column 35)",
            )
            .but_in_query(
                &INVALID,
                invalid("x", "MaxNumberOfMessagesPerSecond", "Must be an integer."),
            ),
    ];
    rows.extend(bad_sources(|source| start(&json!({"SourceArn": source}))));
    for rate in [0, -1, 501, i64::MAX] {
        rows.push(
            dead(format!("a rate of {rate}"))
                .asks(start(&json!({"MaxNumberOfMessagesPerSecond": rate})))
                .refused(&INVALID, range),
        );
    }
    rows
}

pub(super) fn cancel_message_move_task() -> Vec<Row> {
    let cancel = |handle: &str| json!({"TaskHandle": handle});
    let made_up = |source: &str| {
        let handle = json!({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05dd",
            "sourceArn": arn(source)});
        STANDARD.encode(handle.to_string())
    };
    let mut rows = vec![
        running("a task that runs")
            .asks(cancel("{6/TaskHandle}"))
            .answers(json!({"ApproximateNumberOfMessagesMoved": "*"}))
            .then_refused(
                "CancelMessageMoveTask",
                cancel("{6/TaskHandle}"),
                &INVALID,
                "Only active tasks can be cancelled.",
            ),
        dead("a task that is not there")
            .asks(cancel(&made_up("dead")))
            .refused(&NOT_FOUND, "Task does not exist."),
        dead("a task of a queue that is not there")
            .asks(cancel(&made_up("none")))
            .refused(&NOT_FOUND, not_there("SourceArn")),
        row("no handle").refused(
            &MISSING,
            "The request must contain the parameter TaskHandle.",
        ),
    ];
    for handle in ["", "garbage", "e30=", "AAAA", "{}"] {
        rows.push(
            dead(format!("the handle {handle:?}"))
                .asks(cancel(handle))
                .refused(&INVALID, "Value for parameter TaskHandle is invalid."),
        );
    }
    rows
}

pub(super) fn list_message_move_tasks() -> Vec<Row> {
    let list = |queue: &str| json!({"SourceArn": arn(queue)});
    let range = "Value for parameter MaxResults is invalid. Reason: You must enter a number that's \
        between 1 and 10.";
    let mut rows = vec![
        dead("none")
            .asks(list("dead"))
            .answers(json!({"Results": []})),
        running("one that runs").asks(list("dead")).answers(
            json!({"Results": [{"Status": "RUNNING", "TaskHandle": "{6/TaskHandle}",
                "SourceArn": arn("dead"), "DestinationArn": arn("other"),
                "MaxNumberOfMessagesPerSecond": 1, "ApproximateNumberOfMessagesToMove": 10,
                "ApproximateNumberOfMessagesMoved": "*", "StartedTimestamp": "*",
                "FailureReason": null}]}),
        ),
        running("at most ten")
            .asks(json!({"SourceArn": arn("dead"), "MaxResults": 10}))
            .answers(json!({"Results": [{"Status": "RUNNING"}]})),
        dead("of a queue that is nobody's dead-letter queue")
            .asks(list("other"))
            .answers(json!({"Results": []})),
        row("no source").refused(
            &MISSING,
            "The request must contain the parameter SourceArn.",
        ),
    ];
    rows.extend(bad_sources(|source| json!({"SourceArn": source})));
    for max in [0, -1, 11] {
        rows.push(
            dead(format!("a page of {max}"))
                .asks(json!({"SourceArn": arn("dead"), "MaxResults": max}))
                .refused(&INVALID, range),
        );
    }
    rows
}

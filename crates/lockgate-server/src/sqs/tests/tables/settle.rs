//! DeleteMessage and ChangeMessageVisibility.

use serde_json::{Value, json};

use super::{
    Row, arn,
    codes::{HANDLE, INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, NOT_IN_FLIGHT, SERIALIZATION},
    huge_integers, row,
    send::invalid,
    url,
};

/// A queue whose one message was received: the handle is `{3/Messages/0/ReceiptHandle}`.
fn held(name: impl Into<String>, queue: &str) -> Row {
    row(name).queue(queue).message(queue, "x").received(queue)
}

const HELD: &str = "{3/Messages/0/ReceiptHandle}";

/// Waiting and in flight afterwards.
fn then_counts(row: Row, queue: &str, waiting: &str, in_flight: &str) -> Row {
    row.then(
        "GetQueueAttributes",
        json!({"QueueUrl": url(queue), "AttributeNames": ["All"]}),
        json!({"Attributes": {"ApproximateNumberOfMessages": waiting,
            "ApproximateNumberOfMessagesNotVisible": in_flight}}),
    )
}

pub(super) fn not_valid(handle: &str) -> String {
    format!("The input receipt handle \"{handle}\" is not a valid receipt handle.")
}

pub(super) fn of_another_queue(handle: &str) -> String {
    format!("The receipt handle \"{handle}\" is not valid for this queue.")
}

/// A redrive policy by which a message goes to that queue after one receive.
pub(super) fn redrive(target: &str) -> String {
    json!({"deadLetterTargetArn": arn(target), "maxReceiveCount": 1}).to_string()
}

/// A queue and its dead-letter queue, to which its message has gone: the handle from before is
/// `{4/Messages/0/ReceiptHandle}`.
fn moved(name: &str, queue: &str, dead: &str) -> Row {
    row(name)
        .queue(dead)
        .queue_with(queue, json!({"RedrivePolicy": redrive(dead)}))
        .message(queue, "x")
        .received(queue)
        .after(30_000)
        .received(queue)
}

const MOVED: &str = "{4/Messages/0/ReceiptHandle}";

fn moved_expired() -> String {
    invalid(MOVED, "ReceiptHandle", "The receipt handle has expired.")
}

fn expired() -> String {
    invalid(HELD, "ReceiptHandle", "The receipt handle has expired.")
}

/// Rows about handles that no action takes.
fn wrong_handles(asks: &dyn Fn(Row, &str, &str) -> Row) -> Vec<Row> {
    let mut rows = Vec::new();
    for handle in ["garbage", " ", "AQEBzbVv", "ä", "<\"&>", "0000", "%00"] {
        rows.push(
            asks(held(format!("the handle {handle:?}"), "q"), "q", handle)
                .refused(&HANDLE, not_valid(handle)),
        );
    }
    rows.extend([
        asks(held("an empty handle", "q"), "q", "").refused(
            &MISSING,
            "The request must contain the parameter ReceiptHandle.",
        ),
        asks(
            held("a handle with something behind it", "q"),
            "q",
            &format!("{HELD}A"),
        )
        .refused(&HANDLE, not_valid(&format!("{HELD}A"))),
        asks(held("another queue's handle", "q").queue("p"), "p", HELD)
            .refused(&HANDLE, of_another_queue(HELD)),
        asks(
            held("a FIFO queue's handle", "q.fifo").queue("q"),
            "q",
            HELD,
        )
        .refused(&HANDLE, of_another_queue(HELD)),
        asks(
            held("a handle of a deleted queue of that name", "q")
                .given("DeleteQueue", json!({"QueueUrl": url("q")}))
                .queue("q"),
            "q",
            HELD,
        )
        .refused(&HANDLE, of_another_queue(HELD)),
        asks(row("a queue that is not there"), "none", "x").refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]);
    rows
}

pub(super) fn delete_message() -> Vec<Row> {
    let delete =
        |queue: &str, handle: &str| json!({"QueueUrl": url(queue), "ReceiptHandle": handle});
    let deletes = |row: Row, queue: &str| row.asks(delete(queue, HELD));
    let mut rows = vec![
        then_counts(
            deletes(held("a message in flight", "q"), "q").answers(json!({})),
            "q",
            "0",
            "0",
        ),
        then_counts(
            deletes(held("a FIFO message in flight", "q.fifo"), "q.fifo").answers(json!({})),
            "q.fifo",
            "0",
            "0",
        ),
        deletes(
            held("a deleted message", "q").given("DeleteMessage", delete("q", HELD)),
            "q",
        )
        .answers(json!({})),
        deletes(
            held("a deleted FIFO message", "q.fifo").given("DeleteMessage", delete("q.fifo", HELD)),
            "q.fifo",
        )
        .answers(json!({})),
        then_counts(
            deletes(held("visible again", "q").after(30_000), "q").answers(json!({})),
            "q",
            "0",
            "0",
        ),
        then_counts(
            deletes(
                held("received again since", "q")
                    .after(30_000)
                    .received("q"),
                "q",
            )
            .answers(json!({})),
            "q",
            "0",
            "1",
        ),
        deletes(
            held("visible again in a FIFO queue", "q.fifo").after(30_000),
            "q.fifo",
        )
        .refused(&INVALID, expired()),
        deletes(
            held("received again since from a FIFO queue", "q.fifo")
                .after(30_000)
                .received("q.fifo"),
            "q.fifo",
        )
        .refused(&INVALID, expired()),
        deletes(
            held("purged", "q").given("PurgeQueue", json!({"QueueUrl": url("q")})),
            "q",
        )
        .answers(json!({})),
        moved("in the dead-letter queue", "q", "dead")
            .asks(delete("q", MOVED))
            .answers(json!({}))
            .then_attribute("dead", "ApproximateNumberOfMessages", json!("1")),
        moved(
            "in the dead-letter queue of a FIFO queue",
            "q.fifo",
            "dead.fifo",
        )
        .asks(delete("q.fifo", MOVED))
        .refused(&INVALID, moved_expired()),
        moved(
            "back from the dead-letter queue of a FIFO queue",
            "q.fifo",
            "dead.fifo",
        )
        .given(
            "StartMessageMoveTask",
            json!({"SourceArn": arn("dead.fifo")}),
        )
        .after(1_000)
        .moving()
        .asks(delete("q.fifo", MOVED))
        .refused(&INVALID, moved_expired()),
        moved(
            "in the dead-letter queue of a FIFO queue, and deleted there",
            "q.fifo",
            "dead.fifo",
        )
        .received("dead.fifo")
        .given(
            "DeleteMessage",
            delete("dead.fifo", "{6/Messages/0/ReceiptHandle}"),
        )
        .asks(delete("q.fifo", MOVED))
        .answers(json!({})),
        row("no handle")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(
                &MISSING,
                "The request must contain the parameter ReceiptHandle.",
            ),
        row("no queue is named")
            .asks(json!({"ReceiptHandle": "x"}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a handle that is a number")
            .asks(json!({"ReceiptHandle": 1}))
            .refused(
                &SERIALIZATION,
                "NUMBER_VALUE can not be converted to a String (invalid type: integer `1`, expected a string at line 1 column 18)",
            )
            .in_json_only(),
    ];
    rows.extend(wrong_handles(&|row, queue, handle| {
        row.asks(delete(queue, handle))
    }));
    rows
}

pub(super) fn change_message_visibility() -> Vec<Row> {
    let change = |queue: &str, handle: &str, seconds: Value| json!({"QueueUrl": url(queue), "ReceiptHandle": handle, "VisibilityTimeout": seconds});
    let changes =
        |row: Row, queue: &str, seconds: i64| row.asks(change(queue, HELD, json!(seconds)));
    let beyond = |seconds: i64| {
        invalid(
            &seconds.to_string(),
            "VisibilityTimeout",
            "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
        )
    };
    let range = "VisibilityTimeout must be an integer between 0 and 43200.";
    let gone = invalid(
        HELD,
        "ReceiptHandle",
        "Message does not exist or is not available for visibility timeout change.",
    );
    let mut rows = vec![
        then_counts(
            changes(held("shown at once", "q"), "q", 0).answers(json!({})),
            "q",
            "1",
            "0",
        ),
        then_counts(
            changes(held("a FIFO message shown at once", "q.fifo"), "q.fifo", 0).answers(json!({})),
            "q.fifo",
            "1",
            "0",
        ),
        changes(held("12 hours, at once", "q"), "q", 43_200).answers(json!({})),
        changes(held("12 hours in all", "q").after(10_000), "q", 43_190).answers(json!({})),
        changes(
            held("more than 12 hours in all", "q").after(10_000),
            "q",
            43_191,
        )
        .refused(&INVALID, beyond(43_191)),
        changes(
            held("more than 12 hours of a FIFO message", "q.fifo").after(1),
            "q.fifo",
            43_200,
        )
        .refused(&INVALID, beyond(43_200)),
        then_counts(
            changes(held("longer, counted from now", "q").after(29_000), "q", 30)
                .answers(json!({}))
                .then("ReceiveMessage", json!({"QueueUrl": url("q")}), json!({})),
            "q",
            "0",
            "1",
        ),
        then_counts(
            changes(
                held("hidden again, when it was visible", "q").after(30_000),
                "q",
                5,
            )
            .answers(json!({})),
            "q",
            "0",
            "1",
        ),
        changes(
            held("deleted", "q").given(
                "DeleteMessage",
                json!({"QueueUrl": url("q"), "ReceiptHandle": HELD}),
            ),
            "q",
            5,
        )
        .refused(&INVALID, gone.clone()),
        changes(
            held("a deleted FIFO message", "q.fifo").given(
                "DeleteMessage",
                json!({"QueueUrl": url("q.fifo"), "ReceiptHandle": HELD}),
            ),
            "q.fifo",
            5,
        )
        .refused(&INVALID, gone),
        changes(
            held("visible again in a FIFO queue", "q.fifo").after(30_000),
            "q.fifo",
            5,
        )
        .refused(&INVALID, expired()),
        moved(
            "in the dead-letter queue of a FIFO queue",
            "q.fifo",
            "dead.fifo",
        )
        .asks(change("q.fifo", MOVED, json!(5)))
        .refused(&INVALID, moved_expired()),
        moved("in the dead-letter queue", "q", "dead")
            .asks(change("q", MOVED, json!(5)))
            .refused(
                &INVALID,
                invalid(
                    MOVED,
                    "ReceiptHandle",
                    "Message does not exist or is not available for visibility timeout change.",
                ),
            ),
        row("visible again where a timeout of zero defers")
            .given(
                "CreateQueue",
                json!({"QueueName": "q", "tags": {"lockgate:zero-visibility": "defer"}}),
            )
            .message("q", "x")
            .received("q")
            .after(30_000)
            .asks(change("q", HELD, json!(0)))
            .refused(&NOT_IN_FLIGHT, "The specified message isn't in flight."),
        row("no timeout")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "ReceiptHandle": "x"}))
            .refused(
                &MISSING,
                "The request must contain the parameter VisibilityTimeout.",
            ),
        row("no handle")
            .queue("q")
            .asks(json!({"QueueUrl": url("q"), "VisibilityTimeout": 1}))
            .refused(
                &MISSING,
                "The request must contain the parameter ReceiptHandle.",
            ),
        row("no queue is named")
            .asks(json!({"ReceiptHandle": "x", "VisibilityTimeout": 1}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        held("a timeout that is a text", "q")
            .asks(json!({"VisibilityTimeout": "x"}))
            .refused(
                &SERIALIZATION,
                "STRING_VALUE can not be converted to an Integer (invalid type: string \"x\", expected i64 at line 1 column 24)",
            )
            .but_in_query(
                &INVALID,
                invalid("x", "VisibilityTimeout", "Must be an integer."),
            ),
    ];
    for seconds in [43_201].into_iter().chain(huge_integers()) {
        rows.push(
            changes(held(format!("a timeout of {seconds}"), "q"), "q", seconds).refused(
                &INVALID,
                invalid(&seconds.to_string(), "VisibilityTimeout", range),
            ),
        );
    }
    rows.extend(wrong_handles(&|row, queue, handle| {
        row.asks(change(queue, handle, json!(1)))
    }));
    rows
}

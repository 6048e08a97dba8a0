//! PurgeQueue.

use serde_json::json;

use super::{
    Row,
    codes::{MISSING, NO_QUEUE, NO_QUEUE_TEXT, PURGE_IN_PROGRESS},
    row, url,
};

pub(super) fn purge_queue() -> Vec<Row> {
    let q = || json!({"QueueUrl": url("q")});
    vec![
        row("messages in every state")
            .queue("q")
            .message("q", "in flight")
            .received("q")
            .message("q", "waiting")
            .given(
                "SendMessage",
                json!({"QueueUrl": url("q"), "MessageBody": "x", "DelaySeconds": 9}),
            )
            .asks(q())
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["All"]}),
                json!({"Attributes": {
                    "ApproximateNumberOfMessages": "0",
                    "ApproximateNumberOfMessagesNotVisible": "0",
                    "ApproximateNumberOfMessagesDelayed": "0",
                }}),
            )
            .then(
                "DeleteMessage",
                json!({"QueueUrl": url("q"), "ReceiptHandle": "{3/Messages/0/ReceiptHandle}"}),
                json!({}),
            ),
        row("an empty queue")
            .queue("q")
            .asks(q())
            .answers(json!({})),
        row("a FIFO queue forgets its deduplication ids too")
            .queue("q.fifo")
            .message("q.fifo", "x")
            .asks(json!({"QueueUrl": url("q.fifo")}))
            .answers(json!({}))
            .then(
                "SendMessage",
                json!({"QueueUrl": url("q.fifo"), "MessageBody": "x", "MessageGroupId": "g",
                    "MessageDeduplicationId": "x"}),
                json!({"Duplicate": null}),
            ),
        row("another queue meanwhile")
            .queue("q")
            .queue("p")
            .given("PurgeQueue", json!({"QueueUrl": url("p")}))
            .asks(q())
            .answers(json!({})),
        row("again within 60 seconds")
            .queue("q")
            .given("PurgeQueue", q())
            .after(59_999)
            .message("q", "x")
            .asks(q())
            .refused(
                &PURGE_IN_PROGRESS,
                "Only one PurgeQueue operation on q is allowed every 60 seconds.",
            ),
        row("again after 60 seconds")
            .queue("q")
            .given("PurgeQueue", q())
            .after(60_000)
            .asks(q())
            .answers(json!({})),
        row("a new queue of a purged one's name")
            .queue("q")
            .given("PurgeQueue", q())
            .given("DeleteQueue", q())
            .queue("q")
            .asks(q())
            .answers(json!({})),
        row("no queue is named")
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(json!({"QueueUrl": url("none")}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]
}

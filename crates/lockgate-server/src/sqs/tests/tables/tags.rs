//! TagQueue, UntagQueue, ListQueueTags, and which tags a queue may have.

use serde_json::{Map, Value, json};

use super::{
    Row,
    codes::{INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, SERIALIZATION},
    row, url,
};

const KEY: &str = "Tag keys must be between 1 and 128 characters in length.";
const VALUE: &str = "Tag values must be between 0 and 256 characters in length.";

fn many(count: usize) -> Value {
    let tags: Map<_, _> = (0..count).map(|n| (format!("k{n}"), json!("v"))).collect();
    Value::Object(tags)
}

/// Rows about the tags of the queue `q`, for each action that sets them.
pub(super) fn limits(tags: &dyn Fn(Row, Value) -> Row) -> Vec<Row> {
    let list = || json!({"QueueUrl": url("q")});
    let mut rows = vec![
        tags(row("fifty tags"), many(50)).works().then(
            "ListQueueTags",
            list(),
            json!({"Tags": many(50)}),
        ),
        tags(row("fifty-one tags"), many(51)).refused(&INVALID, "Too many tags added for queue q."),
        tags(row("a tag without a key"), json!({"": "v"})).refused(&INVALID, KEY),
    ];
    for key in ["aws:", "aws:x", "AWS:x", "Aws:cloudformation:stack-name"] {
        rows.push(
            tags(row(format!("the reserved tag {key}")), json!({key: "v"})).refused(
                &INVALID,
                "Tag keys must not begin with 'aws:', which is reserved.",
            ),
        );
    }
    for key in ["aws", "aws-x", "xaws:"] {
        rows.push(tags(row(format!("the tag {key}")), json!({key: "v"})).works());
    }
    let longest = "ä".repeat(128);
    let too_long = "k".repeat(129);
    let longest_value = "€".repeat(256);
    let too_long_value = "v".repeat(257);
    for (what, key, value) in [
        ("without a value", "k", ""),
        (
            "of all kinds of characters",
            "a ü€:/=+-@_.",
            "\u{1f600} &<>\"'",
        ),
        ("whose key has 128 characters", &longest, "v"),
        ("whose value has 256 characters", "k", &longest_value),
    ] {
        rows.push(
            tags(row(format!("a tag {what}")), json!({key: value}))
                .works()
                .then("ListQueueTags", list(), json!({"Tags": {key: value}})),
        );
    }
    rows.push(
        tags(
            row("a tag whose key has 129 characters"),
            json!({too_long: "v"}),
        )
        .refused(&INVALID, KEY),
    );
    rows.push(
        tags(
            row("a tag whose value has 257 characters"),
            json!({"k": too_long_value}),
        )
        .refused(&INVALID, VALUE),
    );
    rows
}

/// A queue with two tags.
fn tagged(name: &str) -> Row {
    let tags = json!({"a": "1", "b": "2"});
    row(name).given("CreateQueue", json!({"QueueName": "q", "tags": tags}))
}

pub(super) fn tag_queue() -> Vec<Row> {
    let tag = |queue: &str, tags: Value| json!({"QueueUrl": url(queue), "Tags": tags});
    let mut rows = vec![
        tagged("one is added and one replaced")
            .asks(tag("q", json!({"b": "two", "c": "3"})))
            .answers(json!({}))
            .then(
                "ListQueueTags",
                json!({"QueueUrl": url("q")}),
                json!({"Tags": {"a": "1", "b": "two", "c": "3"}}),
            ),
        tagged("keys differ by case")
            .asks(tag("q", json!({"A": "x"})))
            .answers(json!({}))
            .then(
                "ListQueueTags",
                json!({"QueueUrl": url("q")}),
                json!({"Tags": {"a": "1", "A": "x"}}),
            ),
        row("more than fifty in two steps")
            .given("CreateQueue", json!({"QueueName": "q", "tags": many(50)}))
            .asks(tag("q", json!({"more": "v"})))
            .refused(&INVALID, "Too many tags added for queue q."),
        row("one of fifty is replaced")
            .given("CreateQueue", json!({"QueueName": "q", "tags": many(50)}))
            .asks(tag("q", json!({"k7": "other"})))
            .answers(json!({})),
        tagged("no tags")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(&MISSING, "The request must contain the parameter Tags."),
        tagged("an empty list of tags")
            .asks(tag("q", json!({})))
            .refused(&MISSING, "The request must contain the parameter Tags."),
        row("no queue is named")
            .asks(json!({"Tags": {"a": "1"}}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(tag("none", json!({"a": "1"})))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        tagged("a value that is a number")
            .asks(tag("q", json!({"a": 1})))
            .refused(
                &SERIALIZATION,
                "NUMBER_VALUE can not be converted to a String (invalid type: integer `1`, expected a string at line 1 column 64)",
            )
            .in_json_only(),
    ];
    rows.extend(limits(&|row, tags| row.queue("q").asks(tag("q", tags))));
    rows
}

pub(super) fn untag_queue() -> Vec<Row> {
    let untag = |queue: &str, keys: Value| json!({"QueueUrl": url(queue), "TagKeys": keys});
    vec![
        tagged("one of two")
            .asks(untag("q", json!(["a"])))
            .answers(json!({}))
            .then(
                "ListQueueTags",
                json!({"QueueUrl": url("q")}),
                json!({"Tags": {"a": null, "b": "2"}}),
            ),
        tagged("all")
            .asks(untag("q", json!(["a", "b"])))
            .answers(json!({}))
            .then("ListQueueTags", json!({"QueueUrl": url("q")}), json!({})),
        tagged("one that it does not have")
            .asks(untag("q", json!(["c", "A"])))
            .answers(json!({}))
            .then(
                "ListQueueTags",
                json!({"QueueUrl": url("q")}),
                json!({"Tags": {"a": "1", "b": "2"}}),
            ),
        tagged("no keys")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(&MISSING, "The request must contain the parameter TagKeys."),
        tagged("an empty list of keys")
            .asks(untag("q", json!([])))
            .refused(&INVALID, KEY)
            .in_json_only(),
        tagged("an empty key")
            .asks(untag("q", json!(["a", ""])))
            .refused(&INVALID, KEY),
        tagged("a key of 129 characters")
            .asks(untag("q", json!(["a", "k".repeat(129)])))
            .refused(&INVALID, KEY),
        row("no queue is named")
            .asks(json!({"TagKeys": ["a"]}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(untag("none", json!(["a"])))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]
}

pub(super) fn list_queue_tags() -> Vec<Row> {
    vec![
        row("none")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .answers(json!({})),
        tagged("two")
            .asks(json!({"QueueUrl": url("q")}))
            .answers(json!({"Tags": {"a": "1", "b": "2"}})),
        row("no queue is named")
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(json!({"QueueUrl": url("none")}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("an empty URL")
            .asks(json!({"QueueUrl": ""}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]
}

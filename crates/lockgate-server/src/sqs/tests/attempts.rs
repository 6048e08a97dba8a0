//! Repeated receives: `ReceiveRequestAttemptId`.

use lockgate_machine::{Command, Settle, SettleAction};
use serde_json::{Value, json};

use super::{
    Answer, Shop,
    protocols::{Speaks, in_both_protocols},
    text,
};
use crate::receipt::Receipts;

in_both_protocols![
    a_repeat_gives_the_same_messages_under_the_same_handles_and_restarts_their_timeouts,
    another_id_or_another_queue_is_another_receive,
    what_was_deleted_is_not_repeated,
    what_was_changed_is_not_repeated,
    a_changed_visibility_ends_it_also_where_the_lease_goes_on,
    an_expired_timeout_ends_it,
    five_minutes_end_it,
    nothing_is_extended_if_not_all_is_still_there,
    an_empty_answer_is_not_remembered,
    the_filters_of_a_repeat_are_its_own,
    two_at_once_get_the_same,
    a_waiting_receive_ends_when_it_is_asked_for_again,
    on_standard_queues_the_id_means_nothing,
    a_restart_forgets,
];

/// Receives up to ten messages under an id.
async fn attempt(shop: &Shop, url: &str, id: &str) -> Vec<Value> {
    attempt_with(shop, url, id, json!({})).await
}

async fn attempt_with(shop: &Shop, url: &str, id: &str, more: Value) -> Vec<Value> {
    let mut input = json!({
        "QueueUrl": url,
        "MaxNumberOfMessages": 10,
        "MessageSystemAttributeNames": ["All"],
        "ReceiveRequestAttemptId": id,
    });
    for (name, value) in more.as_object().unwrap() {
        input[name] = value.clone();
    }
    let output = shop.ok("ReceiveMessage", input).await;
    output["Messages"].as_array().cloned().unwrap_or_default()
}

fn bodies(messages: &[Value]) -> Vec<String> {
    let body = |message: &Value| text(&message["Body"]);
    messages.iter().map(body).collect()
}

/// A queue with two messages of one group and one of another, and a receive that asks for them.
async fn stocked(shop: &Shop) -> String {
    let url = shop.queue("q.fifo", json!({})).await;
    for (group, id) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
        shop.send_fifo(&url, group, id).await;
    }
    url
}

async fn a_repeat_gives_the_same_messages_under_the_same_handles_and_restarts_their_timeouts(
    shop: Shop,
) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    assert_eq!(bodies(&first), ["a1", "a2", "b1"]);
    shop.pass(29_999);
    assert_eq!(attempt(&shop, &url, "id").await, first);
    shop.pass(29_999);
    assert!(shop.receive(&url).await.is_empty(), "30 s from the repeat");
    // The visibility timeout of the repeat applies.
    let longer = json!({"VisibilityTimeout": 100});
    assert_eq!(attempt_with(&shop, &url, "id", longer).await, first);
    shop.pass(99_999);
    assert!(shop.receive(&url).await.is_empty());
    assert_eq!(shop.counts(&url).await, [0, 3, 0]);
    for message in &first {
        shop.delete(&url, message).await;
    }
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
}

async fn another_id_or_another_queue_is_another_receive(shop: Shop) {
    let url = stocked(&shop).await;
    let other = shop.queue("other.fifo", json!({})).await;
    shop.send_fifo(&other, "g", "other").await;
    let first = attempt(&shop, &url, "id").await;
    assert!(attempt(&shop, &url, "di").await.is_empty());
    assert_eq!(bodies(&attempt(&shop, &other, "id").await), ["other"]);
    assert!(shop.receive(&url).await.is_empty(), "no id at all");
    assert_eq!(attempt(&shop, &url, "id").await, first);
}

async fn what_was_deleted_is_not_repeated(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    shop.delete(&url, &first[0]).await;
    assert!(attempt(&shop, &url, "id").await.is_empty());
    // The later receive is remembered in its place.
    shop.send_fifo(&url, "c", "c1").await;
    let second = attempt(&shop, &url, "id").await;
    assert_eq!(bodies(&second), ["c1"]);
    assert_eq!(attempt(&shop, &url, "id").await, second);
    // The same in a batch.
    let entries = json!([{"Id": "1", "ReceiptHandle": second[0]["ReceiptHandle"]}]);
    let input = json!({"QueueUrl": url, "Entries": entries});
    shop.ok("DeleteMessageBatch", input).await;
    assert!(attempt(&shop, &url, "id").await.is_empty());
}

async fn what_was_changed_is_not_repeated(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    let entries: Vec<Value> = (first.iter().zip(["1", "2", "3"]))
        .map(|(message, id)| {
            json!({"Id": id, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0})
        })
        .collect();
    let input = json!({"QueueUrl": url, "Entries": entries});
    shop.ok("ChangeMessageVisibilityBatch", input).await;
    let second = attempt(&shop, &url, "id").await;
    assert_eq!(bodies(&second), ["a1", "a2", "b1"]);
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(second["Attributes"]["ApproximateReceiveCount"], "2");
        assert_ne!(second["ReceiptHandle"], first["ReceiptHandle"]);
    }
    assert_eq!(attempt(&shop, &url, "id").await, second);
}

async fn a_changed_visibility_ends_it_also_where_the_lease_goes_on(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    let handle = &first[2]["ReceiptHandle"];
    let input = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 60});
    shop.ok("ChangeMessageVisibility", input).await;
    assert!(attempt(&shop, &url, "id").await.is_empty());
    shop.pass(30_000);
    assert_eq!(
        bodies(&attempt(&shop, &url, "id").await),
        ["a1", "a2"],
        "the one that was changed stays away for longer"
    );
}

async fn an_expired_timeout_ends_it(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    shop.pass(30_000);
    let second = attempt(&shop, &url, "id").await;
    assert_eq!(bodies(&second), bodies(&first));
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(second["Attributes"]["ApproximateReceiveCount"], "2");
        assert_ne!(second["ReceiptHandle"], first["ReceiptHandle"]);
    }
}

async fn five_minutes_end_it(shop: Shop) {
    let url = stocked(&shop).await;
    let long = json!({"VisibilityTimeout": 1000});
    let first = attempt_with(&shop, &url, "id", long.clone()).await;
    shop.pass(299_999);
    assert_eq!(attempt_with(&shop, &url, "id", long).await, first);
    shop.pass(1);
    assert!(attempt(&shop, &url, "id").await.is_empty());
    assert_eq!(shop.counts(&url).await, [0, 3, 0]);
}

async fn nothing_is_extended_if_not_all_is_still_there(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    shop.pass(20_000);
    // Deletes through another API.
    let receipts = Receipts::new(shop.engine.term().shard, &shop.engine.secret());
    let token = receipts.open(&text(&first[2]["ReceiptHandle"])).unwrap();
    let action = SettleAction::Ack;
    let settle = Command::Settle(Settle { token, action });
    shop.engine.submit(settle).await.unwrap();
    assert!(attempt(&shop, &url, "id").await.is_empty());
    shop.pass(10_000);
    assert_eq!(shop.bodies(&url).await, ["a1", "a2"]);
}

async fn an_empty_answer_is_not_remembered(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    assert!(attempt(&shop, &url, "id").await.is_empty());
    shop.send_fifo(&url, "g", "m").await;
    assert_eq!(bodies(&attempt(&shop, &url, "id").await), ["m"]);
}

async fn the_filters_of_a_repeat_are_its_own(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let attributes = json!({"Name": {"DataType": "String", "StringValue": "value"}});
    let input = json!({
        "QueueUrl": url,
        "MessageBody": "m",
        "MessageGroupId": "g",
        "MessageDeduplicationId": "m",
        "MessageAttributes": attributes,
    });
    shop.ok("SendMessage", input).await;
    let first = attempt(&shop, &url, "id").await.remove(0);
    assert_eq!(first.get("MessageAttributes"), None);
    let all = json!({"MessageAttributeNames": ["All"]});
    let again = attempt_with(&shop, &url, "id", all).await.remove(0);
    assert_eq!(again["MessageAttributes"], attributes);
    assert_eq!(again["ReceiptHandle"], first["ReceiptHandle"]);
}

async fn two_at_once_get_the_same(shop: Shop) {
    let url = stocked(&shop).await;
    let one = json!({"MaxNumberOfMessages": 1});
    let (first, second) = tokio::join!(
        attempt_with(&shop, &url, "id", one.clone()),
        attempt_with(&shop, &url, "id", one),
    );
    assert_eq!(bodies(&first), ["a1"]);
    assert_eq!(second, first);
    assert_eq!(shop.counts(&url).await, [2, 1, 0]);
}

async fn a_waiting_receive_ends_when_it_is_asked_for_again(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let wait = json!({"WaitTimeSeconds": 20});
    // The clock stands still: only the repeat can end the first wait, and the send the second.
    let second = async {
        tokio::task::yield_now().await;
        attempt_with(&shop, &url, "id", wait.clone()).await
    };
    let first = async {
        let first = attempt_with(&shop, &url, "id", wait.clone()).await;
        shop.send_fifo(&url, "g", "m").await;
        first
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_empty(), "{first:?}");
    assert_eq!(bodies(&second), ["m"]);
}

async fn on_standard_queues_the_id_means_nothing(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.send(&url, "x").await;
    assert_eq!(bodies(&attempt(&shop, &url, "id").await), ["x"]);
    assert!(attempt(&shop, &url, "id").await.is_empty());
}

async fn a_restart_forgets(shop: Shop) {
    let url = stocked(&shop).await;
    let first = attempt(&shop, &url, "id").await;
    let shop = shop.reopened().await;
    assert!(attempt(&shop, &url, "id").await.is_empty());
    for message in &first {
        shop.delete(&url, message).await;
    }
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
}

#[tokio::test]
async fn what_a_repeat_in_the_other_protocol_has_no_room_for_goes_back() {
    let mut shop = Shop::open();
    let url = shop.queue("q.fifo", json!({})).await;
    // A quotation mark takes two bytes in JSON, six in XML: of 18 MiB, 16 fit.
    let body = "\"".repeat(512 << 10);
    for id in ["a", "b", "c", "d", "e", "f"] {
        let message = json!({
            "QueueUrl": url, "MessageBody": body, "MessageGroupId": id, "MessageDeduplicationId": id,
        });
        shop.ok("SendMessage", message).await;
    }
    let first = attempt(&shop, &url, "id").await;
    assert_eq!(first.len(), 6);
    shop.speaks = Speaks::Query;
    let repeat = attempt(&shop, &url, "id").await;
    assert_eq!(bodies(&repeat), bodies(&first[..5]));
    assert_eq!(shop.counts(&url).await, [1, 5, 0]);
    // A further repeat returns the same, even if more would fit.
    shop.speaks = Speaks::Json;
    assert_eq!(attempt(&shop, &url, "id").await, first[..5]);
    let rest = attempt(&shop, &url, "other").await;
    assert_eq!(bodies(&rest), bodies(&first[5..]));
    assert_eq!(rest[0]["Attributes"]["ApproximateReceiveCount"], "1");
}

/// Receives without taking the answer.
async fn unsent(shop: &Shop, url: &str) -> Answer {
    let input = json!({
        "QueueUrl": url,
        "ReceiveRequestAttemptId": "id",
        "MessageSystemAttributeNames": ["All"],
    });
    shop.raw(Some("AmazonSQS.ReceiveMessage"), input.to_string())
        .await
}

#[tokio::test]
async fn an_answer_that_was_never_sent_is_forgotten() {
    let shop = Shop::open();
    let url = stocked(&shop).await;
    let lost = unsent(&shop, &url).await;
    drop(lost.guard);
    let again = attempt(&shop, &url, "id").await;
    // Its group comes after those that were ready meanwhile.
    assert_eq!(bodies(&again), ["b1", "a1", "a2"]);
    assert_ne!(
        again[1]["ReceiptHandle"],
        lost.body["Messages"][0]["ReceiptHandle"]
    );
    assert_eq!(again[1]["Attributes"]["ApproximateReceiveCount"], "1");
}

#[tokio::test]
async fn a_repeat_holds_the_leases_of_a_first_answer_that_is_never_sent() {
    let shop = Shop::open();
    let url = stocked(&shop).await;
    let lost = unsent(&shop, &url).await;
    let mut repeat = unsent(&shop, &url).await;
    assert_eq!(repeat.body, lost.body);
    drop(lost.guard);
    assert_eq!(shop.counts(&url).await, [2, 1, 0]);
    repeat.guard.take().unwrap().keep();
    // A further repeat whose answer is never sent takes nothing from the client that has the
    // messages.
    let further = unsent(&shop, &url).await;
    assert_eq!(further.body, lost.body);
    drop(further.guard);
    shop.delete(&url, &repeat.body["Messages"][0]).await;
    assert_eq!(shop.counts(&url).await, [2, 0, 0]);
}

#[tokio::test]
async fn the_leases_go_back_when_neither_answer_nor_repeat_is_sent() {
    let shop = Shop::open();
    let url = stocked(&shop).await;
    let lost = unsent(&shop, &url).await;
    let repeat = unsent(&shop, &url).await;
    drop(lost.guard);
    drop(repeat.guard);
    assert_eq!(shop.bodies(&url).await, ["b1", "a1", "a2"]);
}

//! Fair queues: groups of standard queues.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_core::QueueName;
use lockgate_machine::{Command, CreateQueue, QueueSettings};
use serde_json::{Value, json};

use super::{Shop, protocols::in_both_protocols, text};

in_both_protocols![
    a_keyed_queue_of_the_library_needs_no_deduplication_id,
    a_noisy_group_does_not_starve_the_others,
    groups_of_a_standard_queue_lock_nothing,
];

impl Shop {
    async fn send_of(&self, url: &str, group: &str, bodies: std::ops::Range<u32>) {
        for body in bodies {
            let input = json!({"QueueUrl": url, "MessageBody": format!("{group} {body}"),
                "MessageGroupId": group});
            self.ok("SendMessage", input).await;
        }
    }

    async fn take(&self, url: &str, max: u32) -> Vec<String> {
        let input = json!({"QueueUrl": url, "MaxNumberOfMessages": max});
        let output = self.ok("ReceiveMessage", input).await;
        let messages = output["Messages"].as_array().cloned().unwrap_or_default();
        let body = |message: &Value| text(&message["Body"]);
        messages.iter().map(body).collect()
    }
}

async fn a_noisy_group_does_not_starve_the_others(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.send_of(&url, "noisy", 0..400).await;
    for _ in 0..10 {
        assert_eq!(shop.take(&url, 10).await.len(), 10);
    }
    assert_eq!(shop.counts(&url).await, [300, 100, 0]);
    // Behind a backlog of 300, and with 100 of the noisy group in flight.
    for quiet in ["a", "b", "c"] {
        shop.send_of(&url, quiet, 0..2).await;
    }
    let first: BTreeSet<String> = shop.take(&url, 4).await.into_iter().collect();
    for quiet in ["a 0", "b 0", "c 0"] {
        assert!(first.contains(quiet), "{first:?}");
    }
    let mut seen = first;
    // One at a time, every group has its turn before any has a second one.
    for _ in 0..4 {
        seen.extend(shop.take(&url, 1).await);
    }
    for quiet in ["a 1", "b 1", "c 1"] {
        assert!(seen.contains(quiet), "{seen:?}");
    }
}

async fn groups_of_a_standard_queue_lock_nothing(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.send_of(&url, "g", 0..3).await;
    assert_eq!(shop.take(&url, 1).await, ["g 0"]);
    assert_eq!(shop.take(&url, 1).await, ["g 1"]);
    let rest = shop.receive(&url).await;
    assert_eq!(text(&rest[0]["Body"]), "g 2");
    assert_eq!(rest[0]["Attributes"]["MessageGroupId"], "g");
    assert_eq!(rest[0]["Attributes"].get("SequenceNumber"), None);
}

/// A keyed queue of the library has any name. No door asks more of its messages than a key.
async fn a_keyed_queue_of_the_library_needs_no_deduplication_id(shop: Shop) {
    let create = Command::CreateQueue(Box::new(CreateQueue {
        name: QueueName::new("orders").unwrap(),
        settings: QueueSettings {
            keyed: true,
            ..QueueSettings::default()
        },
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    }));
    shop.engine.submit(create).await.unwrap();
    let message = json!({"QueueUrl": "orders", "MessageBody": "a", "MessageGroupId": "k"});
    shop.ok("SendMessage", message).await;
    let entry = json!({"Id": "1", "MessageBody": "b", "MessageGroupId": "k"});
    let batch = json!({"QueueUrl": "orders", "Entries": [entry]});
    let sent = shop.ok("SendMessageBatch", batch).await;
    assert_eq!(sent["Successful"][0]["Id"], "1", "{sent}");
    assert_eq!(shop.take("orders", 10).await, ["a", "b"]);
}

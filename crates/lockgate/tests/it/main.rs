//! Queues in a folder, used as a service would: no server, the real disk, the real clock.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod coalescer;
mod coordination;
mod durability;
mod errors;
mod exchange;
mod exchange_load;
mod exchange_sink;
mod holds;
mod key_states;
mod ledger;
mod order;
mod producer;
mod records;
mod settling;
mod shards;
mod time;
mod transport;
mod worker;

use std::time::Duration;

use lockgate::{Delivery, Key, Lockgate, Message, Queue, UniqueId};
use tempfile::TempDir;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

async fn open() -> (TempDir, Lockgate) {
    let folder = tempfile::tempdir().unwrap();
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    (folder, lockgate)
}

fn keyed(body: &str, key: &str) -> Message {
    Message::new(body.to_owned()).with_key(Key::new(key).unwrap())
}

fn unique(body: &str, id: &str) -> Message {
    Message::new(body.to_owned()).with_unique_id(UniqueId::new(id).unwrap())
}

async fn take(queue: &Queue, max: u16) -> Vec<Delivery> {
    queue.receive().max(max).await.unwrap()
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    let text = |delivery| std::str::from_utf8(Delivery::body(delivery)).unwrap();
    deliveries.iter().map(text).collect()
}

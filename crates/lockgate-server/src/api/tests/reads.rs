//! What reading changes: nothing.

use hyper::Method;
use serde_json::json;

use super::{Shop, operations::receive};
use crate::api::route::Operation;

/// So a link on a web page changes nothing.
#[tokio::test]
async fn what_is_asked_by_get_changes_nothing() {
    let shop = Shop::open();
    for name in ["q.fifo", "q"] {
        shop.ok(Method::POST, "/queues", json!({"name": name}))
            .await;
    }
    let messages = json!({"messages": [{"body": "a", "key": "k"}, {"body": "b", "key": "k"}]});
    shop.ok(Method::POST, "/queues/q.fifo/messages", messages)
        .await;
    receive(&shop, "q.fifo").await;
    let peeked = shop.get("/queues/q.fifo/messages").await;
    let id = peeked["messages"][0]["id"].as_str().unwrap().to_owned();
    for target in ["/records/r", "/queues/q.fifo/keys/k/state"] {
        shop.ok(Method::PUT, target, json!({"value": "x"})).await;
    }
    shop.ok(Method::POST, "/ledgers", json!({"name": "l"}))
        .await;
    let events = json!({"events": [{"payload": "x", "unique_id": "u"}]});
    shop.ok(Method::POST, "/ledgers/l/events", events).await;
    shop.post("/exchanges", json!({"name": "x", "kind": "fanout"}))
        .await;
    let schedule =
        json!({"every_ms": 3_600_000, "to": {"exchange": "x"}, "message": {"body": "x"}});
    shop.ok(Method::PUT, "/schedules/s", schedule).await;
    let before = shop.engine.metrics().records;
    for operation in Operation::ALL {
        if operation.method() == Method::GET {
            // Each message of a keyed queue has a key.
            let queue = match operation {
                Operation::ExplainNoKey => "q",
                _ => "q.fifo",
            };
            let path = operation.path().replace("{queue}", queue);
            let path = path.replace("{record}", "r").replace("{ledger}", "l");
            let path = path.replace("{unique_id}", "u").replace("{exchange}", "x");
            let path = path.replace("{schedule}", "s");
            shop.get(&path.replace("{key}", "k").replace("{id}", &id))
                .await;
        }
    }
    assert_eq!(shop.engine.metrics().records, before);
}

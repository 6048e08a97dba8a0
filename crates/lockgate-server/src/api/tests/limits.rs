//! What refusals say.

use hyper::Method;
use serde_json::json;

use super::{Shop, operations::queue};

/// A refusal says what was given, what may be, and what to write.
#[tokio::test]
async fn a_refusal_names_the_limits() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    let long = "x".repeat(1025);
    for (target, body, detail) in [
        (
            "/receive",
            json!({"max": 101}),
            "max: 101 is not from 1 to 100",
        ),
        (
            "/receive",
            json!({"max": -1}),
            "max: -1 is not from 1 to 100",
        ),
        (
            "/receive",
            json!({"wait_ms": "5s"}),
            "wait_ms: invalid type: string \"5s\", expected a whole number from 0 to 20000",
        ),
        (
            "/receive",
            json!({"lease_ms": 43_200_001}),
            "lease_ms: 43200001 is not from 0 to 43200000",
        ),
        (
            "/receive",
            json!({"holder": ""}),
            "holder: a holder name must have 1 to 128 bytes, this one is empty",
        ),
        (
            "/messages",
            json!({"messages": []}),
            "messages: there must be 1 to 1000, not 0",
        ),
        (
            "/messages",
            json!({"messages": [{"body": "", "time_to_live_ms": 0}]}),
            "messages[0].time_to_live_ms: 0 is not from 1 to 259200000000000",
        ),
        (
            "/messages",
            json!({"messages": [{"body": "", "priority": 10}]}),
            "messages[0].priority: 10 is not from 0 to 9",
        ),
        (
            "/settle",
            json!({"settles": [{"receipt": "", "action": "nack", "delay_ms": 31_622_400_001_u64}]}),
            "settles[0].delay_ms: 31622400001 is not from 0 to 31622400000",
        ),
        (
            "/dead-letters/redrive",
            json!({"max": 10_001}),
            "max: 10001 is not from 1 to 10000",
        ),
    ] {
        let answer = shop
            .ask(Method::POST, &format!("/queues/q{target}"), body)
            .await;
        assert_eq!(answer.body["detail"], detail);
    }
    for (change, detail) in [
        (
            json!({"lease_ms": "5m"}),
            "settings.lease_ms: invalid type: string \"5m\", expected a number of milliseconds from 0 to 43200000",
        ),
        (
            json!({"quota_bytes": -1}),
            "settings.quota_bytes: invalid value: integer `-1`, expected a number of bytes from 1 to \
             1152921504606846976",
        ),
        (
            json!({"attempts_max": 1001}),
            "settings.attempts_max: attempts_max must be a number from 1 to 1000, not 1001",
        ),
    ] {
        let body = json!({ "settings": change });
        let answer = shop.ask(Method::PATCH, "/queues/q", body).await;
        assert_eq!(answer.body["detail"], detail);
    }
    for (message, detail) in [
        (
            json!({"content_type": ""}),
            "there must be 1 to 1024 bytes without control characters, not 0 bytes like \"\"",
        ),
        (
            json!({"unique_id": long}),
            "a unique id must have 1 to 1024 bytes, this one has 1025",
        ),
        (
            json!({"headers": {".a": {"value": "x"}}}),
            "a header's name must have 1 to 256 bytes, not 2, of letters,",
        ),
        (
            json!({"headers": {"a": {"type": "Text", "value": "x"}}}),
            "a header's type must be String, Number or Binary,",
        ),
        (
            json!({"body": "x".repeat((1 << 20) + 1)}),
            "the message has 1048577 bytes, the message_bytes_max of queue q is 1048576",
        ),
    ] {
        let mut whole = json!({"body": ""});
        whole
            .as_object_mut()
            .unwrap()
            .extend(message.as_object().unwrap().clone());
        let body = json!({ "messages": [whole] });
        let answer = shop.ask(Method::POST, "/queues/q/messages", body).await;
        let problem = &answer.body["results"][0]["problem"]["detail"];
        assert!(problem.as_str().unwrap().contains(detail), "{problem}");
    }
}

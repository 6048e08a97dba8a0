//! Moving dead letters back.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use hyper::Method;
use serde_json::json;

use super::{
    Shop,
    operations::{queue, send},
};
use crate::auth::{AccessKey, Grant, Names, Secret, Verb};

/// Sends messages to a queue, and rejects them.
async fn die(shop: &Shop, queue: &str, count: usize) {
    let messages: Vec<_> = (0..count).map(|_| json!({"body": queue})).collect();
    let target = format!("/queues/{queue}");
    shop.post(&format!("{target}/messages"), json!({"messages": messages}))
        .await;
    let received = shop
        .post(&format!("{target}/receive"), json!({"max": 100}))
        .await;
    let received = received["messages"].as_array().unwrap();
    let settles: Vec<_> = received
        .iter()
        .map(|message| json!({"receipt": message["receipt"], "action": "reject"}))
        .collect();
    shop.post(&format!("{target}/settle"), json!({"settles": settles}))
        .await;
}

#[tokio::test]
async fn dead_letters_go_back_in_steps_and_it_is_said_where_that_ends() {
    let mut shop = Shop::open();
    for name in ["dead", "other", "keyed.fifo"] {
        queue(&shop, name, json!({})).await;
    }
    for name in ["a", "b"] {
        let dead_letter = json!({"dead_letter": "dead"});
        queue(&shop, name, dead_letter).await;
    }
    die(&shop, "a", 2).await;
    die(&shop, "b", 1).await;
    let target = "/queues/dead/dead-letters/redrive";
    let some = shop.post(target, json!({"max": 2})).await;
    assert_eq!((&some["moved"], &some["left"]), (&json!(2), &json!(1)));
    // What comes after the first request is not of the run, so that a run ends.
    die(&shop, "b", 1).await;
    let input = json!({"page": some["next_page"]});
    let rest = shop.post(target, input).await;
    assert_eq!(rest, json!({"moved": 1, "left": 1}));
    let rest = shop.post(target, json!({"max": 1})).await;
    assert_eq!(rest, json!({"moved": 1, "left": 0}));
    let ready = async |shop: &Shop, queue: &str| {
        shop.get(&format!("/queues/{queue}")).await["counts"]["ready"].clone()
    };
    assert_eq!(
        (ready(&shop, "a").await, ready(&shop, "b").await),
        (json!(2), json!(2))
    );

    let sent = send(&shop, "dead", json!({"body": "sent here"})).await;
    let stuck = shop.post(target, json!({})).await;
    assert_eq!(stuck["moved"], 0);
    assert_eq!(
        stuck["stuck"],
        json!({"id": sent["id"], "reason": "no_origin"})
    );
    let named = shop.post(target, json!({"to": "other"})).await;
    assert_eq!(named, json!({"moved": 1, "left": 0}));
    assert_eq!(ready(&shop, "other").await, 1);

    die(&shop, "a", 100).await;
    for (to, code) in [
        ("none", "queue_not_found"),
        ("dead", "invalid_value"),
        ("keyed.fifo", "invalid_value"),
    ] {
        let refused = shop.refused(Method::POST, target, json!({"to": to})).await;
        assert_eq!((&*refused.1, &*refused.2), (code, "to"), "{to}");
    }
    let grant = |queues: &str, verb| Grant {
        on: Names::Queues(queues.into()),
        verbs: vec![verb, Verb::Read],
    };
    shop.identity = Some(Arc::new(AccessKey {
        id: "K".into(),
        secret: Secret::new("secret of K"),
        grants: vec![grant("dead", Verb::Receive), grant("a", Verb::Send)],
    }));
    let all = shop.refused(Method::POST, target, json!({})).await;
    assert_eq!(all.1, "access_denied", "b is a source too");
    let refused = shop.refused(Method::POST, target, json!({"source": "b"}));
    let refused = refused.await;
    assert_eq!((&*refused.1, &*refused.2), ("queue_not_found", "source"));
    let one = json!({"source": "a", "max": 1});
    assert_eq!(shop.post(target, one).await["moved"], 1);
    let hidden = shop.refused(Method::POST, target, json!({"to": "b"})).await;
    assert_eq!(hidden.1, "queue_not_found");
    let done = shop.post(target, json!({"to": "a"})).await;
    assert_eq!(done["moved"], 99);
}

/// The first step has moved 1,000, and the second one finds the engine stopped. The engine may be done before this
/// test stops it: then once more.
#[tokio::test]
async fn a_redrive_that_fails_later_says_what_it_has_moved_and_why_it_failed() {
    let done = loop {
        let shop = Shop::open();
        for name in ["dead", "other"] {
            queue(&shop, name, json!({})).await;
        }
        for count in [1_000, 1] {
            let messages = vec![json!({"body": ""}); count];
            shop.post("/queues/dead/messages", json!({ "messages": messages }))
                .await;
        }
        let target = "/queues/dead/dead-letters/redrive";
        let mut redrive = pin!(shop.post(target, json!({"to": "other"})));
        let done = poll_fn(|context| Poll::Ready(redrive.as_mut().poll(context))).await;
        if done.is_ready() {
            continue;
        }
        while shop.get("/queues/other").await["counts"]["ready"] == 0 {}
        shop.engine.shutdown().await;
        let done = redrive.await;
        if done["moved"] == 1_000 {
            break done;
        }
    };
    assert_eq!(done["left"], 1);
    assert!(done["problem"]["code"].is_string(), "{done}");
    assert!(done["next_page"].is_string(), "{done}");
}

#[tokio::test]
async fn the_letters_of_one_queue_are_found_behind_any_number_of_others() {
    const OTHERS: u64 = 200_000;
    let shop = Shop::open();
    queue(&shop, "dead", json!({"level": "memory"})).await;
    queue(&shop, "a", json!({"dead_letter": "dead"})).await;
    die(&shop, "a", 1).await;
    let messages = vec![json!({"body": ""}); 1000];
    let others = json!({ "messages": messages });
    for _ in 0..OTHERS / 1000 {
        shop.post("/queues/dead/messages", others.clone()).await;
    }
    die(&shop, "a", 2).await;
    let target = "/queues/dead/dead-letters/redrive";
    let (mut moved, mut pages) = (Vec::new(), 0);
    let mut input = json!({"source": "a"});
    loop {
        let step = shop.post(target, input.clone()).await;
        moved.push(step["moved"].as_u64().unwrap());
        let Some(next) = step["next_page"].as_str() else {
            assert_eq!(step["left"], OTHERS);
            break;
        };
        input["page"] = json!(next);
        pages += 1;
    }
    assert_eq!((moved, pages), (vec![1, 0, 2], 2));
    for (input, field) in [
        (json!({"page": "MQ"}), "page"),
        (json!({"page": "MS14"}), "page"),
        (json!({"source": "a", "page": "!"}), "page"),
    ] {
        let refused = shop.refused(Method::POST, target, input).await;
        assert_eq!(refused.2, field);
    }
}

#[tokio::test]
async fn a_dead_letter_goes_home_only_for_those_who_may_send_there() {
    let mut shop = Shop::open();
    queue(&shop, "dead", json!({})).await;
    for name in ["a", "b"] {
        let dead_letter = json!({"dead_letter": "dead"});
        queue(&shop, name, dead_letter).await;
    }
    for name in ["a", "b", "a"] {
        die(&shop, name, 1).await;
    }
    // Its dead letters do not go there any more, so it is not listed as a source.
    let none = json!({"settings": {"dead_letter": null}});
    shop.ok(Method::PATCH, "/queues/b", none).await;
    let grant = |queues: &str, verbs: &[Verb]| Grant {
        on: Names::Queues(queues.into()),
        verbs: verbs.to_vec(),
    };
    let key = |grants| {
        Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            grants,
        }))
    };
    let receive = grant("dead", &[Verb::Receive, Verb::Read]);
    shop.identity = key(vec![receive.clone(), grant("a", &[Verb::Send])]);
    let target = "/queues/dead/dead-letters/redrive";
    let some = shop.post(target, json!({})).await;
    assert_eq!(some["moved"], 1);
    assert_eq!(some["left"], 2, "nothing is lost: {some}");
    assert_eq!(some["stuck"]["reason"], "origin_not_allowed");
    shop.identity = key(vec![receive, grant("*", &[Verb::Send])]);
    let rest = shop.post(target, json!({})).await;
    assert_eq!(rest, json!({"moved": 2, "left": 0}));
}

#[tokio::test]
async fn the_reasons_of_nacks_are_shown_wherever_the_message_is() {
    let shop = Shop::open();
    queue(&shop, "dead", json!({})).await;
    let settings = json!({"dead_letter": "dead", "attempts_max": 12});
    queue(&shop, "q", settings).await;
    let sent = send(&shop, "q", json!({"body": "order"})).await;
    let id = sent["id"].as_str().unwrap();
    for attempt in 1..=12 {
        let received = shop.post("/queues/q/receive", json!({})).await;
        let message = &received["messages"][0];
        let before = message["failures"].as_array().map_or(0, Vec::len);
        assert_eq!(before, (attempt - 1).min(10));
        let reason = format!("no stock, looked {attempt} times");
        let settle = json!({"receipt": message["receipt"], "action": "nack", "reason": reason});
        let body = json!({"settles": [settle]});
        let done = shop.post("/queues/q/settle", body).await;
        assert_eq!(done["results"][0], json!({"outcome": "done"}));
        let peeked = shop.get(&format!("/queues/q/messages/{id}")).await;
        let last = peeked["failures"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&last["attempt"], &last["error"]),
            (&json!(attempt), &json!(reason))
        );
    }
    shop.post("/queues/q/receive", json!({"wait_ms": 0})).await;
    let letters = shop.get("/queues/dead/dead-letters").await;
    let letter = &letters["messages"][0];
    let failures = letter["failures"].as_array().unwrap().iter();
    let attempts: Vec<_> = failures
        .map(|one| one["attempt"].as_u64().unwrap())
        .collect();
    assert_eq!(attempts, [1, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(letter["failures_left_out"], 2);
}

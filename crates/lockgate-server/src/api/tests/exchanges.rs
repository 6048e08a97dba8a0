//! Exchanges over the API.

use std::sync::Arc;

use hyper::Method;
use lockgate_machine::Filter;
use serde_json::{Value, json};

use super::Shop;
use crate::auth::{AccessKey, Grant, Names, Secret, Verb};

/// Two queues, and an exchange of each kind; `topic` leads to both by `orders.#`.
async fn open() -> Shop {
    let shop = Shop::open();
    for queue in ["a", "b.fifo"] {
        shop.post("/queues", json!({"name": queue})).await;
    }
    for kind in ["direct", "topic", "fanout", "headers"] {
        let exchange = json!({"name": kind, "kind": kind});
        shop.post("/exchanges", exchange).await;
    }
    for queue in ["a", "b.fifo"] {
        let bind = json!({"to": {"queue": queue}, "topic": "orders.#"});
        shop.post("/exchanges/topic/bind", bind).await;
    }
    shop
}

fn one(routing_key: &str, message: Value) -> Value {
    json!({"messages": [{"routing_key": routing_key, "message": message}]})
}

async fn publish(shop: &Shop, exchange: &str, message: Value) -> Value {
    let target = format!("/exchanges/{exchange}/messages");
    let mut answer = shop.post(&target, message).await;
    answer["results"][0].take()
}

async fn bodies(shop: &Shop, queue: &str) -> Vec<String> {
    let peeked = shop.get(&format!("/queues/{queue}/messages")).await;
    let messages = peeked["messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["body"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_message_gets_to_each_queue_or_to_none() {
    let shop = open().await;
    let keyed = json!({"body": "x", "key": "k"});
    let result = publish(&shop, "topic", one("orders.eu", keyed)).await;
    assert_eq!(result["outcome"], "published", "{result}");
    assert_eq!(
        (&result["copies"], &result["dropped"]),
        (&json!(2), &json!(false))
    );
    assert_eq!(result["queues"][1]["queue"], "b.fifo");
    assert_eq!(bodies(&shop, "a").await, ["x"]);
    assert_eq!(bodies(&shop, "b.fifo").await, ["x"]);
    // The second queue is keyed, and the message has no key.
    let result = publish(&shop, "topic", one("orders.eu", json!({"body": "y"}))).await;
    assert_eq!(result["outcome"], "refused", "{result}");
    assert_eq!(result["problem"]["code"], "key_required");
    assert_eq!(result["problem"]["field"], "messages[0].message.key");
    assert_eq!(bodies(&shop, "a").await, ["x"]);
    // A message of its own is refused alone.
    let messages = json!({"messages": [
        {"routing_key": "orders", "message": {"body": "z", "group": "g"}},
        {"routing_key": "no", "message": {"body": "z"}},
        {"routing_key": "\u{7}", "message": {"body": "z"}},
        {"routing_key": "orders", "message": {"body": "z", "key": "k", "unique_id": "u"}},
        {"routing_key": "orders", "message": {"body": "z", "key": "k", "unique_id": "u"}},
    ]});
    let answer = shop.post("/exchanges/topic/messages", messages).await;
    let results = answer["results"].as_array().unwrap();
    let codes: Vec<_> = results
        .iter()
        .map(|result| result["problem"]["code"].clone())
        .collect();
    let none = Value::Null;
    assert_eq!(
        codes,
        [
            none.clone(),
            json!("unroutable"),
            json!("invalid_value"),
            none.clone(),
            none
        ]
    );
    assert_eq!(results[2]["problem"]["field"], "messages[2].routing_key");
    assert_eq!(
        (&results[3]["duplicates"], &results[4]["duplicates"]),
        (&json!(0), &json!(2))
    );
    assert_eq!(bodies(&shop, "b.fifo").await, ["x", "z", "z"]);
    let counts = &shop.get("/exchanges/topic").await["counts"];
    assert_eq!(
        (&counts["published"], &counts["copies"], &counts["refused"]),
        (&json!(4), &json!(6), &json!(1))
    );
}

#[tokio::test]
async fn bindings_are_shown_as_they_were_made() {
    let shop = open().await;
    let bindings = [
        (
            "direct",
            json!({"routing_key": "k", "key_from": "routing_key"}),
        ),
        ("fanout", json!({"skip_when_full": true})),
        (
            "headers",
            json!({
                "headers": {"match": "any", "pairs": {"n": null, "s": ["x", "y"], "t": "z"}},
                "filter": {"n": [{"numeric": [">=", 1.50]}]},
                "key_from": {"header": "n"},
            }),
        ),
        (
            "topic",
            json!({"topic": "*.#", "filter": {"a": {"b": ["c"]}}, "filter_scope": "body"}),
        ),
    ];
    for (exchange, mut bind) in bindings {
        bind["to"] = json!({"queue": "a"});
        let target = format!("/exchanges/{exchange}/bind");
        let bound = shop.post(&target, bind.clone()).await;
        assert_eq!(
            (&bound["existed"], &bound["changed"]),
            (&json!(false), &json!(true))
        );
        let again = shop.post(&target, bind.clone()).await;
        assert_eq!(
            (&again["existed"], &again["changed"]),
            (&json!(true), &json!(false))
        );
        let shown = shop.get(&format!("/exchanges/{exchange}/bindings")).await;
        let mut shown = shown["bindings"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        assert_eq!(shown["number"], bound["number"]);
        bind["number"] = bound["number"].clone();
        bind["skip_when_full"] = (exchange == "fanout").into();
        if let Some(filter) = bind.get("filter") {
            // Its text is kept, and numbers in it are.
            assert_eq!(shown["filter"], *filter);
            bind["filter_scope"] = json!(if exchange == "topic" {
                "body"
            } else {
                "headers"
            });
        }
        assert_eq!(shown.take(), bind);
        let mut unbind = json!({"to": bind["to"]});
        for part in ["routing_key", "topic", "headers"] {
            if let Some(value) = bind.get(part) {
                unbind[part] = value.clone();
            }
        }
        let target = format!("/exchanges/{exchange}/unbind");
        assert_eq!(shop.post(&target, unbind.clone()).await["existed"], true);
        assert_eq!(shop.post(&target, unbind).await["existed"], false);
    }
}

#[tokio::test]
async fn pages_of_bindings_are_bounded_in_number_and_in_bytes() {
    let shop = open().await;
    let text = "x".repeat(Filter::BYTES_MAX - 100);
    for key in 0..40 {
        let bind = json!({
            "to": {"queue": "a"}, "routing_key": key.to_string(), "filter": {"a": [text]},
        });
        shop.post("/exchanges/direct/bind", bind).await;
    }
    for (limit, least) in [(1000, 3), (7, 6)] {
        let (mut page, mut pages, mut numbers) = (String::new(), 0, Vec::new());
        loop {
            let target = format!("/exchanges/direct/bindings?limit={limit}{page}");
            let shown = shop.get(&target).await;
            assert!(shown.to_string().len() < 5 << 20);
            pages += 1;
            let bindings = shown["bindings"].as_array().unwrap().iter();
            numbers.extend(bindings.map(|binding| binding["number"].as_u64().unwrap()));
            match shown["next_page"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => break,
            }
        }
        assert!(pages >= least, "{pages} pages");
        assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    }
    let explained = json!({"routing_key": "7", "headers": {"a": {"value": "y"}}});
    let explained = shop.post("/exchanges/direct/explain", explained).await;
    assert_eq!(explained["bindings"][0]["outcome"], "filtered");
    assert_eq!(explained["more"], 0);
}

#[tokio::test]
async fn a_route_is_explained() {
    let shop = open().await;
    shop.post(
        "/exchanges/fanout/bind",
        json!({"to": {"exchange": "topic"}}),
    )
    .await;
    let filter = json!({"to": {"queue": "a"}, "filter": {"n": [1]}, "filter_scope": "body"});
    shop.post("/exchanges/fanout/bind", filter).await;
    let explain = async |body: Value| shop.post("/exchanges/fanout/explain", body).await;
    let shown = explain(json!({"routing_key": "orders", "body": "{\"n\":2}"})).await;
    let steps = shown["bindings"].as_array().unwrap();
    let outcomes: Vec<_> = steps
        .iter()
        .map(|step| (&step["exchange"], &step["outcome"]))
        .collect();
    let (fanout, topic, routes) = (json!("fanout"), json!("topic"), json!("routes"));
    assert_eq!(
        outcomes,
        [
            (&fanout, &routes),
            (&fanout, &json!("filtered")),
            (&topic, &routes),
            (&topic, &routes)
        ]
    );
    assert!(steps[1]["why"].as_str().unwrap().contains("`n`"), "{shown}");
    assert_eq!(
        (&shown["queues"], shown.get("unroutable")),
        (&json!(2), None)
    );
    let shown = explain(json!({"routing_key": "no", "limit": 1})).await;
    assert_eq!((&shown["queues"], &shown["more"]), (&json!(0), &json!(1)));
    assert_eq!(shown["unroutable"], "reject");
    // Nothing was published.
    assert_eq!(bodies(&shop, "a").await, [""; 0]);
    let change = json!({"unroutable": {"alternate": "headers"}});
    shop.ok(Method::PATCH, "/exchanges/fanout", change).await;
    let shown = explain(json!({"routing_key": "no"})).await;
    assert_eq!(shown["alternates"], json!(["headers"]));
}

#[tokio::test]
async fn each_refusal_has_its_code() {
    let shop = open().await;
    let alternate = |name: &str| json!({"unroutable": {"alternate": name}});
    shop.ok(Method::PATCH, "/exchanges/direct", alternate("topic"))
        .await;
    let to_queue = |rest: Value| {
        let mut bind = rest;
        bind["to"] = json!({"queue": "a"});
        bind
    };
    let post = |target: &str, body| (Method::POST, format!("/exchanges{target}"), body);
    let to_exchange = json!({"exchange": "fanout"});
    let cases = [
        (
            post("/no/bind", to_queue(json!({}))),
            (404, "exchange_not_found", ""),
        ),
        (
            post("/no/messages", one("", json!({"body": ""}))),
            (200, "exchange_not_found", "messages[0]"),
        ),
        (
            post("/no/explain", json!({})),
            (404, "exchange_not_found", ""),
        ),
        (
            post("", json!({"name": "topic", "kind": "fanout"})),
            (409, "exchange_exists", ""),
        ),
        (
            post("", json!({"name": "x y", "kind": "fanout"})),
            (400, "invalid_value", "name"),
        ),
        (
            post("", json!({"name": "x", "kind": "none"})),
            (400, "invalid_value", "kind"),
        ),
        (
            post(
                "/topic/bind",
                json!({"to": {"exchange": "direct"}, "topic": "#"}),
            ),
            (409, "exchange_cycle", ""),
        ),
        (
            (
                Method::PATCH,
                "/exchanges/topic".into(),
                alternate("direct"),
            ),
            (409, "exchange_cycle", ""),
        ),
        (
            (Method::PATCH, "/exchanges/topic".into(), alternate("no")),
            (404, "exchange_not_found", ""),
        ),
        (
            (Method::DELETE, "/exchanges/topic".into(), Value::Null),
            (409, "exchange_used", ""),
        ),
        (
            post("/topic/bind", to_queue(json!({"routing_key": "k"}))),
            (400, "pattern_not_taken", ""),
        ),
        (
            post("/fanout/bind", to_queue(json!({"topic": "a*"}))),
            (400, "invalid_value", "topic"),
        ),
        (
            post(
                "/fanout/bind",
                to_queue(json!({"topic": "a", "routing_key": "k"})),
            ),
            (400, "invalid_value", "routing_key"),
        ),
        (
            post("/fanout/bind", to_queue(json!({"filter": {"a": 7}}))),
            (400, "invalid_value", "filter"),
        ),
        (
            post("/fanout/bind", to_queue(json!({"filter_scope": "body"}))),
            (400, "invalid_value", "filter_scope"),
        ),
        (
            post("/fanout/bind", json!({"to": {"queue": "no"}})),
            (404, "queue_not_found", "to.queue"),
        ),
        (
            post("/fanout/bind", json!({"to": {"none": "no"}})),
            (400, "invalid_value", "to"),
        ),
        (
            post(
                "/direct/bind",
                json!({"to": to_exchange, "routing_key": "", "key_from": "routing_key"}),
            ),
            (400, "invalid_value", "key_from"),
        ),
        (
            post(
                "/direct/bind",
                json!({"to": to_exchange, "routing_key": "", "skip_when_full": true}),
            ),
            (400, "invalid_value", "skip_when_full"),
        ),
        (
            post(
                "/fanout/bind",
                to_queue(json!({"key_from": {"header": ""}})),
            ),
            (400, "invalid_value", "key_from.header"),
        ),
        (
            post(
                "/headers/bind",
                to_queue(json!({"headers": {"match": "all", "pairs": {}}})),
            ),
            (400, "invalid_value", "headers.pairs"),
        ),
        (
            post(
                "/headers/bind",
                to_queue(json!({"headers": {"match": "all", "pairs": {"a": []}}})),
            ),
            (400, "invalid_value", "headers.pairs.a"),
        ),
        (
            post("/fanout/messages", one("", json!({"body": ""}))),
            (200, "unroutable", "messages[0]"),
        ),
        (
            post("/topic/messages", json!({"messages": []})),
            (400, "invalid_value", "messages"),
        ),
        (
            post("/topic/messages", json!({"messages": [{"message": {}}]})),
            (400, "invalid_value", "messages[0].message.body"),
        ),
        (
            (
                Method::GET,
                "/exchanges/topic/bindings?page=eA".into(),
                Value::Null,
            ),
            (400, "invalid_page", "page"),
        ),
    ];
    for ((method, target, body), (status, code, field)) in cases {
        let mut answer = shop.ask(method, &target, body.clone()).await;
        if answer.status == 200 {
            answer.body = answer.body["results"][0]["problem"].take();
        }
        let text = |name: &str| answer.body[name].as_str().unwrap_or("");
        assert_eq!(
            (answer.status, text("code"), text("field")),
            (status, code, field),
            "{target} {body}"
        );
    }
    // What a binding takes as the key of a copy cannot be one.
    let bind = json!({"to": {"queue": "b.fifo"}, "key_from": {"header": "h"}});
    shop.post("/exchanges/fanout/bind", bind).await;
    let header = json!({"type": "Binary", "value": "gA==", "encoding": "base64"});
    let message = one(
        "",
        json!({"body": "", "key": "k", "headers": {"h": header}}),
    );
    let result = publish(&shop, "fanout", message).await;
    assert_eq!(result["problem"]["code"], "invalid_copy_key", "{result}");
    let producer = json!({"name": "p", "incarnation": 1, "opening": "00c0ffee12345678", "lane": 1, "number": 1});
    let result = publish(
        &shop,
        "fanout",
        one("", json!({"body": "", "producer": producer})),
    )
    .await;
    assert_eq!(
        result["problem"]["field"], "messages[0].message.producer",
        "{result}"
    );
    // With force, what leads to it does not any more.
    shop.ok(Method::DELETE, "/exchanges/topic?force=true", Value::Null)
        .await;
    assert_eq!(shop.get("/exchanges/direct").await["unroutable"], "reject");
}

#[tokio::test]
async fn a_key_may_do_what_its_grants_on_exchanges_say() {
    let mut shop = open().await;
    for name in ["mine.a", "mine.b", "other"] {
        shop.post("/exchanges", json!({"name": name, "kind": "fanout"}))
            .await;
    }
    let bind = json!({"to": {"queue": "a"}});
    let cases = [
        (Verb::Read, Method::GET, "", Value::Null),
        (Verb::Read, Method::GET, "/bindings", Value::Null),
        (Verb::Read, Method::POST, "/explain", json!({})),
        (
            Verb::Send,
            Method::POST,
            "/messages",
            one("", json!({"body": ""})),
        ),
        (Verb::Manage, Method::POST, "/unbind", bind.clone()),
        (
            Verb::Manage,
            Method::PATCH,
            "",
            json!({"unroutable": "drop"}),
        ),
        (Verb::Purge, Method::DELETE, "", Value::Null),
    ];
    let key = |grants: Vec<(Names, Vec<Verb>)>| {
        let grants = grants.into_iter().map(|(on, verbs)| Grant { on, verbs });
        Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            grants: grants.collect(),
        }))
    };
    let mine = || Names::Exchanges("mine.*".into());
    for verb in [Verb::Send, Verb::Read, Verb::Manage, Verb::Purge] {
        // Grants on queues, records and ledgers are none on exchanges.
        shop.identity = key(vec![
            (Names::Queues("*".into()), vec![verb]),
            (Names::Records("*".into()), vec![verb]),
            (Names::Ledgers("*".into()), vec![verb]),
            (mine(), vec![verb]),
        ]);
        for (needed, method, rest, body) in &cases {
            let denied = async |exchange: &str| {
                let target = format!("/exchanges/{exchange}{rest}");
                let answer = shop.ask(method.clone(), &target, body.clone()).await;
                answer.body["code"] == "access_denied"
            };
            assert_eq!(denied("mine.a").await, *needed != verb, "{method} {rest}");
            assert!(denied("other").await, "{method} {rest}");
        }
        let create = json!({"name": "mine.c", "kind": "fanout"});
        let answer = shop.ask(Method::POST, "/exchanges", create).await;
        assert_eq!(answer.status == 403, verb != Verb::Manage);
        let list = shop.get("/exchanges").await;
        let names = list["exchanges"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
        let expected: &[&str] = match verb {
            Verb::Read => &["mine.a", "mine.b"],
            _ => &[],
        };
        assert_eq!(names, expected);
    }
}

/// Who manages an exchange sends nothing to where it may not send.
#[tokio::test]
async fn a_binding_needs_the_right_to_send_to_where_it_leads() {
    let mut shop = open().await;
    let bind = |to: Value| json!({ "to": to });
    let cases = [
        (
            Method::POST,
            "/exchanges/fanout/bind",
            bind(json!({"queue": "a"})),
        ),
        (
            Method::POST,
            "/exchanges/fanout/bind",
            bind(json!({"exchange": "topic"})),
        ),
        (
            Method::PATCH,
            "/exchanges/fanout",
            json!({"unroutable": {"alternate": "topic"}}),
        ),
        (
            Method::POST,
            "/exchanges",
            json!({"name": "fanout", "kind": "fanout", "unroutable": {"alternate": "topic"}}),
        ),
    ];
    for (may_send, may_read) in [(false, true), (false, false), (true, false)] {
        let mut verbs = vec![Verb::Manage];
        verbs.extend(may_read.then_some(Verb::Read));
        verbs.extend(may_send.then_some(Verb::Send));
        let grant = |on, verbs: &[Verb]| Grant {
            on,
            verbs: verbs.to_vec(),
        };
        shop.identity = Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            grants: vec![
                grant(Names::Exchanges("fanout".into()), &[Verb::Manage]),
                grant(Names::Exchanges("topic".into()), &verbs),
                grant(Names::Queues("a".into()), &verbs[1..]),
            ],
        }));
        for (method, target, body) in &cases {
            let answer = shop.ask(method.clone(), target, body.clone()).await;
            let code = answer.body["code"].as_str().unwrap_or("");
            let to_queue = body["to"]["queue"] == "a";
            let expected = match (may_send, may_read) {
                (true, _) => "",
                // A queue that the key may not read does not exist for it.
                (false, false) if to_queue => "queue_not_found",
                (false, _) => "access_denied",
            };
            assert_eq!(code, expected, "{target} {body}");
        }
    }
}

/// Who publishes learns nothing of queues that it may neither read nor send to.
#[tokio::test]
async fn a_publish_does_not_name_what_the_caller_may_not_read() {
    let mut shop = open().await;
    let grant = |on, verbs: &[Verb]| Grant {
        on,
        verbs: verbs.to_vec(),
    };
    shop.identity = Some(Arc::new(AccessKey {
        id: "K".into(),
        secret: Secret::new("secret of K"),
        grants: vec![
            grant(
                Names::Exchanges("topic".into()),
                &[Verb::Send, Verb::Manage],
            ),
            grant(Names::Queues("a".into()), &[Verb::Read]),
        ],
    }));
    let keyed = json!({"body": "x", "key": "k"});
    let result = publish(&shop, "topic", one("orders", keyed)).await;
    assert_eq!(result["copies"], 2);
    assert_eq!(result["queues"].as_array().unwrap().len(), 1);
    let result = publish(&shop, "topic", one("orders", json!({"body": "x"}))).await;
    assert_eq!(result["problem"]["code"], "key_required");
    assert!(!result.to_string().contains("b.fifo"), "{result}");
    let publish = json!({"exchange": "topic", "routing_key": "orders", "message": {"body": "x"}});
    let refused = shop
        .ask(
            Method::POST,
            "/transactions",
            json!({"publishes": [publish]}),
        )
        .await;
    assert_eq!(refused.body["code"], "key_required");
    assert!(!refused.body.to_string().contains("b.fifo"), "{refused:?}");
    let other = json!({"publishes": [{"exchange": "fanout", "message": {"body": "x"}}]});
    let (status, ..) = shop.refused(Method::POST, "/transactions", other).await;
    assert_eq!(status, 403);
    // Nor by a bind, or an unbind.
    for queue in ["b.fifo", "none.fifo"] {
        let to = json!({"to": {"queue": queue}, "topic": "x"});
        let unbound = shop.post("/exchanges/topic/unbind", to.clone()).await;
        assert_eq!(unbound, json!({"existed": false}));
        let (_, code, _) = shop
            .refused(Method::POST, "/exchanges/topic/bind", to)
            .await;
        assert_eq!(code, "queue_not_found");
    }
}

/// Settles, sends and publishes of one request happen together, or none does.
#[tokio::test]
async fn a_transaction_settles_and_publishes() {
    let shop = open().await;
    shop.post("/queues", json!({"name": "work"})).await;
    let message = json!({"messages": [{"body": "1"}]});
    shop.post("/queues/work/messages", message).await;
    let received = shop.post("/queues/work/receive", json!({})).await;
    let receipt = &received["messages"][0]["receipt"];
    let body = |publishes: Value| {
        json!({
            "settles": [{"receipt": receipt, "action": "ack"}],
            "sends": [{"queue": "work", "message": {"body": "2"}}],
            "publishes": publishes,
        })
    };
    let of = |exchange: &str, routing_key: &str, message: Value| json!({"exchange": exchange, "routing_key": routing_key, "message": message});
    let keyed = || of("topic", "orders", json!({"body": "x", "key": "k"}));
    for (publish, status, code, field) in [
        (
            of("topic", "no", json!({"body": "x"})),
            409,
            "unroutable",
            "publishes[1]",
        ),
        (
            of("topic", "orders", json!({"body": "x"})),
            400,
            "key_required",
            "publishes[1].message.key",
        ),
        (
            of("none", "", json!({"body": "x"})),
            404,
            "exchange_not_found",
            "publishes[1]",
        ),
        (
            of("topic", "\u{7}", json!({"body": "x"})),
            400,
            "invalid_value",
            "publishes[1].routing_key",
        ),
        (
            of(
                "topic",
                "orders",
                json!({"body": "x", "key": "k", "body_encoding": "base64"}),
            ),
            400,
            "invalid_value",
            "publishes[1].message.body",
        ),
    ] {
        let refused = shop
            .ask(
                Method::POST,
                "/transactions",
                body(json!([keyed(), publish])),
            )
            .await;
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (status, &json!(code))
        );
        assert_eq!(refused.body["field"].as_str().unwrap_or_default(), field);
    }
    let done = shop
        .post("/transactions", body(json!([keyed(), keyed()])))
        .await;
    assert_eq!(done["sent"].as_array().unwrap().len(), 1);
    let published = done["published"].as_array().unwrap();
    assert_eq!(published.len(), 2);
    assert_eq!(published[0]["copies"], 2);
    assert_eq!(published[0]["queues"][0]["queue"], "a");
    assert_eq!(bodies(&shop, "work").await, ["2"]);
    assert_eq!(bodies(&shop, "b.fifo").await, ["x", "x"]);
    let again = shop
        .refused(Method::POST, "/transactions", body(json!([keyed()])))
        .await;
    assert_eq!(
        again,
        (409, "lease_stale".to_owned(), "settles[0]".to_owned())
    );
}

//! Records over the API.

use std::sync::Arc;

use hyper::Method;
use serde_json::{Value, json};

use super::Shop;
use crate::auth::{AccessKey, Grant, Names, Secret, Verb};

#[tokio::test]
async fn each_refusal_says_what_the_record_is() {
    let shop = Shop::open();
    let ask = async |method: Method, target: &str, body: Value| {
        let answer = shop.ask(method, target, body).await;
        let code = answer.body["code"].as_str().unwrap_or("").to_owned();
        (answer.status, code, answer.body["record"].clone())
    };
    let put = |value: &str, replaces: Value| json!({"value": value, "replaces": replaces});
    let absent = ask(Method::PUT, "/records/a", put("x", json!(7))).await;
    let named = json!({"name": "a"});
    assert_eq!(absent, (409, "record_conflict".to_owned(), named.clone()));
    let (status, code, record) = ask(Method::GET, "/records/a", Value::Null).await;
    assert_eq!((status, &*code, &record), (404, "record_not_found", &named));
    let written = shop
        .ok(Method::PUT, "/records/a", put("x", Value::Null))
        .await;
    let (status, code, record) = ask(Method::PUT, "/records/a", put("y", Value::Null)).await;
    assert_eq!((status, &*code), (409, "record_conflict"));
    assert_eq!(record, json!({"name": "a", "version": written["version"]}));

    let lease = |holder: &str| json!({"holder": holder, "lease_ms": 1000});
    let leased = shop.post("/records/a/lease", lease("me")).await;
    let (status, code, record) = ask(Method::POST, "/records/a/lease", lease("you")).await;
    assert_eq!((status, &*code), (409, "record_held"));
    assert_eq!(
        record,
        json!({"name": "a", "holder": "me", "remaining_ms": 1000})
    );
    let epoch = leased["lease"]["epoch"].clone();
    shop.post("/records/a/release", json!({"epoch": epoch}))
        .await;
    let target = format!("/records/a?replaces={}&epoch={epoch}", written["version"]);
    let stale = ask(Method::DELETE, &target, Value::Null).await;
    assert_eq!(stale, (409, "lease_stale".to_owned(), named));
}

#[tokio::test]
async fn what_is_wrong_in_a_request_for_a_record_is_named() {
    let shop = Shop::open();
    let large = "x".repeat(lockgate_core::RECORD_BYTES_MAX + 1);
    for (method, target, body, field) in [
        (Method::PUT, "/records/%0a", json!({"value": "x"}), "record"),
        (Method::PUT, "/records/a", json!({"value": large}), ""),
        (
            Method::PUT,
            "/records/a",
            json!({"value": "!", "value_encoding": "base64"}),
            "value",
        ),
        (
            Method::GET,
            "/records/a?wait_ms=20001",
            Value::Null,
            "wait_ms",
        ),
        (Method::GET, "/records?limit=1001", Value::Null, "limit"),
        (
            Method::POST,
            "/records/a/lease",
            json!({"lease_ms": 0, "holder": "me"}),
            "lease_ms",
        ),
        (
            Method::POST,
            "/records/a/lease",
            json!({"lease_ms": 1, "holder": ""}),
            "holder",
        ),
        (
            Method::POST,
            "/records/a/extend",
            json!({"lease_ms": 43_200_001, "epoch": 1}),
            "lease_ms",
        ),
    ] {
        let (status, code, found) = shop.refused(method, target, body).await;
        assert_eq!(
            (status, &*code, &*found),
            (400, "invalid_value", field),
            "{target}"
        );
    }
    let refused = shop
        .refused(Method::GET, "/records?page=*", Value::Null)
        .await;
    assert_eq!((&*refused.1, &*refused.2), ("invalid_page", "page"));
}

#[tokio::test]
async fn a_watch_ends_with_the_wait() {
    let shop = Shop::open();
    let watch = shop.ask(Method::GET, "/records/a?wait_ms=20000", Value::Null);
    let later = async {
        // The watch has been taken when the clock moves on: the engine takes requests in order.
        shop.get("/records").await;
        shop.pass(20_000);
    };
    let (watched, ()) = tokio::join!(watch, later);
    assert_eq!(watched.status, 404);
}

#[tokio::test]
async fn a_key_may_do_what_its_grants_on_records_say() {
    let mut shop = Shop::open();
    for name in ["mine/a", "mine/b", "other"] {
        let target = format!("/records/{}", name.replace('/', "%2F"));
        shop.ok(Method::PUT, &target, json!({"value": "x"})).await;
    }
    let lease = json!({"lease_ms": 1000, "holder": "me"});
    let epoch = json!({"epoch": 1, "lease_ms": 1});
    let cases = [
        (Verb::Read, Method::GET, "", Value::Null),
        (Verb::Manage, Method::PUT, "", json!({"value": "y"})),
        (Verb::Manage, Method::DELETE, "?replaces=1", Value::Null),
        (Verb::Manage, Method::POST, "/lease", lease),
        (Verb::Manage, Method::POST, "/extend", epoch),
        (Verb::Manage, Method::POST, "/release", json!({"epoch": 1})),
    ];
    for verb in [Verb::Read, Verb::Manage] {
        let grant = |on| Grant {
            on,
            verbs: vec![verb],
        };
        shop.identity = Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            // A grant on queues is none on records.
            grants: vec![
                grant(Names::Queues("*".into())),
                grant(Names::Records("mine/*".into())),
            ],
        }));
        for (needed, method, rest, body) in &cases {
            let denied = async |record: &str| {
                let target = format!("/records/{record}{rest}");
                let answer = shop.ask(method.clone(), &target, body.clone()).await;
                answer.body["code"] == "access_denied"
            };
            assert_eq!(denied("mine%2Fa").await, *needed != verb, "{method} {rest}");
            assert!(denied("other").await, "{method} {rest}");
        }
        let list = shop.get("/records").await;
        let names = list["records"].as_array().unwrap().iter();
        let names: Vec<_> = names
            .map(|record| record["name"].as_str().unwrap())
            .collect();
        let expected: &[&str] = if verb == Verb::Read {
            &["mine/a", "mine/b"]
        } else {
            &[]
        };
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn a_request_of_a_leader_that_was_deposed_is_refused() {
    let mut shop = Shop::open();
    shop.ok(Method::POST, "/queues", json!({"name": "q"})).await;
    let send = async |shop: &Shop, fence: Option<&str>| {
        let body = json!({"messages": [{"body": "a"}]}).to_string();
        let target = "/queues/q/messages";
        let answer = shop.raw_fenced(&Method::POST, target, body, fence).await;
        let of_message = &answer.body["results"][0];
        (
            answer.status,
            of_message["outcome"].clone(),
            of_message["problem"].clone(),
            answer.body,
        )
    };
    for (fence, passes) in [
        ("a%20b:7", true),
        ("a%20b:9", true),
        ("other:1", true),
        ("a%20b:8", false),
    ] {
        let (status, outcome, problem, body) = send(&shop, Some(fence)).await;
        assert_eq!(
            (status, &outcome),
            (200, &json!(if passes { "sent" } else { "refused" })),
            "{body}"
        );
        if !passes {
            assert_eq!(
                (&problem["code"], &problem["newest_epoch"]),
                (&json!("deposed"), &json!(9))
            );
        }
    }
    // Whoever needs no term is not asked for one.
    assert_eq!(send(&shop, None).await.1, "sent");
    let guard = shop
        .ok(Method::GET, "/records/fence%2Fa%20b", Value::Null)
        .await;
    assert_eq!(guard["value"], "9");
    let put = json!({"value": "x"}).to_string();
    let answer = shop
        .raw_fenced(&Method::PUT, "/records/r", put, Some("a%20b:8"))
        .await;
    assert_eq!(
        (answer.status, &answer.body["code"]),
        (409, &json!("deposed"))
    );
    assert_eq!(answer.body["newest_epoch"], 9);
    for wrong in ["a", "a:", ":1", "a:-1", "?", "a:1, b:2", "a:1,b:2"] {
        let (status, _, _, body) = send(&shop, Some(wrong)).await;
        assert_eq!(
            (status, &body["field"]),
            (400, &json!("x-lockgate-fence")),
            "{wrong}"
        );
    }

    // A key that may send must not depose others.
    shop.identity = Some(Arc::new(AccessKey {
        id: "sender".into(),
        secret: Secret::new("s"),
        grants: vec![Grant {
            verbs: vec![Verb::Send],
            on: Names::Queues("*".into()),
        }],
    }));
    assert_eq!(send(&shop, Some("a%20b:10")).await.0, 403);
    assert_eq!(send(&shop, None).await.1, "sent");
}

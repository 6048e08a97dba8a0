//! Producers: open, send records, list and forget.

use hyper::Method;
use serde_json::{Value, json};

use super::{Shop, operations::queue};

const PRODUCERS: &str = "/queues/q/producers";

/// The results of records of one lane of a producer.
async fn send(shop: &Shop, incarnation: &Value, numbers: &[u64]) -> Vec<Value> {
    let record = |number: &u64| {
        json!({"body": "x", "producer": {
            "name": "p/ä", "incarnation": incarnation, "opening": "00c0ffee12345678",
            "lane": 15, "number": number,
        }})
    };
    let messages: Vec<Value> = numbers.iter().map(record).collect();
    let answer = shop.post("/queues/q/messages", json!({"messages": messages}));
    let mut results = answer.await["results"].as_array().unwrap().clone();
    for result in &mut results {
        if result["outcome"] == "sent" {
            let has_name = result["id"].is_string();
            *result = json!([result["sequence"], result["duplicate"], has_name]);
        } else {
            let problem = &result["problem"];
            *result = json!([problem["code"], problem["status"], problem["incarnation"]]);
        }
    }
    results
}

async fn open(shop: &Shop, producer: &str) -> Value {
    let target = format!("{PRODUCERS}/{producer}/open");
    shop.post(&target, Value::Null).await["incarnation"].clone()
}

#[tokio::test]
async fn a_record_is_accepted_once_and_only_of_the_last_incarnation() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    let unknown = [json!(["producer_unknown", 409, null])];
    assert_eq!(send(&shop, &json!(1), &[1]).await, unknown);
    let first = open(&shop, "p%2F%C3%A4").await;
    let [new, known] = [
        |at| json!([at, false, true]),
        |_| json!([null, true, false]),
    ];
    let sent = send(&shop, &first, &[1, 1, 3, 2]).await;
    assert_eq!(sent, [new(1), known(1), new(2), known(2)]);
    let second = open(&shop, "p%2F%C3%A4").await;
    let fenced = json!(["producer_fenced", 409, second]);
    assert_eq!(send(&shop, &first, &[3, 4]).await, [fenced.clone(), fenced]);
    let sent = send(&shop, &second, &[3, 4]).await;
    assert_eq!(sent, [known(2), new(3)]);

    shop.pass(5_000);
    let listed = shop.get(PRODUCERS).await;
    let producer = json!({
        "name": "p/ä", "incarnation": second, "openings": 1,
        "used_at": "2026-11-21T08:00:00.000Z",
    });
    assert_eq!(listed, json!({"producers": [producer]}));
    let counts = shop.get("/queues/q").await["counts"].clone();
    assert_eq!(
        (&counts["producers"], &counts["producer_openings"]),
        (&json!(1), &json!(1))
    );
    let totals = shop.get("/queues/q").await["totals"].clone();
    assert_eq!(
        (&totals["sent_before"], &totals["fenced"]),
        (&json!(3), &json!(2))
    );

    let forget = format!("{PRODUCERS}/p%2F%C3%A4");
    shop.ok(Method::DELETE, &forget, Value::Null).await;
    let again = shop.refused(Method::DELETE, &forget, Value::Null).await;
    assert_eq!((again.0, &*again.1), (404, "producer_not_found"));
    assert_eq!(send(&shop, &second, &[5]).await, unknown);
    let third = open(&shop, "p%2F%C3%A4").await;
    assert!(third.as_u64() > second.as_u64());
    assert_eq!(send(&shop, &third, &[1]).await, [new(4)]);
}

#[tokio::test]
async fn producers_are_listed_in_pages_and_bounded() {
    let shop = Shop::open();
    queue(&shop, "q", json!({"producers_max": 3})).await;
    for name in ["c", "a", "b"] {
        open(&shop, name).await;
    }
    let more = format!("{PRODUCERS}/d/open");
    let full = shop.refused(Method::POST, &more, Value::Null).await;
    assert_eq!((full.0, &*full.1), (429, "producers_full"));
    let first = shop.get(&format!("{PRODUCERS}?limit=2")).await;
    let names = |page: &Value| {
        let names = page["producers"].as_array().unwrap().iter();
        names.map(|it| it["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["a", "b"]);
    let next = first["next_page"].as_str().unwrap();
    let second = shop.get(&format!("{PRODUCERS}?limit=2&page={next}")).await;
    assert_eq!(
        (names(&second), &second["next_page"]),
        (vec![json!("c")], &Value::Null)
    );
    let page = format!("{PRODUCERS}?page=%40");
    let page = shop.refused(Method::GET, &page, Value::Null).await;
    assert_eq!(page.1, "invalid_page");
}

#[tokio::test]
async fn a_mark_that_cannot_be_is_refused_with_its_field() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    let good = json!({
        "name": "p", "incarnation": 1, "opening": "00c0ffee12345678", "lane": 0, "number": 1,
    });
    for (field, value, status) in [
        ("name", json!("a\nb"), 200),
        ("name", json!(""), 200),
        ("opening", json!("1"), 200),
        ("opening", json!("+0c0ffee12345678"), 200),
        ("opening", json!("00c0ffee1234567g"), 200),
        ("lane", json!(16), 400),
        ("lane", json!(-1), 400),
        ("number", json!(0), 400),
        ("incarnation", json!("1"), 400),
        ("more", json!(1), 400),
    ] {
        let mut mark = good.clone();
        mark[field] = value.clone();
        let body = json!({"messages": [{"body": "x", "producer": mark}]});
        let answer = shop.ask(Method::POST, "/queues/q/messages", body).await;
        assert_eq!(answer.status, status, "{field} {value}: {answer:?}");
        let problem = match status {
            200 => &answer.body["results"][0]["problem"],
            _ => &answer.body,
        };
        assert_eq!(problem["code"], "invalid_value", "{field} {value}");
        let named = format!("messages[0].producer.{field}");
        assert_eq!(problem["field"], named, "{field} {value}");
    }
    let long = format!("{PRODUCERS}/{}/open", "p".repeat(129));
    let long = shop.refused(Method::POST, &long, Value::Null).await;
    assert_eq!((long.0, &*long.2), (400, "producer"));
}

/// What was settled with a record that was accepted is settled.
#[tokio::test]
async fn a_transaction_with_a_record_that_was_sent_is_refused_as_a_whole() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    let incarnation = open(&shop, "p").await;
    let transaction = json!({"settles": [], "sends": [{"queue": "q", "message": {
        "body": "x", "producer": {
            "name": "p", "incarnation": incarnation, "opening": "00c0ffee12345678",
            "lane": 0, "number": 1,
        },
    }}]});
    let done = shop.post("/transactions", transaction.clone()).await;
    assert_eq!(done["sent"][0]["sequence"], 1);
    let again = shop
        .refused(Method::POST, "/transactions", transaction)
        .await;
    assert_eq!(
        (again.0, &*again.1, &*again.2),
        (409, "sent_before", "sends[0]")
    );
}

//! A sequence of requests whose answers are the examples of the description.

use hyper::Method;
use serde_json::{Value, json};

use super::{
    super::route::{self, Operation},
    Shop, describe, schema,
};

/// A request and its answer; texts that differ from run to run are replaced.
pub(super) struct Example {
    pub(super) name: &'static str,
    pub(super) operation: Operation,
    pub(super) status: u16,
    pub(super) body: Value,
    pub(super) answer: Value,
}

struct Recorder {
    shop: Shop,
    examples: Vec<Example>,
    /// The replacements of ids and receipts.
    replaced: Vec<(String, String)>,
}

impl Recorder {
    async fn record(
        &mut self,
        name: &'static str,
        method: Method,
        target: &str,
        body: Value,
    ) -> Value {
        let path = format!("/api/v1{}", target.split('?').next().unwrap());
        let operation = route::find(&method, &path).unwrap().operation;
        let answer = self.shop.ask(method, target, body.clone()).await;
        let original = answer.body.clone();
        let mut shown = answer.body;
        self.replace_new(&mut shown);
        self.examples.push(Example {
            name,
            operation,
            status: answer.status,
            body: self.with_replaced(&body),
            answer: self.with_replaced(&shown),
        });
        original
    }

    async fn get(&mut self, name: &'static str, target: &str) -> Value {
        self.record(name, Method::GET, target, Value::Null).await
    }

    async fn post(&mut self, name: &'static str, target: &str, body: Value) -> Value {
        self.record(name, Method::POST, target, body).await
    }

    /// Records new ids and receipts, and replaces values that depend on the machine.
    fn replace_new(&mut self, value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(|value| self.replace_new(value)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (&**name, &*value) {
                        ("id" | "message_id" | "receipt", Value::String(text)) => {
                            self.note(name, text);
                        }
                        ("used_bytes", Value::Number(_)) => *value = json!(67_108_864),
                        ("records" | "syncs", Value::Number(_)) => *value = json!(17),
                        ("record_bytes", Value::Number(_)) => *value = json!(1820),
                        ("free_bytes", Value::Number(_)) => *value = json!(137_438_953_472_u64),
                        ("detail", Value::String(_)) => {}
                        _ => self.replace_new(value),
                    }
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, name: &str, text: &str) {
        if self.replaced.iter().any(|(known, _)| known == text) {
            return;
        }
        let number = self.replaced.len() + 1;
        let shown = if name != "receipt" {
            format!("00000004-0000-8000-8000-{number:012}")
        } else {
            format!("AQAAAAE{number:040}_4bN1dB0mYk3nq")
        };
        self.replaced.push((text.to_owned(), shown));
    }

    fn with_replaced(&self, value: &Value) -> Value {
        let mut text = value.to_string();
        for (known, shown) in &self.replaced {
            text = text.replace(known, shown);
        }
        serde_json::from_str(&text).unwrap()
    }
}

/// Sends every operation at least once.
pub(super) async fn record() -> Vec<Example> {
    let mut to = Recorder {
        shop: Shop::open(),
        examples: Vec::new(),
        replaced: Vec::new(),
    };
    to.get("server", "/server").await;
    let dead = json!({"name": "orders-dead.fifo"});
    to.post("dead letter queue", "/queues", dead.clone()).await;
    to.post("again", "/queues", dead).await;
    let orders = json!({
        "name": "orders.fifo",
        "settings": {
            "lease_ms": 60_000,
            "dead_letter": "orders-dead.fifo",
            "attempts_max": 3,
        },
        "tags": {"team": "shop"},
    });
    to.post("keyed queue", "/queues", orders).await;
    let mail = json!({"name": "mail", "settings": {"level": "process"}});
    to.post("queue", "/queues", mail).await;
    let other = json!({"name": "mail", "settings": {"delay_ms": 86_400_000_u64}});
    to.post("exists otherwise", "/queues", other).await;
    let bad = json!({"name": "clicks", "settings": {"lease_ms": 90_000_000_u64}});
    to.post("a value out of range", "/queues", bad).await;
    to.get("queues", "/queues?prefix=orders&limit=10").await;
    let change = json!({
        "settings": {"retention_ms": 1_209_600_000_u64, "quota_messages": 1_000_000},
        "tags": {"team": null, "owner": "eve"},
    });
    let target = "/queues/orders.fifo";
    to.record("change", Method::PATCH, target, change).await;
    to.get("queue", "/queues/orders.fifo").await;
    to.get("no such queue", "/queues/nothing").await;

    let messages = json!({"messages": [
        {"body": "{\"order\":17}", "key": "user-42", "unique_id": "order-17",
         "headers": {"source": {"value": "web"}, "weight": {"type": "Number", "value": "2.5"}}},
        {"body": "{\"order\":18}", "key": "user-42"},
        {"body": "iVBORw0KGgo=", "body_encoding": "base64", "key": "user-7",
         "content_type": "image/png"},
        {"body": "no key"},
    ]});
    to.post("messages", "/queues/orders.fifo/messages", messages)
        .await;
    let target = "/queues/orders.fifo/producers";
    let open = format!("{target}/billing/open");
    let opened = to.post("open", &open, Value::Null).await;
    let incarnation = opened["incarnation"].clone();
    let record = |number: u64, incarnation: &Value| {
        json!({"body": "{\"order\":19}", "key": "user-9", "producer": {
            "name": "billing", "incarnation": incarnation, "opening": "00c0ffee12345678",
            "lane": 9, "number": number,
        }})
    };
    let messages = json!({"messages": [
        record(1, &incarnation), record(1, &incarnation), record(2, &json!(1)),
    ]});
    let name = "records of a producer";
    to.post(name, "/queues/orders.fifo/messages", messages)
        .await;
    to.get("producers", target).await;
    let target = format!("{target}/billing");
    to.record("forget", Method::DELETE, &target, Value::Null)
        .await;
    to.record("unknown", Method::DELETE, &target, Value::Null)
        .await;
    let later = json!({"messages": [{"body": "tomorrow", "delay_ms": 86_400_000}]});
    let sent = to.post("a day later", "/queues/mail/messages", later).await;
    let id = sent["results"][0]["id"].as_str().unwrap().to_owned();
    let target = format!("/queues/mail/messages/{id}");
    let at = json!({"due_at": "2026-11-22T09:00:00Z"});
    to.post("at nine", &format!("{target}/reschedule"), at)
        .await;
    to.record("cancel", Method::DELETE, &target, Value::Null)
        .await;
    to.record("gone", Method::DELETE, &target, Value::Null)
        .await;

    let receive = json!({"max": 10, "wait_ms": 5000, "holder": "worker-3"});
    let target = "/queues/orders.fifo/receive";
    let received = to.post("receive", target, receive).await;
    let receipt = |at: usize| received["messages"][at]["receipt"].clone();
    to.shop.pass(2_500);
    to.get("in flight", "/queues/orders.fifo/keys/user-42")
        .await;
    to.get(
        "messages",
        "/queues/orders.fifo/messages?key=user-42&limit=10",
    )
    .await;
    let id = received["messages"][0]["id"].as_str().unwrap();
    to.get("message", &format!("/queues/orders.fifo/messages/{id}"))
        .await;
    let settles = json!({"settles": [
        {"receipt": receipt(0), "action": "extend", "lease_ms": 120_000},
        {"receipt": receipt(2), "action": "ack"},
        {"receipt": "made up", "action": "ack"},
    ]});
    to.post("settle", "/queues/orders.fifo/settle", settles)
        .await;
    let transaction = json!({
        "settles": [{"receipt": receipt(0), "action": "ack"}],
        "sends": [{"queue": "mail", "message": {"body": "order 17 is on its way"}}],
    });
    to.post("consume and produce", "/transactions", transaction.clone())
        .await;
    to.post("again", "/transactions", transaction).await;
    let reject = json!({"settles": [
        {"receipt": receipt(1), "action": "reject", "reason": "no such product"},
    ]});
    to.post("reject", "/queues/orders.fifo/settle", reject)
        .await;
    let target = "/queues/orders.fifo/keys/user-42/state";
    let state = json!({"value": "{\"orders\":1}"});
    to.record("first", Method::PUT, target, state.clone()).await;
    to.record("another version", Method::PUT, target, state)
        .await;
    to.get("state", target).await;
    let list = "/queues/orders.fifo/key-states?prefix=user-&limit=10";
    to.get("states", list).await;
    let more = json!({"messages": [{"body": "{\"order\":19}", "key": "user-42"}]});
    to.post("with a state", "/queues/orders.fifo/messages", more)
        .await;
    let received = to.post(
        "with the state of its key",
        "/queues/orders.fifo/receive",
        json!({}),
    );
    let received = received.await;
    let settles = json!({"settles": [{
        "receipt": received["messages"][0]["receipt"], "action": "ack",
        "state": {"value": "{\"orders\":2}", "replaces": 1},
    }]});
    to.post("with a new state", "/queues/orders.fifo/settle", settles)
        .await;
    let target = format!("{target}?replaces=2");
    to.record("drop", Method::DELETE, &target, Value::Null)
        .await;
    to.get("sources", "/queues/orders-dead.fifo/dead-letter-sources")
        .await;
    to.get(
        "dead letters",
        "/queues/orders-dead.fifo/dead-letters?source=orders.fifo",
    )
    .await;
    let target = "/queues/orders-dead.fifo/receive";
    let received = to.post("a dead letter", target, json!({})).await;
    let back = json!({"settles": [
        {"receipt": received["messages"][0]["receipt"], "action": "nack", "reason": "no such address"},
    ]});
    to.post("nack", "/queues/orders-dead.fifo/settle", back)
        .await;
    let target = "/queues/orders-dead.fifo/dead-letters/redrive";
    to.post("back to where they came from", target, json!({}))
        .await;

    to.post("park", "/queues/orders.fifo/keys/user-7/park", Value::Null)
        .await;
    let more = json!({"messages": [{"body": "waits", "key": "user-7"}]});
    to.post("one message", "/queues/orders.fifo/messages", more)
        .await;
    let target = "/queues/orders.fifo/keys/user-7";
    to.get("parked", target).await;
    to.get("parked keys", "/queues/orders.fifo/keys?parked=true")
        .await;
    to.post("resume", &format!("{target}/resume"), Value::Null)
        .await;
    let hold = json!({"time_ms": 30_000});
    to.post("hold", &format!("{target}/hold"), hold.clone())
        .await;
    to.get("held", target).await;
    to.post("hold", "/queues/orders.fifo/hold", hold).await;
    let none = json!({"time_ms": 0});
    to.post("let go", "/queues/orders.fifo/hold", none).await;
    to.post("drop", &format!("{target}/drop"), Value::Null)
        .await;
    to.get("a group", "/queues/mail/keys/user-7").await;
    to.get("messages without a group", "/queues/mail/no-key")
        .await;
    let hold = json!({"time_ms": 1});
    to.post("hold", "/queues/mail/no-key/hold", hold).await;
    to.get("not keyed", "/queues/mail/keys").await;
    to.get("sending", "/queues/orders.fifo/sending").await;

    let leader = "/records/reports%2Fleader";
    let lease = json!({"holder": "host-1", "lease_ms": 10_000});
    let leased = to.post("lease", &format!("{leader}/lease"), lease).await;
    let epoch = leased["lease"]["epoch"].clone();
    let other = json!({"holder": "host-2", "lease_ms": 10_000});
    to.post("held", &format!("{leader}/lease"), other).await;
    let put = json!({"value": "page 7", "replaces": leased["version"], "epoch": epoch});
    let written = to.record("write", Method::PUT, leader, put.clone()).await;
    to.record("another version", Method::PUT, leader, put).await;
    to.get("record", leader).await;
    to.get("records", "/records?prefix=reports%2F").await;
    let extend = json!({"epoch": epoch, "lease_ms": 60_000});
    to.post("extend", &format!("{leader}/extend"), extend).await;
    let release = json!({"epoch": epoch});
    let target = format!("{leader}/release");
    to.post("release", &target, release.clone()).await;
    to.post("again", &target, release).await;
    let target = format!("{leader}?replaces={}", written["version"]);
    to.record("delete", Method::DELETE, &target, Value::Null)
        .await;
    to.get("no such record", leader).await;

    ledgers(&mut to).await;
    exchanges(&mut to).await;
    schedules(&mut to).await;

    to.post("pause", "/queues/mail/pause", Value::Null).await;
    to.post("resume", "/queues/mail/resume", Value::Null).await;
    to.post("purge", "/queues/mail/purge", Value::Null).await;
    to.record("delete", Method::DELETE, "/queues/mail", Value::Null)
        .await;
    to.examples
}

async fn exchanges(to: &mut Recorder) {
    let rest = json!({"name": "rest", "kind": "fanout", "unroutable": "drop"});
    to.post("fanout", "/exchanges", rest).await;
    let events = json!({"name": "events", "kind": "topic"});
    to.post("topic", "/exchanges", events.clone()).await;
    to.post("again", "/exchanges", events).await;
    let other = json!({"name": "events", "kind": "direct"});
    to.post("exists otherwise", "/exchanges", other).await;
    let target = "/exchanges/events";
    let bind = json!({
        "to": {"queue": "orders.fifo"},
        "topic": "orders.*.eu",
        "filter": {"store": ["web", {"prefix": "shop-"}]},
        "key_from": {"header": "customer"},
    });
    to.post("to a queue", "/exchanges/events/bind", bind.clone())
        .await;
    let all = json!({"to": {"queue": "mail"}, "topic": "#", "skip_when_full": true});
    to.post("all topics", "/exchanges/events/bind", all.clone())
        .await;
    let back = json!({"to": {"exchange": "events"}});
    to.post("to an exchange", "/exchanges/rest/bind", back)
        .await;
    let change = json!({"unroutable": {"alternate": "rest"}});
    to.record("a cycle", Method::PATCH, target, change).await;
    let drop = json!({"unroutable": "drop"});
    to.record("change", Method::PATCH, target, drop).await;
    let key = json!({"to": {"queue": "mail"}, "routing_key": "orders"});
    to.post("of another kind", "/exchanges/events/bind", key)
        .await;
    let message = json!({
        "body": "{\"order\":20}",
        "headers": {"store": {"value": "web"}, "customer": {"value": "user-42"}},
    });
    let messages = json!({"messages": [
        {"routing_key": "orders.new.eu", "message": message},
        {"routing_key": "orders.new.eu", "message": {"body": "x", "producer": {
            "name": "billing", "incarnation": 1, "opening": "00c0ffee12345678", "lane": 1, "number": 1,
        }}},
    ]});
    to.post("messages", "/exchanges/events/messages", messages)
        .await;
    let message = json!({"routing_key": "orders.new.eu", "headers": {"store": {"value": "phone"}}});
    to.post("explain", "/exchanges/events/explain", message)
        .await;
    to.get("bindings", "/exchanges/events/bindings?limit=10")
        .await;
    to.get("exchange", target).await;
    to.get("exchanges", "/exchanges?prefix=ev&limit=10").await;
    to.post(
        "unbind",
        "/exchanges/events/unbind",
        json!({"to": all["to"], "topic": "#"}),
    )
    .await;
    to.record("used", Method::DELETE, target, Value::Null).await;
    let force = "/exchanges/events?force=true";
    to.record("delete", Method::DELETE, force, Value::Null)
        .await;
    to.get("no such exchange", target).await;
}

async fn schedules(to: &mut Recorder) {
    let report = json!({
        "cron": "0 9 * * mon-fri",
        "zone": "Europe/Berlin",
        "to": {"queue": "mail"},
        "message": {"body": "report", "headers": {"team": {"value": "ads"}}},
        "catch_up": "once",
        "overlap": "skip",
    });
    let target = "/schedules/report";
    let put = |body| (Method::PUT, target, body);
    for (name, (method, target, body)) in [
        ("cron", put(report.clone())),
        ("again", put(report.clone())),
        ("of another generation", {
            let mut stale = report.clone();
            stale["generation"] = json!(77);
            put(stale)
        }),
        ("no such queue", {
            let mut other = report.clone();
            other["to"] = json!({"queue": "none"});
            put(other)
        }),
        ("no zone", {
            let mut other = report.clone();
            other["zone"] = json!("Europe/Atlantis");
            put(other)
        }),
    ] {
        to.record(name, method, target, body).await;
    }
    let every = json!({
        "every_ms": 60_000,
        "to": {"queue": "orders.fifo"},
        "message": {"body": "tick", "key": "clock"},
    });
    to.record("every minute", Method::PUT, "/schedules/tick", every)
        .await;
    to.get("schedule", target).await;
    to.get("schedules", "/schedules?prefix=re&limit=10").await;
    to.post("run", "/schedules/report/run", json!({})).await;
    to.post("unsettled", "/schedules/report/run", json!({}))
        .await;
    to.post("pause", "/schedules/report/pause", json!({})).await;
    to.post("resume", "/schedules/report/resume", json!({}))
        .await;
    let later = json!({"at": "2027-01-01T00:00:00Z"});
    to.post("move", "/schedules/report/move", later).await;
    to.record("delete", Method::DELETE, target, Value::Null)
        .await;
    to.get("no such schedule", target).await;
}

async fn ledgers(to: &mut Recorder) {
    let options = json!({"name": "trades", "hashed": true});
    to.post("ledger", "/ledgers", options.clone()).await;
    to.post("again", "/ledgers", options).await;
    let other = json!({"name": "trades"});
    to.post("exists otherwise", "/ledgers", other).await;
    let target = "/ledgers/trades/events";
    let events = json!({"epoch": 7, "head": 0, "events": [
        {"payload": "{\"order\":17}", "unique_id": "order-17"},
        {"payload": "{\"order\":17}", "unique_id": "order-17"},
        {"payload": "iVBORw0KGgo=", "payload_encoding": "base64", "input": "orders.fifo/18"},
    ]});
    to.post("events", target, events.clone()).await;
    to.post("another head", target, events).await;
    let stale = json!({"epoch": 6, "events": []});
    to.post("deposed", target, stale).await;
    // The hold of the queue is over.
    to.shop.pass(10);
    let sent = json!({"messages": [{"body": "{\"order\":19}"}]});
    to.post("for the ledger", "/queues/mail/messages", sent)
        .await;
    let received = to.post("for the ledger", "/queues/mail/receive", json!({}));
    let received = received.await;
    let settle = json!({"receipt": received["messages"][0]["receipt"], "action": "ack"});
    let events = json!({
        "epoch": 7,
        "events": [{"payload": "{\"order\":19}"}],
        "settled": ["orders.fifo/18"],
        "settles": [settle],
    });
    to.post("with the message that it came with", target, events.clone())
        .await;
    to.post("again", target, events).await;
    to.get(
        "events",
        "/ledgers/trades/events?after=1&limit=1000&wait_ms=5000",
    )
    .await;
    to.get("beyond the head", "/ledgers/trades/events?after=9")
        .await;
    to.get("found", "/ledgers/trades/unique-ids/order-17").await;
    to.get("not found", "/ledgers/trades/unique-ids/order-18")
        .await;
    let reader = "/ledgers/trades/readers/engine%201";
    let place = json!({"sequence_id": 2});
    to.record("place", Method::PUT, reader, place).await;
    to.get("readers", "/ledgers/trades/readers").await;
    to.record("forget", Method::DELETE, reader, Value::Null)
        .await;
    let first = json!({"first_id": 2});
    to.post("trim", "/ledgers/trades/trim", first).await;
    to.get("trimmed", "/ledgers/trades/events").await;
    to.post("seal", "/ledgers/trades/seal", json!({"epoch": 8}))
        .await;
    let events = json!({"epoch": 8, "events": [{"payload": "late"}]});
    to.post("sealed", target, events).await;
    to.get("ledger", "/ledgers/trades").await;
    to.get("ledgers", "/ledgers?prefix=tra&limit=10").await;
    to.record("delete", Method::DELETE, "/ledgers/trades", Value::Null)
        .await;
    to.get("no such ledger", "/ledgers/trades").await;
}

#[tokio::test]
async fn every_operation_has_an_example_that_the_description_allows() {
    let examples = record().await;
    let document = describe::document(&examples);
    for &operation in Operation::ALL {
        let good = |example: &&Example| example.operation == operation && example.status < 300;
        assert!(
            examples.iter().any(|example| good(&example)),
            "{operation:?}"
        );
    }
    for example in &examples {
        let Example {
            name,
            operation,
            status,
            ..
        } = example;
        let path = format!("/api/v1{}", operation.path());
        let method = operation.method().as_str().to_ascii_lowercase();
        let described = &document["paths"][path][method];
        let check = |schema: &Value, value: &Value| {
            assert!(
                !schema.is_null(),
                "{operation:?} {name}: {status} is not described"
            );
            let problems = schema::problems(&document, schema, value);
            assert!(problems.is_empty(), "{operation:?} {name}: {problems:#?}");
        };
        let response = match &described["responses"][status.to_string()] {
            Value::Null => &document["components"]["responses"]["Problem"],
            response => response,
        };
        let kind = if *status < 400 {
            "application/json"
        } else {
            "application/problem+json"
        };
        check(&response["content"][kind]["schema"], &example.answer);
        if !example.body.is_null() {
            check(
                &described["requestBody"]["content"]["application/json"]["schema"],
                &example.body,
            );
        }
    }
}

/// Every object of a request refuses unknown fields, so a client hears of a misspelt name.
#[tokio::test]
async fn requests_have_no_fields_that_are_not_described() {
    let document = describe::document(&[]);
    let mut seen = 0;
    let mut open = Vec::new();
    let mut waiting = Vec::new();
    for path in document["paths"].as_object().unwrap().values() {
        for operation in path.as_object().unwrap().values() {
            waiting.push(&operation["requestBody"]["content"]["application/json"]["schema"]);
        }
    }
    while let Some(schema) = waiting.pop() {
        let schema = schema::resolve(&document, schema);
        waiting.extend(schema["items"].as_object().map(|_| &schema["items"]));
        for alternatives in ["anyOf", "oneOf"] {
            waiting.extend(schema[alternatives].as_array().into_iter().flatten());
        }
        if let Some(properties) = schema["properties"].as_object() {
            seen += 1;
            waiting.extend(properties.values());
            if schema["additionalProperties"] != false {
                open.push(schema);
            }
        }
    }
    assert!(seen > 10, "{seen} objects");
    assert!(open.is_empty(), "{open:#?}");
}

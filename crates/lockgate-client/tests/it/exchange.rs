//! An exchange of a server as a sink.

use std::time::Duration;

use lockgate_client::{Client, Method, RemoteExchange, RemoteQueue};
use lockgate_conformance::transport::{self, Fixture, Through};
use lockgate_core::{
    ExchangeName, Fate, Header, Message, RouteBy, RoutingKey, Sink as _, TransportError, UniqueId,
};
use serde_json::{Value, json};

use crate::{
    canned::{Then, answer, serve},
    support::{TestServer, client_of, create, take, with_access_key},
};

struct Remote {
    server: TestServer,
    client: Client,
    made: usize,
}

/// An exchange that leads to the queue by that binding.
async fn exchange(
    client: &Client,
    kind: &str,
    queue: &RemoteQueue,
    mut bind: Value,
) -> ExchangeName {
    let name = queue.name().as_str().replace(".fifo", "-e");
    let made = json!({"name": name, "kind": kind});
    post(client, "/exchanges", &made).await;
    bind["to"] = json!({"queue": queue.name().as_str()});
    post(client, &format!("/exchanges/{name}/bind"), &bind).await;
    ExchangeName::new(&name).unwrap()
}

async fn post(client: &Client, target: &str, body: &Value) -> Value {
    client.call(Method::POST, target, Some(body)).await.unwrap()
}

async fn fanout(client: &Client, queue: &RemoteQueue) -> RemoteExchange {
    let name = exchange(client, "fanout", queue, json!({})).await;
    let by = RouteBy::Fixed(RoutingKey::default());
    client.exchange_sink(&name, by).await.unwrap()
}

impl Fixture for Remote {
    type Queue = Through<RemoteExchange, RemoteQueue>;

    async fn queue(&mut self, keyed: bool) -> Self::Queue {
        self.made += 1;
        let suffix = if keyed { ".fifo" } else { "" };
        let queue = create(&self.client, &format!("queue-{}{suffix}", self.made)).await;
        let sink = fanout(&self.client, &queue).await;
        Through { sink, queue }
    }

    async fn delete(&mut self, through: &Self::Queue) -> bool {
        let Through { sink, queue } = through;
        for target in [
            format!("/exchanges/{}", sink.name()),
            format!("/queues/{}", queue.name()),
        ] {
            let deleted = (self.client).call::<Value>(Method::DELETE, &target, None::<&()>);
            deleted.await.unwrap();
        }
        true
    }

    fn pass(&mut self, span: Duration) -> bool {
        let span = span.as_millis().try_into().unwrap();
        self.server.clock.advance(span);
        self.server.engine.clock_changed();
        true
    }
}

#[tokio::test]
async fn a_remote_exchange_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), with_access_key).await;
    let client = server.signing_client().await;
    let mut remote = Remote {
        server,
        client,
        made: 0,
    };
    let not_run = transport::run(&mut remote).await;
    // It takes no records of producers.
    assert_eq!(
        not_run,
        [
            "a_record_of_a_producer_is_accepted_once",
            "two_copies_of_a_spool_lose_nothing_and_double_nothing"
        ]
    );
    remote.server.stop().await;
}

fn routed(body: &str, routing_key: &str) -> Message {
    let mut message = Message::new(body.to_owned());
    message.headers.push(Header {
        name: "to".into(),
        kind: "String".into(),
        value: routing_key.to_owned().into(),
    });
    message
}

fn fates<T>(results: Vec<Result<T, TransportError>>) -> Vec<Option<Fate>> {
    let fate = |result: Result<T, TransportError>| result.err().map(|error| error.fate);
    results.into_iter().map(fate).collect()
}

#[tokio::test]
async fn a_header_says_where_a_message_goes_also_in_order() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = create(&client, "q").await;
    let post_all = json!({"name": "e", "kind": "topic"});
    post(&client, "/exchanges", &post_all).await;
    let bind = json!({"to": {"queue": "q"}, "topic": "orders.*"});
    post(&client, "/exchanges/e/bind", &bind).await;
    let name = ExchangeName::new("e").unwrap();
    let sink = client.exchange_sink(&name, RouteBy::header("to")).await;
    let sink = sink.unwrap();
    let no_header = Message::new("no header");
    assert_eq!(sink.can_carry(&no_header).unwrap_err().fate, Fate::Refused);
    let messages = vec![
        routed("1", "orders.eu"),
        no_header,
        routed("none", "users.eu"),
        routed("2", "orders.us"),
    ];
    let refused = Some(Fate::Refused);
    let sent = fates(sink.send_batch(messages.clone()).await);
    assert_eq!(sent, [None, refused, refused, None]);
    // Up to the first that fails, and none behind it.
    let two = [
        messages[0].clone(),
        messages[2].clone(),
        messages[3].clone(),
    ];
    let sent = fates(sink.send_in_order(two.to_vec()).await);
    assert_eq!(sent, [None, refused]);
    let unique = |id: &str| routed(id, "orders.eu").with_unique_id(UniqueId::new(id).unwrap());
    let sent = sink.send_in_order(vec![unique("a"), unique("b"), unique("a")]);
    let sent: Vec<_> = sent.await.into_iter().map(Result::unwrap).collect();
    assert_eq!(sent[0].id, sent[2].id);
    let duplicates: Vec<_> = sent.iter().map(|it| it.duplicate).collect();
    assert_eq!(duplicates, [false, false, true]);
    let received = take(&queue, 9, Duration::ZERO).await;
    let bodies: Vec<_> = received.iter().map(|it| it.message.body.clone()).collect();
    assert_eq!(bodies, ["1", "2", "1", "a", "b"]);
    server.stop().await;
}

/// An answer that is no server's leaves it unknown what happened.
#[tokio::test]
async fn the_fate_of_every_answer_is_exact() {
    let per_entry = |status: u16, code: &str| {
        let problem = json!({"status": status, "code": code, "detail": "so it is"});
        let refused = json!({"outcome": "refused", "problem": problem});
        answer(200, &json!({ "results": [refused] }).to_string())
    };
    let published = |id: &str| {
        let queues = [json!({"queue": "q", "id": id, "sequence": 1, "duplicate": false})];
        json!({"outcome": "published", "copies": 1, "duplicates": 0, "queues": queues})
    };
    let no_id = json!({ "results": [published("no id")] }).to_string();
    for (then, expected) in [
        (per_entry(404, "exchange_not_found"), Fate::Closed),
        (per_entry(409, "unroutable"), Fate::Refused),
        (per_entry(429, "queue_full"), Fate::Retry),
        (answer(503, "<html>"), Fate::Unknown),
        (answer(200, r#"{"results": []}"#), Fate::Unknown),
        (answer(200, &no_id), Fate::Unknown),
    ] {
        let told = then.clone();
        let address = serve(move |line, _| {
            if line.starts_with("GET ") {
                let limits = json!({
                    "body_bytes_max": 20_000, "entries_max": 1000, "receive_max": 100,
                    "wait_ms_max": 20_000, "lease_ms_max": 43_200_000, "level_max": "disk",
                });
                return Then::Answer(answer(200, &json!({ "limits": limits }).to_string()));
            }
            Then::Answer(told.clone())
        });
        let by = RouteBy::Fixed(RoutingKey::default());
        let name = ExchangeName::new("e").unwrap();
        let sink = client_of(address).exchange_sink(&name, by).await.unwrap();
        let sent = sink.send_batch(vec![Message::new("a")]).await.remove(0);
        assert_eq!(sent.unwrap_err().fate, expected, "{then}");
    }
}

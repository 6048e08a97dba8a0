//! A queue that is opened when it is first reached.

use lockgate_client::{Client, LaterQueue, Method};
use lockgate_core::{
    Fate, Key, Message, Produced, ProducerMark, ProducerName, QueueName, Sink as _, UniqueId,
};
use serde_json::{Value, json};

use crate::support::{TestServer, client_of, create, with_access_key};

async fn fates(queue: &LaterQueue, bodies: &[&str]) -> Vec<Option<Fate>> {
    let message = |body: &&str| Message::new((*body).to_owned());
    let sent = queue.send_batch(bodies.iter().map(message).collect()).await;
    let fate = |result: Result<_, lockgate_core::TransportError>| result.err().map(|it| it.fate);
    sent.into_iter().map(fate).collect()
}

fn clicks(client: &Client) -> LaterQueue {
    client.queue_later(&QueueName::new("clicks").unwrap())
}

async fn delete(client: &Client, name: &str) {
    let target = format!("/queues/{name}");
    let deleted = client.call::<Value>(Method::DELETE, &target, None::<&()>);
    deleted.await.unwrap();
}

#[tokio::test]
async fn it_waits_for_its_server_and_for_its_queue_and_goes_on() {
    let (first, folder) = TestServer::plain().await;
    let address = first.address;
    let clock = first.clock.clone();
    first.stop().await;
    let client = client_of(address);
    let queue = clicks(&client);
    let name = ProducerName::new("p").unwrap();
    assert_eq!(fates(&queue, &["1", "2"]).await, [Some(Fate::Retry); 2]);
    let opened = queue.open_producer(name.clone()).await;
    assert_eq!(opened.unwrap_err().fate, Fate::Retry);

    let listen = |options: &mut lockgate_server::ServerOptions| options.listen = address;
    let server = TestServer::start_at(folder.path(), clock, listen).await;
    assert_eq!(fates(&queue, &["1"]).await, [Some(Fate::Closed)]);
    create(&client, "clicks").await;
    assert_eq!(fates(&queue, &["1"]).await, [None]);
    queue.open_producer(name).await.unwrap();

    delete(&client, "clicks").await;
    assert_eq!(fates(&queue, &["2"]).await, [Some(Fate::Closed)]);
    create(&client, "clicks").await;
    assert_eq!(fates(&queue, &["2"]).await, [None]);
    server.stop().await;
}

#[tokio::test]
async fn a_message_is_at_fault_only_by_what_the_queue_says_of_it() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = clicks(&client);
    assert!(queue.sink_capabilities().unique_ids);
    let settings = json!({"name": "clicks", "settings": {"message_bytes_max": 1024}});
    let made = client.call::<Value>(Method::POST, "/queues", Some(&settings));
    made.await.unwrap();
    let large = "x".repeat(2000);
    let sent = fates(&queue, &["1", &large, "2"]).await;
    assert_eq!(sent, [None, Some(Fate::Refused), None]);
    let keyed = vec![Message::new("1").with_key(Key::new("k").unwrap())];
    let sent = queue.send_batch(keyed).await;
    assert_eq!(sent[0].as_ref().unwrap_err().fate, Fate::Unsupported);
    server.stop().await;
}

#[tokio::test]
async fn a_queue_that_remembers_no_unique_ids_gets_records_without_them() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let settings = json!({"name": "clicks", "settings": {"dedup_window_ms": 0}});
    let made = client.call::<Value>(Method::POST, "/queues", Some(&settings));
    made.await.unwrap();
    let queue = clicks(&client);
    let name = ProducerName::new("p").unwrap();
    let incarnation = queue.open_producer(name.clone()).await.unwrap();
    let plain = Message::new("1").with_unique_id(UniqueId::new("u").unwrap());
    let record = plain.clone().with_producer(Produced {
        mark: ProducerMark::new(name, 1, 0, 1).unwrap(),
        incarnation,
        after: 0,
    });
    let sent = queue.send_batch(vec![plain, record]).await;
    assert_eq!(sent[0].as_ref().unwrap_err().fate, Fate::Unsupported);
    assert!(sent[1].is_ok(), "{:?}", sent[1]);
    server.stop().await;
}

#[tokio::test]
async fn batches_that_are_too_large_for_the_server_go_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), |options| {
        options.limits.body_bytes_max = 64 << 10;
    })
    .await;
    let client = server.client();
    create(&client, "clicks").await;
    let body = "x".repeat(20 << 10);
    let bodies: Vec<&str> = (0..20).map(|_| &*body).collect();
    assert_eq!(fates(&clicks(&client), &bodies).await, [None; 20]);
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_may_not_send_yet_is_no_fault_of_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), with_access_key).await;
    let queue = clicks(&server.client());
    assert_eq!(fates(&queue, &["1"]).await, [Some(Fate::Retry)]);
    // Opened while it was allowed, and forbidden since.
    let signing = server.signing_client().await;
    create(&signing, "clicks").await;
    let queue = clicks(&signing);
    assert_eq!(fates(&queue, &["1"]).await, [None]);
    server.access_keys().replace(&[]).unwrap();
    assert_eq!(fates(&queue, &["2"]).await, [Some(Fate::Retry)]);
    server.stop().await;
}

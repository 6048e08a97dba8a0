//! What is carried, what is refused, and what is rounded.

use std::time::{Duration, UNIX_EPOCH};

use aws_sdk_sqs::types::QueueAttributeName;
use lockgate_core::{
    Fate, Header, Key, Message, MessageName, ReceiveRequest, Settlement, Sink as _, Source as _,
    UniqueId, WallTime,
};
use lockgate_sqs::{BODY_ENCODING, CONTENT_TYPE};

use crate::support::{TestServer, create, request, send, take_one};

fn header(name: &str, kind: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        kind: kind.into(),
        value: value.to_owned().into(),
    }
}

#[tokio::test]
async fn what_sqs_cannot_carry_is_refused_and_the_rest_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q.fifo", &[]).await;
    let good = |body: &str| Message::new(body.to_owned()).with_key(Key::new("k").unwrap());
    let with = |headers: &[Header]| Message {
        headers: headers.to_vec(),
        ..good("x")
    };
    let numbered = |count: usize| -> Vec<Header> {
        let names = 0..count;
        names
            .map(|at| header(&format!("h{at}"), "String", "v"))
            .collect()
    };
    let unfit = [
        good("x").with_key(Key::new("two words").unwrap()),
        good("x").with_key(Key::new(&"k".repeat(129)).unwrap()),
        good("x").with_unique_id(UniqueId::new("süß").unwrap()),
        good("x").with_unique_id(UniqueId::new("lockgate-none-1").unwrap()),
        with(&[header("AWS.a", "String", "v")]),
        with(&[header("a", "Text", "v")]),
        with(&[header("a", "String", "")]),
        with(&[header("a", "String", "\u{1}")]),
        with(&[header("a", "Number", "seven")]),
        with(&[header("a", "Number.int", "1e127")]),
        with(&[header("a", "String", "1"), header("a", "String", "2")]),
        with(&[header(CONTENT_TYPE, "String", "v")]),
        with(&numbered(11)),
        Message {
            // Base64 needs an attribute too.
            body: vec![0].into(),
            ..with(&numbered(10))
        },
        Message {
            content_type: Some("".into()),
            ..good("x")
        },
    ];
    for message in unfit {
        let batch = vec![good("before"), message.clone(), good("after")];
        let [before, refused, after] = queue.send_batch(batch).await.try_into().unwrap();
        assert!(before.is_ok() && after.is_ok());
        assert_eq!(refused.unwrap_err().fate, Fate::Unsupported, "{message:?}");
    }
    send(&queue, with(&numbered(10))).await;
    server.stop().await;
}

#[tokio::test]
async fn parts_of_messages_come_as_they_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q", &[]).await;
    let xray = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1";
    let sent = Message {
        trace_context: Some(xray.into()),
        // Somebody else's mark, of a body that is not encoded.
        headers: vec![header("encoding", "String", "base64")],
        ..Message::new("no base64")
    };
    send(&queue, sent.clone()).await;
    let received = take_one(&queue).await;
    assert_eq!(received.message, sent);
    let Some(MessageName::Text(name)) = received.name else {
        panic!("{:?}", received.name);
    };
    assert!(name.contains(":q/"), "{name}");
    assert!(!received.receipt.handle().is_empty());

    // A mark that is not true is a header like another.
    let client = server.client();
    let mark = aws_sdk_sqs::types::MessageAttributeValue::builder();
    let mark = mark.data_type("String").string_value("base64");
    let call = client.send_message().queue_url(queue.url());
    let call = call.message_body("\u{1f600}");
    let call = call.message_attributes(BODY_ENCODING, mark.build().unwrap());
    call.send().await.unwrap();
    let received = take_one(&queue).await;
    assert_eq!(received.message.body, "\u{1f600}");
    let headers = received.message.headers;
    assert_eq!(headers, [header(BODY_ENCODING, "String", "base64")]);
    server.stop().await;
}

#[tokio::test]
async fn messages_without_unique_ids_are_no_duplicates_unless_the_queue_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let client = server.client();
    let same = || Message::new("same").with_key(Key::new("k").unwrap());
    let queue = create(&client, "plain.fifo", &[]).await;
    let sent = queue.send_batch(vec![same(), same()]).await;
    assert!(sent.iter().all(Result::is_ok));
    let received = queue.receive_batch(request(10)).await.unwrap();
    assert_eq!(received.len(), 2);
    for leased in received {
        assert_eq!(leased.message, same(), "the random id is taken off");
    }
    let by_body = (QueueAttributeName::ContentBasedDeduplication, "true");
    let queue = create(&client, "by-body.fifo", &[by_body]).await;
    queue.send_batch(vec![same(), same()]).await;
    let received = queue.receive_batch(request(10)).await.unwrap();
    assert_eq!(received.len(), 1);
    assert!(received[0].message.unique_id.is_some());
    server.stop().await;
}

#[tokio::test]
async fn times_are_rounded_up_to_whole_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let (server, clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q", &[]).await;
    let pass = |millis| {
        clock.advance(millis);
        server.engine.clock_changed();
    };
    // A bit less than 900 s ahead.
    let now = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let due = WallTime(now + 900_000 - 1);
    send(&queue, Message::new("due").with_due(due)).await;
    pass(800_000);
    assert!(queue.receive_batch(request(1)).await.unwrap().is_empty());
    pass(100_000);
    let leased = take_one(&queue).await;

    let nack = Settlement::Nack {
        delay: Duration::from_millis(1_001),
        reason: None,
    };
    let settled = queue.settle_batch(vec![(leased.receipt, nack)]).await;
    settled[0].as_ref().unwrap();
    pass(1_999);
    assert!(queue.receive_batch(request(1)).await.unwrap().is_empty());
    pass(1);
    let with_lease = ReceiveRequest {
        lease: Some(Duration::from_millis(1_001)),
        ..request(1)
    };
    let leased = queue.receive_batch(with_lease).await.unwrap().remove(0);
    assert!(leased.remaining <= Duration::from_secs(2));
    pass(1_999);
    assert!(queue.receive_batch(request(1)).await.unwrap().is_empty());
    pass(1);
    assert_eq!(take_one(&queue).await.attempt, 3);
    server.stop().await;
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q", &[]).await;
    let can = queue.source_capabilities();
    let more = Duration::from_millis(1);
    let too_long = ReceiveRequest {
        wait: can.wait_max + more,
        ..request(1)
    };
    let refused = queue.receive_batch(too_long).await.unwrap_err();
    assert_eq!(refused.fate, Fate::Refused);
    let too_long = ReceiveRequest {
        lease: Some(can.lease_max + more),
        ..request(1)
    };
    let refused = queue.receive_batch(too_long).await.unwrap_err();
    assert_eq!(refused.fate, Fate::Refused);
    send(&queue, Message::new("a")).await;
    let leased = take_one(&queue).await;
    let nack = Settlement::Nack {
        delay: can.nack_delay_max + more,
        reason: None,
    };
    let refused = queue.settle_batch(vec![(leased.receipt.clone(), nack)]);
    let refused = refused.await.remove(0).unwrap_err();
    assert_eq!(refused.fate, Fate::Refused);
    let refused = queue.extend_batch(vec![leased.receipt; 11], more).await;
    assert_eq!(refused.len(), 11);
    assert!(
        refused
            .into_iter()
            .all(|refused| refused.unwrap_err().fate == Fate::Refused)
    );
    server.stop().await;
}

//! What is large, and what JSON cannot say.

use std::time::Duration;

use lockgate_core::{
    Fate, Header, Key, Message, Settlement, Sink as _, Source as _, UniqueId, WallTime,
};

use crate::support::{TestServer, create, take};

#[tokio::test]
async fn every_batch_within_the_bounds_fits_the_servers_requests() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 48 << 10;
    let server = TestServer::start(folder.path(), |options| {
        options.limits.body_bytes_max = limit;
    })
    .await;
    let queue = create(&server.client(), "q.fifo").await;
    let can = queue.sink_capabilities();
    assert_eq!(can.batch_bytes_max, limit as u64);
    let largest = usize::try_from(can.message_bytes_max).unwrap();
    let names = |at: usize| Key::new(&format!("{at}{}", "\"".repeat(1000))).unwrap();
    let unique = |at: usize| UniqueId::new(&format!("{at}{}", "\\".repeat(1000))).unwrap();

    // Bodies that only base64 can say, and texts beside the body, of which each byte becomes two.
    let large = |at: usize| Message {
        content_type: Some("\"".repeat(1024).into()),
        trace_context: Some("\\".repeat(1024).into()),
        unique_id: Some(unique(at)),
        ..Message::new(vec![0xff; largest]).with_key(names(at))
    };
    let sent = queue.send_batch(vec![large(0), large(1)]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let received = take(&queue, 2, Duration::ZERO).await;
    assert!(
        received
            .iter()
            .all(|leased| leased.message.body == vec![0xff; largest])
    );

    // Many small ones: the texts beside their bodies are 40 times what a request takes.
    let small = |at: usize| Message {
        unique_id: Some(unique(10 + at)),
        ..Message::new(at.to_string()).with_key(names(10 + at))
    };
    let sent = queue
        .send_batch((0..can.batch_max).map(small).collect())
        .await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let mut receipts = Vec::new();
    while receipts.len() < can.batch_max {
        let received = take(&queue, 100, Duration::ZERO).await;
        assert!(!received.is_empty());
        receipts.extend(received.into_iter().map(|leased| leased.receipt));
    }
    // Receipts alone have more bytes than a request takes.
    let lease = Duration::from_secs(60);
    for extended in queue.extend_batch(receipts.clone(), lease).await {
        assert!(extended.unwrap() <= lease);
    }
    let settles = receipts
        .into_iter()
        .map(|receipt| (receipt, Settlement::Ack));
    let settled = queue.settle_batch(settles.collect()).await;
    assert_eq!(settled.len(), can.batch_max);
    assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_said_is_refused_and_what_is_beside_it_goes() {
    let (server, _folder) = TestServer::plain().await;
    let queue = create(&server.client(), "q").await;
    let header = |value: &'static str| Header {
        name: "same".into(),
        kind: "String".into(),
        value: value.into(),
    };
    let twice = Message {
        headers: vec![header("a"), header("b")],
        ..Message::new("two of one name")
    };
    let never = Message::new("beyond the year 9999").with_due(WallTime(1 << 48));
    let many = Message {
        headers: (0..11)
            .map(|at| Header {
                name: format!("n{at}").into(),
                ..header("x")
            })
            .collect(),
        ..Message::new("more headers than are taken")
    };
    let odd = Message {
        headers: vec![Header {
            kind: "Odd".into(),
            ..header("x")
        }],
        ..Message::new("a type that SQS does not know")
    };
    let no_time = Message {
        time_to_live: Some(0),
        ..Message::new("gone before it comes")
    };
    let good = Message::new("good");
    let sent = queue
        .send_batch(vec![twice, never, many, odd, no_time, good])
        .await;
    let fates: Vec<Option<Fate>> = (sent.into_iter())
        .map(|sent| sent.err().map(|error| error.fate))
        .collect();
    let (unsupported, refused) = (Some(Fate::Unsupported), Some(Fate::Refused));
    assert_eq!(
        fates,
        [unsupported, unsupported, refused, refused, refused, None]
    );
    let received = take(&queue, 10, Duration::ZERO).await;
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].message.body, "good");

    // A delay of more than a year, beside an acknowledgement.
    queue.send_batch(vec![Message::new("second")]).await;
    let second = take(&queue, 1, Duration::ZERO).await;
    let delay = Duration::from_secs(400 * 24 * 3600);
    let reason = None;
    let nack = Settlement::Nack { delay, reason };
    let nack = (second[0].receipt.clone(), nack);
    let ack = (received[0].receipt.clone(), Settlement::Ack);
    let settled = queue.settle_batch(vec![nack, ack]).await;
    assert_eq!(settled[0].as_ref().unwrap_err().fate, Fate::Refused);
    assert!(settled[1].is_ok(), "{settled:?}");
    server.stop().await;
}

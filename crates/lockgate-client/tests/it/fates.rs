//! What became of what was asked.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lockgate_client::{Client, RemoteQueue};
use lockgate_core::{Fate, Message, QueueName, Settlement, Sink as _, Source as _};
use serde_json::json;

use crate::{
    canned::{Then, answer, serve},
    support::{TestServer, client_of, create, request, send, take},
};

/// A queue of a server that says `then` to every POST, and what a server would say to every GET.
async fn queue_where(then: impl FnMut(&str) -> Then + Send + 'static) -> RemoteQueue {
    let mut then = then;
    let address = serve(move |line, body| {
        if line.starts_with("GET /api/v1/server ") {
            let limits = json!({
                "body_bytes_max": 20_000, "entries_max": 1000, "receive_max": 100,
                "wait_ms_max": 20_000, "lease_ms_max": 43_200_000, "level_max": "disk",
            });
            return Then::Answer(answer(200, &json!({ "limits": limits }).to_string()));
        }
        if line.starts_with("GET ") {
            let settings = json!({"message_bytes_max": 1 << 20, "dedup_window_ms": 0});
            let queue = json!({"keyed": false, "settings": settings});
            return Then::Answer(answer(200, &queue.to_string()));
        }
        then(body)
    });
    let endpoint = format!("http://{address}").parse().unwrap();
    let client = Client::builder(endpoint).timeout(Duration::from_secs(3));
    let client = client.build().await.unwrap();
    client.queue(&QueueName::new("q").unwrap()).await.unwrap()
}

fn problem(status: u16, code: &str) -> String {
    let problem = json!({"status": status, "code": code, "detail": "so it is"});
    answer(status, &problem.to_string())
}

#[tokio::test]
async fn the_fate_of_every_answer_is_exact() {
    let gone = json!({"status": 404, "code": "queue_not_found", "detail": "x", "queue": "q"});
    let per_entry = |status: u16| {
        let problem = json!({"status": status, "code": "x", "detail": "so it is"});
        let refused = json!({"outcome": "refused", "problem": problem});
        Then::Answer(answer(200, &json!({ "results": [refused] }).to_string()))
    };
    let whole = |status, code| Then::Answer(problem(status, code));
    let raw = |bytes: &str| Then::AnswerAndClose(bytes.to_owned());
    for (then, expected) in [
        (whole(400, "invalid_value"), Fate::Refused),
        (whole(401, "unauthenticated"), Fate::Closed),
        (whole(403, "access_denied"), Fate::Closed),
        (whole(413, "body_too_large"), Fate::Refused),
        (whole(429, "queue_full"), Fate::Retry),
        (whole(503, "unavailable"), Fate::Retry),
        (whole(503, "disk_full"), Fate::Retry),
        (whole(500, "unknown_outcome"), Fate::Unknown),
        (Then::Answer(answer(404, &gone.to_string())), Fate::Closed),
        (per_entry(400), Fate::Refused),
        (per_entry(429), Fate::Retry),
        (per_entry(503), Fate::Retry),
        (per_entry(500), Fate::Unknown),
        // A proxy's, of which nobody knows what is behind it.
        (Then::Answer(answer(503, "<html>")), Fate::Unknown),
        (Then::Answer(answer(502, "<html>")), Fate::Unknown),
        (Then::Answer(answer(200, "{}")), Fate::Unknown),
        (
            Then::Answer(answer(200, r#"{"results": []}"#)),
            Fate::Unknown,
        ),
        (raw("no HTTP\r\n\r\n"), Fate::Unknown),
        (
            raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
            Fate::Unknown,
        ),
        (raw(""), Fate::Unknown),
        (Then::Silence, Fate::Unknown),
    ] {
        let told = then.clone();
        let queue = queue_where(move |_| told.clone()).await;
        let sent = queue.send_batch(vec![Message::new("a")]).await.remove(0);
        assert_eq!(sent.unwrap_err().fate, expected, "{then:?}");
    }
}

#[tokio::test]
async fn what_is_behind_a_lost_request_is_not_sent() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let queue = queue_where(move |_| {
        count.fetch_add(1, SeqCst);
        Then::AnswerAndClose(String::new())
    })
    .await;
    // Each takes more than half of the largest request, and of the batch together less than it may have.
    let keyed = |body: &str| Message {
        content_type: Some("x".repeat(12_000).into()),
        ..Message::new(body.to_owned())
    };
    let sent = queue.send_batch(["a", "b", "c"].map(keyed).into()).await;
    let fates: Vec<Fate> = sent
        .into_iter()
        .map(|sent| sent.unwrap_err().fate)
        .collect();
    assert_eq!(fates, [Fate::Unknown, Fate::Retry, Fate::Retry]);
    assert_eq!(asked.load(SeqCst), 1);
}

#[tokio::test]
async fn where_nobody_listens_nothing_is_done() {
    let (server, _folder) = TestServer::plain().await;
    let queue = create(&server.client(), "q").await;
    send(&queue, "a").await;
    let leased = take(&queue, 1, Duration::ZERO).await.remove(0);
    server.stop().await;
    let sent = queue.send_batch(vec![Message::new("b")]).await.remove(0);
    assert_eq!(sent.unwrap_err().fate, Fate::Retry);
    let received = queue.receive_batch(request(1, Duration::ZERO)).await;
    assert_eq!(received.unwrap_err().fate, Fate::Retry);
    let ack = vec![(leased.receipt.clone(), Settlement::Ack)];
    let settled = queue.settle_batch(ack).await.remove(0);
    assert_eq!(settled.unwrap_err().fate, Fate::Retry);
    let extended = queue.extend_batch(vec![leased.receipt], Duration::from_secs(1));
    assert_eq!(extended.await.remove(0).unwrap_err().fate, Fate::Retry);
    // Nor is a queue found where there is no server.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = client_of(listener.local_addr().unwrap());
    drop(listener);
    let error = nowhere.queue(queue.name()).await.unwrap_err();
    assert_eq!(error.fate(), Fate::Retry);
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    let (server, _folder) = TestServer::plain().await;
    let queue = create(&server.client(), "q").await;
    let can = queue.source_capabilities();
    let more = Duration::from_millis(1);
    let too_long = queue.receive_batch(request(1, can.wait_max + more)).await;
    assert_eq!(too_long.unwrap_err().fate, Fate::Refused);
    let mut lease = request(1, Duration::ZERO);
    lease.lease = Some(can.lease_max + more);
    let too_long = queue.receive_batch(lease).await;
    assert_eq!(too_long.unwrap_err().fate, Fate::Refused);
    send(&queue, "a").await;
    let leased = take(&queue, 1, Duration::ZERO).await.remove(0);
    let receipts = || vec![leased.receipt.clone()];
    for wrong in [Duration::ZERO, can.lease_max + more, Duration::MAX] {
        let extended = queue.extend_batch(receipts(), wrong).await.remove(0);
        assert_eq!(extended.unwrap_err().fate, Fate::Refused, "{wrong:?}");
    }
    for wrong in [
        Settlement::Nack {
            delay: Duration::MAX,
            reason: None,
        },
        Settlement::Nack {
            delay: can.nack_delay_max + more,
            reason: None,
        },
        Settlement::Nack {
            delay: Duration::ZERO,
            reason: Some("x".repeat(1025).into()),
        },
        Settlement::Reject {
            reason: Some("x".repeat(1025).into()),
        },
    ] {
        let settles = vec![(leased.receipt.clone(), wrong.clone())];
        let settled = queue.settle_batch(settles).await.remove(0);
        assert_eq!(settled.unwrap_err().fate, Fate::Refused, "{wrong:?}");
    }
    // What is promised is taken: a year, though no lease lasts so long.
    assert!(can.nack_delay_max > can.lease_max);
    let nack = Settlement::Nack {
        delay: can.nack_delay_max,
        reason: None,
    };
    let nack = vec![(leased.receipt, nack)];
    queue.settle_batch(nack).await.remove(0).unwrap();
    server.stop().await;
}

#[tokio::test]
async fn leases_of_a_queue_that_was_made_again_are_stale() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    let queue = create(&client, "q").await;
    send(&queue, "a").await;
    let leased = take(&queue, 1, Duration::ZERO).await.remove(0);
    let deleted =
        client.call::<serde_json::Value>(lockgate_client::Method::DELETE, "/queues/q", None::<&()>);
    deleted.await.unwrap();
    create(&client, "q").await;
    let ack = vec![(leased.receipt, Settlement::Ack)];
    let settled = queue.settle_batch(ack).await.remove(0);
    assert_eq!(settled.unwrap_err().fate, Fate::Stale);
    server.stop().await;
}

/// What a lease has left when its answer comes late: the way counts, the server's own wait does not.
#[tokio::test]
async fn a_lease_lasts_from_when_it_was_given() {
    const LATE: Duration = Duration::from_millis(300);
    let leased = |took: u64| {
        json!({"took_ms": took, "messages": [{
            "id": "01c00001-4000-8000-8000-040001345677", "receipt": "r", "attempt": 1, "sequence": 1,
            "remaining_ms": 30_000,
            "sent_at": "2026-01-01T00:00:00Z", "body": "a", "body_encoding": "text",
        }]})
    };
    let extended = json!({"results": [{"outcome": "done", "remaining_ms": 30_000}]});
    let mut answers = vec![extended, leased(300), leased(0)];
    let queue = queue_where(move |_| {
        // This is the network.
        std::thread::sleep(LATE);
        Then::Answer(answer(200, &answers.pop().unwrap().to_string()))
    })
    .await;
    let lease = Duration::from_secs(30);
    let mut receipts = Vec::new();
    for may_last in [lease - LATE, lease] {
        let received = queue.receive_batch(request(1, Duration::ZERO)).await;
        let leased = received.unwrap().remove(0);
        assert!(leased.remaining <= may_last, "{:?}", leased.remaining);
        receipts.push(leased.receipt);
    }
    receipts.truncate(1);
    let extended = queue.extend_batch(receipts, lease).await.remove(0);
    assert!(extended.unwrap() <= lease - LATE);
}

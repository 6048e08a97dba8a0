//! What became of what was asked.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockgate_core::{Fate, Key, Message, ReceiveRequest, Settlement, Sink as _, Source as _};
use lockgate_sqs::SqsQueue;

use crate::{
    canned::{Then, serve},
    support::{TestServer, client_of, create, request, send, take_one},
};

/// A FIFO queue of a server that says `then` of all but its attributes, and the bodies of what was asked.
async fn queue_where(
    mut then: impl FnMut(&str) -> Then + Send + 'static,
) -> (SqsQueue, Arc<Mutex<Vec<String>>>) {
    queue_of(move |action, _| then(action)).await
}

/// As [`queue_where`], where the server's answer depends on the body too.
async fn queue_of(
    mut then: impl FnMut(&str, &str) -> Then + Send + 'static,
) -> (SqsQueue, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let of_server = asked.clone();
    let address = serve(move |action, body| {
        if action == "GetQueueAttributes" {
            let attributes = r#"{"Attributes": {"VisibilityTimeout": "30", "FifoQueue": "true"}}"#;
            return Then::Answer(200, attributes.to_owned());
        }
        of_server.lock().unwrap().push(body.to_owned());
        then(action, body)
    });
    let url = format!("http://{address}/1/q.fifo");
    let queue = SqsQueue::open(client_of(address), url).await.unwrap();
    (queue, asked)
}

fn message(body: &str) -> Message {
    Message::new(body.to_owned()).with_key(Key::new("k").unwrap())
}

fn failed(code: &str, sender_fault: bool) -> String {
    let entry = format!(r#"{{"Id": "0", "Code": "{code}", "SenderFault": {sender_fault}}}"#);
    format!(r#"{{"Successful": [], "Failed": [{entry}]}}"#)
}

#[tokio::test]
async fn the_fate_of_every_answer_is_exact() {
    let error = |status, name: &str| {
        let body = format!(r#"{{"__type": "com.amazonaws.sqs#{name}", "message": "so it is"}}"#);
        Then::Answer(status, body)
    };
    let entry = |code: &str, is_senders| Then::Answer(200, failed(code, is_senders));
    for (then, expected) in [
        (error(400, "QueueDoesNotExist"), Fate::Closed),
        (error(400, "InvalidParameterValueException"), Fate::Refused),
        // It may be allowed later, or with other credentials.
        (error(403, "AccessDeniedException"), Fate::Retry),
        (error(400, "ExpiredTokenException"), Fate::Retry),
        (error(400, "RequestThrottled"), Fate::Retry),
        (error(400, "ThrottlingException"), Fate::Retry),
        (error(503, "ServiceUnavailableException"), Fate::Retry),
        (error(500, "InternalFailure"), Fate::Unknown),
        (entry("InvalidMessageContents", true), Fate::Refused),
        (entry("ServiceUnavailable", false), Fate::Retry),
        (entry("InternalError", false), Fate::Unknown),
        // A proxy's, of which nobody knows what is behind it.
        (Then::Answer(502, "<html>".to_owned()), Fate::Unknown),
        (Then::Answer(200, "{".to_owned()), Fate::Unknown),
        (
            Then::Answer(200, r#"{"Successful": [], "Failed": []}"#.to_owned()),
            Fate::Unknown,
        ),
        (Then::Close, Fate::Unknown),
    ] {
        let told = then.clone();
        let (queue, asked) = queue_where(move |_| told.clone()).await;
        let sent = queue.send_batch(vec![message("a")]).await.remove(0);
        assert_eq!(sent.unwrap_err().fate, expected, "{then:?}");
        // What a second try says would not be true of the first.
        assert_eq!(asked.lock().unwrap().len(), 1, "{then:?}");
    }
}

#[tokio::test]
async fn a_refusal_of_a_whole_call_is_only_that_of_the_bad_message() {
    let (queue, asked) = queue_of(|_, body| {
        let entries = body.matches("\"MessageBody\"").count();
        if body.contains(r#""MessageBody":"bad""#) {
            let error = r#"{"__type": "com.amazonaws.sqs#InvalidMessageContents", "message": "m"}"#;
            return Then::Answer(400, error.to_owned());
        }
        assert_eq!(entries, 1);
        let rest = body.split_once("\"Id\":\"").unwrap().1;
        let id = &rest[..rest.find('"').unwrap()];
        let sent = format!(r#"{{"Id": "{id}", "MessageId": "of-{id}", "MD5OfMessageBody": "x"}}"#);
        Then::Answer(200, format!(r#"{{"Successful": [{sent}], "Failed": []}}"#))
    })
    .await;
    let batch = vec![message("a"), message("bad"), message("c")];
    let [a, bad, c] = queue.send_batch(batch).await.try_into().unwrap();
    assert_eq!(a.unwrap().id.as_deref(), Some("of-0"));
    assert_eq!(bad.unwrap_err().fate, Fate::Refused);
    assert_eq!(c.unwrap().id.as_deref(), Some("of-2"));
    assert_eq!(
        asked.lock().unwrap().len(),
        4,
        "all at once, then one by one"
    );
}

/// A message of a receive's answer, without and with what SQS says of every message.
fn unreadable(id: &str) -> String {
    format!(r#"{{"MessageId": "{id}", "ReceiptHandle": "r-{id}", "Body": "{id}"}}"#)
}

fn readable(id: &str) -> String {
    let attributes = r#""Attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": "k"}"#;
    unreadable(id).replace('}', &format!(", {attributes}}}"))
}

#[tokio::test]
async fn unreadable_messages_are_passed_over_and_end_nothing() {
    let bad_count = readable("b").replace("\"1\"", "\"many\"");
    let bad_key = readable("c").replace("\"k\"", "\"\"");
    let all_bad = format!("{}, {bad_count}, {bad_key}", unreadable("a"));
    let mixed = format!("{all_bad}, {}", readable("d"));
    let mut answers = vec![readable("e"), all_bad, mixed];
    let (queue, _asked) = queue_where(move |_| {
        let messages = answers.pop().unwrap();
        Then::Answer(200, format!(r#"{{"Messages": [{messages}]}}"#))
    })
    .await;
    for expected in [&["d"][..], &[], &["e"]] {
        let received = queue.receive_batch(request(10)).await.unwrap();
        let bodies: Vec<_> = received
            .iter()
            .map(|leased| &leased.message.body[..])
            .collect();
        let expected: Vec<_> = expected.iter().map(|body| body.as_bytes()).collect();
        assert_eq!(bodies, expected);
    }
}

#[tokio::test]
async fn a_lease_that_has_ended_when_it_comes_is_not_handed_out() {
    let (queue, _asked) = queue_where(|_| {
        // The whole lease passes on the way.
        std::thread::sleep(Duration::from_secs(1));
        Then::Answer(200, format!(r#"{{"Messages": [{}]}}"#, readable("a")))
    })
    .await;
    let received = queue.receive_batch(ReceiveRequest {
        lease: Some(Duration::from_secs(1)),
        ..request(1)
    });
    assert!(received.await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_behind_a_lost_call_is_not_sent() {
    let (queue, asked) = queue_where(|_| Then::Close).await;
    // Encoded, two of them are more than a batch may have.
    let large = || Message {
        body: vec![0; 400_000].into(),
        ..message("")
    };
    let batch = vec![large(), message("too many"), large()];
    let sent = queue.send_batch(batch).await.into_iter();
    let fates: Vec<Fate> = sent.map(|sent| sent.unwrap_err().fate).collect();
    assert_eq!(fates, [Fate::Unknown, Fate::Unknown, Fate::Retry]);
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_lost_answer_of_a_receive_is_asked_for_again() {
    let mut answers = vec![Then::Answer(200, "{}".to_owned()), Then::Close];
    let (queue, asked) = queue_where(move |_| answers.pop().unwrap()).await;
    let received = queue.receive_batch(request(1)).await.unwrap();
    assert!(received.is_empty());
    let asked = asked.lock().unwrap();
    let attempt = |body: &String| {
        let rest = body.split_once("ReceiveRequestAttemptId\":\"").unwrap().1;
        rest.split_once('"').unwrap().0.to_owned()
    };
    let attempts: Vec<String> = asked.iter().map(attempt).collect();
    let [first, second] = <[String; 2]>::try_from(attempts).unwrap();
    assert_eq!(first, second, "it is the same receive");
    assert_eq!(first.len(), 32);
}

#[tokio::test]
async fn a_call_waits_for_half_of_the_lease_at_most() {
    let (queue, asked) = queue_where(|_| Then::Answer(200, "{}".to_owned())).await;
    let mut waits = Vec::new();
    for lease in [None, Some(1), Some(4), Some(3_600)] {
        let received = queue.receive_batch(ReceiveRequest {
            wait: Duration::from_secs(20),
            lease: lease.map(Duration::from_secs),
            ..request(1)
        });
        assert!(received.await.unwrap().is_empty());
        let body = asked.lock().unwrap().pop().unwrap();
        assert!(
            asked.lock().unwrap().is_empty(),
            "one that is early is not asked on and on"
        );
        let rest = body.split_once("WaitTimeSeconds\":").unwrap().1;
        waits.push(rest[..rest.find([',', '}']).unwrap()].to_owned());
    }
    assert_eq!(waits, ["15", "1", "2", "20"]);
}

#[tokio::test]
async fn where_nobody_listens_nothing_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q", &[]).await;
    send(&queue, Message::new("a")).await;
    let leased = take_one(&queue).await;
    server.stop().await;
    let sent = queue.send_batch(vec![Message::new("b")]).await.remove(0);
    assert_eq!(sent.unwrap_err().fate, Fate::Retry);
    let received = queue.receive_batch(request(1)).await;
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
    let error = SqsQueue::open(nowhere, queue.url()).await.unwrap_err();
    assert_eq!(error.fate, Fate::Retry);
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let url = format!("http://{}/000000000000/none", server.address);
    let error = SqsQueue::open(server.client(), url).await.unwrap_err();
    assert_eq!(error.fate, Fate::Closed);
    server.stop().await;
}

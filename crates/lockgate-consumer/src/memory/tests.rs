//! What the transports' suite does not ask of a queue in memory: bounds, policies, the end.

use std::{pin::pin, task::Poll};

use lockgate_conformance::transport::{self, Fixture};
use lockgate_core::HolderName;

use super::*;

#[derive(Default)]
struct InMemory(Vec<MemoryQueue>);

impl Fixture for InMemory {
    type Queue = MemoryQueue;

    async fn queue(&mut self, _keyed: bool) -> MemoryQueue {
        let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
        self.0.push(queue.clone());
        queue
    }

    async fn delete(&mut self, _queue: &MemoryQueue) -> bool {
        false
    }

    fn pass(&mut self, span: Duration) -> bool {
        for queue in &self.0 {
            pass(queue, span);
        }
        true
    }
}

/// Moves the queue's clock; who waits is not told.
fn pass(queue: &MemoryQueue, span: Duration) {
    let passed = &queue.0.passed;
    passed.fetch_add(millis(span), std::sync::atomic::Ordering::Relaxed);
}

#[tokio::test]
async fn a_queue_in_memory_conforms() {
    let not_run = transport::run(&mut InMemory::default()).await;
    let cannot = [
        "a_unique_id_is_accepted_once",
        "a_record_of_a_producer_is_accepted_once",
        "two_copies_of_a_spool_lose_nothing_and_double_nothing",
        "whoever_was_deposed_sends_nothing",
        "a_message_comes_no_earlier_than_it_is_due",
        "a_message_keeps_its_name",
        "a_queue_that_is_gone_is_closed",
    ];
    assert_eq!(not_run, cannot);
}

fn queue(change: impl FnOnce(&mut MemoryOptions)) -> MemoryQueue {
    let mut options = MemoryOptions::default();
    change(&mut options);
    MemoryQueue::new(options).unwrap()
}

fn of(key: &str, body: &str) -> Message {
    Message::new(body.to_owned()).with_key(Key::new(key).unwrap())
}

fn request(max: usize, wait: Duration) -> ReceiveRequest {
    ReceiveRequest {
        max,
        key_max: None,
        wait,
        lease: None,
        holder: HolderName::new("test").unwrap(),
    }
}

async fn take(queue: &MemoryQueue, max: usize) -> Vec<Leased<Receipt>> {
    let received = queue.receive_batch(request(max, Duration::ZERO)).await;
    received.unwrap()
}

async fn settle(queue: &MemoryQueue, leased: &Leased<Receipt>, how: Settlement) {
    let settles = vec![(leased.receipt.clone(), how)];
    queue.settle_batch(settles).await.remove(0).unwrap();
}

fn bodies(leased: &[Leased<Receipt>]) -> Vec<&[u8]> {
    leased
        .iter()
        .map(|leased| &leased.message.body[..])
        .collect()
}

const FAILED: Settlement = Settlement::Nack {
    delay: Duration::ZERO,
    reason: None,
};

fn nacked(delay: Duration) -> Settlement {
    let reason = None;
    Settlement::Nack { delay, reason }
}

/// Whether a future is done the first time it is asked.
async fn is_ready<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    let mut future = future;
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

#[tokio::test]
async fn a_full_key_leaves_room_for_the_others() {
    let queue = queue(|options| options.key_messages_max = Some(2));
    for body in ["1", "2"] {
        queue.push(of("busy", body)).await.unwrap();
    }
    let refused = queue.try_push(of("busy", "3")).unwrap_err();
    assert_eq!(refused.reason, PushRefusal::Full);
    let mut waiting = pin!(queue.push(of("busy", "3")));
    assert!(!is_ready(waiting.as_mut()).await);
    queue.try_push(of("other", "1")).unwrap();

    // Its place is given up by an ack, not by a receive.
    let received = take(&queue, 1).await;
    assert!(!is_ready(waiting.as_mut()).await);
    settle(&queue, &received[0], Settlement::Ack).await;
    waiting.await.unwrap();
    assert_eq!(queue.counts().waiting, 3);
}

#[tokio::test]
async fn who_waits_for_room_gets_it_in_turn_and_who_gives_up_leaves_nothing() {
    let queue = queue(|options| {
        options.messages_max = 1;
        options.key_messages_max = Some(1);
    });
    queue.push(of("a", "a")).await.unwrap();
    let mut second = pin!(queue.push(of("b", "b")));
    assert!(!is_ready(second.as_mut()).await);
    {
        let mut gives_up = pin!(queue.push(of("c", "c")));
        assert!(!is_ready(gives_up.as_mut()).await);
    }
    let mut third = pin!(queue.push(of("c", "d")));
    assert!(!is_ready(third.as_mut()).await);
    for body in ["a", "b", "d"] {
        let received = take(&queue, 2).await;
        assert_eq!(bodies(&received), [body.as_bytes()]);
        settle(&queue, &received[0], Settlement::Ack).await;
        if body == "a" {
            assert!(!is_ready(third.as_mut()).await, "it is the second's turn");
            second.as_mut().await.unwrap();
        } else if body == "b" {
            third.as_mut().await.unwrap();
        }
    }
    assert!(queue.0.state().is_empty(), "no key takes memory any more");
}

#[tokio::test]
async fn bytes_are_bounded_and_what_can_never_fit_is_refused() {
    let queue = queue(|options| options.bytes_max = 10);
    queue.push(Message::new("1234567")).await.unwrap();
    let full = queue.try_push(Message::new("1234")).unwrap_err();
    assert_eq!(full.reason, PushRefusal::Full);
    let large = queue.push(Message::new("12345678901")).await.unwrap_err();
    assert_eq!(large.reason, PushRefusal::TooLarge { bytes: 11, max: 10 });
    assert_eq!(large.message.body, "12345678901");
    let received = take(&queue, 1).await;
    settle(&queue, &received[0], Settlement::Ack).await;
    queue.try_push(Message::new("1234567890")).unwrap();
}

#[tokio::test]
async fn a_message_without_success_is_skipped_or_parks_its_key() {
    for (policy, parked) in [(KeyPolicy::Skip, false), (KeyPolicy::Park, true)] {
        let queue = queue(|options| options.attempts = Some((2, policy)));
        for message in [of("k", "bad"), of("k", "good"), of("l", "other")] {
            queue.push(message).await.unwrap();
        }
        for attempt in 1..=2 {
            let received = take(&queue, 1).await;
            assert_eq!(
                (bodies(&received)[0], received[0].attempt),
                (&b"bad"[..], attempt)
            );
            settle(&queue, &received[0], FAILED).await;
            let received = take(&queue, 1).await;
            assert_eq!(bodies(&received), [b"other"]);
            settle(&queue, &received[0], Settlement::GiveBack).await;
        }
        let left = take(&queue, 10).await;
        let dead = queue.take_dead_letters();
        if parked {
            assert_eq!(bodies(&left), [b"other"]);
            assert!(dead.is_empty());
            let key = Key::new("k").unwrap();
            assert_eq!(queue.parked_keys(), std::slice::from_ref(&key));
            assert!(queue.resume(&key) && !queue.resume(&key));
            let resumed = take(&queue, 1).await;
            assert_eq!((bodies(&resumed)[0], resumed[0].attempt), (&b"bad"[..], 1));
        } else {
            assert_eq!(bodies(&left), [&b"good"[..], b"other"]);
            assert_eq!(
                (&dead[0].message.body[..], dead[0].attempts),
                (&b"bad"[..], 2)
            );
        }
    }
}

#[tokio::test]
async fn a_failed_message_waits_and_its_key_with_it() {
    let queue = queue(|_| {});
    for message in [of("k", "1"), of("k", "2"), of("l", "3")] {
        queue.push(message).await.unwrap();
    }
    let received = take(&queue, 1).await;
    let delay = Duration::from_secs(5);
    settle(&queue, &received[0], nacked(delay)).await;
    assert_eq!(bodies(&take(&queue, 10).await), [b"3"]);
    pass(&queue, delay);
    let received = take(&queue, 10).await;
    assert_eq!(bodies(&received), [b"1", b"2"]);

    // Who waits is woken when the time has come.
    let delay = Duration::from_millis(20);
    settle(&queue, &received[0], nacked(delay)).await;
    let received = queue
        .receive_batch(request(1, Duration::MAX))
        .await
        .unwrap();
    assert_eq!(bodies(&received), [b"1"]);
}

#[tokio::test]
async fn a_closed_queue_gives_what_it_has_and_ends() {
    let queue = queue(|options| options.messages_max = 1);
    queue.push(of("k", "1")).await.unwrap();
    let mut waiting = pin!(queue.push(of("k", "2")));
    assert!(!is_ready(waiting.as_mut()).await);
    queue.close();
    assert_eq!(waiting.await.unwrap_err().reason, PushRefusal::Closed);
    assert_eq!(
        queue.try_push(of("k", "3")).unwrap_err().reason,
        PushRefusal::Closed
    );
    let received = take(&queue, 1).await;
    settle(&queue, &received[0], Settlement::GiveBack).await;
    let received = take(&queue, 1).await;
    let mut over = pin!(queue.receive_batch(request(1, Duration::MAX)));
    assert!(!is_ready(over.as_mut()).await, "it may come back");
    settle(&queue, &received[0], Settlement::Ack).await;
    assert_eq!(over.await.unwrap_err().fate, Fate::Closed);
}

/// Who waits for a message knows of none that comes again, until one fails meanwhile.
#[tokio::test]
async fn who_waits_hears_of_a_failure_that_comes_again_sooner() {
    let queue = queue(|_| {});
    queue.push(of("k", "1")).await.unwrap();
    let request = |wait| ReceiveRequest {
        max: 1,
        key_max: None,
        wait,
        lease: Some(Duration::from_secs(3_600)),
        holder: HolderName::new("test").unwrap(),
    };
    let first = queue.receive_batch(request(Duration::ZERO)).await.unwrap();
    let mut waiting = Box::pin(queue.receive_batch(request(Duration::MAX)));
    assert!(
        tokio::time::timeout(Duration::ZERO, &mut waiting)
            .await
            .is_err()
    );
    let delay = Duration::from_millis(20);
    let reason = None;
    let nack = (first[0].receipt.clone(), Settlement::Nack { delay, reason });
    queue.settle_batch(vec![nack]).await.remove(0).unwrap();
    let again = tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
    assert_eq!(again.unwrap()[0].attempt, 2);
}

/// Whether a closed queue has come to its end is asked with every receive and settlement, so it is counted: the
/// lanes are not walked, and the counts agree with them in every state.
#[tokio::test]
async fn the_end_of_a_closed_queue_is_counted() {
    let queue = queue(|options| options.attempts = Some((1, KeyPolicy::Park)));
    let check = |over: bool| {
        let state = queue.0.state();
        assert_eq!(state.is_over(), over);
        assert_eq!(state.is_over(), state.is_over_by_lanes());
    };
    for key in ["a", "a", "b", "b", "c"] {
        queue.push(of(key, key)).await.unwrap();
    }
    check(false);
    let received = take(&queue, 3).await;
    assert_eq!(bodies(&received), [b"a", b"b", b"c"]);
    settle(&queue, &received[0], FAILED).await;
    // One more of a parked key.
    queue.push(of("a", "a")).await.unwrap();
    check(false);
    queue.close();
    check(false);
    settle(&queue, &received[1], FAILED).await;
    check(false);
    settle(&queue, &received[2], Settlement::Ack).await;
    // Five wait, and nobody gets them.
    assert_eq!(queue.counts().waiting, 5);
    check(true);
    assert!(queue.resume(&Key::new("b").unwrap()));
    check(false);
    for _ in 0..2 {
        let received = take(&queue, 1).await;
        check(false);
        settle(&queue, &received[0], Settlement::Ack).await;
    }
    check(true);
}

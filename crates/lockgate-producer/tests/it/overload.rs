//! What happens when the buffer is full.

use std::{num::NonZeroU32, time::Duration};

use lockgate_core::Message;
use lockgate_producer::{
    Answer, AnswerLevel, DropReason, Full, ProducerOptions, Quota, Refusal, SendError,
    SpoolOptions, WhenFull, testing::TestSink,
};

use crate::{LONG, bodies, check_law, keyed, open};

fn small(when_full: WhenFull) -> ProducerOptions {
    ProducerOptions {
        buffer_count: 4,
        batch_count: 1,
        batches_in_flight: 1,
        level: AnswerLevel::Accepted,
        when_full,
        ..ProducerOptions::default()
    }
}

/// Fills a stopped sink's producer and sends four more. Returns what the sink gets in the end, and why others are gone.
async fn flood(when_full: WhenFull) -> (Vec<String>, Vec<(DropReason, u64)>, u64) {
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, small(when_full)).await;
    let mut refused = 0;
    for number in 0..8 {
        let message = keyed("k", number.to_string()).with_priority(number % 3);
        refused += u64::from(producer.try_send(message).is_err());
        check_law(&producer);
    }
    sink.resume();
    producer.close(LONG).await;
    let figures = producer.figures();
    let reasons = [
        DropReason::Newest,
        DropReason::Oldest,
        DropReason::LowestPriority,
        DropReason::Sampled,
    ];
    let dropped = reasons.map(|reason| (reason, figures.dropped(reason)));
    let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
    (bodies(&sink), dropped.collect(), refused)
}

#[tokio::test]
async fn each_policy_does_what_it_says() {
    // The producer's task has not run meanwhile, so nothing is being sent, and every record may be dropped.
    let cases = [
        (WhenFull::Block, "0 1 2 3", vec![], 4),
        (WhenFull::Reject, "0 1 2 3", vec![], 4),
        (
            WhenFull::DropNewest,
            "0 1 2 3",
            vec![(DropReason::Newest, 4)],
            0,
        ),
        (
            WhenFull::DropOldest,
            "4 5 6 7",
            vec![(DropReason::Oldest, 4)],
            0,
        ),
        // Priorities are 0 1 2 0 1 2 0 1.
        (
            WhenFull::DropLowestPriority,
            "1 2 4 5",
            vec![(DropReason::LowestPriority, 4)],
            0,
        ),
        (
            WhenFull::Sample(NonZeroU32::new(2).unwrap()),
            "2 3 5 7",
            vec![(DropReason::Sampled, 4)],
            0,
        ),
    ];
    for (when_full, there, dropped, refused) in cases {
        let there: Vec<String> = there.split(' ').map(str::to_owned).collect();
        assert_eq!(
            flood(when_full).await,
            (there, dropped, refused),
            "{when_full:?}"
        );
    }
}

#[tokio::test]
async fn the_sender_of_what_is_dropped_at_once_is_told_at_every_level() {
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, small(WhenFull::DropNewest)).await;
    for number in 0..4 {
        let sent = producer.send(keyed("k", number.to_string())).await;
        assert_eq!(sent.unwrap(), Answer::Accepted);
    }
    for level in [AnswerLevel::Accepted, AnswerLevel::Delivered] {
        let sent = producer.send(keyed("k", "4")).level(level).await;
        assert!(matches!(
            sent.unwrap_err(),
            SendError::Dropped {
                reason: DropReason::Newest,
                may_be_delivered: false,
                ..
            }
        ));
    }
}

#[tokio::test]
async fn a_send_waits_for_room_and_no_longer_than_it_is_told() {
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, small(WhenFull::Block)).await;
    for _ in 0..4 {
        drop(producer.try_send(Message::new("a")).unwrap());
    }
    let impatient = producer.send(Message::new("b"));
    let refused = impatient.patience(Duration::from_millis(20)).start().await;
    assert!(matches!(
        refused.unwrap_err().why,
        Refusal::Full(Full::Buffer)
    ));
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(Message::new("c")).await })
        })
        .collect();
    sink.resume();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap(), Answer::Accepted);
    }
    producer.flush().await;
    assert_eq!(sink.messages().len(), 24);
    check_law(&producer);
}

#[tokio::test]
async fn one_tenant_fills_its_part_and_no_other() {
    let sink = TestSink::new();
    sink.stop();
    let options = ProducerOptions {
        buffer_count: 100,
        quota: Some(Quota::per_key(3, 1 << 20)),
        ..small(WhenFull::Reject)
    };
    let producer = open(&sink, options).await;
    for number in 0..5 {
        let sent = producer.try_send(keyed("loud", "a"));
        match number {
            0..3 => drop(sent.unwrap()),
            _ => assert!(matches!(sent.unwrap_err().why, Refusal::Full(Full::Tenant))),
        }
    }
    drop(producer.try_send(keyed("quiet", "b")).unwrap());
    sink.resume();
    producer.flush().await;
    // What was delivered is counted no more.
    drop(producer.try_send(keyed("loud", "c")).unwrap());
    producer.flush().await;
    assert_eq!(sink.messages().len(), 5);
}

#[tokio::test]
async fn what_finds_no_room_in_memory_goes_over_the_spool_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    for persist in [
        lockgate_producer::Persist::Overflow,
        lockgate_producer::Persist::Each,
    ] {
        let sink = TestSink::new();
        sink.stop();
        let options = ProducerOptions {
            spool: Some(SpoolOptions {
                persist,
                ..SpoolOptions::new(folder.path().join(format!("{persist:?}")))
            }),
            batch_count: 3,
            ..small(WhenFull::Spool)
        };
        let producer = open(&sink, options).await;
        let tickets: Vec<_> = (0..200)
            .map(|number| {
                let message = keyed(&format!("k{}", number % 3), number.to_string());
                let send = producer.send(message).level(AnswerLevel::Delivered);
                send.try_start().unwrap()
            })
            .collect();
        let figures = producer.figures();
        assert_eq!((figures.memory_count, figures.pending), (4, 200));
        sink.resume();
        for ticket in tickets {
            assert!(matches!(ticket.await, Ok(Answer::Delivered(_))));
        }
        let bodies: Vec<u64> = bodies(&sink).iter().map(|it| it.parse().unwrap()).collect();
        for key in 0..3 {
            let of_key: Vec<u64> = bodies.iter().copied().filter(|it| it % 3 == key).collect();
            assert!(of_key.is_sorted(), "{of_key:?}");
        }
        assert_eq!(bodies.len(), 200);
        let closed = producer.close(LONG).await;
        assert_eq!(closed.left, 0);
    }
}

//! Records on disk over restarts.

use std::{fs, num::NonZeroU32, path::Path, time::Duration};

use lockgate_core::{Message, ProducerName};
use lockgate_producer::{
    AnswerLevel, DropReason, Full, Producer, ProducerOptions, Refusal, SendError, SpoolOptions,
    WhenFull, WhenSpoolFull, testing::TestSink,
};

use crate::{LONG, bodies, check_law, keyed, open};

fn spooled(folder: &Path) -> ProducerOptions {
    ProducerOptions {
        level: AnswerLevel::Durable,
        spool: Some(SpoolOptions::new(folder)),
        ..ProducerOptions::default()
    }
}

/// Copies a spool as it stands, without its lock.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lock" {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test]
async fn what_was_not_sent_is_sent_by_the_next_producer_before_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, spooled(&folder)).await;
    for number in 0..50 {
        producer.send(keyed("k", number.to_string())).await.unwrap();
    }
    let waits = producer
        .send(keyed("k", "50"))
        .level(AnswerLevel::Delivered);
    let waits = waits.start().await.unwrap();
    let name = producer.name().clone();
    let closed = producer.close(Duration::from_millis(10)).await;
    assert_eq!(closed.left, 51);
    assert!(matches!(
        waits.await.unwrap_err(),
        SendError::Dropped {
            reason: DropReason::Closed,
            may_be_delivered: true,
            ..
        }
    ));
    sink.resume();
    let producer = open(&sink, spooled(&folder)).await;
    assert_eq!(producer.name(), &name);
    assert_eq!(producer.spool_report().unwrap().records, 51);
    assert_eq!(producer.figures().recovered, 51);
    let last = producer
        .send(keyed("k", "51"))
        .level(AnswerLevel::Delivered);
    last.await.unwrap();
    let expected: Vec<String> = (0..52).map(|number| number.to_string()).collect();
    assert_eq!(bodies(&sink), expected);
    check_law(&producer);
    producer.close(LONG).await;
    let producer = open(&sink, spooled(&folder)).await;
    assert_eq!(producer.figures().recovered, 0, "all is over");
}

/// One record a second of what was left would take a minute.
#[tokio::test]
async fn a_live_record_is_delivered_while_a_paced_backlog_of_other_keys_waits() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = spooled(&folder.path().join("spool"));
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, options.clone()).await;
    for number in 0..60 {
        producer.send(keyed("k", number.to_string())).await.unwrap();
    }
    producer.close(Duration::ZERO).await;
    drop(producer);
    sink.resume();
    if let Some(spool) = &mut options.spool {
        spool.replay_rate = NonZeroU32::new(1);
    }
    let producer = open(&sink, options.clone()).await;
    producer.send(keyed("k", "60")).await.unwrap();
    for message in [keyed("other", "a"), Message::new("b")] {
        let send = producer.send(message).level(AnswerLevel::Delivered);
        send.await.unwrap();
        check_law(&producer);
    }
    let there = bodies(&sink);
    assert!(!there.contains(&"59".to_owned()), "{there:?}");
    let closed = producer.close(Duration::ZERO).await;
    assert!(closed.left > 1, "{closed:?}");
    drop(producer);
    options.spool = Some(SpoolOptions::new(folder.path().join("spool")));
    open(&sink, options).await.flush().await;
    let mut there = bodies(&sink);
    there.retain(|body| body.parse::<u32>().is_ok());
    let expected: Vec<String> = (0..=60).map(|number| number.to_string()).collect();
    assert_eq!(there, expected);
}

#[tokio::test]
async fn of_two_copies_of_a_spool_one_goes_on_and_nothing_is_lost_or_doubled() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a"), folder.path().join("b"));
    let sink = TestSink::new();
    sink.stop();
    let original = open(&sink, spooled(&first)).await;
    for number in 0..20 {
        original.send(keyed("k", number.to_string())).await.unwrap();
    }
    copy(&first, &second);
    sink.resume();
    original.flush().await;
    let duplicate = open(&sink, spooled(&second)).await;
    // Both have the twenty; this one has a record of its own, and shuts the other out.
    duplicate.send(keyed("k", "copy")).await.unwrap();
    duplicate.flush().await;
    assert_eq!(sink.messages().len(), 21);
    let own = original.send(keyed("k", "original")).await;
    // The sink may say so before the disk does.
    let is_kept = matches!(
        own,
        Ok(_)
            | Err(SendError::Dropped {
                reason: DropReason::Fenced,
                may_be_delivered: true,
                ..
            })
    );
    assert!(is_kept, "{own:?}");
    while original.fenced().is_none() {
        tokio::task::yield_now().await;
    }
    duplicate.close(LONG).await;
    let closed = original.close(LONG).await;
    assert_eq!(closed.left, 1);
    // Opened again, it is the later one, and its record is no other's.
    let original = open(&sink, spooled(&first)).await;
    original.flush().await;
    let mut there = bodies(&sink);
    assert_eq!(there.split_off(20), ["copy", "original"]);
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(there, expected);
}

#[tokio::test]
async fn a_spool_belongs_to_one_producer_and_to_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let named = |name: &str| ProducerOptions {
        name: Some(ProducerName::new(name).unwrap()),
        ..spooled(&folder)
    };
    let sink = TestSink::new();
    let producer = open(&sink, named("billing")).await;
    let taken = Producer::open(sink.clone(), named("billing")).await;
    let error = lockgate_core::with_sources(&taken.unwrap_err());
    assert!(error.contains("cannot be opened"), "{error}");
    producer.close(LONG).await;
    drop(producer);
    let other = Producer::open(sink.clone(), named("orders")).await;
    let error = other.unwrap_err().to_string();
    assert!(error.contains("is of the producer billing"), "{error}");
    let producer = open(&sink, spooled(&folder)).await;
    assert_eq!(producer.name().as_str(), "billing");
}

#[tokio::test]
async fn a_producer_that_is_dropped_leaves_its_spool_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("spool");
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, spooled(&folder)).await;
    producer.send(Message::new("a")).await.unwrap();
    drop(producer);
    sink.resume();
    // Its thread gives the folder back in its own time.
    let producer = loop {
        match Producer::open(sink.clone(), spooled(&folder)).await {
            Ok(producer) => break producer,
            Err(error) => assert!(error.to_string().contains("cannot be opened"), "{error}"),
        }
        tokio::task::yield_now().await;
    };
    producer.flush().await;
    assert_eq!(bodies(&sink), ["a"]);
}

/// The sender is told and does not wait for the disk, and a producer that ends does not call the record kept.
#[tokio::test]
async fn what_the_disk_has_no_room_for_is_neither_durable_nor_left() {
    let folder = tempfile::tempdir().unwrap();
    let sink = TestSink::new();
    sink.stop();
    for when_full in [WhenFull::Reject, WhenFull::Spool] {
        let mut options = spooled(&folder.path().join(format!("{when_full:?}")));
        options.when_full = when_full;
        options.buffer_count = 1;
        if let Some(spool) = &mut options.spool {
            spool.free_bytes_min = u64::MAX;
            spool.when_full = WhenSpoolFull::Reject;
        }
        let producer = open(&sink, options.clone()).await;
        // With room in memory, and perhaps without. A file has a little room from its beginning.
        let sends: Vec<_> = (0..2)
            .filter_map(|_| producer.try_send(keyed("k", vec![b'x'; 3 << 20])).ok())
            .collect();
        let count = sends.len() as u64;
        for ticket in sends {
            assert!(matches!(
                ticket.await.unwrap_err(),
                SendError::Dropped {
                    reason: DropReason::SpoolFull,
                    may_be_delivered: true,
                    ..
                }
            ));
        }
        assert_eq!(producer.figures().pending, count);
        let refused = producer.send(keyed("k", "y")).await.unwrap_err();
        assert!(
            matches!(&refused, SendError::Refused(it) if matches!(it.why, Refusal::Full(Full::Spool))),
            "{refused}"
        );
        let closed = producer.close(Duration::from_millis(1)).await;
        check_law(&producer);
        assert_eq!(closed.left, 0);
        assert_eq!(closed.figures.dropped(DropReason::Closed), count);
        drop(producer);
        let producer = open(&sink, options).await;
        assert_eq!(producer.figures().recovered, 0);
    }
}

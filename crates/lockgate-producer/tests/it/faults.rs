//! Sinks that are away, slow, or lose answers.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use lockgate_core::{Backoff, Fate, Level, Message, ProducerName, SinkCapabilities};
use lockgate_producer::{
    Answer, Breaker, DropReason, Full, Persist, ProducerOptions, Refusal, SendError, SpoolOptions,
    WhenFull, WhenUnknown,
    testing::{Fault, TestSink},
};

use crate::{LONG, bodies, check_law, keyed, open};

fn quick() -> ProducerOptions {
    ProducerOptions {
        backoff: Backoff { first: 2, max: 10 },
        breaker: Breaker {
            failures: 3,
            open: Backoff { first: 5, max: 20 },
        },
        ..ProducerOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_comes_back_gets_everything_once_and_in_order() {
    let sink = TestSink::new();
    sink.set_fault(|_| Fault::Fails(Fate::Retry));
    let producer = open(&sink, quick()).await;
    for number in 0..500 {
        let message = keyed(&format!("k{}", number % 20), number.to_string());
        drop(producer.try_send(message).unwrap());
    }
    while !producer.figures().breaker_open {
        tokio::task::yield_now().await;
    }
    let calls = AtomicU32::new(0);
    sink.set_fault(move |_| match calls.fetch_add(1, Ordering::Relaxed) % 7 {
        0 => Fault::AnswerLost,
        3 => Fault::Fails(Fate::Retry),
        _ => Fault::None,
    });
    producer.flush().await;
    let there: Vec<u32> = bodies(&sink).iter().map(|it| it.parse().unwrap()).collect();
    assert_eq!(there.len(), 500);
    for key in 0..20 {
        let of_key: Vec<u32> = there.iter().copied().filter(|it| it % 20 == key).collect();
        assert!(of_key.len() == 25 && of_key.is_sorted(), "{of_key:?}");
    }
    let figures = producer.figures();
    assert!(figures.duplicates > 0 && figures.failed_batches >= 3 && !figures.breaker_open);
    check_law(&producer);
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_unknown_and_the_record_is_there_once() {
    let sink = TestSink::new();
    sink.set_delay(Duration::from_millis(80));
    let options = ProducerOptions {
        send_timeout: Duration::from_millis(20),
        ..quick()
    };
    let producer = open(&sink, options).await;
    let ticket = producer.try_send(Message::new("a")).unwrap();
    while producer.figures().failed_batches < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sink.set_delay(Duration::ZERO);
    assert!(matches!(ticket.await, Ok(Answer::Delivered(_))));
    assert_eq!(bodies(&sink), ["a"]);
}

#[tokio::test]
async fn a_record_whose_time_is_over_is_given_up() {
    let sink = TestSink::new();
    sink.set_fault(|_| Fault::AnswerLost);
    let producer = open(&sink, quick()).await;
    let sent = producer.send(Message::new("a"));
    let error = sent.within(Duration::from_millis(40)).await.unwrap_err();
    assert!(matches!(
        error,
        SendError::Dropped {
            reason: DropReason::Expired,
            may_be_delivered: true,
            ..
        }
    ));
    sink.set_fault(|_| Fault::Fails(Fate::Retry));
    let sent = producer.send(Message::new("b"));
    let error = sent.within(Duration::from_millis(40)).await.unwrap_err();
    assert!(matches!(
        error,
        SendError::Dropped {
            reason: DropReason::Expired,
            may_be_delivered: false,
            ..
        }
    ));
    check_law(&producer);
}

#[tokio::test]
async fn where_nothing_is_recognised_the_option_says_what_is_done() {
    for (when_unknown, times) in [(WhenUnknown::Resend, 2), (WhenUnknown::GiveUp, 1)] {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        can.batch_max = 10;
        let sink = TestSink::with_capabilities(can);
        let calls = AtomicU32::new(0);
        sink.set_fault(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Fault::AnswerLost,
            _ => Fault::None,
        });
        let options = ProducerOptions {
            when_unknown,
            ..quick()
        };
        let producer = open(&sink, options).await;
        let sent = producer.send(Message::new("a")).await;
        match when_unknown {
            WhenUnknown::Resend => assert!(sent.is_ok()),
            _ => assert!(matches!(
                sent.unwrap_err(),
                SendError::Dropped {
                    may_be_delivered: true,
                    ..
                }
            )),
        }
        assert_eq!(sink.messages().len(), times);
        assert_eq!(producer.figures().uncertain, 1);
        check_law(&producer);
    }
}

#[tokio::test]
async fn a_key_that_the_sink_does_not_take_stops_no_other() {
    let mut can = SinkCapabilities::bodies_only(Level::Memory);
    can.batch_max = 10;
    can.keys = true;
    can.unique_ids = true;
    let sink = TestSink::with_capabilities(can);
    sink.set_fault(
        |message| match message.key.as_ref().map(|key| key.as_str()) {
            Some("bad") => Fault::Fails(Fate::Retry),
            _ => Fault::None,
        },
    );
    let producer = open(&sink, quick()).await;
    for number in 0..20 {
        drop(producer.try_send(keyed("bad", number.to_string())).unwrap());
    }
    for number in 0..100 {
        let message = keyed(&format!("k{}", number % 10), "good");
        assert!(producer.send(message).await.is_ok());
    }
    assert_eq!(sink.messages().len(), 100);
    sink.set_fault(|_| Fault::None);
    let closed = producer.close(LONG).await;
    assert_eq!((closed.left, sink.messages().len()), (0, 120));
}

#[tokio::test]
async fn a_queue_that_forgot_the_producer_is_opened_again() {
    let sink = TestSink::new();
    let producer = open(&sink, quick()).await;
    producer.send(Message::new("a")).await.unwrap();
    sink.forget_producers();
    producer.send(Message::new("b")).await.unwrap();
    assert_eq!(bodies(&sink), ["a", "b"]);
}

#[tokio::test]
async fn a_producer_whose_name_another_takes_sends_nothing_more_and_says_so() {
    let sink = TestSink::new();
    let named = || ProducerOptions {
        name: Some(ProducerName::new("p").unwrap()),
        ..quick()
    };
    let first = open(&sink, named()).await;
    first.send(Message::new("a")).await.unwrap();
    let second = open(&sink, named()).await;
    second.send(Message::new("b")).await.unwrap();
    let lost = first.try_send(Message::new("c")).unwrap();
    while first.fenced().is_none() {
        tokio::task::yield_now().await;
    }
    let refused = first.try_send(Message::new("d")).unwrap_err();
    assert!(refused.to_string().contains("has taken over"), "{refused}");
    let closed = first.close(LONG).await;
    assert!(matches!(
        lost.await.unwrap_err(),
        SendError::Dropped {
            reason: DropReason::Fenced,
            may_be_delivered: false,
            ..
        }
    ));
    assert_eq!(
        (closed.left, bodies(&sink)),
        (0, vec!["a".into(), "b".into()])
    );
}

/// As a sink under a fence does, once a later leader has written.
#[tokio::test]
async fn a_producer_whose_term_is_over_ends_and_leaves_its_spool_to_the_next_term() {
    let folder = tempfile::tempdir().unwrap();
    let spool = |name: &str| SpoolOptions {
        persist: Persist::Overflow,
        ..SpoolOptions::new(folder.path().join(name))
    };
    for spool in [None, Some(spool("a"))] {
        let options = ProducerOptions {
            buffer_count: 1,
            when_full: match spool {
                Some(_) => WhenFull::Spool,
                None => WhenFull::Block,
            },
            spool: spool.clone(),
            ..quick()
        };
        let sink = TestSink::new();
        sink.set_fault(|_| Fault::Fails(Fate::Stale));
        let producer = open(&sink, options.clone()).await;
        let sent = producer.send(Message::new("a")).start().await.unwrap();
        let behind = producer.try_send(Message::new("b"));
        for (ticket, is_on_disk) in [(Some(sent), false), (behind.ok(), true)] {
            let Some(ticket) = ticket else {
                assert!(spool.is_none());
                continue;
            };
            let error = ticket.await.unwrap_err();
            assert!(
                matches!(
                    &error,
                    SendError::Dropped {
                        reason: DropReason::Fenced,
                        may_be_delivered,
                        source: Some(source),
                    } if source.fate == Fate::Stale && *may_be_delivered == is_on_disk
                ),
                "{error:?}"
            );
        }
        assert!(producer.fenced().unwrap().producer_refused().is_none());
        producer.flush().await;
        let refused = producer.try_send(Message::new("c")).unwrap_err();
        assert!(matches!(refused.why, Refusal::Full(Full::Fenced)));
        assert_eq!(sink.batches(), [1]);
        let closed = producer.close(LONG).await;
        check_law(&producer);
        assert_eq!(closed.left, u64::from(spool.is_some()));
        drop(producer);
        sink.set_fault(|_| Fault::None);
        let producer = open(&sink, options).await;
        producer.flush().await;
        assert_eq!(sink.messages().len() as u64, closed.left);
    }
}

#[tokio::test]
async fn a_sink_that_panics_costs_a_batch_its_answers_and_no_more() {
    let sink = TestSink::new();
    let calls = AtomicU32::new(0);
    sink.set_fault(move |_| {
        assert!(
            calls.fetch_add(1, Ordering::Relaxed) > 0,
            "a fault of the test"
        );
        Fault::None
    });
    let producer = open(&sink, quick()).await;
    producer.send(Message::new("a")).await.unwrap();
    assert_eq!(bodies(&sink), ["a"]);
}

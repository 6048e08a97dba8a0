//! Sources, work and sinks together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate_consumer::{Backoff, Failure, Job, MemoryOptions, MemoryQueue, Worker};
use lockgate_core::{Fate, Message, UniqueId};
use lockgate_producer::{
    Pipeline, ProducerOptions,
    testing::{Fault, TestSink},
};

use crate::{bodies, keyed, open};

#[tokio::test]
async fn a_message_is_acknowledged_when_the_sink_has_what_was_made_of_it() {
    let source = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let sink = TestSink::new();
    sink.stop();
    let producer = open(&sink, ProducerOptions::default()).await;
    let worker = Worker::over(source.clone()).concurrency(4);
    let pipeline = Pipeline::start(worker, producer, |job: Job| async move {
        let part = |part: &str| {
            let mut body = job.body().to_vec();
            body.extend_from_slice(part.as_bytes());
            keyed("k", body)
        };
        Ok::<_, Failure>(vec![part("a"), part("b")])
    });
    let pipeline = pipeline.unwrap();
    for number in 0..3 {
        source.push(keyed("k", number.to_string())).await.unwrap();
    }
    source.close();
    while pipeline.figures().await.producer.pending < 2 {
        tokio::task::yield_now().await;
    }
    let figures = pipeline.figures().await;
    let state = figures.worker.unwrap();
    assert_eq!((state.counts.acknowledged, state.running), (0, 1));
    sink.resume();
    let ended = pipeline.ended().await;
    assert_eq!(ended.counts.acknowledged, 3);
    assert_eq!(bodies(&sink), ["0a", "0b", "1a", "1b", "2a", "2b"]);
}

#[tokio::test]
async fn a_message_that_comes_again_is_forwarded_once_and_one_that_is_refused_is_rejected() {
    let source = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let sink = TestSink::new();
    let is_back = Arc::new(AtomicBool::new(false));
    let may = is_back.clone();
    sink.set_fault(move |message| match &message.body[..] {
        b"bad" => Fault::Fails(Fate::Refused),
        b"second" if !may.load(Ordering::Relaxed) => Fault::Fails(Fate::Retry),
        _ => Fault::None,
    });
    let options = ProducerOptions {
        deliver_within: Some(Duration::from_millis(20)),
        ..ProducerOptions::default()
    };
    let producer = open(&sink, options).await;
    let worker = Worker::over(source.clone()).backoff(Backoff { first: 1, max: 1 });
    let pipeline = Pipeline::start_blocking(worker, producer, move |job: Job| {
        is_back.fetch_or(job.attempt() > 1, Ordering::Relaxed);
        match &job.body()[..] {
            b"bad" => Ok(vec![Message::new("bad")]),
            b"fails" => Err(Failure::reject("no")),
            // A queue in memory gives messages no names that could be their ids.
            _ => Ok(vec![
                Message::new("first").with_unique_id(UniqueId::new("1").unwrap()),
                Message::new("second"),
            ]),
        }
    });
    let pipeline = pipeline.unwrap();
    for body in ["good", "bad", "fails"] {
        source.push(Message::new(body)).await.unwrap();
    }
    source.close();
    let ended = pipeline.ended().await;
    assert_eq!(ended.counts.acknowledged, 1);
    assert_eq!(bodies(&sink), ["first", "second"]);
    let dead = source.take_dead_letters().into_iter();
    let mut dead: Vec<_> = dead.map(|it| it.message.body).collect();
    dead.sort();
    assert_eq!(dead, ["bad", "fails"]);
}

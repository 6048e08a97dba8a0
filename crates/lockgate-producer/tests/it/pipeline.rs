//! Sources, work and sinks together.

use std::{
    collections::BTreeSet,
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

/// A worker that waits for its records to be delivered can take nothing else. So a model that leaves the wait out says that
/// the workers take many times as much as they do.
#[tokio::test]
async fn a_model_of_a_pipeline_takes_what_the_pipeline_takes() {
    let source = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let sink = TestSink::new();
    sink.set_delay(Duration::from_millis(20));
    let producer = open(&sink, ProducerOptions::default()).await;
    let worker = Worker::over(source.clone()).concurrency(4);
    let pipeline = Pipeline::start(worker, producer, |job: Job| async move {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok::<_, Failure>(vec![Message::new(job.body().clone())])
    });
    let pipeline = pipeline.unwrap();
    for number in 0..200 {
        source.push(Message::new(number.to_string())).await.unwrap();
    }
    let figures = loop {
        let figures = pipeline.figures().await;
        if figures.ended >= 100 {
            break figures;
        }
        tokio::task::yield_now().await;
    };
    // All workers were taken all the time, as there was always a message more.
    let [work, sent] = figures.stages();
    assert_eq!((work.name, sent.name), ("work", "sink"));
    assert!(work.utilisation > 0.5, "{work:?}");
    assert!(
        work.depth > 0 && sent.utilisation > 0.1,
        "{work:?} {sent:?}"
    );
    assert!(figures.waited > 2 * figures.worked, "{figures:?}");
    let model = figures.model().unwrap();
    let report = model.report().unwrap();
    assert_eq!(
        (model.stages.len(), report.bottleneck.as_str()),
        (2, "work")
    );
    let measured = work.per_second;
    let predicted = report.capacity_per_second;
    assert!(
        (predicted / measured - 1.0).abs() < 0.3,
        "{predicted} {measured}"
    );
    let of_one = figures.service_rate().unwrap();
    assert!(
        (4.0 * of_one / measured - 1.0).abs() < 0.3,
        "{of_one} {measured}"
    );
    // The sink was asked for as many as it got, and could take more.
    let sink_takes = report.stages[1].capacity_per_second;
    assert!(sink_takes > measured, "{sink_takes} {measured}");
    let text = figures.prometheus("p");
    assert!(
        text.contains("lockgate_pipeline_workers{producer=\"p\"} 4\n"),
        "{text}"
    );
    let read = lockgate_producer::sizing::Reading::parse(&text, None).unwrap();
    assert_eq!((read.workers, read.batches_in_flight_max), (4.0, 4.0));
    assert!(read.ended >= 100.0);

    let metric = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let written: BTreeSet<String> = text.lines().filter_map(metric).collect();
    let page = include_str!("../../../../docs/metrics.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let is_ours = |name: &&str| {
        name.starts_with("lockgate_producer_") || name.starts_with("lockgate_pipeline_")
    };
    let documented: BTreeSet<String> = rows.filter(is_ours).map(str::to_owned).collect();
    assert_eq!(written, documented, "docs/metrics.md");
}

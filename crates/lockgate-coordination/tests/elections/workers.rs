//! Workers of which one of many consumes.

use std::sync::{Arc, Mutex};

use lockgate_consumer::{Job, MemoryOptions, MemoryQueue, MemoryRecords, Worker};
use lockgate_coordination::{Campaign, Ended, Guard, RecordsCoordinator, Singleton, WorkerCareer};
use lockgate_core::{Backoff, ElectionName, HolderName, Message};
use tokio::sync::Notify;

use crate::switch;

fn campaign(candidate: &str) -> Campaign {
    Campaign::new(
        ElectionName::new("orders").unwrap(),
        HolderName::new(candidate).unwrap(),
    )
}

/// Leaders are asked to go while messages come: one consumes at a time, each message once, and none is lost.
#[tokio::test]
async fn one_of_many_workers_consumes() {
    const MESSAGES: usize = 300;
    const SWITCHES: usize = 10;
    let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let sink = Arc::new(Mutex::new((Guard::default(), Vec::new(), 0)));
    let all = Arc::new(Notify::new());
    let mut tasks = tokio::task::JoinSet::new();
    for candidate in ["a", "b"] {
        let (queue, sink, all) = (queue.clone(), sink.clone(), all.clone());
        let singleton = Singleton::new(coordinator.clone(), campaign(candidate));
        tasks.spawn(async move {
            let stop = all.clone();
            let mut career = WorkerCareer::new(|fence| {
                let (fence, sink, all) = (fence.clone(), sink.clone(), all.clone());
                Worker::over(queue.clone())
                    .concurrency(4)
                    .start(move |job: Job| {
                        let (fence, sink, all) = (fence.clone(), sink.clone(), all.clone());
                        async move {
                            tokio::task::yield_now().await;
                            let mut sink = sink.lock().unwrap();
                            // Whoever was replaced has nothing under way any more.
                            sink.2 += u32::from(sink.0.admit(&fence).is_err());
                            sink.1.push(job.body().clone());
                            if sink.1.len() == MESSAGES {
                                all.notify_waiters();
                            }
                            Ok(())
                        }
                    })
            });
            singleton.run_until(&mut career, stop.notified()).await
        });
    }
    let mut seen = None;
    for round in 0..SWITCHES {
        for number in 0..MESSAGES / SWITCHES {
            let body = format!("{round}-{number}");
            queue.push(Message::new(body)).await.unwrap();
        }
        if round + 1 == SWITCHES {
            break;
        }
        switch(&coordinator, &campaign("a").election, &mut seen).await;
    }
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.unwrap(), Ok(Ended::Stopped));
    }
    let (_, mut bodies, late) = sink.lock().unwrap().clone();
    assert_eq!(late, 0);
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), MESSAGES);
    assert!(seen.is_some());
}

/// A worker whose source is closed ends the term, and its process does not stand for a while.
#[tokio::test]
async fn a_worker_that_ends_is_a_failure_of_its_leader() {
    let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
    queue.close();
    let started = Arc::new(Notify::new());
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let singleton = Singleton::new(coordinator.clone(), campaign("a"));
    let singleton = singleton.backoff(Backoff { first: 1, max: 1 });
    let mut starts = 0;
    let mut career = WorkerCareer::new(|_| {
        starts += 1;
        if starts == 3 {
            started.notify_one();
        }
        Worker::over(queue.clone()).start(|_: Job| async { Ok(()) })
    });
    let stop = started.notified();
    assert_eq!(
        singleton.run_until(&mut career, stop).await,
        Ok(Ended::Stopped)
    );
    drop(career);
    assert!(starts >= 3);
}

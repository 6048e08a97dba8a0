//! Payloads on a disk that does not answer.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use lockgate_core::DiskOperation;
use lockgate_engine::{Engine, EngineError, ReceivedBatch};
use lockgate_machine::{DescribeQueue, Query, QueryReply, QueueSettings};
use tokio::task::JoinHandle;

use crate::support::{Watched, keyed, name, receive, send, text, until};

const LONG: Duration = Duration::from_secs(3_600);

fn receiving(engine: &Engine) -> JoinHandle<Result<ReceivedBatch, EngineError>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await })
}

async fn in_flight(engine: &Engine) -> u64 {
    let query = Query::DescribeQueue(DescribeQueue { queue: name("q") });
    let QueryReply::Queue(queue) = engine.query(query).await.unwrap() else {
        panic!("another kind of answer");
    };
    queue.counts.in_flight
}

/// All tasks are on one thread: a read that hangs on it ends everything.
#[test]
fn payloads_that_a_disk_does_not_bring_hold_up_nothing_else() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let shard = Arc::new(runtime.block_on(Watched::with_queue(QueueSettings::default())));
    for body in ["a", "b", "c", "d"] {
        let sent = shard.engine.submit(send("q", text(body)));
        runtime.block_on(sent).unwrap();
    }
    let stall = shard.disk.stall(DiskOperation::Read, 0);
    let (done, is_done) = mpsc::channel();
    let test = {
        let shard = shard.clone();
        thread::spawn(move || {
            let asked = shard.clone();
            runtime.block_on(async move {
                let engine = &asked.engine;
                let receives: Vec<_> = (0..3).map(|_| receiving(engine)).collect();
                let peek = {
                    let engine = engine.clone();
                    tokio::spawn(async move { engine.peek(name("q"), None, None, 10).await })
                };
                // The peek reads together what stands together.
                while in_flight(engine).await < 3 {}
                engine.submit(send("q", text("e"))).await.unwrap();
                let beside = tokio::spawn(async { "something else" });
                assert_eq!(beside.await.unwrap(), "something else");
                assert!(receives.iter().all(|receive| !receive.is_finished()));
                assert!(!peek.is_finished());
                done.send(()).unwrap();
                let mut bodies = Vec::new();
                for receive in receives {
                    let received = receive.await.unwrap().unwrap().keep().remove(0);
                    bodies.push(received.stored.message.body);
                }
                bodies.sort();
                assert_eq!(bodies, ["a", "b", "c"]);
                let page = peek.await.unwrap().unwrap();
                assert!(page.messages.iter().all(|peeked| peeked.stored.is_some()));
            });
        })
    };
    // For a clear failure: a runtime that hangs does not come so far before the disk goes on.
    let went_on = is_done.recv_timeout(Duration::from_secs(30));
    stall.release();
    test.join().unwrap();
    went_on.unwrap();
}

#[tokio::test]
async fn a_receive_that_is_given_up_on_while_it_reads_gives_its_lease_back() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let stall = shard.disk.stall(DiskOperation::Read, 0);
    let given_up = receiving(&shard.engine);
    until(|| stall.blocked() == 1).await;
    given_up.abort();
    drop(given_up.await.unwrap_err());
    stall.release();
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    assert_eq!(batch[0].delivery.attempt, 1);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_lease_that_ends_while_its_payload_is_read_is_not_handed_over() {
    let settings = QueueSettings {
        keyed: true,
        lease: 1_000,
        ..QueueSettings::default()
    };
    let shard = Watched::with_queue(settings).await;
    let message = keyed("a", "k");
    shard.engine.submit(send("q", message)).await.unwrap();
    let stall = shard.disk.stall(DiskOperation::Read, 0);
    let late = receiving(&shard.engine);
    until(|| stall.blocked() == 1).await;
    shard.pass(1_000);
    stall.release();
    let batch = late.await.unwrap().unwrap();
    assert_eq!(batch[0].delivery.attempt, 2, "a new lease, not the old one");
    assert!(batch[0].delivery.deadline > shard.engine.now().machine);
    drop(batch);

    // A lease of no length is what its caller wants.
    let stall = shard.disk.stall(DiskOperation::Read, 0);
    let peek = lockgate_machine::Receive {
        lease: Some(0),
        ..receive("q", 1)
    };
    let engine = shard.engine.clone();
    let peek = tokio::spawn(async move { engine.receive(peek, LONG).await });
    until(|| stall.blocked() == 1).await;
    shard.pass(1);
    stall.release();
    assert_eq!(peek.await.unwrap().unwrap().len(), 1);
    shard.engine.shutdown().await;
}

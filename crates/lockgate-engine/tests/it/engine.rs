//! The threads: who is answered when, who is woken, and how it ends.

use std::{pin::pin, sync::Arc, time::Duration};

use lockgate_core::{Clock, Disk, DiskOperation, Level};
use lockgate_engine::{
    Batch, Engine, EngineError, EngineOptions, Received, ReceivedBatch, Status, StopReason,
};
use lockgate_log::LocalLog;
use lockgate_machine::{
    ChangeQueue, Command, DeleteQueue, DescribeQueue, KeyProfile, MessageWait, Purge, Query,
    QueryReply, QueueDescription, QueueSettings, Rejection, Reply, Settle, SettleAction, Settled,
    SyncWindow, Transact,
};
use lockgate_sim::{Fault, FaultyDisk, ManualClock};

use crate::support::{
    Unreadable, Watched, at_level, create, keyed, local_log, name, pending, receive, send, settle,
    text, until,
};

const LONG: Duration = Duration::from_secs(3_600);

async fn take(engine: &Engine, max: u16) -> Vec<Received> {
    let batch = engine.receive(receive("q", max), Duration::ZERO).await;
    batch.unwrap().keep()
}

#[test]
fn futures_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    fn check(engine: &Engine) {
        is_send(&engine.submit(Purge { queue: name("q") }));
        is_send(&engine.submit_all([Purge { queue: name("q") }].into_iter().collect()));
        is_send(&engine.receive(receive("q", 1), LONG));
        is_send(&engine.query(Query::DescribeQueue(DescribeQueue { queue: name("q") })));
        is_send(&engine.peek(name("q"), None, None, 1));
        is_send(&engine.stopped());
        is_send(&engine.shutdown());
    }
    let _ = check;
}

#[tokio::test]
async fn a_message_goes_in_and_out() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let Reply::Sent(sent) = shard.engine.submit(send("q", text("hello"))).await.unwrap() else {
        panic!("another kind of answer");
    };
    let received = take(&shard.engine, 10).await.remove(0);
    assert_eq!(received.stored.message.body, "hello");
    assert_eq!(received.delivery.id, sent.id);
    let ack = settle(received.delivery.token, SettleAction::Ack);
    let settled = shard.engine.submit(ack).await.unwrap();
    assert!(matches!(settled, Reply::Settled(Settled::Done)));
    let query = Query::DescribeQueue(DescribeQueue { queue: name("q") });
    let QueryReply::Queue(queue) = shard.engine.query(query).await.unwrap() else {
        panic!("another kind of answer");
    };
    assert_eq!((queue.counts.ready, queue.totals.acknowledged), (0, 1));
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn one_caller_costs_one_sync_a_message() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let before = shard.controls.syncs();
    for _ in 0..100 {
        shard.engine.submit(send("q", text("a"))).await.unwrap();
    }
    let syncs = shard.controls.syncs() - before;
    assert!(
        (100..=110).contains(&syncs),
        "{syncs} syncs for 100 messages"
    );
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn while_one_sync_runs_the_next_group_gathers_and_is_written() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let syncs = shard.controls.syncs();
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let first = tokio::spawn(async move { engine.submit(send("q", text("a"))).await });
    until(|| shard.controls.syncs() == syncs + 1).await;
    let written = shard.disk.operations().writes;
    let others: Vec<_> = (0..20)
        .map(|_| {
            let engine = shard.engine.clone();
            tokio::spawn(async move { engine.submit(send("q", text("b"))).await })
        })
        .collect();
    until(|| shard.engine.metrics().held == 21).await;
    assert!(
        shard.disk.operations().writes > written,
        "written behind the running sync"
    );
    assert!(!first.is_finished() && others.iter().all(|other| !other.is_finished()));
    shard.controls.hold_syncs(false);
    for answer in others.into_iter().chain([first]) {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(
        shard.controls.syncs(),
        syncs + 2,
        "one more sync for all twenty"
    );
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn an_overview_waits_for_no_sync_and_callers_that_give_up_leave_room_for_others() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let syncs = shard.controls.syncs();
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let sent = tokio::spawn(async move { engine.submit(send("q", text("a"))).await });
    until(|| shard.controls.syncs() == syncs + 1).await;
    let queues = shard.engine.overview(10).await.unwrap();
    assert_eq!(queues[0].totals.accepted, 1);
    let figures = shard.engine.figures(None, 10).await.unwrap();
    let of_queue = |queue: &QueueDescription| (queue.id, queue.counts, queue.totals);
    assert_eq!(
        (figures[0].id, figures[0].counts, figures[0].totals),
        of_queue(&queues[0])
    );
    let last = Some(figures[0].name.clone());
    assert!(shard.engine.figures(last, 10).await.unwrap().is_empty());
    assert!(!sent.is_finished());

    // The owner itself hangs.
    let appends = shard.controls.appends();
    shard.controls.hold_appends(true);
    let engine = shard.engine.clone();
    let next = tokio::spawn(async move { engine.submit(send("q", text("b"))).await });
    until(|| shard.controls.appends() == appends + 1).await;
    for _ in 0..3 {
        assert!(pending(pin!(shard.engine.overview(10))).await);
        assert!(pending(pin!(shard.engine.figures(None, 10))).await);
    }
    shard.controls.hold_appends(false);
    let queues = shard.engine.overview(10).await.unwrap();
    assert_eq!(queues[0].totals.accepted, 2);
    shard.controls.hold_syncs(false);
    sent.await.unwrap().unwrap();
    next.await.unwrap().unwrap();
    shard.engine.shutdown().await;
    assert!(shard.engine.overview(10).await.is_none());
    assert!(shard.engine.figures(None, 10).await.is_none());
}

#[tokio::test]
async fn nobody_waits_for_a_sync_that_is_not_his() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let other = create("written", at_level(Level::Process));
    shard.engine.submit(other).await.unwrap();
    let syncs = shard.controls.syncs();
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let slow = tokio::spawn(async move { engine.submit(send("q", text("a"))).await });
    until(|| shard.controls.syncs() == syncs + 1).await;
    for _ in 0..3 {
        shard
            .engine
            .submit(send("written", text("b")))
            .await
            .unwrap();
    }
    assert!(!slow.is_finished());
    shard.controls.hold_syncs(false);
    slow.await.unwrap().unwrap();
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_count_of_unsynced_records_starts_a_sync() {
    let options = EngineOptions {
        sync_window: SyncWindow {
            after: None,
            records: Some(3),
        },
        ..EngineOptions::default()
    };
    let shard = Watched::with_options(options);
    let queue = create("q", at_level(Level::Process));
    shard.engine.submit(queue).await.unwrap();
    // What the first message of a queue may bring with it.
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let mut syncs = shard.controls.syncs();
    let at_start = syncs - shard.engine.metrics().syncs;
    for _ in 0..5 {
        for _ in 0..3 {
            shard.engine.submit(send("q", text("a"))).await.unwrap();
        }
        syncs += 1;
        shard.controls.wait_for_syncs(syncs);
        // To its end: what is appended while it runs may be covered by it, and is not counted then.
        until(|| shard.engine.metrics().syncs == syncs - at_start).await;
    }
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_time_starts_a_sync_too() {
    let options = EngineOptions {
        sync_window: SyncWindow {
            after: Some(1),
            records: None,
        },
        ..EngineOptions::default()
    };
    let shard = Watched::with_options(options);
    let queue = create("q", at_level(Level::Process));
    shard.engine.submit(queue).await.unwrap();
    let syncs = shard.controls.syncs();
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    shard.controls.wait_for_syncs(syncs + 1);
    shard.engine.shutdown().await;
}

/// A queue of level process with that window, in an engine whose own never ends.
async fn with_window(window: SyncWindow) -> Watched {
    let options = EngineOptions {
        sync_window: SyncWindow::default(),
        ..EngineOptions::default()
    };
    let shard = Watched::with_options(options);
    let settings = QueueSettings {
        sync_window: window.after,
        sync_records: window.records,
        ..at_level(Level::Process)
    };
    shard.engine.submit(create("q", settings)).await.unwrap();
    let idle = create("idle", at_level(Level::Process));
    shard.engine.submit(idle).await.unwrap();
    shard
}

/// How many messages are there after a power cut.
async fn after_a_power_cut(shard: Watched) -> u64 {
    let disk = shard.disk.crash(lockgate_sim::PowerCut::LoseAllUnsynced);
    let log = local_log(&disk);
    let clock = Arc::new(shard.clock.clone());
    let (again, report) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    again.shutdown().await;
    report.messages
}

#[tokio::test]
async fn a_queue_may_ask_for_a_shorter_time_and_its_sync_serves_all() {
    let shard = with_window(lockgate_machine::SyncWindow {
        after: Some(1),
        records: None,
    })
    .await;
    // Nothing else happens later that a sync could be for.
    shard.engine.submit(send("idle", text("a"))).await.unwrap();
    let before = shard.engine.metrics().syncs;
    shard.engine.submit(send("q", text("b"))).await.unwrap();
    until(|| shard.engine.metrics().syncs > before).await;
    assert_eq!(after_a_power_cut(shard).await, 2);
}

#[tokio::test]
async fn a_queue_may_ask_for_fewer_records_and_loses_no_more() {
    let shard = with_window(lockgate_machine::SyncWindow {
        after: None,
        records: Some(3),
    })
    .await;
    let rounds = 5;
    for _ in 0..rounds {
        let before = shard.engine.metrics().syncs;
        for _ in 0..3 {
            shard.engine.submit(send("q", text("a"))).await.unwrap();
        }
        until(|| shard.engine.metrics().syncs > before).await;
    }
    let left = after_a_power_cut(shard).await;
    assert!(left >= rounds * 3 - 2, "{left} messages");
}

#[tokio::test]
async fn a_failed_sync_stops_the_engine_and_is_never_tried_again() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let empty = create("empty", QueueSettings::default());
    shard.engine.submit(empty).await.unwrap();
    let engine = shard.engine.clone();
    let waits = tokio::spawn(async move { engine.receive(receive("empty", 1), LONG).await });
    until(|| shard.engine.metrics().waiters == 1).await;

    shard
        .disk
        .fail_always(DiskOperation::Sync, 0, Fault::LostPages);
    let syncs = shard.controls.syncs();
    let unknown = shard.engine.submit(send("q", text("a"))).await;
    assert!(
        matches!(unknown, Err(EngineError::UnknownOutcome { .. })),
        "{unknown:?}"
    );
    let reason = shard.engine.stopped().await;
    assert!(reason.is_failure());
    assert!(matches!(shard.engine.status(), Status::Stopped { reason: why } if why == reason));
    let later = shard.engine.submit(send("q", text("b"))).await;
    assert!(
        matches!(later, Err(EngineError::Stopped { .. })),
        "{later:?}"
    );
    let waited = waits.await.unwrap();
    assert!(
        matches!(waited, Err(EngineError::Stopped { .. })),
        "{waited:?}"
    );
    shard.engine.shutdown().await;
    assert_eq!(shard.controls.syncs(), syncs + 1);
    assert_eq!(shard.engine.metrics().unknown, 1);
}

#[tokio::test]
async fn a_failed_append_stops_the_engine() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let fault = Fault::Error(std::io::ErrorKind::Other);
    shard.disk.fail_always(DiskOperation::Write, 0, fault);
    let unknown = shard.engine.submit(send("q", text("a"))).await;
    assert!(
        matches!(unknown, Err(EngineError::UnknownOutcome { .. })),
        "{unknown:?}"
    );
    assert!(shard.engine.stopped().await.is_failure());
}

#[tokio::test]
async fn a_panic_in_the_engine_leaves_nobody_waiting() {
    for at_sync in [false, true] {
        let shard = Watched::with_queue(QueueSettings::default()).await;
        if at_sync {
            shard.controls.panic_at_sync();
        } else {
            shard.controls.panic_at_append();
        }
        let unknown = shard.engine.submit(send("q", text("a"))).await;
        assert!(
            matches!(unknown, Err(EngineError::UnknownOutcome { .. })),
            "{unknown:?}"
        );
        assert!(shard.engine.stopped().await.is_failure());
        let later = shard.engine.submit(send("q", text("b"))).await;
        assert!(
            matches!(later, Err(EngineError::Stopped { .. })),
            "{later:?}"
        );
        shard.engine.shutdown().await;
    }
}

/// The record with which the term ends is the last one that is appended.
#[tokio::test]
async fn a_panic_at_the_end_leaves_nobody_waiting() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.controls.panic_at_append();
    let shut = tokio::time::timeout(Duration::from_secs(60), shard.engine.shutdown());
    shut.await.expect("whoever shuts it down is told");
    assert!(shard.engine.stopped().await.is_failure());
    drop(local_log(&shard.disk));
}

#[tokio::test]
async fn a_waiting_receive_is_woken_by_a_send() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let engine = shard.engine.clone();
    let waits = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().waiters == 1).await;
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let batch = waits.await.unwrap().unwrap();
    assert_eq!(batch[0].stored.message.body, "a");
    drop(batch);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_waiting_receive_is_woken_by_time() {
    let shard = Watched::with_queue(at_level(Level::Process)).await;
    let due = shard.clock.wall().plus(10_000);
    let later = text("later").with_due(due);
    shard.engine.submit(send("q", later)).await.unwrap();
    let engine = shard.engine.clone();
    let waits = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().waiters == 1).await;
    shard.pass(10_000);
    assert_eq!(waits.await.unwrap().unwrap().len(), 1);

    let engine = shard.engine.clone();
    let wait = Duration::from_secs(5);
    let waits = tokio::spawn(async move { engine.receive(receive("empty", 1), wait).await });
    assert!(matches!(
        waits.await.unwrap(),
        Err(EngineError::Rejected(Rejection::QueueNotFound { .. }))
    ));
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_wait_that_runs_out_ends_empty() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let engine = shard.engine.clone();
    let wait = Duration::from_secs(5);
    let waits = tokio::spawn(async move { engine.receive(receive("q", 1), wait).await });
    until(|| shard.engine.metrics().waiters == 1).await;
    shard.pass(5_000);
    assert!(waits.await.unwrap().unwrap().is_empty());
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn who_is_gone_is_passed_over() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let wait =
        |engine: Engine| tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    let gone = wait(shard.engine.clone());
    until(|| shard.engine.metrics().waiters == 1).await;
    let stays = wait(shard.engine.clone());
    until(|| shard.engine.metrics().waiters == 2).await;
    gone.abort();
    gone.await.unwrap_err();
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let batch = stays.await.unwrap().unwrap();
    assert_eq!(batch[0].delivery.attempt, 1);
    assert_eq!(
        shard.engine.metrics().given_back,
        0,
        "it was never leased to who was gone"
    );
    drop(batch.keep());
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_dropped_batch_goes_back_and_the_attempts_do_not_count() {
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let shard = Watched::with_queue(settings).await;
    for (body, key) in [("a", "1"), ("b", "1"), ("c", "2")] {
        shard
            .engine
            .submit(send("q", keyed(body, key)))
            .await
            .unwrap();
    }
    let bodies = |batch: &ReceivedBatch| -> Vec<_> {
        let bodies = batch
            .iter()
            .map(|received| received.stored.message.body.clone());
        bodies.collect()
    };
    let batch = shard.engine.receive(receive("q", 10), LONG).await.unwrap();
    assert_eq!(bodies(&batch), ["a", "b", "c"]);
    drop(batch);
    let batch = shard.engine.receive(receive("q", 10), LONG).await.unwrap();
    assert_eq!(batch.len(), 3, "all of them at once");
    assert!(batch.iter().all(|received| received.delivery.attempt == 1));
    let kept = batch.keep();
    assert!(take(&shard.engine, 10).await.is_empty(), "kept is kept");
    for received in kept {
        let ack = settle(received.delivery.token, SettleAction::Ack);
        let settled = shard.engine.submit(ack).await.unwrap();
        assert!(matches!(settled, Reply::Settled(Settled::Done)));
    }
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_lease_whose_answer_nobody_takes_goes_back() {
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let shard = Watched::with_queue(settings).await;
    shard
        .engine
        .submit(send("q", keyed("a", "k")))
        .await
        .unwrap();
    // The first lease of a keyed queue raises its lease bound, which is synced: the answer is held.
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let gone = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().held == 1).await;
    gone.abort();
    gone.await.unwrap_err();
    shard.controls.hold_syncs(false);
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    assert_eq!(batch[0].delivery.attempt, 1);
    assert_eq!(shard.engine.metrics().given_back, 1);
    drop(batch.keep());
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_lease_that_ended_on_its_way_is_not_handed_over() {
    let settings = QueueSettings {
        keyed: true,
        lease: 1_000,
        ..QueueSettings::default()
    };
    let shard = Watched::with_queue(settings).await;
    let message = keyed("a", "k");
    shard.engine.submit(send("q", message)).await.unwrap();
    // The first lease of a keyed queue raises its lease bound, which is synced: the answer is held.
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let late = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().held == 1).await;
    shard.pass(1_000);
    shard.controls.hold_syncs(false);
    let batch = late.await.unwrap().unwrap();
    assert_eq!(batch[0].delivery.attempt, 2, "a new lease, not the old one");
    assert!(batch[0].delivery.deadline > shard.engine.now().machine);

    // Who does not wait is told that there is nothing; a lease that is always too short would be given again
    // without end.
    drop(batch.keep());
    shard.pass(1_000);
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let long = lockgate_machine::Receive {
        lease: Some(40_000),
        ..receive("q", 1)
    };
    let late = tokio::spawn(async move { engine.receive(long, Duration::ZERO).await });
    until(|| shard.engine.metrics().held == 1).await;
    shard.pass(40_000);
    shard.controls.hold_syncs(false);
    assert!(late.await.unwrap().unwrap().is_empty());
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    assert_eq!(batch[0].delivery.attempt, 4, "the other three have ended");

    // A lease of no length is what its caller wants.
    drop(batch);
    let peek = lockgate_machine::Receive {
        lease: Some(0),
        ..receive("q", 1)
    };
    assert_eq!(shard.engine.receive(peek, LONG).await.unwrap().len(), 1);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_batch_of_commands_takes_one_answer_in_order() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let commands = ["q", "missing", "q"].map(|queue| send(queue, text("a")));
    let results = shard
        .engine
        .submit_all(commands.to_vec().into())
        .await
        .unwrap();
    assert!(matches!(
        results[..],
        [
            Ok(Reply::Sent(_)),
            Err(Rejection::QueueNotFound { .. }),
            Ok(Reply::Sent(_))
        ]
    ));
    assert!(
        shard
            .engine
            .submit_all(Batch::<Command>::default())
            .await
            .unwrap()
            .is_empty()
    );
    shard.engine.shutdown().await;
}

/// A queue with three messages, of which the second one cannot be read.
async fn with_middle_unreadable(how: Unreadable) -> Watched {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    for body in ["a", "b", "c"] {
        shard.engine.submit(send("q", text(body))).await.unwrap();
    }
    let batch = shard.engine.receive(receive("q", 10), LONG).await.unwrap();
    let bad = batch[1].delivery.location.position;
    drop(batch);
    shard.controls.make_unreadable(bad, how);
    shard
}

#[tokio::test]
async fn a_damaged_payload_is_dropped_and_the_rest_is_delivered() {
    let shard = with_middle_unreadable(Unreadable::Damaged).await;
    let batch = shard.engine.receive(receive("q", 10), LONG).await.unwrap();
    assert_eq!(batch.len(), 2);
    drop(batch.keep());
    assert_eq!(shard.engine.metrics().damaged, 1);
    let query = Query::DescribeQueue(DescribeQueue { queue: name("q") });
    let QueryReply::Queue(queue) = shard.engine.query(query).await.unwrap() else {
        panic!("another kind of answer");
    };
    assert_eq!(queue.totals.dropped.damaged, 1);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_receive_that_finds_only_damage_goes_on_waiting() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    let bad = batch[0].delivery.location.position;
    drop(batch);
    shard.controls.make_unreadable(bad, Unreadable::Damaged);
    let engine = shard.engine.clone();
    let waits = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().damaged == 1).await;
    shard.engine.submit(send("q", text("b"))).await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap()[0].stored.message.body, "b");
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn storage_that_cannot_be_read_loses_nothing() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    let bad = batch[0].delivery.location.position;
    drop(batch);
    shard.controls.make_unreadable(bad, Unreadable::Storage);
    let error = shard
        .engine
        .receive(receive("q", 1), LONG)
        .await
        .unwrap_err();
    assert!(matches!(error, EngineError::Unreadable { at, .. } if at == bad));
    shard.controls.make_readable();
    let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
    assert_eq!(batch[0].delivery.attempt, 1);
    assert_eq!(shard.engine.metrics().damaged, 0);
    drop(batch.keep());
    shard.engine.shutdown().await;
}

/// What storage failed on goes back at once, and so does what comes behind it.
#[tokio::test]
async fn a_batch_that_storage_fails_in_the_middle_of_gives_the_rest_back() {
    let shard = with_middle_unreadable(Unreadable::Storage).await;
    let batch = shard.engine.receive(receive("q", 10), LONG).await.unwrap();
    assert_eq!(batch.len(), 1);
    let queue = shard.engine.query(DescribeQueue { queue: name("q") }).await;
    assert_eq!(queue.unwrap().counts.in_flight, 1);
    drop(batch.keep());
    shard.controls.make_readable();
    let rest = take(&shard.engine, 10).await;
    let attempts = rest.iter().map(|received| received.delivery.attempt);
    assert_eq!(attempts.collect::<Vec<_>>(), [1, 1]);
    shard.engine.shutdown().await;
}

/// Nobody knows what the disk kept of what was written since the sync before. A snapshot of the state at
/// the end would make all of that true.
#[tokio::test]
async fn an_engine_whose_last_sync_fails_takes_no_snapshot() {
    let never = SyncWindow::default();
    let shard = Watched::with_options(EngineOptions {
        sync_window: never,
        ..EngineOptions::default()
    });
    let queue = create("q", at_level(Level::Process));
    shard.engine.submit(queue).await.unwrap();
    let body = "x".repeat(60_000);
    for _ in 0..100 {
        shard.engine.submit(send("q", text(&body))).await.unwrap();
    }
    shard.controls.panic_at_sync();
    shard.engine.shutdown().await;
    let reason = shard.engine.stopped().await;
    assert_eq!(reason, StopReason::Panicked);
    let is_snapshot = |name: &&String| name.contains(".snapshot");
    let image = shard.disk.image();
    assert_eq!(image.keys().find(is_snapshot), None);
}

/// A log that has failed in its own maintenance takes nothing more. Nobody has to send something to find out.
#[tokio::test]
async fn an_engine_whose_log_failed_in_its_maintenance_stops() {
    let disk = FaultyDisk::new();
    // No room for a reserve: maintenance has nothing to do until there is some.
    disk.set_free_bytes(Some(1_100 << 10));
    let options = EngineOptions::default();
    let shard = Watched::on(disk, ManualClock::default(), options);
    // The preallocated file is synced, and then its name.
    let failure = Fault::Error(std::io::ErrorKind::Other);
    shard.disk.fail(DiskOperation::Sync, 1, failure);
    shard.disk.set_free_bytes(None);
    until(|| matches!(shard.engine.status(), Status::Stopped { .. })).await;
    assert!(matches!(
        shard.engine.stopped().await,
        StopReason::Storage(_)
    ));
}

#[tokio::test]
async fn a_queue_is_in_the_directory_when_its_answer_leaves_and_not_before() {
    let shard = Watched::new();
    shard.controls.hold_syncs(true);
    let engine = shard.engine.clone();
    let queue = create("q", QueueSettings::default());
    let made = tokio::spawn(async move { engine.submit(queue).await });
    until(|| shard.engine.metrics().held >= 1).await;
    assert!(shard.engine.directory().get(&name("q")).is_none());
    shard.controls.hold_syncs(false);
    made.await.unwrap().unwrap();
    let entry = shard.engine.directory().get(&name("q")).unwrap();
    assert_eq!(shard.engine.directory().by_id(entry.id).unwrap(), entry);

    let change = Command::ChangeQueue(ChangeQueue {
        queue: name("q"),
        settings: None,
        annotations: None,
        tags: Some([("team".to_owned(), "blue".to_owned())].into()),
    });
    shard.engine.submit(change).await.unwrap();
    assert_eq!(
        shard.engine.directory().get(&name("q")).unwrap().tags["team"],
        "blue"
    );
    let delete = Command::DeleteQueue(DeleteQueue { queue: name("q") });
    shard.engine.submit(delete).await.unwrap();
    assert!(shard.engine.directory().is_empty());
    shard.engine.shutdown().await;
}

/// What a command does may be much more than it says. A log that is nearly full stops the engine if a record
/// was not reserved for as long as it is; the [`WatchedLog`](crate::support::WatchedLog) compares.
#[tokio::test]
async fn what_is_reserved_is_what_is_written() {
    for key_profile in [KeyProfile::Strict, KeyProfile::Sqs] {
        let settings = QueueSettings {
            keyed: true,
            key_profile,
            level: Level::Process,
            ..QueueSettings::default()
        };
        let shard = Watched::new();
        let submit = async |command| shard.engine.submit(command).await.unwrap();
        submit(create("dead", settings.clone())).await;
        let q = QueueSettings {
            dead_letter: Some(name("dead")),
            attempts_max: 10,
            ..settings
        };
        submit(create("q", q.clone())).await;
        for _ in 0..100 {
            submit(send("q", keyed("x", "a key"))).await;
        }
        let batch = shard.engine.receive(receive("q", 100), LONG).await;
        let received = batch.unwrap().keep();
        assert_eq!(received.len(), 100);
        let tokens = received.iter().map(|received| received.delivery.token);
        let reject = |token| Settle {
            token,
            action: SettleAction::Reject {
                reason: Some("r".repeat(1_024).into()),
            },
        };
        let settles = match key_profile {
            // The others of the batch come back with the first.
            KeyProfile::Strict => tokens.take(1).map(reject).collect(),
            KeyProfile::Sqs => tokens.take(30).map(reject).collect(),
        };
        submit(Command::Transact(Transact {
            settles,
            ..Transact::default()
        }))
        .await;
        drop(take(&shard.engine, 100).await);
        shard.pass(60_000);
        let change = Command::ChangeQueue(ChangeQueue {
            queue: name("q"),
            settings: Some(Box::new(QueueSettings {
                dead_letter: Some(name("dead")),
                attempts_max: 1,
                ..q
            })),
            annotations: None,
            tags: None,
        });
        submit(change).await;
        // A receive of one moves all that were leased before.
        submit(send("q", keyed("late", "another key"))).await;
        let batch = shard.engine.receive(receive("q", 1), LONG).await.unwrap();
        assert_eq!(batch[0].stored.message.body, "late");
        drop(batch);
        shard.engine.shutdown().await;
        assert_eq!(shard.engine.stopped().await, StopReason::ShutDown);
    }
}

/// Somebody has removed what the log writes to. A shutdown that says nothing would end in good order and lose
/// all of it.
#[tokio::test]
async fn a_shutdown_tells_that_files_were_removed() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    shard.disk.remove("00000001.log").unwrap();
    shard.engine.shutdown().await;
    let StopReason::Storage(reason) = shard.engine.stopped().await else {
        panic!("it ended in good order");
    };
    let told = "00000001.log in the faulty disk: removed or replaced";
    assert!(reason.to_string().contains(told), "{reason}");
}

#[tokio::test]
async fn a_shutdown_answers_what_came_before_and_frees_the_log() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let engine = shard.engine.clone();
    let waits = tokio::spawn(async move { engine.receive(receive("q", 1), LONG).await });
    until(|| shard.engine.metrics().waiters == 1).await;
    let other = create("other", QueueSettings::default());
    shard.engine.submit(other).await.unwrap();
    shard.controls.hold_appends(true);
    let appends = shard.controls.appends();
    let send_one = || {
        let engine = shard.engine.clone();
        tokio::spawn(async move { engine.submit(send("other", text("a"))).await })
    };
    let mut pending = vec![send_one()];
    until(|| shard.controls.appends() == appends + 1).await;
    pending.extend((0..9).map(|_| send_one()));
    until(|| shard.engine.metrics().inbox == 9).await;
    let engine = shard.engine.clone();
    let shut = tokio::spawn(async move { engine.shutdown().await });
    until(|| shard.engine.status() == Status::Stopping).await;
    shard.controls.hold_appends(false);
    shut.await.unwrap();
    for answer in pending {
        answer.await.unwrap().unwrap();
    }
    assert!(
        waits.await.unwrap().unwrap().is_empty(),
        "the long poll ended empty"
    );
    shard.engine.shutdown().await;
    let stopped = StopReason::ShutDown;
    assert_eq!(shard.engine.stopped().await, stopped);
    let later = shard.engine.submit(send("q", text("b"))).await;
    assert!(matches!(later, Err(EngineError::Stopped { reason }) if reason == stopped));

    // Everything is synced, so not even a power cut takes anything.
    let disk = shard.disk.crash(lockgate_sim::PowerCut::LoseAllUnsynced);
    let log = local_log(&disk);
    let clock = Arc::new(shard.clock.clone());
    let (again, report) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    assert!(!report.crashed && report.is_clean());
    assert_eq!((report.queues, report.messages), (2, 10));
    again.shutdown().await;
}

#[tokio::test]
async fn the_last_handle_stops_the_engine() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let Watched { engine, disk, .. } = shard;
    let second = engine.clone();
    drop(engine);
    second.submit(send("q", text("a"))).await.unwrap();
    drop(second);
    let open = || {
        LocalLog::open(
            Arc::new(disk.clone()),
            lockgate_log::LocalLogOptions::default(),
        )
    };
    until(|| open().is_ok()).await;
}

#[tokio::test]
async fn shards_share_nothing() {
    let one = Watched::with_queue(QueueSettings::default()).await;
    let other = Watched::on(
        FaultyDisk::new(),
        ManualClock::default(),
        EngineOptions::default(),
    );
    one.engine.submit(send("q", text("a"))).await.unwrap();
    let missing = other.engine.submit(send("q", text("a"))).await;
    assert!(matches!(
        missing,
        Err(EngineError::Rejected(Rejection::QueueNotFound { .. }))
    ));
    assert_ne!(one.engine.secret(), other.engine.secret());
    one.controls.hold_syncs(true);
    let queue = create("q", QueueSettings::default());
    other.engine.submit(queue).await.unwrap();
    one.controls.hold_syncs(false);
    one.engine.shutdown().await;
    other.engine.shutdown().await;
}

#[tokio::test]
async fn a_look_shows_messages_and_takes_none() {
    let shard = Watched::with_queue(at_level(Level::Process)).await;
    for body in ["a", "b", "c"] {
        shard.engine.submit(send("q", text(body))).await.unwrap();
    }
    let taken = take(&shard.engine, 1).await.remove(0);
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = shard.engine.peek(name("q"), None, after, 2).await.unwrap();
        for message in page.messages {
            let stored = message.stored.unwrap();
            assert_eq!(stored.id, message.status.id);
            let is_leased = matches!(message.status.waits_for, MessageWait::Lease { .. });
            seen.push((stored.message.body, is_leased));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(
        seen,
        [("a".into(), true), ("b".into(), false), ("c".into(), false)]
    );
    assert_eq!(take(&shard.engine, 9).await.len(), 2, "nothing was taken");
    let none = shard.engine.peek(name("nope"), None, None, 1).await;
    assert!(matches!(none, Err(EngineError::Rejected(_))));

    let at = taken.delivery.location.position;
    shard.controls.make_unreadable(at, Unreadable::Damaged);
    let page = shard.engine.peek(name("q"), None, None, 9).await.unwrap();
    let readable: Vec<bool> = page.messages.iter().map(|m| m.stored.is_some()).collect();
    assert_eq!(readable, [false, true, true]);
    let at = page.messages[1].status.location.position;
    shard.controls.make_unreadable(at, Unreadable::Storage);
    let failed = shard.engine.peek(name("q"), None, None, 9).await;
    assert!(matches!(failed, Err(EngineError::Unreadable { .. })));
    shard.engine.shutdown().await;
}

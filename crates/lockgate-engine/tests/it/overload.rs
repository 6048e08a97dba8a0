//! What happens when more comes than goes.

use std::time::Duration;

use lockgate_core::{DiskOperation, Level};
use lockgate_engine::{EngineError, EngineOptions, Status};
use lockgate_machine::{
    DescribeQueue, Query, QueryReply, QueueSettings, Rejection, Reply, SettleAction, Settled,
};
use lockgate_sim::{Fault, ManualClock};

use crate::support::{
    Watched, at_level, create, name, pending, receive, send, settle, text, until,
};

/// An engine whose owner is stuck in an append, and whose inbox has room for four sends.
async fn stuck() -> (Watched, tokio::task::JoinHandle<Result<Reply, EngineError>>) {
    let options = EngineOptions {
        inbox_requests_max: 4,
        inbox_bytes_max: 4_096,
        ..EngineOptions::default()
    };
    let shard = Watched::with_options(options);
    let queue = create("q", at_level(Level::Process));
    shard.engine.submit(queue).await.unwrap();
    shard.engine.submit(send("q", text("first"))).await.unwrap();
    // Its timer is put where it belongs when time passes next, which is a record too. Once that is
    // appended, the next append is the one that sticks.
    assert_eq!(messages(&shard).await, 1);
    shard.controls.hold_appends(true);
    let appends = shard.controls.appends();
    let engine = shard.engine.clone();
    let stuck = tokio::spawn(async move { engine.submit(send("q", text("stuck"))).await });
    until(|| shard.controls.appends() == appends + 1).await;
    (shard, stuck)
}

async fn messages(shard: &Watched) -> u64 {
    let query = Query::DescribeQueue(DescribeQueue { queue: name("q") });
    match shard.engine.query(query).await.unwrap() {
        QueryReply::Queue(queue) => queue.counts.ready + queue.counts.in_flight,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn sends_wait_for_room_and_go_on_when_there_is_some() {
    let (shard, stuck) = stuck().await;
    let mut sends: Vec<_> = (0..6)
        .map(|_| Box::pin(shard.engine.submit(send("q", text("a")))))
        .collect();
    for send in &mut sends {
        assert!(pending(send.as_mut()).await);
    }
    assert_eq!(shard.engine.metrics().inbox, 4, "two wait outside");
    shard.controls.hold_appends(false);
    stuck.await.unwrap().unwrap();
    for send in sends {
        send.await.unwrap();
    }
    assert_eq!(messages(&shard).await, 8);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn what_is_given_up_on_before_it_is_in_the_inbox_never_happens() {
    let (shard, stuck) = stuck().await;
    let mut sends: Vec<_> = (0..6)
        .map(|_| Box::pin(shard.engine.submit(send("q", text("a")))))
        .collect();
    for send in &mut sends {
        assert!(pending(send.as_mut()).await);
    }
    // Four of them are in and may happen; that they do is how this engine is.
    drop(sends);
    shard.controls.hold_appends(false);
    stuck.await.unwrap().unwrap();
    // A query would pass sends that wait; a send does not.
    shard.engine.submit(send("q", text("last"))).await.unwrap();
    assert_eq!(messages(&shard).await, 7);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_large_request_waits_for_its_bytes_and_goes_in_alone() {
    let (shard, stuck) = stuck().await;
    let huge = text(&"x".repeat(20_000));
    let mut huge = Box::pin(shard.engine.submit(send("q", huge)));
    assert!(pending(huge.as_mut()).await);
    let mut small = Box::pin(shard.engine.submit(send("q", text("a"))));
    assert!(pending(small.as_mut()).await);
    assert_eq!(shard.engine.metrics().inbox, 1);
    shard.controls.hold_appends(false);
    stuck.await.unwrap().unwrap();
    huge.await.unwrap();
    small.await.unwrap();
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn sends_are_shed_by_the_age_of_the_inbox_and_settles_never() {
    let options = EngineOptions::default();
    let shard = Watched::with_options(options);
    let queue = create("q", QueueSettings::default());
    shard.engine.submit(queue).await.unwrap();
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let batch = shard
        .engine
        .receive(receive("q", 1), std::time::Duration::ZERO)
        .await
        .unwrap();
    let token = batch.keep()[0].delivery.token;

    shard.controls.hold_appends(true);
    let appends = shard.controls.appends();
    let mut first = Box::pin(shard.engine.submit(send("q", text("b"))));
    assert!(pending(first.as_mut()).await);
    until(|| shard.controls.appends() == appends + 1).await;
    let mut waits = Box::pin(shard.engine.submit(send("q", text("c"))));
    assert!(pending(waits.as_mut()).await);
    shard.clock.advance(1_000);
    let mut still = Box::pin(shard.engine.submit(send("q", text("d"))));
    assert!(pending(still.as_mut()).await, "one second is not too long");
    shard.clock.advance(1);
    let shed = shard.engine.submit(send("q", text("e"))).await;
    assert!(matches!(shed, Err(EngineError::Overloaded)), "{shed:?}");
    let all = vec![send("q", text("f")); 3];
    let shed = shard.engine.submit_all(all.into()).await;
    assert!(matches!(shed, Err(EngineError::Overloaded)), "{shed:?}");
    assert_eq!(shard.engine.metrics().overloaded, 2);
    let mut ack = Box::pin(shard.engine.submit(settle(token, SettleAction::Ack)));
    assert!(pending(ack.as_mut()).await, "taken in");

    shard.controls.hold_appends(false);
    assert!(matches!(ack.await, Ok(Reply::Settled(Settled::Done))));
    for send in [first, waits, still] {
        send.await.unwrap();
    }
    shard
        .engine
        .submit(send("q", text("g")))
        .await
        .expect("normal again by itself");
    assert_eq!(messages(&shard).await, 4);
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn settles_do_not_wait_behind_sends_that_wait_for_room() {
    let (shard, stuck) = stuck().await;
    let mut sends: Vec<_> = (0..10)
        .map(|_| Box::pin(shard.engine.submit(send("q", text("a")))))
        .collect();
    for send in &mut sends {
        assert!(pending(send.as_mut()).await);
    }
    let inbox = shard.engine.metrics().inbox;
    let query = Query::DescribeQueue(DescribeQueue { queue: name("q") });
    let mut other = Box::pin(shard.engine.query(query));
    assert!(pending(other.as_mut()).await);
    assert_eq!(shard.engine.metrics().inbox, inbox + 1);
    shard.controls.hold_appends(false);
    other.await.unwrap();
    stuck.await.unwrap().unwrap();
    for send in sends {
        send.await.unwrap();
    }
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn who_waits_for_room_is_told_when_the_engine_stops() {
    let (shard, stuck) = stuck().await;
    let mut sends: Vec<_> = (0..6)
        .map(|_| Box::pin(shard.engine.submit(send("q", text("a")))))
        .collect();
    for send in &mut sends {
        assert!(pending(send.as_mut()).await);
    }
    let mut shutdown = Box::pin(shard.engine.shutdown());
    assert!(pending(shutdown.as_mut()).await);
    shard.controls.hold_appends(false);
    shutdown.await;
    stuck.await.unwrap().unwrap();
    let mut stopped = 0;
    for send in sends {
        match send.await {
            Ok(_) => {}
            Err(EngineError::Stopped { .. }) => stopped += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(stopped, 2);
}

/// Connections once took every descriptor, the next file of the log could not be made, and the engine
/// stopped as if the disk had failed.
#[tokio::test]
async fn while_no_file_can_be_opened_sends_are_refused_and_settles_go_on() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let body = "x".repeat(50_000);
    for _ in 0..10 {
        shard.engine.submit(send("q", text(&body))).await.unwrap();
    }
    let out = Fault::OutOfDescriptors;
    shard.disk.fail_always(DiskOperation::Open, 0, out);
    let refused = loop {
        match shard.engine.submit(send("q", text(&body))).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, EngineError::Rejected(Rejection::OutOfDescriptors)),
        "{refused:?}"
    );
    let batch = shard.engine.receive(receive("q", 10), Duration::ZERO).await;
    for received in batch.unwrap().keep() {
        let ack = settle(received.delivery.token, SettleAction::Ack);
        let settled = shard.engine.submit(ack).await;
        assert!(matches!(settled, Ok(Reply::Settled(Settled::Done))));
    }
    assert_eq!(shard.engine.status(), Status::Serving);
    shard.disk.disarm();
    shard.engine.submit(send("q", text("again"))).await.unwrap();
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_message_whose_file_cannot_be_opened_comes_again() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.submit(send("q", text("kept"))).await.unwrap();
    shard.engine.shutdown().await;
    let options = EngineOptions::default();
    let shard = Watched::on(shard.disk.kill(), ManualClock::default(), options);
    let out = Fault::OutOfDescriptors;
    shard.disk.fail_always(DiskOperation::Open, 0, out);
    let unread = shard.engine.receive(receive("q", 1), Duration::ZERO).await;
    assert!(
        matches!(unread, Err(EngineError::Unreadable { .. })),
        "{unread:?}"
    );
    shard.disk.disarm();
    let batch = shard.engine.receive(receive("q", 1), Duration::ZERO).await;
    let batch = batch.unwrap();
    assert_eq!(batch[0].stored.message.body, "kept");
    assert_eq!(batch[0].delivery.attempt, 1, "it was never handed over");
    assert_eq!(shard.engine.metrics().damaged, 0);
    drop(batch);
    shard.engine.shutdown().await;
}

/// A disk that hangs in a sync holds up answers; so many that there is no room for more. What comes then
/// waits in the inbox, and sends are refused by its age.
#[tokio::test]
async fn answers_that_wait_for_a_hanging_sync_are_bounded() {
    let by_count = EngineOptions {
        answers_max: 4,
        group_requests_max: 1,
        ..EngineOptions::default()
    };
    let by_bytes = EngineOptions {
        answers_max: usize::MAX,
        answers_bytes_max: 1,
        ..by_count.clone()
    };
    for (options, held_max) in [(by_count, 4), (by_bytes, 1)] {
        let shard = Watched::with_options(options);
        let queue = create("q", QueueSettings::default());
        shard.engine.submit(queue).await.unwrap();
        shard.controls.hold_syncs(true);
        let mut sends = Vec::new();
        for _ in 0..10 {
            let mut send = Box::pin(shard.engine.submit(send("q", text("a"))));
            assert!(pending(send.as_mut()).await);
            sends.push(send);
        }
        let is_full = || {
            let metrics = shard.engine.metrics();
            (metrics.held, metrics.inbox) == (held_max, 10 - held_max)
        };
        until(is_full).await;
        shard.clock.advance(1_001);
        let refused = shard.engine.submit(send("q", text("one too many"))).await;
        assert!(
            matches!(refused, Err(EngineError::Overloaded)),
            "{refused:?}"
        );
        assert!(is_full());
        shard.controls.hold_syncs(false);
        for send in sends {
            send.await.unwrap();
        }
        assert_eq!(shard.engine.metrics().held, 0);
        shard.engine.shutdown().await;
    }
}

#[tokio::test]
async fn a_shutdown_needs_no_room_for_answers() {
    let options = EngineOptions {
        answers_max: 1,
        ..EngineOptions::default()
    };
    let shard = Watched::with_options(options);
    let queue = create("q", QueueSettings::default());
    shard.engine.submit(queue).await.unwrap();
    shard.controls.hold_syncs(true);
    let mut first = Box::pin(shard.engine.submit(send("q", text("a"))));
    assert!(pending(first.as_mut()).await);
    until(|| shard.engine.metrics().held == 1).await;
    let mut second = Box::pin(shard.engine.submit(send("q", text("b"))));
    assert!(pending(second.as_mut()).await);
    let mut shutdown = Box::pin(shard.engine.shutdown());
    assert!(pending(shutdown.as_mut()).await);
    until(|| shard.engine.metrics().held == 2).await;
    shard.controls.hold_syncs(false);
    first.await.unwrap();
    second.await.unwrap();
    shutdown.await;
}

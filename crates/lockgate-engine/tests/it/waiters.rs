//! Receives that wait: oldest first, one woken per leasable message, whatever made it leasable.

use lockgate_core::{Clock, Level};
use lockgate_engine::{Answer, EngineError, EngineOptions, Work};
use lockgate_machine::{
    ChangeQueue, Command, DeleteQueue, Pause, QueueSettings, Rejection, SettleAction,
};

use crate::support::{Shard, at_level, create, got, keyed, name, send, settle, text};

fn shard_with_waiters(settings: QueueSettings, waiters: u64) -> (Shard, u64) {
    let mut shard = Shard::new();
    shard.run(create("q", settings)).unwrap();
    let works: Vec<_> = (0..waiters).map(|_| shard.wait_for("q", 60_000)).collect();
    assert!(shard.group(works).is_empty(), "there is nothing");
    assert_eq!(shard.driver.waiting() as u64, waiters);
    // The queue took the first ticket.
    (shard, 2)
}

#[test]
fn a_send_wakes_the_oldest() {
    let (mut shard, first) = shard_with_waiters(at_level(Level::Process), 3);
    let mut answers = shard.group([Work::from(send("q", text("a")))]);
    answers.extend(shard.sync());
    let tickets: Vec<_> = answers.iter().map(|answer| answer.ticket).collect();
    assert_eq!(
        tickets,
        [first + 3, first],
        "the send, and the oldest in the same group"
    );
    assert_eq!(shard.driver.waiting(), 2);

    // A receive that comes with the next message stands behind who waits.
    let late = shard.wait_for("q", 60_000);
    let answers = shard.group([Work::from(send("q", text("b"))), late]);
    let tickets: Vec<_> = answers.iter().map(|answer| answer.ticket).collect();
    assert_eq!(tickets, [first + 4, first + 1]);
}

#[test]
fn a_disk_level_send_wakes_when_it_is_durable() {
    let (mut shard, first) = shard_with_waiters(QueueSettings::default(), 2);
    assert!(shard.group([Work::from(send("q", text("a")))]).is_empty());
    assert_eq!(
        shard.driver.waiting(),
        2,
        "nobody has it before it is durable"
    );
    let answers = shard.sync();
    // The lease's own lease bound may need a sync.
    let mut tickets: Vec<_> = answers.iter().map(|answer| answer.ticket).collect();
    tickets.extend(shard.sync().iter().map(|answer| answer.ticket));
    assert_eq!(tickets, [first + 2, first]);
}

#[test]
fn as_many_are_woken_as_there_are_messages() {
    let (mut shard, first) = shard_with_waiters(at_level(Level::Process), 5);
    let sends: Vec<_> = ["a", "b", "c"].map(|body| send("q", text(body))).into();
    let mut answers = shard.group([Work::Commands(sends.into())]);
    answers.extend(shard.sync());
    answers.retain(|answer| answer.ticket < first + 5);
    assert_eq!(got(answers), [(first, 1), (first + 1, 1), (first + 2, 1)]);
    assert_eq!(shard.driver.waiting(), 2);
}

#[test]
fn a_due_time_wakes() {
    let (mut shard, first) = shard_with_waiters(at_level(Level::Process), 1);
    let due = shard.clock.wall().plus(5_000);
    shard.run(send("q", text("later").with_due(due))).unwrap();
    shard.clock.advance(4_999);
    assert!(shard.group([]).is_empty(), "never early");
    assert!(shard.driver.next_deadline().wall.unwrap() <= due);
    shard.clock.advance(1);
    let mut answers = shard.group([]);
    answers.extend(shard.sync());
    assert_eq!(got(answers), [(first, 1)]);
}

#[test]
fn the_end_of_a_lease_wakes() {
    let mut shard = Shard::new();
    shard.run(create("q", at_level(Level::Process))).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let lease = shard.receive_now("q", 1).remove(0);
    let waits = shard.wait_for("q", 60_000);
    assert!(shard.group([waits]).is_empty());
    let left = lease.deadline.since(shard.now().machine);
    assert!(shard.driver.next_deadline().machine.unwrap() <= lease.deadline);
    shard.clock.advance(left - 1);
    assert!(shard.group([]).is_empty());
    shard.clock.advance(1);
    let mut answers = shard.group([]);
    answers.extend(shard.sync());
    let again = answers.remove(0).deliveries().remove(0);
    assert_eq!((again.id, again.attempt), (lease.id, 2));
}

#[test]
fn settling_wakes_and_giving_back_does_not_count() {
    for (action, attempt) in [
        (
            SettleAction::Nack {
                delay: 0,
                reason: None,
            },
            2,
        ),
        (SettleAction::GiveBack, 1),
    ] {
        let mut shard = Shard::new();
        shard.run(create("q", at_level(Level::Process))).unwrap();
        shard.run(send("q", text("a"))).unwrap();
        let lease = shard.receive_now("q", 1).remove(0);
        let waits = shard.wait_for("q", 60_000);
        assert!(shard.group([waits]).is_empty());
        let mut answers = shard.group([Work::from(settle(lease.token, action))]);
        answers.extend(shard.sync());
        let again = answers.pop().unwrap().deliveries().remove(0);
        assert_eq!(again.attempt, attempt);
    }
}

#[test]
fn resuming_a_queue_wakes() {
    let mut shard = Shard::new();
    shard.run(create("q", at_level(Level::Process))).unwrap();
    let pause = |paused| {
        Command::Pause(Pause {
            queue: name("q"),
            paused,
        })
    };
    shard.run(pause(true)).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let waits = shard.wait_for("q", 60_000);
    assert!(shard.group([waits]).is_empty());
    let mut answers = shard.group([Work::from(pause(false))]);
    answers.extend(shard.sync());
    answers.extend(shard.sync());
    let served = answers
        .into_iter()
        .filter(|answer| matches!(answer.result, Ok(Answer::Received(_))));
    assert_eq!(served.count(), 1);
}

#[test]
fn a_message_moved_to_a_dead_letter_queue_wakes_there() {
    let mut shard = Shard::new();
    shard.run(create("dead", at_level(Level::Process))).unwrap();
    let settings = QueueSettings {
        dead_letter: Some(name("dead")),
        attempts_max: 1,
        ..at_level(Level::Process)
    };
    shard.run(create("q", settings)).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let lease = shard.receive_now("q", 1).remove(0);
    let waits = shard.wait_for("dead", 60_000);
    assert!(shard.group([waits]).is_empty());
    let reject = SettleAction::Reject { reason: None };
    let mut answers = shard.group([Work::from(settle(lease.token, reject))]);
    answers.extend(shard.sync());
    let moved = answers.pop().unwrap().deliveries().remove(0);
    assert_eq!(moved.id, lease.id);
    assert!(moved.origin.is_some());
}

#[test]
fn time_that_runs_out_ends_empty_in_order() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let waits = [3_000, 1_000, 2_000].map(|span| shard.wait_for("q", span));
    assert!(shard.group(waits).is_empty());
    let deadline = shard.driver.next_deadline().machine.unwrap();
    assert_eq!(deadline.since(shard.now().machine), 1_000);
    shard.clock.advance(999);
    assert!(shard.group([]).is_empty());
    shard.clock.advance(1_001);
    assert_eq!(got(shard.group([])), [(3, 0), (4, 0)]);
    shard.clock.advance(1_000);
    assert_eq!(got(shard.group([])), [(2, 0)]);
    assert_eq!(shard.driver.waiting(), 0);
}

#[test]
fn deleting_the_queue_tells_who_waits() {
    let (mut shard, first) = shard_with_waiters(QueueSettings::default(), 2);
    let delete = Command::DeleteQueue(DeleteQueue { queue: name("q") });
    let mut answers = shard.group([Work::from(delete)]);
    answers.extend(shard.sync());
    let told: Vec<_> = answers
        .into_iter()
        .filter(|answer| {
            matches!(
                answer.result,
                Ok(Answer::Received(Err(Rejection::QueueNotFound { .. })))
            )
        })
        .map(|answer| answer.ticket)
        .collect();
    assert_eq!(told, [first, first + 1]);
}

#[test]
fn waiters_are_bounded() {
    let options = EngineOptions {
        waiters_max: 2,
        ..EngineOptions::default()
    };
    let mut shard = Shard::with_options(&options);
    shard.run(create("q", QueueSettings::default())).unwrap();
    let waits = [(); 3].map(|()| shard.wait_for("q", 1_000));
    let answers = shard.group(waits);
    assert_eq!(answers.len(), 1);
    assert!(matches!(answers[0].result, Err(EngineError::Overloaded)));
}

#[test]
fn exhausted_messages_in_front_do_not_end_a_receive() {
    let mut shard = Shard::new();
    let keyed_queue = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    shard.run(create("dead", keyed_queue.clone())).unwrap();
    let settings = |attempts_max| QueueSettings {
        dead_letter: Some(name("dead")),
        attempts_max,
        ..keyed_queue.clone()
    };
    shard.run(create("q", settings(2))).unwrap();
    // More than one receive moves away.
    for key in 0..300 {
        let bad = keyed("bad", &format!("key-{key}"));
        shard.group([Work::from(send("q", bad))]);
    }
    shard.sync();
    let leases = shard.receive_now("q", 1_000);
    assert_eq!(leases.len(), 300);
    for lease in leases {
        let nack = SettleAction::Nack {
            delay: 0,
            reason: None,
        };
        shard.group([Work::from(settle(lease.token, nack))]);
    }
    shard.sync();
    // Now one attempt is all there is, and all of them have had it.
    let change = Command::ChangeQueue(ChangeQueue {
        queue: name("q"),
        settings: Some(Box::new(settings(1))),
        annotations: None,
        tags: None,
    });
    shard.run(change).unwrap();
    shard.run(send("q", keyed("good", "last"))).unwrap();
    let leases = shard.receive_now("q", 1);
    assert_eq!(leases.len(), 1, "found behind 300 exhausted ones");
    assert_eq!(leases[0].attempt, 1);
}

/// A queue of which so many messages have had all their attempts, and nobody has looked since.
fn with_exhausted(
    queue: &QueueSettings,
    messages: u64,
    key: impl Fn(u64) -> Option<String>,
) -> Shard {
    let mut shard = Shard::new();
    let plain = QueueSettings {
        level: Level::Process,
        ..queue.clone()
    };
    shard.run(create("dead", plain.clone())).unwrap();
    shard.run(create("q", plain.clone())).unwrap();
    for number in 0..messages {
        let message = match key(number) {
            Some(key) => keyed("bad", &key),
            None => text("bad"),
        };
        shard.group([Work::from(send("q", message))]);
    }
    shard.sync();
    for _ in 0..messages / 1_000 {
        assert_eq!(shard.receive_now("q", 1_000).len(), 1_000);
    }
    while ready(&shard, "q") < messages {
        shard.clock.advance(60_000);
        shard.sync();
    }
    let change = Command::ChangeQueue(ChangeQueue {
        queue: name("q"),
        settings: Some(Box::new(QueueSettings {
            dead_letter: Some(name("dead")),
            attempts_max: 1,
            ..plain
        })),
        annotations: None,
        tags: None,
    });
    shard.run(change).unwrap();
    shard
}

fn ready(shard: &Shard, queue: &str) -> u64 {
    let machine = shard.driver.machine();
    let queue = machine.queue_id(&name(queue)).unwrap();
    machine.queue(queue).unwrap().counts.ready
}

/// A whole backlog may be exhausted at once. Other callers are served while it moves away, and a receive
/// that can wait does.
#[test]
fn a_backlog_of_exhausted_messages_keeps_nobody_waiting() {
    const MANY: u64 = 5_000;
    let sqs = QueueSettings {
        keyed: true,
        key_profile: lockgate_machine::KeyProfile::Sqs,
        ..QueueSettings::default()
    };
    let unkeyed = QueueSettings::default();
    // With so many messages of each key.
    for (settings, of_key) in [(&unkeyed, None), (&sqs, Some(1)), (&sqs, Some(1_000))] {
        let key = |number: u64| of_key.map(|count| format!("key-{}", number / count));
        let mut shard = with_exhausted(settings, MANY, key);
        // Who does not wait is told that there is nothing, as yet.
        assert!(shard.receive_now("q", 1).is_empty());
        let waits = [(); 2].map(|()| shard.wait_for("q", 60_000));
        assert!(shard.group(waits).is_empty());
        let mut groups = 0;
        while shard.driver.is_behind() {
            let before = ready(&shard, "q");
            assert!(shard.group([]).is_empty());
            let moved = before - ready(&shard, "q");
            assert!(moved <= 2_000, "{moved} in a group");
            groups += 1;
        }
        assert!(groups > 1);
        assert_eq!((ready(&shard, "q"), ready(&shard, "dead")), (0, MANY));
        assert_eq!(shard.driver.waiting(), 2);
        let good = key(MANY).map_or_else(|| text("good"), |key| keyed("good", &key));
        let mut answers = shard.group([Work::from(send("q", good))]);
        answers.extend(shard.sync());
        assert_eq!(answers.len(), 2, "the send, and who has waited longest");
        assert_eq!(shard.driver.waiting(), 1);
    }
}

/// That there is nothing, or no queue any more, may rest on what was decided just before, as any answer.
#[test]
fn what_ends_a_wait_is_told_when_it_is_durable() {
    let mut shard = Shard::new();
    for queue in ["q", "other"] {
        shard.run(create(queue, QueueSettings::default())).unwrap();
    }
    let waiting = shard.wait_for("q", 100);
    assert!(shard.group([waiting]).is_empty());
    shard.clock.advance(100);
    let answers = shard.group([Work::from(send("other", text("a")))]);
    assert!(answers.is_empty(), "the send and the end of the wait");
    assert_eq!(shard.sync().len(), 2);

    let waiting = shard.wait_for("q", 100);
    assert!(shard.group([waiting]).is_empty());
    let queue = name("q");
    let answers = shard.group([Work::from(Command::DeleteQueue(DeleteQueue { queue }))]);
    assert!(answers.is_empty(), "the deletion and the end of the wait");
    assert_eq!(shard.sync().len(), 2);
}

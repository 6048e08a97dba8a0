//! What leaves when, and what happens when the log fails.

use std::io;

use lockgate_core::{DiskOperation, ExchangeName, Level, Position, RoutingKey};
use lockgate_engine::{Answer, EngineError, EngineOptions, Work};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, Command, CreateExchange, DescribeQueue, EngineCommand,
    ExchangeKind, Move, MoveTo, Pattern, Publish, Query, QueueSettings, Rejection, Reply,
    SettleAction, Settled, SyncWindow, Transact, Unroutable,
};
use lockgate_sim::{Fault, FaultyDisk, ManualClock};

use crate::support::{
    Answered, Shard, at_level, create, keyed, name, receive, send, settle, text, unique,
};

#[test]
fn an_answer_leaves_when_its_level_is_reached_and_not_before() {
    let mut shard = Shard::new();
    for level in [Level::Memory, Level::Process, Level::Disk] {
        let queue = level.name();
        shard.run(create(queue, at_level(level))).unwrap();
        // Whatever a queue has to reserve with its first message.
        shard.run(send(queue, text("first"))).unwrap();

        let writes = shard.disk.operations().writes;
        let mut answers = shard.group([Work::from(send(queue, text("second")))]);
        match level {
            Level::Memory => assert_eq!(answers[0].writes, writes, "before the write"),
            Level::Process => assert_eq!(answers[0].writes, writes + 1, "after the write"),
            _ => assert!(answers.is_empty(), "not before the sync"),
        }
        answers.extend(shard.sync());
        assert_eq!(answers.len(), 1);
        assert!(matches!(answers.remove(0).reply(), Ok(Reply::Sent(_))));
    }
}

#[test]
fn a_duplicate_waits_for_its_original() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let works = [(); 2].map(|()| Work::from(send("q", unique("same", "id"))));
    assert!(shard.group(works).is_empty(), "the original is not durable");
    let answers = shard.sync();
    let sent: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.reply() {
            Ok(Reply::Sent(sent)) => sent,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sent[0].id, sent[1].id);
    assert_eq!([sent[0].duplicate, sent[1].duplicate], [false, true]);

    let answers = shard.group([Work::from(send("q", unique("same", "id")))]);
    assert_eq!(
        answers.len(),
        1,
        "the original is durable: nothing to wait for"
    );
}

#[test]
fn records_are_synced_within_the_window_of_their_queue() {
    let within = |after, records| SyncWindow {
        after: Some(after),
        records: Some(records),
    };
    let (of_log, long, short) = (within(100, 50), within(900, 900), within(5, 7));
    let mut shard = Shard::with_options(&EngineOptions {
        sync_window: of_log,
        ..EngineOptions::default()
    });
    for (name, level, sync_window) in [
        ("plain", Level::Process, SyncWindow::default()),
        ("long", Level::Process, long),
        ("short", Level::Memory, short),
        ("fast", Level::Memory, long),
        ("disk", Level::Disk, long),
    ] {
        let settings = QueueSettings {
            sync_window: sync_window.after,
            sync_records: sync_window.records,
            ..at_level(level)
        };
        shard.run(create(name, settings)).unwrap();
        if name != "fast" {
            shard.run(send(name, text("first"))).unwrap();
        }
    }
    /// Runs a group, and tells within what its records are to be synced.
    fn asked(shard: &mut Shard, works: impl IntoIterator<Item = Work>) -> SyncWindow {
        shard.driver.take_sync_window();
        shard.group(works);
        let window = shard.driver.take_sync_window();
        shard.sync();
        window
    }
    let nothing = SyncWindow::default();
    assert_eq!(asked(&mut shard, []), nothing, "there is nothing to sync");
    for (queues, expected, why) in [
        (&["fast"][..], of_log, "numbers are reserved"),
        (&["fast"], long, "and then for a while not"),
        (&["plain"], of_log, "it has none of its own"),
        (&["long"], long, "nobody else asks"),
        (&["short"], short, "it may be shorter"),
        (&["long", "plain"], of_log, "none lengthens another's"),
        (&["long", "short", "plain"], short, "the shortest"),
    ] {
        let sends = queues
            .iter()
            .map(|queue| Work::from(send(queue, text("a"))));
        assert_eq!(asked(&mut shard, sends), expected, "{why}");
    }
    for (queue, expected, why) in [
        ("long", long, "a lease can wait for as long"),
        ("short", of_log, "a lease hurries nobody"),
        ("disk", of_log, "a queue at disk lengthens nothing"),
    ] {
        let work = Work::Receive {
            receive: receive(queue, 1),
            until: None,
        };
        assert_eq!(asked(&mut shard, [work]), expected, "{why}");
    }
    let token = shard.receive_now("long", 1)[0].token;
    let moved = |to: &str| {
        Command::Move(Move {
            from: crate::support::name("long"),
            to: MoveTo::Queue(crate::support::name(to)),
            max: 1,
            cursor: None,
        })
    };
    for (command, expected, why) in [
        (settle(token, SettleAction::Ack), long, "it is the queue's"),
        (moved("plain"), of_log, "it is in the other queue then"),
        (moved("short"), short, "here too"),
    ] {
        let works = [Work::from(command)];
        assert_eq!(asked(&mut shard, works), expected, "{why}");
    }
    // The lease of the first message ends.
    shard.clock.advance(60_000);
    assert_eq!(asked(&mut shard, []), of_log, "time is no queue's");
}

#[test]
fn a_query_tells_nothing_that_can_be_taken_back_and_causes_no_sync() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let query = || {
        Work::Query(Query::DescribeQueue(DescribeQueue {
            queue: crate::support::name("q"),
        }))
    };
    assert_eq!(shard.group([query()]).len(), 1, "nothing is on its way");

    assert!(shard.group([Work::from(send("q", text("a")))]).is_empty());
    let promised = shard.driver.promised();
    assert!(shard.group([query()]).is_empty(), "the send is on its way");
    assert_eq!(
        shard.driver.promised(),
        promised,
        "no further sync is asked for"
    );
    assert_eq!(shard.sync().len(), 2);

    shard.run(create("p", at_level(Level::Process))).unwrap();
    assert_eq!(shard.group([Work::from(send("p", text("b")))]).len(), 1);
    assert!(shard.driver.tail() > shard.durable);
    assert_eq!(
        shard.group([query()]).len(),
        1,
        "nobody was promised that the other send is durable"
    );
}

#[test]
fn a_stale_settle_is_not_told_before_what_made_it_stale_is_durable() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let token = shard.receive_now("q", 1)[0].token;
    let twice = [(); 2].map(|()| Work::from(settle(token, SettleAction::Ack)));
    assert!(shard.group(twice).is_empty());
    let settled: Vec<_> = shard
        .sync()
        .into_iter()
        .map(|answer| match answer.reply() {
            Ok(Reply::Settled(settled)) => settled,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(settled[0], Settled::Done);
    assert!(matches!(settled[1], Settled::Stale(_)));
}

#[test]
fn commands_of_one_request_are_answered_together() {
    let mut shard = Shard::new();
    shard.run(create("p", at_level(Level::Process))).unwrap();
    let commands: Vec<_> = [("p", "a"), ("missing", "b"), ("p", "c")]
        .map(|(queue, body)| send(queue, text(body)))
        .into();
    let mut answers = shard.group([Work::Commands(commands.into())]);
    assert_eq!(answers.len(), 1);
    let Ok(Answer::Commands(results)) = answers.remove(0).result else {
        panic!("another kind of answer");
    };
    assert!(matches!(
        results[..],
        [
            Ok(Reply::Sent(_)),
            Err(Rejection::QueueNotFound { .. }),
            Ok(Reply::Sent(_))
        ]
    ));
}

#[test]
fn a_failed_append_leaves_its_group_unknown_and_stops_the_rest() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let waits = shard.wait_for("empty", 60_000);
    shard
        .run(create("empty", QueueSettings::default()))
        .unwrap();
    assert!(shard.group([waits]).is_empty());

    let fault = Fault::Torn(io::ErrorKind::Other);
    shard.disk.fail(DiskOperation::Write, 0, fault);
    let answers = shard.group([Work::from(send("q", text("a")))]);
    assert!(matches!(
        answers[0].result,
        Err(EngineError::UnknownOutcome { .. })
    ));
    let answers = shard.group([Work::from(send("q", text("b")))]);
    assert!(matches!(
        answers[0].result,
        Err(EngineError::Stopped { .. })
    ));
    let mut told = 0;
    let reason = shard.driver.stopped().unwrap().clone();
    shard.driver.stop(reason, &mut |_| told += 1);
    assert_eq!(told, 1, "the waiting receive is told too");
    assert!(shard.progress.sync().is_err(), "the instance is dead");
}

#[test]
fn a_full_log_refuses_sends_and_lets_settles_go_on() {
    let disk = FaultyDisk::new();
    // Room for the first segment and the reserve of one.
    disk.set_free_bytes(Some(2_200 << 10));
    let (mut shard, _) = Shard::start(disk, ManualClock::default(), &EngineOptions::default());
    shard.run(create("q", QueueSettings::default())).unwrap();
    let exchange = |name: &str| {
        Command::from(CreateExchange {
            name: ExchangeName::new(name).unwrap(),
            kind: ExchangeKind::Fanout,
            unroutable: Unroutable::Reject,
            notes: Default::default(),
        })
    };
    shard.run(exchange("e")).unwrap();
    let full = loop {
        match shard.run(send("q", text(&"x".repeat(1_000)))) {
            Ok(_) => {}
            Err(rejection) => break rejection,
        }
    };
    assert!(matches!(full, Rejection::LogFull { .. }), "{full:?}");

    let bind = Bind {
        keep: false,
        exchange: ExchangeName::new("e").unwrap(),
        to: BindTo::Queue(name("q")),
        pattern: Pattern::Everything,
        options: BindingOptions::default(),
    };
    for adds in [exchange("other"), bind.into()] {
        let refused = shard.run(adds);
        assert!(matches!(refused, Err(Rejection::LogFull { .. })));
    }

    // From here on it is what the log keeps back for this case.
    let deliveries = shard.receive_now("q", 1_000);
    assert!(deliveries.len() > 100);
    for delivery in &deliveries {
        let settled = shard.run(settle(delivery.token, SettleAction::Ack));
        assert!(matches!(settled, Ok(Reply::Settled(Settled::Done))));
        let refused = shard.run(send("q", text("y")));
        assert!(matches!(refused, Err(Rejection::LogFull { .. })));
    }
    assert!(shard.driver.stopped().is_none());
    shard.disk.set_free_bytes(None);
    shard
        .run(send("q", text("again")))
        .expect("normal again by itself");
}

/// At level `memory` a send is answered before it is written. Whoever receives it is told where it can be
/// read.
/// The sync thread finds it first, and the owner decides another group before it is told.
#[test]
fn a_log_whose_sync_has_failed_is_not_told_as_full() {
    let mut shard = Shard::new();
    shard.run(create("q", at_level(Level::Process))).unwrap();
    shard
        .disk
        .fail(DiskOperation::Sync, 0, Fault::Error(io::ErrorKind::Other));
    // Nobody waits for its sync, so nobody's answer is held up by what failed.
    shard.group([Work::from(send("q", text("before")))]);
    assert!(shard.progress.sync().is_err());
    for work in [
        Work::from(send("q", text("behind"))),
        Work::from(create("r", QueueSettings::default())),
    ] {
        let answers = shard.group([work]);
        assert!(
            matches!(&answers[0].result, Err(EngineError::Stopped { .. })),
            "{:?}",
            answers[0].result
        );
    }
}

#[test]
fn leases_are_answered_when_they_are_written_whatever_the_level() {
    let mut shard = Shard::new();
    shard.run(create("q", at_level(Level::Memory))).unwrap();
    shard.run(send("q", text("first"))).unwrap();
    shard.receive_now("q", 1);
    let take = Work::Receive {
        receive: receive("q", 1),
        until: None,
    };
    let as_command = Work::from(Command::Receive(receive("q", 1)));
    for take in [take, as_command] {
        let writes = shard.disk.operations().writes;
        let sent = Work::from(send("q", text("second")));
        let mut answers = shard.group([sent, take]);
        answers.extend(shard.sync());
        let [sent, taken] = <[Answered; 2]>::try_from(answers).unwrap_or_else(|_| panic!("two"));
        assert_eq!(sent.writes, writes, "answered at once");
        assert!(taken.writes > writes);
        let delivery = match taken.result.unwrap() {
            Answer::Received(Ok(mut deliveries)) => deliveries.remove(0),
            Answer::Commands(results) => match &results[..] {
                [Ok(Reply::Received(deliveries))] => deliveries[0].clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let at = delivery.location.position;
        assert!(shard.driver.reader().read(at).is_ok());
    }
}

/// What a group has decided already counts, with its headers: a large group must not grow into what is
/// kept for settles.
#[test]
fn a_group_on_a_full_disk_leaves_the_reserve_alone() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(2_200 << 10));
    let (mut shard, _) = Shard::start(disk, ManualClock::default(), &EngineOptions::default());
    shard.run(create("q", QueueSettings::default())).unwrap();
    loop {
        let sends = vec![send("q", text("x")); 2_000];
        let mut answers = shard.group([Work::Commands(sends.into())]);
        answers.extend(shard.sync());
        let results = match answers.pop().unwrap().result.unwrap() {
            Answer::Commands(results) => results,
            other => panic!("{other:?}"),
        };
        let ready = shard.driver.space().ready_bytes;
        assert!(ready >= 1 << 20, "{ready}");
        if results.iter().any(Result::is_err) {
            break;
        }
    }
    assert!(shard.driver.stopped().is_none());
}

/// With not even room for the record that says so, nothing ends and nothing comes due, until there is.
#[test]
fn time_stands_still_while_nothing_can_be_written() {
    const LEASES: u64 = 12;
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(2_200 << 10));
    let (mut shard, _) = Shard::start(disk, ManualClock::default(), &EngineOptions::default());
    shard.run(create("q", QueueSettings::default())).unwrap();
    for _ in 0..LEASES {
        shard.run(send("q", text("x"))).unwrap();
    }
    for _ in 0..LEASES {
        shard.clock.advance(10);
        assert_eq!(shard.receive_now("q", 1).len(), 1);
    }
    shard.disk.set_free_bytes(Some(0));
    let is_full = |answer: Answered| match answer.result.unwrap() {
        Answer::Commands(results) => results.iter().any(Result::is_err),
        other => panic!("{other:?}"),
    };
    while {
        let advances = vec![EngineCommand::Advance; 2_000];
        let answers = shard.group([Work::Engine(advances.into())]);
        !answers.into_iter().any(is_full)
    } {}
    shard.clock.advance(29_800);
    for _ in 0..2 * LEASES {
        shard.clock.advance(10);
        assert!(shard.group([]).is_empty());
        assert_eq!(shard.driver.stopped(), None);
    }
    shard.disk.set_free_bytes(None);
    let again = shard.receive_now("q", 100);
    assert_eq!(again.len() as u64, LEASES);
    assert!(again.iter().all(|delivery| delivery.attempt == 2));
}

#[test]
fn a_command_too_large_for_a_record_is_refused_and_leaves_nothing() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let before = shard.driver.tail();
    let sends: Vec<_> = (0..3)
        .map(|_| match send("q", text(&"x".repeat(30_000))) {
            Command::Send(send) => *send,
            _ => unreachable!(),
        })
        .collect();
    let refused = shard.run(Command::Transact(Transact {
        sends,
        ..Transact::default()
    }));
    let Err(refused @ Rejection::RecordTooLarge { .. }) = refused else {
        panic!("{refused:?}");
    };
    // What to do, too.
    let told = refused.to_string();
    assert!(told.contains("send less at once"), "{told}");
    assert!(told.contains("--segment-size"), "{told}");
    assert_eq!(shard.driver.tail(), before);
    assert!(shard.receive_now("q", 10).is_empty());
}

#[test]
fn machine_time_never_goes_back() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    shard.clock.advance(10_000);
    let deadline = shard.receive_now("q", 1)[0].deadline;
    // As if another clock had been asked.
    let past = lockgate_core::Now {
        machine: lockgate_core::MachineTime(0),
        ..shard.now()
    };
    shard.driver.run_group([], past, &mut |_| {});
    assert!(shard.driver.next_deadline().machine.unwrap() <= deadline);
    assert!(shard.receive_now("q", 1).is_empty());
}

#[test]
fn one_key_is_one_holder_also_within_a_group() {
    let mut shard = Shard::new();
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    shard.run(create("q", settings)).unwrap();
    for body in ["a", "b"] {
        shard.run(send("q", keyed(body, "k"))).unwrap();
    }
    let works = [(); 2].map(|()| Work::Receive {
        receive: crate::support::receive("q", 1),
        until: None,
    });
    let mut answers = shard.group(works);
    answers.extend(shard.sync());
    let counts: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.deliveries().len())
        .collect();
    assert_eq!(counts, [1, 0]);
    assert!(shard.durable > Position::default());
}

#[test]
fn much_that_is_due_at_once_does_not_keep_a_request_waiting() {
    const MANY: u64 = 10_000;
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let due = shard.now().wall.plus(60_000);
    for _ in 0..MANY / 100 {
        let sends = (0..100).map(|_| Work::from(send("q", text("x").with_due(due))));
        shard.group(sends);
    }
    shard.sync();
    shard.clock.advance(60_000);
    let ready = |shard: &Shard| {
        let queue = shard
            .driver
            .machine()
            .queue_id(&lockgate_core::QueueName::new("q").unwrap())
            .unwrap();
        shard.driver.machine().queue(queue).unwrap().counts.ready
    };
    let mut groups = 0;
    while ready(&shard) < MANY {
        let before = ready(&shard);
        shard.run(send("q", text("now"))).unwrap();
        let fired = ready(&shard) - before;
        assert!(
            fired < 5_000,
            "{fired} of a group and of the one behind the sync"
        );
        groups += 1;
    }
    assert!(groups > 1 && !shard.driver.is_behind());
}

/// The copies of a publish may have timers as other messages have, so time keeps up with them, too.
#[test]
fn time_keeps_up_with_the_copies_of_a_publish() {
    const QUEUES: usize = 640;
    const MANY: u64 = 10_000;
    let steps = |copies: bool| {
        let mut shard = Shard::new();
        let exchange = ExchangeName::new("e").unwrap();
        let made = CreateExchange {
            notes: Default::default(),
            name: exchange.clone(),
            kind: ExchangeKind::Fanout,
            unroutable: Unroutable::Reject,
        };
        shard.run(Command::from(made)).unwrap();
        for queue in 0..QUEUES {
            let queue = format!("q{queue}");
            let bind = Bind {
                keep: false,
                exchange: exchange.clone(),
                to: BindTo::Queue(name(&queue)),
                pattern: Pattern::Everything,
                options: BindingOptions::default(),
            };
            let of_queue = [create(&queue, QueueSettings::default()), bind.into()];
            shard.group(of_queue.map(Work::from));
        }
        shard.sync();
        let due = shard.now().wall.plus(60_000);
        for _ in 0..MANY / 100 {
            let sends = (0..100).map(|_| Work::from(send("q0", text("x").with_due(due))));
            shard.group(sends);
        }
        shard.sync();
        let publish = Publish {
            subject: None,
            exchange,
            routing_key: RoutingKey::default(),
            message: text("x"),
        };
        let last = match copies {
            true => publish.into(),
            false => send("q1", text("x")),
        };
        shard.group([Work::from(last)]);
        shard.clock.advance(60_000);
        let before = shard.driver.tail();
        shard.group([Work::from(send("q1", text("now")))]);
        // Each step of time is a record.
        shard.driver.tail().0 - before.0
    };
    let (of_one, of_copies) = (steps(false), steps(true));
    assert!(
        of_one > 0 && of_copies > 2 * of_one,
        "{of_copies} and {of_one}"
    );
}

/// A clock's reading drops a part of the millisecond: what is over by the reading may not be over.
#[test]
fn nothing_ends_before_its_time_by_a_clock_that_drops_fractions() {
    let mut shard = Shard::new();
    shard.driver.set_clock_drops(1);
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let leased = shard.receive_now("q", 1).remove(0);
    shard
        .run(send("q", text("b").with_due(shard.now().wall.plus(30_000))))
        .unwrap();
    let lease = leased.deadline.since(shard.now().machine);
    assert_eq!(lease, 30_000);
    // It began at 0.9 ms, say, and it is 30,000.1 ms now.
    shard.clock.advance(30_000);
    assert!(shard.receive_now("q", 2).is_empty());
    shard.clock.advance(1);
    assert_eq!(shard.receive_now("q", 2).len(), 2);
}

/// Whoever looks at messages without a lease sees them again at once, whatever the clock drops.
#[test]
fn a_lease_of_no_length_is_over_when_it_is_given() {
    let mut shard = Shard::new();
    shard.driver.set_clock_drops(1);
    let settings = QueueSettings {
        lease: 0,
        ..QueueSettings::default()
    };
    shard.run(create("q", settings)).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    for attempt in 1..=3 {
        assert_eq!(shard.receive_now("q", 1)[0].attempt, attempt);
    }
}

/// What comes due in the millisecond of a reading does so with the next; what is sent meanwhile does not
/// overtake it.
#[test]
fn a_send_does_not_pass_what_has_come_due_before_it() {
    let mut shard = Shard::new();
    shard.driver.set_clock_drops(1);
    shard.run(create("q", QueueSettings::default())).unwrap();
    let due = shard.now().wall.plus(5_000);
    shard.run(send("q", text("due").with_due(due))).unwrap();
    shard.clock.advance(5_000);
    shard.run(send("q", text("sent"))).unwrap();
    assert!(shard.receive_now("q", 2).is_empty());
    shard.clock.advance(1);
    let sequences: Vec<u64> = shard
        .receive_now("q", 2)
        .iter()
        .map(|delivery| delivery.token.sequence.0)
        .collect();
    assert_eq!(sequences, [1, 2]);
}

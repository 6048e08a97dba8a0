//! The cases. Each opens fresh storage; `true` means it was run to its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use lockgate_core::{Clock, Level, UniqueId};
use lockgate_engine::{EngineError, Received, Status};
use lockgate_machine::{
    Command, QueueSettings, Reply, SendMessage, Settle, SettleAction, Transact,
};
use lockgate_sim::ManualClock;

use super::{
    Case,
    shard::{
        QUEUE, Shard, at_level, bodies, body, keyed, keyed_queue, name, receive, send, settle, text,
    },
};
use crate::log::Fixture;

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// All cases, in the order they run.
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: $name }),*];
    };
}

cases![
    a_message_goes_in_and_out,
    messages_of_every_size_come_back_byte_for_byte,
    a_key_is_held_by_one_and_in_order,
    many_callers_lose_nothing_and_repeat_nothing,
    a_waiting_receive_is_woken,
    a_transaction_happens_whole,
    a_failing_message_ends_as_a_dead_letter,
    time_goes_on_over_a_start,
    everything_is_there_after_a_start,
    a_unique_id_is_known_after_a_start,
    what_was_answered_survives_a_power_cut,
    a_deposed_engine_stops_and_the_new_one_serves,
    lives_of_random_work_keep_every_promise,
];

/// Longer than any case takes.
const LONG: Duration = Duration::from_secs(600);

fn a_message_goes_in_and_out(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), QueueSettings::default());
    let sent = shard.send(text("hello"));
    let received = shard.take(10).remove(0);
    assert_eq!(body(&received), "hello");
    assert_eq!(received.delivery.id, sent.id);
    shard
        .settle(&received, SettleAction::Ack)
        .expect("the lease is valid");
    assert_eq!(shard.settle(&received, SettleAction::Ack), None, "once");
    let queue = shard.describe(QUEUE);
    assert_eq!((queue.counts.ready, queue.totals.acknowledged), (0, 1));
    shard.stop();
    true
}

fn messages_of_every_size_come_back_byte_for_byte(fixture: &mut dyn Fixture) -> bool {
    let storage = fixture.open();
    let max = storage.log.capabilities().record_bytes_max.min(1 << 18) - 500;
    let shard = Shard::with_queue(storage, QueueSettings::default());
    let content = |number: usize| (number % 10).to_string().repeat(number * 37 % max);
    shard.send_all((0..200).map(|number| text(content(number))));
    shard.send(text("x".repeat(max)));
    let check = |received: Vec<Received>| {
        assert_eq!(received.len(), 201);
        for (number, received) in received.iter().take(200).enumerate() {
            assert_eq!(body(received), content(number));
        }
        assert_eq!(received[200].stored.message.body.len(), max);
        received
    };
    for received in check(shard.take(1_000)) {
        shard
            .settle(&received, SettleAction::GiveBack)
            .expect("the lease is valid");
    }
    let clock = shard.stop();
    let shard = Shard::start(fixture.open(), clock);
    check(shard.take(1_000));
    shard.stop();
    true
}

fn a_key_is_held_by_one_and_in_order(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), keyed_queue());
    for round in 0..20 {
        for key in ["slow", "a", "b"] {
            shard.send(keyed(format!("{key}{round}"), key));
        }
    }
    let slow = shard.take(1).remove(0);
    assert_eq!(body(&slow), "slow0");
    let others = shard.drain();
    for key in ["a", "b"] {
        let of_key: Vec<_> = others.iter().filter(|body| body.starts_with(key)).collect();
        let expected: Vec<_> = (0..20).map(|round| format!("{key}{round}")).collect();
        assert!(of_key.into_iter().eq(&expected), "{others:?}");
    }
    assert_eq!(others.len(), 40, "nothing of the key that is held");
    shard
        .settle(
            &slow,
            SettleAction::Nack {
                delay: 0,
                reason: None,
            },
        )
        .expect("the lease is valid");
    let expected: Vec<_> = (0..20).map(|round| format!("slow{round}")).collect();
    assert_eq!(shard.drain(), expected);
    shard.stop();
    true
}

fn many_callers_lose_nothing_and_repeat_nothing(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), keyed_queue());
    let producers: Vec<_> = (0..6)
        .map(|producer| {
            let engine = shard.engine.clone();
            shard.spawn(async move {
                for number in 0..30 {
                    let message = keyed(format!("{producer}-{number}"), &producer.to_string());
                    engine
                        .submit(send(QUEUE, message))
                        .await
                        .expect("the message is accepted");
                }
            })
        })
        .collect();
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            let engine = shard.engine.clone();
            shard.spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let batch = match engine.receive(receive(QUEUE, 5), LONG).await {
                        Ok(batch) => batch.keep(),
                        Err(EngineError::Stopped { .. }) => return seen,
                        Err(error) => panic!("{error:?}"),
                    };
                    for received in batch {
                        seen.push((body(&received), received.delivery.attempt));
                        engine
                            .submit(settle(&received, SettleAction::Ack))
                            .await
                            .expect("the settle is answered");
                    }
                }
            })
        })
        .collect();
    shard.wait(async {
        for producer in producers {
            producer.await.expect("no producer panicked");
        }
    });
    while shard.describe(QUEUE).totals.acknowledged < 180 {
        shard.wait(tokio::task::yield_now());
    }
    // Ends the receives that still wait.
    shard.wait(shard.engine.shutdown());
    let mut all = BTreeSet::new();
    shard.wait(async {
        for consumer in consumers {
            for (body, attempt) in consumer.await.expect("no consumer panicked") {
                assert_eq!(attempt, 1);
                assert!(all.insert(body), "twice");
            }
        }
    });
    assert_eq!(all.len(), 180);
    true
}

fn a_waiting_receive_is_woken(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), QueueSettings::default());
    let engine = shard.engine.clone();
    let waits = shard.spawn(async move { engine.receive(receive(QUEUE, 1), LONG).await });
    while shard.engine.metrics().waiters == 0 {
        shard.wait(tokio::task::yield_now());
    }
    shard.send(text("a"));
    let batch = shard
        .wait(waits)
        .expect("it did not panic")
        .expect("it is answered");
    assert_eq!(bodies(&batch), ["a"]);
    drop(batch.keep());
    shard.stop();
    true
}

fn a_transaction_happens_whole(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), QueueSettings::default());
    shard.create("next", QueueSettings::default());
    shard.send(text("a"));
    let received = shard.take(1).remove(0);
    let transact = |token| {
        Command::Transact(Transact {
            publishes: Vec::new(),
            states: Vec::new(),
            settles: vec![Settle {
                token,
                action: SettleAction::Ack,
            }],
            sends: ["b", "c"]
                .map(|body| SendMessage {
                    queue: name("next"),
                    message: text(body),
                })
                .into(),
        })
    };
    let token = received.delivery.token;
    assert!(matches!(
        shard.submit(transact(token)),
        Ok(Reply::Transacted(done)) if done.sent.len() == 2
    ));
    assert!(matches!(
        shard.submit(transact(token)),
        Err(EngineError::Rejected(_))
    ));
    let clock = shard.stop();
    let shard = Shard::start(fixture.open(), clock);
    assert!(shard.take(1).is_empty());
    assert_eq!(bodies(&shard.take_from("next", 10)), ["b", "c"]);
    shard.stop();
    true
}

fn a_failing_message_ends_as_a_dead_letter(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::start(fixture.open(), ManualClock::default());
    shard.create("dead", QueueSettings::default());
    shard.create(
        QUEUE,
        QueueSettings {
            dead_letter: Some(name("dead")),
            attempts_max: 2,
            ..QueueSettings::default()
        },
    );
    let sent = shard.send(text("bad"));
    for attempt in 1..=2 {
        let received = shard.take(1).remove(0);
        assert_eq!(received.delivery.attempt, attempt);
        shard
            .settle(
                &received,
                SettleAction::Nack {
                    delay: 0,
                    reason: None,
                },
            )
            .expect("the lease is valid");
    }
    assert!(shard.take(1).is_empty());
    let clock = shard.stop();
    let shard = Shard::start(fixture.open(), clock);
    let dead = shard.take_from("dead", 10).remove(0);
    assert_eq!((dead.delivery.id, body(&dead)), (sent.id, "bad".to_owned()));
    shard.stop();
    true
}

fn time_goes_on_over_a_start(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), QueueSettings::default());
    shard.send(text("leased"));
    let due = shard.clock.wall().plus(60_000);
    shard.send(text("later").with_due(due));
    let held = shard.take(10);
    assert_eq!(bodies(&held), ["leased"]);
    let clock = shard.stop();
    clock.advance(29_999);
    let shard = Shard::start(fixture.open(), clock);
    assert!(shard.take(10).is_empty(), "the lease runs on");
    shard.pass(1);
    let again = shard.take(10);
    assert_eq!(bodies(&again), ["leased"]);
    assert_eq!(again[0].delivery.attempt, 2);
    assert_eq!(shard.settle(&held[0], SettleAction::Ack), None);
    shard
        .settle(&again[0], SettleAction::Ack)
        .expect("the lease is valid");
    shard.pass(30_000);
    assert_eq!(bodies(&shard.take(10)), ["later"]);
    shard.stop();
    true
}

fn everything_is_there_after_a_start(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), keyed_queue());
    for level in [Level::Memory, Level::Process, Level::Disk] {
        shard.create(level.name(), at_level(level));
        let command = send(level.name(), text(level.name()));
        shard.submit(command).expect("the message is accepted");
    }
    for number in 0..30 {
        shard.send(keyed(number.to_string(), &(number % 3).to_string()));
    }
    let mut held = shard.take(3);
    shard
        .settle(&held.remove(0), SettleAction::Ack)
        .expect("the lease is valid");
    let (before, secret) = (shard.describe(QUEUE), shard.engine.secret());
    let clock = shard.stop();
    for _ in 0..2 {
        let shard = Shard::start(fixture.open(), clock.clone());
        assert!(shard.report.is_clean() && !shard.report.crashed);
        assert_eq!((shard.report.queues, shard.report.messages), (4, 32));
        let after = shard.describe(QUEUE);
        assert_eq!(after.counts, before.counts);
        assert_eq!(after.settings, before.settings);
        assert_eq!(shard.engine.secret(), secret);
        shard.stop();
    }
    let shard = Shard::start(fixture.open(), clock);
    for level in [Level::Memory, Level::Process, Level::Disk] {
        assert_eq!(bodies(&shard.take_from(level.name(), 9)), [level.name()]);
    }
    // Leases of an earlier life are as good as ever.
    for received in held {
        shard
            .settle(&received, SettleAction::Ack)
            .expect("the lease is valid");
    }
    assert_eq!(shard.drain().len(), 27);
    shard.stop();
    true
}

fn a_unique_id_is_known_after_a_start(fixture: &mut dyn Fixture) -> bool {
    let message = || text("a").with_unique_id(UniqueId::new("order-1").expect("a good id"));
    let shard = Shard::with_queue(fixture.open(), QueueSettings::default());
    let first = shard.send(message());
    assert!(!first.duplicate);
    let clock = shard.stop();
    let shard = Shard::start(fixture.open(), clock);
    let again = shard.send(message());
    assert!(again.duplicate);
    assert_eq!((again.id, again.sequence), (first.id, first.sequence));
    assert_eq!(shard.drain(), ["a"]);
    shard.stop();
    true
}

fn what_was_answered_survives_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    let shard = Shard::with_queue(fixture.open(), keyed_queue());
    for number in 0..40 {
        shard.send(keyed(format!("{number:02}"), &(number % 4).to_string()));
    }
    let done = shard.take(1).remove(0);
    shard
        .settle(&done, SettleAction::Ack)
        .expect("the lease is valid");
    let clock = shard.clock.clone();
    // Stopped in the middle of its work.
    if !fixture.cut_power() {
        shard.stop();
        return false;
    }
    drop(shard);
    clock.reboot(0);
    let shard = Shard::start(fixture.open(), clock);
    assert!(shard.report.is_clean() && shard.report.crashed);
    // Behind every lease that may have been given, and its lease bound.
    shard.pass(120_000);
    let mut left = shard.drain();
    assert_eq!(left.len(), 39);
    assert!(!left.contains(&body(&done)), "acknowledged is acknowledged");
    left.push(body(&done));
    left.sort_unstable();
    let expected: Vec<_> = (0..40).map(|number| format!("{number:02}")).collect();
    assert_eq!(left, expected);
    shard.stop();
    true
}

fn a_deposed_engine_stops_and_the_new_one_serves(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        return false;
    }
    let old = Shard::with_queue(fixture.open(), keyed_queue());
    old.send(keyed("first", "k"));
    let held = old.take(1).remove(0);
    let new = Shard::start(fixture.open(), old.clock.clone());
    assert!(new.report.crashed, "nobody ended the old term");
    assert_eq!(old.engine.status(), Status::Serving, "it does not know yet");

    let late = old.submit(send(QUEUE, keyed("late", "k")));
    assert!(
        matches!(
            late,
            Err(EngineError::UnknownOutcome { .. } | EngineError::Stopped { .. })
        ),
        "{late:?}"
    );
    assert!(old.wait(old.engine.stopped()).is_failure());
    let later = old.submit(settle(&held, SettleAction::Ack));
    assert!(
        matches!(later, Err(EngineError::Stopped { .. })),
        "{later:?}"
    );

    new.send(keyed("second", "k"));
    assert!(new.take(1).is_empty(), "the key is still held");
    new.settle(&held, SettleAction::Ack)
        .expect("a lease outlives its giver");
    assert_eq!(new.drain(), ["second"], "nothing of what came too late");
    let clock = new.stop();
    old.stop();
    let shard = Shard::start(fixture.open(), clock);
    assert!(shard.report.is_clean() && !shard.report.crashed);
    assert!(shard.take(1).is_empty());
    shard.stop();
    true
}

/// Sends, receives and settles drawn at random, over several lives and with whatever end the fixture
/// can give them; a map of what was answered is the model.
fn lives_of_random_work_keep_every_promise(fixture: &mut dyn Fixture) -> bool {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut clock = ManualClock::default();
    // By key: what was accepted and not acknowledged, in order.
    let mut model: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut next = 0;
    for life in 0..6 {
        let shard = Shard::start(fixture.open(), clock.clone());
        assert!(shard.report.is_clean(), "{:?}", shard.report);
        let kept: usize = model.values().map(Vec::len).sum();
        assert_eq!(shard.report.messages, kept as u64, "life {life}");
        if life == 0 {
            shard.create(QUEUE, keyed_queue());
        }
        // Behind the leases of the life before, and their lease bound.
        shard.pass(120_000);
        for _ in 0..60 {
            if random.below(5) < 3 {
                let key = random.below(4).to_string();
                let batch: Vec<String> = (0..1 + random.below(4))
                    .map(|_| {
                        next += 1;
                        next.to_string()
                    })
                    .collect();
                shard.send_all(batch.iter().map(|body| keyed(body.clone(), &key)));
                model.entry(key).or_default().extend(batch);
                continue;
            }
            let mut failed = BTreeSet::new();
            for received in shard.take(u16::try_from(1 + random.below(5)).expect("small")) {
                let key = received.stored.message.key.as_ref();
                let key = key.expect("every message has one").as_str().to_owned();
                let queue = model.get_mut(&key).expect("the key was used");
                if failed.contains(&key) {
                    continue;
                }
                assert_eq!(queue.first(), Some(&body(&received)), "in order");
                if random.below(3) > 0 {
                    shard
                        .settle(&received, SettleAction::Ack)
                        .expect("the lease is valid");
                    queue.remove(0);
                } else {
                    shard
                        .settle(
                            &received,
                            SettleAction::Nack {
                                delay: 0,
                                reason: None,
                            },
                        )
                        .expect("the lease is valid");
                    failed.insert(key);
                }
            }
            // What was leased behind a failed message comes back.
            shard.pass(30_000);
        }
        if life % 2 == 0 && fixture.cut_power() {
            clock.reboot(1_000);
        } else {
            clock = shard.stop();
        }
    }
    let shard = Shard::start(fixture.open(), clock);
    shard.pass(120_000);
    let left: BTreeSet<String> = shard.drain().into_iter().collect();
    assert_eq!(left, model.into_values().flatten().collect());
    shard.stop();
    true
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

//! Shapes that break queues. Nothing is timed: each test does so much that it ends in seconds while
//! every step costs the same, and would take many minutes if a step looked at what it cannot have.

use lockgate_core::{
    HolderName, Key, LeaseToken, MachineTime, Message, Now, Position, QueueName, UniqueId, WallTime,
};
use lockgate_machine::*;

use crate::support::{queue, start_term};

/// As many as in the report that made another server famous (3 messages a second).
const MANY: usize = 216_000;

struct Shard {
    machine: Machine,
    now: Now,
    position: u64,
}

impl Shard {
    fn new(settings: QueueSettings) -> Self {
        let mut shard = Self {
            machine: Machine::new(MachineLimits::default()),
            now: Now {
                wall: WallTime(1_700_000_000_000),
                machine: MachineTime(1_000),
            },
            position: 0,
        };
        shard.run(&start_term());
        shard.run(&Command::CreateQueue(Box::new(CreateQueue {
            name: queue(),
            settings,
            annotations: Default::default(),
            tags: Default::default(),
        })));
        shard
    }

    fn run<'a>(&mut self, command: impl Into<AnyCommand<'a>>) -> Reply {
        self.tick();
        let decision = self.machine.decide(command, self.now);
        self.fold(&decision.effects);
        decision.outcome.unwrap()
    }

    /// Returns in how many steps time came to rest.
    fn tick(&mut self) -> usize {
        let mut steps = 0;
        while let Some(effect) = self.machine.tick(self.now) {
            self.fold(&[effect]);
            steps += 1;
        }
        steps
    }

    fn fold(&mut self, effects: &[Effect]) {
        self.position += 64;
        let position = Position(self.position);
        self.machine.fold(effects, position);
        self.machine.reached(Position(self.position + 1));
    }

    fn pass(&mut self, span: u64) {
        self.now.wall = self.now.wall.plus(span);
        self.now.machine = self.now.machine.plus(span);
    }

    fn send(&mut self, key: usize) {
        self.send_message(Message::new("x").with_key(numbered(key)));
    }

    fn send_message(&mut self, message: Message) {
        let queue = queue();
        self.run(&Command::Send(Box::new(SendMessage { queue, message })));
    }

    fn receive(&mut self, max: u16) -> Vec<LeaseToken> {
        let reply = self.run(&Command::Receive(Receive {
            queue: queue(),
            max,
            key_max: None,
            lease: Some(3_600_000),
            holder: HolderName::new("ann").unwrap(),
        }));
        match reply {
            Reply::Received(deliveries) => deliveries.iter().map(|one| one.token).collect(),
            other => panic!("a receive was answered {other:?}"),
        }
    }

    fn settle(&mut self, token: LeaseToken, action: SettleAction) {
        let reply = self.run(&Command::Settle(Settle { token, action }));
        assert!(matches!(reply, Reply::Settled(Settled::Done)), "{reply:?}");
    }

    fn counts(&self) -> QueueCounts {
        let queue = Query::DescribeQueue(DescribeQueue { queue: queue() });
        match self.machine.query(&queue, self.now) {
            Ok(QueryReply::Queue(description)) => description.counts,
            other => panic!("a query was answered {other:?}"),
        }
    }
}

fn numbered(key: usize) -> Key {
    Key::new(&format!("user-{key}")).unwrap()
}

fn keyed(key_profile: KeyProfile) -> QueueSettings {
    QueueSettings {
        keyed: true,
        key_profile,
        in_flight_max: u32::MAX,
        ..QueueSettings::default()
    }
}

#[test]
fn one_key_with_216_000_messages_slows_nobody() {
    for profile in [KeyProfile::Sqs, KeyProfile::Strict] {
        let mut shard = Shard::new(keyed(profile));
        for _ in 0..MANY {
            shard.send(0);
        }
        // Its front is in somebody's hands, and fails again and again; others come and go.
        let mut front = shard.receive(1)[0];
        for other in 1..20_000 {
            shard.send(other);
            let token = shard.receive(1)[0];
            assert_ne!(token.sequence, front.sequence);
            shard.settle(token, SettleAction::Ack);
            shard.settle(
                front,
                SettleAction::Nack {
                    delay: 0,
                    reason: None,
                },
            );
            let again = shard.receive(1)[0];
            assert_eq!(again.sequence, front.sequence, "it kept its place");
            front = again;
        }
        // And it drains in order.
        shard.settle(front, SettleAction::Ack);
        let mut last = front.sequence;
        for _ in 0..20_000 {
            for token in shard.receive(3) {
                assert_eq!(token.sequence, last.next());
                last = token.sequence;
                shard.settle(token, SettleAction::Ack);
            }
        }
    }
}

#[test]
fn ten_thousand_locked_keys_hide_no_free_one() {
    let mut shard = Shard::new(keyed(KeyProfile::Strict));
    for key in 0..10_000 {
        shard.send(key);
        shard.send(key);
    }
    while !shard.receive(1000).is_empty() {}
    for _ in 0..30_000 {
        assert!(shard.receive(1).is_empty());
        shard.send(10_000);
        let token = shard.receive(1)[0];
        shard.settle(token, SettleAction::Ack);
    }
}

#[test]
fn keys_are_served_in_turn() {
    let mut shard = Shard::new(keyed(KeyProfile::Sqs));
    for _ in 0..10 {
        for key in 0..100 {
            shard.send(key);
        }
    }
    let mut seen = Vec::new();
    for _ in 0..200 {
        let token = shard.receive(1)[0];
        seen.push((token.sequence.0 - 1) % 100);
        shard.settle(token, SettleAction::Ack);
    }
    for round in seen.chunks(100) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(
            round,
            (0..100).collect::<Vec<_>>(),
            "a key waited for others"
        );
    }
}

#[test]
fn time_comes_to_rest_in_bounded_steps() {
    let mut shard = Shard::new(QueueSettings {
        in_flight_max: u32::MAX,
        dedup_window: 5_000,
        ..QueueSettings::default()
    });
    let due = shard.now.wall.plus(5_000);
    for number in 0..MANY {
        let id = UniqueId::new(&format!("id-{number}")).unwrap();
        let message = Message::new("x").with_due(due).with_unique_id(id);
        shard.send_message(message);
    }
    shard.pass(4_999);
    shard.tick();
    assert_eq!(
        (shard.counts().delayed, shard.counts().ready),
        (MANY as u64, 0)
    );
    shard.pass(1);
    // No step fires more than a few hundred timers, and none fires nothing.
    let steps = shard.tick();
    assert!(steps > MANY / 1_000 && steps < MANY / 50, "{steps} steps");
    let counts = shard.counts();
    assert_eq!(
        (counts.delayed, counts.ready, counts.unique_ids),
        (0, MANY as u64, 0)
    );
    // All leased at once, all ended at once.
    while !shard.receive(1_000).is_empty() {}
    shard.pass(3_600_000);
    shard.tick();
    assert_eq!(shard.counts().ready, MANY as u64);
}

#[test]
fn a_purge_is_one_cut_and_its_memory_comes_back_in_steps() {
    let mut shard = Shard::new(keyed(KeyProfile::Sqs));
    for number in 0..MANY {
        shard.send(number % 5_000);
    }
    while shard.counts().in_flight < 5_000 {
        shard.receive(1_000);
    }
    let full = shard.machine.heap_bytes();
    shard.run(&Command::Purge(Purge { queue: queue() }));
    assert_eq!(shard.counts(), QueueCounts::default());
    shard.send(0);
    assert_eq!(shard.receive(10).len(), 1);
    let mut steps = 0;
    while shard.machine.housekeep(1_000).is_unfinished() {
        steps += 1;
    }
    assert!(steps >= MANY / 1_000, "freed in {steps} steps");
    for _ in 0..3_000 {
        shard.machine.housekeep(1);
    }
    let left = shard.machine.heap_bytes();
    assert!(left < full / 10, "{left} of {full} bytes are left");
}

#[test]
fn a_key_is_dropped_in_bounded_steps() {
    let mut shard = Shard::new(keyed(KeyProfile::Sqs));
    for _ in 0..MANY {
        shard.send(7);
    }
    let mut dropped = 0;
    while dropped < MANY as u64 {
        let drop = Command::ChangeKey(ChangeKey {
            queue: queue(),
            key: numbered(7),
            action: KeyAction::Drop,
        });
        let Reply::Dropped(messages) = shard.run(&drop) else {
            panic!("a drop was not answered");
        };
        assert!((1..=10_000).contains(&messages), "{messages} at once");
        dropped += messages;
    }
    assert_eq!(shard.counts().ready, 0);
}

fn limited(rate: &str, gap: &str) -> QueueSettings {
    let mut settings = keyed(KeyProfile::Strict);
    for (name, limit) in [("limit_rate", rate), ("limit_gap", gap)] {
        let setting = Setting::named(name).unwrap();
        let limit = setting.parse(limit).unwrap();
        setting.set(&mut settings, limit).unwrap();
    }
    settings
}

#[test]
fn ten_thousand_limited_keys_hide_no_free_one() {
    let mut shard = Shard::new(limited("none", "1h per key"));
    for key in 0..10_000 {
        shard.send(key);
        shard.send(key);
    }
    for _ in 0..10 {
        for token in shard.receive(1000) {
            shard.settle(token, SettleAction::Ack);
        }
    }
    assert_eq!(shard.counts().limited_keys, 10_000);
    for other in 10_000..40_000 {
        assert!(shard.receive(1).is_empty());
        shard.send(other);
        let token = shard.receive(1)[0];
        shard.settle(token, SettleAction::Ack);
    }
    shard.pass(3_600_000);
    assert_eq!(shard.receive(1000).len(), 1000);
}

/// A key whose debt is paid is remembered no more, whether or not it has messages.
#[test]
fn keys_that_were_seen_cost_no_memory() {
    const SEEN: usize = 100_000;
    let mut shard = Shard::new(limited("10/s per key", "none"));
    let see = |shard: &mut Shard, keys: std::ops::Range<usize>| {
        for key in keys {
            shard.send(key);
            let token = shard.receive(1)[0];
            shard.settle(token, SettleAction::Ack);
            shard.pass(1);
        }
        shard.machine.housekeep(1_000);
        shard.machine.heap_bytes()
    };
    let few = see(&mut shard, 0..1_000);
    let many = see(&mut shard, 1_000..SEEN);
    assert!(
        many < 2 * few,
        "{few} bytes after 1,000 keys, {many} after {SEEN}"
    );
}

/// As [`MachineLimits::OWING_KEY_BYTES`] says, whatever the moment at which their tables grow.
#[test]
fn a_key_that_owes_takes_no_more_memory_than_it_says() {
    const KEYS: usize = 100_000;
    // A text of 100 bytes and its two counters, as an allocator rounds them.
    const NAME: usize = 128;
    let mut shard = Shard::new(limited("1/d per key", "none"));
    let (empty, mut worst) = (shard.machine.heap_bytes(), 0);
    for key in 0..KEYS {
        let name = Key::new(&format!("{key:0>100}")).unwrap();
        shard.send_message(Message::new("x").with_key(name));
        let token = shard.receive(1)[0];
        shard.settle(token, SettleAction::Ack);
        if key >= 1_000 {
            let bytes = (shard.machine.heap_bytes() - empty) / (key + 1) + NAME;
            worst = worst.max(bytes);
        }
    }
    assert_eq!(shard.counts().owing_keys, KEYS as u64);
    let most = MachineLimits::OWING_KEY_BYTES as usize;
    assert!(
        (most * 3 / 4..=most).contains(&worst),
        "{worst} bytes a key"
    );
}

/// Each key has its turn, however much another one has.
#[test]
fn a_limit_of_the_queue_is_shared_by_its_keys() {
    let mut shard = Shard::new(limited("100/s burst 1", "none"));
    for _ in 0..1_000 {
        shard.send(0);
    }
    for _ in 0..100 {
        (1..10).for_each(|key| shard.send(key));
    }
    for turn in 0..1_000 {
        let tokens = shard.receive(1000);
        assert_eq!(tokens.len(), 1, "in turn {turn}");
        assert!(shard.receive(1000).is_empty());
        shard.settle(tokens[0], SettleAction::Ack);
        shard.pass(10);
    }
    // The other keys are done, and of the one with most messages as many are left as it had more.
    assert_eq!((shard.counts().ready, shard.counts().keys), (900, 1));
}

/// All keys of the shard are passed once for all queues whose limits have changed, and for none whose limits of
/// keys are what they were.
#[test]
fn a_change_of_many_queues_passes_the_keys_once() {
    let mut shard = Shard::new(limited("none", "1h per key"));
    for key in 0..50_000 {
        shard.send(key);
    }
    let names = (0..1_000).map(|number| QueueName::new(&format!("q{number}")).unwrap());
    let names: Vec<_> = names.collect();
    for name in &names {
        shard.run(&Command::CreateQueue(Box::new(CreateQueue {
            name: name.clone(),
            settings: limited("none", "1h per key"),
            annotations: Default::default(),
            tags: Default::default(),
        })));
    }
    shard.tick();
    let mut steps_of = |rate: &str, gap: &str| {
        for name in &names {
            let change = Command::ChangeQueue(ChangeQueue {
                queue: name.clone(),
                settings: Some(Box::new(limited(rate, gap))),
                annotations: None,
                tags: None,
            });
            let decision = shard.machine.decide(&change, shard.now);
            decision.outcome.unwrap();
            shard.fold(&decision.effects);
        }
        shard.tick()
    };
    let steps = steps_of("none", "2h per key");
    assert!((1..20).contains(&steps), "{steps} steps");
    assert_eq!(steps_of("9/s", "2h per key"), 0);
}

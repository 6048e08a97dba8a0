//! Random histories: the state stays consistent, recovery gives the same state, and a log that has
//! lost records can be folded without a panic.

use lockgate_core::{
    HolderName, Key, KeyStateWrite, LeaseToken, Level, Location, Message, MessageId, Position,
    QueueName, RecordVersion, Replaces, UniqueId, WallTime, limits::HoldScope,
};
use proptest::prelude::*;

use super::harness::{Run, name};
use crate::{
    Cancel, ChangeKey, ChangeKeyState, ChangeQueue, Command, Copies, CreateQueue, DeleteQueue,
    Delivery, Effect, EngineCommand, KeyAction, KeyPolicy, KeyProfile, KeyView, Machine,
    MachineLimits, Pause, Purge, QueueSettings, Receive, Reply, Reschedule, SendMessage, Settle,
    SettleAction, Transact, WriteState, encode_record, read_message,
};

pub(super) const QUEUES: [&str; 5] = ["strict", "sqs", "unkeyed", "parking", "memory"];

/// A step of a history; its numbers choose among what exists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Send {
        queue: u8,
        key: u8,
        id: u8,
        delay: u8,
        ttl: u8,
    },
    Receive {
        queue: u8,
        max: u8,
        lease: u8,
    },
    Settle {
        which: u8,
        how: u8,
        delay: u8,
    },
    Transact {
        which: u8,
        queue: u8,
        key: u8,
        sends: u8,
    },
    Message {
        which: u8,
        delay: u8,
        cancel: bool,
    },
    Key {
        queue: u8,
        key: u8,
        action: u8,
    },
    Wait {
        machine: u16,
        wall: i16,
    },
    Purge {
        queue: u8,
    },
    Delete {
        queue: u8,
    },
    Pause {
        queue: u8,
        paused: bool,
    },
    Change {
        queue: u8,
        retention: u8,
        limit: u8,
    },
    Record {
        name: u8,
        how: u8,
        with: u8,
    },
    State {
        queue: u8,
        key: u8,
        with: u8,
    },
    Ledger {
        what: u8,
        how: u8,
        with: u8,
    },
    Exchange {
        what: u8,
        how: u8,
        with: u8,
    },
    Schedule {
        what: u8,
        how: u8,
        with: u8,
    },
    Damaged {
        which: u8,
    },
    Compact {
        which: u8,
        stale: bool,
    },
    Sync,
    Housekeep,
    Restart {
        power: bool,
    },
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let any8 = any::<u8>;
    prop_oneof![
        12 => (any8(), any8(), any8(), any8(), any8()).prop_map(|(queue, key, id, delay, ttl)| {
            Step::Send { queue, key, id, delay, ttl }
        }),
        10 => (any8(), any8(), any8())
            .prop_map(|(queue, max, lease)| Step::Receive { queue, max, lease }),
        10 => (any8(), any8(), any8())
            .prop_map(|(which, how, delay)| Step::Settle { which, how, delay }),
        2 => (any8(), any8(), any8(), any8())
            .prop_map(|(which, queue, key, sends)| Step::Transact { which, queue, key, sends }),
        2 => (any8(), any8(), any::<bool>())
            .prop_map(|(which, delay, cancel)| Step::Message { which, delay, cancel }),
        2 => (any8(), any8(), any8())
            .prop_map(|(queue, key, action)| Step::Key { queue, key, action }),
        6 => (0u16..40_000, -20_000i16..20_000)
            .prop_map(|(machine, wall)| Step::Wait { machine, wall }),
        1 => any8().prop_map(|queue| Step::Purge { queue }),
        1 => any8().prop_map(|queue| Step::Delete { queue }),
        1 => (any8(), any::<bool>()).prop_map(|(queue, paused)| Step::Pause { queue, paused }),
        1 => (any8(), any8(), any8())
            .prop_map(|(queue, retention, limit)| Step::Change { queue, retention, limit }),
        6 => (any8(), any8(), any8())
            .prop_map(|(name, how, with)| Step::Record { name, how, with }),
        4 => (any8(), any8(), any8())
            .prop_map(|(queue, key, with)| Step::State { queue, key, with }),
        6 => (any8(), any8(), any8())
            .prop_map(|(what, how, with)| Step::Ledger { what, how, with }),
        6 => (any8(), any8(), any8())
            .prop_map(|(what, how, with)| Step::Exchange { what, how, with }),
        8 => (any8(), any8(), any8())
            .prop_map(|(what, how, with)| Step::Schedule { what, how, with }),
        1 => any8().prop_map(|which| Step::Damaged { which }),
        4 => (any8(), any::<bool>())
            .prop_map(|(which, stale)| Step::Compact { which, stale }),
        3 => Just(Step::Sync),
        1 => Just(Step::Housekeep),
        1 => any::<bool>().prop_map(|power| Step::Restart { power }),
    ]
}

pub(super) struct History {
    pub(super) run: Run,
    tokens: Vec<LeaseToken>,
    ids: Vec<(QueueName, MessageId)>,
    records: super::records::Seen,
    ledger: super::ledgers::Seen,
}

pub(super) fn limits() -> MachineLimits {
    MachineLimits {
        // Records are a hundred positions apart, so a range contains a few.
        range_bits: 9,
        // So little that some are left out.
        failure_bytes_max: 2_000,
        // Too little for all.
        record_bytes_max: 800,
        state_bytes_max: 600,
        ..MachineLimits::default()
    }
}

impl History {
    pub(super) fn new() -> Self {
        let mut history = Self {
            run: Run::with_limits(limits()),
            tokens: Vec::new(),
            ids: Vec::new(),
            records: super::records::Seen::default(),
            ledger: super::ledgers::Seen::default(),
        };
        history.run.set_syncing(false);
        for queue in ["dead", "loose-dead"].iter().chain(&QUEUES) {
            history.create(queue);
        }
        history
    }

    fn create(&mut self, queue: &str) {
        let create = CreateQueue {
            name: name(queue),
            settings: settings(queue),
            annotations: Default::default(),
            tags: Default::default(),
        };
        let outcome = self.run.give(&Command::CreateQueue(Box::new(create)));
        outcome.expect("the queue is made or exists");
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Send {
                queue,
                key,
                id,
                delay,
                ttl,
            } => {
                let send = self.message(queue, key, id, delay, ttl);
                self.send(send);
            }
            Step::Receive { queue, max, lease } => {
                let receive = Receive {
                    queue: queue_of(queue),
                    max: u16::from(max % 6) + 1,
                    key_max: None,
                    lease: (lease % 4 > 0).then(|| u64::from(lease) * 150),
                    holder: HolderName::new(&format!("holder-{}", lease % 3)).unwrap(),
                };
                if let Ok(Reply::Received(deliveries)) = self.run.give(&Command::Receive(receive)) {
                    self.note(&deliveries);
                }
            }
            Step::Settle { which, how, delay } => {
                if let Some(settle) = self.settle(which, how, delay) {
                    let _ = self.run.give(&Command::Settle(settle));
                }
            }
            Step::Transact {
                which,
                queue,
                key,
                sends,
            } => {
                let settles = (0..3)
                    .filter_map(|more| self.settle(which.wrapping_add(more), 0, 0))
                    .collect();
                let sends = (0..sends % 4)
                    .map(|more| self.message(queue, key, more % 2, 0, 0))
                    .collect();
                let states = (0..key % 3)
                    .filter_map(|more| self.write_state(which.wrapping_add(2 * more), key))
                    .collect();
                let transact = Transact {
                    settles,
                    states,
                    sends,
                    publishes: Vec::new(),
                };
                let _ = self.run.give(&Command::Transact(transact));
            }
            Step::State { queue, key, with } => {
                let (queue, key) = (queue_of(queue), key_of(key));
                let command = ChangeKeyState {
                    write: self.state_write(&queue, &key, with),
                    queue,
                    key,
                };
                let _ = self.run.give(&Command::ChangeKeyState(Box::new(command)));
            }
            Step::Message {
                which,
                delay,
                cancel,
            } => {
                if let Some((queue, message)) = pick(&self.ids, which).cloned() {
                    let command = if cancel {
                        Command::Cancel(Cancel { queue, message })
                    } else {
                        let due = WallTime(self.run.now.wall.0 - 5000 + u64::from(delay) * 100);
                        Command::Reschedule(Reschedule {
                            queue,
                            message,
                            due,
                        })
                    };
                    let _ = self.run.give(&command);
                }
            }
            Step::Key { queue, key, action } => {
                let command = Command::ChangeKey(ChangeKey {
                    queue: queue_of(queue),
                    key: key_of(key),
                    action: match action % 4 {
                        0 => KeyAction::Park,
                        1 => KeyAction::Drop,
                        _ => KeyAction::Resume,
                    },
                });
                let _ = self.run.give(&command);
            }
            Step::Wait { machine, wall } => {
                let now = &mut self.run.now;
                now.machine = now.machine.plus(u64::from(machine));
                now.wall = WallTime(now.wall.0.saturating_add_signed(i64::from(wall)));
                self.run.tick();
            }
            Step::Purge { queue } => {
                let queue = queue_of(queue);
                let _ = self.run.give(&Command::Purge(Purge { queue }));
            }
            Step::Delete { queue } => {
                let queue = queue_of(queue);
                let _ = self.run.give(&Command::DeleteQueue(DeleteQueue {
                    queue: queue.clone(),
                }));
                self.create(queue.as_str());
            }
            Step::Pause { queue, paused } => {
                let queue = queue_of(queue);
                let _ = self.run.give(&Command::Pause(Pause { queue, paused }));
            }
            Step::Change {
                queue,
                retention,
                limit,
            } => {
                let queue = queue_of(queue);
                let mut settings = settings(queue.as_str());
                settings.retention = 1000 + u64::from(retention) * 300;
                settings.in_flight_max = u32::from(limit % 8) + 1;
                settings.dedup_window = u64::from(limit) * 100;
                settings.key_sequences_max = u32::from(limit % 4);
                let _ = self.run.give(&Command::ChangeQueue(ChangeQueue {
                    queue,
                    settings: Some(Box::new(settings)),
                    annotations: None,
                    tags: None,
                }));
            }
            Step::Record { name, how, with } => {
                self.records.step(&mut self.run, name, how, with);
            }
            Step::Ledger { what, how, with } => {
                self.ledger.step(&mut self.run, what, how, with);
            }
            Step::Exchange { what, how, with } => {
                super::exchanges::step(&mut self.run, what, how, with);
            }
            Step::Schedule { what, how, with } => {
                super::schedules::random_step(&mut self.run, what, how, with);
            }
            Step::Damaged { which } => {
                if let Some(&LeaseToken {
                    queue, sequence, ..
                }) = pick(&self.tokens, which)
                {
                    let _ = self.run.give(&EngineCommand::Damaged { queue, sequence });
                }
            }
            Step::Compact { which, stale } => self.compact(which, stale),
            Step::Sync => self.run.sync(),
            Step::Housekeep => {
                self.run.machine.housekeep(3);
            }
            Step::Restart { power } => {
                self.run.restart(if power { "power" } else { "kill" });
            }
        }
        self.run.check_invariants(&format!("{step:?}"));
    }

    fn note(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            self.tokens.push(delivery.token);
        }
    }

    fn message(&self, queue: u8, key: u8, id: u8, delay: u8, ttl: u8) -> SendMessage {
        let mut message = Message::new(vec![b'x'; usize::from(id % 5)]);
        let queue = queue_of(queue);
        if settings(queue.as_str()).keyed {
            message.key = Some(key_of(key));
        } else {
            message.group = Some(key_of(key));
        }
        message.unique_id = id
            .is_multiple_of(3)
            .then(|| UniqueId::new(&format!("id-{}", id % 16)).unwrap());
        message.due = delay
            .is_multiple_of(3)
            .then(|| self.run.now.wall.plus(u64::from(delay) * 50));
        message.time_to_live = ttl.is_multiple_of(4).then(|| u64::from(ttl) * 100 + 1);
        message.level = ttl.is_multiple_of(5).then_some(Level::Disk);
        SendMessage { queue, message }
    }

    fn send(&mut self, send: SendMessage) {
        let queue = send.queue.clone();
        if let Ok(Reply::Sent(sent)) = self.run.give(&Command::Send(Box::new(send))) {
            self.ids.push((queue, sent.id));
        }
    }

    /// A write of the state of the key of that message, by its last lease.
    fn write_state(&self, which: u8, with: u8) -> Option<WriteState> {
        let token = *pick(&self.tokens, which)?;
        let queue = self.run.machine.queue(token.queue)?.name;
        let view = self.run.machine.state_view();
        let keys = &view.queues[&queue].keys;
        let of = |key: &KeyView| key.order.contains(&token.sequence);
        let key = keys
            .iter()
            .find(|(_, key)| of(key))
            .and_then(|(name, _)| name.clone());
        let key = key.unwrap_or_else(|| key_of(with));
        let write = self.state_write(&queue, &key, with);
        Some(WriteState { token, write })
    }

    /// Mostly one that can happen.
    fn state_write(&self, queue: &QueueName, key: &Key, with: u8) -> KeyStateWrite {
        let view = self.run.machine.state_view();
        let state = view.queues[queue].states.get(key);
        let version = state.map(|state| state.version);
        KeyStateWrite {
            replaces: match with % 5 {
                0 => Replaces::Any,
                1 => Replaces::Version(Some(RecordVersion(u64::from(with % 3)))),
                _ => Replaces::Version(version),
            },
            value: (!with.is_multiple_of(4)).then(|| vec![b'x'; usize::from(with)].into()),
        }
    }

    /// Reads a record's messages as an engine does, and compacts those that still live there.
    fn compact(&mut self, which: u8, stale: bool) {
        let at = usize::from(which) * self.run.log.len() / 256;
        let (position, effects) = self.run.log[at].clone();
        let record = encoded(&effects);
        let position = Position(position.0 + u64::from(stale));
        let (copies, _) = Copies::of_record(effects);
        for copies in copies {
            self.run.tick();
            let snapshot = self.run.machine.state_view();
            let is_at = |id, at| {
                let mut messages = snapshot
                    .queues
                    .values()
                    .flat_map(|queue| queue.messages.values());
                messages.any(|message| message.id == id && message.location == at)
            };
            let mut alive = Vec::new();
            for (part, stored) in copies.messages() {
                let from = Location { position, part };
                let lives = is_at(stored.id, from);
                assert_eq!(self.run.machine.lives_at(stored.id, from), lives);
                // From another log's term, with the same queue and number.
                let foreign = MessageId::from_bits(stored.id.to_bits() ^ 1);
                assert!(!self.run.machine.lives_at(foreign, from));
                alive.extend(
                    lives.then(|| (from, read_message(&record, part).expect("it has a payload"))),
                );
            }
            let before = self.run.log.len();
            let command = EngineCommand::Compact {
                copies: Box::new(copies),
                from: position,
            };
            assert!(matches!(self.run.give(&command), Ok(Reply::Done)));
            let after = self.run.log.len();
            assert_eq!(
                after - before,
                usize::from(!alive.is_empty()),
                "{command:?}"
            );
            if alive.is_empty() {
                continue;
            }
            let (position, effects) = self.run.log.last().expect("one was added").clone();
            assert_eq!(effects.len(), alive.len());
            let record = encoded(&effects);
            for (part, (from, stored)) in (0..).zip(alive) {
                let to = Location { position, part };
                let now = read_message(&record, part).expect("it has a payload");
                let machine = &self.run.machine;
                assert_eq!(machine.location(now.queue, now.sequence), Some(to));
                assert!(machine.lives_at(stored.id, to) && !machine.lives_at(stored.id, from));
                assert_eq!((now.id, &now.message), (stored.id, &stored.message));
            }
        }
    }

    fn settle(&self, which: u8, how: u8, delay: u8) -> Option<Settle> {
        Some(Settle {
            token: *pick(&self.tokens, which)?,
            action: match how % 10 {
                0..3 => SettleAction::Ack,
                3 if delay.is_multiple_of(4) => SettleAction::Hold {
                    delay: 1 + u64::from(delay) * 10,
                    scope: match delay.is_multiple_of(8) {
                        true => HoldScope::Key,
                        false => HoldScope::Queue,
                    },
                },
                3 => SettleAction::Defer {
                    delay: u64::from(delay % 3) * 400,
                },
                5 => SettleAction::ChangeVisibility {
                    hidden: u64::from(delay % 4) * 1000,
                },
                4 => SettleAction::Nack {
                    delay: u64::from(delay % 4) * 1000,
                    reason: (!delay.is_multiple_of(3))
                        .then(|| "e".repeat(usize::from(delay)).into()),
                },
                6 => SettleAction::Extend {
                    lease: u64::from(delay) * 200 + 1,
                },
                7 => SettleAction::Reject { reason: None },
                _ => SettleAction::GiveBack,
            },
        })
    }
}

/// Mostly one of the last eight.
fn pick<T>(items: &[T], which: u8) -> Option<&T> {
    let recent = items.len().saturating_sub(1 + usize::from(which) % 8);
    items.get(recent)
}

fn queue_of(number: u8) -> QueueName {
    name(QUEUES[usize::from(number) % QUEUES.len()])
}

fn key_of(number: u8) -> Key {
    Key::new(&format!("key-{}", number % 4)).unwrap()
}

fn settings(queue: &str) -> QueueSettings {
    let base = QueueSettings {
        keyed: true,
        lease: 10_000,
        retention: 60_000,
        ..QueueSettings::default()
    };
    match queue {
        "strict" => QueueSettings {
            key_profile: KeyProfile::Strict,
            dead_letter: Some(name("dead")),
            attempts_max: 3,
            ..base
        },
        "sqs" => QueueSettings {
            key_profile: KeyProfile::Sqs,
            dead_letter: Some(name("dead")),
            attempts_max: 3,
            key_sequences_max: 3,
            ..base
        },
        "unkeyed" => QueueSettings {
            keyed: false,
            dead_letter: Some(name("loose-dead")),
            attempts_max: 3,
            key_sequences_max: 1_000,
            ..base
        },
        "parking" => QueueSettings {
            key_policy: Some(KeyPolicy::Park),
            attempts_max: 2,
            ..base
        },
        "memory" => QueueSettings {
            keyed: false,
            level: Level::Memory,
            ..base
        },
        "loose-dead" => QueueSettings {
            keyed: false,
            ..base
        },
        _ => base,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_random_history_keeps_the_invariants_and_recovers(
        steps in prop::collection::vec(step(), 1..150),
        lost in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
        }
        history.run.check_recovery();

        // Damage in the middle takes some records; the machine folds the rest.
        let mut damaged = Machine::new(MachineLimits::default());
        let lost: Vec<usize> = lost.iter().map(|at| at.index(history.run.log.len())).collect();
        for (at, (position, effects)) in history.run.log.iter().enumerate() {
            if !lost.contains(&at) {
                damaged.fold(effects, *position);
            }
        }
        let problems = damaged.problems();
        prop_assert!(problems.is_empty(), "without records {lost:?}: {problems:#?}");
        while damaged.housekeep(100).is_unfinished() {}
        let problems = damaged.problems();
        prop_assert!(problems.is_empty(), "freed, without records {lost:?}: {problems:#?}");
    }
}

fn encoded(effects: &[Effect]) -> bytes::Bytes {
    let mut record = Vec::new();
    encode_record(effects, &mut record);
    record.into()
}

//! Delayed messages while both clocks do what they like: none is early, none comes twice, none is lost.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockgate_core::{Clock, Level, Message, MessageId, WallTime};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_machine::{Cancel, QueueSettings, Reschedule, SettleAction};
use lockgate_sim::{FaultyDisk, ManualClock};
use proptest::prelude::*;

use crate::{
    backup::restored,
    support::{create, local_log, name, receive, send, settle},
};

#[derive(Clone, Debug)]
enum Step {
    Send {
        delay: u64,
    },
    Reschedule {
        which: u8,
        delay: u64,
    },
    Cancel {
        which: u8,
    },
    /// Both clocks go on.
    Pass {
        span: u64,
    },
    /// The wall clock steps, as if somebody set it, or as after a suspend.
    Set {
        back: bool,
        by: u64,
    },
    /// The machine boots anew after some time.
    Reboot {
        away: u64,
    },
    Restart,
    /// The state goes through a backup to another folder.
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    let delay = || prop_oneof![0u64..300, 0u64..90_000_000];
    prop_oneof![
        6 => delay().prop_map(|delay| Step::Send { delay }),
        2 => (any::<u8>(), delay()).prop_map(|(which, delay)| Step::Reschedule { which, delay }),
        1 => any::<u8>().prop_map(|which| Step::Cancel { which }),
        4 => delay().prop_map(|span| Step::Pass { span }),
        3 => (any::<bool>(), delay()).prop_map(|(back, by)| Step::Set { back, by }),
        1 => delay().prop_map(|away| Step::Reboot { away }),
        1 => Just(Step::Restart),
        1 => Just(Step::Restore),
    ]
}

/// A shard whose clocks are moved.
struct World {
    disk: FaultyDisk,
    clock: ManualClock,
    engine: Engine,
    /// When each message that is there is due.
    due: BTreeMap<MessageId, WallTime>,
}

fn start(disk: &FaultyDisk, clock: &ManualClock) -> Engine {
    let log = local_log(disk);
    let started = Engine::start(log, Arc::new(clock.clone()), EngineOptions::default());
    started.unwrap().0
}

impl World {
    async fn new() -> Self {
        let (disk, clock) = (FaultyDisk::new(), ManualClock::default());
        let engine = start(&disk, &clock);
        let settings = QueueSettings {
            level: Level::Disk,
            ..QueueSettings::default()
        };
        engine.submit(create("q", settings)).await.unwrap();
        Self {
            disk,
            clock,
            engine,
            due: BTreeMap::new(),
        }
    }

    fn pick(&self, which: u8) -> Option<MessageId> {
        let at = usize::from(which) % self.due.len().max(1);
        self.due.keys().nth(at).copied()
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Step::Send { delay } => {
                let due = self.clock.wall().plus(delay);
                let message = Message::new("x").with_due(due);
                let sent = self.engine.submit(send("q", message)).await.unwrap();
                let lockgate_machine::Reply::Sent(sent) = sent else {
                    panic!("{sent:?}");
                };
                self.due.insert(sent.id, due);
            }
            Step::Reschedule { which, delay } => {
                if let Some(message) = self.pick(which) {
                    let due = self.clock.wall().plus(delay);
                    let queue = name("q");
                    let moved = Reschedule {
                        queue,
                        message,
                        due,
                    };
                    self.engine.submit(moved).await.unwrap();
                    self.due.insert(message, due);
                }
            }
            Step::Cancel { which } => {
                if let Some(message) = self.pick(which) {
                    let queue = name("q");
                    self.engine.submit(Cancel { queue, message }).await.unwrap();
                    self.due.remove(&message);
                }
            }
            Step::Pass { span } => self.clock.advance(span),
            Step::Set { back, by } => {
                let wall = self.clock.wall();
                self.clock.set_wall(match back {
                    true => WallTime(wall.0.saturating_sub(by)),
                    false => wall.plus(by),
                });
            }
            Step::Reboot { away } => {
                self.engine.shutdown().await;
                self.clock.advance(away);
                self.clock.reboot(away % 5_000);
                self.engine = start(&self.disk, &self.clock);
            }
            Step::Restart => {
                self.engine.shutdown().await;
                self.engine = start(&self.disk, &self.clock);
            }
            Step::Restore => {
                let mut bytes = Vec::new();
                self.engine.backup(&mut bytes).unwrap();
                self.engine.shutdown().await;
                (self.disk, _) = restored(&bytes);
                self.engine = start(&self.disk, &self.clock);
            }
        }
        self.engine.clock_changed();
        self.receive(Duration::ZERO).await;
    }

    /// Takes what comes, and nothing comes that should not.
    async fn receive(&mut self, wait: Duration) {
        loop {
            let received = self.engine.receive(receive("q", 100), wait).await.unwrap();
            let received = received.keep();
            if received.is_empty() {
                return;
            }
            for one in received {
                let id = one.delivery.id;
                let due = self.due.remove(&id);
                let due = due.unwrap_or_else(|| panic!("{id} comes, and is cancelled or was here"));
                let now = self.clock.wall();
                assert!(due <= now, "{id} is due at {due:?}, and it is {now:?}");
                let ack = settle(one.delivery.token, SettleAction::Ack);
                self.engine.submit(ack).await.unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_message_is_early_whatever_the_clocks_do(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.take(step).await;
            }
            // Each of the others comes when its time has come.
            while let Some(first) = world.due.values().min().copied() {
                let wall = world.clock.wall();
                if first > wall {
                    world.clock.advance(first.since(wall) - 1);
                    world.engine.clock_changed();
                    world.receive(Duration::ZERO).await;
                    world.clock.advance(1);
                    world.engine.clock_changed();
                }
                let before = world.due.len();
                while world.due.len() == before {
                    world.receive(Duration::ZERO).await;
                    tokio::task::yield_now().await;
                }
            }
            world.engine.shutdown().await;
        });
    }
}

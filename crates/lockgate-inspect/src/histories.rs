//! Random histories: after each crash, a start's report, a check's findings and the truth must agree.
//!
//! For a long run: `LOCKGATE_SEEDS=2000 cargo test -p lockgate-inspect histories`, from
//! `LOCKGATE_FIRST_SEED` on. The histories of `lockgate-sim`
//! (`a_start_misses_what_is_missing_and_nothing_else`) remove files.

use std::{collections::BTreeMap, fs};

use lockgate_core::{HolderName, Key, LeaseToken, Message, Now, QueueName};
use lockgate_engine::{Answer, OutputKind, Request, TaskStep, Work};
use lockgate_machine::{
    ChangeKey, Command, CreateQueue, DeleteQueue, ImageLoader, KeyAction, MachineLimits, Purge,
    QueueSettings, Receive, SendMessage, Settle, SettleAction, read_message,
};
use lockgate_sim::{FaultyDisk, ManualClock, PowerCut, SeededRandom};

use super::*;

/// The number of histories in a normal run.
const SEEDS: u64 = 12;
const LIVES: u64 = 5;
const STEPS: u64 = 80;
const QUEUES: [&str; 2] = ["a", "b"];

#[test]
fn a_start_and_a_check_say_what_is_true() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let first = number("LOCKGATE_FIRST_SEED").unwrap_or(0);
    for seed in first..first + number("LOCKGATE_SEEDS").unwrap_or(SEEDS) {
        println!("seed {seed}: LOCKGATE_FIRST_SEED={seed} LOCKGATE_SEEDS=1");
        History::new(seed).run();
    }
}

/// Its checksums are right, and a start looks at nothing else.
#[test]
fn a_check_says_that_a_start_would_load_a_snapshot_that_contradicts_itself() {
    let (disk, clock) = (FaultyDisk::new(), ManualClock::default());
    let (driver, _) = open(&disk, &clock);
    let mut random = SeededRandom::new(1);
    let mut life = Life {
        durable: driver.tail(),
        driver,
        random: &mut random,
        clock: &clock,
    };
    life.make_queues();
    for _ in 0..STEPS {
        life.step();
    }
    life.sync();
    drop(life);
    let found = |disk: &FaultyDisk| {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in disk.image() {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let place = Place::folder(folder.path()).unwrap();
        let machine = snapshots(&*place.snapshots()).unwrap().remove(0).machine;
        (machine, Findings::of(&place, String::new()).unwrap())
    };
    let mut frozen = found(&disk).0.expect("there is a snapshot").freeze();
    let mut piece = frozen.next_piece(&mut Vec::new()).unwrap().to_vec();
    let counts = |piece: &[u8]| {
        let mut loader = ImageLoader::new(MachineLimits::default());
        loader.piece(piece).and_then(|()| loader.finish_checked())
    };
    assert!(counts(&piece).is_ok(), "it is of one piece");
    let wrong = (0..piece.len()).find(|&at| {
        piece[at] ^= 1;
        let loaded = counts(&piece);
        piece[at] ^= 1;
        loaded.is_err_and(|error| error.to_string().contains("fit together: content 0: "))
    });
    piece[wrong.expect("messages are counted")] ^= 1;

    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 4_000,
        free_bytes_min: 0,
        ..LocalLogOptions::default()
    };
    let mut log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
    let report = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    log.progress().sync().unwrap();
    let mut snapshot = log.begin_snapshot().unwrap();
    let at = snapshot.position();
    snapshot.write(&piece).unwrap();
    snapshot.finish().unwrap();
    drop(log);
    let (_, findings) = found(&disk);
    assert_eq!(findings.verdict, Verdict::Damaged);
    assert_eq!(findings.snapshots[0].damage, None);
    assert_eq!(
        findings.start.as_ref().unwrap().snapshot,
        Some(at.to_string())
    );
    assert_eq!(findings.loads_contradiction(), Some(at));
}

struct History {
    random: SeededRandom,
    disk: FaultyDisk,
    clock: ManualClock,
}

fn open(disk: &FaultyDisk, clock: &ManualClock) -> (Driver<u64>, StartReport) {
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 4_000,
        free_bytes_min: 0,
        ..LocalLogOptions::default()
    };
    let log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(1),
        secret: [7; 32],
    };
    let options = EngineOptions {
        snapshot_bytes_min: 2_000,
        ..EngineOptions::default()
    };
    Driver::recover(log, &options, || beginning).unwrap()
}

/// The number of messages, and of those whose bytes cannot be read.
fn truth(driver: &Driver<u64>) -> (u64, u64) {
    let reader = driver.reader();
    let (mut messages, mut unreadable) = (0, 0);
    for queue in driver.machine().state_view().queues.into_values() {
        for message in queue.messages.into_values() {
            let record = reader.read(message.location.position);
            let stored = record.map(|record| read_message(&record, message.location.part));
            let is_it = matches!(stored, Ok(Ok(stored)) if stored.id == message.id);
            messages += 1;
            unreadable += u64::from(!is_it);
        }
    }
    (messages, unreadable)
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            random: SeededRandom::new(seed),
            disk: FaultyDisk::new(),
            clock: ManualClock::default(),
        }
    }

    fn run(&mut self) {
        for _ in 0..LIVES {
            let (driver, _) = open(&self.disk, &self.clock);
            let mut life = Life {
                durable: driver.tail(),
                driver,
                random: &mut self.random,
                clock: &self.clock,
            };
            life.make_queues();
            for _ in 0..STEPS {
                life.step();
            }
            drop(life);
            self.disk = if self.random.chance(50) {
                self.disk.kill()
            } else {
                self.disk.crash(PowerCut::Seeded(self.random.next_u64()))
            };
            self.compare();
        }
    }

    fn compare(&self) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in self.disk.image() {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let place = Place::folder(folder.path()).unwrap();
        let found = Findings::of(&place, String::new()).unwrap();
        let (driver, report) = open(&self.disk.kill(), &self.clock);
        let (messages, unreadable) = truth(&driver);
        assert_eq!(unreadable, 0, "nothing was damaged");
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.messages, messages);
        assert_eq!(found.verdict, Verdict::Clean, "{found:?}");
        let records = found.records.as_ref().unwrap();
        assert_eq!((records.messages, records.unreadable), (messages, 0));
    }
}

struct Life<'a> {
    driver: Driver<u64>,
    durable: lockgate_core::Position,
    random: &'a mut SeededRandom,
    clock: &'a ManualClock,
}

impl Life<'_> {
    fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: self.driver.machine_time(self.clock.since_boot()),
        }
    }

    /// Runs the work, and returns the leases that it gave.
    fn work(&mut self, work: Work) -> Vec<LeaseToken> {
        let mut tokens = Vec::new();
        let now = self.now();
        let request = Request { work, ticket: 0 };
        self.driver.run_group([request], now, &mut |output| {
            if let OutputKind::Answer { result, .. } = output.kind
                && let Ok(Answer::Received(Ok(deliveries))) = result
            {
                tokens.extend(deliveries.iter().map(|delivery| delivery.token));
            }
        });
        tokens
    }

    fn sync(&mut self) {
        self.durable = self.driver.progress().sync().unwrap();
        self.driver.reached(self.durable);
    }

    fn make_queues(&mut self) {
        for name in QUEUES {
            self.work(Work::from(Command::CreateQueue(Box::new(CreateQueue {
                name: QueueName::new(name).unwrap(),
                settings: QueueSettings {
                    keyed: name == "a",
                    ..QueueSettings::default()
                },
                annotations: BTreeMap::new(),
                tags: BTreeMap::new(),
            }))));
        }
    }

    fn step(&mut self) {
        let queue = QueueName::new(QUEUES[self.random.index(2)]).unwrap();
        let key = Key::new(&format!("key {}", self.random.below(4))).unwrap();
        match self.random.below(40) {
            0..14 => {
                let sends = (0..=self.random.below(6)).map(|_| {
                    let length = self.random.index(900);
                    let mut message = Message::new(vec![b'x'; length]).with_key(key.clone());
                    if self.random.chance(20) {
                        message.due = Some(self.clock.wall().plus(5_000));
                    }
                    message.time_to_live = self.random.chance(20).then_some(20_000);
                    let queue = queue.clone();
                    Command::Send(Box::new(SendMessage { queue, message }))
                });
                let sends: Vec<Command> = sends.collect();
                self.work(Work::Commands(sends.into()));
            }
            14..24 => {
                let tokens = self.work(Work::Receive {
                    receive: Receive {
                        queue,
                        max: 8,
                        key_max: None,
                        lease: Some(3_000),
                        holder: HolderName::new("test").unwrap(),
                    },
                    until: None,
                });
                let settles = tokens.into_iter().map(|token| {
                    let action = match self.random.below(6) {
                        0 => SettleAction::Nack {
                            delay: 2_000,
                            reason: None,
                        },
                        _ => SettleAction::Ack,
                    };
                    Command::Settle(Settle { token, action })
                });
                let settles: Vec<Command> = settles.collect();
                self.work(Work::Commands(settles.into()));
            }
            24 | 25 => _ = self.work(Work::from(Command::Purge(Purge { queue }))),
            26 => {
                self.work(Work::from(Command::DeleteQueue(DeleteQueue { queue })));
                self.make_queues();
            }
            27 => {
                let action = KeyAction::Drop;
                self.work(Work::from(Command::ChangeKey(ChangeKey {
                    queue,
                    key,
                    action,
                })));
            }
            28..30 => self.clock.advance(1_000 + self.random.below(8_000)),
            30..34 => self.sync(),
            _ => self.keep(),
        }
        // So that only part of a purged content is freed.
        self.driver.housekeep(self.random.index(12));
    }

    /// Does the driver's maintenance: snapshots, compaction, releasing space.
    fn keep(&mut self) {
        let now = self.now();
        let Some(mut task) = self.driver.next_task(now).unwrap() else {
            return;
        };
        loop {
            match task.step(self.durable).unwrap() {
                TaskStep::More => {}
                TaskStep::WaitDurable(_) => self.sync(),
                TaskStep::Commands(commands) => _ = self.work(Work::Engine(commands.into())),
                TaskStep::Done => break,
            }
        }
        self.sync();
        let rest = self.driver.finish_task(task, Ok(()), now);
        for position in rest.snapshots {
            self.driver.snapshots().remove(position).unwrap();
        }
    }
}

//! A process killed in the middle of a maintenance task, over a real folder: what a kill leaves is what the
//! operating system has by then, synced or not, which is what a copy of the folder has.

use std::{fs, path::Path, sync::Arc};

use lockgate_core::{Now, Position, UniqueId};
use lockgate_engine::{
    Answer, Driver, EngineOptions, MaintenanceTask, OutputKind, Request, TaskStep, Work,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_machine::{QueueSettings, SettleAction, StateView, read_message};
use lockgate_sim::ManualClock;

use crate::support::{beginning, create, keyed, receive, send, settle, text};

/// Each kill is a start; more would only take longer.
const KILLS_MAX: u32 = 24;

struct Shard<'a> {
    folder: &'a Path,
    clock: ManualClock,
    driver: Driver<u64>,
    durable: Position,
}

fn start(folder: &Path, clock: &ManualClock) -> (Driver<u64>, lockgate_engine::StartReport) {
    let options = LocalLogOptions {
        segment_bytes: 1 << 20,
        record_bytes_max: 64 << 10,
        free_bytes_min: 64 << 10,
        ..LocalLogOptions::default()
    };
    let disk = FolderDisk::open(folder).unwrap();
    let log = LocalLog::open(Arc::new(disk), options).unwrap();
    let options = EngineOptions {
        snapshot_bytes_min: 1 << 20,
        ..EngineOptions::default()
    };
    Driver::recover(log, &options, || beginning(clock)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

impl<'a> Shard<'a> {
    fn new(folder: &'a Path, settings: QueueSettings) -> Self {
        let clock = ManualClock::default();
        let (driver, _) = start(folder, &clock);
        let mut shard = Self {
            folder,
            clock,
            durable: driver.tail(),
            driver,
        };
        shard.run(Work::from(create("q", settings)));
        shard
    }

    fn now(&self) -> Now {
        let clock = beginning(&self.clock);
        Now {
            wall: clock.wall,
            machine: self.driver.machine_time(clock.since_boot),
        }
    }

    /// Runs one group, and tells the tokens of what was received.
    fn run(&mut self, work: Work) -> Vec<lockgate_core::LeaseToken> {
        let mut tokens = Vec::new();
        let now = self.now();
        self.driver
            .run_group([Request { work, ticket: 0 }], now, &mut |output| {
                if let OutputKind::Answer { result, .. } = output.kind
                    && let Answer::Received(Ok(deliveries)) = result.unwrap()
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

    fn state(&self) -> StateView {
        self.driver.machine().state_view()
    }

    /// Kills a copy, starts it, and looks whether everything is there.
    fn check_killed(&self) {
        let copied = tempfile::tempdir().unwrap();
        copy(self.folder, copied.path());
        let (driver, report) = start(copied.path(), &self.clock);
        assert!(report.is_clean() && report.crashed, "{report:?}");
        let found = driver.machine().state_view();
        let expected = self.state();
        assert!(found.queues == expected.queues, "something is lost");
        assert_eq!(found.deleted, expected.deleted);
        assert_eq!(found.next_queue, expected.next_queue);
        assert_eq!(found.secret, expected.secret);
        // What says which part of the log may be given back, and how much moving it is worth.
        let live = |driver: &Driver<u64>| driver.machine().live_ranges().collect::<Vec<_>>();
        assert_eq!(live(&driver), live(&self.driver));
        let reader = driver.reader();
        for queue in found.queues.into_values() {
            // Some of very many: each is a read.
            let some = queue.messages.len().div_ceil(1_000).max(1);
            for (sequence, message) in queue.messages.into_iter().step_by(some) {
                let record = reader.read(message.location.position).unwrap();
                let stored = read_message(&record, message.location.part).unwrap();
                assert_eq!((stored.id, stored.sequence), (message.id, sequence));
            }
        }
        // That start was killed too, before it had done anything.
        drop((reader, driver));
        let (driver, report) = start(copied.path(), &self.clock);
        assert!(report.is_clean() && report.crashed, "{report:?}");
        let again = driver.machine().state_view();
        assert!(again.queues == expected.queues, "lost by the second start");
    }

    /// Does a maintenance task, killed behind every step. How often that was.
    fn kill_within(&mut self, mut task: MaintenanceTask, kills_max: u32) -> u32 {
        let mut kills = 0;
        loop {
            if kills < kills_max {
                self.check_killed();
                kills += 1;
            }
            match task.step(self.durable).unwrap() {
                TaskStep::More => {}
                TaskStep::WaitDurable(_) => self.sync(),
                TaskStep::Commands(commands) => {
                    self.run(Work::Engine(commands.into()));
                }
                TaskStep::Done => break,
            }
        }
        // A snapshot counts from here on, and its owner does not know.
        if kills < kills_max {
            self.check_killed();
            kills += 1;
        }
        self.sync();
        let now = self.now();
        let rest = self.driver.finish_task(task, Ok(()), now);
        for position in rest.snapshots {
            self.driver.snapshots().remove(position).unwrap();
        }
        kills
    }
}

#[test]
fn a_kill_in_the_middle_of_a_snapshot_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let keyed_queue = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let mut shard = Shard::new(folder.path(), keyed_queue);
    // Long keys make it a snapshot of several pieces, large bodies make one due.
    let body = "x".repeat(1_000);
    let fill = |shard: &mut Shard<'_>| {
        for batch in 0..20 {
            let now = shard.now();
            let sends = (0..1_000).map(|number| {
                let key = format!("{batch} {number} {}", "k".repeat(60));
                let mut message = keyed(&body, &key);
                match number % 4 {
                    1 => message.due = Some(now.wall.plus(3_600_000)),
                    2 => message.unique_id = Some(UniqueId::new(&key).unwrap()),
                    _ => {}
                }
                send("q", message)
            });
            shard.run(Work::Commands(sends.collect()));
            // Some stay in flight, some are to be tried again later, some are done.
            let tokens = shard.run(Work::Receive {
                receive: receive("q", 30),
                until: None,
            });
            let settles = tokens.iter().zip(0..20).map(|(&token, index)| {
                let action = match index % 2 {
                    0 => SettleAction::Nack {
                        delay: 60_000,
                        reason: None,
                    },
                    _ => SettleAction::Ack,
                };
                settle(token, action)
            });
            shard.run(Work::Commands(settles.collect()));
        }
        shard.sync();
    };
    fill(&mut shard);
    // The first snapshot has none to fall back to, the second has; behind the third there is nothing.
    for is_busy in [true, true, false] {
        let now = shard.now();
        let task = shard.driver.next_task(now).unwrap().unwrap();
        assert_eq!(task.name(), "snapshot");
        // What comes while it is written.
        if is_busy {
            fill(&mut shard);
        }
        let kills = shard.kill_within(task, KILLS_MAX);
        assert!(kills >= 4, "killed {kills} times only");
    }
}

#[test]
fn a_kill_in_the_middle_of_a_compaction_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = Shard::new(folder.path(), QueueSettings::default());
    let body = "x".repeat(1_000);
    for _ in 0..80 {
        let sends = (0..100).map(|_| send("q", text(&body)));
        shard.run(Work::Commands(sends.collect()));
    }
    shard.sync();
    // Three of four go, so that no segment is empty and none is full.
    for _ in 0..80 {
        let tokens = shard.run(Work::Receive {
            receive: receive("q", 100),
            until: None,
        });
        let settles = tokens.iter().enumerate().map(|(index, &token)| {
            let action = if index % 4 == 0 {
                SettleAction::Nack {
                    delay: 3_600_000,
                    reason: None,
                }
            } else {
                SettleAction::Ack
            };
            settle(token, action)
        });
        shard.run(Work::Commands(settles.collect()));
    }
    shard.sync();
    let mut kills = 0;
    while kills < KILLS_MAX {
        let now = shard.now();
        let Some(task) = shard.driver.next_task(now).unwrap() else {
            break;
        };
        let kills_max = match task.name() {
            "compaction" => KILLS_MAX - kills,
            _ => 0,
        };
        kills += shard.kill_within(task, kills_max);
    }
    assert!(kills >= 8, "killed {kills} times only");
    shard.check_killed();

    // What messages were moved out of is given back once two snapshots are behind it: whoever still
    // pointed there would find nothing.
    let released = |shard: &Shard<'_>| shard.driver.maintenance_counts().ranges_released;
    let before = released(&shard);
    for _ in 0..20 {
        let sends = (0..400).map(|_| send("q", text(&body)));
        shard.run(Work::Commands(sends.collect()));
        shard.sync();
        let now = shard.now();
        let was = released(&shard);
        let task = shard.driver.next_task(now).unwrap();
        if released(&shard) > was {
            shard.check_killed();
        }
        if let Some(task) = task {
            shard.kill_within(task, 0);
        }
    }
    assert!(
        released(&shard) >= before + 3,
        "{} ranges",
        released(&shard)
    );
    shard.check_killed();
}

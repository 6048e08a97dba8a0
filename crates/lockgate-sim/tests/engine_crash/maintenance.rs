//! Snapshots, and space that comes back: step by step, between the groups.

use std::collections::BTreeMap;

use lockgate_core::{
    Location, Log, LogError, LogRecord, LogSource, Position, Purpose, Scanned, SnapshotWriter,
};
use lockgate_engine::{Answer, MaintenanceTask, OutputKind, StopReason, TaskStep, Work};
use lockgate_machine::{Copies, Effect, EngineCommand, Frozen};

use crate::{
    Violation, answers::Asked, planted::Bug, tally::Doing, witness::effects, world::World,
};

/// What is under way in this life.
#[derive(Default)]
pub(crate) struct Maintenance {
    task: Option<MaintenanceTask>,
    snapshot: Option<Snapshot>,
    /// Ranges in which nothing lives, with what must be durable before they may be released.
    dead: BTreeMap<Position, Dead>,
    /// The range that was compacted last.
    compacted: Option<Position>,
}

struct Snapshot {
    frozen: Frozen,
    /// `None`, on purpose: begun too late.
    writer: Option<Box<dyn SnapshotWriter>>,
    position: Position,
    written: bool,
}

struct Dead {
    durable: Position,
    by_compaction: bool,
}

impl World {
    /// A few steps of whatever there is to do: by the driver and its plan, or by maintenance of our own
    /// that draws what to do at random, and can be told to make mistakes.
    pub(crate) fn keep(&mut self) -> Result<(), Violation> {
        for _ in 0..1 + self.random.below(4) {
            if !self.is_serving() {
                return Ok(());
            }
            if !self.has_own_maintenance {
                self.task()?;
                continue;
            }
            match self.random.below(10) {
                0..6 => self.snapshot_step()?,
                // Without it, only acknowledgements empty a range.
                6..8 if self.bug != Some(Bug::ReleasedBeforeAck) => {
                    let count = 1 + self.random.index(6);
                    self.compact(count)?;
                }
                _ => self.release()?,
            }
        }
        Ok(())
    }

    /// One step of what the driver says is to be done for the space of the log.
    pub(crate) fn task(&mut self) -> Result<(), Violation> {
        self.shard_mut().driver.housekeep(1_000);
        let Some(mut task) = self.maintenance.task.take() else {
            // It may release ranges.
            if self.is_pinned() {
                return Ok(());
            }
            let now = self.now();
            let next = self.during(Doing::Release, |world| {
                world.shard_mut().driver.next_task(now)
            });
            return match next {
                Ok(task) => {
                    if let Some(task) = &task {
                        self.note(format!("{} begun", task.name()));
                    }
                    self.maintenance.task = task;
                    Ok(())
                }
                Err(error) => self.given_up("a maintenance task", Err(error)),
            };
        };
        let doing = match task.name() {
            "snapshot" => Doing::Snapshot,
            _ => Doing::Compact,
        };
        let durable = self.shard().durable;
        let step = self.during(doing, |_| task.step(durable));
        let outcome = match step {
            Ok(TaskStep::More | TaskStep::WaitDurable(_)) => {
                self.maintenance.task = Some(task);
                return Ok(());
            }
            Ok(TaskStep::Commands(commands)) => {
                self.maintenance.task = Some(task);
                self.tally
                    .count("messages compacted", commands.len() as u64);
                self.note(format!("compact {}", commands.len()));
                let requests = commands.into_iter().map(|command| self.ask(command));
                let requests = requests.collect();
                return self.during(Doing::Compact, |world| world.group(requests));
            }
            Ok(TaskStep::Done) => {
                self.note(format!("{} done", task.name()));
                self.tally.count(task.name(), 1);
                Ok(())
            }
            Err(error) => {
                self.note(format!("{} failed: {error:?}", task.name()));
                Err(error)
            }
        };
        let now = self.now();
        let rest = self.during(Doing::Release, |world| {
            let rest = world.shard_mut().driver.finish_task(task, outcome, now);
            let snapshots = world.shard().log.lock().snapshots();
            rest.snapshots
                .into_iter()
                .try_for_each(|at| snapshots.remove(at))
        });
        self.given_up("finishing a maintenance task", rest)
    }

    /// Somebody may still read what was leased to him.
    fn is_pinned(&self) -> bool {
        self.shard().held.iter().any(|output| {
            matches!(
                &output.kind,
                OutputKind::Answer {
                    result: Ok(Answer::Received(_)),
                    ..
                }
            )
        })
    }

    /// A whole snapshot, at once.
    pub(crate) fn snapshot(&mut self) -> Result<(), Violation> {
        while self.is_serving() {
            self.snapshot_step()?;
            if self.maintenance.snapshot.is_none() {
                break;
            }
            if self.is_serving() {
                self.sync()?;
            }
        }
        Ok(())
    }

    /// Begins a snapshot, writes its next piece, or finishes it.
    pub(crate) fn snapshot_step(&mut self) -> Result<(), Violation> {
        let outcome = self.during(Doing::Snapshot, |world| {
            let Some(mut snapshot) = world.maintenance.snapshot.take() else {
                let snapshot = world.begin_snapshot()?;
                world.maintenance.snapshot = Some(snapshot);
                return Ok(());
            };
            if !snapshot.written {
                let mut buffer = Vec::new();
                if snapshot.writer.is_none() {
                    snapshot.writer = Some(world.shard().log.lock().begin_snapshot()?);
                }
                let writer = snapshot.writer.as_mut().expect("begun just now");
                if let Some(piece) = snapshot.frozen.next_piece(&mut buffer) {
                    writer.write(piece)?;
                } else {
                    snapshot.written = true;
                }
                world.maintenance.snapshot = Some(snapshot);
                return Ok(());
            }
            let may_finish = world.shard().durable >= snapshot.position
                || world.bug == Some(Bug::SnapshotFinishedEarly);
            match snapshot.writer.take() {
                Some(writer) if may_finish => {
                    writer.finish()?;
                    world.note(format!("snapshot at {}", snapshot.position));
                    world.tally.count("snapshots finished", 1);
                    world.trim()
                }
                writer => {
                    snapshot.writer = writer;
                    world.maintenance.snapshot = Some(snapshot);
                    Ok(())
                }
            }
        });
        self.given_up("snapshot", outcome)
    }

    fn begin_snapshot(&mut self) -> Result<Snapshot, LogError> {
        let frozen = self.witness.folded().freeze();
        let position = self.shard().driver.tail();
        self.note(format!("snapshot begun at {position}"));
        // Effects after this instant would be in its position and not in its content.
        let too_late = self.bug == Some(Bug::SnapshotLosesAcks);
        let writer = if too_late {
            None
        } else {
            Some(self.shard().log.lock().begin_snapshot()?)
        };
        Ok(Snapshot {
            frozen,
            writer,
            position,
            written: false,
        })
    }

    /// Two snapshots stay; no recovery will start before the older one.
    fn trim(&mut self) -> Result<(), LogError> {
        let log = self.shard().log.clone();
        let snapshots = log.lock().snapshots();
        let found = snapshots.list()?;
        for old in found.iter().skip(2) {
            snapshots.remove(*old)?;
        }
        let before = if self.bug == Some(Bug::TrimmedTooFar) {
            found.first()
        } else {
            found.get(1)
        };
        if let Some(before) = before {
            log.lock().trim(*before)?;
            self.note(format!("trimmed to {before}"));
            self.tally.count("trims", 1);
        }
        Ok(())
    }

    /// Releases ranges in which nothing lives, once that is durable.
    pub(crate) fn release(&mut self) -> Result<(), Violation> {
        self.shard_mut().driver.housekeep(1_000);
        if self.is_pinned() {
            return Ok(());
        }
        let log = self.shard().log.clone();
        let tail = self.shard().driver.tail();
        let durable = self.shard().durable;
        let mut released = Vec::new();
        for range in log.lock().ranges().iter().map(|range| range.first) {
            if self.shard().driver.machine().live_in(range).messages > 0 {
                self.maintenance.dead.remove(&range);
                continue;
            }
            let by_compaction = self.maintenance.compacted == Some(range);
            let dead = self.maintenance.dead.entry(range).or_insert(Dead {
                durable: tail,
                by_compaction,
            });
            let early = match self.bug {
                Some(Bug::ReleasedBeforeCompaction) => dead.by_compaction,
                Some(Bug::ReleasedBeforeAck) => true,
                _ => false,
            };
            if dead.durable <= durable || early {
                released.push(range);
            }
        }
        for range in released {
            match self.during(Doing::Release, |_| log.lock().release(range)) {
                Ok(()) => {
                    self.note(format!("released {range}"));
                    self.tally.count("ranges released", 1);
                    self.maintenance.dead.remove(&range);
                }
                // A recovery may still start with it.
                Err(LogError::Unsupported { .. }) => {}
                Err(error) => return self.given_up("release", Err(error)),
            }
        }
        Ok(())
    }

    /// Moves so many messages of the oldest range in which there are any.
    pub(crate) fn compact(&mut self, count: usize) -> Result<(), Violation> {
        let machine = self.shard().driver.machine();
        let log = self.shard().log.clone();
        let newest = log.lock().ranges().last().map(|range| range.first);
        let Some((range, _)) = machine.live_ranges().next() else {
            return Ok(());
        };
        if Some(range) >= newest {
            return Ok(());
        }
        let end = range.range(log.lock().capabilities().range_bits).end;
        let mut commands = Vec::new();
        let reader = self.shard().reader.clone();
        let scanned = self.during(Doing::Compact, |_| {
            reader.scan(range, end, &mut |scanned| {
                if let Scanned::Record { record, .. } = scanned {
                    commands.extend(compactions(&record));
                }
                std::ops::ControlFlow::Continue(())
            })
        });
        if let Err(error) = scanned {
            self.note(format!("scan of {range}: {error:?}"));
            return if self.disk_failed || self.damaged || self.misread {
                Ok(())
            } else {
                Err(format!("{range} cannot be scanned: {error:?}"))
            };
        }
        commands.retain(|command| self.lives(command));
        commands.truncate(count);
        // What is kept back is for those who make room at once.
        let bytes = commands.len() as u64 * 1_000;
        let reserved = log
            .lock()
            .reserve(bytes, commands.len() as u64, Purpose::Growth);
        if reserved.is_err() {
            return Ok(());
        }
        self.note(format!("compact {} of {range}", commands.len()));
        self.tally
            .count("messages compacted", commands.len() as u64);
        self.maintenance.compacted = Some(range);
        let requests = commands
            .into_iter()
            .map(|command| self.request(Work::from(command), vec![Asked::Nothing]))
            .collect();
        self.during(Doing::Compact, |world| world.group(requests))
    }

    fn lives(&self, command: &EngineCommand) -> bool {
        match command {
            EngineCommand::Compact { copies, from } => {
                let machine = self.shard().driver.machine();
                let position = *from;
                let mut messages = copies.messages();
                messages.any(|(part, message)| {
                    machine.lives_at(message.id, Location { position, part })
                })
            }
            EngineCommand::CompactEvents { block, from } => {
                let machine = self.shard().driver.machine();
                machine.has_events_at(block.ledger, block.first, *from)
            }
            _ => false,
        }
    }

    /// Work that nobody waits for may fail if the disk does, and is tried again later.
    fn given_up(&mut self, what: &str, outcome: Result<(), LogError>) -> Result<(), Violation> {
        let Err(error) = outcome else { return Ok(()) };
        self.note(format!("{what} given up: {error:?}"));
        self.maintenance.snapshot = None;
        self.tally.count("snapshots and releases given up", 1);
        if matches!(error, LogError::Stopped { .. }) {
            let mut told = Vec::new();
            let driver = &mut self.shard_mut().driver;
            let reason = StopReason::of(error);
            driver.stop(reason, &mut |output| told.push(output));
            self.take(told)?;
            return self.check_running();
        }
        if self.disk_failed || self.damaged || self.misread || self.is_limited {
            Ok(())
        } else {
            Err(format!("{what} failed although nothing had: {error:?}"))
        }
    }
}

/// The messages whose bytes are in the record.
fn compactions(record: &LogRecord) -> Vec<EngineCommand> {
    let from = record.position;
    let (copies, others) = Copies::of_record(effects(record));
    let messages = copies.into_iter().map(|copies| EngineCommand::Compact {
        copies: Box::new(copies),
        from,
    });
    let events = others.into_iter().filter_map(|effect| match effect {
        Effect::EventsAppended(appended) => Some(EngineCommand::CompactEvents {
            block: Box::new(appended.block),
            from,
        }),
        Effect::EventsCompacted(block) => Some(EngineCommand::CompactEvents { block, from }),
        _ => None,
    });
    messages.chain(events).collect()
}

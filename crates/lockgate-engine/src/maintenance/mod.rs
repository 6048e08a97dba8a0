//! Maintenance: keeps a log small and a start short, with snapshots, compaction and the release of space.
//!
//! `plan` decides what to do next. `pins` knows which ranges must stay readable. This file does the
//! work. The shard's own decisions go through a [`Driver`] and take its owner little time. The long
//! work is a [`MaintenanceTask`]: any thread can do it while the shard serves, step by step, and a
//! simulation can do it in any order. In an [`Engine`](crate::Engine), `work` does the tasks in
//! turns on the maintenance threads.
//!
//! # What must hold
//! - A snapshot becomes complete only when everything before its position is durable: it must not
//!   hold what a power cut can still take from the log.
//! - The log is trimmed only to the position of the *older* of two complete snapshots, so an
//!   unreadable snapshot loses nothing.
//! - A range is released only if it lies before that position, no message lives in it, what made it
//!   empty (settles, compactions) is durable, and nobody is about to read from it.

mod pins;
mod plan;
pub(crate) mod threads;
mod trouble;
pub(crate) mod work;

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use lockgate_core::{
    LogError, LogMaintenance, LogReader, LogSpace, Now, Position, ReadError, Scanned,
    SnapshotStore, SnapshotWriter, with_sources,
};
use lockgate_machine::{Copies, Effect, EngineCommand, Frozen, decode_record};

use self::plan::{Choice, View};
pub(crate) use self::{
    pins::{Pin, Pins},
    plan::Plan,
};
use crate::{Driver, Ticket};

/// The most messages, including dead ones, that one step of a compaction reads.
const COMPACTED_MESSAGES_MAX: usize = 256;
/// The most bytes of records that one step of a compaction reads, unless a single record is larger.
const COMPACTED_BYTES_MAX: usize = 256 << 10;

/// If fewer bytes were appended, a clean stop takes no snapshot: reading them again takes no time.
const CLEAN_STOP_BYTES: u64 = 4 << 20;

/// The work of maintenance since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceCounts {
    pub snapshots: u64,
    /// Snapshots that were given up.
    pub snapshots_failed: u64,
    /// Bytes of the snapshots completed, as the machine wrote them.
    pub snapshot_bytes: u64,
    /// Messages moved by compaction.
    pub compacted_messages: u64,
    /// Bytes of the records with the moved messages.
    pub compacted_bytes: u64,
    /// Ranges of the log that were released.
    pub ranges_released: u64,
    /// Ranges that the log held at the last check.
    pub ranges: u64,
    /// Bytes of live messages at the last check.
    pub live_bytes: u64,
    /// The log's space at the last check.
    pub space: LogSpace,
}

/// A long piece of maintenance, which runs while the shard serves. Get it from [`Driver::next_task`],
/// [`step`](Self::step) through it, and return it to [`Driver::finish_task`]. Dropping it leaves nothing
/// behind, but then the driver gives out no other task.
pub struct MaintenanceTask(Kind);

enum Kind {
    Snapshot(Box<Snapshotting>),
    Compaction(Compaction),
    /// Whether the command was given out.
    Advance(bool),
}

struct Snapshotting {
    frozen: Frozen,
    writer: Option<Box<dyn SnapshotWriter>>,
    position: Position,
    piece: Vec<u8>,
    bytes: u64,
    /// The number of bytes as estimated when the task began.
    estimated: u64,
    encoded: bool,
    /// The plan's count when the state was frozen.
    since_at_freeze: u64,
}

struct Compaction {
    reader: Arc<dyn LogReader>,
    range: Position,
    next: Position,
    end: Position,
}

/// The state of a maintenance task.
#[derive(Debug)]
pub enum TaskStep {
    More,
    /// Step again once everything that starts before this is durable.
    WaitDurable(Position),
    /// Have the shard decide these commands in any group, then step again.
    Commands(Vec<EngineCommand>),
    /// The task is complete.
    Done,
}

/// What remains to do after [`Driver::finish_task`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct TaskRest {
    /// Snapshots that are not needed any more: [remove](lockgate_core::SnapshotStore::remove) them.
    pub snapshots: Vec<Position>,
}

impl MaintenanceTask {
    /// Does a small part of the task: encodes and writes about a MiB of a snapshot, or reads some
    /// messages. Everything that starts before `durable` survives a power cut.
    ///
    /// # Errors
    /// If storage fails or is full. The task then ends; pass the error to the driver.
    pub fn step(&mut self, durable: Position) -> Result<TaskStep, LogError> {
        match &mut self.0 {
            Kind::Snapshot(snapshot) => snapshot.step(durable),
            Kind::Compaction(compaction) => compaction.step(),
            Kind::Advance(given) => Ok(if std::mem::replace(given, true) {
                TaskStep::Done
            } else {
                TaskStep::Commands(vec![EngineCommand::Advance])
            }),
        }
    }

    /// The task's name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::Snapshot(_) => "snapshot",
            Kind::Compaction(_) => "compaction",
            Kind::Advance(_) => "advance",
        }
    }
}

impl std::fmt::Debug for MaintenanceTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name();
        match &self.0 {
            Kind::Snapshot(snapshot) => {
                write!(f, "MaintenanceTask({name} at {})", snapshot.position)
            }
            Kind::Compaction(compaction) => {
                write!(f, "MaintenanceTask({name} at {})", compaction.next)
            }
            Kind::Advance(_) => write!(f, "MaintenanceTask({name})"),
        }
    }
}

impl Snapshotting {
    fn step(&mut self, durable: Position) -> Result<TaskStep, LogError> {
        let Some(writer) = &mut self.writer else {
            return Ok(TaskStep::Done);
        };
        if !self.encoded {
            if let Some(piece) = self.frozen.next_piece(&mut self.piece) {
                self.bytes += piece.len() as u64;
                writer.write(piece)?;
                return Ok(TaskStep::More);
            }
            self.encoded = true;
        }
        if durable < self.position {
            return Ok(TaskStep::WaitDurable(self.position));
        }
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
        }
        Ok(TaskStep::Done)
    }
}

impl Compaction {
    fn step(&mut self) -> Result<TaskStep, LogError> {
        if self.next >= self.end {
            return Ok(TaskStep::Done);
        }
        let mut commands = Vec::new();
        let mut bytes = 0;
        let mut next = self.end;
        let scanned = self.reader.scan(self.next, self.end, &mut |scanned| {
            // A damaged record stays, and so does its range.
            let Scanned::Record { record, .. } = scanned else {
                return ControlFlow::Continue(());
            };
            if commands.len() >= COMPACTED_MESSAGES_MAX || bytes >= COMPACTED_BYTES_MAX {
                next = record.position;
                return ControlFlow::Break(());
            }
            bytes += record.payload.len();
            // A record that cannot be decoded holds no message that anybody was given.
            let effects = decode_record(&record.payload).unwrap_or_default();
            let from = record.position;
            let (copies, others) = Copies::of_record(effects);
            for copies in copies {
                let copies = Box::new(copies);
                commands.push(EngineCommand::Compact { copies, from });
            }
            for effect in others {
                let block = match effect {
                    Effect::EventsAppended(appended) if !appended.block.events.is_empty() => {
                        Box::new(appended.block)
                    }
                    Effect::EventsCompacted(block) => block,
                    _ => continue,
                };
                commands.push(EngineCommand::CompactEvents { block, from });
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => {}
            Err(ReadError::Log(error)) => return Err(error),
            Err(_) => next = self.end,
        }
        self.next = next;
        Ok(if commands.is_empty() {
            TaskStep::More
        } else {
            TaskStep::Commands(commands)
        })
    }
}

impl<T: Ticket> Driver<T> {
    /// The next maintenance task, if there is one; call this between two groups. Releases ranges
    /// without live messages. At most one task is out at a time.
    ///
    /// Takes time in the number of ranges and, for a snapshot, of the machine's pages: milliseconds.
    ///
    /// # Errors
    /// If the log cannot release space. The driver continues; try again later.
    pub fn next_task(&mut self, now: Now) -> Result<Option<MaintenanceTask>, LogError> {
        if self.stopped().is_some() {
            return Ok(None);
        }
        // As far as a snapshot that was finished since allows, or an earlier one, if trimming failed then.
        self.trim()?;
        // Last: from here on a task is out.
        let choice = self.look_and_release(now, Plan::choose)?;
        Ok(match choice {
            Choice::Nothing => None,
            Choice::Snapshot => match self.begin_snapshot() {
                Ok(task) => Some(task),
                Err(error) => {
                    self.snapshot_failed(&error, now);
                    None
                }
            },
            Choice::Advance => Some(MaintenanceTask(Kind::Advance(false))),
            Choice::Compact(range) => Some(MaintenanceTask(Kind::Compaction(Compaction {
                reader: self.reader(),
                range: range.first,
                next: range.first,
                end: Position(self.plan.behind(range.first)),
            }))),
        })
    }

    /// Releases ranges without live messages, between two groups, while a task is out: a snapshot
    /// may take long, and a backlog that drains meanwhile empties many ranges.
    ///
    /// Takes time in the number of ranges.
    ///
    /// # Errors
    /// If the log cannot release space. The driver continues; try again later.
    pub fn give_back(&mut self, now: Now) -> Result<(), LogError> {
        if self.stopped().is_some() {
            return Ok(());
        }
        self.look_and_release(now, |_, _| ())
    }

    fn look_and_release<R>(
        &mut self,
        now: Now,
        then: impl FnOnce(&mut Plan, &View<'_>) -> R,
    ) -> Result<R, LogError> {
        let ranges = self.log.ranges();
        let live: BTreeMap<_, _> = self.machine.live_ranges().collect();
        let space = self.log.space();
        let pins = self.pins.clone();
        let view = View {
            now: now.machine,
            tail: self.tail(),
            durable: self.durable,
            image_bytes: self.machine.image_bytes(),
            ranges: &ranges,
            live: &live,
            is_pinned: &|at| pins.is_pinned(at),
            space: space.state,
            ready_bytes: space.ready_bytes,
        };
        self.maintenance.ranges = ranges.len() as u64;
        self.maintenance.live_bytes = live.values().map(|live| live.bytes).sum();
        self.maintenance.space = space;
        for range in self.plan.releases(&view) {
            self.log.release(range)?;
            self.maintenance.ranges_released += 1;
        }
        Ok(then(&mut self.plan, &view))
    }

    /// Whether maintenance waits for something without a notification: a sync, the end of a read,
    /// or the time of the next attempt. Until then, [`next_task`](Self::next_task) finds nothing
    /// new before the next group.
    #[must_use]
    pub fn tasks_wait(&self) -> bool {
        self.plan.is_waiting() || self.pins.first().is_some()
    }

    fn begin_snapshot(&mut self) -> Result<MaintenanceTask, LogError> {
        let next_number = self.log.next_number();
        let writer = self.snapshots.begin(self.tail(), next_number)?;
        Ok(MaintenanceTask(Kind::Snapshot(Box::new(Snapshotting {
            position: writer.position(),
            writer: Some(writer),
            frozen: self.machine.freeze(),
            piece: Vec::new(),
            bytes: 0,
            estimated: self.machine.image_bytes(),
            encoded: false,
            since_at_freeze: self.plan.since_snapshot(),
        }))))
    }

    /// Takes a task back, complete or with the error that ended it. The consequences, such as
    /// trimming the log behind a snapshot, come with the next [`next_task`](Self::next_task).
    pub fn finish_task(
        &mut self,
        task: MaintenanceTask,
        outcome: Result<(), LogError>,
        now: Now,
    ) -> TaskRest {
        let mut rest = TaskRest::default();
        match task.0 {
            Kind::Advance(_) => self.plan.advanced(),
            Kind::Compaction(compaction) => {
                let left = self.machine.live_in(compaction.range).messages;
                self.plan.compacted(compaction.range, left);
                if let Err(error) = outcome {
                    tracing::warn!(
                        range = %compaction.range,
                        messages = left,
                        error = with_sources(&error),
                        "messages could not be moved forward; their part of the log stays"
                    );
                }
            }
            Kind::Snapshot(snapshot) => match outcome {
                Ok(()) => {
                    self.maintenance.snapshots += 1;
                    self.maintenance.snapshot_bytes += snapshot.bytes;
                    let since = self.plan.since_snapshot() - snapshot.since_at_freeze;
                    rest.snapshots = self.plan.snapshot_finished(
                        snapshot.position,
                        snapshot.bytes,
                        snapshot.estimated,
                        since,
                    );
                }
                Err(error) => self.snapshot_failed(&error, now),
            },
        }
        rest
    }

    /// Trims the log as far as the snapshots allow.
    fn trim(&mut self) -> Result<(), LogError> {
        let to = if self.log.capabilities().releases_ranges {
            self.plan.trim()
        } else {
            let oldest = self.machine.live_ranges().map(|(first, _)| first).min();
            let needed = oldest.into_iter().chain(self.pins.first()).min();
            let tail = self.tail();
            self.plan
                .trim_until(needed.unwrap_or(tail), tail, self.durable)
        };
        if to > self.trimmed {
            self.log.trim(to)?;
            self.trimmed = to;
        }
        Ok(())
    }

    fn snapshot_failed(&mut self, error: &LogError, now: Now) {
        self.maintenance.snapshots_failed += 1;
        // Logged once: further failures until one succeeds are only counted.
        if self.plan.snapshot_failed(now.machine) {
            tracing::warn!(
                error = with_sources(error),
                "a snapshot was given up; it is tried again later, and until then the log keeps \
                 what it would have replaced"
            );
        }
    }

    /// Takes a snapshot at once, so that the next start reads little else: for an orderly stop,
    /// when everything is durable. Returns whether a snapshot was worthwhile.
    ///
    /// # Errors
    /// If storage fails or is full; the next start then reads the appended records instead.
    pub fn final_snapshot(&mut self, now: Now) -> Result<bool, LogError> {
        if self.stopped().is_some() || self.plan.since_snapshot() < CLEAN_STOP_BYTES {
            return Ok(false);
        }
        self.snapshot_now(now)?;
        Ok(true)
    }

    /// Takes a snapshot. Everything must be durable.
    pub(crate) fn snapshot_now(&mut self, now: Now) -> Result<(), LogError> {
        let mut task = self.begin_snapshot()?;
        let outcome = loop {
            match task.step(self.tail()) {
                Ok(TaskStep::Done) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        let rest = self.finish_task(task, outcome, now);
        let trimmed = self.trim();
        let removed = rest.snapshots.into_iter();
        removed
            .map(|position| self.snapshots.remove(position))
            .fold(trimmed, Result::and)
    }

    /// The log's snapshots.
    #[must_use]
    pub fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        self.snapshots.clone()
    }

    /// A handle for the log's own maintenance, which runs alongside tasks; see [`Log::log_maintenance`].
    ///
    /// [`Log::log_maintenance`]: lockgate_core::Log::log_maintenance
    #[must_use]
    pub fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        self.log.log_maintenance()
    }

    /// The log's space.
    #[must_use]
    pub fn space(&self) -> LogSpace {
        self.log.space()
    }

    /// The counters of maintenance.
    #[must_use]
    pub fn maintenance_counts(&self) -> MaintenanceCounts {
        self.maintenance
    }
}

//! The log under the shard: it tells the witness what happens, and makes mistakes on purpose.

use std::sync::{Arc, Mutex, MutexGuard};

use lockgate_core::{
    AppendError, Epoch, Log, LogCapabilities, LogError, LogMaintenance, LogProgress, LogRange,
    LogReader, LogRecord, LogSource, LogSpace, Position, Progress, Purpose, QueueId, RecordGroup,
    RecordStamp, RecoveryReport, ReserveError, Storage,
};
use lockgate_log::LocalLog;
use lockgate_machine::{Effect, encode_record};

use crate::witness::{Witness, effects};

/// A mistake made on purpose. Each stands for a class of mistakes in the engine, the machine or the
/// log, and is made where a test can make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Answers leave before the sync they wait for.
    AnswerBeforeSync,
    /// A sync answers without syncing.
    SyncForgotten,
    /// Acknowledgements are not found at recovery.
    AckLost,
    /// Leases are not found at recovery.
    LeaseLost,
    /// The lease bound is not found at recovery.
    HorizonLost,
    /// Unique ids are not found at recovery.
    UniqueIdLost,
    /// Marks of producers are not found at recovery.
    MarkLost,
    /// What producers were given is not found at recovery.
    IncarnationLost,
    /// Recovery turns the order of a key round.
    OrderTurned,
    /// Recovery takes what is delayed for due.
    DueTimeLost,
    /// Purges and deletions of queues are not found at recovery.
    PurgeLost,
    /// Writes and leases of records are not found at recovery.
    RecordLost,
    /// A recovery forgets appends to ledgers.
    EventsLost,
    /// A recovery forgets the unique ids of events.
    EventIdLost,
    /// The record of a publish lacks a copy.
    CopyLost,
    /// Bindings are not found at recovery.
    BindingLost,
    /// Recovery forgets that bindings were removed.
    UnbindingLost,
    /// Ids that have left memory are not looked up.
    IndexNotAsked,
    /// What was looked up counts, whatever has left memory since.
    LateAnswerBelieved,
    /// The index forgets at a crash what the machine was told that it has.
    IndexForgets,
    /// States of keys are not found at recovery.
    StateLost,
    /// Holds of queues and keys are not found at recovery.
    HoldLost,
    /// Damage in the middle is taken for the torn tail.
    MiddleCut,
    /// A failed sync is tried again, and believed.
    SyncRetried,
    /// A full log accepts what it has no room for.
    ReserveIgnored,
    /// A snapshot lacks effects that are before its position.
    SnapshotLosesAcks,
    /// A snapshot is finished before everything in it is durable.
    SnapshotFinishedEarly,
    /// The log is trimmed to the newest snapshot, so that the older one is of no use.
    TrimmedTooFar,
    /// A range is released before what its messages were moved to is durable.
    ReleasedBeforeCompaction,
    /// A range is released before the acknowledgements of its messages are durable.
    ReleasedBeforeAck,
    /// A message that was compacted is a new one at recovery.
    CompactedAsNew,
}

impl Bug {
    /// Whether it is a mistake of maintenance in these tests.
    pub(crate) fn is_of_own_maintenance(self) -> bool {
        matches!(
            self,
            Self::SnapshotLosesAcks
                | Self::SnapshotFinishedEarly
                | Self::TrimmedTooFar
                | Self::ReleasedBeforeCompaction
                | Self::ReleasedBeforeAck
        )
    }
}

pub(crate) struct WatchedLog {
    log: LogHandle,
    witness: Witness,
    bug: Option<Bug>,
}

impl WatchedLog {
    pub(crate) fn new(log: LogHandle, witness: &Witness, bug: Option<Bug>) -> Self {
        Self {
            log,
            witness: witness.share(),
            bug,
        }
    }
}

/// The log of one life, for whoever keeps it beside the driver.
#[derive(Clone)]
pub(crate) struct LogHandle(Arc<Mutex<LocalLog>>);

impl LogHandle {
    pub(crate) fn new(log: LocalLog) -> Self {
        Self(Arc::new(Mutex::new(log)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocalLog> {
        self.0.lock().unwrap()
    }
}

fn spoil(bug: Option<Bug>, record: LogRecord) -> LogRecord {
    let Some(bug) = bug else { return record };
    let mut effects = effects(&record);
    effects.retain(|effect| match (bug, effect) {
        (Bug::AckLost, Effect::Acked { .. })
        | (Bug::LeaseLost, Effect::Leased { .. })
        | (Bug::HorizonLost, Effect::LeaseBoundRaised { .. })
        | (Bug::PurgeLost, Effect::Purged { .. } | Effect::QueueDeleted { .. })
        | (Bug::StateLost, Effect::KeyStatePut { .. })
        | (Bug::HoldLost, Effect::Held { .. })
        | (Bug::EventsLost, Effect::EventsAppended(_))
        | (Bug::BindingLost, Effect::Bound { .. })
        | (Bug::UnbindingLost, Effect::Unbound { .. })
        | (Bug::RecordLost, Effect::RecordPut { .. } | Effect::RecordLeased { .. }) => false,
        (Bug::UniqueIdLost, Effect::Accepted(stored)) => {
            stored.unique_until = None;
            true
        }
        (Bug::EventIdLost, Effect::EventsAppended(appended)) => {
            let events = &mut appended.block.events;
            events.iter_mut().for_each(|event| event.unique_id = None);
            true
        }
        (Bug::MarkLost, Effect::Accepted(stored)) => {
            stored.marked_at = None;
            true
        }
        (Bug::IncarnationLost, Effect::ProducerOpened { .. }) => false,
        (Bug::DueTimeLost, Effect::Accepted(stored)) => {
            stored.message.due = None;
            true
        }
        (Bug::OrderTurned, Effect::Accepted(stored)) => {
            // Every second message thinks it is due a little later.
            if stored.sequence.0 % 2 == 1 {
                stored.message.due = Some(stored.accepted.plus(10));
            }
            true
        }
        _ => true,
    });
    if bug == Bug::CompactedAsNew {
        for effect in &mut effects {
            if let Effect::Compacted(stored) = effect {
                *effect = Effect::Accepted(stored.clone());
            }
        }
    }
    let mut payload = Vec::new();
    encode_record(&effects, &mut payload);
    LogRecord {
        payload: payload.into(),
        ..record
    }
}

/// The same records, of equal length, in which the last copy of a publish is for a queue that is not there.
fn without_copies(group: &RecordGroup) -> RecordGroup {
    let mut spoilt = RecordGroup::new(group.gap());
    for index in 0..group.len() {
        let payload = group.payload(index);
        let record = LogRecord {
            position: Position(0),
            payload: payload.to_vec().into(),
        };
        let mut effects = effects(&record);
        let is_published = effects
            .iter()
            .any(|it| matches!(it, Effect::Published { .. }));
        let last = effects.iter_mut().rev().find_map(|effect| match effect {
            Effect::Accepted(stored) if is_published => Some(stored),
            _ => None,
        });
        if let Some(last) = last {
            last.queue = QueueId(90);
        }
        let mut written = Vec::new();
        encode_record(&effects, &mut written);
        assert_eq!(written.len(), payload.len());
        spoilt.push(|out| out.extend_from_slice(&written));
    }
    spoilt
}

impl From<WatchedLog> for Storage {
    fn from(log: WatchedLog) -> Self {
        let snapshots = log.log.lock().snapshots();
        Self {
            log: Box::new(log),
            snapshots,
        }
    }
}

impl LogSource for WatchedLog {
    fn capabilities(&self) -> LogCapabilities {
        self.log.lock().capabilities()
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        let mut records = Vec::new();
        let report = self
            .log
            .lock()
            .recover(from, lowest, &mut |record, stamp| {
                records.push((record, stamp));
            })?;
        self.witness.lock().recovered(
            from,
            records.iter().map(|(record, _)| record.clone()).collect(),
            report.clone(),
        );
        let middle = report.damaged.first().map(|damaged| damaged.from);
        for (record, stamp) in records {
            let is_behind = middle.is_some_and(|from| record.position >= from);
            if !(self.bug == Some(Bug::MiddleCut) && is_behind) {
                visit(spoil(self.bug, record), stamp);
            }
        }
        Ok(report)
    }

    fn tail(&self) -> Position {
        self.log.lock().tail()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        self.log.lock().reader()
    }

    fn ranges(&self) -> Vec<LogRange> {
        self.log.lock().ranges()
    }

    fn name_of(&self, from: Position, to: Position) -> String {
        self.log.lock().name_of(from, to)
    }
}

impl Log for WatchedLog {
    fn apply_recovery(&mut self) -> Result<(), LogError> {
        self.log.lock().apply_recovery()
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        self.log.lock().begin_epoch(epoch)
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        self.log.lock().place(cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        match self.log.lock().reserve(bytes, records, purpose) {
            Err(ReserveError::Full { .. }) if self.bug == Some(Bug::ReserveIgnored) => Ok(()),
            reserved => reserved,
        }
    }

    fn space(&self) -> LogSpace {
        self.log.lock().space()
    }

    fn submit(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        if self.bug == Some(Bug::CopyLost) {
            *group = without_copies(group);
        }
        let mut tail = expected;
        let records = (0..group.len())
            .map(|index| LogRecord {
                position: self.log.lock().place(&mut tail, group.payload(index).len()),
                payload: group.payload(index).to_vec().into(),
            })
            .collect();
        let appended = self.log.lock().append(epoch, expected, group);
        let mut witness = self.witness.lock();
        match &appended {
            Ok(()) => witness.appended(records, tail, true),
            Err(AppendError::Unknown(_)) => witness.appended(records, tail, false),
            // Nothing was written, and that is certain.
            Err(_) => {}
        }
        appended
    }

    fn progress(&self) -> Arc<dyn LogProgress> {
        Arc::new(WatchedProgress {
            progress: self.log.lock().progress(),
            witness: self.witness.share(),
            bug: self.bug,
        })
    }

    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        self.log.lock().log_maintenance()
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.log.lock().trim(before)
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.log.lock().release(range)
    }

    fn next_number(&self) -> u64 {
        self.log.lock().next_number()
    }
}

struct WatchedProgress {
    progress: Arc<dyn LogProgress>,
    witness: Witness,
    bug: Option<Bug>,
}

impl LogProgress for WatchedProgress {
    fn now(&self) -> Progress {
        self.progress.now()
    }

    fn failure(&self) -> Option<AppendError> {
        self.progress.failure()
    }

    fn sync(&self) -> Result<Position, LogError> {
        let synced = if self.bug == Some(Bug::SyncForgotten) {
            self.witness.lock().appended
        } else {
            self.progress.sync()?
        };
        self.witness.lock().synced(synced);
        Ok(synced)
    }
}

//! The log under the shard: it tells the witness what happens, and makes mistakes on purpose.

use std::sync::Arc;

use lockgate_core::{
    AppendError, Epoch, Log, LogCapabilities, LogError, LogReader, LogRecord, LogSpace, LogSync,
    LogUpkeep, Position, Purpose, RecordGroup, RecoveryReport, ReserveError, SnapshotStore,
    SnapshotWriter,
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
    /// The lease horizon is not found at recovery.
    HorizonLost,
    /// Unique ids are not found at recovery.
    UniqueIdLost,
    /// Recovery turns the order of a key round.
    OrderTurned,
    /// Recovery takes what is delayed for due.
    DueTimeLost,
    /// Damage in the middle is taken for the torn tail.
    MiddleCut,
    /// A failed sync is tried again, and believed.
    SyncRetried,
}

pub(crate) struct WatchedLog {
    log: LocalLog,
    witness: Witness,
    bug: Option<Bug>,
}

impl WatchedLog {
    pub(crate) fn new(log: LocalLog, witness: &Witness, bug: Option<Bug>) -> Self {
        Self {
            log,
            witness: witness.share(),
            bug,
        }
    }
}

fn spoil(bug: Option<Bug>, record: LogRecord) -> LogRecord {
    let Some(bug) = bug else { return record };
    let mut effects = effects(&record);
    effects.retain(|effect| match (bug, effect) {
        (Bug::AckLost, Effect::Acked { .. })
        | (Bug::LeaseLost, Effect::Leased { .. })
        | (Bug::HorizonLost, Effect::HorizonRaised { .. }) => false,
        (Bug::UniqueIdLost, Effect::Accepted(stored)) => {
            stored.unique_until = None;
            true
        }
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
    let mut payload = Vec::new();
    encode_record(&effects, &mut payload);
    LogRecord {
        payload: payload.into(),
        ..record
    }
}

impl Log for WatchedLog {
    fn capabilities(&self) -> LogCapabilities {
        self.log.capabilities()
    }

    fn recover(
        &mut self,
        from: Position,
        visit: &mut dyn FnMut(LogRecord),
    ) -> Result<RecoveryReport, LogError> {
        let mut records = Vec::new();
        let report = self.log.recover(from, &mut |record| records.push(record))?;
        self.witness
            .lock()
            .recovered(from, records.clone(), report.clone());
        let middle = report.damaged.first().map(|damaged| damaged.from);
        for record in records {
            let is_behind = middle.is_some_and(|from| record.position >= from);
            if !(self.bug == Some(Bug::MiddleCut) && is_behind) {
                visit(spoil(self.bug, record));
            }
        }
        Ok(report)
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        self.log.begin_epoch(epoch)
    }

    fn tail(&self) -> Position {
        self.log.tail()
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        self.log.place(cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.log.reserve(bytes, records, purpose)
    }

    fn space(&self) -> LogSpace {
        self.log.space()
    }

    fn append(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        let mut tail = expected;
        let records = (0..group.len())
            .map(|index| LogRecord {
                position: self.log.place(&mut tail, group.payload(index).len()),
                payload: group.payload(index).to_vec().into(),
            })
            .collect();
        let appended = self.log.append(epoch, expected, group);
        let mut witness = self.witness.lock();
        match &appended {
            Ok(()) => witness.appended(records, tail, true),
            Err(AppendError::Unknown(_)) => witness.appended(records, tail, false),
            // Nothing was written, and that is certain.
            Err(_) => {}
        }
        appended
    }

    fn syncer(&self) -> Arc<dyn LogSync> {
        Arc::new(WatchedSync {
            syncer: self.log.syncer(),
            witness: self.witness.share(),
            bug: self.bug,
        })
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        self.log.reader()
    }

    fn upkeep(&self) -> Option<Arc<dyn LogUpkeep>> {
        self.log.upkeep()
    }

    fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        self.log.snapshots()
    }

    fn begin_snapshot(&mut self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        self.log.begin_snapshot()
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.log.trim(before)
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.log.release(range)
    }
}

struct WatchedSync {
    syncer: Arc<dyn LogSync>,
    witness: Witness,
    bug: Option<Bug>,
}

impl LogSync for WatchedSync {
    fn sync(&self) -> Result<Position, LogError> {
        let synced = if self.bug == Some(Bug::SyncForgotten) {
            self.witness.lock().appended
        } else {
            self.syncer.sync()?
        };
        self.witness.lock().synced(synced);
        Ok(synced)
    }
}

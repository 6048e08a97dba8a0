//! Starting a shard, and mistakes made on purpose.

use std::sync::Arc;

use lockgate_core::{
    AppendError, Clock, Epoch, Incarnation, Log, LogCapabilities, LogError, LogReader, LogRecord,
    LogSpace, LogSync, Position, Purpose, RecordGroup, RecoveryReport, ReserveError, SnapshotStore,
    SnapshotWriter,
};
use lockgate_engine::{Beginning, Driver, EngineOptions};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{
    Effect, Effects, Machine, MachineLimits, Snapshot, decode_record, encode_record,
};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::Violation;

/// A mistake made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    AnswerBeforeSync,
    AckLost,
    LeaseLost,
    UniqueIdLost,
    OrderTurned,
    HorizonLost,
}

pub(crate) type Started = (Driver<u64>, Arc<dyn LogSync>, Arc<dyn LogReader>);

pub(crate) fn start(
    disk: &FaultyDisk,
    clock: &ManualClock,
    starts: u64,
    bug: Option<Bug>,
) -> Result<Started, Violation> {
    let log = PlantedLog {
        log: local_log(disk)?,
        bug,
    };
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(starts),
        secret: [7; 32],
    };
    let (driver, _report) = Driver::recover(Box::new(log), &EngineOptions::default(), beginning)
        .map_err(|error| format!("the start was refused: {error:?}"))?;
    let (syncer, reader) = (driver.syncer(), driver.reader());
    Ok((driver, syncer, reader))
}

fn local_log(disk: &FaultyDisk) -> Result<LocalLog, Violation> {
    let options = LocalLogOptions {
        segment_bytes: 16 << 10,
        record_bytes_max: 8 << 10,
        free_bytes_min: 0,
        generation_seed: Some(5),
        ..LocalLogOptions::default()
    };
    LocalLog::open(Arc::new(disk.clone()), options).map_err(|error| error.to_string())
}

/// The state that the log on the disk gives.
pub(crate) fn folded(disk: &FaultyDisk) -> Result<Snapshot, Violation> {
    let mut machine = Machine::new(MachineLimits::default());
    let mut broken = None;
    local_log(disk)?
        .recover(
            Position(0),
            &mut |record| match decode_record(&record.payload) {
                Ok(effects) => machine.fold(&effects, record.position),
                Err(error) => broken = Some(error),
            },
        )
        .map_err(|error| error.to_string())?;
    match broken {
        Some(error) => Err(format!("a record makes no sense: {error}")),
        None => Ok(machine.snapshot()),
    }
}

/// A log that forgets something at recovery, on purpose.
struct PlantedLog {
    log: LocalLog,
    bug: Option<Bug>,
}

impl PlantedLog {
    fn spoil(&self, record: LogRecord) -> LogRecord {
        let Some(bug) = self.bug else { return record };
        let mut effects: Effects = decode_record(&record.payload).expect("a good record");
        effects.retain(|effect| match (bug, effect) {
            (Bug::AckLost, Effect::Acked { .. }) | (Bug::LeaseLost, Effect::Leased { .. }) => false,
            (Bug::HorizonLost, Effect::HorizonRaised { .. }) => false,
            (Bug::UniqueIdLost, Effect::Accepted(stored)) => {
                stored.unique_until = None;
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
}

impl Log for PlantedLog {
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
        for record in records {
            visit(self.spoil(record));
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

    fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        self.log.snapshots()
    }

    fn begin_snapshot(&mut self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        self.log.begin_snapshot()
    }

    fn append(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.log.append(epoch, expected, group)
    }

    fn syncer(&self) -> Arc<dyn LogSync> {
        self.log.syncer()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        self.log.reader()
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.log.trim(before)
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.log.release(range)
    }
}

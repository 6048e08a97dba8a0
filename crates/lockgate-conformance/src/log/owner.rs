//! An owner of a log, as an engine is one, that remembers what it appended.

use std::{ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    AppendError, Epoch, Log, LogError, LogReader, LogRecord, Position, Purpose, ReadError,
    RecordGroup, RecordStamp, RecoveryReport, Scanned, SnapshotStore, SnapshotWriter, StepOutcome,
    Storage,
};

use super::Fixture;

/// A log under an epoch.
pub(super) struct Owner {
    pub(super) log: Box<dyn Log>,
    pub(super) snapshots: Arc<dyn SnapshotStore>,
    pub(super) epoch: Epoch,
    pub(super) report: RecoveryReport,
    /// What recovery handed over, then what was appended.
    pub(super) records: Vec<LogRecord>,
}

impl Owner {
    /// Recovers the log and begins the next epoch.
    pub(super) fn start(storage: Storage) -> Self {
        Self::start_from(storage, Position(0))
    }

    /// The same from the position of a snapshot on.
    pub(super) fn start_from(storage: Storage, from: Position) -> Self {
        let Storage { mut log, snapshots } = storage;
        let (report, records) = recover_from(&mut *log, from);
        let epoch = report.epoch.next();
        log.begin_epoch(epoch).expect("the next epoch begins");
        Self {
            log,
            snapshots,
            epoch,
            report,
            records,
        }
    }

    /// Appends the payloads as one group and checks where they went.
    pub(super) fn append(&mut self, payloads: &[Vec<u8>]) {
        let mut group = self.group(payloads);
        let mut cursor = self.log.tail();
        let placed: Vec<Position> = payloads
            .iter()
            .map(|payload| self.log.place(&mut cursor, payload.len()))
            .collect();
        let bytes = payloads.iter().map(|payload| payload.len() as u64).sum();
        self.log
            .reserve(bytes, payloads.len() as u64, Purpose::Growth)
            .expect("there is room");
        let tail = self.log.tail();
        self.log
            .append(self.epoch, tail, &mut group)
            .expect("the group is appended");
        assert_eq!(self.log.tail(), cursor, "the tail is where place ended");
        for (position, payload) in placed.into_iter().zip(payloads) {
            self.records.push(LogRecord {
                position,
                payload: payload.clone().into(),
            });
        }
    }

    pub(super) fn append_fails_as_fenced(&mut self, payloads: &[Vec<u8>]) {
        let (tail, mut group) = (self.log.tail(), self.group(payloads));
        match self.log.append(self.epoch, tail, &mut group) {
            Err(AppendError::Fenced { ours, theirs }) => {
                assert_eq!(ours, self.epoch);
                assert!(theirs > ours);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Begins a snapshot as of the tail.
    pub(super) fn begin_snapshot(&mut self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        self.snapshots
            .begin(self.log.tail(), self.log.next_number())
    }

    /// Writes a snapshot as of the tail.
    pub(super) fn snapshot(&mut self, pieces: &[&[u8]]) -> Position {
        let mut writer = self.begin_snapshot().expect("a snapshot begins");
        for piece in pieces {
            writer.write(piece).expect("a piece is written");
        }
        let at = writer.position();
        writer.finish().expect("the snapshot is finished");
        at
    }

    /// Does what maintenance there is to do now.
    pub(super) fn run_log_maintenance(&self) {
        let Some(log_maintenance) = self.log.log_maintenance() else {
            return;
        };
        let mut steps = 0;
        while log_maintenance.step().expect("maintenance is done") == StepOutcome::More {
            steps += 1;
            assert!(steps < 100_000, "maintenance never comes to an end");
        }
    }

    pub(super) fn group(&self, payloads: &[Vec<u8>]) -> RecordGroup {
        let mut group = RecordGroup::new(self.log.capabilities().gap);
        for payload in payloads {
            group.push(|buffer| buffer.extend_from_slice(payload));
        }
        group
    }

    pub(super) fn sync(&self) -> Position {
        self.log.progress().sync().expect("the log syncs")
    }

    /// Checks that every record reads back at its position.
    pub(super) fn check_reads(&self) {
        let reader = self.log.reader();
        for record in &self.records {
            let read = reader.read(record.position).expect("a record reads back");
            assert_eq!(read, record.payload, "the record at {}", record.position);
        }
        let positions: Vec<_> = self.records.iter().map(|record| record.position).collect();
        let read = reader.read_all(&positions).into_iter();
        let read: Vec<_> = read
            .map(|read| read.expect("a record reads back"))
            .collect();
        assert!(self.records.iter().map(|record| &record.payload).eq(&read));
    }
}

/// Recovers the whole log; checks what holds for every recovery.
pub(super) fn recover(log: &mut dyn Log) -> (RecoveryReport, Vec<LogRecord>) {
    recover_from(log, Position(0))
}

/// Recovers the log from the position of a snapshot on; checks what holds for every recovery.
pub(super) fn recover_from(log: &mut dyn Log, from: Position) -> (RecoveryReport, Vec<LogRecord>) {
    let mut records: Vec<LogRecord> = Vec::new();
    let mut stamps: Vec<RecordStamp> = Vec::new();
    let report = log
        .recover(from, Epoch(0), &mut |record, stamp| {
            records.push(record);
            stamps.push(stamp);
        })
        .expect("the log recovers");
    for pair in stamps.windows(2) {
        let missing = pair[1].number - pair[0].number - 1;
        assert!(
            missing == 0 || report.records_lost() >= missing,
            "{missing} numbers are missing, and not told of"
        );
        assert!(pair[0].epoch <= pair[1].epoch, "epochs never go back");
    }
    if let Some(last) = stamps.last() {
        assert!(
            last.number < log.next_number(),
            "numbers are not used again"
        );
        assert!(last.epoch <= report.epoch);
    }
    assert_eq!(report.records, records.len() as u64, "records are counted");
    assert!(
        records
            .windows(2)
            .all(|pair| pair[0].position < pair[1].position),
        "records come in order"
    );
    assert!(
        records.first().is_none_or(|first| first.position >= from),
        "nothing stands before the start"
    );
    assert!(
        records.last().is_none_or(|last| last.position < log.tail()),
        "the tail is behind the last record"
    );
    assert!(log.tail() >= from, "the tail is behind the start");
    (report, records)
}

/// The records of a scan, and its damaged stretches.
pub(super) fn scan(
    reader: &dyn LogReader,
    from: Position,
    to: Position,
) -> (Vec<LogRecord>, Vec<(Position, Position)>) {
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    reader
        .scan(from, to, &mut |scanned| {
            match scanned {
                Scanned::Record { record, .. } => records.push(record),
                Scanned::Damaged { from, to } => damaged.push((from, to)),
            }
            ControlFlow::Continue(())
        })
        .expect("the log is scanned");
    (records, damaged)
}

/// What the log keeps beside each record.
pub(super) fn stamps(reader: &dyn LogReader, from: Position, to: Position) -> Vec<RecordStamp> {
    let mut stamps = Vec::new();
    reader
        .scan(from, to, &mut |scanned| {
            if let Scanned::Record { stamp, .. } = scanned {
                stamps.push(stamp);
            }
            ControlFlow::Continue(())
        })
        .expect("the log is scanned");
    stamps
}

/// All pieces of a snapshot.
pub(super) fn pieces(store: &dyn SnapshotStore, at: Position) -> Result<Vec<Bytes>, ReadError> {
    let mut reader = store.open(at)?;
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        pieces.push(piece);
    }
    assert_eq!(reader.next_piece()?, None, "the end stays the end");
    Ok(pieces)
}

/// Syncs, kills, opens again and expects exactly the owner's records.
pub(super) fn reopen_finds(fixture: &mut dyn Fixture, owner: Owner) {
    // The instance may have ended itself after an error, and then says so.
    let _ = owner.log.progress().sync();
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    owner.check_reads();
}

/// Bytes that are different for every seed.
pub(super) fn payload(seed: usize, len: usize) -> Vec<u8> {
    let seed = u32::try_from(seed).expect("seeds are small");
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(|| {
        // xorshift32 (Marsaglia, 2003)
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    })
    .take(len)
    .collect()
}

/// Payloads of many lengths, from empty to the largest.
pub(super) fn payloads(log: &dyn Log) -> Vec<Vec<u8>> {
    let max = log.capabilities().record_bytes_max.min(1 << 20);
    let mut lens = vec![0, 1, 7, 100, 511, 512, 513, 1_024, 4_055, 4_056, 4_057];
    lens.extend([max / 3, max / 2, max / 2 + 1, max - 1, max]);
    lens.retain(|&len| len <= max);
    (0..3)
        .flat_map(|round| lens.iter().map(move |&len| (round, len)))
        .enumerate()
        .map(|(seed, (round, len))| payload(seed + 100 * round, len))
        .collect()
}

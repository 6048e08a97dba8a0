//! Histories of a log, what was promised in them, and what must therefore survive.

use std::sync::Arc;

use lockgate_core::{
    AppendError, Epoch, Log, LogError, LogRecord, LogSource, Position, RecordGroup, RecoveryReport,
    ReserveError,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{FaultyDisk, PowerCut, SeededRandom};

/// One thing the owner of a log does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Appends a group of records of these lengths.
    Append(Vec<usize>),
    Sync,
    /// Trims so many percent of the records there are.
    Trim(usize),
    /// Does all that the log's maintenance has to do.
    Maintenance,
    /// Ends the instance, recovers and begins the next epoch.
    Restart,
}

/// A history up to some point, and what its owner was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Every record that was handed to `append`, answered or not.
    pub(crate) appended: Vec<LogRecord>,
    /// What was known to be synced when each of them was appended.
    pub(crate) synced_when_appended: Vec<Position>,
    /// The highest position any sync reported; after a recovery, its tail.
    pub(crate) synced: Position,
    /// The highest position trimmed to.
    pub(crate) trimmed: Position,
    /// The highest epoch whose beginning was reported.
    pub(crate) epoch: Epoch,
    /// The last error, which ended the history.
    pub(crate) error: Option<String>,
    /// Whether space was refused at a reservation.
    pub(crate) was_refused: bool,
    pub(crate) records_made: u64,
    pub(crate) generation_seed: u64,
}

const GENERATION_SEED: u64 = 0x5eed;

pub(crate) fn options(generation_seed: u64) -> LocalLogOptions {
    LocalLogOptions {
        // The smallest there are, so that nearly every group changes segments.
        segment_bytes: 8 << 10,
        record_bytes_max: 4_000,
        low_bytes: None,
        free_bytes_min: 0,
        reserve_segments: 1,
        open_files_max: 2,
        shared_reserve: None,
        write_ahead_bytes_max: 4 << 20,
        generation_seed: Some(generation_seed),
    }
}

pub(crate) fn open(disk: &FaultyDisk) -> LocalLog {
    open_with(disk, GENERATION_SEED)
}

fn open_with(disk: &FaultyDisk, generation_seed: u64) -> LocalLog {
    let disk = Arc::new(disk.clone());
    LocalLog::open(disk, options(generation_seed)).expect("the folder is free")
}

/// Recovers, and does what that has decided; checks what holds for every recovery.
pub(crate) fn recover(log: &mut LocalLog) -> Result<(RecoveryReport, Vec<LogRecord>), LogError> {
    let mut records: Vec<LogRecord> = Vec::new();
    let report = log.recover(lockgate_core::Position(0), Epoch(0), &mut |record, _| {
        records.push(record);
    })?;
    log.apply_recovery()?;
    assert_eq!(report.records, records.len() as u64);
    Ok((report, records))
}

impl History {
    /// Runs the steps from the first life on, until one fails.
    pub(crate) fn run(disk: &FaultyDisk, steps: &[Step]) -> Self {
        Self::run_with(disk, steps, GENERATION_SEED)
    }

    /// Runs the steps with generations drawn from another seed.
    pub(crate) fn run_with(disk: &FaultyDisk, steps: &[Step], generation_seed: u64) -> Self {
        let mut history = Self {
            generation_seed,
            ..Self::default()
        };
        history.go_on(disk, steps);
        history
    }

    /// Starts another life and runs the steps, until one fails.
    pub(crate) fn go_on(&mut self, disk: &FaultyDisk, steps: &[Step]) {
        self.error = self.attempt(disk, steps).err();
    }

    fn attempt(&mut self, disk: &FaultyDisk, steps: &[Step]) -> Result<(), String> {
        let mut log = self.start(disk)?;
        for step in steps {
            match step {
                Step::Append(lens) => self.append(&mut log, lens)?,
                Step::Sync => {
                    let synced = log.progress().sync();
                    match synced {
                        Ok(synced) => {
                            assert!(synced >= self.synced && synced <= log.tail());
                            self.synced = synced;
                        }
                        Err(error) => {
                            check_stopped(&mut log);
                            return Err(format!("{error:?}"));
                        }
                    }
                }
                Step::Trim(percent) => {
                    let index = self.appended.len() * percent / 100;
                    let at = self.appended.get(index).map_or(log.tail(), |r| r.position);
                    // Said before it is done: after a failure part of it may have happened.
                    self.trimmed = self.trimmed.max(at);
                    log.trim(at).map_err(|error| format!("{error:?}"))?;
                    release_trimmed(&mut log).map_err(|error| format!("{error:?}"))?;
                }
                Step::Maintenance => {
                    let log_maintenance = log
                        .log_maintenance()
                        .expect("the local log has maintenance");
                    log_maintenance
                        .catch_up()
                        .map_err(|error| format!("{error:?}"))?;
                }
                Step::Restart => {
                    drop(log);
                    log = self.start(disk)?;
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, disk: &FaultyDisk) -> Result<LocalLog, String> {
        let mut log = open_with(disk, self.generation_seed);
        let (report, records) = recover(&mut log).map_err(|error| format!("{error:?}"))?;
        self.check(&report, &records);
        self.survived(&records, log.tail());
        let epoch = report.epoch.next();
        if let Err(error) = log.begin_epoch(epoch) {
            check_stopped(&mut log);
            return Err(format!("{error:?}"));
        }
        self.epoch = epoch;
        Ok(log)
    }

    /// From now on what recovery handed over is what there is.
    pub(crate) fn survived(&mut self, records: &[LogRecord], tail: Position) {
        if records.is_empty() {
            self.appended.clear();
        } else {
            let start = self.first_of(records);
            self.appended.truncate(start + records.len());
        }
        self.synced_when_appended.truncate(self.appended.len());
        self.synced = tail;
    }

    fn append(&mut self, log: &mut LocalLog, lens: &[usize]) -> Result<(), String> {
        let bytes = lens.iter().sum::<usize>() as u64;
        match log.reserve(bytes, lens.len() as u64, lockgate_core::Purpose::Growth) {
            Ok(()) => {}
            Err(ReserveError::Full { .. }) => {
                self.was_refused = true;
                return Ok(());
            }
            Err(error) => return Err(format!("{error:?}")),
        }
        let mut group = RecordGroup::new(log.capabilities().gap);
        let mut cursor = log.tail();
        let expected = cursor;
        for &len in lens {
            self.records_made += 1;
            let payload = SeededRandom::new(self.records_made).bytes(len);
            let position = log.place(&mut cursor, len);
            group.push(|buffer| buffer.extend_from_slice(&payload));
            self.appended.push(LogRecord {
                position,
                payload: payload.into(),
            });
            self.synced_when_appended.push(self.synced);
        }
        match log.append(self.epoch, expected, &mut group) {
            Ok(()) => {
                assert_eq!(log.tail(), cursor);
                Ok(())
            }
            Err(AppendError::Full(_)) => {
                // Certain that nothing was written, and the log goes on.
                self.was_refused = true;
                assert_eq!(log.tail(), expected);
                let kept = self.appended.len() - lens.len();
                self.appended.truncate(kept);
                self.synced_when_appended.truncate(kept);
                Ok(())
            }
            Err(error) => {
                assert!(matches!(error, AppendError::Unknown(_)), "{error:?}");
                check_stopped(log);
                Err(format!("{error:?}"))
            }
        }
    }

    /// Where the records start among those appended.
    fn first_of(&self, records: &[LogRecord]) -> usize {
        records.first().map_or(self.appended.len(), |first| {
            self.appended
                .iter()
                .position(|record| record.position == first.position)
                .expect("no record from nowhere")
        })
    }

    /// What must hold for the records a recovery hands over: they are a piece of what was appended
    /// without a gap, it begins no later than what was trimmed, and it holds all that was reported
    /// synced.
    pub(crate) fn check(&self, report: &RecoveryReport, records: &[LogRecord]) {
        assert!(report.damaged.is_empty(), "{report:?}");
        assert!(report.epoch >= self.epoch, "{report:?}");
        let due =
            |record: &&LogRecord| record.position < self.synced && record.position >= self.trimmed;
        let Some(first) = records.first() else {
            let lost: Vec<_> = self.appended.iter().filter(due).collect();
            assert!(lost.is_empty(), "lost all of {}", lost.len());
            return;
        };
        let start = self.first_of(records);
        assert_eq!(
            records,
            &self.appended[start..(start + records.len()).min(self.appended.len())],
            "what survives was appended, in this order, without a gap"
        );
        let last = records.last().expect("not empty");
        for record in self.appended.iter().filter(due) {
            assert!(
                record.position >= first.position && record.position <= last.position,
                "lost the record at {}, synced up to {}",
                record.position,
                self.synced
            );
        }
    }
}

/// Releases every range before where the log was trimmed to.
pub(crate) fn release_trimmed(log: &mut LocalLog) -> Result<(), LogError> {
    for range in log.ranges().into_iter().map(|range| range.first) {
        match log.release(range) {
            Err(LogError::Unsupported { .. }) => break,
            released => released?,
        }
    }
    Ok(())
}

/// A failed instance takes nothing and promises nothing any more.
fn check_stopped(log: &mut LocalLog) {
    let is_stopped = |error: &LogError| matches!(error, LogError::Stopped { .. });
    let synced = log.progress().sync().expect_err("no sync after a failure");
    assert!(is_stopped(&synced), "{synced:?}");
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.push(1));
    let (epoch, tail) = (Epoch(u64::MAX), log.tail());
    match log.append(epoch, tail, &mut group) {
        Err(AppendError::Unknown(error)) => assert!(is_stopped(&error), "{error:?}"),
        other => panic!("{other:?}"),
    }
}

/// Opens what a crash left and checks it: what was promised is there, a second recovery finds the
/// same, every record reads back, and the log goes on. Returns the survivors.
pub(crate) fn check_survivors(history: &History, crashed: &FaultyDisk) -> Vec<LogRecord> {
    let mut log = open(crashed);
    let (report, records) = recover(&mut log).expect("a crash leaves what can be recovered");
    history.check(&report, &records);
    let tail = log.tail();
    let again = recover(&mut log).expect("a second time").1;
    assert_eq!(again, records, "the same instance, twice");
    drop(log);

    // What recovery handed over is durable from now on, and the epoch that is begun as well.
    let crashed = crashed.crash(PowerCut::LoseAllUnsynced);
    let mut log = open(&crashed);
    let (report, again) = recover(&mut log).expect("after another cut");
    assert_eq!(again, records, "recovered, cut, recovered");
    assert_eq!(log.tail(), tail);
    assert_eq!(report.tail_bytes_cut, 0, "the first cut was durable");
    log.begin_epoch(report.epoch.next()).expect("it goes on");
    let reader = log.reader();
    for record in &records {
        let read = reader.read(record.position).expect("survivors read back");
        assert_eq!(read, record.payload);
    }

    let mut history = history.clone();
    history.survived(&records, tail);
    drop(log);
    let more = [Step::Append(vec![10, 3_000, 3_000]), Step::Sync];
    history.go_on(&crashed, &more);
    assert_eq!(history.error, None);
    let crashed = crashed.crash(PowerCut::LoseAllUnsynced);
    let mut log = open(&crashed);
    let (report, again) = recover(&mut log).expect("after going on");
    history.check(&report, &again);
    assert_eq!(again.len(), records.len() + 3);
    records
}

/// A history that meets every kind of change: lives without records, groups within and across
/// segments, trims of nothing, some and all.
pub(crate) fn script() -> Vec<Step> {
    use Step::{Append, Maintenance, Restart, Sync, Trim};
    vec![
        Append(vec![100]),
        Sync,
        Append(vec![0, 600, 1_500]),
        Append(vec![3_000, 10]),
        Sync,
        Append(vec![4_000, 4_000, 50]),
        Restart,
        Restart,
        Append(vec![1_000]),
        Append(vec![2_000, 1_500, 700]),
        Sync,
        Maintenance,
        Sync,
        Trim(0),
        Trim(60),
        Append(vec![3_500, 3_500, 3_500]),
        Append(vec![20]),
        Restart,
        Append(vec![5]),
        Sync,
        Maintenance,
        Trim(100),
        Append(vec![900, 900]),
        Maintenance,
        Sync,
        Append(vec![1]),
    ]
}

/// A history drawn from a seed.
pub(crate) fn random_steps(random: &mut SeededRandom, count: usize) -> Vec<Step> {
    (0..count)
        .map(|_| match random.below(100) {
            0..55 => {
                let records = 1 + random.index(4);
                let len_max = [30, 600, 4_000][random.index(3)];
                Step::Append((0..records).map(|_| random.index(len_max + 1)).collect())
            }
            55..85 => Step::Sync,
            85..92 => Step::Trim(random.index(101)),
            92..95 => Step::Maintenance,
            _ => Step::Restart,
        })
        .collect()
}

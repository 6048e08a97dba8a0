//! The local log: appends that begin segments, with concurrent syncs and maintenance.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use lockgate_core::{
    AppendError, Epoch, Log as _, LogProgress, LogSource, Position, Progress, Purpose, RecordGroup,
    StepOutcome,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::FaultyDisk;
use shuttle::thread;

use super::{
    check,
    disk::{TurnDisk, is_preallocated, power_cut},
    finds, turn,
};

/// A record fills most of a segment, so each group begins one.
const SEGMENT_BYTES: u32 = 8 << 10;
const RECORD_BYTES: usize = 3 << 10;
const GROUPS: u8 = 5;

fn options(reserve_segments: u32) -> LocalLogOptions {
    LocalLogOptions {
        segment_bytes: SEGMENT_BYTES,
        record_bytes_max: RECORD_BYTES,
        low_bytes: Some(0),
        free_bytes_min: 0,
        reserve_segments,
        write_ahead_bytes_max: 0,
        generation_seed: Some(1),
        ..LocalLogOptions::default()
    }
}

/// A deliberate bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A name is noted for the next sync before it is created.
    NameNotedTooEarly,
    /// A sync reports what was appended by its end, instead of by its beginning.
    SyncAnswersItsEnd,
}

/// What a sync has reported, and the disk after a power cut at that moment.
struct Promise {
    durable: Position,
    trimmed: Position,
    after: FaultyDisk,
}

#[derive(Default)]
struct History {
    appended: Vec<Position>,
    trimmed: Position,
    promises: Vec<Promise>,
}

struct Model {
    disk: FaultyDisk,
    log: LocalLog,
    progress: Arc<dyn LogProgress>,
    history: Arc<Mutex<History>>,
    ended: Arc<AtomicBool>,
}

impl Model {
    fn on(disk_of: fn(&FaultyDisk) -> Arc<TurnDisk>, reserve_segments: u32) -> Self {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(64 * u64::from(SEGMENT_BYTES)));
        let mut log = LocalLog::open(disk_of(&disk), options(reserve_segments)).unwrap();
        log.recover(Position::default(), Epoch(0), &mut |_, _| {})
            .unwrap();
        log.begin_epoch(Epoch(1)).unwrap();
        Self {
            progress: log.progress(),
            disk,
            log,
            history: Arc::default(),
            ended: Arc::default(),
        }
    }

    fn append(&mut self, number: u8) {
        let room = self.log.reserve(RECORD_BYTES as u64, 1, Purpose::Growth);
        room.unwrap();
        self.try_append(&[number]).unwrap();
    }

    /// Appends a record for each number, as one group.
    fn try_append(&mut self, numbers: &[u8]) -> Result<(), AppendError> {
        let mut group = RecordGroup::new(self.log.capabilities().gap);
        let tail = self.log.tail();
        let mut cursor = tail;
        let mut positions = Vec::new();
        for &number in numbers {
            let len = group.push(|buffer| buffer.resize(buffer.len() + RECORD_BYTES, number));
            positions.push(self.log.place(&mut cursor, len));
        }
        self.log.append(Epoch(1), tail, &mut group)?;
        self.history.lock().unwrap().appended.extend(positions);
        Ok(())
    }

    /// Releases everything durable except the newest.
    fn trim(&mut self) {
        let durable = self
            .history
            .lock()
            .unwrap()
            .promises
            .last()
            .map(|promise| promise.durable);
        let Some(durable) = durable else { return };
        // Recorded before it is done.
        self.history.lock().unwrap().trimmed = durable;
        self.log.trim(durable).unwrap();
        for range in self.log.ranges() {
            // The log refuses those that a recovery may start with.
            let _refused = self.log.release(range.first);
        }
    }

    fn sync_beside(&self) -> thread::JoinHandle<()> {
        let (progress, disk) = (self.progress.clone(), self.disk.clone());
        let (history, ended) = (self.history.clone(), self.ended.clone());
        thread::spawn(move || {
            while !ended.load(Relaxed) {
                let durable = progress.sync().unwrap();
                promise(&disk, &history, durable);
                thread::yield_now();
            }
        })
    }

    fn maintenance_beside(&self, failing: bool) -> thread::JoinHandle<()> {
        let log_maintenance = self.log.log_maintenance().unwrap();
        let ended = self.ended.clone();
        thread::spawn(move || {
            while !ended.load(Relaxed) {
                let stepped = log_maintenance.step();
                assert!(failing || stepped.is_ok(), "nothing fails: {stepped:?}");
                // Concurrent with an append that begins another file, or a trim that releases one.
                log_maintenance.check_storage().unwrap();
                thread::yield_now();
            }
        })
    }
}

fn promise(disk: &FaultyDisk, history: &Mutex<History>, durable: Position) {
    let after = disk.crash(power_cut());
    let mut history = history.lock().unwrap();
    let trimmed = history.trimmed;
    history.promises.push(Promise {
        durable,
        trimmed,
        after,
    });
}

/// What every sync reported is present after a power cut at that moment.
fn verify(history: &History) {
    for promise in &history.promises {
        let mut log = LocalLog::open(Arc::new(promise.after.clone()), options(1)).unwrap();
        let mut found = Vec::new();
        let recovered = log.recover(Position::default(), Epoch(0), &mut |record, _| {
            found.push((record.position, record.payload[0]));
        });
        let report = recovered.unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        let promised = |at: &Position| *at < promise.durable && *at >= promise.trimmed;
        for (number, at) in (0..).zip(&history.appended).filter(|(_, at)| promised(at)) {
            assert!(
                found.contains(&(*at, number)),
                "a record answered as durable is lost: {at}"
            );
        }
    }
}

/// The log knows every preallocated file on the disk, and each that it knows exists.
fn verify_preallocated(log: &LocalLog, disk: &FaultyDisk) {
    let log_maintenance = log.log_maintenance().unwrap();
    // A failure that was planned may not have struck yet; it does so once.
    while !matches!(log_maintenance.step(), Ok(StepOutcome::Done)) {}
    let held = log.ranges().len() as u64;
    let names = disk
        .image()
        .into_keys()
        .filter(|name| is_preallocated(name))
        .count() as u64;
    let used = log.space().used_bytes / u64::from(SEGMENT_BYTES);
    assert_eq!(used, held + names, "segments and preallocated files");
}

fn appends(bug: Option<Bug>) {
    let disk_of = match bug {
        Some(Bug::NameNotedTooEarly) => TurnDisk::with_late_renames,
        _ => TurnDisk::new,
    };
    let mut model = Model::on(disk_of, 1);
    if bug == Some(Bug::SyncAnswersItsEnd) {
        model.progress = Arc::new(AnswersItsEnd(model.progress.clone(), model.history.clone()));
    }
    let threads = [model.sync_beside(), model.maintenance_beside(false)];
    for number in 0..GROUPS {
        model.append(number);
        if number == GROUPS / 2 {
            model.trim();
        }
        turn();
    }
    model.ended.store(true, Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let durable = model.progress.sync().unwrap();
    assert_eq!(durable, model.log.tail());
    promise(&model.disk, &model.history, durable);
    verify(&model.history.lock().unwrap());
    if bug.is_none() {
        verify_preallocated(&model.log, &model.disk);
    }
}

struct AnswersItsEnd(Arc<dyn LogProgress>, Arc<Mutex<History>>);

impl LogProgress for AnswersItsEnd {
    fn now(&self) -> Progress {
        self.0.now()
    }

    fn failure(&self) -> Option<AppendError> {
        self.0.failure()
    }

    fn sync(&self) -> Result<Position, lockgate_core::LogError> {
        let durable = self.0.sync()?;
        let last = self.1.lock().unwrap().appended.last().copied();
        Ok(durable.max(last.map_or(durable, |at| Position(at.0 + 1))))
    }
}

#[test]
fn what_a_sync_answers_survives_beside_new_segments_and_maintenance() {
    check(|| appends(None));
}

#[test]
fn a_name_noted_before_it_is_made_is_found() {
    finds(
        || appends(Some(Bug::NameNotedTooEarly)),
        "a record answered as durable is lost",
    );
}

#[test]
fn a_sync_that_answers_for_what_came_meanwhile_is_found() {
    finds(
        || appends(Some(Bug::SyncAnswersItsEnd)),
        "a record answered as durable is lost",
    );
}

/// A group that begins files on a full disk takes them back, with concurrent syncs and checks of
/// the newest file.
#[test]
fn a_group_that_is_taken_back_leaves_what_was_answered() {
    check(|| {
        let mut model = Model::on(TurnDisk::new, 0);
        model.append(0);
        // Room for one more segment and part of the next.
        let free = u64::from(SEGMENT_BYTES) * 3 / 2;
        model.disk.set_free_bytes(Some(free));
        let threads = [model.sync_beside(), model.maintenance_beside(true)];
        for _ in 0..2 {
            let refused = model.try_append(&[1, 2, 3]);
            assert!(matches!(refused, Err(AppendError::Full(_))), "{refused:?}");
        }
        model.ended.store(true, Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        let durable = model.progress.sync().unwrap();
        promise(&model.disk, &model.history, durable);
        verify(&model.history.lock().unwrap());
    });
}

/// Without a reserve there is no other preallocated file. The file that maintenance was writing to
/// is lost, and an append that waits for it continues.
#[test]
fn an_append_that_waits_for_a_preallocated_file_in_hand_goes_on_when_it_is_lost() {
    check(|| {
        let mut model = Model::on(TurnDisk::that_fails_zeros, 0);
        let log_maintenance = model.maintenance_beside(true);
        for number in 0..GROUPS {
            model.append(number);
        }
        model.ended.store(true, Relaxed);
        log_maintenance.join().unwrap();
        verify_preallocated(&model.log, &model.disk);
    });
}

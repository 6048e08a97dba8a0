//! What a group costs on the local log, against the floor of the same bytes on the same disk.
//!
//! Interleaved rounds of append and sync on four contestants: a [`LocalLog`] whose maintenance another
//! thread does (*log*), one that nobody attends to (*alone*), write and fdatasync of the same bytes
//! into a file that was written before (the *floor*), and the same into a file whose blocks were only
//! allocated. Prints medians. Only the ratios inside one run mean something.
//!
//! ```text
//! cargo run --release -p lockgate-log --example append_cost -- [FOLDER]
//! ```

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use lockgate_core::{
    Disk, DiskFile, Epoch, Log, LogMaintenance, LogSource, OpenMode, RecordGroup, StepOutcome,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};

const ROUNDS: usize = 5;
/// Bytes of one record.
const RECORD_BYTES: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1);
    let temp = tempfile::tempdir_in(folder.as_deref().unwrap_or("."))?;
    println!(
        "records a group |  log µs | alone µs | floor µs | allocated µs | log/floor | alone/floor"
    );
    for (records, groups) in [(1, 400), (16, 300), (100, 200), (1_600, 80)] {
        let path = |name: &str| temp.path().join(format!("{name}-{records}"));
        let mut log = LogContestant::open(&path("log"), true)?;
        let mut alone = LogContestant::open(&path("alone"), false)?;
        let bytes = records * RECORD_BYTES;
        let writes = groups * (ROUNDS + 1);
        let mut floor = FileContestant::open(temp.path(), bytes, writes, true)?;
        let mut allocated = FileContestant::open(temp.path(), bytes, writes, false)?;
        let mut times = [const { Vec::new() }; 4];
        // The first round warms up.
        for round in 0..=ROUNDS {
            let measured = [
                time(groups, || log.append_and_sync(records))?,
                time(groups, || alone.append_and_sync(records))?,
                time(groups, || floor.write_and_sync())?,
                time(groups, || allocated.write_and_sync())?,
            ];
            if round > 0 {
                for (times, time) in times.iter_mut().zip(measured) {
                    times.push(time);
                }
            }
        }
        let [log, alone, floor, allocated] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        println!(
            "{records:15} | {log:7.0} | {alone:8.0} | {floor:8.0} | {allocated:12.0} | {:9.2} | {:11.2}",
            log / floor,
            alone / floor
        );
    }
    Ok(())
}

/// The mean time of one call.
fn time(
    calls: usize,
    mut call: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed() / u32::try_from(calls)?)
}

struct LogContestant {
    log: LocalLog,
    /// Ends the maintenance when dropped.
    _maintenance: Option<Maintenance>,
    payload: Vec<u8>,
    group: RecordGroup,
}

impl LogContestant {
    fn open(path: &Path, is_attended: bool) -> Result<Self, Box<dyn Error>> {
        let disk = Arc::new(FolderDisk::open(path)?);
        let mut log = LocalLog::open(disk, LocalLogOptions::default())?;
        log.recover(lockgate_core::Position(0), Epoch(0), &mut |_, _| {})?;
        log.begin_epoch(Epoch(1))?;
        let group = RecordGroup::new(log.capabilities().gap);
        let log_maintenance = if is_attended {
            log.log_maintenance()
        } else {
            None
        };
        Ok(Self {
            log,
            _maintenance: log_maintenance.map(Maintenance::start),
            payload: noise(RECORD_BYTES),
            group,
        })
    }

    fn append_and_sync(&mut self, records: usize) -> Result<(), Box<dyn Error>> {
        self.group.clear(usize::MAX);
        for _ in 0..records {
            self.group
                .push(|buffer| buffer.extend_from_slice(&self.payload));
        }
        self.log.reserve(
            (records * RECORD_BYTES) as u64,
            records as u64,
            lockgate_core::Purpose::Growth,
        )?;
        let tail = self.log.tail();
        self.log.append(Epoch(1), tail, &mut self.group)?;
        self.log.progress().sync()?;
        Ok(())
    }
}

/// Does a log's maintenance until it is dropped.
struct Maintenance {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Maintenance {
    fn start(log_maintenance: Arc<dyn LogMaintenance>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                if log_maintenance.step().expect("maintenance goes on") == StepOutcome::Done {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct FileContestant {
    file: Arc<dyn DiskFile>,
    bytes: Vec<u8>,
    at: u64,
}

impl FileContestant {
    fn open(
        folder: &Path,
        bytes: usize,
        writes: usize,
        is_written_before: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let disk = FolderDisk::open(folder)?;
        let name = format!("file-{bytes}-{is_written_before}");
        let file = disk.open(&name, OpenMode::CreateNew)?;
        file.allocate((writes * bytes) as u64)?;
        if is_written_before {
            let zeros = vec![0; bytes];
            for index in 0..writes {
                file.write_at(&zeros, (index * bytes) as u64)?;
            }
        }
        file.sync()?;
        Ok(Self {
            file,
            bytes: noise(bytes),
            at: 0,
        })
    }

    fn write_and_sync(&mut self) -> Result<(), Box<dyn Error>> {
        self.file.write_at(&self.bytes, self.at)?;
        self.at += self.bytes.len() as u64;
        Ok(self.file.sync()?)
    }
}

/// Bytes no disk can make smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    std::iter::repeat_with(|| {
        // xorshift64 (Marsaglia, 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(len)
    .collect()
}

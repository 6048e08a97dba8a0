//! `idle.shards`: the cost of unused shards in one process, and the space they take when some of
//! them are used.
//!
//! Each shard has its own folder and engine and no queue; they share the threads for maintenance and the
//! bound of their reserves. The figures are the difference of what the kernel reports for this process before
//! and after they are opened. A wake-up is a voluntary context switch of one of their threads.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use lockgate_engine::{Engine, MaintenanceThreads};
use lockgate_log::SharedReserve;
use serde_json::json;

use crate::{
    Course, Courses, Setup,
    folder::taken,
    load::{Sender, as_f64, make_queue, start_one_of},
    queue::params,
    report::{Params, Report},
};

/// Shards, usually and with `--quick`.
const SHARDS: u32 = 64;
const SHARDS_QUICK: u32 = 4;

/// How long to wait before anything is counted: by then a start has finished its background work.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// How long wake-ups are counted, usually and with `--quick`: some occur only every ten seconds.
const COUNTED: Duration = Duration::from_secs(20);
const COUNTED_QUICK: Duration = Duration::from_secs(1);

/// Each figure for all shards together and for one of them, with its unit; and its limit: a fixed
/// part and a part for each shard.
const FIGURES: [(&str, &str, &str, &str, f64, f64); 5] = [
    (
        "idle.shards.threads",
        "idle.shards.threads.each",
        "threads",
        "threads/shard",
        2.0,
        2.0,
    ),
    (
        "idle.shards.descriptors",
        "idle.shards.descriptors.each",
        "descriptors",
        "descriptors/shard",
        8.0,
        5.0,
    ),
    (
        "idle.shards.memory",
        "idle.shards.memory.each",
        "bytes",
        "bytes/shard",
        16_777_216.0,
        1_048_576.0,
    ),
    (
        "idle.shards.disk",
        "idle.shards.disk.each",
        "bytes",
        "bytes/shard",
        0.0,
        1_179_648.0,
    ),
    (
        "idle.shards.wakeups",
        "idle.shards.wakeups.each",
        "wake-ups/s",
        "wake-ups/s/shard",
        10.0,
        0.5,
    ),
];

/// One of so many shards is used afterwards, and gets so many bytes.
const USED_PART: u32 = 4;
const USED_BYTES: u64 = 16 << 20;

/// The limit for each used shard, besides a tenth more than its bytes: the rest of its segment, the
/// next one, and one of the reserve; and the limit for all reserves.
const USED_MOST: f64 = 3.0 * 8_388_608.0;
const RESERVES_MOST: f64 = 201_326_592.0;

struct IdleCourse {
    params: Params,
    shards: u32,
    counted: Duration,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let (shards, counted) = if setup.args.quick {
        (SHARDS_QUICK, COUNTED_QUICK)
    } else {
        (SHARDS, COUNTED)
    };
    let mut params = Params {
        size: 0,
        keys: 0,
        ..params(setup, 1, 1)
    };
    params.more.insert("shards", json!(shards));
    Ok(vec![Box::new(IdleCourse {
        params,
        shards,
        counted,
    })])
}

impl Course for IdleCourse {
    fn round(
        &mut self,
        _setup: &Setup,
        _time: Duration,
        _report: &mut Report,
    ) -> anyhow::Result<()> {
        Ok(())
    }

    fn finish(&mut self, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        let Some(before) = Process::look() else {
            return Ok(());
        };
        let folder = setup.folder("idle");
        let maintenance = MaintenanceThreads::default();
        let reserve = SharedReserve::default();
        let start = |shard: u32| {
            let folder = folder.join(shard.to_string());
            start_one_of(&folder, &maintenance, &reserve)
        };
        let engines = (0..self.shards)
            .map(start)
            .collect::<anyhow::Result<Vec<Engine>>>()?;
        thread::sleep(SETTLED_AFTER);
        let began = Instant::now();
        let settled = Process::look();
        thread::sleep(self.counted);
        let seconds = began.elapsed().as_secs_f64();
        let after = Process::look();
        let disk = taken(&folder)?;
        let used = &engines[..engines.len() / USED_PART as usize];
        for engine in used {
            setup.runtime.block_on(use_it(setup, engine))?;
        }
        thread::sleep(SETTLED_AFTER);
        let disk_used = taken(&folder)?;
        let used = as_f64(used.len() as u64);
        for engine in &engines {
            setup.runtime.block_on(engine.shutdown());
        }
        let Some((settled, after)) = settled.zip(after) else {
            return Ok(());
        };
        let new = |process: &Process| {
            let threads = process.switches.iter();
            let new = threads.filter(|(thread, _)| !before.switches.contains_key(thread));
            let (mut threads, mut switches) = (0, 0);
            for (_, times) in new {
                threads += 1;
                switches += times;
            }
            (threads, switches)
        };
        let ((_, switches_before), (threads, switches)) = (new(&settled), new(&after));
        let values = [
            as_f64(threads),
            as_f64(after.descriptors.saturating_sub(before.descriptors)),
            as_f64(after.memory.saturating_sub(before.memory)),
            as_f64(disk),
            as_f64(switches.saturating_sub(switches_before)) / seconds,
        ];
        let shards = f64::from(self.shards);
        for (figure, value) in FIGURES.into_iter().zip(values) {
            let (all, each, unit, unit_each, most, most_each) = figure;
            let most = most + most_each * shards;
            report.quantity(all, &self.params, value, unit, Some(most));
            let one = value / shards;
            report.quantity(each, &self.params, one, unit_each, Some(most / shards));
        }
        let given = 1.1 * as_f64(USED_BYTES);
        let most = as_f64(disk) + used * (given + USED_MOST) + RESERVES_MOST;
        let name = "idle.shards.disk.some_used";
        report.quantity(name, &self.params, as_f64(disk_used), "bytes", Some(most));
        Ok(())
    }

    fn close(self: Box<Self>, _setup: &Setup) {}
}

/// Sends messages of so many bytes in all, which stay.
async fn use_it(setup: &Setup, engine: &Engine) -> anyhow::Result<()> {
    let queue = make_queue(engine, "bench", false, setup.level()).await?;
    let size = setup.args.size.unwrap_or(1024).max(1);
    let mut senders = Sender::several(1, engine, &queue, &[].into(), 1, &setup.payloads);
    match senders.first_mut() {
        Some(sender) => sender.fill(USED_BYTES / (size as u64)).await,
        None => Ok(()),
    }
}

/// The kernel's figures for this process.
struct Process {
    /// Voluntary context switches of each thread.
    switches: BTreeMap<u64, u64>,
    descriptors: u64,
    /// Bytes of memory that no file backs.
    memory: u64,
}

impl Process {
    /// `None`: the system does not report them.
    fn look() -> Option<Self> {
        let mut switches = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task").ok()? {
            let task = task.ok()?;
            // A thread may end while the list is read.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let thread = task.file_name().to_str()?.parse().ok()?;
            switches.insert(thread, field(&status, "voluntary_ctxt_switches:")?);
        }
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Some(Self {
            switches,
            descriptors: fs::read_dir("/proc/self/fd").ok()?.count() as u64,
            memory: field(&status, "RssAnon:")? * 1024,
        })
    }
}

/// The number of a field in one of the kernel's files.
fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

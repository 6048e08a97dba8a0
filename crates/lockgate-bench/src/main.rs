//! Figures for developers: the performance of this machine, compared with what its disk and network allow.
//!
//! A [`Bench`] opens [`Course`]s, one for each combination of parameters. The courses of a bench
//! run in rounds, one after the other in each round (A, B, C, A, B, C, ...), and every course runs
//! its own floor within its round. So other load on the machine affects a figure and its floor
//! alike, and the median over the rounds leaves out disturbances of a single round. The first round
//! is a warm-up and does not count.
//!
//! To add a figure: write a course, and a line in [`BENCHES`].

mod backlog;
mod client;
mod coalesce;
mod cpu;
mod curator;
mod delay;
mod designs;
mod disk;
mod dispatch;
mod drain;
mod due;
mod election;
mod exchange;
mod floor;
mod folder;
mod host;
mod http;
mod idle;
mod latency;
mod ledger;
mod load;
mod memory;
mod output;
mod payload;
mod producer;
mod queue;
mod report;
mod shape;
mod size;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{output::Table, payload::Payloads, report::Report};

/// The allocator of the server's binary, so that the figures apply to it.
#[cfg(not(feature = "count-memory"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rounds that count, usually and with `--quick`.
const ROUNDS: u32 = 5;
const ROUNDS_QUICK: u32 = 3;

/// Seconds for all rounds of all benches, usually and with `--quick`.
const SECONDS: u32 = 45;
const SECONDS_QUICK: u32 = 6;

/// A kind of measurement.
pub(crate) struct Bench {
    /// The figures that its courses report.
    figures: &'static [&'static str],
    /// What it measures, and its floor.
    about: &'static str,
    /// Its share of the time: the usual number of its courses.
    weight: u32,
    /// Sets up one course for each combination of parameters.
    open: fn(&Setup) -> anyhow::Result<Courses>,
}

/// Every bench, in the order of their run.
static BENCHES: &[Bench] = &[
    Bench {
        figures: &["engine.send", "engine.receive"],
        about: "in process; floor: write+fdatasync of as many bytes a sync into a pre-written file",
        weight: 6,
        open: queue::open,
    },
    Bench {
        figures: &["engine.latency"],
        about: "in process, single sends on a schedule at half the rate of engine.send",
        weight: 1,
        open: latency::open,
    },
    Bench {
        figures: &["http.send", "http.receive"],
        about: "SQS over loopback; floor: the same requests with the name of no action, which are refused",
        weight: 3,
        open: http::open,
    },
    Bench {
        figures: &["shape.hot_key"],
        about: "receive with 216,000 messages of one key beside the others; floor: without them",
        weight: 1,
        open: shape::open_hot_key,
    },
    Bench {
        figures: &["shape.locked_keys"],
        about: "receive with 10,000 keys in flight in front of a free one; floor: without them",
        weight: 1,
        open: shape::open_locked_keys,
    },
    Bench {
        figures: &["shape.slow_holder"],
        about: "receive while one consumer sits on a key with a long backlog; floor: without it",
        weight: 1,
        open: shape::open_slow_holder,
    },
    Bench {
        figures: &["shape.limited_keys"],
        about: "send and receive with a limit per key and 1,000,000 keys; floor: without the limit",
        weight: 1,
        open: shape::open_limited_keys,
    },
    Bench {
        figures: &["dispatch.pure"],
        about: "the worker's dispatcher with empty handlers, 100,000 keys, settles included; floor: a hash map \
                of deques",
        weight: 1,
        open: dispatch::open_pure,
    },
    Bench {
        figures: &["dispatch.shell"],
        about: "a worker with empty handlers over a queue in memory, 100,000 keys; floor: a hash map of deques",
        weight: 1,
        open: dispatch::open_shell,
    },
    Bench {
        figures: &["dispatch.shape"],
        about: "time of a worker whose handlers take 0 to 5 ms, 100 at the same time, as a multiple of the best \
                possible time",
        weight: 1,
        open: dispatch::open_shapes,
    },
    Bench {
        figures: &[
            "dispatch.single",
            "dispatch.per_key",
            "dispatch.hash",
            "dispatch.dynamic",
        ],
        about: "four designs of a consumer under skew with one slow key: single thread, queue per key, static hash \
                to 32 tasks, Lockgate's worker; rate for a backlog (floor: the best possible time), and time of a \
                message of another key, from its arrival to its end, at 1,200 a second",
        weight: 1,
        open: designs::open,
    },
    Bench {
        figures: &["coalesce.pass"],
        about: "enters and leaves of a coalescer with 100,000 idle keys; floor: a map in 64 shards with a mutex each",
        weight: 1,
        open: coalesce::open_pass,
    },
    Bench {
        figures: &["coalesce.covered", "coalesce.each", "coalesce.runs"],
        about: "500 triggers a second with normally distributed keys and 50 ms of work: from a trigger to the end of a \
                run that covers it, the same if each trigger runs, and how many of the triggers run",
        weight: 3,
        open: coalesce::open_load,
    },
    Bench {
        figures: &["producer.http", "producer.packed"],
        about: "a producer with its defaults over a server, all messages confirmed; floor: each message by itself, by 1 and \
                by 64 callers; and the same producer with packs beside the one without",
        weight: 2,
        open: producer::open_http,
    },
    Bench {
        figures: &["producer.embedded"],
        about: "the same over an embedded queue; floor: batches of 1,000 handed to the queue, one after the other",
        weight: 1,
        open: producer::open_embedded,
    },
    Bench {
        figures: &["producer.accept", "producer.memory"],
        about: "sends that a producer's buffer takes; floor: a push to a vector behind a mutex; how long one takes and, \
                with the feature count-memory, how often it allocates; and what the producer keeps for a record beside \
                the bytes of its message",
        weight: 1,
        open: producer::open_accept,
    },
    Bench {
        figures: election::FIGURES,
        about: "two candidates in processes of their own: how long nobody leads after a planned switch, and after a kill of \
                the leader, with leases of 1 s; and with 100 candidates elections a second and messages to the store for \
                each. Where names are given, over all stores: scripts start their servers",
        weight: 1,
        open: election::open,
    },
    Bench {
        figures: &["ledger.append", "ledger.append_unique"],
        about: "events of 200 bytes appended to an embedded ledger in batches of 1,000, one after the other, without and \
                with unique ids; floor: the log alone, a record for each batch",
        weight: 2,
        open: ledger::open_embedded,
    },
    Bench {
        figures: &["ledger.replay"],
        about: "events that a follower reads from an embedded ledger and applies with an empty handler; with --scale 1 a \
                repair of 10,000,000",
        weight: 1,
        open: ledger::open_replay,
    },
    Bench {
        figures: &["ledger.postgres", "ledger.postgres_unique"],
        about: "the same as ledger.append and ledger.append_unique over PostgreSQL, where one is named; floor: one insert of \
                the same payloads in a transaction",
        weight: 1,
        open: ledger::open_postgres,
    },
    Bench {
        figures: &["ledger.mysql", "ledger.mysql_unique"],
        about: "the same over MariaDB",
        weight: 1,
        open: ledger::open_mysql,
    },
    Bench {
        figures: &["exchange.publish", "exchange.written"],
        about: "publishes to 1, 10 and 100 queues, one after the other, in messages that queues get; floor: as many sends in \
                one request; and the bytes of records of both",
        weight: 3,
        open: exchange::open_publish,
    },
    Bench {
        figures: &["exchange.route"],
        about: "time to find the binding of a message among 10, 1,000 and 100,000, in process, by kind of exchange; and the \
                longest bind on the way there",
        weight: 2,
        open: exchange::open_route,
    },
    Bench {
        figures: &["exchange.fanout"],
        about: "10,000 queues behind one exchange: time of a publish, and of a send to another queue beside and without \
                publishes, at level process",
        weight: 2,
        open: exchange::open_fanout,
    },
    Bench {
        figures: &[
            "delay.insert",
            "delay.start",
            "delay.late_p50",
            "delay.late_p99",
            "delay.late_max",
        ],
        about: "1,000 to 10,000,000 delayed messages over a year: how fast they are accepted (floor: sends without a delay), how \
                long a start takes, and how late others that come due are received after that",
        weight: 5,
        open: delay::open_late,
    },
    Bench {
        figures: &[
            "delay.flood_send_p99",
            "delay.flood_send_max",
            "delay.flood_out",
            "delay.flood_out_busy",
        ],
        about: "1,000,000 messages that come due in one second: how long a send to another queue takes, and when the last of \
                them can be received, with nothing else to do and beside 16 senders",
        weight: 1,
        open: delay::open_flood,
    },
    Bench {
        figures: curator::FIGURES,
        about: "500 delayed items through a queue of Lockgate, through lockgate-zookeeper and through Curator in Java, beside 1,000 \
                and 20,000 others: puts a second of 16 callers, takes a second of one consumer, one by one, and how late items \
                that come due every 50 ms are taken. Where names are given: it starts a ZooKeeper, and builds clients/curator",
        weight: 1,
        open: curator::open,
    },
    Bench {
        figures: &["due.stall", "due.alone"],
        about: "longest send, one after the other, while 10,000,000 delayed messages come due within a second; \
                and the longest without them",
        weight: 1,
        open: due::open,
    },
    Bench {
        figures: &["http.cpu"],
        about: "processor time of the server for a request of 10 messages, at level process; compared \
                with one that is refused once it is read",
        weight: 1,
        open: cpu::open,
    },
    Bench {
        figures: &[
            "memory.unkeyed",
            "memory.keyed",
            "memory.key",
            "memory.unique_id",
            "memory.in_flight",
            "memory.delayed",
        ],
        about: "memory of the machine, at the worst moment while a backlog grows",
        weight: 1,
        open: memory::open,
    },
    Bench {
        figures: &[
            "backlog.send",
            "backlog.receive",
            "backlog.stall",
            "backlog.recovery",
        ],
        about: "beside a backlog of ten messages for each key; floor: on an empty queue. And starts: \
                after a kill and after a clean stop, compared with reading as many bytes",
        weight: 2,
        open: backlog::open,
    },
    Bench {
        figures: &["disk.half", "disk.drained", "disk.amplification"],
        about: "space of a log while a backlog drains at random, and bytes written while messages \
                come and go at random",
        weight: 1,
        open: disk::open,
    },
    Bench {
        figures: &["drain"],
        about: "space of a log that is filled and drained by key over HTTP, 10 messages in a call: when it is \
                full, when half are acknowledged, and 10 s after the last",
        weight: 1,
        open: drain::open,
    },
    Bench {
        figures: &["idle.shards"],
        about: "threads, descriptors, memory, disk and wake-ups of 64 shards in one process that nobody uses; \
                counted once, for 20 s",
        weight: 1,
        open: idle::open,
    },
];

/// The courses of a bench, in the order of their run in each round.
pub(crate) type Courses = Vec<Box<dyn Course>>;

/// One combination of parameters, set up and ready to run.
pub(crate) trait Course {
    /// Runs once for about `time`, including the floor, and reports the results.
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()>;

    /// Measures what can be measured only once, after all rounds.
    fn finish(&mut self, _setup: &Setup, _report: &mut Report) -> anyhow::Result<()> {
        Ok(())
    }

    /// Ends everything that the course uses.
    fn close(self: Box<Self>, setup: &Setup);
}

/// What all benches share.
pub(crate) struct Setup {
    args: Args,
    runtime: Runtime,
    folder: TempDir,
    payloads: Payloads,
}

/// What a message costs when the answer comes; the level of the queues that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Level {
    /// Synced; survives power loss.
    Disk,
    /// Written; survives kill -9.
    Process,
    /// Accepted; nothing promised.
    Memory,
}

impl From<Level> for lockgate_core::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Disk => Self::Disk,
            Level::Process => Self::Process,
            Level::Memory => Self::Memory,
        }
    }
}

/// Measures this machine: sends and receives per second, beside what the disk and the wire allow
///
/// In process (an engine over a log in a fresh folder) and over HTTP (a server in this process, on
/// loopback). Beside each figure stands a floor measured in the same run, in alternating rounds: for
/// sends into the log, writing the same payload bytes and syncing them into a file whose blocks are
/// already written; for HTTP, the same requests with the name of no action, which the server reads
/// whole and refuses. Values are medians over the rounds; a ratio is the median of the rounds' own
/// ratios.
///
/// Without --size, --batch, --keys or --callers a few typical shapes are measured.
#[derive(Debug, Parser)]
#[command(
    name = "lockgate-bench",
    version,
    after_help = "\
Examples:
  cargo run --release -p lockgate-bench
  cargo run --release -p lockgate-bench -- --quick engine.send
  cargo run --release -p lockgate-bench -- http --batch 10 --callers 16 --size 4KiB --seconds 20
  cargo run --release -p lockgate-bench -- --json --data /mnt/fast > bench.jsonl"
)]
struct Args {
    /// Only figures whose name starts with one of these; without any, all of them
    #[arg(value_name = "NAME", value_parser = known)]
    names: Vec<String>,

    /// Print one JSON object a line: bench, params, value, unit, and floor and ratio where measured
    #[arg(long)]
    json: bool,

    /// List the figures and what they measure
    #[arg(long)]
    list: bool,

    /// Shorter and rougher: about ten seconds
    #[arg(long)]
    quick: bool,

    /// Bytes of a message's body [default: 1KiB, and 100 in the backlog]
    #[arg(long, value_name = "SIZE", value_parser = size::read)]
    size: Option<usize>,

    /// Messages in a call [default: several]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: Option<u16>,

    /// Keys the messages are spread over; 0 is an unkeyed queue [default: 1000]
    #[arg(long, value_name = "N")]
    keys: Option<u32>,

    /// Callers at the same time [default: several]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    callers: Option<u16>,

    /// Time for all of it, setting up not counted [default: 45, with --quick 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,

    /// Size of the backlog, memory and disk scenarios; 1 is 10,000,000 messages [default: 0.01, with
    /// --quick 0.001]
    #[arg(long, value_name = "F", value_parser = scale)]
    scale: Option<f64>,

    /// Durability: disk, process or memory [default: disk, and process for the shapes]
    #[arg(long, value_enum, value_name = "LEVEL", hide_possible_values = true)]
    level: Option<Level>,

    /// Folder on the file system to measure; a fresh folder in it is used and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
}

/// A name that at least one figure starts with.
fn known(name: &str) -> Result<String, String> {
    let mut figures = BENCHES.iter().flat_map(|bench| bench.figures);
    if figures.any(|figure| figure.starts_with(name)) {
        Ok(name.to_owned())
    } else {
        Err("no figure's name starts with that; --list shows them".to_owned())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|scale| (0.000_1..=10.0).contains(scale))
        .ok_or_else(|| "expected a number from 0.0001 to 10".to_owned())
}

fn main() -> ExitCode {
    match election::stand().unwrap_or_else(|| run(Args::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    if args.list {
        let mut table = Table::new(["NAME", "WHAT"]);
        for bench in BENCHES {
            for figure in bench.figures {
                table.row([*figure, bench.about]);
            }
        }
        return Ok(table.print()?);
    }
    let setup = Setup::new(args)?;
    let names = &setup.args.names;
    let chosen = choose(names);
    eprintln!("{}", host::describe(setup.folder.path()));

    let rounds = if setup.args.quick {
        ROUNDS_QUICK
    } else {
        ROUNDS
    };
    let seconds = setup.args.seconds.unwrap_or(if setup.args.quick {
        SECONDS_QUICK
    } else {
        SECONDS
    });
    let weights: u32 = chosen.iter().map(|bench| bench.weight).sum();
    let unit = Duration::from_secs(u64::from(seconds)) / weights;
    let mut report = Report::default();
    for bench in chosen {
        let mut courses = (bench.open)(&setup)?;
        // The warm-up round gets as much time as the others.
        // A bench may have none: what it needs is not there, or was not asked for.
        let parts = u32::try_from(courses.len()).unwrap_or(1).max(1) * (rounds + 1);
        let time = unit * bench.weight / parts;
        for round in 0..=rounds {
            let mut warm_up = Report::default();
            for course in &mut courses {
                let report = if round == 0 {
                    &mut warm_up
                } else {
                    &mut report
                };
                course.round(&setup, time, report)?;
            }
        }
        // Figures are printed as they are ready; a table needs all of them.
        let show = |report: &mut Report| -> anyhow::Result<()> {
            if setup.args.json {
                for line in report.take_lines(names) {
                    output::json(&line)?;
                }
            }
            Ok(())
        };
        show(&mut report)?;
        for mut course in courses {
            course.finish(&setup, &mut report)?;
            course.close(&setup);
        }
        show(&mut report)?;
    }
    if !setup.args.json {
        report.table(names).print()?;
        if let Some(table) = report.quantities(names) {
            table.print()?;
        }
    }
    Ok(())
}

/// The benches with a requested figure; all benches if none was requested.
fn choose(names: &[String]) -> Vec<&'static Bench> {
    BENCHES
        .iter()
        .filter(|bench| bench.figures.iter().any(|figure| wanted(names, figure)))
        .collect()
}

/// Whether a figure was requested.
fn wanted(names: &[String], figure: &str) -> bool {
    names.is_empty() || names.iter().any(|name| figure.starts_with(name))
}

impl Setup {
    fn new(args: Args) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("starting the runtime")?;
        let folder = tempfile::Builder::new()
            .prefix(".lockgate-bench-")
            .tempdir_in(&args.data)
            .with_context(|| format!("making a folder in {}", args.data.display()))?;
        let payloads = Payloads::new(args.size.unwrap_or(1024))?;
        let setup = Self {
            args,
            runtime,
            folder,
            payloads,
        };
        setup.clean_up_on_signal()?;
        Ok(setup)
    }

    /// A signal ends the process at once, but must not leave gigabytes behind.
    fn clean_up_on_signal(&self) -> anyhow::Result<()> {
        let folder = self.folder.path().to_owned();
        let _guard = self.runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        self.runtime.spawn(async move {
            let code = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            };
            let _ = std::fs::remove_dir_all(folder);
            std::process::exit(code);
        });
        Ok(())
    }

    /// A fresh folder on the measured file system.
    fn folder(&self, name: &str) -> PathBuf {
        Path::join(self.folder.path(), name)
    }

    /// The combinations of batch and callers to run: the requested one, or a few that show one
    /// caller, many callers, and full batches.
    fn shapes_or(&self, usual: &[(u16, u16)]) -> Vec<(u16, u16)> {
        match (self.args.batch, self.args.callers) {
            (None, None) => usual.to_vec(),
            (batch, callers) => vec![(batch.unwrap_or(1), callers.unwrap_or(16))],
        }
    }

    fn keys(&self) -> u32 {
        self.args.keys.unwrap_or(1000)
    }

    /// The size of a scenario that has `full` at scale 1, and at least 1.
    fn scaled(&self, full: u32) -> u64 {
        let usual = if self.args.quick { 0.001 } else { 0.01 };
        let scaled = f64::from(full) * self.args.scale.unwrap_or(usual);
        load::whole(scaled).max(1)
    }

    /// The requested level, or the queues' default.
    fn level(&self) -> Level {
        self.args.level.unwrap_or(Level::Disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_are_chosen_by_the_start_of_their_figures_names() {
        let chosen = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let benches = choose(&names).into_iter();
            let figures: Vec<_> = benches.map(|bench| bench.figures[0]).collect();
            figures.join(" ")
        };
        assert_eq!(chosen(&["http.receive"]), "http.send");
        assert_eq!(chosen(&["engine"]), "engine.send engine.latency");
        assert_eq!(chosen(&[]).split(' ').count(), BENCHES.len());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (arguments, says) in [
            (["nothing", "--quick"], "no figure's name starts with that"),
            (["--size", "2MiB"], "no size from 1B to 1MiB"),
            (["--scale", "0"], "a number from 0.0001 to 10"),
            (["--batch", "0"], "0 is not in 1..=1000"),
        ] {
            let arguments = ["lockgate-bench"].into_iter().chain(arguments);
            let error = Args::try_parse_from(arguments).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }
}

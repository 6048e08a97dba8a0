//! `lockgate bench`: what this machine does, beside what its disk and its wire would allow.
//!
//! A [`Bench`] opens [`Course`]s, one for each combination of parameters. The courses of a bench are
//! run in rounds, one after the other in each round (A, B, C, A, B, C, ...), and every course runs
//! its own floor within its round: what else the machine does then hits a figure and its floor
//! alike, and the median over the rounds leaves out what hit only one of them. The first round warms
//! up and does not count.
//!
//! To add a figure: write a course, and a line in [`BENCHES`].

mod backlog;
mod cpu;
mod disk;
mod drain;
mod due;
mod floor;
mod folder;
mod host;
mod http;
mod idle;
mod latency;
mod load;
mod memory;
mod payload;
mod queue;
mod report;
mod shape;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use self::{payload::Payloads, report::Report};
use crate::{
    args::Bench as Args,
    commands::Signals,
    exit::{Exit, Failure},
    output::{Output, Table, note},
};

/// Rounds that count, usually and with `--quick`.
const ROUNDS: u32 = 5;
const ROUNDS_QUICK: u32 = 3;

/// Seconds for all rounds of all benches, usually and with `--quick`.
const SECONDS: u32 = 45;
const SECONDS_QUICK: u32 = 6;

/// One kind of measurement.
pub(crate) struct Bench {
    /// What its courses report.
    figures: &'static [&'static str],
    /// What it measures, and what its floor is.
    about: &'static str,
    /// Its share of the time: how many courses it usually has.
    weight: u32,
    /// Sets up one course for each combination of parameters.
    open: fn(&Setup) -> Result<Courses, Failure>,
}

/// Every bench, in the order they are run.
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
        about: "SQS over loopback; floor: a handler that does nothing in the same server",
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
        figures: &["due.stall", "due.alone"],
        about: "longest send, one after the other, while 10,000,000 delayed messages come due within a second; \
                and the longest without them",
        weight: 1,
        open: due::open,
    },
    Bench {
        figures: &["http.cpu"],
        about: "processor time of the server for a request of 10 messages, at level process; compared \
                with a handler that does nothing",
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

/// What a bench sets up: its courses, in the order they are run in each round.
pub(crate) type Courses = Vec<Box<dyn Course>>;

/// One combination of parameters, set up and ready to run.
pub(crate) trait Course {
    /// Runs once for about `time`, floor included, and reports what came out.
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> Result<(), Failure>;

    /// Measures what can be measured but once, after all rounds.
    fn finish(&mut self, _setup: &Setup, _report: &mut Report) -> Result<(), Failure> {
        Ok(())
    }

    /// Ends whatever the course runs on.
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

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut output = Output::new();
    if args.list {
        let mut table = Table::new(["NAME", "WHAT"]);
        for bench in BENCHES {
            for figure in bench.figures {
                table.row([*figure, bench.about]);
            }
        }
        output.table(&table)?;
        return output.flush();
    }
    let chosen = choose(&args.only)?;
    let json = args.json;
    let setup = Setup::new(args)?;
    note(&host::describe(setup.folder.path()));

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
        // The round that warms up gets as much as the others.
        let parts = u32::try_from(courses.len()).unwrap_or(1) * (rounds + 1);
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
        // Figures appear as they are ready; a table needs all of them.
        let mut show = |report: &mut Report| {
            if json {
                for line in report.take_lines(&setup.args.only) {
                    output.json(&line)?;
                }
                output.flush()?;
            }
            Ok::<_, Failure>(())
        };
        show(&mut report)?;
        for mut course in courses {
            course.finish(&setup, &mut report)?;
            course.close(&setup);
        }
        show(&mut report)?;
    }
    if !json {
        output.table(&report.table(&setup.args.only))?;
        if let Some(table) = report.quantities(&setup.args.only) {
            output.table(&table)?;
        }
    }
    output.flush()
}

/// The benches with a figure that was asked for; all of them if nothing was.
fn choose(only: &[String]) -> Result<Vec<&'static Bench>, Failure> {
    for name in only {
        let known = |bench: &Bench| bench.figures.iter().any(|figure| figure.starts_with(name));
        if !BENCHES.iter().any(known) {
            return Err(Failure::usage(format!("there is no bench {name:?}"))
                .hint("`lockgate bench --list` shows them"));
        }
    }
    Ok(BENCHES
        .iter()
        .filter(|bench| bench.figures.iter().any(|figure| wanted(only, figure)))
        .collect())
}

/// Whether a figure was asked for.
fn wanted(only: &[String], figure: &str) -> bool {
    only.is_empty() || only.iter().any(|name| figure.starts_with(name))
}

impl Setup {
    fn new(args: Args) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                Failure::from_error(Exit::Failed, error).context("starting the runtime")
            })?;
        let folder = tempfile::Builder::new()
            .prefix(".lockgate-bench-")
            .tempdir_in(&args.data)
            .map_err(|error| {
                Failure::from_error(Exit::Failed, error)
                    .context(format!("making a folder in {}", args.data.display()))
            })?;
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

    /// A signal ends the process where it stands, but must not leave gigabytes behind.
    fn clean_up_on_signal(&self) -> Result<(), Failure> {
        let folder = self.folder.path().to_owned();
        let _guard = self.runtime.enter();
        let mut signals = Signals::new()?;
        self.runtime.spawn(async move {
            let exit = signals.next().await;
            let _ = std::fs::remove_dir_all(folder);
            std::process::exit(exit as i32);
        });
        Ok(())
    }

    /// A fresh folder on the file system that is measured.
    fn folder(&self, name: &str) -> PathBuf {
        Path::join(self.folder.path(), name)
    }

    /// The combinations of batch and callers to run: what was asked for, else a few that show one
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

    /// So many of a scenario that has `full` of something at scale 1, and never none.
    fn scaled(&self, full: u32) -> u64 {
        let usual = if self.args.quick { 0.001 } else { 0.01 };
        let scaled = f64::from(full) * self.args.scale.unwrap_or(usual);
        load::whole(scaled).max(1)
    }

    /// The level that was asked for, else the one queues have by default.
    fn level(&self) -> Level {
        self.args.level.unwrap_or(Level::Disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_are_chosen_by_the_start_of_their_figures_names() {
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            choose(&only).map(|benches| {
                let figures: Vec<_> = benches.iter().map(|bench| bench.figures[0]).collect();
                figures.join(" ")
            })
        };
        assert_eq!(names(&["http.receive"]).unwrap(), "http.send");
        assert_eq!(names(&["engine"]).unwrap(), "engine.send engine.latency");
        assert_eq!(names(&[]).unwrap().split(' ').count(), BENCHES.len());
        assert_eq!(names(&["nothing"]).unwrap_err().exit(), Exit::Usage);
    }
}

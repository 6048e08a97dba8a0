//! `lockgate-torture --help` says it all.

use std::{
    fs,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use lockgate_torture::{Episode, Fault, FileSystem, enter_namespace, fresh_seed, rehearse};
use serde::Serialize;

mod plan;

use plan::{Amount, Plan};

/// What test harnesses return for "could not run here".
const NOT_RUN: u8 = 77;

/// Real faults under a real lockgate server, as root for all but kills.
///
/// Every fault runs in episodes, each with a data folder, clients and a verdict of its own. Exits
/// with 0 if every promise was kept, 1 if one was broken, 77 if it cannot run here.
#[derive(Parser)]
#[command(name = "lockgate-torture")]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Run faults, several at a time
    Run(Run),
    /// Run one episode and print its figures as JSON
    Episode(One),
    /// Say whether faults of file systems can be injected here
    Check,
}

#[derive(Args)]
struct Run {
    /// The lockgate binary
    #[arg(long)]
    bin: PathBuf,
    /// Only these faults
    #[arg(long, value_delimiter = ',')]
    only: Vec<Fault>,
    /// So many faults of each kind on each file system; without this and --minutes a short run
    #[arg(long, conflicts_with = "minutes")]
    rounds: Option<u64>,
    /// All faults in turn for so long
    #[arg(long)]
    minutes: Option<u64>,
    /// Episodes at a time
    #[arg(long, default_value_t = 3)]
    lanes: usize,
    /// Write the figures there
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct One {
    fault: Fault,
    /// The lockgate binary
    #[arg(long)]
    bin: PathBuf,
    #[arg(long, default_value = "ext4")]
    file_system: FileSystem,
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Repeats the choices of an episode; another one each time otherwise
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        What::Run(run) => self::run(&run),
        What::Episode(one) => episode(one),
        What::Check => check(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn check() -> Result<ExitCode> {
    if let Some(obstacle) = Fault::Cut.obstacle() {
        eprintln!("{obstacle}");
        return Ok(ExitCode::from(NOT_RUN));
    }
    enter_namespace()?;
    Ok(match rehearse() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("no file system can be made and broken here: {error:#}");
            ExitCode::from(NOT_RUN)
        }
    })
}

fn episode(one: One) -> Result<ExitCode> {
    if let Some(obstacle) = one.fault.obstacle() {
        eprintln!("{} cannot run here: {obstacle}", one.fault);
        return Ok(ExitCode::from(NOT_RUN));
    }
    if one.fault.needs_volume() {
        enter_namespace()?;
    }
    let episode = Episode {
        fault: one.fault,
        file_system: one.file_system,
        rounds: one.rounds,
        seed: one.seed.unwrap_or_else(fresh_seed),
        binary: one.bin,
    };
    let figures = episode.run()?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(if figures.good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// All that a run has to say; the report is made of it.
#[derive(Serialize)]
struct Written {
    /// Seconds since 1970.
    date: u64,
    seconds: f64,
    lanes: usize,
    faults: Vec<lockgate_torture::Figures>,
}

fn run(run: &Run) -> Result<ExitCode> {
    ensure!(run.lanes > 0, "--lanes must be at least 1");
    let faults = if run.only.is_empty() {
        &Fault::ALL[..]
    } else {
        &run.only
    };
    if faults.iter().any(|fault| fault.needs_volume()) {
        let check = Command::new(std::env::current_exe()?).arg("check").status();
        match check?.code() {
            Some(0) => {}
            Some(code) if code == i32::from(NOT_RUN) => return Ok(ExitCode::from(NOT_RUN)),
            _ => bail!("whether file systems can be made here is unknown"),
        }
    }
    let amount = match (run.rounds, run.minutes) {
        (Some(rounds), _) => Amount::Rounds(rounds),
        (_, Some(minutes)) => Amount::Time(Duration::from_secs(minutes * 60)),
        _ => Amount::Short,
    };
    let date = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let plan = Plan::new(faults, amount);
    let outcome = plan.run(run.lanes, &|job| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["episode", &job.fault.to_string()])
            .args(["--file-system", &job.file_system.to_string()])
            .args(["--rounds", &job.rounds.to_string()])
            .arg("--bin")
            .arg(&run.bin)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(command)
    })?;
    for figures in &outcome.faults {
        println!("{}", plan::line(figures));
    }
    let good = outcome.good();
    if let Some(json) = &run.json {
        let written = Written {
            date,
            seconds: outcome.took.as_secs_f64(),
            lanes: run.lanes,
            faults: outcome.faults,
        };
        fs::write(json, serde_json::to_string_pretty(&written)?)
            .with_context(|| format!("could not write {}", json.display()))?;
    }
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

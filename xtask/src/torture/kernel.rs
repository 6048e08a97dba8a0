//! Every fault there is, for as long as one likes, and the report of it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{USAGE, report, seeds};
use crate::{cargo, run as run_command, workspace::Workspace};

/// What strikes a real server; `lockgate-torture` knows them.
const KERNEL: [&str; 5] = ["cut", "thin", "freeze", "full", "kill"];
const SEEDS: &str = "seeds";
/// The exit code of what could not run here.
const NOT_RUN: i32 = 77;
/// Of a time, the simulation gets one part in so many: it uses every core, the rest mostly waits.
const SEEDS_SHARE: u64 = 4;
/// Random histories for each fault that is asked for.
const SEEDS_PER_ROUND: u64 = 200;
const ROUNDS: u64 = 100;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    amount: Amount,
    only: Vec<&'a str>,
    json: Option<&'a str>,
}

#[derive(Debug, PartialEq, Eq)]
enum Amount {
    Minutes(u64),
    Rounds(u64),
}

pub(super) fn run(arguments: &[&str]) -> Result<()> {
    let asked = parse(arguments)?;
    let folder = Workspace::target().join("torture");
    fs::create_dir_all(&folder)?;
    let mut written = json!({
        "date": SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        "commit": commit()?,
        "build": "release build",
        "machine": machine(),
    });
    let mut failures = Vec::new();

    if asked.only.contains(&SEEDS) {
        let json = folder.join("seeds.json");
        let amount = match asked.amount {
            Amount::Minutes(minutes) if asked.only.len() > 1 => {
                ("--minutes", (minutes / SEEDS_SHARE).max(1))
            }
            Amount::Minutes(minutes) => ("--minutes", minutes),
            Amount::Rounds(rounds) => ("--seeds", rounds * SEEDS_PER_ROUND),
        };
        let (amount, number) = (amount.0, amount.1.to_string());
        let path = json.to_str().context("the target folder is not UTF-8")?;
        // A history that broke a promise is in the figures, and the report is to tell it.
        let _ = fs::remove_file(&json);
        if let Err(error) = seeds::run(&seeds::SHARD, &[amount, &number, "--json", path]) {
            failures.push(format!("{error:#}"));
        }
        written[SEEDS] = read(&json)?;
    }
    let kernel: Vec<&str> = asked
        .only
        .iter()
        .copied()
        .filter(|name| *name != SEEDS)
        .collect();
    if !kernel.is_empty() {
        let json = folder.join("kernel.json");
        let _ = fs::remove_file(&json);
        if let Err(error) = real_servers(&kernel, &asked, &json) {
            failures.push(format!("{error:#}"));
        }
        written["kernel"] = read(&json)?;
    }

    let text = format!("{written:#}\n");
    let json = asked
        .json
        .map_or(folder.join("torture.json"), PathBuf::from);
    fs::write(&json, text).with_context(|| format!("could not write {}", json.display()))?;
    let report = Workspace::root().join("docs/internals/reliability.md");
    fs::write(&report, report::text(&written)?)?;
    println!("written: {}, {}", json.display(), report.display());
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// The report again, from figures of an earlier run.
pub(super) fn report_again(json: &str) -> Result<()> {
    let written = read(Path::new(json))?;
    let report = Workspace::root().join("docs/internals/reliability.md");
    fs::write(report, report::text(&written)?)
        .context("could not write docs/internals/reliability.md")
}

fn real_servers(faults: &[&str], asked: &Asked<'_>, json: &Path) -> Result<()> {
    run_command(cargo().args(["build", "--release", "--locked"]).args([
        "--package",
        "lockgate-cli",
        "--package",
        "lockgate-torture",
    ]))?;
    let programs = Workspace::target().join("release");
    let (amount, number) = match asked.amount {
        Amount::Minutes(minutes) if asked.only.contains(&SEEDS) => {
            ("--minutes", (minutes - minutes / SEEDS_SHARE).max(1))
        }
        Amount::Minutes(minutes) => ("--minutes", minutes),
        Amount::Rounds(rounds) => ("--rounds", rounds),
    };
    let mut command = Command::new(programs.join("lockgate-torture"));
    command
        .args(["run", "--only", &faults.join(",")])
        .args([amount, &number.to_string()])
        .arg("--bin")
        .arg(programs.join("lockgate"))
        .arg("--json")
        .arg(json);
    let status = command.status().context("could not start the faults")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NOT_RUN) => bail!("NOT RUN: faults of file systems need root on Linux"),
        _ => bail!("the faults ended with {status}"),
    }
}

fn read(json: &Path) -> Result<Value> {
    match fs::read_to_string(json) {
        Ok(text) => {
            serde_json::from_str(&text).with_context(|| format!("reading {}", json.display()))
        }
        // Whoever should have written it has said why not.
        Err(_) => Ok(Value::Null),
    }
}

/// The commit, and whether the files are just that.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(Workspace::root())
            .output()
            .context("could not start git")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(if changed {
        format!("{commit}, with changes")
    } else {
        commit
    })
}

/// What it ran on, on one line.
fn machine() -> String {
    let line = |path: &str, name: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = line("/proc/cpuinfo", "model name");
    let memory = line("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
        .map_or(0, |kibibytes| kibibytes >> 20);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
    format!(
        "{cores} x {}, {memory} GiB of memory, {} {}",
        processor.as_deref().unwrap_or(std::env::consts::ARCH),
        std::env::consts::OS,
        kernel.as_deref().unwrap_or("").trim()
    )
}

fn parse<'a>(arguments: &[&'a str]) -> Result<Asked<'a>> {
    let mut asked = Asked {
        amount: Amount::Rounds(ROUNDS),
        only: KERNEL.into_iter().chain([SEEDS]).collect(),
        json: None,
    };
    let mut amounts = 0;
    let mut rest = arguments;
    while let [name, value, others @ ..] = rest {
        let number = || {
            let number: u64 = value
                .parse()
                .with_context(|| format!("{name} {value} is not a number"))?;
            ensure!(number > 0, "{name} must be at least 1");
            Ok(number)
        };
        match *name {
            "--hours" => asked.amount = Amount::Minutes(number()? * 60),
            "--minutes" => asked.amount = Amount::Minutes(number()?),
            "--rounds" => asked.amount = Amount::Rounds(number()?),
            "--json" => asked.json = Some(value),
            "--only" => {
                asked.only = value.split(',').collect();
                for name in &asked.only {
                    ensure!(
                        *name == SEEDS || KERNEL.contains(name),
                        "{name} is no fault\n\n{USAGE}"
                    );
                }
            }
            _ => bail!("{name} is not known\n\n{USAGE}"),
        }
        amounts += u64::from(["--hours", "--minutes", "--rounds"].contains(name));
        rest = others;
    }
    if let [name, ..] = rest {
        bail!("{name} is not known, or lacks its value\n\n{USAGE}");
    }
    ensure!(
        amounts <= 1,
        "--hours, --minutes and --rounds exclude each other"
    );
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_in_any_order() {
        let asked = parse(&["--json", "a.json", "--only", "cut,seeds", "--hours", "2"]).unwrap();
        let expected = Asked {
            amount: Amount::Minutes(120),
            only: vec!["cut", "seeds"],
            json: Some("a.json"),
        };
        assert_eq!(asked, expected);
        let asked = parse(&[]).unwrap();
        assert_eq!(asked.only.len(), 6);
        assert_eq!(asked.amount, Amount::Rounds(ROUNDS));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [
            &["--hours"][..],
            &["--hours", "0"],
            &["--rounds", "many"],
            &["--rounds", "1", "--hours", "1"],
            &["--only", "cut,fire"],
            &["--seeds", "1"],
        ] {
            parse(arguments).unwrap_err();
        }
    }
}

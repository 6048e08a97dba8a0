//! Fuzzing: builds the driver with coverage, runs it target by target, keeps what it finds.

mod driver;
mod minimize;

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};

use self::driver::{Driver, Found};
use crate::{cargo, run, workspace::Workspace};

pub(crate) const USAGE: &str = "\
Usage: cargo xtask fuzz [--seconds N] [TARGET]...
       cargo xtask fuzz --list

Fuzzes the targets, or all of them, for N seconds each (default: 60), with libFuzzer; needs g++. What
breaks a target is made smaller and kept in crates/lockgate-fuzz/regressions, where a test reads it.
Targets whose names begin with `planted` have a mistake on purpose, and fail if it is not found.
";

/// A row of the table that the driver writes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    name: String,
    bytes_max: usize,
    is_planted: bool,
    about: String,
}

/// Runs what comes after `fuzz`.
pub(crate) fn fuzz(arguments: &[&str]) -> Result<()> {
    let (mut seconds, mut names, mut list) = (60, Vec::new(), false);
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            "--seconds" => {
                let text = arguments.next().context("--seconds needs a number")?;
                seconds = text.parse().context("--seconds needs a number")?;
                ensure!(seconds > 0, "--seconds must be at least 1");
            }
            "--list" => list = true,
            option if option.starts_with('-') => bail!("{option}: no such option\n\n{USAGE}"),
            name => names.push(name),
        }
    }
    let driver = build()?;
    let targets = driver.targets()?;
    if list {
        for target in targets {
            println!("{:<20}{}", target.name, target.about);
        }
        return Ok(());
    }
    for name in &names {
        let known = targets.iter().any(|target| target.name == *name);
        ensure!(known, "{name}: no such target; --list shows them");
    }
    let chosen = targets
        .into_iter()
        .filter(|target| names.is_empty() || names.contains(&&*target.name));
    println!("{:<20}{:>12}{:>9}  outcome", "target", "inputs", "seconds");
    let failed = try_each(chosen, |target| try_target(&driver, target, seconds))?;
    ensure!(failed == 0, "{failed} targets failed");
    Ok(())
}

/// Tries the targets, as many at a time as there are processors, and says how many failed.
fn try_each(
    targets: impl Iterator<Item = Target> + Send,
    attempt: impl Fn(&Target) -> Result<bool> + Sync,
) -> Result<u32> {
    let targets = Mutex::new(targets);
    let next = || targets.lock().expect("no thread panics with it").next();
    let worker = || {
        let mut failed = 0;
        while let Some(target) = next() {
            failed += u32::from(!attempt(&target)?);
        }
        Ok(failed)
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .sum()
    })
}

/// Builds the driver. Only crates of the workspace get coverage, so nothing else is compiled twice.
fn build() -> Result<Driver> {
    let root = Workspace::root();
    run(cargo()
        .args(["build", "--quiet", "--locked", "--package", "lockgate-fuzz"])
        .args(["--features", "libfuzzer", "--bin", "lockgate-fuzz-driver"])
        // Faster, where everything is compiled once.
        .env("CARGO_INCREMENTAL", "0")
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            root.join("crates/lockgate-fuzz/rustc"),
        ))
    .context("building the driver; it needs g++")?;
    let folder = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    };
    Driver::new(
        folder.join("debug/lockgate-fuzz-driver"),
        folder.join("fuzz"),
    )
}

/// Whether the target held, or what was planted in it was found.
fn try_target(driver: &Driver, target: &Target, seconds: u32) -> Result<bool> {
    let outcome = driver
        .fuzz(target, seconds)
        .with_context(|| format!("fuzzing {}", target.name))?;
    let (good, text) = match (&outcome.found, target.is_planted) {
        (Some(found), true) => (true, format!("found: {}", found.how)),
        (None, true) => (false, "MISSED what was planted".to_owned()),
        (Some(found), false) => (false, format!("BROKEN: {}", found.how)),
        (None, false) => (true, "held".to_owned()),
    };
    let (inputs, took) = (outcome.inputs, outcome.took.as_secs_f64());
    println!("{:<20}{inputs:>12}{took:>9.1}  {text}", target.name);
    if let (Some(found), false) = (outcome.found, target.is_planted) {
        println!("{}", found.said);
        if inputs == 0 {
            println!("a seed, or an input kept before: `cargo test -p lockgate-fuzz` tells which");
        } else {
            keep(driver, target, found)?;
        }
    }
    Ok(good)
}

/// Puts the input where the test finds it, and shows it: a machine of CI keeps no files.
fn keep(driver: &Driver, target: &Target, found: Found) -> Result<()> {
    let input = driver.minimize(target, found.input);
    let folder = Workspace::root()
        .join("crates/lockgate-fuzz/regressions")
        .join(&target.name);
    let path = write_new(&folder, &input)?;
    println!("kept as {}, {} bytes:", path.display(), input.len());
    println!("{}", input[..input.len().min(2_000)].escape_ascii());
    Ok(())
}

/// Names are numbers: nothing is told by a name that the input does not tell.
fn write_new(folder: &Path, input: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let mut number = 1;
    let path = loop {
        let path = folder.join(format!("{number:03}"));
        if !path.exists() {
            break path;
        }
        number += 1;
    };
    fs::write(&path, input)?;
    Ok(path)
}

/// Reads the driver's table.
fn parse_table(text: &str) -> Result<Vec<Target>> {
    let row = |line: &str| {
        let mut columns = line.splitn(4, '\t');
        Some(Target {
            name: columns.next()?.to_owned(),
            bytes_max: columns.next()?.parse().ok()?,
            is_planted: columns.next()?.parse().ok()?,
            about: columns.next()?.to_owned(),
        })
    };
    text.lines()
        .map(|line| row(line).with_context(|| format!("{line:?} is no row of the driver's table")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_table_is_read() {
        let targets =
            parse_table("query\t100\tfalse\tforms: a, b\nplanted-x\t7\ttrue\tx\n").unwrap();
        assert_eq!(
            targets[0],
            Target {
                name: "query".into(),
                bytes_max: 100,
                is_planted: false,
                about: "forms: a, b".into()
            }
        );
        assert!(targets[1].is_planted);
        assert!(parse_table("query\tlong\tfalse\tx").is_err());
    }

    #[test]
    fn no_kept_input_takes_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let first = write_new(folder.path(), b"one").unwrap();
        let second = write_new(folder.path(), b"two").unwrap();
        assert_eq!(fs::read(first).unwrap(), b"one");
        assert_eq!(fs::read(second).unwrap(), b"two");
    }
}

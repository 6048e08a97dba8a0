//! Instructions that the machine executes for each message, counted by valgrind and held against `instructions.toml`.
//!
//! A count is the same in every run and on every processor of one kind, so a change of a few percent is a change of
//! the code or of the compiler. It says nothing about waiting for memory: with `--beside` a model of the caches counts
//! how often a message waits.

use std::{collections::BTreeMap, fmt::Write as _, iter, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use toml::Table;

use crate::{cargo, run, workspace::Workspace};

pub(crate) const USAGE: &str = "\
Usage: cargo xtask instructions [--update | --beside MESSAGES [--read-ahead BATCH]]

Needs valgrind. Without a word of its own: counts what each hot path executes for a message, and fails where that is
more than xtask/instructions.toml says, or less, by more than the file's tolerance.

  --update           write the counts to the file
  --beside MESSAGES  count beside so many waiting messages instead, with misses of the last cache, and print a table
  --read-ahead BATCH the machine reads ahead for so many commands at a time
";

/// Operations that `examples/hot_paths.rs` does in what is counted.
const TIMES: u64 = 2_000;

const PATHS: [&str; 8] = [
    "send-unkeyed",
    "send-keyed",
    "receive-unkeyed",
    "receive-keyed",
    "ack-unkeyed",
    "ack-keyed",
    "fold-keyed",
    "load-keyed",
];

pub(crate) fn main(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => check(),
        ["--update"] => update(),
        ["--beside", messages] => table(messages, "1"),
        ["--beside", messages, "--read-ahead", batch] => table(messages, batch),
        _ => bail!("{USAGE}"),
    }
}

fn check() -> Result<()> {
    let path = file();
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table: Table = text.parse().with_context(|| path.display().to_string())?;
    let number = |table: &Table, name: &str| {
        let number = table.get(name).and_then(toml::Value::as_integer);
        let number = number.and_then(|number| u64::try_from(number).ok());
        number.with_context(|| format!("{}: no number {name}", path.display()))
    };
    let tolerance = number(&table, "tolerance_percent")?;
    let expected = table.get("instructions").and_then(toml::Value::as_table);
    let expected = expected.with_context(|| format!("{}: no counts", path.display()))?;
    let mut problems = String::new();
    for (name, counted) in count_all()? {
        let before = number(expected, name)?;
        println!("{name:<16} {counted:>6} instructions, {before} expected");
        if counted.abs_diff(before) * 100 > before * tolerance {
            writeln!(
                problems,
                "{name}: {counted} instructions a message, {before} expected"
            )?;
        }
    }
    ensure!(
        problems.is_empty(),
        "{problems}More: find out why. Less, or worth it: cargo xtask instructions --update"
    );
    Ok(())
}

fn update() -> Result<()> {
    let mut text = String::from(
        "# Instructions a message, written by `cargo xtask instructions --update`.\n\
         tolerance_percent = 10\n\n[instructions]\n",
    );
    for (name, counted) in count_all()? {
        writeln!(text, "{name} = {counted}")?;
    }
    std::fs::write(file(), text)?;
    Ok(())
}

fn table(messages: &str, batch: &str) -> Result<()> {
    let binary = build()?;
    println!("| path | instructions | misses of the last cache |\n|---|---:|---:|");
    for path in PATHS {
        let counts = valgrind(&binary, &[path, messages, batch], true)?;
        #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
        let misses = (counts["DLmr"] + counts["DLmw"]) as f64 / TIMES as f64;
        println!("| {path} | {} | {misses:.2} |", counts["Ir"] / TIMES);
    }
    Ok(())
}

fn count_all() -> Result<Vec<(&'static str, u64)>> {
    let binary = build()?;
    PATHS
        .into_iter()
        .map(|path| Ok((path, valgrind(&binary, &[path], false)?["Ir"] / TIMES)))
        .collect()
}

/// Runs the example, and counts events inside its function `measured`.
fn valgrind(binary: &PathBuf, arguments: &[&str], caches: bool) -> Result<BTreeMap<String, u64>> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=hot_paths::measured*")
        .arg(format!("--cache-sim={}", if caches { "yes" } else { "no" }))
        .arg(binary)
        .args(arguments);
    let output = command.output().context("could not start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed:\n{said}");
    // `Events : Ir Dr ...` and `Collected : 1 2 ...`, each behind a process id. Zeros at the end are left out.
    let line = |name: &str| {
        let line = said.lines().find_map(|line| line.split_once(name));
        let (_, rest) =
            line.with_context(|| format!("no {name} in what valgrind said:\n{said}"))?;
        anyhow::Ok(
            rest.trim_start_matches([' ', ':'])
                .split_whitespace()
                .map(str::to_owned),
        )
    };
    let counts: BTreeMap<_, _> = line("Events")?
        .zip(line("Collected")?.chain(iter::repeat("0".to_owned())))
        .map(|(event, count)| Ok((event, count.parse()?)))
        .collect::<Result<_>>()?;
    ensure!(
        counts["Ir"] > 0,
        "nothing was counted: is `measured` still there?"
    );
    Ok(counts)
}

fn build() -> Result<PathBuf> {
    run(cargo().args([
        "build",
        "--quiet",
        "--locked",
        "--release",
        "--package",
        "lockgate-machine",
        "--example",
        "hot_paths",
    ]))?;
    Ok(Workspace::target().join("release/examples/hot_paths"))
}

fn file() -> PathBuf {
    Workspace::root().join("xtask/instructions.toml")
}

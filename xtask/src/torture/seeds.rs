//! `cargo xtask torture seeds` and `workers`: seeded histories of `lockgate-sim`, in a release build.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::USAGE;
use crate::{cargo, run as run_command};

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked<'a> {
    seeds: Option<u64>,
    first: Option<u64>,
    minutes: Option<u64>,
    json: Option<&'a str>,
}

/// Histories of a run that does not say how many.
const SEEDS: u64 = 20_000;

/// A simulation: its test target, and the test that runs as many histories as one likes.
pub(super) struct Simulation {
    target: &'static str,
    test: &'static str,
    /// It writes its counts to a file.
    writes: bool,
}

/// A shard over a disk that fails.
pub(super) const SHARD: Simulation = Simulation {
    target: "engine_crash",
    test: "every_seed_keeps_what_was_answered",
    writes: true,
};

/// Workers over a shard, and a network between.
pub(super) const WORKERS: Simulation = Simulation {
    target: "workers",
    test: "every_seed_keeps_what_workers_promise",
    writes: false,
};

pub(super) fn run(simulation: &Simulation, arguments: &[&str]) -> Result<()> {
    let asked = parse(arguments)?;
    ensure!(
        simulation.writes || asked.json.is_none(),
        "--json is not known here\n\n{USAGE}"
    );
    let mut command = cargo();
    command
        .args(["test", "--release", "--package", "lockgate-sim"])
        .args(["--test", simulation.target, "--", "--exact", "--nocapture"])
        .arg(simulation.test)
        .env("LOCKGATE_FIRST_SEED", asked.first.unwrap_or(0).to_string());
    match asked.minutes {
        Some(minutes) => command.env("LOCKGATE_MINUTES", minutes.to_string()),
        None => command.env("LOCKGATE_SEEDS", asked.seeds.unwrap_or(SEEDS).to_string()),
    };
    if let Some(json) = asked.json {
        // The tests run in the folder of their package.
        let path = std::path::absolute(Path::new(json))
            .with_context(|| format!("--json {json} is not a path"))?;
        command.env("LOCKGATE_JSON", path);
    }
    run_command(&mut command)
}

fn parse<'a>(arguments: &[&'a str]) -> Result<Asked<'a>> {
    let mut asked = Asked::default();
    let mut rest = arguments;
    while let [name, value, others @ ..] = rest {
        let number = || {
            let number: u64 = value
                .parse()
                .with_context(|| format!("{name} {value} is not a number"))?;
            ensure!(
                number > 0 || *name == "--first",
                "{name} must be at least 1"
            );
            Ok(number)
        };
        match *name {
            "--seeds" => asked.seeds = Some(number()?),
            "--first" => asked.first = Some(number()?),
            "--minutes" => asked.minutes = Some(number()?),
            "--json" => asked.json = Some(value),
            _ => bail!("{name} is not known\n\n{USAGE}"),
        }
        rest = others;
    }
    if let [name, ..] = rest {
        bail!("{name} is not known, or lacks its value\n\n{USAGE}");
    }
    ensure!(
        asked.seeds.is_none() || asked.minutes.is_none(),
        "--seeds and --minutes exclude each other"
    );
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_in_any_order() {
        let asked = parse(&["--json", "a.json", "--seeds", "5", "--first", "0"]).unwrap();
        let expected = Asked {
            seeds: Some(5),
            first: Some(0),
            minutes: None,
            json: Some("a.json"),
        };
        assert_eq!(asked, expected);
        assert_eq!(parse(&[]).unwrap(), Asked::default());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [
            &["--seeds"][..],
            &["--seeds", "0"],
            &["--seeds", "many"],
            &["--seeds", "1", "--minutes", "1"],
            &["--hours", "1"],
        ] {
            parse(arguments).unwrap_err();
        }
    }
}

//! Project automation: what cargo alone cannot say. `cargo xtask --help` lists it.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};

mod fuzz;
mod instructions;
mod licenses;
mod plot;
mod tidy;
mod torture;
mod workspace;

use workspace::Workspace;

const USAGE: &str = "\
Usage: cargo xtask <TASK>

Tasks:
  tidy              check the house rules: file lengths, leftovers, names, documents, layers
  licenses          check licences, sources and duplicates of all dependencies against deny.toml
  plot              draw docs/delays.svg from what `lockgate-bench delay --json` prints, on standard input, and docs/curator.svg
                    from what `lockgate-bench curator --json` prints, with the rows of its table on standard output
  wasm              build the pure crates for wasm32-unknown-unknown
  golden            write the golden data folders anew, for a new version of the format
  kill --times N    the process kill tests in their long form, over a release build (default: 50): servers, and twice as
                    many producers, whose sink is also away for minutes
  models --runs N   the models of what threads hand over, in N other orders each (default: 50000)
  exchange --runs N examples/exchange for a minute, N times with a seed of its own each time, over each kind of
                    ledger in turn (default: 12)
  curator --rounds N
                    kill and stop programs that share a queue in ZooKeeper with Curator, N times (default: 20)
  nightly           what runs for long and needs no root: kill, models, exchange and curator, as they are by default
  instructions      what the machine executes for each message: `instructions --help`
  fuzz              every decoder under a coverage-guided fuzzer: `fuzz --help`
  torture           every fault for as long as one likes, and docs/internals/reliability.md: `torture --help`
";

/// Crates that do no I/O, read no clock and draw no random number.
const PURE_CRATES: [&str; 2] = ["lockgate-core", "lockgate-machine"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["tidy"] => tidy::run(),
        ["licenses"] => licenses::run(),
        ["plot"] => plot::run(),
        ["wasm"] => wasm(),
        ["golden"] => golden(),
        ["kill"] => kill("50"),
        ["kill", "--times", times] => kill(times),
        ["models"] => models("50000"),
        ["models", "--runs", runs] => models(runs),
        ["exchange"] => exchange("12"),
        ["exchange", "--runs", runs] => exchange(runs),
        ["curator"] => curator("20"),
        ["curator", "--rounds", rounds] => curator(rounds),
        ["nightly"] => kill("50")
            .and_then(|()| models("50000"))
            .and_then(|()| exchange("12"))
            .and_then(|()| curator("20")),
        ["fuzz", "--help" | "-h"] => {
            print!("{}", fuzz::USAGE);
            return ExitCode::SUCCESS;
        }
        ["fuzz", rest @ ..] => fuzz::fuzz(rest),
        ["instructions", "--help" | "-h"] => {
            print!("{}", instructions::USAGE);
            return ExitCode::SUCCESS;
        }
        ["instructions", rest @ ..] => instructions::main(rest),
        ["torture", "--help" | "-h"] => {
            print!("{}", torture::USAGE);
            return ExitCode::SUCCESS;
        }
        ["torture", rest @ ..] => torture::run(rest),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folders are kept with the tests that read them, and made by the same program.
fn golden() -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args([
            "test",
            "-p",
            "lockgate-cli",
            "--test",
            "golden",
            "every_version_finds",
        ])
        .env("UPDATE_GOLDEN", "1");
    ensure!(
        command.status()?.success(),
        "the golden folders were not written"
    );
    Ok(())
}

/// A build for a target without clock, randomness, files or threads shows that none is used.
fn wasm() -> Result<()> {
    let mut cargo = cargo();
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--target",
        "wasm32-unknown-unknown",
    ]);
    for name in PURE_CRATES {
        cargo.args(["--package", name]);
    }
    run(&mut cargo)
}

fn kill(times: &str) -> Result<()> {
    let kills: u32 = times
        .parse()
        .with_context(|| format!("--times {times} is not a number"))?;
    ensure!(kills > 0, "--times must be at least 1");
    let long = |package, test, only: &[&str]| {
        let mut cargo = cargo();
        cargo
            .args(["test", "--release", "--package", package])
            .args(["--test", test, "--", "--nocapture"])
            .args(only);
        cargo
    };
    run(long("lockgate-cli", "kill", &[]).env("LOCKGATE_KILLS", times))?;
    let producers = kills.saturating_mul(2).to_string();
    run(long("lockgate-producer", "kill", &[]).env("LOCKGATE_KILLS", producers))?;
    run(long("lockgate-cli", "cli", &["answers_after_the_deadline"]).env("LOCKGATE_AWAY", "150"))
}

/// With a seed of its own each time; a failure prints it, and the schedule.
fn models(runs: &str) -> Result<()> {
    let number: u64 = runs
        .parse()
        .with_context(|| format!("--runs {runs} is not a number"))?;
    ensure!(number > 0, "--runs must be at least 1");
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let seed = since.as_secs().to_string();
    println!("SHUTTLE_RANDOM_SEED={seed} LOCKGATE_MODEL_RUNS={runs}");
    for package in ["lockgate-engine", "lockgate-consumer"] {
        run(cargo()
            .args(["test", "--locked", "--package", package])
            .args(["--features", "shuttle", "--lib", "models"])
            .env("SHUTTLE_RANDOM_SEED", &seed)
            .env("LOCKGATE_MODEL_RUNS", runs))?;
    }
    Ok(())
}

/// Each run prints its seed, by which it can be repeated.
fn exchange(runs: &str) -> Result<()> {
    let number: u32 = runs
        .parse()
        .with_context(|| format!("--runs {runs} is not a number"))?;
    ensure!(number > 0, "--runs must be at least 1");
    let ledgers = ["postgres", "server", "mariadb"].iter().cycle();
    for (_, ledger) in (0..number).zip(ledgers) {
        run(Command::new("examples/exchange/run")
            .args(["--ledger", ledger])
            .current_dir(Workspace::root()))?;
    }
    Ok(())
}

/// What is missing for it is a failure, as in CI.
fn curator(rounds: &str) -> Result<()> {
    let number: u32 = rounds
        .parse()
        .with_context(|| format!("--rounds {rounds} is not a number"))?;
    ensure!(number > 0, "--rounds must be at least 1");
    run(Command::new("scripts/test")
        .args(["--only", "zookeeper"])
        .env("LOCKGATE_CURATOR_ROUNDS", rounds)
        .env("CI", "true")
        .current_dir(Workspace::root()))
}

/// Cargo, at the root of the workspace.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(Workspace::root());
    cargo
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("could not start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

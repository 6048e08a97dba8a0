//! A small exchange whose parts are killed, frozen and cut off while it trades; README.md says what it shows.
//!
//! `exchange run` is the driver, and starts the others: `exchange gateway` and `exchange engine`, and `lockgate`.

mod driver;
mod engine;
mod gateway;
mod ledger;
mod market;
mod switches;

use std::{collections::HashMap, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};

/// SplitMix64: everything that is random here follows from the seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of so many; 0 if there are none.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count.max(1)
    }

    /// From 0 up to so much.
    pub(crate) fn amount(&mut self, most: u32) -> i64 {
        i64::try_from(self.below(u64::from(most))).unwrap_or_default()
    }
}

/// `--name value`, each once.
struct Arguments(HashMap<String, String>);

impl Arguments {
    fn read(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut read = HashMap::new();
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments.next();
            let value = value.with_context(|| format!("{name} has no value"))?;
            if !name.starts_with("--") || read.insert(name.clone(), value).is_some() {
                bail!("{name} is no option, or given twice");
            }
        }
        Ok(Self(read))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn needed(&mut self, name: &str) -> anyhow::Result<String> {
        let value = self.take(name);
        value.with_context(|| format!("{name} is missing"))
    }

    fn number(&mut self, name: &str, usual: u64) -> anyhow::Result<u64> {
        match self.take(name) {
            Some(text) => text
                .parse()
                .with_context(|| format!("{name} {text} is no whole number")),
            None => Ok(usual),
        }
    }

    fn end(self) -> anyhow::Result<()> {
        match self.0.keys().next() {
            Some(name) => bail!("{name} is unknown here"),
            None => Ok(()),
        }
    }
}

/// Where the ledger of that kind is. `scripts`: where those are that start databases.
fn place(kind: &str, scripts: Option<String>) -> anyhow::Result<driver::Place> {
    let script = match kind {
        "postgres" => "services",
        "mariadb" => "mariadb",
        "server" => return Ok(driver::Place::Server),
        url if url.contains("://") => return Ok(driver::Place::Given(url.to_owned())),
        _ => bail!("--ledger is postgres, mariadb, server or a URL"),
    };
    let scripts = scripts.context("--scripts is missing")?;
    Ok(driver::Place::Own(PathBuf::from(scripts).join(script)))
}

fn start() -> anyhow::Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let mut arguments = Arguments::read(arguments)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    match &*what {
        "run" => {
            let kind = arguments.take("--ledger");
            let scripts = arguments.take("--scripts");
            let options = driver::Options {
                lockgate: PathBuf::from(arguments.needed("--bin")?),
                place: place(kind.as_deref().unwrap_or("postgres"), scripts)?,
                seconds: arguments.number("--seconds", 60)?,
                seed: arguments.number("--seed", driver::new_seed())?,
            };
            arguments.end()?;
            runtime.block_on(driver::run(options))
        }
        "gateway" => {
            let options = gateway::Options {
                endpoint: arguments.needed("--endpoint")?,
                queue: arguments.needed("--queue")?,
                number: u32::try_from(arguments.number("--number", 1)?)?,
                seed: arguments.number("--seed", 0)?,
                journal: PathBuf::from(arguments.needed("--journal")?),
            };
            arguments.end()?;
            runtime.block_on(gateway::run(options)).map(|()| true)
        }
        "engine" => {
            let options = engine::Options {
                ledger: std::env::var("LOCKGATE_LEDGER").context("LOCKGATE_LEDGER")?,
                endpoint: arguments.needed("--endpoint")?,
                queue: arguments.needed("--queue")?,
                state: PathBuf::from(arguments.needed("--state")?),
                seed: arguments.number("--seed", 0)?,
            };
            arguments.end()?;
            runtime.block_on(engine::run(options)).map(|()| true)
        }
        _ => bail!(
            "usage: exchange run --bin LOCKGATE [--ledger postgres|mariadb|server|URL] [--scripts FOLDER] \
             [--seconds N] [--seed N]"
        ),
    }
}

/// 0: all holds. 1: something does not. 2: it could not be found out.
fn main() -> ExitCode {
    match start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("exchange: {error:#}");
            ExitCode::from(2)
        }
    }
}

//! The stores of elections, and the servers of their own that some of them need.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use lockgate_engine::Engine;
use lockgate_server::Server;

use crate::{
    Setup,
    http::{Running, options},
    load::start_engine,
};

/// A store that is measured, and how.
pub(super) struct Store {
    pub(super) name: &'static str,
    pub(super) figures: Figures,
    pub(super) kind: Kind,
}

pub(super) struct Figures {
    pub(super) hand_over: &'static str,
    pub(super) crash: &'static str,
    pub(super) rate: &'static str,
    pub(super) messages: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// In one process.
    Memory,
    /// A folder.
    File,
    /// A queue server in this process.
    Server,
    /// A server that a script of the project starts, whose URL is in that variable then.
    Script(&'static str, &'static str),
}

macro_rules! store {
    ($name:literal, $kind:expr) => {
        Store {
            name: $name,
            figures: Figures {
                hand_over: concat!("election.", $name, ".hand_over"),
                crash: concat!("election.", $name, ".crash"),
                rate: concat!("election.", $name, ".rate"),
                messages: concat!("election.", $name, ".messages"),
            },
            kind: $kind,
        }
    };
}

pub(super) const STORES: &[Store] = &[
    store!("memory", Kind::Memory),
    store!("file", Kind::File),
    store!("server", Kind::Server),
    store!(
        "zookeeper",
        Kind::Script("zookeeper", "LOCKGATE_TEST_ZOOKEEPER")
    ),
    store!(
        "postgres",
        Kind::Script("services", "LOCKGATE_TEST_POSTGRES")
    ),
    store!("mysql", Kind::Script("mariadb", "LOCKGATE_TEST_MYSQL")),
    store!("redis", Kind::Script("redis", "LOCKGATE_TEST_REDIS")),
];

/// All of them, though a store in memory does not crash, and only a server gets messages.
pub(super) const FIGURES: [&str; 4 * STORES.len()] = {
    let (mut all, mut store) = ([""; 4 * STORES.len()], 0);
    while store < STORES.len() {
        let figures = &STORES[store].figures;
        all[4 * store] = figures.hand_over;
        all[4 * store + 1] = figures.crash;
        all[4 * store + 2] = figures.rate;
        all[4 * store + 3] = figures.messages;
        store += 1;
    }
    all
};

/// A store that is there until this is stopped.
pub(crate) struct Served {
    pub(crate) url: String,
    what: What,
}

enum What {
    Nothing,
    Server(Engine, Running),
    Script(Child),
}

impl Store {
    /// `None`: what it needs is not installed, and cannot be.
    pub(super) fn start(&self, setup: &Setup) -> anyhow::Result<Option<Served>> {
        Ok(Some(match self.kind {
            Kind::Memory => Served {
                url: "memory://".to_owned(),
                what: What::Nothing,
            },
            Kind::File => {
                let folder = setup.folder("election-file");
                fs::create_dir(&folder)?;
                Served {
                    url: format!("file://{}", folder.canonicalize()?.display()),
                    what: What::Nothing,
                }
            }
            Kind::Server => setup.runtime.block_on(async {
                let engine = start_engine(&setup.folder("election-server"))?;
                let running = Running::start(Server::bind(options(), engine.clone()).await)?;
                anyhow::Ok(Served {
                    url: format!("http://{}", running.address()),
                    what: What::Server(engine, running),
                })
            })?,
            Kind::Script(script, variable) => return start_by(script, variable),
        }))
    }
}

/// The server runs until the standard input of what the script runs is closed.
pub(crate) fn start_by(script: &str, variable: &str) -> anyhow::Result<Option<Served>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let mut child = Command::new(path.join(script))
        .args([
            "run",
            "sh",
            "-c",
            &format!("echo \"${variable}\"; exec cat"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("running scripts/{script}"))?;
    let mut url = String::new();
    let said = child.stdout.take().context("it has an output")?;
    BufReader::new(said).read_line(&mut url)?;
    if url.is_empty() {
        return match child.wait()?.code() {
            Some(77) => Ok(None),
            code => bail!("scripts/{script} has ended with {code:?}"),
        };
    }
    Ok(Some(Served {
        url: url.trim().to_owned(),
        what: What::Script(child),
    }))
}

impl Served {
    pub(crate) fn stop(self, setup: &Setup) -> anyhow::Result<()> {
        match self.what {
            What::Nothing => {}
            What::Server(engine, running) => setup.runtime.block_on(async {
                running.stop().await;
                engine.shutdown().await;
            }),
            What::Script(mut child) => {
                drop(child.stdin.take());
                child.wait()?;
            }
        }
        Ok(())
    }
}

//! Starts the exchange, does it harm, and looks whether everything holds.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use lockgate::{
    Epoch, HolderName, UniqueId,
    coordination::Leader,
    sequencer::ledger::{Chain, Ledger, LedgerError, LedgerOptions, ReadLedger, SequenceId},
};
use serde_json::json;

use crate::{
    Random,
    engine::{Kept, Replayed},
    gateway::Journal,
    ledger::{self, AnyLedger},
    switches::{End, Switches},
};

const GATEWAYS: usize = 3;
const SEQUENCERS: usize = 2;
const ENGINES: usize = 2;

/// The lease of a sequencer. One that is frozen for longer finds another one at work.
const LEASE: Duration = Duration::from_secs(2);

/// How long the end may take, when nothing is killed any more.
const END_WITHIN: Duration = Duration::from_secs(90);

/// Where the ledger is.
pub(crate) enum Place {
    /// In a database of its own, which this script starts and kills.
    Own(PathBuf),
    /// In the server that has the queues.
    Server,
    /// In the database of that URL, which is not killed.
    Given(String),
}

pub(crate) struct Options {
    pub(crate) lockgate: PathBuf,
    pub(crate) place: Place,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

pub(crate) fn new_seed() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::from(since.subsec_micros()) + since.as_secs()
}

/// A process that is started again when it has ended.
struct Part {
    name: String,
    command: Box<dyn Fn() -> Command>,
    log: PathBuf,
    child: Option<Child>,
    /// When it is started, or goes on after it was frozen.
    due: Instant,
    is_frozen: bool,
}

impl Part {
    fn new(name: &str, folder: &Path, command: impl Fn() -> Command + 'static) -> Self {
        Self {
            name: name.to_owned(),
            command: Box::new(command),
            log: folder.join(format!("{name}.log")),
            child: None,
            due: Instant::now(),
            is_frozen: false,
        }
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = (self.command)();
        let child = command.stderr(log).stdout(Stdio::null()).spawn();
        self.child = Some(child.with_context(|| format!("starting {}", self.name))?);
        Ok(())
    }

    /// Whether it stands for elections by that name: of its host and process.
    fn is_called(&self, name: &HolderName) -> bool {
        let child = self.child.as_ref();
        child.is_some_and(|child| name.as_str().ends_with(&format!("-{}", child.id())))
    }

    fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let Some(child) = &self.child else {
            return Ok(());
        };
        let mut kill = Command::new("kill");
        kill.arg(signal)
            .arg(child.id().to_string())
            .stderr(Stdio::null());
        kill.status()?;
        Ok(())
    }

    fn kill(&mut self, back: Duration) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        (self.is_frozen, self.due) = (false, Instant::now() + back);
        Ok(())
    }

    fn freeze(&mut self, time: Duration) -> anyhow::Result<()> {
        self.signal("-STOP")?;
        (self.is_frozen, self.due) = (true, Instant::now() + time);
        Ok(())
    }

    /// Starts it, or lets it go on, when that is due. How it has ended by itself, if it has.
    fn look(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.is_frozen && Instant::now() >= self.due {
            self.signal("-CONT")?;
            self.is_frozen = false;
        }
        let Some(child) = &mut self.child else {
            if Instant::now() >= self.due {
                self.start()?;
            }
            return Ok(None);
        };
        let ended = child.try_wait()?;
        if ended.is_some() {
            self.child = None;
            self.due = Instant::now() + Duration::from_millis(200);
        }
        Ok(ended)
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        lines.join("\n")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A database of its own.
struct Database {
    script: PathBuf,
    folder: PathBuf,
}

impl Database {
    fn ask(&self, what: &str) -> anyhow::Result<String> {
        let said = self.folder.join("said");
        let mut command = Command::new(&self.script);
        // To a file: a server that it starts would keep a pipe open.
        command
            .arg(what)
            .arg(&self.folder)
            .stdout(File::create(&said)?);
        let status = command.stdin(Stdio::null()).status()?;
        ensure!(
            status.success(),
            "{} {what}: {status}",
            self.script.display()
        );
        Ok(fs::read_to_string(said)?)
    }

    fn start(&self) -> anyhow::Result<String> {
        let said = self.ask("start")?;
        let url = said.trim().split_once('=').map(|(_, url)| url.to_owned());
        url.with_context(|| format!("{said:?} has no URL"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.ask("crash");
    }
}

struct Exchange {
    options: Options,
    folder: PathBuf,
    ledger: String,
    endpoint: String,
    server: Part,
    sequencers: Vec<Part>,
    gateways: Vec<Part>,
    engines: Vec<Part>,
    /// The queues of the engines.
    queues: Vec<String>,
    switches: Switches,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<bool> {
    let work = tempfile::tempdir()?;
    // A server of another user reads what is in it.
    let folder = work.path().to_path_buf();
    let random = &mut Random(options.seed);
    let database = match &options.place {
        Place::Own(script) => {
            let folder = folder.join("database");
            fs::create_dir(&folder)?;
            open_to_others(work.path())?;
            let script = script.clone();
            Some(Database { script, folder })
        }
        Place::Server | Place::Given(_) => None,
    };
    let ledger = match (&options.place, &database) {
        (Place::Given(url), _) => url.clone(),
        (_, Some(database)) => format!("{}?ledger=exchange", database.start()?),
        (_, None) => "exchange".to_owned(),
    };
    let mut exchange = Exchange::new(options, folder, ledger).await?;
    eprintln!(
        "exchange: seed {}, {} s",
        exchange.options.seed, exchange.options.seconds
    );
    let holds = exchange.all(random, database.as_ref()).await;
    if !matches!(holds, Ok(true)) {
        let kept = work.keep();
        eprintln!("exchange: logs and journals are in {}", kept.display());
    }
    holds
}

/// Lets the user of the database look into a folder.
fn open_to_others(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(
        folder,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// A port that was free just now.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Exchange {
    async fn new(options: Options, folder: PathBuf, ledger: String) -> anyhow::Result<Self> {
        let (own, lockgate) = (std::env::current_exe()?, options.lockgate.clone());
        let address = format!("127.0.0.1:{}", free_port()?);
        let endpoint = format!("http://{address}");
        let seed = options.seed;
        let server = {
            let (program, data) = (lockgate.clone(), folder.join("queues"));
            Part::new("server", &folder, move || {
                let mut serve = Command::new(&program);
                serve
                    .args(["serve", "--listen", &address, "--data"])
                    .arg(&data);
                serve
            })
        };
        let queues: Vec<String> = (1..=ENGINES).map(|n| format!("trades-{n}.fifo")).collect();
        let sequencers = (1..=SEQUENCERS).map(|number| {
            let (program, ledger, endpoint) = (lockgate.clone(), ledger.clone(), endpoint.clone());
            let queues = queues.clone();
            Part::new(&format!("sequencer-{number}"), &folder, move || {
                sequence(&program, &ledger, &endpoint, &queues)
            })
        });
        let sequencers = sequencers.collect();
        let gateways = (1..=GATEWAYS).map(|number| {
            let (own, endpoint) = (own.clone(), endpoint.clone());
            let journal = journal(&folder, number);
            Part::new(&format!("gateway-{number}"), &folder, move || {
                let mut gateway = Command::new(&own);
                gateway.args(["gateway", "--queue", "orders.fifo", "--endpoint", &endpoint]);
                gateway.args(["--number", &number.to_string()]);
                gateway.args(["--seed", &(seed + number as u64).to_string()]);
                gateway.arg("--journal").arg(&journal).stdin(Stdio::piped());
                gateway
            })
        });
        let gateways = gateways.collect();
        let engines = (1..=ENGINES).map(|number| {
            let (own, ledger, endpoint) = (own.clone(), ledger.clone(), endpoint.clone());
            let (queue, state) = (queues[number - 1].clone(), state(&folder, number));
            Part::new(&format!("engine-{number}"), &folder, move || {
                let mut engine = Command::new(&own);
                engine.args(["engine", "--queue", &queue, "--endpoint", &endpoint]);
                engine.args(["--seed", &(seed + 100 * number as u64).to_string()]);
                engine
                    .arg("--state")
                    .arg(&state)
                    .env("LOCKGATE_LEDGER", &ledger);
                engine
            })
        });
        let engines = engines.collect();
        let switches = Switches::new(endpoint.parse()?, "sequence/orders.fifo").await?;
        Ok(Self {
            options,
            folder,
            ledger,
            endpoint,
            server,
            sequencers,
            gateways,
            engines,
            queues,
            switches,
        })
    }

    async fn all(
        &mut self,
        random: &mut Random,
        database: Option<&Database>,
    ) -> anyhow::Result<bool> {
        self.open().await?;
        let harm = self.trade(random, database).await?;
        self.switch().await?;
        self.end()?;
        self.judge(&harm).await
    }

    /// Starts the server, and makes the queues and the ledger.
    async fn open(&mut self) -> anyhow::Result<()> {
        self.server.start()?;
        let queues = self.queues.iter().map(String::as_str);
        for queue in queues.chain(["orders.fifo"]) {
            let until = Instant::now() + Duration::from_secs(30);
            loop {
                let mut create = Command::new(&self.options.lockgate);
                create.args(["queue", "create", queue, "--endpoint", &self.endpoint]);
                if create.stderr(Stdio::null()).status()?.success() {
                    break;
                }
                let words = self.server.last_words();
                ensure!(Instant::now() < until, "the server does not start: {words}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let made_with = LedgerOptions {
            hashed: true,
            retention: None,
        };
        let made = ledger::open(&self.ledger, &self.endpoint, Some(made_with)).await?;
        ensure!(
            made.head().await?.sequence_id == SequenceId::START,
            "the ledger is not empty: name another one"
        );
        Ok(())
    }

    fn parts(&mut self) -> impl Iterator<Item = &mut Part> {
        let server = std::iter::once(&mut self.server);
        let others = self.sequencers.iter_mut().chain(&mut self.gateways);
        server.chain(others).chain(&mut self.engines)
    }

    /// Starts what is due. An engine that has halted has seen what must not be.
    fn look(&mut self) -> anyhow::Result<()> {
        for part in self.parts() {
            if let Some(status) = part.look()? {
                let words = part.last_words();
                let is_fatal = part.name.starts_with("engine") || part.name.starts_with("gateway");
                ensure!(!is_fatal, "{} has ended with {status}: {words}", part.name);
                eprintln!(
                    "exchange: {} has ended with {status}, and starts again",
                    part.name
                );
            }
        }
        Ok(())
    }

    /// Lets everybody work, and kills and freezes who is drawn. What was done, and how often.
    async fn trade(
        &mut self,
        random: &mut Random,
        database: Option<&Database>,
    ) -> anyhow::Result<BTreeMap<&'static str, u64>> {
        let end = Instant::now() + Duration::from_secs(self.options.seconds);
        let mut harm = BTreeMap::new();
        let mut next = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            self.look()?;
            if Instant::now() < next {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let back = Duration::from_millis(random.below(700));
            let done = match random.below(22) {
                0..=3 => {
                    draw(&mut self.gateways, random).kill(back)?;
                    "gateways_killed"
                }
                4..=8 => {
                    draw(&mut self.sequencers, random).kill(back)?;
                    "sequencers_killed"
                }
                9..=11 => {
                    let time = LEASE / 2 + Duration::from_millis(random.below(2_500));
                    draw(&mut self.sequencers, random).freeze(time)?;
                    "sequencers_frozen"
                }
                12..=14 => {
                    draw(&mut self.engines, random).kill(back)?;
                    "engines_killed"
                }
                15..=17 => {
                    self.server.kill(back)?;
                    "server_killed"
                }
                18..=19 => {
                    let state = self.switches.look().await;
                    match state.and_then(|state| state.leader) {
                        Some(leader) if self.switches.ask(leader.epoch).await? => {
                            "sequencers_asked_to_hand_over"
                        }
                        _ => continue,
                    }
                }
                _ => match database {
                    Some(database) => {
                        database.ask("crash")?;
                        std::thread::sleep(back);
                        database.start()?;
                        "database_killed"
                    }
                    None => continue,
                },
            };
            *harm.entry(done).or_default() += 1;
            next = Instant::now() + Duration::from_millis(200 + random.below(800));
        }
        Ok(harm)
    }

    /// Has another sequencer become the active one, by a plan and by a kill, while nothing else is harmed.
    async fn switch(&mut self) -> anyhow::Result<()> {
        eprintln!("exchange: only active sequencers are killed any more");
        for part in self.parts() {
            part.due = Instant::now();
        }
        let ledger = ledger::open(&self.ledger, &self.endpoint, None).await?;
        let mut over = Epoch::default();
        for _ in 0..(self.options.seconds / 20).max(1) {
            for end in [End::Planned, End::Killed] {
                let leader = self.calm(&ledger, over).await?;
                match end {
                    End::Planned if !self.switches.ask(leader.epoch).await? => continue,
                    End::Planned => {}
                    End::Killed => {
                        let sequencers = &mut self.sequencers;
                        for active in sequencers
                            .iter_mut()
                            .filter(|it| it.is_called(&leader.name))
                        {
                            active.kill(Duration::ZERO)?;
                        }
                    }
                }
                over = leader.epoch;
                self.switches.ended(over, end);
            }
        }
        self.calm(&ledger, over).await.map(drop)
    }

    /// Waits until one sequencer is active in a term behind that one and has sequenced something, and the other stands by.
    async fn calm(&mut self, ledger: &AnyLedger, over: Epoch) -> anyhow::Result<Leader> {
        let until = Instant::now() + END_WITHIN;
        let mut first = None;
        loop {
            ensure!(Instant::now() < until, "no sequencer takes over");
            self.look()?;
            let (state, head) = (self.switches.look().await, ledger.head().await);
            let is_there = |name| self.sequencers.iter().any(|it| it.is_called(name));
            if let (Some(state), Ok(head)) = (state, head)
                && let Some(leader) = state.leader
                && leader.epoch == head.epoch
                && leader.epoch > over
                && is_there(&leader.name)
                && state.candidates.iter().any(is_there)
            {
                match first {
                    Some((epoch, id)) if epoch == head.epoch => {
                        if head.sequence_id > id {
                            return Ok(leader);
                        }
                    }
                    _ => first = Some((head.epoch, head.sequence_id)),
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets everybody finish what there is.
    fn end(&mut self) -> anyhow::Result<()> {
        eprintln!("exchange: nothing is killed any more");
        let until = Instant::now() + END_WITHIN;
        for part in self.parts() {
            part.due = Instant::now();
        }
        self.look()?;
        self.look()?;
        // A gateway sends until its input ends, and then what was not answered.
        let mut left = std::mem::take(&mut self.gateways);
        for gateway in &mut left {
            if let Some(child) = &mut gateway.child {
                drop(child.stdin.take());
            }
        }
        while !left.is_empty() {
            ensure!(Instant::now() < until, "{} does not end", left[0].name);
            let mut running = Vec::new();
            for mut gateway in left {
                match gateway.look()? {
                    None => running.push(gateway),
                    Some(status) => {
                        let (name, words) = (&gateway.name, gateway.last_words());
                        ensure!(status.success(), "{name} has ended with {status}: {words}");
                    }
                }
            }
            left = running;
            self.look()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        // One more sequencer takes over, and ends when there is nothing more to do.
        for sequencer in &mut self.sequencers {
            sequencer.signal("-TERM")?;
        }
        for mut sequencer in std::mem::take(&mut self.sequencers) {
            while let Some(child) = &mut sequencer.child {
                let name = &sequencer.name;
                ensure!(Instant::now() < until, "{name} does not end");
                match child.try_wait()? {
                    None => std::thread::sleep(Duration::from_millis(20)),
                    Some(_) => break,
                }
            }
        }
        let mut last = sequence(
            &self.options.lockgate,
            &self.ledger,
            &self.endpoint,
            &self.queues,
        );
        let log = self.folder.join("sequencer-last.log");
        let mut last = last
            .arg("--until-empty")
            .stderr(File::create(&log)?)
            .spawn()?;
        loop {
            self.look()?;
            if let Some(status) = last.try_wait()? {
                let words = fs::read_to_string(log)?;
                ensure!(status.success(), "the last sequencer: {status}: {words}");
                return Ok(());
            }
            if Instant::now() > until {
                last.kill()?;
                last.wait()?;
                bail!(
                    "the last sequencer does not end: {}",
                    fs::read_to_string(log)?
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Seals the ledger, so the engines end, and compares everything with everything.
    async fn judge(&mut self, harm: &BTreeMap<&'static str, u64>) -> anyhow::Result<bool> {
        let ledger = ledger::open(&self.ledger, &self.endpoint, None).await?;
        let head = ledger.seal(Epoch(ledger.head().await?.epoch.0)).await?;
        let until = Instant::now() + END_WITHIN;
        let mut kept = Vec::new();
        for (engine, number) in self.engines.iter_mut().zip(1..) {
            let status = loop {
                ensure!(Instant::now() < until, "{} does not end", engine.name);
                match engine.look()? {
                    Some(status) => break status,
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            let (name, words) = (&engine.name, engine.last_words());
            ensure!(status.success(), "{name} has ended with {status}: {words}");
            kept.push(Kept::read(&state(&self.folder, number))?);
        }

        // The ledger, from its first event on.
        let (mut replayed, mut chain, mut gaps) = (Replayed::default(), Chain::START, 0);
        while chain.sequence_id < head.sequence_id {
            let read = ReadLedger {
                after: chain.sequence_id,
                limit: 1_000,
                wait: Duration::ZERO,
            };
            let page = match ledger.read(read).await {
                Err(error @ LedgerError::Unavailable { .. }) => {
                    ensure!(Instant::now() < until, "{error}");
                    continue;
                }
                page => page?,
            };
            for event in &page.events {
                if chain.follow(event).is_err() {
                    gaps += 1;
                    chain = Chain {
                        hash: event.hash,
                        ..Chain::behind(event.sequence_id)
                    };
                }
                self.switches.follow(event);
                replayed.apply(event)?;
            }
        }

        // What the gateways were answered.
        let (mut transfers, mut lost, mut orders) = (0_u64, 0_u64, Vec::new());
        for number in 1..=GATEWAYS {
            let journal = Journal::read(&journal(&self.folder, number))?;
            for (id, (_, answered)) in &journal.transfers {
                transfers += 1;
                let found = ledger.find(UniqueId::new(id)?).await?;
                if *answered && (found.is_none() || !replayed.market.transfers.contains_key(id)) {
                    lost += 1;
                }
            }
            orders.extend(journal.orders);
        }
        let mut there = HashSet::new();
        let twice = replayed
            .orders
            .iter()
            .filter(|id| !there.insert(*id))
            .count();
        let lost_orders = orders.iter().filter(|id| !there.contains(id)).count();
        let markets = || {
            kept.iter()
                .map(|kept| &kept.market)
                .chain([&replayed.market])
        };
        let applied_twice = markets().flat_map(|market| market.transfers.values());
        let applied_twice = applied_twice.filter(|times| **times != 1).count();
        let hashes = markets().map(|market| market.hash());
        let hashes = hashes.collect::<anyhow::Result<Vec<_>>>()?;
        let agree = hashes.iter().all(|hash| *hash == hashes[0]);
        let conserved = markets().all(crate::market::Market::is_conserved);
        let holds = gaps == 0
            && (lost, applied_twice, twice, lost_orders) == (0, 0, 0, 0)
            && agree
            && conserved
            && head.sequence_id > SequenceId::START;
        let of_engines = |of: fn(&Kept) -> u64| kept.iter().map(of).sum::<u64>();
        let line = json!({
            "holds": holds,
            "seed": self.options.seed,
            "seconds": self.options.seconds,
            "events": head.sequence_id.0,
            "gaps": gaps,
            "transfers": transfers,
            "transfers_lost": lost,
            "transfers_applied_twice": applied_twice,
            "orders_lost": lost_orders,
            "orders_twice": twice,
            "trades": replayed.market.trades(),
            "engines_agree": agree,
            "state_hashes": hashes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "money_conserved": conserved,
            "engine_starts": of_engines(|kept| kept.starts),
            "feed_lost": of_engines(|kept| kept.lost),
            "feed_repeated": of_engines(|kept| kept.repeated),
            "harm": harm,
            "switch_ms": self.switches.figures(),
        });
        println!("{line}");
        Ok(holds)
    }
}

fn draw<'p>(parts: &'p mut [Part], random: &mut Random) -> &'p mut Part {
    let at = usize::try_from(random.below(parts.len() as u64)).unwrap_or_default();
    &mut parts[at]
}

fn sequence(lockgate: &Path, ledger: &str, endpoint: &str, queues: &[String]) -> Command {
    let mut sequence = Command::new(lockgate);
    sequence.args(["sequence", "--from", "orders.fifo", "--endpoint", endpoint]);
    sequence.args(["--lease", &format!("{}s", LEASE.as_secs())]);
    for queue in queues {
        sequence.args(["--to", queue]);
    }
    sequence.env("LOCKGATE_LEDGER", ledger);
    sequence
}

fn journal(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("gateway-{number}.journal"))
}

fn state(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("engine-{number}.json"))
}

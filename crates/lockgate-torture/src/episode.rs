//! One data folder from its making to its empty end, with faults of one kind in between.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use crate::{
    Fault, FileSystem,
    checker::{self, Problem, Promise},
    command::run,
    faults,
    figures::Figures,
    history::{EventKind, History},
    random::{Random, fresh_seed},
    server::{Launch, Server, log_tail},
    volume::{self, Volume},
    workload::Workload,
};

/// No single answer may take so long; a run that shows none for this time has hung.
const STALL_MAX: Duration = Duration::from_secs(90);
/// What every process on this machine takes for the identity of its boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// What a server says of a log that lost something in the middle, where no fault here put damage.
const DAMAGE: [&str; 3] = ["is damaged", "were lost to crashes", "make no sense"];

/// What to do.
#[derive(Clone, Debug)]
pub struct Episode {
    /// The fault; each episode has one.
    pub fault: Fault,
    /// Where it strikes; not used by kills.
    pub file_system: FileSystem,
    pub rounds: u64,
    /// Repeats the choices of an episode, as far as the scheduler lets it.
    pub seed: u64,
    /// The `lockgate` binary.
    pub binary: PathBuf,
}

/// What a fault works on.
pub(crate) struct Stage {
    pub(crate) rounds: u64,
    pub(crate) random: Random,
    pub(crate) history: History,
    pub(crate) server: Server,
    pub(crate) workload: Workload,
    pub(crate) figures: Figures,
    boot_id: Option<PathBuf>,
}

impl Episode {
    /// One with a few rounds and a seed nobody chose, on ext4 where it needs a file system.
    pub fn new(fault: Fault, binary: PathBuf) -> Self {
        Self {
            fault,
            file_system: FileSystem::Ext4,
            rounds: 4,
            seed: fresh_seed(),
            binary,
        }
    }

    /// Runs it to its end; broken promises and failures of the run are in the figures.
    ///
    /// Leaves log and history behind if something was wrong, and says where. Stops early, and cleans
    /// up, when the process is told to end.
    ///
    /// # Errors
    /// If it was told to end, or what it found could not be written down.
    pub fn run(&self) -> Result<Figures> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        // Everything that starts processes runs on this thread: they end with it.
        runtime.block_on(self.play())
    }

    async fn play(&self) -> Result<Figures> {
        let began = Instant::now();
        let mut folder = tempfile::Builder::new()
            .prefix("lockgate-torture.")
            .tempdir()?;
        let history = History::default();
        let mut figures = Figures {
            fault: self.fault,
            file_system: self.fault.needs_volume().then_some(self.file_system),
            episodes: 1,
            ..Figures::default()
        };
        let log = folder.path().join("server.log");
        let result = tokio::select! {
            result = self.perform(folder.path(), &history, &mut figures) => result,
            () = stalled(&history) => Err(anyhow!("no answer came for {STALL_MAX:?}")),
            () = told_to_end() => bail!("told to end"),
        };
        let mut report = history.with(|records| checker::check(records));
        if result.is_err() {
            // A run that did not come to its end left messages behind: those are no losses.
            report
                .problems
                .retain(|problem| problem.broken != Promise::Kept);
        }
        figures.judged(&report);
        for line in damage(&log) {
            let text = format!("damage is reported where none was made: {line}");
            figures.broken(&Problem {
                broken: Promise::Served,
                text,
            });
        }
        if let Err(error) = &result {
            figures.problems.insert(0, format!("{error:#}"));
        }
        figures.seconds = began.elapsed().as_secs_f64();
        if !figures.problems.is_empty() {
            figures.failed_seeds.push(self.seed);
            keep_evidence(&mut folder, &history, &figures)?;
        }
        let Self { fault, seed, .. } = self;
        let place = figures
            .file_system
            .map_or(String::new(), |it| format!(" on {it}"));
        let (injected, effective) = (figures.injected, figures.effective);
        eprintln!(
            "{fault}{place}, seed {seed}: {injected} injected, {effective} effective; {report}"
        );
        Ok(figures)
    }

    async fn perform(&self, folder: &Path, history: &History, figures: &mut Figures) -> Result<()> {
        let mut volume = self.volume(folder)?;
        let mut random = Random::new(self.seed);
        let data = volume.as_ref().map_or(folder.to_owned(), Volume::path);
        let boot_id = volume.as_ref().map(|_| bind_boot_id(folder)).transpose()?;
        let server = Server::start(Launch {
            binary: self.binary.clone(),
            data: data.join("data"),
            log: folder.join("server.log"),
            arguments: self.fault.arguments(),
            tied: volume.is_some(),
        })?;
        let size = self.fault.size();
        let workload = Workload::start(server.address(), history, &mut random, size).await?;
        let mut stage = Stage {
            rounds: self.rounds,
            random,
            history: history.clone(),
            server,
            workload,
            figures: figures.clone(),
            boot_id,
        };
        let result = match faults::run(self.fault, &mut stage, volume.as_mut()).await {
            Ok(()) => stage.finish().await,
            failed => failed,
        };
        stage.figures.recovered_within(stage.server.recovery_max());
        stage.figures.memory_bytes_max = stage.server.memory_max();
        stage.figures.in_snapshot = stage.server.in_snapshot();
        *figures = stage.figures.clone();
        result
    }

    fn volume(&self, folder: &Path) -> Result<Option<Volume>> {
        if !self.fault.needs_volume() {
            return Ok(None);
        }
        ensure!(
            in_namespace()?,
            "file systems are mounted only in a mount namespace of one's own"
        );
        let volume = match self.fault.memory() {
            Some(memory) => Volume::create_thin(folder, self.file_system, VOLUME_BYTES, memory),
            None => Volume::create(folder, self.file_system, self.fault.volume_bytes()),
        };
        volume.map(Some).context("making a file system")
    }
}

/// Bytes of a volume that is large enough for XFS, and sparse.
pub(crate) const VOLUME_BYTES: u64 = 1 << 30;

impl Stage {
    /// Ends with empty queues, also after one more kill.
    async fn finish(&mut self) -> Result<()> {
        self.workload.drain().await.context("draining the queues")?;
        // What was acknowledged last must be gone for good too.
        self.server
            .restart_after_kill()
            .context("start after the last kill")?;
        self.workload.expect_empty().await
    }

    /// Lets the next server believe that the machine was started anew.
    pub(crate) fn new_boot(&mut self) -> Result<()> {
        let path = self.boot_id.as_ref().context("no boot id of our own")?;
        write_boot_id(path, &mut self.random)
    }

    /// Notes a broken promise that the history cannot show.
    pub(crate) fn broken(&mut self, text: impl Into<String>) {
        let (broken, text) = (Promise::Served, text.into());
        self.figures.broken(&Problem { broken, text });
    }

    /// How many requests nobody was told the outcome of, so far.
    pub(crate) fn unknown(&self) -> usize {
        self.history.with(|records| records.unknown())
    }

    /// Notes a fault; it had an effect if requests have lost their answers since there were
    /// `unknown` of them.
    pub(crate) fn injected(&mut self, unknown: usize) {
        self.figures.injected += 1;
        self.figures.effective += u64::from(self.unknown() > unknown);
    }

    /// SIGKILL, and a note of it.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let from = self.history.now();
        self.server.kill()?;
        self.figures.kills += 1;
        self.history.happened(EventKind::Kill, from);
        Ok(())
    }
}

/// Runs this program again, with the same arguments, in a mount namespace of its own, unless that is
/// done already. What it mounts goes with it, and it ends with its parent.
///
/// # Errors
/// If that is not possible. On success in the outer process it does not return.
pub fn enter_namespace() -> Result<()> {
    if in_namespace()? {
        return Ok(());
    }
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .args(["setpriv", "--pdeathsig", "TERM", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(OUTSIDE, namespace()?)
        .exec();
    Err(error).context("could not start unshare")
}

/// Makes, breaks and mends a file system of each kind, to see whether that works here.
///
/// # Errors
/// What does not work.
pub fn rehearse() -> Result<()> {
    ensure!(
        in_namespace()?,
        "file systems are mounted only in a mount namespace of one's own"
    );
    volume::rehearse()
}

/// Names the mount namespace that was left, for the process that was started in another one.
const OUTSIDE: &str = "LOCKGATE_TORTURE_OUTSIDE";

fn in_namespace() -> Result<bool> {
    let inside = namespace()?;
    Ok(std::env::var_os(OUTSIDE).is_some_and(|outside| *outside != *inside))
}

fn namespace() -> Result<PathBuf> {
    fs::read_link("/proc/self/ns/mnt").context("reading the mount namespace")
}

/// Puts a boot id of our own over the kernel's, for this namespace.
fn bind_boot_id(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("boot_id");
    write_boot_id(&path, &mut Random::new(fresh_seed()))?;
    run(Command::new("mount").arg("--bind").arg(&path).arg(BOOT_ID))?;
    Ok(path)
}

fn write_boot_id(path: &Path, random: &mut Random) -> Result<()> {
    let (high, low) = (random.below(1 << 32), random.below(1 << 48));
    let id = format!("{high:08x}-0000-4000-8000-{low:012x}\n");
    fs::write(path, id).context("writing a boot id")
}

fn damage(log: &Path) -> Vec<String> {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines = log.lines();
    lines
        .filter(|line| DAMAGE.iter().any(|sign| line.contains(sign)))
        .map(str::to_owned)
        .collect()
}

fn keep_evidence(folder: &mut TempDir, history: &History, figures: &Figures) -> Result<()> {
    folder.disable_cleanup(true);
    let path = folder.path();
    history.with(|records| fs::write(path.join("history.txt"), format!("{records:#?}")))?;
    for problem in &figures.problems {
        eprintln!("  {problem}");
    }
    eprintln!(
        "server log and history are in {}; the end of the log:\n{}",
        path.display(),
        log_tail(&path.join("server.log"))
    );
    Ok(())
}

/// Returns when the history has not grown for [`STALL_MAX`].
async fn stalled(history: &History) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(STALL_MAX).await;
        let length = history.with(|records| records.answered());
        if length == seen {
            return;
        }
        seen = length;
    }
}

/// Returns at SIGINT or SIGTERM.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let both = signal(SignalKind::interrupt()).and_then(|interrupt| {
        let terminate = signal(SignalKind::terminate())?;
        Ok((interrupt, terminate))
    });
    let Ok((mut interrupt, mut terminate)) = both else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

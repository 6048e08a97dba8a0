//! Which episodes run, and several of them at a time, each in a process of its own.

use std::{
    collections::BTreeMap,
    io::Read as _,
    process::{Child, Command},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use lockgate_torture::{Fault, Figures, FileSystem};
use rustix::process::{Pid, Signal, kill_process};

/// An episode that takes longer has hung, and with it whatever should have noticed.
const EPISODE_MAX: Duration = Duration::from_secs(20 * 60);
/// For an episode that is told to end.
const CLEAN_UP_MAX: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);

/// How much is to be done.
pub(crate) enum Amount {
    /// Enough for a test suite.
    Short,
    /// So many faults of each kind on each file system.
    Rounds(u64),
    /// In turn, until the time is over.
    Time(Duration),
}

/// An episode to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) fault: Fault,
    pub(crate) file_system: FileSystem,
    pub(crate) rounds: u64,
}

/// Episodes in the order in which they start.
pub(crate) struct Plan {
    jobs: Vec<Job>,
    /// Start over until then.
    time: Option<Duration>,
}

/// What came of it.
pub(crate) struct Outcome {
    /// By fault and file system.
    pub(crate) faults: Vec<Figures>,
    /// Episodes that did not come to a verdict.
    failures: u64,
    pub(crate) took: Duration,
}

impl Outcome {
    pub(crate) fn good(&self) -> bool {
        self.failures == 0 && self.faults.iter().all(Figures::good)
    }
}

impl Plan {
    pub(crate) fn new(faults: &[Fault], amount: Amount) -> Self {
        let mut jobs = Vec::new();
        // Those that wait most come first, so that the others fill their time.
        let mut faults = faults.to_vec();
        faults.sort_by_key(|fault| std::cmp::Reverse(*fault));
        for fault in faults {
            let places: &[FileSystem] = match fault {
                Fault::Kill => &[FileSystem::Ext4],
                _ => &FileSystem::ALL,
            };
            for &file_system in places {
                let job = |rounds| Job {
                    fault,
                    file_system,
                    rounds,
                };
                let episode = rounds_of_an_episode(fault);
                match amount {
                    Amount::Short => jobs.push(job(rounds_of_a_short_run(fault, file_system))),
                    Amount::Time(_) => jobs.push(job(episode)),
                    Amount::Rounds(rounds) => {
                        let whole = (0..rounds / episode).map(|_| job(episode));
                        let rest = (rounds % episode > 0).then(|| job(rounds % episode));
                        jobs.extend(whole.chain(rest));
                    }
                }
            }
        }
        jobs.retain(|job| job.rounds > 0);
        let time = match amount {
            Amount::Time(time) => Some(time),
            Amount::Short | Amount::Rounds(_) => None,
        };
        Self { jobs, time }
    }

    /// Runs it, `lanes` episodes at a time. Ends early, in order, at SIGINT and SIGTERM.
    pub(crate) fn run(
        &self,
        lanes: usize,
        command: &(dyn Fn(&Job) -> Result<Command> + Sync),
    ) -> Result<Outcome> {
        let began = Instant::now();
        let stop = AtomicBool::new(false);
        let next = Mutex::new(0_usize);
        let done: Mutex<BTreeMap<(Fault, FileSystem), Figures>> = Mutex::default();
        let failures = Mutex::new(0);
        let take = || {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            let over = match self.time {
                Some(time) => began.elapsed() >= time,
                None => *next >= self.jobs.len(),
            };
            if over || stop.load(Ordering::Relaxed) {
                return None;
            }
            let job = self.jobs.get(*next % self.jobs.len().max(1)).copied();
            *next += 1;
            job
        };
        let lane = || {
            while let Some(job) = take() {
                let result = command(&job).and_then(|mut command| play(&mut command, &stop));
                match result {
                    Ok(figures) => {
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        let known = done.entry((job.fault, job.file_system));
                        let known = known.or_insert_with(|| Figures {
                            fault: figures.fault,
                            file_system: figures.file_system,
                            ..Figures::default()
                        });
                        known.merge(&figures);
                    }
                    Err(error) => {
                        eprintln!("{} on {}: {error:#}", job.fault, job.file_system);
                        *failures.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                    }
                }
            }
        };
        thread::scope(|scope| -> Result<()> {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let mut interrupt = signal(SignalKind::interrupt())?;
                let mut terminate = signal(SignalKind::terminate())?;
                while !lanes.iter().all(thread::ScopedJoinHandle::is_finished) {
                    tokio::select! {
                        _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
                        _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
                        () = tokio::time::sleep(POLL) => {}
                    }
                }
                Ok(())
            })
        })?;
        if stop.load(Ordering::Relaxed) {
            bail!("told to end");
        }
        let faults = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Outcome {
            faults: faults.into_values().collect(),
            failures: failures
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner),
            took: began.elapsed(),
        })
    }
}

/// So many faults share a history: enough to build on each other, few enough to check at once.
fn rounds_of_an_episode(fault: Fault) -> u64 {
    match fault {
        Fault::Kill => 50,
        Fault::Cut => 20,
        Fault::Thin | Fault::Freeze | Fault::Full => 4,
    }
}

fn rounds_of_a_short_run(fault: Fault, file_system: FileSystem) -> u64 {
    match (fault, file_system) {
        // The suite has a test of its own for kills.
        (Fault::Kill, _) => 0,
        (Fault::Cut, _) => 10,
        (Fault::Thin, _) => 1,
        (Fault::Freeze, FileSystem::Ext4) => 2,
        (Fault::Full, FileSystem::Ext4) => 3,
        (Fault::Freeze | Fault::Full, FileSystem::Xfs) => 0,
    }
}

/// One line about figures.
pub(crate) fn line(figures: &Figures) -> String {
    let place = figures.file_system.map(|place| place.to_string());
    format!(
        "{:<7}{:<5}{} injected, {} effective, {} sent, {} acknowledged; lost {}, undone {}, reordered {}, \
         two in flight {}, other {}",
        figures.fault.to_string(),
        place.unwrap_or_default(),
        figures.injected,
        figures.effective,
        figures.sent,
        figures.acked,
        figures.lost,
        figures.undone,
        figures.reordered,
        figures.two_in_flight,
        figures.other
    )
}

/// Runs an episode and reads its figures.
fn play(command: &mut Command, stop: &AtomicBool) -> Result<Figures> {
    let mut child = command.spawn().context("could not start an episode")?;
    let began = Instant::now();
    let mut told: Option<Instant> = None;
    loop {
        if child.try_wait()?.is_some() {
            break;
        }
        let late = began.elapsed() > EPISODE_MAX;
        match told {
            None if late || stop.load(Ordering::Relaxed) => {
                tell_to_end(&child)?;
                told = Some(Instant::now());
            }
            Some(told) if told.elapsed() > CLEAN_UP_MAX => {
                child.kill()?;
                bail!("an episode did not end when told to");
            }
            _ => {}
        }
        thread::sleep(POLL);
    }
    let mut said = String::new();
    let stdout = child.stdout.take().context("stdout was asked for")?;
    // Far less than a pipe holds, so it could be left until now.
    stdout.take(1 << 20).read_to_string(&mut said)?;
    let status = child.wait()?;
    serde_json::from_str(&said)
        .with_context(|| format!("an episode without figures ended with {status}"))
}

fn tell_to_end(child: &Child) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process")?;
    kill_process(pid, Signal::TERM).context("SIGTERM")
}

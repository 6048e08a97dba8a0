//! `lockgate lead`: a command that runs in exactly one of many processes.
//!
//! ```text
//! lead                 keeps the lease, forwards signals, ends the group when it is called away
//! `- group             one for COMMAND, --inaugurate and --health; another one for --hand-over
//!    |- watchdog       leads the group; kills it at the deadline that it was told last, and when `lead` has gone
//!    `- COMMAND        a child of `lead`, which the kernel kills with it
//! ```
//! Invariants:
//! - A group has a watchdog before anything runs in it.
//! - The lease is given back when nobody of the group is left, and nobody whom it has started.
//! - Nothing runs in a group when the term is over by this process's clock: this process and the watchdog kill it.

pub(super) mod command;
mod group;
mod kin;
pub(super) mod watchdog;

use std::{
    ffi::{OsStr, OsString},
    future::poll_fn,
    io,
    process::{Command, Stdio},
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_coordination::shell::Pauses;
use lockgate_core::{
    HolderName,
    coordination::{Call, Campaign, CoordinationError, Coordinator as _, EndReason, Tenure as _},
};
use rustix::process::{Pid, Signal, WaitStatus, kill_process};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    signal::unix::{self, SignalKind},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at},
};

use self::group::{Children, Group};
use super::{is_hangup_ignored, listen, runtime};
use crate::{
    args::Lead,
    exit::{Exit, Failure},
    output::note,
    telemetry::{self, LogFormat},
    units::show_duration,
    via::{Via, ViaTenure},
};

/// The signals that go on to the command.
const FORWARDED: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// How often in a row the health check may fail before the term ends.
const FAILURES_MAX: u32 = 3;

/// How long a store is told that a candidate stands no more.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The same of one that has waited as long as it wanted to. What a silent store is not told ends with its lease.
const LEAVE_LATE_WITHIN: Duration = Duration::from_millis(500);

/// How long a store may be silent to a candidate that leads now or not at all, if that is shorter than a lease.
const TRY_WITHIN: Duration = Duration::from_secs(3);

/// How long the output of a hand-over may stay open behind it.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// How long a watchdog may take to start.
const START_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Lead) -> Result<(), Failure> {
    let campaign = campaign(args)?;
    for word in &args.command[..1] {
        command::check(word)?;
    }
    // What is told waits for nobody who reads it.
    telemetry::start(LogFormat::Text, "warn").map_err(|error| {
        Failure::from_error(Exit::Failed, error).context("starting the log's thread")
    })?;
    // The kernel kills a command when the *thread* that has started it ends: this one.
    runtime()?.block_on(async {
        let began = Instant::now();
        let mut signals = Signals::new()?;
        let mut children = Children::new()?;
        let via = tokio::select! {
            biased;
            failure = signals.end() => return Err(failure),
            via = opened(began, patience(campaign.lease, campaign.wait), async || Via::open(&args.settings.0).await) => via?,
        };
        // What the store took to be there is none of the time to wait.
        let campaign = Campaign {
            wait: campaign
                .wait
                .map(|wait| wait.saturating_sub(began.elapsed())),
            ..campaign
        };
        // It is there before it is needed, so a switch does not wait for it.
        let group = started(campaign.notice).await?;
        note(&format!(
            "{} stands for {}",
            campaign.candidate, campaign.election
        ));
        let tenure = tokio::select! {
            biased;
            failure = signals.end() => Err(failure),
            tenure = elected(&via, args, campaign.clone()) => tenure,
        };
        let tenure = match tenure {
            Ok(tenure) => tenure,
            Err(failure) => {
                // Whoever stands behind it would wait for its place to expire.
                let within = match failure.exit() {
                    Exit::NotElected | Exit::StoreUnreachable => LEAVE_LATE_WITHIN,
                    _ => LEAVE_WITHIN,
                };
                let _ = timeout(within, via.left()).await;
                return Err(failure);
            }
        };
        note(&format!(
            "{} leads {} with epoch {}",
            campaign.candidate,
            campaign.election,
            tenure.term().epoch.0
        ));
        let max = via.capabilities().checkpoint_bytes_max;
        let mut reign = Reign {
            args,
            notice: campaign.notice,
            margin: campaign.margin,
            tenure: &tenure,
            signals: &mut signals,
            children: &mut children,
        };
        let ended = reign.work(group).await;
        let handed_over = reign.hand_over(&ended, max).await;
        let reason = ended.reason();
        let (checkpoint, failed) = match handed_over {
            Ok(checkpoint) => (checkpoint, None),
            Err(what) => (
                None,
                Some(format!("--hand-over leaves no checkpoint: {what}")),
            ),
        };
        if let Err(error) = tenure.resign(reason, checkpoint).await {
            note(&format!("the end of the term is not written: {error}"));
        }
        let _ = timeout(LEAVE_WITHIN, via.left()).await;
        match (ended.outcome(), failed) {
            (Ok(()), Some(failed)) => Err(Failure::failed(failed)),
            (outcome, failed) => {
                if let Some(failed) = failed {
                    note(&failed);
                }
                outcome
            }
        }
    })
}

/// How long the store may be silent to one that waits so long for the election: no longer than a lease, or than that.
fn patience(lease: Duration, wait: Option<Duration>) -> Duration {
    match wait {
        None => lease,
        Some(Duration::ZERO) => TRY_WITHIN.min(lease),
        Some(wait) => wait.min(lease),
    }
}

/// A store, as soon as it answers: machines that start together need not start in order.
pub(super) async fn opened<T>(
    began: Instant,
    patience: Duration,
    open: impl AsyncFn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut pauses, mut last) = (Pauses::default(), None);
    let opened = timeout_at(began + patience, async {
        loop {
            match open().await {
                Err(failure) if failure.exit() == Exit::Unreachable => last = Some(failure),
                opened => return opened,
            }
            pauses.wait().await;
        }
    })
    .await;
    opened.unwrap_or_else(|_| {
        Err(last.map_or_else(
            || silent(patience),
            |last| last.exits(Exit::StoreUnreachable),
        ))
    })
}

/// Stands until it leads. It gives up a store that is silent by itself; but one that leads now or not at all is given up here.
async fn elected(via: &Via, args: &Lead, campaign: Campaign) -> Result<ViaTenure, Failure> {
    let patience = match campaign.wait {
        Some(Duration::ZERO) => patience(campaign.lease, campaign.wait),
        _ => Duration::MAX,
    };
    match timeout(patience, via.campaign(campaign)).await {
        Ok(elected) => elected.map_err(|error| not_elected(args, error)),
        Err(_) => Err(silent(patience)),
    }
}

fn silent(patience: Duration) -> Failure {
    let what = format!(
        "the store has not answered within {}",
        show_duration(patience)
    );
    Failure::new(Exit::StoreUnreachable, what)
}

fn campaign(args: &Lead) -> Result<Campaign, Failure> {
    let candidate = match &args.name {
        Some(name) => name.clone(),
        None => own_name()?,
    };
    let campaign = Campaign {
        lease: args.lease,
        margin: args.margin.unwrap_or(args.lease / 10),
        notice: args.notice.unwrap_or(args.lease / 5),
        wait: match args.try_once {
            true => Some(Duration::ZERO),
            false => args.wait,
        },
        ..Campaign::new(args.election.clone(), candidate)
    };
    campaign.check()?;
    Ok(campaign)
}

/// The host and the process.
pub(super) fn own_name() -> Result<HolderName, Failure> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("{}-{}", host.trim(), std::process::id());
    HolderName::new(&name).map_err(|error| {
        Failure::usage(format!(
            "{name:?} cannot be the name of a candidate: {error}"
        ))
        .hint("say --name NAME")
    })
}

async fn started(notice: Duration) -> Result<Group, Failure> {
    let group = timeout(START_WITHIN, Group::start(notice)).await;
    let group = group.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    group.map_err(|error| Failure::from_error(Exit::Failed, error).context("starting the watchdog"))
}

fn not_elected(args: &Lead, error: CoordinationError) -> Failure {
    match error {
        CoordinationError::Unknown { .. } | CoordinationError::Unavailable { .. } => {
            Failure::from_error(Exit::StoreUnreachable, error)
        }
        // With the time until the store was there.
        CoordinationError::NotElected { election, .. } => CoordinationError::NotElected {
            election,
            wait: args.wait.unwrap_or_default(),
        }
        .into(),
        other => other.into(),
    }
}

/// The signals that go on to the command, as they come.
struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    fn new() -> Result<Self, Failure> {
        // Under `nohup` a hang-up stays ignored.
        let heard = FORWARDED
            .iter()
            .filter(|signal| **signal != Signal::HUP || !is_hangup_ignored());
        let listened = heard.map(|signal| {
            let kind = SignalKind::from_raw(signal.as_raw());
            Ok((*signal, listen(kind)?))
        });
        Ok(Self(listened.collect::<Result<_, Failure>>()?))
    }

    /// The next one. Cancel safe.
    async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that ends what waits. Cancel safe.
    async fn end(&mut self) -> Failure {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return Failure::passed_on(by_signal(signal));
            }
        }
    }
}

/// Whether a signal ends what gets it.
fn ends(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// The code of who was ended by a signal, as a shell has it.
fn by_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(255)
}

/// What has ended a term before its command ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    /// A signal to `lead`, which went on to the command.
    Signal(Signal),
    /// Somebody has asked for a switch.
    Asked(HolderName),
    LeaseLost,
    /// What failed.
    Failed(String),
}

/// What is known of the end of a command when its hand-over begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It has ended by itself.
    Ended,
    LeaseLost,
    Called,
}

/// How a term ended.
#[derive(Debug)]
struct Ended {
    /// How the command did; `None`: it was not run.
    status: Option<WaitStatus>,
    cause: Option<Cause>,
}

impl Ended {
    fn reason(&self) -> EndReason {
        match (&self.cause, self.status.map(code)) {
            (Some(Cause::Signal(_) | Cause::Asked(_)), _) => EndReason::Asked,
            (Some(Cause::LeaseLost), _) => EndReason::LeaseLost,
            (None, Some(0)) => EndReason::EndOfTerm,
            _ => EndReason::Error,
        }
    }

    fn outcome(self) -> Result<(), Failure> {
        let lost = |why: &str| Failure::new(Exit::LeadershipLost, why);
        match (self.cause, self.status.map(code)) {
            (Some(Cause::LeaseLost), _) => Err(lost("the lease was lost")),
            (Some(Cause::Asked(by)), _) => Err(lost(&format!("{by} has asked for a switch"))),
            (Some(Cause::Failed(what)), _) => Err(Failure::failed(what)),
            (_, Some(0)) => Ok(()),
            (_, Some(code)) => Err(Failure::passed_on(code)),
            (Some(Cause::Signal(signal)), None) => Err(Failure::passed_on(by_signal(signal))),
            (None, None) => Err(Failure::failed("the command was not run")),
        }
    }
}

/// The code of a command as a shell has it.
fn code(status: WaitStatus) -> u8 {
    let signal = status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or(signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
}

fn is_success(status: WaitStatus) -> bool {
    code(status) == 0
}

/// What is spoken of a process that has failed.
fn failure(what: &str, status: WaitStatus) -> String {
    match status.terminating_signal() {
        Some(signal) => format!("{what} was killed by signal {signal}"),
        None => format!("{what} exited with {}", code(status)),
    }
}

/// One term of this process.
struct Reign<'a> {
    args: &'a Lead,
    notice: Duration,
    margin: Duration,
    tenure: &'a ViaTenure,
    signals: &'a mut Signals,
    children: &'a mut Children,
}

impl Reign<'_> {
    /// Runs the command to its end, or to that of the term. Nobody of the group is left then.
    async fn work(&mut self, mut group: Group) -> Ended {
        let ended = match self.inaugurate(&mut group).await {
            Ok(()) => self.command(&mut group).await,
            Err(cause) => Ended {
                status: None,
                cause: Some(cause),
            },
        };
        group.end(self.children).await;
        ended
    }

    async fn inaugurate(&mut self, group: &mut Group) -> Result<(), Cause> {
        let Some(script) = &self.args.inaugurate else {
            return Ok(());
        };
        let term = self.tenure.term();
        let checkpoint = term.last_checkpoint.as_ref().map(|last| last.value.clone());
        let mut shell = self.shell(group, script)?;
        if let Some(before) = &term.predecessor {
            shell.env("LOCKGATE_PREDECESSOR_EPOCH", before.epoch.0.to_string());
        }
        shell.stdin(Stdio::piped());
        let spawned = shell.spawn().and_then(|mut child| {
            let stdin = child
                .stdin
                .take()
                .map(|stdin| pipe::Sender::from_owned_fd(stdin.into()));
            Ok((Pid::from_child(&child), stdin.transpose()?))
        });
        let (pid, stdin) =
            spawned.map_err(|error| Cause::Failed(format!("--inaugurate: {error}")))?;
        if let Some(mut stdin) = stdin {
            tokio::spawn(async move {
                // A script that does not want to read it is no failure.
                let _ = stdin.write_all(&checkpoint.unwrap_or_default()).await;
            });
        }
        match self.run(group, pid, None, None).await {
            Ended {
                cause: Some(cause), ..
            } => Err(cause),
            Ended {
                status: Some(status),
                ..
            } if !is_success(status) => Err(Cause::Failed(failure("--inaugurate", status))),
            _ => Ok(()),
        }
    }

    async fn command(&mut self, group: &mut Group) -> Ended {
        let words = self.args.command.iter().map(OsString::as_os_str);
        let command = match self.command_in(group, words) {
            Ok(mut command) => command.spawn(),
            Err(cause) => {
                return Ended {
                    status: None,
                    cause: Some(cause),
                };
            }
        };
        match command {
            Ok(child) => {
                let health = self.args.health.as_deref();
                self.run(group, Pid::from_child(&child), health, None).await
            }
            Err(error) => Ended {
                status: None,
                cause: Some(Cause::Failed(format!(
                    "the command is not started: {error}"
                ))),
            },
        }
    }

    /// A script of this term, as [`command_in`](Self::command_in).
    fn shell(&self, group: &mut Group, script: &str) -> Result<Command, Cause> {
        self.command_in(group, ["sh", "-c", script].map(OsStr::new))
    }

    /// A command with what it finds in its environment. The watchdog knows how long it may run before it is spawned.
    fn command_in<'w>(
        &self,
        group: &mut Group,
        words: impl IntoIterator<Item = &'w OsStr>,
    ) -> Result<Command, Cause> {
        let (term, fence) = (self.tenure.term(), self.tenure.fence());
        group.tell(fence.remaining().unwrap_or_default());
        fence.check().map_err(|_| Cause::LeaseLost)?;
        // Not what is left of the lease to the store, which may let it last longer.
        let left = fence.remaining().unwrap_or_default() + self.margin;
        let deadline = SystemTime::now() + left;
        let deadline = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut command = group.command(words);
        // Of a term that this process may itself be started in.
        for name in ["LOCKGATE_PREDECESSOR_EPOCH", "LOCKGATE_REASON"] {
            command.env_remove(name);
        }
        command
            .env("LOCKGATE_ELECTION", term.election.as_str())
            .env("LOCKGATE_EPOCH", term.epoch.0.to_string())
            .env("LOCKGATE_FENCE", fence.mark().to_string())
            .env("LOCKGATE_LEASE_DEADLINE", deadline.as_millis().to_string());
        Ok(command)
    }

    /// Waits until a process has ended, and ends it when the leader is called away. `known`: what has called it away before.
    async fn run(
        &mut self,
        group: &mut Group,
        pid: Pid,
        health: Option<&str>,
        known: Option<Known>,
    ) -> Ended {
        let tenure = self.tenure;
        let remaining = || tenure.fence().remaining().unwrap_or_default();
        group.tell(remaining());
        let mut tick = interval(
            (self.args.lease / 20).clamp(Duration::from_millis(20), Duration::from_secs(1)),
        );
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut health = health.map(|script| Health::new(script, self.args.health_every));
        let (mut cause, mut kill_at, mut is_over) = (None, None, false);
        // Who has called the command away waits no longer for a hand-over than for the command.
        if known.is_some_and(|known| known != Known::Ended) {
            kill_at = Some(Instant::now() + self.args.kill_after);
        }
        loop {
            let kill_after = self.args.kill_after;
            let end_it = |why: Cause, cause: &mut Option<Cause>, kill_at: &mut Option<Instant>| {
                cause.get_or_insert(why);
                kill_at.get_or_insert(Instant::now() + kill_after);
            };
            tokio::select! {
                biased;
                () = tenure.over(), if !is_over => {
                    is_over = true;
                    cause = Some(Cause::LeaseLost);
                    group.signal(Signal::KILL);
                }
                (ended, status) = self.children.next() => {
                    if let Some(signal) = status.stopping_signal() {
                        self.stopped(group, pid, ended, signal, &mut cause, &mut kill_at);
                        continue;
                    }
                    // A process that was frozen hears of the end of the command before it hears of that of its lease.
                    let is_late = tenure.fence().check().is_err();
                    if ended == pid {
                        let cause = if is_late { Some(Cause::LeaseLost) } else { cause };
                        return Ended { status: Some(status), cause };
                    } else if is_late {
                        continue;
                    } else if ended == group.watchdog() {
                        // Nobody would end the command if this process froze.
                        end_it(Cause::Failed(failure("the watchdog", status)), &mut cause, &mut kill_at);
                        group.signal(Signal::KILL);
                    } else if let Some(failed) = health.as_mut().and_then(|it| it.ended(ended, status))
                        && cause.is_none()
                    {
                        note(&failed);
                        end_it(Cause::Failed(failed), &mut cause, &mut kill_at);
                        group.terminate(remaining());
                    }
                }
                () = tenure.lost(), if cause != Some(Cause::LeaseLost) && known != Some(Known::LeaseLost) => {
                    note("the lease is not renewed");
                    cause = Some(Cause::LeaseLost);
                    group.terminate(remaining());
                }
                call = tenure.called(), if cause.is_none() && known.is_none() => match call {
                    Call::Asked { by } => {
                        note(&format!("{by} asks for a switch"));
                        end_it(Cause::Asked(by), &mut cause, &mut kill_at);
                        group.terminate(remaining());
                    }
                    // As above.
                    Call::LeaseLost => {}
                },
                signal = self.signals.next() => {
                    if ends(signal) {
                        end_it(Cause::Signal(signal), &mut cause, &mut kill_at);
                    }
                    group.signal(signal);
                    // So that the watchdog does not tell it again.
                    group.tell(remaining());
                }
                () = at(kill_at) => {
                    kill_at = None;
                    note("the command has not ended in time, and is killed");
                    group.signal(Signal::KILL);
                }
                () = at(health.as_ref().map(|it| it.due)), if cause.is_none() => {
                    if let Some(it) = &mut health
                        && let Ok(shell) = self.shell(group, it.script)
                    {
                        it.start(shell);
                    }
                }
                _ = tick.tick() => group.tell(remaining()),
            }
        }
    }

    /// Runs --hand-over, if there is time, and the command has run: otherwise there is nothing to hand over. What it prints is
    /// the next checkpoint.
    async fn hand_over(
        &mut self,
        ended: &Ended,
        max: usize,
    ) -> Result<Option<bytes::Bytes>, String> {
        match &self.args.hand_over {
            Some(script) if ended.status.is_some() && self.tenure.fence().check().is_ok() => {
                self.handed_over(script, ended, max).await
            }
            _ => Ok(None),
        }
    }

    /// Somebody is stopped, and tells nobody: the lease would be kept, and nothing done.
    fn stopped(
        &self,
        group: &mut Group,
        command: Pid,
        stopped: Pid,
        signal: i32,
        cause: &mut Option<Cause>,
        kill_at: &mut Option<Instant>,
    ) {
        if stopped == group.watchdog() {
            // It must be there if this process freezes.
            let _ = kill_process(stopped, Signal::CONT);
        } else if [Signal::TTIN, Signal::TTOU]
            .map(Signal::as_raw)
            .contains(&signal)
        {
            let why = "the command wants the terminal, which lead keeps for itself: give it another input and output \
                       (such as </dev/null)";
            note(why);
            cause.get_or_insert(Cause::Failed(why.to_owned()));
            kill_at.get_or_insert(Instant::now() + self.args.kill_after);
            group.terminate(self.tenure.fence().remaining().unwrap_or_default());
            // Until then it hears of no other signal.
            group.signal(Signal::CONT);
        } else if stopped == command {
            note("the command is stopped, and keeps the lease; SIGCONT lets it go on");
        }
    }

    async fn handed_over(
        &mut self,
        script: &str,
        ended: &Ended,
        max: usize,
    ) -> Result<Option<bytes::Bytes>, String> {
        let failed = |error: io::Error| error.to_string();
        let group = started(self.notice).await;
        let mut group = group.map_err(|failure| failure.to_string())?;
        // What has ended the command ends nothing here.
        let known = match &ended.cause {
            None => Known::Ended,
            Some(Cause::LeaseLost) => {
                group.runs_to_its_end();
                Known::LeaseLost
            }
            Some(_) => Known::Called,
        };
        let outcome = async {
            let mut shell = self
                .shell(&mut group, script)
                .map_err(|_| "the lease has ended".to_owned())?;
            let spawned = shell
                .env("LOCKGATE_REASON", word(ended.reason()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn();
            let mut child = spawned.map_err(failed)?;
            let reader = match child.stdout.take() {
                Some(stdout) => read(stdout, max).map_err(failed)?,
                None => return Ok(None),
            };
            let pid = Pid::from_child(&child);
            let ended = self.run(&mut group, pid, None, Some(known)).await;
            match ended.status {
                Some(status) if is_success(status) => Ok(Some(reader)),
                Some(status) => Err(failure("it", status)),
                None => Err("it was not run".to_owned()),
            }
        }
        .await;
        // What it has started may hold its output open.
        group.end(self.children).await;
        let Some(mut reader) = outcome? else {
            return Ok(None);
        };
        // Also one that has left the group.
        let Ok(read) = timeout(READ_WITHIN, &mut reader).await else {
            reader.abort();
            return Err("something that it has started holds its output open".to_owned());
        };
        let printed = read.map_err(|error| error.to_string())?.map_err(failed)?;
        match printed.len() {
            0 => Ok(None),
            bytes if bytes > max => Err(format!("it has printed more than {max} bytes")),
            _ => Ok(Some(printed.into())),
        }
    }
}

/// Reads what a script prints, and one byte more than it may be.
fn read(
    stdout: std::process::ChildStdout,
    max: usize,
) -> io::Result<JoinHandle<io::Result<Vec<u8>>>> {
    let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
    Ok(tokio::spawn(async move {
        let mut printed = Vec::new();
        let mut stdout = stdout.take(max as u64 + 1);
        stdout.read_to_end(&mut printed).await?;
        Ok(printed)
    }))
}

/// Never, if there is no such time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

pub(super) fn word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Asked => "asked",
        EndReason::EndOfTerm => "end_of_term",
        EndReason::LeaseLost => "lease_lost",
        EndReason::Error => "error",
    }
}

/// The health check of a command.
struct Health<'a> {
    script: &'a str,
    every: Duration,
    /// When it is run next, or has taken too long.
    due: Instant,
    running: Option<Pid>,
    /// Whom the one that runs has started has this.
    mark: String,
    /// It was killed because it took too long.
    is_late: bool,
    failures: u32,
}

impl<'a> Health<'a> {
    fn new(script: &'a str, every: Duration) -> Self {
        Self {
            script,
            every,
            due: Instant::now() + every,
            running: None,
            mark: String::new(),
            is_late: false,
            failures: 0,
        }
    }

    /// Runs it again. The one before has taken too long if it still runs: it is killed, and so it fails.
    fn start(&mut self, mut shell: Command) {
        self.due = Instant::now() + self.every;
        if self.running.is_some() {
            self.is_late = true;
            kin::kill(&self.mark);
            return;
        }
        self.mark = kin::new_mark();
        let marks = shell.get_envs().find(|(name, _)| *name == kin::VARIABLE);
        let marks = marks.and_then(|(_, marks)| marks?.to_str());
        let marks = format!("{}:{}", marks.unwrap_or_default(), self.mark);
        shell.env(kin::VARIABLE, marks);
        match shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => self.running = Some(Pid::from_child(&child)),
            Err(error) => note(&format!("--health is not started: {error}")),
        }
    }

    /// Hears that a child has ended. What is wrong, if that was too much.
    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Option<String> {
        if self.running != Some(pid) {
            return None;
        }
        self.running = None;
        if is_success(status) {
            self.failures = 0;
            return None;
        }
        if std::mem::take(&mut self.is_late) {
            // Its successor has waited for it.
            self.due = Instant::now();
        }
        self.failures += 1;
        let failed = failure("--health", status);
        if self.failures < FAILURES_MAX {
            note(&failed);
            return None;
        }
        Some(format!("{failed}, {FAILURES_MAX} times in a row"))
    }
}

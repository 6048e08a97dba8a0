//! What each command does.

pub(crate) mod analyze;
mod backup;
mod bench;
mod check;
mod completions;
mod config;
pub(crate) mod database;
mod dead_letters;
mod dlq;
mod dump;
mod exchange;
mod exchange_apply;
mod forward;
#[cfg(feature = "zookeeper")]
mod import;
mod key;
pub(crate) mod lead;
mod leaders;
mod ledger;
mod message;
mod peek;
mod place;
mod producer;
mod queue;
mod queue_apply;
mod receive;
mod record;
mod restore;
mod schedule;
mod schedule_apply;
pub(crate) mod send;
mod sequence;
mod serve;
mod settle;
pub(crate) mod size;
mod status;
mod transact;
mod unfinished;

use std::{future::Future, thread, time::Duration};

use hyper::Method;
use lockgate_core::coordination::{Fence, FenceMark};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::{
    args::{Command, Dlq},
    client::{CallError, Client, Credentials, Endpoint, not_built},
    exit::{Exit, Failure},
    output::{confirm, count, note, tell},
    settings::{ClientFlags, Resolved, ServeFlags, resolve, table},
    units::millis,
};

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    outlive_file_limit()?;
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Send(args) => send::run(args),
        Command::Receive(args) => receive::run(&args),
        Command::Forward(args) => forward::run(&args),
        #[cfg(feature = "zookeeper")]
        Command::Import(args) => import::run(&args),
        Command::Sequence(args) => sequence::run(&args),
        Command::Ack(args) => watched(move || settle::ack(&args)),
        Command::Peek(args) => watched(move || peek::run(&args)),
        Command::Nack(args) => watched(move || settle::nack(&args)),
        Command::Defer(args) => watched(move || settle::defer(&args)),
        Command::Extend(args) => watched(move || settle::extend(&args)),
        Command::Reject(args) => watched(move || settle::reject(&args)),
        Command::Transact(args) => watched(move || transact::run(&args)),
        Command::Cancel(args) => watched(move || message::cancel(&args)),
        Command::Reschedule(args) => watched(move || message::reschedule(&args)),
        Command::Queue(args) => watched(move || queue::run(args)),
        Command::Key(args) => watched(move || key::run(&args)),
        Command::Dlq(Dlq::Redrive(args)) if !args.dry_run => dlq::redrive(&args),
        Command::Dlq(args) => watched(move || dlq::run(&args)),
        Command::Producer(args) => watched(move || producer::run(&args)),
        Command::Record(args) => watched(move || record::run(&args)),
        Command::Exchange(args) => exchange::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Ledger(args) => watched(move || ledger::run(&args)),
        Command::Lead(args) => lead::run(&args),
        Command::LeadCommand(args) => lead::command::run(&args),
        Command::LeadWatchdog(args) => lead::watchdog::run(&args),
        Command::Leaders(args) => watched(move || leaders::run(&args)),
        Command::Status(args) => watched(move || status::run(&args)),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Check(args) => watched(move || check::run(&args)),
        Command::Dump(args) => watched(move || dump::run(&args)),
        Command::Bench(args) => bench::run(&args),
        Command::Analyze(args) => watched(move || analyze::run(&args)),
        Command::Size(args) => watched(move || size::run(&args)),
        Command::Config(args) => config::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

/// Lets a write beyond the limit to the size of files (`ulimit -f`) fail, which is a full disk to the
/// log and an error to others, instead of ending the process without a word.
fn outlive_file_limit() -> Result<(), Failure> {
    let runtime = runtime()?;
    let _context = runtime.enter();
    // Its handler stays when nobody listens any more.
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    listen(kind).map(drop)
}

/// The process's environment, in which an empty variable counts as not set; but for the fence: a script that has lost its epoch
/// must not write without one.
pub(crate) fn environment(name: &str) -> Option<String> {
    let text = std::env::var(name).ok();
    text.filter(|text| !text.is_empty() || name == "LOCKGATE_FENCE")
}

fn serve_settings(flags: &ServeFlags) -> Result<Resolved, Failure> {
    resolve(&flags.0, &environment)
}

/// A client as the settings say.
fn client(flags: &ClientFlags) -> Result<Client, Failure> {
    client_of(&resolve(&flags.0, &environment)?)
}

fn client_of(settings: &Resolved) -> Result<Client, Failure> {
    let client = client_at(settings.get(&table::ENDPOINT), settings)?;
    Ok(match settings.get(&table::FENCE) {
        Some(FenceMark { election, epoch }) => {
            Client::new(client.inner().fenced(&Fence::new(election, epoch)))
        }
        None => client,
    })
}

/// The same, of another server.
pub(crate) fn client_at(endpoint: Endpoint, settings: &Resolved) -> Result<Client, Failure> {
    let mut builder =
        lockgate_client::Client::builder(endpoint).timeout(settings.get(&table::TIMEOUT));
    if let Some(ca) = settings.get(&table::CA) {
        builder = builder.authorities(ca);
    }
    if let Some(name) = settings.get(&table::CONSUMER) {
        builder = builder.consumer(name);
    }
    if let Some(key) = Credentials::from_environment() {
        builder = builder.credentials(key);
    }
    builder.build_blocking().map(Client::new).map_err(not_built)
}

/// Runs a command that a signal ends where it stands, also while it waits for the reader of its output or
/// for an answer at a terminal. As process 1 of a container it would hear of no signal that it does not ask
/// for.
fn watched(command: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Result<(), Failure> {
    Watch::new()?.over(command)
}

/// Runs what talks to a server within a command that is [`watched`].
fn block_on(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    runtime()?.block_on(work)
}

/// Hears signals from the moment it is made, also while something blocks.
struct Watch {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
}

impl Watch {
    fn new() -> Result<Self, Failure> {
        let runtime = runtime()?;
        let signals = {
            let _context = runtime.enter();
            Signals::new()?
        };
        Ok(Self { runtime, signals })
    }

    /// Does what may block for long on a thread of its own. A signal is a failure at once, though the
    /// thread goes on until the process ends.
    fn over<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            // Nobody hears it if a signal came.
            let _ = sender.send(work());
        });
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                exit = self.signals.next() => Err(Failure::signal(exit)),
                outcome = receiver => {
                    outcome.unwrap_or_else(|_| Err(Failure::failed("the program has panicked")))
                }
            }
        })
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("starting the runtime"))
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind)
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("listening for signals"))
}

/// SIGINT, SIGQUIT and SIGTERM, as the exit codes they end a command with.
pub(crate) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    /// SIGHUP, where it must not end the command at once.
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Hears SIGHUP too, as SIGTERM: of a terminal that is closed. Under `nohup` it stays ignored.
    pub(crate) fn hear_hangup(&mut self) -> Result<(), Failure> {
        if !is_hangup_ignored() {
            self.hangup = Some(listen(SignalKind::hangup())?);
        }
        Ok(())
    }

    /// Waits for the next one. Cancel safe: a signal is not lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.quit.recv() => Exit::Quit,
            _ = self.terminate.recv() => Exit::Terminated,
            () = heard(&mut self.hangup) => Exit::Terminated,
        }
    }
}

async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process had it ignore SIGHUP. Where nobody can tell, it did not.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    ignored.is_some_and(|mask| mask & 1 == 1)
}

/// Pauses between attempts, growing from 50 ms to 1 s, until the time for trying is over. It runs from the
/// first failure: the first attempt may have waited for long.
pub(crate) struct Retry {
    pause: Duration,
    within: Duration,
    until: Option<tokio::time::Instant>,
}

impl Retry {
    const PAUSE_MAX: Duration = Duration::from_secs(1);

    pub(crate) fn new(within: Duration) -> Self {
        Self {
            pause: Duration::from_millis(50),
            within,
            until: None,
        }
    }

    /// Pauses before another attempt, or says that there is to be none.
    pub(crate) async fn again(&mut self) -> bool {
        let now = tokio::time::Instant::now();
        if now + self.pause > *self.until.get_or_insert(now + self.within) {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Self::PAUSE_MAX);
        true
    }
}

/// Refuses a name that is given twice, of which only the last would count.
fn once<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Failure> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Failure::usage(format!("the {what} {name} is given twice")));
        }
    }
    Ok(())
}

/// An instant as the API writes it.
fn instant(at: lockgate_core::WallTime) -> Option<String> {
    let millis = i64::try_from(at.0).ok()?;
    let at = jiff::Timestamp::from_millisecond(millis).ok()?;
    Some(format!("{at:.3}"))
}

/// A name as one part of a path of the API.
fn part(name: &str) -> impl std::fmt::Display {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}

/// What a queue holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Counts {
    ready: u64,
    in_flight: u64,
    delayed: u64,
    #[serde(default)]
    limited_keys: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    states: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A request without a body.
const NOTHING: Option<&()> = None;

impl Counts {
    /// What the queue of that name holds now.
    async fn of(client: &Client, name: &str) -> Result<Self, CallError> {
        #[derive(Deserialize)]
        struct Queue {
            counts: Counts,
        }
        let target = format!("/queues/{}", part(name));
        let Queue { counts } = client.call(Method::GET, &target, NOTHING).await?;
        Ok(counts)
    }

    fn total(self) -> u64 {
        self.ready + self.in_flight + self.delayed
    }
}

/// Says what is about to be lost, and asks unless told not to.
fn agree(yes: bool, name: &str, counts: Counts, question: &str) -> Result<(), Failure> {
    let Counts {
        ready,
        in_flight,
        delayed,
        ..
    } = counts;
    let total = count(counts.total(), "message");
    let holds =
        format!("{name} holds {total} ({ready} ready, {in_flight} in flight, {delayed} delayed).");
    if yes {
        note(&holds);
        return Ok(());
    }
    if confirm(&format!("{holds} {question}"))? {
        return Ok(());
    }
    Err(Failure::failed("not confirmed; nothing was done"))
}

/// Removes all messages of a queue, and says how many there were.
async fn purge(
    client: &Client,
    name: &str,
    yes: bool,
    question: &str,
    done: &str,
    json: bool,
) -> Result<(), Failure> {
    #[derive(Serialize, Deserialize)]
    struct Purged {
        messages: u64,
    }
    agree(yes, name, Counts::of(client, name).await?, question)?;
    let target = format!("/queues/{}/purge", part(name));
    let purged: Purged = client.call(Method::POST, &target, NOTHING).await?;
    let done = format!("{done} {}", count(purged.messages, "message"));
    tell(json, &purged, &done)
}

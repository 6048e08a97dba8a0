//! `lockgate receive --exec`: a command for each message, which is settled by how the command ends.
//!
//! A [worker](lockgate_consumer::Worker) runs the commands. It holds as many messages as it runs, so nothing that
//! is leased waits here, and since the server gives nothing more of a key that is held, messages of one key run
//! one after the other.

use std::{
    collections::{HashMap, HashSet},
    io,
    pin::pin,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use hyper::Method;
use lockgate_consumer::{Failure as Unhandled, Job, Worker};
use serde::Deserialize;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    away::Away,
    command::{self, End, Leased},
    source::{Held, Messages},
    why,
};
use crate::{
    args::Receive,
    client::Client,
    commands::{NOTHING, Signals, client, part},
    exit::{Exit, Failure},
    output::{count, note},
};

/// Commands are never dropped: who interrupts twice kills them.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// As much of a queue as is needed here.
#[derive(Deserialize)]
struct Queue {
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    lease_ms: u64,
}

pub(super) async fn run(
    args: &Receive,
    command: &str,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if command.trim().is_empty() {
        // A shell takes that for a success, of every message there is.
        let what = "the command of --exec is empty: every message would be deleted unseen";
        return Err(Failure::usage(what));
    }
    signals.hear_hangup()?;
    let client = client(&args.settings)?;
    let target = format!("/queues/{}", part(&args.queue));
    let queue: Queue = tokio::select! {
        queue = client.call(Method::GET, &target, NOTHING) => queue?,
        exit = signals.next() => return Err(Failure::signal(exit)),
    };
    let lease = match args.lease {
        Some(lease) => lease,
        None => Duration::from_millis(queue.settings.lease_ms),
    };
    if lease.is_zero() {
        return Err(Failure::usage(format!(
            "leases of {} last 0s, which is over before a command can start",
            args.queue
        ))
        .hint("say how long with --lease; it is extended while the command runs"));
    }
    let concurrency = usize::from(args.concurrency);
    let run = Arc::new(Run {
        queue: args.queue.clone(),
        endpoint: client.endpoint().to_string(),
        target,
        command: command.to_owned(),
        lease,
        retry_delay: args.retry_delay,
        follow: args.follow,
        first_by: Instant::now() + args.wait,
        away: Away::default(),
        client,
        kill: watch::Sender::new(false),
        stopped: watch::Sender::new(false),
        changed: Notify::new(),
        state: Mutex::new(State {
            left: args.max.unwrap_or(u64::MAX),
            ..State::default()
        }),
    });
    let handler = {
        let run = run.clone();
        move |job: Job| {
            let run = run.clone();
            async move { run.handle(job).await }
        }
    };
    let worker = Worker::over(Messages::new(run.clone()))
        .concurrency(concurrency)
        .held_max(concurrency)
        .held_bytes_max(u64::MAX)
        .lease(lease)
        .cancel_grace(FOREVER)
        .start(handler)
        .map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let mut ended = pin!(worker.ended());
    loop {
        tokio::select! {
            biased;
            exit = signals.next() => run.interrupt(exit),
            ended = &mut ended => {
                if ended.left > 0 {
                    run.stop(Failure::failed("the run has ended before its commands"));
                }
                break;
            }
        }
    }
    if !run.state().received && !run.is_stopped() {
        why::tell(&run.client, &run.queue).await;
    }
    run.finish()
}

/// What the source of the messages and their commands share.
pub(super) struct Run {
    pub(super) queue: String,
    endpoint: String,
    /// The queue in the API.
    pub(super) target: String,
    command: String,
    pub(super) lease: Duration,
    retry_delay: Duration,
    pub(super) follow: bool,
    /// Until then a first message is waited for.
    pub(super) first_by: Instant,
    pub(super) client: Client,
    pub(super) away: Away,
    /// Said to all commands at once: you are killed.
    kill: watch::Sender<bool>,
    /// No more messages are asked for.
    stopped: watch::Sender<bool>,
    /// A message has begun or left.
    pub(super) changed: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// Messages that are here, by their id.
    pub(super) held: HashMap<String, Weak<Held>>,
    /// Those of which no command has begun.
    pub(super) waiting: u64,
    /// Commands that run.
    running: u64,
    /// Messages whose command failed, in a run that has an end.
    pub(super) failed: HashSet<String>,
    /// Of those, the ones that have come again since the last new message.
    pub(super) passed_by: HashSet<String>,
    /// Only messages come that have failed: a run that has an end is at it.
    pub(super) only_failed: bool,
    /// Keys whose lease was lost while a command of theirs runs.
    pub(super) lost_keys: HashSet<String>,
    /// Messages that have left.
    pub(super) gone: u64,
    /// How many more may come.
    pub(super) left: u64,
    pub(super) received: bool,
    pub(super) tally: Tally,
    stop: Option<Stop>,
}

/// Why no more messages are asked for.
enum Stop {
    Signal(Exit),
    Failure(Failure),
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) deleted: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    pub(super) gone: u64,
    /// Those whose command failed.
    pub(super) gone_failed: u64,
}

impl Run {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message that nobody else can have before `until`.
    pub(super) fn hold(self: &Arc<Self>, message: Leased, until: Instant) -> Arc<Held> {
        let id = message.id.clone();
        let held = Arc::new(Held::new(self.clone(), message, until));
        let mut state = self.state();
        state.passed_by.clear();
        state.left -= 1;
        state.waiting += 1;
        state.held.insert(id, Arc::downgrade(&held));
        held
    }

    /// Its worker has let go of a message.
    pub(super) fn let_go(&self, message: &Leased, begun: bool) {
        let mut state = self.state();
        state.held.remove(&message.id);
        if let Some(key) = message.key.as_ref().filter(|_| begun) {
            state.lost_keys.remove(key);
        }
        if !begun {
            state.waiting -= 1;
            state.left += 1;
        }
        // Its key goes on: what stands behind it may be new.
        state.gone += 1;
        state.passed_by.clear();
        state.only_failed = false;
        drop(state);
        self.changed.notify_waiters();
    }

    /// A run that has an end does not try the message again.
    pub(super) fn failed_once(&self, id: &str) {
        if !self.follow {
            self.state().failed.insert(id.to_owned());
        }
    }

    pub(super) fn no_queue(&self) -> String {
        format!("queue {} was deleted, and the message with it", self.queue)
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    pub(super) async fn stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender is here.
        let _ = stopped.wait_for(|&stopped| stopped).await;
    }

    fn interrupt(&self, exit: Exit) {
        if self.is_stopped() {
            self.kill.send_replace(true);
            return;
        }
        self.stop_for(Stop::Signal(exit));
    }

    pub(super) fn stop(&self, failure: Failure) {
        self.stop_for(Stop::Failure(failure));
    }

    /// The first reason counts.
    fn stop_for(&self, stop: Stop) {
        let mut state = self.state();
        if state.stop.is_some() {
            return;
        }
        state.stop = Some(stop);
        let running = state.running;
        drop(state);
        self.stopped.send_replace(true);
        self.changed.notify_waiters();
        if running > 0 {
            note(&format!(
                "waiting for {} to end; interrupt again to kill",
                count(running, "command")
            ));
        }
    }

    /// No command can go on.
    pub(super) fn hopeless(&self, why: &str) {
        self.stop(Failure::failed(format!(
            "the command {:?} stopped the run: {why}",
            self.command
        )));
    }

    /// Runs the command of a job. What becomes of its message, the source tells.
    async fn handle(&self, job: Job) -> Result<(), Unhandled> {
        let held = self.held_of(&job).filter(|_| !self.is_stopped());
        let Some(held) = held else {
            return Err(Unhandled::defer(Duration::ZERO));
        };
        let is_first = held.begin();
        {
            let mut state = self.state();
            state.waiting -= u64::from(is_first);
            state.running += 1;
        }
        self.changed.notify_waiters();
        let end = self.execute(&held, &job).await;
        self.state().running -= 1;
        if job.context().why_cancelled().is_some() {
            held.lost();
        }
        match end {
            End::Success => Ok(()),
            End::Failure(why) => Err(Unhandled::retry(why, Some(self.retry_delay))),
            End::NotStarted(why) => {
                self.hopeless(&why);
                // Nothing was tried.
                held.end(|tally| tally.failed += 1);
                Err(Unhandled::defer(Duration::ZERO))
            }
            End::Hopeless(why) => {
                self.hopeless(&why);
                Err(Unhandled::retry(why, Some(self.retry_delay)))
            }
        }
    }

    /// The message of a job, or the pack in which it came: then the job's name has a `#` and a number behind the pack's.
    fn held_of(&self, job: &Job) -> Option<Arc<Held>> {
        let name = job.name()?.to_string();
        let state = self.state();
        let pack = || state.held.get(name.rsplit_once('#')?.0);
        state.held.get(&name).or_else(pack)?.upgrade()
    }

    async fn execute(&self, held: &Held, job: &Job) -> End {
        let member = held.message.member(job);
        let started = command::start(
            &self.command,
            &self.queue,
            &self.endpoint,
            member.as_ref().unwrap_or(&held.message),
            Stdio::inherit(),
        );
        let (mut child, group) = match started.map(|child| (child.id(), child)) {
            Ok((Some(group), child)) => (child, group),
            Ok((None, _)) => return End::NotStarted("it has no process id".to_owned()),
            // It is this message that no command can be started with: its headers are too long for this system,
            // or no text that an environment can hold.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput
                ) =>
            {
                return End::Failure(format!("no command can be started with it: {error}"));
            }
            Err(error) => return End::NotStarted(format!("it cannot be started: {error}")),
        };
        let body = job.body().to_vec();
        let feeding = child
            .stdin
            .take()
            .map(|stdin| tokio::spawn(command::feed(stdin, body)));
        let mut kill = self.kill.subscribe();
        let (mut killed, mut cancelled) = (false, false);
        let status = loop {
            tokio::select! {
                biased;
                status = child.wait() => break status,
                Ok(_) = kill.wait_for(|&kill| kill), if !killed => {
                    killed = true;
                    command::kill(group);
                }
                _ = job.context().cancelled(), if !cancelled => {
                    cancelled = true;
                    held.tell_lost("the lease has ended");
                }
            }
        };
        if let Some(feeding) = feeding {
            // Nobody reads any more.
            feeding.abort();
        }
        match status {
            Ok(status) => command::judge(status),
            Err(error) => End::Failure(format!("waiting for it failed: {error}")),
        }
    }

    fn finish(&self) -> Result<(), Failure> {
        let mut state = self.state();
        let Tally {
            deleted,
            failed,
            lost,
            gone,
            gone_failed,
        } = state.tally;
        let all = deleted + failed + lost + gone;
        let bad = failed + lost + gone_failed > 0;
        if bad || gone > 0 {
            let gone = match gone {
                0 => String::new(),
                _ => format!(
                    ", {gone} gone before this run settled them (settled by the command itself, purged, or \
                     deleted)"
                ),
            };
            note(&format!(
                "{}: {deleted} deleted, {failed} failed and come again, {lost} with a lost lease{gone}",
                count(all, "message")
            ));
        }
        match state.stop.take() {
            Some(Stop::Signal(exit)) => Err(Failure::signal(exit)),
            Some(Stop::Failure(failure)) => Err(failure),
            // Each was told when it happened.
            None if bad => Err(Failure::failed("").told()),
            None => Ok(()),
        }
    }
}

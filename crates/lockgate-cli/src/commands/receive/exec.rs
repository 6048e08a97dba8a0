//! `lockgate receive --exec`: a command for each message, which is settled by how the command ends.
//!
//! A message is asked for only when there is room for its command, one at a time: nothing that is leased
//! waits here, and since the server gives nothing more of a key that is held, messages of one key run one
//! after the other.

use std::{
    collections::HashSet,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hyper::Method;
use lockgate_core::cut_reason;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    ANSWER_GRACE, CALL_WAIT_MAX,
    away::Away,
    command::{self, End, Leased},
    why,
};
use crate::{
    args::Receive,
    client::{CallError, Client},
    commands::{
        NOTHING, Retry, Signals, client, millis, part,
        settle::{self, Outcome, Results},
    },
    exit::{Exit, Failure},
    output::{complain, count, note},
    units::show_duration,
};

/// The longest a lease lasts, however often it is extended, less what a request may take on its way.
const HELD_MAX: Duration =
    Duration::from_millis(lockgate_machine::QueueSettings::LEASE_MAX).saturating_sub(GRACE);
const GRACE: Duration = Duration::from_secs(5);

/// How long a message goes back that comes while another of its key is still at work here, or that has
/// failed in this run: others behind it come meanwhile.
const PASS_BY: Duration = Duration::from_secs(1);

/// So many settles are under way at most, each on a connection of its own.
const SETTLES_MAX: usize = 16;

/// As much of a queue as is needed here.
#[derive(Deserialize)]
struct Queue {
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    lease_ms: u64,
}

#[derive(Deserialize)]
struct Received {
    messages: Vec<Leased>,
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
    let work = Arc::new(Work {
        queue: args.queue.clone(),
        endpoint: client.endpoint().to_string(),
        target,
        command: command.to_owned(),
        lease,
        retry_delay: args.retry_delay,
        away: Away::default(),
        settles: Semaphore::new(SETTLES_MAX),
        client,
    });
    Run::new(args, work).go(signals).await
}

/// What all commands of a run share.
struct Work {
    queue: String,
    endpoint: String,
    /// The queue in the API.
    target: String,
    command: String,
    lease: Duration,
    retry_delay: Duration,
    client: Client,
    settles: Semaphore,
    away: Away,
}

/// What became of a message.
enum Ended {
    Deleted,
    /// It was not there any more when its command had ended: settled by the command itself, dropped, purged,
    /// or deleted with its queue.
    Gone {
        failed: bool,
    },
    /// Its command failed, or was killed, and it comes again.
    Failed,
    /// Its lease was not current any more, so nothing was settled.
    Lost,
    /// It was given back without a try.
    PassedBy,
    /// Its command could not start, or none can go on: the run ends.
    Hopeless(String),
}

struct Done {
    id: String,
    place: String,
    ended: Ended,
}

/// Why no more messages are asked for.
enum Stop {
    Signal(Exit),
    Failure(Failure),
}

#[derive(Default)]
struct Tally {
    deleted: u64,
    failed: u64,
    lost: u64,
    gone: u64,
    /// Those whose command failed.
    gone_failed: u64,
}

type Receiving = Pin<Box<dyn Future<Output = Result<Vec<Leased>, CallError>> + Send>>;

struct Run<'a> {
    args: &'a Receive,
    work: Arc<Work>,
    jobs: JoinSet<Done>,
    /// Said to all commands at once: you are killed.
    kill: watch::Sender<bool>,
    /// Keys and messages at work.
    busy: HashSet<String>,
    /// Messages whose command failed, in a run that has an end.
    failed: HashSet<String>,
    /// Of those, the ones that have come again since the last new message.
    passed_by: HashSet<String>,
    /// Only messages come that have failed: a run that has an end is at it.
    only_failed: bool,
    /// Until then a message comes again that was passed by because its key was busy.
    passed_by_until: Instant,
    left: u64,
    tally: Tally,
    stop: Option<Stop>,
}

impl<'a> Run<'a> {
    fn new(args: &'a Receive, work: Arc<Work>) -> Self {
        Self {
            args,
            work,
            jobs: JoinSet::new(),
            kill: watch::Sender::new(false),
            busy: HashSet::new(),
            failed: HashSet::new(),
            passed_by: HashSet::new(),
            only_failed: false,
            passed_by_until: Instant::now(),
            left: args.max.unwrap_or(u64::MAX),
            tally: Tally::default(),
            stop: None,
        }
    }

    async fn go(mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut receiving: Option<Receiving> = None;
        let first_by = Instant::now() + self.args.wait;
        let mut received = false;
        // Nothing was there: of use again when a command has ended, which may have let a key go on.
        let mut empty = false;
        // A command has ended since the receive under way was asked: what it finds empty may be so no more.
        let mut ended_since = false;
        let mut waiting = why::Waiting::default();
        loop {
            if self.stop.is_some()
                && let Some(answer) = receiving.take()
            {
                self.give_back_what_comes(answer).await;
            }
            let room = self.jobs.len() < usize::from(self.args.concurrency);
            let more = self.left > 0 && !empty && !self.only_failed;
            if self.stop.is_none() && room && more && receiving.is_none() {
                let wait = match (self.args.follow, received) {
                    (true, _) if self.jobs.is_empty() => waiting.wait(),
                    (true, _) => CALL_WAIT_MAX,
                    (false, true) => self
                        .passed_by_until
                        .saturating_duration_since(Instant::now()),
                    (false, false) => first_by.saturating_duration_since(Instant::now()),
                };
                ended_since = false;
                receiving = Some(self.receive(wait));
            }
            if receiving.is_none() && self.jobs.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                exit = signals.next() => {
                    if self.stop.is_some() {
                        self.kill.send_replace(true);
                        continue;
                    }
                    self.stop = Some(Stop::Signal(exit));
                    self.tell_what_runs();
                }
                Some(done) = self.jobs.join_next(), if !self.jobs.is_empty() => {
                    empty = false;
                    ended_since = true;
                    self.count(done);
                }
                answer = next(&mut receiving), if receiving.is_some() => {
                    receiving = None;
                    let messages = match answer {
                        Ok(messages) => messages,
                        Err(error) => {
                            self.stop(Failure::from(error));
                            continue;
                        }
                    };
                    if messages.is_empty() {
                        let now = Instant::now();
                        let waited = now >= self.passed_by_until && (received || now >= first_by);
                        empty = waited && !self.args.follow && !ended_since;
                        if self.args.follow && self.jobs.is_empty() {
                            waiting.tell(&self.work.client, &self.args.queue).await;
                        }
                    }
                    for message in messages {
                        waiting.over(&self.args.queue);
                        received = true;
                        self.begin(message);
                    }
                }
            }
        }
        if !received && self.stop.is_none() {
            why::tell(&self.work.client, &self.args.queue).await;
        }
        self.finish()
    }

    /// One message, if there is one. While following, a server that is away for a moment is waited for.
    fn receive(&self, wait: Duration) -> Receiving {
        let target = format!("{}/receive", self.work.target);
        let wait = wait.min(CALL_WAIT_MAX);
        let body = json!({
            "max": 1, "wait_ms": millis(wait), "lease_ms": millis(self.work.lease),
        });
        let follow = self.args.follow;
        let work = self.work.clone();
        Box::pin(async move {
            let mut retry = Retry::new(work.client.timeout());
            loop {
                let call =
                    work.client
                        .call_within::<Received>(Method::POST, &target, Some(&body), wait);
                let answer = match follow {
                    true => work.away.watch(wait, call).await,
                    false => call.await,
                };
                match answer {
                    Err(error) if follow && error.may_pass() && retry.again().await => {}
                    answer => return answer.map(|answer| answer.messages),
                }
            }
        })
    }

    /// Starts the command of a message, unless that would break the order of its key.
    fn begin(&mut self, message: Leased) {
        let place = message.place().to_owned();
        let has_failed = self.failed.contains(&message.id);
        if has_failed {
            // It comes a second time, with nothing new in between: nothing new is there. Without that a run
            // of many failures would never end, as some are always due again.
            self.only_failed = !self.passed_by.insert(message.id.clone());
        }
        // Its lease was lost while the command went on, the answer that frees its key has not come yet, or
        // it has failed before.
        if self.busy.contains(&place) || has_failed {
            let work = self.work.clone();
            self.jobs.spawn(async move {
                work.give_back(&message, PASS_BY).await;
                Done {
                    id: message.id,
                    place: String::new(),
                    ended: Ended::PassedBy,
                }
            });
            return;
        }
        self.passed_by.clear();
        self.left -= 1;
        self.busy.insert(place.clone());
        let (work, kill) = (self.work.clone(), self.kill.subscribe());
        self.jobs.spawn(async move {
            let id = message.id.clone();
            let ended = work.run(&message, kill).await;
            Done { id, place, ended }
        });
    }

    fn count(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let done = match done {
            Ok(done) => done,
            Err(error) => return self.stop(Failure::from_error(Exit::Failed, error)),
        };
        self.busy.remove(&done.place);
        if !matches!(done.ended, Ended::PassedBy) {
            // Its key goes on: what stands behind it may be new.
            self.passed_by.clear();
            self.only_failed = false;
        }
        match done.ended {
            Ended::PassedBy if self.failed.contains(&done.id) => {}
            // With time for the server to notice that it is due.
            Ended::PassedBy => self.passed_by_until = Instant::now() + 2 * PASS_BY,
            Ended::Deleted => self.tally.deleted += 1,
            Ended::Gone { failed } => {
                self.tally.gone += 1;
                self.tally.gone_failed += u64::from(failed);
            }
            Ended::Lost | Ended::Failed => {
                match done.ended {
                    Ended::Lost => self.tally.lost += 1,
                    _ => self.tally.failed += 1,
                }
                if !self.args.follow {
                    self.failed.insert(done.id);
                }
            }
            Ended::Hopeless(why) => {
                self.tally.failed += 1;
                self.stop(Failure::failed(format!(
                    "the command {:?} stopped the run: {why}",
                    self.work.command
                )));
            }
        }
    }

    /// The first reason counts.
    fn stop(&mut self, failure: Failure) {
        if self.stop.is_none() {
            self.stop = Some(Stop::Failure(failure));
            self.tell_what_runs();
        }
    }

    fn tell_what_runs(&self) {
        if !self.jobs.is_empty() {
            note(&format!(
                "waiting for {} to end; interrupt again to kill",
                count(self.jobs.len() as u64, "command")
            ));
        }
    }

    /// An answer may be on its way. What the server cannot write any more it gives back itself.
    async fn give_back_what_comes(&self, answer: Receiving) {
        if let Ok(Ok(messages)) = timeout(ANSWER_GRACE, answer).await {
            // The last one first: in the strict profile those behind it go back with a message.
            for message in messages.into_iter().rev() {
                self.work.give_back(&message, Duration::ZERO).await;
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        let Tally {
            deleted,
            failed,
            lost,
            gone,
            gone_failed,
        } = self.tally;
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
        match self.stop {
            Some(Stop::Signal(exit)) => Err(Failure::signal(exit)),
            Some(Stop::Failure(failure)) => Err(failure),
            // Each was told when it happened.
            None if bad => Err(Failure::failed("").told()),
            None => Ok(()),
        }
    }
}

/// The answer of a receive that is under way.
async fn next(receiving: &mut Option<Receiving>) -> Result<Vec<Leased>, CallError> {
    match receiving {
        Some(receiving) => receiving.await,
        None => std::future::pending().await,
    }
}

/// What became of a lease.
enum Settled {
    Done,
    /// The message is not there any more.
    Gone,
    /// Nor is its queue.
    NoQueue,
    /// In words.
    Stale(String),
}

impl Work {
    /// Runs the command and settles the message.
    async fn run(&self, message: &Leased, mut kill: watch::Receiver<bool>) -> Ended {
        let began = Instant::now();
        let body = match message.body() {
            Ok(body) => body,
            Err(error) => {
                self.give_back(message, Duration::ZERO).await;
                return Ended::Hopeless(format!(
                    "the body of {} is no base64: {error}",
                    message.name()
                ));
            }
        };
        let started = command::start(&self.command, &self.queue, &self.endpoint, message);
        let (mut child, group) = match started.map(|child| (child.id(), child)) {
            Ok((Some(group), child)) => (child, group),
            Ok((None, _)) => return Ended::Hopeless("it has no process id".to_owned()),
            // It is this message that no command can be started with: its headers are too long for
            // this system, or no text that an environment can hold.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput
                ) =>
            {
                let why = format!("no command can be started with it: {error}");
                return self.comes_again(message, &why).await;
            }
            Err(error) => {
                // Nothing was tried.
                self.give_back(message, Duration::ZERO).await;
                return Ended::Hopeless(format!("it cannot be started: {error}"));
            }
        };
        let feeding = child
            .stdin
            .take()
            .map(|stdin| tokio::spawn(command::feed(stdin, body)));
        let held_ms = AtomicU64::new(millis(self.lease));
        let mut lost = None;
        let status = {
            let mut waiting = pin!(child.wait());
            let mut holding = pin!(self.hold(message, began, &held_ms));
            let mut killed = false;
            loop {
                tokio::select! {
                    biased;
                    status = &mut waiting => break status,
                    Ok(_) = kill.wait_for(|&kill| kill), if !killed => {
                        killed = true;
                        command::kill(group);
                    }
                    why = &mut holding, if lost.is_none() => {
                        let what = format!("{}: the lease is lost while the command runs: {why}", message.name());
                        complain("warning", &what);
                        lost = Some(why);
                    }
                }
            }
        };
        if let Some(feeding) = feeding {
            // Nobody reads any more.
            feeding.abort();
        }
        let end = match status {
            Ok(status) => command::judge(status),
            Err(error) => End::Failure(format!("waiting for it failed: {error}")),
        };
        if lost.is_some() {
            return match end {
                End::NotStarted(why) | End::Hopeless(why) => Ended::Hopeless(why),
                End::Success | End::Failure(_) => Ended::Lost,
            };
        }
        match end {
            End::Success => {
                let held = Duration::from_millis(held_ms.into_inner());
                self.delete(message, began + held).await
            }
            End::Failure(why) => self.comes_again(message, &why).await,
            End::NotStarted(why) => {
                self.give_back(message, Duration::ZERO).await;
                Ended::Hopeless(why)
            }
            End::Hopeless(why) => {
                self.comes_again(message, &why).await;
                Ended::Hopeless(why)
            }
        }
    }

    /// Extends the lease for as long as this is polled; ends with why it is lost.
    /// `held_ms` is how long it has been held for certain.
    async fn hold(&self, message: &Leased, began: Instant, held_ms: &AtomicU64) -> String {
        let mut ends = began + self.lease;
        let third = self.lease / 3;
        let mut pause = third;
        loop {
            sleep(pause).await;
            pause = third;
            let now = Instant::now();
            let lease = self
                .lease
                .min((began + HELD_MAX).saturating_duration_since(now));
            if now + lease <= ends || millis(lease) == 0 {
                // It has been held for as long as one can be.
                sleep(ends.saturating_duration_since(now)).await;
                return "it was held for 12h, the longest there is".to_owned();
            }
            let extend = json!({"action": "extend", "lease_ms": millis(lease)});
            // An answer that is waited for longer leaves no time for another attempt before the lease ends.
            let attempt = timeout(third, self.settle(&message.receipt, extend));
            let Ok(settled) = attempt.await else {
                let what = "an extension of the lease had no answer in time and is tried again";
                complain("warning", &format!("{}: {what}", message.name()));
                pause = Duration::ZERO;
                continue;
            };
            match settled {
                Ok(Settled::Done) => {
                    ends = now + lease;
                    held_ms.store(millis(ends - began), Ordering::Relaxed);
                }
                Ok(Settled::Stale(why)) => return why,
                // By the command itself, or by a purge; what it is worth is seen when the command ends.
                Ok(Settled::Gone | Settled::NoQueue) => std::future::pending().await,
                // The next one may pass. If none does, the lease is found to be lost at the end.
                Err(error) => complain(
                    "warning",
                    &format!("{}: the lease is not extended: {error}", message.name()),
                ),
            }
        }
    }

    /// `held_until`: before that nobody else can have had the message.
    async fn delete(&self, message: &Leased, held_until: Instant) -> Ended {
        let settled = self
            .settle(&message.receipt, json!({"action": "ack"}))
            .await;
        let why = match settled {
            Ok(Settled::Done) => return Ended::Deleted,
            // The command settled it itself, or it was purged.
            Ok(Settled::Gone) if Instant::now() < held_until => {
                return Ended::Gone { failed: false };
            }
            Ok(Settled::NoQueue) => {
                let what = "the command succeeded";
                complain(
                    "warning",
                    &format!("{}: {what}; {}", message.name(), self.no_queue()),
                );
                return Ended::Gone { failed: false };
            }
            Ok(Settled::Gone) => Ok(settle::words("gone").to_owned()),
            Ok(Settled::Stale(why)) => Ok(why),
            Err(error) => Err(error),
        };
        match why {
            Ok(why) => {
                let what = "the command succeeded, but the message is not deleted";
                complain("warning", &format!("{}: {what}: {why}", message.name()));
                Ended::Lost
            }
            Err(error) => {
                let what = "the command succeeded, but the message could not be deleted and may come again";
                complain("warning", &format!("{}: {what}: {error}", message.name()));
                Ended::Lost
            }
        }
    }

    /// Puts back a message whose command failed, and says so.
    async fn comes_again(&self, message: &Leased, why: &str) -> Ended {
        let delay = self.retry_delay;
        let reason = cut_reason(why.into());
        let nack = json!({"action": "nack", "delay_ms": millis(delay), "reason": &*reason});
        let settled = self.settle(&message.receipt, nack).await;
        let ended = match settled {
            Ok(Settled::Gone | Settled::NoQueue) => Ended::Gone { failed: true },
            _ => Ended::Failed,
        };
        let then = match settled {
            Ok(Settled::Done) => format!("the message comes again in {}", show_duration(delay)),
            Ok(Settled::Gone) => "the message is not there any more".to_owned(),
            Ok(Settled::NoQueue) => self.no_queue(),
            Ok(Settled::Stale(why)) => format!("the message is not put back: {why}"),
            Err(error) => format!("the message comes again when its lease ends: {error}"),
        };
        complain("warning", &format!("{}: {why}; {then}", message.name()));
        ended
    }

    fn no_queue(&self) -> String {
        format!("queue {} was deleted, and the message with it", self.queue)
    }

    /// The message was not tried. If it cannot be given back, it comes again when its lease ends.
    async fn give_back(&self, message: &Leased, delay: Duration) {
        let defer = json!({"action": "defer", "delay_ms": millis(delay)});
        if let Err(error) = self.settle(&message.receipt, defer).await {
            complain(
                "warning",
                &format!("{} is not given back: {error}", message.name()),
            );
        }
    }

    /// Settles a lease, again while the server is away.
    async fn settle(&self, receipt: &str, mut how: Value) -> Result<Settled, Failure> {
        how["receipt"] = json!(receipt);
        let body = json!({"settles": [how]});
        let target = format!("{}/settle", self.target);
        let mut retry = Retry::new(self.client.timeout());
        // An attempt whose answer did not come may have done it: then the lease is gone by the next one.
        let mut perhaps_done = false;
        loop {
            // Not held over the pauses: others settle meanwhile.
            let answer = {
                let _turn = self.settles.acquire().await;
                let call = self
                    .client
                    .call::<Results>(Method::POST, &target, Some(&body));
                self.away.watch(Duration::ZERO, call).await
            };
            let mut results = match answer {
                Ok(answer) => answer.results.into_iter(),
                Err(error) if error.is_queue_missing() => return Ok(Settled::NoQueue),
                Err(error) => {
                    perhaps_done |= !error.nothing_done();
                    if error.may_pass() && retry.again().await {
                        continue;
                    }
                    return Err(error.into());
                }
            };
            return match results.next() {
                Some(Outcome::Done { .. }) => Ok(Settled::Done),
                // A lease that was acknowledged is gone, and what was put back is stale in any way.
                Some(Outcome::Stale { reason })
                    if perhaps_done
                        && match how["action"].as_str() {
                            Some("ack") => reason == "gone",
                            Some("extend") => false,
                            _ => true,
                        } =>
                {
                    Ok(Settled::Done)
                }
                Some(Outcome::Stale { reason }) if reason == "gone" => Ok(Settled::Gone),
                Some(Outcome::Stale { reason }) => {
                    Ok(Settled::Stale(settle::words(&reason).to_owned()))
                }
                Some(Outcome::Refused { problem }) => Err(Failure::failed(problem.words())),
                None => Err(Failure::failed("the server answered for no lease")),
            };
        }
    }
}

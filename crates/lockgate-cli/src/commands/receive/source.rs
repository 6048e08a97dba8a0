//! The queue of `receive --exec` as the source of its worker: one message a call, the end of a run, and what
//! becomes of messages in words.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::Method;
use lockgate_core::{
    Fate, KeyOrder, Leased, Message, MessageName, ReceiveRequest, Settlement, Source,
    SourceCapabilities, TransportError, limits::HoldScope,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{ANSWER_GRACE, CALL_WAIT_MAX, command, exec::Run, why};
use crate::{
    client::CallError,
    commands::{
        Retry, millis,
        settle::{self, Outcome, Results},
    },
    exit::Failure,
    output::complain,
    units::show_duration,
};

/// The longest a lease lasts, however often it is extended, less what a request may take on its way.
const HELD_MAX: Duration =
    Duration::from_millis(lockgate_machine::QueueSettings::LEASE_MAX).saturating_sub(GRACE);
const GRACE: Duration = Duration::from_secs(5);

/// How long a message goes back that comes again while its command still runs here, or that has failed in
/// this run: others behind it come meanwhile.
const PASS_BY: Duration = Duration::from_secs(1);

/// The longest wait for the answer to an extension.
const EXTEND_MAX: Duration = Duration::from_secs(30);

/// Leases of one call.
const SETTLE_MAX: usize = 100;

const ENDED: &str = "the lease has ended";

/// Gives one message a call, so that none waits here for a command.
pub(super) struct Messages {
    run: Arc<Run>,
    /// One call at a time.
    asking: tokio::sync::Mutex<Asking>,
}

#[derive(Default)]
struct Asking {
    received: bool,
    waiting: why::Waiting,
    /// So many messages had left when the queue was asked that had nothing to give.
    empty_at: Option<u64>,
    /// Until then a message comes again that was passed by because its command still ran.
    passed_by_until: Option<Instant>,
    /// It has said that there is nothing more.
    ended: bool,
}

enum Next {
    /// Ask for a message, and wait for it so long.
    Ask(Duration),
    /// There may be more when a message leaves that is here.
    Rest,
    End,
}

/// A message that is here, from its receive until the worker lets go of it.
pub(super) struct Held {
    pub(super) message: command::Leased,
    run: Arc<Run>,
    received: Instant,
    state: Mutex<HeldState>,
}

struct HeldState {
    /// Before that nobody else can have it.
    until: Instant,
    /// Its command was started.
    begun: bool,
    /// It is known what became of it.
    ended: bool,
    lost_told: bool,
    /// It left while its command ran: settled by the command itself, purged, or deleted with its queue.
    gone: bool,
    /// An extension is under way.
    extending: bool,
}

#[derive(Deserialize)]
struct Received {
    messages: Vec<command::Leased>,
    took_ms: u64,
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

impl Messages {
    pub(super) fn new(run: Arc<Run>) -> Self {
        Self {
            run,
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Whether to ask for a message. Also returns how many have left by now.
    fn next(&self, asking: &Asking) -> (Next, u64) {
        let run = &self.run;
        let state = run.state();
        let now = Instant::now();
        let or_end = |rest: bool| if rest { Next::Rest } else { Next::End };
        let next = if asking.ended || run.is_stopped() {
            Next::End
        } else if state.left == 0 {
            // One that goes back untried does not count.
            or_end(state.waiting > 0)
        } else if state.only_failed || asking.empty_at == Some(state.gone) {
            or_end(!state.held.is_empty())
        } else {
            Next::Ask(match (run.follow, asking.received) {
                (true, _) if state.held.is_empty() => asking.waiting.wait(),
                (true, _) => CALL_WAIT_MAX,
                (false, true) => {
                    let until = asking.passed_by_until.unwrap_or(now);
                    until.saturating_duration_since(now)
                }
                (false, false) => run.first_by.saturating_duration_since(now),
            })
        };
        (next, state.gone)
    }

    /// The next message; `None` at the end of the run.
    async fn message(&self, asking: &mut Asking) -> Option<Arc<Held>> {
        let run = &self.run;
        loop {
            let mut changed = pin!(run.changed.notified());
            changed.as_mut().enable();
            let (next, gone) = self.next(asking);
            let wait = match next {
                Next::Ask(wait) => wait.min(CALL_WAIT_MAX),
                Next::Rest => {
                    changed.await;
                    continue;
                }
                Next::End => return None,
            };
            let answer = {
                let mut answer = pin!(self.receive(wait));
                tokio::select! {
                    biased;
                    answer = &mut answer => answer,
                    () = run.stopped() => {
                        self.give_back_what_comes(answer).await;
                        return None;
                    }
                }
            };
            let mut messages = match answer {
                Ok(messages) => messages,
                Err(error) => {
                    run.stop(Failure::from(error));
                    return None;
                }
            };
            let Some((message, until)) = messages.pop() else {
                let now = Instant::now();
                let passed_by = asking.passed_by_until.is_some_and(|until| now < until);
                let waited = !passed_by && (asking.received || now >= run.first_by);
                if run.follow {
                    if run.state().held.is_empty() {
                        asking.waiting.tell(&run.client, &run.queue).await;
                    }
                } else if waited {
                    asking.empty_at = Some(gone);
                }
                continue;
            };
            asking.waiting.over(&run.queue);
            asking.received = true;
            run.state().received = true;
            let pass_by = {
                let mut state = run.state();
                let has_failed = state.failed.contains(&message.id);
                if has_failed {
                    // It comes a second time, with nothing new in between: nothing new is there. Without that
                    // a run of many failures would never end, as some are always due again.
                    state.only_failed = !state.passed_by.insert(message.id.clone());
                }
                // Its lease, or that of another of its key, was lost while the command went on.
                let key = message.key.as_ref();
                let is_here = state.held.contains_key(&message.id)
                    || key.is_some_and(|key| state.lost_keys.contains(key));
                if is_here && !has_failed {
                    // With time for the server to notice that it is due.
                    asking.passed_by_until = Some(Instant::now() + 2 * PASS_BY);
                }
                has_failed || is_here
            };
            if pass_by {
                self.run.give_back(&message, PASS_BY).await;
                continue;
            }
            return Some(run.hold(message, until));
        }
    }

    /// One message, if there is one, and how long it is held for certain. While following, a server that is
    /// away for a moment is waited for.
    async fn receive(&self, wait: Duration) -> Result<Vec<(command::Leased, Instant)>, CallError> {
        let run = &self.run;
        let target = format!("{}/receive", run.target);
        let body = json!({
            "max": 1, "wait_ms": millis(wait), "lease_ms": millis(run.lease),
        });
        let mut retry = Retry::new(run.client.timeout());
        loop {
            let asked = Instant::now();
            let call = run
                .client
                .call_within::<Received>(Method::POST, &target, Some(&body), wait);
            let answer = match run.follow {
                true => run.away.watch(wait, call).await,
                false => call.await,
            };
            match answer {
                Err(error) if run.follow && error.may_pass() && retry.again().await => {}
                Err(error) => return Err(error),
                Ok(Received { messages, took_ms }) => {
                    // So much was left when the server had its answer, after as long as it took.
                    let answered = asked + Duration::from_millis(took_ms);
                    let until =
                        |one: &command::Leased| answered + Duration::from_millis(one.remaining_ms);
                    let messages = messages.into_iter().map(|one| (until(&one), one));
                    return Ok(messages.map(|(until, one)| (one, until)).collect());
                }
            }
        }
    }

    /// An answer may be on its way. What the server cannot write any more it gives back itself.
    async fn give_back_what_comes(
        &self,
        answer: impl Future<Output = Result<Vec<(command::Leased, Instant)>, CallError>>,
    ) {
        if let Ok(Ok(messages)) = timeout(ANSWER_GRACE, answer).await {
            for (message, _) in messages {
                self.run.give_back(&message, Duration::ZERO).await;
            }
        }
    }
}

impl Source for Messages {
    type Receipt = Arc<Held>;

    fn source_capabilities(&self) -> SourceCapabilities {
        let mut can = SourceCapabilities::plain();
        can.settle_max = SETTLE_MAX;
        can.wait_max = CALL_WAIT_MAX;
        can.key_order = KeyOrder::Locked;
        can.lease_max = Duration::from_millis(lockgate_machine::QueueSettings::LEASE_MAX);
        can.nack_delay_max = Duration::MAX;
        can.nack_reasons = true;
        can.defer = true;
        can.hold = true;
        can.give_back = true;
        can
    }

    /// The next message, however long that takes; closed at the end of the run.
    async fn receive_batch(
        &self,
        _request: ReceiveRequest,
    ) -> Result<Vec<Leased<Arc<Held>>>, TransportError> {
        let mut asking = self.asking.lock().await;
        let Some(held) = self.message(&mut asking).await else {
            asking.ended = true;
            return Err(TransportError::new(Fate::Closed, "the run ends"));
        };
        let message = match message(&held.message) {
            Ok(message) => message,
            Err(why) => {
                self.run.hopeless(&why);
                self.run.give_back(&held.message, Duration::ZERO).await;
                return Err(TransportError::new(Fate::Closed, why));
            }
        };
        Ok(vec![Leased {
            name: Some(MessageName::Text(held.message.id.as_str().into())),
            message,
            sequence: None,
            attempt: 1,
            accepted: None,
            failures: None,
            state: None,
            remaining: held.remaining(),
            receipt: held,
        }])
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Arc<Held>, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let asked = settles
            .iter()
            .map(|(held, how)| (&held.message, action(how)));
        let results = self.run.settle(asked.collect()).await;
        let settled = settles.into_iter().zip(results);
        let settled = settled.map(|((held, how), result)| match how {
            Settlement::Ack => held.deleted(result),
            Settlement::Nack { delay, reason } => {
                held.comes_again(&reason.unwrap_or_default(), delay, result)
            }
            _ => {
                held.end(|_| {});
                held.message.told_given_back(result)
            }
        });
        let as_lost = |lost| match lost {
            true => Err(TransportError::new(Fate::Stale, ENDED)),
            false => Ok(()),
        };
        settled.map(as_lost).collect()
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Arc<Held>>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let now = Instant::now();
        let mut asked = Vec::new();
        for held in &receipts {
            let lease = lease.min((held.received + HELD_MAX).saturating_duration_since(now));
            let mut state = held.state();
            // Otherwise it has been held for as long as one can be, and lasts as long as it does.
            let is_longer = now + lease > state.until && millis(lease) > 0;
            if is_longer && !state.gone && !std::mem::replace(&mut state.extending, true) {
                let extend = json!({"action": "extend", "lease_ms": millis(lease)});
                asked.push((held, lease, extend));
            }
        }
        let settles = asked.iter();
        let settles = settles.map(|(held, _, extend)| (&held.message, extend.clone()));
        // An answer that is waited for longer leaves no time for another attempt before the lease ends; and the
        // worker itself waits for no longer than a minute.
        let longest = (lease / 3).min(EXTEND_MAX);
        let answers = timeout(longest, self.run.settle(settles.collect())).await;
        let mut failed = HashMap::new();
        let mut answers = answers.ok().map(Vec::into_iter);
        for (held, lease, _) in asked {
            held.state().extending = false;
            let result = match answers.as_mut().and_then(Iterator::next) {
                Some(answer) => held.extended(now + lease, answer),
                None => {
                    let what = "an extension of the lease had no answer in time and is tried again";
                    complain("warning", &format!("{}: {what}", held.message.name()));
                    Err(TransportError::new(Fate::Unknown, what))
                }
            };
            if let Err(error) = result {
                failed.insert(held.message.id.clone(), error);
            }
        }
        let results = receipts.iter();
        let results = results.map(|held| match failed.remove(&held.message.id) {
            Some(error) => Err(error),
            None => Ok(held.remaining()),
        });
        results.collect()
    }
}

/// What the worker needs of a message, or why it is none.
fn message(given: &command::Leased) -> Result<Message, String> {
    let name = || given.name();
    let body = given.body();
    let body = body.map_err(|error| format!("the body of {} is no base64: {error}", name()))?;
    let key = given
        .key
        .as_deref()
        .map(lockgate_core::Key::new)
        .transpose();
    let key = key.map_err(|error| format!("the key of {} is none: {error}", name()))?;
    let mut message = Message::new(body);
    message.key = key;
    // By which the worker knows a pack.
    message.content_type = given.content_type.as_deref().map(Into::into);
    Ok(message)
}

fn action(how: &Settlement) -> Value {
    match how {
        Settlement::Ack => json!({"action": "ack"}),
        Settlement::Nack { delay, reason } => {
            json!({"action": "nack", "delay_ms": millis(*delay), "reason": reason.as_deref()})
        }
        Settlement::Defer { delay } => json!({"action": "defer", "delay_ms": millis(*delay)}),
        Settlement::Hold { delay, scope } => {
            let hold = match scope {
                HoldScope::Key => "key",
                HoldScope::Queue => "queue",
            };
            json!({"action": "defer", "delay_ms": millis(*delay), "hold": hold})
        }
        Settlement::Reject { reason } => json!({"action": "reject", "reason": reason.as_deref()}),
        Settlement::GiveBack => json!({"action": "defer"}),
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message.id)
    }
}

/// The worker has let go of it.
impl Drop for Held {
    fn drop(&mut self) {
        let HeldState { begun, ended, .. } = *self.state();
        if begun && !ended {
            self.lost();
        }
        self.run.let_go(&self.message, begun);
    }
}

impl Held {
    pub(super) fn new(run: Arc<Run>, message: command::Leased, until: Instant) -> Self {
        let state = HeldState {
            until,
            begun: false,
            ended: false,
            lost_told: false,
            gone: false,
            extending: false,
        };
        Self {
            message,
            run,
            received: Instant::now(),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, HeldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is gone is nobody else's.
    fn remaining(&self) -> Duration {
        let state = self.state();
        match state.gone {
            true => HELD_MAX,
            false => state.until.saturating_duration_since(Instant::now()),
        }
    }

    /// Returns whether it had not begun: messages of a pack begin one after the other.
    pub(super) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.state().begun, true)
    }

    /// What became of it is known, and counted once.
    pub(super) fn end(&self, count: impl FnOnce(&mut super::exec::Tally)) {
        if !std::mem::replace(&mut self.state().ended, true) {
            count(&mut self.run.state().tally);
        }
    }

    /// Its lease was lost, so nothing is settled.
    pub(super) fn lost(&self) {
        self.tell_lost(ENDED);
        self.end(|tally| tally.lost += 1);
        self.run.failed_once(&self.message.id);
    }

    /// Says that the message may be somebody else's while its command runs.
    pub(super) fn tell_lost(&self, why: &str) {
        if std::mem::replace(&mut self.state().lost_told, true) {
            return;
        }
        if let Some(key) = &self.message.key {
            self.run.state().lost_keys.insert(key.clone());
        }
        let why = match self.received.elapsed() >= HELD_MAX {
            true => "it was held for 12h, the longest there is",
            false => why,
        };
        let what = "the lease is lost while the command runs";
        complain(
            "warning",
            &format!("{}: {what}: {why}", self.message.name()),
        );
    }

    /// Takes the answer to an extension that lasts `until`.
    fn extended(
        &self,
        until: Instant,
        result: Result<Settled, String>,
    ) -> Result<(), TransportError> {
        match result {
            Ok(Settled::Done) => {
                self.state().until = until;
                Ok(())
            }
            // By the command itself, or by a purge. What it is worth is seen when the command ends.
            Ok(Settled::Gone | Settled::NoQueue) => {
                self.state().gone = true;
                Ok(())
            }
            Ok(Settled::Stale(why)) => {
                self.tell_lost(&why);
                Err(TransportError::new(Fate::Stale, why))
            }
            // The next one may pass. If none does, the lease is found to be lost at its end.
            Err(why) => {
                let what = "the lease is not extended";
                complain(
                    "warning",
                    &format!("{}: {what}: {why}", self.message.name()),
                );
                Err(TransportError::new(Fate::Retry, why))
            }
        }
    }

    /// Tells what an acknowledgement came to. Returns whether the message is lost to this run.
    fn deleted(&self, result: Result<Settled, String>) -> bool {
        let name = self.message.name();
        let why = match result {
            Ok(Settled::Done) => {
                self.end(|tally| tally.deleted += 1);
                return false;
            }
            // The command settled it itself, or it was purged.
            Ok(Settled::Gone) if self.state().gone || !self.remaining().is_zero() => {
                self.end(|tally| tally.gone += 1);
                return false;
            }
            Ok(Settled::NoQueue) => {
                let what = self.run.no_queue();
                complain("warning", &format!("{name}: the command succeeded; {what}"));
                self.end(|tally| tally.gone += 1);
                return false;
            }
            Ok(Settled::Gone) => format!("is not deleted: {}", settle::words("gone")),
            Ok(Settled::Stale(why)) => format!("is not deleted: {why}"),
            Err(error) => format!("could not be deleted and may come again: {error}"),
        };
        complain(
            "warning",
            &format!("{name}: the command succeeded, but the message {why}"),
        );
        self.end(|tally| tally.lost += 1);
        self.run.failed_once(&self.message.id);
        true
    }

    /// Tells why a command failed, and what becomes of its message. Returns whether it is lost to this run.
    fn comes_again(&self, why: &str, delay: Duration, result: Result<Settled, String>) -> bool {
        match result {
            Ok(Settled::Gone | Settled::NoQueue) => self.end(|tally| {
                tally.gone += 1;
                tally.gone_failed += 1;
            }),
            _ => {
                self.end(|tally| tally.failed += 1);
                self.run.failed_once(&self.message.id);
            }
        }
        let is_lost = matches!(result, Ok(Settled::Stale(_)) | Err(_));
        let then = match result {
            Ok(Settled::Done) => format!("the message comes again in {}", show_duration(delay)),
            Ok(Settled::Gone) => "the message is not there any more".to_owned(),
            Ok(Settled::NoQueue) => self.run.no_queue(),
            Ok(Settled::Stale(why)) => format!("the message is not put back: {why}"),
            Err(error) => format!("the message comes again when its lease ends: {error}"),
        };
        complain(
            "warning",
            &format!("{}: {why}; {then}", self.message.name()),
        );
        is_lost
    }
}

impl command::Leased {
    /// It was not tried. If it cannot be given back, it comes again when its lease ends.
    fn told_given_back(&self, result: Result<Settled, String>) -> bool {
        match result {
            Ok(Settled::Stale(_)) => true,
            Ok(_) => false,
            Err(error) => {
                complain(
                    "warning",
                    &format!("{} is not given back: {error}", self.name()),
                );
                true
            }
        }
    }
}

impl Run {
    /// Gives back a message that no command was started for.
    async fn give_back(&self, message: &command::Leased, delay: Duration) {
        let defer = json!({"action": "defer", "delay_ms": millis(delay)});
        for result in self.settle(vec![(message, defer)]).await {
            message.told_given_back(result);
        }
    }

    /// Settles leases, again while the server is away.
    async fn settle(
        &self,
        settles: Vec<(&command::Leased, Value)>,
    ) -> Vec<Result<Settled, String>> {
        if settles.is_empty() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let bodies = settles.into_iter().map(|(message, mut how)| {
            actions.push(how["action"].clone());
            how["receipt"] = json!(message.receipt);
            how
        });
        let body = json!({"settles": bodies.collect::<Vec<_>>()});
        let target = format!("{}/settle", self.target);
        let mut retry = Retry::new(self.client.timeout());
        // An attempt whose answer did not come may have done it: then the lease is gone by the next one.
        let mut perhaps_done = false;
        let results = loop {
            let call = self
                .client
                .call::<Results>(Method::POST, &target, Some(&body));
            match self.away.watch(Duration::ZERO, call).await {
                Ok(answer) => break answer.results,
                Err(error) if error.is_queue_missing() => {
                    return actions.iter().map(|_| Ok(Settled::NoQueue)).collect();
                }
                Err(error) => {
                    perhaps_done |= !error.nothing_done();
                    if !(error.may_pass() && retry.again().await) {
                        let why = Failure::from(error).to_string();
                        return actions.iter().map(|_| Err(why.clone())).collect();
                    }
                }
            }
        };
        let mut results = results.into_iter();
        let settled = actions.iter().map(|action| match results.next() {
            Some(Outcome::Done { .. }) => Ok(Settled::Done),
            // A lease that was acknowledged is gone, and what was put back is stale in any way.
            Some(Outcome::Stale { reason })
                if perhaps_done
                    && match action.as_str() {
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
            Some(Outcome::Refused { problem }) => Err(problem.words()),
            None => Err("the server answered for no lease".to_owned()),
        });
        settled.collect()
    }
}

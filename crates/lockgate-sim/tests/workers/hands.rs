//! The shell of a worker, in virtual time: what `worker/shell.rs` of the consumer does, over a network that
//! loses and delays, with handlers that end in every way or not at all.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use lockgate_consumer::dispatch::{
    Action, Arrival, Cancelled, Dispatcher, ItemId, Rest, RunEnd, RunId, SourceOptions, Started,
};
use lockgate_core::{Fate, LeaseToken, Millis, Settlement};
use lockgate_machine::{Receive, Settle, SettleAction};

use crate::{
    Violation,
    planted::Bug,
    world::{Event, World, holder_of, key_of},
};

pub(crate) struct Hands {
    pub(crate) dispatcher: Dispatcher<Held>,
    /// Calls without an answer.
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) runs: BTreeMap<RunId, Run>,
    /// Runs that have ended.
    ended: Vec<RunId>,
    /// Until when the process is stopped.
    pub(crate) frozen_until: Millis,
    /// When it ends, whatever is left.
    drained_by: Option<Millis>,
}

/// A message under a lease.
#[derive(Clone, Debug)]
pub(crate) struct Held(pub(crate) Rc<Lease>);

#[derive(Debug)]
pub(crate) struct Lease {
    /// The message's number.
    pub(crate) message: usize,
    pub(crate) token: LeaseToken,
    /// When the lease ends, as far as the worker knows.
    pub(crate) ends: Cell<Millis>,
}

/// A handler that goes on.
pub(crate) struct Run {
    pub(crate) queue: usize,
    pub(crate) messages: Vec<Held>,
    /// So many of its messages have succeeded before it was cancelled.
    done: usize,
}

pub(crate) struct Call {
    asked: Millis,
    /// When it has no answer.
    gives_up: Millis,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Receive {
        queue: usize,
        receive: Receive,
        wait: Millis,
    },
    Settle {
        queue: usize,
        settles: Vec<(ItemId, Settle)>,
    },
    /// The messages of a run are acknowledged before it begins.
    Claim {
        started: Started<Held>,
        settles: Vec<Settle>,
    },
    Extend {
        lease: Millis,
        held: Vec<Held>,
        settles: Vec<(ItemId, Settle)>,
    },
}

/// What the shard says, in the words of a source.
pub(crate) enum Answer {
    /// Messages, tokens, attempts, and how much longer the leases last.
    Received(Vec<(usize, LeaseToken, u32, Millis)>),
    /// And how much longer extended ones last.
    Settled(Vec<Result<Option<Millis>, Fate>>),
}

impl Answer {
    /// The same, so much later.
    fn after(mut self, span: Millis) -> Self {
        match &mut self {
            Self::Received(leased) => {
                for (.., remaining) in leased {
                    *remaining = remaining.saturating_sub(span);
                }
            }
            Self::Settled(fates) => {
                for remaining in fates.iter_mut().flatten().flatten() {
                    *remaining = remaining.saturating_sub(span);
                }
            }
        }
        self
    }
}

/// How long a client waits for an answer, besides the wait of the call itself.
const TIMEOUT: Millis = 30_000;

impl Hands {
    /// Whether a handler of this run may go on with its effects, as far as its worker knows.
    pub(crate) fn believes_in(&self, id: RunId, run: &Run, now: Millis, bug: Option<Bug>) -> bool {
        if bug == Some(Bug::CancelsIgnored) {
            return true;
        }
        let lasts = |held: &Held| held.0.ends.get() > now;
        self.dispatcher.is_current(id) && run.messages.iter().all(lasts)
    }
}

impl World {
    /// A new worker begins.
    pub(crate) fn begin(&mut self) {
        if self.workers.len() >= 3 {
            return;
        }
        let worker = self.number();
        let sources = self.plan.queues.iter();
        let sources: Vec<SourceOptions> = sources.map(|queue| queue.source.clone()).collect();
        let dispatcher = Dispatcher::new(self.plan.options.clone(), sources, self.now);
        let hands = Hands {
            dispatcher: dispatcher.expect("the options are in range"),
            calls: BTreeMap::new(),
            runs: BTreeMap::new(),
            ended: Vec::new(),
            frozen_until: 0,
            drained_by: None,
        };
        self.note(format!("worker {worker} begins"));
        self.workers.insert(worker, hands);
    }

    pub(crate) fn hands(&mut self, worker: u64) -> &mut Hands {
        self.workers.get_mut(&worker).expect("it is there")
    }

    /// Does what the worker's dispatcher wants done.
    pub(crate) fn work(&mut self, worker: u64) -> Result<(), Violation> {
        let now = self.now;
        if self.hands(worker).frozen_until > now {
            return Ok(());
        }
        while let Some(action) = self.hands(worker).dispatcher.poll(now) {
            self.act(worker, action)?;
        }
        let hands = self.hands(worker);
        if let Some(at) = hands.dispatcher.next_deadline().filter(|at| *at <= now) {
            return Err(format!("worker {worker} waits for {at}, which has come"));
        }
        let is_drained = hands.dispatcher.is_drained();
        if is_drained || hands.drained_by.is_some_and(|by| by <= now) {
            self.note(format!("worker {worker} has ended, drained: {is_drained}"));
            self.count(if is_drained {
                "drained"
            } else {
                "drained in part"
            });
            self.workers.remove(&worker);
            let span = self.random.below(2_000);
            self.later(span, Event::Begin);
        }
        Ok(())
    }

    fn act(&mut self, worker: u64, action: Action<Held>) -> Result<(), Violation> {
        match action {
            Action::Receive {
                source,
                max,
                lease,
                key_max,
            } => {
                let queue = &self.plan.queues[source];
                let number = |count: usize| u16::try_from(count).expect("small");
                let receive = Receive {
                    queue: queue.name.clone(),
                    max: number(max),
                    key_max: queue.keyed.then(|| number(key_max)),
                    lease,
                    holder: holder_of(worker),
                };
                let wait = queue.wait;
                self.call(
                    worker,
                    wait,
                    Kind::Receive {
                        queue: source,
                        receive,
                        wait,
                    },
                );
            }
            Action::Settle { source, items } => {
                let mut settles = Vec::new();
                for (id, held, settlement) in items {
                    self.check_settlement(worker, id, &held, &settlement)?;
                    settles.push((id, settle(&held, action_of(settlement))));
                }
                let max = self.plan.queues[source].source.capabilities.settle_max;
                if settles.is_empty() || settles.len() > max {
                    return Err(format!("a settle call of {}", settles.len()));
                }
                self.call(
                    worker,
                    0,
                    Kind::Settle {
                        queue: source,
                        settles,
                    },
                );
            }
            Action::Extend { items, lease, .. } => {
                let extend = |(id, held): &(ItemId, Held)| {
                    (*id, settle(held, SettleAction::Extend { lease }))
                };
                let settles = items.iter().map(extend).collect();
                let held = items.into_iter().map(|(_, held)| held).collect();
                let extend = Kind::Extend {
                    lease,
                    held,
                    settles,
                };
                self.call(worker, 0, extend);
            }
            Action::Start(started) if self.plan.at_most_once => {
                let held = started.messages.iter();
                let settles = held.map(|(held, _)| settle(held, SettleAction::Ack));
                let settles = settles.collect();
                self.call(worker, 0, Kind::Claim { started, settles });
            }
            Action::Start(started) => self.handle(worker, started)?,
            Action::Cancel { run, why } => self.cancel(worker, run, why),
        }
        Ok(())
    }

    // Calls.

    fn call(&mut self, worker: u64, wait: Millis, kind: Kind) {
        let number = self.number();
        let call = Call {
            asked: self.now,
            gives_up: self.now + wait + TIMEOUT,
            kind,
        };
        let gives_up = call.gives_up;
        self.hands(worker).calls.insert(number, call);
        if self.goes_wrong() {
            // It is lost on its way.
            self.count("requests lost");
            self.lose(worker, number, gives_up);
            return;
        }
        let span = self.way();
        self.later(
            span,
            Event::Arrives {
                worker,
                call: number,
            },
        );
        // Whatever becomes of it, somebody waits no longer.
        let answer = Err(Fate::Unknown);
        let event = Event::Answered {
            worker,
            call: number,
            answer,
        };
        self.later(gives_up - self.now, event);
    }

    /// The worker learns that nobody knows: soon if the connection breaks, or when it has waited enough.
    fn lose(&mut self, worker: u64, call: u64, gives_up: Millis) {
        let span = match self.random.below(2) {
            0 => self.random.below(100),
            _ => gives_up.saturating_sub(self.now),
        };
        let answer = Err(Fate::Unknown);
        let event = Event::Answered {
            worker,
            call,
            answer,
        };
        self.later(span, event);
    }

    pub(crate) fn goes_wrong(&mut self) -> bool {
        !self.is_calm && self.random.chance(self.plan.faults)
    }

    /// How long something is on its way.
    fn way(&mut self) -> Millis {
        if self.goes_wrong() {
            self.count("delays");
            return self.random.below(45_000);
        }
        self.random.below(4)
    }

    /// An answer leaves the shard, which took so long for it.
    pub(crate) fn send_answer(&mut self, worker: u64, call: u64, took: Millis, answer: Answer) {
        let Some(hands) = self.workers.get(&worker) else {
            return;
        };
        let Some(&Call { gives_up, .. }) = hands.calls.get(&call) else {
            return;
        };
        if self.goes_wrong() {
            self.count("answers lost");
            self.lose(worker, call, gives_up);
            return;
        }
        let span = self.way();
        let answer = Ok((took, answer));
        self.later(
            span,
            Event::Answered {
                worker,
                call,
                answer,
            },
        );
    }

    pub(crate) fn answered(
        &mut self,
        worker: u64,
        number: u64,
        answer: Result<(Millis, Answer), Fate>,
    ) -> Result<(), Violation> {
        let Some(hands) = self.workers.get_mut(&worker) else {
            return Ok(());
        };
        let Some(call) = hands.calls.remove(&number) else {
            return Ok(());
        };
        let (now, random) = (self.now, self.random.next_u64());
        // A lease lasts from the moment it was given. When that was, the client cannot know better than that
        // its answer was on its way for no longer than the call took without the shard's part.
        let answer = answer.map(|(took, answer)| match self.bug {
            Some(Bug::LateAnswersTrusted) => answer,
            _ => answer.after(now - call.asked - took),
        });
        match (call.kind, answer) {
            (Kind::Receive { queue, receive, .. }, Ok(Answer::Received(leased))) => {
                self.arrive(worker, queue, receive.max.into(), leased)
            }
            (Kind::Receive { queue, receive, .. }, Err(_)) => {
                let max = receive.max.into();
                (hands.dispatcher).receive_failed(queue, max, now, random);
                Ok(())
            }
            (Kind::Settle { queue, settles }, answer) => {
                let fates = fates(answer, settles.len())?;
                if fates.first() == Some(&Err(Fate::Unknown))
                    && self.bug == Some(Bug::SettlesForgotten)
                {
                    return Ok(());
                }
                let ids = settles.into_iter().map(|(id, _)| id);
                let fates = fates.into_iter().map(|fate| fate.map(|_| ()));
                (hands.dispatcher).settled(queue, ids.zip(fates), now, random);
                Ok(())
            }
            (Kind::Claim { started, settles }, answer) => {
                let fates = fates(answer, settles.len())?;
                self.claimed(worker, started, fates)
            }
            (
                Kind::Extend {
                    lease,
                    held,
                    settles,
                },
                answer,
            ) => {
                let mut fates = fates(answer, settles.len())?;
                for fate in &mut fates {
                    match fate {
                        // An unkeyed queue keeps what had ended back for as long.
                        Ok(None) => *fate = Ok(Some(lease.saturating_sub(now - call.asked))),
                        Err(Fate::Unknown) if self.bug == Some(Bug::ExtensionsAssumed) => {
                            *fate = Ok(Some(lease));
                        }
                        _ => {}
                    }
                }
                for (held, fate) in held.iter().zip(&fates) {
                    if let Ok(Some(left)) = fate {
                        held.0.ends.set(now + left);
                    }
                }
                let ids = settles.into_iter().map(|(id, _)| id);
                let fates = fates
                    .into_iter()
                    .map(|fate| fate.map(|left| left.unwrap_or(0)));
                (hands.dispatcher).extended(ids.zip(fates).collect::<Vec<_>>(), now);
                Ok(())
            }
            _ => Err("a call has the answer of another".to_owned()),
        }
    }

    fn arrive(
        &mut self,
        worker: u64,
        queue: usize,
        max: usize,
        mut leased: Vec<(usize, LeaseToken, u32, Millis)>,
    ) -> Result<(), Violation> {
        if leased.len() > max {
            return Err(format!("{} came, {max} were asked for", leased.len()));
        }
        if self.bug == Some(Bug::OrderTurned) {
            leased.reverse();
        }
        let now = self.now;
        let mut arrivals = Vec::new();
        for (message, token, attempt, remaining) in leased {
            self.note(format!(
                "worker {worker} has {message} for {remaining} ms, attempt {attempt}"
            ));
            self.count("deliveries");
            let lease = Lease {
                message,
                token,
                ends: Cell::new(now + remaining),
            };
            arrivals.push(Arrival {
                message: Held(Rc::new(lease)),
                key: self.messages[message].key.map(key_of),
                tenant: Some(key_of(message as u64 % 2)),
                priority: u8::try_from(message % 3).expect("small"),
                bytes: 10,
                cost: 1,
                attempt,
                age: None,
                lease: remaining,
                alone: false,
                pack: None,
                at_once: None,
            });
        }
        if self.bug == Some(Bug::AcknowledgedFirst) {
            let settles = arrivals.iter();
            let settles = settles.map(|arrival| settle(&arrival.message, SettleAction::Ack));
            self.acknowledge_first(settles.collect());
        }
        let dispatcher = &mut self.hands(worker).dispatcher;
        dispatcher.received(queue, max, arrivals, now);
        Ok(())
    }

    /// Those of which the acknowledgement is certain may be handled.
    fn claimed(
        &mut self,
        worker: u64,
        mut started: Started<Held>,
        fates: Vec<Result<Option<Millis>, Fate>>,
    ) -> Result<(), Violation> {
        let now = self.now;
        let dispatcher = &mut self.hands(worker).dispatcher;
        let results = fates.into_iter().map(|fate| fate.map(|_| ()));
        let may_run = dispatcher.claimed(started.run, results, now);
        let mut may_run = may_run.into_iter();
        started.messages.retain(|(held, _)| {
            held.0.ends.set(Millis::MAX);
            may_run.next().unwrap_or_default()
        });
        if !started.messages.is_empty() && dispatcher.is_current(started.run) {
            return self.handle(worker, started);
        }
        for (held, _) in &started.messages {
            // It is gone, and nobody handles it: so it is at most once.
            self.messages[held.0.message].is_decided = true;
        }
        let rest = Rest::NotBegun;
        self.finish(worker, started.run, RunEnd { done: 0, rest })
    }

    // Handlers.

    fn handle(&mut self, worker: u64, started: Started<Held>) -> Result<(), Violation> {
        let Started {
            run,
            source,
            messages,
        } = started;
        let messages: Vec<Held> = messages.into_iter().map(|(held, _)| held).collect();
        self.check_start(worker, source, &messages)?;
        let numbers: Vec<usize> = messages.iter().map(|held| held.0.message).collect();
        let count = messages.len();
        if self.plan.at_most_once {
            for &number in &numbers {
                let known = &mut self.messages[number];
                if std::mem::replace(&mut known.is_decided, true) {
                    return Err(format!("{number} is handled more than once"));
                }
            }
        }
        let (span, end) = self.any_end(count);
        self.note(format!(
            "worker {worker} runs {numbers:?} for {span:?} ms: {end:?}"
        ));
        if let Some(span) = span {
            self.later(span, Event::Ends { worker, run, end });
        }
        let done = self.random.index(count + 1);
        let going = Run {
            queue: source,
            messages,
            done,
        };
        let hands = self.hands(worker);
        if hands.runs.insert(run, going).is_some() {
            return Err(format!("two runs are {run:?}"));
        }
        Ok(())
    }

    /// How a handler of so many messages ends, and after how long, if ever.
    fn any_end(&mut self, count: usize) -> (Option<Millis>, RunEnd) {
        let all = RunEnd {
            done: count,
            rest: Rest::Cancelled,
        };
        if self.is_calm {
            return (Some(self.random.below(50)), all);
        }
        let span = match self.random.below(10) {
            0..6 => self.random.below(300),
            6..9 => self.random.below(5_000),
            _ => 10_000 + self.random.below(40_000),
        };
        let rest = match self.random.below(20) {
            0..13 => return (Some(span), all),
            // It hangs.
            13 => return (None, all),
            14 => Rest::Deferred {
                delay: self.random.below(20_000),
            },
            15 => Rest::Rejected {
                reason: "it can never succeed".into(),
            },
            _ => Rest::Failed {
                error: "it failed".into(),
                retry_in: self.random.chance(40).then(|| self.random.below(15_000)),
            },
        };
        let done = self.random.index(count);
        (Some(span), RunEnd { done, rest })
    }

    /// A handler ends by itself.
    pub(crate) fn ends(&mut self, worker: u64, id: RunId, end: RunEnd) -> Result<(), Violation> {
        let (now, bug) = (self.now, self.bug);
        let Some(hands) = self.workers.get_mut(&worker) else {
            return Ok(());
        };
        let Some(run) = hands.runs.remove(&id) else {
            return Ok(());
        };
        let is_current = hands.believes_in(id, &run, now, bug);
        for held in run.messages.iter().take(end.done) {
            let known = &mut self.messages[held.0.message];
            match is_current {
                true => known.effects += 1,
                false => known.stale_effects += 1,
            }
        }
        // The worker may give it up at once, or by its own limit of attempts.
        let gives_up = match end.rest {
            Rest::Failed { .. } => self.plan.options.attempts_max.is_some(),
            Rest::Cancelled => self.plan.options.attempts_max.is_some(),
            Rest::Rejected { .. } => true,
            _ => false,
        };
        if let Some(held) = run.messages.get(end.done).filter(|_| gives_up) {
            self.messages[held.0.message].is_given_up = true;
        }
        self.count(if is_current {
            "current ends"
        } else {
            "stale ends"
        });
        self.finish(worker, id, end)
    }

    fn finish(&mut self, worker: u64, id: RunId, end: RunEnd) -> Result<(), Violation> {
        let (now, random) = (self.now, self.random.next_u64());
        self.note(format!("worker {worker}: {id:?} ends: {end:?}"));
        let hands = self.hands(worker);
        if !hands.dispatcher.finished(id, end.clone(), now, random) {
            return Err(format!("{id:?} was not current at its end"));
        }
        hands.ended.push(id);
        if self.random.chance(5) {
            // The same again, and that of another one that is long over.
            let hands = self.workers.get_mut(&worker).expect("it is there");
            let ended = hands.ended[self.random.index(hands.ended.len())];
            let before = hands.dispatcher.counts();
            if hands.dispatcher.finished(ended, end, now, random) {
                return Err(format!("{ended:?} ended twice"));
            }
            let mut after = hands.dispatcher.counts();
            after.stale_ends = before.stale_ends;
            if before != after {
                return Err(format!("a stale end counts: {before:?}, {after:?}"));
            }
        }
        Ok(())
    }

    fn cancel(&mut self, worker: u64, id: RunId, why: Cancelled) {
        self.note(format!("worker {worker}: {id:?} is cancelled: {why:?}"));
        self.count(match why {
            Cancelled::LeaseLost => "runs that lost their lease",
            Cancelled::TooLong => "runs that took too long",
            _ => "runs cancelled by a drain",
        });
        let ends_when_dropped = self.plan.ends_when_dropped;
        let Some(run) = self.hands(worker).runs.get(&id) else {
            return;
        };
        let done = run.done;
        let rest = Rest::Cancelled;
        if ends_when_dropped && self.bug != Some(Bug::CancelsIgnored) {
            let span = self.random.below(5);
            let end = RunEnd { done, rest };
            self.later(
                span,
                Event::Ends {
                    worker,
                    run: id,
                    end,
                },
            );
        } else {
            // One that blocks finds out in its own time.
            let span = self.random.below(60_000);
            let end = RunEnd { done: 0, rest };
            self.later(
                span,
                Event::Ends {
                    worker,
                    run: id,
                    end,
                },
            );
        }
    }

    /// Handlers that hang or take their time end now.
    pub(crate) fn end_all_handlers(&mut self) {
        let all = self.workers.iter().flat_map(|(&worker, hands)| {
            let runs = hands.runs.keys();
            runs.map(move |&run| (worker, run)).collect::<Vec<_>>()
        });
        for (worker, run) in all.collect::<Vec<_>>() {
            let rest = Rest::Cancelled;
            let end = RunEnd { done: 0, rest };
            self.later(1, Event::Ends { worker, run, end });
        }
    }

    // What befalls workers.

    pub(crate) fn any_fault(&mut self) -> Result<(), Violation> {
        if self.random.below(1_000) >= self.plan.faults {
            return Ok(());
        }
        let workers: Vec<u64> = self.workers.keys().copied().collect();
        let kind = self.random.below(16);
        if kind < 4 || workers.is_empty() {
            match kind {
                0 => self.crash(true),
                1 | 2 => self.crash(false),
                _ => self.step_wall_clock(),
            }
            self.count("faults of the shard");
            return Ok(());
        }
        let worker = workers[self.random.index(workers.len())];
        let now = self.now;
        match kind {
            4 | 5 => {
                self.note(format!("worker {worker} is gone"));
                self.count("workers gone");
                self.workers.remove(&worker);
                let span = self.random.below(40_000);
                self.later(span, Event::Begin);
            }
            6 | 7 => {
                let span = 1_000 + self.random.below(60_000);
                self.note(format!("worker {worker} is stopped for {span} ms"));
                self.count("workers stopped");
                self.hands(worker).frozen_until = now + span;
            }
            8..11 => {
                self.note(format!("worker {worker} pauses"));
                self.hands(worker).dispatcher.pause();
                self.stop_receiving(worker);
            }
            11..15 => {
                self.note(format!("worker {worker} resumes"));
                self.hands(worker).dispatcher.resume(now);
            }
            _ => {
                let within = self.random.below(10_000);
                self.note(format!("worker {worker} drains within {within} ms"));
                let hands = self.hands(worker);
                hands.dispatcher.drain(now + within);
                hands.drained_by = Some(now + within + 5_000);
                self.stop_receiving(worker);
            }
        }
        Ok(())
    }

    /// Drops the receives under way. What they are given comes again when its lease ends.
    fn stop_receiving(&mut self, worker: u64) {
        let now = self.now;
        let hands = self.hands(worker);
        let mut dropped = BTreeSet::new();
        for (number, call) in &hands.calls {
            if let Kind::Receive { queue, receive, .. } = &call.kind {
                let max = receive.max.into();
                (hands.dispatcher).received(*queue, max, [], now);
                dropped.insert(*number);
            }
        }
        hands.calls.retain(|number, _| !dropped.contains(number));
    }
}

fn settle(held: &Held, action: SettleAction) -> Settle {
    Settle {
        token: held.0.token,
        action,
    }
}

fn action_of(settlement: Settlement) -> SettleAction {
    let millis = |span: std::time::Duration| Millis::try_from(span.as_millis()).expect("in range");
    match settlement {
        Settlement::Ack => SettleAction::Ack,
        Settlement::Nack { delay, reason } => SettleAction::Nack {
            delay: millis(delay),
            reason,
        },
        Settlement::Defer { delay } => SettleAction::Defer {
            delay: millis(delay),
        },
        Settlement::Hold { delay, scope } => SettleAction::Hold {
            delay: millis(delay),
            scope,
        },
        Settlement::Reject { reason } => SettleAction::Reject { reason },
        Settlement::GiveBack => SettleAction::GiveBack,
    }
}

fn fates(
    answer: Result<Answer, Fate>,
    count: usize,
) -> Result<Vec<Result<Option<Millis>, Fate>>, Violation> {
    match answer {
        Ok(Answer::Settled(fates)) if fates.len() == count => Ok(fates),
        Ok(_) => Err("a settle has another answer".to_owned()),
        Err(fate) => Ok(vec![Err(fate); count]),
    }
}

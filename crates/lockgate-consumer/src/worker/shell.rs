//! Carries out what the dispatcher decides. One task has the dispatcher; receives, settles, extensions
//! and runs are tasks of their own, whose ends are its inputs.

use std::{
    any::Any,
    collections::HashMap,
    future::pending,
    hash::{BuildHasher, Hasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockgate_core::{
    Fate, HolderName, Millis, ReceiveRequest, Settlement, TransportError, WallTime, pack,
};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Ask, ByMessage, Coalesce, Ended, WorkerBuilder, WorkerClock, WorkerState, coalesce, millis,
    source::{AnySource, Call, HeldMessage, Lease, Received, Wants},
    states::{self, LeaseState},
};
use crate::{
    Batch, Context, Handler,
    dispatch::{Action, Arrival, Cancelled, Dispatcher, ItemId, Rest, RunEnd, RunId, Started},
};

/// How long a drain goes on after its deadline: what was cancelled is settled, and who does not answer is
/// given up.
const SETTLE_GRACE: Duration = Duration::from_secs(5);

/// The longest wait of one receive.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A receive that brings nothing sooner than this, and in less than half of its wait, is not asked again at
/// once: a source that does not wait would be asked as fast as it answers.
const WAIT_LEAST: Duration = Duration::from_secs(1);

pub(super) struct Shell<H> {
    dispatcher: Dispatcher<HeldMessage>,
    sources: Vec<SourceState>,
    handler: Arc<H>,
    holder: HolderName,
    tasks: JoinSet<Output>,
    /// What each task is for.
    tasks_for: HashMap<Id, Purpose>,
    runs: HashMap<RunId, Running>,
    clock: WorkerClock,
    run_time_max: Option<Millis>,
    cancel_grace: Duration,
    call_time_max: Duration,
    at_most_once: bool,
    key_states: bool,
    /// Why it cannot take packs apart, if so.
    no_packs: Option<&'static str>,
    tenant: ByMessage<Option<lockgate_core::Key>>,
    priority: ByMessage<u8>,
    cost: ByMessage<Option<u32>>,
    coalesce: Option<Coalesce>,
    random: RandomState,
    drawn: u64,
    panics: u64,
    /// When it ends, whatever is left.
    drained_by: Option<Instant>,
    stall_told: bool,
}

/// A blocking handler, or a task that a handler has started, goes on when the worker is dropped: it can learn
/// that its run does not count.
impl<H> Drop for Shell<H> {
    fn drop(&mut self) {
        for running in self.runs.values() {
            running.context.cancel(Cancelled::Dropped);
        }
    }
}

struct SourceState {
    source: Arc<dyn AnySource>,
    wait: Duration,
    receives: Vec<AbortHandle>,
    /// Receives that have come, and of which packs are taken apart.
    opening: usize,
    error: Option<TransportError>,
    /// It gives nothing any more.
    ended: bool,
}

/// What a task returns.
enum Output {
    /// And when it came: what leases have left counts from then.
    Received(Result<Received, TransportError>, Millis),
    Opened(Vec<HeldMessage>),
    Settled(Vec<Result<(), TransportError>>),
    Extended(Vec<Result<Duration, TransportError>>, Millis),
    Claimed(Vec<Result<(), TransportError>>),
    Ran(RunEnd),
    /// A cancelled run has had its time.
    GraceOver,
}

enum Purpose {
    Receive {
        source: usize,
        max: usize,
        /// When it began.
        asked: Millis,
    },
    Open {
        source: usize,
        max: usize,
        came: Millis,
    },
    Settle {
        source: usize,
        items: Vec<ItemId>,
    },
    Extend {
        items: Vec<(ItemId, HeldMessage)>,
    },
    Claim(Started<HeldMessage>),
    Run(RunId),
    Grace(RunId),
}

struct Running {
    context: Context,
    task: AbortHandle,
    why: Option<Cancelled>,
    /// Its messages, if there are states.
    held: Vec<HeldMessage>,
}

impl<H: Handler> Shell<H> {
    pub(super) fn new(
        builder: WorkerBuilder,
        dispatcher: Dispatcher<HeldMessage>,
        holder: HolderName,
        handler: H,
        clock: WorkerClock,
    ) -> Self {
        let no_packs = builder.no_packs();
        let sources = builder.sources.into_iter().map(|(source, _)| SourceState {
            wait: source.capabilities().wait_max.min(WAIT_MAX),
            source,
            receives: Vec::new(),
            opening: 0,
            error: None,
            ended: false,
        });
        Self {
            dispatcher,
            sources: sources.collect(),
            handler: Arc::new(handler),
            holder,
            tasks: JoinSet::new(),
            tasks_for: HashMap::new(),
            runs: HashMap::new(),
            clock,
            run_time_max: builder.options.run_time_max,
            cancel_grace: builder.cancel_grace,
            call_time_max: builder.call_time_max,
            at_most_once: builder.at_most_once,
            key_states: builder.key_states,
            no_packs,
            tenant: builder.tenant,
            priority: builder.priority,
            cost: builder.cost,
            coalesce: builder.coalesce,
            random: RandomState::new(),
            drawn: 0,
            panics: 0,
            drained_by: None,
            stall_told: false,
        }
    }

    pub(super) async fn run(mut self, mut asks: mpsc::UnboundedReceiver<Ask>) -> Ended {
        loop {
            while let Some(action) = self.dispatcher.poll(self.now()) {
                self.act(action);
            }
            self.watch();
            // What a receive under way was given still comes.
            let has_ended = |source: &SourceState| {
                source.ended && source.receives.is_empty() && source.opening == 0
            };
            let has_ended = self.sources.iter().all(has_ended);
            let is_late = self.drained_by.is_some_and(|by| by <= Instant::now());
            let left = self.dispatcher.held();
            if self.dispatcher.is_drained() || is_late || (has_ended && left == 0) {
                let mut sources = self.sources.iter_mut();
                let error = sources.find_map(|source| source.error.take());
                return Ended {
                    counts: self.dispatcher.counts(),
                    panics: self.panics,
                    left,
                    error: error.filter(|_| self.drained_by.is_none()),
                };
            }
            let deadline = self.next_deadline();
            let time = async {
                match deadline {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some(ask) = asks.recv() => self.answer(ask),
                Some(ended) = self.tasks.join_next_with_id() => {
                    self.take(ended);
                    // What else has ended is taken before the dispatcher is asked again.
                    while let Some(ended) = self.tasks.try_join_next_with_id() {
                        self.take(ended);
                    }
                }
                () = time => {}
                else => pending().await,
            }
        }
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    /// When the dispatcher or the watchdog has something to say; further ahead than a day, somebody
    /// asks before.
    fn next_deadline(&self) -> Option<Instant> {
        const FAR: Duration = Duration::from_secs(86_400);
        let at = self.dispatcher.next_deadline();
        let watch = (!self.stall_told && self.dispatcher.held() > 0)
            .then(|| self.dispatcher.stalls_at())
            .filter(|at| *at > self.now());
        let at = at.into_iter().chain(watch).min();
        let left = |at| Duration::from_millis(at).saturating_sub(self.clock.elapsed());
        let at = at.map(|at| Instant::now() + left(at).min(FAR));
        at.into_iter().chain(self.drained_by).min()
    }

    fn random(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.drawn);
        hasher.finish()
    }

    fn spawn(
        &mut self,
        purpose: Purpose,
        task: impl Future<Output = Output> + Send + 'static,
    ) -> AbortHandle {
        let handle = self.tasks.spawn(task);
        self.tasks_for.insert(handle.id(), purpose);
        handle
    }

    fn act(&mut self, action: Action<HeldMessage>) {
        match action {
            Action::Receive {
                source: number,
                max,
                lease,
                key_max,
            } => {
                let state = &self.sources[number];
                let request = ReceiveRequest {
                    max,
                    key_max: Some(key_max),
                    wait: state.wait,
                    lease: lease.map(Duration::from_millis),
                    holder: self.holder.clone(),
                };
                let source = state.source.clone();
                let (clock, asked) = (self.clock, self.now());
                let wants = Wants {
                    states: self.key_states,
                    no_packs: self.no_packs,
                };
                let receive = async move {
                    let received = source.receive(number, request, wants).await;
                    Output::Received(received, clock.now())
                };
                let source = number;
                let purpose = Purpose::Receive { source, max, asked };
                let handle = self.spawn(purpose, receive);
                self.sources[number].receives.push(handle);
            }
            Action::Start(started) => self.begin(started),
            Action::Cancel { run, why } => self.cancel(run, why),
            Action::Settle { source, items } => {
                let (mut ids, mut settles) = (Vec::new(), Vec::new());
                for (id, held, how) in items {
                    ids.push(id);
                    settles.push((held, how));
                }
                let state = &self.sources[source];
                let settle = match self.key_states {
                    false => state.source.clone().settle(settles),
                    true => states::settle(state.source.clone(), settles),
                };
                let count = ids.len();
                let purpose = Purpose::Settle { source, items: ids };
                let settle = in_time(self.call_time_max, settle, count);
                self.spawn(purpose, async { Output::Settled(settle.await) });
            }
            Action::Extend {
                source,
                items,
                lease,
            } => {
                let held = items.iter().map(|(_, held)| held.clone()).collect();
                let lease = Duration::from_millis(lease);
                let extend = self.sources[source].source.clone().extend(held, lease);
                let extend = in_time(self.call_time_max, extend, items.len());
                let purpose = Purpose::Extend { items };
                let clock = self.clock;
                self.spawn(purpose, async move {
                    let extended = extend.await;
                    Output::Extended(extended, clock.now())
                });
            }
        }
    }

    fn begin(&mut self, started: Started<HeldMessage>) {
        // What cannot be handled must not be acknowledged.
        if !self.at_most_once || unreadable(&started).is_some() {
            return self.handle(started);
        }
        self.dispatcher.claiming(started.run);
        let held = started.messages.iter();
        let held: Vec<HeldMessage> = held.map(|(held, _)| held.clone()).collect();
        let source = self.sources[started.source].source.clone();
        let max = source.capabilities().settle_max;
        let longest = self.call_time_max;
        self.spawn(Purpose::Claim(started), async move {
            let mut results = Vec::with_capacity(held.len());
            for held in held.chunks(max) {
                let acks = held.iter().map(|held| (held.clone(), Settlement::Ack));
                let settle = source.clone().settle(acks.collect());
                results.extend(in_time(longest, settle, held.len()).await);
                if results.iter().any(Result::is_err) {
                    break;
                }
            }
            Output::Claimed(results)
        });
    }

    /// Lets the handler run.
    fn handle(&mut self, started: Started<HeldMessage>) {
        if started
            .messages
            .iter()
            .any(|(held, _)| states::is_lost(held))
        {
            // It would read a state that was never written: the message goes back to the source.
            let (rest, now) = (Rest::NotBegun, self.now());
            return self.finished(started.run, RunEnd { done: 0, rest }, now);
        }
        if let Some(error) = unreadable(&started) {
            tracing::warn!(source = started.source, %error, "a pack cannot be handled");
            let retry_in = None;
            let (rest, now) = (Rest::Failed { error, retry_in }, self.now());
            return self.finished(started.run, RunEnd { done: 0, rest }, now);
        }
        let context = Context::new(self.clock, self.run_time_max);
        let (run, handler, of_run) = (started.run, self.handler.clone(), context.clone());
        let merge = self
            .coalesce
            .as_ref()
            .map(|coalesce| coalesce.merge.clone());
        let held = started.messages.iter().map(|(held, _)| held.clone());
        let held = match self.key_states {
            true => held.collect(),
            false => Vec::new(),
        };
        let task = self.spawn(Purpose::Run(run), async move {
            let jobs = coalesce::jobs(merge.as_ref(), started.messages, &of_run);
            let count = jobs.len();
            let mut end = handler.handle(Batch { jobs, run: of_run }).await;
            if merge.is_some() {
                // However many jobs stand for its messages, all of them are done, or none.
                end.done = if end.done >= count { usize::MAX } else { 0 };
            }
            Output::Ran(end)
        });
        let running = Running {
            context,
            task,
            why: None,
            held,
        };
        self.runs.insert(run, running);
    }

    fn cancel(&mut self, run: RunId, why: Cancelled) {
        // A run that is still being claimed has not begun, and ends when the claim is answered.
        let Some(running) = self.runs.get_mut(&run) else {
            return;
        };
        running.why = Some(why);
        running.context.cancel(why);
        if !self.handler.ends_when_dropped() {
            return;
        }
        if self.cancel_grace.is_zero() {
            running.task.abort();
        } else {
            let grace = self.cancel_grace;
            self.spawn(Purpose::Grace(run), async move {
                sleep(grace).await;
                Output::GraceOver
            });
        }
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Pause => {
                self.dispatcher.pause();
                self.stop_receiving();
            }
            Ask::Resume => {
                self.dispatcher.resume(self.now());
            }
            Ask::Drain(within) => {
                let until = self.now().saturating_add(millis(within));
                self.dispatcher.drain(until);
                let late = within.saturating_add(self.cancel_grace);
                let late = late.saturating_add(SETTLE_GRACE);
                let far = Instant::now() + Duration::from_secs(86_400 * 365);
                self.drained_by = Some(Instant::now().checked_add(late).unwrap_or(far));
                self.stop_receiving();
            }
            Ask::Explain(source, key, answer) => {
                let _ = answer.send(self.dispatcher.explain(source, &key));
            }
            Ask::State(answer) => {
                let _ = answer.send(WorkerState {
                    counts: self.dispatcher.counts(),
                    panics: self.panics,
                    held: self.dispatcher.held(),
                    running: self.dispatcher.running(),
                    stall: self.dispatcher.stall(self.now()),
                    errors: self
                        .sources
                        .iter()
                        .map(|state| state.error.clone())
                        .collect(),
                });
            }
        }
    }

    /// Drops the receives under way: what they were given goes back.
    fn stop_receiving(&mut self) {
        for receive in self.sources.iter().flat_map(|state| &state.receives) {
            receive.abort();
        }
    }

    /// Takes the end of a task.
    fn take(&mut self, ended: Result<(Id, Output), JoinError>) {
        let (id, output) = match ended {
            Ok((id, output)) => (id, Ok(output)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(purpose) = self.tasks_for.remove(&id) else {
            return;
        };
        let now = self.now();
        match purpose {
            Purpose::Receive { source, max, asked } => {
                self.sources[source]
                    .receives
                    .retain(|receive| receive.id() != id);
                match output {
                    Ok(Output::Received(Ok(Received::Packs(open)), came)) => {
                        let room = self.dispatcher.bytes_left();
                        let room = room.max(pack::BYTES_MAX as u64);
                        self.sources[source].opening += 1;
                        let open = move || Output::Opened(open(room));
                        let handle = self.tasks.spawn_blocking(open);
                        let purpose = Purpose::Open { source, max, came };
                        self.tasks_for.insert(handle.id(), purpose);
                    }
                    Ok(Output::Received(Ok(Received::Messages(messages)), came)) => {
                        let wait = self.sources[source].wait;
                        let waited = Duration::from_millis(came.saturating_sub(asked));
                        let is_early = messages.is_empty() && waited < (wait / 2).min(WAIT_LEAST);
                        self.arrive(source, max, messages, came, is_early);
                    }
                    Ok(Output::Received(Err(error), _)) => {
                        self.receive_failed(source, max, error, now);
                    }
                    // It was dropped.
                    Err(error) if error.is_cancelled() => {
                        self.arrive(source, max, vec![], now, false);
                    }
                    other => self.receive_failed(source, max, broken(other), now),
                }
            }
            Purpose::Open { source, max, came } => {
                self.sources[source].opening -= 1;
                match output {
                    Ok(Output::Opened(messages)) => self.arrive(source, max, messages, came, false),
                    other => self.receive_failed(source, max, broken(other), now),
                }
            }
            Purpose::Settle { source, items } => {
                let results = match output {
                    Ok(Output::Settled(results)) => results,
                    other => vec![Err(broken(other)); items.len()],
                };
                let results = results.into_iter().map(|result| fate_of(source, result));
                let results: Vec<_> = items.into_iter().zip(results).collect();
                let random = self.random();
                self.dispatcher.settled(source, results, now, random);
            }
            Purpose::Extend { items } => {
                let (results, came) = match output {
                    Ok(Output::Extended(results, came)) => (results, came),
                    other => (vec![Err(broken(other)); items.len()], now),
                };
                let results = items.into_iter().zip(results).map(|((id, held), result)| {
                    let ends = match result {
                        Ok(left) => came.saturating_add(floor_millis(left)),
                        Err(error) => return (id, Err(error.fate)),
                    };
                    held.lease().set_end(ends);
                    (id, Ok(ends.saturating_sub(now)))
                });
                self.dispatcher.extended(results.collect::<Vec<_>>(), now);
            }
            Purpose::Claim(mut started) => {
                let results = match output {
                    Ok(Output::Claimed(results)) => results,
                    other => vec![Err(broken(other)); started.messages.len()],
                };
                let source = started.source;
                let results = results
                    .into_iter()
                    .map(|result| fate_of_claim(source, result));
                let results: Vec<_> = results.collect();
                let may_run = self.dispatcher.claimed(started.run, results, now);
                let mut may_run = may_run.into_iter();
                started.messages.retain(|(held, _)| {
                    held.lease().set_end(Millis::MAX);
                    may_run.next().unwrap_or_default()
                });
                if started.messages.is_empty() || !self.dispatcher.is_current(started.run) {
                    let rest = Rest::NotBegun;
                    self.finished(started.run, RunEnd { done: 0, rest }, now);
                } else {
                    self.handle(started);
                }
            }
            Purpose::Run(run) => {
                let running = self.runs.remove(&run);
                let done = running.as_ref().map_or(0, |running| running.context.done());
                let end = match output {
                    Ok(Output::Ran(end)) => end,
                    Err(error) if error.is_panic() => {
                        self.panics += 1;
                        let text = panic_text(error.into_panic());
                        tracing::error!(panic = %text, "a handler panicked");
                        let rest = Rest::Failed {
                            error: format!("the handler panicked: {text}").into(),
                            retry_in: None,
                        };
                        RunEnd { done, rest }
                    }
                    // Its future was dropped.
                    _ => RunEnd {
                        done,
                        rest: Rest::Cancelled,
                    },
                };
                let held = running.map_or(Vec::new(), |running| running.held);
                states::end(&held, end.done);
                self.finished(run, end, now);
            }
            Purpose::Grace(run) => {
                if let Some(running) = self.runs.get(&run) {
                    running.task.abort();
                }
            }
        }
    }

    fn finished(&mut self, run: RunId, end: RunEnd, now: Millis) {
        if let Rest::Failed { error, .. } = &end.rest {
            tracing::debug!(%error, "a message was not handled");
        }
        let random = self.random();
        self.dispatcher.finished(run, end, now, random);
    }

    /// Takes messages that came a moment ago, or nothing; `is_early`: though the wait was not over.
    fn arrive(
        &mut self,
        source: usize,
        max: usize,
        messages: Vec<HeldMessage>,
        came: Millis,
        is_early: bool,
    ) {
        let now = self.now();
        let is_over = |held: &HeldMessage| floor_millis(held.lease().remaining) == 0;
        let are_over = !messages.is_empty() && messages.iter().all(is_over);
        let state = &mut self.sources[source];
        if are_over {
            let error = "the leases of its messages have ended when they come";
            if state.error.is_none() {
                tracing::warn!(source, error);
            }
            state.error = Some(TransportError::new(Fate::Retry, error));
        } else if !state.ended {
            state.error = None;
        }
        if is_early {
            let random = self.random();
            return self.dispatcher.receive_failed(source, max, now, random);
        }
        let (tenant, priority) = (self.tenant.clone(), self.priority.clone());
        let cost = self.cost.clone();
        let by = self
            .coalesce
            .as_ref()
            .and_then(|coalesce| coalesce.by.clone());
        let wall = self.coalesce.as_ref().map(|_| wall_now());
        let arrivals = messages.into_iter().map(|held| {
            let lease = held.lease();
            let ends = came.saturating_add(floor_millis(lease.remaining));
            lease.set_end(ends);
            let message = &lease.message;
            Arrival {
                key: ask(&by, lease).unwrap_or_else(|| message.key.clone()),
                tenant: ask(&tenant, lease).flatten(),
                priority: ask(&priority, lease).unwrap_or(message.priority),
                bytes: lease.bytes + lease.state.as_ref().map_or(0, LeaseState::bytes),
                cost: ask(&cost, lease).flatten().unwrap_or(1),
                attempt: lease.attempt,
                age: wall
                    .zip(lease.accepted)
                    .map(|(now, accepted)| now.since(accepted)),
                lease: ends.saturating_sub(now),
                alone: lease.unreadable.is_some(),
                pack: lease.pack,
                at_once: lease.at_once.clone(),
                message: held,
            }
        });
        self.dispatcher.received(source, max, arrivals, now);
    }

    fn receive_failed(&mut self, number: usize, max: usize, error: TransportError, now: Millis) {
        let state = &mut self.sources[number];
        // The others may pass.
        if matches!(error.fate, Fate::Closed | Fate::Refused | Fate::Unsupported) {
            state.ended = true;
            self.dispatcher.closed(number);
        }
        if state.error.is_none() {
            let why = lockgate_core::with_sources(&error);
            if state.ended {
                tracing::info!(source = number, %why, "a source gives no more messages");
            } else {
                tracing::warn!(source = number, %why, "a source does not answer; trying again");
            }
        }
        state.error = Some(error);
        let random = self.random();
        self.dispatcher.receive_failed(number, max, now, random);
    }

    /// Says so once when nothing moves.
    fn watch(&mut self) {
        let stall = self.dispatcher.stall(self.now());
        if let Some(stall) = stall
            && !self.stall_told
        {
            tracing::warn!(
                since_ms = self.now().saturating_sub(stall.since),
                ready = stall.ready,
                runs = stall.runs,
                "work waits, and nothing moves"
            );
        }
        self.stall_told = stall.is_some();
    }
}

/// Why a run cannot be handled, if so: such a message runs alone.
fn unreadable(started: &Started<HeldMessage>) -> Option<Arc<str>> {
    let (first, _) = started.messages.first()?;
    first.lease().unreadable.clone()
}

/// What became of a settlement, told to the log.
fn fate_of(source: usize, result: Result<(), TransportError>) -> Result<(), Fate> {
    result.map_err(|error| {
        let why = lockgate_core::with_sources(&error);
        match error.fate {
            Fate::Retry | Fate::Unknown => {
                tracing::debug!(source, %why, "a settlement is tried again while its lease lasts");
            }
            Fate::Stale => tracing::warn!(
                source,
                %why,
                "a settlement has no lease any more: unless it was done before, the message comes again"
            ),
            _ => tracing::warn!(source, %why, "a message is not settled, and comes again"),
        }
        error.fate
    })
}

/// The same of an acknowledgement before the handler, which is asked for once.
fn fate_of_claim(source: usize, result: Result<(), TransportError>) -> Result<(), Fate> {
    result.map_err(|error| {
        let why = lockgate_core::with_sources(&error);
        match error.fate {
            Fate::Unknown => tracing::warn!(
                source,
                %why,
                "nobody knows if a message is acknowledged: it is not handled, and comes again unless it is"
            ),
            _ => tracing::warn!(
                source,
                %why,
                "a message cannot be acknowledged: it is not handled, and comes again"
            ),
        }
        error.fate
    })
}

/// What the user's function says of a message, if there is one; if it panics, what it would say of any. It knows the
/// messages of packs, and no packs.
fn ask<T: Default>(function: &ByMessage<T>, lease: &Lease) -> Option<T> {
    let is_message = lease.unreadable.is_none() && lease.at_once.is_none();
    let function = function.as_ref().filter(|_| is_message)?;
    let answer = catch_unwind(AssertUnwindSafe(|| function(&lease.message)));
    Some(answer.unwrap_or_else(|panic| {
        let text = panic_text(panic);
        tracing::error!(panic = %text, "a function of `fair_by`, `priority_by`, `cost_by` or `Coalesce::by` panicked");
        T::default()
    }))
}

/// The answers of a call, or that nobody knows: a source that does not answer must not keep its messages here.
async fn in_time<T>(
    longest: Duration,
    call: Call<Vec<Result<T, TransportError>>>,
    count: usize,
) -> Vec<Result<T, TransportError>> {
    let answers = timeout(longest, call).await;
    answers.unwrap_or_else(|_| {
        let error = format!("the source has not answered within {longest:?}");
        vec![TransportError::new(Fate::Unknown, error); count]
            .into_iter()
            .map(Err)
            .collect()
    })
}

fn wall_now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime(since_1970.map_or(0, floor_millis))
}

/// A lease lasts at least so long.
fn floor_millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX)
}

/// A call that did not come to its end.
fn broken(output: Result<Output, JoinError>) -> TransportError {
    let why = match output {
        Err(error) if error.is_panic() => {
            format!("the source panicked: {}", panic_text(error.into_panic()))
        }
        _ => "the call was dropped".to_owned(),
    };
    tracing::error!(%why, "a call of a source broke off");
    TransportError::new(Fate::Unknown, why)
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // Its value may panic in its turn when it is dropped.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
    text.unwrap_or_else(|| "without a text".to_owned())
}

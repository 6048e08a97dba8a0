//! Workers: a [dispatcher](crate::dispatch) over sources and a handler, on tokio.

mod clock;
mod coalesce;
mod packs;
mod shell;
mod source;
mod states;
#[cfg(test)]
mod tests;

use std::{fmt, future::Future, panic::catch_unwind, sync::Arc, time::Duration};

use lockgate_core::{
    HolderName, Key, Message, Millis, NameError, Source, SourceCapabilities, TransportError,
    limits::{Limits, Scoped},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

pub use self::clock::TokioClock;
pub(crate) use self::{clock::WorkerClock, source::Held};
pub use self::{
    coalesce::{Coalesce, CoalesceError},
    states::StateError,
};
use self::{
    shell::Shell,
    source::{AnySource, Opened},
};
use crate::{
    Backoff, Handler,
    dispatch::{
        DispatchCounts, DispatchOptions, Dispatcher, Fairness, KeyState, OptionsError, Order,
        SourceOptions, Stall,
    },
};

/// A settlement or an extension that has no answer for so long has failed: nobody knows whether it was done.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// What is asked of the worker's task.
#[derive(Debug)]
enum Ask {
    Pause,
    Resume,
    Drain(Duration),
    Explain(usize, Key, oneshot::Sender<Option<KeyState>>),
    State(oneshot::Sender<WorkerState>),
}

type ByFunction<T> = Arc<dyn Fn(&Message) -> T + Send + Sync>;
type ByMessage<T> = Option<ByFunction<T>>;

/// Makes a [`Worker`]: its sources, how much runs at the same time, and what happens to failures.
#[must_use]
pub struct WorkerBuilder {
    sources: Vec<(Arc<dyn AnySource>, u8)>,
    options: DispatchOptions,
    held_max: Option<usize>,
    lease: Option<Duration>,
    holder: Option<String>,
    cancel_grace: Duration,
    call_time_max: Duration,
    at_most_once: bool,
    key_states: bool,
    tenant: ByMessage<Option<Key>>,
    priority: ByMessage<u8>,
    cost: ByMessage<Option<u32>>,
    coalesce: Option<Coalesce>,
}

/// Handles messages until it is [drained](Self::drain). Messages of one key run one after the other, in
/// their order; those of different keys side by side.
///
/// A worker that is dropped ends at once: its async handlers are dropped where they stand, and their messages
/// come again when their leases end. A blocking handler goes on until it returns, and its outcome counts
/// nothing; its [`Context`](crate::Context) says that the run is cancelled.
#[derive(Debug)]
pub struct Worker {
    asks: mpsc::UnboundedSender<Ask>,
    ended: watch::Receiver<Option<Ended>>,
    task: JoinHandle<()>,
}

/// What a worker has done when it ends.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// What became of the messages.
    pub counts: DispatchCounts,
    /// Runs that panicked.
    pub panics: u64,
    /// Messages that are neither settled nor lost: the time for it was over. They come again when their
    /// leases end, unless they were acknowledged before their handlers
    /// ([`at_most_once`](WorkerBuilder::at_most_once)). [`usize::MAX`]: nobody knows, because the worker's runtime ended before it.
    pub left: usize,
    /// Why it ended, if nobody asked for it: the last of its sources is closed or refuses to give
    /// messages.
    pub error: Option<TransportError>,
}

/// How a worker is, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerState {
    /// What became of the messages so far.
    pub counts: DispatchCounts,
    /// Runs that panicked.
    pub panics: u64,
    /// Messages that are here: waiting, running, or on their way to be settled.
    pub held: usize,
    /// Runs that go on.
    pub running: usize,
    /// Whether work waits while nothing moves. It is also told as a warning, by `tracing`.
    pub stall: Option<Stall>,
    /// The last error of each source, until it answers well again.
    pub errors: Vec<Option<TransportError>>,
}

/// A worker that cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An option is out of range.
    #[error("the worker's options do not fit")]
    Options(#[from] OptionsError),
    /// The name of the holder is none.
    #[error("the name of the holder does not fit")]
    Holder(#[from] NameError),
    /// There is no lease.
    #[error(
        "source {source_number} gives leases of at most {max:?}, and {given:?} is asked for (lease)"
    )]
    Lease {
        /// The number of the source, from 0.
        source_number: usize,
        /// What is asked for.
        given: Duration,
        /// The longest one there is.
        max: Duration,
    },
    /// Another option does not go together with [`coalesce`](WorkerBuilder::coalesce).
    #[error("the worker's options do not go together")]
    Coalesce(#[from] CoalesceError),
    /// The worker cannot have the states of keys.
    #[error("a worker with key_states cannot be started: {why}")]
    KeyStates {
        /// Why.
        why: String,
    },
    /// It was not called within a tokio runtime.
    #[error("a worker starts within a tokio runtime: call it from an async function")]
    NoRuntime,
    /// The tokio runtime has no timers.
    #[error(
        "a worker needs the timers of its runtime: build the runtime with enable_time or enable_all"
    )]
    NoTimers,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("sources", &self.sources.len())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker over this source: an embedded queue, one of a server, or a
    /// [`MemoryQueue`](crate::MemoryQueue). Clones of a source are the same source.
    pub fn over(source: impl Source + 'static) -> WorkerBuilder {
        WorkerBuilder {
            sources: vec![(Arc::new(Opened::new(source)), 0)],
            options: DispatchOptions::default(),
            held_max: None,
            lease: None,
            holder: None,
            cancel_grace: Duration::ZERO,
            call_time_max: CALL_TIME_MAX,
            at_most_once: false,
            key_states: false,
            tenant: None,
            priority: None,
            cost: None,
            coalesce: None,
        }
    }

    /// Starts nothing and receives nothing until [`resume`](Self::resume). What waits here goes back to
    /// the sources; what runs goes on.
    pub fn pause(&self) {
        self.ask(Ask::Pause);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.ask(Ask::Resume);
    }

    /// Ends the work: receives nothing more, gives back what waits, lets what runs go on for up to `within`,
    /// cancels the rest, and settles what has ended. It takes at most 5 s longer than that (and the
    /// [`cancel_grace`](WorkerBuilder::cancel_grace)): then it gives up blocking handlers that go on, and
    /// sources that do not answer.
    ///
    /// # Cancellation
    /// If it is dropped, the worker ends at once.
    pub async fn drain(mut self, within: Duration) -> Ended {
        self.ask(Ask::Drain(within));
        self.wait().await
    }

    /// Works until `stop` is done, and then [drains](Self::drain). Returns earlier if the worker ends by
    /// itself, because all its sources are closed.
    ///
    /// ```no_run
    /// # async fn example(worker: lockgate_consumer::Worker) {
    /// use std::time::Duration;
    ///
    /// let interrupted = async { drop(tokio::signal::ctrl_c().await) };
    /// worker.run_until(interrupted, Duration::from_secs(30)).await;
    /// # }
    /// ```
    pub async fn run_until(mut self, stop: impl Future<Output = ()>, within: Duration) -> Ended {
        tokio::select! {
            ended = self.wait() => return ended,
            () = stop => {}
        }
        self.drain(within).await
    }

    /// Waits until the worker has ended by itself: when all its sources are closed and everything is
    /// settled.
    pub async fn ended(mut self) -> Ended {
        self.wait().await
    }

    async fn wait(&mut self) -> Ended {
        let ended = self.ended.wait_for(Option::is_some).await;
        ended
            .ok()
            .and_then(|ended| ended.clone())
            .unwrap_or_else(|| {
                // Its task has ended without a word.
                let error = "the worker's runtime has ended, or its task has panicked";
                Ended {
                    counts: DispatchCounts::default(),
                    panics: 0,
                    left: usize::MAX,
                    error: Some(TransportError::new(lockgate_core::Fate::Closed, error)),
                }
            })
    }

    /// Why a key of this source does not run, or that it does. `None`: nothing of it is here; if it has
    /// messages, the source has not handed them out.
    pub async fn explain(&self, source: usize, key: &Key) -> Option<KeyState> {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Explain(source, key.clone(), answer));
        answered.await.ok().flatten()
    }

    /// How it is. `None`: it has ended.
    pub async fn state(&self) -> Option<WorkerState> {
        self.watch().state().await
    }

    /// For whoever wants to see how it is while another has the worker.
    pub fn watch(&self) -> WorkerWatch {
        WorkerWatch(self.asks.clone())
    }

    fn ask(&self, ask: Ask) {
        // A worker that has ended has no more to do.
        let _ = self.asks.send(ask);
    }
}

/// Sees how a [`Worker`] is, and does not keep it alive.
#[derive(Clone, Debug)]
pub struct WorkerWatch(mpsc::UnboundedSender<Ask>);

impl WorkerWatch {
    /// As [`Worker::state`].
    pub async fn state(&self) -> Option<WorkerState> {
        let (answer, answered) = oneshot::channel();
        // A worker that has ended has no more to do.
        let _ = self.0.send(Ask::State(answer));
        answered.await.ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WorkerBuilder {
    /// Serves one more source. Each has an equal share of the messages that are held.
    pub fn and(self, source: impl Source + 'static) -> Self {
        self.and_with_priority(source, 0)
    }

    /// Serves one more source, whose messages run before those of sources with a lower priority; 0, that
    /// of the others, to 9. What waits rises by one each [`aging`](Self::aging), so that nothing starves.
    pub fn and_with_priority(mut self, source: impl Source + 'static, priority: u8) -> Self {
        self.sources.push((Arc::new(Opened::new(source)), priority));
        self
    }

    /// Sets how many runs there may be at the same time; 1 to 65,536. Default: 16.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.options.concurrency = runs;
        self
    }

    /// How many runs there may be at the same time, as far as it is set.
    pub fn runs_max(&self) -> usize {
        self.options.concurrency
    }

    /// Sets which messages wait for each other. Default: those of one key.
    pub fn order(mut self, order: Order) -> Self {
        self.options.order = order;
        self
    }

    /// Sets how many consecutive messages of one key a run may have; 1 to 65,536. Default: 1.
    pub fn run_max(mut self, messages: usize) -> Self {
        self.options.run_max = messages;
        self
    }

    /// Lets one run cover all messages of its key that are here: they are acknowledged together when it succeeds. Then
    /// `run_max` stays 1, and [`limits`](Self::limits) count a run as one start, at the cost of its first message. Default:
    /// each message is handled by itself.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lockgate_consumer::{Coalesce, Job, MemoryQueue, Worker, coalesce::Merge};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let queue = MemoryQueue::new(Default::default())?;
    /// // The newest message counts, when no other has come for a second, or after ten.
    /// let newest = Coalesce::new(Merge::KeepLast);
    /// let newest = newest.debounce(Duration::from_secs(1), Duration::from_secs(10));
    /// let worker = Worker::over(queue).coalesce(newest).start(|job: Job| async move {
    ///     println!("refresh {:?} for {} messages", job.key(), job.covers());
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn coalesce(mut self, coalesce: Coalesce) -> Self {
        self.options.coalescing = Some(coalesce.options);
        self.coalesce = Some(coalesce);
        self
    }

    /// Sets how long a run may take before it is cancelled; 1 ms or more. An async handler is dropped (after
    /// the [`cancel_grace`](Self::cancel_grace)), and counts as failed. A blocking one cannot be stopped: it
    /// holds its place and its key until it returns, and what it returns counts. Default: no limit.
    pub fn run_time_max(mut self, time: Duration) -> Self {
        self.options.run_time_max = Some(millis(time));
        self
    }

    /// Sets how many messages may be here at the same time: running, waiting for room or a retry, or on
    /// their way to be settled; as many as there are sources to 16,777,216. A [pack](lockgate_core::pack) counts as one.
    /// Default: 256, or four for each run if that is more.
    pub fn held_max(mut self, messages: usize) -> Self {
        self.held_max = Some(messages);
        self
    }

    /// Sets how many bytes of messages may be here before nothing more is received. One receive may exceed
    /// it by its answer, and by 32 MiB of what is in its [packs](lockgate_core::pack): packs for which there is no room go
    /// back unopened. A message of a pack counts 512 bytes more than it has, and each of its headers 128. Default: 64 MiB.
    pub fn held_bytes_max(mut self, bytes: u64) -> Self {
        self.options.held_bytes_max = bytes;
        self
    }

    /// Sets how many attempts a message gets before it is rejected; 1 or more. For sources without a limit
    /// of their own, see [`DispatchOptions::attempts_max`]. Default: no limit.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.options.attempts_max = Some(attempts);
        self
    }

    /// Sets how long a failed message waits before it is tried again. Default: see [`Backoff`].
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// Sets how long leases last, where the source lets that be chosen; they are extended while their
    /// messages are here. A crash of this process holds up its keys for so long. Default: 30 s, or the
    /// source's longest if that is less.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the name by which the sources know this worker, up to 128 bytes. Default: `worker`, with the
    /// number of the process.
    pub fn holder(mut self, name: impl Into<String>) -> Self {
        self.holder = Some(name.into());
        self
    }

    /// Lets tenants take turns in place of keys: `tenant` says whose share a message takes. Messages for
    /// which it returns `None` share one.
    pub fn fair_by(
        mut self,
        tenant: impl Fn(&Message) -> Option<Key> + Send + Sync + 'static,
    ) -> Self {
        self.options.fairness = Fairness::Tenants;
        self.tenant = Some(Arc::new(tenant));
        self
    }

    /// Says which messages without a key run before others: 0 to 9; a higher number counts as 9. Within a key
    /// the order counts. Default: the message's own [`priority`](Message::priority).
    pub fn priority_by(
        mut self,
        priority: impl Fn(&Message) -> u8 + Send + Sync + 'static,
    ) -> Self {
        self.priority = Some(Arc::new(priority));
        self
    }

    /// Limits how often messages start, and how many go on: [`queue`](Scoped::queue) all of this worker together,
    /// [`key`](Scoped::key) each key, whichever source it comes from; messages without a key count as one. What a
    /// limit holds waits in its order, and takes no run.
    ///
    /// The limits are of this process, and forgotten when it ends; those of a Lockgate queue (`limit_rate` and others)
    /// hold for all its consumers together. A message that a limit of its key holds for a second or longer goes back to
    /// its source until then, if the source can defer it (an embedded queue and a server's); over others it waits here,
    /// among the [`held_max`](Self::held_max) messages. So do the messages of a [pack](lockgate_core::pack) of which one has
    /// run. Default: no limits.
    ///
    /// ```
    /// use lockgate_consumer::{Job, MemoryQueue, Worker, limits::{Limits, Rate, Scoped}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let queue = MemoryQueue::new(Default::default())?;
    /// let each_key = Limits { rate: Some(Rate::new(10, 1_000)?), ..Limits::default() };
    /// let in_all = Limits { concurrency: Some(3), ..Limits::default() };
    /// let limits = Scoped { queue: Some(in_all), key: Some(each_key) };
    /// let worker = Worker::over(queue).limits(limits).start(|_: Job| async { Ok(()) })?;
    /// # Ok(()) }
    /// ```
    pub fn limits(mut self, limits: Scoped<Limits>) -> Self {
        self.options.limits = limits;
        self
    }

    /// Says how many units a message costs under the [`limits`](Self::limits), for a callee that bills per unit: 1 to
    /// 1,000,000,000. A message that costs none, or more than a limit ever admits, is rejected. Default: 1.
    pub fn cost_by(mut self, cost: impl Fn(&Message) -> u32 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(move |message| Some(cost(message))));
        self
    }

    /// Sets in what time a waiting message rises by one priority; 1 ms or more. [`Duration::MAX`]: never.
    /// Default: 1 s.
    pub fn aging(mut self, time: Duration) -> Self {
        self.options.aging = millis(time);
        self
    }

    /// Sets how long work may wait while nothing moves before that is told; 1 ms or more. Default: 60 s.
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.options.stall_after = millis(time);
        self
    }

    /// Sets how long a cancelled async handler may go on before it is dropped, so that it can clean up (see
    /// [`Context::cancelled`](crate::Context::cancelled)). If its lease is lost, somebody else may have
    /// the message meanwhile. Default: not at all.
    pub fn cancel_grace(mut self, time: Duration) -> Self {
        self.cancel_grace = time;
        self
    }

    /// Acknowledges each message before its handler begins, so that no message is handled twice, and a
    /// message whose handler fails, or whose process ends, is gone. A message that is acknowledged locks its key
    /// no more, so another worker may have the next one of the key while this handler runs. Default: at least
    /// once. Such a worker takes no [packs](lockgate_core::pack): one acknowledgement would count for messages that have
    /// not begun. A pack that comes fails, and nothing in it is lost.
    pub fn at_most_once(mut self) -> Self {
        self.at_most_once = true;
        self
    }

    /// Gives handlers the state of the message's key ([`Job::state`](crate::Job::state)), and writes what they set
    /// ([`Job::set_state`](crate::Job::set_state)) together with the acknowledgement: both happen, or none. The queue must
    /// keep states, as keyed queues of Lockgate do. A [pack](lockgate_core::pack) that comes fails: one settlement cannot
    /// carry the states of all that is in it. Default: no.
    ///
    /// ```
    /// # use lockgate_consumer::{Failure, Job, Worker};
    /// # fn example(accounts: impl lockgate_core::Source + 'static) -> Result<Worker, Box<dyn std::error::Error>> {
    /// let worker = Worker::over(accounts).key_states().start(|job: Job| async move {
    ///     let balance: i64 = job.state()?.unwrap_or_default();
    ///     let amount: i64 = std::str::from_utf8(job.body())?.parse()?;
    ///     job.set_state(&(balance + amount))?;
    ///     Ok(())
    /// })?;
    /// # Ok(worker) }
    /// ```
    pub fn key_states(mut self) -> Self {
        self.key_states = true;
        self
    }

    /// Starts the worker on this tokio runtime.
    ///
    /// # Errors
    /// If an option is out of range, or there is no runtime, or it has no timers.
    pub fn start<H: Handler>(mut self, handler: H) -> Result<Worker, StartError> {
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.map_err(|_| StartError::NoRuntime)?;
        // Tokio has no other way to ask.
        catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO)))
            .map_err(|_| StartError::NoTimers)?;
        if let Some(coalesce) = &self.coalesce {
            coalesce.check(&self)?;
        }
        let holder = self.holder.take();
        let holder = holder.unwrap_or_else(|| format!("worker {}", std::process::id()));
        let holder = HolderName::new(&holder)?;
        let least = self.options.held_max;
        self.options.held_max = self.held_max.unwrap_or_else(|| {
            let runs = self.options.concurrency.saturating_mul(4);
            runs.clamp(least, DispatchOptions::HELD_MAX)
        });
        let mut sources = Vec::with_capacity(self.sources.len());
        for (number, (source, priority)) in self.sources.iter().enumerate() {
            let can = source.capabilities();
            let max = can.lease_max;
            if self.key_states {
                self.check_key_states(number, &can)?;
            }
            let mut options = SourceOptions::new(can);
            if self.key_states {
                // Each key that has a new state is a call of its own.
                let calls = states::CALLS_MAX.max(self.options.run_max);
                let settle_max = &mut options.capabilities.settle_max;
                *settle_max = calls.min(*settle_max);
            }
            options.priority = *priority;
            if let Some(given) = self.lease.filter(|_| !max.is_zero()) {
                if given > max || given.is_zero() {
                    return Err(StartError::Lease {
                        source_number: number,
                        given,
                        max,
                    });
                }
                options.lease = Some(millis(given));
            }
            sources.push(options);
        }
        let dispatcher = Dispatcher::new(self.options.clone(), sources, 0)?;
        let (asks, asked) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(None);
        let shell = Shell::new(self, dispatcher, holder, handler, WorkerClock::start());
        let task = runtime.spawn(async move {
            let ended = shell.run(asked).await;
            end.send_replace(Some(ended));
        });
        Ok(Worker { asks, ended, task })
    }
}

impl WorkerBuilder {
    fn no_packs(&self) -> Option<&'static str> {
        if self.at_most_once {
            let why = "a worker with at_most_once cannot take a pack apart: let the producers of this queue not pack";
            return Some(why);
        }
        let why = "a worker with key_states cannot take a pack apart: let the producers of this queue not pack";
        self.key_states.then_some(why)
    }

    fn check_key_states(&self, number: usize, can: &SourceCapabilities) -> Result<(), StartError> {
        let max = can.settle_max;
        let why = if self.at_most_once {
            "it acknowledges messages before their handlers begin, and a state is written with the acknowledgement \
             (at_most_once)"
                .to_owned()
        } else if self.options.order != Order::Key {
            "messages of one key must wait for each other (order)".to_owned()
        } else if !can.key_states {
            format!("source {number} keeps no states of keys")
        } else if self.options.run_max > max {
            format!(
                "source {number} settles {max} messages together, and a run may have more (run_max)"
            )
        } else {
            return Ok(());
        };
        Err(StartError::KeyStates { why })
    }
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}

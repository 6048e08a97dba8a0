//! Process and forward: a source, workers, and a producer in front of a sink.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_consumer::{Ended, Failure, Job, StartError, Worker, WorkerBuilder, WorkerState};
use lockgate_core::{Fate, Message, MessageName, Sink, UniqueId};
use tokio::{task::spawn_blocking, time::Instant};
use tracing::warn;

use crate::{DropReason, Figures, Producer, SendError};

/// Workers that take messages from a source, make other messages of them, and hand those to a [`Producer`]. A message
/// is acknowledged to its source only when all that was made of it has reached the level.
///
/// A message that fails, or whose records are given up, comes again as its source has it; one that the sink refuses is
/// rejected. What is made of a message gets the message's name as its unique id, if it has none and the sink takes one:
/// so if the message comes again after its records were delivered, the sink knows them for as long as its window lasts.
///
/// ```
/// use lockgate_consumer::{Failure, Job, MemoryOptions, MemoryQueue, Worker};
/// use lockgate_core::Message;
/// use lockgate_producer::{Pipeline, Producer, ProducerOptions, testing::TestSink};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (source, sink) = (MemoryQueue::new(MemoryOptions::default())?, TestSink::new());
/// let producer = Producer::open(sink.clone(), ProducerOptions::default()).await?;
/// let pipeline = Pipeline::start(
///     Worker::over(source.clone()).concurrency(8),
///     producer,
///     |job: Job| async move {
///         let text = String::from_utf8_lossy(job.body()).to_uppercase();
///         Ok::<_, Failure>(vec![Message::new(text)])
///     },
/// )?;
/// source.push(Message::new("click")).await?;
/// source.close();
/// let ended = pipeline.ended().await;
/// assert_eq!(ended.counts.acknowledged, 1);
/// assert_eq!(sink.messages()[0].body, "CLICK");
/// # Ok(())
/// # }
/// ```
pub struct Pipeline<S: Sink + 'static> {
    worker: Worker,
    producer: Producer<S>,
    meter: Arc<Meter>,
}

/// What happens between a source and a sink.
struct Meter {
    started: Instant,
    began: AtomicU64,
    ended: AtomicU64,
    /// Nanoseconds that work took, and that its records waited for their level.
    worked: AtomicU64,
    waited: AtomicU64,
}

/// How a pipeline does, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PipelineFigures {
    /// Since when it has counted.
    pub elapsed: Duration,
    /// The worker: what it holds, and what became of messages. `None`: it has ended.
    pub worker: Option<WorkerState>,
    /// Messages on which work began, and those on which it ended, well or not, with the wait for their level.
    pub began: u64,
    /// Messages on which work ended.
    pub ended: u64,
    /// How long the work itself took in all: divided by `elapsed` and by the worker's concurrency, it is how much of the
    /// workers is in use.
    pub worked: Duration,
    /// How long workers waited in all until records had reached their level.
    pub waited: Duration,
    /// The producer.
    pub producer: Figures,
}

impl PipelineFigures {
    /// Messages that one worker can take in a second, by what work took so far; `None` before the first one ended.
    #[must_use]
    pub fn service_rate(&self) -> Option<f64> {
        let worked = self.worked.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
        (self.ended > 0 && worked > 0.0).then(|| self.ended as f64 / worked)
    }
}

impl<S: Sink + 'static> fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl<S: Sink + 'static> Pipeline<S> {
    /// Starts the workers. They do `work` on each message, keyed messages in their order; the messages that it returns go
    /// to the producer at its [level](crate::ProducerOptions::level), in their order.
    ///
    /// # Errors
    /// If the worker cannot begin.
    pub fn start<F, Working>(
        worker: WorkerBuilder,
        producer: Producer<S>,
        work: F,
    ) -> Result<Self, StartError>
    where
        F: Fn(Job) -> Working + Send + Sync + 'static,
        Working: Future<Output = Result<Vec<Message>, Failure>> + Send,
    {
        let meter = Arc::new(Meter {
            started: Instant::now(),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        });
        let work = Arc::new(work);
        let (to, metered) = (producer.clone(), meter.clone());
        let worker = worker.start(move |job: Job| {
            let (work, producer, meter) = (work.clone(), to.clone(), metered.clone());
            async move {
                let name = job.name().cloned();
                let working = meter.work();
                let made = work(job).await;
                let waiting = working.wait();
                let result = forward(&producer, name.as_ref(), made?).await;
                drop(waiting);
                result
            }
        })?;
        Ok(Self {
            worker,
            producer,
            meter,
        })
    }

    /// The same for work that blocks its thread; it runs on tokio's pool of blocking threads.
    ///
    /// # Errors
    /// If the worker cannot begin.
    pub fn start_blocking<F>(
        worker: WorkerBuilder,
        producer: Producer<S>,
        work: F,
    ) -> Result<Self, StartError>
    where
        F: Fn(Job) -> Result<Vec<Message>, Failure> + Send + Sync + 'static,
    {
        let work = Arc::new(work);
        Self::start(worker, producer, move |job| {
            let work = work.clone();
            async move {
                let made = spawn_blocking(move || work(job)).await;
                made.unwrap_or_else(|panic| Err(Failure::retry(panic, None)))
            }
        })
    }

    /// How it does.
    pub async fn figures(&self) -> PipelineFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PipelineFigures {
            elapsed: self.meter.started.elapsed(),
            worker: self.worker.state().await,
            began: load(&self.meter.began),
            ended: load(&self.meter.ended),
            worked: Duration::from_nanos(load(&self.meter.worked)),
            waited: Duration::from_nanos(load(&self.meter.waited)),
            producer: self.producer.figures(),
        }
    }

    /// Receives nothing more, ends what is under way, and gives back the rest, within that time; then waits as long again
    /// at most until the producer has sent what it accepted.
    pub async fn drain(self, within: Duration) -> Ended {
        let ended = self.worker.drain(within).await;
        let _in_time = tokio::time::timeout(within, self.producer.flush()).await;
        ended
    }

    /// Waits until the source is closed, its last message is done, and the producer has sent what it accepted.
    pub async fn ended(self) -> Ended {
        let ended = self.worker.ended().await;
        self.producer.flush().await;
        ended
    }
}

/// Sends what was made of a message, and waits until all of it has reached the producer's level.
async fn forward<S: Sink + 'static>(
    producer: &Producer<S>,
    name: Option<&MessageName>,
    made: Vec<Message>,
) -> Result<(), Failure> {
    let mut tickets = Vec::with_capacity(made.len());
    for (number, mut message) in made.into_iter().enumerate() {
        if message.unique_id.is_none()
            && producer.takes_unique_ids()
            && let Some(name) = name
        {
            message.unique_id = UniqueId::new(&format!("{name}/{number}")).ok();
        }
        let ticket = producer.send(message).start().await;
        tickets.push(ticket.map_err(|refused| failure(&SendError::Refused(refused)))?);
    }
    for ticket in tickets {
        ticket.await.map_err(|error| failure(&error))?;
    }
    Ok(())
}

/// What a send that failed means for the message of which it was made.
fn failure(error: &SendError) -> Failure {
    let never = match error {
        SendError::Refused(refused) => !matches!(refused.why, crate::Refusal::Full(_)),
        SendError::Dropped { reason, source, .. } => {
            let fate = source.as_ref().map(|source| source.fate);
            let is_never = fate.is_some_and(Fate::is_never);
            *reason == DropReason::Refused || is_never
        }
    };
    let text = lockgate_core::with_sources(error);
    match never {
        true => {
            warn!(why = text, "a message is rejected");
            Failure::reject(text)
        }
        false => Failure::retry(text, None),
    }
}

impl Meter {
    fn work(self: &Arc<Self>) -> Spell {
        self.began.fetch_add(1, Ordering::Relaxed);
        Spell {
            meter: self.clone(),
            since: Instant::now(),
            is_wait: false,
        }
    }
}

/// A stretch of time that is counted when it ends, however it does.
struct Spell {
    meter: Arc<Meter>,
    since: Instant,
    is_wait: bool,
}

impl Spell {
    /// The work is done, and its records wait for their level.
    fn wait(mut self) -> Self {
        self.count();
        self.since = Instant::now();
        self.is_wait = true;
        self
    }

    fn count(&self) {
        let counter = match self.is_wait {
            true => &self.meter.waited,
            false => &self.meter.worked,
        };
        let nanos = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counter.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Drop for Spell {
    fn drop(&mut self) {
        self.count();
        self.meter.ended.fetch_add(1, Ordering::Relaxed);
    }
}

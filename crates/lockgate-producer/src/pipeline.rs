//! Process and forward: a source, workers, and a producer in front of a sink.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_consumer::{
    Ended, Failure, Job, StartError, Worker, WorkerBuilder, WorkerState, WorkerWatch,
};
use lockgate_core::{Fate, Message, MessageName, Sink, UniqueId};
use tokio::{task::spawn_blocking, time::Instant};
use tracing::warn;

use crate::{
    DropReason, Figures, Producer, SendError,
    sizing::{Model, Reading, ReadingError, Readings},
};

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

/// Sees how a [`Pipeline`] does. It keeps the producer, but not the workers.
pub struct PipelineWatch<S: Sink + 'static> {
    worker: WorkerWatch,
    producer: Producer<S>,
    meter: Arc<Meter>,
}

/// What happens between a source and a sink.
struct Meter {
    started: Instant,
    /// What the producer had counted before.
    before: Figures,
    runs_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    ended: u64,
    working: Spells,
    waiting: Spells,
}

/// Stretches of time, of which several go on at once.
#[derive(Clone, Copy, Default)]
struct Spells {
    now: u64,
    begun: u64,
    /// The ends of those that are over less the begins of all, in nanoseconds since the meter started.
    nanos: i128,
}

/// How a pipeline does, at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PipelineFigures {
    /// Since when it has counted.
    pub elapsed: Duration,
    /// The worker: what it holds, and what became of messages. `None`: it has ended.
    pub worker: Option<WorkerState>,
    /// Messages on which it works at the same time at most.
    pub workers: usize,
    /// Messages on which work began.
    pub began: u64,
    /// Messages on which work ended, well or not, with the wait for their level.
    pub ended: u64,
    /// Messages on which the work itself goes on.
    pub working: u64,
    /// Messages whose records wait for their level. Each has a worker, as those that are worked on have.
    pub waiting: u64,
    /// How long the work itself took in all, that which goes on included.
    pub worked: Duration,
    /// How long workers waited in all for room in the producer and until records had reached their level, those included
    /// that still wait.
    pub waited: Duration,
    /// The producer. It counts from its own opening on.
    pub producer: Figures,
    /// What the producer had counted when the pipeline started.
    before: Figures,
}

/// How a stage of a pipeline does. Its rate and its utilisation are averages since the pipeline started: for those of a
/// shorter time, compare figures of two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageFigures {
    /// `work`: messages that came, and the workers. `sink`: records in the producer, and batches on their way to the sink.
    pub name: &'static str,
    /// Messages or records that wait now, those not counted that are worked on or sent.
    pub depth: u64,
    /// Messages a second that are done, or records that the sink has confirmed.
    pub per_second: f64,
    /// Share of the workers, or of the batches that may be sent at the same time, that is in use: 0 to 1.
    pub utilisation: f64,
}

impl PipelineFigures {
    /// Messages that one worker can take in a second, as long as the sink is as fast as it was: a worker is taken by the
    /// work and by the wait for the level. `None` before the first one ended.
    #[must_use]
    pub fn service_rate(&self) -> Option<f64> {
        let taken = self.taken().as_secs_f64();
        (self.ended > 0 && taken > 0.0).then(|| float(self.ended) / taken)
    }

    /// How the workers do, and how the producer and its sink do.
    #[must_use]
    pub fn stages(&self) -> [StageFigures; 2] {
        let elapsed = self.elapsed.as_secs_f64();
        let by = |sum: f64, by: f64| if by > 0.0 { sum / by } else { 0.0 };
        let Figures {
            pending,
            in_flight,
            delivered,
            sending,
            batches_in_flight_max,
            ..
        } = self.producer;
        let held = self.worker.as_ref().map_or(0, |worker| worker.held as u64);
        let sent = sending.saturating_sub(self.before.sending).as_secs_f64();
        let workers = float(self.workers as u64);
        [
            StageFigures {
                name: "work",
                depth: held.saturating_sub(self.working + self.waiting),
                per_second: by(float(self.ended), elapsed),
                utilisation: by(self.taken().as_secs_f64(), elapsed * workers).min(1.0),
            },
            StageFigures {
                name: "sink",
                depth: pending.saturating_sub(in_flight),
                per_second: by(float(delivered - self.before.delivered), elapsed),
                utilisation: by(sent, elapsed * float(batches_in_flight_max)).min(1.0),
            },
        ]
    }

    /// A model for [sizing](crate::sizing) of what was measured since the pipeline started: a stage `work` and a stage
    /// `sink`, in messages of the source. See [`Readings::model`].
    ///
    /// # Errors
    /// Too little has happened.
    pub fn model(&self) -> Result<Model, ReadingError> {
        let mut readings = Readings::default();
        let reading = self.reading();
        readings.add(0.0, self.since(&reading))?;
        readings.add(self.elapsed.as_secs_f64(), reading)?;
        readings.model(None)
    }

    /// The figures in the text format of Prometheus: those of the producer, and `lockgate_pipeline_...` beside them, each
    /// with the label `producer`.
    #[must_use]
    pub fn prometheus(&self, producer: &str) -> String {
        let [work, _] = self.stages();
        let counted = |name, help, value: f64| (name, help, "counter", value);
        let metrics = [
            counted(
                "began_total",
                "Messages on which work began.",
                float(self.began),
            ),
            counted(
                "ended_total",
                "Messages on which work ended, with the wait for their level.",
                float(self.ended),
            ),
            counted(
                "worked_seconds_total",
                "Seconds of workers that work took.",
                self.worked.as_secs_f64(),
            ),
            counted(
                "waited_seconds_total",
                "Seconds of workers that waited for the level of their records.",
                self.waited.as_secs_f64(),
            ),
            (
                "depth",
                "Messages here that wait for a worker.",
                "gauge",
                float(work.depth),
            ),
            (
                "busy",
                "Workers that work or wait for a level.",
                "gauge",
                float(self.working + self.waiting),
            ),
            (
                "workers",
                "Workers that there are.",
                "gauge",
                float(self.workers as u64),
            ),
        ];
        let mut text = self.producer.prometheus(producer);
        for (name, help, kind, value) in metrics {
            text.push_str(&crate::figures::metric(
                &format!("lockgate_pipeline_{name}"),
                help,
                kind,
                producer,
                value,
            ));
        }
        text
    }

    /// For how long workers were taken.
    fn taken(&self) -> Duration {
        self.worked + self.waited
    }

    /// What was counted, for a model.
    fn reading(&self) -> Reading {
        Reading {
            workers: float(self.workers as u64),
            began: float(self.began),
            ended: float(self.ended),
            taken_seconds: self.taken().as_secs_f64(),
            ..Reading::of(&self.producer)
        }
    }

    /// What was counted when the pipeline started.
    fn since(&self, now: &Reading) -> Reading {
        Reading {
            workers: now.workers,
            ..Reading::of(&self.before)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
fn float(count: u64) -> f64 {
    count as f64
}

impl<S: Sink + 'static> PipelineWatch<S> {
    /// As [`Pipeline::figures`].
    pub async fn figures(&self) -> PipelineFigures {
        let worker = self.worker.state().await;
        let (counts, elapsed) = (*self.meter.counts(), self.meter.started.elapsed());
        PipelineFigures {
            elapsed,
            worker,
            workers: self.meter.runs_max,
            began: counts.working.begun,
            ended: counts.ended,
            working: counts.working.now,
            waiting: counts.waiting.now,
            worked: counts.working.total(elapsed),
            waited: counts.waiting.total(elapsed),
            producer: self.producer.figures(),
            before: self.meter.before.clone(),
        }
    }
}

impl<S: Sink + 'static> fmt::Debug for PipelineWatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineWatch").finish_non_exhaustive()
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
            before: producer.figures(),
            runs_max: worker.runs_max(),
            counts: Mutex::default(),
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
        self.watch().figures().await
    }

    /// For whoever wants to see how it does while another has the pipeline.
    #[must_use]
    pub fn watch(&self) -> PipelineWatch<S> {
        PipelineWatch {
            worker: self.worker.watch(),
            producer: self.producer.clone(),
            meter: self.meter.clone(),
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
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(self: &Arc<Self>) -> Spell {
        let mut counts = self.counts();
        counts.working.begin(self.started.elapsed());
        drop(counts);
        Spell {
            meter: self.clone(),
            is_wait: false,
        }
    }
}

impl Spells {
    fn begin(&mut self, at: Duration) {
        self.now += 1;
        self.begun += 1;
        self.nanos -= nanos(at);
    }

    fn end(&mut self, at: Duration) {
        self.now = self.now.saturating_sub(1);
        self.nanos += nanos(at);
    }

    /// How long all took together until then.
    fn total(&self, at: Duration) -> Duration {
        let total = self.nanos + i128::from(self.now) * nanos(at);
        Duration::from_nanos(u64::try_from(total.max(0)).unwrap_or(u64::MAX))
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

/// A message that has a worker: first it is worked on, then its records wait. However that ends, it is counted.
struct Spell {
    meter: Arc<Meter>,
    is_wait: bool,
}

impl Spell {
    /// The work is done, and its records wait for their level.
    fn wait(mut self) -> Self {
        let mut counts = self.meter.counts();
        let now = self.meter.started.elapsed();
        counts.working.end(now);
        counts.waiting.begin(now);
        drop(counts);
        self.is_wait = true;
        self
    }
}

impl Drop for Spell {
    fn drop(&mut self) {
        let mut counts = self.meter.counts();
        let now = self.meter.started.elapsed();
        match self.is_wait {
            true => counts.waiting.end(now),
            false => counts.working.end(now),
        }
        counts.ended += 1;
    }
}

//! The producer: callers on one side, the sink and the spool on the other, and the machine between them.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lockgate_core::{
    Accepted, Fate, Message, Millis, ProducerIncarnation, ProducerName, Sink, SinkCapabilities,
    TransportError, WallTime, with_sources,
};
use tokio::{
    sync::{Notify, futures::Notified, oneshot, watch},
    task::{self, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use crate::{
    AnswerLevel, DropReason, Figures, OptionsError, ProducerOptions, Refusal, Refused, Send,
    SpoolError, SpoolReport, TenantFn, Ticket,
    buffer::{Buffer, Lack, Loaded, NoRoom, Offered, RefusedOf, Told, Used, Work},
    clock::{ProducerClock, millis},
    spool::{
        Store,
        codec::message_len,
        record_bytes_max,
        thread::{self as spool_thread, Employer, Over},
    },
};

type Tell<I> = oneshot::Sender<Told<I>>;
type SinkBuffer<S> = Buffer<Tell<<S as Sink>::Id>, <S as Sink>::Id>;

/// A producer in front of a [`Sink`]: see the [crate](crate). Clones are the same producer, and the last that is dropped
/// stops it as [`close`](Self::close) does, without waiting.
pub struct Producer<S: Sink + 'static>(Arc<Owner<S>>);

/// Stops the producer when the last clone is dropped.
struct Owner<S: Sink + 'static> {
    inner: Arc<Inner<S>>,
}

struct Inner<S: Sink + 'static> {
    sink: S,
    can: SinkCapabilities,
    name: ProducerName,
    level: AnswerLevel,
    deliver_within: Option<Millis>,
    send_timeout: Duration,
    tenant: Option<Arc<TenantFn>>,
    spool_bytes_max: Option<u64>,
    /// Whether packs are compressed where that pays.
    compress: bool,
    report: Option<SpoolReport>,
    clock: ProducerClock,
    buffer: Mutex<SinkBuffer<S>>,
    /// Wakes the thread of the spool.
    bell: Condvar,
    /// Wakes the task that sends.
    driver: Notify,
    /// Wakes callers that wait for room.
    room: Notify,
    /// Changes when records are over, or the spool has done something.
    progress: watch::Sender<u64>,
    random: RandomState,
    drawn: AtomicU64,
    stopped: watch::Sender<Stopped>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stopped {
    /// Nothing is sent any more.
    sending: bool,
    /// The thread of the spool may end.
    spool: bool,
    /// It has ended, or there is none.
    spool_ended: bool,
}

/// Why a producer could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options are wrong.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The system gives no random numbers, or starts no thread.
    #[error("the system gives no random numbers or no thread")]
    System(#[source] std::io::Error),
}

/// What [`Producer::close`] leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// What the producer has counted.
    pub figures: Figures,
    /// Records that are in the spool and were not delivered. The next producer that opens it sends them.
    pub left: u64,
}

impl<S: Sink + 'static> Clone for Producer<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Sink + 'static> fmt::Debug for Producer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Producer");
        it.field("name", &self.0.inner.name).finish_non_exhaustive()
    }
}

impl<S: Sink + 'static> Producer<S> {
    /// Opens a producer. If it has a spool, what an earlier run has left there is sent from now on, and before new records
    /// of the same keys. The sink need not be reachable. Call it within a tokio runtime, in which the producer's task then runs.
    ///
    /// # Errors
    /// If the options are wrong or the spool cannot be used. Damage in the spool is no error: the
    /// [report](Self::spool_report) counts it.
    pub async fn open(sink: S, options: ProducerOptions) -> Result<Self, OpenError> {
        let can = sink.sink_capabilities();
        options.check(&can)?;
        let opening = random()?;
        let random_name = random()?;
        let new_name = move || {
            let name = format!("{opening:016x}{random_name:016x}");
            ProducerName::new(&name).unwrap_or_else(|_| unreachable!("hexadecimal digits"))
        };
        let (mut store, mut recovered, mut report) = (None, None, None);
        if let Some(spool) = options.spool.clone() {
            let name = options.name.clone();
            let opened = task::spawn_blocking(move || Store::open(&spool, name.as_ref(), new_name));
            let opened = opened.await.map_err(|_| interrupted())??;
            store = Some(opened.0);
            recovered = Some(opened.1);
            report = Some(opened.2);
        }
        let name = match (&recovered, &options.name) {
            (Some(recovered), _) => recovered.name.clone(),
            (None, Some(name)) => name.clone(),
            (None, None) => new_name(),
        };
        let clock = ProducerClock::start();
        let now = clock.now();
        let spool = options.spool.as_ref();
        let inner = Arc::new(Inner {
            buffer: Mutex::new(Buffer::new(
                &options,
                &can,
                name.clone(),
                opening,
                recovered,
                now,
            )),
            sink,
            can,
            name,
            level: options.level,
            deliver_within: options.deliver_within.map(millis),
            send_timeout: options.send_timeout,
            tenant: options.quota.as_ref().map(|it| it.tenant.clone()),
            spool_bytes_max: spool.map(|it| record_bytes_max(it.file_bytes) as u64),
            compress: options.pack.is_some_and(|pack| pack.compress),
            report,
            clock,
            bell: Condvar::new(),
            driver: Notify::new(),
            room: Notify::new(),
            progress: watch::Sender::new(0),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
            stopped: watch::Sender::new(Stopped {
                spool_ended: store.is_none(),
                ..Stopped::default()
            }),
        });
        if let Some(store) = store {
            spawn_spool(&inner, store).map_err(OpenError::System)?;
        }
        tokio::spawn(drive(inner.clone()));
        Ok(Self(Arc::new(Owner { inner })))
    }

    /// Sends a message, to be awaited: waits for room if the policy says so, and then for its level.
    ///
    /// Messages of one key are delivered in the order in which they were accepted.
    pub fn send(&self, message: Message) -> Send<'_, S> {
        Send {
            producer: self,
            message,
            level: self.0.inner.level,
            within: None,
            patience: None,
        }
    }

    /// Accepts a message if there is room now. The ticket waits for the level.
    ///
    /// # Errors
    /// If it is not accepted.
    pub fn try_send(&self, message: Message) -> Result<Ticket<S::Id>, Refused> {
        self.send(message).try_start()
    }

    /// The level of its sends, where they say no other.
    #[must_use]
    pub fn level(&self) -> AnswerLevel {
        self.0.inner.level
    }

    pub(crate) fn takes_unique_ids(&self) -> bool {
        self.0.inner.can.unique_ids
    }

    /// The producer's name at the sink.
    #[must_use]
    pub fn name(&self) -> &ProducerName {
        &self.0.inner.name
    }

    /// What was found in the spool; `None` without one.
    #[must_use]
    pub fn spool_report(&self) -> Option<&SpoolReport> {
        self.0.inner.report.as_ref()
    }

    /// What it has counted, and what it holds.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.inner.with(|buffer, now| buffer.figures_at(now))
    }

    /// What the sink said, if nothing is sent any more because another has taken over: a producer with this one's name or
    /// with a copy of its spool ([`producer_refused`](TransportError::producer_refused)), or, where the sink has a
    /// [fence](Sink::fenced), a later leader. What is in the spool stays there, and a producer that opens it over a sink
    /// of a current term sends it.
    #[must_use]
    pub fn fenced(&self) -> Option<TransportError> {
        self.0.inner.lock().fenced()
    }

    /// Sends without waiting for fuller batches, and waits until nothing is pending, or nothing can be sent any more: the
    /// producer is closed or [fenced](Self::fenced), or its spool has failed and memory is empty.
    ///
    /// # Cancellation
    /// A call that is dropped has changed nothing.
    pub async fn flush(&self) {
        let inner = &self.0.inner;
        let _hurry = Hurry::new(inner);
        let is_over = |buffer: &SinkBuffer<S>| buffer.pending() == 0 || buffer.is_stuck();
        inner.wait_until(is_over).await;
    }

    /// Accepts nothing more, sends what there is, and stops: when nothing is pending any more, or after `within`. Then
    /// what is in memory only is dropped as [`Closed`](crate::DropReason::Closed), and what is in the spool stays there.
    ///
    /// # Cancellation
    /// A call that is dropped has stopped accepting, and may have stopped sending; call it again.
    pub async fn close(&self, within: Duration) -> Closed {
        let inner = &self.0.inner;
        inner.with(|buffer, _| buffer.close());
        inner.driver.notify_one();
        inner.room.notify_waiters();
        let is_over = |buffer: &SinkBuffer<S>| buffer.pending() == 0 || buffer.is_stuck();
        let _in_time = timeout(within, inner.wait_until(is_over)).await;
        inner.stop_sending();
        // What was over is noted, so that the next opening sends less again. A disk that is slow is left alone.
        let mut stopped = inner.stopped.subscribe();
        tokio::select! {
            () = inner.wait_until(Buffer::is_settled) => {}
            _ = stopped.wait_for(|stopped| stopped.spool_ended) => {}
            () = tokio::time::sleep(SETTLE_WAIT) => {}
        }
        inner.stopped.send_modify(|stopped| stopped.spool = true);
        inner.bell.notify_all();
        let ended = stopped.wait_for(|stopped| stopped.spool_ended);
        let has_ended = timeout(SETTLE_WAIT, ended).await.is_ok();
        inner.with(|buffer, _| buffer.drop_unwritten(has_ended));
        let figures = inner.with(|buffer, now| buffer.figures_at(now));
        Closed {
            left: figures.pending,
            figures,
        }
    }

    pub(crate) fn check(&self, message: &Message, level: AnswerLevel) -> Result<(), Refusal> {
        let inner = &self.0.inner;
        inner.can.check(message)?;
        let size = message.size() as u64;
        let spooled = inner
            .spool_bytes_max
            .map(|max| (message_len(message) as u64, max));
        let limits = [
            ("the sink", Some((size, inner.can.message_bytes_max))),
            (
                "a batch of the sink",
                Some((size, inner.can.batch_bytes_max)),
            ),
            ("a file of the spool", spooled),
        ];
        for (what, limit) in limits {
            if let Some((size, max)) = limit.filter(|(size, max)| size > max) {
                return Err(Refusal::TooLarge { size, what, max });
            }
        }
        match level {
            AnswerLevel::Durable if inner.spool_bytes_max.is_none() => Err(Refusal::NoSpool),
            _ => Ok(()),
        }
    }

    /// When a span from now is over, by both clocks.
    fn after(&self, span: Millis) -> (Millis, WallTime) {
        let clock = &self.0.inner.clock;
        (clock.now().saturating_add(span), clock.wall().plus(span))
    }

    pub(crate) fn room(&self) -> Notified<'_> {
        self.0.inner.room.notified()
    }

    /// Returns why it was dropped, if that was at once.
    pub(crate) fn offer(
        &self,
        offered: &mut Option<Offered<Tell<S::Id>>>,
    ) -> Result<Option<DropReason>, NoRoom> {
        let inner = &self.0.inner;
        let mut tenant = None;
        if let Some(offered) = offered {
            // From when it is accepted, however long it waited for room.
            let within = offered.within.or(inner.deliver_within);
            offered.expires = within.map(|within| self.after(within));
            tenant = inner.tenant.as_ref().and_then(|of| of(&offered.message));
        }
        let dropped = inner.with(|buffer, now| buffer.offer(offered, tenant, now))?;
        inner.driver.notify_one();
        inner.bell.notify_one();
        Ok(dropped)
    }
}

/// How long a producer that closes waits for the disk of its spool.
const SETTLE_WAIT: Duration = Duration::from_secs(10);

impl<S: Sink + 'static> Drop for Owner<S> {
    fn drop(&mut self) {
        self.inner.stop_sending();
        (self.inner.stopped).send_modify(|stopped| stopped.spool = true);
        self.inner.bell.notify_all();
    }
}

impl<S: Sink + 'static> Inner<S> {
    fn lock(&self) -> MutexGuard<'_, SinkBuffer<S>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the machine, and tells those who wait what came of it when the lock has been given back.
    fn with<R>(&self, act: impl FnOnce(&mut SinkBuffer<S>, Millis) -> R) -> R {
        let now = self.clock.now();
        let (result, told) = {
            let mut buffer = self.lock();
            let result = act(&mut buffer, now);
            (result, buffer.take_told())
        };
        for (tell, told) in told {
            // Who has gone does not want to know.
            let _ = tell.send(told);
        }
        result
    }

    /// Something is over: whoever waits for room or for the end looks again.
    fn note_progress(&self) {
        self.room.notify_waiters();
        self.progress.send_modify(|count| *count += 1);
    }

    async fn wait_until(&self, is_so: impl Fn(&SinkBuffer<S>) -> bool) {
        let mut progress = self.progress.subscribe();
        while !is_so(&self.lock()) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    fn stop_sending(&self) {
        self.stopped.send_modify(|stopped| stopped.sending = true);
        self.with(|buffer, now| buffer.abandon(now));
        self.driver.notify_one();
        self.bell.notify_all();
        self.note_progress();
    }

    fn random(&self) -> u64 {
        self.random
            .hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }
}

/// Lets batches go at once for as long as it lives.
struct Hurry<'a, S: Sink + 'static>(&'a Inner<S>);

impl<'a, S: Sink + 'static> Hurry<'a, S> {
    fn new(inner: &'a Inner<S>) -> Self {
        inner.with(|buffer, _| buffer.hurry(true));
        inner.driver.notify_one();
        Self(inner)
    }
}

impl<S: Sink + 'static> Drop for Hurry<'_, S> {
    fn drop(&mut self) {
        self.0.with(|buffer, _| buffer.hurry(false));
    }
}

/// What a task of the driver comes back with.
enum Back<I> {
    Sent(Vec<Result<Accepted<I>, TransportError>>),
    Opened(Result<ProducerIncarnation, TransportError>),
}

/// What a task of the driver is for.
#[derive(Clone, Copy)]
enum Errand {
    Batch(usize),
    Open,
}

/// Sends batches until the producer is stopped.
async fn drive<S: Sink + 'static>(inner: Arc<Inner<S>>) {
    let mut tasks: JoinSet<Back<S::Id>> = JoinSet::new();
    let mut errands: HashMap<task::Id, Errand> = HashMap::new();
    let stopped = inner.stopped.subscribe();
    while !stopped.borrow().sending {
        let (must_open, batches, wake, expired) = inner.with(|buffer, now| {
            buffer.catch_up(now, inner.clock.wall());
            let expired = buffer.expire(now);
            let must_open = buffer.take_open(now);
            let batches: Vec<_> = std::iter::from_fn(|| buffer.next_batch(now)).collect();
            let wake = buffer.next_wake().map(|wake| inner.clock.at(now, wake));
            (must_open, batches, wake, expired)
        });
        if expired {
            inner.note_progress();
        }
        if must_open {
            let inner = inner.clone();
            let task = tasks.spawn(async move {
                let open = inner.sink.open_producer(inner.name.clone());
                Back::Opened(match timeout(inner.send_timeout, open).await {
                    Ok(opened) => opened,
                    Err(late) => Err(TransportError::new(Fate::Unknown, late)),
                })
            });
            errands.insert(task.id(), Errand::Open);
        }
        for batch in batches {
            let (inner, id) = (inner.clone(), batch.id);
            let task = tasks.spawn(async move {
                let messages = batch.messages(inner.compress);
                let sent = timeout(inner.send_timeout, inner.sink.send_batch(messages));
                // Answers that did not come are unknown.
                Back::Sent(sent.await.unwrap_or_default())
            });
            errands.insert(task.id(), Errand::Batch(id));
        }
        tokio::select! {
            Some(ended) = tasks.join_next_with_id() => {
                let (id, back) = match ended {
                    Ok((id, back)) => (id, Some(back)),
                    // The sink has panicked: nobody knows what became of the batch.
                    Err(error) => (error.id(), None),
                };
                if let Some(errand) = errands.remove(&id) {
                    inner.take_back(errand, back);
                }
            }
            () = inner.driver.notified() => {}
            () = sleep(wake) => inner.note_progress(),
        }
    }
    // What is on its way may arrive; the sink's answers come too late to be counted.
    tasks.abort_all();
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

impl<S: Sink + 'static> Inner<S> {
    fn take_back(&self, errand: Errand, back: Option<Back<S::Id>>) {
        let random = self.random();
        match (errand, back) {
            (Errand::Batch(id), back) => {
                let results = match back {
                    Some(Back::Sent(results)) => results,
                    _ => Vec::new(),
                };
                let errors = || results.iter().filter_map(|result| result.as_ref().err());
                let error = errors().find(|error| error.fate.is_never());
                let error = error.or_else(|| errors().next()).map(|it| with_sources(it));
                let RefusedOf { dropped, split } =
                    self.with(|buffer, now| buffer.answered(id, results, now, random));
                if let Some(error) = error {
                    let producer = &self.name;
                    if dropped > 0 {
                        warn!(%producer, error, records = dropped, "the sink refuses records, which are dropped");
                    }
                    if split > 0 {
                        warn!(%producer, error, records = split, "the sink refuses packs, whose records are sent again each by itself");
                    }
                    if dropped + split == 0 {
                        debug!(%producer, error, "records of a batch were not taken");
                    }
                }
            }
            (Errand::Open, Some(Back::Opened(opened))) => {
                if let Err(error) = &opened {
                    let (producer, error) = (&self.name, with_sources(error));
                    // It is tried for as long as it takes.
                    match self.lock().figures().breaker_open {
                        true => debug!(%producer, error, "the sink still cannot be opened"),
                        false => warn!(%producer, error, "the sink cannot be opened"),
                    }
                }
                self.with(|buffer, now| buffer.opened(opened, now, random));
            }
            (Errand::Open, _) => {
                let error = TransportError::new(Fate::Unknown, "the sink panicked");
                self.with(|buffer, now| buffer.opened(Err(error), now, random));
            }
        }
        self.bell.notify_one();
        self.note_progress();
    }
}

fn spawn_spool<S: Sink + 'static>(inner: &Arc<Inner<S>>, store: Store) -> std::io::Result<()> {
    let (inner, stopped) = (inner.clone(), inner.stopped.clone());
    let thread = thread::Builder::new().name("lockgate-spool".into());
    thread.spawn(move || {
        let _ended = Ended(stopped);
        spool_thread::run(store, &inner);
    })?;
    Ok(())
}

/// Says that the thread has ended, however it did.
struct Ended(watch::Sender<Stopped>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send_modify(|stopped| stopped.spool_ended = true);
    }
}

impl<S: Sink + 'static> Employer for Inner<S> {
    fn next_work(&self, most: Duration) -> Result<Option<Work>, Over> {
        let mut buffer = self.lock();
        let now = self.clock.now();
        if let Some(work) = buffer.spool_work(now) {
            return Ok(Some(work));
        }
        if self.stopped.borrow().spool {
            return Err(Over);
        }
        let wake = buffer
            .spool_wake(now)
            .map(|wake| wake.saturating_sub(now).max(1));
        let wait = wake.map_or(most, |wake| most.min(Duration::from_millis(wake)));
        let (mut buffer, _) =
            (self.bell.wait_timeout(buffer, wait)).unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        Ok(buffer.spool_work(now))
    }

    fn wrote(&self, count: usize, used: Used) {
        self.with(|buffer, now| {
            buffer.spool_wrote(count, used);
            buffer.catch_up(now, self.clock.wall());
        });
        self.driver.notify_one();
        self.note_progress();
    }

    fn full(&self, used: Used, lack: Lack) {
        if self.with(|buffer, now| buffer.spool_full(used, lack, now)) {
            match lack {
                Lack::Bytes => warn!(producer = %self.name, "the disk of the spool is full"),
                Lack::Files => {
                    warn!(producer = %self.name, "the spool cannot open a file: too many are open");
                }
            }
        }
        self.note_progress();
    }

    fn synced(&self, before: u64) {
        self.with(|buffer, now| buffer.spool_synced(before, now));
        self.note_progress();
    }

    fn loaded(&self, loaded: Vec<Loaded>, next: u64, unreadable: Vec<u64>) {
        if !unreadable.is_empty() {
            warn!(producer = %self.name, records = unreadable.len(), "records of the spool are damaged");
        }
        let wall = self.clock.wall();
        self.with(|buffer, now| buffer.spool_loaded(loaded, next, unreadable, now, wall));
        self.driver.notify_one();
        self.note_progress();
    }

    fn not_loaded(&self, why: &str) {
        warn!(producer = %self.name, why, "records of the spool cannot be read now");
        self.with(|buffer, now| buffer.spool_not_loaded(now));
    }

    fn used(&self, used: Used) {
        self.with(|buffer, _| buffer.spool_used(used));
        self.note_progress();
    }

    fn failed(&self, why: &str) {
        warn!(producer = %self.name, why, "the spool has failed");
        self.with(|buffer, _| buffer.spool_failed());
        self.note_progress();
    }

    fn floor(&self) -> u64 {
        self.lock().spool_floor()
    }
}

fn random() -> Result<u64, OpenError> {
    getrandom::u64().map_err(|error| OpenError::System(error.into()))
}

fn interrupted() -> OpenError {
    OpenError::System(std::io::ErrorKind::Interrupted.into())
}

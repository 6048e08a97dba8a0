//! The threads around the driver: one owns it, one syncs the log.

use std::{
    io::Write,
    mem,
    num::NonZeroUsize,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_core::{
    Clock, Incarnation, LogReader, Now, Position, ReadError, Storage, Term,
    ledger::{LedgerError, LedgerPage, SequenceId},
    with_sources,
};
use lockgate_index::{FolderIndex, UniqueIndex};
use lockgate_machine::{
    Command, Delivery, EngineCommand, MessagePage, QueryReply, Settle, SettleAction,
};

use crate::{
    Answer, AnsweredCounts, BackupError, BackupReport, Beginning, Directory, Driver, EngineError,
    EngineMetrics, EngineOptions, IndexMetrics, IndexPace, Output, OutputKind, Peek, Peeked,
    Received, ReceivedBatch, Request, StartError, StartReport, Status, StopReason, backup,
    inbox::{AnswerSender, GuardedAnswer, GuardedPage, Inbox, Notice, Taken},
    leases::Leases,
    ledger::{GuardedEvents, page_at_once, page_by_waiting},
    maintenance::{
        threads::{MaintenanceThreads, Notifier, Place},
        work::Maintenance,
    },
    pending::{Filed, Filing, PendingAnswers, Room},
    readers::Readers,
    reading::Reading,
    recover::machine_time,
    sync::{
        Mutex, MutexGuard, Semaphore, mpsc,
        thread::{self, JoinHandle},
        watch,
    },
};

/// What the handles and the two threads share.
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) directory: Directory,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) term: Term,
    pub(crate) secret: [u8; 32],
    pub(crate) level_max: lockgate_core::Level,
    clock_offset: i64,
    reader: Arc<dyn LogReader>,
    readers: Arc<Readers>,
    pub(crate) index: Option<Arc<FolderIndex>>,
    pub(crate) index_pace: IndexPace,
    /// Held while ids are on their way from memory to the index, or the index is changed otherwise.
    index_moves: Mutex<()>,
    /// Whether the last change of the index succeeded.
    pub(crate) index_works: AtomicBool,
    pub(crate) pending: Arc<PendingAnswers>,
    /// Notified when maintenance may have work.
    maintenance: Notifier,
    /// Lets one caller at a time ask the owner for an overview.
    pub(crate) overview: Arc<Semaphore>,
    owner: Mutex<Option<JoinHandle<()>>>,
    overloaded: AtomicU64,
    unknown: AtomicU64,
    damaged: AtomicU64,
    given_back: AtomicU64,
    records_lost: u64,
}

/// How long the owner sleeps at most while something has a deadline: the wall clock may step, and
/// the computer may be suspended.
const CLOCK_RECHECK: Duration = Duration::from_secs(1);

/// How soon the owner checks again for something that is due and did not happen, for example for
/// lack of log space.
const OVERDUE_RECHECK: Duration = Duration::from_millis(20);

/// How long a stop waits for look-ups in the index of unique ids, which may wait for a disk that does not answer.
const INDEX_CLOSE_WAIT: Duration = Duration::from_secs(2);

/// Messages whose memory is freed in one step alongside the callers' requests: about 100 µs.
const HOUSEKEEPING_BUDGET: usize = 1_000;

/// Starts an engine: recovers on this thread, then serves on its own threads.
pub(crate) fn start(
    storage: Storage,
    clock: Arc<dyn Clock>,
    options: EngineOptions,
) -> Result<(Arc<Shared>, StartReport), StartError> {
    let mut random = [0; 40];
    getrandom::fill(&mut random).map_err(StartError::Random)?;
    let (incarnation, secret) = random.split_first_chunk::<8>().expect("40 is more than 8");
    let secret = secret.try_into().expect("40 is 8 and 32");
    let begin = || Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(u64::from_le_bytes(*incarnation)),
        secret,
    };
    let recovered = Driver::recover(storage, &options, begin);
    let close = |_: &_| options.index.iter().for_each(|index| close_index(index));
    let (mut driver, report) = recovered.inspect_err(close)?;
    driver.set_clock_drops(clock.dropped());
    let maintenance = options.maintenance.clone().unwrap_or_else(|| {
        MaintenanceThreads::named(format!("{}-maint", options.thread_name), NonZeroUsize::MIN)
    });
    let shared = Arc::new(Shared {
        inbox: Arc::new(Inbox::new(&options)),
        directory: Directory::default(),
        status: watch::channel(Status::Serving).0,
        term: driver.term(),
        secret: driver.machine().secret().unwrap_or(secret),
        level_max: driver.capabilities().sync_level,
        clock_offset: driver.clock_offset(),
        reader: driver.reader(),
        readers: Readers::new(format!("{}-read", options.thread_name)),
        index: options.index.clone(),
        index_pace: options.index_pace,
        index_moves: Mutex::default(),
        index_works: AtomicBool::new(true),
        pending: Arc::new(PendingAnswers::new(
            driver.tail(),
            driver.capabilities().syncs_in_flight,
            driver.maintenance_counts(),
        )),
        maintenance: maintenance.notifier(),
        overview: Arc::new(Semaphore::new(1)),
        owner: Mutex::default(),
        overloaded: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        damaged: AtomicU64::new(0),
        given_back: AtomicU64::new(0),
        records_lost: report.undecodable
            + report
                .damaged
                .iter()
                .map(|range| range.records)
                .sum::<u64>(),
        clock,
    });
    driver.for_each_queue(shared.now(), |queue| {
        shared.directory.put(Arc::new(queue.into()));
    });

    let pending = shared.pending.clone();
    let log = driver.progress();
    log.watch(Box::new(move || pending.tell()));
    let sync_thread = spawn(format!("{}-sync", options.thread_name), {
        let (shared, log) = (shared.clone(), log.clone());
        move || {
            // As for the owner: a panic is a bug of ours, and nothing may wait for ever.
            let synced = panic::catch_unwind(AssertUnwindSafe(|| {
                shared.pending.run(
                    &*log,
                    |output| shared.deliver(output),
                    || shared.inbox.poke(),
                )
            }))
            .unwrap_or_else(|_panic| Err(StopReason::Panicked));
            if let Err(reason) = synced {
                shared.failed(reason);
            }
        }
    })?;
    let (log_maintenance, snapshots) = (driver.log.log_maintenance(), driver.snapshots());
    // The owner first: maintenance asks it, and dropping maintenance waits until it has answered.
    let (hand_over, helpers) = mpsc::sync_channel(1);
    let owner_thread = spawn(options.thread_name.clone(), {
        let shared = shared.clone();
        move || {
            if let Ok(helpers) = helpers.recv() {
                own(&shared, driver, helpers, &options);
            }
        }
    });
    let kept = owner_thread.and_then(|thread| {
        *shared.owner_thread() = Some(thread);
        let maintenance = Maintenance::new(shared.clone(), log_maintenance, snapshots);
        let kept = shared.maintenance.add(Box::new(maintenance));
        kept.map_err(StartError::Threads)
    });
    match kept {
        Ok(maintenance) => {
            let sync = sync_thread;
            // The owner waits for exactly this.
            let _taken = hand_over.send(Helpers { sync, maintenance });
        }
        Err(error) => {
            shared.inbox.close(StopReason::ShutDown);
            shared.pending.finish();
            if let Some(index) = &shared.index {
                close_index(index);
            }
            return Err(error);
        }
    }
    Ok((shared, report))
}

fn close_index(index: &FolderIndex) {
    if !index.close_within(INDEX_CLOSE_WAIT) {
        tracing::warn!(
            folder = %index.folder().display(),
            "the index of unique ids is in use still: it cannot be opened again before the disk has answered"
        );
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(StartError::Threads)
}

/// The threads besides the owner. Both catch their own panics.
struct Helpers {
    sync: JoinHandle<()>,
    maintenance: Place,
}

/// The owner thread, from the first request to the last.
fn own(shared: &Shared, driver: Driver<AnswerSender>, helpers: Helpers, options: &EngineOptions) {
    // As below: a caller that waits for the end must learn of it.
    let ended = panic::catch_unwind(AssertUnwindSafe(|| {
        serve_and_end(shared, driver, helpers, options)
    }));
    shared.readers.end();
    if let Some(index) = &shared.index {
        close_index(index);
    }
    let reason = ended.unwrap_or_else(|_panic| {
        shared.failed(StopReason::Panicked);
        StopReason::Panicked
    });
    // The log is released for another owner before anybody is told that this one has stopped.
    shared.status.send_replace(Status::Stopped { reason });
}

/// Serves, ends the term if all went well, and releases the log. Returns the reason of the end.
fn serve_and_end(
    shared: &Shared,
    mut driver: Driver<AnswerSender>,
    helpers: Helpers,
    options: &EngineOptions,
) -> StopReason {
    // A panic is a bug of ours. Callers must still get an error, and none may wait for ever.
    let served = panic::catch_unwind(AssertUnwindSafe(|| serve(shared, &mut driver, options)));
    if served.is_err() {
        shared.failed(StopReason::Panicked);
        // Dropping their tickets tells the callers that the outcome is unknown.
        let mut taken = Taken::default();
        while !mem::take(&mut taken).finished {
            // Tasks too, so that a caller that waits for one learns that the owner is gone.
            taken.tasks.clear();
            shared
                .inbox
                .take(Some(Duration::ZERO), usize::MAX, usize::MAX, &mut taken);
        }
    }
    shared.pending.finish();
    let _ = helpers.sync.join();
    drop(helpers.maintenance);
    let mut failed = shared.pending.durable().err();
    if failed.is_none()
        && let Some(Err(error)) = driver
            .log
            .log_maintenance()
            .map(|log_maintenance| log_maintenance.check_storage())
    {
        failed = Some(driver.fail(error));
    }
    if failed.is_none() && served.is_ok() {
        // Everything is durable, and nothing else uses the log any more.
        if let Err(error) = driver.final_snapshot(shared.now()) {
            tracing::warn!(
                error = with_sources(&error),
                "no snapshot at the end; the next start reads what was appended since the last one"
            );
        }
        failed = driver.end_term(shared.now(), AnswerSender::nobody()).err();
    }
    if let Some(reason) = &failed {
        // Answers that were filed after the sync thread had ended.
        shared.failed(reason.clone());
    }
    failed.unwrap_or(StopReason::ShutDown)
}

fn serve(shared: &Shared, driver: &mut Driver<AnswerSender>, options: &EngineOptions) {
    let (pins, log) = (driver.pins.clone(), driver.progress());
    let mut taken = Taken::default();
    let mut held = Vec::new();
    let mut timeout = None;
    let (mut groups, mut housekeeping) = (driver.counts().groups, false);
    let mut durable = Position::default();
    let room = Room {
        answers_max: options.answers_max,
        bytes_max: options.answers_bytes_max,
        groups_max: driver.capabilities().groups_in_flight,
    };
    loop {
        // While the log hangs, answers pile up. Then requests stay in the inbox, which is bounded
        // and refuses sends. They also stay there while as many groups are in flight as allowed, so
        // that the next group gathers. At the end all are taken, because no more come.
        let has_room = shared.pending.has_room(room) || shared.inbox.is_closed();
        shared.inbox.take(
            timeout,
            if has_room {
                options.group_requests_max
            } else {
                0
            },
            options.group_bytes_max,
            &mut taken,
        );
        let now = shared.now();
        match shared.pending.durable() {
            Ok(position) if position > durable => {
                durable = position;
                driver.reached(durable);
            }
            Ok(_) => {}
            Err(reason) => driver.stop(reason, &mut |output| shared.deliver(output)),
        }
        let notices = taken.notices.drain(..).map(|notice| Request {
            work: match notice {
                Notice::GiveBack(token) => {
                    shared.given_back.fetch_add(1, Relaxed);
                    let action = SettleAction::GiveBack;
                    Command::Settle(Settle { token, action }).into()
                }
                Notice::Engine(command) => command.into(),
            },
            ticket: AnswerSender::nobody(),
        });
        let requests = notices.chain(taken.requests.drain(..));
        let mut out = |mut output: Output<AnswerSender>| {
            if let OutputKind::Answer { ticket, result } = &mut output.kind {
                match result {
                    Ok(Answer::Received(Ok(deliveries))) if !deliveries.is_empty() => {
                        let positions =
                            deliveries.iter().map(|delivery| delivery.location.position);
                        ticket.pin(pins.hold(positions));
                    }
                    Ok(Answer::Query(Ok(QueryReply::Messages(MessagePage {
                        messages, ..
                    })))) => {
                        let positions = messages.iter().map(|message| message.location.position);
                        ticket.pin(pins.hold(positions));
                    }
                    Ok(Answer::Query(Ok(QueryReply::EventPlaces(places)))) => {
                        let positions = places.blocks.iter().filter_map(|block| block.position);
                        ticket.pin(pins.hold(positions));
                    }
                    _ => {}
                }
            }
            if output.durable <= durable && output.written == Position::default() {
                shared.deliver(output);
            } else {
                held.push(output);
            }
        };
        driver.run_group(requests, now, &mut out);
        if taken.finished {
            driver.end_waiters(&mut out);
        }
        for task in taken.tasks.drain(..) {
            // A driver that has stopped may have decided effects that are not in the log.
            if driver.stopped().is_none() {
                task(driver, now);
            }
        }
        let filing = Filing {
            outputs: &mut held,
            submitted: driver.tail(),
            submit_took: driver.submit_took(),
            written: log.now().written,
            wanted: driver.promised(),
            room,
            known_durable: durable,
            counts: driver.counts(),
            window: driver.take_sync_window(),
            waiters: driver.waiting(),
            maintenance: driver.maintenance_counts(),
        };
        let filed = shared.pending.file(filing, |output| shared.deliver(output));
        if let Some(reason) = driver.stopped() {
            let reason = reason.clone();
            shared.failed(reason.clone());
            driver.stop(reason, &mut |output| shared.deliver(output));
        }
        // Publishes that wait for the next group are done before the end.
        if taken.finished && !driver.is_copying() {
            return;
        }
        let freeing = driver.housekeep(HOUSEKEEPING_BUDGET).is_unfinished();
        // New or freed records may make a maintenance task worthwhile.
        let seen = mem::replace(&mut groups, driver.counts().groups);
        if mem::replace(&mut housekeeping, freeing) || groups != seen {
            shared.maintenance.notify();
        }
        timeout = if freeing || driver.is_behind() || filed == Filed::LookAgain {
            Some(Duration::ZERO)
        } else {
            until_next(driver, driver.past(shared.now()))
        };
    }
}

/// How long there is nothing to do, as of a time that has passed; `None`: until a request comes.
fn until_next(driver: &Driver<AnswerSender>, now: Now) -> Option<Duration> {
    let next = driver.next_deadline();
    let wall = next.wall.map(|at| at.since(now.wall));
    let machine = next.machine.map(|at| at.since(now.machine));
    let left = wall.into_iter().chain(machine).min()?;
    Some(match left {
        0 => OVERDUE_RECHECK,
        left => Duration::from_millis(left).min(CLOCK_RECHECK),
    })
}

impl Shared {
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.readers
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: machine_time(self.clock_offset, self.clock.since_boot()),
        }
    }

    /// Reads the payloads of leases. If the caller gives up meanwhile, the leases go back.
    ///
    /// Reads in the caller's task if all payloads are in the system's cache: copying takes about a
    /// microsecond, while handing over to another thread and waking the caller again takes more
    /// than ten times that. Otherwise reads on a thread of the engine, because a disk or another
    /// machine may take any time.
    pub(crate) async fn read(
        self: &Arc<Self>,
        leases: Leases,
    ) -> Result<ReceivedBatch, EngineError> {
        if let Some(reading) = Reading::at_once(&*self.reader, leases.places()) {
            return self.batch(leases, reading);
        }
        let shared = self.clone();
        let read = move || {
            let reading = Reading::of(&*shared.reader, leases.places());
            shared.batch(leases, reading)
        };
        self.readers.run(read).await?
    }

    /// Reads the payloads of a peek in the same way as [`read`](Self::read).
    pub(crate) async fn read_page(
        self: &Arc<Self>,
        mut page: GuardedPage,
    ) -> Result<Peek, EngineError> {
        page.shorten(Peek::BYTES_MAX);
        if let Some(reading) = Reading::at_once(&*self.reader, page.places()) {
            return peek(page, reading);
        }
        let shared = self.clone();
        let read = move || {
            let reading = Reading::of(&*shared.reader, page.places());
            peek(page, reading)
        };
        self.readers.run(read).await?
    }

    /// Reads the events of a page in the same way as [`read`](Self::read).
    pub(crate) async fn read_events(
        self: &Arc<Self>,
        events: GuardedEvents,
        after: SequenceId,
        limit: usize,
    ) -> Result<Result<LedgerPage, LedgerError>, EngineError> {
        if let Some(page) = page_at_once(&*self.reader, &events, after, limit) {
            return Ok(page);
        }
        let shared = self.clone();
        let read = move || page_by_waiting(&*shared.reader, &events, after, limit);
        self.readers.run(read).await
    }

    /// Joins payloads to leases.
    fn batch(
        &self,
        mut leases: Leases,
        mut reading: Reading<'_>,
    ) -> Result<ReceivedBatch, EngineError> {
        let _pin = leases.pin.take();
        let mut deliveries = mem::take(&mut leases.deliveries).into_iter();
        let mut received = Vec::with_capacity(deliveries.len());
        while let Some(delivery) = deliveries.next() {
            match reading.message(delivery.location, delivery.id) {
                Ok(stored) => received.push(Received { delivery, stored }),
                Err(ReadError::Log(error)) => {
                    // Storage fails, which says nothing about the message. Its lease and the later
                    // ones, which may be of the same key, go back.
                    let at = delivery.location.position;
                    tracing::warn!(
                        position = %at,
                        error = with_sources(&error),
                        "reading failed"
                    );
                    leases.deliveries.push(delivery);
                    leases.deliveries.extend(deliveries);
                    if received.is_empty() {
                        let source = ReadError::Log(error);
                        return Err(EngineError::Unreadable { at, source });
                    }
                    break;
                }
                Err(error) => self.drop_damaged(&delivery, &error),
            }
        }
        Ok(ReceivedBatch::new(received, leases))
    }

    /// Holds up all who change the index of unique ids.
    pub(crate) fn index_moves(&self) -> MutexGuard<'_, ()> {
        self.index_moves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a backup on the calling thread.
    pub(crate) fn backup(&self, out: &mut dyn Write) -> Result<BackupReport, BackupError> {
        let stopped = || match &*self.status.borrow() {
            Status::Stopped { reason } => BackupError::Stopped {
                reason: reason.clone(),
            },
            _ => BackupError::Stopped {
                reason: StopReason::ShutDown,
            },
        };
        let freeze = || {
            let (sender, receiver) = mpsc::sync_channel(1);
            self.inbox.task(Box::new(move |driver, now| {
                let source = backup::Source::of(driver, now);
                drop(sender.send((source, driver.log.log_maintenance())));
            }));
            receiver.recv().map_err(|_gone| stopped())
        };
        let moves = self.index_moves();
        let index = self.index.as_deref();
        let ((source, log_maintenance), ids) =
            backup::view_and_freeze(index, freeze, |(source, _)| source.indexed.clone())?;
        drop(moves);
        // A backup must stay true whatever happens to the original shard.
        self.pending
            .wait_durable(source.position)
            .map_err(|reason| match reason {
                Some(reason) => BackupError::Stopped { reason },
                None => stopped(),
            })?;
        // Once the engine has stopped, the log may belong to another owner.
        let is_serving = || *self.status.borrow() == Status::Serving;
        let go_on = || is_serving().then_some(()).ok_or_else(stopped);
        // A new owner may have released the ranges that were read, before this process learns of it.
        let confirm = || {
            let checked = log_maintenance
                .as_ref()
                .map_or(Ok(()), |log| log.check_storage());
            checked.map_err(|error| BackupError::Stopped {
                reason: StopReason::of(error),
            })
        };
        backup::write(source, &*self.reader, ids, out, &go_on, &confirm)
    }

    pub(crate) fn metrics(&self) -> EngineMetrics {
        let counts = self.pending.counts();
        let (inbox, inbox_bytes, age) = self.inbox.depth(self.clock.since_boot());
        let driver = counts.driver;
        EngineMetrics {
            groups: driver.groups,
            records: driver.records,
            bytes: driver.bytes,
            group_records_max: driver.group_records_max,
            syncs: counts.syncs,
            sync_time: counts.sync_time,
            sync_time_max: counts.sync_time_max,
            sync_age: counts.sync_age,
            log_spans: counts.log_spans,
            spans: driver.spans,
            records_lost: self.records_lost,
            commands: driver.commands,
            queries: driver.queries,
            answered: AnsweredCounts {
                memory: driver.answered_memory,
                process: driver.answered_process,
                disk: driver.answered_disk,
            },
            rejected: driver.rejected,
            overloaded: driver.overloaded + self.overloaded.load(Relaxed),
            unknown: self.unknown.load(Relaxed),
            damaged: self.damaged.load(Relaxed),
            given_back: self.given_back.load(Relaxed),
            inbox,
            inbox_bytes,
            inbox_age: Duration::from_millis(age),
            held: counts.held,
            waiters: counts.waiters,
            kept: driver.kept,
            maintenance: counts.maintenance,
            index: self.index_metrics(),
        }
    }

    fn index_metrics(&self) -> Option<IndexMetrics> {
        let place = self.index.as_ref()?;
        let works = self.index_works.load(Relaxed);
        let index = place.get();
        let index = index.as_deref();
        Some(IndexMetrics {
            works,
            entries: index.map_or(0, UniqueIndex::entries),
            disk_bytes: index.map_or(0, UniqueIndex::disk_bytes),
            merges_failed: index.map_or(0, UniqueIndex::merges_failed),
        })
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refused(&self, error: &EngineError) {
        if matches!(error, EngineError::Overloaded) {
            self.overloaded.fetch_add(1, Relaxed);
        }
    }

    /// Begins to stop, unless that has begun before.
    pub(crate) fn stop(&self) {
        self.status.send_if_modified(|status| {
            let serving = *status == Status::Serving;
            if serving {
                *status = Status::Stopping;
            }
            serving
        });
        self.inbox.close(StopReason::ShutDown);
    }

    /// Waits for the owner thread, which only has to return once it has stopped.
    pub(crate) fn join(&self) {
        if let Some(thread) = self.owner_thread().take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }

    /// Stops because a part of the engine has panicked.
    pub(crate) fn panicked(&self) {
        self.failed(StopReason::Panicked);
    }

    /// Ends service: no more requests get in, and callers that wait for the log learn that the
    /// outcome is unknown.
    fn failed(&self, reason: StopReason) {
        self.inbox.close(reason.clone());
        self.pending.fail(reason, |output, error| {
            if let OutputKind::Answer { ticket, .. } = output.kind {
                let is_unknown = matches!(error, EngineError::UnknownOutcome { .. });
                self.unknown.fetch_add(u64::from(is_unknown), Relaxed);
                ticket.send(Err(error));
            }
        });
    }

    /// Delivers an output.
    fn deliver(&self, output: Output<AnswerSender>) {
        match output.kind {
            OutputKind::QueueChanged { queue, entry } => match entry {
                Some(entry) => self.directory.put(entry),
                None => self.directory.remove(queue),
            },
            OutputKind::Answer { mut ticket, result } => {
                let pin = ticket.take_pin();
                ticket.send(match result {
                    Ok(Answer::Received(Ok(deliveries))) => Ok(GuardedAnswer::Leases(Leases::new(
                        deliveries,
                        self.inbox.clone(),
                        pin,
                    ))),
                    Ok(Answer::Query(Ok(QueryReply::Messages(MessagePage { messages, next })))) => {
                        Ok(GuardedAnswer::Messages(GuardedPage {
                            messages,
                            next,
                            pin,
                        }))
                    }
                    Ok(Answer::Query(Ok(QueryReply::EventPlaces(places)))) => {
                        Ok(GuardedAnswer::Events(GuardedEvents { places, _pin: pin }))
                    }
                    Ok(outcome) => Ok(GuardedAnswer::Other(outcome)),
                    Err(error) => {
                        if matches!(error, EngineError::UnknownOutcome { .. }) {
                            self.unknown.fetch_add(1, Relaxed);
                        }
                        Err(error)
                    }
                });
            }
        }
    }

    fn drop_damaged(&self, delivery: &Delivery, error: &ReadError) {
        self.damaged.fetch_add(1, Relaxed);
        tracing::warn!(
            message_id = %delivery.id,
            queue = delivery.token.queue.0,
            position = %delivery.location.position,
            error = with_sources(error),
            "dropped a message whose payload cannot be read any more"
        );
        let damaged = EngineCommand::Damaged {
            queue: delivery.token.queue,
            sequence: delivery.token.sequence,
        };
        self.inbox.notice(std::iter::once(Notice::Engine(damaged)));
    }

    fn owner_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins payloads to the messages of a peek.
fn peek(page: GuardedPage, mut reading: Reading<'_>) -> Result<Peek, EngineError> {
    let _pin = page.pin;
    let mut messages = Vec::with_capacity(page.messages.len());
    for status in page.messages {
        let stored = match reading.message(status.location, status.id) {
            Ok(stored) => Some(stored),
            Err(source @ ReadError::Log(_)) => {
                let at = status.location.position;
                return Err(EngineError::Unreadable { at, source });
            }
            Err(error) => {
                tracing::warn!(
                    message_id = %status.id,
                    position = %status.location.position,
                    error = with_sources(&error),
                    "the payload of a message cannot be read any more"
                );
                None
            }
        };
        messages.push(Peeked { status, stored });
    }
    Ok(Peek {
        messages,
        next: page.next,
    })
}

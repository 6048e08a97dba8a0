//! The engine without its threads: synchronous and deterministic, for the engine's owner thread and
//! for simulation.

mod copying;
mod counts;
mod reads;
mod schedules;
mod watches;

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use lockgate_core::{
    AppendError, Epoch, Level, Log, LogCapabilities, LogError, LogProgress, LogReader, MachineTime,
    Millis, Now, Position, Purpose, QueueId, RecordGroup, ReserveError, SnapshotStore, Storage,
    StorageFailure, Term, WallTime,
};
use lockgate_machine::{
    AnyCommand, Command, Deadlines, Delivery, Effect, EngineCommand, Housekeeping, Machine,
    Receive, Rejection, Reply, Span, SyncWindow, encode_record,
};
use smallvec::SmallVec;

pub use self::counts::{DriverCounts, SpanCounts};
use self::{copying::Copying, reads::Reads, schedules::Schedules, watches::Watches};
use crate::{
    EngineError, EngineOptions, MaintenanceCounts, QueueEntry, StartError, StopReason,
    maintenance::{Pins, Plan},
    request::{Answer, Request, Work, grows},
    sync::Instant,
    waiters::{Waiter, Waiters},
};

/// One machine over one log, with the receives that wait.
///
/// Use it in this order, from one thread:
///
/// 1. [`recover`](Self::recover) begins a term.
/// 2. [`run_group`](Self::run_group), any number of times: decides all requests that have arrived and
///    submits them to the log together. It hands out answers, and says when each may leave.
/// 3. [`reached`](Self::reached) after each sync, then `run_group` again, even without requests:
///    receives that wait may now lease messages that have become durable.
///
/// The driver keeps no answer that waits for the log. [`Output::written`] and [`Output::durable`]
/// say when an answer may leave, and the caller keeps the answer until then.
///
/// `T` is the caller's ticket, which comes back with the answer.
pub struct Driver<T> {
    pub(crate) machine: Machine,
    pub(crate) log: Box<dyn Log>,
    pub(crate) snapshots: Arc<dyn SnapshotStore>,
    capabilities: LogCapabilities,
    epoch: Epoch,
    pub(crate) clock_offset: i64,
    /// Records that were decided and folded, and not submitted yet.
    group: RecordGroup,
    group_payload_bytes: u64,
    /// The end of the last submitted record.
    tail: Position,
    /// Where the next record goes: `tail` plus the records of `group`.
    cursor: Position,
    /// Queues that the current group deleted; their waiters must be told.
    queues_deleted: Vec<QueueId>,
    /// The end of the last record whose sync an answer waits for.
    promised: Position,
    waiters: Waiters<QueueId, Receive, T>,
    watches: Watches<T>,
    reads: Reads<T>,
    schedules: Schedules,
    waiters_max: usize,
    /// When waiters whose callers are gone were last removed.
    swept: MachineTime,
    /// The last time given to the machine; it must not go back.
    machine_time: MachineTime,
    /// How much later than the clock's reading the time may be.
    clock_drops: Millis,
    /// Whether more timers were due than the group had time for.
    is_behind: bool,
    /// How many more decisions on receives the current group may repeat, see [`REPEATS_PER_GROUP`].
    repeats_left: usize,
    /// Queues in which the current group found only exhausted messages and may not search further.
    /// The next group does.
    unfinished: BTreeSet<QueueId>,
    /// The most messages that the last group may have concerned.
    group_messages: usize,
    copying: Copying<T>,
    /// Outputs of the current group, to hand out when it is submitted.
    after_submit: Vec<Output<T>>,
    stopped: Option<StopReason>,
    counts: DriverCounts,
    /// How long the last submission to the log took. Measured for whoever watches; it decides nothing.
    submit_took: Duration,
    /// The sync window for records of no queue, and of queues without their own window.
    window_of_log: SyncWindow,
    /// The shortest sync window of the records since it was last taken.
    sync_window: SyncWindow,
    /// Everything that starts before this is durable.
    pub(crate) durable: Position,
    /// Bytes of compacted messages in `group`.
    group_compacted_bytes: u64,
    /// How far this life has trimmed the log.
    pub(crate) trimmed: Position,
    pub(crate) plan: Plan,
    pub(crate) pins: Arc<Pins>,
    pub(crate) maintenance: MaintenanceCounts,
}

/// What a [`Driver`] hands out.
#[derive(Debug)]
pub struct Output<T> {
    /// The log must have written everything that starts before this, see
    /// [`Progress`](lockgate_core::Progress), before the output may leave,
    pub written: Position,
    /// and everything that starts before this must be durable. The lowest position: no wait.
    pub durable: Position,
    pub kind: OutputKind<T>,
}

#[derive(Debug)]
pub enum OutputKind<T> {
    Answer {
        ticket: T,
        result: Result<Answer, EngineError>,
    },
    /// A queue was created, changed or deleted. Comes before the answer to the command.
    QueueChanged {
        queue: QueueId,
        /// The queue's new state; `None` if it was deleted.
        entry: Option<Arc<QueueEntry>>,
    },
}

/// The caller that waits for an answer.
pub trait Ticket {
    /// Whether the caller has left, so that nothing need be leased for it. May miss a caller that
    /// left just now.
    fn is_gone(&self) -> bool {
        false
    }
}

impl Ticket for u64 {}

/// How long the answer to a request must wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Nothing,
    Append,
    Sync(Position),
}

/// Steps of time before each group, of about 100 µs each.
const TICKS_PER_GROUP: usize = 8;

/// One more step for each so many messages of the group before. Each of those may have created a
/// few of the 256 timers that one step can fire, so time keeps up with groups of any size.
const MESSAGES_PER_TICK: usize = 32;

/// If a receive finds only exhausted messages, of which one decision moves 64, it is decided again. This is
/// how often in all for the receives of one group: a few milliseconds. A whole backlog can be exhausted at
/// once, when its queue gets a dead-letter queue or fewer attempts; other callers are served while it moves.
const REPEATS_PER_GROUP: usize = 16;

/// A group's buffer that a large group has grown beyond this is freed.
const GROUP_BUFFER_KEEP_BYTES: usize = 8 << 20;

/// Lost messages that one append drops.
const LOST_PER_GROUP: usize = 1_000;

/// How often waiters whose callers are gone are removed, at most, when too many wait.
const SWEEP_EVERY_MS: u64 = 100;

/// Messages that the machine reads ahead for at a time: what it has read for the last of them must
/// still be in the processor's cache when they are decided.
const READ_AHEAD: usize = 256;

impl<T: Ticket> Driver<T> {
    pub(crate) fn new(
        machine: Machine,
        Storage { log, snapshots }: Storage,
        epoch: Epoch,
        clock_offset: i64,
        plan: Plan,
        options: &EngineOptions,
    ) -> Self {
        let capabilities = log.capabilities();
        Self {
            tail: log.tail(),
            cursor: log.tail(),
            queues_deleted: Vec::new(),
            promised: Position::default(),
            group: RecordGroup::new(capabilities.gap),
            group_payload_bytes: 0,
            capabilities,
            epoch,
            clock_offset,
            waiters: Waiters::default(),
            watches: Watches::default(),
            reads: Reads::default(),
            schedules: Schedules::default(),
            waiters_max: options.waiters_max,
            swept: MachineTime::default(),
            machine_time: MachineTime::default(),
            clock_drops: 0,
            is_behind: false,
            repeats_left: 0,
            unfinished: BTreeSet::new(),
            group_messages: 0,
            copying: Copying::default(),
            after_submit: Vec::new(),
            stopped: None,
            counts: DriverCounts::default(),
            submit_took: Duration::ZERO,
            window_of_log: options.sync_window,
            sync_window: SyncWindow::default(),
            durable: Position::default(),
            trimmed: Position::default(),
            group_compacted_bytes: 0,
            plan,
            pins: Pins::new(capabilities.range_bits),
            maintenance: MaintenanceCounts::default(),
            machine,
            log,
            snapshots,
        }
    }

    /// Decides the requests in order, submits their records as one group, and hands out all
    /// possible answers, including those to receives that have been waiting. First, time passes:
    /// timers due by `now` fire, or the first of them if there are many
    /// ([`is_behind`](Self::is_behind)).
    ///
    /// Outputs come in the order of their decisions, except that those which wait for nothing come
    /// first, before the group is submitted.
    ///
    /// After a failure of the log every output is an error: [`EngineError::UnknownOutcome`] for
    /// decisions of that group, [`EngineError::Stopped`] for later ones.
    pub fn run_group(
        &mut self,
        requests: impl IntoIterator<Item = Request<T>>,
        now: Now,
        out: &mut impl FnMut(Output<T>),
    ) {
        // The wall clock may step. Machine time must not go back, whatever the caller's clock does.
        self.machine_time = self.machine_time.max(now.machine);
        let now = Now {
            machine: self.machine_time,
            ..now
        };
        let mut requests = requests.into_iter();
        if self.stopped.is_some() {
            for Request { ticket, .. } in requests {
                let stopped = self.stopped_error();
                self.answer(ticket, Err(stopped), Wait::Nothing);
            }
            let reason = self.stopped.clone().unwrap_or(StopReason::ShutDown);
            self.end_copying(&reason, out);
            return self.hand_out(out);
        }
        self.tick(now);
        self.copying.copies = 0;
        self.run_schedules(now);
        self.repeats_left = REPEATS_PER_GROUP;
        for queue in mem::take(&mut self.unfinished) {
            self.serve(queue, now);
        }
        self.serve_woken(now);
        self.resume_copying(now, out);
        let mut next = Vec::new();
        while take_some(&mut requests, &mut next) {
            // With millions of keys this halves the cost of a command.
            self.machine
                .read_ahead(next.iter().flat_map(|request| request.work.upcoming()));
            for Request { work, ticket } in next.drain(..) {
                self.group_messages += work.messages_max();
                match work {
                    Work::Commands(commands) => self.begin_commands(commands, ticket, now, out),
                    Work::Engine(commands) => self.run_engine_commands(&commands, ticket, now, out),
                    Work::Receive { receive, until } => {
                        self.run_receive(receive, until, ticket, now);
                    }
                    Work::Watch { name, seen, until } => {
                        self.run_watch(name, seen, until, ticket, now);
                    }
                    Work::ReadEvents { locate, until } => {
                        self.run_read(locate, until, ticket, now);
                    }
                    Work::Query(query) => {
                        if let Some(id) = self.machine.id_to_look_up(&query) {
                            let look_up = Answer::look_up(Work::Query(query), vec![id]);
                            self.answer(ticket, Ok(look_up), Wait::Nothing);
                            continue;
                        }
                        self.counts.queries += 1;
                        let mut reply = self.machine.query(&query, now);
                        if let Ok(reply) = &mut reply {
                            self.schedules.tell_problems(reply);
                        }
                        let outcome = Answer::Query(reply);
                        let seen = self.seen_of_query(&query);
                        self.answer(ticket, Ok(outcome), Wait::Sync(seen));
                    }
                }
            }
        }
        self.serve_woken(now);
        self.serve_watches(now);
        self.serve_reads(now);
        while let Some((_, waiter)) = self.waiters.pop_ended(now.machine) {
            let seen = Wait::Sync(self.promised);
            self.answer(waiter.ticket, Ok(Answer::Received(Ok(Vec::new()))), seen);
        }
        self.submit();
        self.hand_out(out);
    }

    /// Tells the driver that everything that starts before `durable` survives a power cut. Call
    /// [`run_group`](Self::run_group) afterwards if receives wait.
    pub fn reached(&mut self, durable: Position) {
        self.durable = self.durable.max(durable);
        self.machine.reached(durable);
    }

    /// Answers all waiting receives with no messages, and watches with their record as it is, for a shutdown.
    pub fn end_waiters(&mut self, out: &mut impl FnMut(Output<T>)) {
        let now = Now {
            wall: WallTime::default(),
            machine: self.machine_time,
        };
        self.end_watches(MachineTime::MAX, now);
        self.end_reads(MachineTime::MAX, now);
        self.hand_out(out);
        while let Some((_, waiter)) = self.waiters.pop_ended(MachineTime::MAX) {
            out(Output {
                written: self.cursor,
                durable: self.promised,
                kind: OutputKind::Answer {
                    ticket: waiter.ticket,
                    result: Ok(Answer::Received(Ok(Vec::new()))),
                },
            });
        }
    }

    /// Ends the term durably; the last call of a driver. It comes behind a last snapshot, so a
    /// start that finds a snapshot with nothing behind it knows that the term did not end this way.
    ///
    /// # Errors
    /// The reason why the driver has stopped instead: storage failed.
    pub(crate) fn end_term(&mut self, now: Now, nobody: T) -> Result<(), StopReason> {
        let last = Request {
            work: Work::from(EngineCommand::EndTerm),
            ticket: nobody,
        };
        self.run_group([last], now, &mut drop);
        if let Some(reason) = self.stopped() {
            return Err(reason.clone());
        }
        match self.log.progress().sync() {
            Ok(durable) => {
                self.reached(durable);
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Stops the driver for good after a failed sync, as after a failed append. Waiting receives
    /// get an error.
    pub fn stop(&mut self, reason: StopReason, out: &mut impl FnMut(Output<T>)) {
        let reason = self.stopped.get_or_insert(reason).clone();
        self.end_copying(&reason, out);
        let receives = std::iter::from_fn(|| self.waiters.pop_ended(MachineTime::MAX));
        let watches = std::iter::from_fn(|| self.watches.pop_ended(MachineTime::MAX));
        let reads = std::iter::from_fn(|| self.reads.pop_ended(MachineTime::MAX));
        let tickets = receives.map(|(_, waiter)| waiter.ticket);
        let tickets = tickets.chain(watches.map(|(_, waiter)| waiter.ticket));
        for ticket in tickets.chain(reads.map(|(_, waiter)| waiter.ticket)) {
            out(Output {
                written: Position::default(),
                durable: Position::default(),
                kind: OutputKind::Answer {
                    ticket,
                    result: Err(EngineError::Stopped {
                        reason: reason.clone(),
                    }),
                },
            });
        }
    }

    /// Why the driver has stopped, if it has.
    #[must_use]
    pub fn stopped(&self) -> Option<&StopReason> {
        self.stopped.as_ref()
    }

    /// The end of the last submitted record.
    #[must_use]
    pub fn tail(&self) -> Position {
        self.tail
    }

    /// The end of the last record whose sync an answer waits for: a sync is wanted until this is durable.
    #[must_use]
    pub fn promised(&self) -> Position {
        self.promised
    }

    pub(crate) fn capabilities(&self) -> LogCapabilities {
        self.capabilities
    }

    /// The number of receives that wait for a message, of watches, and of reads that wait for an event.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiters.len() + self.watches.len() + self.reads.len()
    }

    /// When time next has an effect without a request.
    #[must_use]
    pub fn next_deadline(&self) -> Deadlines {
        let mut next = self.machine.next_deadline();
        let waits = [
            self.waiters.next_deadline(),
            self.watches.next_deadline(),
            self.reads.next_deadline(),
            self.schedules.next_deadline(),
        ];
        next.machine = waits.into_iter().chain([next.machine]).flatten().min();
        next
    }

    /// Frees the memory of at most `budget` purged and deleted messages.
    pub fn housekeep(&mut self, budget: usize) -> Housekeeping {
        self.machine.housekeep(budget)
    }

    /// The machine, for reading.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// A handle that reports the log's progress and syncs the log.
    #[must_use]
    pub fn progress(&self) -> Arc<dyn LogProgress> {
        self.log.progress()
    }

    /// A handle that reads payloads.
    #[must_use]
    pub fn reader(&self) -> Arc<dyn LogReader> {
        self.log.reader()
    }

    /// The term that [`recover`](Self::recover) began.
    #[must_use]
    pub fn term(&self) -> Term {
        self.machine.term()
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counts(&self) -> DriverCounts {
        DriverCounts {
            kept: self.machine.record_counts(),
            ..self.counts
        }
    }

    /// How long the last submission to the log took.
    pub(crate) fn submit_took(&self) -> Duration {
        self.submit_took
    }

    /// The shortest sync window of the records since the last call: they must be synced within it,
    /// unless an answer waits for them earlier. Without such records, it has no limit.
    pub fn take_sync_window(&mut self) -> SyncWindow {
        mem::take(&mut self.sync_window)
    }

    /// Appends the first record of the term.
    pub(crate) fn begin(&mut self, start: &EngineCommand, now: Now) -> Result<(), StartError> {
        self.machine_time = now.machine;
        let decision = self.machine.decide(start, now);
        // The record has a few dozen bytes and always fits.
        if let Ok(bytes) = self.encode(&decision.effects) {
            self.fold(&decision.effects, Level::Disk, bytes);
        }
        self.log
            .append(self.epoch, self.tail, &mut self.group)
            .map_err(StartError::BeginTerm)?;
        self.tail = self.cursor;
        self.group.clear(GROUP_BUFFER_KEEP_BYTES);
        self.group_payload_bytes = 0;
        Ok(())
    }

    /// Notes what is lost for good. If a full log has no room for that, the loss is found again when
    /// it would be read, and at the next start.
    ///
    /// # Errors
    /// If the log failed.
    pub(crate) fn drop_lost(&mut self, lost: &[EngineCommand], now: Now) -> Result<(), StartError> {
        for some in lost.chunks(LOST_PER_GROUP) {
            self.tick(now);
            for command in some {
                let (_dropped, _wait) = self.run_command(command, now);
            }
            self.submit();
        }
        match &self.stopped {
            None => Ok(()),
            Some(StopReason::Deposed { by }) => {
                Err(StartError::Recover(LogError::Deposed { by: *by }))
            }
            Some(reason) => Err(StartError::Recover(LogError::Stopped {
                reason: StorageFailure::new(reason.clone()),
            })),
        }
    }

    /// Lets time pass: logs and folds what has ended or is due, up to a bound, so that callers need
    /// not wait for millions of timers.
    fn tick(&mut self, now: Now) {
        let now = self.past(now);
        self.is_behind = false;
        let ticks = TICKS_PER_GROUP + mem::take(&mut self.group_messages) / MESSAGES_PER_TICK;
        for _ in 0..ticks {
            let Some(effect) = self.machine.tick(now) else {
                return;
            };
            let logged = self.log_effects(&[effect], Level::Process, Purpose::Maintenance);
            if logged.is_err() {
                // Time stands still until there is room again: nothing ends and nothing becomes due.
                return;
            }
        }
        self.is_behind = true;
    }

    /// Sets how much later than the clock's reading the time may be; zero without this call.
    pub fn set_clock_drops(&mut self, dropped: Millis) {
        self.clock_drops = dropped;
    }

    /// A time that has certainly passed when a clock reads `now`.
    #[must_use]
    pub fn past(&self, now: Now) -> Now {
        let earlier = |time: u64| time.saturating_sub(self.clock_drops);
        Now {
            wall: WallTime(earlier(now.wall.0)),
            machine: MachineTime(earlier(now.machine.0)),
        }
    }

    /// Whether more timers were due, more exhausted messages had to move, or more copies had to be made, than the last
    /// group had time for: run another group at once.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let is_behind = self.is_behind || self.has_steps() || !self.unfinished.is_empty();
        (is_behind && self.stopped.is_none()) || self.is_copying()
    }

    fn run_engine_commands(
        &mut self,
        commands: &[EngineCommand],
        ticket: T,
        now: Now,
        out: &mut impl FnMut(Output<T>),
    ) {
        let mut wait = Wait::Nothing;
        let mut results = SmallVec::with_capacity(commands.len());
        for command in commands {
            let (result, command_wait) = self.run_command(command, now);
            wait = wait.max(command_wait);
            results.push(result);
        }
        self.answer_commands(results, wait, ticket, out);
    }

    fn answer_commands(
        &mut self,
        results: SmallVec<[Result<Reply, Rejection>; 1]>,
        wait: Wait,
        ticket: T,
        out: &mut impl FnMut(Output<T>),
    ) {
        let outcome = Ok(Answer::Commands(results));
        if wait == Wait::Nothing {
            out(Output {
                written: Position::default(),
                durable: Position::default(),
                kind: OutputKind::Answer {
                    ticket,
                    result: outcome,
                },
            });
        } else {
            self.answer(ticket, outcome, wait);
        }
    }

    fn run_command<'a>(
        &mut self,
        command: impl Into<AnyCommand<'a>>,
        now: Now,
    ) -> (Result<Reply, Rejection>, Wait) {
        let command = command.into();
        self.counts.commands += 1;
        let decision = self.machine.decide(command, now);
        self.copying.copies += decision.copying;
        if !decision.effects.is_empty() {
            let purpose = if grows(&self.machine, command) {
                Purpose::Growth
            } else {
                Purpose::Maintenance
            };
            // Once the effects are folded, what they end is gone.
            let ended = decision.effects.iter();
            let spans: SmallVec<[Span; 10]> = ended
                .filter_map(|effect| self.machine.span_ended_by(effect, now))
                .collect();
            if let Err(rejection) = self.log_effects(&decision.effects, decision.level, purpose) {
                self.counts.rejected += 1;
                return (Err(rejection), Wait::Sync(self.promised));
            }
            for span in spans {
                self.counts.spans.record(span);
            }
        }
        // A publish makes as many messages as there are queues, and a transaction as many as it has parts: each counts.
        self.group_messages += decision.effects.len().saturating_sub(1);
        self.machine.note_outcome(command, &decision.outcome);
        // Including the record at that position.
        let rests_on = decision.rests_on.map(|at| Position(at.0 + 1));
        let mut wait = if decision.effects.is_empty() {
            // The answer reports a state, such as a missing queue or a stale lease. That state must
            // not be one that a power cut can still take back.
            Wait::Sync(match decision.outcome {
                Ok(_) => rests_on.unwrap_or(self.promised),
                Err(_) => rests_on.map_or(self.promised, |at| at.max(self.promised)),
            })
        } else if decision.level > self.capabilities.append_level {
            Wait::Sync(self.cursor)
        } else if decision.level > Level::Memory || !may_be_lost(&decision.outcome) {
            Wait::Append
        } else {
            Wait::Nothing
        };
        if let Some(position) = rests_on {
            wait = wait.max(Wait::Sync(position));
        }
        match (&decision.outcome, decision.level) {
            (Err(_), _) => self.counts.rejected += 1,
            (Ok(_), Level::Memory) => self.counts.answered_memory += 1,
            (Ok(_), Level::Process) => self.counts.answered_process += 1,
            (Ok(_), _) => self.counts.answered_disk += 1,
        }
        (decision.outcome, wait)
    }

    /// Gives leases, or lets the caller wait for them.
    fn run_receive(&mut self, receive: Receive, until: Option<MachineTime>, ticket: T, now: Now) {
        let queue = self.machine.queue_id(&receive.queue);
        // Receives that have been waiting go first.
        if let Some(queue) = queue {
            self.serve(queue, now);
        }
        // If the group may not search further, a receive that can wait queues behind those that do.
        let waits = until.is_some_and(|until| until > now.machine)
            && queue.is_some_and(|queue| self.unfinished.contains(&queue));
        let (result, wait) = if waits {
            (Ok(Vec::new()), Wait::Nothing)
        } else {
            self.lease(&receive, now)
        };
        match (queue, until) {
            (Some(queue), Some(until)) if until > now.machine && is_empty(&result) => {
                let waiter = Waiter {
                    request: receive,
                    until,
                    ticket,
                };
                self.let_wait(queue, waiter, now);
            }
            _ => self.answer(ticket, Ok(Answer::Received(result)), wait),
        }
    }

    /// Whether another request may wait.
    fn may_wait(&mut self, now: Now) -> bool {
        if self.waiting() >= self.waiters_max && now.machine.since(self.swept) >= SWEEP_EVERY_MS {
            self.swept = now.machine;
            self.waiters.sweep(T::is_gone);
            self.watches.sweep(T::is_gone);
            self.reads.sweep(T::is_gone);
        }
        self.waiting() < self.waiters_max
    }

    fn let_wait(&mut self, queue: QueueId, waiter: Waiter<Receive, T>, now: Now) {
        if self.may_wait(now) {
            self.waiters.push(queue, waiter);
        } else {
            self.counts.overloaded += 1;
            self.answer(waiter.ticket, Err(EngineError::Overloaded), Wait::Nothing);
        }
    }

    /// Decides a receive repeatedly, as often as needed and as the group may: one decision moves a bounded
    /// number of exhausted messages and may return nothing although there are leasable ones behind them.
    fn lease(&mut self, receive: &Receive, now: Now) -> (Result<Vec<Delivery>, Rejection>, Wait) {
        let command = Command::Receive(receive.clone());
        loop {
            let before = self.cursor;
            let (result, wait) = self.run_command(&command, now);
            let result = result.map(|reply| match reply {
                Reply::Received(leases) => leases,
                _ => Vec::new(),
            });
            let moved = self.cursor != before;
            if !(is_empty(&result) && moved && self.machine.leasable(&receive.queue)) {
                return (result, wait);
            }
            if self.repeats_left == 0 {
                let queue = self.machine.queue_id(&receive.queue);
                self.unfinished.extend(queue);
                return (result, wait);
            }
            self.repeats_left -= 1;
        }
    }

    /// Serves the waiting receives of queues that have new leasable messages or were deleted.
    fn serve_woken(&mut self, now: Now) {
        loop {
            let mut woken: SmallVec<[QueueId; 8]> = self.machine.take_woken().collect();
            woken.extend(self.queues_deleted.drain(..));
            if woken.is_empty() || self.stopped.is_some() {
                return;
            }
            for queue in woken {
                self.serve(queue, now);
            }
        }
    }

    /// Serves the waiting receives of a queue, oldest first, as long as it has messages.
    fn serve(&mut self, queue: QueueId, now: Now) {
        if self.unfinished.contains(&queue) {
            return;
        }
        while let Some(waiter) = self.waiters.first(&queue) {
            if waiter.ticket.is_gone() {
                self.waiters.pop(&queue);
                continue;
            }
            // If the queue was deleted, or created again under its name, the receive is rejected.
            let there = self.machine.queue_id(&waiter.request.queue) == Some(queue);
            if there && !self.machine.leasable(&waiter.request.queue) {
                return;
            }
            let receive = waiter.request.clone();
            let (result, wait) = if there {
                self.lease(&receive, now)
            } else {
                let queue = receive.queue;
                let gone = Rejection::QueueNotFound { queue };
                (Err(gone), Wait::Sync(self.promised))
            };
            if is_empty(&result) {
                // Only exhausted messages so far. The receive keeps its place.
                return;
            }
            if let Some(waiter) = self.waiters.pop(&queue) {
                self.answer(waiter.ticket, Ok(Answer::Received(result)), wait);
            }
        }
    }

    /// Encodes effects as a record, if there is room for it, and folds them at the record's position. Until
    /// then, decided effects change nothing. On a full log, records that add to its live contents are refused
    /// first; all others use the log's reserve, because they make room again.
    fn log_effects(
        &mut self,
        effects: &[Effect],
        level: Level,
        purpose: Purpose,
    ) -> Result<(), Rejection> {
        let bytes = self.encode(effects)?;
        if let Err(rejection) = self.reserve(purpose, bytes) {
            self.group.pop();
            return Err(rejection);
        }
        self.fold(effects, level, bytes);
        Ok(())
    }

    /// Encodes effects as the last record of the group, and returns its length.
    fn encode(&mut self, effects: &[Effect]) -> Result<usize, Rejection> {
        let bytes = self.group.push(|buffer| encode_record(effects, buffer));
        if bytes > self.capabilities.record_bytes_max {
            self.group.pop();
            return Err(Rejection::RecordTooLarge {
                bytes: bytes as u64,
                max: self.capabilities.record_bytes_max as u64,
            });
        }
        Ok(bytes)
    }

    /// Reserves room for the group. Its last record, of `bytes` bytes, is new.
    fn reserve(&mut self, purpose: Purpose, bytes: usize) -> Result<(), Rejection> {
        let bytes = self.group_payload_bytes + bytes as u64;
        let records = self.group.len() as u64;
        match self.log.reserve(bytes, records, purpose) {
            Ok(()) => Ok(()),
            Err(ReserveError::Full { needed, free }) => Err(Rejection::LogFull { needed, free }),
            Err(ReserveError::OutOfDescriptors(_)) => Err(Rejection::OutOfDescriptors),
            Err(error) => {
                self.fail(error);
                let needed = bytes;
                Err(Rejection::LogFull { needed, free: 0 })
            }
        }
    }

    /// Folds effects at the position of the group's last record, which contains them.
    fn fold(&mut self, effects: &[Effect], level: Level, bytes: usize) {
        self.group_payload_bytes += bytes as u64;
        // At level `disk` an answer waits for the record, so no window matters.
        let window = if level < Level::Disk {
            self.machine.sync_window(effects, self.window_of_log)
        } else {
            self.window_of_log
        };
        self.sync_window = self.sync_window.shorter(window);
        if let [Effect::Compacted(_) | Effect::EventsCompacted(_), ..] = effects {
            let record = (bytes + self.capabilities.gap) as u64;
            self.group_compacted_bytes += record;
            self.maintenance.compacted_messages += effects.len() as u64;
            self.maintenance.compacted_bytes += record;
        }
        let position = self.log.place(&mut self.cursor, bytes);
        self.machine.fold(effects, position);
        for effect in effects {
            let (Effect::QueueCreated { queue, .. }
            | Effect::QueueChanged { queue, .. }
            | Effect::QueueDeleted { queue }) = effect
            else {
                continue;
            };
            let entry = self
                .machine
                .queue(*queue)
                .map(|queue| Arc::new(queue.into()));
            if entry.is_none() {
                self.queues_deleted.push(*queue);
            }
            self.after_submit.push(Output {
                written: self.cursor,
                durable: if level > self.capabilities.append_level {
                    self.cursor
                } else {
                    Position::default()
                },
                kind: OutputKind::QueueChanged {
                    queue: *queue,
                    entry,
                },
            });
        }
    }

    /// Submits the group. If that fails, the driver stops, and the group's outputs become errors.
    fn submit(&mut self) {
        // Without records, there may still be answers that must fail because storage failed while
        // room was reserved.
        if self.group.is_empty() && self.stopped.is_none() {
            return;
        }
        let records = self.group.len() as u64;
        let bytes = mem::take(&mut self.group_payload_bytes);
        let compacted = mem::take(&mut self.group_compacted_bytes);
        let written = self.group.bytes().len() as u64;
        let began = Instant::now();
        let (reason, is_unknown) = match &self.stopped {
            // Storage failed while room was reserved.
            Some(reason) => (reason.clone(), false),
            None => match self.log.submit(self.epoch, self.tail, &mut self.group) {
                Ok(()) => {
                    self.submit_took = began.elapsed();
                    self.tail = self.cursor;
                    self.plan.appended(written, compacted);
                    self.counts.groups += 1;
                    self.counts.records += records;
                    self.counts.bytes += bytes;
                    self.counts.group_records_max = self.counts.group_records_max.max(records);
                    self.group.clear(GROUP_BUFFER_KEEP_BYTES);
                    return;
                }
                Err(error) => {
                    // After any other error it is certain that nothing was written.
                    let is_unknown = matches!(error, AppendError::Unknown(_));
                    (self.fail(error), is_unknown)
                }
            },
        };
        self.after_submit
            .retain_mut(|output| match &mut output.kind {
                OutputKind::Answer { result, .. } => {
                    *result = Err(if is_unknown {
                        reason.unknown_outcome()
                    } else {
                        EngineError::Stopped {
                            reason: reason.clone(),
                        }
                    });
                    output.written = Position::default();
                    output.durable = Position::default();
                    true
                }
                OutputKind::QueueChanged { .. } => false,
            });
    }

    fn answer(&mut self, ticket: T, result: Result<Answer, EngineError>, wait: Wait) {
        let (written, durable) = match wait {
            Wait::Nothing => (Position::default(), Position::default()),
            Wait::Append => (self.cursor, Position::default()),
            // Answers that were decided before the failure also get its error, at any level.
            Wait::Sync(position) => (self.cursor, position),
        };
        self.promised = self.promised.max(durable);
        self.after_submit.push(Output {
            written,
            durable,
            kind: OutputKind::Answer { ticket, result },
        });
    }

    fn hand_out(&mut self, out: &mut impl FnMut(Output<T>)) {
        for output in self.after_submit.drain(..) {
            out(output);
        }
    }

    /// Stops the driver at the first failure; its caller tells those who wait.
    pub(crate) fn fail(
        &mut self,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> StopReason {
        self.stopped
            .get_or_insert_with(|| StopReason::of(error))
            .clone()
    }

    fn stopped_error(&self) -> EngineError {
        let reason = self.stopped.clone();
        EngineError::Stopped {
            reason: reason.unwrap_or(StopReason::ShutDown),
        }
    }
}

fn is_empty(result: &Result<Vec<Delivery>, Rejection>) -> bool {
    matches!(result, Ok(leases) if leases.is_empty())
}

/// Whether the reply concerns only messages that were accepted or settled. Leases are useless
/// before they and their payloads can be found in the log, and queues concern all callers.
fn may_be_lost(outcome: &Result<Reply, Rejection>) -> bool {
    !matches!(outcome, Ok(Reply::Queue(_) | Reply::Received(_)))
}

/// Takes the next requests, of about [`READ_AHEAD`] messages. Returns false if there are none.
fn take_some<T>(
    requests: &mut impl Iterator<Item = Request<T>>,
    next: &mut Vec<Request<T>>,
) -> bool {
    let mut messages = 0;
    while messages < READ_AHEAD
        && let Some(request) = requests.next()
    {
        messages += request.work.messages_max();
        next.push(request);
    }
    !next.is_empty()
}

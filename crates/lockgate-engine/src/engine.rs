//! The handle through which callers use an engine.

use std::{io::Write, sync::Arc, time::Duration};

use lockgate_core::{
    Clock, Key, Level, MachineTime, MessageId, Millis, Now, QueueName, Record, Sequence, Storage,
    Term, WallTime, WatchRecord,
    coordination::Fence,
    ledger::{LedgerError, LedgerPage},
};
use lockgate_machine::{
    Delivery, FindMessage, ListMessages, ListQueues, LocateEvents, MessagePage, Query, QueryReply,
    QueueDescription, QueueFigures, Receive, Rejection, Reply, TypedCommand, TypedQuery,
};
use smallvec::SmallVec;

use crate::{
    BackupError, BackupReport, Directory, EngineError, EngineMetrics, EngineOptions, Peek, Peeked,
    ReceivedBatch, StartError, StartReport, StopReason, UnknownCause,
    inbox::{AnswerSender, GuardedAnswer, GuardedPage, Inbox, millis},
    ledger::GuardedEvents,
    request::{Answer, Batch, Request, Work},
    runtime::{self, Shared},
    sync::{Semaphore, oneshot},
};

/// One shard in service: a machine over a log, driven by a thread of its own. Clones are cheap.
///
/// It needs no particular async runtime. Dropping the last handle stops the engine as
/// [`shutdown`](Self::shutdown) does, but without waiting for it: the log may stay in use for a
/// moment longer.
///
/// # Order
/// The engine decides the requests of a caller that awaits each answer in that caller's order. If
/// several requests are on the way at once, the engine decides the sends in their order, and all
/// others in theirs. But other requests may pass waiting sends, and sends with unique ids to queues that remember
/// these for ever may pass each other: do not delete a queue behind a send
/// whose answer has not come yet. Put requests that must happen in order and at once into one
/// [`submit_all`](Self::submit_all).
///
/// # Cancellation
/// You may drop the future of a request at any time. While the request waits for room in the inbox, dropping
/// the future means that the request never happens. Later the request may happen, as if its answer had been
/// lost on the way. Leases that it was given go back at once, and their attempts do not count.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
    /// Of whose term all commands are.
    fence: Option<Fence>,
}

/// What all clones share; stops the engine when the last one is gone.
struct Handle {
    shared: Arc<Shared>,
}

/// Says whether an engine accepts work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    Serving,
    /// It was asked to stop, and still answers what it accepted before.
    Stopping,
    /// It has stopped, and its log is free for another owner.
    Stopped {
        reason: StopReason,
    },
}

/// The turn to ask for an overview. It ends when the overview was given, not when its caller is
/// gone: otherwise callers that give up would pile up tasks for an owner thread that hangs.
struct OverviewTurn(Arc<Semaphore>);

impl OverviewTurn {
    async fn take(turns: &Arc<Semaphore>) -> Self {
        if let Ok(permit) = turns.acquire().await {
            permit.forget();
        }
        Self(turns.clone())
    }
}

impl Drop for OverviewTurn {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Engine {
    /// Recovers the shard in `storage`, such as a log with its own snapshots, begins a new term and
    /// starts serving.
    ///
    /// Blocks until the engine can serve, which takes about as long as reading the log: do not call
    /// it from an async task.
    ///
    /// # Errors
    /// If the log cannot be recovered, was written by a newer version, or does not accept and sync
    /// the term's first record. See [`StartError`].
    pub fn start(
        storage: impl Into<Storage>,
        clock: Arc<dyn Clock>,
        options: EngineOptions,
    ) -> Result<(Self, StartReport), StartError> {
        let (shared, report) = runtime::start(storage.into(), clock, options)?;
        let handle = Arc::new(Handle { shared });
        let fence = None;
        Ok((Self { handle, fence }, report))
    }

    /// The same engine for the leader of a term: each command that is submitted here is refused with
    /// [`Rejection::Fenced`] once the shard has seen a later term of that election, or when the term is over by its own clock. See
    /// [`Fenced`](lockgate_machine::Fenced). Receives and queries are as before.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self {
            handle: self.handle.clone(),
            fence: Some(fence.clone()),
        }
    }

    /// Of whose term all commands are, if they are under a fence.
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        self.fence.as_ref()
    }

    /// The same engine under the fence that any of these is under, for a command that concerns all of them.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`] if there are two.
    pub fn joint<'a>(
        &self,
        others: impl IntoIterator<Item = &'a Self>,
    ) -> Result<Self, EngineError> {
        let mut joint = self.clone();
        for fence in others.into_iter().filter_map(Self::fence) {
            match joint.fence() {
                None => joint = joint.fenced(fence),
                Some(own) if own.mark() == fence.mark() => {}
                Some(_) => {
                    return Err(EngineError::Rejected(Rejection::OutOfRange {
                        what: "number of fences",
                        value: 2,
                        min: 0,
                        max: 1,
                    }));
                }
            }
        }
        Ok(joint)
    }

    /// The commands as work, under the fence if there is one.
    fn work<C>(&self, commands: Batch<C>) -> Result<Work, Rejection> {
        let Some(fence) = &self.fence else {
            return Ok(commands.into());
        };
        fence.check()?;
        Ok(commands.fenced(&fence.mark()).into())
    }

    /// Decides one command, and returns when its level is reached. The type of the command
    /// determines the type of the reply.
    ///
    /// Use [`receive`](Self::receive) for a receive: it guards the leases and reads the payloads.
    ///
    /// # Errors
    /// As [`EngineError`] says; [`EngineError::Rejected`] if the machine refuses the command.
    pub async fn submit<C: TypedCommand>(&self, command: C) -> Result<C::Reply, EngineError> {
        let work = self.work(Batch::from_iter([command]))?;
        let result = self.ask_commands(work, |mut results| match results.pop()? {
            Ok(reply) => Some(Ok(C::reply(reply)?)),
            Err(rejection) => Some(Err(rejection)),
        });
        Ok(result.await??)
    }

    /// Decides several independent commands in order, and returns when all of them have reached
    /// their levels. They take one place in the inbox and are written and synced together, each in
    /// its own record. After a crash, the first of them may have survived and the others not.
    /// [`Transact`](lockgate_machine::Transact) does all or nothing.
    ///
    /// Pass commands of different kinds as [`Command`](lockgate_machine::Command)s; their replies are
    /// [`Reply`](lockgate_machine::Reply)s.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). But if the machine refuses a command, only that command's
    /// result is an error, and the others happen.
    pub async fn submit_all<C: TypedCommand>(
        &self,
        commands: Batch<C>,
    ) -> Result<Vec<Result<C::Reply, Rejection>>, EngineError> {
        let work = self.work(commands)?;
        self.ask_commands(work, |results| {
            // The collected results reuse the vector's memory.
            let results = results.into_vec().into_iter();
            let typed = results.map(|result| match result {
                Ok(reply) => Some(Ok(C::reply(reply)?)),
                Err(rejection) => Some(Err(rejection)),
            });
            typed.collect()
        })
        .await
    }

    /// As [`ask`](Self::ask), for commands. Looks up the ids that the machine wants to know of, and gives the commands
    /// again. That ends: the index is complete up to where the machine relies on it whenever it is asked, and the machine
    /// relies on more of it only every few thousand messages.
    async fn ask_commands<A>(
        &self,
        mut work: Work,
        pick: impl FnOnce(Results) -> Option<A>,
    ) -> Result<A, EngineError> {
        loop {
            let answer = self.ask(work, |answer| match answer {
                GuardedAnswer::Other(Answer::Commands(results)) => Some(Ok(results)),
                GuardedAnswer::Other(Answer::LookUp(look_up)) => Some(Err(look_up)),
                _ => None,
            });
            match answer.await? {
                Ok(results) => return pick(results).ok_or_else(no_answer),
                Err(look_up) => work = self.handle.shared.look_up(*look_up).await?,
            }
        }
    }

    /// Leases messages, waiting up to `wait` for a first one. The batch is empty if none came by
    /// then. Waiting receives are served oldest first and cost nothing meanwhile.
    ///
    /// It never blocks the caller's thread. It reads payloads in the caller's task if that needs
    /// [no waiting](lockgate_core::LogReader::try_read_all), for example because they are in the
    /// operating system's cache: a system call of about a microsecond per record is cheaper than a
    /// hand-over to another thread. Otherwise up to 16 threads of the engine read them. Up to
    /// 20,000 calls can wait for these threads; beyond that a call fails with
    /// [`EngineError::Overloaded`]. A message with a damaged payload is dropped from its queue,
    /// counted and logged, and the rest is delivered.
    ///
    /// If one of its leases ended before the batch could be returned, the batch goes back, because other
    /// callers may have its messages by then. Only leases of 0 are returned anyway. The receive is repeated
    /// while time of `wait` is left, and is empty otherwise. Each lease that ended counts as an attempt, so
    /// make `lease` longer than an answer takes, including disk and network.
    ///
    /// The batch may also be empty without a `wait` if the queue's first thousand messages have had all their
    /// attempts: these move to its dead-letter queue, and the next call finds the messages behind them.
    ///
    /// # Errors
    /// As [`EngineError`] says; [`EngineError::Unreadable`] if storage failed on the first payload.
    pub async fn receive(
        &self,
        receive: Receive,
        wait: Duration,
    ) -> Result<ReceivedBatch, EngineError> {
        let until = (!wait.is_zero()).then(|| self.now().machine.plus(millis(wait)));
        loop {
            let work = Work::Receive {
                receive: receive.clone(),
                until,
            };
            let leases = self.ask(work, |answer| match answer {
                GuardedAnswer::Leases(leases) => Some(Ok(leases)),
                GuardedAnswer::Other(Answer::Received(Err(rejection))) => Some(Err(rejection)),
                _ => None,
            });
            let leases = leases.await??;
            let leased = !leases.deliveries.is_empty();
            let batch = if self.ended_on_the_way(&receive, &leases.deliveries) {
                ReceivedBatch::none(leases)
            } else {
                let batch = self.handle.shared.read(leases).await?;
                if leased && batch.is_empty() {
                    // All messages were damaged and dropped; continue waiting.
                    continue;
                }
                let deliveries = batch.iter().map(|received| &received.delivery);
                if !self.ended_on_the_way(&receive, deliveries) {
                    return Ok(batch);
                }
                batch.give_back()
            };
            // Without an end, a lease that is shorter than an answer takes would be given again and again.
            if until.is_none_or(|until| until <= self.now().machine) {
                return Ok(batch);
            }
        }
    }

    /// Whether leases ended before they could be returned: a sync or a read took longer than they lasted.
    /// Other callers may have the messages by now. A lease of zero has always ended, as its caller wants.
    fn ended_on_the_way<'a>(
        &self,
        receive: &Receive,
        leases: impl IntoIterator<Item = &'a Delivery>,
    ) -> bool {
        let now = self.now().machine;
        let mut leases = leases.into_iter();
        let ended = leases.any(|lease| lease.deadline <= now);
        ended && {
            let queue = self.directory().get(&receive.queue);
            receive.lease.or(queue.map(|queue| queue.settings.lease)) != Some(0)
        }
    }

    /// Answers a query about the state. The answer reports changes by commands of level `disk` only
    /// once they are durable. It reports other changes at once, and a power cut can take those
    /// back: leases, and messages of queues at a lower level.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn query<Q: TypedQuery>(&self, query: Q) -> Result<Q::Reply, EngineError> {
        let mut work = Work::Query(query.into());
        loop {
            let reply = self.ask(work, |answer| match answer {
                GuardedAnswer::Other(Answer::Query(Ok(reply))) => {
                    Q::reply(reply).map(|reply| Ok(Ok(reply)))
                }
                GuardedAnswer::Other(Answer::Query(Err(rejection))) => Some(Ok(Err(rejection))),
                GuardedAnswer::Other(Answer::LookUp(look_up)) => Some(Err(look_up)),
                GuardedAnswer::Messages(GuardedPage { messages, next, .. }) => {
                    let page = MessagePage { messages, next };
                    Q::reply(QueryReply::Messages(page)).map(|reply| Ok(Ok(reply)))
                }
                GuardedAnswer::Events(GuardedEvents { places, .. }) => {
                    Q::reply(QueryReply::EventPlaces(places)).map(|reply| Ok(Ok(reply)))
                }
                _ => None,
            });
            match reply.await? {
                Ok(reply) => return Ok(reply?),
                Err(look_up) => work = self.handle.shared.look_up(*look_up).await?,
            }
        }
    }

    /// Returns the record as soon as it is another than the caller has seen, or as it is when the wait is over. Of changes
    /// that follow one another quickly, the last is seen. A waiting call costs nothing meanwhile; it counts among the
    /// receives that may wait ([`waiters_max`](EngineOptions::waiters_max)).
    ///
    /// Cancellation safe.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn watch_record(&self, watch: WatchRecord) -> Result<Option<Record>, EngineError> {
        let work = Work::Watch {
            until: self.now().machine.plus(millis(watch.wait)),
            name: watch.name,
            seen: watch.seen,
        };
        let reply = self.ask(work, |answer| match answer {
            GuardedAnswer::Other(Answer::Query(Ok(QueryReply::Record(record)))) => Some(record),
            _ => None,
        });
        Ok(reply.await?.map(|record| *record))
    }

    /// Reads events of a ledger, as soon as there are some or at `until`. Cancellation safe.
    pub(crate) async fn read_events(
        &self,
        locate: LocateEvents,
        until: MachineTime,
    ) -> Result<Result<LedgerPage, LedgerError>, EngineError> {
        let (after, limit) = (locate.after, locate.limit);
        let work = Work::ReadEvents { locate, until };
        let events = self.ask(work, |answer| match answer {
            GuardedAnswer::Events(events) => Some(Ok(events)),
            GuardedAnswer::Other(Answer::Query(Err(rejection))) => Some(Err(rejection)),
            _ => None,
        });
        self.handle
            .shared
            .read_events(events.await??, after, limit)
            .await
    }

    /// Returns the first queues by name, up to `limit`, in their present state. The state may not be durable
    /// yet, so a crash may take it back: use it only for figures to look at. The call does not wait for
    /// storage unless the engine itself does, and callers are served one after the other.
    ///
    /// Returns `None` if the engine has stopped.
    ///
    /// Cancellation safe.
    pub async fn overview(&self, limit: usize) -> Option<Vec<QueueDescription>> {
        let shared = &self.handle.shared;
        overview(&shared.inbox, &shared.overview, limit).await
    }

    /// The figures of up to `limit` queues by name, of those after `after`. As [`overview`](Self::overview), and much
    /// cheaper; the engine does nothing else meanwhile, so ask for many queues in steps.
    ///
    /// Returns `None` if the engine has stopped.
    ///
    /// Cancellation safe.
    pub async fn figures(
        &self,
        after: Option<QueueName>,
        limit: usize,
    ) -> Option<Vec<QueueFigures>> {
        let shared = &self.handle.shared;
        let turn = OverviewTurn::take(&shared.overview).await;
        let (sender, figures) = oneshot::channel();
        shared.inbox.task(Box::new(move |driver, _now| {
            // Fails if the caller is gone.
            drop(sender.send(driver.machine().figures(after.as_ref(), limit)));
            drop(turn);
        }));
        figures.await.ok()
    }

    /// Reads messages without leasing them. Returns a page of the messages that [`Query::ListMessages`]
    /// names, each with its payload, but fewer once they have [`Peek::BYTES_MAX`] bytes together. Payloads
    /// are read in the same way as by [`receive`](Self::receive).
    ///
    /// # Errors
    /// As [`EngineError`] says; [`EngineError::Unreadable`] if storage failed.
    pub async fn peek(
        &self,
        queue: QueueName,
        key: Option<Key>,
        after: Option<Sequence>,
        limit: usize,
    ) -> Result<Peek, EngineError> {
        let page = ListMessages {
            queue,
            key,
            after,
            limit,
        };
        self.look(page.into()).await
    }

    /// Reads one message without leasing it. As [`peek`](Self::peek).
    ///
    /// # Errors
    /// [`Rejection::MessageNotFound`] from the machine; else as [`peek`](Self::peek).
    pub async fn peek_one(
        &self,
        queue: QueueName,
        message: MessageId,
    ) -> Result<Peeked, EngineError> {
        let find = FindMessage {
            queue: queue.clone(),
            message,
        };
        let page = self.look(find.into()).await?;
        // A page of one message is never empty.
        let not_found = Rejection::MessageNotFound { queue, message };
        page.messages
            .into_iter()
            .next()
            .ok_or_else(|| not_found.into())
    }

    async fn look(&self, query: Query) -> Result<Peek, EngineError> {
        let page = self.ask(Work::Query(query), |answer| match answer {
            GuardedAnswer::Messages(page) => Some(Ok(page)),
            GuardedAnswer::Other(Answer::Query(Err(rejection))) => Some(Err(rejection)),
            _ => None,
        });
        self.handle.shared.read_page(page.await??).await
    }

    /// All queues, without a request to the engine.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.handle.shared.directory
    }

    /// The term this engine serves in.
    #[must_use]
    pub fn term(&self) -> Term {
        self.handle.shared.term
    }

    /// 32 random bytes that never change for the shard, for tokens that cannot be forged.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.handle.shared.secret
    }

    /// The highest level that the log supports, and so the highest that a message may ask for.
    #[must_use]
    pub fn level_max(&self) -> Level {
        self.handle.shared.level_max
    }

    /// The time as the engine sees it. Deadlines of leases are in this machine time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.handle.shared.now()
    }

    /// The due time of what may come after that delay at the earliest. A clock's reading may be early by what it
    /// [drops](lockgate_core::Clock::dropped), and whoever asked for the delay must not see it end early. Without a delay: now.
    #[must_use]
    pub fn due_after(&self, delay: Millis) -> WallTime {
        let dropped = match delay {
            0 => 0,
            _ => self.handle.shared.clock.dropped(),
        };
        self.now().wall.plus(delay).plus(dropped)
    }

    /// Machine time until `deadline`; zero if it has passed.
    #[must_use]
    pub fn remaining(&self, deadline: MachineTime) -> Duration {
        Duration::from_millis(deadline.since(self.now().machine))
    }

    /// Whether the engine accepts work.
    #[must_use]
    pub fn status(&self) -> Status {
        self.handle.shared.status.borrow().clone()
    }

    /// Waits until the engine has stopped and returns the reason.
    ///
    /// Cancellation safe.
    pub async fn stopped(&self) -> StopReason {
        let mut status = self.handle.shared.status.subscribe();
        loop {
            if let Status::Stopped { reason } = &*status.borrow_and_update() {
                return reason.clone();
            }
            if status.changed().await.is_err() {
                return StopReason::ShutDown;
            }
        }
    }

    /// The counters since the start, and the present gauges.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        self.handle.shared.metrics()
    }

    /// Writes a backup of the whole shard at one instant between the call and the first byte: everything that
    /// was answered before the call is in it, and all of it is durable. The engine serves meanwhile, and
    /// later changes do not affect the backup. [`restore`](crate::restore) turns it into a log.
    ///
    /// While it runs, the log keeps all space of messages that lived when it began, and pages of
    /// the state that change are copied once; so avoid a slow `out`. It needs memory for these
    /// pages and a few MiB more.
    ///
    /// Blocks the calling thread until all is written: do not call it from an async task.
    ///
    /// # Errors
    /// If the engine stops meanwhile, the log cannot be read or `out` fails. The bytes written so
    /// far are then useless, and a restore refuses them.
    pub fn backup(&self, out: &mut dyn Write) -> Result<BackupReport, BackupError> {
        self.handle.shared.backup(out)
    }

    /// Makes the engine read its clock again. Only for clocks that are set by hand: the engine
    /// sleeps until the next deadline as if time passed at its usual rate.
    pub fn clock_changed(&self) {
        self.handle.shared.inbox.poke();
    }

    /// Stops the engine: answers the requests in the inbox, ends waiting receives empty, syncs the
    /// log, releases it for another owner, and ends the threads. May be called any number of times;
    /// each call returns when the engine has stopped.
    ///
    /// Cancellation safe: the engine stops even if nobody waits for it.
    pub async fn shutdown(&self) {
        self.handle.shared.stop();
        let _reason = self.stopped().await;
        self.handle.shared.join();
    }

    /// Sends work to the owner thread. `pick` takes the expected kind of reply out of the answer.
    async fn ask<A>(
        &self,
        work: Work,
        pick: impl FnOnce(GuardedAnswer) -> Option<A>,
    ) -> Result<A, EngineError> {
        let shared = &self.handle.shared;
        let (ticket, answer) = AnswerSender::new();
        let request = Request { work, ticket };
        if let Err(error) = shared.inbox.enter(request, &*shared.clock).await {
            shared.count_refused(&error);
            return Err(error);
        }
        // The owner answers everything that it takes. If there is no answer, the owner has
        // panicked, perhaps after the append.
        let Ok(answer) = answer.await else {
            return Err(no_answer());
        };
        // An answer is of its work's kind. If it were not, this avoids a panic in the caller's task.
        pick(answer?).ok_or_else(no_answer)
    }
}

/// One result per command, in order.
type Results = SmallVec<[Result<Reply, Rejection>; 1]>;

fn no_answer() -> EngineError {
    EngineError::UnknownOutcome {
        cause: UnknownCause::NoAnswer,
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("term", &self.term())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

async fn overview(
    inbox: &Inbox,
    turns: &Arc<Semaphore>,
    limit: usize,
) -> Option<Vec<QueueDescription>> {
    let turn = OverviewTurn::take(turns).await;
    let (sender, queues) = oneshot::channel();
    inbox.task(Box::new(move |driver, now| {
        let first = ListQueues {
            prefix: String::new(),
            after: None,
            limit,
        };
        // Fails if the caller is gone.
        if let Ok(QueryReply::Queues(page)) = driver.machine().query(&first.into(), now) {
            drop(sender.send(page.queues));
        }
        drop(turn);
    }));
    queues.await.ok()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::inbox::Taken;

    #[test]
    fn callers_that_give_up_an_overview_leave_one_task_behind() {
        let inbox = Inbox::new(&EngineOptions::default());
        let turns = Arc::new(Semaphore::new(1));
        for _ in 0..2 {
            for _ in 0..3 {
                let asked = pin!(overview(&inbox, &turns, 1));
                let polled = asked.poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
            }
            let mut taken = Taken::default();
            inbox.take(Some(Duration::ZERO), 1, 1, &mut taken);
            assert_eq!(taken.tasks.len(), 1);
        }
    }
}

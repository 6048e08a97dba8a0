//! The handle through which callers use an engine.

use std::{io::Write, sync::Arc, time::Duration};

use lockgate_core::{
    Clock, Key, Level, MachineTime, MessageId, Now, QueueName, Sequence, Storage, Term,
};
use lockgate_machine::{
    Delivery, FindMessage, ListMessages, ListQueues, MessagePage, Query, QueryReply,
    QueueDescription, Receive, Rejection, TypedCommand, TypedQuery,
};

use crate::{
    BackupError, BackupReport, Directory, EngineError, EngineMetrics, EngineOptions, Peek, Peeked,
    ReceivedBatch, StartError, StartReport, StopReason, UnknownCause,
    inbox::{AnswerSender, GuardedAnswer, GuardedPage, Inbox, millis},
    request::{Answer, Batch, Request, Work},
    runtime::{self, Shared},
    sync::{Semaphore, oneshot},
};

/// One shard in service: a machine over a log, driven by a thread of its own. Clones are cheap.
///
/// It needs no particular async runtime. When the last handle is dropped the engine stops as after
/// [`shutdown`](Self::shutdown), but nobody waits for it: the log may stay in use for a moment
/// longer.
///
/// # Order
/// The engine decides the requests of a caller that awaits each answer in that caller's order. If
/// several requests are on the way at once, it decides sends in the order they came, and all others
/// in theirs. But the others pass sends that wait: do not delete a queue behind a send whose answer
/// is still to come. What must happen in order and at once goes into one
/// [`submit_all`](Self::submit_all).
///
/// # Cancellation
/// You may drop the future of a request at any time. While the request waits for room in the inbox,
/// dropping it means that it never happens. Later it may happen, as if its answer had been lost on
/// the way. Leases that it was given go back at once, and their attempts do not count.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
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
    /// It was asked to stop, and answers what it had accepted before.
    Stopping,
    /// It has stopped, and its log is free for another owner.
    Stopped {
        reason: StopReason,
    },
}

/// The turn to ask for an overview. It ends when that was given, not when its caller is gone: else callers that give
/// up would pile up tasks for an owner that hangs.
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
    /// Recovers the shard in `storage`, such as a log with snapshots of its own, begins a new term
    /// and starts serving.
    ///
    /// It blocks until all is ready, which takes about as long as reading the log: do not call it
    /// from an async task.
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
        Ok((Self { handle }, report))
    }

    /// Has one command decided, and returns when its level is reached. The type of the reply is the
    /// one that the command's type has.
    ///
    /// Use [`receive`](Self::receive) for a receive: it guards the leases and reads the payloads.
    ///
    /// # Errors
    /// As [`EngineError`] says; [`EngineError::Rejected`] if the machine refuses the command.
    pub async fn submit<C: TypedCommand>(&self, command: C) -> Result<C::Reply, EngineError> {
        let work = Work::from(command.into());
        let result = self.ask(work, |answer| match answer {
            GuardedAnswer::Other(Answer::Commands(mut results)) => match results.pop()? {
                Ok(reply) => Some(Ok(C::reply(reply)?)),
                Err(rejection) => Some(Err(rejection)),
            },
            _ => None,
        });
        Ok(result.await??)
    }

    /// Has several independent commands decided in order, and returns when all of them have reached
    /// their levels. They take one place in the inbox and are written and synced together, each as
    /// a record of its own. After a crash the first of them may have survived and the others not.
    /// [`Transact`](lockgate_machine::Transact) does all or nothing.
    ///
    /// Pass commands of different kinds as [`Command`](lockgate_machine::Command)s; their replies are
    /// [`Reply`](lockgate_machine::Reply)s.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). But if the machine refuses a command, that command's result
    /// says so, and the others happen.
    pub async fn submit_all<C: TypedCommand>(
        &self,
        commands: Batch<C>,
    ) -> Result<Vec<Result<C::Reply, Rejection>>, EngineError> {
        self.ask(commands.into(), |answer| match answer {
            GuardedAnswer::Other(Answer::Commands(results)) => {
                // A vector's memory is used again for what is collected out of it.
                let results = results.into_vec().into_iter();
                let typed = results.map(|result| match result {
                    Ok(reply) => Some(Ok(C::reply(reply)?)),
                    Err(rejection) => Some(Err(rejection)),
                });
                typed.collect()
            }
            _ => None,
        })
        .await
    }

    /// Leases messages, waiting up to `wait` for a first one. The batch is empty if there is none
    /// by then. Receives wait in line, oldest first, and cost nothing meanwhile.
    ///
    /// It never blocks the caller's thread. It reads payloads in the caller's task if that needs
    /// [no waiting](lockgate_core::LogReader::try_read_all), because they are in the operating
    /// system's cache, say: a system call of about a microsecond per record is cheaper than a
    /// hand-over to another thread. Threads of the engine read all others, 16 at most. Up to 20,000
    /// calls can wait for these; beyond that a call fails with [`EngineError::Overloaded`]. A
    /// damaged payload is dropped from the queue, counted and traced, and the rest is delivered.
    ///
    /// A batch goes back if one of its leases has ended before it could be handed over, because
    /// others may have its messages by then. Only leases of 0 are handed over all the same. The
    /// receive is repeated while time of `wait` is left, and is empty otherwise. Each lease that
    /// ended counts as an attempt, so make `lease` longer than an answer takes, disk and network
    /// included.
    ///
    /// The batch may also be empty without a `wait` if the queue's first thousand messages have had
    /// all their attempts: these move to its dead-letter queue, and the next call finds what is
    /// behind them.
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
                    // All of it is damaged and dropped, which is no reason to come back early.
                    continue;
                }
                let deliveries = batch.iter().map(|received| &received.delivery);
                if !self.ended_on_the_way(&receive, deliveries) {
                    return Ok(batch);
                }
                batch.give_back()
            };
            // Without an end, a lease that is shorter than the way of an answer would be given again and again.
            if until.is_none_or(|until| until <= self.now().machine) {
                return Ok(batch);
            }
        }
    }

    /// Whether leases have ended before they could be handed over: the disk was stuck for as long, with a
    /// sync or with the payloads. Somebody else may have the messages by now. A lease of no length is over
    /// from the start, as its caller wants it.
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

    /// Answers a query about the state. It tells nothing that commands of level `disk` did before
    /// it is durable. It tells at once what others did, and a power cut can take that back: leases,
    /// and messages of queues at a lower level.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn query<Q: TypedQuery>(&self, query: Q) -> Result<Q::Reply, EngineError> {
        let reply = self.ask(Work::Query(query.into()), |answer| match answer {
            GuardedAnswer::Other(Answer::Query(Ok(reply))) => Q::reply(reply).map(Ok),
            GuardedAnswer::Other(Answer::Query(Err(rejection))) => Some(Err(rejection)),
            GuardedAnswer::Messages(GuardedPage { messages, next, .. }) => {
                Q::reply(QueryReply::Messages(MessagePage { messages, next })).map(Ok)
            }
            _ => None,
        });
        Ok(reply.await??)
    }

    /// Returns the first queues by name, up to `limit`, as they are decided now. That may not be
    /// durable yet, so a crash may take it back: use it only for figures that somebody watches. It
    /// does not wait for storage unless the engine itself does, and serves one caller after the
    /// other.
    ///
    /// Returns `None` if the engine has stopped.
    ///
    /// Cancellation safe.
    pub async fn overview(&self, limit: usize) -> Option<Vec<QueueDescription>> {
        let shared = &self.handle.shared;
        overview(&shared.inbox, &shared.overview, limit).await
    }

    /// Looks at messages without leasing them. Returns a page of those that [`Query::ListMessages`]
    /// names, each with its payload; fewer, if they have [`Peek::BYTES_MAX`] bytes together.
    /// Payloads are read where those of a [`receive`](Self::receive) are.
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

    /// Looks at one message without leasing it. As [`peek`](Self::peek).
    ///
    /// # Errors
    /// Of the machine, [`Rejection::MessageNotFound`]; else as [`peek`](Self::peek).
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

    /// The queues there are, without asking the engine.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.handle.shared.directory
    }

    /// The term this engine serves in.
    #[must_use]
    pub fn term(&self) -> Term {
        self.handle.shared.term
    }

    /// 32 random bytes that stay with the shard for ever, for tokens that cannot be forged.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.handle.shared.secret
    }

    /// The highest level that the log reaches, and so the highest that a message may ask for.
    #[must_use]
    pub fn level_max(&self) -> Level {
        self.handle.shared.level_max
    }

    /// The time as the engine sees it. Deadlines of leases are in this machine time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.handle.shared.now()
    }

    /// Machine time until `deadline`; zero if it has passed.
    #[must_use]
    pub fn remaining(&self, deadline: MachineTime) -> Duration {
        Duration::from_millis(deadline.since(self.now().machine))
    }

    /// Whether the engine takes work.
    #[must_use]
    pub fn status(&self) -> Status {
        self.handle.shared.status.borrow().clone()
    }

    /// Waits until the engine has stopped and says why.
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

    /// What was counted since the start, and how things stand now.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        self.handle.shared.metrics()
    }

    /// Writes a backup of the whole shard as it is at one instant between the call and the first byte:
    /// everything that was answered before the call is in it, and all in it is durable. Service goes
    /// on meanwhile; what happens to a message later does not change the backup. Make a log of it with
    /// [`restore`](crate::restore).
    ///
    /// While it runs no space of the log comes back that messages lived in when it began, and pages of
    /// the state that change are copied once; so `out` should not be slow for no reason. Memory is that
    /// and a few MiB.
    ///
    /// Blocks the calling thread until all is written: not for an async task.
    ///
    /// # Errors
    /// If the engine stops meanwhile, the log cannot be read or `out` fails. What was written then is
    /// of no use, and a restore says so.
    pub fn backup(&self, out: &mut dyn Write) -> Result<BackupReport, BackupError> {
        self.handle.shared.backup(out)
    }

    /// Makes the engine look at its clock again. Only for clocks that are set by hand: the engine
    /// sleeps until the next deadline as if time passed at its usual rate.
    pub fn clock_changed(&self) {
        self.handle.shared.inbox.poke();
    }

    /// Stops: answers what is in the inbox, ends waiting receives empty, syncs the log, gives it
    /// free for another owner, and ends the threads. May be called any number of times; each call
    /// returns when the engine has stopped.
    ///
    /// Cancellation safe: the engine stops also if nobody waits for it.
    pub async fn shutdown(&self) {
        self.handle.shared.stop();
        let _reason = self.stopped().await;
        self.handle.shared.join();
    }

    /// Has the owner do it. `pick` takes out of the answer what such a work is answered.
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
        let unknown = || EngineError::UnknownOutcome {
            cause: UnknownCause::NoAnswer,
        };
        // The owner answers everything it takes. If it is gone without an answer it has panicked,
        // perhaps after the append.
        let Ok(answer) = answer.await else {
            return Err(unknown());
        };
        // Works and commands are answered in their kind; one that is not is no reason to panic in a caller's task.
        pick(answer?).ok_or_else(unknown)
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
        // Nobody may wait any more.
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

//! Applies each event of a ledger once and in order, whatever a feed loses.

mod evidence;
mod feed;
mod machine;
mod past;

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

use lockgate_coordination::shell::Time;
use lockgate_core::ledger::{
    Chain, Event, Ledger, LedgerError, LedgerPage, ReadLedger, SequenceId,
};
use tokio::sync::watch;
use tracing::warn;

use self::feed::NoFeed;
pub use self::{
    evidence::Evidence,
    feed::{Feed, News, SourceFeed},
    machine::{FollowMachine, FollowOptions, FollowState, Output},
};
use crate::random::drawn;

/// What a follower does with events.
pub trait Apply: Send {
    /// Why it fails. The follower ends then, and the events were not applied.
    type Error: fmt::Display + Send;

    /// Applies events that follow one another, and keeps the position behind the last of them *in the same transaction*: the
    /// follower starts from there next time, so no event is applied twice or left out. Of the position, the sequence id and
    /// the hash are enough; `position.sequence_id` is that of the last event.
    ///
    /// # Cancellation
    /// It is dropped if the follower is.
    fn apply(
        &mut self,
        events: Vec<Event>,
        position: Chain,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Follows a [`Ledger`]: each event is applied once, in order.
///
/// Without a [feed](Self::run_with) it is pushed events by the ledger. With one it hears of them sooner; what the feed loses is
/// noticed by a gap, or by a heartbeat where it was the last one, and read in pages from the ledger.
#[derive(Debug)]
pub struct Follower<L> {
    ledger: L,
    position: Chain,
    options: FollowOptions,
    status: watch::Sender<FollowStatus>,
}

/// How far a follower is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowStatus {
    /// What it is doing.
    pub state: FollowState,
    /// Behind the last event that it has applied.
    pub position: Chain,
}

/// How a follower has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It was told to stop.
    Stopped,
    /// The ledger is sealed, and all its events were applied.
    Sealed,
}

/// Why a follower does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError<E> {
    /// What it was told contradicts what it has.
    #[error("the follower has halted: {0}")]
    Halted(#[source] Evidence),
    /// Events were not applied. It may start again from the position that was kept last.
    #[error("event {first} was not applied: {error}")]
    Apply {
        /// The first of the events that the handler was given.
        first: SequenceId,
        /// What the handler said.
        error: E,
    },
    /// The ledger does not answer, and will not later.
    #[error("the ledger cannot be read: {0}")]
    Ledger(#[source] LedgerError),
}

type Hearing<'f, F> = Pin<Box<dyn Future<Output = (Option<Vec<News>>, &'f mut F)> + Send + 'f>>;

fn hear<F: Feed>(feed: &mut F) -> Hearing<'_, F> {
    Box::pin(async move {
        let news = feed.next().await;
        (news, feed)
    })
}

type Reading<'l> = Pin<Box<dyn Future<Output = Result<LedgerPage, LedgerError>> + Send + 'l>>;

impl<L: Ledger> Follower<L> {
    /// A follower that begins with the first event.
    #[must_use]
    pub fn new(ledger: L) -> Self {
        let position = Chain::START;
        let state = FollowState::Live;
        Self {
            ledger,
            position,
            options: FollowOptions::default(),
            status: watch::Sender::new(FollowStatus { state, position }),
        }
    }

    /// Goes on behind that position, which its handler has kept. First it compares it with the ledger's event there: a
    /// position of another ledger halts it. [`Chain::behind`] makes one of a sequence id; with the hash, more is compared.
    #[must_use]
    pub fn from(mut self, position: Chain) -> Self {
        self.position = position;
        self.status.send_modify(|status| status.position = position);
        self
    }

    /// Sets its options.
    #[must_use]
    pub fn options(mut self, options: FollowOptions) -> Self {
        self.options = options;
        self
    }

    /// How far it is, as it goes on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<FollowStatus> {
        self.status.subscribe()
    }

    /// Follows the ledger until `stop`, or until it is sealed and all was applied. Events that the handler has are applied to
    /// the end.
    ///
    /// # Errors
    /// [`FollowError`]. While the ledger is unavailable it tries again.
    ///
    /// # Cancellation
    /// If it is dropped, what the handler was applying may be applied or not, as its transaction has it.
    pub async fn run<A: Apply>(
        self,
        handler: &mut A,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Followed, FollowError<A::Error>> {
        self.follow(None::<&mut NoFeed>, handler, stop).await
    }

    /// The same, with a live feed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation
    /// As `run`.
    pub async fn run_with<F: Feed, A: Apply>(
        self,
        feed: &mut F,
        handler: &mut A,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Followed, FollowError<A::Error>> {
        self.follow(Some(feed), handler, stop).await
    }

    async fn follow<F: Feed, A: Apply>(
        self,
        feed: Option<&mut F>,
        handler: &mut A,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Followed, FollowError<A::Error>> {
        let time = Time::start();
        let mut stop = pin!(stop);
        let mut machine = FollowMachine::new(self.position, self.options, feed.is_some());
        let mut reading: Option<Reading<'_>> = None;
        // A call goes on while other things happen: what it has taken is not lost.
        let mut hearing = feed.map(hear);
        loop {
            while let Some(output) = machine.poll(time.now()) {
                match output {
                    Output::Deliver { events, position } => {
                        let first = events.first().map(|event| event.sequence_id);
                        let applied = handler.apply(events, position).await;
                        applied.map_err(|error| FollowError::Apply {
                            first: first.unwrap_or_default(),
                            error,
                        })?;
                        self.tell(machine.state(), Some(position));
                    }
                    Output::Read(read) => reading = Some(Box::pin(self.ledger.read(read))),
                    Output::Halt(evidence) => {
                        self.tell(FollowState::Halted, None);
                        return Err(FollowError::Halted(evidence));
                    }
                }
            }
            self.tell(machine.state(), None);
            if machine.is_at_the_end() {
                return Ok(Followed::Sealed);
            }
            let deadline = machine.deadline();
            tokio::select! {
                biased;
                () = &mut stop => return Ok(Followed::Stopped),
                read = async {
                    match reading.as_mut() {
                        Some(reading) => reading.await,
                        None => std::future::pending().await,
                    }
                } => {
                    reading = None;
                    take(&mut machine, read, time.now()).map_err(FollowError::Ledger)?;
                }
                (news, feed) = async {
                    match hearing.as_mut() {
                        Some(hearing) => hearing.await,
                        None => std::future::pending().await,
                    }
                } => match news {
                    Some(news) => {
                        news.into_iter().for_each(|news| match news {
                            News::Event(event) => machine.live(event),
                            News::Head(head) => machine.heartbeat(&head, time.now()),
                        });
                        hearing = Some(hear(feed));
                    }
                    None => {
                        hearing = None;
                        machine.feed_ended();
                    }
                },
                () = async {
                    match deadline {
                        Some(deadline) => time.sleep_until(deadline).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    fn tell(&self, state: FollowState, position: Option<Chain>) {
        self.status.send_if_modified(|status| {
            let before = *status;
            status.state = state;
            status.position = position.unwrap_or(before.position);
            *status != before
        });
    }
}

/// What came of a read.
fn take(
    machine: &mut FollowMachine,
    read: Result<LedgerPage, LedgerError>,
    now: u64,
) -> Result<(), LedgerError> {
    match read {
        Ok(page) => machine.page(page, now, drawn()),
        Err(LedgerError::Trimmed { first, .. }) => machine.trimmed(first, now, drawn()),
        Err(LedgerError::Beyond { head, .. }) => machine.beyond(head),
        Err(error @ (LedgerError::Unavailable { .. } | LedgerError::Unknown { .. })) => {
            warn!(%error, "a follower reads again later");
            machine.failed(now, drawn());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Reads one page behind an event, without waiting.
pub(crate) fn page_behind(after: SequenceId, limit: usize) -> ReadLedger {
    ReadLedger {
        after,
        limit,
        wait: Duration::ZERO,
    }
}

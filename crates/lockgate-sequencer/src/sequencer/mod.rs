//! Gives what comes from a queue one total order.

mod decide;
mod publish;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use lockgate_coordination::{HandOver, LeaderCareer, Next};
use lockgate_core::{
    Backoff, Fate, HolderName, InputId, Leased, QueueName, ReaderName, ReceiveRequest, Settlement,
    Sink, Source, TransportError, Unsupported,
    coordination::{ElectionState, EndReason, Fence, FenceError, Term},
    cut_reason,
    ledger::{Append, Appended, Ledger, LedgerError, LedgerHead, NewEvent, SequenceId},
};
use tokio::{
    sync::watch,
    task::{self, JoinError, JoinSet},
};
use tracing::warn;

use self::{
    decide::{Doubt, Plan, Planned, doubt},
    publish::Publisher,
};
use crate::random::drawn;

/// Reads messages from a [`Source`], gives them one total order in a [`Ledger`], and publishes the events to any number of
/// [`Sink`]s.
///
/// It is a [`LeaderCareer`]: run it by a [`Singleton`](lockgate_coordination::Singleton) in two or more processes. One of them
/// is active; the others have read the head, and go on when it is gone. Whoever led before appends nothing any more, because the
/// ledger has seen the epoch of the new term.
///
/// - The body of a message is the payload of its event. Its headers, key and priority are not kept.
/// - An event's unique id is the header `unique_id` of the message, or else the message's own. The ledger remembers it for ever.
/// - A message without one is known by the name that the source has for it, until it is settled: so a message that comes again
///   after a crash is one event all the same.
/// - A message that can never be an event is rejected with the reason: one whose body is larger than the ledger or a sink takes,
///   a header `unique_id` that is no unique id, a [pack](lockgate_core::pack). Where the source knows no rejection it stays away
///   for a minute, again and again.
/// - A sink has its events in order and at least once. It lacks none: the ledger keeps up to where each sink has everything, and
///   a new leader publishes from there.
///
/// On any doubt whether an append has happened, the sequencer reads the head and appends again what is not there; after several
/// times it gives up its term.
pub struct Sequencer<S, L> {
    name: QueueName,
    source: S,
    ledger: Arc<L>,
    publishers: Vec<Publisher>,
    options: SequencerOptions,
    counts: SequencerCounts,
    /// Where it has seen the head last, if it is sure of it.
    head: Option<SequenceId>,
    /// The last head that it has seen in this process, whatever has happened since.
    seen: Option<LedgerHead>,
    /// Inputs that were settled since the last append.
    settled: Vec<InputId>,
    running: Option<Running>,
}

/// Options of a [`Sequencer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencerOptions {
    /// Messages of one append; 1 to 10,000. Default: 1,000.
    pub batch_max: usize,
    /// How long one receive waits for a first message. A planned switch waits up to so long. Default: 250 ms.
    pub wait: Duration,
    /// How long the leases last; `None`, the default: as the source has it.
    pub lease: Option<Duration>,
    /// Who holds them. Default: `sequencer`.
    pub holder: HolderName,
    /// Whether to take messages that have no unique id from a source that has no names for them that last. One that comes again
    /// after a crash is sequenced a second time then. Default: false; such a message ends the term with
    /// [`NoId`](SequencerError::NoId).
    pub allow_repeats: bool,
    /// How long it waits when the ledger does not answer. Default: 10 ms, doubling up to 500 ms.
    pub backoff: Backoff,
}

impl Default for SequencerOptions {
    fn default() -> Self {
        Self {
            batch_max: 1_000,
            wait: Duration::from_millis(250),
            lease: None,
            holder: HolderName::new("sequencer").expect("a name"),
            allow_repeats: false,
            backoff: Backoff {
                first: 10,
                max: 500,
            },
        }
    }
}

/// What a sequencer has done in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencerCounts {
    /// Events that it has appended.
    pub appended: u64,
    /// Messages whose event was there already.
    pub duplicates: u64,
    /// Messages that can never be events.
    pub rejected: u64,
    /// Messages that were sequenced and whose settlement is not known to have come through. They come again, or not.
    pub unsettled: u64,
}

/// Why a term of a sequencer ends.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequencerError {
    /// The ledger refuses it, or does not answer.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its term is over.
    #[error(transparent)]
    Over(#[from] FenceError),
    /// The source gives no messages.
    #[error("the source gives no messages: {}", lockgate_core::with_sources(.0))]
    Source(#[source] TransportError),
    /// The ledger lacks events that this process has seen in it. They would get other ones in their places.
    #[error(
        "the ledger ends at {head}, and has ended at {seen} before{}: it was restored from an older copy, or made anew. Whoever \
         follows it has events that it lacks: restore a copy that has them, or sequence into a new ledger",
        if head == seen { ", with another hash" } else { "" }
    )]
    WentBack {
        /// Where it ended when this process has seen it.
        seen: SequenceId,
        /// Where it ends now.
        head: SequenceId,
    },
    /// A message has no unique id, and the source has no name for it that lasts.
    #[error(
        "a message of {source_name} has no unique id, and its source has no name for it that lasts, so it could be sequenced twice: \
         give it a unique id, or allow repeats"
    )]
    NoId {
        /// Which source.
        source_name: QueueName,
    },
    /// Nothing is published to a sink any more: it has panicked.
    #[error("a sink has panicked: {reader:?}")]
    Panicked {
        /// The reader of the ledger that stands for it, if that is known.
        reader: Option<ReaderName>,
    },
    /// The ledger does not give a sink's events any more: they were trimmed before the sink had them, or reading is refused.
    #[error("the sink {reader} cannot get its events: {why}")]
    Unread {
        /// The reader of the ledger that stands for the sink.
        reader: ReaderName,
        /// What the ledger says.
        why: LedgerError,
    },
    /// A sink is gone, or can never take an event.
    #[error(
        "the sink {reader} takes no events: {}",
        lockgate_core::with_sources(source)
    )]
    Refused {
        /// The reader of the ledger that stands for it.
        reader: ReaderName,
        /// What the sink says.
        source: TransportError,
    },
    /// An option is out of range.
    #[error("batch_max is 1 to {}, and not {given}", Append::EVENTS_MAX)]
    BatchMax {
        /// What was given.
        given: usize,
    },
    /// A sink cannot carry events.
    #[error("the sink {reader} cannot carry events: {why}")]
    Sink {
        /// The reader of the ledger that stands for it.
        reader: ReaderName,
        /// What it does not take.
        why: Unsupported,
    },
}

/// Waits until all sinks have everything up to there.
async fn reach(publishers: &[Publisher], head: SequenceId) {
    for publisher in publishers {
        publisher.reaches(head).await;
    }
}

/// The publishers of one term. They end with it.
struct Running {
    tasks: JoinSet<Result<(), SequencerError>>,
    readers: HashMap<task::Id, ReaderName>,
    stop: watch::Sender<bool>,
}

impl Running {
    /// Returns why a publisher has ended before its term, as soon as one has.
    async fn ended(&mut self) -> SequencerError {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            if let Some(error) = self.why(ended) {
                return error;
            }
        }
        // The term is over: the call comes.
        std::future::pending().await
    }

    /// The same, if one has.
    fn has_ended(&mut self) -> Option<SequencerError> {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            if let Some(error) = self.why(ended) {
                return Some(error);
            }
        }
        None
    }

    fn why(
        &self,
        ended: Result<(task::Id, Result<(), SequencerError>), JoinError>,
    ) -> Option<SequencerError> {
        match ended {
            Ok((_, result)) => result.err(),
            Err(error) => {
                let reader = self.readers.get(&error.id()).cloned();
                Some(SequencerError::Panicked { reader })
            }
        }
    }
}

impl<S, L> fmt::Debug for Sequencer<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequencer")
            .field("name", &self.name)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl<S: Source, L: Ledger> Sequencer<S, L> {
    /// A sequencer of that source. `name` is what the ledger calls the source: always the same for one, and another for each.
    #[must_use]
    pub fn new(name: QueueName, source: S, ledger: L) -> Self {
        Self {
            name,
            source,
            ledger: Arc::new(ledger),
            publishers: Vec::new(),
            options: SequencerOptions::default(),
            counts: SequencerCounts::default(),
            head: None,
            seen: None,
            settled: Vec::new(),
            running: None,
        }
    }

    /// Publishes the events to that sink too, as [messages](crate::message_of). `reader` is the name by which the ledger keeps up
    /// to where the sink has everything: each sink has one of its own, and all processes call it the same. A new one gets all
    /// events from the first on; [move](Ledger::move_reader) it before for less.
    ///
    /// A sink that takes keys has all events under one, so it keeps their order. One that knows unique ids has one for each
    /// event, so it has an event once while it remembers them. One that fails is tried again, with growing waits, and holds up no
    /// other. One that is gone, or that refuses an event for ever, ends the term with [`SequencerError::Refused`], and one whose
    /// events were trimmed before it had them with [`SequencerError::Unread`].
    #[must_use]
    pub fn publish(mut self, reader: ReaderName, sink: impl Sink + 'static) -> Self {
        self.publishers.push(Publisher::new(reader, sink));
        self
    }

    /// Sets its options.
    #[must_use]
    pub fn options(mut self, options: SequencerOptions) -> Self {
        self.options = options;
        self
    }

    fn check(&self) -> Result<(), SequencerError> {
        let (given, max) = (self.options.batch_max, Append::EVENTS_MAX);
        if !(1..=max).contains(&given) {
            return Err(SequencerError::BatchMax { given });
        }
        for publisher in &self.publishers {
            publisher.check().map_err(|why| SequencerError::Sink {
                reader: publisher.reader.clone(),
                why,
            })?;
        }
        Ok(())
    }

    /// What it has done in this process.
    #[must_use]
    pub fn counts(&self) -> SequencerCounts {
        self.counts
    }

    /// Leases up to a whole batch; waits for the first message only.
    async fn receive(&self) -> Result<Vec<Leased<S::Receipt>>, TransportError> {
        let can = self.source.source_capabilities();
        let mut leased = Vec::new();
        while leased.len() < self.options.batch_max {
            let max = can.receive_max.min(self.options.batch_max - leased.len());
            let wait = match leased.is_empty() {
                true => self.options.wait.min(can.wait_max),
                false => Duration::ZERO,
            };
            let request = ReceiveRequest {
                max,
                key_max: None,
                wait,
                lease: self.options.lease,
                holder: self.options.holder.clone(),
            };
            match self.source.receive_batch(request).await {
                Ok(more) => {
                    let is_last = more.len() < max;
                    leased.extend(more);
                    if is_last {
                        break;
                    }
                }
                Err(error) if leased.is_empty() => return Err(error),
                // It says so again at the next receive.
                Err(_) => break,
            }
        }
        Ok(leased)
    }

    /// Appends and settles what came.
    async fn sequence(
        &mut self,
        fence: &Fence,
        leased: Vec<Leased<S::Receipt>>,
    ) -> Result<(), SequencerError> {
        let messages = leased.iter().map(|one| (one.name.as_ref(), &one.message));
        let carried =
            |event: &NewEvent| self.publishers.iter().try_for_each(|it| it.carries(event));
        let plan = Plan::new(&self.name, messages, carried, self.options.allow_repeats);
        let Ok(plan) = plan else {
            self.give_back(leased).await;
            let source_name = self.name.clone();
            return Err(SequencerError::NoId { source_name });
        };
        let mut leased = leased.into_iter();
        for range in plan.appends {
            let planned = &plan.inputs[range];
            let events = planned.iter().filter_map(|planned| match planned {
                Planned::Event(event) => Some(event.clone()),
                Planned::Rejected(_) => None,
            });
            match self.append(fence, events.collect()).await {
                Ok(appended) => {
                    let of = appended.events.iter();
                    let duplicates = of.filter(|event| event.is_duplicate).count() as u64;
                    self.counts.duplicates += duplicates;
                    self.counts.appended += appended.events.len() as u64 - duplicates;
                }
                Err(error) => {
                    self.give_back(leased.collect()).await;
                    return Err(error);
                }
            }
            let settles = planned.iter().zip(leased.by_ref());
            let settles = settles.map(|(planned, one)| (one.receipt, planned));
            self.settle(settles.collect()).await;
        }
        Ok(())
    }

    /// Appends events in the term of the fence, behind the head that it knows of.
    async fn append(
        &mut self,
        fence: &Fence,
        events: Vec<NewEvent>,
    ) -> Result<Appended, SequencerError> {
        let mut has_id = events
            .iter()
            .map(|it| it.unique_id.is_some() || it.input.is_some());
        let may_repeat = has_id.all(|has_id| has_id);
        // An input that has come again is settled again. If the ledger forgot it here, a repeat of this append would not know it.
        let again: HashSet<_> = events.iter().filter_map(|it| it.input.as_ref()).collect();
        self.settled.retain(|input| !again.contains(input));
        let count = self.settled.len().min(Append::EVENTS_MAX);
        let mut attempt = 0;
        loop {
            fence.check()?;
            let error = match self.head().await {
                Ok(head) => {
                    let append = Append {
                        epoch: fence.epoch(),
                        head: Some(head),
                        events: events.clone(),
                        settled: self.settled[..count].to_vec(),
                    };
                    match self.ledger.append(append).await {
                        Ok(appended) => {
                            self.settled.drain(..count);
                            self.see(&appended.head)?;
                            self.head = Some(appended.head.sequence_id);
                            return Ok(appended);
                        }
                        Err(error) => error,
                    }
                }
                Err(SequencerError::Ledger(error)) => error,
                Err(error) => return Err(error),
            };
            self.doubt(error, &mut attempt, may_repeat).await?;
        }
    }

    async fn head(&mut self) -> Result<SequenceId, SequencerError> {
        if let Some(head) = self.head {
            return Ok(head);
        }
        let head = self.ledger.head().await?;
        self.see(&head)?;
        Ok(head.sequence_id)
    }

    /// Looks that a head is that of the ledger that this process knows: a head never falls.
    fn see(&mut self, head: &LedgerHead) -> Result<(), SequencerError> {
        if let Some(seen) = &self.seen {
            let (before, now) = (seen.sequence_id, head.sequence_id);
            if now < before || now == before && head.hash != seen.hash {
                return Err(SequencerError::WentBack {
                    seen: before,
                    head: now,
                });
            }
        }
        self.seen = Some(*head);
        Ok(())
    }

    /// Waits before the next attempt, or gives up.
    async fn doubt(
        &mut self,
        error: LedgerError,
        attempt: &mut u32,
        may_repeat: bool,
    ) -> Result<(), LedgerError> {
        // Asked again, it could come from a server that lags behind. One that is lower than what was seen is looked at whole.
        let seen = self.seen.map_or(SequenceId::START, |seen| seen.sequence_id);
        self.head = match error {
            LedgerError::Moved { head } if head >= seen => Some(head),
            _ => None,
        };
        *attempt += 1;
        match doubt(&error, *attempt, may_repeat) {
            Doubt::GiveUp => Err(error),
            Doubt::Again => {
                warn!(%error, attempt, "a sequencer reads the head, and decides again");
                let wait = self.options.backoff.after(*attempt, drawn());
                tokio::time::sleep(Duration::from_millis(wait)).await;
                Ok(())
            }
        }
    }

    async fn settle(&mut self, settles: Vec<(S::Receipt, &Planned)>) {
        let can = self.source.source_capabilities();
        let mut settles = settles.into_iter().peekable();
        while settles.peek().is_some() {
            let mut chunk = Vec::new();
            let mut planned = Vec::new();
            for (receipt, one) in settles.by_ref().take(can.settle_max) {
                let settlement = match one {
                    Planned::Rejected(why) if can.reject => Settlement::Reject {
                        reason: Some(cut_reason(why.as_str().into())),
                    },
                    // It comes again until somebody takes it away.
                    Planned::Rejected(_) => Settlement::Nack {
                        delay: can.nack_delay_max.min(Duration::from_secs(60)),
                        reason: None,
                    },
                    Planned::Event(_) => Settlement::Ack,
                };
                chunk.push((receipt, settlement));
                planned.push(one);
            }
            let results = self.source.settle_batch(chunk).await;
            for (planned, result) in planned.into_iter().zip(results) {
                match (planned, result) {
                    (Planned::Event(event), Ok(())) => self.settled.extend(event.input.clone()),
                    (Planned::Event(_), Err(_)) => self.counts.unsettled += 1,
                    (Planned::Rejected(why), _) => {
                        warn!(source = %self.name, why, "a message can never be an event");
                        self.counts.rejected += 1;
                    }
                }
            }
        }
    }

    /// Others get them at once, where the source can; else when their leases end.
    async fn give_back(&self, leased: Vec<Leased<S::Receipt>>) {
        let can = self.source.source_capabilities();
        if !can.give_back {
            return;
        }
        let mut receipts = leased.into_iter().map(|one| one.receipt).peekable();
        while receipts.peek().is_some() {
            let chunk = receipts.by_ref().take(can.settle_max);
            let settles = chunk.map(|receipt| (receipt, Settlement::GiveBack));
            drop(self.source.settle_batch(settles.collect()).await);
        }
    }
}

impl<S: Source, L: Ledger> LeaderCareer for Sequencer<S, L> {
    type Error = SequencerError;

    /// Reads the head, so that a switch does not wait for a connection, and looks whether the sinks can carry events.
    async fn warm_up(&mut self, _: &ElectionState) -> Result<(), SequencerError> {
        self.check()?;
        let head = self.ledger.head().await?;
        self.see(&head)?;
        self.ledger.readers().await?;
        Ok(())
    }

    /// Shows the ledger the epoch of the term, from when on no earlier leader appends, and begins to publish.
    async fn inaugurate(&mut self, _: &Term, fence: &Fence) -> Result<(), SequencerError> {
        self.check()?;
        self.head = None;
        let mut attempt = 0;
        loop {
            fence.check()?;
            let claim = Append {
                epoch: fence.epoch(),
                head: None,
                events: Vec::new(),
                settled: Vec::new(),
            };
            match self.ledger.append(claim).await {
                Ok(appended) => {
                    self.see(&appended.head)?;
                    self.head = Some(appended.head.sequence_id);
                    break;
                }
                Err(error) => self.doubt(error, &mut attempt, true).await?,
            }
        }
        let (stop, stopped) = watch::channel(false);
        let (mut tasks, mut readers) = (JoinSet::new(), HashMap::new());
        for publisher in self.publishers.iter().cloned() {
            let reader = publisher.reader.clone();
            let (ledger, fence) = (self.ledger.clone(), fence.clone());
            let task = tasks.spawn(publisher.run(ledger, fence, stopped.clone()));
            readers.insert(task.id(), reader);
        }
        self.running = Some(Running {
            tasks,
            readers,
            stop,
        });
        Ok(())
    }

    /// Sequences one batch. When the source is closed and empty, and the sinks have everything, it is done.
    async fn execute(&mut self, fence: &Fence) -> Result<Next, SequencerError> {
        fence.check()?;
        if let Some(error) = self.running.as_mut().and_then(Running::has_ended) {
            return Err(error);
        }
        match self.receive().await {
            Ok(leased) if leased.is_empty() && self.settled.is_empty() => {
                if self.source.source_capabilities().wait_max.is_zero() {
                    return Ok(Next::Idle(self.options.wait));
                }
            }
            // Without messages it lets the ledger forget what was settled.
            Ok(leased) => self.sequence(fence, leased).await?,
            Err(error) if error.fate == Fate::Closed => {
                let head = self.append(fence, Vec::new()).await?.head.sequence_id;
                let published = reach(&self.publishers, head);
                match &mut self.running {
                    None => published.await,
                    Some(running) => tokio::select! {
                        biased;
                        () = published => {}
                        error = running.ended() => return Err(error),
                    },
                }
                return Ok(Next::Done);
            }
            Err(error) => return Err(SequencerError::Source(error)),
        }
        Ok(Next::Again)
    }

    /// Lets the ledger forget what was settled, and the publishers finish what they are sending; if the lease is lost it drops
    /// them.
    async fn hand_over(
        &mut self,
        hand_over: HandOver<'_>,
    ) -> Result<Option<Bytes>, SequencerError> {
        if let Some(mut running) = self.running.take() {
            match hand_over.reason {
                EndReason::LeaseLost => running.tasks.abort_all(),
                _ => drop(running.stop.send(true)),
            }
            while running.tasks.join_next().await.is_some() {}
        }
        let is_in_doubt = matches!(hand_over.reason, EndReason::LeaseLost | EndReason::Error);
        if !is_in_doubt && !self.settled.is_empty() {
            self.append(hand_over.fence, Vec::new()).await?;
        }
        Ok(None)
    }
}

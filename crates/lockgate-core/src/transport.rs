//! The seams to queues that somebody runs: where messages go ([`Sink`]) and where they come from
//! ([`Source`]). Embedded queues, servers and foreign brokers are used through them alike.
//!
//! The traits need no particular async runtime. What an implementation cannot do it says in its
//! capabilities, and refuses with [`Fate::Unsupported`] when it is asked for it: it never leaves
//! a part of a message out silently.

use std::{error::Error, fmt, future::Future, sync::Arc, time::Duration};

use crate::{
    Failures, HolderName, KeyState, KeyStateWrite, Level, Message, MessageId, PRIORITY_MAX,
    ProducerIncarnation, ProducerName, ProducerRefused, RecordVersion, Sequence, WallTime,
    coordination::{Fence, FenceError},
    limits::HoldScope,
    pack,
};

/// Where messages go.
///
/// # Cancellation
/// A future that is dropped leaves the outcome of its messages [unknown](Fate::Unknown).
pub trait Sink: Send + Sync {
    /// What an accepted message is called there.
    type Id: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static;

    /// What this sink can do. Constant for the life of the instance.
    fn sink_capabilities(&self) -> SinkCapabilities;

    /// Sends messages, each on its own, and answers with one result for each, in order, when the sink
    /// has promised to keep them. Messages of one key are accepted in their order; where one of them has
    /// failed, those behind it may be accepted all the same.
    ///
    /// A batch has 1 to [`batch_max`](SinkCapabilities::batch_max) messages and at most
    /// [`batch_bytes_max`](SinkCapabilities::batch_bytes_max) bytes; each message of a larger one is
    /// [refused](Fate::Refused).
    fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> impl Future<Output = Vec<Result<Accepted<Self::Id>, TransportError>>> + Send;

    /// Sends messages in their order and stops at the first that fails, so that none is accepted behind one that is not there. Answers
    /// with a result for each message up to that one, which is the last. The bounds of [`send_batch`](Self::send_batch) hold.
    ///
    /// Unless a sink knows better it sends them one by one.
    fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> impl Future<Output = Vec<Result<Accepted<Self::Id>, TransportError>>> + Send {
        one_by_one(self, messages)
    }

    /// Looks whether the sink could carry a message, without asking it: as far as its [capabilities](Self::sink_capabilities) and the
    /// form that messages have there tell. What is refused here, [`send_batch`](Self::send_batch) refuses always.
    ///
    /// # Errors
    /// [`Fate::Unsupported`] or [`Fate::Refused`], with the reason.
    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        self.sink_capabilities().carries(message)
    }

    /// The same sink for the leader of a term: once the sink has seen a later term of that election it refuses each message
    /// with [`Fate::Stale`], whose source is [`FenceError::Deposed`]. The term's own clock is asked too before each send.
    ///
    /// # Errors
    /// [`Unsupported`](FenceError::Unsupported) for a sink that cannot compare epochs.
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError>
    where
        Self: Sized,
    {
        let _ = fence;
        Err(FenceError::Unsupported { what: "this sink" })
    }

    /// Opens the queue for a producer, and from then on refuses what earlier incarnations of it send. Where a message
    /// is a [record of a producer](Message::producer), its send names the incarnation that this gave last.
    ///
    /// A queue forgets a producer that did not send for long; it then refuses its sends until it is opened again.
    ///
    /// # Cancellation
    /// A call that is dropped may have happened: then the incarnation that it gave is lost, and the earlier one is
    /// refused.
    ///
    /// # Errors
    /// [`Fate::Retry`] while the queue has no room for another producer; [`Fate::Unsupported`] where the sink knows
    /// [no producers](SinkCapabilities::producers).
    fn open_producer(
        &self,
        producer: ProducerName,
    ) -> impl Future<Output = Result<ProducerIncarnation, TransportError>> + Send {
        drop(producer);
        async { Err(Unsupported::Producer.into()) }
    }
}

/// Sends messages one after the other, up to the first that fails, as [`Sink::send_in_order`] does where a sink knows no better.
pub async fn one_by_one<S: Sink + ?Sized>(
    sink: &S,
    messages: Vec<Message>,
) -> Vec<Result<Accepted<S::Id>, TransportError>> {
    let mut results = Vec::with_capacity(messages.len());
    for message in messages {
        let mut result = sink.send_batch(vec![message]).await;
        let unanswered = || Err(TransportError::new(Fate::Unknown, "it was not answered"));
        let result = result.pop().unwrap_or_else(unanswered);
        let is_last = result.is_err();
        results.push(result);
        if is_last {
            break;
        }
    }
    results
}

/// Where messages come from, each under a lease.
///
/// # Cancellation
/// Leases that a dropped receive was given go back at once where the source knows of it, and end by
/// themselves otherwise. A settle or an extension that is dropped may have happened.
pub trait Source: Send + Sync {
    /// Names a lease, for settling.
    type Receipt: Clone + fmt::Debug + Send + Sync + 'static;

    /// What this source can do. Constant for the life of the instance.
    fn source_capabilities(&self) -> SourceCapabilities;

    /// Leases messages, waiting for a first one if it is asked to. Messages of one key come in their
    /// order; where the source [locks keys](KeyOrder::Locked), a batch may have several of one key, and
    /// nobody else gets any of that key meanwhile.
    ///
    /// # Errors
    /// [`Fate::Refused`] for numbers out of range, and else what the state of the source is.
    fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> impl Future<Output = Result<Vec<Leased<Self::Receipt>>, TransportError>> + Send;

    /// Settles leases, each on its own, with one result for each, in order. Those of one key are given in
    /// its order. A prefix of what came of a key may be acknowledged; what is behind it and is given back
    /// or failed comes again in its order.
    fn settle_batch(
        &self,
        settles: Vec<(Self::Receipt, Settlement)>,
    ) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send;

    /// Settles leases of messages of one key and writes the state of that key, all or nothing, and answers with the
    /// new version of the state; `None` after a drop. The first lease says which key. There are 1 to
    /// [`settle_max`](SourceCapabilities::settle_max) of them, as for [`settle_batch`](Self::settle_batch).
    ///
    /// # Errors
    /// [`Fate::Stale`] if one of the leases is not current any more; [`Fate::Refused`] if the state has another version
    /// than the write replaces; [`Fate::Unsupported`] where the source has
    /// [no states](SourceCapabilities::key_states).
    fn settle_with_state(
        &self,
        settles: Vec<(Self::Receipt, Settlement)>,
        write: KeyStateWrite,
    ) -> impl Future<Output = Result<Option<RecordVersion>, TransportError>> + Send {
        drop((settles, write));
        async {
            let error = "this source keeps no states of keys";
            Err(TransportError::new(Fate::Unsupported, error))
        }
    }

    /// Lets leases last `lease` from now on, each on its own, with one result for each, in order: how much
    /// longer it lasts as of the answer. It may end the leases of a key's batch together.
    fn extend_batch(
        &self,
        receipts: Vec<Self::Receipt>,
        lease: Duration,
    ) -> impl Future<Output = Vec<Result<Duration, TransportError>>> + Send;
}

/// What a [`Sink`] can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkCapabilities {
    /// Messages of one batch; 1 or more.
    pub batch_max: usize,
    /// Bytes of the messages of one batch, as [`Message::size`] counts them.
    pub batch_bytes_max: u64,
    /// Bytes of one message.
    pub message_bytes_max: u64,
    /// It takes messages with a key, and keeps their order.
    pub keys: bool,
    /// It needs a key of every message.
    pub keys_only: bool,
    /// It takes messages with a group.
    pub groups: bool,
    /// It accepts a unique id once within its window.
    pub unique_ids: bool,
    /// How long it remembers a unique id, where it knows: as of when this instance asked.
    pub unique_id_window: Option<Duration>,
    /// It says of a message [whether](Accepted::duplicate) its unique id was known. Elsewhere it says false of
    /// every message.
    pub tells_duplicates: bool,
    /// It takes messages that are due later.
    pub due: bool,
    /// How far ahead a due time may be; `None`: as far as there is time.
    pub due_max: Option<Duration>,
    /// It drops messages that have waited for their time to live.
    pub time_to_live: bool,
    /// It carries headers, content type and trace context.
    pub headers: bool,
    /// It carries priorities.
    pub priority: bool,
    /// It looks at each message to see where it goes, so several must not share one: it takes no [packs](crate::pack).
    pub routes: bool,
    /// It accepts a [record of a producer](Message::producer) once, whenever it is sent again, and
    /// [says](Accepted::duplicate) whether it was known.
    pub producers: bool,
    /// The highest level that a message may ask for.
    pub level_max: Level,
}

/// What a [`Source`] can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceCapabilities {
    /// Messages of one receive; 1 or more.
    pub receive_max: usize,
    /// Leases of one settle or extension; 1 or more.
    pub settle_max: usize,
    /// The longest wait for a first message.
    pub wait_max: Duration,
    /// What it does for keys.
    pub key_order: KeyOrder,
    /// It gives at most so many messages of one key as a receive [says](ReceiveRequest::key_max).
    pub key_max: bool,
    /// The longest lease; zero if it gives none that could be chosen.
    pub lease_max: Duration,
    /// The longest delay of [`Settlement::Nack`]; zero if it knows none.
    pub nack_delay_max: Duration,
    /// It keeps the reason of a [nack](Settlement::Nack), and shows it with the message from then on.
    pub nack_reasons: bool,
    /// It can [defer](Settlement::Defer) without costing an attempt.
    pub defer: bool,
    /// It can [hold](Settlement::Hold) a key or the whole queue, for all who receive from it.
    pub hold: bool,
    /// It can [reject](Settlement::Reject), and keeps the reason.
    pub reject: bool,
    /// It can take a lease back without costing an attempt ([`Settlement::GiveBack`]).
    pub give_back: bool,
    /// It keeps a [state](KeyState) for each key, gives it with the [first message](Leased::state) of the key in a
    /// receive, and writes it [with the settlement](Source::settle_with_state).
    pub key_states: bool,
}

/// What a source does for messages of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyOrder {
    /// Nothing.
    None,
    /// One holder at a time has messages of the key, in their order.
    Locked,
}

/// A message that a sink has promised to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted<Id> {
    /// What it is called there. `None`: it is a [record of a producer](Message::producer) that was known; a queue keeps the
    /// numbers of records, and not what they are called. Or it went to no queue, or to none that the sender may read.
    pub id: Option<Id>,
    /// Its number in the queue, where it has one.
    pub sequence: Option<Sequence>,
    /// Whether it was known as a record of its producer, or by its unique id where the sink
    /// [can](SinkCapabilities::tells_duplicates) tell, so that nothing was added.
    pub duplicate: bool,
}

/// What to receive.
#[derive(Clone, Debug)]
pub struct ReceiveRequest {
    /// At most so many messages; 1 to [`receive_max`](SourceCapabilities::receive_max).
    pub max: usize,
    /// At most so many of one key, 1 or more, where the source [can](SourceCapabilities::key_max) tell;
    /// elsewhere it says nothing. A worker that runs one message of a key at a time has no use for many of
    /// them. `None`: up to `max`.
    pub key_max: Option<usize>,
    /// How long to wait for a first message; up to [`wait_max`](SourceCapabilities::wait_max). Zero: not at
    /// all.
    pub wait: Duration,
    /// How long the leases last, rounded up to whole milliseconds; `None`: as the source has it.
    pub lease: Option<Duration>,
    /// Who will hold them, where the source wants to know.
    pub holder: HolderName,
}

/// What a source calls a message: the same each time the message comes, also after a restart of either side
/// and after a move to another queue and back, and never the name of another message of the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageName {
    /// Lockgate's id.
    Id(MessageId),
    /// What another source calls it; its queue included, where the rest is unique only within one.
    Text(Arc<str>),
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// A message under a lease.
#[derive(Clone, Debug)]
pub struct Leased<Receipt> {
    /// Names the lease.
    pub receipt: Receipt,
    /// What the source calls the message, where it has a name that lasts.
    pub name: Option<MessageName>,
    /// The message as it was sent. A source may not know the due time and the level that it asked for.
    pub message: Message,
    /// Its number in the queue, where it has one.
    pub sequence: Option<Sequence>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// When it was accepted, where that is known.
    pub accepted: Option<WallTime>,
    /// Its failures, where the source [keeps](SourceCapabilities::nack_reasons) them and there were some.
    pub failures: Option<Arc<Failures>>,
    /// The state of its key, where the source [has](SourceCapabilities::key_states) states and the key has one; only
    /// with the first message of the key in the answer of a receive.
    pub state: Option<KeyState>,
    /// How much longer the lease lasts, as of the answer.
    pub remaining: Duration,
}

/// How a lease is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Done: the message leaves the queue.
    Ack,
    /// Failed: the message returns to its place.
    Nack {
        /// How long before it may be leased again.
        delay: Duration,
        /// Why, up to [`REASON_BYTES_MAX`](crate::REASON_BYTES_MAX) bytes, where the source
        /// [keeps](SourceCapabilities::nack_reasons) that; refused elsewhere.
        reason: Option<Arc<str>>,
    },
    /// Not now: as a nack, and the attempt does not count.
    Defer {
        /// How long before it may be leased again.
        delay: Duration,
    },
    /// Not now, and nothing else of what `scope` names: as a deferral, and none of it is leased to anybody before.
    /// A hold that lasts longer already stays.
    Hold {
        /// How long; more than zero.
        delay: Duration,
        /// What is held.
        scope: HoldScope,
    },
    /// Can never succeed: to the dead letters, or dropped where there are none.
    Reject {
        /// Why, up to [`REASON_BYTES_MAX`](crate::REASON_BYTES_MAX) bytes.
        reason: Option<Arc<str>>,
    },
    /// Never tried: the message returns to its place, and the attempt does not count.
    GiveBack,
}

/// What became of what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It did not happen, and never can as it is.
    Refused,
    /// It did not happen: the transport cannot do that, see its capabilities.
    Unsupported,
    /// It did not happen; it may later. Try again with a growing, jittered delay.
    Retry,
    /// It did not happen: who asked for it is not current any more. The lease of a settle has ended, and somebody else may
    /// have the message; or the sink takes no more of this incarnation of a producer, and
    /// [says why](TransportError::producer_refused); or the term of a [fence](Sink::fenced) is over.
    Stale,
    /// It did not happen: the transport is closed, or the queue behind it is gone. What was asked is not at
    /// fault; open the queue again.
    Closed,
    /// It may have happened or not: try again only if doing it twice is harmless.
    Unknown,
}

/// Why something was not done, or is not known to be done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", fate.name())]
pub struct TransportError {
    /// What became of it.
    pub fate: Fate,
    /// What the transport said.
    #[source]
    pub source: Arc<dyn Error + Send + Sync>,
}

/// A part of a message that a sink does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// It has a key.
    #[error("this sink keeps no order of keys, and the message has a key")]
    Key,
    /// It has no key.
    #[error("this sink needs a key, and the message has none")]
    NoKey,
    /// It has a group.
    #[error("this sink knows no groups, and the message has one")]
    Group,
    /// It has a unique id.
    #[error("this sink knows no unique ids, and the message has one")]
    UniqueId,
    /// It is due later.
    #[error("this sink delays nothing, and the message has a due time")]
    Due,
    /// It has a time to live.
    #[error("this sink knows no time to live, and the message has one")]
    TimeToLive,
    /// It has headers, a content type or a trace context.
    #[error("this sink carries bodies only, and the message has more")]
    Headers,
    /// It has a priority.
    #[error("this sink carries no priorities, and the message has one")]
    Priority,
    /// It is a pack.
    #[error(
        "this sink looks at each message to see where it goes, and this one is a pack of several"
    )]
    Pack,
    /// It is a record of a producer.
    #[error("this sink knows no records of producers, and the message is one")]
    Producer,
    /// Its priority is above [`PRIORITY_MAX`], which no sink takes.
    #[error("a priority is 0 to {PRIORITY_MAX}, and the message has {given}")]
    PriorityTooHigh {
        /// What it has.
        given: u8,
    },
    /// It asks for a higher level.
    #[error("this sink reaches level {max}, and the message asks for {asked}")]
    Level {
        /// What it asks for.
        asked: Level,
        /// What the sink reaches.
        max: Level,
    },
}

impl SinkCapabilities {
    /// A sink that carries bodies only, one at a time, of any size: to be changed field by field.
    #[must_use]
    pub fn bodies_only(level_max: Level) -> Self {
        Self {
            batch_max: 1,
            batch_bytes_max: u64::MAX,
            message_bytes_max: u64::MAX,
            keys: false,
            keys_only: false,
            groups: false,
            unique_ids: false,
            unique_id_window: None,
            tells_duplicates: false,
            due: false,
            due_max: None,
            time_to_live: false,
            headers: false,
            priority: false,
            routes: false,
            producers: false,
            level_max,
        }
    }

    /// Whether the sink takes all that the message has, and as many bytes. Every [`Sink`] refuses what this refuses.
    ///
    /// # Errors
    /// [`Fate::Unsupported`] for a part that it does not take; [`Fate::Refused`] for too many bytes.
    pub fn carries(&self, message: &Message) -> Result<(), TransportError> {
        self.check(message)?;
        let (given, max) = (message.size() as u64, self.message_bytes_max);
        match given > max {
            true => {
                let error = format!("a message may have {max} bytes here, this one has {given}");
                Err(TransportError::new(Fate::Refused, error))
            }
            false => Ok(()),
        }
    }

    /// Whether the sink takes all that the message has. Every [`Sink`] refuses what this refuses.
    ///
    /// # Errors
    /// The first part that it does not take.
    pub fn check(&self, message: &Message) -> Result<(), Unsupported> {
        let has_more = !message.headers.is_empty()
            || message.content_type.is_some()
            || message.trace_context.is_some();
        let parts = [
            (message.key.is_some() && !self.keys, Unsupported::Key),
            (message.key.is_none() && self.keys_only, Unsupported::NoKey),
            (message.group.is_some() && !self.groups, Unsupported::Group),
            (
                message.unique_id.is_some() && !self.unique_ids,
                Unsupported::UniqueId,
            ),
            (message.due.is_some() && !self.due, Unsupported::Due),
            (
                message.time_to_live.is_some() && !self.time_to_live,
                Unsupported::TimeToLive,
            ),
            (has_more && !self.headers, Unsupported::Headers),
            (
                message.priority != 0 && !self.priority,
                Unsupported::Priority,
            ),
            (self.routes && pack::is_pack(message), Unsupported::Pack),
            (
                message.producer.is_some() && !self.producers,
                Unsupported::Producer,
            ),
            (
                message.priority > PRIORITY_MAX,
                Unsupported::PriorityTooHigh {
                    given: message.priority,
                },
            ),
        ];
        if let Some((_, part)) = parts.into_iter().find(|(lacks, _)| *lacks) {
            return Err(part);
        }
        match message.level {
            Some(asked) if asked > self.level_max => Err(Unsupported::Level {
                asked,
                max: self.level_max,
            }),
            _ => Ok(()),
        }
    }
}

impl SourceCapabilities {
    /// A plain source: one message at a time, which is acknowledged or comes again: to be changed field by
    /// field.
    #[must_use]
    pub fn plain() -> Self {
        Self {
            receive_max: 1,
            settle_max: 1,
            wait_max: Duration::ZERO,
            key_order: KeyOrder::None,
            key_max: false,
            lease_max: Duration::ZERO,
            nack_delay_max: Duration::ZERO,
            nack_reasons: false,
            defer: false,
            hold: false,
            reject: false,
            give_back: false,
            key_states: false,
        }
    }
}

impl Fate {
    /// Whether it did not happen and never can as it is: [`Refused`](Self::Refused) or [`Unsupported`](Self::Unsupported).
    #[must_use]
    pub fn is_never(self) -> bool {
        matches!(self, Self::Refused | Self::Unsupported)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Refused => "it was refused and did not happen",
            Self::Unsupported => "the transport cannot do that; it did not happen",
            Self::Retry => "it did not happen; try again later",
            Self::Stale => "who asked for it is not current any more; it did not happen",
            Self::Closed => "the transport or its queue is closed; it did not happen",
            Self::Unknown => "whether it happened is unknown",
        }
    }
}

impl TransportError {
    /// With what the transport said.
    pub fn new(fate: Fate, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let source: Box<dyn Error + Send + Sync> = source.into();
        Self {
            fate,
            source: source.into(),
        }
    }

    /// Why the sink takes no more of a producer, if it is that.
    #[must_use]
    pub fn producer_refused(&self) -> Option<ProducerRefused> {
        self.source.downcast_ref().copied()
    }
}

impl From<ProducerRefused> for TransportError {
    fn from(refused: ProducerRefused) -> Self {
        let fate = match refused {
            ProducerRefused::Gap => Fate::Retry,
            _ => Fate::Stale,
        };
        Self::new(fate, refused)
    }
}

impl From<FenceError> for TransportError {
    fn from(refused: FenceError) -> Self {
        let fate = match refused {
            FenceError::Unsupported { .. } => Fate::Unsupported,
            _ => Fate::Stale,
        };
        Self::new(fate, refused)
    }
}

impl From<Unsupported> for TransportError {
    fn from(part: Unsupported) -> Self {
        Self::new(Fate::Unsupported, part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_why_a_producer_is_refused() {
        let fenced = ProducerRefused::Fenced {
            current: ProducerIncarnation(7),
        };
        for (refused, fate) in [
            (ProducerRefused::Unknown, Fate::Stale),
            (fenced, Fate::Stale),
            (ProducerRefused::Gap, Fate::Retry),
        ] {
            let error = TransportError::from(refused);
            assert_eq!(error.fate, fate);
            assert_eq!(error.producer_refused(), Some(refused));
        }
        let other = TransportError::new(Fate::Stale, "the lease has ended");
        assert_eq!(other.producer_refused(), None);
    }

    #[test]
    fn a_priority_is_refused_where_none_is_carried_and_above_the_highest() {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        let check = |can: &SinkCapabilities, priority| {
            can.check(&Message::new("a").with_priority(priority))
        };
        assert_eq!(check(&can, 0), Ok(()));
        assert_eq!(check(&can, 1), Err(Unsupported::Priority));
        can.priority = true;
        assert_eq!(check(&can, PRIORITY_MAX), Ok(()));
        let given = PRIORITY_MAX + 1;
        let too_high = Unsupported::PriorityTooHigh { given };
        assert_eq!(check(&can, given), Err(too_high));
    }
}

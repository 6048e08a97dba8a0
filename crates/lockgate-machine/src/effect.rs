//! Effects: the machine's decisions. Only effects are logged, and only effects change state.

use std::{collections::BTreeMap, num::NonZeroU64, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    BootId, Epoch, ExchangeId, ExchangeName, HolderName, InputId, Key, LeaseNumber, LedgerId,
    LedgerName, Level, MachineTime, Message, MessageId, Millis, Now, Produced, ProducerIncarnation,
    ProducerName, QueueId, QueueName, ReaderName, RecordName, RecordVersion, Revision, ScheduleId,
    ScheduleName, Sequence, Term, UniqueId, WallTime,
    ledger::{Event, EventHash, SequenceId},
};
use smallvec::SmallVec;

use crate::{
    Binding, ExchangeKind, ExchangeNotes, Firing, HoldTarget, QueueSettings, ScheduleSpec,
    Unroutable, slab::NONE,
};

/// The effects of one command, in order. They become one log record: all survive or none.
pub type Effects = SmallVec<[Effect; 1]>;

/// One change of state. Folding it cannot fail: an effect on something that does not exist, because
/// a record was lost, is counted and ignored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// A term of ownership began.
    TermStarted {
        term: Term,
        /// The boot it runs in.
        boot_id: BootId,
        /// Machine time minus time since boot.
        clock_offset: i64,
        /// Random bytes with which callers can make tokens that cannot be forged. The first ones folded stay.
        secret: [u8; 32],
        now: Now,
    },
    /// A term of ownership ended in order: everything accepted in it is in the log before this
    /// record, so no reserved sequence number was given out and lost.
    TermEnded { now: Now },
    /// Time advanced to `now`, and at most `budget` timers fired.
    Advanced {
        now: Now,
        /// How many timers may fire in this step.
        budget: u32,
    },
    /// A queue was created.
    QueueCreated {
        queue: QueueId,
        name: QueueName,
        settings: Box<QueueSettings>,
        /// Attributes that are kept and not interpreted.
        annotations: BTreeMap<String, String>,
        tags: BTreeMap<String, String>,
        at: WallTime,
    },
    /// A queue's settings, annotations and tags were replaced by these.
    QueueChanged {
        queue: QueueId,
        settings: Box<QueueSettings>,
        annotations: BTreeMap<String, String>,
        tags: BTreeMap<String, String>,
        at: WallTime,
    },
    /// A queue was deleted with all its messages.
    QueueDeleted { queue: QueueId },
    /// All messages of a queue were removed.
    Purged { queue: QueueId },
    /// A queue was paused or resumed.
    Paused { queue: QueueId, paused: bool },
    /// A message was accepted, its unique id reserved, and the mark of its producer raised.
    Accepted(Box<StoredMessage>),
    /// Senders at level `memory` may have been given sequence numbers below this one. After a crash
    /// such numbers are skipped and counted as possibly lost, and never given out again.
    SequencesReserved {
        queue: QueueId,
        /// The first number that was not given out.
        below: Sequence,
    },
    /// A lease was given.
    Leased {
        /// The message's queue.
        queue: QueueId,
        sequence: Sequence,
        /// The lease's number in the current term.
        lease: LeaseNumber,
        /// When it was given.
        now: Now,
        deadline: MachineTime,
        /// The holder of the lease.
        holder: HolderName,
    },
    /// No lease of the queue ends after this unless the bound is raised again. A power cut may have
    /// taken any shorter lease.
    LeaseBoundRaised { queue: QueueId, until: MachineTime },
    /// A message was acknowledged.
    Acked { queue: QueueId, sequence: Sequence },
    /// A message's attempt failed; it returns to its place.
    Nacked {
        queue: QueueId,
        sequence: Sequence,
        /// The message is not leasable before this. `None`: it is leasable at once.
        until: Option<MachineTime>,
        /// How it failed. `None`: nobody said why, and nothing is kept of it.
        failed: Option<Failed>,
    },
    /// A lease got a later or earlier end.
    Extended {
        /// The message's queue.
        queue: QueueId,
        sequence: Sequence,
        deadline: MachineTime,
    },
    /// A lease never reached its caller; the attempt does not count.
    GivenBack {
        /// The message's queue.
        queue: QueueId,
        sequence: Sequence,
        /// Whether limits count it as a start all the same.
        started: bool,
    },
    /// A message moved to another queue. Its id and body stay, its attempts start at zero.
    Moved {
        /// From which queue.
        from: QueueId,
        /// Which message of it.
        sequence: Sequence,
        /// To which queue.
        to: QueueId,
        to_sequence: Sequence,
        reason: DeadLetterReason,
        at: WallTime,
    },
    /// A message was dropped.
    Dropped {
        queue: QueueId,
        sequence: Sequence,
        reason: DropReason,
    },
    /// A message got another due time.
    Rescheduled {
        queue: QueueId,
        sequence: Sequence,
        due: WallTime,
    },
    /// A key was parked.
    KeyParked { queue: QueueId, key: Key },
    /// A key was resumed.
    KeyResumed { queue: QueueId, key: Key },
    /// The state of a key was written.
    KeyStatePut {
        queue: QueueId,
        key: Key,
        version: RecordVersion,
        at: WallTime,
        value: Bytes,
    },
    /// The state of a key was dropped.
    KeyStateDropped { queue: QueueId, key: Key },
    /// A queue or a key of it was held, or let go.
    Held {
        queue: QueueId,
        what: HoldTarget,
        /// Nothing of it is leased before this; an earlier time than before changes nothing. `None`: no hold is left.
        until: Option<MachineTime>,
    },
    /// A record was written.
    RecordPut {
        name: RecordName,
        version: RecordVersion,
        revision: Revision,
        at: WallTime,
        value: Bytes,
    },
    /// A record was deleted, and its lease with it.
    RecordDeleted {
        name: RecordName,
        revision: Revision,
    },
    /// A lease of a record was given; or extended, if the record has the lease with that epoch.
    RecordLeased {
        name: RecordName,
        holder: HolderName,
        /// The revision of its grant.
        epoch: Epoch,
        deadline: MachineTime,
        delete_at_end: bool,
    },
    /// A lease of a record was ended by a command.
    RecordReleased {
        name: RecordName,
        revision: Revision,
    },
    /// A producer opened the queue.
    ProducerOpened {
        queue: QueueId,
        producer: ProducerName,
        /// Above all that were given in the shard before.
        incarnation: ProducerIncarnation,
        at: MachineTime,
    },
    /// A producer was forgotten, with its marks.
    ProducerForgotten {
        queue: QueueId,
        producer: ProducerName,
    },
    /// A record of a producer was a duplicate by its unique id.
    MarkRaised {
        queue: QueueId,
        produced: Box<Produced>,
        at: MachineTime,
    },
    /// A ledger was made.
    LedgerCreated {
        ledger: LedgerId,
        name: LedgerName,
        hashed: bool,
        retention: Option<Millis>,
        at: WallTime,
    },
    /// A ledger was deleted with all its events.
    LedgerDeleted { ledger: LedgerId },
    /// Events were appended, their unique ids and inputs remembered, and settled inputs forgotten.
    EventsAppended(Box<AppendedEvents>),
    /// A reader of a ledger was moved. `None`: it was forgotten.
    ReaderMoved {
        ledger: LedgerId,
        reader: ReaderName,
        to: Option<SequenceId>,
    },
    /// A ledger was sealed.
    LedgerSealed { ledger: LedgerId, epoch: Epoch },
    /// Events before this one were let go of.
    LedgerTrimmed { ledger: LedgerId, first: SequenceId },
    /// The events of a block are now in this record: compaction wrote them again.
    EventsCompacted(Box<EventBlock>),
    /// The events of the block that begins there cannot be read any more.
    EventsLost { ledger: LedgerId, first: SequenceId },
    /// The unique ids of messages up to this number are in the index, and have left memory.
    IdsIndexed { queue: QueueId, up_to: Sequence },
    /// The unique ids of a ledger's events up to this one are in the index, and have left memory.
    EventIdsIndexed { ledger: LedgerId, up_to: SequenceId },
    /// An exchange was made.
    ExchangeCreated {
        exchange: ExchangeId,
        name: ExchangeName,
        kind: ExchangeKind,
        unroutable: Unroutable<ExchangeId>,
        at: WallTime,
    },
    /// An exchange does something else with what it cannot route.
    ExchangeChanged {
        exchange: ExchangeId,
        unroutable: Unroutable<ExchangeId>,
        at: WallTime,
    },
    /// An exchange got other notes.
    ExchangeNoted {
        exchange: ExchangeId,
        notes: Arc<ExchangeNotes>,
    },
    /// An exchange was deleted with its bindings and those to it.
    ExchangeDeleted { exchange: ExchangeId },
    /// A binding was made, or the one with that number got other options.
    Bound {
        exchange: ExchangeId,
        /// Its number in the exchange.
        number: u32,
        binding: Arc<Binding>,
    },
    /// A binding was removed.
    Unbound { exchange: ExchangeId, number: u32 },
    /// A message was published to an exchange. The copies are effects of the same record.
    Published {
        exchange: ExchangeId,
        /// How many queues got it.
        copies: u64,
        /// How many queues were left out, because they were full.
        skipped: u64,
        /// The exchange found no queue: it went to the alternate, or nowhere.
        unroutable: bool,
        /// It went nowhere.
        dropped: bool,
    },
    /// A caller made a schedule, or changed what it does.
    ScheduleSet {
        schedule: ScheduleId,
        name: ScheduleName,
        generation: u64,
        next: Option<WallTime>,
        /// The time that `next` stands in for.
        planned: Option<WallTime>,
        /// A time of its series.
        anchor: WallTime,
        at: WallTime,
        spec: Arc<ScheduleSpec>,
    },
    /// A caller paused or resumed a schedule, or moved its next time.
    ScheduleChanged {
        schedule: ScheduleId,
        generation: u64,
        paused: bool,
        next: Option<WallTime>,
        planned: Option<WallTime>,
        at: WallTime,
    },
    /// A schedule was deleted.
    ScheduleDeleted { schedule: ScheduleId },
    /// A schedule fired, or times passed that it missed. The message is an effect of the same record.
    ScheduleStepped {
        schedule: ScheduleId,
        firing: Option<Firing>,
        /// Whether the last message was cancelled for it.
        replaced: bool,
        missed: u64,
        next: Option<WallTime>,
    },
    /// A message's bytes are now in this record: compaction wrote them again. The message is named
    /// by its present queue and number.
    Compacted(Box<StoredMessage>),
}

impl Effect {
    /// Its name in `docs/internals/format.md` and wherever people read it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::TermStarted { .. } => "term started",
            Self::TermEnded { .. } => "term ended",
            Self::Advanced { .. } => "advanced",
            Self::QueueCreated { .. } => "queue created",
            Self::QueueChanged { .. } => "queue changed",
            Self::QueueDeleted { .. } => "queue deleted",
            Self::Purged { .. } => "purged",
            Self::Paused { .. } => "paused",
            Self::Accepted(_) => "accepted",
            Self::Compacted(_) => "compacted",
            Self::SequencesReserved { .. } => "sequences reserved",
            Self::Leased { .. } => "leased",
            Self::LeaseBoundRaised { .. } => "lease bound raised",
            Self::Acked { .. } => "acked",
            Self::Nacked { .. } => "nacked",
            Self::Extended { .. } => "extended",
            Self::GivenBack { .. } => "given back",
            Self::Moved { .. } => "moved",
            Self::Dropped { .. } => "dropped",
            Self::Rescheduled { .. } => "rescheduled",
            Self::KeyParked { .. } => "key parked",
            Self::KeyResumed { .. } => "key resumed",
            Self::KeyStatePut { .. } => "key state put",
            Self::KeyStateDropped { .. } => "key state dropped",
            Self::Held { .. } => "held",
            Self::RecordPut { .. } => "record put",
            Self::RecordDeleted { .. } => "record deleted",
            Self::RecordLeased { .. } => "record leased",
            Self::RecordReleased { .. } => "record released",
            Self::ProducerOpened { .. } => "producer opened",
            Self::ProducerForgotten { .. } => "producer forgotten",
            Self::MarkRaised { .. } => "mark raised",
            Self::LedgerCreated { .. } => "ledger created",
            Self::LedgerDeleted { .. } => "ledger deleted",
            Self::EventsAppended(_) => "events appended",
            Self::ReaderMoved { .. } => "reader moved",
            Self::LedgerSealed { .. } => "ledger sealed",
            Self::LedgerTrimmed { .. } => "ledger trimmed",
            Self::EventsCompacted(_) => "events compacted",
            Self::EventsLost { .. } => "events lost",
            Self::IdsIndexed { .. } => "ids indexed",
            Self::EventIdsIndexed { .. } => "event ids indexed",
            Self::ExchangeCreated { .. } => "exchange created",
            Self::ExchangeChanged { .. } => "exchange changed",
            Self::ExchangeNoted { .. } => "exchange noted",
            Self::ExchangeDeleted { .. } => "exchange deleted",
            Self::Bound { .. } => "bound",
            Self::Unbound { .. } => "unbound",
            Self::Published { .. } => "published",
            Self::ScheduleSet { .. } => "schedule set",
            Self::ScheduleChanged { .. } => "schedule changed",
            Self::ScheduleDeleted { .. } => "schedule deleted",
            Self::ScheduleStepped { .. } => "schedule stepped",
        }
    }

    /// Which record it changes, if it changes one.
    pub(crate) fn record_name(&self) -> Option<&RecordName> {
        match self {
            Self::RecordPut { name, .. }
            | Self::RecordDeleted { name, .. }
            | Self::RecordLeased { name, .. }
            | Self::RecordReleased { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// A message in the form that the log stores.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// The queue that accepted it.
    pub queue: QueueId,
    /// Its number there.
    pub sequence: Sequence,
    pub id: MessageId,
    /// When it was accepted.
    pub accepted: WallTime,
    /// Until when its unique id is remembered. `None`: it has none, or the queue remembers none.
    pub unique_until: Option<MachineTime>,
    /// Its number among the messages of its key that the queue accepted, from 1. `None`: it has no
    /// key, or the queue does not number them
    /// ([`key_sequences_max`](QueueSettings::key_sequences_max)).
    pub key_sequence: Option<NonZeroU64>,
    /// When it was accepted, if it is a record of a producer.
    pub marked_at: Option<MachineTime>,
    /// Where its body and headers are.
    pub payload: Payload,
    /// The message; `due` is set exactly if the message was delayed when accepted.
    pub message: Message,
}

/// Where the payload of a stored message is: body, headers, content type and trace context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// With the message, which alone has it.
    #[default]
    Own,
    /// With the message. Others of the same record have it too.
    Shared,
    /// With another message of the same record, which is [`Shared`](Self::Shared). This one is written without it.
    Of {
        /// The index of the effect with that message.
        part: u16,
        /// The bytes of its body and headers, as [`Message::size`] counts them.
        size: u32,
    },
}

impl StoredMessage {
    /// How many bytes count towards its queue's quota, wherever its payload is.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self.payload {
            Payload::Of { size, .. } => size,
            Payload::Own | Payload::Shared => {
                u32::try_from(self.message.size()).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Events of one append, in the form that the log stores: with places from `first` on, without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBlock {
    pub ledger: LedgerId,
    /// The place of the first event.
    pub first: SequenceId,
    /// The term of the writer.
    pub epoch: Epoch,
    /// When they were appended.
    pub time: WallTime,
    /// The running hash before the first event and behind the last one, if the ledger has one.
    pub hashes: Option<[EventHash; 2]>,
    pub events: Vec<StoredEvent>,
}

impl EventBlock {
    /// Its events, with their hashes if the ledger has them. `None`: they do not give the hash behind the last one.
    #[must_use]
    pub fn into_events(self) -> Option<Vec<Event>> {
        let Self {
            first,
            epoch,
            time,
            hashes,
            events,
            ..
        } = self;
        let mut hash = hashes.map(|[before, _]| before);
        let events = events.into_iter().zip(first.0..).map(|(event, place)| {
            hash = hash.map(|before| before.next(&event.payload));
            Event {
                sequence_id: SequenceId(place),
                previous_id: SequenceId(place - 1),
                unique_id: event.unique_id,
                time,
                epoch,
                hash,
                payload: event.payload,
            }
        });
        let events = events.collect();
        (hash == hashes.map(|[_, behind]| behind)).then_some(events)
    }
}

/// An event of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    pub unique_id: Option<UniqueId>,
    pub payload: Bytes,
}

/// What an append did to a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedEvents {
    /// The new events; none if all were duplicates.
    pub block: EventBlock,
    /// Inputs to remember, each with the place of its event.
    pub inputs: Vec<(InputId, SequenceId)>,
    /// Inputs to forget.
    pub settled: Vec<InputId>,
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub at: WallTime,
    /// The holder's reason. `None`: there was no room for it
    /// ([`failure_bytes_max`](crate::MachineLimits::failure_bytes_max)), so it is only counted.
    pub error: Option<Arc<str>>,
}

/// Why a message was moved to or from a dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It had as many leases as its queue allows.
    Attempts { attempts: u16 },
    /// A consumer rejected it.
    Rejected {
        /// The consumer's reason.
        reason: Option<Arc<str>>,
    },
    /// An operator moved it.
    Redriven {
        /// The queue whose dead letter it still is, and to which it can go back. `None`: none.
        source: Option<QueueId>,
    },
}

impl DeadLetterReason {
    /// The queue whose dead letter a message is, after it was moved out of the queue `from` for this reason.
    #[must_use]
    pub fn source(&self, from: QueueId) -> Option<QueueId> {
        match self {
            Self::Attempts { .. } | Self::Rejected { .. } => Some(from),
            Self::Redriven { source } => *source,
        }
    }
}

/// Why a message left without being acknowledged. The numbers are stored and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue was purged.
    Purged = 1,
    /// The queue was deleted.
    QueueDeleted = 2,
    /// It reached the end of its time to live or of the queue's retention.
    Expired = 3,
    /// Its payload could not be read.
    Damaged = 4,
    /// A consumer rejected it, and there is no dead-letter queue.
    Rejected = 5,
    /// It was cancelled by its id.
    Cancelled = 6,
    /// An operator dropped its key.
    KeyDropped = 7,
}

impl DropReason {
    /// Its name in `docs/internals/format.md` and wherever people read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Purged => "purged",
            Self::QueueDeleted => "queue deleted",
            Self::Expired => "expired",
            Self::Damaged => "damaged",
            Self::Rejected => "rejected",
            Self::Cancelled => "cancelled",
            Self::KeyDropped => "key dropped",
        }
    }
}

/// The parts of an accepted message that folding needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) numbers: ArrivalNumbers,
    pub(crate) key: Option<KeyText<'a>>,
    /// A unique id that is remembered, and until when.
    pub(crate) unique: Option<(&'a str, MachineTime)>,
    pub(crate) mark: Option<ArrivalMark<'a>>,
}

/// The mark of a record of a producer, and when it was raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalMark<'a> {
    /// A text that [`ProducerName::new`] accepts.
    pub(crate) producer: &'a str,
    pub(crate) incarnation: u64,
    pub(crate) opening: u64,
    pub(crate) lane: u8,
    pub(crate) number: u64,
    pub(crate) at: MachineTime,
}

impl<'a> ArrivalMark<'a> {
    pub(crate) fn new(produced: &'a Produced, at: MachineTime) -> Self {
        let mark = &produced.mark;
        Self {
            producer: mark.producer().as_str(),
            incarnation: produced.incarnation.0,
            opening: mark.opening(),
            lane: mark.lane(),
            number: mark.number(),
            at,
        }
    }
}

/// The same without texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalNumbers {
    pub(crate) queue: QueueId,
    pub(crate) sequence: Sequence,
    pub(crate) id: MessageId,
    pub(crate) accepted: WallTime,
    /// Bytes that count towards the quota.
    pub(crate) size: u32,
    pub(crate) level: Option<Level>,
    pub(crate) due: Option<WallTime>,
    pub(crate) time_to_live: Option<Millis>,
    pub(crate) key_sequence: Option<NonZeroU64>,
    pub(crate) payload: Payload,
}

/// A key's text, with what is known about the key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyText<'a> {
    /// A text that [`Key::new`] accepts.
    pub(crate) text: &'a str,
    /// The key itself, if there is one: sharing its text costs less than copying it.
    pub(crate) key: Option<&'a Key>,
    /// The text's hash under the shard's seed.
    pub(crate) hash: Option<u64>,
    /// The probable index of the key in the machine, or [`NONE`].
    pub(crate) likely: u32,
}

impl<'a> From<&'a StoredMessage> for Arrival<'a> {
    fn from(stored: &'a StoredMessage) -> Self {
        let message = &stored.message;
        let unique_id = message.unique_id.as_ref().map(UniqueId::as_str);
        Self {
            numbers: ArrivalNumbers {
                queue: stored.queue,
                sequence: stored.sequence,
                id: stored.id,
                accepted: stored.accepted,
                size: stored.size(),
                level: message.level,
                due: message.due,
                time_to_live: message.time_to_live,
                key_sequence: stored.key_sequence,
                payload: stored.payload,
            },
            key: message.key.as_ref().map(KeyText::from),
            unique: unique_id.zip(stored.unique_until),
            mark: message
                .producer
                .as_deref()
                .zip(stored.marked_at)
                .map(|(produced, at)| ArrivalMark::new(produced, at)),
        }
    }
}

impl<'a> From<&'a Key> for KeyText<'a> {
    fn from(key: &'a Key) -> Self {
        Self {
            key: Some(key),
            ..Self::from(key.as_str())
        }
    }
}

impl<'a> From<&'a str> for KeyText<'a> {
    fn from(text: &'a str) -> Self {
        Self {
            text,
            key: None,
            hash: None,
            likely: NONE,
        }
    }
}

impl KeyText<'_> {
    pub(crate) fn to_key(self) -> Key {
        self.key.cloned().unwrap_or_else(|| {
            Key::new(self.text).expect("it was checked where it was read from a record")
        })
    }
}

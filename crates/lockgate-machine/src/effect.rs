//! What the machine decided: the only thing that is logged, and the only thing that changes state.

use std::{collections::BTreeMap, num::NonZeroU64, sync::Arc};

use lockgate_core::{
    BootId, HolderName, Key, LeaseNumber, Level, MachineTime, Message, MessageId, Millis, Now,
    QueueId, QueueName, Sequence, Term, UniqueId, WallTime,
};
use smallvec::SmallVec;

use crate::{QueueSettings, slab::NONE};

/// The effects of one command, in order. They become one log record: all survive or none.
pub type Effects = SmallVec<[Effect; 1]>;

/// One change of state. Folding it cannot fail: an effect that names something that is not there
/// (lost with a damaged record) is counted and ignored.
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
        /// Random bytes with which callers can make tokens that cannot be forged; the first ones
        /// folded stay.
        secret: [u8; 32],
        now: Now,
    },
    /// A term of ownership ended in good order: everything accepted in it is in the log before this
    /// record, so no reserved sequence number was told and lost.
    TermEnded { now: Now },
    /// Time came to `now` and at most `budget` timers fired.
    Advanced {
        now: Now,
        /// How many timers may fire in this step.
        budget: u32,
    },
    /// A queue was made.
    QueueCreated {
        queue: QueueId,
        name: QueueName,
        settings: Box<QueueSettings>,
        /// Attributes that are kept and not interpreted.
        annotations: BTreeMap<String, String>,
        tags: BTreeMap<String, String>,
        at: WallTime,
    },
    /// A queue's settings, annotations and tags became these.
    QueueChanged {
        queue: QueueId,
        settings: Box<QueueSettings>,
        annotations: BTreeMap<String, String>,
        tags: BTreeMap<String, String>,
        at: WallTime,
    },
    /// A queue was removed with all it held.
    QueueDeleted { queue: QueueId },
    /// All messages of a queue were removed.
    Purged { queue: QueueId },
    /// A queue stopped or resumed giving leases.
    Paused {
        queue: QueueId,
        /// Whether it stopped.
        paused: bool,
    },
    /// A message was accepted, and its unique id reserved.
    Accepted(Box<StoredMessage>),
    /// Sequence numbers below this may have been told to senders of level `memory`: after a crash
    /// they are skipped and counted as possibly lost, never given out again.
    SequencesReserved {
        queue: QueueId,
        /// The first number that was not told.
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
        /// When it ends.
        deadline: MachineTime,
        /// Who has it.
        holder: HolderName,
    },
    /// No lease of the queue reaches past this without a new one: what a power cut may have taken.
    LeaseBoundRaised {
        queue: QueueId,
        /// Up to when.
        until: MachineTime,
    },
    /// A message is done.
    Acked { queue: QueueId, sequence: Sequence },
    /// A message's attempt failed; it returns to its place.
    Nacked {
        queue: QueueId,
        sequence: Sequence,
        /// Not leasable before. `None`: at once.
        until: Option<MachineTime>,
    },
    /// A lease got a later (or earlier) end.
    Extended {
        /// The message's queue.
        queue: QueueId,
        sequence: Sequence,
        /// The new end.
        deadline: MachineTime,
    },
    /// A lease never reached anybody; the attempt does not count.
    GivenBack {
        /// The message's queue.
        queue: QueueId,
        sequence: Sequence,
    },
    /// A message went to another queue; id and body are kept, attempts start at zero.
    Moved {
        /// From which queue.
        from: QueueId,
        /// Which message of it.
        sequence: Sequence,
        /// To which queue.
        to: QueueId,
        /// Its number there.
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
        /// The new due time.
        due: WallTime,
    },
    /// A key was frozen.
    KeyParked { queue: QueueId, key: Key },
    /// A key was unfrozen.
    KeyResumed { queue: QueueId, key: Key },
    /// A message's bytes now live where this record is (the engine moved them forward). It is named
    /// by the queue and number it has now.
    Compacted(Box<StoredMessage>),
}

impl Effect {
    /// What it is called, in `docs/internals/format.md` and wherever people read it.
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
        }
    }
}

/// A message as the log keeps it.
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
    /// key, or the queue gives no such numbers
    /// ([`key_sequences_max`](QueueSettings::key_sequences_max)).
    pub key_sequence: Option<NonZeroU64>,
    /// The message; `due` is set exactly if it was delayed when accepted.
    pub message: Message,
}

/// Why a message is in a dead-letter queue, or left it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It had as many leases as its queue allows.
    Attempts { attempts: u16 },
    /// A consumer rejected it.
    Rejected {
        /// In the consumer's words.
        reason: Option<Arc<str>>,
    },
    /// An operator moved it (back).
    Redriven {
        /// The queue whose dead letter it still is, and to which it goes back. `None`: it is nobody's.
        source: Option<QueueId>,
    },
}

impl DeadLetterReason {
    /// Whose dead letter a message is that was moved out of the queue `from` for this reason.
    #[must_use]
    pub fn source(&self, from: QueueId) -> Option<QueueId> {
        match self {
            Self::Attempts { .. } | Self::Rejected { .. } => Some(from),
            Self::Redriven { source } => *source,
        }
    }
}

/// Why a message left without being acknowledged. The numbers are written to disk and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue was purged.
    Purged = 1,
    /// The queue was deleted.
    QueueDeleted = 2,
    /// It outlived its time to live or the queue's retention.
    Expired = 3,
    /// Its payload could not be read any more.
    Damaged = 4,
    /// A consumer rejected it and there is no dead-letter queue.
    Rejected = 5,
    /// It was cancelled by its id.
    Cancelled = 6,
    /// Its key was dropped by an operator.
    KeyDropped = 7,
}

impl DropReason {
    /// What it is called, in `docs/internals/format.md` and wherever people read it.
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

/// What folding needs of a message that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) queue: QueueId,
    pub(crate) sequence: Sequence,
    pub(crate) id: MessageId,
    pub(crate) accepted: WallTime,
    pub(crate) key: Option<KeyText<'a>>,
    /// Bytes that count towards the quota.
    pub(crate) size: u32,
    pub(crate) level: Option<Level>,
    pub(crate) due: Option<WallTime>,
    pub(crate) time_to_live: Option<Millis>,
    /// A unique id that is remembered, and until when.
    pub(crate) unique: Option<(&'a str, MachineTime)>,
    pub(crate) key_sequence: Option<NonZeroU64>,
}

/// A key's text, and what is known with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyText<'a> {
    /// What [`Key::new`] takes.
    pub(crate) text: &'a str,
    /// The key itself: to share its text costs less than to copy it.
    pub(crate) key: Option<&'a Key>,
    /// The text's hash under the shard's seed.
    pub(crate) hash: Option<u64>,
    /// Where the machine probably has the key, or [`NONE`].
    pub(crate) likely: u32,
}

impl<'a> From<&'a StoredMessage> for Arrival<'a> {
    fn from(stored: &'a StoredMessage) -> Self {
        let message = &stored.message;
        let unique_id = message.unique_id.as_ref().map(UniqueId::as_str);
        Self {
            queue: stored.queue,
            sequence: stored.sequence,
            id: stored.id,
            accepted: stored.accepted,
            key: message.key.as_ref().map(KeyText::from),
            size: u32::try_from(message.size()).unwrap_or(u32::MAX),
            level: message.level,
            due: message.due,
            time_to_live: message.time_to_live,
            unique: unique_id.zip(stored.unique_until),
            key_sequence: stored.key_sequence,
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

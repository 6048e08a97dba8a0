//! What callers ask of the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{
    HolderName, Key, LeaseToken, Location, Message, MessageId, Millis, QueueName, Sequence, Term,
    WallTime,
};

use crate::{QueueSettings, StoredMessage};

/// A request that may change state. Decided whole: all of its effects happen, or none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    /// A start of the shard: the first command an engine gives after recovery.
    StartTerm {
        /// The new term; its epoch is above every earlier one.
        term: Term,
        /// Which boot of the machine it runs in.
        boot_id: lockgate_core::BootId,
        /// Machine time minus [`Clock::since_boot`](lockgate_core::Clock::since_boot), constant for
        /// the term, so that machine time goes on over a restart within one boot.
        clock_offset: i64,
        /// 32 random bytes; kept as the shard's [`secret`](crate::Machine::secret) if it has none.
        secret: [u8; 32],
    },
    /// An end of the shard in good order: the last command an engine gives, so that a clean stop at
    /// level `memory` is told apart from a crash.
    EndTerm,
    /// Notes what time it is, with a record of its own also where nothing is due: for an engine that
    /// needs something behind its last record, to take a snapshot there.
    Advance,
    /// Makes a queue, or says that it exists already and how.
    CreateQueue(Box<CreateQueue>),
    /// Replaces a queue's settings, annotations and tags; `None` leaves a part as it is.
    ChangeQueue {
        queue: QueueName,
        settings: Option<Box<QueueSettings>>,
        /// New annotations: attributes that the machine keeps and does not interpret.
        annotations: Option<BTreeMap<String, String>>,
        tags: Option<BTreeMap<String, String>>,
    },
    /// Removes a queue and all it holds.
    DeleteQueue { queue: QueueName },
    /// Removes all messages of a queue, in flight and delayed ones too, in one logical cut.
    Purge { queue: QueueName },
    /// Stops or resumes giving leases; sends and settles go on.
    Pause {
        queue: QueueName,
        /// Whether leases stop.
        paused: bool,
    },
    /// Accepts a message.
    Send(Box<SendMessage>),
    /// Gives leases on what is leasable; an empty reply if nothing is.
    Receive(Receive),
    /// Ends or extends one lease.
    Settle(Settle),
    /// Several settles and sends of this shard, all or nothing: consume, then produce, atomically.
    /// One stale token or refused send refuses all. Up to 1,000 of both together, which may touch
    /// 65,535 messages (the rest of a strict batch counts); settles come first.
    Transact {
        /// Leases to settle.
        settles: Vec<Settle>,
        /// Messages to send.
        sends: Vec<SendMessage>,
    },
    /// Removes a message that is not in flight.
    Cancel {
        /// Where it is: where it was sent to, unless it was moved.
        queue: QueueName,
        /// The id its send was answered with.
        message: MessageId,
    },
    /// Gives a message that is not in flight another due time; it counts as accepted when it is due.
    Reschedule {
        /// Where it is: where it was sent to, unless it was moved.
        queue: QueueName,
        /// The id its send was answered with.
        message: MessageId,
        /// The new due time.
        due: WallTime,
    },
    /// Moves messages that a receive could have now to another queue, in the order in which it would
    /// get them: how dead letters go back. Each arrives as a new message of its id: at the end of its
    /// key's order, with no attempt counted, past deduplication and quota.
    Move {
        /// From which queue.
        from: QueueName,
        /// To where. The first one that cannot go there ends the step and stays.
        to: MoveTo,
        /// At most how many; 1 to [`MOVES_MAX`](Self::MOVES_MAX). To be repeated until fewer went.
        max: u16,
    },
    /// Freezes, resumes or empties a key.
    Key {
        queue: QueueName,
        key: Key,
        /// What to do with it.
        action: KeyAction,
    },
    /// Drops a leased or waiting message whose payload cannot be read any more.
    Damaged {
        /// The message's queue.
        queue: lockgate_core::QueueId,
        /// Its number in that queue.
        sequence: lockgate_core::Sequence,
    },
    /// Says that a message's bytes are written again, with this command's record, so that they can
    /// be given up where they are now: how an engine empties a range of its log. Done, without
    /// effect, if no message lives at `from` any more.
    Compact {
        /// The message as it stands there. Where it is now is found by its id: it may have been
        /// moved to another queue since.
        message: Box<StoredMessage>,
        /// Where it was read.
        from: Location,
    },
}

impl Command {
    /// Messages that one [`Move`](Self::Move) takes at most: a bound on the size of its record.
    pub const MOVES_MAX: u16 = 1_000;
}

/// Where [`Command::Move`] takes messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveTo {
    /// To this queue, which is of the same kind.
    Queue(QueueName),
    /// Each to its origin: the queue whose dead letter it is, however it came here. One that has
    /// none, or none any more, cannot go.
    Origins,
    /// The same, for a caller who may put messages in these queues only: one whose origin is not
    /// among them cannot go.
    OriginsAmong(BTreeSet<QueueName>),
}

#[derive(Clone, Debug)]
pub struct CreateQueue {
    pub name: QueueName,
    pub settings: QueueSettings,
    /// Attributes that the machine keeps and does not interpret.
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct SendMessage {
    pub queue: QueueName,
    pub message: Message,
}

#[derive(Clone, Debug)]
pub struct Receive {
    pub queue: QueueName,
    /// At most how many messages; 1 to 1,000. Fewer come once they have [`BYTES_MAX`](Self::BYTES_MAX)
    /// together.
    pub max: u16,
    /// How long the leases last. `None`: the queue's [`lease`](QueueSettings::lease).
    pub lease: Option<Millis>,
    /// Who will hold them.
    pub holder: HolderName,
}

impl Receive {
    /// Bytes of messages after which a receive takes no further one, so that what an answer needs of
    /// memory has a bound: as much as the largest message there can be, and one more.
    pub const BYTES_MAX: u64 = 16 << 20;
}

/// Ends or extends one lease.
#[derive(Clone, Debug)]
pub struct Settle {
    pub token: LeaseToken,
    pub action: SettleAction,
}

/// How a lease is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAction {
    /// The message is done and leaves the queue.
    Ack,
    /// The message failed: it returns to its place and may be leased again after `delay`.
    Nack {
        /// 0: at once.
        delay: Millis,
    },
    /// Not now: the message returns to its place, may be leased again after `delay`, and the attempt
    /// does not count. Until then it holds its key, as after a nack.
    Defer {
        /// 0: at once.
        delay: Millis,
    },
    /// The lease lasts `lease` from now on.
    Extend {
        /// More than 0, up to 12 h after the lease was given.
        lease: Millis,
    },
    /// The message can never succeed: to the dead-letter queue now; dropped where there is none.
    Reject {
        /// Why, in the consumer's words; up to 1,024 bytes.
        reason: Option<Arc<str>>,
    },
    /// The lease never reached anybody: the message returns to its place and the attempt does not
    /// count.
    GiveBack,
}

/// What to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// Freeze it: no more leases. Keyed queues only, like [`Resume`](Self::Resume).
    Park,
    /// Unfreeze it, with attempts counted from zero for its first message.
    Resume,
    /// Drop its waiting messages, also those not yet due; what is in flight may settle. A failed
    /// message that waits for its next attempt is dropped with its key; as one of a mere group it
    /// counts as in flight. Drops at most [`DROPS_MAX`](Self::DROPS_MAX) and says how many: to be
    /// repeated until it is fewer. Unfreezes a key it has emptied.
    Drop,
}

impl KeyAction {
    /// Messages that one [`Drop`](Self::Drop) takes at most: a bound on the size of its record.
    pub const DROPS_MAX: usize = 10_000;
}

/// A question that changes nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Query {
    /// All about one queue.
    Queue { queue: QueueName },
    /// Queues by name, in order.
    Queues {
        /// Only names that start with this.
        prefix: String,
        /// Only names after this one.
        after: Option<QueueName>,
        /// At most so many.
        limit: usize,
    },
    /// Messages of a queue, or of one of its keys, in the order in which they arrived; those not yet
    /// due come last. Leases nothing. A page looks at a bounded number of messages and may be shorter
    /// than asked for, or empty, with more to come.
    Messages {
        queue: QueueName,
        /// Only of this key or group.
        key: Option<Key>,
        /// Only what comes behind this one, as the page before said.
        after: Option<Sequence>,
        /// At most so many; 1 to [`LIMIT_MAX`](Self::LIMIT_MAX).
        limit: usize,
    },
    /// One message, wherever it stands: a page of it alone.
    Message {
        /// The queue it is in.
        queue: QueueName,
        message: MessageId,
    },
    /// Keys of a keyed queue, in no order, each with why it does or does not move. Pages are as those
    /// of [`Messages`](Self::Messages).
    Keys {
        queue: QueueName,
        /// Only frozen ones.
        parked: bool,
        /// Only what comes behind this one, as the page before said.
        after: Option<u32>,
        /// At most so many; 1 to [`LIMIT_MAX`](Self::LIMIT_MAX).
        limit: usize,
    },
    /// Why a key does, or does not, move.
    Key { queue: QueueName, key: Key },
}

impl Query {
    /// The most messages or keys that a page may have.
    pub const LIMIT_MAX: usize = 1_000;
}

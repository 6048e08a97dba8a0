//! What callers get back.

use std::{collections::BTreeMap, fmt};

use lockgate_core::{
    HolderName, Key, LeaseToken, Level, Location, MachineTime, MessageId, Millis, Position,
    QueueId, QueueName, Sequence, ShardId, WallTime,
};

use crate::{DeadLetterReason, Effects, QueueSettings, QueueTotals, SettingsError};

/// What a command does and what its caller is told.
#[derive(Clone, Debug)]
pub struct Decision {
    /// To be logged as one record and folded. Empty: nothing changes.
    pub effects: Effects,
    /// The answer. A rejection has no effects.
    pub outcome: Result<Reply, Rejection>,
    /// The level the record of `effects` must have reached before the answer leaves. Without effects
    /// it is about what was decided before: from `process` on, all of that must be written first.
    pub level: Level,
    /// The answer also waits until the record at this position, and every one before it, is durable:
    /// it rests on effects of other commands. `None`: it rests on nothing that is still on its way.
    pub rests_on: Option<Position>,
}

/// A command's positive answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// Done; there is nothing to say.
    Done,
    /// The queue, made now or before.
    Queue(CreatedQueue),
    /// The message was accepted, or was before.
    Sent(Sent),
    /// Leases given, in order; may be none.
    Received(Vec<Delivery>),
    /// One lease's settling.
    Settled(Settled),
    /// All of a transaction happened; an answer per send.
    Transacted(Vec<Sent>),
    /// Messages went to other queues.
    Moved(Moved),
    /// So many messages were dropped.
    Dropped(u64),
}

/// A queue that was to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatedQueue {
    /// Whether it was there already; nothing was changed then.
    pub existed: bool,
    /// As it is now.
    pub description: Box<QueueDescription>,
}

/// What a [`Move`](crate::Move) did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub moved: u64,
    /// How many the queue still has that a receive could get.
    pub left: u64,
    /// The message at which it ended, if not for want of messages or at the most asked for.
    pub stuck: Option<Stuck>,
}

/// The answer to a send. A duplicate gets the original's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The message's id.
    pub id: MessageId,
    /// Its number in the queue.
    pub sequence: Sequence,
    /// Whether the unique id was known, so that nothing was added.
    pub duplicate: bool,
}

/// A lease on a message, without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub token: LeaseToken,
    /// The message's id.
    pub id: MessageId,
    /// Where its payload is.
    pub location: Location,
    /// How many leases it had in this queue, this one included.
    pub attempt: u16,
    /// When it was leased for the first time in this queue.
    pub first_leased: WallTime,
    /// When the lease ends.
    pub deadline: MachineTime,
    /// Where it comes from, if it was moved here.
    pub origin: Option<Origin>,
}

/// Where a moved message comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The queue it left last.
    pub queue: QueueId,
    /// That queue's name, if it still exists.
    pub name: Option<QueueName>,
    /// Its number there.
    pub sequence: Sequence,
    /// Why it was moved.
    pub reason: DeadLetterReason,
    /// The queue whose dead letter it is, if it is one and that still exists.
    pub source: Option<QueueName>,
    pub at: WallTime,
}

/// A message that could not be moved to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub message: MessageId,
    pub reason: StuckReason,
}

/// Why a message cannot be moved to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StuckReason {
    /// It is nobody's dead letter: it was sent to this queue, or an operator moved it here.
    NoOrigin,
    /// The queue it came from was deleted, or made again of the other kind.
    OriginGone,
    /// The queue it came from is not among those that the move may go to.
    OriginNotAllowed,
}

/// What settling a lease did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The lease was current, and the action was taken.
    Done,
    /// The lease was current and was extended.
    Extended {
        /// Until when it lasts now.
        deadline: MachineTime,
        /// Strict profile: so long last all leases on messages of its key, which were given with it.
        whole_key: bool,
    },
    /// The lease was not current: nothing changed, and it was counted.
    Stale(StaleReason),
}

/// Why a token settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaleReason {
    /// The message is gone: settled, dropped, purged, or never there. In an unkeyed queue also: moved
    /// to another queue.
    Gone,
    /// The lease has ended, and nobody has the message. In a keyed queue also: it was moved since, to
    /// a dead-letter queue or back from one.
    Ended,
    /// The message was leased again.
    Superseded,
    /// Strict profile: an earlier message of the batch is still out, or was given back.
    OutOfOrder,
}

impl fmt::Display for StaleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the message is gone",
            Self::Ended => "the lease has ended",
            Self::Superseded => "the message was leased again",
            Self::OutOfOrder => "an earlier message of the batch is still out",
        })
    }
}

/// Why a command was refused; nothing it asked for happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// No such queue.
    #[error("queue {queue} does not exist")]
    QueueNotFound { queue: QueueName },
    /// The settings do not fit together.
    #[error("settings of queue {queue}: {source}")]
    Settings {
        queue: QueueName,
        /// What is wrong.
        source: SettingsError,
    },
    /// A keyed queue got a message without key.
    #[error("queue {queue} is keyed: the message needs a key")]
    KeyRequired { queue: QueueName },
    /// An unkeyed queue got a message with a key: the order it asks for would not be kept.
    #[error(
        "queue {queue} is not keyed and keeps no order by key: it takes a group, whose messages take turns \
         with those of other groups"
    )]
    KeyNotTaken { queue: QueueName },
    /// A keyed queue got a message with a group.
    #[error("queue {queue} is keyed: it takes a key, not a group")]
    GroupNotTaken { queue: QueueName },
    /// Content-based deduplication without the digest, or a transaction that needs a unique id.
    #[error("queue {queue} needs a unique id on every message")]
    UniqueIdRequired { queue: QueueName },
    /// The message is too large for the queue.
    #[error("the message has {size} bytes, queue {queue} takes up to {max}")]
    MessageTooLarge {
        queue: QueueName,
        /// The message's size.
        size: u64,
        max: u64,
    },
    /// The send asked for less than the queue promises, or for more than the log can do.
    #[error(
        "level {asked} is not possible on queue {queue}: it has {queue_level}, the log reaches {log_level}"
    )]
    Level {
        queue: QueueName,
        /// What was asked.
        asked: Level,
        /// The queue's level.
        queue_level: Level,
        /// What the log can do.
        log_level: Level,
    },
    /// The queue holds as much as its quota allows.
    #[error("queue {queue} is full: {what} are limited to {max}")]
    QuotaExceeded {
        queue: QueueName,
        /// Messages or bytes.
        what: &'static str,
        max: u64,
    },
    /// The memory for remembered unique ids is used up; nothing is forgotten early.
    #[error("queue {queue} remembers as many unique ids as its {max} bytes allow")]
    DedupFull {
        queue: QueueName,
        /// The limit in bytes.
        max: u64,
    },
    /// Too many messages in flight.
    #[error("queue {queue} has {max} messages in flight, its limit")]
    InFlightFull { queue: QueueName, max: u32 },
    /// A number in the command is outside its range.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        what: &'static str,
        /// What was given.
        value: u64,
        /// The lowest allowed.
        min: u64,
        /// The highest allowed.
        max: u64,
    },
    /// One settle of a transaction is stale, so nothing happened.
    #[error("lease {index} of the transaction is stale ({reason}): nothing was done")]
    TransactionStale {
        /// Which settle, from 0.
        index: usize,
        reason: StaleReason,
    },
    /// What was given is of another shard, which alone can do something with it. With a lease: go to the
    /// shard that gave it.
    #[error("it is of shard {given}, and this is shard {own}: take it to shard {given}")]
    OtherShard {
        /// The shard it is of.
        given: ShardId,
        /// The shard that was asked.
        own: ShardId,
    },
    /// One send of a transaction was refused, so nothing happened.
    #[error("message {index} of the transaction was refused: {source}")]
    TransactionRefused {
        /// Which send, from 0.
        index: usize,
        source: Box<Rejection>,
    },
    /// No message of that id waits in the queue.
    #[error("queue {queue} has no waiting message {message}")]
    MessageNotFound {
        queue: QueueName,
        message: MessageId,
    },
    /// The message is in flight.
    #[error("message {message} of queue {queue} is in flight")]
    MessageInFlight {
        queue: QueueName,
        message: MessageId,
    },
    /// The queue has nothing under that key, or is not keyed.
    #[error("queue {queue} has no key {key}")]
    KeyNotFound { queue: QueueName, key: Key },
    /// The log has no room for more messages; settling and deleting go on and may make some. Given
    /// by the engine, before anything is decided.
    #[error(
        "the log is full: {needed} bytes are needed, and the {free} that are left are kept for what makes room"
    )]
    LogFull {
        /// Bytes that would be needed.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
    /// The log needs another file and too many are open; it passes by itself. Given by the engine,
    /// before anything is decided.
    #[error("the log cannot open a file, as too many are open: nothing was done, try again later")]
    OutOfDescriptors,
    /// The command's effects are more than one record of the log can hold. Given by the engine.
    #[error("the command needs a record of {bytes} bytes, the log takes up to {max}")]
    RecordTooLarge {
        /// What it needs.
        bytes: u64,
        /// The log's limit.
        max: u64,
    },
    /// A limit of the whole shard.
    #[error("the shard has {max} {what}, its limit")]
    ShardFull { what: &'static str, max: u64 },
}

/// The answer to a [`Query`](crate::Query).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QueryReply {
    Queue(Box<QueueDescription>),
    Queues(QueuePage),
    Messages(MessagePage),
    Keys(KeyPage),
    Key(KeyStatus),
}

/// Queues, in order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePage {
    pub queues: Vec<QueueDescription>,
    /// Whether there are more.
    pub more: bool,
}

/// Messages of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagePage {
    pub messages: Vec<MessageStatus>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<Sequence>,
}

/// Keys of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPage {
    pub keys: Vec<KeyStatus>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<u32>,
}

/// A message in a queue, without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageStatus {
    pub id: MessageId,
    /// Its number in the queue.
    pub sequence: Sequence,
    /// Its key or group.
    pub key: Option<Key>,
    /// Where its payload is.
    pub location: Location,
    /// Its size in bytes, as quotas count it.
    pub size: u32,
    /// When it was accepted, became due or was moved here.
    pub since: WallTime,
    /// How many leases it had in this queue.
    pub attempts: u16,
    /// When it was leased for the first time in this queue.
    pub first_leased: Option<WallTime>,
    /// What it waits for itself; in front of it there may be others of its key.
    pub waits_for: MessageWait,
    /// Where it comes from, if it was moved here.
    pub origin: Option<Origin>,
}

/// What a message waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageWait {
    /// Its turn: nothing but what is in front of it keeps it from being leased.
    Turn,
    /// To become due.
    Due { at: WallTime },
    /// A lease to be settled or to end.
    Lease {
        /// Who has it.
        holder: HolderName,
        /// For how much longer at most.
        remaining: Millis,
    },
    /// Its next attempt.
    Backoff {
        /// For how much longer.
        remaining: Millis,
    },
}

/// All about a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueDescription {
    pub id: QueueId,
    pub name: QueueName,
    pub settings: QueueSettings,
    /// Attributes that are kept and not interpreted.
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
    /// When it was made.
    pub created: WallTime,
    /// When its settings, annotations or tags last changed.
    pub changed: WallTime,
    /// Whether leases are stopped.
    pub paused: bool,
    /// What it holds now. Exact.
    pub counts: QueueCounts,
    /// What came and went since it was made. Exact.
    pub totals: QueueTotals,
}

/// What a queue holds. `ready + in_flight + delayed` is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Waiting for a lease, also behind a message of the same key that is in flight or parked.
    pub ready: u64,
    /// Leased, or nacked and waiting for its delay to end.
    pub in_flight: u64,
    /// Not yet due.
    pub delayed: u64,
    /// Bytes of bodies and headers.
    pub bytes: u64,
    /// Keys (or groups) with at least one message.
    pub keys: u64,
    pub parked_keys: u64,
    /// Unique ids remembered.
    pub unique_ids: u64,
    /// When the oldest message was accepted.
    pub oldest: Option<WallTime>,
}

/// Why a key does, or does not, move.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyStatus {
    pub key: Key,
    /// Messages in its order: waiting or in flight.
    pub messages: u64,
    /// Messages not yet due, which do not hold it.
    pub delayed: u64,
    /// What its next message waits for.
    pub waits_for: KeyWait,
}

/// What a key's next message waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KeyWait {
    /// Nothing: the next receive may have it.
    Nothing,
    /// The key has no message in its order, and none on its way there.
    NoMessage,
    /// The key has no message in its order; the next one is delayed.
    Due {
        /// Which message comes first.
        sequence: Sequence,
        /// When it is due. With more than 1,000 delayed messages of the key, one that was sent later than
        /// those may be due before.
        at: WallTime,
    },
    /// Nothing of its own, but the queue has as many messages in flight as it may.
    InFlightFull { max: u32 },
    /// A message in front is in flight.
    Lease {
        sequence: Sequence,
        /// Who holds it.
        holder: HolderName,
        /// How much longer, at most.
        remaining: Millis,
        /// Which attempt it is.
        attempt: u16,
    },
    /// A failed message in front waits for its next attempt.
    Backoff {
        sequence: Sequence,
        /// How much longer.
        remaining: Millis,
    },
    /// An operator, or the park policy, froze the key.
    Parked,
    /// The queue is paused.
    Paused,
    /// The message has not reached its durability level yet.
    Durability,
    /// Leases lost in a power cut may still be held.
    LeaseBound {
        /// How much longer.
        remaining: Millis,
    },
}

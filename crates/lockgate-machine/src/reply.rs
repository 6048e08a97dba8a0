//! The answers of the machine.

use std::{collections::BTreeMap, fmt};

use lockgate_core::{
    HolderName, Key, LeaseToken, Level, Location, MachineTime, MessageId, Millis, Position,
    QueueId, QueueName, Sequence, ShardId, WallTime,
};

use crate::{DeadLetterReason, Effects, QueueSettings, QueueTotals, SettingsError};

/// The decision on a command: its effects, and the answer for its caller.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The effects, to be logged as one record and folded. Empty: nothing changes.
    pub effects: Effects,
    /// The answer. A rejection has no effects.
    pub outcome: Result<Reply, Rejection>,
    /// The level that the record of `effects` must reach before the answer leaves. Without effects
    /// it is about what was decided before: from `process` on, all of that must be written first.
    pub level: Level,
    /// The answer also waits until the record at this position, and every one before it, is
    /// durable, because it depends on effects of other commands. `None`: it depends on nothing that
    /// is still on its way.
    pub rests_on: Option<Position>,
}

/// A command's positive answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// Done; there is nothing to say.
    Done,
    /// The queue, which was created now or existed.
    Queue(CreatedQueue),
    /// The message was accepted, now or by an earlier send.
    Sent(Sent),
    /// The leases that were given, in order. There may be none.
    Received(Vec<Delivery>),
    /// One lease's settling.
    Settled(Settled),
    /// All of a transaction happened; an answer per send.
    Transacted(Vec<Sent>),
    /// Messages went to other queues.
    Moved(Moved),
    /// This many messages were dropped.
    Dropped(u64),
}

/// The answer to the creation of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatedQueue {
    /// Whether the queue existed. Nothing was changed then.
    pub existed: bool,
    /// The queue as it is now.
    pub description: Box<QueueDescription>,
}

/// What a [`Move`](crate::Move) did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub moved: u64,
    /// How many more messages of the queue a receive could get.
    pub left: u64,
    /// The message at which the move ended. `None`: it ran out of messages, or moved as many as
    /// were asked for.
    pub stuck: Option<Stuck>,
}

/// The answer to a send. A duplicate gets the answer of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The message's id.
    pub id: MessageId,
    /// Its number in the queue.
    pub sequence: Sequence,
    /// Whether the queue remembered the unique id, so that nothing was added.
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
    /// How many leases the message had in this queue, this one included.
    pub attempt: u16,
    /// When the message was leased for the first time in this queue.
    pub first_leased: WallTime,
    /// When the lease ends.
    pub deadline: MachineTime,
    /// Where it comes from, if it was moved here.
    pub origin: Option<Origin>,
}

/// Tells where a moved message comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The number of the queue that it left last.
    pub queue: QueueId,
    /// That queue's name, if it still exists.
    pub name: Option<QueueName>,
    /// The message's number in that queue.
    pub sequence: Sequence,
    /// Why the message was moved.
    pub reason: DeadLetterReason,
    /// The queue whose dead letter the message is, if it is one and that queue still exists.
    pub source: Option<QueueName>,
    pub at: WallTime,
}

/// A message that could not be moved to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub message: MessageId,
    pub reason: StuckReason,
}

/// Says why a message cannot be moved to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StuckReason {
    /// The message is nobody's dead letter: it was sent to this queue, or an operator moved it
    /// here.
    NoOrigin,
    /// The queue that the message came from was deleted, or created again of the other kind.
    OriginGone,
    /// The queue that the message came from is not among those that the move may go to.
    OriginNotAllowed,
}

/// Says what settling a lease did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The lease was current, and the action was taken.
    Done,
    /// The lease was current and was extended.
    Extended {
        /// The time at which the lease ends now.
        deadline: MachineTime,
        /// Strict profile: all leases on messages of its key that were given with it end then, too.
        whole_key: bool,
    },
    /// The lease was not current: nothing changed, and it was counted.
    Stale(StaleReason),
}

/// Says why a token settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaleReason {
    /// The message is gone: settled, dropped, purged, or never there. In an unkeyed queue it may
    /// also have been moved to another queue.
    Gone,
    /// The lease has ended, and nobody has the message. In a keyed queue it may also have been
    /// moved to a dead-letter queue or back since.
    Ended,
    /// Somebody leased the message again.
    Superseded,
    /// Strict profile: an earlier message of the batch is not settled yet, or was given back.
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

/// Says why a command was refused. Nothing it asked for happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// The queue does not exist.
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
    /// The message has no unique id, but the queue or the transaction needs one on every message.
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
    /// The send asked for a lower level than the queue's, or for a higher one than the log's.
    #[error(
        "level {asked} is not possible on queue {queue}: it has {queue_level}, the log reaches {log_level}"
    )]
    Level {
        queue: QueueName,
        /// The level that the send asked for.
        asked: Level,
        /// The queue's level.
        queue_level: Level,
        /// The highest level that the log reaches.
        log_level: Level,
    },
    /// The queue holds as much as its quota allows.
    #[error("queue {queue} is full: {what} are limited to {max}")]
    QuotaExceeded {
        queue: QueueName,
        /// What the quota counts: `messages` or `bytes`.
        what: &'static str,
        max: u64,
    },
    /// The memory for unique ids is used up. The queue forgets none early, so it refuses sends with
    /// a unique id.
    #[error("queue {queue} remembers as many unique ids as its {max} bytes allow")]
    DedupFull {
        queue: QueueName,
        /// The limit in bytes.
        max: u64,
    },
    /// The queue has as many messages in flight as it may have.
    #[error("queue {queue} has {max} messages in flight, its limit")]
    InFlightFull { queue: QueueName, max: u32 },
    /// A number in the command is outside its range.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        what: &'static str,
        /// The value that was given.
        value: u64,
        /// The lowest allowed.
        min: u64,
        /// The highest allowed.
        max: u64,
    },
    /// One settle of a transaction is stale, so nothing happened.
    #[error("lease {index} of the transaction is stale ({reason}): nothing was done")]
    TransactionStale {
        /// The index of the settle, from 0.
        index: usize,
        reason: StaleReason,
    },
    /// The token or id belongs to another shard, and only that shard can use it. Take a lease's
    /// token to the shard that gave the lease.
    #[error("it is of shard {given}, and this is shard {own}: take it to shard {given}")]
    OtherShard {
        /// The shard that the token or id names.
        given: ShardId,
        /// The shard that was asked.
        own: ShardId,
    },
    /// One send of a transaction was refused, so nothing happened.
    #[error("message {index} of the transaction was refused: {source}")]
    TransactionRefused {
        /// The index of the send, from 0.
        index: usize,
        source: Box<Rejection>,
    },
    /// No message with this id waits in the queue.
    #[error("queue {queue} has no waiting message {message}")]
    MessageNotFound {
        queue: QueueName,
        message: MessageId,
    },
    /// Somebody holds the message.
    #[error("message {message} of queue {queue} is in flight")]
    MessageInFlight {
        queue: QueueName,
        message: MessageId,
    },
    /// The queue has nothing under that key, or is not keyed.
    #[error("queue {queue} has no key {key}")]
    KeyNotFound { queue: QueueName, key: Key },
    /// The log has no room for more messages. Settling and deleting go on and may make some. The
    /// engine says this before it decides anything.
    #[error(
        "the log is full: {needed} bytes are needed, and the {free} that are left are kept for what makes room"
    )]
    LogFull {
        /// The bytes that the command needs.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// The log needs another file, but too many files are open. This passes by itself. The engine
    /// says this before it decides anything.
    #[error("the log cannot open a file, as too many are open: nothing was done, try again later")]
    OutOfDescriptors,
    /// The command's effects take more than one record of the log can hold. The engine says this.
    #[error("the command needs a record of {bytes} bytes, the log takes up to {max}")]
    RecordTooLarge {
        /// The bytes that the record would have.
        bytes: u64,
        /// The log's limit.
        max: u64,
    },
    /// The shard has reached a limit of its own, such as the number of queues.
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

/// A page of queues, in the order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePage {
    pub queues: Vec<QueueDescription>,
    /// Whether there are more.
    pub more: bool,
}

/// A page of messages of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagePage {
    pub messages: Vec<MessageStatus>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<Sequence>,
}

/// A page of keys of a queue.
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
    /// What the message itself waits for. Other messages of its key may be in front of it.
    pub waits_for: MessageWait,
    /// Where it comes from, if it was moved here.
    pub origin: Option<Origin>,
}

/// Says what a message waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageWait {
    /// It waits for its turn: only messages in front of it keep it from being leased.
    Turn,
    /// It waits to become due.
    Due { at: WallTime },
    /// It waits for its lease to be settled or to end.
    Lease {
        /// The name of the holder.
        holder: HolderName,
        /// How many milliseconds the lease lasts at most.
        remaining: Millis,
    },
    /// It waits for its next attempt.
    Backoff {
        /// How many milliseconds that takes.
        remaining: Millis,
    },
}

/// Everything about a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueDescription {
    pub id: QueueId,
    pub name: QueueName,
    pub settings: QueueSettings,
    /// Attributes that Lockgate keeps and does not interpret.
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
    /// When the queue was created.
    pub created: WallTime,
    /// When its settings, annotations or tags last changed.
    pub changed: WallTime,
    /// Whether the queue is paused and gives no leases.
    pub paused: bool,
    /// What the queue holds now. The figures are exact.
    pub counts: QueueCounts,
    /// What came and went since the queue was created. The figures are exact.
    pub totals: QueueTotals,
}

/// What a queue holds: `ready + in_flight + delayed` messages in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages waiting for a lease, also behind a message of the same key that is in flight or
    /// parked.
    pub ready: u64,
    /// Messages that are leased, or nacked and waiting for their delay to end.
    pub in_flight: u64,
    /// Messages that are not yet due.
    pub delayed: u64,
    /// Bytes of bodies and headers.
    pub bytes: u64,
    /// Keys (or groups) with at least one message.
    pub keys: u64,
    pub parked_keys: u64,
    /// Unique ids that the queue remembers.
    pub unique_ids: u64,
    /// When the oldest message was accepted.
    pub oldest: Option<WallTime>,
}

/// Says why a key moves, or does not.
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

/// Says what a key's next message waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KeyWait {
    /// It waits for nothing: the next receive may have it.
    Nothing,
    /// The key has no message in its order, and none on its way there.
    NoMessage,
    /// The key has no message in its order; the next one is delayed.
    Due {
        /// The number of the message that comes first.
        sequence: Sequence,
        /// When it is due. If more than 1,000 messages of the key are delayed, one that was sent
        /// later than those may be due before.
        at: WallTime,
    },
    /// Nothing of its own holds it, but the queue has as many messages in flight as it may have.
    InFlightFull { max: u32 },
    /// A message in front is in flight.
    Lease {
        sequence: Sequence,
        /// Who holds it.
        holder: HolderName,
        /// How much longer, at most.
        remaining: Millis,
        /// The number of this attempt, from 1.
        attempt: u16,
    },
    /// A failed message in front waits for its next attempt.
    Backoff {
        sequence: Sequence,
        /// How much longer.
        remaining: Millis,
    },
    /// An operator, or the policy `park`, froze the key.
    Parked,
    /// The queue is paused.
    Paused,
    /// The message has not reached its durability level yet.
    Durability,
    /// Somebody may still hold a lease that a power cut took, so the queue waits for its lease
    /// bound.
    LeaseBound {
        /// How much longer.
        remaining: Millis,
    },
}

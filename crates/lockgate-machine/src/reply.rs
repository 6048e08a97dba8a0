//! The replies of the machine.

use std::{collections::BTreeMap, fmt, sync::Arc};

use lockgate_core::{
    ExchangeName, Failures, HolderName, Key, KeyState, LeaseToken, LedgerId, LedgerName, Level,
    Location, MachineTime, MessageId, Millis, Position, ProducerIncarnation, ProducerName,
    ProducerRefused, QueueId, QueueName, Record, RecordPage, RecordVersion, RecordWritten,
    RecordsError, Sequence, ShardId, WallTime,
    coordination::FenceError,
    ledger::{Appended, LedgerError, LedgerHead, LedgerOptions, ReaderPosition, SequenceId},
    limits::Limit,
};

use crate::{
    BindingsPage, Bound, CreatedExchange, DeadLetterReason, Effects, ExchangeDescription,
    ExchangeError, ExchangesPage, IdSpace, Publication, QueueSettings, QueueTotals,
    RouteExplanation, ScheduleDescription, ScheduleError, SchedulePut, SchedulesPage,
    SettingsError,
};

/// The decision on a command: its effects, and the reply for its caller.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The effects, to be logged as one record and folded. If there are none, nothing changes.
    pub effects: Effects,
    /// The reply. A rejection has no effects.
    pub outcome: Result<Reply, Rejection>,
    /// The level that the record of `effects` must reach before the reply leaves. Without effects
    /// it concerns earlier records: from `process` on, all of them must be written first.
    pub level: Level,
    /// The reply also waits until the record at this position, and every one before it, is durable, because
    /// the reply depends on effects of other commands. `None`: it depends on nothing that may not be durable.
    pub rests_on: Option<Position>,
    /// What finding the queues of publishes and copying to them took, in copies; also of a refused command. 0: the command
    /// publishes nothing.
    pub copying: u64,
}

/// The reply to a command that was not rejected.
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
    /// The result of settling one lease.
    Settled(Settled),
    /// The whole transaction happened.
    Transacted(Transacted),
    /// Messages went to other queues.
    Moved(Moved),
    /// The number of dropped messages.
    Dropped(u64),
    /// The state of a key was written; its version, if the key has one now.
    StateWritten(Option<RecordVersion>),
    /// How much longer it is held; `None`: not any more.
    Held(Option<Millis>),
    /// The record was written.
    RecordWritten(RecordWritten),
    /// The record, which is leased now.
    Record(Box<Record>),
    /// The producer may send under this incarnation.
    ProducerOpened(ProducerIncarnation),
    /// The ledger, which was created now or existed.
    Ledger(Box<CreatedLedger>),
    /// What an append did.
    Appended(Box<Appended>),
    /// The head of the ledger now.
    LedgerHead(Box<LedgerHead>),
    /// The reader was moved or forgotten; whether there was a position of it before.
    ReaderMoved(bool),
    /// The exchange, which was created now or existed.
    Exchange(Box<CreatedExchange>),
    /// The binding, which is there now.
    Bound(Bound),
    /// To [`Publish`](crate::Publish).
    Published(Box<Publication>),
    /// The binding is not there; whether it was there before.
    Unbound(bool),
    /// To [`PutSchedule`](crate::PutSchedule).
    SchedulePut(Box<SchedulePut>),
    /// The schedule as it is now.
    Schedule(Box<ScheduleDescription>),
    /// The message of a run by hand; of an exchange, what was published.
    ScheduleRun(MessageId),
}

/// The answer to the creation of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedLedger {
    /// Whether the ledger existed before, with the same options. Then nothing was changed.
    pub existed: bool,
    /// The ledger as it is now.
    pub description: LedgerDescription,
}

/// A ledger of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDescription {
    pub id: LedgerId,
    pub name: LedgerName,
    /// What it was made with.
    pub options: LedgerOptions,
    /// When it was made.
    pub created: WallTime,
    pub head: LedgerHead,
    /// How far each reader is that the ledger keeps the place of, by name.
    pub readers: Vec<ReaderPosition>,
    /// Unique ids that it remembers in memory.
    pub unique_ids: u64,
    /// Inputs that it remembers until they are settled.
    pub inputs: u64,
    /// Appends whose events are kept. Each takes 32 bytes of memory.
    pub appends: u64,
    /// Bytes of the log that the kept events take, approximately.
    pub bytes: u64,
}

/// A page of ledgers, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgersPage {
    pub ledgers: Vec<LedgerDescription>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<LedgerName>,
}

/// Where events of a ledger are in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPlaces {
    /// The head at this instant.
    pub head: LedgerHead,
    /// The number of the ledger, which the records name.
    pub ledger: LedgerId,
    /// The blocks with the events behind the one that was named, in order; none if there is no such event.
    pub blocks: Vec<BlockPlace>,
}

/// Where events of one append are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The first event of the block.
    pub first: SequenceId,
    /// Its last event.
    pub last: SequenceId,
    /// The record that holds the block; `None`: its part of the log is lost.
    pub position: Option<Position>,
    /// Bytes of its payloads and unique ids.
    pub bytes: u64,
}

/// The answer to the creation of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct CreatedQueue {
    /// Whether the queue existed before. Then nothing was changed.
    pub existed: bool,
    /// The queue as it is now.
    pub description: Box<QueueDescription>,
}

/// What a [`Move`](crate::Move) did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub moved: u64,
    /// How many messages of the queue are still ready. Those of a parked key, and those behind a message in
    /// flight, cannot be moved now.
    pub left: u64,
    /// The message at which the move ended. `None`: there were no more messages, or the move
    /// reached its maximum.
    pub stuck: Option<Stuck>,
    /// Where another step goes on. `None`: nothing else can be moved now of what was there at the first step.
    pub next: Option<MoveCursor>,
}

/// How far the steps of a move got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveCursor {
    /// The last message that was passed over and stays; 0 if none was.
    pub after: Sequence,
    /// Messages with this number and higher ones came after the first step, and are passed over. So the steps
    /// end although messages that were moved come back.
    pub below: Sequence,
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

/// What a transaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transacted {
    /// One for each send, in order.
    pub sent: Vec<Sent>,
    /// The new version of each state, in order; `None` of one that was dropped.
    pub states: Vec<Option<RecordVersion>>,
    /// One for each publish, in order.
    pub published: Vec<Publication>,
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
    /// The origin, if the message was moved here.
    pub origin: Option<Origin>,
    /// The failures with a reason, if there were some, also of queues that it was in before.
    pub failures: Option<Arc<Failures>>,
    /// The state of its key, if there is one, with the first message of the key in an answer.
    pub state: Option<Box<KeyState>>,
}

/// The origin of a moved message.
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

/// A message that could not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub message: MessageId,
    pub reason: StuckReason,
}

/// Why a message cannot go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StuckReason {
    /// The message is no dead letter: it was sent to this queue, or an operator moved it here.
    NoOrigin,
    /// The queue that the message came from was deleted, or created again with the other kind.
    OriginGone,
    /// The queue that the message came from is not among those that the move may go to.
    OriginNotAllowed,
}

/// The result of settling a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The lease was current, and the action was taken.
    Done,
    /// The lease was current and was extended.
    Extended {
        /// The time at which the lease ends now.
        deadline: MachineTime,
        /// Strict profile: all leases on messages of the key that were given together with it end then, too.
        whole_key: bool,
    },
    /// The lease was not current: nothing changed, and the attempt to settle was counted.
    Stale(StaleReason),
}

/// Why a token settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaleReason {
    /// The message is gone: settled, dropped, purged, or never there. In an unkeyed queue it may
    /// also have been moved to another queue.
    Gone,
    /// The lease has ended, and the message is not leased. In a keyed queue the message may also
    /// have been moved to a dead-letter queue or back since.
    Ended,
    /// The message was leased again.
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

/// Why a command was refused. Nothing of it happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A command for a record cannot be done as the record is now.
    #[error(transparent)]
    Record(#[from] RecordsError),
    /// The term of the command's [fence](crate::Fenced) is over.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// A command for a ledger cannot be done as the ledger is now.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A command for an exchange cannot be done as the exchanges are now.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A command for a schedule cannot be done.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
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
    /// An unkeyed queue got a message with a key, whose order it would not keep.
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
    /// What the index of unique ids says of one did not come with the command or query: look it up, and give
    /// [`LookedUp`](crate::LookedUp) or [`FindLookedUp`](crate::FindLookedUp). An engine does that itself, for all commands of
    /// a request before the first is decided. So a publish behind a bind in one request may be refused for this: give it again.
    #[error("a unique id of {space} has to be looked up in the index")]
    LookUp { space: IdSpace },
    /// The message is too large for the queue.
    #[error("the message has {size} bytes, the message_bytes_max of queue {queue} is {max}")]
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
    #[error(
        "queue {queue} is full: its quota_{what} is {max}. Receive some messages, or raise the quota"
    )]
    QuotaExceeded {
        queue: QueueName,
        /// What the quota counts: `messages` or `bytes`.
        what: &'static str,
        max: u64,
    },
    /// The memory for unique ids is used up. The queue forgets none early, so it refuses sends with
    /// a unique id.
    #[error(
        "queue {queue} remembers as many unique ids as its dedup_bytes_max of {max} bytes allows. Raise that, \
         or shorten its dedup_window"
    )]
    DedupFull {
        queue: QueueName,
        /// The limit in bytes.
        max: u64,
    },
    /// The queue has reached its limit of messages in flight.
    #[error("queue {queue} has {max} messages in flight, which is its in_flight_max")]
    InFlightFull { queue: QueueName, max: u32 },
    /// A number in the command is outside its range.
    #[error("{what} must be {min} to {max}, not {value}")]
    OutOfRange {
        what: &'static str,
        /// The value that was given.
        value: u64,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// A settle of a transaction is stale, so nothing happened.
    #[error("lease {index} of the transaction is stale ({reason}): nothing was done")]
    TransactionStale {
        /// The index of the settle, from 0.
        index: usize,
        reason: StaleReason,
    },
    /// The token or id belongs to another shard, and only that shard can use it. Use a lease's
    /// token with the shard that gave the lease.
    #[error("it is of shard {given}, and this is shard {own}: take it to shard {given}")]
    OtherShard {
        /// The shard in the token or id.
        given: ShardId,
        /// The shard that was asked.
        own: ShardId,
    },
    /// A send of a transaction was refused, so nothing happened.
    #[error("message {index} of the transaction was refused: {source}")]
    TransactionRefused {
        /// The index of the send, from 0.
        index: usize,
        source: Box<Rejection>,
    },
    /// A publish of a transaction was refused, so nothing happened.
    #[error("publish {index} of the transaction was refused: {source}")]
    TransactionPublishRefused {
        /// The index of the publish, from 0.
        index: usize,
        source: Box<Rejection>,
    },
    /// A queue refused its copy of a message that was published, so nothing happened.
    #[error(
        "queue {queue} refused the message that was published to exchange {exchange}: {source}"
    )]
    PublishRefused {
        exchange: ExchangeName,
        /// The queue.
        queue: QueueName,
        source: Box<Rejection>,
    },
    /// No message with this id waits in the queue.
    #[error("queue {queue} has no waiting message {message}")]
    MessageNotFound {
        queue: QueueName,
        message: MessageId,
    },
    /// The message is leased.
    #[error("message {message} of queue {queue} is in flight")]
    MessageInFlight {
        queue: QueueName,
        message: MessageId,
    },
    /// The holder's lease is not current any more, so it may not write the state of its key.
    #[error("lease {index} of the states is stale ({reason}): nothing was done")]
    KeyStateStale {
        /// The index of the state, from 0.
        index: usize,
        reason: StaleReason,
    },
    /// The state of the key has another version. Read it, and decide again.
    #[error("{}", conflict(queue, key, *version))]
    KeyStateConflict {
        queue: QueueName,
        key: Key,
        /// Its version; `None`: the key has no state.
        version: Option<RecordVersion>,
    },
    /// A transaction writes the state of one key twice.
    #[error(
        "the transaction writes the state of key {key} of queue {queue} twice: nothing was done"
    )]
    KeyStateTwice { queue: QueueName, key: Key },
    /// The states of keys take as much memory as they may, so that some is left for records.
    #[error("the states of keys may have {max} bytes together: drop some")]
    KeyStatesFull {
        /// The bytes that all states of the shard may have.
        max: u64,
    },
    /// Only the keys of a keyed queue have states.
    #[error("queue {queue} is not keyed: only the keys of a keyed queue have a state")]
    KeyStateNotTaken { queue: QueueName },
    /// The record of a producer was accepted before, by this send or an earlier one: a duplicate. Nothing was added. The queue
    /// keeps the numbers of records and not their messages, so it cannot say which message it is.
    #[error("queue {queue} has accepted this record of the producer before: nothing was added")]
    SentBefore { queue: QueueName },
    /// The producer may not send.
    #[error("producer {producer} of queue {queue}: {refused}")]
    Producer {
        queue: QueueName,
        producer: ProducerName,
        refused: ProducerRefused,
    },
    /// The queue remembers as many producers, or openings of their spools, as it may. It forgets none early.
    #[error(
        "queue {queue} remembers as many {what} as its producers_max of {max} allows. Raise that, shorten its \
         producer_age, or forget producers"
    )]
    ProducersFull {
        queue: QueueName,
        /// What there are too many of.
        what: &'static str,
        max: u32,
    },
    /// The queue knows no producer of that name.
    #[error("queue {queue} has no producer {producer}")]
    ProducerNotFound {
        queue: QueueName,
        producer: ProducerName,
    },
    /// What was asked about the messages without a key of a keyed queue, which has none.
    #[error("queue {queue} is keyed: it has no messages without a key")]
    NoneWithoutKey { queue: QueueName },
    /// The queue has nothing under that key, or is not keyed.
    #[error("queue {queue} has no key {key}")]
    KeyNotFound { queue: QueueName, key: Key },
    /// The log has no room for more messages. Settling and deleting still work and may make room.
    /// The engine returns this before it decides anything.
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
    /// returns this before it decides anything.
    #[error("the log cannot open a file, as too many are open: nothing was done, try again later")]
    OutOfDescriptors,
    /// The command's effects take more than one record of the log can hold. Returned by the engine.
    #[error(
        "the command needs a record of {bytes} bytes, and this log takes up to {max}: send less at once, or let the log have \
         larger segments (--segment-size)"
    )]
    RecordTooLarge {
        /// The bytes that the record would have.
        bytes: u64,
        /// The log's limit.
        max: u64,
    },
    /// The shard has reached a limit of its own, such as the number of queues.
    #[error("the shard has {max} {what}, which is its limit")]
    ShardFull { what: &'static str, max: u64 },
}

fn conflict(queue: &QueueName, key: &Key, version: Option<RecordVersion>) -> String {
    match version {
        Some(version) => format!("the state of key {key} of queue {queue} has version {version}"),
        None => format!("key {key} of queue {queue} has no state"),
    }
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
    KeyState(Option<Box<KeyState>>),
    KeyStates(KeyStatePage),
    Record(Option<Box<Record>>),
    Records(RecordPage),
    Producers(ProducerPage),
    Ledger(Box<LedgerDescription>),
    Ledgers(LedgersPage),
    EventPlaces(Box<EventPlaces>),
    Event(Option<SequenceId>),
    Exchange(Box<ExchangeDescription>),
    Exchanges(ExchangesPage),
    Bindings(BindingsPage),
    Route(Box<RouteExplanation>),
    Schedule(Box<ScheduleDescription>),
    Schedules(SchedulesPage),
}

/// A page of queues, in the order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuePage {
    pub queues: Vec<QueueDescription>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<QueueName>,
}

/// A page of messages of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagePage {
    pub messages: Vec<MessageStatus>,
    /// The last message of the page, behind which the next page begins; `None` on the last page.
    pub next: Option<Sequence>,
}

/// A page of keys of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPage {
    pub keys: Vec<KeyStatus>,
    /// The last key of the page, behind which the next page begins; `None` on the last page.
    pub next: Option<u32>,
}

/// A page of producers of a queue, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProducerPage {
    pub producers: Vec<ProducerStatus>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<ProducerName>,
}

/// A producer of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct ProducerStatus {
    pub producer: ProducerName,
    /// The one that may send.
    pub incarnation: ProducerIncarnation,
    /// Openings of its spool whose marks the queue keeps.
    pub openings: u64,
    /// How long it has not been used: neither opened, nor was a record of it accepted.
    pub unused: Millis,
}

/// A page of the states of a queue's keys, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStatePage {
    pub states: Vec<(Key, KeyStateStatus)>,
    /// Behind which key the next page begins; `None`: there is no more.
    pub next: Option<Key>,
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
    /// The origin, if the message was moved here.
    pub origin: Option<Origin>,
    /// The failures with a reason, if there were some, also of queues that it was in before.
    pub failures: Option<Arc<Failures>>,
}

/// What a message waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageWait {
    /// For its turn: only messages in front of it keep it from being leased.
    Turn,
    /// To become due.
    Due { at: WallTime },
    /// For its lease to be settled or to end.
    Lease {
        /// The name of the holder.
        holder: HolderName,
        /// How many milliseconds the lease still lasts, at most.
        remaining: Millis,
    },
    /// For its next attempt.
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
    /// The limit of the queue as a whole that holds all its messages, if one does.
    pub limited: Option<QueueLimited>,
    /// How much longer somebody holds the queue, if somebody does.
    pub held: Option<Millis>,
    /// What the queue holds now. The figures are exact.
    pub counts: QueueCounts,
    /// The totals since the queue was created. The figures are exact.
    pub totals: QueueTotals,
}

/// What a queue holds and whether it gives leases: the part of its description that is cheap to make.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueFigures {
    pub id: QueueId,
    pub name: QueueName,
    /// The setting of that name.
    pub keyed: bool,
    /// The setting of that name.
    pub dead_letter: Option<QueueName>,
    /// As in [`QueueDescription`].
    pub paused: bool,
    /// As in [`QueueDescription`].
    pub limited: Option<QueueLimited>,
    /// As in [`QueueDescription`].
    pub held: Option<Millis>,
    /// As in [`QueueDescription`].
    pub counts: QueueCounts,
    /// As in [`QueueDescription`].
    pub totals: QueueTotals,
}

/// A limit of a queue as a whole holds its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimited {
    /// Of several, the one that lets go last.
    pub limit: Limit,
    /// How much longer it holds. `None`: until a lease ends.
    pub remaining: Option<Millis>,
}

/// The contents of a queue: `ready + in_flight + delayed` messages in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages that wait for a lease, including those behind a message of the same key that is in
    /// flight or parked.
    pub ready: u64,
    /// Messages that are leased, or nacked and waiting for their delay to end.
    pub in_flight: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Bytes of bodies and headers.
    pub bytes: u64,
    /// Keys (or groups) with at least one message.
    pub keys: u64,
    pub parked_keys: u64,
    /// Keys (or groups) whose next message only a limit of each key holds.
    pub limited_keys: u64,
    /// Keys (or groups) that owe something under limits of each key or are held, with messages or without. Each
    /// takes memory until it owes nothing.
    pub owing_keys: u64,
    /// Unique ids that the queue remembers.
    pub unique_ids: u64,
    /// Keys that have a state.
    pub states: u64,
    /// What these states count to the quota of bytes: key, value, and 256 bytes for each.
    pub state_bytes: u64,
    /// Producers that the queue knows.
    pub producers: u64,
    /// Openings of their spools whose marks it keeps.
    pub producer_openings: u64,
    /// When the oldest message was accepted.
    pub oldest: Option<WallTime>,
}

/// A key of a keyed queue or a group of an unkeyed one, with what it waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyStatus {
    /// `None`: the messages without a group of an unkeyed queue, which are one group.
    pub key: Option<Key>,
    /// Messages that wait or are in flight.
    pub messages: u64,
    /// Messages that are not due yet; they do not block the key.
    pub delayed: u64,
    /// What its next message waits for.
    pub waits_for: KeyWait,
    /// Who holds it, if somebody does, whatever else its next message waits for.
    pub held: Option<KeyHeld>,
    /// Its state, if it has one.
    pub state: Option<KeyStateStatus>,
}

/// Somebody holds a key or its queue. Of two holds, the one that lets go last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHeld {
    /// Whether it is the key that is held.
    pub of_key: bool,
    /// How much longer.
    pub remaining: Millis,
}

/// The state of a key, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStateStatus {
    pub version: RecordVersion,
    /// Bytes of the value.
    pub bytes: u64,
    /// When it was written.
    pub written: WallTime,
}

/// What a key's next message waits for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KeyWait {
    /// For nothing: the next receive may lease it.
    Nothing,
    /// The key has no message, not even a delayed one.
    NoMessage,
    /// All messages of the group that are due are in flight or wait for their next attempt; they block no other.
    InFlight,
    /// The key has only delayed messages.
    Due {
        /// The number of the message that comes first.
        sequence: Sequence,
        /// When it is due. If more than 1,000 messages of the key are delayed, one that was sent
        /// later may be due earlier.
        at: WallTime,
    },
    /// For the queue, which has reached its limit of messages in flight.
    InFlightFull { max: u32 },
    /// An earlier message is in flight.
    Lease {
        sequence: Sequence,
        /// The holder of the lease.
        holder: HolderName,
        /// How much longer the lease lasts, at most.
        remaining: Millis,
        /// The number of this attempt, from 1.
        attempt: u16,
    },
    /// An earlier message failed and waits for its next attempt.
    Backoff {
        sequence: Sequence,
        /// How much longer it waits.
        remaining: Millis,
    },
    /// An operator, or the policy `park`, parked the key.
    Parked,
    /// The queue is paused.
    Paused,
    /// The message has not reached its durability level yet.
    Durability,
    /// A limit of the key or of the queue as a whole holds the message. Of several, the one that lets go last.
    Limit {
        limit: Limit,
        /// Whether it is a limit of each key.
        of_key: bool,
        /// How much longer it holds, if nothing else starts. `None`: until a lease ends.
        remaining: Option<Millis>,
    },
    /// The queue's limits of each key have changed, and the server looks at each key again: that takes about 0.3 s
    /// for each million.
    LimitsChange,
    /// A lease that a power cut took may still be held, so the queue waits for its lease bound.
    LeaseBound {
        /// How much longer it waits.
        remaining: Millis,
    },
}

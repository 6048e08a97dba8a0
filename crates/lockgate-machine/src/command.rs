//! What callers want done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{
    BootId, HolderName, Key, LeaseToken, Location, Message, MessageId, Millis, QueueId, QueueName,
    Sequence, Term, WallTime,
};

use crate::{CreatedQueue, Delivery, Moved, QueueSettings, Reply, Sent, Settled, StoredMessage};

/// What a caller wants done. Decided whole: all of its effects happen, or none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    CreateQueue(Box<CreateQueue>),
    ChangeQueue(ChangeQueue),
    DeleteQueue(DeleteQueue),
    Purge(Purge),
    Pause(Pause),
    Send(Box<SendMessage>),
    Receive(Receive),
    Settle(Settle),
    Transact(Transact),
    Cancel(Cancel),
    Reschedule(Reschedule),
    Move(Move),
    ChangeKey(ChangeKey),
}

/// What only the engine that drives a machine asks of it. No caller can submit one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EngineCommand {
    /// A start of the shard: the first command an engine gives after recovery.
    StartTerm {
        /// The new term; its epoch is above every earlier one.
        term: Term,
        /// Which boot of the machine it runs in.
        boot_id: BootId,
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
    /// Drops a leased or waiting message whose payload cannot be read any more.
    Damaged {
        /// The message's queue.
        queue: QueueId,
        /// Its number in that queue.
        sequence: Sequence,
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

/// A command of either kind, for [`Machine::decide`](crate::Machine::decide).
#[derive(Clone, Copy, Debug)]
pub enum AnyCommand<'a> {
    Caller(&'a Command),
    Engine(&'a EngineCommand),
}

/// A command that knows what it is answered. [`Command`] itself is one too, answered with a [`Reply`]
/// of any kind.
pub trait TypedCommand: Into<Command> {
    type Reply;

    /// Takes the answer out of a reply to this command; `None` if the reply is to another one.
    fn reply(reply: Reply) -> Option<Self::Reply>;
}

/// The commands, with the reply to each and what it is in [`Reply`].
macro_rules! commands {
    ($($command:ident $variant:ident ($value:ident => $into:expr) -> $reply:ty {
        $($pattern:pat => $answer:expr),+ $(,)?
    })+) => {$(
        impl From<$command> for Command {
            fn from($value: $command) -> Self {
                Self::$variant($into)
            }
        }

        impl TypedCommand for $command {
            type Reply = $reply;

            fn reply(reply: Reply) -> Option<$reply> {
                match reply {
                    $($pattern => Some($answer),)+
                    _ => None,
                }
            }
        }
    )+};
}

commands! {
    CreateQueue CreateQueue (it => Box::new(it)) -> CreatedQueue { Reply::Queue(queue) => queue }
    ChangeQueue ChangeQueue (it => it) -> () { Reply::Done => () }
    DeleteQueue DeleteQueue (it => it) -> () { Reply::Done => () }
    Purge Purge (it => it) -> u64 { Reply::Dropped(messages) => messages }
    Pause Pause (it => it) -> () { Reply::Done => () }
    SendMessage Send (it => Box::new(it)) -> Sent { Reply::Sent(sent) => sent }
    Receive Receive (it => it) -> Vec<Delivery> { Reply::Received(deliveries) => deliveries }
    Settle Settle (it => it) -> Settled { Reply::Settled(settled) => settled }
    Transact Transact (it => it) -> Vec<Sent> { Reply::Transacted(sent) => sent }
    Cancel Cancel (it => it) -> () { Reply::Done => () }
    Reschedule Reschedule (it => it) -> () { Reply::Done => () }
    Move Move (it => it) -> Moved { Reply::Moved(moved) => moved }
    ChangeKey ChangeKey (it => it) -> u64 { Reply::Dropped(messages) => messages, Reply::Done => 0 }
}

impl TypedCommand for Command {
    type Reply = Reply;

    fn reply(reply: Reply) -> Option<Reply> {
        Some(reply)
    }
}

impl<'a> From<&'a Command> for AnyCommand<'a> {
    fn from(command: &'a Command) -> Self {
        Self::Caller(command)
    }
}

impl<'a> From<&'a EngineCommand> for AnyCommand<'a> {
    fn from(command: &'a EngineCommand) -> Self {
        Self::Engine(command)
    }
}

/// Replaces a queue's settings, annotations and tags; `None` leaves a part as it is.
#[derive(Clone, Debug)]
pub struct ChangeQueue {
    pub queue: QueueName,
    pub settings: Option<Box<QueueSettings>>,
    /// New annotations: attributes that the machine keeps and does not interpret.
    pub annotations: Option<BTreeMap<String, String>>,
    pub tags: Option<BTreeMap<String, String>>,
}

/// Removes a queue and all it holds.
#[derive(Clone, Debug)]
pub struct DeleteQueue {
    pub queue: QueueName,
}

/// Removes all messages of a queue, in flight and delayed ones too, in one logical cut. Answered with
/// how many there were.
#[derive(Clone, Debug)]
pub struct Purge {
    pub queue: QueueName,
}

/// Stops or resumes giving leases; sends and settles go on.
#[derive(Clone, Debug)]
pub struct Pause {
    pub queue: QueueName,
    /// Whether leases stop.
    pub paused: bool,
}

/// Several settles and sends of this shard, all or nothing: consume, then produce, atomically.
/// One stale token or refused send refuses all. Up to 1,000 of both together, which may touch
/// 65,535 messages (the rest of a strict batch counts); settles come first. Answered with a [`Sent`]
/// for each send.
#[derive(Clone, Debug)]
pub struct Transact {
    pub settles: Vec<Settle>,
    pub sends: Vec<SendMessage>,
}

/// Removes a message that is not in flight.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// Where it is: where it was sent to, unless it was moved.
    pub queue: QueueName,
    /// The id its send was answered with.
    pub message: MessageId,
}

/// Gives a message that is not in flight another due time; it counts as accepted when it is due.
#[derive(Clone, Debug)]
pub struct Reschedule {
    /// Where it is: where it was sent to, unless it was moved.
    pub queue: QueueName,
    /// The id its send was answered with.
    pub message: MessageId,
    /// The new due time.
    pub due: WallTime,
}

/// Moves messages that a receive could have now to another queue, in the order in which it would
/// get them: how dead letters go back. Each arrives as a new message of its id: at the end of its
/// key's order, with no attempt counted, past deduplication and quota.
#[derive(Clone, Debug)]
pub struct Move {
    /// From which queue.
    pub from: QueueName,
    /// To where. The first one that cannot go there ends the step and stays.
    pub to: MoveTo,
    /// At most how many; 1 to [`MESSAGES_MAX`](Self::MESSAGES_MAX). To be repeated until fewer went.
    pub max: u16,
}

impl Move {
    /// Messages that one takes at most: a bound on the size of its record.
    pub const MESSAGES_MAX: u16 = 1_000;
}

/// Freezes, resumes or empties a key. Answered with how many messages were dropped.
#[derive(Clone, Debug)]
pub struct ChangeKey {
    pub queue: QueueName,
    pub key: Key,
    /// What to do with it.
    pub action: KeyAction,
}

/// Where a [`Move`] takes messages.
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
    /// The dead letters of the queue `source` only, to the queue `to`, else back to `source`. Others are passed
    /// over, at most [`PASSED_MAX`](Self::PASSED_MAX) in a step.
    Of {
        source: QueueName,
        to: Option<QueueName>,
    },
}

impl MoveTo {
    /// Messages that one step passes over at most: a bound on its time.
    pub const PASSED_MAX: u32 = 100_000;
}

/// Makes a queue, or says that it exists already and how.
#[derive(Clone, Debug)]
pub struct CreateQueue {
    pub name: QueueName,
    pub settings: QueueSettings,
    /// Attributes that the machine keeps and does not interpret.
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
}

/// Accepts a message.
#[derive(Clone, Debug)]
pub struct SendMessage {
    pub queue: QueueName,
    pub message: Message,
}

/// Gives leases on what is leasable; answered with none if nothing is.
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

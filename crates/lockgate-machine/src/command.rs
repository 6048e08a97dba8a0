//! The commands of a machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use lockgate_core::{
    BootId, DeleteRecord, Epoch, ExchangeName, ExtendRecord, HolderName, Key, KeyStateWrite,
    LeaseRecord, LeaseToken, LedgerId, LedgerName, Message, MessageId, Millis, Position,
    ProducerIncarnation, ProducerName, PutRecord, QueueId, QueueName, ReaderName, Record,
    RecordVersion, RecordWritten, ReleaseRecord, RoutingKey, ScheduleName, Sequence, Term,
    WallTime,
    coordination::FenceMark,
    ledger::{Append, Appended, LedgerHead, LedgerOptions, SequenceId},
    limits::HoldScope,
};

use crate::{
    BindTo, BindingOptions, Bound, Copies, CreatedExchange, CreatedLedger, CreatedQueue, Delivery,
    EventBlock, ExchangeKind, ExchangeNotes, MoveCursor, Moved, Pattern, Publication,
    QueueSettings, Reply, ScheduleDescription, SchedulePut, ScheduleSpec, ScheduleStep, Sent,
    Settled, Transacted, Unroutable,
};

/// A caller's command. It is atomic: all of its effects happen, or none.
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
    ChangeKeyState(Box<ChangeKeyState>),
    Hold(Hold),
    PutRecord(Box<PutRecord>),
    DeleteRecord(DeleteRecord),
    LeaseRecord(LeaseRecord),
    ExtendRecord(ExtendRecord),
    ReleaseRecord(ReleaseRecord),
    OpenProducer(OpenProducer),
    ForgetProducer(ForgetProducer),
    CreateLedger(CreateLedger),
    DeleteLedger(DeleteLedger),
    AppendEvents(Box<AppendEvents>),
    MoveReader(MoveReader),
    SealLedger(SealLedger),
    TrimLedger(TrimLedger),
    CreateExchange(CreateExchange),
    UpdateExchange(UpdateExchange),
    DeleteExchange(DeleteExchange),
    Bind(Box<Bind>),
    Unbind(Unbind),
    Publish(Box<Publish>),
    PutSchedule(PutSchedule),
    ChangeSchedule(ChangeSchedule),
    DeleteSchedule(DeleteSchedule),
    RunSchedule(RunSchedule),
    Fenced(Box<Fenced<Command>>),
    LookedUp(Box<LookedUp>),
}

impl Command {
    /// The command without its fence, and without what was looked up for it.
    #[must_use]
    pub fn plain(&self) -> &Self {
        match self {
            Self::Fenced(fenced) => fenced.command.plain(),
            Self::LookedUp(looked) => looked.command.plain(),
            plain => plain,
        }
    }
}

/// Any command for the leader of a term: it is refused with [`Rejection::Fenced`](crate::Rejection::Fenced) if the shard
/// has seen a later term of that election in another such command. The highest epoch that was seen is a record, the
/// [guard](FenceMark::guard), which is written together with the command.
#[derive(Clone, Debug)]
pub struct Fenced<C> {
    /// Which term.
    pub mark: FenceMark,
    /// What its leader wants.
    pub command: C,
}

impl<C: Into<Command>> From<Fenced<C>> for Command {
    fn from(fenced: Fenced<C>) -> Self {
        Self::Fenced(Box::new(Fenced {
            mark: fenced.mark,
            command: fenced.command.into(),
        }))
    }
}

impl<C: TypedCommand> TypedCommand for Fenced<C> {
    type Reply = C::Reply;

    fn reply(reply: Reply) -> Option<C::Reply> {
        C::reply(reply)
    }
}

/// A command with what the index of unique ids says of the ids in it. The machine remembers ids for ever only until
/// they are in that index, and reads nothing itself: [`Machine::ids_to_look_up`](crate::Machine::ids_to_look_up) says
/// for which ids of a command it needs an answer.
#[derive(Clone, Debug)]
pub struct LookedUp {
    pub answers: IdAnswers,
    pub command: Command,
}

/// What the index says of ids, by whose they are and their digests.
pub type IdAnswers = Arc<BTreeMap<(IdSpace, u128), IdAnswer>>;

/// Whose unique ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdSpace {
    /// Those of messages. A number that stands for one is the message's.
    Queue(QueueId),
    /// Those of events. A number that stands for one is the event's place.
    Ledger(LedgerId),
}

impl IdSpace {
    /// Its number in the index. Those of ledgers are behind those of all queues.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Queue(QueueId(queue)) => queue.into(),
            Self::Ledger(LedgerId(ledger)) => 1 << 32 | u64::from(ledger),
        }
    }
}

impl fmt::Display for IdSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue number {}", queue.0),
            Self::Ledger(ledger) => write!(f, "ledger number {}", ledger.0),
        }
    }
}

/// What the index says of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdAnswer {
    /// Up to which number the index was complete before the id was looked up.
    pub up_to: Sequence,
    /// The number of the message or event that brought the id.
    pub found: Option<Sequence>,
}

/// Ids of a queue or ledger that may leave memory when they are in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdsToIndex {
    pub space: IdSpace,
    /// Each digest with the number for which it stands, in the order of the numbers.
    pub ids: Vec<(u128, u64)>,
    /// With these ids, the index is complete up to this number.
    pub up_to: Sequence,
}

/// Commands that only the engine of a machine gives. No caller can submit one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EngineCommand {
    /// A start of the shard: the first command an engine gives after recovery.
    StartTerm {
        /// The new term; its epoch is above every earlier one.
        term: Term,
        /// The boot of the machine that the term runs in.
        boot_id: BootId,
        /// Machine time minus [`Clock::since_boot`](lockgate_core::Clock::since_boot), constant for
        /// the term, so that machine time continues over a restart within one boot.
        clock_offset: i64,
        /// 32 random bytes; kept as the shard's [`secret`](crate::Machine::secret) if it has none.
        secret: [u8; 32],
    },
    /// The orderly end of a term: the last command that an engine gives, so that a clean stop at
    /// level `memory` can be distinguished from a crash.
    EndTerm,
    /// Notes the time, in its own record even if nothing is due: for an engine that needs a record
    /// behind its last one, to take a snapshot there.
    Advance,
    /// The index of unique ids is durably complete up to a number, so these ids may leave memory.
    IdsIndexed {
        /// A queue that remembers unique ids for ever, or a ledger.
        space: IdSpace,
        /// The number of a message or event that is durable.
        up_to: Sequence,
    },
    /// Drops a leased or waiting message whose payload cannot be read.
    Damaged {
        /// The message's queue.
        queue: QueueId,
        /// Its number in that queue.
        sequence: Sequence,
    },
    /// Writes the bytes of a message again, or of all messages of a record that have one payload, with this command's
    /// record, so that the old bytes can be released: this is how an engine empties a range of its log. Succeeds without
    /// effect if none of them lives in the record at `from` any more.
    Compact {
        /// The messages as read from `from`. Their present places are found by their ids, because they may
        /// have been moved to other queues since.
        copies: Box<Copies>,
        /// Where their record starts.
        from: Position,
    },
    /// The same for events of a ledger, which are in the record at that position.
    CompactEvents {
        block: Box<EventBlock>,
        from: Position,
    },
    /// Notes that events cannot be read any more, because a part of the log is missing. A read of them says so.
    LoseEvents {
        ledger: LedgerId,
        /// The first one of a block.
        first: SequenceId,
    },
    /// What a due schedule does: it fires, or times pass that were missed. The engine computes the times, and gives steps until
    /// [`Machine::due_schedules`](crate::Machine::due_schedules) names it no more. A step that was computed for an earlier state
    /// of the schedule does nothing.
    StepSchedule(ScheduleStep),
}

/// A command of either kind, for [`Machine::decide`](crate::Machine::decide).
#[derive(Clone, Copy, Debug)]
pub enum AnyCommand<'a> {
    Caller(&'a Command),
    Engine(&'a EngineCommand),
}

/// A command with a reply type. [`Command`] itself is one too, with a [`Reply`] of any kind.
pub trait TypedCommand: Into<Command> {
    type Reply;

    /// The reply to this command; `None` if `reply` belongs to another one.
    fn reply(reply: Reply) -> Option<Self::Reply>;
}

/// The commands, with the reply to each and its variant of [`Reply`].
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
    Transact Transact (it => it) -> Transacted { Reply::Transacted(transacted) => transacted }
    Cancel Cancel (it => it) -> () { Reply::Done => () }
    Reschedule Reschedule (it => it) -> () { Reply::Done => () }
    Move Move (it => it) -> Moved { Reply::Moved(moved) => moved }
    ChangeKey ChangeKey (it => it) -> u64 { Reply::Dropped(messages) => messages, Reply::Done => 0 }
    ChangeKeyState ChangeKeyState (it => Box::new(it)) -> Option<RecordVersion> { Reply::StateWritten(version) => version }
    Hold Hold (it => it) -> Option<Millis> { Reply::Held(remaining) => remaining }
    PutRecord PutRecord (it => Box::new(it)) -> RecordWritten { Reply::RecordWritten(written) => written }
    DeleteRecord DeleteRecord (it => it) -> () { Reply::Done => () }
    LeaseRecord LeaseRecord (it => it) -> Record { Reply::Record(record) => *record }
    ExtendRecord ExtendRecord (it => it) -> () { Reply::Done => () }
    ReleaseRecord ReleaseRecord (it => it) -> () { Reply::Done => () }
    OpenProducer OpenProducer (it => it) -> ProducerIncarnation { Reply::ProducerOpened(incarnation) => incarnation }
    ForgetProducer ForgetProducer (it => it) -> () { Reply::Done => () }
    CreateLedger CreateLedger (it => it) -> CreatedLedger { Reply::Ledger(ledger) => *ledger }
    DeleteLedger DeleteLedger (it => it) -> () { Reply::Done => () }
    AppendEvents AppendEvents (it => Box::new(it)) -> Appended { Reply::Appended(appended) => *appended }
    MoveReader MoveReader (it => it) -> bool { Reply::ReaderMoved(was_there) => was_there }
    SealLedger SealLedger (it => it) -> LedgerHead { Reply::LedgerHead(head) => *head }
    TrimLedger TrimLedger (it => it) -> LedgerHead { Reply::LedgerHead(head) => *head }
    CreateExchange CreateExchange (it => it) -> CreatedExchange { Reply::Exchange(exchange) => *exchange }
    UpdateExchange UpdateExchange (it => it) -> () { Reply::Done => () }
    DeleteExchange DeleteExchange (it => it) -> () { Reply::Done => () }
    Bind Bind (it => Box::new(it)) -> Bound { Reply::Bound(bound) => bound }
    Unbind Unbind (it => it) -> bool { Reply::Unbound(existed) => existed }
    Publish Publish (it => Box::new(it)) -> Publication { Reply::Published(published) => *published }
    PutSchedule PutSchedule (it => it) -> SchedulePut { Reply::SchedulePut(put) => *put }
    ChangeSchedule ChangeSchedule (it => it) -> ScheduleDescription { Reply::Schedule(schedule) => *schedule }
    DeleteSchedule DeleteSchedule (it => it) -> () { Reply::Done => () }
    RunSchedule RunSchedule (it => it) -> MessageId { Reply::ScheduleRun(message) => message }
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
    pub annotations: Option<BTreeMap<String, String>>,
    pub tags: Option<BTreeMap<String, String>>,
}

/// Deletes a queue with all its messages.
#[derive(Clone, Debug)]
pub struct DeleteQueue {
    pub queue: QueueName,
}

/// Removes all messages of a queue, including those in flight and delayed ones, at one instant. The
/// reply is their number.
#[derive(Clone, Debug)]
pub struct Purge {
    pub queue: QueueName,
}

/// Pauses or resumes a queue. A paused queue gives no leases; sends and settles still work.
#[derive(Clone, Debug)]
pub struct Pause {
    pub queue: QueueName,
    pub paused: bool,
}

/// Several settles, sends and publishes of this shard, all or nothing: consume, then produce, atomically. One stale
/// token, refused send or refused publish refuses all. At most 1,000 settles, states, sends and publishes together,
/// which may touch 65,535 messages (the rest of a strict batch and each copy of a message that is published count).
/// Settles come first, then states, sends, and publishes.
#[derive(Clone, Debug, Default)]
pub struct Transact {
    pub settles: Vec<Settle>,
    pub states: Vec<WriteState>,
    pub sends: Vec<SendMessage>,
    /// Keys, unique ids and envelopes of their copies have 8 MiB together at most.
    pub publishes: Vec<Publish>,
}

/// Writes the state of a key, for a holder of one of its messages. Each key at most once in a transaction.
#[derive(Clone, Debug)]
pub struct WriteState {
    /// A current lease of a message of the key; the transaction may settle it.
    pub token: LeaseToken,
    pub write: KeyStateWrite,
}

/// Writes the state of a key, for an operator: its holder's next write is refused, because it names an earlier
/// version. The reply is the new version, if the key has a state then.
#[derive(Clone, Debug)]
pub struct ChangeKeyState {
    pub queue: QueueName,
    pub key: Key,
    pub write: KeyStateWrite,
}

/// Opens a queue for a producer. The reply is an incarnation above all that were given before; from then on only sends
/// under it are taken of the producer.
#[derive(Clone, Debug)]
pub struct OpenProducer {
    pub queue: QueueName,
    pub producer: ProducerName,
}

/// Forgets a producer and its marks: records of it that come again are accepted again.
#[derive(Clone, Debug)]
pub struct ForgetProducer {
    pub queue: QueueName,
    pub producer: ProducerName,
}

/// Removes a message that is not in flight.
#[derive(Clone, Debug)]
pub struct Cancel {
    /// The queue that it is in: the one it was sent to, unless it was moved.
    pub queue: QueueName,
    /// The message's id, from the reply to its send.
    pub message: MessageId,
}

/// Changes the due time of a message that is not in flight. The message counts as accepted when it is due.
#[derive(Clone, Debug)]
pub struct Reschedule {
    /// The queue that it is in: the one it was sent to, unless it was moved.
    pub queue: QueueName,
    /// The message's id, from the reply to its send.
    pub message: MessageId,
    /// The new due time.
    pub due: WallTime,
}

/// Moves messages that a receive could return now to another queue, in the order of that receive:
/// this is how dead letters go back. Each arrives as a new message with its old id: at the end of
/// its key's order, without counted attempts, and exempt from deduplication and quota.
#[derive(Clone, Debug)]
pub struct Move {
    pub from: QueueName,
    /// The destination. The first message that cannot go there ends the step and stays.
    pub to: MoveTo,
    /// The most messages to move, 1 to [`MESSAGES_MAX`](Self::MESSAGES_MAX).
    pub max: u16,
    /// `None` for the first step, then [`Moved::next`] of the step before, until there is none. If the message it
    /// names has been received or is gone, the step begins at the front again.
    pub cursor: Option<MoveCursor>,
}

impl Move {
    /// The most messages that one command moves: a bound on the size of its record.
    pub const MESSAGES_MAX: u16 = 1_000;

    /// The most messages that one command passes over: a bound on its time.
    pub const PASSED_MAX: u32 = 100_000;
}

/// Parks, resumes or empties a key. The reply is the number of dropped messages.
#[derive(Clone, Debug)]
pub struct ChangeKey {
    pub queue: QueueName,
    pub key: Key,
    pub action: KeyAction,
}

/// What is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldTarget {
    /// A queue as a whole.
    Queue,
    /// A key of it, or a group of an unkeyed queue, with messages or without. `None`: the messages without a group of an
    /// unkeyed queue, which are one group.
    Key(Option<Key>),
}

/// Holds a queue, or one of its keys: nothing of it is leased until `time` has passed, such as what the answer of
/// an overloaded callee names. A hold is a limit ([`Limit::Held`](lockgate_core::limits::Limit::Held)): what it
/// holds keeps its place and its order.
#[derive(Clone, Debug)]
pub struct Hold {
    pub queue: QueueName,
    pub what: HoldTarget,
    /// From now on, up to [`TIME_MAX`](Self::TIME_MAX). A hold that lasts longer already stays, and the reply has how
    /// much longer. 0: a hold ends now.
    pub time: Millis,
}

impl Hold {
    /// The longest time: a year.
    pub const TIME_MAX: Millis = Settle::DELAY_MAX;
}

/// The destination of a [`Move`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveTo {
    /// This queue, which must be of the same kind.
    Queue(QueueName),
    /// Each message goes to its origin: the queue whose dead letter it is, however it came here. A
    /// message without an origin, or whose origin is gone, cannot go.
    Origins,
    /// The same for a caller who may only put messages in these queues: a message with another
    /// origin cannot go.
    OriginsAmong(BTreeSet<QueueName>),
    /// Only the dead letters of the queue `source`, to the queue `to`, or back to `source`. Others
    /// are passed over, at most [`Move::PASSED_MAX`] in a step.
    Of {
        source: QueueName,
        to: Option<QueueName>,
    },
}

/// Creates a queue, or reports that it exists, with its settings.
#[derive(Clone, Debug)]
pub struct CreateQueue {
    pub name: QueueName,
    pub settings: QueueSettings,
    /// Attributes that the machine keeps and does not interpret.
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
}

/// Accepts a message. A record of a producer that was accepted before is refused, with
/// [`Rejection::SentBefore`](crate::Rejection::SentBefore).
#[derive(Clone, Debug)]
pub struct SendMessage {
    pub queue: QueueName,
    pub message: Message,
}

/// Publishes a message to an exchange: every queue that its bindings lead to gets a copy, or none does. A queue's own settings
/// apply to its copy. The copy's key is what the binding says, or else the key or group of the message: its key where the queue
/// is keyed, its group elsewhere.
///
/// A queue that refuses its copy makes the publish refuse, with
/// [`PublishRefused`](crate::Rejection::PublishRefused); a full one is left out if its binding says
/// [`skip_when_full`](crate::BindingOptions::skip_when_full). A queue that knows the unique id of the message answers with the
/// first message of it.
#[derive(Clone, Debug)]
pub struct Publish {
    pub exchange: ExchangeName,
    /// By what exchanges of types direct and topic route; it may be empty.
    pub routing_key: RoutingKey,
    /// The message. It has no mark of a producer.
    pub message: Message,
    /// The subject, which only envelopes show ([`BindingOptions::envelope`](crate::BindingOptions::envelope)).
    pub subject: Option<Arc<str>>,
}

/// Leases messages; the reply is empty if none is leasable.
#[derive(Clone, Debug)]
pub struct Receive {
    pub queue: QueueName,
    /// The most messages, 1 to 1,000. The receive stops earlier once they have
    /// [`BYTES_MAX`](Self::BYTES_MAX) together.
    pub max: u16,
    /// The most messages of one key, 1 to 1,000, where the queue is keyed. The key is locked by few of
    /// its messages as by many. `None`: up to `max`.
    pub key_max: Option<u16>,
    /// How long the leases last. `None`: the queue's [`lease`](QueueSettings::lease).
    pub lease: Option<Millis>,
    /// The holder of the leases.
    pub holder: HolderName,
}

impl Receive {
    /// A receive takes no further message once its messages, and the states of their keys, have so many bytes. So the
    /// memory of an answer is bounded: by this, one message of the largest size and one state.
    pub const BYTES_MAX: u64 = 16 << 20;
}

/// Ends or extends one lease.
#[derive(Clone, Debug)]
pub struct Settle {
    pub token: LeaseToken,
    pub action: SettleAction,
}

impl Settle {
    /// The longest delay of a nack, a deferral or a hold: a year.
    pub const DELAY_MAX: Millis = 366 * 24 * 3600 * 1000;
}

/// How a lease is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAction {
    /// The message is done and leaves the queue.
    Ack,
    /// The message failed: it returns to its place and can be leased again after `delay`.
    Nack {
        /// 0: at once.
        delay: Millis,
        /// Why; up to [`REASON_BYTES_MAX`](lockgate_core::REASON_BYTES_MAX) bytes. The message keeps it,
        /// see [`Failures`](lockgate_core::Failures).
        reason: Option<Arc<str>>,
    },
    /// The holder postpones the message: it returns to its place and can be leased again after
    /// `delay`, and the attempt does not count. Until then it blocks its key, as after a nack.
    Defer {
        /// 0: at once.
        delay: Millis,
    },
    /// As a deferral, and what `scope` names is [held](Hold) for `delay`. Nothing else keeps the message back: it
    /// can be leased again when the hold ends, or is ended.
    Hold {
        /// More than 0.
        delay: Millis,
        /// What is held.
        scope: HoldScope,
    },
    /// The lease lasts `lease` from now on.
    Extend {
        /// More than 0, up to 12 h after the lease was given.
        lease: Millis,
    },
    /// SQS's ChangeMessageVisibility: a nack if `hidden` is 0, else an extend. In an unkeyed queue with
    /// Amazon's key profile it takes effect with any of the message's tokens, so it can hide or free a
    /// message that somebody else holds by now. Only the SQS API asks for it.
    ChangeVisibility {
        /// From now on; up to 12 h after the lease was given.
        hidden: Millis,
    },
    /// The message can never succeed: it goes to the dead-letter queue now, or is dropped if there is none.
    Reject {
        /// The consumer's reason; up to [`REASON_BYTES_MAX`](lockgate_core::REASON_BYTES_MAX) bytes.
        reason: Option<Arc<str>>,
    },
    /// The lease never reached its caller: the message returns to its place and the attempt does not count.
    GiveBack,
}

/// What to do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// Park it: no more leases. Keyed queues only, like [`Resume`](Self::Resume).
    Park,
    /// Resume it, with the attempts of its first message counted from zero.
    Resume,
    /// Drop its waiting messages, including those that are not due yet; messages in flight can
    /// still be settled. In a keyed queue, a failed message that waits for its next attempt is
    /// dropped too; in a group of an unkeyed queue it counts as in flight. Drops at most
    /// [`DROPS_MAX`](Self::DROPS_MAX) and returns their number: repeat the command until it drops
    /// fewer. Resumes a key that it has emptied.
    Drop,
}

impl KeyAction {
    /// The most messages that one [`Drop`](Self::Drop) takes: a bound on the size of its record.
    pub const DROPS_MAX: usize = 10_000;
}

/// Makes a ledger. If there is one of that name with the same options, nothing changes.
#[derive(Clone, Debug)]
pub struct CreateLedger {
    pub name: LedgerName,
    pub options: LedgerOptions,
}

/// Deletes a ledger with all its events, ids and readers.
#[derive(Clone, Debug)]
pub struct DeleteLedger {
    pub ledger: LedgerName,
}

/// Appends events to a ledger, and settles messages of the same shard in the same record: all or nothing.
#[derive(Clone, Debug)]
pub struct AppendEvents {
    pub ledger: LedgerName,
    /// What is appended; its duplicates are no failure.
    pub append: Append,
    /// The messages that the events came with. If the lease of one has ended, nothing happens.
    pub settles: Vec<Settle>,
}

impl AppendEvents {
    /// The most settles: 10,000.
    pub const SETTLES_MAX: usize = Append::EVENTS_MAX;
}

/// Keeps how far a reader of a ledger is. Its reply tells whether there was a position before.
#[derive(Clone, Debug)]
pub struct MoveReader {
    pub ledger: LedgerName,
    pub reader: ReaderName,
    /// The last event that it is done with; `None`: the reader is forgotten.
    pub to: Option<SequenceId>,
    /// Only if it is there now, where one that is not known is at 0. `None`: wherever it is.
    pub from: Option<SequenceId>,
}

/// Ends a ledger: nothing is appended any more.
#[derive(Clone, Debug)]
pub struct SealLedger {
    pub ledger: LedgerName,
    /// The term of the writer.
    pub epoch: Epoch,
}

/// Lets go of the events of a ledger before that one.
#[derive(Clone, Debug)]
pub struct TrimLedger {
    pub ledger: LedgerName,
    pub first: SequenceId,
}

/// Makes an exchange. If there is one of that name with the same settings, nothing changes.
#[derive(Clone, Debug)]
pub struct CreateExchange {
    pub name: ExchangeName,
    pub kind: ExchangeKind,
    /// What becomes of messages for which it finds no queue.
    pub unroutable: Unroutable,
    /// Those of an exchange that is there already stay as they are.
    pub notes: ExchangeNotes,
}

/// Changes what an exchange does with messages for which it finds no queue, and its notes; `None` leaves a part as it is.
#[derive(Clone, Debug)]
pub struct UpdateExchange {
    pub exchange: ExchangeName,
    pub unroutable: Option<Unroutable>,
    pub notes: Option<ExchangeNotes>,
}

/// Deletes an exchange with its bindings.
#[derive(Clone, Debug)]
pub struct DeleteExchange {
    pub exchange: ExchangeName,
    /// Also if other exchanges lead to it: bindings to it go, and exchanges whose alternate it is refuse what they cannot
    /// route. Otherwise that refuses the command.
    pub force: bool,
}

/// Makes a binding. If the exchange has one of this pattern to this place, its options are replaced, and it keeps its number; if
/// they are the same, nothing changes.
#[derive(Clone, Debug)]
pub struct Bind {
    pub exchange: ExchangeName,
    pub to: BindTo,
    /// Of the kind that the exchange takes.
    pub pattern: Pattern,
    pub options: BindingOptions,
    /// Whether a binding that is there keeps its options. Otherwise these replace them.
    pub keep: bool,
}

/// Removes the binding of this pattern to this place. The reply is whether there was one.
#[derive(Clone, Debug)]
pub struct Unbind {
    pub exchange: ExchangeName,
    pub to: BindTo,
    pub pattern: Pattern,
}

/// Makes a schedule, or changes the one of that name. If it is as asked, nothing changes: so the same files may be applied again
/// and again.
#[derive(Clone, Debug)]
pub struct PutSchedule {
    pub name: ScheduleName,
    pub spec: Arc<ScheduleSpec>,
    /// Its first time, computed by the caller from the timing: later than now, but for
    /// [`Timing::At`](lockgate_core::Timing::At) the time itself. `None`: there is none. It counts where the schedule is new or
    /// its timing changes; otherwise its next time stays.
    pub next: Option<WallTime>,
    /// The generation that it must have; 0: there must be none of that name. `None`: any.
    pub generation: Option<u64>,
}

/// Changes the state of a schedule.
#[derive(Clone, Debug)]
pub struct ChangeSchedule {
    pub name: ScheduleName,
    pub change: ScheduleChange,
    /// The generation that it must have. `None`: any.
    pub generation: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleChange {
    /// It does not fire until it is resumed.
    Pause,
    /// It fires again. Times that passed meanwhile are not missed.
    Resume {
        /// Its first time after now, computed by the caller; `None`: there is none. It counts where the schedule is paused and
        /// its next time has passed.
        next: Option<WallTime>,
    },
    /// Fires at that time instead of the next one. The series goes on behind both.
    Move(WallTime),
}

/// Removes a schedule. Messages that it has sent stay.
#[derive(Clone, Debug)]
pub struct DeleteSchedule {
    pub name: ScheduleName,
    /// The generation that it must have. `None`: any.
    pub generation: Option<u64>,
}

/// Fires a schedule now, beside its times, also if it is paused or over. Refused with
/// [`ScheduleError::Unsettled`](crate::ScheduleError::Unsettled) while the last message is there, if the schedule
/// [skips](lockgate_core::Overlap::Skip) or [waits](lockgate_core::Overlap::Queue) then.
#[derive(Clone, Debug)]
pub struct RunSchedule {
    pub name: ScheduleName,
    /// The generation that it must have. `None`: any.
    pub generation: Option<u64>,
}

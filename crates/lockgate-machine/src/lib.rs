//! All queue semantics of Lockgate as one pure, deterministic state machine.
//!
//! One caller drives a [`Machine`] in four steps, always in this order:
//!
//! 1. [`Machine::tick`] until it returns `None`: the effects of passed time (leases that ended,
//!    messages that came due). Each is logged and folded like any other effect.
//! 2. [`Machine::decide`]: the [`Effect`]s of a command, and its [`Reply`]. Changes nothing.
//! 3. The effects of one command are encoded as one log record ([`encode_record`]).
//! 4. [`Machine::fold`]: the only change of state; it cannot fail. Recovery only folds
//!    the log's records again.
//!
//! ```
//! use lockgate_core::{HolderName, Key, Message, Now, Position, QueueName};
//! use lockgate_machine::{
//!     Command, CreateQueue, Machine, MachineLimits, QueueSettings, Receive, Reply, SendMessage,
//! };
//!
//! let mut machine = Machine::new(MachineLimits::default());
//! let (now, mut position) = (Now::default(), Position(0));
//! // An engine would encode and append the effects here; this log is a position that counts.
//! let mut give = |command: Command| {
//!     let decision = machine.decide(&command, now);
//!     machine.fold(&decision.effects, position);
//!     position.0 += 1;
//!     decision.outcome
//! };
//!
//! let orders = QueueName::new("orders")?;
//! give(Command::CreateQueue(Box::new(CreateQueue {
//!     name: orders.clone(),
//!     settings: QueueSettings { keyed: true, ..QueueSettings::default() },
//!     annotations: Default::default(),
//!     tags: Default::default(),
//! })))?;
//! for (key, body) in [("user-1", "post"), ("user-1", "delete"), ("user-2", "post")] {
//!     let message = Message::new(body).with_key(Key::new(key)?);
//!     give(Command::Send(Box::new(SendMessage { queue: orders.clone(), message })))?;
//! }
//! let mut receive = || {
//!     give(Command::Receive(Receive {
//!         queue: orders.clone(),
//!         max: 1,
//!         key_max: None,
//!         lease: None,
//!         holder: HolderName::new("worker")?,
//!     }))
//!     .map_err(Box::<dyn std::error::Error>::from)
//! };
//! // The first key is busy with its first message; the second one flows.
//! for expected in [1, 3] {
//!     let Reply::Received(deliveries) = receive()? else { unreachable!() };
//!     assert_eq!(deliveries[0].token.sequence.0, expected);
//! }
//! let Reply::Received(deliveries) = receive()? else { unreachable!() };
//! assert!(deliveries.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The machine reads no clock, draws no random number and does no I/O: time and randomness come with the
//! command. Payload bytes stay in the log; the machine keeps a compact index entry per message.

mod codec;
mod columns;
mod command;
mod copies;
mod counters;
mod dedup;
mod effect;
mod exchanges;
mod live;
mod machine;
mod query;
mod reply;
mod schedules;
mod sequences;
mod settings;
mod slab;
mod table;
mod wheel;

pub use codec::{
    DecodeError,
    batch::{BatchDecoder, BatchRecord, RecordBatch},
    decode_record, encode_record, read_events, read_message,
};
pub use columns::ImageError;
pub use command::{
    AnyCommand, AppendEvents, Bind, Cancel, ChangeKey, ChangeKeyState, ChangeQueue, ChangeSchedule,
    Command, CreateExchange, CreateLedger, CreateQueue, DeleteExchange, DeleteLedger, DeleteQueue,
    DeleteSchedule, EngineCommand, Fenced, ForgetProducer, Hold, HoldTarget, IdAnswer, IdAnswers,
    IdSpace, IdsToIndex, KeyAction, LookedUp, Move, MoveReader, MoveTo, OpenProducer, Pause,
    Publish, Purge, PutSchedule, Receive, Reschedule, RunSchedule, ScheduleChange, SealLedger,
    SendMessage, Settle, SettleAction, Transact, TrimLedger, TypedCommand, Unbind, UpdateExchange,
    WriteState,
};
pub use copies::Copies;
pub use counters::{COUNTERS, Counter, CounterKind, DroppedCounts, QueueTotals};
pub use effect::{
    AppendedEvents, DeadLetterReason, DropReason, Effect, Effects, EventBlock, Failed, Payload,
    StoredEvent, StoredMessage,
};
pub use exchanges::{
    BindTo, Binding, BindingOptions, ExchangeKind, ExchangeNotes, KeyFrom, Published, Unroutable,
    filter::{Filter, FilterError, FilterScope},
    pattern::{HeaderPair, HeadersMatch, Pattern, PatternError, TopicPattern},
    reply::{
        BindingDescription, BindingsPage, Bound, Copied, CreatedExchange, ExchangeCounts,
        ExchangeDescription, ExchangesPage, Publication, RouteExplanation, RouteStep, StepOutcome,
    },
};
pub use live::{LiveMessage, LiveRange};
pub use machine::{
    ClockState, Deadlines, ExchangeError, ExchangeView, Frozen, Housekeeping, ImageLoader, KeyView,
    LeaseView, LedgerView, LiveBlock, Machine, MachineLimits, MessageState, MessageView,
    ProducerView, QueueView, RecordCounts, RecordsView, Route, ScheduleError, ScheduleView, Span,
    StateView, Target, TimingPart, Upcoming,
};
pub use query::{
    DescribeExchange, DescribeLedger, DescribeQueue, DescribeSchedule, ExplainKey, ExplainRoute,
    FindEvent, FindLookedUp, FindMessage, GetKeyState, GetRecord, ListBindings, ListExchanges,
    ListKeyStates, ListKeys, ListLedgers, ListMessages, ListProducers, ListQueues, ListSchedules,
    LocateEvents, Query, TypedQuery,
};
pub use reply::{
    BlockPlace, CreatedLedger, CreatedQueue, Decision, Delivery, EventPlaces, KeyHeld, KeyPage,
    KeyStatePage, KeyStateStatus, KeyStatus, KeyWait, LedgerDescription, LedgersPage, MessagePage,
    MessageStatus, MessageWait, MoveCursor, Moved, Origin, ProducerPage, ProducerStatus,
    QueryReply, QueueCounts, QueueDescription, QueueFigures, QueueLimited, QueuePage, Rejection,
    Reply, Sent, Settled, StaleReason, Stuck, StuckReason, Transacted,
};
pub use schedules::{
    DueSchedule, Firing, ScheduleCounts, ScheduleDescription, SchedulePut, ScheduleSpec,
    ScheduleStep, ScheduleTo, SchedulesPage,
};
pub use settings::{
    DedupScope, KeyPolicy, KeyProfile, Kind as SettingKind, QueueSettings, SETTINGS, Setting,
    SettingsError, SyncWindow, Value as SettingValue,
};

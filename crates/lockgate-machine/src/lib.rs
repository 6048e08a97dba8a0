//! All queue semantics of Lockgate as one pure, deterministic state machine.
//!
//! A [`Machine`] is driven in four steps, always in this order, by one caller:
//!
//! 1. [`Machine::tick`] until it returns `None`: effects of time that has passed (leases that ended,
//!    messages that came due). Each is logged and folded like any other effect.
//! 2. [`Machine::decide`]: what a command does, as [`Effect`]s, and its [`Reply`]. Changes nothing.
//! 3. The effects of one command are encoded as one log record ([`encode_record`]).
//! 4. [`Machine::fold`]: the only way state changes; cannot fail. Recovery is nothing but folding
//!    the log's records again.
//!
//! The machine reads no clock, draws no random number and does no I/O: time and randomness come in
//! with the command. Payload bytes stay in the log; the machine keeps a compact index entry per
//! message.

mod codec;
mod command;
mod dedup;
mod effect;
mod machine;
mod reply;
mod settings;
mod slab;
mod table;
mod wheel;

pub use codec::{DecodeError, decode_record, encode_record, read_message};
pub use command::{
    Command, CreateQueue, KeyAction, Query, Receive, SendMessage, Settle, SettleAction,
};
pub use effect::{DeadLetterReason, DropReason, Effect, Effects, StoredMessage};
pub use machine::{
    ClockState, Deadlines, KeySnapshot, LeaseSnapshot, Machine, MachineLimits, MessageSnapshot,
    MessageState, QueueSnapshot, Snapshot,
};
pub use reply::{
    Answer, Decision, Delivery, DroppedCounts, KeyStatus, KeyWait, Origin, QueueCounts,
    QueueDescription, QueueTotals, Rejection, Reply, Sent, Settled, StaleReason,
};
pub use settings::{
    DeadLetter, Dedup, DedupScope, KeyPolicy, KeyProfile, QueueSettings, Quota, SettingsError,
};

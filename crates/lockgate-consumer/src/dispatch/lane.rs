//! What is held: messages, and the lanes in which they wait for each other.

use std::sync::Arc;

use lockgate_core::{Key, Millis, Settlement, limits::Limit};

use super::{
    Cancelled,
    list::{Link, Linked, List},
};

/// A message under a lease.
#[derive(Debug)]
pub(super) struct Item<M> {
    pub(super) message: M,
    /// No other item ever has it.
    pub(super) number: u64,
    pub(super) source: u32,
    /// The one in which it stands.
    pub(super) lane: u32,
    pub(super) pack: Option<u32>,
    pub(super) bytes: u64,
    pub(super) attempt: u32,
    /// When its source accepted it, by the dispatcher's clock, which began at 0.
    pub(super) accepted: i64,
    /// Its source has told when that was.
    pub(super) is_age_told: bool,
    /// How the attempts failed that its source does not know of.
    pub(super) earlier: Option<Arc<str>>,
    /// When the lease ends; [`Millis::MAX`]: it was settled before the run.
    pub(super) ends: Millis,
    /// When the lease is looked at next.
    pub(super) look_at: Millis,
    pub(super) stage: Stage,
    /// It runs with no other.
    pub(super) alone: bool,
    /// A call may have settled it: its answer did not come.
    pub(super) may_be_settled: bool,
    /// What it is charged when it starts, where there are limits.
    pub(super) charge: Option<Box<Charge>>,
    pub(super) next: Link,
}

/// What a start is charged to the limits of the worker.
#[derive(Debug)]
pub(super) struct Charge {
    /// Where keys have limits: that of the message; `None`: messages without one are a group.
    pub(super) key: Option<Key>,
    /// 1 to [`UNITS_MAX`](lockgate_core::limits::UNITS_MAX).
    pub(super) cost: u64,
    /// When it started.
    pub(super) at: Millis,
}

/// Where an item is on its way.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// In the lane's queue: it waits, or runs as one of the first.
    Queued,
    /// In the lane's queue, but somebody else may have the message.
    Lost,
    /// In no list: how it has ended and when, while others of its pack have not.
    Ended(Settlement, Millis),
    /// In the lane's list of settlements.
    Settling(Settlement),
    /// The same, and the source has answered.
    Settled,
}

/// Messages of which one waits for the other: those of a key, those of a partition, or one alone.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) source: u32,
    /// What its messages are found by, if more may come.
    pub(super) name: Option<LaneName>,
    /// The hash of source and name.
    pub(super) hash: u64,
    /// The flow for which it stands in its ring, see [`Turns`](super::turns::Turns).
    pub(super) flow: Link,
    /// Whose turn it takes.
    pub(super) tenant: Option<Key>,
    pub(super) priority: u8,
    /// What waits or runs, in order.
    pub(super) queue: List,
    /// What is to be settled, in order.
    pub(super) settling: List,
    pub(super) state: LaneState,
    /// A settle call has items of it.
    pub(super) in_call: bool,
    /// It waits for the next settle call.
    pub(super) calls: bool,
    /// Settle calls in a row that are to be made again for it.
    pub(super) settle_failures: u32,
    pub(super) ready_since: Millis,
    /// The last failure, for those who ask.
    pub(super) error: Option<Arc<str>>,
    pub(super) next: Link,
}

/// How a lane is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LaneName {
    Key(Key),
    Partition(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneState {
    /// Nothing waits.
    Idle,
    /// Waits for its turn.
    Ready,
    Running(u32),
    /// Waits for a retry.
    Delayed(Millis),
    /// Waits until then for more messages to run with.
    Coalescing(Millis),
    /// Waits for a limit of its key until then; [`Millis::MAX`]: until something of the key ends.
    Limited(Millis, Limit),
}

impl LaneState {
    /// Whether it waits until that time.
    pub(super) fn is_until(self, until: Millis) -> bool {
        match self {
            Self::Delayed(at) | Self::Coalescing(at) | Self::Limited(at, _) => at == until,
            _ => false,
        }
    }

    /// Whether it waits for more than its turn.
    pub(super) fn waits(self) -> bool {
        matches!(
            self,
            Self::Delayed(_) | Self::Coalescing(_) | Self::Limited(..)
        )
    }
}

/// Messages that are being handled.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) lane: u32,
    pub(super) number: u64,
    pub(super) len: usize,
    pub(super) started: Millis,
    /// Told to end.
    pub(super) cancelled: Option<Cancelled>,
    /// Its messages are being acknowledged before it begins.
    pub(super) claiming: bool,
    /// They were.
    pub(super) claimed: bool,
}

impl<M> Linked for Item<M> {
    fn link(&self) -> Link {
        self.next
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.next
    }
}

impl Linked for Lane {
    fn link(&self) -> Link {
        self.next
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.next
    }
}

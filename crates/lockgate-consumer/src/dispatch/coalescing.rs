//! Runs that cover all that is here of a key.
//!
//! With [`Coalescing`] a run has as many messages of its key as are here, up to a bound. They are one piece of work: they
//! are settled with the run that covers them, and one that fails covers none of them. A message that arrives
//! while a run goes on waits for the next, so a run that has succeeded began behind every message that is
//! acknowledged for it.
//!
//! A lane may wait before it runs. Where the source hands out more of a key that is here, it waits here. One that locks
//! keys does not, so what is here goes back to it until the wait is over, and what has come by then comes along. It tells
//! when it accepted a message, and the wait goes by that.
//!
//! The rule is that of the coalescer ([`KeyState`](crate::coalesce::KeyState)), and not its machine: a lane has one run
//! and its queue anyway, and what waits are messages under leases, which are lost and settled one by one.

use lockgate_core::{KeyOrder, Millis, Settlement};

use super::{
    Dispatcher,
    lane::{LaneName, LaneState},
};

/// How messages of one key are covered by one run: all that are here, and when.
///
/// Only messages with a key, with [`Order::Key`](super::Order::Key). All times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// A run waits until the newest message of its key was accepted so long ago (*debounce*). 0, the default: it waits
    /// for none.
    pub quiet: Millis,
    /// It waits no longer than until its oldest message was accepted so long ago; [`quiet`](Self::quiet) or more.
    /// Default: 0.
    pub wait_max: Millis,
    /// The least time from the beginning of one run of a key to the next (*throttle*), up to
    /// [`PERIOD_MAX`](lockgate_core::limits::PERIOD_MAX). It is a [gap](lockgate_core::limits::Limits::gap) of each
    /// key; of two, the longer one counts. 0, the default: none.
    pub period: Millis,
    /// The most messages of a run, 1 or more. If there are so many, it waits for no more. Default: 100.
    pub messages_max: usize,
    /// The most bytes of a run of more than one message. Default: 1 MiB.
    pub bytes_max: u64,
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            quiet: 0,
            wait_max: 0,
            period: 0,
            messages_max: 100,
            bytes_max: 1 << 20,
        }
    }
}

impl<M: Clone> Dispatcher<M> {
    /// How the messages of a lane are coalesced, if they are.
    pub(super) fn coalescing(&self, at: u32) -> Option<Coalescing> {
        let lane = &self.lanes[at as usize];
        let coalescing = self.options.coalescing?;
        matches!(lane.name, Some(LaneName::Key(_))).then_some(coalescing)
    }

    /// Lets a lane wait for more messages before it runs its first `count`, which is all that may run now. Returns
    /// whether it waits.
    pub(super) fn wait_for_more(&mut self, at: u32, count: usize, now: Millis) -> bool {
        let Some(coalescing) = self.coalescing(at) else {
            return false;
        };
        let lane = &self.lanes[at as usize];
        if lane.queue.len() > count || count >= coalescing.messages_max {
            return false;
        }
        let (mut newest, mut oldest, mut is_told) = (i64::MIN, i64::MAX, true);
        for item in lane.queue.iter(&self.items) {
            let item = &self.items[item as usize];
            newest = newest.max(item.accepted);
            oldest = oldest.min(item.accepted);
            is_told &= item.is_age_told;
        }
        let until = after(newest, coalescing.quiet).min(after(oldest, coalescing.wait_max));
        if until <= now {
            return false;
        }
        let can = &self.sources[lane.source as usize].options.capabilities;
        let Some(first) = lane.queue.first().filter(|first| {
            // One that did not tell would begin the wait anew each time.
            can.key_order == KeyOrder::Locked
                && can.defer
                && is_told
                && !self.pack_has_begun(*first)
        }) else {
            self.lanes[at as usize].state = LaneState::Coalescing(until);
            self.delayed.add(until, at);
            // Lanes that were full before leave their times behind.
            let lanes = &self.lanes;
            self.delayed.compact(lanes.len(), |until, &at| {
                let lane = lanes.get(at as usize);
                lane.is_some_and(|lane| lane.state.is_until(until))
            });
            return true;
        };
        self.lanes[at as usize].queue.pop_front(&mut self.items);
        let delay = std::time::Duration::from_millis(until - now);
        self.wait(at, first, until - now, Settlement::Defer { delay }, now);
        true
    }

    /// A message has come behind others that wait for more: it may be the last one that the run has room for.
    pub(super) fn no_more_waits(&mut self, at: u32) {
        let lane = &mut self.lanes[at as usize];
        let is_full = lane.queue.len() >= self.options.run_max;
        if is_full && matches!(lane.state, LaneState::Coalescing(_)) {
            lane.state = LaneState::Idle;
        }
    }
}

/// A time of the dispatcher's clock; what was over before that began is over.
fn after(accepted: i64, span: Millis) -> Millis {
    let at = i128::from(accepted) + i128::from(span);
    Millis::try_from(at.max(0)).unwrap_or(Millis::MAX)
}

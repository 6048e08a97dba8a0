//! Settling: what is decided goes to the source in batches, in order within a lane.

use lockgate_core::{Backoff, Fate, KeyOrder, Millis, Settlement};

use super::{
    Action, Dispatcher, ItemId,
    lane::{Item, Stage},
};

/// Settle calls of one source at the same time.
const CALLS_MAX: usize = 4;

/// The waits after settle calls that the source could not take.
const AGAIN: Backoff = Backoff {
    first: 50,
    max: 5_000,
};

impl<M: Clone> Dispatcher<M> {
    /// Decides how an item that stands in no list is settled: at once, or when all of its pack have ended.
    pub(super) fn settle(&mut self, item: u32, settlement: Settlement) {
        let Item { pack, lane, .. } = self.items[item as usize];
        match pack {
            None => self.settle_in_lane(item, settlement),
            Some(pack) => {
                self.items[item as usize].stage = Stage::Ended(settlement, self.now);
                self.end_member(pack, lane);
            }
        }
    }

    /// Lets an item that stands in no list be settled.
    pub(super) fn settle_in_lane(&mut self, item: u32, settlement: Settlement) {
        let at = self.items[item as usize].lane;
        self.items[item as usize].stage = Stage::Settling(settlement);
        let settling = &mut self.lanes[at as usize].settling;
        settling.push_back(&mut self.items, item);
        self.call_later(at);
    }

    /// Lets a lane wait for the next settle call, unless one has items of it.
    fn call_later(&mut self, at: u32) {
        let lane = &mut self.lanes[at as usize];
        if !lane.in_call && !lane.calls && lane.settling.len() > 0 {
            lane.calls = true;
            self.sources[lane.source as usize].calls.push_back(at);
        }
    }

    /// A settle call, if there is something for it. A lane is in one call at a time, so that its
    /// settlements stay in order.
    pub(super) fn settlement(&mut self, number: usize, now: Millis) -> Option<Action<M>> {
        let source = &mut self.sources[number];
        while let Some((_, lanes)) = source.resting.take_first(now) {
            source.calls.extend(lanes);
        }
        if source.calls.is_empty() || source.settle_calls >= CALLS_MAX {
            return None;
        }
        let max = source.options.capabilities.settle_max;
        let mut items = Vec::with_capacity(max.min(source.calls.len()));
        // Those of a pack count as one, and are in one lane.
        let (mut count, mut pack) = (0, None);
        while count < max
            && let Some(at) = source.calls.pop_front()
        {
            let lane = &mut self.lanes[at as usize];
            lane.calls = false;
            lane.in_call = true;
            for place in lane.settling.iter(&self.items) {
                let item = &self.items[place as usize];
                if item.pack.is_none() || item.pack != pack {
                    if count == max {
                        break;
                    }
                    count += 1;
                    pack = item.pack;
                }
                if let Stage::Settling(settlement) = &item.stage {
                    let id = ItemId {
                        place,
                        number: item.number,
                    };
                    items.push((id, item.message.clone(), settlement.clone()));
                }
            }
        }
        source.settle_calls += 1;
        Some(Action::Settle {
            source: number,
            items,
        })
    }

    /// Takes the answers to a settle call, in its order. `random` is any number, each equally likely.
    ///
    /// [`Fate::Retry`] and [`Fate::Unknown`] are tried again until the lease ends, each time after a longer
    /// wait; other lanes do not wait for that. Settling twice does no harm, because a receipt settles its
    /// own lease only. There is one exception: where keys are not locked, an old receipt may still hide a
    /// message that somebody else has by then, so a failure is not told twice, nor a pack in which something
    /// failed. Everything else that failed
    /// leaves the message to the source, and counts as lost, or as unconfirmed if an earlier answer was
    /// unknown; but what was to be given back and is not held any more has been given back.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn settled(
        &mut self,
        source: usize,
        results: impl IntoIterator<Item = (ItemId, Result<(), Fate>)>,
        now: Millis,
        random: u64,
    ) {
        self.now = self.now.max(now);
        let locked = self.sources[source].options.capabilities.key_order == KeyOrder::Locked;
        let mut lanes: Vec<(u32, bool)> = Vec::new();
        for (id, result) in results {
            let Some(item) = self.items.get_mut(id.place as usize) else {
                continue;
            };
            if item.number != id.number {
                continue;
            }
            let at = item.lane;
            if lanes.last().is_none_or(|(last, _)| *last != at) {
                lanes.push((at, false));
            }
            let Stage::Settling(settlement) = &item.stage else {
                continue;
            };
            item.may_be_settled |= result == Err(Fate::Unknown);
            let has_failed = match item.pack {
                Some(pack) => self.packs[pack as usize].has_failed,
                None => matches!(settlement, Settlement::Nack { .. }),
            };
            let is_harmless = locked || !has_failed;
            let again = match result {
                Err(Fate::Retry) => now < item.ends,
                Err(Fate::Unknown) => now < item.ends && is_harmless,
                _ => false,
            };
            if again {
                lanes.last_mut().expect("it was just added").1 = true;
                continue;
            }
            let count = match (result, settlement) {
                (Err(Fate::Stale), Settlement::GiveBack) => &mut self.counts.given_back,
                (Err(Fate::Unknown), Settlement::Nack { .. }) => &mut self.counts.failed,
                (Err(_), _) if item.may_be_settled => &mut self.counts.unconfirmed,
                (Err(_), _) => &mut self.counts.lost,
                (Ok(()), Settlement::Ack) => &mut self.counts.acknowledged,
                (Ok(()), Settlement::Nack { .. }) => &mut self.counts.failed,
                (Ok(()), Settlement::Defer { .. } | Settlement::Hold { .. }) => {
                    &mut self.counts.deferred
                }
                (Ok(()), Settlement::Reject { .. }) => &mut self.counts.rejected,
                (Ok(()), Settlement::GiveBack) => &mut self.counts.given_back,
            };
            *count += 1;
            item.stage = Stage::Settled;
        }
        let state = &mut self.sources[source];
        state.settle_calls = state.settle_calls.saturating_sub(1);
        for (at, failed) in lanes {
            self.after_call(at, failed, now, random);
        }
    }

    /// Forgets what a call has settled of a lane, and lets the rest wait for the next one: after a failure,
    /// longer each time.
    fn after_call(&mut self, at: u32, failed: bool, now: Millis, random: u64) {
        let Some(lane) = self.lanes.get_mut(at as usize) else {
            return;
        };
        lane.in_call = false;
        let mut settling = std::mem::take(&mut lane.settling);
        let mut left = super::list::List::default();
        while let Some(item) = settling.pop_front(&mut self.items) {
            if self.items[item as usize].stage == Stage::Settled {
                self.retire(item);
            } else {
                left.push_back(&mut self.items, item);
            }
        }
        let lane = &mut self.lanes[at as usize];
        lane.settling = left;
        lane.settle_failures = if failed {
            lane.settle_failures.saturating_add(1)
        } else {
            0
        };
        if failed {
            lane.calls = true;
            let until = now + AGAIN.after(lane.settle_failures, random);
            self.sources[lane.source as usize].resting.add(until, at);
        }
        self.call_later(at);
        self.drop_lane(at);
    }
}

//! Messages that share a lease: those of a pack.
//!
//! They run one by one, as all others. How one of them ends is kept until all of them have ended: then they are settled
//! together, and leave with the answer. They count as one message where their source is concerned: for the room that is
//! left, for the messages of a call, and for their lease, which is extended for all of them at once.

use std::time::Duration;

use lockgate_core::{Millis, Settlement};
use smallvec::{SmallVec, smallvec};

use super::{
    Dispatcher, ItemId,
    lane::{Item, LaneState, Stage},
};

/// The messages of a pack that are here.
#[derive(Debug, Default)]
pub(super) struct Pack {
    /// All that arrived, in order.
    members: Vec<ItemId>,
    /// How many of them have not ended.
    open: usize,
    /// How many of them are here.
    here: usize,
    /// One of them has run here.
    has_begun: bool,
    /// One of them has failed, so that is what the source is told.
    pub(super) has_failed: bool,
    /// The look at the lease at which an extension was asked for last.
    asked: Option<Millis>,
}

impl<M: Clone> Dispatcher<M> {
    /// A message arrives. Returns whether it is the first of its pack, or in none.
    pub(super) fn join(&mut self, id: ItemId, pack: Option<u32>) -> bool {
        let Some(pack) = pack else { return true };
        let pack = &mut self.packs[pack as usize];
        pack.members.push(id);
        pack.open += 1;
        pack.here += 1;
        pack.members.len() == 1
    }

    /// A message leaves. Returns whether it was the last of its pack, or in none.
    pub(super) fn leave(&mut self, pack: Option<u32>) -> bool {
        let Some(at) = pack else { return true };
        let pack = &mut self.packs[at as usize];
        pack.here -= 1;
        let was_last = pack.here == 0;
        if was_last {
            self.packs.remove(at as usize);
        }
        was_last
    }

    /// The messages under the lease of this one; none if it is not here any more.
    pub(super) fn sharing(&self, id: ItemId) -> SmallVec<[ItemId; 1]> {
        match self.item(id).map(|item| item.pack) {
            None => SmallVec::new(),
            Some(None) => smallvec![id],
            Some(Some(pack)) => {
                let members = self.packs[pack as usize].members.iter().copied();
                members.filter(|id| self.item(*id).is_some()).collect()
            }
        }
    }

    pub(super) fn item(&self, id: ItemId) -> Option<&Item<M>> {
        let item = self.items.get(id.place as usize);
        item.filter(|item| item.number == id.number)
    }

    /// Whether no other message of the pack has asked for an extension at this look.
    pub(super) fn is_first_look(&mut self, pack: Option<u32>, at: Millis) -> bool {
        let pack = pack.map(|pack| &mut self.packs[pack as usize]);
        pack.is_none_or(|pack| pack.asked.replace(at) != Some(at))
    }

    /// A message runs.
    pub(super) fn begin_pack(&mut self, item: u32) {
        if let Some(pack) = self.items[item as usize].pack {
            self.packs[pack as usize].has_begun = true;
        }
    }

    /// Whether a message waits here and not in its source: something of its pack has run, and whoever gets the pack
    /// next may run that again.
    pub(super) fn pack_has_begun(&self, item: u32) -> bool {
        let pack = self.items[item as usize].pack;
        pack.is_some_and(|pack| self.packs[pack as usize].has_begun)
    }

    /// A message of a pack has ended, in this lane. If none is left that has not, all are settled, in the lane.
    pub(super) fn end_member(&mut self, pack: u32, lane: u32) {
        let all = &mut self.packs[pack as usize];
        all.open -= 1;
        if all.open > 0 {
            return;
        }
        for number in 0..all.members.len() {
            let all = &mut self.packs[pack as usize];
            let id = all.members[number];
            let Some(item) = self.items.get_mut(id.place as usize) else {
                continue;
            };
            if let Stage::Ended(how, since) = &item.stage
                && item.number == id.number
            {
                let waited = Duration::from_millis(self.now.saturating_sub(*since));
                let how = after(how.clone(), waited);
                all.has_failed |= matches!(how, Settlement::Nack { .. });
                item.lane = lane;
                self.settle_in_lane(id.place, how);
            }
        }
    }

    /// Gives back what has not begun of the pack of a message, where its messages wait for no others.
    pub(super) fn give_back_pack(&mut self, item: u32) {
        let number = self.items[item as usize].number;
        let place = item;
        for id in self.sharing(ItemId { place, number }) {
            let Some(item) = self.item(id).filter(|item| item.stage == Stage::Queued) else {
                continue;
            };
            let at = item.lane;
            let lane = &self.lanes[at as usize];
            if lane.name.is_none() && !matches!(lane.state, LaneState::Running(_)) {
                self.give_back_behind(at, 0);
                self.drop_lane(at);
            }
        }
    }
}

/// The same after a part of its delay has passed.
fn after(mut how: Settlement, waited: Duration) -> Settlement {
    match &mut how {
        Settlement::Nack { delay, .. } | Settlement::Defer { delay } => {
            *delay = delay.saturating_sub(waited);
        }
        // A hold of no time is none.
        Settlement::Hold { delay, .. } => {
            *delay = delay.saturating_sub(waited).max(Duration::from_millis(1));
        }
        Settlement::Ack | Settlement::Reject { .. } | Settlement::GiveBack => {}
    }
    how
}

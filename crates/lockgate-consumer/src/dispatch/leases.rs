//! Leases: extended while their messages are here, and lost when that fails.

use lockgate_core::{Fate, Millis};

use super::{
    Action, Cancelled, Dispatcher, ItemId, Mode, RunId,
    lane::{LaneState, Run, Stage},
    list::place,
};

/// A lease is looked at each time this part of it has passed, so that an extension may fail once or
/// twice before it ends.
const PART: u64 = 3;

/// The shortest time between two looks, in milliseconds: the parts get ever smaller if extensions fail.
const LOOK_MIN: Millis = 100;

impl<M: Clone> Dispatcher<M> {
    /// Looks at an item's lease when a part of it has passed, or at its end.
    pub(super) fn look_later(&mut self, place: u32, now: Millis) {
        let item = &mut self.items[place as usize];
        let left = item.ends.saturating_sub(now);
        let at = item
            .ends
            .min(now.saturating_add((left / PART).max(LOOK_MIN)));
        item.look_at = at;
        let number = item.number;
        self.looks.add(at, ItemId { place, number });
        let (items, held) = (&self.items, self.items.len());
        self.looks.compact(held, |at, id| {
            let item = items.get(id.place as usize);
            item.is_some_and(|item| item.number == id.number && item.look_at == at)
        });
    }

    /// Does what the passing of time brings.
    pub(super) fn pass_time(&mut self, now: Millis) {
        self.now = self.now.max(now);
        while let Some((at, ids)) = self.looks.take_first(now) {
            for id in ids {
                self.look(id, at, now);
            }
        }
        self.end_waits(now);
        while let Some((at, runs)) = self.overdue.take_first(now) {
            for id in runs {
                // A run begins anew when its messages are claimed.
                let run = self.runs.get(id.place as usize);
                let longest = self.options.run_time_max.unwrap_or(Millis::MAX);
                if run.is_some_and(|run| run.started.saturating_add(longest) <= at) {
                    self.cancel(id, Cancelled::TooLong);
                }
            }
        }
        if let Mode::Draining(deadline) = self.mode
            && now >= deadline
            && !std::mem::replace(&mut self.drain_over, true)
        {
            let id = |(at, run): (usize, &Run)| RunId {
                place: place(at),
                number: run.number,
            };
            let runs: Vec<RunId> = self.runs.iter().map(id).collect();
            for run in runs {
                self.cancel(run, Cancelled::Draining);
            }
        }
    }

    fn look(&mut self, id: ItemId, at: Millis, now: Millis) {
        let Some(item) = self.item(id) else {
            return;
        };
        let needs_none = item.ends == Millis::MAX;
        if item.look_at != at || needs_none {
            return;
        }
        if now >= item.ends {
            return self.lose(id);
        }
        let (source, pack) = (item.source as usize, item.pack);
        // What is to be settled needs its lease only until the answer; a call that takes longer fails. An
        // extension without an answer by now is asked for again.
        let needs_more = item.stage == Stage::Queued && self.is_first_look(pack, at);
        let source = &mut self.sources[source];
        if source.options.lease.is_some() && needs_more {
            source.extends.push_back(id);
        }
        self.look_later(id.place, now);
    }

    /// The message, and what shares its lease, may be somebody else's from now on. What waits behind it goes back to
    /// the source, which has the order: this one comes again before them.
    fn lose(&mut self, id: ItemId) {
        let mut lost = self.sharing(id);
        lost.retain(|id| {
            let item = &mut self.items[id.place as usize];
            // If it is to be settled, the source tells; if it was claimed, it needs no lease.
            let is_lost = item.stage == Stage::Queued && item.ends < Millis::MAX;
            if is_lost {
                item.stage = Stage::Lost;
            }
            is_lost
        });
        for id in lost {
            self.leave_lane(id);
        }
    }

    /// Lets go of a message that is lost, and of what waits behind it.
    fn leave_lane(&mut self, id: ItemId) {
        // It may have stood behind another one of its pack.
        let Some(at) = self.item(id).map(|item| item.lane) else {
            return;
        };
        let lane = &self.lanes[at as usize];
        let position = lane
            .queue
            .iter(&self.items)
            .position(|queued| queued == id.place);
        let Some(position) = position else { return };
        let mut kept = position;
        if let LaneState::Running(run) = lane.state {
            let Run { len, number, .. } = self.runs[run as usize];
            if position < len {
                self.cancel(RunId { place: run, number }, Cancelled::LeaseLost);
                kept = len;
            }
        }
        self.give_back_behind(at, kept);
        self.drop_lane(at);
    }

    fn cancel(&mut self, id: RunId, why: Cancelled) {
        let run = self.runs.get_mut(id.place as usize);
        // The answer to the claim tells what may run, and what was acknowledged is not dropped.
        let run =
            run.filter(|run| run.number == id.number && run.cancelled.is_none() && !run.claiming);
        if let Some(run) = run {
            run.cancelled = Some(why);
            self.cancels.push_back((id, why));
        }
    }

    /// An extension, if there is something to extend.
    pub(super) fn extension(&mut self, number: usize) -> Option<Action<M>> {
        let source = &mut self.sources[number];
        let lease = source.options.lease?;
        let max = source.options.capabilities.settle_max;
        while !source.extends.is_empty() {
            let count = source.extends.len().min(max);
            let ids: Vec<ItemId> = source.extends.drain(..count).collect();
            let items: Vec<_> = (ids.into_iter())
                .filter_map(|id| {
                    let item = self.items.get(id.place as usize)?;
                    let is_held = item.number == id.number && item.stage == Stage::Queued;
                    is_held.then(|| (id, item.message.clone()))
                })
                .collect();
            if !items.is_empty() {
                return Some(Action::Extend {
                    source: number,
                    items,
                    lease,
                });
            }
        }
        None
    }

    /// Takes the answers to an extension: how much longer each lease lasts, in milliseconds. Those that
    /// are not current any more are lost; the others that failed are tried again while their lease
    /// lasts.
    pub fn extended(
        &mut self,
        results: impl IntoIterator<Item = (ItemId, Result<Millis, Fate>)>,
        now: Millis,
    ) {
        self.now = self.now.max(now);
        for (id, result) in results {
            match result {
                Ok(left) => {
                    for id in self.sharing(id) {
                        let item = &mut self.items[id.place as usize];
                        // Otherwise it needs no lease any more.
                        if item.ends < Millis::MAX {
                            item.ends = now.saturating_add(left);
                            self.look_later(id.place, now);
                        }
                    }
                }
                Err(Fate::Stale | Fate::Closed) => self.lose(id),
                // The next look tries again, or finds the lease at its end.
                Err(_) => {}
            }
        }
    }

    /// A run's messages are being acknowledged before their handler begins: until
    /// [`claimed`](Self::claimed) it is not cancelled, and its time does not count.
    pub fn claiming(&mut self, run: RunId) {
        let found = self.runs.get_mut(run.place as usize);
        if let Some(found) = found.filter(|found| found.number == run.number) {
            found.claiming = true;
        }
    }

    /// A run's messages were acknowledged before their handler begins: their leases count no more, and their
    /// end settles nothing. Messages of which that failed are lost to the run; behind a failure, results may be
    /// missing. Returns which may be handled, in their order; if none, the run is to be
    /// [finished](Self::finished) at once.
    pub fn claimed(
        &mut self,
        run: RunId,
        results: impl IntoIterator<Item = Result<(), Fate>>,
        now: Millis,
    ) -> Vec<bool> {
        self.now = self.now.max(now);
        let found = self.runs.get_mut(run.place as usize);
        let Some(found) = found.filter(|found| found.number == run.number) else {
            return Vec::new();
        };
        (found.claiming, found.claimed, found.started) = (false, true, now);
        if let Some(longest) = self.options.run_time_max {
            self.overdue.add(now.saturating_add(longest), run);
        }
        let lane = &self.lanes[found.lane as usize];
        let items: Vec<u32> = lane.queue.iter(&self.items).take(found.len).collect();
        let results: Vec<_> = items.into_iter().zip(results).collect();
        // What was not asked for stands behind a failure, and goes back with the rest of the lane.
        let len = std::mem::replace(&mut found.len, results.len());
        let not_begun: Vec<u32> = lane
            .queue
            .iter(&self.items)
            .take(len)
            .skip(results.len())
            .collect();
        let may_run = results.into_iter().map(|(item, result)| {
            let item = &mut self.items[item as usize];
            // If it is unknown, it is perhaps gone, and must not run twice.
            match result {
                Ok(()) => (item.stage, item.ends) = (Stage::Queued, Millis::MAX),
                Err(fate) => {
                    item.stage = Stage::Lost;
                    item.may_be_settled = fate == Fate::Unknown;
                }
            }
            result.is_ok()
        });
        let may_run = may_run.collect();
        for item in not_begun {
            self.over(item, false, now);
        }
        if self.drain_over {
            self.cancel(run, Cancelled::Draining);
        }
        may_run
    }
}

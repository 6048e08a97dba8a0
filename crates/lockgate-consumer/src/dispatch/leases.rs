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

impl<M: Clone> Dispatcher<M> {
    /// Looks at an item's lease when a part of it has passed, or at its end.
    pub(super) fn look_later(&mut self, place: u32, now: Millis) {
        let item = &mut self.items[place as usize];
        let left = item.ends.saturating_sub(now);
        // The last part is not worth another extension.
        let at = if left < PART {
            item.ends
        } else {
            now + left / PART
        };
        item.look_at = at;
        let number = item.number;
        self.looks
            .entry(at)
            .or_default()
            .push(ItemId { place, number });
    }

    /// Does what the passing of time brings.
    pub(super) fn pass_time(&mut self, now: Millis) {
        self.now = self.now.max(now);
        while let Some(entry) = self.looks.first_entry().filter(|entry| *entry.key() <= now) {
            let at = *entry.key();
            for id in entry.remove() {
                self.look(id, at, now);
            }
        }
        self.end_waits(now);
        while let Some(entry) = self
            .overdue
            .first_entry()
            .filter(|entry| *entry.key() <= now)
        {
            for run in entry.remove() {
                self.cancel(run, Cancelled::TooLong);
            }
        }
        if let Mode::Draining(deadline) = self.mode
            && now >= deadline
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
        let Some(item) = self.items.get_mut(id.place as usize) else {
            return;
        };
        if item.number != id.number || item.look_at != at {
            return;
        }
        if now >= item.ends {
            return self.lose(id.place);
        }
        let lane = &self.lanes[item.lane as usize];
        let source = &mut self.sources[lane.source as usize];
        // What is to be settled needs its lease only until the answer; a call that takes longer fails.
        if !item.extending && source.options.lease.is_some() && item.stage == Stage::Queued {
            item.extending = true;
            source.extends.push(id);
        }
        self.look_later(id.place, now);
    }

    /// The message may be somebody else's from now on.
    fn lose(&mut self, place: u32) {
        let item = &mut self.items[place as usize];
        if item.stage != Stage::Queued {
            return; // the source tells, if it is to be settled
        }
        item.stage = Stage::Lost;
        let lane = &self.lanes[item.lane as usize];
        let LaneState::Running(run) = lane.state else {
            return; // dropped before its run
        };
        let running = self.runs[run as usize].len;
        let runs = lane.queue.iter(&self.items).take(running);
        if runs.into_iter().any(|running| running == place) {
            let number = self.runs[run as usize].number;
            self.cancel(RunId { place: run, number }, Cancelled::LeaseLost);
        }
    }

    fn cancel(&mut self, id: RunId, why: Cancelled) {
        let run = self.runs.get_mut(id.place as usize);
        let run = run.filter(|run| run.number == id.number && !run.cancelled);
        if let Some(run) = run {
            run.cancelled = true;
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
            let item = self.items.get_mut(id.place as usize);
            let Some(item) = item.filter(|item| item.number == id.number) else {
                continue;
            };
            item.extending = false;
            match result {
                Ok(left) => {
                    item.ends = now.saturating_add(left);
                    self.look_later(id.place, now);
                }
                Err(Fate::Stale | Fate::Closed) => self.lose(id.place),
                // The next look tries again, or finds the lease at its end.
                Err(_) => {}
            }
        }
    }
}

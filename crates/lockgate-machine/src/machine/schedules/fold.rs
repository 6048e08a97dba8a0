//! Folds what happens to schedules.

use std::sync::Arc;

use lockgate_core::{Overlap, ScheduleId, ScheduleName, WallTime};

use super::state::ScheduleState;
use crate::{
    Firing, ScheduleSpec,
    counters::TOTAL_MAX,
    machine::{Machine, state::Timer},
    slab::NONE,
};

/// What of a schedule a caller sets, besides what it does.
pub(in crate::machine) struct ScheduleSet<'a> {
    pub(in crate::machine) name: &'a ScheduleName,
    pub(in crate::machine) generation: u64,
    pub(in crate::machine) next: Option<WallTime>,
    pub(in crate::machine) planned: Option<WallTime>,
    pub(in crate::machine) anchor: WallTime,
    pub(in crate::machine) at: WallTime,
}

impl Machine {
    pub(in crate::machine) fn fold_schedule_set(
        &mut self,
        schedule: ScheduleId,
        set: &ScheduleSet<'_>,
        spec: &Arc<ScheduleSpec>,
    ) -> Option<()> {
        let schedules = &mut self.schedules;
        // A schedule keeps its name.
        let own = schedules.with_id(schedule);
        if schedule.0 == 0 || own.is_some_and(|(_, state)| state.name != *set.name) {
            return None;
        }
        schedules.changed_at = self.folding_at;
        schedules.revision = schedules.revision.max(set.generation);
        // Another one of the name is there only if the record of its deletion was lost.
        let other = schedules
            .named(set.name)
            .map(|(row, state)| (row, state.id));
        if let Some((row, _)) = other.filter(|(_, id)| *id != schedule) {
            self.disarm(row);
            self.schedules.remove(row);
        }
        let row = match self.schedules.with_id(schedule).map(|(row, _)| row) {
            Some(row) => {
                self.disarm(row);
                let state = &mut self.schedules.rows[row];
                let before = state.bytes();
                state.spec = spec.clone();
                let after = state.bytes();
                self.schedules.bytes = self.schedules.bytes - before + after;
                row
            }
            None => {
                let schedules = &mut self.schedules;
                schedules.made = schedules.made.max(schedule.0);
                schedules.insert(ScheduleState {
                    created: set.at,
                    ..ScheduleState::new(schedule, set.name.clone(), spec.clone())
                })
            }
        };
        let state = &mut self.schedules.rows[row];
        state.generation = set.generation;
        state.changed = set.at;
        state.anchor = set.anchor;
        // It waited for a time that may be another one now.
        state.waited &= state.next == set.next;
        (state.next, state.planned) = (set.next, set.planned);
        self.arm(row);
        Some(())
    }

    pub(in crate::machine) fn fold_schedule_changed(
        &mut self,
        schedule: ScheduleId,
        generation: u64,
        paused: bool,
        (next, planned): (Option<WallTime>, Option<WallTime>),
        at: WallTime,
    ) -> Option<()> {
        let (row, _) = self.schedules.with_id(schedule)?;
        self.disarm(row);
        let schedules = &mut self.schedules;
        schedules.changed_at = self.folding_at;
        schedules.revision = schedules.revision.max(generation);
        let state = &mut schedules.rows[row];
        state.generation = generation;
        state.changed = at;
        state.paused = paused;
        state.waited = false;
        (state.next, state.planned) = (next, planned);
        self.arm(row);
        Some(())
    }

    pub(in crate::machine) fn fold_schedule_deleted(&mut self, schedule: ScheduleId) -> Option<()> {
        let (row, _) = self.schedules.with_id(schedule)?;
        self.disarm(row);
        self.schedules.changed_at = self.folding_at;
        self.schedules.remove(row);
        Some(())
    }

    pub(in crate::machine) fn fold_schedule_stepped(
        &mut self,
        schedule: ScheduleId,
        firing: Option<Firing>,
        replaced: bool,
        missed: u64,
        next: Option<WallTime>,
    ) -> Option<()> {
        let (row, _) = self.schedules.with_id(schedule)?;
        self.disarm(row);
        let state = &mut self.schedules.rows[row];
        let counts = &mut state.counts;
        let add = |count: &mut u64, more: u64| *count = count.saturating_add(more).min(TOTAL_MAX);
        add(&mut counts.missed, missed);
        add(&mut counts.replaced, u64::from(replaced));
        let is_by_hand = firing.is_some_and(|firing| firing.scheduled.is_none());
        match firing {
            Some(Firing {
                scheduled: None, ..
            }) => add(&mut counts.by_hand, 1),
            Some(Firing { message: None, .. }) => add(&mut counts.overlapped, 1),
            Some(_) => add(&mut counts.fired, 1),
            None => {}
        }
        // What was not sent leaves the last firing the last one.
        if let Some(firing) = firing.filter(|firing| firing.message.is_some()) {
            state.last = Some(firing);
        }
        if !is_by_hand {
            state.waited = false;
            (state.next, state.planned) = (next, None);
        }
        self.arm(row);
        Some(())
    }

    /// Puts a schedule into no place.
    fn disarm(&mut self, row: u32) {
        self.schedules.take_out(row);
        let state = &mut self.schedules.rows[row];
        if state.timer != NONE {
            self.wall.remove(std::mem::replace(&mut state.timer, NONE));
        }
    }

    /// Lets a schedule in no place come due at its next time, if it has one and is not paused.
    fn arm(&mut self, row: u32) {
        let state = &mut self.schedules.rows[row];
        if let Some(next) = state.next
            && !state.paused
        {
            let order = u64::from(state.id.0);
            let timer = Timer::Schedule(row).to_bits();
            state.timer = self.wall.insert(next.0, order, timer);
        }
        self.schedules.note_over(row);
    }

    /// The timer of a schedule was taken out of its wheel.
    pub(in crate::machine) fn fire_schedule(&mut self, row: u32) {
        if let Some(state) = self.schedules.rows.get_mut(row) {
            state.timer = NONE;
            self.place_schedule(row);
        }
    }

    /// The time of a schedule has come: it is due, or waits for the message of its last firing.
    fn place_schedule(&mut self, row: u32) {
        let state = &self.schedules.rows[row];
        let waits = state.spec.overlap == Overlap::Queue && self.unsettled(state).is_some();
        let now = self.clock.now.wall;
        self.schedules.come_due(row, waits, now);
    }

    /// After an image was loaded: those whose timer had fired.
    pub(in crate::machine) fn place_schedules(&mut self) {
        let rows = self.schedules.rows.iter();
        let fired =
            rows.filter(|(_, state)| state.timer == NONE && !state.paused && state.next.is_some());
        let fired: Vec<u32> = fired.map(|(row, _)| row).collect();
        for row in fired {
            self.place_schedule(row);
        }
        let rows = self.schedules.rows.iter().map(|(row, _)| row);
        for row in rows.collect::<Vec<_>>() {
            self.schedules.note_over(row);
        }
    }
}

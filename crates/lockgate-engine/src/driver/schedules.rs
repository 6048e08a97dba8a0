//! Schedules fire: the machine says which are due, the calendar what follows, and the machine decides that as a command.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{MachineTime, Millis, Now, ScheduleId};
use lockgate_machine::{DueSchedule, EngineCommand, QueryReply, ScheduleDescription, ScheduleStep};
use lockgate_schedule::{Due, plan};

use super::{Driver, Ticket, Wait, copying::COPIES_PER_GROUP};

/// Steps of schedules in one group: a few milliseconds. Callers are served between groups.
const STEPS_PER_GROUP: u64 = 64;

/// To compute so many missed times takes about as long as a step.
const MISSED_PER_STEP: u64 = 50;

/// How many copies the schedules of a group may publish, about: half of what a group may.
const COPIES_MAX: u64 = COPIES_PER_GROUP / 2;

/// A schedule that stays due is tried again after so long, and then after twice as long each time,
const RETRY_MIN: Millis = 1_000;
/// but not after more than this.
const RETRY_MAX: Millis = 60_000;

/// Due schedules that did not fire. Lives in memory: after a start each is tried at once.
#[derive(Default)]
pub(super) struct Schedules {
    stuck: BTreeMap<ScheduleId, Stuck>,
    /// When each of them is tried again.
    tries: BTreeSet<(MachineTime, ScheduleId)>,
}

struct Stuck {
    generation: u64,
    /// Why. `None`: its time is still to come, because the clock went back.
    problem: Option<Arc<str>>,
    pause: Millis,
    try_at: MachineTime,
}

impl Schedules {
    /// When the next one is tried again.
    pub(super) fn next_deadline(&self) -> Option<MachineTime> {
        self.tries.first().map(|(at, _)| *at)
    }

    /// Takes one that is to be tried again by `now`.
    fn pop_try(&mut self, now: MachineTime) -> Option<ScheduleId> {
        let &(at, id) = self.tries.first()?;
        (at <= now).then(|| {
            self.tries.pop_first();
            id
        })
    }

    fn forget(&mut self, id: ScheduleId) {
        if let Some(stuck) = self.stuck.remove(&id) {
            self.tries.remove(&(stuck.try_at, id));
        }
    }

    fn note(&mut self, schedule: &DueSchedule, problem: Option<Arc<str>>, now: MachineTime) {
        let id = schedule.id;
        let before = self.stuck.get(&id);
        let pause = match (before, &problem) {
            (Some(stuck), Some(_)) => (stuck.pause * 2).min(RETRY_MAX),
            _ => RETRY_MIN,
        };
        self.forget(id);
        let try_at = now.plus(pause);
        self.tries.insert((try_at, id));
        let stuck = Stuck {
            generation: schedule.generation,
            problem,
            pause,
            try_at,
        };
        self.stuck.insert(id, stuck);
    }

    fn tell(&self, schedule: &mut ScheduleDescription) {
        let stuck = self.stuck.get(&schedule.id);
        // Whoever has changed the schedule may have mended it.
        let stuck = stuck.filter(|stuck| stuck.generation == schedule.generation);
        schedule.problem = stuck.and_then(|stuck| stuck.problem.clone());
    }

    /// Adds to an answer why schedules do not fire.
    pub(super) fn tell_problems(&self, reply: &mut QueryReply) {
        match reply {
            QueryReply::Schedule(schedule) => self.tell(schedule),
            QueryReply::Schedules(page) => page.schedules.iter_mut().for_each(|it| self.tell(it)),
            _ => {}
        }
    }
}

impl<T: Ticket> Driver<T> {
    /// Whether there are steps to take at once.
    pub(super) fn has_steps(&self) -> bool {
        self.machine.has_due_schedules() && self.stopped.is_none()
    }

    /// Takes steps of due schedules, up to a bound. Begins the group: publishes that wait come behind it.
    pub(super) fn run_schedules(&mut self, now: Now) {
        let (mut steps, mut tries_first) = (0, false);
        while steps < STEPS_PER_GROUP && self.copying.copies <= COPIES_MAX {
            // By turns, so that neither many that are stuck nor many that come due keep the others waiting.
            tries_first = !tries_first;
            let fresh = match tries_first {
                true => None,
                false => self.machine.take_due_schedule(),
            };
            let due = match fresh {
                Some(due) => Some(due),
                None => match self.schedules.pop_try(now.machine) {
                    Some(id) => self.due_again(id),
                    None => match self.machine.take_due_schedule() {
                        Some(due) => Some(due),
                        None => return,
                    },
                },
            };
            steps += 1;
            if let Some(due) = due {
                steps += self.take_step(&due, now) / MISSED_PER_STEP;
            }
        }
    }

    /// A schedule that did not fire before, if it is still due.
    fn due_again(&mut self, id: ScheduleId) -> Option<DueSchedule> {
        let due = self.machine.due_schedule(id);
        if due.is_none() {
            // It was deleted, or waits for another time.
            self.schedules.forget(id);
        }
        due
    }

    /// Returns how many missed times it looked at.
    fn take_step(&mut self, schedule: &DueSchedule, now: Now) -> u64 {
        let mut missed = 0;
        let spec = &schedule.spec;
        let due = Due {
            timing: &spec.timing,
            anchor: schedule.anchor,
            catch_up: spec.catch_up,
            late_max: spec.late_max,
            next: schedule.next,
            planned: schedule.planned,
            waited: schedule.waited,
        };
        let problem = match plan(&due, self.past(now).wall) {
            Ok(None) => None,
            Err(error) => Some(error.to_string().into()),
            Ok(Some(planned)) => {
                missed = planned.missed;
                let step = EngineCommand::StepSchedule(ScheduleStep {
                    schedule: schedule.id,
                    generation: schedule.generation,
                    from: schedule.next,
                    fires: planned.fires,
                    missed: planned.missed,
                    next: planned.next,
                });
                let (result, wait) = self.run_command(&step, now);
                // The next time of one that is late has come too: its timer fires in the next group.
                let goes_on = planned.next.is_some_and(|next| next <= self.past(now).wall);
                self.is_behind |= goes_on && result.is_ok();
                // Nobody waits for the answer, but receives wait for the message, at level `disk` until it is durable.
                if let Wait::Sync(position) = wait {
                    self.promised = self.promised.max(position);
                }
                result.err().map(|rejection| rejection.to_string().into())
            }
        };
        let still = self.machine.due_schedule(schedule.id);
        if still.is_some_and(|still| still.next == schedule.next) {
            self.schedules.note(schedule, problem, now.machine);
        } else {
            self.schedules.forget(schedule.id);
        }
        missed
    }
}

//! Schedules: messages that the shard sends by itself, at times that somebody outside computes.
//!
//! - `state`: what the machine holds of them, and the same in an image. `fold`: how it changes.
//!
//! A schedule with a next time is in one of these places:
//!
//! - *armed*: it has a timer by wall time.
//! - *due*: its timer has fired. The engine computes a [`ScheduleStep`] and gives it as a command, which arms the schedule for
//!   the time after, or ends it.
//! - *waiting*: its timer has fired, the message of its last firing is still in its queue, and it
//!   [waits](Overlap::Queue) for that. When the message leaves, the schedule is due.
//!
//! A paused schedule, and one without a next time, are in none. One that was to fire once and has stays to be seen, until another one
//! needs its place.
//!
//! # Invariants
//! - A step does something only for the generation and the next time for which it was computed, and its time has come: a
//!   schedule never fires early, and for each of its times once. Step and message are in one record.
//! - A generation is never given twice, also not to schedules of one name.

mod fold;
mod state;

use lockgate_core::{
    Incarnation, Level, Message, MessageId, Now, Overlap, Position, ScheduleId, ScheduleName,
    Timing, UniqueId, WallTime, with_prefix,
};

use self::state::ScheduleState;
pub use self::state::ScheduleView;
pub(super) use self::{fold::ScheduleSet, state::Schedules};
use super::{
    Machine,
    draft::Draft,
    send::{Outgoing, check_range},
    state::{State, U48},
};
use crate::{
    ChangeSchedule, DeleteSchedule, DropReason, DueSchedule, Effect, ExchangeError, Firing,
    ListSchedules, Payload, Publish, PutSchedule, Query, Rejection, Reply, RunSchedule,
    ScheduleChange, ScheduleDescription, SchedulePut, ScheduleSpec, ScheduleStep, ScheduleTo,
    SchedulesPage, exchanges::envelope::instant,
};

/// A part of a timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimingPart {
    /// The period of a fixed rate.
    Period,
    /// The cron expression.
    Cron,
    /// Its time zone.
    Zone,
}

/// Why a command for a schedule cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// There is no schedule of that name.
    #[error("schedule {schedule} does not exist")]
    NotFound { schedule: ScheduleName },
    /// It was changed, or made again.
    #[error(
        "schedule {schedule} has generation {is}, and not {asked}: somebody has changed it; look at it and ask again"
    )]
    Generation {
        schedule: ScheduleName,
        asked: u64,
        /// 0: there is no schedule of that name.
        is: u64,
    },
    /// Something that a schedule cannot have.
    #[error("a schedule {what}")]
    Spec {
        /// What it is not, such as `sends messages without a due time`.
        what: &'static str,
    },
    /// Its timing is none. The machine knows no calendar: whoever gives it a command says this.
    #[error("{what}")]
    Timing {
        /// The part of the timing that is wrong, if one is.
        part: Option<TimingPart>,
        /// What is wrong.
        what: String,
    },
    /// The queue or exchange would refuse its messages.
    #[error("schedule {schedule} could not send its message: {source}")]
    Target {
        schedule: ScheduleName,
        source: Box<Rejection>,
    },
    /// The message of its last firing is still there, and it does not fire beside that.
    #[error(
        "schedule {schedule} does not fire while its last message is there: {message} is in its queue, and overlap is {}",
        overlap.name()
    )]
    Unsettled {
        schedule: ScheduleName,
        message: MessageId,
        overlap: Overlap,
    },
}

/// How many schedules that are over make room for one.
const FOR_ROOM_MAX: usize = 64;

impl Machine {
    /// The record of the log that must be durable before anything is told of schedules. `None`: all are.
    #[must_use]
    pub fn schedules_rest_on(&self) -> Option<Position> {
        self.unless_durable(self.schedules.changed_at)
    }

    /// How many schedules there are, how many of them are due or wait, and what they take of the memory for them.
    #[must_use]
    pub fn schedule_figures(&self) -> (u64, u64, u64) {
        let schedules = &self.schedules;
        (
            schedules.rows.len() as u64,
            schedules.due() as u64,
            schedules.bytes,
        )
    }

    /// The schedules that are due, the earliest first.
    pub fn due_schedules(&self) -> impl Iterator<Item = DueSchedule> {
        self.schedules
            .due_rows()
            .filter_map(|row| self.due_row(row))
    }

    /// The schedule with that number, if it is due.
    #[must_use]
    pub fn due_schedule(&self, id: ScheduleId) -> Option<DueSchedule> {
        let (row, _) = self.schedules.with_id(id)?;
        self.due_row(row).filter(|_| self.schedules.is_due(row))
    }

    /// Whether [`take_due_schedule`](Self::take_due_schedule) has one.
    #[must_use]
    pub fn has_due_schedules(&self) -> bool {
        self.schedules.has_untold()
    }

    /// The earliest schedule that came due and was not taken here since. Compute the step and give it as a command; one that stays
    /// due does not come again here.
    pub fn take_due_schedule(&mut self) -> Option<DueSchedule> {
        let row = self.schedules.take_untold()?;
        self.due_row(row)
    }

    fn due_row(&self, row: u32) -> Option<DueSchedule> {
        let state = self.schedules.rows.get(row)?;
        Some(DueSchedule {
            id: state.id,
            name: state.name.clone(),
            generation: state.generation,
            spec: state.spec.clone(),
            anchor: state.anchor,
            next: state.next?,
            planned: state.planned,
            waited: state.waited,
        })
    }

    fn schedule_named(&self, name: &ScheduleName) -> Result<(u32, &ScheduleState), ScheduleError> {
        self.schedules.named(name).ok_or_else(|| {
            let schedule = name.clone();
            ScheduleError::NotFound { schedule }
        })
    }

    /// The schedule of that name, if it has the generation that is asked for.
    fn schedule_as_asked(
        &self,
        name: &ScheduleName,
        generation: Option<u64>,
    ) -> Result<(u32, &ScheduleState), ScheduleError> {
        let (row, state) = self.schedule_named(name)?;
        check_generation(name, generation, state.generation)?;
        Ok((row, state))
    }

    /// The level of what callers change.
    fn schedule_level(&self) -> Level {
        self.limits.log_level.min(Level::Disk)
    }

    pub(super) fn decide_put_schedule(
        &self,
        draft: &mut Draft,
        put: &PutSchedule,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.schedules_rest_on());
        let PutSchedule {
            name,
            spec,
            next,
            generation,
        } = put;
        spec.check()?;
        let present = self.schedules.named(name);
        check_generation(
            name,
            *generation,
            present.map_or(0, |(_, state)| state.generation),
        )?;
        if let Some((_, state)) = present
            && state.spec == *spec
        {
            return Ok(Reply::SchedulePut(Box::new(SchedulePut {
                created: false,
                changed: false,
                schedule: self.describe_schedule(state),
            })));
        }
        let for_room = self.room_for(name, spec, present.map(|(_, state)| state))?;
        self.try_out(name, spec, now)?;
        let same_timing = present
            .map(|(_, state)| state)
            .filter(|state| state.spec.timing == spec.timing);
        let (next, planned, anchor) = match same_timing {
            Some(state) => (state.next, state.planned, state.anchor),
            None => {
                let next = match spec.timing {
                    Timing::At(at) => Some(at),
                    Timing::Every { .. } | Timing::Cron { .. } => *next,
                };
                if next.is_none() {
                    let what = "the schedule would never fire: its timing has no time that is still to come";
                    let (part, what) = (None, what.into());
                    return Err(ScheduleError::Timing { part, what }.into());
                }
                check_range(
                    "time of a schedule",
                    next.map_or(0, |next| next.0),
                    0,
                    U48::MAX,
                )?;
                (next, None, next.unwrap_or_default())
            }
        };
        let schedule = match present {
            Some((_, state)) => state.id,
            None => self.schedules.next_id()?,
        };
        let generation = self.schedules.next_generation()?;
        for schedule in for_room {
            draft.add(Effect::ScheduleDeleted { schedule }, self.schedule_level());
        }
        draft.add(
            Effect::ScheduleSet {
                schedule,
                name: name.clone(),
                generation,
                next,
                planned,
                anchor,
                at: now.wall,
                spec: spec.clone(),
            },
            self.schedule_level(),
        );
        let is_paused = present.is_some_and(|(_, state)| state.paused);
        let as_set = ScheduleState {
            paused: is_paused,
            counts: present.map_or_else(Default::default, |(_, state)| state.counts),
            last: present.and_then(|(_, state)| state.last),
            created: present.map_or(now.wall, |(_, state)| state.created),
            changed: now.wall,
            generation,
            next,
            planned,
            anchor,
            ..ScheduleState::new(schedule, name.clone(), spec.clone())
        };
        Ok(Reply::SchedulePut(Box::new(SchedulePut {
            created: present.is_none(),
            changed: true,
            schedule: self.describe_schedule(&as_set),
        })))
    }

    /// The schedules that are over and make room for another one. Refuses what would take more than schedules may all the same.
    fn room_for(
        &self,
        name: &ScheduleName,
        spec: &ScheduleSpec,
        present: Option<&ScheduleState>,
    ) -> Result<Vec<ScheduleId>, Rejection> {
        let rows_max = u64::from(self.limits.schedules_max);
        let bytes_max = self.limits.schedule_bytes_max;
        let before = present.map_or(0, ScheduleState::bytes);
        let mut rows = self.schedules.rows.len() as u64 + u64::from(present.is_none());
        let mut bytes = self.schedules.bytes - before + state::bytes_of(name, spec);
        let over = self.schedules.over().filter(|over| over.name != *name);
        let mut over = over.take(FOR_ROOM_MAX);
        let mut for_room = Vec::new();
        while rows > rows_max || bytes > bytes_max {
            let Some(next) = over.next() else {
                let (what, max) = match rows > rows_max {
                    true => ("schedules", rows_max),
                    false => ("bytes of schedules", bytes_max),
                };
                return Err(Rejection::ShardFull { what, max });
            };
            for_room.push(next.id);
            rows -= 1;
            bytes -= next.bytes();
        }
        Ok(for_room)
    }

    /// Refuses a schedule whose messages its queue or exchange would refuse as things are now, unless that may pass.
    fn try_out(&self, name: &ScheduleName, spec: &ScheduleSpec, now: Now) -> Result<(), Rejection> {
        let mut draft = Draft::default();
        let tried = ScheduleState::new(ScheduleId(u32::MAX), name.clone(), spec.clone().into());
        match self.draft_firing(&mut draft, &tried, Some(now.wall), now) {
            Ok(_) => Ok(()),
            Err(source) if may_pass(&source) => Ok(()),
            Err(source) => Err(ScheduleError::Target {
                schedule: name.clone(),
                source: Box::new(source),
            }
            .into()),
        }
    }

    pub(super) fn decide_change_schedule(
        &self,
        draft: &mut Draft,
        change: &ChangeSchedule,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.schedules_rest_on());
        let ChangeSchedule {
            name,
            change,
            generation,
        } = change;
        let (_, state) = self.schedule_as_asked(name, *generation)?;
        let mut changed = state.clone();
        match *change {
            ScheduleChange::Pause => changed.paused = true,
            ScheduleChange::Resume { next } => {
                let passed = state.next.is_some_and(|next| next <= now.wall);
                if state.paused && passed {
                    check_range(
                        "time of a schedule",
                        next.map_or(0, |next| next.0),
                        0,
                        U48::MAX,
                    )?;
                    (changed.next, changed.planned) = (next, None);
                }
                changed.paused = false;
            }
            ScheduleChange::Move(at) => {
                check_range("time of a schedule", at.0, 0, U48::MAX)?;
                // One that is over does not begin again behind that time.
                let over = match state.spec.timing {
                    Timing::At(at) => Some(at),
                    Timing::Every { .. } | Timing::Cron { .. } => {
                        state.last.and_then(|last| last.scheduled)
                    }
                };
                changed.planned = state.planned.or(state.next).or(over);
                changed.next = Some(at);
            }
        }
        let is_same = changed.paused == state.paused
            && changed.next == state.next
            && !matches!(change, ScheduleChange::Move(_));
        if !is_same {
            changed.generation = self.schedules.next_generation()?;
            changed.changed = now.wall;
            draft.add(
                Effect::ScheduleChanged {
                    schedule: state.id,
                    generation: changed.generation,
                    paused: changed.paused,
                    next: changed.next,
                    planned: changed.planned,
                    at: now.wall,
                },
                self.schedule_level(),
            );
        }
        Ok(Reply::Schedule(Box::new(self.describe_schedule(&changed))))
    }

    pub(super) fn decide_delete_schedule(
        &self,
        draft: &mut Draft,
        delete: &DeleteSchedule,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.schedules_rest_on());
        let (_, state) = self.schedule_as_asked(&delete.name, delete.generation)?;
        let deleted = Effect::ScheduleDeleted { schedule: state.id };
        draft.add(deleted, self.schedule_level());
        Ok(Reply::Done)
    }

    pub(super) fn decide_run_schedule(
        &self,
        draft: &mut Draft,
        run: &RunSchedule,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.schedules_rest_on());
        let (_, state) = self.schedule_as_asked(&run.name, run.generation)?;
        let unsettled = state.last.and_then(|last| last.message);
        if let (Overlap::Skip | Overlap::Queue, Some(message), Some(_)) =
            (state.spec.overlap, unsettled, self.unsettled(state))
        {
            return Err(ScheduleError::Unsettled {
                schedule: run.name.clone(),
                message,
                overlap: state.spec.overlap,
            }
            .into());
        }
        let (message, replaced) = self.draft_firing(draft, state, None, now)?;
        let firing = Firing {
            scheduled: None,
            at: now.wall,
            message: Some(message),
        };
        self.draft_step(draft, state, Some(firing), replaced, (0, state.next));
        Ok(Reply::ScheduleRun(message))
    }

    /// A step that was computed for another state of the schedule does nothing.
    pub(super) fn decide_step_schedule(
        &self,
        draft: &mut Draft,
        step: &ScheduleStep,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let ScheduleStep {
            schedule,
            generation,
            from,
            fires,
            missed,
            next,
        } = *step;
        let Some((row, state)) = self.schedules.with_id(schedule) else {
            return Ok(Reply::Done);
        };
        let is_current = state.generation == generation
            && state.next == Some(from)
            && self.schedules.is_due(row);
        let has_come = from <= now.wall && fires.is_none_or(|at| from <= at && at <= now.wall);
        let goes_on = next.is_none_or(|next| next > fires.unwrap_or(from));
        if !is_current || !has_come || !goes_on {
            return Ok(Reply::Done);
        }
        check_range(
            "time of a schedule",
            next.map_or(0, |next| next.0),
            0,
            U48::MAX,
        )?;
        let mut replaced = false;
        let firing = match fires {
            None => None,
            Some(at) => {
                let message = match (state.spec.overlap, self.unsettled(state)) {
                    // It comes again when the message has left.
                    (Overlap::Queue, Some(_)) => return Ok(Reply::Done),
                    (Overlap::Skip, Some(_)) => None,
                    _ => {
                        let (message, has_replaced) =
                            self.draft_firing(draft, state, Some(at), now)?;
                        replaced = has_replaced;
                        Some(message)
                    }
                };
                Some(Firing {
                    scheduled: Some(at),
                    at: now.wall,
                    message,
                })
            }
        };
        self.draft_step(draft, state, firing, replaced, (missed, next));
        Ok(Reply::Done)
    }

    fn draft_step(
        &self,
        draft: &mut Draft,
        state: &ScheduleState,
        firing: Option<Firing>,
        replaced: bool,
        (missed, next): (u64, Option<WallTime>),
    ) {
        draft.add(
            Effect::ScheduleStepped {
                schedule: state.id,
                firing,
                replaced,
                missed,
                next,
            },
            // If it is lost, its message is lost too, and the schedule fires again.
            Level::Memory,
        );
    }

    /// Sends the message of a firing. Returns its id, and whether the last message was cancelled for it.
    fn draft_firing(
        &self,
        draft: &mut Draft,
        state: &ScheduleState,
        scheduled: Option<WallTime>,
        now: Now,
    ) -> Result<(MessageId, bool), Rejection> {
        let spec = &state.spec;
        let mut replaced = false;
        if spec.overlap == Overlap::Replace
            && let Some((queue, index)) = self.unsettled(state)
            && self.messages[index].state != State::Leased
        {
            let level = self.queues[queue].settings.level;
            self.draft_drop(draft, (queue, index), DropReason::Cancelled, level);
            replaced = true;
        }
        let incarnation = self.term().incarnation;
        let message = firing_of(state, scheduled, incarnation);
        // Step and message are one record, so no firing comes twice; and nobody who sends its id first may swallow it.
        draft.forgets_ids = true;
        let id = match &spec.to {
            ScheduleTo::Queue(queue) => {
                let outgoing = Outgoing {
                    queue,
                    message: &message,
                    key: message.key.as_ref(),
                    group: message.group.as_ref(),
                    payload: Payload::Own,
                };
                self.decide_send(draft, outgoing, now)?.id
            }
            ScheduleTo::Exchange {
                exchange,
                routing_key,
            } => {
                let publish = Publish {
                    exchange: exchange.clone(),
                    routing_key: routing_key.clone(),
                    message,
                    subject: None,
                };
                self.decide_publish(draft, &publish, now)?.id
            }
        };
        Ok((id, replaced))
    }

    /// The message of the last firing, if it is still in its queue: the queue's index, and its own.
    fn unsettled(&self, state: &ScheduleState) -> Option<(u32, u32)> {
        let id = state.last?.message?;
        let queue = self.queue_index(id.queue())?;
        Some((queue, self.message_of(queue, id.sequence())?))
    }

    fn describe_schedule(&self, state: &ScheduleState) -> ScheduleDescription {
        let row = self.schedules.named(&state.name).map(|(row, _)| row);
        let last = state.last.and_then(|last| last.message);
        ScheduleDescription {
            id: state.id,
            name: state.name.clone(),
            generation: state.generation,
            spec: state.spec.clone(),
            created: state.created,
            changed: state.changed,
            paused: state.paused,
            next: state.next,
            planned: state.planned,
            waits_for: last.filter(|_| row.is_some_and(|row| self.schedules.is_waiting(row))),
            last: state.last,
            unsettled: self.unsettled(state).is_some(),
            anchor: state.anchor,
            problem: None,
            counts: state.counts,
        }
    }

    pub(super) fn query_schedule(
        &self,
        name: &ScheduleName,
    ) -> Result<ScheduleDescription, Rejection> {
        let (_, state) = self.schedule_named(name)?;
        Ok(self.describe_schedule(state))
    }

    pub(super) fn query_schedules(&self, list: &ListSchedules) -> Result<SchedulesPage, Rejection> {
        check_range("limit", list.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let by_name = &self.schedules.by_name;
        let mut matching = with_prefix(by_name, &list.prefix, list.after.as_ref());
        let page = matching.by_ref().take(list.limit);
        let schedules: Vec<_> = page
            .filter_map(|(_, &row)| Some(self.describe_schedule(self.schedules.rows.get(row)?)))
            .collect();
        let last = schedules.last().filter(|_| matching.next().is_some());
        let next = last.map(|schedule| schedule.name.clone());
        Ok(SchedulesPage { schedules, next })
    }
}

/// Whether a message that was refused may be accepted later.
fn may_pass(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::QuotaExceeded { .. }
        | Rejection::DedupFull { .. }
        | Rejection::Exchange(ExchangeError::Unroutable { .. }) => true,
        Rejection::PublishRefused { source, .. } => may_pass(source),
        _ => false,
    }
}

fn check_generation(name: &ScheduleName, asked: Option<u64>, is: u64) -> Result<(), ScheduleError> {
    match asked.filter(|asked| *asked != is) {
        None => Ok(()),
        Some(asked) => Err(ScheduleError::Generation {
            schedule: name.clone(),
            asked,
            is,
        }),
    }
}

/// The message of a firing: the template with an id of its own, and what it is of.
fn firing_of(
    state: &ScheduleState,
    scheduled: Option<WallTime>,
    incarnation: Incarnation,
) -> Message {
    let mut message = Message::clone(&state.spec.message);
    let counts = &state.counts;
    let number = counts.fired + counts.by_hand + 1;
    // A restore counts some numbers again, for other times. The server that does has another incarnation.
    let id = format!("schedule-{}-{number}-{:x}", state.id.0, incarnation.0);
    message.unique_id = UniqueId::new(&id).ok();
    // It says when it is due, so the queue's delay does not apply.
    message.due = Some(scheduled.unwrap_or_default());
    let name = state.name.as_str();
    message
        .headers
        .push(state::header(ScheduleSpec::HEADER_NAME, name));
    if let Some(at) = scheduled {
        let header = state::header(ScheduleSpec::HEADER_TIME, &instant(at));
        message.headers.push(header);
    }
    message
}

impl ScheduleSpec {
    /// Whether a schedule can be that, as far as nothing else need be known: its queue or exchange may refuse the message all the same.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`] and [`ScheduleError::Spec`] for what is wrong first.
    pub fn check(&self) -> Result<(), Rejection> {
        let ScheduleSpec {
            timing,
            to,
            message,
            catch_up: _,
            overlap,
            late_max,
        } = self;
        match timing {
            Timing::At(at) => check_range("time of a schedule", at.0, 0, U48::MAX)?,
            Timing::Every { period, from } => {
                let (min, max) = (Timing::PERIOD_MIN, Timing::PERIOD_MAX);
                check_range("period of a schedule", *period, min, max)?;
                check_range(
                    "time of a schedule",
                    from.map_or(0, |from| from.0),
                    0,
                    U48::MAX,
                )?;
            }
            Timing::Cron { expression, zone } => {
                let max = Timing::TEXT_BYTES_MAX as u64;
                check_range(
                    "length of a cron expression",
                    expression.len() as u64,
                    1,
                    max,
                )?;
                check_range("length of a time zone", zone.len() as u64, 1, max)?;
            }
        }
        let (min, max) = (ScheduleSpec::LATE_MAX_LOWEST, Timing::PERIOD_MAX);
        check_range("lateness at which a time is missed", *late_max, min, max)?;
        let wrong = |what| Err(ScheduleError::Spec { what }.into());
        if message.due.is_some() {
            return wrong("sends messages without a due time: it says itself when it sends them");
        }
        if message.unique_id.is_some() {
            return wrong("gives each message a unique id of its own");
        }
        if message.producer.is_some() {
            return wrong("sends messages that are no records of a producer");
        }
        if message.key.is_some() && message.group.is_some() {
            return wrong("sends messages with a key or a group, and not both");
        }
        let reserved = [ScheduleSpec::HEADER_NAME, ScheduleSpec::HEADER_TIME];
        if message
            .headers
            .iter()
            .any(|header| reserved.contains(&&*header.name))
        {
            return wrong("sets the headers lockgate.schedule and lockgate.scheduled-at itself");
        }
        if matches!(to, ScheduleTo::Exchange { .. }) && *overlap != Overlap::Allow {
            return wrong(
                "that publishes to an exchange has overlap allow, because it does not follow the copies",
            );
        }
        Ok(())
    }
}

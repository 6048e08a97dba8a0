//! What a schedule is: commands and answers speak of it with these types.

use std::sync::Arc;

use lockgate_core::{
    CatchUp, ExchangeName, Message, MessageId, Millis, Overlap, QueueName, RoutingKey, ScheduleId,
    ScheduleName, Timing, WallTime,
};

/// What a schedule does, as its maker says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// When it fires.
    pub timing: Timing,
    /// Where its messages go. By name: a queue that was deleted and made again gets them again.
    pub to: ScheduleTo,
    /// The message, without a due time, unique id and producer: a firing gives it an id of its own, and two more headers,
    /// [`HEADER_NAME`](Self::HEADER_NAME) and [`HEADER_TIME`](Self::HEADER_TIME).
    pub message: Arc<Message>,
    /// What becomes of missed times.
    pub catch_up: CatchUp,
    /// What happens while the last message is still there. For an exchange only [`Overlap::Allow`].
    pub overlap: Overlap,
    /// A time to which the schedule comes later than this is missed; from [`LATE_MAX_LOWEST`](Self::LATE_MAX_LOWEST) to
    /// [`Timing::PERIOD_MAX`].
    pub late_max: Millis,
}

impl ScheduleSpec {
    /// A schedule with the defaults of everything else.
    #[must_use]
    pub fn new(timing: Timing, to: ScheduleTo, message: Message) -> Self {
        Self {
            timing,
            to,
            message: Arc::new(message),
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            late_max: Self::LATE_MAX_DEFAULT,
        }
    }

    /// The default of `late_max`: a minute.
    pub const LATE_MAX_DEFAULT: Millis = 60_000;

    /// The least that `late_max` may be: one second. Every firing is late by a few milliseconds.
    pub const LATE_MAX_LOWEST: Millis = 1_000;

    /// The header of a firing with the schedule's name.
    pub const HEADER_NAME: &str = "lockgate.schedule";

    /// The header of a firing with the time for which it is, such as `2026-11-28T09:00:00.000Z`. A run by hand has none.
    pub const HEADER_TIME: &str = "lockgate.scheduled-at";
}

/// Where the messages of a schedule go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleTo {
    /// Into a queue.
    Queue(QueueName),
    /// To the queues of an exchange.
    Exchange {
        /// The exchange.
        exchange: ExchangeName,
        /// The routing key.
        routing_key: RoutingKey,
    },
}

/// The last firing of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// The time for which it was. `None`: it was by hand.
    pub scheduled: Option<WallTime>,
    /// When it was.
    pub at: WallTime,
    /// The message; of an exchange, what was published. `None`: it did not fire, because of [`Overlap::Skip`].
    pub message: Option<MessageId>,
}

/// What a schedule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleCounts {
    /// Firings at their times.
    pub fired: u64,
    /// Firings by hand.
    pub by_hand: u64,
    /// Times that were missed and did not fire.
    pub missed: u64,
    /// Times that did not fire because the last message was still there.
    pub overlapped: u64,
    /// Messages that were cancelled for the next one.
    pub replaced: u64,
}

impl ScheduleCounts {
    pub(crate) const STORED: usize = 5;

    pub(crate) fn stored(self) -> [u64; Self::STORED] {
        let Self {
            fired,
            by_hand,
            missed,
            overlapped,
            replaced,
        } = self;
        [fired, by_hand, missed, overlapped, replaced]
    }

    pub(crate) fn of_stored(stored: [u64; Self::STORED]) -> Self {
        let [fired, by_hand, missed, overlapped, replaced] = stored;
        Self {
            fired,
            by_hand,
            missed,
            overlapped,
            replaced,
        }
    }
}

/// A schedule as a query shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleDescription {
    /// Its number.
    pub id: ScheduleId,
    /// Its name.
    pub name: ScheduleName,
    /// It rises with every change by a caller: what it does, its next time, a pause. Firings do not change it.
    pub generation: u64,
    /// What it does.
    pub spec: Arc<ScheduleSpec>,
    /// When it was made.
    pub created: WallTime,
    /// When a caller changed it last.
    pub changed: WallTime,
    /// Whether it is paused. Then it does not fire, and times that pass are not missed.
    pub paused: bool,
    /// The next time; if it has passed, the schedule is about to fire, or waits for the last message. `None`: there is none.
    pub next: Option<WallTime>,
    /// The time that `next` stands in for, because somebody moved it.
    pub planned: Option<WallTime>,
    /// The message for which it waits, because of [`Overlap::Queue`].
    pub waits_for: Option<MessageId>,
    /// The last firing.
    pub last: Option<Firing>,
    /// Whether the message of the last firing is still in its queue.
    pub unsettled: bool,
    /// What it counts.
    pub counts: ScheduleCounts,
    /// A time of its series, for [`Timing::Every`] without one.
    pub anchor: WallTime,
    /// Why it is due and does not fire, as its engine saw at the last try. The machine itself does not say it.
    pub problem: Option<Arc<str>>,
}

/// What became of a [`PutSchedule`](crate::PutSchedule).
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePut {
    /// Whether it was made now.
    pub created: bool,
    /// Whether it was made or changed now.
    pub changed: bool,
    /// The schedule as it is now.
    pub schedule: ScheduleDescription,
}

/// A page of schedules by name.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulesPage {
    /// The schedules, in the order of their names.
    pub schedules: Vec<ScheduleDescription>,
    /// List after this name for the next page. `None`: that were all.
    pub next: Option<ScheduleName>,
}

/// A schedule whose time has come, for an engine: it computes what follows and gives the step as a command.
#[derive(Clone, Debug, PartialEq)]
pub struct DueSchedule {
    /// Its number.
    pub id: ScheduleId,
    /// Its name.
    pub name: ScheduleName,
    /// Its generation.
    pub generation: u64,
    /// What it does.
    pub spec: Arc<ScheduleSpec>,
    /// A time of its series, for [`Timing::Every`] without one.
    pub anchor: WallTime,
    /// The time that has come.
    pub next: WallTime,
    /// The time for which `next` stands in.
    pub planned: Option<WallTime>,
    /// Whether it was due in time and had to wait for the last message: then it is not missed.
    pub waited: bool,
}

/// A step of a due schedule, see [`EngineCommand::StepSchedule`](crate::EngineCommand::StepSchedule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleStep {
    /// Which schedule.
    pub schedule: ScheduleId,
    /// The generation for which the step was computed. Another one makes it do nothing.
    pub generation: u64,
    /// The next time for which it was computed; the same.
    pub from: WallTime,
    /// The time for which it fires; not before `from`, and not later than now. `None`: only times that were missed pass.
    pub fires: Option<WallTime>,
    /// How many times pass without a firing.
    pub missed: u64,
    /// The next time, later than `from` and `fires`. `None`: there is none.
    pub next: Option<WallTime>,
}

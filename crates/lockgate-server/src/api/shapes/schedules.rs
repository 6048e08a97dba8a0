//! Shapes of schedules.

use std::collections::BTreeMap;

use lockgate_core::{CatchUp, Overlap, Timing};
use lockgate_machine::{QueueSettings, ScheduleSpec};
use serde::{Deserialize, Serialize};

use super::{Encoding, HeaderView, Instant, LevelWord, OutgoingMessage, Within};

/// Which schedules a list shows.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSchedules {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Some schedules.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Schedules {
    /// In order of their names; may be empty.
    pub(crate) schedules: Vec<ScheduleView>,
    /// The next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// What becomes of times that were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum CatchUpWord {
    /// It does not fire for them.
    Skip,
    /// It fires once for all of them, for the last one.
    Once,
    /// It fires for each, the oldest first.
    All,
}

/// What happens when a schedule is due and the message of its last firing is still in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum OverlapWord {
    /// It fires.
    Allow,
    /// It does not fire for that time.
    Skip,
    /// It fires when the last message is gone; the times that pass until then are caught up.
    Queue,
    /// It fires and cancels the last message, unless that is in flight.
    Replace,
}

/// Where the messages of a schedule go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScheduleToWord {
    /// Into the queue of this name.
    Queue(String),
    /// To the exchange of this name.
    Exchange(String),
}

/// A schedule to make, or to change the one of the name into. It says one of `at`, `after_ms`, `every_ms` and `cron`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct PutSchedule {
    /// It fires once, at this instant.
    #[serde(default)]
    pub(crate) at: Option<Instant>,
    /// It fires once, when so much time has passed; 0 to 3,000,000 days.
    #[serde(default)]
    pub(crate) after_ms: Option<Within<0, { QueueSettings::DELAY_MAX }>>,
    /// It fires once in so much time; 100 ms to 36,525 days.
    #[serde(default)]
    pub(crate) every_ms: Option<Within<{ Timing::PERIOD_MIN }, { Timing::PERIOD_MAX }>>,
    /// With `every_ms`: its first time, from which all others follow. Default: one period after it is made.
    #[serde(default)]
    pub(crate) from: Option<Instant>,
    /// It fires as this cron expression says: minute, hour, day of month, month and day of week, or six fields with seconds
    /// first. Up to 256 bytes.
    #[serde(default)]
    pub(crate) cron: Option<String>,
    /// With `cron`: the time zone, such as `Europe/Berlin`. Default `UTC`.
    #[serde(default)]
    pub(crate) zone: Option<String>,
    /// Where its messages go.
    pub(crate) to: ScheduleToWord,
    /// To an exchange: the routing key. Default: empty.
    #[serde(default)]
    pub(crate) routing_key: Option<String>,
    /// The message, without `unique_id`, `delay_ms`, `due_at` and `producer`.
    pub(crate) message: OutgoingMessage,
    /// What becomes of missed times. Default `once`.
    #[serde(default)]
    pub(crate) catch_up: Option<CatchUpWord>,
    /// What happens while the last message is there. Default `allow`.
    #[serde(default)]
    pub(crate) overlap: Option<OverlapWord>,
    /// A time to which the schedule comes later than this is missed; 1 s to 36,525 days. Default 60000.
    #[serde(default)]
    pub(crate) late_max_ms:
        Option<Within<{ ScheduleSpec::LATE_MAX_LOWEST }, { Timing::PERIOD_MAX }>>,
    /// The generation that it must have; 0: there must be none of the name. Default: any.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
}

/// Which generation a schedule must have.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct OfGeneration {
    /// The generation that it must have. Default: any.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
}

/// The same, in the query of a request.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteSchedule {
    /// The generation that it must have. Default: any.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
}

/// Another next time. It says one of `at` and `after_ms`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveSchedule {
    /// It fires at this instant instead of its next time.
    #[serde(default)]
    pub(crate) at: Option<Instant>,
    /// It fires when so much time has passed, instead of at its next time.
    #[serde(default)]
    pub(crate) after_ms: Option<Within<0, { QueueSettings::DELAY_MAX }>>,
    /// The generation that it must have. Default: any.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
}

/// What a put did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SchedulePut {
    /// Whether it was made now.
    pub(crate) created: bool,
    /// Whether it was made or changed now.
    pub(crate) changed: bool,
    /// The schedule as it is now.
    pub(crate) schedule: ScheduleView,
}

/// What a run sent.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ScheduleRun {
    /// The id of the message; of an exchange, of what was published.
    pub(crate) message_id: String,
}

/// The message of a schedule. An empty part is absent.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ScheduledMessage {
    /// The payload, in the encoding that `body_encoding` names.
    pub(crate) body: String,
    /// The encoding of `body`: `text` if it is UTF-8.
    pub(crate) body_encoding: Encoding,
    /// Ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// How long it may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_to_live_ms: Option<u64>,
    /// Named values besides the body. A firing adds `lockgate.schedule` and `lockgate.scheduled-at`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, HeaderView>,
    /// Media type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    /// Trace context that travels with the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_context: Option<String>,
    /// A durability level above the queue's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<LevelWord>,
    /// How urgent it is, 0 to 9.
    pub(crate) priority: u8,
}

/// The last firing of a schedule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FiringView {
    /// The time for which it was; absent if it was by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduled_at: Option<Instant>,
    /// When it was.
    pub(crate) at: Instant,
    /// The last message that was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<String>,
}

/// What a schedule counts, since it was made.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ScheduleCounts {
    /// Firings at its times.
    pub(crate) fired: u64,
    /// Firings by hand.
    pub(crate) by_hand: u64,
    /// Times that were missed and did not fire.
    pub(crate) missed: u64,
    /// Times that did not fire because the last message was still there.
    pub(crate) overlapped: u64,
    /// Messages that were cancelled for the next one.
    pub(crate) replaced: u64,
}

/// A schedule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ScheduleView {
    /// Its name.
    pub(crate) name: String,
    /// It rises with every change by a caller, and is not that of another schedule. Firings do not change it.
    pub(crate) generation: u64,
    /// It fires once, at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Instant>,
    /// It fires once in so much time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) every_ms: Option<u64>,
    /// With `every_ms`: its first time, if its maker said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Instant>,
    /// It fires as this cron expression says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cron: Option<String>,
    /// The time zone of `cron`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Where its messages go.
    pub(crate) to: ScheduleToWord,
    /// To an exchange: the routing key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) routing_key: Option<String>,
    /// The message.
    pub(crate) message: ScheduledMessage,
    /// What becomes of missed times.
    pub(crate) catch_up: CatchUpWord,
    /// What happens while the last message is there.
    pub(crate) overlap: OverlapWord,
    /// A time to which it comes later than this is missed.
    pub(crate) late_max_ms: u64,
    /// When it was made.
    pub(crate) created_at: Instant,
    /// When a caller changed it last.
    pub(crate) changed_at: Instant,
    /// Whether it is paused.
    pub(crate) paused: bool,
    /// Its next time; absent if there is none. If it has passed, the schedule is about to fire, or `waits_for` or `problem` says
    /// why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_at: Option<Instant>,
    /// The time for which `next_at` stands in, because somebody moved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) planned_at: Option<Instant>,
    /// Its next times, up to five, and in a list one; none if it is paused.
    pub(crate) next_times: Vec<Instant>,
    /// The message for which it waits, because of `overlap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits_for: Option<String>,
    /// Why it is due and does not fire, as of the last try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// The last firing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<FiringView>,
    /// Whether the last message is still in its queue.
    pub(crate) unsettled: bool,
    /// What it counts.
    pub(crate) counts: ScheduleCounts,
}

macro_rules! words {
    ($word:ident of $type:ident: $($variant:ident),+) => {
        impl From<$word> for $type {
            fn from(word: $word) -> Self {
                match word {
                    $($word::$variant => Self::$variant),+
                }
            }
        }

        impl From<$type> for $word {
            fn from(it: $type) -> Self {
                match it {
                    $($type::$variant => Self::$variant),+
                }
            }
        }
    };
}

words!(CatchUpWord of CatchUp: Skip, Once, All);
words!(OverlapWord of Overlap: Allow, Skip, Queue, Replace);

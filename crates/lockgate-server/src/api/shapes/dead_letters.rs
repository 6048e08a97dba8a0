//! Shapes of dead letters.

use serde::{Deserialize, Serialize};

use super::{super::problem::Problem, Within};

/// Selects queues by their dead-letter queue.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeadLetterSources {
    /// The most entries of the page, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of the queues that have this queue as dead-letter queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeadLetterSources {
    /// Their names, in order.
    pub(crate) queues: Vec<String>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// The dead letters to move, and their destination.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redrive {
    /// The destination, of the same kind (keyed or not) as this queue. Default: each message
    /// returns to the queue it came from.
    #[serde(default)]
    pub(crate) to: Option<String>,
    /// Only those that came from this queue.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// The `next_page` of the request before, which had the same `to` and `source`. Without it, the request
    /// begins a new run.
    #[serde(default)]
    pub(crate) page: Option<String>,
    /// The most messages to move, 1 to 10,000. Default 10,000.
    #[serde(default)]
    pub(crate) max: Option<Within<1, 10_000>>,
}

/// The result of moving dead letters.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Redriven {
    /// Messages moved.
    pub(crate) moved: u64,
    /// Messages of the queue that are ready still, of whatever source. It need not get to 0: those of a parked
    /// key, or behind one in flight, stay, and so do those that came after the first request of the run.
    pub(crate) left: u64,
    /// The message at which the move stopped, if it did: no message behind it returns to its queue
    /// until this one is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<StuckView>,
    /// Why the request ended before its time, if it did after it had moved messages. With `unknown_outcome`, up to
    /// 1,000 more may have been moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<Box<Problem>>,
    /// Pass it as `page` in the next request; absent when nothing else can be moved now of what was there at the
    /// first request of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A message that cannot return to its queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StuckView {
    /// Its id.
    pub(crate) id: String,
    /// The reason.
    pub(crate) reason: StuckReasonWord,
}

/// Why a message cannot return to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StuckReasonWord {
    /// It was sent to this queue, or an operator moved it here.
    NoOrigin,
    /// The queue that it came from was deleted, or created again with the other kind.
    OriginGone,
    /// The access key has no grant to send to the queue that it came from.
    OriginNotAllowed,
}

//! Dead letters.

use serde::{Deserialize, Serialize};

/// Which of the queues to list whose dead letters come to a queue.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeadLetterSources {
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of the queues whose dead letters come to a queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeadLetterSources {
    /// Their names, in order.
    pub(crate) queues: Vec<String>,
    /// What to give as `page` for the next page; not there on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Where dead letters are to go.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Redrive {
    /// A queue, keyed exactly if this one is. Default: each to the queue it came from.
    #[serde(default)]
    pub(crate) to: Option<String>,
    /// Only those that came from this queue. Others are passed over: at most 100,000 of them.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// How many messages at most, 1 to 10,000. Default 10,000.
    #[serde(default)]
    pub(crate) max: Option<u32>,
}

/// How far it got.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Redriven {
    /// Messages moved.
    pub(crate) moved: u64,
    /// Messages that could be moved next; what is delayed, in flight or parked is not among them.
    pub(crate) left: u64,
    /// The message at which it ended, if it did: nothing behind it is moved to where it came from
    /// until that one is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<StuckView>,
}

/// A message that has nowhere to go back to.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StuckView {
    /// Its id.
    pub(crate) id: String,
    /// Why.
    pub(crate) reason: StuckReasonWord,
}

/// Why a message has nowhere to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StuckReasonWord {
    /// It was sent to this queue, or somebody moved it here.
    NoOrigin,
    /// The queue it came from was deleted, or made again of the other kind.
    OriginGone,
    /// The access key has no grant to send to the queue it came from.
    OriginNotAllowed,
}

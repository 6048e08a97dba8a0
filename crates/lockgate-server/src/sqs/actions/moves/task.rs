//! The stored form of a move task.

use lockgate_core::QueueName;
use lockgate_engine::QueueEntry;
use serde::{Deserialize, Serialize};

/// The annotation of the source queue that holds its tasks, newest first.
pub(super) const ANNOTATION: &str = "MessageMoveTasks";

/// A stored task: written when it starts, when it is cancelled and when it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) id: String,
    /// The access key that started it; `None` without authentication.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) by: Option<String>,
    /// `None`: each message goes to the queue it came from.
    #[serde(with = "name", default)]
    pub(super) destination: Option<QueueName>,
    /// Messages in a second.
    pub(super) rate: Option<u16>,
    /// The wall clock in milliseconds.
    pub(super) started: u64,
    /// The number of messages in the source when the task started.
    pub(super) to_move: u64,
    /// Set when the task ends.
    pub(super) moved: u64,
    pub(super) status: Status,
    pub(super) failure: Option<String>,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Status {
    Running,
    Completed,
    Cancelling,
    Cancelled,
    Failed,
}

impl Status {
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Self::Running | Self::Cancelling)
    }

    /// AWS's name of the state.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Cancelling => "CANCELLING",
            Self::Cancelled => "CANCELLED",
            Self::Failed => "FAILED",
        }
    }
}

/// The tasks of a queue, newest first. A list that another version wrote and this one cannot read
/// counts as empty.
pub(super) fn of(queue: &QueueEntry) -> Vec<Task> {
    queue
        .annotations
        .get(ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

mod name {
    use lockgate_core::QueueName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "the signature serde calls")]
    pub(super) fn serialize<S: Serializer>(
        name: &Option<QueueName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.as_ref().map(QueueName::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<QueueName>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|name| QueueName::new(&name).map_err(D::Error::custom))
            .transpose()
    }
}

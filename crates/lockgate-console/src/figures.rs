//! Figures of many queues at once. The admin API would give each with its settings and tags.

use std::borrow::Cow;

use serde_json::Value;

use crate::value::{number, text};

/// Queues that are looked at, in order of their names.
pub const QUEUES_MAX: usize = 10_000;

/// Those of all queues that somebody may read.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// In order of their names.
    pub queues: Vec<QueueFigures>,
    /// There are more than [`QUEUES_MAX`].
    pub is_cut: bool,
}

/// What a queue holds.
#[derive(Clone, Debug, Default)]
pub struct QueueFigures {
    /// Its name.
    pub name: String,
    /// Why the queue as a whole gives no leases; `open`: it gives them.
    pub state: Cow<'static, str>,
    /// Messages that wait for a lease.
    pub ready: u64,
    /// Messages that are leased, or come back after a delay.
    pub in_flight: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Bytes of bodies and headers.
    pub bytes: u64,
    /// Keys or groups with messages.
    pub keys: u64,
    /// Parked keys.
    pub parked_keys: u64,
    /// Keys whose next message only a limit of theirs holds.
    pub limited_keys: u64,
    /// When the oldest message was accepted, as Unix time in milliseconds.
    pub oldest_ms: Option<u64>,
    /// The same, for people.
    pub oldest: Option<String>,
    /// Its dead-letter queue.
    pub dead_letter: Option<String>,
    /// Its dead-letter queue is not there, or is keyed otherwise.
    pub dead_letter_missing: bool,
}

impl QueueFigures {
    /// Those that a list shows, of a queue in an answer of the admin API.
    pub(crate) fn of(queue: &Value) -> Self {
        let oldest = text(queue, "/counts/oldest_at");
        Self {
            name: text(queue, "/name").to_owned(),
            state: crate::queues::state(queue).into(),
            ready: number(queue, "/counts/ready"),
            in_flight: number(queue, "/counts/in_flight"),
            delayed: number(queue, "/counts/delayed"),
            bytes: number(queue, "/counts/bytes"),
            keys: number(queue, "/counts/keys"),
            parked_keys: number(queue, "/counts/parked_keys"),
            oldest: (!oldest.is_empty()).then(|| oldest.to_owned()),
            ..Self::default()
        }
    }
}

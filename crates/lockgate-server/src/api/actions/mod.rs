//! What each operation does, over the engine.

mod dead_letters;
mod keys;
mod leases;
mod messages;
mod peek;
mod queues;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use lockgate_core::{QueueName, SpaceState};
use lockgate_engine::Status;

use super::{
    Code, Problem, Service,
    shapes::{Instant, LogWork, ServerInfo, Space, SpaceStateWord, StatusWord},
};

/// Queues or keys of a page that does not say.
const PAGE_DEFAULT: u16 = 100;
const PAGE_MAX: u16 = 1000;

impl Service {
    /// Says which server this is.
    pub(super) fn server_info(&self) -> ServerInfo {
        let metrics = self.engine.metrics();
        let space = metrics.maintenance.space;
        let now = self.engine.now().wall;
        ServerInfo {
            version: env!("CARGO_PKG_VERSION"),
            shard: self.engine.term().shard.get(),
            epoch: self.engine.term().epoch.0,
            started_at: Instant(self.started),
            uptime_ms: now.0.saturating_sub(self.started.0),
            now: Instant(now),
            status: match self.engine.status() {
                Status::Serving if !self.drain.has_begun() => StatusWord::Serving,
                Status::Stopped { .. } => StatusWord::Stopped,
                _ => StatusWord::Stopping,
            },
            queues: self.engine.directory().len() as u64,
            space: Space {
                state: match space.state {
                    SpaceState::Normal => SpaceStateWord::Normal,
                    SpaceState::Low => SpaceStateWord::Low,
                    SpaceState::Full => SpaceStateWord::Full,
                },
                used_bytes: space.used_bytes,
                free_bytes: space.free_bytes,
            },
            log: LogWork {
                records: metrics.records,
                record_bytes: metrics.bytes,
                syncs: metrics.syncs,
                records_lost: metrics.records_lost,
            },
        }
    }
}

/// The engine gives a result for each command. If there were fewer, that would be no reason to panic.
fn unanswered() -> Problem {
    Problem::new(Code::UnknownOutcome, "the engine left it without an answer")
}

/// A number that must lie in a range, if it is given.
fn in_range<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    min: T,
    max: T,
) -> Result<Option<T>, Problem> {
    match value {
        Some(value) if value < min || value > max => Err(Problem::invalid(
            field,
            format_args!("{value} is not from {min} to {max}"),
        )),
        value => Ok(value),
    }
}

/// A list must have something in it, and not too much.
fn check_len(field: &str, len: usize, max: usize) -> Result<(), Problem> {
    if (1..=max).contains(&len) {
        return Ok(());
    }
    Err(Problem::invalid(
        field,
        format_args!("there must be 1 to {max}, not {len}"),
    ))
}

/// The token of the page after the one that ended with `last`.
fn page_after(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// What the page before ended with.
fn page_start(token: &str) -> Result<String, Problem> {
    URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(invalid_page)
}

/// What the page before ended with, of a list of queues.
fn page_start_queue(token: &str) -> Result<QueueName, Problem> {
    QueueName::new(&page_start(token)?).map_err(|_| invalid_page())
}

fn invalid_page() -> Problem {
    let detail = "page: not a page token of this server; begin again without one";
    Problem::new(Code::InvalidPage, detail).at("page")
}

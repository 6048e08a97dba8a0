//! The operations over the engine.

mod dead_letters;
mod exchanges;
mod key_states;
mod keys;
mod leases;
mod ledgers;
mod messages;
mod peek;
mod producers;
mod queues;
mod records;
mod schedules;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use lockgate_core::{QueueName, Sequence, SpaceState};
use lockgate_engine::Status;
use lockgate_machine::{MoveCursor, QueueSettings};

use self::messages::BATCH_MAX;
pub(super) use self::{
    exchanges::{filter_of, pattern_of},
    ledgers::{event_view, head_view, ledger_of},
    records::record_of,
};
use super::{
    Code, Problem, Service,
    shapes::{
        Instant, Limits, LogWork, RECEIVE_MAX, ServerInfo, Space, SpaceStateWord, StatusWord,
        WAIT_MS_MAX, Within,
    },
};

/// Queues or keys of a page.
fn page_limit(given: Option<Within<1, 1000>>) -> usize {
    let limit = given.map_or(100, Within::get);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

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
            limits: Limits {
                body_bytes_max: self.body_bytes_max as u64,
                entries_max: BATCH_MAX as u64,
                receive_max: RECEIVE_MAX,
                wait_ms_max: WAIT_MS_MAX,
                lease_ms_max: QueueSettings::LEASE_MAX,
                level_max: self.engine.level_max().into(),
            },
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

/// The engine gives a result for each command. If one were missing, this error avoids a panic.
fn unanswered() -> Problem {
    Problem::new(Code::UnknownOutcome, "the engine left it without an answer")
}

/// A list must not be empty or too long.
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

/// The last name on the previous page.
fn page_start(token: &str) -> Result<String, Problem> {
    URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(invalid_page)
}

/// The last name on the previous page of a list of queues.
fn page_start_queue(token: &str) -> Result<QueueName, Problem> {
    QueueName::new(&page_start(token)?).map_err(|_| invalid_page())
}

/// What the page before ended with, of a list of messages.
fn page_start_sequence(token: &str) -> Result<Sequence, Problem> {
    let number = page_start(token)?.parse().map_err(|_| invalid_page())?;
    Ok(Sequence(number))
}

/// How far the redrive before got.
fn page_start_move(token: &str) -> Result<MoveCursor, Problem> {
    let token = page_start(token)?;
    let (after, below) = token.split_once('-').ok_or_else(invalid_page)?;
    let [after, below] = [after, below].map(|number| number.parse().map(Sequence));
    Ok(MoveCursor {
        after: after.map_err(|_| invalid_page())?,
        below: below.map_err(|_| invalid_page())?,
    })
}

fn invalid_page() -> Problem {
    let detail = "page: not a page token of this server; begin again without one";
    Problem::new(Code::InvalidPage, detail).at("page")
}

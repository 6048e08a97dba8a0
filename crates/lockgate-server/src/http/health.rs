//! Whether the process lives, and whether it can work.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use lockgate_core::SpaceState;
use lockgate_engine::Status;
use serde_json::{Value, json};

use super::Core;
use crate::sqs;

/// Why queues are not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The server comes to an end.
    Draining,
    /// The engine does.
    Stopping,
    /// The engine is gone.
    Stopped { reason: String },
    /// The engine takes work and does not finish it.
    Stalled { waiting: Duration },
}

/// 200 as long as the process can answer anything.
pub(crate) fn healthz() -> sqs::Response {
    page(StatusCode::OK, "text/plain; charset=utf-8", "ok\n")
}

/// 200 as long as queues are served, else 503 with the reason.
pub(crate) fn readyz(core: &Core) -> sqs::Response {
    let (status, body) = match ready(core) {
        Ok(()) => (StatusCode::OK, ready_page(core)),
        Err(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "ready": false, "reason": reason.name(), "detail": reason.detail() }),
        ),
    };
    page(status, "application/json", format!("{body}\n"))
}

/// A full disk is no reason to send clients away: those who receive and delete make room.
fn ready_page(core: &Core) -> Value {
    let space = core
        .endpoint
        .engine()
        .map(|engine| engine.metrics().keeper.space);
    match space.filter(|space| space.state != SpaceState::Normal) {
        None => json!({ "ready": true }),
        Some(space) => json!({
            "ready": true,
            "space": space_name(space.state),
            "detail": match space.state {
                SpaceState::Full => format!(
                    "the disk is full, {} bytes are free: sends are refused, everything else goes on",
                    space.free_bytes
                ),
                _ => format!("{} bytes are free on the disk", space.free_bytes),
            },
        }),
    }
}

/// The word for how much room there is.
pub(crate) fn space_name(state: SpaceState) -> &'static str {
    match state {
        SpaceState::Normal => "normal",
        SpaceState::Low => "low",
        SpaceState::Full => "full",
    }
}

/// Whether queues are served.
pub(crate) fn ready(core: &Core) -> Result<(), NotReady> {
    if core.drain.has_begun() {
        return Err(NotReady::Draining);
    }
    let Some(engine) = core.endpoint.engine() else {
        return Ok(());
    };
    match engine.status() {
        Status::Serving => {}
        Status::Stopped { reason } => {
            let reason = reason.to_string();
            return Err(NotReady::Stopped { reason });
        }
        _ => return Err(NotReady::Stopping),
    }
    let metrics = engine.metrics();
    let waiting = metrics.inbox_age.max(metrics.sync_age);
    if waiting >= core.deadlines.stall {
        return Err(NotReady::Stalled { waiting });
    }
    Ok(())
}

impl NotReady {
    fn name(&self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::Stopped { .. } => "stopped",
            Self::Stalled { .. } => "stalled",
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Draining => "the server is shutting down".to_owned(),
            Self::Stopping => "the engine is shutting down".to_owned(),
            Self::Stopped { reason } => format!("the engine has stopped: {reason}"),
            Self::Stalled { waiting } => format!(
                "a request has been waiting for {} s: storage does not come along",
                waiting.as_secs()
            ),
        }
    }
}

/// A page that must not be kept by anything in between.
pub(crate) fn page(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> sqs::Response {
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    sqs::Response {
        status,
        headers,
        body: body.into(),
        action: None,
        on_sent: None,
    }
}

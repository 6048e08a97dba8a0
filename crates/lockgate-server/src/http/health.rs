//! Health checks: whether the process lives, and whether it can work.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use lockgate_core::{LogSpace, SpaceState};
use lockgate_engine::Status;
use serde_json::json;

use super::{Core, Queues, response::Response};

/// Why queues are not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The server is shutting down.
    Draining,
    /// The engine is shutting down.
    Stopping,
    /// The engine has stopped.
    Stopped { reason: String },
    /// The engine accepts commands and does not finish them.
    Stalled { waiting: Duration },
}

/// 200 as long as the process can answer anything.
pub(crate) fn healthz() -> Response {
    page(StatusCode::OK, "text/plain; charset=utf-8", "ok\n")
}

/// 200 as long as queues are served, else 503 with the reason. A full disk is no reason for 503:
/// clients that receive and delete make room.
pub(crate) fn readyz(core: &Core, queues: &Queues) -> Response {
    let (status, mut body) = match ready(core, queues) {
        Ok(()) => (StatusCode::OK, json!({ "ready": true })),
        Err(reason) => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "ready": false, "reason": reason.name(), "detail": reason.detail() }),
        ),
    };
    let metrics = queues.engine.metrics();
    let space = metrics.maintenance.space;
    body["space"] = space.state.name().into();
    if let Some(index) = metrics.index {
        body["unique_ids"] = if index.works { "normal" } else { "failing" }.into();
    }
    if status == StatusCode::OK
        && let Some(detail) = space_detail(space)
    {
        body["detail"] = detail.into();
    }
    page(status, "application/json", format!("{body}\n"))
}

/// The page's line about space on the disk, if it is scarce.
fn space_detail(space: LogSpace) -> Option<String> {
    let free = space.free_bytes;
    match space.state {
        SpaceState::Normal => None,
        SpaceState::Low => Some(format!("{free} bytes are free on the disk")),
        SpaceState::Full => Some(format!(
            "the disk is full, {free} bytes are free: sends are refused, everything else goes on"
        )),
    }
}

/// Whether queues are served.
pub(crate) fn ready(core: &Core, queues: &Queues) -> Result<(), NotReady> {
    if core.drain.has_begun() {
        return Err(NotReady::Draining);
    }
    match queues.engine.status() {
        Status::Serving => {}
        Status::Stopped { reason } => {
            let reason = reason.to_string();
            return Err(NotReady::Stopped { reason });
        }
        _ => return Err(NotReady::Stopping),
    }
    let metrics = queues.engine.metrics();
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

/// A page that no proxy may cache.
pub(crate) fn page(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Response {
        status,
        headers,
        body: body.into(),
        action: None,
        on_sent: None,
    }
}

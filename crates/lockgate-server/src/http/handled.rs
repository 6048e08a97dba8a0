//! From a parsed head to the answer of a [`Handler`].

use std::sync::Arc;

use hyper::{Method, Request, Response, StatusCode, body::Incoming, http::request::Parts};
use serde_json::json;
use tokio::{
    select,
    time::{Instant, sleep},
};

use super::{
    backup::Answer,
    connection::Client,
    counters::Action,
    health, metrics,
    refusal::Refusal,
    response,
    router::{Unanswered, check, finish, hold, identify},
};
use crate::handler::{Handler, HandlerAnswer, HandlerRequest};

/// What a path names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    Healthz,
    Readyz,
    Metrics,
    Handler,
}

impl Route {
    fn of(path: &str) -> (Self, Action) {
        match path {
            "/healthz" => (Self::Healthz, Action::Healthz),
            "/readyz" => (Self::Readyz, Action::Readyz),
            "/metrics" => (Self::Metrics, Action::Metrics),
            _ => (Self::Handler, Action::Other),
        }
    }
}

/// Answers any request.
pub(crate) async fn answer(
    client: &Arc<Client>,
    handler: &dyn Handler,
    request: Request<Incoming>,
) -> Response<Answer> {
    let began = Instant::now();
    let index = client.progress.begin(began).await;
    let unanswered = Unanswered(&client.core.counters, began);
    let (parts, body) = request.into_parts();
    let (route, action) = Route::of(parts.uri.path());
    let outcome = match check(client, index, route == Route::Handler, &parts) {
        Ok(()) => serve(client, handler, index, route, &parts, body).await,
        Err(refusal) => Err(refusal),
    };
    // What the handler has done is done: its answer is sent.
    let outcome = outcome.and_then(|response| Ok((hold(client, &response, false)?, response)));
    let (share, response) = outcome.unwrap_or_else(|refusal| {
        client.core.counters.refused(refusal.counted());
        tracing::debug!(peer = %client.peer, reason = refusal.counted().label(), "request refused");
        (None, refusal.problem())
    });
    unanswered.answered(action, response.status);
    finish(client, &parts, action, began, response, share)
}

async fn serve(
    client: &Client,
    handler: &dyn Handler,
    index: u64,
    route: Route,
    parts: &Parts,
    body: Incoming,
) -> Result<response::Response, Refusal> {
    if route == Route::Handler {
        if let Err(answer) = handler.takes(&parts.method, parts.uri.path()) {
            return Ok((*answer).into());
        }
        let identified = identify(client, index, parts, body).await?;
        // The body keeps its part of the budget until it is answered.
        let bytes = identified.body.bytes.clone();
        let request = HandlerRequest::new(parts.headers.clone(), bytes, identified.identity);
        return Ok(select! {
            biased;
            answer = handler.answer(request) => answer.into(),
            () = unheard(client) => too_late(),
        });
    }
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET, HEAD",
        });
    }
    Ok(match route {
        Route::Metrics => metrics::page_without_queues(&client.core, &handler.metrics().await),
        Route::Readyz => readyz(client, handler).await,
        _ => health::healthz(),
    })
}

/// Waits until a client has ended its side, and then as long as it may take for its answer: it is gone, or has no more
/// requests, which nobody can tell apart. Clients that are gone must not fill the server while answers take long.
async fn unheard(client: &Client) {
    client.progress.hangup().come().await;
    sleep(client.core.deadlines.transfer_grace).await;
}

fn too_late() -> response::Response {
    let detail = "the client has ended its side of the connection, and the answer takes too long; what was asked may be done \
                  all the same";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let body = json!({ "status": status.as_u16(), "code": "client_ended", "detail": detail });
    health::page(status, "application/problem+json", format!("{body}\n"))
}

async fn readyz(client: &Client, handler: &dyn Handler) -> response::Response {
    let ready = match client.core.drain.has_begun() {
        true => Err("the server is shutting down".to_owned()),
        false => handler.ready().await,
    };
    let (status, body) = match ready {
        Ok(()) => (StatusCode::OK, json!({ "ready": true })),
        Err(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "ready": false, "detail": why }),
        ),
    };
    health::page(status, "application/json", format!("{body}\n"))
}

impl From<HandlerAnswer> for response::Response {
    fn from(answer: HandlerAnswer) -> Self {
        let HandlerAnswer {
            status,
            headers,
            body,
        } = answer;
        Self {
            status,
            headers,
            body,
            action: None,
            on_sent: None,
        }
    }
}

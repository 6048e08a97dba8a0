//! From a parsed head to an answer: first the checks, then what the path names.

use std::{sync::Arc, time::SystemTime};

use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    body::Incoming,
    header::{
        ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE,
        HOST, HeaderName, HeaderValue, ORIGIN,
    },
    http::request::Parts,
};
use lockgate_core::HolderName;
use tokio::time::Instant;

use super::{
    Queues,
    backup::{self, Answer},
    body::{self, AnswerShare},
    connection::Client,
    console,
    counters::{Action, Counters},
    follow, health, metrics,
    printable::Printable,
    refusal::Refusal,
    response,
};
use crate::{
    api,
    auth::{AccessKey, AuthError, BodyDigest, Head},
    sns, sqs,
};

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// `/`, `/{account}` or `/{account}/{queue}`, or ElasticMQ's `/queue/{queue}`; with or without a
    /// slash at the end.
    Sqs,
    Healthz,
    Readyz,
    Metrics,
    Backup,
    /// The description of the admin API.
    OpenApi,
    /// `/api/v1/ledgers/{ledger}/follow`: events as they come.
    Follow,
    /// `/api/v1/...`, the admin API.
    Api,
    /// `/console` and below, and `/` for browsers.
    Console,
    Unknown,
}

pub(super) const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const QUERY_MODE: HeaderName = HeaderName::from_static("x-amzn-query-mode");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const TRACE_ID: HeaderName = HeaderName::from_static("x-amzn-trace-id");
const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
/// The header in which a client names itself as the holder of leases.
const CONSUMER: HeaderName = HeaderName::from_static("x-lockgate-consumer");

/// Answers any request.
pub(crate) async fn answer(
    client: &Arc<Client>,
    queues: &Queues,
    request: Request<Incoming>,
) -> Response<Answer> {
    let began = Instant::now();
    let index = client.progress.begin(began).await;
    let unanswered = Unanswered(&client.core.counters, began);
    let (parts, body) = request.into_parts();
    let for_console = queues.console.asked(&parts);
    let route = match for_console {
        Some(_) => Route::Console,
        None => Route::of(parts.uri.path()),
    };
    let page = page(route);
    let is_signed = matches!(
        route,
        Route::Sqs | Route::Backup | Route::Follow | Route::Api
    );
    let outcome = match check(client, index, is_signed, &parts) {
        Ok(()) if route == Route::Backup => {
            match back_up(client, queues, index, &parts, body).await {
                Ok(stream) => {
                    unanswered.answered(Action::Backup, StatusCode::OK);
                    client.progress.streaming();
                    return stream_answer(stream);
                }
                Err(refusal) => Err(refusal),
            }
        }
        Ok(()) if route == Route::Follow => {
            match begin_to_follow(client, queues, index, &parts, body).await {
                Ok(Ok(stream)) => {
                    unanswered.answered(Action::Api, StatusCode::OK);
                    client.progress.streaming();
                    return follow_answer(stream);
                }
                Ok(Err(problem)) => Ok(problem.response()),
                Err(refusal) => Err(refusal),
            }
        }
        Ok(()) => match for_console {
            Some(asked) => console::serve(client, queues, index, asked, &parts, body).await,
            None => serve(client, queues, index, route, &parts, body).await,
        },
        Err(refusal) => Err(refusal),
    };
    let outcome = outcome.and_then(|response| {
        let may_be_refused = may_be_refused(route, &parts.method, &response);
        let share = hold(client, &response, may_be_refused)?;
        Ok((response, share))
    });
    let (response, share) = outcome.unwrap_or_else(|refusal| {
        client.core.counters.refused(refusal.counted());
        tracing::debug!(peer = %client.peer, reason = refusal.counted().label(), "request refused");
        let response = if matches!(route, Route::Api | Route::Backup | Route::Follow) {
            refusal.problem()
        } else {
            let query = query_format(route, &parts);
            refusal.response(queues.request_id(), query)
        };
        (response, None)
    });
    let action = page.unwrap_or_else(|| Action::of_aws(response.action));
    unanswered.answered(action, response.status);
    finish(client, &parts, action, began, response, share)
}

/// The part of the answers' budget for an answer.
pub(super) fn hold(
    client: &Client,
    response: &response::Response,
    may_be_refused: bool,
) -> Result<Option<AnswerShare>, Refusal> {
    let (answers, len) = (&client.core.answers, response.body.len());
    answers
        .hold(client.peer.ip(), len, may_be_refused)
        .map_err(|_| Refusal::AnswersFull)
}

/// Logs the request, and puts its answer on the way.
pub(super) fn finish(
    client: &Client,
    parts: &Parts,
    action: Action,
    began: Instant,
    response: response::Response,
    share: Option<AnswerShare>,
) -> Response<Answer> {
    tracing::debug!(
        target: "lockgate::access",
        peer = %client.peer,
        method = %Printable(parts.method.as_str()),
        path = %Printable(parts.uri.path()),
        action = action.label(),
        status = response.status.as_u16(),
        bytes = response.body.len(),
        microseconds = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
        "request"
    );
    client.progress.answered(response.on_sent, share);
    let mut answer = Response::new(Answer::Whole(Full::new(response.body)));
    *answer.status_mut() = response.status;
    *answer.headers_mut() = response.headers;
    answer
}

/// Whether the answer may be replaced by a refusal that says that nothing was done. Dropping an
/// answer gives back its leases, but other changes stay. The server's own pages are short and never
/// refused.
fn may_be_refused(route: Route, method: &Method, response: &response::Response) -> bool {
    response.on_sent.is_some()
        || match route {
            Route::Sqs => response
                .action
                .is_none_or(|action| sqs::only_reads(action) && sns::only_reads(action)),
            Route::Api | Route::Follow | Route::Console => *method == Method::GET,
            _ => false,
        }
}

/// Counts a request as abandoned unless it is answered.
pub(super) struct Unanswered<'a>(pub(super) &'a Counters, pub(super) Instant);

impl Unanswered<'_> {
    pub(super) fn answered(self, action: Action, status: StatusCode) {
        self.0.request(action, status, self.1.elapsed());
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.abandoned();
    }
}

impl Route {
    fn of(path: &str) -> Self {
        match path {
            "/" => Self::Sqs,
            "/healthz" => Self::Healthz,
            "/readyz" => Self::Readyz,
            "/metrics" => Self::Metrics,
            "/api/v1/backup" => Self::Backup,
            "/api/v1/openapi.json" => Self::OpenApi,
            _ if api::is_follow(path) => Self::Follow,
            _ if is_api_path(path) => Self::Api,
            _ if is_sqs_path(path) => Self::Sqs,
            _ => Self::Unknown,
        }
    }
}

fn is_api_path(path: &str) -> bool {
    path.strip_prefix(api::PREFIX)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn is_sqs_path(path: &str) -> bool {
    let is_account =
        |part: &str| part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_digit());
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    match path.split_once('/') {
        None => is_account(path),
        Some((before, queue)) => {
            (is_account(before) || before == sqs::ELASTICMQ_PREFIX)
                && !queue.is_empty()
                && !queue.contains('/')
        }
    }
}

/// The Query protocol's format for a refusal of this request, if the client speaks that protocol.
/// The server's own pages answer errors in JSON.
fn query_format(route: Route, parts: &Parts) -> Option<sqs::QueryFormat> {
    let text = |name| parts.headers.get(name)?.to_str().ok();
    let speaks = sqs::speaks_query(text(CONTENT_TYPE), parts.headers.contains_key(TARGET));
    (speaks && matches!(route, Route::Sqs | Route::Unknown))
        .then(|| sqs::QueryFormat::accepted(text(ACCEPT)))
}

/// The action to count a request as, by its page; `None` if the action is known only later.
fn page(route: Route) -> Option<Action> {
    match route {
        Route::Healthz => Some(Action::Healthz),
        Route::Readyz => Some(Action::Readyz),
        Route::Metrics => Some(Action::Metrics),
        Route::Backup => Some(Action::Backup),
        Route::Api | Route::Follow | Route::OpenApi => Some(Action::Api),
        Route::Console => Some(Action::Console),
        Route::Unknown => Some(Action::Other),
        Route::Sqs => None,
    }
}

/// The checks of every request before its body is read. `is_signed`: it has to be, where there is
/// authentication.
pub(super) fn check(
    client: &Client,
    index: u64,
    is_signed: bool,
    parts: &Parts,
) -> Result<(), Refusal> {
    if let Some(violation) = client.progress.violation(index) {
        return Err(Refusal::Framing(violation));
    }
    if client.core.authenticator.is_some() && is_signed {
        // A page cannot sign a request, whatever host name it uses for the server.
        return check_encoding(parts);
    }
    let hosts = &client.core.hosts;
    let host_refused = |host: &[u8]| Refusal::Host {
        host: String::from_utf8_lossy(host).into_owned(),
    };
    let mut named = parts.headers.get_all(HOST).iter();
    match (named.next(), named.next()) {
        (None, _) if parts.version < Version::HTTP_11 => {}
        (None, _) => return Err(Refusal::HostMissing),
        (Some(_), Some(_)) => return Err(Refusal::HostRepeated),
        (Some(host), None) => {
            let served = host
                .to_str()
                .is_ok_and(|host| hosts.serves(host, client.local));
            if !served {
                return Err(host_refused(host.as_bytes()));
            }
        }
    }
    // The request line may name a host too, which outranks the header (RFC 9112, 3.2.2).
    if let Some(authority) = parts.uri.authority()
        && !hosts.serves(authority.as_str(), client.local)
    {
        return Err(host_refused(authority.as_str().as_bytes()));
    }
    for origin in parts.headers.get_all(ORIGIN) {
        let served = origin
            .to_str()
            .is_ok_and(|origin| hosts.serves_origin(origin, client.local));
        if !served {
            let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
            return Err(Refusal::Origin { origin });
        }
    }
    // A page can make a browser GET any address without `Origin`, for example as an image. Browsers
    // still say that the request comes from another site.
    let cross_site = |site: &HeaderValue| site.as_bytes() == b"cross-site";
    if !parts.headers.contains_key(ORIGIN)
        && parts.headers.get_all(FETCH_SITE).iter().any(cross_site)
    {
        return Err(Refusal::CrossSite);
    }
    check_encoding(parts)
}

fn check_encoding(parts: &Parts) -> Result<(), Refusal> {
    for encoding in parts.headers.get_all(CONTENT_ENCODING) {
        if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") {
            let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
            return Err(Refusal::ContentEncoding { encoding });
        }
    }
    Ok(())
}

async fn serve(
    client: &Client,
    queues: &Queues,
    index: u64,
    route: Route,
    parts: &Parts,
    body: Incoming,
) -> Result<response::Response, Refusal> {
    if route == Route::Unknown {
        let path = parts.uri.path().to_owned();
        return Err(Refusal::Path { path });
    }
    if route == Route::Sqs {
        return serve_sqs(client, queues, index, parts, body).await;
    }
    if route == Route::Api {
        return serve_api(client, queues, index, parts, body).await;
    }
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET, HEAD",
        });
    }
    Ok(match route {
        Route::Readyz => health::readyz(&client.core, queues),
        Route::Metrics => metrics::page(&client.core, queues).await,
        Route::OpenApi => health::page(StatusCode::OK, "application/json", api::OPENAPI),
        _ => health::healthz(),
    })
}

/// Begins a backup if the client has the right to it.
async fn back_up(
    client: &Arc<Client>,
    queues: &Queues,
    index: u64,
    parts: &Parts,
    body: Incoming,
) -> Result<backup::Stream, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET",
        });
    }
    let is_json = |kind: &HeaderValue| kind.as_bytes().eq_ignore_ascii_case(b"application/json");
    if client.core.authenticator.is_none() && !parts.headers.get(CONTENT_TYPE).is_some_and(is_json)
    {
        return Err(Refusal::BackupByLink);
    }
    let identified = identify(client, index, parts, body).await?;
    if identified.identity.is_some_and(|key| !key.may_everything()) {
        return Err(Refusal::BackupDenied);
    }
    backup::begin(client, queues).await
}

fn stream_answer(stream: backup::Stream) -> Response<Answer> {
    let mut answer = Response::new(Answer::Backup(stream));
    let headers = answer.headers_mut();
    let content_type = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let name = HeaderValue::from_static("attachment; filename=\"lockgate.backup\"");
    headers.insert(CONTENT_DISPOSITION, name);
    answer
}

/// Begins to send events of a ledger, or says why it does not.
async fn begin_to_follow(
    client: &Arc<Client>,
    queues: &Queues,
    index: u64,
    parts: &Parts,
    body: Incoming,
) -> Result<Result<follow::Stream, api::Problem>, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET",
        });
    }
    let identified = identify(client, index, parts, body).await?;
    let request = api_request(client, parts, &identified)?;
    let follow = queues.api.follow(&request);
    let stream = follow
        .await
        .map(|follow| follow::Stream::new(follow, client));
    Ok(stream)
}

fn follow_answer(stream: follow::Stream) -> Response<Answer> {
    let mut answer = Response::new(Answer::Follow(stream));
    let headers = answer.headers_mut();
    let content_type = HeaderValue::from_static("application/x-ndjson");
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(NO_SNIFF, HeaderValue::from_static("nosniff"));
    answer
}

async fn serve_sqs(
    client: &Client,
    queues: &Queues,
    index: u64,
    parts: &Parts,
    body: Incoming,
) -> Result<response::Response, Refusal> {
    if !matches!(parts.method, Method::GET | Method::POST) {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET, POST",
        });
    }
    let Identified {
        body,
        query,
        identity,
        is_signed_for_sns,
    } = identify(client, index, parts, body).await?;
    let text = |name: HeaderName| {
        let value = parts.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    if parts.headers.contains_key(api::FENCE) {
        return Err(Refusal::Fence);
    }
    let target = text(TARGET);
    let content_type = text(CONTENT_TYPE);
    if let (None, Some(kind)) = (&target, &content_type)
        && !body.bytes.is_empty()
        && !is_form_or_json(kind)
    {
        let kind = kind.clone();
        return Err(Refusal::ContentType { kind });
    }
    let request = sqs::Request {
        target,
        content_type,
        accept: text(ACCEPT),
        path: parts.uri.path().to_owned(),
        query,
        trace_id: text(TRACE_ID),
        query_mode: parts
            .headers
            .get(QUERY_MODE)
            .is_some_and(|mode| mode.as_bytes().eq_ignore_ascii_case(b"true")),
        body: body.bytes.clone(),
        holder: holder(client, &parts.headers)?,
        by_link: identity.is_none() && is_link(parts),
        identity,
        hangup: client.progress.hangup().clone(),
        host: queues
            .advertised_host
            .clone()
            .or_else(|| text(HOST))
            .unwrap_or_else(|| client.local.to_string()),
    };
    let is_sns = sns::is_meant(&request);
    if let Some(found) = is_signed_for_sns.filter(|found| *found != is_sns) {
        let word = |is_sns| if is_sns { "sns" } else { "sqs" };
        let error = AuthError::Scope {
            what: "service",
            expected: word(is_sns).to_owned(),
            found: word(found).to_owned(),
        };
        return match is_sns {
            true => Ok(sns::unauthenticated(&error, &queues.service.request_id())),
            false => Err(Refusal::Authentication { error }),
        };
    }
    if is_sns {
        let id = queues.service.request_id();
        return Ok(queues.sns.handle(&request, &id).await);
    }
    Ok(queues.service.handle(request).await)
}

/// Whether another site's page can make a browser send this request without `Origin`: as a link, an
/// image or a form. Browsers send `Origin` with every POST of a page.
fn is_link(parts: &Parts) -> bool {
    let signed = |value: &HeaderValue| value.as_bytes().starts_with(b"AWS");
    // A browser may send other credentials by itself, such as a password that it remembers.
    parts.method == Method::GET && !parts.headers.get(AUTHORIZATION).is_some_and(signed)
}

/// Whether the server reads a body of that type. Other bodies are refused, not ignored.
fn is_form_or_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
        || kind.to_ascii_lowercase().contains("json")
}

async fn serve_api(
    client: &Client,
    queues: &Queues,
    index: u64,
    parts: &Parts,
    body: Incoming,
) -> Result<response::Response, Refusal> {
    let identified = identify(client, index, parts, body).await?;
    let request = api_request(client, parts, &identified)?;
    let mut response = queues.api.handle(request).await;
    // Browsers must not guess another type for an answer.
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers.insert(NO_SNIFF, nosniff);
    Ok(response)
}

fn api_request<'r>(
    client: &Client,
    parts: &'r Parts,
    identified: &'r Identified<'_>,
) -> Result<api::Request<'r>, Refusal> {
    let content_type = parts.headers.get(CONTENT_TYPE);
    Ok(api::Request {
        method: &parts.method,
        path: parts.uri.path(),
        query: identified.query.as_deref(),
        // A value that is no text cannot be one of the allowed types.
        content_type: content_type.map(|value| value.to_str().unwrap_or("?")),
        fence: match parts.headers.get_all(api::FENCE).iter().collect::<Vec<_>>()[..] {
            [] => None,
            // A second value, which a proxy may have joined with a comma, would be no fence at all.
            [value] => Some(value.to_str().unwrap_or("?")),
            _ => Some("?"),
        },
        body: identified.body.bytes.clone(),
        holder: holder(client, &parts.headers)?,
        identity: identified.identity.clone(),
        hangup: client.progress.hangup().clone(),
    })
}

/// A request with its body read, and its sender verified if authentication is on.
pub(super) struct Identified<'c> {
    pub(super) body: body::Whole<'c>,
    /// The part of the URL behind `?`, not decoded; for a signed request, the part that was signed.
    query: Option<String>,
    pub(super) identity: Option<Arc<AccessKey>>,
    /// Whether the signature is for SNS, and not for SQS; `None` without one that is checked.
    is_signed_for_sns: Option<bool>,
}

/// Refuses what can be refused without the body, then reads the body and verifies the sender.
pub(super) async fn identify<'c>(
    client: &'c Client,
    index: u64,
    parts: &Parts,
    body: Incoming,
) -> Result<Identified<'c>, Refusal> {
    let head = Head {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: &parts.headers,
    };
    let mut max = client.core.limits.body_bytes_max;
    if api::is_append(head.method, head.path) {
        max = max.max(api::APPEND_BYTES_MAX);
    }
    let Some(authenticator) = &client.core.authenticator else {
        return Ok(Identified {
            body: body::read(client, index, max, body, false).await?,
            query: head.query.map(ToOwned::to_owned),
            identity: None,
            is_signed_for_sns: None,
        });
    };
    let refused = |error: AuthError| Refusal::Authentication { error };
    let claim = authenticator.claim(head, now()).map_err(refused)?;
    // With an announced digest of the body, the sender is verified before the body is read.
    let announced = BodyDigest::announced(&parts.headers).map_err(|error| refused(error.into()))?;
    let sender = match &announced {
        Some(digest) => Some(
            authenticator
                .verify(&claim, head, digest)
                .map_err(refused)?,
        ),
        None => None,
    };
    let mut body = body::read(client, index, max, body, sender.is_none()).await?;
    let digest = BodyDigest::of(&body.bytes);
    let key = match sender {
        Some(key) if announced.as_ref() == Some(&digest) => key,
        Some(_) => return Err(refused(AuthError::Mismatch)),
        None => authenticator
            .verify(&claim, head, &digest)
            .map_err(refused)?,
    };
    body.sender_is_known();
    Ok(Identified {
        body,
        query: claim.query(head),
        identity: Some(key),
        is_signed_for_sns: Some(claim.service() == "sns"),
    })
}

/// The wall clock in seconds. Signatures carry the time of clients' clocks, so they are not
/// compared with the engine's time.
fn now() -> i64 {
    // No signature fits a time that has no timestamp.
    jiff::Timestamp::try_from(SystemTime::now()).map_or(i64::MIN / 2, jiff::Timestamp::as_second)
}

/// The name that the client gave itself, else its access key and address, else its address.
pub(super) fn holder(client: &Client, headers: &HeaderMap) -> Result<HolderName, Refusal> {
    if let Some(name) = headers.get(CONSUMER) {
        let name = String::from_utf8_lossy(name.as_bytes());
        return HolderName::new(&name).map_err(Refusal::Consumer);
    }
    let peer = client.peer;
    let key = headers.get(AUTHORIZATION).and_then(access_key);
    key.and_then(|key| HolderName::new(&format!("{key}@{peer}")).ok())
        .map_or_else(|| HolderName::new(&peer.to_string()), Ok)
        .map_err(Refusal::Consumer)
}

/// From `AWS4-HMAC-SHA256 Credential=KEY/20261121/us-east-1/sqs/aws4_request, ...`.
fn access_key(authorization: &HeaderValue) -> Option<&str> {
    let (_, credential) = authorization.to_str().ok()?.split_once("Credential=")?;
    let (key, _scope) = credential.split_once('/')?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_api_or_a_page_or_nothing() {
        for (path, route) in [
            ("/", Route::Sqs),
            ("/000000000000/orders.fifo", Route::Sqs),
            ("/000000000000/%2e%2e", Route::Sqs), // a queue name: refused as one
            ("/healthz", Route::Healthz),
            ("/readyz", Route::Readyz),
            ("/metrics", Route::Metrics),
            ("/api/v1/backup", Route::Backup),
            ("/api/v1/backup/", Route::Api),
            ("/api/v1/queues/a/keys/b%2Fc", Route::Api),
            ("/api/v1/ledgers/a/follow", Route::Follow),
            ("/api/v1/ledgers/a/b/follow", Route::Api),
            ("/api/v1/ledgers/follow", Route::Api),
            ("/api/v1/openapi.json", Route::OpenApi),
            ("/api/v1", Route::Unknown),
            ("/api/v10/queues", Route::Unknown),
            ("", Route::Unknown),
            ("//", Route::Unknown),
            ("/healthz/", Route::Unknown),
            ("/favicon.ico", Route::Unknown),
            ("/000000000000", Route::Sqs),
            ("/000000000000/", Route::Sqs),
            ("/000000000000/orders/", Route::Sqs),
            ("/queue/orders", Route::Sqs),
            ("/queue/orders/", Route::Sqs),
            ("/000000000000//", Route::Unknown),
            ("//000000000000", Route::Unknown),
            ("/00000000000", Route::Unknown),
            ("/000000000000/a/b", Route::Unknown),
            ("/000000000000/a//", Route::Unknown),
            ("/queue", Route::Unknown),
            ("/queue/", Route::Unknown),
            ("/queue/a/b", Route::Unknown),
            ("/queues/a", Route::Unknown),
            ("*", Route::Unknown),
        ] {
            assert_eq!(Route::of(path), route, "{path:?}");
        }
    }

    #[test]
    fn the_access_key_is_found_where_signatures_have_it() {
        let key =
            |text: &'static str| access_key(&HeaderValue::from_static(text)).map(ToOwned::to_owned);
        assert_eq!(
            key(
                "AWS4-HMAC-SHA256 Credential=AKID/20261121/us-east-1/sqs/aws4_request, Signature=x"
            ),
            Some("AKID".to_owned())
        );
        assert_eq!(key("Basic x"), None);
        assert_eq!(key("Credential=AKID"), None);
    }
}

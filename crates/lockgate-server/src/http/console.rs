//! Pages of the console for browsers: who asks, and the admin API for them.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    body::Incoming,
    header::{
        ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE,
        HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
    },
    http::request::Parts,
};
use lockgate_console::{
    self as console, Answer, Api, FORM_BYTES_MAX, Figures, Inside, Login, Point, Reply, Request,
    Span,
};
use lockgate_core::{HolderName, QueueName};
use lockgate_engine::Engine;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{select, time::Instant};

use super::{
    Core, Queues, body,
    connection::Client,
    printable::Printable,
    progress::Hangup,
    refusal::Refusal,
    response::Response,
    router::{TARGET, holder},
    seen::Seen,
};
use crate::{
    api,
    auth::{AccessKey, Secret, Verb},
};

/// The largest form of a login.
const LOGIN_BYTES_MAX: usize = 4096;

/// The console of a server.
#[derive(Debug)]
pub(super) struct Console {
    pages: console::Console<Arc<AccessKey>>,
    began: Instant,
    seen: Seen,
}

/// What a browser asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked<'p> {
    /// The address of the server itself: the browser is sent to the console.
    Home,
    /// A page: the part of the path behind `/console`.
    Page(&'p str),
}

/// Whether that can be a base path.
pub(crate) fn is_base_path(base: &str) -> bool {
    console::Console::<()>::new(base, [0; 32]).is_some()
}

impl Console {
    /// `base` has been checked.
    pub(super) fn new(base: &str, engine: &Engine) -> Self {
        let secret = Sha256::new()
            .chain_update(b"console")
            .chain_update(engine.secret());
        let secret: [u8; 32] = secret.finalize().into();
        let pages = console::Console::new(base, secret);
        Self {
            pages: pages.expect("the options have been checked"),
            began: Instant::now(),
            seen: Seen::default(),
        }
    }

    /// Looks at the figures once a second. Never ends.
    pub(super) async fn watch(&self, api: &api::Service, engine: &Engine) {
        self.seen.watch(api, engine).await;
    }

    /// What a request asks of the console, if it is for it. Programs that speak the SQS API are not sent here.
    pub(super) fn asked<'p>(&self, parts: &'p Parts) -> Option<Asked<'p>> {
        let path = parts.uri.path();
        let wants_page = |value: &HeaderValue| {
            let value = value.to_str().unwrap_or("");
            value
                .split(',')
                .any(|kind| kind.trim().starts_with("text/html"))
        };
        let is_browser = path == "/"
            && parts.uri.query().is_none()
            && matches!(parts.method, Method::GET | Method::HEAD)
            && !parts.headers.contains_key(TARGET)
            && !parts.headers.contains_key(AUTHORIZATION)
            && parts.headers.get_all(ACCEPT).iter().any(wants_page);
        if is_browser {
            return Some(Asked::Home);
        }
        self.pages.path(path).map(Asked::Page)
    }

    /// Who asks, by the session; what their key may do now.
    fn caller(&self, core: &Core, headers: &HeaderMap) -> Option<(String, Arc<AccessKey>)> {
        let cookie = headers.get(COOKIE)?.to_str().ok();
        let (session, then) = self.pages.session(cookie, self.began.elapsed())?;
        let now = core.authenticator.as_ref()?.keys().get(&then.id)?;
        now.secret.is(&then.secret).then_some((session, now))
    }
}

/// Answers a browser.
pub(super) async fn serve(
    client: &Client,
    queues: &Queues,
    index: u64,
    asked: Asked<'_>,
    parts: &Parts,
    body: Incoming,
) -> Result<Response, Refusal> {
    let Console { pages, .. } = &queues.console;
    let path = match asked {
        Asked::Home => return Ok(page(Answer::to(pages.home()), None)),
        Asked::Page(path) => path,
    };
    let is_post = parts.method == Method::POST;
    if !is_post && !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Refusal::Method {
            method: parts.method.to_string(),
            allowed: "GET, HEAD, POST",
        });
    }
    if let Some((kind, text)) = console::Console::<()>::asset(path).filter(|_| !is_post) {
        return Ok(asset(kind, text));
    }
    let is_open = client.core.authenticator.is_none();
    if path == "/login" && !is_open {
        if !is_post {
            return Ok(page(pages.login_page(false), None));
        }
        let form = body::read(client, index, LOGIN_BYTES_MAX, body, true).await?;
        return Ok(log_in(client, queues, &form.bytes));
    }
    let caller = queues.console.caller(&client.core, &parts.headers);
    if caller.is_none() && !is_open {
        return Ok(page(Answer::to(format!("{}/login", pages.home())), None));
    }
    if path == "/events" && !is_post {
        return Ok(event(client, &queues.console.seen).await);
    }
    let (session, key) = caller.unzip();
    let form = match is_post {
        true => Some(body::read(client, index, FORM_BYTES_MAX, body, false).await?),
        false => None,
    };
    let form = form.as_ref().map(|form| &*form.bytes);
    if let (Some(session), "/logout", Some(form)) = (&session, path, form)
        && pages.allows(Some(session), form)
    {
        pages.log_out(session);
        let cookie = pages.set_cookie(None, client.core.tls.is_some());
        return Ok(page(
            Answer::to(format!("{}/login", pages.home())),
            Some(&cookie),
        ));
    }
    let who = key.as_ref().map(|key| key.id.clone());
    let caller = Caller {
        queues,
        key,
        holder: holder(client, &parts.headers)?,
        hangup: client.progress.hangup(),
    };
    let request = Request {
        path,
        query: parts.uri.query(),
        form,
        session: session.as_deref(),
        who: who.as_deref(),
    };
    let answer = pages.answer(request, &caller).await;
    if let Some(change) = &answer.change {
        let who = who.as_deref().unwrap_or("");
        tracing::info!(
            target: "lockgate::audit",
            peer = %client.peer,
            key = who,
            what = %Printable(&change.what),
            status = change.status,
            "a change by the console"
        );
        let at = queues.engine.now().wall;
        queues
            .console
            .seen
            .note(at, who, client.peer.to_string(), change);
    }
    Ok(page(answer, None))
}

/// Waits until there is something new to see, and says so.
async fn event(client: &Client, seen: &Seen) -> Response {
    let mut headers = headers(console::EVENT_TYPE, "no-store");
    let Some(mut waiting) = seen.wait() else {
        // Then the browser gives up, and its page is as old as it says.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        return Response {
            status: StatusCode::SERVICE_UNAVAILABLE,
            headers,
            body: Bytes::from_static(b"Too many pages are live."),
            action: None,
            on_sent: None,
        };
    };
    select! {
        () = waiting.changed() => {}
        () = client.core.drain.begun() => {}
        () = client.progress.hangup().come() => {}
    }
    Response {
        status: StatusCode::OK,
        headers,
        body: Bytes::from_static(console::EVENT.as_bytes()),
        action: None,
        on_sent: None,
    }
}

/// Begins a session if the secret is that of the key.
fn log_in(client: &Client, queues: &Queues, form: &[u8]) -> Response {
    let Console { pages, began, .. } = &queues.console;
    let Login { key: id, secret } = Login::read(form);
    let secret = Secret::new(secret);
    let keys = client.core.authenticator.as_ref().map(|who| who.keys());
    let key = keys.and_then(|keys| keys.get(&id));
    let Some(key) = key.filter(|key| key.secret.is(&secret)) else {
        tracing::warn!(target: "lockgate::audit", peer = %client.peer, "refused a login to the console");
        return page(pages.login_page(true), None);
    };
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        tracing::error!(%error, "the system gives no random bytes");
        let what = "The system gives no random bytes, so there is no session.";
        return page(pages.error_page(503, what), None);
    }
    tracing::info!(target: "lockgate::audit", peer = %client.peer, key = key.id, "a login to the console");
    let session = pages.log_in(random, key, began.elapsed());
    let cookie = pages.set_cookie(Some(&session), client.core.tls.is_some());
    page(Answer::to(pages.home()), Some(&cookie))
}

/// The admin API as whoever has logged in.
struct Caller<'a> {
    queues: &'a Queues,
    key: Option<Arc<AccessKey>>,
    holder: HolderName,
    hangup: &'a Hangup,
}

impl Api for Caller<'_> {
    async fn call(&self, method: &'static str, path: &str, body: Option<Value>) -> Reply {
        let method = match method {
            "POST" => Method::POST,
            "DELETE" => Method::DELETE,
            _ => Method::GET,
        };
        let path = format!("{}{path}", api::PREFIX);
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*path, None),
        };
        let body = body.map(|body| Bytes::from(body.to_string()));
        let request = api::Request {
            method: &method,
            path,
            query,
            content_type: Some("application/json"),
            body: body.unwrap_or_default(),
            fence: None,
            holder: self.holder.clone(),
            identity: self.key.clone(),
            hangup: self.hangup.clone(),
        };
        let response = self.queues.api.handle(request).await;
        Reply {
            status: response.status.as_u16(),
            body: serde_json::from_slice(&response.body).unwrap_or_default(),
        }
    }

    async fn figures(&self) -> Option<Figures> {
        self.queues.api.figures(self.key.as_deref()).await
    }

    fn history(&self, span: Span) -> Option<(Vec<Point>, Vec<Point>)> {
        let key = self.key.as_ref();
        let may = key.is_none_or(|key| key.may_everywhere(Verb::Read));
        may.then(|| self.queues.console.seen.history().all(span))
    }

    fn history_of(&self, queue: &str, span: Span) -> Option<Vec<Point>> {
        let name = QueueName::new(queue).ok()?;
        let key = self.key.as_ref();
        let may = key.is_none_or(|key| key.may(Verb::Read, &name));
        may.then(|| self.queues.console.seen.history().queue(queue, span))?
    }

    fn inside(&self) -> Option<Inside> {
        let key = self.key.as_ref();
        let may = key.is_none_or(|key| key.may_everything());
        may.then(|| self.queues.console.seen.inside(&self.queues.engine))
    }
}

fn page(answer: Answer, cookie: Option<&str>) -> Response {
    let mut headers = headers(answer.content_type, "no-store");
    // Paths of the console, and cookies that it has made, have no other characters.
    let value = |text: &str| HeaderValue::try_from(text).ok();
    if let Some(location) = answer.location.as_deref().and_then(value) {
        headers.insert(LOCATION, location);
    }
    if let Some(cookie) = cookie.and_then(value) {
        headers.insert(SET_COOKIE, cookie);
    }
    Response {
        status: StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        headers,
        body: answer.body.into(),
        action: None,
        on_sent: None,
    }
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    Response {
        status: StatusCode::OK,
        headers: headers(kind, "max-age=300"),
        body: Bytes::from_static(text.as_bytes()),
        action: None,
        on_sent: None,
    }
}

fn headers(kind: &'static str, caching: &'static str) -> HeaderMap {
    let pairs: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, caching),
        (CONTENT_SECURITY_POLICY, console::CONTENT_SECURITY_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer` browsers would send forms with `Origin: null`, which is refused.
        (REFERRER_POLICY, "same-origin"),
    ];
    let pair = |(name, value)| (name, HeaderValue::from_static(value));
    pairs.map(pair).into_iter().collect()
}

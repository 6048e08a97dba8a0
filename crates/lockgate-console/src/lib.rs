//! The console: pages for browsers over the admin API.
//!
//! Every page and every button is one or more calls of the admin API ([`Api`]), made as whoever has logged in. So the
//! console has no rules of its own about who may do what, and nothing it can do that a program cannot.
//!
//! Pages are made here and work without a script. Whatever they show is escaped by the templates. Every button is a form
//! with a token that other sites cannot know.
//!
//! This crate does no I/O and reads no clock: the server gives it requests, random bytes and the time.
//!
//! ```
//! use std::time::Duration;
//! use lockgate_console::Console;
//!
//! let console: Console<&str> = Console::new("/lockgate", [7; 32]).unwrap();
//! assert_eq!(console.path("/lockgate/console/queues"), Some("/queues"));
//!
//! let cookie = console.log_in([1; 32], "reader", Duration::ZERO);
//! let soon = Duration::from_secs(60);
//! assert_eq!(console.session(Some(&cookie), soon).map(|(_, who)| who), Some("reader"));
//! assert!(console.session(Some(&cookie), Duration::from_secs(60 * 60 * 24)).is_none());
//! ```

mod body;
mod figures;
mod history;
mod key;
mod messages;
mod overview;
mod page;
mod plot;
mod queue;
mod queues;
mod schedules;
mod server;
mod session;
mod value;

use std::{
    fmt,
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use maud::html;
use serde_json::Value;
use sha2::Sha256;

pub use self::figures::{Figures, QUEUES_MAX, QueueFigures};
pub use self::history::{Counted, History, Point, Span};
pub use self::server::{Changed, Inside};
pub use self::session::{AGE_MAX, SESSIONS_MAX};
use self::{page::View, session::Sessions};

/// What browsers may do with a page: ask this server, and nobody else.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The name of the cookie with the session.
pub const COOKIE: &str = "lockgate_session";

/// The largest form in bytes: a test message and its fields.
pub const FORM_BYTES_MAX: usize = 1 << 20;

/// Fields of a form or of a query that are read; no page has as many.
const FIELDS_MAX: usize = 32;

/// The media type of [`EVENT`].
pub const EVENT_TYPE: &str = "text/event-stream";

/// An answer to a browser that waits for a change. It is the whole answer: the browser then waits again, after a second.
pub const EVENT: &str = "retry: 1000\ndata: changed\n\n";

/// The admin API as somebody.
pub trait Api: Sync {
    /// Makes a call. `path` is that behind `/api/v1`, with its query, encoded.
    fn call(
        &self,
        method: &'static str,
        path: &str,
        body: Option<Value>,
    ) -> impl Future<Output = Reply> + Send;

    /// The figures of the queues that whoever asks may read. `None`: the server is stopping.
    fn figures(&self) -> impl Future<Output = Option<Figures>> + Send;

    /// The points of all queues together and of the server. `None`: whoever asks may not read all queues.
    fn history(&self, span: Span) -> Option<(Vec<Point>, Vec<Point>)>;

    /// The points of a queue. `None`: it has none, or whoever asks may not read it.
    fn history_of(&self, queue: &str, span: Span) -> Option<Vec<Point>>;

    /// More of the server. `None`: whoever asks may not do everything.
    fn inside(&self) -> Option<Inside>;
}

/// The answer of the admin API.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status of HTTP.
    pub status: u16,
    /// The JSON: an answer, or a problem.
    pub body: Value,
}

/// A request for a page.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The part behind `/console`, not decoded.
    pub path: &'a str,
    /// The part behind the question mark, not decoded.
    pub query: Option<&'a str>,
    /// What was posted; `None`: a GET.
    pub form: Option<&'a [u8]>,
    /// The session, if there is one.
    pub session: Option<&'a str>,
    /// Who asks, if that is known.
    pub who: Option<&'a str>,
}

/// An answer for a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// The header `Location`.
    pub location: Option<String>,
    /// The page.
    pub body: String,
    /// What the request has changed, for the audit log.
    pub change: Option<Change>,
}

/// A change that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its method and path of the admin API.
    pub what: String,
    /// The status of the API's answer.
    pub status: u16,
}

/// A login form that was posted.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The id of an access key.
    pub key: String,
    /// Its secret.
    pub secret: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Login {
    /// Reads the form.
    #[must_use]
    pub fn read(form: &[u8]) -> Self {
        let mut fields = Fields::read(form);
        Self {
            key: fields.take("key"),
            secret: fields.take("secret"),
        }
    }
}

/// The console of a server. `T` is what the server keeps of whoever has logged in.
pub struct Console<T> {
    base: String,
    secret: [u8; 32],
    sessions: Mutex<Sessions<T>>,
}

impl<T> fmt::Debug for Console<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl<T: Clone> Console<T> {
    /// `base` is the path that a proxy puts in front of `/console`: empty, or `/a/b`. `secret` must be random.
    /// `None` if `base` is no such path.
    #[must_use]
    pub fn new(base: &str, secret: [u8; 32]) -> Option<Self> {
        is_base(base).then(|| Self {
            base: base.to_owned(),
            secret,
            sessions: Mutex::default(),
        })
    }

    /// The part of a path behind `/console`, if it is one of the console. A proxy may cut the base path off, or leave it.
    #[must_use]
    pub fn path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let path = path.strip_prefix(self.base.as_str()).unwrap_or(path);
        let rest = path.strip_prefix("/console")?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// Where the console begins.
    #[must_use]
    pub fn home(&self) -> String {
        format!("{}/console", self.base)
    }

    /// Begins a session, and ends the oldest one if there are too many. `id` must be random. Gives the session.
    pub fn log_in(&self, id: [u8; 32], who: T, now: Duration) -> String {
        let session = hex(&id);
        self.sessions().add(session.clone(), who, now);
        session
    }

    /// Ends a session.
    pub fn log_out(&self, session: &str) {
        self.sessions().remove(session);
    }

    /// The session that is named in a `Cookie`, or by itself, and who has it.
    pub fn session(&self, cookie: Option<&str>, now: Duration) -> Option<(String, T)> {
        let cookie = cookie?;
        let named = cookie.split(';').map(str::trim).find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            (name == COOKIE).then_some(value)
        });
        let session = named.unwrap_or(cookie);
        let who = self.sessions().find(session, now)?;
        Some((session.to_owned(), who))
    }

    /// The header `Set-Cookie` for a session; `None` takes the cookie away.
    #[must_use]
    pub fn set_cookie(&self, session: Option<&str>, https: bool) -> String {
        let (value, age) = match session {
            Some(session) => (session, AGE_MAX.as_secs()),
            None => ("", 0),
        };
        let secure = if https { "; Secure" } else { "" };
        let path = self.home();
        format!("{COOKIE}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions<T>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A style sheet or a script.
    #[must_use]
    pub fn asset(path: &str) -> Option<(&'static str, &'static str)> {
        match path {
            "/assets/console.css" => Some(("text/css; charset=utf-8", include_str!("console.css"))),
            "/assets/console.js" => {
                Some(("text/javascript; charset=utf-8", include_str!("console.js")))
            }
            "/assets/icon.svg" => Some(("image/svg+xml", include_str!("icon.svg"))),
            _ => None,
        }
    }

    /// Whether a form has the token of that session.
    #[must_use]
    pub fn allows(&self, session: Option<&str>, form: &[u8]) -> bool {
        self.is_token(session, Fields::read(form).get("token"))
    }

    /// The page to log in. `failed`: the last try did.
    #[must_use]
    pub fn login_page(&self, failed: bool) -> Answer {
        let view = View {
            home: self.home(),
            token: String::new(),
            who: None,
            is_login: true,
        };
        let body = html! {
            @if failed { p.problem role="alert" { "There is no such access key with that secret." } }
            form method="post" action={ (view.home) "/login" } {
                label { "Access key" input name="key" autocomplete="username" required autofocus; }
                label { "Secret" input name="secret" type="password" autocomplete="current-password" required; }
                button { "Log in" }
            }
        };
        let mut answer = view.page("Log in", &body);
        answer.status = if failed { 403 } else { 200 };
        answer
    }

    /// A page that says what is wrong.
    #[must_use]
    pub fn error_page(&self, status: u16, what: &str) -> Answer {
        self.view(None, None).problem(status, what)
    }

    /// Answers a request. Whoever asks has logged in, where that is needed.
    pub async fn answer(&self, request: Request<'_>, api: &impl Api) -> Answer {
        let view = self.view(request.session, request.who);
        let path = request.path.trim_end_matches('/');
        let query = Fields::read(request.query.unwrap_or("").as_bytes());
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        if parts.iter().any(|part| !is_plain(part)) {
            return view.nothing();
        }
        let Some(form) = request.form else {
            return match *parts {
                [] => overview::show(&view, api, &query).await,
                ["queues"] => queues::list(&view, api, &query).await,
                ["queues", queue] => queue::show(&view, api, queue, &query).await,
                ["queues", queue, "keys"] => key::list(&view, api, queue, &query).await,
                ["queues", queue, "key"] => key::show(&view, api, queue, &query).await,
                ["queues", queue, "messages"] => messages::list(&view, api, queue, &query).await,
                ["queues", queue, "dead-letters"] => {
                    messages::dead_letters(&view, api, queue, &query).await
                }
                ["schedules"] => schedules::list(&view, api, &query).await,
                ["schedule"] => schedules::show(&view, api, &query).await,
                ["server"] => server::show(&view, api).await,
                _ => view.nothing(),
            };
        };
        let form = Fields::read(form);
        if !self.is_token(request.session, form.get("token")) {
            let what =
                "The form is of another session, or older than the server. Load its page again.";
            return view.problem(403, what);
        }
        match *parts {
            ["schedule", action] => schedules::act(&view, api, action, &form).await,
            ["queues"] => queues::create(&view, api, &form).await,
            ["queues", queue, "send"] => messages::send(&view, api, queue, &form).await,
            ["queues", queue, "redrive"] => messages::redrive(&view, api, queue, &form).await,
            ["queues", queue, "key", action] => key::act(&view, api, queue, action, &form).await,
            ["queues", queue, action] => queue::act(&view, api, queue, action, &form).await,
            _ => view.nothing(),
        }
    }

    fn view(&self, session: Option<&str>, who: Option<&str>) -> View {
        View {
            home: self.home(),
            token: hex(&self.token(session).finalize().into_bytes()),
            who: who.map(ToOwned::to_owned),
            is_login: false,
        }
    }

    /// What the forms of a session have, and nobody else knows.
    fn token(&self, session: Option<&str>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("any key will do");
        mac.update(session.unwrap_or("nobody").as_bytes());
        mac
    }

    /// Compares in a time that tells nothing.
    fn is_token(&self, session: Option<&str>, given: &str) -> bool {
        let bytes = |at: usize| u8::from_str_radix(given.get(at..at + 2)?, 16).ok();
        let given: Option<Vec<u8>> = (0..given.len()).step_by(2).map(bytes).collect();
        given.is_some_and(|given| self.token(session).verify_slice(&given).is_ok())
    }
}

impl Answer {
    /// Sends the browser to another page.
    #[must_use]
    pub fn to(location: String) -> Self {
        Self {
            status: 303,
            content_type: "text/plain; charset=utf-8",
            location: Some(location),
            body: String::new(),
            change: None,
        }
    }
}

fn is_base(base: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && is_plain(part);
    base.is_empty()
        || base
            .strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(is_part))
}

/// Whether a part of a path is one of the console's: names of queues need no encoding, and keys are in queries, since
/// browsers take `%2E%2E` in a path for the folder above.
fn is_plain(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    part.len() <= 128 && part.bytes().all(is_plain) && part != "." && part != ".."
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fields of a form or of a query.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn read(text: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(text).take(FIELDS_MAX);
        Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The value of a field, empty if it is not there.
    fn get(&self, name: &str) -> &str {
        let mut pairs = self.0.iter();
        pairs
            .find(|(given, _)| given == name)
            .map_or("", |(_, value)| value)
    }

    fn take(&mut self, name: &str) -> String {
        let mut pairs = self.0.iter_mut();
        let found = pairs.find(|(given, _)| given == name);
        found.map_or_else(String::new, |(_, value)| std::mem::take(value))
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;

//! `lockgate send`, and `lockgate exchange publish` of many messages.

pub(super) mod lines;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::lines::fuzz_line;
use self::lines::{Form, Outgoing, Pump};
use super::{NOTHING, Retry, Watch, block_on, client, exchange::Published, millis, once, part};
use crate::{
    args::{ExchangePublish, Send},
    client::{Body, CallError, Client, Header, Message, exit_of, hint_for_code},
    exit::{Exit, Failure},
    output::{Output, count, note},
    units::show_size,
};

/// What goes into one call. The server takes more messages, and about four times the bytes.
const CALL_MESSAGES_MAX: usize = 100;
const CALL_BYTES_MAX: usize = 1 << 20;

/// How long queues remember unique ids that nobody has set otherwise. Those behind an exchange may do so for a shorter or a longer
/// time, which a publisher cannot know.
const EXCHANGE_DEDUP_WINDOW: Duration = Duration::from_secs(300);

/// The largest file that is read as a body: as the largest message that a queue can be set to take.
pub(super) const BODY_BYTES_MAX: u64 = 16 << 20;

/// What a sender must know of a queue.
#[derive(Deserialize)]
struct Sending {
    keyed: bool,
    dedup_content: bool,
    #[serde(default)]
    dedup_window_ms: u64,
}

/// What became of messages.
#[derive(Deserialize)]
pub(super) struct Results {
    pub(super) results: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Outcome {
    Sent(Sent),
    Refused { problem: Problem },
}

/// A message that was sent, as `--json` prints it.
#[derive(Serialize, Deserialize)]
pub(super) struct Sent {
    id: String,
    sequence: u64,
    duplicate: bool,
}

/// What became of a message that was taken, as `--json` prints it.
#[derive(Serialize)]
#[serde(untagged)]
enum Taken {
    Sent(Sent),
    Published(Published),
}

impl Taken {
    /// Whether nothing was added.
    fn is_known(&self) -> bool {
        match self {
            Self::Sent(sent) => sent.duplicate,
            Self::Published(it) => it.copies > 0 && it.copies == it.duplicates,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Problem {
    status: u16,
    pub(super) code: String,
    detail: String,
}

impl Problem {
    /// The refusal of a message in a transaction, and its index. `list` is `sends` or `publishes`.
    fn of_part(error: &CallError, list: &str) -> Option<(usize, Self)> {
        let (status, code, field, detail) = error.refusal()?;
        let (_, rest) = field?.strip_prefix(list)?.split_once('[')?;
        let (at, _) = rest.split_once(']')?;
        let at: usize = at.parse().ok()?;
        let problem = Self {
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.to_owned(),
        };
        let problem = problem
            .without(&format!("message {at} of the transaction was refused"))
            .without(&format!("publish {at} of the transaction was refused"))
            .without(&format!("{list}[{at}]"))
            .without("message");
        Some((at, problem))
    }

    /// Whether the same may be taken in a moment.
    pub(super) fn may_pass(&self) -> bool {
        self.status >= 500 || self.status == 429
    }

    /// The same, without the place in the request that its words begin with.
    fn without(mut self, place: &str) -> Self {
        let rest = self.detail.strip_prefix(place);
        let rest = rest.filter(|rest| rest.starts_with(['.', ':']));
        if let Some(rest) = rest {
            self.detail = rest.trim_start_matches(['.', ':', ' ']).to_owned();
        }
        self
    }

    /// As a failure; `at` is the place in the request that the server names.
    pub(super) fn failure(&self, at: &str) -> Failure {
        let Self {
            status,
            code,
            detail,
        } = self;
        let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_REQUEST);
        let detail = detail.strip_prefix(at).unwrap_or(detail);
        let detail = detail.trim_start_matches(['.', ':', ' ']);
        let failure = Failure::new(exit_of(status, code), format!("{detail} ({code})"));
        match &**code {
            "key_required" => failure.hint(
                "give it one with --key; each line of JSON may have its own: {\"key\": ..., \"body\": ...}",
            ),
            "key_not_taken" => failure
                .hint("a group is given with --group; a queue is keyed if its name ends in .fifo"),
            code => match hint_for_code(code) {
                Some(hint) => failure.hint(hint),
                None => failure,
            },
        }
    }
}

pub(crate) fn run(args: Send) -> Result<(), Failure> {
    with_progress(move |progress| send_all(&args, progress))
}

/// Tells how far it came if a signal ends it.
pub(super) fn with_progress(
    send: impl FnOnce(Arc<Mutex<Progress>>) -> Result<(), Failure> + std::marker::Send + 'static,
) -> Result<(), Failure> {
    let progress = Arc::new(Mutex::new(Progress::default()));
    let sends = progress.clone();
    let done = Watch::new()?.over(move || send(sends));
    if matches!(&done, Err(failure) if failure.is_signal()) {
        note(&lock(&progress).words_at_signal());
    }
    done
}

/// Publishes the messages of lines to an exchange.
pub(super) fn publish_lines(
    args: &ExchangePublish,
    source: &Path,
    progress: Arc<Mutex<Progress>>,
) -> Result<(), Failure> {
    once("header", args.header.iter().map(|(name, ..)| name))?;
    let headers = args.header.iter().map(|(name, kind, value)| {
        let header = Header::text(kind.clone(), value.clone());
        (name.clone(), header)
    });
    let defaults = Message {
        key: args.key.clone(),
        headers: headers.collect(),
        ..Message::default()
    };
    let client = client(&args.exchange.settings)?;
    let dedup = match args.unique_ids {
        true => Dedup::UniqueId,
        false => Dedup::None,
    };
    block_on(async {
        let name = args.exchange.name.clone();
        let mut sender = Sender {
            is_exchange: true,
            json: args.exchange.json,
            dedup_window: EXCHANGE_DEDUP_WINDOW,
            ..Sender::over(client, name, dedup, progress)
        };
        let form = Form::Routed(args.routing_key.clone());
        let mut pump = Pump::start(source, defaults, form)?;
        sender.drain(&mut pump).await?;
        sender.finish()
    })
}

fn send_all(args: &Send, progress: Arc<Mutex<Progress>>) -> Result<(), Failure> {
    once("header", args.header.iter().map(|(name, ..)| name))?;
    if args.reads_lines() && args.unique_id.is_some() {
        let what = "--unique-id is for one message; lines bring their own, as \"unique_id\"";
        return Err(Failure::usage(what)
            .hint("say the message's body: `lockgate send QUEUE --unique-id ID BODY`, or --file, or --raw"));
    }
    if args.reads_lines() && args.lines.is_none() && io::stdin().is_terminal() {
        note("reading messages from the terminal, a JSON object a line; Ctrl-D ends");
    }
    let client = client(&args.settings)?;
    let headers = args.header.iter().map(|(name, kind, value)| {
        let header = Header::text(kind.clone(), value.clone());
        (name.clone(), header)
    });
    let defaults = Message {
        key: args.key.clone(),
        group: args.group.clone(),
        delay_ms: args.delay.map(millis),
        due_at: args.at.map(|at| at.to_string()),
        priority: args.priority.unwrap_or(0),
        headers: headers.collect(),
        ..Message::default()
    };
    block_on(async {
        let mut sender = Sender::new(client, args, progress).await?;
        if args.reads_lines() {
            let source = args.lines.as_deref().unwrap_or(Path::new("-"));
            let mut pump = Pump::start(source, defaults, Form::Messages)?;
            sender.drain(&mut pump).await?;
        } else {
            let message = Message {
                body: body(args)?,
                unique_id: args.unique_id.clone(),
                ..defaults
            };
            let message = Outgoing {
                message,
                ..Outgoing::default()
            };
            sender.send(vec![message]).await?;
        }
        sender.finish()
    })
}

/// The body of the only message.
fn body(args: &Send) -> Result<Body, Failure> {
    let bytes = match (&args.body, &args.file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(path)) => File::open(path)
            .and_then(read)
            .map_err(|error| unreadable(&error, path.display()))?,
        (None, None) => read(io::stdin()).map_err(|error| unreadable(&error, "standard input"))?,
    };
    if !args.base64 {
        return Ok(Body::bytes(&bytes));
    }
    let digits: Vec<u8> = bytes
        .into_iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let bytes = STANDARD
        .decode(digits)
        .map_err(|error| Failure::usage(format!("--base64: the body is no base64: {error}")))?;
    Ok(Body::bytes(&bytes))
}

fn read(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Half as much again for base64.
    source
        .take(BODY_BYTES_MAX * 3 / 2)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 == BODY_BYTES_MAX * 3 / 2 {
        let max = show_size(BODY_BYTES_MAX);
        return Err(io::Error::other(format!(
            "it is larger than {max}, the largest message"
        )));
    }
    Ok(bytes)
}

pub(super) fn unreadable(error: &io::Error, what: impl std::fmt::Display) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("reading {what}: {error}"))
}

struct Sender {
    client: Client,
    /// That of the queue or the exchange.
    name: String,
    is_exchange: bool,
    dedup: Dedup,
    /// How long a unique id is remembered.
    dedup_window: Duration,
    json: bool,
    output: Output,
    /// Nobody reads standard output any more.
    unread: bool,
    progress: Arc<Mutex<Progress>>,
    duplicates: u64,
    /// Duplicates of what this run has sent itself, as far as one can tell.
    repeated: u64,
    /// Of an exchange.
    copies: u64,
    skipped: u64,
    dropped: u64,
}

/// How far the sending came. Whoever hears a signal reads it.
#[derive(Default)]
pub(super) struct Progress {
    sent: u64,
    /// Where the messages come from that a call carries now.
    under_way: Option<String>,
}

/// A call that was given up on.
enum Unsent {
    Unanswered {
        /// Why, the last time.
        error: Box<CallError>,
        /// Whether no attempt can have had an effect.
        nothing_done: bool,
    },
    /// Nothing was sent, because of the message with that index.
    Refused { at: usize, problem: Problem },
}

/// How the queue recognises a repeated message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dedup {
    /// It does not.
    None,
    /// By the message's unique id, which is made up where there is none.
    UniqueId,
    /// By the message's unique id, or else by its body.
    Content,
}

impl Sender {
    async fn new(
        client: Client,
        args: &Send,
        progress: Arc<Mutex<Progress>>,
    ) -> Result<Self, Failure> {
        let name = args.queue.clone();
        let target = format!("/queues/{}/sending", part(&name));
        let mut sending = client.call(Method::GET, &target, NOTHING).await;
        if args.create && matches!(&sending, Err(error) if error.is_queue_missing()) {
            create(&client, &name).await?;
            sending = client.call(Method::GET, &target, NOTHING).await;
        }
        let sending: Sending = match sending {
            Err(error) if error.is_name_unknown() => {
                return Err(Failure::from(error).hint(format!(
                    "make it with `lockgate queue create {name}`, or say --create"
                )));
            }
            sending => sending?,
        };
        let dedup = match (sending.dedup_content, sending.keyed) {
            (true, _) => Dedup::Content,
            (false, true) => Dedup::UniqueId,
            (false, false) => Dedup::None,
        };
        Ok(Self {
            dedup_window: Duration::from_millis(sending.dedup_window_ms),
            json: args.json,
            ..Self::over(client, name, dedup, progress)
        })
    }

    /// To a queue.
    fn over(client: Client, name: String, dedup: Dedup, progress: Arc<Mutex<Progress>>) -> Self {
        Self {
            client,
            name,
            is_exchange: false,
            dedup,
            dedup_window: Duration::ZERO,
            json: false,
            output: Output::new(),
            unread: false,
            progress,
            duplicates: 0,
            repeated: 0,
            copies: 0,
            skipped: 0,
            dropped: 0,
        }
    }

    /// Sends everything that comes, in order, until the end or the first thing that is wrong.
    async fn drain(&mut self, pump: &mut Pump) -> Result<(), Failure> {
        let mut batch: Vec<Outgoing> = Vec::new();
        let mut bytes = 0;
        // Take what is there, up to a full call, but never wait for a call to become full: a
        // message that somebody types is sent at once.
        while let Some(item) = pump.next().await {
            let mut item = Some(item);
            while let Some(next) = item.take() {
                let message = match next {
                    Ok(message) => message,
                    Err(failure) => {
                        self.send(batch).await?;
                        return Err(self.stopped(failure));
                    }
                };
                let size = message.size();
                let full = batch.len() == CALL_MESSAGES_MAX || bytes + size > CALL_BYTES_MAX;
                if full && !batch.is_empty() {
                    self.send(std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
                bytes += size;
                batch.push(message);
                item = pump.ready();
            }
            self.send(std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
        Ok(())
    }

    /// Sends up to one call's messages, all or none of them. If one is refused, only those before it are sent, so
    /// that none behind it overtakes it.
    async fn send(&mut self, messages: Vec<Outgoing>) -> Result<(), Failure> {
        if messages.is_empty() {
            return Ok(());
        }
        if self.unread {
            let what = "nobody reads standard output any more";
            return Err(self.stopped(Failure::failed(what)));
        }
        let mut left = messages;
        for Outgoing { message, .. } in &mut left {
            if message.unique_id.is_none() && self.dedup == Dedup::UniqueId {
                message.unique_id = Some(random_id()?);
            }
        }
        let mut refused = None;
        // How many of them one call may have.
        let mut most = left.len();
        while !left.is_empty() {
            let bodies = &left[..most.min(left.len())];
            let whole = span(bodies);
            lock(&self.progress).under_way.clone_from(&whole);
            let call = self.call(bodies).await;
            // What is unknown of it is said below.
            lock(&self.progress).under_way = None;
            match call {
                Ok(sent) => {
                    let done = bodies.len();
                    self.report(sent)?;
                    left.drain(..done);
                }
                // The copies of all of them may be too many where those of each are not.
                Err(Unsent::Refused { problem, .. })
                    if problem.code == "route_too_large" && bodies.len() > 1 =>
                {
                    most = bodies.len() / 2;
                }
                Err(Unsent::Refused { at, problem }) => {
                    let mut failure = problem.failure("");
                    if let Some(place) = &left[at].place {
                        failure = failure.context(place.clone());
                    }
                    refused = Some(failure);
                    left.truncate(at);
                }
                Err(Unsent::Unanswered {
                    error,
                    nothing_done,
                }) => {
                    let mut failure = Failure::from(*error);
                    if let Some(whole) = whole {
                        failure = failure.context(whole);
                    }
                    if nothing_done {
                        return Err(self.stopped(failure));
                    }
                    let messages = count(bodies.len() as u64, "message");
                    let before = lock(&self.progress).sent;
                    return Err(failure.hint(match self.is_exchange {
                        false => format!(
                            "whether {messages} arrived is unknown, {before} before were sent: look with `lockgate peek {}`, \
                             and send again what is not there and was not received",
                            self.name
                        ),
                        true => format!(
                            "whether {messages} arrived is unknown, {before} before were published: with unique ids they can \
                             be published again, and --unique-ids makes them"
                        ),
                    }));
                }
            }
        }
        refused.map_or(Ok(()), |failure| Err(self.stopped(failure)))
    }

    /// One call, tried again while that can neither lose nor double a message: nothing was done so far, or the queue
    /// still remembers the messages' unique ids when the last of an attempt can arrive.
    async fn call(&mut self, messages: &[Outgoing]) -> Result<Vec<Taken>, Unsent> {
        let mut retry = Retry::new(self.client.timeout());
        let mut nothing_done = true;
        let begun = Instant::now();
        loop {
            let error = match self.attempt(messages).await {
                Ok(sent) => {
                    let known = sent.iter().filter(|sent| sent.is_known()).count() as u64;
                    match nothing_done {
                        true => self.duplicates += known,
                        false => self.repeated += known,
                    }
                    return Ok(sent);
                }
                Err(Unsent::Unanswered { error, .. }) => error,
                refused => return refused,
            };
            // Also if this attempt did nothing: one before it may have.
            nothing_done &= error.nothing_done();
            let until = begun.elapsed() + Retry::PAUSE_MAX + self.client.timeout();
            let with_ids = || messages.iter().all(|it| it.message.unique_id.is_some());
            let recognised = match self.is_exchange {
                true => with_ids(),
                false => self.dedup != Dedup::None,
            };
            let recognised = recognised && until < self.dedup_window;
            let harmless = nothing_done || recognised;
            if !(error.may_pass() && harmless && retry.again().await) {
                return Err(Unsent::Unanswered {
                    error,
                    nothing_done,
                });
            }
        }
    }

    /// Several messages are a transaction, so that the server takes all of them or none.
    async fn attempt(&self, messages: &[Outgoing]) -> Result<Vec<Taken>, Unsent> {
        if self.is_exchange {
            return self.attempt_to_publish(messages).await;
        }
        #[derive(Deserialize)]
        struct Transacted {
            sent: Vec<Sent>,
        }
        let unanswered = |error: CallError| Unsent::Unanswered {
            nothing_done: error.nothing_done(),
            error: Box::new(error),
        };
        if let [message] = messages {
            let target = format!("/queues/{}/messages", part(&self.name));
            let body = json!({ "messages": [message.message] });
            let answer = self.client.call(Method::POST, &target, Some(&body)).await;
            let Results { results } = answer.map_err(unanswered)?;
            let result = |outcome| match outcome {
                Outcome::Sent(sent) => Ok(Taken::Sent(sent)),
                Outcome::Refused { problem } => Err(Unsent::Refused {
                    at: 0,
                    problem: problem.without("messages[0]"),
                }),
            };
            return results.into_iter().map(result).collect();
        }
        let name = &self.name;
        let send = |it: &Outgoing| json!({"queue": name, "message": it.message});
        let sends: Vec<Value> = messages.iter().map(send).collect();
        let body = json!({ "sends": sends });
        let answer = self
            .client
            .call(Method::POST, "/transactions", Some(&body))
            .await;
        match answer {
            Ok(Transacted { sent }) => Ok(sent.into_iter().map(Taken::Sent).collect()),
            Err(error) => Err(match Problem::of_part(&error, "sends") {
                Some((at, problem)) if at < messages.len() => Unsent::Refused { at, problem },
                _ => unanswered(error),
            }),
        }
    }

    async fn attempt_to_publish(&self, messages: &[Outgoing]) -> Result<Vec<Taken>, Unsent> {
        #[derive(Deserialize)]
        struct Transacted {
            published: Vec<Published>,
        }
        let publishes: Vec<Value> = messages
            .iter()
            .map(|it| {
                json!({
                    "exchange": self.name,
                    "routing_key": it.routing_key,
                    "message": it.message,
                })
            })
            .collect();
        let body = json!({ "publishes": publishes });
        let call = self.client.call(Method::POST, "/transactions", Some(&body));
        match call.await {
            Ok(Transacted { published }) => {
                Ok(published.into_iter().map(Taken::Published).collect())
            }
            Err(error) => Err(match Problem::of_part(&error, "publishes") {
                Some((at, problem)) if at < messages.len() => Unsent::Refused { at, problem },
                _ => Unsent::Unanswered {
                    nothing_done: error.nothing_done(),
                    error: Box::new(error),
                },
            }),
        }
    }

    /// Prints what was sent. Where nobody reads that any more, sending ends before the next call.
    fn report(&mut self, sent: Vec<Taken>) -> Result<(), Failure> {
        lock(&self.progress).sent += sent.len() as u64;
        for taken in &sent {
            if let Taken::Published(published) = taken {
                self.copies += published.copies;
                self.skipped += published.skipped;
                self.dropped += u64::from(published.dropped);
            }
        }
        if !self.json {
            return Ok(());
        }
        let mut print = || {
            for sent in &sent {
                self.output.json(sent)?;
            }
            self.output.flush()
        };
        match print() {
            Err(failure) if failure.exit() == Exit::Ok => self.unread = true,
            result => result?,
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        if !self.json {
            let duplicates = match self.duplicates {
                0 => String::new(),
                duplicates => format!(" ({duplicates} already there)"),
            };
            let repeated = match self.repeated {
                0 => String::new(),
                known => format!(
                    " ({known} came already with an attempt of this run whose answer was lost)"
                ),
            };
            let sent = lock(&self.progress).sent;
            let messages = count(sent, "message");
            let name = &self.name;
            let mut line = match self.is_exchange {
                false => format!("sent {messages} to {name}"),
                true => {
                    let copies = match self.copies {
                        1 => "1 copy".to_owned(),
                        copies => format!("{copies} copies"),
                    };
                    format!("published {messages} to {name}: {copies}")
                }
            };
            for (number, what) in [
                (self.skipped, "left out, as full"),
                (self.dropped, "dropped, as there was no queue"),
            ] {
                if number > 0 {
                    line.push_str(&format!(", {number} {what}"));
                }
            }
            self.output.line(&format!("{line}{duplicates}{repeated}"))?;
        }
        self.output.flush()
    }

    /// Adds how far the sending came, for whoever wants to go on from there.
    fn stopped(&self, failure: Failure) -> Failure {
        failure.and_hint(lock(&self.progress).words())
    }
}

impl Progress {
    fn words(&self) -> String {
        match self.sent {
            0 => "nothing was sent".to_owned(),
            1 => "1 message was sent, nothing after it".to_owned(),
            sent => format!("{sent} messages were sent, nothing after them"),
        }
    }

    /// The same, where a signal may have come in the middle of a call.
    fn words_at_signal(&self) -> String {
        match &self.under_way {
            None => self.words(),
            Some(under_way) => format!(
                "{} sent; whether {under_way} arrived is unknown",
                count(self.sent, "message")
            ),
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The places of messages, which follow each other.
fn span(messages: &[Outgoing]) -> Option<String> {
    let place = |it: Option<&'_ Outgoing>| it?.place.clone();
    let (first, last) = (place(messages.first())?, place(messages.last())?);
    Some(match first == last {
        true => first,
        false => format!("{first} to {last}"),
    })
}

/// Makes a queue, which is keyed if its name says so.
async fn create(client: &Client, name: &str) -> Result<(), CallError> {
    let queue = json!({ "name": name });
    let _queue: Value = client.call(Method::POST, "/queues", Some(&queue)).await?;
    Ok(())
}

/// 128 random bits: nobody else's message has the same.
pub(super) fn random_id() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Failed, format!("drawing random bytes: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

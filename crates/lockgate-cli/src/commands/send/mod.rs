//! `lockgate send`.

mod lines;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::lines::fuzz_line;
use self::lines::{Outgoing, Pump};
use super::{NOTHING, Retry, block_on, client, millis, part};
use crate::{
    args::Send,
    client::{Body, CallError, Client, Header, Message, exit_of},
    exit::{Exit, Failure},
    output::{Output, count},
    units::show_size,
};

/// What goes into one call. The server takes more messages, and about four times the bytes.
const CALL_MESSAGES_MAX: usize = 100;
const CALL_BYTES_MAX: usize = 1 << 20;

/// The largest file that is read as a body: as the largest message that a queue can be set to take.
const BODY_BYTES_MAX: u64 = 16 << 20;

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

#[derive(Deserialize)]
pub(super) struct Problem {
    status: u16,
    pub(super) code: String,
    detail: String,
}

impl Problem {
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
            _ => failure,
        }
    }
}

pub(crate) fn run(args: Send) -> Result<(), Failure> {
    if args.reads_lines() && args.unique_id.is_some() {
        let what = "--unique-id is for one message; lines bring their own, as \"unique_id\"";
        return Err(Failure::usage(what)
            .hint("say the message's body: `lockgate send QUEUE --unique-id ID BODY`, or --file, or --raw"));
    }
    if args.reads_lines() && args.lines.is_none() && io::stdin().is_terminal() {
        crate::output::note(
            "reading messages from the terminal, a JSON object a line; Ctrl-D ends",
        );
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
        headers: headers.collect(),
        ..Message::default()
    };
    block_on(async {
        let mut sender = Sender::new(client, &args).await?;
        if args.reads_lines() {
            let source = args.lines.as_deref().unwrap_or(Path::new("-"));
            let mut pump = Pump::start(source, defaults)?;
            sender.drain(&mut pump).await?;
        } else {
            let message = Message {
                body: body(&args)?,
                unique_id: args.unique_id.clone(),
                ..defaults
            };
            let message = Outgoing {
                place: None,
                message,
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

fn unreadable(error: &io::Error, what: impl std::fmt::Display) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("reading {what}: {error}"))
}

struct Sender {
    client: Client,
    name: String,
    dedup: Dedup,
    /// How long the queue remembers a unique id.
    dedup_window: Duration,
    json: bool,
    output: Output,
    sent: u64,
    duplicates: u64,
}

/// A call that was given up on.
struct Unanswered {
    /// Why, the last time.
    error: CallError,
    /// Whether no attempt can have had an effect.
    nothing_done: bool,
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
    async fn new(client: Client, args: &Send) -> Result<Self, Failure> {
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
            client,
            name,
            dedup,
            dedup_window: Duration::from_millis(sending.dedup_window_ms),
            json: args.json,
            output: Output::new(),
            sent: 0,
            duplicates: 0,
        })
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

    /// Sends up to one call's messages and prints what became of them.
    async fn send(&mut self, messages: Vec<Outgoing>) -> Result<(), Failure> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut places = Vec::with_capacity(messages.len());
        let mut bodies = Vec::with_capacity(messages.len());
        for Outgoing { place, mut message } in messages {
            if message.unique_id.is_none() && self.dedup == Dedup::UniqueId {
                message.unique_id = Some(random_id()?);
            }
            places.push(place);
            bodies.push(message);
        }
        let results = match self.call(&json!({ "messages": bodies })).await {
            Ok(Results { results }) => results,
            Err(Unanswered {
                error,
                nothing_done,
            }) => {
                let first = places.first().and_then(Option::as_deref);
                let last = places.last().and_then(Option::as_deref);
                let mut failure = Failure::from(error);
                if let (Some(first), Some(last)) = (first, last) {
                    failure = failure.context(match first == last {
                        true => first.to_owned(),
                        false => format!("{first} to {last}"),
                    });
                }
                if !nothing_done {
                    failure = failure.hint(format!(
                        "whether {} arrived is unknown, {} before were sent: look with `lockgate peek {}`, and send \
                         again what is not there and was not received",
                        count(places.len() as u64, "message"),
                        self.sent,
                        self.name
                    ));
                    return Err(failure);
                }
                return Err(self.stopped(failure));
            }
        };
        self.report(&results, &places)
    }

    /// One call, tried again while that can neither lose nor double a message: nothing was done so far, or the queue
    /// still remembers the messages' unique ids when the last of an attempt can arrive.
    async fn call(&mut self, messages: &Value) -> Result<Results, Unanswered> {
        let target = format!("/queues/{}/messages", part(&self.name));
        let mut retry = Retry::new(self.client.timeout());
        let mut nothing_done = true;
        let begun = Instant::now();
        loop {
            let answer = self
                .client
                .call(Method::POST, &target, Some(messages))
                .await;
            let error = match answer {
                Ok(results) => return Ok(results),
                Err(error) => error,
            };
            // Also if this attempt did nothing: one before it may have.
            nothing_done &= error.nothing_done();
            let until = begun.elapsed() + Retry::PAUSE_MAX + self.client.timeout();
            let recognised = self.dedup != Dedup::None && until < self.dedup_window;
            let harmless = nothing_done || recognised;
            if !(error.may_pass() && harmless && retry.again().await) {
                return Err(Unanswered {
                    error,
                    nothing_done,
                });
            }
        }
    }

    fn report(&mut self, results: &[Outcome], places: &[Option<String>]) -> Result<(), Failure> {
        if results.len() != places.len() {
            return Err(Failure::failed(format!(
                "the server answered for {} of {} messages",
                results.len(),
                places.len()
            )));
        }
        let mut refused = Vec::new();
        for (at, result) in results.iter().enumerate() {
            match result {
                Outcome::Sent(sent) => {
                    self.sent += 1;
                    self.duplicates += u64::from(sent.duplicate);
                    if self.json {
                        self.output.json(sent)?;
                    }
                }
                Outcome::Refused { problem } => refused.push((at, problem)),
            }
        }
        if self.json {
            self.output.flush()?;
        }
        let Some((at, problem)) = refused.first() else {
            return Ok(());
        };
        let mut failure = problem.failure(&format!("messages[{at}]"));
        if let Some(place) = &places[*at] {
            failure = failure.context(place.clone());
        }
        if refused.len() > 1 {
            let others: Vec<_> = refused[1..]
                .iter()
                .filter_map(|(at, _)| places[*at].as_deref())
                .collect();
            return Err(failure.hint(format!("also refused: {}", others.join(", "))));
        }
        Err(self.stopped(failure))
    }

    fn finish(mut self) -> Result<(), Failure> {
        if !self.json {
            let duplicates = match self.duplicates {
                0 => String::new(),
                duplicates => format!(" ({duplicates} already there)"),
            };
            self.output.line(&format!(
                "sent {} to {}{duplicates}",
                count(self.sent, "message"),
                self.name
            ))?;
        }
        self.output.flush()
    }

    /// Adds how far the sending came, for whoever wants to go on from there.
    fn stopped(&self, failure: Failure) -> Failure {
        match self.sent {
            0 => failure.or_hint("nothing was sent"),
            1 => failure.or_hint("1 message was sent, nothing after it"),
            sent => failure.or_hint(format!("{sent} messages were sent, nothing after them")),
        }
    }
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

//! `lockgate ledger append`.

use std::path::Path;

use lockgate_core::{
    Epoch, UniqueId,
    ledger::{Append, Appended, EVENT_BYTES_MAX, Ledger as _, LedgerError, NewEvent, SequenceId},
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::plain;
use crate::{
    args::LedgerAppend,
    client::{Client, Encoding, Message},
    commands::{
        Retry,
        send::lines::{Form, Pump, body},
    },
    exit::{Exit, Failure},
    ledger::{AnyLedger, open},
    output::{Output, count, note},
};

/// Events of one append.
const EVENTS: usize = 1_000;

/// An append ends with the event that takes its payloads to this many bytes.
const BYTES: usize = 4 << 20;

/// A line of JSON. What the ledger gives itself is taken, so that exported lines can be appended, and not used.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(default)]
    payload_encoding: Encoding,
    unique_id: Option<String>,
    #[serde(default, rename = "sequence_id")]
    _sequence_id: Option<u64>,
    #[serde(default, rename = "previous_id")]
    _previous_id: Option<u64>,
    #[serde(default, rename = "time")]
    _time: Option<String>,
    #[serde(default, rename = "epoch")]
    _epoch: Option<u64>,
    #[serde(default, rename = "hash")]
    _hash: Option<String>,
}

/// An event, and where it stands.
struct Placed {
    event: NewEvent,
    place: Option<String>,
}

struct Appender {
    ledger: AnyLedger,
    client: Client,
    epoch: Epoch,
    head: Option<SequenceId>,
    json: bool,
    output: Output,
    duplicates: u64,
    appended: u64,
}

pub(super) async fn run(client: &Client, args: &LedgerAppend) -> Result<(), Failure> {
    // What is wrong with it is told before anything is made.
    let one = match &args.payload {
        None => None,
        Some(payload) => {
            let unique_id = args.unique_id.as_deref().map(UniqueId::new).transpose();
            let event = NewEvent {
                unique_id: unique_id.map_err(Failure::usage)?,
                input: None,
                payload: payload.clone().into(),
            };
            Some(Placed { event, place: None })
        }
    };
    let ledger = open(&args.ledger.name, client, args.create.then(plain)).await?;
    let mut appender = Appender {
        ledger,
        client: client.clone(),
        epoch: Epoch(args.epoch),
        head: args.expect.map(SequenceId),
        json: args.json,
        output: Output::new(),
        duplicates: 0,
        appended: 0,
    };
    let outcome = match one {
        Some(event) => appender.append(vec![event]).await,
        None => {
            let path = args.lines.as_deref().unwrap_or(Path::new("-"));
            appender
                .lines(Pump::start(path, Message::default(), Form::Raw)?, args.text)
                .await
        }
    };
    if appender.duplicates > 0 {
        let there = count(appender.duplicates, "event");
        note(&format!("{there} came before: nothing was added for that"));
    }
    let appended = count(appender.appended, "event");
    outcome.map_err(
        |failure| match failure.is_signal() || appender.appended == 0 {
            true => failure,
            false => failure.and_hint(format!("the ledger has {appended} of this run")),
        },
    )
}

impl Appender {
    async fn lines(&mut self, mut lines: Pump, text: bool) -> Result<(), Failure> {
        loop {
            let (mut events, mut bytes) = (Vec::new(), 0);
            let mut next = lines.next().await;
            // What comes at the same time is one append.
            let ended = loop {
                let Some(line) = next else {
                    break Some(Ok(()));
                };
                match line.and_then(|line| event(&line.message, line.place, text)) {
                    Ok(None) => {}
                    Ok(Some(event)) => {
                        bytes += event.event.payload.len();
                        events.push(event);
                    }
                    Err(failure) => break Some(Err(failure)),
                }
                if events.len() >= EVENTS || bytes >= BYTES {
                    break None;
                }
                match lines.ready() {
                    Some(line) => next = Some(line),
                    None => break None,
                }
            };
            if !events.is_empty() {
                self.append(events).await?;
            }
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    async fn append(&mut self, events: Vec<Placed>) -> Result<(), Failure> {
        let places = (
            events.first().and_then(|first| first.place.clone()),
            events.last().and_then(|last| last.place.clone()),
        );
        let mut append = Append {
            epoch: self.epoch,
            head: self.head,
            events: events.into_iter().map(|placed| placed.event).collect(),
            settled: Vec::new(),
        };
        let all_named = append.events.iter().all(|event| event.unique_id.is_some());
        let is_repeatable = all_named || append.head.is_some();
        let mut retry = Retry::new(self.client.timeout());
        let mut is_in_doubt = false;
        let appended = loop {
            let error = match self.ledger.append(append.clone()).await {
                Ok(appended) => break appended,
                Err(error) => error,
            };
            match &error {
                LedgerError::Unknown { .. } => {
                    is_in_doubt = true;
                    if is_repeatable && retry.again().await {
                        continue;
                    }
                }
                // A server that is restarted is waited for.
                LedgerError::Unavailable { .. } if is_in_doubt && retry.again().await => continue,
                // By this append, or by somebody else's.
                LedgerError::Moved { .. } if is_in_doubt && all_named => {
                    if self.has_all(&append).await? {
                        append.head = None;
                        continue;
                    }
                    is_in_doubt = false;
                }
                _ => {}
            }
            // What is behind the place that the writer expects may be this run's own.
            let mut failure = match is_in_doubt {
                true => Failure::failed(error).exits(Exit::Unreachable).hint(
                    "it is not known whether they were appended: look with `lockgate ledger read` before you append them again",
                ),
                false => Failure::from(error),
            };
            if let (Some(first), Some(last)) = places {
                failure = failure.context(match first == last {
                    true => first,
                    false => format!("{first} to {last}"),
                });
            }
            return Err(failure);
        };
        self.print(&appended)
    }

    /// Whether the ledger has an event with each of these unique ids.
    async fn has_all(&self, append: &Append) -> Result<bool, Failure> {
        for id in append
            .events
            .iter()
            .filter_map(|event| event.unique_id.clone())
        {
            if self.ledger.find(id).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn print(&mut self, appended: &Appended) -> Result<(), Failure> {
        // Behind the events of this run: the head may be that of somebody else's by now.
        let last = appended.events.iter().map(|event| event.sequence_id).max();
        self.head = self
            .head
            .map(|head| last.map_or(head, |last| last.max(head)));
        self.appended += appended.events.len() as u64;
        for event in &appended.events {
            let (id, duplicate) = (event.sequence_id.0, event.is_duplicate);
            self.duplicates += u64::from(duplicate);
            match self.json {
                true => self
                    .output
                    .json(&json!({"sequence_id": id, "duplicate": duplicate}))?,
                false => self.output.line(&id.to_string())?,
            }
        }
        self.output.flush()
    }
}

/// The event of a line; `None` if it is empty.
fn event(line: &Message, place: Option<String>, text: bool) -> Result<Option<Placed>, Failure> {
    let placed = |failure: Failure| match &place {
        Some(place) => failure.context(place.clone()),
        None => failure,
    };
    let bytes = line.body.decode();
    let bytes = bytes.map_err(|error| placed(Failure::failed(error)))?;
    let event = match text {
        true => NewEvent {
            payload: bytes.into(),
            ..NewEvent::default()
        },
        false if bytes.trim_ascii().is_empty() => return Ok(None),
        false => parse(&bytes).map_err(placed)?,
    };
    let len = event.payload.len();
    if len > EVENT_BYTES_MAX {
        let what =
            format!("its payload has {len} bytes, and an event has at most {EVENT_BYTES_MAX}");
        return Err(placed(Failure::failed(what)));
    }
    Ok(Some(Placed { event, place }))
}

fn parse(line: &[u8]) -> Result<NewEvent, Failure> {
    // What editors on Windows put in front of a file.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    if !line.trim_ascii_start().starts_with(b"{") {
        let what = "this line is no JSON object, such as {\"payload\": \"hello\"}";
        return Err(Failure::failed(what).hint("to append lines as they are: --text"));
    }
    let line: Line<'_> = serde_json::from_slice(line).map_err(Failure::failed)?;
    let text = body(line.payload).map_err(Failure::failed)?;
    let payload = line.payload_encoding.decode(&text);
    let payload =
        payload.map_err(|error| Failure::failed(format!("\"payload\" is no base64: {error}")))?;
    let unique_id = line.unique_id.as_deref().map(UniqueId::new).transpose();
    Ok(NewEvent {
        unique_id: unique_id.map_err(Failure::failed)?,
        input: None,
        payload: payload.into(),
    })
}

//! `lockgate ledger`.

mod append;
mod export;
mod pages;

use std::time::Duration;

use hyper::Method;
use lockgate_core::{
    Epoch, LedgerName, ReaderName, UniqueId,
    ledger::{
        Chain, Event, Ledger as _, LedgerError, LedgerHead, LedgerOptions, ReadLedger,
        ReaderPosition, SequenceId,
    },
};
use serde_json::{Value, json};

use self::pages::{Pages, first_of, range};
use super::{NOTHING, Retry, block_on, client, instant, part, peek};
use crate::{
    args::{
        Ledger, LedgerCreate, LedgerDelete, LedgerDescribe, LedgerFind, LedgerFollow, LedgerList,
        LedgerRead, LedgerReaders, LedgerSeal, LedgerTrim, LedgerVerify,
    },
    client::{Client, Encoding},
    exit::{Exit, Failure},
    ledger::{AnyLedger, open},
    output::{Output, Table, confirm, count, printable, tell},
    units::{millis, show_duration, show_size},
};

/// Between two requests where the server has ended a wait at once.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Ledger) -> Result<(), Failure> {
    let client = client(args.settings())?;
    block_on(async {
        match args {
            Ledger::Create(args) => create(&client, args).await,
            Ledger::List(args) => list(&client, args).await,
            Ledger::Describe(args) => describe(&client, args).await,
            Ledger::Append(args) => append::run(&client, args).await,
            Ledger::Read(args) => read(&client, args).await,
            Ledger::Follow(args) => follow(&client, args).await,
            Ledger::Find(args) => find(&client, args).await,
            Ledger::Verify(args) => verify(&client, args).await,
            Ledger::Export(args) => export::run(&client, args).await,
            Ledger::Readers(args) => readers(&client, args).await,
            Ledger::Seal(args) => seal(&client, args).await,
            Ledger::Trim(args) => trim(&client, args).await,
            Ledger::Delete(args) => delete(&client, args).await,
        }
    })
}

/// The ledger, and its head. Of a server, a head comes by a call whose failure has an exit code of its own.
async fn look(client: &Client, name: &str) -> Result<(AnyLedger, LedgerHead), Failure> {
    let ledger = open(name, client, None).await?;
    if let AnyLedger::Server(of_server) = &ledger {
        let target = target(of_server.name().as_str());
        let call = client.call(Method::GET, &target, NOTHING).await;
        let _: Value = call.map_err(|error| match error.has_code("ledger_not_found") {
            true => LedgerError::NotFound {
                ledger: of_server.name().clone(),
            }
            .into(),
            false => Failure::from(error),
        })?;
    }
    let head = ledger.head().await?;
    Ok((ledger, head))
}

fn target(name: &str) -> String {
    format!("/ledgers/{}", part(name))
}

async fn create(client: &Client, args: &LedgerCreate) -> Result<(), Failure> {
    let body = json!({
        "name": args.name, "hashed": args.hashed, "retention_ms": args.retention.map(millis),
    });
    let made: Value = client.repeat(Method::POST, "/ledgers", Some(&body)).await?;
    tell(
        args.json,
        &made,
        &format!("there is a ledger {}", args.name),
    )
}

async fn list(client: &Client, args: &LedgerList) -> Result<(), Failure> {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let target = format!("/ledgers?limit=1000&prefix={}", part(prefix));
    let ledgers = peek::pages(client, &target, "ledgers", args.max).await?;
    let header = [
        "NAME", "HEAD", "FIRST", "EPOCH", "LAST AT", "SEALED", "HASHED", "KEPT FOR", "READERS",
        "BYTES",
    ];
    peek::print(args.json, &ledgers, header, |ledger| {
        let head = &ledger["head"];
        let yes = |value: &Value| match value.as_bool() {
            Some(true) => "yes".to_owned(),
            _ => String::new(),
        };
        let retention = ledger["retention_ms"].as_u64();
        [
            peek::text(&ledger["name"]),
            peek::text(&head["sequence_id"]),
            peek::text(&head["first_id"]),
            peek::text(&head["epoch"]),
            peek::text(&head["time"]),
            yes(&head["sealed"]),
            yes(&ledger["hashed"]),
            retention.map_or_else(String::new, |ms| show_duration(Duration::from_millis(ms))),
            peek::text(&ledger["readers"]),
            peek::text(&ledger["bytes"]),
        ]
    })
}

async fn describe(client: &Client, args: &LedgerDescribe) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let mut output = Output::new();
    let mut table = Table::plain(2);
    let shown = match &ledger {
        AnyLedger::Server(of_server) => {
            let target = target(of_server.name().as_str());
            let shown: Value = client.call(Method::GET, &target, NOTHING).await?;
            let retention = shown["retention_ms"].as_u64();
            let kept = retention.map(|ms| show_duration(Duration::from_millis(ms)));
            table.row(["name".to_owned(), peek::text(&shown["name"])]);
            table.row(["created", &peek::text(&shown["created_at"])]);
            table.row(["events are kept for", kept.as_deref().unwrap_or("ever")]);
            for (name, field) in [
                ("readers", "readers"),
                ("unique ids in memory", "unique_ids"),
                ("inputs that are not settled", "inputs"),
                ("appends", "appends"),
            ] {
                table.row([name, &peek::text(&shown[field])]);
            }
            let bytes = shown["bytes"].as_u64().unwrap_or(0);
            table.row(["size in the log, about", &show_size(bytes)]);
            shown
        }
        #[cfg(feature = "mysql")]
        AnyLedger::Mysql(_) => json!({"head": head_json(&head)}),
        #[cfg(feature = "postgres")]
        AnyLedger::Postgres(_) => json!({"head": head_json(&head)}),
    };
    if args.json {
        output.json(&shown)?;
        return output.flush();
    }
    table.row(["last event", &head.sequence_id.to_string()]);
    table.row(["first event that is kept", &head.first_id.to_string()]);
    table.row(["epoch", &head.epoch.0.to_string()]);
    if head.sequence_id > SequenceId::START {
        let time = instant(head.time).unwrap_or_default();
        table.row(["time of the last event", &time]);
    }
    let hash = head.hash.map(|hash| hash.to_string());
    table.row(["hash", hash.as_deref().unwrap_or("none: not hashed")]);
    table.row(["sealed", if head.is_sealed { "yes" } else { "no" }]);
    output.table(&table)?;
    output.flush()
}

async fn read(client: &Client, args: &LedgerRead) -> Result<(), Failure> {
    if args.wait > ReadLedger::WAIT_MAX {
        let most = show_duration(ReadLedger::WAIT_MAX);
        return Err(Failure::usage(format!("--wait is up to {most}")));
    }
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let after = args.after.map_or(head.first_id.previous(), SequenceId);
    let mut pages = Pages::new(ledger, Chain::behind(after));
    let mut left = args.max.unwrap_or(u64::MAX);
    let mut wait = args.wait;
    let mut printer = Printer::new(args.json);
    loop {
        let page = pages.next(left, std::mem::take(&mut wait)).await?;
        if page.events.is_empty() {
            return printer.output.flush();
        }
        for event in &page.events {
            printer.print(event)?;
        }
        left -= page.events.len() as u64;
        if left == 0 || pages.last() >= page.head.sequence_id {
            return printer.output.flush();
        }
    }
}

async fn follow(client: &Client, args: &LedgerFollow) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let reader = args.reader.as_deref().map(ReaderName::new).transpose();
    let reader = reader.map_err(Failure::usage)?;
    let after = match (&reader, args.after) {
        (None, Some(after)) => SequenceId(after),
        (None, None) => head.first_id.previous(),
        (Some(reader), _) => {
            let readers = ledger.readers().await?;
            let kept = readers.into_iter().find(|kept| kept.reader == *reader);
            kept.map_or(head.first_id.previous(), |kept| kept.sequence_id)
        }
    };
    let mut pages = Pages::new(ledger.clone(), Chain::behind(after));
    let mut retry = Retry::new(client.timeout());
    let mut printer = Printer::new(args.json);
    loop {
        let page = match pages.next(u64::MAX, Duration::from_secs(20)).await {
            Ok(page) => page,
            Err(failure) if failure.exit() == Exit::Unreachable && retry.again().await => continue,
            Err(failure) => return Err(failure),
        };
        if page.events.is_empty() && !page.head.is_sealed {
            // A server that stops ends all waits.
            tokio::time::sleep(PAUSE).await;
        }
        retry = Retry::new(client.timeout());
        for event in &page.events {
            printer.print(event)?;
        }
        printer.output.flush()?;
        if let (Some(reader), false) = (&reader, page.events.is_empty()) {
            let position = ReaderPosition {
                reader: reader.clone(),
                sequence_id: pages.last(),
            };
            // To move it twice does no harm.
            loop {
                match ledger.move_reader(position.clone(), None).await {
                    Ok(()) => break,
                    Err(LedgerError::Unknown { .. } | LedgerError::Unavailable { .. })
                        if retry.again().await => {}
                    Err(error) => return Err(error.into()),
                }
            }
            retry = Retry::new(client.timeout());
        }
        if page.head.is_sealed && pages.last() == page.head.sequence_id {
            return Ok(());
        }
    }
}

async fn find(client: &Client, args: &LedgerFind) -> Result<(), Failure> {
    let unique_id = UniqueId::new(&args.unique_id).map_err(Failure::usage)?;
    let (ledger, _) = look(client, &args.ledger.name).await?;
    let Some(found) = ledger.find(unique_id).await? else {
        let what = format!("no event has had the unique id {}", args.unique_id);
        return Err(Failure::new(Exit::NotFound, what));
    };
    let mut output = Output::new();
    match args.json {
        true => output.json(&json!({"sequence_id": found.0}))?,
        false => output.line(&found.to_string())?,
    }
    output.flush()
}

async fn verify(client: &Client, args: &LedgerVerify) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let (from, to) = range(args.range, &head)?;
    let mut pages = Pages::new(ledger.clone(), Chain::behind(from.previous()));
    let checked = async {
        let chain = first_of(&ledger, &head, from).await?;
        pages = Pages::new(ledger, chain);
        while pages.last() < to {
            pages.next_up_to(to).await?;
        }
        match pages.chain().agrees_with(&head) {
            Ok(()) => Ok(()),
            Err(found) => Err(Failure::failed(found)),
        }
    };
    if let Err(failure) = checked.await {
        // Events that cannot be read are what it looks for.
        let failure = match failure.exit() {
            Exit::Refused => failure.exiting(Exit::Failed),
            _ => failure,
        };
        if args.json && failure.exit() == Exit::Failed {
            let evidence = failure.to_string();
            tell(
                true,
                &json!({"from": from.0, "behind": pages.last().0, "evidence": evidence}),
                "",
            )?;
            return Err(failure.told());
        }
        return Err(failure);
    }
    let events = to.0 + 1 - from.0;
    let hash = pages.chain().hash.filter(|_| events > 0);
    let hash = hash.map(|hash| hash.to_string());
    let shown = json!({"from": from.0, "to": to.0, "events": events, "hash": hash});
    let hash = hash.map_or_else(
        || "the ledger is not hashed".to_owned(),
        |hash| format!("hash {hash}"),
    );
    let done = match events {
        0 => "there is no event".to_owned(),
        _ => format!("events {from} to {to} follow one another; {hash}"),
    };
    tell(args.json, &shown, &done)
}

async fn readers(client: &Client, args: &LedgerReaders) -> Result<(), Failure> {
    let reader = |name: &str| ReaderName::new(name).map_err(Failure::usage);
    let (ledger, head) = look(client, &args.ledger.name).await?;
    if let (Some(name), Some(to)) = (&args.moved, args.to) {
        let position = ReaderPosition {
            reader: reader(name)?,
            sequence_id: SequenceId(to),
        };
        ledger.move_reader(position, None).await?;
        let shown = json!({"reader": name, "sequence_id": to});
        return tell(
            args.json,
            &shown,
            &format!("{name} is done with event {to}"),
        );
    }
    if let Some(name) = &args.forget {
        if !ledger.forget_reader(reader(name)?).await? {
            let what = format!("the ledger keeps no place of a reader {name}");
            return Err(Failure::new(Exit::NotFound, what));
        }
        return tell(args.json, &json!({"reader": name}), "forgotten");
    }
    let readers = ledger.readers().await?;
    let readers: Vec<_> = readers
        .into_iter()
        .map(|kept| {
            let behind = head.sequence_id.0.saturating_sub(kept.sequence_id.0);
            json!({
                "reader": kept.reader.as_str(), "sequence_id": kept.sequence_id.0, "behind": behind,
            })
        })
        .collect();
    let header = ["READER", "DONE WITH", "BEHIND"];
    peek::print(args.json, &readers, header, |reader| {
        ["reader", "sequence_id", "behind"].map(|field| peek::text(&reader[field]))
    })
}

async fn seal(client: &Client, args: &LedgerSeal) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let question = format!(
        "the ledger ends at event {}. Append nothing any more, for good?",
        head.sequence_id
    );
    agree(args.yes, &question)?;
    let head = ledger.seal(Epoch(args.epoch)).await?;
    let done = format!("sealed at event {}", head.sequence_id);
    tell(args.json, &head_json(&head), &done)
}

async fn trim(client: &Client, args: &LedgerTrim) -> Result<(), Failure> {
    let (ledger, head) = look(client, &args.ledger.name).await?;
    let first = SequenceId(args.before);
    let gone = first.0.saturating_sub(head.first_id.0);
    let gone = gone.min(head.sequence_id.0 + 1 - head.first_id.0);
    let question = format!("{} go. Trim the ledger?", count(gone, "event"));
    agree(args.yes, &question)?;
    let head = ledger.trim(first).await?;
    let done = format!("the first event that is kept is {}", head.first_id);
    tell(args.json, &head_json(&head), &done)
}

async fn delete(client: &Client, args: &LedgerDelete) -> Result<(), Failure> {
    let (_, head) = look(client, &args.name).await?;
    let events = head.sequence_id.0 + 1 - head.first_id.0;
    let question = format!("{} holds {}. Delete it?", args.name, count(events, "event"));
    agree(args.yes, &question)?;
    let name = LedgerName::new(&args.name).map_err(Failure::usage)?;
    client.inner().ledger(name).delete().await?;
    tell(args.json, &json!({"name": args.name}), "deleted")
}

fn agree(yes: bool, question: &str) -> Result<(), Failure> {
    if yes || confirm(question)? {
        return Ok(());
    }
    Err(Failure::failed("not confirmed; nothing was done"))
}

/// A head as the API writes it.
fn head_json(head: &LedgerHead) -> Value {
    let has_events = head.sequence_id > SequenceId::START;
    json!({
        "sequence_id": head.sequence_id.0,
        "first_id": head.first_id.0,
        "epoch": head.epoch.0,
        "time": instant(head.time).filter(|_| has_events),
        "hash": head.hash.map(|hash| hash.to_string()),
        "sealed": head.is_sealed,
    })
}

/// Prints events: as text on a terminal, else as JSON lines.
struct Printer {
    output: Output,
    as_json: bool,
}

impl Printer {
    fn new(json: bool) -> Self {
        let output = Output::new();
        let as_json = json || !output.is_terminal();
        Self { output, as_json }
    }

    fn print(&mut self, event: &Event) -> Result<(), Failure> {
        if self.as_json {
            return self.output.json(&Shown::of(event));
        }
        let shown = Shown::of(event);
        let unique_id = shown.unique_id.as_deref().unwrap_or("-");
        let payload = match shown.payload_encoding {
            Some(_) => "(not text)".to_owned(),
            None => printable(&shown.payload).replace('\n', "\\n"),
        };
        let (id, time) = (shown.sequence_id, &shown.time);
        self.output
            .line(&format!("{id}  {time}  {unique_id}  {payload}"))
    }
}

/// An event as it is printed.
#[derive(serde::Serialize)]
struct Shown {
    sequence_id: u64,
    previous_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_id: Option<String>,
    time: String,
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    payload: String,
    /// `base64` where the payload is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_encoding: Option<Encoding>,
}

impl Shown {
    fn of(event: &Event) -> Self {
        let text = std::str::from_utf8(&event.payload);
        let (payload, payload_encoding) = match text {
            Ok(text) => (text.to_owned(), None),
            Err(_) => {
                let (payload, encoding) = Encoding::of(&event.payload);
                (payload, Some(encoding))
            }
        };
        Self {
            sequence_id: event.sequence_id.0,
            previous_id: event.previous_id.0,
            unique_id: event.unique_id.as_ref().map(ToString::to_string),
            time: instant(event.time).unwrap_or_else(|| event.time.0.to_string()),
            epoch: event.epoch.0,
            hash: event.hash.map(|hash| hash.to_string()),
            payload,
            payload_encoding,
        }
    }
}

/// The options of a ledger that a command makes on the way.
fn plain() -> LedgerOptions {
    LedgerOptions::default()
}

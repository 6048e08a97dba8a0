//! `lockgate record`.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::Duration,
};

use hyper::Method;
use lockgate_core::RECORD_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{NOTHING, Retry, block_on, client, part, peek, send::unreadable};
use crate::{
    args::{
        OneRecord, Record, RecordDelete, RecordGet, RecordLease, RecordList, RecordPut, RecordWatch,
    },
    client::{CallError, Client, Encoding},
    exit::{Exit, Failure},
    output::{Output, tell},
    units::{millis, show_duration},
};

/// The longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Between two requests where the server has ended a wait at once.
const PAUSE: Duration = Duration::from_millis(100);

/// What the command needs of a record; the rest is printed as it came.
#[derive(Deserialize)]
struct Seen {
    revision: u64,
    lease: Option<Value>,
}

#[derive(Deserialize, Serialize)]
struct Written {
    version: u64,
    revision: u64,
}

pub(super) fn run(args: &Record) -> Result<(), Failure> {
    let client = client(args.settings())?;
    block_on(async {
        match args {
            Record::List(args) => list(&client, args).await,
            Record::Get(args) => get(&client, args).await,
            Record::Put(args) => put(&client, args).await,
            Record::Delete(args) => delete(&client, args).await,
            Record::Lease(args) => lease(&client, args).await,
            Record::Extend(args) => {
                let lasts = format!(
                    "extended: it lasts {} from now on",
                    show_duration(args.lease)
                );
                let body = json!({"epoch": args.epoch, "lease_ms": millis(args.lease)});
                let target = target(&args.record, "/extend");
                let done: Value = client.repeat(Method::POST, &target, Some(&body)).await?;
                tell(args.json, &done, &lasts)
            }
            Record::Release(args) => {
                let body = json!({"epoch": args.epoch});
                let target = target(&args.record, "/release");
                let done: Value = client.call(Method::POST, &target, Some(&body)).await?;
                tell(args.json, &done, "released")
            }
            Record::Watch(args) => watch(&client, args).await,
        }
    })
}

async fn list(client: &Client, args: &RecordList) -> Result<(), Failure> {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let target = format!("/records?limit=1000&prefix={}", part(prefix));
    let records = peek::pages(client, &target, "records", args.max).await?;
    let header = ["NAME", "VERSION", "WRITTEN", "HELD BY", "FOR", "VALUE"];
    peek::print(args.json, &records, header, |record| {
        let remaining = record["lease"]["remaining_ms"].as_u64();
        let remaining = remaining.map(|ms| show_duration(Duration::from_millis(ms)));
        [
            peek::text(&record["name"]),
            peek::text(&record["version"]),
            peek::text(&record["written_at"]),
            peek::text(&record["lease"]["holder"]),
            remaining.unwrap_or_default(),
            value(record),
        ]
    })
}

async fn get(client: &Client, args: &RecordGet) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Read {
        value: String,
        value_encoding: Encoding,
    }
    let record: Value = client
        .call(Method::GET, &target(&args.record, ""), NOTHING)
        .await?;
    let mut output = Output::new();
    if args.json {
        output.json(&record)?;
    } else {
        let Read {
            value,
            value_encoding,
        } = serde_json::from_value(record).map_err(|error| strange(&error))?;
        let bytes = value_encoding.decode(&value);
        output.raw(&bytes.map_err(|error| strange(&error))?)?;
    }
    output.flush()
}

async fn put(client: &Client, args: &RecordPut) -> Result<(), Failure> {
    let bytes = match (&args.value, &args.file) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(path)) if path == Path::new("-") => read(io::stdin(), "standard input")?,
        (None, Some(path)) => {
            let what = path.display().to_string();
            let file = File::open(path).map_err(|error| unreadable(&error, &what))?;
            read(file, &what)?
        }
        (None, None) => Vec::new(),
    };
    check_size(&bytes, "record")?;
    let (value, encoding) = Encoding::of(&bytes);
    let target = target(&args.record, "");
    let written = replacing(client, args.replaces, args.any, async |replaces| {
        let body = json!({
            "value": value, "value_encoding": encoding, "replaces": replaces, "epoch": args.epoch,
        });
        client.call(Method::PUT, &target, Some(&body)).await
    });
    let written: Written = written.await?;
    if args.json {
        return tell(true, &written, "");
    }
    let mut output = Output::new();
    output.line(&written.version.to_string())?;
    output.flush()
}

async fn delete(client: &Client, args: &RecordDelete) -> Result<(), Failure> {
    let record = target(&args.record, "");
    let deleted = replacing(client, args.replaces, args.any, async |replaces| {
        // No record has the version 0.
        let replaces = replaces.unwrap_or(0);
        let mut target = format!("{record}?replaces={replaces}");
        if let Some(epoch) = args.epoch {
            target.push_str(&format!("&epoch={epoch}"));
        }
        client.call(Method::DELETE, &target, NOTHING).await
    });
    let deleted: Value = deleted.await?;
    tell(args.json, &deleted, "deleted")
}

/// Makes a change of the version `replaces` of a record or a state, or with `any` of the one that is there, again while
/// others write.
pub(super) async fn replacing<T>(
    client: &Client,
    mut replaces: Option<u64>,
    any: bool,
    mut change: impl AsyncFnMut(Option<u64>) -> Result<T, CallError>,
) -> Result<T, Failure> {
    let mut retry = Retry::new(client.timeout());
    let mut first = true;
    loop {
        let error = match change(replaces).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        // The refusal tells the version, so that nobody must read the record, which may not be theirs to read. Nothing
        // has failed before the second one.
        match error.conflict() {
            Some(version) if any && version != replaces && (first || retry.again().await) => {
                (replaces, first) = (version, false);
            }
            _ => return Err(error.into_write_failure()),
        }
    }
}

async fn lease(client: &Client, args: &RecordLease) -> Result<(), Failure> {
    let body = json!({
        "holder": args.holder,
        "lease_ms": millis(args.lease),
        "delete_at_end": args.delete_at_end,
    });
    let record = target(&args.record, "");
    let target = target(&args.record, "/lease");
    let begun = Instant::now();
    let mut retry = Retry::new(client.timeout().max(args.wait));
    let leased: Value = loop {
        // The holder of a lease is given it again, so a lost answer costs nothing.
        let error = match client.repeat(Method::POST, &target, Some(&body)).await {
            Ok(leased) => break leased,
            Err(error) => error,
        };
        let left = args.wait.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(error.into());
        }
        let waited = match error.has_code("record_held") {
            true => free(client, &record, left.min(WAIT_MAX)).await,
            false => Err(error),
        };
        match waited {
            // A server that is restarted is waited for too.
            Err(error) if error.may_pass() && retry.again().await => {}
            waited => waited?,
        }
    };
    let epoch = peek::text(&leased["lease"]["epoch"]);
    if args.json {
        return tell(true, &leased, "");
    }
    let mut output = Output::new();
    output.line(&epoch)?;
    output.flush()
}

/// Waits while somebody holds the lease.
async fn free(client: &Client, record: &str, wait: Duration) -> Result<(), CallError> {
    let seen = look(client, record).await?;
    if let Some(seen) = seen.filter(|seen| seen.lease.is_some()) {
        changed(client, record, Some(seen.revision), wait).await?;
    }
    Ok(())
}

async fn watch(client: &Client, args: &RecordWatch) -> Result<(), Failure> {
    let record = target(&args.record, "");
    let begun = Instant::now();
    let mut retry = Retry::new(client.timeout());
    let mut seen = args.seen;
    loop {
        let wait = match args.follow {
            true => WAIT_MAX,
            false => args.wait.saturating_sub(begun.elapsed()).min(WAIT_MAX),
        };
        let asked = Instant::now();
        let found = match changed(client, &record, seen, wait).await {
            Err(error) if args.follow && error.may_pass() && retry.again().await => continue,
            found => found?,
        };
        let revision = match &found {
            Some(found) => found["revision"].as_u64(),
            None => None,
        };
        if revision == seen {
            if !args.follow && begun.elapsed() >= args.wait {
                let what = format!("no change within {}", show_duration(args.wait));
                return Err(Failure::new(Exit::Timeout, what));
            }
            // A server that stops ends all waits.
            if asked.elapsed() < wait / 2 {
                tokio::time::sleep(PAUSE).await;
            } else {
                retry = Retry::new(client.timeout());
            }
            continue;
        }
        seen = revision;
        retry = Retry::new(client.timeout());
        let mut output = Output::new();
        if args.json || !output.is_terminal() {
            let gone = || json!({"name": args.record.name, "deleted": true});
            output.json(&found.unwrap_or_else(gone))?;
        } else {
            output.line(&in_words(&args.record.name, found.as_ref()))?;
        }
        output.flush()?;
        if !args.follow {
            return Ok(());
        }
    }
}

/// A change as a line of text.
fn in_words(name: &str, record: Option<&Value>) -> String {
    let Some(record) = record else {
        return format!("{name} is deleted");
    };
    let held = match record["lease"]["holder"].as_str() {
        Some(holder) => format!(
            ", leased by {holder} with epoch {}",
            record["lease"]["epoch"]
        ),
        None => String::new(),
    };
    let (version, value) = (&record["version"], value(record));
    format!("{name} version {version}{held}: {value}")
}

/// The beginning of a value, where it is text.
fn value(record: &Value) -> String {
    match record["value_encoding"] == "base64" {
        true => "(not text)".to_owned(),
        false => peek::beginning(&peek::text(&record["value"])),
    }
}

/// The record as it is; `None` if there is none.
async fn look(client: &Client, target: &str) -> Result<Option<Seen>, CallError> {
    match client.call(Method::GET, target, NOTHING).await {
        Err(error) if error.has_code("record_not_found") => Ok(None),
        seen => seen.map(Some),
    }
}

/// The record as soon as it is another than was seen, or as it is when the wait is over.
async fn changed(
    client: &Client,
    target: &str,
    seen: Option<u64>,
    wait: Duration,
) -> Result<Option<Value>, CallError> {
    let mut target = format!("{target}?wait_ms={}", millis(wait));
    if let Some(seen) = seen {
        target.push_str(&format!("&seen={seen}"));
    }
    let found = client
        .call_within(Method::GET, &target, NOTHING, wait)
        .await;
    match found {
        Err(error) if error.has_code("record_not_found") => Ok(None),
        found => found.map(Some),
    }
}

/// All bytes of a value, but no more than one beyond the most that there may be.
pub(super) fn read(source: impl Read, what: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    // One more than a record takes, so that too many are noticed.
    let read = source
        .take(RECORD_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| unreadable(&error, what))?;
    Ok(bytes)
}

pub(super) fn check_size(value: &[u8], of: &str) -> Result<(), Failure> {
    if value.len() <= RECORD_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the value has more than {RECORD_BYTES_MAX} bytes, which is the most a {of} takes: put what is larger \
         elsewhere, and where it is into the {of}"
    )))
}

fn strange(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("the server's answer cannot be read: {error}"))
}

fn target(record: &OneRecord, action: &str) -> String {
    format!("/records/{}{action}", part(&record.name))
}

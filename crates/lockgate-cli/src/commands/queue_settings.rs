//! `lockgate queue settings | set | pause | resume`: what SQS has no words for.

use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{block_on, client, part};
use crate::{
    args::{Given, QueueSet, QueueSettings},
    exit::Failure,
    output::{Output, Table, note},
    settings::ClientFlags,
    units::{show_duration, show_size},
};

/// As much of a queue as is shown here.
#[derive(Deserialize)]
struct Queue {
    paused: bool,
    settings: Map<String, Value>,
}

pub(super) fn show(args: &QueueSettings) -> Result<(), Failure> {
    let mut client = client(&args.settings)?;
    block_on(async {
        let target = format!("/queues/{}", part(&args.name));
        let queue: Queue = client.admin(Method::GET, &target, NOTHING).await?;
        let mut output = Output::new();
        if args.json {
            let mut fields = queue.settings;
            fields.insert("paused".to_owned(), json!(queue.paused));
            output.json(&fields)?;
        } else {
            let mut table = Table::plain(2);
            table.row(["paused", if queue.paused { "true" } else { "false" }]);
            rows(&mut table, "", &queue.settings);
            output.table(&table)?;
        }
        output.flush()
    })
}

pub(super) fn set(args: QueueSet) -> Result<(), Failure> {
    let mut client = client(&args.settings)?;
    block_on(async {
        let target = format!("/queues/{}", part(&args.name));
        let mut dead_letter = None;
        match (&args.dead_letter, args.attempts) {
            (None, None) => {}
            (Some(name), None) if name == "none" => dead_letter = Some(Value::Null),
            (Some(name), Some(_)) if name == "none" => {
                return Err(Failure::usage(
                    "--attempts says nothing where --dead-letter is none",
                ));
            }
            (name, attempts) => {
                let queue: Queue = client.admin(Method::GET, &target, NOTHING).await?;
                let before = &queue.settings["dead_letter"];
                let name = match name {
                    Some(name) => json!(name),
                    None => before["queue"].clone(),
                };
                if name.is_null() {
                    return Err(Failure::usage(format!(
                        "{} has no dead-letter queue: name one with --dead-letter",
                        args.name
                    )));
                }
                let attempts = match attempts {
                    Some(attempts) => json!(attempts),
                    None if before.is_null() => json!(5),
                    None => before["attempts_max"].clone(),
                };
                dead_letter = Some(json!({"queue": name, "attempts_max": attempts}));
            }
        }
        let change = change(&args, dead_letter);
        if change == json!({}) {
            return Err(Failure::usage("nothing to change was named")
                .hint("`lockgate queue set --help` has the list"));
        }
        let _: Queue = client.admin(Method::PATCH, &target, Some(&change)).await?;
        note(&format!("changed {}", args.name));
        Ok(())
    })
}

pub(super) fn pause(settings: &ClientFlags, name: &str, paused: bool) -> Result<(), Failure> {
    let mut client = client(settings)?;
    block_on(async {
        let action = if paused { "pause" } else { "resume" };
        let target = format!("/queues/{}/{action}", part(name));
        let _: Queue = client.admin(Method::POST, &target, NOTHING).await?;
        note(&format!("{action}d {name}"));
        Ok(())
    })
}

/// A request without a body.
pub(super) const NOTHING: Option<&()> = None;

/// The request that changes what is named.
fn change(args: &QueueSet, dead_letter: Option<Value>) -> Value {
    let mut settings = Map::new();
    let mut dedup = Map::new();
    let mut quota = Map::new();
    let mut window = Map::new();
    let word = |text: &Option<String>| match text.as_deref() {
        Some("default") => Some(Value::Null),
        text => text.map(|text| json!(text)),
    };
    put(&mut settings, "level", word(&args.level));
    put(&mut settings, "lease_ms", time(args.lease));
    put(&mut settings, "delay_ms", time(args.delay));
    put(&mut settings, "retention_ms", time(args.retention));
    put(&mut settings, "receive_wait_ms", time(args.receive_wait));
    put(&mut settings, "message_bytes_max", given(args.message_max));
    put(&mut settings, "in_flight_max", given(args.in_flight_max));
    put(&mut settings, "dead_letter", dead_letter);
    put(&mut settings, "key_policy", word(&args.key_policy));
    put(&mut settings, "park_after", given(args.park_after));
    put(
        &mut settings,
        "key_sequences_max",
        given(args.key_sequences_max),
    );
    put(&mut window, "after_ms", time(args.sync_window));
    put(&mut window, "records", given(args.sync_records));
    put(&mut settings, "key_profile", word(&args.key_profile));
    put(&mut dedup, "window_ms", time(args.dedup_window));
    put(&mut dedup, "scope", word(&args.dedup_scope));
    put(&mut dedup, "content_based", given(args.dedup_content));
    put(&mut dedup, "bytes_max", given(args.dedup_bytes));
    put(
        &mut dedup,
        "survives_purge",
        given(args.dedup_survives_purge),
    );
    put(&mut quota, "messages_max", given(args.messages_max));
    put(&mut quota, "bytes_max", given(args.bytes_max));
    put_all(&mut settings, "dedup", dedup);
    put_all(&mut settings, "quota", quota);
    put_all(&mut settings, "sync_window", window);
    let set = args.tag.iter().map(|(name, value)| (name, json!(value)));
    let removed = args.untag.iter().map(|name| (name, Value::Null));
    let tags = set
        .chain(removed)
        .map(|(name, value)| (name.clone(), value))
        .collect();
    let mut change = Map::new();
    put_all(&mut change, "settings", settings);
    put_all(&mut change, "tags", tags);
    change.into()
}

fn put(to: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        to.insert(name.to_owned(), value);
    }
}

fn put_all(to: &mut Map<String, Value>, name: &str, fields: Map<String, Value>) {
    put(to, name, (!fields.is_empty()).then_some(fields.into()));
}

fn time(given: Option<Given<Duration>>) -> Option<Value> {
    given.map(|given| match given {
        Given::Default => Value::Null,
        Given::Value(time) => json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn given<T: Into<Value>>(given: Option<Given<T>>) -> Option<Value> {
    given.map(|given| match given {
        Given::Default => Value::Null,
        Given::Value(value) => value.into(),
    })
}

/// Names and values for people: what is nested with its path, times and sizes with units.
fn rows(table: &mut Table, path: &str, fields: &Map<String, Value>) {
    for (name, value) in fields {
        let name = format!("{path}{}", name.replace('_', " "));
        let (label, text) = match value {
            Value::Object(inner) => {
                rows(table, &format!("{name}: "), inner);
                continue;
            }
            Value::Null if name.ends_with(" max") => (&*name, "no limit".to_owned()),
            Value::Null if name == "key policy" => (&*name, "default".to_owned()),
            Value::Null => (&*name, "none".to_owned()),
            Value::Number(number) => {
                let number = number.as_u64().unwrap_or(0);
                match name.strip_suffix(" ms") {
                    Some(label) => (label, show_duration(Duration::from_millis(number))),
                    None if name.contains("bytes") => (&*name, show_size(number)),
                    None => (&*name, number.to_string()),
                }
            }
            Value::String(text) => (&*name, text.clone()),
            other => (&*name, other.to_string()),
        };
        table.row([label, &text]);
    }
}

//! `lockgate key …`.

use std::io;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{NOTHING, block_on, client, part, peek, queue, record};
use crate::{
    args::{
        Key, KeyDrop, KeyExplain, KeyList, KeyOrNone, KeyState, KeyStateDrop, KeyStateGet,
        KeyStateList, KeyStateSet, OfQueue,
    },
    client::{CallError, Client, Encoding},
    exit::{Exit, Failure},
    output::{Output, Table, confirm, count, note, tell},
};

/// What stands in the place of a key where there is none.
const WITHOUT_KEY: &str = "(without a key)";

/// What the server says of a key.
#[derive(Serialize, Deserialize)]
struct Explanation {
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    messages: u64,
    delayed: u64,
    waits_for: String,
    explanation: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateStatus>,
}

/// The state of a key without its value.
#[derive(Serialize, Deserialize)]
struct StateStatus {
    version: u64,
    bytes: u64,
    written_at: String,
}

/// The state of a key.
#[derive(Serialize, Deserialize)]
struct State {
    value: String,
    value_encoding: Encoding,
    version: u64,
    written_at: String,
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u64,
}

#[derive(Serialize, Deserialize)]
struct Nothing {}

#[derive(Serialize, Deserialize)]
struct Dropped {
    messages: u64,
}

pub(super) fn run(args: &Key) -> Result<(), Failure> {
    let settings = match args {
        Key::List(args) => &args.settings,
        Key::Explain(args) => &args.key.settings,
        Key::Park(args) => &args.key.settings,
        Key::Resume(args) => &args.key.settings,
        Key::Hold(args) => &args.key.settings,
        Key::Drop(args) => &args.key.settings,
        Key::State(KeyState::List(args)) => &args.settings,
        Key::State(KeyState::Get(args)) => &args.key.settings,
        Key::State(KeyState::Set(args)) => &args.key.settings,
        Key::State(KeyState::Drop(args)) => &args.key.settings,
    };
    let client = client(settings)?;
    block_on(async {
        match args {
            Key::List(args) => list(&client, args).await,
            Key::Explain(args) => explain(&client, args).await,
            Key::Park(args) => act(&client, &args.key, "park", args.json).await,
            Key::Resume(args) => act(&client, &args.key, "resume", args.json).await,
            Key::Hold(args) => {
                let KeyOrNone { queue, key, .. } = &args.key;
                let key = key.as_deref().unwrap_or(WITHOUT_KEY);
                let what = format!("{key} of {queue}");
                let target = target_or_none(&args.key);
                queue::hold(&client, &target, &what, args.time, args.json).await
            }
            Key::Drop(args) => drop_messages(&client, args).await,
            Key::State(KeyState::List(args)) => list_states(&client, args).await,
            Key::State(KeyState::Get(args)) => get_state(&client, args).await,
            Key::State(KeyState::Set(args)) => set_state(&client, args).await,
            Key::State(KeyState::Drop(args)) => drop_state(&client, args).await,
        }
    })
}

async fn list(client: &Client, args: &KeyList) -> Result<(), Failure> {
    let target = format!(
        "/queues/{}/keys?limit=1000&parked={}",
        part(&args.queue),
        args.parked
    );
    let keys = peek::pages(client, &target, "keys", u64::MAX).await?;
    let header = ["KEY", "MESSAGES", "WAITS FOR", "HELD BY", "UNTIL"];
    peek::print(args.json, &keys, header, |key| {
        ["key", "messages", "waits_for", "holder", "until"].map(|name| peek::text(&key[name]))
    })
}

async fn explain(client: &Client, args: &KeyExplain) -> Result<(), Failure> {
    let key: Explanation = client
        .call(Method::GET, &target_or_none(&args.key), NOTHING)
        .await?;
    let mut output = Output::new();
    if args.json {
        output.json(&key)?;
        return output.flush();
    }
    let mut table = Table::plain(2);
    table.row(["key", key.key.as_deref().unwrap_or(WITHOUT_KEY)]);
    table.row(["queue", &key.queue]);
    table.row(["messages", &key.messages.to_string()]);
    table.row(["not yet due", &key.delayed.to_string()]);
    table.row(["waits for", &key.waits_for.replace('_', " ")]);
    if let Some(holder) = &key.holder {
        table.row(["held by", holder]);
    }
    if let Some(until) = &key.until {
        table.row(["until", until]);
    }
    if let Some(until) = &key.held_until {
        table.row(["held until", until]);
    }
    if let Some(state) = &key.state {
        let StateStatus {
            version,
            bytes,
            written_at,
        } = state;
        let text = format!("version {version}, {bytes} bytes, written at {written_at}");
        table.row(["state", &text]);
    }
    table.row(["why", &key.explanation]);
    output.table(&table)?;
    output.flush()
}

async fn act(client: &Client, key: &OfQueue, action: &str, json: bool) -> Result<(), Failure> {
    let target = format!("{}/{action}", target(key));
    let after: Explanation = client.call(Method::POST, &target, NOTHING).await?;
    let past = action.trim_end_matches('e');
    let holds = count(after.messages + after.delayed, "message");
    let done = format!("{past}ed {} of {}: it holds {holds}", key.key, key.queue);
    tell(json, &after, &done)
}

async fn drop_messages(client: &Client, args: &KeyDrop) -> Result<(), Failure> {
    let key = &args.key;
    let before: Explanation = client.call(Method::GET, &target(key), NOTHING).await?;
    let holds = format!(
        "{} of {} holds {}.",
        key.key,
        key.queue,
        count(before.messages + before.delayed, "message")
    );
    if args.yes {
        note(&holds);
    } else if !confirm(&format!("{holds} Drop all that are not in flight?"))? {
        return Err(Failure::failed("not confirmed; nothing was done"));
    }
    let target = format!("{}/drop", target(key));
    let dropped: Dropped = client.call(Method::POST, &target, NOTHING).await?;
    let done = format!("dropped {}", count(dropped.messages, "message"));
    tell(args.json, &dropped, &done)
}

async fn list_states(client: &Client, args: &KeyStateList) -> Result<(), Failure> {
    let prefix = part(args.prefix.as_deref().unwrap_or_default());
    let target = format!(
        "/queues/{}/key-states?limit=1000&prefix={prefix}",
        part(&args.queue)
    );
    let states = peek::pages(client, &target, "states", args.max).await?;
    let header = ["KEY", "VERSION", "BYTES", "WRITTEN"];
    peek::print(args.json, &states, header, |state| {
        ["key", "version", "bytes", "written_at"].map(|name| peek::text(&state[name]))
    })
}

async fn get_state(client: &Client, args: &KeyStateGet) -> Result<(), Failure> {
    let state: State = client
        .call(Method::GET, &state_target(&args.key), NOTHING)
        .await?;
    let mut output = Output::new();
    if args.json {
        output.json(&state)?;
    } else {
        let value = state.value_encoding.decode(&state.value);
        let value = value.map_err(|error| Failure::from_error(Exit::Failed, error))?;
        output.raw(&value)?;
    }
    output.flush()
}

async fn set_state(client: &Client, args: &KeyStateSet) -> Result<(), Failure> {
    let value = match &args.value {
        Some(text) => text.clone().into_bytes(),
        None => record::read(io::stdin(), "standard input")?,
    };
    record::check_size(&value, "state")?;
    let (value, encoding) = Encoding::of(&value);
    let body = json!({
        "value": value,
        "value_encoding": encoding,
        "replaces": args.replaces.replaces,
        "any": args.replaces.any,
    });
    let target = state_target(&args.key);
    let written = client.call(Method::PUT, &target, Some(&body)).await;
    let written: Written = written.map_err(CallError::into_write_failure)?;
    let (key, queue) = (&args.key.key, &args.key.queue);
    let done = format!(
        "the state of {key} of {queue} has version {}",
        written.version
    );
    tell(args.json, &written, &done)
}

async fn drop_state(client: &Client, args: &KeyStateDrop) -> Result<(), Failure> {
    let state = state_target(&args.key);
    // The server drops any state, and none, without a word about which it was.
    let dropped = record::replacing(client, args.replaces, args.any, async |replaces| {
        // No state has the version 0.
        let target = format!("{state}?replaces={}", replaces.unwrap_or(0));
        client.call(Method::DELETE, &target, NOTHING).await
    });
    let dropped: Nothing = dropped.await?;
    let (key, queue) = (&args.key.key, &args.key.queue);
    let done = format!("dropped the state of {key} of {queue}");
    tell(args.json, &dropped, &done)
}

fn state_target(key: &OfQueue) -> String {
    format!("{}/state", target(key))
}

fn target_or_none(KeyOrNone { queue, key, .. }: &KeyOrNone) -> String {
    let queue = part(queue);
    match key {
        Some(key) => format!("/queues/{queue}/keys/{}", part(key)),
        None => format!("/queues/{queue}/no-key"),
    }
}

fn target(key: &OfQueue) -> String {
    format!("/queues/{}/keys/{}", part(&key.queue), part(&key.key))
}

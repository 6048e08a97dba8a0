//! `lockgate queue ...`.

use std::time::Duration;

use hyper::Method;
use lockgate_machine::{QueueSettings, SETTINGS, Setting, SettingKind, SettingValue};
use serde_json::{Map, Value, json};

use super::{
    Counts, NOTHING, agree, block_on, client, client_of, environment, exchange_apply, once, part,
    peek, purge, queue_apply, schedule_apply,
};
use crate::{
    args::{
        Given, Queue, QueueCreate, QueueDelete, QueueExport, QueueList, QueuePurge, QueueSet,
        QueueShow, SettingFlags,
    },
    client::Client,
    exit::{Exit, Failure},
    output::{Output, Table, count, note, tell},
    settings::{ClientFlags, resolve},
    units::{millis, setting_json, show_duration},
};

pub(crate) fn run(args: Queue) -> Result<(), Failure> {
    match args {
        Queue::List(args) => {
            let client = client(&args.settings)?;
            block_on(async { list(&client, &args).await })
        }
        Queue::Create(args) => {
            let client = client(&args.settings)?;
            block_on(async { create(&client, &args).await })
        }
        Queue::Show(args) => {
            let client = client(&args.settings)?;
            block_on(async { show(&client, &args).await })
        }
        Queue::Set(args) => {
            let client = client(&args.settings)?;
            block_on(async { set(&client, &args).await })
        }
        Queue::Apply(args) => {
            let settings = resolve(&args.settings.0, &environment)?;
            queue_apply::run(&args, client_of(&settings)?)
        }
        Queue::Export(args) => {
            let client = client(&args.settings)?;
            block_on(async { export(&client, &args).await })
        }
        Queue::Pause(args) => pause(&args.settings, &args.name, true, args.json),
        Queue::Resume(args) => pause(&args.settings, &args.name, false, args.json),
        Queue::Hold(args) => {
            let client = client(&args.settings)?;
            let target = format!("/queues/{}", part(&args.name));
            block_on(async { hold(&client, &target, &args.name, args.time, args.json).await })
        }
        Queue::Purge(args) => {
            let client = client(&args.settings)?;
            let QueuePurge {
                name, yes, json, ..
            } = &args;
            let question = "Remove all of them?";
            block_on(async { purge(&client, name, *yes, question, "purged", *json).await })
        }
        Queue::Delete(args) => {
            let client = client(&args.settings)?;
            block_on(async { delete(&client, &args).await })
        }
    }
}

/// The queue of that name, if there is one. Asked by a list of one, so that no similar name is looked for.
pub(super) async fn find(client: &Client, name: &str) -> Result<Option<Value>, Failure> {
    let target = format!("/queues?limit=1&prefix={}", part(name));
    let mut page: Value = client.call(Method::GET, &target, NOTHING).await?;
    let first = page["queues"].get_mut(0).map(Value::take);
    Ok(first.filter(|queue| queue["name"] == name))
}

/// The value of a setting as the server writes it.
pub(super) fn value_of(setting: &Setting, settings: &Value) -> SettingValue {
    let value = &settings[setting.json_name()];
    let known = match setting.kind {
        SettingKind::Flag => value.as_bool().map(SettingValue::Flag),
        SettingKind::Count { .. } | SettingKind::Time { .. } | SettingKind::Bytes { .. } => {
            value.as_u64().map(SettingValue::Number)
        }
        SettingKind::Word(_)
        | SettingKind::Queue
        | SettingKind::Rate
        | SettingKind::Concurrency
        | SettingKind::Gap => {
            let text = value.as_str();
            text.and_then(|text| setting.parse(text).ok())
        }
    };
    known.unwrap_or(SettingValue::None)
}

/// The settings of a request; `null` is the default.
fn changes(flags: &SettingFlags) -> Map<String, Value> {
    let field = |(setting, given): &(&Setting, Given)| {
        let value = match given {
            Given::Default => Value::Null,
            Given::Value(value) => setting_json(value),
        };
        (setting.json_name().to_owned(), value)
    };
    flags.0.iter().map(field).collect()
}

/// All queues whose names begin so, in order of their names.
async fn all(client: &Client, prefix: Option<&str>) -> Result<Vec<Value>, Failure> {
    let mut target = "/queues?limit=1000".to_owned();
    if let Some(prefix) = prefix {
        target.push_str(&format!("&prefix={}", part(prefix)));
    }
    peek::pages(client, &target, "queues", u64::MAX).await
}

async fn list(client: &Client, args: &QueueList) -> Result<(), Failure> {
    let queues = all(client, args.prefix.as_deref()).await?;
    let header = [
        "NAME",
        "KEYED",
        "READY",
        "IN FLIGHT",
        "DELAYED",
        "OLDEST",
        "DEAD LETTERS",
        "STATE",
    ];
    peek::print(args.json, &queues, header, |queue| {
        let count = |name: &str| peek::text(&queue["counts"][name]);
        [
            peek::text(&queue["name"]),
            yes(&queue["keyed"]).to_owned(),
            count("ready"),
            count("in_flight"),
            count("delayed"),
            age(&queue["counts"]["oldest_at"]),
            dead_letter(queue),
            state(queue),
        ]
    })
}

fn dead_letter(queue: &Value) -> String {
    let name = peek::text(&queue["settings"]["dead_letter"]);
    match queue["dead_letter_missing"] == true {
        true => format!("{name} (missing)"),
        false => name,
    }
}

fn yes(value: &Value) -> &'static str {
    if *value == true { "yes" } else { "no" }
}

fn state(queue: &Value) -> String {
    let paused = queue["paused"] == true;
    match (paused, queue["held_until"].as_str()) {
        (false, None) => "active".to_owned(),
        (true, None) => "paused".to_owned(),
        (false, Some(until)) => format!("held until {until}"),
        (true, Some(until)) => format!("paused, and held until {until}"),
    }
}

/// Which limit holds the queue, and how long.
fn limited(limited: &Value) -> String {
    let name = match peek::text(&limited["limit"]).as_str() {
        "held" => "a hold".to_owned(),
        "owing_keys" => {
            return "as many keys as may owe something, until one of them has paid".to_owned();
        }
        limit => format!("limit {limit}"),
    };
    match limited["remaining_ms"].as_u64() {
        Some(left) => {
            let left = lockgate_core::units::show_millis(left);
            format!("{name}, for another {left}")
        }
        None => format!("{name}, until a lease ends"),
    }
}

/// How long ago something was, to the second.
fn age(instant: &Value) -> String {
    let at = instant.as_str().and_then(|text| text.parse().ok());
    let Some(at) = at else {
        return String::new();
    };
    let age = jiff::Timestamp::now().duration_since(at);
    let seconds = u64::try_from(age.as_secs()).unwrap_or(0);
    show_duration(std::time::Duration::from_secs(seconds))
}

async fn create(client: &Client, args: &QueueCreate) -> Result<(), Failure> {
    once("tag", args.tag.iter().map(|(name, _)| name))?;
    let settings = changes(&args.of_queue);
    let tags: Map<_, _> = (args.tag.iter())
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let body = json!({"name": args.name, "settings": settings, "tags": tags});
    let existed = find(client, &args.name).await?.is_some();
    let queue = match client
        .call::<Value>(Method::POST, "/queues", Some(&body))
        .await
    {
        // The server compares all settings. As with SQS, what is not named may be as it is.
        Err(error) if error.is_queue_there() => {
            let Some(queue) = find(client, &args.name).await? else {
                return Err(error.into());
            };
            check_is_so(args, &queue, &tags)?;
            queue
        }
        made => made?,
    };
    let done = match existed {
        true => format!("{} exists already; nothing was changed", args.name),
        false => format!("created {}", args.name),
    };
    tell(args.json, &queue, &done)
}

/// Refuses a queue that is there and has something otherwise than it is named.
fn check_is_so(
    args: &QueueCreate,
    queue: &Value,
    tags: &Map<String, Value>,
) -> Result<(), Failure> {
    let exists = |what: String| {
        Failure::new(
            Exit::Conflict,
            format!("queue {} exists with {what}", args.name),
        )
        .hint(format!(
            "see it with `lockgate queue show {0}`, change it with `lockgate queue set {0}`",
            args.name
        ))
    };
    if let Some((tag, _)) = tags
        .iter()
        .find(|(tag, value)| queue["tags"][*tag] != **value)
    {
        return Err(exists(format!(
            "the tag {tag}={}",
            peek::text(&queue["tags"][tag])
        )));
    }
    for (setting, given) in &args.of_queue.0 {
        let is = value_of(setting, &queue["settings"]);
        if let Given::Value(value) = given
            && is != *value
        {
            let name = setting.flag_name();
            let [is, asked] = [&is, value].map(|value| setting.show(value));
            return Err(exists(format!("--{name} {is}, not {asked}")));
        }
    }
    Ok(())
}

async fn show(client: &Client, args: &QueueShow) -> Result<(), Failure> {
    let target = format!("/queues/{}", part(&args.name));
    let queue: Value = client.call(Method::GET, &target, NOTHING).await?;
    let mut output = Output::new();
    if args.json {
        output.json(&queue)?;
        return output.flush();
    }
    let mut table = Table::plain(2);
    table.row(["name", &args.name]);
    table.row(["keyed", yes(&queue["keyed"])]);
    table.row(["state", &state(&queue)]);
    if queue["limited"].is_object() {
        table.row(["limited by", &limited(&queue["limited"])]);
    }
    for part in ["created_at", "changed_at"] {
        table.row([&words(part), &peek::text(&queue[part])]);
    }
    for part in ["counts", "totals"] {
        rows(&mut table, "", &queue[part]);
    }
    for setting in SETTINGS {
        let value = match setting.name {
            "dead_letter" if queue["dead_letter_missing"] == true => dead_letter(&queue),
            _ => setting.show(&value_of(setting, &queue["settings"])),
        };
        table.row([words(setting.name), value]);
    }
    if let Some(left) = queue["settings"]["dedup_scope_pending_ms"].as_u64() {
        let left = lockgate_core::units::show_millis(left);
        table.row([
            "dedup scope pending",
            &format!("sends follow the former one for another {left}"),
        ]);
    }
    for (name, value) in queue["tags"].as_object().into_iter().flatten() {
        table.row([&format!("tag {name}"), &peek::text(value)]);
    }
    output.table(&table)?;
    output.flush()
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// Names and values; what is nested with its path.
fn rows(table: &mut Table, path: &str, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        let name = format!("{path}{}", words(name));
        match value {
            Value::Object(_) => rows(table, &format!("{name}: "), value),
            value => {
                table.row([&name, &peek::text(value)]);
            }
        }
    }
}

async fn set(client: &Client, args: &QueueSet) -> Result<(), Failure> {
    once("tag", args.tag.iter().map(|(name, _)| name))?;
    let settings = changes(&args.of_queue);
    let set = args.tag.iter().map(|(name, value)| (name, json!(value)));
    let removed = args.untag.iter().map(|name| (name, Value::Null));
    let tags: Map<_, _> = set
        .chain(removed)
        .map(|(name, value)| (name.clone(), value))
        .collect();
    if settings.is_empty() && tags.is_empty() {
        return Err(Failure::usage("no setting and no tag was named")
            .hint("`lockgate queue set --help` lists them"));
    }
    let queue = change(client, &args.name, settings, tags).await?;
    tell(args.json, &queue, &format!("changed {}", args.name))
}

/// Changes settings and tags of a queue.
pub(super) async fn change(
    client: &Client,
    name: &str,
    settings: Map<String, Value>,
    tags: Map<String, Value>,
) -> Result<Value, Failure> {
    let target = format!("/queues/{}", part(name));
    let change = json!({"settings": settings, "tags": tags});
    Ok(client.repeat(Method::PATCH, &target, Some(&change)).await?)
}

async fn export(client: &Client, args: &QueueExport) -> Result<(), Failure> {
    let queues = all(client, args.prefix.as_deref()).await?;
    let mut output = Output::new();
    for queue in &queues {
        let fields = declaration(queue);
        if args.json {
            let fields: Map<_, _> = (fields.into_iter())
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            output.json(&fields)?;
            continue;
        }
        if queue["dead_letter_missing"] == true {
            let missing = peek::text(&queue["settings"]["dead_letter"]);
            output.line(&format!("# its dead-letter queue {missing} is missing"))?;
        }
        output.line("[[queue]]")?;
        for (name, value) in fields {
            output.line(&format!("{name} = {}", as_toml(&value)))?;
        }
        output.line("")?;
    }
    // A part of the queues may lack those to which exchanges lead.
    let exchanges = match args.prefix {
        Some(_) => Vec::new(),
        None => exchange_apply::declarations(client).await?,
    };
    let object = |fields: Vec<(&str, Value)>| -> Map<_, _> {
        let fields = fields.into_iter();
        fields
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    };
    for (mut fields, bindings) in exchanges {
        if args.json {
            let bindings = bindings.into_iter().map(object);
            fields.push(("bind", bindings.map(Value::Object).collect()));
            output.json(&object(fields))?;
            continue;
        }
        output.line("[[exchange]]")?;
        for (name, value) in fields {
            output.line(&format!("{name} = {}", as_toml(&value)))?;
        }
        output.line("")?;
        for binding in bindings {
            output.line("[[exchange.bind]]")?;
            for (name, value) in binding {
                output.line(&format!("{name} = {}", as_toml(&value)))?;
            }
            output.line("")?;
        }
    }
    let schedules = match args.prefix {
        Some(_) => Vec::new(),
        None => schedule_apply::declarations(client).await?,
    };
    for fields in schedules {
        if args.json {
            output.json(&object(fields))?;
            continue;
        }
        output.line("[[schedule]]")?;
        for (name, value) in fields {
            output.line(&format!("{name} = {}", as_toml(&value)))?;
        }
        output.line("")?;
    }
    output.flush()
}

/// What a file of queues says of a queue: its name, every setting that is not the default, its tags. A dead-letter
/// queue that is missing is left out, because no server takes such a queue.
fn declaration(queue: &Value) -> Vec<(&'static str, Value)> {
    let mut fields = vec![("name", queue["name"].clone())];
    let default = QueueSettings::over_http(queue["keyed"] == true);
    for setting in SETTINGS {
        let value = value_of(setting, &queue["settings"]);
        let dangles = setting.name == "dead_letter" && queue["dead_letter_missing"] == true;
        if value == setting.get(&default) || dangles {
            continue;
        }
        let value = match (&value, setting.kind) {
            (SettingValue::Number(number), SettingKind::Count { .. }) => json!(number),
            (SettingValue::Flag(flag), _) => json!(flag),
            (SettingValue::None, _) => json!("none"),
            (value, _) => json!(setting.show(value)),
        };
        fields.push((setting.name, value));
    }
    if queue["tags"]
        .as_object()
        .is_some_and(|tags| !tags.is_empty())
    {
        fields.push(("tags", queue["tags"].clone()));
    }
    fields
}

/// A text, a number, a truth, or a list or a table of them, on one line of TOML.
fn as_toml(value: &Value) -> String {
    match value {
        Value::String(text) => toml::Value::from(text.as_str()).to_string(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                format!("{} = {}", toml::Value::from(name.as_str()), as_toml(value))
            };
            format!(
                "{{ {} }}",
                fields.iter().map(field).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(as_toml).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

fn pause(settings: &ClientFlags, name: &str, paused: bool, json: bool) -> Result<(), Failure> {
    let client = client(settings)?;
    block_on(async {
        let action = if paused { "pause" } else { "resume" };
        let target = format!("/queues/{}/{action}", part(name));
        let queue: Value = client.repeat(Method::POST, &target, NOTHING).await?;
        tell(json, &queue, &format!("{action}d {name}"))
    })
}

/// Holds the queue or key at `target`.
pub(super) async fn hold(
    client: &Client,
    target: &str,
    what: &str,
    time: Duration,
    json: bool,
) -> Result<(), Failure> {
    let body = json!({"time_ms": millis(time)});
    let held: Value = (client.repeat(Method::POST, &format!("{target}/hold"), Some(&body))).await?;
    let done = match held["until"].as_str() {
        Some(until) => format!("{what} is held until {until}"),
        None => format!("{what} is not held any more"),
    };
    tell(json, &held, &done)
}

async fn delete(client: &Client, args: &QueueDelete) -> Result<(), Failure> {
    let name = &args.name;
    let missing = format!("there is no queue {name:?}");
    let counts = match Counts::of(client, name).await {
        Err(error) if error.is_queue_missing() && args.if_exists => {
            let nothing = json!({"name": name, "messages": 0, "missing": true});
            return tell(args.json, &nothing, &missing);
        }
        counts => counts?,
    };
    let target = format!("/queues/{}", part(name));
    let sources = format!("{target}/dead-letter-sources?limit=1000");
    let sources: Value = client.call(Method::GET, &sources, NOTHING).await?;
    let sources = &sources["queues"];
    if let Some(names) = sources.as_array().filter(|names| !names.is_empty()) {
        let names: Vec<String> = names.iter().map(peek::text).collect();
        note(&format!(
            "{name} is the dead-letter queue of {}: without it, messages that fail for good stay there, and those that \
             are rejected are dropped",
            names.join(", ")
        ));
    }
    if counts.states > 0 {
        let states = count(counts.states, "key");
        note(&format!(
            "{name} also holds the state of {states}, which is deleted with it."
        ));
    }
    agree(args.yes, name, counts, "Delete the queue with all of them?")?;
    match client.call::<Value>(Method::DELETE, &target, NOTHING).await {
        Err(error) if error.is_queue_missing() && args.if_exists => {}
        done => {
            done?;
        }
    }
    let mut deleted = json!({"name": name, "messages": counts.total()});
    if sources.as_array().is_some_and(|names| !names.is_empty()) {
        deleted["dead_letter_queue_of"] = sources.clone();
    }
    tell(args.json, &deleted, &format!("deleted {name}"))
}

//! `lockgate exchange`.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    NOTHING, block_on, client, once, part, peek,
    send::{self, BODY_BYTES_MAX, Problem, unreadable},
    watched,
};
use crate::{
    args::{
        BindingPattern, BindingTo, Exchange, ExchangeBind, ExchangeCreate, ExchangeDelete,
        ExchangeExplain, ExchangeList, ExchangePublish, ExchangeShow, ExchangeUnbind, KindFlag,
        UnroutableFlag,
    },
    client::{Body, Client, Encoding, Header, Message},
    exit::{Exit, Failure},
    output::{Output, Table, confirm, count, tell},
};

/// A binding, as requests name it.
#[derive(Serialize)]
struct Named {
    to: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    routing_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Value>,
}

#[derive(Serialize)]
struct Bind {
    #[serde(flatten)]
    binding: Named,
    /// As it was given: numbers keep their digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_from: Option<Value>,
    skip_when_full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    envelope: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overflow: Option<String>,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome {
    Published(Published),
    Refused { problem: Problem },
}

/// What a publish did, as `--json` prints it.
#[derive(Serialize, Deserialize)]
pub(super) struct Published {
    pub(super) copies: u64,
    pub(super) duplicates: u64,
    pub(super) skipped: u64,
    pub(super) dropped: bool,
    queues: Vec<Value>,
}

pub(super) fn run(args: Exchange) -> Result<(), Failure> {
    if let Exchange::Publish(ExchangePublish {
        lines: Some(path), ..
    }) = &args
    {
        let path = path.clone();
        return send::with_progress(move |progress| match &args {
            Exchange::Publish(args) => send::publish_lines(args, &path, progress),
            _ => Ok(()),
        });
    }
    watched(move || run_one(&args))
}

fn run_one(args: &Exchange) -> Result<(), Failure> {
    let client = client(args.settings())?;
    block_on(async {
        match args {
            Exchange::Create(args) => create(&client, args).await,
            Exchange::List(args) => list(&client, args).await,
            Exchange::Show(args) => show(&client, args).await,
            Exchange::Bind(args) => bind(&client, args).await,
            Exchange::Unbind(args) => unbind(&client, args).await,
            Exchange::Publish(args) => publish(&client, args).await,
            Exchange::Explain(args) => explain(&client, args).await,
            Exchange::Delete(args) => delete(&client, args).await,
        }
    })
}

pub(super) fn target(name: &str, rest: &str) -> String {
    format!("/exchanges/{}{rest}", part(name))
}

async fn create(client: &Client, args: &ExchangeCreate) -> Result<(), Failure> {
    let name = &args.exchange.name;
    let kind = match args.kind {
        KindFlag::Direct => "direct",
        KindFlag::Topic => "topic",
        KindFlag::Fanout => "fanout",
        KindFlag::Headers => "headers",
    };
    let unroutable = match (&args.alternate, args.unroutable) {
        (Some(alternate), _) => json!({"alternate": alternate}),
        (None, UnroutableFlag::Reject) => json!("reject"),
        (None, UnroutableFlag::Drop) => json!("drop"),
    };
    let body = json!({"name": name, "kind": kind, "unroutable": unroutable});
    let made = client.repeat(Method::POST, "/exchanges", Some(&body)).await;
    let made: Value = match made {
        Ok(made) => made,
        Err(error) if args.change && error.has_code("exchange_exists") => {
            let there: Value = client.call(Method::GET, &target(name, ""), NOTHING).await?;
            // Nothing changes the kind.
            if there["kind"] != kind {
                return Err(error.into());
            }
            let body = json!({"unroutable": unroutable});
            let target = target(name, "");
            client.repeat(Method::PATCH, &target, Some(&body)).await?
        }
        Err(error) => return Err(error.into()),
    };
    let done = format!("there is an exchange {name}");
    tell(args.exchange.json, &made, &done)
}

async fn list(client: &Client, args: &ExchangeList) -> Result<(), Failure> {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let target = format!("/exchanges?limit=1000&prefix={}", part(prefix));
    let exchanges = peek::pages(client, &target, "exchanges", args.max).await?;
    let header = [
        "NAME",
        "KIND",
        "UNROUTABLE",
        "BINDINGS",
        "PUBLISHED",
        "COPIES",
        "DROPPED",
        "SKIPPED",
        "REFUSED",
    ];
    peek::print(args.json, &exchanges, header, |exchange| {
        let counts = &exchange["counts"];
        [
            peek::text(&exchange["name"]),
            peek::text(&exchange["kind"]),
            unroutable(&exchange["unroutable"]),
            peek::text(&exchange["bindings"]),
            peek::text(&counts["published"]),
            peek::text(&counts["copies"]),
            peek::text(&counts["dropped"]),
            peek::text(&counts["skipped"]),
            peek::text(&counts["refused"]),
        ]
    })
}

async fn show(client: &Client, args: &ExchangeShow) -> Result<(), Failure> {
    let name = &args.exchange.name;
    let exchange: Value = client.call(Method::GET, &target(name, ""), NOTHING).await?;
    let of_bindings = target(name, "/bindings?limit=1000");
    let bindings = peek::pages(client, &of_bindings, "bindings", args.max).await?;
    let mut output = Output::new();
    if args.exchange.json {
        output.json(&json!({"exchange": exchange, "bindings": bindings}))?;
        return output.flush();
    }
    let mut table = Table::plain(2);
    for (name, field) in [("name", "name"), ("kind", "kind")] {
        table.row([name, &peek::text(&exchange[field])]);
    }
    table.row(["unroutable messages", &unroutable(&exchange["unroutable"])]);
    table.row(["created", &peek::text(&exchange["created_at"])]);
    table.row(["bindings", &peek::text(&exchange["bindings"])]);
    for field in [
        "published",
        "copies",
        "unroutable",
        "dropped",
        "skipped",
        "refused",
    ] {
        table.row([field, &peek::text(&exchange["counts"][field])]);
    }
    output.table(&table)?;
    if !bindings.is_empty() {
        output.line("")?;
        let header = ["NUMBER", "TO", "MATCHES", "FILTER", "KEY FROM", "WHEN FULL"];
        let mut table = Table::new(header);
        for binding in &bindings {
            let filter = match &binding["filter"] {
                Value::Null => String::new(),
                filter => format!(
                    "{}: {}",
                    peek::text(&binding["filter_scope"]),
                    peek::beginning(&filter.to_string())
                ),
            };
            table.row([
                peek::text(&binding["number"]),
                to(binding),
                matches(binding),
                filter,
                key_from(&binding["key_from"]),
                when_full(&binding["overflow"], binding["skip_when_full"] == true),
            ]);
        }
        output.table(&table)?;
    }
    output.flush()
}

/// What becomes of a copy for which the queue has no room.
fn when_full(overflow: &Value, skips: bool) -> String {
    let last = if skips { "skip" } else { "refuse" };
    match overflow.as_str() {
        Some(queue) => format!("to {queue}, else {last}"),
        None => last.to_owned(),
    }
}

async fn bind(client: &Client, args: &ExchangeBind) -> Result<(), Failure> {
    let filter = match &args.filter {
        None => None,
        Some(text) => Some(
            RawValue::from_string(text.clone())
                .map_err(|error| Failure::usage(format!("--filter is no JSON: {error}")))?,
        ),
    };
    let body = Bind {
        binding: named(&args.to, &args.pattern),
        filter_scope: filter
            .as_ref()
            .map(|_| if args.filter_body { "body" } else { "headers" }),
        filter,
        key_from: match (&args.key_from_header, args.key_from_routing_key) {
            (Some(header), _) => Some(json!({"header": header})),
            (None, true) => Some(json!("routing_key")),
            (None, false) => None,
        },
        skip_when_full: args.skip_when_full,
        envelope: args.envelope.clone(),
        overflow: args.overflow.clone(),
    };
    let target = target(&args.exchange.name, "/bind");
    let bound: Value = client.repeat(Method::POST, &target, Some(&body)).await?;
    let done = match (bound["existed"] == true, bound["changed"] == true) {
        (false, _) => "bound",
        (true, true) => "the options of the binding are changed",
        (true, false) => "there is such a binding",
    };
    tell(args.exchange.json, &bound, done)
}

async fn unbind(client: &Client, args: &ExchangeUnbind) -> Result<(), Failure> {
    let body = named(&args.to, &args.pattern);
    let name = &args.exchange.name;
    let target = target(name, "/unbind");
    let unbound: Value = client.call(Method::POST, &target, Some(&body)).await?;
    if unbound["existed"] != true {
        let what = format!("exchange {name} has no such binding");
        let hint = format!("see what bindings there are with `lockgate exchange show {name}`");
        return Err(Failure::new(Exit::NotFound, what).hint(hint));
    }
    tell(args.exchange.json, &unbound, "unbound")
}

async fn publish(client: &Client, args: &ExchangePublish) -> Result<(), Failure> {
    once("header", args.header.iter().map(|(name, ..)| name))?;
    let bytes = match (&args.body, &args.file) {
        (Some(body), _) => body.clone().into_bytes(),
        (None, Some(path)) if path == Path::new("-") => read(io::stdin(), "standard input")?,
        (None, Some(path)) => {
            let what = path.display().to_string();
            let file = File::open(path).map_err(|error| unreadable(&error, &what))?;
            read(file, &what)?
        }
        (None, None) => Vec::new(),
    };
    let (text, encoding) = Encoding::of(&bytes);
    let message = Message {
        body: Body { text, encoding },
        key: args.key.clone(),
        unique_id: args.unique_id.clone(),
        headers: headers(&args.header).collect(),
        ..Message::default()
    };
    let body = json!({"messages": [{"routing_key": args.routing_key, "message": message}]});
    let target = target(&args.exchange.name, "/messages");
    let Results { results } = client.call(Method::POST, &target, Some(&body)).await?;
    let published = match results.into_iter().next() {
        Some(Outcome::Published(published)) => published,
        Some(Outcome::Refused { problem }) => return Err(problem.failure("messages[0]")),
        None => return Err(Failure::failed("the server's answer has no result")),
    };
    let mut done = match (published.dropped, published.copies) {
        (true, _) => "there is no queue for it, and the exchange has dropped it".to_owned(),
        (false, 1) => "published: 1 copy".to_owned(),
        (false, copies) => format!("published: {copies} copies"),
    };
    for (number, what) in [
        (published.duplicates, "of them there before"),
        (published.skipped, "left out, as full"),
    ] {
        if number > 0 {
            done.push_str(&format!(", {number} {what}"));
        }
    }
    tell(args.exchange.json, &published, &done)
}

async fn explain(client: &Client, args: &ExchangeExplain) -> Result<(), Failure> {
    once("header", args.header.iter().map(|(name, ..)| name))?;
    let headers: Map<String, Value> = headers(&args.header)
        .map(|(name, header)| {
            let Header { kind, value, .. } = header;
            (name, json!({"type": kind, "value": value}))
        })
        .collect();
    let mut body = json!({"routing_key": args.routing_key, "headers": headers, "limit": 1000});
    if let Some(text) = &args.body {
        body["body"] = json!(text);
    }
    let target = target(&args.exchange.name, "/explain");
    let route: Value = client.repeat(Method::POST, &target, Some(&body)).await?;
    let mut output = Output::new();
    if args.exchange.json {
        output.json(&route)?;
        return output.flush();
    }
    let steps = route["bindings"].as_array().map_or(&[][..], Vec::as_slice);
    if !steps.is_empty() {
        let mut table = Table::new(["EXCHANGE", "TO", "MATCHES", "OUTCOME", "WHY"]);
        for step in steps {
            table.row([
                peek::text(&step["exchange"]),
                to(&step["binding"]),
                matches(&step["binding"]),
                peek::text(&step["outcome"]),
                peek::text(&step["why"]),
            ]);
        }
        output.table(&table)?;
        output.line("")?;
    }
    let more = route["more"].as_u64().unwrap_or(0);
    if more > 0 {
        output.line(&format!("{more} more match"))?;
    }
    let alternates = route["alternates"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for alternate in alternates {
        let name = peek::text(alternate);
        output.line(&format!(
            "no queue was found, so its alternate {name} looks"
        ))?;
    }
    let queues = count(route["queues"].as_u64().unwrap_or(0), "queue");
    output.line(&match &route["unroutable"] {
        Value::Null => format!("{queues} would get the message"),
        rule if rule == "drop" => "no queue would get the message: it would be dropped".to_owned(),
        _ => "no queue would get the message: it would be refused".to_owned(),
    })?;
    output.flush()
}

async fn delete(client: &Client, args: &ExchangeDelete) -> Result<(), Failure> {
    let name = &args.exchange.name;
    let exchange: Value = client.call(Method::GET, &target(name, ""), NOTHING).await?;
    let bindings = count(exchange["bindings"].as_u64().unwrap_or(0), "binding");
    if !args.yes && !confirm(&format!("{name} has {bindings}. Delete it?"))? {
        return Err(Failure::failed("not confirmed; nothing was done"));
    }
    let target = target(name, &format!("?force={}", args.force));
    let deleted: Value = client.call(Method::DELETE, &target, NOTHING).await?;
    tell(args.exchange.json, &deleted, "deleted")
}

pub(super) fn read(source: impl Read, what: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = source.take(BODY_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(&error, what))?;
    match bytes.len() as u64 > BODY_BYTES_MAX {
        true => Err(Failure::failed(format!(
            "{what} has more than {BODY_BYTES_MAX} bytes, which no queue takes"
        ))),
        false => Ok(bytes),
    }
}

pub(super) fn headers(
    given: &[(String, String, String)],
) -> impl Iterator<Item = (String, Header)> {
    given.iter().map(|(name, kind, value)| {
        let header = Header {
            kind: kind.clone(),
            value: value.clone(),
            encoding: Encoding::Text,
        };
        (name.clone(), header)
    })
}

fn named(to: &BindingTo, pattern: &BindingPattern) -> Named {
    let to = match (&to.queue, &to.to_exchange) {
        (Some(queue), _) => json!({"queue": queue}),
        (None, exchange) => json!({"exchange": exchange}),
    };
    let mut pairs = Map::new();
    for header in &pattern.header {
        let (name, value) = match header.split_once('=') {
            Some((name, value)) => (name, json!(value)),
            None => (&**header, Value::Null),
        };
        let values = pairs.entry(name).or_insert_with(|| json!([]));
        if let Some(values) = values.as_array_mut() {
            values.push(value);
        }
    }
    let how = if pattern.any { "any" } else { "all" };
    Named {
        to,
        routing_key: pattern.routing_key.clone(),
        topic: pattern.topic.clone(),
        headers: (!pairs.is_empty()).then(|| json!({"match": how, "pairs": pairs})),
    }
}

/// What becomes of messages that an exchange cannot route.
fn unroutable(rule: &Value) -> String {
    match &rule["alternate"] {
        Value::Null => peek::text(rule),
        alternate => format!("to {}", peek::text(alternate)),
    }
}

/// Where a binding leads.
fn to(binding: &Value) -> String {
    let to = &binding["to"];
    match &to["queue"] {
        Value::Null => format!("exchange {}", peek::text(&to["exchange"])),
        queue => peek::text(queue),
    }
}

/// What a binding matches by.
fn matches(binding: &Value) -> String {
    for field in ["routing_key", "topic"] {
        if let Value::String(text) = &binding[field] {
            return format!("{text:?}");
        }
    }
    match &binding["headers"] {
        Value::Null => "everything".to_owned(),
        headers => format!("{} {}", peek::text(&headers["match"]), headers["pairs"]),
    }
}

fn key_from(from: &Value) -> String {
    match &from["header"] {
        Value::Null => peek::text(from).replace('_', " "),
        header => format!("header {}", peek::text(header)),
    }
}

//! The exchanges of `lockgate queue apply`: declared ones against a running server.
//!
//! Exchanges are made first, then their rules are set and their bindings made, so that the order in the file does not matter.

use hyper::Method;
use lockgate_machine::{
    BindTo, BindingOptions, FilterScope, HeaderPair, KeyFrom, Pattern, Unroutable,
};
use lockgate_server::{
    DeclaredBinding, DeclaredExchange, DeclaredQueue, ExchangePart, ExchangeProblem,
    exchange_references, other_kind,
};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    NOTHING, exchange::target, peek, queue::find, queue_apply::Change, queue_apply::Outcome,
    queue_apply::What,
};
use crate::{client::Client, exit::Failure};

/// What is, or was, to be done to an exchange.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    pub(super) exchange: String,
    pub(super) outcome: Outcome,
    pub(super) changes: Vec<Change>,
    /// Its kind, if it is there.
    #[serde(skip)]
    kind: Option<String>,
    #[serde(skip)]
    changes_rule: bool,
    /// The indexes of the bindings to make.
    #[serde(skip)]
    bindings: Vec<usize>,
}

/// What a binding is known by, and its options, in the words of the API.
#[derive(Debug, PartialEq)]
struct Words {
    identity: Value,
    filter: Option<Value>,
    options: Value,
}

/// A binding to make.
#[derive(Serialize)]
struct Bind {
    #[serde(flatten)]
    identity: Value,
    /// As it was given: numbers keep their digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Box<RawValue>>,
    #[serde(flatten)]
    options: Value,
}

/// What differs between a declaration and what there is.
pub(super) async fn plan(client: &Client, declared: &DeclaredExchange) -> Result<Plan, Failure> {
    let name = declared.name.as_str();
    let is = described(client, name).await?;
    let mut plan = Plan {
        exchange: name.to_owned(),
        outcome: Outcome::Created,
        changes: Vec::new(),
        kind: is.as_ref().map(|is| peek::text(&is["kind"])),
        changes_rule: false,
        bindings: Vec::new(),
    };
    let before = is.as_ref().map(|is| is["unroutable"].clone());
    if let Some(after) = declared.unroutable.as_ref().map(rule)
        && before.as_ref() != Some(&after)
    {
        plan.changes_rule = true;
        plan.changes.push(Change {
            what: What::Unroutable,
            before: before.map(|before| shown(&before)),
            after: shown(&after),
        });
    }
    let there = match is {
        None => Vec::new(),
        Some(_) => {
            let of_bindings = target(name, "/bindings?limit=1000");
            let bindings = peek::pages(client, &of_bindings, "bindings", u64::MAX).await?;
            bindings.iter().map(words_of_view).collect()
        }
    };
    let there: std::collections::BTreeMap<String, &Words> = there
        .iter()
        .map(|words: &Words| (words.identity.to_string(), words))
        .collect();
    for (at, binding) in declared.bindings.iter().enumerate() {
        let after = words(binding);
        let before = there.get(&after.identity.to_string());
        if before.is_some_and(|before| **before == after) {
            continue;
        }
        plan.bindings.push(at);
        plan.changes.push(Change {
            what: What::Binding(format!("to {} by {}", binding.to, binding.pattern)),
            before: before.map(|before| before.shown()),
            after: after.shown(),
        });
    }
    plan.outcome = match &plan.kind {
        None => Outcome::Created,
        Some(_) if plan.changes.is_empty() => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    };
    Ok(plan)
}

async fn described(client: &Client, name: &str) -> Result<Option<Value>, Failure> {
    match client.call(Method::GET, &target(name, ""), NOTHING).await {
        Ok(exchange) => Ok(Some(exchange)),
        Err(error) if error.has_code("exchange_not_found") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What prevents that the exchanges are as declared, as far as can be seen before.
pub(super) async fn problems(
    client: &Client,
    queues: &[DeclaredQueue],
    exchanges: &[DeclaredExchange],
    plans: &[Plan],
) -> Result<Vec<ExchangeProblem>, Failure> {
    let mut problems = Vec::new();
    for reference in exchange_references(queues, exchanges) {
        let is_there = match &reference.to {
            BindTo::Queue(queue) => find(client, queue.as_str()).await?.is_some(),
            BindTo::Exchange(name) => described(client, name.as_str()).await?.is_some(),
        };
        if !is_there {
            problems.push(reference.missing());
        }
    }
    for (at, (plan, exchange)) in plans.iter().zip(exchanges).enumerate() {
        if let Some(is) = &plan.kind
            && is != exchange.kind.name()
        {
            problems.push(ExchangeProblem {
                exchange: at,
                part: ExchangePart::Name,
                what: other_kind(is, exchange.kind.name()),
            });
        }
    }
    Ok(problems)
}

pub(super) async fn apply(
    client: &Client,
    exchanges: &[DeclaredExchange],
    plans: &[Plan],
) -> Result<(), Failure> {
    let both = || plans.iter().zip(exchanges);
    for (plan, exchange) in both().filter(|(plan, _)| plan.outcome == Outcome::Created) {
        let body = json!({"name": plan.exchange, "kind": exchange.kind.name()});
        let made = client.call::<Value>(Method::POST, "/exchanges", Some(&body));
        made.await.map_err(|error| plan.failed(error.into()))?;
    }
    for (plan, exchange) in both() {
        let name = &plan.exchange;
        if let Some(unroutable) = exchange.unroutable.as_ref().filter(|_| plan.changes_rule) {
            let body = json!({"unroutable": rule(unroutable)});
            let path = target(name, "");
            let changed = client.call::<Value>(Method::PATCH, &path, Some(&body));
            changed.await.map_err(|error| plan.failed(error.into()))?;
        }
        for &at in &plan.bindings {
            let binding = &exchange.bindings[at];
            let Words {
                identity, options, ..
            } = words(binding);
            let filter = binding.options.filter.as_ref();
            let filter = filter.map(|filter| RawValue::from_string(filter.text().to_owned()));
            let filter = filter.transpose().map_err(|error| {
                plan.failed(Failure::usage(format!("a filter is no JSON: {error}")))
            })?;
            let body = Bind {
                identity,
                filter,
                options,
            };
            let path = target(name, "/bind");
            let bound = client.call::<Value>(Method::POST, &path, Some(&body));
            bound.await.map_err(|error| {
                let binding = format!("binding to {} by {}", binding.to, binding.pattern);
                plan.failed(Failure::from(error).context(binding))
            })?;
        }
    }
    Ok(())
}

impl Plan {
    fn failed(&self, failure: Failure) -> Failure {
        failure.context(format!("exchange {}", self.exchange))
    }
}

impl Words {
    /// Its options, for people.
    fn shown(&self) -> String {
        let mut parts = Vec::new();
        if let Some(filter) = &self.filter {
            let scope = peek::text(&self.options["filter_scope"]);
            parts.push(format!("filter on the {scope} {filter}"));
        }
        match &self.options["key_from"] {
            Value::Null => {}
            from => parts.push(format!("key from {}", key_from(from))),
        }
        if self.options["skip_when_full"] == true {
            parts.push("skipped when full".to_owned());
        }
        for (option, words) in [
            ("envelope", "in envelopes of"),
            ("overflow", "overflows to"),
        ] {
            if let Some(text) = self.options[option].as_str() {
                parts.push(format!("{words} {text}"));
            }
        }
        match parts.is_empty() {
            true => "no options".to_owned(),
            false => parts.join(", "),
        }
    }
}

fn key_from(from: &Value) -> String {
    match &from["header"] {
        Value::Null => "the routing key".to_owned(),
        header => format!("header {}", peek::text(header)),
    }
}

fn rule(unroutable: &Unroutable) -> Value {
    match unroutable {
        Unroutable::Reject => json!("reject"),
        Unroutable::Drop => json!("drop"),
        Unroutable::Alternate(name) => json!({"alternate": name.as_str()}),
    }
}

fn shown(rule: &Value) -> String {
    match &rule["alternate"] {
        Value::Null => peek::text(rule),
        alternate => format!("to {}", peek::text(alternate)),
    }
}

fn words(binding: &DeclaredBinding) -> Words {
    let mut identity = Map::new();
    let to = match &binding.to {
        BindTo::Queue(queue) => json!({"queue": queue.as_str()}),
        BindTo::Exchange(exchange) => json!({"exchange": exchange.as_str()}),
    };
    identity.insert("to".to_owned(), to);
    let pattern = match &binding.pattern {
        Pattern::RoutingKey(key) => Some(("routing_key", json!(key.as_str()))),
        Pattern::Topic(topic) => Some(("topic", json!(topic.to_string()))),
        Pattern::Headers(matched) => {
            let mut pairs: Map<String, Value> = Map::new();
            for HeaderPair { name, value } in matched.pairs() {
                let values = pairs.entry(&**name).or_insert_with(|| json!([]));
                if let Some(values) = values.as_array_mut() {
                    values.push(json!(value.as_deref()));
                }
            }
            let how = if matched.is_any() { "any" } else { "all" };
            Some(("headers", json!({"match": how, "pairs": pairs})))
        }
        _ => None,
    };
    if let Some((field, value)) = pattern {
        identity.insert(field.to_owned(), value);
    }
    let BindingOptions {
        filter,
        key_from,
        skip_when_full,
        envelope,
        overflow,
    } = &binding.options;
    let mut options = json!({"skip_when_full": skip_when_full});
    if let Some(filter) = filter {
        options["filter_scope"] = json!(match filter.scope() {
            FilterScope::Body => "body",
            _ => "headers",
        });
    }
    if let Some(topic) = envelope {
        options["envelope"] = json!(&**topic);
    }
    if let Some(queue) = overflow {
        options["overflow"] = json!(queue.as_str());
    }
    if let Some(from) = key_from {
        options["key_from"] = match from {
            KeyFrom::RoutingKey => json!("routing_key"),
            KeyFrom::Header(name) => json!({"header": &**name}),
        };
    }
    Words {
        identity: Value::Object(identity),
        filter: filter
            .as_ref()
            .and_then(|filter| serde_json::from_str(filter.text()).ok()),
        options,
    }
}

/// A binding as the server shows it.
fn words_of_view(view: &Value) -> Words {
    let take = |fields: &[&str]| -> Map<String, Value> {
        let fields = fields.iter().filter(|field| !view[**field].is_null());
        let fields = fields.map(|field| ((*field).to_owned(), view[*field].clone()));
        fields.collect()
    };
    let mut identity = take(&["to", "routing_key", "topic", "headers"]);
    let pairs = identity
        .get_mut("headers")
        .and_then(|headers| headers["pairs"].as_object_mut());
    // One value may stand by itself.
    for (_, values) in pairs.into_iter().flatten() {
        if !values.is_array() {
            *values = json!([values]);
        }
    }
    Words {
        identity: Value::Object(identity),
        filter: Some(view["filter"].clone()).filter(|filter| !filter.is_null()),
        options: Value::Object(take(&[
            "filter_scope",
            "key_from",
            "skip_when_full",
            "envelope",
            "overflow",
        ])),
    }
}

/// What a file says of an exchange and of each of its bindings, in order.
pub(super) type Declaration = (Vec<(&'static str, Value)>, Vec<Vec<(&'static str, Value)>>);

/// What a file says of the exchanges that a server has.
pub(super) async fn declarations(client: &Client) -> Result<Vec<Declaration>, Failure> {
    let exchanges = peek::pages(client, "/exchanges?limit=1000", "exchanges", u64::MAX).await?;
    let mut declarations = Vec::with_capacity(exchanges.len());
    for exchange in exchanges {
        let name = peek::text(&exchange["name"]);
        let of_bindings = target(&name, "/bindings?limit=1000");
        let bindings = peek::pages(client, &of_bindings, "bindings", u64::MAX).await?;
        let mut fields = vec![("name", json!(name)), ("kind", exchange["kind"].clone())];
        match &exchange["unroutable"]["alternate"] {
            Value::Null if exchange["unroutable"] == "reject" => {}
            Value::Null => fields.push(("unroutable", exchange["unroutable"].clone())),
            alternate => fields.push(("alternate", alternate.clone())),
        }
        declarations.push((fields, bindings.iter().map(declaration).collect()));
    }
    Ok(declarations)
}

/// What a file says of a binding, as the server shows it.
fn declaration(binding: &Value) -> Vec<(&'static str, Value)> {
    let mut fields = Vec::new();
    for place in ["queue", "exchange"] {
        fields.push((place, binding["to"][place].clone()));
    }
    for pattern in ["routing_key", "topic"] {
        fields.push((pattern, binding[pattern].clone()));
    }
    if let Value::Object(pairs) = &binding["headers"]["pairs"] {
        let pairs = pairs.iter().flat_map(|(name, values)| {
            let values = match values {
                Value::Array(values) => &values[..],
                one => std::slice::from_ref(one),
            };
            values.iter().map(move |value| match value {
                Value::String(value) => format!("{name}={value}"),
                _ => name.clone(),
            })
        });
        fields.push(("headers", json!(pairs.collect::<Vec<_>>())));
        if binding["headers"]["match"] == "any" {
            fields.push(("any", json!(true)));
        }
    }
    if !binding["filter"].is_null() {
        fields.push(("filter", json!(binding["filter"].to_string())));
        if binding["filter_scope"] == "body" {
            fields.push(("filter_body", json!(true)));
        }
    }
    match &binding["key_from"] {
        Value::Null => {}
        Value::String(_) => fields.push(("key_from_routing_key", json!(true))),
        from => fields.push(("key_from_header", from["header"].clone())),
    }
    if binding["skip_when_full"] == true {
        fields.push(("skip_when_full", json!(true)));
    }
    for option in ["envelope", "overflow"] {
        fields.push((option, binding[option].clone()));
    }
    fields.retain(|(_, value)| !value.is_null());
    fields
}

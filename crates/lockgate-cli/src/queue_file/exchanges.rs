//! Exchanges in Lockgate's own form: `[[exchange]]` and `[[exchange.bind]]`.

use lockgate_core::{ExchangeName, QueueName, RoutingKey};
use lockgate_machine::{
    BindTo, BindingOptions, ExchangeKind, Filter, FilterScope, HeaderPair, HeadersMatch, KeyFrom,
    Pattern, TopicPattern, Unroutable,
};
use lockgate_server::{DeclaredBinding, DeclaredExchange};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ExchangeEntry, own::Reading};

const EXCHANGE_KEYS: &str = "there are name, kind, unroutable, alternate, bind";
const BIND_KEYS: &str = "there are queue, exchange, routing_key, topic, headers, any, filter, filter_body, key_from_header, \
                         key_from_routing_key, skip_when_full, envelope, overflow";

/// A key, where it stands, and its value.
pub(super) struct Member<'a> {
    pub(super) at: usize,
    pub(super) name: &'a str,
    pub(super) value: &'a DeValue<'a>,
}

pub(super) fn members<'a>(table: &'a DeTable<'a>) -> impl Iterator<Item = Member<'a>> {
    table.iter().map(|(key, value)| Member {
        at: key.span().start,
        name: key.get_ref().as_ref(),
        value: value.get_ref(),
    })
}

impl Member<'_> {
    pub(super) fn text(&self) -> Result<&str, String> {
        match self.value {
            DeValue::String(text) => Ok(text.as_ref()),
            _ => Err(format!("{}: expected a text", self.name)),
        }
    }

    fn flag(&self) -> Result<bool, String> {
        match self.value {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(format!("{}: expected true or false", self.name)),
        }
    }

    fn texts(&self) -> Result<Vec<&str>, String> {
        let wrong = || format!("{}: expected a list of texts", self.name);
        let DeValue::Array(items) = self.value else {
            return Err(wrong());
        };
        let texts = items.iter().map(|item| match item.get_ref() {
            DeValue::String(text) => Ok(text.as_ref()),
            _ => Err(wrong()),
        });
        texts.collect()
    }
}

/// Reads a text as what it stands for.
pub(super) fn parsed<T, E: ToString>(
    member: &Member<'_>,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, String> {
    read(member.text()?).map_err(|error| format!("{}: {}", member.name, error.to_string()))
}

impl Reading {
    pub(super) fn exchange(&mut self, item: &Spanned<DeValue<'_>>) -> Option<ExchangeEntry> {
        let start = item.span().start;
        let DeValue::Table(table) = item.get_ref() else {
            self.problem(start, "exchange: expected [[exchange]], once for each");
            return None;
        };
        let mut line = self.line(start);
        let mut rule_line = line;
        let (mut name, mut kind, mut rule, mut alternate) = (None, None, None, None);
        let mut bindings = Vec::new();
        for member in members(table) {
            let read = match member.name {
                "name" => {
                    line = self.line(member.at);
                    parsed(&member, ExchangeName::new).map(|it| name = Some(it))
                }
                "kind" => parsed(&member, kind_of).map(|it| kind = Some(it)),
                "unroutable" => {
                    rule_line = self.line(member.at);
                    parsed(&member, unroutable_of).map(|it| rule = Some(it))
                }
                "alternate" => {
                    rule_line = self.line(member.at);
                    parsed(&member, ExchangeName::new).map(|it| alternate = Some(it))
                }
                "bind" => match member.value {
                    DeValue::Array(items) => {
                        bindings.extend(items.iter().filter_map(|item| self.binding(item)));
                        Ok(())
                    }
                    _ => Err("bind: expected [[exchange.bind]], once for each".to_owned()),
                },
                other => Err(format!("unknown key {other:?}; {EXCHANGE_KEYS}")),
            };
            if let Err(what) = read {
                self.problem(member.at, what);
            }
        }
        let unroutable = match (rule, alternate) {
            (Some(_), Some(_)) => {
                self.problem(
                    start,
                    "unroutable and alternate are both there: leave one out",
                );
                return None;
            }
            (rule, None) => rule,
            (None, Some(alternate)) => Some(Unroutable::Alternate(alternate)),
        };
        let has = |of: &str| members(table).any(|member| member.name == of);
        for (key, example) in [("name", "events"), ("kind", "topic")] {
            if !has(key) {
                self.problem(
                    start,
                    format!("an exchange needs a {key}: {key} = \"{example}\""),
                );
            }
        }
        let (binding_lines, bindings) = bindings.into_iter().unzip();
        Some(ExchangeEntry {
            exchange: DeclaredExchange {
                name: name?,
                kind: kind?,
                unroutable,
                bindings,
            },
            line,
            rule_line,
            binding_lines,
        })
    }

    fn binding(&mut self, item: &Spanned<DeValue<'_>>) -> Option<(usize, DeclaredBinding)> {
        let start = item.span().start;
        let DeValue::Table(table) = item.get_ref() else {
            self.problem(start, "bind: expected [[exchange.bind]], once for each");
            return None;
        };
        let (mut places, mut patterns, mut headers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut any, mut filter, mut filter_body, mut filter_at) = (false, None, false, start);
        let (mut key_from, mut options) = (Vec::new(), BindingOptions::default());
        let before = self.problems.len();
        for member in members(table) {
            let read = match member.name {
                "queue" => parsed(&member, QueueName::new).map(|it| places.push(BindTo::Queue(it))),
                "exchange" => {
                    parsed(&member, ExchangeName::new).map(|it| places.push(BindTo::Exchange(it)))
                }
                "routing_key" => parsed(&member, RoutingKey::new)
                    .map(|it| patterns.push(Pattern::RoutingKey(it))),
                "topic" => {
                    parsed(&member, TopicPattern::new).map(|it| patterns.push(Pattern::Topic(it)))
                }
                "headers" => member
                    .texts()
                    .map(|it| headers = it.into_iter().map(pair).collect()),
                "any" => member.flag().map(|it| any = it),
                "filter" => {
                    filter_at = member.at;
                    member.text().map(|it| filter = Some(it.to_owned()))
                }
                "filter_body" => member.flag().map(|it| filter_body = it),
                "key_from_header" => member
                    .text()
                    .map(|it| key_from.push(KeyFrom::Header(it.into()))),
                "key_from_routing_key" => member.flag().map(|it| {
                    key_from.extend(it.then_some(KeyFrom::RoutingKey));
                }),
                "skip_when_full" => member.flag().map(|it| options.skip_when_full = it),
                "envelope" => member.text().map(|it| options.envelope = Some(it.into())),
                "overflow" => parsed(&member, QueueName::new).map(|it| options.overflow = Some(it)),
                other => Err(format!("unknown key {other:?}; {BIND_KEYS}")),
            };
            if let Err(what) = read {
                self.problem(member.at, what);
            }
        }
        if !headers.is_empty() {
            let matched = match any {
                true => HeadersMatch::any(headers),
                false => HeadersMatch::all(headers),
            };
            match matched {
                Ok(matched) => patterns.push(Pattern::Headers(matched.into())),
                Err(error) => self.problem(start, format!("headers: {error}")),
            }
        } else if any {
            self.problem(
                start,
                "any: it says how many of the headers, and there are none",
            );
        }
        let scope = match filter_body {
            true => FilterScope::Body,
            false => FilterScope::Headers,
        };
        match filter.map(|text| Filter::new(scope, &text)) {
            Some(Ok(filter)) => options.filter = Some(filter),
            Some(Err(error)) => self.problem(filter_at, format!("filter: {error}")),
            None if filter_body => {
                self.problem(
                    start,
                    "filter_body: it says what a filter looks at, and there is none",
                );
            }
            None => {}
        }
        if key_from.len() > 1 {
            let what = "key_from_header and key_from_routing_key are both there: leave one out";
            self.problem(start, what);
        }
        options.key_from = key_from.pop();
        if patterns.len() > 1 {
            self.problem(start, "a binding has one of routing_key, topic and headers");
        }
        if self.problems.len() > before {
            return None;
        }
        let (Some(to), 1) = (places.pop(), places.len() + 1) else {
            self.problem(
                start,
                "a binding leads to one queue or exchange: queue = \"orders\"",
            );
            return None;
        };
        let pattern = patterns.pop().unwrap_or(Pattern::Everything);
        let binding = DeclaredBinding {
            to,
            pattern,
            options,
        };
        Some((self.line(start), binding))
    }
}

/// `NAME=VALUE`, or `NAME` for any value.
fn pair(text: &str) -> HeaderPair {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.into())),
        None => (text, None),
    };
    HeaderPair {
        name: name.into(),
        value,
    }
}

fn kind_of(text: &str) -> Result<ExchangeKind, &'static str> {
    let kinds = [
        ExchangeKind::Direct,
        ExchangeKind::Topic,
        ExchangeKind::Fanout,
        ExchangeKind::Headers,
    ];
    let kind = kinds.into_iter().find(|kind| kind.name() == text);
    kind.ok_or("it is direct, topic, fanout or headers")
}

fn unroutable_of(text: &str) -> Result<Unroutable, &'static str> {
    match text {
        "reject" => Ok(Unroutable::Reject),
        "drop" => Ok(Unroutable::Drop),
        _ => Err("it is reject or drop; for an exchange write alternate = \"NAME\""),
    }
}

//! Schedules in Lockgate's own form: `[[schedule]]`.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lockgate_core::{
    CatchUp, ExchangeName, Header, Key, Level, Message, Overlap, PRIORITY_MAX, QueueName,
    RoutingKey, ScheduleName, Timing, WallTime,
};
use lockgate_machine::{ScheduleSpec, ScheduleTo};
use lockgate_schedule::Calendar;
use toml::{Spanned, de::DeValue};

use super::{
    ScheduleEntry,
    exchanges::{Member, members, parsed},
    own::Reading,
};
use crate::units::{duration, millis};

const KEYS: &str = "there are name, cron, zone, every, from, at, queue, exchange, routing_key, body, body_base64, key, group, \
                    headers, content_type, priority, time_to_live, level, trace_context, catch_up, overlap, late_max";

/// What a schedule of a file says so far.
#[derive(Default)]
struct Parts {
    name: Option<ScheduleName>,
    cron: Option<Arc<str>>,
    zone: Option<Arc<str>>,
    every: Option<u64>,
    from: Option<WallTime>,
    at: Option<WallTime>,
    to: Vec<ScheduleTo>,
    routing_key: Option<RoutingKey>,
    bodies: Vec<Bytes>,
    message: Message,
    catch_up: CatchUp,
    overlap: Overlap,
    late_max: Option<u64>,
}

fn instant(text: &str) -> Result<WallTime, String> {
    let time = crate::args::instant(text)?;
    let millis = u64::try_from(time.as_millisecond());
    millis
        .map(WallTime)
        .map_err(|_| format!("{text} lies before 1970"))
}

fn span(text: &str) -> Result<u64, String> {
    duration(text).map(millis)
}

impl Member<'_> {
    /// An instant, as a text or as TOML writes them.
    fn instant(&self) -> Result<WallTime, String> {
        let text = match self.value {
            DeValue::String(text) => text.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            _ => return Err(format!("{}: expected an instant", self.name)),
        };
        instant(&text).map_err(|error| format!("{}: {error}", self.name))
    }

    fn headers(&self) -> Result<Vec<Header>, String> {
        let wrong = |what: &str| format!("{}: {what}", self.name);
        let DeValue::Table(table) = self.value else {
            return Err(wrong("expected a table: headers = { team = \"ads\" }"));
        };
        let headers = members(table).map(|header| {
            let (kind, value) = match header.value {
                DeValue::String(text) => ("String".to_owned(), text.as_bytes().to_vec()),
                DeValue::Table(parts) => {
                    let (mut kind, mut value) = ("String".to_owned(), None);
                    for part in members(parts) {
                        match part.name {
                            "type" => part.text()?.clone_into(&mut kind),
                            "value" => value = Some(part.text()?.as_bytes().to_vec()),
                            "value_base64" => {
                                let bytes = STANDARD.decode(part.text()?);
                                value = Some(bytes.map_err(|error| wrong(&error.to_string()))?);
                            }
                            other => {
                                let what = "there are type, value, value_base64";
                                return Err(wrong(&format!("unknown key {other:?}; {what}")));
                            }
                        }
                    }
                    let none = || wrong(&format!("{} has no value", header.name));
                    (kind, value.ok_or_else(none)?)
                }
                _ => return Err(wrong(&format!("{}: expected a text", header.name))),
            };
            Ok(Header {
                name: header.name.into(),
                kind: kind.into(),
                value: value.into(),
            })
        });
        let mut headers: Vec<Header> = headers.collect::<Result<_, _>>()?;
        // As the server keeps them.
        headers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(headers)
    }
}

impl Parts {
    fn take(&mut self, member: &Member<'_>) -> Result<(), String> {
        let text =
            |it: &mut Option<Arc<str>>| member.text().map(|text| *it = Some(text.trim().into()));
        match member.name {
            "name" => parsed(member, ScheduleName::new).map(|it| self.name = Some(it)),
            "cron" => text(&mut self.cron),
            "zone" => text(&mut self.zone),
            "every" => parsed(member, span).map(|it| self.every = Some(it)),
            "from" => member.instant().map(|it| self.from = Some(it)),
            "at" => member.instant().map(|it| self.at = Some(it)),
            "queue" => parsed(member, QueueName::new).map(|it| self.to.push(ScheduleTo::Queue(it))),
            "exchange" => parsed(member, ExchangeName::new).map(|exchange| {
                let routing_key = RoutingKey::new("").expect("it may be empty");
                self.to.push(ScheduleTo::Exchange {
                    exchange,
                    routing_key,
                });
            }),
            "routing_key" => parsed(member, RoutingKey::new).map(|it| self.routing_key = Some(it)),
            "body" => member
                .text()
                .map(|text| self.bodies.push(Bytes::copy_from_slice(text.as_bytes()))),
            "body_base64" => parsed(member, |text| STANDARD.decode(text))
                .map(|bytes| self.bodies.push(bytes.into())),
            "key" => parsed(member, Key::new).map(|it| self.message.key = Some(it)),
            "group" => parsed(member, Key::new).map(|it| self.message.group = Some(it)),
            "headers" => member.headers().map(|it| self.message.headers = it),
            "content_type" => member
                .text()
                .map(|text| self.message.content_type = Some(text.into())),
            "time_to_live" => parsed(member, span).map(|it| self.message.time_to_live = Some(it)),
            "level" => parsed(member, str::parse::<Level>).map(|it| self.message.level = Some(it)),
            "trace_context" => member
                .text()
                .map(|text| self.message.trace_context = Some(text.into())),
            "priority" => match member.value {
                DeValue::Integer(number) => {
                    let number = number.as_str().parse().ok();
                    match number.filter(|number| *number <= PRIORITY_MAX) {
                        Some(number) => {
                            self.message.priority = number;
                            Ok(())
                        }
                        None => Err("priority: it is 0 to 9".to_owned()),
                    }
                }
                _ => Err("priority: expected a number".to_owned()),
            },
            "catch_up" => parsed(member, |text| {
                CatchUp::named(text).ok_or("it is skip, once or all")
            })
            .map(|it| self.catch_up = it),
            "overlap" => parsed(member, |text| {
                Overlap::named(text).ok_or("it is allow, skip, queue or replace")
            })
            .map(|it| self.overlap = it),
            "late_max" => parsed(member, span).map(|it| self.late_max = Some(it)),
            other => Err(format!("unknown key {other:?}; {KEYS}")),
        }
    }

    /// The schedule, or everything that is wrong with it as a whole.
    fn spec(self) -> Result<(ScheduleName, ScheduleSpec), Vec<String>> {
        let mut problems = Vec::new();
        let mut wrong = |what: &str| problems.push(what.to_owned());
        let ways = [self.cron.is_some(), self.every.is_some(), self.at.is_some()];
        if ways.iter().filter(|way| **way).count() != 1 {
            wrong("a schedule has one of cron, every and at: cron = \"0 9 * * *\"");
        }
        if self.zone.is_some() && self.cron.is_none() {
            wrong("zone: it is the time zone of cron, which is not there");
        }
        if self.from.is_some() && self.every.is_none() {
            wrong("from: it is the first time of every, which is not there");
        }
        if self.to.len() != 1 {
            wrong("a schedule has one of queue and exchange: queue = \"jobs\"");
        }
        if self.bodies.len() > 1 {
            wrong("body and body_base64 are both there: leave one out");
        }
        if self.message.key.is_some() && self.message.group.is_some() {
            wrong("key and group are both there: leave one out");
        }
        if self.name.is_none() {
            wrong("a schedule needs a name: name = \"nightly\"");
        }
        let mut to = self.to.into_iter().next();
        match (&mut to, self.routing_key) {
            (_, None) => {}
            (Some(ScheduleTo::Exchange { routing_key, .. }), Some(key)) => *routing_key = key,
            _ => wrong("routing_key: it is for an exchange, which is not there"),
        }
        let timing = match (self.cron, self.every, self.at) {
            (Some(expression), ..) => Timing::Cron {
                expression,
                zone: self.zone.unwrap_or_else(|| "UTC".into()),
            },
            (None, Some(period), _) => Timing::Every {
                period,
                from: self.from,
            },
            (None, None, at) => Timing::At(at.unwrap_or_default()),
        };
        if problems.is_empty()
            && let Err(error) = Calendar::new(&timing, WallTime(0))
        {
            problems.push(error.to_string());
        }
        match (self.name, to) {
            (Some(name), Some(to)) if problems.is_empty() => {
                let message = Message {
                    body: self.bodies.into_iter().next().unwrap_or_default(),
                    ..self.message
                };
                let spec = ScheduleSpec {
                    timing,
                    to,
                    message: Arc::new(message),
                    catch_up: self.catch_up,
                    overlap: self.overlap,
                    late_max: self.late_max.unwrap_or(ScheduleSpec::LATE_MAX_DEFAULT),
                };
                match spec.check() {
                    Ok(()) => Ok((name, spec)),
                    Err(rejection) => Err(vec![rejection.to_string()]),
                }
            }
            _ => Err(problems),
        }
    }
}

impl Reading {
    pub(super) fn schedule(&mut self, item: &Spanned<DeValue<'_>>) -> Option<ScheduleEntry> {
        let start = item.span().start;
        let DeValue::Table(table) = item.get_ref() else {
            self.problem(start, "schedule: expected [[schedule]], once for each");
            return None;
        };
        let mut line = self.line(start);
        let before = self.problems.len();
        let mut parts = Parts::default();
        for member in members(table) {
            if member.name == "name" {
                line = self.line(member.at);
            }
            if let Err(what) = parts.take(&member) {
                self.problem(member.at, what);
            }
        }
        if self.problems.len() > before {
            return None;
        }
        match parts.spec() {
            Ok((name, spec)) => Some(ScheduleEntry { name, spec, line }),
            Err(problems) => {
                for what in problems {
                    self.problem(start, what);
                }
                None
            }
        }
    }
}

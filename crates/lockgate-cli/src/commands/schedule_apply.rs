//! The schedules of `lockgate queue apply`: declared ones against a running server.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::Method;
use lockgate_core::{Message, Timing, WallTime};
use lockgate_machine::{ScheduleSpec, ScheduleTo};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    NOTHING, peek,
    queue_apply::{Change, Outcome, What},
    schedule::target,
};
use crate::{
    client::{Client, Encoding},
    exit::Failure,
    output::{count, note},
    queue_file::ScheduleEntry,
};

/// The parts of a schedule that its maker says.
const PARTS: [&str; 11] = [
    "cron",
    "zone",
    "every_ms",
    "from",
    "at",
    "to",
    "routing_key",
    "message",
    "catch_up",
    "overlap",
    "late_max_ms",
];

/// What is, or was, to be done to a schedule.
#[derive(Debug, Serialize)]
pub(super) struct Plan {
    pub(super) schedule: String,
    pub(super) outcome: Outcome,
    pub(super) changes: Vec<Change>,
    #[serde(skip)]
    body: Value,
}

fn instant(at: WallTime) -> Value {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    json!(format!("{at:.3}"))
}

fn encoded(bytes: &[u8]) -> (Value, Value) {
    let (text, encoding) = Encoding::of(bytes);
    (json!(text), json!(encoding))
}

fn message(message: &Message) -> Value {
    let (body, body_encoding) = encoded(&message.body);
    let mut out =
        json!({"body": body, "body_encoding": body_encoding, "priority": message.priority});
    let parts = [
        ("key", message.key.as_ref().map(ToString::to_string)),
        ("group", message.group.as_ref().map(ToString::to_string)),
        (
            "trace_context",
            message.trace_context.as_deref().map(str::to_owned),
        ),
        ("level", message.level.map(|level| level.to_string())),
        (
            "content_type",
            message.content_type.as_deref().map(str::to_owned),
        ),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            out[name] = json!(value);
        }
    }
    let headers: Map<String, Value> = message
        .headers
        .iter()
        .map(|header| {
            let (value, encoding) = encoded(&header.value);
            let value = json!({"type": &*header.kind, "value": value, "encoding": encoding});
            (header.name.to_string(), value)
        })
        .collect();
    if !headers.is_empty() {
        out["headers"] = Value::Object(headers);
    }
    if let Some(span) = message.time_to_live {
        out["time_to_live_ms"] = json!(span);
    }
    out
}

/// A message in which bytes are encoded as here: other programs may write a text as base64.
fn as_here(message: &Value) -> Value {
    let mut message = message.clone();
    let again = |value: &mut Value, encoding: &mut Value| {
        let text = value.as_str().unwrap_or_default();
        let bytes = match encoding == "base64" {
            true => STANDARD.decode(text).ok(),
            false => Some(text.as_bytes().to_vec()),
        };
        if let Some(bytes) = bytes {
            (*value, *encoding) = encoded(&bytes);
        }
    };
    let (mut body, mut encoding) = (message["body"].take(), message["body_encoding"].take());
    again(&mut body, &mut encoding);
    (message["body"], message["body_encoding"]) = (body, encoding);
    for header in message["headers"].as_object_mut().into_iter().flatten() {
        let (mut value, mut encoding) = (header.1["value"].take(), header.1["encoding"].take());
        again(&mut value, &mut encoding);
        (header.1["value"], header.1["encoding"]) = (value, encoding);
    }
    message
}

/// The request that makes it.
fn request(spec: &ScheduleSpec) -> Value {
    let mut out = json!({
        "message": message(&spec.message),
        "catch_up": spec.catch_up.name(),
        "overlap": spec.overlap.name(),
        "late_max_ms": spec.late_max,
    });
    match &spec.timing {
        Timing::At(at) => out["at"] = instant(*at),
        Timing::Every { period, from } => {
            out["every_ms"] = json!(period);
            if let Some(from) = from {
                out["from"] = instant(*from);
            }
        }
        Timing::Cron { expression, zone } => {
            out["cron"] = json!(&**expression);
            out["zone"] = json!(&**zone);
        }
    }
    match &spec.to {
        ScheduleTo::Queue(queue) => out["to"] = json!({"queue": queue.as_str()}),
        ScheduleTo::Exchange {
            exchange,
            routing_key,
        } => {
            out["to"] = json!({"exchange": exchange.as_str()});
            out["routing_key"] = json!(routing_key.as_str());
        }
    }
    out
}

/// What differs between a declaration and what there is.
pub(super) async fn plan(client: &Client, declared: &ScheduleEntry) -> Result<Plan, Failure> {
    let name = declared.name.as_str();
    let is: Option<Value> = match client.call(Method::GET, &target(name, ""), NOTHING).await {
        Ok(schedule) => Some(schedule),
        Err(error) if error.has_code("schedule_not_found") => None,
        Err(error) => return Err(error.into()),
    };
    let body = request(&declared.spec);
    let mut changes = Vec::new();
    for part in PARTS {
        let before = is.as_ref().map(|is| match part {
            "message" => as_here(&is[part]),
            _ => is[part].clone(),
        });
        let after = match part {
            "message" => &as_here(&body[part]),
            _ => &body[part],
        };
        if before.as_ref().unwrap_or(&Value::Null) != after {
            changes.push(Change {
                what: What::Part(part),
                before: before.as_ref().map(peek::text),
                after: peek::text(after),
            });
        }
    }
    Ok(Plan {
        schedule: name.to_owned(),
        outcome: match is {
            None => Outcome::Created,
            Some(_) if changes.is_empty() => Outcome::Unchanged,
            Some(_) => Outcome::Changed,
        },
        changes,
        body,
    })
}

pub(super) async fn apply(client: &Client, plans: &[Plan]) -> Result<(), Failure> {
    for plan in plans
        .iter()
        .filter(|plan| plan.outcome != Outcome::Unchanged)
    {
        let target = target(&plan.schedule, "");
        let put = client.repeat::<Value>(Method::PUT, &target, Some(&plan.body));
        put.await
            .map_err(|error| Failure::from(error).context(format!("schedule {}", plan.schedule)))?;
    }
    Ok(())
}

/// What a file says of each schedule, but for those that are over, which would fire again on another server.
pub(super) async fn declarations(
    client: &Client,
) -> Result<Vec<Vec<(&'static str, Value)>>, Failure> {
    let schedules = peek::pages(client, "/schedules?limit=1000", "schedules", u64::MAX).await?;
    let (over, rest): (Vec<_>, Vec<_>) = schedules
        .iter()
        .partition(|schedule| schedule["at"].is_string() && schedule["next_at"].is_null());
    if !over.is_empty() {
        note(&format!(
            "left out {} that fired already",
            count(over.len() as u64, "schedule")
        ));
    }
    for schedule in rest.iter().filter(|schedule| schedule["paused"] == true) {
        let name = peek::text(&schedule["name"]);
        note(&format!(
            "schedule {name} is paused, which a file does not say: it fires where the file is applied"
        ));
    }
    Ok(rest.into_iter().map(declaration).collect())
}

fn declaration(schedule: &Value) -> Vec<(&'static str, Value)> {
    let message = &schedule["message"];
    let time = |millis: &Value| match millis.as_u64() {
        Some(millis) => {
            json!(crate::units::show_duration(
                std::time::Duration::from_millis(millis)
            ))
        }
        None => Value::Null,
    };
    let body = match message["body_encoding"] == "base64" {
        true => "body_base64",
        false => "body",
    };
    let headers: Map<String, Value> = message["headers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, header)| {
            let value = match (header["encoding"] == "base64", header["type"] == "String") {
                (false, true) => header["value"].clone(),
                (false, false) => json!({"type": header["type"], "value": header["value"]}),
                (true, _) => json!({"type": header["type"], "value_base64": header["value"]}),
            };
            (name.clone(), value)
        })
        .collect();
    let unless = |value: &Value, default: &str| match value == default {
        true => Value::Null,
        false => value.clone(),
    };
    let fields = [
        ("name", schedule["name"].clone()),
        ("cron", schedule["cron"].clone()),
        ("zone", schedule["zone"].clone()),
        ("every", time(&schedule["every_ms"])),
        ("from", schedule["from"].clone()),
        ("at", schedule["at"].clone()),
        ("queue", schedule["to"]["queue"].clone()),
        ("exchange", schedule["to"]["exchange"].clone()),
        ("routing_key", unless(&schedule["routing_key"], "")),
        (body, message["body"].clone()),
        ("key", message["key"].clone()),
        ("group", message["group"].clone()),
        (
            "headers",
            match headers.is_empty() {
                true => Value::Null,
                false => Value::Object(headers),
            },
        ),
        ("content_type", message["content_type"].clone()),
        ("time_to_live", time(&message["time_to_live_ms"])),
        ("level", message["level"].clone()),
        ("trace_context", message["trace_context"].clone()),
        (
            "priority",
            match message["priority"].as_u64() {
                None | Some(0) => Value::Null,
                Some(priority) => json!(priority),
            },
        ),
        ("catch_up", unless(&schedule["catch_up"], "once")),
        ("overlap", unless(&schedule["overlap"], "allow")),
        ("late_max", unless(&time(&schedule["late_max_ms"]), "1m")),
    ];
    let there = fields.into_iter().filter(|(_, value)| !value.is_null());
    there.collect()
}

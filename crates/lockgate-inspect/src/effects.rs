//! Effects as JSON, with the names in `docs/internals/format.md`.

use bytes::Bytes;
use lockgate_core::{MachineTime, Message, Now, Produced, QueueId, WallTime};
use lockgate_machine::{
    DeadLetterReason, Effect, HoldTarget, Payload, QueueSettings, SETTINGS, SettingValue,
    StoredMessage,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Whether texts from users are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    Shown,
    Hidden,
}

/// An effect's name and contents.
#[derive(Debug, Serialize)]
pub struct EffectJson {
    effect: &'static str,
    #[serde(flatten)]
    fields: Value,
}

/// One effect.
pub(crate) fn effect_json(effect: &Effect, bodies: Bodies) -> EffectJson {
    EffectJson {
        effect: effect.name(),
        fields: fields(effect, bodies),
    }
}

fn fields(effect: &Effect, bodies: Bodies) -> Value {
    match effect {
        Effect::TermStarted {
            term,
            boot_id,
            clock_offset,
            // Hidden: with the secret one can forge receipts.
            secret: _,
            now,
        } => json!({
            "shard": term.shard.get(),
            "epoch": term.epoch.0,
            "incarnation": format!("{:016x}", term.incarnation.0),
            "boot_id": hex(&boot_id.0),
            "clock_offset": clock_offset,
            "now": now_json(*now),
        }),
        Effect::TermEnded { now } => json!({ "now": now_json(*now) }),
        Effect::Advanced { now, budget } => json!({ "now": now_json(*now), "budget": budget }),
        Effect::QueueCreated {
            queue,
            name,
            settings,
            annotations,
            tags,
            at,
        } => json!({
            "queue": queue.0,
            "name": name.as_str(),
            "at": time(*at),
            "settings": settings_json(settings),
            "annotations": annotations,
            "tags": tags,
        }),
        Effect::QueueChanged {
            queue,
            settings,
            annotations,
            tags,
            at,
        } => json!({
            "queue": queue.0,
            "at": time(*at),
            "settings": settings_json(settings),
            "annotations": annotations,
            "tags": tags,
        }),
        Effect::QueueDeleted { queue } => json!({ "queue": queue.0 }),
        Effect::Purged { queue } => json!({ "queue": queue.0 }),
        Effect::Paused { queue, paused } => json!({ "queue": queue.0, "paused": paused }),
        Effect::Accepted(stored) | Effect::Compacted(stored) => message_json(stored, bodies),
        Effect::SequencesReserved { queue, below } => json!({ "queue": queue.0, "below": below.0 }),
        Effect::Leased {
            queue,
            sequence,
            lease,
            now,
            deadline,
            holder,
        } => json!({
            "queue": queue.0,
            "sequence": sequence.0,
            "lease": lease.0,
            "now": now_json(*now),
            "deadline": deadline.0,
            "holder": holder.as_str(),
        }),
        Effect::LeaseBoundRaised { queue, until } => json!({ "queue": queue.0, "until": until.0 }),
        Effect::Acked { queue, sequence } => json!({ "queue": queue.0, "sequence": sequence.0 }),
        Effect::Nacked {
            queue,
            sequence,
            until,
            failed,
        } => {
            let mut fields = json!({
                "queue": queue.0,
                "sequence": sequence.0,
                "not_before": until.map(|MachineTime(ms)| ms),
            });
            if let Some(failed) = failed {
                fields["failed_at"] = time(failed.at);
                if bodies == Bodies::Shown {
                    fields["error"] = failed.error.as_deref().into();
                }
            }
            fields
        }
        Effect::Extended {
            queue,
            sequence,
            deadline,
        } => json!({
            "queue": queue.0,
            "sequence": sequence.0,
            "deadline": deadline.0,
        }),
        Effect::GivenBack {
            queue,
            sequence,
            started,
        } => {
            json!({ "queue": queue.0, "sequence": sequence.0, "started": started })
        }
        Effect::Moved {
            from,
            sequence,
            to,
            to_sequence,
            reason,
            at,
        } => json!({
            "queue": from.0,
            "sequence": sequence.0,
            "to": to.0,
            "sequence_there": to_sequence.0,
            "at": time(*at),
            "reason": dead_letter_json(reason, bodies),
        }),
        Effect::Dropped {
            queue,
            sequence,
            reason,
        } => json!({
            "queue": queue.0,
            "sequence": sequence.0,
            "reason": reason.name(),
        }),
        Effect::Rescheduled {
            queue,
            sequence,
            due,
        } => json!({
            "queue": queue.0,
            "sequence": sequence.0,
            "due": time(*due),
        }),
        Effect::KeyParked { queue, key } => json!({ "queue": queue.0, "key": key.as_str() }),
        Effect::KeyResumed { queue, key } | Effect::KeyStateDropped { queue, key } => {
            json!({ "queue": queue.0, "key": key.as_str() })
        }
        Effect::Held { queue, what, until } => {
            let mut held = json!({ "queue": queue.0, "until": until.map(|until| until.0) });
            match what {
                HoldTarget::Queue => {}
                HoldTarget::Key(Some(key)) => held["key"] = key.as_str().into(),
                HoldTarget::Key(None) => held["no_key"] = true.into(),
            }
            held
        }
        Effect::RecordPut {
            name,
            version,
            revision,
            at,
            value,
        } => {
            let mut put = Map::from_iter([
                ("record".to_owned(), name.as_str().into()),
                ("version".to_owned(), version.0.into()),
                ("revision".to_owned(), revision.0.into()),
                ("at".to_owned(), time(*at)),
                ("value_bytes".to_owned(), value.len().into()),
            ]);
            if bodies == Bodies::Shown {
                put.append(&mut text_or_hex("value", value));
            }
            put.into()
        }
        Effect::KeyStatePut {
            queue,
            key,
            version,
            at,
            value,
        } => {
            let mut put = Map::from_iter([
                ("queue".to_owned(), queue.0.into()),
                ("key".to_owned(), key.as_str().into()),
                ("version".to_owned(), version.0.into()),
                ("at".to_owned(), time(*at)),
                ("value_bytes".to_owned(), value.len().into()),
            ]);
            if bodies == Bodies::Shown {
                put.append(&mut text_or_hex("value", value));
            }
            put.into()
        }
        Effect::RecordLeased {
            name,
            holder,
            epoch,
            deadline,
            delete_at_end,
        } => json!({
            "record": name.as_str(),
            "holder": holder.as_str(),
            "epoch": epoch.0,
            "deadline": deadline.0,
            "delete_at_end": delete_at_end,
        }),
        Effect::RecordDeleted { name, revision } | Effect::RecordReleased { name, revision } => {
            json!({ "record": name.as_str(), "revision": revision.0 })
        }
        Effect::ProducerOpened {
            queue,
            producer,
            incarnation,
            at,
        } => json!({
            "queue": queue.0,
            "producer": producer.as_str(),
            "incarnation": incarnation.0,
            "at": at.0,
        }),
        Effect::ProducerForgotten { queue, producer } => {
            json!({ "queue": queue.0, "producer": producer.as_str() })
        }
        Effect::MarkRaised {
            queue,
            produced,
            at,
        } => json!({ "queue": queue.0, "producer": produced_json(produced), "at": at.0 }),
        Effect::IdsIndexed { queue, up_to } => json!({ "queue": queue.0, "up_to": up_to.0 }),
        Effect::EventIdsIndexed { ledger, up_to } => {
            json!({ "ledger": ledger.0, "up_to": up_to.0 })
        }
        // A fallback for effects of later versions of the machine.
        other => json!({ "text": format!("{other:?}") }),
    }
}

/// The queues that an effect concerns: none, one, or two for a move.
pub(crate) fn queues_of(effect: &Effect) -> impl Iterator<Item = QueueId> {
    let (queue, other) = match effect {
        Effect::QueueCreated { queue, .. }
        | Effect::QueueChanged { queue, .. }
        | Effect::QueueDeleted { queue }
        | Effect::Purged { queue }
        | Effect::Paused { queue, .. }
        | Effect::SequencesReserved { queue, .. }
        | Effect::Leased { queue, .. }
        | Effect::LeaseBoundRaised { queue, .. }
        | Effect::Acked { queue, .. }
        | Effect::Nacked { queue, .. }
        | Effect::Extended { queue, .. }
        | Effect::GivenBack { queue, .. }
        | Effect::Dropped { queue, .. }
        | Effect::Rescheduled { queue, .. }
        | Effect::KeyParked { queue, .. }
        | Effect::KeyResumed { queue, .. }
        | Effect::KeyStatePut { queue, .. }
        | Effect::KeyStateDropped { queue, .. }
        | Effect::ProducerOpened { queue, .. }
        | Effect::ProducerForgotten { queue, .. }
        | Effect::MarkRaised { queue, .. }
        | Effect::IdsIndexed { queue, .. }
        | Effect::Held { queue, .. } => (Some(*queue), None),
        Effect::Accepted(stored) | Effect::Compacted(stored) => (Some(stored.queue), None),
        Effect::Moved { from, to, .. } => (Some(*from), Some(*to)),
        _ => (None, None),
    };
    queue.into_iter().chain(other)
}

fn message_json(stored: &StoredMessage, bodies: Bodies) -> Value {
    let message: &Message = &stored.message;
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            map.insert(name.to_owned(), value);
        }
    };
    put("queue", stored.queue.0.into());
    put("sequence", stored.sequence.0.into());
    put("id", stored.id.to_string().into());
    put("accepted", time(stored.accepted));
    put("key", json!(message.key.as_ref().map(AsRef::<str>::as_ref)));
    put("key_sequence", json!(stored.key_sequence));
    put(
        "unique_id",
        json!(message.unique_id.as_ref().map(AsRef::<str>::as_ref)),
    );
    put(
        "unique_until",
        json!(stored.unique_until.map(|until| until.0)),
    );
    put(
        "producer",
        message
            .producer
            .as_deref()
            .map_or(Value::Null, produced_json),
    );
    put("marked_at", json!(stored.marked_at.map(|at| at.0)));
    put("due", message.due.map_or(Value::Null, time));
    put("time_to_live", json!(message.time_to_live));
    put("content_type", json!(message.content_type.as_deref()));
    put("trace_context", json!(message.trace_context.as_deref()));
    put("level", json!(message.level.map(|level| level.to_string())));
    put(
        "priority",
        json!(Some(message.priority).filter(|&priority| priority != 0)),
    );
    let headers: Vec<Value> = message
        .headers
        .iter()
        .map(|header| match bodies {
            Bodies::Shown => {
                let mut shown = text_or_hex("value", &header.value);
                shown.insert("name".to_owned(), (*header.name).into());
                shown.insert("kind".to_owned(), (*header.kind).into());
                shown.into()
            }
            Bodies::Hidden => json!({
                "name": &*header.name,
                "kind": &*header.kind,
                "value_bytes": header.value.len(),
            }),
        })
        .collect();
    if !headers.is_empty() {
        put("headers", headers.into());
    }
    match stored.payload {
        Payload::Own => {}
        Payload::Shared => put("payload", "shared".into()),
        Payload::Of { part, size } => {
            put("payload_of", part.into());
            put("payload_bytes", size.into());
            return map.into();
        }
    }
    put("body_bytes", message.body.len().into());
    if bodies == Bodies::Shown {
        map.append(&mut text_or_hex("body", &message.body));
    }
    map.into()
}

fn produced_json(produced: &Produced) -> Value {
    let mark = &produced.mark;
    json!({
        "name": mark.producer().as_str(),
        "incarnation": produced.incarnation.0,
        "opening": format!("{:016x}", mark.opening()),
        "lane": mark.lane(),
        "number": mark.number(),
    })
}

/// `NAME` as text, or `NAME_hex` for bytes that are no UTF-8.
fn text_or_hex(name: &str, bytes: &Bytes) -> Map<String, Value> {
    let (name, value) = match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.to_owned()),
        Err(_) => (format!("{name}_hex"), hex(bytes)),
    };
    Map::from_iter([(name, value.into())])
}

fn settings_json(settings: &QueueSettings) -> Value {
    let mut json = json!({"keyed": settings.keyed});
    for setting in SETTINGS {
        json[setting.json_name()] = setting_json(&setting.get(settings));
    }
    json
}

fn dead_letter_json(reason: &DeadLetterReason, bodies: Bodies) -> Value {
    match reason {
        DeadLetterReason::Attempts { attempts } => {
            json!({ "reason": "too many attempts", "attempts": attempts })
        }
        DeadLetterReason::Rejected { reason } => match bodies {
            Bodies::Shown => json!({ "reason": "rejected", "words": reason.as_deref() }),
            Bodies::Hidden => json!({ "reason": "rejected" }),
        },
        DeadLetterReason::Redriven { source: None } => json!({ "reason": "moved by an operator" }),
        DeadLetterReason::Redriven { source } => {
            json!({ "reason": "moved by an operator", "source": source.map(|queue| queue.0) })
        }
        other => json!({ "reason": format!("{other:?}") }),
    }
}

fn now_json(now: Now) -> Value {
    json!({ "wall": time(now.wall), "machine": now.machine.0 })
}

/// RFC 3339 if it can express the time, else milliseconds.
fn time(at: WallTime) -> Value {
    i64::try_from(at.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| at.0.into(), |at| at.to_string().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of a queue's setting as JSON.
pub fn setting_json(value: &SettingValue) -> Value {
    match value {
        SettingValue::None => Value::Null,
        SettingValue::Flag(flag) => (*flag).into(),
        SettingValue::Word(word) => (*word).into(),
        SettingValue::Number(number) => (*number).into(),
        SettingValue::Queue(queue) => queue.as_str().into(),
        SettingValue::Limit(limit) => limit.as_str().into(),
    }
}

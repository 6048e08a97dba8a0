//! Shapes of queues, their settings and counts.

use std::collections::BTreeMap;

use lockgate_core::Millis;
use lockgate_machine::{
    COUNTERS, Counter, CounterKind, QueueCounts, QueueDescription, QueueTotals,
};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};

use super::{Instant, LimitWord, Settings, SettingsChange, Within};
use crate::{few::FewByName, queue::tags::TAGS_MAX};

/// The most tags that one request changes: it can remove all tags of a queue and add as many.
const TAG_CHANGES_MAX: usize = 2 * TAGS_MAX;

/// A page of queues.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queues {
    /// In order of their names.
    pub(crate) queues: Vec<Queue>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Selects the queues to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQueues {
    /// Only queues whose names start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// The most entries of the page, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queue {
    /// Its name.
    pub(crate) name: String,
    /// Whether messages of one key are kept in order, one in flight at a time. The name of such a
    /// queue ends in `.fifo`.
    pub(crate) keyed: bool,
    /// Whether the queue is paused, so that it gives no leases.
    pub(crate) paused: bool,
    /// When the queue was created.
    pub(crate) created_at: Instant,
    /// When its settings or tags last changed.
    pub(crate) changed_at: Instant,
    /// Present if a limit of the queue as a whole holds all its messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limited: Option<Limited>,
    /// Until when somebody holds the queue, so that it gives no leases; absent: nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_until: Option<Instant>,
    /// What the queue holds now. Exact.
    pub(crate) counts: Counts,
    /// What was added and removed since the queue was created. Exact: `accepted + moved_in =
    /// acknowledged + moved_out + dropped + what it holds`.
    pub(crate) totals: Totals,
    /// Present and true if `settings.dead_letter` names a queue that was deleted, or is keyed otherwise by now:
    /// messages that fail for good stay, and those that are rejected are dropped.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) dead_letter_missing: bool,
    /// All its settings.
    pub(crate) settings: Settings,
    /// Its tags.
    pub(crate) tags: BTreeMap<String, String>,
}

pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a sender to a queue must know.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sending {
    /// Whether every message needs a key.
    pub(crate) keyed: bool,
    /// Whether a message without a unique id takes the SHA-256 of its body as one.
    pub(crate) dedup_content: bool,
    /// How long a unique id is remembered: a message that is repeated later is sent again.
    pub(crate) dedup_window_ms: Millis,
    /// The largest message, body and headers.
    pub(crate) message_bytes_max: u32,
}

/// A limit of a queue holds its messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Limited {
    /// Which one. Of several, the one that lets go last.
    pub(crate) limit: LimitWord,
    /// How much longer it holds; absent: until a lease ends, or with `owing_keys` until another key owes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
}

/// What a queue holds: `ready + in_flight + delayed` is the sum of its messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Counts {
    /// Waiting for a lease, including messages behind one of the same key that is in flight or
    /// parked.
    pub(crate) ready: u64,
    /// Leased, or returned and waiting for the next attempt.
    pub(crate) in_flight: u64,
    /// Not due yet.
    pub(crate) delayed: u64,
    /// Bytes of bodies and headers.
    pub(crate) bytes: u64,
    /// Keys (of an unkeyed queue: groups) with at least one message.
    pub(crate) keys: u64,
    /// Parked keys.
    pub(crate) parked_keys: u64,
    /// Keys (of an unkeyed queue: groups) whose next message only a limit of theirs holds.
    pub(crate) limited_keys: u64,
    /// Keys (of an unkeyed queue: groups) that owe something under a limit of theirs or are held, with messages or
    /// without.
    pub(crate) owing_keys: u64,
    /// Unique ids that are remembered in memory; the others, for ever, are in the index on disk.
    pub(crate) unique_ids: u64,
    /// Keys that have a state.
    pub(crate) states: u64,
    /// What these states count to `quota_bytes`: key, value, and 256 bytes for each.
    pub(crate) state_bytes: u64,
    /// Producers that the queue knows.
    pub(crate) producers: u64,
    /// Openings of their spools of which it knows the records it has accepted.
    pub(crate) producer_openings: u64,
    /// When the oldest message was accepted; absent for an empty queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_at: Option<Instant>,
}

/// What was added to and removed from a queue, from the table of counters.
#[derive(Debug)]
pub(crate) struct Totals(QueueTotals);

fn counters(kind: CounterKind) -> impl Iterator<Item = &'static Counter> {
    COUNTERS.iter().filter(move |counter| counter.kind == kind)
}

impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(totals) = self;
        let mut map = serializer.serialize_map(None)?;
        for counter in counters(CounterKind::Total) {
            map.serialize_entry(counter.name, &counter.get(totals))?;
        }
        let dropped: BTreeMap<_, _> = counters(CounterKind::Dropped)
            .map(|counter| (counter.name, counter.get(totals)))
            .collect();
        map.serialize_entry("dropped", &dropped)?;
        map.end()
    }
}

/// A queue to create.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateQueue {
    /// Its name: 1 to 80 letters, digits, `-` and `_`; the name of a keyed queue ends in `.fifo`.
    pub(crate) name: String,
    /// Settings that differ from the default.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Its tags, up to 50.
    #[serde(default)]
    pub(crate) tags: FewByName<String, TAGS_MAX>,
}

/// Changes of a queue.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeQueue {
    /// Settings to change.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Tags to change; `null` removes one.
    #[serde(default)]
    pub(crate) tags: FewByName<Option<String>, TAG_CHANGES_MAX>,
}

impl From<QueueDescription> for Queue {
    fn from(queue: QueueDescription) -> Self {
        Self {
            name: queue.name.to_string(),
            keyed: queue.settings.keyed,
            paused: queue.paused,
            limited: queue.limited.map(|limited| Limited {
                limit: limited.limit.into(),
                remaining_ms: limited.remaining,
            }),
            held_until: None,
            created_at: Instant(queue.created),
            changed_at: Instant(queue.changed),
            counts: queue.counts.into(),
            totals: Totals(queue.totals),
            // Only the service knows the other queues.
            dead_letter_missing: false,
            settings: Settings::of(queue.settings),
            tags: queue.tags,
        }
    }
}

impl From<QueueCounts> for Counts {
    fn from(counts: QueueCounts) -> Self {
        Self {
            ready: counts.ready,
            in_flight: counts.in_flight,
            delayed: counts.delayed,
            bytes: counts.bytes,
            keys: counts.keys,
            parked_keys: counts.parked_keys,
            limited_keys: counts.limited_keys,
            owing_keys: counts.owing_keys,
            unique_ids: counts.unique_ids,
            states: counts.states,
            state_bytes: counts.state_bytes,
            producers: counts.producers,
            producer_openings: counts.producer_openings,
            oldest_at: counts.oldest.map(Instant),
        }
    }
}

/// The result of a purge.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Purged {
    /// How many messages the queue held when it was purged.
    pub(crate) messages: u64,
}

#[cfg(test)]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator};
    use serde_json::{Map, Value, json};

    use super::*;

    fn object(description: &str, properties: Map<String, Value>) -> Value {
        let required: Vec<_> = properties.keys().cloned().collect();
        json!({
            "description": description,
            "type": "object",
            "properties": properties,
            "required": required,
        })
    }

    /// A property for each counter.
    fn properties(kind: CounterKind) -> Map<String, Value> {
        let property = |counter: &Counter| {
            let property = json!({
                "description": counter.about(),
                "type": "integer",
                "format": "uint64",
                "minimum": 0,
            });
            (counter.name.to_owned(), property)
        };
        counters(kind).map(property).collect()
    }

    impl JsonSchema for Totals {
        fn schema_name() -> Cow<'static, str> {
            "Totals".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let mut totals = properties(CounterKind::Total);
            let dropped = object(
                "Messages dropped, by reason.",
                properties(CounterKind::Dropped),
            );
            totals.insert("dropped".to_owned(), dropped);
            Schema::try_from(object("What came and went.", totals)).unwrap()
        }
    }
}

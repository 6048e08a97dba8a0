//! Queues, their settings and counts.

use std::collections::BTreeMap;

use lockgate_machine::{
    COUNTERS, Counter, CounterKind, QueueCounts, QueueDescription, QueueTotals,
};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};

use super::{Instant, Settings, SettingsChange};
use crate::{few::FewByName, queue::tags::TAGS_MAX};

/// Tags that one request changes: all of a queue's are removed, and as many are added.
const TAG_CHANGES_MAX: usize = 2 * TAGS_MAX;

/// A page of queues.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queues {
    /// In order of their names.
    pub(crate) queues: Vec<Queue>,
    /// What to give as `page` for the next page; not there on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Which queues to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQueues {
    /// Only queues whose names start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queue {
    /// Its name.
    pub(crate) name: String,
    /// Whether messages of one key are kept in order, with one holder at a time. Such a queue's name
    /// ends in `.fifo`.
    pub(crate) keyed: bool,
    /// Whether it gives no leases, because somebody paused it.
    pub(crate) paused: bool,
    /// When it was made.
    pub(crate) created_at: Instant,
    /// When its settings or tags last changed.
    pub(crate) changed_at: Instant,
    /// What it holds now. Exact.
    pub(crate) counts: Counts,
    /// What came and went since it was made. Exact: `accepted + moved_in = acknowledged + moved_out
    /// + dropped + what it holds`.
    pub(crate) totals: Totals,
    /// Its settings, all of them.
    pub(crate) settings: Settings,
    /// Its tags.
    pub(crate) tags: BTreeMap<String, String>,
}

/// What a queue holds: `ready + in_flight + delayed` is all of it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Counts {
    /// Waiting for a lease, also behind a message of the same key that is in flight or parked.
    pub(crate) ready: u64,
    /// Leased, or given back and waiting for its next attempt.
    pub(crate) in_flight: u64,
    /// Not yet due.
    pub(crate) delayed: u64,
    /// Bytes of bodies and headers.
    pub(crate) bytes: u64,
    /// Keys (of an unkeyed queue: groups) with at least one message.
    pub(crate) keys: u64,
    /// Parked keys.
    pub(crate) parked_keys: u64,
    /// Unique ids that are remembered.
    pub(crate) unique_ids: u64,
    /// When the oldest message was accepted; not there for an empty queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_at: Option<Instant>,
}

/// What came and went, by the table of counters.
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

/// A queue to be made.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateQueue {
    /// Its name: 1 to 80 letters, digits, `-` and `_`, and for a keyed queue `.fifo` at its end.
    pub(crate) name: String,
    /// Settings that are not to be the default.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Its tags, up to 50.
    #[serde(default)]
    pub(crate) tags: FewByName<String, TAGS_MAX>,
}

/// What is to change about a queue.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeQueue {
    /// Settings that change.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Tags that change; `null` removes one.
    #[serde(default)]
    pub(crate) tags: FewByName<Option<String>, TAG_CHANGES_MAX>,
}

impl From<QueueDescription> for Queue {
    fn from(queue: QueueDescription) -> Self {
        Self {
            name: queue.name.to_string(),
            keyed: queue.settings.keyed,
            paused: queue.paused,
            created_at: Instant(queue.created),
            changed_at: Instant(queue.changed),
            counts: queue.counts.into(),
            totals: Totals(queue.totals),
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
            unique_ids: counts.unique_ids,
            oldest_at: counts.oldest.map(Instant),
        }
    }
}

/// How many messages a purge removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Purged {
    /// What the queue held when it was emptied.
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

//! Shapes of the producers of a queue.

use lockgate_core::ProducerMark as Mark;
use serde::{Deserialize, Serialize};

use super::{Instant, Within};

/// Which record of a producer a message is. The queue accepts it once, whenever it is sent again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ProducerMark {
    /// The producer, for which the queue was opened. 1 to 128 bytes without control characters.
    pub(crate) name: String,
    /// What the opening of the queue gave it last. Sends of earlier ones are refused (`producer_fenced`).
    pub(crate) incarnation: u64,
    /// The random number that the producer drew when it opened its spool to accept the record: 16 hexadecimal digits. A
    /// record keeps it when it is sent later.
    pub(crate) opening: String,
    /// The lane of the record, 0 to 15.
    pub(crate) lane: Within<0, { Mark::LANES as u64 - 1 }>,
    /// The number of the record in its lane, from 1. A lane sends in order, and not past a record whose fate is unknown:
    /// the queue takes a number at or below the highest of the lane for a record that it has. Numbers may be left out.
    pub(crate) number: Within<1, { u64::MAX }>,
    /// The number of the record before it in its lane and opening, if that is on its way too. The record is accepted only if
    /// the queue has that one, and refused otherwise (`producer_gap`), so that of a batch no later record of a lane is
    /// accepted without an earlier one. 0, the default: all before it are known to be there, or given up.
    #[serde(default)]
    pub(crate) after: u64,
}

/// The queue is open for the producer.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProducerOpened {
    /// Above all that the queue gave this producer before. Its sends name it.
    pub(crate) incarnation: u64,
}

/// Selects the producers to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListProducers {
    /// The most entries of the page, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of producers.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Producers {
    /// In order of their names.
    pub(crate) producers: Vec<Producer>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A producer that the queue knows.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Producer {
    /// Its name.
    pub(crate) name: String,
    /// The one that may send.
    pub(crate) incarnation: u64,
    /// Openings of its spool of which the queue knows the records it has accepted.
    pub(crate) openings: u64,
    /// When it last opened the queue or a record of it was accepted. Time while the computer was off is left out.
    pub(crate) used_at: Instant,
}

//! Shapes of ledgers.

use lockgate_core::{
    Millis,
    ledger::{Append, ReadLedger},
};
use serde::{Deserialize, Serialize};

use super::{Encoding, Instant, SettleInput, WAIT_MS_MAX, Within};
use crate::few::{Few, UpTo};

/// Which ledgers a list shows.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListLedgers {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Some ledgers.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ledgers {
    /// In order of their names; may be empty.
    pub(crate) ledgers: Vec<LedgerView>,
    /// The next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A ledger to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateLedger {
    /// Its name: 1 to 80 of ASCII letters, digits, `-`, `_` and `.`.
    pub(crate) name: String,
    /// Whether each event has a running hash: BLAKE3 over the hash before and the payload. Default: no.
    #[serde(default)]
    pub(crate) hashed: bool,
    /// How long events are kept at least. Default: for ever. Unique ids are remembered for ever all the same.
    #[serde(default)]
    pub(crate) retention_ms: Option<Millis>,
}

/// A ledger.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LedgerView {
    /// Its name.
    pub(crate) name: String,
    /// Whether each event has a running hash.
    pub(crate) hashed: bool,
    /// How long events are kept at least; absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retention_ms: Option<Millis>,
    /// When it was made.
    pub(crate) created_at: Instant,
    /// Its end.
    pub(crate) head: LedgerHeadView,
    /// Readers whose place it keeps.
    pub(crate) readers: u64,
    /// Unique ids that it remembers in memory; the others are in the index on disk.
    pub(crate) unique_ids: u64,
    /// Inputs that it remembers until they are settled.
    pub(crate) inputs: u64,
    /// Appends whose events are kept.
    pub(crate) appends: u64,
    /// Bytes of the log that the kept events take, approximately.
    pub(crate) bytes: u64,
}

/// The end of a ledger at one instant.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LedgerHeadView {
    /// The place of the last event; 0 if there was none.
    pub(crate) sequence_id: u64,
    /// The place of the first event that is still kept; one behind the last if none is.
    pub(crate) first_id: u64,
    /// The latest term that the ledger has seen.
    pub(crate) epoch: u64,
    /// The time of the last event; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<Instant>,
    /// The running hash up to the last event, in 64 hexadecimal digits, if the ledger has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<String>,
    /// Whether nothing can be appended any more.
    pub(crate) sealed: bool,
}

/// Events to append, all of them or none.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct AppendEvents<'a> {
    /// The term of the writer. Once the ledger has seen a later one, this one is refused. Default 0, for a ledger whose
    /// writers are not elected.
    #[serde(default)]
    pub(crate) epoch: u64,
    /// The `sequence_id` of the head that the writer expects. Default: whichever it is.
    #[serde(default)]
    pub(crate) head: Option<u64>,
    /// The events, in order: up to 10,000, with up to 8 MiB of payloads. None is an append too: it raises the epoch and
    /// forgets inputs.
    #[serde(default)]
    pub(crate) events: UpTo<NewEventInput, { Append::EVENTS_MAX }>,
    /// Inputs that never come again, so the ledger forgets them: up to 10,000.
    #[serde(default)]
    pub(crate) settled: UpTo<String, { Append::EVENTS_MAX }>,
    /// Leases of messages of this server, in any queues, that are settled with the append, or not at all: up to 1000,
    /// without `state`.
    #[serde(default)]
    pub(crate) settles: Few<'a, SettleInput>,
}

/// An event to append.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEventInput {
    /// What has happened, in the encoding that `payload_encoding` names; up to 1 MiB.
    pub(crate) payload: String,
    /// The encoding of `payload`. Default `text`.
    #[serde(default)]
    pub(crate) payload_encoding: Encoding,
    /// An id that the ledger remembers for ever: a second event with it is a duplicate.
    #[serde(default)]
    pub(crate) unique_id: Option<String>,
    /// Which input it came with, such as a queue's name and a message's id. The ledger remembers it until it is
    /// `settled`: a second event with it is a duplicate.
    #[serde(default)]
    pub(crate) input: Option<String>,
}

/// What an append did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Appended {
    /// Of each event, in order.
    pub(crate) events: Vec<AppendedEvent>,
    /// The head behind it.
    pub(crate) head: LedgerHeadView,
}

/// What an append did with one event.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AppendedEvent {
    /// Its place; of a duplicate, the place of the first one.
    pub(crate) sequence_id: u64,
    /// Whether it was there before, so that nothing was added.
    pub(crate) duplicate: bool,
}

/// Which events to read.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadEvents {
    /// Events behind this one: the last one that the reader has. Default 0: from the first on.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    /// How many at most, 1 to 10,000. Default 100. A page ends earlier with the event that takes its payloads to 4 MiB.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, { ReadLedger::LIMIT_MAX as u64 }>>,
    /// How long to wait for an event if there is none. 0 to 20 s; default 0. The page is empty if none comes.
    #[serde(default)]
    pub(crate) wait_ms: Option<Within<0, WAIT_MS_MAX>>,
}

/// How to follow a ledger.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct FollowEvents {
    /// Events behind this one: the last one that the reader has. Default 0: from the first on.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    /// How long to wait for an event before the head is sent in its place. 100 ms to 20 s; default 5 s.
    #[serde(default)]
    pub(crate) heartbeat_ms: Option<Within<100, WAIT_MS_MAX>>,
}

/// Events that follow one another.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EventPage {
    /// The first one is directly behind `after`; may be empty.
    pub(crate) events: Vec<EventView>,
    /// The head of the ledger as of then: at or behind the last of the events.
    pub(crate) head: LedgerHeadView,
}

/// An event of a ledger.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EventView {
    /// Its place: 1, 2, 3, without a gap.
    pub(crate) sequence_id: u64,
    /// The place before it; 0 for the first.
    pub(crate) previous_id: u64,
    /// The id by which its producer tells whether it came before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<String>,
    /// When it was appended. Never before the event in front of it.
    pub(crate) time: Instant,
    /// The term of the writer that has appended it.
    pub(crate) epoch: u64,
    /// The running hash up to this event, in 64 hexadecimal digits, if the ledger has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash: Option<String>,
    /// What has happened, in the encoding that `payload_encoding` names.
    pub(crate) payload: String,
    /// The encoding of `payload`: `text` if it is UTF-8, unless it is long and has many characters that JSON escapes.
    pub(crate) payload_encoding: Encoding,
}

/// Where an event is.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EventFound {
    /// Its place. The event itself may be trimmed.
    pub(crate) sequence_id: u64,
}

/// The readers whose places a ledger keeps.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LedgerReaders {
    /// In order of their names; at most 1000.
    pub(crate) readers: Vec<LedgerReader>,
}

/// How far a reader is.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LedgerReader {
    /// Its name.
    pub(crate) reader: String,
    /// The last event that it is done with.
    pub(crate) sequence_id: u64,
}

/// Where a reader is now.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveReader {
    /// The last event that it is done with. It may be before the one that was kept.
    pub(crate) sequence_id: u64,
    /// Move it only if it is there now; one that is not known is at 0. Default: wherever it is.
    #[serde(default)]
    pub(crate) from: Option<u64>,
}

/// What became of a reader.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReaderMoved {
    /// Whether the ledger kept a place of it before.
    pub(crate) existed: bool,
}

/// The end of a ledger.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SealLedger {
    /// The term of the writer. Default 0.
    #[serde(default)]
    pub(crate) epoch: u64,
}

/// Which events to let go of.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TrimLedger {
    /// The first event that stays: those before it go. One behind the head: all go.
    pub(crate) first_id: u64,
}

/// What a ledger is, where it is not what a request says.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LedgerFault {
    /// With `ledger_moved`, `ledger_sealed` and `ledger_beyond`: its last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) head: Option<u64>,
    /// With `ledger_trimmed`: the first event that it keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_id: Option<u64>,
    /// With `ledger_trimmed`: behind which event was asked. With `ledger_beyond`: which place was named. With
    /// `reader_moved`: where the reader is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence_id: Option<u64>,
    /// With `ledger_deposed`: the term of the writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<u64>,
    /// With `ledger_deposed`: the latest term that the ledger has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) newest_epoch: Option<u64>,
}

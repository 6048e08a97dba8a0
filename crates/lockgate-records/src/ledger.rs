//! What [ledgers](lockgate_core::ledger) in databases share: rows, bounds, and errors.

use lockgate_core::{
    Epoch, LedgerName, Millis, ReaderName, RecordsError, UniqueId, WallTime,
    ledger::{Append, Event, EventHash, LedgerError, LedgerHead, ReaderPosition, SequenceId},
};

/// A head as a database tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadRow {
    /// The last event.
    pub sequence_id: i64,
    /// The first event that is kept.
    pub first_id: i64,
    /// The latest term.
    pub epoch: i64,
    /// The time of the last event.
    pub time_ms: i64,
    /// The running hash up to it, in 32 bytes.
    pub hash: Option<Vec<u8>>,
    /// Whether the ledger has ended.
    pub is_sealed: bool,
}

/// An event as a database tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Its place.
    pub sequence_id: i64,
    /// The place before it.
    pub previous_id: i64,
    /// Its producer's id.
    pub unique_id: Option<String>,
    /// When it was appended.
    pub time_ms: i64,
    /// Its writer's term.
    pub epoch: i64,
    /// The running hash up to it, in 32 bytes.
    pub hash: Option<Vec<u8>>,
    /// What has happened.
    pub payload: Vec<u8>,
}

impl HeadRow {
    /// As a head.
    ///
    /// # Errors
    /// [`Damaged`](LedgerError::Damaged) if no ledger has written it.
    pub fn into_head(self) -> Result<LedgerHead, LedgerError> {
        Ok(LedgerHead {
            sequence_id: place("sequence_id", self.sequence_id)?,
            first_id: place("first_id", self.first_id)?,
            epoch: Epoch(natural("epoch", self.epoch)?),
            time: WallTime(natural("time_ms", self.time_ms)?),
            hash: hash(self.hash)?,
            is_sealed: self.is_sealed,
        })
    }
}

impl EventRow {
    /// As an event.
    ///
    /// # Errors
    /// [`Damaged`](LedgerError::Damaged) if no ledger has written it.
    pub fn into_event(self) -> Result<Event, LedgerError> {
        let unique_id = self.unique_id.as_deref().map(UniqueId::new);
        Ok(Event {
            sequence_id: place("sequence_id", self.sequence_id)?,
            previous_id: place("previous_id", self.previous_id)?,
            unique_id: unique_id
                .transpose()
                .map_err(|error| damaged(&error.to_string()))?,
            time: WallTime(natural("time_ms", self.time_ms)?),
            epoch: Epoch(natural("epoch", self.epoch)?),
            hash: hash(self.hash)?,
            payload: self.payload.into(),
        })
    }
}

/// The position of a reader, as a database tells it.
///
/// # Errors
/// [`Damaged`](LedgerError::Damaged) if no ledger has written it.
pub fn reader_position(reader: &str, sequence_id: i64) -> Result<ReaderPosition, LedgerError> {
    let reader = ReaderName::new(reader);
    Ok(ReaderPosition {
        reader: reader.map_err(|error| damaged(&error.to_string()))?,
        sequence_id: place("sequence_id", sequence_id)?,
    })
}

/// A row that no ledger has written.
#[must_use]
pub fn damaged(why: &str) -> LedgerError {
    let why = format!("a row cannot be read: {why}");
    LedgerError::Damaged { why }
}

/// A number that is never below 0.
///
/// # Errors
/// [`Damaged`](LedgerError::Damaged) if it is.
pub fn natural(column: &str, found: i64) -> Result<u64, LedgerError> {
    u64::try_from(found).map_err(|_| damaged(&format!("{column} is {found}")))
}

/// As [`natural`], for the place of an event.
///
/// # Errors
/// [`Damaged`](LedgerError::Damaged) if it is below 0.
pub fn place(column: &str, found: i64) -> Result<SequenceId, LedgerError> {
    natural(column, found).map(SequenceId)
}

fn hash(found: Option<Vec<u8>>) -> Result<Option<EventHash>, LedgerError> {
    let Some(bytes) = found else {
        return Ok(None);
    };
    let bytes = bytes.try_into();
    let bytes = bytes.map_err(|_| damaged("hash has not 32 bytes"))?;
    Ok(Some(EventHash(bytes)))
}

/// What a connection says, for a ledger.
#[must_use]
pub fn failed(error: RecordsError) -> LedgerError {
    match error {
        RecordsError::Invalid { why } => LedgerError::Invalid { why },
        RecordsError::Unknown { why } => LedgerError::Unknown { why },
        RecordsError::Denied { why } => LedgerError::Denied { why },
        RecordsError::Unavailable { why } => LedgerError::Unavailable { why },
        other => LedgerError::Unavailable {
            why: other.to_string(),
        },
    }
}

/// What a retention is to a database. One that it cannot count is for ever.
#[must_use]
pub fn span(retention: Option<Millis>) -> Option<i64> {
    retention.and_then(|span| i64::try_from(span).ok())
}

/// An epoch as a database has it.
///
/// # Errors
/// [`Invalid`](LedgerError::Invalid) if it cannot count so far.
pub fn check_epoch(epoch: Epoch) -> Result<i64, LedgerError> {
    i64::try_from(epoch.0).map_err(|_| LedgerError::Invalid {
        why: format!(
            "epoch {} is above {}, the highest of a database",
            epoch.0,
            i64::MAX
        ),
    })
}

/// How many events a partition has, as a database has it.
///
/// # Errors
/// [`Invalid`](LedgerError::Invalid) if one append could have more than two partitions, or if the database cannot count so far.
pub fn check_partition(events: Option<u64>) -> Result<Option<i64>, LedgerError> {
    let Some(events) = events else {
        return Ok(None);
    };
    let min = Append::EVENTS_MAX as u64;
    match i64::try_from(events) {
        Ok(number) if events >= min && events <= PARTITION_MAX => Ok(Some(number)),
        _ => Err(LedgerError::Invalid {
            why: format!("a partition has {min} to {PARTITION_MAX} events, and not {events}"),
        }),
    }
}

/// More are never appended.
const PARTITION_MAX: u64 = 1 << 53;

/// The parameter `partition` of a URL.
///
/// # Errors
/// [`Invalid`](LedgerError::Invalid) if it is no number.
pub fn partition_of_url(given: &str) -> Result<u64, LedgerError> {
    given.parse().map_err(|_| LedgerError::Invalid {
        why: format!("the URL's partition={given} is no number of events"),
    })
}

/// There is no ledger of that name.
#[must_use]
pub fn not_found(name: &str) -> LedgerError {
    match LedgerName::new(name) {
        Ok(ledger) => LedgerError::NotFound { ledger },
        Err(error) => LedgerError::Invalid {
            why: error.to_string(),
        },
    }
}

/// That a database with tables of the version `found` serves a program whose ledgers have the version `known`.
///
/// # Errors
/// [`Invalid`](RecordsError::Invalid) if not.
pub fn check_version(name: &str, found: i64, known: i64) -> Result<(), RecordsError> {
    let why = match found {
        _ if found == known => return Ok(()),
        _ if found > known => {
            format!("and this program knows versions up to {known}: use a newer one")
        }
        _ => format!("which no program has made: this one makes version {known}"),
    };
    let why = format!("the ledger {name} has version {found}, {why}");
    Err(RecordsError::Invalid { why })
}

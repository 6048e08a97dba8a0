//! What a server shows of a ledger, into the words of the library.

use lockgate_core::{
    Epoch, UniqueId, WallTime,
    ledger::{Event, EventHash, EventHashError, LedgerHead, LedgerPage, SequenceId},
};
use serde::Deserialize;

use crate::{api::Encoding, queue::wall_time};

#[derive(Deserialize)]
pub(crate) struct ShownHead {
    sequence_id: u64,
    first_id: u64,
    epoch: u64,
    time: Option<String>,
    hash: Option<String>,
    sealed: bool,
}

#[derive(Deserialize)]
pub(crate) struct ShownPage {
    events: Vec<ShownEvent>,
    head: ShownHead,
}

#[derive(Deserialize)]
struct ShownEvent {
    sequence_id: u64,
    previous_id: u64,
    unique_id: Option<String>,
    time: String,
    epoch: u64,
    hash: Option<String>,
    payload: String,
    payload_encoding: Encoding,
}

impl ShownHead {
    /// # Errors
    /// What no server says.
    pub(crate) fn read(self) -> Result<LedgerHead, String> {
        Ok(LedgerHead {
            sequence_id: SequenceId(self.sequence_id),
            first_id: SequenceId(self.first_id),
            epoch: Epoch(self.epoch),
            time: self.time.map_or(Ok(WallTime(0)), time)?,
            hash: hash(self.hash)?,
            is_sealed: self.sealed,
        })
    }
}

impl ShownPage {
    /// # Errors
    /// What no server says.
    pub(crate) fn read(self) -> Result<LedgerPage, String> {
        let events = self.events.into_iter().map(ShownEvent::read);
        Ok(LedgerPage {
            events: events.collect::<Result<_, _>>()?,
            head: self.head.read()?,
        })
    }
}

impl ShownEvent {
    fn read(self) -> Result<Event, String> {
        let unique_id = self.unique_id.map(|id| UniqueId::new(&id)).transpose();
        let payload = self.payload_encoding.decode(&self.payload);
        Ok(Event {
            sequence_id: SequenceId(self.sequence_id),
            previous_id: SequenceId(self.previous_id),
            unique_id: unique_id.map_err(|error| error.to_string())?,
            time: time(self.time)?,
            epoch: Epoch(self.epoch),
            hash: hash(self.hash)?,
            payload: payload.map_err(|error| error.to_string())?.into(),
        })
    }
}

fn time(text: String) -> Result<WallTime, String> {
    wall_time(&text).ok_or(text)
}

fn hash(text: Option<String>) -> Result<Option<EventHash>, String> {
    let hash = text.map(|text| text.parse()).transpose();
    hash.map_err(|error: EventHashError| error.to_string())
}

/// Reads a page of events as it comes from a server. For fuzzing.
///
/// # Errors
/// If it is none.
#[doc(hidden)]
pub fn fuzz_page(bytes: &[u8]) -> Result<LedgerPage, String> {
    let page: ShownPage = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    page.read()
}

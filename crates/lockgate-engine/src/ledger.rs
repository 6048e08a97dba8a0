//! A ledger of a shard.

use bytes::Bytes;
use lockgate_core::{
    Epoch, LedgerName, LogReader, Position, ReadError, ReaderName, UniqueId,
    coordination::FenceError,
    ledger::{
        Append, Appended, Event, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerPage,
        ReadLedger, ReaderPosition, SequenceId,
    },
    with_sources,
};
use lockgate_machine::{
    AppendEvents, BlockPlace, DescribeLedger, EventPlaces, FindEvent, LedgerDescription,
    LocateEvents, MoveReader, Rejection, SealLedger, Settle, TrimLedger, TypedCommand, read_events,
};

use crate::{Engine, EngineError, inbox::millis, maintenance::Pin};

/// A ledger of a shard: see [`Engine::ledger`]. Clones are cheap.
///
/// What was answered, or was read, survives a power cut. A waiting read is answered when the append is durable.
///
/// # Errors
/// [`Full`](LedgerError::Full) is a full log, or the bounds of ledgers in
/// [`MachineLimits`](lockgate_machine::MachineLimits). [`Damaged`](LedgerError::Damaged) is a part of the log that cannot be
/// read. [`Unavailable`](LedgerError::Unavailable) is an engine that has stopped or has too much work.
#[derive(Clone, Debug)]
pub struct EngineLedger {
    engine: Engine,
    name: LedgerName,
}

/// Places of events that stay readable.
#[derive(Debug)]
pub(crate) struct GuardedEvents {
    pub(crate) places: Box<EventPlaces>,
    pub(crate) _pin: Option<Pin>,
}

impl EngineLedger {
    pub(crate) fn new(engine: Engine, name: LedgerName) -> Self {
        Self { engine, name }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LedgerName {
        &self.name
    }

    /// Everything about it.
    ///
    /// # Errors
    /// `NotFound` and `Unavailable`.
    pub async fn describe(&self) -> Result<LedgerDescription, LedgerError> {
        let ledger = self.name.clone();
        let described = self.engine.query(DescribeLedger { ledger }).await;
        described.map_err(|error| ledger_error(error, false))
    }

    /// Appends events, and settles the messages that they came with, in one record of the log: all of it happens or nothing.
    ///
    /// # Errors
    /// As [`append`](Ledger::append); `Invalid` also if the lease of a message has ended.
    pub async fn append_settling(
        &self,
        append: Append,
        settles: Vec<Settle>,
    ) -> Result<Appended, LedgerError> {
        append.check()?;
        self.submit(AppendEvents {
            ledger: self.name.clone(),
            append,
            settles,
        })
        .await
    }

    async fn submit<C: TypedCommand>(&self, command: C) -> Result<C::Reply, LedgerError> {
        let done = self.engine.submit(command).await;
        done.map_err(|error| ledger_error(error, true))
    }
}

impl Ledger for EngineLedger {
    fn capabilities(&self) -> LedgerCapabilities {
        LedgerCapabilities::ALL
    }

    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        self.append_settling(append, Vec::new()).await
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        Ok(self.describe().await?.head)
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        read.check()?;
        let until = self.engine.now().machine.plus(millis(read.wait));
        let locate = LocateEvents {
            ledger: self.name.clone(),
            after: read.after,
            limit: read.limit,
        };
        let page = self.engine.read_events(locate, until).await;
        page.map_err(|error| ledger_error(error, false))?
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        let ledger = self.name.clone();
        let found = self.engine.query(FindEvent { ledger, unique_id }).await;
        found.map_err(|error| ledger_error(error, false))
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        self.submit(MoveReader {
            ledger: self.name.clone(),
            reader: position.reader,
            to: Some(position.sequence_id),
            from,
        })
        .await?;
        Ok(())
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        let ledger = self.name.clone();
        self.submit(MoveReader {
            ledger,
            reader,
            to: None,
            from: None,
        })
        .await
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        Ok(self.describe().await?.readers)
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        let ledger = self.name.clone();
        self.submit(SealLedger { ledger, epoch }).await
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        let ledger = self.name.clone();
        self.submit(TrimLedger { ledger, first }).await
    }
}

/// What the engine's error means for a ledger. `changes`: the command would have changed something, so it may have happened.
#[must_use]
pub fn ledger_error(error: EngineError, changes: bool) -> LedgerError {
    let why = with_sources(&error).to_string();
    match error {
        EngineError::Rejected(Rejection::Ledger(refused)) => refused,
        EngineError::Rejected(Rejection::Fenced(FenceError::Deposed { epoch, newest, .. })) => {
            LedgerError::Deposed { epoch, newest }
        }
        EngineError::Rejected(Rejection::LogFull { .. } | Rejection::ShardFull { .. }) => {
            LedgerError::Full { why }
        }
        EngineError::Rejected(Rejection::OutOfDescriptors)
        | EngineError::Overloaded
        | EngineError::Stopped { .. }
        | EngineError::Index { .. }
        | EngineError::Unreadable { .. } => LedgerError::Unavailable { why },
        EngineError::Rejected(_) => LedgerError::Invalid { why },
        EngineError::UnknownOutcome { .. } if changes => LedgerError::Unknown { why },
        EngineError::UnknownOutcome { .. } => LedgerError::Unavailable { why },
    }
}

/// Pages of more bytes are read by a thread of the engine.
const AT_ONCE_BYTES_MAX: u64 = 256 << 10;

/// Reads the page that begins behind `after`, without waiting for storage. `None`: that is not possible.
pub(crate) fn page_at_once(
    reader: &dyn LogReader,
    events: &GuardedEvents,
    after: SequenceId,
    limit: usize,
) -> Option<Result<LedgerPage, LedgerError>> {
    // Decoding and hashing take time too, which belongs to no async thread.
    let bytes: u64 = events.places.blocks.iter().map(|block| block.bytes).sum();
    if bytes > AT_ONCE_BYTES_MAX {
        return None;
    }
    let positions = positions(&events.places.blocks);
    let records = match positions[..] {
        [] => Vec::new(),
        _ => reader.try_read_all(&positions)?,
    };
    let records = records.into_iter().map(Ok).collect();
    Some(page(&events.places, records, after, limit))
}

/// Reads the page that begins behind `after`. Reading may wait for storage.
pub(crate) fn page_by_waiting(
    reader: &dyn LogReader,
    events: &GuardedEvents,
    after: SequenceId,
    limit: usize,
) -> Result<LedgerPage, LedgerError> {
    let records = reader.read_all(&positions(&events.places.blocks));
    page(&events.places, records, after, limit)
}

/// The positions of the blocks in front of the first that is lost.
fn positions(blocks: &[BlockPlace]) -> Vec<Position> {
    blocks.iter().map_while(|block| block.position).collect()
}

fn page(
    places: &EventPlaces,
    records: Vec<Result<Bytes, ReadError>>,
    after: SequenceId,
    limit: usize,
) -> Result<LedgerPage, LedgerError> {
    let page = LedgerPage {
        events: Vec::new(),
        head: places.head,
    };
    let read: usize = records.iter().flatten().map(Bytes::len).sum();
    let mut page = fill(page, places, records, after, limit)?;
    let kept: usize = page.events.iter().map(|event| event.payload.len()).sum();
    // Payloads are parts of records, which may have far more: a reader that is slow keeps what it has read.
    if read > 2 * kept {
        for event in &mut page.events {
            event.payload = Bytes::copy_from_slice(&event.payload);
        }
    }
    Ok(page)
}

fn fill(
    mut page: LedgerPage,
    places: &EventPlaces,
    records: Vec<Result<Bytes, ReadError>>,
    after: SequenceId,
    limit: usize,
) -> Result<LedgerPage, LedgerError> {
    let mut bytes = 0;
    let mut records = records.into_iter();
    for block in &places.blocks {
        let read = read_block(places, block, records.next());
        let events = match read {
            Ok(events) => events,
            // The events in front of it are a page; the next one has the error.
            Err(_) if !page.events.is_empty() => return Ok(page),
            Err(error) => return Err(error),
        };
        let wanted = events.into_iter().filter(|event| event.sequence_id > after);
        for event in wanted {
            bytes += event.payload.len();
            page.events.push(event);
            if page.events.len() >= limit || bytes >= ReadLedger::BYTES_MAX {
                return Ok(page);
            }
        }
    }
    Ok(page)
}

fn read_block(
    places: &EventPlaces,
    block: &BlockPlace,
    record: Option<Result<Bytes, ReadError>>,
) -> Result<Vec<Event>, LedgerError> {
    let (first, last) = (block.first, block.last);
    let damaged = |what: &str| LedgerError::Damaged {
        why: format!("the events {first} to {last} {what}; those behind {last} can be read"),
    };
    let Some(record) = record else {
        return Err(damaged("were in a part of the log that is lost"));
    };
    let record = record.map_err(|error| match error {
        ReadError::Log(error) => LedgerError::Unavailable {
            why: format!(
                "reading the events from {first} on: {}",
                with_sources(&error)
            ),
        },
        error => damaged(&format!("cannot be read: {error}")),
    })?;
    let read = read_events(&record, places.ledger, first);
    let read = read.map_err(|error| damaged(&format!("cannot be read: {error}")))?;
    read.into_events()
        .ok_or_else(|| damaged("do not give the hash that was kept of them"))
}

impl Engine {
    /// A ledger of the shard. Whether there is one shows the first call; [`CreateLedger`](lockgate_machine::CreateLedger)
    /// makes one, and [`ListLedgers`](lockgate_machine::ListLedgers) lists them.
    #[must_use]
    pub fn ledger(&self, name: LedgerName) -> EngineLedger {
        EngineLedger::new(self.clone(), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_means_depends_on_whether_something_was_to_change() {
        let unknown = || EngineError::UnknownOutcome {
            cause: crate::UnknownCause::NoAnswer,
        };
        assert!(matches!(
            ledger_error(unknown(), true),
            LedgerError::Unknown { .. }
        ));
        assert!(matches!(
            ledger_error(unknown(), false),
            LedgerError::Unavailable { .. }
        ));
        let full = Rejection::LogFull { needed: 1, free: 0 };
        assert!(matches!(
            ledger_error(full.into(), true),
            LedgerError::Full { .. }
        ));
        let sealed = LedgerError::Sealed {
            head: SequenceId(7),
        };
        let rejected = Rejection::Ledger(sealed.clone());
        assert_eq!(ledger_error(rejected.into(), true), sealed);
    }
}

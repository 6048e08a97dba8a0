//! Taking a backup.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use lockgate_core::{
    Epoch, Location, LogReader, LogRecord, Now, Position, ReadError, Scanned, WallTime,
};
use lockgate_index::{FolderIndex, IndexError, IndexView};
use lockgate_machine::{
    Copies, DecodeError, Effect, Frozen, LiveRange, decode_record, encode_record,
};

use super::stream::{Head, Kind, Writer};
use crate::{Driver, StopReason, Ticket, maintenance::Pin};

/// The contents of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// When it was begun. It contains everything that was answered before.
    pub created: WallTime,
    /// Messages in it.
    pub messages: u64,
    /// Records of the shard.
    pub records: u64,
    /// Keys of all queues that have a state.
    pub states: u64,
    /// Events of all ledgers.
    pub events: u64,
    /// Messages that are missing, because their payload could not be read.
    pub unreadable: u64,
    /// Events that are missing, because they could not be read.
    pub unreadable_events: u64,
    /// Bytes of the whole stream.
    pub bytes: u64,
}

/// Why a backup failed. The bytes written so far are useless.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The engine takes no more work.
    #[error("the engine has stopped ({reason})")]
    Stopped { reason: StopReason },
    /// The index of unique ids could not be read.
    #[error("reading the index of unique ids for the backup")]
    Index(#[source] IndexError),
    /// The index of unique ids lacks some that the backup must have: a queue or ledger was deleted meanwhile, so try
    /// again; or the backup is taken without the index.
    #[error("the index of unique ids lacks some that the backup must have: try again")]
    MissingIds,
    /// The output failed.
    #[error("writing the backup")]
    Write(#[source] io::Error),
    /// The log could not be read.
    #[error("reading the log for the backup")]
    Read(#[source] ReadError),
    /// A payload was written by a newer version.
    #[error("reading the record at {at} for the backup")]
    Decode {
        at: Position,
        /// What this version does not know.
        #[source]
        source: DecodeError,
    },
}

/// The source of a backup: a shard at one instant.
pub(crate) struct Source {
    pub(crate) frozen: Frozen,
    pub(crate) created: WallTime,
    pub(crate) epoch: Epoch,
    /// The state covers all records that start before this, and they are durable.
    pub(crate) position: Position,
    /// The ranges with messages, which must stay readable until the end.
    pub(crate) ranges: Vec<(Position, LiveRange)>,
    pub(crate) range_bits: u32,
    /// Keeps the ranges readable.
    pub(crate) _pin: Pin,
    /// Messages in all queues.
    pub(crate) messages: u64,
    /// Records of the shard.
    pub(crate) records: u64,
    /// Keys of all queues that have a state.
    pub(crate) states: u64,
    /// Events of all ledgers.
    pub(crate) events: u64,
    /// Spaces of the index with unique ids of queues and ledgers, each with the number up to which they are.
    pub(crate) indexed: Vec<(u64, u64)>,
}

impl Source {
    /// The driver's shard as it is now.
    pub(crate) fn of<T: Ticket>(driver: &mut Driver<T>, now: Now) -> Self {
        let (mut messages, mut states) = (0, 0);
        driver.for_each_queue(now, |queue| {
            let counts = &queue.counts;
            messages += counts.ready + counts.in_flight + counts.delayed;
            states += counts.states;
        });
        let ranges: Vec<_> = driver.machine.live_ranges().collect();
        let indexed = driver.machine.id_spaces();
        let indexed = indexed.map(|(space, up_to, _)| (space.number(), up_to.0));
        let indexed = indexed.filter(|(_, up_to)| *up_to > 0).collect();
        Self {
            _pin: driver.pins.hold(ranges.iter().map(|(first, _)| *first)),
            created: now.wall,
            epoch: driver.term().epoch,
            position: driver.tail(),
            ranges,
            range_bits: driver.log.capabilities().range_bits,
            messages,
            records: driver.machine.record_counts().records,
            states,
            events: driver.machine.kept_events(),
            indexed,
            frozen: driver.machine.freeze(),
        }
    }
}

impl<T: Ticket> Driver<T> {
    /// Writes a backup of the shard's state at `now`, for a shard that no engine serves meanwhile.
    /// The backup's contents are as durable as the log. Not for a shard with unique ids in an index.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn backup(&mut self, now: Now, out: &mut dyn Write) -> Result<BackupReport, BackupError> {
        let freeze = || Ok(Source::of(self, now));
        let (source, ids) = view_and_freeze(None, freeze, |source| source.indexed.clone())?;
        let written = self.log.progress().wait_written(source.position);
        written.map_err(|error| BackupError::Stopped {
            reason: StopReason::of(error),
        })?;
        write(source, &*self.reader(), ids, out, &|| Ok(()), &|| Ok(()))
    }
}

/// What `freeze` gives, and the index as of then; `None` if nothing of it is needed. `spaces` says what of the index
/// belongs to what is frozen.
///
/// The index is viewed first. So what the frozen state has of it is in the view, whatever changes in the index later:
/// a queue that is deleted, or an id that comes again. And no id may go from memory to the index until this returns:
/// then each id is in the frozen state or in the view.
pub(crate) fn view_and_freeze<T>(
    index: Option<&FolderIndex>,
    freeze: impl FnOnce() -> Result<T, BackupError>,
    spaces: impl FnOnce(&T) -> Vec<(u64, u64)>,
) -> Result<(T, Option<IndexView>), BackupError> {
    let index = index.and_then(FolderIndex::get);
    let view = index.map(|index| index.view()).transpose();
    let view = view.map_err(BackupError::Index)?;
    let frozen = freeze()?;
    let spaces = spaces(&frozen);
    if spaces.is_empty() {
        return Ok((frozen, None));
    }
    let view = view.and_then(|view| view.only(spaces));
    Ok((frozen, Some(view.ok_or(BackupError::MissingIds)?)))
}

/// Writes the whole backup while `go_on` is true; calls `confirm` once, before the end.
pub(crate) fn write(
    mut source: Source,
    reader: &dyn LogReader,
    ids: Option<IndexView>,
    out: &mut dyn Write,
    go_on: &dyn Fn() -> Result<(), BackupError>,
    confirm: &dyn Fn() -> Result<(), BackupError>,
) -> Result<BackupReport, BackupError> {
    let head = Head {
        created: source.created,
        position: source.position,
        epoch: source.epoch,
    };
    let mut stream = Writer::begin(out, head, ids.is_some()).map_err(BackupError::Write)?;
    // Pieces free their pages as they are taken, so the places that are still needed are kept apart.
    let places = source.frozen.fork();
    let mut buffer = Vec::new();
    while let Some(piece) = source.frozen.next_piece(&mut buffer) {
        go_on()?;
        stream
            .block(Kind::Piece, piece)
            .map_err(BackupError::Write)?;
    }
    for piece in ids.into_iter().flatten() {
        go_on()?;
        let piece = piece.map_err(BackupError::Index)?;
        let written = stream.block(Kind::Ids, &piece);
        written.map_err(BackupError::Write)?;
    }

    let (mut messages, mut events, mut blocks) = (0, 0, 0);
    for (first, live) in source.ranges.drain(..) {
        let behind = first.range(source.range_bits).end;
        let mut left = live.messages;
        let mut failed = None;
        let scanned = reader.scan(first, source.position.min(behind), &mut |scanned| {
            // A damaged record is missing from the count.
            let Scanned::Record { record, .. } = scanned else {
                return ControlFlow::Continue(());
            };
            let written = go_on().and_then(|()| write_messages(&record, &places, &mut stream));
            match written {
                Ok(written) => {
                    messages += written.messages;
                    events += written.events;
                    blocks += written.blocks;
                    left = left.saturating_sub(written.messages + written.event_blocks);
                    if left > 0 {
                        return ControlFlow::Continue(());
                    }
                }
                Err(error) => failed = Some(error),
            }
            ControlFlow::Break(())
        });
        if let Some(error) = failed {
            return Err(error);
        }
        scanned.map_err(BackupError::Read)?;
    }
    go_on()?;
    confirm()?;
    Ok(BackupReport {
        created: source.created,
        messages,
        records: source.records,
        states: source.states,
        events,
        unreadable: source.messages.saturating_sub(messages),
        unreadable_events: source.events.saturating_sub(events),
        bytes: stream.finish(blocks).map_err(BackupError::Write)?,
    })
}

/// What was written of a record.
#[derive(Default)]
struct Written {
    /// Blocks of the stream: one for messages with one payload, one for an append's events.
    blocks: u64,
    messages: u64,
    event_blocks: u64,
    events: u64,
}

/// Writes what of a record was alive at the backup's instant: messages, and events of ledgers.
fn write_messages(
    record: &LogRecord,
    places: &Frozen,
    stream: &mut Writer<'_>,
) -> Result<Written, BackupError> {
    let mut written = Written::default();
    let position = record.position;
    let effects = match decode_record(&record.payload) {
        Ok(effects) => effects,
        Err(source @ DecodeError::NewerFormat { .. }) => {
            return Err(BackupError::Decode {
                at: position,
                source,
            });
        }
        // The start skipped the record too.
        Err(_) => return Ok(written),
    };
    let mut bytes = Vec::new();
    let mut write = |effects: &[Effect]| {
        bytes.clear();
        encode_record(effects, &mut bytes);
        stream
            .block(Kind::Message, &bytes)
            .map_err(BackupError::Write)
    };
    let (copies, others) = Copies::of_record(effects);
    // In the form that the new log will have.
    for copies in copies {
        let compacted = copies.compacted(0, |part, stored| {
            places.place_of(stored.id, Location { position, part })
        });
        if !compacted.is_empty() {
            written.messages += compacted.len() as u64;
            written.blocks += 1;
            write(&compacted)?;
        }
    }
    for effect in others {
        let block = match effect {
            Effect::EventsAppended(appended) => appended.block,
            Effect::EventsCompacted(block) => *block,
            _ => continue,
        };
        if places.has_events_at(block.ledger, block.first, position) {
            let events = block.events.len() as u64;
            written.events += places.kept_of(block.ledger, block.first, events);
            written.event_blocks += 1;
            written.blocks += 1;
            write(&[Effect::EventsCompacted(Box::new(block))])?;
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use lockgate_index::{IndexOptions, UniqueIndex};

    use super::*;

    /// Whatever happens to the index while the state is frozen.
    #[test]
    fn what_the_frozen_state_has_of_the_index_is_in_the_backup() {
        let folder = tempfile::tempdir().unwrap();
        let place = FolderIndex::new(folder.path().join("index"), IndexOptions::default());
        let index = place.open_or_make().unwrap();
        index.add(1, &[(7, 1), (8, 2)], 2).unwrap();
        index.add(2, &[(9, 1)], 1).unwrap();
        index.sync().unwrap();
        let freeze = || {
            while !index.remove_space(2, 1).unwrap() {}
            index.add(1, &[(7, 3)], 3).unwrap();
            index.sync().unwrap();
            Ok(())
        };
        let frozen = view_and_freeze(Some(&place), freeze, |()| vec![(1, 2), (2, 1)]);
        let view = frozen.unwrap().1.unwrap();
        let copy = folder.path().join("copy");
        let (copy, _) = UniqueIndex::load(&copy, &IndexOptions::default(), view).unwrap();
        assert_eq!(copy.look_up(1, &[7, 8]).unwrap().found, [Some(1), Some(2)]);
        assert_eq!(copy.look_up(2, &[9]).unwrap().found, [Some(1)]);

        // More than there was is refused; and nothing of an index that is not needed.
        let refused = view_and_freeze(Some(&place), || Ok(()), |()| vec![(1, 9)]);
        assert!(matches!(refused, Err(BackupError::MissingIds)));
        let unneeded = view_and_freeze(None, || Ok(()), |()| Vec::new());
        assert!(unneeded.unwrap().1.is_none());
    }
}

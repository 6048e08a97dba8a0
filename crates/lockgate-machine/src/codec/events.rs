//! Events of ledgers as bytes.

use lockgate_core::{
    Epoch, InputId, LedgerId, LedgerName, ReaderName, UniqueId,
    ledger::{Append, EventHash, SequenceId},
};

use super::{
    DecodeError,
    wire::{Reader, Writer},
};
use crate::{AppendedEvents, EventBlock, StoredEvent};

/// Above all places that events ever have, so that nothing overflows behind it.
pub(crate) const PLACE_MAX: u64 = 1 << 62;

pub(super) fn write_block(block: &EventBlock, writer: &mut Writer<'_>) {
    writer.number(u64::from(block.ledger.0));
    writer.number(block.first.0);
    writer.number(block.epoch.0);
    writer.number(block.time.0);
    writer.byte(u8::from(block.hashes.is_some()));
    for hash in block.hashes.iter().flatten() {
        writer.raw(&hash.0);
    }
    writer.number(block.events.len() as u64);
    for event in &block.events {
        // No id is empty.
        let id = event.unique_id.as_ref().map_or("", UniqueId::as_str);
        writer.bytes(id.as_bytes());
        writer.bytes(&event.payload);
    }
}

pub(super) fn read_block(reader: &mut Reader<'_>) -> Result<EventBlock, DecodeError> {
    let (ledger, first) = read_place(reader)?;
    let (epoch, time) = (Epoch(reader.number()?), reader.wall()?);
    let hashes = match reader.flag()? {
        true => Some([EventHash(reader.array()?), EventHash(reader.array()?)]),
        false => None,
    };
    let count = reader.number()?;
    if count > Append::EVENTS_MAX as u64 {
        return Err(reader.malformed("a block has more events than an append can have"));
    }
    if count > 0 && !(1..=PLACE_MAX).contains(&first.0) {
        return Err(reader.malformed("events have places that they cannot have"));
    }
    // Grows with what is there, so that a wrong count takes no memory.
    let mut events = Vec::new();
    for _ in 0..count {
        let unique_id = match reader.counted_text()? {
            "" => None,
            id => Some(UniqueId::new(id).map_err(|_| reader.malformed("no unique id"))?),
        };
        let payload = reader.bytes()?.to_bytes();
        events.push(StoredEvent { unique_id, payload });
    }
    Ok(EventBlock {
        ledger,
        first,
        epoch,
        time,
        hashes,
        events,
    })
}

/// The ledger of a block, and its first event: what a block begins with.
pub(super) fn read_place(reader: &mut Reader<'_>) -> Result<(LedgerId, SequenceId), DecodeError> {
    Ok((LedgerId(reader.small()?), SequenceId(reader.number()?)))
}

pub(super) fn write_appended(appended: &AppendedEvents, writer: &mut Writer<'_>) {
    write_block(&appended.block, writer);
    writer.number(appended.inputs.len() as u64);
    for (input, event) in &appended.inputs {
        writer.bytes(input.as_str().as_bytes());
        writer.number(event.0);
    }
    writer.number(appended.settled.len() as u64);
    for input in &appended.settled {
        writer.bytes(input.as_str().as_bytes());
    }
}

pub(super) fn read_appended(reader: &mut Reader<'_>) -> Result<AppendedEvents, DecodeError> {
    let block = read_block(reader)?;
    let mut inputs = Vec::new();
    for _ in 0..reader.number()? {
        inputs.push((input_id(reader)?, SequenceId(reader.number()?)));
    }
    let mut settled = Vec::new();
    for _ in 0..reader.number()? {
        settled.push(input_id(reader)?);
    }
    Ok(AppendedEvents {
        block,
        inputs,
        settled,
    })
}

fn input_id(reader: &mut Reader<'_>) -> Result<InputId, DecodeError> {
    let text = reader.counted_text()?;
    InputId::new(text).map_err(|_| reader.malformed("no input id"))
}

pub(super) fn ledger_name(reader: &mut Reader<'_>) -> Result<LedgerName, DecodeError> {
    let text = reader.counted_text()?;
    LedgerName::new(text).map_err(|_| reader.malformed("no ledger name"))
}

pub(super) fn reader_name(reader: &mut Reader<'_>) -> Result<ReaderName, DecodeError> {
    let text = reader.counted_text()?;
    ReaderName::new(text).map_err(|_| reader.malformed("no reader name"))
}

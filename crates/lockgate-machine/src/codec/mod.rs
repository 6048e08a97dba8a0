//! Effects as bytes: the content of a shard's log records. `docs/internals/format.md`, section
//! "Record payload: effects", specifies the layout byte by byte.
//!
//! # Changing it
//! Files written by any released version must stay readable, and an older version must either read
//! a newer record rightly or refuse it clearly.
//!
//! - *A new optional part of an effect, a message or the settings:* give it the next free field
//!   number next to its struct, never one that was used before. If an older version that ignores it
//!   would do something wrong, set [`wire::CRITICAL`] in the number; otherwise older versions skip
//!   it. Absence must mean the behaviour from before the field existed.
//! - *A new effect, or a different head of an effect:* a new kind in [`effect::kind`]. Older
//!   versions refuse unknown kinds.
//! - *A new variant of an enum:* a new number; older versions refuse it.
//! - *A part that is no longer written:* keep reading it, and keep its number reserved.
//!
//! Then extend `docs/internals/format.md`, the golden bytes and the strategies in `tests.rs`: they
//! do not compile, or fail, until that is done.

pub(crate) mod batch;
mod effect;
pub(crate) mod events;
pub(crate) mod exchanges;
mod message;
pub(crate) mod schedules;
mod settings;
#[cfg(test)]
mod tests;
mod wire;

use bytes::Bytes;
use lockgate_core::{LedgerId, ledger::SequenceId};

pub(crate) use self::wire::CRITICAL;
use self::{
    effect::LastHolder,
    wire::{Reader, Writer},
};
use crate::{Effect, Effects, EventBlock, Payload, StoredMessage, copies};

/// Appends the record payload with one command's effects to `out`.
///
/// An effect's index in the slice is the `part` with which [`read_message`] finds its message.
pub fn encode_record(effects: &[Effect], out: &mut Vec<u8>) {
    let mut writer = Writer::into(out);
    for effect in effects {
        effect::write(effect, &mut writer);
    }
}

/// The effects of a record payload. Bodies and header values are slices of `record`, not copies.
///
/// Any bytes give effects or an error, never a panic, with memory in proportion to the record's length.
///
/// # Errors
/// If the bytes are no effects, or a newer version wrote them.
pub fn decode_record(record: &Bytes) -> Result<Effects, DecodeError> {
    let mut reader = Reader::new(record);
    let mut effects = Effects::new();
    let mut holders = LastHolder::default();
    while let Some((kind, body)) = reader.next_effect()? {
        effects.push(effect::read(kind, body, &mut holders)?);
    }
    Ok(effects)
}

/// The message in effect number `part` of the record with its payload, wherever in the record that is. Decodes no other
/// effect. The body and the header values are slices of `record`, not copies.
///
/// # Errors
/// If the record has no such effect, the effect contains no message, the bytes up to its end are no
/// effects, its payload is not in the record, or a newer version wrote it.
pub fn read_message(record: &Bytes, part: u16) -> Result<StoredMessage, DecodeError> {
    let mut stored = read_part(record, part)?;
    if let Payload::Of { part: of, size } = stored.payload {
        let original = read_part(record, of)?;
        if original.payload != Payload::Shared || original.size() != size {
            return Err(DecodeError::NoPayload { part, of });
        }
        copies::take_payload(&mut stored.message, original.message);
    }
    stored.payload = Payload::Own;
    Ok(stored)
}

/// The message in effect number `part` as it is written.
fn read_part(record: &Bytes, part: u16) -> Result<StoredMessage, DecodeError> {
    let mut reader = Reader::new(record);
    for _ in 0..part {
        if reader.next_effect()?.is_none() {
            return Err(DecodeError::NoSuchPart { part });
        }
    }
    match reader.next_effect()? {
        None => Err(DecodeError::NoSuchPart { part }),
        Some((effect::kind::ACCEPTED | effect::kind::COMPACTED, body)) => message::read(body),
        Some(_) => Err(DecodeError::NoMessage { part }),
    }
}

/// The block of that ledger that begins with the event `first`, out of the record that holds it, without decoding the other
/// effects. The payloads are slices of `record`, not copies.
///
/// # Errors
/// If the record has no such block, or a newer version wrote it.
pub fn read_events(
    record: &Bytes,
    ledger: LedgerId,
    first: SequenceId,
) -> Result<EventBlock, DecodeError> {
    let mut reader = Reader::new(record);
    while let Some((kind, mut body)) = reader.next_effect()? {
        if matches!(
            kind,
            effect::kind::EVENTS_APPENDED | effect::kind::EVENTS_COMPACTED
        ) {
            let place = events::read_place(&mut body.again())?;
            if place == (ledger, first) {
                return events::read_block(&mut body);
            }
        }
    }
    Err(DecodeError::NoEvents { first: first.0 })
}

/// Why a record's payload cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The record contains something that this version does not know and must not ignore.
    #[error(
        "effect {effect} of the record has {what} {number}, which this version does not know: \
         it was written by a newer one"
    )]
    NewerFormat {
        /// The index of the effect in the record.
        effect: usize,
        /// What is unknown.
        what: &'static str,
        number: u8,
    },
    /// The bytes do not follow the format, although the record's checksum verified.
    #[error("effect {effect} of the record is malformed at byte {at}: {what}")]
    Malformed {
        /// The index of the effect in the record.
        effect: usize,
        /// The offset in the payload.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The record has fewer effects.
    #[error("the record has no effect {part}")]
    NoSuchPart { part: u16 },
    /// The effect carries no message.
    #[error("effect {part} of the record carries no message")]
    NoMessage { part: u16 },
    /// The payload of the message is that of another one, which is not in the record.
    #[error(
        "the message in effect {part} of the record has the payload of effect {of}, which has none for it"
    )]
    NoPayload { part: u16, of: u16 },
    /// The record has no events that begin there.
    #[error("the record has no events from {first} on")]
    NoEvents { first: u64 },
}

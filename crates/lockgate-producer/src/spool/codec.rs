//! The bytes of a spool's records.
//!
//! Numbers are big-endian. A record of the log is one of
//!
//! ```text
//! checkpoint   1 u8, format u8, name: length u8, bytes; floor u64; count u32, each: from u64, to u64
//! message      2 u8, format u8, opening u64, lane u8, number u64, expires u64 (0: never), fields: u16,
//!              each field that is there, in the order of its bit
//! void         3 u8: a record that was over before it was written
//! ```
//!
//! Fields of a message, by their bit: 0 body (length u32, bytes), 1 key, 2 group, 3 unique id, 4 content type, 5 trace
//! context (each: length u32, bytes), 6 due u64, 7 time to live u64, 8 level u8, 9 priority u8, 10 headers (count u32,
//! each: name, kind and value with a length u32).

use bytes::{Buf as _, BufMut as _, Bytes};
use lockgate_core::{
    Key, Level, Message, ProducerName, UniqueId, WallTime,
    fields::{bytes, headers, headers_len, put, put_headers, text},
};

use super::done::Done;

const CHECKPOINT: u8 = 1;
const MESSAGE: u8 = 2;
const VOID: u8 = 3;
const FORMAT: u8 = 1;

/// Which record of the producer a message is: see [`ProducerMark`](lockgate_core::ProducerMark).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) opening: u64,
    pub(crate) lane: u8,
    pub(crate) number: u64,
}

/// A message in a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spooled {
    pub(crate) label: Label,
    pub(crate) expires: Option<WallTime>,
    pub(crate) message: Message,
}

/// What a spool must know to go on, beside the records themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) name: ProducerName,
    pub(crate) done: Done,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Checkpoint(Checkpoint),
    Message(Spooled),
    Void,
}

pub(crate) fn encode_void(to: &mut Vec<u8>) {
    to.put_u8(VOID);
}

/// Of the stretches that are over, those at the end are left out that would make it longer than `bytes_max`: what is in
/// them is sent again after a crash.
pub(crate) fn encode_checkpoint(checkpoint: &Checkpoint, bytes_max: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.put_slice(&[CHECKPOINT, FORMAT]);
    let name = checkpoint.name.as_str().as_bytes();
    // A name has at most 128 bytes.
    to.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
    to.put_slice(name);
    to.put_u64(checkpoint.done.floor());
    let most = bytes_max.saturating_sub(to.len() - start + 4) / 16;
    let above: Vec<_> = checkpoint.done.above().take(most).collect();
    to.put_u32(u32::try_from(above.len()).unwrap_or(u32::MAX));
    for (from, until) in above {
        to.put_u64(from);
        to.put_u64(until);
    }
}

pub(crate) fn encode_message(
    label: Label,
    expires: Option<WallTime>,
    message: &Message,
    to: &mut Vec<u8>,
) {
    to.put_slice(&[MESSAGE, FORMAT]);
    to.put_u64(label.opening);
    to.put_u8(label.lane);
    to.put_u64(label.number);
    to.put_u64(expires.map_or(0, |at| at.0.max(1)));
    let texts = texts(message);
    let mut fields = 0_u16;
    let mut set = |bit: u16, is_there: bool| fields |= u16::from(is_there) << bit;
    set(0, true);
    for (bit, text) in (1..).zip(&texts) {
        set(bit, text.is_some());
    }
    set(6, message.due.is_some());
    set(7, message.time_to_live.is_some());
    set(8, message.level.is_some());
    set(9, message.priority != 0);
    set(10, !message.headers.is_empty());
    to.put_u16(fields);
    put(to, &message.body);
    for text in texts.into_iter().flatten() {
        put(to, text.as_bytes());
    }
    if let Some(due) = message.due {
        to.put_u64(due.0);
    }
    if let Some(time_to_live) = message.time_to_live {
        to.put_u64(time_to_live);
    }
    if let Some(level) = message.level {
        to.put_u8(level_number(level));
    }
    if message.priority != 0 {
        to.put_u8(message.priority);
    }
    if !message.headers.is_empty() {
        put_headers(to, &message.headers);
    }
}

/// How many bytes [`encode_message`] makes of it, at most.
pub(crate) fn message_len(message: &Message) -> usize {
    let texts = texts(message).into_iter().flatten();
    let texts: usize = texts.map(|text| 4 + text.len()).sum();
    FIXED + message.body.len() + texts + headers_len(&message.headers)
}

/// Bytes of a message without what it may have any number of.
const FIXED: usize = 2 + 17 + 8 + 2 + 4 + 8 + 8 + 1 + 1 + 4;

fn texts(message: &Message) -> [Option<&str>; 5] {
    [
        message.key.as_ref().map(Key::as_str),
        message.group.as_ref().map(Key::as_str),
        message.unique_id.as_ref().map(UniqueId::as_str),
        message.content_type.as_deref(),
        message.trace_context.as_deref(),
    ]
}

fn level_number(level: Level) -> u8 {
    match level {
        Level::Memory => 0,
        Level::Process => 1,
        Level::Disk => 2,
        Level::Replicated => 3,
    }
}

/// Whether a newer version wrote these bytes, which this one cannot read.
pub(crate) fn is_newer(bytes: &[u8]) -> bool {
    matches!(bytes, [CHECKPOINT | MESSAGE, format, ..] if *format > FORMAT)
}

/// What these bytes say. `None`: they are no record of a spool.
pub(crate) fn decode(mut from: Bytes) -> Option<Decoded> {
    let from = &mut from;
    let kind = from.try_get_u8().ok()?;
    if kind == VOID {
        return from.is_empty().then_some(Decoded::Void);
    }
    if from.try_get_u8().ok()? != FORMAT {
        return None;
    }
    let decoded = match kind {
        CHECKPOINT => Decoded::Checkpoint(checkpoint(from)?),
        MESSAGE => Decoded::Message(message(from)?),
        _ => return None,
    };
    from.is_empty().then_some(decoded)
}

fn checkpoint(from: &mut Bytes) -> Option<Checkpoint> {
    let len = from.try_get_u8().ok()?.into();
    let name = (len <= from.len()).then(|| from.split_to(len))?;
    let name = ProducerName::new(str::from_utf8(&name).ok()?).ok()?;
    let mut done = Done::below(from.try_get_u64().ok()?);
    let mut end = done.floor();
    for _ in 0..from.try_get_u32().ok()? {
        let (first, behind) = (from.try_get_u64().ok()?, from.try_get_u64().ok()?);
        if first <= end || behind <= first {
            return None;
        }
        done.insert_all(first, behind, true);
        end = behind;
    }
    Some(Checkpoint { name, done })
}

fn message(from: &mut Bytes) -> Option<Spooled> {
    let label = Label {
        opening: from.try_get_u64().ok()?,
        lane: from.try_get_u8().ok()?,
        number: from.try_get_u64().ok()?,
    };
    let expires = Some(from.try_get_u64().ok()?).filter(|at| *at > 0);
    let fields = from.try_get_u16().ok()?;
    if fields >> 11 != 0 {
        return None;
    }
    let has = |bit: u16| fields >> bit & 1 == 1;
    let mut message = Message::default();
    if has(0) {
        message.body = bytes(from)?;
    }
    if has(1) {
        message.key = Some(Key::new(&text(from)?).ok()?);
    }
    if has(2) {
        message.group = Some(Key::new(&text(from)?).ok()?);
    }
    if has(3) {
        message.unique_id = Some(UniqueId::new(&text(from)?).ok()?);
    }
    if has(4) {
        message.content_type = Some(text(from)?);
    }
    if has(5) {
        message.trace_context = Some(text(from)?);
    }
    if has(6) {
        message.due = Some(WallTime(from.try_get_u64().ok()?));
    }
    if has(7) {
        message.time_to_live = Some(from.try_get_u64().ok()?);
    }
    if has(8) {
        let levels = [
            Level::Memory,
            Level::Process,
            Level::Disk,
            Level::Replicated,
        ];
        message.level = Some(*levels.get(usize::from(from.try_get_u8().ok()?))?);
    }
    if has(9) {
        message.priority = from.try_get_u8().ok()?;
    }
    if has(10) {
        message.headers = headers(from)?;
    }
    Some(Spooled {
        label,
        expires: expires.map(WallTime),
        message,
    })
}

/// What a fuzzer gives its bytes to: what is decoded and encoded again is decoded to the same.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let decoded = decode(Bytes::copy_from_slice(bytes)).ok_or("no record")?;
    let mut again = Vec::new();
    match &decoded {
        Decoded::Checkpoint(it) => encode_checkpoint(it, usize::MAX, &mut again),
        Decoded::Message(it) => {
            encode_message(it.label, it.expires, &it.message, &mut again);
            assert!(
                again.len() <= message_len(&it.message),
                "longer than it says"
            );
        }
        Decoded::Void => encode_void(&mut again),
    }
    assert_eq!(decode(again.into()), Some(decoded), "encoded again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockgate_core::Header;

    use super::*;

    fn full() -> Message {
        let header = |name: &str, value: &'static [u8]| Header {
            name: name.into(),
            kind: "String".into(),
            value: Bytes::from_static(value),
        };
        Message {
            body: Bytes::from_static(b"body"),
            headers: vec![header("a", b"1"), header("b", b"")],
            key: Some(Key::new("k").unwrap()),
            group: Some(Key::new("g").unwrap()),
            unique_id: Some(UniqueId::new("u").unwrap()),
            due: Some(WallTime(7)),
            time_to_live: Some(9),
            content_type: Some("text/plain".into()),
            trace_context: Some("00-1-2-01".into()),
            level: Some(Level::Disk),
            priority: 3,
            ..Message::default()
        }
    }

    #[test]
    fn every_part_of_a_message_comes_back() {
        let label = Label {
            opening: 5,
            lane: 15,
            number: u64::MAX,
        };
        for (message, expires) in [(full(), Some(WallTime(1))), (Message::default(), None)] {
            let mut bytes = Vec::new();
            encode_message(label, expires, &message, &mut bytes);
            assert!(bytes.len() <= message_len(&message));
            let decoded = decode(bytes.clone().into());
            let spooled = Spooled {
                label,
                expires,
                message,
            };
            assert_eq!(decoded, Some(Decoded::Message(spooled)));
            for len in 0..bytes.len() {
                assert_eq!(decode(bytes[..len].to_vec().into()), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn checkpoints_come_back_and_others_are_no_record() {
        let mut done = Done::below(4);
        done.insert_all(6, 9, true);
        done.insert(20);
        let checkpoint = Checkpoint {
            name: ProducerName::new("billing").unwrap(),
            done,
        };
        let mut bytes = Vec::new();
        encode_checkpoint(&checkpoint, usize::MAX, &mut bytes);
        assert_eq!(
            decode(bytes.clone().into()),
            Some(Decoded::Checkpoint(checkpoint))
        );
        for wrong in [&b""[..], &[9, 1], &[2, 2], &[VOID, 0]] {
            assert_eq!(decode(Bytes::copy_from_slice(wrong)), None, "{wrong:?}");
        }
        // A stretch that touches the floor.
        let at = bytes.len() - 32;
        bytes[at..at + 8].copy_from_slice(&4_u64.to_be_bytes());
        assert_eq!(decode(bytes.into()), None);
    }
}

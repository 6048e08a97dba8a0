//! Packs: many messages in the body of one, so that small ones cost a queue as little as a large one does.
//!
//! A producer that packs sends them, and a worker takes them apart by itself. Whoever receives without one knows a pack
//! by its [content type](CONTENT_TYPE), and calls [`unpack`].
//!
//! # The body
//!
//! Numbers are big-endian.
//!
//! ```text
//! header    "LGPK", version u8 = 1, codec u8 (0: as it is, 1: an LZ4 block), count u32, length u32
//! rest      `length` bytes of messages, as the codec says
//! message   fields u8 (bit 0: content type, 1: trace context, 2: headers), body,
//!           and of those that are there: content type, trace context, headers: count u32 (64 at most), each: name, kind,
//!           value
//! ```
//!
//! A body, a text or a value is its length, a u32, and its bytes. Key, group, priority and level are those of the message
//! that carries the pack.
//!
//! ```
//! use lockgate_core::{Message, pack};
//!
//! # fn main() -> Result<(), pack::PackError> {
//! let clicks = [Message::new("one"), Message::new("two")];
//! let packed = pack::pack(&clicks, true);
//! assert!(pack::is_pack(&packed));
//! assert_eq!(pack::unpack(&packed)?, clicks);
//! # Ok(())
//! # }
//! ```

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::{
    Message,
    fields::{bytes, headers, headers_len, put, put_headers, text},
};

/// The content type of a pack.
pub const CONTENT_TYPE: &str = "application/vnd.lockgate.pack";

/// The most messages of a pack.
pub const MESSAGES_MAX: usize = 4_096;

/// The most headers of a message in a pack. Each takes more memory than bytes, and a pack can have millions of bytes.
pub const HEADERS_MAX: usize = 64;

/// The most bytes of a pack's messages, before they are compressed.
pub const BYTES_MAX: usize = 16 << 20;

/// An LZ4 block cannot have more bytes of content for each of its own, so no short body makes anybody allocate much.
const RATIO_MAX: usize = 255;

/// Compressing fewer bytes is not worth the time.
const COMPRESS_MIN: usize = 128;

const MAGIC: &[u8; 4] = b"LGPK";
const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const LZ4: u8 = 1;
/// Bytes of a pack beside those of its messages.
pub const HEADER_BYTES: usize = 14;

/// Why a body is no pack that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// It does not begin as a pack does.
    #[error("the content type says {CONTENT_TYPE}, and the body is no pack")]
    NoPack,
    /// A later version of Lockgate made it.
    #[error(
        "the pack has version {version} and codec {codec}; this program reads version {VERSION} and codecs 0 and 1"
    )]
    Newer {
        /// Its version.
        version: u8,
        /// Its codec.
        codec: u8,
    },
    /// It says that it has more than a pack may have.
    #[error(
        "the pack says that it has {count} messages and {bytes} bytes: more than allowed, or than its body can hold"
    )]
    TooLarge {
        /// How many messages.
        count: u32,
        /// How many bytes of them.
        bytes: u32,
    },
    /// Its body is not what it says.
    #[error("the pack is damaged: {what}")]
    Damaged {
        /// What does not fit.
        what: &'static str,
    },
}

/// Whether the message says that it is a pack.
#[must_use]
pub fn is_pack(message: &Message) -> bool {
    message.content_type.as_deref() == Some(CONTENT_TYPE)
}

/// Whether the message can be in a pack: the queue does not have to know it by itself. It has no unique id, no due time
/// and no time to live, at most [`HEADERS_MAX`] headers, and is no pack.
#[must_use]
pub fn is_packable(message: &Message) -> bool {
    message.unique_id.is_none()
        && message.due.is_none()
        && message.time_to_live.is_none()
        && message.headers.len() <= HEADERS_MAX
        && !is_pack(message)
}

/// Whether both can be in one pack: the queue treats them alike.
#[must_use]
pub fn go_together(one: &Message, other: &Message) -> bool {
    one.key == other.key
        && one.group == other.group
        && one.priority == other.priority
        && one.level == other.level
}

/// How many bytes the message takes in a pack.
#[must_use]
pub fn packed_len(message: &Message) -> usize {
    let texts = [&message.content_type, &message.trace_context];
    let texts: usize = texts.into_iter().flatten().map(|text| 4 + text.len()).sum();
    let headers = headers_len(&message.headers);
    let headers = headers + usize::from(headers > 0) * 4;
    1 + 4 + message.body.len() + texts + headers
}

/// Packs messages of which each is [packable](is_packable) and all [go together](go_together): 1 to [`MESSAGES_MAX`], of
/// at most [`BYTES_MAX`] bytes by [`packed_len`]. If `compress`, and it saves a tenth or more, they are compressed.
///
/// The pack has the key, group, priority, level, unique id and producer of the last.
///
/// # Panics
/// If there are no messages, or too many, or too many bytes of them.
#[must_use]
pub fn pack(messages: &[Message], compress: bool) -> Message {
    let last = messages.last().expect("a pack has a message");
    let len: usize = messages.iter().map(packed_len).sum();
    assert!(
        messages.len() <= MESSAGES_MAX && len <= BYTES_MAX,
        "a pack has {MESSAGES_MAX} messages and {BYTES_MAX} bytes at most"
    );
    let mut body = Vec::with_capacity(HEADER_BYTES + len);
    put_header(&mut body, PLAIN, messages.len(), len);
    for message in messages {
        put_message(&mut body, message);
    }
    if compress && len >= COMPRESS_MIN {
        let block = lz4_flex::block::compress(&body[HEADER_BYTES..]);
        if block.len() <= len - len / 10 {
            body.clear();
            put_header(&mut body, LZ4, messages.len(), len);
            body.put_slice(&block);
            body.shrink_to_fit();
        }
    }
    Message {
        body: body.into(),
        content_type: Some(CONTENT_TYPE.into()),
        key: last.key.clone(),
        group: last.group.clone(),
        unique_id: last.unique_id.clone(),
        level: last.level,
        priority: last.priority,
        producer: last.producer.clone(),
        ..Message::default()
    }
}

/// The messages of a pack, in their order, with the key, group, priority and level of the pack.
///
/// # Errors
/// If the body is none that [`pack`] makes. What it says of its sizes is checked before anything is allocated for it.
pub fn unpack(pack: &Message) -> Result<Vec<Message>, PackError> {
    let mut from = pack.body.clone();
    if from.len() < HEADER_BYTES || !from.starts_with(MAGIC) {
        return Err(PackError::NoPack);
    }
    from.advance(MAGIC.len());
    let (version, codec) = (from.get_u8(), from.get_u8());
    if version != VERSION || codec > LZ4 {
        return Err(PackError::Newer { version, codec });
    }
    let (count, bytes) = (from.get_u32(), from.get_u32());
    let (messages, len) = (count as usize, bytes as usize);
    let len_max = match codec {
        PLAIN => from.len(),
        _ => from.len().saturating_mul(RATIO_MAX),
    };
    if messages == 0 || messages > MESSAGES_MAX || len > BYTES_MAX.min(len_max) {
        return Err(PackError::TooLarge { count, bytes });
    }
    let damaged = |what| PackError::Damaged { what };
    if codec == LZ4 {
        let plain = lz4_flex::block::decompress(&from, len);
        from = plain
            .map_err(|_| damaged("it cannot be decompressed"))?
            .into();
    }
    if from.len() != len {
        return Err(damaged("it has another length than it says"));
    }
    let all = (0..messages).map(|_| message(&mut from, pack));
    let all: Option<Vec<_>> = all.collect();
    let all = all.ok_or_else(|| {
        damaged("a message does not end, has too many headers, or a text that is none")
    })?;
    match from.is_empty() {
        true => Ok(all),
        false => Err(damaged("there is something behind its last message")),
    }
}

fn put_header(to: &mut Vec<u8>, codec: u8, count: usize, len: usize) {
    to.put_slice(MAGIC);
    to.put_slice(&[VERSION, codec]);
    // Both are below what a pack has at most.
    to.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
    to.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

fn put_message(to: &mut Vec<u8>, message: &Message) {
    let texts = [&message.content_type, &message.trace_context];
    let bits = texts.map(Option::is_some).into_iter();
    let bits = bits.chain([!message.headers.is_empty()]);
    to.put_u8((0..).zip(bits).map(|(bit, set)| u8::from(set) << bit).sum());
    put(to, &message.body);
    for text in texts.into_iter().flatten() {
        put(to, text.as_bytes());
    }
    if !message.headers.is_empty() {
        put_headers(to, &message.headers);
    }
}

fn message(from: &mut Bytes, pack: &Message) -> Option<Message> {
    let fields = from.try_get_u8().ok()?;
    if fields >> 3 != 0 {
        return None;
    }
    let has = |bit: u8| fields >> bit & 1 == 1;
    let body = bytes(from)?;
    let content_type = if has(0) { Some(text(from)?) } else { None };
    let trace_context = if has(1) { Some(text(from)?) } else { None };
    // Before anything is allocated for them.
    let is_too_many = has(2) && from.clone().try_get_u32().ok()? as usize > HEADERS_MAX;
    if is_too_many {
        return None;
    }
    let headers = if has(2) { headers(from)? } else { Vec::new() };
    Some(Message {
        body,
        headers,
        content_type,
        trace_context,
        key: pack.key.clone(),
        group: pack.group.clone(),
        level: pack.level,
        priority: pack.priority,
        ..Message::default()
    })
}

/// What a fuzzer gives its bytes to: what is unpacked and packed again is unpacked to the same.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let packed = Message::new(Bytes::copy_from_slice(bytes));
    let messages = unpack(&packed).map_err(|error| error.to_string())?;
    assert_eq!(unpack(&pack(&messages, true)), Ok(messages), "packed again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use std::sync::Arc;

    use super::*;
    use crate::{Header, Key, Level};

    fn texts() -> impl Strategy<Value = Option<Arc<str>>> {
        option::of(".{0,9}".prop_map(Arc::from))
    }

    prop_compose! {
        fn messages()(
            body in vec(any::<u8>(), 0..40),
            repeat in 1..60_usize,
            content_type in texts(),
            trace_context in texts(),
            headers in vec((".{0,5}", ".{0,5}", vec(any::<u8>(), 0..5)), 0..3),
        ) -> Message {
            let headers = headers.into_iter().map(|(name, kind, value)| Header {
                name: name.into(),
                kind: kind.into(),
                value: value.into(),
            });
            Message {
                body: body.repeat(repeat).into(),
                content_type,
                trace_context,
                headers: headers.collect(),
                ..Message::default()
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(
            mut messages in vec(messages(), 1..20),
            compress: bool,
            key in option::of("[a-z]{1,5}"),
        ) {
            for message in &mut messages {
                message.key = key.as_deref().map(|key| Key::new(key).unwrap());
                message.priority = 3;
                message.level = Some(Level::Disk);
                prop_assume!(is_packable(message));
            }
            let packed = pack(&messages, compress);
            let len: usize = messages.iter().map(packed_len).sum();
            prop_assert!(packed.body.len() <= HEADER_BYTES + len);
            prop_assert_eq!(unpack(&packed).unwrap(), messages);
        }

        /// Also what is cut or changed is read without a panic, and is no other number of messages.
        #[test]
        fn damage_is_told(
            messages in vec(messages(), 1..9),
            compress: bool,
            at: prop::sample::Index,
            bit in 0..8_u32,
            cut: bool,
        ) {
            let mut packed = pack(&messages, compress);
            let mut body = packed.body.to_vec();
            let at = at.index(body.len());
            if cut {
                body.truncate(at);
            } else {
                body[at] ^= 1 << bit;
            }
            packed.body = body.into();
            if let Ok(other) = unpack(&packed) {
                prop_assert!(!cut && other.len() == messages.len());
            }
        }
    }

    #[test]
    fn sizes_are_checked_before_anything_is_allocated() {
        let body = |codec: u8, count: u32, len: u32, rest: &[u8]| {
            let mut body = Vec::new();
            body.put_slice(MAGIC);
            body.put_slice(&[VERSION, codec]);
            body.put_u32(count);
            body.put_u32(len);
            body.put_slice(rest);
            unpack(&Message::new(body))
        };
        let too_large = |count, bytes| Err(PackError::TooLarge { count, bytes });
        assert_eq!(body(LZ4, 1, 256, b"1"), too_large(1, 256));
        assert_eq!(body(PLAIN, 1, 2, b"1"), too_large(1, 2));
        assert_eq!(body(PLAIN, 0, 0, b""), too_large(0, 0));
        assert_eq!(body(PLAIN, 4_097, 1, b"1"), too_large(4_097, 1));
        let most = u32::try_from(BYTES_MAX).unwrap();
        assert_eq!(body(LZ4, 1, most + 1, &[0; 70_000]), too_large(1, most + 1));
        let damaged = |result| matches!(result, Err(PackError::Damaged { .. }));
        assert!(damaged(body(LZ4, 1, 255, b"1")));
        // More messages than there are bytes for, and bytes behind the last one.
        assert!(damaged(body(PLAIN, 2, 5, &[0; 5])));
        assert!(damaged(body(PLAIN, 1, 6, &[0; 6])));
        assert!(damaged(body(PLAIN, 1, 5, &[8, 0, 0, 0, 0])));
        let header = Header {
            name: "".into(),
            kind: "".into(),
            value: Bytes::new(),
        };
        let with_headers = |count| {
            let mut message = Message::new("");
            message.headers = vec![header.clone(); count];
            message
        };
        let (most, more) = (with_headers(HEADERS_MAX), with_headers(HEADERS_MAX + 1));
        assert!(is_packable(&most) && !is_packable(&more));
        assert!(unpack(&pack(&[most], true)).is_ok());
        assert!(damaged(unpack(&pack(&[more], true))));
        let newer = Err(PackError::Newer {
            version: VERSION,
            codec: 2,
        });
        assert_eq!(body(2, 1, 1, b"1"), newer);
        assert_eq!(unpack(&Message::new("LGPK")), Err(PackError::NoPack));
    }

    #[test]
    fn what_repeats_is_compressed_and_what_does_not_is_left() {
        let small = vec![Message::new(&b"click on the same page"[..]); 200];
        let packed = pack(&small, true);
        assert!(packed.body.len() < 200, "{}", packed.body.len());
        let mut state = 1_u64;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            // Xorshift (Marsaglia).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        })
        .take(4_000)
        .collect();
        let packed = pack(&[Message::new(random)], true);
        assert_eq!(packed.body.len(), HEADER_BYTES + 5 + 4_000);
    }
}

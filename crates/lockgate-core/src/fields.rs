//! Texts, bytes and headers of messages as packs and spools have them: each a length, a big-endian u32, and its bytes.
//! Readers return `None` where the bytes are too short or no text.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::Header;

/// Writes bytes, fewer than 4 GiB.
pub fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    to.put_slice(bytes);
}

/// Writes how many headers there are, and each of them.
pub fn put_headers(to: &mut Vec<u8>, headers: &[Header]) {
    to.put_u32(u32::try_from(headers.len()).unwrap_or(u32::MAX));
    for header in headers {
        put(to, header.name.as_bytes());
        put(to, header.kind.as_bytes());
        put(to, &header.value);
    }
}

/// How many bytes [`put_headers`] makes of them, behind their number.
#[must_use]
pub fn headers_len(headers: &[Header]) -> usize {
    let lens = headers.iter();
    lens.map(|it| 12 + it.name.len() + it.kind.len() + it.value.len())
        .sum()
}

/// Reads bytes, which share memory with what they are read from.
pub fn bytes(from: &mut Bytes) -> Option<Bytes> {
    let len = from.try_get_u32().ok()? as usize;
    (len <= from.len()).then(|| from.split_to(len))
}

/// Reads a text.
pub fn text(from: &mut Bytes) -> Option<Arc<str>> {
    let bytes = bytes(from)?;
    Some(str::from_utf8(&bytes).ok()?.into())
}

/// Reads what [`put_headers`] wrote.
pub fn headers(from: &mut Bytes) -> Option<Vec<Header>> {
    let count = from.try_get_u32().ok()?;
    let headers = (0..count).map(|_| {
        Some(Header {
            name: text(from)?,
            kind: text(from)?,
            value: bytes(from)?,
        })
    });
    // An iterator of options has no lower bound, so nothing is reserved for a count that is a lie.
    headers.collect()
}

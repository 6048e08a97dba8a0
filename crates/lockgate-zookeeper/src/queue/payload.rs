//! What is in a node of a queue: one item, or several that Curator's `putMulti` bundles.
//!
//! ```text
//! 00 01 00 01                  version
//! 01 LENGTH:i32 BYTES          an item, big-endian; any number of them
//! 02                           the end; what is behind it is nothing
//! ```

use std::fmt;

const VERSION: [u8; 4] = [0, 1, 0, 1];
const ITEM: u8 = 1;
const END: u8 = 2;

/// What ZooKeeper takes in one request, unless it is told otherwise (`jute.maxbuffer`), less what else is in it.
pub const LONGEST: usize = 1_048_575 - 1_024;

/// Bytes that Curator has not written. Curator deletes such a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// They do not begin with the version.
    Version,
    /// They end in the middle.
    Cut,
    /// That is neither an item nor the end.
    Code(u8),
    /// An item of a negative length.
    Length(i32),
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str("the node does not begin with 00 01 00 01"),
            Self::Cut => f.write_str("the node ends in the middle of an item"),
            Self::Code(code) => write!(
                f,
                "the node has {code:#04x} where an item begins or all end"
            ),
            Self::Length(length) => write!(f, "the node has an item of {length} bytes"),
        }
    }
}

impl std::error::Error for Damaged {}

/// The bytes of a node with these items. `None`: ZooKeeper does not take so many.
#[must_use]
pub fn encode<T: AsRef<[u8]>>(items: &[T]) -> Option<Vec<u8>> {
    let mut bytes = VERSION.to_vec();
    for item in items {
        let item = item.as_ref();
        if item.len() > LONGEST {
            return None;
        }
        bytes.push(ITEM);
        bytes.extend(i32::try_from(item.len()).ok()?.to_be_bytes());
        bytes.extend(item);
        if bytes.len() > LONGEST {
            return None;
        }
    }
    bytes.push(END);
    Some(bytes)
}

/// The items of a node.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<Vec<&[u8]>, Damaged> {
    let mut rest = bytes.strip_prefix(&VERSION).ok_or(Damaged::Version)?;
    let mut items = Vec::new();
    loop {
        let (code, behind) = rest.split_first().ok_or(Damaged::Cut)?;
        match *code {
            END => return Ok(items),
            ITEM => {}
            other => return Err(Damaged::Code(other)),
        }
        let (length, behind) = behind.split_first_chunk().ok_or(Damaged::Cut)?;
        let length = i32::from_be_bytes(*length);
        let length = usize::try_from(length).map_err(|_| Damaged::Length(length))?;
        let (item, behind) = behind.split_at_checked(length).ok_or(Damaged::Cut)?;
        items.push(item);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by Curator 5.4.0.
    const GOLDEN: [(&[&[u8]], &[u8]); 4] = [
        (&[b"order-3"], b"\0\x01\0\x01\x01\0\0\0\x07order-3\x02"),
        (
            &[b"x", b"", b"yz"],
            b"\0\x01\0\x01\x01\0\0\0\x01x\x01\0\0\0\0\x01\0\0\0\x02yz\x02",
        ),
        (
            &[b"small-epoch"],
            b"\0\x01\0\x01\x01\0\0\0\x0bsmall-epoch\x02",
        ),
        (&[], b"\0\x01\0\x01\x02"),
    ];

    #[test]
    fn bytes_are_those_of_curator() {
        for (items, bytes) in GOLDEN {
            assert_eq!(encode(items).unwrap(), bytes);
            assert_eq!(decode(bytes).unwrap(), items);
            let longer = [bytes, b"behind"].concat();
            assert_eq!(decode(&longer).unwrap(), items);
            for cut in 0..bytes.len() {
                let told = decode(&bytes[..cut]).unwrap_err();
                let expected = if cut < 4 {
                    Damaged::Version
                } else {
                    Damaged::Cut
                };
                assert_eq!(told, expected);
            }
        }
    }

    #[test]
    fn what_curator_has_not_written_is_told() {
        for (bytes, told) in [
            (&b"\0\x01\0\x02\x02"[..], Damaged::Version),
            (b"\0\x01\0\x01\x03", Damaged::Code(3)),
            (b"\0\x01\0\x01\x01\xff\xff\xff\xff\x02", Damaged::Length(-1)),
            (b"\0\x01\0\x01\x01\x7f\xff\xff\xff\x02", Damaged::Cut),
        ] {
            assert_eq!(decode(bytes), Err(told));
        }
        assert_eq!(encode(&[vec![0; LONGEST]]), None);
        let most = vec![0; LONGEST / 2];
        assert!(encode(&[&most]).is_some());
        assert_eq!(encode(&[&most, &most]), None);
    }
}

//! Keys and values in the tree.
//!
//! | key | value |
//! |---|---|
//! | `0` | the format, one byte, and 16 bytes that say whose ids these are, if that was said |
//! | `0`, space | up to where the space is complete, and 1 if it is being removed, else 0 |
//! | `1`, space, id | the number for which the id stands |
//!
//! Numbers in keys are big-endian, so that ids of a space are neighbours; in values they are little-endian.

use std::ops::Range;

/// The format of keys and values.
pub(crate) const FORMAT: u8 = 1;

/// The key of the format. No key is before it.
pub(crate) const FORMAT_KEY: [u8; 1] = [SPACES];

const SPACES: u8 = 0;
const IDS: u8 = 1;

/// What is kept of a space besides its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceRow {
    pub(crate) up_to: u64,
    pub(crate) removing: bool,
}

impl SpaceRow {
    pub(crate) fn encode(self) -> [u8; 9] {
        let mut value = [u8::from(self.removing); 9];
        value[..8].copy_from_slice(&self.up_to.to_le_bytes());
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (up_to, [removing]) = value.split_first_chunk::<8>()? else {
            return None;
        };
        (*removing <= 1).then_some(Self {
            up_to: u64::from_le_bytes(*up_to),
            removing: *removing == 1,
        })
    }
}

pub(crate) fn space_key(space: u64) -> [u8; 9] {
    let mut key = [SPACES; 9];
    key[1..].copy_from_slice(&space.to_be_bytes());
    key
}

pub(crate) fn space_of(key: &[u8]) -> Option<u64> {
    match key.split_first()? {
        (&SPACES, space) => Some(u64::from_be_bytes(space.try_into().ok()?)),
        _ => None,
    }
}

pub(crate) fn id_key(space: u64, id: u128) -> [u8; 25] {
    let mut key = [IDS; 25];
    key[1..9].copy_from_slice(&space.to_be_bytes());
    key[9..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(crate) fn id_of(key: &[u8]) -> Option<(u64, u128)> {
    let (&IDS, rest) = key.split_first()? else {
        return None;
    };
    let (space, id) = rest.split_first_chunk::<8>()?;
    let id = id.try_into().ok()?;
    Some((u64::from_be_bytes(*space), u128::from_be_bytes(id)))
}

/// The keys of spaces.
pub(crate) fn all_spaces() -> Range<&'static [u8]> {
    &[SPACES, 0]..&[IDS]
}

/// The keys of ids.
pub(crate) fn all_ids() -> Range<&'static [u8]> {
    &[IDS]..&[IDS + 1]
}

pub(crate) fn number(value: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(value.try_into().ok()?))
}

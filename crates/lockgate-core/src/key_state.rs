//! The state of a key: a small versioned value of a keyed queue that comes with the leases of the key's messages.
//!
//! Who holds a lease of one of the key's messages may write it, in the transaction that settles the lease. A write
//! names the version that it replaces, as one of a [record](crate::Record) does.

use bytes::Bytes;

use crate::{RecordVersion, WallTime};

/// The state of a key as it was at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Its value, of at most [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX).
    pub value: Bytes,
    /// The number of the value: the next one with each write. The first after a drop is above all that were
    /// dropped in the queue, so no version of a key comes twice.
    pub version: RecordVersion,
    /// When it was written.
    pub written: WallTime,
}

/// A write of a key's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStateWrite {
    /// What it replaces.
    pub replaces: Replaces,
    /// The new value, of at most [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX). `None`: the key has no state
    /// any more.
    pub value: Option<Bytes>,
}

/// Which state of a key a write replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// The one with that version. `None`: there must be none.
    Version(Option<RecordVersion>),
    /// Whatever is there: what somebody else has written meanwhile is lost.
    Any,
}

impl Replaces {
    /// Whether it replaces a state of that version; `None`: there is none.
    #[must_use]
    pub fn takes(self, version: Option<RecordVersion>) -> bool {
        match self {
            Self::Version(replaced) => replaced == version,
            Self::Any => true,
        }
    }
}

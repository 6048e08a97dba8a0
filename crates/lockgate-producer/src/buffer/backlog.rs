//! What earlier openings of the spool have left, beside what comes now.
//!
//! Records are in one of two *streams*. Each has its own order, lanes and place on disk, so one waits for none of the
//! other. The backlog has what earlier openings have left, and what comes now of keys that have records there; all else
//! is live. A key is in one stream at a time: when nothing of it is left in the backlog, it is live, and stays so.
//!
//! At a sink that knows producers, the live records and those that join the backlog have openings of their own. So the
//! marks of neither stream pass those of the other.

use lockgate_core::{Key, Millis};

use super::lanes::key_hash;

/// In which order a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Backlog,
    Live,
}

impl Stream {
    pub(crate) const ALL: [Self; 2] = [Self::Backlog, Self::Live];
}

/// Something of each stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams<X> {
    backlog: X,
    live: X,
}

impl<X> Streams<X> {
    pub(crate) fn new(backlog: X, live: X) -> Self {
        Self { backlog, live }
    }
}

impl<X> std::ops::Index<Stream> for Streams<X> {
    type Output = X;

    fn index(&self, stream: Stream) -> &X {
        match stream {
            Stream::Backlog => &self.backlog,
            Stream::Live => &self.live,
        }
    }
}

impl<X> std::ops::IndexMut<Stream> for Streams<X> {
    fn index_mut(&mut self, stream: Stream) -> &mut X {
        match stream {
            Stream::Backlog => &mut self.backlog,
            Stream::Live => &mut self.live,
        }
    }
}

/// The most and the fewest parts into which keys are divided: a part takes four bytes.
const PARTS_MAX: usize = 1 << 20;
const PARTS_MIN: usize = 1 << 10;

/// Which keys have records in the backlog: how many there are of each part of the keys. Keys that share a part wait for
/// each other's.
///
/// A count is too high where records were given up unread, or may still come to the sink. Then their keys are in the
/// backlog until it ends.
#[derive(Debug)]
pub(crate) struct KeyCounts(Vec<u32>);

impl KeyCounts {
    /// Of the keys with these hashes.
    pub(crate) fn of(hashes: &[u64]) -> Self {
        let parts = hashes.len().saturating_mul(8);
        let mut it = Self(vec![0; parts.clamp(PARTS_MIN, PARTS_MAX)]);
        for hash in hashes {
            it.add(*hash);
        }
        it
    }

    fn add(&mut self, hash: u64) {
        let part = self.part(hash);
        self.0[part] = self.0[part].saturating_add(1);
    }

    pub(super) fn join(&mut self, key: &Key) {
        self.add(key_hash(key));
    }

    pub(super) fn leave(&mut self, key: &Key) {
        let part = self.part(key_hash(key));
        self.0[part] = self.0[part].saturating_sub(1);
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.0[self.part(key_hash(key))] > 0
    }

    fn part(&self, hash: u64) -> usize {
        usize::try_from(hash % self.0.len() as u64).unwrap_or_default()
    }
}

/// How fast what was left comes into memory, and so to the sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Records a second.
    rate: u64,
    /// Nothing comes before.
    at: Millis,
}

impl Pace {
    pub(super) fn new(rate: u32, now: Millis) -> Self {
        Self {
            rate: rate.into(),
            at: now,
        }
    }

    pub(super) fn at(&self) -> Millis {
        self.at
    }

    /// How many records may come now, where so many are in memory that the sink may take. While it takes none, those of one
    /// second come.
    pub(super) fn allows(&self, in_memory: impl FnOnce() -> usize, now: Millis) -> usize {
        if now < self.at {
            return 0;
        }
        let left = self.rate.saturating_sub(in_memory() as u64);
        // Ten times a second, or one by one.
        usize::try_from(left.min(self.rate.div_ceil(10))).unwrap_or(usize::MAX)
    }

    /// So many have come.
    pub(super) fn came(&mut self, count: usize, now: Millis) {
        let took = (count as u64).saturating_mul(1_000).div_ceil(self.rate);
        self.at = now.saturating_add(took);
    }
}

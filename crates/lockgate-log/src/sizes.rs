//! Chooses the sizes of segments and of the reserve by what the log holds.

/// A log is made of smaller segments than this only if its options say so.
const SEGMENT_BYTES_FROM: u32 = 8 << 20;

/// Segments become twice as large in a log that would be made of so many, and half as large in one that is
/// made of so few. Between the two they stay, so that they do not come and go.
const SEGMENTS_MAX: u64 = 128;
const SEGMENTS_MIN: u64 = 48;

/// The reserve is this part of what the log holds, within the bounds of the options.
const RESERVE_PART: u64 = 8;

/// What of the log's options concerns room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) segment_bytes: u32,
    pub(crate) reserve_segments: u32,
    pub(crate) free_bytes_min: u64,
    pub(crate) low_bytes: Option<u64>,
}

impl Limits {
    /// How large the segments of a log are to be that holds or was given so many bytes, if they were so large.
    pub(crate) fn segment_bytes_for(&self, mut now: u32, bytes: u64) -> u32 {
        let largest = self.segment_bytes;
        while now <= largest / 2 && bytes >= SEGMENTS_MAX * u64::from(now) {
            now *= 2;
        }
        while now / 2 >= SEGMENT_BYTES_FROM && bytes < SEGMENTS_MIN * u64::from(now) {
            now /= 2;
        }
        now
    }

    /// How large they are at least.
    pub(crate) fn segment_bytes_min(&self) -> u32 {
        self.segment_bytes_for(self.segment_bytes, 0)
    }

    /// How many segments of this size the reserve of a log is that holds so many bytes: a part of it, and no
    /// less than the number that was chosen of these, no more than that number of the largest.
    pub(crate) fn reserve(&self, segment_bytes: u32, held_bytes: u64) -> usize {
        let least = u64::from(self.reserve_segments);
        let most = least * u64::from(self.segment_bytes / segment_bytes.max(1));
        let part = held_bytes / RESERVE_PART / u64::from(segment_bytes.max(1));
        usize::try_from(part.clamp(least, most.max(least))).unwrap_or(usize::MAX / 4)
    }
}

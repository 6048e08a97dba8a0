//! Chooses the sizes of segments and of the reserve by what the log holds.

/// The smallest segments of a log, unless its options ask for smaller ones.
const SEGMENT_BYTES_FROM: u32 = 8 << 20;

/// Segments double in a log that would have so many of them, and halve in one that would have fewer
/// than [`SEGMENTS_MIN`]. In between they stay, so that sizes do not flicker.
const SEGMENTS_MAX: u64 = 128;
const SEGMENTS_MIN: u64 = 48;

/// The reserve is this part of what the log holds, within the bounds of the options.
const RESERVE_PART: u64 = 8;

/// The options that concern space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) segment_bytes: u32,
    pub(crate) reserve_segments: u32,
    pub(crate) free_bytes_min: u64,
    pub(crate) low_bytes: Option<u64>,
}

impl Limits {
    /// The size of segments for a log that holds, or was given, so many bytes, if its segments have
    /// `now` bytes.
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

    /// The smallest size of segments.
    pub(crate) fn segment_bytes_min(&self) -> u32 {
        self.segment_bytes_for(self.segment_bytes, 0)
    }

    /// The segments of this size in the reserve of a log that holds so many bytes: a part of what
    /// it holds, at least the configured number of this size, at most that number of the largest
    /// size.
    pub(crate) fn reserve(&self, segment_bytes: u32, held_bytes: u64) -> usize {
        let least = u64::from(self.reserve_segments);
        let most = least * u64::from(self.segment_bytes / segment_bytes.max(1));
        let part = held_bytes / RESERVE_PART / u64::from(segment_bytes.max(1));
        usize::try_from(part.clamp(least, most.max(least))).unwrap_or(usize::MAX / 4)
    }
}

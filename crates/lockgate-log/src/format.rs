//! The bytes of a segment file: its header and its records. `docs/internals/format.md` describes
//! the same in prose.
//!
//! To change the format: raise [`VERSION`], keep reading every released version, describe both in
//! `docs/internals/format.md`, and add a folder that the old version wrote to the tests. Fields
//! keep their place, and bytes that lose their meaning are not used again.

use lockgate_core::{Epoch, Position};

/// The format's version.
pub(crate) const VERSION: u32 = 1;

/// The first eight bytes of every segment.
const MAGIC: [u8; 8] = *b"LOCKGATE";

/// Bytes of a segment before its first record: one page, so that no record shares a page with the
/// header, which is written once.
pub(crate) const SEGMENT_HEADER_LEN: u32 = 4096;

/// Bytes of the segment header that are used, including the checksum. They fit into one 512-byte
/// sector, so a power cut leaves all of them or none.
const SEGMENT_HEADER_USED: usize = 64;

/// Set in a header's flags if all bytes behind it were zero when it was written.
const WAS_BLANK: u32 = 1;

/// Bytes of a record before its payload.
pub(crate) const RECORD_HEADER_LEN: usize = 44;

/// The longest payload, whatever the options say, so that a damaged length cannot make a reader ask
/// for more memory.
pub(crate) const PAYLOAD_BYTES_LIMIT: usize = 64 << 20;

/// The position of byte `offset` of segment `segment`.
pub(crate) const fn position(segment: u32, offset: u32) -> Position {
    Position(((segment as u64) << 32) | offset as u64)
}

/// The segment a position is in.
pub(crate) const fn segment_of(position: Position) -> u32 {
    (position.0 >> 32) as u32
}

/// The byte within its segment that a position names.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
pub(crate) const fn offset_of(position: Position) -> u32 {
    position.0 as u32
}

/// Where the first record of a segment starts.
pub(crate) const fn first_record(segment: u32) -> Position {
    position(segment, SEGMENT_HEADER_LEN)
}

/// The start of a segment, including its header: the position of damage if the header cannot be
/// read.
pub(crate) const fn segment_start(segment: u32) -> Position {
    position(segment, 0)
}

/// A place between two records: the position where the next one starts or would start, and its
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) at: Position,
    pub(crate) number: u64,
}

impl Point {
    /// The most records between two positions: none is shorter than its header.
    pub(crate) fn records_max(from: Position, to: Position) -> u64 {
        to.0.saturating_sub(from.0) / RECORD_HEADER_LEN as u64
    }

    /// Whether a segment that begins behind this point can begin with that number. This point may
    /// be the segment's first record.
    pub(crate) fn admits(self, segment: u32, first_number: u64) -> bool {
        let at = first_record(segment);
        if at == self.at {
            return first_number == self.number;
        }
        let between = first_number.checked_sub(self.number);
        between.is_some_and(|records| records <= Self::records_max(self.at, at))
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number; its file's name has the same.
    pub(crate) segment: u32,
    /// A random number that nobody outside can guess, drawn when the segment is begun and contained
    /// in each of its records. It distinguishes live bytes from those of an earlier use of the same
    /// blocks, and from bytes that somebody made to look like a record.
    pub(crate) generation: u64,
    /// The epoch of all its records.
    pub(crate) epoch: Epoch,
    /// The number of its first record.
    pub(crate) first_number: u64,
    /// Every record before this point was durable when the header was written.
    pub(crate) synced: Point,
    /// Whether every byte behind the header was zero then: bytes that are not zero now were written
    /// under this header. In a recycled segment, such bytes prove nothing.
    pub(crate) was_blank: bool,
}

/// The result of reading a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundHeader {
    Valid(SegmentHeader),
    /// Intact, and written by a newer version.
    Newer(u32),
    /// Intact, and of version 0, which was never stable.
    Unstable,
    /// Intact, and the header of another segment: the file was renamed or copied. No crash does
    /// that, because a file becomes a segment only after its header is durably zero.
    Misnamed(u32),
    Unreadable,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(SEGMENT_HEADER_LEN as usize);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&self.segment.to_le_bytes());
        block.extend_from_slice(&self.generation.to_le_bytes());
        block.extend_from_slice(&self.epoch.0.to_le_bytes());
        block.extend_from_slice(&self.first_number.to_le_bytes());
        block.extend_from_slice(&self.synced.at.0.to_le_bytes());
        block.extend_from_slice(&self.synced.number.to_le_bytes());
        let flags = if self.was_blank { WAS_BLANK } else { 0 };
        block.extend_from_slice(&flags.to_le_bytes());
        block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
        debug_assert_eq!(block.len(), SEGMENT_HEADER_USED);
        block.resize(SEGMENT_HEADER_LEN as usize, 0);
        block
    }

    /// Reads the header of segment `segment`, by its file's name.
    pub(crate) fn decode(bytes: &[u8], segment: u32) -> FoundHeader {
        let Some(used) = bytes.get(..SEGMENT_HEADER_USED) else {
            return FoundHeader::Unreadable;
        };
        let checksum_at = SEGMENT_HEADER_USED - 4;
        // In version 0 the checksum was before the flags.
        if used[..8] == MAGIC
            && u32_at(used, 8) == 0
            && u32_at(used, 56) == crc32c::crc32c(&used[..56])
        {
            return FoundHeader::Unstable;
        }
        if used[..8] != MAGIC || u32_at(used, checksum_at) != crc32c::crc32c(&used[..checksum_at]) {
            return FoundHeader::Unreadable;
        }
        let version = u32_at(used, 8);
        if version > VERSION {
            return FoundHeader::Newer(version);
        }
        let header = Self {
            segment: u32_at(used, 12),
            generation: u64_at(used, 16),
            epoch: Epoch(u64_at(used, 24)),
            first_number: u64_at(used, 32),
            synced: Point {
                at: Position(u64_at(used, 40)),
                number: u64_at(used, 48),
            },
            was_blank: u32_at(used, 56) & WAS_BLANK != 0,
        };
        // The point up to which a header calls the log durable is before that header. If a forged
        // header claimed more, records appended behind it would be taken for lost.
        if header.synced.number > header.first_number {
            return FoundHeader::Unreadable;
        }
        // None of its records would verify here, so its records would be taken for a torn tail.
        if header.segment != segment {
            return FoundHeader::Misnamed(header.segment);
        }
        FoundHeader::Valid(header)
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Bytes of the payload that follows.
    pub(crate) len: u32,
    /// Its segment's generation.
    pub(crate) generation: u64,
    /// The epoch it was appended under.
    pub(crate) epoch: Epoch,
    /// Its number: dense from 1 over the whole log.
    pub(crate) number: u64,
    /// Every record before this point was durable when this record was written.
    pub(crate) synced: Point,
}

impl RecordHeader {
    /// The offset of the generation in a record: what a search for the next record behind damage
    /// looks for.
    pub(crate) const GENERATION_AT: usize = 8;

    /// Writes the header of the record at `at` with this payload into the gap before the payload.
    pub(crate) fn encode(&self, at: Position, gap: &mut [u8], payload: &[u8]) {
        gap[4..8].copy_from_slice(&self.len.to_le_bytes());
        gap[8..16].copy_from_slice(&self.generation.to_le_bytes());
        gap[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        gap[24..32].copy_from_slice(&self.number.to_le_bytes());
        let (synced_at, unsynced) = self.encode_synced();
        gap[32..40].copy_from_slice(&synced_at.0.to_le_bytes());
        gap[40..44].copy_from_slice(&unsynced.to_le_bytes());
        let checksum = checksum(at, &gap[4..RECORD_HEADER_LEN], payload);
        gap[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The header's fields, not verified; `None` if there are not enough bytes.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_LEN)?;
        let number = u64_at(bytes, 24);
        Some(Self {
            len: u32_at(bytes, 4),
            generation: u64_at(bytes, 8),
            epoch: Epoch(u64_at(bytes, 16)),
            number,
            synced: Point {
                at: Position(u64_at(bytes, 32)),
                number: number.saturating_sub(u64::from(u32_at(bytes, 40))),
            },
        })
    }

    /// The point as its position and the number of records between it and this one.
    fn encode_synced(&self) -> (Position, u32) {
        match u32::try_from(self.number - self.synced.number) {
            Ok(unsynced) => (self.synced.at, unsynced),
            // More than 2^32 records without a sync: claim nothing instead of too much.
            Err(_) => (Position(0), u32::MAX),
        }
    }

    /// Header and payload together.
    pub(crate) const fn record_len(&self) -> usize {
        RECORD_HEADER_LEN + self.len as usize
    }
}

/// Whether `record`, header and payload, are the bytes that were written at `at`.
pub(crate) fn verifies(at: Position, record: &[u8]) -> bool {
    record.len() >= RECORD_HEADER_LEN
        && u32_at(record, 0)
            == checksum(
                at,
                &record[4..RECORD_HEADER_LEN],
                &record[RECORD_HEADER_LEN..],
            )
}

/// CRC-32C over the position, the header after the checksum, and the payload. The position is not
/// stored, so a record that was written or copied to another place does not verify there.
fn checksum(at: Position, header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&at.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, header);
    crc32c::crc32c_append(crc, payload)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_headers_read_back_and_no_bit_goes_unnoticed() {
        let header = SegmentHeader {
            segment: 7,
            generation: 0x1122_3344_5566_7788,
            epoch: Epoch(3),
            first_number: 1_000,
            synced: Point {
                at: position(6, 5_000),
                number: 990,
            },
            was_blank: true,
        };
        let block = header.encode();
        assert_eq!(block.len(), 4096);
        assert_eq!(SegmentHeader::decode(&block, 7), FoundHeader::Valid(header));
        assert_eq!(SegmentHeader::decode(&block, 8), FoundHeader::Misnamed(7));
        assert_eq!(
            SegmentHeader::decode(&block[..63], 7),
            FoundHeader::Unreadable
        );
        for bit in 0..SEGMENT_HEADER_USED * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&flipped, 7), FoundHeader::Unreadable);
        }
    }

    #[test]
    fn a_header_that_claims_what_comes_after_it_is_not_believed() {
        let header = SegmentHeader {
            segment: 1,
            generation: 1,
            epoch: Epoch(1),
            first_number: 7,
            synced: Point {
                at: first_record(1),
                number: 7,
            },
            was_blank: false,
        };
        let decoded = SegmentHeader::decode(&header.encode(), 1);
        assert_eq!(decoded, FoundHeader::Valid(header));
        let forged = SegmentHeader {
            first_number: 6,
            ..header
        };
        let decoded = SegmentHeader::decode(&forged.encode(), 1);
        assert_eq!(decoded, FoundHeader::Unreadable);
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let header = SegmentHeader {
            segment: 1,
            generation: 1,
            epoch: Epoch(1),
            first_number: 1,
            synced: Point {
                at: first_record(1),
                number: 1,
            },
            was_blank: false,
        };
        let mut block = header.encode();
        block[8..12].copy_from_slice(&9u32.to_le_bytes());
        let checksum = crc32c::crc32c(&block[..60]);
        block[60..64].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&block, 1), FoundHeader::Newer(9));
    }

    #[test]
    fn the_unstable_version_is_told_from_damage() {
        let mut block = vec![0; 4096];
        block[..8].copy_from_slice(b"LOCKGATE");
        block[12] = 1;
        let checksum = crc32c::crc32c(&block[..56]);
        block[56..60].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&block, 1), FoundHeader::Unstable);
    }

    #[test]
    fn records_verify_only_where_they_were_written_and_unchanged() {
        let header = RecordHeader {
            len: 5,
            generation: 42,
            epoch: Epoch(2),
            number: 17,
            synced: Point {
                at: position(1, 4096),
                number: 12,
            },
        };
        let at = position(2, 4096);
        let mut record = vec![0; RECORD_HEADER_LEN];
        header.encode(at, &mut record, b"hello");
        record.extend_from_slice(b"hello");
        assert!(verifies(at, &record));
        assert_eq!(RecordHeader::peek(&record), Some(header));
        assert!(!verifies(position(2, 4097), &record));
        assert!(!verifies(position(3, 4096), &record));
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!verifies(at, &flipped), "bit {bit}");
        }
    }
}

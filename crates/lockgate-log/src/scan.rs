//! Reads one segment from beginning to end in pieces, with any bytes in it.

use std::mem;

use bytes::{Bytes, BytesMut};
use lockgate_core::{DiskError, DiskFile, Position};

use crate::format::{
    PAYLOAD_BYTES_LIMIT, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, position, verifies,
};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// The search for records computes checksums over at most so many times a segment's length, so that
/// bytes that only look like records cannot make a start take for ever.
const GUESS_LENGTHS_MAX: u64 = 4;

/// Walks over a segment's records. Trusts only verified bytes.
pub(crate) struct SegmentScan<'a> {
    file: &'a dyn DiskFile,
    segment: u32,
    /// Bytes of the file that can be addressed.
    len: u64,
    /// The generation of the segment's records; `None` if the header is lost and no record was
    /// found yet.
    generation: Option<u64>,
    /// Payloads may share this memory beyond the scan.
    window: Bytes,
    window_at: u64,
    /// Bytes that may still be checksummed for guesses.
    guesses_left: u64,
    /// Where the search for a record began.
    due_at: u64,
    /// The most records that may be missing before that place, besides those that the search skips.
    missing_max: u64,
}

/// A verified record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedRecord<'a> {
    pub(crate) at: Position,
    pub(crate) header: RecordHeader,
    pub(crate) payload: &'a [u8],
    window: &'a Bytes,
}

impl ScannedRecord<'_> {
    /// The payload without a copy. As long as it lives, it keeps about a MiB around it.
    pub(crate) fn shared_payload(&self) -> Bytes {
        self.window.slice_ref(self.payload)
    }

    /// The offset behind the record.
    pub(crate) fn end(&self) -> u64 {
        u64::from(crate::format::offset_of(self.at)) + self.header.record_len() as u64
    }
}

impl<'a> SegmentScan<'a> {
    pub(crate) fn new(
        file: &'a dyn DiskFile,
        segment: u32,
        generation: Option<u64>,
    ) -> Result<Self, DiskError> {
        let len = file.len()?.min(u64::from(u32::MAX));
        Ok(Self {
            file,
            segment,
            len,
            generation,
            guesses_left: GUESS_LENGTHS_MAX * len,
            window: Bytes::new(),
            window_at: 0,
            due_at: 0,
            missing_max: u32::MAX.into(),
        })
    }

    /// Sets how many records may be missing before the next one that is searched for. The default
    /// is 2^32.
    pub(crate) fn expect_missing(&mut self, records_max: u64) {
        self.missing_max = records_max;
    }

    /// The generation of the segment's records, as far as it is known yet.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// The first record at `offset` or behind it with a number of at least `number_min`; `None` if
    /// there is none up to the end of the file.
    pub(crate) fn next(
        &mut self,
        offset: u64,
        number_min: u64,
    ) -> Result<Option<ScannedRecord<'_>>, DiskError> {
        let from = offset.max(u64::from(SEGMENT_HEADER_LEN));
        self.due_at = from;
        let found = match self.check(from, number_min)? {
            Some(header) => Some((from, header)),
            None => self.search(from + 1, number_min)?,
        };
        let Some((offset, header)) = found else {
            return Ok(None);
        };
        self.generation = Some(header.generation);
        let at = self.position(offset);
        self.fill(offset, header.record_len())?;
        let record = &self.filled(offset)[..header.record_len()];
        Ok(Some(ScannedRecord {
            at,
            header,
            payload: &record[RECORD_HEADER_LEN..],
            window: &self.window,
        }))
    }

    /// The end of the bytes from `offset` on that are not all zero; `offset` if all are zero.
    pub(crate) fn end_of_data(&mut self, offset: u64) -> Result<u64, DiskError> {
        let mut end = offset;
        let mut at = offset;
        while at < self.len {
            self.fill(at, 1)?;
            let piece = self.filled(at);
            if piece.is_empty() {
                break;
            }
            let piece_len = piece.len() as u64;
            if let Some(last) = piece.iter().rposition(|&byte| byte != 0) {
                end = at + last as u64 + 1;
            }
            at += piece_len;
        }
        Ok(end)
    }

    /// The end of the bytes from `offset` on that were written under this generation, judging by
    /// headers; the rest may be bytes of an earlier use.
    pub(crate) fn end_of_generation(
        &mut self,
        offset: u64,
        number_min: u64,
    ) -> Result<u64, DiskError> {
        let mut end = offset;
        let mut at = offset;
        while let Some((candidate, header)) = self.candidate(at, number_min)? {
            end = end.max(candidate + header.record_len() as u64);
            at = candidate + 1;
        }
        Ok(end)
    }

    /// The header of the record at `offset`, if a record there verifies.
    fn check(&mut self, offset: u64, number_min: u64) -> Result<Option<RecordHeader>, DiskError> {
        let Some(header) = RecordHeader::peek(self.bytes(offset, RECORD_HEADER_LEN)?) else {
            return Ok(None);
        };
        if !self.is_plausible(offset, &header, number_min) {
            return Ok(None);
        }
        let at = self.position(offset);
        let record = self.bytes(offset, header.record_len())?;
        let whole = record.len() == header.record_len();
        Ok((whole && verifies(at, record)).then_some(header))
    }

    /// Whether the fields can be those of a record at `offset`. Cheap, to avoid a checksum.
    fn is_plausible(&self, offset: u64, header: &RecordHeader, number_min: u64) -> bool {
        self.generation
            .is_none_or(|known| known == header.generation)
            && header.len as usize <= PAYLOAD_BYTES_LIMIT
            && offset + header.record_len() as u64 <= self.len
            && (number_min..=self.number_max(offset, number_min)).contains(&header.number)
            && header.synced.at <= self.position(offset)
    }

    /// The highest number that a record at `offset` can have.
    fn number_max(&self, offset: u64, number_min: u64) -> u64 {
        let passed = offset.saturating_sub(self.due_at) / RECORD_HEADER_LEN as u64;
        number_min.saturating_add(self.missing_max.saturating_add(passed))
    }

    /// The first record that verifies at `from` or after it.
    fn search(
        &mut self,
        from: u64,
        number_min: u64,
    ) -> Result<Option<(u64, RecordHeader)>, DiskError> {
        let mut offset = from;
        while let Some((candidate, header)) = self.candidate(offset, number_min)? {
            if let Some(header) = self.check(candidate, number_min)? {
                return Ok(Some((candidate, header)));
            }
            let Some(left) = self.guesses_left.checked_sub(header.record_len() as u64) else {
                break;
            };
            self.guesses_left = left;
            offset = candidate + 1;
        }
        Ok(None)
    }

    /// The next offset from `from` on where a record could start, judging by its header only. If
    /// the generation is known, that is where its eight bytes are. By chance they are in one of
    /// 2^64 places, and nobody outside can cause it.
    fn candidate(
        &mut self,
        from: u64,
        number_min: u64,
    ) -> Result<Option<(u64, RecordHeader)>, DiskError> {
        let mut at = from;
        loop {
            self.fill(at, RECORD_HEADER_LEN)?;
            let piece = self.filled(at);
            let Some(last) = piece.len().checked_sub(RECORD_HEADER_LEN) else {
                return Ok(None);
            };
            let mut index = 0;
            while index <= last {
                if let Some(generation) = self.generation {
                    match find_generation(&piece[index..], generation) {
                        Some(skipped) => index += skipped,
                        None => break,
                    }
                }
                let offset = at + index as u64;
                if let Some(header) = RecordHeader::peek(&piece[index..])
                    && self.is_plausible(offset, &header, number_min)
                {
                    return Ok(Some((offset, header)));
                }
                index += 1;
            }
            at += last as u64 + 1;
        }
    }

    /// Up to `count` bytes from `offset` on, fewer only at the end of the file.
    fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], DiskError> {
        self.fill(offset, count)?;
        let filled = self.filled(offset);
        Ok(&filled[..count.min(filled.len())])
    }

    /// Fills the window with `count` bytes from `offset` on, or with all there are.
    fn fill(&mut self, offset: u64, count: usize) -> Result<(), DiskError> {
        let there = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let window_end = self.window_at + self.window.len() as u64;
        if offset < self.window_at || offset + there.min(count) as u64 > window_end {
            // Reuses the memory, unless a payload shares it.
            let window = mem::take(&mut self.window);
            let mut window = window.try_into_mut().unwrap_or_else(|_| BytesMut::new());
            window.resize(READ_BYTES.max(count).min(there), 0);
            let got = self.file.read_at(&mut window, offset)?;
            window.truncate(got);
            self.window = window.freeze();
            self.window_at = offset;
        }
        Ok(())
    }

    /// The window's bytes from `offset` on.
    fn filled(&self, offset: u64) -> &[u8] {
        let start = usize::try_from(offset.saturating_sub(self.window_at)).unwrap_or(usize::MAX);
        self.window.get(start..).unwrap_or_default()
    }

    #[expect(clippy::cast_possible_truncation, reason = "files are cut at u32::MAX")]
    fn position(&self, offset: u64) -> Position {
        position(self.segment, offset as u32)
    }
}

/// Where a record with this generation could start in `bytes`.
fn find_generation(bytes: &[u8], generation: u64) -> Option<usize> {
    let wanted = generation.to_le_bytes();
    let mut from = RecordHeader::GENERATION_AT;
    while let Some(first) = bytes
        .get(from..)?
        .iter()
        .position(|&byte| byte == wanted[0])
    {
        let at = from + first;
        if bytes.get(at..at + wanted.len())? == wanted {
            return Some(at - RecordHeader::GENERATION_AT);
        }
        from = at + 1;
    }
    None
}

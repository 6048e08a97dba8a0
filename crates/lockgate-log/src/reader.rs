//! Reads single records, and runs of them.

use std::{
    cell::RefCell,
    ops::{ControlFlow, RangeInclusive},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    DiskError, LogError, LogReader, LogRecord, Position, ReadError, RecordStamp, Scanned,
};

use crate::{
    format::{
        PAYLOAD_BYTES_LIMIT, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, first_record,
        offset_of, position, segment_of, segment_start, verifies,
    },
    scan::SegmentScan,
    shared::{SegmentInfo, Shared},
};

/// Bytes of a record's first read: a header and most payloads, so that one call is enough, but no
/// more than recent records had, because copying unused bytes costs more than a second call.
const FIRST_READ_BYTES: RangeInclusive<usize> = 512..=4096;

/// Two records are read together if the second begins at most so many bytes behind the first.
const TOGETHER_BYTES: u64 = 4096;

/// The most bytes that are read together.
const RUN_BYTES_MAX: u64 = 64 << 10;

/// The read handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct Reader(pub(crate) Arc<Shared>);

impl LogReader for Reader {
    fn locate(&self, number: u64) -> Result<Option<Position>, ReadError> {
        let shared = &*self.0;
        let segment = {
            let segments = shared.segments();
            let begins =
                |info: &SegmentInfo| info.first_number.is_some_and(|first| first <= number);
            let found = segments.iter().rev().find(|(_, info)| begins(info));
            found.map(|(&segment, _)| segment)
        };
        let Some(segment) = segment else {
            return Ok(None);
        };
        let mut found = None;
        let from = first_record(segment);
        let to = shared
            .appended()
            .min(segment_start(segment.saturating_add(1)));
        self.scan(from, to, &mut |scanned| {
            if let Scanned::Record { record, stamp } = scanned
                && stamp.number >= number
            {
                found = (stamp.number == number).then_some(record.position);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    fn wait_tail(&self, beyond: Position, wait: Duration) -> Result<Position, LogError> {
        let durable = self.0.wait_synced(beyond, wait);
        if durable <= beyond {
            self.0.check_running()?;
        }
        Ok(durable)
    }

    fn read(&self, at: Position) -> Result<Bytes, ReadError> {
        let shared = &*self.0;
        let (segment, offset) = (segment_of(at), offset_of(at));
        let info = shared.segments().get(&segment).copied();
        let Some(info) = info else {
            return Err(ReadError::Missing { at });
        };
        if at >= shared.appended() || offset < SEGMENT_HEADER_LEN {
            return Err(ReadError::Missing { at });
        }
        let file = match shared.file(segment) {
            Ok(file) => file,
            Err(error) if is_released(shared, segment, &error) => {
                return Err(ReadError::Missing { at });
            }
            Err(error) => return Err(LogError::Disk(error).into()),
        };
        let may_wait = |buffer: &mut [u8], offset| {
            let read = file.read_at(buffer, offset);
            read.map_err(|error| ReadError::from(LogError::Disk(error)))
        };
        let read = || read_record(may_wait, at, info.generation, &shared.lengths);
        // Damaged records are dropped for good, and a single read may fail on its way, so read
        // again.
        let read = match read() {
            Err(ReadError::Damaged { .. }) => read(),
            read => read,
        };
        // The segment may have been released during the read, and its file used for something else.
        if matches!(read, Err(ReadError::Damaged { .. })) && !shared.note_damaged(segment) {
            return Err(ReadError::Missing { at });
        }
        read
    }

    fn read_all(&self, mut at: &[Position]) -> Vec<Result<Bytes, ReadError>> {
        let mut records = Vec::with_capacity(at.len());
        while !at.is_empty() && !matches!(records.last(), Some(Err(ReadError::Log(_)))) {
            let (run, others) = at.split_at(run_len(at));
            self.read_run(run, &mut records);
            at = others;
        }
        records
    }

    fn try_read_all(&self, mut at: &[Position]) -> Option<Vec<Bytes>> {
        let mut records = Vec::with_capacity(at.len());
        while !at.is_empty() {
            let (run, others) = at.split_at(run_len(at));
            self.try_read_run(run, &mut records).ok()?;
            at = others;
        }
        Some(records)
    }

    fn scan(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let to = to.min(self.0.appended());
        if from >= to {
            return Ok(());
        }
        let segments: Vec<u32> = self
            .0
            .segments()
            .range(segment_of(from)..=segment_of(to))
            .map(|(&segment, _)| segment)
            .collect();
        for segment in segments {
            if self.scan_segment(segment, from, to, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Reader {
    /// Reads neighbouring records with one call. Records that this does not settle are read singly,
    /// which finds their error. Stops behind the first error of storage.
    fn read_run(&self, run: &[Position], records: &mut Vec<Result<Bytes, ReadError>>) {
        RUN.with_borrow_mut(|window| {
            let read = self.read_window(run, window);
            for &at in run {
                let found = read.and_then(|(count, generation)| {
                    self.in_window(&window[..count], run[0], at, generation)
                });
                records.push(found.map_or_else(|| self.read(at), Ok));
                if matches!(records.last(), Some(Err(ReadError::Log(_)))) {
                    break;
                }
            }
        });
    }

    /// Reads from the first of several records to behind the last one, as far as its end is known.
    /// Returns the number of bytes and the generation; nothing where that is not possible.
    fn read_window(&self, run: &[Position], window: &mut Vec<u8>) -> Option<(usize, Option<u64>)> {
        let [first, .., last] = *run else {
            return None;
        };
        let info = self.info_of(first, last)?;
        let bytes = self.room_for(first, last, window);
        let file = self.0.file(segment_of(first)).ok()?;
        let count = file.read_at(bytes, offset_of(first).into());
        Some((count.ok()?, info.generation))
    }

    /// As [`read_run`](Self::read_run), without waiting and without finding out errors. A file that
    /// is not open is not read, because opening may wait.
    fn try_read_run(&self, run: &[Position], records: &mut Vec<Bytes>) -> Result<(), NotAtOnce> {
        let (&[first, ..], &[.., last]) = (run, run) else {
            return Ok(());
        };
        let info = self.info_of(first, last).ok_or(NotAtOnce)?;
        let file = self.0.open_file(segment_of(first)).ok_or(NotAtOnce)?;
        let at_once = |buffer: &mut [u8], offset| file.try_read_at(buffer, offset).ok_or(NotAtOnce);
        RUN.with_borrow_mut(|window| {
            let count = if run.len() > 1 {
                let bytes = self.room_for(first, last, window);
                at_once(bytes, offset_of(first).into())?
            } else {
                0
            };
            for &at in run {
                let found = self.in_window(&window[..count], first, at, info.generation);
                records.push(match found {
                    Some(record) => record,
                    None => read_record(at_once, at, info.generation, &self.0.lengths)?,
                });
            }
            Ok(())
        })
    }

    /// The segment of two records, if they may be read.
    fn info_of(&self, first: Position, last: Position) -> Option<SegmentInfo> {
        let info = self.0.segments().get(&segment_of(first)).copied()?;
        let is_there = last < self.0.appended() && offset_of(first) >= SEGMENT_HEADER_LEN;
        is_there.then_some(info)
    }

    /// The part of `window` that two records and the bytes between them probably need.
    fn room_for<'a>(
        &self,
        first: Position,
        last: Position,
        window: &'a mut Vec<u8>,
    ) -> &'a mut [u8] {
        let len = bytes_between(first, last) + self.0.lengths.first_read();
        if window.len() < len {
            window.resize(len, 0);
        }
        &mut window[..len]
    }

    /// The record at `at`, if these bytes, which begin with the record at `first`, contain all of
    /// it.
    fn in_window(
        &self,
        window: &[u8],
        first: Position,
        at: Position,
        generation: Option<u64>,
    ) -> Option<Bytes> {
        let bytes = window.get(bytes_between(first, at)..)?;
        whole_record(bytes, at, generation, &self.0.lengths)
    }

    fn scan_segment(
        &self,
        segment: u32,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let shared = &*self.0;
        let info = shared.segments().get(&segment).copied();
        let Some(info) = info else {
            return Ok(ControlFlow::Continue(()));
        };
        let file = match shared.file(segment) {
            Ok(file) => file,
            Err(error) if is_released(shared, segment, &error) => {
                return Ok(ControlFlow::Continue(()));
            }
            Err(error) => return Err(LogError::Disk(error).into()),
        };
        let mut scan =
            SegmentScan::new(&*file, segment, info.generation).map_err(LogError::Disk)?;
        let end = to.min(position(segment, u32::MAX));
        let mut expected = from.max(first_record(segment));
        // The number that the next record should have, as far as it is known.
        let mut number = info
            .first_number
            .filter(|_| expected == first_record(segment));
        while expected < end {
            let found = scan
                .next(offset_of(expected).into(), 0)
                .map_err(LogError::Disk)?
                .filter(|record| record.at < end)
                .map(|record| {
                    let payload = Bytes::copy_from_slice(record.payload);
                    (record.at, record.header, payload)
                });
            if !shared.segments().contains_key(&segment) {
                break;
            }
            let Some((position, header, payload)) = found else {
                break;
            };
            if position > expected {
                shared.note_damaged(segment);
                let gap = Scanned::Damaged {
                    from: expected,
                    to: position,
                };
                if visit(gap).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            let record = Scanned::Record {
                record: LogRecord { position, payload },
                stamp: RecordStamp {
                    number: header.number,
                    epoch: header.epoch,
                },
            };
            if visit(record).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            expected = Position(position.0 + header.record_len() as u64);
            number = Some(header.number.saturating_add(1));
        }
        // A file that was cut ends where it can be read to its end; the next segment's first number
        // shows what is missing.
        let behind = segment.saturating_add(1);
        let next = segment_start(behind);
        let behind = shared.segments().get(&behind).copied();
        let due = behind.and_then(|info| info.first_number);
        let is_short = number < due && number.is_some();
        if is_short && to >= next && shared.segments().contains_key(&segment) {
            shared.note_damaged(segment);
            let gap = Scanned::Damaged {
                from: expected,
                to: next,
            };
            return Ok(visit(gap));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// How many records, from the first on, can be read together.
fn run_len(at: &[Position]) -> usize {
    let Some(&first) = at.first() else {
        return 0;
    };
    let behind = at.windows(2).take_while(|pair| {
        let (before, next) = (pair[0], pair[1]);
        next > before
            && segment_of(next) == segment_of(first)
            && next.0 - before.0 <= TOGETHER_BYTES
            && next.0 - first.0 <= RUN_BYTES_MAX
    });
    1 + behind.count()
}

/// Whether the segment has no file because it was released during the read. If the file of a held
/// segment is not found, that is an error of the disk: the folder may have been moved, or may be
/// back in a moment, so its contents must not count as gone.
fn is_released(shared: &Shared, segment: u32, error: &DiskError) -> bool {
    error.is_not_found() && !shared.segments().contains_key(&segment)
}

fn bytes_between(first: Position, last: Position) -> usize {
    usize::try_from(last.0.saturating_sub(first.0)).unwrap_or(usize::MAX)
}

thread_local! {
    /// The buffer of first reads. One per thread, because clearing a buffer for every read costs
    /// more than copying a small record out of it. So a record keeps no more memory than it needs.
    static FIRST_READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; *FIRST_READ_BYTES.end()].into());
    /// The buffer of runs.
    static RUN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The typical length of recent records.
pub(crate) struct Lengths(AtomicUsize);

impl Default for Lengths {
    fn default() -> Self {
        Self(AtomicUsize::new(*FIRST_READ_BYTES.end()))
    }
}

impl Lengths {
    /// How many bytes to read first.
    fn first_read(&self) -> usize {
        let (least, most) = (*FIRST_READ_BYTES.start(), *FIRST_READ_BYTES.end());
        self.0.load(Relaxed).clamp(least, most)
    }

    /// Grows at once for longer records, and shrinks slowly for shorter ones. Concurrent readers
    /// may overwrite each other's change, which costs a second read.
    fn note(&self, record_bytes: usize) {
        let usual = self.0.load(Relaxed);
        let now = record_bytes.max(usual - usual / 8);
        if now != usual {
            self.0.store(now, Relaxed);
        }
    }
}

/// The record at the beginning of these bytes, if it is complete and verifies.
fn whole_record(
    bytes: &[u8],
    at: Position,
    generation: Option<u64>,
    lengths: &Lengths,
) -> Option<Bytes> {
    let header = RecordHeader::peek(bytes)?;
    if generation.is_some_and(|known| known != header.generation)
        || header.len as usize > PAYLOAD_BYTES_LIMIT
    {
        return None;
    }
    let record = bytes.get(..header.record_len())?;
    lengths.note(record.len());
    verifies(at, record).then(|| Bytes::copy_from_slice(&record[RECORD_HEADER_LEN..]))
}

/// The record was not read without waiting: the read would wait, or something is wrong. A read that
/// may wait finds out which.
struct NotAtOnce;

impl From<ReadError> for NotAtOnce {
    fn from(_: ReadError) -> Self {
        Self
    }
}

/// Reads a record with `read_at`, which fills a buffer from an offset of the file.
fn read_record<E: From<ReadError>>(
    read_at: impl Fn(&mut [u8], u64) -> Result<usize, E>,
    at: Position,
    generation: Option<u64>,
    lengths: &Lengths,
) -> Result<Bytes, E> {
    let damaged = |what| E::from(ReadError::Damaged { at, what });
    let offset = u64::from(offset_of(at));
    let (mut record, wanted) = FIRST_READ.with_borrow_mut(|first| {
        let first = &mut first[..lengths.first_read()];
        let count = read_at(first, offset)?;
        let first = &first[..count];
        let Some(header) = RecordHeader::peek(first) else {
            return Err(damaged("the file ends before it"));
        };
        if generation.is_some_and(|known| known != header.generation) {
            return Err(damaged("its generation is not the segment's"));
        }
        if header.len as usize > PAYLOAD_BYTES_LIMIT {
            return Err(damaged("its length is out of range"));
        }
        let wanted = header.record_len();
        lengths.note(wanted);
        let mut record = Vec::with_capacity(wanted);
        record.extend_from_slice(&first[..count.min(wanted)]);
        Ok((record, wanted))
    })?;
    let count = record.len();
    if count < wanted {
        record.resize(wanted, 0);
        let rest_at = offset + count as u64;
        let rest = &mut record[count..];
        if read_at(rest, rest_at)? < rest.len() {
            return Err(damaged("the file ends within it"));
        }
    }
    if !verifies(at, &record) {
        return Err(damaged("its checksum does not fit"));
    }
    Ok(Bytes::from(record).slice(RECORD_HEADER_LEN..))
}

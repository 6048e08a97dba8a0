//! Reading single records, and stretches of them.

use std::{cell::RefCell, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    DiskError, DiskFile, LogError, LogReader, LogRecord, Position, ReadError, RecordStamp, Scanned,
};

use crate::{
    format::{
        PAYLOAD_BYTES_LIMIT, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, first_record,
        offset_of, position, segment_of, verifies,
    },
    scan::SegmentScan,
    shared::Shared,
};

/// Bytes of a reader's first read: a header and most payloads, so that one call is enough.
const FIRST_READ_BYTES: usize = 4096;

/// The read handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct Reader(pub(crate) Arc<Shared>);

impl LogReader for Reader {
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
        let read = read_record(&*file, at, info.generation);
        // Perhaps it was released while we read, and its file is something else by now.
        if matches!(read, Err(ReadError::Damaged { .. })) && !shared.note_damaged(segment) {
            return Err(ReadError::Missing { at });
        }
        read
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
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Whether the segment has no file because it was released since we looked. A file that is not found
/// and should be there is an error of the disk: the folder may have been moved, or be there again in a
/// moment, and what is in it must not count as gone.
fn is_released(shared: &Shared, segment: u32, error: &DiskError) -> bool {
    error.is_not_found() && !shared.segments().contains_key(&segment)
}

thread_local! {
    /// Where first reads go. Kept per thread, because clearing a buffer for every read costs more than
    /// copying the few bytes of a small record out of it, and a record then keeps no more memory than
    /// it needs.
    static FIRST_READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; FIRST_READ_BYTES].into());
}

fn read_record(
    file: &dyn DiskFile,
    at: Position,
    generation: Option<u64>,
) -> Result<Bytes, ReadError> {
    let damaged = |what| ReadError::Damaged { at, what };
    let offset = u64::from(offset_of(at));
    let (mut record, wanted) = FIRST_READ.with_borrow_mut(|first| {
        let count = file.read_at(first, offset).map_err(LogError::Disk)?;
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
        let mut record = Vec::with_capacity(wanted);
        record.extend_from_slice(&first[..count.min(wanted)]);
        Ok((record, wanted))
    })?;
    let count = record.len();
    if count < wanted {
        record.resize(wanted, 0);
        let rest_at = offset + count as u64;
        let rest = &mut record[count..];
        if file.read_at(rest, rest_at).map_err(LogError::Disk)? < rest.len() {
            return Err(damaged("the file ends within it"));
        }
    }
    if !verifies(at, &record) {
        return Err(damaged("its checksum does not fit"));
    }
    Ok(Bytes::from(record).slice(RECORD_HEADER_LEN..))
}

//! Reports what a folder holds and what a recovery would do, without changing anything.

use std::sync::Arc;

use lockgate_core::{
    Disk, Epoch, LogError, LogRecord, OpenMode, Position, ReadError, RecoveryReport, SnapshotStore,
    with_sources,
};

use crate::{
    LocalLog, LocalLogOptions,
    format::segment_start,
    names::{FileKind, damaged_name, segment_name},
    preallocated::Preallocated,
    recover::{FoundSegment, read, starting_point, survey},
    shared::Shared,
    sizes::Limits,
    snapshots::Snapshots,
};

/// What [`LocalLog::inspect`] finds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The report of a recovery from the given position.
    pub report: RecoveryReport,
    /// All segments, oldest first.
    pub segments: Vec<InspectedSegment>,
    /// All snapshots that a recovery could start from, newest first.
    pub snapshots: Vec<InspectedSnapshot>,
    /// Preallocated files.
    pub preallocated: u64,
    /// Files that were set aside because some of their bytes could not be read.
    pub set_aside: Vec<String>,
    /// Segments that will be set aside when they are released.
    pub would_set_aside: Vec<String>,
    /// The file that a recovery would cut, and its new length: without a torn tail, or without
    /// unused allocated blocks.
    pub would_cut: Option<(String, u64)>,
    /// Files that a recovery would remove: segments of a torn tail, and leftovers.
    pub would_remove: Vec<String>,
}

/// A segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedSegment {
    /// Its file's name.
    pub name: String,
    /// Its first position.
    pub first: Position,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its header; `None` if it cannot be read.
    pub header: Option<InspectedHeader>,
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedHeader {
    pub generation: u64,
    /// The epoch of all its records.
    pub epoch: Epoch,
    /// The number of its first record.
    pub first_number: u64,
    /// Every record before this position was durable when the segment was begun.
    pub synced: Position,
}

/// A snapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedSnapshot {
    pub position: Position,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why it does not verify; `None` if it does.
    pub damage: Option<String>,
}

impl LocalLog {
    /// Reads the folder as a recovery from `from` would and passes the same records to
    /// `visit`. Changes nothing: takes no lock and writes nothing, so read permission is enough. In
    /// a folder that is in use, records that are being written may look like a torn tail.
    ///
    /// # Errors
    /// As [`LogSource::recover`](lockgate_core::LogSource::recover).
    pub fn inspect(
        disk: Arc<dyn Disk>,
        from: Position,
        visit: &mut dyn FnMut(LogRecord),
    ) -> Result<Inspection, LogError> {
        let segments = survey(&*disk)?.segments;
        let point = starting_point(&*disk, from)?;
        let recovered = read(&*disk, point, &mut |record, _| visit(record))?;
        let plan = recovered.plan;
        let removed = plan
            .remove_segments
            .iter()
            .map(|&number| segment_name(number));
        let names = disk.list()?;
        let set_aside = names
            .into_iter()
            .filter(|name| FileKind::of(name) == FileKind::Damaged);
        Ok(Inspection {
            report: recovered.report,
            segments: segments.iter().map(inspected).collect(),
            snapshots: snapshots(&disk)?,
            preallocated: recovered.preallocated.len() as u64,
            set_aside: set_aside.collect(),
            would_set_aside: recovered.damaged.into_iter().map(damaged_name).collect(),
            would_cut: plan
                .cut_file
                .map(|(segment, bytes)| (segment_name(segment), bytes)),
            would_remove: removed.chain(plan.leftovers).collect(),
        })
    }
}

fn inspected(segment: &FoundSegment) -> InspectedSegment {
    InspectedSegment {
        name: segment_name(segment.number),
        first: segment_start(segment.number),
        bytes: segment.bytes,
        header: segment.header.map(|header| InspectedHeader {
            generation: header.generation,
            epoch: header.epoch,
            first_number: header.first_number,
            synced: header.synced.at,
        }),
    }
}

fn snapshots(disk: &Arc<dyn Disk>) -> Result<Vec<InspectedSnapshot>, LogError> {
    let options = LocalLogOptions::default();
    let limits = Limits {
        segment_bytes: options.segment_bytes,
        reserve_segments: 0,
        free_bytes_min: 0,
        low_bytes: None,
    };
    let preallocated = Preallocated::new(disk.clone(), limits, None);
    let store = Snapshots(Arc::new(Shared::new(disk.clone(), preallocated, 1)));
    let mut found = Vec::new();
    for position in store.list()? {
        let damage = match verify(&store, position) {
            Ok(()) => None,
            Err(ReadError::Log(error)) => return Err(error),
            Err(error) => Some(with_sources(&error)),
        };
        let bytes = match store.name(position)? {
            Some(name) => disk.open(&name, OpenMode::Read)?.len()?,
            None => 0,
        };
        found.push(InspectedSnapshot {
            position,
            bytes,
            damage,
        });
    }
    Ok(found)
}

fn verify(store: &Snapshots, at: Position) -> Result<(), ReadError> {
    let mut reader = store.open(at)?;
    while reader.next_piece()?.is_some() {}
    Ok(())
}

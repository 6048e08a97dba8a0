//! Snapshots next to the log: one file each, made of checksummed pieces.

use std::{
    io::ErrorKind,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use lockgate_core::{
    DiskError, DiskFile, LogError, OpenMode, Position, ReadError, SnapshotReader, SnapshotStore,
    SnapshotWriter,
};

use crate::{
    format::{PAYLOAD_BYTES_LIMIT, Point, VERSION},
    names::{FileKind, SnapshotName, StartMark, snapshot_part_name},
    shared::Shared,
};

const MAGIC: &[u8; 8] = b"LOCKSNAP";
/// Magic, version, position, number, checksum.
const HEADER_LEN: usize = 32;
/// A snapshot is synced after each so many bytes. Syncing all of it at once would occupy the disk,
/// and delay every sync of the log, for the whole time. On a file system that writes data before
/// its journal, it would also delay every change of a name.
const SYNC_BYTES: u64 = 8 << 20;
/// Checksum and length. In the last piece this mark replaces the length, and nothing follows it.
const PIECE_HEADER_LEN: usize = 8;
const LAST: u32 = u32::MAX;

/// The snapshots in a log's folder.
pub(crate) struct Snapshots(pub(crate) Arc<Shared>);

impl Snapshots {
    /// All complete snapshots that a recovery can start from, newest first. A snapshot from before
    /// the log's start is a leftover.
    fn names(&self) -> Result<Vec<SnapshotName>, DiskError> {
        let (mut names, start) = self.all()?;
        names.retain(|name| !start.is_some_and(|start| start.is_behind(name.0.at)));
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// All complete snapshots, and where the log starts.
    fn all(&self) -> Result<(Vec<SnapshotName>, Option<StartMark>), DiskError> {
        let mut found: Vec<SnapshotName> = Vec::new();
        let mut start: Option<StartMark> = None;
        for name in self.0.disk.list()? {
            match FileKind::of(&name) {
                FileKind::Snapshot(name) => found.push(name),
                FileKind::Start(mark) => start = start.max(Some(mark)),
                _ => {}
            }
        }
        Ok((found, start))
    }

    /// The point of the snapshot at this position, if there is one.
    pub(crate) fn point(&self, at: Position) -> Result<Option<Point>, DiskError> {
        let (names, _) = self.all()?;
        let mut points = names.into_iter().map(|name| name.0);
        Ok(points.find(|point| point.at == at))
    }

    /// The name of the snapshot at this position, if there is one.
    pub(crate) fn name(&self, at: Position) -> Result<Option<String>, DiskError> {
        let point = self.point(at)?;
        Ok(point.map(|point| SnapshotName(point).to_string()))
    }

    /// Bytes of all snapshots.
    pub(crate) fn bytes(&self) -> Result<u64, DiskError> {
        let (names, _) = self.all()?;
        let lens = names.iter().map(|name| {
            let file = self.0.disk.open(&name.to_string(), OpenMode::Read)?;
            file.len()
        });
        lens.sum()
    }
}

impl SnapshotStore for Snapshots {
    fn begin(&self, at: Position, next_number: u64) -> Result<Box<dyn SnapshotWriter>, LogError> {
        if !self.0.is_owned() {
            return Err(LogError::Unsupported {
                what: "begin a snapshot before an epoch was begun",
            });
        }
        let point = Point {
            at,
            number: next_number,
        };
        Ok(Box::new(Writing::new(self.0.clone(), point)))
    }

    fn list(&self) -> Result<Vec<Position>, LogError> {
        Ok(self.names()?.iter().map(|name| name.0.at).collect())
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError> {
        let names = self.names().map_err(LogError::Disk)?;
        let name = names
            .into_iter()
            .find(|name| name.0.at == at)
            .ok_or(ReadError::Missing { at })?;
        let damaged = |what| ReadError::Damaged { at, what };
        let what = name.to_string();
        let file = self
            .0
            .disk
            .open(&what, OpenMode::Read)
            .map_err(LogError::Disk)?;
        let mut header = [0; HEADER_LEN];
        let count = file.read_at(&mut header, 0).map_err(LogError::Disk)?;
        if count < HEADER_LEN || &header[..8] != MAGIC {
            return Err(damaged("it does not begin as a snapshot"));
        }
        if crc32c(&header[..28]) != u32_at(&header, 28) {
            return Err(damaged("its header does not verify"));
        }
        let version = u32_at(&header, 8);
        if version > VERSION {
            return Err(LogError::NewerFormat {
                what,
                found: version,
                known: VERSION,
            }
            .into());
        }
        if header[12..28] != point_bytes(name.0) {
            return Err(damaged("its header names another place than its name"));
        }
        Ok(Box::new(Reading {
            total: file.len().map_err(LogError::Disk)?,
            file,
            at: name.0.at,
            offset: HEADER_LEN as u64,
            pieces: 0,
            ended: false,
        }))
    }

    fn remove(&self, at: Position) -> Result<(), LogError> {
        for name in self.all()?.0 {
            if name.0.at == at {
                let name = name.to_string();
                let len = self.0.disk.open(&name, OpenMode::Read)?.len()?;
                self.0.disk.remove(&name)?;
                self.0.snapshot_bytes.fetch_sub(len, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn set_aside(&self, at: Position) -> Result<(), LogError> {
        for name in self.all()?.0 {
            if name.0.at == at {
                let name = name.to_string();
                let len = self.0.disk.open(&name, OpenMode::Read)?.len()?;
                self.0.disk.rename(&name, &format!("{name}-damaged"))?;
                self.0.snapshot_bytes.fetch_sub(len, Ordering::Relaxed);
            }
        }
        let synced = self.0.disk.sync_folder();
        synced.map_err(|error| self.0.stop(error))
    }
}

/// A snapshot that is being written, under a temporary name.
pub(crate) struct Writing {
    shared: Arc<Shared>,
    point: Point,
    file: Option<Arc<dyn DiskFile>>,
    offset: u64,
    /// The synced length of the file.
    synced: u64,
    pieces: u64,
    finished: bool,
}

impl Writing {
    pub(crate) fn new(shared: Arc<Shared>, point: Point) -> Self {
        Self {
            shared,
            point,
            file: None,
            offset: 0,
            synced: 0,
            pieces: 0,
            finished: false,
        }
    }

    /// The file; creates it, with its header, at the first call.
    fn file(&mut self) -> Result<Arc<dyn DiskFile>, DiskError> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let file = self.create()?;
                self.file = Some(file.clone());
                file
            }
        };
        if self.offset == 0 {
            let mut header = Vec::with_capacity(HEADER_LEN);
            header.extend_from_slice(MAGIC);
            header.extend_from_slice(&VERSION.to_le_bytes());
            header.extend_from_slice(&point_bytes(self.point));
            let checksum = crc32c(&header);
            header.extend_from_slice(&checksum.to_le_bytes());
            file.write_at(&header, 0)?;
            self.offset = HEADER_LEN as u64;
        }
        Ok(file)
    }

    fn create(&self) -> Result<Arc<dyn DiskFile>, DiskError> {
        let name = snapshot_part_name(self.point);
        let disk = &self.shared.disk;
        match disk.open(&name, OpenMode::CreateNew) {
            // An attempt at the same position failed and could not remove its file.
            Err(error) if error.source.kind() == ErrorKind::AlreadyExists => {
                disk.remove(&name)?;
                disk.open(&name, OpenMode::CreateNew)
            }
            outcome => outcome,
        }
    }

    /// Writes a piece. If the disk is full, uses room that the log gives up for it.
    fn write_piece(&mut self, len: u32, piece: &[u8]) -> Result<(), DiskError> {
        loop {
            match self.try_write_piece(len, piece) {
                Err(error) if error.is_full() && self.shared.preallocated.give_up_one()? => {}
                outcome => return outcome,
            }
        }
    }

    fn try_write_piece(&mut self, len: u32, piece: &[u8]) -> Result<(), DiskError> {
        let file = self.file()?;
        let mut bytes = Vec::with_capacity(PIECE_HEADER_LEN + piece.len());
        let checksum = piece_checksum(self.point.at, self.pieces, len, piece);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(piece);
        file.write_at(&bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        self.pieces += 1;
        Ok(())
    }
}

impl SnapshotWriter for Writing {
    fn position(&self) -> Position {
        self.point.at
    }

    fn write(&mut self, piece: &[u8]) -> Result<(), LogError> {
        let len = u32::try_from(piece.len())
            .ok()
            .filter(|&len| len as usize <= PAYLOAD_BYTES_LIMIT)
            .ok_or(LogError::Unsupported {
                what: "keep a piece of a snapshot above 64 MiB",
            })?;
        self.write_piece(len, piece)?;
        if self.offset - self.synced >= SYNC_BYTES {
            self.file()?.sync()?;
            self.synced = self.offset;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), LogError> {
        self.write_piece(LAST, &[])?;
        self.file()?.sync()?;
        let name = SnapshotName(self.point).to_string();
        let disk = &self.shared.disk;
        disk.rename(&snapshot_part_name(self.point), &name)?;
        self.shared
            .snapshot_bytes
            .fetch_add(self.offset, Ordering::Relaxed);
        self.finished = true;
        // If that fails, it is unknown which names are durable.
        let synced = disk.sync_folder();
        synced.map_err(|error| self.shared.stop(error))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.file.is_some() && !self.finished {
            // A file that stays does not count as a snapshot, and recovery removes it.
            let _ = self.shared.disk.remove(&snapshot_part_name(self.point));
        }
    }
}

struct Reading {
    file: Arc<dyn DiskFile>,
    at: Position,
    offset: u64,
    pieces: u64,
    total: u64,
    ended: bool,
}

impl SnapshotReader for Reading {
    fn total_bytes(&self) -> u64 {
        self.total
    }

    fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        let at = self.at;
        let damaged = |what| ReadError::Damaged { at, what };
        let mut header = [0; PIECE_HEADER_LEN];
        let count = self
            .file
            .read_at(&mut header, self.offset)
            .map_err(LogError::Disk)?;
        if count < PIECE_HEADER_LEN {
            return Err(damaged("it ends before its last piece"));
        }
        let len = u32_at(&header, 4);
        let payload_len = if len == LAST { 0 } else { len as usize };
        if payload_len > PAYLOAD_BYTES_LIMIT {
            return Err(damaged("the length of a piece is out of range"));
        }
        // Checked before memory is allocated, because the length may be damaged.
        let payload_end = self.offset + (PIECE_HEADER_LEN + payload_len) as u64;
        if payload_end > self.total {
            return Err(damaged("it ends within a piece"));
        }
        let mut piece = vec![0; payload_len];
        let count = self
            .file
            .read_at(&mut piece, self.offset + PIECE_HEADER_LEN as u64)
            .map_err(LogError::Disk)?;
        if count < payload_len {
            return Err(damaged("it ends within a piece"));
        }
        if piece_checksum(at, self.pieces, len, &piece) != u32_at(&header, 0) {
            return Err(damaged("a piece does not verify"));
        }
        self.offset = payload_end;
        self.pieces += 1;
        self.ended = len == LAST;
        Ok((!self.ended).then(|| Bytes::from(piece)))
    }
}

/// The checksum covers position and index, so that a piece of another snapshot or place does not
/// verify.
fn piece_checksum(at: Position, index: u64, len: u32, piece: &[u8]) -> u32 {
    let mut place = [0; 20];
    place[..8].copy_from_slice(&at.0.to_le_bytes());
    place[8..16].copy_from_slice(&index.to_le_bytes());
    place[16..].copy_from_slice(&len.to_le_bytes());
    crc32c_append(crc32c(&place), piece)
}

fn point_bytes(point: Point) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&point.at.0.to_le_bytes());
    bytes[8..].copy_from_slice(&point.number.to_le_bytes());
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

//! The names of a log's files. They contain numbers only: no text from a user ever becomes a file
//! name.

use std::fmt;

use lockgate_core::Position;

use crate::{
    folder::LOCK_NAME,
    format::{Point, first_record, segment_of},
};

/// The kind of a log's file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFile {
    /// Holds records.
    Segment,
    Snapshot,
    /// A segment or a snapshot that was set aside because some of its bytes could not be read.
    SetAside,
    /// Kept for a segment to come.
    Preallocated,
    /// A mark, the folder's lock, or an unfinished file.
    Other,
}

impl LogFile {
    /// The kind of the file with that name; `None` if it is not the log's.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Some(match FileKind::of(name) {
            FileKind::Segment(_) => Self::Segment,
            FileKind::Snapshot(_) => Self::Snapshot,
            FileKind::Damaged => Self::SetAside,
            FileKind::Preallocated(_) => Self::Preallocated,
            FileKind::Start(_) | FileKind::Synced(_) | FileKind::SnapshotPart => Self::Other,
            FileKind::Other if name == LOCK_NAME => Self::Other,
            FileKind::Other => return None,
        })
    }
}

/// Whether a file of this name in a data folder is Lockgate's: a part of the log, a file kept next
/// to it, or the folder's lock.
#[must_use]
pub fn is_log_file(name: &str) -> bool {
    LogFile::of(name).is_some()
}

/// The name of the file that holds the segment of that position.
#[must_use]
pub fn segment_file(at: Position) -> String {
    segment_name(segment_of(at))
}

/// A segment's file name.
pub(crate) fn segment_name(segment: u32) -> String {
    format!("{segment:08x}.log")
}

/// The name of a damaged segment that the log does not need any more: set aside, never deleted.
pub(crate) fn damaged_name(segment: u32) -> String {
    format!("{segment:08x}.damaged")
}

/// The name of a preallocated file: its blocks are allocated, and the next segment may use it. The
/// number only distinguishes preallocated files.
pub(crate) fn preallocated_name(number: u32) -> String {
    format!("{number:08x}.preallocated")
}

/// Where the log starts. An empty file has this in its *name*: a rename changes it in one step and
/// one folder sync makes it durable. The mark distinguishes a released segment from a lost one.
///
/// Everything before it was durable when the mark was made, and so was the header of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StartMark(pub(crate) Point);

impl StartMark {
    /// The start of a log that was never trimmed.
    pub(crate) const FIRST: Self = Self(Point {
        at: first_record(1),
        number: 1,
    });

    /// Whether a log that starts here was trimmed up to behind `at`.
    pub(crate) fn is_behind(self, at: Position) -> bool {
        self != Self::FIRST && at < self.0.at
    }
}

impl fmt::Display for StartMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.start", self.0.at.0, self.0.number)
    }
}

/// How far the log was known to be durable when a recovery had to cut the records that said so: the
/// name of another empty file. The next epoch's first segment repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SyncedMark(pub(crate) Point);

impl fmt::Display for SyncedMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.synced", self.0.at.0, self.0.number)
    }
}

/// A complete snapshot; its name contains its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotName(pub(crate) Point);

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.snapshot", self.0.at.0, self.0.number)
    }
}

/// The name of an unfinished snapshot.
pub(crate) fn snapshot_part_name(point: Point) -> String {
    format!("{:016x}-{:016x}.snapshot-part", point.at.0, point.number)
}

/// The kind of a file in the folder, with the contents of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment(u32),
    Start(StartMark),
    Synced(SyncedMark),
    Snapshot(SnapshotName),
    /// An unfinished snapshot.
    SnapshotPart,
    Preallocated(u32),
    /// A segment or a snapshot that was set aside.
    Damaged,
    /// Not the log's.
    Other,
}

impl FileKind {
    pub(crate) fn of(name: &str) -> Self {
        Self::parse(name).unwrap_or(Self::Other)
    }

    fn parse(name: &str) -> Option<Self> {
        let (stem, suffix) = name.rsplit_once('.')?;
        Some(match suffix {
            "log" => Self::Segment(hex_u32(stem)?),
            "damaged" => hex_u32(stem).map(|_| Self::Damaged)?,
            "preallocated" => Self::Preallocated(hex_u32(stem)?),
            "start" => Self::Start(StartMark(point(stem)?)),
            "synced" => Self::Synced(SyncedMark(point(stem)?)),
            "snapshot" => Self::Snapshot(SnapshotName(point(stem)?)),
            "snapshot-damaged" => point(stem).map(|_| Self::Damaged)?,
            "snapshot-part" => point(stem).map(|_| Self::SnapshotPart)?,
            _ => return None,
        })
    }
}

fn point(text: &str) -> Option<Point> {
    let (at, number) = text.split_once('-')?;
    Some(Point {
        at: Position(hex::<16>(at)?),
        number: hex::<16>(number)?,
    })
}

fn hex_u32(text: &str) -> Option<u32> {
    u32::try_from(hex::<8>(text)?).ok()
}

/// Exactly `DIGITS` lower-case hexadecimal digits: one number has one name.
fn hex<const DIGITS: usize>(text: &str) -> Option<u64> {
    let plain = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != DIGITS || !text.bytes().all(plain) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_left_alone() {
        for segment in [0, 1, 0xabc, u32::MAX] {
            let name = segment_name(segment);
            assert_eq!(FileKind::of(&name), FileKind::Segment(segment));
            assert_eq!(FileKind::of(&damaged_name(segment)), FileKind::Damaged);
            let name = preallocated_name(segment);
            assert_eq!(FileKind::of(&name), FileKind::Preallocated(segment));
            let mark = StartMark(Point {
                at: first_record(segment),
                number: 0xfedc_ba98_7654_3210,
            });
            assert_eq!(FileKind::of(&mark.to_string()), FileKind::Start(mark));
            let mark = SyncedMark(Point {
                at: Position(0x12_0000_1000),
                number: u64::from(segment),
            });
            assert_eq!(FileKind::of(&mark.to_string()), FileKind::Synced(mark));
            let name = SnapshotName(mark.0);
            assert_eq!(FileKind::of(&name.to_string()), FileKind::Snapshot(name));
            let part = snapshot_part_name(mark.0);
            assert_eq!(FileKind::of(&part), FileKind::SnapshotPart);
        }
        for other in [
            "",
            ".log",
            "1.log",
            "0000000A.log",
            "000000001.log",
            "+0000001.log",
            "00000001.log.bak",
            "00000001-1.start",
            "lock",
            "é0000001.log",
        ] {
            assert_eq!(FileKind::of(other), FileKind::Other, "{other}");
            assert_eq!(is_log_file(other), other == LOCK_NAME, "{other}");
        }
    }
}

//! The names of a log's files. Numbers only: nothing a user chose ever becomes a file name.

use std::fmt;

use lockgate_core::Position;

use crate::format::Point;

/// A segment's file name.
pub(crate) fn segment_name(segment: u32) -> String {
    format!("{segment:08x}.log")
}

/// The name a damaged segment keeps when the log no longer needs it: set aside, never deleted.
pub(crate) fn damaged_name(segment: u32) -> String {
    format!("{segment:08x}.damaged")
}

/// Where the log starts: an empty file whose *name* says it, because a rename changes it in one step
/// and one folder sync makes it durable. It tells a segment that was trimmed from one that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StartMark {
    /// The first segment. Its header was durable before the mark was made.
    pub(crate) segment: u32,
    /// The number of the first record in it.
    pub(crate) number: u64,
}

impl StartMark {
    /// Where a log starts that nothing was ever trimmed from.
    pub(crate) const FIRST: Self = Self {
        segment: 1,
        number: 1,
    };
}

impl fmt::Display for StartMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:016x}.start", self.segment, self.number)
    }
}

/// How far the log was known to be durable when a recovery had to cut the very records that said so:
/// another empty file whose name says it. The next epoch's first segment says it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SyncedMark(pub(crate) Point);

impl fmt::Display for SyncedMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.synced", self.0.at.0, self.0.number)
    }
}

/// A complete snapshot: as of which point is in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotName(pub(crate) Point);

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.snapshot", self.0.at.0, self.0.number)
    }
}

/// The name of a snapshot while it is written.
pub(crate) fn snapshot_part_name(point: Point) -> String {
    format!("{:016x}-{:016x}.snapshot-part", point.at.0, point.number)
}

/// What a file name in the folder means to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment(u32),
    Start(StartMark),
    Synced(SyncedMark),
    Snapshot(SnapshotName),
    /// Not the log's.
    Other,
}

impl FileKind {
    pub(crate) fn of(name: &str) -> Self {
        if let Some(digits) = name.strip_suffix(".log")
            && let Some(segment) = hex::<8>(digits)
            && let Ok(segment) = u32::try_from(segment)
        {
            return Self::Segment(segment);
        }
        if let Some(rest) = name.strip_suffix(".start")
            && let Some((segment, number)) = rest.split_once('-')
            && let (Some(segment), Some(number)) = (hex::<8>(segment), hex::<16>(number))
            && let Ok(segment) = u32::try_from(segment)
        {
            return Self::Start(StartMark { segment, number });
        }
        if let Some(rest) = name.strip_suffix(".synced")
            && let Some((at, number)) = rest.split_once('-')
            && let (Some(at), Some(number)) = (hex::<16>(at), hex::<16>(number))
        {
            let at = Position(at);
            return Self::Synced(SyncedMark(Point { at, number }));
        }
        if let Some(rest) = name.strip_suffix(".snapshot")
            && let Some((at, number)) = rest.split_once('-')
            && let (Some(at), Some(number)) = (hex::<16>(at), hex::<16>(number))
        {
            let at = Position(at);
            return Self::Snapshot(SnapshotName(Point { at, number }));
        }
        Self::Other
    }
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
            assert_eq!(FileKind::of(&damaged_name(segment)), FileKind::Other);
            let mark = StartMark {
                segment,
                number: 0xfedc_ba98_7654_3210,
            };
            assert_eq!(FileKind::of(&mark.to_string()), FileKind::Start(mark));
            let mark = SyncedMark(Point {
                at: Position(0x12_0000_1000),
                number: u64::from(segment),
            });
            assert_eq!(FileKind::of(&mark.to_string()), FileKind::Synced(mark));
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
        }
    }
}

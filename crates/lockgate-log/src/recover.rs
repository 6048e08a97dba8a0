//! Recovery: finds the surviving records in a folder of any state.
//!
//! It starts at a snapshot's position, or at the log's start. Segments before that only hold
//! payloads: readers know them, recovery does not check them, and a missing one was released.
//!
//! One number, `synced`, distinguishes two kinds of damage. It is the highest position that any
//! header, record or mark calls durable, or that a snapshot stands at. Unreadable bytes *before* it
//! were durable once. They are *middle* damage: it stays where it is, and the missing record
//! numbers count it. Unreadable bytes *from it on* were never promised. They are the *tail*:
//! recovery cuts everything from there on, including intact records, because the ones before them
//! are gone.
//!
//! Reading makes a [`Plan`] and changes nothing; only [`apply`] changes the folder. After a crash
//! in [`apply`], another recovery sees the same records: a cut only removes what the same rule
//! would cut again.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_core::{
    DamagedRange, Disk, DiskError, DiskFile, LogError, LogRecord, OpenMode, Position, RecordStamp,
    RecoveryReport,
};

use crate::{
    format::{
        FoundHeader, Point, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, SegmentHeader, VERSION,
        first_record, offset_of, position, segment_of, segment_start,
    },
    names::{
        FileKind, SnapshotName, StartMark, SyncedMark, damaged_name, preallocated_name,
        segment_name,
    },
    scan::SegmentScan,
    shared::SegmentInfo,
};

/// Bytes copied at a time when surviving bytes are written again.
const REWRITE_BYTES: usize = 1 << 20;

/// Bytes read at a time of a file that the disk does not read as a whole.
const COPIED_BYTES: usize = 4 << 10;

/// What appending and reading need to know after a recovery.
pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    /// Every segment that holds records.
    pub(crate) segments: BTreeMap<u32, SegmentInfo>,
    /// Every segment file with unreadable bytes: set aside later, not deleted.
    pub(crate) damaged: BTreeSet<u32>,
    pub(crate) start: Option<StartMark>,
    /// The number of the next record.
    pub(crate) next_number: u64,
    /// The segment that the next epoch begins with.
    pub(crate) next_segment: u32,
    pub(crate) preallocated: Vec<u32>,
    pub(crate) plan: Plan,
}

/// The changes of a recovery, in this order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Written first: the cut may remove the records that distinguish damage from a tail.
    pub(crate) keep_synced: Option<SyncedMark>,
    pub(crate) remove_segments: Vec<u32>,
    /// A segment to cut, and where.
    pub(crate) cut_file: Option<(u32, u64)>,
    /// Segments to write again over themselves, from an offset on, and to sync.
    rewrite: Vec<(u32, u64)>,
    /// Files that another file makes unnecessary. They may be removed only when that other file is
    /// durable: after a mere kill it may not be, and a power cut could keep the removal and lose
    /// that file.
    pub(crate) leftovers: Vec<String>,
}

/// Where recovery starts; `None` for the log's start.
pub(crate) fn starting_point(disk: &dyn Disk, from: Position) -> Result<Option<Point>, LogError> {
    if from == Position(0) {
        return Ok(None);
    }
    let names = disk.list()?;
    let mut points = names.iter().filter_map(|name| match FileKind::of(name) {
        FileKind::Snapshot(SnapshotName(point)) => Some(point),
        _ => None,
    });
    let point = points.find(|point| point.at == from);
    let is_in_a_segment = offset_of(from) >= SEGMENT_HEADER_LEN;
    point
        .filter(|_| is_in_a_segment)
        .map(Some)
        .ok_or(LogError::Unsupported {
            what: "recover from a position no snapshot stands at",
        })
}

/// Reads all records from `from` on, or from the log's start. Changes nothing.
pub(crate) fn read(
    disk: &dyn Disk,
    from: Option<Point>,
    visit: &mut dyn FnMut(LogRecord, RecordStamp),
) -> Result<Recovered, LogError> {
    let mut recovery = Recovery::new(disk, survey(disk)?, from)?;
    recovery.read_segments(visit)?;
    recovery.finish()
}

/// Cuts the tail, makes the rest durable, and removes unnecessary files.
pub(crate) fn apply(disk: &dyn Disk, plan: &Plan) -> Result<(), LogError> {
    if let Some(mark) = plan.keep_synced {
        disk.open(&mark.to_string(), OpenMode::CreateNew)?;
        disk.sync_folder()?;
    }
    for &segment in &plan.remove_segments {
        disk.remove(&segment_name(segment))?;
    }
    if let Some((segment, end)) = plan.cut_file {
        let file = disk.open(&segment_name(segment), OpenMode::Existing)?;
        file.set_len(end)?;
        let is_synced_below = plan.rewrite.iter().any(|&(other, _)| other == segment);
        if !is_synced_below {
            file.sync()?;
        }
    }
    for &(segment, from) in &plan.rewrite {
        let file = disk.open(&segment_name(segment), OpenMode::Existing)?;
        write_again(&*file, from)?;
        file.sync()?;
    }
    disk.sync_folder()?;
    for name in &plan.leftovers {
        disk.remove(name)?;
    }
    Ok(())
}

/// A segment file and its header.
pub(crate) struct FoundSegment {
    pub(crate) number: u32,
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) bytes: u64,
}

/// The contents of the folder, as far as names and headers show them.
pub(crate) struct Survey {
    start: Option<StartMark>,
    pub(crate) segments: Vec<FoundSegment>,
    /// The highest point that a header or a mark calls durable.
    synced: Option<Point>,
    synced_marks: Vec<SyncedMark>,
    preallocated: Vec<u32>,
    leftovers: Vec<String>,
}

/// Lists the folder and reads all headers. Changes nothing: a folder of a newer version must stay
/// as it is.
pub(crate) fn survey(disk: &dyn Disk) -> Result<Survey, LogError> {
    let mut marks = Vec::new();
    let mut synced_marks = Vec::new();
    let mut numbers = Vec::new();
    let mut snapshots = Vec::new();
    let mut preallocated = Vec::new();
    let mut leftovers = Vec::new();
    for name in disk.list()? {
        match FileKind::of(&name) {
            FileKind::Segment(number) => numbers.push(number),
            FileKind::Start(mark) => marks.push(mark),
            FileKind::Synced(mark) => synced_marks.push(mark),
            FileKind::Snapshot(snapshot) => snapshots.push(snapshot),
            FileKind::SnapshotPart => leftovers.push(name),
            FileKind::Preallocated(number) => preallocated.push(number),
            FileKind::Damaged | FileKind::Other => {}
        }
    }
    marks.sort_unstable();
    numbers.sort_unstable();
    preallocated.sort_unstable();

    let mut found = Vec::with_capacity(numbers.len());
    for &number in &numbers {
        let (header, bytes) = read_header(disk, number)?;
        found.push(FoundSegment {
            number,
            header,
            bytes,
        });
    }
    let start = marks.pop();
    doubt_headers(&mut found, start);
    leftovers.extend(marks.iter().map(StartMark::to_string));
    // A snapshot from before the log's start is useless.
    let is_trimmed =
        |snapshot: &&SnapshotName| start.is_some_and(|start| start.is_behind(snapshot.0.at));
    let trimmed = snapshots.iter().filter(is_trimmed);
    leftovers.extend(trimmed.map(SnapshotName::to_string));
    let headers = found.iter().filter_map(|segment| segment.header);
    let in_headers = headers.map(|header| header.synced).max();
    // Once a later epoch has begun, its header says more than the mark.
    let stale = synced_marks.extract_if(.., |mark| Some(mark.0) <= in_headers);
    leftovers.extend(stale.map(|mark| mark.to_string()));
    let in_marks = synced_marks.iter().map(|mark| mark.0).max();
    let first = start.map(|mark| mark.0);
    Ok(Survey {
        start,
        segments: found,
        synced: in_headers.max(in_marks).max(first),
        synced_marks,
        preallocated,
        leftovers,
    })
}

/// Treats headers as unreadable whose first number cannot be right: it differs from the one in the
/// start mark, or the bytes between it and the header before cannot hold the records in between.
/// Trusting such a header would take all that follows for a torn tail, or continue with its
/// numbers.
fn doubt_headers(found: &mut [FoundSegment], start: Option<StartMark>) {
    let mut before = start.unwrap_or(StartMark::FIRST).0;
    let first = before.at;
    let judged = found
        .iter_mut()
        .filter(|found| first_record(found.number) >= first);
    for segment in judged {
        let Some(header) = segment.header else {
            continue;
        };
        let at = first_record(segment.number);
        if before.admits(segment.number, header.first_number) && header.synced.at <= at {
            before = Point {
                at,
                number: header.first_number,
            };
        } else {
            segment.header = None;
        }
    }
}

fn read_header(disk: &dyn Disk, number: u32) -> Result<(Option<SegmentHeader>, u64), LogError> {
    let name = segment_name(number);
    let file = disk.open(&name, OpenMode::Read)?;
    let mut block = vec![0; SEGMENT_HEADER_LEN as usize];
    let count = file.read_at(&mut block, 0)?;
    match SegmentHeader::decode(&block[..count], number) {
        FoundHeader::Valid(header) => Ok((Some(header), file.len()?)),
        FoundHeader::Unreadable => Ok((None, file.len()?)),
        FoundHeader::Unstable => Err(LogError::Unsupported {
            what: "read a folder of format version 0, which was never stable",
        }),
        FoundHeader::Misnamed(is) => Err(LogError::Misnamed {
            what: format!("{} in {}", name, disk.describe()),
            contents: segment_name(is),
        }),
        FoundHeader::Newer(version) => Err(LogError::NewerFormat {
            what: format!("{} in {}", name, disk.describe()),
            found: version,
            known: VERSION,
        }),
    }
}

/// A part of the log that could not be read.
struct Gap {
    from: Position,
    /// The segments that it touches.
    segments: BTreeSet<u32>,
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    start: Option<StartMark>,
    /// Where reading starts, and the number of the first record there.
    from: Point,
    /// Nothing before it is checked.
    floor: Position,
    is_at_snapshot: bool,
    /// Whether anything shows that a log was ever begun here.
    is_begun: bool,
    /// The segments from there on.
    found: Vec<FoundSegment>,
    synced_marks: Vec<SyncedMark>,
    preallocated: Vec<u32>,
    plan: Plan,
    report: RecoveryReport,
    segments: BTreeMap<u32, SegmentInfo>,
    /// The number that the next record should have.
    expected: u64,
    /// Where the records read so far end.
    end: Position,
    /// An unreadable part that no record has followed yet.
    gap: Option<Gap>,
    /// The files with unreadable bytes.
    damaged: BTreeSet<u32>,
    /// The highest point known to have been durable, as far as records were searched for it.
    synced: Point,
    /// Whether all records were searched for it.
    looked_ahead: bool,
    /// Where the tail to cut starts.
    cut: Option<Position>,
}

impl<'a> Recovery<'a> {
    fn new(disk: &'a dyn Disk, survey: Survey, from: Option<Point>) -> Result<Self, LogError> {
        let Survey {
            start,
            segments: mut found,
            mut synced,
            synced_marks,
            preallocated,
            leftovers,
        } = survey;
        if let Some(from) = from
            && start.is_some_and(|start| start.is_behind(from.at))
        {
            return Err(LogError::Unsupported {
                what: "recover from before where it was trimmed to",
            });
        }
        let epoch = found
            .iter()
            .filter_map(|segment| segment.header.map(|header| header.epoch))
            .max();
        // Without a mark, the log is assumed to start at its very first segment and record: missing
        // ones count as lost, because nothing says that they were trimmed.
        let mark = start.unwrap_or(StartMark::FIRST);
        let is_begun = start.is_some() || from.is_some();
        // Everything before a complete snapshot was durable.
        synced = synced.max(from);
        let is_within = offset_of(mark.0.at) > SEGMENT_HEADER_LEN;
        let floor = match from {
            Some(from) => from.at,
            None if is_within => mark.0.at,
            // A segment's header belongs to its first record.
            None => segment_start(segment_of(mark.0.at)),
        };
        let is_at_snapshot = from.is_some();
        let from = from.unwrap_or(mark.0);
        let payloads: Vec<FoundSegment> = found
            .extract_if(.., |segment| segment.number < segment_of(from.at))
            .collect();
        let first = found.first().map(|segment| segment.number);
        if let Some(first) = first
            && synced.is_none()
            && !is_first_attempt(disk, &found)?
        {
            // No header can be read. A power cut cannot do that to a log that was ever begun.
            synced = Some(Point {
                at: first_record(first),
                number: from.number,
            });
        }
        let mut recovery = Self {
            disk,
            start,
            report: RecoveryReport {
                epoch: epoch.unwrap_or_default(),
                trimmed: match start {
                    Some(start) if start != StartMark::FIRST => start.0.at,
                    _ => Position(0),
                },
                ..RecoveryReport::default()
            },
            from,
            floor,
            is_at_snapshot,
            is_begun,
            segments: BTreeMap::new(),
            expected: from.number,
            end: from.at,
            gap: None,
            damaged: BTreeSet::new(),
            synced: synced.unwrap_or_default(),
            looked_ahead: false,
            cut: None,
            found,
            synced_marks,
            preallocated,
            plan: Plan {
                leftovers,
                ..Plan::default()
            },
        };
        for payload in payloads {
            recovery.note_segment(&payload, None);
            if payload.header.is_none() {
                recovery.damaged.insert(payload.number);
            }
        }
        if first != Some(segment_of(from.at)) && (is_begun || first.is_some()) {
            recovery.open_gap(segment_start(segment_of(from.at)));
        }
        Ok(recovery)
    }

    /// Makes the segment known to readers.
    fn note_segment(&mut self, segment: &FoundSegment, told: Option<SegmentInfo>) {
        let info = match segment.header {
            Some(header) => SegmentInfo {
                generation: Some(header.generation),
                first_number: Some(header.first_number),
                bytes: segment.bytes,
            },
            None => told.unwrap_or(SegmentInfo {
                generation: None,
                first_number: None,
                bytes: segment.bytes,
            }),
        };
        self.segments.insert(segment.number, info);
    }

    fn read_segments(
        &mut self,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<(), LogError> {
        let mut previous = None;
        for index in 0..self.found.len() {
            let FoundSegment { number, header, .. } = self.found[index];
            if let Some(previous) = previous
                && number != previous + 1
            {
                self.open_gap(segment_start(previous + 1));
            }
            previous = Some(number);
            if self.floor > segment_start(number) {
                // The header concerns records that are not checked, and the records themselves tell
                // the generation.
                if header.is_none() {
                    self.damaged.insert(number);
                }
            } else if let Some(header) = header {
                if header.first_number > self.expected && self.gap.is_none() {
                    self.open_gap(self.end);
                }
                let (to, cut) = (first_record(number), segment_start(number));
                self.close_gap(index, to, header.first_number, cut)?;
                if self.cut.is_some() {
                    break;
                }
                self.end = first_record(number);
            } else {
                self.open_gap(segment_start(number));
            }
            self.read_records(index, visit)?;
            if self.cut.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Passes the records of one segment on.
    fn read_records(
        &mut self,
        index: usize,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<(), LogError> {
        let FoundSegment {
            number,
            header,
            bytes,
        } = self.found[index];
        let file = self.disk.open(&segment_name(number), OpenMode::Read)?;
        let generation = header.map(|header| header.generation);
        let mut scan = SegmentScan::new(&*file, number, generation)?;
        let starts_at = first_record(number).max(self.from.at);
        let mut offset = u64::from(offset_of(starts_at));
        let mut first_number = None;
        scan.expect_missing(Point::records_max(self.end, starts_at));
        while let Some(record) = scan.next(offset, self.expected)? {
            let next_offset = record.end();
            if u64::from(offset_of(record.at)) != offset || record.header.number != self.expected {
                self.open_gap(position(number, to_u32(offset)));
            }
            self.close_gap(index, record.at, record.header.number, record.at)?;
            if self.cut.is_some() {
                break;
            }
            first_number.get_or_insert(record.header.number);
            self.synced = self.synced.max(record.header.synced);
            self.report.epoch = self.report.epoch.max(record.header.epoch);
            self.report.records += 1;
            self.report.bytes += record.header.record_len() as u64;
            self.expected = record.header.number.saturating_add(1);
            let stamp = RecordStamp {
                number: record.header.number,
                epoch: record.header.epoch,
            };
            let found = LogRecord {
                position: record.at,
                payload: record.shared_payload(),
            };
            visit(found, stamp);
            offset = next_offset;
            self.end = position(number, to_u32(offset));
            scan.expect_missing(0);
        }
        let told = scan.generation().map(|generation| SegmentInfo {
            generation: Some(generation),
            first_number: Some(first_number.unwrap_or(self.expected)),
            bytes,
        });
        // Before the starting point there may be payloads, even without a readable header.
        if header.is_some() || told.is_some() || starts_at > first_record(number) {
            let segment = FoundSegment {
                number,
                header,
                bytes,
            };
            self.note_segment(&segment, told);
        }
        Ok(())
    }

    /// Notes that the log cannot be read at `at`.
    fn open_gap(&mut self, at: Position) {
        let at = at.max(self.floor);
        let gap = self.gap.get_or_insert_with(|| Gap {
            from: at,
            segments: BTreeSet::new(),
        });
        gap.segments.insert(segment_of(at));
    }

    /// The log is readable again at `to`, where record `number` should be: decides whether the gap
    /// is damage or tail. `cut` is where to cut if the records behind the gap must go and the gap
    /// must stay.
    fn close_gap(
        &mut self,
        index: usize,
        to: Position,
        number: u64,
        cut: Position,
    ) -> Result<(), LogError> {
        let Some(gap) = self.gap.take() else {
            return Ok(());
        };
        if gap.from >= self.synced.at || number > self.synced.number {
            self.look_ahead(index, to)?;
        }
        if gap.from >= self.synced.at {
            self.cut_gap(&gap);
        } else if number > self.synced.number.max(self.expected) {
            // The gap reaches beyond what was durable, so everything behind it is the tail.
            self.end_in_gap(gap);
            self.cut = Some(cut);
        } else {
            let lost = number.saturating_sub(self.expected);
            if lost > 0 {
                self.note_missing(gap.from, segment_of(to));
            }
            // A missing file that held no record is no loss.
            if lost > 0 || gap.segments.iter().any(|number| self.is_found(*number)) {
                self.note_damage(gap, to, lost);
            }
            self.expected = self.expected.max(number);
        }
        Ok(())
    }

    /// Nothing from the gap on is known to have been durable: it is the tail.
    fn cut_gap(&mut self, gap: &Gap) {
        // But the file of the starting point existed, or nothing could have named it.
        let segment = segment_of(self.from.at);
        if segment_of(gap.from) == segment {
            self.note_missing(gap.from, segment.saturating_add(1));
        }
        self.cut = Some(gap.from);
    }

    /// The log ends in a gap with durable records. The damaged range ends where the next epoch
    /// begins; [`finish`](Self::finish) sets that.
    fn end_in_gap(&mut self, gap: Gap) {
        let lost = self.synced.number.saturating_sub(self.expected);
        // The durable records end in the segment of that point, or before it if nothing of it was
        // written.
        let durable = self.synced.at;
        let is_begun = offset_of(durable) > SEGMENT_HEADER_LEN;
        let behind_durable = segment_of(durable).saturating_add(u32::from(is_begun));
        // A point in a segment, or at its first record, proves that the file existed.
        let behind_gap = segment_of(gap.from).saturating_add(1);
        self.note_missing(gap.from, behind_durable.max(behind_gap));
        self.note_damage(gap, Position(u64::MAX), lost);
        self.expected += lost;
    }

    /// Records the missing files, from the one of `from` to before segment `end`.
    fn note_missing(&mut self, from: Position, end: u32) {
        let mut next = segment_of(from);
        let found = self.found.iter().map(|found| found.number);
        let judged = next..end;
        for there in found.filter(|number| judged.contains(number)).chain([end]) {
            if there > next {
                let missing = segment_start(next)..segment_start(there);
                self.report.missing.push(missing);
            }
            next = there.saturating_add(1);
        }
    }

    fn is_found(&self, segment: u32) -> bool {
        self.found.iter().any(|found| found.number == segment)
    }

    fn note_damage(&mut self, gap: Gap, to: Position, records: u64) {
        let segments = gap.segments.into_iter();
        let segments: Vec<u32> = segments.filter(|number| self.is_found(*number)).collect();
        let names: Vec<String> = segments
            .iter()
            .map(|&number| segment_name(number))
            .collect();
        // At a snapshot, nothing is lost if no number is missing.
        if records > 0 || !self.is_at_snapshot || gap.from > self.floor {
            self.report.damaged.push(DamagedRange {
                from: gap.from,
                to,
                records,
                kept_as: (!names.is_empty()).then(|| names.join(", ")),
            });
        }
        self.damaged.extend(segments);
    }

    /// Searches every record from `from` on for a higher durable position. Runs at most once, so
    /// recovery reads nothing more than twice.
    fn look_ahead(&mut self, index: usize, from: Position) -> Result<(), LogError> {
        if std::mem::replace(&mut self.looked_ahead, true) {
            return Ok(());
        }
        let mut number_min = self.expected;
        let mut end = self.end;
        for found in &self.found[index..] {
            let file = self
                .disk
                .open(&segment_name(found.number), OpenMode::Read)?;
            let generation = found.header.map(|header| header.generation);
            let mut scan = SegmentScan::new(&*file, found.number, generation)?;
            let mut offset = if segment_of(from) == found.number {
                u64::from(offset_of(from))
            } else {
                u64::from(SEGMENT_HEADER_LEN)
            };
            scan.expect_missing(Point::records_max(
                end,
                position(found.number, to_u32(offset)),
            ));
            while let Some(record) = scan.next(offset, number_min)? {
                self.synced = self.synced.max(record.header.synced);
                self.report.epoch = self.report.epoch.max(record.header.epoch);
                number_min = record.header.number.saturating_add(1);
                offset = record.end();
                end = position(found.number, to_u32(offset));
                scan.expect_missing(0);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Recovered, LogError> {
        let last = self.found.last().map(|found| found.number);
        // The number of a lost segment is not used again. Behind the last number there is none:
        // then the file exists already, which is an error.
        let mut next_segment_min = segment_of(self.from.at).saturating_add(self.is_begun.into());
        if offset_of(self.synced.at) > SEGMENT_HEADER_LEN {
            // It held records, also if it is gone as a whole. A mark may name a point in it.
            next_segment_min = next_segment_min.max(segment_of(self.synced.at).saturating_add(1));
        }
        let mut next_segment = last.map_or(1, |last| last.saturating_add(1));
        next_segment = next_segment.max(next_segment_min);
        if self.expected < self.synced.number && self.gap.is_none() {
            self.open_gap(self.end);
        }
        let mut ends_in_damage = false;
        if let Some(gap) = self.gap.take() {
            // No readable record follows.
            if gap.from < self.synced.at {
                self.end_in_gap(gap);
                ends_in_damage = true;
            } else {
                self.cut_gap(&gap);
            }
        }
        if let Some(cut) = self.cut {
            let mark = SyncedMark(self.synced);
            if !self.report.damaged.is_empty() && !self.synced_marks.contains(&mark) {
                let name = mark.to_string();
                let is_there = self.plan.leftovers.iter().position(|other| *other == name);
                match is_there {
                    // The cut may remove the header that says the same.
                    Some(index) => _ = self.plan.leftovers.remove(index),
                    None => self.plan.keep_synced = Some(mark),
                }
            }
            next_segment = self.cut_from(cut)?.max(next_segment_min);
        } else if let Some(last) = last
            && last == segment_of(self.end)
            && !ends_in_damage
        {
            self.cut_file(last, self.end)?;
        }
        for range in &mut self.report.damaged {
            range.to = range.to.min(first_record(next_segment));
        }
        self.plan.rewrite = self.rewrites();
        Ok(Recovered {
            report: self.report,
            damaged: self.damaged,
            segments: self.segments,
            start: self.start,
            next_number: self.expected,
            next_segment,
            preallocated: self.preallocated,
            plan: self.plan,
        })
    }

    /// Cuts everything from `cut` on. Returns the number of the next segment.
    fn cut_from(&mut self, cut: Position) -> Result<u32, LogError> {
        let keeps_beginning = offset_of(cut) >= SEGMENT_HEADER_LEN;
        let first_removed = segment_of(cut).saturating_add(keeps_beginning.into());
        let removed: Vec<FoundSegment> = self
            .found
            .extract_if(.., |found| found.number >= first_removed)
            .collect();
        for segment in &removed {
            self.count_cut(segment, SEGMENT_HEADER_LEN.into())?;
            self.segments.remove(&segment.number);
            self.plan.remove_segments.push(segment.number);
        }
        if keeps_beginning && self.found.last().map(|last| last.number) == Some(segment_of(cut)) {
            self.cut_file(segment_of(cut), cut)?;
        }
        Ok(self
            .found
            .last()
            .map_or(first_removed, |last| last.number.saturating_add(1)))
    }

    /// Cuts the last file at `end`.
    fn cut_file(&mut self, segment: u32, end: Position) -> Result<(), LogError> {
        let end = u64::from(offset_of(end));
        let Some(index) = self.found.iter().position(|found| found.number == segment) else {
            return Ok(());
        };
        let found = &self.found[index];
        let found = FoundSegment {
            number: found.number,
            header: found.header,
            bytes: found.bytes,
        };
        if found.bytes > end {
            self.count_cut(&found, end)?;
            if let Some(info) = self.segments.get_mut(&segment) {
                info.bytes = end;
            }
            self.plan.cut_file = Some((segment, end));
        }
        Ok(())
    }

    /// Counts the bytes of a torn tail, without old bytes behind it in blocks that were used
    /// before.
    fn count_cut(&mut self, segment: &FoundSegment, from: u64) -> Result<(), LogError> {
        let name = segment_name(segment.number);
        let file = self.disk.open(&name, OpenMode::Read)?;
        let generation = segment.header.map(|header| header.generation);
        let mut scan = SegmentScan::new(&*file, segment.number, generation)?;
        let end = match segment.header {
            Some(header) if !header.was_blank => scan.end_of_generation(from, self.expected)?,
            _ => scan.end_of_data(from)?,
        };
        self.report.tail_bytes_cut += end - from;
        Ok(())
    }

    /// The parts to make durable: every surviving byte. Bytes that may not be synced are written
    /// again first: after a failed sync the cache may hold pages that count as clean and never
    /// reached the disk, and another sync would report success without writing them.
    fn rewrites(&self) -> Vec<(u32, u64)> {
        let since = self.synced.at;
        let survivors = self.found.iter().filter(|found| {
            found.number >= segment_of(since) && self.segments.contains_key(&found.number)
        });
        survivors
            .map(|found| {
                // A header does not say whether it is durable itself, so it is written with the
                // first record.
                let from = if since > first_record(found.number) {
                    u64::from(offset_of(since))
                } else {
                    0
                };
                (found.number, from)
            })
            .collect()
    }
}

/// Puts a copy of what can be read in the place of a segment, and keeps the segment as damaged.
pub(crate) fn set_aside(disk: &dyn Disk, segment: u32) -> Result<(), DiskError> {
    let name = segment_name(segment);
    let taken: BTreeSet<String> = disk.list()?.into_iter().collect();
    if taken.contains(&damaged_name(segment)) {
        // It is the copy, and the disk does not read that either.
        disk.remove(&name)?;
        return disk.sync_folder();
    }
    // What a crash leaves of the copy is a file for a segment to come.
    let free = (0..u32::MAX).map(preallocated_name);
    let mut free = free.filter(|name| !taken.contains(name));
    let copy = free.next().unwrap_or_else(|| preallocated_name(u32::MAX));
    let copied = match copy_readable(disk, &name, &copy) {
        Ok(()) => true,
        Err(error) if error.is_full() => match disk.remove(&copy) {
            Err(error) if !error.is_not_found() => return Err(error),
            // There is none if not even its name had room.
            _ => false,
        },
        Err(error) => return Err(error),
    };
    disk.rename(&name, &damaged_name(segment))?;
    if copied {
        disk.rename(&copy, &name)?;
    }
    disk.sync_folder()
}

/// Blocks that cannot be read become zeros.
fn copy_readable(disk: &dyn Disk, from: &str, to: &str) -> Result<(), DiskError> {
    let file = disk.open(from, OpenMode::Read)?;
    let copy = disk.open(to, OpenMode::CreateNew)?;
    let len = file.len()?;
    copy.set_len(len)?;
    let mut block = [0; COPIED_BYTES];
    for at in (0..len).step_by(COPIED_BYTES) {
        let count = usize::try_from(len - at).map_or(COPIED_BYTES, |left| left.min(COPIED_BYTES));
        let mut read = 0;
        while read < count {
            match file.read_at(&mut block[read..count], at + read as u64) {
                Ok(0) | Err(_) => break,
                Ok(more) => read += more,
            }
        }
        copy.write_at(&block[..read], at)?;
    }
    copy.sync()
}

/// Durably records where the log starts.
pub(crate) fn mark_start(disk: &dyn Disk, mark: StartMark) -> Result<StartMark, DiskError> {
    disk.open(&mark.to_string(), OpenMode::CreateNew)?;
    disk.sync_folder()?;
    Ok(mark)
}

/// Writes the file's bytes from `from` on over themselves.
fn write_again(file: &dyn DiskFile, from: u64) -> Result<(), DiskError> {
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut at = from;
    loop {
        let count = file.read_at(&mut buffer, at)?;
        if count == 0 {
            return Ok(());
        }
        file.write_at(&buffer[..count], at)?;
        at += count as u64;
    }
}

/// Whether the folder is what a power cut leaves when the very first segment is created: only that
/// file, with nothing in it. A header fits into one sector, so it is complete or absent.
fn is_first_attempt(disk: &dyn Disk, found: &[FoundSegment]) -> Result<bool, LogError> {
    let [only] = found else {
        return Ok(false);
    };
    let file = disk.open(&segment_name(only.number), OpenMode::Read)?;
    let mut scan = SegmentScan::new(&*file, only.number, None)?;
    Ok(only.number == 1 && scan.end_of_data(0)? == 0)
}

fn to_u32(offset: u64) -> u32 {
    u32::try_from(offset).expect("segments are addressed with 32 bits")
}

const _: () = assert!(SEGMENT_HEADER_LEN as usize > RECORD_HEADER_LEN);

/// Renames a released segment with unreadable bytes, so that it is kept. If there is a file of that name, that is the
/// original and this is a copy of what could be read of it: the copy goes.
pub(crate) fn keep_damaged(disk: &dyn Disk, segment: u32) -> Result<(), DiskError> {
    let (name, kept) = (segment_name(segment), damaged_name(segment));
    if disk.list()?.contains(&kept) {
        disk.remove(&name)
    } else {
        disk.rename(&name, &kept)
    }
}

//! Damaged bytes and files.

use std::{collections::BTreeMap, ops::Range};

use lockgate_core::{
    DiskOperation, Epoch, Log, LogError, LogRecord, LogSource, Position, RecordGroup,
    RecoveryReport,
};
use lockgate_sim::{Damage, Fault, FaultyDisk, PowerCut, SeededRandom};

use crate::history::{History, Step, open, recover, release_trimmed};

const SECTOR: usize = 512;
const SEGMENT_HEADER_LEN: u64 = 4_096;
const SEGMENT_HEADER_USED: u64 = 64;
const RECORD_HEADER_LEN: u64 = 44;

type Image = BTreeMap<String, Vec<u8>>;

/// A small log with several segments and epochs, its last records not known to be synced.
struct Sample {
    history: History,
    image: Image,
}

impl Sample {
    fn new() -> Self {
        use Step::{Append, Restart, Sync};
        let steps = [
            Append(vec![100, 700]),
            Sync,
            Append(vec![1_300, 5]),
            Sync,
            Append(vec![2_500, 30]),
            Append(vec![300]),
            Sync,
            Restart,
            Append(vec![60, 61]),
            Sync,
            Append(vec![900, 1_000, 1_100]),
            Append(vec![700]),
            Sync,
            Append(vec![1_200]),
            // Only the last group says that this one was synced.
            Append(vec![50, 51, 52]),
            Sync,
            Append(vec![40, 41]),
        ];
        let disk = FaultyDisk::new();
        let history = History::run(&disk, &steps);
        assert_eq!(history.error, None);
        let mut image = disk.image();
        let names = segments(&image);
        assert_eq!(names.len(), 4, "{disk:?}");
        // The zeros behind the last record of all are none of the sample, those before stay.
        let end = end_of(history.appended.last().unwrap());
        image.get_mut(&names[3]).unwrap().truncate(end);
        Self { history, image }
    }

    /// What must be found if these bytes are not what they were: the rules of the format, said again
    /// in the plainest way.
    fn expect(&self, hits: &[Hit]) -> Expected {
        let header_is_hit = |segment| hits.iter().any(|hit| hit.has_header(segment));
        let is_hit = |record: &LogRecord| hits.iter().any(|hit| hit.has_record(record));
        let records = &self.history.appended;
        // Highest position known to be synced, from all that can still be read.
        let in_records = records
            .iter()
            .zip(&self.history.synced_when_appended)
            .filter(|(record, _)| !is_hit(record))
            .map(|(_, synced)| *synced);
        let in_headers = self.header_synced().into_iter();
        let in_headers = in_headers
            .filter(|(segment, _)| !header_is_hit(*segment))
            .map(|(_, synced)| synced);
        // The start mark says that the first header was durable.
        let synced = in_records.chain(in_headers).max().unwrap_or_default();
        let synced = synced.max(Position((1 << 32) + SEGMENT_HEADER_LEN));

        let mut expected = Expected::default();
        let mut gap = None;
        for record in records {
            let (segment, start) = parts(record.position);
            if start == SEGMENT_HEADER_LEN && header_is_hit(segment) {
                let header_at = Position(segment << 32);
                if gap.is_none() && header_at >= synced {
                    expected.is_cut = true;
                    return expected;
                }
                gap.get_or_insert(0);
            } else if start == SEGMENT_HEADER_LEN {
                // A header that can be read ends a range: it says how many records were lost.
                expected.close(gap.take());
            }
            if is_hit(record) {
                if record.position >= synced {
                    // The tail starts here. A range that was open before holds what was durable.
                    expected.is_cut = true;
                    expected.close(gap);
                    return expected;
                }
                *gap.get_or_insert(0) += 1;
                continue;
            }
            expected.close(gap.take());
            expected.records.push(record.clone());
        }
        assert_eq!(
            gap, None,
            "the sample's last record is never known to be synced"
        );
        expected
    }

    /// The log with one to four stretches of noise in it.
    fn with_noise(&self, random: &mut SeededRandom) -> (Image, Vec<Hit>) {
        let mut image = self.image.clone();
        let names = segments(&image);
        let mut hits: Vec<Hit> = Vec::new();
        for _ in 0..1 + random.index(4) {
            let name = &names[random.index(names.len())];
            let file = image.get_mut(name).unwrap();
            let from = random.index(file.len());
            let len_max = [1, 100, 3_000][random.index(3)];
            let to = (from + 1 + random.index(len_max)).min(file.len());
            let hit = Hit::new(name, from, to);
            let is_new = |other: &Hit| {
                other.segment != hit.segment || !other.touches(hit.bytes.start, hit.bytes.end)
            };
            if hits.iter().all(is_new) {
                for byte in &mut file[from..to] {
                    // Never the byte that was there.
                    *byte ^= 1 + u8::try_from(random.below(255)).unwrap();
                }
                hits.push(hit);
            }
        }
        (image, hits)
    }

    /// What each segment's header says about synced positions.
    fn header_synced(&self) -> Vec<(u64, Position)> {
        segments(&self.image)
            .into_iter()
            .map(|name| {
                let bytes = &self.image[&name];
                let synced = u64::from_le_bytes(bytes[40..48].try_into().unwrap());
                (
                    u64::from_str_radix(&name[..8], 16).unwrap(),
                    Position(synced),
                )
            })
            .collect()
    }
}

/// Bytes of a segment that are not what they were.
#[derive(Clone, Debug)]
struct Hit {
    segment: u64,
    bytes: Range<u64>,
}

impl Hit {
    fn new(name: &str, from: usize, to: usize) -> Self {
        Self {
            segment: u64::from_str_radix(&name[..8], 16).unwrap(),
            bytes: from as u64..to as u64,
        }
    }

    fn touches(&self, start: u64, end: u64) -> bool {
        self.bytes.start < end && start < self.bytes.end
    }

    fn has_header(&self, segment: u64) -> bool {
        self.segment == segment && self.touches(0, SEGMENT_HEADER_USED)
    }

    fn has_record(&self, record: &LogRecord) -> bool {
        let (segment, start) = parts(record.position);
        let len = RECORD_HEADER_LEN + record.payload.len() as u64;
        self.segment == segment && self.touches(start, start + len)
    }
}

#[derive(Default)]
struct Expected {
    records: Vec<LogRecord>,
    lost: u64,
    ranges: u64,
    is_cut: bool,
}

impl Expected {
    /// A damaged range with so many records ends, if there was one.
    fn close(&mut self, gap: Option<u64>) {
        self.ranges += u64::from(gap.is_some());
        self.lost += gap.unwrap_or_default();
    }
}

fn parts(position: Position) -> (u64, u64) {
    (position.0 >> 32, position.0 & 0xffff_ffff)
}

/// Where a record ends in its file.
fn end_of(record: &LogRecord) -> usize {
    let end = parts(record.position).1 + RECORD_HEADER_LEN + record.payload.len() as u64;
    usize::try_from(end).unwrap()
}

fn positions(records: &[LogRecord]) -> Vec<Position> {
    records.iter().map(|record| record.position).collect()
}

fn segments(image: &Image) -> Vec<String> {
    let names = image.keys().filter(|name| name.ends_with(".log"));
    names.cloned().collect()
}

/// Recovers a damaged image twice, goes on with it, and checks what holds for any image.
fn check_image(image: &Image) -> Result<(RecoveryReport, Vec<LogRecord>), LogError> {
    let disk = FaultyDisk::from_image(image.clone());
    let mut log = open(&disk);
    let (report, records) = recover(&mut log)?;
    for missing in &report.missing {
        let is_there = |name: &String| {
            let number = u64::from_str_radix(&name[..8], 16).unwrap();
            missing.contains(&Position(number << 32))
        };
        assert!(!segments(image).iter().any(is_there), "{report:?}");
    }
    let reader = log.reader();
    for record in &records {
        assert_eq!(reader.read(record.position).unwrap(), record.payload);
    }
    let tail = log.tail();
    assert!(records.iter().all(|record| record.position < tail));
    drop(log);

    let disk = disk.crash(PowerCut::LoseAllUnsynced);
    let mut log = open(&disk);
    let (again, records_again) = recover(&mut log).unwrap();
    assert_eq!(records_again, records);
    assert_eq!(again.damaged, report.damaged, "{disk:?}");
    assert_eq!((again.epoch, again.tail_bytes_cut), (report.epoch, 0));
    assert_eq!(log.tail(), tail);
    drop(log);

    let mut history = History {
        appended: records.clone(),
        ..History::default()
    };
    append_to(&disk, report.epoch.next(), &mut history);
    let disk = disk.crash(PowerCut::LoseAllUnsynced);
    let mut log = open(&disk);
    let (later, found) = recover(&mut log).unwrap();
    assert_eq!(positions(&found), positions(&history.appended));
    assert_eq!(found, history.appended);
    // Of a missing file the next segment may tell that it held nothing.
    let mut lost = report.damaged.clone();
    lost.retain(|range| range.records > 0 || range.kept_as.is_some());
    let told = later.damaged.iter().filter(|range| lost.contains(range));
    assert_eq!(told.count(), lost.len(), "the same loss is told again");
    assert!(later.damaged.len() <= report.damaged.len(), "{later:?}");
    assert_eq!(later.tail_bytes_cut, 0);

    // Trimmed, the log is whole again, and what could not be read is still in the folder.
    log.begin_epoch(later.epoch.next()).unwrap();
    let named_before = disk.image().len();
    log.trim(log.tail()).unwrap();
    release_trimmed(&mut log).unwrap();
    drop(log);
    let set_aside = disk
        .image()
        .keys()
        .filter(|n| n.ends_with(".damaged"))
        .count();
    assert!(set_aside <= named_before);
    let is_kept = report.damaged.iter().any(|range| range.kept_as.is_some());
    assert_eq!(set_aside > 0, is_kept, "{report:?} {disk:?}");
    let (clean, rest) = recover(&mut open(&disk)).unwrap();
    assert!(clean.damaged.is_empty() && rest.is_empty(), "{clean:?}");
    Ok((report, records))
}

fn append_to(disk: &FaultyDisk, epoch: Epoch, history: &mut History) {
    let mut log = open(disk);
    recover(&mut log).unwrap();
    log.begin_epoch(epoch).unwrap();
    let mut group = lockgate_core::RecordGroup::new(log.capabilities().gap);
    let mut cursor = log.tail();
    for len in [0, 70, 3_000] {
        let payload = vec![9; len];
        group.push(|buffer| buffer.extend_from_slice(&payload));
        history.appended.push(LogRecord {
            position: log.place(&mut cursor, len),
            payload: payload.into(),
        });
    }
    let tail = log.tail();
    log.append(epoch, tail, &mut group).unwrap();
    log.progress().sync().unwrap();
}

fn check_expected(sample: &Sample, hits: &[Hit], image: &Image) {
    let expected = sample.expect(hits);
    let (report, records) = check_image(image).unwrap();
    let what = format!("{hits:?}: {report:?}");
    println!("{what}");
    assert_eq!(positions(&records), positions(&expected.records), "{what}");
    assert_eq!(records, expected.records, "{what}");
    assert_eq!(report.records_lost(), expected.lost, "{what}");
    assert_eq!(report.damaged.len() as u64, expected.ranges, "{what}");
    assert_eq!(report.tail_bytes_cut > 0, expected.is_cut, "{what}");
}

#[test]
fn every_byte_flipped() {
    let sample = Sample::new();
    for name in segments(&sample.image) {
        for at in 0..sample.image[&name].len() {
            let mut image = sample.image.clone();
            image.get_mut(&name).unwrap()[at] ^= 0x40;
            check_expected(&sample, &[Hit::new(&name, at, at + 1)], &image);
        }
    }
}

#[test]
fn every_sector_zeroed() {
    let sample = Sample::new();
    for name in segments(&sample.image) {
        for at in (0..sample.image[&name].len()).step_by(SECTOR) {
            let mut image = sample.image.clone();
            let file = image.get_mut(&name).unwrap();
            let end = (at + SECTOR).min(file.len());
            file[at..end].fill(0);
            check_expected(&sample, &[Hit::new(&name, at, end)], &image);
        }
    }
}

#[test]
fn some_stretches_of_noise() {
    let sample = Sample::new();
    let mut random = SeededRandom::new(1);
    for round in 0..1_000 {
        let (image, hits) = sample.with_noise(&mut random);
        println!("round {round}");
        check_expected(&sample, &hits, &image);
    }
}

/// The power goes while a damaged log is being recovered, at every change that recovery makes. The
/// next one finds the same records and tells the same loss, although the first may have cut the very
/// records that proved it.
#[test]
fn recovery_of_a_damaged_log_may_be_cut() {
    let sample = Sample::new();
    let mut random = SeededRandom::new(2);
    let mut cases = 0;
    for round in 0..300 {
        let (image, hits) = sample.with_noise(&mut random);
        let undisturbed = FaultyDisk::from_image(image.clone());
        let (expected_report, expected) = recover(&mut open(&undisturbed)).unwrap();
        for change in 0..undisturbed.operations().changes() {
            println!("round {round}, change {change}, {hits:?}");
            let disk = FaultyDisk::from_image(image.clone());
            disk.fail_change(change, Fault::PowerOff);
            recover(&mut open(&disk)).unwrap_err();
            let crashed = disk.crash(PowerCut::Seeded(round));
            let (report, records) = recover(&mut open(&crashed)).unwrap();
            assert_eq!(positions(&records), positions(&expected));
            assert_eq!(report.damaged, expected_report.damaged);
            cases += 1;
        }
    }
    assert!(cases > 500, "{cases}");
}

/// What can be found in any folder made of this log's files: records of it, in order.
fn check_any(sample: &Sample, image: &Image, what: &str) -> (RecoveryReport, Vec<LogRecord>) {
    println!("{what}");
    let (report, records) = check_image(image).unwrap();
    let mut appended = sample.history.appended.iter();
    for record in &records {
        assert!(appended.any(|one| one == record), "{what}: from nowhere");
    }
    let missing = sample.history.appended.len() - records.len();
    let is_told = report.records_lost() > 0 || report.tail_bytes_cut > 0;
    let last_is_there = records.last() == sample.history.appended.last();
    if missing > 0 && last_is_there {
        assert_eq!(report.records_lost(), missing as u64, "{what}: {report:?}");
    }
    if records.is_empty() {
        assert!(is_told || !report.damaged.is_empty(), "{what}: {report:?}");
    }
    (report, records)
}

#[test]
fn every_file_cut_short() {
    let sample = Sample::new();
    for name in segments(&sample.image) {
        for len in (0..sample.image[&name].len()).step_by(37) {
            let mut image = sample.image.clone();
            image.get_mut(&name).unwrap().truncate(len);
            check_any(&sample, &image, &format!("{name} cut to {len}"));
        }
    }
}

#[test]
fn files_removed_swapped_and_duplicated() {
    let sample = Sample::new();
    let names = segments(&sample.image);
    for (index, name) in names.iter().enumerate() {
        let mut image = sample.image.clone();
        image.remove(name);
        let (report, records) = check_any(&sample, &image, &format!("without {name}"));
        let segment = u64::from_str_radix(&name[..8], 16).unwrap();
        let others = sample.history.appended.iter();
        let others: Vec<_> = others.filter(|r| parts(r.position).0 != segment).collect();
        if index < 3 {
            assert_eq!(records.iter().collect::<Vec<_>>(), others);
            assert!(report.damaged[0].kept_as.is_none());
            let all = Position(segment << 32)..Position((segment + 1) << 32);
            assert_eq!(report.missing, [all]);
        }
        for other in &names {
            let mut image = sample.image.clone();
            let (a, b) = (image[name].clone(), image[other].clone());
            image.insert(name.clone(), b.clone());
            check_misnamed(&image, name, other);
            image.insert(other.clone(), a);
            check_misnamed(&image, name, other);
            // Where the header cannot tell, it is damage.
            let mut image = sample.image.clone();
            image.insert(name.clone(), [&[0; 4_096], &b[4_096..]].concat());
            check_any(&sample, &image, &format!("{other}'s records in {name}"));
        }
    }
}

/// A file under another's name is no damage: what it holds would be cut as a torn tail. The start is
/// refused, and nothing is changed.
fn check_misnamed(image: &Image, name: &str, other: &str) {
    let disk = FaultyDisk::from_image(image.clone());
    match recover(&mut open(&disk)) {
        Ok(_) => assert_eq!(name, other),
        Err(LogError::Misnamed { what, contents }) => {
            let mut told = [what.split(' ').next().unwrap(), &contents];
            told.sort_unstable();
            let mut expected = [name, other];
            expected.sort_unstable();
            assert_eq!(told, expected);
        }
        Err(error) => panic!("{name}, {other}: {error}"),
    }
    if name != other {
        assert_eq!(disk.image(), *image, "nothing was changed");
    }
}

/// Somebody made files of the highest numbers there are.
#[test]
fn files_of_the_last_number_do_no_harm() {
    let sample = Sample::new();
    for name in [
        "ffffffff.log",
        "ffffffff.preallocated",
        "fffffffe.preallocated",
    ] {
        let mut image = sample.image.clone();
        image.insert(name.to_owned(), vec![7; 8 << 10]);
        let (report, records) = check_any(&sample, &image, name);
        assert!(report.damaged.is_empty(), "{name}: {report:?}");
        assert_eq!(records, sample.history.appended, "{name}");
        let disk = FaultyDisk::from_image(image);
        let steps = [Step::Append(vec![1_000; 30]), Step::Sync];
        let mut history = sample.history.clone();
        history.go_on(&disk, &steps);
        assert_eq!(history.error, None, "{name}");
    }
}

#[test]
fn the_start_mark_lost_or_alone() {
    let sample = Sample::new();
    let mark = sample.image.keys().find(|name| name.ends_with(".start"));
    let mark = mark.unwrap().clone();
    let mut image = sample.image.clone();
    image.remove(&mark);
    let (report, records) = check_image(&image).unwrap();
    assert!(report.damaged.is_empty(), "the log starts with record 1");
    assert_eq!(records, sample.history.appended);
    image.remove(&segments(&sample.image)[0]);
    let (report, _) = check_any(&sample, &image, "without mark and first segment");
    assert!(report.records_lost() > 0);
    assert_eq!(report.missing, [Position(1 << 32)..Position(2 << 32)]);

    let alone = BTreeMap::from([(mark, Vec::new())]);
    let (report, records) = check_image(&alone).unwrap();
    assert!(records.is_empty());
    assert_eq!(report.damaged.len(), 1, "a log was there: {report:?}");
    assert_eq!(report.missing, [Position(1 << 32)..Position(2 << 32)]);
}

#[test]
fn files_of_noise_and_empty_files() {
    let sample = Sample::new();
    let mut random = SeededRandom::new(5);
    for round in 0..200 {
        let mut image = Image::new();
        let has_mark = random.chance(50);
        for (name, bytes) in &sample.image {
            let bytes = match random.below(4) {
                _ if !name.ends_with(".log") && !has_mark => continue,
                0 => random.bytes(bytes.len()),
                1 => Vec::new(),
                2 => vec![0; bytes.len()],
                _ => bytes.clone(),
            };
            image.insert(name.clone(), bytes);
        }
        check_any(&sample, &image, &format!("round {round}"));
    }
    for len in [1, 51, 4_096, 4_097, 20_000] {
        let noise = BTreeMap::from([("00000001.log".to_owned(), random.bytes(len))]);
        let (report, records) = check_image(&noise).unwrap();
        assert!(records.is_empty());
        assert_eq!(report.damaged.len(), 1, "{len}: never silently empty");
    }
    for len in [0, 1, 4_096, 9_000] {
        let blank = BTreeMap::from([("00000001.log".to_owned(), vec![0; len])]);
        let (report, _) = check_image(&blank).unwrap();
        assert!(
            report.damaged.is_empty(),
            "{len}: a first attempt, cut by power"
        );
    }
}

/// A segment's blocks were used before, under another generation, and behind its end stand whole
/// records of that time, at their right places and with numbers that would go on. They are not taken.
#[test]
fn bytes_of_an_earlier_use_are_not_taken() {
    let steps = [
        Step::Append(vec![100, 200]),
        Step::Append(vec![300, 400]),
        Step::Sync,
    ];
    let image_of = |seed, steps: &[Step]| {
        let disk = FaultyDisk::new();
        let history = History::run_with(&disk, steps, seed);
        assert_eq!(history.error, None);
        (disk.image(), history.appended)
    };
    let (old, _) = image_of(1, &steps);
    let (mut image, appended) = image_of(2, &steps[..1]);
    let file = image.get_mut("00000001.log").unwrap();
    let end = end_of(appended.last().unwrap());
    file[end..].copy_from_slice(&old["00000001.log"][end..]);
    let (report, records) = check_image(&image).unwrap();
    assert_eq!(records, appended, "{report:?}");
    assert!(report.damaged.is_empty());
}

/// Headers can be read and records cannot be told from noise any more: no time is lost on that.
#[test]
fn a_segment_full_of_broken_records_ends() {
    let mut bytes = Sample::new().image["00000001.log"].clone();
    let record = bytes[4_096..4_096 + 44].to_vec();
    while bytes.len() < 2 << 20 {
        bytes.extend_from_slice(&record);
        *bytes.last_mut().unwrap() ^= 1;
    }
    let mut image = Sample::new().image;
    image.insert("00000001.log".to_owned(), bytes.clone());
    check_any(&Sample::new(), &image, "broken records behind a header");
    bytes[..4_096 + 44].fill(0);
    image.insert("00000001.log".to_owned(), bytes);
    check_any(&Sample::new(), &image, "broken records without a header");
}

/// What only looks like records is not read over and over: each of these claims most of the file.
#[test]
fn guesses_at_large_records_come_to_an_end() {
    let mut bytes = Sample::new().image["00000001.log"].clone();
    let mut record = bytes[4_096..4_096 + 44].to_vec();
    record[4..8].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    record[24..32].copy_from_slice(&1_000_u64.to_le_bytes());
    while bytes.len() < 4 << 20 {
        bytes.extend_from_slice(&record);
    }
    let mut image = Sample::new().image;
    image.insert("00000001.log".to_owned(), bytes);
    let disk = FaultyDisk::from_image(image);
    recover(&mut open(&disk)).unwrap();
    let reads = disk.operations().reads;
    assert!(reads < 200, "{reads}");
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let sample = Sample::new();
    let mut image = sample.image.clone();
    let name = segments(&image)[2].clone();
    let file = image.get_mut(&name).unwrap();
    file[8] = 3;
    let checksum = crc32c_of(&file[..60]).to_le_bytes();
    file[60..64].copy_from_slice(&checksum);
    let disk = FaultyDisk::from_image(image.clone());
    match recover(&mut open(&disk)) {
        Err(LogError::NewerFormat { what, found, known }) => {
            assert!(what.contains(&name), "{what}");
            assert_eq!((found, known), (3, 1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(disk.image(), image, "nothing was changed");
}

/// A header whose checksum fits has a number that no log gave it: in the first segment, and in a later one
/// more than there is room for. Nothing is cut for it, what it stands before is found or counted, and what is
/// appended since is found again.
#[test]
fn a_header_with_an_impossible_number_is_damaged() {
    let sample = Sample::new();
    let names = segments(&sample.image);
    let whole = sample.history.appended.len();
    for (name, number) in [
        (0, 0),
        (0, 2),
        (0, 7),
        (0, 1 << 33),
        (1, 1 << 33),
        (2, 1 << 40),
        (2, u64::MAX),
    ] {
        for synced in [None, Some([0; 16]), Some([0xff; 16])] {
            let what = format!("{} with {number} and {synced:?}", names[name]);
            let mut image = sample.image.clone();
            let file = image.get_mut(&names[name]).unwrap();
            file[32..40].copy_from_slice(&u64::to_le_bytes(number));
            if let Some(synced) = synced {
                file[40..56].copy_from_slice(&synced);
            }
            let checksum = crc32c_of(&file[..60]).to_le_bytes();
            file[60..64].copy_from_slice(&checksum);
            let (report, records) = check_any(&sample, &image, &what);
            // The records in it are as good as ever.
            assert_eq!((records.len(), report.records_lost()), (whole, 0), "{what}");
            assert_eq!(report.damaged.len(), 1, "{what}: {report:?}");
            assert_eq!(report.damaged[0].kept_as.as_ref(), Some(&names[name]));

            let disk = FaultyDisk::from_image(image);
            let mut log = open(&disk);
            let (report, _) = recover(&mut log).unwrap();
            log.begin_epoch(report.epoch.next()).unwrap();
            let mut group = RecordGroup::new(log.capabilities().gap);
            group.push(|buffer| buffer.extend_from_slice(b"one more"));
            let tail = log.tail();
            log.append(report.epoch.next(), tail, &mut group).unwrap();
            log.progress().sync().unwrap();
            drop(log);
            let (_, records) = recover(&mut open(&disk.kill())).unwrap();
            assert_eq!(records.len(), whole + 1, "{what}");
            assert_eq!(records[whole].payload, "one more", "{what}");
        }
    }
}

/// CRC-32C bit by bit: independent of the code under test.
fn crc32c_of(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn only_records_count_as_read() {
    use Step::{Append, Restart, Sync};
    let disk = FaultyDisk::new();
    // Behind the last record of a segment stand blocks that were taken ahead and not used.
    let steps = [Append(vec![100, 700]), Sync, Restart, Append(vec![300])];
    let history = History::run(&disk, &steps);
    assert_eq!(history.error, None);
    let (report, records) = recover(&mut open(&disk.kill())).unwrap();
    assert_eq!(report.records, 3);
    let bytes = |record: &LogRecord| RECORD_HEADER_LEN + record.payload.len() as u64;
    assert_eq!(report.bytes, records.iter().map(bytes).sum::<u64>());
}

/// Whoever is told that a record is damaged drops what is in it.
#[test]
fn a_single_read_that_goes_wrong_is_no_damage() {
    let sample = Sample::new();
    let disk = FaultyDisk::from_image(sample.image.clone());
    let mut log = open(&disk);
    let (_, records) = recover(&mut log).unwrap();
    let reader = log.reader();
    let mut wrong = 0;
    for (record, seed) in records.iter().zip(0..) {
        for damage in [Damage::FlippedBit, Damage::ZeroedSector] {
            let lasting = false;
            let misread = Fault::Misread {
                damage,
                lasting,
                seed,
            };
            disk.fail(DiskOperation::Read, 0, misread);
            let struck = disk.struck().len();
            let [read] = &reader.read_all(&[record.position])[..] else {
                panic!("one")
            };
            assert_eq!(read.as_ref().unwrap(), &record.payload);
            wrong += disk.struck().len() - struck;
        }
    }
    assert_eq!(wrong, 2 * records.len());
}

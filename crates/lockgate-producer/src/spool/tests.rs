//! The spool over a disk that loses, damages and refuses.

use lockgate_core::{DiskOperation, Message};
use lockgate_sim::{Damage, Fault, FaultyDisk, PowerCut, SeededRandom};

use super::{codec::Label, *};
use crate::buffer::Stream;

fn options() -> SpoolOptions {
    SpoolOptions {
        file_bytes: 64 << 10,
        free_bytes_min: 0,
        ..SpoolOptions::new("spool")
    }
}

fn name(text: &str) -> ProducerName {
    ProducerName::new(text).unwrap()
}

fn open(disk: &FaultyDisk) -> (Store, Recovered, SpoolReport) {
    let disk = Arc::new(disk.clone());
    Store::open_on(disk, &options(), None, None, || name("p")).unwrap()
}

/// The same where the mark of the spool is there.
fn open_marked(disk: &FaultyDisk) -> (Store, Recovered, SpoolReport) {
    let (disk, kept) = (Arc::new(disk.clone()), name("p"));
    Store::open_on(disk, &options(), None, Some(&kept), || name("p")).unwrap()
}

/// A message of that number, with so many bytes.
fn message(spot: u64, bytes: usize) -> Staged {
    let mut body = spot.to_be_bytes().to_vec();
    body.resize(bytes.max(8), 7);
    Staged::Message {
        spot,
        label: Label {
            opening: 1,
            lane: 2,
            number: spot + 1,
        },
        expires: None,
        size: bytes as u64,
        message: Message::new(body),
    }
}

fn checkpoint(done: &Done) -> Staged {
    Staged::Checkpoint(codec::Checkpoint {
        name: name("p"),
        done: done.clone(),
    })
}

/// Everything that a spool has from that spot on, a little at a time.
fn load_all(store: &mut Store, from: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut spots, mut lost) = (Vec::new(), Vec::new());
    let mut from = from;
    while from < store.log.next_number() {
        let load = Load {
            stream: Stream::Backlog,
            live: u64::MAX,
            from,
            until: u64::MAX,
            count: 7,
            bytes: 100_000,
        };
        let (loaded, next, unreadable) = store.load(load).unwrap();
        assert!(next > from, "a load goes on");
        for loaded in loaded {
            let body: [u8; 8] = loaded.message.body[..8].try_into().unwrap();
            assert_eq!(u64::from_be_bytes(body), loaded.spot);
            spots.push(loaded.spot);
        }
        lost.extend(unreadable);
        from = next;
    }
    (spots, lost)
}

#[test]
fn what_is_not_over_is_there_again_after_any_power_cut() {
    for seed in 0..200 {
        let mut random = SeededRandom::new(seed);
        let mut disk = FaultyDisk::new();
        let mut over: Vec<u64> = Vec::new();
        let mut durable: Vec<u64> = Vec::new();
        for _ in 0..4 {
            let (mut store, recovered, report) = open(&disk);
            assert_eq!(report.damaged_records, 0);
            let (spots, lost) = load_all(&mut store, recovered.done.floor());
            let pending: Vec<u64> = spots
                .into_iter()
                .filter(|spot| !recovered.done.contains(*spot))
                .collect();
            assert_eq!(pending.len() as u64, recovered.count, "seed {seed}");
            assert_eq!(lost, Vec::<u64>::new());
            for spot in &durable {
                let is_known = pending.contains(spot) || over.contains(spot);
                assert!(is_known, "seed {seed}: {spot} was durable");
            }
            // What lived on is all that there was.
            durable = pending;
            let mut done = recovered.done;
            let mut written = durable.clone();
            for _ in 0..random.below(12) {
                let mut group = Vec::new();
                let mut spot = store.log.next_number();
                for _ in 0..=random.below(5) {
                    let bytes = random.index(20_000);
                    group.push(message(spot, bytes));
                    written.push(spot);
                    spot += 1;
                }
                if random.below(3) == 0 {
                    done.insert_blank(spot);
                    group.push(checkpoint(&done));
                }
                store.write(&group).unwrap();
                if random.below(2) == 0 {
                    store.sync().unwrap();
                    durable = written.clone();
                }
                for _ in 0..random.below(6) {
                    let at = random.index(written.len());
                    let spot = written.swap_remove(at);
                    done.insert(spot);
                    over.push(spot);
                    durable.retain(|it| *it != spot);
                    if written.is_empty() {
                        break;
                    }
                }
                if store.wants_sync(done.floor()) {
                    store.sync().unwrap();
                    durable = written.clone();
                }
                store.release(done.floor()).unwrap();
            }
            let cut = match random.below(3) {
                0 => PowerCut::LoseAllUnsynced,
                1 => PowerCut::KeepAll,
                _ => PowerCut::KeepSubset(random.next_u64()),
            };
            drop(store);
            disk = disk.crash(cut);
        }
    }
}

#[test]
fn files_go_when_their_messages_are_over() {
    let disk = FaultyDisk::new();
    let (mut store, recovered, _) = open(&disk);
    let mut done = recovered.done;
    for _ in 0..100 {
        let spot = store.log.next_number();
        store.write(&[message(spot, 10_000)]).unwrap();
    }
    let most = store.used().bytes;
    assert!(most > 1_000_000);
    assert!(!store.release(1).unwrap());
    done.insert_all(done.floor(), 91, true);
    let spot = store.log.next_number();
    done.insert_blank(spot);
    store.write(&[checkpoint(&done)]).unwrap();
    assert!(!store.release(91).unwrap(), "the checkpoint is not durable");
    assert!(store.wants_sync(91));
    store.sync().unwrap();
    assert!(store.release(91).unwrap());
    assert!(
        store.used().bytes < 200_000,
        "{} of {most} are left",
        store.used().bytes
    );
    drop(store);
    let (mut store, recovered, report) = open(&disk.kill());
    assert_eq!((recovered.count, report.records), (10, 10));
    let (spots, lost) = load_all(&mut store, recovered.done.floor());
    assert_eq!((spots, lost), ((91..=100).collect(), Vec::new()));
}

#[test]
fn damage_costs_what_was_damaged_and_no_start() {
    let disk = FaultyDisk::new();
    let (mut store, _, _) = open(&disk);
    for _ in 0..30 {
        let spot = store.log.next_number();
        store.write(&[message(spot, 10_000)]).unwrap();
        store.sync().unwrap();
    }
    drop(store);
    let disk = disk.kill();
    let names: Vec<String> = disk.image().into_keys().collect();
    let file = names.iter().filter(|name| name.ends_with(".log")).nth(2);
    let file = file.unwrap();
    assert!(
        disk.damage(file, Damage::ZeroedSector, 20_000..30_000, 1),
        "{names:?}"
    );
    let (mut store, recovered, report) = open(&disk);
    assert!(report.damaged_records > 0);
    assert_eq!(recovered.count + report.damaged_records, 30);
    let (spots, _) = load_all(&mut store, recovered.done.floor());
    let there = spots.iter().filter(|spot| !recovered.done.contains(**spot));
    assert_eq!(there.count() as u64, recovered.count);
}

/// Two files of messages that are all durable, and nothing is over.
fn two_files() -> FaultyDisk {
    let disk = FaultyDisk::new();
    let (mut store, _, _) = open(&disk);
    // The first opening of a log writes to its first file, and the next one to another.
    for _ in 0..5 {
        let spot = store.log.next_number();
        store.write(&[message(spot, 1_000)]).unwrap();
        store.sync().unwrap();
    }
    drop(store);
    let disk = disk.kill();
    let (mut store, recovered, _) = open(&disk);
    assert_eq!(recovered.count, 5);
    for _ in 0..7 {
        let spot = store.log.next_number();
        store.write(&[message(spot, 1_000)]).unwrap();
        store.sync().unwrap();
    }
    drop(store);
    disk.kill()
}

fn set_aside(disk: &FaultyDisk) -> Vec<String> {
    let names = disk.image().into_keys();
    names.filter(|name| name.ends_with(".damaged")).collect()
}

/// Nothing stands behind the records of the last file, so no record says that they were durable.
#[test]
fn damage_of_the_last_file_is_noticed_and_counted() {
    let last = "00000002.log";
    let whole = two_files().contents(last).unwrap();
    let noise: Vec<u8> = (0..=250).cycle().step_by(31).take(whole.len()).collect();
    for (case, bytes) in [
        ("empty", Some(Vec::new())),
        ("zeros", Some(vec![0; whole.len()])),
        ("noise", Some(noise)),
        ("cut in its header", Some(whole[..30].to_vec())),
        ("cut behind its header", Some(whole[..5_000].to_vec())),
        ("gone", None),
    ] {
        let mut image = two_files().image();
        match bytes.clone() {
            Some(bytes) => image.insert(last.to_owned(), bytes),
            None => image.remove(last),
        };
        let disk = FaultyDisk::from_image(image);
        let (mut store, recovered, report) = open(&disk);
        assert_eq!((recovered.count, report.records), (5, 5), "{case}");
        assert_eq!(report.damaged_records, 7, "{case}");
        assert!(report.damaged_stretches > 0, "{case}");
        // Its number is not used again, and when it is not needed any more it is set aside.
        assert_eq!(disk.contents(last), bytes, "{case}");
        let mut done = recovered.done;
        done.insert_all(done.floor(), store.log.next_number(), true);
        for _ in 0..2 {
            let spot = store.log.next_number();
            store.write(&[message(spot, 50_000)]).unwrap();
            done.insert(spot);
            done.insert_blank(spot + 1);
            store.write(&[checkpoint(&done)]).unwrap();
            store.sync().unwrap();
        }
        assert!(store.release(done.floor()).unwrap(), "{case}");
        drop(store);
        let is_kept = set_aside(&disk).contains(&"00000002.damaged".to_owned());
        assert_eq!(is_kept, bytes.is_some(), "{case}");
        let (_, _, report) = open(&disk.kill());
        assert_eq!(report.damaged_records, 0, "{case}: it is told once");
    }
}

#[test]
fn a_wrong_mark_of_the_start_leaves_nothing_out() {
    let right = "0000000100001000-0000000000000001.start";
    for wrong in [
        "0000000200001000-0000000000000006.start",
        "0000000200001000-0000000000000004.start",
        "0000000900001000-0000000000000033.start",
    ] {
        let mut image = two_files().image();
        let mark = image.remove(right).unwrap();
        image.insert(wrong.to_owned(), mark);
        let (mut store, recovered, report) = open_marked(&FaultyDisk::from_image(image));
        assert_eq!(
            (recovered.count, report.damaged_records),
            (12, 0),
            "{wrong}"
        );
        let (spots, lost) = load_all(&mut store, recovered.done.floor());
        assert_eq!((spots.len(), lost), (12, Vec::new()), "{wrong}");
    }
}

#[test]
fn a_file_that_the_disk_does_not_read_costs_what_cannot_be_read() {
    for (name, start) in [("00000001.log", 3_000), ("00000002.log", 5_000)] {
        let disk = two_files();
        // A sector in the middle of a record.
        assert!(disk.make_unreadable(name, start + 4_096..start + 4_608));
        let (mut store, recovered, report) = open_marked(&disk);
        let lost = 12 - recovered.count;
        assert!((1..=4).contains(&lost), "{name}: {lost}");
        assert_eq!(report.damaged_records, lost, "{name}");
        assert_eq!(set_aside(&disk), [name.replace("log", "damaged")]);
        let (spots, _) = load_all(&mut store, recovered.done.floor());
        let there = spots.iter().filter(|spot| !recovered.done.contains(**spot));
        assert_eq!(there.count() as u64, recovered.count, "{name}");
        drop(store);
        let (_, again, _) = open(&disk.kill());
        assert_eq!(again.count, recovered.count, "{name}");
    }
}

#[test]
fn a_file_before_a_wrong_mark_may_be_one_that_the_disk_does_not_read() {
    let mut image = two_files().image();
    let right = "0000000100001000-0000000000000001.start";
    let wrong = "0000000200001000-0000000000000006.start";
    let mark = image.remove(right).unwrap();
    image.insert(wrong.to_owned(), mark);
    let disk = FaultyDisk::from_image(image);
    assert!(disk.make_unreadable("00000001.log", 7_096..7_608));
    let (_, recovered, report) = open(&disk);
    assert!((8..12).contains(&recovered.count), "{}", recovered.count);
    assert_eq!(recovered.count + report.damaged_records, 12);
    assert_eq!(set_aside(&disk), ["00000001.damaged"]);
}

/// The original has bytes that another disk or program may still read.
#[test]
fn a_copy_that_is_not_needed_any_more_does_not_replace_the_original() {
    let disk = two_files();
    assert!(disk.make_unreadable("00000001.log", 7_096..7_608));
    let original = disk.contents("00000001.log");
    let (mut store, recovered, _) = open_marked(&disk);
    let mut done = recovered.done;
    done.insert_all(done.floor(), store.log.next_number(), true);
    for _ in 0..2 {
        let spot = store.log.next_number();
        store.write(&[message(spot, 50_000)]).unwrap();
        done.insert(spot);
        done.insert_blank(spot + 1);
        store.write(&[checkpoint(&done)]).unwrap();
        store.sync().unwrap();
    }
    assert!(store.release(done.floor()).unwrap());
    assert_eq!(disk.contents("00000001.log"), None);
    assert!(disk.contents("00000001.damaged") == original);
}

/// The log of a server that was stopped: before its start mark there are files in which messages have their bytes.
fn foreign() -> FaultyDisk {
    let disk = FaultyDisk::new();
    let log_options = LocalLogOptions {
        segment_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        free_bytes_min: 0,
        ..LocalLogOptions::default()
    };
    let mut log = LocalLog::open(Arc::new(disk.clone()), log_options).unwrap();
    log.recover(Position(0), Epoch(0), &mut |_, _| ()).unwrap();
    log.begin_epoch(Epoch(1)).unwrap();
    for _ in 0..20 {
        let mut group = RecordGroup::new(log.capabilities().gap);
        let len = group.push(|to| to.extend_from_slice(&[9; 10_000]));
        log.reserve(len as u64, 1, Purpose::Growth).unwrap();
        let at = log.tail();
        log.append(Epoch(1), at, &mut group).unwrap();
        log.progress().sync().unwrap();
    }
    let at = log.tail();
    log.trim(at).unwrap();
    drop(log);
    disk.kill()
}

#[test]
fn a_folder_that_is_no_spool_is_not_changed() {
    let refused = |disk: &FaultyDisk| {
        let before = disk.image();
        let arc = Arc::new(disk.clone());
        let opened = Store::open_on(arc, &options(), None, None, || name("p"));
        let error = opened.err().unwrap();
        assert!(disk.image() == before, "{error}");
        error
    };
    let image = foreign().image();
    let mut files = image.keys().filter(|name| name.ends_with(".log"));
    let first = files.next().unwrap();
    let last = files.next_back().unwrap();
    let is_first = |name: &String| name.ends_with(".start") && name.starts_with("00000001");
    assert!(!image.keys().any(is_first), "the start mark has moved");
    let error = refused(&foreign());
    assert!(matches!(error, SpoolError::Foreign { .. }), "{error}");
    // The disk does not read the header of one, or the records of another.
    for (name, within) in [(first, 0..512), (last, 4_096..4_608)] {
        let disk = foreign();
        assert!(disk.make_unreadable(name, within));
        let error = refused(&disk);
        assert!(matches!(error, SpoolError::Log { .. }), "{name}: {error}");
    }
    // Nothing is left of what stands behind the mark.
    let mut image = image.clone();
    image.remove(last);
    let error = refused(&FaultyDisk::from_image(image));
    assert!(matches!(error, SpoolError::Foreign { .. }), "{error}");
}

/// A disk that reads nothing of that name, so that the copy is no better.
#[test]
fn a_copy_that_the_disk_does_not_read_either_is_given_up() {
    let disk = two_files();
    assert!(disk.make_unreadable("00000001.log", 4_096..5_000));
    let arc: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = LocalLog::open(arc, LocalLogOptions::default()).unwrap();
    assert!(log.set_aside("folder/00000001.log").unwrap());
    assert!(disk.contents("00000001.log").is_some());
    assert!(log.set_aside("folder/00000001.log").unwrap());
    assert_eq!(disk.contents("00000001.log"), None);
    assert_eq!(set_aside(&disk), ["00000001.damaged"]);
    assert!(!log.set_aside("folder/other").unwrap());
    drop(log);
    let (_, recovered, report) = open(&disk.kill());
    assert_eq!((recovered.count, report.damaged_records), (7, 5));
}

#[test]
fn a_full_disk_takes_checkpoints_and_what_is_over() {
    let disk = FaultyDisk::new();
    let (mut store, recovered, _) = open(&disk);
    let mut done = recovered.done;
    store.write(&[checkpoint(&done)]).unwrap();
    disk.set_free_bytes(Some(0));
    let spot = loop {
        let spot = store.log.next_number();
        match store.write(&[message(spot, 10_000)]) {
            Ok(()) => {}
            Err(WriteError::Full(Lack::Bytes)) => break spot,
            Err(error) => panic!("{error:?}"),
        }
        assert!(spot < 1_000, "the disk is full");
    };
    done.insert_all(done.floor(), spot + 2, true);
    store.write(&[Staged::Void, checkpoint(&done)]).unwrap();
    store.sync().unwrap();
    disk.set_free_bytes(None);
    let spot = store.log.next_number();
    store.write(&[message(spot, 10_000)]).unwrap();
    drop(store);
    let (_, recovered, _) = open(&disk.kill());
    assert_eq!(recovered.count, 1);
}

/// To give up a file would not help.
#[test]
fn a_file_that_cannot_be_opened_is_no_full_disk() {
    let disk = FaultyDisk::new();
    let (mut store, ..) = open(&disk);
    disk.fail_always(DiskOperation::Open, 0, Fault::OutOfDescriptors);
    let mut written = Ok(());
    while written.is_ok() {
        let spot = store.log.next_number();
        assert!(spot < 1_000, "it needs another file");
        written = store.write(&[message(spot, 10_000)]);
    }
    assert!(
        matches!(written, Err(WriteError::Full(Lack::Files))),
        "{written:?}"
    );
}

#[test]
fn a_spool_is_opened_by_its_name_only() {
    let disk = FaultyDisk::new();
    let (mut store, recovered, _) = open(&disk);
    store.write(&[checkpoint(&recovered.done)]).unwrap();
    drop(store);
    let other = name("q");
    let disk = Arc::new(disk.kill());
    let opened = Store::open_on(disk, &options(), Some(&other), None, || name("r"));
    let error = opened.err().unwrap();
    assert!(
        matches!(&error, SpoolError::Name { has, .. } if has.as_str() == "p"),
        "{error}"
    );
}

/// The queue knows records by the name: under another one all would be sent again.
#[test]
fn a_name_survives_the_records_that_have_it() {
    let disk = FaultyDisk::new();
    let (mut store, ..) = open(&disk);
    store.write(&[message(0, 100)]).unwrap();
    store.sync().unwrap();
    drop(store);
    let kept = name("kept");
    let opened = |disk: FaultyDisk| {
        let opened = Store::open_on(Arc::new(disk), &options(), None, Some(&kept), || {
            name("new")
        });
        opened.unwrap().1.name
    };
    assert_eq!(opened(disk.kill()), kept);
    // Where nothing is left the numbers begin anew, and would be taken for those of before.
    assert_eq!(opened(FaultyDisk::new()), name("new"));
}

#[test]
fn the_mark_of_a_spool_has_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join(SPOOL_MARK);
    write_mark(&mark, &name("clicks-1")).unwrap();
    let text = fs::read_to_string(&mark).unwrap();
    assert_eq!(marked(&text), Some(name("clicks-1")));
    assert_eq!(marked("This folder is the spool of a producer.\n"), None);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

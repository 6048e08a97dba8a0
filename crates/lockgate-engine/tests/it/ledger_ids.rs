//! Unique ids of ledgers that leave memory for the index.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_core::{
    Epoch, LedgerName, ReaderName, UniqueId,
    ledger::{Append, Ledger as _, LedgerOptions, NewEvent, ReaderPosition, SequenceId},
};
use lockgate_engine::{
    Engine, EngineLedger, EngineOptions, FolderIndex, IndexError, IndexOptions, IndexPace,
    RestoreError, StartError, restore, restore_with_index, verify_backup,
};
use lockgate_machine::{Command, CreateLedger, DeleteLedger};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::support::{Shard, blocks, local_log, until, with_blocks};

/// The kind of blocks of a backup with unique ids.
const IDS: u8 = 4;

/// All ids leave memory at once.
fn options(index: &Path) -> EngineOptions {
    let options = IndexOptions::default();
    EngineOptions {
        index: Some(Arc::new(FolderIndex::new(index.to_owned(), options))),
        index_pace: IndexPace {
            more_than: 0,
            every: Duration::ZERO,
        },
        ..EngineOptions::default()
    }
}

fn start(disk: &FaultyDisk, options: &EngineOptions) -> Result<Engine, StartError> {
    let clock = Arc::new(ManualClock::default());
    Engine::start(local_log(disk), clock, options.clone()).map(|(engine, _)| engine)
}

fn name() -> LedgerName {
    LedgerName::new("trades").unwrap()
}

fn id(number: u64) -> UniqueId {
    UniqueId::new(&format!("id-{number}")).unwrap()
}

fn append(numbers: impl IntoIterator<Item = u64>) -> Append {
    let event = |number| NewEvent {
        unique_id: Some(id(number)),
        input: None,
        payload: Bytes::from_static(b"x"),
    };
    Append {
        epoch: Epoch(1),
        head: None,
        events: numbers.into_iter().map(event).collect(),
        settled: Vec::new(),
    }
}

fn make() -> CreateLedger {
    CreateLedger {
        name: name(),
        options: LedgerOptions::default(),
    }
}

async fn made(engine: &Engine) -> EngineLedger {
    engine.submit(make()).await.unwrap();
    engine.ledger(name())
}

/// Each place, or none for an event that is new.
async fn known(ledger: &EngineLedger, numbers: &[u64]) -> Vec<Option<u64>> {
    let appended = ledger
        .append(append(numbers.iter().copied()))
        .await
        .unwrap();
    let events = appended.events.iter();
    let known = events.map(|event| event.is_duplicate.then_some(event.sequence_id.0));
    known.collect()
}

async fn found(ledger: &EngineLedger, number: u64) -> Option<u64> {
    let found = ledger.find(id(number)).await.unwrap();
    found.map(|place| place.0)
}

/// Waits until no id of the ledger is in memory. Only durable ones leave it, and only groups of records are a reason to
/// look for some.
async fn moved(ledger: &EngineLedger) {
    let started = std::time::Instant::now();
    let reader = ReaderName::new("reader").unwrap();
    while ledger.describe().await.unwrap().unique_ids > 0 {
        assert!(started.elapsed().as_secs() < 30, "ids stay in memory");
        let position = ReaderPosition {
            reader: reader.clone(),
            sequence_id: SequenceId(0),
        };
        ledger.move_reader(position, None).await.unwrap();
        ledger.forget_reader(reader.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn ids_of_a_ledger_leave_memory_and_stay_known_over_restarts() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    let ledger = made(&engine).await;
    assert_eq!(known(&ledger, &[1, 2, 1]).await, [None, None, Some(1)]);
    moved(&ledger).await;
    assert_eq!(known(&ledger, &[2, 3, 1]).await, [Some(2), None, Some(1)]);
    // A move while events go on, and while they are let go of.
    let first = SequenceId(3);
    ledger.trim(first).await.unwrap();
    for (number, place) in [(1, Some(1)), (3, Some(3)), (4, None)] {
        assert_eq!(found(&ledger, number).await, place);
    }
    moved(&ledger).await;
    assert_eq!(found(&ledger, 3).await, Some(3));
    engine.shutdown().await;

    let engine = start(&disk, &options).unwrap();
    let ledger = engine.ledger(name());
    assert_eq!(ledger.describe().await.unwrap().unique_ids, 0);
    assert_eq!(known(&ledger, &[3, 4, 1]).await, [Some(3), None, Some(1)]);
    assert_eq!(found(&ledger, 2).await, Some(2));
    engine.shutdown().await;
}

/// Many writers give the same ids while ids move: whichever comes first, an id has one place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_has_one_place_whatever_moves_meanwhile() {
    const ROUNDS: u64 = 60;
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    made(&engine).await;
    let writers = (0..4).map(|writer| {
        let ledger = engine.ledger(name());
        tokio::spawn(async move {
            let mut places = Vec::new();
            for round in 0..ROUNDS {
                // New ones, and some of each round before.
                let ids = [round, round / 2, (round * 7 + writer) % (round + 1)];
                let appended = ledger.append(append(ids)).await.unwrap();
                let events = appended.events.into_iter();
                places.extend(ids.into_iter().zip(events.map(|event| event.sequence_id)));
                places.push((round, ledger.find(id(round)).await.unwrap().unwrap()));
            }
            places
        })
    });
    let mut all = std::collections::BTreeMap::new();
    for writer in writers.collect::<Vec<_>>() {
        for (number, place) in writer.await.unwrap() {
            assert_eq!(*all.entry(number).or_insert(place), place, "id {number}");
        }
    }
    let head = engine.ledger(name()).head().await.unwrap();
    assert_eq!(head.sequence_id.0, ROUNDS);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_backup_has_the_ids_of_ledgers_as_of_its_instant() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let original = options(&folder.path().join("index"));
    let engine = start(&disk, &original).unwrap();
    let ledger = made(&engine).await;
    known(&ledger, &[1, 2]).await;
    moved(&ledger).await;
    // One in memory too, perhaps.
    known(&ledger, &[3]).await;
    let mut backup = Vec::new();
    engine.backup(&mut backup).unwrap();
    known(&ledger, &[4]).await;
    moved(&ledger).await;
    engine.shutdown().await;

    assert!(verify_backup(&mut &backup[..]).is_ok());
    // Without its ids, or with half of them.
    let blocks = blocks(&backup);
    let ids: Vec<_> = (0..blocks.len())
        .filter(|at| blocks[*at].0 == IDS)
        .collect();
    assert!(ids.len() > 1);
    let without = |gone: &[usize]| {
        let kept = (0..blocks.len()).filter(|at| !gone.contains(at));
        let kept: Vec<_> = kept.map(|at| blocks[at].clone()).collect();
        with_blocks(&backup, &kept)
    };
    for (gone, what) in [
        (&ids[..], "ledger trades: it must be complete up to event"),
        (&ids[..1], "another piece is there in its place"),
        (&ids[ids.len() - 1..], "it is missing"),
    ] {
        let broken = without(gone);
        let refused = verify_backup(&mut &broken[..]).unwrap_err();
        let told = lockgate_core::with_sources(&refused).to_string();
        assert!(told.contains(what), "{told}");
        let place = FolderIndex::new(folder.path().join(what), IndexOptions::default());
        let log = local_log(&FaultyDisk::new());
        let refused = restore_with_index(&mut &broken[..], log, Some(&place), None);
        let told = lockgate_core::with_sources(&refused.unwrap_err()).to_string();
        assert!(told.contains(what), "{told}");
    }
    let refused = restore(&mut &backup[..], local_log(&FaultyDisk::new()), None);
    assert!(matches!(refused, Err(RestoreError::NoIndex)), "{refused:?}");
    let (copy, restored) = (FaultyDisk::new(), options(&folder.path().join("copy")));
    let log = local_log(&copy);
    restore_with_index(&mut &backup[..], log, restored.index.as_deref(), None).unwrap();
    let engine = start(&copy, &restored).unwrap();
    let ledger = engine.ledger(name());
    let places = known(&ledger, &[1, 2, 3, 4]).await;
    assert_eq!(places, [Some(1), Some(2), Some(3), None]);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_start_names_the_ledgers_whose_ids_are_missing() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let right = options(&folder.path().join("index"));
    let engine = start(&disk, &right).unwrap();
    let ledger = made(&engine).await;
    known(&ledger, &[1, 2]).await;
    moved(&ledger).await;
    engine.shutdown().await;

    let other = options(&folder.path().join("other"));
    for options in [&EngineOptions::default(), &other] {
        let error = start(&disk, options).map(drop).unwrap_err();
        assert!(matches!(error, StartError::MissingIds { .. }), "{error}");
        assert!(error.to_string().contains("for ledger trades:"), "{error}");
    }
    let current = folder.path().join("index/ids/current");
    let intact = std::fs::read(&current).unwrap();
    std::fs::write(&current, "garbage").unwrap();
    let error = start(&disk, &right).map(drop).unwrap_err();
    assert!(
        matches!(error, StartError::Index(IndexError::Damaged { .. })),
        "{error}"
    );
    std::fs::write(&current, intact).unwrap();
    let engine = start(&disk, &right).unwrap();
    assert_eq!(known(&engine.ledger(name()), &[1]).await, [Some(1)]);
    engine.shutdown().await;

    let accepting = EngineOptions {
        accept_loss: true,
        ..other.clone()
    };
    let engine = start(&disk, &accepting).unwrap();
    let ledger = engine.ledger(name());
    assert_eq!(known(&ledger, &[1, 1]).await, [None, Some(3)]);
    moved(&ledger).await;
    engine.shutdown().await;
    // From now on that is its index.
    let engine = start(&disk, &other).unwrap();
    assert_eq!(
        known(&engine.ledger(name()), &[1, 2]).await,
        [Some(3), None]
    );
    engine.shutdown().await;
}

#[tokio::test]
async fn a_deleted_ledger_leaves_no_ids_and_its_name_can_come_again() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    let ledger = made(&engine).await;
    known(&ledger, &[1, 2]).await;
    moved(&ledger).await;
    let delete = DeleteLedger { ledger: name() };
    engine.submit(delete).await.unwrap();
    let ledger = made(&engine).await;
    assert_eq!(found(&ledger, 1).await, None);
    assert_eq!(known(&ledger, &[2, 1]).await, [None, None]);
    moved(&ledger).await;
    assert_eq!(known(&ledger, &[1, 2]).await, [Some(2), Some(1)]);
    // What is left are the ids of the second.
    let index = options.index.clone().unwrap();
    let spaces = || index.get().map(|index| index.all_spaces());
    until(|| spaces() == Some(vec![(1 << 32) + 2])).await;
    engine.shutdown().await;
}

/// The index has ids, durably, and the machine does not rely on them yet.
#[tokio::test]
async fn a_crash_between_the_index_and_the_log_loses_no_id_and_counts_none_twice() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index");
    let before = options(&path);
    let (mut shard, _) = Shard::start(disk, ManualClock::default(), &before);
    shard.run(Command::CreateLedger(make())).unwrap();
    let append = lockgate_machine::AppendEvents {
        ledger: name(),
        append: append([1, 2, 3]),
        settles: Vec::new(),
    };
    shard.run(Command::from(append)).unwrap();
    let index = before.index.clone().unwrap();
    let [of] = &shard.driver.machine().ids_to_index(0, 9)[..] else {
        panic!("one ledger has ids");
    };
    let at = index.open_or_make().unwrap();
    at.add(of.space.number(), &of.ids, of.up_to.0).unwrap();
    at.sync().unwrap();
    drop(at);
    let disk = shard.disk.kill();
    drop((shard, index, before));

    let engine = start(&disk, &options(&path)).unwrap();
    let ledger = engine.ledger(name());
    assert_eq!(known(&ledger, &[2, 3]).await, [Some(2), Some(3)]);
    // They leave memory though the index gets nothing new.
    moved(&ledger).await;
    assert_eq!(known(&ledger, &[4, 1]).await, [None, Some(1)]);
    let places = known(&ledger, &[1, 2, 3, 4]).await;
    assert_eq!(places, [Some(1), Some(2), Some(3), Some(4)]);
    engine.shutdown().await;
}

#[tokio::test]
async fn without_an_index_ids_of_ledgers_stay_in_memory() {
    let disk = FaultyDisk::new();
    let options = EngineOptions {
        index: None,
        ..options(Path::new("none"))
    };
    let engine = start(&disk, &options).unwrap();
    let ledger = made(&engine).await;
    known(&ledger, &[1, 2]).await;
    assert_eq!(known(&ledger, &[1, 3]).await, [Some(1), None]);
    assert_eq!(ledger.describe().await.unwrap().unique_ids, 3);
    engine.shutdown().await;
}

//! Unique ids that a queue remembers for ever.

use std::{fs, path::Path, sync::Arc};

use lockgate_engine::{
    Batch, Engine, EngineError, EngineOptions, FolderIndex, IndexError, IndexOptions, RestoreError,
    StartError, restore, restore_with_index, verify_backup,
};
use lockgate_machine::{
    Command, DeleteQueue, DescribeQueue, Purge, QueueSettings, Rejection, Reply, Sent,
    SettingsError, Transact,
};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::support::{create, local_log, name, send, text, unique, until};

/// More than stay in memory.
const MANY: u64 = 5_000;

fn forever() -> QueueSettings {
    QueueSettings {
        dedup_window: QueueSettings::FOREVER,
        ..QueueSettings::default()
    }
}

fn options(index: &Path) -> EngineOptions {
    let options = IndexOptions::default();
    EngineOptions {
        index: Some(Arc::new(FolderIndex::new(index.to_owned(), options))),
        ..EngineOptions::default()
    }
}

fn start(disk: &FaultyDisk, options: &EngineOptions) -> Result<Engine, StartError> {
    let clock = Arc::new(ManualClock::default());
    Engine::start(local_log(disk), clock, options.clone()).map(|(engine, _)| engine)
}

fn id(number: u64) -> String {
    format!("id-{number}")
}

async fn sent(engine: &Engine, number: u64) -> Sent {
    match engine.submit(send("q", unique("x", &id(number)))).await {
        Ok(Reply::Sent(sent)) => sent,
        other => panic!("{other:?}"),
    }
}

async fn is_duplicate_of(engine: &Engine, number: u64) -> Option<u64> {
    let sent = sent(engine, number).await;
    sent.duplicate.then_some(sent.sequence.0)
}

/// Sends so many ids, and returns when some have left memory.
async fn fill(engine: &Engine, options: &EngineOptions) {
    for batch in 0..MANY / 500 {
        let numbers = batch * 500 + 1..=batch * 500 + 500;
        let sends: Batch<Command> = numbers
            .map(|number| send("q", unique("x", &id(number))))
            .collect();
        for result in engine.submit_all(sends).await.unwrap() {
            assert!(matches!(result, Ok(Reply::Sent(sent)) if !sent.duplicate));
        }
    }
    let index = options.index.clone().unwrap();
    until(|| index.get().is_some_and(|index| index.up_to(1).is_some())).await;
    while in_memory(engine).await >= MANY {
        tokio::task::yield_now().await;
    }
}

async fn in_memory(engine: &Engine) -> u64 {
    let described = engine.query(DescribeQueue { queue: name("q") }).await;
    described.unwrap().counts.unique_ids
}

#[tokio::test]
async fn ids_leave_memory_for_the_index_and_stay_known_over_restarts() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    assert!(
        !folder.path().join("index").exists(),
        "made before it is needed"
    );
    fill(&engine, &options).await;
    for number in [1, 2_500, MANY] {
        assert_eq!(is_duplicate_of(&engine, number).await, Some(number));
    }
    assert_eq!(is_duplicate_of(&engine, MANY + 1).await, None);
    let transaction = Transact {
        sends: [7, MANY + 2]
            .map(|number| match send("q", unique("x", &id(number))) {
                Command::Send(send) => *send,
                _ => unreachable!("it is a send"),
            })
            .into(),
        ..Transact::default()
    };
    let done = engine.submit(transaction).await.unwrap();
    let duplicates: Vec<_> = done.sent.iter().map(|sent| sent.duplicate).collect();
    assert_eq!(duplicates, [true, false]);
    // Several at once, some of them known.
    let sends = [3, MANY + 3, 4].map(|number| send("q", unique("x", &id(number))));
    let results = engine
        .submit_all(sends.into_iter().collect::<Batch<Command>>())
        .await;
    let duplicates = results.unwrap().into_iter().map(|result| match result {
        Ok(Reply::Sent(sent)) => sent.duplicate,
        other => panic!("{other:?}"),
    });
    assert_eq!(duplicates.collect::<Vec<_>>(), [true, false, true]);
    engine.shutdown().await;

    let engine = start(&disk, &options).unwrap();
    assert!(in_memory(&engine).await < MANY);
    for number in [1, 2_500, MANY + 3] {
        assert!(is_duplicate_of(&engine, number).await.is_some(), "{number}");
    }
    assert_eq!(is_duplicate_of(&engine, MANY + 4).await, None);
    // A purge takes the id of the next command of its batch out of memory, where it was when the batch was looked up.
    let purge = Command::from(Purge { queue: name("q") });
    let batch = [purge, send("q", unique("x", &id(MANY + 4)))];
    let batch = batch.into_iter().collect::<Batch<Command>>();
    let results = engine.submit_all(batch).await.unwrap();
    assert!(
        matches!(&results[1], Ok(Reply::Sent(sent)) if !sent.duplicate),
        "{results:?}"
    );
    engine.shutdown().await;
}

#[tokio::test]
async fn a_backup_holds_the_index_as_of_its_instant() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let original = options(&folder.path().join("index"));
    let engine = start(&disk, &original).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &original).await;
    let mut backup = Vec::new();
    engine.backup(&mut backup).unwrap();
    let later = MANY + 1;
    assert_eq!(is_duplicate_of(&engine, later).await, None);
    engine.shutdown().await;

    assert!(verify_backup(&mut &backup[..]).is_ok());
    let refused = restore(&mut &backup[..], local_log(&FaultyDisk::new()), None);
    assert!(matches!(refused, Err(RestoreError::NoIndex)), "{refused:?}");
    let cut = backup.len() / 2;
    let broken = FolderIndex::new(folder.path().join("broken"), IndexOptions::default());
    let log = local_log(&FaultyDisk::new());
    let refused = restore_with_index(&mut &backup[..cut], log, Some(&broken), None);
    assert!(
        matches!(refused, Err(RestoreError::Damaged { .. })),
        "{refused:?}"
    );

    let (copy, restored) = (FaultyDisk::new(), options(&folder.path().join("copy")));
    let log = local_log(&copy);
    restore_with_index(&mut &backup[..], log, restored.index.as_deref(), None).unwrap();
    let engine = start(&copy, &restored).unwrap();
    for number in [1, 2_500, MANY] {
        assert_eq!(is_duplicate_of(&engine, number).await, Some(number));
    }
    assert_eq!(is_duplicate_of(&engine, later).await, None);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_start_says_which_ids_are_missing_and_can_do_without() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let right = options(&folder.path().join("index"));
    let engine = start(&disk, &right).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &right).await;
    engine.shutdown().await;

    let none = EngineOptions::default();
    let other = options(&folder.path().join("other"));
    for options in [&none, &other] {
        let error = start(&disk, options).map(drop).unwrap_err();
        assert!(matches!(error, StartError::MissingIds { .. }), "{error}");
        assert!(error.to_string().contains("for queue q:"), "{error}");
    }
    let current = folder.path().join("index/ids/current");
    let intact = fs::read(&current).unwrap();
    fs::write(&current, "garbage").unwrap();
    let error = start(&disk, &right).map(drop).unwrap_err();
    assert!(
        matches!(error, StartError::Index(IndexError::Damaged { .. })),
        "{error}"
    );
    fs::write(&current, intact).unwrap();
    let engine = start(&disk, &right).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, Some(1));
    engine.shutdown().await;

    let accepting = EngineOptions {
        accept_loss: true,
        ..other.clone()
    };
    let engine = start(&disk, &accepting).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    assert!(is_duplicate_of(&engine, 1).await.is_some());
    engine.shutdown().await;
    // From now on that is its index.
    let engine = start(&disk, &other).unwrap();
    assert_eq!(is_duplicate_of(&engine, 2).await, None);
    engine.shutdown().await;
}

#[tokio::test]
async fn an_index_that_is_ahead_of_its_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder.path().join("index"));
    let disk = FaultyDisk::new();
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    engine.shutdown().await;
    let older = FaultyDisk::from_image(disk.image());
    let engine = start(&disk, &options).unwrap();
    fill(&engine, &options).await;
    engine.shutdown().await;

    // As after an older copy of the log was put back.
    let empty = FolderIndex::new(folder.path().join("empty"), IndexOptions::default());
    let lent = EngineOptions {
        index: Some(Arc::new(empty)),
        ..options.clone()
    };
    let engine = start(&older, &lent).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
    let error = start(&older, &options).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("which the log does not have"),
        "{error}"
    );
    let accepting = EngineOptions {
        accept_loss: true,
        ..options.clone()
    };
    let engine = start(&older, &accepting).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, Some(1));
    assert_eq!(is_duplicate_of(&engine, 2).await, None);
    engine.shutdown().await;
}

/// Adds to the index behind the engine's back.
fn add(options: &EngineOptions, space: u64, ids: &[(u128, u64)], up_to: u64) {
    let place = options.index.as_ref().unwrap();
    let index = place.open_or_make().unwrap();
    index.add(space, ids, up_to).unwrap();
    index.sync().unwrap();
    drop(index);
    place.close();
}

/// What the index has of messages that the log has lost is forgotten, and the rest is kept.
#[tokio::test]
async fn accepting_a_loss_keeps_what_index_and_log_share() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &options).await;
    engine.shutdown().await;
    add(&options, 1, &[(77, MANY + 7)], MANY + 7);
    let error = start(&disk, &options).map(drop).unwrap_err();
    assert!(matches!(error, StartError::MissingIds { .. }), "{error}");
    let accepting = EngineOptions {
        accept_loss: true,
        ..options.clone()
    };
    let engine = start(&disk, &accepting).unwrap();
    for number in [1, 2_500, MANY] {
        assert_eq!(is_duplicate_of(&engine, number).await, Some(number));
    }
    let index = options.index.as_ref().unwrap().get().unwrap();
    assert_eq!(index.look_up(1, &[77]).unwrap().found, [None]);
    drop(index);
    assert_eq!(is_duplicate_of(&engine, MANY + 1).await, None);
    engine.shutdown().await;
    let engine = start(&disk, &options).unwrap();
    for number in [1, MANY + 1] {
        assert_eq!(is_duplicate_of(&engine, number).await, Some(number));
    }
    engine.shutdown().await;

    // What can be read of a damaged one is kept.
    let tables = folder.path().join("index/ids/tables");
    let runs = fs::read_dir(&tables)
        .unwrap()
        .map(|run| run.unwrap().path());
    let run = runs
        .max_by_key(|run| run.metadata().unwrap().len())
        .unwrap();
    let mut bytes = fs::read(&run).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&run, bytes).unwrap();
    let engine = start(&disk, &accepting).unwrap();
    let index = options.index.as_ref().unwrap().get().unwrap();
    let kept = index.check().unwrap();
    drop(index);
    assert!((MANY / 2..MANY).contains(&kept), "{kept}");
    engine.shutdown().await;
    assert!(folder.path().join("index/damaged-1").exists());

    // If it cannot even be opened, there is nothing to keep.
    for run in fs::read_dir(&tables).unwrap() {
        fs::write(run.unwrap().path(), "").unwrap();
    }
    let engine = start(&disk, &accepting).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
}

/// An index of another log may have as many ids of as many queues.
#[tokio::test]
async fn an_index_of_another_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| options(&folder.path().join(name));
    let disks = [FaultyDisk::new(), FaultyDisk::new()];
    for (disk, options) in disks.iter().zip([place("a"), place("b")]) {
        let engine = start(disk, &options).unwrap();
        engine.submit(create("q", forever())).await.unwrap();
        fill(&engine, &options).await;
        engine.shutdown().await;
    }
    let other = place("b");
    let error = start(&disks[0], &other).map(drop).unwrap_err();
    assert!(matches!(error, StartError::OtherIndex { .. }), "{error}");
    let engine = start(&disks[0], &place("a")).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, Some(1));
    engine.shutdown().await;
    let accepting = EngineOptions {
        accept_loss: true,
        ..other
    };
    let engine = start(&disks[0], &accepting).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
    assert!(folder.path().join("b/damaged-1").exists());

    // A log that was emptied is another one too, also after its loss is accepted.
    let empty = FaultyDisk::new();
    let error = start(&empty, &place("a")).map(drop).unwrap_err();
    assert!(matches!(error, StartError::OtherIndex { .. }), "{error}");
    let accepting = EngineOptions {
        accept_loss: true,
        ..place("a")
    };
    let engine = start(&empty, &accepting).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &accepting).await;
    engine.shutdown().await;
    let engine = start(&empty, &place("a")).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, Some(1));
    engine.shutdown().await;
}

/// Ids of what the log has never had belong to another log. A queue that got such a number would take them for its own.
#[tokio::test]
async fn an_index_with_ids_of_no_queue_is_refused() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index");
    let options = options(&path);
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("a", forever())).await.unwrap();
    engine.submit(create("b", forever())).await.unwrap();
    let plain = QueueSettings::default();
    engine.submit(create("c", plain)).await.unwrap();
    engine
        .submit(DeleteQueue { queue: name("b") })
        .await
        .unwrap();
    engine.shutdown().await;

    // Of a queue that was deleted: maintenance removes it.
    add(&options, 2, &[(1, 1)], 1);
    let engine = start(&disk, &options).unwrap();
    let index = options.index.clone().unwrap();
    until(|| index.get().unwrap().up_to(2).is_none()).await;
    engine.shutdown().await;

    // Of a queue that remembers nothing for ever, and of one that is still to be made.
    add(&options, 3, &[(2, 1)], 1);
    add(&options, 4, &[(3, 1)], 1);
    // Of the first ledger, which is still to be made.
    let ledger = (1 << 32) + 1;
    add(&options, ledger, &[(4, 1)], 1);
    let error = start(&disk, &options).map(drop).unwrap_err();
    let (StartError::StrayIds { spaces, .. }, told) = (&error, error.to_string()) else {
        panic!("{error}");
    };
    assert_eq!(spaces[..], [3, 4, ledger]);
    assert!(told.contains(path.to_str().unwrap()), "{told}");
    assert!(told.contains("numbers 3, 4, 4294967297:"), "{told}");
    let accepting = EngineOptions {
        accept_loss: true,
        ..options.clone()
    };
    let engine = start(&disk, &accepting).unwrap();
    let left = index.get().unwrap().all_spaces();
    assert!(!spaces.iter().any(|space| left.contains(space)), "{left:?}");
    engine.submit(create("q", forever())).await.unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
    start(&disk, &options).unwrap().shutdown().await;
}

#[tokio::test]
async fn a_deleted_queue_leaves_no_ids_in_the_index() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &options).await;
    engine
        .submit(DeleteQueue { queue: name("q") })
        .await
        .unwrap();
    let index = options.index.clone().unwrap();
    until(|| {
        index
            .get()
            .is_some_and(|index| index.all_spaces().is_empty())
    })
    .await;
    engine.submit(create("q", forever())).await.unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_log_without_an_index_refuses_such_queues() {
    let engine = start(&FaultyDisk::new(), &EngineOptions::default()).unwrap();
    let refused = engine.submit(create("q", forever())).await.unwrap_err();
    let EngineError::Rejected(Rejection::Settings { source, .. }) = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(*source, SettingsError::ForeverUnsupported);
    assert!(
        refused.to_string().contains("unsupported on this log"),
        "{refused}"
    );
    engine
        .submit(create("q", QueueSettings::default()))
        .await
        .unwrap();
    engine.submit(send("q", text("x"))).await.unwrap();
    engine.shutdown().await;
}

/// A removal has begun, and then an older copy of the log was put back, in which the queue is still there.
#[tokio::test]
async fn a_removal_of_what_the_log_still_has_is_ended() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let place = options.index.clone().unwrap();
    let begin_removal = || {
        let index = place.open_or_make().unwrap();
        assert!(!index.remove_space(1, 1).unwrap());
        index.sync().unwrap();
        drop(index);
        place.close();
    };
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    engine.shutdown().await;
    // Nothing of the queue is in the index, as far as the log knows.
    let ids: Vec<_> = (1..=9).map(|number| (u128::from(number), number)).collect();
    add(&options, 1, &ids, 9);
    begin_removal();
    let engine = start(&disk, &options).unwrap();
    fill(&engine, &options).await;
    engine.shutdown().await;

    begin_removal();
    let missing = start(&disk, &options).map(drop).unwrap_err();
    assert!(
        matches!(missing, StartError::MissingIds { .. }),
        "{missing}"
    );
    let accepting = EngineOptions {
        accept_loss: true,
        ..options.clone()
    };
    let engine = start(&disk, &accepting).unwrap();
    assert_eq!(is_duplicate_of(&engine, 1).await, None);
    engine.shutdown().await;
    start(&disk, &options).unwrap().shutdown().await;
}

/// Payloads that are being read hold up no stop either.
#[tokio::test]
async fn a_look_up_that_hangs_does_not_hold_up_the_stop() {
    let (disk, folder) = (FaultyDisk::new(), tempfile::tempdir().unwrap());
    let options = options(&folder.path().join("index"));
    let engine = start(&disk, &options).unwrap();
    engine.submit(create("q", forever())).await.unwrap();
    fill(&engine, &options).await;
    // What a look-up holds for as long as the disk does not answer.
    let used = options.index.as_ref().unwrap().get().unwrap();
    engine.shutdown().await;
    let refused = start(&disk, &options).unwrap_err();
    assert!(
        matches!(refused, StartError::Index(IndexError::InUse { .. })),
        "{refused:?}"
    );
    drop(used);
    start(&disk, &options).unwrap().shutdown().await;
}

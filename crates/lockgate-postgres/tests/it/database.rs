//! Tables, versions, rights and settings.

use std::thread;

use lockgate_core::{Epoch, Level, Log as _, LogError, LogSource, Position, StepOutcome};
use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions, PostgresView};

use crate::{
    server::{Server, batch, execute, new_database, new_shard, shared_server, text, until},
    support::Owner,
};

fn refused(url: &str, options: PostgresLogOptions) -> OpenError {
    PostgresLog::open(url, "shard", options).unwrap_err()
}

#[test]
fn tables_of_a_newer_version_are_refused() {
    let Some(url) = shared_server("tables_of_a_newer_version_are_refused") else {
        return;
    };
    let url = new_database(&url);
    Owner::start(&url, "shard").append("a").unwrap();
    execute(&url, "UPDATE lockgate.format SET version = 99", &[]);
    match refused(&url, PostgresLogOptions::default()) {
        OpenError::Log(LogError::NewerFormat { found, known, .. }) => {
            assert_eq!((found, known), (99, 2));
        }
        other => panic!("{other:?}"),
    }
    execute(&url, "UPDATE lockgate.format SET version = 2", &[]);
    assert_eq!(Owner::start(&url, "shard").records.len(), 1, "untouched");
}

#[test]
fn of_many_that_open_a_new_database_one_makes_the_tables() {
    let Some(url) = shared_server("of_many_that_open_a_new_database_one_makes_the_tables") else {
        return;
    };
    let url = new_database(&url);
    thread::scope(|scope| {
        for opener in 0..8 {
            let url = &url;
            scope.spawn(move || {
                let shard = format!("shard {}", opener % 2);
                PostgresLog::open(url, &shard, PostgresLogOptions::default()).unwrap();
            });
        }
    });
    assert_eq!(execute(&url, "SELECT FROM lockgate.shard", &[]), 2);
}

#[test]
fn a_user_who_may_make_nothing_can_use_what_is_there() {
    let Some(url) = shared_server("a_user_who_may_make_nothing_can_use_what_is_there") else {
        return;
    };
    let url = new_database(&url);
    Owner::start(&url, "shard").append("a").unwrap();
    let (server, database) = url.rsplit_once('/').unwrap();
    let user = format!("user_of_{database}");
    batch(
        &url,
        &format!(
            "CREATE ROLE {user} LOGIN PASSWORD 'secret';
             GRANT USAGE ON SCHEMA lockgate TO {user};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockgate TO {user}"
        ),
    );
    let (_, host) = server.rsplit_once('@').unwrap();
    let url = format!("postgres://{user}:secret@{host}/{database}");
    let mut owner = Owner::start(&url, "shard");
    owner.append("b").unwrap();
    owner.sync();
    assert_eq!(Owner::start(&url, "shard").records, owner.records);
    Owner::start(&url, "another").append("c").unwrap();
}

#[test]
fn shards_of_a_database_share_nothing() {
    let Some(url) = shared_server("shards_of_a_database_share_nothing") else {
        return;
    };
    let names = [new_shard(), new_shard(), new_shard()];
    let mut owners: Vec<_> = names.iter().map(|name| Owner::start(&url, name)).collect();
    for round in 0..10 {
        for (number, owner) in owners.iter_mut().enumerate() {
            owner.append(&format!("{number} {round}")).unwrap();
        }
    }
    let again = Owner::start(&url, &names[1]);
    assert_eq!(again.records, owners[1].records);
    assert!(owners[1].append("deposed").is_err());
    owners[0].append("of another shard").unwrap();
    owners[0].sync();
}

#[test]
fn a_shard_is_discarded_by_its_owner_only_and_then_new_again() {
    let Some(url) = shared_server("a_shard_is_discarded_by_its_owner_only_and_then_new_again")
    else {
        return;
    };
    let url = new_database(&url);
    let name = new_shard();
    let neighbour = new_shard();
    let open_new = || {
        let (_log, filling) =
            PostgresLog::open_to_fill(&url, &name, &PostgresLogOptions::default())?;
        filling.discard().map_err(OpenError::from)
    };
    let mut other = Owner::start(&url, &neighbour);
    other.append("stays").unwrap();
    open_new().unwrap();
    open_new().unwrap();

    let deposed = Owner::start(&url, &name);
    let mut owner = Owner::start(&url, &name);
    for number in 0..1_500 {
        owner.append(&format!("{number}")).unwrap();
    }
    owner.sync();
    owner.log.begin_snapshot().unwrap().finish().unwrap();
    match open_new() {
        Err(OpenError::NotNew { name: told }) => assert_eq!(told, name),
        other => panic!("{other:?}"),
    }
    owner.append("and nobody was deposed by that").unwrap();
    let refused = deposed.log.discard().run().unwrap_err();
    assert!(matches!(refused, LogError::Deposed { .. }), "{refused:?}");
    owner.append("nor by that").unwrap();

    owner.log.discard().run().unwrap();
    owner.append("in no shard").unwrap_err();
    assert_eq!(execute(&url, "SELECT FROM lockgate.record", &[]), 1);
    open_new().unwrap();
    let again = Owner::start(&url, &name);
    assert_eq!(again.records, []);
    assert_eq!(again.log.snapshots().list().unwrap(), []);
    assert_eq!(Owner::start(&url, &neighbour).records, other.records);
}

#[test]
fn what_a_killed_filling_left_is_replaced_by_the_next_one() {
    let Some(url) = shared_server("what_a_killed_filling_left_is_replaced_by_the_next_one") else {
        return;
    };
    let url = new_database(&url);
    let options = PostgresLogOptions::default();
    let fill = || PostgresLog::open_to_fill(&url, "shard", &options);
    let begin = || {
        let (mut log, filling) = fill().unwrap();
        log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
        let epoch = Epoch(7);
        log.begin_epoch(epoch).unwrap();
        let records = Vec::new();
        let mut owner = Owner {
            log,
            epoch,
            records,
        };
        owner.append("a").unwrap();
        owner.sync();
        (owner, filling)
    };
    let is_unfinished = || match PostgresView::open(&url, "shard", options.clone()) {
        Err(OpenError::NoShard { unfinished, .. }) => unfinished,
        other => panic!("{other:?}"),
    };
    let nobody_fills = "NOT EXISTS (
        SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = database
        WHERE locktype = 'advisory' AND objsubid = 2 AND datname = current_database())";
    let (owner, filling) = begin();
    assert!(is_unfinished());
    assert!(matches!(fill(), Err(OpenError::BeingFilled { .. })));
    // Its process is gone.
    drop((owner, filling));
    until(&url, nobody_fills);
    assert!(is_unfinished());

    // A server that only looked in passing has made an empty one.
    PostgresLog::open(&url, "shard", options.clone()).unwrap();
    let (owner, filling) = begin();
    assert_eq!(execute(&url, "SELECT FROM lockgate.record", &[]), 1);
    filling.finish().unwrap();
    let id = "SELECT id::text FROM lockgate.shard";
    let whole = text(&url, id);
    drop((owner, filling));
    until(&url, nobody_fills);
    assert!(matches!(fill(), Err(OpenError::NotNew { .. })));
    assert_eq!(text(&url, id), whole, "it and nothing beside it");
    assert_eq!(Owner::start(&url, "shard").records.len(), 1);

    // One that is used meanwhile stays, and who fills is told.
    let fill_other = || PostgresLog::open_to_fill(&url, "other", &options).unwrap();
    let (mut log, filling) = fill_other();
    log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    let mut used = Owner::start(&url, "other");
    assert!(matches!(filling.finish(), Err(OpenError::NotNew { .. })));
    let view = PostgresView::open(&url, "other", options.clone()).unwrap();
    assert!(view.has_unfinished());
    filling.discard().unwrap();
    used.append("b").unwrap();
    // Nor can anybody mistake the one for the other.
    let name = ".other.lockgate-restore";
    let error = PostgresLog::open(&url, name, options.clone()).unwrap_err();
    assert!(matches!(error, OpenError::ShardName { .. }), "{error:?}");
}

#[test]
fn a_view_is_of_one_instant_and_disturbs_nobody() {
    let Some(url) = shared_server("a_view_is_of_one_instant_and_disturbs_nobody") else {
        return;
    };
    let url = new_database(&url);
    let options = PostgresLogOptions {
        range_bits: 12,
        ..PostgresLogOptions::default()
    };
    let no_tables = PostgresView::open(&url, "shard", options.clone());
    assert!(matches!(no_tables, Err(OpenError::NoShard { .. })));
    let mut owner = Owner::with_options(&url, "shard", options.clone());
    for number in 0..100 {
        owner.append(&format!("{number}")).unwrap();
    }
    owner.sync();
    let seen = owner.records.clone();
    let mut unfinished = owner.log.begin_snapshot().unwrap();
    unfinished.write(b"begun").unwrap();

    // By somebody who may only read.
    let (server, database) = url.rsplit_once('/').unwrap();
    let user = format!("viewer_of_{database}");
    batch(
        &url,
        &format!(
            "CREATE ROLE {user} LOGIN PASSWORD 'secret';
             GRANT USAGE ON SCHEMA lockgate TO {user};
             GRANT SELECT ON ALL TABLES IN SCHEMA lockgate TO {user}"
        ),
    );
    let (_, host) = server.rsplit_once('@').unwrap();
    let viewer = format!("postgres://{user}:secret@{host}/{database}");
    let no_shard = PostgresView::open(&viewer, "another", options.clone());
    assert!(matches!(no_shard, Err(OpenError::NoShard { .. })));
    let view = PostgresView::open(&viewer, "shard", options).unwrap();
    let look = || {
        let mut records = Vec::new();
        let mut log = source_of(&view);
        let report = log.recover(Position(0), Epoch(0), &mut |record, _| records.push(record));
        assert!(report.unwrap().damaged.is_empty());
        view.snapshots().remove(Position(1)).unwrap();
        let first = log.reader().read(records[0].position).unwrap();
        (records, first, view.snapshots().list().unwrap())
    };
    let first_look = look();
    assert_eq!(first_look.0, seen);
    assert_eq!(first_look.2, []);

    // The owner goes on meanwhile: it adds, and gives back what the view still reads.
    unfinished.finish().unwrap();
    owner.append("later").unwrap();
    owner.sync();
    let snapshot = owner.log.begin_snapshot().unwrap();
    let before = snapshot.position();
    snapshot.finish().unwrap();
    owner.log.trim(before).unwrap();
    owner.log.release(Position(0)).unwrap();
    let given_back = "SELECT FROM lockgate.record WHERE position < 4096";
    assert!(execute(&url, given_back, &[]) > 0, "it is still looked at");
    assert_eq!(look(), first_look);
    drop(view);
    until(
        &url,
        "NOT EXISTS (SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE locktype = 'advisory' AND objsubid = 2 AND datname = current_database())",
    );
    let log_maintenance = owner.log.log_maintenance().unwrap();
    log_maintenance.catch_up().unwrap();
    assert_eq!(execute(&url, given_back, &[]), 0);
    owner.append("and on").unwrap();
}

#[test]
fn a_view_keeps_no_old_versions_of_what_each_append_changes() {
    let Some(url) = shared_server("a_view_keeps_no_old_versions_of_what_each_append_changes")
    else {
        return;
    };
    let url = new_database(&url);
    let mut owner = Owner::start(&url, "shard");
    owner.append("before").unwrap();
    owner.sync();
    let view = PostgresView::open(&url, "shard", PostgresLogOptions::default()).unwrap();
    for number in 0..1_000 {
        owner.append(&format!("{number}")).unwrap();
        owner.sync();
    }
    // With them appends and syncs would search through ever more: some 80 bytes each, of both tables.
    for table in ["shard", "durable"] {
        let pages = format!("SELECT (pg_relation_size('lockgate.{table}') / 8192)::text");
        let pages: u64 = text(&url, &pages).parse().unwrap();
        assert!(pages <= 6, "{table}: {pages} pages");
    }
    let mut seen = 0;
    let recovered = source_of(&view).recover(Position(0), Epoch(0), &mut |_, _| seen += 1);
    assert!(recovered.unwrap().damaged.is_empty());
    assert_eq!(seen, 1);
}

#[test]
fn what_is_looked_at_stays_until_nobody_does() {
    let Some(url) = shared_server("what_is_looked_at_stays_until_nobody_does") else {
        return;
    };
    let url = new_database(&url);
    let mut owner = Owner::start(&url, "shard");
    owner.append("a").unwrap();
    let write = |owner: &mut Owner, piece: &[u8]| {
        let mut snapshot = owner.log.begin_snapshot().unwrap();
        snapshot.write(piece).unwrap();
        let at = snapshot.position();
        snapshot.finish().unwrap();
        at
    };
    let first = write(&mut owner, b"first");
    let view = PostgresView::open(&url, "shard", PostgresLogOptions::default()).unwrap();
    let mut reading = view.snapshots().open(first).unwrap();
    // Given up, replaced, and followed by another one.
    owner.log.snapshots().remove(first).unwrap();
    assert_eq!(write(&mut owner, b"again"), first);
    owner.append("b").unwrap();
    let second = write(&mut owner, b"second");
    owner.append("c").unwrap();
    let third = write(&mut owner, b"third");
    owner.log.snapshots().remove(first).unwrap();
    let log_maintenance = owner.log.log_maintenance().unwrap();
    assert_eq!(log_maintenance.step().unwrap(), StepOutcome::Done);
    assert_eq!(owner.log.snapshots().list().unwrap(), [third, second]);
    assert_eq!(&reading.next_piece().unwrap().unwrap()[..], b"first");
    assert_eq!(view.snapshots().list().unwrap(), [first]);
    assert!(view.snapshots().open(second).is_err());
    drop((reading, view));
    until(
        &url,
        "NOT EXISTS (SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE locktype = 'advisory' AND objsubid = 2 AND datname = current_database())",
    );
    log_maintenance.catch_up().unwrap();
    assert_eq!(owner.log.snapshots().list().unwrap(), [third, second]);
    assert_eq!(execute(&url, "SELECT FROM lockgate.piece", &[]), 2);
}

#[test]
fn what_cannot_keep_its_promise_is_refused() {
    let Some(url) = shared_server("what_cannot_keep_its_promise_is_refused") else {
        return;
    };
    let replicated = PostgresLogOptions {
        sync_level: Level::Replicated,
        ..PostgresLogOptions::default()
    };
    match refused(&url, replicated) {
        OpenError::Setting { setting, .. } => assert_eq!(setting, "synchronous_standby_names"),
        other => panic!("{other:?}"),
    }
    let server = Server::start();
    batch(&server.url, "ALTER SYSTEM SET fsync = off");
    server.crash();
    match refused(&server.url, PostgresLogOptions::default()) {
        OpenError::Setting { setting, value, .. } => {
            assert_eq!((setting, &*value), ("fsync", "off"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_input_is_told_without_the_password() {
    for url in ["postgres://user:secret@host:port/x", "host='"] {
        let error = refused(url, PostgresLogOptions::default());
        assert!(matches!(error, OpenError::Url(_)), "{error:?}");
        assert!(!lockgate_core::with_sources(&error).contains("secret"));
    }
    for name in ["", "a\0b", &"x".repeat(256)] {
        let error = PostgresLog::open("host=none", name, PostgresLogOptions::default());
        assert!(matches!(error, Err(OpenError::ShardName { .. })));
    }
    for options in [
        PostgresLogOptions {
            record_bytes_max: 0,
            ..PostgresLogOptions::default()
        },
        PostgresLogOptions {
            sync_level: Level::Process,
            ..PostgresLogOptions::default()
        },
        PostgresLogOptions {
            range_bits: 64,
            ..PostgresLogOptions::default()
        },
    ] {
        let error = refused("host=none", options);
        assert!(matches!(error, OpenError::Options { .. }), "{error:?}");
    }
}

/// What is looked at, as another one of the same instant.
fn source_of(view: &PostgresView) -> Box<dyn lockgate_core::LogSource> {
    Box::new(view.again())
}

//! Connections that are lost, servers that stand still, and logs that went back in time.

use std::time::Duration;

use lockgate_core::{AppendError, Epoch, Log, LogError, LogSource, Position, ReadError};
use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions};

use crate::{
    server::{Server, backends, batch, execute, new_database, new_shard, shared_server, signal},
    support::Owner,
};

fn is_dead(owner: &mut Owner) {
    match owner.append("after the end") {
        Err(AppendError::Unknown(LogError::Stopped { .. })) => {}
        other => panic!("{other:?}"),
    }
    owner.log.progress().sync().unwrap_err();
}

#[test]
fn a_lost_connection_ends_the_owner_and_not_its_readers() {
    let Some(url) = shared_server("a_lost_connection_ends_the_owner_and_not_its_readers") else {
        return;
    };
    let shard = new_shard();
    let application = format!("lost-{}", std::process::id());
    let mut owner = Owner::start(&format!("{url}?application_name={application}"), &shard);
    owner.append("a").unwrap();
    owner.sync();
    let reader = owner.log.reader();
    let at = owner.records[0].position;
    reader.read(at).unwrap();
    let sql = "
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    assert!(execute(&url, sql, &[&application]) >= 3);

    match owner.append("b") {
        Err(AppendError::Unknown(LogError::Stopped { reason })) => {
            assert!(
                reason.to_string().contains("terminating connection"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    is_dead(&mut owner);
    assert_eq!(reader.read(at).unwrap(), "a", "a reader connects again");
    let again = Owner::start(&url, &shard);
    assert_eq!(again.records, owner.records);
}

#[test]
fn an_owner_with_nothing_to_do_notices_that_it_is_none_any_more() {
    let Some(url) = shared_server("an_owner_with_nothing_to_do_notices_that_it_is_none_any_more")
    else {
        return;
    };
    let shard = new_shard();
    let until_it_stops = |owner: &Owner| {
        let log_maintenance = owner.log.log_maintenance().unwrap();
        loop {
            match log_maintenance.step() {
                Ok(_) => std::thread::yield_now(),
                Err(error @ (LogError::Stopped { .. } | LogError::Deposed { .. })) => return error,
                other => panic!("{other:?}"),
            }
        }
    };
    let first = Owner::start(&url, &shard);
    let application = format!("idle-{}", std::process::id());
    let second = Owner::start(&format!("{url}?application_name={application}"), &shard);
    match until_it_stops(&first) {
        LogError::Deposed { by } => assert_eq!(by, first.epoch.next()),
        other => panic!("{other:?}"),
    }

    let sql = "
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    execute(&url, sql, &[&application]);
    match until_it_stops(&second) {
        LogError::Stopped { reason } => {
            assert!(reason.to_string().contains("administrator"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sync_promises_nothing_that_the_server_has_lost() {
    let Some(url) = shared_server("a_sync_promises_nothing_that_the_server_has_lost") else {
        return;
    };
    let shard = new_shard();
    let mut owner = Owner::start(&url, &shard);
    owner.append("a").unwrap();
    let durable = owner.sync();
    owner.append("b").unwrap();
    // As a server that came back without what was not synced, behind a proxy that hid it.
    let sql = "UPDATE lockgate.shard SET tail = $2, next_number = 2 WHERE name = $1";
    let tail = i64::try_from(durable.0).unwrap();
    execute(&url, sql, &[&shard, &tail]);
    let error = owner.log.progress().sync().unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");
    is_dead(&mut owner);

    // Or found by the next append.
    let lose = "
        DELETE FROM lockgate.record USING lockgate.shard
        WHERE shard = shard.id AND name = $1 AND number = 2";
    assert_eq!(execute(&url, lose, &[&shard]), 1);
    let mut owner = Owner::start(&url, &shard);
    assert_eq!(owner.records.len(), 1);
    owner.append("c").unwrap();
    execute(&url, sql, &[&shard, &tail]);
    match owner.append("d") {
        Err(AppendError::Position { tail, .. }) => assert_eq!(tail, durable),
        other => panic!("{other:?}"),
    }
    is_dead(&mut owner);
}

#[test]
fn what_a_crash_of_the_server_takes_was_never_synced() {
    if shared_server("what_a_crash_of_the_server_takes_was_never_synced").is_none() {
        return;
    }
    let server = Server::start();
    for round in 0..3 {
        let mut owner = Owner::start(&server.url, "shard");
        for number in 0..200 {
            owner.append(&format!("{round} {number}")).unwrap();
        }
        let durable = owner.sync();
        for number in 200..400 {
            owner.append(&format!("{round} {number}")).unwrap();
        }
        server.crash();
        match owner.append("too late") {
            Err(AppendError::Unknown(_)) => {}
            other => panic!("{other:?}"),
        }
        is_dead(&mut owner);
        let again = Owner::start(&server.url, "shard");
        let kept = again.records.len();
        assert_eq!(again.records, owner.records[..kept], "a prefix");
        assert!(again.log.tail() >= durable, "all that was synced");
    }
}

#[test]
fn a_server_that_stands_still_hangs_nobody() {
    let Some(url) = shared_server("a_server_that_stands_still_hangs_nobody") else {
        return;
    };
    let shard = new_shard();
    let application = format!("still-{}", std::process::id());
    let options = PostgresLogOptions {
        timeout: Duration::from_millis(300),
        ..PostgresLogOptions::default()
    };
    let own_url = format!("{url}?application_name={application}");
    let mut owner = Owner::with_options(&own_url, &shard, options);
    owner.append("a").unwrap();
    let reader = owner.log.reader();
    let at = owner.records[0].position;
    reader.read(at).unwrap();
    let frozen = backends(&url, &application);
    assert!(frozen.len() >= 3);
    signal("-STOP", &frozen);

    let unread = reader.read(at);
    let unsynced = owner.log.progress().sync();
    signal("-CONT", &frozen);
    assert!(matches!(unread, Err(ReadError::Log(_))), "{unread:?}");
    assert!(matches!(unsynced, Err(LogError::Remote { .. })));
    is_dead(&mut owner);
    assert_eq!(reader.read(at).unwrap(), "a");
}

#[test]
fn a_row_that_somebody_locks_hangs_nobody() {
    let Some(url) = shared_server("a_row_that_somebody_locks_hangs_nobody") else {
        return;
    };
    let shard = new_shard();
    let options = PostgresLogOptions {
        timeout: Duration::from_millis(300),
        ..PostgresLogOptions::default()
    };
    let mut owner = Owner::with_options(&url, &shard, options.clone());
    owner.append("a").unwrap();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (url, name) = (&url, &shard);
        scope.spawn(move || {
            let mut other = postgres_transaction(url, name);
            locked.send(()).unwrap();
            let _ended = is_done.recv();
            other.end();
        });
        is_locked.recv().unwrap();
        let appended = owner.append("b");
        assert!(
            matches!(appended, Err(AppendError::Unknown(_))),
            "{appended:?}"
        );
        let mut late = PostgresLog::open(url, name, options).unwrap();
        late.recover(lockgate_core::Position(0), Epoch(0), &mut |_, _| {})
            .unwrap_err();
        done.send(()).unwrap();
    });
    assert_eq!(Owner::start(&url, &shard).records, owner.records);
}

/// The statement that forgets a range may be done and its answer lost, with the connection or in time.
#[test]
fn a_range_that_was_forgotten_without_an_answer_holds_up_no_other() {
    let name = "a_range_that_was_forgotten_without_an_answer_holds_up_no_other";
    let Some(url) = shared_server(name) else {
        return;
    };
    let url = new_database(&url);
    let options = PostgresLogOptions {
        range_bits: 12,
        ..PostgresLogOptions::default()
    };
    let mut owner = Owner::with_options(&url, "shard", options);
    let log_maintenance = owner.log.log_maintenance().unwrap();
    while owner.log.tail().0 < 3 << 12 {
        owner.append("x").unwrap();
    }
    owner.sync();
    owner.log.trim(owner.log.tail()).unwrap();
    for range in 0..2_u64 {
        owner.log.release(Position(range << 12)).unwrap();
    }
    let forget = "DELETE FROM lockgate.released WHERE first = 0";
    assert_eq!(execute(&url, forget, &[]), 1);
    log_maintenance.catch_up().unwrap();
    let left =
        "SELECT FROM lockgate.released UNION ALL SELECT FROM lockgate.record WHERE position < 8192";
    assert_eq!(execute(&url, left, &[]), 0);

    // On a server that does not hold the shard nothing is forgotten.
    owner.log.release(Position(2 << 12)).unwrap();
    execute(&url, "UPDATE lockgate.shard SET claim = claim + 1", &[]);
    let error = log_maintenance.step().unwrap_err();
    assert!(matches!(error, LogError::Deposed { .. }), "{error:?}");
}

/// What was read before the claim tells nothing about the server.
#[test]
fn a_connection_that_read_before_the_claim_is_checked_behind_it() {
    let name = "a_connection_that_read_before_the_claim_is_checked_behind_it";
    let Some(url) = shared_server(name) else {
        return;
    };
    let url = new_database(&url);
    Owner::start(&url, "shard").append("a").unwrap();
    let mut log = PostgresLog::open(&url, "shard", PostgresLogOptions::default()).unwrap();
    assert_eq!(log.snapshots().list().unwrap(), []);
    // As if that connection led to a server which has not seen the claim.
    batch(
        &url,
        "CREATE FUNCTION lockgate.elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             UPDATE lockgate.shard SET claim = claim + 1;
             RETURN NULL;
         END $$;
         CREATE TRIGGER elsewhere AFTER UPDATE OF claim ON lockgate.shard
         FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION lockgate.elsewhere()",
    );
    let recovered = log.recover(Position(0), Epoch(0), &mut |_, _| {});
    let told = lockgate_core::with_sources(&recovered.unwrap_err());
    assert!(told.contains("does not hold the shard"), "{told}");
}

#[test]
fn nobody_there_is_an_error() {
    let options = PostgresLogOptions {
        timeout: Duration::from_millis(500),
        ..PostgresLogOptions::default()
    };
    let error = PostgresLog::open("postgres://user@127.0.0.1:1/x", "shard", options).unwrap_err();
    assert!(matches!(error, OpenError::Log(LogError::Remote { .. })));
}

#[test]
fn handles_may_be_used_and_dropped_in_an_async_task() {
    let Some(url) = shared_server("handles_may_be_used_and_dropped_in_an_async_task") else {
        return;
    };
    let mut owner = Owner::start(&url, &new_shard());
    owner.append("a").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        let at = owner.records[0].position;
        assert_eq!(owner.log.reader().read(at).unwrap(), "a");
        drop(owner);
    });
}

/// A transaction that has locked the shard's row.
fn postgres_transaction(url: &str, shard: &str) -> Locked {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN").await.unwrap();
        let sql = "SELECT FROM lockgate.shard WHERE name = $1 FOR UPDATE";
        client.execute(sql, &[&shard]).await.unwrap();
        client
    });
    Locked { runtime, client }
}

struct Locked {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl Locked {
    fn end(&mut self) {
        self.runtime
            .block_on(self.client.batch_execute("ROLLBACK"))
            .unwrap();
    }
}

//! A guard in MariaDB: what a leader that was deposed writes does not land.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use lockgate_core::{
    ElectionName, Epoch,
    coordination::{Fence, FenceError, TermSpan},
};
use lockgate_sql::{Error, MysqlGuard};
use mysql_async::{Conn, Opts, TxOpts, prelude::Queryable as _};

struct Lasts(Duration);

impl TermSpan for Lasts {
    fn remaining(&self) -> Duration {
        self.0
    }
}

fn reports() -> ElectionName {
    ElectionName::new("reports").unwrap()
}

fn fence(epoch: u64) -> Fence {
    Fence::new(reports(), Epoch(epoch))
}

fn lasts(epoch: u64, span: Duration) -> Fence {
    fence(epoch).with_span(Arc::new(Lasts(span)))
}

fn deposed(result: Result<(), Error>) -> (u64, u64) {
    match result {
        Err(Error::Fence(FenceError::Deposed { epoch, newest, .. })) => (epoch.0, newest.0),
        other => panic!("expected a refusal: {other:?}"),
    }
}

/// The server's database; `None`, and said so, where there is no server.
struct Mysql(Opts);

impl Mysql {
    async fn new(test: &str) -> Option<Self> {
        let Ok(url) = std::env::var("LOCKGATE_TEST_MYSQL") else {
            let ci = std::env::var("CI");
            assert_ne!(
                ci.as_deref(),
                Ok("true"),
                "no MariaDB for {test}: use scripts/mariadb run"
            );
            println!("not run: MariaDB: {test}: use scripts/mariadb run cargo test");
            return None;
        };
        let new = Self(Opts::from_url(&url).unwrap());
        let mut client = new.client().await;
        for _ in 0..2 {
            MysqlGuard.create_table(&mut client).await.unwrap();
        }
        let table = "CREATE TABLE pages (`by` VARCHAR(40))";
        client.query_drop(table).await.unwrap();
        Some(new)
    }

    async fn client(&self) -> Conn {
        Conn::new(self.0.clone()).await.unwrap()
    }
}

async fn written(client: &mut Conn) -> Vec<String> {
    let pages = client.query("SELECT `by` FROM pages ORDER BY `by`").await;
    pages.unwrap()
}

/// Writes under a fence and commits.
async fn write(client: &mut Conn, fence: &Fence, by: &str) -> Result<(), Error> {
    let mut transaction = client.start_transaction(TxOpts::default()).await?;
    if let Err(refused) = MysqlGuard.admit(&mut transaction, fence).await {
        transaction.rollback().await?;
        return Err(refused);
    }
    transaction
        .exec_drop("INSERT INTO pages VALUES (?)", (by,))
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// Until somebody waits for a lock of the server.
async fn until_one_waits(beside: &mut Conn) {
    let sql = "SELECT variable_value + 0 FROM information_schema.global_status
        WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'";
    while beside.query_first::<u64, _>(sql).await.unwrap() != Some(1) {}
}

/// One after the other: all see how many wait for a lock, and set what is of the whole server.
#[tokio::test]
async fn guards_hold() {
    let Some(database) = Mysql::new("guards_hold").await else {
        return;
    };
    of_two_leaders_that_write_at_once_the_later_term_is_last(&database).await;
    nothing_lands_of_a_leader_that_is_frozen_in_the_middle_of_its_write(&database).await;
    another_table_is_told(&database).await;
}

async fn of_two_leaders_that_write_at_once_the_later_term_is_last(database: &Mysql) {
    let mut beside = database.client().await;
    let (mut old, mut new) = (database.client().await, database.client().await);
    let newest = MysqlGuard.newest(&mut beside, &reports()).await.unwrap();
    assert_eq!(newest, None);
    write(&mut old, &fence(7), "old").await.unwrap();
    write(&mut old, &fence(7), "old again").await.unwrap();

    // The old one is in the middle of its write: the new one waits for it.
    let mut transaction = old.start_transaction(TxOpts::default()).await.unwrap();
    let admitted = MysqlGuard.admit(&mut transaction, &fence(7)).await;
    admitted.unwrap();
    let writes = tokio::spawn(async move {
        write(&mut new, &fence(9), "new").await.unwrap();
        new
    });
    until_one_waits(&mut beside).await;
    let late = "INSERT INTO pages VALUES ('old, in time')";
    transaction.query_drop(late).await.unwrap();
    transaction.commit().await.unwrap();
    let mut new = writes.await.unwrap();

    assert_eq!(deposed(write(&mut old, &fence(7), "late").await), (7, 9));
    // The new one is in the middle of its write: the old one waits, and is refused.
    let mut transaction = new.start_transaction(TxOpts::default()).await.unwrap();
    let admitted = MysqlGuard.admit(&mut transaction, &fence(u64::MAX)).await;
    admitted.unwrap();
    let writes = tokio::spawn(async move { write(&mut old, &fence(u64::MAX - 1), "late").await });
    until_one_waits(&mut beside).await;
    transaction.commit().await.unwrap();
    assert_eq!(deposed(writes.await.unwrap()), (u64::MAX - 1, u64::MAX));

    assert_eq!(
        written(&mut beside).await,
        ["new", "old", "old again", "old, in time"]
    );
    let newest = MysqlGuard.newest(&mut beside, &reports()).await.unwrap();
    assert_eq!(newest, Some(Epoch(u64::MAX)));
    // Another election has its own.
    let other = Fence::new(ElectionName::new("other").unwrap(), Epoch(1));
    write(&mut new, &other, "other").await.unwrap();
}

async fn nothing_lands_of_a_leader_that_is_frozen_in_the_middle_of_its_write(database: &Mysql) {
    let mut beside = database.client().await;
    for table in ["pages", "lockgate_guard"] {
        beside
            .query_drop(format!("DELETE FROM {table}"))
            .await
            .unwrap();
    }
    let (mut old, mut new) = (database.client().await, database.client().await);
    let mut third = database.client().await;
    // Frozen before it is admitted.
    let mut waits = third.start_transaction(TxOpts::default()).await.unwrap();
    let row = "INSERT INTO pages VALUES ('frozen')";
    waits.query_drop(row).await.unwrap();

    // Frozen after that: the server ends it when its term is over.
    let mut admitted = old.start_transaction(TxOpts::default()).await.unwrap();
    let ends = lasts(7, Duration::from_millis(300));
    MysqlGuard.admit(&mut admitted, &ends).await.unwrap();
    admitted.query_drop(row).await.unwrap();

    write(&mut new, &fence(9), "new").await.unwrap();

    // They thaw.
    admitted.query_drop(row).await.unwrap_err();
    admitted.commit().await.unwrap_err();
    let refused = MysqlGuard.admit(&mut waits, &fence(7)).await;
    assert_eq!(deposed(refused), (7, 9));
    waits.rollback().await.unwrap();
    assert_eq!(written(&mut beside).await, ["new"]);

    // One whose term is over by its own clock does not even ask.
    let refused = write(&mut new, &lasts(10, Duration::ZERO), "over").await;
    assert!(
        matches!(refused, Err(Error::Fence(FenceError::Over { .. }))),
        "{refused:?}"
    );
    let newest = MysqlGuard.newest(&mut beside, &reports()).await.unwrap();
    assert_eq!(newest, Some(Epoch(9)));
    // The limit is no longer one than the server has.
    for (server, seconds, expected) in [
        (0, 60, 60),
        (10, 60, 10),
        (10, 4, 4),
        (0, u64::MAX, 31_536_000),
    ] {
        let set = format!("SET GLOBAL idle_transaction_timeout = {server}");
        beside.query_drop(set).await.unwrap();
        let lasts = lasts(10, Duration::from_secs(seconds));
        let mut transaction = new.start_transaction(TxOpts::default()).await.unwrap();
        MysqlGuard.admit(&mut transaction, &lasts).await.unwrap();
        transaction.rollback().await.unwrap();
        let limit = "SELECT @@SESSION.idle_transaction_timeout";
        let limit: Option<u64> = new.query_first(limit).await.unwrap();
        assert_eq!(limit, Some(expected));
    }
    let set = "SET GLOBAL idle_transaction_timeout = 0";
    beside.query_drop(set).await.unwrap();
}

async fn another_table_is_told(database: &Mysql) {
    let mut client = database.client().await;
    let change = "ALTER TABLE lockgate_guard MODIFY epoch BIGINT NOT NULL";
    client.query_drop(change).await.unwrap();
    let refused = MysqlGuard.create_table(&mut client).await;
    assert!(
        matches!(refused, Err(Error::OtherTable { .. })),
        "{refused:?}"
    );
}

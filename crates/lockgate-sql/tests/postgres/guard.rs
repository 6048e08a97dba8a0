//! A guard in PostgreSQL: what a leader that was deposed writes does not land.

use std::{sync::Arc, time::Duration};

use lockgate_core::{
    ElectionName, Epoch,
    coordination::{Fence, FenceError, TermSpan},
};
use lockgate_sql::{Error, PostgresGuard};
use tokio_postgres::Client;

use super::{Postgres, server};

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

fn deposed(result: Result<(), Error>) -> (u64, u64) {
    match result {
        Err(Error::Fence(FenceError::Deposed { epoch, newest, .. })) => (epoch.0, newest.0),
        other => panic!("expected a refusal: {other:?}"),
    }
}

async fn written(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT by FROM pages ORDER BY by", &[]);
    rows.await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Writes under a fence and commits.
async fn write(client: &mut Client, fence: &Fence, by: &str) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    PostgresGuard.admit(&transaction, fence).await?;
    transaction
        .execute("INSERT INTO pages VALUES ($1)", &[&by])
        .await?;
    transaction.commit().await?;
    Ok(())
}

async fn start(test: &str) -> Option<(Postgres, Client, [Client; 2])> {
    let url = server(test)?;
    let mut database = Postgres::new(&url).await;
    let name = database.name.clone();
    database.config.application_name(&name);
    let beside = database.client().await;
    for _ in 0..2 {
        PostgresGuard.create_table(&beside).await.unwrap();
    }
    let table = "CREATE TABLE pages (by text)";
    beside.batch_execute(table).await.unwrap();
    let leaders = [database.client().await, database.client().await];
    Some((database, beside, leaders))
}

#[tokio::test]
async fn of_two_leaders_that_write_at_once_the_later_term_is_last() {
    let test = "of_two_leaders_that_write_at_once_the_later_term_is_last";
    let Some((database, beside, [mut old, mut new])) = start(test).await else {
        return;
    };
    assert_eq!(
        PostgresGuard.newest(&beside, &reports()).await.unwrap(),
        None
    );
    write(&mut old, &fence(7), "old").await.unwrap();
    write(&mut old, &fence(7), "old again").await.unwrap();

    // The old one is in the middle of its write: the new one waits for it.
    let transaction = old.transaction().await.unwrap();
    PostgresGuard.admit(&transaction, &fence(7)).await.unwrap();
    let writes = tokio::spawn(async move {
        write(&mut new, &fence(9), "new").await.unwrap();
        new
    });
    database.until_one_waits(&beside, "transactionid").await;
    let late = "INSERT INTO pages VALUES ('old, in time')";
    transaction.execute(late, &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let mut new = writes.await.unwrap();

    assert_eq!(deposed(write(&mut old, &fence(7), "late").await), (7, 9));
    // The new one is in the middle of its write: the old one waits, and is refused.
    let transaction = new.transaction().await.unwrap();
    PostgresGuard.admit(&transaction, &fence(11)).await.unwrap();
    let writes = tokio::spawn(async move { write(&mut old, &fence(9), "late").await });
    database.until_one_waits(&beside, "transactionid").await;
    transaction.commit().await.unwrap();
    assert_eq!(deposed(writes.await.unwrap()), (9, 11));

    assert_eq!(
        written(&beside).await,
        ["new", "old", "old again", "old, in time"]
    );
    let newest = PostgresGuard.newest(&beside, &reports()).await.unwrap();
    assert_eq!(newest, Some(Epoch(11)));
    // Another election has its own.
    let other = Fence::new(ElectionName::new("other").unwrap(), Epoch(1));
    write(&mut new, &other, "other").await.unwrap();
}

#[tokio::test]
async fn nothing_lands_of_a_leader_that_is_frozen_in_the_middle_of_its_write() {
    let test = "nothing_lands_of_a_leader_that_is_frozen_in_the_middle_of_its_write";
    let Some((database, beside, [mut old, mut new])) = start(test).await else {
        return;
    };
    let mut third = database.client().await;
    // Frozen before it is admitted.
    let transaction = third.transaction().await.unwrap();
    let row = "INSERT INTO pages VALUES ('frozen')";
    transaction.execute(row, &[]).await.unwrap();

    // Frozen after that: the server ends it when its term is over.
    let lasts = fence(7).with_span(Arc::new(Lasts(Duration::from_millis(300))));
    let admitted = old.transaction().await.unwrap();
    PostgresGuard.admit(&admitted, &lasts).await.unwrap();
    admitted.execute(row, &[]).await.unwrap();

    write(&mut new, &fence(9), "new").await.unwrap();

    // They thaw.
    admitted.execute(row, &[]).await.unwrap_err();
    admitted.commit().await.unwrap_err();
    let refused = PostgresGuard.admit(&transaction, &fence(7)).await;
    assert_eq!(deposed(refused), (7, 9));
    transaction.rollback().await.unwrap();
    assert_eq!(written(&beside).await, ["new"]);

    // One whose term is over by its own clock does not even ask.
    let over = fence(10).with_span(Arc::new(Lasts(Duration::ZERO)));
    let refused = write(&mut new, &over, "over").await;
    assert!(
        matches!(refused, Err(Error::Fence(FenceError::Over { .. }))),
        "{refused:?}"
    );
    let newest = PostgresGuard.newest(&beside, &reports()).await.unwrap();
    assert_eq!(newest, Some(Epoch(9)));
    // The limit is of the transaction only, and no longer one than the session had.
    let set = "SET idle_in_transaction_session_timeout = '10min'";
    new.batch_execute(set).await.unwrap();
    for (lasts, expected) in [(3_600, "10min"), (60, "1min")] {
        let lasts = Arc::new(Lasts(Duration::from_secs(lasts)));
        let lasts = fence(10).with_span(lasts);
        let transaction = new.transaction().await.unwrap();
        PostgresGuard.admit(&transaction, &lasts).await.unwrap();
        let limit = "SHOW idle_in_transaction_session_timeout";
        let limit = transaction.query_one(limit, &[]).await.unwrap();
        assert_eq!(limit.get::<_, &str>(0), expected);
    }
    let limit = "SHOW idle_in_transaction_session_timeout";
    let limit = new.query_one(limit, &[]).await.unwrap();
    assert_eq!(limit.get::<_, &str>(0), "10min");
}

//! What an inbox promises.

use std::time::Duration;

use lockgate_sql::Error;

use super::Database;

pub(super) async fn a_message_has_one_effect(database: &impl Database) {
    for first in [true, false, false] {
        assert_eq!(database.handle("a", "m1", true).await, Ok(first));
    }
    assert_eq!(
        database.handle("a", "m2", true).await,
        Ok(true),
        "another message"
    );
    assert_eq!(
        database.handle("b", "m1", true).await,
        Ok(true),
        "another consumer"
    );
    assert_eq!(database.effects().await, ["a m1", "a m2", "b m1"]);
}

pub(super) async fn an_effect_that_fails_leaves_no_trace(database: &impl Database) {
    let failed = database.handle("a", "m1", false).await;
    assert!(failed.is_err_and(|error| error.contains("on purpose")));
    assert!(database.effects().await.is_empty());
    assert_eq!(
        database.handle("a", "m1", true).await,
        Ok(true),
        "it is tried again"
    );
    assert_eq!(database.effects().await, ["a m1"]);
}

pub(super) async fn rows_are_pruned_by_age_in_batches(database: &impl Database) {
    let hour = Duration::from_secs(3_600);
    for message in ["m1", "m2", "m3"] {
        database.handle("a", message, true).await.unwrap();
    }
    database.handle("b", "m1", true).await.unwrap();
    database.age_inbox(3 * hour).await;
    database.handle("a", "m4", true).await.unwrap();

    assert_eq!(database.prune("a", 4 * hour, 10).await, 0, "none is so old");
    let mut pruned = Vec::new();
    for _ in 0..3 {
        pruned.push(database.prune("a", 2 * hour, 2).await);
    }
    assert_eq!(pruned, [2, 1, 0]);
    assert_eq!(
        database.handle("a", "m4", true).await,
        Ok(false),
        "it is young"
    );
    assert_eq!(
        database.handle("b", "m1", true).await,
        Ok(false),
        "it is another's"
    );
    assert_eq!(
        database.handle("a", "m1", true).await,
        Ok(true),
        "it was forgotten"
    );
}

pub(super) async fn a_message_can_be_forgotten(database: &impl Database) {
    database.handle("a", "m1", true).await.unwrap();
    assert!(database.forget("a", "m1").await);
    assert!(!database.forget("a", "m1").await);
    assert_eq!(database.handle("a", "m1", true).await, Ok(true));
}

pub(super) async fn another_table_is_refused(database: &impl Database) {
    let error = database.create_over_another_table().await;
    assert!(matches!(error, Error::OtherTable { .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("lockgate_inbox") && said.contains("message"),
        "{said}"
    );
}

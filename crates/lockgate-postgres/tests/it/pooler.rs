//! Behind a PgBouncer.

use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions, PostgresView};

use crate::{
    server::{Server, shared_server},
    support::Owner,
};

#[test]
fn a_pooler_that_shares_sessions_is_refused_and_one_that_keeps_them_serves() {
    let test = "a_pooler_that_shares_sessions_is_refused_and_one_that_keeps_them_serves";
    if shared_server(test).is_none() {
        return;
    }
    let server = Server::start();
    let poolers = server
        .pooler("session", test)
        .zip(server.pooler("transaction", test));
    let Some((session, shared)) = poolers else {
        return;
    };
    let mut owner = Owner::with_options(&session.url, "shard", PostgresLogOptions::default());
    owner.append("kept").unwrap();
    owner.sync();
    let view = PostgresView::open(&session.url, "shard", PostgresLogOptions::default());
    view.unwrap();

    let refused = PostgresLog::open(&shared.url, "shard", PostgresLogOptions::default());
    assert!(matches!(refused, Err(OpenError::Pooled)), "{refused:?}");
    let refused = PostgresLog::open_to_fill(&shared.url, "new", &PostgresLogOptions::default());
    assert!(matches!(refused, Err(OpenError::Pooled)));
    let refused = PostgresView::open(&shared.url, "shard", PostgresLogOptions::default());
    assert!(matches!(refused, Err(OpenError::Pooled)));

    // Nobody was disturbed.
    owner.append("more").unwrap();
    owner.sync();
}

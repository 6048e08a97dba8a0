//! What an outbox promises.

use std::{collections::BTreeMap, time::Duration};

use lockgate_core::{Header, Key, Level, Message, UniqueId, WallTime};
use lockgate_sql::{Forwarder, ForwarderOptions, ForwarderState, StartError};

use super::{
    Database,
    sink::{Reply, TestSink},
};

/// Within which nothing fails that is not meant to.
const LONG: Duration = Duration::from_secs(60);

fn options() -> ForwarderOptions {
    ForwarderOptions {
        poll: Duration::from_millis(5),
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(4),
        ..ForwarderOptions::default()
    }
}

fn of(key: &str, body: &str) -> Message {
    Message::new(body.to_owned()).with_key(Key::new(key).unwrap())
}

async fn forward(database: &impl Database, sink: &TestSink) -> Forwarder {
    database.forward(sink.clone(), options()).await.unwrap()
}

/// Until nothing is left to be sent.
async fn sent(forwarder: &Forwarder, rows: u64) {
    let wanted = |state: &ForwarderState| {
        let trouble = state.trouble.as_deref().unwrap_or_default();
        assert!(!trouble.contains("SQL"), "the database fails: {trouble}");
        state.forwarded + state.parked >= rows && state.idle
    };
    forwarder.wait_for(wanted).await;
}

pub(super) async fn what_is_committed_is_sent_whole_and_nothing_else(database: &impl Database) {
    let whole = Message {
        body: vec![0, 0xff].into(),
        headers: vec![Header {
            name: "n".into(),
            kind: "Binary".into(),
            value: vec![0, 1, 0xfe].into(),
        }],
        key: Some(Key::new("ü").unwrap()),
        group: Some(Key::new("g").unwrap()),
        unique_id: Some(UniqueId::new("own").unwrap()),
        due: Some(WallTime(7)),
        time_to_live: Some(9),
        content_type: Some("text/plain".into()),
        trace_context: Some("00-1".into()),
        level: Some(Level::Process),
        priority: 9,
        producer: None,
    };
    database
        .enqueue(&[Message::new("rolled back")], false)
        .await;
    database
        .enqueue(&[whole.clone(), Message::new("plain")], true)
        .await;
    let sink = TestSink::new();
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 2).await;
    // What is added while it runs is sent, too.
    database.enqueue(&[Message::new("later")], true).await;
    sent(&forwarder, 3).await;
    let state = forwarder.drain(LONG).await;
    assert_eq!((state.forwarded, state.duplicates, state.parked), (3, 0, 0));

    let accepted = std::mem::take(&mut sink.state().accepted);
    assert_eq!(accepted[0], whole);
    assert_eq!(accepted[1].body, "plain");
    assert_eq!(accepted[2].body, "later");
    assert_ne!(accepted[1].unique_id, accepted[2].unique_id);
    assert_eq!(database.counts().await.to_send, 0, "they have left");
}

pub(super) async fn keys_keep_their_order_whatever_fails(database: &impl Database) {
    let sink = TestSink::new();
    let replies = [
        Reply::Half,
        Reply::Lost,
        Reply::Away,
        Reply::Half,
        Reply::Half,
    ];
    sink.state().replies.extend(replies.repeat(3));
    for number in 0..20 {
        let messages = ["a", "b", "c"].map(|key| of(key, &format!("{key}{number:02}")));
        database.enqueue(&messages, true).await;
    }
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 60).await;
    drop(forwarder);
    let mut of_key: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for body in sink.bodies() {
        of_key
            .entry(body.chars().next().unwrap())
            .or_default()
            .push(body);
    }
    for (key, bodies) in of_key {
        let expected: Vec<_> = (0..20).map(|number| format!("{key}{number:02}")).collect();
        assert_eq!(bodies, expected);
    }
}

pub(super) async fn a_lost_answer_makes_no_second_message(database: &impl Database) {
    let sink = TestSink::new();
    sink.state().replies.extend([Reply::Lost; 3]);
    database
        .enqueue(&[of("a", "1"), Message::new("2")], true)
        .await;
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 2).await;
    let state = forwarder.drain(LONG).await;
    assert_eq!(sink.bodies(), ["1", "2"]);
    assert_eq!(state.duplicates, 2, "it was told that they were there");
    assert!(state.failed >= 2);
}

pub(super) async fn a_refused_row_waits_for_an_operator_with_its_key_behind_it(
    database: &impl Database,
) {
    let sink = TestSink::new();
    sink.state().refused.insert("a1".to_owned());
    let rows = [
        of("a", "a1"),
        of("a", "a2"),
        of("b", "b1"),
        Message::new("x"),
    ];
    let rows = database.enqueue(&rows, true).await;
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 3).await;
    database
        .enqueue(&[of("a", "a3"), of("b", "b2")], true)
        .await;
    sent(&forwarder, 4).await;
    assert_eq!(sink.bodies(), ["b1", "x", "b2"]);

    let parked = database.parked(None, 10).await;
    assert_eq!(parked.len(), 1);
    assert_eq!(
        (parked[0].id, parked[0].key.as_deref()),
        (rows[0], Some("a"))
    );
    assert!(parked[0].reason.contains("I want no a1"), "{parked:?}");
    assert!(!parked[0].in_doubt, "it never was accepted");
    assert!(database.parked(Some(rows[0]), 10).await.is_empty());
    let counts = database.counts().await;
    assert_eq!((counts.to_send, counts.parked, counts.behind), (0, 1, 2));

    sink.state().refused.clear();
    assert!(database.retry(rows[0]).await);
    assert!(!database.retry(rows[0]).await, "it is parked no more");
    sent(&forwarder, 7).await;
    forwarder.drain(LONG).await;
    assert_eq!(sink.bodies()[3..], ["a1", "a2", "a3"]);
}

pub(super) async fn a_discarded_row_lets_its_key_go_on(database: &impl Database) {
    let mut sink = TestSink::new();
    sink.can.message_bytes_max = 5;
    let rows = [of("a", "too large"), of("a", "a2")];
    let rows = database.enqueue(&rows, true).await;
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 1).await;
    let parked = database.parked(None, 10).await;
    assert!(parked[0].reason.contains("9 bytes"), "{parked:?}");
    assert_eq!(sink.state().batches, 0, "it was not even sent");
    assert!(!database.discard(rows[1]).await, "it is not parked");
    assert!(database.discard(rows[0]).await);
    sent(&forwarder, 2).await;
    drop(forwarder);
    assert_eq!(sink.bodies(), ["a2"]);
    assert_eq!(database.counts().await.parked, 0);
}

pub(super) async fn a_row_in_doubt_is_not_sent_blindly(database: &impl Database) {
    let sink = TestSink::new();
    sink.state().replies.extend([Reply::Lost; 1_000]);
    let rows = database
        .enqueue(&[of("a", "a1"), of("a", "a2")], true)
        .await;
    let forwarder = forward(database, &sink).await;
    forwarder.wait_for(|state| state.failed > 0).await;
    forwarder.drain(LONG).await;
    sink.state().replies.clear();
    // The window of the sink is ten minutes.
    database.age_claims(Duration::from_secs(301)).await;
    let batches = sink.state().batches;
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 1).await;
    let parked = database.parked(None, 10).await;
    assert_eq!(parked[0].id, rows[0]);
    assert!(
        parked[0].in_doubt && parked[0].reason.contains("not answered"),
        "{parked:?}"
    );
    assert_eq!(sink.state().batches, batches, "nothing was sent");
    // The operator looks: it is there.
    assert!(database.discard(rows[0]).await);
    sent(&forwarder, 2).await;
    drop(forwarder);
    assert_eq!(sink.bodies(), ["a1", "a2"]);
}

pub(super) async fn a_row_that_is_no_message_is_parked(database: &impl Database) {
    database.enqueue(&[Message::new("x")], true).await;
    database.spoil("level", "highest").await;
    database.enqueue(&[Message::new("y")], true).await;
    let sink = TestSink::new();
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 2).await;
    drop(forwarder);
    let parked = database.parked(None, 10).await;
    assert!(parked[0].reason.contains("column level"), "{parked:?}");
    assert_eq!(sink.bodies(), ["y"]);
}

/// Rows that wait behind a parked one are looked at once.
pub(super) async fn a_large_backlog_behind_a_parked_row_stops_no_other_key(
    database: &impl Database,
) {
    let sink = TestSink::new();
    sink.state().refused.insert("first".to_owned());
    let mut messages = vec![of("a", "first")];
    messages.extend((0..2_500).map(|_| of("a", "behind")));
    messages.push(of("b", "other"));
    database.enqueue(&messages, true).await;
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 2).await;
    drop(forwarder);
    assert_eq!(sink.bodies(), ["other"]);
    let counts = database.counts().await;
    assert_eq!(
        (counts.to_send, counts.parked, counts.behind),
        (0, 1, 2_500)
    );
}

pub(super) async fn a_drained_forwarder_leaves_no_claim(database: &impl Database) {
    let sink = TestSink::new();
    sink.state().replies.extend([Reply::Away; 1_000]);
    database.enqueue(&[Message::new("x")], true).await;
    let forwarder = forward(database, &sink).await;
    forwarder.wait_for(|state| state.failed > 1).await;
    let state = forwarder.drain(LONG).await;
    assert!(
        state
            .trouble
            .is_some_and(|trouble| trouble.contains("not now"))
    );
    // Had it one, nobody would send it any more.
    database.age_claims(Duration::from_secs(3_600)).await;
    sink.state().replies.clear();
    let forwarder = forward(database, &sink).await;
    sent(&forwarder, 1).await;
    drop(forwarder);
    assert_eq!(sink.bodies(), ["x"]);
}

pub(super) async fn a_sink_without_unique_ids_is_refused(database: &impl Database) {
    let mut sink = TestSink::new();
    sink.can.unique_ids = false;
    let error = database.forward(sink.clone(), options()).await.unwrap_err();
    assert!(matches!(error, StartError::NoUniqueIds), "{error}");
    (sink.can.unique_ids, sink.can.unique_id_window) = (true, None);
    let error = database.forward(sink.clone(), options()).await.unwrap_err();
    assert!(matches!(error, StartError::NoWindow), "{error}");
    let mut long = options();
    long.window = Some(Duration::from_secs(40));
    long.send_time_max = Some(Duration::from_secs(11));
    let error = database.forward(sink, long).await.unwrap_err();
    assert!(error.to_string().contains("send_time_max"), "{error}");
}

pub(super) async fn rows_behind_one_that_was_deleted_by_hand_go_on_with_the_next_of_their_key(
    database: &impl Database,
) {
    let sink = TestSink::new();
    sink.state().refused.insert("1".to_owned());
    let forwarder = forward(database, &sink).await;
    database.enqueue(&[of("a", "1"), of("a", "2")], true).await;
    sent(&forwarder, 1).await;
    while database.counts().await.behind == 0 {}
    database.delete_parked_by_hand().await;
    // More than one look has, so that those behind them show that the forwarder gets on.
    let mut more = vec![of("a", "3"); 1_000];
    more.push(of("b", "other"));
    database.enqueue(&more, true).await;
    let done = forwarder.wait_for(|state| state.forwarded == 1_002);
    let done = tokio::time::timeout(LONG, done).await;
    assert!(
        done.is_ok(),
        "{:?} {:?}",
        forwarder.state(),
        database.counts().await
    );
    assert_eq!(sink.bodies().iter().position(|body| body == "2"), Some(0));
}

/// A batch has one row of a key, so a long backlog takes many.
pub(super) async fn a_large_backlog_of_one_key_holds_up_no_other_key(database: &impl Database) {
    let sink = TestSink::new();
    let mut messages = vec![of("a", "backlog"); 2_500];
    messages.push(of("b", "other"));
    database.enqueue(&messages, true).await;
    let forwarder = forward(database, &sink).await;
    let place = || sink.bodies().iter().position(|body| body == "other");
    forwarder.wait_for(|_| place().is_some()).await;
    drop(forwarder);
    assert_eq!(place(), Some(1), "it is in the first batch");
}

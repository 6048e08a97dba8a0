//! A ledger in a database.

use std::time::Duration;

use lockgate_conformance::{
    ledger::{
        self, Fixture,
        databases::{
            self, all, an_append_to_a_frozen_server_is_given_up, append_unique,
            events_go_when_they_are_old, is_denied, the_largest_numbers_are_refused_or_for_ever,
            what_is_appended_through_cuts_is_there_once,
        },
    },
    servers::Scripted,
};
use lockgate_core::{
    Epoch, LedgerName, UniqueId, WallTime,
    ledger::{
        Append, Appended, EVENT_BYTES_MAX, Ledger, LedgerError, LedgerOptions, NewEvent, SequenceId,
    },
};
use lockgate_mysql::{MysqlLedger, MysqlLedgerOptions};
use mysql_async::{Conn, IsolationLevel, TxOpts, prelude::Queryable as _};

use crate::{Mysql, client};

impl Mysql {
    fn start_with_clock(test: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mariadb");
        Scripted::start_with_clock(script, "LOCKGATE_TEST_MYSQL", test).map(Self)
    }
}

fn options(ledger: &str, made_with: LedgerOptions) -> MysqlLedgerOptions {
    MysqlLedgerOptions {
        ledger: ledger.to_owned(),
        made_with,
        ..MysqlLedgerOptions::default()
    }
}

async fn connect(url: &str, ledger: &str) -> MysqlLedger {
    let options = options(ledger, LedgerOptions::default());
    MysqlLedger::connect_with(url, options).await.unwrap()
}

impl Fixture for Mysql {
    type Ledger = MysqlLedger;

    async fn open(&mut self, name: LedgerName, made_with: LedgerOptions) -> MysqlLedger {
        let name = name.as_str().replace(['-', '.'], "_");
        let name: String = name.chars().take(40).collect();
        let options = options(&name, made_with);
        MysqlLedger::connect_with(&self.0.url, options)
            .await
            .unwrap()
    }

    fn set_clock(&mut self, wall: WallTime) -> bool {
        self.0.set_clock(wall);
        true
    }

    async fn restart(&mut self) -> bool {
        self.0.crash();
        true
    }
}

/// A mistyped name makes no ledger, unless that is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_not_there_is_not_made_unless_it_may_be() {
    let test = "a_ledger_that_is_not_there_is_not_made_unless_it_may_be";
    let Some(server) = Mysql::start_with_clock(test) else {
        return;
    };
    let there = MysqlLedgerOptions {
        create: false,
        ..options("there", LedgerOptions::default())
    };
    for _ in 0..2 {
        let missing = MysqlLedger::connect_with(&server.0.url, there.clone()).await;
        let ledger = LedgerName::new("there").unwrap();
        assert_eq!(missing.unwrap_err(), LedgerError::NotFound { ledger });
    }
    connect(&server.0.url, "there").await;
    let ledger = MysqlLedger::connect_with(&server.0.url, there)
        .await
        .unwrap();
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId::START);

    // One that is gone is not made again, though it might have been made: its numbers would begin anew.
    let maker = connect(&server.0.url, "there").await;
    let mut connection = Conn::from_url(&server.0.url).await.unwrap();
    for table in ["version", "head"] {
        let drop = format!("DROP TABLE there_{table}");
        connection.query_drop(drop).await.unwrap();
    }
    connection.disconnect().await.unwrap();
    let gone = LedgerError::NotFound {
        ledger: LedgerName::new("there").unwrap(),
    };
    assert_eq!(maker.head().await.unwrap_err(), gone);
    let append = Append {
        epoch: Epoch(1),
        head: None,
        events: Vec::new(),
        settled: Vec::new(),
    };
    assert_eq!(maker.append(append).await.unwrap_err(), gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_conforms() {
    if let Some(mut server) = Mysql::start_with_clock("a_ledger_conforms") {
        let not_run = ledger::run(&mut server).await;
        assert!(not_run.is_empty(), "{not_run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ledgers_of_one_server() {
    let Some(server) = Mysql::start("ledgers_of_one_server") else {
        return;
    };
    let url = &server.0.url;
    tables_are_made_once_and_then_used_by_others(url).await;
    bad_options_are_told(url).await;
    events_go(url).await;
    rows_of_prepared_statements_are_the_same_as_others(url).await;
    an_append_in_a_transaction_of_its_caller_commits_with_it(url).await;
    an_append_sees_what_there_is_whatever_its_transaction_has_seen(url).await;
    an_append_that_is_given_up_leaves_nothing(url).await;
    an_append_that_is_undone_is_made_again(url).await;
    a_frozen_writer_holds_up_others_for_a_while(url).await;
    ids_of_all_bytes_fit(url).await;
    partitions_come_and_go(url).await;
    let through = async |url: &str| connect(url, "cuts").await;
    what_is_appended_through_cuts_is_there_once(url, through).await;
    let sql = "SELECT COUNT(*) FROM cuts_unique_ids";
    assert_eq!(count(url, sql).await, 102);
    a_server_of_small_packets_is_refused(url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_given_up() {
    let Some(server) = Mysql::start("a_frozen_server_is_given_up") else {
        return;
    };
    let options = MysqlLedgerOptions {
        timeout: Duration::from_secs(2),
        ..MysqlLedgerOptions::default()
    };
    let ledger = MysqlLedger::connect_with(&server.0.url, options).await;
    let signal = |name: &str| server.0.signal(name);
    an_append_to_a_frozen_server_is_given_up(&ledger.unwrap(), signal).await;
}

/// The server shows an event before it has flushed it. A reader is told of it afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_has_seen_stays() {
    let Some(server) = Mysql::start_with_clock("what_a_reader_has_seen_stays") else {
        return;
    };
    let url = &server.0.url;
    let reader = connect(url, "seen").await;
    reader.append(append_unique(&["a"])).await.unwrap();
    assert_eq!(reader.read(all()).await.unwrap().events.len(), 1);
    let (mut writes, mut client) = (client(url).await, client(url).await);
    let mut transaction = writes.start_transaction(TxOpts::new()).await.unwrap();
    let appended = MysqlLedger::append_within(&mut transaction, "seen", append_unique(&["b"]));
    appended.await.unwrap();
    server.0.hold_log();
    let mut commits = Box::pin(transaction.commit());
    let shown = "SELECT sequence_id FROM seen_head";
    let is_shown = async { while client.query_first::<u64, _>(shown).await.unwrap() != Some(2) {} };
    tokio::select! {
        ended = &mut commits => panic!("the log is held: {ended:?}"),
        () = is_shown => {}
    }
    let mut reads = Box::pin(reader.read(all()));
    let is_waiting = async {
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%UPDATE seen_flushes%'
            AND id <> CONNECTION_ID()";
        while client.query_first::<u64, _>(waiting).await.unwrap() != Some(1) {}
    };
    tokio::select! {
        page = &mut reads => panic!("it may be lost yet: {page:?}"),
        () = is_waiting => {}
    }
    server.0.crash();
    commits.await.unwrap_err();
    // It reads again.
    match reads.await {
        Ok(_) | Err(LedgerError::Unavailable { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

async fn count(url: &str, sql: &str) -> u64 {
    client(url).await.query_first(sql).await.unwrap().unwrap()
}

fn places(appended: &Appended) -> Vec<(u64, bool)> {
    let events = appended.events.iter();
    events
        .map(|event| (event.sequence_id.0, event.is_duplicate))
        .collect()
}

/// Of many that come to a new database one makes the tables; a user who may make nothing can use what is there.
async fn tables_are_made_once_and_then_used_by_others(url: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let url = url.to_owned();
        tasks.spawn(async move {
            let ledger = MysqlLedger::connect(&url).await.unwrap();
            let id = number.to_string();
            ledger.append(append_unique(&[&id])).await.unwrap();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let mut client = client(url).await;
    for sql in [
        "CREATE USER clerk@'%' IDENTIFIED BY 'secret'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON lockgate.* TO clerk@'%'",
    ] {
        client.query_drop(sql).await.unwrap();
    }
    let (_, host) = url.rsplit_once('@').unwrap();
    let theirs = format!("mysql://clerk:secret@{host}");
    let ledger = MysqlLedger::connect(&theirs).await.unwrap();
    let appended = ledger.append(append_unique(&["0", "theirs"])).await;
    assert_eq!(appended.unwrap().head.sequence_id, SequenceId(9));
    assert_eq!(ledger.read(all()).await.unwrap().events.len(), 9);
    ledger.trim(SequenceId(9)).await.unwrap();
    let left = "SELECT COUNT(*) FROM lockgate_ledger_events";
    assert_eq!(count(url, left).await, 1);

    // What somebody must mend is not told as what passes.
    for sql in [
        "CREATE USER reader@'%' IDENTIFIED BY 'secret'",
        "GRANT SELECT ON lockgate.other TO reader@'%'",
    ] {
        client
            .query_drop("CREATE TABLE IF NOT EXISTS lockgate.other (n INT)")
            .await
            .unwrap();
        client.query_drop(sql).await.unwrap();
    }
    let reader = format!("mysql://reader:secret@{host}");
    let there = MysqlLedgerOptions {
        create: false,
        ..MysqlLedgerOptions::default()
    };
    let refused = MysqlLedger::connect_with(&reader, there.clone()).await;
    assert!(
        matches!(refused, Err(LedgerError::Denied { .. })),
        "{refused:?}"
    );
    for table in ["version", "head", "flushes"] {
        let grant =
            format!("GRANT SELECT, UPDATE ON lockgate.lockgate_ledger_{table} TO reader@'%'");
        client.query_drop(grant).await.unwrap();
    }
    let denied = MysqlLedger::connect_with(&reader, there).await.unwrap();
    assert_eq!(denied.head().await.unwrap().sequence_id, SequenceId(9));
    is_denied(&denied).await;

    // Somebody was interrupted, and goes on.
    for sql in [
        "DELETE FROM lockgate_ledger_version",
        "DROP TABLE lockgate_ledger_flushes",
    ] {
        client.query_drop(sql).await.unwrap();
    }
    // Only whoever makes ledgers does.
    let reads = MysqlLedgerOptions {
        create: false,
        ..MysqlLedgerOptions::default()
    };
    let _ = MysqlLedger::connect_with(url, reads).await;
    let versions = "SELECT COUNT(*) FROM lockgate_ledger_version";
    assert_eq!(count(url, versions).await, 0);
    let again = MysqlLedger::connect(url).await.unwrap();
    assert_eq!(again.head().await.unwrap().sequence_id, SequenceId(9));
    for (version, why) in [(99, "use a newer one"), (0, "no program has made")] {
        let set = format!("UPDATE lockgate_ledger_version SET version = {version}");
        client.query_drop(set).await.unwrap();
        let refused = MysqlLedger::connect(url).await;
        assert!(
            matches!(&refused, Err(LedgerError::Invalid { why: told }) if told.contains(why)),
            "{refused:?}"
        );
    }
    client
        .query_drop("DELETE FROM lockgate_ledger_version")
        .await
        .unwrap();
}

async fn bad_options_are_told(url: &str) {
    for (parameter, why) in [
        ("ledger=A-b", "cannot name a ledger"),
        ("partition=9999", "a partition has 10000 to"),
        ("partition=x", "partition=x is no number"),
        (
            "store=x",
            "there are ledger, partition, ssl-mode and ssl-ca",
        ),
    ] {
        let refused = MysqlLedger::connect(&format!("{url}?{parameter}")).await;
        let told = refused.unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
    }
    let options = MysqlLedgerOptions {
        poll: Duration::ZERO,
        ..MysqlLedgerOptions::default()
    };
    let refused = MysqlLedger::connect_with(url, options).await;
    assert!(matches!(refused, Err(LedgerError::Invalid { .. })));
}

/// More rows than a prepared statement has, of bytes and texts of all kinds.
async fn rows_of_prepared_statements_are_the_same_as_others(url: &str) {
    let ledger = connect(url, "rows").await;
    let append = append_unique(&[]);
    let events = (0..600_u32).map(|number| NewEvent {
        unique_id: UniqueId::new(&format!("\u{e9}\u{1f600}'{number}")).ok(),
        input: None,
        payload: (0..=255)
            .chain(number.to_le_bytes())
            .collect::<Vec<u8>>()
            .into(),
    });
    let events: Vec<_> = events.collect();
    let append = Append {
        events: events.clone(),
        ..append
    };
    let appended = ledger.append(append.clone()).await.unwrap();
    assert_eq!(appended.head.sequence_id, SequenceId(600));
    let again = ledger
        .append(Append {
            head: None,
            ..append
        })
        .await
        .unwrap();
    assert!(again.events.iter().all(|event| event.is_duplicate));
    let page = ledger.read(all()).await.unwrap();
    for (event, new) in page.events.iter().zip(&events) {
        assert_eq!(
            (&event.payload, &event.unique_id),
            (&new.payload, &new.unique_id)
        );
    }
    assert_eq!(page.events.len(), 600);
}

async fn events_go(url: &str) {
    let made = |retention| LedgerOptions {
        retention: Some(retention),
        hashed: true,
    };
    let old = MysqlLedger::connect_with(url, options("old", made(1))).await;
    events_go_when_they_are_old(&old.unwrap()).await;
    let first = "SELECT first_id = (SELECT MIN(sequence_id) FROM old_events) FROM old_head";
    assert_eq!(count(url, first).await, 1);
    let large = MysqlLedger::connect_with(url, options("large", made(u64::MAX))).await;
    the_largest_numbers_are_refused_or_for_ever(&large.unwrap()).await;
}

/// Events and what the caller writes are there together, or neither.
async fn an_append_in_a_transaction_of_its_caller_commits_with_it(url: &str) {
    let ledger = connect(url, "within").await;
    let mut client = client(url).await;
    let accounts = "CREATE TABLE accounts (owner TEXT) ENGINE = InnoDB";
    client.query_drop(accounts).await.unwrap();
    // Whatever the session reads texts by.
    let set = "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+11:00'";
    client.query_drop(set).await.unwrap();
    for commits in [false, true] {
        let mut transaction = client.start_transaction(TxOpts::new()).await.unwrap();
        let insert = "INSERT INTO accounts VALUES ('a')";
        transaction.query_drop(insert).await.unwrap();
        let appended =
            MysqlLedger::append_within(&mut transaction, "within", append_unique(&["u'\\"]));
        assert_eq!(places(&appended.await.unwrap()), [(1, false)]);
        // Nobody sees it before it is committed.
        assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId::START);
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        let head = ledger.head().await.unwrap().sequence_id;
        let there = (count(url, "SELECT COUNT(*) FROM accounts").await, head.0);
        assert_eq!(there, (u64::from(commits), u64::from(commits)));
    }
    let again = ledger.append(append_unique(&["u'\\", "v"])).await.unwrap();
    assert_eq!(places(&again), [(1, true), (2, false)]);
    let times = ledger.read(all()).await.unwrap().events;
    assert!(times[1].time.0 - times[0].time.0 < 3_600_000, "{times:?}");

    let mut transaction = client.start_transaction(TxOpts::new()).await.unwrap();
    let missing = MysqlLedger::append_within(&mut transaction, "missing", append_unique(&["u"]));
    let missing = missing.await.unwrap_err();
    assert!(matches!(missing, LedgerError::NotFound { .. }), "{missing}");
    transaction.rollback().await.unwrap();
}

/// In these servers a transaction sees, unless it says otherwise, what there was when it looked for the first time.
async fn an_append_sees_what_there_is_whatever_its_transaction_has_seen(url: &str) {
    let ledger = connect(url, "snapshot").await;
    let mut client = client(url).await;
    let repeatable = TxOpts::new()
        .with_isolation_level(IsolationLevel::RepeatableRead)
        .clone();
    let mut transaction = client.start_transaction(repeatable).await.unwrap();
    let looks = "SELECT COUNT(*) FROM snapshot_unique_ids";
    let seen: Option<u64> = transaction.query_first(looks).await.unwrap();
    assert_eq!(seen, Some(0));
    ledger.append(append_unique(&["u"])).await.unwrap();
    let appended =
        MysqlLedger::append_within(&mut transaction, "snapshot", append_unique(&["u", "v"]));
    assert_eq!(places(&appended.await.unwrap()), [(1, true), (2, false)]);
    transaction.commit().await.unwrap();
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId(2));
}

/// Locks the head of a ledger, until the connection rolls back.
async fn hold_head(client: &mut Conn, ledger: &str) {
    client.query_drop("START TRANSACTION").await.unwrap();
    let lock = format!("SELECT * FROM {ledger}_head FOR UPDATE");
    client.query_drop(lock).await.unwrap();
}

async fn until_one_waits(url: &str) {
    let mut looks = client(url).await;
    let waiting = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'";
    while looks
        .query_first::<(String, u64), _>(waiting)
        .await
        .unwrap()
        .unwrap()
        .1
        != 1
    {}
}

/// Of an append that is given up while it waits for another's, nothing lands, and its ledger serves on.
async fn an_append_that_is_given_up_leaves_nothing(url: &str) {
    let ledger = connect(url, "given_up").await;
    let mut holds = client(url).await;
    hold_head(&mut holds, "given_up").await;
    let mut waits = Box::pin(ledger.append(append_unique(&["lost"])));
    tokio::select! {
        ended = &mut waits => panic!("the head is locked: {ended:?}"),
        () = until_one_waits(url) => {}
    }
    drop(waits);
    holds.query_drop("ROLLBACK").await.unwrap();
    let appended = ledger.append(append_unique(&["kept"])).await.unwrap();
    assert_eq!(appended.head.sequence_id, SequenceId(1));
    assert_eq!(ledger.find(UniqueId::new("lost").unwrap()).await, Ok(None));
}

/// A process that is frozen in the middle of an append holds the head for as long as its own commands may take.
async fn a_frozen_writer_holds_up_others_for_a_while(url: &str) {
    let short = MysqlLedgerOptions {
        timeout: Duration::from_secs(2),
        ..options("frozen", LedgerOptions::default())
    };
    let frozen = MysqlLedger::connect_with(url, short).await.unwrap();
    frozen.append(append_unique(&["a"])).await.unwrap();
    let mut holds = client(url).await;
    let lock = "SELECT * FROM frozen_unique_ids WHERE unique_id = 'a' FOR UPDATE";
    for sql in ["START TRANSACTION", lock] {
        holds.query_drop(sql).await.unwrap();
    }
    let mut appends = Box::pin(frozen.append(append_unique(&["a", "lost"])));
    tokio::select! {
        ended = &mut appends => panic!("the id is locked: {ended:?}"),
        () = until_one_waits(url) => {}
    }
    // It goes on in the server, and nobody hears of it: its connection stays as it is.
    std::mem::forget(appends);
    holds.query_drop("ROLLBACK").await.unwrap();
    let others = connect(url, "frozen").await;
    let appended = others.append(append_unique(&["b"])).await.unwrap();
    assert_eq!(places(&appended), [(2, false)]);
    assert_eq!(others.find(UniqueId::new("lost").unwrap()).await, Ok(None));
}

/// The server ends one of two transactions that wait for each other, the smaller one.
async fn an_append_that_is_undone_is_made_again(url: &str) {
    let ledger = connect(url, "undone").await;
    ledger.append(append_unique(&["a"])).await.unwrap();
    let mut other = client(url).await;
    // It has what the append will ask for, and then asks for what that has.
    let rows = "INSERT INTO undone_readers VALUES ('a', 1), ('b', 1), ('c', 1), ('d', 1)";
    let lock = "SELECT * FROM undone_unique_ids WHERE unique_id = 'a' FOR UPDATE";
    for sql in ["START TRANSACTION", rows, lock] {
        other.query_drop(sql).await.unwrap();
    }
    let appends = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.append(append_unique(&["a", "b"])).await }
    });
    until_one_waits(url).await;
    let head = "SELECT * FROM undone_head FOR UPDATE";
    other.query_drop(head).await.unwrap();
    other.query_drop("COMMIT").await.unwrap();
    let appended = appends.await.unwrap().unwrap();
    assert_eq!(places(&appended), [(1, true), (2, false)]);
    let deadlocks = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'";
    let told: Option<(String, u64)> = other.query_first(deadlocks).await.unwrap();
    assert_eq!(told.map(|told| told.1), Some(1));
}

/// More bytes than one packet takes, and ids that differ only where texts that are compared do not.
async fn ids_of_all_bytes_fit(url: &str) {
    let ledger = connect(url, "bytes").await;
    let long = |last: char| {
        let mut id = "ü".repeat((UniqueId::MAX_LEN - 1) / 2);
        id.push(last);
        id
    };
    let ids: Vec<_> = (0..2_000)
        .map(|number| format!("{}{number:06}", "x".repeat(UniqueId::MAX_LEN - 6)))
        .chain([
            long('a'),
            long('A'),
            long(' '),
            "ü".into(),
            "u\u{308}".into(),
        ])
        .collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    for is_known in [false, true] {
        let appended = ledger.append(append_unique(&ids)).await.unwrap();
        for (at, event) in appended.events.iter().enumerate() {
            assert_eq!(
                (event.sequence_id.0, event.is_duplicate),
                (at as u64 + 1, is_known)
            );
        }
    }
    let large = vec![vec![0xff; EVENT_BYTES_MAX]; 8];
    let mut append = append_unique(&[]);
    for payload in &large {
        let event = lockgate_core::ledger::NewEvent {
            payload: payload.clone().into(),
            ..Default::default()
        };
        append.events.push(event);
    }
    let head = ledger.append(append).await.unwrap().head.sequence_id;
    let read = lockgate_core::ledger::ReadLedger {
        after: SequenceId(head.0 - 8),
        ..all()
    };
    let page = ledger.read(read).await.unwrap();
    assert!(page.events.iter().all(|event| event.payload == large[0]));
    assert_eq!(page.events.len(), 4);
}

/// The numbers of a ledger's partitions.
async fn numbers(url: &str, ledger: &str) -> Vec<u64> {
    let sql = format!(
        "SELECT CAST(SUBSTRING(partition_name, 2) AS UNSIGNED) FROM information_schema.partitions
         WHERE table_name = '{ledger}_events' AND partition_name <> 'rest' ORDER BY 1"
    );
    client(url).await.query(sql).await.unwrap()
}

async fn partitions_come_and_go(url: &str) {
    let made = |retention| LedgerOptions {
        retention,
        hashed: true,
    };
    let partition = "partition=10000";
    let old = format!("{url}?{partition}&ledger=old_parts");
    let old = MysqlLedger::connect_with(&old, options("", made(Some(1)))).await;
    let old_numbers = async || numbers(url, "old_parts").await;
    databases::partitions_go_when_they_are_old(&old.unwrap(), old_numbers).await;

    let connect = async |url: &str| {
        let url = format!("{url}?{partition}");
        let ledger = MysqlLedger::connect_with(&url, options("parts", made(None))).await;
        ledger.unwrap()
    };
    let numbers = async || numbers(url, "parts").await;
    let ledger = connect(url).await;
    databases::partitions_come_and_go(&ledger, numbers).await;

    // Who may not change the table, or has to wait for who uses it, appends all the same; and who may makes up for it.
    let (_, host) = url.rsplit_once('@').unwrap();
    let theirs = connect(&format!("mysql://clerk:secret@{host}")).await;
    theirs.append(databases::many(10_000)).await.unwrap();
    theirs.append(databases::many(10_000)).await.unwrap();
    let rest = "SELECT COUNT(*) FROM parts_events PARTITION (rest)";
    assert_eq!(
        (numbers().await, count(url, rest).await),
        (vec![2, 3], 10_001)
    );
    let mut uses = client(url).await;
    for sql in [
        "START TRANSACTION",
        "SELECT MAX(sequence_id) FROM parts_events",
    ] {
        uses.query_drop(sql).await.unwrap();
    }
    ledger.append(append_unique(&["used"])).await.unwrap();
    assert_eq!(
        (numbers().await, count(url, rest).await),
        (vec![2, 3], 10_002)
    );
    uses.query_drop("COMMIT").await.unwrap();
    ledger.append(databases::many(200)).await.unwrap();
    assert_eq!(
        (numbers().await, count(url, rest).await),
        (vec![2, 3, 4, 5, 6], 0)
    );
    databases::follows(&ledger).await;
}

async fn a_server_of_small_packets_is_refused(url: &str) {
    let mut client = client(url).await;
    let set = "SET GLOBAL max_allowed_packet = 1048576";
    client.query_drop(set).await.unwrap();
    let refused = MysqlLedger::connect(url).await;
    assert!(
        matches!(&refused, Err(LedgerError::Invalid { why }) if why.contains("max_allowed_packet is 1048576")),
        "{refused:?}"
    );
}

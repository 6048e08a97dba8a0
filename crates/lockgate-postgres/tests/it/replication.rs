//! A primary that dies, and the standby that takes its place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_core::{
    AppendError, Epoch, Level, Log, LogError, LogSource, Position, QueueName, ReadError,
    with_sources,
};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::Rejection;
use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions, PostgresView};

use crate::{
    engine::{create, drain, send, start_with},
    server::{Server, batch, execute, shared_server, signal, text, until, until_ended},
    support::Owner,
};

/// A primary whose commits wait for a standby.
struct Pair {
    primary: Server,
    standby: Server,
    /// Names both.
    url: String,
}

impl Pair {
    fn start() -> Self {
        let primary = Server::start();
        let standby = Server::standby_of(&primary);
        let url = both(&primary, &standby);
        let pair = Self {
            primary,
            standby,
            url,
        };
        wait_for(&pair.primary, "standby");
        pair
    }

    /// The primary's machine is gone, and somebody promotes the standby.
    fn fail_over(&self) {
        self.primary.kill();
        self.standby.promote();
    }

    /// Stops the process that sends the primary's log to the standby.
    fn freeze_sender(&self) -> Vec<i32> {
        let sender = vec![
            text(
                &self.primary.url,
                "SELECT pid::text FROM pg_stat_replication",
            )
            .parse()
            .unwrap(),
        ];
        signal("-STOP", &sender);
        sender
    }
}

/// A URL that names both servers.
fn both(first: &Server, second: &Server) -> String {
    let (credentials, first) = first.url.rsplit_once('@').unwrap();
    let first = first.strip_suffix("/postgres").unwrap();
    let (_, second) = second.url.rsplit_once('@').unwrap();
    format!("{credentials}@{first},{second}?target_session_attrs=read-write")
}

/// Has a server's commits wait for those standbys, which follow it.
fn wait_for(server: &Server, names: &str) {
    name_standbys(server, names);
    let counts = "
        EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))";
    until(&server.url, counts);
}

fn name_standbys(server: &Server, names: &str) {
    batch(
        &server.url,
        &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"),
    );
    execute(&server.url, "SELECT pg_reload_conf()", &[]);
    let is_known = format!("current_setting('synchronous_standby_names') = '{names}'");
    until(&server.url, &is_known);
}

fn replicated() -> PostgresLogOptions {
    PostgresLogOptions {
        sync_level: Level::Replicated,
        ..PostgresLogOptions::default()
    }
}

fn soon(sync_level: Level) -> PostgresLogOptions {
    PostgresLogOptions {
        sync_level,
        timeout: Duration::from_secs(1),
        ..PostgresLogOptions::default()
    }
}

const PRODUCERS: usize = 6;

/// What producers were told: by producer, what was answered, in order; and what was not.
type Told = (BTreeMap<usize, Vec<String>>, BTreeSet<String>);

/// Sends by many to both queues until `cut` has made every one of them fail.
fn send_until(engine: &Engine, round: &str, cut: impl FnOnce()) -> Told {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (engine, count, round) = (engine.clone(), count.clone(), round.to_owned());
            runtime.spawn(async move {
                let mut sent = Vec::new();
                for number in 0.. {
                    let body = format!("{producer}-{round}-{number}");
                    match engine.submit(send(&queue(producer), &body, producer)).await {
                        Ok(_) => sent.push(body),
                        Err(error) => return (producer, sent, body, error),
                    }
                    count.fetch_add(1, Relaxed);
                }
                unreachable!("the server is killed")
            })
        })
        .collect();
    while count.load(Relaxed) < 200 {
        std::thread::yield_now();
    }
    cut();
    let mut told = Told::default();
    runtime.block_on(async {
        for producer in producers {
            let (producer, sent, last, error) = producer.await.unwrap();
            // Never a success, never a hang: unknown, or certain that nothing was done.
            assert!(
                matches!(
                    error,
                    EngineError::UnknownOutcome { .. } | EngineError::Stopped { .. }
                ),
                "{error:?}"
            );
            if matches!(error, EngineError::UnknownOutcome { .. }) {
                told.1.insert(last);
            }
            told.0.insert(producer, sent);
        }
        assert!(engine.stopped().await.is_failure());
        engine.shutdown().await;
    });
    told
}

/// Half of the producers send at level `disk`, half at `replicated`.
fn queue(producer: usize) -> QueueName {
    QueueName::new(["at-disk", "at-replicated"][producer % 2]).unwrap()
}

#[test]
fn what_was_answered_is_on_the_standby_when_the_primary_dies() {
    if shared_server("what_was_answered_is_on_the_standby_when_the_primary_dies").is_none() {
        return;
    }
    let pair = Pair::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = start_with(&pair.url, replicated());
    for (producer, level) in [(0, Level::Disk), (1, Level::Replicated)] {
        runtime
            .block_on(engine.submit(create(&queue(producer), level)))
            .unwrap();
    }
    // What was acknowledged stays so.
    runtime
        .block_on(engine.submit(send(&queue(1), "acknowledged", 99)))
        .unwrap();
    assert_eq!(runtime.block_on(drain(&engine, &queue(1))).len(), 1);

    let (mut answered, unknown) = send_until(&engine, "first", || pair.fail_over());

    // Nobody follows the new primary yet: nothing may be called replicated there.
    match PostgresLog::open(&pair.url, "shard", replicated()).unwrap_err() {
        OpenError::Setting { setting, .. } => assert_eq!(setting, "synchronous_standby_names"),
        other => panic!("{other:?}"),
    }
    let engine = start_with(&pair.url, PostgresLogOptions::default());
    match runtime.block_on(engine.submit(send(&queue(1), "too much", 1))) {
        Err(EngineError::Rejected(Rejection::Level { log_level, .. })) => {
            assert_eq!(log_level, Level::Disk);
        }
        other => panic!("{other:?}"),
    }
    runtime.block_on(engine.shutdown());

    // The dead one's machine comes back as the standby, at the same address.
    pair.primary.follow(&pair.standby);
    wait_for(&pair.standby, "*");
    let engine = start_with(&pair.url, replicated());
    let (more, unknown_too) = send_until(&engine, "second", || {
        pair.standby.kill();
        pair.primary.promote();
    });
    for (producer, bodies) in more {
        let sent = answered.entry(producer).or_default();
        // What was sent without an answer may be there, once and in its place.
        sent.extend(unknown.iter().filter(|body| is_of(body, producer)).cloned());
        sent.extend(bodies);
        sent.extend(
            unknown_too
                .iter()
                .filter(|body| is_of(body, producer))
                .cloned(),
        );
    }

    let engine = start_with(&pair.url, PostgresLogOptions::default());
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for producer in [0, 1] {
        for body in runtime.block_on(drain(&engine, &queue(producer))) {
            let producer = body.split('-').next().unwrap().parse().unwrap();
            found.entry(producer).or_default().push(body);
        }
    }
    for (producer, sent) in &answered {
        let found = &found[producer];
        let expected: Vec<_> = sent
            .iter()
            .filter(|body| {
                let is_unknown = unknown.contains(*body) || unknown_too.contains(*body);
                !is_unknown || found.contains(body)
            })
            .collect();
        assert!(found.iter().eq(expected), "all of it, in order, once");
    }
    assert_eq!(found.len(), PRODUCERS, "and nothing else: {found:?}");
    runtime.block_on(engine.shutdown());
}

fn is_of(body: &str, producer: usize) -> bool {
    body.split('-').next() == Some(&producer.to_string())
}

#[test]
fn a_standby_that_does_not_follow_is_never_counted() {
    if shared_server("a_standby_that_does_not_follow_is_never_counted").is_none() {
        return;
    }
    let pair = Pair::start();
    for level in [Level::Replicated, Level::Disk] {
        let shard = level.name();
        let mut owner = Owner::with_options(&pair.url, shard, soon(level));
        owner.append("before").unwrap();
        owner.sync();
        let sender = pair.freeze_sender();
        owner.append("unknown").unwrap();
        let error = owner.log.progress().sync().unwrap_err();
        let told = with_sources(&error);
        assert!(
            told.contains("synchronous_standby_names is \"standby\""),
            "{told}"
        );
        match owner.append("after the end") {
            Err(AppendError::Unknown(LogError::Stopped { .. })) => {}
            other => panic!("{other:?}"),
        }
        // Nor does a start count it.
        let error = PostgresLog::open(&pair.url, &format!("{shard} 2"), soon(level)).unwrap_err();
        let told = with_sources(&error);
        assert!(told.contains("see whether they are connected"), "{told}");
        signal("-CONT", &sender);
        // It was committed where it was; so it is there, whole.
        let again = Owner::with_options(&pair.url, shard, replicated());
        assert_eq!(again.records, owner.records);
    }
}

#[test]
fn a_commit_that_nobody_waited_for_is_not_called_replicated() {
    if shared_server("a_commit_that_nobody_waited_for_is_not_called_replicated").is_none() {
        return;
    }
    let pair = Pair::start();
    let waiting = "
        EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')";
    let cancel = "
        SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let terminate = "
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let unname = "";
    for (how, says) in [
        (cancel, "a commit was not replicated: canceling"),
        (terminate, "syncing the log"),
        (unname, "synchronous_standby_names is empty"),
    ] {
        let mut owner = Owner::with_options(&pair.url, "shard", replicated());
        let sender = pair.freeze_sender();
        owner.append(says).unwrap();
        let progress = owner.log.progress();
        let synced = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| progress.sync());
            until(&pair.primary.url, waiting);
            if how.is_empty() {
                name_standbys(&pair.primary, "");
            } else {
                assert_eq!(execute(&pair.primary.url, how, &[]), 1);
            }
            syncing.join().unwrap()
        });
        signal("-CONT", &sender);
        let told = with_sources(&synced.unwrap_err());
        assert!(told.contains(says), "{told}");
        if how.is_empty() {
            wait_for(&pair.primary, "standby");
        }
        // In the middle of its commit, and nevertheless there: whole.
        let again = Owner::with_options(&pair.url, "shard", replicated());
        assert_eq!(again.records, owner.records);
    }
}

#[test]
fn weaker_settings_of_a_role_or_database_weaken_no_answer() {
    if shared_server("weaker_settings_of_a_role_or_database_weaken_no_answer").is_none() {
        return;
    }
    let pair = Pair::start();
    let url = &pair.primary.url;
    for (number, weaker) in ["off", "local", "remote_write"].into_iter().enumerate() {
        batch(
            url,
            &format!("ALTER ROLE lockgate SET synchronous_commit = {weaker}"),
        );
        batch(
            url,
            &format!("ALTER DATABASE postgres SET synchronous_commit = {weaker}"),
        );
        assert_eq!(text(url, "SHOW synchronous_commit"), weaker);
        let shard = format!("shard {number}");
        let mut owner = Owner::with_options(&pair.url, &shard, soon(Level::Replicated));
        owner.append("before").unwrap();
        owner.sync();
        let sender = pair.freeze_sender();
        owner.append("not on the standby").unwrap();
        owner.log.progress().sync().unwrap_err();
        signal("-CONT", &sender);
    }
    // A pooler that had another session run it, or a trigger, is noticed.
    let mut owner = Owner::with_options(&pair.url, "pooled", replicated());
    batch(
        url,
        "CREATE FUNCTION public.weaken() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM set_config('synchronous_commit', 'local', true);
             RETURN NEW;
         END $$;
         CREATE TRIGGER weaken BEFORE UPDATE ON lockgate.durable
             FOR EACH ROW EXECUTE FUNCTION public.weaken()",
    );
    owner.append("a").unwrap();
    let told = with_sources(&owner.log.progress().sync().unwrap_err());
    assert!(told.contains("synchronous_commit was local"), "{told}");
}

#[test]
fn a_session_with_nothing_to_do_is_not_ended_by_a_setting() {
    if shared_server("a_session_with_nothing_to_do_is_not_ended_by_a_setting").is_none() {
        return;
    }
    let server = Server::start();
    let url = &server.url;
    for setting in ["idle_session_timeout", "statement_timeout", "lock_timeout"] {
        batch(url, &format!("ALTER ROLE lockgate SET {setting} = '300ms'"));
    }
    batch(
        url,
        "ALTER ROLE lockgate SET default_transaction_read_only = on",
    );
    let mut owner = Owner::start(url, "shard");
    owner.append("a").unwrap();
    // One that begins only now is ended, so ours would have been.
    until_ended(url);
    owner.append("b").unwrap();
    owner.sync();
}

#[test]
fn of_several_hosts_the_one_that_takes_writes_is_found() {
    if shared_server("of_several_hosts_the_one_that_takes_writes_is_found").is_none() {
        return;
    }
    let pair = Pair::start();
    // A standby, and none else.
    let told = with_sources(
        &PostgresLog::open(&pair.standby.url, "shard", PostgresLogOptions::default()).unwrap_err(),
    );
    assert!(
        told.contains("it is a standby, which takes no writes"),
        "{told}"
    );
    // The standby first; and by a name.
    let turned = both(&pair.standby, &pair.primary).replacen("127.0.0.1", "localhost", 1);
    Owner::start(&turned, "shard").append("a").unwrap();
    let primary_only = turned.replace("read-write", "primary");
    Owner::start(&primary_only, "shard").append("b").unwrap();
    let standby_only = turned.replace("read-write", "read-only");
    let error = PostgresLog::open(&standby_only, "shard", PostgresLogOptions::default());
    assert!(
        matches!(error, Err(OpenError::Options { what }) if what.contains("target_session_attrs"))
    );

    // One that takes connections and stands still keeps nobody from the other.
    let still = [pair.standby.listener()];
    signal("-STOP", &still);
    let options = PostgresLogOptions {
        timeout: Duration::from_secs(4),
        ..PostgresLogOptions::default()
    };
    name_standbys(&pair.primary, "");
    let opened = PostgresLog::open(&turned, "shard", options.clone());
    signal("-CONT", &still);
    opened.unwrap();

    // Of none that can be had, each is named with what is wrong.
    pair.primary.kill();
    let told = with_sources(&PostgresLog::open(&turned, "shard", options).unwrap_err());
    assert!(
        told.contains("it is a standby") && told.contains("refused"),
        "{told}"
    );
}

#[test]
fn a_server_that_does_not_wait_yet_for_the_standbys_it_names_is_not_believed() {
    if shared_server("a_server_that_does_not_wait_yet_for_the_standbys_it_names_is_not_believed")
        .is_none()
    {
        return;
    }
    let pair = Pair::start();
    let mut owner = Owner::with_options(&pair.url, "shard", soon(Level::Replicated));
    owner.append("replicated").unwrap();
    owner.sync();
    // Emptied and set again between two syncs. It is the checkpointer that has commits wait, and it is busy.
    let sender = pair.freeze_sender();
    name_standbys(&pair.primary, "");
    batch(
        &pair.primary.url,
        "CREATE TABLE public.nobody_is_waited_for ()",
    );
    let checkpointer = "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
    let checkpointer = [text(&pair.primary.url, checkpointer).parse().unwrap()];
    signal("-STOP", &checkpointer);
    name_standbys(&pair.primary, "standby");
    batch(&pair.primary.url, "CREATE TABLE public.nor_now ()");

    owner.append("on the primary only").unwrap();
    let error = owner.log.progress().sync().unwrap_err();
    let told = with_sources(&error);
    assert!(told.contains("see whether they are connected"), "{told}");
    // Nor is it by a start.
    let mut late = PostgresLog::open(&pair.url, "shard", soon(Level::Replicated)).unwrap();
    let error = late
        .recover(Position(0), Epoch(0), &mut |_, _| {})
        .unwrap_err();
    let told = with_sources(&error);
    assert!(told.contains("see whether they are connected"), "{told}");

    // With the standby there nothing is wrong: it has flushed it, whether it was waited for or not.
    signal("-CONT", &sender);
    let mut owner = Owner::with_options(&pair.url, "shard", replicated());
    owner.append("on both").unwrap();
    owner.sync();
    signal("-CONT", &checkpointer);
    pair.fail_over();
    let after = Owner::start(&pair.url, "shard");
    assert_eq!(after.records, owner.records);
}

#[test]
fn who_may_not_see_the_standbys_is_told_what_to_grant() {
    if shared_server("who_may_not_see_the_standbys_is_told_what_to_grant").is_none() {
        return;
    }
    let pair = Pair::start();
    batch(
        &pair.primary.url,
        "CREATE ROLE \"plain\" LOGIN PASSWORD 'secret';
         GRANT CREATE ON DATABASE postgres TO plain",
    );
    let (_, host) = pair.primary.url.rsplit_once('@').unwrap();
    let url = format!("postgres://plain:secret@{host}");
    let error = PostgresLog::open(&url, "shard", replicated()).unwrap_err();
    assert!(
        matches!(&error, OpenError::StandbysHidden { user } if user == "plain"),
        "{error:?}"
    );
    let grant = error.to_string();
    let (_, grant) = grant.split_once(": ").unwrap();
    let (grant, _) = grant.split_once(',').unwrap();
    PostgresLog::open(&url, "shard", PostgresLogOptions::default()).unwrap();
    batch(&pair.primary.url, grant);
    let mut owner = Owner::with_options(&url, "shard", replicated());
    owner.append("a").unwrap();
    owner.sync();
}

#[test]
fn a_view_reads_a_standby_that_nobody_may_write_to() {
    if shared_server("a_view_reads_a_standby_that_nobody_may_write_to").is_none() {
        return;
    }
    let pair = Pair::start();
    let view_of = |url: &str| PostgresView::open(url, "shard", PostgresLogOptions::default());
    let records_of = |view: &PostgresView| {
        let mut records = Vec::new();
        let mut source: Box<dyn lockgate_core::LogSource> = Box::new(view.again());
        let report = source.recover(Position(0), Epoch(0), &mut |record, _| records.push(record));
        assert!(report.unwrap().damaged.is_empty());
        records
    };
    assert!(matches!(
        view_of(&pair.standby.url),
        Err(OpenError::NoShard { .. })
    ));
    let mut owner = Owner::with_options(&pair.url, "shard", replicated());
    owner.append("kept").unwrap();
    owner.sync();
    let at = text(&pair.primary.url, "SELECT pg_current_wal_flush_lsn()::text");
    let has_all = format!("pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until(&pair.standby.url, &has_all);
    let kept = owner.records.clone();
    // What the standby lacks is neither shown nor missing.
    let sender = pair.freeze_sender();
    owner.append("on the primary only").unwrap();

    // Of both, the one that takes writes, in whichever order.
    for url in [&pair.url, &both(&pair.standby, &pair.primary)] {
        let view = view_of(url).unwrap();
        assert_eq!(view.standby(), None);
        assert_eq!(records_of(&view), owner.records);
    }
    let view = view_of(&pair.standby.url).unwrap();
    let standby = view.again().standby().unwrap().clone();
    let is_reached = format!("'{}'::pg_lsn >= '{at}'::pg_lsn", standby.replayed);
    until(&pair.standby.url, &is_reached);
    assert!(standby.received.is_some() && standby.last_commit.is_some());
    assert_eq!(records_of(&view), kept);

    // It goes on following, and the view shows what it showed.
    signal("-CONT", &sender);
    owner.sync();
    let at = text(&pair.primary.url, "SELECT pg_current_wal_flush_lsn()::text");
    let has_all = format!("pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until(&pair.standby.url, &has_all);
    assert_eq!(records_of(&view), kept);
    assert_eq!(
        records_of(&view_of(&pair.standby.url).unwrap()),
        owner.records
    );
    // When there is no primary, it is found among the hosts; nobody owns anything there.
    drop(view);
    pair.primary.kill();
    let view = view_of(&pair.url).unwrap();
    assert!(view.standby().is_some());
    assert_eq!(records_of(&view), owner.records);
}

#[test]
fn a_standby_that_must_go_on_says_why_it_ended_a_view() {
    if shared_server("a_standby_that_must_go_on_says_why_it_ended_a_view").is_none() {
        return;
    }
    let pair = Pair::start();
    batch(
        &pair.standby.url,
        "ALTER SYSTEM SET max_standby_streaming_delay = 0",
    );
    execute(&pair.standby.url, "SELECT pg_reload_conf()", &[]);
    until(
        &pair.standby.url,
        "current_setting('max_standby_streaming_delay') = '0'",
    );
    let mut owner = Owner::with_options(&pair.url, "shard", replicated());
    owner.append("kept").unwrap();
    owner.sync();
    let view = PostgresView::open(&pair.standby.url, "shard", PostgresLogOptions::default());
    let view = view.unwrap();
    // Rows that the view could still see go: the standby cannot follow and keep them.
    owner.append("more").unwrap();
    batch(
        &pair.primary.url,
        "VACUUM FULL lockgate.shard, lockgate.record",
    );
    let at = text(&pair.primary.url, "SELECT pg_current_wal_flush_lsn()::text");
    let has_all = format!("pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until(&pair.standby.url, &has_all);
    let mut source: Box<dyn lockgate_core::LogSource> = Box::new(view.again());
    let error = source
        .recover(Position(0), Epoch(0), &mut |_, _| {})
        .unwrap_err();
    let told = with_sources(&error);
    assert!(
        told.contains("hot_standby_feedback") && told.contains("conflict with recovery"),
        "{told}"
    );
}

#[test]
fn an_owner_on_a_primary_that_was_left_behind_promises_nothing() {
    if shared_server("an_owner_on_a_primary_that_was_left_behind_promises_nothing").is_none() {
        return;
    }
    let pair = Pair::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let left_behind = start_with(&pair.primary.url, soon(Level::Replicated));
    for (producer, level) in [(0, Level::Disk), (1, Level::Replicated)] {
        runtime
            .block_on(left_behind.submit(create(&queue(producer), level)))
            .unwrap();
    }
    runtime
        .block_on(left_behind.submit(send(&queue(0), "before", 0)))
        .unwrap();
    // The network has parted: the old primary and its owner live on, without the standby.
    pair.standby.promote();
    let engine = start_with(&pair.standby.url, PostgresLogOptions::default());
    let (first, second) = runtime.block_on(async {
        tokio::join!(
            left_behind.submit(send(&queue(0), "lost", 0)),
            left_behind.submit(send(&queue(1), "lost", 1)),
        )
    });
    for sent in [first, second] {
        assert!(
            matches!(sent, Err(EngineError::UnknownOutcome { .. })),
            "{sent:?}"
        );
    }
    assert!(runtime.block_on(left_behind.stopped()).is_failure());
    runtime.block_on(left_behind.shutdown());
    assert_eq!(runtime.block_on(drain(&engine, &queue(0))), ["before"]);
    assert_eq!(runtime.block_on(drain(&engine, &queue(1))), [""; 0]);
    runtime.block_on(engine.shutdown());

    // Nor does a start on it, whatever became of the machine meanwhile.
    pair.primary.crash();
    let mut late = PostgresLog::open(&pair.primary.url, "shard", soon(Level::Disk)).unwrap();
    let error = late
        .recover(Position(0), Epoch(0), &mut |_, _| {})
        .unwrap_err();
    let told = with_sources(&error);
    assert!(told.contains("see whether they are connected"), "{told}");
}

#[test]
fn what_a_deposed_owner_connects_to_again_is_out_of_its_reach() {
    if shared_server("what_a_deposed_owner_connects_to_again_is_out_of_its_reach").is_none() {
        return;
    }
    let pair = Pair::start();
    // A standby that commits do not wait for lags behind. The old primary lives on, but what connects
    // anew comes to the other one.
    let standby_first = both(&pair.standby, &pair.primary);
    name_standbys(&pair.primary, "");
    let options = PostgresLogOptions {
        range_bits: 12,
        ..PostgresLogOptions::default()
    };
    let mut earlier = Owner::with_options(&pair.url, "shard", options.clone());
    for number in 0..100 {
        earlier.append(&format!("{number}")).unwrap();
    }
    earlier.sync();
    let kept = earlier.records;
    let at = text(&pair.primary.url, "SELECT pg_current_wal_lsn()::text");
    let has_all = format!("pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until(&pair.standby.url, &has_all);

    // All that the standby will have. It does not even hear of the owner that gives space back now,
    // for what was moved forward.
    pair.freeze_sender();
    let mut deposed = Owner::with_options(&standby_first, "shard", options.clone());
    deposed.append("moved").unwrap();
    let moved = deposed.records.last().unwrap().position;
    deposed.sync();
    let snapshot = deposed.log.begin_snapshot().unwrap();
    let before = snapshot.position();
    snapshot.finish().unwrap();
    deposed.log.trim(before).unwrap();
    let mut unfinished = deposed.log.begin_snapshot().unwrap();
    unfinished.write(b"begun").unwrap();
    let log_maintenance = deposed.log.log_maintenance().unwrap();
    deposed.log.release(Position(0)).unwrap();
    pair.standby.promote();
    // The connections for work in the background and for reading, by what was asked last on them.
    let terminate = "
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE (query LIKE '%INTO lockgate.piece%' OR query LIKE '%FROM start, lockgate.record%')
            AND pid <> pg_backend_pid() AND application_name = 'lockgate'";
    // Those of the owner before too.
    assert!(execute(&pair.primary.url, terminate, &[]) >= 2);

    // Nobody has taken the shard over yet.
    let first = kept[0].position;
    let cannot = |deposed: &Owner| {
        let told = log_maintenance.step().unwrap_err();
        assert!(matches!(told, LogError::Deposed { .. }), "{told:?}");
        deposed.log.snapshots().remove(before).unwrap();
        for at in [first, moved] {
            // Not missing: that would be a message lost.
            let read = deposed.log.reader().read(at);
            let is_gone = at == first;
            match read {
                Err(ReadError::Missing { .. }) if is_gone => {}
                Err(ReadError::Log(_)) if !is_gone => {}
                other => panic!("{other:?}"),
            }
        }
    };
    cannot(&deposed);
    let mut owner = Owner::with_options(&standby_first, "shard", options);
    assert_eq!(owner.records, kept);
    // Under the same epoch, at the same positions, and further.
    assert_eq!(owner.epoch, deposed.epoch);
    owner.append("other").unwrap();
    assert_eq!(owner.records.last().unwrap().position, moved);
    owner.append("and another").unwrap();
    let snapshot = owner.log.begin_snapshot().unwrap();
    snapshot.finish().unwrap();
    let mut of_owner = owner.log.begin_snapshot().unwrap();
    of_owner.write(b"of the owner").unwrap();
    cannot(&deposed);
    unfinished.write(b"goes on").unwrap_err();
    drop(unfinished);
    match deposed.append("too late") {
        Err(AppendError::Unknown(_)) => {}
        other => panic!("{other:?}"),
    }
    of_owner.finish().unwrap();
    owner.append("goes on").unwrap();
    owner.sync();
    assert_eq!(owner.log.snapshots().list().unwrap().len(), 1);
    assert_eq!(
        Owner::start(&pair.standby.url, "shard").records,
        owner.records
    );
}

//! Processes that are killed at the worst moment, many times.
//!
//! The tests run themselves as child processes. A child prints a line when it has come to that moment, and then
//! waits to be killed.

use std::{
    collections::BTreeMap,
    env,
    future::pending,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use lockgate::{
    Accepted, Key, Level, Lockgate, Message, MessageId, Queue, Sink, SinkCapabilities,
    TransportError,
    consumer::{Job, Worker, handler},
};
use lockgate_sql::{Forwarder, ForwarderOptions, SqliteInbox, SqliteOutbox};
use rusqlite::Connection;

const FOLDER_VARIABLE: &str = "LOCKGATE_SQL_TEST_FOLDER";
const KILLS: usize = 100;
const KEYS: usize = 10;
const MOMENT: &str = "the moment";
/// A killed worker's lease ends soon.
const LEASE: Duration = Duration::from_millis(200);

/// Runs a test as a child with this folder, and kills it when it says so.
fn kill(test: &str, folder: &Path) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER_VARIABLE, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let moment = lines.any(|line| line.unwrap() == MOMENT);
    assert!(moment, "the child ended before it was killed");
    // SIGKILL, on Unix.
    child.kill().unwrap();
    child.wait().unwrap();
}

fn the_moment_has_come() {
    println!("\n{MOMENT}");
}

/// A child whose parent is dead ends, too.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        std::process::exit(1);
    });
}

fn database(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join("service.db")).unwrap();
    connection
        .pragma_update(None, "synchronous", "normal")
        .unwrap();
    connection
}

async fn queue(folder: &Path) -> (Lockgate, Queue) {
    let lockgate = Lockgate::open(folder.join("queues")).await.unwrap();
    let mails = lockgate.queue("mails").keyed().level(Level::Process);
    let queue = mails.create().await.unwrap();
    (lockgate, queue)
}

fn message(number: usize, keys: usize) -> Message {
    let key = Key::new(&format!("key-{}", number % keys)).unwrap();
    Message::new(format!("{number:03}")).with_key(key)
}

fn sorted(connection: &Connection) -> Vec<String> {
    let mut statement = connection
        .prepare("SELECT body FROM effects ORDER BY body")
        .unwrap();
    let effects = statement.query_map([], |row| row.get(0)).unwrap();
    effects.map(Result::unwrap).collect()
}

/// A worker whose effects are rows. After an effect that is new, it never gets to the acknowledgement.
#[tokio::test]
async fn has_an_effect_and_waits() {
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else {
        return;
    };
    end_with_the_parent();
    let (_lockgate, mails) = queue(Path::new(&folder)).await;
    let inbox = SqliteInbox::new("effects").unwrap();
    let handler = handler::blocking(move |job: Job| {
        let body = String::from_utf8(job.body().to_vec())?;
        let mut connection = database(Path::new(&folder));
        let new = inbox.once(&mut connection, &job, |transaction| {
            transaction.execute("INSERT INTO effects VALUES (?1)", [&body])?;
            Ok(())
        })?;
        if new.is_some() {
            the_moment_has_come();
            loop {
                std::thread::park();
            }
        }
        Ok(())
    });
    let worker = Worker::over(mails).concurrency(1).held_max(1);
    let worker = worker.lease(LEASE).start(handler).unwrap();
    worker.ended().await;
}

#[tokio::test]
async fn a_consumer_killed_between_effect_and_ack_has_one_effect_for_each_message() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (lockgate, mails) = queue(folder).await;
    for number in 0..KILLS {
        // A key of its own each, so that none waits for the lease of another.
        mails.send(message(number, KILLS)).await.unwrap();
    }
    drop(mails);
    lockgate.shutdown().await;
    drop(lockgate);
    let connection = database(folder);
    connection
        .pragma_update(None, "journal_mode", "wal")
        .unwrap();
    let inbox = SqliteInbox::new("effects").unwrap();
    inbox.create_table(&connection).unwrap();
    connection
        .execute_batch("CREATE TABLE effects (body TEXT)")
        .unwrap();

    for _ in 0..KILLS {
        kill("kills::has_an_effect_and_waits", folder);
    }

    let expected: Vec<_> = (0..KILLS).map(|number| format!("{number:03}")).collect();
    assert_eq!(sorted(&connection), expected, "each has had its effect");
    // None was acknowledged by who had its effect, so each that is left comes again.
    let (lockgate, mails) = queue(folder).await;
    let mut connection = database(folder);
    loop {
        let counts = mails.describe().await.unwrap().counts;
        if counts.ready + counts.in_flight == 0 {
            break;
        }
        let deliveries = mails
            .receive()
            .max(10)
            .wait(Duration::from_secs(10))
            .await
            .unwrap();
        for delivery in deliveries {
            assert!(delivery.attempt() > 1);
            let name = delivery.id().to_string();
            let again = inbox.once_as(&mut connection, &name, |transaction| {
                Ok(transaction.execute("INSERT INTO effects VALUES ('again')", [])?)
            });
            assert!(matches!(again, Ok(None)), "{again:?}");
            delivery.ack().await.unwrap();
        }
    }
    assert_eq!(sorted(&connection), expected, "and no second one");
    lockgate.shutdown().await;
}

/// Never tells of a message that is new.
struct Silent(Queue);

impl Sink for Silent {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = self.0.sink_capabilities();
        can.batch_max = 1;
        can
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let answers = self.0.send_batch(messages).await;
        if answers.iter().flatten().any(|accepted| !accepted.duplicate) {
            the_moment_has_come();
            pending::<()>().await;
        }
        answers
    }
}

async fn forward(folder: &Path, sink: impl Sink + 'static) -> Forwarder {
    let outbox = SqliteOutbox::new("mails").unwrap();
    let options = ForwarderOptions::default();
    outbox
        .forward(database(folder), sink, options)
        .await
        .unwrap()
}

#[tokio::test]
async fn forwards_a_row_and_waits() {
    let Some(folder) = env::var_os(FOLDER_VARIABLE) else {
        return;
    };
    end_with_the_parent();
    let folder = Path::new(&folder);
    let (_lockgate, mails) = queue(folder).await;
    let forwarder = forward(folder, Silent(mails)).await;
    forwarder.wait_for(|state| state.idle).await;
}

#[tokio::test]
async fn a_forwarder_killed_between_acceptance_and_deletion_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (lockgate, mails) = queue(folder).await;
    drop(mails);
    lockgate.shutdown().await;
    drop(lockgate);
    let mut connection = database(folder);
    connection
        .pragma_update(None, "journal_mode", "wal")
        .unwrap();
    let outbox = SqliteOutbox::new("mails").unwrap();
    outbox.create_table(&connection).unwrap();
    let transaction = connection.transaction().unwrap();
    for number in 0..KILLS {
        outbox
            .enqueue(&transaction, &message(number, KEYS))
            .unwrap();
    }
    transaction.commit().unwrap();

    for _ in 0..KILLS {
        kill("kills::forwards_a_row_and_waits", folder);
    }

    let (lockgate, mails) = queue(folder).await;
    let forwarder = forward(folder, mails.clone()).await;
    forwarder.wait_for(|state| state.idle).await;
    let state = forwarder.drain(Duration::from_secs(60)).await;
    assert_eq!(
        (state.forwarded, state.duplicates),
        (1, 1),
        "the last one was there"
    );
    assert_eq!(outbox.counts(&connection).unwrap().to_send, 0);
    let counts = mails.describe().await.unwrap().counts;
    assert_eq!(counts.ready, KILLS as u64);
    let lease = Duration::from_secs(3_600);
    let deliveries = mails.receive().max(1_000).lease(lease).await.unwrap();
    let mut of_key: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for delivery in deliveries {
        let number = std::str::from_utf8(delivery.body())
            .unwrap()
            .parse()
            .unwrap();
        of_key
            .entry(delivery.key().unwrap().clone())
            .or_default()
            .push(number);
    }
    assert_eq!(of_key.len(), KEYS);
    for (key, numbers) in of_key {
        let first = numbers[0];
        let expected: Vec<_> = (first..KILLS).step_by(KEYS).collect();
        assert_eq!(numbers, expected, "{key}");
    }
    lockgate.shutdown().await;
}

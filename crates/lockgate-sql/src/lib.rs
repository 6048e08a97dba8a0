//! One effect for each message, and one message for each row: an inbox and an outbox in the user's own SQL
//! transaction.
//!
//! Delivery is *at least once*: a message comes again if the process dies between its effect and the
//! acknowledgement. An **inbox** remembers, in the transaction of the effect, that the message was handled; when it
//! comes again, it is acknowledged without a second effect. The mirror is an **outbox**: a message is written as a
//! row in the producer's transaction, and a [`Forwarder`] sends the rows that were committed to a queue.
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate::{Key, Lockgate, Message, consumer::{Job, Worker, handler}};
//! use lockgate_sql::{ForwarderOptions, SqliteInbox, SqliteOutbox};
//! use rusqlite::Connection;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let file = path.join("service.db");
//! let mut connection = Connection::open(&file)?;
//! connection.execute_batch(
//!     "CREATE TABLE orders (item TEXT); CREATE TABLE invoices (item TEXT)",
//! )?;
//! let outbox = SqliteOutbox::new("orders")?;
//! outbox.create_table(&connection)?;
//! let inbox = SqliteInbox::new("invoices")?;
//! inbox.create_table(&connection)?;
//!
//! // The producer: the order and its message are committed together.
//! let transaction = connection.transaction()?;
//! transaction.execute("INSERT INTO orders VALUES ('pen')", [])?;
//! outbox.enqueue(&transaction, &Message::new("pen").with_key(Key::new("user-42")?))?;
//! transaction.commit()?;
//!
//! // The forwarder sends it.
//! let lockgate = Lockgate::open(path.join("queues")).await?;
//! let orders = lockgate.queue("orders").keyed().create().await?;
//! let options = ForwarderOptions::default();
//! let forwarder = outbox.forward(Connection::open(&file)?, orders.clone(), options).await?;
//!
//! // The consumer: the invoice and the note that the message is handled are committed together.
//! let worker = Worker::over(orders).start(handler::blocking(move |job: Job| {
//!     let mut connection = Connection::open(&file)?;
//!     let item = std::str::from_utf8(job.body())?;
//!     inbox.once(&mut connection, &job, |transaction| {
//!         transaction.execute("INSERT INTO invoices VALUES (?1)", [item])?;
//!         Ok(())
//!     })?;
//!     Ok(())
//! }))?;
//!
//! forwarder.wait_for(|state| state.forwarded == 1).await;
//! forwarder.drain(Duration::from_secs(10)).await;
//! # while worker.state().await.is_some_and(|state| state.counts.acknowledged < 1) {
//! #     tokio::task::yield_now().await;
//! # }
//! worker.drain(Duration::from_secs(10)).await;
//! let invoices = "SELECT count(*) FROM invoices WHERE item = 'pen'";
//! assert_eq!(connection.query_row(invoices, [], |row| row.get::<_, i64>(0))?, 1);
//! lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! A **guard** ([`SqliteGuard`], [`PostgresGuard`], [`MysqlGuard`]) lets the transactions of an election's leader pass, and refuses those of
//! one that was deposed.
//!
//! [`SqliteInbox`] and [`SqliteOutbox`] are for rusqlite (feature `sqlite`), [`PostgresInbox`] and
//! [`PostgresOutbox`] for tokio-postgres (feature `postgres`). [`MysqlGuard`] is for mysql_async (feature `mysql`). For other
//! clients, the modules `sqlite::schema`, `postgres::schema` and `mysql::schema` have the statements, and [`Inbox`] is the trait.
//!
//! # What an inbox keeps
//!
//! 1. The row (consumer, message) and the effect are in one transaction. So each message has its effect once for
//!    each consumer, whoever is killed and when, as long as its row is there.
//! 2. If two workers have the same message at the same time, because a lease was lost, the primary key lets one of
//!    them commit. In PostgreSQL the second waits, and then sees the message as handled or fails; every isolation
//!    level will do. In SQLite the second waits for the first, up to its busy timeout, or is refused.
//! 3. Only what is in the transaction happens once. A mail, or a call of another service, may happen again.
//!
//! The message is called what its source calls it ([`Job::name`](lockgate_consumer::Job::name)). For Lockgate that is
//! the message id. It stays the same when the message comes again, after a restart of either side, in a restored
//! backup, and when the message becomes a dead letter and is moved back. So a dead letter whose effect was committed
//! has no second one after a redrive; [`forget`](SqliteInbox::forget) lets it have one. Two sends are two messages,
//! also of the same content. If a producer may send twice, give its messages unique ids, or name them yourself with
//! [`once_as`](SqliteInbox::once_as).
//!
//! A queue in memory names no messages, since its numbers begin again with each process; then `once` fails, and
//! nothing is guessed. Ids of two independent folders or servers with the same shard number differ in a random number
//! of 24 bits only: give workers over them consumer names of their own.
//!
//! # Pruning
//!
//! Nothing is pruned unless you call [`prune`](SqliteInbox::prune), which is bounded by its `max`. A row may go when
//! its message can come no more: when it is older than the retention of the queue, and of the dead-letter queues that
//! the message may have gone through, together. A backup that you may restore brings its messages again: then keep
//! rows for its age, too.
//!
//! # What an outbox keeps
//!
//! 1. A row is there if and only if its transaction was committed.
//! 2. No loss: a row is deleted only after the sink has accepted its message. What that survives is up to the level of
//!    the queue.
//! 3. No double: each row has a unique id, the message's own or a random one, and every send of the row has it. The
//!    queue accepts it once within its `dedup_window`. Before a row is sent for the first time, the forwarder commits
//!    the time of that in it. Until a half of the window has passed, it may send the row again. After that, it does
//!    not: if it still does not know whether the message was accepted, the row is *parked*, in doubt, for an operator.
//! 4. Order: rows of one key reach the sink in the order in which their transactions were committed. Rows with
//!    different keys, or none, have no order among each other. A batch has one row of a key at most, because a sink
//!    may accept a message though the one before it has failed.
//! 5. A row that the sink refuses for ever is parked with the reason, and the rows of its key wait behind it. Others go
//!    on. `parked` lists such rows; `retry` sends one in its place after all, and `discard` deletes it.
//!
//! A row is in doubt only if a send had no answer and the next good answer did not come for half a window: the sink or
//! the database was away for long, or the forwarder did not run. Choose a `dedup_window` that is longer than outages
//! (a day costs 64 bytes for each message of that day). Look into the queue for the unique id of the row to decide.
//! A purge makes a queue forget unique ids, unless it has `dedup_survives_purge`. The time of the first send is of the
//! database's clock (in SQLite, the system's): if that is set back, rows may be parked, and if it is set back by more than
//! a quarter of the window while a row waits, the row may be sent again too late.
//!
//! In PostgreSQL a row becomes visible when its transaction is committed, and so one with a lower id may come after one
//! with a higher id. Therefore an enqueue takes an advisory lock of the key until the end of its transaction, and draws
//! the id under it: rows of one key become visible in the order of their ids. The alternative, to hold back all rows
//! that are younger than the oldest open transaction, would let one long transaction of anybody stop the outbox.
//! `LISTEN` and `NOTIFY` are not used, because a notification makes all commits of a database wait for each other: the
//! forwarder looks every [`poll`](ForwarderOptions::poll), and `wake` makes it look at once.

// Users read these docs.
#![warn(missing_docs)]
// Without one of the databases, nobody uses what only that one needs.
#![cfg_attr(not(all(feature = "sqlite", feature = "postgres")), allow(dead_code))]

mod error;
mod forward;
mod inbox;
#[cfg(feature = "mysql")]
pub mod mysql;
mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::time::Duration;

#[cfg(feature = "mysql")]
pub use self::mysql::MysqlGuard;
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresGuard, PostgresInbox, PostgresOutbox};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteGuard, SqliteInbox, SqliteOutbox};
pub use self::{
    error::Error,
    forward::{Forwarder, ForwarderOptions, ForwarderState, StartError},
    inbox::{Inbox, Seen, message_name},
    outbox::{OutboxCounts, ParkedRow, RowId},
};

/// As a column of the database has it.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/outbox.md")]
struct OutboxPage;

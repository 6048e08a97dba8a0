//! What a forwarder asks of SQLite.

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use lockgate_core::WallTime;
use rusqlite::{Connection, Transaction, TransactionBehavior, types::ValueRef};

use super::{SqliteOutbox, lossy};
use crate::{
    Error, StartError,
    forward::{Candidate, Found, Lead, Loaded, Skipped, Step, Store},
    row::Row,
};

/// The rows that wait, and whether something is parked before them.
const CANDIDATES: &str = "\
SELECT o.id, o.key, length(o.body) + coalesce(length(CAST(o.headers AS BLOB)), 0), o.first_sent,
    o.key IS NOT NULL AND EXISTS (SELECT 1 FROM lockgate_outbox p
        WHERE p.outbox = o.outbox AND p.key = o.key AND p.state <> 0)
FROM lockgate_outbox o
WHERE o.outbox = ?1 AND o.state = 0
    AND (o.key IS NULL OR o.key NOT IN (SELECT value FROM json_each(?2)))
    AND o.id NOT IN (SELECT value FROM json_each(?3))
ORDER BY o.id LIMIT ?4";

/// Somebody may have resolved what was parked since it was looked at.
const HOLD: &str = "\
UPDATE lockgate_outbox AS o SET state = 2 WHERE o.outbox = ?1 AND o.id = ?2 AND o.state = 0
    AND EXISTS (SELECT 1 FROM lockgate_outbox p
        WHERE p.outbox = o.outbox AND p.key = o.key AND p.state <> 0 AND p.state = 1)";

/// What waits behind a parked row that somebody has deleted by hand.
const RELEASE: &str = "\
UPDATE lockgate_outbox AS o SET state = 0 WHERE o.outbox = ?1 AND o.state = 2
    AND o.key = (SELECT key FROM lockgate_outbox WHERE id = ?2)
    AND NOT EXISTS (SELECT 1 FROM lockgate_outbox p
        WHERE p.outbox = o.outbox AND p.key = o.key AND p.state <> 0 AND p.state = 1)";

const CLAIM: &str = "\
UPDATE lockgate_outbox SET first_sent = coalesce(first_sent, ?3) WHERE outbox = ?1 AND id = ?2 AND state = 0
RETURNING key, unique_id, body, headers, message_group, due, time_to_live, content_type, trace_context, level,
    priority";

pub(super) struct SqliteStore {
    outbox: SqliteOutbox,
    connection: Arc<Mutex<Connection>>,
    /// Held for as long as this forwarder runs, and what it still asks of the database when it is dropped.
    lock: Option<Arc<File>>,
}

impl SqliteStore {
    pub(super) fn new(outbox: SqliteOutbox, connection: Connection) -> Self {
        Self {
            outbox,
            connection: Arc::new(Mutex::new(connection)),
            lock: None,
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&mut Connection, &str) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (connection, outbox) = (self.connection.clone(), self.outbox.clone());
        let lock = self.lock.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _held = lock;
            // A transaction that a panic has interrupted is rolled back.
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            ask(&mut connection, outbox.name())
        });
        match asked.await {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and with it the forwarder.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn take_lock(&self) -> Result<File, StartError> {
        let connection = self.connection.lock();
        let connection = connection.unwrap_or_else(PoisonError::into_inner);
        self.outbox.check_table(&connection)?;
        // One in memory has no name: nobody else could add a row.
        let database = connection.path().filter(|path| !path.is_empty());
        let database = database.ok_or(StartError::NoFile)?;
        let path = PathBuf::from(format!("{database}-{}.forwarder", self.outbox.name()));
        let unusable = |source| StartError::Lock {
            path: path.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(StartError::Running { path }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }
}

impl Store for SqliteStore {
    async fn start(&mut self) -> Result<(), StartError> {
        let mut tries = 0;
        loop {
            match self.take_lock() {
                // One that was dropped a moment ago ends when its task is polled.
                Err(StartError::Running { .. }) if tries < 50 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                taken => {
                    self.lock = Some(Arc::new(taken?));
                    return Ok(());
                }
            }
        }
    }

    async fn lead(&mut self) -> Result<Lead, Error> {
        Ok(Lead::Held)
    }

    async fn find(&mut self, skipped: Skipped, max: usize) -> Result<Found, Error> {
        self.run(move |connection, outbox| {
            let json = |values: serde_json::Value| values.to_string();
            let (keys, ids) = (json(skipped.keys.into()), json(skipped.ids.into()));
            let mut statement = connection.prepare(CANDIDATES)?;
            let limit = i64::try_from(max).unwrap_or(i64::MAX);
            let rows = statement.query_map((outbox, keys, ids, limit), |row| {
                let candidate = Candidate {
                    id: row.get(0)?,
                    // What is no text is parked when it is read.
                    key: lossy(row, 1)?,
                    size: row.get(2).map(i64::unsigned_abs)?,
                    first_sent: row.get(3)?,
                };
                Ok((candidate, row.get(4)?))
            })?;
            let rows = rows.collect::<Result<Vec<(Candidate, bool)>, _>>()?;
            let found = rows.len();
            drop(statement);
            let (held, candidates): (Vec<_>, Vec<_>) =
                rows.into_iter().partition(|(_, held)| *held);
            if !held.is_empty() {
                let transaction = immediate(connection)?;
                for (candidate, _) in held {
                    if transaction.execute(HOLD, (outbox, candidate.id))? == 0 {
                        transaction.execute(RELEASE, (outbox, candidate.id))?;
                    }
                }
                transaction.commit()?;
            }
            Ok(Found {
                now: now(),
                more: found == max,
                candidates: candidates
                    .into_iter()
                    .map(|(candidate, _)| candidate)
                    .collect(),
            })
        })
        .await
    }

    async fn step(&mut self, step: &Step) -> Result<Vec<Loaded>, Error> {
        let step = step.clone();
        self.run(move |connection, outbox| {
            let transaction = immediate(connection)?;
            settle(&transaction, outbox, &step)?;
            let loaded = claim(&transaction, outbox, &step.claims)?;
            transaction.commit()?;
            Ok(loaded)
        })
        .await
    }
}

fn immediate(connection: &mut Connection) -> Result<Transaction<'_>, Error> {
    Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
}

fn settle(transaction: &Transaction<'_>, outbox: &str, step: &Step) -> Result<(), Error> {
    // What was sent has its claim; without one it is another row, of a table that was made anew.
    let mut delete = transaction.prepare(
        "DELETE FROM lockgate_outbox WHERE outbox = ?1 AND id = ?2 AND state = 0 \
         AND first_sent IS NOT NULL",
    )?;
    for id in &step.done {
        delete.execute((outbox, id))?;
    }
    let mut release = transaction.prepare(
        "UPDATE lockgate_outbox SET first_sent = NULL WHERE outbox = ?1 AND id = ?2 AND state = 0",
    )?;
    for id in &step.unclaimed {
        release.execute((outbox, id))?;
    }
    let mut park = transaction.prepare(
        "UPDATE lockgate_outbox SET state = 1, reason = ?3, first_sent = iif(?4, first_sent, NULL) \
         WHERE outbox = ?1 AND id = ?2 AND state = 0",
    )?;
    for parked in &step.parked {
        let reason = &parked.reason;
        park.execute((outbox, parked.id, reason, parked.in_doubt))?;
    }
    Ok(())
}

fn claim(transaction: &Transaction<'_>, outbox: &str, ids: &[i64]) -> Result<Vec<Loaded>, Error> {
    let mut statement = transaction.prepare(CLAIM)?;
    let mut loaded = Vec::with_capacity(ids.len());
    for &id in ids {
        let mut rows = statement.query((outbox, id, now()))?;
        // One that somebody has deleted meanwhile is gone.
        if let Some(row) = rows.next()? {
            loaded.push((id, read(row)?.and_then(Row::into_message)));
        }
    }
    Ok(loaded)
}

/// The columns of a message, or which one is no text: a text of SQLite may be any bytes.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<Row, String>> {
    for column in [0, 1, 3, 4, 7, 8, 9] {
        if let ValueRef::Text(text) = row.get_ref(column)?
            && let Err(error) = std::str::from_utf8(text)
        {
            let name = row.as_ref().column_name(column)?;
            return Ok(Err(format!("the column {name} cannot be read: {error}")));
        }
    }
    let priority: i64 = row.get(10)?;
    let Ok(priority) = i16::try_from(priority) else {
        return Ok(Err(format!(
            "the column priority is {priority}, which no message has"
        )));
    };
    Ok(Ok(Row {
        key: row.get(0)?,
        unique_id: row.get(1)?,
        body: row.get(2)?,
        headers: row.get(3)?,
        message_group: row.get(4)?,
        due: row.get(5)?,
        time_to_live: row.get(6)?,
        content_type: row.get(7)?,
        trace_context: row.get(8)?,
        level: row.get(9)?,
        priority,
    }))
}

fn now() -> i64 {
    i64::try_from(WallTime::from(SystemTime::now()).0).unwrap_or(i64::MAX)
}

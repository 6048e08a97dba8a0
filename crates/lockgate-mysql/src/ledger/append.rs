//! Changes of the head, each in a transaction.

use std::collections::HashMap;

use lockgate_core::{
    Epoch, InputId, WallTime,
    ledger::{Append, Appended, Decision, Event, LedgerError, LedgerHead, SequenceId},
};
use lockgate_records::{
    Backoff,
    ledger::{HeadRow, check_epoch, failed, natural, not_found, place},
    number,
};
use mysql_async::{Conn, Error, Row, Transaction, TxOpts, Value, prelude::Queryable as _};
use tokio::time::{Instant, timeout_at};

use super::{DELETED_AT_ONCE, DELETED_BYTES_AT_ONCE, get, partitions::Partitions, store::Store};
use crate::connection::{Fault, Link, TRIES_MAX, late};

/// The longest statement, and the longest packet of several.
pub(super) const STATEMENT_BYTES: usize = 3 << 20;

/// Rows of a prepared statement. A server takes them in two thirds of the time that it takes for the same rows as text, but
/// each number of rows is a statement of its own to prepare: the rows that are left go as text.
const PREPARED_ROWS: usize = 250;

/// Ids that one statement looks up: servers plan longer lists otherwise, some by reading the whole table.
const LOOKED_UP_AT_ONCE: usize = 500;

pub(super) const HEAD: &str = "SELECT * FROM {ledger}_head";

/// The head, and events behind a place, up to a number of them and of bytes.
pub(super) const PAGE: &str = "\
SELECT head.*, page.sequence_id AS event_id, page.previous_id, page.unique_id, page.time_ms AS event_time_ms,
    page.epoch AS event_epoch, page.hash AS event_hash, page.payload
FROM {ledger}_head AS head LEFT JOIN (
    SELECT event.* FROM (
        SELECT sequence_id, SUM(bytes) OVER (ORDER BY sequence_id) - bytes AS bytes_before FROM (
            SELECT sequence_id, bytes FROM {ledger}_events WHERE sequence_id > ? ORDER BY sequence_id LIMIT ?) AS found) AS sized
    JOIN {ledger}_events AS event ON event.sequence_id = sized.sequence_id
    WHERE sized.bytes_before < ?) AS page ON page.sequence_id BETWEEN head.first_id AND head.sequence_id
ORDER BY page.sequence_id";

const LOCK: &str = "\
SELECT head.*, (SELECT time_ms FROM {ledger}_events AS event WHERE event.sequence_id = head.first_id) AS first_time_ms
FROM {ledger}_head AS head FOR UPDATE";

/// When this statement begins, whichever time zone the session has.
const NOW: &str = "\
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000 AS now_ms";

/// The last of the first events that are older than a time, up to a number of them and of bytes. Times never go back.
const LAST_OLD: &str = "\
SELECT MAX(sequence_id) AS last_id FROM (
    SELECT sequence_id, time_ms, SUM(bytes) OVER (ORDER BY sequence_id) - bytes AS bytes_before FROM (
        SELECT sequence_id, time_ms, bytes FROM {ledger}_events WHERE sequence_id >= {first} ORDER BY sequence_id LIMIT {limit})
        AS found) AS sized
WHERE time_ms < {time} AND bytes_before < {bytes}";

/// What changes the head.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Append(Append),
    Seal(Epoch),
    Trim(SequenceId),
}

/// The connection for changes of the head.
#[derive(Default)]
pub(super) struct Writes {
    connection: Option<Conn>,
    partitions: Partitions,
    backoff: Backoff,
}

/// A change that was made, and how many events a partition has, if the ledger has partitions.
pub(super) struct Made {
    pub(super) appended: Appended,
    pub(super) partition: Option<u64>,
}

/// Why a change was not made. Its transaction is to be rolled back.
pub(super) enum Failure {
    Ledger(LedgerError),
    Server(Error),
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

impl Failure {
    /// What the caller is told, of whose change nothing has happened.
    pub(super) fn told(self, ledger: &str) -> LedgerError {
        let error = match self {
            Self::Ledger(error) => return error,
            Self::Server(error) => error,
        };
        let why = error.to_string();
        match &error {
            // No such table.
            Error::Server(said) if said.code == 1146 => not_found(ledger),
            // No right: to the database, as that user, to the table, to a column.
            Error::Server(said) if matches!(said.code, 1044 | 1045 | 1142 | 1143) => {
                LedgerError::Denied { why }
            }
            // Rows or columns that are not those that a ledger has: somebody else has changed them, or restored a part.
            Error::Server(said) if matches!(said.code, 1048 | 1054 | 1062 | 1136 | 1364) => {
                LedgerError::Damaged { why }
            }
            // No space on the disk, or in the files that it may have.
            Error::Server(said) if matches!(said.code, 1021 | 1114) => LedgerError::Full { why },
            _ => LedgerError::Unavailable { why },
        }
    }
}

fn unavailable(why: impl ToString) -> LedgerError {
    let why = why.to_string();
    LedgerError::Unavailable { why }
}

impl Writes {
    /// Makes a change in a transaction of its own. A future that is dropped ends the connection, and the transaction with it.
    pub(super) async fn make(
        &mut self,
        link: &Link<Store>,
        change: Change,
    ) -> Result<Made, LedgerError> {
        let deadline = Instant::now() + link.timeout();
        let is_late = || unavailable(late(link.timeout()));
        let ledger = &link.purpose().name;
        let mut tries = 0;
        loop {
            let kept = self.connection.take();
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => timeout_at(deadline, self.connect(link))
                    .await
                    .map_err(|_| is_late())??,
            };
            let begun = connection.start_transaction(TxOpts::default());
            let mut transaction = match timeout_at(deadline, begun).await {
                Ok(Ok(transaction)) => transaction,
                // It has ended since it was used last.
                Ok(Err(_)) if was_kept => continue,
                Ok(Err(error)) => return Err(unavailable(error)),
                Err(_) => return Err(is_late()),
            };
            let made = make(&mut transaction, ledger, change.clone());
            // What is not committed by then is not there.
            let made = timeout_at(deadline, made).await.map_err(|_| is_late())?;
            let undone = match made {
                Ok(made) => match timeout_at(deadline, transaction.commit()).await {
                    Ok(Ok(())) => {
                        self.keep(connection, link, &made, deadline).await;
                        return Ok(made);
                    }
                    Ok(Err(error)) => match Fault::of(&error) {
                        Fault::Undone(why) => unavailable(why),
                        _ => {
                            let why = error.to_string();
                            return Err(LedgerError::Unknown { why });
                        }
                    },
                    Err(_) => {
                        let why = late(link.timeout());
                        return Err(LedgerError::Unknown { why });
                    }
                },
                Err(failure) => {
                    if let Ok(Ok(())) = timeout_at(deadline, transaction.rollback()).await {
                        self.connection = Some(connection);
                    }
                    match failure {
                        Failure::Server(error) if matches!(Fault::of(&error), Fault::Undone(_)) => {
                            unavailable(error)
                        }
                        failure => return Err(failure.told(ledger)),
                    }
                }
            };
            tries += 1;
            if tries > TRIES_MAX {
                return Err(undone);
            }
        }
    }

    /// Keeps the connection for the next change, when the partitions are as they should be.
    async fn keep(
        &mut self,
        mut connection: Conn,
        link: &Link<Store>,
        made: &Made,
        deadline: Instant,
    ) {
        let head = &made.appended.head;
        if let Some(of) = made.partition
            && self.partitions.is_due(of, head)
        {
            let (name, lock_wait) = (&link.purpose().name, link.timeout().as_secs().max(1));
            let maintained = (self.partitions).maintain(&mut connection, name, of, head, lock_wait);
            if timeout_at(deadline, maintained).await.is_err() {
                return;
            }
        }
        self.connection = Some(connection);
    }

    async fn connect(&mut self, link: &Link<Store>) -> Result<Conn, LedgerError> {
        self.backoff.check().map_err(failed)?;
        let made = link.make().await;
        self.backoff.connected(&made);
        let mut connection = made.map_err(failed)?;
        // A process that is frozen in a transaction does not hold the head for longer. Each server reads its own comment.
        let seconds = link.timeout().as_millis().div_ceil(1_000);
        let limit = format!(
            "SET SESSION /*M! idle_transaction_timeout */ /*!80000 wait_timeout */ = {seconds}"
        );
        connection.query_drop(limit).await.map_err(unavailable)?;
        Ok(connection)
    }
}

async fn make(on: &mut Transaction<'_>, ledger: &str, change: Change) -> Result<Made, Failure> {
    if let Change::Append(append) = change {
        return within(on, ledger, append, Some(PREPARED_ROWS)).await;
    }
    let (locked, _) = lock(on, ledger, Vec::new()).await?;
    let mut head = locked.head;
    match change {
        Change::Seal(epoch) => {
            head.admits(epoch)?;
            if !head.is_sealed {
                (head.is_sealed, head.epoch) = (true, epoch);
            }
        }
        Change::Trim(first) => {
            head.reaches(first.previous())?;
            head.first_id = head.first_id.max(first);
        }
        Change::Append(_) => {}
    }
    write(on, ledger, Vec::new(), &locked.head, &head).await?;
    let events = Vec::new();
    Ok(Made {
        appended: Appended { events, head },
        partition: locked.partition,
    })
}

/// What is known when the head is locked.
struct Locked {
    head: LedgerHead,
    now: WallTime,
    retention: Option<i64>,
    /// The time of the first event that is kept, if there is one.
    first_time: Option<i64>,
    /// How many events a partition has.
    partition: Option<u64>,
}

/// Appends in the transaction that the client is in. `prepared`: how many rows a prepared statement has, if
/// there may be such.
pub(super) async fn within(
    on: &mut Transaction<'_>,
    ledger: &str,
    mut append: Append,
    prepared: Option<usize>,
) -> Result<Made, Failure> {
    let (unique_ids, inputs) = append.ids();
    let unique_ids = unique_ids
        .into_iter()
        .map(|id| literal(id.as_str().as_bytes()));
    let inputs = inputs.into_iter().map(|id| literal(id.as_str().as_bytes()));
    // They lock, so that they see what there is in a transaction that has looked at something before.
    let mut look_ups = statements(
        "SELECT 1 AS is_unique_id, unique_id AS id, sequence_id FROM {ledger}_unique_ids FORCE INDEX (PRIMARY)
            WHERE unique_id IN (",
        unique_ids,
        ") LOCK IN SHARE MODE",
        LOOKED_UP_AT_ONCE,
    );
    look_ups.extend(statements(
        "SELECT 0 AS is_unique_id, input AS id, sequence_id FROM {ledger}_inputs FORCE INDEX (PRIMARY) WHERE input IN (",
        inputs,
        ") LOCK IN SHARE MODE",
        LOOKED_UP_AT_ONCE,
    ));
    let (locked, found) = lock(on, ledger, look_ups).await?;
    let (mut by_unique_id, mut by_input) = (HashMap::new(), HashMap::new());
    for row in &found {
        let id = get::<String>(row, "id")?;
        let at = place("sequence_id", get(row, "sequence_id")?)?;
        match get::<i64>(row, "is_unique_id")? {
            0 => by_input.insert(id, at),
            _ => by_unique_id.insert(id, at),
        };
    }
    let settled = std::mem::take(&mut append.settled);
    let before = locked.head;
    let Decision {
        new,
        inputs,
        mut appended,
    } = append.decide(
        &before,
        locked.now,
        |id| by_unique_id.get(id.as_str()).copied(),
        |input| by_input.get(input.as_str()).copied(),
    )?;
    let mut rows = Rows {
        on: &mut *on,
        ledger,
        prepared,
        left: Vec::new(),
    };
    rows.add(&new, &inputs, &settled).await?;
    let mut writes = rows.left;
    if let Some(last) = last_old(on, ledger, &locked).await? {
        let first = before.first_id;
        // Whole partitions go later.
        if locked.partition.is_none() {
            writes.push(format!(
                "DELETE FROM {{ledger}}_events WHERE sequence_id BETWEEN {first} AND {last}"
            ));
        }
        appended.head.first_id = last.next();
    }
    write(on, ledger, writes, &before, &appended.head).await?;
    Ok(Made {
        appended,
        partition: locked.partition,
    })
}

/// Locks the head, and then asks for rows.
async fn lock(
    on: &mut Transaction<'_>,
    ledger: &str,
    look_ups: Vec<String>,
) -> Result<(Locked, Vec<Row>), Failure> {
    let asked = [LOCK.to_owned(), NOW.to_owned()]
        .into_iter()
        .chain(look_ups);
    let mut rows = Vec::new();
    for (packet, count) in packets(asked, ledger) {
        let mut said = on.query_iter(packet).await?;
        for _ in 0..count {
            rows.push(said.collect::<Row>().await?);
        }
        said.drop_result().await?;
    }
    let mut rows = rows.into_iter();
    let (head_rows, now) = (
        rows.next().unwrap_or_default(),
        rows.next().unwrap_or_default(),
    );
    let locked = head_rows.first().ok_or_else(|| not_found(ledger))?;
    let now = now.first().map_or(Ok(0), |row| get(row, "now_ms"))?;
    let partition = get::<Option<i64>>(locked, "partition_events")?;
    let locked = Locked {
        head: head(ledger, Some(locked))?,
        now: WallTime(natural("now_ms", now)?),
        retention: get(locked, "retention_ms")?,
        first_time: get(locked, "first_time_ms")?,
        partition: partition.and_then(|events| u64::try_from(events).ok().filter(|it| *it > 0)),
    };
    Ok((locked, rows.flatten().collect()))
}

/// The last of the events that are older than the retention, of as many as go at once.
async fn last_old(
    on: &mut Transaction<'_>,
    ledger: &str,
    locked: &Locked,
) -> Result<Option<SequenceId>, Failure> {
    let (Some(retention), Some(first_time)) = (locked.retention, locked.first_time) else {
        return Ok(None);
    };
    let oldest = number(locked.now.0) - retention;
    if first_time >= oldest {
        return Ok(None);
    }
    let sql = LAST_OLD
        .replace("{ledger}", ledger)
        .replace("{first}", &locked.head.first_id.to_string())
        .replace("{limit}", &DELETED_AT_ONCE.to_string())
        .replace("{bytes}", &DELETED_BYTES_AT_ONCE.to_string())
        .replace("{time}", &oldest.to_string());
    let row: Option<Row> = on.query_first(sql).await?;
    let last = row.map_or(Ok(None), |row| get::<Option<i64>>(&row, "last_id"))?;
    Ok(last.map(|last| place("last_id", last)).transpose()?)
}

/// Adds rows by prepared statements, as far as they fill such.
struct Rows<'a, 'c> {
    on: &'a mut Transaction<'c>,
    ledger: &'a str,
    /// How many rows a prepared statement has, if there may be such.
    prepared: Option<usize>,
    /// The statements that do the rest.
    left: Vec<String>,
}

impl Rows<'_, '_> {
    /// Adds what was decided.
    async fn add(
        &mut self,
        new: &[Event],
        inputs: &[(InputId, SequenceId)],
        settled: &[InputId],
    ) -> Result<(), Error> {
        let with_id = |id: &str, at: SequenceId| [id.as_bytes().into(), at.0.into()];
        let unique_ids = new.iter().filter_map(|event| {
            let id = event.unique_id.as_ref()?;
            Some(with_id(id.as_str(), event.sequence_id))
        });
        let unique_ids = unique_ids.collect();
        let inputs = inputs
            .iter()
            .map(|(input, at)| with_id(input.as_str(), *at));
        let inputs = inputs.collect();
        let settled = settled
            .iter()
            .map(|input| literal(input.as_str().as_bytes()));
        let settled = statements(
            "DELETE FROM {ledger}_inputs WHERE input IN (",
            settled,
            ")",
            LOOKED_UP_AT_ONCE,
        );
        let events = new.iter().map(values).collect();
        self.insert(
            "{ledger}_events (sequence_id, previous_id, unique_id, time_ms, epoch, hash, payload)",
            events,
        )
        .await?;
        self.insert("{ledger}_unique_ids (unique_id, sequence_id)", unique_ids)
            .await?;
        self.insert("{ledger}_inputs (input, sequence_id)", inputs)
            .await?;
        self.left.extend(settled);
        Ok(())
    }

    /// Inserts rows into columns of a table.
    async fn insert<const N: usize>(
        &mut self,
        columns: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<(), Error> {
        let before = format!("INSERT INTO {columns} VALUES ");
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let some: Vec<[Value; N]> = rows.by_ref().take(PREPARED_ROWS).collect();
            let bytes: u64 = some.iter().flatten().map(Value::bin_len).sum();
            if self.prepared == Some(some.len()) && bytes < STATEMENT_BYTES as u64 {
                let row = format!("({})", ["?"; N].join(","));
                let all = vec![row; some.len()].join(",");
                let statement = before.replacen("{ledger}", self.ledger, 1) + &all;
                self.on.exec_drop(statement, some.concat()).await?;
            } else {
                let rows = some.into_iter().map(text);
                self.left.extend(statements(&before, rows, "", usize::MAX));
            }
        }
        Ok(())
    }
}

/// An event as a row.
fn values(event: &Event) -> [Value; 7] {
    let unique_id = event.unique_id.as_ref().map(|id| id.as_str().as_bytes());
    let hash = event.hash.as_ref().map(|hash| &hash.0[..]);
    [
        event.sequence_id.0.into(),
        event.previous_id.0.into(),
        unique_id.into(),
        event.time.0.into(),
        event.epoch.0.into(),
        hash.into(),
        (&*event.payload).into(),
    ]
}

/// A row as SQL has it.
fn text<const N: usize>(row: [Value; N]) -> String {
    let value = |value| match value {
        Value::Bytes(bytes) => literal(&bytes),
        value => value.as_sql(true),
    };
    format!("({})", row.map(value).join(","))
}

/// Writes, and moves the head at last. The head is changed in any case: a commit that changes nothing is not flushed, and what
/// it has seen may not be either.
async fn write(
    on: &mut Transaction<'_>,
    ledger: &str,
    mut writes: Vec<String>,
    before: &LedgerHead,
    after: &LedgerHead,
) -> Result<(), Failure> {
    let (base, last, first) = (before.sequence_id, after.sequence_id, after.first_id);
    let epoch = check_epoch(after.epoch)?;
    let hash = after
        .hash
        .map_or("NULL".to_owned(), |hash| literal(&hash.0));
    writes.push(format!(
        "UPDATE {{ledger}}_head SET sequence_id = {last}, first_id = {first}, epoch = {epoch}, time_ms = {time},
            hash = {hash}, is_sealed = {sealed}, revision = revision + 1
         WHERE sequence_id = {base} AND epoch <= {epoch}",
        time = after.time.0,
        sealed = after.is_sealed,
    ));
    for (packet, _) in packets(writes, ledger) {
        on.query_drop(packet).await?;
    }
    if on.affected_rows() != 1 {
        let why = "the head has moved while it was locked".to_owned();
        return Err(LedgerError::Damaged { why }.into());
    }
    Ok(())
}

/// Bytes as SQL has them, in a session of any settings.
pub(super) fn literal(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let mut sql = String::with_capacity(2 * bytes.len() + 3);
    sql.push_str("X'");
    for byte in bytes {
        sql.push(DIGITS[usize::from(byte >> 4)]);
        sql.push(DIGITS[usize::from(byte & 15)]);
    }
    sql.push('\'');
    sql
}

/// Statements of values between two texts, each of at most so many values, and of [`STATEMENT_BYTES`].
fn statements(
    before: &str,
    values: impl Iterator<Item = String>,
    behind: &str,
    most: usize,
) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut count = 0;
    for value in values {
        let room = STATEMENT_BYTES - behind.len() - 1;
        match all.last_mut() {
            Some(last) if count < most && last.len() + value.len() <= room => {
                last.push(',');
                last.push_str(&value);
                count += 1;
            }
            last => {
                if let Some(last) = last {
                    last.push_str(behind);
                }
                all.push(format!("{before}{value}"));
                count = 1;
            }
        }
    }
    if let Some(last) = all.last_mut() {
        last.push_str(behind);
    }
    all
}

/// Statements of a ledger in as few packets as hold them, and how many each has.
fn packets(
    statements: impl IntoIterator<Item = String>,
    ledger: &str,
) -> impl Iterator<Item = (String, usize)> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for statement in statements {
        let statement = statement.replacen("{ledger}", ledger, 2);
        match all.last_mut() {
            Some((packet, count)) if packet.len() + statement.len() < STATEMENT_BYTES => {
                packet.push(';');
                packet.push_str(&statement);
                *count += 1;
            }
            _ => all.push((statement, 1)),
        }
    }
    all.into_iter()
}

/// The head as a row shows it.
pub(super) fn head(ledger: &str, row: Option<&Row>) -> Result<LedgerHead, LedgerError> {
    let Some(row) = row else {
        return Err(not_found(ledger));
    };
    let row = HeadRow {
        sequence_id: get(row, "sequence_id")?,
        first_id: get(row, "first_id")?,
        epoch: get(row, "epoch")?,
        time_ms: get(row, "time_ms")?,
        hash: get(row, "hash")?,
        is_sealed: get::<i64>(row, "is_sealed")? != 0,
    };
    row.into_head()
}

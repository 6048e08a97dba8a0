//! A ledger in a MySQL or MariaDB database.
//!
//! # Invariants
//! - Whoever appends locks the row of the head until it commits. So there is one order of appends, each looks up ids that all
//!   earlier ones have written, and what it writes is committed together with the head.
//! - A reader reads head and events in one statement, so it sees no event beyond the head that it is told.
//! - InnoDB shows what is committed before it is flushed. So a reader has the server flush it before it hands it on.
//! - An append that is given up ends its connection, and the transaction with it.

mod append;
mod partitions;
mod store;

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Event, Ledger, LedgerCapabilities, LedgerError, LedgerHead,
        LedgerOptions, LedgerPage, ReadLedger, ReaderPosition, SequenceId,
    },
};
use lockgate_records::{
    ledger::{
        EventRow, check_epoch, check_partition, damaged, failed, not_found, partition_of_url,
        place, reader_position,
    },
    number,
};
use mysql_async::{Row, Transaction, Value, prelude::FromValue};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use self::{
    append::{Change, Made, Writes},
    store::Store,
};
use crate::{
    connection::{Answer, Link},
    url::Target,
};

/// How many events one statement deletes at most, and how many bytes of them.
const DELETED_AT_ONCE: u64 = 10_000;
const DELETED_BYTES_AT_ONCE: u64 = 32 << 20;

/// A [`Ledger`] in a MySQL or MariaDB database, by the server's time. Clones are the same ledger.
///
/// It is the plain tables `head` (one row), `events`, `unique_ids`, `inputs` and `readers`, which anybody may read, `flushes` and
/// `version`; the names of all begin with the ledger's and a `_`. The first connect makes them; then a user needs the rights to
/// select from its tables, and to insert, update and delete. Ids and payloads are bytes (`VARBINARY`, `MEDIUMBLOB`): no collation
/// takes two for one.
///
/// An append is one transaction: it locks the head, looks up all ids, writes each table, and is answered when the server has
/// flushed it. Statements are 3 MiB at most, so a server's `max_allowed_packet` may be 4 MiB. A ledger has two connections, one
/// for what changes the head and one for everything else; a lost one is made again by the next command. A transaction that the
/// server undoes for another's sake (errors 1213 and 1205) is run again. A writer that is frozen in the middle of an append holds
/// the head for as long as its [`timeout`](MysqlLedgerOptions::timeout), in whole seconds, at most; then the server ends its
/// session, and nothing of the append lands.
///
/// Whoever waits for events looks every [`poll`](MysqlLedgerOptions::poll), for these servers have nothing that tells a client of
/// a change. They show what is committed a moment before it is flushed. Therefore a reader that sees something new changes a row
/// of the table `flushes`, and hands it on when the server has flushed that; with a binary log (`log_bin`) there is no need to.
///
/// The time of an event is the server's wall clock, or that of the event before it if the clock was set back.
///
/// A ledger that is made with [`partition`](MysqlLedgerOptions::partition) keeps its events in partitions by ranges of the sequence
/// id, and a trim drops whole ones, which takes as long for a million events as for one. What it has trimmed of another stays in the
/// table until all of that is trimmed. The next partition is made behind an append when the head is half a partition before it, on
/// the same connection, which then needs the rights to alter and drop the table, and to create and insert. These servers let nobody use
/// a table while they change its partitions: an append, and a trim, waits up to a second for transactions that use it, and whoever
/// comes behind waits as long. If that was in vain, it is tried again later: meanwhile the partition `rest` takes events, and what
/// it has is copied then.
///
/// The connections belong to the tokio runtime in which they were made. If that ends, the next command makes others.
///
/// ```no_run
/// use lockgate_core::{Epoch, ledger::{Append, Ledger, NewEvent}};
/// use lockgate_mysql::MysqlLedger;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = MysqlLedger::connect("mysql://exchange:secret@database/exchange?ledger=orders").await?;
/// let event = NewEvent { payload: "buy 7".into(), ..NewEvent::default() };
/// let append = Append { epoch: Epoch(1), head: None, events: vec![event], settled: Vec::new() };
/// println!("it is event {}", ledger.append(append).await?.events[0].sequence_id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlLedger {
    link: Arc<Link<Store>>,
    /// Held during a change of the head.
    writes: Arc<Mutex<Writes>>,
    poll: Duration,
}

/// The options of [`MysqlLedger`].
#[derive(Clone, Debug)]
pub struct MysqlLedgerOptions {
    /// How long one command may take, and also a connect; from 10 ms to a day, by default 10 s. A command that gets no answer
    /// by then ends the connection.
    pub timeout: Duration,
    /// What the names of the tables begin with: 1 to 40 lower-case letters, digits and `_`, the first a letter; by default
    /// `lockgate_ledger`. Ledgers with different ones share nothing.
    pub ledger: String,
    /// Whether it is made if it is not there. If false, such a connect fails with [`NotFound`](LedgerError::NotFound). Default:
    /// true.
    pub create: bool,
    /// What it is made with if it is not there. One that is there keeps its own.
    pub made_with: LedgerOptions,
    /// How many events a partition of the table of events has, if the ledger is made with partitions: at least 10,000, as many
    /// as one append has. By default there are none. One that is there keeps its own.
    pub partition: Option<u64>,
    /// How often a read that waits looks for events; from 1 ms to a minute, by default 20 ms.
    pub poll: Duration,
}

impl Default for MysqlLedgerOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            ledger: "lockgate_ledger".to_owned(),
            create: true,
            made_with: LedgerOptions::default(),
            partition: None,
            poll: Duration::from_millis(20),
        }
    }
}

impl fmt::Debug for MysqlLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlLedger").field(&self.name()).finish()
    }
}

impl MysqlLedger {
    /// Connects to the database of that URL, `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, and makes what the ledger needs there.
    /// Its parameters are `ledger` and `partition`, which are those of [`MysqlLedgerOptions`]; and `ssl-mode` and `ssl-ca` as of
    /// [`MysqlRecords`](crate::MysqlRecords::connect).
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or has an unknown parameter, and for a server that does not flush, takes packets
    /// of less than 4 MiB, or is one of a Galera cluster; `Unavailable` if the server does not answer or refuses. None of them
    /// shows the password.
    pub async fn connect(url: &str) -> Result<Self, LedgerError> {
        Self::connect_with(url, MysqlLedgerOptions::default()).await
    }

    /// As [`connect`](Self::connect), with those options. The URL's parameters come first.
    ///
    /// # Errors
    /// As `connect`; `Invalid` for options out of range, and `NotFound` for a ledger that is not there and is not to be made.
    pub async fn connect_with(
        url: &str,
        mut options: MysqlLedgerOptions,
    ) -> Result<Self, LedgerError> {
        let mut target = Target::of(url).map_err(failed)?;
        if let Some(ledger) = target.url.take("ledger") {
            options.ledger = ledger;
        }
        if let Some(partition) = target.url.take("partition") {
            options.partition = Some(partition_of_url(&partition)?);
        }
        store::check_name(&options.ledger)?;
        let partition = check_partition(options.partition)?;
        let ten = Duration::from_millis(10);
        for (given, bounds, what) in [
            (
                options.timeout,
                ten..=Duration::from_hours(24),
                "timeout must be 10 ms to a day",
            ),
            (
                options.poll,
                Duration::from_millis(1)..=Duration::from_mins(1),
                "poll must be 1 ms to a minute",
            ),
        ] {
            if !bounds.contains(&given) {
                let why = what.to_owned();
                return Err(LedgerError::Invalid { why });
            }
        }
        let opts = target
            .opts(options.timeout, "ledger, partition")
            .map_err(failed)?;
        let made_with = options.create.then_some(options.made_with);
        let store = Store::new(options.ledger, made_with, partition);
        let link = Arc::new(Link::new(opts, options.timeout, store));
        link.open().await.map_err(failed)?;
        let ledger = Self {
            link,
            writes: Arc::default(),
            poll: options.poll,
        };
        if ledger.is_gone().await? {
            return Err(not_found(ledger.name()));
        }
        Ok(ledger)
    }

    /// Appends in the caller's own transaction, of any isolation: the events are there if and only if it commits. The ledger is
    /// locked until then, so keep it short. `ledger` is [what the names of its tables begin with](MysqlLedgerOptions::ledger);
    /// they are in the database that the transaction's connection uses.
    ///
    /// # Errors
    /// As [`append`](Ledger::append); roll back then. An `Unavailable` says what the server has said: after a deadlock (error
    /// 1213), or where the server sees that a row has changed since the transaction has looked (error 1020), run the
    /// transaction again.
    ///
    /// # Cancellation
    /// Roll back.
    pub async fn append_within(
        transaction: &mut Transaction<'_>,
        ledger: &str,
        append: Append,
    ) -> Result<Appended, LedgerError> {
        store::check_name(ledger)?;
        append.check()?;
        check_epoch(append.epoch)?;
        // Not by prepared statements, whose bytes the session may have converted.
        let appended = append::within(transaction, ledger, append, None).await;
        match appended {
            Ok(made) => Ok(made.appended),
            Err(failure) => Err(failure.told(ledger)),
        }
    }

    fn name(&self) -> &str {
        &self.link.purpose().name
    }

    /// Runs a statement in which `{ledger}` is the name.
    async fn ask(
        &self,
        sql: &str,
        parameters: Vec<Value>,
        changes: bool,
    ) -> Result<Answer, LedgerError> {
        let sql = sql.replace("{ledger}", self.name());
        let asked = self.link.ask(&sql, parameters, changes).await;
        match asked.map_err(failed) {
            Err(LedgerError::Unavailable { .. }) if matches!(self.is_gone().await, Ok(true)) => {
                Err(not_found(self.name()))
            }
            asked => asked,
        }
    }

    /// Whether its tables are not there, where the server says so.
    async fn is_gone(&self) -> Result<bool, LedgerError> {
        let name = self.name();
        let sql = format!(
            "SELECT 1 FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = '{name}_version'"
        );
        let asked = self.link.ask(&sql, Vec::new(), false).await;
        if !asked.map_err(failed)?.rows.is_empty() {
            return Ok(false);
        }
        // The server does not say what there is to a user who may do nothing with it.
        let sql = format!("SELECT 1 FROM {name}_version LIMIT 0");
        match self.link.ask(&sql, Vec::new(), false).await.map_err(failed) {
            Err(denied @ LedgerError::Denied { .. }) => Err(denied),
            _ => Ok(true),
        }
    }

    /// Asks for rows, each of which has the revision of the head, until what is seen stays.
    async fn see(&self, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, LedgerError> {
        loop {
            let answer = self.ask(sql, parameters.to_vec(), false).await?;
            let revision = match answer.rows.first() {
                Some(row) => get(row, "revision")?,
                None => return Ok(answer.rows),
            };
            if self.link.purpose().is_flushed(answer.connection, revision) {
                return Ok(answer.rows);
            }
            // Only over the same connection it is the server that has shown it.
            if self.flush().await? == answer.connection {
                (self.link.purpose()).has_flushed(answer.connection, revision);
                return Ok(answer.rows);
            }
        }
    }

    /// Has the server flush all that it has shown. The number of the connection.
    async fn flush(&self) -> Result<u64, LedgerError> {
        let sql = "UPDATE {ledger}_flushes SET number = number + 1";
        // It does not matter whether it happens twice.
        let flushed = self.ask(sql, Vec::new(), false).await?;
        match flushed.changed {
            1 => Ok(flushed.connection),
            _ => Err(damaged("there is none in the table flushes")),
        }
    }

    async fn look(&self, read: &ReadLedger) -> Result<LedgerPage, LedgerError> {
        let parameters = [
            number(read.after.0).into(),
            read.limit.into(),
            ReadLedger::BYTES_MAX.into(),
        ];
        let rows = self.see(append::PAGE, &parameters).await?;
        let head = append::head(self.name(), rows.first())?;
        head.keeps_behind(read.after)?;
        let mut events = Vec::new();
        for row in &rows {
            // Without events, there is a row for the head.
            if get::<Option<i64>>(row, "event_id")?.is_some() {
                events.push(event(row)?);
            }
        }
        Ok(LedgerPage { events, head })
    }

    async fn change(&self, change: Change) -> Result<Made, LedgerError> {
        let mut writes = self.writes.lock().await;
        writes.make(&self.link, change).await
    }

    /// Deletes events before the first one that is kept, a part at a time.
    async fn delete_trimmed(&self, first: SequenceId) -> Result<(), LedgerError> {
        let sized = format!(
            "SELECT MAX(sequence_id) AS last_id FROM (
                SELECT sequence_id, SUM(bytes) OVER (ORDER BY sequence_id) - bytes AS bytes_before FROM (
                    SELECT sequence_id, bytes FROM {{ledger}}_events WHERE sequence_id < {first}
                    ORDER BY sequence_id LIMIT {DELETED_AT_ONCE}) AS found) AS sized
             WHERE bytes_before < {DELETED_BYTES_AT_ONCE}"
        );
        loop {
            let answer = self.ask(&sized, Vec::new(), false).await?;
            let last = answer.rows.first();
            let Some(last) = last.map_or(Ok(None), |row| get::<Option<i64>>(row, "last_id"))?
            else {
                return Ok(());
            };
            let delete = format!("DELETE FROM {{ledger}}_events WHERE sequence_id <= {last}");
            self.ask(&delete, Vec::new(), true).await?;
        }
    }
}

impl Ledger for MysqlLedger {
    fn capabilities(&self) -> LedgerCapabilities {
        LedgerCapabilities::ALL.polling()
    }

    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        append.check()?;
        check_epoch(append.epoch)?;
        let made = self.change(Change::Append(append)).await?;
        Ok(made.appended)
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        let rows = self.see(append::HEAD, &[]).await?;
        append::head(self.name(), rows.first())
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        read.check()?;
        let until = Instant::now() + read.wait;
        loop {
            let page = self.look(&read).await?;
            let now = Instant::now();
            if !page.events.is_empty() || page.head.is_sealed || now >= until {
                return Ok(page);
            }
            sleep_until(until.min(now + self.poll)).await;
        }
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        let sql = "SELECT revision, found.sequence_id FROM {ledger}_head LEFT JOIN {ledger}_unique_ids AS found
            ON found.unique_id = ?";
        let rows = self.see(sql, &[unique_id.as_str().into()]).await?;
        let found = rows
            .first()
            .map_or(Ok(None), |row| get::<Option<i64>>(row, "sequence_id"))?;
        found.map(|found| place("sequence_id", found)).transpose()
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        // A head never falls. What is written is flushed behind it.
        let rows = self.ask(append::HEAD, Vec::new(), false).await?.rows;
        append::head(self.name(), rows.first())?.reaches(position.sequence_id)?;
        let sql = match from {
            None => {
                "INSERT INTO {ledger}_readers (reader, sequence_id) VALUES (?, ?)
                ON DUPLICATE KEY UPDATE sequence_id = VALUES(sequence_id)"
            }
            // One that is not there is at 0.
            Some(SequenceId::START) => {
                "INSERT INTO {ledger}_readers (reader, sequence_id) VALUES (?, ?)
                ON DUPLICATE KEY UPDATE
                    sequence_id = IF(sequence_id = 0, VALUES(sequence_id), sequence_id)"
            }
            Some(_) => {
                "UPDATE {ledger}_readers SET reader = ?, sequence_id = ?
                WHERE reader = ? AND sequence_id = ?"
            }
        };
        let (reader, place) = (position.reader.as_str(), position.sequence_id);
        loop {
            let mut parameters = vec![reader.into(), number(place.0).into()];
            if let Some(from) = from.filter(|from| *from > SequenceId::START) {
                parameters.extend([reader.into(), number(from.0).into()]);
            }
            let moved = self.ask(sql, parameters, true).await?;
            let Some(from) = from.filter(|_| moved.changed == 0) else {
                return Ok(());
            };
            let readers = self.readers().await?;
            let now = readers.iter().find(|now| now.reader == position.reader);
            ReaderPosition::check_from(now.map(|now| now.sequence_id), Some(from))?;
            // Nothing was to be changed; or the reader has got there meanwhile, and the next round moves it.
            if from == place {
                return Ok(());
            }
        }
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        let sql = "DELETE FROM {ledger}_readers WHERE reader = ?";
        let deleted = self.ask(sql, vec![reader.as_str().into()], true).await?;
        Ok(deleted.changed > 0)
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        let sql = "SELECT reader, sequence_id FROM {ledger}_readers ORDER BY reader";
        loop {
            let answer = self.ask(sql, Vec::new(), false).await?;
            let position = |row: &Row| {
                reader_position(&get::<String>(row, "reader")?, get(row, "sequence_id")?)
            };
            // A place is none of the head's, so whether it has changed cannot be told.
            if self.flush().await? == answer.connection {
                return answer.rows.iter().map(position).collect();
            }
        }
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        check_epoch(epoch)?;
        let sealed = self.change(Change::Seal(epoch)).await?;
        Ok(sealed.appended.head)
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        let made = self.change(Change::Trim(first)).await?;
        let head = made.appended.head;
        // They are gone for everybody; what is left of them goes with the next trim, or with its partition.
        if made.partition.is_none() {
            let _ = self.delete_trimmed(head.first_id).await;
        }
        Ok(head)
    }
}

fn get<T: FromValue>(row: &Row, column: &str) -> Result<T, LedgerError> {
    let value = row.get_opt::<T, _>(column);
    let value = value.ok_or_else(|| damaged(&format!("there is no column {column}")))?;
    value.map_err(|_| damaged(&format!("column {column}")))
}

fn event(row: &Row) -> Result<Event, LedgerError> {
    let row = EventRow {
        sequence_id: get(row, "event_id")?,
        previous_id: get(row, "previous_id")?,
        unique_id: get(row, "unique_id")?,
        time_ms: get(row, "event_time_ms")?,
        epoch: get(row, "event_epoch")?,
        hash: get(row, "event_hash")?,
        payload: get(row, "payload")?,
    };
    row.into_event()
}

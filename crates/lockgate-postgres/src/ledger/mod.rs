//! A ledger in a PostgreSQL database.
//!
//! # Invariants
//! - Whoever appends locks the row `head` until it commits. So there is one order of appends, each looks up ids that all
//!   earlier ones have written, and what it writes is committed together with the head.
//! - A reader reads head and events in one statement, so it sees no event beyond the head that it is told.
//! - An append that is given up ends its connection, and the transaction with it.
//! - The connection for reads listens before anything is read over it, so nobody who waits misses an event.

mod append;
mod store;

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Event, Ledger, LedgerError, LedgerHead, LedgerOptions, LedgerPage,
        ReadLedger, ReaderPosition, SequenceId,
    },
    with_sources,
};
use lockgate_records::{
    Url,
    ledger::{
        EventRow, check_epoch, check_partition, damaged, failed, not_found, partition_of_url,
        place, reader_position,
    },
    number,
};
use tokio::{sync::Mutex, time::Instant};
use tokio_postgres::{Row, Transaction, types::FromSql};

use self::store::Store;
use crate::{
    asked::{Link, Parameter, int8, text},
    tls::Target,
};

/// How many events one statement deletes at most.
const DELETED_AT_ONCE: i64 = 10_000;

/// A [`Ledger`] in a PostgreSQL database, by the server's time. Clones are the same ledger.
///
/// It is a schema with the plain tables `head` (one row), `events`, `unique_ids`, `inputs` and `readers`, which anybody may
/// read. The first connect makes them; then a user needs the right to use the schema and to read and write its tables.
///
/// An append is one transaction: it locks the head, looks up all ids by one statement, writes each table by one, and is
/// answered when the server has flushed it, on the standbys too if there are any that `synchronous_standby_names` counts. A
/// ledger has two connections, one for appends and one for everything else; a lost one is made again by the next command.
/// Whoever waits for events is told of them at once (`NOTIFY`). A writer that is frozen in the middle of an append holds the head
/// for as long as its [`timeout`](PostgresLedgerOptions::timeout) at most; then the server ends its session, and nothing of the
/// append lands.
///
/// A ledger that is made with [`partition`](PostgresLedgerOptions::partition) keeps its events in partitions by ranges of the
/// sequence id (`events_0`, `events_1`, ...), and a trim drops whole ones, which takes as long for a million events as for one. What
/// it has trimmed of another stays in the table until all of that is trimmed. The next partition is made in the transaction of an
/// append that takes the head to half a partition before it, for which nobody who reads waits; so whoever appends must own the
/// tables. A drop waits up to a second for transactions that use the table, and whoever comes behind waits as long. If that was
/// in vain, the next trim drops it.
///
/// The time of an event is the server's wall clock, or that of the event before it if the clock was set back.
///
/// ```no_run
/// use lockgate_core::{Epoch, ledger::{Append, Ledger, NewEvent}};
/// use lockgate_postgres::PostgresLedger;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = PostgresLedger::connect("postgres://exchange:secret@database/exchange?ledger=orders").await?;
/// let event = NewEvent { payload: "buy 7".into(), ..NewEvent::default() };
/// let append = Append { epoch: Epoch(1), head: None, events: vec![event], settled: Vec::new() };
/// println!("it is event {}", ledger.append(append).await?.events[0].sequence_id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresLedger {
    reads: Arc<Link<Store>>,
    /// Held during an append.
    writes: Arc<Mutex<Arc<Link<Store>>>>,
}

/// The options of [`PostgresLedger`].
#[derive(Clone, Debug)]
pub struct PostgresLedgerOptions {
    /// How long one command may take, and also a connect; from 10 ms to a day, by default 10 s. A command that gets no answer
    /// by then ends the connection.
    pub timeout: Duration,
    /// The schema: 1 to 40 lower-case letters, digits and `_`, the first a letter; by default `lockgate_ledger`. Ledgers with
    /// different ones share nothing.
    pub ledger: String,
    /// Whether it is made if it is not there. If false, such a connect fails with [`NotFound`](LedgerError::NotFound). Default:
    /// true.
    pub create: bool,
    /// What it is made with if it is not there. One that is there keeps its own.
    pub made_with: LedgerOptions,
    /// How many events a partition of the table of events has, if the ledger is made with partitions: at least 10,000, as many
    /// as one append has. By default there are none. One that is there keeps its own.
    pub partition: Option<u64>,
}

impl Default for PostgresLedgerOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            ledger: "lockgate_ledger".to_owned(),
            create: true,
            made_with: LedgerOptions::default(),
            partition: None,
        }
    }
}

impl fmt::Debug for PostgresLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresLedger")
            .field(&self.schema())
            .finish()
    }
}

impl PostgresLedger {
    /// Connects to the server of that URL, and makes what the ledger needs there. The parameters of the URL are PostgreSQL's, of
    /// which TLS always verifies the certificate (`sslmode`, `sslrootcert`); and `ledger` and `partition`, which are those of
    /// [`PostgresLedgerOptions`].
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or has an unknown parameter, a pooler that shares sessions, and a server that
    /// does not flush; `Unavailable` if the server does not answer or refuses. None of them shows the password.
    pub async fn connect(url: &str) -> Result<Self, LedgerError> {
        Self::connect_with(url, PostgresLedgerOptions::default()).await
    }

    /// As [`connect`](Self::connect), with those options. The URL's parameters come first.
    ///
    /// # Errors
    /// As `connect`; `Invalid` for options out of range, and `NotFound` for a ledger that is not there and is not to be made.
    pub async fn connect_with(
        url: &str,
        mut options: PostgresLedgerOptions,
    ) -> Result<Self, LedgerError> {
        let invalid = |why: String| LedgerError::Invalid { why };
        let given = if url.contains("://") {
            let mut given = Url::of(url).map_err(failed)?;
            if let Some(ledger) = given.take("ledger") {
                options.ledger = ledger;
            }
            if let Some(partition) = given.take("partition") {
                options.partition = Some(partition_of_url(&partition)?);
            }
            given.rest()
        } else {
            url.to_owned()
        };
        store::check_name(&options.ledger)?;
        let partition = check_partition(options.partition)?;
        if !(Duration::from_millis(10)..=Duration::from_hours(24)).contains(&options.timeout) {
            return Err(invalid("timeout must be 10 ms to a day".to_owned()));
        }
        let link = |made_with| {
            let target = Target::of(&given).map_err(|error| invalid(with_sources(&error)))?;
            let store = Store::new(&options.ledger, made_with, partition);
            Ok(Arc::new(Link::new(target, options.timeout, store)))
        };
        // Only the first one makes it.
        let made_with = options.create.then_some(options.made_with);
        let (reads, writes) = (link(made_with)?, link(None)?);
        reads.open().await.map_err(failed)?;
        let ledger = Self {
            reads,
            writes: Arc::new(Mutex::new(writes)),
        };
        if ledger.is_gone().await? {
            return Err(not_found(ledger.schema()));
        }
        Ok(ledger)
    }

    /// Appends in the caller's own transaction, whose isolation must be `READ COMMITTED`, PostgreSQL's default: the events are
    /// there if and only if it commits. The ledger is locked until then, so keep it short. `ledger` is the
    /// [schema](PostgresLedgerOptions::ledger), whose tables are there.
    ///
    /// # Errors
    /// As [`append`](Ledger::append); roll back then. An `Unavailable` says what the server has said.
    ///
    /// # Cancellation
    /// Roll back.
    pub async fn append_within(
        transaction: &Transaction<'_>,
        ledger: &str,
        append: Append,
    ) -> Result<Appended, LedgerError> {
        store::check_name(ledger)?;
        append.check()?;
        check_epoch(append.epoch)?;
        let made = append::within(transaction, ledger, append).await?;
        Ok(made.appended)
    }

    fn schema(&self) -> &str {
        &self.reads.purpose().schema
    }

    /// Runs a statement in which `{ledger}` is the schema.
    async fn ask(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        changes: bool,
    ) -> Result<Vec<Row>, LedgerError> {
        let sql = sql.replace("{ledger}", self.schema());
        let asked = self.reads.ask(&sql, parameters, changes).await;
        match asked.map_err(failed) {
            Err(LedgerError::Unavailable { .. }) if matches!(self.is_gone().await, Ok(true)) => {
                Err(not_found(self.schema()))
            }
            asked => asked,
        }
    }

    /// Whether its tables are not there, where the server says so.
    async fn is_gone(&self) -> Result<bool, LedgerError> {
        let schema = self.schema();
        let sql = format!("SELECT 1 WHERE to_regclass('{schema}.format') IS NOT NULL");
        let asked = self.reads.ask(&sql, &[], false).await;
        Ok(asked.map_err(failed)?.is_empty())
    }

    /// Runs a statement that changes something; whether it has changed a row.
    async fn change(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<bool, LedgerError> {
        let rows = self.ask(sql, parameters, true).await?;
        Ok(!rows.is_empty())
    }

    async fn look(&self, read: &ReadLedger) -> Result<LedgerPage, LedgerError> {
        let (after, limit) = (number(read.after.0), number(read.limit as u64));
        let bytes_max = number(ReadLedger::BYTES_MAX as u64);
        let rows = self
            .ask(
                append::PAGE,
                &[int8(&after), int8(&limit), int8(&bytes_max)],
                false,
            )
            .await?;
        let head = append::head(self.schema(), rows.first())?;
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

    /// Drops partitions of so many events that have none that is kept. If that fails, as when somebody uses the table for long, the
    /// next trim drops them.
    async fn drop_partitions(&self, of: i64, first: SequenceId) {
        let sql = "SELECT child.relname::text AS name, substr(child.relname, 8)::bigint AS number
            FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
            WHERE inhparent = '{ledger}.events'::regclass AND child.relname ~ '^events_[0-9]{1,18}$'
                AND (substr(child.relname, 8)::bigint + 1) * $1 < $2";
        let first = number(first.0);
        let Ok(rows) = self.ask(sql, &[int8(&of), int8(&first)], false).await else {
            return;
        };
        let names = rows
            .iter()
            .filter_map(|row| get::<String>(row, "name").ok());
        let names: Vec<_> = names
            .map(|name| format!("{}.{name}", self.schema()))
            .collect();
        if names.is_empty() {
            return;
        }
        // In one transaction, which the setting ends with.
        let sql = format!(
            "SELECT set_config('lock_timeout', '1000', true); DROP TABLE IF EXISTS {}",
            names.join(", ")
        );
        if let Ok(connection) = self.reads.connection().await {
            let dropped = connection.batch(&sql);
            let _ = tokio::time::timeout(self.reads.timeout(), dropped).await;
        }
    }

    /// Deletes events before the first one that is kept, a part at a time.
    async fn delete_trimmed(&self) -> Result<(), LedgerError> {
        let sql = "WITH gone AS (
                SELECT sequence_id FROM (
                    SELECT sequence_id, sum(octet_length(payload)) OVER (ORDER BY sequence_id) - octet_length(payload) AS before
                    FROM (SELECT sequence_id, payload FROM {ledger}.events
                          WHERE sequence_id < (SELECT first_id FROM {ledger}.head) ORDER BY sequence_id LIMIT $1) AS found) AS sized
                WHERE before < 33554432)
            DELETE FROM {ledger}.events USING gone WHERE events.sequence_id = gone.sequence_id
            RETURNING 1";
        while self.change(sql, &[int8(&DELETED_AT_ONCE)]).await? {}
        Ok(())
    }
}

impl Ledger for PostgresLedger {
    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        append.check()?;
        check_epoch(append.epoch)?;
        let writes = self.writes.lock().await;
        let made = append::over(&writes, append).await?;
        drop(writes);
        if let Some(of) = made.drops {
            self.drop_partitions(of, made.appended.head.first_id).await;
        }
        Ok(made.appended)
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        let rows = self.ask(append::HEAD, &[], false).await?;
        append::head(self.schema(), rows.first())
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        read.check()?;
        let until = Instant::now() + read.wait;
        loop {
            let changed = self.reads.purpose().changed.notified();
            tokio::pin!(changed);
            // From here on no event is missed.
            changed.as_mut().enable();
            let page = self.look(&read).await?;
            if !page.events.is_empty() || page.head.is_sealed || Instant::now() >= until {
                return Ok(page);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        let sql = "SELECT sequence_id FROM {ledger}.unique_ids WHERE unique_id = $1";
        let rows = self.ask(sql, &[text(&unique_id.as_str())], false).await?;
        rows.first()
            .map(|row| place("sequence_id", get(row, "sequence_id")?))
            .transpose()
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        let sql = match from {
            None => {
                "INSERT INTO {ledger}.readers (reader, sequence_id)
                SELECT $1, $2 FROM {ledger}.head WHERE head.sequence_id >= $2
                ON CONFLICT (reader) DO UPDATE SET sequence_id = EXCLUDED.sequence_id RETURNING 1"
            }
            // One that is not there is at 0.
            Some(SequenceId::START) => {
                "INSERT INTO {ledger}.readers (reader, sequence_id)
                SELECT $1, $2 FROM {ledger}.head WHERE head.sequence_id >= $2
                ON CONFLICT (reader) DO UPDATE SET sequence_id = EXCLUDED.sequence_id
                WHERE readers.sequence_id = 0 RETURNING 1"
            }
            Some(_) => {
                "UPDATE {ledger}.readers SET sequence_id = $2 FROM {ledger}.head
                WHERE readers.reader = $1 AND readers.sequence_id = $3 AND head.sequence_id >= $2
                RETURNING 1"
            }
        };
        let reader = position.reader.as_str();
        let expected = number(from.unwrap_or_default().0);
        loop {
            if let Ok(sequence_id) = i64::try_from(position.sequence_id.0) {
                let mut parameters = vec![text(&reader), int8(&sequence_id)];
                if from.is_some_and(|from| from > SequenceId::START) {
                    parameters.push(int8(&expected));
                }
                if self.change(sql, &parameters).await? {
                    return Ok(());
                }
            }
            // If ledger and reader have got there meanwhile, the next round moves the reader.
            self.head().await?.reaches(position.sequence_id)?;
            if from.is_some() {
                let readers = self.readers().await?;
                let now = readers.iter().find(|now| now.reader == position.reader);
                ReaderPosition::check_from(now.map(|now| now.sequence_id), from)?;
            }
        }
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        let sql = "DELETE FROM {ledger}.readers WHERE reader = $1 RETURNING 1";
        self.change(sql, &[text(&reader.as_str())]).await
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        let sql = "SELECT reader, sequence_id FROM {ledger}.readers ORDER BY reader";
        let rows = self.ask(sql, &[], false).await?;
        let position = |row: &Row| reader_position(get(row, "reader")?, get(row, "sequence_id")?);
        rows.iter().map(position).collect()
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        let sql = "WITH sealed AS (
                UPDATE {ledger}.head SET is_sealed = true,
                    epoch = CASE WHEN is_sealed THEN epoch ELSE $1 END
                WHERE epoch <= $1 RETURNING *)
            SELECT *, pg_notify('{ledger}', '') FROM sealed";
        let named = check_epoch(epoch)?;
        let rows = self.ask(sql, &[int8(&named)], true).await?;
        if rows.is_empty() {
            self.head().await?.admits(epoch)?;
        }
        append::head(self.schema(), rows.first())
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        let sql = "UPDATE {ledger}.head SET first_id = greatest(first_id, $1)
            WHERE sequence_id >= $1 - 1 RETURNING *";
        loop {
            if let Ok(named) = i64::try_from(first.0) {
                let rows = self.ask(sql, &[int8(&named)], true).await?;
                if let Some(row) = rows.first() {
                    let head = append::head(self.schema(), Some(row))?;
                    // They are gone for everybody; what is left of them goes with the next trim, or with its partition.
                    match get::<Option<i64>>(row, "partition_events")? {
                        Some(of) => self.drop_partitions(of, head.first_id).await,
                        None => drop(self.delete_trimmed().await),
                    }
                    return Ok(head);
                }
            }
            // If the ledger has got there meanwhile, the next round trims it.
            self.head().await?.reaches(first.previous())?;
        }
    }
}

fn get<'r, T: FromSql<'r>>(row: &'r Row, column: &str) -> Result<T, LedgerError> {
    row.try_get(column)
        .map_err(|error| damaged(&with_sources(&error)))
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

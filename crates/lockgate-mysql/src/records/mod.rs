//! The store.
//!
//! # Invariants
//! - Each command is one call of a procedure, and that one transaction.
//! - A lease that has ended is written as ended before that is shown, so that a clock that is set back brings none back.
//! - Locks of the server (`GET_LOCK`) decide nothing.

mod store;
mod waiting;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, LeaseRecord, ListRecords, PutRecord, Record, RecordName,
    RecordPage, RecordWritten, Records, RecordsCapabilities, RecordsError, ReleaseRecord,
    WatchRecord,
    coordination::{Fence, FenceError},
};
use lockgate_records::{
    Outcome, Row as RecordRow, STORE_NAME, check_lease, check_limit, check_put, guarded, number,
    page, prefix_end, store_name, unreadable, wait_for_end, watch,
};
use mysql_async::{Row, Value};

use self::{
    store::{COLUMNS, NOW, Store, lock_of},
    waiting::{Waiting, look, wait_for_locks},
};
use crate::{
    connection::{Link, get},
    url::Target,
};

/// How often one who watches looks whether the task runs that wakes it.
const WATCHED: Duration = Duration::from_secs(1);

/// Leases that one call ends at most, of those whose time is over.
const ENDED_AT_ONCE: i64 = 64;

/// [`Records`] in a MySQL or MariaDB database, by the server's time. Clones are the same store.
///
/// The first connect makes a store's tables and procedures, and that of a later program its procedures in their place, which
/// serve earlier programs too: a command that is under way then may be told `Unavailable`. Then a user needs the rights to read
/// and write its tables and to execute its procedures. Each command is answered when the server has flushed it. One connection serves all commands of a
/// store and its clones, and one more waits while somebody watches; a lost one is made again by the next command. Who watches
/// is woken at once when a lease ends, and else within [`poll`](MysqlRecordsOptions::poll): see the [crate](crate).
///
/// Leases end by the server's wall clock. If it is set forward, they end early, and only a fence stops their holders; if it is
/// set back, they last longer. Epochs are at least the microseconds of that clock. So they rise also over a failover to a
/// replica that has not got the last writes, if its clock is right; but such a failover may grant a lease that somebody holds.
///
/// The connections belong to the tokio runtime in which they were made. If that ends, the next command makes others.
#[derive(Clone)]
pub struct MysqlRecords(Arc<Shared>, Option<Fence>);

struct Shared {
    link: Arc<Link<Store>>,
    waiting: Arc<Waiting>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.waiting.stop();
    }
}

/// The options of [`MysqlRecords`].
#[derive(Clone, Debug)]
pub struct MysqlRecordsOptions {
    /// How long one command may take, and also a connect; from 10 ms to a day, by default 10 s. A command that gets no answer
    /// by then ends the connection.
    pub timeout: Duration,
    /// What the names of tables and procedures begin with: 1 to 40 lower-case letters, digits and `_`, the first a letter; by
    /// default `lockgate_records`. Stores with different ones share nothing.
    pub store: String,
    /// How often a process looks at what it watches, in one query; from 10 ms to a minute, by default 100 ms.
    pub poll: Duration,
}

impl Default for MysqlRecordsOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            store: STORE_NAME.to_owned(),
            poll: Duration::from_millis(100),
        }
    }
}

impl fmt::Debug for MysqlRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlRecords").field(&self.store()).finish()
    }
}

impl MysqlRecords {
    /// Connects to the database of that URL, `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, and makes what the store needs there.
    /// Its parameters are `store`, which is [`MysqlRecordsOptions::store`]; `ssl-mode`, of which `required` and above is TLS
    /// with a certificate that is verified, and everything else none; and `ssl-ca`, a file of authorities in place of the
    /// system's.
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or has an unknown parameter, and for a server that does not flush or is one of a
    /// Galera cluster; `Unavailable` if the server does not answer or refuses. None of them shows the password.
    pub async fn connect(url: &str) -> Result<Self, RecordsError> {
        Self::connect_with(url, MysqlRecordsOptions::default()).await
    }

    /// As [`connect`](Self::connect), with those options. The URL's `store` comes first.
    ///
    /// # Errors
    /// As `connect`, and `Invalid` for options out of range.
    pub async fn connect_with(
        url: &str,
        mut options: MysqlRecordsOptions,
    ) -> Result<Self, RecordsError> {
        let within = |given: Duration, from, to| (from..=to).contains(&given);
        let ten = Duration::from_millis(10);
        for (what, is_right) in [
            (
                "timeout must be 10 ms to a day",
                within(options.timeout, ten, Duration::from_hours(24)),
            ),
            (
                "poll must be 10 ms to a minute",
                within(options.poll, ten, Duration::from_mins(1)),
            ),
        ] {
            if !is_right {
                let why = what.to_owned();
                return Err(RecordsError::Invalid { why });
            }
        }
        let mut target = Target::of(url)?;
        if let Some(store) = target.url.take("store") {
            options.store = store;
        }
        let opts = target.opts(options.timeout, "store")?;
        store_name(&options.store)?;
        let store = Store {
            name: options.store,
            poll: options.poll,
        };
        let link = Arc::new(Link::new(opts, options.timeout, store));
        link.open().await?;
        let waiting = Arc::default();
        Ok(Self(Arc::new(Shared { link, waiting }), None))
    }

    fn store(&self) -> &str {
        &self.0.link.purpose().name
    }

    /// Calls a procedure that changes that record, under the fence if there is one; its only row.
    async fn call(
        &self,
        procedure: &str,
        name: &RecordName,
        more: impl IntoIterator<Item = Value>,
    ) -> Result<Row, RecordsError> {
        let mut of: Vec<Value> = vec![name.as_str().into()];
        of.extend(more);
        let mut under = "";
        if let Some(guarded) = guarded(self.1.as_ref(), name)? {
            of.extend([guarded.guard.as_str().into(), guarded.term.into()]);
            under = "fenced_";
        }
        for over in self.0.waiting.over() {
            // If it is not released, this process's next lease of that record wakes nobody at its end.
            let release = format!("DO RELEASE_LOCK({})", lock_of(self.store(), "?"));
            let _ = self
                .0
                .link
                .ask(&release, vec![over.as_str().into()], false)
                .await;
        }
        let marks = vec!["?"; of.len()].join(", ");
        let sql = format!("CALL {}_{under}{procedure}({marks})", self.store());
        let answer = self.0.link.ask(&sql, of, true).await?;
        let only = answer.rows.into_iter().next();
        only.ok_or_else(|| unreadable("there is no row"))
    }

    /// Ends leases whose time is over.
    async fn end_leases(&self) -> Result<(), RecordsError> {
        let sql = format!("CALL {}_end_leases(?)", self.store());
        // It happens whenever somebody comes by, so it does not matter whether it did.
        let ended = self.0.link.ask(&sql, vec![ENDED_AT_ONCE.into()], false);
        ended.await.map(drop)
    }

    async fn look(&self, name: &RecordName) -> Result<Option<Record>, RecordsError> {
        let sql = format!(
            "SELECT {COLUMNS}, ends - {NOW} AS remaining FROM {}_record WHERE name = ?",
            self.store()
        );
        let mut rounds = 0;
        loop {
            let rows = self.0.link.ask(&sql, vec![name.as_str().into()], false);
            let Some(row) = rows.await?.rows.into_iter().next() else {
                return Ok(None);
            };
            let row = record_row(&row)?;
            if !row.has_ended() {
                return row.into_record(name.clone()).map(Some);
            }
            self.end_leases().await?;
            wait_for_end(rounds).await;
            rounds += 1;
        }
    }

    async fn write(
        &self,
        name: &RecordName,
        value: Value,
        replaces: Option<u64>,
        epoch: Option<Epoch>,
    ) -> Result<RecordRow, RecordsError> {
        let replaces = replaces.map(number).into();
        let epoch_number = epoch.map(|epoch| number(epoch.0)).into();
        let of = [value, replaces, epoch_number];
        let row = self.call("put", name, of).await?;
        let (outcome, row) = written_row(&row)?;
        if outcome == Outcome::Lost {
            self.0.waiting.gave_back(name);
        }
        outcome.done(row, name, epoch, self.1.as_ref())
    }

    /// A call of which only the outcome is told, for a lease.
    async fn settle(
        &self,
        procedure: &str,
        name: &RecordName,
        epoch: Epoch,
        more: Option<i64>,
    ) -> Result<(), RecordsError> {
        let of = [number(epoch.0)].into_iter().chain(more);
        let row = self.call(procedure, name, of.map(Value::from)).await?;
        let outcome = Outcome::of(&get::<String>(&row, "outcome")?)?;
        if outcome == Outcome::Lost || (outcome == Outcome::Done && procedure == "release") {
            self.0.waiting.gave_back(name);
        }
        let fence = self.1.as_ref();
        let done = outcome.done(RecordRow::default(), name, Some(epoch), fence);
        done.map(drop)
    }
}

fn record_row(row: &Row) -> Result<RecordRow, RecordsError> {
    Ok(RecordRow {
        value: get::<Vec<u8>>(row, "value")?.into(),
        version: get(row, "version")?,
        revision: get(row, "revision")?,
        written: get(row, "written")?,
        holder: get(row, "holder")?,
        epoch: get(row, "epoch")?,
        remaining: get(row, "remaining")?,
        delete_at_end: get(row, "delete_at_end")?,
    })
}

/// What a procedure says that returns no value of the record.
fn written_row(row: &Row) -> Result<(Outcome, RecordRow), RecordsError> {
    let outcome = Outcome::of(&get::<String>(row, "outcome")?)?;
    let number = |column| get::<Option<i64>>(row, column);
    let record = RecordRow {
        version: number("version")?.unwrap_or(0),
        revision: number("revision")?.unwrap_or(0),
        holder: get(row, "holder")?,
        remaining: number("remaining")?,
        ..RecordRow::default()
    };
    Ok((outcome, record))
}

impl Records for MysqlRecords {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self(self.0.clone(), Some(fence.clone())))
    }

    /// A watch may look now and then: see the [crate](crate).
    fn capabilities(&self) -> RecordsCapabilities {
        RecordsCapabilities::ALL.polling()
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.look(&name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        let limit = check_limit(&list)?;
        let after = list.after.as_ref().map_or("", RecordName::as_str);
        let end = prefix_end(&list.prefix);
        // Values are read only of the records that the page has.
        let sql = format!(
            "SELECT sized.name AS name, has_more, {COLUMNS}, ends - {NOW} AS remaining FROM (
                SELECT name, ROW_NUMBER() OVER (ORDER BY name) AS number,
                    LEAD(name) OVER (ORDER BY name) IS NOT NULL AS has_more,
                    SUM(bytes) OVER (ORDER BY name) - bytes AS bytes_before
                FROM (
                    SELECT name, OCTET_LENGTH(value) AS bytes FROM {store}_record
                    WHERE name >= ? AND name > ? {below} ORDER BY name LIMIT ?) AS found) AS sized
            JOIN {store}_record AS it ON it.name = sized.name
            WHERE number <= ? AND bytes_before < ? ORDER BY sized.name",
            store = self.store(),
            below = if end.is_some() { "AND name < ?" } else { "" },
        );
        let mut of: Vec<Value> = vec![list.prefix.as_str().into(), after.into()];
        of.extend(end.map(Value::from));
        of.extend([
            (limit + 1).into(),
            limit.into(),
            (ListRecords::BYTES_MAX as u64).into(),
        ]);
        let mut rounds = 0;
        loop {
            let rows = self.0.link.ask(&sql, of.clone(), false).await?.rows;
            let has_more = rows.last().map_or(Ok(false), |row| get(row, "has_more"))?;
            let (mut records, mut has_ended) = (Vec::new(), false);
            for row in &rows {
                let name = RecordName::new(&get::<String>(row, "name")?);
                let name = name.map_err(|error| unreadable(&error.to_string()))?;
                let row = record_row(row)?;
                has_ended |= row.has_ended();
                records.push(row.into_record(name)?);
            }
            if !has_ended {
                return Ok(page(records, has_more));
            }
            self.end_leases().await?;
            wait_for_end(rounds).await;
            rounds += 1;
        }
    }

    async fn watch(&self, wait: WatchRecord) -> Result<Option<Record>, RecordsError> {
        let name = wait.name.clone();
        let wake = || {
            self.0.waiting.wake_for(|| {
                let (link, waiting) = (self.0.link.clone(), self.0.waiting.clone());
                tokio::spawn(async move {
                    tokio::join!(look(&link, &waiting), wait_for_locks(&link, &waiting));
                })
            });
        };
        let look_once = || {
            // It is among those who watch by now.
            wake();
            self.look(&name)
        };
        let mut watching = pin!(watch(&self.0.waiting.bell, wait, look_once));
        loop {
            tokio::select! {
                seen = watching.as_mut() => return seen,
                // The runtime in which others are woken may have ended with another one who watched.
                () = tokio::time::sleep(WATCHED) => wake(),
            }
        }
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        check_put(&put)?;
        let replaces = put.replaces.map(|version| version.0);
        let value = Value::Bytes(put.value.to_vec());
        let row = self.write(&put.name, value, replaces, put.epoch).await?;
        row.written()
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        let replaces = Some(delete.replaces.0);
        let deleted = self.write(&delete.name, Value::NULL, replaces, delete.epoch);
        deleted.await?;
        self.0.waiting.gave_back(&delete.name);
        Ok(())
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let span = check_lease(lease.lease)?;
        let of = [
            lease.holder.as_str().into(),
            span.into(),
            lease.delete_at_end.into(),
        ];
        let row = self.call("lease", &lease.name, of).await?;
        let outcome = Outcome::of(&get::<String>(&row, "outcome")?)?;
        let record = match outcome {
            Outcome::Done => record_row(&row)?,
            _ => written_row(&row)?.1,
        };
        let record = outcome.done(record, &lease.name, None, self.1.as_ref())?;
        self.0.waiting.leased(&lease.name, lease.lease);
        record.into_record(lease.name)
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let span = check_lease(extend.lease)?;
        self.settle("extend", &extend.name, extend.epoch, Some(span))
            .await?;
        self.0.waiting.leased(&extend.name, extend.lease);
        Ok(())
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.settle("release", &release.name, release.epoch, None)
            .await
    }
}

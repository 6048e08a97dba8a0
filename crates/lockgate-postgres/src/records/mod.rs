//! Records in a PostgreSQL database.
//!
//! # Invariants
//! - Each command is one statement, a call of a function of `program.sql`. So nothing of it is there or all of it is, no
//!   lock outlives it, and a future that is dropped leaves no transaction open.
//! - A connection listens before anything is read over it, and when it ends, all who watch look again over the next one. So
//!   no change is missed.
//! - A lease that has ended is written as ended before that is shown, so that a clock that is set back brings none back.

mod store;

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, LeaseRecord, ListRecords, PutRecord, Record, RecordName,
    RecordPage, RecordWritten, Records, RecordsError, ReleaseRecord, WatchRecord,
    coordination::{Fence, FenceError},
    with_sources,
};
use lockgate_records::{
    Bell, Guarded, Outcome, Row as RecordRow, STORE_NAME, Url, check_lease, check_limit, check_put,
    guarded, number, page, prefix_end, store_name, unreadable, wait_for_end, watch,
};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use self::store::Store;
use crate::{
    asked::{Link, Parameter, int8, text},
    tls::Target,
};

/// Leases that one statement ends at most, of those whose time is over.
const ENDED_AT_ONCE: i32 = 64;

/// [`Records`] in a PostgreSQL database, by the server's time. Clones are the same store.
///
/// A store is a schema, `lockgate_records` unless its options say otherwise, with two tables and a few functions. The first
/// connect makes them, and that of a later program its functions in their place, which serve earlier programs too; then a user
/// needs the right to use the schema and to read and write its tables. Each command is one
/// call of a function, and is answered when the server has flushed it, on the standbys too if there are any that
/// `synchronous_standby_names` counts. All changes of a store are made one after the other.
///
/// A watch is told of a change at once (`NOTIFY`). One connection serves all commands and watches of a store and its clones; a
/// lost one is made again by the next command. Behind a pooler that gives each transaction whichever session is free nobody
/// could be told: [`connect`](Self::connect) refuses that.
///
/// Leases end by the server's wall clock. If it is set forward, they end early, and only a fence stops their holders; if it is
/// set back, they last longer. Epochs are at least the microseconds of that clock. So they rise also over a failover to a
/// standby that has not got the last writes, if its clock is right; but such a failover may grant a lease that somebody
/// holds. Have the commits wait for a standby (`synchronous_standby_names`) if you fail over.
///
/// The connection belongs to the tokio runtime in which it was made. If that ends, the next command makes another one.
///
/// ```no_run
/// use lockgate_core::{PutRecord, RecordName, Records};
/// use lockgate_postgres::PostgresRecords;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = PostgresRecords::connect("postgres://service:secret@database/service").await?;
/// let name = RecordName::new("reports/page")?;
/// let first = PutRecord { name: name.clone(), value: "7".into(), replaces: None, epoch: None };
/// records.put(first).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresRecords(Arc<Link<Store>>, Option<Fence>);

/// The options of [`PostgresRecords`].
#[derive(Clone, Debug)]
pub struct PostgresRecordsOptions {
    /// How long one command may take, and also a connect; from 10 ms to a day, by default 10 s. A command that gets no answer
    /// by then ends the connection.
    pub timeout: Duration,
    /// The schema: 1 to 40 lower-case letters, digits and `_`, the first a letter; by default `lockgate_records`. Stores
    /// with different ones share nothing.
    pub store: String,
}

impl Default for PostgresRecordsOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            store: STORE_NAME.to_owned(),
        }
    }
}

impl fmt::Debug for PostgresRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresRecords")
            .field(&self.store())
            .finish()
    }
}

impl PostgresRecords {
    /// Connects to the server of that URL, and makes what the store needs there. The parameters of the URL are PostgreSQL's, of
    /// which TLS always verifies the certificate (`sslmode`, `sslrootcert`); and `store`, which is
    /// [`PostgresRecordsOptions::store`].
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or has an unknown parameter, a pooler that shares sessions, and a server that
    /// does not flush; `Unavailable` if the server does not answer or refuses. None of them shows the password.
    pub async fn connect(url: &str) -> Result<Self, RecordsError> {
        Self::connect_with(url, PostgresRecordsOptions::default()).await
    }

    /// As [`connect`](Self::connect), with those options. The URL's `store` comes first.
    ///
    /// # Errors
    /// As `connect`, and `Invalid` for options out of range.
    pub async fn connect_with(
        url: &str,
        mut options: PostgresRecordsOptions,
    ) -> Result<Self, RecordsError> {
        let invalid = |why: String| RecordsError::Invalid { why };
        let given = if url.contains("://") {
            let mut given = Url::of(url)?;
            if let Some(store) = given.take("store") {
                options.store = store;
            }
            given.rest()
        } else {
            url.to_owned()
        };
        store_name(&options.store)?;
        if !(Duration::from_millis(10)..=Duration::from_hours(24)).contains(&options.timeout) {
            return Err(invalid("timeout must be 10 ms to a day".to_owned()));
        }
        let target = Target::of(&given).map_err(|error| invalid(with_sources(&error)))?;
        let store = Store {
            name: options.store,
            bell: Bell::default(),
        };
        let link = Arc::new(Link::new(target, options.timeout, store));
        link.open().await?;
        Ok(Self(link, None))
    }

    fn store(&self) -> &str {
        &self.0.purpose().name
    }

    /// Runs a statement that changes nothing.
    async fn read(&self, sql: &str, of: &[Parameter<'_>]) -> Result<Vec<Row>, RecordsError> {
        self.0.ask(sql, of, false).await
    }

    /// Calls a function that changes that record, under the fence if there is one; its only row.
    async fn call(
        &self,
        function: &str,
        name: &RecordName,
        more: &[Parameter<'_>],
    ) -> Result<Row, RecordsError> {
        let guarded = guarded(self.1.as_ref(), name)?;
        let fence = guarded
            .as_ref()
            .map(|Guarded { guard, term }| (guard.as_str(), term.as_str()));
        let name = name.as_str();
        let mut of = vec![text(&name)];
        of.extend_from_slice(more);
        if let Some((guard, term)) = &fence {
            of.extend([text(guard), text(term)]);
        }
        let marks: Vec<_> = (1..=of.len()).map(|at| format!("${at}")).collect();
        // The alias names the column of what returns the outcome only.
        let sql = format!(
            "SELECT * FROM {}.{function}({}) AS outcome",
            self.store(),
            marks.join(", ")
        );
        let rows = self.0.ask(&sql, &of, true).await?;
        let only = rows.into_iter().next();
        only.ok_or_else(|| unreadable("there is no row"))
    }

    /// A call of which only the outcome is told, for a lease.
    async fn settle(
        &self,
        function: &str,
        name: &RecordName,
        epoch: Epoch,
        more: Option<i64>,
    ) -> Result<(), RecordsError> {
        let named = number(epoch.0);
        let mut parameters = vec![int8(&named)];
        parameters.extend(more.iter().map(|more| int8(more)));
        let row = self.call(function, name, &parameters).await?;
        let outcome = Outcome::of(get(&row, "outcome")?)?;
        let fence = self.1.as_ref();
        let done = outcome.done(RecordRow::default(), name, Some(epoch), fence);
        done.map(drop)
    }

    /// Ends leases whose time is over.
    async fn end_leases(&self) -> Result<(), RecordsError> {
        let sql = format!("SELECT {}.end_leases($1)", self.store());
        // It happens whenever somebody comes by, so it does not matter whether it did.
        self.read(&sql, &[int4(&ENDED_AT_ONCE)]).await.map(drop)
    }

    async fn look(&self, name: &RecordName) -> Result<Option<Record>, RecordsError> {
        let sql = format!(
            "SELECT {COLUMNS}, ends - {store}.now() AS remaining FROM {store}.record WHERE name = $1",
            store = self.store()
        );
        let mut rounds = 0;
        loop {
            let rows = self.read(&sql, &[text(&name.as_str())]).await?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            let row = record_row(row)?;
            if !row.has_ended() {
                return row.into_record(name.clone()).map(Some);
            }
            self.end_leases().await?;
            wait_for_end(rounds).await;
            rounds += 1;
        }
    }
}

const COLUMNS: &str = "value, version, revision, written, holder, epoch, delete_at_end";

fn int4(value: &i32) -> Parameter<'_> {
    (value, Type::INT4)
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    column: &str,
) -> Result<T, RecordsError> {
    row.try_get(column)
        .map_err(|error| unreadable(&with_sources(&error)))
}

fn record_row(row: &Row) -> Result<RecordRow, RecordsError> {
    Ok(RecordRow {
        value: get::<&[u8]>(row, "value")?.to_vec().into(),
        version: get(row, "version")?,
        revision: get(row, "revision")?,
        written: get(row, "written")?,
        holder: get(row, "holder")?,
        epoch: get(row, "epoch")?,
        remaining: get(row, "remaining")?,
        delete_at_end: get(row, "delete_at_end")?,
    })
}

/// What a function says that returns no value of the record.
fn written_row(row: &Row) -> Result<(Outcome, RecordRow), RecordsError> {
    let outcome = Outcome::of(get(row, "outcome")?)?;
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

impl Records for PostgresRecords {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self(self.0.clone(), Some(fence.clone())))
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.look(&name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        let limit = check_limit(&list)?;
        let after = list.after.as_ref().map_or("", RecordName::as_str);
        let (prefix, end) = (list.prefix.as_str(), prefix_end(&list.prefix));
        // Values are read only of the records that the page has.
        let sql = format!(
            "WITH found AS MATERIALIZED (
                SELECT name, octet_length(value) AS bytes FROM {store}.record
                WHERE name >= $1 AND name > $2 AND ($3::text IS NULL OR name < $3) ORDER BY name LIMIT $4 + 1),
            sized AS (
                SELECT name, row_number() OVER ordered AS number, lead(name) OVER ordered IS NOT NULL AS has_more,
                    sum(bytes) OVER ordered - bytes AS bytes_before
                FROM found WINDOW ordered AS (ORDER BY name))
            SELECT name, has_more, {COLUMNS}, ends - {store}.now() AS remaining
            FROM sized JOIN {store}.record USING (name)
            WHERE number <= $4 AND bytes_before < $5 ORDER BY name",
            store = self.store()
        );
        let bytes_max = number(ListRecords::BYTES_MAX as u64);
        let mut rounds = 0;
        loop {
            let parameters = [
                text(&prefix),
                text(&after),
                text(&end),
                int8(&limit),
                int8(&bytes_max),
            ];
            let rows = self.read(&sql, &parameters).await?;
            let has_more = rows.last().map_or(Ok(false), |row| get(row, "has_more"))?;
            let (mut records, mut has_ended) = (Vec::new(), false);
            for row in &rows {
                let name = RecordName::new(get(row, "name")?);
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
        watch(&self.0.purpose().bell, wait, || self.look(&name)).await
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        check_put(&put)?;
        let value: &[u8] = &put.value;
        let replaces = put.replaces.map(|version| number(version.0));
        let epoch = put.epoch.map(|epoch| number(epoch.0));
        let parameters = [
            (&value as &(dyn ToSql + Sync), Type::BYTEA),
            int8(&replaces),
            int8(&epoch),
        ];
        let row = self.call("put", &put.name, &parameters).await?;
        let (outcome, row) = written_row(&row)?;
        let done = outcome.done(row, &put.name, put.epoch, self.1.as_ref());
        done?.written()
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        let replaces = number(delete.replaces.0);
        let epoch = delete.epoch.map(|epoch| number(epoch.0));
        let parameters = [int8(&replaces), int8(&epoch)];
        let row = self.call("delete", &delete.name, &parameters).await?;
        let (outcome, row) = written_row(&row)?;
        let done = outcome.done(row, &delete.name, delete.epoch, self.1.as_ref());
        done.map(drop)
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let span = check_lease(lease.lease)?;
        let holder = lease.holder.as_str();
        let parameters = [
            text(&holder),
            int8(&span),
            (&lease.delete_at_end as &(dyn ToSql + Sync), Type::BOOL),
        ];
        let row = self.call("lease", &lease.name, &parameters).await?;
        let outcome = Outcome::of(get(&row, "outcome")?)?;
        let record = match outcome {
            Outcome::Done => record_row(&row)?,
            _ => written_row(&row)?.1,
        };
        let record = outcome.done(record, &lease.name, None, self.1.as_ref())?;
        record.into_record(lease.name)
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let span = check_lease(extend.lease)?;
        self.settle("extend", &extend.name, extend.epoch, Some(span))
            .await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.settle("release", &release.name, release.epoch, None)
            .await
    }
}

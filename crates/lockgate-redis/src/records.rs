//! The store.
//!
//! # Invariants
//! - Each command is one run of `program.lua`, which the server interrupts for nothing.
//! - A connection hears of changes before anything is read over it, and when it ends, all who watch look again over the next
//!   one. So no change is missed.

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, LeaseRecord, ListRecords, PutRecord, Record, RecordName,
    RecordPage, RecordVersion, RecordWritten, Records, RecordsCapabilities, RecordsError,
    ReleaseRecord, WatchRecord,
    coordination::{Fence, FenceError},
};
use lockgate_records::{
    Outcome, Row, STORE_NAME, check_lease, check_limit, check_put, guarded, page, store_name,
    unreadable, watch,
};
use redis::Value;

use crate::{
    RedisDurability,
    connection::{Link, read, value},
};

/// [`Records`] in Redis, by the server's time. Clones are the same store.
///
/// All keys begin with the store's name in braces, `{lockgate_records}:`. Each command is one run of a script. A watch is told
/// of a change at once (`PUBLISH`). One connection serves all commands and watches of a store and its clones; a lost one is
/// made again by the next command. It needs Redis 6 or later, or what speaks RESP3 as well, and one server that takes writes:
/// no Redis Cluster. What it cannot promise, the [crate](crate) says.
///
/// Leases end by the server's wall clock. If it is set forward, they end early; if it is set back, they last longer.
///
/// The connection belongs to the tokio runtime in which it was made. If that ends, the next command makes another one.
#[derive(Clone)]
pub struct RedisRecords(Arc<Link>, Option<Fence>);

/// The options of [`RedisRecords`].
#[derive(Clone, Debug)]
pub struct RedisRecordsOptions {
    /// How long one command may take, and also a connect; from 10 ms to a day, by default 10 s. A command that gets no answer
    /// by then ends the connection.
    pub timeout: Duration,
    /// What all keys begin with, in braces: 1 to 40 lower-case letters, digits and `_`, the first a letter; by default
    /// `lockgate_records`. Stores with different ones share nothing.
    pub store: String,
}

impl Default for RedisRecordsOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            store: STORE_NAME.to_owned(),
        }
    }
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisRecords")
            .field(&self.0.options.store)
            .finish()
    }
}

impl RedisRecords {
    /// Connects to the server of that URL, `redis://USER:PASSWORD@HOST:PORT/DATABASE`; `rediss://` is TLS with a certificate
    /// that is verified. Its parameters are `store`, which is [`RedisRecordsOptions::store`], and `ssl-ca`, a file of
    /// authorities in place of the system's.
    ///
    /// # Errors
    /// `Invalid` for a URL that cannot be read or has an unknown parameter, for a Redis Cluster, and for a server that drops
    /// keys when memory is short; `Unavailable` if the server does not answer, refuses, or is a replica. None of them shows the
    /// password.
    pub async fn connect(url: &str) -> Result<Self, RecordsError> {
        Self::connect_with(url, RedisRecordsOptions::default()).await
    }

    /// As [`connect`](Self::connect), with those options. The URL's `store` comes first.
    ///
    /// # Errors
    /// As `connect`, and `Invalid` for options out of range.
    pub async fn connect_with(
        url: &str,
        mut options: RedisRecordsOptions,
    ) -> Result<Self, RecordsError> {
        if !(Duration::from_millis(10)..=Duration::from_hours(24)).contains(&options.timeout) {
            let why = "timeout must be 10 ms to a day".to_owned();
            return Err(RecordsError::Invalid { why });
        }
        let (client, store) = read(url)?;
        if let Some(store) = store {
            options.store = store;
        }
        store_name(&options.store)?;
        let link = Arc::new(Link::new(client, options));
        link.open().await?;
        Ok(Self(link, None))
    }

    /// What the server keeps over a restart, by its settings as they are now. It says nothing about replicas.
    ///
    /// # Errors
    /// `Unavailable`, also if the server lets nobody see its settings.
    pub async fn durability(&self) -> Result<RedisDurability, RecordsError> {
        self.0.durability().await
    }

    async fn look(&self, name: &RecordName) -> Result<Option<Record>, RecordsError> {
        let of = [b"get", name.as_str().as_bytes()];
        match self.0.ask(&of, false).await? {
            Value::Nil => Ok(None),
            found => row(&found)?.1.into_record(name.clone()).map(Some),
        }
    }

    /// Makes a change of that record, under the fence if there is one. `epoch`: of the lease that the command names.
    async fn change(
        &self,
        command: &str,
        name: &RecordName,
        epoch: Option<Epoch>,
        more: &[&[u8]],
    ) -> Result<Row, RecordsError> {
        let guarded = guarded(self.1.as_ref(), name)?;
        let mut of: Vec<&[u8]> = Vec::new();
        if let Some(guarded) = &guarded {
            let (guard, term) = (guarded.guard.as_str(), &guarded.term);
            of.extend([&b"fenced"[..], guard.as_bytes(), term.as_bytes()]);
        }
        of.extend([command.as_bytes(), name.as_str().as_bytes()]);
        of.extend(more);
        let (outcome, row) = row(&self.0.ask(&of, true).await?)?;
        outcome.done(row, name, epoch, self.1.as_ref())
    }
}

/// As the program gives it: its function `answer`.
fn row(answer: &Value) -> Result<(Outcome, Row), RecordsError> {
    let columns: Vec<Value> = value(answer)?;
    let column = |at: usize| columns.get(at).ok_or_else(|| unreadable("it is too short"));
    let number = |at| value::<Option<i64>>(column(at)?);
    let bytes: Option<Vec<u8>> = value(column(8)?)?;
    let row = Row {
        version: number(1)?.unwrap_or(0),
        revision: number(2)?.unwrap_or(0),
        written: number(3)?.unwrap_or(0),
        holder: value(column(4)?)?,
        epoch: number(5)?,
        remaining: number(6)?,
        delete_at_end: number(7)? == Some(1),
        value: bytes.unwrap_or_default().into(),
    };
    Ok((Outcome::of(&value::<String>(column(0)?)?)?, row))
}

/// A version that is to be replaced, as the program takes it.
fn version(version: Option<RecordVersion>) -> String {
    version.map_or(String::new(), |version| version.0.to_string())
}

/// A lease that the caller has, as the program takes it.
fn epoch(epoch: Option<Epoch>) -> String {
    epoch.map_or(String::new(), |epoch| epoch.0.to_string())
}

impl Records for RedisRecords {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self(self.0.clone(), Some(fence.clone())))
    }

    /// What was answered may be taken back: see the [crate](crate).
    fn capabilities(&self) -> RecordsCapabilities {
        RecordsCapabilities::ALL.forgetful()
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.look(&name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        let limit = check_limit(&list)?.to_string();
        // No text has this byte.
        let last = match list.prefix.is_empty() {
            true => b"+".to_vec(),
            false => [b"(", list.prefix.as_bytes(), &[0xff]].concat(),
        };
        let first = match &list.after {
            Some(after) if after.as_str() >= list.prefix.as_str() => format!("({after}"),
            _ => format!("[{}", list.prefix),
        };
        let bytes_max = ListRecords::BYTES_MAX.to_string();
        let of: [&[u8]; 5] = [
            b"list",
            first.as_bytes(),
            &last,
            limit.as_bytes(),
            bytes_max.as_bytes(),
        ];
        let found = self.0.ask(&of, false).await?;
        let (has_more, rows): (bool, Vec<Value>) = value(&found)?;
        let mut records = Vec::new();
        for found in rows {
            let columns: Vec<Value> = value(&found)?;
            let name = columns
                .get(9)
                .ok_or_else(|| unreadable("it is too short"))?;
            let name = RecordName::new(&value::<String>(name)?);
            let name = name.map_err(|error| unreadable(&error.to_string()))?;
            records.push(row(&found)?.1.into_record(name)?);
        }
        Ok(page(records, has_more))
    }

    async fn watch(&self, wait: WatchRecord) -> Result<Option<Record>, RecordsError> {
        let name = wait.name.clone();
        watch(&self.0.bell, wait, || self.look(&name)).await
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        check_put(&put)?;
        let (replaces, lease) = (version(put.replaces), epoch(put.epoch));
        let of: [&[u8]; 3] = [replaces.as_bytes(), lease.as_bytes(), &put.value];
        let written = self.change("put", &put.name, put.epoch, &of).await?;
        written.written()
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        let (replaces, lease) = (version(Some(delete.replaces)), epoch(delete.epoch));
        let of = [replaces.as_bytes(), lease.as_bytes()];
        let deleted = self.change("delete", &delete.name, delete.epoch, &of);
        deleted.await.map(drop)
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let span = check_lease(lease.lease)?.to_string();
        let of: [&[u8]; 3] = [
            lease.holder.as_str().as_bytes(),
            span.as_bytes(),
            if lease.delete_at_end { b"1" } else { b"0" },
        ];
        let leased = self.change("lease", &lease.name, None, &of).await?;
        leased.into_record(lease.name)
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let span = check_lease(extend.lease)?.to_string();
        let lease = Some(extend.epoch);
        let named = epoch(lease);
        let of = [named.as_bytes(), span.as_bytes()];
        let extended = self.change("extend", &extend.name, lease, &of);
        extended.await.map(drop)
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        let lease = Some(release.epoch);
        let named = epoch(lease);
        let of = [named.as_bytes()];
        let released = self.change("release", &release.name, lease, &of);
        released.await.map(drop)
    }
}

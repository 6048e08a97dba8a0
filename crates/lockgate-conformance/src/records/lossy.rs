//! A store that loses answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockgate_core::{
    DeleteRecord, ExtendRecord, LeaseRecord, ListRecords, PutRecord, Record, RecordName,
    RecordPage, RecordWritten, Records, RecordsCapabilities, RecordsError, ReleaseRecord,
    WatchRecord,
};

/// Loses the answer of every command whose number `lose` says, from 0: `Some(true)` after it has happened, `Some(false)`
/// before. A release always happens, because one that does not ends with the lease, and time may stand still.
#[derive(Clone, Debug)]
pub struct Lossy<R> {
    records: R,
    commands: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    watches: Arc<AtomicU64>,
    lose: fn(u64) -> Option<bool>,
    loses_releases: bool,
    lose_reads: fn(u64) -> bool,
}

impl<R: Records> Lossy<R> {
    /// Over that store. Releases are answered.
    pub fn new(records: R, lose: fn(u64) -> Option<bool>) -> Self {
        Self {
            records,
            commands: Arc::default(),
            reads: Arc::default(),
            watches: Arc::default(),
            lose,
            loses_releases: false,
            lose_reads: |_| false,
        }
    }

    /// Loses answers of reads and watches too: of those whose number this says, from 0.
    #[must_use]
    pub fn losing_reads(mut self, lose: fn(u64) -> bool) -> Self {
        self.lose_reads = lose;
        self
    }

    /// Loses answers of releases too.
    #[must_use]
    pub fn losing_releases(mut self) -> Self {
        self.loses_releases = true;
        self
    }

    /// The store, which loses nothing.
    pub fn store(&self) -> &R {
        &self.records
    }

    /// How many commands were asked for so far.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// How often records were read so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn read(&self, of: &AtomicU64) -> Result<(), RecordsError> {
        let number = of.fetch_add(1, Ordering::Relaxed);
        match (self.lose_reads)(number) {
            true if number.is_multiple_of(2) => Err(RecordsError::Unavailable {
                why: "a planted loss".to_owned(),
            }),
            true => Err(RecordsError::Unknown {
                why: "a planted loss".to_owned(),
            }),
            false => Ok(()),
        }
    }

    async fn maybe<T>(
        &self,
        act: impl Future<Output = Result<T, RecordsError>> + Send,
    ) -> Result<T, RecordsError> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let Some(happens) = (self.lose)(number) else {
            return act.await;
        };
        if happens {
            let _ = act.await;
        }
        let why = "a planted loss".to_owned();
        Err(RecordsError::Unknown { why })
    }
}

impl<R: Records> Records for Lossy<R> {
    fn capabilities(&self) -> RecordsCapabilities {
        self.records.capabilities()
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.read(&self.reads)?;
        self.records.get(name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.read(&self.reads)?;
        self.records.list(list).await
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        self.read(&self.watches)?;
        self.records.watch(watch).await
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        self.maybe(self.records.put(put)).await
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.maybe(self.records.delete(delete)).await
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        self.maybe(self.records.lease(lease)).await
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        self.maybe(self.records.extend(extend)).await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        let released = self.records.release(release).await;
        match self.loses_releases {
            true => self.maybe(async { released }).await,
            false => released,
        }
    }
}

//! A store of records in the memory of this process.

pub(crate) mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError},
    time::Duration,
};

use lockgate_core::{
    Clock, DeleteRecord, ExtendRecord, LeaseRecord, ListRecords, MachineTime, Millis, Now,
    PutRecord, Record, RecordName, RecordPage, RecordWritten, Records, RecordsError, ReleaseRecord,
    WatchRecord,
    coordination::{Fence, FenceError},
};
use tokio::time::Instant;

use self::state::State;
use crate::{
    sync::{Mutex, Notify, sleep_until},
    worker::TokioClock,
};

/// [`Records`] in the memory of this process, which are gone with it: for one process, and for tests of what is
/// written over `Records`. Clones are the same store.
///
/// It does what a durable store does; the same suite tests both. Leases end by tokio's clock, or by a
/// [`clock`](Self::clock) of the caller's. Names, values and 256 bytes for each record take up to 64 MiB together, or
/// [`bytes_max`](Self::bytes_max).
///
/// ```
/// use lockgate_consumer::MemoryRecords;
/// use lockgate_core::{PutRecord, RecordName, Records};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = MemoryRecords::new();
/// let name = RecordName::new("reports/page")?;
/// let first = PutRecord { name: name.clone(), value: "7".into(), replaces: None, epoch: None };
/// records.put(first).await?;
/// assert_eq!(records.get(name).await?.unwrap().value, "7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRecords(Arc<Inner>, Option<Fence>);

struct Inner {
    shared: Mutex<Shared>,
    bytes_max: u64,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Shared {
    state: State,
    /// Who watches a record, and how many do.
    watches: HashMap<RecordName, (Arc<Notify>, usize)>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("MemoryRecords");
        it.field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Default for MemoryRecords {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryRecords {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with(64 << 20, Arc::new(TokioClock::start()))
    }

    /// An empty store with room for `bytes_max` bytes.
    #[must_use]
    pub fn bytes_max(self, bytes_max: u64) -> Self {
        Self::with(bytes_max, self.0.clock.clone())
    }

    /// An empty store whose leases end by that clock, and which writes its wall time. Call
    /// [`clock_changed`](Self::clock_changed) when somebody has set it.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self::with(self.0.bytes_max, clock)
    }

    fn with(bytes_max: u64, clock: Arc<dyn Clock>) -> Self {
        let inner = Inner {
            shared: Mutex::default(),
            bytes_max,
            clock,
        };
        Self(Arc::new(inner), None)
    }

    /// Looks at the clock anew: it has been set.
    pub fn clock_changed(&self) {
        self.0.at_once(|_| ());
        let shared = self.0.shared.lock();
        let shared = shared.unwrap_or_else(PoisonError::into_inner);
        for (watched, _) in shared.watches.values() {
            watched.notify_waiters();
        }
    }
}

impl Inner {
    fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: MachineTime(self.clock.since_boot()),
        }
    }

    /// Does something at one instant, and wakes who watches what has changed.
    fn at_once<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // What panics under it has changed nothing by halves: it would be a bug of this module.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.state.advance(self.now());
        let result = act(&mut shared.state);
        for name in shared.state.take_changed() {
            if let Some((watched, _)) = shared.watches.get(&name) {
                watched.notify_waiters();
            }
        }
        result
    }
}

/// A place among those who watch a record. Nothing is kept of a record that nobody watches.
struct Watching<'a> {
    records: &'a Inner,
    name: RecordName,
    changed: Arc<Notify>,
}

impl<'a> Watching<'a> {
    fn new(records: &'a Inner, name: RecordName) -> Self {
        let shared = records.shared.lock();
        let mut shared = shared.unwrap_or_else(PoisonError::into_inner);
        let (changed, count) = shared.watches.entry(name.clone()).or_default();
        *count += 1;
        let changed = changed.clone();
        drop(shared);
        Self {
            records,
            name,
            changed,
        }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let shared = self.records.shared.lock();
        let mut shared = shared.unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = shared.watches.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                shared.watches.remove(&self.name);
            }
        }
    }
}

impl MemoryRecords {
    /// Makes a change of that record, under the fence if there is one.
    fn change<T>(
        &self,
        name: RecordName,
        change: impl FnOnce(&mut State) -> Result<T, RecordsError>,
    ) -> Result<T, RecordsError> {
        let Self(inner, fence) = self;
        inner.at_once(|state| state.under(fence.as_ref(), &name, inner.bytes_max, change))
    }
}

impl Records for MemoryRecords {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self(self.0.clone(), Some(fence.clone())))
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        Ok(self.0.at_once(|state| state.get(&name)))
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.0.at_once(|state| state.list(&list))
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        let WatchRecord { name, seen, wait } = watch;
        let watching = Watching::new(&self.0, name);
        let wait = Millis::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX);
        let mut until = None;
        loop {
            let changed = watching.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let looked = self.0.at_once(|state| {
                let now = state.machine_time();
                let until = *until.get_or_insert(now.plus(wait));
                if now >= until || state.revision_of(&watching.name) != seen {
                    return Err(state.get(&watching.name));
                }
                let next = state
                    .end_of(&watching.name)
                    .map_or(until, |end| end.min(until));
                Ok(Duration::from_millis(next.since(now)))
            });
            let sleep = match looked {
                Err(record) => return Ok(record),
                // A wait longer than tokio can express has no end.
                Ok(sleep) => Instant::now().checked_add(sleep),
            };
            tokio::select! {
                () = changed => {}
                () = async {
                    match sleep {
                        Some(instant) => sleep_until(instant).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        let max = self.0.bytes_max;
        self.change(put.name.clone(), |state| state.put(put, max))
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.change(delete.name.clone(), |state| state.delete(&delete))
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let (dropped, max) = (self.0.clock.dropped(), self.0.bytes_max);
        self.change(lease.name.clone(), |state| state.lease(lease, dropped, max))
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let dropped = self.0.clock.dropped();
        self.change(extend.name.clone(), |state| state.extend(extend, dropped))
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.change(release.name.clone(), |state| state.release(&release))
    }
}

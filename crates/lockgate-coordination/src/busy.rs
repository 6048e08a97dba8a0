//! Which keys are being worked on, and by whom.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{
    Epoch, ExtendRecord, HolderName, Key, LeaseRecord, ListRecords, Millis, NameError, RecordName,
    Records, RecordsError, ReleaseRecord, WatchRecord,
};
use tokio::time::Instant;

use crate::{
    records::names::{candidate, holder},
    time::{Time, millis},
};

/// A registry of the keys that are being worked on, over any store of [`Records`]: any process asks whether a user is busy,
/// and with whom, claims one for itself, and gives it back. Clones are the same registry.
///
/// A claim is a lease. So a key whose worker has died is free when the lease ends, and not before, and whoever comes back late
/// is told that its claim is lost: it cannot give back the claim of another one. Each claim has a token that is higher than
/// that of every earlier claim of the key; give it to what the worker writes to, so that it can refuse a worker from before.
/// Nothing is left of a key that nobody works on.
///
/// ```
/// use std::time::Duration;
///
/// use lockgate_consumer::MemoryRecords;
/// use lockgate_coordination::{BusyRegistry, ClaimError};
/// use lockgate_core::{HolderName, Key};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = MemoryRecords::new();
/// let here = BusyRegistry::new(records.clone(), HolderName::new("host-1")?);
/// let there = BusyRegistry::new(records, HolderName::new("host-2")?);
/// let user = Key::new("user-42")?;
///
/// let claim = here.claim(&user, Duration::from_secs(10)).await?;
/// match there.claim(&user, Duration::from_secs(10)).await {
///     Err(ClaimError::Busy(busy)) => assert_eq!(busy.worker.as_str(), "host-1"),
///     other => panic!("{other:?}"),
/// }
/// here.release(claim).await?;
/// assert_eq!(there.who(&user).await?, None);
/// # Ok(())
/// # }
/// ```
pub struct BusyRegistry<S>(Arc<Inner<S>>);

struct Inner<S> {
    records: S,
    worker: HolderName,
    prefix: String,
    writer: u64,
    claims: AtomicU64,
    time: Time,
}

impl<S> Clone for BusyRegistry<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for BusyRegistry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusyRegistry")
            .field("worker", &self.0.worker)
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}

/// Who works on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Which key.
    pub key: Key,
    /// The name that the worker has given itself.
    pub worker: HolderName,
    /// The token of its claim.
    pub token: Epoch,
    /// How much longer the claim lasts, as of the answer.
    pub remaining: Duration,
}

/// A key that this worker has for itself. It is not given back when it is dropped: it ends with its lease.
#[derive(Debug)]
#[must_use = "a claim that is not given back keeps the key busy until its lease ends"]
pub struct Claim {
    key: Key,
    record: RecordName,
    token: Epoch,
    time: Time,
    ends: Millis,
}

impl Claim {
    /// Which key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Higher than that of every earlier claim of the key, as far as the store's epochs rise.
    #[must_use]
    pub fn token(&self) -> Epoch {
        self.token
    }

    /// How much longer it lasts at least: it counts from before it was asked for. Zero: stop.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Duration::from_millis(self.ends.saturating_sub(self.time.now()))
    }
}

/// Why a key was not claimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Somebody works on it.
    #[error("{} is busy with {} for another {} ms at most", .0.worker, .0.key, .0.remaining.as_millis())]
    Busy(Busy),
    /// The store says no, or nothing.
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl<S: Records> BusyRegistry<S> {
    /// The registry of that store, whose records have names that begin with `busy/`, for a worker of that name.
    pub fn new(records: S, worker: HolderName) -> Self {
        Self::with(records, worker, "busy/".to_owned())
    }

    /// One whose records have names that begin with this. All processes must have the same; those with another one have other
    /// keys.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self
    where
        S: Clone,
    {
        let (records, worker) = (self.0.records.clone(), self.0.worker.clone());
        Self::with(records, worker, prefix.to_owned())
    }

    fn with(records: S, worker: HolderName, prefix: String) -> Self {
        Self(Arc::new(Inner {
            records,
            worker,
            prefix,
            // Two writers with one number would take each other's claims for their own: each draws 64 random bits.
            writer: RandomState::new().hash_one(std::process::id()),
            claims: AtomicU64::new(0),
            time: Time::start(),
        }))
    }

    fn record(&self, key: &Key) -> Result<RecordName, RecordsError> {
        RecordName::new(&format!("{}{key}", self.0.prefix)).map_err(invalid)
    }

    /// Claims a key for so long: 1 ms to 12 hours. A second claim of this worker is told that the key is busy, too. If the
    /// answer is lost it asks once more.
    ///
    /// # Cancellation
    /// The key may be claimed, until the lease ends.
    ///
    /// # Errors
    /// [`ClaimError::Busy`]; `Invalid` for a key that is too long with the prefix (512 bytes) and a lease out of bounds; and
    /// what the store says.
    pub async fn claim(&self, key: &Key, lease: Duration) -> Result<Claim, ClaimError> {
        let record = self.record(key)?;
        let call = self.0.claims.fetch_add(1, Ordering::Relaxed);
        let holder = holder(&self.0.worker, self.0.writer, call).map_err(invalid)?;
        let ask = LeaseRecord {
            name: record.clone(),
            holder,
            lease: millis(lease),
            delete_at_end: true,
        };
        let mut asked = self.0.time.now();
        let mut answer = self.0.records.lease(ask.clone()).await;
        if matches!(answer, Err(RecordsError::Unknown { .. })) {
            asked = self.0.time.now();
            answer = self.0.records.lease(ask).await;
        }
        match answer {
            Ok(leased) => {
                let token = leased.lease.map(|lease| lease.epoch).unwrap_or_default();
                Ok(Claim {
                    key: key.clone(),
                    record,
                    token,
                    time: self.0.time.clone(),
                    ends: asked.saturating_add(whole(lease)),
                })
            }
            Err(held @ RecordsError::Held { .. }) => match self.who(key).await? {
                Some(busy) => Err(ClaimError::Busy(busy)),
                // It is free by now. Whoever wants it asks again.
                None => Err(RecordsError::Unavailable {
                    why: held.to_string(),
                }
                .into()),
            },
            Err(other) => Err(other.into()),
        }
    }

    /// Lets a claim last so long from now on.
    ///
    /// # Errors
    /// `LeaseLost`: somebody else may work on the key. `Invalid` for a lease out of bounds, and what the store says.
    pub async fn extend(&self, claim: &mut Claim, lease: Duration) -> Result<(), RecordsError> {
        let asked = self.0.time.now();
        let extend = ExtendRecord {
            name: claim.record.clone(),
            epoch: claim.token,
            lease: millis(lease),
        };
        self.0.records.extend(extend).await?;
        claim.ends = asked.saturating_add(whole(lease));
        Ok(())
    }

    /// Gives a key back.
    ///
    /// # Errors
    /// `LeaseLost`: the claim has ended, and somebody else may work on the key. What else the store says; then the key is free
    /// when the lease ends.
    pub async fn release(&self, claim: Claim) -> Result<(), RecordsError> {
        let release = ReleaseRecord {
            name: claim.record,
            epoch: claim.token,
        };
        self.0.records.release(release).await
    }

    /// Who works on a key; `None`: nobody.
    ///
    /// # Errors
    /// What the store says.
    pub async fn who(&self, key: &Key) -> Result<Option<Busy>, RecordsError> {
        let found = self.0.records.get(self.record(key)?).await?;
        Ok(found.and_then(|record| busy(key.clone(), record)))
    }

    /// Waits until nobody works on a key, for so long at most. Whether nobody does; by the time of the next claim somebody may.
    ///
    /// # Errors
    /// What the store says.
    pub async fn free(&self, key: &Key, wait: Duration) -> Result<bool, RecordsError> {
        let name = self.record(key)?;
        let until = Instant::now().checked_add(wait);
        loop {
            let found = self.0.records.get(name.clone()).await?;
            let Some(record) = found.filter(|record| record.lease.is_some()) else {
                return Ok(true);
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            let watch = WatchRecord {
                name: name.clone(),
                seen: Some(record.revision),
                wait: left.unwrap_or(Duration::MAX),
            };
            self.0.records.watch(watch).await?;
        }
    }

    /// Keys that are being worked on, in the order of their bytes, behind `after`: at most `limit`, 1 to 1,000. The next page is
    /// behind the last one of this; an empty page is the last.
    ///
    /// # Errors
    /// `Invalid` for a limit out of bounds, and what the store says.
    pub async fn busy(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Busy>, RecordsError> {
        let list = ListRecords {
            prefix: self.0.prefix.clone(),
            after: after.map(|after| self.record(after)).transpose()?,
            limit,
        };
        let page = self.0.records.list(list).await?;
        let keys = page.records.into_iter().filter_map(|record| {
            let key = record.name.as_str().strip_prefix(&self.0.prefix)?;
            busy(Key::new(key).ok()?, record)
        });
        Ok(keys.collect())
    }
}

/// Whole milliseconds, rounded down: what a claim lasts at least.
fn whole(lease: Duration) -> Millis {
    Millis::try_from(lease.as_millis()).unwrap_or(Millis::MAX)
}

fn invalid(error: NameError) -> RecordsError {
    let why = error.to_string();
    RecordsError::Invalid { why }
}

fn busy(key: Key, record: lockgate_core::Record) -> Option<Busy> {
    let lease = record.lease?;
    Some(Busy {
        key,
        worker: candidate(&lease.holder),
        token: lease.epoch,
        remaining: lease.remaining,
    })
}

//! Elections over a store of records.

pub(crate) mod names;
mod standing;
mod tenure;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{
    Clock, ElectionName, Epoch, HolderName, ListRecords, PutRecord, Record, Records, RecordsError,
    WatchRecord,
    coordination::{
        AskToResign, CHECKPOINT_BYTES_MAX, Campaign, CoordinationError, Coordinator,
        CoordinatorCapabilities, ElectionState, Leader, Observe,
    },
};
use tokio::{sync::watch, time::Instant};

pub use self::tenure::RecordsTenure;
use self::{
    names::{Kind, Names, candidate},
    standing::Standing,
};
use crate::{
    chronicle::{Asked, Chronicle, HISTORY_MAX},
    time::{Time, drawn},
};

/// How long one watch lasts, after which the caller looks again. A store that is embedded keeps a watch that is given up
/// for so long at most.
const WATCH: Duration = Duration::from_secs(300);

/// How often a request to resign is written again when another one was before it.
const ASKS_MAX: u32 = 10;

/// A [`Coordinator`] over a store of [`Records`]: `MemoryRecords` within a process, an embedded `Lockgate`, or a
/// `lockgate::client::Client` of a server. Clones are the same coordinator.
///
/// Candidates lead in the order in which they came, and the end of a term wakes one of them. A term costs the store six
/// changes, however many stand. Each candidate makes its place last longer every third of its lease, which is a change of
/// the store too.
///
/// Epochs rise for ever, as those of records do, unless the store's
/// [`capabilities`](lockgate_core::Records::capabilities) say otherwise.
pub struct RecordsCoordinator<S>(Arc<Inner<S>>);

pub(crate) struct Inner<S> {
    pub(crate) records: S,
    prefix: String,
    writer: u64,
    calls: AtomicU64,
    pub(crate) time: Time,
    /// How many leases are on their way back to the store.
    pub(crate) leaving: watch::Sender<usize>,
}

impl<S> Clone for RecordsCoordinator<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for RecordsCoordinator<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordsCoordinator")
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}

impl<S: Records + 'static> RecordsCoordinator<S> {
    /// A coordinator over that store, whose records have names that begin with `election/` and `lock/`.
    #[must_use]
    pub fn new(records: S) -> Self {
        Self::with(records, String::new(), Time::start())
    }

    fn with(records: S, prefix: String, time: Time) -> Self {
        // Two writers with one number would take each other's leases for their own: each draws 64 random bits.
        let writer = drawn();
        Self(Arc::new(Inner {
            records,
            prefix,
            writer,
            calls: AtomicU64::new(0),
            time,
            leaving: watch::Sender::new(0),
        }))
    }
}

impl<S: Records + Clone + 'static> RecordsCoordinator<S> {
    /// One whose records have names that begin with this. All processes must have the same; those with another one have
    /// other elections.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self::with(
            self.0.records.clone(),
            prefix.to_owned(),
            self.0.time.clone(),
        )
    }

    /// One whose leaders count their leases by that clock, for tests. Call [`clock_changed`](Self::clock_changed) when
    /// somebody has set it.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self::with(
            self.0.records.clone(),
            self.0.prefix.clone(),
            Time::by(clock),
        )
    }
}

impl<S> RecordsCoordinator<S> {
    /// The store over which it elects, such as for a [registry of busy keys](crate::BusyRegistry).
    #[must_use]
    pub fn records(&self) -> &S {
        &self.0.records
    }

    /// Looks at the clock anew: it has been set.
    pub fn clock_changed(&self) {
        self.0.time.clock_changed();
    }
}

impl<S: Records + 'static> Coordinator for RecordsCoordinator<S> {
    type Tenure = RecordsTenure<S>;

    fn capabilities(&self) -> CoordinatorCapabilities {
        let of_store = self.0.records.capabilities();
        let mut capabilities = CoordinatorCapabilities::NONE;
        capabilities.epochs_last = of_store.lasts;
        capabilities.is_fair = true;
        capabilities.wakes = of_store.wakes;
        capabilities.can_ask = true;
        capabilities.history_max = HISTORY_MAX;
        capabilities.checkpoint_bytes_max = CHECKPOINT_BYTES_MAX;
        capabilities
    }

    async fn campaign(&self, campaign: Campaign) -> Result<RecordsTenure<S>, CoordinationError> {
        Standing::new(self.0.clone(), Kind::Election, campaign)?
            .run()
            .await
    }

    async fn lock(&self, campaign: Campaign) -> Result<RecordsTenure<S>, CoordinationError> {
        Standing::new(self.0.clone(), Kind::Lock, campaign)?
            .run()
            .await
    }

    async fn observe(&self, observe: Observe) -> Result<ElectionState, CoordinationError> {
        let names = self.0.names(Kind::Election, &observe.election)?;
        let until = Instant::now().checked_add(observe.wait);
        loop {
            let term = self.0.read(&names).await?;
            let left = match until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => WATCH,
            };
            let leads = term.as_ref().and_then(|term| term.lease.as_ref());
            if leads.map(|lease| lease.epoch) != observe.seen || left.is_zero() {
                let places = self.0.places(&names).await.map_err(error)?;
                return state(&names, term, &places);
            }
            let watch = WatchRecord {
                name: names.term.clone(),
                seen: term.map(|term| term.revision),
                wait: left.min(WATCH),
            };
            self.0.records.watch(watch).await.map_err(error)?;
        }
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, CoordinationError> {
        let prefix = names::terms(&self.0.prefix);
        let terms = self.0.list(&prefix).await.map_err(error)?;
        let names = terms
            .iter()
            .map(|record| &record.name.as_str()[prefix.len()..]);
        // A record that somebody has made under such a name is none of an election.
        Ok(names
            .filter_map(|name| ElectionName::new(name).ok())
            .collect())
    }

    async fn left(&self) {
        let mut leaving = self.0.leaving.subscribe();
        // The sender lives as long as this.
        let _ = leaving.wait_for(|leaving| *leaving == 0).await;
    }

    async fn ask_to_resign(&self, ask: AskToResign) -> Result<(), CoordinationError> {
        let names = self.0.names(Kind::Election, &ask.election)?;
        let asked = Asked {
            epoch: ask.epoch.0,
            by: ask.by.as_str().to_owned(),
        };
        let value = serde_json::to_vec(&asked).unwrap_or_default();
        let over = || CoordinationError::Over {
            election: ask.election.clone(),
            epoch: ask.epoch,
        };
        for _ in 0..ASKS_MAX {
            let term = self.0.read(&names).await?.and_then(|term| term.lease);
            let Some(leads) = term.filter(|lease| lease.epoch == ask.epoch) else {
                return Err(over());
            };
            let places = self.0.places(&names).await.map_err(error)?;
            if !ask.even_if_alone && places.iter().all(|place| place.holder == leads.holder) {
                let election = ask.election.clone();
                return Err(CoordinationError::NoSuccessor { election });
            }
            let before = self.0.records.get(names.ask.clone()).await.map_err(error)?;
            // A later term has begun since, and its leader has a request to hear.
            let later = |record: &Record| {
                let asked = serde_json::from_slice::<Asked>(&record.value);
                asked.is_ok_and(|asked| asked.epoch > ask.epoch.0)
            };
            if before.as_ref().is_some_and(later) {
                return Err(over());
            }
            let put = PutRecord {
                name: names.ask.clone(),
                value: value.clone().into(),
                replaces: before.map(|record| record.version),
                epoch: None,
            };
            match self.0.records.put(put).await {
                Ok(_) => return Ok(()),
                Err(RecordsError::Conflict { .. }) => {}
                Err(other) => return Err(error(other)),
            }
        }
        let why = format!("{ASKS_MAX} other requests to resign came in between");
        Err(CoordinationError::Unavailable { why })
    }
}

/// A candidate in the line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) holder: HolderName,
    pub(crate) epoch: Epoch,
    pub(crate) record: Record,
}

impl<S> Inner<S> {
    pub(crate) fn names(
        &self,
        kind: Kind,
        election: &ElectionName,
    ) -> Result<Names, CoordinationError> {
        Ok(Names::new(&self.prefix, kind, election)?)
    }

    fn next_holder(&self, candidate: &HolderName) -> Result<HolderName, CoordinationError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(names::holder(candidate, self.writer, call)?)
    }
}

impl<S: Records + 'static> Inner<S> {
    pub(crate) async fn read(&self, names: &Names) -> Result<Option<Record>, CoordinationError> {
        let read = self.records.get(names.term.clone()).await;
        read.map_err(error)
    }

    /// The line, in order. Its pages need not be of one instant: whoever comes meanwhile stands behind all others.
    pub(crate) async fn places(&self, names: &Names) -> Result<Vec<Place>, RecordsError> {
        let line = self.list(&names.line).await?.into_iter();
        let places = line.filter(|it| names.is_place(it)).filter_map(|record| {
            let lease = record.lease.as_ref()?;
            Some(Place {
                holder: lease.holder.clone(),
                epoch: lease.epoch,
                record,
            })
        });
        let mut places: Vec<Place> = places.collect();
        places.sort_by_key(|place| place.epoch);
        Ok(places)
    }

    /// All records whose names begin with that.
    async fn list(&self, prefix: &str) -> Result<Vec<Record>, RecordsError> {
        let (mut records, mut after) = (Vec::new(), None);
        loop {
            let list = ListRecords {
                prefix: prefix.to_owned(),
                after: after.take(),
                limit: ListRecords::LIMIT_MAX,
            };
            let page = self.records.list(list).await?;
            records.extend(page.records);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }
}

fn state(
    names: &Names,
    term: Option<Record>,
    places: &[Place],
) -> Result<ElectionState, CoordinationError> {
    let (lease, chronicle) = match term {
        Some(record) => (record.lease, decode(names, &record.value)?),
        None => (None, Chronicle::default()),
    };
    let holder = lease.as_ref().map(|lease| lease.holder.clone());
    let leader = lease.map(|lease| Leader {
        name: candidate(&lease.holder),
        epoch: lease.epoch,
        began: (chronicle.term.as_ref())
            .filter(|term| term.epoch == lease.epoch)
            .map(|term| term.began),
        remaining: lease.remaining,
    });
    let stand = places
        .iter()
        .filter(|place| Some(&place.holder) != holder.as_ref());
    Ok(ElectionState {
        candidates: stand.map(|place| candidate(&place.holder)).collect(),
        last_checkpoint: chronicle.checkpoint.clone(),
        history: chronicle.history(leader.as_ref().map(|leader| leader.epoch)),
        leader,
    })
}

pub(crate) fn decode(names: &Names, value: &[u8]) -> Result<Chronicle, CoordinationError> {
    Chronicle::decode(value).map_err(|why| CoordinationError::Damaged {
        election: names.election.clone(),
        why: format!("record {}: {why}", names.term),
    })
}

/// What the store says, in the words of a coordinator.
pub(crate) fn error(error: RecordsError) -> CoordinationError {
    let why = error.to_string();
    match error {
        RecordsError::Invalid { .. } => CoordinationError::Invalid { why },
        RecordsError::Unknown { .. } => CoordinationError::Unknown { why },
        // It may be otherwise the next time.
        _ => CoordinationError::Unavailable { why },
    }
}

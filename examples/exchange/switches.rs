//! How long orders stand still when another sequencer becomes the active one.
//!
//! The records of the election say who is active, so the driver knows whose term it ends, and how. The ledger says how
//! long nothing was sequenced then: each event has the epoch of its term, and a time.

use std::{collections::BTreeMap, time::Duration};

use lockgate::{
    ElectionName, Epoch, HolderName, WallTime,
    client::{Client, Endpoint},
    coordination::{AskToResign, Coordinator as _, ElectionState, Observe, RecordsCoordinator},
    sequencer::ledger::Event,
};
use serde_json::{Value, json};

/// How long an answer may take.
const WITHIN: Duration = Duration::from_millis(500);

/// How a term ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Planned,
    Killed,
}

pub(crate) struct Switches {
    records: RecordsCoordinator<Client>,
    election: ElectionName,
    /// Terms that the driver has ended.
    ended: BTreeMap<Epoch, End>,
    last: Option<(Epoch, WallTime)>,
    /// For each such term: how long there was no event behind its last one.
    still: Vec<(End, u64)>,
}

impl Switches {
    pub(crate) async fn new(endpoint: Endpoint, election: &str) -> anyhow::Result<Self> {
        let client = Client::builder(endpoint).build().await?;
        Ok(Self {
            records: RecordsCoordinator::new(client),
            election: ElectionName::new(election)?,
            ended: BTreeMap::new(),
            last: None,
            still: Vec::new(),
        })
    }

    /// Who is active and who stands by, if that can be said now.
    pub(crate) async fn look(&self) -> Option<ElectionState> {
        let observe = Observe {
            election: self.election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        let state = tokio::time::timeout(WITHIN, self.records.observe(observe)).await;
        state.ok()?.ok()
    }

    /// Asks the active one of that term to hand over. False: it cannot be asked, or nobody stands by.
    pub(crate) async fn ask(&self, epoch: Epoch) -> anyhow::Result<bool> {
        let ask = AskToResign {
            election: self.election.clone(),
            epoch,
            by: HolderName::new("driver")?,
            even_if_alone: false,
        };
        let asked = tokio::time::timeout(WITHIN, self.records.ask_to_resign(ask)).await;
        Ok(matches!(asked, Ok(Ok(_))))
    }

    /// The driver has ended that term, and harms nothing else until the next one has events.
    pub(crate) fn ended(&mut self, epoch: Epoch, end: End) {
        self.ended.insert(epoch, end);
    }

    /// Looks at the next event of the ledger.
    pub(crate) fn follow(&mut self, event: &Event) {
        if let Some((epoch, time)) = self.last.replace((event.epoch, event.time))
            && epoch != event.epoch
            && let Some(end) = self.ended.get(&epoch)
        {
            self.still.push((*end, event.time.0.saturating_sub(time.0)));
        }
    }

    /// The median and the longest time, of planned switches and of those after a kill.
    pub(crate) fn figures(&self) -> Value {
        let of = |end| {
            let still = self.still.iter().filter(|(it, _)| *it == end);
            let mut still: Vec<u64> = still.map(|(_, time)| *time).collect();
            still.sort_unstable();
            let median = still.get(still.len().saturating_sub(1) / 2);
            json!({"count": still.len(), "median": median, "max": still.last()})
        };
        json!({"planned": of(End::Planned), "killed": of(End::Killed)})
    }
}

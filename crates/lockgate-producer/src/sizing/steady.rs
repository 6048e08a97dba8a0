//! The long run: how many records wait at a stage if what comes to it never changes.

use super::Stage;

/// As close to its capacity as this, a stage's queue has no mean that could be told from infinity.
const CRITICAL: f64 = 1e-9;

/// So rarely a buffer that is large enough overflows: once in a thousand times.
pub(super) const RARE: f64 = 0.001;

/// What comes to a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Inflow {
    /// Records a second.
    pub(super) rate: f64,
    /// Squared coefficient of variation of the time between two arrivals.
    pub(super) variability: f64,
    /// How many records come at the same time, as one of them sees it; 1 or more.
    pub(super) bulk: f64,
}

/// How a stage that is not overloaded fares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Queue {
    /// Records that wait, on average.
    pub(super) mean: f64,
    /// Share of time in which all workers are busy.
    pub(super) busy: f64,
    outflow: Inflow,
}

impl Inflow {
    /// How much the number that comes in a long time varies, against its mean.
    pub(super) fn dispersion(self) -> f64 {
        self.variability * self.bulk
    }

    /// What leaves the stage; `queue` is its long run if it has one.
    pub(super) fn behind(self, stage: &Stage, queue: Option<&Queue>) -> Self {
        match queue {
            Some(queue) => queue.outflow,
            // All workers work all the time.
            None => Self {
                rate: stage.capacity(),
                variability: departures(1.0, 1.0, stage),
                bulk: stage.batch.into(),
            },
        }
    }
}

impl Queue {
    /// The long run, if there is one: if less comes than the stage takes.
    ///
    /// Calls take up to b records. As long as all c workers are busy, the number that waits rises by one with each arrival
    /// and falls by up to b with each end of a call, so it is geometric with the root r of
    /// cμ (r + r² + ... + r^b) = λ. Where a worker is free, each arrival begins a call: the chain is Erlang's there.
    pub(super) fn of(stage: &Stage, inflow: Inflow) -> Option<Self> {
        let load = inflow.rate / stage.capacity();
        if load > 1.0 - CRITICAL {
            return None;
        }
        let (workers, batch) = (f64::from(stage.workers), f64::from(stage.batch));
        // Calls that would be under way if each record took one.
        let offered = inflow.rate * stage.call_seconds();
        // 1 - r: near 1 it keeps more digits than r.
        let falls = falls(batch, offered / workers);
        let rises = 1.0 - falls;
        let blocked = (1..=stage.workers).fold(1.0, |blocked, worker| {
            let more = offered * blocked;
            more / (f64::from(worker) + more)
        });
        let busy = blocked / (blocked + falls * (1.0 - blocked));
        // A record that finds all workers busy waits until the next call ends, and through a call for each batch before it.
        let rest = rest(batch, falls);
        let next_end = busy * offered / workers;
        let before = next_end * (1.0 - rest) / rest;
        let (arrivals, calls) = (inflow.variability, stage.variability);
        let mean = next_end * f64::midpoint(1.0 + (arrivals - 1.0) / batch, calls)
            + before * (arrivals + batch * calls) / (1.0 + batch)
            + in_bulk(inflow.bulk, stage, load) * inflow.rate;

        let working = offered * (1.0 - busy) + workers * busy * rises;
        let outflow = Inflow {
            rate: inflow.rate,
            variability: departures(working / workers, inflow.dispersion(), stage),
            bulk: company(stage, inflow.rate, busy, falls),
        };
        // So much of a bulk finds a worker at once.
        let alone = workers * batch / inflow.bulk;
        Some(Self {
            mean,
            busy: busy.max(1.0 - alone),
            outflow,
        })
    }

    /// The number that is exceeded with a probability of [`RARE`]: the queue is taken to be geometric.
    pub(super) fn rare(&self) -> f64 {
        if self.busy <= RARE || self.mean <= 0.0 {
            return 0.0;
        }
        let waiting = self.mean / self.busy;
        let ratio = waiting / (1.0 + waiting);
        ((RARE / self.busy).ln() / ratio.ln() - 1.0).max(0.0)
    }
}

/// The share by which each longer queue is rarer than the one before: 1 - r for the root r of r + r² + ... + r^batch = load,
/// where load is below batch.
fn falls(batch: f64, load: f64) -> f64 {
    let sum = |falls: f64| (1.0 - falls) * rest(batch, falls) / falls;
    // The sum falls from batch to 0. Each step halves the rest, until there is no number between.
    let (mut low, mut high) = (0.0, 1.0);
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return high;
        }
        if sum(middle) > load {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// 1 - r^batch, also where r is next to 1.
fn rest(batch: f64, falls: f64) -> f64 {
    -(batch * (-falls).ln_1p()).exp_m1()
}

/// How many records are in the batch that a record is in, on average over records.
fn company(stage: &Stage, rate: f64, busy: f64, falls: f64) -> f64 {
    if stage.batch == 1 {
        return 1.0;
    }
    // An arrival that finds a free worker goes alone. A worker that ends takes what waits, up to a batch.
    let ends = busy * f64::from(stage.workers) / stage.call_seconds();
    let mut sum = rate * (1.0 - busy);
    let mut at_least = 1.0;
    for size in 1..stage.batch {
        at_least *= 1.0 - falls;
        sum += ends * at_least * falls * f64::from(size).powi(2);
    }
    at_least *= 1.0 - falls;
    sum += ends * at_least * f64::from(stage.batch).powi(2);
    (sum / rate).max(1.0)
}

/// How irregularly calls end (Whitt 1983, equation 39).
fn departures(working: f64, dispersion: f64, stage: &Stage) -> f64 {
    let load = working.powi(2);
    let calls = (stage.variability - 1.0) / f64::from(stage.workers).sqrt();
    (1.0 + (1.0 - load) * (dispersion - 1.0) + load * calls).max(0.0)
}

/// Seconds that a record waits for those that came at the same time and before it, beyond those that find a worker.
fn in_bulk(bulk: f64, stage: &Stage, load: f64) -> f64 {
    let beyond = bulk - f64::from(stage.workers) * f64::from(stage.batch);
    if beyond <= 0.0 {
        return 0.0;
    }
    beyond * (beyond + 1.0) / (2.0 * bulk * stage.capacity() * (1.0 - load))
}

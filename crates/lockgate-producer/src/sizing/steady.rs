//! The long run: how many records wait at a stage if what comes to it never changes.

use super::{
    Stage,
    report::{below, density},
};

/// As close to its capacity as this, a stage's queue has no mean that could be told from infinity.
const CRITICAL: f64 = 1e-9;

/// So rarely a buffer that is large enough overflows: once in a thousand times.
pub(super) const RARE: f64 = 0.001;

/// What comes to a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Inflow {
    /// Records a second.
    pub(super) rate: f64,
    /// Squared coefficient of variation of the time between two arrivals, over a long time.
    pub(super) variability: f64,
    pub(super) clumps: Clumps,
}

/// How records come together because a stage before took them together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clumps {
    /// Records that leave the last stage in one batch: as one of them sees it, and on average over batches. 1 or more.
    size: f64,
    mean: f64,
    /// Records that left an earlier stage in one batch and come one after the other, so many of them a second.
    flood: f64,
    pace: f64,
    /// How much the number that comes in a short time varies, against its mean.
    dispersion: f64,
    /// For so many seconds what comes is as irregular as that. Later fewer come after many, because the stages before have
    /// no more: then it is as irregular as what came to them.
    seconds: f64,
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

/// A stage is settled after so many times its mean batch of work and of arrivals, by load left and squared. It is fitted to
/// simulations, as is [`SHARE_OF_MEAN`].
const SETTLING: f64 = 1.3;

/// How much the mean batch counts in the size of a clump, against the one that a record sees.
const SHARE_OF_MEAN: f64 = 0.8;

/// Longer than anything lasts.
const FOR_EVER: f64 = 1e18;

impl Inflow {
    /// Records that come one by one.
    pub(super) fn singly(rate: f64, variability: f64) -> Self {
        Self {
            rate,
            variability,
            clumps: Clumps {
                size: 1.0,
                mean: 1.0,
                flood: 1.0,
                pace: FOR_EVER,
                dispersion: variability,
                seconds: 0.0,
            },
        }
    }

    /// How much the number that comes in such a time varies, against its mean.
    pub(super) fn dispersion(self, seconds: f64) -> f64 {
        let Clumps {
            dispersion,
            seconds: lasting,
            ..
        } = self.clumps;
        let share = if lasting > 0.0 {
            lasting / (lasting + seconds)
        } else {
            0.0
        };
        self.variability + (dispersion - self.variability) * share
    }

    /// What leaves the stage; `queue` is its long run if it has one.
    pub(super) fn behind(self, stage: &Stage, queue: Option<&Queue>) -> Self {
        match queue {
            Some(queue) => queue.outflow,
            // All workers work all the time.
            None => {
                let batch = f64::from(stage.batch);
                let variability = departures(1.0, 1.0, stage);
                Self {
                    rate: stage.capacity(),
                    variability,
                    clumps: Clumps {
                        size: batch,
                        mean: batch,
                        flood: batch,
                        pace: FOR_EVER,
                        dispersion: batch * variability,
                        seconds: FOR_EVER,
                    },
                }
            }
        }
    }
}

impl Queue {
    /// The long run, if there is one: if less comes than the stage takes.
    ///
    /// Calls take up to b records. As long as all c workers are busy, the number that waits rises by one with each arrival
    /// and falls by up to b with each end of a call, so it is geometric with the root r of
    /// cμ (r + r² + ... + r^b) = λ. Where a worker is free, each arrival begins a call: the chain is Erlang's there.
    ///
    /// Records that come together are one arrival, of up to a batch. What they have beyond that waits besides.
    pub(super) fn of(stage: &Stage, inflow: Inflow) -> Option<Self> {
        let load = inflow.rate / stage.capacity();
        if load > 1.0 - CRITICAL {
            return None;
        }
        let (workers, batch) = (f64::from(stage.workers), f64::from(stage.batch));
        let clumps = inflow.clumps;
        let clump = clumps.mean.powf(SHARE_OF_MEAN) * clumps.size.powf(1.0 - SHARE_OF_MEAN);
        let clump = clump.min(batch);
        // What comes through a stage that is hardly faster than this one is no flood.
        let together = (1.0 - stage.capacity() / clumps.pace).max(0.0);
        let flood = clumps.size + (clumps.flood - clumps.size) * together;
        let settled = SETTLING * (1.0 + batch) / (stage.capacity() * (1.0 - load).powi(2));
        let lasting = clumps.seconds / (clumps.seconds + settled);
        // From here on in clumps.
        let variability = inflow.variability;
        let irregular = clump + (clumps.dispersion - f64::midpoint(flood, clumps.flood)).max(0.0);
        let arrivals = (variability + (irregular - variability) * lasting) / clump;
        let (batch, rate) = (batch / clump, inflow.rate / clump);
        // Calls that would be under way if each took one.
        let offered = rate * stage.call_seconds();
        // 1 - r: near 1 it keeps more digits than r.
        let falls = falls(batch, offered / workers);
        let rises = 1.0 - falls;
        let blocked = (1..=stage.workers).fold(1.0, |blocked, worker| {
            let more = offered * blocked;
            more / (f64::from(worker) + more)
        });
        let busy = blocked / (blocked + falls * (1.0 - blocked));
        // One that finds all workers busy waits until the next call ends, and through a call for each batch before it.
        let rest = rest(batch, falls);
        let next_end = busy * offered / workers;
        let before = next_end * (1.0 - rest) / rest;
        let calls = stage.variability;
        let waiting = next_end * f64::midpoint(1.0 + (arrivals - 1.0) / batch, calls)
            + before * (arrivals + batch * calls) / (1.0 + batch);
        // What came together waits for each other where it finds too few free workers, and for others as long as it goes on
        // like that. The first of its batches is counted above.
        let batches = (flood / f64::from(stage.batch)).max(1.0);
        let free = (workers * (1.0 - load)).max(1.0);
        let spread = (workers * load * (1.0 - load) + batches.powi(2) / 4.0)
            * (1.0 - 1.0 / batches)
            * (1.0 - 1.0 / free);
        let spread = spread.sqrt();
        let (beyond, squared) = above(batches - free, spread);
        let besides =
            load * (beyond + squared) / (2.0 * batches) * (1.0 + lasting * load / (1.0 - load));
        let mean = clump * waiting + f64::from(stage.batch) * besides;

        let working = offered * (1.0 - busy) + workers * busy * rises;
        let ends = busy * workers / stage.call_seconds();
        let taken = Taken::of(rate * (1.0 - busy), ends, batch, falls);
        let through = |dispersion: f64| 1.0 + (1.0 - load.powi(2)) * (dispersion - 1.0);
        let stay = mean / inflow.rate + stage.call_seconds();
        let later = clumps.seconds + stay;
        let clumps = match stage.batch {
            1 => Clumps {
                size: 1.0,
                mean: 1.0,
                flood: clumps.flood.max(clumps.size),
                pace: clumps.pace.min(stage.capacity()),
                dispersion: through(clumps.dispersion),
                seconds: if clumps.seconds > 0.0 { later } else { 0.0 },
            },
            _ => {
                let size = (taken.squares * clump / rate).max(1.0);
                let inherited = variability + (clumps.dispersion - variability) * lasting;
                let inherited = through(inherited);
                Clumps {
                    size,
                    mean: (inflow.rate / taken.batches).clamp(1.0, size),
                    flood: clumps.flood.max(size),
                    pace: match size >= clumps.flood {
                        true => FOR_EVER,
                        false => clumps.pace.min(stage.capacity()),
                    },
                    dispersion: size.max(inherited),
                    seconds: if size >= inherited { stay } else { later },
                }
            }
        };
        // So much of what comes together finds a worker at once.
        let alone = workers * f64::from(stage.batch) / flood;
        Some(Self {
            mean,
            busy: busy.max(1.0 - alone),
            outflow: Inflow {
                rate: inflow.rate,
                variability: departures(working / workers, variability, stage),
                clumps,
            },
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

/// Batches that a stage takes in a second.
struct Taken {
    batches: f64,
    /// The sum of the squares of their sizes.
    squares: f64,
}

impl Taken {
    /// One that finds a free worker goes alone. A worker that ends takes what waits, up to a batch.
    fn of(alone: f64, ends: f64, batch: f64, falls: f64) -> Self {
        let (mut batches, mut squares) = (alone, alone);
        let (mut at_least, mut size) = (1.0 - falls, 1.0);
        while size < batch {
            let of_size = ends * at_least * falls;
            batches += of_size;
            squares += of_size * size.powi(2);
            at_least *= 1.0 - falls;
            size += 1.0;
        }
        Self {
            batches: batches + ends * at_least,
            squares: squares + ends * at_least * batch.powi(2),
        }
    }
}

/// The mean of what is above 0, and of its square, of a normally distributed number.
fn above(mean: f64, deviation: f64) -> (f64, f64) {
    if deviation <= 0.0 {
        let above = mean.max(0.0);
        return (above, above.powi(2));
    }
    let (density, below) = (density(mean / deviation), below(mean / deviation));
    let first = mean * below + deviation * density;
    let second = (mean.powi(2) + deviation.powi(2)) * below + mean * deviation * density;
    (first.max(0.0), second.max(0.0))
}

/// How irregularly calls end (Whitt 1983, equation 39).
fn departures(working: f64, dispersion: f64, stage: &Stage) -> f64 {
    let load = working.powi(2);
    let calls = (stage.variability - 1.0) / f64::from(stage.workers).sqrt();
    (1.0 + (1.0 - load) * (dispersion - 1.0) + load * calls).max(0.0)
}

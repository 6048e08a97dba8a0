//! The same pipeline, record by record.

use std::{cmp::Reverse, collections::BinaryHeap};

use serde::Serialize;

use super::{Drain, Model, Report, SizingError, Stage, float};

/// Events that a simulation may have: arrivals and ends of calls.
const STEPS_MAX: u64 = 200_000_000;

/// How long and how often to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Simulation {
    /// Everything that is random follows from it.
    pub seed: u64,
    /// Records that arrive while the long run is measured, after a tenth of them. Default: 1,000,000.
    pub records: u32,
    /// How often burst and outage are tried. Default: 20.
    pub runs: u32,
}

/// What a simulated stage did: averages over time in the long run, and over runs of burst and outage. `None` is what was
/// not simulated: there is no long run where a stage is overloaded, and nothing but the long run without burst and outage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SimulatedStage {
    /// Its name.
    pub name: String,
    /// Records that its workers take in a second, in the long run, or until [`Report::watched_seconds`] where a stage is
    /// overloaded.
    pub takes_per_second: f64,
    /// Records that wait in the long run.
    pub queue: Option<f64>,
    /// Seconds that a record waits in the long run.
    pub wait_seconds: Option<f64>,
    /// Records that wait after [`Report::watched_seconds`].
    pub depth_at_end: Option<f64>,
    /// The most that wait, from the begin of burst and outage until all is as it was.
    pub peak: Option<f64>,
    /// Seconds from their begin until its buffer overflows, of the runs in which it does.
    pub overflows_after_seconds: Option<f64>,
    /// Share of runs in which its buffer overflows.
    pub overflows: Option<f64>,
    /// Seconds from their end until no more wait than in the long run, here and in all stages before.
    pub drains_after_seconds: Option<f64>,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            seed: 1,
            records: 1_000_000,
            runs: 20,
        }
    }
}

impl Simulation {
    /// The defaults, with a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }
}

/// Simulates a pipeline: first the long run, then burst and outage again and again, each when all is as it was. A stage
/// that is overloaded has no long run; all begins with empty buffers then, and is followed for
/// [`Report::watched_seconds`].
///
/// During an outage calls that are under way stand still too. What differs from one call or arrival to the next is drawn
/// from an exponential distribution for a variability of 1, and from those with the same two moments otherwise (Henk Tijms,
/// *Stochastic Models: An Algorithmic Approach*, 1994, page 358).
///
/// It takes a second or so for each ten million records and stages.
///
/// # Errors
/// A value of the model is out of its range, or there is too much to do: more than 200 million arrivals and ends of calls.
/// Where the rates tell that, it says so before it begins.
pub fn simulate(model: &Model, options: Simulation) -> Result<Vec<SimulatedStage>, SizingError> {
    let report = model.report()?;
    let stable = report.stages.iter().all(|stage| stage.utilisation < 1.0);
    if expected_steps(model, &report, options, stable) > float(STEPS_MAX) {
        return Err(SizingError::TooManySteps(STEPS_MAX));
    }
    let mut world = World::new(model, options.seed);
    let settling = options.records / 10;
    if stable {
        world.arrivals(settling)?;
        world.measure();
        world.arrivals(options.records)?;
    }
    let mut stages: Vec<_> = world.measured(stable).into_iter().map(Tried::new).collect();
    let end = report.watched_seconds;
    if end == 0.0 {
        return Ok(stages.into_iter().map(|stage| stage.done).collect());
    }
    for _ in 0..options.runs {
        if stable {
            world.arrivals(settling)?;
        } else {
            world.empty();
        }
        world.events();
        world.until(end)?;
        for (stage, tank) in stages.iter_mut().zip(&world.tanks) {
            stage.at_end += float(tank.waiting);
        }
        if stable {
            let drained = stages.iter().map(|stage| stage.done.queue);
            let drained: Vec<_> = drained.map(Option::unwrap_or_default).collect();
            world.until_drained(&drained)?;
        }
        for (stage, tank) in stages.iter_mut().zip(&world.tanks) {
            stage.run(tank, end, stable);
        }
    }
    Ok(stages.into_iter().map(|stage| stage.average(end)).collect())
}

/// How many steps a simulation takes at least, by the mean rates.
fn expected_steps(model: &Model, report: &Report, options: Simulation, stable: bool) -> f64 {
    let rate = model.arrivals_per_second;
    let settling = f64::from(options.records / 10);
    let end = report.watched_seconds;
    let runs = f64::from(options.runs);
    let more = model
        .burst
        .map_or(0.0, |it| rate * (it.times - 1.0) * it.seconds);
    if !stable {
        // How many calls end is not told by what arrives.
        return runs * (rate * end + more);
    }
    // Each call takes a full batch at most.
    let calls: f64 = (model.stages.iter())
        .map(|stage| 1.0 / f64::from(stage.batch))
        .sum();
    let drains = report.stages.iter().map(|stage| match stage.drains {
        Drain::AfterSeconds(seconds) => seconds,
        _ => 0.0,
    });
    let drains = drains.fold(0.0, f64::max);
    let of_run = settling + rate * (end + drains) + more;
    let runs = if end > 0.0 { runs } else { 0.0 };
    (settling + f64::from(options.records) + runs * of_run) * (1.0 + calls)
}

/// Sums over runs.
struct Tried {
    done: SimulatedStage,
    runs: u32,
    /// Records that were taken, where there is no long run.
    taken: Option<u64>,
    at_end: f64,
    peak: f64,
    overflows: u32,
    overflow_seconds: f64,
    drain_seconds: Option<f64>,
}

impl Tried {
    fn new(done: SimulatedStage) -> Self {
        Self {
            taken: done.queue.is_none().then_some(0),
            done,
            runs: 0,
            at_end: 0.0,
            peak: 0.0,
            overflows: 0,
            overflow_seconds: 0.0,
            drain_seconds: None,
        }
    }

    fn run(&mut self, tank: &Tank, end: f64, stable: bool) {
        self.runs += 1;
        if let Some(taken) = &mut self.taken {
            *taken += tank.taken;
        }
        self.peak += float(tank.peak);
        if let Some(seconds) = tank.overflowed {
            self.overflows += 1;
            self.overflow_seconds += seconds;
        }
        if stable {
            let seconds = tank.drained.map_or(0.0, |at| at - end);
            *self.drain_seconds.get_or_insert(0.0) += seconds;
        }
    }

    fn average(self, end: f64) -> SimulatedStage {
        let runs = f64::from(self.runs.max(1));
        let overflows = f64::from(self.overflows);
        let taken = self.taken.map(|taken| float(taken) / (runs * end));
        SimulatedStage {
            takes_per_second: taken.unwrap_or(self.done.takes_per_second),
            depth_at_end: Some(self.at_end / runs),
            peak: Some(self.peak / runs),
            overflows: Some(overflows / runs),
            overflows_after_seconds: (self.overflows > 0)
                .then(|| self.overflow_seconds / overflows),
            drains_after_seconds: self.drain_seconds.map(|seconds| seconds / runs),
            ..self.done
        }
    }
}

/// What happens next: the earliest first.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrival,
    /// A call of that stage ends, with so many records.
    End(usize, u32),
    /// The outage is over.
    Resume,
}

struct Timed {
    at: f64,
    step: Step,
}

struct Tank {
    waiting: u64,
    idle: u32,
    stands: bool,
    /// Records times seconds, and records taken, since the measurement began.
    waited: f64,
    taken: u64,
    changed: f64,
    /// Since burst and outage began.
    peak: u64,
    overflowed: Option<f64>,
    drained: Option<f64>,
}

struct World<'a> {
    model: &'a Model,
    random: Random,
    now: f64,
    steps: u64,
    coming: BinaryHeap<Reverse<Timed>>,
    tanks: Vec<Tank>,
    measured_from: f64,
    /// When burst and outage began.
    began: Option<f64>,
}

impl<'a> World<'a> {
    fn new(model: &'a Model, seed: u64) -> Self {
        let mut world = Self {
            model,
            random: Random(seed),
            now: 0.0,
            steps: 0,
            coming: BinaryHeap::new(),
            tanks: Vec::new(),
            measured_from: 0.0,
            began: None,
        };
        world.empty();
        world
    }

    fn empty(&mut self) {
        self.now = 0.0;
        self.began = None;
        let tank = |stage: &Stage| Tank {
            waiting: 0,
            idle: stage.workers,
            stands: false,
            waited: 0.0,
            taken: 0,
            changed: 0.0,
            peak: 0,
            overflowed: None,
            drained: None,
        };
        self.tanks = self.model.stages.iter().map(tank).collect();
        self.coming.clear();
        self.next_arrival();
    }

    fn measure(&mut self) {
        self.measured_from = self.now;
        for tank in &mut self.tanks {
            (tank.waited, tank.taken, tank.changed) = (0.0, 0, self.now);
        }
    }

    /// What was measured, if it is the long run.
    fn measured(&mut self, stable: bool) -> Vec<SimulatedStage> {
        let seconds = self.now - self.measured_from;
        let stages = self.model.stages.iter().zip(&mut self.tanks);
        let stages = stages.map(|(stage, tank)| {
            tank.pass(self.now);
            SimulatedStage {
                name: stage.name.clone(),
                takes_per_second: ratio(float(tank.taken), seconds),
                queue: stable.then(|| ratio(tank.waited, seconds)),
                wait_seconds: stable.then(|| ratio(tank.waited, float(tank.taken))),
                ..SimulatedStage::default()
            }
        });
        stages.collect()
    }

    fn events(&mut self) {
        self.began = Some(self.now);
        for tank in &mut self.tanks {
            (tank.peak, tank.overflowed, tank.drained) = (tank.waiting, None, None);
        }
        let Some((at, seconds)) = self.model.standstill() else {
            return;
        };
        if let Some(tank) = self.tanks.get_mut(at) {
            tank.stands = true;
        }
        self.at(self.now + seconds, Step::Resume);
        // Calls that are under way end so much later.
        let late = |Reverse(Timed { at: end, step })| match step {
            Step::End(of, _) if of == at => Reverse(Timed {
                at: end + seconds,
                step,
            }),
            _ => Reverse(Timed { at: end, step }),
        };
        self.coming = std::mem::take(&mut self.coming)
            .into_iter()
            .map(late)
            .collect();
    }

    fn arrivals(&mut self, records: u32) -> Result<(), SizingError> {
        self.began = None;
        let mut left = records;
        while left > 0 {
            if matches!(self.step()?, Step::Arrival) {
                left -= 1;
            }
        }
        Ok(())
    }

    /// Goes on until so many seconds after the begin of burst and outage.
    fn until(&mut self, seconds: f64) -> Result<(), SizingError> {
        let until = self.began.unwrap_or(self.now) + seconds;
        while self
            .coming
            .peek()
            .is_some_and(|Reverse(next)| next.at <= until)
        {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// Goes on until no stage holds more than that.
    fn until_drained(&mut self, depths: &[f64]) -> Result<(), SizingError> {
        let began = self.began.unwrap_or(self.now);
        loop {
            let tanks = self.tanks.iter_mut().zip(depths);
            let mut left = tanks.filter(|(tank, _)| tank.drained.is_none()).peekable();
            // What a stage holds may still come to the next ones.
            while let Some((tank, _)) =
                left.next_if(|(tank, depth)| float(tank.waiting) <= depth.ceil())
            {
                tank.drained = Some(self.now - began);
            }
            if left.peek().is_none() {
                return Ok(());
            }
            drop(left);
            self.step()?;
        }
    }

    fn step(&mut self) -> Result<Step, SizingError> {
        self.steps += 1;
        let too_many = SizingError::TooManySteps(STEPS_MAX);
        let next = self.coming.pop().filter(|_| self.steps <= STEPS_MAX);
        let Reverse(Timed { at, step }) = next.ok_or(too_many)?;
        self.now = at;
        match step {
            Step::Arrival => {
                self.next_arrival();
                self.pour(0, 1);
            }
            Step::End(stage, records) => {
                if let Some(tank) = self.tanks.get_mut(stage) {
                    tank.idle += 1;
                }
                self.draw(stage);
                self.pour(stage + 1, records);
            }
            Step::Resume => {
                if let Some((stage, _)) = self.model.standstill() {
                    if let Some(tank) = self.tanks.get_mut(stage) {
                        tank.stands = false;
                    }
                    self.draw(stage);
                }
            }
        }
        Ok(step)
    }

    fn next_arrival(&mut self) {
        let since = self.began.map_or(f64::INFINITY, |began| self.now - began);
        let rate = self.model.arrivals_at(since);
        let gap = self.random.unit_mean(self.model.arrivals_variability) / rate;
        self.at(self.now + gap, Step::Arrival);
    }

    fn at(&mut self, at: f64, step: Step) {
        self.coming.push(Reverse(Timed { at, step }));
    }

    /// Records come to a stage, or leave the last one.
    fn pour(&mut self, stage: usize, records: u32) {
        let (Some(tank), Some(limits)) = (self.tanks.get_mut(stage), self.model.stages.get(stage))
        else {
            return;
        };
        tank.pass(self.now);
        tank.waiting += u64::from(records);
        self.draw(stage);
        let Some(tank) = self.tanks.get_mut(stage) else {
            return;
        };
        tank.peak = tank.peak.max(tank.waiting);
        if limits.buffer.is_some_and(|buffer| tank.waiting > buffer)
            && let Some(began) = self.began
        {
            tank.overflowed.get_or_insert(self.now - began);
        }
    }

    /// Free workers take what waits.
    fn draw(&mut self, stage: usize) {
        let (Some(tank), Some(limits)) = (self.tanks.get_mut(stage), self.model.stages.get(stage))
        else {
            return;
        };
        tank.pass(self.now);
        while !tank.stands && tank.idle > 0 && tank.waiting > 0 {
            let records = u32::try_from(tank.waiting)
                .unwrap_or(u32::MAX)
                .min(limits.batch);
            tank.waiting -= u64::from(records);
            tank.taken += u64::from(records);
            tank.idle -= 1;
            let seconds = self.random.unit_mean(limits.variability) * limits.call_seconds();
            let at = self.now + seconds;
            let step = Step::End(stage, records);
            self.coming.push(Reverse(Timed { at, step }));
        }
    }
}

impl Tank {
    /// Counts what waited until now.
    fn pass(&mut self, now: f64) {
        self.waited += float(self.waiting) * (now - self.changed);
        self.changed = now;
    }
}

fn ratio(sum: f64, by: f64) -> f64 {
    if by > 0.0 { sum / by } else { 0.0 }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    /// Above 0, up to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        float((z >> 11) + 1) / float(1 << 53)
    }

    /// Exponentially distributed, with a mean of 1.
    fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// A number with a mean of 1 and this squared coefficient of variation.
    fn unit_mean(&mut self, variability: f64) -> f64 {
        if variability == 0.0 {
            return 1.0;
        }
        if variability >= 1.0 {
            // One of two exponential distributions with balanced means.
            let odds = ((variability - 1.0) / (variability + 1.0)).sqrt();
            let first = f64::midpoint(1.0, odds);
            let share = if self.unit() <= first {
                first
            } else {
                1.0 - first
            };
            return self.exponential() / (2.0 * share);
        }
        // The sum of k - 1 or of k exponential ones, for 1/k ≤ variability ≤ 1/(k - 1).
        let k = (1.0 / variability).ceil();
        let root = (k * (1.0 + variability) - k * k * variability)
            .max(0.0)
            .sqrt();
        let fewer = (k * variability - root) / (1.0 + variability);
        let mut left = if self.unit() <= fewer { k - 1.0 } else { k };
        let mut sum = 0.0;
        while left > 0.5 {
            sum += self.exponential();
            left -= 1.0;
        }
        sum / (k - fewer)
    }
}

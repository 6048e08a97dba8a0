//! How large the buffers of a pipeline must be: which stage overflows, when, and what it needs to survive a burst or an
//! outage.
//!
//! A pipeline is a row of tanks. Records flow into the buffer of a stage; its workers take them out and hand them to the
//! next stage. A stage overflows where more comes in than goes out for long enough. From rates, workers and buffers
//! [`Model::report`] computes how full each buffer is in the long run, and how its depth goes when the arrivals rise
//! ([`Burst`]) or a stage stands still ([`Outage`]). [`simulate()`] runs the same pipeline record by record.
//!
//! ```
//! use lockgate_producer::sizing::{Model, Need, Outage, Service, Stage};
//!
//! let mut model = Model::new(800.0, [
//!     Stage::new("parse", Service::PerSecond(500.0), 4),
//!     // A call takes 40 ms and up to 100 records.
//!     Stage { batch: 100, buffer: Some(10_000), ..Stage::new("sink", Service::Seconds(0.04), 1) },
//! ]);
//! model.outage = Some(Outage { stage: None, seconds: 60.0 });
//! let report = model.report()?;
//! assert_eq!(report.bottleneck, "parse");
//! let sink = &report.stages[1];
//! assert!(matches!(sink.needs, Need::Records(needs) if (48_000..49_000).contains(&needs)));
//! assert!(report.verdict.iter().any(|it| it.starts_with("sink overflows after 12.")));
//! # Ok::<(), lockgate_producer::sizing::SizingError>(())
//! ```
//!
//! # What is computed, and by which rule
//!
//! - **The long run**: the queue M/M/c with calls that take up to a batch of what waits (the chain M/M\[1,b\]/c, whose
//!   queue is geometric; without batches it is Erlang's formula C), times (Ca² + Cs²) / 2 for other
//!   [variabilities](Stage::variability): Allen and Cunneen's approximation (Arnold Allen, *Probability, Statistics and
//!   Queueing Theory*, 1990, chapter 5.3). For batches the factor is our own: it is that one for the wait until the next call
//!   ends, except that a batch evens out arrivals, and (Ca² + b Cs²) / (1 + b) for the batches before. What leaves a stage comes to the next one with the variability of Whitt's
//!   *Queueing Network Analyzer* (1983).
//! - **Burst and outage**: the fluid approximation (Gordon Newell, *Applications of Queueing Theory*, 1982): a depth
//!   grows by inflow less outflow, on top of the long run's mean. Where a burst comes close to what a stage takes, the
//!   mean of a reflected Brownian motion (Michael Harrison, *Brownian Motion and Stochastic Flow Systems*, 1985) stands
//!   for what chance alone piles up.
//! - **What a buffer needs**: room for the depth that is exceeded once in a thousand times.
//!
//! Buffers in the model never lose anything nor stop the stage before: a depth goes on above the buffer, so that the report
//! can say how large it should be.

mod flow;
mod measured;
mod report;
mod simulate;
mod steady;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use measured::{Reading, ReadingError, Readings};
pub use report::{Drain, Need, Overflow, Point, Report, StageReport, Steady, show_seconds};
pub use simulate::{SimulatedStage, Simulation, simulate};

/// A pipeline, and what comes to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Model {
    /// Records that arrive in a second; more than 0, up to 10⁹.
    pub arrivals_per_second: f64,
    /// How irregularly they come: the squared coefficient of variation of the time between two. 0: evenly; 1: at random
    /// (Poisson); up to 100. Default: 1.
    #[serde(default = "one")]
    pub arrivals_variability: f64,
    /// What a record passes through, in order; 1 to 100.
    pub stages: Vec<Stage>,
    /// A stage that stands still for a while, from a time on at which all was steady. Default: none.
    #[serde(default)]
    pub outage: Option<Outage>,
    /// Arrivals that rise for a while, from the same time on. Default: none.
    #[serde(default)]
    pub burst: Option<Burst>,
    /// Bytes of a record, to tell needs in bytes too; 1 to 2³⁰. Default: unknown.
    #[serde(default)]
    pub record_bytes: Option<u64>,
}

/// A stage: a buffer, and workers that take records out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name, of 1 to 64 characters; no two have the same.
    pub name: String,
    /// How fast one worker is.
    pub service: Service,
    /// Workers that work at the same time, 1 to 10,000. Default: 1.
    #[serde(default = "one_worker")]
    pub workers: u32,
    /// Records that a worker takes at once if so many wait, 1 to 100,000. It takes fewer rather than wait for more. Default:
    /// 1.
    #[serde(default = "one_worker")]
    pub batch: u32,
    /// Records that may wait, those not counted that workers have; up to 10¹⁵. `None`: the report says what it should be.
    /// Default: `None`.
    #[serde(default)]
    pub buffer: Option<u64>,
    /// How much calls differ: the squared coefficient of variation of the time of a call. 0: all take the same; 1: as
    /// exponentially distributed times; otherwise from 0.01 to 100. Default: 1.
    #[serde(default = "one")]
    pub variability: f64,
}

/// How fast one worker is. A call takes one record, or up to a [batch](Stage::batch).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// So many calls in a second, 10⁻⁶ to 10⁹.
    PerSecond(f64),
    /// So many seconds for a call on average, 10⁻⁹ to 10⁶.
    Seconds(f64),
}

/// A stage takes nothing and gives nothing for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// Which one. `None`: the last. Default: `None`.
    #[serde(default)]
    pub stage: Option<String>,
    /// How long; more than 0, up to 30 days.
    pub seconds: f64,
}

/// More arrives for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// So many times the usual rate; more than 1, and not more than 10⁹ records a second.
    pub times: f64,
    /// How long; more than 0, up to 30 days.
    pub seconds: f64,
}

/// A value of a [`Model`] that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SizingError {
    /// A number is out of its range.
    #[error("{what} is {value}: it must be {range}")]
    OutOfRange {
        /// Which one.
        what: String,
        /// What was given.
        value: f64,
        /// What is allowed.
        range: &'static str,
    },
    /// There is no stage, or there are too many.
    #[error("there are {0} stages: it must be 1 to {STAGES_MAX}")]
    Stages(usize),
    /// A name is empty or too long.
    #[error("{0:?} is no name of a stage: it must have 1 to {NAME_MAX} characters")]
    Name(String),
    /// Two stages have the same name.
    #[error("two stages have the name {0:?}")]
    NameTwice(String),
    /// The outage is of a stage that there is not.
    #[error("the outage is of {0:?}, and no stage has that name")]
    NoSuchStage(String),
    /// A need has more bytes than can be counted.
    #[error("what {0:?} needs has more bytes than can be counted")]
    TooManyBytes(String),
    /// A simulation has more to do than its bound allows.
    #[error(
        "the simulation takes more than {0} steps: take shorter events, lower rates or fewer runs"
    )]
    TooManySteps(u64),
}

const STAGES_MAX: usize = 100;
const NAME_MAX: usize = 64;

fn one() -> f64 {
    1.0
}

fn one_worker() -> u32 {
    1
}

impl Model {
    /// Records that arrive at random (Poisson), without outage and burst.
    #[must_use]
    pub fn new(arrivals_per_second: f64, stages: impl IntoIterator<Item = Stage>) -> Self {
        Self {
            arrivals_per_second,
            arrivals_variability: 1.0,
            stages: stages.into_iter().collect(),
            outage: None,
            burst: None,
            record_bytes: None,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// Names the first that cannot be.
    pub fn check(&self) -> Result<(), SizingError> {
        let rate = self.arrivals_per_second;
        within(
            "arrivals_per_second",
            rate,
            rate > 0.0 && rate <= 1e9,
            "more than 0, up to 1e9",
        )?;
        variability("arrivals_variability", self.arrivals_variability)?;
        if !(1..=STAGES_MAX).contains(&self.stages.len()) {
            return Err(SizingError::Stages(self.stages.len()));
        }
        let mut names = BTreeSet::new();
        for stage in &self.stages {
            stage.check()?;
            if !names.insert(&stage.name) {
                return Err(SizingError::NameTwice(stage.name.clone()));
            }
        }
        if let Some(outage) = &self.outage {
            lasting("the outage's seconds", outage.seconds)?;
            if let Some(name) = outage.stage.as_ref().filter(|name| !names.contains(name)) {
                return Err(SizingError::NoSuchStage(name.clone()));
            }
        }
        if let Some(Burst { times, seconds }) = self.burst {
            let in_range = times > 1.0 && times * rate <= 1e9;
            within(
                "the burst's times",
                times,
                in_range,
                "more than 1, and up to 1e9 records a second",
            )?;
            lasting("the burst's seconds", seconds)?;
        }
        let bytes = self.record_bytes.unwrap_or(1);
        within(
            "record_bytes",
            float(bytes),
            (1..=1 << 30).contains(&bytes),
            "1 to 2^30",
        )
    }

    /// The place of the stage that stands still, and for how many seconds.
    fn standstill(&self) -> Option<(usize, f64)> {
        let outage = self.outage.as_ref()?;
        let named = |name: &String| self.stages.iter().position(|stage| stage.name == *name);
        let at = match &outage.stage {
            Some(name) => named(name)?,
            None => self.stages.len().checked_sub(1)?,
        };
        Some((at, outage.seconds))
    }

    /// When burst and outage are over, in seconds from their begin.
    fn events_end(&self) -> f64 {
        let outage = self.outage.as_ref().map_or(0.0, |outage| outage.seconds);
        outage.max(self.burst.map_or(0.0, |burst| burst.seconds))
    }

    /// Records that arrive in a second, so many seconds after the begin.
    fn arrivals_at(&self, seconds: f64) -> f64 {
        match self.burst {
            Some(burst) if seconds < burst.seconds => self.arrivals_per_second * burst.times,
            _ => self.arrivals_per_second,
        }
    }
}

impl Stage {
    /// A stage without batches, whose calls take exponentially distributed times.
    pub fn new(name: impl Into<String>, service: Service, workers: u32) -> Self {
        Self {
            name: name.into(),
            service,
            workers,
            batch: 1,
            buffer: None,
            variability: 1.0,
        }
    }

    /// Records that it takes in a second at most.
    #[must_use]
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) * f64::from(self.batch) / self.call_seconds()
    }

    fn call_seconds(&self) -> f64 {
        match self.service {
            Service::PerSecond(rate) => 1.0 / rate,
            Service::Seconds(seconds) => seconds,
        }
    }

    fn check(&self) -> Result<(), SizingError> {
        if !(1..=NAME_MAX).contains(&self.name.chars().count()) {
            return Err(SizingError::Name(
                self.name.chars().take(NAME_MAX + 1).collect(),
            ));
        }
        let of = |what: &str| format!("{what} of {}", self.name);
        match self.service {
            Service::PerSecond(rate) => {
                let in_range = (1e-6..=1e9).contains(&rate);
                within(&of("per_second"), rate, in_range, "1e-6 to 1e9")?;
            }
            Service::Seconds(seconds) => {
                let in_range = (1e-9..=1e6).contains(&seconds);
                within(&of("seconds"), seconds, in_range, "1e-9 to 1e6")?;
            }
        }
        let (workers, batch) = (self.workers, self.batch);
        within(
            &of("workers"),
            workers.into(),
            (1..=10_000).contains(&workers),
            "1 to 10000",
        )?;
        within(
            &of("batch"),
            batch.into(),
            (1..=100_000).contains(&batch),
            "1 to 100000",
        )?;
        let buffer = self.buffer.unwrap_or_default();
        within(
            &of("buffer"),
            float(buffer),
            buffer <= 1_000_000_000_000_000,
            "0 to 1e15",
        )?;
        variability(&of("variability"), self.variability)
    }
}

fn within(what: &str, value: f64, in_range: bool, range: &'static str) -> Result<(), SizingError> {
    if in_range {
        return Ok(());
    }
    let what = what.to_owned();
    Err(SizingError::OutOfRange { what, value, range })
}

fn variability(what: &str, value: f64) -> Result<(), SizingError> {
    let in_range = value == 0.0 || (0.01..=100.0).contains(&value);
    within(what, value, in_range, "0, or from 0.01 to 100")
}

fn lasting(what: &str, value: f64) -> Result<(), SizingError> {
    let in_range = value > 0.0 && value <= 2_592_000.0;
    within(
        what,
        value,
        in_range,
        "more than 0, up to 2592000 (30 days)",
    )
}

/// A count as a number to compute with: beyond 2⁵³ the nearest that there is.
#[expect(clippy::cast_precision_loss, reason = "as the comment says")]
fn float(count: u64) -> f64 {
    count as f64
}

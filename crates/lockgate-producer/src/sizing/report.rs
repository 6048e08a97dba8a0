//! What a model says.

use std::fmt;

use serde::Serialize;

use super::{
    Model, SizingError, Stage,
    flow::{Course, Moment, courses},
    steady::{Inflow, Queue},
};

/// As many standard deviations above the mean as are exceeded once in a thousand times
/// ([`RARE`](super::steady::RARE)).
const RARE_DEVIATIONS: f64 = 3.09;

/// How long a depth that grows for ever is followed if nothing else says how long.
const GROWS_SECONDS: f64 = 60.0;

/// How a pipeline fares. Every number is finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Records that arrive in a second.
    pub arrivals_per_second: f64,
    /// Records that the pipeline takes in a second: those of its bottleneck.
    pub capacity_per_second: f64,
    /// The stage that takes the fewest records; the first of them.
    pub bottleneck: String,
    /// When burst and outage are over, in seconds from their begin; 0 without them.
    pub events_end_seconds: f64,
    /// How long the pipeline is watched, from the begin of burst and outage: until they are over, but for a minute at least
    /// where a stage is overloaded.
    pub watched_seconds: f64,
    /// In the order of the model.
    pub stages: Vec<StageReport>,
    /// The same in words: the bottleneck, and what each stage lacks.
    pub verdict: Vec<String>,
}

/// How a stage fares. The records that wait are counted, not those that workers have: up to `workers × batch` more.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Records that come in a second in the long run: all that arrive, or what a stage before lets through.
    pub inflow_per_second: f64,
    /// Records that it takes in a second at most.
    pub capacity_per_second: f64,
    /// Inflow by capacity. From 1 on it is overloaded.
    pub utilisation: f64,
    /// At more arrivals than these it overflows, however large its buffer is. `None`: it never does, because a stage before
    /// lets no more through.
    pub overflows_from_per_second: Option<f64>,
    /// The long run.
    pub steady: Steady,
    /// Whether `steady` is rough: a stage before takes several records at once, or has calls that do not take exponentially
    /// distributed times, so what comes here does not come at random. Then how many wait may be off by half, and by more
    /// behind several of them. Otherwise it is within a tenth.
    pub rough: bool,
    /// Records that wait after [`Report::watched_seconds`], on average.
    pub depth_at_end: f64,
    /// The most that wait, on average, and when; of a stage that is overloaded, after [`Report::watched_seconds`].
    pub peak: Point,
    /// What its buffer has.
    pub buffer: Option<u64>,
    /// What its buffer needs.
    pub needs: Need,
    /// The same in bytes, if the bytes of a record are known.
    pub needs_bytes: Option<u64>,
    /// Whether its buffer overflows; `None` if it is not known.
    pub overflows: Option<Overflow>,
    /// When it is as it was before burst and outage.
    pub drains: Drain,
    /// Its depth over time, on average: it goes straight from each point to the next.
    pub depths: Vec<Point>,
}

/// A depth at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Since burst and outage began.
    pub seconds: f64,
    /// Records that wait.
    pub records: f64,
}

/// The long run of a stage, without burst and outage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Steady {
    /// Less comes than it takes.
    Stable {
        /// Records that wait, on average.
        queue: f64,
        /// Seconds that a record waits, on average.
        wait_seconds: f64,
    },
    /// As much comes as it takes, or more.
    Overloaded {
        /// Records that it gets behind in a second.
        grows_per_second: f64,
    },
}

/// How many records a buffer must hold to overflow at most once in a thousand times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Need {
    /// So many.
    Records(u64),
    /// No buffer is large enough.
    Unbounded,
}

/// Whether a buffer overflows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overflow {
    /// At most once in a thousand times.
    Never,
    /// By chance: it has room for the average, and less than it [needs](StageReport::needs).
    Sometimes,
    /// So many seconds after burst and outage began, on average.
    AfterSeconds(f64),
}

/// When a stage is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Drain {
    /// So many seconds after burst and outage are over, on average; 0 if it never was otherwise.
    AfterSeconds(f64),
    /// More comes than it takes.
    Never,
}

impl Model {
    /// Computes how the pipeline fares. It takes some microseconds for each stage, and more for very large batches and many
    /// workers: below a tenth of a second.
    ///
    /// # Errors
    /// A value is out of its range, or a need has more bytes than can be counted.
    pub fn report(&self) -> Result<Report, SizingError> {
        self.check()?;
        let mut inflow = Inflow::singly(self.arrivals_per_second, self.arrivals_variability);
        let courses = courses(self);
        let watched = self.watched_seconds(&courses);
        let mut rough = false;
        let mut stages = Vec::with_capacity(self.stages.len());
        let (mut least, mut bottleneck) = (f64::INFINITY, "");
        for (stage, course) in self.stages.iter().zip(&courses) {
            let queue = Queue::of(stage, inflow);
            let shielded = stage.capacity() >= least;
            let mut told = self.stage(stage, inflow, queue.as_ref(), course, watched)?;
            told.overflows_from_per_second = (!shielded).then_some(stage.capacity());
            told.rough = rough;
            stages.push(told);
            rough |= stage.batch > 1 || stage.variability != 1.0;
            if !shielded {
                (least, bottleneck) = (stage.capacity(), &stage.name);
            }
            inflow = inflow.behind(stage, queue.as_ref());
        }
        let moments = courses.iter().flat_map(|course| &course.moments);
        let until = moments.map(|moment| moment.seconds).fold(0.0, f64::max) * 1.25;
        let until = if until > 0.0 { until } else { GROWS_SECONDS };
        for (report, course) in stages.iter_mut().zip(&courses) {
            let mean = report.mean();
            let points = course.points(until).into_iter();
            report.depths = points.map(|point| point.above(mean)).collect();
        }
        let mut report = Report {
            arrivals_per_second: self.arrivals_per_second,
            capacity_per_second: least,
            bottleneck: bottleneck.to_owned(),
            events_end_seconds: self.events_end(),
            watched_seconds: watched,
            stages,
            verdict: Vec::new(),
        };
        report.verdict = report.words();
        Ok(report)
    }

    fn watched_seconds(&self, courses: &[Course]) -> f64 {
        let end = self.events_end();
        match courses.iter().any(|course| course.grows > 0.0) {
            true => end.max(GROWS_SECONDS),
            false => end,
        }
    }

    fn stage(
        &self,
        stage: &Stage,
        inflow: Inflow,
        queue: Option<&Queue>,
        course: &Course,
        watched: f64,
    ) -> Result<StageReport, SizingError> {
        let capacity = stage.capacity();
        let mean = queue.map_or(0.0, |queue| queue.mean);
        let end = self.events_end();
        let chance = Chance { stage, inflow };
        let mut needs = queue.map_or(0.0, Queue::rare);
        let mut peak = Point {
            seconds: 0.0,
            records: mean,
        };
        let mut at_end = mean;
        for moment in course.moments.iter().skip(1) {
            let (records, rare) = chance.at(mean, moment);
            needs = needs.max(rare);
            if records > peak.records {
                let seconds = moment.seconds;
                peak = Point { seconds, records };
            }
            if moment.seconds == watched {
                at_end = records;
            }
        }
        if course.grows > 0.0 || watched > end {
            at_end = mean + course.depth_at(watched);
            if at_end > peak.records {
                peak = Point {
                    seconds: watched,
                    records: at_end,
                };
            }
        }
        let needs = match queue {
            Some(_) => Need::Records(whole(needs)),
            None => Need::Unbounded,
        };
        let needs_bytes = match (needs, self.record_bytes) {
            (Need::Records(records), Some(bytes)) => {
                let too_many = || SizingError::TooManyBytes(stage.name.clone());
                Some(records.checked_mul(bytes).ok_or_else(too_many)?)
            }
            _ => None,
        };
        let overflows = stage.buffer.map(|buffer| {
            let above = course.above(super::float(buffer) - mean);
            match (above, needs) {
                (Some(seconds), _) => Overflow::AfterSeconds(seconds),
                (None, Need::Records(needs)) if needs <= buffer => Overflow::Never,
                (None, _) => Overflow::Sometimes,
            }
        });
        let steady = match queue {
            Some(queue) => Steady::Stable {
                queue: queue.mean,
                wait_seconds: queue.mean / inflow.rate,
            },
            None => Steady::Overloaded {
                grows_per_second: (inflow.rate - capacity).max(0.0),
            },
        };
        let drains = match course.drained() {
            Some(seconds) if queue.is_some() => Drain::AfterSeconds((seconds - end).max(0.0)),
            _ => Drain::Never,
        };
        Ok(StageReport {
            name: stage.name.clone(),
            inflow_per_second: inflow.rate,
            capacity_per_second: capacity,
            utilisation: inflow.rate / capacity,
            overflows_from_per_second: None,
            steady,
            rough: false,
            depth_at_end: at_end,
            peak,
            buffer: stage.buffer,
            needs,
            needs_bytes,
            overflows,
            drains,
            depths: Vec::new(),
        })
    }
}

/// What chance adds to the flows of a stage.
struct Chance<'a> {
    stage: &'a Stage,
    inflow: Inflow,
}

impl Chance<'_> {
    /// How many records wait at a moment: on average, and once in a thousand times.
    fn at(&self, mean: f64, moment: &Moment) -> (f64, f64) {
        let inflow = Inflow {
            rate: moment.rate,
            ..self.inflow
        };
        // Records leave in batches.
        let calls = self.stage.variability * f64::from(self.stage.batch);
        let dispersion = self.inflow.dispersion(moment.seconds);
        let deviation = (dispersion * moment.came + calls * moment.taken).sqrt();
        // As if the queue had been empty.
        let from_empty = reflected(moment.came - moment.taken, deviation);
        let by_flow = mean + moment.depth;
        let rare_by_flow = by_flow.max(from_empty) + RARE_DEVIATIONS * deviation;
        match Queue::of(self.stage, inflow).filter(|_| moment.depth == 0.0) {
            // It settles at its inflow, but rises no faster than chance has it.
            Some(queue) if inflow.rate > self.inflow.rate => (
                queue.mean.min(mean.max(from_empty)),
                queue.rare().min(rare_by_flow),
            ),
            Some(queue) => (queue.mean, queue.rare()),
            None => (by_flow.max(from_empty), rare_by_flow),
        }
    }
}

/// The mean of a Brownian motion that begins at 0, is reflected there, and would have this mean and standard deviation
/// without: the mean of its greatest value until then (Harrison 1985, section 1.8).
fn reflected(mean: f64, deviation: f64) -> f64 {
    if deviation <= 0.0 {
        return mean.max(0.0);
    }
    let drift = mean / deviation;
    // The half difference goes to 0 with the drift.
    let middle = if drift.abs() < 1e-3 {
        density(0.0)
    } else {
        (below(drift) - 0.5) / drift
    };
    deviation * (density(drift) + drift * below(drift) + middle).max(0.0)
}

/// The density of the standard normal distribution.
pub(super) fn density(at: f64) -> f64 {
    (-0.5 * at * at).exp() / std::f64::consts::TAU.sqrt()
}

/// How probable a lower value is in the standard normal distribution, to 10⁻⁷ (Abramowitz and Stegun 1964, 26.2.17).
pub(super) fn below(at: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * at.abs());
    let factors = [
        1.330_274_429,
        -1.821_255_978,
        1.781_477_937,
        -0.356_563_782,
        0.319_381_530,
    ];
    let sum = factors
        .into_iter()
        .fold(0.0, |sum, factor| (sum + factor) * t);
    let above = density(at) * sum;
    if at < 0.0 { above } else { 1.0 - above }
}

impl Point {
    fn above(self, mean: f64) -> Self {
        Self {
            records: self.records + mean,
            ..self
        }
    }
}

impl StageReport {
    /// Records that wait in the long run; 0 where there is none.
    fn mean(&self) -> f64 {
        match self.steady {
            Steady::Stable { queue, .. } => queue,
            Steady::Overloaded { .. } => 0.0,
        }
    }

    /// What it lacks, if something.
    fn words(&self, events: bool) -> Option<String> {
        let Self { name, .. } = self;
        let room = match (self.needs, self.needs_bytes) {
            (Need::Unbounded, _) => "no buffer is large enough".to_owned(),
            (Need::Records(records), None) => format!("it needs {records} records"),
            (Need::Records(records), Some(bytes)) => {
                let bytes = lockgate_core::units::round_bytes(bytes);
                format!("it needs {records} records ({bytes})")
            }
        };
        let mut words = match (self.overflows, self.needs) {
            (Some(Overflow::AfterSeconds(seconds)), _) => {
                format!("{name} overflows after {}; {room}", show_seconds(seconds))
            }
            (Some(Overflow::Sometimes), _) => format!("{name} overflows sometimes; {room}"),
            (None, Need::Unbounded) => format!("{name} gets behind; {room}"),
            (None, Need::Records(1..)) => format!("{name} needs a buffer: {room}"),
            (Some(Overflow::Never), _) | (None, _) => return None,
        };
        match self.drains {
            Drain::Never => words.push_str("; it never drains"),
            Drain::AfterSeconds(seconds) if events && seconds > 0.0 => {
                words.push_str(&format!("; it drains in {}", show_seconds(seconds)));
            }
            Drain::AfterSeconds(_) => {}
        }
        Some(words)
    }
}

impl Report {
    fn words(&self) -> Vec<String> {
        let bottleneck = format!(
            "the bottleneck is {}: it takes {} records/s",
            self.bottleneck,
            Rate(self.capacity_per_second)
        );
        let events = self.events_end_seconds > 0.0;
        let lacks = self.stages.iter().filter_map(|stage| stage.words(events));
        let mut words: Vec<_> = std::iter::once(bottleneck).chain(lacks).collect();
        if words.len() == 1 {
            words.push("no buffer overflows".to_owned());
        }
        let rough = self.stages.iter().filter(|stage| stage.rough);
        let names: Vec<&str> = rough.map(|stage| stage.name.as_str()).collect();
        if !names.is_empty() {
            words.push(format!(
                "how many wait at {} in the long run may be off by half: what the stages before let through does not come at random",
                names.join(", ")
            ));
        }
        words
    }
}

/// Writes a time for people: three digits or so, `12.5 s`.
#[must_use]
pub fn show_seconds(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        seconds if seconds < 1e-3 => format!("{:.1} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 600.0 => format!("{seconds:.1} s"),
        seconds if seconds < 36_000.0 => format!("{:.1} minutes", seconds / 60.0),
        seconds if seconds < 864_000.0 => format!("{:.1} hours", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86400.0),
    }
}

/// A rate for people.
#[derive(Clone, Copy, Debug)]
struct Rate(f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate < 100.0 => write!(f, "{}", (rate * 100.0).round() / 100.0),
            rate => write!(f, "{:.0}", rate),
        }
    }
}

/// The next whole number. Every need is far below 2⁶³: at most 10⁹ records come in a second, and events last 30 days.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as the comment says"
)]
fn whole(records: f64) -> u64 {
    records.ceil() as u64
}

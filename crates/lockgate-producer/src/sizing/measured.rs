//! A model from what a running producer has counted, or a pipeline.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{Model, Service, SizingError, Stage, float, within};
use crate::Figures;

const PREFIX: &str = "lockgate_";

/// Batches that a producer sends at the same time if its figures do not say how many.
const IN_FLIGHT_MAX: u32 = 4;

/// What a producer had counted at one moment, and the workers of a [pipeline](crate::Pipeline) before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Reading {
    /// Sends that were accepted or refused.
    pub arrived: f64,
    /// Records in the batches sent, repeats included.
    pub sent: f64,
    /// Batches sent.
    pub batches: f64,
    /// Records being sent.
    pub in_flight: f64,
    /// Records in memory.
    pub memory_records: f64,
    /// Their bytes.
    pub memory_bytes: f64,
    /// Seconds that batches took together; 0: unknown.
    pub sending_seconds: f64,
    /// Batches that are sent at the same time at most; 0: unknown.
    pub batches_in_flight_max: f64,
    /// Workers before the producer; 0: there are none.
    pub workers: f64,
    /// Messages on which they have begun to work.
    pub began: f64,
    /// Messages that are done.
    pub ended: f64,
    /// Seconds for which workers were taken, together: by work, and by the wait for the level.
    pub taken_seconds: f64,
}

/// Readings of one producer, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    first: Option<(f64, Reading)>,
    last: (f64, Reading),
    count: f64,
    in_flight: f64,
    memory_records: f64,
    memory_bytes: f64,
}

/// Figures that no model can be made of.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadingError {
    /// A line is not in the text format of Prometheus.
    #[error("line {0} is no metric in the text format of Prometheus")]
    Line(usize),
    /// There is none.
    #[error("there are no figures of {}", .0.as_deref().map_or("a producer".to_owned(), |name| format!("the producer {name:?}")))]
    NoProducer(Option<String>),
    /// There are several, and none was named.
    #[error("there are figures of several producers, {}: name one", .0.join(", "))]
    Several(Vec<String>),
    /// A figure is missing.
    #[error("lockgate_producer_{0} is missing")]
    Missing(&'static str),
    /// There is one reading, or the time did not pass.
    #[error("it takes two readings, and time between them")]
    TooFew,
    /// A count was higher before.
    #[error("a count has gone back: the producer was started again between two readings")]
    Backwards,
    /// Nothing came, or nothing was sent.
    #[error("nothing was {0} between the readings")]
    Idle(&'static str),
    /// How long a batch takes is not seen.
    #[error("no reading found a record that was being sent: take more of them")]
    NothingInFlight,
    /// What was measured is out of the range of a model.
    #[error(transparent)]
    Model(#[from] SizingError),
}

impl Reading {
    /// What those figures say.
    #[must_use]
    pub fn of(figures: &Figures) -> Self {
        Self {
            arrived: float(figures.accepted + figures.refused),
            sent: float(figures.sent),
            batches: float(figures.batches),
            in_flight: float(figures.in_flight),
            memory_records: float(figures.memory_count),
            memory_bytes: float(figures.memory_bytes),
            sending_seconds: figures.sending.as_secs_f64(),
            batches_in_flight_max: float(figures.batches_in_flight_max),
            ..Self::default()
        }
    }

    /// Reads the text that [`Figures::prometheus`] or [`PipelineFigures::prometheus`](crate::PipelineFigures::prometheus)
    /// writes. Other metrics may stand beside them. `producer` is the label of the producer; it may be left out if there is
    /// one only.
    ///
    /// # Errors
    /// A figure is missing, or no number, or it is not clear whose it is.
    pub fn parse(text: &str, producer: Option<&str>) -> Result<Self, ReadingError> {
        let mut producers: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim().strip_prefix(PREFIX);
            let is_ours = |line: &&str| {
                ["producer_", "pipeline_"]
                    .iter()
                    .any(|it| line.starts_with(it))
            };
            let Some(line) = line.filter(is_ours) else {
                continue;
            };
            let (name, label, value) = metric(line).ok_or(ReadingError::Line(number))?;
            if producer.is_none_or(|producer| producer == label) {
                producers.entry(label).or_default().insert(name, value);
            }
        }
        let figures = match producers.len() {
            0 => return Err(ReadingError::NoProducer(producer.map(str::to_owned))),
            1 => producers.into_values().next().unwrap_or_default(),
            _ => return Err(ReadingError::Several(producers.into_keys().collect())),
        };
        let get = |name: &'static str| {
            let found = |(key, value): (&&str, &f64)| {
                (key.strip_prefix("producer_") == Some(name)).then_some(*value)
            };
            (figures.iter().find_map(found)).ok_or(ReadingError::Missing(name))
        };
        let of_pipeline = |name| figures.get(name).copied().unwrap_or_default();
        Ok(Self {
            arrived: get("accepted_total")? + get("refused_total")?,
            sent: get("sent_total")?,
            batches: get("batches_total")?,
            in_flight: get("in_flight")?,
            memory_records: get("memory_records")?,
            memory_bytes: get("memory_bytes")?,
            // An earlier version does not write these.
            sending_seconds: get("sending_seconds_total").unwrap_or_default(),
            batches_in_flight_max: get("batches_in_flight_max").unwrap_or_default(),
            workers: of_pipeline("pipeline_workers"),
            began: of_pipeline("pipeline_began_total"),
            ended: of_pipeline("pipeline_ended_total"),
            taken_seconds: of_pipeline("pipeline_worked_seconds_total")
                + of_pipeline("pipeline_waited_seconds_total"),
        })
    }
}

impl Readings {
    /// Adds one that was taken at `seconds`, counted from anywhere.
    ///
    /// # Errors
    /// [`Backwards`](ReadingError::Backwards): the producer was started again since the one before.
    pub fn add(&mut self, seconds: f64, reading: Reading) -> Result<(), ReadingError> {
        let (_, last) = self.last;
        let counts = [
            (last.arrived, reading.arrived),
            (last.sent, reading.sent),
            (last.batches, reading.batches),
            (last.began, reading.began),
            (last.ended, reading.ended),
        ];
        if self.first.is_some() && counts.iter().any(|(before, now)| now < before) {
            return Err(ReadingError::Backwards);
        }
        self.first.get_or_insert((seconds, reading));
        self.last = (seconds, reading);
        self.count += 1.0;
        self.in_flight += reading.in_flight;
        self.memory_records += reading.memory_records;
        self.memory_bytes += reading.memory_bytes;
        Ok(())
    }

    /// A model of what was measured: a stage `work` if workers of a pipeline stand before the producer, and a stage `sink`
    /// of the producer's buffer and its sink.
    ///
    /// What arrives is what was sent to the producer, or with workers the messages on which they began. As many as there
    /// were, each took as long as the figures say: the time of all divided by their number. With workers everything is in
    /// messages of the source: where a message becomes two records, a batch of ten records is one of five messages. A
    /// worker is taken until the records have their level, so a slower sink makes `work` slower too.
    ///
    /// A batch of the sink has the mean size, rounded up, and its time is longer by as much, so the stage takes what was
    /// measured. `batches` says how many are sent at the same time at most. `None`: as the figures say, or else
    /// 4, the default of [`ProducerOptions::batches_in_flight`](crate::ProducerOptions::batches_in_flight). Where the
    /// figures have no time of batches, it follows by Little's law from the records that were being sent. Batches that are
    /// fuller under more load make the sink faster than this model has it.
    ///
    /// # Errors
    /// There were too few readings, or nothing happened between them.
    pub fn model(&self, batches: Option<u32>) -> Result<Model, ReadingError> {
        let ((from, first), (to, last)) = (self.first.ok_or(ReadingError::TooFew)?, self.last);
        // Also if one of them is no number.
        if (to - from).partial_cmp(&0.0) != Some(Ordering::Greater) {
            return Err(ReadingError::TooFew);
        }
        let seconds = to - from;
        let mut arrived = last.arrived - first.arrived;
        let (sent, sendings) = (last.sent - first.sent, last.batches - first.batches);
        if arrived <= 0.0 {
            return Err(ReadingError::Idle("accepted"));
        }
        if sent <= 0.0 || sendings <= 0.0 {
            return Err(ReadingError::Idle("sent"));
        }
        let mut stages = Vec::new();
        let mut records_of_message = 1.0;
        if last.workers > 0.0 {
            let (began, ended) = (last.began - first.began, last.ended - first.ended);
            if began <= 0.0 || ended <= 0.0 {
                return Err(ReadingError::Idle("worked on"));
            }
            // Those on which a worker still is may have none yet.
            records_of_message = arrived / ended;
            arrived = began;
            within(
                "the number of workers",
                last.workers,
                (1.0..=10_000.0).contains(&last.workers),
                "1 to 10000",
            )?;
            let call = Service::Seconds((last.taken_seconds - first.taken_seconds) / ended);
            stages.push(Stage::new("work", call, small(last.workers)));
        }
        let call = match last.sending_seconds - first.sending_seconds {
            spent if spent > 0.0 => spent / sendings,
            _ => {
                let in_flight = self.in_flight / self.count;
                if in_flight <= 0.0 {
                    return Err(ReadingError::NothingInFlight);
                }
                in_flight * seconds / sent
            }
        };
        let mean = sent / sendings / records_of_message;
        let batch = mean.ceil();
        within(
            "the mean batch",
            batch,
            (1.0..=100_000.0).contains(&batch),
            "1 to 100000",
        )?;
        let in_flight_max = match (batches, last.batches_in_flight_max) {
            (Some(batches), _) => batches,
            (None, max) if (1.0..=10_000.0).contains(&max) => small(max),
            (None, _) => IN_FLIGHT_MAX,
        };
        stages.push(Stage {
            batch: small(batch),
            ..Stage::new("sink", Service::Seconds(call * batch / mean), in_flight_max)
        });
        let mut model = Model::new(arrived / seconds, stages);
        if self.memory_records > 0.0 {
            let bytes = (self.memory_bytes / self.memory_records * records_of_message).ceil();
            let in_range = (1.0..=f64::from(1 << 30)).contains(&bytes);
            within("the bytes of a record", bytes, in_range, "1 to 2^30")?;
            model.record_bytes = Some(small(bytes).into());
        }
        model.check()?;
        Ok(model)
    }
}

/// `name{labels} value`, with a timestamp perhaps: the name, the label `producer` and the value.
fn metric(line: &str) -> Option<(&str, String, f64)> {
    let (name, mut rest) = line.split_once('{')?;
    let mut producer = None;
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            rest = after;
            break;
        }
        let (label, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        if label.trim() == "producer" {
            producer = Some(value);
        }
        rest = after;
    }
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    let value = Some(value).filter(|value| value.is_finite() && *value >= 0.0)?;
    Some((name.trim(), producer?, value))
}

/// What stands before the closing quote, and what behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

/// A whole number that is in range, as the caller has checked.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "as the comment says"
)]
fn small(value: f64) -> u32 {
    value as u32
}

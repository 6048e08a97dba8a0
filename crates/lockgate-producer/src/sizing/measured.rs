//! A model from what a running producer has counted.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{Model, Service, SizingError, Stage, within};

const PREFIX: &str = "lockgate_producer_";

/// What a producer had counted at one moment.
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
    #[error("{PREFIX}{0} is missing")]
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
    /// Reads the text that [`Figures::prometheus`](crate::Figures::prometheus) writes. Other metrics may stand beside them.
    /// `producer` is the label of the producer; it may be left out if there is one only.
    ///
    /// # Errors
    /// A figure is missing, or no number, or it is not clear whose it is.
    pub fn parse(text: &str, producer: Option<&str>) -> Result<Self, ReadingError> {
        let mut producers: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let Some(line) = line.trim().strip_prefix(PREFIX) else {
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
        let get = |name| {
            figures
                .get(name)
                .copied()
                .ok_or(ReadingError::Missing(name))
        };
        Ok(Self {
            arrived: get("accepted_total")? + get("refused_total")?,
            sent: get("sent_total")?,
            batches: get("batches_total")?,
            in_flight: get("in_flight")?,
            memory_records: get("memory_records")?,
            memory_bytes: get("memory_bytes")?,
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

    /// A model of the producer's buffer and its sink, as one stage `sink`: what arrives; how long a batch takes, by Little's
    /// law from the records that were being sent and the rate at which they were; its mean size, rounded up; the bytes that a
    /// record takes in memory. `workers` is
    /// [`ProducerOptions::batches_in_flight`](crate::ProducerOptions::batches_in_flight).
    ///
    /// Batches that are fuller under more load make the sink faster than this model has it.
    ///
    /// # Errors
    /// There were too few readings, or nothing happened between them.
    pub fn model(&self, workers: u32) -> Result<Model, ReadingError> {
        let ((from, first), (to, last)) = (self.first.ok_or(ReadingError::TooFew)?, self.last);
        // Also if one of them is no number.
        if (to - from).partial_cmp(&0.0) != Some(Ordering::Greater) {
            return Err(ReadingError::TooFew);
        }
        let seconds = to - from;
        let arrived = last.arrived - first.arrived;
        let (sent, batches) = (last.sent - first.sent, last.batches - first.batches);
        if arrived <= 0.0 {
            return Err(ReadingError::Idle("accepted"));
        }
        if sent <= 0.0 || batches <= 0.0 {
            return Err(ReadingError::Idle("sent"));
        }
        let in_flight = self.in_flight / self.count;
        if in_flight <= 0.0 {
            return Err(ReadingError::NothingInFlight);
        }
        let batch = (sent / batches).ceil();
        within(
            "the mean batch",
            batch,
            (1.0..=100_000.0).contains(&batch),
            "1 to 100000",
        )?;
        let mut model = Model::new(
            arrived / seconds,
            [Stage {
                batch: small(batch),
                ..Stage::new(
                    "sink",
                    Service::Seconds(in_flight * seconds / sent),
                    workers,
                )
            }],
        );
        if self.memory_records > 0.0 {
            let bytes = (self.memory_bytes / self.memory_records).ceil();
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

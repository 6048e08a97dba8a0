//! The records of a log, one by one, with the unreadable parts between them.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::ControlFlow,
};

use lockgate_core::{
    DamagedRange, LogError, LogRecord, NameError, Position, QueueId, QueueName, ReadError,
    RecordStamp, Scanned,
};
use lockgate_machine::{Effect, decode_record};
use serde::Serialize;

use crate::{
    Bodies, EffectJson, Place,
    effects::{effect_json, queues_of},
    findings::as_text,
    snapshots,
};

/// Which records to read, and which of their effects.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Only records that start here or later.
    pub from: Position,
    /// Only records that start before this.
    pub to: Position,
    /// Only effects on this queue, by name or number.
    pub queue: Option<&'a str>,
    pub bodies: Bodies,
}

/// A record or an unreadable part.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// An unreadable part.
    Damaged {
        damaged: DamagedStretch,
    },
    Record(RecordJson),
}

#[derive(Debug, Serialize)]
pub struct DamagedStretch {
    #[serde(serialize_with = "as_text")]
    pub from: Position,
    #[serde(serialize_with = "as_text")]
    pub to: Position,
}

/// Why records cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    #[error("the log cannot be recovered")]
    Recover(#[source] LogError),
    #[error("reading the log")]
    Read(#[source] LogError),
    #[error(transparent)]
    Record(ReadError),
    /// The text cannot be the name or number of a queue.
    #[error(transparent)]
    QueueName(NameError),
    #[error("there is no queue {queue:?} in it")]
    UnknownQueue { queue: String },
}

/// Reads all records and passes the wanted ones to `take`, until it has enough. Returns the number
/// of unreadable parts and undecodable records.
///
/// # Errors
/// If the log cannot be recovered or read, or does not know the queue.
pub fn records(
    place: &Place,
    wanted: &Wanted<'_>,
    take: &mut dyn FnMut(&Line) -> ControlFlow<()>,
) -> Result<u64, RecordsError> {
    let &Wanted {
        from, to, bodies, ..
    } = wanted;
    let snapshots = snapshots(&*place.snapshots()).map_err(RecordsError::Read)?;
    let mut chosen = wanted
        .queue
        .map(Chosen::new)
        .transpose()
        .map_err(RecordsError::QueueName)?;
    // The names of queues that were created before the first remaining record.
    for machine in snapshots.iter().filter_map(|found| found.machine.as_ref()) {
        if let Some(Chosen { name, ids }) = &mut chosen {
            ids.extend(name.as_ref().and_then(|name| machine.queue_id(name)));
        }
    }
    let newest = snapshots.iter().find(|found| found.machine.is_some());
    let newest = newest.map_or(Position(0), |found| found.position);
    drop(snapshots);
    let (source, report) = place.recovered(newest).map_err(RecordsError::Recover)?;
    let mut damaged = 0;
    let mut is_enough = false;
    let mut never_met = NeverMet::new(report.damaged, from, to);
    let scanned = source.reader().scan(Position(0), to, &mut |scanned| {
        let told = match scanned {
            Scanned::Record { record, stamp } => {
                let mut told = tell_all(never_met.before(record.position), &mut damaged, take);
                let line = record_json(&record, stamp, &mut chosen, bodies, &mut damaged);
                if let Some(line) = line.filter(|_| record.position >= from)
                    && told.is_continue()
                {
                    told = take(&Line::Record(line));
                }
                told
            }
            Scanned::Damaged { from: at, to } => {
                never_met.met(at, to);
                let stretch = (to > from).then_some((at, to));
                tell_all(stretch.into_iter(), &mut damaged, take)
            }
        };
        is_enough = told.is_break();
        told
    });
    match scanned {
        Ok(()) => {}
        Err(ReadError::Log(error)) => return Err(RecordsError::Read(error)),
        Err(error) => return Err(RecordsError::Record(error)),
    }
    if is_enough || tell_all(never_met.before(Position(u64::MAX)), &mut damaged, take).is_break() {
        return Ok(damaged);
    }
    match wanted.queue {
        Some(queue) if chosen.is_some_and(|chosen| chosen.ids.is_empty()) => {
            let queue = queue.to_owned();
            Err(RecordsError::UnknownQueue { queue })
        }
        _ => Ok(damaged),
    }
}

/// Passes unreadable parts on.
fn tell_all(
    mut stretches: impl Iterator<Item = (Position, Position)>,
    damaged: &mut u64,
    take: &mut dyn FnMut(&Line) -> ControlFlow<()>,
) -> ControlFlow<()> {
    stretches.try_for_each(|(from, to)| {
        *damaged += 1;
        let damaged = DamagedStretch { from, to };
        take(&Line::Damaged { damaged })
    })
}

/// Damage that recovery found and a reader does not meet: a segment that is missing as a whole, or
/// whose header or end cannot be read.
struct NeverMet(VecDeque<DamagedRange>);

impl NeverMet {
    fn new(mut damaged: Vec<DamagedRange>, from: Position, to: Position) -> Self {
        damaged.retain(|range| range.to > from && range.from < to);
        damaged.sort_by_key(|range| range.from);
        Self(damaged.into())
    }

    /// Notes that the reader itself met an unreadable part between these positions.
    fn met(&mut self, from: Position, to: Position) {
        self.0.retain(|range| range.to <= from || range.from >= to);
    }

    /// Takes out the parts before a position.
    fn before(&mut self, at: Position) -> impl Iterator<Item = (Position, Position)> {
        let count = self.0.partition_point(|range| range.from < at);
        self.0.drain(..count).map(|range| (range.from, range.to))
    }
}

/// The queue whose effects are wanted. Several queues may have had the name, one after the other.
struct Chosen {
    name: Option<QueueName>,
    ids: BTreeSet<QueueId>,
}

impl Chosen {
    fn new(text: &str) -> Result<Self, NameError> {
        let ids = BTreeSet::from_iter(text.parse().ok().map(QueueId));
        match QueueName::new(text) {
            Ok(name) => Ok(Self {
                name: Some(name),
                ids,
            }),
            Err(_) if !ids.is_empty() => Ok(Self { name: None, ids }),
            Err(error) => Err(error),
        }
    }

    fn takes(&mut self, effect: &Effect) -> bool {
        if let Effect::QueueCreated { queue, name, .. } = effect
            && self.name.as_ref() == Some(name)
        {
            self.ids.insert(*queue);
        }
        queues_of(effect).any(|queue| self.ids.contains(&queue))
    }
}

#[derive(Debug, Serialize)]
pub struct RecordJson {
    position: String,
    number: u64,
    epoch: u64,
    bytes: usize,
    effects: Vec<EffectJson>,
    /// Why it cannot be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn record_json(
    record: &LogRecord,
    stamp: RecordStamp,
    chosen: &mut Option<Chosen>,
    bodies: Bodies,
    damaged: &mut u64,
) -> Option<RecordJson> {
    let mut json = RecordJson {
        position: record.position.to_string(),
        number: stamp.number,
        epoch: stamp.epoch.0,
        bytes: record.payload.len(),
        effects: Vec::new(),
        error: None,
    };
    let effects = match decode_record(&record.payload) {
        Ok(effects) => effects,
        Err(error) => {
            *damaged += 1;
            json.error = Some(error.to_string());
            return Some(json);
        }
    };
    let wanted = effects
        .iter()
        .filter(|effect| chosen.as_mut().is_none_or(|chosen| chosen.takes(effect)));
    json.effects = wanted.map(|effect| effect_json(effect, bodies)).collect();
    (!json.effects.is_empty() || chosen.is_none()).then_some(json)
}

//! `lockgate dump`.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::ControlFlow,
};

use lockgate_core::{
    DamagedRange, LogError, LogRecord, Position, QueueId, QueueName, ReadError, RecordStamp,
    Scanned,
};
use lockgate_machine::{Effect, decode_record};
use serde::Serialize;
use serde_json::json;

use crate::{
    args::Dump,
    exit::{Exit, Failure},
    folder::{self, Bodies, EffectJson, Place, effect_json},
    output::{Output, count, note},
};

pub(crate) fn run(args: &Dump) -> Result<(), Failure> {
    let (place, name) = Place::open(&args.source)?;
    if let Some(standby) = place.standby() {
        note(&format!("{name} is read from {standby}"));
    }
    let mut output = Output::new();
    let damaged = if args.snapshot {
        snapshots(&place, &mut output)?
    } else {
        records(args, &place, &mut output)?
    };
    output.flush()?;
    if damaged > 0 {
        return Err(Failure::new(
            Exit::Damaged,
            format!(
                "{} could not be read; see `lockgate check`",
                count(damaged, "place")
            ),
        ));
    }
    Ok(())
}

/// One line for each record, and for each stretch that cannot be read. Returns how many of those
/// there are.
fn records(args: &Dump, place: &Place, output: &mut Output) -> Result<u64, Failure> {
    let read = |error| Failure::from_error(Exit::Failed, error).context("reading the log");
    let refused = |error| {
        let exit = match error {
            LogError::Disk(_) => Exit::Failed,
            _ => Exit::Refused,
        };
        Failure::from_error(exit, error).context("the log cannot be recovered")
    };
    let snapshots = folder::snapshots(&*place.snapshots()).map_err(read)?;
    // The names of queues that were made before the first record that is left.
    let mut chosen = args.queue.as_deref().map(Chosen::new).transpose()?;
    for machine in snapshots.iter().filter_map(|found| found.machine.as_ref()) {
        if let Some(Chosen { name, ids }) = &mut chosen {
            ids.extend(name.as_ref().and_then(|name| machine.queue_id(name)));
        }
    }
    let from = snapshots.iter().find(|found| found.machine.is_some());
    let from = from.map_or(Position(0), |found| found.position);
    drop(snapshots);
    let (source, report) = place.recovered(from).map_err(refused)?;
    let bodies = if args.bodies {
        Bodies::Shown
    } else {
        Bodies::Hidden
    };
    let from = Position(args.from.unwrap_or(0));
    let to = Position(args.to.unwrap_or(u64::MAX));
    let mut damaged = 0;
    let mut failed = None;
    let mut missing = Missing::new(report.damaged, from, to);
    let scanned = source.reader().scan(Position(0), to, &mut |scanned| {
        let told = match scanned {
            Scanned::Record { record, stamp } => missing
                .before(record.position)
                .try_for_each(|stretch| tell(stretch, &mut damaged, output))
                .and_then(|()| {
                    let line = record_json(&record, stamp, &mut chosen, bodies, &mut damaged);
                    let line = line.filter(|_| record.position >= from);
                    line.map_or(Ok(()), |line| output.json(&line))
                }),
            Scanned::Damaged { from: at, to } => {
                missing.met(at, to);
                if to <= from {
                    Ok(())
                } else {
                    tell((at, to), &mut damaged, output)
                }
            }
        };
        match told {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    });
    if failed.is_none() && scanned.is_ok() {
        (missing.before(Position(u64::MAX)))
            .try_for_each(|stretch| tell(stretch, &mut damaged, output))?;
    }
    if let Some(queue) = &args.queue
        && chosen.is_some_and(|chosen| chosen.ids.is_empty())
        && failed.is_none()
    {
        let what = format!("nothing in it knows of a queue {queue:?}");
        return Err(Failure::new(Exit::NotFound, what));
    }
    match (failed, scanned) {
        (Some(failure), _) => Err(failure),
        (None, Err(ReadError::Log(error))) => Err(read(error)),
        (None, Err(error)) => Err(Failure::from_error(Exit::Failed, error)),
        (None, Ok(())) => Ok(damaged),
    }
}

/// A line for a stretch that cannot be read.
fn tell(
    (from, to): (Position, Position),
    damaged: &mut u64,
    output: &mut Output,
) -> Result<(), Failure> {
    *damaged += 1;
    let stretch = json!({ "from": from.to_string(), "to": to.to_string() });
    output.json(&json!({ "damaged": stretch }))
}

/// What recovery found damaged and a reader never meets: a segment that is missing as a whole, one
/// whose header or whose end cannot be read.
struct Missing(VecDeque<DamagedRange>);

impl Missing {
    fn new(mut damaged: Vec<DamagedRange>, from: Position, to: Position) -> Self {
        damaged.retain(|range| range.to > from && range.from < to);
        damaged.sort_by_key(|range| range.from);
        Self(damaged.into())
    }

    /// The reader met a stretch between these itself.
    fn met(&mut self, from: Position, to: Position) {
        self.0.retain(|range| range.to <= from || range.from >= to);
    }

    /// What lies before a position, and is not told again.
    fn before(&mut self, at: Position) -> impl Iterator<Item = (Position, Position)> {
        let count = self.0.partition_point(|range| range.from < at);
        self.0.drain(..count).map(|range| (range.from, range.to))
    }
}

/// The queue whose effects are wanted. A name may have belonged to several queues, one after the
/// other.
struct Chosen {
    name: Option<QueueName>,
    ids: BTreeSet<QueueId>,
}

impl Chosen {
    fn new(text: &str) -> Result<Self, Failure> {
        let ids = BTreeSet::from_iter(text.parse().ok().map(QueueId));
        match QueueName::new(text) {
            Ok(name) => Ok(Self {
                name: Some(name),
                ids,
            }),
            Err(_) if !ids.is_empty() => Ok(Self { name: None, ids }),
            Err(error) => Err(Failure::usage(format!("--queue: {error}"))),
        }
    }

    fn takes(&mut self, effect: &Effect) -> bool {
        if let Effect::QueueCreated { queue, name, .. } = effect
            && self.name.as_ref() == Some(name)
        {
            self.ids.insert(*queue);
        }
        folder::queues_of(effect).any(|queue| self.ids.contains(&queue))
    }
}

/// A record.
#[derive(Serialize)]
struct RecordJson {
    position: String,
    number: u64,
    epoch: u64,
    bytes: usize,
    effects: Vec<EffectJson>,
    /// What makes no sense in it.
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

/// One line for each snapshot. Returns how many are damaged.
fn snapshots(place: &Place, output: &mut Output) -> Result<u64, Failure> {
    let store = place.snapshots();
    let found = folder::snapshots(&*store)
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("reading snapshots"))?;
    let mut damaged = 0;
    for snapshot in found {
        damaged += u64::from(snapshot.damage.is_some());
        let queues = snapshot.machine.as_ref().map(folder::queues);
        let clock = snapshot.machine.as_ref().map(|machine| {
            json!({
                "shard": machine.term().shard.get(),
                "epoch": machine.term().epoch.0,
                "wall_ms": machine.clock_state().now.wall.0,
                "machine_ms": machine.clock_state().now.machine.0,
            })
        });
        output.json(&json!({
            "position": snapshot.position.to_string(),
            "bytes": snapshot.bytes,
            "pieces": snapshot.pieces,
            "damage": snapshot.damage,
            "as_of": clock,
            "queues": queues,
        }))?;
    }
    Ok(damaged)
}

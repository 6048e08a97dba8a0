//! `lockgate dump`.

use std::ops::ControlFlow;

use lockgate_core::Position;
use lockgate_inspect::{Bodies, Place, RecordsError, Wanted};
use serde_json::json;

use super::place;
use crate::{
    args::Dump,
    exit::{Exit, Failure},
    output::{Output, count, note},
};

pub(crate) fn run(args: &Dump) -> Result<(), Failure> {
    let (place, name) = place::open(&args.source)?;
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

/// One line for each record, and for each stretch that cannot be read. Returns how many make no sense.
fn records(args: &Dump, place: &Place, output: &mut Output) -> Result<u64, Failure> {
    let wanted = Wanted {
        from: Position(args.from.unwrap_or(0)),
        to: Position(args.to.unwrap_or(u64::MAX)),
        queue: args.queue.as_deref(),
        bodies: if args.bodies {
            Bodies::Shown
        } else {
            Bodies::Hidden
        },
    };
    let mut failed = None;
    let damaged = lockgate_inspect::records(place, &wanted, &mut |line| match output.json(line) {
        Ok(()) => ControlFlow::Continue(()),
        Err(failure) => {
            failed = Some(failure);
            ControlFlow::Break(())
        }
    });
    match (failed, damaged) {
        (Some(failure), _) => Err(failure),
        (None, Ok(damaged)) => Ok(damaged),
        (None, Err(error)) => Err(match &error {
            RecordsError::QueueName(error) => Failure::usage(format!("--queue: {error}")),
            RecordsError::UnknownQueue { .. } => Failure::from_error(Exit::NotFound, error),
            RecordsError::Recover(source) | RecordsError::Read(source) => {
                Failure::from_error(Exit::of_log(source), error)
            }
            _ => Failure::from_error(Exit::Failed, error),
        }),
    }
}

/// One line for each snapshot. Returns how many are damaged.
fn snapshots(place: &Place, output: &mut Output) -> Result<u64, Failure> {
    let store = place.snapshots();
    let found = lockgate_inspect::snapshots(&*store).map_err(|error| {
        Failure::from_error(Exit::of_log(&error), error).context("reading snapshots")
    })?;
    let mut damaged = 0;
    for snapshot in found {
        damaged += u64::from(snapshot.damage.is_some() || snapshot.contradiction.is_some());
        let queues = snapshot.machine.as_ref().map(lockgate_inspect::queues);
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
            "damage": snapshot.damage.as_ref().or(snapshot.contradiction.as_ref()),
            "as_of": clock,
            "queues": queues,
        }))?;
    }
    Ok(damaged)
}

//! Unique ids that queues remember for ever: from memory to the index, and look-ups there.
//! docs/internals/unique-ids.md explains it.

use std::sync::Arc;

use lockgate_core::{LogError, Now, QueueId, Sequence, StorageFailure, with_sources};
use lockgate_index::{FolderIndex, IndexError, UniqueIndex};
use lockgate_machine::{Command, EngineCommand, IdAnswer, IdsToIndex, LookedUp, Machine};

use crate::{
    EngineError, EngineOptions, StartError,
    request::{LookUp, Work},
    runtime::Shared,
};

/// Ids go to the index when a queue has more in memory.
pub(crate) const MORE_THAN: usize = 4_096;
/// The most ids of a queue that go at once, which is what the owner copies and drops in one step: a millisecond.
pub(crate) const MOST: usize = 10_000;
/// Ids of a deleted queue that are removed in one step.
const REMOVED: usize = 10_000;

/// The queue's space in the index.
pub(crate) fn space(queue: QueueId) -> u64 {
    u64::from(queue.0)
}

/// Opens the index of the log with that state, and compares them.
///
/// # Errors
/// If the index is damaged or not of that log, and that loss is not accepted.
pub(crate) fn open(machine: &Machine, options: &EngineOptions) -> Result<(), StartError> {
    if !options.checks_index {
        return Ok(());
    }
    let Some(place) = &options.index else {
        let mut needing = machine.indexed_queues().filter(|(_, up_to, _)| up_to.0 > 0);
        return match needing.next() {
            Some((queue, ..)) => Err(StartError::MissingIds {
                queues: vec![format!("{}: there is none", name(machine, queue))],
            }),
            None => Ok(()),
        };
    };
    let index = match place.open() {
        Err(error @ IndexError::Damaged { .. }) if options.accept_loss => {
            let aside = place.set_aside().map_err(StartError::Index)?;
            let error = with_sources(&error);
            tracing::warn!(
                error,
                ?aside,
                "the damaged index of unique ids was set aside"
            );
            None
        }
        opened => opened.map_err(StartError::Index)?,
    };
    let has = |queue| index.as_ref().and_then(|index| index.up_to(space(queue)));
    let missing = machine.indexed_queues().filter_map(|(queue, up_to, next)| {
        let has = has(queue).unwrap_or_default();
        let is_ahead = has >= next.0;
        (has < up_to.0 || is_ahead).then_some((queue, up_to, has, is_ahead))
    });
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    let queues = missing.iter().map(|&(queue, up_to, has, is_ahead)| {
        let name = name(machine, queue);
        match is_ahead {
            true => {
                format!("{name}: it has the id of message {has}, which the log does not have")
            }
            false => {
                format!("{name}: it must be complete up to message {up_to}, and is so up to {has}")
            }
        }
    });
    let queues: Vec<String> = queues.collect();
    if !options.accept_loss {
        return Err(StartError::MissingIds { queues });
    }
    tracing::warn!(
        ?queues,
        "unique ids are forgotten, as the loss was accepted"
    );
    // Complete from here on, with what is there.
    let complete = || {
        let index = place.open_or_make()?;
        for &(queue, up_to, _, is_ahead) in &missing {
            while is_ahead && !index.remove_space(space(queue), REMOVED)? {}
            index.add(space(queue), &[], up_to.0)?;
        }
        index.sync()
    };
    complete().map_err(StartError::Index)
}

fn name(machine: &Machine, queue: QueueId) -> String {
    let described = machine.queue(queue);
    described.map_or_else(|| queue.0.to_string(), |queue| queue.name.to_string())
}

/// The unique ids that the machine wants looked up before it decides these commands.
pub(crate) fn to_look_up(
    machine: &Machine,
    commands: &[Command],
    now: Now,
) -> Vec<(QueueId, u128)> {
    let commands = commands.iter();
    commands
        .flat_map(|command| machine.ids_to_look_up(command, now))
        .collect()
}

impl Shared {
    /// Looks up what the machine wants to know, and returns the commands with it.
    ///
    /// # Errors
    /// [`EngineError::Index`] if the index cannot be read; nothing was decided.
    pub(crate) async fn look_up(&self, look_up: LookUp) -> Result<Work, EngineError> {
        let LookUp { commands, ids } = look_up;
        let index = self.index.as_ref().and_then(|place| place.get());
        let answers = match index {
            Some(index) => self.readers().run(move || answers(&index, ids)).await?,
            // Only a start without its index has none.
            None => Ok(Vec::new()),
        };
        let answers = answers.map_err(|error| EngineError::Index {
            source: StorageFailure::new(error),
        })?;
        let answers = Arc::new(answers.into_iter().collect());
        let commands = commands.into_iter().map(|command| {
            let command = match command {
                Command::LookedUp(earlier) => earlier.command,
                command => command,
            };
            let answers = Arc::clone(&answers);
            Command::LookedUp(Box::new(LookedUp { answers, command }))
        });
        Ok(Work::Commands(commands.collect()))
    }
}

type Answers = Vec<((QueueId, u128), IdAnswer)>;

fn answers(index: &UniqueIndex, mut ids: Vec<(QueueId, u128)>) -> Result<Answers, IndexError> {
    ids.sort_unstable();
    let mut answers = Vec::with_capacity(ids.len());
    for of_queue in ids.chunk_by(|one, other| one.0 == other.0) {
        let queue = of_queue[0].0;
        let digests: Vec<_> = of_queue.iter().map(|(_, id)| *id).collect();
        let looked = index.look_up(space(queue), &digests)?;
        let up_to = Sequence(looked.up_to.unwrap_or_default());
        let found = looked.found.into_iter().map(|found| found.map(Sequence));
        let of_queue = of_queue.iter().zip(found);
        answers.extend(of_queue.map(|(&id, found)| (id, IdAnswer { up_to, found })));
    }
    Ok(answers)
}

/// Adds the ids and makes that durable. Returns what to tell the machine.
pub(crate) fn add(
    place: &FolderIndex,
    to_index: &[IdsToIndex],
) -> Result<Vec<EngineCommand>, LogError> {
    let add = || {
        let index = place.open_or_make()?;
        for IdsToIndex { queue, ids, up_to } in to_index {
            index.add(space(*queue), ids, up_to.0)?;
        }
        index.sync()?;
        let indexed = to_index.iter().filter_map(|of| {
            let up_to = Sequence(index.durable_up_to(space(of.queue))?);
            let queue = of.queue;
            Some(EngineCommand::IdsIndexed { queue, up_to })
        });
        Ok(indexed.collect())
    };
    add().map_err(|error: IndexError| failed("adding unique ids to their index", error))
}

/// Removes some ids of spaces. Returns those that have more.
pub(crate) fn remove(place: &FolderIndex, spaces: &[u64]) -> Result<Vec<u64>, LogError> {
    let mut left = Vec::new();
    if let Some(index) = place.get() {
        for &space in spaces {
            let removed = index.remove_space(space, REMOVED);
            if !removed.map_err(|error| failed("removing unique ids from their index", error))? {
                left.push(space);
            }
        }
    }
    Ok(left)
}

fn failed(what: &str, error: IndexError) -> LogError {
    LogError::Remote {
        what: what.to_owned(),
        source: StorageFailure::new(error),
    }
}

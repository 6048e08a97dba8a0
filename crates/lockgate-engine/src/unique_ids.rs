//! Unique ids that queues and ledgers remember for ever: from memory to the index, and look-ups there.
//! docs/internals/unique-ids.md explains it.

use std::{mem, sync::Arc};

use lockgate_core::{LogError, Now, Sequence, StorageFailure, with_sources};
use lockgate_index::{FolderIndex, IndexError, UniqueIndex};
use lockgate_machine::{Command, EngineCommand, IdAnswer, IdSpace, IdsToIndex, Machine};

use crate::{
    EngineError, EngineOptions, StartError,
    request::{LookUp, Work},
    runtime::Shared,
};

/// The most ids of a queue, or of all ledgers, that go at once, which is what the owner copies and drops in one step: a
/// millisecond.
pub(crate) const MOST: usize = 10_000;
/// Ids of a deleted queue or ledger that are removed in one step.
const REMOVED: usize = 10_000;

/// Opens the index of the log with that state, and compares them.
///
/// # Errors
/// If the index is damaged or not of that log, and that loss is not accepted.
pub(crate) fn open(machine: &Machine, options: &EngineOptions) -> Result<(), StartError> {
    if !options.checks_index {
        return Ok(());
    }
    let Some(place) = &options.index else {
        let needing = machine.id_spaces().filter(|(_, up_to, _)| up_to.0 > 0);
        let spaces: Vec<_> = needing
            .map(|(space, ..)| format!("{}: there is none", name(machine, space)))
            .collect();
        return match spaces.is_empty() {
            true => Ok(()),
            false => Err(StartError::MissingIds { spaces }),
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
    let has = |space: IdSpace| {
        let index = index.as_ref();
        index.and_then(|index| index.up_to(space.number()))
    };
    let missing = machine.id_spaces().filter_map(|(space, up_to, next)| {
        let has = has(space).unwrap_or_default();
        let is_ahead = has >= next.0;
        (has < up_to.0 || is_ahead).then_some((space, up_to, has, is_ahead))
    });
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    let spaces = missing.iter().map(|&(space, up_to, has, is_ahead)| {
        let name = name(machine, space);
        let what = match space {
            IdSpace::Queue(_) => "message",
            IdSpace::Ledger(_) => "event",
        };
        match is_ahead {
            true => {
                format!("{name}: it has the id of {what} {has}, which the log does not have")
            }
            false => {
                format!("{name}: it must be complete up to {what} {up_to}, and is so up to {has}")
            }
        }
    });
    let spaces: Vec<String> = spaces.collect();
    if !options.accept_loss {
        return Err(StartError::MissingIds { spaces });
    }
    tracing::warn!(
        ?spaces,
        "unique ids are forgotten, as the loss was accepted"
    );
    // Complete from here on, with what is there.
    let complete = || {
        let index = place.open_or_make()?;
        for &(space, up_to, _, is_ahead) in &missing {
            while is_ahead && !index.remove_space(space.number(), REMOVED)? {}
            index.add(space.number(), &[], up_to.0)?;
        }
        index.sync()
    };
    complete().map_err(StartError::Index)
}

/// What people call it.
fn name(machine: &Machine, space: IdSpace) -> String {
    let name = match space {
        IdSpace::Queue(queue) => machine.queue(queue).map(|of| format!("queue {}", of.name)),
        IdSpace::Ledger(ledger) => {
            let mut ledgers = machine.ledgers();
            let named = ledgers.find(|of| of.id == ledger);
            named.map(|of| format!("ledger {}", of.name))
        }
    };
    name.unwrap_or_else(|| space.to_string())
}

/// The unique ids that the machine wants looked up before it decides these commands.
pub(crate) fn to_look_up(
    machine: &Machine,
    commands: &[Command],
    now: Now,
) -> Vec<(IdSpace, u128)> {
    let commands = commands.iter();
    commands
        .flat_map(|command| machine.ids_to_look_up(command, now))
        .collect()
}

impl Shared {
    /// Looks up what the machine wants to know, and returns the work with it.
    ///
    /// # Errors
    /// [`EngineError::Index`] if the index cannot be read; nothing was decided.
    pub(crate) async fn look_up(&self, mut look_up: LookUp) -> Result<Work, EngineError> {
        let ids = mem::take(&mut look_up.ids);
        let index = self.index.as_ref().and_then(|place| place.get());
        let answers = match index {
            Some(index) => self.readers().run(move || answers(&index, ids)).await?,
            // Only a start without its index has none.
            None => Ok(Vec::new()),
        };
        let answers = answers.map_err(|error| EngineError::Index {
            source: StorageFailure::new(error),
        })?;
        Ok(look_up.answered(Arc::new(answers.into_iter().collect())))
    }
}

type Answers = Vec<((IdSpace, u128), IdAnswer)>;

fn answers(index: &UniqueIndex, mut ids: Vec<(IdSpace, u128)>) -> Result<Answers, IndexError> {
    ids.sort_unstable();
    let mut answers = Vec::with_capacity(ids.len());
    for of_space in ids.chunk_by(|one, other| one.0 == other.0) {
        let space = of_space[0].0;
        let digests: Vec<_> = of_space.iter().map(|(_, id)| *id).collect();
        let looked = index.look_up(space.number(), &digests)?;
        let up_to = Sequence(looked.up_to.unwrap_or_default());
        let found = looked.found.into_iter().map(|found| found.map(Sequence));
        let of_space = of_space.iter().zip(found);
        answers.extend(of_space.map(|(&id, found)| (id, IdAnswer { up_to, found })));
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
        for IdsToIndex { space, ids, up_to } in to_index {
            index.add(space.number(), ids, up_to.0)?;
        }
        index.sync()?;
        let indexed = to_index.iter().filter_map(|of| {
            let space = of.space;
            let up_to = Sequence(index.durable_up_to(space.number())?);
            Some(EngineCommand::IdsIndexed { space, up_to })
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

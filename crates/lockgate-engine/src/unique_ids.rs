//! Unique ids that queues remember for ever: from memory to the index, and look-ups there.
//! docs/internals/unique-ids.md explains it.

use std::{path::Path, sync::Arc};

use lockgate_core::{LogError, Now, QueueId, Sequence, StorageFailure, with_sources};
use lockgate_index::{FolderIndex, IndexError, IndexOptions, LookedIndex, UniqueIndex};
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
            set_aside(place, &error)?;
            None
        }
        opened => opened.map_err(StartError::Index)?,
    };
    refuse_strays(machine, options, index.as_deref())?;
    let has = |space| index.as_ref().and_then(|index| index.up_to(space));
    let missing = missing(machine, has);
    if missing.is_empty() {
        return Ok(());
    }
    let queues = told(machine, &missing);
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
            if is_ahead {
                // What is behind that is in the machine's memory, as far as the log has it.
                index.cut_space(space(queue), up_to.0)?;
            }
            index.add(space(queue), &[], up_to.0)?;
        }
        index.sync()
    };
    match complete() {
        // A part of it that only reading all of it shows.
        Err(error @ IndexError::Damaged { .. }) => {
            drop(index);
            place.close();
            set_aside(place, &error)?;
            open(machine, options)
        }
        completed => completed.map_err(StartError::Index),
    }
}

fn set_aside(place: &FolderIndex, error: &IndexError) -> Result<(), StartError> {
    let aside = place.set_aside().map_err(StartError::Index)?;
    let error = with_sources(error);
    tracing::warn!(
        error,
        ?aside,
        "the damaged index of unique ids was set aside"
    );
    Ok(())
}

/// A queue with whose ids the index does not fit to the log: up to where it must be complete and is, and whether that
/// is beyond the log's end.
type Missing = (QueueId, Sequence, u64, bool);

/// `has`: up to where a space of the index is complete.
fn missing(machine: &Machine, has: impl Fn(u64) -> Option<u64>) -> Vec<Missing> {
    let missing = machine.indexed_queues().filter_map(|(queue, up_to, next)| {
        let has = has(space(queue)).unwrap_or_default();
        let is_ahead = has >= next.0;
        (has < up_to.0 || is_ahead).then_some((queue, up_to, has, is_ahead))
    });
    missing.collect()
}

fn told(machine: &Machine, missing: &[Missing]) -> Vec<String> {
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
    queues.collect()
}

/// What a look at an index has found.
#[derive(Debug, Default)]
pub struct IndexLook {
    /// Ids that were read.
    pub ids: u64,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// A part of it that cannot be read: a start would serve, and sends with ids in that part would fail.
    pub damage: Option<IndexError>,
}

/// Reads all of the index in a folder, and compares it with a state of its log. Nothing in the folder changes.
///
/// # Errors
/// What a start of that state would end with.
pub fn look_at_index(machine: &Machine, folder: &Path) -> Result<IndexLook, StartError> {
    let index = LookedIndex::open(folder, &IndexOptions::default()).map_err(StartError::Index)?;
    let index = index.as_ref();
    let spaces = index.map(LookedIndex::all_spaces).unwrap_or_default();
    let spaces = strays(machine, spaces);
    if !spaces.is_empty() {
        let folder = folder.to_owned();
        return Err(StartError::StrayIds { folder, spaces });
    }
    let missing = missing(machine, |space| index.and_then(|index| index.up_to(space)));
    if !missing.is_empty() {
        let queues = told(machine, &missing);
        return Err(StartError::MissingIds { queues });
    }
    let Some(index) = index else {
        return Ok(IndexLook::default());
    };
    let (ids, damage) = match index.check() {
        Ok(ids) => (ids, None),
        Err(error) => (0, Some(error)),
    };
    Ok(IndexLook {
        ids,
        disk_bytes: index.disk_bytes(),
        damage,
    })
}

/// The spaces of what the log has never had.
fn strays(machine: &Machine, mut spaces: Vec<u64>) -> Vec<u64> {
    spaces.retain(|&space| !machine.may_have_space(space));
    spaces
}

/// Looks for ids of what the log has never had: numbers of queues are given once, and a queue that gets such a number
/// would take new messages for duplicates.
fn refuse_strays(
    machine: &Machine,
    options: &EngineOptions,
    index: Option<&UniqueIndex>,
) -> Result<(), StartError> {
    let (Some(index), Some(place)) = (index, &options.index) else {
        return Ok(());
    };
    let spaces = strays(machine, index.all_spaces());
    if spaces.is_empty() {
        return Ok(());
    }
    if !options.accept_loss {
        let folder = place.folder().to_owned();
        return Err(StartError::StrayIds { folder, spaces });
    }
    tracing::warn!(
        ?spaces,
        "unique ids of no queue are removed, as the loss was accepted"
    );
    for &space in &spaces {
        while !index
            .remove_space(space, REMOVED)
            .map_err(StartError::Index)?
        {}
    }
    index.sync().map_err(StartError::Index)
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

/// Adds the ids and makes that durable. Returns what to tell the machine, also of a failure: ids that are durable all
/// the same leave memory, so an index that cannot merge its runs does not fill it.
pub(crate) fn add(
    place: &FolderIndex,
    to_index: &[IdsToIndex],
) -> (Vec<EngineCommand>, Result<(), LogError>) {
    let failed = |error| failed("adding unique ids to their index", error);
    let index = match place.open_or_make() {
        Ok(index) => index,
        Err(error) => return (Vec::new(), Err(failed(error))),
    };
    let mut each = to_index.iter();
    let added = each.try_for_each(|IdsToIndex { queue, ids, up_to }| {
        index.add(space(*queue), ids, up_to.0).map(drop)
    });
    let synced = added.and_then(|()| index.sync());
    let indexed = to_index.iter().filter_map(|of| {
        let up_to = Sequence(index.durable_up_to(space(of.queue))?);
        let queue = of.queue;
        Some(EngineCommand::IdsIndexed { queue, up_to })
    });
    (indexed.collect(), synced.map_err(failed))
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn ids(queue: u32, numbers: std::ops::RangeInclusive<u64>) -> IdsToIndex {
        let digest = |number: u64| u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64;
        IdsToIndex {
            queue: QueueId(queue),
            up_to: Sequence(*numbers.end()),
            ids: numbers.map(|number| (digest(number), number)).collect(),
        }
    }

    fn told(commands: &[EngineCommand]) -> Vec<(u32, u64)> {
        let told = commands.iter().map(|command| match command {
            EngineCommand::IdsIndexed { queue, up_to } => (queue.0, up_to.0),
            other => panic!("{other:?}"),
        });
        told.collect()
    }

    #[test]
    fn ids_that_are_durable_leave_memory_though_a_merge_fails() {
        let folder = tempfile::tempdir().unwrap();
        let options = IndexOptions::default();
        let place = FolderIndex::new(folder.path().to_owned(), options);
        let (commands, result) = add(&place, &[ids(1, 1..=500), ids(2, 1..=9)]);
        result.unwrap();
        assert_eq!(told(&commands), [(1, 500), (2, 9)]);
        let mut intact = Vec::new();
        for run in fs::read_dir(folder.path().join("ids/tables")).unwrap() {
            let run = run.unwrap().path();
            let mut bytes = fs::read(&run).unwrap();
            intact.push((run.clone(), bytes.clone()));
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
            fs::write(run, bytes).unwrap();
        }
        let mut up_to = 500;
        loop {
            let (commands, result) = add(&place, &[ids(1, up_to + 1..=up_to + 500)]);
            up_to += 500;
            assert_eq!(told(&commands), [(1, up_to)]);
            assert!(up_to < 50_000, "no merge has failed");
            if result.is_err() {
                break;
            }
        }
        place.close();
        for (run, bytes) in intact {
            fs::write(run, bytes).unwrap();
        }
        assert_eq!(place.open_or_make().unwrap().up_to(1), Some(up_to));
    }

    /// What is not durable stays in memory.
    #[test]
    fn nothing_leaves_memory_if_the_index_cannot_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "no folder").unwrap();
        let place = FolderIndex::new(file, IndexOptions::default());
        let (commands, result) = add(&place, &[ids(1, 1..=5)]);
        assert!(commands.is_empty() && result.is_err());
    }
}

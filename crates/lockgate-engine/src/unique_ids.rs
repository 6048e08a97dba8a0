//! Unique ids that queues and ledgers remember for ever: from memory to the index, and look-ups there.
//! docs/internals/unique-ids.md explains it.

use std::{mem, path::Path, sync::Arc};

use lockgate_core::{LogError, Now, Sequence, StorageFailure, ledger::EventHash, with_sources};
use lockgate_index::{
    FolderIndex, IndexError, IndexOptions, LookedIndex, Owner, Salvaged, UniqueIndex,
};
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
    let opened = place.open().and_then(|index| {
        // A part of it that only reading all of it shows.
        if let (true, Some(index)) = (options.accept_loss, &index) {
            index.check()?;
        }
        Ok(index)
    });
    let index = match opened {
        Err(error @ IndexError::Damaged { .. }) if options.accept_loss => {
            place.close();
            salvage(place, &error)?;
            place.open().map_err(StartError::Index)?
        }
        opened => opened.map_err(StartError::Index)?,
    };
    let owner = machine.secret().map(|secret| owner(&secret));
    let whose = index.as_ref().and_then(|index| index.owner());
    let index = match index {
        Some(index) if is_other(owner, whose) => {
            if !options.accept_loss {
                let folder = place.folder().to_owned();
                return Err(StartError::OtherIndex { folder });
            }
            drop(index);
            place.close();
            let aside = place.set_aside().map_err(StartError::Index)?;
            tracing::warn!(
                ?aside,
                "the index of unique ids of another log was set aside"
            );
            None
        }
        index => index,
    };
    refuse_strays(machine, options, index.as_deref())?;
    if let (Some(index), Some(owner), None) = (&index, owner, whose) {
        index.set_owner(owner).map_err(StartError::Index)?;
    }
    let has = |space| index.as_ref().and_then(|index| index.up_to(space));
    let missing = missing(machine, has);
    if missing.is_empty() {
        return Ok(());
    }
    let spaces = told(machine, &missing);
    if !options.accept_loss {
        return Err(StartError::MissingIds { spaces });
    }
    tracing::warn!(
        ?spaces,
        "unique ids are forgotten, as the loss was accepted"
    );
    // Complete from here on, with what is there.
    let complete = || {
        let index = made(place, owner)?;
        for &(space, up_to, _, is_ahead) in &missing {
            // Of a queue or ledger whose deletion the log has lost, what is left has no use.
            while index.up_to(space.number()).is_none()
                && !index.remove_space(space.number(), REMOVED)?
            {}
            if is_ahead {
                // What is behind that is in the machine's memory, as far as the log has it.
                index.cut_space(space.number(), up_to.0)?;
            }
            index.add(space.number(), &[], up_to.0)?;
        }
        index.sync()
    };
    complete().map_err(StartError::Index)
}

/// Whose an index of that shard is.
pub(crate) fn owner(secret: &[u8; 32]) -> Owner {
    let hash = EventHash::START.next(secret).0;
    *hash.first_chunk().expect("32 bytes are more than 16")
}

/// `whose`: an index without an owner is of an earlier build, or of a backup. A log without a secret has never had an index.
fn is_other(owner: Option<Owner>, whose: Option<Owner>) -> bool {
    whose.is_some() && owner != whose
}

/// The index, open; a new one belongs to that owner.
fn made(place: &FolderIndex, owner: Option<Owner>) -> Result<Arc<UniqueIndex>, IndexError> {
    let index = place.open_or_make()?;
    match (owner, index.owner()) {
        (Some(owner), None) => index.set_owner(owner)?,
        (owner, whose) if is_other(owner, whose) => {
            return Err(IndexError::Damaged {
                folder: place.folder().to_owned(),
                what: "it belongs to another log".to_owned(),
            });
        }
        _ => {}
    }
    Ok(index)
}

/// Keeps what can be read of a damaged index.
fn salvage(place: &FolderIndex, error: &IndexError) -> Result<(), StartError> {
    let error = with_sources(error);
    match place.salvage() {
        Ok(kept) => {
            let Salvaged {
                aside, ids, lost, ..
            } = kept;
            tracing::warn!(
                error,
                ?aside,
                ids,
                lost,
                "the damaged index of unique ids was set aside, and a new one has the ids that could be read of it"
            );
        }
        Err(IndexError::Damaged { .. }) => {
            let aside = place.set_aside().map_err(StartError::Index)?;
            tracing::warn!(
                error,
                ?aside,
                "the damaged index of unique ids was set aside: nothing of it can be read"
            );
        }
        Err(error) => return Err(StartError::Index(error)),
    }
    Ok(())
}

/// A queue or ledger with whose ids the index does not fit to the log: up to where it must be complete and is, and
/// whether that is beyond the log's end.
type Missing = (IdSpace, Sequence, u64, bool);

/// `has`: up to where a space of the index is complete.
fn missing(machine: &Machine, has: impl Fn(u64) -> Option<u64>) -> Vec<Missing> {
    let missing = machine.id_spaces().filter_map(|(space, up_to, next)| {
        let has = has(space.number()).unwrap_or_default();
        let is_ahead = has >= next.0;
        (has < up_to.0 || is_ahead).then_some((space, up_to, has, is_ahead))
    });
    missing.collect()
}

/// Compares the spaces of a backup, each with up to where it is complete, with the state in it. Returns what does not fit.
pub(crate) fn misfits(machine: &Machine, spaces: &[(u64, u64)]) -> Vec<String> {
    let has = |space| {
        let found = spaces.binary_search_by_key(&space, |(space, _)| *space);
        found.ok().map(|found| spaces[found].1)
    };
    let missing = missing(machine, has);
    let mut misfits = told(machine, &missing);
    let spaces = spaces.iter().map(|(space, _)| *space).collect();
    let strays = strays(machine, spaces).into_iter();
    misfits.extend(
        strays.map(|space| format!("number {space}: the state has no such queue or ledger")),
    );
    misfits
}

fn told(machine: &Machine, missing: &[Missing]) -> Vec<String> {
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
    spaces.collect()
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
    let owner = machine.secret().map(|secret| owner(&secret));
    if is_other(owner, index.and_then(LookedIndex::owner)) {
        let folder = folder.to_owned();
        return Err(StartError::OtherIndex { folder });
    }
    let spaces = index.map(LookedIndex::all_spaces).unwrap_or_default();
    let spaces = strays(machine, spaces);
    if !spaces.is_empty() {
        let folder = folder.to_owned();
        return Err(StartError::StrayIds { folder, spaces });
    }
    let missing = missing(machine, |space| index.and_then(|index| index.up_to(space)));
    if !missing.is_empty() {
        let spaces = told(machine, &missing);
        return Err(StartError::MissingIds { spaces });
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

/// Looks for ids of what the log has never had: numbers of queues and ledgers are given once, and one that gets such a
/// number would take new messages or events for duplicates.
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
        "unique ids of no queue or ledger are removed, as the loss was accepted"
    );
    for &space in &spaces {
        while !index
            .remove_space(space, REMOVED)
            .map_err(StartError::Index)?
        {}
    }
    index.sync().map_err(StartError::Index)
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

/// Adds the ids and makes that durable. Returns what to tell the machine, also of a failure: ids that are durable all
/// the same leave memory, so an index that cannot merge its runs does not fill it.
pub(crate) fn add(
    place: &FolderIndex,
    owner: Owner,
    to_index: &[IdsToIndex],
) -> (Vec<EngineCommand>, Result<(), LogError>) {
    let failed = |error| failed("adding unique ids to their index", error);
    let index = match made(place, Some(owner)) {
        Ok(index) => index,
        Err(error) => return (Vec::new(), Err(failed(error))),
    };
    let mut each = to_index.iter();
    let added = each.try_for_each(|IdsToIndex { space, ids, up_to }| {
        let space = space.number();
        let mut added = index.add(space, ids, up_to.0);
        // A removal was begun, and the log has lost the deletion.
        if let Err(IndexError::Removing { .. }) = added {
            while !index.remove_space(space, REMOVED)? {}
            added = index.add(space, ids, up_to.0);
        }
        added.map(drop)
    });
    let synced = added.and_then(|()| index.sync());
    let indexed = to_index.iter().filter_map(|of| {
        let space = of.space;
        let up_to = Sequence(index.durable_up_to(space.number())?);
        Some(EngineCommand::IdsIndexed { space, up_to })
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

    use lockgate_core::QueueId;

    use super::*;

    fn ids(queue: u32, numbers: std::ops::RangeInclusive<u64>) -> IdsToIndex {
        let digest = |number: u64| u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64;
        IdsToIndex {
            space: IdSpace::Queue(QueueId(queue)),
            up_to: Sequence(*numbers.end()),
            ids: numbers.map(|number| (digest(number), number)).collect(),
        }
    }

    fn told(commands: &[EngineCommand]) -> Vec<(u64, u64)> {
        let told = commands.iter().map(|command| match command {
            EngineCommand::IdsIndexed { space, up_to } => (space.number(), up_to.0),
            other => panic!("{other:?}"),
        });
        told.collect()
    }

    #[test]
    fn ids_that_are_durable_leave_memory_though_a_merge_fails() {
        let folder = tempfile::tempdir().unwrap();
        let options = IndexOptions::default();
        let place = FolderIndex::new(folder.path().to_owned(), options);
        let (commands, result) = add(&place, [7; 16], &[ids(1, 1..=500), ids(2, 1..=9)]);
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
            let (commands, result) = add(&place, [7; 16], &[ids(1, up_to + 1..=up_to + 500)]);
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
        let (commands, result) = add(&place, [7; 16], &[ids(1, 1..=5)]);
        assert!(commands.is_empty() && result.is_err());
    }
}

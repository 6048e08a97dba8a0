//! The index of unique ids beside the log. Ids of the ledger move to it, and what the shard wants looked up there comes
//! with the work, sometimes much later. A life may end between any two of these steps.
//!
//! The index itself loses nothing here: it has tests of its own. What must hold: it never has ids of events that the
//! log does not have, and always those that the machine relies on.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
};

use lockgate_core::Sequence;
use lockgate_engine::{LookUp, Request, Work};
use lockgate_machine::{Command, EngineCommand, IdAnswer, IdSpace, IdsToIndex, Query};
use lockgate_sim::SeededRandom;

use crate::{Violation, answers::Asked, planted::Bug, world::World};

pub(crate) struct Index {
    random: SeededRandom,
    ids: BTreeMap<(IdSpace, u128), Sequence>,
    up_to: BTreeMap<IdSpace, Sequence>,
    /// What the machine is to be told.
    moved: Vec<EngineCommand>,
    /// Work with what was looked up for it.
    looked_up: VecDeque<(Work, Vec<Asked>)>,
}

impl Index {
    /// For half of the histories. The others are as they were before ids left memory.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        (seed % 4 < 2).then(|| Self {
            random: SeededRandom::new(seed),
            ids: BTreeMap::new(),
            up_to: BTreeMap::new(),
            moved: Vec::new(),
            looked_up: VecDeque::new(),
        })
    }

    /// The same after a crash, in another future.
    pub(crate) fn fork(&self) -> Self {
        Self {
            random: self.random.clone(),
            ids: self.ids.clone(),
            up_to: self.up_to.clone(),
            moved: Vec::new(),
            looked_up: VecDeque::new(),
        }
    }

    pub(crate) fn crashed(&mut self, bug: Option<Bug>) {
        self.moved.clear();
        self.looked_up.clear();
        if bug == Some(Bug::IndexForgets) {
            self.ids.clear();
            self.up_to.clear();
        }
    }
}

impl World {
    /// Copies some ids to the index; what the machine is told of that comes later.
    pub(crate) fn move_ids(&mut self) {
        let Some(index) = &mut self.index else {
            return;
        };
        if !index.random.chance(40) {
            return;
        }
        let most = 1 + index.random.index(6);
        for of in self.shard().driver.machine().ids_to_index(0, most) {
            let IdsToIndex { space, ids, up_to } = of;
            self.tally.count("ids moved", ids.len() as u64);
            let index = self.index.as_mut().expect("it was there");
            let has = index.up_to.entry(space).or_default();
            // As the index does, which has them already.
            if *has < up_to {
                *has = up_to;
                let ids = ids.into_iter();
                let ids = ids.map(|(id, number)| ((space, id), Sequence(number)));
                index.ids.extend(ids);
            }
            let up_to = *has;
            index.moved.push(EngineCommand::IdsIndexed { space, up_to });
        }
    }

    /// Looks ids up. The work comes again later.
    pub(crate) fn look_up(&mut self, look_up: LookUp, asked: Vec<Asked>) -> Result<(), Violation> {
        let Some(index) = &mut self.index else {
            return Err(format!("{asked:?}: no id has left memory"));
        };
        let is_again = match &look_up.work {
            Work::Commands(commands) => matches!(commands[0], Command::LookedUp(_)),
            Work::Query(query) => matches!(query, Query::FindLookedUp(_)),
            _ => false,
        };
        self.tally.count("looked up", 1);
        self.tally.count("looked up again", is_again.into());
        let answers = look_up.ids.iter().map(|id| {
            let up_to = index.up_to.get(&id.0).copied().unwrap_or_default();
            let found = index.ids.get(id).copied();
            match self.bug {
                // As if nothing could leave memory meanwhile.
                Some(Bug::LateAnswerBelieved) => {
                    let up_to = Sequence(u64::MAX);
                    (*id, IdAnswer { up_to, found })
                }
                Some(Bug::IndexNotAsked) => (*id, IdAnswer { up_to, found: None }),
                _ => (*id, IdAnswer { up_to, found }),
            }
        });
        let answers = Arc::new(answers.collect());
        let work = look_up.answered(answers);
        index.looked_up.push_back((work, asked));
        Ok(())
    }

    /// Some of what is under way between the shard and the index.
    pub(crate) fn index_requests(&mut self) -> Vec<Request<u64>> {
        let Some(index) = &mut self.index else {
            return Vec::new();
        };
        let mut requests = Vec::new();
        let is_told_first = index.random.chance(50);
        let comes = index.random.index(index.looked_up.len() + 1);
        let mut works: Vec<_> = index.looked_up.drain(..comes).collect();
        if index.random.chance(70) {
            let told = mem::take(&mut index.moved).into_iter();
            let told = told.map(|command| (Work::from(command), vec![Asked::Nothing]));
            let at = if is_told_first { 0 } else { works.len() };
            works.splice(at..at, told);
        }
        for (work, asked) in works {
            requests.push(self.request(work, asked));
        }
        requests
    }

    /// Whether the index is of the log, at a start.
    pub(crate) fn check_index(&mut self) -> Result<(), Violation> {
        let spaces: Vec<_> = self.shard().driver.machine().id_spaces().collect();
        let Some(index) = &mut self.index else {
            return Ok(());
        };
        for (space, up_to, next) in spaces {
            let has = index.up_to.get(&space).copied().unwrap_or_default();
            if has >= up_to && has < next {
                continue;
            }
            if !self.damaged {
                return Err(format!(
                    "the index has ids of {space} up to {has}, the machine relies on it up to {up_to}, and is at {next}"
                ));
            }
            // As a start does that accepts the loss.
            index.ids.retain(|id, _| id.0 != space);
            index.up_to.insert(space, up_to);
        }
        Ok(())
    }
}

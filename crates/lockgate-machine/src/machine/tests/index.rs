//! The index of unique ids that stands beside a machine under test.

use std::sync::Arc;

use lockgate_core::Sequence;

use super::harness::Run;
use crate::{Command, EngineCommand, IdAnswer, IdAnswers, IdSpace, IdsToIndex, LookedUp, Reply};

impl Run {
    /// The command with what the index says of these ids.
    pub(super) fn look_up(&self, command: Command, asked: Vec<(IdSpace, u128)>) -> Command {
        let answers = self.answers(asked);
        Command::LookedUp(Box::new(LookedUp { answers, command }))
    }

    /// What the index says of these ids.
    pub(super) fn answers(&self, asked: impl IntoIterator<Item = (IdSpace, u128)>) -> IdAnswers {
        let answers = asked.into_iter().map(|asked| {
            let up_to = self.indexed.get(&asked.0).copied().unwrap_or_default();
            let found = self.index.get(&asked).copied();
            (asked, IdAnswer { up_to, found })
        });
        Arc::new(answers.collect())
    }

    /// Puts the first ids of each queue and ledger into the index, and tells the machine.
    pub(super) fn index(&mut self, most: usize) -> String {
        let mut count = 0;
        for to_index in self.machine.ids_to_index(0, most) {
            let IdsToIndex { space, ids, up_to } = to_index;
            count += ids.len();
            let ids = ids
                .into_iter()
                .map(|(id, number)| ((space, id), Sequence(number)));
            self.index.extend(ids);
            self.indexed.insert(space, up_to);
            let indexed = self.give(&EngineCommand::IdsIndexed { space, up_to });
            assert!(matches!(indexed, Ok(Reply::Done)), "{indexed:?}");
        }
        format!("{count} ids")
    }
}

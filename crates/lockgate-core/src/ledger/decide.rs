//! What an append does, by what its ledger knows.

use std::collections::HashMap;

use bytes::Bytes;

use crate::{Epoch, InputId, UniqueId, WallTime};

use super::{Append, Appended, AppendedEvent, Event, LedgerError, LedgerHead, SequenceId};

/// What a ledger does with an append: all of it in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The events to add, in order, behind the head of before.
    pub new: Vec<Event>,
    /// The inputs of those, to be remembered until they are settled.
    pub inputs: Vec<(InputId, SequenceId)>,
    /// The answer, and the head of now.
    pub appended: Appended,
}

impl Append {
    /// The events whose ids a ledger has to look up before it decides.
    pub fn ids(&self) -> (Vec<&UniqueId>, Vec<&InputId>) {
        let events = || self.events.iter();
        (
            events()
                .filter_map(|event| event.unique_id.as_ref())
                .collect(),
            events().filter_map(|event| event.input.as_ref()).collect(),
        )
    }

    /// Decides what it does to a ledger with that head, at that time by the ledger's clock. The functions say where the event
    /// with an id is, if the ledger knows it. It is within its [bounds](Self::check).
    ///
    /// # Errors
    /// `Deposed`, `Sealed` and `Moved`, in the order of [`Ledger::append`](super::Ledger::append).
    pub fn decide(
        self,
        head: &LedgerHead,
        now: WallTime,
        unique_ids: impl Fn(&UniqueId) -> Option<SequenceId>,
        inputs: impl Fn(&InputId) -> Option<SequenceId>,
    ) -> Result<Decision, LedgerError> {
        head.admits(self.epoch)?;
        let mut decides = Decides {
            head: LedgerHead {
                epoch: self.epoch,
                ..*head
            },
            now: now.max(head.time),
            new: Vec::new(),
            inputs: Vec::new(),
        };
        let (mut new_unique_ids, mut new_inputs) = (HashMap::new(), HashMap::new());
        let mut places = Vec::with_capacity(self.events.len());
        for event in self.events {
            let by_unique_id = event.unique_id.as_ref().and_then(|id| {
                let earlier = unique_ids(id);
                earlier.or_else(|| new_unique_ids.get(id).copied())
            });
            let known = by_unique_id.or_else(|| {
                let input = event.input.as_ref()?;
                let earlier = inputs(input);
                earlier.or_else(|| new_inputs.get(input).copied())
            });
            let sequence_id = known.unwrap_or_else(|| {
                let sequence_id = decides.add(event.unique_id.clone(), event.payload);
                if let Some(id) = event.unique_id {
                    new_unique_ids.insert(id, sequence_id);
                }
                if let Some(input) = event.input {
                    new_inputs.insert(input.clone(), sequence_id);
                    decides.inputs.push((input, sequence_id));
                }
                sequence_id
            });
            places.push(AppendedEvent {
                sequence_id,
                is_duplicate: known.is_some(),
            });
        }
        let last = head.sequence_id;
        if head.is_sealed && !decides.new.is_empty() {
            return Err(LedgerError::Sealed { head: last });
        }
        if self.head.is_some_and(|expected| expected != last) {
            return Err(LedgerError::Moved { head: last });
        }
        Ok(Decision {
            new: decides.new,
            inputs: decides.inputs,
            appended: Appended {
                events: places,
                head: decides.head,
            },
        })
    }
}

struct Decides {
    head: LedgerHead,
    now: WallTime,
    new: Vec<Event>,
    inputs: Vec<(InputId, SequenceId)>,
}

impl Decides {
    fn add(&mut self, unique_id: Option<UniqueId>, payload: Bytes) -> SequenceId {
        let previous_id = self.head.sequence_id;
        self.head.sequence_id = previous_id.next();
        self.head.time = self.now;
        self.head.hash = self.head.hash.map(|last| last.next(&payload));
        self.new.push(Event {
            sequence_id: self.head.sequence_id,
            previous_id,
            unique_id,
            time: self.now,
            epoch: self.head.epoch,
            hash: self.head.hash,
            payload,
        });
        self.head.sequence_id
    }
}

impl LedgerHead {
    /// Before the first event of a ledger.
    #[must_use]
    pub fn start(hashed: bool) -> Self {
        Self {
            sequence_id: SequenceId::START,
            first_id: SequenceId::START.next(),
            epoch: Epoch(0),
            time: WallTime(0),
            hash: hashed.then_some(super::EventHash::START),
            is_sealed: false,
        }
    }

    /// Whether a writer of that term may write.
    ///
    /// # Errors
    /// `Deposed`.
    pub fn admits(&self, epoch: Epoch) -> Result<(), LedgerError> {
        match epoch < self.epoch {
            true => Err(LedgerError::Deposed {
                epoch,
                newest: self.epoch,
            }),
            false => Ok(()),
        }
    }

    /// Whether the ledger has got to that place.
    ///
    /// # Errors
    /// `Beyond`.
    pub fn reaches(&self, sequence_id: SequenceId) -> Result<(), LedgerError> {
        match sequence_id > self.sequence_id {
            true => Err(LedgerError::Beyond {
                sequence_id,
                head: self.sequence_id,
            }),
            false => Ok(()),
        }
    }

    /// Whether the events behind that place are kept.
    ///
    /// # Errors
    /// `Beyond` and `Trimmed`.
    pub fn keeps_behind(&self, after: SequenceId) -> Result<(), LedgerError> {
        self.reaches(after)?;
        let first = self.first_id;
        match after.next() < first {
            true => Err(LedgerError::Trimmed { after, first }),
            false => Ok(()),
        }
    }
}

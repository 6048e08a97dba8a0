//! What a command has decided so far, for its later parts.

use std::{collections::BTreeMap, num::NonZeroU64};

use lockgate_core::{ExchangeId, Level, Position};
use smallvec::SmallVec;

use super::exchanges::STEPS_MAX;
use crate::{Effect, Effects, IdAnswers, Sent, StaleReason, exchanges::Steps};

/// Changes to queues that are looked through one by one.
const DELTAS_MAX: usize = 8;

/// The effects of a command while it is being decided, with the few changes they will make that
/// later effects of the same command depend on. An empty draft allocates nothing.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) effects: Effects,
    /// The highest level that any of the effects needs.
    pub(super) level: Level,
    /// What earlier records must reach before a refusal leaves.
    pub(super) refusal_level: Level,
    pub(super) rests_on: Option<Position>,
    /// Whether there may be several sends or settles.
    pub(super) in_transaction: bool,
    /// The change in the memory of records and states of keys.
    pub(super) record_bytes: i64,
    /// The part of it that is of states.
    pub(super) state_bytes: i64,
    /// Keys that come to be held and owed nothing, some perhaps counted twice.
    pub(super) keys_held: u64,
    /// Of the first queues; those of others are in `more_deltas`, because a publish may go to thousands.
    deltas: SmallVec<[(u32, Delta); 2]>,
    more_deltas: BTreeMap<u32, Delta>,
    /// The steps that the routes of all publishes of the command may still take.
    pub(super) steps: Steps,
    /// Copies of messages that are published.
    pub(super) copies: u64,
    /// Bytes that the record has for these besides one payload of each message.
    pub(super) copied_bytes: usize,
    /// How many messages are published to each exchange.
    pub(super) published: BTreeMap<ExchangeId, u64>,
    /// Whether its messages are accepted whatever ids the queue remembers, which does not remember theirs.
    pub(super) forgets_ids: bool,
    /// What the index says of unique ids in this command.
    pub(super) looked_up: Option<IdAnswers>,
    /// Unique ids sent in this command, by queue and digest.
    pub(super) unique_ids: BTreeMap<(u32, u128), Sent>,
    /// Marks raised in this command, by queue, producer, opening and lane.
    pub(super) marks: BTreeMap<(u32, u32, u64, u8), u64>,
    /// Numbers given to messages of keys in this command, by queue and digest.
    pub(super) key_sequences: BTreeMap<(u32, u128), NonZeroU64>,
    /// Messages settled or given back in this command, and the answer to a later settle of them.
    pub(super) settled: BTreeMap<u32, StaleReason>,
    /// For keys settled in this command, the message that is first now.
    pub(super) fronts: BTreeMap<u32, u32>,
}

/// Changes to a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delta {
    /// Sequence numbers taken.
    pub(super) sequences: u64,
    /// The change in the number of messages.
    pub(super) messages: i64,
    /// The change in bytes.
    pub(super) bytes: i64,
    /// Whether the queue's sequence reserve was raised.
    pub(super) reserved: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            effects: Effects::new(),
            level: Level::Memory,
            refusal_level: Level::Memory,
            rests_on: None,
            in_transaction: false,
            record_bytes: 0,
            state_bytes: 0,
            keys_held: 0,
            deltas: SmallVec::new(),
            more_deltas: BTreeMap::new(),
            steps: Steps::new(STEPS_MAX),
            copies: 0,
            copied_bytes: 0,
            published: BTreeMap::new(),
            forgets_ids: false,
            looked_up: None,
            unique_ids: BTreeMap::new(),
            marks: BTreeMap::new(),
            key_sequences: BTreeMap::new(),
            settled: BTreeMap::new(),
            fronts: BTreeMap::new(),
        }
    }
}

/// As many steps of a route take about as long as one copy.
const STEPS_PER_COPY: u64 = 16;

impl Draft {
    /// What publishes took so far, in copies.
    pub(super) fn copying(&self) -> u64 {
        self.copies + (STEPS_MAX - self.steps.left()) / STEPS_PER_COPY
    }

    /// Adds an effect; the answer waits until it has reached `level`.
    pub(super) fn add(&mut self, effect: Effect, level: Level) {
        self.effects.push(effect);
        self.level = self.level.max(level);
    }

    /// Makes the answer also wait for the record at `position`.
    pub(super) fn rest_on(&mut self, position: Option<Position>) {
        self.rests_on = self.rests_on.max(position);
    }

    /// The changes of this command to the queue so far.
    pub(super) fn delta(&self, queue: u32) -> Delta {
        self.deltas
            .iter()
            .find(|(of, _)| *of == queue)
            .map(|(_, delta)| delta)
            .or_else(|| self.more_deltas.get(&queue))
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn delta_mut(&mut self, queue: u32) -> &mut Delta {
        let at = match self.deltas.iter().position(|(of, _)| *of == queue) {
            Some(at) => at,
            None if self.deltas.len() < DELTAS_MAX => {
                self.deltas.push((queue, Delta::default()));
                self.deltas.len() - 1
            }
            None => return self.more_deltas.entry(queue).or_default(),
        };
        &mut self.deltas[at].1
    }
}

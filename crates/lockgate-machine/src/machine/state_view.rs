//! The whole logical state as one value, for tests and inspection.

use std::{collections::BTreeMap, sync::Arc};

use lockgate_core::{
    ExchangeId, Failures, HolderName, Key, LeaseNumber, LedgerId, Location, MachineTime, MessageId,
    ProducerName, QueueId, QueueName, Record, RecordName, RecordVersion, Revision, ScheduleId,
    Sequence, Term, WallTime, limits::Debt,
};

use super::{
    ClockState, Machine,
    exchanges::ExchangeView,
    key_states::KeyStates,
    ledgers::LedgerView,
    list::List,
    producers::{ProducerView, Producers},
    schedules::ScheduleView,
    state::{State, flag},
};
use crate::{QueueDescription, QueueTotals, slab::NONE};

/// Everything that follows from the log, without volatile parts. Two machines that folded the same
/// effects have equal views.
#[derive(Clone, Debug, PartialEq)]
pub struct StateView {
    pub term: Term,
    pub clock: ClockState,
    pub secret: Option<[u8; 32]>,
    /// The next lease's number in the current term.
    pub next_lease: LeaseNumber,
    /// The next queue's number.
    pub next_queue: QueueId,
    /// Totals of deleted queues.
    pub deleted: QueueTotals,
    pub queues: BTreeMap<QueueName, QueueView>,
    pub records: RecordsView,
    /// How many ledgers were ever made.
    pub ledgers_made: u32,
    pub ledgers: BTreeMap<LedgerId, LedgerView>,
    /// How many exchanges were ever made.
    pub exchanges_made: u32,
    pub exchanges: BTreeMap<ExchangeId, ExchangeView>,
    /// How many schedules were ever made.
    pub schedules_made: u32,
    /// The last generation of a schedule.
    pub schedule_revision: u64,
    pub schedules: BTreeMap<ScheduleId, ScheduleView>,
}

/// The records of a [`StateView`].
#[derive(Clone, Debug, PartialEq)]
pub struct RecordsView {
    /// The records, as of the last logged instant.
    pub records: BTreeMap<RecordName, Record>,
    /// The highest revision that was given out.
    pub revision: Revision,
    /// The highest version of a record that was deleted.
    pub deleted_version: RecordVersion,
}

/// One queue of a [`StateView`].
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView {
    /// The result of a query for it, without volatile counters.
    pub description: QueueDescription,
    /// The next message's number.
    pub next_sequence: Sequence,
    /// Lower numbers may have been given out at level `memory`.
    pub reserved_below: Sequence,
    /// No lease ends after this.
    pub lease_bound: MachineTime,
    /// No leases before this.
    pub held_until: Option<MachineTime>,
    /// What the queue as a whole owes under its limits, and until when somebody holds it.
    pub debt: Debt,
    /// When the next unique id is forgotten.
    pub next_expiry: Option<MachineTime>,
    /// Up to which number its unique ids are in the index, and up to which they do not count.
    pub indexed: Option<(Sequence, Sequence)>,
    /// Digest and last number of each counted key, in the order of their last messages.
    pub key_sequences: Vec<(u128, u64)>,
    /// The states of its keys.
    pub states: BTreeMap<Key, lockgate_core::KeyState>,
    /// The highest version of a state that was dropped.
    pub deleted_version: RecordVersion,
    /// Its producers.
    pub producers: BTreeMap<ProducerName, ProducerView>,
    /// Its keys or groups.
    pub keys: BTreeMap<Option<Key>, KeyView>,
    pub messages: BTreeMap<Sequence, MessageView>,
    /// Its messages except delayed ones, in order of age.
    pub by_age: Vec<Sequence>,
}

/// One key of a [`QueueView`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyView {
    pub order: Vec<Sequence>,
    /// Unkeyed: ready messages that were leased before.
    pub returned: Vec<Sequence>,
    /// Whether the returned messages are next in turn.
    pub returned_next: bool,
    /// Messages that are not due yet, by number.
    pub delayed: Vec<Sequence>,
    /// Whether the key is parked.
    pub parked: bool,
}

/// One message of a [`QueueView`].
#[derive(Clone, Debug, PartialEq)]
pub struct MessageView {
    pub id: MessageId,
    /// Where its bytes are.
    pub location: Location,
    /// When it counts as accepted; for a delayed message, its due time.
    pub since: WallTime,
    /// Bytes of body and headers.
    pub size: u32,
    pub state: MessageState,
    /// Its own time to live in milliseconds, and whether it is over.
    pub time_to_live: Option<(u64, bool)>,
    /// Its last lease in this queue.
    pub lease: Option<LeaseView>,
    /// The queue and number it was moved from.
    pub origin: Option<(QueueId, Sequence)>,
    /// Its failures with a reason.
    pub failures: Option<Arc<Failures>>,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// In its key's order.
    Ready,
    Leased,
    /// Waiting for its next attempt.
    Backoff,
    /// Not due yet.
    Delayed,
}

/// The last lease of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView {
    /// Leases so far.
    pub attempts: u16,
    /// When the first one was given.
    pub first_leased: WallTime,
    /// The last one's term.
    pub term: Term,
    /// The last one's number.
    pub lease: LeaseNumber,
    /// When it, or the backoff after it, ends. `None`: it has ended.
    pub deadline: Option<MachineTime>,
    /// The holder of the lease.
    pub holder: Option<HolderName>,
}

impl Machine {
    /// The whole logical state. Walks everything: for tests and inspection, not for a loop.
    #[must_use]
    pub fn state_view(&self) -> StateView {
        StateView {
            term: self.term(),
            clock: self.clock,
            secret: self.secret,
            next_lease: LeaseNumber(self.next_lease),
            next_queue: QueueId(self.next_queue),
            deleted: self.deleted_totals.kept(),
            queues: self
                .queue_names
                .iter()
                .map(|(name, &index)| (name.clone(), self.queue_snapshot(index)))
                .collect(),
            records: RecordsView {
                records: self.all_records(),
                revision: Revision(self.records.revision),
                deleted_version: RecordVersion(self.records.deleted_version),
            },
            ledgers_made: self.ledgers.made,
            ledgers: self.ledgers.view(),
            exchanges_made: self.exchanges.made,
            exchanges: self.exchanges.view(),
            schedules_made: self.schedules.made,
            schedule_revision: self.schedules.revision,
            schedules: self.schedules.view(),
        }
    }

    fn all_records(&self) -> BTreeMap<RecordName, Record> {
        let names = self.records.by_name.keys();
        names
            .filter_map(|name| Some((name.clone(), self.record(name, self.clock.now)?)))
            .collect()
    }

    fn queue_snapshot(&self, index: u32) -> QueueView {
        let queue = &self.queues[index];
        let content = &self.contents[queue.content];
        let mut description = self.describe(index);
        description.totals = description.totals.kept();
        description.counts.limited_keys = 0;
        description.counts.owing_keys = 0;
        description.limited = None;
        description.held = None;
        let mut keys = BTreeMap::new();
        for (key, state) in self.keys.iter() {
            if state.content == queue.content {
                keys.insert(state.name.clone(), self.key_snapshot(key));
            }
        }
        let states = queue.states.as_deref();
        let by_age = self.walk(content.by_age, |index| self.messages[index].age.after);
        let delayed = self.walk(content.delayed, |index| self.messages[index].age.after);
        QueueView {
            next_sequence: queue.next_sequence,
            reserved_below: queue.reserve.below,
            lease_bound: queue.lease_bound,
            held_until: queue.held_until,
            debt: queue
                .limits
                .as_ref()
                .map(|limits| limits.debt)
                .unwrap_or_default(),
            next_expiry: queue.dedup.next_expiry(),
            indexed: queue.indexed.map(|ids| (ids.up_to, ids.forgotten)),
            key_sequences: queue.key_sequences.iter().collect(),
            states: states
                .iter()
                .flat_map(|states| states.iter())
                .map(|(key, state)| (key.clone(), state))
                .collect(),
            deleted_version: states.map_or_else(RecordVersion::default, KeyStates::deleted_version),
            producers: queue
                .producers
                .as_deref()
                .map(Producers::view)
                .unwrap_or_default(),
            keys,
            messages: by_age
                .iter()
                .chain(&delayed)
                .map(|&message| {
                    let sequence = self.messages[message].sequence();
                    (sequence, self.message_snapshot(index, message))
                })
                .collect(),
            by_age: self.sequences(&by_age),
            description,
        }
    }

    fn key_snapshot(&self, key: u32) -> KeyView {
        let state = &self.keys[key];
        let list = |list| {
            let indexes = self.walk(list, |index| self.messages[index].order.after);
            self.sequences(&indexes)
        };
        let mut delayed = list(state.delayed);
        delayed.sort_unstable();
        KeyView {
            order: list(state.order),
            returned: list(state.returned),
            returned_next: state.returned_next,
            delayed,
            parked: state.parked,
        }
    }

    fn message_snapshot(&self, queue: u32, index: u32) -> MessageView {
        let message = &self.messages[index];
        let origin = self.origin(index);
        MessageView {
            id: origin.map_or_else(
                || self.queues[queue].id_of(message.sequence()),
                |origin| origin.id,
            ),
            location: message.location(),
            since: message.since(),
            size: message.size,
            state: match message.state {
                State::Ready => MessageState::Ready,
                State::Leased => MessageState::Leased,
                State::Backoff => MessageState::Backoff,
                State::Delayed => MessageState::Delayed,
            },
            time_to_live: self.time_to_live(index).map(|entry| {
                let span = self.times_to_live[entry].span;
                (span, message.has(flag::OVERDUE))
            }),
            lease: self.leased_once(index).map(|lease_state| LeaseView {
                attempts: lease_state.attempts,
                first_leased: lease_state.first_leased(),
                term: self.term_of(lease_state.term),
                lease: lease_state.lease(),
                deadline: self
                    .deadline(index)
                    .filter(|_| matches!(message.state, State::Leased | State::Backoff))
                    .map(MachineTime),
                holder: (lease_state.holder != NONE)
                    .then(|| self.holders[lease_state.holder].name.clone()),
            }),
            origin: origin.map(|origin| (origin.queue, origin.sequence)),
            failures: self.failures(index).cloned(),
        }
    }

    fn walk(&self, list: List, after: impl Fn(u32) -> u32) -> Vec<u32> {
        let some = |index| (index != NONE).then_some(index);
        std::iter::successors(some(list.first), |&index| some(after(index))).collect()
    }

    fn sequences(&self, indexes: &[u32]) -> Vec<Sequence> {
        let sequence = |&index: &u32| self.messages[index].sequence();
        indexes.iter().map(sequence).collect()
    }
}

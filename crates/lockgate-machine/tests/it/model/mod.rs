//! What a shard must do, in the plainest code that can say it: vectors, linear scans, no index, no
//! timer. Written from docs/semantics.md, ARCHITECTURE.md and the public documentation, to be read
//! side by side with them.
//!
//! The model computes every reply itself and compares it with the machine's. One thing it leaves to
//! the machine: *which* of several leasable keys (or groups) a receive serves first. There it checks
//! that each choice was allowed, and that nothing allowed was left out.

pub(crate) mod exchanges;
mod explain;
mod limits;
mod producers;
mod receive;
pub(crate) mod records;
mod send;
mod settle;
mod states;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{
    BootId, FailedAttempt, Failures, HolderName, Key, KeyState, LeaseToken, Level, Location,
    MachineTime, MessageId, Millis, Now, Position, ProducerName, QueueId, QueueName, RecordVersion,
    Sequence, Term, UniqueId, WallTime,
};
use lockgate_machine::*;

/// Leases up to this length are covered by the lease bound.
const LEASE_BOUND: Millis = 30_000;
const TWELVE_HOURS: Millis = 12 * 3600 * 1000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) now: Now,
    pub(crate) term: Term,
    boot: BootId,
    started: bool,
    pub(crate) queues: BTreeMap<QueueName, Queue>,
    records: records::Records,
    pub(crate) exchanges: exchanges::Exchanges,
    next_queue: u32,
    arrivals: u64,
    /// Everything that starts before it is durable. `None`: everything is.
    pub(crate) durable: Option<Position>,
    /// Where the record of the command in hand is.
    at: Position,
    /// Messages the transaction in hand has settled, and what a second settle of them is told. By their id
    /// too: a token of a message that a power cut took may name the same number.
    settled: BTreeMap<(QueueId, Sequence, MessageId), StaleReason>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) settings: QueueSettings,
    annotations: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
    created: WallTime,
    changed: WallTime,
    paused: bool,
    next_sequence: u64,
    pub(crate) messages: Vec<Message>,
    remembered: Vec<Remembered>,
    /// How many messages each key had, in the order of their last ones.
    key_sequences: Vec<(Key, u64)>,
    /// The record that is being made, and the numbers of keys as far as it is.
    numbered: (Position, BTreeMap<Key, u64>),
    parked: BTreeSet<Key>,
    pub(crate) states: BTreeMap<Key, KeyState>,
    /// The highest version of a state that was dropped.
    dropped_version: RecordVersion,
    producers: BTreeMap<ProducerName, producers::Producer>,
    /// The record that last changed a state.
    state_at: Option<Position>,
    /// Record of the last settle or removal under each key.
    settled_at: BTreeMap<Key, Position>,
    /// Under which profile each key was leased; it stays until nothing of the key is leased.
    leased_under: BTreeMap<Key, KeyProfile>,
    /// Record of the command that took each message that is gone.
    gone_at: BTreeMap<Sequence, Position>,
    lease_bound: MachineTime,
    held_until: Option<MachineTime>,
    reserved_below: u64,
    charged: limits::Charged,
    totals: QueueTotals,
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) sequence: Sequence,
    pub(crate) id: MessageId,
    pub(crate) key: Option<Key>,
    pub(crate) size: u64,
    pub(crate) state: State,
    location: Location,
    /// Counts as accepted then.
    since: WallTime,
    /// Its place among the messages that became deliverable; none while it is delayed.
    arrival: Option<u64>,
    attempts: u16,
    first_leased: WallTime,
    /// Its last lease in this queue, and whether that was given back.
    pub(crate) last_lease: Option<(LeaseToken, bool)>,
    /// Unkeyed: it was leased before, so it no longer stands in the order of arrival.
    returned: bool,
    time_to_live: Option<Millis>,
    overdue: bool,
    origin: Option<Origin>,
    /// All that failed with a reason, also in other queues.
    failures: Vec<FailedAttempt>,
    /// It is leasable only when this record is durable.
    waits_for: Option<Position>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Ready,
    Leased {
        given: MachineTime,
        until: MachineTime,
        holder: HolderName,
    },
    Backoff {
        until: MachineTime,
    },
    Delayed {
        due: WallTime,
    },
}

#[derive(Clone, Debug)]
struct Remembered {
    scope: Option<Key>,
    id: UniqueId,
    until: MachineTime,
    sequence: Sequence,
    message: MessageId,
    position: Position,
}

/// A message as a look at its queue shows it.
pub(crate) type Shown = (Sequence, MessageId, u16, MessageWait, Option<Arc<Failures>>);

/// What a settle did, beside changing the model.
type Settling = Result<Result<Settled, StaleReason>, Rejection>;

impl Model {
    /// Everything that time alone brings about by `now`.
    pub(crate) fn advance(&mut self, now: Now) {
        self.now = Now {
            wall: now.wall,
            machine: now.machine.max(self.now.machine),
        };
        let now = self.now;
        self.records.advance(now);
        for queue in self.queues.values_mut() {
            if queue.held_until.is_some_and(|until| until <= now.machine) {
                queue.held_until = None;
            }
            queue.remembered.retain(|id| id.until > now.machine);
            queue.forget_producers(now);
            // Leases and backoffs.
            let parks_after = (queue.settings.keyed && queue.policy() == KeyPolicy::Park)
                .then_some(queue.settings.attempts_max);
            for message in &mut queue.messages {
                match &message.state {
                    State::Leased { until, .. } if *until <= now.machine => {
                        queue.totals.leases_ended += 1;
                        if parks_after.is_some_and(|limit| message.attempts >= limit) {
                            queue.parked.extend(message.key.clone());
                        }
                        message.state = State::Ready;
                    }
                    State::Backoff { until } if *until <= now.machine => {
                        message.state = State::Ready;
                    }
                    _ => {}
                }
            }
            // Due messages join the order at their due time, ties by acceptance.
            let mut due: Vec<_> = (0..queue.messages.len())
                .filter_map(|index| match queue.messages[index].state {
                    State::Delayed { due } if due <= now.wall => {
                        Some((due, queue.messages[index].sequence, index))
                    }
                    _ => None,
                })
                .collect();
            due.sort();
            for (_, _, index) in due {
                queue.messages[index].state = State::Ready;
                queue.messages[index].arrival = Some(self.arrivals);
                self.arrivals += 1;
            }
            // Age. What is leased is left to its holder.
            let retention = queue.settings.retention;
            for message in &mut queue.messages {
                let lived_out = message
                    .time_to_live
                    .is_some_and(|span| message.since.plus(span) <= now.wall);
                message.overdue |= lived_out;
            }
            let before = queue.messages.len();
            queue.messages.retain(|message| {
                let old = message.since.plus(retention) <= now.wall || message.overdue;
                let free = matches!(message.state, State::Ready | State::Backoff { .. });
                !(old && free)
            });
            queue.totals.dropped.expired += (before - queue.messages.len()) as u64;
            queue.forget_idle_keys();
        }
    }

    /// How long it is until each thing that time alone will bring about.
    pub(crate) fn upcoming(&self) -> Vec<Millis> {
        let now = self.now;
        let ends = self.records.ends();
        let mut spans: Vec<_> = ends.map(|end| end.since(now.machine)).collect();
        for queue in self.queues.values() {
            spans.extend(queue.held_until.map(|until| until.since(now.machine)));
            spans.extend(queue.limited_for(now.machine));
            spans.extend(queue.producers_last(now));
            spans.extend(
                queue
                    .remembered
                    .iter()
                    .map(|id| id.until.since(now.machine)),
            );
            for message in &queue.messages {
                spans.push(match message.state {
                    State::Leased { until, .. } | State::Backoff { until } => {
                        until.since(now.machine)
                    }
                    State::Delayed { due } => due.since(now.wall),
                    State::Ready => message.since.plus(queue.settings.retention).since(now.wall),
                });
                let end = message.time_to_live.map(|span| message.since.plus(span));
                spans.extend(end.map(|end| end.since(now.wall)));
            }
        }
        spans.retain(|span| (1..100_000_000).contains(span));
        spans
    }

    fn for_engine(&mut self, command: &EngineCommand) -> Result<Reply, Rejection> {
        match command {
            EngineCommand::StartTerm { term, boot_id, .. } => {
                self.start_term(*term, *boot_id);
                Ok(Reply::Done)
            }
            EngineCommand::EndTerm => {
                for queue in self.queues.values_mut() {
                    queue.reserved_below = 0;
                }
                Ok(Reply::Done)
            }
            // Whatever was due happened before.
            EngineCommand::Advance => Ok(Reply::Done),
            EngineCommand::Damaged { queue, sequence } => {
                Ok(Reply::Dropped(self.damaged(*queue, *sequence)))
            }
            other => panic!("the model does not know {other:?}"),
        }
    }

    /// Takes in the command that the machine decided so, with its record at `at`; panics where the
    /// machine did or said anything else than it should.
    pub(crate) fn take(&mut self, command: AnyCommand<'_>, decision: &Decision, at: Position) {
        self.at = at;
        self.settled.clear();
        let before = self.clone();
        let expected: Result<Reply, Rejection> = match command {
            AnyCommand::Engine(command) => self.for_engine(command),
            AnyCommand::Caller(Command::CreateQueue(create)) => self.create_queue(create),
            AnyCommand::Caller(Command::ChangeQueue(ChangeQueue {
                queue,
                settings,
                annotations,
                tags,
            })) => self.change_queue(queue, settings.as_deref(), annotations, tags),
            AnyCommand::Caller(Command::Purge(Purge { queue })) => self.purge(queue),
            AnyCommand::Caller(Command::Pause(Pause { queue, paused })) => {
                self.found_mut(queue).map(|queue| {
                    queue.paused = *paused;
                    Reply::Done
                })
            }
            AnyCommand::Caller(Command::Send(send)) => self.send(send, decision).map(Reply::Sent),
            AnyCommand::Caller(Command::Receive(receive)) => {
                self.receive(receive, decision);
                self.note_what_is_gone(&before);
                return;
            }
            AnyCommand::Caller(Command::Settle(settle)) => {
                self.settle(settle, decision).map(|outcome| {
                    Reply::Settled(match outcome {
                        Ok(settled) => settled,
                        Err(stale) => Settled::Stale(stale),
                    })
                })
            }
            AnyCommand::Caller(Command::Transact(transact)) => self.transact(transact, decision),
            AnyCommand::Caller(Command::Cancel(Cancel { queue, message })) => {
                self.cancel(queue, *message)
            }
            AnyCommand::Caller(Command::Reschedule(Reschedule {
                queue,
                message,
                due,
            })) => self.reschedule(queue, *message, *due),
            AnyCommand::Caller(Command::Move(command)) => self.redrive(command, decision),
            AnyCommand::Caller(Command::ChangeKey(ChangeKey { queue, key, action })) => {
                self.key(queue, key, *action)
            }
            AnyCommand::Caller(Command::ChangeKeyState(change)) => {
                self.change_state(change, decision)
            }
            AnyCommand::Caller(Command::Hold(hold)) => self.hold(hold),
            AnyCommand::Caller(Command::OpenProducer(open)) => self.open_producer(open),
            AnyCommand::Caller(Command::ForgetProducer(forget)) => self.forget_producer(forget),
            AnyCommand::Caller(command) => self.take_other(command, decision),
        };
        if expected.is_err() {
            *self = Self {
                queues: self.stale_counts_onto(before.queues.clone()),
                exchanges: self.refused_onto(before.exchanges.clone()),
                ..before.clone()
            };
            assert!(decision.effects.is_empty(), "a refusal has effects");
        }
        assert_eq!(
            format!("{expected:?}"),
            format!("{:?}", decision.outcome),
            "expected on the left, got on the right, for {command:?}"
        );
        self.note_what_is_gone(&before);
        for queue in self.queues.values_mut() {
            for effect in &decision.effects {
                if let Effect::SequencesReserved { queue: id, below } = effect
                    && *id == queue.id
                {
                    queue.reserved_below = queue.reserved_below.max(below.0);
                }
            }
        }
    }

    fn note_what_is_gone(&mut self, before: &Self) {
        for (name, queue) in &mut self.queues {
            queue.forget_idle_keys();
            for message in before
                .queues
                .get(name)
                .map_or(&[][..], |queue| &queue.messages)
            {
                if queue.message(message.sequence).is_none() {
                    queue.gone_at.insert(message.sequence, self.at);
                }
            }
        }
    }

    /// What a restart forgets.
    pub(crate) fn forget_volatile(&mut self) {
        self.durable = None;
        self.forget_refused();
        for queue in self.queues.values_mut() {
            queue.totals.duplicates = 0;
            queue.totals.stale_settles = 0;
            queue.totals.sent_before = 0;
            queue.totals.fenced = 0;
        }
    }

    /// A refused command changes nothing but the counts of stale tokens and of records of producers.
    fn stale_counts_onto(
        &self,
        mut queues: BTreeMap<QueueName, Queue>,
    ) -> BTreeMap<QueueName, Queue> {
        for (name, queue) in &mut queues {
            if let Some(now) = self.queues.get(name) {
                queue.totals.stale_settles = now.totals.stale_settles;
                queue.totals.sent_before = now.totals.sent_before;
                queue.totals.fenced = now.totals.fenced;
            }
        }
        queues
    }

    /// Whether a receive would find something.
    pub(crate) fn leasable(&self, name: &QueueName) -> bool {
        let Some(queue) = self.queues.get(name) else {
            return false;
        };
        queue.gives_leases()
            && queue.in_flight() < u64::from(queue.settings.in_flight_max)
            && !self.startable(queue, &BTreeSet::new()).is_empty()
    }

    /// All about a queue, as a query must tell it.
    pub(crate) fn describe(&self, name: &QueueName) -> Option<QueueDescription> {
        let queue = self.queues.get(name)?;
        let count = |wanted: fn(&State) -> bool| {
            queue
                .messages
                .iter()
                .filter(|message| wanted(&message.state))
                .count() as u64
        };
        let keys: BTreeSet<_> = queue.messages.iter().map(|message| &message.key).collect();
        let oldest = queue
            .messages
            .iter()
            .filter_map(|message| Some((message.arrival?, message.since)))
            .min();
        Some(QueueDescription {
            id: queue.id,
            name: name.clone(),
            settings: queue.settings.clone(),
            annotations: queue.annotations.clone(),
            tags: queue.tags.clone(),
            created: queue.created,
            changed: queue.changed,
            paused: queue.paused,
            limited: queue.limited(self.now.machine),
            held: queue.held(self.now.machine),
            counts: QueueCounts {
                ready: count(|state| *state == State::Ready),
                in_flight: queue.in_flight(),
                delayed: count(|state| matches!(state, State::Delayed { .. })),
                bytes: queue.messages.iter().map(|message| message.size).sum(),
                keys: keys.len() as u64,
                parked_keys: queue.parked.len() as u64,
                limited_keys: self.limited_keys(queue),
                owing_keys: queue.owing_keys(self.now.machine),
                unique_ids: queue.remembered.len() as u64,
                states: queue.states.len() as u64,
                state_bytes: queue.state_bytes(),
                producers: queue.producers.len() as u64,
                producer_openings: queue
                    .producers
                    .values()
                    .map(|producer| producer.openings.len() as u64)
                    .sum(),
                oldest: oldest.map(|(_, since)| since),
            },
            totals: queue.totals,
        })
    }

    /// What a look at the queue, or at one of its keys, shows: what arrived, in that order, then what is
    /// not yet due.
    pub(crate) fn messages(&self, name: &QueueName, key: Option<&Key>) -> Vec<Shown> {
        let Some(queue) = self.queues.get(name) else {
            return Vec::new();
        };
        let mut messages: Vec<_> = queue
            .messages
            .iter()
            .filter(|message| key.is_none() || message.key.as_ref() == key)
            .collect();
        messages
            .sort_by_key(|message| (message.arrival.is_none(), message.arrival, message.sequence));
        messages
            .iter()
            .map(|message| {
                let waits_for = match &message.state {
                    State::Ready => MessageWait::Turn,
                    State::Delayed { due } => MessageWait::Due { at: *due },
                    State::Leased { until, holder, .. } => MessageWait::Lease {
                        holder: holder.clone(),
                        remaining: until.since(self.now.machine),
                    },
                    State::Backoff { until } => MessageWait::Backoff {
                        remaining: until.since(self.now.machine),
                    },
                };
                let failures = message.kept_failures();
                (
                    message.sequence,
                    message.id,
                    message.attempts,
                    waits_for,
                    failures,
                )
            })
            .collect()
    }

    pub(crate) fn is_keyed(&self, name: &QueueName) -> bool {
        let queue = self.queues.get(name);
        queue.is_some_and(|queue| queue.settings.keyed)
    }

    pub(crate) fn is_parked(&self, name: &QueueName, key: &Key) -> bool {
        let queue = self.queues.get(name);
        queue.is_some_and(|queue| queue.parked.contains(key))
    }

    fn is_durable(&self, message: &Message) -> bool {
        match (message.waits_for, self.durable) {
            (Some(record), Some(durable)) => record < durable,
            _ => true,
        }
    }

    fn start_term(&mut self, term: Term, boot: BootId) {
        let power_cut = self.started && boot != self.boot;
        self.started = true;
        self.term = term;
        self.boot = boot;
        let now = self.now;
        for queue in self.queues.values_mut() {
            // Numbers that may have been told before they were lost are not given out again.
            let skipped = queue.reserved_below.saturating_sub(queue.next_sequence);
            queue.totals.possibly_lost += skipped;
            queue.next_sequence += skipped;
            queue.reserved_below = 0;
            if power_cut && queue.settings.keyed && queue.lease_bound > now.machine {
                queue.held_until = Some(queue.lease_bound);
            }
        }
    }

    fn create_queue(&mut self, create: &CreateQueue) -> Result<Reply, Rejection> {
        let existed = self.queues.contains_key(&create.name);
        if !existed {
            self.check_settings(&create.name, None, &create.settings)?;
            self.next_queue += 1;
            let mut queue = Queue {
                id: QueueId(self.next_queue),
                settings: create.settings.clone(),
                annotations: create.annotations.clone(),
                tags: create.tags.clone(),
                created: self.now.wall,
                changed: self.now.wall,
                paused: false,
                next_sequence: 1,
                messages: Vec::new(),
                remembered: Vec::new(),
                key_sequences: Vec::new(),
                numbered: Default::default(),
                parked: BTreeSet::new(),
                states: BTreeMap::new(),
                dropped_version: RecordVersion(0),
                producers: BTreeMap::new(),
                state_at: None,
                settled_at: BTreeMap::new(),
                leased_under: BTreeMap::new(),
                gone_at: BTreeMap::new(),
                lease_bound: MachineTime(0),
                held_until: None,
                reserved_below: 0,
                charged: limits::Charged::default(),
                totals: QueueTotals::default(),
            };
            queue.take_limits(self.now.machine);
            self.queues.insert(create.name.clone(), queue);
        }
        let description = self.describe(&create.name).expect("it is there now");
        Ok(Reply::Queue(CreatedQueue {
            existed,
            description: Box::new(description),
        }))
    }

    fn change_queue(
        &mut self,
        name: &QueueName,
        settings: Option<&QueueSettings>,
        annotations: &Option<BTreeMap<String, String>>,
        tags: &Option<BTreeMap<String, String>>,
    ) -> Result<Reply, Rejection> {
        let before = &self.found(name)?.settings;
        if let Some(settings) = settings {
            if settings.keyed != before.keyed {
                return Err(Rejection::Settings {
                    queue: name.clone(),
                    source: SettingsError::KeyedIsFixed,
                });
            }
            self.check_settings(name, before.dead_letter.as_ref(), settings)?;
        }
        let (now, machine) = (self.now.wall, self.now.machine);
        let queue = self.found_mut(name)?;
        let (scope, from) = (queue.settings.dedup_scope, queue.settings.dedup_scope_from);
        queue.settings = settings.unwrap_or(&queue.settings).clone();
        let pending = from.is_some_and(|from| machine < from);
        queue.settings.dedup_scope_from = match (queue.settings.dedup_scope == scope, pending) {
            (true, _) => from,
            (false, true) => Some(machine),
            (false, false) => Some(machine.plus(60_000)),
        };
        queue.annotations = annotations.as_ref().unwrap_or(&queue.annotations).clone();
        queue.tags = tags.as_ref().unwrap_or(&queue.tags).clone();
        queue.changed = now;
        if queue.settings.key_sequences_max == 0 {
            queue.key_sequences.clear();
        }
        queue.take_limits(machine);
        Ok(Reply::Done)
    }

    /// Only what the generated histories can get wrong.
    fn check_settings(
        &self,
        name: &QueueName,
        before: Option<&QueueName>,
        settings: &QueueSettings,
    ) -> Result<(), Rejection> {
        let refuse = |source| {
            Err(Rejection::Settings {
                queue: name.clone(),
                source,
            })
        };
        let dead_letter = settings.dead_letter.as_ref();
        if dead_letter.is_some_and(|dead_letter| dead_letter == name) {
            return refuse(SettingsError::OwnDeadLetter);
        }
        if settings.key_policy == Some(KeyPolicy::Skip) && dead_letter.is_none() {
            return refuse(SettingsError::SkipWithoutDeadLetter);
        }
        if settings.key_policy == Some(KeyPolicy::Park) && !settings.keyed {
            return refuse(SettingsError::NeedsKeys {
                what: "key_policy park",
            });
        }
        // A dead-letter queue that was deleted since it was set stands in no other change's way.
        let Some(dead_letter) = dead_letter.filter(|_| dead_letter != before) else {
            return Ok(());
        };
        let queue = dead_letter.clone();
        match self.queues.get(&queue) {
            None => refuse(SettingsError::DeadLetterMissing { queue }),
            Some(found) if found.settings.keyed != settings.keyed => {
                refuse(SettingsError::DeadLetterKind { queue })
            }
            Some(_) => Ok(()),
        }
    }

    fn purge(&mut self, name: &QueueName) -> Result<Reply, Rejection> {
        let queue = self.found_mut(name)?;
        queue.totals.dropped.purged += queue.messages.len() as u64;
        let messages = queue.messages.len() as u64;
        queue.messages.clear();
        queue.settled_at.clear();
        queue.parked.clear();
        if !queue.settings.dedup_survives_purge {
            queue.remembered.clear();
        }
        Ok(Reply::Dropped(messages))
    }

    fn cancel(&mut self, name: &QueueName, id: MessageId) -> Result<Reply, Rejection> {
        let at = self.at;
        let sequence = self.waiting(name, id)?;
        let queue = self.found_mut(name)?;
        queue.note_removal(sequence, at);
        queue.remove(sequence);
        queue.totals.dropped.cancelled += 1;
        Ok(Reply::Done)
    }

    fn reschedule(
        &mut self,
        name: &QueueName,
        id: MessageId,
        due: WallTime,
    ) -> Result<Reply, Rejection> {
        let sequence = self.waiting(name, id)?;
        let due = due.max(self.now.wall);
        let message = self.found_mut(name)?.message_mut(sequence).unwrap();
        message.state = State::Delayed { due };
        message.since = due;
        message.arrival = None;
        message.returned = false;
        message.overdue = false;
        Ok(Reply::Done)
    }

    /// The message with that id, sent or moved to that queue, which nobody holds.
    fn waiting(&self, name: &QueueName, id: MessageId) -> Result<Sequence, Rejection> {
        let queue = self.found(name)?;
        let found = queue.messages.iter().find(|message| message.id == id);
        match found {
            None => Err(Rejection::MessageNotFound {
                queue: name.clone(),
                message: id,
            }),
            Some(message) if matches!(message.state, State::Leased { .. }) => {
                Err(Rejection::MessageInFlight {
                    queue: name.clone(),
                    message: id,
                })
            }
            Some(message) => Ok(message.sequence),
        }
    }

    fn key(&mut self, name: &QueueName, key: &Key, action: KeyAction) -> Result<Reply, Rejection> {
        let at = self.at;
        let queue = self.found_mut(name)?;
        let not_found = Rejection::KeyNotFound {
            queue: name.clone(),
            key: key.clone(),
        };
        let of_key = |message: &Message| message.key.as_ref() == Some(key);
        let known = queue.messages.iter().any(of_key) || queue.parked.contains(key);
        match action {
            KeyAction::Park | KeyAction::Resume if !queue.settings.keyed => Err(not_found),
            KeyAction::Park => {
                queue.parked.insert(key.clone());
                Ok(Reply::Done)
            }
            _ if !known => Err(not_found),
            KeyAction::Resume => {
                if queue.parked.remove(key) {
                    let front = queue
                        .messages
                        .iter_mut()
                        .filter(|message| of_key(message) && message.arrival.is_some())
                        .min_by_key(|message| message.arrival);
                    if let Some(front) = front
                        && !matches!(front.state, State::Leased { .. })
                    {
                        front.attempts = 0;
                    }
                }
                Ok(Reply::Done)
            }
            KeyAction::Drop => {
                let before = queue.messages.len();
                let keyed = queue.settings.keyed;
                queue.messages.retain(|message| {
                    let in_flight = match message.state {
                        State::Leased { .. } => true,
                        State::Backoff { .. } => !keyed,
                        _ => false,
                    };
                    !of_key(message) || in_flight
                });
                let messages = (before - queue.messages.len()) as u64;
                queue.totals.dropped.key_dropped += messages;
                if messages > 0 {
                    queue.settled_at.insert(key.clone(), at);
                }
                // Nothing waits any more that it could be frozen for.
                queue.parked.remove(key);
                Ok(Reply::Dropped(messages))
            }
        }
    }

    fn damaged(&mut self, id: QueueId, sequence: Sequence) -> u64 {
        let at = self.at;
        let queue = self.queues.values_mut().find(|queue| queue.id == id);
        let Some(queue) = queue.filter(|queue| queue.message(sequence).is_some()) else {
            return 0;
        };
        queue.note_removal(sequence, at);
        queue.remove(sequence);
        queue.totals.dropped.damaged += 1;
        1
    }

    /// To the end of its key's order in another queue, with id and payload, without its attempts.
    fn move_message(
        &mut self,
        from: &QueueName,
        sequence: Sequence,
        to: &QueueName,
        reason: DeadLetterReason,
        effect: Option<&Effect>,
    ) {
        let (at, now, arrival) = (self.at, self.now.wall, self.arrivals);
        self.arrivals += 1;
        let source = self.queues.get_mut(from).unwrap();
        source.note_removal(sequence, at);
        let message = source.remove(sequence);
        source.totals.moved_out += 1;
        let from_id = source.id;
        let target = self.queues.get_mut(to).unwrap();
        let to_sequence = Sequence(target.next_sequence);
        target.next_sequence += 1;
        target.totals.moved_in += 1;
        if let Some(effect) = effect {
            let expected = Effect::Moved {
                from: from_id,
                sequence,
                to: target.id,
                to_sequence,
                reason: reason.clone(),
                at: now,
            };
            assert_eq!(*effect, expected);
        }
        target.messages.push(Message {
            sequence: to_sequence,
            id: message.id,
            key: message.key,
            size: message.size,
            state: State::Ready,
            location: message.location,
            since: now,
            arrival: Some(arrival),
            attempts: 0,
            first_leased: WallTime(0),
            last_lease: None,
            returned: false,
            time_to_live: None,
            overdue: false,
            origin: Some(Origin {
                queue: from_id,
                name: None,
                sequence,
                reason,
                source: None,
                at: now,
            }),
            failures: message.failures,
            waits_for: (target.settings.level >= Level::Disk).then_some(at),
        });
    }

    fn name_of(&self, id: QueueId) -> Option<QueueName> {
        self.queues
            .iter()
            .find(|(_, queue)| queue.id == id)
            .map(|(name, _)| name.clone())
    }

    fn found(&self, name: &QueueName) -> Result<&Queue, Rejection> {
        self.queues.get(name).ok_or_else(|| not_found(name))
    }

    fn found_mut(&mut self, name: &QueueName) -> Result<&mut Queue, Rejection> {
        self.queues.get_mut(name).ok_or_else(|| not_found(name))
    }
}

impl Message {
    /// The first failure, and the latest ones: ten, of 4,096 bytes, in all.
    fn kept_failures(&self) -> Option<Arc<Failures>> {
        let (first, later) = self.failures.split_first()?;
        let mut bytes = first.error.len();
        let mut latest: Vec<_> = (later.iter().rev().take(9))
            .take_while(|failure| {
                bytes += failure.error.len();
                bytes <= 4_096
            })
            .cloned()
            .collect();
        let left_out = later.len() - latest.len();
        latest.push(first.clone());
        latest.reverse();
        Some(Arc::new(Failures::new(latest, left_out as u64)))
    }
}

impl Queue {
    pub(crate) fn message(&self, sequence: Sequence) -> Option<&Message> {
        self.messages
            .iter()
            .find(|message| message.sequence == sequence)
    }

    fn message_mut(&mut self, sequence: Sequence) -> Option<&mut Message> {
        self.messages
            .iter_mut()
            .find(|message| message.sequence == sequence)
    }

    fn remove(&mut self, sequence: Sequence) -> Message {
        let index = self
            .messages
            .iter()
            .position(|message| message.sequence == sequence)
            .expect("the caller has found it");
        self.messages.remove(index)
    }

    /// A later message of a key without any has a later record than what settled the others, or the same
    /// one, in a transaction: where it stays, so does what says that they are gone.
    fn forget_idle_keys(&mut self) {
        let (messages, parked) = (&self.messages, &self.parked);
        self.settled_at.retain(|key, settled| {
            let is_earlier = |message: &Message| message.location.position < *settled;
            parked.contains(key)
                || messages
                    .iter()
                    .any(|message| message.key.as_ref() == Some(key) && is_earlier(message))
        });
    }

    fn note_removal(&mut self, sequence: Sequence, at: Position) {
        if let Some(key) = self
            .message(sequence)
            .and_then(|message| message.key.clone())
        {
            self.settled_at.insert(key, at);
        }
    }

    fn in_flight(&self) -> u64 {
        let in_flight = |message: &&Message| {
            matches!(message.state, State::Leased { .. } | State::Backoff { .. })
        };
        self.messages.iter().filter(in_flight).count() as u64
    }

    fn gives_leases(&self) -> bool {
        !self.paused && self.held_until.is_none()
    }

    /// Whether what is leased of a key is a batch of the strict profile.
    pub(crate) fn is_strict(&self, key: &Key) -> bool {
        let profile = self.leased_under.get(key);
        self.settings.keyed && profile == Some(&KeyProfile::Strict)
    }

    fn policy(&self) -> KeyPolicy {
        let default = match self.settings.dead_letter {
            Some(_) => KeyPolicy::Skip,
            None => KeyPolicy::Block,
        };
        self.settings.key_policy.unwrap_or(default)
    }

    /// A lease ends and the message returns to its place, unless its time is up.
    fn put_back(&mut self, sequence: Sequence, now: Now, delay: Option<Millis>) {
        let retention = self.settings.retention;
        let message = self.message_mut(sequence).unwrap();
        if message.overdue || message.since.plus(retention) <= now.wall {
            self.remove(sequence);
            self.totals.dropped.expired += 1;
            return;
        }
        message.state = match delay {
            Some(delay) => State::Backoff {
                until: now.machine.plus(delay),
            },
            None => State::Ready,
        };
    }

    /// The lease never reached anybody, or it is as if it had not been `started`.
    fn give_back(&mut self, sequence: Sequence, now: Now, started: bool) {
        let given = match self.message(sequence).unwrap().state {
            State::Leased { given, .. } => Some(given),
            _ => None,
        };
        self.put_back(sequence, now, None);
        if let Some(given) = given.filter(|_| !started && self.message(sequence).is_some()) {
            self.refund(sequence, given, now.machine);
        }
        if let Some(message) = self.message_mut(sequence) {
            message.attempts -= 1;
            message.last_lease = message
                .last_lease
                .filter(|_| message.attempts > 0)
                .map(|(token, _)| (token, true));
        }
    }
}

fn not_found(queue: &QueueName) -> Rejection {
    Rejection::QueueNotFound {
        queue: queue.clone(),
    }
}

/// Which part of the command's record carries the message.
fn part_of(decision: &Decision, queue: QueueId, sequence: Sequence) -> u16 {
    let part = decision.effects.iter().position(|effect| {
        matches!(effect, Effect::Accepted(stored)
            if stored.queue == queue && stored.sequence == sequence)
    });
    part.map_or(u16::MAX, |part| part as u16)
}

//! A shard without engine and log: a machine, the records it would have written, a second machine
//! that only ever folds those records, and the model. Every step goes through all of them.

pub(crate) mod exchanges;
mod records;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lockgate_core::{
    BootId, Epoch, HolderName, Incarnation, Key, KeyStateWrite, LeaseToken, Level, MachineTime,
    Message, MessageId, Millis, Now, Position, Produced, ProducerIncarnation, ProducerMark,
    ProducerName, QueueId, QueueName, RecordVersion, Replaces, Sequence, ShardId, Term, UniqueId,
    WallTime,
};
use lockgate_machine::*;

use self::exchanges::Asked;
pub(crate) use self::records::limits;
use crate::model::{Model, State};

/// What happens next. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Send),
    Exchange(Asked),
    Receive {
        queue: usize,
        max: u16,
        lease: Option<Millis>,
        holder: usize,
    },
    Settle(usize, SettleAction),
    Transact(Vec<(usize, SettleAction)>, Vec<(usize, Written)>, Vec<Send>),
    /// An operator writes the state of a key.
    State(usize, usize, Written),
    Create(usize, Box<QueueSettings>),
    Change(usize, Box<QueueSettings>),
    Delete(usize),
    Purge(usize),
    Pause(usize, bool),
    Cancel(usize),
    Reschedule(usize, i64),
    /// From a queue to another one, or to where its messages came from.
    Move(usize, (MoveTo, Option<MoveCursor>), u16),
    Key(usize, usize, KeyAction),
    /// Holds the queue, or its messages without a key, if the number is 2, else a key of it; for a time that changes from
    /// record to record.
    Hold(usize, usize),
    Damaged(usize),
    /// Wall time moves by the first (perhaps back), machine time by the second number.
    Time(i64, Millis),
    /// Time goes on to so many milliseconds before or after something ends or comes due.
    Until(usize, i64),
    /// Everything written so far is durable.
    Sync,
    /// The process ends, in good order or not, and the shard starts again.
    Restart {
        orderly: bool,
    },
    /// A power cut: of the records that are not durable only the first few are left.
    PowerCut {
        survivors: usize,
    },
    Housekeep(usize),
    /// From now on a start loads the machine as it is now, and folds only what came after. The
    /// image is not written before it is needed: until then the machine goes on beside it.
    Freeze,
}

/// What replaces the state of a key: the version it is thought to have and so much more, or whatever is there; and
/// with so many bytes, or with none.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) replaces: Option<u64>,
    pub(crate) bytes: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) queue: usize,
    pub(crate) key: Option<usize>,
    pub(crate) unique: Option<usize>,
    pub(crate) due: Option<i64>,
    pub(crate) time_to_live: Option<Millis>,
    pub(crate) level: Option<Level>,
    pub(crate) size: usize,
}

pub(crate) struct World {
    machine: Machine,
    follower: Machine,
    pub(crate) model: Model,
    now: Now,
    tail: Position,
    pub(crate) records: Vec<(Position, Bytes)>,
    /// A frozen machine, and of how many records.
    frozen: Option<(usize, Frozen)>,
    durable: Position,
    /// How many records there were, and the model then.
    checkpoints: Vec<(usize, Model)>,
    tokens: Vec<LeaseToken>,
    sent: Vec<(QueueName, MessageId)>,
    term: u64,
    boot: u8,
    /// Record commands that were given.
    record_turns: u64,
    /// Leases whose answer left before a power cut, which may have forgotten them.
    ghosts: Vec<Ghost>,
    /// For leases that a power cut must not make us forget: until when, by each command that said
    /// so, and the record its answer waits for.
    promised: BTreeMap<LeaseToken_, Vec<(MachineTime, Option<Position>)>>,
}

/// A message in the hands of a holder.
struct Ghost {
    token: LeaseToken,
    key: Key,
    /// Whether it has the key to itself.
    strict: bool,
    until: MachineTime,
}

/// A lease token in an order.
type LeaseToken_ = (QueueId, Sequence, u64, u64);

/// The queues of a world: two keyed ones, an unkeyed one, and a dead-letter queue of each kind.
pub(crate) const QUEUES: [&str; 5] = ["dead-keyed", "dead-plain", "sqs", "strict", "plain"];
pub(crate) const KEYED: [bool; 5] = [true, false, true, true, false];

pub(crate) fn queue_name(number: usize) -> QueueName {
    QueueName::new(QUEUES[number % QUEUES.len()]).unwrap()
}

pub(crate) fn key(number: usize) -> Key {
    Key::new(&format!("key-{}", number % 3)).unwrap()
}

pub(crate) fn producer(number: usize) -> ProducerName {
    ProducerName::new(&format!("p{}", number % 2)).unwrap()
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            machine: Machine::new(limits()),
            follower: Machine::new(limits()),
            model: Model::default(),
            now: Now {
                wall: WallTime(1_700_000_000_000),
                machine: MachineTime(1_000_000),
            },
            tail: Position(0),
            records: Vec::new(),
            frozen: None,
            durable: Position(0),
            checkpoints: Vec::new(),
            tokens: Vec::new(),
            sent: Vec::new(),
            term: 0,
            boot: 1,
            record_turns: 0,
            ghosts: Vec::new(),
            promised: BTreeMap::new(),
        };
        world.start_term();
        world
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Time(wall, machine) => {
                self.now.wall = WallTime(self.now.wall.0.saturating_add_signed(*wall));
                self.now.machine = self.now.machine.plus(*machine);
            }
            Step::Until(which, offset) => {
                let spans = self.model.upcoming();
                if let Some(span) = spans.get(which % spans.len().max(1)) {
                    let span = span.saturating_add_signed(*offset);
                    self.now.wall = self.now.wall.plus(span);
                    self.now.machine = self.now.machine.plus(span);
                }
            }
            Step::Sync => {
                self.sync();
                // Without another draw, so that saved failure cases stay what they are.
                for _ in 0..self.record_turns % 3 + 1 {
                    let command = self.record_command();
                    let _refused_or_not = self.run(&command);
                }
            }
            Step::Housekeep(budget) => {
                self.machine.housekeep(*budget);
            }
            Step::Freeze => self.frozen = Some((self.records.len(), self.machine.freeze())),
            Step::Exchange(asked) => self.ask(asked),
            Step::Restart { orderly } => self.restart(*orderly),
            Step::PowerCut { survivors } => self.power_cut(*survivors),
            Step::Damaged(which) => {
                if let Some((_, message)) = recent(&self.sent, *which) {
                    let damaged = EngineCommand::Damaged {
                        queue: message.queue(),
                        sequence: message.sequence(),
                    };
                    let _there_or_not = self.run(&damaged);
                }
            }
            _ => {
                if let Some(command) = self.command(step) {
                    let _refused_or_not = self.run(&command);
                }
            }
        }
        self.tick();
        self.compare();
    }

    /// Gives a command to the machine, and machine and command to the model.
    pub(crate) fn run<'a>(
        &mut self,
        command: impl Into<AnyCommand<'a>>,
    ) -> Result<Reply, Rejection> {
        let command = command.into();
        self.tick();
        let leasable_before = self.leasable_queues();
        let decision = self.machine.decide(command, self.now);
        let at = self.tail;
        self.machine.note_outcome(command, &decision.outcome);
        if !decision.effects.is_empty() {
            self.append(&decision.effects);
        }
        let known = |ghost| self.known_until(ghost).is_some();
        let known: Vec<bool> = self.ghosts.iter().map(known).collect();
        self.model.take(command, &decision, at);
        self.update_ghosts(&known);
        self.note_promises(&decision, at);
        match &decision.outcome {
            Ok(Reply::Received(deliveries)) => {
                for delivery in deliveries {
                    self.note_delivery(delivery);
                }
            }
            Ok(Reply::Sent(sent)) => {
                if let AnyCommand::Caller(Command::Send(send)) = command {
                    self.sent.push((send.queue.clone(), sent.id));
                }
            }
            _ => {}
        }
        self.check_woken(&leasable_before);
        self.checkpoint();
        decision.outcome
    }

    /// Until when the model knows a holder to have its message; `None`: it knows of no lease.
    fn known_until(&self, ghost: &Ghost) -> Option<MachineTime> {
        let mut queues = self.model.queues.values();
        let queue = queues.find(|queue| queue.id == ghost.token.queue)?;
        let message = queue.message(ghost.token.sequence)?;
        match (&message.state, message.last_lease) {
            (State::Leased { until, .. }, Some((token, _))) if token == ghost.token => Some(*until),
            _ => None,
        }
    }

    /// Holders whose lease a command has ended or changed, of those the model knew before.
    fn update_ghosts(&mut self, known_before: &[bool]) {
        let ghosts = std::mem::take(&mut self.ghosts);
        for (mut ghost, known) in std::iter::zip(ghosts, known_before) {
            match self.known_until(&ghost) {
                Some(until) if *known => ghost.until = ghost.until.min(until),
                None if *known => continue,
                // What is leased anew is for `note_delivery` to judge.
                _ => {}
            }
            self.ghosts.push(ghost);
        }
    }

    fn note_promises(&mut self, decision: &Decision, at: Position) {
        let own = (decision.level >= Level::Disk).then_some(at);
        for queue in self.model.queues.values() {
            if !queue.settings.keyed || queue.settings.level < Level::Disk {
                continue;
            }
            for message in &queue.messages {
                if let (State::Leased { until, .. }, Some((token, _))) =
                    (&message.state, message.last_lease)
                {
                    let promises = self.promised.entry(order(token)).or_default();
                    if promises.last().is_none_or(|(last, _)| last != until) {
                        promises.push((*until, own.max(decision.rests_on)));
                    }
                }
            }
        }
    }

    fn note_delivery(&mut self, delivery: &Delivery) {
        let token = delivery.token;
        self.tokens.push(token);
        let (_, queue) = self
            .model
            .queues
            .iter()
            .find(|(_, queue)| queue.id == token.queue)
            .unwrap();
        let key = &queue.message(token.sequence).unwrap().key;
        for ghost in &self.ghosts {
            // In the SQS profile, what came back in front of it may be given.
            let held = ghost.token.queue == token.queue
                && Some(&ghost.key) == key.as_ref()
                && (ghost.strict || ghost.token.sequence == token.sequence);
            assert!(
                !held || ghost.until <= self.now.machine,
                "{} is still in the hands of a holder the power cut made us forget",
                ghost.key
            );
        }
    }

    fn tick(&mut self) {
        let leasable_before = self.leasable_queues();
        let mut steps = 0;
        while let Some(effect) = self.machine.tick(self.now) {
            self.append(&[effect]);
            steps += 1;
            assert!(steps < 10_000, "time never comes to rest");
        }
        self.model.advance(self.now);
        let next = self.machine.next_deadline();
        assert!(next.wall.is_none_or(|wall| wall > self.now.wall));
        assert!(
            next.machine
                .is_none_or(|machine| machine > self.model.now.machine)
        );
        self.check_woken(&leasable_before);
        self.checkpoint();
    }

    /// What became leasable is in the list of woken queues.
    fn check_woken(&mut self, before: &BTreeSet<QueueName>) {
        let woken: BTreeSet<QueueId> = self.machine.take_woken().collect();
        for name in self.leasable_queues().difference(before) {
            let id = self.model.queues[name].id;
            assert!(woken.contains(&id), "{name} was not woken");
        }
    }

    fn leasable_queues(&self) -> BTreeSet<QueueName> {
        let leasable = |name: &&QueueName| self.model.leasable(name);
        self.model.queues.keys().filter(leasable).cloned().collect()
    }

    fn append(&mut self, effects: &[Effect]) {
        let mut record = Vec::new();
        encode_record(effects, &mut record);
        let record = Bytes::from(record);
        let decoded = decode_record(&record).expect("what was encoded can be decoded");
        assert_eq!(decoded[..], *effects);
        for (part, effect) in (0..).zip(effects) {
            if let Effect::Accepted(stored) = effect {
                let read = read_message(&record, part).expect("its payload is in the record");
                let expected = match stored.payload {
                    // That of an earlier effect.
                    Payload::Of { size, .. } => {
                        assert_eq!(read.size(), size);
                        StoredMessage {
                            message: read.message.clone(),
                            payload: Payload::Own,
                            ..*stored.clone()
                        }
                    }
                    _ => StoredMessage {
                        payload: Payload::Own,
                        ..*stored.clone()
                    },
                };
                assert_eq!(read, expected);
            }
        }
        self.machine.fold(&decoded, self.tail);
        self.follower.fold(&decoded, self.tail);
        let position = self.tail;
        self.tail = Position(position.0 + record.len() as u64 + 16);
        self.records.push((position, record));
        assert_eq!(
            self.machine.state_view(),
            self.follower.state_view(),
            "what serves and what recovers differ after {effects:?}"
        );
        assert_eq!(self.machine.effects_ignored(), 0);
    }

    /// After every step: the machine says of itself what the model says of it.
    fn compare(&self) {
        for number in 0..QUEUES.len() {
            let name = queue_name(number);
            let expected = self.model.describe(&name);
            let query = Query::DescribeQueue(DescribeQueue {
                queue: name.clone(),
            });
            let described = match self.machine.query(&query, self.now) {
                Ok(QueryReply::Queue(description)) => Some(*description),
                Ok(other) => panic!("a query for a queue was answered {other:?}"),
                Err(_) => None,
            };
            assert_eq!(expected, described, "expected on the left");
            if let Some(QueueDescription { counts, totals, .. }) = described {
                let pending = counts.ready + counts.in_flight + counts.delayed;
                assert_eq!(
                    totals.accepted + totals.moved_in,
                    totals.acknowledged + totals.moved_out + totals.dropped.total() + pending,
                    "conservation in {name}"
                );
            }
            assert_eq!(
                self.machine.leasable(&name),
                self.model.leasable(&name),
                "leasable: {name}"
            );
            for number in 0..3 {
                let query = Query::ExplainKey(ExplainKey {
                    queue: name.clone(),
                    key: Some(key(number)),
                });
                let status = match self.machine.query(&query, self.now) {
                    Ok(QueryReply::Key(status)) => Some(status),
                    _ => None,
                };
                assert_eq!(self.model.explain(&name, &key(number)), status, "in {name}");
                self.compare_messages(&name, Some(key(number)));
            }
            self.compare_messages(&name, None);
            self.compare_keys(&name);
            self.compare_producers(&name);
            self.compare_states(&name);
        }
        self.compare_records();
        self.compare_exchanges();
    }

    /// Page by page, all messages are shown once, in order.
    fn compare_messages(&self, name: &QueueName, key: Option<Key>) {
        let expected = self.model.messages(name, key.as_ref());
        let mut shown = Vec::new();
        let mut after = None;
        loop {
            let query = Query::ListMessages(ListMessages {
                queue: name.clone(),
                key: key.clone(),
                after,
                limit: 2,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::Messages(MessagePage { messages, next })) => {
                    assert!(messages.len() <= 2);
                    shown.extend(messages);
                    after = next;
                }
                Ok(other) => panic!("a query for messages was answered {other:?}"),
                Err(_) => break,
            }
            if after.is_none() {
                break;
            }
        }
        let mut shown: Vec<_> = shown
            .into_iter()
            .map(|message| {
                (
                    message.sequence,
                    message.id,
                    message.attempts,
                    message.waits_for,
                    message.failures,
                )
            })
            .collect();
        // What is not yet due comes last, in no order that anybody could rely on.
        let due = shown.partition_point(|message| !matches!(message.3, MessageWait::Due { .. }));
        shown[due..].sort_by_key(|message| message.0);
        assert_eq!(expected, shown, "messages of {key:?} in {name}");
    }

    fn compare_keys(&self, name: &QueueName) {
        for parked in [false, true] {
            let mut shown = Vec::new();
            let mut after = None;
            loop {
                let query = Query::ListKeys(ListKeys {
                    queue: name.clone(),
                    parked,
                    after,
                    limit: 1,
                });
                match self.machine.query(&query, self.now) {
                    Ok(QueryReply::Keys(KeyPage { keys, next })) => {
                        shown.extend(keys);
                        after = next;
                    }
                    Ok(other) => panic!("a query for keys was answered {other:?}"),
                    Err(_) => break,
                }
                if after.is_none() {
                    break;
                }
            }
            shown.sort_by(|a, b| a.key.cmp(&b.key));
            let known = self.model.keys(name);
            let expected: Vec<_> = known
                .union(&(0..3).map(key).collect())
                .filter(|key| !parked || self.model.is_parked(name, key))
                .filter_map(|key| self.model.explain(name, key))
                // A key that has only a state or a hold is in no list, and no group is.
                .filter(|status| status.waits_for != KeyWait::NoMessage)
                .filter(|_| self.model.is_keyed(name))
                .collect();
            assert_eq!(expected, shown, "keys in {name}");
        }
    }

    fn compare_producers(&self, name: &QueueName) {
        let (mut after, mut shown) = (None, Vec::new());
        loop {
            let query = Query::ListProducers(ListProducers {
                queue: name.clone(),
                after,
                limit: 1,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::Producers(ProducerPage { producers, next })) => {
                    shown.extend(producers);
                    after = next;
                }
                Ok(other) => panic!("a query for producers was answered {other:?}"),
                Err(_) => break,
            }
            if after.is_none() {
                break;
            }
        }
        assert_eq!(self.model.producers(name), shown, "producers of {name}");
    }

    /// Page by page, the states of all keys are shown once, in order.
    fn compare_states(&self, name: &QueueName) {
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let query = Query::ListKeyStates(ListKeyStates {
                queue: name.clone(),
                prefix: String::new(),
                after: after.take(),
                limit: 1,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::KeyStates(KeyStatePage { states, next })) => {
                    shown.extend(states);
                    after = next;
                }
                Ok(other) => panic!("a query for states was answered {other:?}"),
                Err(_) => break,
            }
            if after.is_none() {
                break;
            }
        }
        assert_eq!(self.model.states(name), shown, "states in {name}");
    }

    fn checkpoint(&mut self) {
        let records = self.records.len();
        if self
            .checkpoints
            .last()
            .is_some_and(|last| last.0 == records)
        {
            self.checkpoints.pop();
        }
        self.checkpoints.push((records, self.model.clone()));
    }

    fn sync(&mut self) {
        let leasable_before = self.leasable_queues();
        self.durable = self.tail;
        self.machine.reached(self.durable);
        self.model.durable = Some(self.durable);
        self.check_woken(&leasable_before);
        self.checkpoint();
    }

    fn restart(&mut self, orderly: bool) {
        if orderly {
            self.run(&EngineCommand::EndTerm).unwrap();
        }
        self.recover();
        self.start_term();
    }

    fn power_cut(&mut self, survivors: usize) {
        // Whose answer has left the server holds on to what it said.
        let now = self.now.machine;
        let mut ghosts = std::mem::take(&mut self.ghosts);
        ghosts.retain(|ghost| ghost.until > now && self.known_until(ghost).is_none());
        for queue in self.model.queues.values() {
            for message in &queue.messages {
                let (State::Leased { .. }, Some((token, _))) = (&message.state, message.last_lease)
                else {
                    continue;
                };
                let promises = self.promised.get(&order(token));
                let told = promises
                    .into_iter()
                    .flatten()
                    .rfind(|(_, waits_for)| waits_for.is_none_or(|record| record < self.durable));
                if let Some((until, _)) = told {
                    let key = message.key.clone().unwrap();
                    ghosts.push(Ghost {
                        token,
                        strict: queue.is_strict(&key),
                        key,
                        until: *until,
                    });
                }
            }
        }
        self.ghosts = ghosts;
        let durable = self.durable;
        let lost = |(records, _): &(usize, Model), all: &[(Position, Bytes)]| {
            all.get(*records).is_some_and(|(next, _)| *next < durable)
        };
        let possible: Vec<usize> = (0..self.checkpoints.len())
            .filter(|&index| !lost(&self.checkpoints[index], &self.records))
            .collect();
        let chosen = possible[survivors % possible.len()];
        self.checkpoints.truncate(chosen + 1);
        let (records, model) = self.checkpoints[chosen].clone();
        self.records.truncate(records);
        self.model = model;
        self.boot += 1;
        self.recover();
        self.start_term();
    }

    /// Another machine: from the last image, if its records are still there, and what came after.
    /// The one beside it is made from the records alone.
    fn recover(&mut self) {
        let frozen = self.frozen.as_mut();
        let (folded, mut machine) = frozen
            .filter(|(records, _)| *records <= self.records.len())
            .map_or_else(
                || (0, Machine::new(limits())),
                |(records, frozen)| (*records, load(frozen.fork())),
            );
        for (position, record) in &self.records[folded..] {
            machine.fold(&decode_record(record).unwrap(), *position);
        }
        if self
            .frozen
            .as_ref()
            .is_some_and(|(records, _)| *records > self.records.len())
        {
            self.frozen = None;
        }
        self.tail = self
            .records
            .last()
            .map_or(Position(0), |(position, record)| {
                Position(position.0 + record.len() as u64 + 16)
            });
        let mut follower = Machine::new(limits());
        let mut decoder = BatchDecoder::new(&follower);
        for records in self.records.chunks(7) {
            for (position, record) in records {
                decoder.push(record, *position);
            }
            let batch = decoder.take(RecordBatch::default());
            follower.fold_batch(&batch, |_, record| assert_eq!(record.error, None));
        }
        self.machine = machine;
        self.follower = follower;

        self.model.forget_volatile();
    }

    fn start_term(&mut self) {
        self.term += 1;
        let command = EngineCommand::StartTerm {
            term: Term {
                shard: ShardId::new(7).unwrap(),
                epoch: Epoch(self.term),
                incarnation: Incarnation(self.term * 0x1234_5677),
            },
            boot_id: BootId([self.boot; 16]),
            clock_offset: 0,
            secret: [7; 32],
        };
        self.run(&command).unwrap();
        self.sync();
    }

    fn command(&self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::Send(send) => {
                let send = self.send(send);
                let produced = send.message.producer.as_ref();
                let opens = produced.filter(|produced| self.opens(&send.queue, produced));
                if let Some(produced) = opens {
                    Command::OpenProducer(OpenProducer {
                        queue: send.queue,
                        producer: produced.mark.producer().clone(),
                    })
                } else {
                    Command::Send(Box::new(send))
                }
            }
            Step::Receive {
                queue,
                max,
                lease,
                holder,
            } => Command::Receive(Receive {
                queue: queue_name(*queue),
                max: *max,
                key_max: None,
                lease: *lease,
                holder: HolderName::new(["ann", "bob"][holder % 2]).unwrap(),
            }),
            Step::Settle(which, action) => Command::Settle(self.settle(*which, action)?),
            Step::Transact(settles, states, sends) => Command::Transact(Transact {
                settles: settles
                    .iter()
                    .filter_map(|(which, action)| self.settle(*which, action))
                    .collect(),
                states: states
                    .iter()
                    .filter_map(|(which, written)| {
                        let token = *recent(&self.tokens, *which)?;
                        let holder = self.model.key_of(token);
                        let (queue, key) = holder.unwrap_or((queue_name(2), key(*which)));
                        let write = self.written(&queue, &key, written);
                        Some(WriteState { token, write })
                    })
                    .collect(),
                sends: sends.iter().map(|send| self.send(send)).collect(),
                publishes: Vec::new(),
            }),
            Step::State(queue, which, written) => {
                let (queue, key) = (queue_name(*queue), key(*which));
                Command::ChangeKeyState(Box::new(ChangeKeyState {
                    write: self.written(&queue, &key, written),
                    queue,
                    key,
                }))
            }
            Step::Create(queue, settings) => Command::CreateQueue(Box::new(CreateQueue {
                name: queue_name(*queue),
                settings: (**settings).clone(),
                annotations: BTreeMap::from([("kind".to_owned(), "test".to_owned())]),
                tags: BTreeMap::new(),
            })),
            Step::Change(queue, settings) => Command::ChangeQueue(ChangeQueue {
                queue: queue_name(*queue),
                settings: Some(settings.clone()),
                annotations: None,
                tags: Some(BTreeMap::from([("changed".to_owned(), String::new())])),
            }),
            Step::Delete(queue) => Command::DeleteQueue(DeleteQueue {
                queue: queue_name(*queue),
            }),
            Step::Purge(queue) => Command::Purge(Purge {
                queue: queue_name(*queue),
            }),
            Step::Pause(queue, paused) => Command::Pause(Pause {
                queue: queue_name(*queue),
                paused: *paused,
            }),
            Step::Cancel(which) => {
                let (queue, message) = recent(&self.sent, *which)?.clone();
                Command::Cancel(Cancel { queue, message })
            }
            Step::Reschedule(which, by) => {
                let (queue, message) = recent(&self.sent, *which)?.clone();
                Command::Reschedule(Reschedule {
                    queue,
                    message,
                    due: WallTime(self.now.wall.0.saturating_add_signed(*by)),
                })
            }
            Step::Move(from, (to, cursor), max) => Command::Move(Move {
                from: queue_name(*from),
                to: to.clone(),
                max: *max,
                cursor: *cursor,
            }),
            Step::Key(queue, which, action) => Command::ChangeKey(ChangeKey {
                queue: queue_name(*queue),
                key: key(*which),
                action: *action,
            }),
            // Without another draw, so that saved failure cases stay what they are.
            Step::Hold(queue, which) if self.records.len().is_multiple_of(4) => {
                Command::ForgetProducer(ForgetProducer {
                    queue: queue_name(*queue),
                    producer: producer(*which),
                })
            }
            Step::Hold(queue, which) => Command::Hold(Hold {
                queue: queue_name(*queue),
                what: match which {
                    0..2 => HoldTarget::Key(Some(key(*which))),
                    _ if self.records.len() % 5 < 2 => HoldTarget::Key(None),
                    _ => HoldTarget::Queue,
                },
                time: [0, 40, 300][self.records.len() % 3],
            }),
            Step::Exchange(_)
            | Step::Damaged(_)
            | Step::Time(..)
            | Step::Until(..)
            | Step::Sync
            | Step::Restart { .. }
            | Step::PowerCut { .. }
            | Step::Housekeep(_)
            | Step::Freeze => return None,
        })
    }

    fn send(&self, send: &Send) -> SendMessage {
        let queue = queue_name(send.queue);
        let (key, group) = if queue.as_str().ends_with("plain") {
            (None, send.key.map(key))
        } else {
            (send.key.map(key), None)
        };
        SendMessage {
            queue,
            message: Message {
                body: Bytes::from(vec![b'x'; send.size]),
                key,
                group,
                unique_id: send
                    .unique
                    .map(|number| UniqueId::new(&format!("id-{number}")).unwrap()),
                due: send
                    .due
                    .map(|by| WallTime(self.now.wall.0.saturating_add_signed(by))),
                time_to_live: send.time_to_live,
                level: send.level,
                producer: self.produced(send),
                ..Message::default()
            },
        }
    }

    /// Some messages are records of producers: mostly new ones, of the last incarnation.
    fn produced(&self, send: &Send) -> Option<Box<Produced>> {
        // Without another draw, so that saved failure cases stay what they are.
        let which = send.size.checked_sub(8)?;
        let name = producer(which % 2);
        let (opening, lane) = (which as u64 / 2 % 3, which as u8 % 3);
        let queue = self.model.queues.get(&queue_name(send.queue));
        let known = queue.and_then(|queue| queue.producer(&name));
        let opened = known.and_then(|known| known.openings.get(&opening));
        let highest = opened.map_or(0, |opening| opening.lanes[usize::from(lane)].0);
        let turn = self.records.len() as u64;
        let number = match turn % 5 {
            0 => highest,
            1 => highest / 2,
            2 => highest + 3,
            _ => highest + 1,
        };
        let current = known.map_or(0, |known| known.incarnation.0);
        let incarnation = match turn % 7 {
            0 => current.saturating_sub(1),
            1 => current + turn % 2,
            _ => current,
        };
        Some(Box::new(Produced {
            mark: ProducerMark::new(name, opening, lane, number.max(1)).unwrap(),
            incarnation: ProducerIncarnation(incarnation),
            // Behind what is there, behind a hole, or behind anything.
            after: [0, number.saturating_sub(1), highest + 1][self.records.len() % 13 % 3],
        }))
    }

    /// Whether the producer opens the queue in place of a send.
    fn opens(&self, queue: &QueueName, produced: &Produced) -> bool {
        let turn = self.records.len();
        let queue = self.model.queues.get(queue);
        match queue.and_then(|queue| queue.producer(produced.mark.producer())) {
            None => !turn.is_multiple_of(3),
            Some(_) => turn.is_multiple_of(11),
        }
    }

    fn written(&self, queue: &QueueName, key: &Key, written: &Written) -> KeyStateWrite {
        let state = self.model.queues.get(queue);
        let state = state.and_then(|queue| queue.states.get(key));
        let version = state.map_or(0, |state| state.version.0);
        let replaces = |more| match version + more {
            0 => Replaces::Version(None),
            version => Replaces::Version(Some(RecordVersion(version))),
        };
        KeyStateWrite {
            replaces: written.replaces.map_or(Replaces::Any, replaces),
            value: written.bytes.map(|bytes| Bytes::from(vec![b's'; bytes])),
        }
    }

    fn settle(&self, which: usize, action: &SettleAction) -> Option<Settle> {
        Some(Settle {
            token: *recent(&self.tokens, which)?,
            action: action.clone(),
        })
    }
}

/// One of the last few.
fn recent<T>(all: &[T], which: usize) -> Option<&T> {
    let few = all.len().min(10);
    (few > 0).then(|| &all[all.len() - 1 - which % few])
}

fn order(token: LeaseToken) -> LeaseToken_ {
    (
        token.queue,
        token.sequence,
        token.term.epoch.0,
        token.lease.0,
    )
}

/// The machine of an image.
pub(crate) fn load(mut frozen: Frozen) -> Machine {
    let mut loader = ImageLoader::new(limits());
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        loader.piece(piece).expect("what was written can be read");
    }
    loader.finish().expect("what was written is whole")
}

/// Uses a machine that was recovered from part of its records, far into the future.
pub(crate) fn go_on(mut machine: Machine) {
    let mut position = Position(1 << 40);
    let mut now = machine.clock_state().now;
    let mut fold = |machine: &mut Machine, effects: &[Effect]| {
        position = Position(position.0 + 100);
        machine.fold(effects, position);
    };
    for span in [0, 10, 1_000, 100_000, 1 << 41] {
        now.wall = now.wall.plus(span);
        now.machine = now.machine.plus(span);
        for number in 0..QUEUES.len() {
            while let Some(effect) = machine.tick(now) {
                fold(&mut machine, &[effect]);
            }
            let receive = Command::Receive(Receive {
                queue: queue_name(number),
                max: 3,
                key_max: None,
                lease: Some(5),
                holder: HolderName::new("ann").unwrap(),
            });
            let decision = machine.decide(&receive, now);
            fold(&mut machine, &decision.effects);
            let Ok(Reply::Received(deliveries)) = decision.outcome else {
                continue;
            };
            for delivery in deliveries.iter().skip(1) {
                let settle = Command::Settle(Settle {
                    token: delivery.token,
                    action: SettleAction::Ack,
                });
                let decision = machine.decide(&settle, now);
                fold(&mut machine, &decision.effects);
            }
            machine.housekeep(2);
        }
        for command in exchanges::commands(&machine) {
            let ignored = machine.effects_ignored();
            let decision = machine.decide(&command, now);
            fold(&mut machine, &decision.effects);
            assert_eq!(machine.effects_ignored(), ignored, "after {command:?}");
        }
    }
    for queue in machine.state_view().queues.values() {
        let QueueDescription { counts, totals, .. } = &queue.description;
        assert_eq!(
            totals.accepted + totals.moved_in,
            totals.acknowledged
                + totals.moved_out
                + totals.dropped.total()
                + counts.ready
                + counts.in_flight
                + counts.delayed,
        );
    }
}

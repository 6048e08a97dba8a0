//! Runs scripts against a machine.
//!
//! Each line is one command, then `=>` and its answer. After every line the harness checks the
//! machine's invariants. At the end it folds the log, encoded and decoded, into a second machine,
//! and both must have the same state.

mod producers;

use std::{collections::BTreeMap, fmt::Debug, num::NonZeroU64};

use bytes::Bytes;
use lockgate_core::{
    BootId, Epoch, HolderName, Incarnation, Key, KeyState, KeyStateWrite, LeaseToken, Level,
    MachineTime, Message, MessageId, Millis, Now, Position, Produced, ProducerIncarnation,
    ProducerMark, ProducerName, QueueName, RecordVersion, Replaces, Sequence, ShardId, Term,
    UniqueId, WallTime,
    limits::{HoldScope, Limit},
};

use crate::{
    AnyCommand, BatchDecoder, COUNTERS, Cancel, ChangeKey, ChangeKeyState, ChangeQueue, Command,
    CreateQueue, CreatedQueue, DedupScope, DeleteQueue, DescribeQueue, Effects, EngineCommand,
    ExplainKey, ForgetProducer, GetKeyState, Hold, HoldTarget, IdSpace, KeyAction, KeyHeld,
    KeyPolicy, KeyProfile, KeyStatePage, KeyStatus, KeyWait, ListKeyStates, ListProducers, Machine,
    MachineLimits, Move, MoveCursor, MoveTo, Moved, OpenProducer, Pause, Purge, Query, QueryReply,
    QueueDescription, QueueSettings, Receive, RecordBatch, Rejection, Reply, Reschedule,
    SendMessage, Settle, SettleAction, Settled, Transact, Transacted, WriteState, decode_record,
    encode_record,
};

/// Wall time at which every script starts.
const START: u64 = 1_000_000_000;

/// Runs a script and panics with the line whose answer differs.
#[track_caller]
pub(super) fn check(script: &str) -> Run {
    let mut run = Run::new();
    run.lines(script);
    run.check_recovery();
    run
}

/// A machine with the log of its effects.
pub(in crate::machine) struct Run {
    pub(in crate::machine) machine: Machine,
    pub(super) log: Vec<(Position, Effects)>,
    pub(super) now: Now,
    next: u64,
    syncing: bool,
    boot: u8,
    /// Tokens by queue, number and attempt; attempt 0 is the last one.
    tokens: BTreeMap<(String, u64, u16), LeaseToken>,
    ids: BTreeMap<(String, u64), MessageId>,
    /// What producers were given, by queue and name.
    incarnations: BTreeMap<(String, String), Vec<ProducerIncarnation>>,
    last: (Level, Option<Position>),
    /// What the index of unique ids has, and up to where it is complete.
    pub(super) index: BTreeMap<(IdSpace, u128), Sequence>,
    pub(super) indexed: BTreeMap<IdSpace, Sequence>,
}

impl Run {
    pub(in crate::machine) fn new() -> Self {
        Self::with_limits(MachineLimits {
            unique_id_index: true,
            ..MachineLimits::default()
        })
    }

    pub(super) fn with_limits(limits: MachineLimits) -> Self {
        let mut run = Self {
            machine: Machine::new(limits),
            log: Vec::new(),
            now: Now {
                wall: WallTime(START),
                machine: MachineTime(5_000),
            },
            next: 0,
            syncing: true,
            boot: 1,
            tokens: BTreeMap::new(),
            ids: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            last: (Level::Memory, None),
            index: BTreeMap::new(),
            indexed: BTreeMap::new(),
        };
        run.start_term();
        run
    }

    pub(super) fn set_syncing(&mut self, syncing: bool) {
        self.syncing = syncing;
    }

    pub(super) fn sync(&mut self) {
        self.machine.reached(Position(self.next));
    }

    fn start_term(&mut self) {
        let epoch = self.machine.term().epoch.next();
        let term = Term {
            shard: ShardId::new(7).unwrap(),
            epoch,
            incarnation: Incarnation(77 + epoch.0),
        };
        self.give(&EngineCommand::StartTerm {
            term,
            boot_id: BootId([self.boot; 16]),
            clock_offset: 0,
            secret: [9; 32],
        })
        .expect("a term starts");
    }

    /// Ticks, decides, logs and folds.
    pub(in crate::machine) fn give<'a>(
        &mut self,
        command: impl Into<AnyCommand<'a>>,
    ) -> Result<Reply, Rejection> {
        let command = command.into();
        self.tick();
        if let AnyCommand::Caller(command) = command {
            self.machine.read_ahead([command]);
            let asked = self.machine.ids_to_look_up(command, self.now);
            if !asked.is_empty() {
                let refused = self.machine.decide(command, self.now).outcome;
                assert!(
                    !matches!(refused, Ok(Reply::Sent(_) | Reply::Appended(_))),
                    "{refused:?}"
                );
                let looked = self.look_up(command.clone(), asked);
                return self.give(&looked);
            }
        }
        let decision = self.machine.decide(command, self.now);
        self.machine.note_outcome(command, &decision.outcome);
        self.last = (decision.level, decision.rests_on);
        if !decision.effects.is_empty() {
            self.append(decision.effects);
        }
        decision.outcome
    }

    pub(super) fn tick(&mut self) {
        while let Some(effect) = self.machine.tick(self.now) {
            self.append(std::iter::once(effect).collect());
        }
    }

    pub(super) fn append(&mut self, effects: Effects) {
        let position = Position(self.next);
        self.next += 100;
        self.machine.fold(&effects, position);
        self.log.push((position, effects));
        if self.syncing {
            self.machine.reached(Position(self.next));
        }
    }

    /// Folds the encoded log into a new machine, a few records at a time.
    pub(super) fn recovered(&self) -> Machine {
        let mut machine = Machine::new(self.machine.limits.clone());
        let mut decoder = BatchDecoder::new(&machine);
        let mut batch = RecordBatch::default();
        for records in self.log.chunks(5) {
            for (position, effects) in records {
                let mut record = Vec::new();
                encode_record(effects, &mut record);
                let record = Bytes::from(record);
                let decoded = decode_record(&record).expect("what was encoded decodes");
                assert_eq!(&decoded, effects);
                decoder.push(&record, *position);
            }
            batch = decoder.take(batch);
            machine.fold_batch(&batch, |_, record| assert_eq!(record.error, None));
        }
        machine
    }

    #[track_caller]
    pub(super) fn check_recovery(&self) {
        let recovered = self.recovered();
        assert_eq!(recovered.state_view(), self.machine.state_view());
        assert_eq!(recovered.effects_ignored(), 0);
    }

    /// Checks conservation, and that lists, counts and tables agree.
    #[track_caller]
    pub(super) fn check_invariants(&self, command: &str) {
        let problems = self.machine.problems();
        assert!(problems.is_empty(), "after {command}: {problems:#?}");
    }

    /// Runs a script, or more of one.
    #[track_caller]
    pub(in crate::machine) fn lines(&mut self, script: &str) {
        for line in script.lines().map(str::trim) {
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            let (command, expected) = match line.split_once("=>") {
                Some((command, expected)) => (command.trim(), Some(expected.trim())),
                None => (line, None),
            };
            let answer = self.line(command);
            if let Some(expected) = expected {
                assert_eq!(answer, expected, "answer to: {command}\nin:{script}");
            } else {
                assert!(
                    !answer.starts_with("refused"),
                    "{answer}: {command}\nin:{script}"
                );
            }
            self.check_invariants(command);
        }
    }

    pub(super) fn line(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a command");
        let words: Vec<&str> = words.collect();
        match verb {
            "queue" => self.queue(&words, false),
            "change" => self.queue(&words, true),
            "send" => self.send(&words),
            "receive" => self.receive(&words),
            "ack" | "nack" | "defer" | "hold-key" | "hold-queue" | "extend" | "reject"
            | "give-back" | "change-visibility" => {
                let settle = self.settle(verb, &words);
                settled(self.give(&Command::Settle(settle)))
            }
            "transact" => self.transact(line),
            "wait" => {
                let span = millis(words[0]);
                self.now.wall = self.now.wall.plus(span);
                self.now.machine = self.now.machine.plus(span);
                self.tick();
                String::new()
            }
            "wall" => {
                let (back, span) = match words[0].strip_prefix('-') {
                    Some(span) => (true, millis(span)),
                    None => (false, millis(words[0])),
                };
                let wall = self.now.wall.0;
                self.now.wall = WallTime(if back { wall - span } else { wall + span });
                self.tick();
                String::new()
            }
            "cancel" => {
                let command = Command::Cancel(Cancel {
                    queue: name(words[0]),
                    message: self.id(words[0], words[1]),
                });
                done(self.give(&command))
            }
            "reschedule" => {
                let command = Command::Reschedule(Reschedule {
                    queue: name(words[0]),
                    message: self.id(words[0], words[1]),
                    due: self.due(words[2]),
                });
                done(self.give(&command))
            }
            "move" => {
                let command = Command::Move(Move {
                    from: name(words[0]),
                    to: match words[1].split_once("back=") {
                        Some((_, among)) => {
                            MoveTo::OriginsAmong(among.split(',').map(name).collect())
                        }
                        None if words[1] == "back" => MoveTo::Origins,
                        None if words[1].starts_with("of=") => {
                            let (source, to) = match words[1][3..].split_once(',') {
                                Some((source, to)) => (source, Some(name(to))),
                                None => (&words[1][3..], None),
                            };
                            let source = name(source);
                            MoveTo::Of { source, to }
                        }
                        None => MoveTo::Queue(name(words[1])),
                    },
                    max: words[2].parse().unwrap(),
                    cursor: words.get(3).map(|after| MoveCursor {
                        after: Sequence(after.parse().unwrap()),
                        below: Sequence(
                            words.get(4).map_or(u64::MAX, |word| word.parse().unwrap()),
                        ),
                    }),
                });
                match self.give(&command) {
                    Ok(Reply::Moved(moved)) => {
                        let Moved {
                            moved,
                            left,
                            stuck,
                            next,
                        } = moved;
                        let stuck = stuck.map(|stuck| format!(", stuck {:?}", stuck.reason));
                        let next = next
                            .map(|next| format!(", next {} below {}", next.after.0, next.below.0));
                        let [stuck, next] = [stuck, next].map(Option::unwrap_or_default);
                        format!("moved {moved}, left {left}{stuck}{next}")
                    }
                    other => done(other),
                }
            }
            "park" | "resume" | "drop" => {
                let action = match verb {
                    "park" => KeyAction::Park,
                    "resume" => KeyAction::Resume,
                    _ => KeyAction::Drop,
                };
                done(self.give(&Command::ChangeKey(ChangeKey {
                    queue: name(words[0]),
                    key: Key::new(words[1]).unwrap(),
                    action,
                })))
            }
            // `hold q 30s`, `hold q 30s a`, `hold q 30s -` for messages without a group
            "hold" => match self.give(&Command::Hold(Hold {
                queue: name(words[0]),
                what: match words.get(2) {
                    None => HoldTarget::Queue,
                    Some(word) => HoldTarget::Key(key_or_none(word)),
                },
                time: millis(words[1]),
            })) {
                Ok(Reply::Held(None)) => "free".to_owned(),
                Ok(Reply::Held(Some(remaining))) => format!("held for {remaining} ms"),
                other => done(other),
            },
            "limited" => {
                let QueueDescription {
                    limited, counts, ..
                } = self.describe(words[0]);
                let limited = limited.map_or("free".to_owned(), |held| {
                    let remaining = held.remaining.unwrap_or_default();
                    format!("{:?} for {remaining} ms", held.limit)
                });
                let (keys, owing) = (counts.limited_keys, counts.owing_keys);
                format!("{limited}, {keys} keys limited, {owing} owing")
            }
            "purge" => done(self.give(&Command::Purge(Purge {
                queue: name(words[0]),
            }))),
            "delete" => done(self.give(&Command::DeleteQueue(DeleteQueue {
                queue: name(words[0]),
            }))),
            "pause" | "unpause" => done(self.give(&Command::Pause(Pause {
                queue: name(words[0]),
                paused: verb == "pause",
            }))),
            "damaged" => {
                let queue = self.machine.queue_id(&name(words[0])).expect("a queue");
                done(self.give(&EngineCommand::Damaged {
                    queue,
                    sequence: Sequence(words[1].parse().unwrap()),
                }))
            }
            "set-state" => {
                let command = Command::ChangeKeyState(Box::new(ChangeKeyState {
                    queue: name(words[0]),
                    key: Key::new(words[1]).unwrap(),
                    write: state_write(&words[2..]),
                }));
                match self.give(&command) {
                    Ok(Reply::StateWritten(state)) => version(state),
                    other => done(other),
                }
            }
            "state" => self.state(words[0], words[1]),
            "states" => {
                let counts = self.describe(words[0]).counts;
                format!("{}, {} bytes", counts.states, counts.state_bytes)
            }
            "open" => self.open_producer(words[0], words[1]),
            "forget" => done(self.give(&Command::ForgetProducer(ForgetProducer {
                queue: name(words[0]),
                producer: ProducerName::new(words[1]).unwrap(),
            }))),
            "producers" => self.producers(words[0]),
            "openings" => self.describe(words[0]).counts.producer_openings.to_string(),
            // list-states q 2: pages of two, all; list-states q 2 p: whose key starts with p
            "list-states" => self.list_states(words[0], words[1], words.get(2).unwrap_or(&"")),
            "counts" => self.counts(words[0]),
            "totals" => self.totals(words[0]),
            "key" => self.key(words[0], words[1]),
            "keys" => {
                let counts = self.describe(words[0]).counts;
                format!("{}, parked {}", counts.keys, counts.parked_keys)
            }
            "unique-ids" => self.describe(words[0]).counts.unique_ids.to_string(),
            "key-sequences" => self.key_sequences(words[0]),
            "oldest" => self
                .describe(words[0])
                .counts
                .oldest
                .map_or("nothing".to_owned(), |oldest| {
                    format!("{} ms old", self.now.wall.since(oldest))
                }),
            "answer" => {
                let (level, rests_on) = self.last;
                match rests_on {
                    Some(position) => format!("{level}, rests on record {}", position.0 / 100),
                    None => level.to_string(),
                }
            }
            "index" => self.index(words[0].parse().unwrap()),
            "records" => self.log.len().to_string(),
            "syncing" => {
                self.set_syncing(words[0] == "on");
                String::new()
            }
            "sync" => {
                self.sync();
                String::new()
            }
            "sync-before" => {
                let record: u64 = words[0].parse().unwrap();
                self.machine.reached(Position(record * 100));
                String::new()
            }
            "woken" => {
                let woken: Vec<_> = self.machine.take_woken().collect();
                let names = woken.into_iter().filter_map(|id| self.machine.queue(id));
                or_nothing(names.map(|queue| queue.name.to_string()).collect())
            }
            "leasable" => yes(self.machine.leasable(&name(words[0]))),
            "current" => {
                let (sequence, attempt) = label(words[1]);
                yes(self
                    .machine
                    .is_current(self.tokens[&(words[0].to_owned(), sequence, attempt)]))
            }
            "restart" => {
                self.restart(words[0]);
                String::new()
            }
            "housekeep" => {
                while self.machine.housekeep(1).is_unfinished() {}
                String::new()
            }
            other => panic!("no such command: {other}"),
        }
    }

    /// `kill`: the process restarts in the same boot. `power`: in another boot. `clean`: after an
    /// orderly end of the term.
    pub(super) fn restart(&mut self, how: &str) {
        match how {
            "kill" => {}
            "power" => self.boot += 1,
            "clean" => {
                self.give(&EngineCommand::EndTerm).expect("a term ends");
            }
            other => panic!("no such restart: {other}"),
        }
        self.check_recovery();
        self.machine = self.recovered();
        self.start_term();
    }

    /// A power cut that leaves only the first `records` records.
    pub(super) fn lose_all_but(&mut self, records: usize) {
        self.log.truncate(records);
        self.boot += 1;
        self.machine = self.recovered();
        self.start_term();
    }

    fn queue(&mut self, words: &[&str], change: bool) -> String {
        let queue = name(words[0]);
        let mut settings = match self.machine.queue_id(&queue) {
            Some(id) if change => self.machine.queue(id).expect("it exists").settings,
            _ => QueueSettings {
                lease: 30_000,
                ..QueueSettings::default()
            },
        };
        for word in &words[1..] {
            set(&mut settings, word);
        }
        if change {
            return done(self.give(&Command::ChangeQueue(ChangeQueue {
                queue,
                settings: Some(Box::new(settings)),
                annotations: None,
                tags: None,
            })));
        }
        let create = CreateQueue {
            name: queue,
            settings,
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        };
        match self.give(&Command::CreateQueue(Box::new(create))) {
            Ok(Reply::Queue(CreatedQueue { existed: true, .. })) => "existed".to_owned(),
            Ok(_) => "made".to_owned(),
            Err(rejection) => refused(&rejection),
        }
    }

    fn send_command(&self, words: &[&str]) -> SendMessage {
        let mut message = Message::new(vec![b'x'; 10]);
        for word in &words[1..] {
            let (what, value) = word.split_once('=').expect("name=value");
            match what {
                "key" => message.key = Some(Key::new(value).unwrap()),
                "group" => message.group = Some(Key::new(value).unwrap()),
                "id" => message.unique_id = Some(UniqueId::new(value).unwrap()),
                "due" => message.due = Some(self.due(value)),
                "ttl" => message.time_to_live = Some(millis(value)),
                "level" => message.level = Some(value.parse().unwrap()),
                "mark" => message.producer = Some(Box::new(self.produced(words[0], value))),
                "priority" => message.priority = value.parse().unwrap(),
                "size" => message.body = vec![b'x'; value.parse().unwrap()].into(),
                other => panic!("no such part of a message: {other}"),
            }
        }
        SendMessage {
            queue: name(words[0]),
            message,
        }
    }

    fn send(&mut self, words: &[&str]) -> String {
        let send = self.send_command(words);
        match self.give(&Command::Send(Box::new(send))) {
            Ok(Reply::Sent(sent)) => self.sent(words[0], sent),
            Ok(other) => panic!("answer to a send: {other:?}"),
            Err(rejection) => refused(&rejection),
        }
    }

    /// Key and number of all messages that the queue accepted.
    fn key_sequences(&mut self, queue: &str) -> String {
        let id = self.describe(queue).id;
        let effects = self.log.iter().flat_map(|(_, effects)| effects);
        let accepted = effects.filter_map(|effect| match effect {
            crate::Effect::Accepted(stored) if stored.queue == id => {
                let key = stored.message.key.as_ref();
                let number = stored.key_sequence.map_or(0, NonZeroU64::get);
                Some(format!("{}{number}", key.map_or("", Key::as_str)))
            }
            _ => None,
        });
        accepted.collect::<Vec<_>>().join(" ")
    }

    fn sent(&mut self, queue: &str, sent: crate::Sent) -> String {
        let at = (queue.to_owned(), sent.sequence.0);
        if sent.duplicate {
            if let Some(first) = self.ids.get(&at) {
                assert_eq!(*first, sent.id, "a duplicate gets the first id");
            }
            format!("#{} duplicate", sent.sequence)
        } else {
            self.ids.insert(at, sent.id);
            format!("#{}", sent.sequence)
        }
    }

    fn receive(&mut self, words: &[&str]) -> String {
        let mut receive = Receive {
            queue: name(words[0]),
            max: words[1].parse().unwrap(),
            key_max: None,
            lease: None,
            holder: HolderName::new("somebody").unwrap(),
        };
        for word in &words[2..] {
            match word.split_once('=').expect("name=value") {
                ("by", holder) => receive.holder = HolderName::new(holder).unwrap(),
                ("lease", span) => receive.lease = Some(millis(span)),
                other => panic!("no such part of a receive: {other:?}"),
            }
        }
        let deliveries = match self.give(&Command::Receive(receive)) {
            Ok(Reply::Received(deliveries)) => deliveries,
            Ok(other) => panic!("answer to a receive: {other:?}"),
            Err(rejection) => return refused(&rejection),
        };
        let queue = words[0].to_owned();
        let mut labels = Vec::new();
        for delivery in deliveries {
            let sequence = delivery.token.sequence.0;
            let mut label = sequence.to_string();
            if delivery.attempt > 1 {
                label += &format!("/{}", delivery.attempt);
            }
            match &delivery.origin {
                Some(origin) => {
                    let from = origin.name.as_ref().map_or("?", |name| name.as_str());
                    label += &format!("<{from}#{}", origin.sequence);
                }
                None => assert_eq!(delivery.id, self.ids[&(queue.clone(), sequence)]),
            }
            if let Some(state) = &delivery.state {
                label += &shown(state);
            }
            labels.push(label);
            for attempt in [0, delivery.attempt] {
                self.tokens
                    .insert((queue.clone(), sequence, attempt), delivery.token);
            }
        }
        or_nothing(labels)
    }

    pub(super) fn settle(&mut self, verb: &str, words: &[&str]) -> Settle {
        let (sequence, attempt) = label(words[1]);
        let span = words.get(2).map_or(0, |span| millis(span));
        Settle {
            token: self.tokens[&(words[0].to_owned(), sequence, attempt)],
            action: match verb {
                "ack" => SettleAction::Ack,
                "nack" => SettleAction::Nack {
                    delay: span,
                    reason: words.get(3).map(|&reason| reason.into()),
                },
                "defer" => SettleAction::Defer { delay: span },
                "hold-key" | "hold-queue" => SettleAction::Hold {
                    delay: span,
                    scope: match verb {
                        "hold-key" => HoldScope::Key,
                        _ => HoldScope::Queue,
                    },
                },
                "extend" => SettleAction::Extend { lease: span },
                "change-visibility" => SettleAction::ChangeVisibility { hidden: span },
                "reject" => SettleAction::Reject {
                    reason: Some("bad".into()),
                },
                _ => SettleAction::GiveBack,
            },
        }
    }

    /// `transact ack q 1; state q 1 v2 text; send r key=a`
    fn transact(&mut self, line: &str) -> String {
        let (mut settles, mut sends, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        let mut states = Vec::new();
        for part in line.trim_start_matches("transact").split(';') {
            let words: Vec<&str> = part.split_whitespace().collect();
            if words[0] == "send" {
                sends.push(self.send_command(&words[1..]));
                queues.push(words[1].to_owned());
            } else if words[0] == "state" {
                let (sequence, attempt) = label(words[2]);
                states.push(WriteState {
                    token: self.tokens[&(words[1].to_owned(), sequence, attempt)],
                    write: state_write(&words[3..]),
                });
            } else {
                settles.push(self.settle(words[0], &words[1..]));
            }
        }
        let transact = Transact {
            settles,
            states,
            sends,
            publishes: Vec::new(),
        };
        match self.give(&Command::Transact(transact)) {
            Ok(Reply::Transacted(Transacted { sent, states, .. })) => {
                let states = states.into_iter().map(version);
                let answers = sent.into_iter().zip(queues);
                let answers = answers.map(|(sent, queue)| self.sent(&queue, sent));
                let answers: Vec<_> = states.chain(answers).collect();
                if answers.is_empty() {
                    "done".to_owned()
                } else {
                    answers.join(" ")
                }
            }
            Ok(other) => panic!("answer to a transaction: {other:?}"),
            Err(rejection) => refused(&rejection),
        }
    }

    fn id(&self, queue: &str, sequence: &str) -> MessageId {
        let sequence: u64 = sequence.parse().unwrap();
        let unknown = MessageId::new(
            lockgate_core::QueueId(1),
            Sequence(sequence),
            Term {
                epoch: Epoch(9),
                ..Term::default()
            },
        );
        *self
            .ids
            .get(&(queue.to_owned(), sequence))
            .unwrap_or(&unknown)
    }

    /// `+5s`: from now; `5s`: after the script's start.
    fn due(&self, text: &str) -> WallTime {
        match text.strip_prefix('+') {
            Some(span) => self.now.wall.plus(millis(span)),
            None => WallTime(START + millis(text)),
        }
    }

    pub(super) fn describe(&self, queue: &str) -> crate::QueueDescription {
        let query = Query::DescribeQueue(DescribeQueue { queue: name(queue) });
        match self.machine.query(&query, self.now) {
            Ok(QueryReply::Queue(description)) => *description,
            other => panic!("{other:?}"),
        }
    }

    fn state(&self, queue: &str, key: &str) -> String {
        let query = Query::GetKeyState(GetKeyState {
            queue: name(queue),
            key: Key::new(key).unwrap(),
        });
        match self.machine.query(&query, self.now) {
            Ok(QueryReply::KeyState(state)) => state.map_or("none".to_owned(), |it| shown(&it)),
            Ok(other) => panic!("{other:?}"),
            Err(rejection) => refused(&rejection),
        }
    }

    /// Pages, each as `a{v1 3 bytes}`, with `|` between them.
    fn list_states(&self, queue: &str, limit: &str, prefix: &str) -> String {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let query = Query::ListKeyStates(ListKeyStates {
                queue: name(queue),
                prefix: prefix.to_owned(),
                after: after.take(),
                limit: limit.parse().unwrap(),
            });
            let KeyStatePage { states, next } = match self.machine.query(&query, self.now) {
                Ok(QueryReply::KeyStates(page)) => page,
                Ok(other) => panic!("{other:?}"),
                Err(rejection) => return refused(&rejection),
            };
            let shown = states
                .iter()
                .map(|(key, state)| format!("{key}{{v{} {} bytes}}", state.version, state.bytes));
            pages.push(shown.collect::<Vec<_>>().join(" "));
            match next {
                Some(next) => after = Some(next),
                None => return pages.join(" | "),
            }
        }
    }

    fn counts(&self, queue: &str) -> String {
        let counts = self.describe(queue).counts;
        format!(
            "ready {}, in flight {}, delayed {}",
            counts.ready, counts.in_flight, counts.delayed
        )
    }

    /// Leaves out zeros.
    fn totals(&self, queue: &str) -> String {
        let totals = if queue == "shard" {
            self.machine.totals()
        } else {
            self.describe(queue).totals
        };
        let some = COUNTERS
            .iter()
            .map(|counter| (counter.name.replace('_', " "), counter.get(&totals)))
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{what} {count}"));
        some.collect::<Vec<_>>().join(", ")
    }

    fn key(&self, queue: &str, key: &str) -> String {
        let query = Query::ExplainKey(ExplainKey {
            queue: name(queue),
            key: key_or_none(key),
        });
        match self.machine.query(&query, self.now) {
            Ok(QueryReply::Key(status)) => self.waits(status),
            Ok(other) => panic!("{other:?}"),
            Err(rejection) => refused(&rejection),
        }
    }

    /// What a key waits for, and a hold that does not follow from it.
    fn waits(&self, status: KeyStatus) -> String {
        let waits = match status.waits_for {
            KeyWait::Lease {
                sequence,
                holder,
                remaining,
                attempt,
            } => {
                format!("lease of {sequence} by {holder} for {remaining} ms, attempt {attempt}")
            }
            KeyWait::Backoff {
                sequence,
                remaining,
            } => format!("backoff of {sequence} for {remaining} ms"),
            KeyWait::Due { sequence, at } => {
                format!("first due is {sequence}, in {} ms", at.0 - self.now.wall.0)
            }
            KeyWait::Limit {
                limit: Limit::Held, ..
            } => return format!("{:?}", status.waits_for),
            other => format!("{other:?}"),
        };
        match status.held {
            None => waits,
            Some(KeyHeld { of_key, remaining }) => {
                let what = if of_key { "key" } else { "queue" };
                format!("{waits}; {what} held for {remaining} ms")
            }
        }
    }
}

fn key_or_none(word: &str) -> Option<Key> {
    (word != "-").then(|| Key::new(word).unwrap())
}

/// `v2 text`: replaces version 2; `none text`: there must be none; `any -`: drops whatever is there.
fn state_write(words: &[&str]) -> KeyStateWrite {
    let version = |text: &str| RecordVersion(text[1..].parse().unwrap());
    KeyStateWrite {
        replaces: match words[0] {
            "any" => Replaces::Any,
            "none" => Replaces::Version(None),
            text => Replaces::Version(Some(version(text))),
        },
        value: (words[1] != "-").then(|| Bytes::copy_from_slice(words[1].as_bytes())),
    }
}

fn shown(state: &KeyState) -> String {
    let text = str::from_utf8(&state.value).unwrap();
    format!("{{v{} {text}}}", state.version)
}

fn version(version: Option<RecordVersion>) -> String {
    version.map_or("none".to_owned(), |version| format!("v{version}"))
}

fn set(settings: &mut QueueSettings, word: &str) {
    let (what, value) = word.split_once('=').unwrap_or((word, ""));
    match what {
        "keyed" => settings.keyed = true,
        "unkeyed" => settings.keyed = false,
        "strict" => settings.key_profile = KeyProfile::Strict,
        "sqs" => settings.key_profile = KeyProfile::Sqs,
        "level" => settings.level = value.parse().unwrap(),
        "lease" => settings.lease = millis(value),
        "delay" => settings.delay = millis(value),
        "retention" => settings.retention = millis(value),
        "window" if value == "forever" => settings.dedup_window = QueueSettings::FOREVER,
        "window" => settings.dedup_window = millis(value),
        "scope-key" => settings.dedup_scope = DedupScope::Key,
        "scope-queue" => settings.dedup_scope = DedupScope::Queue,
        "content-based" => settings.dedup_content = true,
        "survives-purge" => settings.dedup_survives_purge = true,
        "producer-age" => settings.producer_age = millis(value),
        "rate" => settings.limit_rate = value.replace('_', " ").parse().unwrap(),
        "gap" => settings.limit_gap = value.replace('_', " ").parse().unwrap(),
        "producers" => settings.producers_max = value.parse().unwrap(),
        "dedup-bytes" => settings.dedup_bytes_max = value.parse().unwrap(),
        "message-bytes" => settings.message_bytes_max = value.parse().unwrap(),
        "messages" => settings.quota_messages = Some(value.parse().unwrap()),
        "bytes" => settings.quota_bytes = Some(value.parse().unwrap()),
        "in-flight" => settings.in_flight_max = value.parse().unwrap(),
        "key-sequences" => settings.key_sequences_max = value.parse().unwrap(),
        "attempts" => settings.attempts_max = value.parse().unwrap(),
        "policy" => {
            settings.key_policy = Some(match value {
                "block" => KeyPolicy::Block,
                "skip" => KeyPolicy::Skip,
                _ => KeyPolicy::Park,
            });
        }
        "dlq" => {
            let (queue, attempts) = value.split_once('/').expect("queue/attempts");
            settings.dead_letter = Some(name(queue));
            settings.attempts_max = attempts.parse().unwrap();
        }
        other => panic!("no such setting: {other}"),
    }
}

/// `7`: the last lease of message 7; `7/2`: its second one.
fn label(text: &str) -> (u64, u16) {
    match text.split_once('/') {
        Some((sequence, attempt)) => (sequence.parse().unwrap(), attempt.parse().unwrap()),
        None => (text.parse().unwrap(), 0),
    }
}

fn millis(text: &str) -> Millis {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("min", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    units
        .iter()
        .find_map(|(unit, factor)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(number * factor)
        })
        .unwrap_or_else(|| panic!("no span: {text}"))
}

pub(super) fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn settled(outcome: Result<Reply, Rejection>) -> String {
    match outcome {
        Ok(Reply::Settled(Settled::Done | Settled::Extended { .. })) => "done".to_owned(),
        Ok(Reply::Settled(Settled::Stale(reason))) => format!("stale {reason:?}"),
        Ok(other) => panic!("answer to a settle: {other:?}"),
        Err(rejection) => refused(&rejection),
    }
}

fn done(outcome: Result<Reply, Rejection>) -> String {
    match outcome {
        Ok(Reply::Done) => "done".to_owned(),
        Ok(Reply::Dropped(messages)) => format!("dropped {messages}"),
        Ok(other) => panic!("unexpected answer: {other:?}"),
        Err(rejection) => refused(&rejection),
    }
}

/// `refused` and the rejection's innermost name.
fn refused(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Settings { source, .. } => format!("refused {}", variant(source)),
        Rejection::TransactionRefused { index, source } => {
            format!("refused at {index}: {}", variant(source))
        }
        Rejection::TransactionStale { index, reason } => {
            format!("refused at {index}: stale {reason:?}")
        }
        Rejection::KeyStateStale { index, reason } => {
            format!("refused state at {index}: stale {reason:?}")
        }
        Rejection::KeyStateConflict { version: it, .. } => {
            format!("refused: it is {}", version(*it))
        }
        Rejection::Producer { refused, .. } => format!("refused {}", variant(refused)),
        other => format!("refused {}", variant(other)),
    }
}

fn variant(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let end = text.find(|c: char| !c.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

fn yes(condition: bool) -> String {
    if condition { "yes" } else { "no" }.to_owned()
}

fn or_nothing(items: Vec<String>) -> String {
    if items.is_empty() {
        "nothing".to_owned()
    } else {
        items.join(" ")
    }
}

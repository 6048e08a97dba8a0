//! A shard, what is asked of it, and what its answers must be.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use lockgate_core::{
    Clock, DiskOperation, HolderName, Key, LeaseToken, Level, LogReader, LogSync, Message, Now,
    Position, QueueName, UniqueId,
};
use lockgate_engine::{Driver, EngineError, Outcome, Output, Request, What, Work};
use lockgate_machine::{
    Command, CreateQueue, DeadLetter, Delivery, QueueSettings, Receive, Reply, SendMessage, Sent,
    Settle, SettleAction, Settled, StaleReason, read_message,
};
use lockgate_sim::{Fault, FaultyDisk, ManualClock, PowerCut, SeededRandom};

use crate::{
    Violation,
    model::{Existence, Known, Lease, Model},
    planted::{Bug, folded, start},
};

const KEYED: &str = "keyed";
const PLAIN: &str = "plain";
const WRITTEN: &str = "written";
const DEAD: &str = "dead";

const LEASE_MS: u64 = 5_000;

pub(crate) struct World {
    pub(crate) random: SeededRandom,
    bug: Option<Bug>,
    pub(crate) disk: FaultyDisk,
    clock: ManualClock,
    /// Time as it really passes, over reboots too.
    real_ms: u64,
    starts: u64,
    driver: Driver<u64>,
    syncer: Arc<dyn LogSync>,
    reader: Arc<dyn LogReader>,
    held: VecDeque<Output<u64>>,
    durable: Position,
    next_ticket: u64,
    asked: HashMap<u64, Asked>,
    model: Model,
    pub(crate) history: Vec<String>,
}

/// What was asked under a ticket, to make sense of its answer.
#[derive(Clone, Debug)]
enum Asked {
    Send {
        message: u64,
    },
    Receive {
        queue: &'static str,
        holder: u64,
        /// Purges of the queue asked for before: a later one may end the leases it gets.
        purges: u64,
    },
    Settle {
        token: LeaseToken,
        action: SettleAction,
        asked_at: u64,
    },
    Purge {
        queue: &'static str,
    },
    Nothing,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let random = SeededRandom::new(seed);
        let disk = FaultyDisk::new();
        let clock = ManualClock::default();
        let (driver, syncer, reader) =
            start(&disk, &clock, 0, bug).expect("a start on an empty disk");
        let durable = driver.tail();
        let mut world = Self {
            random,
            bug,
            disk,
            clock,
            real_ms: 0,
            starts: 1,
            driver,
            syncer,
            reader,
            held: VecDeque::new(),
            durable,
            next_ticket: 0,
            asked: HashMap::new(),
            model: Model::default(),
            history: Vec::new(),
        };
        world.make_queues();
        world
    }

    fn make_queues(&mut self) {
        let mut base = QueueSettings {
            lease: LEASE_MS,
            ..QueueSettings::default()
        };
        // Longer than any history.
        base.dedup.window = 365 * 24 * 3_600_000;
        base.retention = base.dedup.window;
        let queues = [
            (
                KEYED,
                QueueSettings {
                    keyed: true,
                    ..base.clone()
                },
            ),
            (
                WRITTEN,
                QueueSettings {
                    level: Level::Process,
                    ..base.clone()
                },
            ),
            (DEAD, base.clone()),
            (
                PLAIN,
                QueueSettings {
                    dead_letter: Some(DeadLetter {
                        queue: name(DEAD),
                        attempts_max: 2,
                    }),
                    ..base
                },
            ),
        ];
        let requests = queues.map(|(queue, settings)| {
            let create = CreateQueue {
                name: name(queue),
                settings,
                annotations: BTreeMap::new(),
                tags: BTreeMap::new(),
            };
            let command = Command::CreateQueue(Box::new(create));
            self.request(Work::one(command), Asked::Nothing)
        });
        self.group(requests.into())
            .expect("nothing was asked that can go wrong");
        self.sync().expect("a sync without a fault");
    }

    /// Groups of random requests, until the disk fails or enough is enough.
    pub(crate) fn live(&mut self) -> Result<(), Violation> {
        let groups = 10 + self.random.below(40);
        // Sometimes there is no fault, and the crash comes between two groups.
        if self.random.chance(80) {
            let (after, fault) = (self.random.below(groups * 2), self.random.below(10));
            let disk = &self.disk;
            match fault {
                0 => disk.fail(DiskOperation::Sync, after / 2, Fault::LostPages),
                1 => disk.fail(
                    DiskOperation::Write,
                    after,
                    Fault::Torn(std::io::ErrorKind::StorageFull),
                ),
                _ => disk.fail_change(after, Fault::PowerOff),
            }
        }
        for _ in 0..groups {
            let requests = (0..self.random.below(4))
                .map(|_| self.any_request())
                .collect();
            self.group(requests)?;
            if self.driver.stopped().is_some() {
                return Ok(());
            }
            if self.random.chance(60) {
                self.sync()?;
            }
            if self.driver.stopped().is_some() {
                return Ok(());
            }
            if self.random.chance(50) {
                let span = [1, 50, 1_000, LEASE_MS, 20_000][self.random.index(5)];
                self.pass(span);
            }
            if self.random.chance(3) {
                // The wall clock steps, within what the order of a key's messages can stand.
                let wall = self.clock.wall();
                self.clock.set_wall(wall.plus(self.random.below(500)));
            }
        }
        Ok(())
    }

    fn any_request(&mut self) -> Request<u64> {
        match self.random.below(100) {
            0..42 => self.any_send(),
            42..66 => self.any_receive(),
            66..97 => self.any_settle(),
            97 => {
                let queue = [KEYED, PLAIN, WRITTEN][self.random.index(3)];
                // The purge may happen or not, and what it is to remove may be moved on by then.
                for known in self
                    .model
                    .messages
                    .values_mut()
                    .filter(|known| known.queue == queue)
                {
                    known.purged = true;
                    if known.state == Existence::There {
                        known.state = Existence::Perhaps;
                    }
                }
                for lease in self
                    .model
                    .leases
                    .values_mut()
                    .filter(|lease| lease.queue == queue)
                {
                    lease.until_ms = 0;
                }
                self.model.unique.retain(|(of, _), _| *of != queue);
                *self.model.purges.entry(queue).or_default() += 1;
                self.note(format!("purge {queue}"));
                let purge = Command::Purge { queue: name(queue) };
                self.request(Work::one(purge), Asked::Purge { queue })
            }
            _ => {
                let query = lockgate_machine::Query::Queue { queue: name(KEYED) };
                self.request(Work::Query(query), Asked::Nothing)
            }
        }
    }

    fn any_send(&mut self) -> Request<u64> {
        let queue = [KEYED, KEYED, PLAIN, WRITTEN][self.random.index(4)];
        let number = self.model.messages.len() as u64;
        let key = (queue == KEYED || self.random.chance(30)).then(|| self.random.below(4));
        let unique = self.random.chance(40).then(|| self.random.below(12));
        let due = self.random.chance(20).then(|| {
            let delay = self.random.below(3_000);
            self.clock.wall().plus(delay)
        });
        let known = Known {
            queue,
            key,
            unique,
            state: Existence::Perhaps,
            order: None,
            enters: self.clock.wall().max(due.unwrap_or_default()),
            seen: false,
            purged: false,
            acked: false,
            acks_asked: 0,
        };
        self.model.messages.insert(number, known);
        let mut message = Message::new(body(number));
        message.key = key.map(|key| Key::new(&format!("key-{key}")).expect("a good key"));
        message.unique_id = unique.map(|id| UniqueId::new(&format!("id-{id}")).expect("a good id"));
        message.due = due;
        let send = Command::Send(Box::new(SendMessage {
            queue: name(queue),
            message,
        }));
        self.note(format!(
            "send {number} to {queue}, key {key:?}, unique id {unique:?}"
        ));
        self.request(Work::one(send), Asked::Send { message: number })
    }

    fn any_receive(&mut self) -> Request<u64> {
        let queue = [KEYED, KEYED, PLAIN, WRITTEN, DEAD][self.random.index(5)];
        let holder = self.random.below(1_000_000);
        let max = [1, 2, 5][self.random.index(3)];
        self.receive(queue, holder, max)
    }

    fn receive(&mut self, queue: &'static str, holder: u64, max: u16) -> Request<u64> {
        let receive = Receive {
            queue: name(queue),
            max,
            lease: None,
            holder: HolderName::new(&format!("holder-{holder}")).expect("a good name"),
        };
        let work = Work::Receive {
            receive,
            until: None,
        };
        let purges = self.purges(queue);
        let asked = Asked::Receive {
            queue,
            holder,
            purges,
        };
        self.request(work, asked)
    }

    fn any_settle(&mut self) -> Request<u64> {
        let mut tokens: Vec<_> = self.model.leases.keys().copied().collect();
        tokens.sort_by_key(|token| (token.queue, token.sequence, token.term.epoch, token.lease));
        if tokens.is_empty() {
            return self.any_send();
        }
        let token = tokens[self.random.index(tokens.len())];
        let action = match self.random.below(10) {
            0..6 => SettleAction::Ack,
            6 => SettleAction::Nack { delay: 0 },
            7 => SettleAction::Nack { delay: 2_000 },
            8 => SettleAction::Extend { lease: 40_000 },
            _ => SettleAction::GiveBack,
        };
        self.settle(token, action)
    }

    fn settle(&mut self, token: LeaseToken, action: SettleAction) -> Request<u64> {
        if let Some(lease) = self.model.leases.get_mut(&token) {
            let (message, holder) = (lease.message, lease.holder);
            let known = self
                .model
                .messages
                .get_mut(&message)
                .expect("was delivered");
            match action {
                // It may be gone, until an answer says so or says otherwise.
                SettleAction::Ack => {
                    known.acks_asked += 1;
                    if known.state == Existence::There {
                        known.state = Existence::Perhaps;
                    }
                    lease.until_ms = 0;
                }
                // It may be anybody's from now on; so may the rest of its batch, which the strict
                // profile takes back with it.
                SettleAction::Nack { .. } | SettleAction::GiveBack => {
                    let key = known.key;
                    for lease in self.model.leases.values_mut() {
                        if lease.holder == holder && self.model.messages[&lease.message].key == key
                        {
                            lease.until_ms = 0;
                        }
                    }
                }
                _ => {}
            }
        }
        self.note(format!(
            "settle {:?} by {action:?}",
            (token.queue, token.sequence)
        ));
        let asked_at = self.real_ms;
        let settle = Settle {
            token,
            action: action.clone(),
        };
        let asked = Asked::Settle {
            token,
            action,
            asked_at,
        };
        self.request(Work::one(Command::Settle(settle)), asked)
    }

    fn request(&mut self, work: Work, asked: Asked) -> Request<u64> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.asked.insert(ticket, asked);
        Request { work, ticket }
    }

    fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: self.driver.machine_time(self.clock.since_boot()),
        }
    }

    fn pass(&mut self, span: u64) {
        self.clock.advance(span);
        self.real_ms += span;
    }

    fn group(&mut self, requests: Vec<Request<u64>>) -> Result<(), Violation> {
        let now = self.now();
        let mut outputs = Vec::new();
        self.driver
            .run_group(requests, now, &mut |output| outputs.push(output));
        for output in outputs {
            if output.durable <= self.durable || self.bug == Some(Bug::AnswerBeforeSync) {
                self.answered(output)?;
            } else {
                self.held.push_back(output);
            }
        }
        if let Some(reason) = self.driver.stopped() {
            let reason = reason.clone();
            self.note(format!("stopped: {reason}"));
            // Whoever waits learns that nobody knows.
            self.held.clear();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Violation> {
        match self.syncer.sync() {
            Ok(position) => {
                self.note("sync".to_owned());
                self.durable = position;
                self.driver.reached(position);
                while let Some(output) = self.held.front()
                    && output.durable <= position
                {
                    let output = self.held.pop_front().expect("looked at");
                    self.answered(output)?;
                }
                Ok(())
            }
            Err(error) => {
                self.note(format!("sync failed: {error}"));
                let mut told = Vec::new();
                self.driver
                    .stop(error.to_string().into(), &mut |output| told.push(output));
                self.held.clear();
                told.into_iter()
                    .try_for_each(|output| self.answered(output))
            }
        }
    }

    /// Checks an answer against the model, and lets the model learn from it.
    fn answered(&mut self, output: Output<u64>) -> Result<(), Violation> {
        let What::Answer { ticket, result } = output.what else {
            return Ok(());
        };
        let asked = self.asked.remove(&ticket).ok_or("an answer to nothing")?;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(EngineError::UnknownOutcome { .. }) => return Ok(()),
            Err(EngineError::Stopped { .. }) => {
                // Nothing happened, for certain.
                if let Asked::Send { message } = asked {
                    self.known(message).state = Existence::Gone;
                }
                return Ok(());
            }
            Err(other) => return Err(format!("{asked:?} was answered by {other}")),
        };
        match (asked, outcome) {
            (Asked::Send { message }, Outcome::Commands(mut results)) => match results.pop() {
                Some(Ok(Reply::Sent(sent))) => self.sent(message, sent),
                other => Err(format!("a send was answered by {other:?}")),
            },
            (
                Asked::Receive {
                    queue,
                    holder,
                    purges,
                },
                Outcome::Received(result),
            ) => match result {
                Ok(deliveries) => {
                    let certain = purges == self.purges(queue);
                    self.delivered(queue, holder, certain, &deliveries)
                }
                Err(rejection) => Err(format!("a receive was rejected: {rejection}")),
            },
            (
                Asked::Settle {
                    token,
                    action,
                    asked_at,
                },
                Outcome::Commands(mut results),
            ) => match results.pop() {
                Some(Ok(Reply::Settled(settled))) => {
                    self.settled(token, &action, asked_at, settled);
                    Ok(())
                }
                other => Err(format!("a settle was answered by {other:?}")),
            },
            (Asked::Purge { queue }, _) => {
                self.note(format!("purged {queue}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn sent(&mut self, message: u64, sent: Sent) -> Result<(), Violation> {
        self.note(format!(
            "sent {message} as {}, {}",
            sent.sequence,
            duplicate(sent)
        ));
        let known = self.known(message).clone();
        if sent.duplicate {
            self.known(message).state = Existence::Gone;
            let unique = known.unique.ok_or("a duplicate without a unique id")?;
            if let Some(first) = self.model.unique.get(&(known.queue, unique))
                && (first.id, first.sequence) != (sent.id, sent.sequence)
            {
                return Err(format!(
                    "duplicate {message} got {sent:?}, the first got {first:?}"
                ));
            }
        } else {
            if let Some(unique) = known.unique
                && let Some(first) = self.model.unique.get(&(known.queue, unique))
            {
                return Err(format!(
                    "{message} is a duplicate of {first:?} and was accepted"
                ));
            }
            let known = self.known(message);
            known.order = Some((known.enters, sent.sequence));
            if !known.seen && !known.purged {
                known.state = Existence::There;
            }
        }
        if let Some(unique) = known.unique
            && !known.purged
        {
            let first = Sent {
                duplicate: false,
                ..sent
            };
            self.model.unique.insert((known.queue, unique), first);
        }
        Ok(())
    }

    fn delivered(
        &mut self,
        queue: &'static str,
        holder: u64,
        certain: bool,
        deliveries: &[Delivery],
    ) -> Result<(), Violation> {
        let mut earlier = Vec::new();
        // What has ended on the way to its holder is not handed over.
        let now = self.now().machine;
        let current = |delivery: &&Delivery| delivery.deadline > now;
        for delivery in deliveries.iter().filter(current) {
            let at = delivery.location;
            let record = self.reader.read(at.position).map_err(|error| {
                format!(
                    "the payload of {:?} cannot be read: {error}",
                    delivery.token
                )
            })?;
            let stored = read_message(&record, at.part)
                .map_err(|error| format!("no message at {at:?}: {error}"))?;
            if stored.id != delivery.id {
                return Err(format!(
                    "{} is stored where {} should be",
                    stored.id, delivery.id
                ));
            }
            let number = number(&stored.message.body).ok_or("a body that nobody sent")?;
            self.note(format!(
                "{queue} delivers {number} to {holder}, attempt {}",
                delivery.attempt
            ));
            let known = self.known(number).clone();
            if body(number) != stored.message.body {
                return Err(format!("the body of {number} is not what was sent"));
            }
            match known.state {
                Existence::Gone => return Err(format!("{number} is gone and was delivered")),
                // That it is delivered says that it is there; but it may have been acknowledged
                // between the decision and now.
                Existence::Perhaps | Existence::There => {}
            }
            self.known(number).seen = true;
            self.model.delivered += 1;
            if queue == KEYED {
                self.known(number).order = Some((known.enters, stored.sequence));
                self.check_key(number, holder, &earlier)?;
                earlier.push(number);
            }
            let lease = Lease {
                message: number,
                queue,
                holder,
                until_ms: if certain {
                    self.real_ms + self.left(delivery)
                } else {
                    0
                },
            };
            self.model.leases.insert(delivery.token, lease);
        }
        Ok(())
    }

    /// How much longer the holder may count on a lease. It reads the shard's machine time.
    fn left(&self, delivery: &Delivery) -> u64 {
        delivery.deadline.since(self.now().machine)
    }

    /// Nothing of the message's key is in front of it, and nobody else has any of it.
    fn check_key(&self, number: u64, holder: u64, earlier: &[u64]) -> Result<(), Violation> {
        let of = &self.model.messages[&number];
        for (&other, known) in &self.model.messages {
            let in_front = known.queue == KEYED
                && known.key == of.key
                && known.state == Existence::There
                && known.order.is_some_and(|order| Some(order) < of.order);
            if in_front && !earlier.contains(&other) {
                return Err(format!(
                    "{number} was delivered before {other}, which is there"
                ));
            }
        }
        for lease in self.model.leases.values() {
            let key = self.model.messages[&lease.message].key;
            if lease.queue == KEYED
                && key == of.key
                && lease.until_ms > self.real_ms
                && lease.holder != holder
            {
                return Err(format!(
                    "{number} was delivered to {holder} while {} holds {} of its key for {} ms",
                    lease.holder,
                    lease.message,
                    lease.until_ms - self.real_ms
                ));
            }
        }
        Ok(())
    }

    fn settled(
        &mut self,
        token: LeaseToken,
        action: &SettleAction,
        asked_at: u64,
        settled: Settled,
    ) {
        self.note(format!(
            "settled {:?}: {settled:?}",
            (token.queue, token.sequence)
        ));
        let Some(lease) = self.model.leases.get(&token).cloned() else {
            return;
        };
        let known = self.known(lease.message);
        if *action == SettleAction::Ack {
            known.acks_asked = known.acks_asked.saturating_sub(1);
        }
        match (action, settled) {
            (SettleAction::Ack, Settled::Done) => {
                known.state = Existence::Gone;
                known.acked = true;
                self.model.leases.remove(&token);
            }
            // Nothing happened: the lease goes on, and the message is there.
            (SettleAction::Ack, Settled::Stale(StaleReason::OutOfOrder)) => {
                if known.state == Existence::Perhaps && known.acks_asked == 0 && !known.purged {
                    known.state = Existence::There;
                }
            }
            (SettleAction::Extend { lease: span }, Settled::Done) => {
                // Counted from when it was decided, which was not before it was asked.
                let lease = self.model.leases.get_mut(&token).expect("looked at");
                lease.until_ms = if lease.until_ms == 0 {
                    0
                } else {
                    asked_at + span
                };
            }
            // The lease is over; whether the message is there is as unknown as before.
            _ => {
                self.model.leases.remove(&token);
            }
        }
    }

    /// Ends this life and begins the next on what is left.
    pub(crate) fn crash(&mut self) -> Result<(), Violation> {
        let power_cut = self.random.chance(60);
        let left = if power_cut {
            let cut = match self.random.below(4) {
                0 => PowerCut::LoseAllUnsynced,
                1 => PowerCut::KeepAll,
                2 => PowerCut::KeepPrefix(self.random.index(self.disk.unsynced() + 1)),
                _ => PowerCut::Seeded(self.random.next_u64()),
            };
            self.note(format!("power cut: {cut:?}"));
            self.disk.crash(cut)
        } else {
            self.note("killed".to_owned());
            self.disk.kill()
        };
        self.held.clear();
        self.asked.clear();
        for known in self.model.messages.values_mut() {
            known.acks_asked = 0;
        }
        let span = 1 + self.random.below(1_500);
        self.pass(span);
        if power_cut {
            self.clock.reboot(self.random.below(5_000));
            // Answers at level `process` do not count any more, neither way.
            self.model.unique.retain(|(queue, _), _| *queue != WRITTEN);
            for known in self.model.messages.values_mut() {
                let answered = known.acked || known.state == Existence::There;
                if known.queue == WRITTEN && answered {
                    known.state = Existence::Perhaps;
                }
            }
        }
        self.recovered_twice(&left)?;
        self.disk = left;
        let (driver, syncer, reader) = start(&self.disk, &self.clock, self.starts, self.bug)?;
        self.starts += 1;
        self.durable = driver.tail();
        (self.driver, self.syncer, self.reader) = (driver, syncer, reader);
        Ok(())
    }

    fn recovered_twice(&self, disk: &FaultyDisk) -> Result<(), Violation> {
        let first = folded(disk)?;
        let second = folded(disk)?;
        if first != second {
            return Err("recovering twice gave two states".to_owned());
        }
        Ok(())
    }

    /// Receives and acknowledges everything that is left. What was there must come.
    pub(crate) fn drain(&mut self) -> Result<(), Violation> {
        self.note("drain".to_owned());
        self.sync()?;
        let state = self.driver.machine().snapshot();
        if folded(&self.disk.kill())? != state && self.bug.is_none() {
            return Err("the state is not what folding the log gives".to_owned());
        }
        let mut idle = 0;
        while idle < 20 {
            let before = self.model.delivered;
            for queue in [KEYED, PLAIN, WRITTEN, DEAD] {
                let holder = 1_000_000 + self.next_ticket;
                let receive = self.receive(queue, holder, 100);
                self.group(vec![receive])?;
            }
            self.sync()?;
            let mut tokens: Vec<_> = self.model.leases.iter().collect();
            tokens.retain(|(_, lease)| lease.until_ms > self.real_ms);
            let mut tokens: Vec<_> = tokens.into_iter().map(|(token, _)| *token).collect();
            tokens.sort_by_key(|token| (token.queue, token.sequence));
            let settles = tokens
                .into_iter()
                .map(|token| self.settle(token, SettleAction::Ack))
                .collect();
            self.group(settles)?;
            self.sync()?;
            // The first receives come right after the start, when leases of before still last.
            self.pass(20_000);
            self.model
                .leases
                .retain(|_, lease| lease.until_ms > self.real_ms);
            idle = if before == self.model.delivered {
                idle + 1
            } else {
                0
            };
            if self.real_ms > 1_000_000_000 {
                return Err("the shard never runs empty".to_owned());
            }
        }
        let lost = self
            .model
            .messages
            .iter()
            .find(|(_, known)| known.state == Existence::There);
        match lost {
            Some((number, known)) => Err(format!("{number} was never delivered: {known:?}")),
            None => Ok(()),
        }
    }

    fn purges(&self, queue: &str) -> u64 {
        self.model.purges.get(queue).copied().unwrap_or(0)
    }

    fn known(&mut self, message: u64) -> &mut Known {
        self.model
            .messages
            .get_mut(&message)
            .expect("every number was sent")
    }

    fn note(&mut self, event: String) {
        self.history.push(format!("{:>7} {event}", self.real_ms));
    }
}

fn name(queue: &str) -> QueueName {
    QueueName::new(queue).expect("a good name")
}

/// A body of a size that depends on its number, so that records and segments end everywhere.
fn body(number: u64) -> Bytes {
    let mut body = number.to_le_bytes().to_vec();
    body.extend(SeededRandom::new(number).bytes(usize::try_from(number % 7).expect("small") * 90));
    body.into()
}

fn number(body: &Bytes) -> Option<u64> {
    Some(u64::from_le_bytes(*body.first_chunk::<8>()?))
}

fn duplicate(sent: Sent) -> &'static str {
    if sent.duplicate {
        "a duplicate"
    } else {
        "accepted"
    }
}

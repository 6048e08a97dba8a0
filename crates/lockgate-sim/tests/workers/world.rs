//! A shard, its workers, the network between them, and the time they live in.

use std::collections::{BTreeMap, HashMap, VecDeque};

use lockgate_consumer::dispatch::{RunEnd, RunId};
use lockgate_core::{
    Clock, Fate, HolderName, Incarnation, Key, LogProgress, MachineTime, Message, MessageId,
    Millis, Now, Position, QueueName, Sequence, WallTime,
};
use lockgate_engine::{
    Answer as Answered, Beginning, Driver, EngineOptions, Output, OutputKind, Request, Work,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{
    ChangeKey, Command, CreateQueue, KeyAction, KeyProfile, QueueSettings, Rejection, Reply,
    SendMessage, Settle, Settled,
};
use lockgate_sim::{FaultyDisk, ManualClock, PowerCut, SeededRandom};

use crate::{
    Violation,
    hands::{Answer, Call, Hands, Kind},
    plan::{self, Plan, QueuePlan},
    planted::Bug,
};

pub(crate) struct World {
    pub(crate) random: SeededRandom,
    pub(crate) bug: Option<Bug>,
    pub(crate) plan: Plan,
    /// Time as it really passes.
    pub(crate) now: Millis,
    pub(crate) workers: BTreeMap<u64, Hands>,
    pub(crate) messages: Vec<Known>,
    pub(crate) by_id: HashMap<MessageId, usize>,
    /// Nothing goes wrong any more.
    pub(crate) is_calm: bool,
    pub(crate) tally: BTreeMap<&'static str, u64>,
    pub(crate) history: Vec<String>,
    disk: FaultyDisk,
    clock: ManualClock,
    starts: u64,
    shard: Option<Shard>,
    events: BTreeMap<(Millis, u64), Event>,
    /// What was asked of the shard, and has no answer.
    asked: BTreeMap<u64, Asked>,
    last_number: u64,
}

pub(crate) struct Shard {
    pub(crate) driver: Driver<u64>,
    progress: std::sync::Arc<dyn LogProgress>,
    /// Answers that wait for a sync.
    held: VecDeque<Output<u64>>,
    durable: Position,
    /// A sync is on its way.
    syncs: bool,
}

/// A message as its producer and the workers know it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) queue: usize,
    pub(crate) key: Option<u64>,
    /// Known once its send was answered, or it was delivered.
    pub(crate) place: Option<(MessageId, Sequence)>,
    /// Its send was answered.
    pub(crate) is_accepted: bool,
    /// Handlers that came to its good end while they were current.
    pub(crate) effects: u32,
    /// Handlers that came to its good end when they were not.
    pub(crate) stale_effects: u32,
    /// A worker has asked to acknowledge or to reject it.
    pub(crate) is_decided: bool,
    /// A handler has rejected it, or it had all the attempts that its worker gives it.
    pub(crate) is_given_up: bool,
}

impl Known {
    /// What is behind it in its key may be handled.
    pub(crate) fn is_over(&self) -> bool {
        self.effects + self.stale_effects > 0 || self.is_decided || self.is_given_up
    }
}

pub(crate) enum Event {
    /// A call comes to the shard.
    Arrives {
        worker: u64,
        call: u64,
    },
    /// A call's answer comes to its worker.
    Answered {
        worker: u64,
        call: u64,
        /// And how long the shard took for it.
        answer: Result<(Millis, Answer), Fate>,
    },
    /// A handler ends.
    Ends {
        worker: u64,
        run: RunId,
        end: RunEnd,
    },
    Sync,
    /// The shard starts again.
    Start,
    /// A new worker begins.
    Begin,
    /// A producer sends so many messages.
    Send(u64),
}

enum Asked {
    Send(usize),
    Call {
        worker: u64,
        call: u64,
        arrived: Millis,
    },
    Nothing,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = SeededRandom::new(seed);
        let plan = plan::any(&mut random);
        let mut world = Self {
            random,
            bug,
            plan,
            now: 0,
            workers: BTreeMap::new(),
            messages: Vec::new(),
            by_id: HashMap::new(),
            is_calm: false,
            tally: BTreeMap::new(),
            history: Vec::new(),
            disk: FaultyDisk::new(),
            clock: ManualClock::default(),
            starts: 0,
            shard: None,
            events: BTreeMap::new(),
            asked: BTreeMap::new(),
            last_number: 0,
        };
        world.note(format!("{:?}", world.plan));
        world
    }

    /// A history: work under faults, and then the time in which everything must come to its end.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        self.start();
        for _ in 0..self.plan.workers {
            self.later(0, Event::Begin);
        }
        for _ in 0..2 + self.random.below(6) {
            let at = self.random.below(self.plan.lasts / 2);
            let count = 1 + self.random.below(12);
            self.later(at, Event::Send(count));
        }
        while self.now < self.plan.lasts {
            self.any_fault()?;
            self.step()?;
        }
        self.come_to_rest()
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn later(&mut self, span: Millis, event: Event) {
        let number = self.number();
        self.events.insert((self.now + span, number), event);
    }

    pub(crate) fn note(&mut self, event: String) {
        self.history.push(format!("{:>7} {event}", self.now));
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub(crate) fn shard(&self) -> Option<&Shard> {
        self.shard.as_ref()
    }

    /// Lets time pass until something happens, and lets it happen.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        const STEP_MAX: Millis = 1_000;
        let event = self.events.keys().next().map(|(at, _)| *at);
        let thawed = self.workers.values().filter_map(|hands| {
            let at = hands.dispatcher.next_deadline()?;
            Some(at.max(hands.frozen_until))
        });
        let next = event.into_iter().chain(thawed).min();
        let next = next.map_or(self.now + STEP_MAX, |at| at.min(self.now + STEP_MAX));
        let span = next.saturating_sub(self.now);
        self.clock.advance(span);
        self.now += span;
        // What is due for the shard and the workers by time alone.
        self.group(Vec::new())?;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= self.now
        {
            let event = entry.remove();
            self.happen(event)?;
            self.check()?;
        }
        let workers: Vec<u64> = self.workers.keys().copied().collect();
        for worker in workers {
            self.work(worker)?;
            self.check()?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        // What comes to a worker that is stopped waits for it.
        let of = match &event {
            Event::Answered { worker, .. } | Event::Ends { worker, .. } => {
                self.workers.get(worker).map(|hands| hands.frozen_until)
            }
            _ => None,
        };
        if let Some(until) = of.filter(|until| *until > self.now) {
            self.later(until - self.now, event);
            return Ok(());
        }
        match event {
            Event::Arrives { worker, call } => self.arrives(worker, call),
            Event::Answered {
                worker,
                call,
                answer,
            } => self.answered(worker, call, answer),
            Event::Ends { worker, run, end } => self.ends(worker, run, end),
            Event::Sync => self.sync(),
            Event::Start => {
                self.start();
                Ok(())
            }
            Event::Begin => {
                self.begin();
                Ok(())
            }
            Event::Send(count) => self.send(count),
        }
    }

    // The shard.

    fn start(&mut self) {
        if self.shard.is_some() {
            return;
        }
        let options = LocalLogOptions {
            segment_bytes: 64 << 10,
            record_bytes_max: 16_000,
            free_bytes_min: 0,
            generation_seed: Some(5),
            ..LocalLogOptions::default()
        };
        let disk = std::sync::Arc::new(self.disk.clone());
        let log = LocalLog::open(disk, options).expect("the folder is whole");
        let beginning = Beginning {
            wall: self.clock.wall(),
            since_boot: self.clock.since_boot(),
            boot_id: self.clock.boot_id(),
            incarnation: Incarnation(self.starts),
            secret: [7; 32],
        };
        let recovered = Driver::recover(log, &EngineOptions::default(), || beginning);
        let (driver, _) = recovered.expect("nothing is damaged");
        self.starts += 1;
        self.shard = Some(Shard {
            progress: driver.progress(),
            held: VecDeque::new(),
            durable: driver.tail(),
            syncs: false,
            driver,
        });
        self.note("the shard starts".to_owned());
        let creates = plan::all_queues(&self.plan)
            .into_iter()
            .map(|(name, settings)| {
                Command::CreateQueue(Box::new(CreateQueue {
                    name,
                    settings,
                    annotations: BTreeMap::new(),
                    tags: BTreeMap::new(),
                }))
            });
        self.submit_quietly(creates.collect());
    }

    /// Commands whose answers tell nothing.
    pub(crate) fn submit_quietly(&mut self, commands: Vec<Command>) {
        let requests = commands.into_iter().map(|command| {
            let ticket = self.number();
            self.asked.insert(ticket, Asked::Nothing);
            Request {
                work: Work::from(command),
                ticket,
            }
        });
        let requests = requests.collect();
        self.group(requests)
            .expect("what nobody reads breaks nothing");
    }

    pub(crate) fn machine_now(&self) -> MachineTime {
        let shard = self.shard.as_ref().expect("it runs");
        shard.driver.machine_time(self.clock.since_boot())
    }

    fn group(&mut self, mut requests: Vec<Request<u64>>) -> Result<(), Violation> {
        loop {
            if self.shard.is_none() {
                return Ok(());
            }
            let now = Now {
                wall: self.clock.wall(),
                machine: self.machine_now(),
            };
            let Some(shard) = &mut self.shard else {
                return Ok(());
            };
            let mut outputs = Vec::new();
            let requests = std::mem::take(&mut requests);
            (shard.driver).run_group(requests, now, &mut |output| outputs.push(output));
            if let Some(reason) = shard.driver.stopped() {
                return Err(format!(
                    "the shard stopped although nothing failed: {reason}"
                ));
            }
            let is_behind = shard.driver.is_behind();
            let durable = shard.durable;
            let wants_sync = !shard.syncs && shard.driver.tail() > durable;
            shard.syncs |= wants_sync;
            let (at_once, held): (Vec<_>, Vec<_>) =
                (outputs.into_iter()).partition(|output: &Output<u64>| output.durable <= durable);
            shard.held.extend(held);
            if wants_sync {
                let span = self.random.below(10);
                self.later(span, Event::Sync);
            }
            for output in at_once {
                self.leaves(output)?;
            }
            if !is_behind {
                return Ok(());
            }
        }
    }

    fn sync(&mut self) -> Result<(), Violation> {
        let Some(shard) = &mut self.shard else {
            return Ok(());
        };
        if !shard.syncs {
            return Ok(()); // it was another life's
        }
        let durable = shard.progress.sync().expect("the disk is well");
        shard.syncs = false;
        shard.durable = durable;
        shard.driver.reached(durable);
        let mut out = Vec::new();
        while let Some(output) = shard.held.pop_front_if(|held| held.durable <= durable) {
            out.push(output);
        }
        for output in out {
            self.leaves(output)?;
        }
        self.group(Vec::new())
    }

    /// The process of the shard is killed, or the power goes.
    pub(crate) fn crash(&mut self, power: bool) {
        if self.shard.take().is_none() {
            return;
        }
        self.note(format!("the shard is gone, power cut: {power}"));
        self.disk = match power {
            true => {
                self.clock.reboot(self.random.below(5_000));
                self.disk.crash(PowerCut::Seeded(self.random.next_u64()))
            }
            false => self.disk.kill(),
        };
        for (_, asked) in std::mem::take(&mut self.asked) {
            if let Asked::Call { worker, call, .. } = asked {
                let span = self.random.below(50);
                let answer = Err(Fate::Unknown);
                let event = Event::Answered {
                    worker,
                    call,
                    answer,
                };
                self.later(span, event);
            }
        }
        let down = match self.random.below(4) {
            0 => 20_000 + self.random.below(40_000),
            _ => self.random.below(3_000),
        };
        self.later(down, Event::Start);
    }

    pub(crate) fn step_wall_clock(&mut self) {
        let span = self.random.below(2 * 3_600_000);
        let wall = self.clock.wall().0;
        let wall = (wall + span).saturating_sub(3_600_000);
        self.note(format!("the wall clock shows {wall}"));
        self.clock.set_wall(WallTime(wall));
    }

    // What comes to the shard and leaves it.

    fn send(&mut self, count: u64) -> Result<(), Violation> {
        if self.shard.is_none() {
            self.later(1_000, Event::Send(count));
            return Ok(());
        }
        for _ in 0..count {
            let queue = self.random.index(self.plan.queues.len());
            let QueuePlan { name, keyed, .. } = &self.plan.queues[queue];
            let (name, keyed) = (name.clone(), *keyed);
            let key = keyed.then(|| self.random.below(self.plan.keys));
            let number = self.messages.len();
            self.messages.push(Known {
                queue,
                key,
                place: None,
                is_accepted: false,
                effects: 0,
                stale_effects: 0,
                is_decided: false,
                is_given_up: false,
            });
            let mut message = Message::new(number.to_string());
            message.key = key.map(key_of);
            let ticket = self.number();
            self.asked.insert(ticket, Asked::Send(number));
            let send = SendMessage {
                queue: name,
                message,
            };
            let work = Work::from(Command::Send(Box::new(send)));
            self.group(vec![Request { work, ticket }])?;
        }
        Ok(())
    }

    fn arrives(&mut self, worker: u64, number: u64) -> Result<(), Violation> {
        let call = self
            .workers
            .get(&worker)
            .and_then(|hands| hands.calls.get(&number));
        let Some(Call { kind, .. }) = call else {
            return Ok(()); // nobody asks any more
        };
        if self.shard.is_none() {
            let answer = Err(Fate::Retry);
            self.later(
                1,
                Event::Answered {
                    worker,
                    call: number,
                    answer,
                },
            );
            return Ok(());
        }
        let work = match kind {
            Kind::Receive { receive, wait, .. } => Work::Receive {
                receive: receive.clone(),
                until: Some(self.machine_now().plus(*wait)),
            },
            Kind::Settle { settles, .. } | Kind::Extend { settles, .. } => {
                let settles = settles.iter().map(|(_, settle): &(_, Settle)| settle);
                Work::Commands(settles.cloned().map(Command::Settle).collect())
            }
            Kind::Claim { settles, .. } => {
                Work::Commands(settles.iter().cloned().map(Command::Settle).collect())
            }
        };
        let ticket = self.number();
        let arrived = self.now;
        self.asked.insert(
            ticket,
            Asked::Call {
                worker,
                call: number,
                arrived,
            },
        );
        self.group(vec![Request { work, ticket }])
    }

    /// An answer leaves the shard.
    fn leaves(&mut self, output: Output<u64>) -> Result<(), Violation> {
        let OutputKind::Answer { ticket, result } = output.kind else {
            return Ok(());
        };
        let asked = self.asked.remove(&ticket).ok_or("an answer to nothing")?;
        let answer = result.map_err(|error| format!("a request was answered by {error}"))?;
        match (asked, answer) {
            (Asked::Nothing, _) => Ok(()),
            (Asked::Send(number), Answered::Commands(replies)) => {
                match replies.into_iter().next() {
                    Some(Ok(Reply::Sent(sent))) => {
                        self.learn(number, sent.id, sent.sequence)?;
                        self.messages[number].is_accepted = true;
                        Ok(())
                    }
                    other => Err(format!("the send of {number} was answered by {other:?}")),
                }
            }
            (
                Asked::Call {
                    worker,
                    call,
                    arrived,
                },
                answer,
            ) => {
                let took = self.now - arrived;
                let answer = self.in_the_words_of_a_source(answer)?;
                self.send_answer(worker, call, took, answer);
                Ok(())
            }
            (Asked::Send(_), other) => Err(format!("a send was answered by {other:?}")),
        }
    }

    /// Where a message is in its queue.
    fn learn(&mut self, number: usize, id: MessageId, order: Sequence) -> Result<(), Violation> {
        let place = self.messages[number].place.get_or_insert((id, order));
        if *place != (id, order) {
            return Err(format!("{number} is {:?} and {:?}", place, (id, order)));
        }
        self.by_id.insert(id, number);
        Ok(())
    }

    fn in_the_words_of_a_source(&mut self, answer: Answered) -> Result<Answer, Violation> {
        let now = self.machine_now();
        match answer {
            Answered::Received(Ok(deliveries)) => {
                let mut leased = Vec::new();
                // What has ended before it could leave is not handed over.
                for delivery in deliveries.into_iter().filter(|it| it.deadline > now) {
                    let reader = self.shard.as_ref().expect("it answers").driver.reader();
                    let at = delivery.location;
                    let record = reader.read(at.position);
                    let record = record.map_err(|error| format!("unreadable: {error}"))?;
                    let stored = lockgate_machine::read_message(&record, at.part)
                        .map_err(|error| format!("no message at {at:?}: {error}"))?;
                    let number = String::from_utf8_lossy(&stored.message.body)
                        .parse::<usize>()
                        .map_err(|_| "a body that nobody sent")?;
                    self.learn(number, delivery.id, delivery.token.sequence)?;
                    leased.push((
                        number,
                        delivery.token,
                        u32::from(delivery.attempt),
                        delivery.deadline.since(now),
                    ));
                }
                Ok(Answer::Received(leased))
            }
            Answered::Commands(replies) => {
                let fates = replies.into_iter().map(|reply| match reply {
                    Ok(Reply::Settled(Settled::Done)) => Ok(Ok(None)),
                    Ok(Reply::Settled(Settled::Extended { deadline, .. })) => {
                        Ok(Ok(Some(deadline.since(now))))
                    }
                    Ok(Reply::Settled(Settled::Stale(_))) => Ok(Err(Fate::Stale)),
                    other => Err(format!("a settle was answered by {other:?}")),
                });
                Ok(Answer::Settled(fates.collect::<Result<_, _>>()?))
            }
            Answered::Received(Err(rejection @ Rejection::InFlightFull { .. })) => {
                Err(format!("{rejection}"))
            }
            other => Err(format!("a call was answered by {other:?}")),
        }
    }

    // The end.

    /// Nothing goes wrong any more: everything comes to its end, in bounded time.
    fn come_to_rest(&mut self) -> Result<(), Violation> {
        /// The longest lease, the longest wait, and some of both behind each other.
        const REST_MAX: Millis = 1_200_000;
        self.note("nothing goes wrong any more".to_owned());
        self.is_calm = true;
        for hands in self.workers.values_mut() {
            hands.frozen_until = hands.frozen_until.min(self.now);
            hands.dispatcher.resume(self.now);
        }
        self.end_all_handlers();
        let until = self.now + REST_MAX;
        let mut unparked = self.now;
        loop {
            self.step()?;
            if self.workers.is_empty() {
                self.later(0, Event::Begin);
            }
            let holds = self
                .workers
                .values()
                .any(|hands| hands.dispatcher.held() > 0);
            if self.shard.is_some() && !holds && self.left() == 0 {
                break;
            }
            if self.now >= until {
                return Err(format!(
                    "it does not come to rest: {} messages are left, {:?}",
                    self.left(),
                    self.workers
                        .values()
                        .map(|hands| (hands.dispatcher.held(), hands.dispatcher.counts()))
                        .collect::<Vec<_>>()
                ));
            }
            if self.now >= unparked + 20_000 && self.shard.is_some() {
                unparked = self.now;
                self.unpark();
            }
        }
        self.check_at_rest()
    }

    fn unpark(&mut self) {
        let mut commands = Vec::new();
        for queue in self.plan.queues.iter().filter(|queue| queue.keyed) {
            for key in 0..self.plan.keys {
                commands.push(Command::ChangeKey(ChangeKey {
                    queue: queue.name.clone(),
                    key: key_of(key),
                    action: KeyAction::Resume,
                }));
            }
        }
        if !commands.is_empty() {
            self.submit_quietly(commands);
        }
    }

    /// Messages in the queues that the workers serve.
    fn left(&self) -> usize {
        let Some(shard) = &self.shard else {
            return usize::MAX;
        };
        let view = shard.driver.machine().state_view();
        let served = self.plan.queues.iter();
        served
            .map(|queue| view.queues[&queue.name].messages.len())
            .sum()
    }
}

pub(crate) fn key_of(number: u64) -> Key {
    Key::new(&format!("key-{number}")).expect("a good key")
}

pub(crate) fn holder_of(worker: u64) -> HolderName {
    HolderName::new(&format!("worker-{worker}")).expect("a good name")
}

pub(crate) fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name")
}

/// Whether the rules of a batch let another holder have what comes back in front of it.
pub(crate) fn may_come_back_in_front(settings: &QueueSettings) -> bool {
    settings.key_profile == KeyProfile::Sqs
}

//! Exchanges: what is published, and what must become of it.
//!
//! A publish is one record. So whatever the disk loses, all queues that are bound have their copy or none has one; all have
//! it if that was answered, and none if the publish was refused. A copy is there until its own queue's holder acknowledges
//! it, and each queue has a message once, however often it is published with its unique id. A binding that was answered is
//! there, and one that was removed is not.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockgate_core::{
    ExchangeName, HolderName, LeaseToken, Level, Message, RoutingKey, Sequence, UniqueId,
};
use lockgate_engine::{Request, Work};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, Command, CreateExchange, CreateQueue, Delivery, ExchangeKind,
    Pattern, Publish, QueueSettings, Receive, Rejection, Reply, Settle, SettleAction, Settled,
    Unbind, Unroutable, read_message,
};
use lockgate_sim::SeededRandom;

use crate::{
    Violation,
    answers::{Asked, number},
    model::Existence,
    tally::Doing,
    world::{LEASE_MS, World, in_order, key, name},
};

/// The queues that are bound. The last one is unbound and bound again; its level is `process`.
pub(crate) const COPIED: [&str; 3] = ["copied-keyed", "copied-plain", "copied-later"];
const LATER: &str = COPIED[2];

/// Publishes of a history.
const PUBLISHES_MAX: u64 = 200;

#[derive(Clone)]
pub(crate) struct Exchanges {
    random: SeededRandom,
    /// Those of the first two queues whose binding was answered.
    bound: BTreeSet<&'static str>,
    /// Whether the last one is bound, where that is certain; and how many changes of that have no answer.
    later: Option<bool>,
    later_open: u64,
    told: BTreeMap<u64, Told>,
    leases: HashMap<LeaseToken, (&'static str, u64)>,
}

/// A message that was given to a publish.
#[derive(Clone, Debug)]
struct Told {
    state: Existence,
    /// Publishes of it without an answer.
    open: u64,
    /// Whether the last queue was bound, where that is certain.
    later: Option<bool>,
    /// Queues whose copy somebody was asked to acknowledge, and those where that was answered.
    doubtful: BTreeSet<&'static str>,
    ended: BTreeSet<&'static str>,
}

#[derive(Clone, Debug)]
pub(crate) enum AskedExchange {
    Make,
    Bind(&'static str),
    Later(bool),
    Publish(u64),
    Receive(&'static str),
    Ack(LeaseToken),
}

impl Exchanges {
    /// For a third of the histories. The others are as they were before there were exchanges.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        seed.is_multiple_of(3).then(|| Self::new(seed))
    }

    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: SeededRandom::new(seed),
            bound: BTreeSet::new(),
            later: Some(false),
            later_open: 0,
            told: BTreeMap::new(),
            leases: HashMap::new(),
        }
    }
}

fn exchange() -> ExchangeName {
    ExchangeName::new("copies").unwrap()
}

impl World {
    fn exchanges(&mut self) -> &mut Exchanges {
        self.exchanges.as_mut().expect("they were asked")
    }

    fn ask_exchange(&mut self, command: impl Into<Command>, asked: AskedExchange) -> Request<u64> {
        self.note(format!("{asked:?}"));
        self.request(Work::from(command.into()), vec![Asked::Exchange(asked)])
    }

    /// Makes what is not there: queues, an exchange, and the bindings that last.
    pub(crate) fn make_exchanges(&mut self) -> Vec<Request<u64>> {
        if self.exchanges.is_none() {
            return Vec::new();
        }
        let mut requests = Vec::new();
        for queue in COPIED {
            let long = 365 * 24 * 3_600_000;
            let settings = QueueSettings {
                lease: LEASE_MS,
                keyed: queue == COPIED[0],
                attempts_max: 1_000,
                dedup_window: long,
                retention: long,
                level: if queue == LATER {
                    Level::Process
                } else {
                    Level::Disk
                },
                ..QueueSettings::default()
            };
            let create = CreateQueue {
                name: name(queue),
                settings,
                annotations: BTreeMap::new(),
                tags: BTreeMap::new(),
            };
            requests.push(self.ask_exchange(create, AskedExchange::Make));
        }
        let create = CreateExchange {
            notes: Default::default(),
            name: exchange(),
            kind: ExchangeKind::Fanout,
            unroutable: Unroutable::Reject,
        };
        requests.push(self.ask_exchange(create, AskedExchange::Make));
        for queue in &COPIED[..2] {
            requests.push(self.ask_exchange(bind(queue), AskedExchange::Bind(queue)));
        }
        requests
    }

    pub(crate) fn any_exchange_requests(&mut self) -> Vec<Request<u64>> {
        let Some(exchanges) = &mut self.exchanges else {
            return Vec::new();
        };
        let count = exchanges.random.below(3);
        (0..count).map(|_| self.any_exchange_request()).collect()
    }

    fn any_exchange_request(&mut self) -> Request<u64> {
        let exchanges = self.exchanges();
        let (what, queue) = (exchanges.random.below(100), exchanges.random.index(3));
        let max = [1, 2, 4][exchanges.random.index(3)];
        let told = exchanges.told.len() as u64;
        let again = exchanges.random.below(told.max(1));
        match what {
            0..8 => self.bind_later(true),
            8..16 => self.bind_later(false),
            16..26 if told > 0 => self.publish(again),
            16..60 if told < PUBLISHES_MAX => self.publish(told),
            60..80 => self.receive_copies(COPIED[queue], max),
            _ => {
                let tokens = in_order(self.exchanges().leases.keys().copied().collect());
                match tokens.is_empty() {
                    true => self.receive_copies(COPIED[queue], max),
                    false => {
                        let at = self.exchanges().random.index(tokens.len());
                        self.acknowledge_copy(tokens[at])
                    }
                }
            }
        }
    }

    /// Binds the last queue, or removes its binding.
    pub(crate) fn bind_later(&mut self, is_bound: bool) -> Request<u64> {
        let exchanges = self.exchanges();
        exchanges.later = None;
        exchanges.later_open += 1;
        let asked = AskedExchange::Later(is_bound);
        if is_bound {
            return self.ask_exchange(bind(LATER), asked);
        }
        let unbind = Unbind {
            exchange: exchange(),
            to: BindTo::Queue(name(LATER)),
            pattern: Pattern::Everything,
        };
        self.ask_exchange(unbind, asked)
    }

    pub(crate) fn publish_next(&mut self) -> Request<u64> {
        let number = self.exchanges().told.len() as u64;
        self.publish(number)
    }

    /// Publishes a message, also one that was published before.
    fn publish(&mut self, number: u64) -> Request<u64> {
        let exchanges = self.exchanges();
        let later = exchanges.later;
        let told = exchanges.told.entry(number).or_insert(Told {
            state: Existence::Gone,
            open: 0,
            later,
            doubtful: BTreeSet::new(),
            ended: BTreeSet::new(),
        });
        if told.later != later {
            told.later = None;
        }
        told.open += 1;
        if told.state == Existence::Gone {
            told.state = Existence::Perhaps;
        }
        let mut message = Message::new(self.body(number));
        message.key = Some(key(number % 3));
        message.unique_id = UniqueId::new(&format!("p-{number}")).ok();
        let publish = Publish {
            subject: None,
            exchange: exchange(),
            routing_key: RoutingKey::default(),
            message,
        };
        self.ask_exchange(publish, AskedExchange::Publish(number))
    }

    pub(crate) fn receive_copies(&mut self, queue: &'static str, max: u16) -> Request<u64> {
        let receive = Receive {
            queue: name(queue),
            max,
            key_max: None,
            lease: None,
            holder: HolderName::new("copies").expect("a good name"),
        };
        let work = Work::Receive {
            receive,
            until: None,
        };
        self.request(work, vec![Asked::Exchange(AskedExchange::Receive(queue))])
    }

    pub(crate) fn acknowledge_copies(&mut self) -> Vec<Request<u64>> {
        let tokens = in_order(self.exchanges().leases.keys().copied().collect());
        let tokens = tokens.into_iter();
        tokens.map(|token| self.acknowledge_copy(token)).collect()
    }

    fn acknowledge_copy(&mut self, token: LeaseToken) -> Request<u64> {
        let exchanges = self.exchanges();
        if let Some((queue, number)) = exchanges.leases.remove(&token)
            && let Some(told) = exchanges.told.get_mut(&number)
        {
            told.doubtful.insert(queue);
            // What the answer is about.
            exchanges.leases.insert(token, (queue, number));
        }
        let action = SettleAction::Ack;
        self.ask_exchange(Settle { token, action }, AskedExchange::Ack(token))
    }

    pub(crate) fn exchange_answered(
        &mut self,
        asked: AskedExchange,
        result: Result<Reply, Rejection>,
    ) -> Result<(), Violation> {
        let is_damaged = self.damaged;
        let exchanges = self.exchanges();
        let is_ready = exchanges.bound.len() == 2;
        match (&asked, result) {
            (AskedExchange::Make, Ok(_)) => {}
            (AskedExchange::Bind(queue), Ok(Reply::Bound(_))) => {
                exchanges.bound.insert(queue);
            }
            (AskedExchange::Later(is_bound), Ok(Reply::Bound(_) | Reply::Unbound(_))) => {
                exchanges.later_open -= 1;
                exchanges.later = (exchanges.later_open == 0).then_some(*is_bound);
            }
            (AskedExchange::Publish(number), Ok(Reply::Published(done))) => {
                let told = exchanges.told.get_mut(number).expect("it was asked");
                told.open -= 1;
                told.state = Existence::There;
                let copies: BTreeSet<_> = done.copies.iter().map(|it| it.queue.as_str()).collect();
                let mut missing = exchanges.bound.iter().filter(|it| !copies.contains(**it));
                let is_wrong = match told.later {
                    Some(later) => copies.contains(LATER) != later,
                    None => false,
                };
                if missing.next().is_some() || is_wrong || done.dropped || done.skipped > 0 {
                    return Err(format!("publish {number} got {done:?}, {told:?}"));
                }
                self.tally.count("publishes", 1);
            }
            (AskedExchange::Ack(token), Ok(Reply::Settled(settled))) => {
                let lease = exchanges.leases.remove(token);
                if let (Some((queue, number)), Settled::Done) = (lease, settled)
                    && let Some(told) = exchanges.told.get_mut(&number)
                {
                    told.ended.insert(queue);
                    self.tally.count("copies acknowledged", 1);
                }
            }
            // Before all of it was made, which something kept from being done.
            (_, Err(Rejection::Exchange(_))) if !is_ready => self.not_asked(asked),
            (_, Err(_)) if is_damaged => {}
            (asked, result) => return Err(format!("{asked:?} was answered by {result:?}")),
        }
        Ok(())
    }

    /// It did not happen, for certain.
    pub(crate) fn not_asked(&mut self, asked: AskedExchange) {
        let exchanges = self.exchanges();
        match asked {
            AskedExchange::Later(_) => exchanges.later_open -= 1,
            AskedExchange::Publish(number) => {
                let told = exchanges.told.get_mut(&number).expect("it was asked");
                told.open -= 1;
                if told.open == 0 && told.state == Existence::Perhaps {
                    told.state = Existence::Gone;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn copies_delivered(
        &mut self,
        queue: &'static str,
        deliveries: &[Delivery],
    ) -> Result<(), Violation> {
        for delivery in deliveries {
            let Some(body) = self.payload(delivery)? else {
                continue;
            };
            let number = number(&body).ok_or("a copy that nobody published")?;
            let is_whole = self.body(number) == body;
            let is_damaged = self.damaged;
            let exchanges = self.exchanges();
            match exchanges.told.get(&number) {
                _ if is_damaged => {}
                Some(told) if is_whole => told.may_be_in(queue, number)?,
                _ => return Err(format!("the copy of {number} in {queue} is another")),
            }
            exchanges.leases.insert(delivery.token, (queue, number));
            self.tally.count("copies delivered", 1);
        }
        Ok(())
    }

    /// This life is over: what had no answer may have happened.
    pub(crate) fn exchanges_end(&mut self, is_power_cut: bool) {
        if let Some(exchanges) = &mut self.exchanges {
            if is_power_cut {
                // A copy there has the level of the publish, and its acknowledgement that of the queue.
                for told in exchanges.told.values_mut() {
                    told.ended.remove(LATER);
                }
            }
            exchanges.leases.clear();
            if exchanges.later_open > 0 {
                exchanges.later = None;
            }
            exchanges.later_open = 0;
        }
    }

    /// All copies of a message are there, or none is.
    pub(crate) fn check_copies(&mut self) -> Result<(), Violation> {
        if self.exchanges.is_none() || self.damaged {
            return Ok(());
        }
        let view = self.shard().driver.machine().state_view();
        let mut found: BTreeMap<u64, BTreeMap<&str, Sequence>> = BTreeMap::new();
        for queue in COPIED {
            let Some(messages) = view.queues.get(&name(queue)) else {
                continue;
            };
            for (sequence, message) in &messages.messages {
                let at = message.location;
                let reader = self.shard().reader.clone();
                let record = match self.during(Doing::Read, |_| reader.read(at.position)) {
                    Ok(record) => record,
                    // What cannot be read now says nothing.
                    Err(_) if self.disk_failed || self.misread => return Ok(()),
                    Err(error) => return Err(format!("{queue} {sequence}: {error:?}")),
                };
                let stored = read_message(&record, at.part).map_err(|error| error.to_string())?;
                let body = stored.message.body;
                let number = number(&body).ok_or("a copy that nobody published")?;
                if self.body(number) != body {
                    return Err(format!("the copy of {number} in {queue} is another"));
                }
                let copies = found.entry(number).or_default();
                if let Some(other) = copies.insert(queue, *sequence) {
                    return Err(format!("{queue} has {number} as {other} and as {sequence}"));
                }
            }
        }
        let (is_sure, nobody_waits) = (!self.misread, self.asked.is_empty());
        for (number, told) in &mut self.exchanges().told {
            let none = BTreeMap::new();
            let copies = found.get(number).unwrap_or(&none);
            for queue in copies.keys() {
                told.may_be_in(queue, *number)?;
            }
            let may_lack = |queue: &&str| told.doubtful.contains(queue);
            let must = COPIED.iter().take(match told.later {
                Some(true) => 3,
                _ => 2,
            });
            let lacks = must.filter(|queue| !copies.contains_key(**queue) && !may_lack(queue));
            let lacking: Vec<_> = lacks.collect();
            let happened = told.state == Existence::There || !copies.is_empty();
            if happened && !lacking.is_empty() {
                return Err(format!(
                    "{number} is in {copies:?}, and not in {lacking:?}: {told:?}"
                ));
            }
            if copies.is_empty() && told.doubtful.is_empty() && nobody_waits && is_sure {
                told.state = Existence::Gone;
                told.open = 0;
            }
        }
        let unknown = found
            .keys()
            .find(|number| !self.exchanges().told.contains_key(number));
        match unknown {
            Some(number) => Err(format!("nobody published {number}")),
            None => Ok(()),
        }
    }
}

impl Told {
    /// Whether a copy of it may be there.
    fn may_be_in(&self, queue: &str, number: u64) -> Result<(), Violation> {
        let wrong = |what: &str| Err(format!("{queue} has {number}, which {what}: {self:?}"));
        match () {
            () if self.state == Existence::Gone => wrong("was not published"),
            () if self.ended.contains(queue) => wrong("was acknowledged"),
            () if queue == LATER && self.later == Some(false) => wrong("was not for it"),
            () => Ok(()),
        }
    }
}

fn bind(queue: &str) -> Bind {
    Bind {
        keep: false,
        exchange: exchange(),
        to: BindTo::Queue(name(queue)),
        pattern: Pattern::Everything,
        options: BindingOptions::default(),
    }
}

//! Histories of a machine with a sink, a log and time that a seed decides.

mod linger;
mod mixed;
mod returns;

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    time::Duration,
};

use lockgate_core::{Backoff, Fate, Level, ProducerRefused, pack};
use lockgate_sim::SeededRandom;

use super::*;
use crate::{
    Breaker, Persist, Quota, RetryBudget, SpoolOptions, options::WhenSpoolFull, spool::done::Done,
    testing::Known,
};

type Machine = Buffer<u64, u64>;

fn marked() -> SinkCapabilities {
    let mut can = SinkCapabilities::bodies_only(Level::Memory);
    can.batch_max = 6;
    can.keys = true;
    can.priority = true;
    can.producers = true;
    can
}

fn unmarked() -> SinkCapabilities {
    let mut can = marked();
    can.producers = false;
    can.unique_ids = true;
    can
}

fn options() -> ProducerOptions {
    ProducerOptions {
        buffer_count: 8,
        buffer_bytes: 8 * 300,
        when_full: WhenFull::Reject,
        batch_count: 4,
        batch_bytes: 64,
        linger: Linger::Adaptive(Duration::from_millis(3)),
        batches_in_flight: 2,
        backoff: Backoff { first: 10, max: 40 },
        breaker: Breaker {
            failures: 2,
            open: Backoff { first: 50, max: 90 },
        },
        retry_budget: RetryBudget {
            percent: 20,
            per_second: 50,
        },
        ..ProducerOptions::default()
    }
}

fn spooled(persist: Persist) -> ProducerOptions {
    ProducerOptions {
        when_full: WhenFull::Spool,
        spool: Some(SpoolOptions {
            persist,
            ..SpoolOptions::new("unused")
        }),
        ..options()
    }
}

/// A sink that takes records in any order in which they come, and knows what it has.
#[derive(Default)]
struct Queue {
    known: Known,
    /// The records of what it has.
    taken: Vec<Message>,
    numbers: HashSet<u64>,
    /// What was dropped may come again, when its lane has gone on.
    may_come_back: bool,
}

impl Queue {
    fn open(&mut self) -> ProducerIncarnation {
        self.known.open(name())
    }

    fn take(&mut self, message: &Message) -> Result<Accepted<u64>, TransportError> {
        let records = match pack::is_pack(message) {
            true => pack::unpack(message).unwrap(),
            false => vec![message.clone()],
        };
        if records.iter().any(|record| is_refused(number(record))) {
            return Err(TransportError::new(Fate::Refused, "no"));
        }
        let accepted = self.known.accept(message.clone())?;
        for record in records {
            match accepted.duplicate {
                // Else a lane has gone back, and a record is lost that seems to be there.
                true => assert!(
                    self.may_come_back || self.numbers.contains(&number(&record)),
                    "{} is no duplicate: {message:?}",
                    number(&record)
                ),
                false => {
                    self.numbers.insert(number(&record));
                    self.taken.push(record);
                }
            }
        }
        Ok(accepted)
    }
}

/// Records of a file.
const FILE: u64 = 8;

/// What a message is: who sent it first, second, ...
fn number(message: &Message) -> u64 {
    u64::from_be_bytes(message.body[..8].try_into().unwrap())
}

struct World {
    random: SeededRandom,
    options: ProducerOptions,
    can: SinkCapabilities,
    machine: Machine,
    opening: u64,
    now: Millis,
    queue: Queue,
    /// Batches on their way, and those whose process has died since.
    away: Vec<(usize, Vec<Message>)>,
    late: Vec<(usize, Vec<Message>)>,
    /// The log, and how many of its records are durable.
    log: Vec<Staged>,
    durable: usize,
    next: u64,
    /// What each send was told, and whether it was accepted.
    told: HashMap<u64, Vec<Told<u64>>>,
    accepted: HashSet<u64>,
    /// The key and priority of each message.
    parts: HashMap<u64, (Option<Key>, u8)>,
    expire: HashSet<u64>,
    crashes: u32,
    calm: bool,
}

impl World {
    fn new(seed: u64, options: ProducerOptions, can: SinkCapabilities) -> Self {
        let mut random = SeededRandom::new(seed);
        let opening = random.next_u64();
        let dropping = |it: &SpoolOptions| it.when_full == WhenSpoolFull::DropOldest;
        let queue = Queue {
            may_come_back: options.spool.as_ref().is_some_and(dropping),
            ..Queue::default()
        };
        let machine = machine(&options, &can, opening, &[], 0);
        Self {
            random,
            options,
            can,
            machine,
            opening,
            now: 0,
            queue,
            away: Vec::new(),
            late: Vec::new(),
            log: Vec::new(),
            durable: 0,
            next: 0,
            told: HashMap::new(),
            accepted: HashSet::new(),
            parts: HashMap::new(),
            expire: HashSet::new(),
            crashes: 0,
            calm: false,
        }
    }

    fn one_of(&mut self, many: u64) -> u64 {
        self.random.next_u64() % many
    }

    fn step(&mut self) {
        match self.one_of(10) {
            0..=2 => self.offer(),
            3..=4 => self.send(),
            5..=6 => self.answer(),
            7 => self.spool(),
            8 => self.now += self.one_of(20),
            _ => self.arrive_late(),
        }
        self.machine.expire(self.now);
        self.machine.catch_up(self.now, wall(self.now));
        self.hear();
        self.check();
    }

    fn offer(&mut self) {
        let number = self.next;
        self.next += 1;
        let mut message = Message::new(number.to_be_bytes().to_vec());
        if self.one_of(3) > 0 {
            let key = key(self.one_of(5));
            message = message.with_key(key);
        }
        message.priority = u8::try_from(self.one_of(3)).unwrap();
        let parts = (message.key.clone(), message.priority);
        self.parts.insert(number, parts);
        let levels = [
            AnswerLevel::Accepted,
            AnswerLevel::Durable,
            AnswerLevel::Delivered,
        ];
        let has_spool = self.options.spool.is_some();
        let level = levels[usize::try_from(self.one_of(3)).unwrap()];
        let level = match level {
            AnswerLevel::Durable if !has_spool => AnswerLevel::Delivered,
            level => level,
        };
        let expires = (self.one_of(8) == 0).then(|| {
            let at = self.now + 30;
            self.expire.insert(number);
            (at, wall(at))
        });
        let offered = Offered {
            message,
            within: None,
            expires,
            level,
            tell: (level != AnswerLevel::Accepted).then_some(number),
        };
        let tenant = self
            .options
            .quota
            .as_ref()
            .and_then(|it| (it.tenant)(&offered.message));
        if self
            .machine
            .offer(&mut Some(offered), tenant, self.now)
            .is_ok()
        {
            self.accepted.insert(number);
        }
    }

    fn send(&mut self) {
        if self.machine.take_open(self.now) {
            let opened = match self.calm || self.one_of(4) > 0 {
                true => Ok(self.queue.open()),
                false => Err(TransportError::new(Fate::Retry, "away")),
            };
            let random = self.random.next_u64();
            self.machine.opened(opened, self.now, random);
        }
        while let Some(batch) = self.machine.next_batch(self.now) {
            let (id, messages) = (batch.id, batch.messages(true));
            assert!(messages.len() <= self.options.batch_count);
            self.away.push((id, messages));
        }
    }

    /// The sink answers a batch, or some of it, or not at all.
    fn answer(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let at = self.one_of(self.away.len() as u64);
        let (id, messages) = self.away.remove(usize::try_from(at).unwrap());
        let away = !self.calm && self.one_of(6) == 0;
        let mut results = Vec::new();
        for message in &messages {
            let fault = if self.calm { 9 } else { self.one_of(10) };
            results.push(match fault {
                _ if away => Err(TransportError::new(Fate::Retry, "away")),
                0 => Err(TransportError::new(Fate::Retry, "busy")),
                1 => {
                    // It may be there, or not.
                    if self.one_of(2) == 0 {
                        let _ = self.queue.take(message);
                    }
                    Err(TransportError::new(Fate::Unknown, "lost"))
                }
                _ => self.queue.take(message),
            });
        }
        if !self.calm && self.one_of(12) == 0 {
            // All answers are lost.
            results.clear();
        }
        let random = self.random.next_u64();
        self.machine.answered(id, results, self.now, random);
    }

    /// What a process had sent when it died reaches the sink.
    fn arrive_late(&mut self) {
        if let Some((_, messages)) = self.late.pop() {
            for message in &messages {
                let _ = self.queue.take(message);
            }
        }
    }

    /// The thread of the spool works once, and the process may die at any point of it.
    fn spool(&mut self) {
        let Some(work) = self.machine.spool_work(self.now) else {
            return;
        };
        let count = work.write.len();
        if !self.calm && count > 0 && self.one_of(8) == 0 {
            let used = self.used();
            self.machine.spool_full(used, Lack::Bytes, self.now);
        } else {
            self.log.extend(work.write);
            let used = self.used();
            self.machine.spool_wrote(count, used);
        }
        if self.crashes_now() {
            return;
        }
        let used = self.used();
        self.machine.spool_used(used);
        if work.sync {
            self.durable = self.log.len();
            self.machine.spool_synced(self.durable as u64, self.now);
        }
        if let Some(load) = work.load {
            let from = usize::try_from(load.from).unwrap();
            let until = self.log.len().min(usize::try_from(load.until).unwrap());
            let (mut read, mut bytes, mut next) = (Vec::new(), 0, load.from);
            for staged in &self.log[from..until] {
                if read.len() >= load.count.min(3) || bytes >= load.bytes {
                    break;
                }
                next += 1;
                if let Some(it) = loaded(staged).filter(|it| load.takes(it.label)) {
                    bytes += record_size(&it.message);
                    read.push(it);
                }
            }
            let (now, wall) = (self.now, wall(self.now));
            (self.machine).spool_loaded(read, next, Vec::new(), now, wall);
        }
        self.crashes_now();
    }

    /// What the files take that are not over: each has eight records of 300 bytes.
    fn used(&self) -> Used {
        let spots = self.log.len() as u64;
        let last = spots.saturating_sub(1) / FILE;
        let first = (self.machine.spool_floor() / FILE).min(last);
        Used {
            bytes: (spots - first * FILE) * 300,
            oldest: (first < last).then_some(((first + 1) * FILE, FILE * 300)),
        }
    }

    fn crashes_now(&mut self) -> bool {
        if self.calm || self.crashes == 3 || self.one_of(12) > 0 {
            return false;
        }
        self.crash();
        true
    }

    /// The process dies, perhaps with the log's end that is not durable, and another one starts.
    fn crash(&mut self) {
        self.crashes += 1;
        self.hear();
        let lost = self.one_of((self.log.len() - self.durable) as u64 + 1);
        let kept = self.log.len() - usize::try_from(lost).unwrap();
        self.log.truncate(kept);
        self.durable = kept;
        self.late.append(&mut self.away);
        if !self.can.producers {
            // Nothing fences what comes late there.
            while !self.late.is_empty() {
                self.arrive_late();
            }
        }
        self.opening = self.random.next_u64();
        self.machine = machine(&self.options, &self.can, self.opening, &self.log, self.now);
    }

    fn hear(&mut self) {
        for (number, told) in self.machine.take_told() {
            self.told.entry(number).or_default().push(told);
        }
    }

    fn check(&self) {
        let figures = self.machine.figures();
        assert_eq!(
            figures.accepted + figures.recovered,
            figures.delivered + figures.dropped_all() + figures.pending,
            "{figures:?}"
        );
        assert!(figures.memory_count <= self.options.buffer_count as u64);
        assert!(figures.memory_bytes <= self.options.buffer_bytes + 300);
    }

    /// All goes well from now on: everything ends.
    fn calm_down(&mut self) {
        self.calm = true;
        for _ in 0..20_000 {
            if self.machine.pending() == 0 {
                self.machine.abandon(self.now);
                if self.machine.is_settled() {
                    return;
                }
            }
            self.machine.expire(self.now);
            self.machine.catch_up(self.now, wall(self.now));
            self.send();
            self.answer();
            self.spool();
            self.hear();
            self.check();
            self.now += 1;
        }
        panic!("not all ends: {:?}", self.machine.figures());
    }

    /// What must hold of all that happened.
    fn judge(&self) {
        let mut times: HashMap<u64, usize> = HashMap::new();
        let mut last: HashMap<Key, u64> = HashMap::new();
        for message in &self.queue.taken {
            let number = number(message);
            let parts = (message.key.clone(), message.priority);
            assert_eq!(parts, self.parts[&number], "{number} has another's");
            *times.entry(number).or_default() += 1;
            if let Some(key) = &message.key
                && times[&number] == 1
            {
                let before = last.insert(key.clone(), number);
                assert!(
                    before.is_none_or(|before| before < number) || self.queue.may_come_back,
                    "order of {key}"
                );
            }
        }
        for (number, times) in &times {
            assert_eq!(*times, 1, "{number} came {times} times");
            assert!(self.accepted.contains(number));
        }
        for (number, told) in &self.told {
            let there = times.contains_key(number);
            assert!(told.len() == 1, "{number} is told {told:?}");
            match &told[0] {
                Told::Delivered(_) => assert!(there, "{number} is delivered, and not there"),
                Told::Dropped(it) => {
                    assert!(!there || it.may_be_there, "{number} is dropped: {it:?}");
                }
                Told::Durable => {}
            }
        }
    }

    /// What is durable is there, unless its time was over or the sink refuses it.
    fn judge_durable(&self) {
        let there: HashSet<u64> = self.queue.taken.iter().map(number).collect();
        let durable = self.told.iter();
        let durable = durable.filter(|(_, told)| matches!(told[..], [Told::Durable]));
        for (number, _) in durable {
            let may_be_gone = is_refused(*number) || self.expire.contains(number);
            assert!(may_be_gone || there.contains(number), "{number} is lost");
        }
    }
}

/// What the sink never takes.
fn is_refused(number: u64) -> bool {
    number % 7 == 3
}

fn name() -> ProducerName {
    ProducerName::new("p").unwrap()
}

fn key(number: u64) -> Key {
    Key::new(&format!("k{number}")).unwrap()
}

fn wall(now: Millis) -> WallTime {
    WallTime(1_000_000 + now)
}

fn loaded(staged: &Staged) -> Option<Loaded> {
    match staged {
        Staged::Message {
            spot,
            label,
            expires,
            message,
            ..
        } => Some(Loaded {
            spot: *spot,
            label: *label,
            expires: *expires,
            message: message.clone(),
        }),
        _ => None,
    }
}

/// A machine over what a log has.
fn machine(
    options: &ProducerOptions,
    can: &SinkCapabilities,
    opening: u64,
    log: &[Staged],
    now: Millis,
) -> Machine {
    let mut last = Done::default();
    for staged in log {
        if let Staged::Checkpoint(it) = staged {
            last = it.done.clone();
        }
    }
    let mut done = Done::below(0);
    let (mut count, mut keys) = (0, Vec::new());
    for (spot, staged) in (0..).zip(log) {
        match staged {
            Staged::Message { message, .. } if !last.contains(spot) => {
                count += 1;
                keys.extend(message.key.as_ref().map(key_hash));
            }
            Staged::Message { .. } => done.insert(spot),
            _ => done.insert_blank(spot),
        }
    }
    let recovered = options.spool.is_some().then(|| Recovered {
        name: name(),
        done,
        next: log.len() as u64,
        count,
        keys: Some(KeyCounts::of(&keys)),
        used: Used::default(),
    });
    Buffer::new(options, can, name(), opening, recovered, now)
}

/// Returns how many packs were sent.
fn run(options: &ProducerOptions, can: &SinkCapabilities, crashes: bool) -> u64 {
    let mut packs = 0;
    for seed in 0..300 {
        let mut world = World::new(seed, options.clone(), can.clone());
        if !crashes {
            world.crashes = 3;
        }
        for _ in 0..400 {
            world.step();
        }
        world.calm_down();
        world.judge();
        let keeps_all = matches!(options.when_full, WhenFull::Reject | WhenFull::Spool)
            && !world.queue.may_come_back;
        if keeps_all {
            world.judge_durable();
        }
        packs += world.machine.figures().packs;
    }
    packs
}

#[test]
fn records_are_delivered_once_and_in_order_whatever_the_sink_does() {
    for can in [marked(), unmarked()] {
        run(&options(), &can, false);
    }
}

#[test]
fn a_spool_keeps_what_it_promised_over_crashes() {
    let policies = [
        Persist::Each,
        Persist::Every(Duration::from_millis(30)),
        Persist::Count(NonZeroU32::new(3).unwrap()),
        Persist::Overflow,
    ];
    for persist in policies {
        for can in [marked(), unmarked()] {
            run(&spooled(persist), &can, true);
        }
    }
}

fn packing(options: ProducerOptions) -> ProducerOptions {
    ProducerOptions {
        buffer_count: 20,
        buffer_bytes: 20 * 300,
        batch_count: 3,
        batch_bytes: 60,
        pack: Some(PackOptions {
            count_max: 4,
            ..PackOptions::default()
        }),
        ..options
    }
}

/// Also where the sink knows unique ids only, as long as the process lives.
#[test]
fn packed_records_are_delivered_once_and_in_order_whatever_the_sink_does() {
    for can in [marked(), unmarked()] {
        let packs = run(&packing(options()), &can, false);
        assert!(packs > 300, "{packs} packs");
    }
    for persist in [Persist::Each, Persist::Overflow] {
        run(&packing(spooled(persist)), &marked(), true);
    }
    let dropping = ProducerOptions {
        when_full: WhenFull::DropOldest,
        ..packing(options())
    };
    run(&dropping, &unmarked(), false);
}

/// Perhaps the sink refuses the pack for one of its records.
#[test]
fn records_of_a_refused_pack_are_sent_again_and_not_dropped() {
    let options = ProducerOptions {
        batch_bytes: 1_000,
        ..packing(options())
    };
    let mut world = World::new(1, options, marked());
    world.calm = true;
    assert!(is_refused(3));
    for number in 0..4 {
        let mut offered = offered(number, AnswerLevel::Delivered);
        offered.message.key = Some(key(0));
        (world.machine.offer(&mut Some(offered), None, world.now)).unwrap();
    }
    let mut refused = Vec::new();
    while world.machine.pending() > 0 {
        world.send();
        for (id, messages) in std::mem::take(&mut world.away) {
            let results = messages.iter().map(|it| world.queue.take(it)).collect();
            let RefusedOf { dropped, split } = world.machine.answered(id, results, world.now, 0);
            refused.push((dropped, split));
        }
        world.now += 10;
    }
    assert!(
        refused.iter().any(|it| it.0 == 0 && it.1 > 1),
        "{refused:?}"
    );
    assert_eq!(refused.iter().map(|it| it.0).sum::<u64>(), 1);
    assert_eq!(world.queue.taken.len(), 3);
}

#[test]
fn policies_drop_what_they_say_and_count_it() {
    let full = |when_full| ProducerOptions {
        when_full,
        quota: Some(Quota::per_key(3, 3 * 300)),
        ..options()
    };
    for when_full in [
        WhenFull::DropNewest,
        WhenFull::DropOldest,
        WhenFull::DropLowestPriority,
        WhenFull::Sample(NonZeroU32::new(3).unwrap()),
        WhenFull::Block,
    ] {
        for can in [marked(), unmarked()] {
            run(&full(when_full), &can, false);
        }
    }
}

#[test]
fn a_full_spool_does_what_it_is_told() {
    for when_full in [
        WhenSpoolFull::Block,
        WhenSpoolFull::Reject,
        WhenSpoolFull::DropNewest,
        WhenSpoolFull::DropOldest,
        WhenSpoolFull::MemoryOnly,
    ] {
        let mut options = spooled(Persist::Each);
        if let Some(spool) = &mut options.spool {
            spool.bytes_max = 3 * FILE * 300;
            spool.when_full = when_full;
        }
        run(&options, &marked(), true);
    }
}

/// Otherwise each try of the disk would take in records that it has no room for.
#[test]
fn a_full_disk_takes_nothing_new_before_it_took_what_waits() {
    let mut options = spooled(Persist::Each);
    if let Some(spool) = &mut options.spool {
        spool.when_full = WhenSpoolFull::Reject;
    }
    let mut world = World::new(1, options, marked());
    offer(&mut world, 0, AnswerLevel::Durable);
    let mut try_disk = |has_room: bool| {
        let work = world.machine.spool_work(world.now).unwrap();
        assert!(matches!(work.write.last(), Some(Staged::Message { .. })));
        let is_taken = |world: &mut World| {
            let mut offered = Some(offered(1, AnswerLevel::Durable));
            (world.machine).offer(&mut offered, None, world.now).is_ok()
        };
        let before = is_taken(&mut world);
        match has_room {
            true => world.machine.spool_wrote(work.write.len(), Used::default()),
            false => drop(
                world
                    .machine
                    .spool_full(Used::default(), Lack::Bytes, world.now),
            ),
        }
        world.hear();
        if !has_room {
            assert!(
                matches!(&world.told[&0][..], [Told::Dropped(it)] if it.reason == DropReason::SpoolFull)
            );
            world.now = world.machine.spool_wake(world.now).unwrap();
        }
        (before, is_taken(&mut world))
    };
    // Nobody knew yet.
    assert_eq!(try_disk(false), (true, false));
    assert_eq!(try_disk(false), (false, false));
    assert_eq!(try_disk(true), (false, true));
}

/// Records end while one that comes later finds no room.
#[test]
fn a_full_disk_lets_no_checkpoints_pile_up() {
    let mut world = World::new(1, spooled(Persist::Each), marked());
    world.calm = true;
    for number in 0..6 {
        let mut it = offered(number, AnswerLevel::Accepted);
        let at = (number + 1) * 2_000;
        it.expires = Some((at, wall(at)));
        (world.machine.offer(&mut Some(it), None, world.now)).unwrap();
    }
    world.spool();
    offer(&mut world, 6, AnswerLevel::Accepted);
    let mut checkpoints = Vec::new();
    for _ in 0..8 {
        while let Some(work) = world.machine.spool_work(world.now) {
            let of = work.write.iter();
            checkpoints.push(of.filter(|it| matches!(it, Staged::Checkpoint(_))).count());
            (world.machine).spool_full(Used::default(), Lack::Bytes, world.now);
        }
        world.now += 2_000;
        world.machine.expire(world.now);
    }
    assert_eq!(checkpoints.iter().max(), Some(&1), "{checkpoints:?}");
    world.calm_down();
    assert!(world.queue.numbers.contains(&6));
}

/// Otherwise the thread would try it without a pause.
#[test]
fn a_disk_that_has_no_room_for_a_checkpoint_is_left_alone_for_a_while() {
    let mut world = World::new(1, spooled(Persist::Each), marked());
    offer(&mut world, 0, AnswerLevel::Accepted);
    for _ in 0..3 {
        let mut tried = Vec::new();
        while let Some(work) = world.machine.spool_work(world.now) {
            assert!(tried.len() < 3, "{tried:?}");
            tried.push(work.write.len());
            (world.machine).spool_full(Used::default(), Lack::Bytes, world.now);
        }
        // All of it, and what is no message.
        assert_eq!(tried, [2, 1]);
        world.now = world.machine.spool_wake(world.now).unwrap();
    }
    let count = world.machine.spool_work(world.now).unwrap().write.len();
    world.machine.spool_wrote(count, Used::default());
    offer(&mut world, 1, AnswerLevel::Accepted);
}

fn offered(number: u64, level: AnswerLevel) -> Offered<u64> {
    Offered {
        message: Message::new(number.to_be_bytes().to_vec()),
        within: None,
        expires: None,
        level,
        tell: Some(number),
    }
}

fn offer(world: &mut World, number: u64, level: AnswerLevel) {
    let mut offered = Some(offered(number, level));
    world.machine.offer(&mut offered, None, world.now).unwrap();
}

#[test]
fn a_queue_that_forgot_the_producer_is_opened_once_nothing_is_on_its_way() {
    let mut world = World::new(1, options(), marked());
    world.calm = true;
    for number in 0..6 {
        offer(&mut world, number, AnswerLevel::Delivered);
    }
    world.send();
    assert_eq!(world.away.len(), 2);
    world.queue.known.forget_producers();
    for left in [1, 0] {
        let batch = world.away.remove(0);
        let (id, messages) = batch;
        let unknown = messages.iter();
        let unknown = unknown.map(|_| Err(ProducerRefused::Unknown.into()));
        (world.machine).answered(id, unknown.collect(), world.now, 0);
        world.now += 1_000;
        assert_eq!(world.machine.take_open(world.now), left == 0);
    }
    let incarnation = world.queue.open();
    world.machine.opened(Ok(incarnation), world.now, 0);
    world.calm_down();
    // One of them is refused.
    assert_eq!(world.queue.taken.len(), 5);
}

#[test]
fn answers_that_come_after_the_end_change_nothing() {
    let mut world = World::new(1, options(), marked());
    world.calm = true;
    offer(&mut world, 0, AnswerLevel::Delivered);
    world.send();
    let batch = world.away.remove(0);
    world.machine.abandon(world.now);
    let taken = world.queue.take(&batch.1[0]);
    world.machine.answered(batch.0, vec![taken], world.now, 0);
    world.hear();
    world.check();
    assert!(matches!(&world.told[&0][..], [Told::Dropped(it)] if it.may_be_there));
}

#[test]
fn a_record_that_is_dropped_before_it_was_written_is_not_durable() {
    let mut world = World::new(1, spooled(Persist::Each), marked());
    world.calm = true;
    for number in 0..7 {
        offer(&mut world, number, AnswerLevel::Accepted);
    }
    let written = world.machine.spool_work(world.now).unwrap().write;
    world.machine.spool_wrote(written.len(), Used::default());
    world.log.extend(written);
    // On disk only, and the disk has no room.
    offer(&mut world, 10, AnswerLevel::Durable);
    assert!(is_refused(10));
    world.machine.spool_work(world.now);
    world
        .machine
        .spool_full(Used::default(), Lack::Bytes, world.now);
    for _ in 0..20 {
        world.send();
        world.answer();
        world.machine.catch_up(world.now, wall(world.now));
        world.now += 10;
    }
    world.calm_down();
    assert!(
        matches!(&world.told[&10][..], [Told::Dropped(it)] if it.reason == DropReason::Refused)
    );
}

/// And not one for each send that comes before the disk is tried again.
#[test]
fn one_file_is_given_up_for_a_full_disk() {
    let mut options = spooled(Persist::Each);
    if let Some(spool) = &mut options.spool {
        spool.when_full = WhenSpoolFull::DropOldest;
    }
    let mut world = World::new(1, options, marked());
    for number in 0..4 {
        offer(&mut world, number, AnswerLevel::Durable);
    }
    let used = |oldest| Used {
        bytes: 0,
        oldest: Some((oldest, 0)),
    };
    // Behind a checkpoint.
    let written = world.machine.spool_work(world.now).unwrap().write;
    world.machine.spool_wrote(written.len(), used(3));
    offer(&mut world, 4, AnswerLevel::Durable);
    world.machine.spool_work(world.now);
    world.machine.spool_full(used(3), Lack::Bytes, world.now);
    let mut last = Some(offered(5, AnswerLevel::Durable));
    (world.machine.offer(&mut last, None, world.now)).unwrap_err();
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 2);
    world.machine.spool_used(used(5));
    world.machine.offer(&mut last, None, world.now).unwrap();
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 2);
}

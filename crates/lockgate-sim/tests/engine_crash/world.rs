//! A shard, the time it lives in, and its crashes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockgate_core::{
    Clock, DiskOperation, Key, LeaseToken, LogSource, Now, Position, QueueName, StepOutcome,
    WallTime,
};
use lockgate_engine::{Output, Request, StopReason, Work};
use lockgate_machine::{
    ChangeKey, Command, EngineCommand, KeyAction, Pause, SettleAction, StateView, read_message,
};
use lockgate_sim::{Fault, FaultyDisk, ManualClock, Operations, PowerCut, SeededRandom};

use crate::{
    Violation,
    answers::Asked,
    exchanges::Exchanges,
    index::Index,
    maintenance::Maintenance,
    model::{Existence, Known, Model},
    planted::Bug,
    shard::Shard,
    tally::{Doing, Kind, Tally},
    witness::Witness,
};

pub(crate) const KEYED: &str = "keyed";
pub(crate) const SKIPPING: &str = "skipping";
pub(crate) const SKIPPED: &str = "skipped";
pub(crate) const PLAIN: &str = "plain";
pub(crate) const DEAD: &str = "dead";
pub(crate) const WRITTEN: &str = "written";
pub(crate) const PASSING: &str = "passing";

/// All queues; the last one is deleted and made again.
pub(crate) const QUEUES: [&str; 7] = [KEYED, SKIPPING, SKIPPED, PLAIN, DEAD, WRITTEN, PASSING];

pub(crate) const LEASE_MS: u64 = 5_000;

pub(crate) struct World {
    pub(crate) random: SeededRandom,
    pub(crate) bug: Option<Bug>,
    pub(crate) disk: FaultyDisk,
    pub(crate) clock: ManualClock,
    /// Time as it really passes, over reboots too.
    pub(crate) real_ms: u64,
    /// The latest wall time that was ever shown.
    pub(crate) wall_max: WallTime,
    starts: u64,
    shard: Option<Shard>,
    next_ticket: u64,
    pub(crate) asked: HashMap<u64, Vec<Asked>>,
    pub(crate) model: Model,
    pub(crate) witness: Witness,
    pub(crate) tally: Tally,
    pub(crate) history: Vec<String>,
    doing: Doing,
    /// Faults of the disk that were counted.
    struck: usize,
    /// What was going on when the power went off.
    power_off_at: Option<Doing>,
    /// A fault at the operation of this kind (`None`: at the change) after so many, counted over all
    /// lives.
    pub(crate) armed: Option<(Option<DiskOperation>, u64, Fault)>,
    /// What the disk did in earlier lives.
    operations: Operations,
    /// An operation of the disk failed, so that the shard may stop.
    pub(crate) disk_failed: bool,
    /// Space has an end.
    pub(crate) is_limited: bool,
    /// Somebody does the log's work that nobody waits for.
    pub(crate) with_maintenance: bool,
    /// All of it was done while there was space: what the log keeps for a full disk is there.
    has_reserve: bool,
    /// Something was refused because of that.
    pub(crate) refused_for_space: bool,
    /// Bytes are not what was written, for good.
    pub(crate) damaged: bool,
    /// A read gave wrong bytes.
    pub(crate) misread: bool,
    /// The wall clock steps back, and the order of a key is what the shard's clock says it is.
    pub(crate) wall_goes_back: bool,
    pub(crate) maintenance: Maintenance,
    /// The disk may fail while the shard lives.
    pub(crate) has_faults: bool,
    /// Somebody has taken a file away.
    pub(crate) file_removed: bool,
    /// Snapshots are taken and space given back by maintenance of these tests, not by the driver.
    pub(crate) has_own_maintenance: bool,
    /// A complete snapshot was made unreadable.
    pub(crate) snapshot_spoiled: bool,
    /// To be told to the shard with the next group.
    pub(crate) unreadable: Vec<EngineCommand>,
    /// Set: all bodies have this length, in parts of 90 bytes.
    pub(crate) body_parts: Option<u64>,
    /// Set: there is an index of unique ids beside the log.
    pub(crate) index: Option<Index>,
    /// Set: there is an exchange, with queues of its own.
    pub(crate) exchanges: Option<Exchanges>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The process dies, the system lives on.
    Kill,
    /// The power goes.
    Power(PowerCut),
}

impl World {
    /// A shard on an empty disk, not yet started.
    pub(crate) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let clock = ManualClock::default();
        Self {
            random: SeededRandom::new(seed),
            bug,
            disk: FaultyDisk::new(),
            real_ms: 0,
            wall_max: clock.wall(),
            clock,
            starts: 0,
            shard: None,
            next_ticket: 0,
            asked: HashMap::new(),
            model: Model::default(),
            witness: Witness::default(),
            tally: Tally::default(),
            history: Vec::new(),
            doing: Doing::default(),
            struck: 0,
            power_off_at: None,
            armed: None,
            operations: Operations::default(),
            disk_failed: false,
            is_limited: false,
            with_maintenance: true,
            has_reserve: false,
            refused_for_space: false,
            damaged: false,
            misread: false,
            wall_goes_back: false,
            maintenance: Maintenance::default(),
            has_faults: true,
            file_removed: false,
            has_own_maintenance: false,
            snapshot_spoiled: false,
            unreadable: Vec::new(),
            body_parts: None,
            index: Index::of(seed),
            exchanges: Exchanges::of(seed),
        }
    }

    /// Another future of the same past, in which the shard is not running. Its disk is still the
    /// same one.
    pub(crate) fn fork(&self) -> Self {
        Self {
            random: self.random.clone(),
            bug: self.bug,
            disk: self.disk.clone(),
            clock: self.clock.fork(),
            shard: None,
            asked: self.asked.clone(),
            model: self.model.clone(),
            witness: self.witness.fork(),
            tally: Tally::default(),
            history: self.history.clone(),
            maintenance: Maintenance::default(),
            unreadable: self.unreadable.clone(),
            index: self.index.as_ref().map(Index::fork),
            exchanges: self.exchanges.clone(),
            ..*self
        }
    }

    pub(crate) fn shard(&self) -> &Shard {
        self.shard.as_ref().expect("it was started")
    }

    pub(crate) fn shard_mut(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("it was started")
    }

    /// Whether the shard takes requests.
    pub(crate) fn is_serving(&self) -> bool {
        self.shard
            .as_ref()
            .is_some_and(|shard| shard.driver.stopped().is_none())
    }

    /// Runs a step of the shard, and counts the faults it meets.
    pub(crate) fn during<T>(&mut self, doing: Doing, step: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.doing, doing);
        let outcome = step(self);
        self.count_faults();
        self.doing = before;
        outcome
    }

    fn count_faults(&mut self) {
        let struck = self.disk.struck();
        for fault in struck.iter().skip(self.struck) {
            self.note(format!("fault at {:?}: {fault:?}", self.doing));
            let Some(kind) = Kind::of(fault) else {
                // The power went off; what that was, its aftermath tells.
                self.disk_failed = true;
                self.power_off_at = Some(self.doing);
                continue;
            };
            self.tally.struck(kind, self.doing, true);
            if self.refused_for_space {
                self.tally.struck(kind, Doing::Full, true);
            }
            match kind {
                // Recovery acts on what it reads: it sets aside what it takes for damaged.
                Kind::Misread if self.doing == Doing::Start => self.damage(),
                Kind::Misread => self.misread = true,
                Kind::Decay | Kind::Misdirected => self.damage(),
                // A full disk is no failure.
                Kind::NoSpace => {}
                _ => self.disk_failed = true,
            }
        }
        self.struck = struck.len();
    }

    /// From now on bytes are not what was written.
    pub(crate) fn damage(&mut self) {
        self.damaged = true;
        self.witness.lock().damaged = true;
        self.model.forgive();
    }

    // Asking.

    /// One that nobody has been yet.
    pub(crate) fn next_holder(&self) -> u64 {
        1_000_000 + self.next_ticket
    }

    pub(crate) fn request(&mut self, work: Work, asked: Vec<Asked>) -> Request<u64> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.asked.insert(ticket, asked);
        Request { work, ticket }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: self.shard().driver.machine_time(self.clock.since_boot()),
        }
    }

    pub(crate) fn pass(&mut self, span: u64) {
        self.clock.advance(span);
        self.real_ms += span;
        self.wall_max = self.wall_max.max(self.clock.wall());
    }

    pub(crate) fn group(&mut self, asked: Vec<Request<u64>>) -> Result<(), Violation> {
        let mut requests = self.index_requests();
        requests.extend(asked);
        for command in std::mem::take(&mut self.unreadable) {
            requests.push(self.request(Work::from(command), vec![Asked::Nothing]));
        }
        let now = self.now();
        let outputs = self.during(Doing::Append, |world| {
            let mut outputs = Vec::new();
            let driver = &mut world.shard_mut().driver;
            driver.run_group(requests, now, &mut |output| outputs.push(output));
            outputs
        });
        self.take(outputs)?;
        self.check_running()
    }

    /// Lets out what may be let out, and keeps the rest until it may.
    pub(crate) fn take(&mut self, outputs: Vec<Output<u64>>) -> Result<(), Violation> {
        for output in outputs {
            if output.durable <= self.shard().durable || self.bug == Some(Bug::AnswerBeforeSync) {
                self.answered(output)?;
            } else {
                self.shard_mut().held.push_back(output);
            }
        }
        Ok(())
    }

    /// The shard stops only if the disk fails.
    pub(crate) fn check_running(&mut self) -> Result<(), Violation> {
        let Some(reason) = self.shard().driver.stopped().cloned() else {
            return Ok(());
        };
        self.note(format!("stopped: {reason}"));
        // Whoever waits learns that nobody knows.
        self.shard_mut().held.clear();
        let has_no_reserve = self.is_limited && !self.has_reserve;
        if self.disk_failed || self.damaged || self.misread || has_no_reserve {
            Ok(())
        } else {
            Err(format!("stopped although nothing had failed: {reason}"))
        }
    }

    pub(crate) fn sync(&mut self) -> Result<(), Violation> {
        let progress = self.shard().progress.clone();
        match self.during(Doing::Sync, |_| progress.sync()) {
            Ok(position) => {
                self.note("sync".to_owned());
                self.reached(position)
            }
            Err(error) => {
                self.note(format!("sync failed: {error}"));
                let mut told = Vec::new();
                let shard = self.shard_mut();
                shard
                    .driver
                    .stop(StopReason::of(error), &mut |output| told.push(output));
                shard.held.clear();
                self.take(told)?;
                self.check_running()
            }
        }
    }

    /// Does so many pieces of the log's work that nobody waits for; whether there is more.
    pub(crate) fn log_maintenance(&mut self, pieces: u64) -> Result<bool, Violation> {
        let Some(log_maintenance) = self.shard().log_maintenance.clone() else {
            return Ok(false);
        };
        for _ in 0..pieces {
            match self.during(Doing::Maintenance, |_| log_maintenance.step()) {
                Ok(StepOutcome::More) => {}
                Ok(StepOutcome::Done) => {
                    self.has_reserve |= !self.is_limited;
                    return Ok(false);
                }
                Err(error) if self.disk_failed || self.damaged || self.is_limited => {
                    self.note(format!("maintenance: {error:?}"));
                    return Ok(false);
                }
                Err(error) => return Err(format!("maintenance failed: {error:?}")),
            }
        }
        Ok(true)
    }

    fn reached(&mut self, position: Position) -> Result<(), Violation> {
        let shard = self.shard_mut();
        shard.durable = position;
        shard.driver.reached(position);
        while let Some(output) = self.shard().held.front()
            && output.durable <= position
        {
            let output = self.shard_mut().held.pop_front().expect("looked at");
            self.answered(output)?;
        }
        Ok(())
    }

    // Lives.

    /// What the disk did so far, in all lives.
    pub(crate) fn operations(&self) -> Operations {
        let mut operations = self.operations;
        operations += self.disk.operations();
        operations
    }

    /// Starts the shard. Whether it runs: a fault may keep it from that.
    pub(crate) fn start(&mut self) -> Result<bool, Violation> {
        if let Some((kind, at, fault)) = self.armed {
            let done = kind.map_or(self.operations.changes(), |kind| self.operations.of(kind));
            match (kind, at.checked_sub(done)) {
                (Some(kind), Some(after)) => self.disk.fail(kind, after, fault),
                (None, Some(after)) => self.disk.fail_change(after, fault),
                (_, None) => {}
            }
        }
        let shard = self.during(Doing::Start, |world| {
            Shard::start(
                &world.disk,
                &world.clock,
                world.starts,
                &world.witness,
                world.bug,
                world.with_maintenance,
            )
        });
        self.starts += 1;
        self.tally.count("starts", 1);
        let before = self.witness.lock().records.clone();
        self.witness.verdict()?;
        if matches!(&shard, Err(refusal) if refusal.starts_with("Recover(")) {
            // Nothing was built on what that recovery found. What it missed may be in a snapshot that
            // the next start can read.
            self.witness.lock().records = before;
        }
        match shard {
            Ok(_) if self.witness.lock().is_useless => {
                Err("started with a snapshot that lacks what was trimmed".to_owned())
            }
            Ok(shard) => {
                self.shard = Some(shard);
                self.has_reserve = false;
                if self.damaged {
                    self.model.forgive();
                }
                self.check_report()?;
                self.check_index()?;
                self.check_state()?;
                Ok(true)
            }
            Err(refusal) => {
                self.note(format!("refused to start: {refusal}"));
                self.tally.count("starts refused", 1);
                if refusal.starts_with("Missing") && !self.file_removed {
                    return Err(format!("no file was taken away: {refusal}"));
                }
                if self.disk_failed || self.damaged || self.misread || self.is_limited {
                    Ok(false)
                } else {
                    Err(format!("the start was refused: {refusal}"))
                }
            }
        }
    }

    /// All that messages have their bytes in is there, and the start says nothing else. Where something was
    /// damaged, it may have dropped some.
    fn check_report(&self) -> Result<(), Violation> {
        let shard = self.shard();
        let held: BTreeSet<Position> = (shard.log.lock().ranges().iter())
            .map(|range| range.first)
            .collect();
        let range_bits = shard.log.lock().capabilities().range_bits;
        let mut lost: BTreeMap<Position, u64> = BTreeMap::new();
        for queue in shard.driver.machine().state_view().queues.values() {
            for message in queue.messages.values() {
                let range = message.location.position.range(range_bits).start;
                if !held.contains(&range) {
                    *lost.entry(range).or_default() += 1;
                }
            }
        }
        // What it told of it has dropped.
        let told = &shard.report.missing;
        if !lost.is_empty() || (!told.is_empty() && !self.damaged) {
            return Err(format!(
                "the start tells of {told:?}, and {lost:?} is missing"
            ));
        }
        Ok(())
    }

    /// The machine is what its records make it, whatever of it came from a snapshot; every message
    /// can be read; nothing is counted twice or not at all.
    pub(crate) fn check_state(&mut self) -> Result<(), Violation> {
        let machine = self.shard().driver.machine();
        let state = machine.state_view();
        let folded = self.witness.folded().state_view();
        if state != folded {
            return Err(format!(
                "the state is not what its records give: {}",
                difference(&state, &folded)
            ));
        }
        for (name, queue) in &state.queues {
            let (counts, totals) = (&queue.description.counts, &queue.description.totals);
            let pending = counts.ready + counts.in_flight + counts.delayed;
            let came = totals.accepted + totals.moved_in;
            let went = totals.acknowledged + totals.moved_out + totals.dropped.total();
            if !self.damaged && came != went + pending {
                return Err(format!(
                    "{name}: {came} came, {went} went, {pending} are there"
                ));
            }
            if self.damaged {
                continue;
            }
            for (sequence, message) in &queue.messages {
                let at = message.location;
                let reader = self.shard().reader.clone();
                let record = match self.during(Doing::Read, |_| reader.read(at.position)) {
                    Ok(record) => record,
                    Err(_) if self.disk_failed || self.misread || self.damaged => continue,
                    Err(error) => {
                        return Err(format!(
                            "{name} {sequence} cannot be read at {at:?}: {error:?}"
                        ));
                    }
                };
                let stored = read_message(&record, at.part).map_err(|error| error.to_string())?;
                if stored.id != message.id {
                    return Err(format!("{name} {sequence}: {at:?} holds {}", stored.id));
                }
            }
        }
        match self.damaged {
            true => Ok(()),
            false => {
                self.check_events()?;
                self.check_copies()
            }
        }
    }

    /// Ends this life, whatever it is doing. The next begins with [`start`](Self::start).
    pub(crate) fn end(&mut self, end: End) {
        let unsynced = self.disk.unsynced() > 0;
        let (kind, left) = match end {
            End::Kill => (Kind::Kill, self.disk.kill()),
            End::Power(cut) => (Kind::PowerCut, self.disk.crash(cut)),
        };
        let waiting = !self.asked.is_empty();
        self.note(format!("{end:?}, unsynced: {}", self.disk.unsynced()));
        let at = self.power_off_at.take().unwrap_or(Doing::Nothing);
        self.tally.struck(kind, at, unsynced);
        if self.refused_for_space {
            self.tally.struck(kind, Doing::Full, unsynced);
        }
        self.tally
            .count("crashes with answers outstanding", waiting.into());
        self.operations = self.operations();
        self.disk = left;
        self.struck = 0;
        self.shard = None;
        self.maintenance = Maintenance::default();
        self.disk_failed = false;
        self.misread = false;
        self.asked.clear();
        if let Some(index) = &mut self.index {
            index.crashed(self.bug);
        }
        self.exchanges_end(matches!(end, End::Power(_)));
        for known in self.model.messages.values_mut() {
            known.acks_asked = 0;
        }
        let span = 1 + self.random.below(1_500);
        self.pass(span);
        let system_lives = matches!(end, End::Kill);
        self.witness.lock().died(system_lives);
        match end {
            End::Kill => {}
            End::Power(_) => {
                self.clock.reboot(self.random.below(5_000));
                // Answers at level `process` do not count any more, neither way.
                self.model.unique.retain(|(queue, _), _| *queue != WRITTEN);
                for known in self.model.messages.values_mut() {
                    let answered = known.ended || known.state == Existence::There;
                    if known.queue == WRITTEN && answered {
                        known.state = Existence::Perhaps;
                    }
                }
            }
        }
    }

    // The end of all.

    /// Receives and acknowledges everything that is left. What was there must come.
    pub(crate) fn drain(&mut self) -> Result<(), Violation> {
        self.note("drain".to_owned());
        self.lift_limits();
        // What is due by any time that was ever shown comes soon.
        let wall = self.wall_max.plus(DELAY_MS_MAX);
        self.clock.set_wall(wall);
        self.pass(0);
        let requests = self.unpark();
        self.group(requests)?;
        self.sync()?;
        self.check_state()?;
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let before = self.model.delivered;
            let holder = self.next_holder();
            let receives = QUEUES
                .map(|queue| self.receive(queue, holder, 100))
                .into_iter()
                .collect();
            self.group(receives)?;
            self.sync()?;
            let settles = self
                .current_leases()
                .into_iter()
                .map(|token| self.settle(token, SettleAction::Ack))
                .collect();
            self.group(settles)?;
            self.sync()?;
            // The first receives come right after the start, when leases of before still last.
            self.pass(20_000);
            let now = self.real_ms;
            self.model.leases.retain(|_, lease| lease.until_ms > now);
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

    /// No fault is left that has not struck, and space has no end.
    pub(crate) fn lift_limits(&mut self) {
        self.disk.disarm();
        self.disk.set_free_bytes(None);
        self.is_limited = false;
        self.refused_for_space = false;
    }

    /// Whatever keeps messages from being leased on purpose ends.
    fn unpark(&mut self) -> Vec<Request<u64>> {
        let mut commands = Vec::new();
        for queue in QUEUES {
            commands.push(Command::Pause(Pause {
                queue: name(queue),
                paused: false,
            }));
        }
        for queue in [KEYED, SKIPPING] {
            for number in 0..KEYS {
                commands.push(Command::ChangeKey(ChangeKey {
                    queue: name(queue),
                    key: key(number),
                    action: KeyAction::Resume,
                }));
            }
        }
        commands
            .into_iter()
            .map(|command| self.request(Work::from(command), vec![Asked::Nothing]))
            .collect()
    }

    /// The tokens that their holders may count on, in an order that is always the same.
    pub(crate) fn current_leases(&self) -> Vec<LeaseToken> {
        let leases = self.model.leases.iter();
        in_order(
            leases
                .filter(|(_, lease)| lease.until_ms > self.real_ms)
                .map(|(token, _)| *token)
                .collect(),
        )
    }

    pub(crate) fn known(&mut self, message: u64) -> &mut Known {
        self.model.known(message)
    }

    pub(crate) fn note(&mut self, event: String) {
        self.history.push(format!("{:>7} {event}", self.real_ms));
    }
}

/// Rounds without a delivery after which nothing is left. The longest wait is a lease bound.
const IDLE_ROUNDS: u32 = 6;

pub(crate) const DELAY_MS_MAX: u64 = 4_000;

pub(crate) const KEYS: u64 = 4;

pub(crate) fn in_order(mut tokens: Vec<LeaseToken>) -> Vec<LeaseToken> {
    tokens.sort_by_key(|token| (token.queue, token.sequence, token.term.epoch, token.lease));
    tokens
}

pub(crate) fn name(queue: &str) -> QueueName {
    QueueName::new(queue).expect("a good name")
}

pub(crate) fn key(number: u64) -> Key {
    Key::new(&format!("key-{number}")).expect("a good key")
}

/// The first lines in which two states differ.
fn difference(a: &StateView, b: &StateView) -> String {
    let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
    let lines = a.lines().zip(b.lines()).enumerate();
    let differing: Vec<_> = lines
        .filter(|(_, (a, b))| a != b)
        .take(8)
        .map(|(line, (a, b))| format!("{line}: {} / {}", a.trim(), b.trim()))
        .collect();
    format!("\n    {}", differing.join("\n    "))
}

//! Random histories: one seed, one history.

use std::io::ErrorKind;

use lockgate_core::{Clock, DiskOperation, WallTime};
use lockgate_machine::EngineCommand;
use lockgate_sim::{Fault, PowerCut};

use crate::{
    Violation,
    planted::Bug,
    tally::{DAMAGES, Doing, Kind, Tally},
    world::{End, LEASE_MS, World},
};

/// Several lives of a shard, each ended somehow, and a drain at the end.
pub(crate) fn run(seed: u64, bug: Option<Bug>) -> Result<Tally, Violation> {
    let mut world = World::new(seed, bug);
    match world.run() {
        Ok(()) => Ok(world.tally),
        Err(violation) => Err(world.told(&violation)),
    }
}

impl World {
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        if self.random.chance(25) {
            self.body_parts = Some(self.random.below(4));
        }
        self.has_own_maintenance = match self.bug {
            Some(bug) => bug.is_of_own_maintenance(),
            None => self.random.chance(40),
        };
        if !self.has_own_maintenance && self.random.chance(60) {
            // Enough is appended to be worth a snapshot.
            self.body_parts = Some(4 + self.random.below(5));
        }
        self.with_maintenance = self.random.chance(75);
        self.wall_goes_back = self.random.chance(10);
        let lives = 1 + self.random.below(4);
        for life in 0..lives {
            if life > 0 && self.random.chance(25) {
                let after = self.random.below(25);
                self.arm(after);
            }
            if !self.start_at_last()? {
                return Ok(());
            }
            self.make_queues()?;
            self.live()?;
            if self.is_serving() && self.random.chance(10) {
                self.stop()?;
            }
            let end = self.any_end();
            self.end(end);
            if self.random.chance(20) {
                self.spoil_newest_snapshot();
            }
        }
        self.disk.disarm();
        if self.start_at_last()? {
            self.make_queues()?;
            self.drain()?;
            self.tally.count("histories drained", 1);
        }
        Ok(())
    }

    /// Starts as often as it takes. Whether it runs: what is damaged may be refused for ever.
    pub(crate) fn start_at_last(&mut self) -> Result<bool, Violation> {
        let mut refused = false;
        while !self.start()? {
            if refused && self.damaged {
                return Ok(false);
            }
            if refused {
                // Space may have been all that was missing.
                self.lift_limits();
            }
            refused = true;
            let end = self.any_end();
            self.end(end);
            self.disk.disarm();
        }
        Ok(true)
    }

    /// A crash, and then a start, another crash and another start; sometimes all that is left is
    /// received.
    pub(crate) fn aftermath(&mut self, end: End, drain: bool) -> Result<(), Violation> {
        self.end(end);
        for again in [true, false] {
            if !self.start()? {
                return Err("nothing keeps it from starting".to_owned());
            }
            if again {
                self.end(End::Power(PowerCut::LoseAllUnsynced));
            }
        }
        if drain {
            self.make_queues()?;
            self.drain()?;
        }
        Ok(())
    }

    /// Every way in which a life may end that does not depend on where, each in a future of its own.
    pub(crate) fn aftermaths(&mut self, seed: u64) -> Result<(), Violation> {
        self.armed = None;
        self.disk.disarm();
        let cuts = [PowerCut::LoseAllUnsynced, PowerCut::Seeded(seed)];
        for end in [End::Kill].into_iter().chain(cuts.map(End::Power)) {
            let mut after = self.fork();
            let outcome = after.aftermath(end, seed.is_multiple_of(8));
            self.tally.add(&after.tally);
            outcome.map_err(|violation| after.told(&violation))?;
        }
        Ok(())
    }

    /// The history as far as it explains a violation.
    pub(crate) fn told(&self, violation: &str) -> Violation {
        // All of it for the one who asked for this seed.
        let count = if std::env::var_os("LOCKGATE_SEED").is_some() {
            usize::MAX
        } else {
            40
        };
        let last: Vec<_> = self.history.iter().rev().take(count).rev().collect();
        let last: Vec<_> = last.into_iter().map(String::as_str).collect();
        format!("{violation}\n  {}", last.join("\n  "))
    }

    fn any_end(&mut self) -> End {
        if self.random.chance(35) {
            return End::Kill;
        }
        let unsynced = self.disk.unsynced();
        End::Power(match self.random.below(8) {
            0 => PowerCut::LoseAllUnsynced,
            1 => PowerCut::KeepAll,
            2 => PowerCut::KeepNames,
            3 => PowerCut::KeepBytes,
            4 => PowerCut::KeepPrefix(self.random.index(unsynced + 1)),
            _ => PowerCut::Seeded(self.random.next_u64()),
        })
    }

    /// Ends the life in good order.
    pub(crate) fn stop(&mut self) -> Result<(), Violation> {
        self.note("stop".to_owned());
        self.during(Doing::Stop, |world| {
            let end = world.ask(EngineCommand::EndTerm);
            world.group(vec![end])?;
            if world.is_serving() {
                world.sync()?;
            }
            Ok(())
        })
    }

    /// Groups of random requests, until the shard stops or enough is enough.
    pub(crate) fn live(&mut self) -> Result<(), Violation> {
        let groups = 8 + self.random.below(40);
        if self.random.chance(50) {
            self.log_maintenance(100)?;
        }
        // Sometimes there is no fault, and the crash comes between two groups.
        if self.has_faults && self.random.chance(85) {
            let after = self.random.below(groups * 2);
            self.arm(after);
        }
        for _ in 0..groups {
            let mut requests: Vec<_> = (0..self.random.below(4))
                .map(|_| self.any_request())
                .collect();
            requests.extend(self.any_exchange_requests());
            self.group(requests)?;
            if self.is_serving() && self.random.chance(60) {
                self.sync()?;
            }
            if !self.is_serving() {
                return Ok(());
            }
            self.move_ids();
            if self.random.chance(60) {
                self.keep()?;
            }
            if !self.is_serving() {
                return Ok(());
            }
            if self.random.chance(30) {
                let pieces = 1 + self.random.below(6);
                self.log_maintenance(pieces)?;
            }
            self.time_passes();
            if self.is_limited {
                self.others_use_space();
            }
        }
        Ok(())
    }

    fn time_passes(&mut self) {
        if self.random.chance(50) {
            let span = [1, 50, 1_000, LEASE_MS, 20_000][self.random.index(5)];
            self.pass(span);
        }
        if self.random.chance(3) {
            // The wall clock steps, within what the order of a key's messages can stand.
            let wall = self.clock.wall().plus(self.random.below(500));
            self.clock.set_wall(wall);
            self.pass(0);
        }
        if self.wall_goes_back && self.random.chance(10) {
            let back = 1 + self.random.below(3_600_000);
            self.note(format!("the wall clock goes back by {back} ms"));
            self.clock
                .set_wall(WallTime(self.clock.wall().0.saturating_sub(back)));
        }
    }

    /// Something goes wrong after so many operations.
    fn arm(&mut self, after: u64) {
        let disk = self.disk.clone();
        let seed = self.random.next_u64();
        let error = Fault::Error(ErrorKind::Other);
        match self.random.below(100) {
            0..34 => disk.fail_change(after, Fault::PowerOff),
            34..40 => disk.fail(DiskOperation::Sync, after / 4, Fault::LostPages),
            40..44 => disk.fail(DiskOperation::Sync, after / 4, Fault::LostSome(seed)),
            44..48 => disk.fail(DiskOperation::Sync, after / 4, error),
            48..52 => disk.fail(DiskOperation::Write, after / 2, error),
            52..56 => {
                let torn = Fault::Torn(ErrorKind::Other);
                disk.fail(DiskOperation::Write, after / 2, torn);
            }
            56..66 => {
                let (operation, share) = [
                    (DiskOperation::Open, 12),
                    (DiskOperation::SetLen, 20),
                    (DiskOperation::Allocate, 12),
                    (DiskOperation::Rename, 12),
                    (DiskOperation::Remove, 12),
                    (DiskOperation::Inspect, 4),
                ][self.random.index(6)];
                disk.fail(operation, after / share, error);
            }
            66..71 => disk.fail(DiskOperation::Read, after / 2, error),
            71..85 => {
                let free = self.random.below(100) << 10;
                self.note(format!("{free} bytes are free"));
                disk.set_free_bytes(Some(free));
                self.is_limited = true;
            }
            85..93 => {
                let damage = DAMAGES[self.random.index(3)];
                let misread = Fault::Misread {
                    damage,
                    lasting: self.random.chance(50),
                    seed,
                };
                disk.fail(DiskOperation::Read, after / 2, misread);
            }
            93..96 => self.decay(),
            _ => disk.fail(DiskOperation::Write, after / 2, Fault::Misdirected(seed)),
        }
    }

    /// Bytes somewhere on the disk become others.
    fn decay(&mut self) {
        let image = self.disk.image();
        let files: Vec<_> = image
            .iter()
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        if files.is_empty() {
            return;
        }
        let (name, bytes) = files[self.random.index(files.len())];
        // Behind the bytes that were ever written there is nothing to lose.
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
        let damage = DAMAGES[self.random.index(3)];
        let effective = self
            .disk
            .damage(name, damage, 0..written, self.random.next_u64());
        self.note(format!("{damage:?} in {name}: {effective}"));
        self.tally.struck(Kind::Decay, Doing::Nothing, effective);
        self.damage();
    }

    /// The newest snapshot becomes unreadable, once in a history. Nothing is lost by that: the one
    /// before it is there, or all records are.
    fn spoil_newest_snapshot(&mut self) {
        let image = self.disk.image();
        let newest = image.keys().rfind(|name| name.ends_with(".snapshot"));
        let Some(name) = newest.filter(|_| !self.snapshot_spoiled) else {
            return;
        };
        let seed = self.random.next_u64();
        let damage = DAMAGES[self.random.index(2)];
        self.snapshot_spoiled = self
            .disk
            .damage(name, damage, 0..image[name].len() as u64, seed);
        self.note(format!("{damage:?} in {name}: {}", self.snapshot_spoiled));
        self.tally
            .struck(Kind::Decay, Doing::Snapshot, self.snapshot_spoiled);
    }

    /// Other programs on the same disk take what is free, or leave it again.
    fn others_use_space(&mut self) {
        match self.random.below(10) {
            0 => {
                let taken = self.disk.take_space(self.random.below(64) << 10);
                self.note(format!("others take {taken} bytes"));
            }
            1 => {
                let given = self.random.below(64) << 10;
                self.disk.give_space(given);
                self.note(format!("others give {given} bytes"));
            }
            _ => {}
        }
    }
}

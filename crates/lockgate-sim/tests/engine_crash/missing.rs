//! Files that are not there any more: what a start says of them, held against what is true.
//!
//! A random history ends, and one of its files is taken away. From the whole folder it is known what stood
//! in that file. What must hold:
//!
//! - a start over a file that nothing needs says nothing, and has everything;
//! - a start over a file that is needed is refused, names it and what is in it, and changes nothing;
//! - a start over bytes that are damaged is not refused, also where what emptied a part that was given back is
//!   lost with them;
//! - with the loss accepted it starts, and the messages of that file are dropped and counted, whenever the
//!   power goes meanwhile; every start after that is clean.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockgate_core::{Clock, Epoch, Incarnation, LogSource, Position};
use lockgate_engine::{Beginning, Driver, EngineOptions, StartError, StartReport};
use lockgate_log::LocalLog;
use lockgate_machine::read_message;
use lockgate_sim::{Fault, FaultyDisk, ManualClock, PowerCut, SeededRandom};

use crate::{
    Violation,
    shard::log_options,
    world::{End, World},
};

type Image = BTreeMap<String, Vec<u8>>;

/// How often what was met.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub(crate) not_needed: u64,
    pub(crate) payloads: u64,
    pub(crate) records: u64,
    pub(crate) cut_while_accepting: u64,
    pub(crate) given_back: u64,
}

/// Several lives without a fault, each ended by a crash, with files taken away from copies.
pub(crate) fn run(seed: u64, met: &mut Met) -> Result<(), Violation> {
    let mut world = World::new(seed, None);
    world.has_faults = false;
    world.index = None;
    world.has_own_maintenance = world.random.chance(40);
    world.body_parts = Some(4 + world.random.below(5));
    for _ in 0..1 + world.random.below(4) {
        let outcome = life(&mut world, met);
        outcome.map_err(|violation| world.told(&violation))?;
    }
    Ok(())
}

fn life(world: &mut World, met: &mut Met) -> Result<(), Violation> {
    if !world.start_at_last()? {
        return Err("nothing keeps it from starting".to_owned());
    }
    world.make_queues()?;
    world.live()?;
    let end = if world.random.chance(50) {
        End::Kill
    } else {
        End::Power(PowerCut::Seeded(world.random.next_u64()))
    };
    world.end(end);
    // The next epoch's first segment says that all before it was durable; without, the loss of a file may
    // look like a torn tail.
    let disk = FaultyDisk::from_image(world.disk.image());
    let (driver, _) = start(&disk, &world.clock, false).map_err(|error| format!("{error:?}"))?;
    drop(driver);
    let whole = Whole::of(&disk.image(), &world.clock)?;
    let names = whole.image.keys().filter(|name| name.ends_with(".log"));
    let mut names: Vec<String> = names.cloned().collect();
    names.pop();
    for name in names {
        if world.random.chance(50) {
            world.note(format!("without {name}"));
            whole.without(&name, &world.clock, &mut world.random, met)?;
        }
        world.note(format!("damage in {name}"));
        whole.damaged(&name, &world.clock, &mut world.random, met)?;
    }
    Ok(())
}

fn start(
    disk: &FaultyDisk,
    clock: &ManualClock,
    accept_loss: bool,
) -> Result<(Driver<u64>, StartReport), StartError> {
    let log = LocalLog::open(Arc::new(disk.clone()), log_options()).unwrap();
    let options = EngineOptions {
        accept_loss,
        ..EngineOptions::default()
    };
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(1),
        secret: [7; 32],
    };
    Driver::recover(log, &options, || beginning)
}

/// A folder in which nothing is missing.
struct Whole {
    image: Image,
    /// Messages by the segment that has their bytes.
    lives: BTreeMap<u64, u64>,
    /// Segments with records that the start folds.
    folded: BTreeSet<u64>,
    /// The segment it begins in. Whether there was something behind the snapshot the missing file alone knew.
    first: u64,
    dropped: u64,
}

impl Whole {
    fn of(image: &Image, clock: &ManualClock) -> Result<Self, Violation> {
        let disk = FaultyDisk::from_image(image.clone());
        let (driver, report) = start(&disk, clock, false).map_err(|error| format!("{error:?}"))?;
        if !report.is_clean() {
            return Err(format!("nothing is missing, and the start says {report:?}"));
        }
        let mut lives = BTreeMap::new();
        for message in live_messages(&driver) {
            *lives.entry(message.0 >> 32).or_default() += 1;
        }
        let dropped = dropped(&driver);
        drop(driver);
        let from = report.snapshot.unwrap_or_default();
        let mut folded = BTreeSet::new();
        let disk = FaultyDisk::from_image(image.clone());
        let mut log = LocalLog::open(Arc::new(disk), log_options()).unwrap();
        log.recover(from, Epoch(0), &mut |record, _| {
            folded.insert(record.position.0 >> 32);
        })
        .unwrap();
        Ok(Self {
            image: image.clone(),
            lives,
            folded,
            first: (from.0 >> 32).max(1),
            dropped,
        })
    }

    fn without(
        &self,
        name: &str,
        clock: &ManualClock,
        random: &mut SeededRandom,
        met: &mut Met,
    ) -> Result<(), Violation> {
        let segment = u64::from_str_radix(&name[..8], 16).unwrap();
        let lives = self.lives.get(&segment).copied().unwrap_or_default();
        let is_folded = self.folded.contains(&segment);
        let mut image = self.image.clone();
        image.remove(name);
        let disk = FaultyDisk::from_image(image.clone());
        let parts = match start(&disk, clock, false) {
            Ok((driver, report)) => {
                if lives > 0 || is_folded || !report.is_clean() {
                    return Err(format!(
                        "{name} with {lives} messages, folded: {is_folded}; the start says {report:?}"
                    ));
                }
                met.not_needed += 1;
                return check_readable(&driver);
            }
            Err(StartError::Missing { parts, .. }) => parts,
            Err(error) => return Err(format!("without {name}: {error:?}")),
        };
        let [part] = &parts[..] else {
            return Err(format!("without {name}: {parts:?}"));
        };
        let is_told = part.name == name
            && (part.holds_records == is_folded || segment == self.first)
            && (part.holds_records || part.messages == lives && lives > 0);
        if !is_told {
            return Err(format!("{name} with {lives} messages: {part:?}"));
        }
        if disk.image() != image {
            return Err(format!("refused without {name}, and changed"));
        }
        let holds_records = part.holds_records;
        if holds_records {
            met.records += 1;
        } else {
            met.payloads += 1;
        }

        // The power goes somewhere in a start that accepts the loss.
        let after = random.below(12);
        disk.fail_change(after, Fault::PowerOff);
        let was_cut = start(&disk, clock, true).is_err();
        met.cut_while_accepting += u64::from(was_cut);
        let disk = disk.crash(PowerCut::Seeded(random.next_u64()));
        match start(&disk, clock, false) {
            Ok(_) | Err(StartError::Missing { .. }) => {}
            Err(error) => return Err(format!("cut without {name}: {error:?}")),
        }
        let disk = disk.crash(PowerCut::LoseAllUnsynced);
        let (driver, _) = start(&disk, clock, true).map_err(|error| format!("{error:?}"))?;
        check_readable(&driver)?;
        if !holds_records && dropped(&driver) != self.dropped + lives {
            return Err(format!("not all of {lives} messages in {name} are counted"));
        }
        drop(driver);
        let disk = disk.crash(PowerCut::LoseAllUnsynced);
        let (driver, report) =
            start(&disk, clock, false).map_err(|error| format!("accepted, then: {error:?}"))?;
        if !report.is_clean() {
            return Err(format!("accepted, then: {report:?}"));
        }
        check_readable(&driver)
    }
}

impl Whole {
    fn damaged(
        &self,
        name: &str,
        clock: &ManualClock,
        random: &mut SeededRandom,
        met: &mut Met,
    ) -> Result<(), Violation> {
        let mut image = self.image.clone();
        let bytes = image.get_mut(name).unwrap();
        // All behind some byte, so that many records are lost at once.
        let from = random.index(bytes.len());
        bytes[from..].fill(0xa5);
        let disk = FaultyDisk::from_image(image);
        let (driver, report) =
            start(&disk, clock, false).map_err(|error| format!("damage in {name}: {error:?}"))?;
        if let Some(part) = report.missing.iter().find(|part| !part.may_be_given_back) {
            return Err(format!("damage in {name}: {part:?}"));
        }
        met.given_back += u64::from(!report.missing.is_empty());
        drop(driver);
        let disk = disk.crash(PowerCut::LoseAllUnsynced);
        let again = start(&disk, clock, false);
        let (_, report) = again.map_err(|error| format!("damage in {name}, then: {error:?}"))?;
        if !report.missing.is_empty() {
            return Err(format!("damage in {name}, told twice: {report:?}"));
        }
        Ok(())
    }
}

fn live_messages(driver: &Driver<u64>) -> Vec<Position> {
    let queues = driver.machine().state_view().queues.into_values();
    let messages = queues.flat_map(|queue| queue.messages.into_values());
    messages.map(|message| message.location.position).collect()
}

/// Messages whose bytes were lost, in all queues.
fn dropped(driver: &Driver<u64>) -> u64 {
    driver.machine().totals().dropped.damaged
}

/// Every message can be read, and what came is what went and what is there, unless records are lost.
fn check_readable(driver: &Driver<u64>) -> Result<(), Violation> {
    let reader = driver.reader();
    for (name, queue) in driver.machine().state_view().queues {
        for (sequence, message) in queue.messages {
            let at = message.location;
            let record = reader
                .read(at.position)
                .map_err(|error| format!("{name} {sequence} at {at:?}: {error:?}"))?;
            let stored = read_message(&record, at.part).map_err(|error| error.to_string())?;
            if stored.id != message.id {
                return Err(format!("{name} {sequence}: {at:?} holds {}", stored.id));
            }
        }
    }
    Ok(())
}

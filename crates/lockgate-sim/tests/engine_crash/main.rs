//! The engine's driver over a disk that loses what was not synced: seeded random histories of
//! sends, duplicates, receives, settles, purges and passing time, cut at a random write or sync,
//! recovered, and held against a model that knows only what was answered.
//!
//! What must hold, whatever the disk lost:
//!
//! - *no loss*: a send that was answered at a level the crash survives is delivered in the end;
//! - *no resurrection*: a message whose acknowledgement was answered never comes again;
//! - *nothing from nowhere*: what is delivered was sent, byte for byte, under the id it was given;
//! - *order*: no message of a key is delivered while one in front of it is there;
//! - *one holder*: no two holders have leases of one key at a time, over restarts and power cuts;
//! - *unique ids*: a duplicate gets the original's answer, also after a crash;
//! - *recovered twice* is the same state, and the state of the driver that wrote the log.
//!
//! What had no answer may have happened or not.
//!
//! The harness itself is tested by planting bugs, each of which must be caught within a few hundred
//! seeds: an answer that leaves before its sync, an acknowledgement lost at recovery, leases lost at
//! recovery, unique ids lost at recovery, an order turned round at recovery, and a lease horizon
//! that is ignored.

mod model;
mod planted;
mod world;

use planted::Bug;
use world::World;

/// Histories of a plain run; `LOCKGATE_SEEDS=100000` in the environment runs as many.
const SEEDS: u64 = 400;
const SEEDS_TO_CATCH_A_BUG: u64 = 400;

#[test]
fn every_seed_keeps_what_was_answered() {
    let seeds = std::env::var("LOCKGATE_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        if let Err(violation) = run(seed, None) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in [1, 2, 3] {
        let histories = [(); 2].map(|()| {
            let mut world = World::new(seed, None);
            world.live().expect("no violation");
            (world.disk.image(), world.history.len())
        });
        assert!(histories[0] == histories[1], "seed {seed}");
    }
}

#[test]
fn planted_bugs_are_caught() {
    for bug in [
        Bug::AnswerBeforeSync,
        Bug::AckLost,
        Bug::LeaseLost,
        Bug::UniqueIdLost,
        Bug::OrderTurned,
        Bug::HorizonLost,
    ] {
        let caught = (0..SEEDS_TO_CATCH_A_BUG).find_map(|seed| run(seed, Some(bug)).err());
        assert!(caught.is_some(), "{bug:?} was not caught");
    }
}

pub(crate) type Violation = String;

/// One history: several lives of a shard with a crash after each, and a drain at the end.
fn run(seed: u64, bug: Option<Bug>) -> Result<(), Violation> {
    let mut world = World::new(seed, bug);
    let lives = 1 + world.random.below(3);
    let told = |world: &World, violation: Violation| {
        let last = world.history.iter().rev().take(24).rev();
        let last: Vec<_> = last.map(String::as_str).collect();
        format!("{violation}\n  {}", last.join("\n  "))
    };
    for _ in 0..lives {
        world.live().map_err(|violation| told(&world, violation))?;
        world.crash().map_err(|violation| told(&world, violation))?;
    }
    world.drain().map_err(|violation| told(&world, violation))
}

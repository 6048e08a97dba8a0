//! Every scripted history, with everything that can go wrong with it, point by point.

use std::{
    io::ErrorKind,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use lockgate_core::DiskOperation;
use lockgate_sim::Fault;

use crate::{script, tally::Tally, world::World};

/// The power goes, or the process dies, at every change of the disk that a scripted history makes
/// (every write, sync, allocation, change of a name), and is left of it whatever may be. Afterwards
/// the shard is what its records say, twice.
#[test]
fn a_crash_at_every_change_of_every_scripted_history() {
    let cases = AtomicU64::new(0);
    let total = Mutex::new(Tally::default());
    let scripts = script::scripts();
    each_on_all_cores(&scripts, |index, (name, steps)| {
        let mut whole = World::new(index, None);
        assert_eq!(whole.play(steps), Ok(true), "{name}");
        whole
            .drain()
            .unwrap_or_else(|violation| panic!("{name}: {}", whole.told(&violation)));
        for change in 0..whole.operations().changes() {
            let mut world = World::new(index, None);
            world.armed = Some((None, change, Fault::PowerOff));
            let played = world.play(steps);
            let told = |world: &World, violation: &str| {
                format!("{name}, change {change}: {}", world.told(violation))
            };
            if let Err(violation) = played {
                panic!("{}", told(&world, &violation));
            }
            world.armed = None;
            for (case, end) in script::ends(world.disk.unsynced(), change)
                .into_iter()
                .enumerate()
            {
                let mut after = world.fork();
                let outcome = after.aftermath(end, (case as u64 + change).is_multiple_of(8));
                if let Err(violation) = outcome {
                    panic!("{}", told(&after, &violation));
                }
                cases.fetch_add(1, Ordering::Relaxed);
                total.lock().unwrap().add(&after.tally);
            }
        }
    });
    println!("{}", total.lock().unwrap().table());
    let cases = cases.into_inner();
    println!("{} scripts, {cases} crashes", scripts.len());
    assert!(cases > 10_000, "{cases}");
}

/// Every operation of the disk in every scripted history fails once, in every way it can while the
/// machine goes on.
#[test]
fn every_operation_of_every_scripted_history_fails_once() {
    use DiskOperation::{Allocate, Inspect, Open, Read, Remove, Rename, SetLen, Sync, Write};
    let kinds = [
        Open, Read, Write, SetLen, Allocate, Sync, Rename, Remove, Inspect,
    ];
    let total = Mutex::new(Tally::default());
    let scripts = script::scripts();
    each_on_all_cores(&scripts, |index, (name, steps)| {
        let mut whole = World::new(index, None);
        assert_eq!(whole.play(steps), Ok(true), "{name}");
        for kind in kinds {
            // Reads are many and all alike.
            let step = if kind == Read { 5 } else { 1 };
            for after in (0..whole.operations().of(kind)).step_by(step) {
                let error = Fault::Error(ErrorKind::Other);
                let faults = match kind {
                    Sync => vec![error, Fault::LostPages, Fault::LostSome(after)],
                    Write => vec![error, Fault::Torn(ErrorKind::Other)],
                    _ => vec![error],
                };
                for fault in faults {
                    let mut world = World::new(index, None);
                    world.armed = Some((Some(kind), after, fault));
                    let outcome = world.play(steps).and_then(|_| world.aftermaths(after));
                    if let Err(violation) = outcome {
                        let violation = world.told(&violation);
                        panic!("{name}, {kind:?} {after}, {fault:?}: {violation}");
                    }
                    total.lock().unwrap().add(&world.tally);
                }
            }
        }
    });
    println!("{}", total.lock().unwrap().table());
}

/// Runs `work` for each item, with its number, on all cores.
fn each_on_all_cores<T: Sync>(items: &[T], work: impl Fn(u64, &T) + Sync) {
    let next = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let index = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(item) = items.get(usize::try_from(index).unwrap())
                {
                    work(index, item);
                }
            });
        }
    });
}

//! Every scripted history, with everything that can go wrong with it, point by point.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use lockgate_core::DiskOperation;
use lockgate_sim::{Fault, FaultyDisk, PowerCut, SeededRandom};

use crate::{
    script,
    tally::Tally,
    world::{End, World},
};

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

/// Whatever is in the folder, a start ends: with a shard that says what was lost, or with a refusal;
/// and the next start ends the same way. Files of a good folder are damaged in many places, cut,
/// swapped, doubled, removed, and made of noise.
#[test]
fn any_folder_starts_or_is_refused() {
    let scripts = script::scripts();
    let total = Mutex::new((0, 0));
    each_on_all_cores(&scripts, |index, (name, steps)| {
        let mut whole = World::new(index, None);
        assert_eq!(whole.play(steps), Ok(true), "{name}");
        whole.sync().unwrap();
        for seed in 0..60 {
            let mut world = whole.fork();
            world.end(End::Power(PowerCut::LoseAllUnsynced));
            let mut random = SeededRandom::new(seed);
            let mut image = world.disk.image();
            let wounds: Vec<_> = (0..1 + random.index(4))
                .map(|_| wound(&mut image, &mut random))
                .collect();
            world.disk = FaultyDisk::from_image(image);
            world.damage();
            world.file_removed = wounds.iter().any(|wound| wound.ends_with("removed"));
            let starts = [(); 2].map(|()| {
                let started = world.start().unwrap_or_else(|violation| {
                    panic!(
                        "{name}, seed {seed}, {wounds:?}: {}",
                        world.told(&violation)
                    )
                });
                let mut total = total.lock().unwrap();
                total.0 += u32::from(started);
                total.1 += 1;
                drop(total);
                world.end(End::Power(PowerCut::LoseAllUnsynced));
                started
            });
            assert_eq!(starts[0], starts[1], "{name}, seed {seed}, {wounds:?}");
        }
    });
    let (started, all) = total.into_inner().unwrap();
    println!("{started} of {all} starts");
    assert!(started > all / 2, "{started} of {all}");
}

/// Does something to a file of the folder, and says what.
fn wound(image: &mut BTreeMap<String, Vec<u8>>, random: &mut SeededRandom) -> String {
    let names: Vec<_> = image.keys().cloned().collect();
    if names.is_empty() {
        return "nothing is left".to_owned();
    }
    let name = names[random.index(names.len())].clone();
    let other = names[random.index(names.len())].clone();
    let mut bytes = image.remove(&name).expect("listed");
    let what = match random.below(8) {
        0 => {
            bytes.truncate(random.index(bytes.len() + 1));
            "cut"
        }
        1 => {
            bytes = random.bytes(bytes.len().min(20_000));
            "noise"
        }
        2 => return format!("{name} removed"),
        3 => {
            if let Some(mut others) = image.remove(&other) {
                std::mem::swap(&mut bytes, &mut others);
                image.insert(other.clone(), others);
            }
            "swapped"
        }
        4 => {
            image.insert(other.clone(), bytes.clone());
            "doubled"
        }
        5 => {
            let more = random.index(3_000);
            bytes.extend(random.bytes(more));
            "longer"
        }
        _ => {
            for _ in 0..1 + random.index(20) {
                if !bytes.is_empty() {
                    let at = random.index(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            "bits"
        }
    };
    image.insert(name.clone(), bytes);
    format!("{name} {what} {other}")
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

//! Power cuts.

use lockgate_sim::{Fault, FaultyDisk, PowerCut, SeededRandom};

use crate::history::{History, check_survivors, open, random_steps, recover, script};

/// What may be left of this many unsynced operations, in a number of ways that stays bounded.
fn cuts(unsynced: usize, seeds: u64) -> Vec<PowerCut> {
    let mut cuts = vec![PowerCut::LoseAllUnsynced, PowerCut::KeepAll];
    cuts.extend((0..unsynced).map(PowerCut::KeepPrefix));
    cuts.extend((0..seeds).map(PowerCut::Seeded));
    cuts
}

#[test]
fn a_power_cut_at_every_change_of_a_scripted_history() {
    let whole = FaultyDisk::new();
    let history = History::run(&whole, &script());
    assert_eq!(history.error, None);
    let changes = whole.operations().changes();
    assert!(changes > 60, "{changes}");
    let (mut cases, mut effective) = (0, 0);
    for change in 0..changes {
        let disk = FaultyDisk::new();
        disk.fail_change(change, Fault::PowerOff);
        let history = History::run(&disk, &script());
        assert!(history.error.is_some(), "change {change} was met");
        for cut in cuts(disk.unsynced(), 24) {
            println!("change {change}, {cut:?}");
            check_survivors(&history, &disk.crash(cut));
            cases += 1;
            effective += u64::from(disk.unsynced() > 0);
        }
    }
    assert!(cases > 2_000, "{cases}");
    assert!(effective > cases / 2, "{effective} of {cases}");
}

#[test]
fn a_kill_at_every_change_of_a_scripted_history() {
    let whole = FaultyDisk::new();
    History::run(&whole, &script());
    for change in 0..whole.operations().changes() {
        let disk = FaultyDisk::new();
        disk.fail_change(change, Fault::PowerOff);
        let history = History::run(&disk, &script());
        let survivors = check_survivors(&history, &disk.kill());
        // Everything whose append was answered was written.
        let answered = history
            .appended
            .iter()
            .filter(|r| r.position >= history.trimmed);
        assert!(survivors.len() + 4 >= answered.count(), "change {change}");
    }
}

/// Recovery itself may be cut, at any change it makes, and then finds the same as if it had not.
#[test]
fn a_power_cut_at_every_change_of_a_recovery() {
    let whole = FaultyDisk::new();
    History::run(&whole, &script());
    let mut cases = 0;
    for change in 0..whole.operations().changes() {
        for seed in 0..6 {
            let disk = FaultyDisk::new();
            disk.fail_change(change, Fault::PowerOff);
            let history = History::run(&disk, &script());
            let crashed = disk.crash(PowerCut::Seeded(seed));
            let undisturbed = crashed.crash(PowerCut::KeepAll);
            let expected = recover(&mut open(&undisturbed)).unwrap().1;
            for at in 0..undisturbed.operations().changes() {
                println!("change {change}, seed {seed}, change {at} of the recovery");
                let again = crashed.crash(PowerCut::KeepAll);
                again.fail_change(at, Fault::PowerOff);
                recover(&mut open(&again)).unwrap_err();
                let found = check_survivors(&history, &again.crash(PowerCut::Seeded(seed + 100)));
                assert_eq!(found, expected);
                cases += 1;
            }
        }
    }
    assert!(cases > 1_000, "{cases}");
}

/// A kill, and the power goes while the next process recovers: what that one reads from the cache,
/// such as a start mark, need not be durable yet, and nothing may be done on its word alone. (A trim
/// was finished on the word of a mark that the power cut then took: segments were missing.)
#[test]
fn a_kill_and_then_a_power_cut_in_the_recovery() {
    let whole = FaultyDisk::new();
    History::run(&whole, &script());
    let mut cases = 0;
    for change in 0..whole.operations().changes() {
        let disk = FaultyDisk::new();
        disk.fail_change(change, Fault::PowerOff);
        let history = History::run(&disk, &script());
        let undisturbed = disk.kill();
        recover(&mut open(&undisturbed)).unwrap();
        for at in 0..undisturbed.operations().changes() {
            let killed = disk.kill();
            killed.fail_change(at, Fault::PowerOff);
            recover(&mut open(&killed)).unwrap_err();
            let seeds = if killed.unsynced() > 0 { 16 } else { 0 };
            for cut in cuts(0, seeds) {
                println!("change {change}, change {at} of the recovery, {cut:?}");
                check_survivors(&history, &killed.crash(cut));
                cases += 1;
            }
        }
    }
    assert!(cases > 1_000, "{cases}");
}

/// Many lives, each ended by a cut somewhere, also within recovery and the first segment's creation.
#[test]
fn seeded_histories_of_many_lives() {
    for seed in 0..400 {
        let mut random = SeededRandom::new(seed);
        let mut disk = FaultyDisk::new();
        let mut history = History::default();
        for life in 0..5 {
            let count = 2 + random.index(14);
            let steps = random_steps(&mut random, count);
            disk.fail_change(random.below(50), Fault::PowerOff);
            history.go_on(&disk, &steps);
            let cut = match random.below(6) {
                0 => PowerCut::LoseAllUnsynced,
                1 => PowerCut::KeepAll,
                2 => PowerCut::KeepPrefix(random.index(disk.unsynced() + 1)),
                _ => PowerCut::Seeded(random.next_u64()),
            };
            println!("seed {seed}, life {life}, {cut:?}");
            disk = if random.chance(20) {
                disk.kill()
            } else {
                disk.crash(cut)
            };
            check_survivors(&history, &disk.crash(PowerCut::KeepAll));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run = || {
        let disk = FaultyDisk::new();
        disk.fail_change(40, Fault::PowerOff);
        History::run(&disk, &script());
        disk.crash(PowerCut::Seeded(3)).image()
    };
    assert_eq!(run(), run());
}

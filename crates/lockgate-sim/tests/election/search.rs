//! Every rule holds in every state, and each planted mistake is found.

use lockgate_sim::explore::{Explored, Problem, explore};

use crate::world::{Election, Evils, Planted};

const NO_EVIL: Evils = Evils {
    crashes: 0,
    lost: 0,
    lapses: 0,
    slow: 0,
    writes: 0,
};

fn search(members: u8, evils: Evils, planted: Planted) -> Result<Explored, Box<Problem>> {
    let election = Election {
        members,
        evils,
        planted,
    };
    explore(&election, 3_000_000)
}

#[test]
fn planted_mistakes_are_found() {
    let lapses = Evils {
        lapses: 1,
        ..NO_EVIL
    };
    let writes = Evils {
        lapses: 1,
        writes: 2,
        ..NO_EVIL
    };
    let lost = Evils { lost: 1, ..NO_EVIL };
    let two = "two lead at one time";
    let works = "a lease is given back while its holder works";
    let no_end = "no end can be reached";
    for (planted, evils, what) in [
        (Planted::CountsFromTheAnswer, lapses, two),
        (Planted::IgnoresItsClock, lapses, two),
        (Planted::ReleasesBeforeItIsDone, writes, works),
        (Planted::ReleasesWhateverThereIs, lost, works),
        (Planted::HearsOfValuesOnly, NO_EVIL, no_end),
        (Planted::HearsOfNoPlace, NO_EVIL, no_end),
        (Planted::EpochsBeginAnew, NO_EVIL, "an epoch does not rise"),
        (
            Planted::SinkTakesAll,
            writes,
            "a sink takes a write after one of a later term",
        ),
    ] {
        match search(2, evils, planted) {
            Err(problem) => assert_eq!(problem.what, what, "{planted:?}: {problem}"),
            Ok(explored) => panic!("{planted:?} is not found: {explored:?}"),
        }
    }
}

/// With `LOCKGATE_EXPLORE_LONG`, larger worlds too, which take minutes.
#[test]
fn every_rule_holds_in_every_state() {
    let evils = |crashes, lost, lapses, slow, writes| Evils {
        crashes,
        lost,
        lapses,
        slow,
        writes,
    };
    let short = [
        (2, evils(0, 0, 0, 0, 0)),
        (2, evils(1, 0, 0, 0, 0)),
        (2, evils(0, 1, 0, 0, 0)),
        (2, evils(0, 0, 1, 0, 2)),
        (2, evils(0, 0, 1, 1, 0)),
    ];
    let long = [
        (2, evils(1, 1, 1, 1, 1)),
        (2, evils(0, 2, 1, 0, 0)),
        (2, evils(0, 0, 2, 0, 2)),
        (3, evils(0, 0, 0, 0, 0)),
        (3, evils(1, 0, 0, 0, 0)),
    ];
    let long = long
        .into_iter()
        .filter(|_| std::env::var_os("LOCKGATE_EXPLORE_LONG").is_some());
    for (members, evils) in short.into_iter().chain(long) {
        let began = std::time::Instant::now();
        match search(members, evils, Planted::Nothing) {
            Ok(explored) => println!("{members} {evils:?}: {explored:?} {:?}", began.elapsed()),
            Err(problem) => panic!("{members} {evils:?}: {problem}"),
        }
    }
}

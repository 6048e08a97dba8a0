//! Messages whose bytes are moved forward in the log.

use lockgate_core::{Level, Location, Position};

use super::harness::{Run, check};
use crate::{Copies, Effect, EngineCommand, LiveRange, MachineLimits, Reply, StoredMessage};

/// The messages in the run's records, with their locations.
fn stored(run: &Run) -> Vec<(Location, Box<StoredMessage>)> {
    let mut found = Vec::new();
    for (position, effects) in &run.log {
        for (part, effect) in (0..).zip(effects) {
            if let Effect::Accepted(stored) | Effect::Compacted(stored) = effect {
                let position = *position;
                found.push((Location { position, part }, stored.clone()));
            }
        }
    }
    found
}

fn compaction(from: Location, message: Box<StoredMessage>) -> EngineCommand {
    EngineCommand::Compact {
        copies: Box::new(Copies::of_one(from.part, message)),
        from: from.position,
    }
}

fn compact(run: &mut Run, (from, message): (Location, Box<StoredMessage>)) -> bool {
    let before = run.log.len();
    let command = compaction(from, message);
    assert!(matches!(run.give(&command), Ok(Reply::Done)));
    run.check_invariants("compact");
    run.log.len() > before
}

#[test]
fn a_message_is_compacted_from_where_it_lives_and_only_once() {
    let mut run = check("queue q keyed\n send q key=a\n send q key=a");
    let all = stored(&run);
    assert_eq!(all.len(), 2);
    assert!(compact(&mut run, all[0].clone()));
    assert!(!compact(&mut run, all[0].clone()), "it has left");
    let moved = stored(&run).pop().expect("the compacted one");
    assert!(
        compact(&mut run, moved),
        "a compacted record can be moved again"
    );
    run.check_recovery();
}

/// Its mark was raised when it was accepted, and may be forgotten since.
#[test]
fn a_compacted_record_of_a_producer_raises_no_mark() {
    let mut run = check("queue q\n open q p => i1\n send q mark=p/7/0/1\n forget q p => done");
    let all = stored(&run);
    assert!(compact(&mut run, all[0].clone()));
    run.lines("producers q => nothing\n wait 1ms\n openings q => 0");
    run.check_recovery();
}

#[test]
fn compacting_asks_for_no_sync() {
    let run = check("queue q keyed\n send q key=a");
    let (from, message) = stored(&run).remove(0);
    let decision = run.machine.decide(&compaction(from, message), run.now);
    assert_eq!(decision.level, Level::Process);
    assert_eq!(decision.rests_on, None);
}

#[test]
fn a_moved_message_is_found_by_its_id() {
    let mut run = check(
        "queue dead keyed
         queue q keyed dlq=dead/1
         send q key=a
         receive q 1
         reject q 1",
    );
    let first = stored(&run).remove(0);
    let (q, dead) = (run.describe("q").id, run.describe("dead").id);
    assert_eq!(first.1.queue, q);
    assert_eq!(run.machine.location(q, first.1.sequence), None);
    assert_eq!(run.machine.location(dead, first.1.sequence), Some(first.0));
    let frozen = run.machine.freeze();
    let place = Some((dead, first.1.sequence));
    assert!(compact(&mut run, first.clone()));
    assert_eq!(frozen.place_of(first.1.id, first.0), place);
    assert_eq!(run.machine.freeze().place_of(first.1.id, first.0), None);
    let (at, now) = stored(&run).pop().expect("the compacted one");
    assert_eq!((now.queue, now.id), (dead, first.1.id));
    assert_eq!(run.machine.location(dead, now.sequence), Some(at));
    run.check_recovery();
}

#[test]
fn purged_messages_count_until_they_are_freed() {
    let mut run = Run::with_limits(MachineLimits {
        range_bits: 63,
        ..MachineLimits::default()
    });
    run.lines("queue q keyed\n send q key=a\n send q key=b\n send q key=b");
    let alive = |run: &Run| run.machine.live_in(Position(5)).messages;
    assert_eq!(alive(&run), 3);
    run.lines("purge q");
    assert_eq!(alive(&run), 3);
    run.machine.housekeep(2);
    run.check_invariants("housekeep");
    assert!(alive(&run) < 3);
    while run.machine.housekeep(2).is_unfinished() {}
    assert_eq!(run.machine.live_in(Position(5)), LiveRange::default());
    assert_eq!(run.machine.live_ranges().count(), 0);
}

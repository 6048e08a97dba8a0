//! What becomes of records that come back from the sink.

use super::*;

/// A machine whose spool has these records on disk, and two files: the first has all of them.
fn on_disk(count: u64) -> (World, u64) {
    let mut options = spooled(Persist::Each);
    if let Some(spool) = &mut options.spool {
        spool.when_full = WhenSpoolFull::DropOldest;
    }
    let mut world = World::new(1, options, marked());
    world.calm = true;
    for number in 0..count {
        offer(&mut world, number, AnswerLevel::Delivered);
    }
    let written = world.machine.spool_work(world.now).unwrap().write.len();
    let until = written as u64;
    world.machine.spool_wrote(written, used(until));
    (world, until)
}

fn used(until: u64) -> Used {
    Used {
        bytes: 0,
        oldest: Some((until, 0)),
    }
}

/// All answers of the batches on their way are these.
fn answer_all(world: &mut World, fate: Fate) {
    for (id, messages) in std::mem::take(&mut world.away) {
        let results = messages.iter();
        let results = results.map(|_| Err(TransportError::new(fate, "no")));
        (world.machine).answered(id, results.collect(), world.now, 0);
    }
    world.hear();
    world.check();
}

/// Otherwise the file would stay, and no other could be given up for the rest of an outage.
#[test]
fn what_was_on_its_way_when_its_file_was_given_up_is_dropped_when_it_comes_back() {
    let (mut world, until) = on_disk(3);
    world.send();
    assert!(!world.away.is_empty());
    offer(&mut world, 3, AnswerLevel::Delivered);
    world.machine.spool_work(world.now);
    (world.machine).spool_full(used(until), world.now);
    let mut last = Some(offered(4, AnswerLevel::Delivered));
    (world.machine.offer(&mut last, None, world.now)).unwrap_err();
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 0);
    answer_all(&mut world, Fate::Retry);
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 3);
    assert!(world.machine.spool_floor() >= until, "the file goes");
    world.machine.spool_used(used(until + 1));
    world.machine.offer(&mut last, None, world.now).unwrap();
}

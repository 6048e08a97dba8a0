//! What becomes of records that come back from the sink.

use lockgate_core::{ElectionName, Epoch, coordination::FenceError};

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
    (world.machine).spool_full(used(until), Lack::Bytes, world.now);
    let mut last = Some(offered(4, AnswerLevel::Delivered));
    (world.machine.offer(&mut last, None, world.now)).unwrap_err();
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 0);
    answer_all(&mut world, Fate::Retry);
    assert_eq!(world.machine.figures().dropped(DropReason::Oldest), 3);
    assert!(world.machine.spool_floor() >= until, "the file goes");
    world.machine.spool_used(used(until + 1));
    world.machine.offer(&mut last, None, world.now).unwrap();
}

#[test]
fn nothing_is_dropped_for_a_spool_that_has_failed_or_cannot_open_a_file() {
    let (mut world, until) = on_disk(3);
    offer(&mut world, 3, AnswerLevel::Delivered);
    world.machine.spool_work(world.now);
    (world.machine).spool_full(used(until), Lack::Files, world.now);
    let mut last = Some(offered(4, AnswerLevel::Delivered));
    let refused = world.machine.offer(&mut last, None, world.now);
    let spool = NoRoom {
        full: Full::Spool,
        waits: true,
    };
    assert_eq!(refused, Err(spool));
    world.machine.spool_failed();
    let refused = world.machine.offer(&mut last, None, world.now);
    let failed = NoRoom {
        full: Full::SpoolFailed,
        waits: false,
    };
    assert_eq!(refused, Err(failed));
    assert_eq!(world.machine.figures().dropped_all(), 0);
    world.calm_down();
    assert_eq!(world.queue.taken.len(), 3);
}

/// The first request arrives after the second, which has less: it is known.
#[test]
fn a_pack_that_lost_its_last_record_is_known_as_the_one_it_was() {
    let options = ProducerOptions {
        batch_bytes: 1_000,
        ..packing(options())
    };
    for lost in [vec![15], vec![13, 14, 15]] {
        let mut world = World::new(1, options.clone(), marked());
        world.calm = true;
        for number in 12..16 {
            let mut offered = offered(number, AnswerLevel::Delivered);
            offered.message.key = Some(key(0));
            offered.expires = lost.contains(&number).then_some((5, wall(5)));
            world.accepted.insert(number);
            world.parts.insert(number, (Some(key(0)), 0));
            (world.machine.offer(&mut Some(offered), None, world.now)).unwrap();
        }
        world.send();
        let first = world.away[0].1.clone();
        assert_eq!((world.away.len(), first.len()), (1, 1));
        answer_all(&mut world, Fate::Unknown);
        world.now += 1_000;
        world.machine.expire(world.now);
        assert_eq!(
            world.machine.figures().dropped(DropReason::Expired),
            lost.len() as u64
        );
        world.send();
        world.answer();
        for message in &first {
            let late = world.queue.known.accept(message.clone()).unwrap();
            assert!(late.duplicate, "{lost:?}");
        }
        world.calm_down();
        world.judge();
    }
}

/// Else packs fall apart just when the sink is overrun.
#[test]
fn records_of_a_pack_that_the_sink_did_not_take_go_together_again() {
    let options = ProducerOptions {
        buffer_bytes: 1 << 20,
        batch_bytes: 1_000,
        ..packing(options())
    };
    let mut can = unmarked();
    can.unique_ids = false;
    let mut world = World::new(1, options, can);
    world.calm = true;
    let numbers: Vec<u64> = (0..).filter(|it| !is_refused(*it)).take(20).collect();
    for number in numbers {
        offer(&mut world, number, AnswerLevel::Delivered);
    }
    world.send();
    let (id, messages) = world.away.remove(0);
    let failed = messages[0].clone();
    assert!(pack::is_pack(&failed));
    let results = (0..).zip(&messages).map(|(at, message)| match at {
        0 => Err(TransportError::new(Fate::Retry, "busy")),
        _ => world.queue.take(message),
    });
    let results = results.collect();
    world.machine.answered(id, results, world.now, 0);
    while !world.away.is_empty() {
        world.answer();
    }
    world.now += 1_000;
    world.send();
    let again = world.away.iter().flat_map(|(_, messages)| messages);
    assert!(again.clone().any(|it| it.body == failed.body), "{again:?}");
}

/// Before the first send, or while another batch is on its way: what became of that is not known.
#[test]
fn who_waits_is_told_when_the_term_of_the_sink_is_over() {
    let deposed = || TransportError::from(deposed());
    let mut world = World::new(1, options(), marked());
    offer(&mut world, 0, AnswerLevel::Delivered);
    assert!(world.machine.take_open(world.now));
    world.machine.opened(Err(deposed()), world.now, 0);
    world.hear();
    assert!(is_fenced(&world, 0, false));
    assert!(!world.machine.take_open(world.now + 100_000));
    assert!(world.machine.is_stuck());

    let mut world = World::new(1, options(), marked());
    world.calm = true;
    for number in 0..5 {
        offer(&mut world, number, AnswerLevel::Delivered);
    }
    world.send();
    assert_eq!(world.away.len(), 2);
    let (id, messages) = world.away.remove(0);
    let results = messages.iter().map(|_| Err(deposed())).collect();
    world.machine.answered(id, results, world.now, 0);
    world.hear();
    for (_, other) in &world.away {
        assert!(other.iter().all(|it| is_fenced(&world, number(it), true)));
    }
    assert!(
        messages
            .iter()
            .all(|it| is_fenced(&world, number(it), false))
    );
    world.answer();
    world.check();
}

fn deposed() -> FenceError {
    FenceError::Deposed {
        election: ElectionName::new("reports").unwrap(),
        epoch: Epoch(1),
        newest: Epoch(2),
    }
}

fn is_fenced(world: &World, number: u64, may_be_there: bool) -> bool {
    matches!(&world.told[&number][..], [Told::Dropped(it)]
        if it.reason == DropReason::Fenced && it.may_be_there == may_be_there && it.error.is_some())
}

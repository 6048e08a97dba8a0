//! What an earlier opening has left, beside what comes now.

use super::*;

/// At most so many a second are sent of what was left.
const RATE: u32 = 10;

fn paced(persist: Persist) -> ProducerOptions {
    let mut options = spooled(persist);
    if let Some(spool) = &mut options.spool {
        spool.replay_rate = NonZeroU32::new(RATE);
    }
    options
}

/// A process that has left these records, with their keys, and another one that has opened its spool. None of them is one
/// that the sink refuses.
fn with_backlog(options: ProducerOptions, can: SinkCapabilities, keys: &[u64]) -> World {
    let mut world = World::new(1, options, can);
    world.calm = true;
    for of in keys {
        offer_next(&mut world, Some(*of));
        world.spool();
    }
    world.crash();
    assert_eq!(world.machine.pending(), keys.len() as u64);
    world
}

/// Offers the next record that the sink does not refuse. Returns its number.
fn offer_next(world: &mut World, of: Option<u64>) -> u64 {
    offer_as(world, of, AnswerLevel::Durable)
}

fn offer_as(world: &mut World, of: Option<u64>, level: AnswerLevel) -> u64 {
    let number = (world.next..).find(|it| !is_refused(*it)).unwrap();
    world.next = number + 1;
    let mut offered = offered(number, level);
    offered.message.key = of.map(key);
    let parts = (offered.message.key.clone(), 0);
    world.parts.insert(number, parts);
    world.accepted.insert(number);
    (world.machine.offer(&mut Some(offered), None, world.now)).unwrap();
    number
}

/// Everything happens that can happen without time.
fn settle(world: &mut World) {
    loop {
        let before = (world.log.len(), world.queue.taken.len());
        world.machine.catch_up(world.now, wall(world.now));
        world.send();
        while !world.away.is_empty() {
            world.answer();
        }
        world.spool();
        world.hear();
        world.check();
        if before == (world.log.len(), world.queue.taken.len()) {
            return;
        }
    }
}

#[test]
fn a_live_record_passes_a_paced_backlog_unless_older_ones_of_its_key_wait() {
    for can in [marked(), unmarked()] {
        let mut world = with_backlog(paced(Persist::Each), can, &[0; 40]);
        settle(&mut world);
        let first = world.queue.taken.len();
        assert!(first <= RATE as usize, "{first} at once");
        let same = offer_next(&mut world, Some(0));
        let other = offer_next(&mut world, Some(1));
        let none = offer_next(&mut world, None);
        settle(&mut world);
        let there = |world: &World, number| world.queue.numbers.contains(&number);
        assert!(there(&world, other) && there(&world, none));
        assert!(!there(&world, same));
        // Its lane has gone on, and it still comes, behind those before it.
        let next = offer_next(&mut world, Some(0));
        world.calm_down();
        assert!(there(&world, same) && there(&world, next));
        world.judge();
        world.judge_durable();
    }
}

#[test]
fn what_was_left_is_sent_at_its_pace_also_after_the_sink_was_away() {
    let mut world = with_backlog(paced(Persist::Each), marked(), &[0; 60]);
    let mut before = 0;
    for second in 0..4 {
        for _ in 0..1_000 {
            world.machine.catch_up(world.now, wall(world.now));
            // The sink is away in the first second, and takes at once what came meanwhile.
            if second > 0 {
                world.send();
                world.answer();
            }
            world.spool();
            world.now += 1;
        }
        let taken = world.queue.taken.len();
        let most = if second == 1 { 2 * RATE } else { RATE };
        assert!(
            taken - before <= most as usize,
            "{second}: {}",
            taken - before
        );
        before = taken;
    }
    assert!(before >= 20, "{before}");
}

/// A key whose last older record is over is as others are, while the rest waits.
#[test]
fn a_key_passes_when_nothing_older_of_it_waits() {
    let mut keys = vec![0; 40];
    keys[0] = 7;
    let mut world = with_backlog(paced(Persist::Overflow), marked(), &keys);
    settle(&mut world);
    assert_eq!(world.queue.taken[0].key, Some(key(7)));
    let number = offer_next(&mut world, Some(7));
    settle(&mut world);
    assert!(world.queue.numbers.contains(&number));
    assert!(world.machine.pending() > 20);
}

/// Live records that find no room go to disk, and come back while the backlog is there.
#[test]
fn live_records_on_disk_do_not_wait_for_the_backlog() {
    let mut world = with_backlog(paced(Persist::Each), marked(), &[0; 40]);
    settle(&mut world);
    let mut numbers = Vec::new();
    for of in 1..=20 {
        world.spool();
        numbers.push(offer_next(&mut world, Some(of)));
    }
    assert!(world.machine.figures().spool_count > 40);
    settle(&mut world);
    for number in numbers {
        assert!(world.queue.numbers.contains(&number), "{number}");
    }
    assert!(world.machine.pending() > 20);
}

/// Each record that is over behind one that is not makes the list longer of those that are over.
#[test]
fn live_records_wait_when_too_many_have_passed() {
    let mut world = with_backlog(paced(Persist::Each), marked(), &[0; 40]);
    let mut passed = 0;
    for _ in 0..40 {
        offer_next(&mut world, Some(0));
        let number = offer_next(&mut world, Some(1));
        settle(&mut world);
        passed += u32::from(world.queue.numbers.contains(&number));
    }
    assert!((3..8).contains(&passed), "{passed} passed");
    world.calm_down();
    world.judge();
    world.judge_durable();
}

#[test]
fn a_paced_backlog_and_live_records_keep_every_promise_over_crashes() {
    for persist in [Persist::Each, Persist::Overflow] {
        for can in [marked(), unmarked()] {
            let mut options = paced(persist);
            if let Some(spool) = &mut options.spool {
                spool.replay_rate = NonZeroU32::new(200);
            }
            run(&options, &can, true);
        }
    }
    run(&packing(paced(Persist::Each)), &marked(), true);
}

/// The damage is in records of both streams; those in memory are there.
#[test]
fn damage_costs_what_is_on_disk_only() {
    let mut world = with_backlog(paced(Persist::Each), marked(), &[0; 4]);
    let from = world.machine.spool_work(world.now).unwrap();
    let load = from.load.unwrap();
    let count = from.write.len();
    world.log.extend(from.write);
    world.machine.spool_wrote(count, Used::default());
    // In memory, and on disk.
    let number = offer_next(&mut world, Some(1));
    let work = world.machine.spool_work(world.now).unwrap();
    let count = work.write.len();
    world.log.extend(work.write);
    world.machine.spool_wrote(count, Used::default());
    let unreadable = (load.from..world.log.len() as u64).collect();
    let (next, wall) = (world.log.len() as u64, wall(world.now));
    (world.machine).spool_loaded(Vec::new(), next, unreadable, world.now, wall);
    world.check();
    assert_eq!(world.machine.figures().dropped(DropReason::Unreadable), 4);
    assert_eq!(world.machine.pending(), 1);
    settle(&mut world);
    assert!(world.queue.numbers.contains(&number));
    assert_eq!(world.machine.pending(), 0);
}

/// The sink takes everything but records of that key.
fn answer_but(world: &mut World, of: u64) {
    for (id, messages) in std::mem::take(&mut world.away) {
        let take = |message: &Message| match message.key == Some(key(of)) {
            true => Err(TransportError::new(Fate::Retry, "busy")),
            false => world.queue.take(message),
        };
        let results = messages.iter().map(take).collect();
        world.machine.answered(id, results, world.now, 0);
    }
}

/// Half of the memory is for each, so one that stands still costs the other nothing.
#[test]
fn a_backlog_that_the_sink_does_not_take_leaves_live_records_their_memory() {
    let mut world = with_backlog(spooled(Persist::Each), marked(), &[0; 40]);
    for _ in 0..10 {
        world.spool();
    }
    assert!((3..=4).contains(&world.machine.figures().memory_count));
    for _ in 0..50 {
        let number = offer_next(&mut world, Some(1));
        while !world.queue.numbers.contains(&number) {
            world.spool();
            world.machine.catch_up(world.now, wall(world.now));
            world.send();
            answer_but(&mut world, 0);
            world.check();
            world.now += 10;
            assert!(world.now < 100_000, "{number} waits");
        }
    }
    world.calm_down();
    world.judge();
}

/// What is being read has its room before it comes.
#[test]
fn a_read_that_takes_long_has_room_when_it_ends() {
    let mut world = with_backlog(spooled(Persist::Overflow), marked(), &[0]);
    world.spool();
    // Some in memory, and some on disk.
    for _ in 0..12 {
        offer_next(&mut world, Some(1));
        world.spool();
    }
    while world.machine.figures().memory_count > 1 {
        world.machine.catch_up(world.now, wall(world.now));
        world.send();
        answer_but(&mut world, 0);
        world.now += 10;
    }
    let load = world.machine.spool_work(world.now).unwrap().load.unwrap();
    assert_eq!(load.stream, Stream::Live);
    for _ in 0..6 {
        offer_as(&mut world, Some(0), AnswerLevel::Accepted);
    }
    let in_memory = world.machine.figures().memory_count;
    assert!(
        in_memory + load.count as u64 <= 8,
        "{in_memory} and {load:?}"
    );
}

/// Else those that are as long as a file of messages would come each second, for as long as the backlog is there.
#[test]
fn checkpoints_have_an_eighth_of_the_bytes_of_what_is_over() {
    let mut options = paced(Persist::Each);
    if let Some(spool) = &mut options.spool {
        spool.replay_rate = NonZeroU32::new(1);
    }
    let mut world = with_backlog(options, marked(), &[0; 40]);
    let from = world.log.len();
    for _ in 0..30 {
        offer_next(&mut world, Some(0));
        offer_next(&mut world, Some(1));
        settle(&mut world);
        world.now += 1_000;
    }
    let (mut count, mut stretches) = (0, 0);
    for staged in &world.log[from..] {
        if let Staged::Checkpoint(it) = staged {
            (count, stretches) = (count + 1, stretches + it.done.above().count());
        }
    }
    let over = world.queue.taken.iter();
    let over: usize = over.map(message_len).sum();
    assert!(count > 3 && stretches > 8, "{count}, {stretches}");
    assert!(8 * 16 * stretches <= over, "{stretches}, {over} bytes");
    world.calm_down();
    world.judge();
    world.judge_durable();
}

/// What has no place in a checkpoint is sent again after a crash.
#[test]
fn there_are_no_more_stretches_than_a_checkpoint_has_room_for() {
    let mut options = paced(Persist::Each);
    if let Some(spool) = &mut options.spool {
        // A record has 192 bytes at most, and 32 of them are for stretches.
        spool.file_bytes = (8 << 10) + 192;
    }
    let mut world = with_backlog(options, marked(), &[0; 40]);
    let mut most = 0;
    for _ in 0..10 {
        offer_next(&mut world, Some(0));
        offer_next(&mut world, Some(1));
        settle(&mut world);
        let spool = world.machine.spool.as_ref().unwrap();
        most = most.max(spool.done.stretches());
    }
    assert_eq!(most, 2);
}

/// As many as are sent in a second: nothing else would come, until the sink takes them.
#[test]
fn a_key_that_the_sink_does_not_take_does_not_stop_a_paced_backlog() {
    for can in [marked(), unmarked()] {
        let mut options = paced(Persist::Each);
        options.buffer_bytes *= 2;
        if let Some(spool) = &mut options.spool {
            spool.replay_rate = NonZeroU32::new(3);
        }
        // None of the others shares its lane.
        let lane = |of: u64| (key_hash(&key(of)) >> 32) % u64::from(ProducerMark::LANES);
        let others: Vec<u64> = (1..).filter(|of| lane(*of) != lane(0)).take(19).collect();
        let keys = [&[0, others[0], 0, 0], &others[1..]].concat();
        let mut world = with_backlog(options, can, &keys);
        for _ in 0..3_000 {
            world.spool();
            world.machine.catch_up(world.now, wall(world.now));
            world.send();
            answer_but(&mut world, 0);
            world.check();
            world.now += 10;
        }
        assert_eq!(world.queue.taken.len(), others.len());
        world.calm_down();
        world.judge();
        world.judge_durable();
    }
}

/// What is dropped may still come to the sink, and then what is newer must not be there before it.
#[test]
fn a_key_stays_in_the_backlog_with_what_was_dropped_and_may_come() {
    let cases = [
        (DropReason::Expired, false, false),
        (DropReason::Expired, true, true),
        (DropReason::Oldest, false, true),
    ];
    for (reason, may_be_there, stays) in cases {
        let mut world = with_backlog(paced(Persist::Each), marked(), &[7, 0, 0]);
        world.spool();
        let (place, record) = world.machine.records.iter_mut().next().unwrap();
        assert_eq!(record.message.key, Some(key(7)));
        record.may_be_there = may_be_there;
        world.machine.drop_record(place, reason, None);
        let has =
            |world: &World| (world.machine.backlog.as_ref()).is_some_and(|it| it.has(&key(7)));
        assert_eq!(has(&world), stays, "{reason:?}");
        while world.machine.pending() > 0 {
            settle(&mut world);
            world.now += 100;
            assert!(world.now < 10_000);
        }
        let number = offer_next(&mut world, Some(7));
        assert!(!has(&world), "the backlog is over");
        world.calm_down();
        assert!(world.queue.numbers.contains(&number));
    }
}

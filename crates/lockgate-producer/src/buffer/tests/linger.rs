//! How long records wait for others to go with.

use super::*;

/// A machine that has one batch on its way, after one that took so long.
fn after(took: Millis, most: Duration) -> World {
    let options = ProducerOptions {
        linger: Linger::Adaptive(most),
        batches_in_flight: 4,
        buffer_count: 100,
        batch_bytes: 100_000,
        ..options()
    };
    let mut world = World::new(1, options, unmarked());
    world.calm = true;
    offer(&mut world, 0, AnswerLevel::Delivered);
    world.send();
    world.now += took;
    for (id, messages) in std::mem::take(&mut world.away) {
        let results = messages.iter().map(|it| world.queue.take(it));
        world.machine.answered(id, results.collect(), world.now, 0);
    }
    offer(&mut world, 1, AnswerLevel::Delivered);
    world.send();
    assert_eq!(
        world.away.len(),
        1,
        "nothing is on its way, so nothing is waited for"
    );
    world
}

/// When a record leaves that comes now, beside a batch that is on its way.
fn lingers(took: Millis, most: Duration) -> Millis {
    let mut world = after(took, most);
    let began = world.now;
    offer(&mut world, 2, AnswerLevel::Delivered);
    loop {
        world.send();
        if world.away.len() > 1 {
            return world.now - began;
        }
        world.now += 1;
        assert!(world.now - began < 10_000, "it never leaves");
    }
}

/// A slow sink gets fuller batches: four may be on their way, so one of them is due each quarter of the time that one takes.
#[test]
fn a_record_waits_as_long_as_the_sink_is_slow() {
    let most = Duration::from_secs(1);
    assert_eq!(lingers(80, most), 20);
    assert_eq!(lingers(400, most), 100);
    assert_eq!(lingers(0, most), 0);
    assert_eq!(lingers(400, Duration::from_millis(30)), 30);
}

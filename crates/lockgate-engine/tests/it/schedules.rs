//! Schedules of a real engine over a log in memory, with a manual clock.

use std::sync::Arc;

use lockgate_core::{CatchUp, Clock, Level, Message, Overlap, ScheduleName, Timing, WallTime};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_machine::{
    Command, DescribeSchedule, PutSchedule, Query, QueueSettings, ScheduleDescription,
    ScheduleSpec, ScheduleTo, SettleAction, TypedQuery as _,
};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::support::{Shard, create, local_log, name, receive, settle};

const MINUTE: u64 = 60_000;

fn schedule(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn every(period: u64) -> ScheduleSpec {
    let timing = Timing::Every { period, from: None };
    ScheduleSpec::new(timing, ScheduleTo::Queue(name("q")), Message::new("tick"))
}

fn start(disk: &FaultyDisk, clock: &ManualClock) -> Engine {
    let log = local_log(disk);
    Engine::start(log, Arc::new(clock.clone()), EngineOptions::default())
        .unwrap()
        .0
}

fn pass(engine: &Engine, clock: &ManualClock, millis: u64) {
    clock.advance(millis);
    engine.clock_changed();
}

async fn describe(engine: &Engine, what: &str) -> ScheduleDescription {
    let schedule = schedule(what);
    engine.query(DescribeSchedule { schedule }).await.unwrap()
}

/// Waits until the schedule has fired or missed so many times.
async fn until_counted(engine: &Engine, what: &str, count: u64) -> ScheduleDescription {
    loop {
        let shown = describe(engine, what).await;
        if shown.counts.fired + shown.counts.missed >= count {
            return shown;
        }
        tokio::task::yield_now().await;
    }
}

/// The times for which the messages of the queue are, in the order in which they come.
async fn times(engine: &Engine, count: usize) -> Vec<String> {
    let mut times = Vec::new();
    while times.len() < count {
        let wait = std::time::Duration::from_secs(20);
        let received = engine
            .receive(receive("q", 100), wait)
            .await
            .unwrap()
            .keep();
        for one in received {
            let headers = &one.stored.message.headers;
            let time = headers
                .iter()
                .find(|it| &*it.name == ScheduleSpec::HEADER_TIME)
                .unwrap();
            times.push(String::from_utf8(time.value.to_vec()).unwrap());
            let ack = settle(one.delivery.token, SettleAction::Ack);
            engine.submit(ack).await.unwrap();
        }
    }
    times
}

async fn made(disk: &FaultyDisk, clock: &ManualClock) -> Engine {
    let engine = start(disk, clock);
    engine
        .submit(create("q", QueueSettings::default()))
        .await
        .unwrap();
    engine
}

fn clock() -> ManualClock {
    ManualClock::new(WallTime(1_795_248_000_000))
}

#[tokio::test]
async fn a_schedule_goes_on_in_a_new_life() {
    for (catch_up, fired) in [
        // The time of now is not missed.
        (CatchUp::Skip, vec!["08:05", "08:06"]),
        (CatchUp::Once, vec!["08:05", "08:06"]),
        (
            CatchUp::All,
            vec!["08:02", "08:03", "08:04", "08:05", "08:06"],
        ),
    ] {
        let (disk, clock) = (FaultyDisk::new(), clock());
        let engine = made(&disk, &clock).await;
        let spec = ScheduleSpec {
            catch_up,
            ..every(MINUTE)
        };
        engine
            .put_schedule(schedule("s"), spec, None)
            .await
            .unwrap();
        pass(&engine, &clock, MINUTE);
        assert_eq!(times(&engine, 1).await, ["2026-11-21T08:01:00.000Z"]);
        engine.shutdown().await;
        // Away for four minutes and a half.
        clock.advance(4 * MINUTE + MINUTE / 2);
        let engine = start(&disk, &clock);
        // Of the times up to 08:05.
        until_counted(&engine, "s", 5).await;
        pass(&engine, &clock, MINUTE / 2);
        let came = times(&engine, fired.len()).await;
        let came: Vec<&str> = came.iter().map(|time| &time[11..16]).collect();
        assert_eq!(came, fired, "{catch_up:?}");
        let shown = describe(&engine, "s").await;
        assert_eq!(shown.counts.fired + shown.counts.missed, 6, "{catch_up:?}");
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn a_clock_that_steps_fires_nothing_early_and_nothing_twice() {
    let (disk, clock) = (FaultyDisk::new(), clock());
    let engine = made(&disk, &clock).await;
    engine
        .put_schedule(schedule("s"), every(MINUTE), None)
        .await
        .unwrap();
    pass(&engine, &clock, MINUTE);
    times(&engine, 1).await;
    let before = clock.wall();
    clock.set_wall(WallTime(before.0 - 10 * MINUTE));
    engine.clock_changed();
    pass(&engine, &clock, 5 * MINUTE);
    assert_eq!(describe(&engine, "s").await.counts.fired, 1);
    pass(&engine, &clock, 6 * MINUTE);
    let shown = until_counted(&engine, "s", 2).await;
    assert_eq!(shown.counts.fired, 2);
    assert!(clock.wall() > before);
    engine.shutdown().await;
}

#[tokio::test]
async fn many_due_schedules_fire_in_order_and_in_bounded_steps() {
    let (disk, clock) = (FaultyDisk::new(), clock());
    let engine = made(&disk, &clock).await;
    let now = clock.wall();
    let count = 300_u64;
    for number in 0..count {
        // In another order than that of their names.
        let at = now.plus(1_000 + (count - number));
        let to = ScheduleTo::Queue(name("q"));
        let spec = ScheduleSpec::new(Timing::At(at), to, Message::new("once"));
        let put = engine.put_schedule(schedule(&format!("s{number:03}")), spec, None);
        put.await.unwrap();
    }
    let groups = engine.metrics().groups;
    pass(&engine, &clock, 2_000);
    let came = times(&engine, 300).await;
    assert!(came.is_sorted(), "{came:?}");
    assert!(engine.metrics().groups >= groups + count / 64);
    engine.shutdown().await;
}

/// Each group takes the next of its missed times, without a wait in between.
#[test]
fn one_that_is_late_catches_up_without_a_pause() {
    let clock = clock();
    let (mut shard, _) = Shard::start(FaultyDisk::new(), clock.clone(), &EngineOptions::default());
    shard.run(create("q", QueueSettings::default())).unwrap();
    let spec = ScheduleSpec {
        catch_up: CatchUp::All,
        ..every(1_000)
    };
    let put = PutSchedule {
        name: schedule("late"),
        spec: Arc::new(spec),
        next: Some(clock.wall().plus(1_000)),
        generation: None,
    };
    shard.run(Command::from(put)).unwrap();
    clock.advance(3_600 * 1_000);
    shard.group([]);
    while shard.driver.is_behind() {
        shard.group([]);
    }
    let schedule = schedule("late");
    let shown = Query::from(DescribeSchedule { schedule });
    let shown = shard.driver.machine().query(&shown, shard.now()).unwrap();
    let shown = DescribeSchedule::reply(shown).unwrap();
    assert_eq!(shown.counts.fired, 3_600);
}

#[tokio::test]
async fn at_level_disk_a_message_comes_when_it_is_durable() {
    let (disk, clock) = (FaultyDisk::new(), clock());
    let engine = start(&disk, &clock);
    let settings = QueueSettings {
        level: Level::Disk,
        ..QueueSettings::default()
    };
    engine.submit(create("q", settings)).await.unwrap();
    let spec = ScheduleSpec {
        overlap: Overlap::Queue,
        ..every(MINUTE)
    };
    engine
        .put_schedule(schedule("s"), spec, None)
        .await
        .unwrap();
    pass(&engine, &clock, MINUTE);
    // Nobody waits for the record but this receive.
    let wait = std::time::Duration::from_secs(20);
    let received = engine.receive(receive("q", 1), wait).await.unwrap().keep();
    assert_eq!(received.len(), 1);
    // The message is in flight.
    pass(&engine, &clock, MINUTE);
    while describe(&engine, "s").await.waits_for.is_none() {
        tokio::task::yield_now().await;
    }
    let ack = settle(received[0].delivery.token, SettleAction::Ack);
    engine.submit(ack).await.unwrap();
    assert_eq!(times(&engine, 1).await, ["2026-11-21T08:02:00.000Z"]);
    engine.shutdown().await;
}

//! The number of a shard: written down with the first term, kept, and in all that is given out.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use lockgate_core::{MessageId, ShardId};
use lockgate_engine::{Driver, Engine, EngineError, EngineOptions, StartError, restore, try_start};
use lockgate_machine::{QueueSettings, Rejection, Reply, SettleAction, Settled};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::support::{Shard, beginning, create, local_log, receive, send, settle, text};

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

fn options(number: u16) -> EngineOptions {
    EngineOptions {
        shard: shard(number),
        ..EngineOptions::default()
    }
}

fn start(disk: &FaultyDisk, number: u16) -> Result<Driver<u64>, StartError> {
    let clock = ManualClock::default();
    let log = local_log(disk);
    Driver::recover(log, &options(number), || beginning(&clock)).map(|(driver, _)| driver)
}

fn sent(reply: Reply) -> MessageId {
    match reply {
        Reply::Sent(sent) => sent.id,
        other => panic!("{other:?}"),
    }
}

/// A start under that number is refused, and the folder is as it was.
fn check_refused(disk: &FaultyDisk, held: u16, given: u16) {
    let before = disk.operations().writes;
    let refusals = [start(disk, given).map(drop).unwrap_err(), {
        let clock = ManualClock::default();
        let mut log = local_log(disk);
        let snapshots = log.snapshots();
        try_start(&mut log, &*snapshots, &options(given), &beginning(&clock))
            .map(drop)
            .unwrap_err()
    }];
    for refused in refusals {
        assert_eq!(
            refused.to_string(),
            format!(
                "the log is that of shard {held}, and it was opened as shard {given}: open it as \
                 shard {held}, or open the log of shard {given}"
            )
        );
    }
    assert_eq!(disk.operations().writes, before);
}

#[test]
fn a_log_is_refused_under_another_number() {
    let (mut first, report) = Shard::start(FaultyDisk::new(), ManualClock::default(), &options(5));
    assert_eq!(report.term.shard, shard(5));
    first.run(create("q", QueueSettings::default())).unwrap();
    let id = sent(first.run(send("q", text("a"))).unwrap());
    assert_eq!(id.shard(), shard(5));
    let disk = first.disk.clone();
    drop(first);
    check_refused(&disk, 5, 0);
    check_refused(&disk, 5, 6);

    assert_eq!(start(&disk, 5).unwrap().term().shard, shard(5));
}

#[test]
fn a_restored_shard_keeps_its_number_unless_told_otherwise() {
    let (mut origin, _) = Shard::start(FaultyDisk::new(), ManualClock::default(), &options(5));
    origin.run(create("q", QueueSettings::default())).unwrap();
    let first = sent(origin.run(send("q", text("a"))).unwrap());
    let second = sent(origin.run(send("q", text("b"))).unwrap());
    let leased = origin.receive_now("q", 1).remove(0);
    assert_eq!(leased.id, first);
    let now = origin.now();
    let mut backup = Vec::new();
    origin.driver.backup(now, &mut backup).unwrap();

    for (told, number) in [(None, 5), (Some(5), 5), (Some(9), 9)] {
        let disk = FaultyDisk::new();
        let log = local_log(&disk);
        let report = restore(&mut &*backup, log, told.map(shard)).unwrap();
        assert_eq!((report.shard, report.messages), (shard(number), 2));
        // Here only the snapshot tells.
        check_refused(&disk, number, 0);
        let (mut restored, report) = Shard::start(disk, origin.clock.clone(), &options(number));
        assert!(report.is_clean());
        assert_eq!(report.term.shard, shard(number));
        let third = sent(restored.run(send("q", text("c"))).unwrap());
        assert_eq!(third.shard(), shard(number));
        let ids = restored
            .receive_now("q", 9)
            .iter()
            .map(|it| it.id)
            .collect::<Vec<_>>();
        assert_eq!(ids, [second, third], "messages keep their ids");
        // A lease of the backup is settled under the number that it was given under.
        let settled = restored.run(settle(leased.token, SettleAction::Ack));
        if number == 5 {
            assert!(matches!(settled, Ok(Reply::Settled(Settled::Done))));
        } else {
            let (given, own) = (shard(5), shard(number));
            assert_eq!(settled.unwrap_err(), Rejection::OtherShard { given, own });
        }
    }
}

/// Two engines that differ in nothing but the number, down to the randomness of their terms.
#[tokio::test]
async fn two_shards_of_one_process_never_give_out_the_same_id() {
    let mut ids = BTreeSet::new();
    let mut shards = Vec::new();
    for number in [0, 1] {
        let (mut shard, _) =
            Shard::start(FaultyDisk::new(), ManualClock::default(), &options(number));
        for queue in ["q", "r"] {
            shard.run(create(queue, QueueSettings::default())).unwrap();
            for _ in 0..50 {
                let id = sent(shard.run(send(queue, text("a"))).unwrap());
                assert!(ids.insert(id), "{id} was given out twice");
            }
        }
        shards.push(shard);
    }
    let [one, two] = [shards[0].driver.term(), shards[1].driver.term()];
    assert_eq!((one.epoch, one.incarnation), (two.epoch, two.incarnation));

    // The same with threads, each for itself.
    let mut engines = Vec::new();
    for number in [2, 3] {
        let log = local_log(&FaultyDisk::new());
        let clock = Arc::new(ManualClock::default());
        let (engine, _) = Engine::start(log, clock, options(number)).unwrap();
        let created = create("q", QueueSettings::default());
        engine.submit(created).await.unwrap();
        engines.push(engine);
    }
    for _ in 0..50 {
        for (engine, number) in engines.iter().zip([2, 3]) {
            let id = sent(engine.submit(send("q", text("a"))).await.unwrap());
            assert_eq!(id.shard(), shard(number));
            assert!(ids.insert(id), "{id} was given out twice");
        }
    }
    // A token is taken by the shard that gave it, and by no other.
    let batch = engines[0].receive(receive("q", 1), Duration::ZERO);
    let token = batch.await.unwrap().keep().remove(0).delivery.token;
    let ack = settle(token, SettleAction::Ack);
    match engines[1].submit(ack.clone()).await {
        Err(EngineError::Rejected(Rejection::OtherShard { given, own })) => {
            assert_eq!((given, own), (shard(2), shard(3)));
        }
        other => panic!("{other:?}"),
    }
    let settled = engines[0].submit(ack).await.unwrap();
    assert!(matches!(settled, Reply::Settled(Settled::Done)));
    for engine in engines {
        engine.shutdown().await;
    }
}

//! Settles and sends, all or nothing.

use lockgate_core::{HolderName, Key, Message};

use super::harness::{Run, check, name};
use crate::{
    Command, CreateQueue, Effect, QueueSettings, Receive, Rejection, Reply, SendMessage, Settle,
    SettleAction, Transact,
};

#[test]
fn a_transaction_happens_whole_as_one_record() {
    check(
        "
        queue q keyed
        queue r keyed
        send q key=a
        receive q 1                     => 1
        records                         => 5
        transact ack q 1; send r key=a; send r key=b  => #1 #2
        records                         => 6
        counts q                        => ready 0, in flight 0, delayed 0
        receive r 9                     => 1 2
        ",
    );
}

#[test]
fn one_stale_token_or_refused_send_refuses_all() {
    check(
        "
        queue q keyed
        queue r keyed
        send q key=a
        send q key=b
        receive q 2                     => 1 2
        ack q 2
        records                         => 7
        transact ack q 1; ack q 2; send r key=a   => refused at 1: stale Gone
        transact ack q 1; ack q 1                 => refused at 1: stale Gone
        transact ack q 1; send r key=a; send r    => refused at 1: KeyRequired
        records                         => 7
        current q 1                     => yes
        counts r                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn its_parts_see_each_other() {
    check(
        "
        queue q keyed messages=1
        send q key=a
        send q key=a                    => refused QuotaExceeded
        receive q 1                     => 1
        // what it settles makes room for what it sends, once
        transact ack q 1; send q key=a; send q key=a  => refused at 1: QuotaExceeded
        transact ack q 1; send q key=a  => #2
        // an id sent twice in it is sent once
        queue r
        receive q 1                     => 2
        transact ack q 2; send r id=x; send r; send r id=x => #1 #2 #1 duplicate
        totals r                        => accepted 2, duplicates 1
        ",
    );
}

#[test]
fn a_strict_prefix_may_be_settled_in_one() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=a
        send q key=a
        receive q 4                     => 1 2 3 4
        transact ack q 2; ack q 1       => refused at 0: stale OutOfOrder
        transact ack q 1; ack q 2; nack q 3          => done
        receive q 4                     => 3/2 4
        transact nack q 3; ack q 4      => refused at 1: stale OutOfOrder
        transact ack q 3; ack q 4       => done
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

/// A record can name 2^16 messages. One settle may give a whole batch back, so a transaction with
/// an allowed number of parts may still touch more.
#[test]
fn it_touches_no_more_messages_than_a_record_can_name() {
    const BATCH: u16 = 1000;
    let mut run = Run::new();
    let create = CreateQueue {
        name: name("q"),
        settings: QueueSettings {
            keyed: true,
            ..QueueSettings::default()
        },
        annotations: std::collections::BTreeMap::new(),
        tags: std::collections::BTreeMap::new(),
    };
    run.give(&Command::CreateQueue(Box::new(create))).unwrap();
    let send = |key: u32| SendMessage {
        queue: name("q"),
        message: Message {
            key: Some(Key::new(&format!("k{key}")).unwrap()),
            ..Message::default()
        },
    };
    let mut settles = Vec::new();
    for key in 0..=u32::from(u16::MAX / BATCH) {
        for _ in 0..BATCH {
            run.give(&Command::Send(Box::new(send(key)))).unwrap();
        }
        let receive = Command::Receive(Receive {
            queue: name("q"),
            max: BATCH,
            key_max: None,
            lease: None,
            holder: HolderName::new("h").unwrap(),
        });
        let Reply::Received(batch) = run.give(&receive).unwrap() else {
            panic!("a receive is answered with leases");
        };
        assert_eq!(batch.len(), usize::from(BATCH));
        settles.push(Settle {
            token: batch[0].token,
            action: SettleAction::Nack {
                delay: 0,
                reason: None,
            },
        });
    }
    let mut transact = |settles: &[Settle]| {
        run.give(&Command::Transact(Transact {
            settles: settles.to_vec(),
            states: Vec::new(),
            sends: vec![send(0)],
            publishes: Vec::new(),
        }))
    };
    let too_many = transact(&settles);
    assert!(matches!(too_many, Err(Rejection::OutOfRange { .. })));
    let all_but_one = transact(&settles[1..]);
    assert!(matches!(all_but_one, Ok(Reply::Transacted { .. })));
}

#[test]
fn a_record_of_more_effects_than_any_command_makes_is_folded() {
    let mut run = Run::new();
    let advanced = Effect::Advanced {
        now: run.now,
        budget: 1,
    };
    let record = vec![advanced; usize::from(u16::MAX) + 2];
    run.append(record.into());
    assert_eq!(run.machine.effects_ignored(), 0);
    run.check_recovery();
}

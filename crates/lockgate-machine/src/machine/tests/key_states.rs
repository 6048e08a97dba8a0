//! The states of keys: who may write them, what a lease shows, and what outlives what.

use bytes::Bytes;
use lockgate_core::{
    HolderName, Key, KeyStateWrite, Message, PutRecord, RECORD_BYTES_MAX, RecordName, RecordsError,
    Replaces,
};

use super::harness::{Run, check, name};
use crate::{
    ChangeKeyState, Command, CreateQueue, MachineLimits, QueueSettings, Receive, Rejection, Reply,
    SendMessage,
};

#[test]
fn a_state_is_written_with_the_settle_and_comes_with_the_next_lease() {
    check(
        "
        queue q keyed
        queue r keyed
        send q key=a
        send q key=a
        send q key=b
        receive q 1                           => 1
        records                               => 7
        transact ack q 1; state q 1 none one; send r key=x  => v1 #1
        records                               => 8
        state q a                             => {v1 one}
        receive q 9                           => 3 2{v1 one}
        transact ack q 2; state q 2 v1 two    => v2
        transact ack q 3; state q 3 none -    => none
        state q b                             => none
        send q key=a
        receive q 1                           => 4{v2 two}
        transact ack q 4; state q 4 v2 -      => none
        state q a                             => none
        send q key=a
        receive q 1                           => 5
        ",
    );
}

#[test]
fn an_answer_has_the_state_of_a_key_once_and_counts_its_bytes() {
    let mut run = check(
        "
        queue q keyed strict
        set-state q a none one                => v1
        set-state q b none two                => v1
        send q key=a
        send q key=a
        send q key=b
        receive q 9                           => 1{v1 one} 2 3{v1 two}
        ",
    );
    // Each key has a small message; its state is what fills the answer.
    for key in 0..100 {
        let key = Key::new(&format!("large-{key}")).unwrap();
        give_state(&mut run, &key, RECORD_BYTES_MAX).unwrap();
        let send = SendMessage {
            queue: name("q"),
            message: Message::new("x").with_key(key),
        };
        run.give(&Command::Send(Box::new(send))).unwrap();
    }
    let receive = Command::Receive(Receive {
        queue: name("q"),
        max: 1_000,
        key_max: None,
        lease: None,
        holder: HolderName::new("h").unwrap(),
    });
    let Ok(Reply::Received(deliveries)) = run.give(&receive) else {
        panic!("a receive is answered with leases");
    };
    let bytes_max = usize::try_from(Receive::BYTES_MAX).unwrap();
    assert_eq!(deliveries.len(), bytes_max / RECORD_BYTES_MAX);
}

fn give_state(run: &mut Run, key: &Key, bytes: usize) -> Result<Reply, Rejection> {
    let change = ChangeKeyState {
        queue: name("q"),
        key: key.clone(),
        write: KeyStateWrite {
            replaces: Replaces::Any,
            value: Some(Bytes::from(vec![b'x'; bytes])),
        },
    };
    run.give(&Command::ChangeKeyState(Box::new(change)))
}

#[test]
fn only_a_current_lease_writes_it() {
    check(
        "
        queue q keyed
        send q key=a
        receive q 1 by=ann lease=1s           => 1
        wait 1s
        // the lease is over, and then another holder has the key
        transact state q 1 none x             => refused state at 0: stale Ended
        receive q 1 by=bob                    => 1/2
        transact state q 1/1 none x           => refused state at 0: stale Superseded
        transact state q 1/2 none one         => v1
        transact ack q 1/2; state q 1/2 v1 two  => v2
        transact state q 1/2 v2 x             => refused state at 0: stale Gone
        state q a                             => {v2 two}
        totals q                              => accepted 1, acknowledged 1, leased 2, leases ended 1, stale settles 3
        ",
    );
}

#[test]
fn a_batch_writes_it_with_its_prefix() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=a
        receive q 3                           => 1 2 3
        transact ack q 1; ack q 2; state q 2 none one  => v1
        transact ack q 3; state q 3 v1 two    => v2
        state q a                             => {v2 two}
        ",
    );
}

#[test]
fn a_write_of_another_version_refuses_the_whole_transaction() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=b
        receive q 2                           => 1 2
        set-state q a none one                => v1
        records                               => 6
        transact ack q 1; ack q 2; state q 1 none x; send q key=c  => refused: it is v1
        transact ack q 1; state q 1 v2 x      => refused: it is v1
        transact ack q 2; state q 2 v1 x      => refused: it is none
        transact ack q 1; ack q 1; state q 1 v1 x  => refused at 1: stale Gone
        transact state q 1 v1 x; state q 1 v1 y  => refused KeyStateTwice
        records                               => 6
        current q 1                           => yes
        state q a                             => {v1 one}
        // a write that takes any version still needs the lease
        transact ack q 1; state q 1 any two; ack q 2; state q 2 any -  => v2 none
        counts q                              => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn a_holder_may_write_it_and_keep_the_lease() {
    check(
        "
        queue q keyed
        send q key=a
        receive q 1 lease=10s                 => 1
        wait 5s
        transact extend q 1 10s; state q 1 none half  => v1
        wait 9s
        current q 1                           => yes
        transact nack q 1; state q 1 v1 more  => v2
        receive q 1                           => 1/2{v2 more}
        ",
    );
}

#[test]
fn an_operator_raises_the_version_so_that_the_holder_learns_of_it() {
    check(
        "
        queue q keyed
        send q key=a
        set-state q a none one                => v1
        receive q 1                           => 1{v1 one}
        set-state q a v1 fixed                => v2
        set-state q a v1 late                 => refused: it is v2
        transact ack q 1; state q 1 v1 mine   => refused: it is v2
        current q 1                           => yes
        set-state q a v2 -                    => none
        set-state q a v2 -                    => refused: it is none
        set-state q a any -                   => none
        transact ack q 1; state q 1 v2 mine   => refused: it is none
        transact ack q 1; state q 1 none mine => v3
        ",
    );
}

#[test]
fn no_version_of_a_key_comes_twice() {
    check(
        "
        queue q keyed
        set-state q a none x                  => v1
        set-state q a v1 x                    => v2
        set-state q a v2 x                    => v3
        set-state q a v3 -                    => none
        set-state q b none x                  => v4
        restart kill
        set-state q a none x                  => v4
        set-state q b v4 -                    => none
        restart kill
        set-state q c none x                  => v5
        ",
    );
}

#[test]
fn it_outlives_messages_purges_and_restarts_but_not_its_queue() {
    let mut run = check(
        "
        queue q keyed retention=60s
        send q key=a
        set-state q a none one                => v1
        set-state q b none two                => v1
        states q                              => 2, 520 bytes
        purge q                               => dropped 1
        restart power
        housekeep
        send q key=a
        wait 2min
        counts q                              => ready 0, in flight 0, delayed 0
        state q a                             => {v1 one}
        key q a                               => NoMessage
        key q c                               => refused KeyNotFound
        drop q a                              => refused KeyNotFound
        delete q
        state q a                             => refused QueueNotFound
        queue q keyed
        state q a                             => none
        states q                              => 0, 0 bytes
        housekeep
        send q key=a
        receive q 1                           => 1
        ",
    );
    assert_eq!(run.machine.record_counts().state_bytes, 0);
    // Steps free a few at a time, and a deletion frees none by itself.
    for key in 0..100 {
        give_state(&mut run, &Key::new(&format!("{key}")).unwrap(), 1).unwrap();
    }
    run.lines("delete q");
    let mut steps = 0;
    while run.machine.housekeep(10).is_unfinished() {
        steps += 1;
    }
    assert!((9..20).contains(&steps), "{steps}");
}

#[test]
fn they_are_listed_page_by_page_in_the_order_of_keys() {
    check(
        "
        queue q keyed
        queue r keyed
        list-states q 2                       =>
        set-state q b none two                => v1
        set-state q a/2 none one              => v1
        set-state q a/1 none one              => v1
        set-state q a none three              => v1
        set-state r a none x                  => v1
        list-states q 9                       => a{v1 5 bytes} a/1{v1 3 bytes} a/2{v1 3 bytes} b{v1 3 bytes}
        list-states q 2                       => a{v1 5 bytes} a/1{v1 3 bytes} | a/2{v1 3 bytes} b{v1 3 bytes}
        list-states q 1 a/                    => a/1{v1 3 bytes} | a/2{v1 3 bytes}
        list-states q 1 c                     =>
        set-state q a/1 v1 -                  => none
        set-state q a v1 four                 => v2
        list-states q 9 a                     => a{v2 4 bytes} a/2{v1 3 bytes}
        list-states q 0                       => refused OutOfRange
        list-states q 1001                    => refused OutOfRange
        list-states x 1                       => refused QueueNotFound
        queue u
        list-states u 1                       => refused KeyStateNotTaken
        restart power
        list-states q 1                       => a{v2 4 bytes} | a/2{v1 3 bytes} | b{v1 3 bytes}
        ",
    );
}

#[test]
fn only_keys_of_keyed_queues_have_one() {
    check(
        "
        queue q
        send q group=a
        receive q 1                           => 1
        set-state q a any x                   => refused KeyStateNotTaken
        state q a                             => refused KeyStateNotTaken
        transact ack q 1; state q 1 any x     => refused KeyStateNotTaken
        current q 1                           => yes
        ",
    );
}

#[test]
fn states_count_to_the_quota_of_bytes() {
    check(
        "
        // 256 bytes of each state beside key and value
        queue q keyed bytes=600
        send q key=a size=50
        set-state q a none 12345              => v1
        states q                              => 1, 262 bytes
        send q key=a size=289                 => refused QuotaExceeded
        set-state q b none 123456789012345678901234567890123  => refused QuotaExceeded
        set-state q b none 1                  => v1
        receive q 1                           => 1{v1 12345}
        // what is settled makes room in the same step, once
        transact state q 1 v1 123456789012345678901234567890123456789  => refused QuotaExceeded
        transact ack q 1; state q 1 v1 123456789012345678901234567890123456789  => v2
        states q                              => 2, 554 bytes
        // what makes room is never refused
        change q bytes=100
        set-state q a v2 123456               => v3
        set-state q a v3 1234567              => refused QuotaExceeded
        set-state q a v3 -                    => none
        ",
    );
}

#[test]
fn states_and_records_stay_within_their_memory() {
    let mut run = Run::with_limits(MachineLimits {
        record_bytes_max: 1_500,
        ..MachineLimits::default()
    });
    run.lines("queue q keyed");
    let keys = ["a", "b", "c"].map(|key| Key::new(key).unwrap());
    give_state(&mut run, &keys[0], 243).unwrap();
    give_state(&mut run, &keys[1], 243).unwrap();
    assert_eq!(run.machine.record_counts().state_bytes, 1_000);
    // Three quarters at most, though `state_bytes_max` is more.
    let refused = give_state(&mut run, &keys[2], 0);
    let full = Rejection::KeyStatesFull { max: 1_125 };
    assert_eq!(refused.unwrap_err(), full);
    let put = PutRecord {
        name: RecordName::new("leader").unwrap(),
        value: Bytes::from(vec![b'x'; 238]),
        replaces: None,
        epoch: None,
    };
    run.give(&Command::PutRecord(Box::new(put))).unwrap();
    let full = |run: &mut Run, key, bytes| {
        let refused = give_state(run, key, bytes);
        let full = Rejection::Record(RecordsError::Full { max: 1_500 });
        assert_eq!(refused.unwrap_err(), full);
    };
    full(&mut run, &keys[0], 244);
    full(&mut run, &keys[2], 0);
    give_state(&mut run, &keys[0], 242).unwrap();
    run.check_recovery();
}

/// Elections need records, however many states there are.
#[test]
fn states_leave_memory_for_records() {
    let mut run = Run::with_limits(MachineLimits {
        record_bytes_max: 1_500,
        state_bytes_max: 1_000,
        ..MachineLimits::default()
    });
    run.lines("queue q keyed");
    let keys = ["a", "b", "c"].map(|key| Key::new(key).unwrap());
    give_state(&mut run, &keys[0], 243).unwrap();
    give_state(&mut run, &keys[1], 243).unwrap();
    let full = Rejection::KeyStatesFull { max: 1_000 };
    for (key, bytes) in [(&keys[1], 244), (&keys[2], 0)] {
        let refused = give_state(&mut run, key, bytes);
        assert_eq!(refused.unwrap_err(), full);
    }
    // Nor in one transaction.
    let most = "x".repeat(485);
    run.lines(&format!(
        "
        send q key=a
        send q key=b
        receive q 9
        transact state q 1 v1 y; state q 2 v1 {most}    => v2 v2
        transact state q 1 v2 yy; state q 2 v2 {most}   => refused KeyStatesFull
        "
    ));
    let put = PutRecord {
        name: RecordName::new("leader").unwrap(),
        value: Bytes::from(vec![b'x'; 200]),
        replaces: None,
        epoch: None,
    };
    run.give(&Command::PutRecord(Box::new(put))).unwrap();
    run.check_recovery();
}

#[test]
fn a_value_has_a_limit() {
    let mut run = check("queue q keyed");
    let key = Key::new("a").unwrap();
    give_state(&mut run, &key, RECORD_BYTES_MAX).unwrap();
    let refused = give_state(&mut run, &key, RECORD_BYTES_MAX + 1);
    assert!(matches!(refused, Err(Rejection::OutOfRange { .. })));
}

/// A power cut must not take back what an answer shows.
#[test]
fn answers_wait_for_the_records_they_rest_on() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=b level=disk
        syncing off
        set-state q a none one                => v1
        answer                                => disk
        receive q 1                           => 1{v1 one}
        answer                                => disk, rests on record 4
        set-state q c none one                => v1
        set-state q c v1 -                    => none
        // this one changes nothing, and rests on the drop before it
        set-state q c any -                   => none
        answer                                => process, rests on record 7
        sync
        set-state q c any -                   => none
        answer                                => process
        ",
    );
}

/// What a record of the log holds must not keep the whole record in memory.
#[test]
fn a_value_is_a_copy() {
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
    let record = Bytes::from(vec![b'x'; 1 << 20]);
    let key = Key::new("a").unwrap();
    let change = ChangeKeyState {
        queue: name("q"),
        key: key.clone(),
        write: KeyStateWrite {
            replaces: Replaces::Any,
            value: Some(record.slice(10..20)),
        },
    };
    run.give(&Command::ChangeKeyState(Box::new(change)))
        .unwrap();
    let view = run.machine.state_view();
    let state = &view.queues[&name("q")].states[&key];
    assert!(!record.as_ptr_range().contains(&state.value.as_ptr()));
}

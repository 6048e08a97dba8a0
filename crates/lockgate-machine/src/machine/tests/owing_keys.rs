//! The bound of how many keys may owe something or be held.

use super::harness::{Run, check};
use crate::MachineLimits;

fn with_room_for(owing_keys_max: u64) -> Run {
    Run::with_limits(MachineLimits {
        owing_keys_max,
        ..MachineLimits::default()
    })
}

#[test]
fn a_key_too_many_waits_in_its_place_until_another_one_has_paid() {
    let mut run = with_room_for(2);
    run.lines(
        "
        queue q keyed strict rate=2/s_per_key
        queue free keyed strict
        send q key=a
        send q key=b
        send q key=c
        send q key=d
        send q key=c
        send q key=a
        send free key=a
        // Two of one receive are as many as may owe something.
        receive q 9                     => 1 6 2
        limited q                       => OwingKeys for 0 ms, 0 keys limited, 2 owing
        leasable q                      => no
        key q c                         => Limit { limit: OwingKeys, of_key: false, remaining: None }
        key q d                         => Limit { limit: OwingKeys, of_key: false, remaining: None }
        receive q 9                     => nothing
        // No other limit is touched.
        receive free 9                  => 1
        ack q 1
        ack q 6
        ack q 2
        woken q
        // b owes one start, a two.
        wait 499ms
        receive q 9                     => nothing
        woken                           => nothing
        wait 1ms
        woken                           => q
        receive q 1                     => 3
        limited q                       => OwingKeys for 0 ms, 0 keys limited, 2 owing
        wait 500ms
        woken                           => q
        // c has a message in flight, and d has kept its turn.
        receive q 9                     => 4
        ack q 3
        receive q 9                     => 5
        limited q                       => free, 0 keys limited, 2 owing
        ",
    );
    run.check_invariants("all");
    run.check_recovery();
}

#[test]
fn a_key_too_many_that_leaves_lets_those_behind_it_have_their_turn() {
    for leaves in ["drop q c", "park q c", "cancel q 3", "reschedule q 3 +1h"] {
        let mut run = with_room_for(1);
        run.lines(&format!(
            "
            queue q keyed rate=2/s_per_key
            send q key=a
            send q key=a
            receive q 1                 => 1
            send q key=c
            // a owes one start, has another one, and stands behind c.
            ack q 1
            receive q 9                 => nothing
            woken
            {leaves}
            woken                       => q
            receive q 9                 => 2
            "
        ));
        run.check_recovery();
    }
}

#[test]
fn a_hold_of_a_key_too_many_is_refused_and_changes_nothing() {
    let mut run = with_room_for(1);
    let full = "refused ShardFull";
    run.lines(&format!(
        "
        queue q keyed strict
        send q key=a
        send q key=b
        hold q 30s a                    => held for 30000 ms
        hold q 30s b                    => {full}
        hold q 40s a                    => held for 40000 ms
        hold q 0s b                     => free
        receive q 9                     => 2
        hold-key q 2 30s                => {full}
        transact hold-key q 2 30s       => {full}
        // As a whole, and without a hold, it can be settled.
        hold-queue q 2 30s              => done
        hold q 0s                       => free
        hold q 0s a                     => free
        receive q 9                     => 2 1
        hold-key q 2 30s                => done
        hold-key q 1 30s                => {full}
        "
    ));
    run.check_recovery();
}

/// Who waits for room is woken whatever makes it.
#[test]
fn room_comes_by_a_change_of_limits_the_end_of_a_hold_and_a_deleted_queue() {
    for (makes_room, woken) in [
        ("change p rate=1000/s_per_key", "p q"),
        ("hold p 0s x", "p q"),
        ("delete p", "q"),
    ] {
        let mut run = with_room_for(1);
        let owes = match makes_room.starts_with("hold") {
            true => "hold p 30s x",
            false => "receive p 1",
        };
        run.lines(&format!(
            "
            queue p keyed rate=1/h_per_key
            queue q keyed rate=1/h_per_key
            send p key=x
            send q key=a
            {owes}
            receive q 1                 => nothing
            woken
            {makes_room}
            wait 10ms
            woken                       => {woken}
            receive q 1                 => 1
            "
        ));
    }
}

#[test]
fn messages_without_a_group_are_one_group_for_limits_holds_and_explanations() {
    check(
        "
        queue q unkeyed rate=1/m_per_key
        queue k keyed
        send q
        send q
        send q group=a
        receive q 9                     => 1 3
        ack q 1
        ack q 3
        key q -                         => Limit { limit: Rate, of_key: true, remaining: Some(60000) }
        hold q 90s -                    => held for 90000 ms
        key q -                         => Limit { limit: Held, of_key: true, remaining: Some(90000) }
        limited q                       => free, 1 keys limited, 2 owing
        wait 60s
        receive q 9                     => nothing
        hold q 0s -                     => free
        receive q 9                     => 2
        hold k 1s -                     => refused NoneWithoutKey
        key k -                         => refused NoneWithoutKey
        ",
    );
    check("queue q unkeyed\nkey q - => NoMessage");
}

//! Holds of queues and keys.

use super::harness::check;

#[test]
fn a_held_key_keeps_its_order_and_the_others_move() {
    check(
        "
        queue q keyed sqs
        send q key=a
        send q key=a
        send q key=b
        hold q 30s a                    => held for 30000 ms
        limited q                       => free, 1 keys limited, 1 owing
        key q a                         => Limit { limit: Held, of_key: true, remaining: Some(30000) }
        receive q 9                     => 3
        ack q 3
        wait 29999ms
        receive q 9                     => nothing
        woken q
        wait 1ms
        woken q                         => q
        receive q 9                     => 1 2
        limited q                       => free, 0 keys limited, 0 owing
        ",
    );
}

#[test]
fn a_hold_gets_longer_and_never_shorter_unless_it_is_ended() {
    check(
        "
        queue q keyed
        send q key=a
        hold q 30s a
        hold q 10s a                    => held for 30000 ms
        key q a                         => Limit { limit: Held, of_key: true, remaining: Some(30000) }
        hold q 40s a
        key q a                         => Limit { limit: Held, of_key: true, remaining: Some(40000) }
        receive q 9                     => nothing
        woken q
        hold q 0s a                     => free
        woken q                         => q
        limited q                       => free, 0 keys limited, 0 owing
        receive q 9                     => 1
        // Nothing to end.
        hold q 0s a                     => free
        hold q 0s                       => free
        limited q                       => free, 0 keys limited, 0 owing
        ",
    );
}

#[test]
fn a_queue_can_be_held_as_a_whole() {
    for kind in ["keyed strict", "keyed sqs", "unkeyed"] {
        let key = if kind == "unkeyed" { "group" } else { "key" };
        check(&format!(
            "
            queue q {kind}
            send q {key}=a
            send q {key}=b
            receive q 1                     => 1
            hold q 30s                      => held for 30000 ms
            limited q                       => Held for 30000 ms, 0 keys limited, 0 owing
            leasable q                      => no
            // What is in flight goes on.
            ack q 1                         => done
            receive q 9                     => nothing
            woken q
            wait 30s
            woken q                         => q
            leasable q                      => yes
            receive q 9                     => 2
            hold q 30s
            send q {key}=a
            hold q 0s
            receive q 9                     => 3
            "
        ));
    }
}

#[test]
fn a_group_of_a_queue_without_keys_can_be_held() {
    check(
        "
        queue q unkeyed
        send q group=a
        send q group=b
        send q
        hold q 30s a
        receive q 9                     => 2 3
        wait 29999ms
        receive q 9                     => nothing
        wait 1ms
        receive q 1                     => 1
        ",
    );
}

#[test]
fn a_settle_can_hold_the_key_or_the_queue() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=b
        receive q 2 by=ann              => 1 2
        hold-key q 1 30s                => done
        // The attempt does not count, and nothing but the hold keeps the message back.
        key q a                         => Limit { limit: Held, of_key: true, remaining: Some(30000) }
        counts q                        => ready 3, in flight 0, delayed 0
        ack q 1                         => stale Ended
        hold q 0s a
        receive q 9                     => 3 1 2
        hold-queue q 3 20s              => done
        limited q                       => Held for 20000 ms, 0 keys limited, 0 owing
        wait 20s
        receive q 9                     => 3
        totals q                        => accepted 3, leased 6, stale settles 1
        ",
    );
}

#[test]
fn a_message_without_a_key_holds_its_queue() {
    check(
        "
        queue q unkeyed
        send q
        send q group=a
        receive q 1                     => 1
        hold-key q 1 30s
        limited q                       => Held for 30000 ms, 0 keys limited, 0 owing
        receive q 9                     => nothing
        wait 30s
        receive q 9                     => 2 1
        hold-key q 2 30s
        limited q                       => free, 1 keys limited, 1 owing
        ",
    );
}

#[test]
fn of_two_holds_in_a_transaction_the_longer_one_counts() {
    check(
        "
        queue q unkeyed
        send q
        send q
        receive q 9                     => 1 2
        transact hold-queue q 1 30s; hold-queue q 2 10s
        limited q                       => Held for 30000 ms, 0 keys limited, 0 owing
        ",
    );
}

#[test]
fn holds_survive_a_start_a_purge_and_a_change_of_settings() {
    for start in ["clean", "kill", "power"] {
        check(&format!(
            "
            queue q keyed
            hold q 30s a
            hold q 20s
            purge q
            change q lease=60s
            restart {start}
            send q key=a
            send q key=b
            wait 10s
            limited q                       => Held for 10000 ms, 1 keys limited, 1 owing
            wait 10s
            receive q 9                     => 2
            wait 10s
            receive q 9                     => 1
            "
        ));
    }
    check(
        "
        queue q keyed
        hold q 30s a
        hold q 30s
        delete q
        queue q keyed
        send q key=a
        limited q                       => free, 0 keys limited, 0 owing
        receive q 9                     => 1
        ",
    );
}

#[test]
fn the_time_of_a_hold_is_bounded() {
    check(
        "
        queue q unkeyed
        hold q 366d                     => held for 31622400000 ms
        hold q 367d                     => refused OutOfRange
        hold r 1s                       => refused QueueNotFound
        hold q 0s
        send q
        receive q 1                     => 1
        hold-queue q 1 0s               => refused OutOfRange
        hold-queue q 1 367d             => refused OutOfRange
        hold-queue q 1 366d             => done
        ",
    );
}

#[test]
fn a_hold_is_told_whatever_else_a_key_or_group_waits_for() {
    check(
        "
        queue q keyed
        hold q 30s a
        key q a                         => NoMessage; key held for 30000 ms
        key q b                         => refused KeyNotFound
        hold q 40s
        key q a                         => NoMessage; queue held for 40000 ms
        key q b                         => refused KeyNotFound
        wait 40s
        key q a                         => refused KeyNotFound
        send q key=a
        receive q 1                     => 1
        hold q 30s a
        key q a                         => lease of 1 by somebody for 30000 ms, attempt 1; key held for 30000 ms
        hold q 31s
        key q a                         => lease of 1 by somebody for 30000 ms, attempt 1; queue held for 31000 ms
        hold q 0s
        pause q
        key q a                         => Paused; key held for 30000 ms

        queue u
        hold u 30s a
        key u a                         => NoMessage; key held for 30000 ms
        key u b                         => refused KeyNotFound
        send u group=a
        key u a                         => Limit { limit: Held, of_key: true, remaining: Some(30000) }
        wait 30s
        key u a                         => Nothing
        receive u 1                     => 1
        key u a                         => InFlight
        hold u 30s a
        key u a                         => InFlight; key held for 30000 ms
        send u group=c due=+1min
        hold u 1h
        key u c                         => first due is 2, in 60000 ms; queue held for 3600000 ms
        ",
    );
}

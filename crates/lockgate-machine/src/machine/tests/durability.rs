//! What must be durable before what.

use super::harness::check;

#[test]
fn a_message_is_leasable_when_it_has_reached_its_level() {
    check(
        "
        queue d keyed
        queue p keyed level=process
        queue m keyed level=memory
        woken
        syncing off
        send p key=a
        answer                          => process
        receive p 1                     => 1
        send m key=a
        receive m 1                     => 1
        woken                           => p m
        send d key=a
        answer                          => disk
        leasable d                      => no
        key d a                         => Durability
        receive d 1                     => nothing
        woken                           => nothing
        sync
        woken                           => d
        receive d 1                     => 1
        ",
    );
}

#[test]
fn a_send_may_ask_for_more_than_its_queue_promises_never_for_less() {
    check(
        "
        queue p level=process
        send p level=memory             => refused Level
        send p level=replicated         => refused Level
        syncing off
        send p level=disk               => #1
        answer                          => disk
        // a message that waits for its sync holds the ones behind it up, as in a key
        send p                          => #2
        receive p 9                     => nothing
        sync
        receive p 9                     => 1 2
        ",
    );
}

#[test]
fn a_message_that_is_gone_before_its_sync_harms_nothing() {
    check(
        "
        queue q keyed
        syncing off
        send q key=a                    => #1
        send q key=b                    => #2
        cancel q 1
        send q key=c                    => #3
        purge q
        send q key=d                    => #4
        sync
        housekeep
        receive q 9                     => 4
        ",
    );
}

#[test]
fn a_sync_counts_for_what_was_written_before_it_and_nothing_else() {
    // The second message gets the slot in memory of the first one, which is gone before the sync
    // it waited for.
    check(
        "
        queue q keyed
        syncing off
        records                         => 2
        send q key=a                    => #1
        cancel q 1                      => done
        send q key=b                    => #2
        sync-before 4
        key q b                         => Durability
        receive q 9                     => nothing
        sync-before 5
        receive q 9                     => 2
        ",
    );
}

#[test]
fn answers_rest_on_what_they_follow_from() {
    check(
        "
        queue q keyed lease=10s
        queue u
        send q key=a id=x               => #1
        send q key=a                    => #2
        send u                          => #1
        receive q 1                     => 1
        receive u 1                     => 1
        syncing off
        records                         => 8
        ack q 1                         => done
        answer                          => disk
        // the next message of the key is free only if that ack stays
        receive q 1                     => 2
        answer                          => process, rests on record 8
        // that it is gone may be taken for success
        ack q 1                         => stale Gone
        answer                          => process, rests on record 8
        send q key=z id=y               => #3
        records                         => 11
        send q key=z id=y               => #3 duplicate
        answer                          => process, rests on record 10
        send q key=z id=x               => #1 duplicate
        answer                          => process
        sync
        send q key=z id=y               => #3 duplicate
        answer                          => process
        ",
    );
}

#[test]
fn leases_of_keyed_queues_stay_below_a_synced_lease_bound() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=b
        send q key=c
        send q key=d
        send q key=e
        send q key=f
        syncing off
        records                         => 8
        receive q 1 lease=10s           => 1
        // raises it to 30 s past its end
        answer                          => disk
        receive q 1 lease=30s           => 2
        answer                          => process, rests on record 8
        sync
        receive q 1 lease=30s           => 3
        answer                          => process
        wait 5s
        // longer ones are synced themselves
        receive q 1 lease=31s           => 4
        answer                          => disk
        wait 6s
        receive q 1 lease=30s           => 5
        answer                          => disk
        // what is extended past it, too
        sync
        wait 15s
        extend q 2 30s                  => done
        answer                          => process
        wait 25s
        extend q 2 30s                  => done
        answer                          => disk
        queue p keyed level=process
        send p key=a
        receive p 1                     => 1
        answer                          => process
        ",
    );
}

#[test]
fn after_a_power_cut_a_keyed_queue_waits_for_its_lease_bound() {
    check(
        "
        queue q keyed lease=10s
        queue u
        send q key=a
        send u
        receive q 1                     => 1
        ack q 1
        send q key=b                    => #2
        restart kill
        leasable q                      => yes
        restart power
        leasable q                      => no
        receive q 1                     => nothing
        key q b                         => LeaseBound { remaining: 40000 }
        receive u 1                     => 1
        wait 39999ms
        receive q 1                     => nothing
        woken
        wait 1ms
        woken                           => q
        receive q 1                     => 2
        ",
    );
}

//! Parking, resuming and dropping keys; pausing queues.

use super::harness::check;

#[test]
fn a_parked_key_takes_sends_and_settles_but_gives_no_leases() {
    check(
        "
        queue q keyed sqs
        send q key=a
        send q key=a
        receive q 1                     => 1
        park q a                        => done
        park q a                        => done
        key q a                         => Parked
        send q key=a                    => #3
        ack q 1                         => done
        receive q 9                     => nothing
        resume q a                      => done
        receive q 9                     => 2 3
        resume q a                      => done
        resume q z                      => refused KeyNotFound
        ",
    );
}

#[test]
fn a_key_without_messages_can_be_parked() {
    check(
        "
        queue q keyed
        park q a
        keys q                          => 0, parked 1
        send q key=a                    => #1
        receive q 9                     => nothing
        key q a                         => Parked
        resume q a
        receive q 9                     => 1
        ack q 1
        key q a                         => refused KeyNotFound
        ",
    );
}

#[test]
fn dropping_a_key_leaves_what_is_in_flight() {
    check(
        "
        queue q keyed sqs
        send q key=a
        send q key=a
        send q key=a due=+10s
        send q key=b
        receive q 1                     => 1
        park q a
        drop q a                        => dropped 2
        keys q                          => 2, parked 0
        ack q 1                         => done
        drop q a                        => refused KeyNotFound
        receive q 9                     => 4
        totals q                        => accepted 4, acknowledged 1, leased 2, key dropped 2
        ",
    );
}

#[test]
fn a_key_says_what_it_waits_for() {
    check(
        "
        queue q keyed strict
        send q key=a due=+20s
        send q key=a due=+10s
        key q a                         => first due is 2, in 10000 ms
        cancel q 2
        key q a                         => first due is 1, in 20000 ms
        send q key=a
        send q key=a
        key q a                         => Nothing
        receive q 2 by=ann              => 3 4
        key q a                         => lease of 3 by ann for 30000 ms, attempt 1
        nack q 3 3s
        key q a                         => backoff of 3 for 3000 ms
        pause q
        key q a                         => Paused
        unpause q
        queue f keyed in-flight=1
        send f key=a                    => #1
        send f key=b                    => #2
        send f key=c due=+10s
        key f b                         => Nothing
        receive f 1                     => 1
        // what it waits for itself comes first: that stays when there is room again
        key f a                         => lease of 1 by somebody for 30000 ms, attempt 1
        key f c                         => first due is 3, in 10000 ms
        key f b                         => InFlightFull { max: 1 }
        receive f 1                     => nothing
        ack f 1                         => done
        key f b                         => Nothing
        queue u
        send u group=a
        key u a                         => Nothing
        key u b                         => refused KeyNotFound
        park u a                        => refused KeyNotFound
        drop u a                        => dropped 1
        ",
    );
}

#[test]
fn a_paused_queue_gives_no_leases() {
    check(
        "
        queue q
        send q
        receive q 1                     => 1
        send q
        pause q                         => done
        leasable q                      => no
        receive q 9                     => nothing
        send q                          => #3
        ack q 1                         => done
        woken                           => q
        unpause q                       => done
        woken                           => q
        receive q 9                     => 2 3
        ",
    );
}

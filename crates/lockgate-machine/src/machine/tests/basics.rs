//! The life of a message, keyed and unkeyed.

use super::harness::check;

#[test]
fn a_key_is_served_in_order_one_holder_at_a_time() {
    check(
        "
        queue q keyed
        send q key=a                    => #1
        send q key=a                    => #2
        send q key=b                    => #3
        receive q 1                     => 1
        receive q 1                     => 3
        receive q 1                     => nothing
        ack q 1                         => done
        receive q 10                    => 2
        ack q 1                         => stale Gone
        counts q                        => ready 0, in flight 2, delayed 0
        totals q                        => accepted 3, acknowledged 1, leased 3, stale settles 1
        ",
    );
}

#[test]
fn a_receive_takes_consecutive_messages_of_a_key_before_the_next_key() {
    check(
        "
        queue q keyed sqs
        send q key=a
        send q key=b
        send q key=a
        send q key=a
        receive q 3                     => 1 3 4
        receive q 3                     => 2
        ",
    );
}

#[test]
fn a_lease_that_ends_returns_the_message_to_its_place() {
    check(
        "
        queue q keyed lease=30s
        send q key=a                    => #1
        send q key=a                    => #2
        receive q 1 by=ann              => 1
        key q a                         => lease of 1 by ann for 30000 ms, attempt 1
        wait 29999ms
        receive q 1                     => nothing
        wait 1ms
        woken                           => q
        ack q 1                         => stale Ended
        receive q 1                     => 1/2
        ack q 1/1                       => stale Superseded
        ack q 1                         => done
        receive q 1                     => 2
        ",
    );
}

#[test]
fn a_batch_of_strict_order_is_settled_as_a_prefix() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=a
        send q key=a
        receive q 3                     => 1 2 3
        receive q 1                     => nothing
        ack q 2                         => stale OutOfOrder
        ack q 1                         => done
        // nothing more of the key while something of it is out
        receive q 1                     => nothing
        ack q 2                         => done
        // what is settled otherwise gives the later ones back, uncounted
        nack q 3                        => done
        receive q 9                     => 3/2 4
        nack q 3                        => done
        ack q 4                         => stale Ended
        receive q 9                     => 3/3 4
        ack q 3                         => done
        ack q 4                         => done
        ",
    );
}

#[test]
fn a_whole_strict_batch_returns_when_its_leases_end() {
    check(
        "
        queue q keyed strict lease=10s
        send q key=a
        send q key=a
        receive q 2                     => 1 2
        wait 5s
        // extending one extends the batch
        extend q 2 10s                  => done
        wait 9s
        current q 1                     => yes
        ack q 1                         => done
        wait 1s
        current q 2                     => no
        receive q 2                     => 2/2
        ",
    );
}

#[test]
fn sqs_order_hands_out_again_what_became_visible_in_front() {
    check(
        "
        queue q keyed sqs
        send q key=a
        send q key=a
        send q key=a
        send q key=a
        receive q 3                     => 1 2 3
        // AWS: up to the first that is still invisible, none past it
        nack q 1                        => done
        nack q 2                        => done
        receive q 9                     => 1/2 2/2
        ack q 2                         => done
        nack q 3                        => done
        receive q 9                     => nothing
        ack q 1                         => done
        receive q 9                     => 3/2 4
        ",
    );
}

#[test]
fn unkeyed_queues_lock_nothing() {
    check(
        "
        queue q
        send q
        send q
        send q
        receive q 2                     => 1 2
        receive q 2                     => 3
        ack q 2                         => done
        ack q 3                         => done
        ack q 1                         => done
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

/// Who gives a key wants an order: a queue that keeps none says so, and the other way round.
#[test]
fn a_key_is_for_keyed_queues_and_a_group_for_the_others() {
    check(
        "
        queue q
        send q key=a                    => refused KeyNotTaken
        send q key=a group=a            => refused KeyNotTaken
        send q group=a                  => #1
        queue k keyed
        send k group=a                  => refused GroupNotTaken
        send k key=a group=a            => refused GroupNotTaken
        send k                          => refused KeyRequired
        send k key=a                    => #1
        ",
    );
}

#[test]
fn a_priority_has_a_range_and_changes_no_order() {
    check(
        "
        queue q
        send q                          => #1
        send q priority=9               => #2
        send q priority=10              => refused OutOfRange
        receive q 2                     => 1 2
        ",
    );
}

#[test]
fn groups_take_turns() {
    check(
        "
        queue q
        send q group=noisy
        send q group=noisy
        send q group=noisy
        send q group=noisy
        send q group=quiet
        send q
        receive q 2                     => 1 5
        receive q 9                     => 6 2 3 4
        ",
    );
}

#[test]
fn a_message_that_always_fails_starves_nobody() {
    check(
        "
        queue q
        send q
        send q
        send q
        send q
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 1/2
        nack q 1
        receive q 1                     => 2
        receive q 1                     => 1/3
        nack q 1
        receive q 3                     => 3 1/4 4
        ",
    );
}

#[test]
fn messages_in_flight_are_limited() {
    check(
        "
        queue u in-flight=2
        send u
        send u
        send u
        receive u 9                     => 1 2
        receive u 1                     => refused InFlightFull
        woken                           => u
        ack u 1                         => done
        woken                           => u
        receive u 9                     => 3
        // SQS answers nothing instead of an error
        queue k keyed in-flight=1
        send k key=a
        send k key=b
        receive k 9                     => 1
        leasable k                      => no
        receive k 9                     => nothing
        ack k 1                         => done
        leasable k                      => yes
        receive k 9                     => 2
        ",
    );
}

#[test]
fn numbers_outside_their_range_are_refused() {
    check(
        "
        queue q keyed
        send q key=a
        receive q 0                     => refused OutOfRange
        receive q 1001                  => refused OutOfRange
        receive q 1 lease=13h           => refused OutOfRange
        receive q 1                     => 1
        nack q 1 400d                   => refused OutOfRange
        extend q 1 0s                   => refused OutOfRange
        send q key=a ttl=0s             => refused OutOfRange
        send q                          => refused KeyRequired
        send q key=a size=2000000       => refused MessageTooLarge
        send nowhere key=a              => refused QueueNotFound
        receive nowhere 1               => refused QueueNotFound
        ",
    );
}

#[test]
fn a_quota_refuses_sends_and_nothing_else() {
    check(
        "
        queue q messages=2
        send q
        send q
        send q                          => refused QuotaExceeded
        receive q 1                     => 1
        send q                          => refused QuotaExceeded
        ack q 1                         => done
        send q                          => #3
        queue b bytes=25
        send b size=20
        send b size=6                   => refused QuotaExceeded
        send b size=5                   => #2
        ",
    );
}

#[test]
fn a_receive_takes_no_more_bytes_than_one_answer_should_hold() {
    // 6 MiB each: the third is the first that makes it 16 MiB or more.
    check(
        "
        queue q message-bytes=16777216
        send q size=6291456             => #1
        send q size=6291456             => #2
        send q size=6291456             => #3
        send q size=1                   => #4
        receive q 10                    => 1 2 3
        receive q 10                    => 4
        ",
    );
}

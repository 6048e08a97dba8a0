//! What a token may do, and when it is stale.

use super::harness::check;

#[test]
fn a_stale_token_changes_nothing_and_is_told_why() {
    check(
        "
        queue q keyed lease=10s
        send q key=a
        receive q 1                     => 1
        wait 10s
        nack q 1                        => stale Ended
        extend q 1 5s                   => stale Ended
        reject q 1                      => stale Ended
        give-back q 1                   => stale Ended
        receive q 1                     => 1/2
        ack q 1/1                       => stale Superseded
        extend q 1/1 5s                 => stale Superseded
        counts q                        => ready 0, in flight 1, delayed 0
        ack q 1                         => done
        ack q 1                         => stale Gone
        // giving back is not counted: whoever gives a batch back may be late
        totals q                        => accepted 1, acknowledged 1, leased 2, leases ended 1, stale settles 6
        ",
    );
}

#[test]
fn an_unkeyed_message_may_be_acknowledged_until_it_is_leased_again() {
    check(
        "
        queue q lease=10s
        send q
        send q
        receive q 2                     => 1 2
        wait 10s
        nack q 1                        => stale Ended
        ack q 1                         => done
        receive q 1                     => 2/2
        ack q 2/1                       => stale Superseded
        nack q 2 5s                     => done
        // also while it backs off
        ack q 2                         => done
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn only_a_change_of_visibility_acts_with_an_older_token() {
    check(
        "
        queue q sqs lease=10s
        send q
        receive q 1                     => 1
        wait 10s
        receive q 1                     => 1/2
        nack q 1/1                      => stale Superseded
        nack q 1/1 5s                   => stale Superseded
        extend q 1/1 5s                 => stale Superseded
        receive q 1                     => nothing
        change-visibility q 1/1         => done
        nack q 1/2                      => stale Ended
        extend q 1/2 5s                 => stale Ended
        change-visibility q 1/1 20s     => done
        wait 15s
        receive q 1                     => nothing
        change-visibility q 1/1         => done
        receive q 1                     => 1/3
        ",
    );
}

#[test]
fn a_nack_with_delay_blocks_its_key() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=a
        send q key=b
        receive q 1                     => 1
        nack q 1 5s                     => done
        key q a                         => backoff of 1 for 5000 ms
        counts q                        => ready 2, in flight 1, delayed 0
        receive q 9                     => 3
        wait 4999ms
        receive q 9                     => nothing
        wait 1ms
        woken                           => q
        receive q 9                     => 1/2 2
        ",
    );
}

#[test]
fn a_given_back_lease_does_not_count() {
    check(
        "
        queue q keyed sqs
        send q key=a
        receive q 1                     => 1
        give-back q 1                   => done
        woken                           => q
        receive q 1                     => 1
        nack q 1                        => done
        receive q 1                     => 1/2
        give-back q 1                   => done
        receive q 1                     => 1/2
        queue u
        send u
        receive u 1                     => 1
        give-back u 1                   => done
        // never reached anybody, so nobody may acknowledge it
        ack u 1                         => stale Ended
        receive u 1                     => 1
        give-back u 1
        receive u 1                     => 1
        nack u 1
        receive u 1                     => 1/2
        give-back u 1
        ack u 1                         => stale Ended
        ",
    );
}

#[test]
fn a_strict_batch_given_back_is_whole_again() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=a
        receive q 3                     => 1 2 3
        give-back q 1                   => done
        give-back q 2                   => stale Ended
        give-back q 3                   => stale Ended
        totals q                        => accepted 3, leased 3
        receive q 3                     => 1 2 3
        ",
    );
}

#[test]
fn a_lease_can_be_extended_up_to_twelve_hours() {
    check(
        "
        queue q keyed lease=30s
        send q key=a
        receive q 1                     => 1
        wait 20s
        extend q 1 30s                  => done
        wait 29s
        extend q 1 12h                  => refused OutOfRange
        extend q 1 11h                  => done
        wait 10h
        current q 1                     => yes
        // shorter, too
        extend q 1 1s                   => done
        wait 1s
        receive q 1                     => 1/2
        ",
    );
}

#[test]
fn a_rejected_message_is_dropped_where_there_is_no_dead_letter_queue() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=a
        receive q 1                     => 1
        reject q 1                      => done
        receive q 1                     => 2
        totals q                        => accepted 2, leased 2, rejected 1
        ",
    );
}

#[test]
fn cancelling_and_rescheduling_go_by_id_and_leave_leases_alone() {
    check(
        "
        queue q keyed
        send q key=a
        send q key=a
        send q key=a due=+10s
        cancel q 1                      => done
        cancel q 1                      => refused MessageNotFound
        cancel q 9                      => refused MessageNotFound
        receive q 1                     => 2
        cancel q 2                      => refused MessageInFlight
        reschedule q 2 +5s              => refused MessageInFlight
        // the delayed one sooner, and one that has failed later
        reschedule q 3 +1s              => done
        nack q 2 20s
        reschedule q 2 +3s              => done
        counts q                        => ready 0, in flight 0, delayed 2
        wait 1s
        receive q 9                     => 3
        ack q 3
        wait 2s
        receive q 9                     => 2/2
        ",
    );
}

#[test]
fn a_damaged_message_is_dropped_also_while_leased() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        receive q 2                     => 1 2
        damaged q 1                     => dropped 1
        damaged q 1                     => dropped 0
        ack q 1                         => stale Gone
        ack q 2                         => done
        totals q                        => accepted 2, acknowledged 1, leased 2, stale settles 1, damaged 1
        ",
    );
}

#[test]
fn a_deferred_message_holds_its_key_and_the_attempt_does_not_count() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/2
        send q key=a                    => #1
        send q key=a                    => #2
        receive q 1                     => 1
        defer q 1 5s                    => done
        ack q 1                         => stale Ended
        receive q 9                     => nothing
        wait 4999ms
        receive q 9                     => nothing
        wait 1ms
        // the first attempt still
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 1/2
        defer q 1                       => done
        receive q 1                     => 1/2
        ack q 1                         => done
        receive q 1                     => 2
        ",
    );
}

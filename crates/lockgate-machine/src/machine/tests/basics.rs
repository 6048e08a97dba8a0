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
        receive q 1                     => 1
        wait 29999ms
        receive q 1                     => nothing
        wait 1ms
        ack q 1                         => stale Ended
        receive q 1                     => 1/2
        ack q 1/1                       => stale Superseded
        ack q 1                         => done
        receive q 1                     => 2
        ",
    );
}

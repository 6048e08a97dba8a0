//! Numbers key by key.

use super::harness::check;

#[test]
fn messages_are_numbered_within_their_key_where_the_queue_says_so() {
    check(
        "
        queue q keyed key-sequences=10
        queue plain keyed
        send q key=a
        send q key=b
        send q key=a
        send plain key=a
        key-sequences q                 => a1 b1 a2
        key-sequences plain             => a0
        // also when the key has been empty for long
        receive q 10                    => 1 3 2
        ack q 1
        ack q 2
        ack q 3
        keys q                          => 0, parked 0
        wait 30d
        send q key=a
        key-sequences q                 => a1 b1 a2 a3
        // and when the queue was purged
        purge q
        send q key=a
        key-sequences q                 => a1 b1 a2 a3 a4
        ",
    );
}

#[test]
fn a_message_that_is_not_accepted_takes_no_number() {
    check(
        "
        queue q keyed key-sequences=10 messages=2
        send q key=a id=x               => #1
        send q key=a id=x               => #1 duplicate
        send q key=a                    => #2
        send q key=a                    => refused QuotaExceeded
        receive q 1                     => 1
        ack q 1
        send q key=a                    => #3
        key-sequences q                 => a1 a2 a3
        ",
    );
}

#[test]
fn messages_of_one_transaction_follow_each_other() {
    check(
        "
        queue q keyed key-sequences=1
        transact send q key=a; send q key=a; send q key=b; send q key=a => #1 #2 #3 #4
        key-sequences q                 => a1 a2 b1 a3
        // behind it one key is remembered, the last one
        send q key=b
        key-sequences q                 => a1 a2 b1 a3 b1
        ",
    );
}

#[test]
fn the_key_with_the_oldest_last_message_is_forgotten_first() {
    check(
        "
        queue q keyed key-sequences=2
        send q key=a
        send q key=b
        send q key=a
        send q key=c
        send q key=a
        send q key=b
        key-sequences q                 => a1 b1 a2 c1 a3 b1
        ",
    );
}

#[test]
fn fewer_keys_are_forgotten_step_by_step_and_none_at_once() {
    check(
        "
        queue q keyed key-sequences=10
        send q key=a
        send q key=b
        send q key=c
        send q key=d
        change q keyed key-sequences=1
        send q key=c
        // two were forgotten, one of three is too many still
        send q key=d
        key-sequences q                 => a1 b1 c1 d1 c2 d2
        send q key=c
        key-sequences q                 => a1 b1 c1 d1 c2 d2 c1
        change q keyed key-sequences=0
        send q key=c
        change q keyed key-sequences=1
        send q key=c
        key-sequences q                 => a1 b1 c1 d1 c2 d2 c1 c0 c1
        ",
    );
}

#[test]
fn groups_of_an_unkeyed_queue_are_numbered_too_and_messages_without_one_are_not() {
    check(
        "
        queue q unkeyed key-sequences=10
        send q group=a
        send q
        send q group=a
        key-sequences q                 => a1 0 a2
        ",
    );
}

#[test]
fn what_is_moved_keeps_its_number() {
    check(
        "
        queue dead keyed
        queue q keyed key-sequences=10 dlq=dead/1
        send q key=a
        send q key=a
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 2
        send q key=a
        key-sequences q                 => a1 a2 a3
        key-sequences dead              =>
        ",
    );
}

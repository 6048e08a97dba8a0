//! Unique ids.

use super::harness::check;

#[test]
fn a_duplicate_gets_the_first_answer_until_the_window_ends() {
    check(
        "
        queue q window=5min
        send q id=x                     => #1
        send q id=y                     => #2
        send q id=x                     => #1 duplicate
        receive q 1                     => 1
        // also when the message is gone, and counted from the first send
        ack q 1
        wait 299999ms
        send q id=x                     => #1 duplicate
        unique-ids q                    => 2
        wait 1ms
        send q id=x                     => #3
        totals q                        => accepted 3, duplicates 2, acknowledged 1, leased 1
        ",
    );
}

#[test]
fn ids_are_unique_within_the_queue_or_the_key() {
    check(
        "
        queue q keyed
        send q key=a id=x               => #1
        send q key=b id=x               => #1 duplicate
        queue k keyed scope-key
        send k key=a id=x               => #1
        send k key=b id=x               => #2
        send k key=b id=x               => #2 duplicate
        ",
    );
}

#[test]
fn a_changed_scope_holds_a_minute_later_and_ids_count_as_when_they_were_sent() {
    check(
        "
        queue q keyed
        send q key=a id=x               => #1
        change q scope-key
        send q key=b id=x               => #1 duplicate
        send q key=b id=y               => #2
        send q key=c id=y               => #2 duplicate
        wait 59999ms
        send q key=c id=y               => #2 duplicate
        wait 1ms
        // the new scope holds, and what was sent before is still unique in the queue
        send q key=c id=y               => #2 duplicate
        send q key=a id=z               => #3
        send q key=b id=z               => #4
        send q key=b id=z               => #4 duplicate
        change q scope-queue
        send q key=c id=z               => #5
        send q key=c id=z               => #5 duplicate
        // taken back before it held
        change q scope-key
        send q key=d id=z               => #6
        send q key=d id=z               => #6 duplicate
        change q scope-queue
        wait 1min
        send q key=d id=z               => #6 duplicate
        send q key=e id=w               => #7
        send q key=f id=w               => #7 duplicate
        wait 5min
        send q key=f id=w               => #8
        send q key=e id=w               => #8 duplicate
        unique-ids q                    => 1
        ",
    );
}

#[test]
fn an_id_without_a_group_is_none_of_a_group_when_the_scope_has_changed() {
    check(
        "
        queue q unkeyed
        change q scope-key
        wait 1min
        send q id=x                     => #1
        send q group=g id=x             => #2
        send q group=g id=x             => #2 duplicate
        send q id=x                     => #1 duplicate
        ",
    );
}

#[test]
fn a_window_of_zero_remembers_nothing() {
    check(
        "
        queue q window=0s
        send q id=x                     => #1
        send q id=x                     => #2
        unique-ids q                    => 0
        ",
    );
}

#[test]
fn content_based_queues_want_an_id_on_every_message() {
    check(
        "
        queue q content-based
        send q                          => refused UniqueIdRequired
        send q id=digest                => #1
        ",
    );
}

#[test]
fn a_full_memory_refuses_new_ids_and_forgets_none() {
    check(
        "
        queue q dedup-bytes=127
        send q id=x                     => #1
        send q id=y                     => refused DedupFull
        send q                          => #2
        send q id=x                     => #1 duplicate
        wait 5min
        send q id=y                     => #3
        ",
    );
}

#[test]
fn a_purge_forgets_ids_unless_told_otherwise() {
    check(
        "
        queue q
        send q id=x                     => #1
        purge q                         => dropped 1
        unique-ids q                    => 0
        send q id=x                     => #2
        queue k survives-purge
        send k id=x                     => #1
        purge k                         => dropped 1
        send k id=x                     => #1 duplicate
        wait 5min
        send k id=x                     => #2
        ",
    );
}

#[test]
fn a_shorter_window_is_kept_to_also_beside_older_ids() {
    check(
        "
        queue q window=10min
        send q id=x                     => #1
        change q window=1min
        send q id=y                     => #2
        wait 1min
        send q id=y                     => #3
        send q id=x                     => #1 duplicate
        wait 9min
        send q id=x                     => #4
        ",
    );
}

#[test]
fn a_window_does_not_depend_on_when_time_was_last_noticed() {
    // The send is the first record for an hour: its window counts from now, not from the last
    // record.
    check(
        "
        queue q
        wait 1h
        send q id=x                     => #1
        wait 299s
        send q id=x                     => #1 duplicate
        ",
    );
}

//! Settles and sends, all or nothing.

use super::harness::check;

#[test]
fn a_transaction_happens_whole_as_one_record() {
    check(
        "
        queue q keyed
        queue r keyed
        send q key=a
        receive q 1                     => 1
        records                         => 5
        transact ack q 1; send r key=a; send r key=b  => #1 #2
        records                         => 6
        counts q                        => ready 0, in flight 0, delayed 0
        receive r 9                     => 1 2
        ",
    );
}

#[test]
fn one_stale_token_or_refused_send_refuses_all() {
    check(
        "
        queue q keyed
        queue r keyed
        send q key=a
        send q key=b
        receive q 2                     => 1 2
        ack q 2
        records                         => 7
        transact ack q 1; ack q 2; send r key=a   => refused at 1: stale Gone
        transact ack q 1; ack q 1                 => refused at 1: stale Gone
        transact ack q 1; send r key=a; send r    => refused at 1: KeyRequired
        records                         => 7
        current q 1                     => yes
        counts r                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn its_parts_see_each_other() {
    check(
        "
        queue q keyed messages=1
        send q key=a
        send q key=a                    => refused QuotaExceeded
        receive q 1                     => 1
        // what it settles makes room for what it sends, once
        transact ack q 1; send q key=a; send q key=a  => refused at 1: QuotaExceeded
        transact ack q 1; send q key=a  => #2
        // an id sent twice in it is sent once
        queue r
        receive q 1                     => 2
        transact ack q 2; send r id=x; send r; send r id=x => #1 #2 #1 duplicate
        totals r                        => accepted 2, duplicates 1
        ",
    );
}

#[test]
fn a_strict_prefix_may_be_settled_in_one() {
    check(
        "
        queue q keyed strict
        send q key=a
        send q key=a
        send q key=a
        send q key=a
        receive q 4                     => 1 2 3 4
        transact ack q 2; ack q 1       => refused at 0: stale OutOfOrder
        transact ack q 1; ack q 2; nack q 3          => done
        receive q 4                     => 3/2 4
        transact nack q 3; ack q 4      => refused at 1: stale OutOfOrder
        transact ack q 3; ack q 4       => done
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

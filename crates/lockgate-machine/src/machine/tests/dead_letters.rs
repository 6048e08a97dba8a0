//! The attempt limit, and dead-letter queues.

use super::harness::check;

#[test]
fn after_its_attempts_a_message_is_skipped_when_the_next_lease_would_be_given() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/2
        send q key=a                    => #1
        send q key=a                    => #2
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 1/2
        nack q 1
        counts dead                     => ready 0, in flight 0, delayed 0
        // the key goes on with the same receive
        receive q 1                     => 2
        receive dead 1                  => 1<q#1
        nack dead 1
        // attempts start at zero, and it stays
        receive dead 1                  => 1/2<q#1
        totals q                        => accepted 2, moved out 1, leased 3
        totals dead                     => moved in 1, leased 2
        ",
    );
}

#[test]
fn a_message_is_moved_past_dedup_and_keeps_its_id() {
    let run = check(
        "
        queue dead
        queue q dlq=dead/1
        send q id=x                     => #1
        send dead id=x                  => #1
        receive q 1                     => 1
        nack q 1
        woken                           => q dead
        receive q 1                     => nothing
        woken                           => q
        receive dead 9                  => 1 2<q#1
        send q id=x                     => #1 duplicate
        cancel dead 2                   => refused MessageNotFound
        cancel q 1                      => refused MessageNotFound
        ",
    );
    let dead = &run.machine.state_view().queues[&super::harness::name("dead")];
    let q = run.machine.queue_id(&super::harness::name("q")).unwrap();
    let moved = &dead.messages[&lockgate_core::Sequence(2)];
    assert_eq!((moved.id.queue(), moved.id.sequence().0), (q, 1));
}

#[test]
fn who_held_a_message_of_a_keyed_queue_that_was_moved_is_told_that_the_lease_has_ended() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1
        send q key=a
        receive q 1                     => 1
        nack q 1
        ack q 1                         => stale Ended
        // by the attempt limit
        receive q 1                     => nothing
        ack q 1                         => stale Ended
        extend q 1 5s                   => stale Ended
        // and it comes back under another number
        receive dead 1                  => 1<q#1
        nack dead 1
        move dead back 1                => moved 1, left 0
        ack q 1                         => stale Ended
        ack dead 1                      => stale Ended
        receive q 1                     => 2<dead#1
        ack q 1                         => stale Ended
        nack q 2
        // and goes again
        receive q 1                     => nothing
        ack q 2                         => stale Ended
        ack q 1                         => stale Ended
        receive dead 1                  => 2<q#2
        ack dead 2                      => done
        // now it is done with
        ack q 1                         => stale Gone
        ack q 2                         => stale Gone
        ack dead 2                      => stale Gone
        // by a reject
        send q key=a
        receive q 1                     => 3
        reject q 3                      => done
        ack q 3                         => stale Ended
        cancel dead 3                   => refused MessageNotFound
        purge dead
        ack q 3                         => stale Gone
        // what is dropped is gone, and what is sent instead is another message
        send q key=a
        receive q 1                     => 4
        nack q 4
        cancel q 4                      => done
        send q key=a
        ack q 4                         => stale Gone
        ",
    );
}

#[test]
fn who_held_a_message_is_told_that_the_lease_has_ended_however_often_it_was_moved() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1
        send q key=a
        // there and back, twice
        receive q 1                     => 1
        nack q 1
        receive q 1                     => nothing
        receive dead 1                  => 1<q#1
        nack dead 1
        move dead back 1                => moved 1, left 0
        receive q 1                     => 2<dead#1
        nack q 2
        receive q 1                     => nothing
        receive dead 1                  => 2<q#2
        nack dead 2
        move dead back 1                => moved 1, left 0
        ack q 1                         => stale Ended
        ack dead 1                      => stale Ended
        ack q 2                         => stale Ended
        ack dead 2                      => stale Ended
        // after a restart too
        restart kill
        ack dead 1                      => stale Ended
        ack q 2                         => stale Ended
        receive q 1                     => 3<dead#2
        ack q 3                         => done
        ack q 1                         => stale Gone
        ack dead 1                      => stale Gone
        ack q 2                         => stale Gone
        ",
    );
}

#[test]
fn what_was_moved_out_of_an_unkeyed_queue_is_gone() {
    check(
        "
        queue dead
        queue q dlq=dead/1
        send q
        receive q 1                     => 1
        nack q 1
        receive q 1                     => nothing
        ack q 1                         => stale Gone
        extend q 1 5s                   => stale Gone
        ",
    );
}

#[test]
fn a_rejected_message_goes_to_the_dead_letter_queue_at_once() {
    check(
        "
        queue dead keyed
        queue q keyed strict dlq=dead/9
        send q key=a
        send q key=a
        send q key=a
        receive q 3                     => 1 2 3
        reject q 2                      => done
        // the later one is given back; the earlier one is still out
        ack q 3                         => stale Ended
        receive q 9                     => nothing
        ack q 1                         => done
        receive q 9                     => 3
        receive dead 9                  => 1<q#2
        ",
    );
}

#[test]
fn without_its_dead_letter_queue_a_message_is_delivered_further() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1
        send q key=a
        receive q 1                     => 1
        nack q 1
        delete dead
        receive q 1                     => 1/2
        nack q 1
        // that it is missing stands in no other change's way
        change q lease=20s              => done
        change q dlq=nowhere/3          => refused DeadLetterMissing
        // nor is one of the other kind any
        queue dead
        receive q 1                     => 1/3
        nack q 1
        delete dead
        queue dead keyed
        receive q 1                     => nothing
        receive dead 1                  => 1<q#1
        ",
    );
}

#[test]
fn a_receive_moves_a_bounded_number_and_is_tried_again() {
    let mut script = String::from("queue dead\nqueue q dlq=dead/1\n");
    for _ in 0..100 {
        script += "send q\n";
    }
    script += "receive q 100\n";
    for message in 1..=100 {
        script += &format!("nack q {message}\n");
    }
    script += "
        send q
        woken                           => q
        receive q 1                     => 101
        receive q 1                     => nothing
        woken                           => q dead
        leasable q                      => yes
        receive q 1                     => nothing
        leasable q                      => no
        counts dead                     => ready 100, in flight 0, delayed 0
    ";
    check(&script);
}

#[test]
fn block_tries_for_ever() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1 policy=block
        send q key=a
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 1/2
        nack q 1
        receive q 1                     => 1/3
        reject q 1                      => done
        receive dead 1                  => 1<q#1
        ",
    );
}

#[test]
fn park_freezes_the_key_when_the_last_lease_ends() {
    check(
        "
        queue q keyed policy=park attempts=2 lease=10s
        send q key=a                    => #1
        send q key=a                    => #2
        send q key=b                    => #3
        receive q 1                     => 1
        nack q 1
        keys q                          => 2, parked 0
        receive q 1                     => 3
        ack q 3
        receive q 1                     => 1/2
        nack q 1
        key q a                         => Parked
        keys q                          => 1, parked 1
        send q key=a                    => #4
        receive q 9                     => nothing
        // attempts count from zero again
        resume q a                      => done
        woken                           => q
        receive q 1                     => 1
        nack q 1
        receive q 1                     => 1/2
        // by the end of the lease as well
        wait 10s
        key q a                         => Parked
        resume q a
        receive q 1                     => 1
        ack q 1                         => done
        receive q 9                     => 2 4
        ",
    );
}

#[test]
fn dead_letters_go_back_in_order_as_new_messages() {
    check(
        "
        queue dead
        queue q dlq=dead/1
        queue other
        send q                          => #1
        send q                          => #2
        send q                          => #3
        receive q 2                     => 1 2
        nack q 1
        nack q 2
        receive q 9                     => 3
        counts dead                     => ready 2, in flight 0, delayed 0
        move dead back 1                => moved 1, left 1, next 0 below 3
        move dead back 9                => moved 1, left 0
        // they come behind what was sent since, and have all their attempts again
        send q                          => #6
        receive q 9                     => 4<dead#1 5<dead#2 6
        move dead other 9               => moved 0, left 0
        move q dead 9                   => moved 0, left 0
        ",
    );
}

#[test]
fn a_move_ends_at_a_message_that_has_nowhere_to_go() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1
        send q key=a                    => #1
        receive q 1                     => 1
        nack q 1
        receive q 1                     => nothing
        send dead key=a                 => #2
        send q key=b                    => #2
        move dead back 9                => moved 1, left 1, stuck NoOrigin
        // what is in flight locks its key
        receive dead 1                  => 2
        send dead key=a                 => #3
        move dead q 9                   => moved 0, left 1
        ack dead 2
        delete q
        move dead back 9                => moved 0, left 1, stuck NoOrigin
        move dead dead 9                => refused OwnDeadLetter
        move dead q 9                   => refused QueueNotFound
        move dead back 0                => refused OutOfRange
        ",
    );
}

#[test]
fn a_move_of_one_queues_letters_passes_over_others() {
    check(
        "
        queue dead
        queue other
        queue a dlq=dead/1
        queue b dlq=dead/1
        send dead                       => #1
        send a                          => #1
        send b                          => #1
        send a                          => #2
        receive a 1                     => 1
        reject a 1
        receive b 1                     => 1
        reject b 1
        receive a 1                     => 2
        reject a 2
        move dead of=b,dead 9           => refused OwnDeadLetter
        move dead of=none 9             => refused QueueNotFound
        move dead of=other 9            => moved 0, left 4
        move dead of=a 1                => moved 1, left 3, next 1 below 5
        receive a 9                     => 3<dead#2
        move dead of=b,other 9          => moved 1, left 2
        receive other 9                 => 1<dead#3
        move dead of=a 9                => moved 1, left 1
        receive dead 9                  => 1
        ",
    );
}

/// Whoever repeats the step while there is a next one comes to an end.
#[test]
fn a_move_says_that_nothing_else_can_move_now() {
    check(
        "
        queue dead keyed
        queue q keyed dlq=dead/1
        send q key=a
        send q key=a
        send q key=b
        receive q 1                     => 1
        reject q 1
        receive q 9                     => 3 2
        reject q 2
        reject q 3
        park dead a
        // two are ready, and their key is parked
        move dead back 1                => moved 1, left 2
        resume dead a
        move dead back 1                => moved 1, left 1, next 0 below 4
        receive q 9                     => 4<dead#3 5<dead#1
        reject q 5
        reject q 4
        // they came back after the first step
        move dead back 9 0 4            => moved 1, left 2
        move dead back 9                => moved 2, left 0
        ",
    );
}

#[test]
fn a_move_of_one_queues_letters_goes_on_where_the_step_before_ended() {
    check(
        "
        queue dead
        queue a dlq=dead/1
        send dead                       => #1
        send dead                       => #2
        send a                          => #1
        send a                          => #2
        receive a 2                     => 1 2
        reject a 1
        reject a 2
        send dead                       => #5
        move dead of=a 9 3              => moved 1, left 4
        move dead of=a 9 5              => moved 0, left 4
        receive dead 2                  => 1 2
        // it is in flight: the step begins at the front
        move dead of=a 1 2              => moved 1, left 1, next 2 below 18446744073709551615
        ",
    );
    check(
        "
        queue dead keyed
        queue a keyed dlq=dead/1
        send dead key=x                 => #1
        send a key=x                    => #1
        receive a 1                     => 1
        reject a 1
        send dead key=x                 => #3
        send dead key=y                 => #4
        move dead of=a 9 3              => moved 0, left 4
        receive dead 1                  => 1
        // the key is locked
        move dead of=a 9 3              => moved 0, left 3
        receive dead 1                  => 4
        nack dead 1
        // a message in front may be in flight: the step begins at the front of the key
        move dead of=a 9 3              => moved 1, left 2
        ",
    );
}

#[test]
fn a_move_goes_to_no_origin_but_the_allowed_ones() {
    check(
        "
        queue dead
        queue a dlq=dead/1
        queue b dlq=dead/1
        send a                          => #1
        send b                          => #1
        send a                          => #2
        receive a 1                     => 1
        nack a 1
        receive b 1                     => 1
        nack b 1
        receive a 1                     => 2
        nack a 2
        receive a 1                     => nothing
        receive b 1                     => nothing
        move dead back=b,dead 9         => moved 0, left 3, stuck OriginNotAllowed
        // what is behind it stays too: the order is kept
        move dead back=a 9              => moved 2, left 1, stuck OriginNotAllowed
        receive a 9                     => 3<dead#1 4<dead#2
        // queues that are not there, and the one it is in, are no way out
        move dead back=other,dead 9     => moved 0, left 1, stuck OriginNotAllowed
        move dead back=a,b 9            => moved 1, left 0
        receive b 9                     => 2<dead#3
        ",
    );
}

#[test]
fn a_chain_of_dead_letter_queues_is_gone_back_step_by_step() {
    check(
        "
        queue last
        queue dead dlq=last/1
        queue q dlq=dead/1
        send q                          => #1
        receive q 1                     => 1
        nack q 1
        receive q 1                     => nothing
        receive dead 1                  => 1<q#1
        nack dead 1
        receive dead 1                  => nothing
        move last back 9                => moved 1, left 0
        // it is a dead letter of q again, and not one of the queue it left last
        move dead back 9                => moved 1, left 0
        receive q 1                     => 2<dead#2
        nack q 2
        receive q 1                     => nothing
        move dead back 9                => moved 1, left 0
        // home, it is nobody's
        move q back 9                   => moved 0, left 1, stuck NoOrigin
        ",
    );
}

#[test]
fn a_dead_letter_that_was_moved_elsewhere_still_goes_home() {
    check(
        "
        queue other
        queue last
        queue dead dlq=last/1
        queue q dlq=dead/1
        send q                          => #1
        receive q 1                     => 1
        nack q 1
        receive q 1                     => nothing
        send dead                       => #2
        move dead last 1                => moved 1, left 1, next 0 below 3
        move last back 9                => moved 1, left 0
        receive q 1                     => 2<last#1
        // what was never a dead letter does not become one
        move dead last 1                => moved 1, left 0
        move last back 9                => moved 0, left 1, stuck NoOrigin
        // home is where it died last, not where it was sent
        nack q 2
        receive q 1                     => nothing
        receive dead 1                  => 3<q#2
        nack dead 3
        receive dead 1                  => nothing
        move last other 9               => moved 2, left 0
        send last                       => #4
        move other back 9               => moved 0, left 2, stuck NoOrigin
        receive other 1                 => 1<last#2
        move other back 9               => moved 1, left 0
        counts dead                     => ready 1, in flight 0, delayed 0
        ",
    );
}

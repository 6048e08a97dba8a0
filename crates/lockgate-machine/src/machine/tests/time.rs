//! Due times, retention, and clocks that step.

use lockgate_core::{Message, QueueName};

use super::harness::{Run, check};
use crate::{
    Command, Effect, Purge, Reply, SendMessage, Settled, StaleReason,
    machine::time::{MOVES_PER_STEP, TIMERS_PER_STEP},
};

#[test]
fn a_delayed_message_is_never_early_and_holds_nothing_up() {
    check(
        "
        queue q keyed
        send q key=a due=+10s           => #1
        send q key=a                    => #2
        counts q                        => ready 1, in flight 0, delayed 1
        receive q 9                     => 2
        ack q 2
        wait 9999ms
        receive q 9                     => nothing
        wait 1ms
        woken                           => q
        receive q 9                     => 1
        ",
    );
}

#[test]
fn due_messages_enter_in_order_of_due_time_then_of_acceptance() {
    check(
        "
        queue q keyed
        send q key=a due=+3s            => #1
        send q key=a due=+2s            => #2
        send q key=a due=+3s            => #3
        send q key=a due=+1s            => #4
        wait 2500ms
        // accepted before 1 and 3 are due
        send q key=a                    => #5
        wait 10s
        receive q 9                     => 4 2 5 1 3
        ",
    );
}

#[test]
fn a_due_time_in_the_past_is_no_delay() {
    check(
        "
        queue q keyed delay=5s
        send q key=a due=0s             => #1
        send q key=a                    => #2
        counts q                        => ready 1, in flight 0, delayed 1
        ",
    );
}

#[test]
fn a_clock_that_steps_back_fires_nothing_twice_and_nothing_early() {
    check(
        "
        queue q keyed
        send q key=a due=+10s           => #1
        wait 10s
        receive q 9                     => 1
        wall -60s
        receive q 9                     => nothing
        send q key=b due=+10s           => #2
        wait 9999ms
        receive q 9                     => nothing
        wait 1ms
        receive q 9                     => 2
        // leases go by machine time
        wall -30s
        wait 20s
        receive q 9                     => 1/2
        ",
    );
}

#[test]
fn a_clock_that_steps_forward_ends_no_lease() {
    check(
        "
        queue q keyed lease=30s
        send q key=a                    => #1
        send q key=b due=+30min         => #2
        receive q 9                     => 1
        wall 1h
        current q 1                     => yes
        receive q 9                     => 2
        ",
    );
}

#[test]
fn what_outlives_the_retention_is_dropped_oldest_first() {
    check(
        "
        queue q keyed retention=60s
        send q key=a                    => #1
        wait 30s
        send q key=a                    => #2
        oldest q                        => 30000 ms old
        wait 29999ms
        counts q                        => ready 2, in flight 0, delayed 0
        wait 1ms
        counts q                        => ready 1, in flight 0, delayed 0
        oldest q                        => 30000 ms old
        receive q 9                     => 2
        ack q 2
        totals q                        => accepted 2, acknowledged 1, leased 1, expired 1
        oldest q                        => nothing
        ",
    );
}

#[test]
fn a_leased_message_outlives_the_retention_until_its_lease_ends() {
    check(
        "
        queue q keyed retention=60s lease=90s
        send q key=a                    => #1
        send q key=b                    => #2
        send q key=c                    => #3
        send q key=d                    => #4
        receive q 3                     => 1 2 3
        wait 70s
        counts q                        => ready 0, in flight 3, delayed 0
        // by its ack, its nack, or the lease's end
        ack q 1                         => done
        nack q 2                        => done
        counts q                        => ready 0, in flight 1, delayed 0
        send q key=e                    => #5
        wait 20s
        totals q                        => accepted 5, acknowledged 1, leased 3, leases ended 1, expired 3
        wait 40s
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn retention_counts_from_the_due_time() {
    check(
        "
        queue q retention=60s
        send q due=+10min               => #1
        wait 10min
        receive q 1                     => 1
        give-back q 1
        oldest q                        => 0 ms old
        wait 60s
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn a_changed_retention_counts_for_what_is_there() {
    check(
        "
        queue q keyed retention=1h
        send q key=a                    => #1
        wait 10min
        send q key=a                    => #2
        change q keyed retention=5min
        wait 0ms
        counts q                        => ready 1, in flight 0, delayed 0
        change q keyed retention=1h
        wait 50min
        counts q                        => ready 1, in flight 0, delayed 0
        wait 10min
        counts q                        => ready 0, in flight 0, delayed 0
        ",
    );
}

#[test]
fn a_message_may_have_a_time_to_live_of_its_own() {
    check(
        "
        queue q keyed lease=90s
        send q key=a ttl=60s            => #1
        send q key=b ttl=60s            => #2
        send q key=c ttl=60s due=+30s   => #3
        receive q 1                     => 1
        wait 60s
        counts q                        => ready 1, in flight 1, delayed 0
        nack q 1                        => done
        counts q                        => ready 1, in flight 0, delayed 0
        reschedule q 3 +2min            => done
        wait 179s
        counts q                        => ready 1, in flight 0, delayed 0
        wait 1s
        totals q                        => accepted 3, leased 1, expired 3
        ",
    );
}

#[test]
fn more_timers_than_fire_in_a_step_fire_in_several() {
    let mut script = String::from("queue q keyed\n");
    for key in 0..600 {
        script += &format!("send q key=k{key} due=+1s\n");
    }
    script += "
        // the term, the queue, the sends, and once the wheel caught up with the clock
        records                         => 603
        wait 1s
        counts q                        => ready 600, in flight 0, delayed 0
        // a step that brings them into order, which takes two moves each, and three of 256
        records                         => 607
        receive q 2                     => 1 2
    ";
    check(&script);
}

/// However many messages are due at once, in one millisecond or in many, and even if they were
/// purged, no step moves or fires more timers than its budget.
#[test]
fn the_work_of_each_step_is_bounded() {
    const MANY: u64 = 20_000;
    let queue = QueueName::new("q").unwrap();
    for (spread, is_purged) in [(1, false), (4_000, false), (1, true), (4_000, true)] {
        let mut run = Run::new();
        run.lines("queue q");
        let start = run.now.wall.plus(3_600_000);
        for number in 0..MANY {
            // Due out of order, so that those of a millisecond are not all in order from the start.
            let due = start.plus((number * 7_919) % spread);
            let message = Message::new("x").with_due(due);
            let queue = queue.clone();
            let send = Command::Send(Box::new(SendMessage { queue, message }));
            run.give(&send).unwrap();
        }
        if is_purged {
            let queue = queue.clone();
            run.give(&Command::Purge(Purge { queue })).unwrap();
        }
        run.now.wall = start.plus(spread);
        run.now.machine.0 += 3_600_000 + spread;
        let work = |run: &Run| run.machine.wall.work + run.machine.machine.work;
        let mut before = work(&run);
        let mut steps = 0;
        while let Some(effect) = run.machine.tick(run.now) {
            run.append(std::iter::once(effect).collect());
            let after = work(&run);
            // Timers of purged messages are removed before the budget is set, or on the way.
            let bound = u64::from(MOVES_PER_STEP + 2 * TIMERS_PER_STEP) + 2;
            assert!(after - before <= bound, "{} of {bound}", after - before);
            assert!(after > before, "a step that does nothing");
            before = after;
            steps += 1;
        }
        assert!(steps > MANY / 1_024, "{steps}");
        let counts = run.describe("q").counts;
        let expected = if is_purged { 0 } else { MANY };
        assert_eq!((counts.ready, counts.delayed), (expected, 0));
        run.check_recovery();
    }
}

/// A tick comes between the ends of two leases of a batch, and the holder extends the second: its
/// lease has ended with the first.
#[test]
fn a_batch_of_which_a_part_has_ended_is_not_extended() {
    let mut run = check(
        "
        queue q keyed strict lease=10s
        send q key=a                    => #1
        send q key=a                    => #2
        receive q 9                     => 1 2
        ",
    );
    run.now.machine.0 += 10_000;
    run.append(
        std::iter::once(Effect::Advanced {
            now: run.now,
            budget: 1,
        })
        .collect(),
    );
    let settle = run.settle("extend", &["q", "2", "5s"]);
    let decision = run.machine.decide(&Command::Settle(settle), run.now);
    assert!(decision.effects.is_empty());
    let outcome = decision.outcome.unwrap();
    assert!(matches!(
        outcome,
        Reply::Settled(Settled::Stale(StaleReason::Ended))
    ));
}

//! Restarts.

use super::harness::check;

#[test]
fn leases_attempts_and_keys_survive_a_restart() {
    check(
        "
        queue q keyed lease=30s
        send q key=a                    => #1
        send q key=a                    => #2
        send q key=b                    => #3
        receive q 1 by=ann              => 1
        nack q 1
        receive q 1                     => 3
        receive q 1 by=ann              => 1/2
        park q b
        wait 10s
        restart kill
        key q a                         => lease of 1 by ann for 20000 ms, attempt 2
        key q b                         => Parked
        // a token of the last term settles still
        extend q 1 30s                  => done
        ack q 1                         => done
        ack q 3                         => done
        receive q 9                     => 2
        ",
    );
}

#[test]
fn a_token_is_never_given_again() {
    check(
        "
        queue q keyed lease=10s
        send q key=a
        receive q 1                     => 1
        wait 10s
        restart kill
        // the same lease number, in another term
        receive q 1                     => 1/2
        ack q 1/1                       => stale Superseded
        ack q 1/2                       => done
        ",
    );
}

#[test]
fn ids_of_earlier_terms_are_recomputed() {
    // The harness compares each delivery's id with the answer to its send.
    check(
        "
        queue q
        send q id=x
        restart kill
        send q
        restart kill
        send q
        send q id=x                     => #1 duplicate
        receive q 9                     => 1 2 3
        ",
    );
}

#[test]
fn numbers_told_at_level_memory_are_never_told_again() {
    check(
        "
        queue m level=memory
        syncing off
        send m                          => #1
        // the first reserve is waited for; the next one is made in good time
        answer                          => disk
        send m                          => #2
        answer                          => memory, rests on record 2
        sync
        send m                          => #3
        answer                          => memory
        syncing on
        restart kill
        totals m                        => accepted 3, possibly lost 1021
        send m                          => #1025
        restart clean
        send m                          => #1026
        totals m                        => accepted 5, possibly lost 1021
        receive m 9                     => 1 2 3 1025 1026
        ",
    );
}

#[test]
fn a_reserve_is_raised_before_it_is_used_up() {
    let mut script = String::from("queue m level=memory\nsend m\nsync\nsyncing off\n");
    for _ in 2..=1100 {
        script += "send m\n";
    }
    // The second reserve, raised at half of the first, is not synced yet when its numbers are given out.
    script += "answer => memory, rests on record 514\nsync\nsend m\nanswer => memory\n";
    check(&script);
}

#[test]
fn machine_time_does_not_go_back() {
    let mut run = check("queue q keyed lease=30s\nsend q key=a\nwait 1min\nreceive q 1 => 1");
    let logged = run.machine.clock_state().now.machine;
    run.now.machine.0 -= 50_000;
    run.tick();
    assert_eq!(run.machine.clock_state().now.machine, logged);
    let decision = run.machine.decide(
        &crate::EngineCommand::EndTerm,
        lockgate_core::Now {
            wall: run.now.wall,
            ..run.now
        },
    );
    match &decision.effects[..] {
        [crate::Effect::TermEnded { now }] => assert_eq!(now.machine, logged),
        other => panic!("{other:?}"),
    }
}

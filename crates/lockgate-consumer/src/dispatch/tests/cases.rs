//! One rule a test.

use super::{super::receives::RECEIVES_MAX, *};

/// Arrivals a a b: the second of a waits for the first, b does not.
#[test]
fn messages_of_a_key_run_one_after_the_other() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    let arrivals = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3)];
    dispatcher.received(0, 10, arrivals.map(|(key, number)| arrival(key, number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1], [3]]);
    let run = runs(&actions)[0];
    assert!(dispatcher.finished(run, succeeded(), 5, 0));
    assert!(!dispatcher.finished(run, failed(0), 6, 0), "it has ended");
    let actions = drain_actions(&mut dispatcher, 6);
    assert_eq!(started(&actions), [[2]]);
    let settles = settles(&actions);
    assert_eq!(settles.len(), 1);
    assert_eq!((settles[0].1, &settles[0].2), (1, &Settlement::Ack));
    assert_eq!(dispatcher.counts().stale_ends, 1);
}

#[test]
fn a_run_has_consecutive_messages_of_a_key_and_may_succeed_in_part() {
    let options = DispatchOptions {
        run_max: 3,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=5).map(|number| arrival(Some("a"), number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1, 2, 3]]);
    dispatcher.finished(runs(&actions)[0], failed(1), 1, 0);
    let actions = drain_actions(&mut dispatcher, 1);
    let how = outcomes(&actions);
    let nack = Settlement::Nack {
        delay: Duration::from_millis(100),
        reason: None,
    };
    let back = Settlement::GiveBack;
    // The source has the order while it waits: everything behind the failed one goes back to it.
    let expected = [
        (1, Settlement::Ack),
        (2, nack),
        (3, back.clone()),
        (4, back.clone()),
        (5, back),
    ];
    assert_eq!(how, expected);
    assert!(started(&actions).is_empty());
}

#[test]
fn a_source_without_locks_is_guarded_here() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), plain());
    let arrivals = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3)];
    dispatcher.received(0, 10, arrivals.map(|(key, number)| arrival(key, number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    dispatcher.finished(runs(&actions)[0], failed(0), 10, 0);
    let actions = drain_actions(&mut dispatcher, 10);
    assert_eq!((started(&actions), settles(&actions)), (vec![], vec![]));
    let state = dispatcher.explain(0, &key("a")).unwrap();
    assert_eq!(state.wait, KeyWait::Retry(110));
    assert_eq!(state.error.as_deref(), Some("boom"));
    assert_eq!(dispatcher.next_deadline(), Some(110));
    assert!(drain_actions(&mut dispatcher, 109).is_empty(), "too early");
    let actions = drain_actions(&mut dispatcher, 110);
    let Action::Start(again) = &actions[0] else {
        panic!("{actions:?}");
    };
    assert_eq!((again.messages[0].0.number, again.messages[0].1), (1, 2));
}

#[test]
fn the_last_attempt_is_followed_by_a_rejection_and_the_key_goes_on() {
    let options = DispatchOptions {
        attempts_max: Some(1),
        ..DispatchOptions::default()
    };
    let mut can = plain_with_leases();
    can.reject = true;
    let mut dispatcher = dispatcher(options, SourceOptions::new(can));
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    dispatcher.finished(runs(&actions)[0], failed(0), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let reason = Some("boom".into());
    assert_eq!(settles(&actions)[0].2, Settlement::Reject { reason });
    assert_eq!(started(&actions), [[2]]);

    dispatcher.settled(0, [(settles(&actions)[0].0, Ok(()))], 0, 0);

    // A long reason is cut to what a queue keeps, between characters.
    let rest = Rest::Rejected {
        reason: "\u{e9}".repeat(1_000).into(),
    };
    let end = RunEnd { done: 0, rest };
    dispatcher.finished(runs(&actions)[0], end, 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let Settlement::Reject {
        reason: Some(reason),
    } = &settles(&actions)[0].2
    else {
        panic!("{actions:?}");
    };
    assert!(
        reason.len() <= 1_024 && reason.ends_with('\u{2026}'),
        "{reason}"
    );
}

/// With it the source may take back what came behind it of the key, so nothing of that is started.
#[test]
fn a_source_that_locks_keys_gets_back_what_is_behind_a_rejected_message() {
    let options = DispatchOptions {
        run_max: 2,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1, 2]]);
    let rest = Rest::Rejected {
        reason: "bad".into(),
    };
    dispatcher.finished(runs(&actions)[0], RunEnd { done: 0, rest }, 1, 0);
    let actions = drain_actions(&mut dispatcher, 1);
    let how = outcomes(&actions);
    let reason = Some("bad".into());
    let expected = [
        (1, Settlement::Reject { reason }),
        (2, Settlement::GiveBack),
        (3, Settlement::GiveBack),
    ];
    assert_eq!(how, expected);
    assert!(started(&actions).is_empty());
}

/// Without a reason.
fn nacked(delay: Duration) -> Settlement {
    let reason = None;
    Settlement::Nack { delay, reason }
}

/// Its own limit of attempts gets rid of the message.
#[test]
fn a_source_that_cannot_reject_hears_of_a_failure() {
    let mut can = plain_with_leases();
    can.nack_delay_max = Duration::from_secs(10);
    let mut dispatcher = dispatcher(DispatchOptions::default(), SourceOptions::new(can));
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let reason = "bad".into();
    let rest = Rest::Rejected { reason };
    dispatcher.finished(run, RunEnd { done: 0, rest }, 0, 0);
    let delay = Duration::from_secs(10);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(settles(&actions)[0].2, nacked(delay));
}

#[test]
fn a_source_that_keeps_reasons_hears_the_error_of_every_attempt() {
    let fails = |dispatcher: &mut Dispatcher<Text>, error: &str, now| {
        let run = runs(&drain_actions(dispatcher, now))[0];
        let rest = Rest::Failed {
            error: error.into(),
            retry_in: Some(0),
        };
        dispatcher.finished(run, RunEnd { done: 0, rest }, now, 0);
    };
    let reason_of = |how: &Settlement| match how {
        Settlement::Nack { reason, .. } => reason.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    // Each attempt is told where the source waits itself.
    let mut can = locked().capabilities;
    can.nack_reasons = true;
    let mut one = dispatcher(DispatchOptions::default(), SourceOptions::new(can));
    one.received(0, 10, [arrival(Some("a"), 1)], 0);
    fails(&mut one, &"e".repeat(2_000), 0);
    let how = settles(&drain_actions(&mut one, 0)).remove(0).2;
    let reason = reason_of(&how);
    assert!(
        reason.len() <= 1_024 && reason.ends_with("e\u{2026}"),
        "{reason}"
    );

    // Where it waits here, the last one tells of all: as a nack, and as a rejection.
    let mut can = plain_with_leases();
    can.nack_reasons = true;
    for reject in [false, true] {
        can.reject = reject;
        let options = DispatchOptions {
            attempts_max: Some(3),
            ..DispatchOptions::default()
        };
        let mut one = dispatcher(options, SourceOptions::new(can.clone()));
        one.received(0, 10, [arrival(Some("a"), 1)], 0);
        for (error, now) in [("first", 0), ("second", 1), ("third", 2)] {
            fails(&mut one, error, now);
        }
        let all = "third (before: attempt 1: first; attempt 2: second)";
        let reason = Some(all.into());
        let how = settles(&drain_actions(&mut one, 2)).remove(0).2;
        let expected = match reject {
            true => Settlement::Reject { reason },
            false => Settlement::Nack {
                delay: Duration::ZERO,
                reason,
            },
        };
        assert_eq!(how, expected);
    }
}

#[test]
fn leases_are_extended_while_their_messages_are_here() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, (1..=2).map(|number| arrival(Some("a"), number)), 0);
    drain_actions(&mut dispatcher, 0);
    assert_eq!(dispatcher.next_deadline(), Some(10_000));
    let actions = drain_actions(&mut dispatcher, 10_000);
    let Action::Extend { items, lease, .. } = &actions[0] else {
        panic!("{actions:?}");
    };
    assert_eq!((items.len(), *lease), (2, 30_000));
    let ids: Vec<_> = items.iter().map(|(id, _)| *id).collect();
    // One is extended; of the other nobody knows, so it is tried again.
    dispatcher.extended([(ids[0], Ok(30_000)), (ids[1], Err(Fate::Unknown))], 10_000);
    let next = dispatcher.next_deadline().unwrap();
    assert!(next < 20_000, "{next}");
    let actions = drain_actions(&mut dispatcher, next);
    assert!(matches!(&actions[0], Action::Extend { items, .. } if items[0].0 == ids[1]));
}

#[test]
fn a_lost_lease_cancels_its_run_and_keeps_what_waits_from_running() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, (1..=2).map(|number| arrival(Some("a"), number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let run = runs(&actions)[0];
    let actions = drain_actions(&mut dispatcher, 10_000);
    let Action::Extend { items, .. } = &actions[0] else {
        panic!("{actions:?}");
    };
    let ids: Vec<_> = items.iter().map(|(id, _)| *id).collect();
    assert!(dispatcher.is_current(run));
    dispatcher.extended(ids.iter().map(|&id| (id, Err(Fate::Stale))), 10_001);
    assert!(!dispatcher.is_current(run));
    let actions = drain_actions(&mut dispatcher, 10_001);
    let why = Cancelled::LeaseLost;
    assert_eq!(actions[0], Action::Cancel { run, why });
    // What waits behind it goes back: it must not run before this one has come again.
    let settles_now = settles(&actions);
    assert_eq!(
        (settles_now.len(), &settles_now[0].2),
        (1, &Settlement::GiveBack)
    );
    dispatcher.settled(0, [(settles_now[0].0, Err(Fate::Stale))], 10_001, 0);
    // Its end counts nothing: somebody else has the message.
    dispatcher.finished(run, succeeded(), 10_002, 0);
    let actions = drain_actions(&mut dispatcher, 10_002);
    assert_eq!((started(&actions), settles(&actions)), (vec![], vec![]));
    let counts = dispatcher.counts();
    assert_eq!(
        (counts.lost, counts.given_back, dispatcher.held()),
        (1, 1, 0)
    );
    assert!(dispatcher.explain(0, &key("a")).is_none());
}

/// The extension of the first message fails, that of the second does not: the second would overtake it.
#[test]
fn a_message_behind_a_lost_one_does_not_run_before_it() {
    for run_max in [1, 3] {
        let options = DispatchOptions {
            run_max,
            ..DispatchOptions::default()
        };
        let mut dispatcher = dispatcher(options, locked());
        dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
        let run = runs(&drain_actions(&mut dispatcher, 0))[0];
        let actions = drain_actions(&mut dispatcher, 10_000);
        let Action::Extend { items, .. } = &actions[0] else {
            panic!("{actions:?}");
        };
        let answers = items.iter().enumerate().map(|(at, (id, _))| match at {
            0 => (*id, Err(Fate::Stale)),
            _ => (*id, Ok(30_000)),
        });
        dispatcher.extended(answers.collect::<Vec<_>>(), 10_001);
        let mut actions = drain_actions(&mut dispatcher, 10_001);
        let rest = Rest::Cancelled;
        dispatcher.finished(run, RunEnd { done: 0, rest }, 10_002, 0);
        actions.extend(drain_actions(&mut dispatcher, 10_002));
        assert!(started(&actions).is_empty(), "{actions:?}");
        let back: Vec<u64> = settles(&actions)
            .iter()
            .map(|(_, number, _)| *number)
            .collect();
        assert_eq!(back, [2, 3]);
    }
}

#[test]
fn an_extension_without_an_answer_is_asked_for_again() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    drain_actions(&mut dispatcher, 0);
    for _ in 0..2 {
        let now = dispatcher.next_deadline().unwrap();
        let actions = drain_actions(&mut dispatcher, now);
        assert!(
            matches!(actions[..], [Action::Extend { .. }]),
            "{actions:?}"
        );
    }
}

#[test]
fn timers_of_what_is_over_take_bounded_memory() {
    let options = DispatchOptions {
        run_time_max: Some(86_400_000),
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    for number in 1..=2_000 {
        dispatcher.received(0, 10, [arrival(Some("a"), number)], number);
        let run = runs(&drain_actions(&mut dispatcher, number))[0];
        dispatcher.finished(run, succeeded(), number, 0);
        let acks = settles(&drain_actions(&mut dispatcher, number));
        dispatcher.settled(0, acks.into_iter().map(|(id, ..)| (id, Ok(()))), number, 0);
    }
    assert_eq!(dispatcher.held(), 0);
    let timers = (dispatcher.looks.len(), dispatcher.overdue.len());
    assert!(timers.0 < 100 && timers.1 < 100, "{timers:?}");
}

/// Even where the handler says nothing of a failure.
#[test]
fn a_run_that_takes_too_long_counts_as_failed() {
    let options = DispatchOptions {
        run_time_max: Some(1_000),
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let why = Cancelled::TooLong;
    let cancel = Action::Cancel { run, why };
    assert_eq!(drain_actions(&mut dispatcher, 1_000), [cancel]);
    let rest = Rest::Cancelled;
    dispatcher.finished(run, RunEnd { done: 0, rest }, 1_001, 0);
    let how = settles(&drain_actions(&mut dispatcher, 1_001)).remove(0).2;
    assert!(matches!(how, Settlement::Nack { .. }), "{how:?}");
}

#[test]
fn a_settlement_that_fails_holds_up_no_other() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    let keys = ["a", "b"];
    for (number, key) in (1..).zip(keys) {
        dispatcher.received(0, 10, [arrival(Some(key), number)], 0);
    }
    let runs = runs(&drain_actions(&mut dispatcher, 0));
    dispatcher.finished(runs[0], succeeded(), 0, 0);
    let first = settles(&drain_actions(&mut dispatcher, 0));
    dispatcher.settled(0, [(first[0].0, Err(Fate::Retry))], 0, 7);
    dispatcher.finished(runs[1], succeeded(), 0, 0);
    let second = settles(&drain_actions(&mut dispatcher, 0));
    assert_eq!(
        second
            .iter()
            .map(|(_, number, _)| *number)
            .collect::<Vec<_>>(),
        [2]
    );
    let later = dispatcher.next_deadline().unwrap();
    let again = settles(&drain_actions(&mut dispatcher, later));
    assert_eq!(
        again
            .iter()
            .map(|(_, number, _)| *number)
            .collect::<Vec<_>>(),
        [1]
    );
}

/// Where keys are not locked, an old receipt may hide a message that somebody else has by then.
#[test]
fn a_failure_is_not_told_twice_to_a_source_without_locks() {
    let mut can = plain_with_leases();
    can.nack_delay_max = Duration::from_secs(10);
    let mut dispatcher = dispatcher(DispatchOptions::default(), SourceOptions::new(can));
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, failed(0), 0, 0);
    let nacks = settles(&drain_actions(&mut dispatcher, 0));
    dispatcher.settled(0, [(nacks[0].0, Err(Fate::Unknown))], 0, 7);
    assert_eq!((dispatcher.counts().failed, dispatcher.held()), (1, 0));
}

#[test]
fn a_failure_counts_while_the_dispatcher_stops() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), plain());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.drain(10_000);
    dispatcher.finished(run, failed(0), 0, 0);
    let nacks = settles(&drain_actions(&mut dispatcher, 0));
    let delay = Duration::ZERO;
    assert_eq!(nacks[0].2, nacked(delay));
    dispatcher.settled(0, [(nacks[0].0, Ok(()))], 0, 7);
    let counts = dispatcher.counts();
    assert_eq!(
        (counts.failed, counts.retried, counts.given_back),
        (1, 0, 0)
    );
}

/// Without an answer, a lease is lost when it ends by the clock here.
#[test]
fn a_lease_that_nobody_could_extend_is_lost_at_its_end() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let cancelled = loop {
        let now = dispatcher.next_deadline().unwrap();
        let actions = drain_actions(&mut dispatcher, now);
        if actions.contains(&Action::Cancel {
            run,
            why: Cancelled::LeaseLost,
        }) {
            break now;
        }
    };
    assert_eq!(cancelled, 30_000);
}

#[test]
fn a_run_that_takes_too_long_is_cancelled() {
    let options = DispatchOptions {
        run_time_max: Some(500),
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    assert_eq!(dispatcher.next_deadline(), Some(500));
    let actions = drain_actions(&mut dispatcher, 500);
    let why = Cancelled::TooLong;
    assert_eq!(actions, [Action::Cancel { run, why }]);
}

#[test]
fn settlements_of_a_lane_are_in_one_call_at_a_time() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, (1..=2).map(|number| arrival(Some("a"), number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    dispatcher.finished(runs(&actions)[0], succeeded(), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let first = settles(&actions);
    dispatcher.finished(runs(&actions)[0], succeeded(), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert!(settles(&actions).is_empty(), "the first may still fail");
    // Nobody knows: it is asked again, and before the second.
    dispatcher.settled(0, [(first[0].0, Err(Fate::Unknown))], 10, 0);
    assert!(drain_actions(&mut dispatcher, 10).is_empty(), "not at once");
    let again = dispatcher.next_deadline().unwrap();
    let both = settles(&drain_actions(&mut dispatcher, again));
    let numbers: Vec<_> = both.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, [1, 2]);
    let results = both.iter().map(|(id, _, _)| (*id, Ok(())));
    dispatcher.settled(0, results, again, 0);
    assert_eq!(
        (dispatcher.counts().acknowledged, dispatcher.held()),
        (2, 0)
    );
}

#[test]
fn the_other_source_has_room_whatever_the_first_holds() {
    let options = DispatchOptions {
        concurrency: 1,
        held_max: 20,
        ..DispatchOptions::default()
    };
    let urgent = SourceOptions {
        priority: 9,
        ..locked()
    };
    let mut dispatcher = Dispatcher::new(options, vec![locked(), urgent], 0).unwrap();
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(actions.len(), 2, "one receive each: {actions:?}");
    dispatcher.received(0, 10, (1..=10).map(|number| arrival(None, number)), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1]]);
    dispatcher.received(1, 10, (11..=12).map(|number| arrival(None, number)), 0);
    dispatcher.finished(runs(&actions)[0], succeeded(), 0, 0);
    assert_eq!(started(&drain_actions(&mut dispatcher, 0)), [[11]]);
}

#[test]
fn waiting_raises_a_priority_until_nothing_starves() {
    let options = DispatchOptions {
        concurrency: 1,
        aging: 100,
        ..DispatchOptions::default()
    };
    let urgent = |number| Arrival {
        priority: 5,
        ..arrival(None, number)
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, [arrival(None, 0)], 0);
    let mut run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    for now in 1..=600 {
        dispatcher.received(0, 10, [urgent(1_000 + now)], now);
        dispatcher.finished(run, succeeded(), now, 0);
        let actions = drain_actions(&mut dispatcher, now);
        run = runs(&actions)[0];
        if started(&actions)[0] == [1] {
            assert!((499..=502).contains(&now), "{now}");
            return;
        }
    }
    panic!("it starved");
}

/// A tenant with nine of ten messages gets half of the runs.
#[test]
fn tenants_share_by_messages_not_by_what_they_bring() {
    let options = DispatchOptions {
        concurrency: 1,
        run_max: 4,
        held_max: 1_000,
        fairness: Fairness::Tenants,
        ..DispatchOptions::default()
    };
    let mut source = locked();
    source.capabilities.receive_max = 1_000;
    let mut dispatcher = dispatcher(options, source);
    let arrivals = (0..200_u64).map(|number| Arrival {
        tenant: Some(key(if number % 10 == 0 { "small" } else { "big" })),
        // The big one has runs of four, the small one of one.
        ..arrival(if number % 10 == 0 { None } else { Some("k") }, number)
    });
    dispatcher.received(0, 1_000, arrivals, 0);
    let mut actions = drain_actions(&mut dispatcher, 0);
    let (mut small, mut big) = (0, 0);
    while small < 20 {
        for number in started(&actions).concat() {
            if number % 10 == 0 {
                small += 1;
            } else {
                big += 1;
            }
        }
        let run = runs(&actions)[0];
        dispatcher.finished(run, succeeded(), 0, 0);
        actions = drain_actions(&mut dispatcher, 0);
    }
    assert!((16..=24).contains(&big), "{big} beside {small}");
}

#[test]
fn a_pause_gives_back_what_waits_and_a_drain_ends_what_runs() {
    let options = DispatchOptions {
        concurrency: 1,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(None, number)), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.pause();
    let actions = drain_actions(&mut dispatcher, 1);
    let back = settles(&actions);
    assert_eq!(back.len(), 2);
    assert!(back.iter().all(|(_, _, how)| *how == Settlement::GiveBack));
    dispatcher.settled(0, back.into_iter().map(|(id, _, _)| (id, Ok(()))), 1, 0);
    dispatcher.resume(2);
    // The receive of the beginning is still on its way.
    dispatcher.received(0, 10, [], 2);
    let actions = drain_actions(&mut dispatcher, 2);
    assert!(
        matches!(actions[..], [Action::Receive { .. }]),
        "{actions:?}"
    );

    dispatcher.drain(100);
    // What a receive brings that was on its way goes back.
    dispatcher.received(0, 10, [arrival(None, 4)], 3);
    let back = settles(&drain_actions(&mut dispatcher, 3));
    assert_eq!(back[0].2, Settlement::GiveBack);
    dispatcher.settled(0, back.into_iter().map(|(id, _, _)| (id, Ok(()))), 3, 0);
    assert!(!dispatcher.is_drained());
    assert_eq!(dispatcher.next_deadline(), Some(100));
    let why = Cancelled::Draining;
    assert_eq!(
        drain_actions(&mut dispatcher, 100),
        [Action::Cancel { run, why }]
    );
    let end = RunEnd {
        done: 0,
        rest: Rest::Cancelled,
    };
    dispatcher.finished(run, end, 101, 0);
    // It has begun, which is not undone.
    let back = settles(&drain_actions(&mut dispatcher, 101));
    let delay = Duration::ZERO;
    assert_eq!(back[0].2, Settlement::Defer { delay });
    dispatcher.settled(0, back.into_iter().map(|(id, _, _)| (id, Ok(()))), 102, 0);
    assert!(dispatcher.is_drained());
    assert_eq!(dispatcher.counts().given_back, 3);
}

#[test]
fn a_stall_is_told_with_what_it_waits_for() {
    let options = DispatchOptions {
        concurrency: 1,
        stall_after: 1_000,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(None, number)), 7);
    let run = runs(&drain_actions(&mut dispatcher, 7))[0];
    assert_eq!(dispatcher.stall(1_006), None);
    let stall = dispatcher.stall(1_007).unwrap();
    assert_eq!((stall.ready, stall.runs, stall.oldest_run), (2, 1, Some(7)));
    dispatcher.finished(run, succeeded(), 1_008, 0);
    assert_eq!(dispatcher.stall(1_008), None);
}

#[test]
fn receives_that_fail_wait_longer_each_time() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let actions = drain_actions(&mut dispatcher, now);
        assert!(
            matches!(actions[..], [Action::Receive { max: 10, .. }]),
            "{actions:?}"
        );
        dispatcher.receive_failed(0, 10, now, 0);
        let next = dispatcher.next_deadline().unwrap();
        waits.push(next - now);
        now = next;
    }
    assert_eq!(waits, [50, 100, 200, 400, 800, 1_600, 2_500, 2_500]);
    drain_actions(&mut dispatcher, now);
    dispatcher.received(0, 10, [arrival(None, 1)], now);
    drain_actions(&mut dispatcher, now);
    dispatcher.receive_failed(0, 10, now, 0);
    assert_eq!(dispatcher.next_deadline(), Some(now + 50), "a message came");
}

#[test]
fn options_out_of_range_are_refused_with_their_bounds() {
    let refused = |options: DispatchOptions, sources: Vec<SourceOptions>| {
        let error = Dispatcher::<Text>::new(options, sources, 0).unwrap_err();
        error.to_string()
    };
    let no_runs = DispatchOptions {
        concurrency: 0,
        ..DispatchOptions::default()
    };
    assert_eq!(
        refused(no_runs, vec![plain()]),
        "concurrency must be 1 to 65536, not 0"
    );
    let text = refused(DispatchOptions::default(), vec![]);
    assert_eq!(text, "the number of sources must be 1 to 4096, not 0");
    let long = SourceOptions {
        lease: Some(30_001),
        ..plain()
    };
    let text = refused(DispatchOptions::default(), vec![long]);
    assert_eq!(text, "lease must be 1 to 30000, not 30001");
}

/// The settlement of one key fails again and again, that of the other once.
#[test]
fn a_settlement_that_keeps_failing_does_not_move_the_time_of_another() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    for (number, key) in (1..).zip(["a", "b"]) {
        dispatcher.received(0, 10, [arrival(Some(key), number)], 0);
    }
    let runs = runs(&drain_actions(&mut dispatcher, 0));
    let fails = |dispatcher: &mut Dispatcher<Text>, call: &[(ItemId, u64, Settlement)], now| {
        let results = call.iter().map(|(id, ..)| (*id, Err(Fate::Retry)));
        dispatcher.settled(0, results, now, u64::MAX - 1);
    };
    let numbers = |call: &[(ItemId, u64, Settlement)]| {
        let numbers = call.iter().map(|(_, number, _)| *number);
        numbers.collect::<Vec<_>>()
    };
    dispatcher.finished(runs[0], succeeded(), 0, 0);
    let first = settles(&drain_actions(&mut dispatcher, 0));
    dispatcher.finished(runs[1], succeeded(), 0, 0);
    let second = settles(&drain_actions(&mut dispatcher, 0));
    assert_eq!((numbers(&first), numbers(&second)), (vec![1], vec![2]));
    fails(&mut dispatcher, &first, 0);
    let due = dispatcher.next_deadline().unwrap();
    // The call of the other key ends a moment before the first one's time.
    fails(&mut dispatcher, &second, due - 1);
    assert_eq!(dispatcher.next_deadline(), Some(due));
    let again = settles(&drain_actions(&mut dispatcher, due));
    assert_eq!(numbers(&again), [1]);
}

/// One key's settlement always fails, the other key's always succeeds: the first is asked for ever less often.
#[test]
fn settlements_that_succeed_do_not_hurry_one_that_fails() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, succeeded(), 0, 0);
    let failing = settles(&drain_actions(&mut dispatcher, 0))[0].0;
    let (mut now, mut waits) = (0, Vec::new());
    for number in 2..8 {
        dispatcher.settled(0, [(failing, Err(Fate::Retry))], now, 0);
        dispatcher.received(0, 10, [arrival(Some("b"), number)], now);
        let run = runs(&drain_actions(&mut dispatcher, now))[0];
        dispatcher.finished(run, succeeded(), now, 0);
        let other = settles(&drain_actions(&mut dispatcher, now))[0].0;
        dispatcher.settled(0, [(other, Ok(()))], now, 0);
        let due = dispatcher.next_deadline().unwrap();
        assert_eq!(settles(&drain_actions(&mut dispatcher, due))[0].0, failing);
        waits.push(due - now);
        now = due;
    }
    assert!(
        waits.is_sorted_by(|earlier, later| earlier < later),
        "{waits:?}"
    );
}

/// Of two receives under way at the same time, the answer to the later one may come first.
#[test]
fn a_source_that_keeps_no_order_is_asked_once_at_a_time() {
    let receives = |order, source| {
        let options = DispatchOptions {
            order,
            ..DispatchOptions::default()
        };
        let mut dispatcher = dispatcher(options, source);
        drain_actions(&mut dispatcher, 0);
        dispatcher.received(0, 10, (1..=10).map(|number| arrival(Some("a"), number)), 0);
        let actions = drain_actions(&mut dispatcher, 0).into_iter();
        actions
            .filter(|action| matches!(action, Action::Receive { .. }))
            .count()
    };
    assert_eq!(receives(Order::Key, plain()), 1);
    let two = Order::Partition(2.try_into().unwrap());
    assert_eq!(receives(two, plain()), 1);
    // Nothing waits for anything, or the source gives a key to one holder at a time.
    assert_eq!(receives(Order::Unordered, plain()), RECEIVES_MAX);
    assert_eq!(receives(Order::Key, locked()), RECEIVES_MAX);
}

/// Nobody has cancelled the run: at once it would be the same again, as fast as it goes.
#[test]
fn a_message_that_its_handler_did_not_try_waits_a_while() {
    for source in [locked(), plain()] {
        let waits_here = source.capabilities.key_order == KeyOrder::None;
        let mut dispatcher = dispatcher(DispatchOptions::default(), source);
        dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
        let run = runs(&drain_actions(&mut dispatcher, 0))[0];
        let rest = Rest::Cancelled;
        dispatcher.finished(run, RunEnd { done: 0, rest }, 0, 0);
        let actions = drain_actions(&mut dispatcher, 0);
        assert_eq!(started(&actions), Vec::<Vec<u64>>::new());
        let wait = Duration::from_millis(500);
        if !waits_here {
            assert_eq!(outcomes(&actions), [(1, Settlement::Defer { delay: wait })]);
            continue;
        }
        let actions = drain_actions(&mut dispatcher, 500);
        let Some(Action::Start(again)) = actions.first() else {
            panic!("{actions:?}");
        };
        assert_eq!(again.messages[0].1, 1, "the attempt does not count");
    }
}

/// The call may take long: only its own messages wait for it, and their leases may end.
#[test]
fn a_settle_call_without_an_answer_holds_up_only_what_it_settles() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    let arrivals = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3)];
    dispatcher.received(0, 10, arrivals.map(|(key, number)| arrival(key, number)), 0);
    let first = runs(&drain_actions(&mut dispatcher, 0));
    dispatcher.finished(first[0], succeeded(), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let hangs = settles(&actions);
    assert_eq!((hangs.len(), hangs[0].1), (1, 1));
    assert_eq!(started(&actions), [[2]], "its key goes on");
    dispatcher.finished(first[1], succeeded(), 0, 0);
    let other = settles(&drain_actions(&mut dispatcher, 0));
    assert_eq!((other.len(), other[0].1), (1, 3), "other keys are settled");
    dispatcher.settled(0, [(other[0].0, Ok(()))], 0, 0);
    // Its lease is not extended, that of the next one of its key is.
    let mut now = 0;
    while now <= 30_000 {
        now = dispatcher.next_deadline().unwrap();
        for action in drain_actions(&mut dispatcher, now) {
            let Action::Extend { items, .. } = action else {
                continue;
            };
            assert_eq!(items.len(), 1);
            assert_eq!(items[0].1.number, 2);
            dispatcher.extended([(items[0].0, Ok(30_000))], now);
        }
    }
    // The answer comes when the lease has ended.
    dispatcher.settled(0, [(hangs[0].0, Err(Fate::Retry))], now, 0);
    assert_eq!((dispatcher.counts().lost, dispatcher.held()), (1, 1));
}

/// The first answer did not come, so the acknowledgement was most probably done.
#[test]
fn what_is_stale_after_an_answer_that_did_not_come_is_not_lost() {
    for (first, count) in [(Fate::Unknown, (1, 0)), (Fate::Retry, (0, 1))] {
        let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
        dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
        let run = runs(&drain_actions(&mut dispatcher, 0))[0];
        dispatcher.finished(run, succeeded(), 0, 0);
        let call = settles(&drain_actions(&mut dispatcher, 0));
        dispatcher.settled(0, [(call[0].0, Err(first))], 0, 0);
        let now = dispatcher.next_deadline().unwrap();
        let again = settles(&drain_actions(&mut dispatcher, now));
        dispatcher.settled(0, [(again[0].0, Err(Fate::Stale))], now, 0);
        let counts = dispatcher.counts();
        assert_eq!((counts.unconfirmed, counts.lost), count, "{first:?}");
    }
}

#[test]
fn what_a_handler_did_not_try_of_a_closed_source_goes_back() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, (1..=2).map(|number| arrival(Some("a"), number)), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.closed(0);
    let rest = Rest::Cancelled;
    dispatcher.finished(run, RunEnd { done: 0, rest }, 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let back = Settlement::GiveBack;
    assert_eq!(outcomes(&actions), [(1, back.clone()), (2, back)]);
    assert_eq!(actions.len(), 1, "nothing is started or received");
}

#[test]
fn without_aging_a_lower_priority_waits_for_ever() {
    let options = DispatchOptions {
        concurrency: 1,
        aging: Millis::MAX,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, [arrival(None, 0)], 0);
    let mut run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.received(0, 10, [arrival(None, 1)], 0);
    // Nobody extends leases in this test.
    for now in 1..=100 {
        let now = now * 200;
        let urgent = Arrival {
            priority: 1,
            ..arrival(None, 1_000 + now)
        };
        dispatcher.received(0, 10, [urgent], now);
        dispatcher.finished(run, succeeded(), now, 0);
        let actions = drain_actions(&mut dispatcher, now);
        assert_eq!(started(&actions), [[1_000 + now]]);
        run = runs(&actions)[0];
    }
    dispatcher.finished(run, succeeded(), 20_001, 0);
    assert_eq!(started(&drain_actions(&mut dispatcher, 20_001)), [[1]]);
}

/// Such a source may want those of a key to be settled in their order.
#[test]
fn without_order_a_source_that_locks_keys_gives_one_of_each() {
    let key_max = |order| {
        let options = DispatchOptions {
            order,
            ..DispatchOptions::default()
        };
        let mut dispatcher = dispatcher(options, locked());
        let actions = drain_actions(&mut dispatcher, 0);
        let [Action::Receive { key_max, .. }] = actions[..] else {
            panic!("{actions:?}");
        };
        key_max
    };
    assert_eq!((key_max(Order::Unordered), key_max(Order::Key)), (1, 8));
}

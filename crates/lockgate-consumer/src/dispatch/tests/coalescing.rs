//! Runs that cover all that is here of a key.

use lockgate_core::limits::{Limits, Scoped};

use super::{limits::rate, *};

fn coalescing(change: impl FnOnce(&mut Coalescing)) -> DispatchOptions {
    let mut coalescing = Coalescing::default();
    change(&mut coalescing);
    DispatchOptions {
        coalescing: Some(coalescing),
        ..DispatchOptions::default()
    }
}

fn debounce(quiet: Millis, wait_max: Millis) -> DispatchOptions {
    coalescing(|it| (it.quiet, it.wait_max) = (quiet, wait_max))
}

/// Messages of a key, accepted so long ago.
fn aged(key: &'static str, ages: &[(u64, Option<Millis>)]) -> Vec<Arrival<Text>> {
    let arrivals = ages.iter().map(|&(number, age)| Arrival {
        age,
        ..arrival(Some(key), number)
    });
    arrivals.collect()
}

fn numbers(key: &'static str, numbers: std::ops::RangeInclusive<u64>) -> Vec<Arrival<Text>> {
    numbers.map(|number| arrival(Some(key), number)).collect()
}

fn acked(actions: &[Action<Text>]) -> Vec<u64> {
    let outcomes = outcomes(actions).into_iter();
    let acked = outcomes.map(|(number, how)| {
        assert_eq!(how, Settlement::Ack);
        number
    });
    acked.collect()
}

#[test]
fn a_run_covers_what_is_here_and_the_next_one_what_comes_meanwhile() {
    for source in [plain(), locked()] {
        let mut dispatcher = dispatcher(coalescing(|_| {}), source);
        dispatcher.received(0, 10, numbers("a", 1..=3), 0);
        dispatcher.received(
            0,
            10,
            [arrival(Some("b"), 4), arrival(None, 5), arrival(None, 6)],
            0,
        );
        let actions = drain_actions(&mut dispatcher, 0);
        // What has no key is not coalesced.
        assert_eq!(
            started(&actions),
            [vec![1, 2, 3], vec![4], vec![5], vec![6]]
        );
        dispatcher.received(0, 10, numbers("a", 7..=8), 1);
        assert_eq!(started(&drain_actions(&mut dispatcher, 1)), [[0; 0]; 0]);
        dispatcher.finished(runs(&actions)[0], succeeded(), 2, 0);
        let actions = drain_actions(&mut dispatcher, 2);
        assert_eq!(
            (acked(&actions), started(&actions)),
            (vec![1, 2, 3], vec![vec![7, 8]])
        );
        assert_eq!(
            (dispatcher.counts().started, dispatcher.counts().covered),
            (5, 2)
        );
    }
}

/// However far the handler says it has come.
#[test]
fn a_run_that_fails_covers_nothing_and_is_tried_again_with_what_has_come() {
    let mut here = dispatcher(coalescing(|_| {}), plain());
    here.received(0, 10, numbers("a", 1..=3), 0);
    let run = runs(&drain_actions(&mut here, 0))[0];
    here.received(0, 10, numbers("a", 4..=4), 10);
    here.finished(run, failed(2), 20, 0);
    assert_eq!(outcomes(&drain_actions(&mut here, 119)), []);
    let actions = drain_actions(&mut here, 120);
    assert_eq!(started(&actions), [[1, 2, 3, 4]]);
    here.finished(runs(&actions)[0], succeeded(), 120, 0);
    assert_eq!(acked(&drain_actions(&mut here, 120)), [1, 2, 3, 4]);

    // A source that locks keys gives them all again, and the attempt is counted for the first.
    let mut there = dispatcher(coalescing(|_| {}), locked());
    there.received(0, 10, numbers("a", 1..=3), 0);
    let run = runs(&drain_actions(&mut there, 0))[0];
    there.finished(run, failed(2), 20, 0);
    let nack = Settlement::Nack {
        delay: Duration::from_millis(100),
        reason: None,
    };
    let back = Settlement::GiveBack;
    let expected = [(1, nack), (2, back.clone()), (3, back)];
    assert_eq!(outcomes(&drain_actions(&mut there, 20)), expected);
}

#[test]
fn what_a_run_covers_is_rejected_with_it() {
    let reason: Arc<str> = "bad".into();
    let rejected = Rest::Rejected {
        reason: reason.clone(),
    };
    for (source, attempts_max, rest) in [
        (locked(), None, rejected.clone()),
        (plain_that_rejects(), None, rejected),
        (plain_that_rejects(), Some(1), failed(0).rest),
    ] {
        let options = DispatchOptions {
            attempts_max,
            ..coalescing(|it| it.messages_max = 3)
        };
        let mut dispatcher = dispatcher(options, source);
        dispatcher.received(0, 10, numbers("a", 1..=4), 0);
        let run = runs(&drain_actions(&mut dispatcher, 0))[0];
        dispatcher.finished(run, RunEnd { done: 0, rest }, 0, 0);
        let actions = drain_actions(&mut dispatcher, 0);
        let outcomes = outcomes(&actions);
        let is_rejected = |how: &Settlement| matches!(how, Settlement::Reject { .. });
        let rejected = outcomes.iter().filter(|(_, how)| is_rejected(how));
        assert_eq!(
            rejected.map(|(number, _)| *number).collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }
}

fn plain_that_rejects() -> SourceOptions {
    let mut source = plain();
    source.capabilities.reject = true;
    source
}

/// (when, and how old the message is), and when they run.
#[test]
fn a_run_waits_until_its_key_is_quiet_but_not_for_ever() {
    let cases: [(&[(Millis, Millis)], Millis); 5] = [
        (&[(0, 0)], 100),
        (&[(0, 40)], 60),
        (&[(0, 1_000)], 0),
        (&[(0, 0), (90, 0)], 190),
        (&[(0, 0), (90, 0), (180, 0), (240, 0)], 250),
    ];
    for (arrivals, runs_at) in cases {
        let mut dispatcher = dispatcher(debounce(100, 250), plain());
        let mut now = 0;
        for (number, (at, age)) in (1..).zip(arrivals) {
            assert_eq!(started(&drain_actions(&mut dispatcher, *at)), [[0; 0]; 0]);
            dispatcher.received(0, 10, aged("a", &[(number, Some(*age))]), *at);
            now = *at;
        }
        let mut actions = drain_actions(&mut dispatcher, now);
        while runs(&actions).is_empty() {
            let wait = dispatcher.explain(0, &key("a")).unwrap().wait;
            let due = dispatcher.next_deadline().unwrap();
            assert!(
                matches!(wait, KeyWait::Coalescing(until) if until == due),
                "{wait:?}"
            );
            now = due;
            actions = drain_actions(&mut dispatcher, now);
        }
        let all: Vec<u64> = (1..=arrivals.len() as u64).collect();
        assert_eq!(
            (now, started(&actions)),
            (runs_at, vec![all]),
            "{arrivals:?}"
        );
    }
}

/// So that what comes meanwhile comes along; one that does not say when it accepted a message is not asked again and
/// again.
#[test]
fn a_wait_goes_back_to_a_source_that_locks_keys_and_tells_ages() {
    let ages = [(1, Some(500)), (2, Some(30))];
    let mut telling = dispatcher(debounce(100, 1_000), locked());
    telling.received(0, 10, aged("a", &ages), 0);
    let delay = Duration::from_millis(70);
    let expected = [(1, Settlement::Defer { delay }), (2, Settlement::GiveBack)];
    assert_eq!(outcomes(&drain_actions(&mut telling, 0)), expected);
    // The oldest has waited long enough.
    let mut late = dispatcher(debounce(100, 400), locked());
    late.received(0, 10, aged("a", &ages), 0);
    assert_eq!(started(&drain_actions(&mut late, 0)), [[1, 2]]);

    let mut silent = dispatcher(debounce(100, 1_000), locked());
    silent.received(0, 10, aged("a", &[(1, None)]), 0);
    assert_eq!(outcomes(&drain_actions(&mut silent, 99)), []);
    assert_eq!(started(&drain_actions(&mut silent, 100)), [[1]]);
}

#[test]
fn a_run_that_is_full_waits_for_no_more() {
    let by_count = Coalescing {
        messages_max: 3,
        ..Coalescing::default()
    };
    let by_bytes = Coalescing {
        bytes_max: 3,
        ..Coalescing::default()
    };
    for bound in [by_count, by_bytes] {
        let mut options = debounce(100, 1_000);
        options.coalescing = Some(Coalescing {
            quiet: 100,
            wait_max: 1_000,
            ..bound
        });
        let mut dispatcher = dispatcher(options, plain());
        dispatcher.received(0, 10, numbers("a", 1..=2), 0);
        assert_eq!(started(&drain_actions(&mut dispatcher, 0)), [[0; 0]; 0]);
        dispatcher.received(0, 10, numbers("a", 3..=4), 50);
        assert_eq!(started(&drain_actions(&mut dispatcher, 100)), [[1, 2, 3]]);
    }
    // One that alone is too large runs alone.
    let mut large = dispatcher(coalescing(|it| it.bytes_max = 3), plain());
    let mut arrivals = numbers("a", 1..=2);
    arrivals[0].bytes = 4;
    large.received(0, 10, arrivals, 0);
    assert_eq!(started(&drain_actions(&mut large, 0)), [[1]]);
}

#[test]
fn runs_of_a_key_keep_their_distance_and_count_once() {
    let mut options = coalescing(|it| it.period = 100);
    options.limits = Scoped {
        queue: Some(Limits {
            concurrency: Some(2),
            ..Limits::default()
        }),
        key: Some(rate(1, 50)),
    };
    let mut dispatcher = dispatcher(options, plain());
    dispatcher.received(0, 10, numbers("a", 1..=3), 0);
    let first = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&first), [[1, 2, 3]]);
    dispatcher.received(0, 10, numbers("a", 4..=5), 10);
    dispatcher.finished(runs(&first)[0], succeeded(), 20, 0);
    assert_eq!(started(&drain_actions(&mut dispatcher, 99)), [[0; 0]; 0]);
    let second = drain_actions(&mut dispatcher, 100);
    assert_eq!(started(&second), [[4, 5]]);
    // Of two runs at a time one is taken, whatever they cover.
    dispatcher.received(0, 10, numbers("b", 6..=9), 100);
    dispatcher.received(0, 10, numbers("c", 10..=11), 100);
    assert_eq!(
        started(&drain_actions(&mut dispatcher, 100)),
        [[6, 7, 8, 9]]
    );
    dispatcher.finished(runs(&second)[0], succeeded(), 101, 0);
    assert_eq!(started(&drain_actions(&mut dispatcher, 101)), [[10, 11]]);
}

/// Over a source that locks keys the rest goes back until then, however soon that is.
#[test]
fn what_a_throttle_holds_goes_back_to_a_source_that_locks_keys() {
    let mut dispatcher = dispatcher(coalescing(|it| it.period = 100), locked());
    dispatcher.received(0, 10, numbers("a", 1..=1), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, succeeded(), 20, 0);
    let acked = settles(&drain_actions(&mut dispatcher, 20))[0].0;
    dispatcher.settled(0, [(acked, Ok(()))], 20, 0);
    dispatcher.received(0, 10, numbers("a", 2..=3), 30);
    let delay = Duration::from_millis(70);
    let actions = drain_actions(&mut dispatcher, 30);
    let expected = [(2, Settlement::Defer { delay }), (3, Settlement::GiveBack)];
    assert_eq!(outcomes(&actions), expected);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let cases = [
        (
            "run_max of a worker that coalesces",
            DispatchOptions {
                run_max: 2,
                ..coalescing(|_| {})
            },
        ),
        ("quiet", debounce(2, 1)),
        ("messages_max", coalescing(|it| it.messages_max = 0)),
        ("bytes_max", coalescing(|it| it.bytes_max = 0)),
        ("period", coalescing(|it| it.period = Millis::MAX)),
    ];
    for (what, options) in cases {
        let error = Dispatcher::<Text>::new(options, vec![plain()], 0).unwrap_err();
        assert_eq!(error.what, what);
    }
}

//! Limits of a worker.

use lockgate_core::limits::{HoldScope, Limit, Limits, Rate, Scoped, Window};

use super::{super::receives::RECEIVES_MAX, *};

pub(super) fn rate(units: u64, period: Millis) -> Limits {
    let rate = Rate::new(units, period).unwrap().with_burst(1).unwrap();
    Limits {
        rate: Some(rate),
        ..Limits::default()
    }
}

pub(super) fn at_once(most: u32) -> Limits {
    Limits {
        concurrency: Some(most),
        ..Limits::default()
    }
}

pub(super) fn window(units: u64, period: Millis) -> Limits {
    Limits {
        window: Some(Window::new(units, period).unwrap()),
        ..Limits::default()
    }
}

fn limited(queue: Option<Limits>, key: Option<Limits>) -> DispatchOptions {
    DispatchOptions {
        limits: Scoped { queue, key },
        ..DispatchOptions::default()
    }
}

/// The numbers of what starts now, which succeeds at once.
fn handled(dispatcher: &mut Dispatcher<Text>, now: Millis) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let actions = drain_actions(dispatcher, now);
        let runs = runs(&actions);
        if runs.is_empty() {
            return numbers;
        }
        numbers.extend(started(&actions).concat());
        for run in runs {
            dispatcher.finished(run, succeeded(), now, 0);
        }
    }
}

#[test]
fn a_limited_key_waits_and_holds_up_no_other() {
    let mut dispatcher = dispatcher(limited(None, Some(rate(10, 1_000))), plain());
    let arrivals = [
        (Some("a"), 1),
        (Some("a"), 2),
        (Some("a"), 3),
        (Some("b"), 4),
    ];
    dispatcher.received(0, 10, arrivals.map(|(key, number)| arrival(key, number)), 0);
    assert_eq!(handled(&mut dispatcher, 0), [1, 4]);
    let wait = |limit, of_key, until| KeyWait::Limit {
        limit,
        of_key,
        until,
    };
    let state = dispatcher.explain(0, &key("a")).unwrap();
    assert_eq!(state.wait, wait(Limit::Rate, true, Some(100)));
    assert_eq!(handled(&mut dispatcher, 99), [] as [u64; 0]);
    assert_eq!(dispatcher.next_deadline(), Some(100));
    assert_eq!(handled(&mut dispatcher, 100), [2]);
    assert_eq!(handled(&mut dispatcher, 1_000), [3]);
}

#[test]
fn a_limit_of_the_worker_is_for_all_keys() {
    let mut options = limited(Some(at_once(2)), None);
    options.stall_after = 1_000;
    let mut dispatcher = dispatcher(options, plain());
    for (number, key) in (1..).zip(["a", "b", "c", "d"]) {
        dispatcher.received(0, 10, [arrival(Some(key), number)], 0);
    }
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1], [2]]);
    let state = dispatcher.explain(0, &key("c")).unwrap();
    let wait = KeyWait::Limit {
        limit: Limit::Concurrency,
        of_key: false,
        until: None,
    };
    assert_eq!(state.wait, wait);
    // Runs that hang are a stall, whatever they hold up.
    assert!(dispatcher.stall(1_000).is_some());
    for run in runs(&actions) {
        dispatcher.finished(run, failed(0), 10, 0);
    }
    assert_eq!(started(&drain_actions(&mut dispatcher, 10)), [[3], [4]]);
}

/// The same key of two sources, as after a queue was split.
#[test]
fn a_key_is_one_whatever_its_source() {
    let options = limited(None, Some(at_once(1)));
    let mut dispatcher = Dispatcher::new(options, vec![plain(), plain()], 0).unwrap();
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    dispatcher.received(1, 10, [arrival(Some("a"), 2), arrival(None, 3)], 0);
    let actions = drain_actions(&mut dispatcher, 0);
    let mut first = started(&actions).concat();
    first.sort_unstable();
    assert_eq!((first.len(), first[1]), (2, 3));
    for run in runs(&actions) {
        dispatcher.finished(run, succeeded(), 5, 0);
    }
    assert_eq!(
        started(&drain_actions(&mut dispatcher, 5)).concat(),
        [3 - first[0]]
    );
}

/// Otherwise held keys would take the room of the others.
#[test]
fn a_long_wait_goes_back_to_a_source_that_defers() {
    let mut dispatcher = dispatcher(limited(None, Some(rate(1, 60_000))), locked());
    let of_a = (1..=3).map(|number| arrival(Some("a"), number));
    dispatcher.received(0, 10, of_a, 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, succeeded(), 500, 0);
    let acked = settles(&drain_actions(&mut dispatcher, 500));
    dispatcher.settled(0, [(acked[0].0, Ok(()))], 500, 0);
    let delay = Duration::from_millis(59_500);
    let expected = [(2, Settlement::Defer { delay }), (3, Settlement::GiveBack)];
    let actions = drain_actions(&mut dispatcher, 500);
    assert_eq!(outcomes(&actions), expected);
    let settled = settles(&actions).into_iter();
    dispatcher.settled(0, settled.map(|(id, ..)| (id, Ok(()))), 500, 0);
    // At once, though nothing else is to be done.
    for _ in 0..RECEIVES_MAX {
        dispatcher.received(0, 10, [], 500);
    }
    drain_actions(&mut dispatcher, 500);
    dispatcher.received(0, 10, [arrival(Some("a"), 4)], 600);
    let actions = drain_actions(&mut dispatcher, 600);
    assert!(matches!(actions[0], Action::Settle { .. }), "{actions:?}");
    // A source that does not lock keys would hand out what is behind it.
    let mut dispatcher = self::dispatcher(limited(None, Some(rate(1, 60_000))), plain());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    assert_eq!(handled(&mut dispatcher, 0), [1]);
    assert_eq!(dispatcher.held(), 3, "one is to be settled");
}

#[test]
fn what_costs_more_than_ever_starts_is_rejected_in_its_order() {
    let mut dispatcher = dispatcher(limited(Some(window(10, 1_000)), None), locked());
    let costs = [(1, 4), (2, 11), (3, 0)];
    for (number, cost) in costs {
        let arrival = Arrival {
            cost,
            ..arrival(None, number)
        };
        dispatcher.received(0, 10, [arrival], 0);
    }
    let how = outcomes(&drain_actions(&mut dispatcher, 0));
    let reject = |cost| Settlement::Reject {
        reason: Some(
            format!("it costs {cost} units, and the worker's limits admit 1 to 10").into(),
        ),
    };
    assert_eq!(how, [(2, reject(11)), (3, reject(0))]);
}

/// The second of a run costs what is not left: it waits, also when a smaller one comes.
#[test]
fn costs_are_paid_in_turn() {
    let mut options = limited(Some(window(10, 1_000)), None);
    options.run_max = 10;
    let mut dispatcher = dispatcher(options, plain());
    let of = |key, number, cost| Arrival {
        cost,
        ..arrival(Some(key), number)
    };
    dispatcher.received(0, 10, [of("a", 1, 6), of("a", 2, 6)], 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1]]);
    dispatcher.finished(runs(&actions)[0], succeeded(), 1, 0);
    assert_eq!(started(&drain_actions(&mut dispatcher, 1)), [[0; 0]; 0]);
    dispatcher.received(0, 10, [of("b", 3, 1)], 2);
    assert_eq!(started(&drain_actions(&mut dispatcher, 2)), [[0; 0]; 0]);
    let due = dispatcher.next_deadline().unwrap();
    assert_eq!(started(&drain_actions(&mut dispatcher, due)), [[2], [3]]);
    assert_eq!(due, 1_000);
}

#[test]
fn a_hold_is_of_the_worker() {
    let options = DispatchOptions {
        stall_after: 100,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, plain());
    for (number, key) in (1..).zip(["a", "b"]) {
        dispatcher.received(0, 10, [arrival(Some(key), number)], 0);
    }
    let runs = runs(&drain_actions(&mut dispatcher, 0));
    let rest = Rest::Held {
        delay: 500,
        scope: HoldScope::Queue,
    };
    dispatcher.finished(runs[0], RunEnd { done: 0, rest }, 0, 0);
    dispatcher.finished(runs[1], succeeded(), 1, 0);
    dispatcher.received(0, 10, [arrival(Some("c"), 3)], 2);
    assert_eq!(started(&drain_actions(&mut dispatcher, 499)), [[0; 0]; 0]);
    assert_eq!(
        (dispatcher.next_deadline(), dispatcher.stall(499)),
        (Some(500), None)
    );
    assert_eq!(handled(&mut dispatcher, 500).len(), 2);
}

/// As far as the source can: then others wait too, and at most as long as it can.
#[test]
fn a_hold_is_passed_on_to_the_source() {
    let (second, long) = (Duration::from_secs(1), Duration::from_secs(60));
    let longest = Duration::from_secs(30);
    let hold = |delay, scope| Settlement::Hold { delay, scope };
    let cases = [
        (
            true,
            second,
            HoldScope::Queue,
            hold(second, HoldScope::Queue),
        ),
        (true, second, HoldScope::Key, hold(second, HoldScope::Key)),
        (
            true,
            long,
            HoldScope::Queue,
            hold(longest, HoldScope::Queue),
        ),
        (
            true,
            Duration::ZERO,
            HoldScope::Key,
            Settlement::Defer {
                delay: Duration::ZERO,
            },
        ),
        (
            false,
            second,
            HoldScope::Queue,
            Settlement::Defer { delay: second },
        ),
        (
            false,
            second,
            HoldScope::Key,
            Settlement::Defer { delay: second },
        ),
    ];
    for (can_hold, delay, scope, expected) in cases {
        let mut source = locked();
        source.capabilities.hold = can_hold;
        source.capabilities.nack_delay_max = longest;
        let mut dispatcher = dispatcher(DispatchOptions::default(), source);
        dispatcher.received(0, 10, [arrival(Some("a"), 1), arrival(Some("b"), 2)], 0);
        let runs = runs(&drain_actions(&mut dispatcher, 0));
        let rest = Rest::Held {
            delay: Millis::try_from(delay.as_millis()).unwrap(),
            scope,
        };
        dispatcher.finished(runs[0], RunEnd { done: 0, rest }, 0, 0);
        let actions = drain_actions(&mut dispatcher, 0);
        let expected = [(1, expected)];
        assert_eq!(
            outcomes(&actions),
            expected,
            "{can_hold}, {delay:?}, {scope:?}"
        );
        // The worker as a whole waits for a hold of the queue only.
        dispatcher.finished(runs[1], succeeded(), 0, 0);
        dispatcher.received(0, 10, [arrival(Some("c"), 3)], 0);
        let is_held = scope == HoldScope::Queue && !delay.is_zero();
        let started = started(&drain_actions(&mut dispatcher, 0)).len();
        assert_eq!(started, usize::from(!is_held));
    }
}

#[test]
fn what_did_not_begin_is_not_charged() {
    let mut dispatcher = dispatcher(limited(None, Some(rate(1, 60_000))), plain());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let rest = Rest::NotBegun;
    dispatcher.finished(run, RunEnd { done: 0, rest }, 0, 0);
    // After a while, as nobody has cancelled it.
    let due = dispatcher.next_deadline().unwrap();
    assert_eq!(handled(&mut dispatcher, due), [1]);
    // A claim that fails costs nothing either.
    dispatcher.received(0, 10, [arrival(Some("b"), 2), arrival(Some("b"), 3)], due);
    let run = runs(&drain_actions(&mut dispatcher, due))[0];
    dispatcher.claiming(run);
    assert_eq!(dispatcher.claimed(run, [Err(Fate::Stale)], due), [false]);
    let rest = Rest::NotBegun;
    dispatcher.finished(run, RunEnd { done: 0, rest }, due, 0);
    dispatcher.received(0, 10, [arrival(Some("b"), 4)], due);
    assert_eq!(handled(&mut dispatcher, due), [4]);
}

/// No more than the limit and one refill, however many wait.
#[test]
fn messages_of_a_key_without_order_keep_to_its_limit() {
    let mut options = limited(None, Some(rate(100, 1_000)));
    options.order = Order::Unordered;
    let mut dispatcher = dispatcher(options, plain());
    dispatcher.received(0, 100, (0..50).map(|number| arrival(Some("a"), number)), 0);
    let mut times = Vec::new();
    let mut now = 0;
    while times.len() < 50 {
        times.extend(handled(&mut dispatcher, now).iter().map(|_| now));
        now = dispatcher.next_deadline().unwrap();
    }
    assert!(
        times.iter().copied().eq((0..50).map(|number| number * 10)),
        "{times:?}"
    );
}

#[test]
fn keys_that_owe_nothing_are_forgotten() {
    let mut dispatcher = dispatcher(limited(None, Some(rate(1_000, 1_000))), plain());
    for number in 0..20_000_u64 {
        let arrival = Arrival {
            key: Some(key(&format!("k{number}"))),
            ..arrival(None, number)
        };
        dispatcher.received(0, 10, [arrival], number);
        assert_eq!(handled(&mut dispatcher, number), [number]);
        let settled = settles(&drain_actions(&mut dispatcher, number));
        dispatcher.settled(
            0,
            settled.into_iter().map(|(id, ..)| (id, Ok(()))),
            number,
            0,
        );
    }
    assert!(dispatcher.limits.as_ref().unwrap().keys() <= 1_024);
}

#[test]
fn a_pause_gives_back_whose_turn_it_is() {
    // One unit is left, so the second has its turn and waits.
    let mut dispatcher = dispatcher(limited(Some(window(3, 1_000)), None), locked());
    for number in 1..=3 {
        let arrival = Arrival {
            cost: 2,
            ..arrival(None, number)
        };
        dispatcher.received(0, 10, [arrival], 0);
    }
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[1]]);
    dispatcher.pause();
    let back = Settlement::GiveBack;
    let given_back = drain_actions(&mut dispatcher, 1);
    assert_eq!(outcomes(&given_back), [(2, back.clone()), (3, back)]);
    let given_back = settles(&given_back).into_iter();
    dispatcher.settled(0, given_back.map(|(id, ..)| (id, Ok(()))), 1, 0);
    dispatcher.finished(runs(&actions)[0], succeeded(), 2, 0);
    dispatcher.resume(2);
    assert_eq!(handled(&mut dispatcher, 2_000), [] as [u64; 0]);
    dispatcher.received(0, 10, [arrival(None, 4)], 2_000);
    assert_eq!(handled(&mut dispatcher, 2_000), [4]);
}

#[test]
fn limits_out_of_range_are_refused() {
    let options = limited(Some(at_once(0)), None);
    let error = Dispatcher::<()>::new(options, vec![plain()], 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "concurrency must be 1 to 4294967295, not 0"
    );
}

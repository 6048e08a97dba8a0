use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A start of so many units so many milliseconds after the one before was tried.
fn tries() -> impl Strategy<Value = Vec<(Millis, u64)>> {
    let passed = prop_oneof![Just(0), 0..5_u64, 0..500_u64, 0..20_000_u64];
    prop::collection::vec((passed, 1..8_u64), 1..200)
}

fn rates() -> impl Strategy<Value = Rate> {
    (1..200_u64, 1..30_000_u64, 8..50_u64).prop_map(|(units, period, burst)| {
        Rate::new(units, period).unwrap().with_burst(burst).unwrap()
    })
}

fn windows() -> impl Strategy<Value = Window> {
    (8..200_u64, 1..30_000_u64).prop_map(|(units, period)| Window::new(units, period).unwrap())
}

fn limits() -> impl Strategy<Value = Limits> {
    let gap = 1..2_000_u64;
    (
        prop::option::of(1..5_u32),
        prop::option::of(gap),
        prop::option::of(rates()),
        prop::option::of(windows()),
    )
        .prop_map(|(concurrency, gap, rate, window)| Limits {
            concurrency,
            gap,
            rate,
            window,
        })
}

fn only(rate: Option<Rate>, window: Option<Window>) -> Limits {
    Limits {
        rate,
        window,
        ..Limits::default()
    }
}

/// Tries to start all, and once more when a refusal says that it will do. Returns when what started.
fn run(limiter: &Limiter, tries: &[(Millis, u64)]) -> Vec<(Millis, u64)> {
    let (mut state, mut now, mut started) = (LimitState::default(), 0, Vec::new());
    for &(passed, cost) in tries {
        now += passed;
        match start([(limiter, &mut state)], cost, now) {
            Ok(_) => started.push((now, cost)),
            Err(Holds {
                wait: Wait::Until(at),
                ..
            }) => {
                assert!(at > now);
                let mut before = state.clone();
                let early = start([(limiter, &mut before)], cost, at - 1);
                assert!(early.is_err(), "it could start before {at}");
                now = at;
                start([(limiter, &mut state)], cost, now).unwrap();
                started.push((now, cost));
            }
            Err(holds) => panic!("{holds:?}"),
        }
    }
    started
}

/// Whether in any time there are no more units than the burst and what that time brings.
fn keeps_rate(rate: Rate, started: &[(Millis, u64)]) -> bool {
    started.iter().enumerate().all(|(number, (first, _))| {
        let mut units = 0;
        started[number..].iter().all(|(last, cost)| {
            units += cost;
            let above = units.saturating_sub(rate.burst());
            above * rate.period() <= rate.units() * (last - first)
        })
    })
}

/// Whether a period has no more units than it may, wherever it is placed.
fn keeps_window(window: Window, started: &[(Millis, u64)]) -> bool {
    started.iter().enumerate().all(|(number, (first, _))| {
        let rest = started[number..].iter();
        let within = rest.take_while(|(at, _)| at - first < window.period());
        within.map(|(_, cost)| cost).sum::<u64>() <= window.units()
    })
}

proptest! {
    /// In any time, no more than the burst and what that time brings; and each start as soon as that allows.
    #[test]
    fn a_rate_holds_over_any_time(rate in rates(), tries in tries()) {
        let limiter = Limiter::new(only(Some(rate), None), 0).unwrap();
        let started = run(&limiter, &tries);
        prop_assert!(keeps_rate(rate, &started), "{started:?}");
    }

    /// Wherever the period is placed; and up to the part of a period, each start as soon as that allows.
    #[test]
    fn a_window_holds_wherever_it_is_placed(window in windows(), tries in tries()) {
        let limiter = Limiter::new(only(None, Some(window)), 0).unwrap();
        let started = run(&limiter, &tries);
        prop_assert!(keeps_window(window, &started), "{started:?}");
        // Who waited would have been too much a part of the period earlier.
        let part = if window.units() > 64 { window.period().div_ceil(64) } else { 1 };
        let mut now = 0;
        for (number, ((at, cost), (passed, _))) in started.iter().zip(&tries).enumerate() {
            let tried = now + passed;
            now = *at;
            if let Some(before) = at.checked_sub(part).filter(|before| *before >= tried) {
                let counts = |then: &&(Millis, u64)| then.0 + window.period() > before;
                let used = started[..number].iter().filter(counts).map(|(_, cost)| cost);
                prop_assert!(used.sum::<u64>() + cost > window.units(), "{started:?}");
            }
        }
    }

    /// As docs/limits.md says it: `(N - B)/T burst B` starts no more than N in any T, both of its ends included.
    #[test]
    fn a_rate_with_a_burst_is_a_strict_window(
        (most, burst) in (2..200_u64).prop_flat_map(|most| (Just(most), 1..most)),
        period in 1..30_000_u64,
        tries in tries(),
    ) {
        let rate = Rate::new(most - burst, period).unwrap().with_burst(burst).unwrap();
        let limiter = Limiter::new(only(Some(rate), None), 0).unwrap();
        let tries: Vec<_> = tries.into_iter().map(|(passed, _)| (passed, 1)).collect();
        let started = run(&limiter, &tries);
        for (number, (first, _)) in started.iter().enumerate() {
            let within = started[number..].iter().take_while(|(at, _)| at - first <= period);
            prop_assert!(within.count() as u64 <= most, "{rate:?}: {started:?}");
        }
    }

    /// A change of the rate takes no debt away and adds none: over any time, no more starts than the largest
    /// burst and what each rate brings while it lasts.
    #[test]
    fn a_change_keeps_the_debt(
        rates in prop::collection::vec((rates(), 1..5_000_u64), 2..6),
        tries in tries(),
    ) {
        let mut limiter = Limiter::new(only(Some(rates[0].0), None), 0).unwrap();
        let mut changes: BTreeMap<Millis, Rate> = BTreeMap::new();
        let mut at = 0;
        for (rate, lasts) in &rates {
            changes.insert(at, *rate);
            at += lasts;
        }
        let (mut state, mut now, mut started) = (LimitState::default(), 0, Vec::new());
        let mut coming = changes.clone();
        for (passed, cost) in tries {
            now += passed;
            while let Some(next) = coming.first_entry().filter(|next| *next.key() <= now) {
                let (at, rate) = next.remove_entry();
                limiter.change(only(Some(rate), None), at).unwrap();
            }
            if start([(&limiter, &mut state)], cost, now).is_ok() {
                started.push((now, cost));
            }
        }
        // Units that all rates bring from the beginning until then, in ten-thousandths, rounded up.
        let brought = |until: Millis| -> u128 {
            let ends = changes.keys().skip(1).copied().chain([Millis::MAX]);
            changes.iter().zip(ends).map(|((from, rate), end)| {
                let lasts = u128::from(end.min(until).saturating_sub(*from));
                (lasts * u128::from(rate.units()) * 10_000).div_ceil(rate.period().into())
            }).sum()
        };
        // Who owes more than a smaller burst owes that burst only, and a larger one behind it is open again.
        let bursts = rates.iter().map(|(rate, _)| u128::from(rate.burst()));
        let before = std::iter::once(0).chain(bursts.clone());
        let burst: u128 = bursts.zip(before).map(|(burst, before)| burst.saturating_sub(before)).sum();
        for (number, (first, _)) in started.iter().enumerate() {
            let mut units = 0_u128;
            for (last, cost) in &started[number..] {
                units += u128::from(*cost);
                let bound = burst * 10_000 + brought(*last) - brought(*first) + rates.len() as u128;
                prop_assert!(units * 10_000 <= bound, "{started:?}");
            }
        }
    }

    /// Nobody can tell a member that was forgotten when it was idle from one that was kept; what is refused has
    /// changed nothing; and never more goes on than may.
    #[test]
    fn forgetting_what_is_idle_changes_nothing(
        limits in limits(),
        tries in prop::collection::vec((0..3_000_u64, 1..8_u64, any::<bool>()), 1..200),
    ) {
        let limiter = Limiter::new(limits.clone(), 0).unwrap();
        let (mut kept, mut other, mut now) = (LimitState::default(), LimitState::default(), 0);
        for (passed, cost, finish) in tries {
            now += passed;
            if finish {
                kept.finish();
                other.finish();
            }
            if let Some(at) = other.idle_at(&limiter) {
                prop_assert!(at == 0 || !other.is_idle(&limiter, at - 1));
            }
            if other.is_idle(&limiter, now) {
                other = LimitState::default();
            }
            let before = kept.clone();
            let results = [&mut kept, &mut other].map(|state| start([(&limiter, state)], cost, now));
            prop_assert_eq!(&results[0], &results[1]);
            prop_assert!(results[0].is_ok() || kept == before);
            prop_assert!(limits.concurrency.is_none_or(|most| kept.running() <= most));
        }
    }

    /// However late a refund comes, what did happen keeps within the limits.
    #[test]
    fn a_late_refund_lets_nothing_more_happen(
        rate in rates(),
        window in windows(),
        tries in prop::collection::vec((0..2_000_u64, 1..8_u64, prop::option::of(0..20_usize)), 1..200),
    ) {
        let limiter = Limiter::new(only(Some(rate), Some(window)), 0).unwrap();
        let (mut state, mut now, mut started) = (LimitState::default(), 0, Vec::<(Millis, u64)>::new());
        let mut pending: Vec<Option<(Millis, u64)>> = Vec::new();
        for (passed, cost, refund) in tries {
            now += passed;
            if let Some(number) = refund
                && let Some((at, cost)) = pending.iter_mut().rev().nth(number).and_then(Option::take)
            {
                state.refund(&limiter, cost, at, now);
                let number = started.len() - 1 - number;
                started[number] = (started[number].0, 0);
            }
            if start([(&limiter, &mut state)], cost, now).is_ok() {
                pending.push(Some((now, cost)));
                started.push((now, cost));
            }
        }
        prop_assert!(keeps_rate(rate, &started), "{started:?}");
        prop_assert!(keeps_window(window, &started), "{started:?}");
    }

    /// What has not happened holds nothing but the gap.
    #[test]
    fn a_refund_gives_back_what_was_charged(
        mut limits in limits(),
        tries in tries(),
        cost in 1..8_u64,
    ) {
        limits.gap = None;
        let limiter = Limiter::new(limits, 0).unwrap();
        let (mut state, mut now) = (LimitState::default(), 0);
        for (passed, cost) in tries {
            now += passed;
            if start([(&limiter, &mut state)], cost, now).is_ok() {
                state.finish();
            }
        }
        let mut refunded = state.clone();
        if start([(&limiter, &mut refunded)], cost, now).is_ok() {
            refunded.refund(&limiter, cost, now, now);
        }
        for later in [0, 1, 10, 100, 1_000, 10_000, 100_000] {
            for cost in 1..8 {
                let states = [&state, &refunded].map(|state| limiter.holds(state, cost, now + later));
                prop_assert_eq!(states[0], states[1]);
            }
        }
    }
}

/// What a high rate has lent, a low one does not ask back for hours.
#[test]
fn a_lower_rate_asks_back_one_burst_at_most() {
    let per_second = Rate::new(1_000, 1_000).unwrap();
    let mut limiter = Limiter::new(only(Some(per_second), None), 0).unwrap();
    let mut state = LimitState::default();
    for _ in 0..1_000 {
        start([(&limiter, &mut state)], 1, 5_000).unwrap();
        state.finish();
    }
    let per_minute = Rate::new(1, 60_000).unwrap();
    // In the same millisecond, and later.
    for changed in [5_000, 5_100] {
        let (mut limiter, mut state) = (limiter.clone(), state.clone());
        limiter
            .change(only(Some(per_minute), None), changed)
            .unwrap();
        assert_eq!(state.idle_at(&limiter), Some(changed + 60_000));
        for number in 1..4 {
            let at = changed + number * 60_000;
            let held = start([(&limiter, &mut state)], 1, at - 1).unwrap_err();
            assert_eq!((held.limit, held.wait), (Limit::Rate, Wait::Until(at)));
            start([(&limiter, &mut state)], 1, at).unwrap();
        }
        // It survives that the limits are kept.
        let kept = Limiter::restored(limiter.limits().clone(), limiter.saved()).unwrap();
        assert_eq!(kept, limiter);
    }
    // A refund gives back no more than is owed.
    limiter.change(only(Some(per_minute), None), 5_000).unwrap();
    state.refund(&limiter, 1, 5_000, 5_000);
    start([(&limiter, &mut state)], 1, 5_000).unwrap();
    start([(&limiter, &mut state)], 1, 64_999).unwrap_err();
}

/// It once forgave what was owed to remove a limit and set it again.
#[test]
fn what_is_owed_runs_off_while_there_is_no_limit() {
    let rate = Limits {
        rate: Some(Rate::new(1, 3_600_000).unwrap()),
        ..Limits::default()
    };
    let gap = Limits {
        gap: Some(3_600_000),
        ..Limits::default()
    };
    for (limits, limit) in [(rate, Limit::Rate), (gap, Limit::Gap)] {
        let mut limiter = Limiter::new(limits.clone(), 0).unwrap();
        let mut state = LimitState::default();
        start([(&limiter, &mut state)], 1, 1_000).unwrap();
        state.finish();
        limiter.change(Limits::default(), 2_000).unwrap();
        assert_eq!(limiter.holds(&state, 1, 2_000), None);
        // It may not be forgotten, nor by whoever keeps the limits.
        assert_eq!(state.idle_at(&limiter), Some(3_601_000));
        limiter = Limiter::restored(Limits::default(), limiter.saved()).unwrap();
        // Who starts now costs another one nothing, and takes nothing of its debt when it has not happened.
        let (mut other, mut refunded) = (LimitState::default(), state.clone());
        start([(&limiter, &mut other)], 1, 3_000).unwrap();
        refunded.refund(&limiter, 1, 3_000, 3_000);
        limiter.change(limits, 4_000).unwrap();
        refunded.refund(&limiter, 1, 3_000, 4_000);
        for state in [&state, &refunded] {
            let held = limiter.holds(state, 1, 4_000);
            assert_eq!(held, Some((Wait::Until(3_601_000), limit)));
            assert_eq!(limiter.holds(state, 1, 3_601_000), None);
        }
        if limit == Limit::Rate {
            assert_eq!(limiter.holds(&other, 1, 4_000), None);
        }
    }
}

#[test]
fn all_scopes_are_charged_or_none() {
    let rate = Rate::new(1, 1_000).unwrap();
    let queue = Limiter::new(only(Some(rate.with_burst(2).unwrap()), None), 0).unwrap();
    let key = Limiter::new(only(Some(rate), None), 0).unwrap();
    let (mut all, mut one, mut other) = Default::default();
    start([(&queue, &mut all), (&key, &mut one)], 1, 0).unwrap();
    let before = all.clone();
    let holds = start([(&queue, &mut all), (&key, &mut one)], 1, 0).unwrap_err();
    let until = Wait::Until(1_000);
    let (scope, limit) = (1, Limit::Rate);
    assert_eq!(
        holds,
        Holds {
            scope,
            limit,
            wait: until
        }
    );
    assert_eq!(all, before);
    // Another key has the other half of the queue's burst.
    start([(&queue, &mut all), (&key, &mut other)], 1, 0).unwrap();
}

#[test]
fn the_limit_that_lets_go_last_is_told() {
    let limits = Limits {
        concurrency: Some(1),
        gap: Some(5_000),
        rate: Some(Rate::new(1, 1_000).unwrap()),
        window: Some(Window::new(1, 10_000).unwrap()),
    };
    let limiter = Limiter::new(limits, 0).unwrap();
    let mut state = LimitState::default();
    start([(&limiter, &mut state)], 1, 0).unwrap();
    let told = |now| {
        let holds = start([(&limiter, &mut state.clone())], 1, now).unwrap_err();
        (holds.limit, holds.wait)
    };
    assert_eq!(told(0), (Limit::Concurrency, Wait::Finish));
    state.finish();
    let told = |now| {
        let holds = start([(&limiter, &mut state.clone())], 1, now).unwrap_err();
        (holds.limit, holds.wait)
    };
    assert_eq!(told(0), (Limit::Window, Wait::Until(10_000)));
    state.hold_until(20_000);
    state.hold_until(15_000);
    let holds = start([(&limiter, &mut state)], 1, 12_000).unwrap_err();
    assert_eq!(
        (holds.limit, holds.wait),
        (Limit::Held, Wait::Until(20_000))
    );
    assert!(!state.is_idle(&limiter, 19_999) && state.is_idle(&limiter, 20_000));
    let holds = start([(&limiter, &mut state)], 2, 20_000).unwrap_err();
    assert_eq!((holds.limit, holds.wait), (Limit::Window, Wait::Never));
}

#[test]
fn a_cost_above_the_burst_waits_until_nothing_is_owed_and_is_paid_off_afterwards() {
    let rate = Rate::new(10, 1_000).unwrap();
    let limiter = Limiter::new(only(Some(rate), None), 0).unwrap();
    let mut state = LimitState::default();
    start([(&limiter, &mut state)], 1, 0).unwrap();
    let holds = start([(&limiter, &mut state)], 50, 0).unwrap_err();
    assert_eq!(holds.wait, Wait::Until(100));
    start([(&limiter, &mut state)], 50, 100).unwrap();
    let holds = start([(&limiter, &mut state)], 1, 100).unwrap_err();
    assert_eq!(holds.wait, Wait::Until(4_200));
}

#[test]
fn a_lower_concurrency_lets_what_goes_on_end() {
    let most = |most| Limits {
        concurrency: Some(most),
        ..Limits::default()
    };
    let mut limiter = Limiter::new(most(3), 0).unwrap();
    let mut state = LimitState::default();
    for _ in 0..3 {
        start([(&limiter, &mut state)], 1, 0).unwrap();
    }
    limiter.change(most(1), 0).unwrap();
    for running in [3, 2, 1] {
        assert_eq!(state.running(), running);
        start([(&limiter, &mut state)], 1, 0).unwrap_err();
        state.finish();
    }
    start([(&limiter, &mut state)], 1, 0).unwrap();
}

#[test]
fn a_member_takes_little_memory() {
    assert!(size_of::<LimitState>() <= 72, "{}", size_of::<LimitState>());
    let limiter =
        Limiter::new(only(None, Some(Window::new(1_000_000, 1_000).unwrap())), 0).unwrap();
    let mut state = LimitState::default();
    for now in 0..100_000 {
        start([(&limiter, &mut state)], 1, now).unwrap();
        assert!(state.starts.len() <= 65);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let says = |error: LimitsError| error.to_string();
    let error = says(Rate::new(0, 1_000).unwrap_err());
    assert_eq!(
        error,
        "the number of units of a rate is 0, and may be 1 to 1000000000"
    );
    let error = says(Rate::new(1, PERIOD_MAX + 1).unwrap_err());
    assert!(error.contains("the period of a rate in ms is"), "{error}");
    let zero = |gap, concurrency| Limits {
        gap,
        concurrency,
        ..Limits::default()
    };
    assert!(Limiter::new(zero(Some(0), None), 0).is_err());
    let mut limiter = Limiter::new(zero(None, Some(1)), 0).unwrap();
    let before = limiter.clone();
    assert!(limiter.change(zero(None, Some(0)), 0).is_err());
    assert_eq!(limiter, before);
    // The widest ones there are overflow nothing.
    let rate = Rate::new(UNITS_MAX, 1).unwrap();
    let limiter = Limiter::new(only(Some(rate), None), 0).unwrap();
    let mut state = LimitState::default();
    start([(&limiter, &mut state)], UNITS_MAX, Millis::MAX).unwrap();
    let rate = Rate::new(1, PERIOD_MAX).unwrap();
    let mut slow = limiter.clone();
    slow.change(only(Some(rate), None), Millis::MAX).unwrap();
    let holds = start([(&slow, &mut state)], UNITS_MAX, Millis::MAX);
    // Time has come to its end, and all waits are over with it.
    assert!(holds.is_ok());
    let holds = start([(&slow, &mut state)], 1, Millis::MAX - 1).unwrap_err();
    assert_eq!(holds.wait, Wait::Until(Millis::MAX));
}

proptest! {
    #[test]
    fn limits_are_read_as_they_are_shown(
        rates in (prop::option::of(rates()), prop::option::of(rates())),
        gaps in (prop::option::of(1..PERIOD_MAX), prop::option::of(1..100_000_000_u64)),
        usual in any::<bool>(),
    ) {
        let rate = |rate: Rate| match usual {
            true => Rate::new(rate.units(), rate.period()).unwrap(),
            false => rate,
        };
        let rates = Scoped { queue: rates.0.map(rate), key: rates.1.map(rate) };
        let gaps = Scoped { queue: gaps.0.and_then(Gap::new), key: gaps.1.and_then(Gap::new) };
        prop_assert!(rates.is_none() || rates.to_string().parse() == Ok(rates), "{rates}");
        prop_assert!(gaps.is_none() || gaps.to_string().parse() == Ok(gaps), "{gaps}");
    }
}

#[test]
fn limits_are_written_as_people_do() {
    let shown = |text: &str| text.parse::<Scoped<Rate>>().map(|limit| limit.to_string());
    for text in [
        "10/s",
        "10/s per key",
        "100/s + 10/s per key",
        "1/m burst 5",
    ] {
        assert_eq!(shown(text).as_deref(), Ok(text));
    }
    let same = [
        (" 10/1s  per  key ", "10/s per key"),
        ("10/60s+1/h burst 1 per key", "10/m + 1/h per key"),
        ("5/s per key + 50/s", "50/s + 5/s per key"),
        ("600/m burst 10", "600/m"),
    ];
    for (text, same) in same {
        assert_eq!(shown(text).as_deref(), Ok(same));
    }
    for wrong in [
        "",
        "none",
        "10",
        "/s",
        "10/",
        "0/s",
        "-1/s",
        "+1/s",
        "10/s per",
        "10/s per queue",
        "10/s + 5/s",
        "1/s per key + 2/s per key",
        "10/s +",
        "1/367d",
        "10/s burst",
        "10/s burst 0",
        "1.5/s",
        "10/week",
        "2000000000/s",
        "10 /s",
        "１/s",
    ] {
        assert_eq!(shown(wrong), Err(LimitTextError), "{wrong:?}");
    }
    use std::num::NonZeroU32;
    let most = "100 + 3 per key".parse::<Scoped<NonZeroU32>>().unwrap();
    assert_eq!(most.to_string(), "100 + 3 per key");
    "0".parse::<Scoped<NonZeroU32>>().unwrap_err();
    "0ms".parse::<Scoped<Gap>>().unwrap_err();
    assert_eq!(
        "1500ms per key".parse::<Scoped<Gap>>().unwrap().to_string(),
        "1s500ms per key"
    );
}

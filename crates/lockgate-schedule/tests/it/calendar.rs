//! Times of timings.

use jiff::{Timestamp, tz::TimeZone};
use lockgate_core::{Timing, WallTime};
use lockgate_schedule::{Calendar, TimingError};
use proptest::prelude::*;

pub(crate) fn cron(expression: &str, zone: &str) -> Timing {
    Timing::Cron {
        expression: expression.into(),
        zone: zone.into(),
    }
}

pub(crate) fn at(text: &str) -> WallTime {
    let time: Timestamp = text.parse().unwrap();
    WallTime(time.as_millisecond().unsigned_abs())
}

fn text(time: WallTime) -> String {
    let millis = i64::try_from(time.0).unwrap();
    Timestamp::from_millisecond(millis).unwrap().to_string()
}

#[track_caller]
fn check(timing: &Timing, from: &str, expected: &[&str]) {
    let calendar = Calendar::new(timing, at(from)).unwrap();
    let times = calendar.after(at(from)).take(expected.len());
    assert_eq!(times.map(text).collect::<Vec<_>>(), expected, "{timing:?}");
}

#[test]
fn a_time_of_day_follows_its_zone() {
    // Berlin sets its clocks forward on 2026-03-29 and back on 2026-10-25.
    check(
        &cron("0 9 * * *", "Europe/Berlin"),
        "2026-03-27T08:00:00Z",
        &[
            "2026-03-28T08:00:00Z",
            "2026-03-29T07:00:00Z",
            "2026-03-30T07:00:00Z",
        ],
    );
    check(
        &cron("30 0 9 * * mon-fri", "UTC"),
        "2026-11-27T09:00:29.999Z",
        &[
            "2026-11-27T09:00:30Z",
            "2026-11-30T09:00:30Z",
            "2026-12-01T09:00:30Z",
        ],
    );
}

#[test]
fn a_fixed_time_in_a_gap_fires_behind_it_and_a_repeated_one_once() {
    check(
        &cron("30 2 * * *", "Europe/Berlin"),
        "2026-03-28T00:00:00Z",
        &[
            "2026-03-28T01:30:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:30:00Z",
        ],
    );
    check(
        &cron("30 2 * * *", "Europe/Berlin"),
        "2026-10-24T12:00:00Z",
        &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
    );
}

#[test]
fn lists_and_ranges_are_fixed_times_too() {
    let berlin = |expression| cron(expression, "Europe/Berlin");
    check(
        &berlin("0 2,14 * * *"),
        "2026-03-28T12:00:00Z",
        &[
            "2026-03-28T13:00:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-29T12:00:00Z",
        ],
    );
    // Two in the gap, and one behind it at the same moment.
    check(
        &berlin("0,30 2-3 * * *"),
        "2026-03-28T22:00:00Z",
        &[
            "2026-03-29T01:00:00Z",
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:00:00Z",
        ],
    );
    check(
        &berlin("0 0,30 2 * * *"),
        "2026-10-24T12:00:00Z",
        &[
            "2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:00:00Z",
        ],
    );
    // From within the hour that comes twice, both times.
    for from in ["2026-10-25T00:45:00Z", "2026-10-25T01:15:00Z"] {
        check(&berlin("0,30 2 * * *"), from, &["2026-10-26T01:00:00Z"]);
    }
}

#[test]
fn a_day_that_a_zone_leaves_out_ends_nothing() {
    // Samoa had no 30 December in 2011.
    check(
        &cron("0 12 * * *", "Pacific/Apia"),
        "2011-12-29T00:00:00Z",
        &[
            "2011-12-29T22:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-30T22:00:00Z",
        ],
    );
}

#[test]
fn a_step_keeps_its_rate_where_clocks_are_set() {
    check(
        &cron("*/30 * * * *", "Europe/Berlin"),
        "2026-03-29T00:20:00Z",
        &[
            "2026-03-29T00:30:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-29T01:30:00Z",
        ],
    );
    check(
        &cron("*/30 * * * *", "Europe/Berlin"),
        "2026-10-25T00:00:00Z",
        &[
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
            "2026-10-25T02:00:00Z",
        ],
    );
}

#[test]
fn a_fixed_rate_begins_with_its_first_time() {
    let every = |from: Option<&str>| Timing::Every {
        period: 1_500,
        from: from.map(at),
    };
    check(
        &every(Some("2026-01-01T00:00:00Z")),
        "2025-12-31T00:00:00Z",
        &[
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:01.5Z",
            "2026-01-01T00:00:03Z",
        ],
    );
    let anchored = Calendar::new(&every(None), WallTime(10_000)).unwrap();
    assert_eq!(
        anchored.next_after(WallTime(10_000)),
        Some(WallTime(11_500))
    );
    assert_eq!(anchored.next_after(WallTime(u64::MAX)), None);
    let first = Calendar::first(&every(None), WallTime(7)).unwrap();
    assert_eq!(first, Some(WallTime(1_507)));
}

#[test]
fn once_is_once() {
    let once = Timing::At(WallTime(5_000));
    let calendar = Calendar::new(&once, WallTime(0)).unwrap();
    assert_eq!(calendar.next_after(WallTime(4_999)), Some(WallTime(5_000)));
    assert_eq!(calendar.next_after(WallTime(5_000)), None);
    // Also one that has passed: it is late, and not lost.
    let first = Calendar::first(&once, WallTime(9_000)).unwrap();
    assert_eq!(first, Some(WallTime(5_000)));
}

#[test]
fn what_is_no_timing_is_told() {
    let new = |timing| Calendar::new(&timing, WallTime(0)).unwrap_err();
    let every = |period| Timing::Every { period, from: None };
    for period in [0, 99, Timing::PERIOD_MAX + 1, u64::MAX] {
        assert_eq!(new(every(period)), TimingError::Period { period });
        assert!(Calendar::first(&every(period), WallTime(0)).is_err());
    }
    for (timing, word) in [
        (cron("0 9 * * *", "Europe/Atlantis"), "Europe/Atlantis"),
        (cron("0 9 * *", "UTC"), "0 9 * *"),
        (cron("61 9 * * *", "UTC"), "61 9"),
        (cron("", "UTC"), "1 to 256"),
        (cron("0 9 * * *", ""), "1 to 256"),
        (cron(&"1,".repeat(200), "UTC"), "1 to 256"),
        (cron("0 0 30 2 *", "UTC"), "names no time"),
        (cron("1,2,,3 * * * *", "UTC"), "empty item"),
        (cron("0 9 * * mon,", "UTC"), "empty item"),
        (cron("0\n9 * * *", "UTC"), "one line"),
        (cron("0 9 * * *", "localtime"), "localtime"),
    ] {
        let error = new(timing).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn no_time_is_too_late() {
    let calendar = Calendar::new(&cron("0 9 * * *", "Asia/Tokyo"), WallTime(0)).unwrap();
    for time in [u64::MAX, 1 << 48, 253_402_300_799_000, 253_402_207_200_000] {
        // None, or a later one.
        if let Some(next) = calendar.next_after(WallTime(time)) {
            assert!(next.0 > time);
        }
    }
    let rare = Calendar::new(&cron("0 0 29 2 1", "UTC"), WallTime(0)).unwrap();
    assert!(rare.next_after(at("2026-01-01T00:00:00Z")).is_some());
}

/// The next minute at which the zone's clock shows one of the hours and minutes, by looking at each.
fn slow_next(minutes: &[i8], hours: &[i8], zone: &TimeZone, after: WallTime) -> WallTime {
    let mut minute = after.0 / 60_000 + 1;
    loop {
        let second = i64::try_from(minute * 60).unwrap();
        let time = Timestamp::from_second(second)
            .unwrap()
            .to_zoned(zone.clone());
        if minutes.contains(&time.minute()) && hours.contains(&time.hour()) {
            return WallTime(minute * 60_000);
        }
        minute += 1;
    }
}

fn minute_shown(zone: &TimeZone, minute: u64) -> i64 {
    let second = i64::try_from(minute * 60).unwrap();
    let shown = zone.to_datetime(Timestamp::from_second(second).unwrap());
    let as_if_utc = shown.to_zoned(TimeZone::UTC).unwrap();
    as_if_utc.timestamp().as_second() / 60
}

/// The same for fixed times: each minute that the clock shows or is set over counts once.
fn slow_fixed(
    minutes: &[i64],
    hours: &[i64],
    zone: &TimeZone,
    start: u64,
    count: usize,
) -> Vec<u64> {
    let is_named = |shown: i64| {
        let of_day = shown.rem_euclid(24 * 60);
        minutes.contains(&(of_day % 60)) && hours.contains(&(of_day / 60))
    };
    let mut latest = (0..24 * 60)
        .map(|back| minute_shown(zone, start - back))
        .max()
        .unwrap();
    let mut found = Vec::new();
    let mut minute = start;
    while found.len() < count {
        minute += 1;
        let shown = minute_shown(zone, minute);
        if (latest + 1..=shown).any(is_named) {
            found.push(minute * 60_000);
        }
        latest = latest.max(shown);
    }
    found
}

fn listed(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join(",")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// With a wildcard in it, an expression is what the zone's clock shows, through all changes of that.
    #[test]
    fn the_next_time_is_what_a_search_finds(
        step in prop::sample::select(vec![5u8, 7, 15, 20, 30]),
        zone in prop::sample::select(vec!["Europe/Berlin", "America/New_York", "UTC", "Asia/Kolkata"]),
        // Around the changes of 2026.
        day in prop::sample::select(vec![67u64, 87, 88, 90, 297, 298, 304, 305]),
        second in 0u64..86_400_000,
    ) {
        let timing = cron(&format!("*/{step} * * * *"), zone);
        let start = at("2026-01-01T00:00:00Z").0 + day * 86_400_000 + second;
        let calendar = Calendar::new(&timing, WallTime(0)).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let minutes: Vec<i8> = (0..60).step_by(usize::from(step)).collect();
        let hours: Vec<i8> = (0..24).collect();
        let mut time = WallTime(start);
        for _ in 0..20 {
            let next = calendar.next_after(time).unwrap();
            prop_assert_eq!(next, slow_next(&minutes, &hours, &zone, time));
            time = next;
        }
    }

    /// Fixed times come once each, through all changes of a zone's clock, from wherever one looks.
    #[test]
    fn fixed_times_are_what_a_search_finds(
        minutes in prop::collection::btree_set(0i64..60, 1..4),
        hours in prop::collection::btree_set(0i64..4, 1..3),
        (zone, change) in prop::sample::select(vec![
            ("Europe/Berlin", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("America/New_York", "2026-03-08T07:00:00Z"),
            ("America/New_York", "2026-11-01T06:00:00Z"),
            ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
            ("Pacific/Apia", "2011-12-30T10:00:00Z"),
            ("Asia/Kolkata", "2026-03-29T01:00:00Z"),
        ]),
        before in 0u64..26 * 60,
    ) {
        let (minutes, hours) = (Vec::from_iter(minutes), Vec::from_iter(hours));
        let timing = cron(&format!("{} {} * * *", listed(&minutes), listed(&hours)), zone);
        let calendar = Calendar::new(&timing, WallTime(0)).unwrap();
        // Up to two hours behind the change as well.
        let start = at(change).0 / 60_000 + 120 - before;
        let zone = TimeZone::get(zone).unwrap();
        let times = calendar.after(WallTime(start * 60_000)).take(8).map(|time| time.0);
        prop_assert_eq!(Vec::from_iter(times), slow_fixed(&minutes, &hours, &zone, start, 8));
    }

    /// No text and no time make it panic, and times rise.
    #[test]
    fn any_text_is_a_timing_or_an_error(text in "[0-9*/, LW#a-z?-]{1,24}", from in any::<u64>()) {
        if let Ok(calendar) = Calendar::new(&cron(&text, "Europe/Berlin"), WallTime(0)) {
            for from in [from, from % 4_102_444_800_000] {
                let mut last = WallTime(from);
                for next in calendar.after(last).take(3) {
                    prop_assert!(next > last);
                    last = next;
                }
            }
        }
    }
}

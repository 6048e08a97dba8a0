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

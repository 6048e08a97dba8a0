//! What due schedules do.

use lockgate_core::{CatchUp, Timing, WallTime};
use lockgate_schedule::{Calendar, Due, Planned, plan};
use proptest::prelude::*;

use crate::calendar::{at, cron};

fn due(timing: &Timing, next: WallTime) -> Due<'_> {
    Due {
        timing,
        anchor: next,
        catch_up: CatchUp::Once,
        late_max: 60_000,
        next,
        planned: None,
        waited: false,
    }
}

#[test]
fn a_time_that_has_not_come_does_nothing() {
    let timing = cron("0 9 * * *", "UTC");
    let next = at("2026-11-28T09:00:00Z");
    let early = WallTime(next.0 - 1);
    assert_eq!(plan(&due(&timing, next), early), Ok(None));
    let planned = plan(&due(&timing, next), next).unwrap().unwrap();
    assert_eq!(planned.fires, Some(next));
    assert_eq!(planned.next, Some(at("2026-11-29T09:00:00Z")));
}

#[test]
fn missed_times_are_caught_up_as_the_policy_says() {
    let timing = cron("0 * * * *", "UTC");
    let next = at("2026-11-28T09:00:00Z");
    let now = at("2026-11-28T12:00:30Z");
    let with = |catch_up| Due {
        catch_up,
        ..due(&timing, next)
    };
    // 12:00 is not missed yet.
    let skip = plan(&with(CatchUp::Skip), now).unwrap().unwrap();
    let noon = at("2026-11-28T12:00:00Z");
    let skipped = Planned {
        fires: None,
        missed: 3,
        next: Some(noon),
    };
    assert_eq!(skip, skipped);
    let once = plan(&with(CatchUp::Once), now).unwrap().unwrap();
    let fired_once = Planned {
        fires: Some(noon),
        missed: 3,
        next: Some(at("2026-11-28T13:00:00Z")),
    };
    assert_eq!(once, fired_once);
    let all = plan(&with(CatchUp::All), now).unwrap().unwrap();
    let fired_all = Planned {
        fires: Some(next),
        missed: 0,
        next: Some(at("2026-11-28T10:00:00Z")),
    };
    assert_eq!(all, fired_all);
    // One that had to wait is not missed.
    let waited = Due {
        waited: true,
        ..with(CatchUp::Skip)
    };
    assert_eq!(plan(&waited, now).unwrap().unwrap(), fired_all);
}

#[test]
fn a_moved_time_stands_in_for_the_planned_one() {
    let timing = cron("0 9 * * *", "UTC");
    let planned = Some(at("2026-11-28T09:00:00Z"));
    let tomorrow = Some(at("2026-11-29T09:00:00Z"));
    for moved in ["2026-11-28T06:00:00Z", "2026-11-28T15:00:00Z"] {
        let due = Due {
            planned,
            ..due(&timing, at(moved))
        };
        let done = plan(&due, at(moved)).unwrap().unwrap();
        assert_eq!((done.fires, done.next), (Some(at(moved)), tomorrow));
    }
}

#[test]
fn once_ends_with_its_time() {
    let timing = Timing::At(WallTime(5_000));
    let done = |catch_up, now| {
        let due = Due {
            catch_up,
            ..due(&timing, WallTime(5_000))
        };
        plan(&due, WallTime(now)).unwrap().unwrap()
    };
    for catch_up in [CatchUp::Skip, CatchUp::Once, CatchUp::All] {
        let fired = Planned {
            fires: Some(WallTime(5_000)),
            missed: 0,
            next: None,
        };
        assert_eq!(done(catch_up, 65_000), fired);
        let late = done(catch_up, 65_001);
        let missed = Planned {
            fires: None,
            missed: 1,
            next: None,
        };
        assert_eq!(
            late,
            if catch_up == CatchUp::Skip {
                missed
            } else {
                fired
            }
        );
    }
}

fn timing() -> impl Strategy<Value = Timing> {
    prop_oneof![
        (100u64..100_000).prop_map(|period| Timing::Every { period, from: None }),
        prop::sample::select(vec![
            "* * * * * *",
            "*/5 * * * *",
            "0 3 * * *",
            "30 2 * * 0"
        ])
        .prop_map(|expression| cron(expression, "Europe/Berlin")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Steps end, no time fires early or twice, and each time of the series fires or is counted as missed.
    #[test]
    fn steps_account_for_every_time(
        timing in timing(),
        start in 1_790_000_000_000u64..1_800_000_000_000,
        away in prop_oneof![0u64..200_000, 0u64..40_000_000],
        late_max in 1_000u64..400_000,
        catch_up in prop::sample::select(CatchUp::ALL),
    ) {
        let first = Calendar::first(&timing, WallTime(start)).unwrap().unwrap();
        let now = WallTime(first.0 + away);
        let (mut next, mut fired, mut missed) = (first, Vec::new(), 0);
        let mut steps = 0;
        while next <= now && steps < 5_000 {
            let due = Due { catch_up, late_max, anchor: first, ..due(&timing, next) };
            let Planned { fires, missed: more, next: later } = plan(&due, now).unwrap().unwrap();
            missed += more;
            if let Some(at) = fires {
                prop_assert!(at <= now && fired.last().is_none_or(|last| *last < at));
                fired.push(at);
            }
            let later = later.unwrap();
            prop_assert!(later > next && later > fires.unwrap_or(next));
            next = later;
            steps += 1;
            if catch_up != CatchUp::All {
                let is_late = |at: &WallTime| now.since(*at) > late_max;
                prop_assert!(fired.iter().filter(|at| is_late(at)).count() <= 1);
            }
        }
        if next > now {
            let calendar = Calendar::new(&timing, first).unwrap();
            let all = 1 + calendar.after(first).take_while(|at| *at <= now).count();
            prop_assert_eq!(fired.len() as u64 + missed, all as u64);
            if catch_up == CatchUp::All {
                prop_assert_eq!(missed, 0);
            }
            // What is not missed fires under every policy.
            let recent = calendar.after(first).take_while(|at| *at <= now);
            for at in recent.filter(|at| now.since(*at) <= late_max) {
                prop_assert!(fired.contains(&at) || catch_up == CatchUp::Once);
            }
        }
    }
}

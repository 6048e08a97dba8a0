//! Cron expressions, their times, and what a schedule does that is late.

use lockgate_core::{CatchUp, Timing, WallTime};
use lockgate_schedule::{Calendar, Due, Planned, plan};

/// An expression, a line break, a time zone, a line break, and a time in milliseconds.
pub(crate) fn read(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let timing = Timing::Cron {
        expression: line().into(),
        zone: line().into(),
    };
    let after = WallTime(line().parse().unwrap_or(0));
    let calendar = Calendar::new(&timing, after).map_err(|error| error.to_string())?;
    let mut times: Vec<WallTime> = calendar.after(after).take(4).collect();
    times.insert(0, after);
    assert!(times.is_sorted_by(|one, other| one < other), "{times:?}");
    let [_, next, .., last] = times[..] else {
        return Ok(());
    };
    for &catch_up in CatchUp::ALL {
        let due = Due {
            timing: &timing,
            anchor: after,
            catch_up,
            late_max: 1_000,
            next,
            planned: None,
            waited: false,
        };
        let early = WallTime(next.0 - 1);
        assert_eq!(plan(&due, early), Ok(None));
        let planned = plan(&due, last).map_err(|error| error.to_string())?;
        let Some(Planned {
            fires, next: later, ..
        }) = planned
        else {
            panic!("it is due and nothing is planned");
        };
        assert!(fires.is_none_or(|fires| (next..=last).contains(&fires)));
        assert!(later.is_none_or(|later| later > fires.unwrap_or(next)));
    }
    Ok(())
}

//! The `Date` header, and the times for which there is none.
//!
//! hyper's own header would stand still after a clock was set back, and clients correct their
//! clocks by it. hyper also ends the task of a connection whose thread sees a clock before 1970.

use std::{
    cell::RefCell,
    time::{SystemTime, UNIX_EPOCH},
};

use hyper::header::HeaderValue;
use jiff::{Timestamp, fmt::rfc2822::DateTimePrinter};
use lockgate_core::WallTime;

thread_local! {
    /// The last value: each thread formats the text of a second once.
    static LAST: RefCell<(u64, Option<HeaderValue>)> = const { RefCell::new((u64::MAX, None)) };
}

/// The header's value; `None` after the year 9999, which the format cannot express.
pub(crate) fn header(now: WallTime) -> Option<HeaderValue> {
    let second = now.0 / 1_000;
    LAST.with_borrow_mut(|(last, value)| {
        if *last != second {
            (*last, *value) = (second, text(second));
        }
        value.clone()
    })
}

fn text(second: u64) -> Option<HeaderValue> {
    let time = Timestamp::from_second(i64::try_from(second).ok()?).ok()?;
    let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
    HeaderValue::try_from(text.ok()?).ok()
}

/// Whether hyper can serve a connection that begins now: the system's clock must show a time that
/// HTTP can express.
pub(crate) fn is_representable(now: SystemTime) -> bool {
    now.duration_since(UNIX_EPOCH)
        .is_ok_and(|since| i64::try_from(since.as_secs()).is_ok_and(|it| it <= LAST_SECOND))
}

/// The end of the year 9999.
const LAST_SECOND: i64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_http_and_follow_a_clock_that_is_set_back() {
        let day = 24 * 60 * 60 * 1_000;
        for (millis, date) in [
            (784_111_777_999, Some("Sun, 06 Nov 1994 08:49:37 GMT")),
            (784_111_777_000 - day, Some("Sat, 05 Nov 1994 08:49:37 GMT")),
            (0, Some("Thu, 01 Jan 1970 00:00:00 GMT")),
            // The last instant that jiff can represent.
            (253_402_207_200_999, Some("Thu, 30 Dec 9999 22:00:00 GMT")),
            (253_402_207_201_000, None),
            (u64::MAX, None),
        ] {
            let header = header(WallTime(millis));
            let text = header.as_ref().map(|value| value.to_str().unwrap());
            assert_eq!(text, date, "{millis}");
        }
    }

    #[test]
    fn a_clock_is_before_1970_or_beyond_9999() {
        let last = u64::try_from(LAST_SECOND).unwrap();
        let after = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (now, fits) in [
            (UNIX_EPOCH - Duration::from_nanos(1), false),
            (UNIX_EPOCH, true),
            (SystemTime::now(), true),
            (after(last), true),
            (after(last + 1), false),
        ] {
            assert_eq!(is_representable(now), fits, "{now:?}");
        }
    }
}

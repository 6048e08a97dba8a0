//! A request's time, as logs write it.

use jiff::{Timestamp, fmt::strtime};

/// Microseconds since 1970.
pub(crate) type Micros = i128;

/// What a number that is a time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TimeUnit {
    S,
    Ms,
    Us,
    Ns,
}

/// As Apache and nginx write it.
const ACCESS_LOG: &str = "%d/%b/%Y:%H:%M:%S %z";

/// Decimal places that are read.
const PLACES: usize = 9;

/// Reads RFC 3339, the time of an access log, or a number of that unit since 1970.
pub(super) fn parse(text: &str, unit: TimeUnit) -> Option<Micros> {
    let text = text.trim();
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'))
    {
        let nanos = match unit {
            TimeUnit::S => 1_000_000_000,
            TimeUnit::Ms => 1_000_000,
            TimeUnit::Us => 1_000,
            TimeUnit::Ns => 1,
        };
        let billionths = billionths(text)?;
        return Some((billionths * nanos).div_euclid(1_000_000_000 * 1_000));
    }
    let time = text.parse::<Timestamp>().ok();
    let time = time.or_else(|| strtime::parse(ACCESS_LOG, text).ok()?.to_timestamp().ok())?;
    Some(time.as_nanosecond().div_euclid(1_000))
}

/// A decimal number times 10^9; further places are dropped.
fn billionths(text: &str) -> Option<i128> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    if !places.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let sign = if whole.starts_with('-') { -1 } else { 1 };
    let places = format!("{:0<PLACES$}", &places[..places.len().min(PLACES)]);
    let whole = i128::from(whole.parse::<i64>().ok()?);
    Some(whole * 1_000_000_000 + sign * places.parse::<i128>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_logs_write_them() {
        for (text, unit, micros) in [
            ("0", TimeUnit::S, Some(0)),
            ("1692367527", TimeUnit::S, Some(1_692_367_527_000_000)),
            ("1692367527.25", TimeUnit::S, Some(1_692_367_527_250_000)),
            (
                "1692367527.1234567891",
                TimeUnit::S,
                Some(1_692_367_527_123_456),
            ),
            ("-1.5", TimeUnit::S, Some(-1_500_000)),
            ("1692367527123", TimeUnit::Ms, Some(1_692_367_527_123_000)),
            (
                "1692367527123456",
                TimeUnit::Us,
                Some(1_692_367_527_123_456),
            ),
            (
                "1692367527123456789",
                TimeUnit::Ns,
                Some(1_692_367_527_123_456),
            ),
            ("1970-01-01T00:00:01.5Z", TimeUnit::S, Some(1_500_000)),
            ("1970-01-01T01:00:01+01:00", TimeUnit::S, Some(1_000_000)),
            ("01/Jan/1970:01:00:01 +0100", TimeUnit::S, Some(1_000_000)),
            ("", TimeUnit::S, None),
            ("-", TimeUnit::S, None),
            (".", TimeUnit::S, None),
            ("1.2.3", TimeUnit::S, None),
            ("1.-2", TimeUnit::S, None),
            ("1e9", TimeUnit::S, None),
            ("99999999999999999999", TimeUnit::S, None),
            // Of no zone: nobody knows when that was.
            ("1970-01-01 00:00:01", TimeUnit::S, None),
            ("tomorrow", TimeUnit::S, None),
        ] {
            assert_eq!(parse(text, unit), micros, "{text:?} {unit:?}");
        }
    }
}

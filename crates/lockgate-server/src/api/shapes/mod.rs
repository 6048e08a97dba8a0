//! The inputs and outputs of operations.
//!
//! Durations are whole milliseconds, sizes are bytes, instants are RFC 3339 texts in UTC. Optional
//! fields without a value are left out of an answer.

mod dead_letters;
mod exchanges;
mod keys;
mod leases;
mod ledgers;
mod messages;
mod peek;
mod producers;
mod queues;
mod records;
mod schedules;
mod server;
mod settings;
mod within;

use std::fmt;

use jiff::Timestamp;
use lockgate_core::WallTime;
use serde::{Deserialize, Serialize, Serializer};

pub(crate) use self::keys::LimitWord;
pub(super) use self::{
    dead_letters::*, exchanges::*, keys::*, leases::*, ledgers::*, messages::*, peek::*,
    producers::*, queues::*, records::*, schedules::*, server::*, settings::*, within::Within,
};

/// An empty answer: the operation is done.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// An instant: an RFC 3339 text in UTC, to the millisecond; a finer one counts as the next millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instant(pub(crate) WallTime);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Later instants are written as the year 9999.
        let millis = i64::try_from(self.0.0).unwrap_or(i64::MAX);
        let time = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX);
        write!(f, "{time:.3}")
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether an instant names the second 60. The library would take the one before it, which is too early.
fn has_leap_second(text: &str) -> bool {
    let mut parts = text.split(':');
    parts.nth(2).is_some_and(|part| part.starts_with("60"))
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if has_leap_second(&text) {
            return Err(serde::de::Error::custom(format_args!(
                "{text:?} is a leap second, which no clock here shows: take the second before or after it"
            )));
        }
        let time: Timestamp = text.parse().map_err(|_| {
            serde::de::Error::custom(format_args!(
                "{text:?} is no instant up to 9999-12-30T22:00:00Z, such as 2026-11-21T08:00:00.000Z"
            ))
        })?;
        // Rounded up: what is due then must not come a fraction before.
        let millis = time.as_nanosecond().div_euclid(1_000_000)
            + i128::from(time.as_nanosecond().rem_euclid(1_000_000) > 0);
        let millis = u64::try_from(millis).map_err(|_| {
            serde::de::Error::custom(format_args!(
                "{text} lies before 1970-01-01T00:00:00Z, the earliest instant"
            ))
        })?;
        Ok(Self(WallTime(millis)))
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Instant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Instant".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "An instant, in UTC, to the millisecond.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_and_read_to_the_millisecond() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_795_248_000_007, "2026-11-21T08:00:00.007Z"),
            (1_795_248_000_100, "2026-11-21T08:00:00.100Z"),
        ] {
            let instant = Instant(WallTime(millis));
            let written = serde_json::to_string(&instant).unwrap();
            assert_eq!(written, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Instant>(&written).unwrap(), instant);
        }
        // What is due then does not come a fraction before.
        let finer = serde_json::from_str::<Instant>("\"2026-11-21T08:00:00.0070001Z\"");
        assert_eq!(finer.unwrap(), Instant(WallTime(1_795_248_000_008)));
        let never = serde_json::to_string(&Instant(WallTime::MAX)).unwrap();
        assert!(never.starts_with("\"9999-"), "{never}");
        for bad in ["\"tomorrow\"", "\"1969-12-31T23:59:59Z\"", "7"] {
            assert!(serde_json::from_str::<Instant>(bad).is_err(), "{bad}");
        }
    }
}

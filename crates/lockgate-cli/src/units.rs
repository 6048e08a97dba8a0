//! Durations, sizes and names as people write them: `500ms`, `5s`, `10MiB`.

use std::time::Duration;

use lockgate_core::QueueName;
use lockgate_machine::QueueSettings;

/// Milliseconds per unit, longest first.
const DURATIONS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Bytes per unit, largest first.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a duration: a whole number with `ms`, `s`, `m`, `h` or `d`; parts may follow each other
/// (`1h30m`). A bare `0` is allowed, any other bare number is not: nobody should have to guess
/// whether 30 is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total: u64 = 0;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let (number, unit, after) = number_and_unit(rest).ok_or_else(|| bad_duration(text))?;
        let (_, millis) = DURATIONS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| bad_duration(text))?;
        // `5s1h` and `1s2s` are slips of the pen.
        if millis >= last_unit {
            return Err(bad_duration(text));
        }
        last_unit = millis;
        total = number
            .checked_mul(millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| format!("{text:?} is too long a time"))?;
        rest = after;
    }
    if text.is_empty() {
        return Err(bad_duration(text));
    }
    Ok(Duration::from_millis(total))
}

/// Reads a duration that the SQS protocol can carry: whole seconds.
pub(crate) fn whole_seconds(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.subsec_nanos() != 0 {
        return Err(format!(
            "{text:?} is no whole number of seconds, the smallest step the SQS protocol has"
        ));
    }
    Ok(duration)
}

/// Reads how long a lease may last, in whole seconds.
pub(crate) fn whole_lease(text: &str) -> Result<Duration, String> {
    whole_seconds(text)?;
    lease(text)
}

/// Reads how long a lease may last: up to what the machine allows.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    let max = Duration::from_millis(QueueSettings::LEASE_MAX);
    if lease > max {
        let max = show_duration(max);
        return Err(format!("{text:?} is too long, a lease lasts up to {max}"));
    }
    Ok(lease)
}

/// The same of a lease that somebody wants to hold.
pub(crate) fn receive_lease(text: &str) -> Result<Duration, String> {
    match whole_lease(text)? {
        Duration::ZERO => Err(
            "a lease of 0s is over before the message is there, and counts as an \
                               attempt: to look, use --nack or `lockgate peek`"
                .to_owned(),
        ),
        lease => Ok(lease),
    }
}

/// Reads a queue's name. One that the server has no queue of is refused by it, one that it cannot have is
/// refused here, in the same words everywhere.
pub(crate) fn queue_name(text: &str) -> Result<String, String> {
    match QueueName::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(
            "a queue name is 1 to 80 letters, digits, '-' and '_', and ends in .fifo if the queue keeps \
             the order of its keys"
                .to_owned(),
        ),
    }
}

/// Reads a size in bytes: a whole number with `B`, `KiB`, `MiB`, `GiB` (or the decimal `kB`, `MB`,
/// `GB`); a bare number is bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size: write a number with a unit, such as 512B or 10MiB");
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    let (number, unit, rest) = number_and_unit(text).ok_or_else(bad)?;
    let (_, bytes) = SIZES
        .into_iter()
        .find(|(name, _)| *name == unit)
        .filter(|_| rest.is_empty())
        .ok_or_else(bad)?;
    number
        .checked_mul(bytes)
        .ok_or_else(|| format!("{text:?} is too large a size"))
}

/// Writes a duration so that [`duration`] reads it back.
pub(crate) fn show_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, millis) in DURATIONS {
        if rest >= millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    text
}

/// Writes a size so that [`size`] reads it back: in the largest binary unit that leaves no rest.
pub(crate) fn show_size(bytes: u64) -> String {
    let unit = SIZES
        .into_iter()
        .filter(|(name, _)| name.ends_with("iB"))
        .find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match unit {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// Writes a size for people: three digits or so, `1.4 MiB`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let unit = SIZES
        .into_iter()
        .filter(|(name, _)| name.ends_with("iB"))
        .find(|(_, unit)| bytes >= *unit);
    match unit {
        Some((name, unit)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

fn bad_duration(text: &str) -> String {
    format!("{text:?} is no duration: write a number with a unit, such as 500ms, 5s, 5m or 2h")
}

/// Splits `12ms…` into 12, `ms` and the rest.
fn number_and_unit(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number = text[..digits].parse().ok()?;
    let after = &text[digits..];
    let letters = after
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(after.len());
    Some((number, &after[..letters], &after[letters..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_back() {
        for (text, millis) in [
            ("0", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("4d", 345_600_000),
        ] {
            let read = duration(text).unwrap();
            assert_eq!(read, Duration::from_millis(millis), "{text}");
            assert_eq!(duration(&show_duration(read)).unwrap(), read, "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "5 s",
            "1.5s",
            "5s1h",
            "1s1s",
            "5parsec",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(duration(text).is_err(), "{text:?} was read");
        }
        assert!(whole_seconds("1500ms").is_err());
        assert_eq!(whole_seconds("2000ms").unwrap(), Duration::from_secs(2));
    }

    #[test]
    fn sizes_for_people_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_500_000, "1.4 MiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ] {
            assert_eq!(show_bytes(bytes), text);
        }
    }

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("1KiB", 1024),
            ("10MiB", 10 << 20),
            ("3kB", 3000),
            ("2GiB", 2 << 30),
        ] {
            let read = size(text).unwrap();
            assert_eq!(read, bytes, "{text}");
            assert_eq!(size(&show_size(read)).unwrap(), read, "{text}");
        }
        for text in ["", "MiB", "1mib", "-1", "1MiB2", "1.5MiB", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text:?} was read");
        }
    }
}

//! Times and sizes as people write them: `500ms`, `1h30m`, `10MiB`.

use crate::Millis;

/// Milliseconds per unit, longest first.
const TIMES: [(&str, Millis); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Bytes per unit, largest first.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a time in milliseconds: a whole number with `ms`, `s`, `m`, `h` or `d`; parts may follow each other
/// (`1h30m`). A bare `0` is allowed, any other bare number is not: nobody should have to guess whether 30 is
/// seconds.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn millis(text: &str) -> Result<Millis, String> {
    let bad = || match text.parse::<u64>() {
        Ok(_) => format!(
            "{text:?} is no duration: write {text}s, or another unit, as in 500ms, 5m or 2h"
        ),
        Err(_) => {
            format!(
                "{text:?} is no duration: write a number with a unit, such as 500ms, 5s, 5m or 2h"
            )
        }
    };
    if text == "0" {
        return Ok(0);
    }
    if text.is_empty() {
        return Err(bad());
    }
    let mut rest = text;
    let mut total: Millis = 0;
    let mut last_unit = Millis::MAX;
    while !rest.is_empty() {
        let (number, unit, after) = number_and_unit(rest).ok_or_else(bad)?;
        let (_, millis) = TIMES
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        // `5s1h` and `1s2s` are typing errors.
        if millis >= last_unit {
            return Err(bad());
        }
        last_unit = millis;
        total = number
            .checked_mul(millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| {
                let max = Millis::MAX / TIMES[0].1;
                format!("{text:?} is too long a time: the longest that can be written is {max}d")
            })?;
        rest = after;
    }
    Ok(total)
}

/// Reads a size in bytes: a whole number with `B`, `KiB`, `MiB`, `GiB`, `TiB` (or the decimal `kB`, `MB`,
/// `GB`, `TB`). A bare `0` is allowed, any other bare number is not: nobody should have to guess whether 30 is
/// MiB.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bad = || match text.parse::<u64>() {
        Ok(_) => {
            format!("{text:?} is no size: write {text}B, or another unit, as in 64KiB or 10MiB")
        }
        Err(_) => {
            format!("{text:?} is no size: write a number with a unit, such as 512B, 64KiB or 10MiB")
        }
    };
    if text == "0" {
        return Ok(0);
    }
    let (number, unit, rest) = number_and_unit(text).ok_or_else(bad)?;
    let (_, bytes) = SIZES
        .into_iter()
        .find(|(name, _)| *name == unit)
        .filter(|_| rest.is_empty())
        .ok_or_else(bad)?;
    number.checked_mul(bytes).ok_or_else(|| {
        let max = u64::MAX / SIZES[0].1;
        format!("{text:?} is too large a size: the largest that can be written is {max}TiB")
    })
}

/// Writes a time so that [`millis`] reads it back.
#[must_use]
pub fn show_millis(millis: Millis) -> String {
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut rest = millis;
    let mut text = String::new();
    for (unit, millis) in TIMES {
        if rest >= millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    text
}

/// Writes a size so that [`bytes()`] reads it back: in the largest binary unit that leaves no rest.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let unit = binary().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match unit {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// Writes a size for people: three digits or so, `1.4 MiB`.
#[must_use]
pub fn round_bytes(bytes: u64) -> String {
    match binary().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

fn binary() -> impl Iterator<Item = (&'static str, u64)> {
    let units = SIZES.into_iter();
    units.filter(|(name, _)| name.ends_with("iB"))
}

/// Splits `12ms...` into 12, `ms` and the rest.
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
    fn times_are_read_and_written_back() {
        for (text, time) in [
            ("0", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("4d", 345_600_000),
        ] {
            assert_eq!(millis(text), Ok(time), "{text}");
            assert_eq!(millis(&show_millis(time)), Ok(time), "{text}");
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
            assert!(millis(text).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, size) in [
            ("0", 0),
            ("512B", 512),
            ("1KiB", 1024),
            ("10MiB", 10 << 20),
            ("3kB", 3000),
            ("2GiB", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
            assert_eq!(bytes(&show_bytes(size)), Ok(size), "{text}");
        }
        for text in [
            "",
            "512",
            "MiB",
            "1mib",
            "-1",
            "1MiB2",
            "1.5MiB",
            "99999999999GiB",
        ] {
            assert!(bytes(text).is_err(), "{text:?} was read");
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        let time = |text| millis(text).unwrap_err();
        assert_eq!(
            time("5"),
            "\"5\" is no duration: write 5s, or another unit, as in 500ms, 5m or 2h"
        );
        assert!(time("9999999999999d").contains("213503982334d"));
        assert!(millis("213503982334d").is_ok());
        let size = |text| bytes(text).unwrap_err();
        assert_eq!(
            size("5"),
            "\"5\" is no size: write 5B, or another unit, as in 64KiB or 10MiB"
        );
        assert!(size("99999999999GiB").contains("16777215TiB"));
        assert!(bytes("16777215TiB").is_ok());
    }

    #[test]
    fn sizes_for_people_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_500_000, "1.4 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(round_bytes(bytes), text);
        }
    }
}

//! Sizes as people write them: `512`, `512B`, `4KiB`, `1MiB`.

const UNITS: [(&str, usize); 3] = [("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads the size of a body.
pub(crate) fn read(text: &str) -> Result<usize, String> {
    let parts = UNITS
        .into_iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = parts.unwrap_or((text, 1));
    number
        .parse()
        .ok()
        .and_then(|number: usize| number.checked_mul(unit))
        .filter(|bytes| (1..=1 << 20).contains(bytes))
        .ok_or_else(|| format!("{text:?} is no size from 1B to 1MiB, such as 512B or 4KiB"))
}

/// Writes a size so that [`read`] reads it back.
pub(crate) fn show(bytes: usize) -> String {
    UNITS
        .into_iter()
        .find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(
            || format!("{bytes}B"),
            |(name, unit)| format!("{}{name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, bytes) in [
            ("1", 1),
            ("512B", 512),
            ("1KiB", 1024),
            ("1500", 1500),
            ("1MiB", 1 << 20),
        ] {
            assert_eq!(read(text), Ok(bytes), "{text}");
            assert_eq!(read(&show(bytes)), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "KiB",
            "-1",
            "1.5KiB",
            "2MiB",
            "1kb",
            "99999999999999999999B",
        ] {
            assert!(read(text).is_err(), "{text:?} was read");
        }
    }
}

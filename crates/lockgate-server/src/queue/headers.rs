//! Headers of messages, by the rules for SQS message attributes.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use lockgate_core::Header;

use super::Invalid;
use crate::fault::shorten;

/// The longest name and type of a header, in bytes.
pub(crate) const NAME_LEN_MAX: usize = 256;

/// Checks a header of another API: SQS clients must be able to receive it as an attribute.
pub(crate) fn check(name: &str, kind: &str, value: Bytes) -> Result<Header, Invalid> {
    check_name(name).map_err(|_| {
        Invalid::other(format!(
            "a header's name must have 1 to {NAME_LEN_MAX} bytes, not {}, of letters, digits, '_', '-' and '.'; it \
             must not begin with 'AWS.' or 'Amazon.', nor begin or end with '.', nor contain '..'",
            name.len()
        ))
    })?;
    let base = check_type(name, kind).map_err(|_| {
        let kind = shorten(kind);
        Invalid::other(format!(
            "a header's type must be String, Number or Binary, perhaps with more behind a dot as in Number.int, of \
             letters, digits, '_', '-' and '.' and of at most {NAME_LEN_MAX} bytes, not {kind:?}"
        ))
    })?;
    let invalid = |what: &str| Invalid::other(format!("a value of type {base} must be {what}"));
    if value.is_empty() {
        return Err(invalid("at least 1 byte, not empty: leave the header out"));
    }
    if base != "Binary" {
        let text = std::str::from_utf8(&value)
            .map_err(|_| invalid("UTF-8: use the type Binary for other bytes"))?;
        if base == "Number" && !is_number(text) {
            return Err(invalid(
                "a number of at most 38 digits, 0 or between 10^-128 and 10^126",
            ));
        }
        if let Some(found) = forbidden_character(text) {
            return Err(Invalid::other(forbidden_character_text(
                found,
                "header value",
            )));
        }
    }
    Ok(Header {
        name: name.into(),
        kind: shared_kind(kind),
        value,
    })
}

/// Checks an attribute's name. AWS's documentation allows ASCII only; the service also takes Latin
/// letters up to U+017F, and some software relies on it.
pub(crate) fn check_name(name: &str) -> Result<(), Invalid> {
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(Invalid::other(format!(
            "Message (user) attribute names must be between 1 and {NAME_LEN_MAX} bytes long."
        )));
    }
    let allowed = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '_' | '.' | '-')
            || (('\u{c0}'..='\u{17f}').contains(&c) && c.is_alphabetic())
    };
    if !name.chars().all(allowed) {
        return Err(Invalid::other(format!(
            "The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, \
             0-9, underscore (_), hyphen (-), and period (.) characters."
        )));
    }
    let reserved = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if reserved("aws.")
        || reserved("amazon.")
        || name.starts_with('.')
        || name.ends_with('.')
        || name.contains("..")
    {
        return Err(Invalid::other(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These \
             strings are reserved for internal use. Additionally, they cannot start or end with \
             '.' or contain '..'.",
        ));
    }
    Ok(())
}

/// Checks a data type and returns the part before its first dot.
pub(crate) fn check_type(name: &str, kind: &str) -> Result<&'static str, Invalid> {
    let base = match kind.split('.').next() {
        Some("String") => "String",
        Some("Number") => "Number",
        Some("Binary") => "Binary",
        _ => {
            return Err(Invalid::other(format!(
                "The message attribute '{name}' has an invalid message attribute type, the set of \
                 supported type prefixes is Binary, Number, and String."
            )));
        }
    };
    if kind.len() > NAME_LEN_MAX {
        return Err(Invalid::other(format!(
            "Message (user) attribute types must be between 1 and {NAME_LEN_MAX} bytes long."
        )));
    }
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    if !kind.bytes().all(allowed) {
        return Err(Invalid::other(format!(
            "The type of message (user) attribute '{name}' is invalid. You must use only the \
             following supported type prefixes: Binary, Number, String."
        )));
    }
    Ok(base)
}

/// The data type as a shared string. The three plain types, which nearly all attributes have, are
/// allocated once for the process.
pub(crate) fn shared_kind(kind: &str) -> Arc<str> {
    static PLAIN: LazyLock<[Arc<str>; 3]> =
        LazyLock::new(|| ["String", "Number", "Binary"].map(Arc::from));
    PLAIN
        .iter()
        .find(|plain| &***plain == kind)
        .map_or_else(|| kind.into(), Arc::clone)
}

/// The limit on significant digits, and the powers of ten between which a number lies, as AWS
/// documents them for attributes of type `Number`.
const NUMBER_DIGITS_MAX: usize = 38;
const NUMBER_EXPONENTS: std::ops::RangeInclusive<i64> = -128..=126;

/// Whether a text is a decimal number that AWS takes: a sign, digits with a point among them, an
/// exponent; at most 38 significant digits, and 0 or between 10^-128 and 10^126.
///
/// Decided on the digits and the exponent as written, in time linear in the text.
pub(crate) fn is_number(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        None => (text, 0),
        Some((mantissa, exponent)) => match written_exponent(exponent) {
            Some(exponent) => (mantissa, exponent),
            None => return false,
        },
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if !digits().all(|digit| digit.is_ascii_digit()) || digits().next().is_none() {
        return false;
    }
    let is_significant = |digit| digit != b'0';
    let (Some(first), Some(last)) = (
        digits().position(is_significant),
        digits()
            .enumerate()
            .filter(|&(_, digit)| is_significant(digit))
            .last(),
    ) else {
        return true;
    };
    let significant = last.0 + 1 - first;
    // The power of ten of the first significant digit. No text has 2^62 bytes.
    let power = |len: usize| i64::try_from(len).unwrap_or(i64::MAX / 4);
    let magnitude = exponent + power(whole.len()) - power(first) - 1;
    let is_power_of_ten = significant == 1 && last.1 == b'1';
    let within = NUMBER_EXPONENTS.contains(&magnitude)
        && (magnitude < *NUMBER_EXPONENTS.end() || is_power_of_ten);
    significant <= NUMBER_DIGITS_MAX && within
}

/// The value of an exponent: sign and digits. An exponent with too many digits for a number counts
/// as far out of range.
fn written_exponent(text: &str) -> Option<i64> {
    const FAR: i64 = i64::MAX / 4;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value = digits.trim_start_matches('0');
    let value = match value.len() {
        0 => 0,
        1..=18 => value.parse().ok()?,
        _ => FAR,
    };
    Some(if text.starts_with('-') { -value } else { value })
}

/// The first character of a text that SQS does not allow: those outside XML 1.0's set.
pub(crate) fn forbidden_character(text: &str) -> Option<char> {
    // One pass over bytes, which compilers turn into vector code, clears nearly all texts. It looks
    // for a control character, or for the first byte of U+FFFE and U+FFFF (which is also that of
    // 4,094 allowed characters). It reads whole chunks, because a loop that may stop at any byte is
    // not turned into vector code.
    let suspect = |found: bool, &byte: &u8| found | (byte < 0x20) | (byte == 0xef);
    let mut stretches = text.as_bytes().chunks(256);
    if !stretches.any(|stretch| stretch.iter().fold(false, suspect)) {
        return None;
    }
    text.chars().find(|&c| {
        !matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

/// AWS's error text for a character outside the set.
pub(crate) fn forbidden_character_text(found: char, place: &str) -> String {
    format!(
        "Invalid binary character '#x{:X}' was found in the {place}, the set of allowed characters \
         is #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        u32::from(found)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_and_the_size_that_aws_documents() {
        let digits = |count: usize| "9".repeat(count);
        let zeros = "0".repeat(1 << 16);
        for good in [
            "0",
            "-0",
            "+0.0",
            "0e999999999999999999999",
            ".5",
            "5.",
            "-1.5e3",
            "1E+2",
            "007",
            "1e126",
            "-1e126",
            "1e-128",
            "9.99e125",
            "10e125",
            "0.1e127",
            "0.01e-126",
            "1e0000000000000000000000000000005",
            &digits(38),
            &format!("{}e88", digits(38)),
            &format!("0.{}", digits(38)),
            &format!("{zeros}{}.{zeros}", digits(38)),
            &format!("1{}", "0".repeat(126)),
            &format!("0.{}1", "0".repeat(127)),
            &format!("1{}e-65536", zeros),
        ] {
            assert!(is_number(good), "{good:.60}");
        }
        for bad in [
            "",
            "-",
            "+",
            ".",
            "e5",
            "1e",
            "1e+",
            "1e1.5",
            "--1",
            "+-1",
            "1.2.3",
            " 1",
            "1 ",
            "1\n",
            "0x10",
            "1_000",
            "1,5",
            "nan",
            "inf",
            "Infinity",
            "\u{661}",
            "1e1e1",
            "1d",
            "1e200",
            "-1e200",
            "1.1e126",
            "2e126",
            "1e127",
            "9.9e-129",
            "1e-129",
            "1e999999999999999999999",
            "1e-999999999999999999999",
            &digits(39),
            &format!("1{}", "0".repeat(127)),
            &format!("0.{}1", "0".repeat(128)),
            &format!("1.{}1", "0".repeat(37)),
            &format!("1{zeros}"),
        ] {
            assert!(!is_number(bad), "{bad:.60}");
        }
    }

    #[test]
    fn characters_outside_xml_are_found() {
        for good in [
            "",
            "plain",
            "a\tb\nc\r",
            "ä€",
            "\u{fffd}\u{e000}",
            "\u{1f600}",
        ] {
            assert_eq!(forbidden_character(good), None, "{good:?}");
        }
        for bad in ['\0', '\u{8}', '\u{b}', '\u{1f}', '\u{fffe}', '\u{ffff}'] {
            assert_eq!(forbidden_character(&format!("ok{bad}ok")), Some(bad));
        }
    }
}

//! The limits on a queue's tags.

use std::collections::BTreeMap;

use super::Invalid;

/// How many tags a queue may have.
pub(crate) const TAGS_MAX: usize = 50;
const KEY_LEN_MAX: usize = 128;
const VALUE_LEN_MAX: usize = 256;
/// The prefix of tags that only AWS sets, in any case.
const RESERVED: &str = "aws:";

/// Checks a queue's tags.
pub(crate) fn check(tags: &BTreeMap<String, String>) -> Result<(), Invalid> {
    if tags.len() > TAGS_MAX {
        return Err(Invalid::other(format!(
            "A queue may have {TAGS_MAX} tags, not {}.",
            tags.len()
        )));
    }
    for (key, value) in tags {
        check_key(key)?;
        check_value(value)?;
    }
    Ok(())
}

pub(crate) fn check_value(value: &str) -> Result<(), Invalid> {
    if value.chars().count() <= VALUE_LEN_MAX {
        return Ok(());
    }
    Err(Invalid::other(format!(
        "Tag values must be between 0 and {VALUE_LEN_MAX} characters in length."
    )))
}

pub(crate) fn check_key(key: &str) -> Result<(), Invalid> {
    let reserved = key
        .get(..RESERVED.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(RESERVED));
    if reserved {
        return Err(Invalid::other(format!(
            "Tag keys must not begin with '{RESERVED}', which is reserved."
        )));
    }
    check_key_length(key)
}

pub(crate) fn check_key_length(key: &str) -> Result<(), Invalid> {
    if (1..=KEY_LEN_MAX).contains(&key.chars().count()) {
        Ok(())
    } else {
        Err(key_length())
    }
}

pub(crate) fn key_length() -> Invalid {
    Invalid::other(format!(
        "Tag keys must be between 1 and {KEY_LEN_MAX} characters in length."
    ))
}

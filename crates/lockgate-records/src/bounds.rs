//! Bounds that every store has.

use lockgate_core::{
    ListRecords, Millis, PutRecord, RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordPage,
    RecordsError,
};

/// What a store is called unless its user says otherwise: the schema, or the beginning of the names of tables or keys.
pub const STORE_NAME: &str = "lockgate_records";

/// The longest name of a store, in bytes.
const STORE_NAME_BYTES_MAX: usize = 40;

/// Checks the name of a store, as [`schema_name`] does.
///
/// # Errors
/// [`RecordsError::Invalid`] if it is another one.
pub fn store_name(name: &str) -> Result<(), RecordsError> {
    schema_name(name, "a store of records")
}

/// Checks a name that becomes a name of the server's: 1 to 40 lower-case letters, digits and `_`, the first of them a letter.
/// `what` it names.
///
/// # Errors
/// [`RecordsError::Invalid`] if it is another one.
pub fn schema_name(name: &str, what: &str) -> Result<(), RecordsError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if (1..=STORE_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
    {
        return Ok(());
    }
    let why = format!(
        "{name:?} cannot name {what}: it has 1 to {STORE_NAME_BYTES_MAX} lower-case letters, digits and '_', \
         and begins with a letter"
    );
    Err(RecordsError::Invalid { why })
}

fn check(what: &str, given: u64, min: u64, max: u64) -> Result<(), RecordsError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    let why = format!("{what} must be {min} to {max}, not {given}");
    Err(RecordsError::Invalid { why })
}

/// Checks what is to be written.
///
/// # Errors
/// [`RecordsError::Invalid`] for a value that is too large.
pub fn check_put(put: &PutRecord) -> Result<(), RecordsError> {
    let bytes = put.value.len() as u64;
    check("value_bytes", bytes, 0, RECORD_BYTES_MAX as u64)
}

/// Checks the length of a lease; returns it in microseconds.
///
/// # Errors
/// [`RecordsError::Invalid`] for one out of range.
pub fn check_lease(lease: Millis) -> Result<i64, RecordsError> {
    check("lease", lease, 1, RECORD_LEASE_MAX)?;
    Ok(number(lease.saturating_mul(1_000)))
}

/// Checks the limit of a page.
///
/// # Errors
/// [`RecordsError::Invalid`] for one out of range.
pub fn check_limit(list: &ListRecords) -> Result<i64, RecordsError> {
    check("limit", list.limit as u64, 1, ListRecords::LIMIT_MAX as u64)?;
    Ok(number(list.limit as u64))
}

/// A version or an epoch as a server has it. One that is too large is none that a server gives out, and becomes -1, which
/// is none either.
#[must_use]
pub fn number(given: u64) -> i64 {
    i64::try_from(given).unwrap_or(-1)
}

/// The first text, in the order of bytes, behind all that begin with `prefix`. `None`: there is none.
#[must_use]
pub fn prefix_end(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // The characters in their order have their bytes in order; some numbers are none.
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// A page of the records that were found, and whether there are more behind them.
#[must_use]
pub fn page(records: Vec<Record>, has_more: bool) -> RecordPage {
    let next = records.last().filter(|_| has_more);
    let next = next.map(|record| record.name.clone());
    RecordPage { records, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        assert_eq!(prefix_end("").as_deref(), None);
        assert_eq!(prefix_end("a/").as_deref(), Some("a0"));
        assert_eq!(prefix_end("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(prefix_end("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(prefix_end("\u{10ffff}").as_deref(), None);
    }

    #[test]
    fn a_bad_name_of_a_store_is_refused() {
        for bad in ["", "A", "1a", "a-b", "a b", &"x".repeat(41)] {
            assert!(store_name(bad).is_err(), "{bad}");
        }
        store_name(STORE_NAME).unwrap();
    }
}

//! What tests of single stores share beyond the suites.

use lockgate_core::{HolderName, LeaseRecord, PutRecord, RecordName, Records, RecordsError};

/// A name.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn name(text: &str) -> RecordName {
    RecordName::new(text).unwrap()
}

/// The first write of a record.
///
/// # Panics
/// If the name is none.
#[must_use]
pub fn put(of: &str, value: &str) -> PutRecord {
    PutRecord {
        name: name(of),
        value: value.to_owned().into(),
        replaces: None,
        epoch: None,
    }
}

/// Places of candidates that have gone do not stay, though nobody asks for them. Leases so many records whose names begin
/// with `line/`, for a moment, and writes others until none `is_left`.
///
/// # Panics
/// If the store does not answer.
pub async fn ended_leases_are_cleared<R: Records>(
    records: &R,
    count: u32,
    mut is_left: impl AsyncFnMut() -> bool,
) {
    for number in 0..count {
        let lease = LeaseRecord {
            name: name(&format!("line/{number}")),
            holder: HolderName::new("me").unwrap(),
            lease: 1,
            delete_at_end: true,
        };
        records.lease(lease).await.unwrap();
    }
    let mut number = 0;
    while is_left().await {
        records
            .put(put(&format!("other/{number}"), "x"))
            .await
            .unwrap();
        number += 1;
    }
}

/// Each of these URLs, whose password is `secret`, is refused with a text that has the part beside it, and not the password.
///
/// # Panics
/// If one is not.
pub async fn bad_urls_are_told_without_the_password<R: std::fmt::Debug>(
    connect: impl AsyncFn(&'static str) -> Result<R, RecordsError>,
    urls: &[(&'static str, &str)],
) {
    for (url, expected) in urls {
        let error = connect(url).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

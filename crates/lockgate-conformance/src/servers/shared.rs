//! What tests of single stores share beyond the suites.

use lockgate_core::{
    ElectionName, Epoch, HolderName, LeaseRecord, PutRecord, RecordName, Records, RecordsError,
    coordination::{Fence, FenceError},
};

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

/// A store refuses what comes behind a later term. It has no records whose names begin with `fences/`.
///
/// # Panics
/// If it does not.
pub async fn fences_hold<R: Records>(records: &R) {
    let election = ElectionName::new("fences").unwrap();
    let under = |term| records.fenced(&Fence::new(election.clone(), Epoch(term)));
    let (old, new) = (under(7).unwrap(), under(9).unwrap());
    old.put(put("fences/a", "x")).await.unwrap();
    new.put(put("fences/b", "x")).await.unwrap();
    let late = old.put(put("fences/c", "x")).await;
    let deposed = FenceError::Deposed {
        election,
        epoch: Epoch(7),
        newest: Epoch(9),
    };
    assert_eq!(late, Err(RecordsError::Fenced(deposed)));
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

//! What a [`BusyRegistry`] must do over every store of records.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

use std::time::Duration;

use lockgate_coordination::{Busy, BusyRegistry, ClaimError};
use lockgate_core::{HolderName, Key, RecordsError};

use crate::records::Fixture;

const LEASE: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn worker(name: &str) -> HolderName {
    HolderName::new(name).unwrap()
}

fn is_busy_with<T: std::fmt::Debug>(claimed: Result<T, ClaimError>, name: &str) {
    match claimed {
        Err(ClaimError::Busy(busy)) => assert_eq!(busy.worker, worker(name)),
        other => panic!("expected a busy key: {other:?}"),
    }
}

/// One works on a key at a time, and whoever comes late changes nothing. The fixture lets time pass, and has no records whose
/// names begin with `busy/`.
///
/// # Panics
/// If that does not hold.
pub async fn one_works_on_a_key_and_late_ones_change_nothing<F: Fixture>(fixture: &mut F)
where
    F::Records: Clone,
{
    println!("busy: one_works_on_a_key_and_late_ones_change_nothing");
    let records = fixture.records().clone();
    let (here, there) = (
        BusyRegistry::new(records.clone(), worker("a")),
        BusyRegistry::new(records.clone(), worker("b")),
    );
    let user = &key("user-42");
    let mut claim = here.claim(user, LEASE).await.unwrap();
    assert!(claim.remaining() <= LEASE);
    is_busy_with(there.claim(user, LEASE).await, "a");
    // Also for the worker itself: two of its tasks are two.
    is_busy_with(here.claim(user, LEASE).await, "a");
    let who = there.who(user).await.unwrap().unwrap();
    assert_eq!((who.token, who.key), (claim.token(), user.clone()));
    let other = there.claim(&key("user-7"), LEASE).await.unwrap();
    let keys = |busy: Vec<Busy>| busy.into_iter().map(|it| it.key);
    let busy = here.busy(None, 10).await.unwrap();
    assert!(keys(busy).eq([user.clone(), key("user-7")]));
    let behind = here.busy(Some(user), 10).await.unwrap();
    assert!(keys(behind).eq([key("user-7")]));
    assert!(!here.free(user, Duration::ZERO).await.unwrap());

    // It has died, or is frozen.
    here.extend(&mut claim, LEASE).await.unwrap();
    assert!(fixture.pass(LEASE), "the fixture lets time pass");
    assert!(there.free(user, Duration::ZERO).await.unwrap());
    let next = there.claim(user, LEASE).await.unwrap();
    assert!(next.token() > claim.token());
    let late = here.extend(&mut claim, LEASE).await;
    assert!(
        matches!(late, Err(RecordsError::LeaseLost { .. })),
        "{late:?}"
    );
    let late = here.release(claim).await;
    assert!(
        matches!(late, Err(RecordsError::LeaseLost { .. })),
        "{late:?}"
    );
    assert_eq!(here.who(user).await.unwrap().unwrap().token, next.token());

    let (free, released) = tokio::join!(here.free(user, LEASE), there.release(next));
    released.unwrap();
    assert!(free.unwrap());
    let _ = there.release(other).await;
    assert_eq!(here.busy(None, 10).await.unwrap(), []);
    let apart = BusyRegistry::new(records, worker("a")).prefix("other/");
    let too_long = apart.claim(&key(&"x".repeat(510)), LEASE).await.map(drop);
    assert!(
        matches!(
            too_long,
            Err(ClaimError::Records(RecordsError::Invalid { .. }))
        ),
        "{too_long:?}"
    );
}

//! Leaders of many terms that change records at the same time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{
    ElectionName, Epoch, ExtendRecord, HolderName, LeaseRecord, Records, RecordsError,
    ReleaseRecord, Revision,
    coordination::{Fence, FenceError},
};
use tokio::task::JoinSet;

use super::{Server, name, put};

const LEADERS: u64 = 4;

/// How often each of them goes on after it was deposed.
const TERMS: u32 = 12;

/// Longer than a case takes.
const LONG_MS: u64 = 60_000;

/// In the order of their changes the terms never fall, as the revisions tell it, and nobody is refused for another reason.
pub(super) async fn terms_never_fall<S: Server>(server: &S) {
    let newest = Arc::new(AtomicU64::new(0));
    let mut leaders = JoinSet::new();
    for number in 0..LEADERS {
        let (url, newest) = (server.url(), newest.clone());
        leaders.spawn(async move {
            let records = S::connect(url, Duration::from_secs(30)).await.unwrap();
            let mut changes = Vec::new();
            for _ in 0..TERMS {
                let term = newest.fetch_add(1, Ordering::Relaxed) + 1;
                lead(&records, number, term, &mut changes).await;
            }
            changes
        });
    }
    let mut changes = leaders.join_all().await.concat();
    changes.sort_unstable();
    assert!(changes.is_sorted_by_key(|(_, term)| *term), "{changes:?}");
    let guard = S::connect(server.url(), Duration::from_secs(30)).await;
    let guard = guard.unwrap().get(name("fence/many")).await.unwrap();
    let (_, last) = changes.last().unwrap();
    assert_eq!(guard.unwrap().value, last.to_string());
}

/// Changes records until a later term was there, or for a few rounds.
async fn lead<R: Records>(records: &R, number: u64, term: u64, changes: &mut Vec<(Revision, u64)>) {
    let fence = Fence::new(ElectionName::new("many").unwrap(), Epoch(term));
    let records = records.fenced(&fence).unwrap();
    for round in 0..4 {
        let leads = async {
            let of = name(&format!("many/{number}"));
            let put = put(&format!("many/{number}/{term}/{round}"), "x");
            changes.push((records.put(put).await?.revision, term));
            let lease = LeaseRecord {
                name: of.clone(),
                holder: HolderName::new("me").unwrap(),
                lease: LONG_MS,
                delete_at_end: true,
            };
            let leased = records.lease(lease).await?;
            let epoch = leased.lease.unwrap().epoch;
            let (name, lease) = (of.clone(), LONG_MS);
            records.extend(ExtendRecord { name, epoch, lease }).await?;
            let name = of;
            records.release(ReleaseRecord { name, epoch }).await
        };
        match leads.await {
            Ok(()) => {}
            Err(RecordsError::Fenced(FenceError::Deposed { newest, .. })) => {
                return assert!(newest.0 > term);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

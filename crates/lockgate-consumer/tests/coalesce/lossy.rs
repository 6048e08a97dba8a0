//! Across processes, over a store whose answers are lost.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_conformance::records::Lossy;
use lockgate_consumer::{
    MemoryRecords,
    coalesce::{Merge, SharedCoalescer, SharedEntered, SharedError, SharedOptions},
};
use lockgate_core::{
    DeleteRecord, Key, ListRecords, PutRecord, RecordName, Records, RecordsError, WatchRecord,
};

/// A store that loses everything is not asked for ever.
#[tokio::test]
async fn a_store_that_loses_every_answer_is_given_up() {
    let changes = Lossy::new(MemoryRecords::new(), |_| Some(false));
    let reads = Lossy::new(MemoryRecords::new(), |_| None).losing_reads(|_| true);
    for store in [changes, reads] {
        let options = SharedOptions {
            lease: Duration::from_secs(1),
            ..SharedOptions::default()
        };
        let shared = SharedCoalescer::new(store, options).unwrap();
        let entered = shared.enter(&Key::new("k").unwrap(), Bytes::new()).await;
        let error = entered.map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                SharedError::Store(RecordsError::Unknown { .. } | RecordsError::Unavailable { .. })
            ),
            "{error}"
        );
    }
}

/// A state that is cut off, longer, or of another format is told, and stays as it is.
#[tokio::test]
async fn a_damaged_state_is_told() {
    let records = MemoryRecords::new();
    let shared = SharedCoalescer::new(records.clone(), SharedOptions::default()).unwrap();
    let key = Key::new("k").unwrap();
    let Ok(SharedEntered::Run(run)) = shared.enter(&key, Bytes::from_static(b"payload")).await
    else {
        panic!("nobody runs")
    };
    let name = RecordName::new("coalesce/state/k").unwrap();
    let whole = records.get(name.clone()).await.unwrap().unwrap().value;
    run.fail().await.unwrap();
    let cut = (0..whole.len()).map(|len| whole.slice(..len));
    let longer = Bytes::from([&whole[..], b"x"].concat());
    let other_format = Bytes::from([b"\xff", &whole[1..]].concat());
    for value in cut.chain([longer, other_format]) {
        let put = PutRecord {
            name: name.clone(),
            value: value.clone(),
            replaces: None,
            epoch: None,
        };
        let written = records.put(put).await.unwrap();
        let entered = shared.enter(&key, Bytes::new()).await.map(drop);
        assert_eq!(
            entered,
            Err(SharedError::Damaged { name: name.clone() }),
            "{value:?}"
        );
        let delete = DeleteRecord {
            name: name.clone(),
            replaces: written.version,
            epoch: None,
        };
        records.delete(delete).await.unwrap();
        // The lease of the attempt is given back.
        let run = RecordName::new("coalesce/run/k").unwrap();
        let mut seen = records.get(run.clone()).await.unwrap();
        while let Some(record) = seen {
            let watch = WatchRecord {
                name: run.clone(),
                seen: Some(record.revision),
                wait: Duration::from_secs(60),
            };
            seen = records.watch(watch).await.unwrap();
        }
    }
}

/// Whatever is lost, each trigger is covered once it is said to be. One may run twice: nobody knows any more of the write whose
/// answer was lost when all that it had brought is done before its caller looks.
#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let ways: [fn(u64) -> Option<bool>; 4] = [
        |number| (number % 2 == 0).then_some(true),
        |number| (number % 2 == 1).then_some(false),
        |number| (number % 3 != 0).then_some(true),
        |number| (number % 5 > 1).then_some(number % 2 == 0),
    ];
    let reads: [fn(u64) -> bool; 2] = [|_| false, |number| number % 7 < 3];
    let ways = ways.map(|lose| reads.map(|lose_reads| (lose, lose_reads)));
    for (way, (lose, lose_reads)) in ways.into_iter().flatten().enumerate() {
        let records = MemoryRecords::new();
        let store = Lossy::new(records.clone(), lose).losing_reads(lose_reads);
        let options = SharedOptions {
            merge: Merge::Append { max: 100 },
            lease: Duration::from_secs(3_600),
            ..SharedOptions::default()
        };
        let process = || SharedCoalescer::new(store.clone(), options.clone()).unwrap();
        let key = Key::new("k").unwrap();
        let done = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..10_u8 {
            let (process, key, done) = (process(), key.clone(), done.clone());
            callers.spawn(async move {
                let entered = process
                    .enter(&key, Bytes::from(vec![caller]))
                    .await
                    .unwrap();
                if let SharedEntered::Run(run) = entered {
                    let has = run.batch().payloads().iter().map(|payload| payload[0]);
                    done.lock().unwrap().extend(has);
                    run.succeed().await.unwrap();
                }
                // Whoever comes here has been acknowledged.
                assert!(done.lock().unwrap().contains(&caller));
            });
        }
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
        let mut done = done.lock().unwrap().clone();
        done.sort_unstable();
        done.dedup();
        assert_eq!(done, Vec::from_iter(0..10), "way {way}");
        let list = ListRecords {
            prefix: String::new(),
            after: None,
            limit: 10,
        };
        assert!(
            records.list(list).await.unwrap().records.is_empty(),
            "way {way}"
        );
    }
}

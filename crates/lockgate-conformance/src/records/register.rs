//! A checker of linearizability for one record.
//!
//! Each successful write has a version of its own, and versions say in which order the writes took effect. So
//! a history is linearizable exactly if this order agrees with real time: an operation sees no version below one
//! that was known when it began, and none that nobody had begun to write when it ended (Herlihy and Wing,
//! "Linearizability", 1990; the general problem needs a search, a register with versions does not).

use std::cell::RefCell;

use bytes::Bytes;
use lockgate_core::{PutRecord, RecordName, RecordVersion, Records, RecordsError};

use super::Fixture;

const CLIENTS: u64 = 4;
const STEPS: u64 = 60;

/// What one operation has seen, between two points of real time.
struct Seen {
    begun: u64,
    ended: u64,
    version: u64,
    value: Option<Bytes>,
    /// The version that it wrote in place of, if it wrote.
    replaced: Option<u64>,
}

#[derive(Default)]
struct History {
    time: u64,
    seen: Vec<Seen>,
}

impl History {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }
}

pub(super) async fn check<F: Fixture>(fixture: &mut F, name: &RecordName) -> bool {
    let history = RefCell::new(History::default());
    let records = fixture.records();
    let first = put(name, "0".into(), None);
    let first = records.put(first).await.expect("it is new").version;
    tokio::join!(
        client(records, name, first, 1, &history),
        client(records, name, first, 2, &history),
        client(records, name, first, 3, &history),
        client(records, name, first, CLIENTS, &history),
    );
    let history = history.into_inner().seen;
    let writes = history.iter().filter(|it| it.replaced.is_some()).count();
    assert!(writes > 0, "nobody wrote");
    let problem = problem_of(&history);
    assert_eq!(problem, None);
    true
}

fn put(name: &RecordName, value: String, replaces: Option<RecordVersion>) -> PutRecord {
    PutRecord {
        name: name.clone(),
        value: value.into(),
        replaces,
        epoch: None,
    }
}

async fn client<R: Records>(
    records: &R,
    name: &RecordName,
    first: RecordVersion,
    number: u64,
    history: &RefCell<History>,
) {
    let (mut known, mut draw) = (first, number);
    for step in 0..STEPS {
        // Knuth's multiplier; the upper bits are well mixed.
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let begun = history.borrow_mut().tick();
        let (version, value, replaced) = if (draw >> 60) < 5 {
            let read = records.get(name.clone()).await.unwrap();
            let read = read.expect("nobody deletes it");
            (read.version, Some(read.value), None)
        } else {
            let value = format!("{number}/{step}");
            let write = put(name, value.clone(), Some(known));
            match records.put(write).await {
                Ok(written) => (written.version, Some(value.into()), Some(known.0)),
                Err(RecordsError::Conflict { version, .. }) => {
                    (version.expect("nobody deletes it"), None, None)
                }
                Err(other) => panic!("{other}"),
            }
        };
        let ended = history.borrow_mut().tick();
        history.borrow_mut().seen.push(Seen {
            begun,
            ended,
            version: version.0,
            value,
            replaced,
        });
        known = version;
        // Others get their turn also where an answer needs no waiting.
        tokio::task::yield_now().await;
    }
}

/// Why the history is not linearizable; `None`: it is.
fn problem_of(history: &[Seen]) -> Option<String> {
    for it in history {
        if it.replaced.is_some_and(|before| before + 1 != it.version) {
            return Some(format!("{} does not follow what it replaced", it.version));
        }
        let writes = history.iter().filter(|w| w.replaced.is_some());
        let mut of_version = writes.filter(|write| write.version == it.version);
        let write = of_version.next();
        if of_version.next().is_some() {
            return Some(format!("{} was written twice", it.version));
        }
        if let Some(write) = write {
            if write.begun > it.ended {
                return Some(format!("{} was seen before it was written", it.version));
            }
            if it.value.is_some() && it.value != write.value {
                return Some(format!("{} has two values", it.version));
            }
        }
        for earlier in history.iter().filter(|earlier| earlier.ended < it.begun) {
            let is_older = match it.replaced {
                Some(_) => it.version <= earlier.version,
                None => it.version < earlier.version,
            };
            if is_older {
                let (old, new) = (it.version, earlier.version);
                return Some(format!("{old} was seen after {new}"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(begun: u64, ended: u64, version: u64, replaced: Option<u64>) -> Seen {
        Seen {
            begun,
            ended,
            version,
            value: Some(Bytes::from(version.to_string())),
            replaced,
        }
    }

    #[test]
    fn a_history_that_a_register_can_have_is_accepted() {
        let history = [
            seen(1, 4, 2, Some(1)),
            seen(2, 3, 2, None),
            seen(2, 6, 1, None),
            seen(5, 7, 3, Some(2)),
        ];
        assert_eq!(problem_of(&history), None);
    }

    #[test]
    fn each_planted_fault_is_found() {
        let other_value = Seen {
            value: Some("x".into()),
            ..seen(3, 4, 2, None)
        };
        for (history, expected) in [
            (
                vec![seen(1, 2, 2, Some(1)), seen(3, 4, 1, None)],
                "1 was seen after 2",
            ),
            (
                vec![seen(1, 2, 2, None), seen(3, 4, 2, Some(1))],
                "2 was seen before it was written",
            ),
            (
                vec![seen(1, 5, 2, Some(1)), seen(2, 4, 2, Some(1))],
                "2 was written twice",
            ),
            (
                vec![seen(1, 2, 3, Some(1))],
                "3 does not follow what it replaced",
            ),
            (
                vec![seen(1, 2, 2, Some(1)), other_value],
                "2 has two values",
            ),
        ] {
            assert_eq!(problem_of(&history).as_deref(), Some(expected));
        }
    }
}

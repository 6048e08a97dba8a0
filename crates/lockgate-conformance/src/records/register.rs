//! A checker of linearizability for one record.
//!
//! Each successful write has a version of its own, and versions say in which order the writes took effect. So
//! a history is linearizable exactly if this order agrees with real time: an operation sees no version below one
//! that was known when it began, and none that nobody had begun to write when it ended (Herlihy and Wing,
//! "Linearizability", 1990; the general problem needs a search, a register with versions does not).

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{PutRecord, RecordName, RecordVersion, Records, RecordsError};
use tokio::sync::Notify;

/// What one operation has seen or done, between two points of real time.
struct Seen {
    begun: u64,
    /// `u64::MAX`: its answer was lost, so it may take effect at any time, or never.
    ended: u64,
    version: u64,
    value: Option<Bytes>,
    /// The version that it wrote in place of, if it wrote.
    replaced: Option<u64>,
}

impl Seen {
    fn is_certain(&self) -> bool {
        self.ended != u64::MAX
    }
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

/// One record that four clients read and write at the same time.
pub struct Register<'r, R> {
    records: &'r R,
    name: RecordName,
    first: RecordVersion,
    steps: u64,
    goes_on: Cell<bool>,
    history: RefCell<History>,
    unavailable: Cell<u64>,
    taken: Notify,
}

/// What the clients of a register have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Writes whose answers were lost.
    pub lost: usize,
    /// Operations that certainly did not happen.
    pub unavailable: u64,
}

impl<'r, R: Records> Register<'r, R> {
    /// Makes the record. Each client takes so many steps.
    pub async fn new(records: &'r R, name: RecordName, steps: u64) -> Self {
        let first = PutRecord {
            name: name.clone(),
            value: "0".into(),
            replaces: None,
            epoch: None,
        };
        let first = records.put(first).await.expect("it is new").version;
        let register = Self {
            records,
            name,
            first,
            steps,
            goes_on: Cell::new(false),
            history: RefCell::default(),
            unavailable: Cell::default(),
            taken: Notify::new(),
        };
        register.note(0, first, Some("0".into()), Some(first.0 - 1));
        register
    }

    /// Runs the clients. They ask again where the store does not answer.
    pub async fn run(&self) {
        let client = |number| self.client(number);
        tokio::join!(client(1), client(2), client(3), client(4));
    }

    /// Has the clients go on behind their steps, or no more: a slow machine takes long to begin with what troubles them.
    pub fn goes_on(&self, goes_on: bool) {
        self.goes_on.set(goes_on);
    }

    /// Returns when so many steps have been taken by all clients together.
    pub async fn reached(&self, steps: usize) {
        while self.history.borrow().seen.len() < steps {
            self.taken.notified().await;
        }
    }

    /// Returns what the clients have met.
    ///
    /// # Panics
    /// If what the clients have seen is not linearizable, or none of them wrote.
    pub fn check(self) -> Troubles {
        let history = self.history.into_inner().seen;
        let writes = history.iter().filter(|it| it.replaced.is_some());
        let certain = writes.clone().filter(|it| it.is_certain()).count();
        assert!(certain > 0, "nobody wrote");
        assert_eq!(problem_of(&history), None);
        Troubles {
            lost: writes.count() - certain,
            unavailable: self.unavailable.get(),
        }
    }

    async fn client(&self, number: u64) {
        let (mut known, mut draw) = (self.first, number);
        for step in 0.. {
            if step >= self.steps {
                if !self.goes_on.get() {
                    return;
                }
                // Who looks at the history compares each step with each other one.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Knuth's multiplier; the upper bits are well mixed.
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = ((draw >> 60) >= 5).then(|| format!("{number}/{step}"));
            known = match value {
                Some(value) => self.write(known, value.into()).await,
                None => self.read().await,
            };
            // Others get their turn also where an answer needs no waiting.
            tokio::task::yield_now().await;
        }
    }

    async fn read(&self) -> RecordVersion {
        loop {
            let begun = self.history.borrow_mut().tick();
            match self.records.get(self.name.clone()).await {
                Ok(read) => {
                    let read = read.expect("nobody deletes it");
                    self.note(begun, read.version, Some(read.value), None);
                    return read.version;
                }
                Err(RecordsError::Unavailable { .. }) => self.pause().await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Returns the version that is known then.
    async fn write(&self, known: RecordVersion, value: Bytes) -> RecordVersion {
        loop {
            let begun = self.history.borrow_mut().tick();
            let put = PutRecord {
                name: self.name.clone(),
                value: value.clone(),
                replaces: Some(known),
                epoch: None,
            };
            match self.records.put(put).await {
                Ok(written) => {
                    self.note(begun, written.version, Some(value), Some(known.0));
                    return written.version;
                }
                Err(RecordsError::Conflict { version, .. }) => {
                    let version = version.expect("nobody deletes it");
                    assert_ne!(version, known, "a conflict with the version that was named");
                    self.note(begun, version, None, None);
                    return version;
                }
                Err(RecordsError::Unknown { .. }) => {
                    self.history.borrow_mut().seen.push(Seen {
                        begun,
                        ended: u64::MAX,
                        version: known.0 + 1,
                        value: Some(value),
                        replaced: Some(known.0),
                    });
                    self.taken.notify_waiters();
                    return self.read().await;
                }
                // It did not happen.
                Err(RecordsError::Unavailable { .. }) => self.pause().await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Asks a store that is away not too often.
    async fn pause(&self) {
        self.unavailable.set(self.unavailable.get() + 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    fn note(
        &self,
        begun: u64,
        version: RecordVersion,
        value: Option<Bytes>,
        replaced: Option<u64>,
    ) {
        let mut history = self.history.borrow_mut();
        let ended = history.tick();
        history.seen.push(Seen {
            begun,
            ended,
            version: version.0,
            value,
            replaced,
        });
        self.taken.notify_waiters();
    }
}

/// Why the history is not linearizable; `None`: it is.
fn problem_of(history: &[Seen]) -> Option<String> {
    // What a write has done whose answer was lost is known by those who have seen it.
    for it in history.iter().filter(|it| it.is_certain()) {
        let version = it.version;
        if it.replaced.is_some_and(|before| before + 1 != version) {
            return Some(format!("{version} does not follow what it replaced"));
        }
        let of_version = history.iter().filter(|other| other.version == version);
        let writes = of_version.clone().filter(|it| it.replaced.is_some());
        if writes.clone().filter(|it| it.is_certain()).count() > 1 {
            return Some(format!("{version} was written twice"));
        }
        let mut certain = of_version.filter(|it| it.is_certain());
        if certain.any(|other| matches!((&other.value, &it.value), (Some(a), Some(b)) if a != b)) {
            return Some(format!("{version} has two values"));
        }
        let mut writes = writes.filter(|write| it.value.is_none() || write.value == it.value);
        match writes.clone().next() {
            None => return Some(format!("nobody wrote {version}")),
            Some(_) if writes.all(|write| write.begun > it.ended) => {
                return Some(format!("{version} was seen before it was written"));
            }
            Some(_) => {}
        }
        for earlier in history.iter().filter(|earlier| earlier.ended < it.begun) {
            let is_older = match it.replaced {
                Some(_) => version <= earlier.version,
                None => version < earlier.version,
            };
            if is_older {
                return Some(format!("{version} was seen after {}", earlier.version));
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

    fn lost(begun: u64, version: u64, value: &'static str) -> Seen {
        Seen {
            value: Some(value.into()),
            ..seen(begun, u64::MAX, version, Some(version - 1))
        }
    }

    fn with_value(seen: Seen, value: &'static str) -> Seen {
        let value = Some(value.into());
        Seen { value, ..seen }
    }

    #[test]
    fn a_history_that_a_register_can_have_is_accepted() {
        for history in [
            vec![
                seen(1, 4, 2, Some(1)),
                seen(2, 3, 2, None),
                seen(2, 6, 1, None),
                seen(5, 7, 3, Some(2)),
            ],
            // Of two lost writes, the second takes effect, long after its caller has given up.
            vec![
                lost(1, 2, "a"),
                lost(2, 2, "b"),
                seen(5, 6, 1, None),
                with_value(seen(7, 8, 2, None), "b"),
                seen(9, 10, 3, Some(2)),
            ],
        ] {
            let history: Vec<_> = [seen(0, 0, 1, Some(0))]
                .into_iter()
                .chain(history)
                .collect();
            assert_eq!(problem_of(&history), None);
        }
    }

    #[test]
    fn each_planted_fault_is_found() {
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
                vec![seen(1, 2, 2, Some(1)), with_value(seen(3, 4, 2, None), "x")],
                "2 has two values",
            ),
            // Each of two lost writes has taken effect.
            (
                vec![
                    lost(1, 2, "a"),
                    lost(2, 2, "b"),
                    with_value(seen(3, 4, 2, None), "a"),
                    with_value(seen(5, 6, 2, None), "b"),
                ],
                "2 has two values",
            ),
            // An acknowledged write is lost with a kill, and its version given out again.
            (vec![seen(1, 2, 2, None)], "nobody wrote 2"),
            (
                vec![lost(5, 2, "a"), with_value(seen(1, 2, 2, None), "a")],
                "2 was seen before it was written",
            ),
        ] {
            let history: Vec<_> = [seen(0, 0, 1, Some(0))]
                .into_iter()
                .chain(history)
                .collect();
            assert_eq!(problem_of(&history).as_deref(), Some(expected));
        }
    }
}

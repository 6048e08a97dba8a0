//! Who waits for which record.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_core::{Record, RecordName, RecordsError, Revision, WatchRecord};
use tokio::{sync::Notify, time::Instant};

/// The shortest sleep until the end of a lease: the server's clock may be behind the caller's by less.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Wakes those who watch a record. Nothing is kept of a record that nobody watches. Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Mutex<HashMap<RecordName, Watched>>>);

#[derive(Debug)]
struct Watched {
    changed: Arc<Notify>,
    /// The revision of each who watches.
    seen: Vec<Option<Revision>>,
}

/// One who watches a record, until it is dropped.
#[derive(Debug)]
pub struct Listening {
    bell: Bell,
    name: RecordName,
    seen: Option<Revision>,
    changed: Arc<Notify>,
}

impl Bell {
    fn watched(&self) -> MutexGuard<'_, HashMap<RecordName, Watched>> {
        // What panics under it has changed nothing by halves.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who watches that record.
    pub fn ring(&self, name: &str) {
        if let Some(watched) = self.watched().get(name) {
            watched.changed.notify_waiters();
        }
    }

    /// Wakes all: changes may have been missed.
    pub fn ring_all(&self) {
        for watched in self.watched().values() {
            watched.changed.notify_waiters();
        }
    }

    /// The records that somebody watches, each with every revision that one of those has seen.
    #[must_use]
    pub fn names(&self) -> Vec<(RecordName, Option<Revision>)> {
        let mut names = Vec::new();
        for (name, watched) in self.watched().iter() {
            let from = names.len();
            for seen in &watched.seen {
                let it = (name.clone(), *seen);
                if !names[from..].contains(&it) {
                    names.push(it);
                }
            }
        }
        names
    }

    /// One more who watches that record, and has seen that revision.
    #[must_use]
    pub fn listen(&self, name: RecordName, seen: Option<Revision>) -> Listening {
        let mut names = self.watched();
        let watched = names.entry(name.clone()).or_insert_with(|| Watched {
            changed: Arc::default(),
            seen: Vec::new(),
        });
        watched.seen.push(seen);
        let changed = watched.changed.clone();
        drop(names);
        Listening {
            bell: self.clone(),
            name,
            seen,
            changed,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut names = self.bell.watched();
        if let Some(watched) = names.get_mut(&self.name) {
            if let Some(at) = watched.seen.iter().position(|seen| *seen == self.seen) {
                watched.seen.swap_remove(at);
            }
            if watched.seen.is_empty() {
                names.remove(&self.name);
            }
        }
    }
}

/// Carries a watch out: looks whenever the bell rings, when the record's lease ends, and when the wait is over. `look` reads
/// the record; leases that it shows have not ended. It must look at a store that rings the bell for every change from
/// before the look on.
///
/// # Errors
/// What `look` says.
///
/// # Cancellation
/// Nothing has happened.
pub async fn watch<F: Future<Output = Result<Option<Record>, RecordsError>>>(
    bell: &Bell,
    watch: WatchRecord,
    look: impl Fn() -> F,
) -> Result<Option<Record>, RecordsError> {
    let WatchRecord { name, seen, wait } = watch;
    // A wait longer than tokio can express has no end.
    let until = Instant::now().checked_add(wait);
    let listening = bell.listen(name, seen);
    loop {
        let changed = listening.changed.notified();
        tokio::pin!(changed);
        // From here on no change is missed.
        changed.as_mut().enable();
        let record = look().await?;
        let now = Instant::now();
        let revision = record.as_ref().map(|record| record.revision);
        if revision != seen || until.is_some_and(|until| until <= now) {
            return Ok(record);
        }
        let lease = record.and_then(|record| record.lease);
        let end = lease.and_then(|lease| now.checked_add(lease.remaining.max(SLEEP_MIN)));
        let next = match (until, end) {
            (Some(until), Some(end)) => Some(until.min(end)),
            (until, end) => until.or(end),
        };
        tokio::select! {
            () = changed => {}
            () = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_a_record_that_nobody_watches() {
        let bell = Bell::default();
        let name = RecordName::new("a").expect("a name");
        let first = bell.listen(name.clone(), None);
        let second = bell.listen(name.clone(), Some(Revision(7)));
        let third = bell.listen(name.clone(), Some(Revision(7)));
        let seen = [None, Some(Revision(7))].map(|seen| (name.clone(), seen));
        assert_eq!(bell.names(), seen);
        drop(first);
        assert_eq!(bell.names(), [(name, Some(Revision(7)))]);
        drop((second, third));
        assert!(bell.names().is_empty());
        bell.ring_all();
    }
}

//! How those who watch are woken.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use lockgate_core::{Millis, RecordName, RecordsError, Revision};
use lockgate_records::Bell;
use mysql_async::{Conn, Value, prelude::Queryable as _};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use super::store::{Store, lock_of};
use crate::connection::{Link, get};

/// How long one wait for a lock is at most, in seconds.
const SLICE: u32 = 1;

/// Names that one query asks for.
const NAMES_MAX: usize = 500;

/// What of a record somebody has seen.
type Seen = (RecordName, Option<Revision>);

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) bell: Bell,
    /// The records that this process has leased, and until when: it waits for the end of none of these leases.
    own: Mutex<HashMap<RecordName, Instant>>,
    /// Somebody has begun to watch.
    more: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What panics under it has changed nothing by halves.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    /// The store is gone.
    pub(crate) fn stop(&self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }

    pub(crate) fn leased(&self, name: &RecordName, lease: Millis) {
        let end = Instant::now() + Duration::from_millis(lease);
        lock(&self.own).insert(name.clone(), end);
    }

    /// Takes those whose leases have ended by themselves: the session still has their locks.
    pub(crate) fn over(&self) -> Vec<RecordName> {
        let (mut own, now) = (lock(&self.own), Instant::now());
        let ended = own.extract_if(|_, end| *end <= now);
        ended.map(|(name, _)| name).collect()
    }

    pub(crate) fn gave_back(&self, name: &RecordName) {
        lock(&self.own).remove(name);
    }

    /// Somebody watches: has the task run that wakes them, in this runtime if it does not run in another one.
    pub(crate) fn wake_for(&self, run: impl FnOnce() -> JoinHandle<()>) {
        let mut task = lock(&self.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(run());
        }
        drop(task);
        self.more.notify_one();
    }
}

/// Looks at what is watched, every now and then.
pub(crate) async fn look(link: &Link<Store>, waiting: &Waiting) {
    loop {
        sleep(link.purpose().poll).await;
        let mut names = waiting.bell.names();
        if names.is_empty() {
            waiting.more.notified().await;
            // Another one may wait for it as well.
            waiting.more.notify_one();
            continue;
        }
        while !names.is_empty() {
            let some = names.split_off(names.len().saturating_sub(NAMES_MAX));
            if look_at(link, &waiting.bell, some).await.is_err() {
                // Whoever watches is told, by looking.
                waiting.bell.ring_all();
                break;
            }
        }
    }
}

async fn look_at(link: &Link<Store>, bell: &Bell, names: Vec<Seen>) -> Result<(), RecordsError> {
    let marks = vec!["?"; names.len()].join(", ");
    let sql = format!(
        "SELECT name, revision FROM {}_record WHERE name IN ({marks})",
        link.purpose().name
    );
    let asked = names.iter().map(|(name, _)| Value::from(name.as_str()));
    let rows = link.ask(&sql, asked.collect(), false).await?.rows;
    let mut found = HashMap::new();
    for row in rows {
        found.insert(get::<String>(&row, "name")?, get::<u64>(&row, "revision")?);
    }
    for (name, seen) in names {
        let now = found.get(name.as_str()).map(|revision| Revision(*revision));
        if now != seen {
            bell.ring(name.as_str());
        }
    }
    Ok(())
}

/// Waits for the end of one lease after the other, on a connection of its own.
pub(crate) async fn wait_for_locks(link: &Link<Store>, waiting: &Waiting) {
    let mut connection = None;
    let mut useless: HashSet<Seen> = HashSet::new();
    let mut last: Option<RecordName> = None;
    loop {
        let watched = waiting.bell.names();
        useless.retain(|it| watched.contains(it));
        let own = lock(&waiting.own).clone();
        let mut wanted: Vec<_> = watched
            .into_iter()
            // Nobody waits for the end of a lease of a record that is not there.
            .filter(|it| it.1.is_some() && !own.contains_key(&it.0) && !useless.contains(it))
            .collect();
        wanted.sort();
        // In turn.
        let next = wanted.iter().find(|(name, _)| Some(name) > last.as_ref());
        let Some(next) = next.or(wanted.first()).cloned() else {
            last = None;
            tokio::select! {
                () = waiting.more.notified() => {}
                () = sleep(link.purpose().poll) => {}
            }
            continue;
        };
        last = Some(next.0.clone());
        match wait_for(link, &mut connection, &next.0).await {
            Ok(true) => {
                // If nothing has changed, its holder has no lock: somebody else's session made the lease.
                waiting.bell.ring(next.0.as_str());
                useless.insert(next);
            }
            Ok(false) => {}
            Err(_) => {
                connection = None;
                sleep(link.purpose().poll).await;
            }
        }
    }
}

/// Whether the lock was free within the slice.
async fn wait_for(
    link: &Link<Store>,
    connection: &mut Option<Conn>,
    name: &RecordName,
) -> Result<bool, RecordsError> {
    let asks = match connection {
        Some(asks) => asks,
        None => connection.insert(link.connect().await?),
    };
    let lock = lock_of(&link.purpose().name, "?");
    let failed = |error: mysql_async::Error| RecordsError::Unavailable {
        why: error.to_string(),
    };
    let sql = format!("SELECT GET_LOCK({lock}, {SLICE})");
    let locked = asks.exec_first(sql, (name.as_str(),));
    let locked: Option<Option<i64>> = locked.await.map_err(failed)?;
    if locked.flatten() != Some(1) {
        return Ok(false);
    }
    let released = asks.exec_drop(format!("DO RELEASE_LOCK({lock})"), (name.as_str(),));
    released.await.map_err(failed)?;
    Ok(true)
}

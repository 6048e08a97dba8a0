//! What the console has seen: figures of the last two days, and the last changes by it.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_console::{Change, Changed, Counted, History, Inside, Point};
use lockgate_core::WallTime;
use lockgate_engine::{Engine, EngineMetrics};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::printable::Printable;
use crate::api;

/// Changes that are kept.
const CHANGES_MAX: usize = 100;

/// Browsers that may wait at once for something new.
const WAITING_MAX: usize = 64;
/// After so long a browser is told to look although no figure has changed: lines of plots move on, and it learns that
/// the server is there.
const QUIET_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Seen {
    history: Mutex<History>,
    /// A hash of the figures.
    figures: watch::Sender<u64>,
    places: Arc<Semaphore>,
    /// The latest first.
    changes: Mutex<VecDeque<Changed>>,
}

/// A browser that waits.
pub(super) struct Waiting {
    figures: watch::Receiver<u64>,
    _place: OwnedSemaphorePermit,
}

impl Waiting {
    /// Returns when a figure has changed, or after a while.
    pub(super) async fn changed(&mut self) {
        drop(timeout(QUIET_MAX, self.figures.changed()).await);
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            history: Mutex::default(),
            figures: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            changes: Mutex::default(),
        }
    }
}

impl Seen {
    /// A place among those that wait; `None`: all are taken.
    pub(super) fn wait(&self) -> Option<Waiting> {
        Some(Waiting {
            _place: self.places.clone().try_acquire_owned().ok()?,
            figures: self.figures.subscribe(),
        })
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, VecDeque<Changed>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the figures once a second. Never ends.
    pub(super) async fn watch(&self, api: &api::Service, engine: &Engine) {
        let began = Instant::now();
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = engine.metrics();
        loop {
            let tick = ticks.tick().await;
            // An engine that hangs leaves a hole. One that has stopped does not come back.
            let Some((queues, _)) = api.all_figures().await else {
                continue;
            };
            let now = engine.now().wall;
            let counted = queues.iter().map(|queue| {
                let (totals, counts) = (&queue.totals, &queue.counts);
                let held = counts.ready + counts.in_flight + counts.delayed;
                let age = counts.oldest.map_or(0, |oldest| now.since(oldest));
                Counted {
                    id: queue.id.0.into(),
                    name: queue.name.as_str(),
                    totals: [totals.accepted, totals.leased, totals.acknowledged],
                    now: [held, counts.in_flight, age],
                }
            });
            let counted: Vec<Counted<'_>> = counted.collect();
            let metrics = engine.metrics();
            let server = server(&last, &metrics);
            last = metrics;
            let second = tick.duration_since(began).as_secs();
            let mut hash = DefaultHasher::new();
            for Counted {
                id, totals, now, ..
            } in &counted
            {
                // Ages always change.
                (id, totals, &now[..2]).hash(&mut hash);
            }
            for queue in &queues {
                (
                    queue.paused,
                    queue.counts.parked_keys,
                    queue.counts.limited_keys,
                )
                    .hash(&mut hash);
            }
            let hash = hash.finish();
            self.figures
                .send_if_modified(|last| std::mem::replace(last, hash) != hash);
            self.history().record(second, &counted, server);
        }
    }

    /// Keeps a change for the page of the server.
    pub(super) fn note(&self, at: WallTime, who: &str, peer: String, change: &Change) {
        // Cut, since names may be long.
        let what = Printable(&change.what).to_string();
        let mut changes = self.changes();
        changes.truncate(CHANGES_MAX - 1);
        changes.push_front(Changed {
            at: api::shown(at),
            who: who.to_owned(),
            peer,
            what,
            status: change.status,
        });
    }

    /// More of the server.
    pub(super) fn inside(&self, engine: &Engine) -> Inside {
        let metrics = engine.metrics();
        let work = &metrics.maintenance;
        let figures = vec![
            ("Snapshots", work.snapshots),
            ("Snapshots that failed", work.snapshots_failed),
            ("Bytes of snapshots written", work.snapshot_bytes),
            ("Ranges of the log", work.ranges),
            ("Ranges given back", work.ranges_released),
            ("Bytes that messages live in", work.live_bytes),
            ("Bytes moved so that space comes back", work.compacted_bytes),
            ("Bytes ready for new records", work.space.ready_bytes),
            ("Commands decided", metrics.commands),
            ("Commands rejected", metrics.rejected),
            ("Requests refused for load", metrics.overloaded),
            ("Unknown outcomes", metrics.unknown),
            ("Payloads that cannot be read", metrics.damaged),
            ("Requests waiting to be decided", metrics.inbox),
            ("Answers waiting for a sync", metrics.held),
            ("Receives waiting for a message", metrics.waiters),
            ("Records kept", metrics.kept.records),
        ];
        let changes = self.changes().iter().cloned().collect();
        Inside { figures, changes }
    }
}

/// The point of the server between two looks.
fn server(last: &EngineMetrics, now: &EngineMetrics) -> Point {
    let syncs = now.syncs.saturating_sub(last.syncs);
    let time = now.sync_time.saturating_sub(last.sync_time);
    let mean = time.as_secs_f32() * 1000.0 / float(syncs.max(1));
    [
        mean,
        0.0,
        0.0,
        float(now.maintenance.space.used_bytes),
        0.0,
        0.0,
    ]
}

/// For a plot.
#[expect(clippy::cast_precision_loss)]
fn float(number: u64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_browsers_may_wait_at_once() {
        let seen = Seen::default();
        let mut waiting: Vec<Waiting> = (0..WAITING_MAX).filter_map(|_| seen.wait()).collect();
        assert_eq!(waiting.len(), WAITING_MAX);
        assert!(seen.wait().is_none());
        waiting.pop();
        assert!(seen.wait().is_some());
    }

    #[test]
    fn the_last_changes_are_kept_and_their_texts_are_bounded() {
        let seen = Seen::default();
        for status in 0..250 {
            let what = format!("POST /queues/{}", "a".repeat(1000));
            seen.note(WallTime(0), "KEY", String::new(), &Change { what, status });
        }
        let changes = seen.changes();
        assert_eq!((changes.len(), changes[0].status), (CHANGES_MAX, 249));
        assert!(changes.iter().all(|change| change.what.len() < 300));
    }
}

//! What the console has seen: figures of the last two days, and the last changes by it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_console::{Change, Changed, Counted, History, Inside, Point};
use lockgate_core::WallTime;
use lockgate_engine::{Engine, EngineMetrics};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::printable::Printable;
use crate::api;

/// Changes that are kept.
const CHANGES_MAX: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Seen {
    history: Mutex<History>,
    /// The latest first.
    changes: Mutex<VecDeque<Changed>>,
}

impl Seen {
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

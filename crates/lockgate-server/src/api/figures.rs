//! Figures of queues for the console, by the same rights as the list of queues.

use std::{borrow::Cow, time::Duration};

use lockgate_console::{Figures, QUEUES_MAX, QueueFigures};
use lockgate_machine as machine;
use tokio::time::timeout;

use super::{Service, shapes::Instant};
use crate::auth::{AccessKey, Verb};

/// How long a page waits for figures. They need no sync, so an engine that takes longer hangs.
const WITHIN: Duration = Duration::from_secs(5);

/// Queues that the engine looks at in one go.
const STEP: usize = 1000;

impl Service {
    /// Those of the queues that the caller may read. `None`: the engine has stopped, or hangs.
    pub(crate) async fn figures(&self, caller: Option<&AccessKey>) -> Option<Figures> {
        let (queues, is_cut) = timeout(WITHIN, self.all_figures()).await.ok()??;
        let queues = queues.into_iter();
        let readable =
            queues.filter(|queue| caller.is_none_or(|key| key.may(Verb::Read, &queue.name)));
        Some(Figures {
            queues: readable.map(|queue| self.shown(queue)).collect(),
            is_cut,
        })
    }

    /// Those of the first queues by name, and whether there are more.
    pub(crate) async fn all_figures(&self) -> Option<(Vec<machine::QueueFigures>, bool)> {
        let mut queues: Vec<machine::QueueFigures> = Vec::new();
        loop {
            let after = queues.last().map(|last| last.name.clone());
            let some = self.engine.figures(after, STEP).await?;
            let is_last = some.len() < STEP;
            queues.extend(some);
            if is_last || queues.len() >= QUEUES_MAX {
                let is_cut = self.engine.directory().len() > queues.len();
                return Some((queues, is_cut && !is_last));
            }
        }
    }

    fn shown(&self, queue: machine::QueueFigures) -> QueueFigures {
        let now = self.engine.now().wall;
        let state = if queue.paused {
            Cow::Borrowed("paused")
        } else if let Some(held) = queue.held {
            format!("held until {}", Instant(now.plus(held))).into()
        } else if let Some(limited) = queue.limited {
            format!("limited by {}", limited.limit.name()).into()
        } else {
            Cow::Borrowed("open")
        };
        let dead_letter = queue.dead_letter.as_ref();
        let is_missing = |to| {
            let to = self.engine.directory().get(to);
            to.is_none_or(|to| to.settings.keyed != queue.keyed)
        };
        let counts = queue.counts;
        QueueFigures {
            dead_letter_missing: dead_letter.is_some_and(is_missing),
            dead_letter: dead_letter.map(|to| to.as_str().to_owned()),
            name: queue.name.as_str().to_owned(),
            state,
            ready: counts.ready,
            in_flight: counts.in_flight,
            delayed: counts.delayed,
            bytes: counts.bytes,
            keys: counts.keys,
            parked_keys: counts.parked_keys,
            limited_keys: counts.limited_keys,
            oldest_ms: counts.oldest.map(|oldest| oldest.0),
            oldest: counts.oldest.map(|oldest| Instant(oldest).to_string()),
        }
    }
}

//! Runs that cover all messages of their key that are here.

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::{Key, KeyOrder, Message};

use super::{ByMessage, WorkerBuilder, millis, source::HeldMessage, states::LeaseState};
use crate::{
    Context, Job,
    coalesce::Merge,
    dispatch::{Coalescing, Order},
};

/// How a worker coalesces messages by key, for [`WorkerBuilder::coalesce`]: one run for all of a key that are here, such as
/// those that ask for the same cache to be refreshed.
///
/// What a run covers is settled with it. If it succeeds, all of its messages are acknowledged: each of them was here
/// before the run began. If it fails, none is, and the next run has them together with what has come since. A message
/// that arrives while a run of its key goes on waits for the next one. So nothing is ever dropped without a run that
/// began after it and succeeded.
///
/// Messages without a key are not coalesced.
#[derive(Clone)]
pub struct Coalesce {
    pub(super) merge: Merge<Message>,
    pub(super) by: ByMessage<Option<Key>>,
    pub(super) options: Coalescing,
}

/// What does not go together with [`Coalesce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoalesceError {
    /// Messages of different keys would be covered by one run.
    #[error("a worker that coalesces orders by key (order)")]
    Order,
    /// What a failed run covers would be gone.
    #[error(
        "a worker that coalesces acknowledges messages when their run has succeeded (at_most_once)"
    )]
    AtMostOnce,
    /// The source settles the messages of its own keys in their order.
    #[error("source {source_number} locks keys, so its messages are coalesced by those (by)")]
    By {
        /// The number of the source, from 0.
        source_number: usize,
    },
}

impl fmt::Debug for Coalesce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce")
            .field("merge", &self.merge)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Coalesce {
    /// Runs wait for nothing, and have what `merge` makes of their messages: with [`Merge::Append`] all of them, at most
    /// as many as that says (see [`batches`](crate::handler::batches)), else one [`Job`] that stands for all
    /// ([`covers`](Job::covers)). With [`Merge::Count`] it has the key and no more.
    #[must_use]
    pub fn new(merge: Merge<Message>) -> Self {
        let mut options = Coalescing::default();
        if let Merge::Append { max } = merge {
            options.messages_max = max;
        }
        Self {
            merge,
            by: None,
            options,
        }
    }

    /// A run waits until its key was quiet for so long: until its newest message is so old. It waits no longer than until
    /// its oldest message is as old as `wait_max`, `quiet` or more, up to 366 days.
    ///
    /// Ages go by when the source accepted the messages, on the clocks of source and worker. Over a source that locks
    /// keys and can defer, as a keyed queue of Lockgate, the messages wait in the source: they are deferred, and what
    /// came meanwhile comes along. Each such round is a lease more, which limits of the queue count. Over others they
    /// wait here, under their leases.
    #[must_use]
    pub fn debounce(mut self, quiet: Duration, wait_max: Duration) -> Self {
        (self.options.quiet, self.options.wait_max) = (millis(quiet), millis(wait_max));
        self
    }

    /// A run of a key begins no sooner than `period` after the one before, up to 366 days: a key that rested runs at
    /// once, and what comes then runs together when the period is over. It is a gap of each key, as
    /// [`limits`](WorkerBuilder::limits) have it, so it is of this process; the queue's `limit_gap` is of all.
    #[must_use]
    pub fn throttle(mut self, period: Duration) -> Self {
        self.options.period = millis(period);
        self
    }

    /// The same, and a key that rested waits too: each run is at the end of a period that the oldest of its messages
    /// began. Takes the place of a [`debounce`](Self::debounce).
    #[must_use]
    pub fn throttle_trailing(self, period: Duration) -> Self {
        self.debounce(period, period).throttle(period)
    }

    /// At most so many messages and bytes for one run; one message may have more bytes. A run that has so many waits for
    /// no more, and the rest is for the next run. What waits counts as held
    /// ([`held_max`](WorkerBuilder::held_max)). Default: 100, and 1 MiB.
    #[must_use]
    pub fn bounds(mut self, messages: usize, bytes: u64) -> Self {
        (self.options.messages_max, self.options.bytes_max) = (messages, bytes);
        self
    }

    /// Says by which key a message is coalesced, where the source locks none: of an unkeyed queue, mostly its
    /// [group](Message::group). `None`: it runs alone. Default: the message's key.
    #[must_use]
    pub fn by(mut self, key: impl Fn(&Message) -> Option<Key> + Send + Sync + 'static) -> Self {
        self.by = Some(Arc::new(key));
        self
    }

    /// Whether the rest of a builder goes together with it.
    pub(super) fn check(&self, builder: &WorkerBuilder) -> Result<(), CoalesceError> {
        if builder.options.order != Order::Key {
            return Err(CoalesceError::Order);
        }
        if builder.at_most_once {
            return Err(CoalesceError::AtMostOnce);
        }
        let sources = builder.sources.iter();
        let mut locked = sources.map(|(source, _)| source.capabilities().key_order);
        match locked.position(|order| order == KeyOrder::Locked) {
            Some(source_number) if self.by.is_some() => Err(CoalesceError::By { source_number }),
            _ => Ok(()),
        }
    }
}

/// What a handler gets of the messages of a run.
pub(super) fn jobs(
    merge: Option<&Merge<Message>>,
    messages: impl IntoIterator<Item = (HeldMessage, u32)>,
    run: &Context,
) -> Vec<Job> {
    let jobs = messages.into_iter().map(|(held, attempt)| Job {
        turn: held.lease().state.as_ref().map_or(0, LeaseState::begin),
        held,
        attempt,
        merged: None,
        covers: 1,
        run: run.clone(),
    });
    let mut jobs: Vec<Job> = jobs.collect();
    let Some(merge) = merge.filter(|merge| !matches!(merge, Merge::Append { .. })) else {
        return jobs;
    };
    let each = jobs.iter().map(|job| merge.one(job.message().clone()));
    let Some(batch) = each.reduce(|earlier, later| merge.join(earlier, later)) else {
        return jobs;
    };
    let covers = jobs.len();
    let attempt = jobs.iter().map(|job| job.attempt).max().unwrap_or(1);
    let kept = match merge {
        Merge::KeepFirst => jobs.drain(..).next(),
        _ => jobs.pop(),
    };
    let kept = kept.map(|job| Job {
        attempt,
        merged: Some(Arc::new(batch.payloads().first().cloned().unwrap_or_else(
            || {
                // Only the number counts.
                let message = Message::new("");
                match job.key() {
                    Some(key) => message.with_key(key.clone()),
                    None => message,
                }
            },
        ))),
        covers,
        ..job
    });
    kept.into_iter().collect()
}

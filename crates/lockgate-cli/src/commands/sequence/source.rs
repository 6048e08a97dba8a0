//! The queue whose messages are sequenced.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use lockgate_client::RemoteQueue;
use lockgate_core::{
    Fate, Leased, ReceiveRequest, Settlement, Source, SourceCapabilities, TransportError,
};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    client::Client,
    commands::{Counts, dead_letters::has_dead_letters},
};

/// How long a message stays away that is rejected and has nowhere to go.
const AWAY: Duration = Duration::from_secs(60);

/// A queue that loses nothing to a rejection, and that has an end only if that is asked for.
pub(super) struct Orders {
    queue: RemoteQueue,
    client: Client,
    /// It ends when it has nothing to give, and nothing of it is under way but what was rejected.
    until_empty: bool,
    /// When each message comes again that was rejected and has stayed.
    kept: Mutex<Vec<Instant>>,
}

/// The queue is empty, and that is what was waited for.
#[derive(Debug, thiserror::Error)]
#[error("the queue is empty")]
struct Empty;

impl Orders {
    pub(super) fn new(queue: RemoteQueue, client: Client, until_empty: bool) -> Self {
        Self {
            queue,
            client,
            until_empty,
            kept: Mutex::default(),
        }
    }

    /// Whether there is nothing left, where the queue had nothing to give just now.
    async fn is_empty(&self) -> bool {
        let counts = Counts::of(&self.client, self.queue.name().as_str()).await;
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|again| *again > now);
        // What is ready waits behind a message that was kept, if there is one.
        counts.is_ok_and(|counts| match kept.len() as u64 {
            0 => counts.ready == 0 && counts.in_flight == 0,
            kept => counts.in_flight <= kept,
        })
    }
}

impl Source for Orders {
    type Receipt = <RemoteQueue as Source>::Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Self::Receipt>>, TransportError> {
        let leased = match self.queue.receive_batch(request).await {
            Ok(leased) => leased,
            // The queue is gone, or may not be received from: no end that somebody has asked for.
            Err(error) if error.fate == Fate::Closed => {
                return Err(TransportError {
                    fate: Fate::Refused,
                    ..error
                });
            }
            Err(error) => return Err(error),
        };
        if leased.is_empty() && self.until_empty && self.is_empty().await {
            return Err(TransportError::new(Fate::Closed, Empty));
        }
        Ok(leased)
    }

    async fn settle_batch(
        &self,
        mut settles: Vec<(Self::Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let is_rejected = |(_, it): &(_, Settlement)| matches!(it, Settlement::Reject { .. });
        let rejected: Vec<bool> = settles.iter().map(is_rejected).collect();
        // If nobody can tell, they stay, and the next time somebody can.
        if !rejected.contains(&true) || matches!(has_dead_letters(&self.queue).await, Ok(true)) {
            return self.queue.settle_batch(settles).await;
        }
        let until = Instant::now() + AWAY;
        for ((_, settlement), _) in settles.iter_mut().zip(&rejected).filter(|(_, is)| **is) {
            *settlement = Settlement::Defer { delay: AWAY };
        }
        let settled = self.queue.settle_batch(settles).await;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in settled
            .iter()
            .zip(&rejected)
            .filter(|(done, is)| **is && done.is_ok())
        {
            warn!(
                queue = %self.queue.name(),
                "a message that can never be an event stays in the queue, because the queue has no dead-letter queue"
            );
            if self.until_empty {
                kept.push(until);
            }
        }
        drop(kept);
        settled
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Self::Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        self.queue.extend_batch(receipts, lease).await
    }
}

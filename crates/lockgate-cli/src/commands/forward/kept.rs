//! A source that loses nothing to a rejection.

use std::{sync::Arc, time::Duration};

use lockgate_client::RemoteQueue;
use lockgate_core::{
    KeyStateWrite, Leased, ReceiveRequest, RecordVersion, Settlement, Source, SourceCapabilities,
    TransportError,
};
use tokio::sync::watch;

use crate::commands::dead_letters::has_dead_letters;

/// Why a run cannot go on: the first reason is kept.
#[derive(Debug)]
pub(super) struct Ending(watch::Sender<Option<String>>);

impl Ending {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub(super) fn end(&self, why: String) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(why);
            is_first
        });
    }

    /// Waits for a reason.
    pub(super) async fn reason(&self) -> String {
        let mut ending = self.0.subscribe();
        let why = ending.wait_for(Option::is_some).await;
        // The sender is here, so there is one.
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
}

/// A queue that keeps what is rejected where it has no dead-letter queue, which would drop it. The run ends then.
pub(super) struct Kept {
    pub(super) queue: RemoteQueue,
    /// Where messages go.
    pub(super) to: String,
    /// How long a message stays away that is kept: the run has ended by then, or it is looked at again.
    pub(super) delay: Duration,
    pub(super) ending: Arc<Ending>,
}

impl Source for Kept {
    type Receipt = <RemoteQueue as Source>::Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Self::Receipt>>, TransportError> {
        self.queue.receive_batch(request).await
    }

    async fn settle_batch(
        &self,
        mut settles: Vec<(Self::Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let is_rejected = |(_, it): &(_, Settlement)| matches!(it, Settlement::Reject { .. });
        let has_dead_letters = match settles.iter().any(is_rejected) {
            true => has_dead_letters(&self.queue).await,
            false => Ok(true),
        };
        if !matches!(has_dead_letters, Ok(true)) {
            let from = self.queue.name();
            let missing = match &has_dead_letters {
                Ok(_) => Some(format!("{from} has no dead-letter queue")),
                // The message comes again, and the queue may be seen then.
                Err(error) if error.may_pass() => None,
                Err(error) => Some(format!(
                    "whether {from} has a dead-letter queue cannot be seen ({error})"
                )),
            };
            for (_, settlement) in &mut settles {
                if let Settlement::Reject { reason } = settlement {
                    if let Some(missing) = &missing {
                        let to = &self.to;
                        let why = reason.as_deref().unwrap_or("it gives no reason");
                        self.ending.end(format!(
                            "{to} can never take a message of {from}: {why}; {missing}, so it is still there"
                        ));
                    }
                    *settlement = Settlement::Defer { delay: self.delay };
                }
            }
        }
        self.queue.settle_batch(settles).await
    }

    async fn settle_with_state(
        &self,
        settles: Vec<(Self::Receipt, Settlement)>,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, TransportError> {
        self.queue.settle_with_state(settles, write).await
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Self::Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        self.queue.extend_batch(receipts, lease).await
    }
}

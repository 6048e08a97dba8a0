//! Where a follower hears of events as they come.

use std::{future::Future, time::Duration};

use lockgate_core::{
    Fate, HolderName, ReceiveRequest, Settlement, Source, cut_reason,
    ledger::{Event, LedgerHead},
};
use tokio::sync::mpsc;
use tracing::warn;

use crate::message::event_of;

/// What a feed tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// An event.
    Event(Event),
    /// Where the ledger ends: a heartbeat.
    Head(LedgerHead),
}

/// Where a [`Follower`](crate::Follower) hears of events sooner than from the ledger. It may lose them, repeat them and change
/// their order: the follower repairs what it lacks from the ledger.
pub trait Feed: Send {
    /// What comes next: what is there already, as one batch for the handler. `None`: the feed has ended, and the follower goes
    /// on without it.
    ///
    /// # Cancellation
    /// It is dropped when the follower ends; what it has taken may be lost then.
    fn next(&mut self) -> impl Future<Output = Option<Vec<News>>> + Send;
}

/// So many events come at once, at most.
const BATCH_MAX: usize = 1_000;

impl Feed for mpsc::Receiver<News> {
    async fn next(&mut self) -> Option<Vec<News>> {
        let mut news = Vec::new();
        let count = self.recv_many(&mut news, BATCH_MAX).await;
        (count > 0).then_some(news)
    }
}

/// Nothing: for a follower that only reads the ledger.
pub(super) struct NoFeed;

impl Feed for NoFeed {
    async fn next(&mut self) -> Option<Vec<News>> {
        None
    }
}

/// A feed over a queue to which a [sequencer](crate::Sequencer) publishes. The queue is this follower's alone.
///
/// A message is acknowledged as soon as it has come, and what is lost then is repaired from the ledger. A message that is no
/// event is rejected with the reason, or acknowledged where the source has no dead letters, and logged.
#[derive(Debug)]
pub struct SourceFeed<S> {
    source: S,
    holder: HolderName,
}

impl<S: Source> SourceFeed<S> {
    /// Over that queue; `holder` is the name of this process there.
    pub fn new(source: S, holder: HolderName) -> Self {
        Self { source, holder }
    }
}

/// How often it looks into a source that does not wait.
const LOOK: Duration = Duration::from_millis(100);

impl<S: Source> Feed for SourceFeed<S> {
    async fn next(&mut self) -> Option<Vec<News>> {
        let can = self.source.source_capabilities();
        loop {
            let request = ReceiveRequest {
                max: can.receive_max.min(BATCH_MAX),
                key_max: None,
                wait: can.wait_max.min(Duration::from_secs(20)),
                lease: None,
                holder: self.holder.clone(),
            };
            let leased = match self.source.receive_batch(request).await {
                Ok(leased) => leased,
                Err(error) if error.fate == Fate::Closed || error.fate.is_never() => {
                    warn!(error = %lockgate_core::with_sources(&error), "a feed has ended");
                    return None;
                }
                Err(error) => {
                    warn!(error = %lockgate_core::with_sources(&error), "a feed does not answer now");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let mut news = Vec::with_capacity(leased.len());
            let mut settles = Vec::with_capacity(leased.len());
            for one in leased {
                let settlement = match event_of(&one.message) {
                    Ok(event) => {
                        news.push(News::Event(event));
                        Settlement::Ack
                    }
                    Err(error) => {
                        warn!(%error, "a message of a feed is no event");
                        match can.reject {
                            true => Settlement::Reject {
                                reason: Some(cut_reason(error.to_string().into())),
                            },
                            false => Settlement::Ack,
                        }
                    }
                };
                settles.push((one.receipt, settlement));
            }
            while !settles.is_empty() {
                let rest = settles.split_off(settles.len().min(can.settle_max));
                // What is not settled comes again, and is passed over then.
                drop(self.source.settle_batch(settles).await);
                settles = rest;
            }
            if !news.is_empty() {
                return Some(news);
            }
            if can.wait_max.is_zero() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

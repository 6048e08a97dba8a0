//! Settles many messages at once.

use std::{sync::Arc, time::Duration};

use lockgate_engine::{Batch, Engine, EngineError};
use lockgate_machine::{Settle, SettleAction, Settled};

use crate::{Delivery, ErrorKind, SettleError, delivery::Holder, error::kind, queue::millis};

/// Says how to settle a delivery. Times are rounded up to whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settling {
    /// Acknowledges: the message leaves the queue.
    Ack,
    /// Gives the message back as failed. It returns to its place, and the attempt counts.
    Nack {
        /// How long until it may be leased again, up to 12 h; zero: at once.
        delay: Duration,
    },
    /// Puts the message off. It returns to its place, and the attempt does not count. In a keyed
    /// queue it holds its key until then.
    Defer {
        /// How long until it may be leased again, up to 12 h; zero: at once.
        delay: Duration,
    },
    /// Rejects the message: it goes to the dead-letter queue at once, or is dropped if there is
    /// none.
    Reject {
        /// The reason, for those who look at the dead letter; up to 1,024 bytes.
        reason: Option<Arc<str>>,
    },
    /// Gives the message back untried. It returns to its place, and the attempt does not count.
    GiveBack,
}

/// Settles that failed, with their deliveries, in order. Nothing of them happened, unless
/// [`kind`](Self::kind) is [`ErrorKind::Unknown`].
#[derive(Debug, thiserror::Error)]
#[error("settling {} deliveries failed", .deliveries.len())]
#[non_exhaustive]
pub struct SettleAllError {
    /// What the engine says about it.
    pub source: EngineError,
    /// The deliveries that were to be settled, in order.
    pub deliveries: Vec<Delivery>,
}

impl SettleAllError {
    /// Returns what to do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        kind(&self.source)
    }
}

impl From<Settling> for SettleAction {
    fn from(settling: Settling) -> Self {
        match settling {
            Settling::Ack => Self::Ack,
            Settling::Nack { delay } => Self::Nack {
                delay: millis(delay),
            },
            Settling::Defer { delay } => Self::Defer {
                delay: millis(delay),
            },
            Settling::Reject { reason } => Self::Reject { reason },
            Settling::GiveBack => Self::GiveBack,
        }
    }
}

pub(crate) async fn settle_all(
    engine: &Engine,
    settles: Vec<(Delivery, Settling)>,
) -> Result<Vec<Result<(), SettleError>>, SettleAllError> {
    let mut commands = Batch::with_capacity(settles.len());
    let mut outcomes = Vec::with_capacity(settles.len());
    let mut deliveries = Vec::with_capacity(settles.len());
    for (delivery, settling) in settles {
        outcomes.push(match &delivery.holder {
            Holder::Test(test) => Some(Ok(test.settle(settling.into()))),
            Holder::Engine(_) => {
                commands.push(Settle {
                    token: delivery.token(),
                    action: settling.into(),
                });
                None
            }
        });
        deliveries.push(delivery);
    }
    let settled = match commands.is_empty() {
        true => Vec::new(),
        false => match engine.submit_all(commands).await {
            Ok(settled) => settled,
            Err(source) => return Err(SettleAllError { source, deliveries }),
        },
    };
    let mut settled = settled.into_iter();
    let results = deliveries.into_iter().zip(outcomes);
    Ok(results
        .map(|(delivery, outcome)| {
            // The engine has a result for each.
            let outcome = outcome.or_else(|| settled.next());
            match outcome {
                Some(Ok(Settled::Stale(reason))) => Err(SettleError::Stale { reason, delivery }),
                Some(Err(rejection)) => Err(SettleError::Engine {
                    source: rejection.into(),
                    delivery,
                }),
                Some(Ok(Settled::Done | Settled::Extended { .. })) | None => Ok(()),
            }
        })
        .collect())
}

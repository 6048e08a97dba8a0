//! Settling many at once.

use std::{sync::Arc, time::Duration};

use lockgate_engine::{Batch, Engine, EngineError};
use lockgate_machine::{Settle, SettleAction, Settled};

use crate::{Delivery, ErrorKind, SettleError, delivery::Holder, error::kind, queue::millis};

/// How a delivery is settled. Spans are rounded up to whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settling {
    /// Done: the message leaves the queue.
    Ack,
    /// Failed: the message returns to its place.
    Nack {
        /// How long before it may be leased again; zero: at once. Up to 12 h.
        delay: Duration,
    },
    /// Not now: the message returns to its place, and the attempt does not count. In a keyed queue it
    /// holds its key until then.
    Defer {
        /// How long before it may be leased again; zero: at once. Up to 12 h.
        delay: Duration,
    },
    /// Can never succeed: the message goes to the dead-letter queue at once, or is dropped where there is
    /// none.
    Reject {
        /// Why, for who looks at the dead letter; up to 1,024 bytes.
        reason: Option<Arc<str>>,
    },
    /// Never tried: the message returns to its place, and the attempt does not count.
    GiveBack,
}

/// Settles of which nothing happened, or of which nobody knows ([`ErrorKind::Unknown`]), with their
/// deliveries, in order.
#[derive(Debug, thiserror::Error)]
#[error("settling {} deliveries failed", .deliveries.len())]
#[non_exhaustive]
pub struct SettleAllError {
    /// Why.
    pub source: EngineError,
    /// What was to be settled.
    pub deliveries: Vec<Delivery>,
}

impl SettleAllError {
    /// What to do about it.
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

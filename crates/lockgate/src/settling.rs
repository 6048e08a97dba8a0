//! Settles many messages at once.

use lockgate_core::Settlement;
use lockgate_engine::{Batch, Engine, EngineError, UnknownCause};
use lockgate_machine::{Settle, SettleAction, Settled};

use crate::{Delivery, ErrorKind, SettleError, delivery::Holder, error::kind, queue::millis};

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

/// In the machine's words. Spans are rounded up to whole milliseconds.
pub(crate) fn action(settlement: Settlement) -> SettleAction {
    match settlement {
        Settlement::Ack => SettleAction::Ack,
        Settlement::Nack { delay, reason } => SettleAction::Nack {
            delay: millis(delay),
            reason,
        },
        Settlement::Defer { delay } => SettleAction::Defer {
            delay: millis(delay),
        },
        Settlement::Hold { delay, scope } => SettleAction::Hold {
            delay: millis(delay),
            scope,
        },
        Settlement::Reject { reason } => SettleAction::Reject { reason },
        Settlement::GiveBack => SettleAction::GiveBack,
    }
}

pub(crate) async fn settle_all(
    engine: &Engine,
    settles: Vec<(Delivery, Settlement)>,
) -> Result<Vec<Result<(), SettleError>>, SettleAllError> {
    let mut commands = Batch::with_capacity(settles.len());
    let mut outcomes = Vec::with_capacity(settles.len());
    let mut deliveries = Vec::with_capacity(settles.len());
    for (delivery, settling) in settles {
        outcomes.push(match &delivery.holder {
            Holder::Test(test) => Some(Ok(test.settle(action(settling)))),
            Holder::Engine(_) => {
                commands.push(Settle {
                    token: delivery.token(),
                    action: action(settling),
                });
                None
            }
        });
        deliveries.push(delivery);
    }
    let engine = match engine.joint(deliveries.iter().filter_map(Delivery::engine)) {
        Ok(engine) => engine,
        Err(source) => return Err(SettleAllError { source, deliveries }),
    };
    let settled = match commands.is_empty() {
        true => Vec::new(),
        false => match engine.submit_all(commands).await {
            Ok(settled) => settled,
            Err(source) => return Err(SettleAllError { source, deliveries }),
        },
    };
    let mut settled = settled.into_iter();
    let mut results = Vec::with_capacity(deliveries.len());
    for (delivery, outcome) in deliveries.into_iter().zip(outcomes) {
        results.push(match outcome.or_else(|| settled.next()) {
            Some(Ok(Settled::Done | Settled::Extended { .. })) => Ok(()),
            Some(Ok(Settled::Stale(reason))) => Err(SettleError::Stale { reason, delivery }),
            Some(Err(rejection)) => Err(SettleError::Engine {
                source: rejection.into(),
                delivery,
            }),
            // The engine has a result for each.
            None => Err(SettleError::Engine {
                source: EngineError::UnknownOutcome {
                    cause: UnknownCause::NoAnswer,
                },
                delivery,
            }),
        });
    }
    Ok(results)
}

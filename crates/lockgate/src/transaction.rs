//! Acknowledgements and sends that all happen, or none.

use lockgate_core::Message;
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{SendMessage, Sent, Settle, SettleAction, Transact};

use crate::{Delivery, ErrorKind, Queue, error::kind};

/// Consumes and produces in one step: the messages that it acknowledges leave exactly if the
/// messages that it sends are accepted. Nothing happens before [`commit`](Self::commit). It may
/// hold up to 1,000 acknowledgements and sends.
#[must_use = "nothing happens before it is committed"]
pub struct Transaction {
    engine: Engine,
    deliveries: Vec<Delivery>,
    sends: Vec<SendMessage>,
}

/// A transaction that failed, with its deliveries. Nothing of it happened, unless
/// [`kind`](Self::kind) is [`ErrorKind::Unknown`]: then all of it happened, or nothing.
#[derive(Debug, thiserror::Error)]
#[error("the transaction failed")]
#[non_exhaustive]
pub struct TransactionError {
    /// What the engine says about it.
    pub source: EngineError,
    /// The deliveries that were to be acknowledged, in order. Their leases go on.
    pub deliveries: Vec<Delivery>,
}

impl Transaction {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            deliveries: Vec::new(),
            sends: Vec::new(),
        }
    }

    /// Adds the acknowledgement of a message.
    pub fn ack(mut self, delivery: Delivery) -> Self {
        self.deliveries.push(delivery);
        self
    }

    /// Adds the send of a message to a queue of the same folder.
    pub fn send(mut self, queue: &Queue, message: Message) -> Self {
        self.sends.push(queue.to_send(message));
        self
    }

    /// Does all of it, and waits until it has reached its level. Returns one [`Sent`] for each
    /// message, in order.
    ///
    /// If the future is dropped, the transaction may have happened or not, but never in part.
    ///
    /// # Errors
    /// One stale lease or one refused message refuses everything. The error returns the deliveries.
    pub async fn commit(self) -> Result<Vec<Sent>, TransactionError> {
        let Self {
            engine,
            deliveries,
            sends,
        } = self;
        let settles = deliveries
            .iter()
            .map(|delivery| Settle {
                token: delivery.token(),
                action: SettleAction::Ack,
            })
            .collect();
        let transact = Transact {
            settles,
            states: Vec::new(),
            sends,
        };
        match engine.submit(transact).await {
            Ok(done) => Ok(done.sent),
            Err(source) => Err(TransactionError { source, deliveries }),
        }
    }
}

impl TransactionError {
    /// Returns what to do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        kind(&self.source)
    }
}

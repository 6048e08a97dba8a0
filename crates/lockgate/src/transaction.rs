//! Settles and sends that all happen, or none.

use lockgate_core::Message;
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{SendMessage, Sent, Settle, SettleAction, Transact};

use crate::{Delivery, ErrorKind, Queue, error::kind};

/// Consume, then produce, in one step: the messages it acknowledges leave exactly if the messages it
/// sends are accepted. Nothing happens before [`commit`](Self::commit).
#[must_use = "nothing happens before it is committed"]
pub struct Transaction {
    engine: Engine,
    deliveries: Vec<Delivery>,
    sends: Vec<SendMessage>,
}

/// A transaction of which nothing happened, or of which nobody knows
/// ([`ErrorKind::Unknown`]), with its deliveries.
#[derive(Debug, thiserror::Error)]
#[error("the transaction failed")]
#[non_exhaustive]
pub struct TransactionError {
    /// Why.
    pub source: EngineError,
    /// What was to be acknowledged.
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

    /// Acknowledges a message.
    pub fn ack(mut self, delivery: Delivery) -> Self {
        self.deliveries.push(delivery);
        self
    }

    /// Sends a message to a queue of the same folder.
    pub fn send(mut self, queue: &Queue, message: Message) -> Self {
        self.sends.push(queue.to_send(message));
        self
    }

    /// Does all of it. Answers with one [`Sent`] per message, in order.
    ///
    /// # Errors
    /// One stale lease or one refused message refuses all. The deliveries come back in the error.
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
        let done = engine.submit(Transact { settles, sends }).await;
        done.map_err(|source| TransactionError { source, deliveries })
    }
}

impl TransactionError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        kind(&self.source)
    }
}

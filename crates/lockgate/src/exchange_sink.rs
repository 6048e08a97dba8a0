//! An embedded exchange as a place where messages go.

use lockgate_core::{
    Accepted, Message, MessageId, RouteBy, Sink, SinkCapabilities, TransportError,
    coordination::{Fence, FenceError},
    one_by_one,
};
use lockgate_engine::{Batch, EngineError};
use lockgate_machine::{Publication, Publish, Receive, Transact};

use crate::{
    Exchange,
    transport::{BATCH_MAX, check_bytes, check_size, failed, join},
};

/// An exchange as a [`Sink`]: each message is published, so all queues that it is routed to get a copy, or none does. Made by
/// [`Exchange::sink`]. Clones are the same exchange.
///
/// # What is carried
/// All of a message but a mark of a [producer](Message::producer). Its key or group becomes the key of a copy in a keyed queue, and
/// its group elsewhere, unless the binding says otherwise. Copies in keyed queues keep the order of their keys. What a queue does not
/// take, such as a message without a key where it is keyed, is [`Refused`](lockgate_core::Fate::Refused). Packs are not taken, because the
/// exchange could not look into them.
///
/// # Sending again
/// A message with a unique id may be sent again after a lost answer: each queue that has it knows the id, as long as its own
/// `dedup_window` says, and a queue without such a window gets it twice. It counts as a [`duplicate`](Accepted::duplicate) if all
/// queues knew it. [`id`](Accepted::id) is that of the first copy.
///
/// # Fates
/// | what happened | fate |
/// |---|---|
/// | there is no queue for the message, and the exchange rejects such messages | [`Refused`](lockgate_core::Fate::Refused) |
/// | a queue is full, and its binding does not skip it then | [`Retry`](lockgate_core::Fate::Retry) |
/// | the exchange is gone | [`Closed`](lockgate_core::Fate::Closed) |
///
/// A message that an exchange drops is accepted, without an id.
#[derive(Clone)]
pub struct ExchangeSink {
    exchange: Exchange,
    by: RouteBy,
}

impl ExchangeSink {
    pub(crate) fn new(exchange: Exchange, by: RouteBy) -> Self {
        Self { exchange, by }
    }

    /// The exchange.
    #[must_use]
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    fn to_publish(&self, message: Message) -> Result<Publish, TransportError> {
        self.sink_capabilities().check(&message)?;
        let routing_key = self.by.routing_key(&message)?;
        Ok(self.exchange.to_publish(routing_key, message))
    }
}

impl Sink for ExchangeSink {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = SinkCapabilities::bodies_only(self.exchange.engine().level_max());
        can.batch_max = BATCH_MAX;
        can.batch_bytes_max = Receive::BYTES_MAX;
        can.message_bytes_max = Receive::BYTES_MAX;
        can.keys = true;
        can.groups = true;
        can.unique_ids = true;
        can.tells_duplicates = true;
        can.due = true;
        can.time_to_live = true;
        can.headers = true;
        can.priority = true;
        can.routes = true;
        can
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let count = messages.len();
        let bytes = messages.iter().map(|message| message.size() as u64).sum();
        let max = self.sink_capabilities().batch_bytes_max;
        if let Err(error) = check_size(count).and_then(|()| check_bytes(bytes, max)) {
            return vec![Err(error); count];
        }
        let mut publishes = Batch::with_capacity(count);
        let mut refused = Vec::with_capacity(count);
        for message in messages {
            match self.to_publish(message) {
                Ok(publish) => {
                    publishes.push(publish);
                    refused.push(None);
                }
                Err(error) => refused.push(Some(error)),
            }
        }
        let published = match publishes.is_empty() {
            true => Ok(Vec::new()),
            false => self.exchange.engine().submit_all(publishes).await,
        };
        join(refused, published.map_err(failed), |publication| {
            Ok(accepted(&publication))
        })
    }

    /// As one transaction. If that is refused, one by one up to the message that is to blame.
    async fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        if (2..=BATCH_MAX).contains(&messages.len()) {
            let publishes = messages.iter().map(|it| self.to_publish(it.clone()));
            if let Ok(publishes) = publishes.collect() {
                let transact = Transact {
                    publishes,
                    ..Transact::default()
                };
                match self.exchange.engine().submit(transact).await {
                    Ok(done) => return done.published.iter().map(|it| Ok(accepted(it))).collect(),
                    Err(EngineError::Rejected(_)) => {}
                    Err(error) => return vec![Err(failed(error))],
                }
            }
        }
        one_by_one(self, messages).await
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        self.sink_capabilities().carries(message)?;
        self.by.routing_key(message)?;
        Ok(())
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self::new(self.exchange.fenced(fence), self.by.clone()))
    }
}

fn accepted(publication: &Publication) -> Accepted<MessageId> {
    let copies = &publication.copies;
    Accepted {
        id: copies.first().map(|copied| copied.sent.id),
        // Each queue has a number of its own.
        sequence: None,
        duplicate: !copies.is_empty() && copies.iter().all(|copied| copied.sent.duplicate),
    }
}

//! An exchange of a server, as a place where messages go.

use std::sync::Arc;

use hyper::Method;
use lockgate_core::{
    Accepted, ExchangeName, Fate, Message, MessageId, RouteBy, Sink, SinkCapabilities,
    TransportError,
    coordination::{Fence, FenceError},
    one_by_one,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    CallError, Client,
    records::part,
    target::{Problem, ServerInfo, Target, all_refused},
};

/// An exchange of a server as a [`Sink`]: each message is published, so all queues that it is routed to get a copy, or none does.
/// Clones are the same exchange. Made by [`Client::exchange_sink`].
///
/// # What is carried
/// As of a [`RemoteQueue`](crate::RemoteQueue), with these differences. The key or group of a message becomes the key of a copy in a
/// keyed queue, and its group elsewhere, unless the binding says otherwise. What a queue does not take, such as a message without a
/// key where it is keyed, is [`Refused`](Fate::Refused). Records of a [producer](Message::producer) and packs are not taken.
///
/// # Sending again
/// A message with a unique id may be sent again after a lost answer: each queue that has it knows the id, as long as its own
/// `dedup_window` says, and a queue without such a window gets it twice. It counts as a [`duplicate`](Accepted::duplicate) if all
/// queues knew it. [`id`](Accepted::id) is that of the first copy that the access key may read.
///
/// # Fates
/// As [`RemoteQueue`](crate::RemoteQueue) has them, and:
///
/// | what happened | fate |
/// |---|---|
/// | there is no queue for the message, and the exchange rejects such messages | [`Refused`](Fate::Refused) |
/// | a queue is full, and its binding does not skip it then | [`Retry`](Fate::Retry) |
/// | the exchange is not there | [`Closed`](Fate::Closed) |
///
/// A message that an exchange drops is accepted, without an id.
///
/// # Cancellation
/// As [`Client`] has it.
#[derive(Clone, Debug)]
pub struct RemoteExchange {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    name: ExchangeName,
    by: RouteBy,
    target: Target,
}

/// A message to publish.
#[derive(Serialize)]
struct Publish<'a> {
    /// Of a transaction, which does not know it from the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange: Option<&'a str>,
    routing_key: &'a str,
    message: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum PublishResult {
    Published(Published),
    Refused { problem: Problem },
}

#[derive(Deserialize)]
struct Published {
    copies: u64,
    duplicates: u64,
    queues: Vec<Copied>,
}

#[derive(Deserialize)]
struct Copied {
    id: String,
}

#[derive(Deserialize)]
struct Transacted {
    published: Vec<Published>,
}

/// The largest message that a queue may take.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;

impl Client {
    /// Names an exchange to which messages go: reads the server's limits. `by` says where the routing key of a message comes from.
    /// An access key needs the grant `send` on the exchange. Whether there is one shows the first message.
    ///
    /// # Errors
    /// What prevents a call.
    pub async fn exchange_sink(
        &self,
        name: &ExchangeName,
        by: RouteBy,
    ) -> Result<RemoteExchange, CallError> {
        let info: ServerInfo = self.call(Method::GET, "/server", None::<&()>).await?;
        let (mut sink, body_bytes_max) = info.sink(self, MESSAGE_BYTES_MAX)?;
        sink.keys = true;
        sink.groups = true;
        sink.unique_ids = true;
        sink.routes = true;
        Ok(RemoteExchange {
            inner: Arc::new(Inner {
                name: name.clone(),
                by,
                target: Target {
                    client: self.clone(),
                    path: format!("/exchanges/{}", part(name.as_str())),
                    sink,
                    body_bytes_max,
                },
            }),
        })
    }
}

impl RemoteExchange {
    /// Returns the name of the exchange.
    #[must_use]
    pub fn name(&self) -> &ExchangeName {
        &self.inner.name
    }

    /// Returns the client that it was made with.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.target.client
    }

    /// A message in the words of the API, if it can be published.
    fn entry(
        &self,
        message: Message,
        exchange: Option<&str>,
    ) -> Result<Box<RawValue>, TransportError> {
        let routing_key = self.inner.by.routing_key(&message);
        let message = self.inner.target.entry(message)?;
        self.inner.target.written(&Publish {
            exchange,
            routing_key: routing_key?.as_str(),
            message: &message,
        })
    }
}

impl Sink for RemoteExchange {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.inner.target.sink.clone()
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let target = &self.inner.target;
        if let Err(error) = target.check_batch(&messages) {
            return all_refused(&error, messages.len());
        }
        let entries = messages.into_iter();
        let entries = entries.map(|message| self.entry(message, None)).collect();
        let results =
            target.in_requests(entries, ("messages", "messages"), |result| match result {
                PublishResult::Published(published) => accepted(published),
                PublishResult::Refused { problem } => Err(target.refused(problem)),
            });
        results.await.into_iter().map(judged).collect()
    }

    /// In as many transactions as requests are needed. If one is refused, one by one up to the message that is to blame.
    async fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let name = self.inner.name.as_str();
        let publishes = messages.iter();
        let publishes = publishes.map(|message| self.entry(message.clone(), Some(name)));
        let publishes: Result<Vec<_>, _> = publishes.collect();
        let (Ok(publishes), 2..) = (publishes, messages.len()) else {
            return one_by_one(self, messages).await;
        };
        let target = &self.inner.target;
        let answers = |Transacted { published }| published;
        let parts = (publishes, "publishes");
        let results = target.in_order(self, messages, parts, answers, accepted);
        results.await
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        self.inner.by.routing_key(message)?;
        let target = &self.inner.target;
        target.can_carry(message, |message| self.entry(message, None))
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        let mut inner = (*self.inner).clone();
        inner.target.client = inner.target.client.fenced(fence);
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

fn accepted(published: Published) -> Result<Accepted<MessageId>, TransportError> {
    let Published {
        copies,
        duplicates,
        queues,
    } = published;
    let id = queues.first().map(|copied| copied.id.parse()).transpose();
    Ok(Accepted {
        // It was accepted; which message it is cannot be said without its id.
        id: id.map_err(|error| TransportError::new(Fate::Unknown, error))?,
        // Each queue has a number of its own.
        sequence: None,
        duplicate: copies > 0 && copies == duplicates,
    })
}

/// That the exchange is gone is no fault of a message.
fn judged(
    result: Result<Accepted<MessageId>, TransportError>,
) -> Result<Accepted<MessageId>, TransportError> {
    result.map_err(|mut error| {
        if let Some(CallError::Refused { code, .. }) = error.source.downcast_ref()
            && code == "exchange_not_found"
        {
            error.fate = Fate::Closed;
        }
        error
    })
}

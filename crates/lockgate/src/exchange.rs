//! Exchanges: publish a message once, and every queue that is bound to match it gets a copy, or none does.
//!
//! An [`Exchange`] chooses queues by the routing key of a message ([`Direct`](ExchangeKind::Direct),
//! [`Topic`](ExchangeKind::Topic)), by its headers ([`Headers`](ExchangeKind::Headers)), or takes all
//! ([`Fanout`](ExchangeKind::Fanout)). A binding may have a [`Filter`] as Amazon SNS has them, and say which header becomes the
//! key of the queue's copy. Each queue's own settings apply to its copy: order, delay, deduplication and limits.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
//! use lockgate::{
//!     ExchangeName, Message, RoutingKey,
//!     exchange::{BindTo, BindingOptions, ExchangeKind, Pattern, TopicPattern, Unroutable},
//! };
//!
//! let orders = lockgate.queue("orders").create().await?;
//! let audit = lockgate.queue("audit").create().await?;
//!
//! let events = lockgate.exchange(ExchangeName::new("events")?);
//! events.create(ExchangeKind::Topic, Unroutable::Reject).await?;
//! for (queue, topic) in [(&orders, "orders.*.eu"), (&audit, "#")] {
//!     let to = BindTo::Queue(queue.name().clone());
//!     let pattern = Pattern::Topic(TopicPattern::new(topic)?);
//!     events.bind(to, pattern, BindingOptions::default()).await?;
//! }
//!
//! let published = events.publish(RoutingKey::new("orders.new.eu")?, Message::new("order 17")).await?;
//! assert_eq!(published.copies.len(), 2);
//! let published = events.publish(RoutingKey::new("users.new")?, Message::new("user 42")).await?;
//! assert_eq!(published.copies[0].queue, *audit.name());
//!
//! // Which bindings a message would match, and why it would not go on.
//! let route = events.explain(RoutingKey::new("orders.new.us")?, &Message::new(""), 100).await?;
//! assert_eq!((route.queues, route.bindings.len()), (1, 1));
//! # lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```

use lockgate_core::{ExchangeName, Message, RouteBy, RoutingKey, coordination::Fence};
use lockgate_engine::Engine;
use lockgate_machine::{
    Bind, CreateExchange, DeleteExchange, DescribeExchange, ExplainRoute, ListBindings, Publish,
    Rejection, Unbind, UpdateExchange,
};
pub use lockgate_machine::{
    BindTo, BindingDescription, BindingOptions, BindingsPage, Bound, Copied, CreatedExchange,
    ExchangeCounts, ExchangeDescription, ExchangeError, ExchangeKind, ExchangeNotes, ExchangesPage,
    Filter, FilterError, FilterScope, HeaderPair, HeadersMatch, KeyFrom, ListExchanges, Pattern,
    PatternError, Publication, RouteExplanation, RouteStep, StepOutcome, TopicPattern, Unroutable,
};

use crate::{Error, Lockgate, exchange_sink::ExchangeSink};

/// An exchange. Clones are cheap.
///
/// What cannot be done as the exchanges are is an [`Error::Engine`] with [`Rejection::Exchange`]; see [`ExchangeError`]. If the
/// future of a method is dropped after the request got to the engine, the request may have happened or not. A query changes
/// nothing in any case.
#[derive(Clone)]
pub struct Exchange {
    engine: Engine,
    name: ExchangeName,
}

impl Lockgate {
    /// The exchange of that name. Whether there is one shows its first operation.
    #[must_use]
    pub fn exchange(&self, name: ExchangeName) -> Exchange {
        Exchange {
            engine: self.engine().clone(),
            name,
        }
    }

    /// A page of the exchanges, in the order of their names.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`] for a limit out of its range; otherwise an error about the engine's state.
    pub async fn list_exchanges(&self, list: ListExchanges) -> Result<ExchangesPage, Error> {
        Ok(self.engine().query(list).await?)
    }
}

impl Exchange {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ExchangeName {
        &self.name
    }

    /// The same exchange for the leader of a term, as [`Queue::fenced`](crate::Queue::fenced) has it.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self {
            engine: self.engine.fenced(fence),
            name: self.name.clone(),
        }
    }

    /// The exchange as a place where messages go, for a producer and whatever else is written over
    /// [`Sink`](crate::Sink). `by` says where the routing key of a message comes from.
    #[must_use]
    pub fn sink(&self, by: RouteBy) -> ExchangeSink {
        ExchangeSink::new(self.clone(), by)
    }

    /// Makes the exchange. If there is one of that name of the same kind and with the same rule, nothing changes.
    ///
    /// # Errors
    /// [`ExchangeError::Conflict`] if there is one with another kind or rule; [`ExchangeError::NotFound`] if its alternate is
    /// not there; otherwise an error about the engine's state.
    pub async fn create(
        &self,
        kind: ExchangeKind,
        unroutable: Unroutable,
    ) -> Result<CreatedExchange, Error> {
        let name = self.name.clone();
        let create = CreateExchange {
            name,
            kind,
            unroutable,
            notes: ExchangeNotes::default(),
        };
        Ok(self.engine.submit(create).await?)
    }

    /// Changes what becomes of messages for which it finds no queue.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] if it or its alternate is not there; [`ExchangeError::Cycle`] if the alternate leads back to
    /// it.
    pub async fn set_unroutable(&self, unroutable: Unroutable) -> Result<(), Error> {
        let exchange = self.name.clone();
        let update = UpdateExchange {
            exchange,
            unroutable: Some(unroutable),
            notes: None,
        };
        Ok(self.engine.submit(update).await?)
    }

    /// Makes a binding. If it has one of this pattern to this place, the options of that are replaced.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] and [`Rejection::QueueNotFound`] if it, or where the binding leads, is not there;
    /// [`ExchangeError::Pattern`] for the pattern of another kind; [`ExchangeError::Cycle`] if the binding leads back to it;
    /// [`ExchangeError::OnlyToQueue`], [`ExchangeError::KeyHeader`] and [`ExchangeError::EnvelopeTopic`] for options that the binding cannot have.
    pub async fn bind(
        &self,
        to: BindTo,
        pattern: Pattern,
        options: BindingOptions,
    ) -> Result<Bound, Error> {
        let bind = Bind {
            exchange: self.name.clone(),
            to,
            pattern,
            options,
            keep: false,
        };
        Ok(self.engine.submit(bind).await?)
    }

    /// Removes the binding of this pattern to this place. Returns whether there was one.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] and [`Rejection::QueueNotFound`] if it, or where the binding leads, is not there.
    pub async fn unbind(&self, to: BindTo, pattern: Pattern) -> Result<bool, Error> {
        let unbind = Unbind {
            exchange: self.name.clone(),
            to,
            pattern,
        };
        Ok(self.engine.submit(unbind).await?)
    }

    /// Its bindings in the order in which they were made, behind the one with the number `after`, at most `limit` of them; 1
    /// to 1,000. A page may be short or empty and still not be the last.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] and [`Rejection::OutOfRange`]; otherwise an error about the engine's state.
    pub async fn bindings(&self, after: Option<u32>, limit: usize) -> Result<BindingsPage, Error> {
        let list = ListBindings {
            exchange: self.name.clone(),
            after,
            limit,
        };
        Ok(self.engine.query(list).await?)
    }

    /// Publishes a message: every queue that its bindings lead to gets a copy, or none does. Returns when all copies have
    /// reached their level. A queue that knows the unique id of the message answers with the first message of it.
    ///
    /// The key or group of the message is the key of a copy in a keyed queue, and its group elsewhere, unless the binding says
    /// otherwise.
    ///
    /// # Errors
    /// [`ExchangeError::Unroutable`] if there is no queue, and it rejects such messages; [`Rejection::PublishRefused`] if a queue
    /// refuses its copy; [`ExchangeError::Key`] if what a binding takes as the key cannot be one. Otherwise an error about
    /// the engine's state; see [`Error::kind`].
    pub async fn publish(
        &self,
        routing_key: RoutingKey,
        message: Message,
    ) -> Result<Publication, Error> {
        let publish = self.to_publish(routing_key, message);
        Ok(self.engine.submit(publish).await?)
    }

    /// Publishes messages in order, each on its own: one may be refused and the others accepted. It writes and syncs them
    /// together. Returns one result for each message, in order.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), if the engine could do none of them. A refusal of one message is in its result.
    pub async fn publish_all(
        &self,
        messages: impl IntoIterator<Item = (RoutingKey, Message)>,
    ) -> Result<Vec<Result<Publication, Rejection>>, Error> {
        let messages = messages.into_iter();
        let publishes =
            messages.map(|(routing_key, message)| self.to_publish(routing_key, message));
        Ok(self.engine.submit_all(publishes.collect()).await?)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn to_publish(&self, routing_key: RoutingKey, message: Message) -> Publish {
        Publish {
            exchange: self.name.clone(),
            routing_key,
            message,
            subject: None,
        }
    }

    /// Shows which bindings the message matches, at most `limit` of them, 1 to 1,000, and where it would go. Publishes nothing.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] and [`Rejection::OutOfRange`]; [`ExchangeError::TooMuch`] if the message would go to too
    /// many queues.
    pub async fn explain(
        &self,
        routing_key: RoutingKey,
        message: &Message,
        limit: usize,
    ) -> Result<RouteExplanation, Error> {
        let explain = ExplainRoute {
            exchange: self.name.clone(),
            routing_key,
            headers: message.headers.clone(),
            body: Some(message.body.clone()),
            limit,
        };
        Ok(self.engine.query(explain).await?)
    }

    /// Returns everything about it but its bindings.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`] if it is not there.
    pub async fn describe(&self) -> Result<ExchangeDescription, Error> {
        let exchange = self.name.clone();
        Ok(self.engine.query(DescribeExchange { exchange }).await?)
    }

    /// Deletes it with its bindings. `force`: also if other exchanges lead to it; their bindings to it go, and those whose
    /// alternate it is refuse what they cannot route.
    ///
    /// # Errors
    /// [`ExchangeError::NotFound`]; [`ExchangeError::Used`] without force.
    pub async fn delete(&self, force: bool) -> Result<(), Error> {
        let exchange = self.name.clone();
        Ok(self
            .engine
            .submit(DeleteExchange { exchange, force })
            .await?)
    }
}

//! The Amazon SNS protocol: topics that are exchanges of kind fanout, and subscriptions that are their bindings to queues.
//!
//! It speaks the Query protocol on the address of SQS: [`is_meant`] tells which of the two a request is for. `dispatch` goes
//! from a request to an action and back, `form` reads parameters, `xml` writes answers. The actions are in `topics`,
//! `subscriptions`, `publish` and `tags`.
//!
//! What a topic has besides the exchange, such as its display name, is an annotation of the exchange under the attribute's
//! name. What a subscription has is in the options of the binding, so that every API delivers the same.

mod arns;
mod dispatch;
mod error;
mod form;
pub(crate) mod fuzzing;
mod permissions;
mod publish;
mod subscription_attributes;
mod subscriptions;
mod tags;
#[cfg(test)]
mod tests;
mod topic_attributes;
mod topics;
mod xml;

use std::sync::Arc;

use lockgate_core::{ExchangeName, QueueName};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{
    DescribeExchange, ExchangeDescription, ExchangeError, ExchangeKind, Rejection,
};
use tokio::sync::Mutex;

use self::error::{Code, SnsError};
use crate::{
    auth::{AccessKey, Verb},
    sqs::{Config, Request},
};

pub(crate) use dispatch::{is_meant, only_reads, unauthenticated};

/// The version of the API, which clients name in each request.
const VERSION: &str = "2010-03-31";

/// All actions, over one engine.
#[derive(Debug)]
pub(crate) struct Service {
    engine: Engine,
    config: Config,
    /// Held while attributes or tags are read, changed and written back, so that of two concurrent changes neither is lost.
    changes: Arc<Mutex<()>>,
}

/// What an action knows of its call besides its parameters.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    /// The caller; `None` without authentication.
    identity: Option<&'a AccessKey>,
    /// The trace of the request itself.
    trace_id: Option<&'a str>,
}

impl<'a> Call<'a> {
    fn of(request: &'a Request) -> Self {
        Self {
            identity: request.identity.as_deref(),
            trace_id: request.trace_id.as_deref(),
        }
    }

    fn may(&self, verb: Verb, topic: &ExchangeName) -> bool {
        self.identity
            .is_none_or(|key| key.may_with_exchange(verb, topic))
    }

    fn may_with_queue(&self, verb: Verb, queue: &QueueName) -> bool {
        self.identity.is_none_or(|key| key.may(verb, queue))
    }

    /// Refuses what the caller may not do, whether or not there is such a topic.
    fn check_openly(&self, verb: Verb, topic: &ExchangeName) -> Result<(), SnsError> {
        match self.may(verb, topic) {
            true => Ok(()),
            false => Err(self.denied(verb, format_args!("the topic {topic}"))),
        }
    }

    fn denied(&self, verb: Verb, what: std::fmt::Arguments<'_>) -> SnsError {
        let who = self.identity.map_or("", |key| &key.id);
        SnsError::new(
            Code::AuthorizationError,
            format!(
                "The access key {who} is not allowed to {} {what}.",
                verb.as_str()
            ),
        )
    }
}

impl Service {
    /// `changes` are those of the SQS service.
    pub(crate) fn new(engine: Engine, config: Config, changes: Arc<Mutex<()>>) -> Self {
        Self {
            engine,
            config,
            changes,
        }
    }

    /// The topic of that name, if the caller may do `verb` with it. A caller that may not even read it gets the error for
    /// a missing one.
    async fn topic(
        &self,
        call: &Call<'_>,
        verb: Verb,
        name: &ExchangeName,
    ) -> Result<ExchangeDescription, SnsError> {
        if !call.may(verb, name) {
            return Err(match call.may(Verb::Read, name) {
                true => call.denied(verb, format_args!("the topic {name}")),
                false => SnsError::no_topic(),
            });
        }
        let found = self.exchange(name).await?;
        found
            .filter(|topic| topic.kind == ExchangeKind::Fanout)
            .ok_or_else(SnsError::no_topic)
    }

    /// The exchange of that name, of any kind.
    async fn exchange(&self, name: &ExchangeName) -> Result<Option<ExchangeDescription>, SnsError> {
        let exchange = name.clone();
        match self.engine.query(DescribeExchange { exchange }).await {
            Ok(topic) => Ok(Some(topic)),
            Err(EngineError::Rejected(Rejection::Exchange(ExchangeError::NotFound { .. }))) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

//! The actions over the engine. This module knows AWS's rules and no wire format.

mod attempts;
mod attributes;
mod batch;
mod moves;
mod permissions;
mod queues;
mod receive;
mod refusals;
mod send;
mod settle;
pub(super) mod tags;

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{HolderName, QueueName};
use lockgate_engine::{Engine, QueueEntry};
use tokio::sync::Mutex;

use self::{attempts::Attempts, moves::Mover, queues::Purges};
use super::{Config, dispatch::RequestIds, error::SqsError, names, text::Text};
use crate::{
    answer::TextLen,
    auth::{AccessKey, AccessKeys, Verb},
    http::{drain::Drain, progress::Hangup},
    receipt::Receipts,
};

/// All actions, over one engine.
#[derive(Debug)]
pub(crate) struct Service {
    engine: Engine,
    config: Config,
    drain: Drain,
    receipts: Receipts,
    /// Held while a queue's attributes or tags are read, changed and written back, so that of two
    /// concurrent changes neither is lost.
    pub(crate) changes: Arc<Mutex<()>>,
    purges: Purges,
    attempts: Attempts,
    mover: Mover,
    pub(crate) request_ids: RequestIds,
}

/// What an action knows of its call besides its input.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The host and port in queue URLs.
    pub(crate) host: &'a str,
    /// The holder of the leases that the call takes.
    pub(crate) holder: &'a HolderName,
    /// The trace of the request itself.
    pub(crate) trace_id: Option<&'a str>,
    /// The request's bytes, from which texts of the input may be borrowed.
    pub(crate) request: &'a Bytes,
    /// Signals that the client has ended its side.
    pub(crate) hangup: &'a Hangup,
    /// The caller; `None` without authentication.
    pub(crate) identity: Option<&'a AccessKey>,
    /// Computes the length of a text in the answer.
    pub(crate) text_len: TextLen,
}

impl Call<'_> {
    /// Whether the caller may do `verb` with the queue.
    fn may(&self, verb: Verb, queue: &QueueName) -> bool {
        self.identity.is_none_or(|key| key.may(verb, queue))
    }

    /// Refuses what the caller may not do. A caller that may not even read a queue gets the error
    /// for a missing queue.
    fn check(&self, verb: Verb, queue: &QueueName) -> Result<(), SqsError> {
        if self.may(verb, queue) || self.may(Verb::Read, queue) {
            self.check_openly(verb, queue)
        } else {
            Err(SqsError::queue_does_not_exist())
        }
    }

    /// The same for answers that do not reveal whether the queue exists.
    fn check_openly(&self, verb: Verb, queue: &QueueName) -> Result<(), SqsError> {
        if self.may(verb, queue) {
            return Ok(());
        }
        let who = self.identity.map_or("", |key| &key.id);
        Err(SqsError::access_denied(who, verb, queue))
    }
}

impl Service {
    /// `drain`: once it has begun, waiting receives return empty at once and new ones do not wait.
    /// `keys`: a move task may do what the key that started it may do.
    pub(crate) fn new(
        engine: Engine,
        config: Config,
        drain: Drain,
        keys: Option<AccessKeys>,
    ) -> Self {
        let changes = Arc::default();
        Self {
            mover: Mover::new(engine.clone(), drain.clone(), Arc::clone(&changes), keys),
            receipts: Receipts::new(engine.term().shard, &engine.secret()),
            request_ids: RequestIds::new(engine.term().incarnation),
            changes,
            purges: Purges::default(),
            attempts: Attempts::default(),
            engine,
            config,
            drain,
        }
    }

    /// The queue that a URL names, if the caller may do `verb` with it.
    fn queue(
        &self,
        call: &Call<'_>,
        verb: Verb,
        url: Option<&Text<'_>>,
    ) -> Result<Arc<QueueEntry>, SqsError> {
        let url = required(url, "QueueUrl")?;
        let entry = self.queue_named(names::queue_in_url(&self.config, url).as_ref())?;
        call.check(verb, &entry.name)?;
        Ok(entry)
    }

    /// The current state of a queue; `None` is a name that no queue can have.
    fn queue_named(&self, name: Option<&QueueName>) -> Result<Arc<QueueEntry>, SqsError> {
        name.and_then(|name| self.engine.directory().get(name))
            .ok_or_else(SqsError::queue_does_not_exist)
    }
}

/// A required parameter.
fn required<T>(value: Option<T>, parameter: &str) -> Result<T, SqsError> {
    value.ok_or_else(|| SqsError::missing(parameter))
}

/// A text that is not empty; AWS treats some empty parameters as missing.
fn filled(text: Option<Text<'_>>) -> Option<Text<'_>> {
    text.filter(|text| !text.is_empty())
}

/// An optional integer that must be in a range. `rule` is the range in AWS's words.
fn in_range(
    value: Option<i64>,
    min: u64,
    max: u64,
    parameter: &str,
    rule: impl std::fmt::Display,
) -> Result<Option<u64>, SqsError> {
    value
        .map(|value| {
            u64::try_from(value)
                .ok()
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| SqsError::invalid_value(value, parameter, rule))
        })
        .transpose()
}

/// The same for newer parameters, whose values AWS's errors do not repeat.
fn in_range_unnamed(
    value: Option<i64>,
    min: u64,
    max: u64,
    parameter: &str,
    rule: impl std::fmt::Display,
) -> Result<Option<u64>, SqsError> {
    in_range(value, min, max, parameter, &rule).map_err(|_| {
        SqsError::invalid_parameter(format!(
            "Value for parameter {parameter} is invalid. Reason: {rule}"
        ))
    })
}

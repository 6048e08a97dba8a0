//! What each action does, over the engine. Knows AWS's rules and no wire format.

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
    /// such changes at once neither is lost.
    pub(crate) changes: Arc<Mutex<()>>,
    purges: Purges,
    attempts: Attempts,
    mover: Mover,
    pub(crate) request_ids: RequestIds,
}

/// What an action knows of its call beside its input.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// Host and port that queue URLs name.
    pub(crate) host: &'a str,
    /// Who will hold the leases it takes.
    pub(crate) holder: &'a HolderName,
    /// The trace that the request as such is part of.
    pub(crate) trace_id: Option<&'a str>,
    /// What the texts of its input may be borrowed from.
    pub(crate) request: &'a Bytes,
    /// Tells when its client has ended its side.
    pub(crate) hangup: &'a Hangup,
    /// Who asks; `None` where nobody has to say.
    pub(crate) identity: Option<&'a AccessKey>,
    /// How long a text is in the answer.
    pub(crate) text_len: TextLen,
}

impl Call<'_> {
    /// Whether the caller may do that with that queue.
    fn may(&self, verb: Verb, queue: &QueueName) -> bool {
        self.identity.is_none_or(|key| key.may(verb, queue))
    }

    /// Refuses what the caller may not do. Whoever may not even read of a queue is told what is told
    /// of one that is not there.
    fn check(&self, verb: Verb, queue: &QueueName) -> Result<(), SqsError> {
        if self.may(verb, queue) || self.may(Verb::Read, queue) {
            self.check_openly(verb, queue)
        } else {
            Err(SqsError::queue_does_not_exist())
        }
    }

    /// The same where the answer tells nothing of whether there is such a queue.
    fn check_openly(&self, verb: Verb, queue: &QueueName) -> Result<(), SqsError> {
        if self.may(verb, queue) {
            return Ok(());
        }
        let who = self.identity.map_or("", |key| &key.id);
        Err(SqsError::access_denied(who, verb, queue))
    }
}

impl Service {
    /// `drain`: when it has begun, waiting receives end empty at once and new ones do not wait.
    /// `keys`: what a move task may do is up to the one that started it.
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

    /// The queue that a URL names, for a caller who may do that with it.
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

    /// The queue of that name, as it is now; `None` is a name that no queue of ours can have.
    fn queue_named(&self, name: Option<&QueueName>) -> Result<Arc<QueueEntry>, SqsError> {
        name.and_then(|name| self.engine.directory().get(name))
            .ok_or_else(SqsError::queue_does_not_exist)
    }
}

/// A parameter that must be there.
fn required<T>(value: Option<T>, parameter: &str) -> Result<T, SqsError> {
    value.ok_or_else(|| SqsError::missing(parameter))
}

/// A text that says something: an empty one is taken for none, as AWS does with some parameters.
fn filled(text: Option<Text<'_>>) -> Option<Text<'_>> {
    text.filter(|text| !text.is_empty())
}

/// A whole number that must lie in a range, if it is given. `rule` says which, in AWS's words.
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

/// The same for the newer parameters, whose values AWS does not repeat.
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

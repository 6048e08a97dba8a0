//! The attributes of a subscription, which are options of its binding.

use std::sync::Arc;

use lockgate_core::{ExchangeName, QueueName};
use lockgate_machine::{BindingOptions, Filter, FilterScope};
use serde_json::json;

use super::{Call, Service, arns, error::SnsError, topic_attributes::flag};
use crate::{
    auth::Verb,
    fault::shorten,
    queue::{
        allow_policy::arn_parts,
        kind::{Kind, kind_of},
    },
    raw_json::{self, Members},
    sqs,
};

pub(super) const RAW: &str = "RawMessageDelivery";
pub(super) const FILTER: &str = "FilterPolicy";
pub(super) const SCOPE: &str = "FilterPolicyScope";
pub(super) const REDRIVE: &str = "RedrivePolicy";

const BY_HEADERS: &str = "MessageAttributes";
const BY_BODY: &str = "MessageBody";

/// What is said of a subscription at once. The scope comes before the filter that it is of.
pub(super) struct Change<'c> {
    pub(super) service: &'c Service,
    pub(super) call: &'c Call<'c>,
    pub(super) topic: &'c ExchangeName,
    pub(super) queue: &'c QueueName,
    /// What the refusals begin with.
    pub(super) prefix: &'static str,
}

impl Change<'_> {
    fn refused(&self, name: &str, reason: impl std::fmt::Display) -> SnsError {
        let prefix = self.prefix;
        let reason = crate::fault::shortened(format_args!("{reason}"));
        SnsError::parameter(format!("{prefix}{name}: {reason}"))
    }

    /// Sets the attributes that are given.
    pub(super) fn apply<'v>(
        &self,
        options: &mut BindingOptions,
        attributes: impl IntoIterator<Item = (&'v str, &'v str)>,
    ) -> Result<(), SnsError> {
        let (mut filter, mut scope) = (None, None);
        for (name, value) in attributes {
            match name {
                RAW => {
                    let is_raw = flag(RAW, value).map_err(|_| {
                        let value = shorten(value);
                        self.refused(
                            RAW,
                            format_args!("Invalid value [{value}]. Must be true or false."),
                        )
                    })?;
                    options.envelope = (!is_raw).then(|| self.envelope());
                }
                FILTER => filter = Some(value),
                SCOPE => scope = Some(self.scope(value)?),
                REDRIVE => options.overflow = self.overflow(value)?,
                "DeliveryPolicy" => {
                    return Err(self.refused(
                        name,
                        "Delivery protocol [sqs] does not support delivery policy.",
                    ));
                }
                "SubscriptionRoleArn" => {
                    return Err(self.refused(
                        name,
                        "Only subscriptions of Firehose have a role, which Lockgate does not have.",
                    ));
                }
                "ReplayPolicy" => {
                    return Err(self.refused(name, "Lockgate keeps no archive of a topic."));
                }
                _ => return Err(SnsError::parameter(format!("{}AttributeName", self.prefix))),
            }
        }
        self.apply_filter(options, filter, scope)
    }

    pub(super) fn envelope(&self) -> Arc<str> {
        arns::topic_arn(&self.service.config, self.topic).into()
    }

    fn scope(&self, value: &str) -> Result<FilterScope, SnsError> {
        match value {
            BY_HEADERS => Ok(FilterScope::Headers),
            BY_BODY => Ok(FilterScope::Body),
            _ => {
                let value = shorten(value);
                Err(self.refused(
                    SCOPE,
                    format_args!("Invalid value [{value}]. Please use either MessageBody or MessageAttributes"),
                ))
            }
        }
    }

    fn apply_filter(
        &self,
        options: &mut BindingOptions,
        policy: Option<&str>,
        scope: Option<FilterScope>,
    ) -> Result<(), SnsError> {
        let before = options.filter.take();
        let scope_now = scope
            .or_else(|| before.as_ref().map(Filter::scope))
            .unwrap_or(FilterScope::Headers);
        let policy = match (policy, &before) {
            (Some(policy), _) => policy,
            (None, Some(before)) => before.text(),
            (None, None) => "",
        };
        if policy.is_empty() || is_empty_object(policy) {
            return match scope {
                Some(FilterScope::Body) => Err(self.refused(
                    SCOPE,
                    "Lockgate keeps the scope with the filter policy: set FilterPolicy before it, or both with Subscribe.",
                )),
                _ => Ok(()),
            };
        }
        let filter = Filter::new(scope_now, policy).map_err(|error| self.refused(FILTER, error))?;
        options.filter = Some(filter);
        Ok(())
    }

    /// The queue for what the subscription's queue does not take.
    fn overflow(&self, value: &str) -> Result<Option<QueueName>, SnsError> {
        if value.is_empty() {
            return Ok(None);
        }
        let refused = |reason: &str| self.refused(REDRIVE, reason);
        let Some(Members {
            known: [arn],
            others,
        }) = raw_json::members(value, ["deadLetterTargetArn"])
        else {
            return Err(refused("failed to parse JSON."));
        };
        if others {
            return Err(refused("only deadLetterTargetArn is supported"));
        }
        let Some(arn) = arn else {
            // As AWS has it: an empty policy is none.
            return Ok(None);
        };
        let invalid = || refused("deadLetterTargetArn is an invalid arn");
        let arn = raw_json::text(arn).ok_or_else(invalid)?;
        if arn_parts(&arn).is_none() {
            return Err(invalid());
        }
        let missing = || refused("the queue of deadLetterTargetArn does not exist here");
        let name = sqs::queue_in_arn(&self.service.config, &arn).ok_or_else(missing)?;
        let queue = self
            .service
            .engine
            .directory()
            .get(&name)
            .ok_or_else(missing)?;
        if !self.call.may_with_queue(Verb::Send, &name) {
            return Err(match self.call.may_with_queue(Verb::Read, &name) {
                true => self
                    .call
                    .denied(Verb::Send, format_args!("to the queue {name}")),
                false => missing(),
            });
        }
        let of_fifo = arns::is_fifo(self.topic) && self.queue.as_str().ends_with(".fifo");
        match (of_fifo, kind_of(&queue.settings)) {
            (true, Kind::Standard) => Err(refused(
                "must use a FIFO queue as DLQ for a FIFO Subscription to a FIFO Topic.",
            )),
            (false, Kind::Fifo) => Err(refused(
                "must use a standard queue as DLQ for a standard queue.",
            )),
            _ => Ok(Some(name)),
        }
    }
}

fn is_empty_object(policy: &str) -> bool {
    let members = raw_json::members::<0>(policy, []);
    members.is_some_and(|members| !members.others)
}

pub(super) fn scope_name(filter: &Filter) -> &'static str {
    match filter.scope() {
        FilterScope::Body => BY_BODY,
        _ => BY_HEADERS,
    }
}

/// The text of a redrive policy, as the API returns it.
pub(super) fn redrive_policy(config: &sqs::Config, queue: &QueueName) -> String {
    json!({"deadLetterTargetArn": sqs::queue_arn(config, queue)}).to_string()
}

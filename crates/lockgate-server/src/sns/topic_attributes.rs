//! The attributes of a topic. Those that a client may set are annotations of the exchange, under their names.

use std::{borrow::Cow, collections::BTreeMap};

use lockgate_core::ExchangeName;
use lockgate_machine::ExchangeDescription;
use serde_json::json;

use super::{arns, error::SnsError};
use crate::{fault::shorten, queue::kind::FIFO_SUFFIX, raw_json, sqs};

pub(super) const FIFO_TOPIC: &str = "FifoTopic";
pub(super) const CONTENT_DEDUPLICATION: &str = "ContentBasedDeduplication";
pub(super) const POLICY: &str = "Policy";
const DELIVERY_POLICY: &str = "DeliveryPolicy";
const DISPLAY_NAME: &str = "DisplayName";
const SIGNATURE_VERSION: &str = "SignatureVersion";
const THROUGHPUT_SCOPE: &str = "FifoThroughputScope";
const TRACING: &str = "TracingConfig";
const KEY_ID: &str = "KmsMasterKeyId";

const DISPLAY_NAME_LEN_MAX: usize = 100;
/// The longest value of any attribute, in bytes: a policy of AWS has 30 KiB at most.
const BYTES_MAX: usize = 30 << 10;

/// What AWS says of deliveries, for the protocols that Lockgate does not have: they are kept.
const FEEDBACK: [&str; 5] = ["HTTP", "Firehose", "Lambda", "Application", "SQS"];
const FEEDBACK_PARTS: [&str; 3] = [
    "SuccessFeedbackRoleArn",
    "SuccessFeedbackSampleRate",
    "FailureFeedbackRoleArn",
];

/// Sets an attribute, or removes it with an empty value.
pub(super) fn set(
    annotations: &mut BTreeMap<String, String>,
    topic: &ExchangeName,
    name: &str,
    value: &str,
) -> Result<(), SnsError> {
    check(topic, name, value)?;
    match value.is_empty() {
        true => annotations.remove(name),
        false => annotations.insert(name.to_owned(), value.to_owned()),
    };
    Ok(())
}

fn check(topic: &ExchangeName, name: &str, value: &str) -> Result<(), SnsError> {
    let refuse = |reason: &str| Err(SnsError::invalid(name, Some(format_args!("{reason}"))));
    if value.len() > BYTES_MAX {
        return refuse("The value is longer than 30 KiB");
    }
    let of_fifo = matches!(name, CONTENT_DEDUPLICATION | THROUGHPUT_SCOPE);
    if of_fifo && !arns::is_fifo(topic) {
        return Err(SnsError::invalid(
            "Attributes",
            Some(format_args!("{name}")),
        ));
    }
    match name {
        _ if is_feedback(name) => Ok(()),
        KEY_ID => Ok(()),
        _ if value.is_empty() && name != FIFO_TOPIC && is_known(name) => Ok(()),
        DISPLAY_NAME => match value.chars().count() > DISPLAY_NAME_LEN_MAX {
            true => refuse("The display name has 100 characters at most"),
            false => Ok(()),
        },
        POLICY => check_policy(value),
        DELIVERY_POLICY => match raw_json::members::<0>(value, []) {
            Some(_) => Ok(()),
            None => refuse("It is no JSON object"),
        },
        SIGNATURE_VERSION => among(name, value, &["1", "2"]),
        TRACING => among(name, value, &["PassThrough", "Active"]),
        THROUGHPUT_SCOPE => among(name, value, &["Topic", "MessageGroup"]),
        CONTENT_DEDUPLICATION => flag(name, value).map(drop),
        FIFO_TOPIC => refuse("Whether a topic is FIFO is said when it is made"),
        "ArchivePolicy" => refuse("Lockgate does not archive messages of topics: bind a ledger"),
        _ => Err(SnsError::invalid("AttributeName", None)),
    }
}

/// A policy is an object that can be read as a whole, because AddPermission and RemovePermission do.
pub(super) fn check_policy(policy: &str) -> Result<(), SnsError> {
    let refuse = |reason: &str| SnsError::invalid(POLICY, Some(format_args!("{reason}")));
    if policy.len() > BYTES_MAX {
        return Err(refuse("The policy is longer than 30 KiB"));
    }
    if raw_json::members::<0>(policy, []).is_none() {
        return Err(refuse("It is no JSON object"));
    }
    sqs::readable_json(policy).map_err(|error| refuse(&error.to_string()))
}

fn is_known(name: &str) -> bool {
    [
        DISPLAY_NAME,
        POLICY,
        DELIVERY_POLICY,
        SIGNATURE_VERSION,
        TRACING,
        THROUGHPUT_SCOPE,
        CONTENT_DEDUPLICATION,
    ]
    .contains(&name)
}

fn is_feedback(name: &str) -> bool {
    let mut of = FEEDBACK.iter();
    of.any(|protocol| {
        name.strip_prefix(protocol)
            .is_some_and(|part| FEEDBACK_PARTS.contains(&part))
    })
}

fn among(name: &str, value: &str, allowed: &[&str]) -> Result<(), SnsError> {
    match allowed.contains(&value) {
        true => Ok(()),
        false => Err(SnsError::invalid(
            name,
            Some(format_args!(
                "Invalid value [{}]. Must be one of {}",
                shorten(value),
                allowed.join(", ")
            )),
        )),
    }
}

/// A truth.
pub(super) fn flag(name: &str, value: &str) -> Result<bool, SnsError> {
    match value {
        _ if value.eq_ignore_ascii_case("true") => Ok(true),
        _ if value.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(SnsError::invalid(
            name,
            Some(format_args!(
                "Invalid value [{}]. Must be true or false",
                shorten(value)
            )),
        )),
    }
}

/// The value of an attribute as it was set; its default if it was not.
pub(super) fn value<'n>(annotations: &'n BTreeMap<String, String>, name: &str) -> Option<&'n str> {
    match (annotations.get(name), name) {
        (Some(value), CONTENT_DEDUPLICATION) => Some(match value.eq_ignore_ascii_case("true") {
            true => "true",
            false => "false",
        }),
        (Some(value), _) => Some(value),
        (None, CONTENT_DEDUPLICATION) => Some("false"),
        (None, _) => None,
    }
}

/// All attributes of a topic, as the API shows them.
pub(super) fn all<'t>(
    topic: &'t ExchangeDescription,
    arn: &str,
    account: &str,
) -> BTreeMap<&'t str, Cow<'t, str>> {
    let annotations = &topic.notes.annotations;
    let mut all: BTreeMap<&str, Cow<'_, str>> = annotations
        .iter()
        .filter(|(name, _)| is_known(name) || is_feedback(name) || *name == KEY_ID)
        .map(|(name, value)| (&**name, value.into()))
        .collect();
    all.entry(DISPLAY_NAME).or_default();
    all.entry(POLICY)
        .or_insert_with(|| default_policy(arn, account).into());
    let delivery = all.get(DELIVERY_POLICY).cloned();
    all.insert(
        "EffectiveDeliveryPolicy",
        delivery.unwrap_or_else(|| default_delivery_policy().into()),
    );
    all.insert("TopicArn", arn.to_owned().into());
    all.insert("Owner", account.to_owned().into());
    all.insert("SubscriptionsConfirmed", topic.bindings.to_string().into());
    all.insert("SubscriptionsPending", "0".into());
    all.insert("SubscriptionsDeleted", "0".into());
    if topic.name.as_str().ends_with(FIFO_SUFFIX) {
        all.insert(FIFO_TOPIC, "true".into());
        let by_content = value(annotations, CONTENT_DEDUPLICATION);
        all.insert(CONTENT_DEDUPLICATION, by_content.unwrap_or("false").into());
    }
    all
}

/// The policy of a topic that has none, in AWS's words.
pub(super) fn default_policy(arn: &str, account: &str) -> String {
    json!({
        "Version": "2008-10-17",
        "Id": "__default_policy_ID",
        "Statement": [{
            "Sid": "__default_statement_ID",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": [
                "SNS:GetTopicAttributes",
                "SNS:SetTopicAttributes",
                "SNS:AddPermission",
                "SNS:RemovePermission",
                "SNS:DeleteTopic",
                "SNS:Subscribe",
                "SNS:ListSubscriptionsByTopic",
                "SNS:Publish",
            ],
            "Resource": arn,
            "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
        }],
    })
    .to_string()
}

/// AWS's default, which is about deliveries over HTTP.
fn default_delivery_policy() -> String {
    json!({"http": {
        "defaultHealthyRetryPolicy": {
            "minDelayTarget": 20,
            "maxDelayTarget": 20,
            "numRetries": 3,
            "numMaxDelayRetries": 0,
            "numNoDelayRetries": 0,
            "numMinDelayRetries": 0,
            "backoffFunction": "linear",
        },
        "disableSubscriptionOverrides": false,
        "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
    }})
    .to_string()
}

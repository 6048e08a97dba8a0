//! Redrive policies: the dead-letter queue of a queue, and the source queues that a dead-letter
//! queue allows.

use lockgate_core::QueueName;
use serde_json::json;

use super::{Config, error::SqsError, names, queue_attributes::Targets};
use crate::{
    fault::shorten,
    queue::{
        allow_policy::{REDRIVE_ALLOW_POLICY, allows, arn_parts},
        kind::Kind,
    },
    raw_json::{self, Members},
};

const RECEIVE_COUNT_MAX: u64 = 1_000;
/// The longest redrive allow policy, in bytes; ten ARNs take an eighth of it.
const ALLOW_POLICY_BYTES_MAX: usize = 8_192;
const SOURCE_ARNS_MAX: usize = 10;

/// The text of a redrive policy, as the API returns it.
pub(super) fn policy_text(queue: &QueueName, attempts_max: u16, config: &Config) -> String {
    json!({
        "deadLetterTargetArn": names::queue_arn(config, queue),
        "maxReceiveCount": attempts_max,
    })
    .to_string()
}

/// Parses a redrive policy and checks its target. Returns the dead-letter queue and the number of
/// attempts.
pub(super) fn policy(
    value: &str,
    kind: Kind,
    name: &QueueName,
    config: &Config,
    targets: &impl Targets,
) -> Result<(QueueName, u16), SqsError> {
    let refuse = |reason: &str| SqsError::invalid_value(value, "RedrivePolicy", reason);
    let Some(Members {
        known: [count, arn],
        others,
    }) = raw_json::members(value, ["maxReceiveCount", "deadLetterTargetArn"])
    else {
        return Err(SqsError::invalid_parameter(
            "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a valid \
             JSON map.",
        ));
    };
    let missing = |key| {
        refuse(&format!(
            "Redrive policy does not contain mandatory attribute: {key}."
        ))
    };
    let count = count.ok_or_else(|| missing("maxReceiveCount"))?;
    let arn = arn.ok_or_else(|| missing("deadLetterTargetArn"))?;
    let attempts = match raw_json::text(count) {
        Some(text) => text.parse().ok(),
        None => serde_json::from_str::<u64>(count.get()).ok(),
    };
    let attempts_max = attempts
        .filter(|attempts| (1..=RECEIVE_COUNT_MAX).contains(attempts))
        .and_then(|attempts| u16::try_from(attempts).ok())
        .ok_or_else(|| {
            refuse(&format!(
                "Invalid value for maxReceiveCount: {}, valid values are from 1 to \
                 {RECEIVE_COUNT_MAX} both inclusive.",
                shorten(count.get().trim_matches('"'))
            ))
        })?;
    if others {
        return Err(refuse(
            "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
        ));
    }
    let missing = || refuse("Dead letter target does not exist.");
    let arn =
        raw_json::text(arn).ok_or_else(|| refuse("Invalid value for deadLetterTargetArn."))?;
    let arn = &*arn;
    let queue = names::queue_in_arn(config, arn)
        .ok_or_else(|| foreign_target(config, arn).map_or_else(missing, refuse))?;
    let (target_kind, target_annotations) = targets.target(&queue).ok_or_else(missing)?;
    if target_kind != kind {
        return Err(refuse(
            "Dead-letter queue must be same type of queue as the source.",
        ));
    }
    if let Some(allowed) = target_annotations.get(REDRIVE_ALLOW_POLICY)
        && !allows(allowed, |arn| arn == names::queue_arn(config, name))
    {
        return Err(refuse(
            "The redrive allow policy of the dead-letter queue does not include this queue.",
        ));
    }
    Ok((queue, attempts_max))
}

/// Why an ARN cannot be a target, in AWS's words; `None` if it could name a queue of this server.
fn foreign_target(config: &Config, arn: &str) -> Option<&'static str> {
    let Some([service, region, account, _]) = arn_parts(arn) else {
        return Some("Dead-letter target ARN should be fully qualified ARN.");
    };
    if service != "sqs" {
        Some("Only SQS queues are valid resources for deadLetterTargetArn.")
    } else if region != config.region {
        Some("Dead-letter target must be in same region as the source.")
    } else if account != config.account {
        Some("Dead-letter target owner should be same as the source.")
    } else {
        None
    }
}

/// Checks the form of a redrive allow policy.
pub(super) fn check_allow_policy(value: &str) -> Result<(), SqsError> {
    let refuse = |reason: &str| {
        SqsError::invalid_value(
            value,
            "RedriveAllowPolicy",
            format_args!("Amazon SQS can't create the redrive allow policy. {reason}"),
        )
    };
    let unsupported = || {
        // The apostrophes are AWS's.
        SqsError::invalid_parameter(
            "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't create the \
             redrive allow policy, as it\u{2019}s in an unsupported format.",
        )
    };
    if value.len() > ALLOW_POLICY_BYTES_MAX {
        return Err(refuse("It must not be longer than 8,192 bytes."));
    }
    let Some(Members {
        known: [permission, arns],
        others: false,
    }) = raw_json::members(value, ["redrivePermission", "sourceQueueArns"])
    else {
        return Err(unsupported());
    };
    let arns = match arns {
        None => None,
        Some(arns) => {
            let mut texts = raw_json::is_list(arns);
            raw_json::each(Some(arns), |arn| texts &= raw_json::text(arn).is_some());
            if !texts {
                return Err(unsupported());
            }
            Some(raw_json::count(Some(arns)))
        }
    };
    match (permission.and_then(raw_json::text).as_deref(), arns) {
        (Some("allowAll" | "denyAll"), None) => Ok(()),
        (Some("byQueue"), Some(arns)) if (1..=SOURCE_ARNS_MAX).contains(&arns) => Ok(()),
        (Some("byQueue"), Some(arns)) if arns > SOURCE_ARNS_MAX => Err(refuse(&format!(
            "The maximum number of source queue ARNs you can specify is {SOURCE_ARNS_MAX}."
        ))),
        (Some("byQueue"), _) => Err(refuse(
            "When you specify the byQueue permission type, you must also specify one or more \
             sourceQueueArns values.",
        )),
        (Some("allowAll" | "denyAll"), Some(_)) => Err(refuse(
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue.",
        )),
        _ => Err(unsupported()),
    }
}

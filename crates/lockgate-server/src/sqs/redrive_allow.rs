//! Which queues may name a queue as their dead-letter queue.

use serde_json::Value;

use super::error::SqsError;

/// The longest policy, in bytes: ten ARNs take an eighth of it.
const BYTES_MAX: usize = 8_192;
const SOURCE_ARNS_MAX: usize = 10;

/// Checks the form of a redrive allow policy.
pub(super) fn check(value: &str) -> Result<(), SqsError> {
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
    if value.len() > BYTES_MAX {
        return Err(refuse("It must not be longer than 8,192 bytes."));
    }
    let Ok(Value::Object(policy)) = serde_json::from_str(value) else {
        return Err(unsupported());
    };
    let known = ["redrivePermission", "sourceQueueArns"];
    if policy.keys().any(|key| !known.contains(&key.as_str())) {
        return Err(unsupported());
    }
    let arns = match policy.get("sourceQueueArns") {
        None => None,
        Some(Value::Array(arns)) if arns.iter().all(Value::is_string) => Some(arns),
        Some(_) => return Err(unsupported()),
    };
    match (
        policy.get("redrivePermission").and_then(Value::as_str),
        arns,
    ) {
        (Some("allowAll" | "denyAll"), None) => Ok(()),
        (Some("byQueue"), Some(arns)) if (1..=SOURCE_ARNS_MAX).contains(&arns.len()) => Ok(()),
        (Some("byQueue"), Some(arns)) if arns.len() > SOURCE_ARNS_MAX => Err(refuse(&format!(
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

/// Whether a redrive allow policy, checked when it was set, lets a source queue in.
pub(super) fn allows(policy: &str, source_arn: &str) -> bool {
    let Ok(policy) = serde_json::from_str::<Value>(policy) else {
        return false;
    };
    match policy["redrivePermission"].as_str() {
        Some("allowAll") => true,
        Some("byQueue") => policy["sourceQueueArns"]
            .as_array()
            .is_some_and(|arns| arns.iter().any(|arn| arn == source_arn)),
        _ => false,
    }
}

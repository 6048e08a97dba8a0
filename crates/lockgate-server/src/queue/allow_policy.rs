//! Which source queues a dead-letter queue accepts.

use std::collections::BTreeMap;

use lockgate_core::QueueName;

use crate::raw_json::{self, Members};

/// The annotation that holds a redrive allow policy: SQS's name of the attribute.
pub(crate) const REDRIVE_ALLOW_POLICY: &str = "RedriveAllowPolicy";

/// Whether the redrive allow policy in a dead-letter queue's annotations allows a source queue. The
/// policy names queues by ARN; region and account are ignored here.
pub(crate) fn lets_in(annotations: &BTreeMap<String, String>, source: &QueueName) -> bool {
    let is_source = |arn: &str| arn_parts(arn).is_some_and(|[.., name]| name == source.as_str());
    annotations
        .get(REDRIVE_ALLOW_POLICY)
        .is_none_or(|policy| allows(policy, is_source))
}

/// Whether a redrive allow policy, which was checked when it was set, allows a source queue.
pub(crate) fn allows(allow_policy: &str, is_source: impl Fn(&str) -> bool) -> bool {
    let Some(Members {
        known: [permission, arns],
        ..
    }) = raw_json::members(allow_policy, ["redrivePermission", "sourceQueueArns"])
    else {
        return false;
    };
    match permission.and_then(raw_json::text).as_deref() {
        Some("allowAll") => true,
        Some("byQueue") => {
            let mut among = false;
            raw_json::each(arns, |arn| {
                among |= raw_json::text(arn).is_some_and(|arn| is_source(&arn));
            });
            among
        }
        _ => false,
    }
}

/// Service, region, account and resource of an ARN; `None` if the text is no ARN.
pub(crate) fn arn_parts(arn: &str) -> Option<[&str; 4]> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    match parts[..] {
        ["arn", partition, service, region, account, resource] if !partition.is_empty() => {
            Some([service, region, account, resource])
        }
        _ => None,
    }
}

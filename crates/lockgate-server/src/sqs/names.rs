//! SQS's rules for names and ids, and the URLs and ARNs of queues.

use lockgate_core::{Key, QueueName, UniqueId};

use super::{
    Config,
    error::{ErrorCode, SqsError},
};
use crate::queue::allow_policy::arn_parts;

/// The longest group id and deduplication id, in characters.
pub(crate) const ID_LEN_MAX: usize = 128;

/// The longest id of a batch entry, in characters.
const ENTRY_ID_LEN_MAX: usize = 80;

/// Checks a group id or deduplication id: letters, digits and ASCII punctuation.
fn check_id(id: &str, parameter: &str) -> Result<(), SqsError> {
    let well_formed =
        (1..=ID_LEN_MAX).contains(&id.len()) && id.bytes().all(|c| c.is_ascii_graphic());
    if well_formed {
        return Ok(());
    }
    Err(SqsError::invalid_value(
        id,
        parameter,
        format_args!(
            "{parameter} can only include alphanumeric and punctuation characters. \
             1 to {ID_LEN_MAX} in length."
        ),
    ))
}

pub(crate) fn group_id(id: &str) -> Result<Key, SqsError> {
    check_id(id, "MessageGroupId")?;
    Key::new(id).map_err(|error| SqsError::invalid_value(id, "MessageGroupId", error))
}

pub(crate) fn deduplication_id(id: &str) -> Result<UniqueId, SqsError> {
    check_id(id, "MessageDeduplicationId")?;
    UniqueId::new(id).map_err(|error| SqsError::invalid_value(id, "MessageDeduplicationId", error))
}

pub(crate) fn receive_attempt_id(id: &str) -> Result<(), SqsError> {
    check_id(id, "ReceiveRequestAttemptId")
}

pub(crate) fn entry_id(id: &str) -> Result<(), SqsError> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    if (1..=ENTRY_ID_LEN_MAX).contains(&id.len()) && id.bytes().all(allowed) {
        return Ok(());
    }
    Err(SqsError::new(
        ErrorCode::InvalidBatchEntryId,
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
         It can be at most 80 letters long.",
    ))
}

/// A queue's URL for clients that reached the server as `host`.
pub(crate) fn queue_url(config: &Config, host: &str, name: &QueueName) -> String {
    let scheme = if config.https { "https" } else { "http" };
    format!("{scheme}://{host}/{}/{name}", config.account)
}

/// The part before a queue's name in URLs of older ElasticMQ versions, in place of the account.
pub(crate) const ELASTICMQ_PREFIX: &str = "queue";

/// Whether a path names a queue, and not the service or an account.
pub(crate) fn is_queue_path(path: &str) -> bool {
    path.trim_matches('/').contains('/')
}

/// The queue that a URL names: the last part of its path, if the part before it is this server's
/// account, or `queue` as in ElasticMQ's URLs.
///
/// SDKs send every call to their configured endpoint and carry the URL as data. The URL may have
/// been made under another host name, so the host is ignored. Like AWS, this also accepts a bare
/// name.
pub(crate) fn queue_in_url(config: &Config, url: &str) -> Option<QueueName> {
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.split_once('/')?.1,
        None => url,
    };
    let path = path.split(['?', '#']).next()?.trim_end_matches('/');
    let mut parts = path.rsplit('/');
    let name = parts.next()?;
    match parts.next() {
        // The service's own URL, to which requests may be sent: it names no queue.
        _ if url.contains('/') && name == config.account => return None,
        None | Some("" | ELASTICMQ_PREFIX) => {}
        Some(account) if account == config.account => {}
        Some(_) => return None,
    }
    QueueName::new(name).ok()
}

/// A queue's ARN.
pub(crate) fn queue_arn(config: &Config, name: &QueueName) -> String {
    format!("arn:aws:sqs:{}:{}:{name}", config.region, config.account)
}

/// The queue of this server that an ARN names.
pub(crate) fn queue_in_arn(config: &Config, arn: &str) -> Option<QueueName> {
    match arn_parts(arn)? {
        ["sqs", region, account, name] if region == config.region && account == config.account => {
            QueueName::new(name).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            account: "000000000000".into(),
            region: "us-east-1".into(),
            https: false,
        }
    }

    #[test]
    fn ids_take_punctuation_but_no_space() {
        assert!(group_id("user:42/A!\"#$%&'()*+,-.;<=>?@[\\]^_`{|}~").is_ok());
        assert!(deduplication_id(&"x".repeat(128)).is_ok());
        for bad in ["", "a b", "ä", "a\u{7f}", "a\nb", &"x".repeat(129)] {
            let error = group_id(bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidParameterValue);
            assert!(
                error
                    .message
                    .starts_with(&format!("Value {bad} for parameter MessageGroupId")),
                "{error}"
            );
            assert!(deduplication_id(bad).is_err(), "{bad:?}");
            assert!(receive_attempt_id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn batch_entry_ids() {
        for (id, good) in [
            ("a-B_9", true),
            (&*"i".repeat(80), true),
            (&*"i".repeat(81), false),
            ("", false),
            ("a.b", false),
            ("a b", false),
        ] {
            assert_eq!(entry_id(id).is_ok(), good, "{id}");
        }
    }

    #[test]
    fn urls_are_matched_on_their_last_two_parts() {
        let found = |url: &str| queue_in_url(&config(), url).map(|name| name.to_string());
        let orders = Some("orders.fifo".to_owned());
        for url in [
            "http://127.0.0.1:9324/000000000000/orders.fifo",
            "https://sqs.us-east-1.amazonaws.com/000000000000/orders.fifo",
            "http://proxy/some/prefix/000000000000/orders.fifo",
            "http://127.0.0.1:9324/000000000000/orders.fifo/",
            "http://127.0.0.1:9324/000000000000/orders.fifo?x=1#y",
            "/000000000000/orders.fifo",
            "000000000000/orders.fifo",
            "http://127.0.0.1:9324/queue/orders.fifo",
            "/queue/orders.fifo/",
            "orders.fifo",
        ] {
            assert_eq!(found(url), orders, "{url}");
        }
        for url in [
            "",
            "/",
            "http://127.0.0.1:9324",
            "http://127.0.0.1:9324/",
            "http://127.0.0.1:9324/111111111111/orders.fifo",
            "http://127.0.0.1:9324/queues/orders.fifo",
            "http://127.0.0.1:9324/000000000000/a b",
        ] {
            assert_eq!(found(url), None, "{url}");
        }
    }

    #[test]
    fn arns_name_our_queues_only() {
        let config = config();
        let name = QueueName::new("orders").unwrap();
        let arn = queue_arn(&config, &name);
        assert_eq!(arn, "arn:aws:sqs:us-east-1:000000000000:orders");
        assert_eq!(queue_in_arn(&config, &arn), Some(name));
        for other in [
            "",
            "orders",
            "arn:aws:sqs:us-east-1:000000000000",
            "arn:aws:sqs:us-east-1:000000000000:",
            "arn:aws:sqs:eu-west-1:000000000000:orders",
            "arn:aws:sqs:us-east-1:111111111111:orders",
            "arn:aws:sns:us-east-1:000000000000:orders",
            "arn:aws:sqs:us-east-1:000000000000:orders:x",
        ] {
            assert_eq!(queue_in_arn(&config, other), None, "{other}");
        }
    }
}

//! The names and ARNs of topics and subscriptions.

use lockgate_core::{ExchangeId, ExchangeName};

use super::error::SnsError;
use crate::{
    queue::{allow_policy::arn_parts, kind::FIFO_SUFFIX},
    sqs::{Config, UuidText},
};

/// The longest name of a topic here. AWS allows 256.
const NAME_LEN_MAX: usize = 80;

/// A subscription, as its ARN names it: a binding by numbers that are given out once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SubscriptionName {
    pub(super) topic: ExchangeName,
    pub(super) exchange: ExchangeId,
    pub(super) binding: u32,
}

pub(super) fn is_fifo(topic: &ExchangeName) -> bool {
    topic.as_str().ends_with(FIFO_SUFFIX)
}

/// Checks the name of a topic that is to be made.
pub(super) fn topic_name(name: &str, fifo: bool) -> Result<ExchangeName, SnsError> {
    let plain = match fifo {
        true => name.strip_suffix(FIFO_SUFFIX),
        false => Some(name),
    };
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    plain
        .filter(|plain| !plain.is_empty() && plain.bytes().all(allowed))
        .and_then(|_| ExchangeName::new(name).ok())
        .ok_or_else(|| match (fifo, name.len() > NAME_LEN_MAX) {
            (_, true) => SnsError::invalid(
                "Topic Name",
                Some(format_args!(
                    "Lockgate takes names of up to {NAME_LEN_MAX} characters"
                )),
            ),
            (true, _) => SnsError::parameter(
                "Invalid parameter: Fifo Topic names must end with .fifo and must be made up of only uppercase and \
                 lowercase ASCII letters, numbers, underscores, and hyphens, and must be between 1 and 256 characters long.",
            ),
            (false, _) => SnsError::invalid("Topic Name", None),
        })
}

pub(super) fn topic_arn(config: &Config, topic: &ExchangeName) -> String {
    format!("arn:aws:sns:{}:{}:{topic}", config.region, config.account)
}

/// The topic of this server that an ARN names, whether or not it is there.
pub(super) fn topic_in_arn(
    config: &Config,
    arn: &str,
    parameter: &str,
) -> Result<ExchangeName, SnsError> {
    let resource = resource_in_arn(config, arn, parameter)?;
    ExchangeName::new(resource).map_err(|_| SnsError::no_topic())
}

/// The part of an ARN behind the account, of a topic or subscription of this server.
fn resource_in_arn<'a>(
    config: &Config,
    arn: &'a str,
    parameter: &str,
) -> Result<&'a str, SnsError> {
    let Some([service, region, account, resource]) = arn_parts(arn) else {
        let parts = arn.split(':').count();
        return Err(match parts < 6 {
            true => SnsError::invalid(
                parameter,
                Some(format_args!(
                    "An ARN must have at least 6 elements, not {parts}"
                )),
            ),
            false => SnsError::invalid(parameter, None),
        });
    };
    if service != "sns" || region != config.region {
        return Err(SnsError::invalid(parameter, None));
    }
    match account == config.account {
        true => Ok(resource),
        // There is one account.
        false => Err(SnsError::no_topic()),
    }
}

/// The ARN of a binding.
pub(super) fn subscription_arn(
    config: &Config,
    topic: &ExchangeName,
    exchange: ExchangeId,
    binding: u32,
) -> String {
    let id = UuidText::new(subscription_id(exchange, binding));
    format!("{}:{}", topic_arn(config, topic), id.as_str())
}

/// A UUID of version 8, which allows any content: the numbers of the exchange and of its binding.
fn subscription_id(exchange: ExchangeId, binding: u32) -> u128 {
    (u128::from(exchange.0) << 96) | (0x8000 << 64) | (0x8 << 60) | u128::from(binding)
}

/// What an ARN of a subscription names. `None`: it has the form of one, and none was ever given out like this.
pub(super) fn subscription_in_arn(
    config: &Config,
    arn: &str,
) -> Result<Option<SubscriptionName>, SnsError> {
    let parameter = "SubscriptionArn";
    let resource = resource_in_arn(config, arn, parameter)?;
    let Some((topic, id)) = resource.split_once(':') else {
        return Err(SnsError::invalid("SubscriptionId", None));
    };
    let Ok(topic) = ExchangeName::new(topic) else {
        return Ok(None);
    };
    let number = |text: Option<&str>| u32::from_str_radix(text?, 16).ok();
    let (Some(exchange), Some(binding)) = (number(id.get(..8)), number(id.get(28..))) else {
        return Ok(None);
    };
    let exchange = ExchangeId(exchange);
    let given_out = UuidText::new(subscription_id(exchange, binding));
    Ok((given_out.as_str() == id).then_some(SubscriptionName {
        topic,
        exchange,
        binding,
    }))
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
    fn a_subscription_arn_leads_back_to_its_binding() {
        let topic = ExchangeName::new("orders.fifo").unwrap();
        for (exchange, binding) in [(1, 1), (7, 300), (u32::MAX, u32::MAX)] {
            let arn = subscription_arn(&config(), &topic, ExchangeId(exchange), binding);
            let found = subscription_in_arn(&config(), &arn).unwrap().unwrap();
            let expected = SubscriptionName {
                topic: topic.clone(),
                exchange: ExchangeId(exchange),
                binding,
            };
            assert_eq!(found, expected, "{arn}");
        }
        let arn = subscription_arn(&config(), &topic, ExchangeId(1), 2);
        assert_eq!(
            arn,
            "arn:aws:sns:us-east-1:000000000000:orders.fifo:00000001-0000-8000-8000-000000000002"
        );
        for odd in [
            "arn:aws:sns:us-east-1:000000000000:orders:00000001-0000-4000-8000-000000000002",
            "arn:aws:sns:us-east-1:000000000000:orders:00000001-0000-8000-8000-00000000000",
            "arn:aws:sns:us-east-1:000000000000:orders:+0000001-0000-8000-8000-000000000002",
            "arn:aws:sns:us-east-1:000000000000:orders:00000001-0000-8000-8000-0000000000é2",
            "arn:aws:sns:us-east-1:000000000000:a b:00000001-0000-8000-8000-000000000002",
        ] {
            assert_eq!(subscription_in_arn(&config(), odd), Ok(None), "{odd}");
        }
    }

    #[test]
    fn names_of_topics_follow_the_rules_of_their_kind() {
        for (name, fifo, good) in [
            ("orders", false, true),
            ("orders.fifo", true, true),
            ("orders.fifo", false, false),
            ("orders", true, false),
            (".fifo", true, false),
            ("a.b", false, false),
            ("", false, false),
            ("a b", false, false),
            (&*"x".repeat(80), false, true),
            (&*"x".repeat(81), false, false),
        ] {
            assert_eq!(topic_name(name, fifo).is_ok(), good, "{name} {fifo}");
        }
    }
}

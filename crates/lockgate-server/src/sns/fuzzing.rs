//! The fuzz target for requests of SNS: reads and checks as much as needs no topic.

use std::collections::BTreeMap;

use lockgate_core::ExchangeName;

use super::{arns, form::Form, publish, tags, topic_attributes};
use crate::sqs::Config;

/// Input: the parameters of the URL, a line feed, a form. Without a line feed, all of it is the form.
pub fn sns(bytes: &[u8]) -> Result<(), String> {
    let (query, body) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&[][..], bytes),
    };
    let text = |error: super::SnsError| error.to_string();
    let form = Form::read([query, body]).map_err(text)?;
    let config = Config {
        account: "000000000000".into(),
        region: "us-east-1".into(),
        https: false,
    };
    let mut outcomes = vec![tags::of_form(&form).map(drop)];
    outcomes.extend(publish::checked(&form));
    if let Some(arn) = form.get("SubscriptionArn")
        && let Ok(Some(found)) = arns::subscription_in_arn(&config, arn)
    {
        let arn = arns::subscription_arn(&config, &found.topic, found.exchange, found.binding);
        let again = arns::subscription_in_arn(&config, &arn);
        assert_eq!(again, Ok(Some(found)), "an ARN leads back to what it names");
    }
    let name = arns::topic_in_arn(&config, form.get("TopicArn").unwrap_or(""), "TopicArn");
    let topic = name
        .clone()
        .or_else(|_| arns::topic_name(form.get("Name").unwrap_or("t"), false))
        .or_else(|_| ExchangeName::new("t").map_err(|_| super::SnsError::no_topic()))
        .map_err(text)?;
    for (name, value) in form.map("Attributes.entry", ["key", "value"]) {
        let mut annotations = BTreeMap::new();
        outcomes.push(topic_attributes::set(&mut annotations, &topic, name, value));
    }
    outcomes
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(text)
}

//! Subscribes queues to topics, lists subscriptions, and reads and changes their attributes.

use lockgate_core::{ExchangeId, ExchangeName, QueueName};
use lockgate_engine::EngineError;
use lockgate_machine::{
    Bind, BindTo, BindingDescription, BindingOptions, BindingsPage, ExchangeDescription,
    ListBindings, Pattern, Unbind,
};

use super::{
    Call, Service,
    arns::{self, SubscriptionName},
    error::SnsError,
    form::Form,
    subscription_attributes::{self, Change, FILTER, RAW, REDRIVE, SCOPE},
    topics::{PAGE_MAX, place, token},
    xml::Xml,
};
use crate::{
    auth::Verb,
    queue::kind::{Kind, kind_of},
    sqs,
};

/// AWS's protocols that Lockgate does not have.
const OTHER_PROTOCOLS: [&str; 8] = [
    "http",
    "https",
    "email",
    "email-json",
    "sms",
    "application",
    "lambda",
    "firehose",
];

/// How many topics are looked at for one page of the subscriptions of all.
const TOPICS_MAX: usize = 200;

/// A subscription that is there.
struct Found {
    topic: ExchangeDescription,
    queue: QueueName,
    binding: BindingDescription,
}

impl Service {
    /// Subscribes a queue. Does nothing if it is subscribed with the same attributes.
    pub(super) async fn subscribe(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let protocol = form.required("Protocol")?;
        if OTHER_PROTOCOLS.contains(&protocol) {
            return Err(SnsError::invalid(
                "Protocol",
                Some(format_args!(
                    "Lockgate delivers to queues only, by the protocol sqs, and not by {protocol}: have a worker \
                     receive from a queue and pass messages on"
                )),
            ));
        }
        if protocol != "sqs" {
            return Err(SnsError::parameter(format!(
                "Invalid parameter: Amazon SNS does not support this protocol string: {protocol:.100}"
            )));
        }
        let topic = self.topic(call, Verb::Manage, &name).await?;
        let queue = self.endpoint(call, &name, form.required("Endpoint")?)?;
        let change = Change {
            service: self,
            call,
            topic: &name,
            queue: &queue,
            prefix: "Invalid parameter: Attributes Reason: ",
        };
        let mut options = BindingOptions {
            envelope: Some(change.envelope()),
            ..BindingOptions::default()
        };
        let attributes = form.map("Attributes.entry", ["key", "value"]);
        let given = attributes.iter().map(|(name, value)| (*name, *value));
        change.apply(&mut options, given.clone())?;
        let _alone = self.changes.lock().await;
        let bind = Bind {
            exchange: name.clone(),
            to: BindTo::Queue(queue.clone()),
            pattern: Pattern::Everything,
            options: options.clone(),
            keep: true,
        };
        let bound = self.engine.submit(bind).await?;
        if bound.existed {
            let found = self.binding(&name, bound.binding).await?;
            let mut as_asked = found.options.clone();
            change.apply(&mut as_asked, given)?;
            if as_asked != found.options {
                let reason = format_args!("Subscription already exists with different attributes");
                return Err(SnsError::invalid("Attributes", Some(reason)));
            }
        }
        let arn = arns::subscription_arn(&self.config, &name, topic.id, bound.binding);
        let mut xml = Xml::default();
        xml.leaf("SubscriptionArn", &arn);
        Ok(xml)
    }

    /// The queue that an endpoint names, if the caller may have messages sent there and the topic may lead to it.
    fn endpoint(
        &self,
        call: &Call<'_>,
        topic: &ExchangeName,
        endpoint: &str,
    ) -> Result<QueueName, SnsError> {
        let name = sqs::queue_in_arn(&self.config, endpoint)
            .ok_or_else(|| SnsError::parameter("Invalid parameter: SQS endpoint ARN"))?;
        let missing = || {
            let reason = format_args!("The queue {name} does not exist");
            SnsError::invalid("Endpoint", Some(reason))
        };
        if !call.may_with_queue(Verb::Send, &name) {
            return Err(match call.may_with_queue(Verb::Read, &name) {
                true => call.denied(Verb::Send, format_args!("to the queue {name}")),
                false => missing(),
            });
        }
        let queue = self.engine.directory().get(&name).ok_or_else(missing)?;
        match kind_of(&queue.settings) {
            Kind::Fifo if !arns::is_fifo(topic) => Err(SnsError::parameter(
                "Invalid parameter: Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to \
                 standard SNS topics",
            )),
            _ => Ok(name),
        }
    }

    /// A binding of a topic by its number.
    async fn binding(
        &self,
        topic: &ExchangeName,
        number: u32,
    ) -> Result<BindingDescription, SnsError> {
        let list = ListBindings {
            exchange: topic.clone(),
            after: number.checked_sub(1),
            limit: 1,
        };
        let BindingsPage { bindings, .. } = self.engine.query(list).await?;
        let mut found = bindings.into_iter();
        let found = found.find(|binding| binding.number == number);
        found.ok_or_else(SnsError::no_subscription)
    }

    /// The subscription that the request names, if the caller may do `verb` with its topic.
    async fn subscription(
        &self,
        call: &Call<'_>,
        verb: Verb,
        form: &Form<'_>,
    ) -> Result<Found, SnsError> {
        let arn = form.required("SubscriptionArn")?;
        let named = arns::subscription_in_arn(&self.config, arn)?;
        let SubscriptionName {
            topic,
            exchange,
            binding,
        } = named.ok_or_else(SnsError::no_subscription)?;
        let topic = self.topic(call, verb, &topic).await;
        let topic = topic.map_err(|error| match error == SnsError::no_topic() {
            true => SnsError::no_subscription(),
            false => error,
        })?;
        if topic.id != exchange {
            return Err(SnsError::no_subscription());
        }
        let binding = self.binding(&topic.name, binding).await?;
        match queue_of(&binding) {
            Some(queue) => Ok(Found {
                queue: queue.clone(),
                topic,
                binding,
            }),
            None => Err(SnsError::no_subscription()),
        }
    }

    /// Ends a subscription. One that is not there is ended already.
    pub(super) async fn unsubscribe(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let _alone = self.changes.lock().await;
        let found = match self.subscription(call, Verb::Manage, form).await {
            Ok(found) => found,
            Err(error) if error == SnsError::no_subscription() => return Ok(()),
            Err(error) => return Err(error),
        };
        let unbind = Unbind {
            exchange: found.topic.name,
            to: BindTo::Queue(found.queue),
            pattern: Pattern::Everything,
        };
        self.engine.submit(unbind).await?;
        Ok(())
    }

    pub(super) async fn get_subscription_attributes(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let found = self.subscription(call, Verb::Read, form).await?;
        let config = &self.config;
        let options = &found.binding.options;
        let name = &found.topic.name;
        let arn = arns::subscription_arn(config, name, found.topic.id, found.binding.number);
        let is_raw = options.envelope.is_none().to_string();
        let mut attributes = vec![
            ("SubscriptionArn", arn),
            ("TopicArn", arns::topic_arn(config, name)),
            ("Protocol", "sqs".to_owned()),
            ("Endpoint", sqs::queue_arn(config, &found.queue)),
            ("Owner", config.account.clone()),
            ("PendingConfirmation", "false".to_owned()),
            ("ConfirmationWasAuthenticated", "true".to_owned()),
            (RAW, is_raw),
        ];
        if let Some(filter) = &options.filter {
            attributes.push((FILTER, filter.text().to_owned()));
            let scope = subscription_attributes::scope_name(filter);
            attributes.push((SCOPE, scope.to_owned()));
        }
        if let Some(queue) = &options.overflow {
            let policy = subscription_attributes::redrive_policy(config, queue);
            attributes.push((REDRIVE, policy));
        }
        Ok(Xml::of_attributes(attributes))
    }

    pub(super) async fn set_subscription_attributes(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let attribute = form.required("AttributeName")?;
        let value = form.get("AttributeValue").unwrap_or("");
        let _alone = self.changes.lock().await;
        let found = self.subscription(call, Verb::Manage, form).await?;
        let mut options = found.binding.options;
        let change = Change {
            service: self,
            call,
            topic: &found.topic.name,
            queue: &found.queue,
            prefix: "Invalid parameter: ",
        };
        change.apply(&mut options, [(attribute, value)])?;
        let bind = Bind {
            exchange: found.topic.name.clone(),
            to: BindTo::Queue(found.queue.clone()),
            pattern: Pattern::Everything,
            options,
            keep: false,
        };
        self.engine.submit(bind).await?;
        Ok(())
    }

    pub(super) async fn list_subscriptions_by_topic(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let after = match form.get("NextToken") {
            None => None,
            Some(token) => {
                let after = place(token)?.parse();
                Some(after.map_err(|_| SnsError::invalid("NextToken", None))?)
            }
        };
        let topic = self.topic(call, Verb::Read, &name).await?;
        let list = ListBindings {
            exchange: name,
            after,
            limit: PAGE_MAX,
        };
        let BindingsPage { bindings, next } = self.engine.query(list).await?;
        let mut xml = Xml::default();
        xml.open("Subscriptions");
        for binding in &bindings {
            self.write_subscription(&mut xml, (&topic.name, topic.id), binding);
        }
        xml.close("Subscriptions");
        xml.optional(
            "NextToken",
            next.map(|next| token(&next.to_string())).as_deref(),
        );
        Ok(xml)
    }

    /// The subscriptions of all topics. A page may have fewer than it could.
    pub(super) async fn list_subscriptions(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let begin = form.get("NextToken").map(place_of_token).transpose()?;
        let mut xml = Xml::default();
        xml.open("Subscriptions");
        let mut left = PAGE_MAX;
        let mut next = None;
        let (mut after, mut topics) = (None, Vec::new());
        // The rest of the topic at which the page before ended comes first.
        if let Some((name, number)) = begin {
            match self.topic(call, Verb::Read, &name).await {
                Ok(topic) => topics.push((topic, Some(number))),
                // It may have been deleted since, or may not be read any more.
                Err(error) if !error.is_servers() => {}
                Err(error) => return Err(error),
            }
            after = Some(name);
        }
        let mut behind = self.topics(call, after, TOPICS_MAX).await?;
        let are_more = behind.len() > TOPICS_MAX;
        behind.truncate(TOPICS_MAX);
        topics.extend(behind.into_iter().map(|topic| (topic, None)));
        let last = topics.last().map(|(topic, _)| topic.name.clone());
        for (topic, after) in topics {
            if topic.bindings == 0 {
                continue;
            }
            let list = ListBindings {
                exchange: topic.name.clone(),
                after,
                limit: left,
            };
            let page = match self.engine.query(list).await {
                Ok(page) => page,
                // It may have been deleted since.
                Err(EngineError::Rejected(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            for binding in &page.bindings {
                self.write_subscription(&mut xml, (&topic.name, topic.id), binding);
            }
            left -= page.bindings.len();
            if page.next.is_some() || left == 0 {
                let at = page.bindings.last().map(|binding| binding.number);
                next = page.next.or(at).map(|number| (topic.name, number));
                break;
            }
        }
        let next = next.or_else(|| last.filter(|_| are_more).map(|last| (last, u32::MAX)));
        xml.close("Subscriptions");
        let next = next.map(|(topic, number)| token(&format!("{topic}/{number}")));
        xml.optional("NextToken", next.as_deref());
        Ok(xml)
    }

    fn write_subscription(
        &self,
        xml: &mut Xml,
        (topic, exchange): (&ExchangeName, ExchangeId),
        binding: &BindingDescription,
    ) {
        let Some(queue) = queue_of(binding) else {
            return;
        };
        let config = &self.config;
        let arn = arns::subscription_arn(config, topic, exchange, binding.number);
        xml.open("member");
        xml.leaf("SubscriptionArn", &arn);
        xml.leaf("Owner", &config.account);
        xml.leaf("Protocol", "sqs");
        xml.leaf("Endpoint", &sqs::queue_arn(config, queue));
        xml.leaf("TopicArn", &arns::topic_arn(config, topic));
        xml.close("member");
    }
}

/// The queue of a binding that is a subscription: bindings to other exchanges are none.
fn queue_of(binding: &BindingDescription) -> Option<&QueueName> {
    match &binding.to {
        BindTo::Queue(queue) => Some(queue),
        BindTo::Exchange(_) => None,
    }
}

fn place_of_token(token: &str) -> Result<(ExchangeName, u32), SnsError> {
    let invalid = || SnsError::invalid("NextToken", None);
    let place = place(token)?;
    let (topic, number) = place.split_once('/').ok_or_else(invalid)?;
    let topic = ExchangeName::new(topic).map_err(|_| invalid())?;
    Ok((topic, number.parse().map_err(|_| invalid())?))
}

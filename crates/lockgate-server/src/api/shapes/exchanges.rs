//! Shapes of exchanges.

use std::collections::BTreeMap;
use std::fmt;

use lockgate_machine::HeadersMatch;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{super::problem::Problem, Encoding, HeaderValue, Instant, OutgoingMessage, Within};
use crate::{
    few::{Few, FewByName, Raw},
    queue::HEADERS_MAX,
};

/// Which exchanges a list shows.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListExchanges {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Some exchanges.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Exchanges {
    /// In order of their names; may be empty.
    pub(crate) exchanges: Vec<ExchangeView>,
    /// The next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// How an exchange chooses the bindings that a message matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExchangeKindWord {
    /// Those whose routing key is that of the message.
    Direct,
    /// Those whose topic matches the routing key of the message.
    Topic,
    /// All.
    Fanout,
    /// Those whose headers the message has.
    Headers,
}

/// What becomes of a message for which an exchange finds no queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnroutableWord {
    /// The publish is refused.
    #[default]
    Reject,
    /// The publish succeeds. The message goes nowhere, and is counted.
    Drop,
    /// The message goes to the exchange of this name.
    Alternate(String),
}

/// An exchange to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateExchange {
    /// Its name: 1 to 80 of ASCII letters, digits, `-`, `_` and `.`.
    pub(crate) name: String,
    /// How it chooses bindings. It stays so.
    pub(crate) kind: ExchangeKindWord,
    /// What becomes of a message for which it finds no queue. Default `reject`.
    #[serde(default)]
    pub(crate) unroutable: UnroutableWord,
}

/// A change of an exchange.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeExchange {
    /// What becomes of a message for which it finds no queue.
    pub(crate) unroutable: UnroutableWord,
}

/// How to delete an exchange.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteExchange {
    /// Also if other exchanges lead to it. Their bindings to it go, and those whose alternate it is refuse what they
    /// cannot route. Default: no.
    #[serde(default)]
    pub(crate) force: bool,
}

/// An exchange.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ExchangeView {
    /// Its name.
    pub(crate) name: String,
    /// How it chooses bindings.
    pub(crate) kind: ExchangeKindWord,
    /// What becomes of a message for which it finds no queue.
    pub(crate) unroutable: UnroutableWord,
    /// When it was made.
    pub(crate) created_at: Instant,
    /// When `unroutable` last changed.
    pub(crate) changed_at: Instant,
    /// How many bindings it has.
    pub(crate) bindings: u64,
    /// What became of the messages that were published to it, since it was made.
    pub(crate) counts: ExchangeCounts,
}

/// What became of the messages that were published to an exchange. Messages that came by way of another exchange count
/// there.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ExchangeCounts {
    /// Messages that were accepted.
    pub(crate) published: u64,
    /// Messages that queues got of them.
    pub(crate) copies: u64,
    /// Of the accepted ones, those for which it found no queue: they went to its alternate, or were dropped.
    pub(crate) unroutable: u64,
    /// Of these, those that were dropped.
    pub(crate) dropped: u64,
    /// Queues that were left out because they were full and their binding says so.
    pub(crate) skipped: u64,
    /// Publishes that were refused because there was no queue. Since the last start of the server.
    pub(crate) refused: u64,
}

/// Which bindings a list shows.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListBindings {
    /// How many at most, 1 to 1000. Default 100. A page ends earlier with the binding that takes its texts to 4 MiB.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Some bindings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Bindings {
    /// In the order in which they were made; may be empty although there is a next page.
    pub(crate) bindings: Vec<BindingView>,
    /// The next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Where a binding leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum BindToWord {
    /// The queue of this name gets a copy of each message that matches.
    Queue(String),
    /// The exchange of this name routes each message that matches on.
    Exchange(String),
}

/// What becomes the key of a queue's copy: its key where the queue is keyed, its group elsewhere. A message without
/// such a header, or with an empty routing key, keeps the key or group that it was published with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyFromWord {
    /// The routing key.
    RoutingKey,
    /// The value of the header with this name.
    Header(String),
}

/// What a filter looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum FilterScopeWord {
    /// The headers of a message, by their names.
    #[default]
    Headers,
    /// The body of a message, as JSON.
    Body,
}

/// How many of the headers a message must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum MatchWord {
    /// Each of them.
    All,
    /// One of them.
    Any,
}

/// Headers of which a message must have all, or any.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HeadersMatchInput {
    /// How many of them.
    #[serde(rename = "match")]
    pub(crate) how: MatchWord,
    /// Values by the names of headers, up to 32 in all.
    pub(crate) pairs: FewByName<WantedValues, { HeadersMatch::PAIRS_MAX }>,
}

/// Headers of which a message must have all, or any.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HeadersMatched {
    /// How many of them.
    #[serde(rename = "match")]
    pub(crate) how: MatchWord,
    /// Values by the names of headers.
    pub(crate) pairs: BTreeMap<String, WantedValues>,
}

/// The values of one header: one value, or `null` for any, or a list of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedValues(pub(crate) Vec<Option<String>>);

impl Serialize for WantedValues {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WantedValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> Visitor<'de> for Values {
            type Value = WantedValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, null, or a list of these")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(WantedValues(vec![None]))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(WantedValues(vec![Some(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    if values.len() == HeadersMatch::PAIRS_MAX {
                        return Err(de::Error::custom(format_args!(
                            "there may be up to {}, and there are more",
                            HeadersMatch::PAIRS_MAX
                        )));
                    }
                    values.push(value);
                }
                match values.is_empty() {
                    true => Err(de::Error::custom("the list is empty")),
                    false => Ok(WantedValues(values)),
                }
            }
        }

        deserializer.deserialize_any(Values)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for WantedValues {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WantedValues".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The values of one header: one value, or `null` for any, or a list of these.",
            "anyOf": [
                {"type": ["string", "null"]},
                {"type": "array", "items": {"type": ["string", "null"]}},
            ],
        })
    }
}

/// A filter policy of Amazon SNS: a JSON object.
#[derive(Debug, Deserialize)]
#[serde(transparent, bound(deserialize = "'de: 'a"))]
pub(crate) struct Policy<'a>(pub(crate) Raw<'a>);

/// A filter policy of Amazon SNS, as it was given.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct PolicyText(pub(crate) Box<RawValue>);

#[cfg(test)]
mod policy_schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Policy, PolicyText};

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": {},
            "description": "A filter policy of Amazon SNS.",
        })
    }

    impl JsonSchema for Policy<'_> {
        fn schema_name() -> Cow<'static, str> {
            "FilterPolicy".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            schema()
        }
    }

    impl JsonSchema for PolicyText {
        fn schema_name() -> Cow<'static, str> {
            "FilterPolicy".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            schema()
        }
    }
}

/// A binding to make. If the exchange has one to the same place by the same pattern, the rest of it is replaced.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct Bind<'a> {
    /// Where it leads.
    pub(crate) to: BindToWord,
    /// Of an exchange of kind `direct`: messages with this routing key.
    #[serde(default)]
    pub(crate) routing_key: Option<String>,
    /// Of an exchange of kind `topic`: messages whose routing key has these words, between dots. `*` stands for any one word,
    /// `#` for any number of words.
    #[serde(default)]
    pub(crate) topic: Option<String>,
    /// Of an exchange of kind `headers`: messages with these headers.
    #[serde(default)]
    pub(crate) headers: Option<HeadersMatchInput>,
    /// Only messages that this filter policy of Amazon SNS matches. Default: all.
    #[serde(default)]
    pub(crate) filter: Option<Policy<'a>>,
    /// What `filter` looks at. Default `headers`.
    #[serde(default)]
    pub(crate) filter_scope: Option<FilterScopeWord>,
    /// What becomes the key of the queue's copy. Default: the key or group that the message was published with.
    #[serde(default)]
    pub(crate) key_from: Option<KeyFromWord>,
    /// Whether the queue is left out, and counted, where it is full. Default: the publish is refused then.
    #[serde(default)]
    pub(crate) skip_when_full: bool,
    /// The topic in whose name the queue's copies are wrapped, as Amazon SNS wraps a message for a queue; up to 256 bytes.
    /// Default: copies are as they were published.
    #[serde(default)]
    pub(crate) envelope: Option<String>,
    /// The queue that gets what the queue does not take because it is full, or because the copy is too large for it.
    #[serde(default)]
    pub(crate) overflow: Option<String>,
}

/// What a bind did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Bound {
    /// The number of the binding in its exchange: a later one is higher.
    pub(crate) number: u32,
    /// Whether there was a binding of this pattern to this place.
    pub(crate) existed: bool,
    /// Whether anything was changed.
    pub(crate) changed: bool,
}

/// A binding to remove, by the place to which it leads and its pattern.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Unbind {
    /// Where it leads.
    pub(crate) to: BindToWord,
    /// Its routing key, of an exchange of kind `direct`.
    #[serde(default)]
    pub(crate) routing_key: Option<String>,
    /// Its topic, of an exchange of kind `topic`.
    #[serde(default)]
    pub(crate) topic: Option<String>,
    /// Its headers, of an exchange of kind `headers`.
    #[serde(default)]
    pub(crate) headers: Option<HeadersMatchInput>,
}

/// What an unbind did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Unbound {
    /// Whether there was such a binding.
    pub(crate) existed: bool,
}

/// A binding of an exchange.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct BindingView {
    /// Its number in the exchange: a later one is higher.
    pub(crate) number: u32,
    /// Where it leads.
    pub(crate) to: BindToWord,
    /// The routing key that it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) routing_key: Option<String>,
    /// The topic that it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<String>,
    /// The headers that it matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<HeadersMatched>,
    /// Only messages that this filter policy matches; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<PolicyText>,
    /// What the filter looks at; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) filter_scope: Option<FilterScopeWord>,
    /// What becomes the key of the queue's copy; absent: the key that the message was published with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_from: Option<KeyFromWord>,
    /// Whether the queue is left out where it is full.
    pub(crate) skip_when_full: bool,
    /// The topic in whose name the queue's copies are wrapped, as Amazon SNS wraps a message for a queue; up to 256 bytes.
    /// Absent: copies are as they were published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) envelope: Option<String>,
    /// The queue that gets what the queue does not take because it is full, or because the copy is too large for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overflow: Option<String>,
}

/// Messages to publish.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct PublishMessages<'a> {
    /// 1 to 1000 messages.
    pub(crate) messages: Few<'a, PublishInput>,
}

/// A message to publish.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishInput {
    /// By what exchanges of kinds direct and topic route it: up to 255 bytes. Default: the empty text.
    #[serde(default)]
    pub(crate) routing_key: String,
    /// The message. Its key or group becomes the key of a copy in a keyed queue, and the group elsewhere, unless the
    /// binding says otherwise. It has no `producer`.
    pub(crate) message: OutgoingMessage,
}

/// The results of a publish.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PublishResults {
    /// One result for each message, in order.
    pub(crate) results: Vec<PublishResult>,
}

/// The result for a message that was to be published.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum PublishResult {
    /// The message was accepted: each queue that it was routed to has it.
    Published(PublishedMessage),
    /// The message was not accepted, and no queue has got it.
    Refused {
        /// The reason.
        problem: Box<Problem>,
    },
}

/// A message that was published.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PublishedMessage {
    /// How many queues have it now.
    pub(crate) copies: u64,
    /// Of these, those that knew its unique id, so that nothing was added.
    pub(crate) duplicates: u64,
    /// How many queues were left out, because they were full and their binding says so.
    pub(crate) skipped: u64,
    /// Whether there was no queue, and the exchange drops such messages.
    pub(crate) dropped: bool,
    /// The first copies, up to 10, in queues that the caller may read.
    pub(crate) queues: Vec<QueueCopy>,
}

/// The copy of a message in a queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct QueueCopy {
    /// The queue's name.
    pub(crate) queue: String,
    /// The id of the message there.
    pub(crate) id: String,
    /// Its number there.
    pub(crate) sequence: u64,
    /// Whether the queue knew its unique id: then `id` and `sequence` are those of the first message.
    pub(crate) duplicate: bool,
}

/// A message whose route is to be explained. Nothing is published.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainRoute {
    /// Its routing key. Default: the empty text.
    #[serde(default)]
    pub(crate) routing_key: String,
    /// Its headers, up to 10.
    #[serde(default)]
    pub(crate) headers: FewByName<HeaderValue, HEADERS_MAX>,
    /// Its body, in the encoding that `body_encoding` names. Without one, filters on the body do not match, and say so.
    #[serde(default)]
    pub(crate) body: Option<String>,
    /// The encoding of `body`. Default `text`.
    #[serde(default)]
    pub(crate) body_encoding: Encoding,
    /// How many bindings to show, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
}

/// Where a message would go, and why.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RouteExplanation {
    /// The bindings whose pattern it matches, in the order in which they are looked at.
    pub(crate) bindings: Vec<RouteStep>,
    /// How many further ones there are.
    pub(crate) more: u64,
    /// How many queues would get it.
    pub(crate) queues: u64,
    /// The alternates behind the exchange that have to look, because no queue was found, in order.
    pub(crate) alternates: Vec<String>,
    /// No queue would get it, and this is what happens then; absent: one would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unroutable: Option<UnroutableWord>,
}

/// A binding whose pattern a message matches.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RouteStep {
    /// The exchange whose binding it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exchange: Option<String>,
    /// The binding.
    pub(crate) binding: BindingView,
    /// What becomes of the message there.
    pub(crate) outcome: StepWord,
    /// With `filtered`: what of the message the filter does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// What becomes of a message at a binding whose pattern it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepWord {
    /// It goes on to where the binding leads.
    Routes,
    /// It went there before, by another binding.
    Again,
    /// The filter does not match.
    Filtered,
}

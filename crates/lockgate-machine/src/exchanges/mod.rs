//! Exchanges: which bindings a message matches that is published. Pure; `machine/exchanges` decides and folds.
//!
//! - `pattern`: what a binding matches by, and the check of it against one message.
//! - `index`: the bindings of one exchange, so that the ones that match are found without a look at the others.
//!   `topics`: the same for topics, a trie.
//! - `envelope`: the text in which Amazon SNS wraps a message for a queue.
//! - `filter`: the language of filters, which is that of Amazon SNS. `json`: JSON that came with a message.
//!
//! # Invariants
//! - An index finds exactly the bindings whose pattern matches the message.
//! - Finding them takes steps in the number of what is found and in the length of the message, and a bound ends it.

pub(crate) mod envelope;
pub(crate) mod filter;
pub(crate) mod index;
mod json;
pub(crate) mod pattern;
pub(crate) mod reply;
mod spread;
#[cfg(test)]
mod tests;
mod topics;

use std::{cell::OnceCell, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    ExchangeId, ExchangeName, Header, Key, NameError, QueueId, QueueName, RoutingKey,
};

use self::{
    filter::{Attributes, Body, Filter},
    pattern::Pattern,
};

/// How an exchange chooses the bindings that a message matches. The numbers are stored and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ExchangeKind {
    /// Those whose routing key is that of the message.
    Direct = 1,
    /// Those whose topic pattern matches the routing key of the message.
    Topic = 2,
    /// All.
    Fanout = 3,
    /// Those whose headers the message has.
    Headers = 4,
}

impl ExchangeKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Topic, Self::Fanout, Self::Headers];

    /// Its name wherever people read or write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Topic => "topic",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }

    /// The kind with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind with that number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of a message for which an exchange finds no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unroutable<E = ExchangeName> {
    /// The publish is refused.
    #[default]
    Reject,
    /// The publish succeeds. The message goes nowhere, and is counted.
    Drop,
    /// The message goes to this exchange.
    Alternate(E),
}

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindTo<Q = QueueName, E = ExchangeName> {
    /// The queue gets a copy of each message that matches.
    Queue(Q),
    /// The exchange routes each message that matches on.
    Exchange(E),
}

impl<Q: fmt::Display, E: fmt::Display> fmt::Display for BindTo<Q, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Exchange(exchange) => write!(f, "exchange {exchange}"),
        }
    }
}

/// What becomes the ordering key of a queue's copy: its key where the queue is keyed, its group elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFrom {
    /// The routing key.
    RoutingKey,
    /// The value of the header with this name.
    Header(Arc<str>),
}

impl KeyFrom {
    /// The longest name of a header here, in bytes.
    pub const HEADER_BYTES_MAX: usize = 256;

    /// The key that the message gets. `None`: it has no such header, or an empty routing key, and keeps the key it was
    /// published with.
    ///
    /// # Errors
    /// If what is there cannot be a key.
    pub fn key(&self, message: &Published<'_>) -> Result<Option<Key>, NameError> {
        let text = match self {
            Self::RoutingKey => message.routing_key.as_str(),
            Self::Header(name) => {
                let header = message.headers.iter().find(|header| header.name == *name);
                let Some(header) = header else {
                    return Ok(None);
                };
                str::from_utf8(&header.value).map_err(|error| NameError::Character {
                    what: "key",
                    found: char::REPLACEMENT_CHARACTER,
                    at: error.valid_up_to(),
                    allowed: "UTF-8 without control characters",
                })?
            }
        };
        match text {
            "" => Ok(None),
            text => Key::new(text).map(Some),
        }
    }
}

/// What a binding does beside matching. A bind of the same pattern to the same place replaces it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BindingOptions {
    /// Only messages that it matches.
    pub filter: Option<Filter>,
    /// `None`: the copies have the key that the message was published with. Only of a binding to a queue.
    pub key_from: Option<KeyFrom>,
    /// Whether a queue that is full is left out, and counted. Otherwise it makes the publish refuse. Only of a binding to
    /// a queue.
    pub skip_when_full: bool,
    /// The topic in whose name the copies are wrapped, as Amazon SNS wraps a message for a queue: the body is the text of a
    /// notification of it, with the headers inside, and the copy has none itself. `None`: copies are as they were published.
    /// Only of a binding to a queue.
    pub envelope: Option<Arc<str>>,
    /// The queue that gets what the queue does not take because it is full, or because the copy is larger than it allows. One
    /// of that name need not be there; then, or if it does not take the copy either, the binding is as without one. Only of a
    /// binding to a queue.
    pub overflow: Option<QueueName>,
}

impl BindingOptions {
    /// The longest name of a topic, in bytes.
    pub const ENVELOPE_BYTES_MAX: usize = 256;

    /// Of what only a binding to a queue can have, the first that is there.
    #[must_use]
    pub fn only_to_queue(&self) -> Option<&'static str> {
        match self {
            _ if self.key_from.is_some() => Some("a key"),
            _ if self.skip_when_full => Some("skip_when_full"),
            _ if self.envelope.is_some() => Some("envelope"),
            _ if self.overflow.is_some() => Some("overflow"),
            _ => None,
        }
    }
}

/// What an exchange carries for its clients. The machine keeps it, and does nothing by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeNotes {
    /// What a protocol keeps of it, by name.
    pub annotations: BTreeMap<String, String>,
    /// What its users say of it.
    pub tags: BTreeMap<String, String>,
}

impl ExchangeNotes {
    /// The most that names and values of both take together.
    pub const BYTES_MAX: u64 = 256 << 10;

    /// What its names and values take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let all = self.annotations.iter().chain(&self.tags);
        all.map(|(name, value)| (name.len() + value.len()) as u64)
            .sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.tags.is_empty()
    }
}

/// A binding as it is stored. What it leads to and its pattern say which one it is: an exchange has one of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub to: BindTo<QueueId, ExchangeId>,
    pub pattern: Pattern,
    pub options: BindingOptions,
}

impl Binding {
    /// What a binding takes of the memory of exchanges beside its texts.
    const OVERHEAD: u64 = 768;

    /// What it takes of the memory of exchanges, no less than what is allocated for it (`tests/bindings.rs`): 768 bytes,
    /// twice its pattern with 64 bytes for each word or header of it, and its filter as text and in its compact form.
    pub(crate) fn bytes(&self) -> u64 {
        let BindingOptions {
            filter,
            key_from,
            skip_when_full: _,
            envelope,
            overflow,
        } = &self.options;
        let filter = filter.as_ref().map_or(0, Filter::bytes);
        let key_from = match key_from {
            Some(KeyFrom::Header(name)) => name.len(),
            Some(KeyFrom::RoutingKey) | None => 0,
        };
        let envelope = envelope.as_ref().map_or(0, |topic| topic.len());
        let overflow = overflow.as_ref().map_or(0, |queue| queue.as_str().len());
        let texts = key_from + envelope + overflow;
        Self::OVERHEAD + filter + (2 * self.pattern.bytes() + texts) as u64
    }

    /// What its texts take in an image.
    pub(crate) fn image_bytes(&self) -> u64 {
        let filter = self.options.filter.as_ref();
        let filter = filter.map_or(0, |filter| filter.text().len());
        let key_from = match &self.options.key_from {
            Some(KeyFrom::Header(name)) => name.len(),
            Some(KeyFrom::RoutingKey) | None => 0,
        };
        let envelope = self
            .options
            .envelope
            .as_ref()
            .map_or(0, |topic| topic.len());
        let overflow = self.options.overflow.as_ref();
        let overflow = overflow.map_or(0, |queue| queue.as_str().len());
        (self.pattern.text_bytes() + filter + key_from + envelope + overflow) as u64
    }
}

/// A message on its way through exchanges. What filters need of it is prepared once, when the first of them needs it.
#[derive(Debug)]
pub struct Published<'a> {
    pub routing_key: &'a RoutingKey,
    pub headers: &'a [Header],
    /// `None`: it is not known, so no filter on the body matches. Only who explains a route may leave it out.
    pub body: Option<&'a Bytes>,
    attributes: OnceCell<Attributes<'a>>,
    parsed: OnceCell<Body<'a>>,
}

impl<'a> Published<'a> {
    /// A message with that routing key, headers and body.
    #[must_use]
    pub fn new(
        routing_key: &'a RoutingKey,
        headers: &'a [Header],
        body: Option<&'a Bytes>,
    ) -> Self {
        Self {
            routing_key,
            headers,
            body,
            attributes: OnceCell::new(),
            parsed: OnceCell::new(),
        }
    }

    fn attributes(&self) -> &Attributes<'a> {
        self.attributes.get_or_init(|| Attributes::of(self.headers))
    }

    fn parsed(&self) -> &Body<'a> {
        self.parsed
            .get_or_init(|| Body::of(self.body.map(|body| &body[..])))
    }
}

/// How many steps a route may still take. A step is a word, a header, a value or 64 bytes of text that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps(u64);

/// A route takes more steps than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManySteps;

impl Steps {
    pub(crate) const fn new(steps: u64) -> Self {
        Self(steps)
    }

    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), TooManySteps> {
        self.0 = self.0.checked_sub(steps as u64).ok_or(TooManySteps)?;
        Ok(())
    }

    /// How many are left.
    pub(crate) fn left(self) -> u64 {
        self.0
    }

    /// Spends what it takes to go through that text.
    pub(crate) fn spend_text(&mut self, text: &str) -> Result<(), TooManySteps> {
        self.spend(1 + text.len() / 64)
    }
}

//! What a binding matches by.

use std::{fmt, sync::Arc};

use lockgate_core::{Header, NameError, RoutingKey};

use super::{ExchangeKind, Published};

/// What a message must have for a binding to match it. Each kind of exchange takes its own kind of pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Pattern {
    /// This routing key: of an exchange of kind [`Direct`](ExchangeKind::Direct).
    RoutingKey(RoutingKey),
    /// A routing key with these words: of an exchange of kind [`Topic`](ExchangeKind::Topic).
    Topic(TopicPattern),
    /// Nothing: of an exchange of kind [`Fanout`](ExchangeKind::Fanout).
    Everything,
    /// These headers: of an exchange of kind [`Headers`](ExchangeKind::Headers).
    Headers(Arc<HeadersMatch>),
}

impl Pattern {
    /// The kind of exchange that takes it.
    #[must_use]
    pub fn kind(&self) -> ExchangeKind {
        match self {
            Self::RoutingKey(_) => ExchangeKind::Direct,
            Self::Topic(_) => ExchangeKind::Topic,
            Self::Everything => ExchangeKind::Fanout,
            Self::Headers(_) => ExchangeKind::Headers,
        }
    }

    /// Bytes of its texts, and 64 for each word of a topic and for each header.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::RoutingKey(key) => key.as_str().len(),
            Self::Topic(pattern) => pattern.as_str().len() + 64 * pattern.0.words().count(),
            Self::Everything => 0,
            Self::Headers(wanted) => wanted.pairs.iter().map(HeaderPair::bytes).sum(),
        }
    }

    /// Bytes of its texts.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::RoutingKey(key) => key.as_str().len(),
            Self::Topic(pattern) => pattern.as_str().len(),
            Self::Everything => 0,
            Self::Headers(wanted) => {
                let pairs = wanted.pairs.iter();
                let value = |pair: &HeaderPair| pair.value.as_ref().map_or(0, |value| value.len());
                pairs.map(|pair| pair.name.len() + value(pair)).sum()
            }
        }
    }

    /// Whether the message has what it says. This looks at one pattern; an index finds those that match.
    #[must_use]
    pub fn matches(&self, message: &Published<'_>) -> bool {
        match self {
            Self::RoutingKey(key) => key == message.routing_key,
            Self::Topic(pattern) => pattern.matches(message.routing_key),
            Self::Everything => true,
            Self::Headers(wanted) => wanted.matches(message.headers),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoutingKey(key) => write!(f, "routing key `{key}`"),
            Self::Topic(pattern) => write!(f, "topic `{pattern}`"),
            Self::Everything => f.write_str("everything"),
            Self::Headers(wanted) => write!(f, "{wanted}"),
        }
    }
}

/// A pattern for the words of a routing key: `orders.*.eu`, `orders.#`. `*` stands for any one word, `#` for any number of
/// words, also none. Both stand alone between dots, anywhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicPattern(RoutingKey);

/// A word of a topic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopicWord<'a> {
    /// This word.
    Literal(&'a str),
    /// Any one word.
    One,
    /// Any number of words.
    Any,
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It cannot be a routing key either.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A word has `*` or `#` beside other characters.
    #[error(
        "word {word} of a topic pattern has a `*` or `#` beside other characters: each stands alone between dots, `*` for one \
         word and `#` for any number of words"
    )]
    Wildcard {
        /// Which word, from 1.
        word: usize,
    },
    /// A match of headers has none, or too many.
    #[error("a match of headers names 1 to {max} headers, this one has {len}")]
    Headers {
        /// How many it has.
        len: usize,
        /// The most.
        max: usize,
    },
    /// A match of headers has one header twice.
    #[error("a match of headers names the header {name:?} twice with the same value")]
    HeaderTwice {
        /// The header's name.
        name: Arc<str>,
    },
    /// A name or value of a header is too long, or a name is empty.
    #[error("the {what} of header {index} of a match has {min} to {max} bytes, this one has {len}")]
    HeaderLength {
        /// `name` or `value`.
        what: &'static str,
        /// Which header, from 1.
        index: usize,
        /// Its length.
        len: usize,
        /// The shortest.
        min: usize,
        /// The longest.
        max: usize,
    },
}

impl TopicPattern {
    /// Checks a text and makes it a pattern.
    ///
    /// # Errors
    /// If it is longer than a routing key can be, or has `*` or `#` within a word.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let pattern = Self(RoutingKey::new(text)?);
        let has_wildcard = |word: &str| word.len() > 1 && word.contains(['*', '#']);
        let wrong = pattern.0.words().position(has_wildcard);
        wrong.map_or(Ok(pattern), |index| {
            Err(PatternError::Wildcard { word: index + 1 })
        })
    }

    /// Returns the pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Its words, where several `#` in a row are one.
    pub(super) fn words(&self) -> impl Iterator<Item = TopicWord<'_>> {
        let mut last_is_any = false;
        self.0.words().filter_map(move |word| {
            let word = match word {
                "*" => TopicWord::One,
                "#" => TopicWord::Any,
                literal => TopicWord::Literal(literal),
            };
            let is_any = word == TopicWord::Any;
            let again = std::mem::replace(&mut last_is_any, is_any) && is_any;
            (!again).then_some(word)
        })
    }

    /// Whether the words of the routing key are those of the pattern. Takes time in the product of both lengths at most.
    #[must_use]
    pub fn matches(&self, routing_key: &RoutingKey) -> bool {
        let pattern: Vec<_> = self.words().collect();
        let words: Vec<_> = routing_key.words().collect();
        let (mut at, mut word) = (0, 0);
        // Where the last `#` is, and how many words it has taken. What it took first is enough for all before it.
        let mut last_any: Option<(usize, usize)> = None;
        while word < words.len() {
            match pattern.get(at) {
                Some(TopicWord::Any) => {
                    last_any = Some((at, word));
                    at += 1;
                }
                Some(TopicWord::One) => (at, word) = (at + 1, word + 1),
                Some(TopicWord::Literal(literal)) if *literal == words[word] => {
                    (at, word) = (at + 1, word + 1);
                }
                _ => {
                    let Some((any, taken)) = last_any else {
                        return false;
                    };
                    last_any = Some((any, taken + 1));
                    (at, word) = (any + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|word| *word == TopicWord::Any)
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A header that a message must have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderPair {
    pub name: Arc<str>,
    /// `None`: whatever its value is.
    pub value: Option<Arc<str>>,
}

impl HeaderPair {
    fn bytes(&self) -> usize {
        64 + self.name.len() + self.value.as_ref().map_or(0, |value| value.len())
    }

    /// Whether one of these headers has its name and value.
    pub(super) fn is_in(&self, headers: &[Header]) -> bool {
        headers.iter().any(|header| {
            let has_value = |value: &Arc<str>| header.value == value.as_bytes();
            header.name == self.name && self.value.as_ref().is_none_or(has_value)
        })
    }
}

/// Headers of which a message must have all, or any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadersMatch {
    is_any: bool,
    /// In order, each once.
    pairs: Vec<HeaderPair>,
}

impl HeadersMatch {
    /// The most headers.
    pub const PAIRS_MAX: usize = 32;

    /// The longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 256;

    /// The longest value, in bytes.
    pub const VALUE_BYTES_MAX: usize = 1_024;

    /// A match of all of these headers.
    ///
    /// # Errors
    /// If there are none or too many, one is there twice, or a text is too long.
    pub fn all(pairs: Vec<HeaderPair>) -> Result<Self, PatternError> {
        Self::checked(false, pairs)
    }

    /// A match of any of these headers.
    ///
    /// # Errors
    /// If there are none or too many, one is there twice, or a text is too long.
    pub fn any(pairs: Vec<HeaderPair>) -> Result<Self, PatternError> {
        Self::checked(true, pairs)
    }

    pub(crate) fn checked(is_any: bool, mut pairs: Vec<HeaderPair>) -> Result<Self, PatternError> {
        let (len, max) = (pairs.len(), Self::PAIRS_MAX);
        if !(1..=max).contains(&len) {
            return Err(PatternError::Headers { len, max });
        }
        for (index, pair) in (1..).zip(&pairs) {
            let check = |what, len: usize, min, max| match (min..=max).contains(&len) {
                true => Ok(()),
                false => Err(PatternError::HeaderLength {
                    what,
                    index,
                    len,
                    min,
                    max,
                }),
            };
            check("name", pair.name.len(), 1, Self::NAME_BYTES_MAX)?;
            let value = pair.value.as_ref().map_or(0, |value| value.len());
            check("value", value, 0, Self::VALUE_BYTES_MAX)?;
        }
        pairs.sort_unstable();
        if let Some(twice) = pairs.windows(2).find(|both| both[0] == both[1]) {
            let name = twice[0].name.clone();
            return Err(PatternError::HeaderTwice { name });
        }
        Ok(Self { is_any, pairs })
    }

    /// Whether one of its headers is enough.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// Its headers, in order.
    #[must_use]
    pub fn pairs(&self) -> &[HeaderPair] {
        &self.pairs
    }

    /// Whether a message with these headers has what it says.
    #[must_use]
    pub fn matches(&self, headers: &[Header]) -> bool {
        let mut pairs = self.pairs.iter();
        match self.is_any {
            true => pairs.any(|pair| pair.is_in(headers)),
            false => pairs.all(|pair| pair.is_in(headers)),
        }
    }
}

impl fmt::Display for HeadersMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_any {
            "any header of "
        } else {
            "all headers of "
        })?;
        for (index, pair) in self.pairs.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}", pair.name)?;
            if let Some(value) = &pair.value {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

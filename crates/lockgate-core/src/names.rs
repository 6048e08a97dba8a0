//! Names that users give. They are checked once, at construction, so nothing further in checks them
//! again.

use std::{borrow::Borrow, collections::BTreeMap, fmt, ops::Bound, sync::Arc};

/// Says why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no characters.
    #[error("a {what} must have 1 to {max} bytes, this one is empty")]
    Empty {
        /// The kind of name, in words.
        what: &'static str,
        /// The limit in bytes.
        max: usize,
    },
    /// The name is longer than its limit.
    #[error("a {what} must have 1 to {max} bytes, this one has {len}")]
    TooLong {
        /// The kind of name, in words.
        what: &'static str,
        /// The name's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The name has a character that is not allowed.
    #[error("a {what} may not contain {found:?} (at byte {at}): allowed are {allowed}")]
    Character {
        /// The kind of name, in words.
        what: &'static str,
        /// The first character that is not allowed.
        found: char,
        /// The byte at which that character starts.
        at: usize,
        /// The allowed characters, in words.
        allowed: &'static str,
    },
}

/// Declares a name type: a shared string with one check.
macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:expr, $allowed:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The longest such name, in bytes.
            pub const MAX_LEN: usize = $max;

            /// Checks a text and makes it a name.
            ///
            /// # Errors
            /// If the text is empty, too long, or has a character that is not allowed.
            pub fn new(text: &str) -> Result<Self, NameError> {
                Self::check(text)?;
                Ok(Self(text.into()))
            }

            /// Checks whether [`new`](Self::new) would accept the text.
            ///
            /// # Errors
            /// If the text is empty, too long, or has a character that is not allowed.
            pub fn check(text: &str) -> Result<(), NameError> {
                if text.is_empty() {
                    return Err(NameError::Empty {
                        what: $what,
                        max: Self::MAX_LEN,
                    });
                }
                if text.len() > Self::MAX_LEN {
                    return Err(NameError::TooLong {
                        what: $what,
                        len: text.len(),
                        max: Self::MAX_LEN,
                    });
                }
                let allowed: fn(char) -> bool = $check;
                if let Some((at, found)) = text.char_indices().find(|&(_, c)| !allowed(c)) {
                    return Err(NameError::Character {
                        what: $what,
                        found,
                        at,
                        allowed: $allowed,
                    });
                }
                Ok(())
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

    };
}

/// Of a map by name, what starts with `prefix`, in the order of the names, behind the name `after`.
pub fn with_prefix<'m, N: Borrow<str> + Ord, E>(
    by_name: &'m BTreeMap<N, E>,
    prefix: &'m str,
    after: Option<&'m N>,
) -> impl Iterator<Item = (&'m N, &'m E)> {
    // Names with the prefix are together in order, from the prefix on.
    let start = match after.map(Borrow::borrow) {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    };
    by_name
        .range::<str, _>((start, Bound::Unbounded))
        .take_while(move |(name, _)| (*name).borrow().starts_with(prefix))
}

name!(
    /// A queue's name: 1 to 80 letters, digits, `-`, `_` and `.`.
    ///
    /// The dot is wider than Amazon SQS, which allows it only in the suffix `.fifo`; the server
    /// checks the narrower rule.
    QueueName,
    "queue name",
    80,
    "ASCII letters, digits, '-', '_' and '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);

name!(
    /// An ordering key (SQS: MessageGroupId): 1 to 1,024 bytes of any text without control
    /// characters. The server checks SQS's narrower rule for its own clients.
    Key,
    "key",
    1024,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// A producer-chosen id for deduplication (SQS: MessageDeduplicationId): 1 to 1,024 bytes of
    /// any text without control characters.
    UniqueId,
    "unique id",
    1024,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// The name of a lease's holder: the name that the client gave, or else its access key or
    /// address. 1 to 128 bytes without control characters.
    HolderName,
    "holder name",
    128,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// A record's name: 1 to 512 bytes of any text without control characters. A `/` between its parts
    /// makes them easy to list by prefix.
    RecordName,
    "record name",
    512,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// A producer's name: 1 to 128 bytes of any text without control characters. It is the producer's own: two that
    /// share one shut each other out.
    ProducerName,
    "producer name",
    128,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// An election's name, or a lock's: 1 to 200 bytes of any text without control characters.
    ElectionName,
    "election name",
    200,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// A ledger's name: 1 to 80 letters, digits, `-`, `_` and `.`.
    LedgerName,
    "ledger name",
    80,
    "ASCII letters, digits, '-', '_' and '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);

name!(
    /// An exchange's name: 1 to 80 letters, digits, `-`, `_` and `.`.
    ExchangeName,
    "exchange name",
    80,
    "ASCII letters, digits, '-', '_' and '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);

name!(
    /// A schedule's name: 1 to 80 letters, digits, `-`, `_` and `.`.
    ScheduleName,
    "schedule name",
    80,
    "ASCII letters, digits, '-', '_' and '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);

/// What a message that is published to an exchange is routed by: up to 255 bytes of any text without control characters. It
/// may be empty. Dots divide it into words.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoutingKey(Arc<str>);

impl RoutingKey {
    /// The longest one, in bytes.
    pub const MAX_LEN: usize = 255;

    /// Checks a text and makes it a routing key.
    ///
    /// # Errors
    /// If the text is too long, or has a control character.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let what = "routing key";
        if text.len() > Self::MAX_LEN {
            return Err(NameError::TooLong {
                what,
                len: text.len(),
                max: Self::MAX_LEN,
            });
        }
        if let Some((at, found)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::Character {
                what,
                found,
                at,
                allowed: "all characters but control characters",
            });
        }
        Ok(Self(text.into()))
    }

    /// Returns the routing key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its words. The empty routing key has none.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let words = (!self.0.is_empty()).then(|| self.0.split('.'));
        words.into_iter().flatten()
    }
}

impl Default for RoutingKey {
    fn default() -> Self {
        Self("".into())
    }
}

impl fmt::Display for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for RoutingKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

name!(
    /// The name of a reader whose place a ledger keeps: 1 to 128 bytes of any text without control characters.
    ReaderName,
    "reader name",
    128,
    "all characters but control characters",
    |c| !c.is_control()
);

name!(
    /// What an event of a ledger came with: a name that its source gives again when it comes again, such as a queue's name and
    /// a message id. 1 to 256 bytes of any text without control characters.
    InputId,
    "input id",
    256,
    "all characters but control characters",
    |c| !c.is_control()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_name_says_what_is_wrong_and_where() {
        let error = |text: &str| QueueName::new(text).unwrap_err().to_string();
        assert_eq!(
            error(""),
            "a queue name must have 1 to 80 bytes, this one is empty"
        );
        assert_eq!(
            error(&"x".repeat(81)),
            "a queue name must have 1 to 80 bytes, this one has 81"
        );
        assert!(error("a/b").contains("'/' (at byte 1)"), "{}", error("a/b"));
        assert!(QueueName::new("orders.fifo").is_ok());
        assert!(Key::new("süß ✓").is_ok());
        assert!(Key::new("a\nb").is_err());
    }

    #[test]
    fn a_routing_key_may_be_empty_and_has_words_between_dots() {
        let words = |text: &str| -> Vec<String> {
            let key = RoutingKey::new(text).unwrap();
            key.words().map(str::to_owned).collect()
        };
        assert!(words("").is_empty());
        assert_eq!(words("orders.new.eu"), ["orders", "new", "eu"]);
        assert_eq!(words("a..b."), ["a", "", "b", ""]);
        assert!(RoutingKey::new(&"x".repeat(255)).is_ok());
        let error = RoutingKey::new(&"x".repeat(256)).unwrap_err();
        assert!(error.to_string().contains("this one has 256"), "{error}");
        let error = RoutingKey::new("a\0").unwrap_err();
        assert!(error.to_string().contains("at byte 1"), "{error}");
    }
}

//! The words that are values of settings.

use lockgate_core::Level;

use super::{Kind, SettingType, Value};

/// A type whose values are words in settings.
trait Word: Copy + PartialEq + 'static {
    /// All values with their words. The index of a word, counted from 1, is its number in records.
    const WORDS: &'static [(Self, &'static str)];
}

/// The texts of all words, for the table of settings.
macro_rules! words {
    (of $type:ident { $($variant:ident = $word:literal,)* }) => {
        impl Word for $type {
            const WORDS: &'static [(Self, &'static str)] = &[$((Self::$variant, $word),)*];
        }

        impl SettingType for $type {
            const KIND: Kind = Kind::Word(&[$($word,)*]);

            fn value(&self) -> Value {
                Value::Word(word(*self))
            }

            fn of(value: Value) -> Option<Self> {
                let Value::Word(word) = value else {
                    return None;
                };
                let mut words = Self::WORDS.iter();
                words.find(|(_, text)| *text == word).map(|(value, _)| *value)
            }
        }
    };
    ($(#[$doc:meta])* $type:ident $($derive:ident)? { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq $(, $derive)?)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        words!(of $type { $($variant = $word,)* });
    };
}

fn word<W: Word>(value: W) -> &'static str {
    let mut words = W::WORDS.iter();
    words
        .find(|(other, _)| *other == value)
        .map_or("", |(_, text)| text)
}

words! {
    of Level {
        Memory = "memory",
        Process = "process",
        Disk = "disk",
        Replicated = "replicated",
    }
}

words! {
    /// The scope within which a unique id is unique.
    DedupScope Default {
        #[default]
        Queue = "queue",
        /// The message's key.
        Key = "key",
    }
}

words! {
    /// The effect of a failing message on its key.
    KeyPolicy {
        /// The message is tried again in its place, and its key waits.
        Block = "block",
        /// After [`attempts_max`](super::QueueSettings::attempts_max) attempts the message goes to
        /// the dead-letter queue, and its key continues.
        Skip = "skip",
        /// After [`attempts_max`](super::QueueSettings::attempts_max) attempts the key is parked
        /// until an operator resumes or drops it.
        Park = "park",
    }
}

words! {
    /// The rules for a batch of consecutive messages of one key.
    KeyProfile Default {
        /// Amazon's rules: each message of the batch has its own lease. Messages that become visible in front
        /// of the first message still in flight may be leased again. For queues made by the SQS API.
        Sqs = "sqs",
        /// One batch, settled in order: no other message of the key is leased until the whole batch
        /// is settled or its leases have ended. The default for embedded queues.
        #[default]
        Strict = "strict",
    }
}

impl DedupScope {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Queue => Self::Key,
            Self::Key => Self::Queue,
        }
    }
}

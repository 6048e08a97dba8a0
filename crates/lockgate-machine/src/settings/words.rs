//! The words that settings take.

use lockgate_core::Level;

use super::{Kind, SettingType, Value};

/// A setting whose values are words.
trait Word: Copy + PartialEq + 'static {
    /// All of them, each with its word. A word's place, counted from 1, is its number in records.
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
    /// Within what a unique id is unique.
    DedupScope Default {
        #[default]
        Queue = "queue",
        /// The message's key.
        Key = "key",
    }
}

words! {
    /// What a failing message does to its key.
    KeyPolicy {
        /// It is tried again in its place; the key waits.
        Block = "block",
        /// After [`attempts_max`](super::QueueSettings::attempts_max) attempts it goes to the dead-letter
        /// queue and the key goes on.
        Skip = "skip",
        /// After [`attempts_max`](super::QueueSettings::attempts_max) attempts the key is frozen until an
        /// operator resumes or drops it.
        Park = "park",
    }
}

words! {
    /// Which rules a batch of consecutive messages of one key follows.
    KeyProfile Default {
        /// Amazon's: each message of the batch has its own lease; what became visible in front of the
        /// first message still in flight may be handed out again. For queues made by the SQS API.
        Sqs = "sqs",
        /// One batch, settled as a prefix: nothing more of the key to anybody until all of the batch is
        /// settled or its leases have ended. The default for embedded queues.
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

//! The table of settings, with one row for each. Codec, HTTP API, tags, queue files, command line
//! and documents use it.

use std::{fmt, num::NonZeroU32, str::FromStr};

use lockgate_core::{
    Millis, QueueName,
    limits::{Gap, Rate, Scoped},
    units,
};

use super::{QueueSettings, SettingsError};

/// A setting of a queue: a row of [`SETTINGS`](super::SETTINGS).
pub struct Setting {
    /// Its name everywhere: fields and queue files use it unchanged, tags and flags with `-` for `_`.
    pub name: &'static str,
    pub(super) name_ms: &'static str,
    /// One sentence about it, for documents.
    pub(super) about: &'static str,
    /// Its number in records.
    pub(crate) number: u8,
    /// The values that it may have.
    pub kind: Kind,
    /// The meaning of no value, for a setting that may have none.
    pub none: Option<&'static str>,
    /// The SQS attribute that also sets it.
    pub sqs: Option<&'static str>,
    /// Whether it concerns keys, so that only keyed queues have it.
    pub keyed: bool,
    /// Whether a time may be [`FOREVER`](QueueSettings::FOREVER), which people write as `forever`.
    pub forever: bool,
    pub(super) get: fn(&QueueSettings) -> Value,
    pub(super) set: fn(&mut QueueSettings, Value) -> bool,
}

/// The values that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    Count {
        min: u64,
        max: u64,
    },
    Time {
        min: Millis,
        max: Millis,
    },
    /// A size in bytes.
    Bytes {
        min: u64,
        max: u64,
    },
    /// The name of a queue.
    Queue,
    /// A rate, of the queue or per key.
    Rate,
    /// A number of messages, of the queue or per key.
    Concurrency,
    /// A time between two messages, of the queue or per key.
    Gap,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value; the row says what that means.
    None,
    Flag(bool),
    Word(&'static str),
    Number(u64),
    /// The name of a queue.
    Queue(QueueName),
    /// A limit as people write it.
    Limit(String),
}

/// The type of a setting.
pub(super) trait SettingType: Sized {
    /// The values that it may have, if the row does not bound them.
    const KIND: Kind;

    fn value(&self) -> Value;

    /// `None`: the value has another type.
    fn of(value: Value) -> Option<Self>;
}

impl Setting {
    /// One sentence about it.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    pub(super) const fn new(
        [name, name_ms]: [&'static str; 2],
        about: &'static str,
        kind: Kind,
    ) -> Self {
        Self {
            name,
            name_ms,
            about,
            number: 0,
            kind,
            none: None,
            sqs: None,
            keyed: false,
            forever: false,
            get: |_| Value::None,
            set: |_, _| false,
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        super::SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Its name in JSON, where the name of a duration ends in the unit, milliseconds.
    #[must_use]
    pub const fn json_name(&self) -> &'static str {
        match self.kind {
            Kind::Time { .. } => self.name_ms,
            _ => self.name,
        }
    }

    /// Its name in flags and tags.
    #[must_use]
    pub fn flag_name(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Its value in these settings.
    #[must_use]
    pub fn get(&self, settings: &QueueSettings) -> Value {
        (self.get)(settings)
    }

    /// Sets it.
    ///
    /// # Errors
    /// [`SettingsError`] if the value has another type or is out of bounds. Then nothing is set.
    pub fn set(&self, settings: &mut QueueSettings, value: Value) -> Result<(), SettingsError> {
        self.check(&value)?;
        match (self.set)(settings, value) {
            true => Ok(()),
            false => Err(self.refused("a value of another kind")),
        }
    }

    /// Parses a value as people write it: durations and sizes with units, `none` if no value is allowed.
    ///
    /// # Errors
    /// [`SettingsError`] if the text cannot be parsed, or the value is out of bounds.
    pub fn parse(&self, text: &str) -> Result<Value, SettingsError> {
        let unread = |_| match self.with_unit(text) {
            Some(better) => self.refused(format!("{text}: write {better}")),
            None => self.refused(text),
        };
        let value = match self.kind {
            _ if text == "none" && self.none.is_some() => Value::None,
            Kind::Flag => Value::Flag(text.parse().map_err(|_| self.refused(text))?),
            Kind::Word(words) => {
                let mut words = words.iter();
                Value::Word(
                    words
                        .find(|word| **word == text)
                        .ok_or_else(|| self.refused(text))?,
                )
            }
            Kind::Count { .. } => Value::Number(text.parse().map_err(|_| self.refused(text))?),
            Kind::Time { .. } if self.forever && text == "forever" => {
                Value::Number(QueueSettings::FOREVER)
            }
            Kind::Time { .. } => Value::Number(units::millis(text).map_err(unread)?),
            Kind::Bytes { .. } => Value::Number(units::bytes(text).map_err(unread)?),
            Kind::Queue => Value::Queue(QueueName::new(text).map_err(|_| self.refused(text))?),
            Kind::Rate | Kind::Concurrency | Kind::Gap => Value::Limit(text.to_owned()),
        };
        self.check(&value)?;
        Ok(value)
    }

    /// What to write in place of a bare number, of which nobody knows the unit: `5s`, `5B`.
    #[must_use]
    pub fn with_unit(&self, text: &str) -> Option<String> {
        let unit = match self.kind {
            Kind::Time { .. } => "s",
            Kind::Bytes { .. } => "B",
            _ => return None,
        };
        let number: u64 = text.parse().ok()?;
        (number > 0).then(|| format!("{number}{unit}"))
    }

    /// Writes a value so that [`parse`](Self::parse) reads it back; for no value, the row's word.
    #[must_use]
    pub fn show(&self, value: &Value) -> String {
        match (value, self.kind) {
            (Value::None, _) => self.none.unwrap_or_default().to_owned(),
            (Value::Flag(flag), _) => flag.to_string(),
            (Value::Word(word), _) => (*word).to_owned(),
            (Value::Number(QueueSettings::FOREVER), Kind::Time { .. }) => "forever".to_owned(),
            (Value::Number(millis), Kind::Time { .. }) => units::show_millis(*millis),
            (Value::Number(bytes), Kind::Bytes { .. }) => units::show_bytes(*bytes),
            (Value::Number(number), _) => number.to_string(),
            (Value::Queue(queue), _) => queue.to_string(),
            (Value::Limit(limit), _) => limit.clone(),
        }
    }

    /// The values that it may have, in words that follow "must be".
    #[must_use]
    pub fn values(&self) -> String {
        match self.kind {
            Kind::Flag => "true or false".to_owned(),
            Kind::Word(words) => match words {
                [first @ .., last] => format!("{} or {last}", first.join(", ")),
                [] => String::new(),
            },
            Kind::Count { min, max } => format!("a number from {min} to {max}"),
            Kind::Time { min, max } => {
                let [min, max] = [min, max].map(units::show_millis);
                let or = if self.forever { ", or forever" } else { "" };
                format!("a time from {min} to {max}{or}")
            }
            Kind::Bytes { min, max } => {
                let [min, max] = [min, max].map(units::show_bytes);
                format!("a size from {min} to {max}")
            }
            Kind::Queue => {
                let max = QueueName::MAX_LEN;
                format!("the name of a queue: 1 to {max} letters, digits, '-', '_' and '.'")
            }
            Kind::Rate => "as 10/s, 10/s per key, or 100/s + 10/s burst 20 per key".to_owned(),
            Kind::Concurrency => "as 3, 3 per key, or 100 + 3 per key".to_owned(),
            Kind::Gap => "as 200ms, 200ms per key, or 10ms + 200ms per key".to_owned(),
        }
    }

    /// Refuses a value of another type, or out of bounds.
    pub(crate) fn check(&self, value: &Value) -> Result<(), SettingsError> {
        let fits = match (value, self.kind) {
            (Value::None, _) => self.none.is_some(),
            (Value::Flag(_), Kind::Flag)
            | (Value::Word(_), Kind::Word(_))
            | (Value::Queue(_), Kind::Queue) => true,
            (
                Value::Number(number),
                Kind::Count { min, max } | Kind::Time { min, max } | Kind::Bytes { min, max },
            ) => (min..=max).contains(number) || self.forever && *number == QueueSettings::FOREVER,
            (Value::Limit(text), Kind::Rate) => Scoped::<Rate>::from_str(text).is_ok(),
            (Value::Limit(text), Kind::Concurrency) => Scoped::<NonZeroU32>::from_str(text).is_ok(),
            (Value::Limit(text), Kind::Gap) => Scoped::<Gap>::from_str(text).is_ok(),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(self.refused(self.show(value))),
        }
    }

    fn refused(&self, value: impl Into<String>) -> SettingsError {
        SettingsError::NotAllowed {
            setting: self.name,
            value: value.into(),
            allowed: self.values(),
        }
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Setting {}

impl SettingType for bool {
    const KIND: Kind = Kind::Flag;

    fn value(&self) -> Value {
        Value::Flag(*self)
    }

    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }
}

/// Numbers: the row bounds them.
macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl SettingType for $type {
            const KIND: Kind = Kind::Count { min: 0, max: <$type>::MAX as u64 };

            fn value(&self) -> Value {
                Value::Number(u64::from(*self))
            }

            fn of(value: Value) -> Option<Self> {
                match value {
                    Value::Number(number) => Self::try_from(number).ok(),
                    _ => None,
                }
            }
        }
    )*};
}

numbers!(u16, u32, u64);

impl SettingType for QueueName {
    const KIND: Kind = Kind::Queue;

    fn value(&self) -> Value {
        Value::Queue(self.clone())
    }

    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Queue(name) => Some(name),
            _ => None,
        }
    }
}

/// Limits: without one, no value.
macro_rules! limits {
    ($($type:ty: $kind:ident),*) => {$(
        impl SettingType for Scoped<$type> {
            const KIND: Kind = Kind::$kind;

            fn value(&self) -> Value {
                match self.is_none() {
                    true => Value::None,
                    false => Value::Limit(self.to_string()),
                }
            }

            fn of(value: Value) -> Option<Self> {
                match value {
                    Value::None => Some(Self::NONE),
                    Value::Limit(text) => text.parse().ok(),
                    _ => None,
                }
            }
        }
    )*};
}

limits!(Rate: Rate, NonZeroU32: Concurrency, Gap: Gap);

impl<T: SettingType> SettingType for Option<T> {
    const KIND: Kind = T::KIND;

    fn value(&self) -> Value {
        self.as_ref().map_or(Value::None, T::value)
    }

    fn of(value: Value) -> Option<Self> {
        match value {
            Value::None => Some(None),
            value => T::of(value).map(Some),
        }
    }
}

//! The table of settings: one row for each, which codec, HTTP API, tags, queue files, command line and
//! documents go by.

use std::fmt;

use lockgate_core::{Millis, QueueName, units};

use super::{QueueSettings, SettingsError, TIME_MAX};

/// A setting of a queue: a row of [`SETTINGS`](super::SETTINGS).
pub struct Setting {
    /// Its name everywhere: fields and queue files have it as it stands, tags and flags with `-` for `_`.
    pub name: &'static str,
    pub(super) name_ms: &'static str,
    /// One sentence about it, as in a document.
    pub(super) about: &'static str,
    /// Its number in records.
    pub(crate) number: u8,
    /// What values it takes.
    pub kind: Kind,
    /// What no value means, for a setting that may have none.
    pub none: Option<&'static str>,
    /// The attribute of SQS that sets it too.
    pub sqs: Option<&'static str>,
    /// Whether it says something about keys, so that only keyed queues need it.
    pub keyed: bool,
    pub(super) get: fn(&QueueSettings) -> Value,
    pub(super) set: fn(&mut QueueSettings, Value) -> bool,
}

/// What values a setting takes.
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
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// None; what that means the row says.
    None,
    /// Of a flag.
    Flag(bool),
    /// One of the row's words.
    Word(&'static str),
    /// A number, milliseconds or bytes.
    Number(u64),
    /// The name of a queue.
    Queue(QueueName),
}

/// The type of a setting.
pub(super) trait SettingType: Sized {
    /// What values it takes, where the row does not bound them.
    const KIND: Kind;

    fn value(&self) -> Value;

    /// `None`: the value is of another type.
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
            get: |_| Value::None,
            set: |_, _| false,
        }
    }

    /// The setting of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        super::SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// Its name in JSON, where a time is a number of milliseconds and says so.
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
    /// [`SettingsError`] if the value is not of the setting's kind, or out of its bounds. Nothing is set then.
    pub fn set(&self, settings: &mut QueueSettings, value: Value) -> Result<(), SettingsError> {
        self.check(&value)?;
        match (self.set)(settings, value) {
            true => Ok(()),
            false => Err(self.refused("a value of another kind")),
        }
    }

    /// Reads a value as people write it: times and sizes with units, `none` where there may be no value.
    ///
    /// # Errors
    /// [`SettingsError`] if it cannot be read, or is out of bounds.
    pub fn parse(&self, text: &str) -> Result<Value, SettingsError> {
        let refused = |_| self.refused(text);
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
            Kind::Time { .. } => {
                Value::Number(units::millis(text).map_err(|_| match text.parse::<u64>() {
                    Ok(_) => self.refused(format!("{text}: write {text}s")),
                    Err(_) => self.refused(text),
                })?)
            }
            Kind::Bytes { .. } => Value::Number(units::bytes(text).map_err(refused)?),
            Kind::Queue => Value::Queue(QueueName::new(text).map_err(|_| self.refused(text))?),
        };
        self.check(&value)?;
        Ok(value)
    }

    /// Writes a value so that [`parse`](Self::parse) reads it back; none in the row's words.
    #[must_use]
    pub fn show(&self, value: &Value) -> String {
        match (value, self.kind) {
            (Value::None, _) => self.none.unwrap_or_default().to_owned(),
            (Value::Flag(flag), _) => flag.to_string(),
            (Value::Word(word), _) => (*word).to_owned(),
            (Value::Number(millis), Kind::Time { .. }) => units::show_millis(*millis),
            (Value::Number(bytes), Kind::Bytes { .. }) => units::show_bytes(*bytes),
            (Value::Number(number), _) => number.to_string(),
            (Value::Queue(queue), _) => queue.to_string(),
        }
    }

    /// What values it takes, in words that follow "must be".
    #[must_use]
    pub fn values(&self) -> String {
        match self.kind {
            Kind::Flag => "true or false".to_owned(),
            Kind::Word(words) => match words {
                [first @ .., last] => format!("{} or {last}", first.join(", ")),
                [] => String::new(),
            },
            Kind::Count { min, max } => range("a number", min, max, |number| number.to_string()),
            Kind::Time { min, max } => range("a time", min, max, units::show_millis),
            Kind::Bytes { min, max } => range("a size", min, max, units::show_bytes),
            Kind::Queue => "the name of a queue".to_owned(),
        }
    }

    /// Refuses a value of another kind, or out of bounds.
    pub(crate) fn check(&self, value: &Value) -> Result<(), SettingsError> {
        let fits = match (value, self.kind) {
            (Value::None, _) => self.none.is_some(),
            (Value::Flag(_), Kind::Flag)
            | (Value::Word(_), Kind::Word(_))
            | (Value::Queue(_), Kind::Queue) => true,
            (
                Value::Number(number),
                Kind::Count { min, max } | Kind::Time { min, max } | Kind::Bytes { min, max },
            ) => (min..=max).contains(number),
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

/// A range in words; a bound that no value reaches is left out.
fn range(what: &str, min: u64, max: u64, show: impl Fn(u64) -> String) -> String {
    match (min, max) {
        (0, TIME_MAX..) => what.to_owned(),
        (min, TIME_MAX..) => format!("{what}, {} or more", show(min)),
        (min, max) => format!("{what} from {} to {}", show(min), show(max)),
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

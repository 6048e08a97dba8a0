//! The settings of a queue as JSON, from the table of settings.

use std::{fmt, sync::LazyLock};

use lockgate_core::{Millis, QueueName};
use lockgate_machine::{
    QueueSettings, SETTINGS, Setting, SettingKind, SettingValue, SettingsError,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, MapAccess, Unexpected, Visitor},
    ser::SerializeMap as _,
};

use crate::fault::shorten;

/// A queue's settings.
#[derive(Debug)]
pub(crate) struct Settings {
    settings: QueueSettings,
    /// If the scope of unique ids was changed recently: for how much longer sends follow the former
    /// scope.
    pub(crate) dedup_scope_pending_ms: Option<Millis>,
}

/// Settings to change, or to create a queue with. A setting that is not named stays; `null` sets
/// the default.
#[derive(Debug, Default)]
pub(crate) struct SettingsChange(Vec<(&'static Setting, Option<SettingValue>)>);

/// The names that a change may contain.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| SETTINGS.iter().map(Setting::json_name).collect());

impl Settings {
    pub(crate) fn of(settings: QueueSettings) -> Self {
        Self {
            settings,
            // The caller sets this if it knows the time.
            dedup_scope_pending_ms: None,
        }
    }
}

impl SettingsChange {
    /// Sets the named settings.
    pub(crate) fn apply(self, settings: &mut QueueSettings) -> Result<(), SettingsError> {
        let default = QueueSettings::over_http(settings.keyed);
        let mut changes = self.0.into_iter();
        changes.try_for_each(|(setting, value)| {
            setting.set(settings, value.unwrap_or_else(|| setting.get(&default)))
        })
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for setting in SETTINGS {
            let name = setting.json_name();
            match setting.get(&self.settings) {
                SettingValue::None => map.serialize_entry(name, &()),
                SettingValue::Flag(flag) => map.serialize_entry(name, &flag),
                SettingValue::Word(word) => map.serialize_entry(name, word),
                SettingValue::Number(number) => map.serialize_entry(name, &number),
                SettingValue::Queue(queue) => map.serialize_entry(name, queue.as_str()),
                SettingValue::Limit(limit) => map.serialize_entry(name, &limit),
            }?;
        }
        if let Some(pending) = self.dedup_scope_pending_ms {
            map.serialize_entry("dedup_scope_pending_ms", &pending)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for SettingsChange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Changes)
    }
}

struct Changes;

impl<'de> Visitor<'de> for Changes {
    type Value = SettingsChange;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SettingsChange, A::Error> {
        let mut changes: Vec<(&Setting, _)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let mut settings = SETTINGS.iter();
            let Some(setting) = settings.find(|setting| setting.json_name() == name) else {
                return Err(A::Error::unknown_field(&shorten(&name), &NAMES));
            };
            if changes.iter().any(|(other, _)| *other == setting) {
                return Err(A::Error::duplicate_field(setting.json_name()));
            }
            changes.push((setting, map.next_value_seed(ValueOf(setting))?));
        }
        Ok(SettingsChange(changes))
    }
}

/// Parses the value of a setting; `null` is none.
struct ValueOf(&'static Setting);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Option<SettingValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Ok(match self.0.kind {
            SettingKind::Flag => Option::deserialize(from)?.map(SettingValue::Flag),
            SettingKind::Count { .. } | SettingKind::Time { .. } | SettingKind::Bytes { .. } => {
                return from.deserialize_option(NumberOf(self.0));
            }
            SettingKind::Word(words) => match Option::<String>::deserialize(from)? {
                None => None,
                Some(text) => match words.iter().find(|word| **word == text) {
                    Some(word) => Some(SettingValue::Word(word)),
                    None => return Err(D::Error::unknown_variant(&shorten(&text), words)),
                },
            },
            SettingKind::Queue => match Option::<String>::deserialize(from)? {
                None => None,
                Some(text) => Some(SettingValue::Queue(
                    QueueName::new(&text).map_err(D::Error::custom)?,
                )),
            },
            // Whether it is one is checked where it is set, together with all else.
            SettingKind::Rate | SettingKind::Concurrency | SettingKind::Gap => {
                Option::deserialize(from)?.map(SettingValue::Limit)
            }
        })
    }
}

/// Reads a number and says in every refusal which ones there are.
struct NumberOf(&'static Setting);

impl<'de> Visitor<'de> for NumberOf {
    type Value = Option<SettingValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            SettingKind::Time { min, max } => {
                write!(f, "a number of milliseconds from {min} to {max}")?;
                match self.0.forever {
                    true => write!(f, ", or {} for ever", QueueSettings::FOREVER),
                    false => Ok(()),
                }
            }
            SettingKind::Bytes { min, max } => write!(f, "a number of bytes from {min} to {max}"),
            _ => f.write_str(&self.0.values()),
        }
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_u64(self)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        // Its bounds are checked where it is set, together with all else.
        Ok(Some(SettingValue::Number(number)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}

#[cfg(test)]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator};
    use serde_json::{Map, Value, json};

    use super::*;

    /// A property for each setting.
    fn properties(
        describe: fn(&Setting) -> String,
        null: impl Fn(&Setting) -> bool,
    ) -> Map<String, Value> {
        let describe = |setting: &'static Setting| {
            let (kind, bounds) = match setting.kind {
                SettingKind::Flag => ("boolean", None),
                SettingKind::Word(_)
                | SettingKind::Queue
                | SettingKind::Rate
                | SettingKind::Concurrency
                | SettingKind::Gap => ("string", None),
                SettingKind::Count { min, max }
                | SettingKind::Time { min, max }
                | SettingKind::Bytes { min, max } => ("integer", Some((min, max))),
            };
            let null = null(setting);
            let mut property = json!({
                "description": describe(setting),
                "type": if null { json!([kind, "null"]) } else { json!(kind) },
            });
            if let SettingKind::Word(words) = setting.kind {
                let words = words.iter().map(|word| json!(word));
                property["enum"] = words.chain(null.then_some(Value::Null)).collect();
            }
            let bounds = bounds.map(|(min, max)| match setting.forever {
                true => (min, QueueSettings::FOREVER),
                false => (min, max),
            });
            if let Some((min, max)) = bounds {
                property["minimum"] = min.into();
                // A larger bound is left out: not every language can represent it exactly, and no
                // value comes near it.
                if max <= 1 << 53 {
                    property["maximum"] = max.into();
                }
            }
            (setting.json_name().to_owned(), property)
        };
        SETTINGS.iter().map(describe).collect()
    }

    fn default_text(setting: &Setting) -> String {
        let default = setting.show(&setting.get(&QueueSettings::over_http(true)));
        format!("{} Default: {default}.", setting.about())
    }

    impl JsonSchema for Settings {
        fn schema_name() -> Cow<'static, str> {
            "Settings".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let mut properties = properties(
                |setting| match setting.none {
                    Some(none) => format!("{} `null`: {none}.", setting.about()),
                    None => setting.about().to_owned(),
                },
                |setting| setting.none.is_some(),
            );
            let required: Vec<_> = properties.keys().cloned().collect();
            properties.insert(
                "dedup_scope_pending_ms".to_owned(),
                json!({
                    "description": "If the scope of unique ids was changed shortly ago: for how much \
                        longer sends follow the former one.",
                    "type": "integer",
                }),
            );
            let schema = json!({
                "description": "A queue's settings.",
                "type": "object",
                "properties": properties,
                "required": required,
            });
            Schema::try_from(schema).unwrap()
        }
    }

    impl JsonSchema for SettingsChange {
        fn schema_name() -> Cow<'static, str> {
            "SettingsChange".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let schema = json!({
                "description": "Settings that are to change, or not to be the default. What is not \
                    named stays; `null` is the default.",
                "type": "object",
                "properties": properties(default_text, |_| true),
                "additionalProperties": false,
            });
            Schema::try_from(schema).unwrap()
        }
    }
}

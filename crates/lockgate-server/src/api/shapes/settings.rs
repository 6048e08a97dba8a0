//! The settings of a queue as JSON, by the table of settings.

use std::{fmt, sync::LazyLock};

use lockgate_core::{Millis, QueueName};
use lockgate_machine::{
    QueueSettings, SETTINGS, Setting, SettingKind, SettingValue, SettingsError,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error as _, MapAccess, Visitor},
    ser::SerializeMap as _,
};

use crate::fault::shorten;

/// A queue's settings.
#[derive(Debug)]
pub(crate) struct Settings {
    settings: QueueSettings,
    /// If the scope of unique ids was changed shortly ago: for how much longer sends follow the former one.
    pub(crate) dedup_scope_pending_ms: Option<Millis>,
}

/// Settings that are to change, or not to be the default. What is not named stays; `null` is the default.
#[derive(Debug, Default)]
pub(crate) struct SettingsChange(Vec<(&'static Setting, Option<SettingValue>)>);

/// The names that a change may have.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| SETTINGS.iter().map(Setting::json_name).collect());

impl Settings {
    pub(crate) fn of(settings: QueueSettings) -> Self {
        Self {
            settings,
            // Whoever knows the time says it.
            dedup_scope_pending_ms: None,
        }
    }
}

impl SettingsChange {
    /// Sets what is named.
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

/// Reads the value of a setting; `null` is none.
struct ValueOf(&'static Setting);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Option<SettingValue>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        Ok(match self.0.kind {
            SettingKind::Flag => Option::deserialize(from)?.map(SettingValue::Flag),
            SettingKind::Count { .. } | SettingKind::Time { .. } | SettingKind::Bytes { .. } => {
                Option::deserialize(from)?.map(SettingValue::Number)
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
        })
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
                SettingKind::Word(_) | SettingKind::Queue => ("string", None),
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
            if let Some((min, max)) = bounds {
                property["minimum"] = min.into();
                // Beyond what is exact in every language there is no bound that anybody meets.
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

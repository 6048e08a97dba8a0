//! Whole numbers with bounds.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// A whole number from `MIN` to `MAX`. Its refusals name both, and so does the description of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Within<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Within<MIN, MAX> {
    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Within<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MIN: u64, const MAX: u64>;

        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
            type Value = Within<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                if (MIN..=MAX).contains(&number) {
                    return Ok(Within(number));
                }
                Err(E::custom(format_args!(
                    "{number} is not from {MIN} to {MAX}"
                )))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::custom(format_args!(
                        "{number} is not from {MIN} to {MAX}"
                    ))),
                }
            }
        }

        deserializer.deserialize_u64(Number)
    }
}

#[cfg(test)]
impl<const MIN: u64, const MAX: u64> schemars::JsonSchema for Within<MIN, MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Within{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "integer", "format": "uint64", "minimum": MIN, "maximum": MAX,
        })
    }
}

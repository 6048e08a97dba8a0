//! Lists of a request that may have many entries, read so that a list that is too long costs nothing.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::fault::shorten;

/// The most entries that any list of a request may have.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// Entries that are read with their list. Those behind them wait as text: a thousand entries of three
/// bytes would otherwise become a thousand structs, before anybody knows whether so many are allowed.
const READ_AT_ONCE: usize = 10;

/// The name by which [`Raw`] asks a deserializer for an entry as it came.
const RAW_NAME: &str = "lockgate::Raw";

/// A list of a request. It keeps at most [`ENTRIES_MAX`] entries and counts all, because SQS says how many
/// there were ("You have sent 11."). An entry beyond the most costs one pass over its bytes, and nothing is
/// kept of it: the time is linear in the length of the body, which has a limit of its own.
#[derive(Debug)]
pub(crate) struct Few<'a, T> {
    first: Vec<T>,
    rest: Vec<Raw<'a>>,
    len: usize,
}

/// An entry as it came.
#[derive(Clone, Debug)]
pub(crate) enum Raw<'a> {
    Json(&'a str),
    /// Parameters of a form.
    Form(Box<[u8]>),
}

impl<'a, T> Few<'a, T> {
    /// How many entries the request has, also those that are not kept.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Reads the entries that wait as text and keeps none of them, so that one that cannot be read is found
    /// before anything is made of those in front of it. With an error comes the entry's place, from 0.
    pub(crate) fn check<E>(
        &self,
        read: impl Fn(Raw<'a>) -> Result<T, E>,
    ) -> Result<(), (usize, E)> {
        for (at, raw) in (self.first.len()..).zip(&self.rest) {
            drop(read(raw.clone()).map_err(|error| (at, error))?);
        }
        Ok(())
    }

    /// The entries that are kept, in order; `read` reads those that wait as text.
    pub(crate) fn into_entries<E>(
        self,
        read: impl Fn(Raw<'a>) -> Result<T, E>,
    ) -> impl Iterator<Item = Result<T, E>> {
        let first = self.first.into_iter().map(Ok);
        first.chain(self.rest.into_iter().map(read))
    }
}

impl<T> Default for Few<'_, T> {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            rest: Vec::new(),
            len: 0,
        }
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Few<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FewVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
            type Value = Few<'de, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut few = Few::default();
                loop {
                    let more = if few.len < READ_AT_ONCE {
                        list.next_element()?.map(|entry| few.first.push(entry))
                    } else if few.len < ENTRIES_MAX {
                        list.next_element()?.map(|entry| few.rest.push(entry))
                    } else {
                        // Skipped, not read: only its end is looked for.
                        list.next_element::<IgnoredAny>()?.map(|_| ())
                    };
                    if more.is_none() {
                        return Ok(few);
                    }
                    few.len += 1;
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let found = shorten(text);
                Err(E::invalid_type(de::Unexpected::Str(&found), &self))
            }
        }

        deserializer.deserialize_any(FewVisitor(PhantomData))
    }
}

#[cfg(test)]
impl<T: schemars::JsonSchema> schemars::JsonSchema for Few<'_, T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Vec::<T>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<T>::json_schema(generator)
    }

    fn inline_schema() -> bool {
        Vec::<T>::inline_schema()
    }
}

/// Values by name. It keeps at most `MAX` and counts all.
#[derive(Debug)]
pub(crate) struct FewByName<T, const MAX: usize> {
    kept: BTreeMap<String, T>,
    len: usize,
}

/// That there are more values than there may be.
#[derive(Debug, thiserror::Error)]
#[error("there may be {max}, not {len}")]
pub(crate) struct TooMany {
    max: usize,
    len: usize,
}

impl<T, const MAX: usize> FewByName<T, MAX> {
    /// The values, if there are as many as there may be.
    pub(crate) fn all(self) -> Result<BTreeMap<String, T>, TooMany> {
        if self.len <= MAX {
            Ok(self.kept)
        } else {
            let (max, len) = (MAX, self.len);
            Err(TooMany { max, len })
        }
    }
}

impl<T, const MAX: usize> Default for FewByName<T, MAX> {
    fn default() -> Self {
        Self {
            kept: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for FewByName<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for MapVisitor<T, MAX> {
            type Value = FewByName<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut few = FewByName::default();
                while few.kept.len() < MAX {
                    let Some(name) = map.next_key::<String>()? else {
                        few.len = few.kept.len();
                        return Ok(few);
                    };
                    if few.kept.contains_key(&name) {
                        // Who sent both meant something else than the last.
                        return Err(de::Error::custom(format_args!(
                            "duplicate field `{}`",
                            shorten(&name)
                        )));
                    }
                    few.kept.insert(name, map.next_value()?);
                }
                few.len = few.kept.len();
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    few.len += 1;
                }
                Ok(few)
            }
        }

        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

// The description of the API names the default of a field, and that is what it is written as.
#[cfg(test)]
impl<T: serde::Serialize, const MAX: usize> serde::Serialize for FewByName<T, MAX> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.kept.serialize(serializer)
    }
}

#[cfg(test)]
impl<T: schemars::JsonSchema, const MAX: usize> schemars::JsonSchema for FewByName<T, MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }

    fn inline_schema() -> bool {
        BTreeMap::<String, T>::inline_schema()
    }
}

/// Whether a deserializer is asked for an entry as it came.
pub(crate) fn is_raw(name: &str) -> bool {
    name == RAW_NAME
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;

        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an entry")
            }

            /// Deserializers of JSON know nothing of the name.
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                json: D,
            ) -> Result<Raw<'de>, D::Error> {
                <&RawValue>::deserialize(json).map(|raw| Raw::Json(raw.get()))
            }

            fn visit_byte_buf<E: de::Error>(self, form: Vec<u8>) -> Result<Raw<'de>, E> {
                Ok(Raw::Form(form.into()))
            }
        }

        deserializer.deserialize_newtype_struct(RAW_NAME, RawVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Few<'_, u32> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn entries_come_in_order_whether_they_were_read_at_once_or_not() {
        for count in [0, 1, READ_AT_ONCE, READ_AT_ONCE + 1, ENTRIES_MAX] {
            let numbers: Vec<u32> = (0..u32::try_from(count).unwrap()).collect();
            let text = serde_json::to_string(&numbers).unwrap();
            let few = read(&text);
            assert_eq!(few.len(), count);
            let entries = few.into_entries(|raw| match raw {
                Raw::Json(text) => serde_json::from_str(text),
                Raw::Form(_) => panic!("it was JSON"),
            });
            assert_eq!(entries.collect::<Result<Vec<_>, _>>().unwrap(), numbers);
        }
    }

    #[test]
    fn what_is_beyond_the_most_is_counted_and_not_kept() {
        let text = format!("[{}0]", "0,".repeat(5 * ENTRIES_MAX));
        let few = read(&text);
        assert_eq!(few.len(), 5 * ENTRIES_MAX + 1);
        assert_eq!(few.first.len() + few.rest.len(), ENTRIES_MAX);
        let by_name: FewByName<u32, 2> = serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap();
        assert_eq!(by_name.all().unwrap().len(), 2);
        let by_name: FewByName<u32, 2> = serde_json::from_str(r#"{"a":1,"b":2,"c":[]}"#).unwrap();
        assert_eq!(
            by_name.all().unwrap_err().to_string(),
            "there may be 2, not 3"
        );
        // It must be JSON all the same.
        let broken = text.replace("0]", "}");
        assert!(serde_json::from_str::<Few<'_, u32>>(&broken).is_err());
    }
}

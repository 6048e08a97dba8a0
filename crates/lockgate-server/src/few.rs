//! Lists of a request that may have many entries. A list that is too long costs no memory.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::fault::shorten;

/// The most entries that any list of a request may have.
pub(crate) const ENTRIES_MAX: usize = 1000;

/// How many entries are parsed together with their list. The others wait as text: a thousand
/// entries of three bytes would otherwise become a thousand structs before the server knows whether
/// that many are allowed.
const READ_AT_ONCE: usize = 10;

/// The name by which [`Raw`] asks a deserializer for the entry's text.
const RAW_NAME: &str = "lockgate::Raw";

/// A list of a request. It keeps at most [`ENTRIES_MAX`] entries and counts all of them, because
/// SQS names the count in its error ("You have sent 11."). An entry beyond the limit costs one pass
/// over its bytes and no memory, so the time is linear in the length of the body, which has its own
/// limit.
#[derive(Debug)]
pub(crate) struct Few<'a, T> {
    first: Vec<T>,
    rest: Vec<Raw<'a>>,
    len: usize,
}

/// The text of an entry.
#[derive(Clone, Debug)]
pub(crate) enum Raw<'a> {
    Json(&'a str),
    /// The parameters of a form.
    Form(Box<[u8]>),
}

impl<'a, T> Few<'a, T> {
    /// The number of entries in the request, including those that were not kept.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Parses the entries that wait as text, and drops the results. So the request is refused for
    /// an unreadable entry before anything is done with the entries before it. The error comes with
    /// the entry's place, counted from 0.
    pub(crate) fn check<E>(
        &self,
        read: impl Fn(Raw<'a>) -> Result<T, E>,
    ) -> Result<(), (usize, E)> {
        for (at, raw) in (self.first.len()..).zip(&self.rest) {
            drop(read(raw.clone()).map_err(|error| (at, error))?);
        }
        Ok(())
    }

    /// The entries that were kept, in order; `read` parses those that wait as text.
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
                        // Finds the end of the entry without parsing it.
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

/// A list of a request with up to `MAX` entries, which are parsed with it. One more is an error.
#[derive(Debug)]
pub(crate) struct UpTo<T, const MAX: usize>(pub(crate) Vec<T>);

impl<T, const MAX: usize> Default for UpTo<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for UpTo<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UpToVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for UpToVisitor<T, MAX> {
            type Value = UpTo<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while entries.len() < MAX {
                    match list.next_element()? {
                        Some(entry) => entries.push(entry),
                        None => return Ok(UpTo(entries)),
                    }
                }
                match list.next_element::<IgnoredAny>()? {
                    Some(_) => Err(de::Error::custom(format_args!(
                        "there may be up to {MAX}, and there are more"
                    ))),
                    None => Ok(UpTo(entries)),
                }
            }
        }

        deserializer.deserialize_seq(UpToVisitor(PhantomData))
    }
}

#[cfg(test)]
impl<T: schemars::JsonSchema, const MAX: usize> schemars::JsonSchema for UpTo<T, MAX> {
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

/// Values by name. Keeps at most `MAX` of them and counts all.
#[derive(Debug)]
pub(crate) struct FewByName<T, const MAX: usize> {
    kept: BTreeMap<String, T>,
    len: usize,
}

/// The error for more values than allowed.
#[derive(Debug, thiserror::Error)]
#[error("there may be {max}, not {len}")]
pub(crate) struct TooMany {
    max: usize,
    len: usize,
}

impl<T, const MAX: usize> FewByName<T, MAX> {
    /// The values, unless there are more than allowed.
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
                        // A client that sent both did not mean the last one.
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

// Needed for the API's description: it writes the default value of a field.
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

/// Whether a deserializer is asked for an entry's text.
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

            /// JSON deserializers ignore the name.
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
        // A skipped entry must still be JSON.
        let broken = text.replace("0]", "}");
        assert!(serde_json::from_str::<Few<'_, u32>>(&broken).is_err());
    }
}

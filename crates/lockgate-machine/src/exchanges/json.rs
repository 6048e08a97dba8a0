//! JSON of filters and of what is published: values whose texts are slices where they can be.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How deep objects and arrays of a message may be nested for a filter to read it.
const DEPTH_MAX: usize = 64;

/// A value of JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Flag(bool),
    Number(f64),
    Text(Cow<'a, str>),
    Array(Vec<Self>),
    /// In the order of the names, of which one may come twice.
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl<'a> Json<'a> {
    /// Whether it is null, or an empty text.
    pub(super) fn is_nothing(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.is_empty(),
            _ => false,
        }
    }

    /// Reads JSON, whose objects and arrays are nested at most [`DEPTH_MAX`] deep: reading takes stack for each of them.
    pub(super) fn read(text: &'a [u8]) -> Result<Self, String> {
        if !is_shallow(text) {
            return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
        }
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// The values under that name.
    pub(super) fn named(&self, name: &str) -> &[(Cow<'a, str>, Self)] {
        match self {
            Self::Object(members) => {
                let begin = members.partition_point(|(other, _)| **other < *name);
                let behind = &members[begin..];
                &behind[..behind.partition_point(|(other, _)| **other <= *name)]
            }
            _ => &[],
        }
    }
}

/// Whether no more than [`DEPTH_MAX`] objects and arrays are open at any byte.
fn is_shallow(text: &[u8]) -> bool {
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    for byte in text {
        match (in_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return false;
        }
    }
    true
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Json<'de>, E> {
        Ok(Json::Flag(flag))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "filters compare numbers up to 10^9 with five digits behind the point"
    )]
    fn visit_i64<E: Error>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn visit_u64<E: Error>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number as f64))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json<'de>, A::Error> {
        let mut array = Vec::new();
        while let Some(value) = values.next_element()? {
            array.push(value);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json<'de>, A::Error> {
        let mut object = Vec::new();
        while let Some(name) = members.next_key_seed(Name)? {
            object.push((name, members.next_value()?));
        }
        object.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Json::Object(object))
    }
}

/// A name of a member, as a slice where it can be.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

//! Strict parsers for the two scalar types of the protocol.

use std::{borrow::Cow, collections::BTreeMap, fmt, ops::Deref};

use bytes::Bytes;
use lockgate_sigv4::hex::write_hex;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use crate::fault::{INTEGER, shorten};

/// The most texts in a list or a map of a request. No list of AWS is as long.
pub(crate) const TEXTS_MAX: usize = 500;

/// A string of a request. It borrows from the request unless JSON has escapes in it, so reading a
/// request copies no message body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    /// The text's bytes as a shared buffer: a view of `request` if the text lies within it, else the
    /// text's own buffer. Copies only a borrowed text that lies elsewhere.
    pub(crate) fn into_bytes(self, request: &Bytes) -> Bytes {
        match self.0 {
            Cow::Owned(text) => Bytes::from(text),
            Cow::Borrowed(text) => {
                let within = request.as_ptr_range();
                let text_range = text.as_bytes().as_ptr_range();
                if within.start <= text_range.start && text_range.end <= within.end {
                    request.slice_ref(text.as_bytes())
                } else {
                    Bytes::copy_from_slice(text.as_bytes())
                }
            }
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// A JSON object parsed as `T`. serde's derived code for a struct would also accept an array of its
/// fields in order, which no request of SQS is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Object<T>, E> {
                Err(wrong_text(text, &self))
            }
        }

        deserializer.deserialize_any(ObjectVisitor(std::marker::PhantomData))
    }
}

/// A list of texts, of at most [`TEXTS_MAX`].
pub(crate) fn texts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Text<'de>>>, D::Error> {
    struct Texts<'a>(Vec<Text<'a>>);
    struct TextsVisitor;

    impl<'de> Deserialize<'de> for Texts<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(TextsVisitor).map(Self)
        }
    }

    impl<'de> Visitor<'de> for TextsVisitor {
        type Value = Vec<Text<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut texts = Vec::new();
            while let Some(text) = list.next_element()? {
                if texts.len() == TEXTS_MAX {
                    return Err(too_many("list"));
                }
                texts.push(text);
            }
            Ok(texts)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Err(wrong_text(text, &self))
        }
    }

    Ok(Option::<Texts<'de>>::deserialize(deserializer)?.map(|texts| texts.0))
}

/// Whether a list has texts in it. The texts are not kept, because they do not matter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given(pub(crate) bool);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GivenVisitor;

        impl<'de> Visitor<'de> for GivenVisitor {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
                let mut given = Given(false);
                while list.next_element::<Text<'de>>()?.is_some() {
                    given.0 = true;
                }
                Ok(given)
            }

            fn visit_some<D: Deserializer<'de>>(self, list: D) -> Result<Given, D::Error> {
                list.deserialize_any(self)
            }

            fn visit_none<E>(self) -> Result<Given, E> {
                Ok(Given(false))
            }

            fn visit_unit<E>(self) -> Result<Given, E> {
                Ok(Given(false))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Given, E> {
                Err(wrong_text(text, &self))
            }
        }

        deserializer.deserialize_option(GivenVisitor)
    }
}

/// Texts by name, at most [`TEXTS_MAX`], each name once: a client that sent two texts of one name
/// did not mean the last one.
pub(crate) fn text_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<Text<'de>, Text<'de>>>, D::Error> {
    struct TextMap<'a>(BTreeMap<Text<'a>, Text<'a>>);
    struct MapVisitor;

    impl<'de> Deserialize<'de> for TextMap<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(MapVisitor).map(Self)
        }
    }

    impl<'de> Visitor<'de> for MapVisitor {
        type Value = BTreeMap<Text<'de>, Text<'de>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut texts = BTreeMap::new();
            while let Some(name) = map.next_key::<Text<'de>>()? {
                if texts.contains_key(&name) {
                    return Err(twice(&name));
                }
                if texts.len() == TEXTS_MAX {
                    return Err(too_many("map"));
                }
                texts.insert(name, map.next_value()?);
            }
            Ok(texts)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Err(wrong_text(text, &self))
        }
    }

    Ok(Option::<TextMap<'de>>::deserialize(deserializer)?.map(|texts| texts.0))
}

pub(crate) fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct Integer(i64);
    struct IntegerVisitor;

    impl<'de> Deserialize<'de> for Integer {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let number = deserializer.deserialize_newtype_struct(INTEGER, IntegerVisitor);
            number.map(Self)
        }
    }

    impl<'de> Visitor<'de> for IntegerVisitor {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("i64")
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, number: D) -> Result<i64, D::Error> {
            number.deserialize_any(self)
        }

        fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
            Ok(number)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<i64, E> {
            i64::try_from(number)
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<i64, E> {
            Err(wrong_text(text, &self))
        }
    }

    Ok(Option::<Integer>::deserialize(deserializer)?.map(|integer| integer.0))
}

/// The error for a text where another type is wanted. serde and serde_json would repeat the text,
/// however long it is. So a type that may meet a text there accepts any value and reports this
/// error.
pub(super) fn wrong_text<E: de::Error>(text: &str, expected: &dyn de::Expected) -> E {
    E::invalid_type(de::Unexpected::Str(&shorten(text)), expected)
}

/// The error for a map with a name that occurs twice.
pub(super) fn twice<E: de::Error>(name: &str) -> E {
    E::custom(format_args!("duplicate field `{}`", shorten(name)))
}

fn too_many<E: de::Error>(what: &str) -> E {
    E::custom(format_args!(
        "a {what} may have at most {TEXTS_MAX} entries"
    ))
}

/// A number of 128 bits in the form of a UUID. A batch's answer has ten of them, and general
/// formatting takes several times as long.
pub(crate) struct UuidText([u8; 36]);

impl UuidText {
    pub(crate) fn new(number: u128) -> Self {
        let bytes = number.to_be_bytes();
        let mut text = [b'-'; 36];
        for (from, to) in [(0..4, 0..8), (4..6, 9..13), (6..8, 14..18), (8..10, 19..23)] {
            write_hex(&bytes[from], &mut text[to]);
        }
        write_hex(&bytes[10..], &mut text[24..]);
        Self(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

/// An MD5 in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Md5Hex([u8; 32]);

impl Md5Hex {
    /// The digest's digits.
    pub(crate) fn new(digest: [u8; 16]) -> Self {
        let mut digits = [0; 32];
        write_hex(&digest, &mut digits);
        Self(digits)
    }

    /// The digits as text.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

impl fmt::Debug for Md5Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Md5Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_body_is_a_view_of_the_request() {
        let request = Bytes::from_static(br#"{"a":"plain","b":"esc\naped"}"#);
        let map: std::collections::BTreeMap<&str, Text<'_>> =
            serde_json::from_slice(&request).unwrap();
        let plain = map["a"].clone().into_bytes(&request);
        assert_eq!(plain, "plain");
        assert!(request.as_ptr_range().contains(&plain.as_ptr()));
        assert_eq!(map["b"].clone().into_bytes(&request), "esc\naped");
        assert_eq!(Text::from("elsewhere").into_bytes(&request), "elsewhere");
        assert_eq!(Text::from("").into_bytes(&Bytes::new()), "");
    }

    #[test]
    fn a_uuid_is_written_as_message_ids_are() {
        for number in [0, u128::MAX, 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978] {
            let expected = lockgate_core::MessageId::from_bits(number).to_string();
            assert_eq!(UuidText::new(number).as_str(), expected);
        }
    }

    #[test]
    fn structs_are_objects_only() {
        #[derive(Debug, Deserialize)]
        struct One {
            #[expect(dead_code, reason = "only its reading is tested")]
            a: u8,
        }
        assert!(serde_json::from_str::<Object<One>>(r#"{"a":1}"#).is_ok());
        let error = serde_json::from_str::<Object<One>>("[1]").unwrap_err();
        assert!(error.to_string().contains("an object"), "{error}");
        assert!(serde_json::from_str::<Text<'_>>("1").is_err());
    }
}

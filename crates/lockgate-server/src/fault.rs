//! Typed errors for requests that cannot be parsed.
//!
//! serde's errors are texts. [`Fault`] is an error type that keeps what serde reports, and
//! [`Typed`] is a deserializer around any other that fails with a [`Fault`].

use std::{
    borrow::Cow,
    cell::Cell,
    fmt::{self, Write as _},
};

use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected,
        VariantAccess, Visitor,
    },
};

/// The longest piece of a request that an error repeats, in bytes.
const ECHO_LEN_MAX: usize = 1024;

/// The name of a newtype that wants an integer. It asks the deserializer for any value, so that it
/// can word its errors itself.
pub(crate) const INTEGER: &str = "lockgate::Integer";

/// What is wrong with a value.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// It has another type than its place wants.
    Type {
        found: Found,
        wanted: Wanted,
        text: String,
    },
    /// Its object has no field of that name.
    UnknownField {
        name: String,
        text: String,
    },
    /// Its object lacks a required field.
    MissingField {
        name: &'static str,
        text: String,
    },
    Other(String),
    /// The inner deserializer failed: [`Typed::inner_error`] has its error.
    Inner,
}

/// Of what type a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Text,
    Number,
    Float,
    Truth(bool),
    List,
    Object,
    Other,
}

/// What a value's place wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Text,
    Integer,
    Other,
}

impl Fault {
    fn wants(mut self, by: Wanted) -> Self {
        // The innermost deserializer knows what was wanted; the outer ones only pass the fault on.
        if let Self::Type { wanted, .. } = &mut self
            && *wanted == Wanted::Other
        {
            *wanted = by;
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { text, .. }
            | Self::UnknownField { text, .. }
            | Self::MissingField { text, .. }
            | Self::Other(text) => f.write_str(text),
            Self::Inner => f.write_str("it cannot be read"),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::Other(shortened(format_args!("{text}")))
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match unexpected {
            Unexpected::Str(_) | Unexpected::Char(_) => Found::Text,
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => Found::Number,
            Unexpected::Float(_) => Found::Float,
            Unexpected::Bool(truth) => Found::Truth(truth),
            Unexpected::Seq => Found::List,
            Unexpected::Map => Found::Object,
            _ => Found::Other,
        };
        let text = match unexpected {
            // JSON's name for it.
            Unexpected::Unit => format!("invalid type: null, expected {expected}"),
            _ => shortened(format_args!(
                "invalid type: {unexpected}, expected {expected}"
            )),
        };
        Self::Type {
            found,
            wanted: Wanted::Other,
            text,
        }
    }

    fn unknown_field(name: &str, expected: &'static [&'static str]) -> Self {
        let name = shorten(name).into_owned();
        let text = de::value::Error::unknown_field(&name, expected).to_string();
        Self::UnknownField { name, text }
    }

    fn missing_field(name: &'static str) -> Self {
        let text = de::value::Error::missing_field(name).to_string();
        Self::MissingField { name, text }
    }
}

/// At most the first [`ECHO_LEN_MAX`] bytes of a text, so that an error is never as large as the
/// request that caused it.
pub(crate) fn shorten(text: &str) -> Cow<'_, str> {
    if text.len() <= ECHO_LEN_MAX {
        return text.into();
    }
    format!("{}...", &text[..text.floor_char_boundary(ECHO_LEN_MAX)]).into()
}

/// The same for text that is not formatted yet; the part beyond the limit is never formatted.
pub(crate) fn shortened(text: fmt::Arguments<'_>) -> String {
    struct Short(String);

    impl fmt::Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = ECHO_LEN_MAX.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            if text.len() <= room {
                return Ok(());
            }
            self.0.push_str("...");
            Err(fmt::Error)
        }
    }

    let mut short = Short(String::new());
    // Fails where the text is cut.
    let _ = short.write_fmt(text);
    short.0
}

/// A deserializer that fails with a [`Fault`], around a deserializer of a self-describing format
/// that fails with `E`.
///
/// Inside its calls serde passes only errors of one type. So a fault waits in `fault` while an
/// empty error goes through the inner deserializer, and an error of the inner deserializer waits in
/// `inner` while [`Fault::Inner`] goes through the visitors.
pub(crate) struct Typed<'c, D, E> {
    deserializer: D,
    fault: &'c Cell<Option<Fault>>,
    inner: &'c Cell<Option<E>>,
}

impl<'c, D, E> Typed<'c, D, E> {
    /// `fault` and `inner` are empty cells; `inner` receives the error that [`Fault::Inner`] stands
    /// for.
    pub(crate) fn new(
        deserializer: D,
        fault: &'c Cell<Option<Fault>>,
        inner: &'c Cell<Option<E>>,
    ) -> Self {
        Self {
            deserializer,
            fault,
            inner,
        }
    }
}

/// Turns an error of the inner deserializer into a fault.
fn outward<E>(fault: &Cell<Option<Fault>>, inner: &Cell<Option<E>>, error: E) -> Fault {
    fault.take().unwrap_or_else(|| {
        inner.set(Some(error));
        Fault::Inner
    })
}

/// Turns a fault into an error of the inner deserializer.
fn inward<E: de::Error>(fault: &Cell<Option<Fault>>, inner: &Cell<Option<E>>, found: Fault) -> E {
    if found == Fault::Inner
        && let Some(error) = inner.take()
    {
        return error;
    }
    fault.set(Some(found));
    E::custom("")
}

macro_rules! deserialize {
    ($($method:ident ($($name:ident: $type:ty),*) as $asked:ident($($given:ident),*), $wanted:ident;)*) => {$(
        #[allow(unused_variables, reason = "of a name nothing depends")]
        fn $method<V: Visitor<'de>>(self $(, $name: $type)*, visitor: V) -> Result<V::Value, Fault> {
            let visitor = Outside { reader: visitor, fault: self.fault };
            self.deserializer
                .$asked($($given,)* visitor)
                .map_err(|error| outward(self.fault, self.inner, error).wants(Wanted::$wanted))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Typed<'_, D, D::Error> {
    type Error = Fault;

    // Asked for any value, a JSON deserializer tells the visitor what there is. Asked for a number,
    // it would refuse a string by itself and repeat the whole string.
    deserialize! {
        deserialize_any() as deserialize_any(), Other;
        deserialize_bool() as deserialize_any(), Other;
        deserialize_i8() as deserialize_any(), Integer;
        deserialize_i16() as deserialize_any(), Integer;
        deserialize_i32() as deserialize_any(), Integer;
        deserialize_i64() as deserialize_any(), Integer;
        deserialize_u8() as deserialize_any(), Integer;
        deserialize_u16() as deserialize_any(), Integer;
        deserialize_u32() as deserialize_any(), Integer;
        deserialize_u64() as deserialize_any(), Integer;
        deserialize_f32() as deserialize_any(), Other;
        deserialize_f64() as deserialize_any(), Other;
        deserialize_char() as deserialize_any(), Text;
        deserialize_str() as deserialize_any(), Text;
        deserialize_string() as deserialize_any(), Text;
        deserialize_bytes() as deserialize_any(), Other;
        deserialize_byte_buf() as deserialize_any(), Other;
        deserialize_option() as deserialize_option(), Other;
        deserialize_unit() as deserialize_any(), Other;
        deserialize_unit_struct(name: &'static str) as deserialize_any(), Other;
        deserialize_seq() as deserialize_any(), Other;
        deserialize_tuple(len: usize) as deserialize_any(), Other;
        deserialize_tuple_struct(name: &'static str, len: usize) as deserialize_any(), Other;
        deserialize_map() as deserialize_any(), Other;
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
            as deserialize_enum(name, variants), Other;
        deserialize_identifier() as deserialize_any(), Other;
        deserialize_ignored_any() as deserialize_ignored_any(), Other;
    }

    /// By default serde would also read a list as an object's values in order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(FieldsOnly(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let wanted = if name == INTEGER {
            Wanted::Integer
        } else {
            Wanted::Other
        };
        let visitor = Outside {
            reader: visitor,
            fault: self.fault,
        };
        self.deserializer
            .deserialize_newtype_struct(name, visitor)
            .map_err(|error| outward(self.fault, self.inner, error).wants(wanted))
    }

    fn is_human_readable(&self) -> bool {
        self.deserializer.is_human_readable()
    }
}

/// A visitor that accepts an object only.
struct FieldsOnly<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for FieldsOnly<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(fields)
    }
}

/// Wraps a visitor or a seed that fails with faults, for an inner deserializer.
struct Outside<'c, R> {
    reader: R,
    fault: &'c Cell<Option<Fault>>,
}

macro_rules! visit {
    ($($method:ident ($($name:ident: $type:ty)?),)*) => {$(
        fn $method<E: de::Error>(self $(, $name: $type)?) -> Result<V::Value, E> {
            let visited = self.reader.$method::<Fault>($($name)?);
            visited.map_err(|found| inward(self.fault, &Cell::new(None), found))
        }
    )*};
}

macro_rules! visit_within {
    ($($method:ident $trait:ident,)*) => {$(
        fn $method<A: $trait<'de>>(self, within: A) -> Result<V::Value, A::Error> {
            let inner = Cell::new(None);
            let typed = Typed::new(within, self.fault, &inner);
            self.reader.$method(typed).map_err(|found| inward(self.fault, &inner, found))
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Outside<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.expecting(f)
    }

    visit! {
        visit_bool(value: bool),
        visit_i64(value: i64),
        visit_i128(value: i128),
        visit_u64(value: u64),
        visit_u128(value: u128),
        visit_f64(value: f64),
        visit_char(value: char),
        visit_str(value: &str),
        visit_borrowed_str(value: &'de str),
        visit_string(value: String),
        visit_bytes(value: &[u8]),
        visit_borrowed_bytes(value: &'de [u8]),
        visit_byte_buf(value: Vec<u8>),
        visit_none(),
        visit_unit(),
    }

    visit_within! {
        visit_some Deserializer,
        visit_newtype_struct Deserializer,
        visit_seq SeqAccess,
        visit_map MapAccess,
        visit_enum EnumAccess,
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Outside<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, within: D) -> Result<S::Value, D::Error> {
        let inner = Cell::new(None);
        let typed = Typed::new(within, self.fault, &inner);
        let read = self.reader.deserialize(typed);
        read.map_err(|found| inward(self.fault, &inner, found))
    }
}

impl<'c, A, E> Typed<'c, A, E> {
    fn around<R>(&self, reader: R) -> Outside<'c, R> {
        Outside {
            reader,
            fault: self.fault,
        }
    }

    fn outward(&self) -> impl Fn(E) -> Fault + use<'c, A, E> {
        let (fault, inner) = (self.fault, self.inner);
        move |error| outward(fault, inner, error)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Typed<'_, A, A::Error> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let (seed, outward) = (self.around(seed), self.outward());
        self.deserializer.next_element_seed(seed).map_err(outward)
    }

    fn size_hint(&self) -> Option<usize> {
        self.deserializer.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Typed<'_, A, A::Error> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let (seed, outward) = (self.around(seed), self.outward());
        self.deserializer.next_key_seed(seed).map_err(outward)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (seed, outward) = (self.around(seed), self.outward());
        self.deserializer.next_value_seed(seed).map_err(outward)
    }

    fn size_hint(&self) -> Option<usize> {
        self.deserializer.size_hint()
    }
}

impl<'de, 'c, A: EnumAccess<'de>> EnumAccess<'de> for Typed<'c, A, A::Error> {
    type Error = Fault;
    type Variant = Typed<'c, A::Variant, A::Error>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), Fault> {
        let (seed, outward) = (self.around(seed), self.outward());
        let (value, variant) = self.deserializer.variant_seed(seed).map_err(outward)?;
        Ok((value, Typed::new(variant, self.fault, self.inner)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Typed<'_, A, A::Error> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        let outward = self.outward();
        self.deserializer.unit_variant().map_err(outward)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        let (seed, outward) = (self.around(seed), self.outward());
        self.deserializer
            .newtype_variant_seed(seed)
            .map_err(outward)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        let (visitor, outward) = (self.around(visitor), self.outward());
        self.deserializer
            .tuple_variant(len, visitor)
            .map_err(outward)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let (visitor, outward) = (self.around(visitor), self.outward());
        self.deserializer
            .struct_variant(fields, visitor)
            .map_err(outward)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    enum Choice {
        Unit,
        New(u8),
        Struct { a: u8 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Input {
        name: String,
        #[serde(default)]
        list: Vec<Option<u16>>,
        #[serde(default)]
        map: BTreeMap<String, i64>,
        #[serde(default)]
        choice: Option<Choice>,
    }

    fn read(text: &str) -> Result<Input, (Fault, Option<serde_json::Error>)> {
        let (fault, inner) = (Cell::new(None), Cell::new(None));
        let mut json = serde_json::Deserializer::from_str(text);
        Input::deserialize(Typed::new(&mut json, &fault, &inner))
            .map_err(|found| (found, inner.take()))
    }

    #[test]
    fn what_is_read_is_what_is_read_without_it() {
        for text in [
            r#"{"name":"a","list":[1,null],"map":{"x":-1},"choice":"Unit"}"#,
            r#"{"name":"\u00e4","choice":{"New":7}}"#,
            r#"{"name":"","choice":{"Struct":{"a":1}},"list":[]}"#,
        ] {
            assert_eq!(read(text).unwrap(), serde_json::from_str(text).unwrap());
        }
    }

    #[test]
    fn faults_are_told_by_type_from_wherever_they_are() {
        let of_type = |found, wanted, text: &str| Fault::Type {
            found,
            wanted,
            text: text.to_owned(),
        };
        for (text, expected) in [
            (
                r#"{"name":7}"#,
                of_type(
                    Found::Number,
                    Wanted::Text,
                    "invalid type: integer `7`, expected a string",
                ),
            ),
            (
                r#"{"name":"a","list":[1,true]}"#,
                of_type(
                    Found::Truth(true),
                    Wanted::Integer,
                    "invalid type: boolean `true`, expected u16",
                ),
            ),
            (
                r#"{"name":"a","map":{"x":[]}}"#,
                of_type(
                    Found::List,
                    Wanted::Integer,
                    "invalid type: sequence, expected i64",
                ),
            ),
            (
                r#"{"name":null}"#,
                of_type(
                    Found::Other,
                    Wanted::Text,
                    "invalid type: null, expected a string",
                ),
            ),
            (
                r#"{"nmae":"a"}"#,
                Fault::UnknownField {
                    name: "nmae".to_owned(),
                    text: "unknown field `nmae`, expected one of `name`, `list`, `map`, `choice`"
                        .to_owned(),
                },
            ),
            (
                r#"{"list":[]}"#,
                Fault::MissingField {
                    name: "name",
                    text: "missing field `name`".to_owned(),
                },
            ),
        ] {
            let (found, inner) = read(text).unwrap_err();
            assert_eq!(found, expected, "{text}");
            assert!(inner.is_none(), "{text}");
        }
    }

    #[test]
    fn what_the_reader_within_finds_is_its_own_error() {
        for text in ["{", r#"{"name":"a","list":[1,}"#, r#"{"name":"\q"}"#, ""] {
            let (found, inner) = read(text).unwrap_err();
            assert_eq!(found, Fault::Inner, "{text}");
            let expected = serde_json::from_str::<Input>(text).unwrap_err();
            assert_eq!(inner.unwrap().to_string(), expected.to_string());
        }
    }

    #[test]
    fn no_text_is_repeated_whole() {
        for c in ["\\\"", "\u{7f}", "\u{202e}", "ä"] {
            let long = c.repeat(100_000);
            for text in [
                format!(r#"{{"name":"a","list":"{long}"}}"#),
                format!(r#"{{"name":"a","choice":"{long}"}}"#),
                format!(r#"{{"{long}":1}}"#),
            ] {
                let (found, _) = read(&text).unwrap_err();
                let text = found.to_string();
                assert!(text.len() < 1_300 && text.contains("..."), "{text}");
            }
        }
    }
}

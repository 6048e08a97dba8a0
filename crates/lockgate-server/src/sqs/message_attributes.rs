//! Attributes of a message: checks, storage as headers, filters and digests.

use std::{
    collections::{BTreeMap, btree_map},
    fmt,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lockgate_core::Header;
use md5::{Digest as _, Md5};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, Visitor},
};

use super::{
    digests::md5_each,
    error::{ErrorCode, SqsError},
    shapes::AttributeValue,
    text::{Md5Hex, Object, Text, twice, wrong_text},
};
use crate::queue::headers::{
    NAME_LEN_MAX, check_name, check_type, forbidden_character, forbidden_character_text, is_number,
    shared_kind,
};

/// How many attributes a message may have.
pub(crate) const ATTRIBUTES_MAX: usize = 10;
/// The only system attribute that a client may set.
pub(crate) const TRACE_HEADER: &str = "AWSTraceHeader";

/// Attribute values by name, as many as a message may have. Further ones are counted and dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttributeMap<'a> {
    kept: BTreeMap<Text<'a>, Object<AttributeValue<'a>>>,
    len: usize,
}

impl AttributeMap<'_> {
    /// The number of attributes in the request, including the dropped ones.
    fn len(&self) -> usize {
        self.len
    }
}

impl<'a> IntoIterator for AttributeMap<'a> {
    type Item = (Text<'a>, Object<AttributeValue<'a>>);
    type IntoIter = btree_map::IntoIter<Text<'a>, Object<AttributeValue<'a>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.kept.into_iter()
    }
}

impl<'m, 'a> IntoIterator for &'m AttributeMap<'a> {
    type Item = (&'m Text<'a>, &'m Object<AttributeValue<'a>>);
    type IntoIter = btree_map::Iter<'m, Text<'a>, Object<AttributeValue<'a>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.kept.iter()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for AttributeMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;

        impl<'de> Visitor<'de> for MapVisitor {
            type Value = AttributeMap<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut attributes = AttributeMap::default();
                while attributes.kept.len() < ATTRIBUTES_MAX {
                    let Some(name) = map.next_key::<Text<'de>>()? else {
                        break;
                    };
                    if attributes.kept.contains_key(&name) {
                        return Err(twice(&name));
                    }
                    attributes.kept.insert(name, map.next_value()?);
                }
                attributes.len = attributes.kept.len();
                if attributes.len == ATTRIBUTES_MAX {
                    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                        attributes.len += 1;
                    }
                }
                Ok(attributes)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Err(wrong_text(text, &self))
            }
        }

        deserializer.deserialize_any(MapVisitor)
    }
}

/// The MD5 of each body.
pub(crate) fn body_digests(bodies: &[&[u8]]) -> Vec<Md5Hex> {
    md5_each(bodies).into_iter().map(Md5Hex::new).collect()
}

/// The MD5 of a set of attributes, which SQS clients compare: for each attribute in order of names,
/// the length and bytes of its name, data type and value, with a mark for text or binary before the
/// value.
pub(crate) fn attributes_digest<'a>(
    sorted: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>,
) -> Option<Md5Hex> {
    const TEXT: u8 = 1;
    const BINARY: u8 = 2;
    let mut digest = Md5::new();
    let mut none = true;
    for (name, kind, value) in sorted {
        none = false;
        for part in [name.as_bytes(), kind.as_bytes()] {
            update_with_length(&mut digest, part);
        }
        digest.update([if is_binary(kind) { BINARY } else { TEXT }]);
        update_with_length(&mut digest, value);
    }
    (!none).then(|| Md5Hex::new(digest.finalize().into()))
}

fn update_with_length(digest: &mut Md5, part: &[u8]) {
    let len = u32::try_from(part.len()).expect("a message is far below 4 GiB");
    digest.update(len.to_be_bytes());
    digest.update(part);
}

/// The MD5 of a message's headers, which are kept sorted by name.
pub(crate) fn headers_digest<'a>(headers: impl IntoIterator<Item = &'a Header>) -> Option<Md5Hex> {
    attributes_digest(
        headers
            .into_iter()
            .map(|header| (&*header.name, &*header.kind, &*header.value)),
    )
}

/// The MD5 of the system attributes a send carried.
pub(crate) fn trace_digest(trace: &str) -> Option<Md5Hex> {
    attributes_digest([(TRACE_HEADER, "String", trace.as_bytes())])
}

/// Whether values of a data type are bytes instead of text.
pub(crate) fn is_binary(kind: &str) -> bool {
    kind.split('.').next() == Some("Binary")
}

/// A binary value as it goes out.
pub(crate) fn to_base64(value: &[u8]) -> String {
    STANDARD.encode(value)
}

/// Checks a message's attributes and turns them into headers, sorted by name.
pub(crate) fn to_headers(
    attributes: AttributeMap<'_>,
    request: &Bytes,
) -> Result<Vec<Header>, SqsError> {
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(SqsError::invalid_parameter(format!(
            "Number of message attributes [{}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].",
            attributes.len()
        )));
    }
    attributes
        .into_iter()
        .map(|(name, value)| to_header(&name, value.0, request))
        .collect()
}

fn to_header(name: &str, value: AttributeValue<'_>, request: &Bytes) -> Result<Header, SqsError> {
    if name.is_empty() {
        return Err(SqsError::invalid_parameter(
            "The request must contain non-empty message attribute name.",
        ));
    }
    check_name(name)?;
    if value.string_list_values.0 || value.binary_list_values.0 {
        return Err(SqsError::new(
            ErrorCode::UnsupportedOperation,
            "Message attribute list values in SendMessage operation are not supported.",
        ));
    }
    if value.data_type.is_none() && value.string_value.is_none() && value.binary_value.is_none() {
        return Err(SqsError::invalid_parameter(format!(
            "The message attribute '{name}' must contain non-empty message attribute value."
        )));
    }
    let kind = value
        .data_type
        .as_deref()
        .filter(|kind| !kind.is_empty())
        .ok_or_else(|| {
            SqsError::invalid_parameter(format!(
                "The message attribute '{name}' must contain non-empty message attribute type."
            ))
        })?;
    let base = check_type(name, kind)?;
    let empty = || {
        SqsError::invalid_parameter(format!(
            "Message (user) attribute '{name}' must contain a non-empty value of type '{base}'."
        ))
    };
    let kind = shared_kind(kind);
    let bytes = if base == "Binary" {
        let text = value.binary_value.ok_or_else(empty)?;
        let bytes = STANDARD.decode(text.as_bytes()).map_err(|error| {
            SqsError::serialization(format!(
                "The binary value of attribute '{name}' is no base64: {error}"
            ))
        })?;
        Bytes::from(bytes)
    } else {
        let text = value.string_value.ok_or_else(empty)?;
        if base == "Number" && !is_number(&text) && !text.is_empty() {
            return Err(SqsError::invalid_parameter(format!(
                "Can't cast the value of message (user) attribute '{name}' to a number."
            )));
        }
        // AWS answers with this code for an attribute and with InvalidMessageContents for a body.
        if let Some(found) = forbidden_character(&text) {
            return Err(SqsError::invalid_parameter(forbidden_character_text(
                found,
                "message attribute value",
            )));
        }
        text.into_bytes(request)
    };
    if bytes.is_empty() {
        return Err(empty());
    }
    Ok(Header {
        name: name.into(),
        kind,
        value: bytes,
    })
}

/// The trace header among a send's system attributes.
pub(crate) fn trace_header<'a>(attributes: AttributeMap<'a>) -> Result<Option<Text<'a>>, SqsError> {
    let mut trace = None;
    for (name, Object(value)) in attributes {
        if &*name != TRACE_HEADER {
            return Err(SqsError::invalid_parameter(format!(
                "Message system attribute name '{name:.256}' is invalid."
            )));
        }
        if value.data_type.as_deref() != Some("String") {
            return Err(SqsError::invalid_parameter(format!(
                "Message (system) attribute '{TRACE_HEADER}' must have the type 'String'."
            )));
        }
        let text = value
            .string_value
            .filter(|text| !text.is_empty())
            .ok_or_else(|| {
                SqsError::invalid_parameter(format!(
                    "Message (system) attribute '{TRACE_HEADER}' must contain a non-empty value of \
                 type 'String'."
                ))
            })?;
        if let Some(found) = forbidden_character(&text) {
            return Err(SqsError::invalid_parameter(forbidden_character_text(
                found,
                "message attribute value",
            )));
        }
        trace = Some(text);
    }
    Ok(trace)
}

/// Whether a message may take over the request's trace header.
pub(crate) fn is_trace_id(id: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&id.len()) && forbidden_character(id).is_none()
}

/// Which attributes a receive wants: names, `All`, `.*`, or `prefix.*`.
#[derive(Debug, Default)]
pub(crate) struct Filter<'a> {
    all: bool,
    names: Vec<Text<'a>>,
}

impl<'a> Filter<'a> {
    /// From the names as sent.
    pub(crate) fn new(names: Vec<Text<'a>>) -> Self {
        let all = names
            .iter()
            .any(|name| matches!(&**name, "All" | ".*" | "*"));
        Self { all, names }
    }

    /// Whether a receive returns the attribute.
    pub(crate) fn passes(&self, attribute: &str) -> bool {
        self.all
            || self.names.iter().any(|name| {
                name.strip_suffix(".*")
                    .map_or(&**name == attribute, |prefix| attribute.starts_with(prefix))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes from JSON, as a client sends them.
    fn headers(json: &str) -> Result<Vec<Header>, SqsError> {
        let attributes: AttributeMap<'_> = serde_json::from_str(json).unwrap();
        to_headers(attributes, &Bytes::new())
    }

    #[test]
    fn body_digests_are_those_of_the_definition() {
        // RFC 1321, section A.5.
        for (body, digest) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
        ] {
            assert_eq!(body_digests(&[body.as_bytes()])[0].as_str(), digest);
        }
    }

    #[test]
    fn attribute_digests_are_those_that_aws_answers() {
        // Recorded answers, as the test suites of other SQS servers have them.
        for (json, digest) in [
            (
                r#"{"Foo":{"DataType":"String","StringValue":"Bar"}}"#,
                "ae7155c6026991b6d54b11589678bf9c",
            ),
            (
                r#"{"Help.Me":{"DataType":"String","StringValue":"Me"},
                    "Hello":{"DataType":"String","StringValue":"There"},
                    "General":{"DataType":"String","StringValue":"Kenobi"}}"#,
                "4c360f3fdafd970e05fae2f149d997f5",
            ),
            (
                r#"{"SOME_Valid.attribute-Name":
                    {"DataType":"Number","StringValue":"1493147359900"}}"#,
                "36655e7e9d7c0e8479fa3f3f42247ae7",
            ),
            (
                r#"{"timestamp":
                    {"DataType":"Number.java.lang.Long","StringValue":"1493147359900"}}"#,
                "2e2e4876d8e0bd6b8c2c8f556831c349",
            ),
            (
                r#"{"somevalue":{"DataType":"String.custom","StringValue":"somevalue"}}"#,
                "9e05cca738e70ff6c6041e82d5e77ef1",
            ),
            (
                r#"{"id":{"DataType":"String","StringValue":"453ae55e-f03b-21a6-a4b1-70c2e2e8fe71"},
                    "mybin":{"DataType":"Binary","BinaryValue":"a2VrY2hlYnVrZWs="},
                    "timestamp":
                    {"DataType":"Number.java.lang.Long","StringValue":"1603134247654"},
                    "contentType":{"DataType":"String","StringValue":"application/json"}}"#,
                "049075255ebc53fb95f7f9f3cedf3c50",
            ),
        ] {
            let headers = headers(json).unwrap();
            assert_eq!(headers_digest(&headers).unwrap().as_str(), digest, "{json}");
        }
        assert_eq!(headers_digest(&[]), None);
        let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
        assert_eq!(
            trace_digest(trace).unwrap().as_str(),
            "5ae4d5d7636402d80f4eb6d213245a88"
        );
    }

    #[test]
    fn attributes_are_checked_one_by_one() {
        let good = [
            r#"{}"#,
            r#"{"a":{"DataType":"String","StringValue":" "}}"#,
            r#"{"attr.1øßä":{"DataType":"String","StringValue":"x"}}"#,
            r#"{"n":{"DataType":"Number","StringValue":"-1.5e3"}}"#,
            r#"{"n":{"DataType":"Number.float","StringValue":".5"}}"#,
            r#"{"b":{"DataType":"Binary.png","BinaryValue":"AA=="}}"#,
            r#"{"b":{"DataType":"String","StringValue":"x","StringListValues":[]}}"#,
        ];
        for json in good {
            headers(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        }
        let long = "x".repeat(257);
        let bad = [
            r#"{"":{"DataType":"String","StringValue":"x"}}"#.to_owned(),
            format!(r#"{{"{long}":{{"DataType":"String","StringValue":"x"}}}}"#),
            format!(r#"{{"a":{{"DataType":"String.{long}","StringValue":"x"}}}}"#),
            r#"{"a":{"StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"Str","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"string","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"String b","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"String.ä","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"String"}}"#.to_owned(),
            r#"{"a":{"DataType":"String","StringValue":""}}"#.to_owned(),
            r#"{"a":{"DataType":"String","StringValue":"\u0008"}}"#.to_owned(),
            r#"{"a":{"DataType":"String","BinaryValue":"AA=="}}"#.to_owned(),
            r#"{"a":{"DataType":"Binary","BinaryValue":""}}"#.to_owned(),
            r#"{"a":{"DataType":"Binary","StringValue":"x"}}"#.to_owned(),
            r#"{"a":{"DataType":"Number","StringValue":"149314735990a"}}"#.to_owned(),
            r#"{"a":{"DataType":"Number","StringValue":"inf"}}"#.to_owned(),
            r#"{"a":{"DataType":"Number","StringValue":"-nan"}}"#.to_owned(),
        ];
        for json in bad {
            let error = headers(&json).expect_err(&json);
            assert_eq!(error.code, ErrorCode::InvalidParameterValue, "{json}");
        }
        for name in [
            "aWs.x", "AMAZON.x", ".x", "x.", "x..y", "a!", "a\\\"", "a§", "a?", "×",
        ] {
            let json = format!(r#"{{"{name}":{{"DataType":"String","StringValue":"x"}}}}"#);
            let error = headers(&json).expect_err(&json);
            assert_eq!(error.code, ErrorCode::InvalidParameterValue, "{json}");
        }
        let error = headers(r#"{"a":{"DataType":"Binary","BinaryValue":"%"}}"#).unwrap_err();
        assert_eq!(error.code, ErrorCode::Serialization);
    }

    #[test]
    fn ten_attributes_are_allowed_and_eleven_are_not() {
        let json = |count: usize| {
            let one = |n| format!(r#""a{n}":{{"DataType":"String","StringValue":"x"}}"#);
            format!("{{{}}}", (0..count).map(one).collect::<Vec<_>>().join(","))
        };
        assert_eq!(headers(&json(10)).unwrap().len(), 10);
        assert!(headers(&json(11)).is_err());
    }

    #[test]
    fn filters_take_names_prefixes_and_all() {
        let passed = |names: &[&'static str]| {
            let filter = Filter::new(names.iter().map(|&name| name.into()).collect());
            ["General", "Hello", "Help.Me"]
                .into_iter()
                .filter(|name| filter.passes(name))
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (names, expected) in [
            (&[][..], ""),
            (&["All"], "General Hello Help.Me"),
            (&["*"], "General Hello Help.Me"),
            (&[".*"], "General Hello Help.Me"),
            (&["Foo", "Help"], ""),
            (&["Foo", "Hello"], "Hello"),
            (&["Hel.*"], "Hello Help.Me"),
            (&["AWS."], ""),
        ] {
            assert_eq!(passed(names), expected, "{names:?}");
        }
    }
}

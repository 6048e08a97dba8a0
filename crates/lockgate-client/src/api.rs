//! A message as `/api/v1` writes it: for bodies of [`Client::call`](crate::Client::call).

use std::collections::BTreeMap;

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use lockgate_core::Produced;
use serde::{Deserialize, Serialize};

/// A message to be sent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Message {
    /// The payload.
    #[serde(flatten)]
    pub body: Body,
    /// The ordering key, for a keyed queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The group, for an unkeyed queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The id for deduplication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_id: Option<String>,
    /// How long it is not delivered, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// When it may be delivered, as an RFC 3339 text; instead of `delay_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// How long it may wait, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_live_ms: Option<u64>,
    /// Named values beside the body.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Header>,
    /// The media type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<String>,
    /// A level above the queue's own, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// How urgent it is, 0 to 9.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u8,
    /// Which record of a producer it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<Producer>,
}

/// Which record of a producer a message is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Producer {
    /// The name of the producer.
    pub name: String,
    /// What the opening of the queue gave it last.
    pub incarnation: u64,
    /// The random number of the opening of its spool, in 16 hexadecimal digits.
    pub opening: String,
    /// The lane, 0 to 15.
    pub lane: u8,
    /// The number in the lane, from 1.
    pub number: u64,
    /// The number of the record before it, if that is on its way too.
    #[serde(skip_serializing_if = "is_zero")]
    pub after: u64,
}

impl From<Produced> for Producer {
    fn from(produced: Produced) -> Self {
        let mark = &produced.mark;
        Self {
            name: mark.producer().to_string(),
            incarnation: produced.incarnation.0,
            opening: format!("{:016x}", mark.opening()),
            lane: mark.lane(),
            number: mark.number(),
            after: produced.after,
        }
    }
}

/// A payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// The bytes, as `encoding` says.
    #[serde(default, rename = "body")]
    pub text: String,
    /// How `text` is to be read.
    #[serde(default, rename = "body_encoding")]
    pub encoding: Encoding,
}

/// A named value beside the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// What it is: `String`, `Number` or `Binary`, and perhaps more after a dot.
    #[serde(rename = "type", default = "string")]
    pub kind: String,
    /// The value, as `encoding` says.
    pub value: String,
    /// How `value` is to be read.
    #[serde(default)]
    pub encoding: Encoding,
}

/// How bytes stand in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As the text whose UTF-8 they are.
    #[default]
    Text,
    /// In base64, with padding.
    Base64,
}

fn string() -> String {
    "String".to_owned()
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl Body {
    /// Makes a payload of a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            encoding: Encoding::Text,
        }
    }

    /// Makes a payload of any bytes: as text where that is no longer than base64 in JSON.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        let (text, encoding) = Encoding::of(bytes);
        Self { text, encoding }
    }

    /// Returns the payload, byte for byte.
    ///
    /// # Errors
    /// If it is no base64.
    pub fn decode(&self) -> Result<Vec<u8>, DecodeError> {
        self.encoding.decode(&self.text)
    }
}

impl Header {
    /// Makes a value of a text.
    pub fn text(kind: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            value: value.into(),
            encoding: Encoding::Text,
        }
    }
}

impl Encoding {
    /// Writes bytes as a text: the one that is shorter in JSON.
    #[must_use]
    pub fn of(bytes: &[u8]) -> (String, Self) {
        match std::str::from_utf8(bytes) {
            Ok(text) if json_len(text) <= bytes.len().div_ceil(3) * 4 => {
                (text.to_owned(), Self::Text)
            }
            _ => (STANDARD.encode(bytes), Self::Base64),
        }
    }

    /// Returns the bytes that a text stands for.
    ///
    /// # Errors
    /// If it is no base64.
    pub fn decode(self, text: &str) -> Result<Vec<u8>, DecodeError> {
        match self {
            Self::Text => Ok(text.as_bytes().to_vec()),
            Self::Base64 => STANDARD.decode(text),
        }
    }
}

/// The length of a text in JSON, without its quotation marks.
fn json_len(text: &str) -> usize {
    let len = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.bytes().map(len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_body() {
        for bytes in [
            &b""[..],
            b"a\tb\n",
            b"\xff\0",
            b"\x01\x02",
            "tüx".as_bytes(),
        ] {
            let body = Body::bytes(bytes);
            assert_eq!(body.decode().unwrap(), bytes);
            let readable = bytes == b"a\tb\n" || bytes == "tüx".as_bytes() || bytes.is_empty();
            assert_eq!(body.encoding == Encoding::Text, readable, "{bytes:?}");
        }
    }
}

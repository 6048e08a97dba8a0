//! A message in the words of the API.

use std::collections::BTreeMap;

use base64::{DecodeError, Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

/// A message to be sent.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Message {
    #[serde(flatten)]
    pub(crate) body: Body,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_to_live_ms: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Header>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_context: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<String>,
}

/// A payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Body {
    #[serde(default, rename = "body")]
    pub(crate) text: String,
    #[serde(default, rename = "body_encoding")]
    pub(crate) encoding: Encoding,
}

/// A named value beside the body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    #[serde(rename = "type", default = "string")]
    pub(crate) kind: String,
    pub(crate) value: String,
    #[serde(default)]
    pub(crate) encoding: Encoding,
}

/// How bytes stand in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    #[default]
    Text,
    Base64,
}

fn string() -> String {
    "String".to_owned()
}

impl Body {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            encoding: Encoding::Text,
        }
    }

    /// Any bytes: as text where they are text that JSON does not make much longer.
    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        let is_control = |byte: &u8| *byte < b' ' && !b"\n\r\t".contains(byte);
        match String::from_utf8(bytes) {
            Ok(text) if !text.bytes().any(|byte| is_control(&byte)) => Self::text(text),
            other => Self {
                text: STANDARD.encode(other.map_or_else(|error| error.into_bytes(), Into::into)),
                encoding: Encoding::Base64,
            },
        }
    }

    /// The payload, byte for byte.
    pub(crate) fn decode(&self) -> Result<Vec<u8>, DecodeError> {
        self.encoding.decode(&self.text)
    }
}

impl Header {
    pub(crate) fn text(kind: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            value: value.into(),
            encoding: Encoding::Text,
        }
    }
}

impl Encoding {
    pub(crate) fn decode(self, text: &str) -> Result<Vec<u8>, DecodeError> {
        match self {
            Self::Text => Ok(text.as_bytes().to_vec()),
            Self::Base64 => STANDARD.decode(text),
        }
    }
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
            let body = Body::bytes(bytes.to_vec());
            assert_eq!(body.decode().unwrap(), bytes);
            let readable = bytes == b"a\tb\n" || bytes == "tüx".as_bytes() || bytes.is_empty();
            assert_eq!(body.encoding == Encoding::Text, readable, "{bytes:?}");
        }
    }
}

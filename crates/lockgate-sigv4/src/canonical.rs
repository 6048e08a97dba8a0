//! The canonical form of a request, and its signature.

use std::borrow::Cow;

use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode, utf8_percent_encode,
};
use sha2::{Digest as _, Sha256};

use crate::{BodyDigest, Head, Secret, hex::hex};

pub(crate) const ALGORITHM: &str = "AWS4-HMAC-SHA256";
pub(crate) const TERMINATOR: &str = "aws4_request";

/// What stays as it is in a canonical path or query.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const IN_PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// What a signature is made of, beside the request and the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `YYYYMMDDTHHMMSSZ`.
    pub(crate) time: String,
    /// `YYYYMMDD` of the scope.
    pub(crate) date: String,
    pub(crate) region: String,
    pub(crate) service: String,
    pub(crate) signed_headers: Vec<String>,
    /// Whether the signature is itself a part of the query.
    pub(crate) in_query: bool,
}

impl Scope {
    /// The query as it is signed.
    pub(crate) fn query(&self, head: Head<'_>) -> Option<String> {
        Some(canonical_query(head.query?, self.in_query))
    }

    /// The signature that the request should have; `None` if it cannot have any.
    pub(crate) fn mac(
        &self,
        head: Head<'_>,
        body: &BodyDigest,
        secret: &Secret,
    ) -> Option<Hmac<Sha256>> {
        let canonical = self.canonical_request(head, body)?;
        let scope = format!(
            "{}/{}/{}/{TERMINATOR}",
            self.date, self.region, self.service
        );
        let digest = hex(&Sha256::digest(canonical));
        let to_sign = format!("{ALGORITHM}\n{}\n{scope}\n{digest}", self.time);
        let first = [b"AWS4", secret.expose()].concat();
        let mut key = sign(&first, self.date.as_bytes());
        for part in [&*self.region, &*self.service, TERMINATOR] {
            key = sign(&key, part.as_bytes());
        }
        let mut mac = keyed(&key);
        mac.update(to_sign.as_bytes());
        Some(mac)
    }

    /// `None`: a signed header is not there.
    fn canonical_request(&self, head: Head<'_>, body: &BodyDigest) -> Option<Vec<u8>> {
        let mut canonical = format!("{}\n{}\n", head.method, canonical_path(head.path));
        canonical.push_str(&self.query(head).unwrap_or_default());
        canonical.push('\n');
        let mut canonical = canonical.into_bytes();
        for name in &self.signed_headers {
            let value = head.headers.get(name)?;
            canonical.extend_from_slice(name.as_bytes());
            canonical.push(b':');
            canonical.extend(one_spaced(value.as_bytes()));
            canonical.push(b'\n');
        }
        canonical.push(b'\n');
        canonical.extend_from_slice(self.signed_headers.join(";").as_bytes());
        canonical.push(b'\n');
        canonical.extend_from_slice(body.0.as_bytes());
        Some(canonical)
    }
}

/// Names and values, decoded as everybody here decodes them: a plus sign is a space.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
}

fn decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return percent_decode(spaced.as_bytes())
            .collect::<Vec<u8>>()
            .into();
    }
    percent_decode(text.as_bytes()).into()
}

/// Returns whether a path is the one that its canonical form names: without empty parts, `.` and `..`.
pub fn is_plain(path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
    let last = parts.next_back();
    last.is_none_or(|last| !matches!(last, "." | ".."))
        && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// Without dots and doubled slashes, and encoded once more than it came.
fn canonical_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut plain = format!("/{}", parts.join("/"));
    if plain.len() > 1 && path.ends_with('/') {
        plain.push('/');
    }
    utf8_percent_encode(&plain, IN_PATH).to_string()
}

/// Sorted, and encoded one way. A signature that is itself part of the query is left out.
///
/// What was encoded is decoded first, byte for byte, so that it does not matter in which case the
/// digits of `%2f` are, or whether a client encodes more than it must. A plus sign is a space, as the
/// decoders have it and as clients sign it that write spaces so: taken for itself it would have the
/// signature of `%2B` and the meaning of `%20`.
fn canonical_query(query: &str, has_signature: bool) -> String {
    let encode = |bytes: &[u8]| percent_encode(bytes, UNRESERVED).to_string();
    let mut encoded: Vec<(String, String)> = pairs(query)
        .filter(|(name, _)| !has_signature || **name != *b"X-Amz-Signature")
        .map(|(name, value)| (encode(&name), encode(&value)))
        .collect();
    encoded.sort_unstable();
    let joined: Vec<String> = encoded
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    joined.join("&")
}

/// Trimmed, with single spaces inside.
fn one_spaced(text: &[u8]) -> Vec<u8> {
    text.split(|&byte| byte == b' ')
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(&b' ')
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn sign(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = keyed(key);
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

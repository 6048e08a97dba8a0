//! AWS Signature Version 4, as a server checks it.
//!
//! Source: "Signature Version 4 signing process" in AWS's general reference; the vectors in the tests
//! are AWS's. Two requests that mean different things never have one signature: what the canonical
//! form would make equal is refused, or read from the canonical form itself (the query).

use std::borrow::Cow;

use hmac::{Hmac, KeyInit, Mac};
use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode, utf8_percent_encode,
};
use sha2::{Digest, Sha256};

use super::{AuthError, Secret};
use crate::hex::{from_hex, hex};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";

/// How far the client's clock may be off, either way: as on Amazon SQS.
const SKEW_SECONDS: i64 = 15 * 60;

/// How long an address that was signed beforehand may be good: as on AWS.
const PRESIGNED_SECONDS_MAX: i64 = 7 * 24 * 60 * 60;

/// What stays as it is in a canonical path or query.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const IN_PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// The headers that change what is done. The canonical form has one space where such a header may have
/// had several.
const DECIDING_HEADERS: [&str; 7] = [
    "accept",
    "content-type",
    "host",
    "x-amz-target",
    "x-amzn-query-mode",
    "x-amzn-trace-id",
    "x-lockgate-consumer",
];

/// The header in which a client announces its body's digest.
const BODY_DIGEST: &str = "x-amz-content-sha256";

/// A request's head, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Not decoded; without the question mark.
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
}

/// What a request says of its signature. Nothing in it is true before [`verify`](Self::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key_id: String,
    time: String,
    /// `YYYYMMDD` of the scope.
    date: String,
    pub(crate) region: String,
    pub(crate) service: String,
    signed_headers: Vec<String>,
    signature: [u8; 32],
    /// Set for an address that was signed beforehand: how many seconds it is good.
    expires: Option<i64>,
}

impl Claim {
    /// What the request claims, in its header or in its address; `None` without a signature.
    pub(crate) fn of(head: Head<'_>) -> Result<Option<Self>, AuthError> {
        let in_address = parameter(head.query, "X-Amz-Algorithm")?;
        let mut given = head.headers.get_all(AUTHORIZATION).iter();
        let claim = match (given.next(), given.next(), in_address) {
            (None, _, None) => return Ok(None),
            (Some(header), None, None) => {
                let header = header
                    .to_str()
                    .map_err(|_| AuthError::Incomplete("the Authorization header is not ASCII"))?;
                Self::in_header(header, head.headers)?
            }
            (None, _, Some(algorithm)) => Self::in_address(&algorithm, head.query)?,
            _ => return Err(AuthError::Incomplete("there is more than one signature")),
        };
        claim.check_signed_headers(head.headers)?;
        Ok(Some(claim))
    }

    fn in_header(header: &str, headers: &HeaderMap) -> Result<Self, AuthError> {
        let (algorithm, fields) = header.split_once(' ').ok_or(AuthError::Incomplete(
            "the Authorization header has no fields",
        ))?;
        if algorithm != ALGORITHM {
            return Err(AuthError::Incomplete(
                "the algorithm must be AWS4-HMAC-SHA256",
            ));
        }
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for field in fields.split(',') {
            let Some((name, value)) = field.trim().split_once('=') else {
                continue;
            };
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed,
                "Signature" => &mut signature,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return Err(AuthError::Incomplete(
                    "a field of Authorization comes twice",
                ));
            }
        }
        let time = single(headers, "x-amz-date")?
            .ok_or(AuthError::Incomplete("there is no X-Amz-Date header"))?;
        Self::new(
            credential.ok_or(AuthError::Incomplete("there is no Credential"))?,
            signed.ok_or(AuthError::Incomplete("there are no SignedHeaders"))?,
            signature.ok_or(AuthError::Incomplete("there is no Signature"))?,
            time,
            None,
        )
    }

    fn in_address(algorithm: &str, query: Option<&str>) -> Result<Self, AuthError> {
        if algorithm != ALGORITHM {
            return Err(AuthError::Incomplete(
                "the algorithm must be AWS4-HMAC-SHA256",
            ));
        }
        let field = |name, missing| {
            parameter(query, name).and_then(|value| value.ok_or(AuthError::Incomplete(missing)))
        };
        let credential = field("X-Amz-Credential", "there is no X-Amz-Credential")?;
        let signed = field("X-Amz-SignedHeaders", "there is no X-Amz-SignedHeaders")?;
        let signature = field("X-Amz-Signature", "there is no X-Amz-Signature")?;
        let time = field("X-Amz-Date", "there is no X-Amz-Date")?;
        let expires = field("X-Amz-Expires", "there is no X-Amz-Expires")?;
        let expires = expires
            .parse()
            .ok()
            .filter(|seconds| (1..=PRESIGNED_SECONDS_MAX).contains(seconds))
            .ok_or(AuthError::Incomplete(
                "X-Amz-Expires must be from 1 to 604800 seconds",
            ))?;
        Self::new(&credential, &signed, &signature, &time, Some(expires))
    }

    fn new(
        credential: &str,
        signed_headers: &str,
        signature: &str,
        time: &str,
        expires: Option<i64>,
    ) -> Result<Self, AuthError> {
        let parts: Vec<&str> = credential.split('/').collect();
        let [key_id, date, region, service, TERMINATOR] = parts[..] else {
            return Err(AuthError::Incomplete(
                "Credential must be KEY/DATE/REGION/SERVICE/aws4_request",
            ));
        };
        let signature = from_hex(signature).ok_or(AuthError::Incomplete(
            "Signature must be 64 hexadecimal digits",
        ))?;
        if !is_time(time) {
            return Err(AuthError::Incomplete(TIME_FORM));
        }
        if time[..8] != *date {
            return Err(AuthError::Incomplete(
                "the date of Credential is not the one of X-Amz-Date",
            ));
        }
        Ok(Self {
            key_id: key_id.to_owned(),
            time: time.to_owned(),
            date: date.to_owned(),
            region: region.to_owned(),
            service: service.to_owned(),
            signed_headers: signed_headers.split(';').map(ToOwned::to_owned).collect(),
            signature,
            expires,
        })
    }

    /// What decides on a request must be signed: who it is for, and every header of AWS's own, the
    /// action among them. Otherwise somebody on the way could exchange them.
    ///
    /// Content-Type is left unsigned by some clients (AWS's SDK for JavaScript, version 2). It decides
    /// only where a form has an action in its head: the body could be taken for JSON or for a form.
    fn check_signed_headers(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let is_signed = |name: &str| self.signed_headers.iter().any(|signed| signed == name);
        for name in &self.signed_headers {
            let mut values = headers.get_all(name).iter();
            let first = values.next();
            // They would be joined with commas, as one value may be.
            if values.next().is_some() {
                return Err(AuthError::Incomplete("a signed header comes twice"));
            }
            let spaced =
                first.is_some_and(|value| value.as_bytes().windows(2).any(|two| two == b"  "));
            if spaced && DECIDING_HEADERS.contains(&&**name) {
                return Err(AuthError::Incomplete(
                    "a signed header has several spaces in a row",
                ));
            }
        }
        let is_form = |kind: &HeaderValue| {
            let kind = kind.as_bytes().to_ascii_lowercase();
            kind.windows(4).any(|part| part == b"form")
        };
        if !is_signed("content-type")
            && headers.contains_key("x-amz-target")
            && headers.get_all(CONTENT_TYPE).iter().any(is_form)
        {
            return Err(AuthError::Incomplete(
                "the Content-Type of a form that has an X-Amz-Target must be signed",
            ));
        }
        if !is_signed("host") {
            return Err(AuthError::Incomplete("the Host header must be signed"));
        }
        let mut names = headers.keys().map(|name| name.as_str());
        if names.any(|name| name.starts_with("x-amz-") && !is_signed(name)) {
            return Err(AuthError::Incomplete("every X-Amz-* header must be signed"));
        }
        Ok(())
    }

    /// Whether the signature was made recently enough, or is still good. `now` is in seconds since
    /// 1970.
    pub(crate) fn check_time(&self, now: i64) -> Result<(), AuthError> {
        let format = "%Y%m%dT%H%M%SZ";
        let signed = jiff::civil::DateTime::strptime(format, &self.time)
            .and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC))
            .map_err(|_| AuthError::Incomplete(TIME_FORM))?
            .timestamp()
            .as_second();
        let good_for = self.expires.unwrap_or(SKEW_SECONDS);
        if now - signed > good_for || signed - now > SKEW_SECONDS {
            return Err(AuthError::Expired {
                signed: self.time.clone(),
            });
        }
        Ok(())
    }

    /// Whether the request, with a body of this digest, was signed with this secret. Takes the same
    /// time whatever differs.
    pub(crate) fn verify(&self, head: Head<'_>, body: &BodyDigest, secret: &Secret) -> bool {
        // Constant time.
        self.mac(head, body, secret)
            .is_some_and(|mac| mac.verify_slice(&self.signature).is_ok())
    }

    /// The query as it was signed. Whoever reads a signed request reads this and not what came:
    /// parameters have one order in it, and each character one form.
    pub(crate) fn query(&self, head: Head<'_>) -> Option<String> {
        Some(canonical_query(head.query?, self.expires.is_some()))
    }

    /// The signature that the request should have; `None` if it cannot have any.
    fn mac(&self, head: Head<'_>, body: &BodyDigest, secret: &Secret) -> Option<Hmac<Sha256>> {
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

/// The SHA-256 of a body, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BodyDigest(String);

impl BodyDigest {
    pub(crate) fn of(body: &[u8]) -> Self {
        Self(hex(&Sha256::digest(body)))
    }

    /// The one that the client announces, if it does. The body that comes must have it.
    pub(crate) fn announced(headers: &HeaderMap) -> Result<Option<Self>, AuthError> {
        match single(headers, BODY_DIGEST)? {
            None => Ok(None),
            Some(text) if from_hex::<32>(text).is_some() => Ok(Some(Self(text.to_owned()))),
            // A body that was left unsigned is among these: it decides what is done.
            Some(_) => Err(AuthError::Incomplete(
                "X-Amz-Content-SHA256 must be the SHA-256 of the body, in hexadecimal digits",
            )),
        }
    }
}

/// Signs a request to the SQS endpoint of `region`: adds `X-Amz-Date` and `Authorization` to its
/// headers, of which `Host` and every `X-Amz-*` are signed. `now` is in seconds since 1970.
///
/// The body must be sent as it is given here, and the path, with its query if it has one, must be
/// encoded as it will be sent.
///
/// # Errors
/// If the id of the key cannot stand in a header, or the time is beyond the year 9999.
pub fn sign_request(
    method: &str,
    path: &str,
    headers: &mut HeaderMap,
    body: &[u8],
    (key_id, secret): (&str, &Secret),
    region: &str,
    now: i64,
) -> Result<(), SignError> {
    let time = jiff::Timestamp::from_second(now)
        .map_err(|_| SignError)?
        .to_zoned(jiff::tz::TimeZone::UTC)
        .strftime("%Y%m%dT%H%M%SZ")
        .to_string();
    let value = HeaderValue::try_from(&time).map_err(|_| SignError)?;
    headers.insert("x-amz-date", value);
    let mut signed_headers: Vec<String> = headers
        .keys()
        .map(|name| name.as_str().to_owned())
        .filter(|name| name == "host" || name.starts_with("x-amz-"))
        .collect();
    signed_headers.sort_unstable();
    let claim = Claim {
        key_id: key_id.to_owned(),
        date: time.get(..8).ok_or(SignError)?.to_owned(),
        time,
        region: region.to_owned(),
        service: "sqs".to_owned(),
        signed_headers,
        signature: [0; 32],
        expires: None,
    };
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let head = Head {
        method,
        path,
        query,
        headers,
    };
    let body = BodyDigest::of(body);
    let mac = claim.mac(head, &body, secret).ok_or(SignError)?;
    let authorization = format!(
        "{ALGORITHM} Credential={key_id}/{}/{region}/sqs/{TERMINATOR}, SignedHeaders={}, \
         Signature={}",
        claim.date,
        claim.signed_headers.join(";"),
        hex(&mac.finalize().into_bytes()),
    );
    let value = HeaderValue::try_from(authorization).map_err(|_| SignError)?;
    headers.insert(AUTHORIZATION, value);
    Ok(())
}

/// A request that cannot be signed; see [`sign_request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the access key's id cannot stand in a header, or the clock is beyond the year 9999")]
pub struct SignError;

/// A header that may come once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, AuthError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| AuthError::Incomplete("a header of the signature is not ASCII")),
        _ => Err(AuthError::Incomplete(
            "a header of the signature comes twice",
        )),
    }
}

/// A parameter of the address that may come once, decoded.
fn parameter(query: Option<&str>, wanted: &str) -> Result<Option<String>, AuthError> {
    let mut found = pairs(query.unwrap_or("")).filter(|(name, _)| **name == *wanted.as_bytes());
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some((_, value)), None) => String::from_utf8(value.into_owned())
            .map(Some)
            .map_err(|_| AuthError::Incomplete("a parameter of the signature is not UTF-8")),
        _ => Err(AuthError::Incomplete(
            "a parameter of the signature comes twice",
        )),
    }
}

/// Names and values, decoded as everybody here decodes them: a plus sign is a space.
fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
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

/// Whether a path is the one that its canonical form names: without empty parts, `.` and `..`.
pub(crate) fn is_plain(path: &str) -> bool {
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

const TIME_FORM: &str = "X-Amz-Date must look like 20261121T070000Z";

/// Whether a text looks like `20261121T070000Z`.
fn is_time(text: &str) -> bool {
    text.len() == 16
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 => byte == b'T',
            15 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        })
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

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    /// 2015-08-30T12:36:00Z, when AWS signed its vectors.
    const THEN: i64 = 1_440_938_160;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().unwrap();
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    fn authorization(service: &str, signed: &str, signature: &str) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/{service}/aws4_request, \
             SignedHeaders={signed}, Signature={signature}"
        )
    }

    /// AWS's published vectors: method, path, query, signature.
    const VECTORS: &[(&str, &str, &str, &str)] = &[
        (
            "GET",
            "/",
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "GET",
            "/example/..",
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "GET",
            "//",
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "GET",
            "/",
            "Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "POST",
            "/",
            "",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
    ];

    fn claim_and_verify(
        method: &str,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<bool, AuthError> {
        let head = Head {
            method,
            path,
            query: (!query.is_empty()).then_some(query),
            headers,
        };
        let claim = Claim::of(head)?.ok_or(AuthError::Missing)?;
        claim.check_time(THEN)?;
        let body = BodyDigest::of(body);
        if BodyDigest::announced(headers)?.is_some_and(|announced| announced != body) {
            return Ok(false);
        }
        Ok(claim.verify(head, &body, &Secret::new(SECRET)))
    }

    #[test]
    fn vectors_of_aws_verify_and_nothing_beside_them() {
        for &(method, path, query, signature) in VECTORS {
            let signed = |signature: &str| {
                headers(&[
                    ("host", "example.amazonaws.com"),
                    ("x-amz-date", "20150830T123600Z"),
                    (
                        "authorization",
                        &authorization("service", "host;x-amz-date", signature),
                    ),
                ])
            };
            let good = signed(signature);
            let check = |method, path, query, headers: &HeaderMap, body: &[u8]| {
                claim_and_verify(method, path, query, headers, body).unwrap()
            };
            assert!(
                check(method, path, query, &good, b""),
                "{method} {path} {query}"
            );
            assert!(!check("PUT", path, query, &good, b""));
            assert!(!check(method, "/other", query, &good, b""));
            assert!(!check(method, path, "Param1=value2", &good, b""));
            assert!(!check(method, path, query, &good, b"x"));
            let mut other_host = good.clone();
            other_host.insert("host", HeaderValue::from_static("example.amazonaws.org"));
            assert!(!check(method, path, query, &other_host, b""));
            let flipped = signed(&signature.replace(['5', 'b'], "6"));
            assert!(!check(method, path, query, &flipped, b""));
        }
    }

    #[test]
    fn the_worked_example_of_the_reference_verifies() {
        let list = [
            (
                "content-type",
                "application/x-www-form-urlencoded; charset=utf-8",
            ),
            ("host", "iam.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
            (
                "authorization",
                &authorization(
                    "iam",
                    "content-type;host;x-amz-date",
                    "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
                ),
            ),
        ];
        let query = "Action=ListUsers&Version=2010-05-08";
        assert!(claim_and_verify("GET", "/", query, &headers(&list), b"").unwrap());
        let swapped = "Version=2010-05-08&Action=ListUsers";
        assert!(claim_and_verify("GET", "/", swapped, &headers(&list), b"").unwrap());
    }

    #[test]
    fn what_is_signed_here_verifies_here() {
        let mut signed = headers(&[("host", "localhost:9324"), ("x-amz-target", "AmazonSQS.X")]);
        let key = ("AKIDEXAMPLE", &Secret::new(SECRET));
        sign_request("POST", "/", &mut signed, b"{}", key, "us-east-1", THEN).unwrap();
        assert_eq!(claim_and_verify("POST", "/", "", &signed, b"{}"), Ok(true));
        assert_eq!(
            claim_and_verify("POST", "/", "", &signed, b"{ }"),
            Ok(false)
        );
        signed.insert("x-amz-target", HeaderValue::from_static("AmazonSQS.Y"));
        assert_eq!(claim_and_verify("POST", "/", "", &signed, b"{}"), Ok(false));
    }

    #[test]
    fn what_decides_must_be_signed() {
        let signature = "0".repeat(64);
        let claim = |signed: &str, extra: &[(&str, &str)]| {
            let authorization = authorization("sqs", signed, &signature);
            let mut list = vec![
                ("host", "h"),
                ("x-amz-date", "20150830T123600Z"),
                ("authorization", &*authorization),
            ];
            list.extend(extra);
            claim_and_verify("POST", "/", "", &headers(&list), b"")
        };
        assert_eq!(claim("host;x-amz-date", &[]), Ok(false));
        for (signed, extra) in [
            ("x-amz-date", &[][..]),
            ("host", &[]),
            (
                "host;x-amz-date",
                &[("x-amz-target", "AmazonSQS.PurgeQueue")],
            ),
            ("host;x-amz-date", &[("x-amz-date", "20150830T123601Z")]),
            (
                "host;x-amz-date",
                &[("authorization", "AWS4-HMAC-SHA256 x=y")],
            ),
        ] {
            let refused = claim(signed, extra);
            assert!(
                matches!(refused, Err(AuthError::Incomplete(_))),
                "{signed} {extra:?}"
            );
        }
    }

    #[test]
    fn signatures_are_good_for_a_quarter_of_an_hour_and_addresses_for_as_long_as_they_say() {
        let claim = |expires| Claim {
            key_id: "K".into(),
            time: "20150830T123600Z".into(),
            date: "20150830".into(),
            region: "us-east-1".into(),
            service: "sqs".into(),
            signed_headers: vec!["host".into()],
            signature: [0; 32],
            expires,
        };
        for (expires, late, good) in [
            (None, 900, true),
            (None, 901, false),
            (None, -900, true),
            (None, -901, false),
            (Some(60), 60, true),
            (Some(60), 61, false),
            (Some(604_800), 604_800, true),
            (Some(60), -901, false),
        ] {
            let outcome = claim(expires).check_time(THEN + late);
            assert_eq!(outcome.is_ok(), good, "{expires:?} {late}: {outcome:?}");
        }
    }

    #[test]
    fn an_announced_digest_must_be_the_bodys() {
        let announced = |text: &str| BodyDigest::announced(&headers(&[(BODY_DIGEST, text)]));
        assert_eq!(BodyDigest::announced(&HeaderMap::new()), Ok(None));
        let digest = BodyDigest::of(b"x");
        assert_eq!(announced(&digest.0), Ok(Some(digest.clone())));
        let upper = digest.0.to_uppercase();
        for wrong in [
            "UNSIGNED-PAYLOAD",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            "0",
            "",
            &*upper,
        ] {
            let refused = announced(wrong);
            assert!(matches!(refused, Err(AuthError::Incomplete(_))), "{wrong}");
        }
        let twice = headers(&[(BODY_DIGEST, &digest.0), (BODY_DIGEST, &digest.0)]);
        assert!(BodyDigest::announced(&twice).is_err());
    }

    #[test]
    fn headers_that_could_be_read_in_two_ways_are_refused() {
        let signature = "0".repeat(64);
        let claim = |signed: &str, extra: &[(&str, &str)]| {
            let authorization = authorization("sqs", signed, &signature);
            let mut list = vec![("host", "h"), ("x-amz-date", "20150830T123600Z")];
            list.push(("authorization", &*authorization));
            list.extend(extra);
            claim_and_verify("POST", "/", "", &headers(&list), b"")
        };
        let target = ("x-amz-target", "AmazonSQS.SendMessage");
        let form = ("content-type", "application/x-www-form-urlencoded");
        let json = ("content-type", "application/x-amz-json-1.0");
        for (signed, extra) in [
            ("host;x-amz-date", &[form][..]),
            ("host;x-amz-date", &[json]),
            ("host;x-amz-date;x-amz-target", &[target, json]),
            ("content-type;host;x-amz-date;x-amz-target", &[target, form]),
            ("host;user-agent;x-amz-date", &[("user-agent", "a  b")]),
        ] {
            assert_eq!(claim(signed, extra), Ok(false), "{signed} {extra:?}");
        }
        for (signed, extra) in [
            ("host;x-amz-date;x-amz-target", &[target, target][..]),
            ("host;x-amz-date", &[("host", "h")]),
            ("host;x-amz-date;x-amz-target", &[("x-amz-target", "A  B")]),
            ("host;x-amz-date;x-amz-target", &[target, form]),
            ("host;x-amz-date;x-amz-target", &[target, json, form]),
        ] {
            let refused = claim(signed, extra);
            let refused = matches!(refused, Err(AuthError::Incomplete(_)));
            assert!(refused, "{signed} {extra:?}");
        }
    }

    /// A signature made for an address, with this time and for so long.
    fn presigned(query: &str, time: &str, expires: &str) -> String {
        let headers = headers(&[("host", "h")]);
        let day = time.get(..8).unwrap_or("");
        let unsigned = format!(
            "{query}&X-Amz-Algorithm={ALGORITHM}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host\
             &X-Amz-Date={time}&X-Amz-Credential=AKIDEXAMPLE/{day}/us-east-1/sqs/aws4_request"
        );
        let claim = Claim {
            key_id: "AKIDEXAMPLE".into(),
            time: time.into(),
            date: day.into(),
            region: "us-east-1".into(),
            service: "sqs".into(),
            signed_headers: vec!["host".into()],
            signature: [0; 32],
            expires: Some(1),
        };
        let head = Head {
            method: "GET",
            path: "/",
            query: Some(&unsigned),
            headers: &headers,
        };
        let body = BodyDigest::of(b"");
        let mac = claim.mac(head, &body, &Secret::new(SECRET)).unwrap();
        let signature = hex(&mac.finalize().into_bytes());
        format!("{unsigned}&X-Amz-Signature={signature}")
    }

    #[test]
    fn an_address_signed_beforehand_says_one_time_and_one_span() {
        let check =
            |query: &str| claim_and_verify("GET", "/", query, &headers(&[("host", "h")]), b"");
        let then = "20150830T123600Z";
        let good = presigned("Action=ListQueues", then, "60");
        assert_eq!(check(&good), Ok(true));
        assert_eq!(check(&good.replace("List", "Purge")), Ok(false));
        assert_eq!(check(&good.replace("Expires=60", "Expires=61")), Ok(false));
        assert_eq!(check(&presigned("a=b", then, "604800")), Ok(true));
        for expires in ["0", "-1", "604801", "9223372036854775808", "", "x", "1.5"] {
            let refused = check(&presigned("a=b", then, expires));
            assert!(
                matches!(refused, Err(AuthError::Incomplete(_))),
                "{expires}"
            );
        }
        for (time, expired) in [
            ("99990101T000000Z", true),
            ("99991231T235959Z", false), // later than times can be told in every zone
            ("00010101T000000Z", true),
            ("20150830T123600z", false),
            ("20150830T1236000", false),
            ("2015083T0123600Z", false),
            ("-0150830T123600Z", false),
            ("20150832T123600Z", false),
            ("20150830T126000Z", false),
            ("20150830T123600Z%0A", false),
            ("", false),
        ] {
            match check(&presigned("a=b", time, "60")) {
                Err(AuthError::Expired { .. }) => assert!(expired, "{time}"),
                Err(AuthError::Incomplete(_)) => assert!(!expired, "{time}"),
                other => panic!("{time}: {other:?}"),
            }
        }
        for twice in ["X-Amz-Date=20150830T123600Z", "%58-Amz-Signature=00"] {
            let refused = check(&format!("{good}&{twice}"));
            assert!(matches!(refused, Err(AuthError::Incomplete(_))), "{twice}");
        }
    }

    #[test]
    fn no_header_makes_it_panic() {
        for text in [
            "",
            " ",
            "AWS4-HMAC-SHA256",
            "AWS4-HMAC-SHA256 ",
            "AWS4-HMAC-SHA256 Credential=",
            "AWS4-HMAC-SHA256 Credential=a/b/c/d/e,SignedHeaders=,Signature=",
            "AWS4-HMAC-SHA256 Credential=////aws4_request,SignedHeaders=;;;,Signature=\u{e9}",
            "Basic eDp5",
            "Bearer x",
        ] {
            let list = headers(&[("host", "h"), ("x-amz-date", "20150830T123600Z")]);
            let mut list = list;
            if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
                list.insert("authorization", value);
            }
            assert!(
                claim_and_verify("GET", "/", "", &list, b"").is_err(),
                "{text:?}"
            );
        }
    }
}

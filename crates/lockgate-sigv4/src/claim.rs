//! What a request claims of its signature, as a server checks it.

use hmac::Mac as _;
use http::{HeaderMap, header::AUTHORIZATION};

use crate::{
    BodyDigest, Head, Secret, SignatureError,
    canonical::{ALGORITHM, Scope, TERMINATOR, pairs},
    hex::from_hex,
};

/// How far the client's clock may be off, either way: as on Amazon SQS.
const SKEW_SECONDS: i64 = 15 * 60;

/// How long an address that was signed beforehand may be good: as on AWS.
const PRESIGNED_SECONDS_MAX: i64 = 7 * 24 * 60 * 60;

/// What a request says of its signature. Nothing in it is true before [`verify`](Self::verify).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    key_id: String,
    scope: Scope,
    signature: [u8; 32],
    /// Set for an address that was signed beforehand: how many seconds it is good.
    expires: Option<i64>,
}

impl Claim {
    /// What the request claims, in its header or in its address; `None` without a signature.
    ///
    /// # Errors
    /// [`SignatureError::Incomplete`]: also if `Host` or an `X-Amz-*` header is not signed, or a signed header
    /// comes twice.
    pub fn of(head: Head<'_>) -> Result<Option<Self>, SignatureError> {
        let in_address = parameter(head.query, "X-Amz-Algorithm")?;
        let mut given = head.headers.get_all(AUTHORIZATION).iter();
        let claim = match (given.next(), given.next(), in_address) {
            (None, _, None) => return Ok(None),
            (Some(header), None, None) => {
                let header = header.to_str().map_err(|_| {
                    SignatureError::Incomplete("the Authorization header is not ASCII")
                })?;
                Self::in_header(header, head.headers)?
            }
            (None, _, Some(algorithm)) => Self::in_address(&algorithm, head.query)?,
            _ => {
                return Err(SignatureError::Incomplete(
                    "there is more than one signature",
                ));
            }
        };
        claim.check_signed_headers(head.headers)?;
        Ok(Some(claim))
    }

    fn in_header(header: &str, headers: &HeaderMap) -> Result<Self, SignatureError> {
        let (algorithm, fields) = header.split_once(' ').ok_or(SignatureError::Incomplete(
            "the Authorization header has no fields",
        ))?;
        if algorithm != ALGORITHM {
            return Err(SignatureError::Incomplete(
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
                return Err(SignatureError::Incomplete(
                    "a field of Authorization comes twice",
                ));
            }
        }
        let time = single(headers, "x-amz-date")?
            .ok_or(SignatureError::Incomplete("there is no X-Amz-Date header"))?;
        Self::new(
            credential.ok_or(SignatureError::Incomplete("there is no Credential"))?,
            signed.ok_or(SignatureError::Incomplete("there are no SignedHeaders"))?,
            signature.ok_or(SignatureError::Incomplete("there is no Signature"))?,
            time,
            None,
        )
    }

    fn in_address(algorithm: &str, query: Option<&str>) -> Result<Self, SignatureError> {
        if algorithm != ALGORITHM {
            return Err(SignatureError::Incomplete(
                "the algorithm must be AWS4-HMAC-SHA256",
            ));
        }
        let field = |name, missing| {
            parameter(query, name)
                .and_then(|value| value.ok_or(SignatureError::Incomplete(missing)))
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
            .ok_or(SignatureError::Incomplete(
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
    ) -> Result<Self, SignatureError> {
        let parts: Vec<&str> = credential.split('/').collect();
        let [key_id, date, region, service, TERMINATOR] = parts[..] else {
            return Err(SignatureError::Incomplete(
                "Credential must be KEY/DATE/REGION/SERVICE/aws4_request",
            ));
        };
        let signature = from_hex(signature).ok_or(SignatureError::Incomplete(
            "Signature must be 64 hexadecimal digits",
        ))?;
        if !is_time(time) {
            return Err(SignatureError::Incomplete(TIME_FORM));
        }
        if time[..8] != *date {
            return Err(SignatureError::Incomplete(
                "the date of Credential is not the one of X-Amz-Date",
            ));
        }
        Ok(Self {
            key_id: key_id.to_owned(),
            scope: Scope {
                time: time.to_owned(),
                date: date.to_owned(),
                region: region.to_owned(),
                service: service.to_owned(),
                signed_headers: signed_headers.split(';').map(ToOwned::to_owned).collect(),
                in_query: expires.is_some(),
            },
            signature,
            expires,
        })
    }

    /// Who a request is for, and every header of AWS's own, must be signed. Otherwise somebody on the way
    /// could exchange them.
    fn check_signed_headers(&self, headers: &HeaderMap) -> Result<(), SignatureError> {
        for name in &self.scope.signed_headers {
            // They would be joined with commas, as one value may be.
            if headers.get_all(name).iter().nth(1).is_some() {
                return Err(SignatureError::Incomplete("a signed header comes twice"));
            }
        }
        if !self.signs("host") {
            return Err(SignatureError::Incomplete("the Host header must be signed"));
        }
        let mut names = headers.keys().map(|name| name.as_str());
        if names.any(|name| name.starts_with("x-amz-") && !self.signs(name)) {
            return Err(SignatureError::Incomplete(
                "every X-Amz-* header must be signed",
            ));
        }
        Ok(())
    }

    /// The id of the access key that it names.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The region that it is for.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.scope.region
    }

    /// The service that it is for.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.scope.service
    }

    /// Whether the header of that name (in lower case) is signed. A server refuses a request in which a
    /// header is not signed that changes what is done. The canonical form has one space where a signed header
    /// may have had several.
    #[must_use]
    pub fn signs(&self, name: &str) -> bool {
        self.scope
            .signed_headers
            .iter()
            .any(|signed| signed == name)
    }

    /// Whether the signature was made recently enough, or is still good. `now` is in seconds since
    /// 1970.
    ///
    /// # Errors
    /// [`SignatureError::Expired`] if not; [`SignatureError::Incomplete`] if it names no time.
    pub fn check_time(&self, now: i64) -> Result<(), SignatureError> {
        let format = "%Y%m%dT%H%M%SZ";
        let signed = jiff::civil::DateTime::strptime(format, &self.scope.time)
            .and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC))
            .map_err(|_| SignatureError::Incomplete(TIME_FORM))?
            .timestamp()
            .as_second();
        let good_for = self.expires.unwrap_or(SKEW_SECONDS);
        if now - signed > good_for || signed - now > SKEW_SECONDS {
            return Err(SignatureError::Expired {
                signed: self.scope.time.clone(),
            });
        }
        Ok(())
    }

    /// Whether the request, with a body of this digest, was signed with this secret. Takes the same
    /// time whatever differs.
    #[must_use]
    pub fn verify(&self, head: Head<'_>, body: &BodyDigest, secret: &Secret) -> bool {
        // Constant time.
        self.scope
            .mac(head, body, secret)
            .is_some_and(|mac| mac.verify_slice(&self.signature).is_ok())
    }

    /// The query as it was signed. Whoever reads a signed request reads this and not what came:
    /// parameters have one order in it, and each character one form.
    #[must_use]
    pub fn query(&self, head: Head<'_>) -> Option<String> {
        self.scope.query(head)
    }
}

/// A header that may come once.
pub(crate) fn single<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> Result<Option<&'a str>, SignatureError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| SignatureError::Incomplete("a header of the signature is not ASCII")),
        _ => Err(SignatureError::Incomplete(
            "a header of the signature comes twice",
        )),
    }
}

/// A parameter of the address that may come once, decoded.
fn parameter(query: Option<&str>, wanted: &str) -> Result<Option<String>, SignatureError> {
    let mut found = pairs(query.unwrap_or("")).filter(|(name, _)| **name == *wanted.as_bytes());
    match (found.next(), found.next()) {
        (None, _) => Ok(None),
        (Some((_, value)), None) => String::from_utf8(value.into_owned())
            .map(Some)
            .map_err(|_| SignatureError::Incomplete("a parameter of the signature is not UTF-8")),
        _ => Err(SignatureError::Incomplete(
            "a parameter of the signature comes twice",
        )),
    }
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

#[cfg(test)]
mod tests {
    use http::header::{HeaderName, HeaderValue};

    use super::*;
    use crate::{BODY_DIGEST, Signer, hex::hex};

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
    ) -> Result<bool, SignatureError> {
        let head = Head {
            method,
            path,
            query: (!query.is_empty()).then_some(query),
            headers,
        };
        let claim = Claim::of(head)?.ok_or(SignatureError::Incomplete("none"))?;
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
        let signer = Signer {
            key_id: "AKIDEXAMPLE",
            secret: &Secret::new(SECRET),
            region: "us-east-1",
            service: "sqs",
        };
        signer.sign("POST", "/", &mut signed, b"{}", THEN).unwrap();
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
                matches!(refused, Err(SignatureError::Incomplete(_))),
                "{signed} {extra:?}"
            );
        }
    }

    #[test]
    fn signatures_are_good_for_a_quarter_of_an_hour_and_addresses_for_as_long_as_they_say() {
        let claim = |expires| Claim {
            key_id: "K".into(),
            scope: Scope {
                time: "20150830T123600Z".into(),
                date: "20150830".into(),
                region: "us-east-1".into(),
                service: "sqs".into(),
                signed_headers: vec!["host".into()],
                in_query: false,
            },
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
            assert!(
                matches!(refused, Err(SignatureError::Incomplete(_))),
                "{wrong}"
            );
        }
        let twice = headers(&[(BODY_DIGEST, &digest.0), (BODY_DIGEST, &digest.0)]);
        assert!(BodyDigest::announced(&twice).is_err());
    }

    #[test]
    fn a_signed_header_that_comes_twice_is_refused() {
        let authorization = authorization("sqs", "host;x-amz-date;x-other", &"0".repeat(64));
        let list = [
            ("host", "h"),
            ("x-amz-date", "20150830T123600Z"),
            ("authorization", &*authorization),
            ("x-other", "a"),
            ("x-other", "b"),
        ];
        let check = |list| claim_and_verify("POST", "/", "", &headers(list), b"");
        assert_eq!(check(&list[..4]), Ok(false));
        assert!(matches!(check(&list), Err(SignatureError::Incomplete(_))));
    }

    /// A signature made for an address, with this time and for so long.
    fn presigned(query: &str, time: &str, expires: &str) -> String {
        let headers = headers(&[("host", "h")]);
        let day = time.get(..8).unwrap_or("");
        let unsigned = format!(
            "{query}&X-Amz-Algorithm={ALGORITHM}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host\
             &X-Amz-Date={time}&X-Amz-Credential=AKIDEXAMPLE/{day}/us-east-1/sqs/aws4_request"
        );
        let scope = Scope {
            time: time.into(),
            date: day.into(),
            region: "us-east-1".into(),
            service: "sqs".into(),
            signed_headers: vec!["host".into()],
            in_query: true,
        };
        let head = Head {
            method: "GET",
            path: "/",
            query: Some(&unsigned),
            headers: &headers,
        };
        let body = BodyDigest::of(b"");
        let mac = scope.mac(head, &body, &Secret::new(SECRET)).unwrap();
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
                matches!(refused, Err(SignatureError::Incomplete(_))),
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
                Err(SignatureError::Expired { .. }) => assert!(expired, "{time}"),
                Err(SignatureError::Incomplete(_)) => assert!(!expired, "{time}"),
                other => panic!("{time}: {other:?}"),
            }
        }
        for twice in ["X-Amz-Date=20150830T123600Z", "%58-Amz-Signature=00"] {
            let refused = check(&format!("{good}&{twice}"));
            assert!(
                matches!(refused, Err(SignatureError::Incomplete(_))),
                "{twice}"
            );
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

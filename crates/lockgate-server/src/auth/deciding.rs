//! The headers that decide what a request does: what must be signed of them, and what is ambiguous.

use hyper::{
    HeaderMap,
    header::{CONTENT_TYPE, HeaderValue},
};
use lockgate_sigv4::Claim;

use super::AuthError;

/// The headers that change what is done. The canonical form has one space where such a header may have
/// had several.
const DECIDING_HEADERS: [&str; 8] = [
    "accept",
    "content-type",
    "host",
    "x-amz-target",
    "x-amzn-query-mode",
    "x-amzn-trace-id",
    "x-lockgate-consumer",
    "x-lockgate-fence",
];

/// Refuses a request whose signature leaves open what it asks for.
///
/// Content-Type is left unsigned by some clients (AWS's SDK for JavaScript, version 2). It decides
/// only where a form has an action in its head: the body could be taken for JSON or for a form.
pub(super) fn check(claim: &Claim, headers: &HeaderMap) -> Result<(), AuthError> {
    let spaced = |value: &HeaderValue| value.as_bytes().windows(2).any(|two| two == b"  ");
    let mut signed = DECIDING_HEADERS.iter().filter(|name| claim.signs(name));
    if signed.any(|name| headers.get(*name).is_some_and(spaced)) {
        return Err(AuthError::Incomplete(
            "a signed header has several spaces in a row",
        ));
    }
    let is_form = |kind: &HeaderValue| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        kind.windows(4).any(|part| part == b"form")
    };
    if !claim.signs("content-type")
        && headers.contains_key("x-amz-target")
        && headers.get_all(CONTENT_TYPE).iter().any(is_form)
    {
        return Err(AuthError::Incomplete(
            "the Content-Type of a form that has an X-Amz-Target must be signed",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;
    use lockgate_sigv4::Head;

    use super::*;

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

    fn claim_of(headers: &HeaderMap) -> Result<(), AuthError> {
        let head = Head {
            method: "POST",
            path: "/",
            query: None,
            headers,
        };
        let claim = Claim::of(head)?.ok_or(AuthError::Missing)?;
        check(&claim, headers)
    }

    #[test]
    fn headers_that_could_be_read_in_two_ways_are_refused() {
        let signature = "0".repeat(64);
        let claim = |signed: &str, extra: &[(&str, &str)]| {
            let authorization = authorization("sqs", signed, &signature);
            let mut list = vec![("host", "h"), ("x-amz-date", "20150830T123600Z")];
            list.push(("authorization", &*authorization));
            list.extend(extra);
            claim_of(&headers(&list))
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
            assert_eq!(claim(signed, extra), Ok(()), "{signed} {extra:?}");
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
}

//! Requests of a fuzzer with signatures.

use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};

use lockgate_sigv4::{BodyDigest, Claim, Head, Secret, Signer};

use super::deciding;

/// 2015-08-30T12:36:00Z, when AWS signed its vectors.
const NOW: i64 = 1_440_938_160;

/// A request as it stands on the wire: its signature is read and checked, and the same request signed
/// here verifies.
pub fn signature(bytes: &[u8]) -> Result<(), String> {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match end {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let (method, target) = first.split_once(' ').ok_or("there is no space")?;
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("there is no colon")?;
        // What hyper does not let through comes from nobody.
        let name: HeaderName = name.parse().map_err(|_| "a header's name")?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| "a header's value")?;
        headers.append(name, value);
    }
    let secret = Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
    let head = Head {
        method,
        path,
        query,
        headers: &headers,
    };
    let verdict = match Claim::of(head) {
        Err(error) => Err(error.to_string()),
        Ok(None) => Err("there is no signature".to_owned()),
        Ok(Some(claim)) => {
            let verifies = claim.verify(head, &BodyDigest::of(body), &secret);
            deciding::check(&claim, &headers).map_err(|error| error.to_string())?;
            let time = claim.check_time(NOW).map_err(|error| error.to_string());
            time.and(if verifies {
                Ok(())
            } else {
                Err("the signature does not verify".to_owned())
            })
        }
    };
    sign_again(method, target, headers, body, &secret);
    verdict
}

fn sign_again(method: &str, target: &str, mut headers: HeaderMap, body: &[u8], secret: &Secret) {
    headers.remove(AUTHORIZATION);
    headers.remove("x-amz-content-sha256");
    headers.insert("host", HeaderValue::from_static("localhost"));
    let signer = Signer {
        key_id: "AKIDEXAMPLE",
        secret,
        region: "us-east-1",
        service: "sqs",
    };
    if signer
        .sign(method, target, &mut headers, body, NOW)
        .is_err()
    {
        return;
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let head = Head {
        method,
        path,
        query,
        headers: &headers,
    };
    // With a second signature, in the address, it is refused.
    if let Ok(Some(claim)) = Claim::of(head) {
        assert!(
            claim.verify(head, &BodyDigest::of(body), secret),
            "signed here"
        );
        assert!(claim.check_time(NOW).is_ok(), "signed now");
    }
}

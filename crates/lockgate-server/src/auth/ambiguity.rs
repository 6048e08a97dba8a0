//! Two requests that mean different things never have one signature.

use hyper::{
    HeaderMap,
    header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue},
};
use lockgate_sigv4::Signer;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::sqs;

const ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const THEN: i64 = 1_440_938_160;
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");

/// A request as it stands on the wire, in pieces that are read in more than one way by somebody.
#[derive(Clone, Debug)]
struct Raw {
    path: Vec<&'static str>,
    query: Vec<&'static str>,
    targets: Vec<&'static str>,
    kinds: Vec<&'static str>,
    body: &'static str,
}

const PATH: [&str; 9] = ["/", "/", "a", "b", ".", "..", "%2e", "%2F", "%2f"];
const QUERY: [&str; 24] = [
    "&",
    "&",
    "&",
    "=",
    "=",
    "a",
    "b",
    "A",
    "+",
    " ",
    "%20",
    "%2B",
    "%2b",
    "%61",
    "%41",
    "%",
    "%zz",
    "%ff",
    "%EF%BF%BD",
    ";",
    "%26",
    "%3D",
    "X-Amz-Signature",
    "\u{e4}",
];
const TARGETS: [&str; 4] = ["AmazonSQS.A", "AmazonSQS.B", "A  B", "A B"];
const KINDS: [&str; 4] = [
    "application/x-amz-json-1.0",
    "application/x-www-form-urlencoded",
    "Application/X-WWW-Form-URLencoded; charset=utf-8",
    "text/plain",
];

fn raw() -> impl Strategy<Value = Raw> {
    let bodies = select(vec!["", "Action=A", "{}"]);
    let path = vec(select(PATH.to_vec()), 0..4);
    let query = vec(select(QUERY.to_vec()), 0..8);
    let targets = vec(select(TARGETS.to_vec()), 0..3);
    let kinds = vec(select(KINDS.to_vec()), 0..3);
    (path, query, targets, kinds, bodies).prop_map(|(path, query, targets, kinds, body)| Raw {
        path,
        query,
        targets,
        kinds,
        body,
    })
}

/// Another one that differs in a few pieces, such as one in the middle would make of it.
fn changed(raw: Raw) -> impl Strategy<Value = (Raw, Raw)> {
    let change = (
        0..5_usize,
        any::<prop::sample::Index>(),
        0..24_usize,
        0..3_usize,
    );
    vec(change, 1..4).prop_map(move |changes| {
        let mut other = raw.clone();
        for (what, at, piece, how) in changes {
            let edit = |list: &mut Vec<&'static str>, pieces: &[&'static str]| {
                let piece = pieces[piece % pieces.len()];
                let at = at.index(list.len() + 1);
                match how {
                    0 if at < list.len() => list[at] = piece,
                    1 if at + 1 < list.len() => list.swap(at, at + 1),
                    2 if at < list.len() => drop(list.remove(at)),
                    _ => list.insert(at, piece),
                }
            };
            match what {
                0 => edit(&mut other.path, &PATH),
                1 | 2 => edit(&mut other.query, &QUERY),
                3 => edit(&mut other.targets, &TARGETS),
                _ => edit(&mut other.kinds, &KINDS),
            }
        }
        (raw.clone(), other)
    })
}

impl Raw {
    fn path(&self) -> String {
        format!("/{}", self.path.concat())
    }

    fn query(&self) -> String {
        self.query.concat()
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("h"));
        for value in &self.targets {
            headers.append(TARGET, HeaderValue::from_static(value));
        }
        for value in &self.kinds {
            headers.append(CONTENT_TYPE, HeaderValue::from_static(value));
        }
        headers
    }

    /// What the decoders read of it; `None`: they refuse it.
    fn meaning(&self, query: &str) -> Option<impl PartialEq + std::fmt::Debug + use<>> {
        let headers = self.headers();
        let text = |name| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let target = text(TARGET);
        let kind = text(CONTENT_TYPE).map(|kind| kind.to_ascii_lowercase());
        let (is_form, is_json) = match &kind {
            None => (target.is_none(), target.is_some()),
            Some(kind) => (kind.contains("form"), kind.contains("json")),
        };
        let reading = match &target {
            Some(_) if is_form => "form",
            Some(_) => "json",
            None if is_json => return None,
            None if is_form || self.body.is_empty() => "form",
            None => return None,
        };
        let mut parameters = sqs::parameters(query)?;
        parameters.sort();
        Some((self.path(), parameters, target, reading, self.body))
    }
}

/// Verifies `raw` under the signature that `signed` has; the query as the decoders get it.
fn verify(who: &Authenticator, raw: &Raw, signed: &Raw) -> Option<Option<String>> {
    let (path, query) = (raw.path(), raw.query());
    let mut headers = signed.headers();
    let secret = Secret::new(SECRET);
    let signer = Signer {
        key_id: ID,
        secret: &secret,
        region: "us-east-1",
        service: "sqs",
    };
    let address = format!("{}?{}", signed.path(), signed.query());
    let body = signed.body.as_bytes();
    signer
        .sign("POST", &address, &mut headers, body, THEN)
        .unwrap();
    let mut asked = raw.headers();
    for name in ["authorization", "x-amz-date"] {
        asked.insert(name, headers[name].clone());
    }
    let head = Head {
        method: "POST",
        path: &path,
        query: Some(&query),
        headers: &asked,
    };
    let claim = who.claim(head, THEN).ok()?;
    let digest = BodyDigest::of(raw.body.as_bytes());
    who.verify(&claim, head, &digest).ok()?;
    Some(claim.query(head))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_verifies_under_one_signature_means_one_thing((one, other) in raw().prop_flat_map(changed)) {
        let key = AccessKey { id: ID.into(), secret: Secret::new(SECRET), grants: vec![] };
        let keys = Authentication::AccessKeys(vec![key]);
        let who = Authenticator::new(&keys, "us-east-1").unwrap();
        let Some(first) = verify(&who, &one, &one) else { return Ok(()) };
        let read = first.as_deref().unwrap_or("");
        // The query that is read means what the one that was sent means.
        prop_assert_eq!(one.meaning(read), one.meaning(&one.query()));
        if let Some(second) = verify(&who, &other, &one) {
            prop_assert_eq!(&first, &second);
            let (one, other) = (one.meaning(read), other.meaning(&other.query()));
            if let (Some(one), Some(other)) = (one, other) {
                prop_assert_eq!(one, other);
            }
        }
    }
}

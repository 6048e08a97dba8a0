//! AWS Signature Version 4: signing requests, and checking signatures.
//!
//! A client signs with a [`Signer`]; a server reads what a request claims with [`Claim::of`] and checks it
//! with [`Claim::verify`]. Both make the same canonical form of a request, which this crate has once.
//! Region and service are parameters. There is no I/O, and no clock is read: the time of signing is given,
//! in seconds since 1970.
//!
//! Source: "Signature Version 4 signing process" in AWS's general reference; the vectors in the tests
//! are AWS's. Two requests that mean different things never have one signature: what the canonical
//! form would make equal is refused, or read from the canonical form itself ([`Claim::query`]). Which
//! headers decide what a request does is for the server to know: see [`Claim::signs`].
//!
//! ```
//! use http::HeaderMap;
//! use lockgate_sigv4::{BodyDigest, Claim, Head, Secret, Signer};
//!
//! let secret = Secret::new("a secret of the example");
//! let signer = Signer { key_id: "AKIDEXAMPLE", secret: &secret, region: "us-east-1", service: "sqs" };
//! let now = 1_800_000_000;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("host", "localhost:9324".parse().unwrap());
//! signer.sign("POST", "/", &mut headers, b"{}", now).unwrap();
//!
//! let head = Head { method: "POST", path: "/", query: None, headers: &headers };
//! let claim = Claim::of(head).unwrap().expect("it is signed");
//! claim.check_time(now + 60).unwrap();
//! assert!(claim.verify(head, &BodyDigest::of(b"{}"), &secret));
//! assert!(!claim.verify(head, &BodyDigest::of(b"{ }"), &secret));
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod canonical;
mod claim;
pub mod hex;
mod sign;

use std::fmt;

use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

pub use canonical::is_plain;
pub use claim::Claim;
pub use sign::{SignError, Signer};

use self::hex::{from_hex, hex};

/// The header in which a client announces its body's digest.
const BODY_DIGEST: &str = "x-amz-content-sha256";

/// A text that never shows: not in logs, not in errors, not in memory that was given back.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps the text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is the same text as another. How long that takes does not tell where the two differ.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let digest = |secret: &Self| Sha256::digest(secret.expose());
        let differing = digest(self).into_iter().zip(digest(other));
        differing.fold(0, |bits, (one, other)| bits | (one ^ other)) == 0
    }

    fn expose(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Says why no signature can be read in a request, or why it is not good any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A part of it is missing, malformed or ambiguous.
    #[error("the signature does not conform to AWS's standards: {0}")]
    Incomplete(&'static str),
    /// It was made too long ago, or in the future.
    #[error("the signature of {signed} has expired, or the clocks differ by more than 15 minutes")]
    Expired {
        /// When it says that it was made, as `20261121T070000Z`.
        signed: String,
    },
}

/// The head of a request, as it came.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, not decoded.
    pub path: &'a str,
    /// Not decoded; without the question mark.
    pub query: Option<&'a str>,
    /// Its headers.
    pub headers: &'a HeaderMap,
}

/// The SHA-256 of a body, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyDigest(String);

impl BodyDigest {
    /// Returns the digest of a body.
    #[must_use]
    pub fn of(body: &[u8]) -> Self {
        Self(hex(&Sha256::digest(body)))
    }

    /// The one that the client announces, if it does. The body that comes must have it.
    ///
    /// # Errors
    /// If it announces more than one, or something else than a digest.
    pub fn announced(headers: &HeaderMap) -> Result<Option<Self>, SignatureError> {
        match claim::single(headers, BODY_DIGEST)? {
            None => Ok(None),
            Some(text) if from_hex::<32>(text).is_some() => Ok(Some(Self(text.to_owned()))),
            // A body that was left unsigned is among these: it decides what is done.
            Some(_) => Err(SignatureError::Incomplete(
                "X-Amz-Content-SHA256 must be the SHA-256 of the body, in hexadecimal digits",
            )),
        }
    }
}

//! Signing, as a client does it.

use hmac::Mac as _;
use http::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderValue},
};

use crate::{
    BodyDigest, Head, Secret,
    canonical::{ALGORITHM, Scope, TERMINATOR},
    hex::hex,
};

/// What requests are signed with: an access key, and what it is used for.
#[derive(Clone, Copy, Debug)]
pub struct Signer<'a> {
    /// The id of the access key.
    pub key_id: &'a str,
    /// Its secret.
    pub secret: &'a Secret,
    /// The region of the endpoint, such as `us-east-1`.
    pub region: &'a str,
    /// The service of the endpoint: `sqs` for Amazon SQS and for Lockgate.
    pub service: &'a str,
}

/// A request that cannot be signed; see [`Signer::sign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the access key's id cannot stand in a header, or the clock is beyond the year 9999")]
pub struct SignError;

impl Signer<'_> {
    /// Signs a request: adds `X-Amz-Date` and `Authorization` to its headers, of which `Host` and every
    /// `X-Amz-*` are signed. `now` is in seconds since 1970.
    ///
    /// The body must be sent as it is given here. `target`, the path with its query if it has one, must be
    /// encoded as it will be sent.
    ///
    /// # Errors
    /// If the id of the key, region or service cannot stand in a header, or the time is beyond the year 9999.
    pub fn sign(
        &self,
        method: &str,
        target: &str,
        headers: &mut HeaderMap,
        body: &[u8],
        now: i64,
    ) -> Result<(), SignError> {
        let Self {
            key_id,
            secret,
            region,
            service,
        } = *self;
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
        let scope = Scope {
            date: time.get(..8).ok_or(SignError)?.to_owned(),
            time,
            region: region.to_owned(),
            service: service.to_owned(),
            signed_headers,
            in_query: false,
        };
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let head = Head {
            method,
            path,
            query,
            headers,
        };
        let mac = scope
            .mac(head, &BodyDigest::of(body), secret)
            .ok_or(SignError)?;
        let authorization = format!(
            "{ALGORITHM} Credential={key_id}/{}/{region}/{service}/{TERMINATOR}, SignedHeaders={}, \
             Signature={}",
            scope.date,
            scope.signed_headers.join(";"),
            hex(&mac.finalize().into_bytes()),
        );
        let value = HeaderValue::try_from(authorization).map_err(|_| SignError)?;
        headers.insert(AUTHORIZATION, value);
        Ok(())
    }
}

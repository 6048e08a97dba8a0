//! Where a server is.

use std::{fmt, str::FromStr};

use hyper::{Uri, http::uri::Authority};

/// The URL of a server: `http://host:port` or `https://host:port`, with a path behind a reverse proxy.
///
/// ```
/// use lockgate_client::Endpoint;
///
/// let endpoint: Endpoint = "http://127.0.0.1:9324".parse().unwrap();
/// assert_eq!((endpoint.host(), endpoint.port()), ("127.0.0.1", 9324));
/// assert!("127.0.0.1:9324".parse::<Endpoint>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    https: bool,
    authority: Authority,
    path: String,
}

/// A text that is no [`Endpoint`]: it has another scheme, no host, a port beyond 65535, a user, or a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no endpoint, such as http://127.0.0.1:9324{why}")]
pub struct EndpointError {
    text: String,
    why: &'static str,
}

impl Endpoint {
    /// Returns whether it is spoken to through TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.https
    }

    /// Returns host and port, as in the Host header.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Returns the host without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
    }

    /// Returns the port: 80 or 443 where the URL names none.
    #[must_use]
    pub fn port(&self) -> u16 {
        let usual = if self.https { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(usual)
    }

    /// Returns the path that requests go to.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let bad = || EndpointError {
            text: text.to_owned(),
            why: "",
        };
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?.clone();
        if authority.host().is_empty() || authority.as_str().contains('@') || uri.query().is_some()
        {
            return Err(bad());
        }
        // What is no port would count as none, and so as 80 or 443.
        let port = &authority.as_str()[authority.host().len()..];
        if port.len() > 1 && authority.port_u16().is_none() {
            return Err(EndpointError {
                why: ": a port is a number up to 65535",
                ..bad()
            });
        }
        Ok(Self {
            https,
            authority,
            path: uri.path().to_owned(),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path.as_str() {
            "/" => "",
            path => path,
        };
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{path}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_secrets_or_query() {
        let endpoint: Endpoint = "http://[::1]:9400".parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), ("::1", 9400));
        assert_eq!((endpoint.authority(), endpoint.path()), ("[::1]:9400", "/"));
        let endpoint: Endpoint = "http://queue/sqs/".parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), ("queue", 80));
        assert_eq!(endpoint.to_string(), "http://queue/sqs/");
        let endpoint: Endpoint = "https://queue".parse().unwrap();
        assert_eq!((endpoint.is_https(), endpoint.port()), (true, 443));
        assert_eq!(endpoint.to_string(), "https://queue");
        for text in [
            "",
            "127.0.0.1:9324",
            "https://",
            "ftp://a",
            "http://",
            "http://u:p@a",
            "http://a?b",
            "http://a:65536",
            "https://[::1]:99999",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?} was read");
        }
    }
}

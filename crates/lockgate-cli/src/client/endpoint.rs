//! Where a server is.

use std::{fmt, str::FromStr};

use hyper::{Uri, http::uri::Authority};

/// The URL of a server: `http://host:port`, or with a path behind a reverse proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    authority: Authority,
    path: String,
}

impl Endpoint {
    /// Host and port, as in the Host header.
    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The host without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        self.authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
    }

    pub(crate) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(80)
    }

    /// The path requests go to.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no endpoint, such as http://127.0.0.1:9324");
        let uri: Uri = text.parse().map_err(|_| bad())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{text:?}: this client speaks plain HTTP only; use http:// to a server nearby"
                ));
            }
            _ => return Err(bad()),
        }
        let authority = uri.authority().ok_or_else(bad)?.clone();
        if authority.host().is_empty() || authority.as_str().contains('@') || uri.query().is_some()
        {
            return Err(bad());
        }
        Ok(Self {
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
        write!(f, "http://{}{path}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_plain_http_url() {
        let endpoint: Endpoint = "http://[::1]:9400".parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), ("::1", 9400));
        assert_eq!((endpoint.authority(), endpoint.path()), ("[::1]:9400", "/"));
        let endpoint: Endpoint = "http://queue/sqs/".parse().unwrap();
        assert_eq!((endpoint.host(), endpoint.port()), ("queue", 80));
        assert_eq!(endpoint.to_string(), "http://queue/sqs/");
        for text in [
            "",
            "127.0.0.1:9324",
            "https://a",
            "ftp://a",
            "http://",
            "http://u:p@a",
            "http://a?b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?} was read");
        }
    }
}

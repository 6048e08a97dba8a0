//! The host names by which a client may address the server.
//!
//! A web page anywhere may send requests to this machine. If it makes its own host name resolve to
//! 127.0.0.1 (DNS rebinding), it may even read the answers. `Host` and `Origin` reveal such a
//! request: they name the page's host.

use std::net::IpAddr;

/// The names that are served.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// Names besides the built-in ones.
    names: Vec<String>,
}

impl Hosts {
    /// `names`: hosts without port.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self {
            names: names.into_iter().collect(),
        }
    }

    /// Whether `authority` (host, or host and port) names this server. `local` is the address that
    /// the client is connected to: a literal address cannot be rebound, and health probes of
    /// orchestrators use one.
    pub(crate) fn serves(&self, authority: &str, local: IpAddr) -> bool {
        let Some((host, _port)) = split(authority) else {
            return false;
        };
        ["localhost", "127.0.0.1", "[::1]"]
            .into_iter()
            .chain(self.names.iter().map(String::as_str))
            .any(|name| host.eq_ignore_ascii_case(name))
            || address(host).is_some_and(|address| address == local.to_canonical())
    }

    /// Whether a request with this `Origin`, such as `http://localhost:8080`, comes from a host
    /// that this server allows.
    pub(crate) fn serves_origin(&self, origin: &str, local: IpAddr) -> bool {
        origin
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
            .is_some_and(|(_, authority)| self.serves(authority, local))
    }
}

/// Host and port of an authority; `None` if it is none. An authority with a user name counts as
/// none.
pub(crate) fn split(authority: &str) -> Option<(&str, Option<u16>)> {
    let host_len = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(host_len);
    if !is_host(host) {
        return None;
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Some((host, None)),
        // `parse` would accept a sign.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((host, Some(digits.parse().ok()?)))
        }
        _ => None,
    }
}

/// Whether `host` is a host name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn is_host(host: &str) -> bool {
    if host.starts_with('[') {
        return address(host).is_some();
    }
    (1..=253).contains(&host.len())
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

fn address(host: &str) -> Option<IpAddr> {
    let address = match host.strip_prefix('[') {
        Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse().ok()?),
        None => IpAddr::V4(host.parse().ok()?),
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_names_configured_names_and_the_address_connected_to_are_served() {
        let hosts = Hosts::new(["Queue.internal".to_owned(), "[fd00::5]".to_owned()]);
        let local: IpAddr = "10.1.2.3".parse().unwrap();
        for (authority, served) in [
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("127.0.0.1:9324", true),
            ("[::1]:9324", true),
            ("queue.INTERNAL:80", true),
            ("[fd00::5]", true),
            ("10.1.2.3:9324", true),
            ("[::ffff:10.1.2.3]", true),
            ("10.1.2.4", false),
            ("127.0.0.2", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("evil.example:localhost", false),
            ("localhost:", false),
            ("localhost:+80", false),
            ("localhost:80:80", false),
            ("localhost:99999", false),
            ("localhost@evil.example", false),
            ("evil@localhost", false),
            ("[::1", false),
            ("[::1]x", false),
            ("::1", false),
            ("[localhost]", false),
            ("", false),
            (":80", false),
        ] {
            assert_eq!(hosts.serves(authority, local), served, "{authority:?}");
        }
    }

    #[test]
    fn origins_are_served_by_their_host() {
        let hosts = Hosts::new([]);
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        for (origin, served) in [
            ("http://localhost:8080", true),
            ("https://127.0.0.1", true),
            ("http://[::1]:3000", true),
            ("http://evil.example", false),
            ("null", false),
            ("file://localhost", false),
            ("localhost", false),
            ("http://localhost/", false),
            ("", false),
        ] {
            assert_eq!(hosts.serves_origin(origin, local), served, "{origin:?}");
        }
    }
}

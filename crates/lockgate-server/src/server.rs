//! The server as its user sees it: options, binding, running.

use std::net::{Ipv4Addr, SocketAddr};

/// What a server may be told. Every field has a default that is safe on a developer's machine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Where to listen. Default: `127.0.0.1:9324`.
    pub listen: SocketAddr,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9324)),
        }
    }
}

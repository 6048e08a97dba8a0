//! The answer to a request, on its way to the socket.

use std::fmt;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

/// The answer to a request, whichever API it is of.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    /// `Content-Length` and `Date` are added when the answer is sent.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The SQS action of the request, if it has one.
    pub(crate) action: Option<&'static str>,
    /// Keeps the answer's leases once its first byte is written.
    pub(crate) on_sent: Option<KeepGuard>,
}

/// Decides what happens to the leases in an answer. [`KeepGuard::keep`] is called when the answer's
/// first byte has been written to the socket. If the guard is dropped before that, the leases go
/// back and the attempts do not count.
pub(crate) struct KeepGuard(Box<dyn FnOnce() + Send>);

impl KeepGuard {
    /// `keep` must own the guard that gives the leases back when it is dropped without being
    /// called.
    pub(crate) fn new(keep: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(keep))
    }

    /// The client has at least part of the answer.
    pub(crate) fn keep(self) {
        (self.0)();
    }
}

impl fmt::Debug for KeepGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepGuard")
    }
}

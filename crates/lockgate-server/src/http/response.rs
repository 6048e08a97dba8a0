//! What answers a request, on its way to the socket.

use std::fmt;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

/// The answer to a request, whichever API it is of.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    /// Headers; `Content-Length` and `Date` are added when it is sent.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The action of SQS that was asked for, if it is one.
    pub(crate) action: Option<&'static str>,
    /// Keeps the leases the answer hands out, once its first byte is on its way.
    pub(crate) on_sent: Option<KeepGuard>,
}

/// Decides what becomes of the leases in an answer: [`KeepGuard::keep`] when its first byte has been
/// written to the socket; dropped before that, the leases go back and the attempt does not count.
pub(crate) struct KeepGuard(Box<dyn FnOnce() + Send>);

impl KeepGuard {
    /// `keep` must own what gives the leases back when it is dropped without being called.
    pub(crate) fn new(keep: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(keep))
    }

    /// The client has the answer, or part of it.
    pub(crate) fn keep(self) {
        (self.0)();
    }
}

impl fmt::Debug for KeepGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepGuard")
    }
}

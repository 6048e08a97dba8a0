//! What may stand behind this server's listener in the place of queues.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use lockgate_core::Message;

use crate::{
    auth::AccessKey,
    queue::{HEADERS_MAX, LABEL_BYTES_MAX, headers, is_label},
};

/// Answers requests in the place of queues. The listener, its limits and deadlines, TLS, access keys, and the checks of
/// `Host` and `Origin` are the server's, and so are the pages `/healthz`, `/readyz` and `/metrics`, which need no
/// signature.
pub trait Handler: fmt::Debug + Send + Sync + 'static {
    /// Whether a request is taken, by its head. The body of one that is not is not read.
    ///
    /// # Errors
    /// The answer to a request that is not taken.
    fn takes(&self, method: &Method, path: &str) -> Result<(), Box<HandlerAnswer>>;

    /// Answers a request that is taken. It is dropped where the client has ended its side of the connection, after
    /// [`Deadlines::transfer_grace`](crate::Deadlines::transfer_grace), and at the end of a shutdown.
    fn answer(
        &self,
        request: HandlerRequest,
    ) -> Pin<Box<dyn Future<Output = HandlerAnswer> + Send + '_>>;

    /// Why `/readyz` fails, in words.
    ///
    /// # Errors
    /// If it fails.
    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;

    /// What `/metrics` has beside the figures of the listener, in the text format of Prometheus.
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>>;
}

/// A request for a [`Handler`].
#[derive(Debug)]
#[non_exhaustive]
pub struct HandlerRequest {
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body: up to [`Limits::body_bytes_max`](crate::Limits::body_bytes_max). It may be a part of a larger buffer, so
    /// copy what you keep.
    pub body: Bytes,
    /// Who signed it; `None` without authentication.
    pub sender: Option<Arc<AccessKey>>,
}

impl HandlerRequest {
    pub(crate) fn new(headers: HeaderMap, body: Bytes, sender: Option<Arc<AccessKey>>) -> Self {
        Self {
            headers,
            body,
            sender,
        }
    }
}

/// An answer of a [`Handler`].
#[derive(Clone, Debug)]
pub struct HandlerAnswer {
    /// Its status.
    pub status: StatusCode,
    /// `Content-Length` and `Date` are added when it is sent.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Checks what the server asks of any message that is sent over `/api/v1`: its headers, content type and trace context.
/// Whoever answers for a message before a server has seen it asks here first.
///
/// # Errors
/// What is wrong, in words.
pub fn check_message(message: &Message) -> Result<(), String> {
    if message.headers.len() > HEADERS_MAX {
        let given = message.headers.len();
        return Err(format!(
            "a message has {HEADERS_MAX} headers at most, not {given}"
        ));
    }
    for header in &message.headers {
        headers::check(&header.name, &header.kind, header.value.clone())
            .map_err(|error| format!("header {:?}: {}", header.name, error.message))?;
    }
    for (what, text) in [
        ("content type", &message.content_type),
        ("trace context", &message.trace_context),
    ] {
        if text.as_ref().is_some_and(|text| !is_label(text)) {
            return Err(format!(
                "a {what} has 1 to {LABEL_BYTES_MAX} bytes without control characters"
            ));
        }
    }
    Ok(())
}

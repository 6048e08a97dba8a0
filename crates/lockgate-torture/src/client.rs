//! A bare client of the SQS JSON protocol and of `/api/v1` that never hides a failure: one call is one request.

use std::{fmt, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, client::conn::http1, header, http::request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longer than any long poll here.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Why a call has no positive answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// Nobody listens: it was not even asked.
    Away,
    /// It may have happened: there is no answer, or none that says.
    Unknown,
    /// It did not happen, and may be asked again later.
    Refused { reason: String },
    /// It did not happen, and never should have been asked.
    Wrong { status: u16, body: Value },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away => f.write_str("nobody listens"),
            Self::Unknown => f.write_str("no answer"),
            Self::Refused { reason } => write!(f, "refused: {reason}"),
            Self::Wrong { status, body } => write!(f, "wrong, with {status}: {body}"),
        }
    }
}

/// One connection, opened again when it broke.
pub(crate) struct Client {
    address: SocketAddr,
    connection: Option<http1::SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    /// Calls an action once.
    pub(crate) async fn call(&mut self, action: &str, input: &Value) -> Result<Value, CallError> {
        // A request given up on takes its connection with it.
        let request = Request::post("/")
            .header(header::CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"));
        self.once(request, input).await
    }

    /// Calls an operation of the admin API once. `path` is behind its prefix.
    pub(crate) async fn api(
        &mut self,
        method: Method,
        path: &str,
        input: &Value,
    ) -> Result<Value, CallError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(header::CONTENT_TYPE, "application/json");
        self.once(request, input).await
    }

    async fn once(&mut self, request: request::Builder, input: &Value) -> Result<Value, CallError> {
        let body = match input {
            Value::Null => Full::default(),
            input => Full::from(input.to_string()),
        };
        let answer = self.request(request, body);
        let answer = tokio::time::timeout(ANSWER_MAX, answer).await;
        let (status, body) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let error = error.downcast_ref::<io::Error>().map(io::Error::kind);
                return Err(match error {
                    Some(io::ErrorKind::ConnectionRefused) => CallError::Away,
                    _ => CallError::Unknown,
                });
            }
            Err(_) => return Err(CallError::Unknown),
        };
        let body = if body.is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&body)
        };
        match (status, body) {
            (200, Ok(body)) => Ok(body),
            (503, body) => {
                let body = body.unwrap_or_default();
                let reason = body["message"].as_str().or(body["Message"].as_str());
                let reason = reason.unwrap_or("no reason given").to_owned();
                Err(CallError::Refused { reason })
            }
            (400..=499, Ok(body)) if status != 429 => Err(CallError::Wrong { status, body }),
            _ => Err(CallError::Unknown),
        }
    }

    /// Status and body of a page; `None` if no answer comes within so long.
    pub(crate) async fn page(&mut self, path: &str, within: Duration) -> Option<(u16, String)> {
        let answer = self.request(Request::get(path), Full::default());
        let (status, body) = tokio::time::timeout(within, answer).await.ok()?.ok()?;
        Some((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn request(
        &mut self,
        request: request::Builder,
        body: Full<Bytes>,
    ) -> anyhow::Result<(u16, Bytes)> {
        let request = request
            .header(header::HOST, self.address.to_string())
            .body(body)?;
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_ready() => connection,
            _ => {
                let stream = TcpStream::connect(self.address).await?;
                stream.set_nodelay(true)?;
                let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(driver);
                connection
            }
        };
        let answer = connection.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        self.connection = Some(connection);
        Ok((status, body))
    }
}

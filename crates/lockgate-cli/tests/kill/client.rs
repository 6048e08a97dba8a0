//! A bare client of the SQS JSON protocol that never hides a failure: one call is one request.

use std::{fmt, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longer than any long poll here.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Why a call has no positive answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It may have happened: there is no answer, or none that says.
    Unknown,
    /// It did not happen.
    Refused { status: u16, body: Value },
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no answer"),
            Self::Refused { status, body } => write!(f, "refused with {status}: {body}"),
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
        let answer = tokio::time::timeout(ANSWER_MAX, self.request(action, input)).await;
        let Ok(Ok((status, body))) = answer else {
            return Err(CallError::Unknown);
        };
        let body = if body.is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&body)
        };
        match (status, body) {
            (200, Ok(body)) => Ok(body),
            (400..=499, Ok(body)) if status != 429 => Err(CallError::Refused { status, body }),
            _ => Err(CallError::Unknown),
        }
    }

    async fn request(&mut self, action: &str, input: &Value) -> anyhow::Result<(u16, Bytes)> {
        let request = Request::post("/")
            .header(header::HOST, self.address.to_string())
            .header(header::CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .body(Full::from(input.to_string()))?;
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

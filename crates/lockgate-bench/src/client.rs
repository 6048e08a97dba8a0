//! The part of an SQS client that the benches need: one connection, one call at a time.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};

/// Longer than any stall that is worth a figure.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of one server. It connects at the first call.
pub(crate) struct Client {
    server: SocketAddr,
    connection: Option<SendRequest<Full<Bytes>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CreateQueue<'a> {
    pub(crate) queue_name: &'a str,
    pub(crate) attributes: BTreeMap<&'a str, &'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrl {
    pub(crate) queue_url: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageBatch<'a> {
    pub(crate) queue_url: &'a str,
    pub(crate) entries: Vec<SendEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendEntry {
    pub(crate) id: String,
    pub(crate) message_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_deduplication_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_group_id: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiveMessage<'a> {
    pub(crate) queue_url: &'a str,
    pub(crate) max_number_of_messages: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Messages {
    #[serde(default)]
    pub(crate) messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Message {
    pub(crate) receipt_handle: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DeleteMessageBatch<'a> {
    pub(crate) queue_url: &'a str,
    pub(crate) entries: Vec<DeleteEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DeleteEntry {
    pub(crate) id: String,
    pub(crate) receipt_handle: String,
}

/// The answer to a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchAnswer {
    #[serde(default)]
    pub(crate) failed: Vec<Failed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Failed {
    code: String,
    #[serde(default)]
    message: String,
}

impl BatchAnswer {
    /// Fails if an entry failed.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        match self.failed.into_iter().next() {
            None => Ok(()),
            Some(Failed { code, message }) => Err(anyhow::anyhow!(
                "the server refused a message of the bench: {message} ({code})"
            )),
        }
    }
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self {
            server,
            connection: None,
        }
    }

    /// Makes a call and parses the answer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &mut self,
        action: &str,
        request: &impl Serialize,
    ) -> anyhow::Result<T> {
        let (status, answer) = self.post(action, request).await?;
        ensure!(
            status.is_success(),
            "the server answered {action} with {status}: {}",
            String::from_utf8_lossy(&answer)
        );
        serde_json::from_slice(&answer).with_context(|| format!("the answer to {action}"))
    }

    /// Makes a call and returns the answer unparsed.
    pub(crate) async fn post(
        &mut self,
        action: &str,
        request: &impl Serialize,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::post("/")
            .header(HOST, self.server.to_string())
            .header(CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .header("x-amzn-query-mode", "true")
            .body(Full::new(Bytes::from(serde_json::to_vec(request)?)))?;
        timeout(TIMEOUT, self.exchange(request))
            .await
            .with_context(|| format!("{action} was not answered within {TIMEOUT:?}"))?
    }

    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        // The server closes connections that were idle for long.
        let idle = self.connection.take().filter(|idle| !idle.is_closed());
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(self.server).await?;
                // Requests are written whole; waiting to fill a packet only adds latency.
                stream.set_nodelay(true)?;
                let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
                // Ends with the connection; its error reaches the call that is waiting.
                tokio::spawn(driver);
                connection
            }
        };
        connection.ready().await?;
        let (head, body) = connection.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        self.connection = Some(connection);
        Ok((head.status, body))
    }
}

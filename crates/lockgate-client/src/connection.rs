//! Connections to a server, and the idle ones among them.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    CallError, Endpoint,
    trust::{self, Trust},
};

/// How long to wait for a connection to be accepted, and as long again for a TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that are kept for the next call.
const IDLE_MAX: usize = 32;

/// How long they are kept: less than servers and proxies keep one, so that few are found closed.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection, used by one call at a time. Dropping it closes it, also while an answer is waited for.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    idle_since: Instant,
}

/// Why a request has no answer.
pub(crate) enum Failed {
    /// It did not leave: here it is again.
    Unsent(Box<Request<Full<Bytes>>>, hyper::Error),
    /// It left, or part of it.
    Lost(hyper::Error),
}

impl Connection {
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failed> {
        if let Err(error) = self.sender.ready().await {
            return Err(Failed::Unsent(Box::new(request), error));
        }
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut error| match error.take_message() {
            Some(request) => Failed::Unsent(Box::new(request), error.into_error()),
            None => Failed::Lost(error.into_error()),
        })
    }

    pub(crate) async fn open(
        endpoint: &Endpoint,
        trust: Option<&Trust>,
    ) -> Result<Self, CallError> {
        let connect = |source| CallError::Connect {
            endpoint: endpoint.clone(),
            source,
        };
        let address = (endpoint.host(), endpoint.port());
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(connect)?;
        // Requests are written whole; waiting for more to fill a packet only adds latency.
        stream.set_nodelay(true).map_err(connect)?;
        let Some(Trust { connector, name }) = trust else {
            return Self::speak(stream).await.map_err(connect);
        };
        let stream = timeout(CONNECT_TIMEOUT, connector.connect(name.clone(), stream))
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(|error| match trust::explain(&error, endpoint) {
                Some(cause) => CallError::NoTls {
                    endpoint: endpoint.clone(),
                    cause,
                },
                None => connect(error),
            })?;
        Self::speak(stream).await.map_err(connect)
    }

    /// Begins HTTP on a connection.
    async fn speak(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // Ends with the sender, or with the connection; its error reaches the call that is waiting.
        tokio::spawn(connection);
        Ok(Self {
            sender,
            idle_since: Instant::now(),
        })
    }
}

/// Connections that no call uses: a bounded number, each for a bounded time.
#[derive(Debug, Default)]
pub(crate) struct Idle(Mutex<Vec<Connection>>);

impl Idle {
    /// The one that was used last.
    pub(crate) fn take(&self) -> Option<Connection> {
        self.of_use().pop()
    }

    /// Keeps a connection whose last answer was read whole.
    pub(crate) fn put(&self, mut connection: Connection) {
        connection.idle_since = Instant::now();
        let mut idle = self.of_use();
        if idle.len() == IDLE_MAX {
            idle.remove(0);
        }
        idle.push(connection);
    }

    /// Without those that are closed or too old.
    fn of_use(&self) -> MutexGuard<'_, Vec<Connection>> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| {
            !connection.sender.is_closed() && connection.idle_since.elapsed() < IDLE_TIME_MAX
        });
        idle
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_bounded_number_is_kept_and_the_last_is_used_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = format!("http://{address}").parse().unwrap();
        let idle = Idle::default();
        for _ in 0..IDLE_MAX + 3 {
            idle.put(Connection::open(&endpoint, None).await.unwrap());
        }
        assert_eq!(idle.of_use().len(), IDLE_MAX);
        let times = |idle: &Idle| -> Vec<Instant> {
            let idle = idle.of_use();
            idle.iter()
                .map(|connection| connection.idle_since)
                .collect()
        };
        let last = times(&idle).into_iter().max();
        assert_eq!(idle.take().map(|connection| connection.idle_since), last);
        // One that was kept for too long is not used.
        for connection in idle.0.lock().unwrap().iter_mut() {
            connection.idle_since -= IDLE_TIME_MAX;
        }
        assert!(idle.take().is_none());
    }
}

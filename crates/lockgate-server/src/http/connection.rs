//! One connection from accept to close: hyper does the protocol, and this module enforces the
//! deadlines.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response, body::Incoming, header::DATE, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    select,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::{
    Behind, Core,
    backup::Answer,
    counters::Refused,
    date, handled,
    progress::{Overdue, Progress},
    router,
    tls::Tls,
    wire::{Peer, Wire},
};
use crate::Limits;

/// One connected client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) core: Arc<Core>,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The server's address that the client is connected to.
    pub(crate) local: IpAddr,
    pub(crate) progress: Progress,
}

/// How a connection ended.
enum End {
    /// hyper or the client ended it.
    Protocol(hyper::Result<()>),
    Overdue(Overdue),
}

/// Configures hyper for all connections of a server.
///
/// The deadlines are ours ([`Progress`]): hyper has only one, for idling and heads together, and
/// none for bodies and answers. While a client waits for its answer, hyper looks for the end of the
/// client's side, unless the client has sent something ahead, and would then cut the connection. So
/// the [`Wire`] hides that end from hyper until the answer is out.
pub(crate) fn protocol(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .half_close(false)
        // See `date`.
        .auto_date_header(false)
        .pipeline_flush(false)
        .max_headers(limits.headers_max)
        .max_header_size(limits.head_bytes_max)
        // What hyper buffers before it gives up on an endless head. It is also the most it reads of
        // a body at a time.
        .max_buf_size(limits.head_bytes_max);
    builder
}

/// Serves one client until either side ends it.
pub(crate) async fn serve(core: Arc<Core>, socket: TcpStream, peer: SocketAddr) {
    // Answers are written whole; waiting to fill a packet would only add latency.
    let _ = socket.set_nodelay(true);
    let Ok(local) = socket.local_addr() else {
        return; // gone already
    };
    let acceptor = core.tls.as_deref().map(Tls::acceptor);
    let Some(acceptor) = acceptor else {
        return serve_http(core, socket, peer, local.ip()).await;
    };
    let shaken = select! {
        shaken = timeout(core.deadlines.header, acceptor.accept(socket)) => shaken,
        () = core.drain.begun() => return,
    };
    match shaken.unwrap_or_else(|elapsed| Err(elapsed.into())) {
        Ok(socket) => serve_http(core, socket, peer, local.ip()).await,
        Err(error) => {
            core.counters.refused(Refused::TlsHandshake);
            tracing::debug!(%peer, %error, "the TLS handshake failed");
        }
    }
}

async fn serve_http(
    core: Arc<Core>,
    socket: impl AsyncRead + AsyncWrite + Peer + Unpin,
    peer: SocketAddr,
    local: IpAddr,
) {
    let client = Arc::new(Client {
        progress: Progress::new(&core.deadlines, Instant::now()),
        peer,
        local,
        core,
    });
    let service = service_fn(|request| answer(client.clone(), request));
    let wire = TokioIo::new(Wire::new(socket, client.clone()));
    let mut connection = pin!(client.core.protocol.serve_connection(wire, service));
    let mut draining = pin!(client.core.drain.begun());
    let mut drain_is_watched = false;
    let mut drained = false;
    let far = client.core.deadlines.idle;
    let rings = Instant::now() + far;
    let sleep = pin!(sleep_until(rings));
    let mut alarm = Alarm::new(rings, far, sleep);
    let end = poll_fn(|cx| {
        // Checking the signal is cheap and waiting for it is expensive, so the task begins to wait
        // for it only once.
        if !drained && (!drain_is_watched || client.core.drain.has_begun()) {
            drain_is_watched = true;
            if draining.as_mut().poll(cx).is_ready() {
                drained = true;
                connection.as_mut().graceful_shutdown();
            }
        }
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            return Poll::Ready(End::Protocol(result));
        }
        // The deadline can only have moved within the poll above.
        alarm.poll(cx, client.progress.deadline()).map(End::Overdue)
    })
    .await;
    client.ended(&end);
}

async fn answer(
    client: Arc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let mut response = match &client.core.behind {
        Behind::Queues(queues) => router::answer(&client, queues, request).await,
        Behind::Handler(handler) => handled::answer(&client, &**handler, request).await,
    };
    if let Some(date) = date::header(client.core.now()) {
        response.headers_mut().insert(DATE, date);
    }
    Ok(response)
}

impl Client {
    fn ended(&self, end: &End) {
        let peer = self.peer;
        let refused = match end {
            End::Protocol(Ok(())) => return,
            End::Protocol(Err(error)) if error.is_parse_too_large() => Refused::HeadTooLarge,
            End::Protocol(Err(error)) if error.is_parse() => Refused::Malformed,
            End::Protocol(Err(error)) => {
                tracing::debug!(%peer, %error, "connection broken");
                return;
            }
            End::Overdue(Overdue::Idle | Overdue::Linger) => return,
            End::Overdue(Overdue::Header) => Refused::HeaderDeadline,
            End::Overdue(Overdue::Body) => Refused::BodyDeadline,
            End::Overdue(Overdue::Answer) => Refused::AnswerDeadline,
        };
        self.core.counters.refused(refused);
        tracing::debug!(%peer, reason = refused.label(), "connection cut");
    }
}

/// A timer for a deadline that moves often. The timer is set again only when the deadline comes
/// nearer, or when the timer fires too early. So a busy connection costs one timer operation in
/// [`Deadlines::idle`](crate::Deadlines::idle) instead of several for each request.
struct Alarm<'a> {
    rings: Instant,
    /// How far ahead the timer is set while there is no deadline.
    far: Duration,
    sleep: Pin<&'a mut Sleep>,
}

impl<'a> Alarm<'a> {
    /// `sleep` ends at `rings`.
    fn new(rings: Instant, far: Duration, sleep: Pin<&'a mut Sleep>) -> Self {
        Self { rings, far, sleep }
    }

    /// Ready when the deadline has passed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Option<(Instant, Overdue)>,
    ) -> Poll<Overdue> {
        if let Some((at, _)) = deadline
            && at < self.rings
        {
            self.set(at);
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            match deadline {
                Some((at, what)) if at <= self.rings => return Poll::Ready(what),
                Some((at, _)) => self.set(at),
                None => self.set(Instant::now() + self.far),
            }
        }
        Poll::Pending
    }

    fn set(&mut self, at: Instant) {
        self.rings = at;
        self.sleep.as_mut().reset(at);
    }
}

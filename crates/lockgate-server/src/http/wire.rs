//! The socket as hyper sees it. Accounts for every byte.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::server::TlsStream;

use super::connection::Client;
use super::response::KeepGuard;

/// A socket, or a TLS stream over one, that reports its traffic to the client's
/// [`Progress`](super::progress::Progress).
#[derive(Debug)]
pub(crate) struct Wire<S> {
    socket: S,
    client: Arc<Client>,
    /// How many more bytes are read and dropped before the connection is closed on a client that
    /// goes on sending.
    linger_bytes: usize,
    /// Set while it is not known whether a client that had ended its side has taken the answer
    /// written after that.
    doubt: Option<Doubt>,
}

/// An answer that was written to a client that had ended its side. The operating system shows only
/// later whether the client is gone: it acknowledges the answer, or it resets the connection.
#[derive(Debug, Default)]
struct Doubt {
    /// The guards that keep the leases of this answer and of those before it.
    keeps: Vec<KeepGuard>,
    asked: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

/// How often the system is asked whether a client has taken its answer: after 1 ms, 2 ms, 4 ms and
/// so on, for 8 s in all. No event reports it.
const ASKED_MAX: u32 = 13;

/// The poll events of a peer that has ended its side, or both sides.
#[cfg(target_os = "linux")]
const ENDED: PollFlags = PollFlags::HUP.union(PollFlags::RDHUP);
/// On other systems this event also reports one ended side.
#[cfg(not(target_os = "linux"))]
const ENDED: PollFlags = PollFlags::HUP;

/// A few times what common kernels keep in flight on a local connection.
const LINGER_BYTES: usize = 16 << 20;

impl<S: Peer> Wire<S> {
    pub(crate) fn new(socket: S, client: Arc<Client>) -> Self {
        Self {
            socket,
            client,
            linger_bytes: LINGER_BYTES,
            doubt: None,
        }
    }

    /// Asks the kernel whether the client has ended its side, before an answer with leases is
    /// written. hyper finds that out only when it reads. In a busy runtime an answer may come
    /// before that read, and hyper does not read while it has a request that was sent ahead.
    /// Requests that the client sent before its end are still read and answered.
    fn look(&self) {
        let progress = &self.client.progress;
        let hangup = progress.hangup();
        if progress.holds_leases() && !hangup.has_come() && self.socket.has_ended() {
            hangup.tell();
        }
    }

    /// Accounts for hyper's write.
    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        let progress = &self.client.progress;
        match &written {
            Poll::Ready(Ok(len @ 1..)) => {
                let keep = progress.wrote(*len, now);
                if progress.hangup().has_come() {
                    self.doubt.get_or_insert_default().keeps.extend(keep);
                } else if let Some(keep) = keep {
                    keep.keep();
                }
            }
            Poll::Ready(Ok(0)) => {}
            Poll::Ready(Err(_)) => self.is_gone(),
            Poll::Pending => progress.write_blocked(now),
        }
        written
    }

    /// The client has not taken its answer: the answer's leases go back.
    fn is_gone(&mut self) {
        let doubt = self.doubt.take();
        if doubt.is_some() || self.client.progress.holds_leases() {
            self.client.core.counters.abandoned();
        }
        if let Some(mut doubt) = doubt {
            doubt.keeps.clear();
        }
    }

    /// Waits until it is known whether a client that had ended its side has taken its answer.
    fn poll_doubt(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(doubt) = &mut self.doubt {
            if let Some(pause) = &mut doubt.pause {
                ready!(pause.as_mut().poll(cx));
            }
            match self.socket.took_all() {
                Some(false) => self.is_gone(),
                None if doubt.asked < ASKED_MAX => {
                    let pause = Duration::from_millis(1 << doubt.asked);
                    doubt.asked += 1;
                    doubt.pause = Some(Box::pin(sleep(pause)));
                }
                // If the system does not say, the answer counts as taken: the message comes again
                // when its lease ends.
                Some(true) | None => drop(self.doubt.take()),
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        for keep in self.keeps.drain(..) {
            keep.keep();
        }
    }
}

/// The peer of a socket.
pub(crate) trait Peer {
    /// Whether the peer has ended its side, also if bytes that it sent before are still unread.
    /// Asks the kernel.
    fn has_ended(&self) -> bool;

    /// Whether the peer has acknowledged everything, once both sides have ended; `None` if that is
    /// not known yet. Asks the kernel, which reports a reset only once.
    fn took_all(&self) -> Option<bool>;
}

impl Peer for TcpStream {
    fn has_ended(&self) -> bool {
        let mut socket = [PollFd::new(self, ENDED)];
        // The next write reports an error.
        matches!(poll(&mut socket, Some(&Timespec::default())), Ok(1))
            && socket[0].revents().intersects(ENDED)
    }

    fn took_all(&self) -> Option<bool> {
        // A socket has a peer until the peer has acknowledged or refused the last byte, including
        // our end.
        match self.peer_addr() {
            Ok(_) => None,
            Err(_) => Some(matches!(self.take_error(), Ok(None))),
        }
    }
}

impl Peer for TlsStream<TcpStream> {
    fn has_ended(&self) -> bool {
        // A client that closes TLS and leaves its socket open has sent bytes for that; hyper reads
        // those.
        self.get_ref().0.has_ended()
    }

    fn took_all(&self) -> Option<bool> {
        self.get_ref().0.took_all()
    }
}

impl<S: AsyncRead + Peer + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.client.progress.has_ended() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
            let bytes = &buffer.filled()[before..];
            self.client.progress.read(bytes, Instant::now());
        }
        // A client without further requests may end its side and wait for the answer.
        if self.client.progress.owes_answer(cx) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.look();
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.look();
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// hyper calls this when its own buffer is empty, and only then.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS has a buffer of its own behind hyper's.
        match Pin::new(&mut self.socket).poll_flush(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.is_gone();
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                self.client.progress.write_blocked(Instant::now());
                return Poll::Pending;
            }
        }
        self.client.progress.flushed(Instant::now());
        Poll::Ready(Ok(()))
    }

    /// Ends our side. If the client may still be sending (its request was refused before it was
    /// read), goes on reading for a moment: a socket closed with unread bytes resets the
    /// connection, and the client's kernel would throw our answer away before the client has read
    /// it.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = ready!(Pin::new(&mut self.socket).poll_shutdown(cx));
        ready!(self.poll_doubt(cx));
        shut?;
        while self.linger_bytes > 0 && self.client.progress.linger(Instant::now()) {
            let mut thrown_away = [0; 8192];
            let mut buffer = ReadBuf::new(&mut thrown_away);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
            let len = buffer.filled().len();
            if len == 0 {
                break;
            }
            self.linger_bytes = self.linger_bytes.saturating_sub(len);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    /// Both ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (server, _) = listener.accept().await.unwrap();
        (client.unwrap(), server)
    }

    #[tokio::test]
    async fn a_peer_has_ended_once_it_is_gone_whatever_is_left_to_read() {
        let (mut client, server) = connection().await;
        assert!(!server.has_ended(), "it may send something yet");
        client.write_all(b"GET").await.unwrap();
        assert!(!server.has_ended(), "it sent a request ahead");
        drop(client);
        // Holds also before the runtime has a turn, which would report the end as well.
        assert!(server.has_ended());

        let (mut client, server) = connection().await;
        client.shutdown().await.unwrap();
        assert!(server.has_ended(), "it has nothing more to ask");
    }
}

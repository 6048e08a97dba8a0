//! The socket as hyper sees it, with every byte accounted for on the way.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::net::{RecvFlags, recv};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::server::TlsStream;

use super::connection::Client;

/// A socket, or what decrypts one, whose traffic is followed by its client's [`Progress`](super::progress::Progress).
#[derive(Debug)]
pub(crate) struct Wire<S> {
    socket: S,
    client: Arc<Client>,
    /// How many more bytes are thrown away before the connection is closed on a client that goes on
    /// sending.
    linger_bytes: usize,
}

/// As much as common kernels keep in flight on a local connection, and a few times more.
const LINGER_BYTES: usize = 16 << 20;

impl<S> Wire<S> {
    pub(crate) fn new(socket: S, client: Arc<Client>) -> Self {
        Self {
            socket,
            client,
            linger_bytes: LINGER_BYTES,
        }
    }

    /// Refuses to write leases to a client that is gone: it would be taken for told.
    ///
    /// hyper looks for the client's end whenever the socket says that there is something to read, but
    /// that may be on its way through a busy runtime while an answer overtakes it. So before the first
    /// byte of an answer with leases the kernel is asked itself.
    fn check_peer(&self) -> io::Result<()>
    where
        S: Peer,
    {
        if self.client.progress.holds_leases() && self.socket.has_ended() {
            self.client.core.counters.abandoned();
            let gone = "the client ended the connection before its answer";
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, gone));
        }
        Ok(())
    }

    /// Accounts for a write that hyper asked for.
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(len @ 1..)) => {
                if let Some(keep) = self.client.progress.wrote(*len) {
                    keep.keep();
                }
            }
            Poll::Ready(_) => {}
            Poll::Pending => self.client.progress.write_blocked(Instant::now()),
        }
        written
    }
}

/// The other side of a socket.
pub(crate) trait Peer {
    /// Whether it has ended its side and everything it sent was read. Asks the kernel.
    fn has_ended(&self) -> bool;
}

impl Peer for TcpStream {
    fn has_ended(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // An error is told by the write.
        matches!(recv(self, &mut byte, flags), Ok((0, _)))
    }
}

impl Peer for TlsStream<TcpStream> {
    fn has_ended(&self) -> bool {
        // One that says goodbye, as TLS has it, has bytes to be read; hyper finds those.
        self.get_ref().0.has_ended()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let bytes = &buffer.filled()[before..];
        self.client.progress.read(bytes, Instant::now());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_peer()?;
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_peer()?;
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
            Poll::Ready(flushed) => flushed?,
            Poll::Pending => {
                self.client.progress.write_blocked(Instant::now());
                return Poll::Pending;
            }
        }
        self.client.progress.flushed(Instant::now());
        Poll::Ready(Ok(()))
    }

    /// Ends our side. If the client may still be sending (its request was refused before it was
    /// read), goes on reading for a moment: a socket closed with unread bytes resets the connection,
    /// and the client's kernel would throw our answer away before the client has read it.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
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
    async fn a_peer_has_ended_once_it_is_gone_and_nothing_is_left_to_read() {
        let (client, server) = connection().await;
        assert!(!server.has_ended(), "it may send something yet");
        drop(client);
        // Without a turn for the runtime, which would tell as well.
        assert!(server.has_ended());

        let (mut client, server) = connection().await;
        client.write_all(b"GET").await.unwrap();
        drop(client);
        assert!(!server.has_ended(), "it sent a request ahead");
    }
}

//! `GET /api/v1/backup`: a backup of everything, streamed while it is taken.
//!
//! The backup is written on a thread of its own into a short line of chunks, which the connection
//! takes from. A client that does not read holds it up, a client that is gone ends it, and a few
//! hundred KiB are all that is ever in memory.

use std::{
    io::{self, Write},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use lockgate_core::with_sources;
use lockgate_engine::{BackupError, Engine};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{connection::Client, refusal::Refusal};

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks that wait for the client.
const CHUNKS: usize = 4;

/// Only one backup is taken at a time: each keeps space from coming back and pages from being changed
/// in place.
#[derive(Debug, Default)]
pub(crate) struct Slot(Arc<AtomicBool>);

/// The slot is taken; given back when dropped.
struct Taken(Arc<AtomicBool>);

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All of it: one buffer, which is what `Progress::flushed` counts on.
    Whole(Full<Bytes>),
    Backup(Stream),
}

/// A backup on its way to a client.
pub(crate) struct Stream {
    /// It came before the answer was begun.
    first: Option<Bytes>,
    chunks: mpsc::Receiver<Result<Bytes, BackupError>>,
    client: Arc<Client>,
    ended: bool,
}

/// Begins a backup. Answers when there is something to send.
pub(crate) async fn begin(client: &Arc<Client>, engine: &Engine) -> Result<Stream, Refusal> {
    let taken = client.core.backup.take().ok_or(Refusal::BackupRunning)?;
    let (sender, mut chunks) = mpsc::channel(CHUNKS);
    let engine = engine.clone();
    let peer = client.peer;
    spawn_blocking(move || {
        let _taken = taken;
        tracing::info!(%peer, "taking a backup");
        let began = Instant::now();
        let mut out = Chunks {
            buffer: Vec::with_capacity(CHUNK_BYTES),
            sender,
        };
        match engine.backup(&mut out) {
            Ok(report) => tracing::info!(
                %peer,
                messages = report.messages,
                unreadable = report.unreadable,
                bytes = report.bytes,
                duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                "the backup is taken"
            ),
            Err(error) => {
                tracing::warn!(%peer, error = with_sources(&error), "the backup was not finished");
                // The client may be what is gone.
                let _ = out.sender.blocking_send(Err(error));
            }
        }
    });
    match chunks.recv().await {
        Some(Ok(first)) => Ok(Stream {
            first: Some(first),
            chunks,
            client: client.clone(),
            ended: false,
        }),
        Some(Err(error)) => Err(Refusal::Backup(error)),
        // It has panicked, which was told on standard error.
        None => Err(Refusal::BackupRunning),
    }
}

impl Slot {
    fn take(&self) -> Option<Taken> {
        let was_taken = self.0.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Taken(self.0.clone()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Where the backup is written.
struct Chunks {
    buffer: Vec<u8>,
    sender: mpsc::Sender<Result<Bytes, BackupError>>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.sender
            .blocking_send(Ok(full.into()))
            .map_err(|_gone| io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone"))
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = BackupError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BackupError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let next = ready!(self.chunks.poll_recv(cx));
        if next.is_none() && !self.ended {
            self.ended = true;
            self.client.progress.answered(None, None);
        }
        // An error cuts the connection, so that the client sees an unfinished answer.
        Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BackupError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BackupError>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never| match never {}),
            Self::Backup(stream) => Pin::new(stream).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Backup(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Backup(_) => SizeHint::default(),
        }
    }
}

//! `GET /api/v1/backup`: streams a backup of all data while it is taken.
//!
//! A thread of its own writes the backup into a channel of a few chunks, which the connection
//! reads. A client that does not read holds the backup up, and a client that is gone ends it. At
//! most a few hundred KiB are in memory.

use std::{
    io::{self, Write},
    panic::{self, AssertUnwindSafe},
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
use lockgate_engine::BackupError;
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{Queues, connection::Client, follow, refusal::Refusal};

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks that wait for the client, at most.
const CHUNKS: usize = 4;

/// Allows one backup at a time: a backup delays the return of space, and pages cannot be changed in
/// place while it runs.
#[derive(Debug, Default)]
pub(crate) struct Slot(Arc<AtomicBool>);

/// The taken slot. Dropping it frees the slot.
struct Taken(Arc<AtomicBool>);

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The whole answer in one buffer; `Progress::flushed` relies on that.
    Whole(Full<Bytes>),
    Backup(Stream),
    Follow(follow::Stream),
}

/// A backup on its way to a client.
pub(crate) struct Stream {
    /// The first chunk, which arrived before the answer was begun.
    first: Option<Bytes>,
    chunks: mpsc::Receiver<Result<Bytes, BackupError>>,
    client: Arc<Client>,
    ended: bool,
}

/// Begins a backup. Returns when the first chunk is there.
pub(crate) async fn begin(client: &Arc<Client>, queues: &Queues) -> Result<Stream, Refusal> {
    let taken = queues.backup.take().ok_or(Refusal::BackupRunning)?;
    let (sender, mut chunks) = mpsc::channel(CHUNKS);
    let engine = queues.engine.clone();
    let peer = client.peer;
    spawn_blocking(move || {
        let _taken = taken;
        tracing::info!(%peer, "taking a backup");
        let began = Instant::now();
        let mut out = Chunks {
            buffer: Vec::with_capacity(CHUNK_BYTES),
            sender,
        };
        // Without an error, a panic would end the answer as if it were whole.
        let backup = panic::catch_unwind(AssertUnwindSafe(|| engine.backup(&mut out)));
        match backup.unwrap_or_else(|_| Err(panicked())) {
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
                // Fails if the client is gone.
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
        None => Err(Refusal::Backup(panicked())),
    }
}

fn panicked() -> BackupError {
    let what = "its thread panicked; the panic's message is on standard error";
    BackupError::Write(io::Error::other(what))
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

/// Writes the backup into the channel of chunks.
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
            Self::Follow(stream) => stream.poll_frame(cx).map(|frame| frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Backup(_) | Self::Follow(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Backup(_) | Self::Follow(_) => SizeHint::default(),
        }
    }
}

//! What candidates send to a server: a proxy that counts.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::AbortHandle,
};

/// In front of a server.
pub(super) struct Counter {
    /// The server's URL, with the proxy's address.
    pub(super) url: String,
    messages: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Counter {
    /// `None`: the store is no server.
    pub(super) async fn start(url: &str) -> anyhow::Result<Option<Self>> {
        let Some((before, rest)) = url.split_once("127.0.0.1:") else {
            return Ok(None);
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (port, after) = rest.split_at(digits);
        let server = SocketAddr::from(([127, 0, 0, 1], port.parse().context("a port")?));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("{before}{}{after}", listener.local_addr()?);
        let messages: Arc<AtomicU64> = Arc::default();
        let task = tokio::spawn({
            let messages = messages.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, server, messages.clone()));
                }
            }
        });
        let task = task.abort_handle();
        Ok(Some(Self {
            url,
            messages,
            task,
        }))
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Relaxed)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(client: TcpStream, server: SocketAddr, messages: Arc<AtomicU64>) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let answers = tokio::spawn(async move {
        let copied = copy(&mut from_server, &mut to_client).await;
        copied.and(to_client.shutdown().await)
    });
    let passed = count(from_client, to_server, &messages).await;
    let _ = answers.await;
    passed
}

/// A message is what arrives in one piece: a client waits for its answer before it sends the next one.
async fn count(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    messages: &AtomicU64,
) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let bytes = from.read(&mut piece).await?;
        if bytes == 0 {
            return to.shutdown().await;
        }
        messages.fetch_add(1, Relaxed);
        to.write_all(&piece[..bytes]).await?;
    }
}

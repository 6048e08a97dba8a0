//! A proxy in front of a server: it counts requests, loses one of them or its answer, and can be cut.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
};

/// What requests are called in ZooKeeper's protocol.
pub(crate) const DELETE: i32 = 2;
pub(crate) const LIST: i32 = 8;
pub(crate) const PING: i32 = 11;
pub(crate) const LIST_WITH_STAT: i32 = 12;
pub(crate) const MULTI: i32 = 14;
pub(crate) const CREATE: i32 = 15;
pub(crate) const FOLLOW: i32 = 106;
const NONE: i32 = 9_999;

/// What is lost, and with it the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lose {
    Request(i32),
    Answer(i32),
}

#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    counts: Mutex<BTreeMap<i32, u64>>,
    lose: Mutex<Option<Lose>>,
    unknown: Mutex<Option<i32>>,
    is_cut: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::<State>::default();
        let proxy = Self {
            url: format!("zk://{}", listener.local_addr().unwrap()),
            state: state.clone(),
        };
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (state, server) = (state.clone(), server.clone());
                tokio::spawn(async move {
                    if !*state.is_cut.borrow() {
                        let _ = pass(&state, client, &server).await;
                    }
                });
            }
        });
        proxy
    }

    /// How many such requests have come.
    pub(crate) fn count(&self, of: i32) -> u64 {
        let counts = self.state.counts.lock().unwrap();
        counts.get(&of).copied().unwrap_or_default()
    }

    /// How many requests have come, pings aside.
    pub(crate) fn requests(&self) -> u64 {
        let counts = self.state.counts.lock().unwrap();
        counts
            .iter()
            .filter(|(of, _)| **of != PING)
            .map(|(_, count)| count)
            .sum()
    }

    /// Waits until so many more have come.
    pub(crate) async fn sees(&self, more: u64, of: i32) {
        let last = self.count(of) + more;
        while self.count(of) < last {
            tokio::task::yield_now().await;
        }
    }

    /// Loses the next such one.
    pub(crate) fn lose(&self, lose: Lose) {
        *self.state.lose.lock().unwrap() = Some(lose);
    }

    /// As before a server that does not know such requests, as it is too old.
    pub(crate) fn hides(&self, of: i32) {
        *self.state.unknown.lock().unwrap() = Some(of);
    }

    /// Whether it was lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.state.lose.lock().unwrap().is_none()
    }

    /// Ends all connections and lets none pass.
    pub(crate) fn cut(&self) {
        self.state.is_cut.send_replace(true);
    }

    pub(crate) fn mend(&self) {
        self.state.is_cut.send_replace(false);
    }
}

async fn pass(state: &State, mut client: TcpStream, server: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let lost = Mutex::new(None);
    let mut is_cut = state.is_cut.subscribe();
    tokio::select! {
        ended = requests(state, from_client, to_server, &lost) => ended,
        ended = answers(from_server, to_client, &lost) => ended,
        _ = is_cut.wait_for(|is_cut| *is_cut) => Ok(()),
    }
}

async fn requests(
    state: &State,
    mut from: tcp::ReadHalf<'_>,
    mut to: tcp::WriteHalf<'_>,
    lost: &Mutex<Option<i32>>,
) -> io::Result<()> {
    // The request that begins the connection has no number.
    let connect = frame(&mut from).await?;
    to.write_all(&connect).await?;
    loop {
        let mut frame = frame(&mut from).await?;
        let (number, of) = (int(&frame, 4), int(&frame, 8));
        *state.counts.lock().unwrap().entry(of).or_default() += 1;
        let lose = {
            let mut lose = state.lose.lock().unwrap();
            let is_it = [Lose::Request(of), Lose::Answer(of)]
                .map(Some)
                .contains(&*lose);
            is_it.then(|| lose.take()).flatten()
        };
        match lose {
            Some(Lose::Request(_)) => return Ok(()),
            Some(Lose::Answer(_)) => *lost.lock().unwrap() = Some(number),
            None => {}
        }
        if *state.unknown.lock().unwrap() == Some(of) {
            frame[8..12].copy_from_slice(&NONE.to_be_bytes());
        }
        to.write_all(&frame).await?;
    }
}

async fn answers(
    mut from: tcp::ReadHalf<'_>,
    mut to: tcp::WriteHalf<'_>,
    lost: &Mutex<Option<i32>>,
) -> io::Result<()> {
    let connected = frame(&mut from).await?;
    to.write_all(&connected).await?;
    loop {
        let frame = frame(&mut from).await?;
        if *lost.lock().unwrap() == Some(int(&frame, 4)) {
            return Ok(());
        }
        to.write_all(&frame).await?;
    }
}

/// With its length in front of it.
async fn frame(from: &mut tcp::ReadHalf<'_>) -> io::Result<Vec<u8>> {
    let len = from.read_u32().await?;
    let mut frame = vec![0; len as usize + 4];
    frame[..4].copy_from_slice(&len.to_be_bytes());
    from.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

fn int(frame: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

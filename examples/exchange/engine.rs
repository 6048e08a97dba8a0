//! A trading engine: follows the ledger, hears of events by a queue of its own, and keeps its state with the position in one file.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockgate::{
    HolderName, QueueName, Source,
    client::Client,
    sequencer::{
        Apply, Feed, FollowError, Followed, Follower, News, SourceFeed,
        ledger::{Chain, Event, EventHash, SequenceId},
    },
};
use serde::{Deserialize, Serialize};

use crate::{Random, ledger, market::Market};

/// How often the state is written, at most.
const EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Options {
    pub(crate) ledger: String,
    pub(crate) endpoint: String,
    pub(crate) queue: String,
    pub(crate) state: PathBuf,
    pub(crate) seed: u64,
}

/// What an engine keeps: its state, and behind which event it is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) sequence_id: u64,
    pub(crate) hash: Option<String>,
    pub(crate) market: Market,
    /// For people who look: how often it was started, and what the feed has lost and repeated.
    pub(crate) starts: u64,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
}

impl Kept {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        match fs::read(path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).context("reading the state of an engine"),
        }
    }

    fn position(&self) -> anyhow::Result<Chain> {
        let mut chain = Chain::behind(SequenceId(self.sequence_id));
        if let Some(hash) = &self.hash {
            chain.hash = Some(hash.parse::<EventHash>()?);
        }
        Ok(chain)
    }
}

/// What a feed has done to events.
#[derive(Default)]
struct Harm {
    lost: AtomicU64,
    repeated: AtomicU64,
}

struct Engine {
    kept: Kept,
    harm: Arc<Harm>,
    path: PathBuf,
    written: Instant,
}

impl Engine {
    /// State and position in one step: there is never one without the other.
    fn write(&mut self) -> anyhow::Result<()> {
        self.kept.lost += self.harm.lost.swap(0, Ordering::Relaxed);
        self.kept.repeated += self.harm.repeated.swap(0, Ordering::Relaxed);
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec(&self.kept)?)?;
        fs::rename(new, &self.path)?;
        self.written = Instant::now();
        Ok(())
    }
}

impl Apply for Engine {
    type Error = anyhow::Error;

    async fn apply(&mut self, events: Vec<Event>, position: Chain) -> anyhow::Result<()> {
        for event in events {
            let command = serde_json::from_slice(&event.payload)?;
            self.kept.market.apply(event.sequence_id.0, command);
        }
        self.kept.sequence_id = position.sequence_id.0;
        self.kept.hash = position.hash.map(|hash| hash.to_string());
        if self.written.elapsed() > EVERY {
            self.write()?;
        }
        Ok(())
    }
}

/// A feed that loses events, repeats them and changes their order.
struct Lossy<S> {
    feed: SourceFeed<S>,
    random: Random,
    past: VecDeque<News>,
    harm: Arc<Harm>,
}

impl<S: Source> Feed for Lossy<S> {
    async fn next(&mut self) -> Option<Vec<News>> {
        let mut told = Vec::new();
        for news in self.feed.next().await? {
            self.past.push_back(news.clone());
            if self.past.len() > 100 {
                self.past.pop_front();
            }
            match self.random.below(20) {
                0 => {
                    self.harm.lost.fetch_add(1, Ordering::Relaxed);
                }
                1 => {
                    let at = self.random.below(self.past.len() as u64);
                    told.extend(
                        self.past
                            .get(usize::try_from(at).unwrap_or_default())
                            .cloned(),
                    );
                    told.push(news);
                    self.harm.repeated.fetch_add(1, Ordering::Relaxed);
                }
                2 => told.insert(told.len().saturating_sub(1), news),
                _ => told.push(news),
            }
        }
        Some(told)
    }
}

/// Follows until the ledger is sealed.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut kept = Kept::read(&options.state)?;
    kept.starts += 1;
    let position = kept.position()?;
    let seed = options.seed + kept.starts;
    let mut engine = Engine {
        kept,
        harm: Arc::default(),
        path: options.state,
        written: Instant::now(),
    };
    engine.write()?;
    let ledger = ledger::open(&options.ledger, &options.endpoint, None).await?;
    let client = Client::builder(options.endpoint.parse()?).build().await?;
    let name = QueueName::new(&options.queue)?;
    let queue = loop {
        match client.queue(&name).await {
            Ok(queue) => break queue,
            Err(error) if error.may_pass() => tokio::time::sleep(EVERY).await,
            Err(error) => return Err(error.into()),
        }
    };
    let mut feed = Lossy {
        feed: SourceFeed::new(queue, HolderName::new("engine")?),
        random: Random(seed),
        past: VecDeque::new(),
        harm: engine.harm.clone(),
    };
    let follower = Follower::new(ledger).from(position);
    let followed = follower.run_with(&mut feed, &mut engine, std::future::pending());
    let followed: Result<Followed, FollowError<anyhow::Error>> = followed.await;
    followed?;
    engine.write()
}

/// A third engine, which reads the ledger from its first event.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) market: Market,
    pub(crate) orders: Vec<String>,
}

impl Replayed {
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), serde_json::Error> {
        let command: crate::market::Command = serde_json::from_slice(&event.payload)?;
        if let crate::market::Command::Order { id, .. } = &command {
            self.orders.push(id.clone());
        }
        self.market.apply(event.sequence_id.0, command);
        Ok(())
    }
}

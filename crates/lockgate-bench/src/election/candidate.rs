//! A process that stands in an election, for the figures of switches. It is told what to do on its standard input, and says
//! what happens on its standard output, a line each, with the time of the clock that all processes share.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use lockgate_client::Client;
use lockgate_consumer::MemoryRecords;
use lockgate_coordination::{FileRecords, RecordsCoordinator};
use lockgate_core::{
    ElectionName, Epoch, HolderName,
    coordination::{Campaign, Coordinator, ElectionState, EndReason, Observe, Tenure as _},
};
use lockgate_mysql::MysqlRecords;
use lockgate_postgres::PostgresRecords;
use lockgate_redis::RedisRecords;
use lockgate_zookeeper::ZookeeperCoordinator;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::{Mutex, Notify, mpsc, watch},
    task::JoinSet,
    time::sleep,
};

/// The variable of the environment that makes this program a candidate.
pub(super) const VARIABLE: &str = "LOCKGATE_BENCH_CANDIDATE";

/// How often is looked whether candidates stand.
const LOOK: Duration = Duration::from_millis(2);

/// How a process stands.
pub(super) struct Stand {
    pub(super) url: String,
    pub(super) election: String,
    pub(super) lease: Duration,
    /// In this process, each with connections of its own.
    pub(super) candidates: usize,
    /// Whether a leader gives up its term at once.
    pub(super) is_churning: bool,
}

impl fmt::Display for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_churning { "churn" } else { "lead" };
        let (lease, candidates) = (self.lease.as_millis(), self.candidates);
        let (election, url) = (&self.election, &self.url);
        write!(f, "{kind} {candidates} {lease} {election} {url}")
    }
}

impl Stand {
    fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        Some(Self {
            is_churning: words.next()? == "churn",
            candidates: words.next()?.parse().ok()?,
            lease: Duration::from_millis(words.next()?.parse().ok()?),
            election: words.next()?.to_owned(),
            url: words.next()?.to_owned(),
        })
    }

    /// No two campaigns of a candidate have one name, so that nobody takes what is left of the last one for the next.
    fn campaign(&self, candidate: usize, time: u64) -> anyhow::Result<Campaign> {
        let name = format!("candidate-{}-{candidate}-{time}", std::process::id());
        let mut campaign =
            Campaign::new(ElectionName::new(&self.election)?, HolderName::new(&name)?);
        campaign.lease = self.lease;
        campaign.margin = self.lease / 10;
        campaign.notice = self.lease / 5;
        Ok(campaign)
    }
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Stands, if this process was started for that.
pub(crate) fn run() -> Option<anyhow::Result<()>> {
    let told = std::env::var(VARIABLE).ok()?;
    Some(stand_as(&told))
}

fn stand_as(told: &str) -> anyhow::Result<()> {
    let stand = Stand::read(told).with_context(|| format!("{VARIABLE} is for the bench itself"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(open(stand))
}

async fn open(stand: Stand) -> anyhow::Result<()> {
    let url = stand.url.clone();
    let (scheme, rest) = url.split_once("://").context("that is no URL")?;
    match scheme {
        "memory" => {
            let records = MemoryRecords::new();
            stand_with(stand, async || Ok(RecordsCoordinator::new(records.clone()))).await
        }
        "file" => {
            let open = async || Ok(RecordsCoordinator::new(FileRecords::open(rest).await?));
            stand_with(stand, open).await
        }
        "http" => {
            let open = async || {
                let client = Client::builder(url.parse()?).build().await?;
                Ok(RecordsCoordinator::new(client))
            };
            stand_with(stand, open).await
        }
        "zk" => {
            let open = async || Ok(ZookeeperCoordinator::connect(&url).await?);
            stand_with(stand, open).await
        }
        "postgres" => {
            let open = async || {
                Ok(RecordsCoordinator::new(
                    PostgresRecords::connect(&url).await?,
                ))
            };
            stand_with(stand, open).await
        }
        "mysql" => {
            let open = async || Ok(RecordsCoordinator::new(MysqlRecords::connect(&url).await?));
            stand_with(stand, open).await
        }
        "redis" => {
            let open = async || Ok(RecordsCoordinator::new(RedisRecords::connect(&url).await?));
            stand_with(stand, open).await
        }
        other => bail!("{other}: no store is opened by that"),
    }
}

/// Opens the store once for each candidate.
async fn stand_with<C: Coordinator + Clone>(
    stand: Stand,
    open: impl AsyncFn() -> anyhow::Result<C>,
) -> anyhow::Result<()> {
    let mut coordinators = Vec::new();
    for _ in 0..stand.candidates {
        coordinators.push(open().await?);
    }
    match stand.is_churning {
        true => churn(Arc::new(stand), coordinators).await,
        false => lead(Arc::new(stand), coordinators).await,
    }
}

/// What the bench tells.
struct Told(mpsc::Receiver<String>);

impl Told {
    fn new() -> Self {
        let (tell, told) = mpsc::channel(1);
        thread::spawn(move || {
            let mut lines = io::stdin().lines().map_while(Result::ok);
            lines.try_for_each(|line| tell.blocking_send(line))
        });
        Self(told)
    }

    async fn hear(&mut self, expected: &str) -> anyhow::Result<()> {
        let line = self.0.recv().await.context("the bench has gone")?;
        ensure!(line == expected, "{line} in place of {expected}");
        Ok(())
    }
}

/// Whoever is elected leads until it is told to resign.
async fn lead<C: Coordinator + Clone>(stand: Arc<Stand>, them: Vec<C>) -> anyhow::Result<()> {
    let resign = Arc::new(Notify::new());
    let mut all = JoinSet::new();
    for (candidate, coordinator) in them.into_iter().enumerate() {
        let (stand, resign) = (stand.clone(), resign.clone());
        all.spawn(async move {
            for time in 0.. {
                let campaign = stand.campaign(candidate, time)?;
                let tenure = {
                    let name = campaign.candidate.clone();
                    let stands = |state: &ElectionState| state.candidates.contains(&name);
                    let say = async {
                        wait_until(&coordinator, &campaign.election, stands).await?;
                        println!("stands {name} {}", now());
                        std::future::pending::<anyhow::Result<Infallible>>().await
                    };
                    tokio::select! {
                        tenure = coordinator.campaign(campaign.clone()) => tenure?,
                        said = say => match said? {},
                    }
                };
                let name = &campaign.candidate;
                println!("leads {name} {}", now());
                tokio::select! {
                    () = resign.notified() => {}
                    () = tenure.over() => bail!("a term is over before its leader has left"),
                }
                println!("left {name} {}", now());
                tenure.resign(EndReason::Asked, None).await?;
            }
            Ok(())
        });
    }
    let mut told = Told::new();
    beside(&mut all, async {
        loop {
            told.hear("resign").await?;
            resign.notify_one();
        }
    })
    .await
}

/// Whoever is elected resigns at once. One leads at a time, and epochs rise.
async fn churn<C: Coordinator + Clone>(stand: Arc<Stand>, them: Vec<C>) -> anyhow::Result<()> {
    let (go, may_go) = watch::channel(false);
    let terms = Arc::new(AtomicU64::new(0));
    let last = Arc::new(Mutex::new(Epoch(0)));
    let first = them.first().context("nobody stands")?.clone();
    let mut all = JoinSet::new();
    for (candidate, coordinator) in them.into_iter().enumerate() {
        let (stand, terms, mut may_go) = (stand.clone(), terms.clone(), may_go.clone());
        let last = last.clone();
        all.spawn(async move {
            for time in 0.. {
                let tenure = coordinator
                    .campaign(stand.campaign(candidate, time)?)
                    .await?;
                // It stays locked until the term ends.
                let mut last = last.try_lock().context("two candidates lead")?;
                may_go.wait_for(|go| *go).await?;
                let epoch = tenure.term().epoch;
                ensure!(*last < epoch, "{} leads behind {}", epoch.0, last.0);
                *last = epoch;
                drop(last);
                terms.fetch_add(1, Relaxed);
                tenure.resign(EndReason::EndOfTerm, None).await?;
            }
            Ok(())
        });
    }
    let mut told = Told::new();
    beside(&mut all, async {
        let election = ElectionName::new(&stand.election)?;
        let all_stand = |state: &ElectionState| {
            state.leader.is_some() && state.candidates.len() + 1 >= stand.candidates
        };
        wait_until(&first, &election, all_stand).await?;
        println!("ready");
        told.hear("go").await?;
        go.send_replace(true);
        told.hear("stop").await?;
        println!("terms all {}", terms.load(Relaxed));
        Ok(())
    })
    .await
}

/// Does it while the candidates stand. None of them ends but by an error.
async fn beside(
    all: &mut JoinSet<anyhow::Result<()>>,
    it: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    tokio::select! {
        ended = all.join_next() => ended.context("nobody stands")?.context("a candidate")?,
        done = it => done,
    }
}

/// Looks again and again until the election is so.
async fn wait_until<C: Coordinator>(
    coordinator: &C,
    election: &ElectionName,
    is_so: impl Fn(&ElectionState) -> bool,
) -> anyhow::Result<()> {
    let look = || Observe {
        election: election.clone(),
        seen: None,
        wait: Duration::ZERO,
    };
    while !is_so(&coordinator.observe(look()).await?) {
        sleep(LOOK).await;
    }
    Ok(())
}

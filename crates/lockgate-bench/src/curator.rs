//! `curator.*`: delayed items through a queue of Lockgate, through `lockgate-zookeeper`, and through Curator in Java, beside 1,000
//! and 20,000 others that wait for another day.
//!
//! Each round of each queue: 16 callers put items, each one by itself, and wait for its answer. When all are due, one consumer
//! takes them, one after the other, each with a lock or a lease that ends before the next. Then items come due every 50 ms, and
//! such a consumer says how late it had each.
//!
//! Both queues of ZooKeeper are in one server of their own, which syncs, as the server of Lockgate does.

use std::{
    future::Future,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use lockgate_client::{Client, RemoteQueue};
use lockgate_core::{HolderName, Message, ReceiveRequest, Settlement, Sink, Source, WallTime};
use lockgate_engine::Engine;
use lockgate_server::Server;
use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{CuratorQueue, CuratorQueueOptions, Kind, Place, Taking},
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Course, Courses, Level, Setup,
    election::{Served, start_by},
    http::{Running, options},
    load::{as_f64, make_queue, start_engine},
    queue::params,
    report::{Params, Report},
    wanted,
};

/// Items that wait for another day.
const PENDING: [u32; 2] = [1_000, 20_000];

/// Items that are put, and then taken.
const ITEMS: u32 = 500;
const CALLERS: u16 = 16;
const BYTES: usize = 100;

/// From the first put to the due time, which is behind the last one.
const LEAD: Duration = Duration::from_millis(2_000);

/// Items that come due one after the other.
const LATE: u32 = 40;
const STEP_MS: u64 = 50;

const DAY_MS: u64 = 24 * 3_600_000;

macro_rules! figures {
    ($($name:literal),*) => {
        [$([
            concat!("curator.", $name, ".put"),
            concat!("curator.", $name, ".take"),
            concat!("curator.", $name, ".late_p50"),
            concat!("curator.", $name, ".late_max"),
        ]),*]
    };
}

const BY_QUEUE: [[&str; 4]; 3] = figures!("lockgate", "adapter", "java");

pub(crate) const FIGURES: &[&str] = BY_QUEUE.as_flattened();

/// A queue, and how many items are in it for another day.
struct Measured {
    figures: &'static [&'static str; 4],
    params: Params,
    pending: u32,
    queue: Queue,
}

enum Queue {
    Lockgate(RemoteQueue),
    Adapter {
        server: ZookeeperOptions,
        path: String,
        producer: CuratorQueue,
    },
    Java(String),
}

struct CuratorCourse {
    queues: Vec<Measured>,
    java: Java,
    zookeeper: Served,
    server: Running,
    engine: Engine,
    is_filled: bool,
}

/// None if no figure of this was asked for by name: a run of all figures installs and starts nothing.
pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    if setup.args.names.is_empty() {
        return Ok(Vec::new());
    }
    let zookeeper = start_by("zookeeper", "LOCKGATE_TEST_ZOOKEEPER")?;
    let zookeeper = zookeeper.context("no ZooKeeper, and it could not be installed")?;
    let options = ZookeeperOptions::parse(&zookeeper.url)?;
    let java = Java::start(&zookeeper.url)?;
    let (engine, server, client) = setup.runtime.block_on(serve(setup))?;
    let mut queues = Vec::new();
    for pending in PENDING {
        let lockgate = setup.runtime.block_on(async {
            let name =
                make_queue(&engine, &format!("delayed-{pending}"), false, Level::Disk).await?;
            anyhow::Ok(Queue::Lockgate(client.queue(&name).await?))
        })?;
        let path = format!("/adapter-{pending}");
        let adapter = Queue::Adapter {
            server: options.clone(),
            producer: setup.runtime.block_on(open_adapter(&options, &path))?,
            path,
        };
        let java = Queue::Java(format!("/java-{pending}"));
        for (figures, queue) in BY_QUEUE.iter().zip([lockgate, adapter, java]) {
            let mut params = Params {
                size: BYTES,
                keys: 0,
                level: lockgate_core::Level::Disk.name(),
                ..params(setup, 1, CALLERS)
            };
            params.more.insert("pending", json!(pending));
            queues.push(Measured {
                figures,
                params,
                pending,
                queue,
            });
        }
    }
    Ok(vec![Box::new(CuratorCourse {
        queues,
        java,
        zookeeper,
        server,
        engine,
        is_filled: false,
    })])
}

async fn serve(setup: &Setup) -> anyhow::Result<(Engine, Running, Client)> {
    let engine = start_engine(&setup.folder("curator"))?;
    let server = Running::start(Server::bind(options(), engine.clone()).await)?;
    let url = format!("http://{}", server.address());
    let client = Client::builder(url.parse()?).build().await?;
    Ok((engine, server, client))
}

fn now() -> anyhow::Result<u64> {
    Ok(u64::try_from(std::time::UNIX_EPOCH.elapsed()?.as_millis())?)
}

fn body(due: u64) -> Vec<u8> {
    format!("{due:<BYTES$}").into_bytes()
}

/// How many milliseconds an item is late.
fn late(body: &[u8]) -> anyhow::Result<u64> {
    let due: u64 = str::from_utf8(body)?.trim().parse()?;
    now()?
        .checked_sub(due)
        .context("an item came before it was due")
}

/// Puts items by that many callers, each of which waits for the answer to one before it puts the next.
async fn put_all<P, F>(count: u32, callers: u16, put: P) -> anyhow::Result<Duration>
where
    P: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let put = put.clone();
        tasks.spawn(async move {
            for number in (u32::from(caller)..count).step_by(callers.into()) {
                put(number.into()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(began.elapsed())
}

async fn open_adapter(server: &ZookeeperOptions, path: &str) -> anyhow::Result<CuratorQueue> {
    let options = CuratorQueueOptions {
        taking: Some(Taking::LockSafe(format!("{path}-locks"))),
        ..CuratorQueueOptions::new(path, Kind::Delay)
    };
    Ok(CuratorQueue::open(server, options).await?)
}

async fn put_by_adapter(
    queue: &CuratorQueue,
    (count, callers): (u32, u16),
    (first, step): (u64, u64),
) -> anyhow::Result<Duration> {
    let queue = queue.clone();
    put_all(count, callers, move |number| {
        let queue = queue.clone();
        async move {
            let due = first + step * number;
            let place = Place::At(i64::try_from(due)?);
            queue.put(place, &[body(due)]).await?;
            Ok(())
        }
    })
    .await
}

async fn put_by_client(
    queue: &RemoteQueue,
    (count, callers): (u32, u16),
    (first, step): (u64, u64),
) -> anyhow::Result<Duration> {
    let queue = queue.clone();
    put_all(count, callers, move |number| {
        let queue = queue.clone();
        async move {
            let due = first + step * number;
            let message = Message::new(body(due)).with_due(WallTime(due));
            for result in queue.send_batch(vec![message]).await {
                result?;
            }
            Ok(())
        }
    })
    .await
}

/// Takes items one after the other, and returns how long that took and how late each one was.
async fn take_by_adapter(
    server: &ZookeeperOptions,
    path: &str,
    count: u32,
) -> anyhow::Result<(Duration, Vec<u64>)> {
    let queue = open_adapter(server, path).await?;
    let (began, mut lates) = (Instant::now(), Vec::new());
    for _ in 0..count {
        let taken = queue.take().await?;
        for item in &taken.items {
            lates.push(late(item)?);
        }
        taken.done().await?;
    }
    Ok((began.elapsed(), lates))
}

async fn take_by_client(queue: &RemoteQueue, count: u32) -> anyhow::Result<(Duration, Vec<u64>)> {
    let request = ReceiveRequest {
        max: 1,
        key_max: None,
        wait: Duration::from_secs(20),
        lease: None,
        holder: HolderName::new("bench")?,
    };
    let (began, mut lates) = (Instant::now(), Vec::new());
    for _ in 0..count {
        let leased = queue.receive_batch(request.clone()).await?;
        ensure!(!leased.is_empty(), "messages that are due do not come");
        for one in leased {
            lates.push(late(&one.message.body)?);
            for result in queue
                .settle_batch(vec![(one.receipt, Settlement::Ack)])
                .await
            {
                result?;
            }
        }
    }
    Ok((began.elapsed(), lates))
}

impl Measured {
    fn put(
        &self,
        setup: &Setup,
        java: &mut Java,
        count: u32,
        times: (u64, u64),
    ) -> anyhow::Result<Duration> {
        let of = (count, CALLERS);
        match &self.queue {
            Queue::Lockgate(queue) => setup.runtime.block_on(put_by_client(queue, of, times)),
            Queue::Adapter { producer, .. } => {
                setup.runtime.block_on(put_by_adapter(producer, of, times))
            }
            Queue::Java(path) => {
                let (first, step) = times;
                let said = java.call(&format!("put {path} {count} {CALLERS} {first} {step}"))?;
                Ok(Duration::from_nanos(*said.first().context("a time")?))
            }
        }
    }

    fn take(
        &self,
        setup: &Setup,
        java: &mut Java,
        count: u32,
    ) -> anyhow::Result<(Duration, Vec<u64>)> {
        let (took, lates) = match &self.queue {
            Queue::Lockgate(queue) => setup.runtime.block_on(take_by_client(queue, count))?,
            Queue::Adapter { server, path, .. } => setup
                .runtime
                .block_on(take_by_adapter(server, path, count))?,
            Queue::Java(path) => {
                let said = java.call(&format!("take {path} {count}"))?;
                let (took, lates) = said.split_first().context("a time")?;
                (Duration::from_nanos(*took), lates.to_vec())
            }
        };
        ensure!(
            lates.len() == count as usize,
            "{} items came instead of {count}",
            lates.len()
        );
        Ok((took, lates))
    }

    fn round(&self, setup: &Setup, java: &mut Java, report: &mut Report) -> anyhow::Result<()> {
        let [put, take, late_p50, late_max] = *self.figures;
        let rate = |took: Duration| f64::from(ITEMS) / took.as_secs_f64();
        let due = now()? + u64::try_from(LEAD.as_millis())?;
        let took = self.put(setup, java, ITEMS, (due, 0))?;
        report.quantity(put, &self.params, rate(took), "items/s", None);
        wait_until(due)?;
        let (took, _) = self.take(setup, java, ITEMS)?;
        report.quantity(take, &self.params, rate(took), "items/s", None);
        let first = now()? + u64::try_from(LEAD.as_millis())?;
        self.put(setup, java, LATE, (first, STEP_MS))?;
        let (_, mut lates) = self.take(setup, java, LATE)?;
        lates.sort_unstable();
        let half = lates.get(lates.len() / 2).copied().unwrap_or_default();
        let most = lates.last().copied().unwrap_or_default();
        report.quantity(late_p50, &self.params, as_f64(half), "ms", None);
        report.quantity(late_max, &self.params, as_f64(most), "ms", None);
        Ok(())
    }
}

fn wait_until(due: u64) -> anyhow::Result<()> {
    std::thread::sleep(Duration::from_millis((due + 1).saturating_sub(now()?)));
    Ok(())
}

impl Course for CuratorCourse {
    fn round(&mut self, setup: &Setup, _: Duration, report: &mut Report) -> anyhow::Result<()> {
        let is_wanted =
            |one: &&Measured| one.figures.iter().any(|it| wanted(&setup.args.names, it));
        if !std::mem::replace(&mut self.is_filled, true) {
            for one in self.queues.iter().filter(is_wanted) {
                one.put(setup, &mut self.java, one.pending, (now()? + DAY_MS, 1))?;
            }
        }
        for one in self.queues.iter().filter(is_wanted) {
            one.round(setup, &mut self.java, report)?;
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        drop((course.queues, course.java));
        setup.runtime.block_on(async {
            course.server.stop().await;
            course.engine.shutdown().await;
        });
        if let Err(error) = course.zookeeper.stop(setup) {
            eprintln!("ZooKeeper was not stopped: {error:#}");
        }
    }
}

/// `Measure` of clients/curator, in a process of its own.
struct Java {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Java {
    fn start(zookeeper: &str) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/curator");
        let built = Command::new("mvn")
            .args(["--batch-mode", "--quiet", "--file"])
            .arg(&folder)
            .args(["dependency:copy-dependencies", "compile"])
            .stdout(Stdio::null())
            .status()
            .context("clients/curator is built by mvn")?;
        ensure!(
            built.success(),
            "clients/curator was not built: mvn ended with {built}"
        );
        let target = folder.join("target");
        let target = target.display();
        let mut child = Command::new("java")
            .args([
                "-cp",
                &format!("{target}/classes:{target}/dependency/*"),
                "Measure",
            ])
            .arg(zookeeper.trim_start_matches("zk://"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting Curator")?;
        let (input, output) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .context("pipes")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Says a line, and reads the numbers of the answer.
    fn call(&mut self, line: &str) -> anyhow::Result<Vec<u64>> {
        writeln!(self.input, "{line}").context("Curator has ended")?;
        let mut said = String::new();
        self.output.read_line(&mut said)?;
        ensure!(!said.is_empty(), "Curator has ended");
        said.split_whitespace()
            .map(|number| {
                number
                    .parse()
                    .with_context(|| format!("Curator said {number:?}"))
            })
            .collect()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // One that has ended is killed no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A producer in a process of its own, over a real server, killed at random points while the server comes and goes:
//! nothing that was answered as durable is lost, nothing comes twice, and each key keeps its order. In two of three runs
//! what the runs before have left is sent at a pace, while live records pass it.
//!
//! `LOCKGATE_KILLS=100` kills so many producers; a few without.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says where it stopped"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use lockgate_client::{Client, Method, RemoteQueue};
use lockgate_core::{HolderName, Key, Message, QueueName, ReceiveRequest, Settlement, Source as _};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_producer::{AnswerLevel, Producer, ProducerOptions, SpoolOptions};
use lockgate_server::{Server, ServerOptions};
use lockgate_sim::SeededRandom;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

const KEYS: u64 = 40;
const LONG: Duration = Duration::from_secs(60);

fn queue_name() -> QueueName {
    QueueName::new("clicks.fifo").unwrap()
}

/// A server over a folder, at an address that stays the same.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn serve(folder: &Path, address: SocketAddr) -> Running {
    let disk = Arc::new(FolderDisk::open(folder).unwrap());
    let log = LocalLog::open(disk, LocalLogOptions::default()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let (engine, _) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    let options = ServerOptions {
        listen: address,
        ..ServerOptions::default()
    };
    let server = Server::bind(options, engine).await.unwrap();
    let address = server.local_addr();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        server.run(async { drop(stopped.await) }).await;
    });
    Running {
        address,
        stop,
        task,
    }
}

impl Running {
    async fn stop(self) -> SocketAddr {
        let _ = self.stop.send(());
        self.task.await.unwrap();
        self.address
    }
}

async fn client(address: &str) -> Client {
    let client = Client::builder(address.parse().unwrap());
    client
        .timeout(Duration::from_secs(5))
        .build()
        .await
        .unwrap()
}

/// Opens the queue as soon as there is a server.
async fn open(address: &str) -> RemoteQueue {
    let client = client(address).await;
    loop {
        if let Ok(queue) = client.queue(&queue_name()).await {
            return queue;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The process that is killed. It sends messages of its keys, and says of each when it is durable. Where nobody has started
/// it as that, it does nothing.
#[tokio::test]
async fn child() {
    let Some(spool) = env::var_os("CHILD_SPOOL").map(PathBuf::from) else {
        return;
    };
    let run: u64 = env::var("CHILD_RUN").unwrap().parse().unwrap();
    let is_last = env::var_os("CHILD_LAST").is_some();
    let sink = open(&env::var("CHILD_SERVER").unwrap()).await;
    let options = ProducerOptions {
        level: AnswerLevel::Durable,
        // Small, so that records go over the disk too.
        buffer_count: 500,
        when_full: lockgate_producer::WhenFull::Spool,
        send_timeout: Duration::from_secs(5),
        spool: Some(SpoolOptions {
            file_bytes: 256 << 10,
            replay_rate: NonZeroU32::new(2_000).filter(|_| !is_last && !run.is_multiple_of(3)),
            ..SpoolOptions::new(spool)
        }),
        ..ProducerOptions::default()
    };
    let producer = Producer::open(sink, options).await.unwrap();
    if is_last {
        producer.flush().await;
        producer.close(LONG).await;
        return;
    }
    let mut tasks = tokio::task::JoinSet::new();
    // Some keys of each run have nothing in the runs before.
    for key in (0..KEYS).chain([KEYS + run]) {
        let producer = producer.clone();
        tasks.spawn(async move {
            for number in 0_u64.. {
                let body = format!("{key} {run} {number}");
                let message = Message::new(body.clone()).with_key(key_of(key));
                producer.send(message).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "durable {body}").unwrap();
            }
        });
    }
    tasks.join_all().await;
}

fn key_of(key: u64) -> Key {
    Key::new(&format!("k{key}")).unwrap()
}

fn start_child(server: SocketAddr, spool: &Path, run: u64, is_last: bool) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--nocapture"])
        .env("CHILD_SPOOL", spool)
        .env("CHILD_RUN", run.to_string())
        .env("CHILD_SERVER", format!("http://{server}"))
        .stdout(Stdio::piped());
    if is_last {
        command.env("CHILD_LAST", "1");
    }
    command.spawn().unwrap()
}

type Record = (u64, u64, u64);

fn record(text: &str) -> Option<Record> {
    let mut numbers = text.split(' ').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next()?))
}

/// What the child says is durable, until it ends.
fn listen(child: &mut Child) -> mpsc::Receiver<Record> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let (said, heard) = mpsc::channel(1_000);
    thread::spawn(move || {
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            // A line that was cut says less than there is.
            let text = line
                .strip_prefix("durable ")
                .and_then(|it| it.strip_suffix('\n'));
            if let Some(record) = text.and_then(record) {
                let _ = said.blocking_send(record);
            }
            line.clear();
        }
    });
    heard
}

async fn take_all(queue: &RemoteQueue) -> Vec<Record> {
    let mut all = Vec::new();
    loop {
        let request = ReceiveRequest {
            max: 1_000.min(queue.source_capabilities().receive_max),
            key_max: None,
            wait: Duration::ZERO,
            lease: None,
            holder: HolderName::new("judge").unwrap(),
        };
        let leased = queue.receive_batch(request).await.unwrap();
        if leased.is_empty() {
            return all;
        }
        let mut acks = Vec::new();
        for leased in leased {
            let text = String::from_utf8(leased.message.body.to_vec()).unwrap();
            all.push(record(&text).unwrap());
            acks.push((leased.receipt, Settlement::Ack));
        }
        for settled in queue.settle_batch(acks).await {
            settled.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_producer_loses_nothing_and_doubles_nothing() {
    let kills = env::var("LOCKGATE_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (data, spool) = (folder.path().join("data"), folder.path().join("spool"));
    let mut server = Some(serve(&data, "127.0.0.1:0".parse().unwrap()).await);
    let mut address = server.as_ref().unwrap().address;
    let url = format!("http://{address}");
    let made: Value = client(&url)
        .await
        .call(
            Method::POST,
            "/queues",
            Some(&json!({"name": queue_name().as_str()})),
        )
        .await
        .unwrap();
    assert_eq!(made["keyed"], true);
    let mut random = SeededRandom::new(kills);
    let mut durable = BTreeSet::new();
    for run in 0..kills {
        if server.is_none() {
            server = Some(serve(&data, address).await);
        }
        let mut child = start_child(address, &spool, run, false);
        let mut heard = listen(&mut child);
        for part in 0..2 {
            for _ in 0..100 + random.index(2_000) {
                durable.insert(heard.recv().await.unwrap());
            }
            // The server goes away in every other run, and the producer goes on answering.
            if part == 0 && run % 2 == 1 {
                address = server.take().unwrap().stop().await;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        while let Some(record) = heard.recv().await {
            durable.insert(record);
        }
    }
    let server = match server {
        Some(server) => server,
        None => serve(&data, address).await,
    };
    let mut last = start_child(address, &spool, kills, true);
    let status = tokio::task::spawn_blocking(move || last.wait())
        .await
        .unwrap();
    assert!(status.unwrap().success());
    let all = take_all(&open(&url).await).await;
    let mut latest: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for &(key, run, number) in &all {
        let before = latest.insert(key, (run, number));
        assert!(
            before < Some((run, number)),
            "order of key {key}, or twice: {before:?}"
        );
    }
    let there: BTreeSet<Record> = all.into_iter().collect();
    let lost: Vec<_> = durable.difference(&there).collect();
    assert!(
        lost.is_empty(),
        "{} of {} lost: {:?}",
        lost.len(),
        durable.len(),
        &lost[..lost.len().min(5)]
    );
    assert!(durable.len() as u64 >= kills * 100);
    server.stop().await;
}

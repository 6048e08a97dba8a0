//! How fast an engine accepts durable sends over PostgreSQL, beside the same engine over a folder.
//!
//! Interleaved rounds of sends of 1 KiB at level disk, by some callers with some messages a call.
//! Prints the medians of messages a second and of messages a sync. Only the ratios inside one run mean
//! something.
//!
//! ```text
//! scripts/services run cargo run --release -p lockgate-postgres --example send_rates
//! ```

use std::{
    collections::BTreeMap,
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate_core::{Message, QueueName, Storage};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_machine::{Command, CreateQueue, QueueSettings, SendMessage};
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1_000);
const BODY_BYTES: usize = 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES")
        .map_err(|_| "set LOCKGATE_TEST_POSTGRES, or use scripts/services run")?;
    let folder = tempfile::tempdir()?;
    let shard = format!("send-rates-{}", std::process::id());
    let engines = tokio::task::spawn_blocking(move || -> Result<_, String> {
        let open = || -> Result<[Storage; 2], Box<dyn Error>> {
            let disk = Arc::new(FolderDisk::open(folder.path())?);
            Ok([
                LocalLog::open(disk, LocalLogOptions::default())?.into(),
                PostgresLog::open(&url, &shard, PostgresLogOptions::default())?.into(),
            ])
        };
        let [local, postgres] = open().map_err(|error| error.to_string())?;
        let start = |storage: Storage| {
            let clock = Arc::new(SystemClock::new());
            Engine::start(storage, clock, EngineOptions::default())
                .map_err(|error| error.to_string())
                .map(|(engine, _)| engine)
        };
        Ok((folder, [start(local)?, start(postgres)?]))
    });
    let (_folder, engines) = engines.await??;
    for engine in &engines {
        let create = CreateQueue {
            name: QueueName::new("q")?,
            settings: QueueSettings::default(),
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        };
        engine
            .submit(Command::CreateQueue(Box::new(create)))
            .await?;
    }
    println!("callers | batch | folder/s | postgres/s | ratio | a sync: folder | postgres");
    for (callers, batch) in [(1, 1), (16, 1), (256, 1), (1, 100), (16, 100)] {
        let mut rates = [const { Vec::new() }; 2];
        let mut groups = [const { Vec::new() }; 2];
        // The first round warms up.
        for round in 0..=ROUNDS {
            for (at, engine) in engines.iter().enumerate() {
                let syncs = engine.metrics().syncs;
                let started = Instant::now();
                let sent = send(engine, callers, batch).await?;
                if round > 0 {
                    rates[at].push(sent as f64 / started.elapsed().as_secs_f64());
                    groups[at].push(sent as f64 / (engine.metrics().syncs - syncs) as f64);
                }
            }
        }
        let [local, postgres] = rates.map(median);
        let [local_group, postgres_group] = groups.map(median);
        println!(
            "{callers:7} | {batch:5} | {local:8.0} | {postgres:10.0} | {:5.2} | {local_group:14.1} | {postgres_group:8.1}",
            postgres / local
        );
    }
    for engine in engines {
        engine.shutdown().await;
    }
    Ok(())
}

/// Sends for one round; how many messages.
async fn send(engine: &Engine, callers: usize, batch: usize) -> Result<u64, Box<dyn Error>> {
    let until = Instant::now() + ROUND;
    let queue = QueueName::new("q")?;
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, queue) = (engine.clone(), queue.clone());
            tokio::spawn(async move {
                let body = bytes::Bytes::from(vec![7; BODY_BYTES]);
                let mut sent = 0;
                while Instant::now() < until {
                    let commands = (0..batch).map(|_| {
                        let (queue, message) = (queue.clone(), Message::new(body.clone()));
                        Command::Send(Box::new(SendMessage { queue, message }))
                    });
                    let answers = engine.submit_all(commands.collect()).await?;
                    sent += answers.iter().filter(|answer| answer.is_ok()).count() as u64;
                }
                Ok::<_, lockgate_engine::EngineError>(sent)
            })
        })
        .collect();
    let mut sent = 0;
    for caller in callers {
        sent += caller.await??;
    }
    Ok(sent)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

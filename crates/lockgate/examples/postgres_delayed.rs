//! What distance to the database costs: queues in PostgreSQL behind a proxy that adds two milliseconds to each
//! round trip.
//!
//! ```sh
//! ./scripts/services run cargo run --release -p lockgate --features postgres --example postgres_delayed
//! ```
//!
//! Prints how near durable sends of 16 callers, each of whom waits for its answer, come to one round trip and
//! one flush for each, both measured in the same run; and how long receives of another queue take alone and
//! beside them.

use std::{
    error::Error,
    io,
    time::{Duration, Instant},
};

use lockgate::{Lockgate, Message, Queue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, sleep_until},
};
use tokio_postgres::NoTls;

/// Added to each way.
const DELAY: Duration = Duration::from_millis(1);

const CALLERS: u32 = 16;
const SPAN: Duration = Duration::from_secs(4);
const BODY: &[u8] = &[b'x'; 1024];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES")?;
    let url = delayed(&url).await?;
    let shard = format!("delayed-{}", std::process::id());
    let lockgate = Lockgate::postgres(&url, &shard).open().await?;
    let sends = lockgate.queue("sends").create().await?;
    let receives = lockgate.queue("receives").create().await?;
    for _ in 0..20 {
        let messages = (0..500).map(|_| Message::new("x")).collect::<Vec<_>>();
        receives.send_all(messages).await?;
    }

    let commit = commits(&url, &shard).await?;
    let alone = median(receive(receives.clone(), SPAN).await);
    let began = Instant::now();
    let senders: Vec<_> = (0..CALLERS)
        .map(|_| tokio::spawn(send(sends.clone(), SPAN)))
        .collect();
    let beside = median(receive(receives, SPAN).await);
    let mut sent = 0;
    for sender in senders {
        sent += sender.await?;
    }
    let rate = f64::from(sent) / began.elapsed().as_secs_f64();
    let bound = f64::from(CALLERS) / commit.as_secs_f64();
    println!("a commit of one row, round trip and flush: {commit:.1?}");
    println!(
        "durable sends of {CALLERS} callers: {rate:.0}/s, {:.0} % of {bound:.0}/s",
        100.0 * rate / bound
    );
    println!(
        "a receive of another queue: {alone:.1?} alone, {beside:.1?} beside them, {:.2} times",
        beside.as_secs_f64() / alone.as_secs_f64()
    );
    lockgate.shutdown().await;
    Ok(())
}

/// What a commit takes that changes one row, in the median.
async fn commits(url: &str, shard: &str) -> Result<Duration, Box<dyn Error>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let driven = tokio::spawn(connection);
    let table = format!("\"{shard}\"");
    client
        .batch_execute(&format!("CREATE TABLE {table} AS SELECT 0 AS number"))
        .await?;
    let commit = client
        .prepare(&format!("UPDATE {table} SET number = number + 1"))
        .await?;
    let mut took = Vec::new();
    for _ in 0..300 {
        let began = Instant::now();
        client.execute(&commit, &[]).await?;
        took.push(began.elapsed());
    }
    client.batch_execute(&format!("DROP TABLE {table}")).await?;
    drop(client);
    driven.await??;
    Ok(median(took))
}

async fn send(queue: Queue, span: Duration) -> u32 {
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < span {
        queue.send(Message::new(BODY)).await.expect("it is taken");
        sent += 1;
    }
    sent
}

/// What receives of one message take, one after the other.
async fn receive(queue: Queue, span: Duration) -> Vec<Duration> {
    let (began, mut took) = (Instant::now(), Vec::new());
    let mut held = Vec::new();
    while began.elapsed() < span {
        let asked = Instant::now();
        let batch = queue.receive().max(1).await.expect("it is served");
        assert!(!batch.is_empty(), "there are more messages than receives");
        took.push(asked.elapsed());
        held.extend(batch);
        // So that they do not ask in step with the sends.
        sleep(Duration::from_micros(300)).await;
    }
    took
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

/// The same server by way of a proxy that holds each byte back for [`DELAY`], in both directions.
async fn delayed(url: &str) -> Result<String, Box<dyn Error>> {
    let (rest, database) = url.rsplit_once('/').ok_or("the URL names no database")?;
    let (user, server) = rest.rsplit_once('@').ok_or("the URL names no user")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = listener.local_addr()?;
    let to = server.to_owned();
    let _runs: JoinHandle<io::Result<()>> = tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await?;
            let server = TcpStream::connect(&to).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(carry(from_client, to_server));
            tokio::spawn(carry(from_server, to_client));
        }
    });
    Ok(format!("{user}@{proxy}/{database}"))
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    let (sender, mut arrived) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((due, bytes)) = arrived.recv().await {
            sleep_until(due).await;
            let bytes: Vec<u8> = bytes;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let due = tokio::time::Instant::now() + DELAY;
        if sender.send((due, buffer[..count].to_vec())).is_err() {
            return Ok(());
        }
    }
}

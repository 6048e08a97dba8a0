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
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use lockgate::{Lockgate, Message, Queue};
use tokio::time::sleep;
use tokio_postgres::NoTls;

/// Added to each way.
const DELAY: Duration = Duration::from_millis(1);

const CALLERS: u32 = 16;
const SPAN: Duration = Duration::from_secs(4);
const BODY: &[u8] = &[b'x'; 1024];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES")?;
    let url = delayed(&url)?;
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

/// The same server by way of a proxy that holds each byte back for [`DELAY`], in both directions. It has
/// threads of its own, because the runtime's timers are no finer than a millisecond.
fn delayed(url: &str) -> Result<String, Box<dyn Error>> {
    let (rest, database) = url.rsplit_once('/').ok_or("the URL names no database")?;
    let (user, server) = rest.rsplit_once('@').ok_or("the URL names no user")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let proxy = listener.local_addr()?;
    let to = server.to_owned();
    thread::spawn(move || -> io::Result<()> {
        loop {
            let (client, _) = listener.accept()?;
            let server = TcpStream::connect(&to)?;
            carry(client.try_clone()?, server.try_clone()?)?;
            carry(server, client)?;
        }
    });
    Ok(format!("{user}@{proxy}/{database}"))
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    to.set_nodelay(true)?;
    let (sender, arrived) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, bytes) in arrived {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        // The other side has closed.
        let _closed = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if sender
                .send((Instant::now() + DELAY, buffer[..count].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    Ok(())
}

//! What queues in a PostgreSQL database cost beside queues in a folder:
//!
//! ```sh
//! ./scripts/services run cargo run --release -p lockgate --features postgres --example postgres
//! ```
//!
//! Durable sends of 1 KiB from so many callers, then receives of ten with an ack each; messages a second.

use std::{error::Error, time::Instant};

use lockgate::{Lockgate, Message, Queue};

const BODY: &[u8] = &[b'x'; 1024];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES")?;
    let folder = tempfile::tempdir()?;
    let shard = format!("figures-{}", std::process::id());
    let places = [
        ("folder", Lockgate::open(folder.path()).await?),
        ("postgres", Lockgate::postgres(&url, &shard).open().await?),
    ];
    println!("callers  where     sends/s  receives/s");
    for (callers, each) in [(1, 500), (16, 250), (256, 40)] {
        for (place, lockgate) in &places {
            let queue = lockgate.queue(&format!("q{callers}")).create().await?;
            let sends = rate(&queue, callers, each, send).await;
            let receives = rate(&queue, callers, each, receive).await;
            println!("{callers:>7}  {place:<8}  {sends:>7.0}  {receives:>10.0}");
        }
    }
    for (_, lockgate) in places {
        lockgate.shutdown().await;
    }
    Ok(())
}

/// Messages a second.
async fn rate<F>(queue: &Queue, callers: u32, each: u32, work: fn(Queue, u32) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let began = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| tokio::spawn(work(queue.clone(), each)))
        .collect();
    for task in tasks {
        task.await.expect("no caller fails");
    }
    f64::from(callers * each) / began.elapsed().as_secs_f64()
}

async fn send(queue: Queue, count: u32) {
    for _ in 0..count {
        queue.send(Message::new(BODY)).await.expect("it is taken");
    }
}

async fn receive(queue: Queue, count: u32) {
    let mut left = count as usize;
    while left > 0 {
        let max = left.min(10).try_into().expect("ten at most");
        let deliveries = queue.receive().max(max).await.expect("it is served");
        if deliveries.is_empty() {
            return;
        }
        left -= deliveries.len();
        for delivery in deliveries {
            delivery.ack().await.expect("it is held");
        }
    }
}

//! A durable queue in a folder: `cargo run -p lockgate --example hello [FOLDER]`.
//!
//! Run it twice with the same folder and stop it in between: what was sent is there.

use std::time::Duration;

use lockgate::{Key, Lockgate, Message};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .unwrap_or_else(|| "hello-data".into());
    let lockgate = Lockgate::open(&folder).await?;
    let report = lockgate.start_report();
    println!("opened {}: {} messages", folder.display(), report.messages);

    let visits = lockgate.queue("visits").keyed().create().await?;
    for user in ["ada", "grace", "ada"] {
        let message = Message::new(format!("hello {user}")).with_key(Key::new(user)?);
        let sent = visits.send(message).await?;
        println!("sent {} for {user}", sent.id);
    }

    // Messages of one user come in order and to one holder; those of others do not wait for them.
    loop {
        let deliveries = visits
            .receive()
            .max(10)
            .wait(Duration::from_millis(100))
            .holder("hello-example")
            .await?;
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            let text = String::from_utf8_lossy(delivery.body());
            println!("received {text:?}, attempt {}", delivery.attempt());
            delivery.ack().await?;
        }
    }
    lockgate.shutdown().await;
    Ok(())
}

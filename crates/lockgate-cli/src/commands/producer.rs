//! `lockgate producer`.

use hyper::Method;
use serde_json::{Value, json};

use super::{NOTHING, block_on, client, part, peek};
use crate::{
    args::{Producer, ProducerForget, ProducerList},
    client::Client,
    exit::Failure,
    output::tell,
};

pub(super) fn run(args: &Producer) -> Result<(), Failure> {
    let client = client(args.settings())?;
    block_on(async {
        match args {
            Producer::List(args) => list(&client, args).await,
            Producer::Forget(args) => forget(&client, args).await,
        }
    })
}

async fn list(client: &Client, args: &ProducerList) -> Result<(), Failure> {
    let target = format!("/queues/{}/producers?limit=1000", part(&args.queue));
    let producers = peek::pages(client, &target, "producers", args.max).await?;
    let header = ["NAME", "INCARNATION", "OPENINGS", "LAST USED"];
    peek::print(args.json, &producers, header, |producer| {
        ["name", "incarnation", "openings", "used_at"].map(|name| peek::text(&producer[name]))
    })
}

async fn forget(client: &Client, args: &ProducerForget) -> Result<(), Failure> {
    let ProducerForget {
        queue, producer, ..
    } = args;
    let target = format!("/queues/{}/producers/{}", part(queue), part(producer));
    let _done: Value = client.call(Method::DELETE, &target, NOTHING).await?;
    let forgotten = json!({"queue": queue, "name": producer});
    tell(args.json, &forgotten, &format!("forgot {producer}"))
}

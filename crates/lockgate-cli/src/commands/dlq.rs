//! `lockgate dlq …`.

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{NOTHING, block_on, client, message, part, peek, purge};
use crate::{
    args::{Dlq, DlqDrop, DlqList, DlqRedrive},
    client::Client,
    exit::{Exit, Failure},
    output::{Output, count, note},
};

/// Messages that one request moves: as the server's own limit.
const STEP_MAX: u64 = 10_000;

/// How far a redrive got.
#[derive(Default, Serialize, Deserialize)]
struct Redriven {
    moved: u64,
    left: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stuck: Option<Stuck>,
}

/// The message at which a redrive ended.
#[derive(Serialize, Deserialize)]
struct Stuck {
    id: String,
    reason: String,
}

pub(super) fn run(args: &Dlq) -> Result<(), Failure> {
    let settings = match args {
        Dlq::List(args) => &args.settings,
        Dlq::Redrive(args) => &args.settings,
        Dlq::Drop(args) => &args.settings,
    };
    let mut client = client(settings)?;
    block_on(async {
        match args {
            Dlq::List(args) => list(&mut client, args).await,
            Dlq::Redrive(args) => redrive(&mut client, args).await,
            Dlq::Drop(DlqDrop {
                all: true,
                name,
                yes,
                ..
            }) => purge(&mut client, name, *yes, "Drop all of them?", "dropped").await,
            Dlq::Drop(args) => drop_some(&mut client, args).await,
        }
    })
}

async fn list(client: &mut Client, args: &DlqList) -> Result<(), Failure> {
    let queue = format!("/queues/{}", part(&args.name));
    let mut target = format!("{queue}/dead-letters?limit=100");
    if let Some(source) = &args.source {
        target.push_str(&format!("&source={}", part(source)));
    }
    let letters = peek::pages(client, &target, "messages", args.max).await?;
    if letters.is_empty() && args.source.is_none() {
        // Often the queue is named whose letters are meant.
        let queue: Value = client.admin(Method::GET, &queue, NOTHING).await?;
        if let Some(target) = queue["settings"]["dead_letter"].as_str() {
            return Err(Failure::failed(format!(
                "{} holds no dead letters; its own go to {target}",
                args.name
            ))
            .hint(format!(
                "`lockgate dlq list {target} --source {}`",
                args.name
            )));
        }
    }
    let header = ["ID", "FROM", "WHY", "MOVED", "KEY", "BODY"];
    peek::print(args.json, &letters, header, |letter| {
        let origin = &letter["origin"];
        let why = match &*peek::text(&origin["reason"]) {
            "attempts" => format!("{} attempts", peek::text(&origin["attempts"])),
            reason => match origin["detail"].as_str() {
                Some(detail) => format!("{reason}: {detail}"),
                None => reason.to_owned(),
            },
        };
        [
            peek::text(&letter["id"]),
            peek::text(&origin["queue"]),
            why,
            peek::text(&origin["moved_at"]),
            peek::key(letter),
            peek::body(letter),
        ]
    })
}

async fn redrive(client: &mut Client, args: &DlqRedrive) -> Result<(), Failure> {
    let target = format!("/queues/{}/dead-letters/redrive", part(&args.name));
    let max = args.max.unwrap_or(u64::MAX);
    let mut done = Redriven::default();
    loop {
        let step = STEP_MAX.min(max - done.moved);
        let body = json!({"to": args.to, "max": step});
        let result = client.admin(Method::POST, &target, Some(&body)).await;
        let step: Redriven = match result {
            Ok(step) => step,
            Err(error) if done.moved > 0 => {
                let moved = count(done.moved, "message");
                return Err(Failure::from(error).context(format!("after {moved} were moved")));
            }
            Err(error) => return Err(error.into()),
        };
        done = Redriven {
            moved: done.moved + step.moved,
            ..step
        };
        if done.stuck.is_some() || done.left == 0 || step.moved == 0 || done.moved >= max {
            break;
        }
    }
    if args.json {
        let mut output = Output::new();
        output.json(&done)?;
        output.flush()?;
    }
    note(&format!(
        "moved {}, {} left to move",
        count(done.moved, "message"),
        done.left
    ));
    let Some(stuck) = done.stuck else {
        return Ok(());
    };
    let why = match &*stuck.reason {
        "no_origin" => "was sent here, or moved here by somebody",
        "origin_not_allowed" => "comes from a queue that your access key may not send to",
        _ => "comes from a queue that is not there any more",
    };
    Err(Failure::new(
        Exit::Conflict,
        format!("message {} has nowhere to go back to: it {why}", stuck.id),
    )
    .hint(format!(
        "move what is left with --to QUEUE, or drop it: `lockgate dlq drop {} {}`",
        args.name, stuck.id
    )))
}

async fn drop_some(client: &mut Client, args: &DlqDrop) -> Result<(), Failure> {
    let (dropped, first) = message::remove(client, &args.name, &args.ids).await?;
    note(&format!("dropped {}", count(dropped, "message")));
    first.map_or(Ok(()), |error| Err(error.into()))
}

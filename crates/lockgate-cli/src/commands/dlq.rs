//! `lockgate dlq …`.

use std::{collections::BTreeMap, time::Duration};

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{NOTHING, block_on, client, message, part, peek, purge};
use crate::{
    args::{Dlq, DlqDrop, DlqList, DlqRedrive},
    client::Client,
    exit::{Exit, Failure},
    output::{Output, count, note, tell},
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
                json,
                ..
            }) => {
                let question = "Drop all of them?";
                purge(&mut client, name, *yes, question, "dropped", *json).await
            }
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
        let queue: Value = client.call(Method::GET, &queue, NOTHING).await?;
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

/// Says what a redrive would move.
async fn foresee(client: &mut Client, args: &DlqRedrive) -> Result<(), Failure> {
    let queue = format!("/queues/{}", part(&args.name));
    let target = match (&args.source, &args.to) {
        (Some(source), _) => {
            let source = part(source);
            format!("{queue}/dead-letters?limit=100&bodies=false&source={source}")
        }
        (None, None) => format!("{queue}/dead-letters?limit=100&bodies=false"),
        // Whatever is there goes, also what no queue gave up.
        (None, Some(_)) => format!("{queue}/messages?limit=100&bodies=false&state=ready"),
    };
    let mut letters = peek::pages(client, &target, "messages", u64::MAX).await?;
    letters.retain(|letter| letter["state"] == "ready");
    letters.truncate(usize::try_from(args.max.unwrap_or(u64::MAX)).unwrap_or(usize::MAX));
    let mut by_queue: BTreeMap<String, u64> = BTreeMap::new();
    for letter in &letters {
        let to = match &args.to {
            Some(to) => to.clone(),
            None => peek::text(&letter["origin"]["queue"]),
        };
        *by_queue.entry(to).or_default() += 1;
    }
    let rows: Vec<Value> = by_queue
        .iter()
        .map(|(to, messages)| json!({"to": to, "messages": messages}))
        .collect();
    peek::print(args.json, &rows, ["TO", "MESSAGES"], |row| {
        ["to", "messages"].map(|name| peek::text(&row[name]))
    })?;
    note(&format!(
        "would move {}; nothing was moved",
        count(letters.len() as u64, "message")
    ));
    Ok(())
}

async fn redrive(client: &mut Client, args: &DlqRedrive) -> Result<(), Failure> {
    if args.dry_run {
        return foresee(client, args).await;
    }
    let target = format!("/queues/{}/dead-letters/redrive", part(&args.name));
    let max = args.max.unwrap_or(u64::MAX);
    // At a rate: steps of a tenth of a second, or of one message.
    let step_max = (args.rate).map_or(STEP_MAX, |rate| u64::from(rate).div_ceil(10).min(STEP_MAX));
    let pause = args
        .rate
        .map_or(Duration::ZERO, |rate| Duration::from_secs(step_max) / rate);
    let mut next = Instant::now();
    let mut done = Redriven::default();
    loop {
        sleep_until(next).await;
        next = Instant::now() + pause;
        let step = step_max.min(max - done.moved);
        let body = json!({"to": args.to, "source": args.source, "max": step});
        let result = client.call(Method::POST, &target, Some(&body)).await;
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
    let done = format!("dropped {}", count(dropped, "message"));
    tell(args.json, &json!({"messages": dropped}), &done)?;
    first.map_or(Ok(()), |error| Err(error.into()))
}

//! `lockgate dlq …`.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    NOTHING, Signals, block_on, client, message, part, peek, purge, runtime, send::Problem,
};
use crate::{
    args::{Dlq, DlqDrop, DlqList, DlqRedrive},
    client::Client,
    exit::{Exit, Failure},
    output::{Output, count, note, tell},
};

/// Messages that one request moves: as the server's own limit.
const STEP_MAX: u64 = 10_000;

/// How far a redrive got.
#[derive(Default, Deserialize)]
struct Redriven {
    moved: u64,
    left: u64,
    stuck: Option<Stuck>,
    problem: Option<Problem>,
    next_page: Option<String>,
}

/// The message at which a redrive ended.
#[derive(Serialize, Deserialize)]
struct Stuck {
    id: String,
    reason: String,
}

/// All of them but a redrive that moves messages.
pub(super) fn run(args: &Dlq) -> Result<(), Failure> {
    let settings = match args {
        Dlq::List(args) => &args.settings,
        Dlq::Redrive(args) => &args.settings,
        Dlq::Drop(args) => &args.settings,
    };
    let client = client(settings)?;
    block_on(async {
        match args {
            Dlq::List(args) => list(&client, args).await,
            Dlq::Redrive(args) => foresee(&client, args).await,
            Dlq::Drop(DlqDrop {
                all: true,
                name,
                yes,
                json,
                ..
            }) => {
                let question = "Drop all of them?";
                purge(&client, name, *yes, question, "dropped", *json).await
            }
            Dlq::Drop(args) => drop_some(&client, args).await,
        }
    })
}

async fn list(client: &Client, args: &DlqList) -> Result<(), Failure> {
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
            "attempts" => {
                let attempts = count(origin["attempts"].as_u64().unwrap_or(0), "attempt");
                match peek::last_error(letter) {
                    Some(error) => format!("{attempts}, the last: {error}"),
                    None => attempts,
                }
            }
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
async fn foresee(client: &Client, args: &DlqRedrive) -> Result<(), Failure> {
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
    let ready = letters.len();
    if letters.iter().any(|letter| letter["key"].is_string()) {
        let waiting = waiting_keys(client, &queue).await?;
        letters.retain(|letter| !waiting.contains(&peek::text(&letter["key"])));
    }
    let waiting = ready - letters.len();
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
    let apart = match waiting {
        0 => String::new(),
        some => {
            let some = count(some as u64, "ready message");
            format!(", and not {some} whose key is parked or waits for a message in flight")
        }
    };
    note(&format!(
        "would move {}{apart}; nothing was moved",
        count(letters.len() as u64, "message")
    ));
    Ok(())
}

/// The keys whose ready messages a redrive leaves where they are.
async fn waiting_keys(client: &Client, queue: &str) -> Result<BTreeSet<String>, Failure> {
    let mut keys = BTreeSet::new();
    // Of a paused queue, which can be redriven, the first list says nothing else of any key.
    for parked in [false, true] {
        let target = format!("{queue}/keys?limit=1000&parked={parked}");
        for key in peek::pages(client, &target, "keys", u64::MAX).await? {
            let waits_for = peek::text(&key["waits_for"]);
            if parked || matches!(&*waits_for, "parked" | "lease" | "backoff" | "lease_bound") {
                keys.insert(peek::text(&key["key"]));
            }
        }
    }
    Ok(keys)
}

/// Moves dead letters, step by step. A signal ends it after the step under way, and it says how far it got.
pub(super) fn redrive(args: &DlqRedrive) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let mut run = Run {
            args,
            done: Redriven::default(),
        };
        let ended = run.go(&client, &mut signals).await;
        run.tell(ended)
    })
}

struct Run<'a> {
    args: &'a DlqRedrive,
    /// What all steps did; what is left and why it ended are of the last one.
    done: Redriven,
}

/// Why a run ended before its time.
enum Ended {
    Signal(Exit),
    Failure {
        failure: Failure,
        /// Messages that the last step may have moved besides.
        perhaps: u64,
        /// Whether the same command may do better now.
        again: bool,
    },
}

impl Run<'_> {
    async fn go(&mut self, client: &Client, signals: &mut Signals) -> Result<(), Ended> {
        let args = self.args;
        let target = format!("/queues/{}/dead-letters/redrive", part(&args.name));
        let max = args.max.unwrap_or(u64::MAX);
        // At a rate: steps of a tenth of a second, or of one message.
        let step_max =
            (args.rate).map_or(STEP_MAX, |rate| u64::from(rate).div_ceil(10).min(STEP_MAX));
        let pause = args
            .rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs(step_max) / rate);
        let mut next = Instant::now();
        loop {
            tokio::select! {
                biased;
                exit = signals.next() => return Err(Ended::Signal(exit)),
                () = sleep_until(next) => next = Instant::now() + pause,
            }
            let step_max = step_max.min(max - self.done.moved);
            let page = self.done.next_page.take();
            let body = json!({
                "to": args.to, "source": args.source, "max": step_max, "page": page,
            });
            let failed = |failure, perhaps, again| Ended::Failure {
                failure,
                perhaps,
                again,
            };
            let mut signal = None;
            let result = {
                let mut call = pin!(client.call::<Redriven>(Method::POST, &target, Some(&body)));
                tokio::select! {
                    biased;
                    result = &mut call => result,
                    exit = signals.next() => {
                        signal = Some(exit);
                        note("waiting for the step under way; interrupt again to leave it");
                        tokio::select! {
                            biased;
                            result = &mut call => result,
                            exit = signals.next() => {
                                return Err(failed(Failure::signal(exit), step_max, true));
                            }
                        }
                    }
                }
            };
            let step = result.map_err(|error| {
                let perhaps = if error.nothing_done() { 0 } else { step_max };
                let again = error.may_pass() || perhaps > 0;
                failed(error.into(), perhaps, again)
            })?;
            let is_stuck_page = step.moved == 0 && page.is_some() && step.next_page == page;
            self.done = Redriven {
                moved: self.done.moved + step.moved,
                ..step
            };
            if let Some(problem) = self.done.problem.take() {
                let perhaps = match &*problem.code {
                    "unknown_outcome" => STEP_MAX.min(1_000),
                    _ => 0,
                };
                let again = problem.may_pass();
                return Err(failed(problem.failure(""), perhaps, again));
            }
            let more = self.done.next_page.is_some();
            if self.done.stuck.is_some() || !more || self.done.moved >= max {
                return Ok(());
            }
            if is_stuck_page {
                let what = "one key has more than 100000 messages in front that stay, and messages are in flight";
                let failure = Failure::new(Exit::Conflict, what);
                return Err(failed(failure, 0, true));
            }
            if let Some(exit) = signal {
                return Err(Ended::Signal(exit));
            }
        }
    }

    /// Says how far it got, whatever ended it.
    fn tell(&self, ended: Result<(), Ended>) -> Result<(), Failure> {
        let Redriven {
            moved,
            left,
            stuck,
            next_page,
            ..
        } = &self.done;
        if self.args.json {
            let mut output = Output::new();
            let mut told = json!({"moved": moved, "left": left});
            if let Some(stuck) = stuck {
                told["stuck"] = json!(stuck);
            }
            output.json(&told)?;
            output.flush()?;
        }
        let words = format!("moved {}", count(*moved, "message"));
        let again = match self.args.max {
            None => "run the same command again to move the rest".to_owned(),
            Some(max) => format!("to go on, run it again with --max {}", max - moved),
        };
        match ended {
            Ok(()) => match &self.args.source {
                Some(source) => note(&format!("{words} that came from {source}")),
                None if *left == 0 => note(&words),
                None => {
                    let why = match (next_page, stuck) {
                        (None, None) => {
                            ": they came meanwhile, or their key is parked or waits for a message in flight"
                        }
                        _ => "",
                    };
                    let left = count(*left, "ready message");
                    note(&format!("{words}; {left} stay{why}"));
                }
            },
            Err(Ended::Signal(exit)) => {
                note(&format!("{words} before it was interrupted; {again}"));
                return Err(Failure::signal(exit));
            }
            Err(Ended::Failure {
                failure,
                perhaps,
                again: helps,
            }) => {
                let perhaps = match perhaps {
                    0 => String::new(),
                    perhaps => format!(", and perhaps up to {perhaps} more"),
                };
                let again = match helps {
                    true => format!("; {again}"),
                    false => String::new(),
                };
                note(&format!("{words}{perhaps} before it ended{again}"));
                return Err(failure);
            }
        }
        match stuck {
            Some(stuck) => Err(self.stuck(stuck)),
            None => Ok(()),
        }
    }

    fn stuck(&self, stuck: &Stuck) -> Failure {
        let why = match &*stuck.reason {
            "no_origin" => "was sent here, or moved here by somebody",
            "origin_not_allowed" => "comes from a queue that your access key may not send to",
            _ => "comes from a queue that is not there any more",
        };
        Failure::new(
            Exit::Conflict,
            format!("message {} has nowhere to go back to: it {why}", stuck.id),
        )
        .hint(format!(
            "move what is left with --to QUEUE, or drop it: `lockgate dlq drop {} {}`",
            self.args.name, stuck.id
        ))
    }
}

async fn drop_some(client: &Client, args: &DlqDrop) -> Result<(), Failure> {
    let (dropped, first) = message::remove(client, &args.name, &args.ids).await?;
    let done = format!("dropped {}", count(dropped, "message"));
    tell(args.json, &json!({"messages": dropped}), &done)?;
    first.map_or(Ok(()), |error| Err(error.into()))
}

//! Why a receive has nothing to give.

use std::{collections::BTreeMap, time::Duration};

use hyper::Method;
use serde::Deserialize;
use tokio::time::timeout;

use super::CALL_WAIT_MAX;
use crate::{
    client::{CallError, Client},
    commands::{Counts, NOTHING, part},
    output::{count, note},
    units::show_duration,
};

/// Pages of delayed messages that are looked at for the first to be due.
const PAGES_MAX: usize = 10;

/// Nobody waits longer for a reason.
const ASKING_MAX: Duration = Duration::from_secs(2);

/// After so long without a message somebody who follows a queue is told why.
const TOLD_AFTER: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Queue {
    keyed: bool,
    paused: bool,
    #[serde(default)]
    limited: Option<Limited>,
    counts: Counts,
    settings: Settings,
}

#[derive(Deserialize)]
struct Limited {
    limit: String,
    #[serde(default)]
    remaining_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Settings {
    in_flight_max: u64,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Key>,
    #[serde(default)]
    next_page: Option<String>,
}

#[derive(Deserialize)]
struct Key {
    waits_for: String,
}

#[derive(Deserialize)]
struct Messages {
    messages: Vec<Message>,
    #[serde(default)]
    next_page: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    due_at: Option<String>,
}

/// Says on standard error why nothing was received. If that cannot be found out, nothing is said: the
/// receive itself did not fail.
pub(super) async fn tell(client: &Client, queue: &str) {
    if let Some((_, why)) = ask(client, queue).await {
        note(&format!("nothing received: {why}"));
    }
}

/// What was said while somebody follows a queue: each reason once, until another takes its place.
#[derive(Default)]
pub(super) struct Waiting {
    asked: bool,
    said: Option<Reason>,
}

/// A reason without its numbers, which change while it lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Paused,
    Empty,
    Delayed,
    Full,
    Limited,
    Held,
    /// There is none any more.
    JustNow,
}

impl Waiting {
    /// How long to ask for a message: only shortly until somebody was told why none comes.
    pub(super) fn wait(&self) -> Duration {
        if self.asked {
            CALL_WAIT_MAX
        } else {
            TOLD_AFTER
        }
    }

    pub(super) async fn tell(&mut self, client: &Client, queue: &str) {
        self.asked = true;
        match ask(client, queue).await {
            None | Some((Reason::JustNow, _)) => {}
            Some((reason, _)) if self.said == Some(reason) => {}
            Some((reason, why)) => {
                note(&format!("still waiting: {why}"));
                self.said = Some(reason);
            }
        }
    }

    /// A message came.
    pub(super) fn over(&mut self, queue: &str) {
        self.asked = false;
        if self.said == Some(Reason::Paused) {
            note(&format!("{queue} is not paused any more"));
            self.said = None;
        }
    }
}

async fn ask(client: &Client, queue: &str) -> Option<(Reason, String)> {
    timeout(ASKING_MAX, why(client, queue)).await.ok()?.ok()
}

async fn why(client: &Client, name: &str) -> Result<(Reason, String), CallError> {
    let target = format!("/queues/{}", part(name));
    let queue: Queue = client.call(Method::GET, &target, NOTHING).await?;
    let Counts {
        ready,
        in_flight,
        delayed,
        ..
    } = queue.counts;
    let held = ready + in_flight;
    if queue.paused {
        let all = count(held + delayed, "message");
        return Ok((
            Reason::Paused,
            format!(
                "{name} is paused and holds {all}; `lockgate queue resume {name}` lets it go on"
            ),
        ));
    }
    if held + delayed == 0 {
        return Ok((Reason::Empty, format!("{name} is empty")));
    }
    let until = match delayed {
        0 => String::new(),
        _ => until(client, &target, delayed).await?,
    };
    if held == 0 {
        let why = match delayed {
            1 => format!("the only message of {name} is delayed {until}"),
            _ => format!("all {delayed} messages of {name} are delayed, {until}"),
        };
        return Ok((Reason::Delayed, why));
    }
    let also = match delayed {
        0 => String::new(),
        1 => format!("; 1 more is delayed {until}"),
        _ => format!("; {delayed} more are delayed, {until}"),
    };
    if let Some(Limited {
        limit,
        remaining_ms,
    }) = queue.limited
    {
        let until = match remaining_ms {
            Some(remaining) => format!(
                "for {} more",
                show_duration(Duration::from_millis(remaining))
            ),
            None => "until a lease ends".to_owned(),
        };
        let holds = match &*limit {
            "held" => format!("somebody holds {name}"),
            "owing_keys" => {
                let why = format!(
                    "as many keys as may owe something under a limit, and {name} goes on when one of them has paid{also}"
                );
                return Ok((Reason::Limited, why));
            }
            limit => format!("the limit_{limit} of {name} holds its messages"),
        };
        let why = format!("{holds} {until}{also}");
        return Ok((Reason::Limited, why));
    }
    if in_flight >= queue.settings.in_flight_max {
        return Ok((
            Reason::Full,
            format!("{name} has as many messages in flight as it may, {in_flight}{also}"),
        ));
    }
    if queue.keyed {
        let (reason, why) = keys(client, name, &target).await?;
        return Ok((reason, format!("{why}{also}")));
    }
    let groups = queue.counts.limited_keys;
    Ok(match (ready, in_flight) {
        (1.., _) if groups > 0 => (
            Reason::Limited,
            format!("limits of {name} hold {}{also}", count(groups, "group")),
        ),
        (0, 1) => (
            Reason::Held,
            format!("1 message of {name} is in flight or waits for another attempt{also}"),
        ),
        (0, _) => (
            Reason::Held,
            format!(
                "{in_flight} messages of {name} are in flight or wait for another attempt{also}"
            ),
        ),
        _ => just_now(name),
    })
}

/// Until when messages are delayed.
async fn until(client: &Client, target: &str, delayed: u64) -> Result<String, CallError> {
    let target = format!("{target}/messages?state=delayed&bodies=false&limit=100");
    let mut first: Option<String> = None;
    let mut page = String::new();
    for at in 1..=PAGES_MAX {
        let target = format!("{target}{page}");
        let answer: Messages = client.call(Method::GET, &target, NOTHING).await?;
        let due = answer.messages.into_iter();
        // Instants of one form, in UTC, sort as texts.
        first = due.filter_map(|message| message.due_at).chain(first).min();
        match answer.next_page {
            Some(next) if at < PAGES_MAX => page = format!("&page={}", part(&next)),
            Some(_) => return Ok(shown("the first that was found until", first)),
            None => break,
        }
    }
    Ok(match delayed {
        1 => shown("until", first),
        _ => shown("the first until", first),
    })
}

fn shown(words: &str, instant: Option<String>) -> String {
    // It may have become due since it was counted.
    format!("{words} {}", instant.as_deref().unwrap_or("now"))
}

/// By what the keys are held.
async fn keys(client: &Client, name: &str, target: &str) -> Result<(Reason, String), CallError> {
    let target = format!("{target}/keys?limit=1000");
    let keys: Keys = client.call(Method::GET, &target, NOTHING).await?;
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for key in keys.keys {
        match &*key.waits_for {
            "due" | "no_message" => {}
            "nothing" => return Ok(just_now(name)),
            word => *held.entry(in_words(word)).or_default() += 1,
        }
    }
    let all: u64 = held.values().sum();
    let by: Vec<String> = held
        .iter()
        .map(|(word, keys)| format!("{keys} {word}"))
        .collect();
    let looked_at = match keys.next_page {
        Some(_) => "the first 1000 keys that were looked at are",
        None if all == 1 => "its only key with messages is",
        None => &format!("all {all} keys with messages are"),
    };
    let why = format!(
        "{name} holds messages, but {looked_at} held ({}); `lockgate key list {name}` says more",
        by.join(", ")
    );
    Ok((Reason::Held, why))
}

fn in_words(word: &str) -> String {
    match word {
        "lease" => "in flight".to_owned(),
        "backoff" => "waiting for another attempt".to_owned(),
        "durability" => "not synced yet".to_owned(),
        "lease_bound" => "perhaps held since before a power cut".to_owned(),
        "limit" => "held by a limit".to_owned(),
        other => other.replace('_', " "),
    }
}

fn just_now(name: &str) -> (Reason, String) {
    let why = format!("{name} was empty or held a moment ago, and has messages now: ask again");
    (Reason::JustNow, why)
}

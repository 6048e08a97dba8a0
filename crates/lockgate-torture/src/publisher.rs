//! A publisher: it publishes messages to an exchange with two queues, and takes what these queues get.
//!
//! A publish is one command. So every message is in both queues or in neither, whatever happens to the server between the
//! publish and the receives.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    client::{CallError, Client},
    history::{History, Time},
    random::Random,
};

/// The queues that are bound.
pub(crate) const COPIED: [&str; 2] = ["copied", "copied.fifo"];
const EXCHANGE: &str = "copies";
const LEASE_MS: u64 = 5_000;
const BATCH_MAX: u64 = 5;
/// Between attempts while the server is away or refuses.
const PAUSE: Duration = Duration::from_millis(10);
/// Between publishes, which are beside the load and not part of it.
const REST: Duration = Duration::from_millis(5);

/// What was seen of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// A publish was answered: all queues have the message.
    Published { number: u64 },
    /// A publish had no answer.
    Unknown { number: u64 },
    /// A queue, by its place among [`COPIED`], gave it to a receive that was asked for at this time.
    Delivered {
        queue: usize,
        number: u64,
        call: Time,
    },
    /// Its acknowledgement was answered.
    Acked {
        queue: usize,
        number: u64,
        returned: Time,
    },
}

/// What no correct server could have done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A copy is missing.
    Missing(String),
    /// A copy is there that should not be.
    Extra(String),
}

/// Judges what was seen until the queues were empty.
pub(crate) fn judge(seen: &[Seen], mut wrong: impl FnMut(Wrong)) {
    let (mut published, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut delivered: [BTreeSet<u64>; COPIED.len()] = Default::default();
    let mut acked: BTreeMap<(usize, u64), Time> = BTreeMap::new();
    for seen in seen {
        match *seen {
            Seen::Published { number } => _ = published.insert(number),
            Seen::Unknown { number } => _ = unknown.insert(number),
            Seen::Acked {
                queue,
                number,
                returned,
            } => {
                acked.entry((queue, number)).or_insert(returned);
            }
            Seen::Delivered {
                queue,
                number,
                call,
            } => {
                delivered[queue].insert(number);
                if acked
                    .get(&(queue, number))
                    .is_some_and(|acked| *acked < call)
                {
                    let queue = COPIED[queue];
                    wrong(Wrong::Extra(format!(
                        "{queue}: message {number} was acknowledged and came again"
                    )));
                }
            }
        }
    }
    let anywhere: BTreeSet<u64> = delivered.iter().flatten().copied().collect();
    for number in anywhere.union(&published) {
        let lacks = |queue: &usize| !delivered[*queue].contains(number);
        for queue in (0..COPIED.len()).filter(lacks) {
            let queue = COPIED[queue];
            wrong(Wrong::Missing(format!(
                "{queue}: message {number} was published and never came"
            )));
        }
        if !published.contains(number) && !unknown.contains(number) {
            wrong(Wrong::Extra(format!("message {number} was not published")));
        }
    }
}

/// How many messages were published.
pub(crate) fn published(seen: &[Seen]) -> usize {
    let is_published = |seen: &&Seen| matches!(seen, Seen::Published { .. });
    seen.iter().filter(is_published).count()
}

/// Publishes.
pub(crate) struct Publisher {
    pub(crate) client: Client,
    pub(crate) history: History,
    pub(crate) random: Random,
}

impl Publisher {
    /// Makes the exchange, and binds the queues.
    pub(crate) async fn make(&mut self) -> Result<()> {
        let create = json!({ "name": EXCHANGE, "kind": "fanout" });
        while self.ask("/exchanges", &create).await?.is_none() {}
        for queue in COPIED {
            let bind = json!({ "to": { "queue": queue } });
            let path = format!("/exchanges/{EXCHANGE}/bind");
            while self.ask(&path, &bind).await?.is_none() {}
        }
        Ok(())
    }

    /// Goes on until it is told to end.
    pub(crate) async fn run(mut self, going: watch::Receiver<bool>) -> Result<()> {
        let mut next = 1;
        while *going.borrow() {
            let end = next + 1 + self.random.below(BATCH_MAX);
            self.publish((next..end).collect()).await?;
            next = end;
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    /// Publishes messages until each is in all queues, or is given up.
    async fn publish(&mut self, mut numbers: Vec<u64>) -> Result<()> {
        while !numbers.is_empty() {
            let messages = numbers.iter().map(|number| {
                let filling = "lock ".repeat(usize::try_from(number * 37 % 101).unwrap_or(0));
                let body = json!({ "number": number, "filling": filling }).to_string();
                let key = format!("k{}", number % 4);
                json!({ "message": { "body": body, "key": key, "unique_id": number.to_string() } })
            });
            let messages: Vec<Value> = messages.collect();
            let path = format!("/exchanges/{EXCHANGE}/messages");
            let answer = self.ask(&path, &json!({ "messages": messages })).await?;
            let mut again = Vec::new();
            for (place, number) in numbers.into_iter().enumerate() {
                let Some(answer) = &answer else {
                    self.see(Seen::Unknown { number });
                    // Its unique id says that it is the same message.
                    again.push(number);
                    continue;
                };
                let result = &answer["results"][place];
                match result["outcome"].as_str() {
                    Some("published") => {
                        let queues = result["queues"].as_array().map(Vec::len);
                        ensure!(queues == Some(COPIED.len()), "a publish got {result}");
                        self.see(Seen::Published { number });
                    }
                    // Some that were refused are never published again: they must never appear.
                    Some("refused") if self.random.once_in(4) => {}
                    Some("refused") => again.push(number),
                    _ => bail!("a publish was answered {result}"),
                }
            }
            if !again.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            numbers = again;
        }
        Ok(())
    }

    /// Receives and acknowledges copies of a queue until it is told to end.
    pub(crate) async fn take(mut self, queue: usize, going: watch::Receiver<bool>) -> Result<()> {
        let name = COPIED[queue];
        let receive = json!({ "max": 10, "wait_ms": 500, "lease_ms": LEASE_MS });
        while *going.borrow() {
            let call = self.history.now();
            let path = format!("/queues/{name}/receive");
            let Some(answer) = self.ask(&path, &receive).await? else {
                continue;
            };
            let (mut settles, mut numbers) = (Vec::new(), Vec::new());
            for message in answer["messages"].as_array().context("messages")? {
                let body: Value = serde_json::from_str(message["body"].as_str().context("body")?)?;
                let number = body["number"].as_u64().context("number")?;
                self.see(Seen::Delivered {
                    queue,
                    number,
                    call,
                });
                settles.push(json!({ "receipt": message["receipt"], "action": "ack" }));
                numbers.push(number);
            }
            if settles.is_empty() {
                continue;
            }
            let path = format!("/queues/{name}/settle");
            let Some(answer) = self.ask(&path, &json!({ "settles": settles })).await? else {
                continue;
            };
            let returned = self.history.now();
            for (place, number) in numbers.into_iter().enumerate() {
                if answer["results"][place]["outcome"] == "done" {
                    self.see(Seen::Acked {
                        queue,
                        number,
                        returned,
                    });
                }
            }
        }
        Ok(())
    }

    /// Asks once; `None` if there is no answer that says.
    async fn ask(&mut self, path: &str, body: &Value) -> Result<Option<Value>> {
        match self.client.api(Method::POST, path, body).await {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::Wrong { status, body }) => bail!("{path}: {status} {body}"),
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                Ok(None)
            }
        }
    }

    fn see(&self, seen: Seen) {
        self.history.with(|records| records.published.push(seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_server_could_have_done_is_found() {
        let published = |number| Seen::Published { number };
        let unknown = |number| Seen::Unknown { number };
        let delivered = |queue, number, millis| Seen::Delivered {
            queue,
            number,
            call: Duration::from_millis(millis),
        };
        let acked = |queue, number, millis| Seen::Acked {
            queue,
            number,
            returned: Duration::from_millis(millis),
        };
        let both = |number| [delivered(0, number, 1), delivered(1, number, 1)];
        for (seen, found) in [
            ([vec![published(1)], both(1).into()].concat(), ""),
            // A lost answer: it is in both, or in none.
            ([vec![unknown(1)], both(1).into()].concat(), ""),
            (vec![unknown(1)], ""),
            (
                vec![published(1), delivered(0, 1, 1)],
                "copied.fifo: message 1 was published",
            ),
            (
                vec![unknown(1), delivered(1, 1, 1)],
                "copied: message 1 was published",
            ),
            (vec![published(1)], "never came"),
            (both(1).into(), "was not published"),
            // A receive that was asked for before the acknowledgement says nothing.
            (
                [
                    vec![published(1)],
                    both(1).into(),
                    vec![acked(0, 1, 5), delivered(0, 1, 4)],
                ]
                .concat(),
                "",
            ),
            (
                [
                    vec![published(1)],
                    both(1).into(),
                    vec![acked(0, 1, 5), delivered(0, 1, 6)],
                ]
                .concat(),
                "came again",
            ),
        ] {
            let mut problems = Vec::new();
            judge(&seen, |wrong| problems.push(format!("{wrong:?}")));
            assert_eq!(
                problems.is_empty(),
                found.is_empty(),
                "{seen:?}: {problems:?}"
            );
            assert!(
                problems.iter().all(|problem| problem.contains(found)),
                "{problems:?}"
            );
        }
    }
}

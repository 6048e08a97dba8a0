//! Keepers: each counts its messages in the state of their key, and holds the key now and then.
//!
//! A keeper has a queue with one key. It sends one message after the other and settles each with the message's number as
//! the state of the key. So the state always says which messages are gone: an acknowledgement without its state, or a
//! state without its acknowledgement, shows in the next delivery.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    client::{CallError, Client},
    history::{History, Time},
    random::Random,
};

const LEASE_MS: u64 = 5_000;
const HOLD: Duration = Duration::from_millis(300);
/// Between attempts while the server is away or refuses.
const PAUSE: Duration = Duration::from_millis(10);

/// What a keeper has seen of its queue, in the order in which it asked.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) queue: Arc<str>,
    pub(crate) seen: Seen,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// A message came with the state of its key.
    Delivered {
        number: u64,
        /// What the state says; 0: there is none.
        state: u64,
        returned: Time,
    },
    /// A settle with a state was answered.
    Written { number: u64 },
    /// The state was read.
    Shown { state: u64 },
    /// A hold was answered that was asked for at this time.
    Held { call: Time },
}

/// What no correct server could have done.
pub(crate) fn judge(steps: &[Step], mut problem: impl FnMut(String)) {
    // Of each queue: the highest state that was told, and until when its key is held.
    let mut known: BTreeMap<&str, (u64, Time)> = BTreeMap::new();
    for Step { queue, seen } in steps {
        let (told, held_until) = known.entry(queue).or_default();
        let mut shows = |state: u64| {
            if state < *told {
                problem(format!(
                    "{queue}: the state was {told} and is {state} again"
                ));
            }
            *told = state.max(*told);
        };
        match *seen {
            Seen::Written { number } => shows(number),
            Seen::Shown { state } => shows(state),
            Seen::Held { call } => *held_until = call + HOLD,
            Seen::Delivered {
                number,
                state,
                returned,
            } => {
                shows(state);
                if state + 1 != number {
                    problem(format!(
                        "{queue}: message {number} came with the state {state}"
                    ));
                }
                if returned < *held_until {
                    let left = *held_until - returned;
                    problem(format!(
                        "{queue}: message {number} came {left:?} before its hold ended"
                    ));
                }
            }
        }
    }
}

/// How many states were written.
pub(crate) fn written(steps: &[Step]) -> usize {
    let is_written = |step: &&Step| matches!(step.seen, Seen::Written { .. });
    steps.iter().filter(is_written).count()
}

/// One of them.
pub(crate) struct Keeper {
    pub(crate) queue: Arc<str>,
    pub(crate) client: Client,
    pub(crate) history: History,
    pub(crate) random: Random,
}

impl Keeper {
    /// Goes on until it is told to end, and ends with an empty queue.
    pub(crate) async fn run(mut self, going: watch::Receiver<bool>) -> Result<()> {
        let mut number = 0;
        while *going.borrow() {
            number += 1;
            self.send(number).await?;
            while !self.handle(number).await? {}
        }
        Ok(())
    }

    async fn send(&mut self, number: u64) -> Result<()> {
        let message = json!({
            "body": number.to_string(), "key": "k", "unique_id": number.to_string(),
        });
        let body = json!({ "messages": [message] });
        loop {
            if let Some(answer) = self.ask("messages", &body).await? {
                let outcome = &answer["results"][0]["outcome"];
                if outcome == "sent" {
                    return Ok(());
                }
                // For want of space, which passes.
                ensure!(outcome == "refused", "a send was answered {answer}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Receives the message and settles it; whether it is gone.
    async fn handle(&mut self, number: u64) -> Result<bool> {
        let receive = json!({ "max": 1, "wait_ms": 1_000, "lease_ms": LEASE_MS });
        let Some(answer) = self.ask("receive", &receive).await? else {
            return Ok(false);
        };
        let returned = self.history.now();
        let message = &answer["messages"][0];
        if message.is_null() {
            // It may be gone by a settle whose answer was lost.
            return Ok(self.shown().await? == Some(number));
        }
        let delivered = message["body"].as_str().context("a body")?.parse()?;
        let state = &message["state"];
        self.see(Seen::Delivered {
            number: delivered,
            state: value(state)?,
            returned,
        });
        let receipt = &message["receipt"];
        if self.random.once_in(8) {
            let delay = u64::try_from(HOLD.as_millis())?;
            let defer = json!({
                "receipt": receipt, "action": "defer", "delay_ms": delay, "hold": "key",
            });
            let call = self.history.now();
            let body = json!({ "settles": [defer] });
            if let Some(answer) = self.ask("settle", &body).await?
                && answer["results"][0]["outcome"] == "done"
            {
                self.see(Seen::Held { call });
            }
            return Ok(false);
        }
        let mut write = json!({ "value": delivered.to_string() });
        if let Some(version) = state["version"].as_u64() {
            write["replaces"] = version.into();
        }
        let settle = json!({ "receipt": receipt, "action": "ack", "state": write });
        let body = json!({ "settles": [settle] });
        let Some(answer) = self.ask("settle", &body).await? else {
            return Ok(false);
        };
        let result = &answer["results"][0];
        match result["outcome"].as_str() {
            Some("done") => {
                self.see(Seen::Written { number: delivered });
                Ok(delivered == number)
            }
            Some("stale" | "refused") if result["problem"]["code"] != "state_conflict" => Ok(false),
            // Nobody else writes it.
            _ => bail!("a settle with a state was answered {answer}"),
        }
    }

    /// Reads the state; `None` if no answer comes.
    pub(crate) async fn shown(&mut self) -> Result<Option<u64>> {
        let path = format!("/queues/{}/keys/k/state", self.queue);
        let state = match self.client.api(Method::GET, &path, &Value::Null).await {
            Ok(state) => value(&state)?,
            Err(CallError::Wrong { status: 404, .. }) => 0,
            Err(CallError::Wrong { status, body }) => bail!("{path}: {status} {body}"),
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                return Ok(None);
            }
        };
        self.see(Seen::Shown { state });
        Ok(Some(state))
    }

    /// Asks once; `None` if there is no answer that says.
    async fn ask(&mut self, what: &str, body: &Value) -> Result<Option<Value>> {
        let path = format!("/queues/{}/{what}", self.queue);
        match self.client.api(Method::POST, &path, body).await {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::Wrong { status, body }) => bail!("{path}: {status} {body}"),
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                Ok(None)
            }
        }
    }

    fn see(&self, seen: Seen) {
        let queue = self.queue.clone();
        self.history
            .with(|records| records.steps.push(Step { queue, seen }));
    }
}

/// What a state says; 0 where there is none.
fn value(state: &Value) -> Result<u64> {
    match &state["value"] {
        Value::Null => Ok(0),
        value => Ok(value.as_str().context("a state that is no text")?.parse()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn delivered(number: u64, state: u64) -> Seen {
        Seen::Delivered {
            number,
            state,
            returned: Duration::from_secs(1),
        }
    }

    const fn held(millis: u64) -> Seen {
        Seen::Held {
            call: Duration::from_millis(millis),
        }
    }

    #[test]
    fn what_no_server_could_have_done_is_found() {
        let written = |number| Seen::Written { number };
        let shown = |state| Seen::Shown { state };
        for (steps, found) in [
            (vec![delivered(1, 0), written(1), delivered(2, 1)], ""),
            // A lost answer: it has happened, or comes again.
            (vec![delivered(1, 0), shown(1), delivered(2, 1)], ""),
            (vec![delivered(1, 0), delivered(1, 0), written(1)], ""),
            (vec![held(700), delivered(1, 0)], ""),
            (
                vec![delivered(1, 0), written(1), delivered(1, 1)],
                "message 1 came with the state 1",
            ),
            (vec![delivered(2, 0)], "message 2 came with the state 0"),
            (
                vec![delivered(1, 0), written(1), shown(0)],
                "was 1 and is 0 again",
            ),
            (vec![written(2), delivered(2, 1)], "was 2 and is 1 again"),
            (vec![held(701), delivered(1, 0)], "before its hold ended"),
        ] {
            let queue = |queue: &str, seen: &Seen| Step {
                queue: queue.into(),
                seen: *seen,
            };
            // What another queue shows is nothing to it.
            let both = steps
                .iter()
                .flat_map(|seen| [queue("a", seen), queue("b", &shown(0))]);
            let both: Vec<Step> = both.collect();
            let mut problems = Vec::new();
            judge(&both, |problem| problems.push(problem));
            assert_eq!(
                problems.is_empty(),
                found.is_empty(),
                "{steps:?}: {problems:?}"
            );
            assert!(
                problems.iter().all(|problem| problem.contains(found)),
                "{problems:?}"
            );
        }
    }
}

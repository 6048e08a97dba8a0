//! `lockgate ack`, `lockgate nack`, `lockgate defer`, `lockgate extend` and `lockgate reject`.

use hyper::Method;
use lockgate_core::REASON_BYTES_MAX;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{block_on, client, millis, part};
use crate::{
    args::{Ack, Defer, Extend, Nack, Receipts, Reject},
    exit::{Exit, Failure},
    output::{Output, count, note},
};

/// Leases of one request.
pub(super) const CALL_MAX: usize = 1000;

#[derive(Deserialize)]
pub(super) struct Results {
    pub(super) results: Vec<Outcome>,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Outcome {
    Done {
        /// A rejected message, because there is no dead-letter queue.
        #[serde(default)]
        dropped: bool,
    },
    Stale {
        reason: String,
    },
    Refused {
        problem: Problem,
    },
}

#[derive(Deserialize)]
pub(super) struct Problem {
    code: String,
    detail: String,
}

impl Outcome {
    /// Why it could not be done, in words.
    pub(super) fn problem(self) -> Option<String> {
        match self {
            Self::Done { .. } => None,
            Self::Stale { reason } => Some(words(&reason).to_owned()),
            Self::Refused { problem } => Some(problem.words()),
        }
    }

    /// A failure, unless it was done.
    pub(super) fn done(self, what: &str) -> Result<(), Failure> {
        match self.problem() {
            None => Ok(()),
            Some(why) => Err(Failure::new(
                Exit::Conflict,
                format!("a message could not be {what}: {why}"),
            )),
        }
    }
}

impl Problem {
    /// For whoever named receipts, not a place in a request.
    pub(super) fn words(self) -> String {
        match &*self.code {
            "invalid_receipt" => {
                "it is no receipt that this server gave out for this queue; `lockgate receive` prints them, as \
                 \"receipt\""
                    .to_owned()
            }
            _ => self.detail,
        }
    }
}

pub(super) fn ack(args: &Ack) -> Result<(), Failure> {
    run(&args.receipts, &json!({"action": "ack"}), "acknowledged")
}

pub(super) fn nack(args: &Nack) -> Result<(), Failure> {
    check_reason(args.reason.as_deref())?;
    let delay = millis(args.delay.unwrap_or_default());
    let settle = json!({"action": "nack", "delay_ms": delay, "reason": args.reason});
    run(&args.receipts, &settle, "put back")
}

pub(super) fn defer(args: &Defer) -> Result<(), Failure> {
    let mut settle = json!({"action": "defer", "delay_ms": millis(args.delay)});
    if let Some(hold) = &args.hold {
        settle["hold"] = json!(hold);
    }
    run(&args.receipts, &settle, "deferred")
}

pub(super) fn extend(args: &Extend) -> Result<(), Failure> {
    let settle = json!({"action": "extend", "lease_ms": millis(args.lease)});
    run(&args.receipts, &settle, "held for longer")
}

pub(super) fn reject(args: &Reject) -> Result<(), Failure> {
    check_reason(args.reason.as_deref())?;
    let settle = json!({"action": "reject", "reason": args.reason});
    run(&args.receipts, &settle, "rejected")
}

fn check_reason(reason: Option<&str>) -> Result<(), Failure> {
    let bytes = reason.map_or(0, str::len);
    if bytes > REASON_BYTES_MAX {
        let what = format!("--reason has {bytes} bytes, and may have {REASON_BYTES_MAX}");
        return Err(Failure::usage(what));
    }
    Ok(())
}

fn run(args: &Receipts, settle: &Value, done: &str) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    block_on(async {
        let target = format!("/queues/{}/settle", part(&args.queue));
        let is_ack = settle["action"] == "ack";
        let mut output = Output::new();
        let mut failed = 0;
        let mut all_dropped = 0;
        let mut first = None;
        for receipts in args.receipts.chunks(CALL_MAX) {
            let settles: Vec<Value> = receipts
                .iter()
                .map(|receipt| {
                    let mut settle = settle.clone();
                    settle["receipt"] = json!(receipt);
                    settle
                })
                .collect();
            let body = json!({ "settles": settles });
            let answer: Results = client.call(Method::POST, &target, Some(&body)).await?;
            for (receipt, outcome) in receipts.iter().zip(answer.results) {
                let dropped = matches!(outcome, Outcome::Done { dropped: true });
                all_dropped += u64::from(dropped);
                let why = match outcome {
                    // An attempt before this one did it, whose answer was lost.
                    Outcome::Stale { reason } if reason == "gone" && is_ack => None,
                    outcome => outcome.problem(),
                };
                if args.json {
                    let outcome = if why.is_none() { "done" } else { "failed" };
                    let mut line = json!({"receipt": receipt, "outcome": outcome, "why": why});
                    if dropped {
                        line["dropped"] = json!(true);
                    }
                    output.json(&line)?;
                }
                if let Some(why) = why {
                    failed += 1;
                    first.get_or_insert(why);
                }
            }
        }
        output.flush()?;
        let all = args.receipts.len() as u64;
        if all_dropped > 0 {
            let dropped = count(all_dropped, "message");
            note(&format!(
                "{dropped} dropped: {} has no dead-letter queue",
                args.queue
            ));
        }
        match first {
            None => {
                let were = if all == 1 { "was" } else { "were" };
                if !args.json {
                    note(&format!("{} {were} {done}", count(all, "message")));
                }
                Ok(())
            }
            Some(why) => Err(Failure::new(
                Exit::Conflict,
                match all {
                    1 => format!("the message could not be {done}: {why}"),
                    _ => {
                        format!("{failed} of {all} messages could not be {done}; the first: {why}")
                    }
                },
            )),
        }
    })
}

/// Why a lease is not current.
pub(super) fn words(reason: &str) -> &str {
    match reason {
        "gone" => "the message is gone: settled, dropped or purged",
        "ended" => "the lease has ended",
        "superseded" => "the lease has ended, and somebody else has the message",
        "out_of_order" => "an earlier message of its batch must be settled first",
        other => other,
    }
}

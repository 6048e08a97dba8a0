//! `lockgate cancel` and `lockgate reschedule`: messages that wait.

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{NOTHING, block_on, client, millis, part};
use crate::{
    args::{Cancel, Reschedule},
    client::{CallError, Client},
    exit::Failure,
    output::{count, tell},
};

#[derive(Serialize, Deserialize)]
struct Rescheduled {
    id: String,
    due_at: String,
}

#[derive(Deserialize)]
struct Nothing {}

pub(super) fn cancel(args: &Cancel) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    block_on(async {
        let (cancelled, first) = remove(&client, &args.queue, &args.ids).await?;
        let done = format!("cancelled {}", count(cancelled, "message"));
        tell(args.json, &json!({"messages": cancelled}), &done)?;
        first.map_or(Ok(()), |error| Err(error.into()))
    })
}

/// Cancels each of these messages; how many, and why the first of the others could not be.
///
/// # Errors
/// If the server cannot be asked about the next one.
pub(super) async fn remove(
    client: &Client,
    queue: &str,
    ids: &[String],
) -> Result<(u64, Option<CallError>), CallError> {
    let mut removed = 0;
    let mut first = None;
    for id in ids {
        let target = format!("/queues/{}/messages/{}", part(queue), part(id));
        let result = client
            .call::<Nothing>(Method::DELETE, &target, NOTHING)
            .await;
        match result {
            Ok(Nothing {}) => removed += 1,
            Err(error) if error.nothing_done() && !error.may_pass() => {
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((removed, first))
}

pub(super) fn reschedule(args: &Reschedule) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    block_on(async {
        let queue = part(&args.queue);
        let target = format!("/queues/{queue}/messages/{}/reschedule", part(&args.id));
        let due = match args.at {
            Some(at) => json!({ "due_at": at.to_string() }),
            None => json!({ "delay_ms": millis(args.delay.unwrap_or_default()) }),
        };
        let done: Rescheduled = client.call(Method::POST, &target, Some(&due)).await?;
        let words = format!("{} is due at {}", done.id, done.due_at);
        tell(args.json, &done, &words)
    })
}

//! `lockgate queue apply`: declared queues against a running server.
//!
//! The file is that of `lockgate serve --queues`, read and checked by the same code; here the queues are
//! compared and changed through the SQS API, so that it works from afar and with the grants of a key.
//! Steps of a queue have an order: tags first, since they allow attributes that SQS refuses; dead-letter
//! queues once all queues are there; and at last the key policy, which may need a dead-letter queue.

use std::collections::BTreeMap;

use lockgate_server::{DeclareProblem, DeclaredPart, DeclaredQueue};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    block_on, find_queue,
    queue::{attributes, is_fifo, redrive_policy},
    serve::server_options,
};
use crate::{
    args::QueueApply,
    client::{Client, CreateQueue, ListQueueTags, SetQueueAttributes, TagQueue},
    exit::Failure,
    output::{Output, Table, count, note},
    queue_file::QueueFile,
    settings::Resolved,
};

const REDRIVE: &str = "RedrivePolicy";
/// The tag that may need a dead-letter queue first.
const KEY_POLICY: &str = "lockgate:key-policy";

/// What is, or was, to be done to a queue.
#[derive(Debug, Serialize)]
struct Plan {
    queue: String,
    outcome: Outcome,
    changes: Vec<Change>,
    /// How many a message has before it goes to the dead-letter queue, if there is to be one.
    #[serde(skip)]
    attempts: u64,
    #[serde(skip)]
    url: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Created,
    Changed,
    Unchanged,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    #[serde(flatten)]
    what: What,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    after: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Attribute(String),
    Tag(String),
    /// Where to.
    DeadLetter(String),
}

pub(super) fn run(args: &QueueApply, settings: &Resolved, client: Client) -> Result<(), Failure> {
    let file = QueueFile::read(&args.file, args.format, &server_options(settings))?;
    for warning in &file.warnings {
        note(&format!("warning: {warning}"));
    }
    let mut client = client;
    block_on(async {
        let declared = file.declared();
        let mut plans = Vec::new();
        for queue in &declared {
            plans.push(plan(&mut client, queue).await?);
        }
        let problems = missing_targets(&mut client, &declared).await?;
        if !problems.is_empty() {
            return Err(file.refused(&problems));
        }
        if !args.dry_run {
            apply(&mut client, &mut plans).await?;
        }
        tell(args, &plans)
    })
}

/// What differs between a declaration and what there is.
async fn plan(client: &mut Client, queue: &DeclaredQueue) -> Result<Plan, Failure> {
    let url = find_queue(client, &queue.name).await?;
    let (is, tags) = match &url {
        Some(url) => {
            let call = ListQueueTags {
                queue_url: url.clone(),
            };
            let is = attributes(client, url).await?.unwrap_or_default();
            (is, client.call(&call).await?.tags)
        }
        None => (BTreeMap::new(), BTreeMap::new()),
    };
    let changes = changes(queue, &is, &tags);
    let outcome = match &url {
        None => Outcome::Created,
        Some(_) if changes.is_empty() => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    };
    Ok(Plan {
        queue: queue.name.clone(),
        outcome,
        changes,
        attempts: queue
            .dead_letter
            .as_ref()
            .map_or(0, |(_, attempts)| *attempts),
        url,
    })
}

fn changes(
    queue: &DeclaredQueue,
    is: &BTreeMap<String, String>,
    tags: &BTreeMap<String, String>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for (tag, after) in &queue.tags {
        let before = tags.get(tag);
        if before != Some(after) {
            changes.push(Change {
                what: What::Tag(tag.clone()),
                before: before.cloned(),
                after: after.clone(),
            });
        }
    }
    for (name, after) in &queue.attributes {
        let before = is.get(name);
        if !before.is_some_and(|before| same(before, after)) {
            changes.push(Change {
                what: What::Attribute(name.clone()),
                before: before.cloned(),
                after: after.clone(),
            });
        }
    }
    if let Some((target, attempts)) = &queue.dead_letter {
        let before = is.get(REDRIVE).and_then(|policy| dead_letter(policy));
        if before.as_ref() != Some(&(target.clone(), *attempts)) {
            let words = |(name, attempts): &(String, u64)| format!("{name} after {attempts}");
            changes.push(Change {
                what: What::DeadLetter(target.clone()),
                before: before.as_ref().map(words),
                after: words(&(target.clone(), *attempts)),
            });
        }
    }
    changes
}

/// Whether two values of an attribute mean the same: policies are JSON, numbers may have zeros in front.
fn same(one: &str, other: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other
        || one.eq_ignore_ascii_case(other) && matches!(&*one.to_ascii_lowercase(), "true" | "false")
        || matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one == other)
        || matches!((value(one), value(other)), (Some(one), Some(other)) if one == other)
}

/// Where a redrive policy of SQS sends dead letters, and after how many attempts.
fn dead_letter(policy: &str) -> Option<(String, u64)> {
    let policy: Value = serde_json::from_str(policy).ok()?;
    let target = policy["deadLetterTargetArn"].as_str()?.rsplit(':').next()?;
    let attempts = &policy["maxReceiveCount"];
    let attempts = attempts
        .as_u64()
        .or_else(|| attempts.as_str()?.parse().ok())?;
    Some((target.to_owned(), attempts))
}

/// Dead-letter queues that are neither declared nor there.
async fn missing_targets(
    client: &mut Client,
    declared: &[DeclaredQueue],
) -> Result<Vec<DeclareProblem>, Failure> {
    let mut problems = Vec::new();
    for (at, queue) in declared.iter().enumerate() {
        let Some((target, _)) = &queue.dead_letter else {
            continue;
        };
        if declared.iter().any(|queue| queue.name == *target)
            || find_queue(client, target).await?.is_some()
        {
            continue;
        }
        problems.push(DeclareProblem {
            queue: at,
            part: DeclaredPart::DeadLetter,
            what: format!(
                "its dead-letter queue {target} is neither declared nor there: declare it too"
            ),
        });
    }
    Ok(problems)
}

async fn apply(client: &mut Client, plans: &mut [Plan]) -> Result<(), Failure> {
    for plan in plans.iter_mut() {
        let done = plan.without_dead_letter(client).await;
        done.map_err(|failure| failure.context(format!("queue {}", plan.queue)))?;
    }
    for plan in plans {
        let done = plan.dead_letter(client).await;
        done.map_err(|failure| failure.context(format!("queue {}", plan.queue)))?;
    }
    Ok(())
}

impl Plan {
    /// Makes the queue, or sets what differs, but for what may need other queues.
    async fn without_dead_letter(&mut self, client: &mut Client) -> Result<(), Failure> {
        let mut attributes = BTreeMap::new();
        let mut tags = BTreeMap::new();
        for Change { what, after, .. } in &self.changes {
            match what {
                What::Attribute(name) if name != REDRIVE => {
                    attributes.insert(name.clone(), after.clone());
                }
                What::Tag(tag) if tag != KEY_POLICY => {
                    tags.insert(tag.clone(), after.clone());
                }
                _ => {}
            }
        }
        let Some(url) = &self.url else {
            if is_fifo(&self.queue) {
                attributes.insert("FifoQueue".to_owned(), "true".to_owned());
            }
            let create = CreateQueue {
                queue_name: self.queue.clone(),
                attributes,
                tags,
            };
            self.url = Some(client.call(&create).await?.queue_url);
            return Ok(());
        };
        tag(client, url, tags).await?;
        set(client, url, attributes).await
    }

    /// Says where dead letters go, and what a failing message does to its key.
    async fn dead_letter(&self, client: &mut Client) -> Result<(), Failure> {
        let Some(url) = &self.url else {
            return Ok(());
        };
        for Change { what, after, .. } in &self.changes {
            let policy = match what {
                What::DeadLetter(target) => redrive_policy(client, target, self.attempts).await?,
                What::Attribute(name) if name == REDRIVE => after.clone(),
                _ => continue,
            };
            set(client, url, [(REDRIVE.to_owned(), policy)].into()).await?;
        }
        let policy = self.changes.iter().filter_map(|change| match &change.what {
            What::Tag(tag) if tag == KEY_POLICY => Some((tag.clone(), change.after.clone())),
            _ => None,
        });
        tag(client, url, policy.collect()).await
    }
}

async fn set(
    client: &mut Client,
    url: &str,
    attributes: BTreeMap<String, String>,
) -> Result<(), Failure> {
    if !attributes.is_empty() {
        let queue_url = url.to_owned();
        let call = SetQueueAttributes {
            queue_url,
            attributes,
        };
        client.call(&call).await?;
    }
    Ok(())
}

async fn tag(
    client: &mut Client,
    url: &str,
    tags: BTreeMap<String, String>,
) -> Result<(), Failure> {
    if !tags.is_empty() {
        let queue_url = url.to_owned();
        client.call(&TagQueue { queue_url, tags }).await?;
    }
    Ok(())
}

fn tell(args: &QueueApply, plans: &[Plan]) -> Result<(), Failure> {
    let mut output = Output::new();
    let mut table = Table::new(["QUEUE", "OUTCOME", "WHAT"]);
    for plan in plans {
        if args.json {
            output.json(plan)?;
            continue;
        }
        let words: Vec<String> = plan.changes.iter().map(Change::words).collect();
        let outcome = json!(plan.outcome);
        table.row([
            &plan.queue,
            outcome.as_str().unwrap_or(""),
            &words.join(", "),
        ]);
    }
    if !args.json {
        output.table(&table)?;
    }
    output.flush()?;
    let of = |outcome| plans.iter().filter(|plan| plan.outcome == outcome).count();
    let dry = if args.dry_run {
        "; nothing was done: --dry-run"
    } else {
        ""
    };
    note(&format!(
        "{}: {} created, {} changed, {} as declared already{dry}",
        count(plans.len() as u64, "queue"),
        of(Outcome::Created),
        of(Outcome::Changed),
        of(Outcome::Unchanged),
    ));
    Ok(())
}

impl Change {
    fn words(&self) -> String {
        let what = match &self.what {
            What::Attribute(name) => name.clone(),
            What::Tag(tag) => format!("tag {tag}"),
            What::DeadLetter(_) => "dead letters".to_owned(),
        };
        match &self.before {
            Some(before) => format!("{what}: {before} -> {}", self.after),
            None => format!("{what}: {}", self.after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_mean_the_same_are_no_change() {
        for (one, other) in [
            ("30", "030"),
            ("true", "True"),
            (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#),
        ] {
            assert!(same(one, other), "{one} and {other}");
        }
        for (one, other) in [("30", "31"), ("true", "false"), ("a", "A"), ("{}", "")] {
            assert!(!same(one, other), "{one} and {other}");
        }
        let policy = r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":"5"}"#;
        assert_eq!(dead_letter(policy), Some(("dead".to_owned(), 5)));
        assert_eq!(dead_letter("{}"), None);
    }
}

//! `lockgate queue …`.

use std::{collections::BTreeMap, time::Duration};

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Counts, agree, block_on, client, client_of, environment, find_queue, millis, no_such_queue,
    part, peek, purge, queue_apply,
    queue_settings::{self, NOTHING},
    queue_url,
};
use crate::{
    args::{Queue, QueueCreate, QueueDelete, QueueList, QueuePurge, QueueShow},
    client::{Client, CreateQueue, DeleteQueue, GetQueueAttributes, ListQueueTags},
    exit::{Exit, Failure},
    output::{Output, Table, note},
    settings::resolve,
    units::show_duration,
};

pub(crate) fn run(args: Queue) -> Result<(), Failure> {
    match args {
        Queue::List(args) => {
            let mut client = client(&args.settings)?;
            block_on(async { list(&mut client, &args).await })
        }
        Queue::Create(args) => {
            let mut client = client(&args.settings)?;
            block_on(async { create(&mut client, *args).await })
        }
        Queue::Apply(args) => {
            let settings = resolve(&args.settings.0, &environment)?;
            queue_apply::run(&args, &settings, client_of(&settings)?)
        }
        Queue::Show(args) => {
            let mut client = client(&args.settings)?;
            block_on(async { show(&mut client, &args).await })
        }
        Queue::Settings(args) => queue_settings::show(&args),
        Queue::Set(args) => queue_settings::set(*args),
        Queue::Pause(args) => queue_settings::pause(&args.settings, &args.name, true),
        Queue::Resume(args) => queue_settings::pause(&args.settings, &args.name, false),
        Queue::Purge(args) => {
            let mut client = client(&args.settings)?;
            let QueuePurge { name, yes, .. } = &args;
            let question = "Remove all of them?";
            block_on(async { purge(&mut client, name, *yes, question, "purged").await })
        }
        Queue::Delete(args) => {
            let mut client = client(&args.settings)?;
            block_on(async { delete(&mut client, &args).await })
        }
    }
}

/// As much of a queue as is listed.
#[derive(Deserialize)]
struct Listed {
    name: String,
    keyed: bool,
    paused: bool,
    counts: Counts,
    settings: Value,
}

async fn list(client: &mut Client, args: &QueueList) -> Result<(), Failure> {
    let mut output = Output::new();
    let mut table = Table::new(["NAME", "READY", "IN FLIGHT", "DELAYED", "STATE"]);
    let mut target = "/queues?limit=1000".to_owned();
    if let Some(prefix) = &args.prefix {
        target.push_str(&format!("&prefix={}", part(prefix)));
    }
    for queue in peek::pages(client, &target, "queues", u64::MAX).await? {
        let queue = Listed::deserialize(queue)
            .map_err(|error| Failure::failed(format!("the server lists a queue so: {error}")))?;
        let Listed {
            name,
            keyed,
            paused,
            counts,
            ..
        } = queue;
        if args.json {
            // A queue that was deleted since the page was made is not one any more.
            let Some(url) = find_queue(client, &name).await? else {
                continue;
            };
            output.json(&json!({
                "name": name,
                "url": url,
                "fifo": keyed,
                "paused": paused,
                "counts": counts,
            }))?;
        } else {
            table.row([
                name,
                counts.ready.to_string(),
                counts.in_flight.to_string(),
                counts.delayed.to_string(),
                state(paused).to_owned(),
            ]);
        }
    }
    if !args.json {
        output.table(&table)?;
    }
    output.flush()
}

fn state(paused: bool) -> &'static str {
    if paused { "paused" } else { "active" }
}

async fn create(client: &mut Client, args: QueueCreate) -> Result<(), Failure> {
    let fifo = is_fifo(&args.name);
    if args.fifo && !fifo {
        return Err(Failure::usage(format!(
            "the name of a FIFO queue ends in .fifo, {:?} does not",
            args.name
        ))
        .hint(format!("`lockgate queue create {}.fifo`", args.name)));
    }
    let (attributes, tags) = if args.attribute.is_empty() {
        create_by_settings(client, &args).await?;
        // The queue is there. What follows gives its URL.
        (BTreeMap::new(), BTreeMap::new())
    } else {
        let tags = args.tag.iter().cloned().collect();
        (attributes_to_create(client, &args).await?, tags)
    };
    let fifo_queue = fifo.then(|| ("FifoQueue".to_owned(), "true".to_owned()));
    let answer = client
        .call(&CreateQueue {
            queue_name: args.name.clone(),
            attributes: fifo_queue.into_iter().chain(attributes).collect(),
            tags,
        })
        .await?;
    let mut output = Output::new();
    if args.json {
        output.json(&json!({"name": args.name, "url": answer.queue_url, "fifo": fifo}))?;
    } else {
        output.line(&answer.queue_url)?;
    }
    output.flush()
}

/// Makes a queue over the admin API, whose times are those of `queue set`. One that is there is left as it
/// is, and must have the settings that are named.
async fn create_by_settings(client: &mut Client, args: &QueueCreate) -> Result<(), Failure> {
    let mut settings: BTreeMap<&str, Value> = [
        ("delay_ms", args.delay),
        ("lease_ms", args.lease),
        ("retention_ms", args.retention),
    ]
    .into_iter()
    .filter_map(|(name, time)| Some((name, json!(millis(time?)))))
    .collect();
    if let Some(queue) = &args.dead_letter {
        // That it is missing is told in words of its own.
        queue_url(client, queue).await?;
        let dead_letter = json!({"queue": queue, "attempts_max": args.attempts});
        settings.insert("dead_letter", dead_letter);
    }
    let tags: BTreeMap<_, _> = args.tag.iter().cloned().collect();
    let body = json!({"name": args.name, "settings": settings, "tags": tags});
    let made = client.admin::<Value>(Method::POST, "/queues", Some(&body));
    let exists = match made.await {
        Err(error) if error.is_queue_there() => error,
        made => return made.map(drop).map_err(Failure::from),
    };
    // The server compares all settings. As with SQS, what is not named may be as it is.
    if settings.is_empty() && tags.is_empty() {
        return Ok(());
    }
    let target = format!("/queues/{}", part(&args.name));
    let Ok(queue) = client.admin::<Value>(Method::GET, &target, NOTHING).await else {
        return Err(exists.into());
    };
    if let Some((tag, _)) = tags
        .iter()
        .find(|(tag, value)| queue["tags"][tag.as_str()] != value.as_str())
    {
        return Err(Failure::new(
            Exit::Conflict,
            format!(
                "queue {} exists with another value of the tag {tag}",
                args.name
            ),
        )
        .hint(format!(
            "see its tags with `lockgate queue show {}`",
            args.name
        )));
    }
    let differs = |(name, value): &(&&str, &Value)| queue["settings"][**name] != **value;
    match settings.iter().find(differs) {
        None => Ok(()),
        Some((name, _)) => {
            let what = name.trim_end_matches("_ms").replace('_', "-");
            Err(Failure::new(
                Exit::Conflict,
                format!("queue {} exists with another --{what}", args.name),
            )
            .hint(format!(
                "see it with `lockgate queue settings {0}`, change it with `lockgate queue set {0}`",
                args.name
            )))
        }
    }
}

/// What a queue is made with if an attribute of SQS is named: SQS counts in seconds.
async fn attributes_to_create(
    client: &mut Client,
    args: &QueueCreate,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut attributes: BTreeMap<String, String> = BTreeMap::new();
    let times = [
        ("DelaySeconds", "--delay", args.delay),
        ("VisibilityTimeout", "--lease", args.lease),
        ("MessageRetentionPeriod", "--retention", args.retention),
    ];
    for (attribute, flag, time) in times {
        let Some(time) = time else { continue };
        if time.subsec_nanos() != 0 {
            let time = show_duration(time);
            return Err(Failure::usage(format!(
                "{flag} {time} with --attribute: SQS counts in whole seconds there"
            ))
            .hint(format!(
                "leave {flag} away and set it afterwards: `lockgate queue set {} {flag} {time}`",
                args.name
            )));
        }
        attributes.insert(attribute.to_owned(), time.as_secs().to_string());
    }
    if let Some(dead_letter) = &args.dead_letter {
        attributes.insert(
            "RedrivePolicy".to_owned(),
            redrive_policy(client, dead_letter, args.attempts.into()).await?,
        );
    }
    for (name, value) in &args.attribute {
        if attributes.insert(name.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("attribute {name} is given twice")));
        }
    }
    Ok(attributes)
}

/// The attribute that names a dead-letter queue, which SQS wants as an ARN.
pub(super) async fn redrive_policy(
    client: &mut Client,
    dead_letter: &str,
    attempts: u64,
) -> Result<String, Failure> {
    let url = queue_url(client, dead_letter).await?;
    let arn = attributes(client, &url)
        .await?
        .and_then(|mut attributes| attributes.remove("QueueArn"))
        .ok_or_else(|| no_such_queue(client, dead_letter))?;
    Ok(json!({"deadLetterTargetArn": arn, "maxReceiveCount": attempts}).to_string())
}

async fn show(client: &mut Client, args: &QueueShow) -> Result<(), Failure> {
    let url = queue_url(client, &args.name).await?;
    let attributes = attributes(client, &url)
        .await?
        .ok_or_else(|| no_such_queue(client, &args.name))?;
    let tags = client
        .call(&ListQueueTags {
            queue_url: url.clone(),
        })
        .await?
        .tags;
    let target = format!("/queues/{}", part(&args.name));
    let Listed {
        keyed,
        paused,
        counts,
        settings,
        ..
    } = client.admin(Method::GET, &target, NOTHING).await?;
    // SQS has no word for a change that does not hold yet.
    let scope_pending = settings["dedup"]["scope_pending_ms"].as_u64();
    let mut output = Output::new();
    if args.json {
        let mut shown = json!({
            "name": args.name,
            "url": url,
            "fifo": keyed,
            "paused": paused,
            "counts": counts,
            "attributes": attributes,
            "tags": tags,
        });
        if let Some(left) = scope_pending {
            shown["dedup_scope_pending_ms"] = json!(left);
        }
        output.json(&shown)?;
        return output.flush();
    }
    let mut table = Table::plain(2);
    table.row(["name", &args.name]);
    table.row(["url", &url]);
    table.row(["state", state(paused)]);
    table.row(["ready", &counts.ready.to_string()]);
    table.row(["in flight", &counts.in_flight.to_string()]);
    table.row(["delayed", &counts.delayed.to_string()]);
    for (name, value) in &attributes {
        if !name.starts_with("ApproximateNumberOf") {
            table.row([name, value]);
        }
    }
    if let Some(left) = scope_pending {
        let left = show_duration(Duration::from_millis(left));
        table.row([
            "deduplication scope",
            &format!("changed; sends follow the former one for another {left}"),
        ]);
    }
    for (name, value) in &tags {
        table.row([&format!("tag {name}"), value]);
    }
    output.table(&table)?;
    output.flush()
}

async fn delete(client: &mut Client, args: &QueueDelete) -> Result<(), Failure> {
    let Some(url) = find_queue(client, &args.name).await? else {
        if args.if_exists {
            note(&format!("there is no queue {:?}", args.name));
            return Ok(());
        }
        return Err(no_such_queue(client, &args.name));
    };
    let counts = Counts::of(client, &args.name).await?;
    agree(
        args.yes,
        &args.name,
        counts,
        "Delete the queue with all of them?",
    )?;
    match client.call(&DeleteQueue { queue_url: url }).await {
        Err(error) if error.is_queue_missing() && args.if_exists => {}
        result => {
            result?;
        }
    }
    note(&format!("deleted {}", args.name));
    Ok(())
}

/// All attributes of a queue, or `None` if it is gone.
pub(super) async fn attributes(
    client: &mut Client,
    url: &str,
) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let call = GetQueueAttributes {
        queue_url: url.to_owned(),
        attribute_names: vec!["All".to_owned()],
    };
    match client.call(&call).await {
        Ok(answer) => Ok(Some(answer.attributes)),
        Err(error) if error.is_queue_missing() => Ok(None),
        Err(error) => {
            let failure = Failure::from(error);
            debug_assert_ne!(failure.exit(), Exit::NotFound);
            Err(failure)
        }
    }
}

pub(super) fn is_fifo(name: &str) -> bool {
    name.ends_with(".fifo")
}

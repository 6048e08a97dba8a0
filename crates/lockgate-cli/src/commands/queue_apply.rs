//! `lockgate queue apply`: declared queues and exchanges against a running server.
//!
//! The file is that of `lockgate serve --queues`, read and checked by the same code; here the queues are
//! compared and changed through the admin API, so that it works from afar and with the grants of a key.
//! Queues are made without what may need other queues, and get that when all are there. Exchanges follow
//! (`exchange_apply`).

use lockgate_machine::{Setting, SettingValue};
use lockgate_server::{DeclareProblem, DeclaredPart, DeclaredQueue};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    block_on, exchange_apply,
    queue::{change, find, value_of},
    schedule_apply,
};
use crate::{
    args::QueueApply,
    client::Client,
    exit::Failure,
    output::{Output, Table, count, note},
    queue_file::QueueFile,
    units::setting_json,
};

/// Settings that may need other queues.
const LAST: [&str; 2] = ["dead_letter", "key_policy"];

/// What is, or was, to be done to a queue.
#[derive(Debug, Serialize)]
struct Plan {
    queue: String,
    outcome: Outcome,
    changes: Vec<Change>,
    #[serde(skip)]
    settings: Vec<(&'static Setting, SettingValue)>,
    #[serde(skip)]
    tags: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Created,
    Changed,
    Unchanged,
}

/// A part that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    #[serde(flatten)]
    pub(super) what: What,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<String>,
    pub(super) after: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    Setting(&'static str),
    Tag(String),
    /// The rule of an exchange for messages that it cannot route.
    Unroutable,
    Binding(String),
    /// A part of a schedule.
    Part(&'static str),
}

pub(super) fn run(args: &QueueApply, client: Client) -> Result<(), Failure> {
    let file = QueueFile::read(&args.file, args.format)?;
    for warning in &file.warnings {
        note(&format!("warning: {warning}"));
    }
    let client = client;
    block_on(async {
        let declared = file.declared();
        let mut plans = Vec::new();
        for queue in &declared {
            plans.push(plan(&client, queue).await?);
        }
        let problems = missing_targets(&client, &declared).await?;
        if !problems.is_empty() {
            return Err(file.refused(&problems));
        }
        let exchanges = file.exchanges();
        let mut exchange_plans = Vec::new();
        for exchange in &exchanges {
            exchange_plans.push(exchange_apply::plan(&client, exchange).await?);
        }
        let problems =
            exchange_apply::problems(&client, &declared, &exchanges, &exchange_plans).await?;
        if !problems.is_empty() {
            return Err(file.refused_exchanges(&problems));
        }
        let mut schedule_plans = Vec::new();
        for schedule in file.schedules() {
            schedule_plans.push(schedule_apply::plan(&client, schedule).await?);
        }
        if !args.dry_run {
            apply(&client, &plans).await?;
            exchange_apply::apply(&client, &exchanges, &exchange_plans).await?;
            schedule_apply::apply(&client, &schedule_plans).await?;
        }
        tell(args, &plans, &exchange_plans, &schedule_plans)
    })
}

/// What differs between a declaration and what there is.
async fn plan(client: &Client, queue: &DeclaredQueue) -> Result<Plan, Failure> {
    let is = find(client, &queue.name).await?;
    let mut plan = Plan {
        queue: queue.name.clone(),
        outcome: Outcome::Created,
        changes: Vec::new(),
        settings: Vec::new(),
        tags: Map::new(),
    };
    for (tag, after) in &queue.tags {
        let before = is.as_ref().and_then(|is| is["tags"][tag].as_str());
        if before != Some(after) {
            plan.tags.insert(tag.clone(), json!(after));
            plan.changes.push(Change {
                what: What::Tag(tag.clone()),
                before: before.map(str::to_owned),
                after: after.clone(),
            });
        }
    }
    for (setting, after) in &queue.settings {
        let before = is.as_ref().map(|is| value_of(setting, &is["settings"]));
        if before.as_ref() != Some(after) {
            plan.settings.push((setting, after.clone()));
            plan.changes.push(Change {
                what: What::Setting(setting.name),
                before: before.map(|before| setting.show(&before)),
                after: setting.show(after),
            });
        }
    }
    plan.outcome = match is {
        None => Outcome::Created,
        Some(_) if plan.changes.is_empty() => Outcome::Unchanged,
        Some(_) => Outcome::Changed,
    };
    Ok(plan)
}

/// Dead-letter queues that are neither declared nor there.
async fn missing_targets(
    client: &Client,
    declared: &[DeclaredQueue],
) -> Result<Vec<DeclareProblem>, Failure> {
    let mut problems = Vec::new();
    for (at, queue) in declared.iter().enumerate() {
        for (setting, value) in &queue.settings {
            let SettingValue::Queue(target) = value else {
                continue;
            };
            if declared.iter().any(|queue| queue.name == target.as_str())
                || find(client, target.as_str()).await?.is_some()
            {
                continue;
            }
            problems.push(DeclareProblem {
                queue: at,
                part: DeclaredPart::Setting(setting.name),
                what: format!(
                    "its dead-letter queue {target} is neither declared nor there: declare it too"
                ),
            });
        }
    }
    Ok(problems)
}

async fn apply(client: &Client, plans: &[Plan]) -> Result<(), Failure> {
    for plan in plans.iter().filter(|plan| plan.outcome == Outcome::Created) {
        let done = plan.create(client).await;
        done.map_err(|failure| failure.context(format!("queue {}", plan.queue)))?;
    }
    for plan in plans {
        let done = plan.change(client).await;
        done.map_err(|failure| failure.context(format!("queue {}", plan.queue)))?;
    }
    Ok(())
}

impl Plan {
    fn fields(&self, last: bool) -> Map<String, Value> {
        (self.settings.iter())
            .filter(|(setting, _)| LAST.contains(&setting.name) == last)
            .map(|(setting, value)| (setting.json_name().to_owned(), setting_json(value)))
            .collect()
    }

    /// The tags but for those that set what may need other queues.
    fn tags(&self, last: bool) -> Map<String, Value> {
        let is_last = |tag: &str| tag == "lockgate:key-policy";
        (self.tags.iter())
            .filter(|(tag, _)| is_last(tag) == last)
            .map(|(tag, value)| (tag.clone(), value.clone()))
            .collect()
    }

    async fn create(&self, client: &Client) -> Result<(), Failure> {
        let body =
            json!({"name": self.queue, "settings": self.fields(false), "tags": self.tags(false)});
        let made = client.call::<Value>(hyper::Method::POST, "/queues", Some(&body));
        made.await?;
        Ok(())
    }

    /// Sets what differs, of a queue that was made what it was made without.
    async fn change(&self, client: &Client) -> Result<(), Failure> {
        let (mut settings, mut tags) = (self.fields(true), self.tags(true));
        if self.outcome == Outcome::Changed {
            settings.extend(self.fields(false));
            tags.extend(self.tags(false));
        }
        if !settings.is_empty() || !tags.is_empty() {
            change(client, &self.queue, settings, tags).await?;
        }
        Ok(())
    }
}

fn tell(
    args: &QueueApply,
    plans: &[Plan],
    exchanges: &[exchange_apply::Plan],
    schedules: &[schedule_apply::Plan],
) -> Result<(), Failure> {
    let mut output = Output::new();
    let mut table = Table::new(["QUEUE", "OUTCOME", "WHAT"]);
    for plan in plans {
        if args.json {
            output.json(plan)?;
            continue;
        }
        table.row(row(plan.queue.clone(), plan.outcome, &plan.changes));
    }
    for plan in exchanges {
        match args.json {
            true => output.json(plan)?,
            false => {
                let name = format!("exchange {}", plan.exchange);
                table.row(row(name, plan.outcome, &plan.changes));
            }
        }
    }
    for plan in schedules {
        match args.json {
            true => output.json(plan)?,
            false => {
                let name = format!("schedule {}", plan.schedule);
                table.row(row(name, plan.outcome, &plan.changes));
            }
        }
    }
    if !args.json {
        output.table(&table)?;
    }
    output.flush()?;
    let outcomes = plans.iter().map(|plan| plan.outcome);
    let outcomes = outcomes.chain(exchanges.iter().map(|plan| plan.outcome));
    let outcomes = outcomes.chain(schedules.iter().map(|plan| plan.outcome));
    let of = |outcome| outcomes.clone().filter(|it| *it == outcome).count();
    let queues = count(plans.len() as u64, "queue");
    let all = match (exchanges.len() as u64, schedules.len() as u64) {
        (0, 0) => queues,
        (exchanges, 0) => format!("{queues} and {}", count(exchanges, "exchange")),
        (0, schedules) => format!("{queues} and {}", count(schedules, "schedule")),
        (exchanges, schedules) => {
            let (exchanges, schedules) =
                (count(exchanges, "exchange"), count(schedules, "schedule"));
            format!("{queues}, {exchanges} and {schedules}")
        }
    };
    let dry = if args.dry_run {
        "; nothing was done: --dry-run"
    } else {
        ""
    };
    note(&format!(
        "{all}: {} created, {} changed, {} as declared already{dry}",
        of(Outcome::Created),
        of(Outcome::Changed),
        of(Outcome::Unchanged),
    ));
    Ok(())
}

fn row(name: String, outcome: Outcome, changes: &[Change]) -> [String; 3] {
    let words: Vec<String> = changes.iter().map(Change::words).collect();
    let outcome = json!(outcome);
    [
        name,
        outcome.as_str().unwrap_or_default().to_owned(),
        words.join(", "),
    ]
}

impl Change {
    fn words(&self) -> String {
        let what = match &self.what {
            What::Setting(name) => (*name).to_owned(),
            What::Tag(tag) => format!("tag {tag}"),
            What::Unroutable => "unroutable".to_owned(),
            What::Binding(binding) => format!("binding {binding}"),
            What::Part(part) => (*part).to_owned(),
        };
        match &self.before {
            Some(before) => format!("{what}: {before} -> {}", self.after),
            None => format!("{what}: {}", self.after),
        }
    }
}

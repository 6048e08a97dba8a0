//! `lockgate status`.

use std::time::Duration;

use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{NOTHING, block_on, client, millis, peek};
use crate::{
    args::Status,
    client::Client,
    exit::Failure,
    output::{Output, Table, count},
    units::{show_bytes, show_duration},
};

pub(super) fn run(args: &Status) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    block_on(async {
        let before = Sample::take(&client).await?;
        let (now, rates) = if args.over.is_zero() {
            (before, None)
        } else {
            sleep(args.over).await;
            let now = Sample::take(&client).await?;
            let rates = Rates::between(&before, &now);
            (now, Some(rates))
        };
        let mut output = Output::new();
        if args.json {
            let mut status = now.server;
            status["messages"] = json!(now.messages);
            status["rates"] = json!(rates);
            output.json(&status)?;
        } else {
            output.table(&table(&client, &now, rates.as_ref()))?;
        }
        output.flush()
    })
}

/// What a server says of itself at a moment.
struct Sample {
    at: Instant,
    server: Value,
    messages: Messages,
    accepted: u64,
    acknowledged: u64,
}

/// What all queues hold.
#[derive(Default, Serialize)]
struct Messages {
    ready: u64,
    in_flight: u64,
    delayed: u64,
    bytes: u64,
}

/// What happens in a second.
#[derive(Serialize)]
struct Rates {
    sent: f64,
    acknowledged: f64,
    records: f64,
    bytes: u64,
    syncs: f64,
}

impl Sample {
    async fn take(client: &Client) -> Result<Self, Failure> {
        let server: Value = client.call(Method::GET, "/server", NOTHING).await?;
        let mut sample = Self {
            at: Instant::now(),
            server,
            messages: Messages::default(),
            accepted: 0,
            acknowledged: 0,
        };
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        for queue in peek::pages(client, "/queues?limit=1000", "queues", u64::MAX).await? {
            let (counts, totals) = (&queue["counts"], &queue["totals"]);
            sample.messages.ready += number(&counts["ready"]);
            sample.messages.in_flight += number(&counts["in_flight"]);
            sample.messages.delayed += number(&counts["delayed"]);
            sample.messages.bytes += number(&counts["bytes"]);
            sample.accepted += number(&totals["accepted"]);
            sample.acknowledged += number(&totals["acknowledged"]);
        }
        Ok(sample)
    }

    fn of_log(&self, name: &str) -> u64 {
        self.server["log"][name].as_u64().unwrap_or_default()
    }
}

impl Rates {
    fn between(before: &Sample, now: &Sample) -> Self {
        let time = now.at.duration_since(before.at);
        let seconds = time.as_secs_f64();
        let bytes = now
            .of_log("record_bytes")
            .saturating_sub(before.of_log("record_bytes"));
        // A queue that was deleted takes its totals along.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let of_log = |name| rate(before.of_log(name), now.of_log(name));
        Self {
            sent: rate(before.accepted, now.accepted),
            acknowledged: rate(before.acknowledged, now.acknowledged),
            records: of_log("records"),
            bytes: bytes.saturating_mul(1000) / millis(time).max(1),
            syncs: of_log("syncs"),
        }
    }
}

fn table(client: &Client, now: &Sample, rates: Option<&Rates>) -> Table {
    let server = &now.server;
    let text = |value: &Value| peek::text(value);
    let bytes = |value: &Value| show_bytes(value.as_u64().unwrap_or_default());
    let mut table = Table::plain(2);
    table.row(["server", &client.endpoint().to_string()]);
    table.row(["version", &text(&server["version"])]);
    table.row(["status", &text(&server["status"])]);
    let uptime = Duration::from_secs(server["uptime_ms"].as_u64().unwrap_or_default() / 1000);
    table.row(["uptime", &show_duration(uptime)]);
    let (shard, epoch) = (&server["shard"], &server["epoch"]);
    table.row(["shard", &format!("{shard}, in epoch {epoch}")]);
    let space = &server["space"];
    let (used, free) = (bytes(&space["used_bytes"]), bytes(&space["free_bytes"]));
    let disk = format!("{}: {used} used, {free} free", text(&space["state"]));
    table.row(["disk", &disk]);
    let log = format!(
        "{} of {} in {} since the start",
        count(now.of_log("records"), "record"),
        show_bytes(now.of_log("record_bytes")),
        count(now.of_log("syncs"), "sync"),
    );
    table.row(["log", &log]);
    if now.of_log("records_lost") > 0 {
        table.row([
            "lost",
            &count(now.of_log("records_lost"), "unreadable record"),
        ]);
    }
    table.row(["queues", &text(&server["queues"])]);
    let Messages {
        ready,
        in_flight,
        delayed,
        bytes,
    } = now.messages;
    let messages = format!(
        "{ready} ready, {in_flight} in flight, {delayed} delayed; {}",
        show_bytes(bytes)
    );
    table.row(["messages", &messages]);
    if let Some(rates) = rates {
        table.row(["sent", &format!("{:.0} a second", rates.sent)]);
        let acknowledged = format!("{:.0} a second", rates.acknowledged);
        table.row(["acknowledged", &acknowledged]);
        let written = format!(
            "{:.0} records, {} and {:.0} syncs a second",
            rates.records,
            show_bytes(rates.bytes),
            rates.syncs
        );
        table.row(["written", &written]);
    }
    table
}

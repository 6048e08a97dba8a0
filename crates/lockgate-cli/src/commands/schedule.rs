//! `lockgate schedule`: schedules, and single delayed messages.

use std::{fs::File, io, path::Path};

use hyper::Method;
use lockgate_core::{Timing, WallTime};
use lockgate_schedule::Calendar;
use serde_json::{Value, json};

use super::{NOTHING, block_on, client, exchange, millis, once, part, peek, send::unreadable};
use crate::{
    args::{
        CatchUpFlag, OneSchedule, OverlapFlag, Schedule, ScheduleCreate, ScheduleList, ScheduleMove,
    },
    client::{Body, Client, Encoding, Message},
    exit::Failure,
    output::{Output, Table, tell},
};

/// Times that a dry run prints.
const DRY_RUN_TIMES: usize = 10;

pub(super) fn run(args: Schedule) -> Result<(), Failure> {
    super::watched(move || run_one(&args))
}

fn run_one(args: &Schedule) -> Result<(), Failure> {
    if let Schedule::Create(args) = args
        && args.dry_run
    {
        return dry_run(args);
    }
    let client = client(args.settings())?;
    block_on(async {
        match args {
            Schedule::Create(args) => create(&client, args).await,
            Schedule::List(args) => list(&client, args).await,
            Schedule::Show(args) => show(&client, &args.one).await,
            Schedule::Run(args) => run_now(&client, &args.one).await,
            Schedule::Pause(args) => {
                let args = &args.schedule;
                let body = of_generation(args.generation);
                let done = format!("{} is paused", args.name);
                change(&client, &args.name, "pause", &body, args.json, &done).await
            }
            Schedule::Resume(args) => {
                let args = &args.schedule;
                let body = of_generation(args.generation);
                let target = target(&args.name, "/resume");
                let there: Value = once_only(&client, Method::POST, &target, Some(&body)).await?;
                let done = match there["next_at"].as_str() {
                    Some(next) => format!("{} fires next at {next}", args.name),
                    None => format!("{} has no time left", args.name),
                };
                tell(args.json, &there, &done)
            }
            Schedule::Cancel(args) => cancel(&client, &args.one).await,
            Schedule::Move(args) => move_to(&client, args).await,
        }
    })
}

pub(super) fn target(name: &str, rest: &str) -> String {
    format!("/schedules/{}{rest}", part(name))
}

fn message_target(queue: &str, id: &str, rest: &str) -> String {
    format!("/queues/{}/messages/{}{rest}", part(queue), part(id))
}

fn of_generation(generation: Option<u64>) -> Value {
    match generation {
        None => json!({}),
        Some(generation) => json!({"generation": generation}),
    }
}

fn message_of(args: &ScheduleCreate) -> Result<Message, Failure> {
    once("header", args.header.iter().map(|(name, ..)| name))?;
    let bytes = match (&args.body, &args.file) {
        (Some(body), _) => body.clone().into_bytes(),
        (None, Some(path)) if path == Path::new("-") => {
            exchange::read(io::stdin(), "standard input")?
        }
        (None, Some(path)) => {
            let what = path.display().to_string();
            let file = File::open(path).map_err(|error| unreadable(&error, &what))?;
            exchange::read(file, &what)?
        }
        (None, None) => Vec::new(),
    };
    let (text, encoding) = Encoding::of(&bytes);
    Ok(Message {
        body: Body { text, encoding },
        key: args.key.clone(),
        group: args.group.clone(),
        priority: args.priority.unwrap_or(0),
        headers: exchange::headers(&args.header).collect(),
        ..Message::default()
    })
}

async fn create(client: &Client, args: &ScheduleCreate) -> Result<(), Failure> {
    let mut body = json!({
        "message": message_of(args)?,
        "to": match (&args.queue, &args.exchange) {
            (Some(queue), _) => json!({"queue": queue}),
            (None, exchange) => json!({"exchange": exchange}),
        },
        "catch_up": match args.catch_up {
            CatchUpFlag::Skip => "skip",
            CatchUpFlag::Once => "once",
            CatchUpFlag::All => "all",
        },
        "overlap": match args.overlap {
            OverlapFlag::Allow => "allow",
            OverlapFlag::Skip => "skip",
            OverlapFlag::Queue => "queue",
            OverlapFlag::Replace => "replace",
        },
        "late_max_ms": millis(args.late_max),
    });
    let parts = [
        ("cron", args.cron.as_ref().map(|cron| json!(cron))),
        ("zone", args.zone.as_ref().map(|zone| json!(zone))),
        ("every_ms", args.every.map(|every| json!(millis(every)))),
        ("from", args.from.map(|from| json!(from.to_string()))),
        ("at", args.at.map(|at| json!(at.to_string()))),
        ("after_ms", args.after.map(|after| json!(millis(after)))),
        (
            "routing_key",
            args.routing_key.as_ref().map(|key| json!(key)),
        ),
        (
            "generation",
            args.generation.map(|generation| json!(generation)),
        ),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    let name = &args.name;
    let target = target(name, "");
    // A time from now on is another one the second time, and a generation is another one.
    let repeats = args.after.is_none() && args.generation.is_none();
    let put: Value = match repeats {
        true => client.repeat(Method::PUT, &target, Some(&body)).await?,
        false => once_only(client, Method::PUT, &target, Some(&body)).await?,
    };
    let done = match (put["created"] == true, put["changed"] == true) {
        (true, _) => "made",
        (false, true) => "changed",
        (false, false) => "as it was",
    };
    let next = match put["schedule"]["next_at"].as_str() {
        Some(_) if put["schedule"]["paused"] == true => "it is paused".to_owned(),
        Some(next) => format!("it fires next at {next}"),
        None => "it has no time left".to_owned(),
    };
    tell(args.json, &put, &format!("{name} is {done}; {next}"))
}

/// Asks for what has another effect the second time. If the answer is lost, nobody knows whether it was done, and the error says so.
async fn once_only(
    client: &Client,
    method: Method,
    target: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    client.call(method, target, body).await.map_err(|error| {
        let is_lost = error.is_lost();
        let failure = Failure::from(error);
        match is_lost {
            true => failure.hint("whether it was done is unknown: look with `lockgate schedule show`, and ask again if it was not"),
            false => failure,
        }
    })
}

/// Prints the next times of what would be made.
fn dry_run(args: &ScheduleCreate) -> Result<(), Failure> {
    let wall = |at: jiff::Timestamp| WallTime(u64::try_from(at.as_millisecond()).unwrap_or(0));
    let now = wall(jiff::Timestamp::now());
    let timing = match (&args.cron, args.every) {
        (Some(cron), _) => Timing::Cron {
            expression: cron.trim().into(),
            zone: args.zone.as_deref().unwrap_or("UTC").into(),
        },
        (None, Some(every)) => Timing::Every {
            period: millis(every),
            from: args.from.map(wall),
        },
        (None, None) => Timing::At(match (args.at, args.after) {
            (Some(at), _) => wall(at),
            (None, after) => now.plus(millis(after.unwrap_or_default())),
        }),
    };
    let no_timing = |error: lockgate_schedule::TimingError| Failure::usage(error.to_string());
    let first = Calendar::first(&timing, now).map_err(no_timing)?;
    let mut output = Output::new();
    if let Some(first) = first {
        let calendar = Calendar::new(&timing, first).map_err(no_timing)?;
        let zone = match &timing {
            Timing::Cron { zone, .. } => jiff::tz::TimeZone::get(zone).ok(),
            Timing::At(_) | Timing::Every { .. } => None,
        };
        let times = std::iter::once(first).chain(calendar.after(first));
        for time in times.take(DRY_RUN_TIMES) {
            let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
            let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
            match (&zone, args.json) {
                (_, true) => output.json(&json!({"at": format!("{at:.3}")}))?,
                (Some(zone), false) => {
                    let local = at
                        .to_zoned(zone.clone())
                        .strftime("%a %Y-%m-%d %H:%M:%S %:z");
                    output.line(&format!("{at:.3}  {local}"))?;
                }
                (None, false) => output.line(&format!("{at:.3}"))?,
            }
        }
    }
    output.flush()
}

async fn list(client: &Client, args: &ScheduleList) -> Result<(), Failure> {
    if let Some(queue) = &args.queue {
        let target = format!("/queues/{}/messages?limit=100&state=delayed", part(queue));
        let messages = peek::pages(client, &target, "messages", args.max).await?;
        let header = ["DUE", "ID", "KEY", "BODY"];
        return peek::print(args.json, &messages, header, |message| {
            [
                peek::text(&message["due_at"]),
                peek::text(&message["id"]),
                peek::text(&message["key"]),
                peek::beginning(&peek::text(&message["body"])),
            ]
        });
    }
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let target = format!("/schedules?limit=1000&prefix={}", part(prefix));
    let schedules = peek::pages(client, &target, "schedules", args.max).await?;
    let header = [
        "NAME",
        "WHEN",
        "TO",
        "NEXT",
        "STATE",
        "FIRED",
        "MISSED",
        "OVERLAPPED",
    ];
    peek::print(args.json, &schedules, header, |schedule| {
        let counts = &schedule["counts"];
        [
            peek::text(&schedule["name"]),
            when(schedule),
            to(schedule),
            peek::text(&schedule["next_at"]),
            state(schedule),
            peek::text(&counts["fired"]),
            peek::text(&counts["missed"]),
            peek::text(&counts["overlapped"]),
        ]
    })
}

/// When a schedule fires.
fn when(schedule: &Value) -> String {
    if let Some(cron) = schedule["cron"].as_str() {
        return format!("{cron} in {}", peek::text(&schedule["zone"]));
    }
    if let Some(every) = schedule["every_ms"].as_u64() {
        let every = crate::units::show_duration(std::time::Duration::from_millis(every));
        return format!("every {every}");
    }
    "once".to_owned()
}

fn to(schedule: &Value) -> String {
    let to = &schedule["to"];
    match to["queue"].as_str() {
        Some(queue) => queue.to_owned(),
        None => format!("exchange {}", peek::text(&to["exchange"])),
    }
}

fn state(schedule: &Value) -> String {
    let is_over = schedule["next_at"].is_null();
    match schedule["problem"].as_str() {
        _ if schedule["paused"] == true => "paused".to_owned(),
        _ if is_over => "over".to_owned(),
        Some(problem) => format!("stuck: {problem}"),
        None if !schedule["waits_for"].is_null() => "waits for its last message".to_owned(),
        None => "on".to_owned(),
    }
}

async fn show(client: &Client, one: &OneSchedule) -> Result<(), Failure> {
    let path = match &one.queue {
        Some(queue) => message_target(queue, &one.name, ""),
        None => target(&one.name, ""),
    };
    let there: Value = client.call(Method::GET, &path, NOTHING).await?;
    let mut output = Output::new();
    if one.json {
        output.json(&there)?;
        return output.flush();
    }
    let mut table = Table::plain(2);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            table.row([name, &value]);
        }
    };
    if one.queue.is_some() {
        for (name, field) in [
            ("id", "id"),
            ("state", "state"),
            ("due", "due_at"),
            ("key", "key"),
            ("sent", "sent_at"),
            ("body", "body"),
        ] {
            row(name, peek::text(&there[field]));
        }
    } else {
        row("name", peek::text(&there["name"]));
        row("generation", peek::text(&there["generation"]));
        row("when", when(&there));
        row("to", to(&there));
        row("routing key", peek::text(&there["routing_key"]));
        row("key", peek::text(&there["message"]["key"]));
        row(
            "body",
            peek::beginning(&peek::text(&there["message"]["body"])),
        );
        row("catch up", peek::text(&there["catch_up"]));
        row("overlap", peek::text(&there["overlap"]));
        row("state", state(&there));
        row("waits for", peek::text(&there["waits_for"]));
        row("instead of", peek::text(&there["planned_at"]));
        row("last firing", peek::text(&there["last"]["at"]));
        row("last message", peek::text(&there["last"]["message_id"]));
        for field in ["fired", "by_hand", "missed", "overlapped", "replaced"] {
            row(
                &field.replace('_', " "),
                peek::text(&there["counts"][field]),
            );
        }
        let times = there["next_times"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        for (at, time) in times.iter().enumerate() {
            row(if at == 0 { "next" } else { "then" }, peek::text(time));
        }
    }
    output.table(&table)?;
    output.flush()
}

async fn run_now(client: &Client, one: &OneSchedule) -> Result<(), Failure> {
    if let Some(queue) = &one.queue {
        return reschedule(client, one, queue, &json!({"delay_ms": 0})).await;
    }
    let body = of_generation(one.generation);
    let target = target(&one.name, "/run");
    let run: Value = once_only(client, Method::POST, &target, Some(&body)).await?;
    let done = format!("sent {}", peek::text(&run["message_id"]));
    tell(one.json, &run, &done)
}

async fn cancel(client: &Client, one: &OneSchedule) -> Result<(), Failure> {
    let (path, done) = match &one.queue {
        Some(queue) => (message_target(queue, &one.name, ""), "cancelled"),
        None => {
            let generation = match one.generation {
                None => String::new(),
                Some(generation) => format!("?generation={generation}"),
            };
            (target(&one.name, &generation), "deleted")
        }
    };
    let gone: Value = once_only(client, Method::DELETE, &path, None).await?;
    tell(one.json, &gone, done)
}

async fn move_to(client: &Client, args: &ScheduleMove) -> Result<(), Failure> {
    let one = &args.one;
    let after = args.after.map(millis);
    if let Some(queue) = &one.queue {
        let due = match args.at {
            Some(at) => json!({"due_at": at.to_string()}),
            None => json!({"delay_ms": after}),
        };
        return reschedule(client, one, queue, &due).await;
    }
    let mut body = of_generation(one.generation);
    match args.at {
        Some(at) => body["at"] = json!(at.to_string()),
        None => body["after_ms"] = json!(after),
    }
    let done = format!("{} is moved", one.name);
    change(client, &one.name, "move", &body, one.json, &done).await
}

async fn reschedule(
    client: &Client,
    one: &OneSchedule,
    queue: &str,
    due: &Value,
) -> Result<(), Failure> {
    let path = message_target(queue, &one.name, "/reschedule");
    let moved: Value = once_only(client, Method::POST, &path, Some(due)).await?;
    let done = format!("{} is due at {}", one.name, peek::text(&moved["due_at"]));
    tell(one.json, &moved, &done)
}

async fn change(
    client: &Client,
    name: &str,
    how: &str,
    body: &Value,
    json: bool,
    done: &str,
) -> Result<(), Failure> {
    let target = target(name, &format!("/{how}"));
    let there: Value = once_only(client, Method::POST, &target, Some(body)).await?;
    tell(json, &there, done)
}

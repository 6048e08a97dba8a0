//! `lockgate schedule`, `[[schedule]]` in files of queues, and a server that fires.

use serde_json::{Value, json};

use crate::{messages::Town, support::Server};

fn shown(town: &Town, name: &str) -> Value {
    town.run(&format!("schedule show {name} --json"))
        .json()
        .remove(0)
}

#[test]
fn a_schedule_is_made_shown_run_moved_paused_and_cancelled() {
    let town = Town::new();
    town.run("queue create mail").ok();
    town.run("schedule show report").fails_with(3);
    let create = "schedule create report --cron @daily --zone Europe/Berlin --queue mail --header team=ads --overlap skip hello";
    let made = town.run(create);
    assert!(
        made.stderr.contains("report is made; it fires next at"),
        "{made:?}"
    );
    let again = town.run(create);
    assert!(again.stderr.contains("report is as it was"), "{again:?}");
    let changed = town.run(&format!("{create}2"));
    assert!(changed.stderr.contains("report is changed"), "{changed:?}");
    town.run(&format!("{create} --generation 0")).fails_with(4);

    town.run("schedule run report").ok();
    let refused = town.run("schedule run report").fails_with(4);
    assert!(refused.contains("overlap is skip"), "{refused}");
    let message = town.drain("mail").remove(0);
    assert_eq!(message["body"], "hello2");
    assert_eq!(message["headers"]["lockgate.schedule"]["value"], "report");
    assert_eq!(message["headers"]["team"]["value"], "ads");

    let paused = town.run("schedule pause report");
    assert!(paused.stderr.contains("report is paused"), "{paused:?}");
    assert_eq!(shown(&town, "report")["next_times"], json!([]));
    assert!(town.run("schedule list").ok().contains("paused"));
    town.run("schedule resume report").ok();
    town.run("schedule move report --at 2100-01-01T00:00:00Z")
        .ok();
    assert_eq!(
        shown(&town, "report")["next_at"],
        "2100-01-01T00:00:00.000Z"
    );
    let table = town.run("schedule show report").ok();
    for part in [
        "@daily in Europe/Berlin",
        "2100-01-01T00:00:00.000Z",
        "by hand",
        "skip",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert_eq!(town.run("schedule list rep --json").json().len(), 1);
    assert_eq!(town.run("schedule list x --json").json().len(), 0);
    town.run("schedule cancel report").ok();
    town.run("schedule cancel report").fails_with(3);
}

#[test]
fn what_is_wrong_with_a_schedule_is_said() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    for (arguments, code, word) in [
        ("create s --queue q.fifo x", 2, "--cron"),
        ("create s --every 5s x", 2, "--queue"),
        (
            "create s --every 5s --cron @daily --queue q.fifo x",
            2,
            "cannot be used",
        ),
        ("create s --every 5s --queue q.fifo x", 1, "key"),
        (
            "create s --every 5ms --queue q.fifo --key k x",
            1,
            "not from 100",
        ),
        (
            "create s --cron nonsense --queue q.fifo --key k x",
            1,
            "nonsense",
        ),
        (
            "create s --cron @daily --zone Mars --queue q.fifo --key k x",
            1,
            "Mars",
        ),
        ("create s --every 5s --queue none --key k x", 3, "none"),
        ("move s", 2, "--at"),
    ] {
        let told = town.run(&format!("schedule {arguments}")).fails_with(code);
        assert!(told.contains(word), "{arguments}: {told}");
    }
    let dry = town
        .run("schedule create s --cron @hourly --queue none --dry-run x")
        .ok();
    assert_eq!(dry.lines().count(), 10, "{dry}");
    town.run("schedule show s").fails_with(3);
}

#[test]
fn a_delayed_message_is_looked_at_moved_and_run() {
    let town = Town::new();
    town.run("queue create mail").ok();
    town.run("send mail --in 1h soon").ok();
    town.run("send mail --at 2100-01-01T00:00:00Z late").ok();
    let listed = town.run("schedule list --queue mail --json").json();
    assert_eq!(listed.len(), 2);
    let id = |body: &str| {
        let is_it = |message: &&Value| message["body"] == body;
        listed.iter().find(is_it).unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let show = format!("schedule show --queue mail {} --json", id("late"));
    assert_eq!(
        town.run(&show).json()[0]["due_at"],
        "2100-01-01T00:00:00.000Z"
    );
    town.run(&format!(
        "schedule move --queue mail {} --in 2h",
        id("late")
    ))
    .ok();
    town.run(&format!("schedule cancel --queue mail {}", id("soon")))
        .ok();
    town.run(&format!("schedule run --queue mail {}", id("late")))
        .ok();
    assert_eq!(town.drain("mail")[0]["body"], "late");
    let lines = "{\"body\": \"a\"}\n{\"body\": \"b\", \"delay_ms\": 0}\n";
    town.send_lines("mail --at 2100-01-01T00:00:00Z", lines)
        .ok();
    assert_eq!(
        town.counts("mail"),
        json!({"ready": 1, "in_flight": 0, "delayed": 1})
    );
}

#[test]
fn a_server_fires_also_after_a_kill() {
    let mut town = Town::new();
    town.run("queue create mail").ok();
    town.run("schedule create tick --every 200ms --queue mail --catch-up all tick")
        .ok();
    assert_eq!(town.drain("mail")[0]["body"], "tick");
    town.server.signal(rustix::process::Signal::KILL);
    let address = town.server.url.replace("http://", "");
    town.server = Server::restart(town.server, &town.sandbox, &address);
    let message = town.drain("mail").remove(0);
    let time = message["headers"]["lockgate.scheduled-at"]["value"]
        .as_str()
        .unwrap();
    let due: jiff::Timestamp = time.parse().unwrap();
    assert!(due <= jiff::Timestamp::now(), "{time}");
    town.run("schedule cancel tick").ok();
}

/// The times for which the messages are, in milliseconds.
fn times(messages: &[Value]) -> Vec<i64> {
    let time = |message: &Value| {
        let text = message["headers"]["lockgate.scheduled-at"]["value"].as_str();
        let time: jiff::Timestamp = text.unwrap().parse().unwrap();
        time.as_millisecond()
    };
    messages.iter().map(time).collect()
}

#[test]
fn each_time_fires_once_over_kills() {
    let mut town = Town::new();
    town.run("queue create mail").ok();
    let create =
        "schedule create tick --every 100ms --queue mail --catch-up all --late-max 1h tick";
    town.run(create).ok();
    let mut came = Vec::new();
    for _ in 0..6 {
        came.extend(times(&town.drain("mail")));
        town.server.signal(rustix::process::Signal::KILL);
        let address = town.server.url.replace("http://", "");
        town.server = Server::restart(town.server, &town.sandbox, &address);
    }
    town.run("schedule pause tick").ok();
    let fired = shown(&town, "tick")["counts"]["fired"].as_u64().unwrap();
    let left = town.run("receive mail --max 1000 --ack --json").json();
    came.extend(times(&left));
    came.sort_unstable();
    // A message whose acknowledgement a kill has taken comes again.
    came.dedup();
    assert_eq!(came.len() as u64, fired);
    assert!(
        came.windows(2).all(|pair| pair[1] - pair[0] == 100),
        "{came:?}"
    );
}

const FILE: &str = r#"
[[queue]]
name = "mail"

[[queue]]
name = "jobs.fifo"

[[schedule]]
name = "report"
cron = "0 9 * * mon-fri"
zone = "Europe/Berlin"
queue = "mail"
body = "weekly report"
headers = { team = "ads", n = { type = "Number", value = "1" } }
overlap = "skip"

[[schedule]]
name = "tick"
every = "30s"
from = 2030-01-01T00:00:00Z
queue = "jobs.fifo"
key = "clock"
body_base64 = "AP8="
catch_up = "all"
late_max = "5m"
priority = 3
time_to_live = "2h"
level = "disk"
trace_context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

[[schedule]]
name = "colours"
every = "1h"
queue = "mail"
body = "\u001b[31mred\u001b[0m"
headers = { b = { type = "Binary", value_base64 = "YWJj" } }
"#;

#[test]
fn a_file_declares_schedules_and_the_same_file_changes_nothing() {
    let town = Town::new();
    town.sandbox.write("queues.toml", FILE);
    let first = town.run("queue apply queues.toml --json").json();
    let outcomes = |plans: &[Value]| -> Vec<String> {
        plans
            .iter()
            .map(|plan| plan["outcome"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(outcomes(&first), ["created"; 5]);
    let generation = shown(&town, "tick")["generation"].clone();
    let again = town.run("queue apply queues.toml --json").json();
    assert_eq!(outcomes(&again), ["unchanged"; 5], "{again:?}");
    // What is exported is what was declared.
    let exported = town.run("queue export").ok();
    town.sandbox.write("exported.toml", &exported);
    let again = town.run("queue apply exported.toml --json").json();
    assert_eq!(outcomes(&again), ["unchanged"; 5], "{exported}\n{again:?}");
    assert_eq!(shown(&town, "tick")["generation"], generation);
    town.run("schedule pause tick").ok();
    town.run("schedule create done --at 2020-01-01T00:00:00Z --queue mail x")
        .ok();
    while shown(&town, "done")["next_at"].is_string() {}
    let exported = town.run("queue export").ok();
    assert!(!exported.contains("done"), "{exported}");
    town.run("schedule resume tick").ok();
    let other = FILE.replace("weekly report", "daily report");
    town.sandbox.write("queues.toml", &other);
    let dry = town.run("queue apply queues.toml --dry-run --json").json();
    assert_eq!(
        outcomes(&dry),
        [
            "unchanged",
            "unchanged",
            "changed",
            "unchanged",
            "unchanged"
        ]
    );
    assert_eq!(shown(&town, "report")["message"]["body"], "weekly report");
    town.run("queue apply queues.toml").ok();
    assert_eq!(shown(&town, "report")["message"]["body"], "daily report");
}

#[test]
fn what_is_wrong_in_a_file_is_told_with_its_line() {
    let town = Town::new();
    for (line, word) in [
        ("cron = \"61 9 * * *\"\nqueue = \"q\"", "61 9"),
        (
            "every = \"1s\"\nqueue = \"q\"\ntypo = 1",
            "unknown key \"typo\"",
        ),
        ("every = \"1ms\"\nqueue = \"q\"", "100"),
        ("every = \"1s\"", "one of queue and exchange"),
        ("queue = \"q\"", "one of cron, every and at"),
        ("every = \"1s\"\nqueue = \"q\"\nzone = \"UTC\"", "zone"),
        (
            "every = \"1s\"\nqueue = \"q\"\noverlap = \"no\"",
            "allow, skip, queue or replace",
        ),
        ("every = \"1s\"\nqueue = \"q\"\npriority = 10", "0 to 9"),
        ("at = \"tomorrow\"\nqueue = \"q\"", "no instant"),
    ] {
        town.sandbox.write(
            "queues.toml",
            &format!("\n[[schedule]]\nname = \"s\"\n{line}\n"),
        );
        let told = town.run("queue apply queues.toml").fails_with(2);
        assert!(
            told.contains("queues.toml:") && told.contains(word),
            "{line}: {told}"
        );
    }
}

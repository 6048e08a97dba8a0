//! `lockgate import curator` from a real ZooKeeper, beside Curator in Java: `./scripts/test --only zookeeper`.

#![expect(clippy::unwrap_used, reason = "in tests a panic is the report")]

#[path = "cli/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

#[path = "zookeeper/faults.rs"]
mod faults;
#[path = "zookeeper/java.rs"]
mod java;
#[path = "zookeeper/proxy.rs"]
mod proxy;

use std::{
    collections::BTreeMap,
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{CuratorQueue, CuratorQueueOptions, Kind, Place, Taking, names},
};
use serde_json::{Value, json};

use crate::support::{Done, Sandbox, Server};

fn zookeeper() -> String {
    env::var("LOCKGATE_TEST_ZOOKEEPER").expect("scripts/zookeeper run sets it")
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Puts bundles of items into a queue of Curator, and returns the names of their nodes.
fn put(path: &str, kind: Kind, bundles: &[(Place<'_>, Vec<String>)]) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = ZookeeperOptions::parse(&zookeeper()).unwrap();
        let options = CuratorQueueOptions {
            taking: Some(Taking::AtMostOnce),
            ..CuratorQueueOptions::new(path, kind)
        };
        let queue = CuratorQueue::open(&server, options).await.unwrap();
        let mut names = Vec::new();
        for (place, items) in bundles {
            names.push(queue.put(*place, items).await.unwrap());
        }
        names
    })
}

/// A server with a queue that remembers unique ids for long.
struct Lockgate {
    sandbox: Sandbox,
    server: Server,
}

impl Lockgate {
    fn start(queue: &str) -> Self {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox);
        let lockgate = Self { sandbox, server };
        lockgate
            .run(&format!("queue create {queue} --dedup-window 7d"))
            .ok();
        lockgate
    }

    fn command(&self, arguments: &str) -> std::process::Command {
        let mut command = self.sandbox.command(arguments);
        command.env("LOCKGATE_ENDPOINT", &self.server.url);
        command
    }

    fn run(&self, arguments: &str) -> Done {
        self.command(arguments).output().unwrap().into()
    }

    fn imports(&self, path: &str, rest: &str) -> Done {
        self.run(&format!(
            "import curator {}{path} --json {rest}",
            zookeeper()
        ))
    }

    /// The messages by their bodies. None is there twice.
    fn messages(&self, queue: &str) -> BTreeMap<String, Value> {
        let messages = self
            .run(&format!("peek {queue} --json --max 100000"))
            .json();
        let all = messages.len();
        let by_body: BTreeMap<_, _> = messages
            .into_iter()
            .map(|message| (message["body"].as_str().unwrap().to_owned(), message))
            .collect();
        assert_eq!(by_body.len(), all, "a message is there twice");
        by_body
    }

    fn bodies(&self, queue: &str) -> Vec<String> {
        self.messages(queue).into_keys().collect()
    }
}

fn items(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

/// What the last line of `--json` says.
fn figures(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn items_of_a_delay_queue_keep_their_due_times_and_bundles_are_taken_apart() {
    let lockgate = Lockgate::start("q");
    let (path, later) = ("/import/delay", now() + 3_600_000);
    let bundles = [
        (Place::At(later), items(&["later"])),
        (Place::At(255), items(&["x", "", "yz"])),
        (Place::At(later + 1), items(&[])),
    ];
    let nodes = put(path, Kind::Delay, &bundles);
    let planned = figures(&lockgate.imports(path, "--queue q --dry-run").ok());
    assert_eq!(
        planned,
        json!({"nodes": 3, "later": 2, "of_another_kind": 0, "foreign": 0})
    );
    assert!(lockgate.bodies("q").is_empty());
    let done = lockgate.imports(path, "--queue q");
    assert!(
        done.stderr.contains("nobody else consumes"),
        "{}",
        done.stderr
    );
    let moved = figures(&done.ok());
    assert_eq!(
        moved,
        json!({"nodes": 3, "items": 4, "duplicates": 0, "taken_by_others": 0, "left": []})
    );
    let messages = lockgate.messages("q");
    assert_eq!(
        messages.keys().collect::<Vec<_>>(),
        ["", "later", "x", "yz"]
    );
    let due: jiff::Timestamp = messages["later"]["due_at"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(due.as_millisecond(), later);
    assert_eq!(names::due(&nodes[0]), later);
    for ready in ["", "x", "yz"] {
        assert_eq!(messages[ready]["state"], "ready");
    }
    let id = messages["yz"]["unique_id"].as_str().unwrap();
    assert!(
        id.starts_with(&format!("curator:{path}/{}:", nodes[1])) && id.ends_with(":2"),
        "{id}"
    );
    let again = figures(&lockgate.imports(path, "--queue q").ok());
    assert_eq!(again["nodes"], 0);
}

#[test]
fn priorities_ids_and_plain_queues_are_moved_and_kinds_are_not_confused() {
    let lockgate = Lockgate::start("q");
    let bundles = [
        (Place::Priority(-7), items(&["first"])),
        (Place::Priority(3), items(&["next"])),
        (Place::Priority(1_000), items(&["last"])),
    ];
    let names = put("/import/priority", Kind::Priority, &bundles);
    for wrong in ["delay", "plain", "id"] {
        let done = lockgate.imports("/import/priority", &format!("--queue q --kind {wrong}"));
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        let left = figures(&done.stdout)["left"].as_array().unwrap().clone();
        let mut left: Vec<_> = left
            .iter()
            .map(|left| left["node"].as_str().unwrap())
            .collect();
        left.sort_unstable();
        let mut all = names.clone();
        all.sort_unstable();
        assert_eq!(left, all);
    }
    lockgate
        .imports("/import/priority", "--queue q --kind priority")
        .ok();
    let messages = lockgate.messages("q");
    for (body, priority) in [("first", 9), ("next", 6), ("last", 0)] {
        assert_eq!(
            messages[body]["priority"].as_u64().unwrap_or(0),
            priority,
            "{messages:?}"
        );
    }
    lockgate
        .run("queue create jobs.fifo --dedup-window 7d")
        .ok();
    put(
        "/import/id",
        Kind::Id,
        &[(Place::Id("my/id"), items(&["of an id"]))],
    );
    put(
        "/import/plain",
        Kind::Plain,
        &[
            (Place::End, items(&["plain 1"])),
            (Place::End, items(&["plain 2"])),
        ],
    );
    lockgate
        .imports("/import/id", "--queue jobs.fifo --kind id")
        .ok();
    lockgate
        .imports("/import/plain", "--queue jobs.fifo --kind plain")
        .ok();
    let messages = lockgate.messages("jobs.fifo");
    assert_eq!(messages["of an id"]["key"], "my_id");
    assert_eq!(messages["plain 1"]["key"], "/import/plain");
    let sequence = |body: &str| messages[body]["sequence"].as_u64().unwrap();
    assert!(sequence("plain 1") < sequence("plain 2"));
    // One key would hold back what is due.
    lockgate
        .imports("/import/delay", "--queue jobs.fifo")
        .fails_with(2);
}

#[test]
fn what_the_queue_refuses_stays_and_is_named() {
    let lockgate = Lockgate::start("q");
    lockgate.run("queue set q --message-bytes-max 1KiB").ok();
    let bundles = [
        (Place::At(1), vec!["x".repeat(2_000)]),
        (Place::At(2), items(&["small"])),
    ];
    let names = put("/import/large", Kind::Delay, &bundles);
    for _ in 0..2 {
        let done = lockgate.imports("/import/large", "--queue q");
        assert_eq!(done.code, Some(1));
        assert!(done.stderr.contains(&names[0]), "{}", done.stderr);
        let left = &figures(&done.stdout)["left"];
        assert_eq!(left[0]["node"], names[0]);
        assert_eq!(left.as_array().unwrap().len(), 1);
        assert_eq!(lockgate.bodies("q"), ["small"]);
    }
    lockgate.run("queue set q --message-bytes-max 4KiB").ok();
    lockgate.imports("/import/large", "--queue q").ok();
    assert_eq!(lockgate.bodies("q").len(), 2);
}

#[test]
fn a_queue_that_forgets_soon_is_refused_and_so_is_what_is_not_there() {
    let lockgate = Lockgate::start("q");
    lockgate.run("queue create short --dedup-window 23h").ok();
    let told = lockgate
        .imports("/import/none", "--queue short")
        .fails_with(2);
    assert!(told.contains("--dedup-window 7d"), "{told}");
    lockgate.imports("/import/none", "--queue q").fails_with(3);
    lockgate
        .imports("/import/none", "--queue other")
        .fails_with(3);
    lockgate.imports("", "--queue q").fails_with(2);
    let away = "import curator zk://127.0.0.1:1/q --queue q --patience 1s";
    lockgate.run(away).fails_with(122);
}

//! Queues that a file declares, as a server has them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    messages::Town,
    support::{Done, Sandbox, Server},
};

const FILE: &str = r#"
[[queue]]
name = "orders.fifo"
lease = "45s"
dedup_content = true
dead_letter = "orders-dead.fifo"
attempts_max = 3
tags = { team = "shop" }

[[queue]]
name = "orders-dead.fifo"
"#;

fn shown(sandbox: &Sandbox, server: &Server, queue: &str) -> serde_json::Value {
    let url = &server.url;
    sandbox
        .run(&format!("queue show {queue} --json --endpoint {url}"))
        .json()
        .remove(0)
}

/// Twice the same file is once; a changed one changes what it names and nothing else.
#[test]
fn a_server_has_the_queues_of_its_file() {
    let sandbox = Sandbox::new();
    sandbox.write("lockgate.toml", "queues = \"queues.toml\"\n");
    sandbox.write("queues.toml", FILE);
    let mut server = Server::start(&sandbox);
    let orders = shown(&sandbox, &server, "orders.fifo");
    assert_eq!(orders["settings"]["lease_ms"], 45_000);
    assert_eq!(orders["tags"]["team"], "shop");
    assert_eq!(orders["settings"]["dead_letter"], "orders-dead.fifo");
    let url = server.url.clone();
    sandbox
        .run(&format!("queue create other --delay 5s --endpoint {url}"))
        .ok();
    sandbox
        .run(&format!("send orders.fifo --key a --endpoint {url} kept"))
        .ok();

    server.signal(rustix::process::Signal::KILL);
    server.wait();
    server = Server::start(&sandbox);
    let again = shown(&sandbox, &server, "orders.fifo");
    assert_eq!(again["settings"], orders["settings"]);
    assert_eq!(again["changed_at"], orders["changed_at"]);

    server.signal(rustix::process::Signal::KILL);
    server.wait();
    sandbox.write(
        "queues.toml",
        "[[queue]]\nname = \"orders.fifo\"\nlease = \"1m\"\ntags = { tier = \"1\" }\n",
    );
    let server = Server::start(&sandbox);
    let changed = shown(&sandbox, &server, "orders.fifo");
    assert_eq!(changed["settings"]["lease_ms"], 60_000);
    assert_eq!(changed["settings"]["dead_letter"], "orders-dead.fifo");
    assert_eq!(changed["counts"]["ready"], 1);
    let tags: BTreeMap<String, String> = serde_json::from_value(changed["tags"].clone()).unwrap();
    assert_eq!(tags.into_keys().collect::<Vec<_>>(), ["team", "tier"]);
    assert_eq!(
        shown(&sandbox, &server, "other")["settings"]["delay_ms"],
        5_000
    );
}

/// The same file makes the same queues, whoever reads it.
#[test]
fn a_file_is_applied_to_a_running_server() {
    let declared = Sandbox::new();
    declared.write("lockgate.toml", "queues = \"queues.toml\"\n");
    declared.write("queues.toml", FILE);
    let as_declared = Server::start(&declared);
    let town = Town::new();
    town.sandbox.write("queues.toml", FILE);
    let apply = |options: &str| town.run(&format!("queue apply queues.toml {options}"));
    let outcomes = |done: Done| -> Vec<String> {
        let plans = done.json();
        let words = |plan: &Value| plan["outcome"].as_str().unwrap().to_owned();
        plans.iter().map(words).collect()
    };
    let dry = apply("--dry-run");
    assert!(
        dry.stderr
            .contains("2 queues: 2 created, 0 changed, 0 as declared already; nothing was"),
        "{dry:?}"
    );
    assert_eq!(dry.ok().lines().count(), 3);
    assert_eq!(town.run("queue list --json").ok(), "");

    assert_eq!(outcomes(apply("--json")), ["created", "created"]);
    for queue in ["orders.fifo", "orders-dead.fifo"] {
        let is = town.run(&format!("queue show {queue} --json")).json();
        let should = shown(&declared, &as_declared, queue);
        for part in ["settings", "tags"] {
            assert_eq!(is[0][part], should[part]);
        }
    }
    assert_eq!(outcomes(apply("--json")), ["unchanged", "unchanged"]);

    // What the file does not name stays.
    town.run("queue set orders.fifo --tag owner=eve --delay 3s")
        .ok();
    let file = FILE
        .replace("45s", "1m")
        .replace("attempts_max = 3", "attempts_max = 4");
    town.sandbox
        .write("queues.toml", &file.replace("shop", "ads"));
    let plans = apply("--json --dry-run").json();
    assert_eq!(
        plans[0],
        json!({"queue": "orders.fifo", "outcome": "changed", "changes": [
            {"tag": "team", "before": "shop", "after": "ads"},
            {"setting": "attempts_max", "before": "3", "after": "4"},
            {"setting": "lease", "before": "45s", "after": "1m"},
        ]})
    );
    assert_eq!(outcomes(apply("--json")), ["changed", "unchanged"]);
    assert_eq!(outcomes(apply("--json")), ["unchanged", "unchanged"]);
    let queue = &town.run("queue show orders.fifo --json").json()[0];
    let after = ["lease_ms", "delay_ms", "dead_letter", "attempts_max"]
        .map(|name| &queue["settings"][name]);
    assert_eq!(json!(after), json!([60_000, 3_000, "orders-dead.fifo", 4]));
    assert_eq!(queue["tags"], json!({"team": "ads", "owner": "eve"}));
}

/// Tags allow attributes, and dead-letter queues allow tags: the order of the steps is the command's.
#[test]
fn what_is_applied_needs_no_order() {
    let town = Town::new();
    let file = "[[queue]]\nname = \"a.fifo\"\ndelay = \"1h\"\n\
                dead_letter = \"d.fifo\"\n\
                tags = { \"lockgate:key-policy\" = \"skip\", \"lockgate:delay-max\" = \"2h\" }\n\
                [[queue]]\nname = \"d.fifo\"\n";
    town.sandbox.write("queues.toml", file);
    town.run("queue apply queues.toml").ok();
    let again = town.run("queue apply queues.toml --json").json();
    assert_eq!(again[0]["outcome"], "unchanged", "{again:?}");
    let settings = town.run("queue show a.fifo --json").json()[0]["settings"].clone();
    assert_eq!(
        json!([settings["key_policy"], settings["delay_ms"]]),
        json!(["skip", 3_600_000])
    );
    // And for a queue that is there already.
    town.run("queue create b.fifo").ok();
    town.sandbox
        .write("queues.toml", &file.replace("a.fifo", "b.fifo"));
    town.run("queue apply queues.toml").ok();
    let again = town.run("queue apply queues.toml --json").json();
    assert_eq!(again[0]["outcome"], "unchanged", "{again:?}");

    let elasticmq = "queues {\n c { defaultVisibilityTimeout = 7 s }\n}\n";
    town.sandbox.write("elasticmq.conf", elasticmq);
    town.run("queue apply elasticmq.conf").ok();
    town.sandbox.write("imported", elasticmq);
    let again = town
        .run("queue apply imported --format elasticmq --json")
        .json();
    assert_eq!(again[0]["outcome"], "unchanged", "{again:?}");
}

/// What is exported makes the same queues where there are none.
#[test]
fn what_is_exported_can_be_applied() {
    let town = Town::new();
    town.run("queue create dead.fifo --quota-bytes 1GiB").ok();
    town.run(
        "queue create orders.fifo --lease 1m30s --dead-letter dead.fifo --attempts-max 3 \
         --dedup-content true --level process --key-profile strict --tag team=a=\"b",
    )
    .ok();
    town.run("queue create plain").ok();
    let exported = town.run("queue export").ok();
    assert!(
        exported.contains(
            "[[queue]]\nname = \"orders.fifo\"\nlevel = \"process\"\nlease = \"1m30s\"\n"
        ),
        "{exported}"
    );
    assert!(
        exported.contains("[[queue]]\nname = \"plain\"\n\n"),
        "{exported}"
    );
    let other = Town::new();
    other.sandbox.write("queues.toml", &exported);
    other.run("queue apply queues.toml").ok();
    for queue in ["dead.fifo", "orders.fifo", "plain"] {
        let show = format!("queue show {queue} --json");
        let (one, two) = (town.run(&show).json(), other.run(&show).json());
        for part in ["settings", "tags", "keyed"] {
            assert_eq!(one[0][part], two[0][part], "{queue}");
        }
    }
    assert_eq!(other.run("queue export").ok(), exported);
    let one = town.run("queue export --prefix pl").ok();
    assert_eq!(one, "[[queue]]\nname = \"plain\"\n\n");
}

#[test]
fn a_wrong_file_is_not_applied() {
    let town = Town::new();
    for (text, says) in [
        (
            "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"b\"\nlease = \"13h\"\n",
            "queues.toml:5: lease must be a time from 0s to 12h, not 13h",
        ),
        (
            "[[queue]]\nname = \"a\"\nlease = 45\n",
            "queues.toml:3: lease must be a time from 0s to 12h, not 45: write lease = \"45s\"",
        ),
        (
            "[[queue]]\nname = \"a\"\nquota_bytes = 1_000\n",
            "queues.toml:3: quota_bytes must be a size from 1B to 1048576TiB, not 1000: write quota_bytes = \"1000B\"",
        ),
        (
            "[[queue]]\nname = \"a\"\nquota_bytes = \"1000\"\n",
            "queues.toml:3: quota_bytes must be a size from 1B to 1048576TiB, not 1000: write 1000B",
        ),
        (
            "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"b\"\ndead_letter = \"d\"\n",
            "queues.toml:5: queue \"b\": its dead-letter queue d is neither declared nor there",
        ),
    ] {
        town.sandbox.write("queues.toml", text);
        let error = town.run("queue apply queues.toml").fails_with(2);
        assert!(error.contains(says), "{error}");
        assert_eq!(town.run("queue list --json").ok(), "");
    }
    town.run("queue apply none.toml").fails_with(3);
    // A target that is there, though not in the file.
    town.run("queue create d").ok();
    town.run("queue apply queues.toml").ok();
}

/// A file with something wrong anywhere makes no queue, no folder and no server.
#[test]
fn a_wrong_file_does_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "queues.toml",
        &format!("{FILE}\n[[queue]]\nname = \"mail\"\nretention = \"5ms\"\n"),
    );
    let arguments = "--queues queues.toml --log-format text";
    let error = sandbox
        .run(&format!(
            "serve --listen 127.0.0.1:0 --data data {arguments}"
        ))
        .fails_with(2);
    let place = "queues.toml:15: retention must be a time from 1s to 3000000d, not 5ms";
    assert!(error.contains(place), "{error}");
    assert!(!sandbox.path().join("data").exists());
    let checked = sandbox
        .run("config check --queues queues.toml")
        .fails_with(2);
    assert!(checked.contains(place), "{checked}");
}

/// What only the data can tell is told before anything is done, too.
#[test]
fn a_dead_letter_queue_that_is_nowhere_is_refused() {
    let sandbox = Sandbox::new();
    let text = "[[queue]]\nname = \"b\"\n\n[[queue]]\nname = \"a\"\ndead_letter = \"d\"\n";
    sandbox.write("queues.toml", text);
    let arguments = "--queues queues.toml --log-format text";
    let error = sandbox
        .run(&format!(
            "serve --listen 127.0.0.1:0 --data data {arguments}"
        ))
        .fails_with(2);
    let place = "queues.toml:6: queue \"a\": its dead-letter queue d is neither declared nor there";
    assert!(error.contains(place), "{error}");
    let server = Server::start(&sandbox);
    let url = &server.url;
    assert_eq!(
        sandbox
            .run(&format!("queue list --json --endpoint {url}"))
            .ok(),
        ""
    );
}

#[test]
fn elasticmqs_file_is_imported() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "elasticmq.conf",
        "include classpath(\"application.conf\")\nqueues {\n  a { fifo = true, deadLettersQueue { name = d, \
         maxReceiveCount = 2 } }\n  d { fifo = true, defaultVisibilityTimeout = 10 seconds }\n}\n",
    );
    let checked = sandbox.run("config check --queues elasticmq.conf");
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let said = &checked.stderr;
    assert!(said.contains("elasticmq.conf:1: include"), "{said}");
    assert!(
        said.contains("elasticmq.conf: 2 queues: no problems"),
        "{said}"
    );
    sandbox.write("lockgate.toml", "queues = \"elasticmq.conf\"\n");
    let server = Server::start(&sandbox);
    let dead = shown(&sandbox, &server, "d.fifo");
    assert_eq!(dead["settings"]["lease_ms"], 10_000);
    let settings = &shown(&sandbox, &server, "a.fifo")["settings"];
    assert_eq!(
        json!([settings["dead_letter"], settings["attempts_max"]]),
        json!(["d.fifo", 2])
    );
}

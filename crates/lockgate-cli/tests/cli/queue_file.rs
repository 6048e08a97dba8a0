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
attributes = { ContentBasedDeduplication = true }
dead_letter = { queue = "orders-dead.fifo", attempts = 3 }
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
    assert_eq!(orders["attributes"]["VisibilityTimeout"], "45");
    assert_eq!(orders["tags"]["team"], "shop");
    let policy = orders["attributes"]["RedrivePolicy"].as_str().unwrap();
    assert!(policy.contains(":orders-dead.fifo"), "{policy}");
    let url = server.url.clone();
    sandbox
        .run(&format!("queue create other --delay 5s --endpoint {url}"))
        .ok();
    sandbox
        .run(&format!(
            "send --queue orders.fifo --key a --endpoint {url} kept"
        ))
        .ok();

    server.signal(rustix::process::Signal::KILL);
    server.wait();
    server = Server::start(&sandbox);
    assert_eq!(shown(&sandbox, &server, "orders.fifo")["attributes"], {
        let mut attributes = orders["attributes"].clone();
        attributes["ApproximateNumberOfMessages"] = "1".into();
        attributes
    });

    server.signal(rustix::process::Signal::KILL);
    server.wait();
    sandbox.write(
        "queues.toml",
        "[[queue]]\nname = \"orders.fifo\"\nlease = \"1m\"\ntags = { tier = \"1\" }\n",
    );
    let server = Server::start(&sandbox);
    let changed = shown(&sandbox, &server, "orders.fifo");
    assert_eq!(changed["attributes"]["VisibilityTimeout"], "60");
    assert_eq!(changed["attributes"]["RedrivePolicy"], policy);
    assert_eq!(changed["counts"]["ready"], 1);
    let tags: BTreeMap<String, String> = serde_json::from_value(changed["tags"].clone()).unwrap();
    assert_eq!(tags.into_keys().collect::<Vec<_>>(), ["team", "tier"]);
    assert_eq!(
        shown(&sandbox, &server, "other")["attributes"]["DelaySeconds"],
        "5"
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
    assert_eq!(dry.ok().lines().count(), 2);
    assert_eq!(town.run("queue list --json").ok(), "");

    assert_eq!(outcomes(apply("--json")), ["created", "created"]);
    for queue in ["orders.fifo", "orders-dead.fifo"] {
        let is = town.run(&format!("queue show {queue} --json")).json();
        let should = shown(&declared, &as_declared, queue);
        for part in ["attributes", "tags"] {
            let known = |queue: &Value| {
                let mut part = queue[part].clone();
                for time in ["CreatedTimestamp", "LastModifiedTimestamp"] {
                    part.as_object_mut().unwrap().remove(time);
                }
                part
            };
            assert_eq!(known(&is[0]), known(&should));
        }
    }
    assert_eq!(outcomes(apply("--json")), ["unchanged", "unchanged"]);

    // What the file does not name stays.
    town.run("queue set orders.fifo --tag owner=eve --delay 3s")
        .ok();
    let file = FILE
        .replace("45s", "1m")
        .replace("attempts = 3", "attempts = 4");
    town.sandbox
        .write("queues.toml", &file.replace("shop", "ads"));
    let plans = apply("--json --dry-run").json();
    assert_eq!(
        plans[0],
        json!({"queue": "orders.fifo", "outcome": "changed", "changes": [
            {"tag": "team", "before": "shop", "after": "ads"},
            {"attribute": "VisibilityTimeout", "before": "45", "after": "60"},
            {"dead_letter": "orders-dead.fifo", "before": "orders-dead.fifo after 3",
             "after": "orders-dead.fifo after 4"},
        ]})
    );
    assert_eq!(outcomes(apply("--json")), ["changed", "unchanged"]);
    assert_eq!(outcomes(apply("--json")), ["unchanged", "unchanged"]);
    let settings = town.run("queue settings orders.fifo --json").json();
    let after = ["lease_ms", "delay_ms", "dead_letter"].map(|name| &settings[0][name]);
    let dead_letter = json!({"queue": "orders-dead.fifo", "attempts_max": 4});
    assert_eq!(json!(after), json!([60_000, 3_000, dead_letter]));
    let tags = &town.run("queue show orders.fifo --json").json()[0]["tags"];
    assert_eq!(*tags, json!({"team": "ads", "owner": "eve"}));
}

/// Tags allow attributes, and dead-letter queues allow tags: the order of the steps is the command's.
#[test]
fn what_is_applied_needs_no_order() {
    let town = Town::new();
    let file = "[[queue]]\nname = \"a.fifo\"\ndelay = \"1h\"\n\
                dead_letter = { queue = \"d.fifo\", attempts = 3 }\n\
                tags = { \"lockgate:key-policy\" = \"skip\", \"lockgate:delay-max\" = \"2h\" }\n\
                [[queue]]\nname = \"d.fifo\"\n";
    town.sandbox.write("queues.toml", file);
    town.run("queue apply queues.toml").ok();
    let again = town.run("queue apply queues.toml --json").json();
    assert_eq!(again[0]["outcome"], "unchanged", "{again:?}");
    let settings = town.run("queue settings a.fifo --json").json();
    assert_eq!(
        json!([settings[0]["key_policy"], settings[0]["delay_ms"]]),
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

#[test]
fn a_wrong_file_is_not_applied() {
    let town = Town::new();
    for (text, says) in [
        (
            "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"b\"\nlease = \"13h\"\n",
            "queues.toml:5: queue \"b\": ",
        ),
        (
            "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"b\"\ndead_letter = { queue = \"d\", attempts = 3 }\n",
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
        &format!("{FILE}\n[[queue]]\nname = \"mail\"\nretention = \"5s\"\n"),
    );
    let arguments = "--queues queues.toml --log-format text";
    let error = sandbox
        .run(&format!(
            "serve --listen 127.0.0.1:0 --data data {arguments}"
        ))
        .fails_with(2);
    let place =
        "queues.toml:14: queue \"mail\": Invalid value for the parameter MessageRetentionPeriod";
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
    let text = "[[queue]]\nname = \"b\"\n\n[[queue]]\nname = \"a\"\ndead_letter = { queue = \"d\", attempts = 3 }\n";
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
    assert_eq!(dead["attributes"]["VisibilityTimeout"], "10");
    let policy = &shown(&sandbox, &server, "a.fifo")["attributes"]["RedrivePolicy"];
    assert!(policy.as_str().unwrap().contains(":d.fifo"), "{policy}");
}

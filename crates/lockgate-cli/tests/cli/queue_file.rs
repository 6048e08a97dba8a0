//! Queues that a file declares, as a server has them.

use std::collections::BTreeMap;

use crate::support::{Sandbox, Server};

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

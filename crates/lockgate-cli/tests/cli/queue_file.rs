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
    // Nor is a queue made where an exchange is wrong.
    let text = "[[queue]]\nname = \"b\"\n[[exchange]]\nname = \"e\"\nkind = \"fanout\"\n[[exchange.bind]]\nqueue = \"d\"\n";
    sandbox.write("queues.toml", text);
    let error = sandbox
        .run(&format!(
            "serve --listen 127.0.0.1:0 --data data {arguments}"
        ))
        .fails_with(2);
    let place = "queues.toml:6: exchange e: queue d is neither declared nor there";
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

const EXCHANGES: &str = r##"
[[exchange]]
name = "events"
kind = "topic"
alternate = "rest"

[[exchange.bind]]
queue = "orders.fifo"
topic = "orders.*.eu"
filter = '{"store": ["web", {"prefix": "shop-"}]}'
key_from_header = "customer"

[[exchange.bind]]
exchange = "jobs"
topic = "#"

[[exchange]]
name = "jobs"
kind = "headers"
unroutable = "drop"

[[exchange.bind]]
queue = "audit"
headers = ["type=image", "urgent"]
any = true
filter = '{"size": [{"numeric": [">", 1.50]}]}'
filter_body = true
skip_when_full = true

[[exchange]]
name = "rest"
kind = "fanout"
[[exchange.bind]]
queue = "audit"
key_from_routing_key = true

[[queue]]
name = "orders.fifo"
[[queue]]
name = "audit"
"##;

fn bindings(town: &Town, exchange: &str) -> Value {
    let shown = town.run(&format!("exchange show {exchange} --json")).json();
    let mut bindings = shown[0]["bindings"].clone();
    for binding in bindings.as_array_mut().unwrap() {
        binding.as_object_mut().unwrap().remove("number");
    }
    bindings
}

/// The same file makes the same on a server that runs and on one that starts; again it changes nothing.
#[test]
fn exchanges_of_a_file_are_made_and_changed() {
    let town = Town::new();
    town.sandbox.write("queues.toml", EXCHANGES);
    let apply = |flags: &str| {
        let line = format!("queue apply queues.toml --json {flags}");
        let plans = town.run(&line).json();
        let plans = plans
            .into_iter()
            .filter(|plan| plan["exchange"].is_string());
        plans.collect::<Vec<_>>()
    };
    let outcomes = |plans: &[Value]| -> Vec<String> {
        let outcomes = plans
            .iter()
            .map(|plan| plan["outcome"].as_str().unwrap().to_owned());
        outcomes.collect()
    };
    let created = ["created", "created", "created"];
    assert_eq!(outcomes(&apply("--dry-run")), created);
    town.run("exchange show events").fails_with(3);
    assert_eq!(outcomes(&apply("")), created);
    let events = bindings(&town, "events");
    assert_eq!(
        events,
        json!([
            {
                "to": {"queue": "orders.fifo"},
                "topic": "orders.*.eu",
                "filter": {"store": ["web", {"prefix": "shop-"}]},
                "filter_scope": "headers",
                "key_from": {"header": "customer"},
                "skip_when_full": false,
            },
            {"to": {"exchange": "jobs"}, "topic": "#", "skip_when_full": false},
        ])
    );
    let shown = town.run("exchange show events --json").json();
    assert_eq!(
        shown[0]["exchange"]["unroutable"],
        json!({"alternate": "rest"})
    );
    let unchanged = ["unchanged", "unchanged", "unchanged"];
    assert_eq!(outcomes(&apply("")), unchanged);

    // What the file does not name stays.
    town.run("exchange bind events --queue audit --topic a.b")
        .ok();
    let rule = "unroutable = \"drop\"\n\n";
    let changed = (EXCHANGES.replace(rule, "\n")).replace("\"urgent\"", "\"urgent=yes\"");
    let changed = changed.replace("topic = \"#\"", "topic = \"#\"\nfilter = '{\"a\": [1]}'");
    town.sandbox.write("queues.toml", &changed);
    let plans = apply("");
    assert_eq!(outcomes(&plans), ["changed", "changed", "unchanged"]);
    assert_eq!(
        plans[0]["changes"],
        json!([{
            "binding": "to exchange jobs by topic `#`",
            "before": "no options",
            "after": "filter on the headers {\"a\":[1]}",
        }])
    );
    assert_eq!(bindings(&town, "events").as_array().unwrap().len(), 3);
    assert_eq!(bindings(&town, "jobs").as_array().unwrap().len(), 2);
    let jobs = town.run("exchange show jobs --json").json();
    assert_eq!(jobs[0]["exchange"]["unroutable"], "drop");
    let table = town.run("queue apply queues.toml --dry-run");
    assert!(
        table
            .stderr
            .contains("2 queues and 3 exchanges: 0 created, 0 changed, 5 as declared already"),
        "{table:?}"
    );

    // What is exported makes the same elsewhere.
    let exported = town.run("queue export").ok();
    let other = Town::new();
    other.sandbox.write("queues.toml", &exported);
    other.run("queue apply queues.toml").ok();
    for exchange in ["events", "jobs", "rest"] {
        assert_eq!(bindings(&town, exchange), bindings(&other, exchange));
    }
    assert_eq!(other.run("queue export").ok(), exported);
    let exported = town.run("queue export --json").json();
    assert_eq!(exported[2]["bind"][0]["key_from_header"], "customer");

    let sandbox = Sandbox::new();
    sandbox.write("lockgate.toml", "queues = \"queues.toml\"\n");
    sandbox.write("queues.toml", EXCHANGES);
    let mut changed_at = None;
    for _ in 0..2 {
        let server = Server::start(&sandbox);
        let url = &server.url;
        let shown = sandbox
            .run(&format!("exchange show events --json --endpoint {url}"))
            .json();
        let mut there = shown[0]["bindings"].clone();
        for binding in there.as_array_mut().unwrap() {
            binding.as_object_mut().unwrap().remove("number");
        }
        assert_eq!(there, events);
        let of = shown[0]["exchange"]["changed_at"].clone();
        assert_eq!(*changed_at.get_or_insert(of.clone()), of);
        server.signal(rustix::process::Signal::KILL);
        server.wait();
    }
}

#[test]
fn wrong_exchanges_are_told_by_line_and_nothing_is_done() {
    let town = Town::new();
    town.run("exchange create there --kind direct").ok();
    let one = |kind: &str, rest: &str| {
        format!("[[queue]]\nname = \"new\"\n[[exchange]]\nname = \"e\"\nkind = \"{kind}\"\n{rest}")
    };
    let bind = |kind: &str, rest: &str| one(kind, &format!("[[exchange.bind]]\n{rest}"));
    for (text, says) in [
        (
            "[[exchange]]\nkind = \"topic\"\n".to_owned(),
            "q.toml:1: an exchange needs a name",
        ),
        (
            "[[exchange]]\nname = \"e\"\n".to_owned(),
            "q.toml:1: an exchange needs a kind",
        ),
        (
            one("round", ""),
            "q.toml:5: kind: it is direct, topic, fanout or headers",
        ),
        (
            one("topic", "rule = 1\n"),
            "q.toml:6: unknown key \"rule\"; there are name, kind,",
        ),
        (
            one("topic", "unroutable = \"away\"\n"),
            "q.toml:6: unroutable: it is reject or drop;",
        ),
        (
            one("topic", "unroutable = \"drop\"\nalternate = \"a\"\n"),
            "q.toml:3: unroutable and alternate are both there",
        ),
        (
            one("topic", "alternate = \"e\"\n"),
            "q.toml:6: exchange e: exchanges that are declared lead in a circle",
        ),
        (
            one("topic", "alternate = \"gone\"\n"),
            "q.toml:6: exchange e: exchange gone is neither declared nor there",
        ),
        (
            one("topic", "[[exchange]]\nname = \"e\"\nkind = \"topic\"\n"),
            "q.toml:7: exchange e: it is declared twice",
        ),
        (
            bind("topic", "topic = \"#\"\n"),
            "q.toml:6: a binding leads to one queue or exchange",
        ),
        (
            bind("topic", "queue = \"new\"\ntopic = \"a*\"\n"),
            "q.toml:8: topic: ",
        ),
        (
            bind("topic", "queue = \"new\"\nroutes = 1\n"),
            "q.toml:8: unknown key \"routes\"",
        ),
        (
            bind("topic", "queue = \"new\"\n"),
            "q.toml:6: exchange e: exchange e is of kind topic, which has no binding by",
        ),
        (
            bind(
                "topic",
                "queue = \"new\"\ntopic = \"#\"\nrouting_key = \"a\"\n",
            ),
            "q.toml:6: a binding has one of routing_key, topic and headers",
        ),
        (
            bind("topic", "queue = \"new\"\ntopic = \"#\"\nfilter = \"[]\"\n"),
            "q.toml:9: filter: ",
        ),
        (
            bind("fanout", "queue = \"new\"\nfilter_body = true\n"),
            "q.toml:6: filter_body: ",
        ),
        (
            bind("fanout", "queue = \"new\"\nany = true\n"),
            "q.toml:6: any: ",
        ),
        (
            bind("fanout", "queue = \"new\"\nskip_when_full = 1\n"),
            "q.toml:8: skip_when_full: expected true or false",
        ),
        (
            bind(
                "fanout",
                "queue = \"new\"\nkey_from_header = \"a\"\nkey_from_routing_key = true\n",
            ),
            "q.toml:6: key_from_header and key_from_routing_key are both there",
        ),
        (
            bind("fanout", "exchange = \"there\"\nskip_when_full = true\n"),
            "q.toml:6: exchange e: a binding to an exchange cannot have skip_when_full",
        ),
        (
            bind("fanout", "queue = \"gone\"\n"),
            "q.toml:6: exchange e: queue gone is neither declared nor there",
        ),
        (
            bind(
                "fanout",
                "queue = \"new\"\n[[exchange.bind]]\nqueue = \"new\"\n",
            ),
            "q.toml:8: exchange e: there is such a binding above",
        ),
        (
            one("topic", "").replace("\"e\"", "\"there\""),
            "q.toml:4: exchange there: there is an exchange of this name of kind direct, the file declares it topic",
        ),
    ] {
        town.sandbox.write("q.toml", &text);
        let error = town.run("queue apply q.toml");
        assert_ne!(error.code, Some(0), "{text}\n{error:?}");
        assert!(
            error.stderr.contains(says),
            "{text}\n{}\n{says}",
            error.stderr
        );
    }
    town.run("queue show new").fails_with(3);
}

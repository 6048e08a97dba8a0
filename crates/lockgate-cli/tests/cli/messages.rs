//! Sending, receiving, acknowledging and managing queues, against a real server.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::Stdio,
};

use serde_json::{Value, json};

use crate::support::{Done, Sandbox, Server, run_on_terminal};

/// A server, and commands that talk to it.
pub(crate) struct Town {
    pub(crate) sandbox: Sandbox,
    pub(crate) server: Server,
}

impl Town {
    pub(crate) fn new() -> Self {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox);
        sandbox.write("lockgate.toml", &format!("endpoint = {:?}\n", server.url));
        Self { sandbox, server }
    }

    pub(crate) fn run(&self, arguments: &str) -> Done {
        self.sandbox.run(arguments)
    }

    pub(crate) fn send_lines(&self, arguments: &str, lines: &str) -> Done {
        self.sandbox
            .run_with_input(&format!("send {arguments}"), lines)
    }

    /// Everything a queue has, in the order it comes.
    pub(crate) fn drain(&self, queue: &str) -> Vec<Value> {
        self.run(&format!("receive {queue} --max 1000 --wait 5s --ack"))
            .json()
    }

    pub(crate) fn counts(&self, queue: &str) -> Value {
        let queue = self.run(&format!("queue show {queue} --json")).json();
        let count = |name: &str| (name.to_owned(), queue[0]["counts"][name].clone());
        ["ready", "in_flight", "delayed"]
            .map(count)
            .into_iter()
            .collect()
    }
}

pub(crate) fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().unwrap())
        .collect()
}

#[test]
fn a_message_goes_there_and_comes_back_whole() {
    let town = Town::new();
    town.run("queue create orders.fifo --tag team=a").ok();
    let line = json!({
        "body": "post", "key": "user-42", "unique_id": "u1",
        "headers": {"a": "x", "n": 1.50, "b": {"type": "Binary", "value": "AP8=", "encoding": "base64"}},
    });
    let sent = town
        .send_lines("orders.fifo --json", &line.to_string())
        .json();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0]["duplicate"], false);

    let received = town.run("receive orders.fifo --wait 5s").json();
    let message = &received[0];
    assert_eq!(received.len(), 1);
    assert_eq!(message["id"], sent[0]["id"]);
    assert_eq!(message["sequence"], sent[0]["sequence"]);
    assert_eq!(
        json!([
            message["body"],
            message["key"],
            message["unique_id"],
            message["attempt"]
        ]),
        json!(["post", "user-42", "u1", 1])
    );
    assert_eq!(
        message["headers"],
        json!({
            "a": {"type": "String", "value": "x", "encoding": "text"},
            "b": {"type": "Binary", "value": "AP8=", "encoding": "base64"},
            "n": {"type": "Number", "value": "1.5", "encoding": "text"},
        })
    );
    let sent_at = message["sent_at"].as_str().unwrap();
    assert!(
        sent_at.starts_with("20") && sent_at.ends_with('Z'),
        "{sent_at}"
    );

    // Leased: nobody else gets it, until it is acknowledged by its receipt.
    assert_eq!(
        town.counts("orders.fifo"),
        json!({"ready": 0, "in_flight": 1, "delayed": 0})
    );
    assert_eq!(town.run("receive orders.fifo").ok(), "");
    let receipt = message["receipt"].as_str().unwrap();
    town.run(&format!("ack orders.fifo {receipt}")).ok();
    assert_eq!(town.counts("orders.fifo")["in_flight"], 0);
}

#[test]
fn a_priority_is_sent_and_shown_and_has_a_range() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("send q --priority 9 urgent").ok();
    let lines = "{\"body\":\"as the flag says\"}\n{\"body\":\"its own\",\"priority\":0}\n";
    town.send_lines("q --priority 4", lines).ok();
    let priorities = |messages: &[Value]| {
        let priority = |message: &Value| message.get("priority").cloned();
        messages.iter().map(priority).collect::<Vec<_>>()
    };
    let expected = [Some(json!(9)), Some(json!(4)), None];
    assert_eq!(priorities(&town.run("peek q --json").json()), expected);
    let table = town.run("peek q").ok();
    assert!(table.contains("PRIORITY"), "{table}");
    let received = town.run("receive q --nack").json();
    assert_eq!(priorities(&received), expected);
    let mut text = town.sandbox.command("receive q --nack");
    let text = run_on_terminal(&mut text).ok();
    assert!(text.contains("priority      9\r\n"), "{text}");
    // A nack returns messages in an order of its own.
    let mut command = town.sandbox.command("receive q --exec");
    let run = command.arg("echo $LOCKGATE_PRIORITY").output().unwrap();
    let told = String::from_utf8(run.stdout).unwrap();
    let mut told: Vec<_> = told.lines().collect();
    told.sort_unstable();
    assert_eq!(told, ["0", "4", "9"]);

    let error = town.run("send q --priority 10 x").fails_with(2);
    assert!(error.contains("10 is not in 0..=9"), "{error}");
    let wrong = "{\"body\":1}\n{\"body\":2,\"priority\":10}\n";
    let error = town.send_lines("q", wrong).fails_with(1);
    let said = "standard input:2: priority must be 0 to 9, not 10";
    assert!(error.contains(said), "{error}");
    assert_eq!(town.counts("q")["ready"], 1);
}

#[test]
fn any_json_is_a_body_and_order_is_kept_over_many_calls() {
    let town = Town::new();
    let mut lines = String::from("{\"body\": {\"z\": 1.50, \"a\": [1, 2]}}\n\n");
    for number in 1..350 {
        lines.push_str(&format!("{{\"body\":\"{number}\"}}\n"));
    }
    let said = town.send_lines("q.fifo --create --key k", &lines).ok();
    assert_eq!(said, "sent 350 messages to q.fifo\n");
    let received = town.drain("q.fifo");
    let mut expected = vec![r#"{"z":1.50,"a":[1,2]}"#.to_owned()];
    expected.extend((1..350).map(|number| number.to_string()));
    assert_eq!(bodies(&received), expected);
    assert!(received.iter().all(|message| message["key"] == "k"));
}

#[test]
fn a_wrong_line_is_named_and_nothing_is_skipped_silently() {
    let town = Town::new();
    town.run("queue create q").ok();
    let file = town.sandbox.write(
        "in.jsonl",
        "{\"body\":\"one\"}\n{\"body\":\"two\"}\n{\"boddy\":\"three\"}\n{\"body\":\"four\"}\n",
    );
    let error = town
        .run(&format!("send q --lines {}", file.display()))
        .fails_with(1);
    assert!(
        error.contains("in.jsonl:3: unknown field `boddy`"),
        "{error}"
    );
    assert!(
        error.contains("2 messages were sent, nothing after them"),
        "{error}"
    );
    assert_eq!(bodies(&town.drain("q")).len(), 2);

    // An id for one message is not passed over in silence for many.
    town.run("send q --unique-id once --lines in.jsonl")
        .fails_with(2);
    let error = town.run("send q --unique-id once").fails_with(2);
    assert!(error.contains("--unique-id is for one message"), "{error}");
    assert_eq!(town.counts("q")["ready"], 0);

    // What the server refuses is named as exactly.
    let error = town
        .send_lines("q", "{\"body\":1,\"key\":\"k\"}\n")
        .fails_with(1);
    assert!(
        error.contains("standard input:1: queue q is not keyed"),
        "{error}"
    );
    let error = town.run("send q --lines nowhere.jsonl").fails_with(3);
    assert!(error.contains("opening nowhere.jsonl"), "{error}");
}

#[test]
fn a_body_may_be_any_bytes() {
    let town = Town::new();
    town.run("queue create q").ok();
    let bytes: Vec<u8> = (0..=255).collect();
    std::fs::write(town.sandbox.path().join("cat.jpg"), &bytes).unwrap();
    town.run("send q --file cat.jpg").ok();
    let raw = |options: &str, input: &[u8]| {
        std::fs::write(town.sandbox.path().join("input"), input).unwrap();
        let input = std::fs::File::open(town.sandbox.path().join("input")).unwrap();
        let send = town
            .sandbox
            .command(&format!("send q {options}"))
            .stdin(input)
            .output();
        Done::from(send.unwrap())
    };
    raw("--raw", &bytes).ok();
    raw("--raw", b"no JSON,\nas it is\n").ok();
    raw("--raw --base64", b"AP/+\nAQ==\n").ok();
    town.run("send q --base64 aGVsbG8=").ok();
    town.send_lines("q", "{\"body\":\"AP8=\",\"body_encoding\":\"base64\"}")
        .ok();
    raw("--raw", b"").ok();
    let receive = "receive q --follow --max 7 --exec";
    let mut receive = town.sandbox.command(receive);
    let done = receive.arg("cat > body-$LOCKGATE_SEQUENCE").output();
    Done::from(done.unwrap()).ok();
    let sent = [
        &*bytes,
        &bytes,
        b"no JSON,\nas it is\n",
        b"\0\xff\xfe\x01",
        b"hello",
        b"\0\xff",
        b"",
    ];
    for (number, body) in (1..).zip(sent) {
        let path = town.sandbox.path().join(format!("body-{number}"));
        assert_eq!(std::fs::read(path).unwrap(), body, "{number}");
    }

    let error = raw("", b"hello\n").fails_with(1);
    assert!(
        error.contains("standard input:1: this line is no JSON object"),
        "{error}"
    );
    assert!(error.contains("--raw"), "{error}");
    let error = town.run("send q --base64 a=b").fails_with(2);
    assert!(error.contains("no base64"), "{error}");
    assert_eq!(town.counts("q")["ready"], 0);
}

/// Every command that names a queue says which one may be meant.
#[test]
fn a_typo_in_a_queues_name_is_recognised() {
    let town = Town::new();
    town.run("queue create mail").ok();
    for command in [
        "send mial x",
        "send mial --lines in.jsonl",
        "receive mial",
        "receive mial --exec true",
        "receive mial --nack",
        "peek mial",
        "peek mial --id 00000001-0000-8000-8000-00000000a001",
        "ack mial r",
        "nack mial r",
        "defer mial --delay 1s r",
        "extend mial --lease 1s r",
        "reject mial r",
        "cancel mial 00000001-0000-8000-8000-00000000a001",
        "reschedule mial --delay 1s 00000001-0000-8000-8000-00000000a001",
        "key list mial",
        "key explain mial k",
        "key park mial k",
        "key resume mial k",
        "key drop mial k --yes",
        "dlq list mial",
        "dlq redrive mial",
        "dlq redrive mail --to mial",
        "dlq drop mial --all --yes",
        "dlq drop mial 00000001-0000-8000-8000-00000000a001",
        "queue show mial",
        "queue set mial --lease 1s",
        "queue pause mial",
        "queue resume mial",
        "queue purge mial --yes",
        "queue delete mial --yes",
    ] {
        let error = town.run(command).fails_with(3);
        let here = format!("there is no queue \"mial\" at {}", town.server.url);
        assert!(error.contains(&here), "{command}: {error}");
        assert!(error.contains("did you mean mail?"), "{command}: {error}");
    }
}

#[test]
fn a_message_without_the_key_its_queue_needs_is_named() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    let error = town.run("send q.fifo one").fails_with(1);
    assert!(error.contains("error: queue q.fifo is keyed"), "{error}");
    assert!(error.contains("--key"), "{error}");

    // What stands before it in the same call is sent.
    let lines = "{\"body\":\"one\",\"key\":\"k\"}\n{\"body\":\"two\"}\n";
    let error = town.send_lines("q.fifo", lines).fails_with(1);
    assert!(
        error.contains("standard input:2: queue q.fifo is keyed"),
        "{error}"
    );
    assert_eq!(bodies(&town.drain("q.fifo")), ["one"]);
}

#[test]
fn the_same_unique_id_twice_is_told() {
    let town = Town::new();
    let send = "send q.fifo --create --key k --unique-id once --json body";
    let first = &town.run(send).json()[0];
    let again = &town.run(send).json()[0];
    assert_eq!(
        (&first["id"], &first["sequence"]),
        (&again["id"], &again["sequence"])
    );
    assert_eq!(
        (&first["duplicate"], &again["duplicate"]),
        (&json!(false), &json!(true))
    );
    let plain = town.run("send q.fifo --key k --unique-id once body").ok();
    assert_eq!(plain, "sent 1 message to q.fifo (1 already there)\n");
    // Without an id of its own each send is another message, unless the body is the id.
    town.run("send q.fifo --key k same").ok();
    town.run("send q.fifo --key k same").ok();
    assert_eq!(bodies(&town.drain("q.fifo")), ["body", "same", "same"]);
    town.run("queue create c.fifo --dedup-content true").ok();
    town.run("send c.fifo --key k same").ok();
    let plain = town.run("send c.fifo --key k same").ok();
    assert_eq!(plain, "sent 1 message to c.fifo (1 already there)\n");
}

/// Printed once and given back once, at no attempt's cost: looking kills no message.
#[test]
fn looking_with_nack_shows_each_message_once_and_costs_no_attempt() {
    let town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo --dead-letter dead.fifo --attempts-max 2")
        .ok();
    let lines =
        "{\"body\":1,\"key\":\"a\"}\n{\"body\":2,\"key\":\"a\"}\n{\"body\":3,\"key\":\"b\"}\n";
    town.send_lines("q.fifo", lines).ok();
    for profile in ["sqs", "strict"] {
        town.run(&format!("queue set q.fifo --key-profile {profile}"))
            .ok();
        for _ in 0..3 {
            let looked = town.run("receive q.fifo --nack --max 20");
            assert_eq!(looked.stderr, "", "{profile}");
            let mut shown: Vec<_> = looked
                .json()
                .iter()
                .map(|message| (message["body"].clone(), message["attempt"].clone()))
                .collect();
            shown.sort_by_key(|(body, _)| body.to_string());
            let once = |body: &str| (json!(body), json!(1));
            assert_eq!(shown, [once("1"), once("2"), once("3")], "{profile}");
            assert_eq!(
                town.counts("q.fifo"),
                json!({"ready": 3, "in_flight": 0, "delayed": 0})
            );
        }
    }
    assert_eq!(town.counts("dead.fifo")["ready"], 0);
    // The order is as it was.
    assert_eq!(
        bodies(&town.run("receive q.fifo --nack -m 1").json()),
        ["1"]
    );

    let error = town.run("receive q.fifo --lease 0s").fails_with(2);
    assert!(
        error.contains("a lease lasts 1ms to 12h, not 0s"),
        "{error}"
    );
    town.run("receive q.fifo --nack --follow").fails_with(2);
}

/// A key promises an order, so a queue that keeps none takes groups, under their own name.
#[test]
fn a_key_is_refused_where_no_order_is_kept_and_a_group_where_it_is() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("queue create q.fifo").ok();
    let error = town.run("send q --key k one").fails_with(1);
    assert!(
        error.contains("queue q is not keyed and keeps no order") && error.contains("--group"),
        "{error}"
    );
    let error = town
        .send_lines("q", "{\"body\":1}\n{\"body\":2,\"key\":\"k\"}\n")
        .fails_with(1);
    assert!(
        error.contains("standard input:2: queue q is not keyed"),
        "{error}"
    );
    let error = town.run("send q.fifo --group g one").fails_with(1);
    assert!(error.contains("it takes a key, not a group"), "{error}");
    assert_eq!(
        town.counts("q"),
        json!({"ready": 1, "in_flight": 0, "delayed": 0})
    );

    town.run("queue purge q --yes").ok();
    town.send_lines("q --group g", "{\"body\":1}\n").ok();
    town.run("send q.fifo --key k 2").ok();
    let shown = |command: &str| {
        let message = town.run(command).json().remove(0);
        json!([message["key"], message["group"]])
    };
    for look in ["peek --json", "receive --nack"] {
        assert_eq!(shown(&format!("{look} q")), json!([null, "g"]), "{look}");
        assert_eq!(
            shown(&format!("{look} q.fifo")),
            json!(["k", null]),
            "{look}"
        );
    }
    assert_eq!(town.run("peek q --group g --json").json().len(), 1);
    let error = town.run("peek q --key g").fails_with(1);
    assert!(error.contains("queue q is not keyed"), "{error}");
}

#[test]
fn an_empty_receive_says_why() {
    let town = Town::new();
    let why = |queue: &str| {
        let done = town.run(&format!("receive {queue}"));
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
        done.stderr
    };
    town.run("queue create q").ok();
    town.run("queue create q.fifo").ok();
    assert_eq!(why("q"), "nothing received: q is empty\n");
    town.run("send q --delay 15m later").ok();
    let said = why("q");
    assert!(
        said.starts_with("nothing received: the only message of q is delayed until 20"),
        "{said}"
    );
    town.run("send q now").ok();
    town.run("queue pause q").ok();
    let said = why("q");
    assert!(said.contains("q is paused and holds 2 messages"), "{said}");
    assert!(said.contains("`lockgate queue resume q`"), "{said}");
    town.run("queue resume q").ok();
    town.run("receive q").ok();
    let said = why("q");
    assert!(said.contains("1 message of q is in flight"), "{said}");

    for key in ["a", "b", "c"] {
        town.run(&format!("send q.fifo --key {key} 1")).ok();
    }
    town.run("send q.fifo --key a 2").ok();
    town.run("key park q.fifo c").ok();
    town.run("receive q.fifo --max 1").ok();
    let other = town.run("receive q.fifo --max 1").json();
    let receipt = other[0]["receipt"].as_str().unwrap();
    town.run(&format!("nack q.fifo --delay 1h {receipt}")).ok();
    let said = why("q.fifo");
    assert!(
        said.contains("all 3 keys with messages are held (1 in flight, 1 parked, 1 waiting for another attempt)"),
        "{said}"
    );
    assert!(said.contains("`lockgate key list q.fifo`"), "{said}");
}

#[test]
fn a_terminal_gets_text_and_whatever_else_gets_json() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    let receive = |arguments: &str| {
        let mut command = (town.sandbox).command(&format!("receive q.fifo {arguments}"));
        run_on_terminal(&mut command)
    };
    town.run("send q.fifo --key k --header to=eve hello").ok();
    let looked = receive("--nack").ok().replace("\r\n", "\n");
    let (head, body) = looked.split_once("\n\n").unwrap();
    assert_eq!(body, "hello\n\n");
    let names: Vec<_> = head.lines().map(|line| line[..14].trim_end()).collect();
    let all = [
        "message",
        "key",
        "unique id",
        "attempt",
        "sent at",
        "header",
    ];
    assert_eq!(names, all, "{looked}");
    assert!(head.ends_with("header        to=eve"), "{looked}");

    let json = receive("--nack --json").json();
    assert_eq!(json[0]["body"], "hello");
    assert_eq!(town.run("receive q.fifo --nack").json()[0]["body"], "hello");

    // What is printed can be settled, unless it is settled already.
    let held = receive("").ok();
    let receipt = held.lines().find_map(|line| line.strip_prefix("receipt"));
    let acked = town.run(&format!("ack q.fifo {}", receipt.unwrap().trim()));
    assert_eq!(acked.stderr, "1 message was acknowledged\n");
    assert_eq!(acked.code, Some(0));
    town.run("send q.fifo --key k bye").ok();
    let deleted = receive("--ack --wait 5s").ok();
    assert!(deleted.ends_with("\r\n\r\nbye\r\n\r\n"), "{deleted:?}");
    assert!(!deleted.contains("receipt"), "{deleted}");
    assert_eq!(town.counts("q.fifo")["in_flight"], 0);
}

#[test]
fn queues_are_listed_shown_purged_and_deleted() {
    let town = Town::new();
    town.run("queue create a.fifo --lease 1m --delay 0s --retention 1d")
        .ok();
    town.run("queue create b").ok();
    town.run("send b x").ok();
    let listed = town.run("queue list").ok();
    let lines: Vec<Vec<_>> = listed
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(
        lines[0].join(" "),
        "NAME KEYED READY IN FLIGHT DELAYED OLDEST DEAD LETTERS STATE"
    );
    assert_eq!(
        lines[1],
        ["a.fifo", "yes", "0", "0", "0", "", "", "active"],
        "{listed}"
    );
    assert_eq!(lines[2][..5], ["b", "no", "1", "0", "0"], "{listed}");
    town.run("queue pause b").ok();
    assert!(town.run("queue list").ok().ends_with("\tpaused\n"));
    assert!(town.run("queue show b").ok().contains("state\tpaused\n"));
    for command in ["list --prefix b", "show b"] {
        let shown = town.run(&format!("queue {command} --json")).json();
        assert_eq!(shown[0]["paused"], true, "{command}");
    }
    town.run("queue resume b").ok();
    let listed = town.run("queue list --prefix b --json").json();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["counts"]["ready"], 1);

    let shown = &town.run("queue show a.fifo --json").json()[0];
    assert_eq!(shown["settings"]["lease_ms"], 60_000);
    assert_eq!(shown["settings"]["retention_ms"], 86_400_000);
    assert_eq!(shown["keyed"], true);

    // The same again is no conflict, something else under the same name is.
    town.run("queue create a.fifo --lease 1m --delay 0s --retention 1d")
        .ok();
    let error = town.run("queue create a.fifo --lease 2m").fails_with(4);
    assert!(
        error.contains("queue a.fifo exists with --lease 1m, not"),
        "{error}"
    );
    // What is not named may be as it is.
    town.run("queue create a.fifo --retention 1d").ok();
    town.run("queue create a.fifo").ok();

    // Nobody can answer the question here.
    let error = town.run("queue purge b").fails_with(2);
    assert!(
        error.contains("b holds 1 message (1 ready, 0 in flight, 0 delayed)"),
        "{error}"
    );
    assert_eq!(town.counts("b")["ready"], 1);
    let done = town.run("queue purge b --yes");
    assert!(done.stderr.contains("holds 1 message "), "{done:?}");
    assert_eq!(town.counts("b")["ready"], 0);
    // Again at once: the wait of 60 s between two purges is a rule of the SQS API alone.
    town.run("send b x").ok();
    let done = town.run("queue purge b --yes");
    assert!(done.stderr.ends_with("\npurged 1 message\n"), "{done:?}");
    town.run("queue purge none --yes").fails_with(3);

    town.run("queue delete b --yes").ok();
    let error = town.run("queue show b").fails_with(3);
    assert!(error.contains("there is no queue \"b\""), "{error}");
    town.run("queue delete b --yes").fails_with(3);
    town.run("queue delete b --yes --if-exists").ok();
    let error = town.run("send b x").fails_with(3);
    assert!(error.contains("say --create"), "{error}");
}

#[test]
fn a_deduplication_scope_that_does_not_hold_yet_is_shown() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    let says = "sends follow the former one for another";
    assert!(!town.run("queue show q.fifo").ok().contains(says));
    town.run("queue set q.fifo --dedup-scope key").ok();
    assert!(town.run("queue show q.fifo").ok().contains(says));
    let shown = &town.run("queue show q.fifo --json").json()[0];
    let left = shown["settings"]["dedup_scope_pending_ms"]
        .as_u64()
        .unwrap();
    assert!((1..=60_000).contains(&left), "{shown}");
    // Taken back, it holds at once.
    town.run("queue set q.fifo --dedup-scope queue").ok();
    assert!(!town.run("queue show q.fifo").ok().contains(says));
}

/// The times of `queue create` and `queue set` follow one rule.
#[test]
fn a_queue_is_created_with_what_it_can_be_set_to() {
    let town = Town::new();
    town.run("queue create dead").ok();
    town.run(
        "queue create q --lease 500ms --delay 1h --dead-letter dead --attempts-max 3 --tag a=b",
    )
    .ok();
    let queue = &town.run("queue show q --json").json()[0];
    let settings = &queue["settings"];
    assert_eq!(settings["lease_ms"], 500);
    assert_eq!(settings["delay_ms"], 3_600_000);
    assert_eq!(
        json!([settings["dead_letter"], settings["attempts_max"]]),
        json!(["dead", 3])
    );
    assert_eq!(queue["tags"], json!({"a": "b"}));
    let error = town
        .run("queue create other --dead-letter none-such")
        .fails_with(1);
    assert!(
        error.contains("dead-letter queue none-such does not exist"),
        "{error}"
    );
}

/// In words of this program, with what is allowed; nothing is done.
#[test]
fn what_a_newcomer_mistypes_is_explained() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("queue create q.fifo").ok();
    let name =
        "is no queue name: write 1 to 80 letters, digits, '-' and '_', with .fifo at the end";
    for (arguments, code, says) in [
        (&["queue", "create", "bad name!"][..], 2, name),
        (&["receive", ""], 2, name),
        (&["send", "ü", "x"], 2, name),
        (
            &["queue", "create", "a.b"],
            1,
            "\"a.b\" is not 1 to 80 letters, digits, '-' and '_'",
        ),
        (
            &["send", "q.fifo", "-k", "", "x"],
            1,
            "a key must have 1 to 1024 bytes, this one is empty",
        ),
        (&["send", "q", "-g", "a\tb", "x"], 1, "may not contain"),
        (
            &["ack", "q", "zzz"],
            4,
            "it is no receipt that this server gave out for this queue",
        ),
        (
            &["nack", "q", "zzz"],
            4,
            "the message could not be put back: it is no receipt",
        ),
        (&["queue", "pause", "none"], 3, "`lockgate queue list`"),
        (&["key", "park", "q.fifo", ""], 2, "KEY"),
    ] {
        let done: Done = town
            .sandbox
            .command("")
            .args(arguments)
            .output()
            .unwrap()
            .into();
        let error = done.fails_with(code);
        assert!(error.contains(says), "{arguments:?}: {error}");
        for words in ["MissingParameter", "MessageGroupId", "QueueName"] {
            assert!(!error.contains(words), "{arguments:?}: {error}");
        }
    }
}

/// Nobody knows what the reader of a pipe has taken.
#[test]
fn ack_into_a_pipe_is_refused_and_nothing_is_lost() {
    let town = Town::new();
    town.send_lines("q --create", &"{\"body\":1}\n".repeat(10))
        .ok();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (pipe, nothing) = (Stdio::piped(), Stdio::null());
    for sink in [
        pipe,
        nothing,
        Stdio::from(std::os::fd::OwnedFd::from(socket)),
    ] {
        for options in ["", "--follow"] {
            let child = town
                .sandbox
                .command(&format!("receive q --ack {options}"))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            let done: Done = child.unwrap().wait_with_output().unwrap().into();
            let error = done.fails_with(2);
            assert!(error.contains("receive q --exec COMMAND"), "{error}");
        }
        let done: Done = town
            .sandbox
            .command("receive q --ack")
            .stdout(sink)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap()
            .into();
        done.fails_with(2);
    }
    assert_eq!(
        town.counts("q"),
        json!({"ready": 10, "in_flight": 0, "delayed": 0})
    );
}

/// `receive | head -1`: what was not printed is not held, and nothing is reported as failed.
#[test]
fn a_reader_that_goes_away_is_no_failure_and_costs_no_message() {
    let town = Town::new();
    // Larger than a pipe's buffer, so that the writer notices.
    let body = "x".repeat(60_000);
    let lines: String = (0..10)
        .map(|_| format!("{{\"body\":\"{body}\"}}\n"))
        .collect();
    town.send_lines("q --create", &lines).ok();
    let mut child = town
        .sandbox
        .command("receive q")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    drop(reader);
    let done: Done = child.wait_with_output().unwrap().into();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");

    let counts = town.counts("q");
    let left = counts["ready"].as_u64().unwrap();
    // One was read whole, and a pipe holds the bytes of at most one or two more.
    assert!((6..=9).contains(&left), "{counts}");
    let untouched = town.run("receive q --max 1").json();
    assert_eq!(untouched[0]["attempt"], 1);
    assert_eq!(town.run("config show").code, Some(0));
}

/// An answer may be on its way when the signal comes.
#[test]
fn an_interrupted_receive_leaves_nothing_leased_that_was_not_printed() {
    let town = Town::new();
    let lines = "{\"body\":1}\n".repeat(1000);
    town.run("queue create q --lease 1h").ok();
    town.send_lines("q", &lines).ok();
    let mut printed = 0;
    for _ in 0..15 {
        let mut child = town
            .sandbox
            .command("receive q --max 1000")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        printed += usize::from(!first.is_empty()) + reader.lines().count();
        child.wait().unwrap();
        // What the server could not deliver it gives back in its own time.
        let given_back = (0..1000).any(|_| town.counts("q")["in_flight"] == printed);
        assert!(given_back, "{printed} printed, {}", town.counts("q"));
    }
}

/// `receive | sleep 1000`: the reader is there, and does not read.
#[test]
fn a_signal_ends_a_receive_that_nobody_reads() {
    let town = Town::new();
    let body = "x".repeat(60_000);
    let lines = format!("{{\"body\":\"{body}\"}}\n").repeat(10);
    town.run("queue create q --lease 1h").ok();
    for options in ["", "--follow", "--nack"] {
        town.send_lines("q", &lines).ok();
        let mut child = town
            .sandbox
            .command(&format!("receive q {options}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let taken = |most: u64| town.counts("q")["in_flight"].as_u64().unwrap() <= most;
        // It prints.
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        crate::support::signal(&child, rustix::process::Signal::INT);
        // A pipe holds the bytes of one, and what is printed stays leased.
        let ended = (0..100).any(|_| child.try_wait().unwrap().is_some() & taken(1));
        let _ = child.kill();
        assert!(ended, "{options}: {}", town.counts("q"));
        assert_eq!(child.wait().unwrap().code(), Some(130), "{options}");
        town.run("queue purge q --yes").ok();
    }
}

/// As above, of a command that only prints what a server answered.
#[test]
fn a_signal_ends_a_peek_that_nobody_reads() {
    let town = Town::new();
    let body = "x".repeat(60_000);
    let lines = format!("{{\"body\":\"{body}\"}}\n").repeat(10);
    town.send_lines("q --create", &lines).ok();
    let mut child = town
        .sandbox
        .command("peek q --json")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It prints, and no pipe has room for all of it.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    crate::support::signal(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// A line that somebody types is sent at once, not when ten are there.
#[test]
fn a_line_does_not_wait_for_others() {
    let town = Town::new();
    town.run("queue create q").ok();
    let mut child = town
        .sandbox
        .command("send q")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for body in ["\"one\"", "2"] {
        writeln!(stdin, "{{\"body\":{body}}}").unwrap();
        let received = town.run("receive q --wait 20s --ack").json();
        assert_eq!(bodies(&received), [body.trim_matches('"')]);
    }
    drop(stdin);
    let done: Done = child.wait_with_output().unwrap().into();
    assert_eq!(done.ok(), "sent 2 messages to q\n");
}

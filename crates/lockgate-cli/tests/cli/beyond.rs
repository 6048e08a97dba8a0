//! What goes beyond SQS, from the command line: messages that are held for longer, called back or
//! moved in time, transactions, and the tags that switch extensions on.

use serde_json::{Value, json};

use crate::{
    messages::Town,
    process::Wire,
    support::{Sandbox, Server},
};

/// Sends a message and receives it; its receipt.
fn lease(town: &Town, queue: &str, send: &str) -> String {
    town.run(&format!("send {queue} {send}")).ok();
    let receive = format!("receive {queue} --wait 5s --lease 30s");
    let received = town.run(&receive).json();
    received[0]["receipt"].as_str().unwrap().to_owned()
}

#[test]
fn a_lease_can_be_made_longer_while_it_lasts() {
    let town = Town::new();
    town.run("queue create orders.fifo").ok();
    let receipt = lease(&town, "orders.fifo", "--key k hello");
    let extend = format!("extend orders.fifo --lease 2h {receipt}");
    town.run(&extend).ok();
    let key = town
        .run("key explain orders.fifo k --json")
        .json()
        .remove(0);
    assert!(key["remaining_ms"].as_u64() > Some(3_600_000), "{key}");
    town.run(&format!("ack orders.fifo {receipt}")).ok();
    let late = town.run(&extend).fails_with(4);
    assert!(
        late.contains("could not be held for longer: the message is gone"),
        "{late}"
    );
}

#[test]
fn a_message_that_waits_can_be_moved_in_time_and_called_back() {
    let town = Town::new();
    town.run("queue create mail").ok();
    let sent = town.run("send mail --delay 10m --json x").json();
    let id = sent[0]["id"].as_str().unwrap();
    let counts = || {
        let counts = town.counts("mail");
        ["ready", "in_flight", "delayed"].map(|state| counts[state].as_u64().unwrap())
    };
    assert_eq!(counts(), [0, 0, 1]);
    let reschedule = |when: &str| town.run(&format!("reschedule mail {when} {id}"));
    reschedule("--delay 0s").ok();
    assert_eq!(counts(), [1, 0, 0]);
    let due = reschedule("--at 2100-01-01T00:00:00Z --json").json();
    assert_eq!(
        due,
        [json!({"id": id, "due_at": "2100-01-01T00:00:00.000Z"})]
    );
    assert_eq!(counts(), [0, 0, 1]);
    let cancel = |ids: &str| town.run(&format!("cancel mail {ids}"));
    let other = town.run("send mail --json y").json();
    let other = other[0]["id"].as_str().unwrap();
    // One that cannot be cancelled does not keep the others.
    town.run("receive mail --wait 5s").ok();
    let some = cancel(&format!("{other} {id}"));
    assert!(some.stderr.contains("cancelled 1 message\n"), "{some:?}");
    let error = some.fails_with(4);
    assert!(error.contains("is in flight"), "{error}");
    assert_eq!(counts(), [0, 1, 0]);
    cancel(id).fails_with(3);
    reschedule("--delay 1s").fails_with(3);
    reschedule("").fails_with(2);
    let wrong = reschedule("--at tomorrow").fails_with(2);
    assert!(
        wrong.contains("\"tomorrow\" is no instant up to 9999-12-30T22:00:00Z, such as 2027"),
        "{wrong}"
    );
}

#[test]
fn settles_and_sends_happen_together_or_not_at_all() {
    let town = Town::new();
    for queue in ["orders", "mail", "ship.fifo"] {
        town.run(&format!("queue create {queue}")).ok();
    }
    let receipt = lease(&town, "orders", "one");
    let both = format!("transact --ack {receipt} mail shipped");
    // A send that is refused: the lease stays.
    town.run(&format!("transact --ack {receipt} none x"))
        .fails_with(3);
    let refused = town.run(&format!("transact --ack {receipt} ship.fifo x"));
    let refused = refused.fails_with(1);
    assert!(refused.contains("key"), "{refused}");
    assert_eq!(town.counts("orders")["in_flight"], 1);
    let sent = town.run(&format!("{both} --json")).json();
    assert_eq!(
        json!([sent[0]["sequence"], sent[0]["duplicate"]]),
        json!([1, false])
    );
    assert_eq!(town.counts("orders")["in_flight"], 0);
    // A lease that has ended: nothing is sent.
    let again = town.run(&both).fails_with(4);
    assert!(again.contains("is stale (the message is gone)"), "{again}");
    assert_eq!(town.counts("mail")["ready"], 1);

    let receipt = lease(&town, "orders", "two");
    let options = "--key user-42 --unique-id u1 --delay 0s";
    town.run(&format!(
        "transact --ack {receipt} ship.fifo {options} parcel"
    ))
    .ok();
    let receipt = lease(&town, "orders", "three");
    let step = json!({
        "settles": [{"receipt": receipt, "action": "nack"}],
        "sends": [
            {"queue": "mail", "message": {"body": "a"}},
            {"queue": "ship.fifo", "message": {"body": "b", "key": "user-42", "unique_id": "u1"}},
        ],
    });
    let step = step.to_string();
    let done = town
        .sandbox
        .run_with_input("transact --file - --json", &step);
    assert!(
        done.stderr.contains("settled 1 message and sent 2\n"),
        "{done:?}"
    );
    let duplicates: Vec<Value> = done
        .json()
        .iter()
        .map(|sent| sent["duplicate"].clone())
        .collect();
    assert_eq!(duplicates, [false, true]);
    assert_eq!(town.counts("orders")["ready"], 1, "it was put back");

    // Publishes are a part of it, too.
    for line in [
        "exchange create events --kind fanout",
        "exchange bind events --queue mail",
    ] {
        town.run(line).ok();
    }
    let message = json!({"body": "c"});
    let step = json!({"publishes": [{"exchange": "events", "message": message}]}).to_string();
    let run = |json: &str| {
        let line = format!("transact --file -{json}");
        town.sandbox.run_with_input(&line, &step)
    };
    let done = run("");
    assert!(
        done.stderr
            .contains("settled 0 messages, sent 0 and published 1\n"),
        "{done:?}"
    );
    assert_eq!(run(" --json").json()[0]["copies"], 1);

    for (arguments, code, says) in [
        ("transact mail x", 2, "--ack"),
        ("transact --ack a --key k", 2, "BODY"),
        ("transact --ack a body", 2, "<BODY>"),
        ("transact --ack a --file f", 2, "cannot be used with"),
        ("transact --file none.json", 3, "none.json"),
    ] {
        let error = town.run(arguments).fails_with(code);
        assert!(error.contains(says), "{arguments}: {error}");
    }
    town.sandbox.write("step.json", "{");
    let error = town.run("transact --file step.json").fails_with(2);
    assert!(error.contains("step.json: EOF"), "{error}");
}

/// The admin API sets tags too, and they mean the same: `lockgate queue set` speaks it.
#[test]
fn tags_set_through_the_admin_api_switch_extensions_on_and_off() {
    let town = Town::new();
    town.run("queue create mail").ok();
    // The CLI sends over the API, which takes any delay; SQS takes 15 minutes unless a tag allows more.
    let send = || {
        let queue = "http://localhost/000000000000/mail";
        let message = json!({"QueueUrl": queue, "MessageBody": "x", "DelaySeconds": 1200});
        Wire::to(&town.server.url).sqs("SendMessage", &message)
    };
    let (status, refused) = send();
    assert!(status == 400 && refused.contains("900"), "{refused}");
    town.run("queue set mail --tag lockgate:delay-max=30d --tag team=ads")
        .ok();
    assert_eq!(send().0, 200);
    town.run("queue set mail --untag lockgate:delay-max").ok();
    assert_eq!(send().0, 400);
    town.run("send mail --delay 20m x").ok();

    town.run("queue create orders.fifo").ok();
    town.run(
        "queue set orders.fifo --tag lockgate:key-policy=park --tag lockgate:attempts-max=2 \
         --tag lockgate:quota-messages=7",
    )
    .ok();
    let settings = || {
        let queue = town.run("queue show orders.fifo --json").json();
        ["key_policy", "attempts_max", "quota_messages"]
            .map(|name| queue[0]["settings"][name].clone())
    };
    let [policy, after, quota] = settings();
    assert_eq!(json!([policy, after]), json!(["park", 2]));
    assert_eq!(quota, 7);
    // Without the tag, as before it.
    town.run("queue set orders.fifo --untag lockgate:quota-messages")
        .ok();
    assert_eq!(settings()[2], Value::Null);

    for (tag, says) in [
        ("lockgate:delay-max=soon", "lockgate:delay-max"),
        ("lockgate:nope=1", "lockgate:nope"),
        ("lockgate:dedup-window=1h", "lockgate:dedup-window"),
    ] {
        let error = town.run(&format!("queue set mail --tag {tag}"));
        let error = error.fails_with(1);
        assert!(error.contains(says), "{tag}: {error}");
    }
}

#[test]
fn tags_of_declared_queues_switch_extensions_on() {
    let sandbox = Sandbox::new();
    let file = "[[queue]]\nname = \"orders.fifo\"\n[queue.tags]\nteam = \"shop\"\n\
                \"lockgate:fifo-delay\" = \"true\"\n\"lockgate:delay-max\" = \"30d\"\n\
                \"lockgate:batch-max\" = \"100\"\n\"lockgate:quota-messages\" = \"7\"\n";
    sandbox.write("queues.toml", file);
    sandbox.write("lockgate.toml", "queues = \"queues.toml\"\n");
    let server = Server::start(&sandbox);
    let endpoint = format!("--endpoint {}", server.url);
    let send = format!("send {endpoint} orders.fifo --key k --delay 20m x");
    sandbox.run(&send).ok();
    let counts = sandbox
        .run(&format!("queue show {endpoint} orders.fifo --json"))
        .json();
    assert_eq!(counts[0]["counts"]["delayed"], 1);
    assert_eq!(counts[0]["settings"]["quota_messages"], 7);

    let check = |tag: &str| {
        sandbox.write("queues.toml", &format!("{file}{tag}\n"));
        sandbox.run("config check").fails_with(2)
    };
    let error = check("\"lockgate:batch-maximum\" = \"100\"");
    assert!(
        error.contains("queues.toml:3: queue \"orders.fifo\": ")
            && error.contains("lockgate:batch-maximum"),
        "{error}"
    );
    let error = check("\"lockgate:attempts-max\" = \"0\"");
    assert!(error.contains("lockgate:attempts-max"), "{error}");
}

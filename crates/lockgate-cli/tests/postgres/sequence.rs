//! `lockgate sequence`, in processes that are killed and frozen.

use std::collections::{BTreeSet, HashMap};

use rustix::process::Signal;
use serde_json::json;
use tokio_postgres::{Client, NoTls};

use crate::{
    sequencer::Sequencer,
    support::{Done, Sandbox, Server},
};

/// A server in a folder, and a ledger that no other test has.
struct Town {
    sandbox: Sandbox,
    server: Server,
    ledger: String,
}

impl Town {
    fn new(ledger: &str) -> Self {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox);
        let ledger = format!("{ledger}_{}", std::process::id());
        Self {
            sandbox,
            server,
            ledger,
        }
    }

    fn run(&self, arguments: &str) -> Done {
        let url = &self.server.url;
        self.sandbox.run(&format!("{arguments} --endpoint {url}"))
    }

    /// Sends a message for each number, of seven keys; those that can be divided by ten are transfers, and each comes twice.
    fn send(&self, numbers: std::ops::Range<u64>) {
        let mut lines = String::new();
        for number in numbers {
            let mut line = json!({"body": number.to_string(), "key": format!("k{}", number % 7)});
            let mut copies = 1;
            if number.is_multiple_of(10) {
                line["headers"] = json!({"unique_id": format!("transfer-{number}")});
                copies = 2;
            }
            for _ in 0..copies {
                lines.push_str(&format!("{line}\n"));
            }
        }
        let arguments = format!("send orders.fifo --endpoint {}", self.server.url);
        self.sandbox.run_with_input(&arguments, &lines).ok();
    }

    fn command(&self, arguments: &str) -> std::process::Command {
        let ledger = format!("{}?ledger={}", super::url(), self.ledger);
        let endpoint = &self.server.url;
        let mut command = self
            .sandbox
            .command(&format!("sequence --from orders.fifo {arguments}"));
        command.env("LOCKGATE_LEDGER", ledger);
        command.env("LOCKGATE_ENDPOINT", endpoint);
        command
    }

    /// A sequencer with short leases and small batches.
    fn sequence(&self, arguments: &str) -> Sequencer {
        let arguments = format!("--lease 1s --batch 10 --metrics 127.0.0.1:0 {arguments}");
        Sequencer::spawn(self.command(&arguments))
    }

    /// A run that ends by itself.
    fn ends(&self, arguments: &str) -> Done {
        let arguments = format!("--log-format text {arguments}");
        self.command(&arguments).output().unwrap().into()
    }

    /// The first column of the first row.
    fn sql(&self, sql: &str) -> i64 {
        self.ask(sql, async |client, sql| {
            client.query_one(sql, &[]).await.unwrap().get(0)
        })
    }

    fn execute(&self, sql: &str) {
        self.ask(sql, async |client, sql| {
            client.batch_execute(sql).await.unwrap();
        });
    }

    fn ask<T>(&self, sql: &str, ask: impl AsyncFnOnce(&Client, &str) -> T) -> T {
        let sql = sql.replace("{ledger}", &self.ledger);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let (client, connection) = tokio_postgres::connect(&super::url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            ask(&client, &sql).await
        })
    }
}

const SINKS: &str = "--create --hashed --to trades-1.fifo --to trades-2.fifo";

#[test]
fn whoever_is_killed_or_frozen_every_event_is_there_once_and_in_order() {
    let town = Town::new("killed");
    for queue in ["orders.fifo", "trades-1.fifo", "trades-2.fifo"] {
        town.run(&format!("queue create {queue}")).ok();
    }
    let mut first = town.sequence(&format!("--name first {SINKS}"));
    let epoch = first.event("active")["epoch"].as_u64().unwrap();
    let mut second = town.sequence(&format!("--name second {SINKS}"));
    assert_eq!(second.event("stands by")["leader"], "first");
    assert_eq!((first.figure("active{"), second.figure("active{")), (1, 0));
    let page = first.page();
    let types = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE lockgate_sequencer_"));
    let served: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    let rows = include_str!("../../../../docs/metrics.md").lines();
    let rows = rows.filter_map(|line| line.strip_prefix("| `lockgate_sequencer_"));
    let documented: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    assert_eq!(served, documented, "docs/metrics.md");

    town.send(0..300);
    first.wait_for_appended(20);
    first.signal(Signal::KILL);
    let next = second.event("active")["epoch"].as_u64().unwrap();
    assert!(next > epoch);

    let mut third = town.sequence(&format!("--name third {SINKS}"));
    assert_eq!(third.event("stands by")["leader"], "second");
    town.send(300..600);
    second.wait_for_appended(20);
    second.signal(Signal::STOP);
    third.event("active");
    town.send(600..700);
    third.wait_for_appended(20);
    second.signal(Signal::CONT);
    // It may be told by the ledger before it looks at its clock.
    let reason = second.event("no longer active")["reason"].clone();
    assert!(reason == "lease_lost" || reason == "error", "{reason}");
    assert_eq!(second.event("stands by")["leader"], "third");

    // A planned switch, while there is work.
    town.send(700..900);
    town.run("leaders resign sequence/orders.fifo --even-if-alone")
        .ok();
    assert_eq!(third.event("no longer active")["reason"], "asked");
    second.event("active");
    third.event("stands by");
    for process in [third, second] {
        process.signal(Signal::TERM);
        assert_eq!(process.code(), Some(0));
    }
    town.send(900..1000);
    let last = town.ends(&format!("--lease 1s --until-empty --json {SINKS}"));
    let figures = last.json().remove(0);
    assert!(figures["appended"].as_u64() >= Some(100), "{figures}");
    assert_eq!(figures["rejected"], 0, "{figures}");

    // Numbers that can be divided by ten came twice.
    let events = "SELECT count(*) FROM {ledger}.events";
    assert_eq!(town.sql(events), 1000);
    assert_eq!(town.sql("SELECT sequence_id FROM {ledger}.head"), 1000);
    let different = "SELECT count(DISTINCT payload) FROM {ledger}.events";
    assert_eq!(town.sql(different), 1000);
    for queue in ["trades-1.fifo", "trades-2.fifo"] {
        let received = town.run(&format!("receive {queue} --max 2000 --ack --json"));
        let received = received.json();
        let (mut place, mut last) = (0, HashMap::new());
        for message in &received {
            let header = |name: &str| {
                let value = &message["headers"][name]["value"];
                value.as_str().unwrap().parse::<u64>().unwrap()
            };
            assert_eq!(header("previous_id"), place, "{queue}: {message}");
            place += 1;
            assert_eq!(header("sequence_id"), place, "{queue}: {message}");
            let number: u64 = message["body"].as_str().unwrap().parse().unwrap();
            // Messages of a key stay in their order.
            assert!(last.insert(number % 7, number) < Some(number), "{message}");
        }
        assert_eq!(place, 1000, "{queue}");
        let reader =
            format!("SELECT sequence_id FROM {{ledger}}.readers WHERE reader = 'queue/{queue}'");
        assert_eq!(town.sql(&reader), 1000);
    }
}

#[test]
fn what_can_never_be_an_event_is_kept_and_holds_up_no_other() {
    let town = Town::new("poison");
    town.run("queue create orders.fifo").ok();
    town.run("queue create trades-1.fifo --message-bytes-max 4KiB")
        .ok();
    let id = "i".repeat(2_000);
    for (key, header, body) in [
        ("a", String::new(), "x".repeat(5_000)),
        ("b", format!("--header unique_id={id}"), "b".to_owned()),
        ("c", String::new(), "c".to_owned()),
    ] {
        town.run(&format!("send orders.fifo --key {key} {header} {body}"))
            .ok();
    }
    let arguments = "--create --until-empty --to trades-1.fifo";
    let told = town.ends(arguments).fails_with(1);
    assert!(told.contains("2 messages rejected"), "{told}");
    assert!(told.contains("no dead-letter queue"), "{told}");
    assert!(
        told.contains("the sink queue/trades-1.fifo cannot carry it"),
        "{told}"
    );
    assert!(told.contains("its header unique_id is"), "{told}");
    assert_eq!(town.sql("SELECT sequence_id FROM {ledger}.head"), 1);
    let counts = || town.run("queue show orders.fifo --json").json().remove(0)["counts"].clone();
    assert_eq!(counts()["in_flight"], 2);

    // With a dead-letter queue, they go there.
    town.run("queue create dead.fifo").ok();
    town.run("queue set orders.fifo --dead-letter dead.fifo")
        .ok();
    town.run("send orders.fifo --key d --header unique_id= d")
        .fails_with(1);
    town.run(&format!("send orders.fifo --key d {}", "x".repeat(5_000)))
        .ok();
    let mut sequencer = town.sequence("--create --to trades-1.fifo");
    sequencer.event("a message can never be an event");
    let dead = town
        .run("receive dead.fifo --max 10 --wait 20s --json")
        .json();
    assert_eq!(dead.len(), 1, "{dead:?}");
}

#[test]
fn what_lasts_ends_it_with_the_reason() {
    let town = Town::new("refused");
    let fails = |arguments: &str, code, says: &str| {
        let told = town.ends(arguments).fails_with(code);
        assert!(told.contains(says), "{arguments}: {told}");
    };
    fails("--until-empty", 3, "orders.fifo");
    town.run("queue create orders.fifo").ok();
    town.run("queue create loose").ok();
    town.run("queue create trades-1.fifo").ok();
    fails("--until-empty", 3, "to make it: --create");
    fails("--create --to loose", 2, "keeps no order");
    fails("--create --to none.fifo", 3, "none.fifo");
    fails("--to orders.fifo", 2, "for ever");
    fails("--to trades-1.fifo --to trades-1.fifo", 2, "given twice");
    fails("--allow-remote", 2, "--metrics");
    let away = format!("127.0.0.1:{}", away());
    fails(&format!("--lease 1s --endpoint http://{away}"), 122, &away);
    fails(
        &format!("--lease 1s --ledger postgres://u:secret@{away}/d"),
        122,
        "",
    );
    fails("--ledger orders", 3, "ledger create orders");
    fails("--ledger ftp://orders", 2, "postgres://");
    town.ends("--create --until-empty").ok();
    fails("--create --hashed", 4, "without hashes");
    town.ends("--until-empty --to trades-1.fifo").ok();

    // A crash can take acknowledgements of this queue back, and the ledger is elsewhere.
    town.run("queue set orders.fifo --level process").ok();
    let told = town.ends("--until-empty").stderr;
    assert!(told.contains("below disk"), "{told}");
    town.run("queue set orders.fifo --level disk").ok();

    // Another store has elected before.
    town.sql("UPDATE {ledger}.head SET epoch = 9000000000000000000 RETURNING sequence_id");
    fails("--until-empty", 4, "--via");
    town.sql("UPDATE {ledger}.head SET epoch = 1, is_sealed = true RETURNING sequence_id");
    town.run("send orders.fifo --key k x").ok();
    fails("--until-empty", 4, "sealed");
    // The queue goes while it is at work.
    town.sql("UPDATE {ledger}.head SET is_sealed = false RETURNING sequence_id");
    let mut sequencer = town.sequence("--election another");
    sequencer.event("active");
    town.run("queue delete orders.fifo --yes").ok();
    assert_eq!(sequencer.event("ended")["rejected"], 0);
    assert_eq!(sequencer.event("ended")["exit_code"], 3);
    assert_eq!(sequencer.code(), Some(3));

    // The ledger goes, and is not made again with numbers from 1, though --create is said.
    town.run("queue create orders.fifo").ok();
    let mut sequencer = town.sequence("--election third --create");
    sequencer.event("active");
    town.execute("DROP SCHEMA {ledger} CASCADE");
    town.run("send orders.fifo --key k x").ok();
    assert_eq!(sequencer.event("ended")["appended"], 0);
    assert_eq!(sequencer.event("ended")["exit_code"], 3);
    assert_eq!(sequencer.code(), Some(3));
}

/// A port at which nobody listens.
fn away() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

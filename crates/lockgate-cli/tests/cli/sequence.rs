//! `lockgate sequence` over a ledger of a server: what ends it, and what does not.

use rustix::process::Signal;

use crate::{
    sequencer::Sequencer,
    support::{Done, Sandbox, Server},
};

/// A server with a queue of orders, one of trades, and a ledger.
struct Town {
    sandbox: Sandbox,
    server: Server,
}

impl Town {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let server = Server::start(&sandbox);
        let town = Self { sandbox, server };
        for queue in ["orders.fifo", "trades.fifo"] {
            town.run(&format!("queue create {queue}")).ok();
        }
        town.run("ledger create orders").ok();
        town
    }

    fn run(&self, arguments: &str) -> Done {
        let url = &self.server.url;
        self.sandbox.run(&format!("{arguments} --endpoint {url}"))
    }

    fn order(&self, body: u32) {
        self.run(&format!("send orders.fifo --key k {body}")).ok();
    }

    fn arguments(&self, more: &str) -> String {
        let url = &self.server.url;
        format!("sequence --from orders.fifo --ledger orders --lease 2s --endpoint {url} {more}")
    }

    fn sequence(&self, more: &str) -> Sequencer {
        let arguments = self.arguments(&format!("--metrics 127.0.0.1:0 {more}"));
        Sequencer::spawn(self.sandbox.command(&arguments))
    }

    /// A run that ends by itself, with that code.
    fn ends_with(&self, code: i32, more: &str) -> String {
        let arguments = self.arguments(&format!("--log-format text {more}"));
        self.sandbox.run(&arguments).fails_with(code)
    }
}

#[test]
fn a_sink_whose_events_are_trimmed_ends_it_and_tells_how_to_go_on() {
    let town = Town::new();
    for body in 0..5 {
        town.order(body);
    }
    town.sandbox.run(&town.arguments("--until-empty")).ok();
    town.run("ledger trim orders --before 4 --yes").ok();
    let told = town.ends_with(4, "--until-empty --to trades.fifo");
    let move_it = "ledger readers orders --move queue/trades.fifo --to 3";
    assert!(told.contains("queue/trades.fifo"), "{told}");
    assert!(
        told.contains(&move_it.replace("orders", "LEDGER")),
        "{told}"
    );

    town.run(move_it).ok();
    let more = "--until-empty --to trades.fifo";
    town.sandbox.run(&town.arguments(more)).ok();
    let received = town.run("receive trades.fifo --max 10 --ack --json").json();
    let bodies = received.iter().map(|message| message["body"].clone());
    assert_eq!(bodies.collect::<Vec<_>>(), ["3", "4"]);
}

#[test]
fn a_sink_that_is_deleted_ends_it() {
    let town = Town::new();
    let mut sequencer = town.sequence("--to trades.fifo");
    sequencer.event("active");
    town.run("queue delete trades.fifo --yes").ok();
    town.order(1);
    assert_eq!(sequencer.event("ended")["appended"], 1);
    assert_eq!(sequencer.event("ended")["exit_code"], 3);
    assert_eq!(sequencer.code(), Some(3));
}

#[test]
fn whoever_is_deposed_once_stands_again() {
    let town = Town::new();
    let mut sequencer = town.sequence("");
    let epoch = sequencer.event("active")["epoch"].as_u64().unwrap();
    // Somebody writes once under a later epoch.
    let later = format!("ledger append orders --epoch {} x", epoch + 1);
    town.run(&later).ok();
    town.order(1);
    assert_eq!(sequencer.event("no longer active")["reason"], "error");
    let next = sequencer.event("active")["epoch"].as_u64().unwrap();
    assert!(next > epoch + 1, "{next}");
    sequencer.wait_for_appended(1);
    sequencer.signal(Signal::TERM);
    assert_eq!(sequencer.code(), Some(0));
}

#[test]
fn whoever_is_deposed_again_and_again_ends_with_the_reason() {
    let town = Town::new();
    town.run(&format!("ledger append orders --epoch {} x", u64::MAX / 2))
        .ok();
    let told = town.ends_with(4, "--until-empty");
    assert!(told.contains("--via and --election"), "{told}");
}

#[test]
fn a_sequencer_is_ready_while_its_ledger_answers() {
    let town = Town::new();
    let mut sequencer = town.sequence("");
    sequencer.event("active");
    let page = sequencer.get("/readyz");
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    town.server.signal(Signal::KILL);
    town.server.wait_unread();
    let page = sequencer.get("/readyz");
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
}

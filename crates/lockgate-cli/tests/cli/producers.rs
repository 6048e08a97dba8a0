//! `lockgate producer`, and a producer that sends everything again after kills of the server.

use serde_json::{Value, json};

use crate::{messages::Town, process::Wire, support::Server};

const POST: &str = "POST /api/v1/queues/clicks/messages HTTP/1.1\r\nContent-Type: application/json";

fn open(town: &Town, producer: &str) -> Value {
    let target = format!(
        "POST /api/v1/queues/clicks/producers/{producer}/open HTTP/1.1\r\nContent-Type: application/json"
    );
    let (status, answer) = Wire::to(&town.server.url).ask(&target, "");
    assert_eq!(status, 200, "{answer}");
    let opened: Value = serde_json::from_str(&answer).unwrap();
    opened["incarnation"].clone()
}

fn record(producer: &str, incarnation: &Value, number: usize) -> String {
    let message = json!({"body": number.to_string(), "producer": {
        "name": producer, "incarnation": incarnation, "opening": "00c0ffee12345678",
        "lane": 0, "number": number,
    }});
    json!({"messages": [message]}).to_string()
}

/// Records go out in order, and after each kill the producer sends all of them again, as it knows of none of their fates.
#[test]
fn records_that_are_sent_again_after_kills_are_there_once() {
    const RECORDS: usize = 60;
    let mut town = Town::new();
    town.run("queue create clicks").ok();
    for answered in [0, 7, 23, RECORDS] {
        let incarnation = open(&town, "p");
        let mut wire = Wire::to(&town.server.url);
        for number in 1..=RECORDS {
            wire.write(POST, &record("p", &incarnation, number));
        }
        for number in 1..=answered {
            let (status, answer) = wire.answer();
            assert_eq!(status, 200, "{number}: {answer}");
            assert!(answer.contains(r#""outcome":"sent""#), "{answer}");
        }
        town.server.signal(rustix::process::Signal::KILL);
        let address = town.server.url.trim_start_matches("http://").to_owned();
        town.server = Server::restart(town.server, &town.sandbox, &address);
    }
    let received = town.drain("clicks");
    let mut numbers: Vec<usize> = received
        .iter()
        .map(|message| message["body"].as_str().unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=RECORDS).collect::<Vec<_>>());
}

#[test]
fn producers_are_listed_and_forgotten() {
    let town = Town::new();
    town.run("queue create clicks --producer-age 7d --producers-max 10")
        .ok();
    assert_eq!(town.run("producer list clicks --json").ok(), "");
    let incarnation = open(&town, "a%2Fb");
    open(&town, "c");
    let send = |number| {
        let body = record("a/b", &incarnation, number);
        let (_, answer) = Wire::to(&town.server.url).ask(POST, &body);
        serde_json::from_str::<Value>(&answer).unwrap()["results"][0].clone()
    };
    assert_eq!(send(1)["duplicate"], false);
    assert_eq!(send(1), json!({"outcome": "sent", "duplicate": true}));

    let listed = town.run("producer list clicks --json").json();
    let shown: Vec<_> = listed
        .iter()
        .map(|it| (&it["name"], &it["openings"]))
        .collect();
    assert_eq!(
        shown,
        [(&json!("a/b"), &json!(1)), (&json!("c"), &json!(0))]
    );
    assert_eq!(listed[0]["incarnation"], incarnation);
    let one = town.run("producer list clicks --max 1 --json").json();
    assert_eq!(one.len(), 1);
    let table = town.run("producer list clicks").ok();
    assert!(
        table.contains("LAST USED") && table.contains("a/b"),
        "{table}"
    );
    let queue = town.run("queue show clicks").ok();
    for expected in [
        "producers",
        "producer openings",
        "sent before",
        "producer age",
        "7d",
    ] {
        assert!(queue.contains(expected), "{expected}: {queue}");
    }

    town.run("producer forget clicks a/b").ok();
    let missing = town.run("producer forget clicks a/b").fails_with(3);
    assert!(missing.contains("no producer a/b"), "{missing}");
    town.run("producer forget nowhere a/b").fails_with(3);
    town.run("producer list nowhere").fails_with(3);
    assert_eq!(send(1)["problem"]["code"], "producer_unknown");
    let json = town.run("producer forget clicks c --json").json();
    assert_eq!(json, [json!({"queue": "clicks", "name": "c"})]);
}

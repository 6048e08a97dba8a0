//! The errors of failed attempts, as those who look at dead letters see them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{messages::Town, support::Server};

fn killed(mut town: Town) -> Town {
    town.server.signal(Signal::KILL);
    let address = town.server.url.trim_start_matches("http://").to_owned();
    town.server = Server::restart(town.server, &town.sandbox, &address);
    town
}

/// Attempt and error of each.
fn failures(message: &Value) -> Vec<(u64, &str)> {
    let failures = message["failures"].as_array().unwrap().iter();
    failures
        .map(|one| {
            assert!(one["at"].as_str().unwrap().ends_with('Z'), "{one}");
            (
                one["attempt"].as_u64().unwrap(),
                one["error"].as_str().unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_dead_letter_shows_the_error_of_each_attempt_also_after_a_kill() {
    let mut town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo --dead-letter dead.fifo --attempts-max 3")
        .ok();
    town.run("send q.fifo --key k order").ok();

    let nack = |town: &Town, reason: &str| {
        let received = town.run("receive q.fifo --json").json();
        let receipt = received[0]["receipt"].as_str().unwrap();
        let mut command = town.sandbox.command("nack q.fifo");
        let done = command
            .args(["--reason", reason, receipt])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        received[0].clone()
    };
    let first = nack(&town, "no stock");
    assert_eq!(first["failures"], Value::Null);
    let failed = town
        .run("receive q.fifo --max 1 --retry-delay 0s --exec false")
        .stderr;
    assert!(failed.contains("comes again"), "{failed}");
    let shown = town.run("peek q.fifo --json").json();
    assert_eq!(failures(&shown[0])[0], (1, "no stock"));
    let by_exec = failures(&shown[0])[1].1.to_owned();
    assert!(by_exec.contains("exit"), "{by_exec}");
    let table = town.run("peek q.fifo").ok();
    assert!(
        table.contains("LAST ERROR") && table.contains(&by_exec),
        "{table}"
    );

    town = killed(town);
    let third = nack(&town, "the warehouse does not answer");
    assert_eq!(failures(&third), [(1, "no stock"), (2, &*by_exec)]);
    town.run("receive q.fifo --wait 0s --json");

    let all = [
        (1, "no stock"),
        (2, &*by_exec),
        (3, "the warehouse does not answer"),
    ];
    for _ in 0..2 {
        let letters = town.run("dlq list dead.fifo --json").json();
        assert_eq!(failures(&letters[0]), all);
        assert_eq!(letters[0]["failures_left_out"], Value::Null);
        assert_eq!(letters[0]["origin"]["attempts"], 3);
        town = killed(town);
    }
    let table = town.run("dlq list dead.fifo").ok();
    let why = "3 attempts, the last: the warehouse does not answer";
    assert!(table.contains(why), "{table}");

    // Back in its queue it still tells of them, and has all its attempts again.
    town.run("dlq redrive dead.fifo").ok();
    let again = nack(&town, "x");
    assert_eq!(
        (failures(&again), &again["attempt"]),
        (all.to_vec(), &json!(1))
    );
    let shown = town.run("peek q.fifo --json").json();
    assert_eq!(failures(&shown[0]).last(), Some(&(1, "x")));

    let long = format!("nack q.fifo --reason {} receipt", "x".repeat(1_025));
    let error = town.run(&long).fails_with(2);
    assert!(error.contains("may have 1024"), "{error}");
}

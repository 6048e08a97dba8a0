//! Limits on how often messages are leased, by flags and as their users see them.

use rustix::process::Signal;

use crate::{
    messages::{Town, bodies},
    support::{Done, Server},
};

fn limit(town: &Town, arguments: &str, limit: &str) -> Done {
    let mut command = town.sandbox.command(arguments);
    command.arg(limit).output().unwrap().into()
}

#[test]
fn a_limit_holds_keys_across_a_restart_and_says_so() {
    let mut town = Town::new();
    limit(&town, "queue create q.fifo --limit-rate", "1/h per key").ok();
    let shown = town.run("queue show q.fifo --json").json();
    assert_eq!(shown[0]["settings"]["limit_rate"], "1/h per key");
    for key in ["a", "a", "b"] {
        town.run(&format!("send q.fifo --key {key} {key}")).ok();
    }
    let first = town.run("receive q.fifo --max 10 --ack").json();
    assert_eq!(bodies(&first), ["a", "b"]);
    for restarted in [false, true] {
        if restarted {
            town.server.signal(Signal::KILL);
            let address = town.server.url.trim_start_matches("http://").to_owned();
            town.server = Server::restart(town.server, &town.sandbox, &address);
        }
        let done = town.run("receive q.fifo");
        assert!(
            done.stderr
                .contains("its only key with messages is held (1 held by a limit)"),
            "{done:?}"
        );
        let why = town.run("key explain q.fifo a").ok();
        assert!(
            why.contains("The key has reached its limit: limit_rate is 1/h per key"),
            "{why}"
        );
        assert!(why.contains("may be leased in"), "{why}");
        let counts = &town.run("queue show q.fifo --json").json()[0]["counts"];
        assert_eq!(
            (&counts["ready"], &counts["limited_keys"]),
            (&1.into(), &1.into())
        );
    }
    // What is owed is paid off by the new rate, which is soon.
    limit(&town, "queue set q.fifo --limit-rate", "1000/s per key").ok();
    assert_eq!(bodies(&town.drain("q.fifo")), ["a"]);
}

/// One that counts what is in flight, and one that counts from the last start.
#[test]
fn concurrency_and_gaps_hold_across_a_kill() {
    let mut town = Town::new();
    for (name, flag, value) in [
        ("conc.fifo", "--limit-concurrency", "1"),
        ("gap.fifo", "--limit-gap", "1h"),
        ("keys.fifo", "--limit-concurrency", "1 per key"),
        ("gaps.fifo", "--limit-gap", "1h per key"),
    ] {
        limit(&town, &format!("queue create {name} {flag}"), value).ok();
        for body in ["one", "two"] {
            town.run(&format!("send {name} --key a {body}")).ok();
        }
    }
    let mut first = Vec::new();
    for name in ["conc.fifo", "gap.fifo", "keys.fifo", "gaps.fifo"] {
        let received = town.run(&format!("receive {name} --lease 1h")).json();
        assert_eq!(bodies(&received), ["one"]);
        first.push(received[0]["receipt"].as_str().unwrap().to_owned());
    }
    for name in ["gap.fifo", "gaps.fifo"] {
        let receipt = &first[if name == "gap.fifo" { 1 } else { 3 }];
        town.run(&format!("ack {name} {receipt}")).ok();
    }
    // Another key than that in flight, so that only a limit of the queue holds it.
    town.run("send conc.fifo --key b three").ok();
    for restarted in [false, true] {
        if restarted {
            town.server.signal(Signal::KILL);
            let address = town.server.url.trim_start_matches("http://").to_owned();
            town.server = Server::restart(town.server, &town.sandbox, &address);
        }
        for (name, says) in [
            (
                "conc.fifo",
                "the limit_concurrency of conc.fifo holds its messages until a lease ends",
            ),
            (
                "gap.fifo",
                "the limit_gap of gap.fifo holds its messages for ",
            ),
            ("keys.fifo", "its only key with messages is held"),
            (
                "gaps.fifo",
                "its only key with messages is held (1 held by a limit)",
            ),
        ] {
            let done = town.run(&format!("receive {name}"));
            assert!(done.stderr.contains(says), "{done:?}");
        }
        for (name, says) in [
            ("conc.fifo", "limit concurrency, until a lease ends"),
            ("gap.fifo", "limit gap, for another "),
        ] {
            let shown = town.run(&format!("queue show {name}")).ok();
            assert!(
                shown.contains("limited by") && shown.contains(says),
                "{shown}"
            );
        }
        let shown = town.run("queue show gaps.fifo").ok();
        assert!(!shown.contains("limited by"), "{shown}");
    }
    town.run(&format!("ack conc.fifo {}", first[0])).ok();
    town.run(&format!("ack keys.fifo {}", first[2])).ok();
    assert_eq!(
        bodies(&town.run("receive conc.fifo --max 9").json()).len(),
        1
    );
    assert_eq!(bodies(&town.drain("keys.fifo")), ["two"]);
}

#[test]
fn messages_without_a_key_are_explained_and_held() {
    let town = Town::new();
    limit(&town, "queue create u --limit-rate", "1/h per key").ok();
    for body in ["one", "two"] {
        town.run(&format!("send u {body}")).ok();
    }
    assert_eq!(bodies(&town.run("receive u --max 9 --ack").json()), ["one"]);
    let why = town.run("key explain u --no-key").ok();
    assert!(why.contains("(without a key)"), "{why}");
    assert!(
        why.contains("The group of messages without a key has reached its limit"),
        "{why}"
    );
    let held = town.run("key hold u --no-key 2h").stderr;
    assert!(
        held.contains("(without a key) of u is held until "),
        "{held}"
    );
    let why = town.run("key explain u --no-key --json").json();
    assert_eq!(why[0]["limit"], "held");
    assert!(why[0].get("key").is_none(), "{why:?}");
    town.run("key hold u --no-key none").ok();
    town.run("queue create q.fifo").ok();
    let error = town.run("key explain q.fifo --no-key").fails_with(1);
    assert!(error.contains("has no messages without a key"), "{error}");
    // One of the two.
    for wrong in [
        "explain u",
        "explain u a --no-key",
        "hold u 1s",
        "hold u a --no-key 1s",
    ] {
        town.run(&format!("key {wrong}")).fails_with(2);
    }
}

/// Nothing else happens at the queue meanwhile.
#[test]
fn who_waits_gets_a_message_when_its_limit_lets_go() {
    let town = Town::new();
    for (name, gap) in [("q.fifo", "1s per key"), ("whole.fifo", "1s")] {
        limit(&town, &format!("queue create {name} --limit-gap"), gap).ok();
        for body in ["one", "two"] {
            town.run(&format!("send {name} --key a {body}")).ok();
        }
        let first = town.run(&format!("receive {name} --ack")).json();
        let second = town.run(&format!("receive {name} --wait 20s --ack")).json();
        assert_eq!(
            (bodies(&first), bodies(&second)),
            (vec!["one"], vec!["two"])
        );
    }
}

#[test]
fn a_limit_of_the_whole_queue_holds_it_and_says_so() {
    let town = Town::new();
    town.run("queue create q --limit-concurrency 2 --limit-gap 0ms")
        .fails_with(2);
    town.run("queue create q --limit-concurrency 2").ok();
    for body in ["one", "two", "three"] {
        town.run(&format!("send q {body}")).ok();
    }
    let held = town.run("receive q --max 10").json();
    assert_eq!(bodies(&held), ["one", "two"]);
    let done = town.run("receive q");
    let says = "the limit_concurrency of q holds its messages until a lease ends";
    assert!(done.stderr.contains(says), "{done:?}");
    let receipt = held[0]["receipt"].as_str().unwrap();
    town.run(&format!("ack q {receipt}")).ok();
    assert_eq!(bodies(&town.drain("q")), ["three"]);
    town.run("queue set q --limit-concurrency none --limit-gap 1h")
        .ok();
    town.run("send q four").ok();
    assert_eq!(bodies(&town.drain("q")), ["four"]);
    town.run("send q five").ok();
    let done = town.run("receive q");
    assert!(
        done.stderr
            .contains("the limit_gap of q holds its messages for "),
        "{done:?}"
    );
    town.run("queue set q --limit-gap none").ok();
    assert_eq!(bodies(&town.drain("q")), ["five"]);

    let error = town.run("queue set q --limit-rate 10").fails_with(2);
    let says = "limit_rate must be as 10/s, 10/s per key, or 100/s + 10/s burst 20 per key, not 10";
    assert!(error.contains(says), "{error}");
}

#[test]
fn a_queue_and_a_key_are_held_for_a_while_and_let_go() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    for key in ["a", "b"] {
        town.run(&format!("send q.fifo --key {key} {key}")).ok();
    }
    let held = town.run("key hold q.fifo a 1h").stderr;
    assert!(held.contains("a of q.fifo is held until "), "{held}");
    assert_eq!(
        bodies(&town.run("receive q.fifo --max 10 --ack").json()),
        ["b"]
    );
    let why = town.run("key explain q.fifo a").ok();
    assert!(why.contains("The key is held by somebody."), "{why}");
    let why = town.run("key explain q.fifo a --json").json();
    assert_eq!(
        (&why[0]["limit"], &why[0]["waits_for"]),
        (&"held".into(), &"limit".into())
    );
    let free = town.run("key hold q.fifo a none").stderr;
    assert!(free.contains("a of q.fifo is not held any more"), "{free}");

    let received = town.run("receive q.fifo").json();
    let receipt = received[0]["receipt"].as_str().unwrap();
    let defer = town.run(&format!("defer q.fifo --delay 1h --hold queue {receipt}"));
    defer.ok();
    let done = town.run("receive q.fifo");
    assert!(
        done.stderr.contains("somebody holds q.fifo for "),
        "{done:?}"
    );
    let held = town.run("queue hold q.fifo 1ms --json").json();
    assert!(
        held[0]["remaining_ms"].as_u64().unwrap() > 1_000_000,
        "{held:?}"
    );
    for shows in ["queue show q.fifo", "queue list"] {
        let shown = town.run(shows).ok();
        assert!(shown.contains("held until 20"), "{shown}");
    }
    town.run("queue pause q.fifo").ok();
    let shown = town.run("queue list").ok();
    assert!(shown.contains("paused, and held until 20"), "{shown}");
    town.run("queue resume q.fifo").ok();
    town.run("queue hold q.fifo none").ok();
    let shown = town.run("queue list").ok();
    assert!(shown.contains("active"), "{shown}");
    assert_eq!(bodies(&town.drain("q.fifo")), ["a"]);
    let error = town.run("queue hold q.fifo 367d").fails_with(2);
    assert!(error.contains("a hold lasts up to 366d"), "{error}");
}

#[test]
fn a_hold_is_told_without_messages_with_one_in_flight_and_of_a_group() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    town.run("queue create plain").ok();
    let why = |target: &str| town.run(&format!("key explain {target}")).ok();
    let holds = |target: &str, what: &str| {
        town.run(&format!("key hold {target} 1h")).ok();
        let why = why(target);
        assert!(why.contains("held until"), "{why}");
        let says = format!("The {what} is held by somebody for another 3");
        assert!(why.contains(&says), "{why}");
    };
    holds("q.fifo a", "key");
    holds("plain g", "group");
    town.run("queue hold q.fifo 2h").ok();
    for key in ["a", "another"] {
        let of_queue = why(&format!("q.fifo {key}"));
        let says = "The queue is held by somebody for another 7";
        assert!(of_queue.contains(says), "{of_queue}");
    }
    town.run("queue hold q.fifo none").ok();
    for target in ["q.fifo a", "plain g"] {
        town.run(&format!("key hold {target} none")).ok();
        assert!(!why(target).contains("held"), "{target}");
    }
    town.run("send q.fifo --key a x").ok();
    town.run("send plain --group g x").ok();
    assert!(why("plain g").contains("Nothing holds it up"));
    for (queue, target, what) in [("q.fifo", "q.fifo a", "key"), ("plain", "plain g", "group")] {
        town.run(&format!("receive {queue}")).ok();
        holds(target, what);
    }
}

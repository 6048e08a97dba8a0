//! `lockgate record`, and the records of a server that is killed.

use std::{process::Stdio, sync::Arc, time::Duration};

use lockgate_client::Client;
use lockgate_conformance::records::Register;
use lockgate_core::RecordName;
use rustix::process::Signal;
use serde_json::Value;

use crate::{messages::Town, support::Server};

fn show(town: &Town, name: &str) -> Value {
    let shown = town.run(&format!("record get {name} --json")).json();
    shown.into_iter().next().unwrap()
}

#[test]
fn a_record_is_written_read_and_deleted_by_its_version() {
    let town = Town::new();
    assert_eq!(town.run("record put a one").ok(), "1\n");
    let conflict = town.run("record put a two").fails_with(4);
    assert!(conflict.contains("record a has version 1"), "{conflict}");
    assert!(conflict.contains("--replaces 1"), "{conflict}");
    town.run("record put a two --replaces 1").ok();
    assert_eq!(town.run("record get a").ok(), "two");
    town.run("record put a three --any").ok();
    town.run("record put b/1 x --any").ok();
    town.run("record put b/2 y").ok();
    let names = |list: Vec<Value>| {
        let names = list
            .iter()
            .map(|it| it["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        names(town.run("record list --json").json()),
        ["a", "b/1", "b/2"]
    );
    assert_eq!(
        names(town.run("record list b/ --max 1 --json").json()),
        ["b/1"]
    );
    let table = town.run("record list").ok();
    assert!(table.contains("NAME") && table.contains("three"), "{table}");

    town.run("record delete a --replaces 2").fails_with(4);
    town.run("record delete a --replaces 3").ok();
    town.run("record delete a --any").fails_with(3);
    town.run("record delete a --replaces 3").fails_with(3);
    town.run("record put a four --replaces 3").fails_with(3);
    town.run("record get a").fails_with(3);
    town.run("record delete b/1 --any").ok();
}

#[test]
fn a_value_is_any_bytes() {
    let town = Town::new();
    let file = town.sandbox.path().join("value");
    let bytes: Vec<u8> = (0..=255).collect();
    std::fs::write(&file, &bytes).unwrap();
    let put = format!("record put a --file {}", file.display());
    town.run(&put).ok();
    let read = town.sandbox.command("record get a").output().unwrap();
    assert_eq!(read.stdout, bytes);
    std::fs::write(&file, vec![b'x'; (256 << 10) + 1]).unwrap();
    let refused = town.run(&format!("{put} --any")).fails_with(2);
    assert!(refused.contains("more than 262144 bytes"), "{refused}");
    std::fs::write(&file, vec![b'x'; 256 << 10]).unwrap();
    town.run(&format!("{put} --any")).ok();
    assert_eq!(town.run("record get a").ok().len(), 256 << 10);
    town.run("record put a --file /nowhere").fails_with(3);
}

#[test]
fn a_lease_is_held_by_one_and_waited_for_by_another() {
    let town = Town::new();
    let lease = |holder: &str, rest: &str| {
        town.run(&format!(
            "record lease a --holder {holder} --lease 1h {rest}"
        ))
    };
    let mine = lease("me", "").ok().trim().to_owned();
    assert_eq!(
        lease("me", "").ok().trim(),
        mine,
        "a holder is given it again"
    );
    let held = lease("you", "").fails_with(4);
    assert!(
        held.contains("record a is leased by me for another"),
        "{held}"
    );
    town.run("record put a x --any").fails_with(4);
    town.run(&format!("record put a x --any --epoch {mine}"))
        .ok();
    assert_eq!(show(&town, "a")["lease"]["holder"], "me");
    town.run(&format!("record extend a --epoch {mine} --lease 2h"))
        .ok();

    let waiting = "record lease a --holder you --lease 1h --wait 10m";
    let waiting = town.sandbox.command(waiting).stdout(Stdio::piped()).spawn();
    town.run(&format!("record release a --epoch {mine}")).ok();
    let yours = waiting.unwrap().wait_with_output().unwrap();
    let yours: u64 = String::from_utf8(yours.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(yours > mine.parse().unwrap());
    town.run(&format!("record release a --epoch {mine}"))
        .fails_with(4);
    town.run(&format!("record delete a --any --epoch {yours}"))
        .ok();
}

#[test]
fn a_watch_prints_each_change() {
    let town = Town::new();
    town.run("record watch a --wait 0s").fails_with(6);
    town.run("record put a one").ok();
    let now = town.run("record watch a").json();
    assert_eq!(now[0]["value"], "one");
    let seen = format!("record watch a --seen {}", now[0]["revision"]);
    town.run(&format!("{seen} --wait 1ms")).fails_with(6);
    let watching = town.sandbox.command(&seen).stdout(Stdio::piped()).spawn();
    town.run("record delete a --any").ok();
    let watched = watching.unwrap().wait_with_output().unwrap();
    let gone: Value = serde_json::from_slice(&watched.stdout).unwrap();
    assert_eq!(gone, serde_json::json!({"name": "a", "deleted": true}));
}

/// The server is killed while four clients write: each answer was true, and each lost answer is one write or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_linearizable_over_kills() {
    let Town { sandbox, server } = Town::new();
    let address = server.url.trim_start_matches("http://").to_owned();
    let client = Client::builder(server.url.parse().unwrap());
    let mut server = Some(server);
    let client = client
        .timeout(Duration::from_secs(60))
        .build()
        .await
        .unwrap();
    let name = RecordName::new("register").unwrap();
    let register = Register::new(&client, name, 200).await;
    let sandbox = Arc::new(sandbox);
    tokio::join!(register.run(), async {
        for steps in [100, 300, 500] {
            register.reached(steps).await;
            let killed = server.take().unwrap();
            killed.signal(Signal::KILL);
            // The clients go on asking meanwhile.
            let (sandbox, address) = (sandbox.clone(), address.clone());
            let restart = move || Server::restart(killed, &sandbox, &address);
            server = Some(tokio::task::spawn_blocking(restart).await.unwrap());
        }
    });
    let troubles = register.check();
    assert!(
        troubles.unavailable > 0,
        "nobody has met a server that was away: {troubles:?}"
    );
    println!("{troubles:?}");
}

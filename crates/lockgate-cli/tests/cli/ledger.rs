//! `lockgate ledger`, and the ledgers of a server that is killed.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use lockgate_client::{Client, ServerLedger};
use lockgate_core::{
    Epoch, LedgerName, UniqueId,
    ledger::{
        Append, Chain, Ledger as _, LedgerError, LedgerOptions, NewEvent, ReadLedger, SequenceId,
    },
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    folder::{flip, segments},
    messages::Town,
    support::{Done, Server, json_lines, run_on_terminal, signal},
};

fn append(town: &Town, arguments: &str, lines: &str) -> Done {
    town.sandbox
        .run_with_input(&format!("ledger append {arguments}"), lines)
}

fn field<'v>(values: &'v [Value], name: &str) -> Vec<&'v Value> {
    values.iter().map(|value| &value[name]).collect()
}

#[test]
fn a_ledger_is_made_written_read_and_deleted() {
    let town = Town::new();
    town.run("ledger describe trades").fails_with(3);
    let missing = append(&town, "trades x", "").fails_with(3);
    assert!(
        missing.contains("lockgate ledger create trades"),
        "{missing}"
    );
    town.run("ledger create trades --hashed --retention 10d")
        .ok();
    town.run("ledger create trades --hashed --retention 10d")
        .ok();
    town.run("ledger create trades").fails_with(4);
    assert_eq!(append(&town, "trades one --unique-id a", "").ok(), "1\n");
    let again = append(&town, "trades one --unique-id a", "");
    assert!(again.stderr.contains("1 event came before"), "{again:?}");
    assert_eq!(again.ok(), "1\n");
    let lines = "{\"payload\": {\"n\": 1.50, \"b\":\t[] }, \"unique_id\": \"b\"}\n\n{\"payload\": \"/wA=\", \
                 \"payload_encoding\": \"base64\"}\n{\"payload\": \"one\", \"unique_id\": \"a\"}\n";
    let appended = append(&town, "trades --json", lines).json();
    assert_eq!(
        appended,
        [
            json!({"sequence_id": 2, "duplicate": false}),
            json!({"sequence_id": 3, "duplicate": false}),
            json!({"sequence_id": 1, "duplicate": true}),
        ]
    );
    let read = town.run("ledger read trades").json();
    let payloads = [
        &json!("one"),
        &json!("{\"n\":1.50,\"b\":[]}"),
        &json!("/wA="),
    ];
    assert_eq!(field(&read, "payload"), payloads);
    assert_eq!(read[2]["payload_encoding"], "base64");
    assert!(read[0]["hash"].as_str().unwrap().len() == 64);
    let read = town.run("ledger read trades --after 1 --max 1").json();
    assert_eq!(field(&read, "sequence_id"), [&json!(2)]);
    assert_eq!(town.run("ledger find trades b").ok(), "2\n");
    town.run("ledger find trades c").fails_with(3);
    let shown = town.run("ledger describe trades --json").json();
    assert_eq!(shown[0]["head"]["sequence_id"], 3);
    assert_eq!(shown[0]["retention_ms"], 864_000_000);
    let list = town.run("ledger list tra").ok();
    assert!(
        list.starts_with("NAME\tHEAD") && list.contains("trades\t3\t1"),
        "{list}"
    );
    let terminal = run_on_terminal(&mut town.sandbox.command("ledger read trades"));
    assert!(terminal.stdout.contains("(not text)"), "{terminal:?}");

    town.run("ledger trim trades --before 3").fails_with(2);
    town.run("ledger trim trades --before 3 --yes").ok();
    town.run("ledger trim trades --before 5 --yes")
        .fails_with(4);
    let trimmed = town.run("ledger read trades --after 1").fails_with(4);
    assert!(trimmed.contains("event 3"), "{trimmed}");
    assert_eq!(town.run("ledger read trades").json().len(), 1);
    town.run("ledger seal trades --epoch 7 --yes").ok();
    append(&town, "trades late --epoch 7", "").fails_with(4);
    let follow = town.run("ledger follow trades").json();
    assert_eq!(field(&follow, "sequence_id"), [&json!(3)]);
    town.run("ledger delete trades --yes").ok();
    town.run("ledger delete trades --yes").fails_with(3);
}

#[test]
fn nothing_after_a_wrong_line_is_appended() {
    let town = Town::new();
    town.run("ledger create a").ok();
    for wrong in [
        "no JSON",
        "{\"payload\": 1, \"key\": \"x\"}",
        "{\"unique_id\": \"x\"}",
        "{\"payload\": \"!\", \"payload_encoding\": \"base64\"}",
        "{\"payload\": 1, \"unique_id\": \"\"}",
    ] {
        let lines = format!("{{\"payload\": 1}}\n{wrong}\n{{\"payload\": 2}}\n");
        let told = append(&town, "a", &lines).fails_with(1);
        assert!(told.contains("standard input:2"), "{told}");
    }
    let read = town.run("ledger read a").json();
    assert_eq!(field(&read, "payload"), [&json!("1"); 5]);
    assert_eq!(append(&town, "a --text", "no JSON\n\n").ok(), "6\n7\n");

    let moved = append(&town, "a x --expect 6", "").fails_with(4);
    assert!(moved.contains("--expect 7"), "{moved}");
    let many: String = (0..2_500)
        .map(|n| format!("{{\"payload\": {n}}}\n"))
        .collect();
    let ids = append(&town, "a --expect 7", &many).ok();
    assert!(
        ids.lines()
            .map(|id| id.parse::<u64>().unwrap())
            .eq(8..2_508)
    );
    append(&town, "a x --epoch 9", "").ok();
    let deposed = append(&town, "a x --epoch 8", "").fails_with(4);
    assert!(deposed.contains("--epoch 9"), "{deposed}");
}

#[test]
fn what_is_exported_can_be_checked_read_by_others_and_appended() {
    let town = Town::new();
    let lines = "{\"payload\": \"a,\\\"b\\\"\\nc\", \"unique_id\": \"=x\"}\n{\"payload\": \"\"}\n{\"payload\": \
                 \"/w==\", \"payload_encoding\": \"base64\"}\n{\"payload\": \"d\"}\n";
    town.run("ledger create a --hashed").ok();
    append(&town, "a", lines).ok();
    let exported = town.run("ledger export a").ok();
    append(&town, "b --create", &exported).ok();
    let copy = town.run("ledger export b").json();
    let exported = json_lines(&exported);
    for name in ["payload", "payload_encoding", "unique_id", "previous_id"] {
        assert_eq!(field(&copy, name), field(&exported, name));
    }
    let range = town.run("ledger export a --from 2 --to 3").json();
    assert_eq!(range, exported[1..3]);
    let table = town.run("ledger export a --format csv").ok();
    assert_eq!(table.matches("\r\n").count(), 5, "{table:?}");
    let guarded = town.run("ledger export a --format csv --csv-guard").ok();
    assert_eq!(guarded, table.replace("=x", "'=x"));
    town.run("ledger export a --csv-guard").fails_with(2);
    let mut table = csv::Reader::from_reader(table.as_bytes());
    let names: Vec<_> = table.headers().unwrap().iter().map(str::to_owned).collect();
    let rows: Vec<_> = table.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4);
    for (row, event) in rows.iter().zip(&exported) {
        for (name, cell) in names.iter().zip(row) {
            let value = match &event[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(cell, value, "{name}");
        }
    }
    for command in ["export", "verify"] {
        let run = |range: &str| town.run(&format!("ledger {command} a {range}"));
        run("--to 5").fails_with(4);
        run("--from 5").ok();
        run("--from 6").fails_with(4);
    }
    town.run("ledger export a --from 3 --to 2").fails_with(2);
    // Whoever reads has enough: that is no failure.
    let export = town.sandbox.command("ledger export a");
    let mut piped = town.sandbox.shell(&export, "\"$@\" | true");
    let done = Done::from(piped.output().unwrap());
    assert_eq!(done.stderr, "");

    let verified = town.run("ledger verify a --json").json();
    assert_eq!(verified[0]["hash"], exported[3]["hash"]);
    assert_eq!(verified[0]["events"], 4);
    let part = town.run("ledger verify a --from 3 --to 3 --json").json();
    assert_eq!(part[0]["hash"], exported[2]["hash"]);
    town.run("ledger trim a --before 3 --yes").ok();
    for command in ["export", "verify"] {
        let trimmed = town.run(&format!("ledger {command} a --from 2"));
        let trimmed = trimmed.fails_with(4);
        assert!(trimmed.contains("event 3"), "{trimmed}");
    }
    town.run("ledger create empty").ok();
    town.run("ledger verify empty").ok();
}

/// Bytes on the disk change under a server: that is a finding, not a failure of the check.
#[test]
fn damaged_events_are_a_finding() {
    let town = Town::new();
    town.run("ledger create a").ok();
    for event in ["first", "second-of-a", "third"] {
        append(&town, &format!("a {event}"), "").ok();
    }
    flip(&segments(&town.sandbox)[0], "second-of-a");
    for from in ["", "--from 3"] {
        let done = town.run(&format!("ledger verify a --json {from}"));
        let evidence: Value = serde_json::from_str(&done.stdout).unwrap();
        let told = evidence["evidence"].as_str().unwrap();
        assert!(told.contains("events 2 to 2"), "{evidence}");
        done.fails_with(1);
    }
    let told = town.run("ledger verify a").fails_with(1);
    assert!(told.contains("the ledger is damaged"), "{told}");
    town.run("ledger export a").fails_with(9);
}

#[test]
fn a_reader_keeps_its_place() {
    let town = Town::new();
    town.run("ledger create a").ok();
    append(&town, "a --text", "1\n2\n").ok();
    let mut follow = town.sandbox.command("ledger follow a --reader audit");
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap());
    let mut line = String::new();
    for expected in 1..=3 {
        line.clear();
        lines.read_line(&mut line).unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["sequence_id"], expected);
        if expected == 2 {
            append(&town, "a 3", "").ok();
        }
    }
    // It has moved its reader before it asks again; what it has not moved over comes again.
    let place = || town.run("ledger readers a --json").json();
    while field(&place(), "sequence_id") != [&json!(3)] {}
    signal(&follow, Signal::TERM);
    lines.read_to_string(&mut line).unwrap();
    assert_eq!(follow.wait().unwrap().code(), Some(143));
    append(&town, "a 4", "").ok();
    assert_eq!(
        place(),
        [json!({"reader": "audit", "sequence_id": 3, "behind": 1})]
    );
    town.run("ledger seal a --yes").ok();
    let rest = town.run("ledger follow a --reader audit").json();
    assert_eq!(field(&rest, "sequence_id"), [&json!(4)]);
    town.run("ledger readers a --move audit --to 1").ok();
    assert_eq!(field(&place(), "behind"), [&json!(3)]);
    town.run("ledger readers a --move audit --to 5")
        .fails_with(4);
    town.run("ledger readers a --forget audit").ok();
    town.run("ledger readers a --forget audit").fails_with(3);
}

/// Appends events one after the other, each until it is answered; where each one is, and how often that failed.
async fn write(
    ledger: ServerLedger,
    name: u64,
    count: u64,
    progress: &watch::Sender<u64>,
) -> (Vec<(UniqueId, SequenceId)>, u64) {
    let (mut answered, mut failed) = (Vec::new(), 0);
    for number in 0..count {
        let id = UniqueId::new(&format!("{name}-{number}")).unwrap();
        let append = Append {
            epoch: Epoch(1),
            head: None,
            events: vec![NewEvent {
                unique_id: Some(id.clone()),
                input: None,
                payload: id.as_str().to_owned().into(),
            }],
            settled: Vec::new(),
        };
        let place = loop {
            match ledger.append(append.clone()).await {
                Ok(appended) => break appended.events[0].sequence_id,
                Err(LedgerError::Unknown { .. } | LedgerError::Unavailable { .. }) => {
                    failed += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        };
        answered.push((id, place));
        progress.send_modify(|done| *done += 1);
    }
    (answered, failed)
}

/// The server is killed while four clients append: each event is there once, where its answer says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_there_once_over_kills() {
    const EVENTS: u64 = 100;
    let Town { sandbox, server } = Town::new();
    let address = server.url.trim_start_matches("http://").to_owned();
    let client = Client::builder(server.url.parse().unwrap());
    let client = client.build().await.unwrap();
    let ledger = client.ledger(LedgerName::new("a").unwrap());
    let hashed = LedgerOptions {
        hashed: true,
        retention: None,
    };
    ledger.create(hashed).await.unwrap();
    let mut server = Some(server);
    let sandbox = Arc::new(sandbox);
    let (progress, mut seen) = watch::channel(0);
    let writer = |name| write(ledger.clone(), name, EVENTS, &progress);
    let (one, two, three, four, ()) =
        tokio::join!(writer(1), writer(2), writer(3), writer(4), async {
            for done in [50, 150, 250] {
                seen.wait_for(|now| *now >= done).await.unwrap();
                let killed = server.take().unwrap();
                killed.signal(Signal::KILL);
                // The clients go on asking meanwhile.
                let (sandbox, address) = (sandbox.clone(), address.clone());
                let restart = move || Server::restart(killed, &sandbox, &address);
                server = Some(tokio::task::spawn_blocking(restart).await.unwrap());
            }
        });
    let writers = [one, two, three, four];
    let failed: u64 = writers.iter().map(|(_, failed)| failed).sum();
    assert!(failed > 0, "nobody has met a server that was away");
    let (mut chain, mut places) = (Chain::START, HashMap::new());
    let head = ledger.head().await.unwrap();
    while chain.sequence_id < head.sequence_id {
        let read = ReadLedger {
            after: chain.sequence_id,
            limit: 70,
            wait: Duration::ZERO,
        };
        for event in ledger.read(read).await.unwrap().events {
            chain.follow(&event).unwrap();
            let before = places.insert(event.unique_id.unwrap(), event.sequence_id);
            assert_eq!(before, None);
        }
    }
    chain.agrees_with(&head).unwrap();
    assert_eq!(places.len() as u64, 4 * EVENTS);
    for (id, place) in writers.iter().flat_map(|(answered, _)| answered) {
        assert_eq!(places[id], *place, "{id}");
    }
}

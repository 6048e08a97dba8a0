//! The program, as quick as it can be.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says where it stopped"
)]

use std::{path::Path, process::Command};

use serde_json::Value;

/// Runs the program in that folder with these arguments, and reads what it printed.
#[track_caller]
fn run(folder: &Path, arguments: &str) -> Vec<Value> {
    let done = Command::new(env!("CARGO_BIN_EXE_lockgate-bench"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Figures that are no rates, or have no floor.
const QUANTITIES: [&str; 80] = [
    "delay.start",
    "delay.late_p50",
    "delay.late_p99",
    "delay.late_max",
    "delay.flood_send_p99",
    "delay.flood_send_max",
    "delay.flood_out",
    "delay.flood_out_busy",
    "exchange.written",
    "exchange.written.sends",
    "exchange.route.direct",
    "exchange.route.topic",
    "exchange.route.headers",
    "exchange.route.bind",
    "exchange.fanout.publish",
    "exchange.fanout.send",
    "exchange.fanout.send.longest",
    "exchange.fanout.alone",
    "exchange.fanout.alone.longest",
    "ledger.replay",
    "election.memory.rate",
    "election.file.rate",
    "election.server.rate",
    "election.server.messages",
    "coalesce.runs",
    "dispatch.shape",
    "due.stall",
    "due.alone",
    "backlog.stall",
    "http.cpu",
    "http.cpu.floor",
    "http.cpu.server",
    "http.cpu.owner",
    "http.cpu.sync",
    "http.cpu.maintenance",
    "http.cpu.ratio",
    "memory.unkeyed",
    "memory.keyed",
    "memory.key",
    "memory.unique_id",
    "memory.in_flight",
    "memory.delayed",
    "backlog.recovery",
    "backlog.recovery.bytes",
    "backlog.recovery.ratio",
    "disk.amplification",
    "disk.written.records",
    "disk.written.compacted",
    "disk.written.snapshots",
    "disk.written.rest",
    "disk.peak",
    "disk.half",
    "disk.drained",
    "disk.snapshots",
    "disk.compacted",
    "disk.released",
    "drain.empty",
    "drain.sent",
    "drain.peak",
    "drain.half",
    "drain.received",
    "drain.small_after",
    "drain.drained",
    "drain.snapshots",
    "drain.snapshot_bytes",
    "drain.compacted",
    "idle.shards.threads",
    "idle.shards.threads.each",
    "idle.shards.descriptors",
    "idle.shards.descriptors.each",
    "idle.shards.memory",
    "idle.shards.memory.each",
    "idle.shards.disk",
    "idle.shards.disk.each",
    "idle.shards.wakeups",
    "idle.shards.wakeups.each",
    "idle.shards.disk.some_used",
    "producer.memory",
    "producer.accept.time",
    "producer.accept.allocations",
];

/// Every figure with all its fields, and a floor where one is promised.
#[test]
fn quick_json_has_every_figure_with_all_fields() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "--quick --json --seconds 3 --size 100B --scale 0.0001";
    let lines = run(folder.path(), arguments);
    let names: Vec<&str> = lines
        .iter()
        .map(|line| line["bench"].as_str().unwrap())
        .collect();
    for figure in [
        "engine.send",
        "engine.receive",
        "http.send",
        "http.receive",
        "shape.hot_key",
        "shape.locked_keys",
        "shape.slow_holder",
        "backlog.send",
        "backlog.receive",
    ] {
        for part in ["", ".p50", ".p99", ".max"] {
            let name = format!("{figure}{part}");
            assert!(names.contains(&name.as_str()), "no {name} in {names:?}");
        }
    }
    assert!(names.contains(&"engine.latency.p99"));
    assert!(names.contains(&"engine.send.syncs"));
    let is_counted =
        |quantity| cfg!(feature = "count-memory") || quantity != "producer.accept.allocations";
    for quantity in QUANTITIES.into_iter().filter(|it| is_counted(*it)) {
        assert!(names.contains(&quantity), "no {quantity} in {names:?}");
    }
    for line in &lines {
        let bench = line["bench"].as_str().unwrap();
        let number = |name: &str| {
            line[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {line}"))
        };
        assert!(number("value") >= 0.0);
        assert_ne!(line["unit"], Value::Null, "{line}");
        if QUANTITIES.contains(&bench) {
            continue;
        }
        let unit = match bench.rsplit_once('.').unwrap().1 {
            "p50" | "p99" | "max" => "ms",
            "syncs" => "syncs/message",
            _ => "messages/s",
        };
        assert_eq!(line["unit"], unit, "{line}");
        for param in ["size", "batch", "keys", "callers", "level"] {
            assert_ne!(line["params"][param], Value::Null, "{line}");
        }
        if unit == "messages/s" {
            let (floor, ratio) = (number("floor"), number("ratio"));
            assert!(floor > 0.0 && ratio > 0.0, "{line}");
            assert!(
                number("ratio_min") <= ratio && ratio <= number("ratio_max"),
                "{line}"
            );
            assert!(line["floor_is"].is_string(), "{line}");
        }
    }
    // It leaves nothing behind.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn one_bench_with_chosen_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "engine.send --json --seconds 1 --quick --size 2KiB --batch 7 --keys 0 --callers 3 \
                     --level process";
    let lines = run(folder.path(), arguments);
    for line in &lines {
        assert!(
            line["bench"].as_str().unwrap().starts_with("engine.send"),
            "{line}"
        );
        let params = &line["params"];
        assert_eq!(params["size"], 2048);
        assert_eq!(params["batch"], 7);
        assert_eq!(params["keys"], 0);
        assert_eq!(params["callers"], 3);
        assert_eq!(params["level"], "process");
        // Nobody waits for the disk at this level, so it is no floor.
        assert_eq!(line["floor"], Value::Null);
    }
}

/// A table in a pipe: tab-separated lines, without a header.
#[test]
fn the_list_names_every_figure() {
    let done = Command::new(env!("CARGO_BIN_EXE_lockgate-bench"))
        .arg("--list")
        .output()
        .unwrap();
    let list = String::from_utf8(done.stdout).unwrap();
    let names: Vec<_> = list
        .lines()
        .map(|line| line.split_once('\t').unwrap().0)
        .collect();
    for figure in ["engine.send", "http.cpu", "backlog.recovery", "idle.shards"] {
        assert!(names.contains(&figure), "no {figure} in {names:?}");
    }
}

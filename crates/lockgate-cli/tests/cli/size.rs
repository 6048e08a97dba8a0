//! `size`, from flags, files and the figures of a producer.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::Path,
};

use serde_json::{Value, json};

use crate::support::{Sandbox, assert_snapshot, run_on_terminal};

/// Figures as a producer writes them, and a metric beside them.
fn figures(producer: &str, accepted: u64, sent: u64, batches: u64, in_flight: u64) -> String {
    let values = [
        ("accepted_total", accepted),
        ("refused_total", 0),
        ("sent_total", sent),
        ("batches_total", batches),
        ("in_flight", in_flight),
        ("memory_records", 40),
        ("memory_bytes", 40_000),
    ];
    let lines = values.map(|(name, value)| {
        format!("lockgate_producer_{name}{{producer=\"{producer}\"}} {value}\n")
    });
    format!("# HELP up Up.\nup 1\n{}", lines.concat())
}

/// `docs/sizing.md` shows what the command says, and `docs/sizing.svg` what it draws.
#[test]
fn the_page_on_sizing_is_true() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = fs::read_to_string(docs.join("sizing.md")).unwrap();
    let typed = page
        .lines()
        .find(|line| line.starts_with("lockgate size "))
        .unwrap();
    let (before, after) = page.split_once(&format!("{typed}\n```\n\n```\n")).unwrap();
    let (_, after) = after.split_once("```\n").unwrap();

    let sandbox = Sandbox::new();
    let arguments = typed.strip_prefix("lockgate ").unwrap();
    let said = run_on_terminal(&mut sandbox.command(&format!("{arguments} --svg drawn.svg")));
    let said = said.ok().replace('\r', "");
    let actual = format!("{before}{typed}\n```\n\n```\n{said}```\n{after}");
    assert_snapshot(&docs.join("sizing.md"), &actual);
    let drawn = fs::read_to_string(sandbox.path().join("drawn.svg")).unwrap();
    assert_snapshot(&docs.join("sizing.svg"), &drawn);

    let again = sandbox
        .run(&format!("{arguments} --svg drawn.svg"))
        .fails_with(4);
    assert!(again.contains("drawn.svg exists already"), "{again}");
}

#[test]
fn json_has_the_report_and_the_model_that_gives_it_again() {
    let sandbox = Sandbox::new();
    let typed = "size --arrivals 80 --stage a=10msx1:5000 --burst 2x10s --json";
    let said = sandbox.run(typed).json().remove(0);
    assert_eq!(said["bottleneck"], "a");
    assert_eq!(said["capacity_per_second"], 100.0);
    let stage = &said["stages"][0];
    assert_eq!(
        (&stage["utilisation"], &stage["overflows"]),
        (&json!(0.8), &json!("never"))
    );
    assert!(stage["needs"]["records"].as_u64().unwrap() > 600, "{stage}");
    assert_eq!(stage["needs_bytes"], Value::Null);

    sandbox.write("model.json", &said["model"].to_string());
    let again = sandbox.run("size --from model.json --json");
    assert_eq!(again.json(), std::slice::from_ref(&said));
    sandbox.write("printed.json", &said.to_string());
    let again = sandbox.run("size --from printed.json --json");
    assert_eq!(again.json(), [said]);
    // Flags come before the file.
    let other = sandbox.run("size --from model.json --arrivals 200 --outage a:1s --json");
    assert_eq!(other.json()[0]["stages"][0]["drains"], "never");
}

#[test]
fn a_rate_is_a_number_a_second_or_has_its_time() {
    let sandbox = Sandbox::new();
    let said = |arguments: &str| sandbox.run(&format!("size {arguments} --json")).json();
    let plain = said("--arrivals 80 --stage a=100x2x5:10");
    for rates in [
        "--arrivals 80/s --stage a=100/sx2x5:10",
        "--arrivals 4800/m --stage a=6000/mx2x5:10",
    ] {
        assert_eq!(said(rates), plain, "{rates}");
    }
}

#[test]
fn names_from_a_file_do_nothing_to_a_terminal() {
    let sandbox = Sandbox::new();
    let model = r#"{"arrivals_per_second":1,"outage":{"stage":"\u001b[31m","seconds":1},
                    "stages":[{"name":"\u001b[31m","service":{"per_second":2}}]}"#;
    sandbox.write("model.json", model);
    let said = sandbox.run("size --from model.json").ok();
    assert!(said.contains("the bottleneck is \\u{1b}[31m"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
}

#[test]
fn the_simulation_stands_beside_the_prediction() {
    let sandbox = Sandbox::new();
    let typed = "size --arrivals 80 --stage a=100x1 --outage 10s --simulate 3";
    let said = sandbox.run(typed).ok();
    let table = said.split("SIMULATED\t").nth(1).unwrap();
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with("a\t") && row.contains("\t3."), "{said}");
    assert_eq!(sandbox.run(typed).ok(), said, "the same seed");
    let found = sandbox.run(&format!("{typed} --json")).json().remove(0);
    let predicted = found["stages"][0]["depth_at_end"].as_f64().unwrap();
    let outcome = found["simulated"][0]["depth_at_end"].as_f64().unwrap();
    assert!(
        (predicted - outcome).abs() < outcome / 10.0,
        "{predicted}, {outcome}"
    );
}

/// What was not simulated is no number.
#[test]
fn without_burst_and_outage_only_the_long_run_is_simulated() {
    let sandbox = Sandbox::new();
    let typed = "size --arrivals 80 --stage a=100x1 --simulate";
    let found = sandbox.run(&format!("{typed} --json")).json().remove(0);
    let simulated = &found["simulated"][0];
    assert!(simulated["queue"].as_f64().unwrap() > 2.0, "{simulated}");
    for name in ["depth_at_end", "peak", "overflows", "drains_after_seconds"] {
        assert_eq!(simulated[name], Value::Null, "{name}");
    }
    let said = sandbox.run(typed).ok();
    assert!(said.contains("\t-\t-\t-\t-\n"), "{said}");

    let typed = "size --arrivals 150 --stage a=100x1 --simulate --json";
    let found = sandbox.run(typed).json().remove(0);
    let (stage, simulated) = (&found["stages"][0], &found["simulated"][0]);
    assert_eq!(simulated["queue"], Value::Null);
    let predicted = stage["depth_at_end"].as_f64().unwrap();
    let outcome = simulated["depth_at_end"].as_f64().unwrap();
    assert!((predicted - 3000.0).abs() < 1e-6, "{predicted}");
    assert!((outcome - 3000.0).abs() < 300.0, "{outcome}");
}

#[test]
fn files_of_figures_are_a_model() {
    let sandbox = Sandbox::new();
    let [first, second] = [figures("p", 0, 0, 0, 20), figures("p", 8000, 8000, 800, 60)];
    sandbox.write("1.prom", &first);
    sandbox.write("2.prom", &(second + &figures("q", 0, 0, 0, 0)));
    let typed = "size --from 1.prom --from 2.prom --over 10s --workers 8 --json";
    let both = sandbox.run(typed).fails_with(1);
    assert!(
        both.contains("several producers, p, q") && both.contains("--producer NAME"),
        "{both}"
    );
    let said = sandbox
        .run(&format!("{typed} --producer p"))
        .json()
        .remove(0);
    let expected = json!({
        "arrivals_per_second": 800.0, "arrivals_variability": 1.0, "record_bytes": 1000, "outage": null, "burst": null,
        "stages": [{
            "name": "sink", "service": {"seconds": 0.05}, "workers": 8, "batch": 10, "buffer": null, "variability": 1.0,
        }],
    });
    assert_eq!(said["model"], expected);
}

#[test]
fn a_running_producer_is_read_over_http() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for number in 0..=100 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            while lines.read_line(&mut head).unwrap() > 2 {}
            assert!(head.starts_with("GET /figures HTTP/1.1\r\n"), "{head}");
            let body = figures("p", 80 * number, 80 * number, 8 * number, 20);
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let sandbox = Sandbox::new();
    let said = sandbox.run(&format!(
        "size --from http://{address}/figures --over 1s --json"
    ));
    let model = &said.json()[0]["model"];
    server.join().unwrap();
    let (rate, stage) = (
        model["arrivals_per_second"].as_f64().unwrap(),
        &model["stages"][0],
    );
    assert_eq!(stage["batch"], 10);
    // However long it took: as many come as are sent, and 20 of them are on their way.
    let seconds = stage["service"]["seconds"].as_f64().unwrap();
    assert!((rate * seconds - 20.0).abs() < 1e-6, "{model}");
}

#[test]
fn what_cannot_be_sized_is_said() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "bad.json",
        "{\"arrivals_per_second\": 1, \"stages\": [], \"speed\": 1}",
    );
    sandbox.write("one.prom", &figures("p", 1, 1, 1, 1));
    sandbox.write("words", "some words\n");
    for (arguments, code, says) in [
        ("", 2, "required arguments were not provided"),
        ("--stage a=1x1", 2, "--arrivals <RATE>"),
        (
            "--arrivals fast --stage a=1x1",
            2,
            "\"fast\" is no rate of records",
        ),
        (
            "--arrivals 0 --stage a=1x1",
            2,
            "arrivals_per_second is 0: it must be more than 0",
        ),
        (
            "--arrivals 1 --stage a",
            2,
            "\"a\" is no stage: write NAME=RATExWORKERS[xBATCH][:BUFFER]",
        ),
        ("--arrivals 1 --stage a=1x1x1x1", 2, "is no stage"),
        ("--arrivals 1 --stage a=1x0", 2, "workers of a is 0"),
        ("--arrivals 1 --stage a=-1msx1", 2, "seconds of a is -0.001"),
        (
            "--arrivals 1 --stage a=1x1 --stage a=1x1",
            2,
            "two stages have the name \"a\"",
        ),
        (
            "--arrivals 1 --stage a=1x1 --outage b:1s",
            2,
            "no stage has that name",
        ),
        (
            "--arrivals 1 --stage a=1x1 --outage 31d",
            2,
            "the outage's seconds is 2678400",
        ),
        (
            "--arrivals 1 --stage a=1x1 --burst 30s",
            2,
            "\"30s\" is no burst: write NxTIME",
        ),
        (
            "--arrivals 1000000 --stage a=1000000000x1 --outage 30d --simulate",
            1,
            "takes more than 200000000 steps",
        ),
        (
            "--arrivals 1/s+2/s --stage a=1x1",
            2,
            "is no rate of records",
        ),
        (
            "--arrivals 1 --stage a=1x1 --over 5s",
            2,
            "cannot be used with",
        ),
        (
            "--arrivals 1 --stage a=1x1 --workers 5",
            2,
            "cannot be used with",
        ),
        (
            "--arrivals 1 --stage a=1x1 --producer p",
            2,
            "cannot be used with",
        ),
        ("--from nowhere", 3, "reading nowhere"),
        ("--from bad.json", 2, "unknown field `speed`"),
        ("--from one.prom", 1, "it takes two readings"),
        ("--from words", 1, "there are no figures of a producer"),
        (
            "--from one.prom --over 1ms",
            2,
            "\"1ms\" is not from 1s to 1d",
        ),
        ("--from https://127.0.0.1:1", 2, "over http:// only"),
        ("--from http://127.0.0.1:1", 5, "reading http://127.0.0.1:1"),
    ] {
        let said = sandbox.run(&format!("size {arguments}")).fails_with(code);
        assert!(said.contains(says), "{arguments}: {said}");
    }
}

//! `analyze`, on files as users have them.

use std::{fs, io::Write as _, process::Stdio};

use serde_json::{Value, json};

use crate::support::Sandbox;

/// JSON lines, one for each letter.
fn lines(letters: &str) -> String {
    letters
        .chars()
        .map(|letter| format!("{{\"user\":{{\"id\":\"{letter}\"}}}}\n"))
        .collect()
}

#[test]
fn tables_say_what_repeats_and_what_that_saves() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", &lines("aaaabcdefghijklmnoab"));
    let said = sandbox
        .run("analyze a.jsonl --key user.id --consumers 4")
        .ok();
    let expected = "\
20 requests of 15 keys, for 4 consumers

CLASS\tKEYS\tOF ALL KEYS\tREQUESTS\tOF ALL REQUESTS
none\t13\t86.67%\t13\t65.00%
sparse\t1\t6.67%\t2\t10.00%
high\t1\t6.67%\t5\t25.00%

DISTANCE\tREPEATS\tKEYS\tBY LEAST DISTANCE
1\t3\t1\t████████████████████████████████████████
2-3\t0\t0\t
4-7\t0\t0\t
8-15\t2\t1\t████████████████████████████████████████

A COALESCER\tSAVES\tOF THE WORK\tDIFFERENCE
predicted\t2\t10.00%\t
replayed as a stream\t2\t10.00%\t+0.00
replayed as a backlog\t2\t10.00%\t+0.00
";
    assert_eq!(said, expected);
}

#[test]
fn json_has_all_of_it() {
    let sandbox = Sandbox::new();
    let text = "t,k\n0,a\n0,a\n0,a\n5,\n1,b\n";
    let done = sandbox.run_with_input(
        "analyze - --key k --time t --work 2s --consumers 2 --json",
        text,
    );
    let said = &done.stderr;
    assert!(
        said.contains("1 of 5 lines left out:\n  line 5 has no k\n"),
        "{said}"
    );
    let object =
        |share: Value, saved: u64| json!({"saved": saved, "share": share, "difference": 0.0});
    let mut recorded = object(json!(0.25), 1);
    recorded["late"] = json!(0);
    let expected = json!({
        "requests": 4, "keys": 2, "consumers": 2,
        "classes": {
            "none": {"keys": 1, "key_share": 0.5, "requests": 1, "request_share": 0.25},
            "sparse": {"keys": 0, "key_share": 0.0, "requests": 0, "request_share": 0.0},
            "high": {"keys": 1, "key_share": 0.5, "requests": 3, "request_share": 0.75},
        },
        "distances": [{"from": 1, "to": 1, "keys": 1, "repeats": 2}],
        "predicted": {"saved": 1, "share": 0.25},
        "replayed": {
            "stream": {"saved": 0, "share": 0.0, "difference": -0.25},
            "backlog": object(json!(0.25), 1),
            "recorded": recorded,
        },
        "left_out": {"lines": 1, "first": [{"line": 5, "reason": "has no k"}]},
    });
    assert_eq!(done.json(), [expected]);
}

#[test]
fn the_projects_own_events_are_read_as_they_are() {
    let sandbox = Sandbox::new();
    let events = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/replay/events.jsonl.gz"
    );
    let run = format!("analyze {events} --key key --consumers 100 --json --svg drawn.svg");
    let found = sandbox.run(&run).json().remove(0);
    assert_eq!(
        (&found["requests"], &found["keys"]),
        (&json!(6000), &json!(3011))
    );
    assert_eq!(found["left_out"]["lines"], 0);
    for load in ["stream", "backlog"] {
        let difference = found["replayed"][load]["difference"].as_f64().unwrap();
        assert!((0.0..0.01).contains(&difference), "{load}: {difference}");
    }
    let svg = fs::read_to_string(sandbox.path().join("drawn.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
        "{svg}"
    );

    let again = sandbox.run(&run).fails_with(4);
    assert!(again.contains("drawn.svg exists already"), "{again}");
}

#[test]
fn what_cannot_be_analyzed_is_said() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "a.jsonl",
        "{\"user\":{\"id\":1}}\n{\"user\":{}}\n{\"user\":{\"id\":2}}\n",
    );
    sandbox.write("empty.jsonl", "\n");
    sandbox.write("a.csv", "user_id,at\n1,2\n");
    sandbox.write("words", "some words\n");
    sandbox.write("late.csv", "k,t\na,2\nb,1\n");
    for (arguments, code, says) in [
        ("nowhere --key a", 3, "opening nowhere"),
        ("empty.jsonl --key a", 1, "empty.jsonl has no lines"),
        (
            "a.jsonl --key usr.id",
            1,
            "no line of a.jsonl is a request with usr.id: line 1 has no usr.id",
        ),
        (
            "a.jsonl --key usr.id",
            1,
            "its lines have user.id; did you mean user.id?",
        ),
        ("a.jsonl --key id", 1, "did you mean user.id?"),
        (
            "a.jsonl --key user",
            1,
            "user is an object; name a value in it, such as user.id",
        ),
        (
            "a.jsonl --key user.id --strict",
            1,
            "reading a.jsonl: line 2 has no user.id",
        ),
        (
            "a.jsonl --key user.id --keys-max 1",
            1,
            "line 3 has a key after 1 different key, which are all",
        ),
        (
            "a.csv --key userid",
            1,
            "the first line has no column userid",
        ),
        (
            "a.csv --key userid",
            1,
            "it has user_id, at; did you mean user_id?",
        ),
        (
            "a.csv --key user_id --format access",
            1,
            "an access log has no user_id",
        ),
        ("words --key k", 1, "say --format jsonl, csv or access"),
        (
            "late.csv --key k --time t --work 1s --strict",
            1,
            "line 3 has a time before that of a line above it",
        ),
        ("a.csv", 2, "--key <FIELD>"),
        ("a.csv --key k --time t", 2, "--work <TIME>"),
        ("a.csv --key k --work 1s", 2, "--time <FIELD>"),
        (
            "a.csv --key k --time t --work 2d",
            2,
            "\"2d\" is not from 1ms to 1d",
        ),
        (
            "a.csv --key k --consumers 0",
            2,
            "\"0\" is no number from 1 to 1000000",
        ),
        (
            "a.csv --key k --keys-max 0",
            2,
            "0 is not in 1..=1000000000",
        ),
        ("a.csv --key k --format tsv", 2, "invalid value 'tsv'"),
    ] {
        let error = sandbox
            .run(&format!("analyze {arguments}"))
            .fails_with(code);
        assert!(error.contains(says), "`analyze {arguments}` said:\n{error}");
    }
    let late = sandbox.run("analyze late.csv --key k --time t --work 1s --json");
    assert!(
        late.stderr
            .contains("1 request with a time before that of a line above, the first in line 3")
    );
    assert_eq!(late.json()[0]["replayed"]["recorded"]["late"], 1);
}

#[test]
fn only_the_first_lines_left_out_are_named() {
    let sandbox = Sandbox::new();
    let text = "{}\n".repeat(12) + "{\"a\":1}\n";
    let done = sandbox.run_with_input("analyze - --key a --json", &text);
    assert!(
        done.stderr
            .contains("12 of 13 lines left out:\n  line 1 has no a\n"),
        "{done:?}"
    );
    assert!(
        done.stderr.ends_with("  line 10 has no a\n  and 2 more\n"),
        "{done:?}"
    );
    let left_out = &done.json()[0]["left_out"];
    assert_eq!(left_out["lines"], 12);
    assert_eq!(left_out["first"].as_array().unwrap().len(), 10);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command("analyze - --key user.id");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines("abab").as_bytes())
        .unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), done.stderr), (Some(0), Vec::new()));
}

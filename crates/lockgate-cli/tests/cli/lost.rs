//! Answers that are lost, servers that go away, and senders that are ended: what is told then, and what is
//! tried again.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    messages::{Town, bodies},
    support::{Done, Sandbox, Server, signal},
};

/// A server that is killed between two lines: the sender goes on when it is back, on the same
/// address, and nothing is lost or doubled.
#[test]
fn sending_goes_on_after_a_restart() {
    let mut town = Town::new();
    town.run("queue create q.fifo").ok();
    let mut child = town
        .sandbox
        .command("send q.fifo --key k --json")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    writeln!(stdin, "{{\"body\":\"before\"}}").unwrap();
    assert!(answers.next().is_some());

    town.server.signal(rustix::process::Signal::KILL);
    writeln!(stdin, "{{\"body\":\"while away\"}}").unwrap();
    let address = town.server.url.trim_start_matches("http://").to_owned();
    town.server = Server::restart(town.server, &town.sandbox, &address);
    assert!(answers.next().is_some());
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(bodies(&town.drain("q.fifo")), ["before", "while away"]);
}

/// Answers as a server does until the messages are there, and then hangs up; or is gone, if it is to die. The queue
/// remembers unique ids for `window` milliseconds. Counts how often messages came.
fn hangs_up_on_messages(listener: TcpListener, window: u64, dies: bool, came: &AtomicU64) {
    let sending = format!(r#"{{"keyed":true,"dedup_content":false,"dedup_window_ms":{window}}}"#);
    for connection in listener.incoming() {
        let mut connection = BufReader::new(connection.unwrap());
        loop {
            let (mut target, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                connection.read_line(&mut line).unwrap();
                if target.is_empty() {
                    target = line.split(' ').nth(1).unwrap().to_owned();
                }
                let (name, value) = line.split_once(':').unwrap_or((line.trim(), ""));
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.trim().parse().unwrap(),
                    "" => break,
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            connection.read_exact(&mut body).unwrap();
            let answer = match target.as_str() {
                "/api/v1/queues/q%2Efifo/sending" => &sending,
                "/api/v1/queues/q%2Efifo/messages" => {
                    came.fetch_add(1, Ordering::SeqCst);
                    match dies {
                        true => return,
                        false => break,
                    }
                }
                _ => break,
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
            let length = answer.len();
            write!(
                connection.get_mut(),
                "{head}\r\ncontent-length: {length}\r\n\r\n{answer}"
            )
            .unwrap();
        }
    }
}

#[test]
fn what_a_lost_answer_leaves_open_is_not_told_as_nothing() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        hangs_up_on_messages(listener, 300_000, true, &AtomicU64::new(0));
    });
    // A queue with unique ids, so that it tries again, and then finds no server at all.
    let done = sandbox.run(&format!(
        "send --endpoint {endpoint} --timeout 300ms q.fifo --key a x"
    ));
    server.join().unwrap();
    assert_ne!(done.code, Some(0));
    assert!(done.stderr.contains("unknown"), "{}", done.stderr);
    assert!(!done.stderr.contains("nothing was sent"), "{}", done.stderr);
}

/// A queue that has forgotten the unique id of the first attempt would take the message twice.
#[test]
fn a_message_is_sent_again_only_while_its_queue_would_know_it() {
    for (window, again) in [(300_000, true), (500, false), (0, false)] {
        let sandbox = Sandbox::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let came = Arc::new(AtomicU64::new(0));
        let counted = came.clone();
        // Ends with the test's process.
        std::thread::spawn(move || hangs_up_on_messages(listener, window, false, &counted));
        let lines = "\n{\"body\":1}\n";
        let command = format!("send --endpoint {endpoint} --timeout 300ms q.fifo --key a");
        let done = sandbox.run_with_input(&command, lines);
        assert_eq!(came.load(Ordering::SeqCst) > 1, again, "{window}: {done:?}");
        assert_ne!(done.code, Some(0), "{done:?}");
        for said in [
            "standard input:2: ",
            "whether 1 message arrived is unknown, 0 before were sent: look with `lockgate peek q.fifo`",
        ] {
            assert!(done.stderr.contains(said), "{}", done.stderr);
        }
    }
}

#[test]
fn what_stands_behind_a_refused_line_is_not_sent() {
    let town = Town::new();
    for (queue, key) in [("q", ""), ("q.fifo", ",\"key\":\"k\"")] {
        town.run(&format!("queue create {queue} --message-bytes-max 1KiB"))
            .ok();
        let line = |body: &str| format!("{{\"body\":\"{body}\"{key}}}\n");
        let long = "x".repeat(2000);
        let lines = ["1", "2", &long, "4", &long, "6"].map(line).concat();
        let done = town.send_lines(&format!("{queue} --json"), &lines);
        assert_eq!(done.stdout.lines().count(), 2, "{done:?}");
        let error = done.fails_with(1);
        assert!(error.contains("standard input:3: "), "{error}");
        assert!(
            error.contains("2 messages were sent, nothing after them"),
            "{error}"
        );
        assert_eq!(bodies(&town.drain(queue)), ["1", "2"]);
        let error = town
            .send_lines(queue, &[&*long, "2"].map(line).concat())
            .fails_with(1);
        assert!(error.contains("nothing was sent"), "{error}");
        assert_eq!(town.counts(queue)["ready"], 0);
    }

    // Also beside another hint.
    let lines = "{\"body\":1}\n{\"body\":2,\"key\":\"k\"}\n{\"body\":3}\n";
    let error = town.send_lines("q", lines).fails_with(1);
    for said in [
        "standard input:2: queue q is not keyed",
        "a group is given with --group",
        "1 message was sent, nothing after it",
    ] {
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_sender_that_is_ended_says_how_far_it_came() {
    let town = Town::new();
    town.run("queue create q").ok();
    let start = |input: Stdio| {
        let mut send = town.sandbox.command("send q --json");
        send.stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = send.spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        answers.read_line(&mut String::new()).unwrap();
        (child, answers)
    };
    // The input does not end.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writeln!(writer, "{{\"body\":0}}").unwrap();
    let (child, answers) = start(reader.into());
    signal(&child, rustix::process::Signal::TERM);
    let done: Done = child.wait_with_output().unwrap().into();
    let error = done.fails_with(143);
    assert!(
        error.contains("1 message was sent, nothing after it"),
        "{error}"
    );
    drop((writer, answers));

    // `send --json | head -1`, with more answers than a pipe holds.
    let lines = "{\"body\":1}\n".repeat(5000);
    let file = town.sandbox.write("lines", &lines);
    let (child, answers) = start(std::fs::File::open(file).unwrap().into());
    drop(answers);
    let done: Done = child.wait_with_output().unwrap().into();
    let error = done.fails_with(1);
    assert!(
        error.contains("nobody reads standard output any more"),
        "{error}"
    );
    assert!(error.contains("messages were sent, nothing after them"));
}

/// Hangs up on the first request, and gives this answer to the second.
fn answers_at_second_try(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for at in 0..2 {
            let mut connection = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            while connection.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            if at == 1 {
                let length = answer.len();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
                let text = format!("{head}\r\ncontent-length: {length}\r\n\r\n{answer}");
                connection.get_mut().write_all(text.as_bytes()).unwrap();
            }
        }
    });
    endpoint
}

#[test]
fn what_has_the_same_effect_twice_is_asked_again_after_a_lost_answer() {
    let sandbox = Sandbox::new();
    let run = |command: &str, answer| {
        let endpoint = answers_at_second_try(answer);
        sandbox.run(&format!("{command} --endpoint {endpoint} --json"))
    };
    assert_eq!(
        run("queue pause q", "{\"name\":\"q\"}").ok(),
        "{\"name\":\"q\"}\n"
    );
    run("queue list", "{\"queues\":[]}").ok();
    let put = "{\"created\":true,\"changed\":true,\"schedule\":{}}";
    run(
        "schedule create s --at 2030-01-01T00:00:00Z --queue q x",
        put,
    )
    .ok();
    // From now on is another time the second time.
    for command in [
        "schedule create s --in 1s --queue q x",
        "schedule create s --every 1s --generation 0 --queue q x",
        "schedule run s",
    ] {
        let told = run(command, put).fails_with(1);
        assert!(told.contains("whether it was done is unknown"), "{told}");
    }
    // With unique ids: of their own, or made up.
    let answer = "{\"sent\":[],\"published\":[{\"copies\":1,\"duplicates\":1,\"skipped\":0,\"dropped\":false,\"queues\":[]}]}";
    for (flags, line, is_done) in [
        ("--unique-ids", "{\"body\":1}\n", true),
        ("", "{\"body\":1,\"unique_id\":\"u\"}\n", true),
        ("", "{\"body\":1}\n", false),
    ] {
        let endpoint = answers_at_second_try(answer);
        let line_of = format!("exchange publish e --lines - {flags} --endpoint {endpoint}");
        let done = sandbox.run_with_input(&line_of, line);
        assert_eq!(done.code == Some(0), is_done, "{done:?}");
        let says = match is_done {
            true => "published 1 message to e: 1 copy (1 came already with an attempt of this run",
            false => "whether 1 message arrived is unknown",
        };
        assert!((done.stdout + &done.stderr).contains(says), "{says}");
    }
    // Another purge might take what came since.
    let done = run(
        "queue purge q --yes",
        "{\"counts\":{\"ready\":0,\"in_flight\":0,\"delayed\":0}}",
    );
    assert_ne!(done.code, Some(0), "{done:?}");
}

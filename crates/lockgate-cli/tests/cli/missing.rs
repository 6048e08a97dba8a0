//! Files of the log that are not there: before a start, and while a server runs.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    folder::{contents, filled, restored, segments},
    support::{Sandbox, Server, json_lines},
};

/// What stands in for a file of the log, is cut short or is not there has not the messages that it
/// should have: they are counted, and the file is named.
#[test]
fn payloads_that_a_start_does_not_look_for_are_missed_by_file() {
    let (sandbox, other) = (restored(), restored());
    let file = &segments(&sandbox)[0];
    let whole = fs::read(file).unwrap();
    let foreign = fs::read(&segments(&other)[0]).unwrap();
    sandbox.run("check data").ok();
    let unreadable = |messages: u64, is_missing: bool| {
        let done = sandbox.run("check --json data");
        let code = if is_missing { 9 } else { 8 };
        assert_eq!(done.code, Some(code), "{done:?}");
        let found: Value = serde_json::from_str(&done.stdout).unwrap();
        let is_in = json!([{
            "from": "0x100000000",
            "messages": messages,
            "file": "00000001.log",
            "is_missing": is_missing,
        }]);
        let records = &found["records"];
        assert_eq!(records["unreadable_in"], is_in, "{found}");
        assert_eq!(records["unreadable"], messages, "{found}");
        records["damaged"].clone()
    };
    // Its messages have the same queues and numbers.
    fs::write(file, foreign).unwrap();
    assert_eq!(unreadable(6, false), json!([]));

    // Behind the restore's mark and the first message, and within the second message.
    let first = &json_lines(&sandbox.run("dump data").ok())[..3];
    let at = first[2]["position"].as_str().unwrap();
    let kept = usize::from_str_radix(&at["0x1".len()..], 16).unwrap();
    fs::write(file, &whole[..kept + 20]).unwrap();
    let lost = json!({ "from": at, "to": "0x200000000", "kept_as": "00000001.log" });
    assert_eq!(unreadable(5, false), json!([lost]));
    let done = sandbox.run("dump data");
    assert_eq!(done.code, Some(8), "{done:?}");
    let stretch = format!("{{\"damaged\":{{\"from\":\"{at}\",\"to\":\"0x200000000\"}}}}");
    assert!(done.stdout.contains(&stretch), "{done:?}");

    fs::remove_file(file).unwrap();
    assert_eq!(unreadable(6, true), json!([]));
    let text = sandbox.run("check data").stdout;
    assert!(text.contains("REFUSED: a start would"), "{text}");
    assert!(
        text.contains("6 of them in 00000001.log, which is not there"),
        "{text}"
    );
    fs::write(file, whole).unwrap();
    sandbox.run("check data").ok();
}

/// What is needed and not there refuses a start, which changes nothing; the file put back heals it. With the
/// loss accepted it serves, and the next start need not be told again.
#[test]
fn a_start_without_a_file_is_refused_until_the_loss_is_accepted() {
    let sandbox = restored();
    let file = &segments(&sandbox)[0];
    let whole = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    // But for the lock, which names its holder.
    let kept = || {
        let mut files = contents(&sandbox.path().join("data"));
        files.remove("lock");
        files
    };
    let before = kept();
    let serve = "serve --listen 127.0.0.1:0 --data data";
    let refused = |command: &str| {
        let command = format!("{command} --log-format text");
        let error = sandbox.run(&command).fails_with(9);
        for told in [
            "00000001.log (6 messages: ",
            "Put them back",
            "--accept-loss",
        ] {
            assert!(error.contains(told), "{error}");
        }
        assert!(kept() == before, "it was changed");
    };
    refused(serve);
    let checked = sandbox.run("check --json data");
    assert_eq!(checked.code, Some(9), "{checked:?}");
    let found: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(found["verdict"], "refused", "{found}");
    let missing = &found["missing"][0];
    assert_eq!(
        (
            &missing["name"],
            &missing["messages"],
            &missing["holds_records"]
        ),
        (&json!("00000001.log"), &json!(6), &json!(false))
    );
    assert!(kept() == before, "a look changed it");
    // Not by a variable or the file, which might be forgotten there.
    fs::write(sandbox.path().join("accept.toml"), "accept_loss = true\n").unwrap();
    let command = format!("{serve} --log-format text --config accept.toml");
    let error = sandbox.run(&command).fails_with(2);
    assert!(error.contains("accept_loss"), "{error}");

    fs::write(file, &whole).unwrap();
    sandbox.run("check data").ok();
    let start = |command: &str| Server::spawn(sandbox.command(command), "data");
    let end = |server: Server| {
        server.signal(Signal::TERM);
        server.wait();
    };
    end(start(serve));
    sandbox.run("check data").ok();

    fs::remove_file(file).unwrap();
    end(start(&format!("{serve} --accept-loss")));
    let text = sandbox.run("check data").ok();
    assert!(text.contains("all readable"), "{text}");
    end(start(serve));
}

/// The creation of the queues stood in the file that is missing, so that the messages to them in the other
/// files are lost as well: the refusal, a check and the start that accepts the loss say how many.
#[test]
fn messages_to_queues_whose_creation_is_missing_are_counted() {
    let sandbox = Sandbox::new();
    let serve = "serve --listen 127.0.0.1:0 --data data --segment-size 4MiB";
    let server = Server::spawn(sandbox.command(serve), "data");
    let url = server.url.clone();
    let bodies = format!("{{\"body\":\"{}\"}}\n", "x".repeat(20_000)).repeat(300);
    fs::write(sandbox.path().join("bodies"), bodies).unwrap();
    for queue in ["one", "other"] {
        let send = format!("send {queue} --create --lines bodies --endpoint {url}");
        sandbox.run(&send).ok();
        sandbox
            .run(&format!("receive {queue} --max 5 --ack --endpoint {url}"))
            .ok();
    }
    server.signal(Signal::KILL);
    server.wait();
    let records = json_lines(&sandbox.run("dump data").ok());
    let file_of = |record: &Value| {
        let position = record["position"].as_str().unwrap();
        u64::from_str_radix(&position[2..], 16).unwrap() >> 32
    };
    let effects = |file: u64, effect: &str| {
        let in_file = records.iter().filter(|record| file_of(record) == file);
        let effects = in_file.flat_map(|record| record["effects"].as_array().unwrap());
        effects.filter(|found| found["effect"] == effect).count()
    };
    assert_eq!(effects(1, "queue created"), 1);
    let files = segments(&sandbox).len() as u64;
    let after = |effect| (2..=files).map(|file| effects(file, effect)).sum::<usize>();
    // The other queue's messages and its creation are in the files that are left.
    assert_eq!(after("queue created"), 1);
    let lost = after("accepted") - 300;
    assert!(lost > 50 && effects(1, "accepted") > 50);

    fs::remove_file(&segments(&sandbox)[0]).unwrap();
    let told = format!("{lost} messages to 1 queue whose creation is lost");
    let error = sandbox
        .run(&format!("{serve} --log-format text"))
        .fails_with(9);
    assert!(error.contains(&told), "{error}");
    let checked = sandbox.run("check --json data");
    assert_eq!(checked.code, Some(9), "{checked:?}");
    let found: Value = serde_json::from_str(&checked.stdout).unwrap();
    let wanted = json!({ "messages": lost, "queues": 1 });
    assert_eq!(found["start"]["without_queue"], wanted, "{found}");
    assert!(
        found["refused"].as_str().unwrap().contains(&told),
        "{found}"
    );
    let text = sandbox.run("check data").stdout;
    assert!(
        text.contains(&format!("would serve without {told}: LOST")),
        "{text}"
    );
    assert!(
        text.contains("NOT THERE") && !text.contains("DAMAGED"),
        "{text}"
    );

    let server = Server::spawn(sandbox.command(&format!("{serve} --accept-loss")), "data");
    let said = |text: &str| {
        let is_it = |event: &&Value| event["message"].as_str().unwrap().contains(text);
        server.passed.iter().find(is_it)
    };
    let event = said("the creation of their queues").expect("it is said");
    assert_eq!(
        (&event["messages"], &event["queues"]),
        (&json!(lost), &json!(1))
    );
    assert!(said("records of the log are not there").is_some() && said("set aside").is_none());
    server.signal(Signal::TERM);
    server.wait();
    sandbox.run("check data").ok();
}

/// An operator moves the folder of a running server, and back. It serves on: it knows its folder by
/// more than the path.
#[test]
fn a_folder_that_is_moved_away_and_back_has_lost_nothing() {
    let sandbox = filled();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let (here, there) = (sandbox.path().join("data"), sandbox.path().join("there"));
    let receive = format!("receive orders.fifo --max 10 --lease 10m --endpoint {url}");
    fs::rename(&here, &there).unwrap();
    assert_eq!(sandbox.run(&receive).json().len(), 1);
    sandbox
        .run(&format!("send mail --endpoint {url} more"))
        .ok();
    assert!(!here.exists());
    fs::rename(&there, &here).unwrap();
    drop(server);
    sandbox.run("check data").ok();
}

/// Somebody removes files under a server, which has them open and could serve on until it ends. It ends with
/// an error that names them, when it is asked to and by itself.
#[test]
fn a_server_whose_files_are_removed_says_so_and_fails() {
    for (is_asked, takes_all) in [(true, false), (true, true), (false, true)] {
        let sandbox = filled();
        let mut server = Server::start(&sandbox);
        if takes_all {
            fs::remove_dir_all(sandbox.path().join("data")).unwrap();
        } else {
            for file in segments(&sandbox) {
                fs::remove_file(file).unwrap();
            }
        }
        if is_asked {
            server.signal(Signal::TERM);
        }
        let event = server.event("ended");
        let error = event["error"].as_str().unwrap();
        let told = "00000001.log, 00000002.log in data: removed or replaced";
        assert!(error.contains(told), "{event}");
        let hint = event["hint"].as_str().unwrap();
        assert!(!hint.contains("is kept"), "{event}");
        assert_eq!(server.wait().code(), Some(1));
    }
}

/// A file of the log is taken away while it is to become smaller, and put back.
#[test]
fn that_the_log_cannot_be_made_smaller_is_told_and_when_it_can_again() {
    let sandbox = Sandbox::new();
    let command = sandbox.command("serve --listen 127.0.0.1:0 --data data --segment-size 4MiB");
    let mut server = Server::spawn(command, "data");
    let url = server.url.clone();
    let start = fs::read_dir(sandbox.path().join("data")).unwrap();
    let start = start
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == "start"))
        .unwrap();
    let away = sandbox.path().join("away");
    fs::rename(&start, &away).unwrap();
    let bodies = format!("{{\"body\":\"{}\"}}\n", "x".repeat(20_000)).repeat(400);
    sandbox
        .run_with_input(&format!("send mail --create --endpoint {url}"), &bodies)
        .ok();
    let received = sandbox.run(&format!("receive mail --max 400 --ack --endpoint {url}"));
    assert_eq!(received.ok().lines().count(), 400);
    // What is appended meanwhile is a reason for a second snapshot, without which nothing is trimmed.
    let told = AtomicBool::new(false);
    let event = thread::scope(|scope| {
        scope.spawn(|| {
            while !told.load(Relaxed) {
                sandbox
                    .run(&format!("send mail --endpoint {url} more"))
                    .ok();
            }
        });
        let event = server.event("the log could not be made smaller; tried again every second");
        told.store(true, Relaxed);
        event
    });
    assert_eq!(event["level"], "WARN", "{event}");
    assert_eq!(event["silent_s"], 60, "{event}");
    fs::rename(&away, &start).unwrap();
    let event = server.event("the log can be made smaller again");
    assert_eq!(event["level"], "INFO", "{event}");
}

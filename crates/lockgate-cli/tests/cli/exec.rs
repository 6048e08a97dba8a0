//! `lockgate receive --exec`: a command for each message.

use std::{
    fs,
    io::{self, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use lockgate_core::{Header, Message, pack};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    messages::Town,
    support::{Done, Server, signal},
};

impl Town {
    fn exec(&self, options: &str, command: &str) -> Done {
        let done = self
            .sandbox
            .command(&format!("receive {options} --exec"))
            .arg(command)
            .output();
        done.unwrap().into()
    }

    fn start_exec(&self, options: &str, command: &str) -> Child {
        let mut run = self.sandbox.command(&format!("receive {options} --exec"));
        run.arg(command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.sandbox.path().join(file)).unwrap_or_default()
    }

    fn attempts(&self, queue: &str) -> Vec<u64> {
        let messages = self.run(&format!("peek {queue} --json")).json();
        messages
            .iter()
            .map(|message| message["attempts"].as_u64().unwrap())
            .collect()
    }
}

/// Starts the child's standard output, line by line.
fn lines_of(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

fn line(reader: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Reads up to a line with this text.
#[track_caller]
pub(crate) fn read_until(reader: &mut impl std::io::BufRead, text: &str) {
    let mut read = String::new();
    while reader.read_line(&mut read).unwrap() > 0 {
        if read.lines().last().unwrap().contains(text) {
            return;
        }
    }
    panic!("{text:?} was not said: {read}");
}

#[test]
fn messages_of_a_key_run_in_order_and_one_at_a_time_and_keys_side_by_side() {
    let town = Town::new();
    let lines: String = (0..60)
        .map(|number| format!("{{\"body\":\"{number}\",\"key\":\"k{}\"}}\n", number % 5))
        .collect();
    for (queue, profile) in [("sqs.fifo", "sqs"), ("strict.fifo", "strict")] {
        town.run(&format!("queue create {queue}")).ok();
        town.run(&format!("queue set {queue} --key-profile {profile}"))
            .ok();
        town.send_lines(queue, &lines).ok();
        // A folder can be made once: whoever finds one of its key fails.
        let command = "mkdir \"$LOCKGATE_KEY\" && { cat; echo; } >> \"out-$LOCKGATE_KEY\" \\
            && rmdir \"$LOCKGATE_KEY\"";
        let done = town.exec(&format!("{queue} --concurrency 4"), command);
        assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{done:?}");
        for key in 0..5 {
            let file = format!("out-k{key}");
            let wanted: String = (0..60)
                .filter(|number| number % 5 == key)
                .map(|number| format!("{number}\n"))
                .collect();
            assert_eq!(town.read(&file), wanted, "{queue}");
            fs::remove_file(town.sandbox.path().join(file)).unwrap();
        }
        let nothing = json!({"ready": 0, "in_flight": 0, "delayed": 0});
        assert_eq!(town.counts(queue), nothing, "{queue}");
    }
    // Nothing is there any more, which is said, and no failure.
    let done = town.exec("sqs.fifo", "false");
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stderr, "nothing received: sqs.fifo is empty\n");
}

/// Passes bytes on between clients and this server. The first answer with the text `held` waits until an
/// answer with the text `passes` has been passed on; `at_hold` is called before.
fn hold_an_answer(
    server: &str,
    held: &'static str,
    passes: &'static str,
    at_hold: impl Fn() + Clone + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server: SocketAddr = server.trim_start_matches("http://").parse().unwrap();
    let passed = Arc::new((Mutex::new(false), Condvar::new()));
    let holds = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let (mut requests, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut requests, &mut to_server));
            let (passed, holds, at_hold) = (passed.clone(), holds.clone(), at_hold.clone());
            let (mut answers, mut to_client) = (server, client);
            thread::spawn(move || {
                let mut answer = [0; 65536];
                while let Ok(length @ 1..) = answers.read(&mut answer) {
                    let text = String::from_utf8_lossy(&answer[..length]);
                    if text.contains(held) && !holds.swap(true, Ordering::SeqCst) {
                        at_hold();
                        let (passed, changed) = &*passed;
                        let passed = passed.lock().unwrap();
                        drop(changed.wait_while(passed, |passed| !*passed).unwrap());
                    }
                    if to_client.write_all(&answer[..length]).is_err() {
                        return;
                    }
                    if text.contains(passes) {
                        *passed.0.lock().unwrap() = true;
                        passed.1.notify_all();
                    }
                }
            });
        }
    });
    endpoint
}

/// The next message of a key can be had once the command of the one before has ended. An answer from before
/// that says nothing about it, however late it comes.
#[test]
fn an_empty_answer_from_before_a_command_ended_does_not_end_the_run() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    town.send_lines("q.fifo --key k", "{\"body\":\"a\"}\n{\"body\":\"b\"}\n")
        .ok();
    let go = town.sandbox.path().join("go");
    let endpoint = hold_an_answer(
        &town.server.url,
        "\"messages\":[]",
        "\"results\"",
        move || fs::write(&go, "").unwrap(),
    );
    let options = format!("--endpoint {endpoint} q.fifo --concurrency 2");
    let done = town.exec(&options, "until [ -e go ]; do sleep 0.01; done; cat; echo");
    assert_eq!((done.code, &*done.stdout), (Some(0), "a\nb\n"), "{done:?}");
}

/// The server frees a key when it settles; the next message of the key may come before that answer does.
#[test]
fn a_message_that_comes_before_its_key_is_known_to_be_free_is_run_too() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    let lines = "{\"body\":\"a\",\"key\":\"k\"}\n{\"body\":\"second\",\"key\":\"k\"}\n\
                 {\"body\":\"x\",\"key\":\"l\"}\n";
    town.send_lines("q.fifo", lines).ok();
    let go = town.sandbox.path().join("go");
    // The answer to the ack of `a` waits until `second` has come; the end of `x` makes the run ask for it.
    let endpoint = hold_an_answer(&town.server.url, "\"results\"", "second", move || {
        fs::write(&go, "").unwrap();
    });
    let options = format!("--endpoint {endpoint} q.fifo --concurrency 2");
    let command = "read body; [ $body != x ] || until [ -e go ]; do sleep 0.01; done; echo $body";
    let done = town.exec(&options, command);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(
        (done.code, &*lines),
        (Some(0), &["a", "x", "second"][..]),
        "{done:?}"
    );
}

#[test]
fn a_command_has_its_message_on_standard_input_and_the_rest_in_its_environment() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("send q --group g --header user.id=a=b --header n:Number=7 tüx")
        .ok();
    let command =
        "echo \"$(cat)|$LOCKGATE_QUEUE|$LOCKGATE_GROUP|${LOCKGATE_KEY-none}|$LOCKGATE_ATTEMPT|\\
$LOCKGATE_MESSAGE_HEADER_user_id|$LOCKGATE_MESSAGE_HEADER_n|$LOCKGATE_SEQUENCE\"
        test -n \"$LOCKGATE_RECEIPT\" -a -n \"$LOCKGATE_MESSAGE_ID\" -a -n \"$LOCKGATE_SENT_AT\"";
    let done = town.exec("q", command);
    assert_eq!(done.ok(), "tüx|q|g|none|1|a=b|7|1\n");

    // A command need not read what a pipe cannot hold.
    let body = "x".repeat(1_000_000);
    town.send_lines("q", &format!("{{\"body\":\"{body}\"}}\n"))
        .ok();
    let done = town.exec("q", "exec <&-; true");
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{done:?}");
    town.send_lines("q", &format!("{{\"body\":\"{body}\"}}\n"))
        .ok();
    assert_eq!(town.exec("q", "wc -c").ok().trim(), "1000000");
}

#[test]
fn a_failed_command_puts_its_message_back_for_later_and_is_told() {
    let town = Town::new();
    town.run("queue create q").ok();
    for body in ["good", "bad", "killed", "fine"] {
        town.run(&format!("send q {body}")).ok();
    }
    let command = "case $(cat) in bad) exit 3;; killed) kill -9 $$;; esac";
    let error = town.exec("q --retry-delay 1h", command).fails_with(1);
    assert!(
        error.contains("it exited with 3; the message comes again in 1h"),
        "{error}"
    );
    assert!(
        error.contains("it was killed by signal 9; the message comes"),
        "{error}"
    );
    assert!(
        error.contains("4 messages: 2 deleted, 2 failed and come again, 0 with a lost lease"),
        "{error}"
    );
    assert_eq!(town.attempts("q"), [1, 1]);
    // Back at once, and still not tried a second time in one run.
    town.run("queue purge q --yes").ok();
    town.run("send q bad").ok();
    town.exec("q --retry-delay 0s", "echo x >> tries; false")
        .fails_with(1);
    assert_eq!(town.read("tries"), "x\n");
    // At most so many.
    town.run("send q another").ok();
    town.exec("q --max 1", "true").ok();
}

/// Otherwise a typing error would send a whole queue to its dead letters.
#[test]
fn a_command_that_cannot_be_started_ends_the_run_with_its_first_message() {
    let town = Town::new();
    town.send_lines("q --create", &"{\"body\":1}\n".repeat(5))
        .ok();
    let not_executable = town.sandbox.write("script", "true");
    for (command, says) in [
        (
            "no-such-command-anywhere",
            "there is no such command (exit code 127)",
        ),
        (
            not_executable.to_str().unwrap(),
            "it cannot be run (exit code 126)",
        ),
    ] {
        let before: u64 = town.attempts("q").iter().sum();
        let error = town.exec("q --follow", command).fails_with(1);
        assert!(error.contains(says), "{error}");
        let after: u64 = town.attempts("q").iter().sum();
        assert_eq!(after, before, "{command}");
    }
}

/// `receive --exec cat | head -1`: every command would die of the closed pipe.
#[test]
fn a_run_ends_when_nobody_reads_its_output_any_more() {
    let town = Town::new();
    let body = "x".repeat(60_000);
    let lines = format!("{{\"body\":\"{body}\"}}\n").repeat(10);
    town.send_lines("q --create", &lines).ok();
    let mut child = town.start_exec("q --follow", "cat; echo");
    let mut reader = lines_of(&mut child);
    assert_eq!(line(&mut reader).len(), 60_000);
    drop(reader);
    let done: Done = child.wait_with_output().unwrap().into();
    let error = done.fails_with(1);
    assert!(
        error.contains("nobody reads its output any more"),
        "{error}"
    );
    assert!(town.attempts("q").len() >= 6, "{:?}", town.attempts("q"));
    assert!(town.attempts("q").iter().sum::<u64>() <= 1);
}

/// An extension whose answer does not come must not use up the lease.
#[test]
fn an_extension_without_an_answer_is_tried_again_while_the_lease_lasts() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    town.run("send q.fifo --key k one").ok();
    let results = "\"results\"";
    let endpoint = hold_an_answer(&town.server.url, results, results, || {});
    let options = format!("--endpoint {endpoint} q.fifo --lease 3s");
    let done = town.exec(&options, "sleep 5");
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn a_lease_lasts_as_long_as_its_command() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    town.run("send q.fifo --key k one").ok();
    town.run("send q.fifo --key k two").ok();
    let command = "cat; echo \" $LOCKGATE_ATTEMPT\"; test -e slept || sleep 3; touch slept";
    let done = town.exec("q.fifo --lease 1s --concurrency 3", command);
    assert_eq!(done.ok(), "one 1\ntwo 1\n");
}

#[test]
fn a_lost_lease_is_told_and_its_message_is_not_deleted() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    town.run("send q.fifo --key k one").ok();
    let command = format!(
        "{:?} nack q.fifo \"$LOCKGATE_RECEIPT\"",
        env!("CARGO_BIN_EXE_lockgate")
    );
    let error = town.exec("q.fifo --retry-delay 1s", &command).fails_with(1);
    let says = "the message is not deleted: the lease has ended";
    assert!(error.contains(says), "{error}");
    assert!(error.contains("1 with a lost lease"), "{error}");
    assert_eq!(town.attempts("q.fifo"), [1]);
    // What the command itself has settled is no failure, nor is it deleted by the run.
    let command = command.replace(" nack ", " ack ");
    let done = town.exec("q.fifo --wait 20s", &command);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stderr.contains(
            "\n1 message: 0 deleted, 0 failed and come again, 0 with a lost lease, 1 gone"
        ),
        "{done:?}"
    );
    let nothing = json!({"ready": 0, "in_flight": 0, "delayed": 0});
    assert_eq!(town.counts("q.fifo"), nothing);
}

/// It is nobody else's, so its lease need not last.
#[test]
fn a_command_goes_on_after_it_has_settled_its_message() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("send q one").ok();
    let command = format!(
        "{:?} ack q \"$LOCKGATE_RECEIPT\" && sleep 3",
        env!("CARGO_BIN_EXE_lockgate")
    );
    let done = town.exec("q --lease 1s", &command);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.stderr.contains("warning"), "{done:?}");
    assert!(done.stderr.contains("1 gone"), "{done:?}");
}

/// A key whose lease was lost goes on at the server. What comes of it meanwhile takes no place from others.
#[test]
fn a_key_whose_command_goes_on_without_a_lease_holds_up_no_other_key() {
    let town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo --dead-letter dead.fifo --attempts-max 1")
        .ok();
    for body in ["one", "two"] {
        town.run(&format!("send q.fifo --key k {body}")).ok();
    }
    // The first lease is seen to be lost before the key goes on.
    let command = format!(
        "body=$(cat); echo $body; test $body = one || {{ touch $body; exit 0; }}
        {program:?} nack q.fifo --delay 3s \"$LOCKGATE_RECEIPT\" 2> /dev/null
        until {program:?} queue show q.fifo --json | grep -q '\"leased\":2'; do :; done
        {program:?} send q.fifo --key other other > /dev/null
        tries=0; until [ -e other ] || [ $tries -gt 600 ]; do sleep 0.1; tries=$((tries + 1)); done",
        program = env!("CARGO_BIN_EXE_lockgate")
    );
    let done = town.exec(
        "q.fifo --follow --max 3 --concurrency 2 --lease 1s",
        &command,
    );
    assert_eq!(
        (done.code, &*done.stdout),
        (Some(1), "one\nother\ntwo\n"),
        "{done:?}"
    );
    let says = "3 messages: 2 deleted, 0 failed and come again, 1 with a lost lease";
    assert!(done.stderr.contains(says), "{done:?}");
}

/// More bytes than a worker holds of its own accord.
#[test]
fn long_messages_run_side_by_side_too() {
    let town = Town::new();
    let line = format!("{{\"body\":\"{}\"}}\n", "x".repeat(1_000_000));
    town.send_lines("q --create", &line.repeat(80)).ok();
    let command = "echo x >> begun; tries=0
        until [ $(wc -l < begun) = 80 ]; do
            sleep 0.2; tries=$((tries + 1)); [ $tries -lt 600 ] || exit 1
        done";
    let done = town.exec("q --concurrency 80", command);
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{done:?}");
}

/// Whoever has lost its lease may have the message a second time.
#[test]
fn a_message_that_comes_again_while_its_command_runs_waits_for_the_end_of_that() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("send q one").ok();
    // The first command puts its message back, and ends when the run has passed it by.
    let command = format!(
        "test ! -e first || {{ echo again; exit; }}; mkdir running || {{ echo together; touch first; exit; }}
        {program:?} nack q \"$LOCKGATE_RECEIPT\" 2> /dev/null
        until [ -e first ] || {program:?} queue show q --json | grep -q '\"leased\":3'; do :; done; touch first; echo once",
        program = env!("CARGO_BIN_EXE_lockgate")
    );
    let done = town.exec("q --follow --max 2 --concurrency 2", &command);
    assert_eq!(
        (done.code, &*done.stdout),
        (Some(1), "once\nagain\n"),
        "{done:?}"
    );
    let says = "2 messages: 1 deleted, 0 failed and come again, 1 with a lost lease";
    assert!(done.stderr.contains(says), "{done:?}");
}

#[test]
fn what_is_purged_or_deleted_while_a_command_runs_is_told_as_gone() {
    let town = Town::new();
    let program = env!("CARGO_BIN_EXE_lockgate");
    let purge = format!("{program:?} queue purge $LOCKGATE_QUEUE --yes");
    let delete = format!("{program:?} queue delete $LOCKGATE_QUEUE --yes");
    town.send_lines("q --create", "{\"body\":1}").ok();
    let done = town.exec("q", &purge);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("0 deleted"), "{done:?}");
    assert!(done.stderr.contains("1 gone"), "{done:?}");
    // A failed command is a failure all the same.
    town.send_lines("q", "{\"body\":1}").ok();
    let error = town.exec("q", &format!("{purge}; false")).fails_with(1);
    assert!(
        error.contains("0 failed and come again, 0 with a lost lease, 1 gone"),
        "{error}"
    );

    for command in [delete.clone(), format!("{delete}; false")] {
        town.send_lines("q --create", "{\"body\":1}").ok();
        let error = town.exec("q", &command).fails_with(3);
        let says = "queue q was deleted, and the message with it";
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("may come again"), "{error}");
        assert!(error.contains("1 gone"), "{error}");
        assert!(error.contains("there is no queue \"q\""), "{error}");
    }
}

/// More of them than come again within the pause after which they do.
#[test]
fn a_run_ends_although_many_messages_fail() {
    let town = Town::new();
    let messages = 2500;
    town.send_lines("q --create", &"{\"body\":1}\n".repeat(messages))
        .ok();
    let error = town
        .exec(
            "q --retry-delay 0s --concurrency 8",
            "echo x >> tries; exit 1",
        )
        .fails_with(1);
    assert!(error.contains("2500 failed and come again"), "{error}");
    assert_eq!(town.read("tries").lines().count(), messages);
}

#[test]
fn a_signal_lets_commands_end_and_a_second_one_kills_them() {
    let town = Town::new();
    town.run("queue create q").ok();
    town.run("send q one").ok();
    let mut child = town.start_exec("q --follow", "echo began; read go < go; echo ended");
    let fifo = town.sandbox.path().join("go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let (mut out, mut err) = (
        lines_of(&mut child),
        BufReader::new(child.stderr.take().unwrap()),
    );
    assert_eq!(line(&mut out), "began");
    signal(&child, Signal::TERM);
    assert!(line(&mut err).contains("waiting for 1 command to end"));
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(line(&mut out), "ended");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(
        town.counts("q"),
        json!({"ready": 0, "in_flight": 0, "delayed": 0})
    );

    town.run("send q two").ok();
    let mut child = town.start_exec("q --follow --retry-delay 0s", "echo began; sleep 600");
    let (mut out, mut err) = (
        lines_of(&mut child),
        BufReader::new(child.stderr.take().unwrap()),
    );
    assert_eq!(line(&mut out), "began");
    signal(&child, Signal::INT);
    assert!(line(&mut err).contains("interrupt again to kill"));
    signal(&child, Signal::INT);
    // Also what the command has started is gone: nobody holds its standard output any more.
    out.read_to_string(&mut String::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(
        town.counts("q"),
        json!({"ready": 1, "in_flight": 0, "delayed": 0})
    );
}

#[test]
fn following_goes_on_after_a_restart() {
    let mut town = Town::new();
    town.run("queue create q").ok();
    let mut child = town.start_exec("q --follow", "cat; echo");
    let (mut out, mut err) = (
        lines_of(&mut child),
        BufReader::new(child.stderr.take().unwrap()),
    );
    town.run("send q before").ok();
    assert_eq!(line(&mut out), "before");
    town.server.signal(Signal::KILL);
    read_until(&mut err, "the server does not answer, trying again");
    let address = town.server.url.trim_start_matches("http://").to_owned();
    town.server = Server::restart(town.server, &town.sandbox, &address);
    town.run("send q after").ok();
    assert_eq!(line(&mut out), "after");
    read_until(&mut err, "the server answers again");
    // A queue that goes away ends it.
    town.run("queue delete q --yes").ok();
    let done: Done = child.wait_with_output().unwrap().into();
    assert_eq!(done.code, Some(3), "{done:?}");
}

#[test]
fn who_follows_a_paused_queue_is_told_so_and_when_it_goes_on() {
    let town = Town::new();
    town.run("queue create q").ok();
    for exec in ["", "--exec cat"] {
        town.run("queue pause q").ok();
        town.run("send q one").ok();
        let mut child = town
            .sandbox
            .command(&format!("receive q --follow {exec}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        read_until(&mut err, "still waiting: q is paused and holds 1 message");
        town.run("queue resume q").ok();
        assert_eq!(line(&mut err), "q is not paused any more");
        signal(&child, Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(143));
        town.run("queue purge q --yes").ok();
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let town = Town::new();
    for options in ["--ack", "--nack"] {
        town.exec(&format!("q {options}"), "true").fails_with(2);
    }
    town.run("receive q --concurrency 2").fails_with(2);
    let error = town.exec("none", "true").fails_with(3);
    assert!(error.contains("there is no queue \"none\""), "{error}");
    town.run("queue create q").ok();
    town.run("queue set q --lease 0s").ok();
    let error = town.exec("q", "true").fails_with(2);
    assert!(error.contains("--lease"), "{error}");
}

/// It has its own headers and content type, and the attempt of its pack; a failure is one of the pack.
#[test]
fn a_command_is_told_of_a_message_and_not_of_its_pack() {
    let town = Town::new();
    town.run("queue create packed.fifo").ok();
    let message = |number: u8| {
        let mut message = Message::new(number.to_string());
        message.content_type = Some(format!("text/x-{number}").into());
        message.headers = vec![Header {
            name: "n".into(),
            kind: "Number".into(),
            value: number.to_string().into(),
        }];
        message
    };
    let packed = pack::pack(&[1, 2, 3].map(message), true);
    let line = json!({
        "key": "k", "body": BASE64_STANDARD.encode(packed.body), "body_encoding": "base64",
        "content_type": pack::CONTENT_TYPE,
    });
    town.send_lines("packed.fifo", &line.to_string()).ok();
    let printed = &town.run("receive packed.fifo --nack --json").json()[0];
    assert_eq!(printed["content_type"], pack::CONTENT_TYPE);
    let id = printed["id"].as_str().unwrap();
    let told = "echo $LOCKGATE_MESSAGE_ID $LOCKGATE_KEY $LOCKGATE_ATTEMPT $LOCKGATE_MESSAGE_HEADER_n \
                $LOCKGATE_CONTENT_TYPE ${LOCKGATE_RECEIPT-none}";
    let line = |number: u32, attempt: u32| {
        let index = number - 1;
        format!("{id}#{index} k {attempt} {number} text/x-{number} none\n")
    };
    let options = "packed.fifo --wait 20s --retry-delay 0s";
    let done = town.exec(options, &format!("{told}; read n; [ $n != 2 ]"));
    assert_eq!(done.stdout, line(1, 1) + &line(2, 1));
    let error = done.fails_with(1);
    let why = "message 2 of 3 in its pack: it exited with 1";
    assert!(error.contains(why), "{error}");
    let all = line(1, 2) + &line(2, 2) + &line(3, 2);
    assert_eq!(town.exec(options, told).ok(), all);
    assert_eq!(town.counts("packed.fifo")["ready"], 0);
}

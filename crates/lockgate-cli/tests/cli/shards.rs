//! The number of a shard, as it is set, told and refused.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Sandbox, Server};

fn serve(sandbox: &Sandbox, folder: &str, shard: u16) -> Server {
    let serve = format!("serve --listen 127.0.0.1:0 --data {folder} --shard {shard}");
    Server::spawn(sandbox.command(&serve), folder)
}

fn stop(server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[track_caller]
fn check_told(sandbox: &Sandbox, folder: &str, shard: u16) {
    let found: Value =
        serde_json::from_str(&sandbox.run(&format!("check --json {folder}")).ok()).unwrap();
    assert_eq!(found["start"]["shard"], shard);
    let told = sandbox.run(&format!("check {folder}")).ok();
    assert!(told.contains(&format!(" of shard {shard}\n")), "{told}");
}

#[test]
fn a_folder_keeps_its_number() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox, "data", 5);
    assert_eq!(server.recovered["shard"], 5);
    let url = server.url.clone();
    sandbox
        .run(&format!("send q --create hello --endpoint {url}"))
        .ok();
    sandbox
        .run(&format!("backup five.backup --endpoint {url}"))
        .ok();
    stop(server);

    check_told(&sandbox, "data", 5);
    let dumped = sandbox.run("dump data").json();
    let started = &dumped[0]["effects"][0];
    assert_eq!(started["effect"], "term started");
    assert_eq!(started["shard"], 5);

    for number in ["", " --shard 6"] {
        let serve = format!("serve --listen 127.0.0.1:0 --data data --log-format text{number}");
        let error = sandbox.run(&serve).fails_with(9);
        let given = if number.is_empty() { 0 } else { 6 };
        let says = format!("the log is that of shard 5, and it was opened as shard {given}");
        assert!(error.contains(&says), "{error}");
        assert!(error.contains("start it with --shard 5"), "{error}");
    }
    let error = sandbox
        .run("serve --listen 127.0.0.1:0 --data data --shard 1024")
        .fails_with(2);
    assert!(error.contains("expected 0 to 1023"), "{error}");
    stop(serve(&sandbox, "data", 5));

    for (told, folder, shard) in [("", "kept", 5), (" --shard 9", "other", 9)] {
        let restore = format!("restore five.backup --data {folder}{told}");
        let done = sandbox.run(&restore);
        let says = format!("1 message in 1 queue, shard {shard}");
        assert!(done.stderr.contains(&says), "{done:?}");
        check_told(&sandbox, folder, shard);
        let server = serve(&sandbox, folder, shard);
        let url = &server.url;
        let received = sandbox.run(&format!("receive q --endpoint {url}")).ok();
        assert!(received.contains("hello"), "{received}");
        stop(server);
    }
}

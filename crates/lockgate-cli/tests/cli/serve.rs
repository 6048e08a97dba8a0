//! How a server starts and ends.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal};

use crate::support::{Done, Sandbox, Server};

#[test]
fn a_signal_ends_it_gracefully() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let sandbox = Sandbox::new();
        let mut server = Server::start(&sandbox);
        server.signal(signal);
        server.event("stopped");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox);
    // A request that never ends keeps the graceful end waiting.
    let mut request =
        std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    std::io::Write::write_all(
        &mut request,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    )
    .unwrap();
    // The server says when it waits for the rest: a connection without a request is closed at once.
    let mut go_on = [0; 25];
    std::io::Read::read_exact(&mut request, &mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.signal(Signal::TERM);
    server.event("stopping; another signal ends it at once");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(143));
}

/// What it does before it is ready may take long, and as process 1 of a container it would hear of no
/// signal that it does not ask for.
#[test]
fn a_signal_while_it_starts_ends_it_at_once() {
    let sandbox = Sandbox::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::QUIT, 131)] {
        // A database that takes a connection and says no word.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let server = sandbox
            .command(&format!(
                "serve --listen 127.0.0.1:0 --postgres postgres://u@{address}/d --postgres-shard s"
            ))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _connection = silent.accept().unwrap();
        crate::support::signal(&server, signal);
        let log = Done::from(server.wait_with_output().unwrap()).fails_with(code);
        assert!(log.contains("ended before it was ready"), "{log}");
    }
}

/// In a home folder its files would lie between the others.
#[test]
fn nothing_is_begun_between_files_of_somebody_else() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path().join("home");
    std::fs::create_dir_all(folder.join("photos")).unwrap();
    let serve = "serve --listen 127.0.0.1:0 --data home --log-format text";
    let error = sandbox.run(serve).fails_with(4);
    assert!(error.contains("such as \"photos\""), "{error}");
    assert!(error.contains("name an empty folder"), "{error}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    // A disk's own folder and hidden files are no reason; once it is Lockgate's, nothing is.
    std::fs::remove_dir(folder.join("photos")).unwrap();
    std::fs::create_dir(folder.join("lost+found")).unwrap();
    std::fs::write(folder.join(".hidden"), "").unwrap();
    let server = Server::start_on(&sandbox, "home");
    server.signal(Signal::TERM);
    server.wait();
    std::fs::create_dir(folder.join("photos")).unwrap();
    Server::start_on(&sandbox, "home");
}

#[test]
fn a_second_server_on_the_folder_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let second = "serve --listen 127.0.0.1:0 --data data --log-format text";
    let error = sandbox.run(second).fails_with(4);
    assert!(error.contains("in use by another Lockgate"), "{error}");
    // Nor does it help to take the file away that names the owner: the folder itself is locked.
    std::fs::remove_file(sandbox.path().join("data/lock")).unwrap();
    let error = sandbox.run(second).fails_with(4);
    assert!(error.contains("in use by another Lockgate"), "{error}");
    sandbox.run("check data").fails_with(4);
    sandbox.run("dump data").fails_with(4);
    assert!(!sandbox.path().join("data/lock").exists());
    server.signal(Signal::KILL);
    server.wait();
    Server::start(&sandbox);
}

#[test]
fn a_taken_address_is_named() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = sandbox
        .run(&format!(
            "serve --listen {address} --data data --log-format text"
        ))
        .fails_with(1);
    assert!(
        error.contains(&format!("listening on {address}")),
        "{error}"
    );
    assert!(error.contains("--listen"), "{error}");
}

/// Who collects the log as JSON finds the reason of a failed start in it, as one event.
#[test]
fn a_failed_start_is_an_event_of_the_log() {
    let sandbox = Sandbox::new();
    let _server = Server::start(&sandbox);
    let error = sandbox
        .run("serve --listen 127.0.0.1:0 --data data")
        .fails_with(4);
    let events = crate::support::json_lines(&error);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["level"], &last["exit_code"]),
        (&"ERROR".into(), &4.into())
    );
    assert!(last["error"].as_str().unwrap().contains("in use"), "{last}");
}

#[test]
fn the_data_folder_is_private() {
    let sandbox = Sandbox::new();
    let _server = Server::start(&sandbox);
    let mode = std::fs::metadata(sandbox.path().join("data"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// What was sent before is there after a restart, and the start says so.
#[test]
fn a_restart_recovers_and_reports() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    sandbox
        .run(&format!("send --endpoint {url} q --create kept"))
        .ok();
    server.signal(Signal::KILL);
    server.wait();

    let again = Server::start(&sandbox);
    let recovered = &again.recovered;
    assert_eq!(recovered["queues"], 1, "{recovered}");
    assert_eq!(recovered["messages"], 1, "{recovered}");
    let url = &again.url;
    let lines = sandbox
        .run(&format!("receive --endpoint {url} q --ack"))
        .json();
    assert_eq!(lines[0]["body"], "kept");
}

/// The kernel ends a process that writes beyond its limit to the size of files, unless it says
/// otherwise. To the log that is a full disk.
#[test]
fn a_limit_to_the_size_of_files_is_a_full_disk() {
    let sandbox = Sandbox::new();
    let server = Server::start_with_small_files(&sandbox);
    let send = |url: &str| {
        sandbox.run(&format!(
            "send --endpoint {url} q --create {}",
            "x".repeat(100_000)
        ))
    };
    let mut sends = (0..20).map(|_| send(&server.url));
    let refused = sends
        .find(|done| done.code != Some(0))
        .expect("20 are more");
    assert!(refused.stderr.contains("full"), "{refused:?}");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    // Without the limit all is well.
    let server = Server::start(&sandbox);
    send(&server.url).ok();
}

/// The ready line is said at any level, and is then the only one.
#[test]
fn the_ready_line_is_always_there() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command("serve --listen 127.0.0.1:0 --data data --log-level error")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    log.read_line(&mut first).unwrap();
    assert_eq!(crate::support::json_lines(&first)[0]["message"], "ready");
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("", Some(0)));
}

/// `serve 2>&1 | head -1`: when nobody reads the log any more, the queues go on. The complaint about
/// the closed pipe used to end the thread that logged.
#[test]
fn a_closed_log_does_not_end_the_server() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command("serve --listen 127.0.0.1:0 --data data --log-level trace")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("\"ready\"") {
        line.clear();
        assert!(
            log.read_line(&mut line).unwrap() > 0,
            "it did not get ready"
        );
    }
    let url = crate::support::json_lines(&line)[0]["url"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(log);
    for number in 0..3 {
        sandbox
            .run(&format!("send --endpoint {url} q --create {number}"))
            .ok();
    }
    let received = sandbox
        .run(&format!("receive --endpoint {url} q --ack"))
        .json();
    assert_eq!(received.len(), 3);
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn health_is_served_as_soon_as_it_says_ready() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut stream =
        std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    std::io::Write::write_all(
        &mut stream,
        b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The ready line says how much room there is.
#[test]
fn a_start_says_how_much_room_the_disk_has() {
    for (marks, space) in [
        ("--free-low 1B --free-min 1B", "normal"),
        ("--free-low 1000000GiB --free-min 1B", "low"),
        ("--free-min 1000000GiB", "full"),
    ] {
        let sandbox = Sandbox::new();
        let mut child = sandbox
            .command(&format!("serve --listen 127.0.0.1:0 --data data {marks}"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let ready = log.lines().map_while(Result::ok).find_map(|line| {
            let event = crate::support::json_lines(&line).remove(0);
            (event["message"] == "ready").then_some(event)
        });
        assert_eq!(ready.unwrap()["space"], space, "{marks}");
        rustix::process::kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}

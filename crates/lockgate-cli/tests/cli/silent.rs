//! `lockgate lead` and `lockgate leaders` over stores that accept connections and say nothing.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    thread,
};

use rustix::process::Signal;

use crate::support::{Done, Sandbox, Server};

/// How a URL of each store on a server begins and ends.
const STORES: [(&str, &str); 5] = [
    ("http", ""),
    ("zk", "/x"),
    ("redis", "/0"),
    ("mysql", "/x"),
    ("postgres", "/x"),
];

/// A port on which somebody listens, and says nothing.
fn silent() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let open: Vec<TcpStream> = listener.incoming().map_while(Result::ok).collect();
        drop(open);
    });
    port
}

/// A store that is silent is given up after a lease, or after the time that the caller wants to wait, if that is shorter; and not
/// when the store's own client would give it up, which is 10 s or more.
#[test]
fn a_silent_store_is_given_up_in_time() {
    let sandbox = Sandbox::new();
    let port = silent();
    let mut all = Vec::new();
    for (scheme, rest) in STORES {
        let via = format!("--via {scheme}://127.0.0.1:{port}{rest}");
        for (line, code) in [
            (
                format!("lead --election e {via} --lease 1h --timeout 300ms -- true"),
                122,
            ),
            (
                format!("lead --election e {via} --lease 1h --try -- true"),
                122,
            ),
            (format!("lead --election e {via} --lease 1s -- true"), 122),
            (format!("leaders list {via} --timeout 300ms"), 5),
        ] {
            // It ends with 124 if that is too long.
            let mut bounded = sandbox.shell(&sandbox.command(&line), "exec timeout 9 \"$@\"");
            let process: Child = bounded
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            all.push((line, code, process));
        }
    }
    for (line, code, process) in all {
        let done = Done::from(process.wait_with_output().unwrap());
        assert_eq!(done.code, Some(code), "{line}: {done:?}");
    }
}

/// A hand-over that runs because the lease is lost has all that is left of the term: nobody tells it to end before.
#[test]
fn a_hand_over_of_a_lost_lease_runs_to_the_end_of_the_term() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut lead = sandbox.command(&format!(
        "lead --election e --via {} --lease 5s --margin 200ms --notice 2s",
        server.url
    ));
    let script = "trap 'echo told >>heard' TERM; echo begun >>heard; while :; do sleep 0.01; done";
    lead.args(["--hand-over", script, "--"]);
    lead.args(["sh", "-c", "echo runs >>heard; exec sleep 1000"]);
    let mut lead = lead.stderr(Stdio::null()).spawn().unwrap();
    let heard = sandbox.path().join("heard");
    let read = || std::fs::read_to_string(&heard).unwrap_or_default();
    while read().is_empty() {
        thread::yield_now();
    }
    server.signal(Signal::STOP);
    assert_eq!(lead.wait().unwrap().code(), Some(121));
    assert_eq!(read(), "runs\nbegun\n");
}

//! Beside Curator in Java, which `scripts/test` builds (clients/curator).

use std::{
    env,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::process::Signal;

use crate::{Lockgate, figures, support, zookeeper};

struct Java {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Java {
    fn start(path: &str, lock_path: &str, role: &str) -> Self {
        let classes = env::var("LOCKGATE_TEST_CURATOR").expect("./scripts/test sets it");
        let server = zookeeper();
        let address = server.strip_prefix("zk://").unwrap();
        let mut child = Command::new("java")
            .args([
                "-XX:TieredStopAtLevel=1",
                "-classpath",
                &classes,
                "Queue",
                address,
            ])
            .args([path, lock_path, "delay", role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut java = Self { child, says };
        java.says("started");
        java
    }

    fn puts(&mut self, delay: u64, text: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        writeln!(stdin, "{delay} {text}").unwrap();
        self.says(&format!("put {text}"));
    }

    fn said(&mut self) -> String {
        self.says.next().unwrap().unwrap()
    }

    fn says(&mut self, what: &str) {
        assert_eq!(self.said(), what);
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_mirror_moves_what_java_puts_meanwhile() {
    let (lockgate, path) = (Lockgate::start("q"), "/import/mirror");
    let mut java = Java::start(path, "-", "producer");
    java.puts(3_600_000, "before");
    let command = format!(
        "import curator {}{path} --queue q --mirror --json",
        zookeeper()
    );
    let mirror = lockgate
        .command(&command)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut all = vec!["before".to_owned()];
    for number in 0..200 {
        let text = format!("item {number}");
        java.puts(number % 2 * 3_600_000, &text);
        all.push(text);
    }
    while lockgate.bodies("q").len() < all.len() {}
    support::signal(&mirror, Signal::TERM);
    let done: support::Done = mirror.wait_with_output().unwrap().into();
    let moved = figures(&done.ok());
    assert_eq!(
        (&moved["items"], &moved["duplicates"]),
        (&201.into(), &0.into())
    );
    all.sort_unstable();
    assert_eq!(lockgate.bodies("q"), all);
}

/// What a consumer in Java holds is left to it, and what is not due is moved from beside it.
#[test]
fn with_the_lock_path_of_java_nothing_is_moved_that_java_works_on() {
    let (lockgate, path, locks) = (Lockgate::start("q"), "/import/held", "/import/held-locks");
    let mut java = Java::start(path, locks, "holder");
    for (delay, text) in [(0, "held"), (3_600_000, "later"), (3_600_001, "last")] {
        let mut stdin = java.child.stdin.as_ref().unwrap();
        writeln!(stdin, "{delay} {text}").unwrap();
    }
    let mut said: Vec<_> = (0..4).map(|_| java.said()).collect();
    said.sort_unstable();
    assert_eq!(said, ["put held", "put last", "put later", "took held"]);
    let done = lockgate.imports(path, &format!("--queue q --lock-path {locks}"));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let moved = figures(&done.stdout);
    assert_eq!(
        (&moved["items"], &moved["taken_by_others"]),
        (&2.into(), &0.into())
    );
    assert_eq!(moved["left"][0]["why"], "somebody else holds it");
    assert_eq!(lockgate.bodies("q"), ["last", "later"]);
    // It is killed: its lock goes with its session, and then nobody holds the item.
    drop(java);
    let import = format!("--queue q --lock-path {locks}");
    while lockgate.imports(path, &import).code != Some(0) {}
    assert_eq!(lockgate.bodies("q"), ["held", "last", "later"]);
}

/// Each item goes to a consumer in Java or is moved, and none does both.
#[test]
fn a_consumer_in_java_and_a_mirror_share_a_queue() {
    let (lockgate, path, locks) = (
        Lockgate::start("q"),
        "/import/shared",
        "/import/shared-locks",
    );
    let mut consumer = Java::start(path, locks, "consumer");
    let mut producer = Java::start(path, "-", "producer");
    let command = format!(
        "import curator {}{path} --queue q --mirror --json --lock-path {locks}",
        zookeeper()
    );
    let mirror = lockgate
        .command(&command)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut all = Vec::new();
    for number in 0..200 {
        let text = format!("item {number}");
        producer.puts(number % 3 * 20, &text);
        all.push(text);
    }
    while figures(&lockgate.imports(path, "--queue q --dry-run").ok())["nodes"] != 0 {}
    support::signal(&mirror, Signal::TERM);
    let done: support::Done = mirror.wait_with_output().unwrap().into();
    let moved = figures(&done.ok());
    assert_eq!(moved["taken_by_others"], 0);
    // It says the rest before it ends.
    drop(consumer.child.stdin.take());
    let mut found = lockgate.bodies("q");
    for line in consumer.says.by_ref() {
        let line = line.unwrap();
        found.extend(line.strip_prefix("took ").map(str::to_owned));
    }
    found.sort_unstable();
    all.sort_unstable();
    assert_eq!(found, all);
}

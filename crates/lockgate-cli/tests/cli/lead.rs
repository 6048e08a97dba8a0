//! `lockgate lead` and `lockgate leaders`, with processes that are killed and frozen.
//!
//! Whether a command and what it has started have gone is seen by their standard output: it ends when nobody has it open.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Sandbox, Server, signal};

/// The longest lease that a test waits for.
const SHORT: &str = "--lease 1s";

/// A folder for elections.
struct Place {
    sandbox: Sandbox,
}

impl Place {
    fn new() -> Self {
        Self {
            sandbox: Sandbox::new(),
        }
    }

    /// What arguments begin with.
    fn via(&self) -> String {
        format!("--via file://{}/elections", self.sandbox.path().display())
    }

    /// `lead` in the election `e`, with that command.
    fn lead(&self, options: &str, command: &[&str]) -> Command {
        let mut lead = self
            .sandbox
            .command(&format!("lead --election e {} {options} --", self.via()));
        lead.args(command);
        lead
    }

    fn shell(&self, options: &str, script: &str) -> Command {
        self.lead(options, &["sh", "-c", script])
    }

    /// The election `e` as `leaders list` shows it.
    fn election(&self) -> Value {
        let listed = self
            .sandbox
            .run(&format!("leaders list e --json {}", self.via()));
        listed.json().remove(0)
    }

    /// `lead`, whose command runs with its output in a pipe that nobody but it and whom it has started have open: `lead` itself
    /// may live on. Waits until it says `runs`.
    fn runs(&self, options: &str, script: &str) -> (Lead, BufReader<File>) {
        let fifo = self.sandbox.path().join("out");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let lead = Lead::start(self.shell(options, &format!("exec >out; {script}")));
        let mut output = BufReader::new(File::open(fifo).unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "runs\n", "{script}");
        (lead, output)
    }

    fn wait_for_candidates(&self, count: usize) {
        while self.election()["candidates"].as_array().unwrap().len() != count {
            std::thread::yield_now();
        }
    }
}

/// A `lead` that runs, with its command's output.
struct Lead {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Lead {
    fn start(mut command: Command) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until nobody has the output open, and reads the rest.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }

    fn signal(&self, what: Signal) {
        signal(&self.process, what);
    }

    fn code(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_command_runs_while_it_leads_and_its_code_is_passed_on() {
    let place = Place::new();
    let mut epochs = Vec::new();
    for code in [0, 1, 7, 255] {
        let script = format!("echo $LOCKGATE_ELECTION $LOCKGATE_EPOCH; exit {code}");
        let mut lead = Lead::start(place.shell("", &script));
        let line = lead.line();
        let (election, epoch) = line.split_once(' ').unwrap();
        assert_eq!(election, "e");
        epochs.push(epoch.parse::<u64>().unwrap());
        assert_eq!(lead.code(), Some(code));
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    let mut killed = Lead::start(place.shell("", "kill -KILL $$"));
    assert_eq!(killed.code(), Some(128 + 9));
    let election = place.election();
    let reasons = election["history"].as_array().unwrap().iter();
    let reasons: Vec<_> = reasons
        .map(|term| term["reason"].as_str().unwrap())
        .collect();
    assert_eq!(reasons, ["error", "error", "error", "error", "end_of_term"]);
}

#[test]
fn a_command_is_a_child_of_lead_and_reads_its_input() {
    let place = Place::new();
    let mut command = place.shell("", "echo $PPID; cat");
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut process.stdin.take().unwrap(), b"words").unwrap();
    let id = process.id();
    let done = process.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(done.stdout).unwrap(),
        format!("{id}\nwords")
    );
}

#[test]
fn another_one_waits_and_leads_when_the_first_has_ended() {
    let place = Place::new();
    let mut first = Lead::start(place.shell("--name a", "echo runs; read line; echo ends"));
    // Its input is at its end, so it ends at once; whoever stands behind it runs after it.
    assert_eq!(first.line(), "runs");
    assert_eq!(first.rest(), "ends\n");
    assert_eq!(first.code(), Some(0));

    let mut first = Lead::start(place.shell("--name a", "echo runs; sleep 1000"));
    assert_eq!(first.line(), "runs");
    let mut second = Lead::start(place.shell("--name b", "echo runs"));
    place.wait_for_candidates(1);
    let election = place.election();
    assert_eq!(election["leader"]["name"], "a");
    assert_eq!(election["candidates"][0], "b");
    let told = place
        .sandbox
        .run(&format!("lead --election e {} --try -- true", place.via()));
    assert!(told.fails_with(120).contains("was not won"));
    let told = place.sandbox.run(&format!(
        "lead --election e {} --timeout 300ms -- true",
        place.via()
    ));
    told.fails_with(120);
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(128 + 15));
    assert_eq!(second.line(), "runs");
    assert_eq!(second.code(), Some(0));
}

#[test]
fn a_candidate_that_is_told_to_end_leaves_its_place() {
    let place = Place::new();
    let mut first = Lead::start(place.shell("", "echo runs; sleep 1000"));
    assert_eq!(first.line(), "runs");
    for (what, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut second = Lead::start(place.shell("", "echo runs"));
        place.wait_for_candidates(1);
        // A signal for the command is none for a candidate.
        second.signal(Signal::USR1);
        second.signal(what);
        assert_eq!(second.code(), Some(code));
        assert_eq!(second.rest(), "");
        assert_eq!(place.election()["candidates"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn signals_go_on_to_the_command() {
    let place = Place::new();
    let script = "trap 'echo usr1' USR1; trap 'echo int; exit 3' INT; echo runs; while :; do sleep 0.01; done";
    let mut lead = Lead::start(place.shell("", script));
    assert_eq!(lead.line(), "runs");
    lead.signal(Signal::USR1);
    assert_eq!(lead.line(), "usr1");
    lead.signal(Signal::INT);
    assert_eq!(lead.rest(), "int\n");
    assert_eq!(lead.code(), Some(3));
}

#[test]
fn a_command_that_does_not_end_is_killed_with_all_it_has_started() {
    let place = Place::new();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 1000' & echo runs; wait";
    let mut lead = Lead::start(place.shell("--kill-after 10ms", script));
    assert_eq!(lead.line(), "runs");
    lead.signal(Signal::TERM);
    assert_eq!(lead.rest(), "");
    assert_eq!(lead.code(), Some(128 + 9));
}

#[test]
fn what_a_command_leaves_ends_with_it() {
    let place = Place::new();
    let mut lead = Lead::start(place.shell("", "sleep 1000 & echo runs"));
    assert_eq!(lead.rest(), "runs\n");
    assert_eq!(lead.code(), Some(0));
}

#[test]
fn a_leader_is_asked_for_a_switch() {
    let place = Place::new();
    let resign = |rest: &str| {
        place
            .sandbox
            .run(&format!("leaders resign e {} {rest}", place.via()))
    };
    resign("").fails_with(3);
    let mut first = Lead::start(place.shell("--name a", "echo runs; sleep 1000"));
    assert_eq!(first.line(), "runs");
    let alone = resign("").fails_with(4);
    assert!(alone.contains("--even-if-alone"), "{alone}");
    let mut second = Lead::start(place.shell("--name b", "echo runs; sleep 1000"));
    place.wait_for_candidates(1);
    let told = resign("--wait 1m --json").json().remove(0);
    assert_eq!(
        (&told["leader"], &told["next"]["name"]),
        (&"a".into(), &"b".into())
    );
    assert_eq!(first.code(), Some(121));
    assert_eq!(second.line(), "runs");
    let told = resign("--even-if-alone --wait 1m --json").json().remove(0);
    assert_eq!(told["next"], Value::Null);
    assert_eq!(second.code(), Some(121));
    let history = place.election()["history"].clone();
    assert_eq!(history[0]["reason"], "asked");
    assert_eq!(history[1]["reason"], "asked");
}

#[test]
fn a_command_dies_with_lead() {
    let place = Place::new();
    let script = "trap '' TERM; sh -c 'trap \"\" TERM HUP; sleep 1000' & echo runs; wait";
    let mut lead = Lead::start(place.shell("", script));
    assert_eq!(lead.line(), "runs");
    lead.signal(Signal::KILL);
    assert_eq!(lead.rest(), "");
}

#[test]
fn a_command_does_not_outlive_its_lease_while_lead_is_frozen() {
    let place = Place::new();
    let script = "trap 'echo told' TERM; echo runs; while :; do sleep 0.01; done";
    let (mut first, mut output) = place.runs(&format!("{SHORT} --name a"), script);
    first.signal(Signal::STOP);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "told\n");
    // Only now can another one lead.
    let election = place.election();
    let (leader, history) = (&election["leader"]["name"], &election["history"]);
    assert!(
        *leader == "a" || history[0]["reason"].is_null(),
        "{election}"
    );
    let mut second = Lead::start(place.shell(&format!("{SHORT} --name b"), "echo runs"));
    assert_eq!(second.line(), "runs");
    first.signal(Signal::CONT);
    assert_eq!(first.code(), Some(121));
}

#[test]
fn a_command_does_not_go_on_without_a_watchdog() {
    let place = Place::new();
    // The watchdog leads the group.
    let script = "ps -o pgid= -p $$ | tr -d ' '; sleep 1000";
    let mut lead = Lead::start(place.shell("", script));
    let watchdog = lead.line().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(watchdog, Signal::KILL).unwrap();
    assert_eq!(lead.rest(), "");
    assert_eq!(lead.code(), Some(1));
}

#[test]
fn a_leader_that_the_server_does_not_answer_ends_its_command() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut command = sandbox.command(&format!(
        "lead --election e --via {} {SHORT} --",
        server.url
    ));
    command.args([
        "sh",
        "-c",
        "trap 'echo told; exit 0' TERM; echo runs; while :; do sleep 0.01; done",
    ]);
    let mut lead = Lead::start(command);
    assert_eq!(lead.line(), "runs");
    server.signal(Signal::STOP);
    assert_eq!(lead.rest(), "told\n");
    assert_eq!(lead.code(), Some(121));
    server.signal(Signal::KILL);
    drop(server);
    let told = sandbox.run("lead --election e --endpoint http://127.0.0.1:9 --lease 1s -- true");
    told.fails_with(122);
}

#[test]
fn a_checkpoint_goes_from_term_to_term() {
    let place = Place::new();
    let run = |options: &[&str]| {
        let mut command = place
            .sandbox
            .command(&format!("lead --election e {}", place.via()));
        command.args(options).args(["--", "sh", "-c", "echo runs"]);
        command.output().unwrap()
    };
    let (inaugurate, hand_over) = (
        "cat; echo \"[$LOCKGATE_PREDECESSOR_EPOCH]\"",
        "printf \"%s\" $LOCKGATE_REASON",
    );
    let hooks = ["--inaugurate", inaugurate, "--hand-over", hand_over];
    let first = run(&hooks);
    assert_eq!(String::from_utf8_lossy(&first.stdout), "[]\nruns\n");
    let epoch = place.election()["last_checkpoint"]["epoch"].to_string();
    let second = run(&hooks);
    let expected = format!("end_of_term[{epoch}]\nruns\n");
    assert_eq!(String::from_utf8_lossy(&second.stdout), expected);

    // What fails, prints nothing or too much leaves the last one.
    for script in ["echo x; exit 1", "true", "head -c 131073 /dev/zero"] {
        run(&["--hand-over", script]);
        assert_eq!(place.election()["last_checkpoint"]["value"], "end_of_term");
    }
    let large = "head -c 131072 /dev/zero | tr '\\0' x";
    run(&["--hand-over", large]);
    let counted = run(&["--inaugurate", "wc -c"]);
    assert_eq!(
        String::from_utf8_lossy(&counted.stdout).trim_start(),
        "131072\nruns\n"
    );

    let failed = run(&["--hand-over", "exit 3"]);
    assert_eq!(failed.status.code(), Some(1));

    // What was not begun is not handed over.
    let refused = run(&["--inaugurate", "exit 4", "--hand-over", "echo lost"]);
    assert_eq!(
        place.election()["last_checkpoint"]["value"]
            .as_str()
            .unwrap()
            .len(),
        131_072
    );
    assert_eq!(
        (refused.status.code(), &refused.stdout[..]),
        (Some(1), &b""[..])
    );
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("--inaugurate exited with 4"), "{told}");
}

#[test]
fn a_leader_that_is_asked_to_go_leaves_a_checkpoint() {
    let place = Place::new();
    let lead = |name: &str, hand_over: &str| {
        let options = format!("lead --election e --name {name} {}", place.via());
        let mut command = place.sandbox.command(&options);
        command.args([
            "--hand-over",
            hand_over,
            "--",
            "sh",
            "-c",
            "echo runs; sleep 1000",
        ]);
        Lead::start(command)
    };
    let resign = || {
        place.sandbox.run(&format!(
            "leaders resign e {} --even-if-alone --wait 1m",
            place.via()
        ))
    };
    for script in [
        "sleep 0.01; printf %s $LOCKGATE_REASON",
        "printf %s $LOCKGATE_REASON; setsid sleep 1000 &",
    ] {
        let mut first = lead("a", script);
        assert_eq!(first.line(), "runs");
        resign().ok();
        assert_eq!(first.code(), Some(121));
        assert_eq!(place.election()["last_checkpoint"]["value"], "asked");
    }
}

/// In other groups and sessions, and of parents that have gone.
#[test]
fn whom_a_command_has_started_ends_with_its_term() {
    let alone = "setsid sh -c 'echo runs; sleep 1000'";
    for script in [
        "timeout 1000 sh -c 'echo runs; sleep 1000'; :".to_owned(),
        format!("{alone} & wait"),
        format!("({alone} &); sleep 1000"),
        format!("exec {alone}"),
    ] {
        // By `lead`, by the watchdog of a `lead` that was killed, and of one that is frozen.
        for what in [Signal::TERM, Signal::KILL, Signal::STOP] {
            let place = Place::new();
            let options = format!("{SHORT} --kill-after 100ms");
            let (lead, mut output) = place.runs(&options, &script);
            lead.signal(what);
            let mut rest = String::new();
            output.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "", "{script}: {what:?}");
        }
    }
    // A command that ends by itself leaves nobody.
    let place = Place::new();
    let script = format!("mkfifo f; {alone} > f & read line < f; echo $line");
    let mut lead = Lead::start(place.shell("", &script));
    assert_eq!(lead.rest(), "runs\n");
    assert_eq!(lead.code(), Some(0));
}

#[test]
fn a_command_that_wants_the_terminal_is_ended() {
    let place = Place::new();
    let lead = place.shell("", "read line");
    let words = std::iter::once(lead.get_program()).chain(lead.get_args());
    let words: Vec<_> = words.map(|it| format!("'{}'", it.display())).collect();
    let mut script = Command::new("script");
    // A terminal of its own.
    script.args([
        "--quiet",
        "--return",
        "--command",
        &words.join(" "),
        "/dev/null",
    ]);
    let done = script.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(told.contains("wants the terminal"), "{told}");
    assert_eq!(done.status.code(), Some(1), "{told}");
}

#[test]
fn a_store_that_does_not_answer_is_waited_for() {
    let sandbox = Sandbox::new();
    // Nobody listens there.
    for (scheme, database) in [
        ("http", ""),
        ("zk", "/x"),
        ("redis", "/0"),
        ("mysql", "/x"),
        ("postgres", "/x"),
    ] {
        let line = format!(
            "lead --election e {SHORT} --timeout 300ms --via {scheme}://127.0.0.1:1{database} -- true"
        );
        sandbox.run(&line).fails_with(122);
    }
}

#[test]
fn nobody_who_reads_standard_error_is_waited_for() {
    let place = Place::new();
    let mut command = place.shell("--kill-after 10ms", "echo runs; yes >&2");
    // Full before it begins, and never read.
    let (reader, writer) = std::io::pipe().unwrap();
    command.stderr(writer).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    signal(&process, Signal::TERM);
    output.read_to_string(&mut line).unwrap();
    assert_eq!(line, "runs\n");
    assert!(process.wait().unwrap().code().is_some());
    drop(reader);
}

#[test]
fn a_command_that_is_not_well_is_ended() {
    let place = Place::new();
    for health in ["exit 1", "sleep 1000"] {
        let mut command = place
            .sandbox
            .command(&format!("lead --election e {}", place.via()));
        command.args(["--health-every", "20ms", "--health", health]);
        command.args(["--", "sleep", "1000"]);
        let mut lead = Lead::start(command);
        lead.rest();
        assert_eq!(lead.code(), Some(1));
        assert_eq!(place.election()["history"][0]["reason"], "error");
    }
}

#[test]
fn a_command_that_is_not_there_does_not_stand() {
    let place = Place::new();
    let file = place.sandbox.write("plain", "x");
    for (command, code) in [
        ("no-such-command", 127),
        ("./no/such", 127),
        (file.to_str().unwrap(), 126),
    ] {
        let told = place
            .sandbox
            .run(&format!("lead --election e {} -- {command}", place.via()));
        told.fails_with(code);
    }
    place
        .sandbox
        .run(&format!("leaders list e {}", place.via()))
        .fails_with(3);
    for wrong in [
        "--lease 10ms",
        "--margin 1ms",
        "--notice 9s",
        "--via ftp://x",
        "--via file://x",
    ] {
        let told = place
            .sandbox
            .run(&format!("lead --election e {wrong} -- true"));
        told.fails_with(2);
    }
}

#[test]
fn elections_are_watched() {
    let place = Place::new();
    let mut watch = place
        .sandbox
        .command(&format!("leaders watch e {}", place.via()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["leader"], Value::Null);
    let mut lead = Lead::start(place.shell("--name a", "echo runs; sleep 1000"));
    assert_eq!(lead.line(), "runs");
    assert_eq!(next()["leader"]["name"], "a");
    let table = place
        .sandbox
        .run(&format!("leaders list {}", place.via()))
        .ok();
    assert!(
        table.starts_with("ELECTION\tLEADER") && table.contains("\ne\ta\t"),
        "{table}"
    );
    lead.signal(Signal::TERM);
    assert_eq!(lead.code(), Some(143));
    assert_eq!(next()["leader"], Value::Null);
    signal(&watch, Signal::TERM);
    assert_eq!(watch.wait().unwrap().code(), Some(143));
}

#[test]
fn what_a_command_sends_is_under_the_fence_of_its_term() {
    let town = crate::messages::Town::new();
    town.run("queue create q").ok();
    let sends = format!(
        "{} send q one >sent && echo $LOCKGATE_FENCE",
        env!("CARGO_BIN_EXE_lockgate")
    );
    let mut command = town.sandbox.command("lead --election e --");
    command.args(["sh", "-c", &sends]);
    let mut lead = Lead::start(command);
    let fence = lead.rest();
    assert_eq!(lead.code(), Some(0));
    let (election, epoch) = fence.trim_end().rsplit_once(':').unwrap();
    assert_eq!(election, "e");
    assert_eq!(town.run("record get fence/e").ok(), epoch);
    // Somebody from before, in all that changes anything.
    for late in [
        "send q late",
        "record put r late",
        "queue set q --lease 1m",
        "queue purge q --yes",
    ] {
        let told = town.run(&format!(
            "{late} --fence e:{}",
            epoch.parse::<u64>().unwrap() - 1
        ));
        let told = told.fails_with(4);
        assert!(
            told.contains(&format!("there is a later term {epoch}")),
            "{told}"
        );
    }
    let peeked = town.run("peek q --json --fence e:1").json();
    assert_eq!(peeked.len(), 1);
    town.run(&format!("send q two --fence e:{epoch}")).ok();
    town.run("send q three --fence e").fails_with(2);
    // A script that has lost its epoch.
    let mut without = town.sandbox.command("send q four");
    let without = without.env("LOCKGATE_FENCE", "").output().unwrap();
    assert_eq!(without.status.code(), Some(2));
}

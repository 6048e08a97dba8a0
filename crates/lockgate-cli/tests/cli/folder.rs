//! `lockgate check` and `lockgate dump` on good folders and bad ones.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    time::SystemTime,
};

use lockgate_machine::MachineLimits;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Done, Sandbox, Server, run_to_file, signal};

/// Every file with its bytes, its mode and when it changed.
pub(crate) type Contents = BTreeMap<String, (Vec<u8>, u32, SystemTime)>;

pub(crate) fn contents(folder: &Path) -> Contents {
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        let mode = metadata.permissions().mode();
        let name = entry.file_name().into_string().unwrap();
        (name, (bytes, mode, metadata.modified().unwrap()))
    });
    files.collect()
}

/// A sandbox whose folder `data` a server has left in good order, with some of everything.
pub(crate) fn filled() -> Sandbox {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let run = |command: &str| sandbox.run(&format!("{command} --endpoint {url}")).ok();
    for number in 0..6 {
        let key = number % 2;
        run(&format!(
            "send orders.fifo --create --key user-{key} --header a=secret-value secret-{number}"
        ));
    }
    run("receive orders.fifo --max 2 --ack");
    run("receive orders.fifo --max 1 --lease 10m");
    run("send mail --create --delay 10m --priority 7 later");
    server.signal(Signal::TERM);
    server.wait();
    sandbox
}

pub(crate) fn segments(sandbox: &Sandbox) -> Vec<std::path::PathBuf> {
    let mut segments: Vec<_> = fs::read_dir(sandbox.path().join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect();
    segments.sort();
    segments
}

/// Changes one byte in the middle of what a message said.
pub(crate) fn flip(file: &Path, text: &str) {
    let mut bytes = fs::read(file).unwrap();
    let at = bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
        }
    }
    !crc
}

#[test]
fn a_good_folder_is_clean_and_stays_as_it_is() {
    let sandbox = filled();
    // No file of the log: these have lower-case numbers.
    sandbox.write("data/0000000A.log", "something else");
    let before = contents(&sandbox.path().join("data"));
    let found: Value = serde_json::from_str(&sandbox.run("check --json data").ok()).unwrap();
    assert_eq!(found["verdict"], "clean", "{found}");
    assert_eq!(found["files"]["segments"], 1, "{found}");
    assert_eq!(found["records"]["messages"], 5, "{found}");
    assert_eq!(found["records"]["unreadable"], 0, "{found}");
    let queue = |name: &str| {
        let queues = found["queues"].as_array().unwrap();
        queues
            .iter()
            .find(|queue| queue["name"] == name)
            .unwrap()
            .clone()
    };
    let orders = queue("orders.fifo");
    assert_eq!(
        [&orders["ready"], &orders["in_flight"], &orders["conserved"]],
        [&Value::from(3), &Value::from(1), &Value::from(true)],
        "{orders}"
    );
    assert_eq!(queue("mail")["delayed"], 1);

    let text = sandbox.run("check data").ok();
    assert!(text.ends_with("clean\n"), "{text}");
    assert!(
        text.contains("5 messages in the queues, all readable"),
        "{text}"
    );
    sandbox.run("dump data --bodies").ok();
    sandbox.run("dump data --snapshot").ok();
    assert!(contents(&sandbox.path().join("data")) == before);

    // A server finds what was said.
    let server = Server::start(&sandbox);
    assert_eq!(server.recovered["messages"], 5);
    assert_eq!(server.recovered["epoch"], found["start"]["epoch"]);
}

/// What the limits of all queues add up to, and which queue has none.
#[test]
fn the_sum_of_all_limits_is_told() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let run = |command: &str| sandbox.run(&format!("{command} --endpoint {url}")).ok();
    let check = |sandbox: &Sandbox| -> (Value, String) {
        let found: Value = serde_json::from_str(&sandbox.run("check --json data").ok()).unwrap();
        (found["granted"].clone(), sandbox.run("check data").ok())
    };
    for name in ["a", "b", "dead", "later", "other"] {
        run(&format!("queue create {name}"));
    }
    for name in ["a", "dead"] {
        run(&format!(
            "queue set {name} --quota-messages 1000 --quota-bytes 1MiB"
        ));
    }
    server.signal(Signal::TERM);
    server.wait();
    let (granted, text) = check(&sandbox);
    assert_eq!(
        granted,
        json!({
            "messages_max": null,
            "message_bytes_max": null,
            "memory_bytes_max": null,
            "unique_ids_bytes_max": 5 * (256 << 20),
            "messages_without_limit": ["b", "later", "other"],
            "owing_keys_bytes_max": 0,
            "bytes_without_limit": ["b", "later", "other"],
        })
    );
    let none = "set no limit to memory: any number of messages in b, later, other; unique ids take up \
                to 1.2 GiB\n";
    assert!(text.contains(none), "{text}");

    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let run = |command: &str| sandbox.run(&format!("{command} --endpoint {url}")).ok();
    for name in ["b", "later", "other"] {
        run(&format!(
            "queue set {name} --quota-messages 1000 --quota-bytes 1MiB"
        ));
    }
    server.signal(Signal::TERM);
    server.wait();
    let (granted, text) = check(&sandbox);
    assert_eq!(granted["messages_max"], 5000, "{granted}");
    assert_eq!(granted["message_bytes_max"], 5 << 20, "{granted}");
    // Beside messages and unique ids, 100,000 producers and as many openings of their spools.
    let memory = 5_u64 * ((256 << 20) + 1000 * 360 + 200_000 * 320);
    assert_eq!(granted["memory_bytes_max"], memory, "{granted}");
    assert!(
        text.contains("add up to 1.5 GiB of memory, 1.2 GiB of it"),
        "{text}"
    );
    assert!(
        text.contains("add up to 5.0 MiB of messages on the disk"),
        "{text}"
    );

    // Dead letters come whatever the quota of their queue says, and what keys owe has a bound for all queues.
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let set = "queue set a --dead-letter dead --attempts-max 3";
    let mut set = sandbox.command(&format!("{set} --endpoint {url}"));
    run_to_file(set.args(["--limit-gap", "1s per key"])).ok();
    server.signal(Signal::TERM);
    server.wait();
    let (granted, text) = check(&sandbox);
    assert_eq!(granted["messages_without_limit"], json!(["dead"]));
    let owed = "any number of messages in dead; unique ids take up to 1.2 GiB, keys that owe a rate or a gap up to ";
    assert!(text.contains(owed), "{text}");
    let most = MachineLimits::default().owing_keys_max * MachineLimits::OWING_KEY_BYTES;
    assert_eq!(granted["owing_keys_bytes_max"], most, "{granted}");
}

/// Not even the lock is written. Where the tests run as root, who may write everything, the program
/// runs as nobody.
#[test]
fn nothing_need_be_writable() {
    let sandbox = filled();
    let data = sandbox.path().join("data");
    for (name, _) in contents(&data) {
        fs::set_permissions(data.join(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(&data, fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = sandbox.path().join("lockgate");
    // By another process: while this one wrote, a process that another test starts would inherit the open file, and
    // nothing runs a file that somebody may write to.
    let mut copy = std::process::Command::new("cp");
    copy.args([env!("CARGO_BIN_EXE_lockgate").as_ref(), program.as_os_str()]);
    assert!(copy.status().unwrap().success());
    let run = |arguments: &str| {
        let mut command = std::process::Command::new(&program);
        command
            .args(arguments.split_whitespace())
            .current_dir(sandbox.path());
        if rustix::process::geteuid().is_root() {
            command.uid(65_534);
        }
        Done::from(command.output().unwrap())
    };
    for arguments in ["check data", "dump data", "dump data --snapshot"] {
        run(arguments).ok();
    }
    let error = run("serve --listen 127.0.0.1:0 --data data --log-format text").fails_with(1);
    assert!(
        error.contains("must belong to the user who serves"),
        "{error}"
    );
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_running_server_is_named() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    for command in ["check", "dump"] {
        let error = sandbox.run(&format!("{command} data")).fails_with(4);
        assert!(
            error.contains(&format!("process {}", server.id())),
            "{error}"
        );
        assert!(error.contains("lockgate backup"), "{error}");
    }
}

#[test]
fn a_folder_of_something_else_is_not_called_clean() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path().join("other")).unwrap();
    sandbox.write("other/notes.txt", "x");
    for folder in ["other", "missing"] {
        sandbox.run(&format!("check {folder}")).fails_with(3);
        sandbox.run(&format!("dump {folder}")).fails_with(3);
    }
}

#[test]
fn damage_in_the_middle_is_counted_and_shown() {
    let sandbox = filled();
    flip(&segments(&sandbox)[0], "secret-3");
    let before = contents(&sandbox.path().join("data"));
    let done = sandbox.run("check data");
    assert_eq!(done.code, Some(8), "{done:?}");
    assert!(
        done.stdout.contains("would serve without 1 record at 0x1"),
        "{done:?}"
    );
    assert!(
        done.stdout.contains("DAMAGED: a start would serve"),
        "{done:?}"
    );
    assert!(done.stderr.is_empty(), "{done:?}");
    let done = sandbox.run("check data --json");
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(found["verdict"], "damaged");
    let stretch = &found["start"]["damaged"][0];
    assert_eq!(stretch["records"], 1, "{found}");

    let done = sandbox.run("dump data");
    assert_eq!(done.code, Some(8), "{done:?}");
    assert!(
        done.stderr.contains("error: 1 place could not be read"),
        "{done:?}"
    );
    assert_eq!(done.stdout.matches("{\"damaged\":").count(), 1, "{done:?}");
    let lines = crate::support::json_lines(&done.stdout);
    let at = (lines.iter().position(|line| !line["damaged"].is_null())).unwrap();
    let number = |line: &Value| line["number"].as_u64().unwrap();
    assert_eq!(number(&lines[at - 1]) + 2, number(&lines[at + 1]));
    assert!(contents(&sandbox.path().join("data")) == before);
    // A start that ends, with all it has to say, as its queues cannot be declared.
    let text = "[[queue]]\nname = \"a\"\ndead_letter = \"gone\"\n";
    sandbox.write("queues.toml", text);
    let log = sandbox
        .run("serve --listen 127.0.0.1:0 --data data --queues queues.toml")
        .fails_with(2);
    let events = crate::support::json_lines(&log);
    let event = |sentence: &str| {
        let is_it = |event: &&Value| event["message"].as_str().unwrap().starts_with(sentence);
        events.iter().find(is_it).unwrap()
    };
    assert_eq!(event("recovered")["messages"], 4);
    // Found under the same name in all three.
    let told = event("a part of the log is damaged");
    assert_eq!(
        (&told["from"], &told["to"]),
        (&stretch["from"], &stretch["to"])
    );
    assert_eq!(lines[at]["damaged"]["from"], stretch["from"]);
}

#[test]
fn a_damaged_snapshot_that_a_start_does_without_costs_nothing_and_that_is_said() {
    let sandbox = filled();
    let name = "0000000100001010-0000000000000002.snapshot";
    sandbox.write(&format!("data/{name}"), "no snapshot");
    let done = sandbox.run("check data");
    assert_eq!(done.code, Some(8), "{done:?}");
    for says in [
        "snapshot 0x100001010: DAMAGED",
        "5 messages in the queues, all readable",
        "nothing is lost with it\n",
    ] {
        assert!(done.stdout.contains(says), "{says}: {done:?}");
    }
    assert_eq!(Server::start(&sandbox).recovered["messages"], 5);
}

#[test]
fn a_torn_tail_is_no_damage() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    sandbox
        .run(&format!("send mail --create --endpoint {url} kept"))
        .ok();
    server.signal(Signal::KILL);
    server.wait();
    let last = segments(&sandbox).pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 40;
    bytes.resize(bytes.len().max(end + 100), 0);
    bytes[end..end + 100].fill(7);
    fs::write(&last, bytes).unwrap();
    let text = sandbox.run("check data").ok();
    assert!(text.contains("of a torn tail"), "{text}");
    let name = last.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(&format!("  would cut {name} to ")), "{text}");
    assert!(text.contains("did not end in good order"), "{text}");
    assert!(
        text.contains("1 message in the queues, all readable"),
        "{text}"
    );
}

#[test]
fn a_newer_version_is_refused_by_all_and_left_alone() {
    another_version_is_refused(99, 60, "has format version 99");
}

#[test]
fn the_unstable_version_is_refused_by_all_and_left_alone() {
    another_version_is_refused(0, 56, "format version 0, which was never stable");
}

/// A segment's header says so, with its checksum there.
#[track_caller]
fn another_version_is_refused(version: u32, checksum_at: usize, wanted: &str) {
    let sandbox = filled();
    let first = &segments(&sandbox)[0];
    let mut bytes = fs::read(first).unwrap();
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32c(&bytes[..checksum_at]);
    bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
    fs::write(first, bytes).unwrap();
    let before = contents(&sandbox.path().join("data"));
    let done = sandbox.run("check data");
    assert_eq!(done.code, Some(9), "{done:?}");
    assert!(done.stdout.contains("REFUSED"), "{done:?}");
    assert!(done.stdout.contains(wanted), "{done:?}");
    let error = sandbox.run("dump data").fails_with(9);
    assert!(error.contains(wanted), "{error}");
    assert!(contents(&sandbox.path().join("data")) == before);
    let error = sandbox
        .run("serve --listen 127.0.0.1:0 --data data --log-format text")
        .fails_with(9);
    assert!(error.contains(wanted), "{error}");
    let mut after = contents(&sandbox.path().join("data"));
    // The refused server had locked the folder.
    after.insert("lock".to_owned(), before["lock"].clone());
    assert!(after == before);
}

#[test]
fn segments_with_swapped_names_are_refused_and_left_alone() {
    let sandbox = filled();
    // A start begins a segment of its own.
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    sandbox
        .run(&format!("send mail --endpoint {url} newest"))
        .ok();
    server.signal(Signal::KILL);
    server.wait();
    let swap = || {
        let found = segments(&sandbox);
        let [.., one, other] = &found[..] else {
            panic!("{found:?}");
        };
        let aside = sandbox.path().join("aside");
        fs::rename(one, &aside).unwrap();
        fs::rename(other, one).unwrap();
        fs::rename(&aside, other).unwrap();
    };
    swap();
    let before = contents(&sandbox.path().join("data"));
    let done = sandbox.run("check data");
    assert_eq!(done.code, Some(9), "{done:?}");
    let wrong = "00000001.log in data is 00000002.log under a wrong name";
    assert!(done.stdout.contains(wrong), "{done:?}");
    let error = sandbox.run("dump data").fails_with(9);
    assert!(error.contains(wrong), "{error}");
    let error = sandbox
        .run("serve --listen 127.0.0.1:0 --data data --log-format text")
        .fails_with(9);
    assert!(error.contains(wrong), "{error}");
    let mut after = contents(&sandbox.path().join("data"));
    // The refused server had locked the folder.
    after.insert("lock".to_owned(), before["lock"].clone());
    assert!(after == before);
    swap();
    sandbox.run("check data").ok();
    assert_eq!(Server::start(&sandbox).recovered["messages"], 6);
}

#[test]
fn a_dump_shows_segments_that_are_missing_or_cannot_be_read() {
    for what in ["removed", "emptied", "without its header"] {
        let sandbox = filled();
        let server = Server::start(&sandbox);
        server.signal(Signal::TERM);
        server.wait();
        let segments = segments(&sandbox);
        let mut bytes = fs::read(&segments[0]).unwrap();
        bytes[17] ^= 1;
        match what {
            "removed" => fs::remove_file(&segments[0]).unwrap(),
            "emptied" => fs::write(&segments[0], "").unwrap(),
            _ => fs::write(&segments[0], bytes).unwrap(),
        }
        let done = sandbox.run("dump data");
        assert_eq!(done.code, Some(8), "{what}: {done:?}");
        let lines = crate::support::json_lines(&done.stdout);
        assert_eq!(
            lines[0]["damaged"]["from"], "0x100000000",
            "{what}: {done:?}"
        );
        assert!(lines[1]["number"].is_number(), "{what}: {done:?}");
        assert_eq!(done.stdout.matches("{\"damaged\":").count(), 1, "{done:?}");
        let behind = format!(
            "dump data --from {}",
            lines.last().unwrap()["position"].as_str().unwrap()
        );
        sandbox.run(&behind).ok();
    }
}

/// A sandbox whose messages stand before a snapshot, where a start does not look at them.
pub(crate) fn restored() -> Sandbox {
    let sandbox = filled();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let body = "x".repeat(20_000);
    sandbox
        .run(&format!("send large --create --endpoint {url} {body}"))
        .ok();
    sandbox.run(&format!("backup all --endpoint {url}")).ok();
    drop(server);
    fs::rename(sandbox.path().join("data"), sandbox.path().join("before")).unwrap();
    sandbox.run("restore all --data data").ok();
    // The next segment says how many records this one should have.
    let server = Server::start(&sandbox);
    server.signal(Signal::TERM);
    server.wait();
    sandbox
}

/// The files kept for segments to come are of the size that the last server had.
#[test]
fn a_check_does_to_the_files_kept_ready_what_a_start_does() {
    let sandbox = Sandbox::new();
    let start = || {
        let command = "serve --listen 127.0.0.1:0 --data data --segment-size 4MiB";
        Server::spawn(sandbox.command(command), "data")
    };
    drop(start());
    // One at least, whatever the server came to.
    fs::write(
        sandbox.path().join("data/0000000f.preallocated"),
        vec![0; 4 << 20],
    )
    .unwrap();
    let found: Value = serde_json::from_str(&sandbox.run("check --json data").ok()).unwrap();
    let changes = found["start"]["changes"].as_array().unwrap();
    let of_kind = |kind: &str| -> Vec<&Value> {
        let is_it = |change: &&Value| change["change"] == kind;
        changes.iter().filter(is_it).collect()
    };
    assert!(of_kind("removed").is_empty(), "{found}");
    let [renamed] = of_kind("renamed")[..] else {
        panic!("{found}");
    };
    drop(start());
    let segment = sandbox
        .path()
        .join("data")
        .join(renamed["to"].as_str().unwrap());
    assert_eq!(segments(&sandbox).last(), Some(&segment));
}

#[test]
fn what_is_no_file_is_named_instead_of_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let sandbox = filled();
    let segment = &segments(&sandbox)[0];
    let elsewhere = sandbox.path().join("elsewhere");
    fs::rename(segment, &elsewhere).unwrap();
    // Files that were moved to where there is room, and can be found from here.
    std::os::unix::fs::symlink(&elsewhere, segment).unwrap();
    sandbox.run("check data").ok();
    fs::remove_file(segment).unwrap();
    mknodat(CWD, segment, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let wanted = "00000001.log: it is no regular file";
    // As a start ends: it may be there the next time.
    for looking in ["check data", "dump data"] {
        let error = sandbox.run(looking).fails_with(1);
        assert!(error.contains(wanted), "{error}");
    }
    let error = sandbox
        .run("serve --listen 127.0.0.1:0 --data data --log-format text")
        .fails_with(1);
    assert!(error.contains(wanted), "{error}");
}

#[test]
fn a_message_that_cannot_be_read_any_more_is_told_in_words() {
    let sandbox = filled();
    let mut server = Server::start(&sandbox);
    // Of the key that nobody holds.
    flip(&segments(&sandbox)[0], "secret-4");
    let url = server.url.clone();
    sandbox
        .run(&format!("peek orders.fifo --endpoint {url}"))
        .ok();
    let event = server.event("the payload of a message cannot be read any more");
    assert_eq!(event["level"], "WARN", "{event}");
    assert!(event["message_id"].is_string(), "{event}");
    sandbox
        .run(&format!("receive orders.fifo --max 10 --endpoint {url}"))
        .ok();
    let position = event["position"].clone();
    let event = server.event("dropped a message whose payload cannot be read any more");
    assert!(event["message_id"].is_string(), "{event}");
    assert_eq!(event["position"], position);
    // An operator finds it in a dump under the same name.
    drop(server);
    let dump = sandbox.run("dump data");
    let lines = crate::support::json_lines(&dump.stdout);
    let damaged = lines
        .iter()
        .find(|line| !line["damaged"].is_null())
        .unwrap();
    assert_eq!(damaged["damaged"]["from"], position, "{event}");
}

#[test]
fn a_dump_shows_what_happened_and_hides_what_users_wrote() {
    let sandbox = filled();
    let text = sandbox.run("dump data").ok();
    assert!(!text.contains("secret"), "{text}");
    let lines = crate::support::json_lines(&text);
    let effects = |lines: &[Value]| -> Vec<String> {
        let effects = lines
            .iter()
            .flat_map(|line| line["effects"].as_array().unwrap().clone());
        effects
            .map(|effect| effect["effect"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = effects(&lines);
    assert_eq!(all.first().unwrap(), "term started");
    assert_eq!(all.last().unwrap(), "term ended");
    for (effect, count) in [
        ("queue created", 2),
        ("accepted", 7),
        ("leased", 3),
        ("acked", 2),
    ] {
        assert_eq!(
            all.iter().filter(|name| *name == effect).count(),
            count,
            "{effect}"
        );
    }
    let numbers: Vec<_> = lines.iter().map(|line| line["number"].as_u64()).collect();
    assert!(numbers.into_iter().eq((1..=lines.len() as u64).map(Some)));
    // One term, and what a start in it says.
    assert!(lines.iter().all(|line| line["epoch"] == 1), "{text}");
    assert_eq!(lines[0]["effects"][0]["epoch"], 1);
    let shown = sandbox.run("dump data --bodies").ok();
    assert!(shown.contains("\"body\":\"secret-3\""), "{shown}");
    assert!(shown.contains("secret-value"), "{shown}");

    let mail = sandbox.run("dump data --queue mail").json();
    assert_eq!(effects(&mail), ["queue created", "accepted"]);
    assert_eq!(mail[1]["effects"][0]["priority"], 7);
    let by_number = mail[0]["effects"][0]["queue"].to_string();
    let same = sandbox
        .run(&format!("dump data --queue {by_number}"))
        .json();
    assert_eq!(same, mail);
    sandbox.run("dump data --queue unknown").fails_with(3);

    let from = mail[0]["position"].as_str().unwrap();
    let to = mail[1]["position"].as_str().unwrap();
    let part = sandbox
        .run(&format!("dump data --from {from} --to {to}"))
        .json();
    assert_eq!(part[0], mail[0]);
    assert!(part.iter().all(|line| line["position"] != to), "{part:?}");
}

/// What is in the queues of a server, with order within a key: bodies by queue.
fn bodies(sandbox: &Sandbox, url: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for queue in ["orders.fifo", "mail"] {
        let lines = sandbox
            .run(&format!("receive {queue} --max 100 --ack --endpoint {url}"))
            .json();
        let bodies = lines
            .iter()
            .map(|line| line["body"].as_str().unwrap().to_owned());
        all.insert(queue.to_owned(), bodies.collect());
    }
    all
}

#[test]
fn a_backup_of_a_running_server_becomes_a_server() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    for number in 0..20 {
        sandbox
            .run(&format!(
                "send orders.fifo --create --key k{} --endpoint {url} order-{number}",
                number % 3
            ))
            .ok();
    }
    let held = sandbox
        .run(&format!(
            "receive orders.fifo --max 1 --lease 10m --endpoint {url}"
        ))
        .json();
    let done = sandbox.run(&format!("backup kept.backup --endpoint {url}"));
    assert!(done.stderr.contains("kept.backup: 20 messages"), "{done:?}");
    let mode = fs::metadata(sandbox.path().join("kept.backup")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    let error = sandbox
        .run(&format!("backup kept.backup --endpoint {url}"))
        .fails_with(4);
    assert!(error.contains("exists already"), "{error}");
    // What happens later is not in it.
    sandbox
        .run(&format!("send mail --create --endpoint {url} later"))
        .ok();
    let was = bodies(&sandbox, &url);

    let done = sandbox.run("restore kept.backup --data data-2");
    assert!(done.stderr.contains("20 messages in 1 queue"), "{done:?}");
    done.ok();
    assert_eq!(
        fs::metadata(sandbox.path().join("data-2"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    sandbox
        .run("restore kept.backup --data data-2")
        .fails_with(4);
    assert!(sandbox.run("check data-2").ok().ends_with("clean\n"));
    let restored = Server::start_on(&sandbox, "data-2");
    assert_eq!(restored.recovered["messages"], 20);
    // The lease of the backup holds, and whoever has its receipt can settle.
    let receipt = held[0]["receipt"].as_str().unwrap();
    sandbox
        .run(&format!(
            "ack orders.fifo --endpoint {} {receipt}",
            restored.url
        ))
        .ok();
    let lines = sandbox
        .run(&format!(
            "receive orders.fifo --max 100 --ack --endpoint {}",
            restored.url
        ))
        .json();
    let orders: Vec<_> = lines.iter().map(|line| line["body"].clone()).collect();
    assert_eq!(orders.len(), 19, "{orders:?}");
    // The first server had given the same ones; the key of the lease had waited there.
    for body in &was["orders.fifo"] {
        assert!(orders.contains(&body.as_str().into()), "{body}");
    }
    // A new message has an id that the other server has not given.
    let sent = |url: &str| {
        let line = sandbox.run(&format!(
            "send --json orders.fifo --key k --endpoint {url} x"
        ));
        line.json()[0]["id"].clone()
    };
    assert_ne!(sent(&url), sent(&restored.url));
}

#[test]
fn a_backup_goes_through_a_pipe_and_bad_ones_leave_nothing() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    sandbox
        .run(&format!("send mail --create --endpoint {url} kept"))
        .ok();
    let mut backup = sandbox.command(&format!("backup - --endpoint {url}"));
    let bytes = backup.output().unwrap().stdout;
    let restore = |name: &str, bytes: &[u8]| {
        fs::write(sandbox.path().join(name), bytes).unwrap();
        let input = fs::File::open(sandbox.path().join(name)).unwrap();
        let mut command = sandbox.command("restore - --data made");
        Done::from(command.stdin(input).output().unwrap())
    };
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    let mut newer = bytes.clone();
    newer[8..12].copy_from_slice(&99_u32.to_le_bytes());
    let checksum = crc32c(&newer[..36]);
    newer[36..40].copy_from_slice(&checksum.to_le_bytes());
    for (name, bytes, says) in [
        ("cut", &bytes[..bytes.len() - 1], "it ends too early"),
        ("flipped", &flipped[..], "the backup is damaged"),
        ("newer", &newer[..], "format version 99"),
        ("other", &b"something else"[..], "no backup"),
        ("nothing", &b""[..], "no backup"),
    ] {
        let error = restore(name, bytes).fails_with(9);
        assert!(error.contains(says), "{name}: {error}");
        let names = fs::read_dir(sandbox.path()).unwrap();
        let left = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .find(|name| name.contains("restore") || name == "made");
        assert_eq!(left, None, "{name}");
    }
    let done = restore("good", &bytes);
    assert!(done.stderr.contains("1 message in 1 queue"), "{done:?}");
    sandbox.run("restore missing --data made-2").fails_with(3);
    assert!(!sandbox.path().join("made-2").exists());
    drop(server);
    let error = sandbox
        .run(&format!("backup x --endpoint {url}"))
        .fails_with(5);
    assert!(error.contains("no server at"), "{error}");
    assert!(!sandbox.path().join("x").exists());
}

#[test]
fn a_signal_ends_a_check_and_a_dump() {
    let sandbox = Sandbox::new();
    for command in ["check", "dump"] {
        for (kind, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            // A database that takes a connection and says no word.
            let silent = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = silent.local_addr().unwrap();
            let mut reading = sandbox
                .command(&format!(
                    "{command} --postgres postgres://u@{address}/d --postgres-shard s"
                ))
                .spawn()
                .unwrap();
            let _connection = silent.accept().unwrap();
            signal(&reading, kind);
            assert_eq!(reading.wait().unwrap().code(), Some(code), "{command}");
        }
    }
}

//! Backups and restores that end before they are done.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    process::{Child, ChildStdin, Stdio},
};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Done, Sandbox, Server, signal};

/// A server with more than a MiB, and a backup of it in `kept.backup`.
fn filled(sandbox: &Sandbox) -> Server {
    let server = Server::start(sandbox);
    let url = &server.url;
    let body = "x".repeat(100_000);
    for _ in 0..15 {
        sandbox
            .run(&format!("send mail --create --endpoint {url} {body}"))
            .ok();
    }
    sandbox
        .run(&format!("backup kept.backup --endpoint {url}"))
        .fails_with(0);
    server
}

fn names(sandbox: &Sandbox) -> BTreeSet<String> {
    let entries = fs::read_dir(sandbox.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The kernel ends a process that writes beyond its limit to the size of files, unless it says
/// otherwise.
#[test]
fn a_limit_to_the_size_of_files_is_an_error() {
    let sandbox = Sandbox::new();
    let server = filled(&sandbox);
    let url = server.url.clone();
    let before = names(&sandbox);
    let run = |arguments: &str| {
        let mut command = sandbox.command_with_small_files(arguments);
        Done::from(command.output().unwrap())
    };
    let error = run(&format!("backup y --endpoint {url}")).fails_with(1);
    assert!(error.contains("writing y: File too large"), "{error}");
    let error = run("restore kept.backup --data made").fails_with(1);
    assert!(error.contains("the backup does not fit"), "{error}");
    assert_eq!(names(&sandbox), before);
    drop(server);
    let dumped = fs::File::create(sandbox.path().join("dumped")).unwrap();
    let mut dump = sandbox.command_with_small_files("dump --bodies data");
    let error = Done::from(dump.stdout(dumped).stderr(Stdio::piped()).output().unwrap());
    let error = error.fails_with(1);
    assert!(
        error.contains("writing to standard output: File too large"),
        "{error}"
    );
}

/// It is heard although the program waits for the reader of its output.
#[test]
fn a_signal_ends_a_backup_that_nobody_reads() {
    let sandbox = Sandbox::new();
    let server = filled(&sandbox);
    let mut backup = sandbox
        .command(&format!("backup - --endpoint {}", server.url))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It has begun; no pipe has room for all of it.
    let mut output = backup.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    signal(&backup, Signal::TERM);
    assert_eq!(backup.wait().unwrap().code(), Some(143));
}

#[test]
fn a_signal_ends_a_restore_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    drop(filled(&sandbox));
    let before = names(&sandbox);
    for (kind, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (mut restore, _input) = restoring(&sandbox);
        assert_ne!(names(&sandbox), before, "there is something to leave");
        signal(&restore, kind);
        assert_eq!(restore.wait().unwrap().code(), Some(code));
        assert_eq!(names(&sandbox), before);
    }
}

/// A restore that has begun to write into the folder beside `made`, and what it is given there.
fn restoring(sandbox: &Sandbox) -> (Child, ChildStdin) {
    let bytes = fs::read(sandbox.path().join("kept.backup")).unwrap();
    let mut restore = sandbox
        .command("restore - --data made")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = restore.stdin.take().unwrap();
    // No pipe has room for it, so much of it was read when it is written.
    input.write_all(&bytes[..1_000_000]).unwrap();
    (restore, input)
}

#[test]
fn a_restore_goes_where_a_link_leads() {
    let sandbox = Sandbox::new();
    drop(filled(&sandbox));
    let path = |name: &str| sandbox.path().join(name);
    std::os::unix::fs::symlink("elsewhere", path("link")).unwrap();
    let error = sandbox.run("restore kept.backup --data link").fails_with(1);
    assert!(
        error.contains("following the link link: No such file"),
        "{error}"
    );
    fs::create_dir(path("elsewhere")).unwrap();
    sandbox.run("restore kept.backup --data link/").ok();
    assert!(path("link").is_symlink() && !path("elsewhere").is_symlink());
    sandbox.run("check elsewhere").ok();
    sandbox.run("restore kept.backup --data link").fails_with(4);
}

#[test]
fn what_a_killed_restore_left_is_known_and_removed_by_the_next() {
    let sandbox = Sandbox::new();
    drop(filled(&sandbox));
    let before = names(&sandbox);
    let (mut restore, _input) = restoring(&sandbox);
    let left = names(&sandbox).difference(&before).next().unwrap().clone();
    // Not while its owner lives.
    let error = sandbox.run("restore kept.backup --data made").fails_with(4);
    let named = format!("is under way, process {}", restore.id());
    assert!(error.contains(&named), "{error}");
    restore.kill().unwrap();
    restore.wait().unwrap();

    let path = sandbox.path().join(&left);
    let check = Done::from(
        sandbox
            .command("check .")
            .current_dir(&path)
            .output()
            .unwrap(),
    );
    let target = fs::canonicalize(sandbox.path()).unwrap().join("made");
    let says = format!("a restore into {} left it unfinished", target.display());
    assert!(check.stdout.contains(&says), "{check:?}");

    // A restore into another folder has nothing to do with it; nor is removed what is no log's.
    sandbox.run("restore kept.backup --data made-2").ok();
    fs::write(path.join("mine"), "").unwrap();
    let told = sandbox.run("restore kept.backup --data made").fails_with(0);
    let says = format!("{left} stays there: mine is none of its files");
    assert!(told.contains(&says), "{told}");
    fs::remove_file(path.join("mine")).unwrap();
    fs::remove_dir_all(sandbox.path().join("made")).unwrap();
    let told = sandbox.run("restore kept.backup --data made").fails_with(0);
    assert!(told.contains(&format!("removed ./{left}")), "{told}");
    assert!(!path.exists());
    sandbox.run("check made").ok();
}

#[test]
fn what_a_killed_backup_left_is_removed_by_the_next() {
    let sandbox = Sandbox::new();
    let server = filled(&sandbox);
    let part = sandbox.write(".lockgate-a1B2c3.backup-part", "a part");
    let owned = sandbox.write(".lockgate-d4E5f6.backup-part", "a part");
    let other = sandbox.write(".lockgate-of-mine.backup-part", "mine");
    // As the process does that writes it.
    let owner = fs::File::open(&owned).unwrap();
    owner.lock().unwrap();
    let told = sandbox
        .run(&format!("backup y --endpoint {}", server.url))
        .fails_with(0);
    assert_eq!(told.matches("removed").count(), 1, "{told}");
    assert!(!part.exists());
    assert!(owned.exists() && other.exists());
}

#[test]
fn a_backup_into_a_missing_folder_says_so() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    sandbox.write("file", "");
    for (path, folder) in [("no/where/x", "no/where"), ("file/x", "file")] {
        let error = sandbox
            .run(&format!("backup {path} --endpoint {}", server.url))
            .fails_with(3);
        assert!(
            error.contains(&format!("{folder} is no folder")) && error.contains("make"),
            "{error}"
        );
        assert!(!error.contains("backup-part"), "{error}");
    }
}

#[test]
fn a_backup_and_a_restore_tell_programs_what_they_did() {
    let sandbox = Sandbox::new();
    let server = filled(&sandbox);
    let url = &server.url;
    for made in [
        "queue create k.fifo",
        "key state set k.fifo a x --new",
        "key state set k.fifo b x --new",
        "record put r v",
        "ledger create trades",
        "ledger append trades bought",
        "ledger append trades sold",
    ] {
        sandbox.run(&format!("{made} --endpoint {url}")).ok();
    }
    let taken = sandbox
        .run(&format!("backup told.backup --json --endpoint {url}"))
        .json()
        .remove(0);
    let bytes = fs::metadata(sandbox.path().join("told.backup"))
        .unwrap()
        .len();
    let created = taken["created_at"].clone();
    let expected = json!({
        "file": "told.backup", "created_at": created, "messages": 15, "records": 1, "states": 2, "bytes": bytes,
        "events": 2, "unreadable": 0, "unreadable_events": 0,
    });
    assert_eq!(taken, expected);
    assert!(created.as_str().unwrap().ends_with('Z'), "{created}");
    let made = sandbox.run("restore told.backup --data made --shard 7 --json");
    let expected = json!({
        "data": "made", "shard": 7, "created_at": created, "queues": 2, "messages": 15, "records": 1, "states": 2,
        "events": 2, "dropped": 0, "lost_appends": 0,
    });
    assert_eq!(made.json(), [expected]);
    let found = sandbox.run("check made --json").json().remove(0);
    assert_eq!(
        found["values"],
        json!({"records": 1, "states": 2, "bytes": 3 * 256 + 6})
    );
    assert_eq!(found["queues"][0]["states"], 2);
    let text = sandbox.run("check made").ok();
    assert!(
        text.contains("  1 named record and 2 key states take 774 B of memory"),
        "{text}"
    );
    let error = sandbox
        .run(&format!("backup - --json --endpoint {url}"))
        .fails_with(2);
    assert!(error.contains("--json needs a file"), "{error}");
}

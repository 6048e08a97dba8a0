//! Backups and restores that end before they are done.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    process::Stdio,
};

use rustix::process::Signal;

use crate::support::{Done, Sandbox, Server, signal};

/// A server with more than a MiB, and a backup of it in `kept.backup`.
fn filled(sandbox: &Sandbox) -> Server {
    let server = Server::start(sandbox);
    let url = &server.url;
    let body = "x".repeat(100_000);
    for _ in 0..15 {
        sandbox
            .run(&format!("send -q mail --create --endpoint {url} {body}"))
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
    let bytes = fs::read(sandbox.path().join("kept.backup")).unwrap();
    let before = names(&sandbox);
    for (kind, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut restore = sandbox
            .command("restore - --data made")
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // No pipe has room for it, so much of it was read when it is written.
        let mut input = restore.stdin.take().unwrap();
        input.write_all(&bytes[..1_000_000]).unwrap();
        assert_ne!(names(&sandbox), before, "there is something to leave");
        signal(&restore, kind);
        assert_eq!(restore.wait().unwrap().code(), Some(code));
        assert_eq!(names(&sandbox), before);
    }
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

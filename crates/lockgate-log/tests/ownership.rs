//! A folder belongs to one log at a time.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use lockgate_core::{Epoch, LockError, Log, LogSource};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, OpenError};

/// Tells the test below, run in a process of its own, which folder to hold.
const FOLDER_VARIABLE: &str = "LOCKGATE_TEST_FOLDER_TO_HOLD";

/// And another one, which folder to take.
const FOLDER_TO_TAKE_VARIABLE: &str = "LOCKGATE_TEST_FOLDER_TO_TAKE";

fn open(path: &Path) -> Result<LocalLog, OpenError> {
    let disk = FolderDisk::open(path).unwrap();
    LocalLog::open(Arc::new(disk), LocalLogOptions::default())
}

fn refusal(path: &Path) -> String {
    let error = open(path).unwrap_err();
    assert!(matches!(error, OpenError::Lock(LockError::Held { .. })));
    error.to_string()
}

/// Does nothing by itself; as a child process it holds a folder until it is killed.
#[test]
fn holds_a_folder() {
    let Ok(path) = env::var(FOLDER_VARIABLE) else {
        return;
    };
    let mut log = open(Path::new(&path)).unwrap();
    log.recover(lockgate_core::Position(0), Epoch(0), &mut |_, _| {})
        .unwrap();
    log.begin_epoch(Epoch(1)).unwrap();
    println!("\nheld");
    // Until the other end of the pipe is closed, which also happens if the parent dies.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn another_process_is_named_and_its_death_frees_the_folder() {
    let temp = tempfile::tempdir().unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "holds_a_folder", "--nocapture"])
        .env(FOLDER_VARIABLE, temp.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let held = output
        .lines()
        .map(Result::unwrap)
        .any(|line| line == "held");
    assert!(held, "the child holds the folder");

    let message = refusal(temp.path());
    assert!(
        message.contains(&format!("process {}", child.id())),
        "{message}"
    );
    assert!(
        message.contains(&temp.path().display().to_string()),
        "{message}"
    );

    child.kill().unwrap();
    child.wait().unwrap();
    let mut log = open(temp.path()).unwrap();
    assert_eq!(
        log.recover(lockgate_core::Position(0), Epoch(0), &mut |_, _| {})
            .unwrap()
            .epoch,
        Epoch(1)
    );
}

#[test]
fn a_second_instance_in_the_same_process_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let first = open(temp.path()).unwrap();
    let message = refusal(temp.path());
    assert!(
        message.contains("stop it or choose another data folder"),
        "{message}"
    );
    drop(first);
    open(temp.path()).unwrap();
}

#[test]
fn options_out_of_range_are_refused_with_the_reason() {
    let temp = tempfile::tempdir().unwrap();
    let refused = |options: LocalLogOptions| {
        let disk = Arc::new(FolderDisk::open(temp.path()).unwrap());
        LocalLog::open(disk, options).unwrap_err().to_string()
    };
    let default = LocalLogOptions::default;
    for (options, reason) in [
        (
            LocalLogOptions {
                segment_bytes: 4_096,
                ..default()
            },
            "segment_bytes is below",
        ),
        (
            LocalLogOptions {
                segment_bytes: 1 << 20,
                ..default()
            },
            "does not fit into segment_bytes",
        ),
        (
            LocalLogOptions {
                record_bytes_max: usize::MAX,
                ..default()
            },
            "record_bytes_max is above",
        ),
        (
            LocalLogOptions {
                open_files_max: 0,
                ..default()
            },
            "open_files_max is zero",
        ),
    ] {
        let message = refused(options);
        assert!(message.contains(reason), "{message}");
    }
}

/// Does nothing by itself; as a child process it takes and gives back a folder.
#[test]
fn takes_a_folder() {
    let Ok(path) = env::var(FOLDER_TO_TAKE_VARIABLE) else {
        return;
    };
    drop(open(Path::new(&path)).unwrap());
    println!("\ntaken");
}

/// A full disk once refused every start of a folder without a lock file, because the process id could
/// not be written into it.
#[test]
fn a_folder_is_taken_where_not_a_byte_can_be_written() {
    let temp = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "takes_a_folder", "--nocapture"])
        .env(FOLDER_TO_TAKE_VARIABLE, temp.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.lines().any(|line| line == "taken"), "{output:?}");
}

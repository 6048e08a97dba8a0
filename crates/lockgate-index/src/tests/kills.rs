//! A process that writes an index is killed.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use super::{folder, id, ids, open};
use crate::open::TREE;

const FOLDER: &str = "LOCKGATE_INDEX_TEST_FOLDER";
const BATCH: u64 = 700;

#[test]
fn what_was_synced_survives_a_kill_and_nothing_is_half() {
    let folder = folder();
    let mut durable = 0;
    for round in 1..=6 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "tests::kills::writer", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        // Each round kills in another place of the cycle of syncs and merges: after a sync was reported,
        let synced = said
            .by_ref()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("synced ")?.parse::<u64>().ok());
        durable = synced.take(2 + round).last().unwrap().max(durable);
        // or in the middle of the next one, when a run has just become part of the index.
        if round % 2 == 0 {
            let current = || fs::read(folder.path().join(TREE).join("current")).unwrap();
            let before = current();
            while current() == before {
                assert!(child.try_wait().unwrap().is_none(), "it has ended");
                thread::yield_now();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        durable = check(folder.path(), durable);
    }
}

/// Returns up to where the index is complete.
fn check(folder: &Path, durable: u64) -> u64 {
    let index = open(folder);
    let up_to = index.up_to(1).unwrap();
    assert!(up_to >= durable, "{durable} was synced, {up_to} is there");
    assert_eq!(up_to % BATCH, 0, "half of a batch is there");
    let all: Vec<_> = (1..=up_to + 2 * BATCH).map(id).collect();
    let found = index.look_up(1, &all).unwrap().found;
    let right =
        (1..=up_to + 2 * BATCH).map(|number| Some(number).filter(|&number| number <= up_to));
    assert!(
        found.into_iter().eq(right),
        "not exactly the ids up to {up_to} are there"
    );
    assert_eq!(index.check().unwrap(), up_to);
    up_to
}

/// The process that is killed; nothing where it is not started by the test above.
#[test]
fn writer() {
    let Some(folder) = env::var_os(FOLDER) else {
        return;
    };
    let index = open(Path::new(&folder));
    let mut up_to = index.up_to(1).unwrap_or(0);
    let mut out = io::stdout();
    loop {
        index
            .add(1, &ids(up_to + 1..=up_to + BATCH), up_to + BATCH)
            .unwrap();
        up_to += BATCH;
        if !(up_to / BATCH).is_multiple_of(3) {
            index.sync().unwrap();
            writeln!(out, "synced {up_to}")
                .and_then(|()| out.flush())
                .unwrap();
        }
    }
}

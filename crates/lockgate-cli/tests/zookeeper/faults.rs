//! Runs that are killed, and requests and answers that are lost.

use std::{process::Stdio, time::Duration};

use lockgate_zookeeper::queue::{Kind, Place};

use crate::{
    Lockgate, figures, items,
    proxy::{self, Fault, Way},
    put, zookeeper,
};

/// Nodes of one and of two items, and the items in order.
fn fill(path: &str, nodes: usize) -> Vec<String> {
    let bundle = |at: usize| match at % 3 {
        0 => items(&[&format!("{at:04} a"), &format!("{at:04} b")]),
        _ => items(&[&format!("{at:04}")]),
    };
    let bundles: Vec<_> = (0..nodes).map(|at| (Place::At(1), bundle(at))).collect();
    put(path, Kind::Delay, &bundles);
    bundles.into_iter().flat_map(|(_, items)| items).collect()
}

/// Each request and each answer in turn is the last one before the kill: what was sent may or may not be there, and may or
/// may not be deleted.
#[test]
fn a_run_that_is_killed_anywhere_is_taken_up_again() {
    let lockgate = Lockgate::start("q");
    let mut all = Vec::new();
    for way in [Way::Requests, Way::Answers] {
        let mut was_reached = true;
        let mut number = 1;
        while was_reached {
            let path = format!("/import/killed-{way:?}-{number}");
            all.extend(
                fill(&path, 7)
                    .iter()
                    .map(|item| (path.clone(), item.clone())),
            );
            let (address, reached) = proxy::start(Fault::Swallow, way, number);
            let command = format!("import curator zk://{address}{path} --queue q");
            let mut import = lockgate
                .command(&command)
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            was_reached = loop {
                if reached.recv_timeout(Duration::from_millis(10)).is_ok() {
                    break true;
                }
                if import.try_wait().unwrap().is_some() {
                    break false;
                }
            };
            if was_reached {
                // Its answers to pings are swallowed too, so it goes no further than it is.
                import.kill().unwrap();
            }
            import.wait().unwrap();
            let moved = figures(&lockgate.imports(&path, "--queue q").ok());
            assert_eq!(moved["left"].as_array().unwrap().len(), 0);
            number += 1;
        }
        assert!(number > 6, "{way:?}: {number}");
    }
    let messages = lockgate.run("peek q --json --max 100000").json();
    let mut found: Vec<(String, String)> = messages
        .iter()
        .map(|message| {
            let id = message["unique_id"].as_str().unwrap();
            let path = id
                .strip_prefix("curator:")
                .unwrap()
                .rsplit_once('/')
                .unwrap()
                .0;
            (
                path.to_owned(),
                message["body"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    found.sort_unstable();
    all.sort_unstable();
    assert_eq!(found, all);
}

#[test]
fn a_run_that_is_killed_often_moves_each_item_once() {
    let (lockgate, path) = (Lockgate::start("q"), "/import/often");
    let mut all = fill(path, 2_000);
    let import = format!("import curator {}{path} --queue q", zookeeper());
    for kill in 1..=5 {
        let mut import = lockgate
            .command(&import)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Each is killed when it has moved some.
        while lockgate.bodies("q").len() < kill * 400 && import.try_wait().unwrap().is_none() {}
        import.kill().unwrap();
        import.wait().unwrap();
    }
    lockgate.run(&import).ok();
    all.sort_unstable();
    assert_eq!(lockgate.bodies("q"), all);
}

#[test]
fn two_runs_at_a_time_move_each_item_once() {
    let (lockgate, path) = (Lockgate::start("q"), "/import/two");
    let mut all = fill(path, 500);
    let import = format!("import curator {}{path} --queue q", zookeeper());
    let runs = [(); 2].map(|()| {
        let mut command = lockgate.command(&import);
        command.stderr(Stdio::null()).spawn().unwrap()
    });
    // Each may leave what the other one has in hand.
    for mut run in runs {
        assert!(matches!(run.wait().unwrap().code(), Some(0 | 1)));
    }
    lockgate.run(&import).ok();
    all.sort_unstable();
    assert_eq!(lockgate.bodies("q"), all);
}

#[test]
fn a_run_goes_on_when_requests_and_answers_are_lost() {
    let lockgate = Lockgate::start("q");
    for locks in ["", "--lock-path /import/lost-locks"] {
        for way in [Way::Requests, Way::Answers] {
            for number in 2..=9 {
                let kind = if locks.is_empty() { "bare" } else { "locked" };
                let path = format!("/import/lost-{kind}-{way:?}-{number}");
                let items = fill(&path, 7);
                let (address, _reached) = proxy::start(Fault::Cut, way, number);
                let command = format!("import curator zk://{address}{path} --queue q {locks}");
                lockgate.run(&command).ok();
                lockgate.run("queue show q").ok();
                let mut found = lockgate.bodies("q");
                found.sort_unstable();
                assert_eq!(found, items, "{locks} {way:?} {number}");
                lockgate.run("queue purge q --yes").ok();
            }
        }
    }
}

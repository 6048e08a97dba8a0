//! The local log on the faulty disk, against the suite for every log, power cuts included.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::sync::Arc;

use lockgate_conformance::log::{self, Fixture};
use lockgate_core::Log;
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{FaultyDisk, PowerCut};

struct Simulated {
    disk: FaultyDisk,
    cut: PowerCut,
    options: LocalLogOptions,
}

impl Fixture for Simulated {
    fn fresh(&mut self) {
        self.disk = FaultyDisk::new();
    }

    fn open(&mut self) -> Box<dyn Log> {
        let disk = Arc::new(self.disk.clone());
        Box::new(LocalLog::open(disk, self.options.clone()).unwrap())
    }

    fn kill(&mut self) {
        self.disk = self.disk.kill();
    }

    fn cut_power(&mut self) -> bool {
        self.disk = self.disk.crash(self.cut);
        true
    }
}

fn check(cut: PowerCut, segment_bytes: u32, record_bytes_max: usize) {
    let not_run = log::run(&mut Simulated {
        disk: FaultyDisk::new(),
        cut,
        options: LocalLogOptions {
            segment_bytes,
            record_bytes_max,
            generation_seed: Some(9),
            ..LocalLogOptions::default()
        },
    });
    assert_eq!(not_run, ["a_deposed_owner_cannot_append"]);
}

#[test]
fn losing_everything_unsynced() {
    check(PowerCut::LoseAllUnsynced, 8 << 10, 4_000);
}

#[test]
fn losing_nothing() {
    check(PowerCut::KeepAll, 64 << 10, 20_000);
}

#[test]
fn losing_some() {
    for seed in 0..5 {
        check(PowerCut::Seeded(seed), 10_000, 5_000);
    }
}

//! The local log on the faulty disk, against the suite for every log, power cuts included.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::sync::Arc;

use lockgate_conformance::{
    log::{self, Fixture},
    queue,
};
use lockgate_core::Storage;
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
        self.disk.set_free_bytes(Some(1 << 40));
    }

    fn open(&mut self) -> Storage {
        let disk = Arc::new(self.disk.clone());
        LocalLog::open(disk, self.options.clone()).unwrap().into()
    }

    fn kill(&mut self) {
        self.disk = self.disk.kill();
    }

    fn damage(&mut self, payload: &[u8]) -> bool {
        let mut image = self.disk.image();
        let bytes_and_place = image.values_mut().find_map(|bytes| {
            let at = bytes
                .windows(payload.len())
                .position(|part| part == payload)?;
            Some((bytes, at))
        });
        let (bytes, at) = bytes_and_place.expect("some file holds it");
        bytes[at] ^= 1;
        self.disk = FaultyDisk::from_image(image);
        true
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
    assert_eq!(
        not_run,
        [
            // A folder is open but once.
            "a_deposed_owner_cannot_append",
            "a_recovery_fences_before_it_reads",
            "of_two_that_recover_the_later_one_begins",
            "a_deposed_owner_changes_nothing",
            "damage_is_told_while_the_log_is_in_use",
        ]
    );
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

#[test]
fn queues_over_it() {
    for seed in 0..3 {
        let not_run = queue::run(&mut Simulated {
            disk: FaultyDisk::new(),
            cut: PowerCut::Seeded(seed),
            options: LocalLogOptions {
                segment_bytes: 64 << 10,
                record_bytes_max: 20_000,
                generation_seed: Some(9),
                ..LocalLogOptions::default()
            },
        });
        assert_eq!(not_run, ["a_deposed_engine_stops_and_the_new_one_serves"]);
    }
}

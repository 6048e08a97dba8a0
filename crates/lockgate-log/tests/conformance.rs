//! The local log in a real folder, against the suite for every log.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::sync::Arc;

use lockgate_conformance::log::{self, Fixture};
use lockgate_core::Log;
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use tempfile::TempDir;

struct Folder {
    temp: TempDir,
    options: LocalLogOptions,
}

impl Fixture for Folder {
    fn fresh(&mut self) {
        self.temp = tempfile::tempdir().unwrap();
    }

    fn open(&mut self) -> Box<dyn Log> {
        let disk = Arc::new(FolderDisk::open(self.temp.path()).unwrap());
        Box::new(LocalLog::open(disk, self.options.clone()).unwrap())
    }

    fn kill(&mut self) {}
}

fn check(options: LocalLogOptions) {
    let temp = tempfile::tempdir().unwrap();
    let not_run = log::run(&mut Folder { temp, options });
    assert_eq!(
        not_run,
        [
            "a_deposed_owner_cannot_append",
            "synced_records_survive_a_power_cut",
            "an_epoch_survives_a_power_cut",
        ]
    );
}

#[test]
fn with_default_options() {
    check(LocalLogOptions {
        free_bytes_min: 0,
        ..LocalLogOptions::default()
    });
}

#[test]
fn with_small_segments() {
    check(LocalLogOptions {
        segment_bytes: 16 << 10,
        record_bytes_max: 5_000,
        free_bytes_min: 0,
        open_files_max: 2,
        write_ahead_bytes_max: 4 << 20,
        generation_seed: Some(1),
    });
}

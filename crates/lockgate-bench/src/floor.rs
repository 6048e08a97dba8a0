//! The performance of the disk alone.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::payload::Payloads;
use anyhow::Context as _;

/// The file's size; when it is full, writing starts again at its beginning.
const FILE_BYTES: u64 = 64 << 20;

/// The largest piece of a single write.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// A file whose blocks were written before, so that a sync changes no metadata: the cheapest durable write.
pub(crate) struct DiskFloor {
    file: File,
    at: u64,
}

impl DiskFloor {
    pub(crate) fn new(path: &Path, payloads: &Payloads) -> anyhow::Result<Self> {
        let prepare = || -> io::Result<File> {
            let file = OpenOptions::new()
                .create_new(true)
                .read(true)
                .write(true)
                .open(path)?;
            let piece = payloads.bytes(1 << 20);
            for at in (0..FILE_BYTES).step_by(piece.len()) {
                file.write_all_at(&piece, at)?;
            }
            file.sync_all()?;
            Ok(file)
        };
        let file = prepare().with_context(|| format!("preparing {}", path.display()))?;
        Ok(Self { file, at: 0 })
    }

    /// Writes and syncs pieces of `bytes`, one after the other, for `time`; returns their number
    /// and the time it took.
    pub(crate) fn run(
        &mut self,
        payloads: &Payloads,
        bytes: usize,
        time: Duration,
    ) -> anyhow::Result<(u32, Duration)> {
        let piece = payloads.bytes(bytes.clamp(1, PIECE_BYTES_MAX));
        let started = Instant::now();
        let mut syncs = 0_u32;
        while syncs == 0 || started.elapsed() < time {
            if self.at + piece.len() as u64 > FILE_BYTES {
                self.at = 0;
            }
            self.file
                .write_all_at(&piece, self.at)
                .and_then(|()| self.file.sync_data())
                .context("writing the floor's file")?;
            self.at += piece.len() as u64;
            syncs += 1;
        }
        Ok((syncs, started.elapsed()))
    }
}

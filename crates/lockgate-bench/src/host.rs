//! The machine of the figures.

use std::{fs, path::Path, thread};

/// Version, processors, kernel and file system, on one line.
pub(crate) fn describe(folder: &Path) -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
    format!(
        "lockgate {} ({}), {cores} processors, {} {}, {}",
        env!("CARGO_PKG_VERSION"),
        if cfg!(debug_assertions) {
            "unoptimised: for figures build with --release"
        } else {
            "optimised"
        },
        std::env::consts::OS,
        kernel.as_deref().unwrap_or("").trim(),
        file_system(folder),
    )
}

/// The kind of the folder's file system, if the kernel reports it (Linux).
fn file_system(folder: &Path) -> String {
    let unknown = || "unknown file system".to_owned();
    let (Ok(folder), Ok(mounts)) = (
        folder.canonicalize(),
        fs::read_to_string("/proc/self/mounts"),
    ) else {
        return unknown();
    };
    // Device, mount point, kind, ...; the folder is on the longest mount point above it, and of
    // several on the same place the last one covers the others.
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .filter(|(point, _)| folder.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map_or_else(unknown, |(_, kind)| kind.to_owned())
}

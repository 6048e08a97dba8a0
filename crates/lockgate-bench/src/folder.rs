//! A log's folder as other programs see it, and the bytes that this process has read and written.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use lockgate_engine::Engine;

/// Bytes of a single read.
const PIECE_BYTES: usize = 1 << 20;

/// How long to wait for an engine that works in the background.
const SETTLE_STEPS: u32 = 300;
const SETTLE_STEP: Duration = Duration::from_millis(200);

/// After so many steps without a change, no further change is expected.
const STILL_STEPS: u32 = 10;

/// All files of the folder, in order of their paths.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes of the file system that the folder occupies.
pub(crate) fn taken(folder: &Path) -> anyhow::Result<u64> {
    let sum = || {
        let mut blocks = 0;
        for file in files(folder)? {
            // A file that was removed in between occupies nothing.
            blocks += fs::metadata(file).map_or(0, |metadata| metadata.blocks());
        }
        Ok(blocks * 512)
    };
    sum().map_err(|error| failed(error, "measuring", folder))
}

/// The space of the folder after its engine has finished its background work: written a snapshot,
/// compacted messages, released space.
pub(crate) fn settled(folder: &Path, engine: &Engine) -> anyhow::Result<u64> {
    // Space comes back in leaps, so progress towards the next release counts as a change too.
    let look = || {
        let metrics = engine.metrics();
        let maintenance = metrics.maintenance;
        let done = (
            metrics.groups,
            maintenance.snapshots,
            maintenance.compacted_bytes,
        );
        taken(folder).map(|taken| (taken, done))
    };
    let mut last = look()?;
    let mut still = 0;
    for _ in 0..SETTLE_STEPS {
        thread::sleep(SETTLE_STEP);
        let now = look()?;
        still = if now == last { still + 1 } else { 0 };
        last = now;
        if still == STILL_STEPS {
            break;
        }
    }
    Ok(last.0)
}

/// Copies the folder as it is. If the log is open but nobody uses it, that is what a kill would leave.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copy = || {
        for file in files(from)? {
            let to = to.join(file.strip_prefix(from).unwrap_or(&file));
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(file, to)?;
        }
        Ok(())
    };
    copy().map_err(|error| failed(error, "copying", from))
}

/// Removes an unneeded folder, for its space.
pub(crate) fn remove(folder: &Path) -> anyhow::Result<()> {
    fs::remove_dir_all(folder).map_err(|error| failed(error, "removing", folder))
}

/// Drops the folder's files from the operating system's cache, as far as possible, so that the next
/// reads come from the disk.
pub(crate) fn forget(folder: &Path) -> anyhow::Result<()> {
    let forget = || {
        for file in files(folder)? {
            let file = File::open(file)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    };
    forget().map_err(|error| failed(error, "syncing", folder))
}

/// The time to read so many bytes of a log's folder, or all there are, one piece after the other:
/// the newest snapshot, then full segments, as a start does.
pub(crate) fn read_log(folder: &Path, bytes: u64) -> anyhow::Result<Duration> {
    let read = || {
        let (snapshots, others): (Vec<_>, Vec<_>) = files(folder)?
            .into_iter()
            .partition(|file| file.extension().is_some_and(|kind| kind == "snapshot"));
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = bytes;
        let started = Instant::now();
        for file in snapshots.into_iter().next_back().into_iter().chain(others) {
            let mut file = File::open(file)?;
            while left > 0 {
                match file.read(&mut piece)? {
                    0 => break,
                    read => left = left.saturating_sub(read as u64),
                }
            }
        }
        Ok(started.elapsed())
    };
    read().map_err(|error| failed(error, "reading", folder))
}

/// Bytes that this process has read and written by system calls. `None`: the system does not report them.
pub(crate) fn transferred() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("rchar:")?, field("wchar:")?))
}

fn failed(error: std::io::Error, doing: &str, folder: &Path) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("{doing} {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_as_much_and_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::create_dir_all(one.join("in")).unwrap();
        fs::write(one.join("in/file"), vec![7; 100_000]).unwrap();
        copy(&one, &other).unwrap();
        assert_eq!(fs::read(other.join("in/file")).unwrap(), vec![7; 100_000]);
        assert!(taken(&other).unwrap() >= 100_000);
        forget(&other).unwrap();
        read_log(&other, u64::MAX).unwrap();
        remove(&other).unwrap();
        assert!(!other.exists());
    }
}

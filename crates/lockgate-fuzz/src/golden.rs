//! Bytes that the golden data folders hold: what a real server wrote.

use std::{fs, path::PathBuf};

use crate::disk::{HEADER_BYTES, RECORD_HEADER_BYTES};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../lockgate-cli/tests/golden")
}

/// All files of all folders whose names end so, in the order of their paths.
fn files(suffix: &str) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let files: Vec<_> = paths.iter().flat_map(fs::read).collect();
    assert!(!files.is_empty(), "no golden file {suffix}");
    files
}

pub(crate) fn backups() -> Vec<Vec<u8>> {
    files(".backup")
}

pub(crate) fn snapshots() -> Vec<Vec<u8>> {
    files(".snapshot")
}

/// The images in the snapshots; each has one piece.
pub(crate) fn images() -> Vec<Vec<u8>> {
    let image = |snapshot: &Vec<u8>| {
        let len = u32::from_le_bytes(snapshot[36..40].try_into().expect("four bytes"));
        snapshot[40..40 + len as usize].to_vec()
    };
    snapshots().iter().map(image).collect()
}

/// Segments without the blank end of their header and file.
pub(crate) fn segments() -> Vec<Vec<u8>> {
    let compact = |segment: Vec<u8>| {
        let end = segment.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
        let mut compact = segment[..HEADER_BYTES].to_vec();
        compact.extend_from_slice(segment.get(4096..end).unwrap_or_default());
        compact
    };
    files(".log").into_iter().map(compact).collect()
}

/// The payloads of the records of each segment.
pub(crate) fn records() -> Vec<Vec<Vec<u8>>> {
    let payloads = |segment: Vec<u8>| {
        let mut payloads = Vec::new();
        let mut rest = &segment[HEADER_BYTES..];
        while rest.len() > RECORD_HEADER_BYTES {
            let len = u32::from_le_bytes(rest[4..8].try_into().expect("four bytes")) as usize;
            let end = (RECORD_HEADER_BYTES + len).min(rest.len());
            payloads.push(rest[RECORD_HEADER_BYTES..end].to_vec());
            rest = &rest[end..];
        }
        payloads
    };
    segments().into_iter().map(payloads).collect()
}

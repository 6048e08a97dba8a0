//! Checks files that the tree reads without checking them first.
//!
//! A file `current` names the list of runs, `vN`, and has its checksum (XXH3, 128 bits). The list and the runs are
//! archives: sections, a table of them, and an end that says where the table is and has its checksum. The tree compares
//! the checksums of tables too late, of the list never.

use std::{
    fs::{self, File},
    io::{Cursor, ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_128;

use crate::{IndexError, open::TREE};

/// Names the current list of runs.
pub(crate) const CURRENT: &str = "current";
/// The folder of runs.
pub(crate) const RUNS: &str = "tables";
/// The section of the list that names the runs.
const RUNS_SECTION: &[u8] = b"tables";
/// The end of an archive: a magic, a version and a kind; a checksum; where the table is, and its length.
const END: usize = 4 + 1 + 1 + 16 + 8 + 8;
/// Far above what a table of sections or a list of a million files takes.
const TABLE_MAX: u64 = 64 << 10;
const LIST_MAX: u64 = 64 << 20;

/// Whether the tree in this folder may be opened. One that is still to be made may.
pub(crate) fn check(folder: &Path, tree: &Path) -> Result<(), IndexError> {
    match problem(tree) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(IndexError::damaged(folder, what)),
        Err(error) => Err(IndexError::io(folder, error)),
    }
}

/// The files that a tree needs, by their paths within it; none of one that has not been made. The list has been
/// [checked](check).
pub(crate) fn needed(folder: &Path, tree: &Path) -> Result<Vec<PathBuf>, IndexError> {
    let io = |error| IndexError::io(folder, error);
    let Some(current) = read(&tree.join(CURRENT), 1024).map_err(io)? else {
        return Ok(Vec::new());
    };
    let found = || {
        let list = format!("v{}", name_of_list(&current)?.0);
        let runs = runs(&read(&tree.join(&list), LIST_MAX).ok()??)?;
        let runs = runs.iter().map(|run| Path::new(RUNS).join(run.to_string()));
        Some(
            [CURRENT.into(), list.into()]
                .into_iter()
                .chain(runs)
                .collect(),
        )
    };
    found().ok_or_else(|| IndexError::damaged(folder, "its list of files has changed"))
}

fn problem(tree: &Path) -> std::io::Result<Option<String>> {
    let Some(current) = read(&tree.join(CURRENT), 1024)? else {
        // It is the last file that is made. Runs come later.
        let made = match fs::read_dir(tree.join(RUNS)) {
            Ok(mut runs) => runs.next().is_some(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        return Ok(made.then(|| format!("its file {CURRENT} is missing")));
    };
    let Some((number, checksum)) = name_of_list(&current) else {
        return Ok(Some(format!("its file {CURRENT} has another shape")));
    };
    let name = format!("v{number}");
    let Some(list) = read(&tree.join(&name), LIST_MAX)? else {
        return Ok(Some(format!("its file {name} is missing")));
    };
    if xxh3_128(&list) != checksum {
        return Ok(Some(format!("its file {name} has another checksum")));
    }
    let Some(runs) = runs(&list) else {
        return Ok(Some(format!("its file {name} has another shape")));
    };
    for run in runs {
        let fits = match File::open(tree.join(RUNS).join(run.to_string())) {
            Ok(file) => end_fits(file)?,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if !fits {
            return Ok(Some(format!("its file {RUNS}/{run} is missing or torn")));
        }
    }
    Ok(None)
}

/// A file that is not too long to be what it should be.
fn read(path: &Path, max: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(max + 1).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(bytes))
}

fn name_of_list(current: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = current.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    (kind == [0]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

/// The numbers of the files in a list with the right checksum.
fn runs(list: &[u8]) -> Option<Vec<u64>> {
    let archive = sfa::Reader::from_reader(&mut Cursor::new(list)).ok()?;
    let section = archive.toc().section(RUNS_SECTION)?;
    let start = usize::try_from(section.pos()).ok()?;
    let mut rest = list.get(start..)?;
    let mut take = |count| -> Option<&[u8]> {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let mut runs = Vec::new();
    for _level in 0..take(1)?[0] {
        for _run in 0..take(1)?[0] {
            let files = u32::from_le_bytes(take(4)?.try_into().ok()?);
            for _file in 0..files {
                // Its number, a kind, its checksum, and a number that is added to those of its rows.
                let (number, _) = take(8 + 1 + 16 + 8)?.split_first_chunk()?;
                runs.push(u64::from_le_bytes(*number));
            }
        }
    }
    Some(runs)
}

/// Whether the end of an archive and its table of sections are what was written.
fn end_fits(mut file: File) -> std::io::Result<bool> {
    let mut end = [0; END];
    let length = file.seek(SeekFrom::End(0))?;
    let Some(table_end) = length.checked_sub(END as u64) else {
        return Ok(false);
    };
    file.seek(SeekFrom::Start(table_end))?;
    file.read_exact(&mut end)?;
    let number = |at: usize| u64::from_le_bytes(*end[at..].first_chunk().expect("an end has them"));
    let (table, table_length) = (number(END - 16), number(END - 8));
    if table_length > TABLE_MAX || table.checked_add(table_length) != Some(table_end) {
        return Ok(false);
    }
    file.seek(SeekFrom::Start(table))?;
    let mut bytes = Vec::new();
    file.take(table_length).read_to_end(&mut bytes)?;
    let checksum = u128::from(number(6)) | u128::from(number(14)) << 64;
    Ok(xxh3_128(&bytes) == checksum)
}

/// Removes files that a write has left which has failed, as each does while the disk is full. A run is never empty. Whoever calls
/// this is the only one that writes.
pub(crate) fn remove_empty_runs(folder: &Path) {
    let runs = fs::read_dir(folder.join(TREE).join(RUNS));
    for run in runs.into_iter().flatten().flatten() {
        if run
            .metadata()
            .is_ok_and(|run| run.is_file() && run.len() == 0)
        {
            // What stays is removed when the index is opened.
            let _ = fs::remove_file(run.path());
        }
    }
}

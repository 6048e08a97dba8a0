//! Data folders written by the first version of the format, which every later version must open and in
//! which it must find exactly what is recorded beside them.
//!
//! `cargo xtask golden` writes them anew, byte for byte the same as long as the format is. A change
//! of these files is a change of the format: raise its version and *add* folders, never replace.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says where it stopped"
)]

mod make;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn lockgate(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(arguments)
        .output()
        .unwrap();
    let code = done.status.code().unwrap();
    assert!(matches!(code, 0 | 8), "{arguments:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// What this version finds in a folder, without what is a matter of taste: sizes in memory, bytes read,
/// which files a start would touch.
fn found(folder: &Path) -> Value {
    let folder = folder.to_str().unwrap();
    let mut check: Value = serde_json::from_str(&lockgate(&["check", "--json", folder])).unwrap();
    for (of, names) in [
        ("", &["folder", "files", "state_bytes", "granted"][..]),
        ("start", &["bytes", "changes"]),
    ] {
        let part = if of.is_empty() {
            &mut check
        } else {
            &mut check[of]
        };
        for name in names {
            part.as_object_mut().unwrap().remove(*name);
        }
    }
    let lines = |arguments: &[&str]| -> Vec<Value> {
        let text = lockgate(arguments);
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    json!({
        "check": check,
        "records": lines(&["dump", "--bodies", folder]),
        "snapshots": lines(&["dump", "--snapshot", folder]),
    })
}

#[test]
fn every_version_finds_what_was_recorded() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        make::all(&golden());
    }
    for name in make::NAMES {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("data");
        copy(&golden().join(name), &folder);
        let is = found(&folder);
        let file = golden().join(format!("{name}.json"));
        if update {
            fs::write(&file, format!("{is:#}\n")).unwrap();
        }
        let should: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(is, should, "{name}");
    }
}

/// What the generator writes is what is kept, so that the format cannot change unnoticed.
#[test]
fn the_format_is_still_written_byte_for_byte() {
    let temp = tempfile::tempdir().unwrap();
    make::all(temp.path());
    let bytes = |folder: &Path| -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        files
            .iter()
            .map(|path| (name(path), fs::read(path).unwrap()))
            .collect()
    };
    for name in make::NAMES {
        let (kept, made) = (bytes(&golden().join(name)), bytes(&temp.path().join(name)));
        let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
            files.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&made), names(&kept), "{name}");
        assert!(made == kept, "{name} is written otherwise");
    }
    let file = |folder: &Path| fs::read(folder.join(make::BACKUP)).unwrap();
    assert!(
        file(temp.path()) == file(&golden()),
        "a backup is written otherwise"
    );
}

/// Segments, snapshots and backups of a version to come: refused by every command, and left as they
/// are.
#[test]
fn what_a_later_version_wrote_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    for (ending, checksum_at) in [(".log", 60), (".snapshot", 28)] {
        let folder = temp.path().join(&ending[1..]);
        copy(&golden().join("snapshot-trimmed"), &folder);
        let mut names: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().ends_with(ending))
            .collect();
        names.sort();
        let file = names.pop().unwrap();
        let mut bytes = fs::read(&file).unwrap();
        set_version(&mut bytes, 2, checksum_at);
        fs::write(&file, &bytes).unwrap();
        let data = folder.to_str().unwrap();
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data", data];
        for arguments in [&["check", data][..], &["dump", data], &serve] {
            if arguments[0] == "dump" && ending == ".snapshot" {
                // The records behind it are of this version.
                continue;
            }
            let said = refused(arguments);
            assert!(said.contains("version 2"), "{arguments:?}: {said}");
        }
        assert!(fs::read(&file).unwrap() == bytes, "{ending} was changed");
    }
    let mut bytes = fs::read(golden().join(make::BACKUP)).unwrap();
    set_version(&mut bytes, 3, 36);
    let backup = temp.path().join("newer.backup");
    fs::write(&backup, bytes).unwrap();
    let made = temp.path().join("made");
    let (backup, data) = (backup.to_str().unwrap(), made.to_str().unwrap());
    let said = refused(&["restore", backup, "--data", data]);
    assert!(said.contains("version 3") && !made.exists(), "{said}");
}

fn set_version(bytes: &mut [u8], version: u32, checksum_at: usize) {
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..checksum_at]);
    bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// What the command says, which must end with the code for data that is refused.
fn refused(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(9), "{arguments:?}: {done:?}");
    String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
}

#[test]
fn every_version_restores_the_backup() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("data");
    let backup = golden().join(make::BACKUP);
    lockgate(&[
        "restore",
        backup.to_str().unwrap(),
        "--data",
        folder.to_str().unwrap(),
    ]);
    let restored = &found(&folder)["check"]["queues"];
    let kept: Value =
        serde_json::from_slice(&fs::read(golden().join("keyed-leases.json")).unwrap()).unwrap();
    assert_eq!(*restored, kept["check"]["queues"]);
}

//! What libFuzzer drives: the target that the environment names.
#![no_main]

use std::{env, fs::File, os::unix::fs::FileExt as _, path::Path, process::exit, sync::OnceLock};

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use lockgate_fuzz::{
    CURRENT_VARIABLE, PREPARE_VARIABLE, TARGET_VARIABLE, Target, find, mutate, prepare, run,
};

static TARGET: OnceLock<&Target> = OnceLock::new();
static CURRENT: OnceLock<Option<File>> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = env::var(TARGET_VARIABLE).unwrap_or_default();
        find(&name).unwrap_or_else(|| panic!("{TARGET_VARIABLE} is {name:?}, which is no target"))
    })
}

/// Where an input is kept while it is tried.
fn current() -> Option<&'static File> {
    let open = || {
        let path = env::var_os(CURRENT_VARIABLE)?;
        Some(File::create(path).expect("the file for the input can be made"))
    };
    CURRENT.get_or_init(open).as_ref()
}

fn begin() {
    if let Some(folder) = env::var_os(PREPARE_VARIABLE) {
        prepare(Path::new(&folder)).expect("the files can be written");
        exit(0);
    }
}

fuzz_target!(init: begin(), |bytes: &[u8]| {
    if let Some(file) = current() {
        let mut framed = Vec::with_capacity(8 + bytes.len());
        framed.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        framed.extend_from_slice(bytes);
        file.write_all_at(&framed, 0)
            .expect("the input can be kept");
    }
    // Most inputs are refused, and that is right.
    let _refused = run(target(), bytes);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate(target(), data, size, max_size, seed, fuzzer_mutate)
});

//! Every decoder of bytes from outside or from disk, under a coverage-guided fuzzer.
//!
//! A [`Target`] is a function that takes any bytes, with what a fuzzer needs to get far in it: the
//! words of its grammar, inputs to begin with, and a repair of checksums. [`mutate()`] makes new inputs;
//! it repeats and nests, which blind mutation does too rarely to reach a depth. [`run`] holds a
//! target to its promises: no panic, no more memory than a stated multiple of the input, and, on a thread
//! of [`STACK_BYTES`], no deep recursion.
//!
//! `cargo xtask fuzz` builds the program `lockgate-fuzz-driver`, in which libFuzzer calls a target, runs
//! it for a bounded time, target by target, and keeps what it finds in `regressions/`. An ordinary test gives every input kept there to its target again, without
//! libFuzzer. `docs/internals/fuzzing.md` has more.
//!
//! ```
//! let target = lockgate_fuzz::find("receipt").expect("there is such a target");
//! // Whether the bytes are taken does not matter, as long as every promise holds.
//! lockgate_fuzz::run(target, b"no handle").unwrap_err();
//! ```

mod checksums;
mod curator;
mod disk;
mod filter;
mod golden;
mod mutate;
mod page;
mod planted;
mod prepare;
mod schedule;
mod state;
mod targets;
mod words;

use std::{fs, io, path::PathBuf};

use peak_alloc::PeakAlloc;

pub use mutate::mutate;
pub use prepare::prepare;
pub use targets::TARGETS;

/// Counts what is allocated: [`run`] bounds it.
#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// The stack on which a target runs. The server's threads have sixteen times as much.
pub const STACK_BYTES: usize = 128 << 10;

/// Where the driver finds the folder to [`prepare()`]; then it does nothing else.
pub const PREPARE_VARIABLE: &str = "LOCKGATE_FUZZ_PREPARE";

/// Where the driver finds the name of its target.
pub const TARGET_VARIABLE: &str = "LOCKGATE_FUZZ_TARGET";

/// Where the driver finds the file into which it writes each input before it tries it. A stack that
/// overflows leaves no time for that afterwards.
pub const CURRENT_VARIABLE: &str = "LOCKGATE_FUZZ_CURRENT";

/// A decoder, and what a fuzzer needs to get far in it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Target {
    /// Its name on the command line, and its folder's in `regressions/`.
    pub name: &'static str,
    /// What it decodes.
    about: &'static str,
    /// Decodes the bytes, and says why they are not taken. Panics where a promise is broken.
    decode: fn(&[u8]) -> Result<(), String>,
    /// The words of its grammar.
    words: &'static [&'static [&'static str]],
    /// What opens something and what closes it.
    pairs: &'static [(&'static str, &'static str)],
    /// Good inputs to begin with.
    seeds: fn() -> Vec<Vec<u8>>,
    /// Makes checksums and the like right again, mostly.
    repair: Option<Repair>,
    /// The longest input, in bytes.
    pub bytes_max: usize,
    /// How many bytes it may hold at a time for each byte of input, and beside that.
    memory: (usize, usize),
    /// Whether it has a mistake on purpose, which the fuzzer must find.
    pub is_planted: bool,
}

type Repair = fn(&mut [u8], &mut lockgate_sim::SeededRandom);

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Gives bytes to a target, on this thread.
///
/// # Errors
/// If the target does not take them, which is no mistake of it.
///
/// # Panics
/// If a promise of the target is broken.
pub fn run(target: &Target, bytes: &[u8]) -> Result<(), String> {
    ALLOCATED.reset_peak_usage();
    let before = ALLOCATED.current_usage();
    let outcome = (target.decode)(bytes);
    let held = ALLOCATED.peak_usage().saturating_sub(before);
    let (times, beside) = target.memory;
    let held_max = times * bytes.len() + beside;
    assert!(
        held <= held_max,
        "{}: {} bytes of input took {held} bytes of memory; at most {times} for each and {beside} \
         beside are allowed",
        target.name,
        bytes.len(),
    );
    outcome
}

impl Target {
    /// Good inputs to begin with.
    #[must_use]
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }

    /// The words of its grammar.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.words.iter().copied().flatten().copied()
    }

    /// The inputs that once broke it, by the file's name.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn regressions(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let folder = self.regression_folder();
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let read = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, fs::read(entry.path())?))
        };
        let mut inputs: Vec<_> = entries.map(read).collect::<io::Result<_>>()?;
        inputs.sort();
        Ok(inputs)
    }

    /// Where the inputs are kept that once broke it.
    #[must_use]
    pub fn regression_folder(&self) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions");
        folder.join(self.name)
    }
}

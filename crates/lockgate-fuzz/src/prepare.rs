//! What `cargo xtask fuzz` needs to know of the targets, as files: it is not linked with them.

use std::{fmt::Write as _, fs, io, path::Path};

use crate::{TARGETS, Target};

/// Writes the table of targets, `targets`: name, longest input, whether it is planted, and what it is,
/// with tabs between them. And for each target, in a folder of its name, its words as libFuzzer reads
/// them, `words`, and its seeds and what once broke it, `seeds`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn prepare(folder: &Path) -> io::Result<()> {
    let mut table = String::new();
    for target in TARGETS {
        let Target {
            name,
            about,
            bytes_max,
            is_planted,
            ..
        } = target;
        let _infallible = writeln!(table, "{name}\t{bytes_max}\t{is_planted}\t{about}");
        let folder = folder.join(name);
        let seeds = folder.join("seeds");
        fs::create_dir_all(&seeds)?;
        for (number, seed) in target.seeds().iter().enumerate() {
            fs::write(seeds.join(number.to_string()), seed)?;
        }
        for (name, input) in target.regressions()? {
            fs::write(seeds.join(name), input)?;
        }
        fs::write(folder.join("words"), dictionary(target))?;
    }
    fs::write(folder.join("targets"), table)
}

fn dictionary(target: &Target) -> String {
    let mut text = String::new();
    for word in target.words() {
        text.push('"');
        for byte in word.bytes() {
            if byte.is_ascii_alphanumeric() || b" .:=&;/_-".contains(&byte) {
                text.push(byte.into());
            } else {
                let _infallible = write!(text, "\\x{byte:02x}");
            }
        }
        text.push_str("\"\n");
    }
    text
}

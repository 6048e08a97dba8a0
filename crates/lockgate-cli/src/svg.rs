//! Drawings, as SVG files.

use std::{fmt::Write as _, fs::File, io, io::Write as _, path::Path};

use crate::{
    exit::{Exit, Failure},
    output::printable,
};

/// Refuses a file that exists, before work is done for nothing.
pub(crate) fn check_free(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(taken(path)),
        Err(_) => Ok(()),
    }
}

/// Writes a drawing into a file that must not exist.
pub(crate) fn create(path: &Path, svg: &str) -> Result<(), Failure> {
    let drawn = File::create_new(path).and_then(|mut file| file.write_all(svg.as_bytes()));
    drawn.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => taken(path),
        _ => {
            Failure::from_error(Exit::Failed, error).context(format!("writing {}", path.display()))
        }
    })
}

fn taken(path: &Path) -> Failure {
    Failure::new(Exit::Conflict, format!("{} exists already", path.display()))
        .hint("name another file, or remove this one first")
}

/// The begin of a drawing of that size.
pub(crate) fn begin(width: u64, height: u64, style: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n{style}"
    )
}

/// Words at a place, with more attributes, each with a space before it.
pub(crate) fn text(svg: &mut String, x: u64, y: u64, more: &str, words: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\"{more}>{}</text>",
        escaped(words)
    );
}

/// Text from elsewhere must not become markup, nor have characters that XML does not allow.
fn escaped(text: &str) -> String {
    let text = printable(text).replace('\n', "\\n");
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
        .replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

//! `cargo xtask torture kernel`: the real server on real file systems.

use anyhow::{Result, bail};

use super::USAGE;

pub(super) fn run(arguments: &[&str]) -> Result<()> {
    bail!(
        "nothing runs here yet: kernel {}\n\n{USAGE}",
        arguments.join(" ")
    )
}

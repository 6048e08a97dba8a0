//! `lockgate completions`.

use crate::{args::Completions, exit::Failure, output::Output};

pub(crate) fn run(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "lockgate", &mut script);
    let mut output = Output::new();
    output.raw(&script)?;
    output.flush()
}

//! The command line of Lockgate as a library with a tiny `main`.
//!
//! [`run`] takes the arguments and returns the exit code; [`reference()`] and [`queue_settings()`] render
//! `docs/cli.md` and `docs/settings.md` from the same definitions that parse the arguments, so that the pages
//! cannot drift from the program.
//!
//! ```
//! // Everything the program can do is one clap definition.
//! let command = lockgate_cli::command();
//! assert!(command.get_subcommands().any(|sub| sub.get_name() == "serve"));
//! ```

mod args;
mod client;
mod commands;
mod exit;
#[doc(hidden)]
pub mod fuzzing;
mod ledger;
mod output;
mod queue_file;
mod reference;
mod settings;
mod svg;
mod telemetry;
mod units;
mod via;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _};

pub use reference::{queue_settings, reference};

/// Runs the program: parses `arguments` (the first is the program's own name), does what they say,
/// prints data on standard output and everything else on standard error.
///
/// Returns the exit code; the codes are listed in `lockgate --help`.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = command()
        .try_get_matches_from(arguments)
        .and_then(|matches| args::Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // A reader that has gone away (`lockgate --help | head -1`) is no failure.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    output::set_color(cli.color);
    let code = match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::report(&failure),
    };
    telemetry::finish();
    code
}

/// The definition of all commands and flags, for completions, help and tests.
#[must_use]
pub fn command() -> clap::Command {
    args::Cli::command()
}

//! The `lockgate` binary; everything it does is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockgate_cli::run(std::env::args_os())
}

//! The `lockgate` binary; everything it does is in the library beside it.

use std::process::ExitCode;

/// Gives memory back when a backlog is drained, which the system's allocator mostly keeps. Not in the
/// library, whose user's choice it is.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lockgate_cli::run(std::env::args_os())
}

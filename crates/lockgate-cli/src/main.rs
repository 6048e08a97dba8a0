//! The `lockgate` binary; everything it does is in the library beside it.

use std::process::ExitCode;

/// Asks for huge pages: a large backlog is visited in no order, and most of the time then goes into
/// finding out where its small pages are. Not in the library, whose user's choice it is.
#[cfg(not(feature = "count-memory"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lockgate_cli::run(std::env::args_os())
}

//! What `lead` runs in place of a command: it ties itself to the life of `lead`, and becomes the command.

use std::{
    ffi::OsStr,
    io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::Command,
};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{
    args::LeadCommand,
    exit::{Exit, Failure},
};

pub(in crate::commands) fn run(args: &LeadCommand) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::from_error(Exit::Failed, error);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    // It may have ended before that.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(Failure::signal(Exit::Failed));
    }
    let [program, arguments @ ..] = &args.command[..] else {
        return Err(Failure::usage("there is no command to run"));
    };
    let error = Command::new(program).args(arguments).exec();
    Err(not_run(program, &error))
}

/// Looks whether there is such a command, which one does before one stands.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    let is_file = |path: &Path| match path.metadata() {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => Ok(()),
        Ok(_) => Err(io::ErrorKind::PermissionDenied.into()),
        Err(error) => Err(error),
    };
    let found = match program.as_encoded_bytes().contains(&b'/') {
        true => is_file(Path::new(program)),
        false => {
            let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
            let mut folders = std::env::split_paths(&path);
            match folders.any(|folder| is_file(&folder.join(program)).is_ok()) {
                true => Ok(()),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        }
    };
    found.map_err(|error| not_run(program, &error))
}

fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::NoCommand, format!("there is no command {program:?}"))
        }
        _ => Failure::new(Exit::NotRunnable, format!("{program}: {error}")),
    }
}

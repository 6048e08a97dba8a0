//! `lockgate backup`.

use std::{
    fs::File,
    io::{self, BufReader, Write as _},
    path::Path,
};

use lockgate_engine::verify_backup;

use super::{block_on, client};
use crate::{
    args::Backup,
    client::Client,
    exit::{Exit, Failure, output_error},
    output::{count, note},
    units::show_bytes,
};

pub(crate) fn run(args: &Backup) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    if args.file == Path::new("-") {
        return block_on(to_output(&client));
    }
    block_on(to_file(&client, &args.file))
}

async fn to_output(client: &Client) -> Result<(), Failure> {
    let mut body = client.backup().await?;
    let mut output = io::stdout().lock();
    while let Some(piece) = body.next().await? {
        output.write_all(&piece).map_err(output_error)?;
    }
    output.flush().map_err(output_error)
}

async fn to_file(client: &Client, path: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let what = format!("writing {}", path.display());
        Failure::from_error(Exit::Failed, error).context(what)
    };
    let taken = || {
        Failure::new(
            Exit::Conflict,
            format!("{} is there already", path.display()),
        )
    };
    if path.exists() {
        return Err(taken());
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Removed when dropped: what is not whole never has the name.
    let mut file = tempfile::Builder::new()
        .prefix(".lockgate-")
        .suffix(".backup-part")
        .tempfile_in(folder)
        .map_err(failed)?;
    let mut body = client.backup().await?;
    while let Some(piece) = body.next().await? {
        file.write_all(&piece).map_err(failed)?;
    }
    file.as_file().sync_all().map_err(failed)?;
    let read = File::open(file.path()).map_err(failed)?;
    let report = verify_backup(&mut BufReader::new(read))
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("reading it back"))?;
    file.persist_noclobber(path).map_err(|error| {
        if error.error.kind() == io::ErrorKind::AlreadyExists {
            taken()
        } else {
            failed(error.error)
        }
    })?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)?;
    note(&format!(
        "{}: {}, {}",
        path.display(),
        count(report.messages, "message"),
        show_bytes(report.bytes)
    ));
    if report.unreadable > 0 {
        note(&format!(
            "the payloads of {} more were damaged: they are not in it",
            count(report.unreadable, "message")
        ));
    }
    Ok(())
}

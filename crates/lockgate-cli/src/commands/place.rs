//! Where `check` and `dump` look.

use lockgate_inspect::{OpenError, Place};

use super::database;
use crate::{
    args::Source,
    exit::{Exit, Failure},
};

/// Opens it, with what to call it.
pub(crate) fn open(source: &Source) -> Result<(Place, String), Failure> {
    match (&source.folder, &source.postgres_shard) {
        (Some(path), _) => {
            let place = Place::folder(path).map_err(refused)?;
            Ok((place, path.display().to_string()))
        }
        (None, Some(shard)) => {
            let place = open_database(source.postgres.as_deref(), shard)?;
            Ok((place, format!("the shard {shard:?} in PostgreSQL")))
        }
        (None, None) => Err(Failure::usage(
            "a place is needed: a folder or --postgres-shard",
        )),
    }
}

fn refused(error: OpenError) -> Failure {
    match error {
        OpenError::InUse { .. } => Failure::from_error(Exit::Conflict, error)
            .hint("stop it first; `lockgate backup` works while it runs"),
        OpenError::NoFolder(_) | OpenError::NoData(_) => Failure::from_error(Exit::NotFound, error),
        error => Failure::from_error(Exit::Failed, error),
    }
}

#[cfg(feature = "postgres")]
fn open_database(url: Option<&str>, shard: &str) -> Result<Place, Failure> {
    use lockgate_postgres::{PostgresLogOptions, PostgresView};

    let url = database::url(url)?;
    let view = PostgresView::open(&url, shard, PostgresLogOptions::default())
        .map_err(|error| Failure::from_error(database::exit_of(&error), error))?;
    Ok(Place::Database(view))
}

#[cfg(not(feature = "postgres"))]
fn open_database(_url: Option<&str>, _shard: &str) -> Result<Place, Failure> {
    Err(database::missing())
}

//! What the commands that use a shard in PostgreSQL have in common.

#[cfg(feature = "postgres")]
pub(crate) use with::{exit_of, url};

#[cfg(feature = "postgres")]
mod with {
    use lockgate_postgres::OpenError;

    use super::super::{environment, resolve, table};
    use crate::{
        exit::{Exit, Failure},
        settings::Flags,
    };

    /// The database that a command looks into or fills: as given, else as the settings say.
    pub(crate) fn url(given: Option<&str>) -> Result<String, Failure> {
        let mut flags = Flags::default();
        if let Some(url) = given {
            flags.given.insert("postgres", vec![url.to_owned()]);
        }
        resolve(&flags, &environment)?
            .get(&table::POSTGRES)
            .ok_or_else(|| {
                Failure::usage("no database is named")
                    .hint("set LOCKGATE_POSTGRES, or say --postgres URL")
            })
    }

    /// How a command ends that could not open a shard.
    pub(crate) fn exit_of(error: &OpenError) -> Exit {
        match error {
            OpenError::NoShard { .. } => Exit::NotFound,
            OpenError::NotNew { .. } | OpenError::BeingFilled { .. } => Exit::Conflict,
            OpenError::Log(error) => Exit::of_log(error),
            _ => Exit::Failed,
        }
    }
}

/// How a command ends that was to use one, in a program that cannot.
#[cfg(not(feature = "postgres"))]
pub(crate) fn missing() -> crate::exit::Failure {
    crate::exit::Failure::usage(
        "this program was built without PostgreSQL (the feature `postgres`)",
    )
}

//! Errors, and the names that users give.

use lockgate_core::coordination::FenceError;

/// What an inbox, an outbox or a guard could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no inbox and no outbox can have.
    #[error(
        "{given:?} is no name of {what}: it has 1 to 80 letters, digits, '-', '_' and '.' of ASCII"
    )]
    Name {
        /// What was to be named.
        what: &'static str,
        /// The name that was given.
        given: String,
    },
    /// The source gives its messages no name that lasts.
    #[error(
        "the source of this message gives it no name that lasts: name it yourself, with `once_as`"
    )]
    Nameless,
    /// A name of a message that cannot be kept.
    #[error("the name of a message has 1 to {max} bytes, this one has {given}")]
    MessageName {
        /// Its length.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The database has a table of this name that is not the one that is needed.
    #[error(
        "the table {table} is another one than this version needs. Expected: {expected}. Found: {found}. \
         Rename it, or bring it into this form"
    )]
    OtherTable {
        /// Its name.
        table: &'static str,
        /// The columns that are needed.
        expected: String,
        /// The columns that it has.
        found: String,
    },
    /// The database does not have the table.
    #[error(
        "there is no table {table}: make it with `create_table`, or with the statements of its crate"
    )]
    NoTable {
        /// Its name.
        table: &'static str,
    },
    /// The message is a record of a producer. An outbox is where its messages come from, and sends each with a unique id.
    #[error("an outbox takes no records of producers, and the message is one")]
    Producer,
    /// A part of a message that no row can hold.
    #[error("{what} of {given} does not fit into a row: the limit is {max}")]
    Range {
        /// The part.
        what: &'static str,
        /// Its value.
        given: u64,
        /// The highest value.
        max: u64,
    },
    /// The system has no random numbers for a unique id.
    #[error("no random numbers for a unique id")]
    Random(#[source] getrandom::Error),
    /// The connection to the database is lost. What was asked last may have happened or not.
    #[error("the connection to the database is lost, or has given no answer in time")]
    Disconnected,
    /// The transaction is of a leader whose term is over.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// SQLite's error.
    #[cfg(feature = "sqlite")]
    #[error("SQLite")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL's error.
    #[cfg(feature = "postgres")]
    #[error("PostgreSQL")]
    Postgres(#[from] tokio_postgres::Error),
    /// MySQL's error, or MariaDB's.
    #[cfg(feature = "mysql")]
    #[error("MySQL")]
    Mysql(#[from] mysql_async::Error),
}

/// The longest name of a message.
const MESSAGE_NAME_MAX: usize = 1_024;

/// Names of consumers and outboxes become parts of keys, of messages to operators and of file names.
pub(crate) fn checked_name(what: &'static str, name: &str) -> Result<String, Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=80).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(name.to_owned());
    }
    let given = name.to_owned();
    Err(Error::Name { what, given })
}

pub(crate) fn checked_message_name(name: &str) -> Result<&str, Error> {
    let (given, max) = (name.len(), MESSAGE_NAME_MAX);
    match (1..=max).contains(&given) {
        true => Ok(name),
        false => Err(Error::MessageName { given, max }),
    }
}

/// Whether a table has the columns that are needed; each is told as `name type`, and what else matters.
pub(crate) fn check_columns(
    table: &'static str,
    expected: &[&str],
    found: &[String],
) -> Result<(), Error> {
    if found.is_empty() {
        return Err(Error::NoTable { table });
    }
    if expected == found {
        return Ok(());
    }
    Err(Error::OtherTable {
        table,
        expected: expected.join(", "),
        found: found.join(", "),
    })
}

/// A number as a column holds it.
pub(crate) fn column(what: &'static str, given: u64) -> Result<i64, Error> {
    let max = i64::MAX.unsigned_abs();
    i64::try_from(given).map_err(|_| Error::Range { what, given, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_name_is_refused_and_told() {
        for bad in ["", "a/b", "ä", "a b", &"x".repeat(81)] {
            let error = checked_name("a consumer", bad).unwrap_err();
            assert!(
                error.to_string().contains("no name of a consumer"),
                "{error}"
            );
        }
        assert_eq!(
            checked_name("a consumer", "mail.v2_x-1").unwrap(),
            "mail.v2_x-1"
        );
        assert!(checked_message_name("").is_err());
        assert!(checked_message_name(&"x".repeat(1_025)).is_err());
    }

    #[test]
    fn another_table_is_told_with_both_forms() {
        let found = ["a TEXT".to_owned()];
        let error = check_columns("t", &["a TEXT", "b TEXT"], &found).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("a TEXT, b TEXT") && said.contains("Found: a TEXT"),
            "{said}"
        );
        assert!(matches!(
            check_columns("t", &["a TEXT"], &[]),
            Err(Error::NoTable { .. })
        ));
    }
}

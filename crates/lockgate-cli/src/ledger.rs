//! A ledger, by its name or its URL. Another kind is one more variant of [`Place`] and [`AnyLedger`], and an arm in [`place`]
//! and [`open`].

use lockgate_client::ServerLedger;
use lockgate_core::{
    Epoch, LedgerName, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, ReadLedger, ReaderPosition, SequenceId,
    },
};
#[cfg(feature = "mysql")]
use lockgate_mysql::{MysqlLedger, MysqlLedgerOptions};
#[cfg(feature = "postgres")]
use lockgate_postgres::{PostgresLedger, PostgresLedgerOptions};

use crate::{
    client::Client,
    exit::{Exit, Failure},
};

/// Where a ledger is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Server(LedgerName),
    #[cfg(feature = "mysql")]
    Mysql(String),
    #[cfg(feature = "postgres")]
    Postgres(String),
}

/// What URLs of ledgers begin with.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "mysql")]
    "mysql://",
    #[cfg(feature = "postgres")]
    "postgres://",
];

/// Looks whether that text names a ledger. The error shows nothing of a URL: there may be a password in it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    place(text).map(drop)
}

fn place(text: &str) -> Result<Place, String> {
    let Some((scheme, _)) = text.split_once("://") else {
        let name = LedgerName::new(text).map_err(|error| error.to_string())?;
        return Ok(Place::Server(name));
    };
    match scheme {
        #[cfg(feature = "mysql")]
        "mysql" => Ok(Place::Mysql(text.to_owned())),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Place::Postgres(text.to_owned())),
        _ => Err(format!(
            "the value is no name of a ledger, and begins with none of {}",
            SCHEMES.join(", ")
        )),
    }
}

/// A ledger of any kind. Clones are the same ledger.
#[derive(Clone, Debug)]
pub(crate) enum AnyLedger {
    Server(ServerLedger),
    #[cfg(feature = "mysql")]
    Mysql(MysqlLedger),
    #[cfg(feature = "postgres")]
    Postgres(PostgresLedger),
}

/// Opens the ledger of that name, at the client's server, or of that URL. `create`: what it is made with if it is not there.
pub(crate) async fn open(
    text: &str,
    client: &Client,
    create: Option<LedgerOptions>,
) -> Result<AnyLedger, LedgerError> {
    match place(text).map_err(|why| LedgerError::Invalid { why })? {
        Place::Server(name) => {
            let ledger = client.inner().ledger(name);
            // One that is there stays as it is, and needs no right to make any.
            if let Some(options) = create
                && let Err(LedgerError::NotFound { .. }) = ledger.head().await
            {
                ledger.create(options).await?;
            }
            Ok(AnyLedger::Server(ledger))
        }
        #[cfg(feature = "mysql")]
        Place::Mysql(url) => {
            let options = MysqlLedgerOptions {
                create: create.is_some(),
                made_with: create.unwrap_or_default(),
                ..MysqlLedgerOptions::default()
            };
            let ledger = MysqlLedger::connect_with(&url, options).await?;
            Ok(AnyLedger::Mysql(ledger))
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(url) => {
            let options = PostgresLedgerOptions {
                create: create.is_some(),
                made_with: create.unwrap_or_default(),
                ..PostgresLedgerOptions::default()
            };
            let ledger = PostgresLedger::connect_with(&url, options).await?;
            Ok(AnyLedger::Postgres(ledger))
        }
    }
}

/// Does the same with whatever kind it is.
macro_rules! each {
    ($of:expr, $it:ident => $what:expr) => {
        match $of {
            AnyLedger::Server($it) => $what,
            #[cfg(feature = "mysql")]
            AnyLedger::Mysql($it) => $what,
            #[cfg(feature = "postgres")]
            AnyLedger::Postgres($it) => $what,
        }
    };
}

impl Ledger for AnyLedger {
    fn capabilities(&self) -> LedgerCapabilities {
        each!(self, it => it.capabilities())
    }

    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        each!(self, it => it.append(append).await)
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        each!(self, it => it.head().await)
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        each!(self, it => it.read(read).await)
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        each!(self, it => it.find(unique_id).await)
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        each!(self, it => it.move_reader(position, from).await)
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        each!(self, it => it.forget_reader(reader).await)
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        each!(self, it => it.readers().await)
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        each!(self, it => it.seal(epoch).await)
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        each!(self, it => it.trim(first).await)
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        let exit = match &error {
            LedgerError::NotFound { .. } => Exit::NotFound,
            LedgerError::Invalid { .. } => Exit::Usage,
            LedgerError::Damaged { .. } => Exit::Refused,
            LedgerError::Denied { .. } => Exit::Denied,
            LedgerError::Deposed { .. }
            | LedgerError::Sealed { .. }
            | LedgerError::Moved { .. }
            | LedgerError::ReaderMoved { .. }
            | LedgerError::Trimmed { .. }
            | LedgerError::Beyond { .. } => Exit::Conflict,
            LedgerError::Unknown { .. } | LedgerError::Unavailable { .. } => Exit::Unreachable,
            _ => Exit::Failed,
        };
        let hint = match &error {
            LedgerError::NotFound { ledger } => Some(format!(
                "see what ledgers the server has with `lockgate ledger list`; make it there with `lockgate ledger create {ledger}`, \
                 or in a database with --create of `ledger append` or `sequence`"
            )),
            LedgerError::Moved { head } => {
                Some(format!("to append behind what is there: --expect {head}"))
            }
            LedgerError::Deposed { newest, .. } => Some(format!(
                "only a writer of that epoch, or a later one, may write: --epoch {}",
                newest.0
            )),
            LedgerError::Trimmed { first, .. } => {
                Some(format!("to begin with what is kept: event {first}"))
            }
            _ => None,
        };
        let failure = Self::from_error(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_a_ledger() {
        for scheme in SCHEMES {
            assert_eq!(check(&format!("{scheme}u:p@h/db?ledger=a")), Ok(()));
        }
        assert_eq!(check("orders"), Ok(()));
        for wrong in ["", "a b", "ftp://u:secret@h/x"] {
            let told = check(wrong).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

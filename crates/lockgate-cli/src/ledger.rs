//! The ledger, by its URL. Another kind is one more variant of [`Place`] and [`AnyLedger`], and an arm in [`place`] and [`open`].

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, ReadLedger, ReaderPosition, SequenceId,
    },
};
#[cfg(feature = "postgres")]
use lockgate_postgres::{PostgresLedger, PostgresLedgerOptions};

use crate::exit::{Exit, Failure};

/// Where a ledger is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    #[cfg(feature = "postgres")]
    Postgres(String),
}

/// What names of ledgers begin with.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "postgres")]
    "postgres://",
];

/// Looks whether that text names a ledger. The error shows nothing of it: there may be a password in it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    place(text).map(drop)
}

fn place(text: &str) -> Result<Place, String> {
    let (scheme, _) = text.split_once("://").unwrap_or_default();
    match scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Place::Postgres(text.to_owned())),
        _ => Err(format!(
            "the value begins with none of {}",
            SCHEMES.join(", ")
        )),
    }
}

/// A ledger of any kind. Clones are the same ledger.
#[derive(Clone, Debug)]
pub(crate) enum AnyLedger {
    #[cfg(feature = "postgres")]
    Postgres(PostgresLedger),
}

/// Opens the ledger of that name. `create`: what it is made with if it is not there; `None`: it must be there.
pub(crate) async fn open(
    text: &str,
    create: Option<LedgerOptions>,
) -> Result<AnyLedger, LedgerError> {
    match place(text).map_err(|why| LedgerError::Invalid { why })? {
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
            #[cfg(feature = "postgres")]
            AnyLedger::Postgres($it) => $what,
            #[cfg(not(feature = "postgres"))]
            _ => unreachable!("this program knows no kind of ledger, so it has opened none"),
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

    async fn move_reader(&self, position: ReaderPosition) -> Result<(), LedgerError> {
        each!(self, it => it.move_reader(position).await)
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
            LedgerError::Deposed { .. }
            | LedgerError::Sealed { .. }
            | LedgerError::Moved { .. } => Exit::Conflict,
            LedgerError::Unknown { .. } | LedgerError::Unavailable { .. } => Exit::Unreachable,
            _ => Exit::Failed,
        };
        Self::from_error(exit, error)
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
        for wrong in ["", "orders", "ftp://u:secret@h/x", "secret"] {
            let told = check(wrong).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}

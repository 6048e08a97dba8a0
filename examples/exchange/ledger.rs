//! The ledger, wherever it is. Another kind is another variant here: all else takes whatever [`open`] returns.

use std::time::Duration;

use anyhow::Context as _;
use lockgate::{
    Epoch, LedgerName, ReaderName, UniqueId,
    client::{Client, ServerLedger},
    sequencer::{
        MysqlLedger, MysqlLedgerOptions, PostgresLedger, PostgresLedgerOptions,
        ledger::{
            Append, Appended, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerOptions,
            LedgerPage, ReadLedger, ReaderPosition, SequenceId,
        },
    },
};

pub(crate) enum AnyLedger {
    Mysql(MysqlLedger),
    Postgres(PostgresLedger),
    Server(ServerLedger),
}

/// Opens the ledger of that URL, or of that name at that server, which may be away for now. `create`: with what it is
/// made if it is not there.
pub(crate) async fn open(
    ledger: &str,
    endpoint: &str,
    create: Option<LedgerOptions>,
) -> anyhow::Result<AnyLedger> {
    let client = Client::builder(endpoint.parse()?).build().await?;
    loop {
        match try_open(ledger, &client, create).await {
            Err(LedgerError::Unavailable { .. } | LedgerError::Unknown { .. }) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            opened => return opened.context("opening the ledger"),
        }
    }
}

async fn try_open(
    ledger: &str,
    client: &Client,
    create: Option<LedgerOptions>,
) -> Result<AnyLedger, LedgerError> {
    let (is_new, made_with) = (create.is_some(), create.unwrap_or_default());
    if ledger.starts_with("mysql://") {
        let options = MysqlLedgerOptions {
            create: is_new,
            made_with,
            ..Default::default()
        };
        let opened = MysqlLedger::connect_with(ledger, options).await;
        opened.map(AnyLedger::Mysql)
    } else if ledger.contains("://") {
        let options = PostgresLedgerOptions {
            create: is_new,
            made_with,
            ..Default::default()
        };
        let opened = PostgresLedger::connect_with(ledger, options).await;
        opened.map(AnyLedger::Postgres)
    } else {
        let name = LedgerName::new(ledger);
        let name = name.map_err(|error| LedgerError::Invalid {
            why: error.to_string(),
        })?;
        let ledger = client.ledger(name);
        if is_new {
            ledger.create(made_with).await?;
        }
        Ok(AnyLedger::Server(ledger))
    }
}

/// Does the same with whatever kind it is.
macro_rules! each {
    ($of:expr, $it:ident => $what:expr) => {
        match $of {
            AnyLedger::Mysql($it) => $what,
            AnyLedger::Postgres($it) => $what,
            AnyLedger::Server($it) => $what,
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

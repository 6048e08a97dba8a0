//! Ledgers: event logs with one total order, without a gap and without a duplicate.
//!
//! A ledger of an open [`Lockgate`] is [`EmbeddedLedger`]: its events are in the same log as the queues, so they survive what
//! queues of level `disk` survive, and are in backups. An append can [acknowledge](Lockgate::append_acking) the messages that its
//! events came with, in one step.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
//! use lockgate::{
//!     Epoch, LedgerName, UniqueId,
//!     ledger::{Append, Ledger, LedgerOptions, NewEvent, ReadLedger, SequenceId},
//! };
//!
//! let trades = lockgate
//!     .create_ledger(LedgerName::new("trades")?, LedgerOptions::default())
//!     .await?;
//! let buy = NewEvent {
//!     unique_id: Some(UniqueId::new("order-17")?),
//!     payload: "buy 7".into(),
//!     ..NewEvent::default()
//! };
//! let append = Append { epoch: Epoch(1), head: None, events: vec![buy], settled: Vec::new() };
//! assert_eq!(trades.append(append.clone()).await?.events[0].sequence_id, SequenceId(1));
//! // What comes again is there once.
//! assert!(trades.append(append).await?.events[0].is_duplicate);
//!
//! let read = ReadLedger { after: SequenceId::START, limit: 100, wait: std::time::Duration::ZERO };
//! let page = trades.read(read).await?;
//! assert_eq!(page.events[0].payload, "buy 7");
//! assert_eq!(page.head.sequence_id, SequenceId(1));
//! # lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```

use lockgate_core::LedgerName;
pub use lockgate_core::ledger::*;
pub use lockgate_engine::EngineLedger as EmbeddedLedger;
use lockgate_engine::{EngineError, ledger_error};
use lockgate_machine::{CreateLedger, DeleteLedger, Settle, SettleAction};
pub use lockgate_machine::{LedgerDescription, LedgersPage, ListLedgers};

use crate::{Delivery, Lockgate};

/// An append that failed, with its deliveries. Nothing of it happened, unless the source is
/// [`Unknown`](LedgerError::Unknown): then all of it happened, or nothing.
#[derive(Debug, thiserror::Error)]
#[error("appending to the ledger, and acknowledging what the events came with")]
#[non_exhaustive]
pub struct AppendAckError {
    /// Why it failed. `Invalid` is also a lease that has ended.
    pub source: LedgerError,
    /// The deliveries that were to be acknowledged, in order. Their leases go on.
    pub deliveries: Vec<Delivery>,
}

impl Lockgate {
    /// The ledger of that name. Whether there is one shows its first operation.
    #[must_use]
    pub fn ledger(&self, name: LedgerName) -> EmbeddedLedger {
        self.engine().ledger(name)
    }

    /// Makes a ledger, unless there is one of that name with the same options.
    ///
    /// # Errors
    /// `Invalid` if there is one with other options; `Full`, `Unknown` and `Unavailable`.
    ///
    /// # Cancellation
    /// If the future is dropped, the ledger may have been made.
    pub async fn create_ledger(
        &self,
        name: LedgerName,
        options: LedgerOptions,
    ) -> Result<EmbeddedLedger, LedgerError> {
        let create = CreateLedger {
            name: name.clone(),
            options,
        };
        self.engine().submit(create).await.map_err(error)?;
        Ok(self.ledger(name))
    }

    /// Appends events, and acknowledges the messages that they came with: all of it happens or nothing. The events need no
    /// [`input`](NewEvent::input): no message of them comes again.
    ///
    /// # Errors
    /// As [`append`](Ledger::append); a lease that has ended refuses everything. The error returns the deliveries.
    ///
    /// # Cancellation
    /// If the future is dropped, all of it may have happened, or nothing.
    pub async fn append_acking(
        &self,
        ledger: LedgerName,
        append: Append,
        deliveries: Vec<Delivery>,
    ) -> Result<Appended, AppendAckError> {
        let engines = deliveries.iter().filter_map(Delivery::engine);
        let fenced: Vec<_> = engines
            .filter(|engine| engine.fence().is_some())
            .cloned()
            .collect();
        let settles = deliveries.iter().map(|delivery| Settle {
            token: delivery.token(),
            action: SettleAction::Ack,
        });
        let settles = settles.collect();
        let appended = match self.engine().joint(&fenced) {
            Ok(engine) => engine.ledger(ledger).append_settling(append, settles).await,
            Err(failed) => Err(error(failed)),
        };
        appended.map_err(|source| AppendAckError { source, deliveries })
    }

    /// Deletes a ledger with all its events, unique ids and readers.
    ///
    /// # Errors
    /// `NotFound`, `Unknown` and `Unavailable`.
    ///
    /// # Cancellation
    /// If the future is dropped, the ledger may have been deleted.
    pub async fn delete_ledger(&self, ledger: LedgerName) -> Result<(), LedgerError> {
        let deleted = self.engine().submit(DeleteLedger { ledger });
        deleted.await.map_err(error)
    }

    /// A page of the ledgers, in the order of their names.
    ///
    /// # Errors
    /// `Invalid` for a limit out of its range, and `Unavailable`.
    pub async fn list_ledgers(&self, list: ListLedgers) -> Result<LedgersPage, LedgerError> {
        let listed = self.engine().query(list).await;
        listed.map_err(|error| ledger_error(error, false))
    }
}

fn error(error: EngineError) -> LedgerError {
    ledger_error(error, true)
}

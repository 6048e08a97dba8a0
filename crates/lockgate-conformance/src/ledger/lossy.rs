//! A ledger that loses answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerPage,
        ReadLedger, ReaderPosition, SequenceId,
    },
};

/// Loses the answer of every command whose number `lose` says, from 0: `Some(true)` after it has happened, `Some(false)`
/// before. A read whose number it says is [unavailable](LedgerError::Unavailable); reads are counted on their own.
#[derive(Clone, Debug)]
pub struct Lossy<L> {
    ledger: L,
    commands: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    finds: Arc<AtomicU64>,
    lose: fn(u64) -> Option<bool>,
}

impl<L: Ledger> Lossy<L> {
    /// Over that ledger.
    pub fn new(ledger: L, lose: fn(u64) -> Option<bool>) -> Self {
        Self {
            ledger,
            commands: Arc::default(),
            reads: Arc::default(),
            finds: Arc::default(),
            lose,
        }
    }

    /// The ledger, which loses nothing.
    pub fn ledger(&self) -> &L {
        &self.ledger
    }

    /// How many commands were asked for so far.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// How many pages and heads were asked for so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// How often a unique id was looked up alone.
    #[must_use]
    pub fn finds(&self) -> u64 {
        self.finds.load(Ordering::Relaxed)
    }

    async fn maybe<T>(
        &self,
        act: impl Future<Output = Result<T, LedgerError>> + Send,
    ) -> Result<T, LedgerError> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let Some(happens) = (self.lose)(number) else {
            return act.await;
        };
        if happens {
            let _ = act.await;
        }
        let why = "a planted loss".to_owned();
        Err(LedgerError::Unknown { why })
    }

    fn may_read(&self) -> Result<(), LedgerError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        match (self.lose)(number) {
            None => Ok(()),
            Some(_) => Err(LedgerError::Unavailable {
                why: "a planted loss".to_owned(),
            }),
        }
    }
}

impl<L: Ledger> Ledger for Lossy<L> {
    fn capabilities(&self) -> LedgerCapabilities {
        self.ledger.capabilities()
    }

    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        self.maybe(self.ledger.append(append)).await
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        self.may_read()?;
        self.ledger.head().await
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        self.may_read()?;
        self.ledger.read(read).await
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        self.finds.fetch_add(1, Ordering::Relaxed);
        self.ledger.find(unique_id).await
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        self.maybe(self.ledger.move_reader(position, from)).await
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        self.maybe(self.ledger.forget_reader(reader)).await
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        self.ledger.readers().await
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        self.maybe(self.ledger.seal(epoch)).await
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.maybe(self.ledger.trim(first)).await
    }
}

//! A ledger in the memory of this process.

mod state;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use lockgate_consumer::TokioClock;
use lockgate_core::{
    Clock, Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerCapabilities, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, ReadLedger, ReaderPosition, SequenceId,
    },
};
use tokio::{sync::Notify, time::Instant};

use self::state::State;

/// A [`Ledger`] in the memory of this process, which is gone with it: for one process, and for tests of what is written over
/// `Ledger`. Clones are the same ledger.
///
/// It does what a durable ledger does; the same suite tests both. Payloads, ids and 128 bytes for each take up to 64 MiB
/// together, or [`bytes_max`](Self::bytes_max). Each append lets go of events that are older than the retention.
///
/// ```
/// use lockgate_core::{Epoch, UniqueId, ledger::{Append, Ledger, LedgerOptions, NewEvent, SequenceId}};
/// use lockgate_sequencer::MemoryLedger;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = MemoryLedger::new(LedgerOptions::default());
/// let transfer = NewEvent {
///     unique_id: Some(UniqueId::new("transfer-7")?),
///     payload: "7 coins from a to b".into(),
///     ..NewEvent::default()
/// };
/// let append = Append { epoch: Epoch(1), head: None, events: vec![transfer], settled: Vec::new() };
/// let first = ledger.append(append.clone()).await?;
/// let again = ledger.append(append).await?;
/// assert_eq!(again.events[0].sequence_id, first.events[0].sequence_id);
/// assert_eq!(again.head.sequence_id, SequenceId(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryLedger(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    options: LedgerOptions,
    bytes_max: u64,
    clock: Arc<dyn Clock>,
    /// There is an event more, or there will be none.
    changed: Notify,
}

impl fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLedger")
            .field("head", &self.at_once(|state| state.head()))
            .finish_non_exhaustive()
    }
}

impl MemoryLedger {
    /// An empty ledger.
    #[must_use]
    pub fn new(options: LedgerOptions) -> Self {
        Self::with(options, 64 << 20, Arc::new(TokioClock::start()))
    }

    /// An empty ledger with room for `bytes_max` bytes.
    #[must_use]
    pub fn bytes_max(self, bytes_max: u64) -> Self {
        Self::with(self.0.options, bytes_max, self.0.clock.clone())
    }

    /// An empty ledger whose events have the wall time of that clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self::with(self.0.options, self.0.bytes_max, clock)
    }

    fn with(options: LedgerOptions, bytes_max: u64, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::new(State::new(options, bytes_max)),
            options,
            bytes_max,
            clock,
            changed: Notify::new(),
        }))
    }

    fn at_once<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // What panics under it has changed nothing by halves: it would be a bug of this module.
        let state = self.0.state.lock();
        act(&mut state.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Ledger for MemoryLedger {
    fn capabilities(&self) -> LedgerCapabilities {
        LedgerCapabilities::ALL.forgetful()
    }

    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        let now = self.0.clock.wall();
        let appended = self.at_once(|state| state.append(append, now))?;
        self.0.changed.notify_waiters();
        Ok(appended)
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        Ok(self.at_once(|state| state.head()))
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        read.check()?;
        let until = Instant::now() + read.wait;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let page = self.at_once(|state| state.read(&read))?;
            let is_answer = !page.events.is_empty() || page.head.is_sealed;
            if is_answer || Instant::now() >= until {
                return Ok(page);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        Ok(self.at_once(|state| state.find(&unique_id)))
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        self.at_once(|state| state.move_reader(position, from))
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        Ok(self.at_once(|state| state.forget_reader(&reader)))
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        Ok(self.at_once(|state| state.readers()))
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        let head = self.at_once(|state| state.seal(epoch))?;
        self.0.changed.notify_waiters();
        Ok(head)
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.at_once(|state| state.trim(first))
    }
}

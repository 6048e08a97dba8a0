//! A leader over records: keeps its lease while it leads, and closes its term.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    Epoch, ExtendRecord, HolderName, Millis, PutRecord, RecordVersion, Records, RecordsError,
    ReleaseRecord, Revision, WatchRecord,
    coordination::{
        CHECKPOINT_BYTES_MAX, Call, CoordinationError, EndReason, Fence, Tenure, Term, TermSpan,
    },
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tracing::warn;

use super::{
    Inner, WATCH, decode, error,
    names::{Kind, Names},
};
use crate::{
    chronicle::{Asked, Chronicle},
    protocol::{Answer, Elected, Holder, HolderAsk, Resigned, Timing},
    silence::Pauses,
    time::{Time, jittered},
};

/// A term that is led over a store of records.
pub struct RecordsTenure<S: Records + 'static> {
    term: Term,
    fence: Fence,
    shared: Arc<Shared<S>>,
    keeper: Keeper,
}

/// The task that keeps the lease; it ends with its handle.
struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared<S> {
    inner: Arc<Inner<S>>,
    names: Names,
    epoch: Epoch,
    timing: Timing,
    holder: Mutex<Holder>,
    span: Arc<Span>,
    calls: watch::Sender<Calls>,
    book: tokio::sync::Mutex<Option<Book>>,
}

/// The term's record as its leader knows it.
#[derive(Clone, Debug)]
pub(super) struct Book {
    pub(super) chronicle: Chronicle,
    pub(super) version: RecordVersion,
    pub(super) revision: Revision,
}

#[derive(Clone, Debug, Default)]
struct Calls {
    asked: Option<HolderName>,
    is_lost: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Span {
    time: Time,
    stop_at: AtomicU64,
}

impl TermSpan for Span {
    fn remaining(&self) -> Duration {
        let stop_at = self.stop_at.load(Ordering::Acquire);
        Duration::from_millis(stop_at.saturating_sub(self.time.now()))
    }
}

impl<S: Records + 'static> fmt::Debug for RecordsTenure<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordsTenure")
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

impl<S: Records + 'static> RecordsTenure<S> {
    pub(super) fn start(
        inner: Arc<Inner<S>>,
        names: Names,
        timing: Timing,
        elected: Elected,
        term: Term,
        book: Book,
    ) -> Self {
        let holder = Holder::new(timing, elected);
        let span = Arc::new(Span {
            time: inner.time.clone(),
            stop_at: AtomicU64::new(holder.stop_at()),
        });
        let revision = book.revision;
        let shared = Arc::new(Shared {
            inner,
            epoch: elected.epoch,
            timing,
            holder: Mutex::new(holder),
            span: span.clone(),
            calls: watch::Sender::new(Calls::default()),
            book: tokio::sync::Mutex::new(Some(book)),
            names,
        });
        let keeper = tokio::spawn({
            let shared = shared.clone();
            async move { shared.keep(revision).await }
        });
        Self {
            fence: Fence::new(term.election.clone(), term.epoch).with_span(span),
            term,
            shared,
            keeper: Keeper(keeper),
        }
    }
}

impl<S: Records + 'static> Tenure for RecordsTenure<S> {
    fn term(&self) -> &Term {
        &self.term
    }

    fn fence(&self) -> &Fence {
        &self.fence
    }

    async fn called(&self) -> Call {
        let mut calls = self.shared.calls.subscribe();
        let is_called = |calls: &Calls| calls.is_lost || calls.asked.is_some();
        match calls.wait_for(is_called).await.as_deref() {
            Ok(Calls {
                asked: Some(by),
                is_lost: false,
                ..
            }) => Call::Asked { by: by.clone() },
            _ => Call::LeaseLost,
        }
    }

    async fn lost(&self) {
        let mut calls = self.shared.calls.subscribe();
        // The sender lives as long as this.
        let _ = calls.wait_for(|calls| calls.is_lost).await;
    }

    async fn over(&self) {
        let mut calls = self.shared.calls.subscribe();
        // The sender lives as long as this.
        let _ = calls.wait_for(|calls| calls.is_over).await;
    }

    fn remaining(&self) -> Duration {
        let now = self.shared.inner.time.now();
        let end = self.shared.step(|holder| holder.lease_end());
        Duration::from_millis(end.saturating_sub(now))
    }

    async fn save(&self, checkpoint: Bytes) -> Result<(), CoordinationError> {
        let shared = &self.shared;
        check(&checkpoint)?;
        if shared.names.kind == Kind::Lock {
            let what = "keep checkpoints of locks";
            return Err(CoordinationError::Unsupported { what });
        }
        self.fence.check().map_err(|_| shared.over())?;
        let mut book = shared.book.lock().await;
        let mut present = match book.take() {
            Some(book) => book,
            // An answer was lost.
            None => shared.read().await?,
        };
        present.chronicle.save(shared.epoch, checkpoint);
        let put = shared.put(&present.chronicle, present.version).await;
        match put {
            Ok((version, revision)) => {
                present.version = version;
                present.revision = revision;
                *book = Some(present);
                Ok(())
            }
            Err(RecordsError::LeaseLost { .. }) => {
                shared.taken();
                Err(shared.over())
            }
            // Nobody else writes under this lease, so it was a write of this one that was late.
            Err(RecordsError::Conflict { .. }) => Err(CoordinationError::Unknown {
                why: "an earlier checkpoint was written late".to_owned(),
            }),
            Err(other) => Err(error(other)),
        }
    }

    async fn resign(
        self,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) -> Result<(), CoordinationError> {
        let Self {
            mut keeper, shared, ..
        } = self;
        // An answer that it has must be taken before, or not at all.
        keeper.0.abort();
        let _ = (&mut keeper.0).await;
        // Also of one that leaves too much, the term ends.
        let fits = checkpoint.as_ref().map_or(Ok(()), check);
        shared
            .close(reason, checkpoint.filter(|_| fits.is_ok()))
            .await?;
        fits
    }
}

fn check(checkpoint: &Bytes) -> Result<(), CoordinationError> {
    match checkpoint.len() {
        0..=CHECKPOINT_BYTES_MAX => Ok(()),
        bytes => Err(CoordinationError::Invalid {
            why: format!(
                "a checkpoint must have at most {CHECKPOINT_BYTES_MAX} bytes, this one has {bytes}"
            ),
        }),
    }
}

impl<S: Records + 'static> Shared<S> {
    /// Lets the machine do something, and tells everybody what has come of it.
    fn step<T>(&self, act: impl FnOnce(&mut Holder) -> T) -> T {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut holder);
        self.span.stop_at.store(holder.stop_at(), Ordering::Release);
        let (is_called, is_over) = (holder.is_called(), holder.stop_at() == 0);
        drop(holder);
        self.calls.send_if_modified(|calls| {
            let is_new = is_called && !calls.is_lost || is_over && !calls.is_over;
            calls.is_lost |= is_called;
            calls.is_over |= is_over;
            is_new
        });
        result
    }

    fn now(&self) -> Millis {
        self.inner.time.now()
    }

    fn taken(&self) {
        self.step(Holder::taken);
    }

    fn over(&self) -> CoordinationError {
        CoordinationError::Over {
            election: self.names.election.clone(),
            epoch: self.epoch,
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.timing.renew_every())
    }

    /// Keeps the lease until it is over.
    async fn keep(&self, revision: Revision) {
        tokio::select! {
            () = self.renew() => {}
            () = self.count() => {}
            () = self.watch_term(revision) => {}
            () = self.watch_asks(), if self.names.kind == Kind::Election => {}
        }
    }

    async fn renew(&self) {
        let mut is_told = false;
        loop {
            let answer = match self.step(|holder| holder.next(self.now())) {
                HolderAsk::Wait(until) => {
                    self.inner.time.sleep_until(until).await;
                    Answer::Elapsed
                }
                HolderAsk::Renew => {
                    let extend = ExtendRecord {
                        name: self.names.term.clone(),
                        epoch: self.epoch,
                        lease: self.timing.lease,
                    };
                    let extended = self.inner.records.extend(extend);
                    match timeout(self.patience(), extended).await {
                        Ok(Ok(())) => {
                            is_told = false;
                            Answer::Done
                        }
                        Ok(Err(RecordsError::LeaseLost { .. })) => Answer::Refused,
                        // Once, however often it is tried again.
                        Ok(Err(_)) if is_told => Answer::Lost,
                        Ok(Err(why)) => {
                            is_told = true;
                            warn!(election = %self.names.election, epoch = self.epoch.0, %why, "a lease is not renewed");
                            Answer::Lost
                        }
                        Err(_) => Answer::Lost,
                    }
                }
                _ => return,
            };
            self.step(|holder| holder.answer(self.now(), answer));
        }
    }

    /// Says when the lease ends, also while the store does not answer. Ends when it is over.
    async fn count(&self) {
        loop {
            let changes_at = self.step(|holder| {
                holder.advance(self.now());
                holder.changes_at()
            });
            match changes_at {
                Some(at) => self.inner.time.sleep_until(at).await,
                None => return,
            }
        }
    }

    /// Ends when the lease is seen to be another's, or nobody's.
    async fn watch_term(&self, mut seen: Revision) {
        loop {
            let watch = WatchRecord {
                name: self.names.term.clone(),
                seen: Some(seen),
                wait: WATCH,
            };
            match self.inner.records.watch(watch).await {
                Ok(Some(term)) if self.is_own(term.lease.as_ref().map(|lease| lease.epoch)) => {
                    seen = term.revision;
                }
                Ok(_) => return self.taken(),
                Err(_) => tokio::time::sleep(jittered(self.patience() / 2)).await,
            }
        }
    }

    /// Never ends.
    async fn watch_asks(&self) {
        let mut seen = None;
        loop {
            let watch = WatchRecord {
                name: self.names.ask.clone(),
                seen,
                wait: WATCH,
            };
            match self.inner.records.watch(watch).await {
                Ok(ask) => {
                    seen = ask.as_ref().map(|ask| ask.revision);
                    if let Some(ask) = ask {
                        self.asked(&ask.value);
                    }
                }
                Err(_) => tokio::time::sleep(jittered(self.patience() / 2)).await,
            }
        }
    }

    fn asked(&self, value: &[u8]) {
        let ask = serde_json::from_slice::<Asked>(value);
        let ask = ask.map_err(|error| error.to_string()).and_then(|ask| {
            let by = HolderName::new(&ask.by).map_err(|error| error.to_string())?;
            Ok((Epoch(ask.epoch), by))
        });
        match ask {
            Ok((epoch, by)) if epoch == self.epoch => {
                self.calls.send_modify(|calls| calls.asked = Some(by));
            }
            // A request to a leader before this one.
            Ok(_) => {}
            Err(why) => {
                warn!(record = %self.names.ask, %why, "a request to resign cannot be read");
            }
        }
    }

    fn is_own(&self, epoch: Option<Epoch>) -> bool {
        epoch == Some(self.epoch)
    }

    /// Reads the term's record, of which the lease must be this term's.
    async fn read(&self) -> Result<Book, CoordinationError> {
        match self.inner.read(&self.names).await? {
            Some(term) if self.is_own(term.lease.as_ref().map(|lease| lease.epoch)) => Ok(Book {
                chronicle: decode(&self.names, &term.value)?,
                version: term.version,
                revision: term.revision,
            }),
            _ => Err(self.over()),
        }
    }

    async fn put(
        &self,
        chronicle: &Chronicle,
        replaces: RecordVersion,
    ) -> Result<(RecordVersion, Revision), RecordsError> {
        let put = PutRecord {
            name: self.names.term.clone(),
            value: chronicle.encode(),
            replaces: Some(replaces),
            epoch: Some(self.epoch),
        };
        let written = self.inner.records.put(put).await?;
        Ok((written.version, written.revision))
    }

    /// Writes the end of the term, and gives the lease back.
    async fn close(
        &self,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) -> Result<(), CoordinationError> {
        let mut book = self.book.lock().await.take();
        let is_election = self.names.kind == Kind::Election;
        // A version that nothing has leads to a look, as a wrong one does.
        let version = book.as_ref().map_or(RecordVersion(0), |book| book.version);
        self.step(|holder| holder.resign(is_election.then_some(version)));
        let mut pauses = Pauses::default();
        loop {
            let ask = self.step(|holder| holder.next(self.now()));
            let answer = match ask {
                HolderAsk::Over(Resigned::Done) => return Ok(()),
                HolderAsk::Over(Resigned::Unknown) => {
                    return Err(CoordinationError::Unknown {
                        why: "the store does not tell whether the end of the term is written"
                            .to_owned(),
                    });
                }
                HolderAsk::Close { replaces } => match &mut book {
                    Some(book) => {
                        let at = self.inner.time.wall();
                        let checkpoint = checkpoint.clone();
                        book.chronicle.close(self.epoch, at, reason, checkpoint);
                        self.answer(self.put(&book.chronicle, replaces)).await
                    }
                    None => Ok(Answer::Refused),
                },
                HolderAsk::Read => match timeout(self.patience(), self.read()).await {
                    Ok(Ok(now)) => {
                        let (is_closed, version) =
                            (now.chronicle.is_closed(self.epoch), now.version);
                        book = Some(now);
                        Ok(Answer::Term {
                            is_own: true,
                            is_closed,
                            version,
                        })
                    }
                    Ok(Err(CoordinationError::Over { .. })) => Ok(Answer::Term {
                        is_own: false,
                        is_closed: false,
                        version,
                    }),
                    Ok(Err(damaged @ CoordinationError::Damaged { .. })) => return Err(damaged),
                    _ => Ok(Answer::Lost),
                },
                HolderAsk::Release => {
                    let (name, epoch) = (self.names.term.clone(), self.epoch);
                    let released = self.inner.records.release(ReleaseRecord { name, epoch });
                    self.answer(released).await
                }
                _ => return Err(self.over()),
            }?;
            if answer == Answer::Lost {
                pauses.wait().await;
            }
            self.step(|holder| holder.answer(self.now(), answer));
        }
    }

    /// What the store does with a change under the lease.
    async fn answer<T>(
        &self,
        change: impl Future<Output = Result<T, RecordsError>>,
    ) -> Result<Answer, CoordinationError> {
        match timeout(self.patience(), change).await {
            Ok(Ok(_)) => Ok(Answer::Done),
            Ok(Err(RecordsError::Conflict { .. } | RecordsError::LeaseLost { .. })) => {
                Ok(Answer::Refused)
            }
            Ok(Err(invalid @ RecordsError::Invalid { .. })) => Err(error(invalid)),
            _ => Ok(Answer::Lost),
        }
    }
}

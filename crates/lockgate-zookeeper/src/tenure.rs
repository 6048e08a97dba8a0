//! A leader over ZooKeeper: confirms its node while it leads, and closes its term.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_coordination::{
    protocol::{Answer, Elected, Holder, HolderAsk, Resigned, Timing},
    shell::{Asked, Pauses, Time, jittered},
};
use lockgate_core::{
    Epoch, HolderName, Millis,
    coordination::{Call, CoordinationError, EndReason, Fence, Tenure, Term, TermSpan},
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tracing::warn;

use crate::{
    book::{Book, Written, check},
    coordinator::Inner,
    nodes::{Kind, Nodes},
    session::{Failed, Own, Session},
};

/// A term that is led over ZooKeeper.
pub struct ZookeeperTenure {
    term: Term,
    fence: Fence,
    shared: Arc<Shared>,
    keeper: Keeper,
}

/// The task that keeps the lease; it ends with its handle. If the node has not been deleted by then, it is when the lease
/// has ended.
struct Keeper {
    task: JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<Inner>,
    session: Arc<Session>,
    nodes: Nodes,
    own: Own,
    /// The node's path.
    path: String,
    epoch: Epoch,
    timing: Timing,
    holder: Mutex<Holder>,
    span: Arc<Span>,
    calls: watch::Sender<Calls>,
    book: tokio::sync::Mutex<Option<Book>>,
    is_released: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Calls {
    asked: Option<HolderName>,
    is_lost: bool,
    is_over: bool,
}

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

impl fmt::Debug for ZookeeperTenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperTenure")
            .field("term", &self.term)
            .field("node", &self.shared.path)
            .finish_non_exhaustive()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
        let shared = self.shared.clone();
        if shared.is_released.load(Ordering::Acquire) {
            return;
        }
        let runtime = shared.session.runtime.clone();
        runtime.spawn(async move { shared.let_go().await });
    }
}

impl ZookeeperTenure {
    #[expect(clippy::too_many_arguments, reason = "all that a candidate knows")]
    pub(crate) fn start(
        inner: Arc<Inner>,
        session: Arc<Session>,
        nodes: Nodes,
        own: Own,
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
        let shared = Arc::new(Shared {
            inner,
            nodes,
            path: own.path.clone().unwrap_or_default(),
            own,
            epoch: elected.epoch,
            timing,
            holder: Mutex::new(holder),
            span: span.clone(),
            calls: watch::Sender::new(Calls::default()),
            book: tokio::sync::Mutex::new(Some(book)),
            is_released: AtomicBool::new(false),
            session,
        });
        let keeping = shared.clone();
        let task = tokio::spawn(async move { keeping.keep().await });
        Self {
            fence: Fence::new(term.election.clone(), term.epoch).with_span(span),
            term,
            keeper: Keeper {
                task,
                shared: shared.clone(),
            },
            shared,
        }
    }

    /// The path of the node by which it leads, as Curator's `getOurPath` tells it. A transaction of ZooKeeper that checks
    /// whether it is there is one that only the leader makes.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.shared.path
    }
}

impl Tenure for ZookeeperTenure {
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
        let now = self.shared.now();
        let end = self.shared.step(|holder| holder.lease_end());
        Duration::from_millis(end.saturating_sub(now))
    }

    async fn save(&self, checkpoint: Bytes) -> Result<(), CoordinationError> {
        let shared = &self.shared;
        check(&checkpoint)?;
        if shared.nodes.kind == Kind::Lock {
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
        match present
            .write(&shared.session, &shared.nodes, &shared.path)
            .await?
        {
            Written::Done => {
                *book = Some(present);
                Ok(())
            }
            Written::Deposed => {
                shared.step(Holder::taken);
                Err(shared.over())
            }
            // Nobody else writes while the node is there, so it was a write of this one that was late.
            Written::Conflict => Err(CoordinationError::Unknown {
                why: "an earlier checkpoint was written late".to_owned(),
            }),
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
        keeper.task.abort();
        let _ = (&mut keeper.task).await;
        // Also of one that leaves too much, the term ends.
        let fits = checkpoint.as_ref().map_or(Ok(()), check);
        shared
            .close(reason, checkpoint.filter(|_| fits.is_ok()))
            .await?;
        fits
    }
}

impl Shared {
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

    fn over(&self) -> CoordinationError {
        CoordinationError::Over {
            election: self.nodes.election.clone(),
            epoch: self.epoch,
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.timing.renew_every())
    }

    /// Keeps the lease until it is over. Then the node goes too, or a leader that never gives it back would keep it as
    /// long as its process has a session.
    async fn keep(&self) {
        tokio::select! {
            () = self.renew() => {}
            () = self.count() => {}
            () = self.watch_own() => {}
            () = self.watch_asks(), if self.nodes.kind == Kind::Election => {}
        }
        self.let_go().await;
    }

    /// Deletes the node when the lease has ended.
    async fn let_go(&self) {
        let end = self.step(|holder| holder.lease_end());
        self.inner.time.sleep_until(end).await;
        self.session.remove(self.own.clone()).await;
    }

    /// Whether the node is there, at some time after this was called; or why that is not known, if ZooKeeper says so.
    async fn is_there(&self) -> (Answer, Option<Failed>) {
        let looked = timeout(self.patience(), self.session.confirm(&self.path)).await;
        match looked {
            Ok(Ok(true)) => (Answer::Done, None),
            Ok(Ok(false)) => (Answer::Refused, None),
            _ if !self.session.lives() => (Answer::Refused, None),
            Ok(Err(why)) => (Answer::Lost, Some(why)),
            Err(_) => (Answer::Lost, None),
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
                    let (answer, why) = self.is_there().await;
                    if answer == Answer::Done {
                        is_told = false;
                    }
                    // Once, however often it is tried again.
                    if let Some(why) = why.filter(|_| !is_told) {
                        is_told = true;
                        warn!(election = %self.nodes.election, epoch = self.epoch.0, ?why, "a lease is not renewed");
                    }
                    answer
                }
                _ => return,
            };
            self.step(|holder| holder.answer(self.now(), answer));
        }
    }

    /// Says when the lease ends, also while ZooKeeper does not answer. Ends when it is over.
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

    /// Ends when the node is seen to be gone.
    async fn watch_own(&self) {
        loop {
            match self.session.watch_whether(&self.path).await {
                Ok((Some(_), mut watching)) => watching.changed().await,
                Ok((None, _)) => break,
                Err(_) if !self.session.lives() => break,
                Err(_) => tokio::time::sleep(jittered(self.patience() / 2)).await,
            }
        }
        self.step(Holder::taken);
    }

    /// Never ends.
    async fn watch_asks(&self) {
        loop {
            let watched = match self.session.watch(&self.nodes.ask).await {
                Ok(Some((data, _, watching))) => {
                    self.asked(&data);
                    Ok(Some(watching))
                }
                Ok(None) => match self.session.watch_whether(&self.nodes.ask).await {
                    Ok((None, watching)) => Ok(Some(watching)),
                    // It has come meanwhile.
                    Ok((Some(_), _)) => Ok(None),
                    Err(failed) => Err(failed),
                },
                Err(failed) => Err(failed),
            };
            match watched {
                Ok(Some(mut watching)) => watching.changed().await,
                Ok(None) => {}
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
                warn!(node = %self.nodes.ask, %why, "a request to resign cannot be read");
            }
        }
    }

    /// Reads the term's record, if the node is still there.
    async fn read(&self) -> Result<Book, CoordinationError> {
        match self.is_there().await.0 {
            // What this session has written it reads.
            Answer::Done => Book::read(&self.session, &self.nodes).await,
            Answer::Refused => Err(self.over()),
            _ => Err(CoordinationError::Unavailable {
                why: "ZooKeeper does not answer".to_owned(),
            }),
        }
    }

    /// Writes the end of the term, and deletes the node.
    async fn close(
        &self,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) -> Result<(), CoordinationError> {
        let mut book = self.book.lock().await.take();
        let is_election = self.nodes.kind == Kind::Election;
        let version = book.as_ref().map(Book::record_version).unwrap_or_default();
        self.step(|holder| holder.resign(is_election.then_some(version)));
        let mut pauses = Pauses::default();
        loop {
            let answer = match self.step(|holder| holder.next(self.now())) {
                HolderAsk::Over(Resigned::Done) => return Ok(()),
                HolderAsk::Over(Resigned::Unknown) => {
                    return Err(CoordinationError::Unknown {
                        why: "ZooKeeper does not tell whether the end of the term is written"
                            .to_owned(),
                    });
                }
                HolderAsk::Close { .. } => match &mut book {
                    Some(book) => {
                        let (at, checkpoint) = (self.inner.time.wall(), checkpoint.clone());
                        book.chronicle.close(self.epoch, at, reason, checkpoint);
                        let written = book.write(&self.session, &self.nodes, &self.path);
                        match timeout(self.patience(), written).await {
                            Ok(Ok(Written::Done)) => Answer::Done,
                            Ok(Ok(_)) => Answer::Refused,
                            Ok(Err(invalid @ CoordinationError::Invalid { .. })) => {
                                return Err(invalid);
                            }
                            _ => Answer::Lost,
                        }
                    }
                    None => Answer::Refused,
                },
                HolderAsk::Read => match self.read().await {
                    Ok(now) => {
                        let is_closed = now.chronicle.is_closed(self.epoch);
                        let version = now.record_version();
                        book = Some(now);
                        Answer::Term {
                            is_own: true,
                            is_closed,
                            version,
                        }
                    }
                    Err(CoordinationError::Over { .. }) => Answer::Term {
                        is_own: false,
                        is_closed: false,
                        version,
                    },
                    Err(damaged @ CoordinationError::Damaged { .. }) => return Err(damaged),
                    Err(_) => Answer::Lost,
                },
                HolderAsk::Release => {
                    let deleted = self.session.delete(&self.path);
                    match timeout(self.patience(), deleted).await {
                        Ok(Ok(was_there)) => {
                            self.is_released.store(true, Ordering::Release);
                            match was_there {
                                true => Answer::Done,
                                false => Answer::Refused,
                            }
                        }
                        _ => Answer::Lost,
                    }
                }
                _ => return Err(self.over()),
            };
            if answer == Answer::Lost {
                pauses.wait().await;
            }
            self.step(|holder| holder.answer(self.now(), answer));
        }
    }
}

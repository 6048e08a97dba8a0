//! Sends the rows of an outbox to a sink.

mod plan;
#[cfg(test)]
mod tests;

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use lockgate_core::{Fate, Message, Millis, Sink, SinkCapabilities, with_sources};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, timeout},
};

use self::plan::{Outcome, Pass, Plan, Rules};
use crate::Error;

/// Options of a forwarder.
#[derive(Clone, Debug)]
pub struct ForwarderOptions {
    /// How often it looks for rows when nothing wakes it; 1 ms to an hour. Default: 250 ms.
    pub poll: Duration,
    /// How long it waits after a first failure; it doubles up to `backoff_max`, and a half of it is drawn by lot.
    /// 1 ms to an hour. Default: 100 ms.
    pub backoff_min: Duration,
    /// The longest wait after failures; up to an hour. Default: 10 s.
    pub backoff_max: Duration,
    /// For how long the sink remembers unique ids, where it does not say itself, or where you know of less.
    /// Default: what the sink says when the forwarder starts. Before you make a queue's window shorter, start the
    /// forwarder again with the shorter one.
    pub window: Option<Duration>,
    /// How long a send may take; then its outcome is unknown, and it is sent again. Up to a quarter of the
    /// window. Default: 30 s, or a quarter of the window if that is less.
    pub send_time_max: Option<Duration>,
}

impl Default for ForwarderOptions {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(250),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            window: None,
            send_time_max: None,
        }
    }
}

/// Why a forwarder does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The sink would take a message twice.
    #[error(
        "the sink knows no unique ids, so a message whose answer is lost could come twice: give the queue a \
         `dedup_window`"
    )]
    NoUniqueIds,
    /// Nobody says for how long the sink remembers unique ids.
    #[error("the sink does not say for how long it remembers unique ids: set `window`")]
    NoWindow,
    /// An option is out of range.
    #[error("{what} is {min:?} to {max:?}, not {given:?}")]
    OutOfRange {
        /// The option.
        what: &'static str,
        /// Its value.
        given: Duration,
        /// The least value.
        min: Duration,
        /// The greatest value.
        max: Duration,
    },
    /// The database of SQLite is no file.
    #[error("the database is no file: nobody else could add a row to it")]
    NoFile,
    /// Another forwarder of this outbox runs.
    #[error("another forwarder of this outbox runs: it has locked {}", path.display())]
    Running {
        /// The file that it has locked.
        path: PathBuf,
    },
    /// The file that a forwarder locks cannot be used.
    #[error("{} cannot be locked", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The database, or the form of its table.
    #[error(transparent)]
    Database(#[from] Error),
}

/// What a forwarder has done since its start, and what it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwarderState {
    /// Rows whose message was accepted.
    pub forwarded: u64,
    /// Of these: rows whose unique id the sink knew already, where it [can](lockgate_core::SinkCapabilities::tells_duplicates)
    /// tell.
    pub duplicates: u64,
    /// Rows that it has parked.
    pub parked: u64,
    /// Sends of a row that failed and are repeated.
    pub failed: u64,
    /// Whether its last look has found nothing to send, nor anything that failed and waits to be sent again.
    pub idle: bool,
    /// Whether it is the one that forwards. Others over the same PostgreSQL database wait to take over.
    pub leading: bool,
    /// Why it does not get on, if it does not: the last error of the sink or the database.
    pub trouble: Option<Arc<str>>,
}

/// A forwarder that runs. When it is dropped, it ends at once, as if its process were killed: nothing is lost.
#[derive(Debug)]
#[must_use = "a forwarder that is dropped ends"]
pub struct Forwarder {
    state: watch::Receiver<ForwarderState>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// A row that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: i64,
    pub(crate) key: Option<String>,
    /// No less than the message's size.
    pub(crate) size: u64,
    /// When it was first sent without a clear no, by the database's clock.
    pub(crate) first_sent: Option<i64>,
}

/// What a look at the table has found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The database's wall clock.
    pub(crate) now: i64,
    /// Those of a key in the order of their ids.
    pub(crate) candidates: Vec<Candidate>,
    /// There may be more rows than were looked at.
    pub(crate) more: bool,
}

/// Rows that are not looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) keys: Vec<String>,
    pub(crate) ids: Vec<i64>,
}

/// A row to park.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parked {
    pub(crate) id: i64,
    pub(crate) reason: String,
    pub(crate) in_doubt: bool,
}

/// What one transaction changes. Doing the first three a second time changes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) done: Vec<i64>,
    pub(crate) unclaimed: Vec<i64>,
    pub(crate) parked: Vec<Parked>,
    /// Rows that are about to be sent.
    pub(crate) claims: Vec<i64>,
}

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// This forwarder, as when it asked last.
    Held,
    /// This forwarder, since now: another one may have been at it before.
    Taken,
    /// Another one.
    Elsewhere,
}

/// A row and its message, or why it is none.
pub(crate) type Loaded = (i64, Result<Message, String>);

/// What a forwarder asks of a database.
pub(crate) trait Store: Send + 'static {
    /// Checks that a forwarder can run.
    fn start(&mut self) -> impl Future<Output = Result<(), StartError>> + Send;

    /// Whether this forwarder is the one that forwards. Asked before each look.
    fn lead(&mut self) -> impl Future<Output = Result<Lead, Error>> + Send;

    /// Looks at the oldest rows to send, `max` of them, and puts those aside that wait behind a parked one.
    fn find(
        &mut self,
        skipped: Skipped,
        max: usize,
    ) -> impl Future<Output = Result<Found, Error>> + Send;

    /// Does all of the step, or nothing, and returns the claimed rows that are still there.
    fn step(&mut self, step: &Step) -> impl Future<Output = Result<Vec<Loaded>, Error>> + Send;
}

/// Rows of one look at the table.
const LOOK_MAX: usize = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);
const MILLI: Duration = Duration::from_millis(1);

pub(crate) async fn start<St: Store, S: Sink + 'static>(
    mut store: St,
    sink: S,
    added: Arc<Notify>,
    options: ForwarderOptions,
) -> Result<Forwarder, StartError> {
    let can = sink.sink_capabilities();
    let (rules, send_time_max) = options.rules(&can)?;
    store.start().await?;
    let (state, seen) = watch::channel(ForwarderState::default());
    let (stop, stopped) = watch::channel(false);
    let running = Running {
        store,
        sink,
        can,
        plan: Plan::new(rules),
        pending: Step::default(),
        poll: options.poll,
        send_time_max,
        added,
        state,
        stopped,
        started: Instant::now(),
    };
    Ok(Forwarder {
        state: seen,
        stop,
        task: tokio::spawn(running.run()),
    })
}

impl ForwarderOptions {
    fn rules(&self, can: &SinkCapabilities) -> Result<(Rules, Duration), StartError> {
        if !can.unique_ids {
            return Err(StartError::NoUniqueIds);
        }
        let windows = self.window.into_iter().chain(can.unique_id_window);
        let window = windows.min().ok_or(StartError::NoWindow)?;
        let quarter = window / 4;
        let send_time_max = self.send_time_max;
        let send_time_max = send_time_max.unwrap_or(Duration::from_secs(30).min(quarter));
        for (what, given, min, max) in [
            ("window", window, 4 * MILLI, Duration::MAX),
            ("send_time_max", send_time_max, MILLI, quarter),
            ("poll", self.poll, MILLI, HOUR),
            ("backoff_min", self.backoff_min, MILLI, HOUR),
            ("backoff_max", self.backoff_max, self.backoff_min, HOUR),
        ] {
            if !(min..=max).contains(&given) {
                return Err(StartError::OutOfRange {
                    what,
                    given,
                    min,
                    max,
                });
            }
        }
        let rules = Rules {
            resend_max: millis(window / 2),
            batch_max: can.batch_max.max(1),
            batch_bytes_max: can.batch_bytes_max,
            backoff_min: millis(self.backoff_min),
            backoff_max: millis(self.backoff_max),
        };
        Ok((rules, send_time_max))
    }
}

impl Forwarder {
    /// What it has done, and what it is about.
    #[must_use]
    pub fn state(&self) -> ForwarderState {
        self.state.borrow().clone()
    }

    /// Waits until its state is as `wanted` says, and returns it; or its last state, if it ends before.
    ///
    /// # Cancellation
    /// Dropping it changes nothing.
    pub async fn wait_for(&self, wanted: impl FnMut(&ForwarderState) -> bool) -> ForwarderState {
        let mut state = self.state.clone();
        let reached = state.wait_for(wanted).await.map(|state| state.clone());
        reached.unwrap_or_else(|_ended| self.state())
    }

    /// Ends it in good order: it sends nothing more, waits up to `within` for the answer that it is waiting for,
    /// and writes down what came of it. Returns its last state.
    ///
    /// # Panics
    /// If the sink has panicked.
    pub async fn drain(mut self, within: Duration) -> ForwarderState {
        // It may have ended.
        let _ = self.stop.send(true);
        if let Ok(Err(error)) = timeout(within, &mut self.task).await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
        self.state()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Running<St, S> {
    store: St,
    sink: S,
    can: SinkCapabilities,
    plan: Plan,
    /// What is decided and not yet written down.
    pending: Step,
    poll: Duration,
    send_time_max: Duration,
    added: Arc<Notify>,
    state: watch::Sender<ForwarderState>,
    stopped: watch::Receiver<bool>,
    started: Instant,
}

impl<St, S> Drop for Running<St, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let trouble = "the forwarder has ended, because the sink has panicked";
            tracing::error!("{trouble}");
            self.state.send_modify(|state| {
                (state.leading, state.idle) = (false, false);
                state.trouble = Some(trouble.into());
            });
        }
    }
}

impl<St: Store, S: Sink> Running<St, S> {
    async fn run(mut self) {
        let mut failures = 0;
        while !*self.stopped.borrow() {
            let wait = match self.look().await {
                Ok(wait) => {
                    failures = 0;
                    wait
                }
                Err(error) => {
                    self.trouble(&error);
                    let delay = self.plan.delay(failures, random());
                    failures = failures.saturating_add(1);
                    Wait::Pause(Duration::from_millis(delay))
                }
            };
            let (span, added) = match wait {
                Wait::No => continue,
                Wait::Pause(span) => (span, false),
                Wait::Rows => (self.poll, true),
            };
            tokio::select! {
                () = self.added.notified(), if added => {}
                () = tokio::time::sleep(span) => {}
                // Without its handle it would be aborted.
                _ = self.stopped.changed() => {}
            }
        }
        let settled = match self.lead().await {
            Ok(true) => self.write_down(Vec::new()).await.err(),
            Ok(false) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = settled {
            self.trouble(&error);
        }
    }

    async fn lead(&mut self) -> Result<bool, Error> {
        let lead = self.store.lead().await?;
        if lead != Lead::Held {
            // They may be another forwarder's by now. What was accepted is done, whoever says so.
            self.pending.unclaimed.clear();
            self.pending.parked.clear();
        }
        let leading = lead != Lead::Elsewhere;
        self.state.send_if_modified(|state| {
            // Who stands by has no other trouble than a database that does not answer.
            let trouble = state.trouble.take_if(|_| !leading).is_some();
            let changed = state.leading != leading || trouble;
            state.leading = leading;
            changed
        });
        Ok(leading)
    }

    /// One look at the table, and all that is sent because of it.
    async fn look(&mut self) -> Result<Wait, Error> {
        if !self.lead().await? {
            return Ok(Wait::Rows);
        }
        self.write_down(Vec::new()).await?;
        let mut skipped = self.plan.skipped(self.now());
        let all = skipped == Skipped::default();
        let mut found = self.store.find(skipped.clone(), LOOK_MAX).await?;
        if let Some(keys) = self.plan.crowding(&found) {
            skipped.keys.extend(keys);
            let others = self.store.find(skipped, LOOK_MAX).await?;
            found.candidates.extend(others.candidates);
        }
        let (more, none) = (found.more, found.candidates.is_empty());
        let (mut pass, doubtful) = self.plan.pass(found, self.now());
        self.park(doubtful);
        let wait = self.send_all(&mut pass).await;
        self.write_down(Vec::new()).await?;
        let wait = wait?;
        if none && !more {
            if all {
                self.state
                    .send_modify(|state| (state.idle, state.trouble) = (true, None));
            }
            return Ok(Wait::Rows);
        }
        Ok(wait.map_or(Wait::No, Wait::Pause))
    }

    async fn send_all(&mut self, pass: &mut Pass) -> Result<Option<Duration>, Error> {
        while !*self.stopped.borrow() {
            let batch = self.plan.batch(pass, self.now());
            if batch.is_empty() {
                break;
            }
            self.state
                .send_if_modified(|state| std::mem::take(&mut state.idle));
            let claims = batch.iter().map(|candidate| candidate.id).collect();
            let loaded = self.write_down(claims).await?;
            let mut loaded: std::collections::HashMap<_, _> = loaded.into_iter().collect();
            let (mut candidates, mut messages, mut answers) = (Vec::new(), Vec::new(), Vec::new());
            for candidate in batch {
                // Without a message it was deleted meanwhile.
                match loaded.remove(&candidate.id).map(|row| self.checked(row)) {
                    Some(Ok(message)) => {
                        candidates.push(candidate);
                        messages.push(message);
                    }
                    Some(Err(outcome)) => answers.push((candidate, outcome)),
                    None => {}
                }
            }
            if !messages.is_empty() {
                let outcomes = self.send(messages).await;
                answers.extend(candidates.into_iter().zip(outcomes));
            }
            if answers.is_empty() {
                continue;
            }
            let verdict = self.plan.answered(pass, answers, self.now(), random());
            self.pending.done.extend(verdict.done);
            self.pending.unclaimed.extend(verdict.unclaimed);
            self.park(verdict.parked);
            if let Some(wait) = verdict.wait {
                return Ok(Some(Duration::from_millis(wait)));
            }
        }
        Ok(None)
    }

    /// A message that the sink takes, as far as it tells before.
    fn checked(&self, row: Result<Message, String>) -> Result<Message, Outcome> {
        let refused = |reason| Outcome::Failed {
            fate: Fate::Refused,
            reason,
        };
        let message = row.map_err(refused)?;
        let unsupported = |part: lockgate_core::Unsupported| refused(part.to_string());
        self.can.check(&message).map_err(unsupported)?;
        let (size, max) = (message.size() as u64, self.can.message_bytes_max);
        match size <= max {
            true => Ok(message),
            false => Err(refused(format!(
                "it has {size} bytes, and the sink takes {max}"
            ))),
        }
    }

    /// One outcome for each message.
    async fn send(&mut self, messages: Vec<Message>) -> Vec<Outcome> {
        let count = messages.len();
        let answers = timeout(self.send_time_max, self.sink.send_batch(messages)).await;
        let (mut forwarded, mut duplicates, mut trouble) = (0, 0, None);
        let mut outcomes: Vec<Outcome> = answers
            .unwrap_or_default()
            .into_iter()
            .map(|answer| match answer {
                Ok(accepted) => {
                    forwarded += 1;
                    duplicates += u64::from(accepted.duplicate);
                    Outcome::Accepted
                }
                Err(error) => Outcome::Failed {
                    fate: error.fate,
                    reason: with_sources(&*error.source),
                },
            })
            .collect();
        outcomes.resize_with(count, || Outcome::Failed {
            fate: Fate::Unknown,
            reason: "the sink has not answered in time".to_owned(),
        });
        let mut failed = 0;
        for outcome in &outcomes {
            if let Outcome::Failed { fate, reason } = outcome
                && !fate.is_never()
            {
                failed += 1;
                trouble = Some(reason.as_str().into());
            }
        }
        if let Some(trouble) = &trouble {
            tracing::warn!(%trouble, rows = failed, "rows of an outbox were not accepted, and are sent again");
        }
        self.state.send_modify(|state| {
            state.forwarded += forwarded;
            state.duplicates += duplicates;
            state.failed += failed;
            state.trouble = trouble;
        });
        outcomes
    }

    /// Writes down what is decided, and claims rows that are about to be sent.
    async fn write_down(&mut self, claims: Vec<i64>) -> Result<Vec<Loaded>, Error> {
        let Step {
            done,
            unclaimed,
            parked,
            ..
        } = &self.pending;
        if claims.is_empty() && done.is_empty() && unclaimed.is_empty() && parked.is_empty() {
            return Ok(Vec::new());
        }
        self.pending.claims = claims;
        let loaded = self.store.step(&self.pending).await;
        // What could not be written down stays for the next try; claims are made anew.
        match &loaded {
            Ok(_) => self.pending = Step::default(),
            Err(_) => self.pending.claims.clear(),
        }
        loaded
    }

    fn park(&mut self, parked: Vec<Parked>) {
        if parked.is_empty() {
            return;
        }
        for Parked { id, reason, .. } in &parked {
            tracing::warn!(row = id, reason, "a row of an outbox is parked");
        }
        self.state
            .send_modify(|state| state.parked += parked.len() as u64);
        self.pending.parked.extend(parked);
    }

    fn trouble(&self, error: &Error) {
        let trouble = with_sources(error);
        tracing::warn!(%trouble, "the database of an outbox has failed");
        self.state
            .send_modify(|state| state.trouble = Some(trouble.into()));
    }

    fn now(&self) -> Millis {
        millis(self.started.elapsed())
    }
}

enum Wait {
    /// Look again.
    No,
    /// So long, whatever comes.
    Pause(Duration),
    /// Until there may be rows.
    Rows,
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX)
}

/// Spreads forwarders that fail together. Without random numbers they are not spread.
fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

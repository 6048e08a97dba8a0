//! Runs move tasks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex as SyncMutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{QueueId, QueueName};
use lockgate_engine::{Engine, EngineError, QueueEntry};
use lockgate_machine::{ChangeQueue, DescribeQueue, Move, MoveTo, Moved, Rejection, StuckReason};
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep, sleep_until},
};

use super::{
    pace::Pace,
    task::{self, Status, Task},
};
use crate::{
    auth::{AccessKeys, Verb},
    http::drain::Drain,
    sqs::error::{ErrorCode, SqsError},
};

/// How long to wait after a step that found no room in the destination.
const RETRY: Duration = Duration::from_secs(1);

/// AWS's reason for a message that was sent to the dead-letter queue directly.
const NO_SOURCE: &str = "CouldNotDetermineMessageSource";

/// The running tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::sqs::actions) struct Mover {
    engine: Engine,
    drain: Drain,
    changes: Arc<Mutex<()>>,
    keys: Option<AccessKeys>,
    running: Arc<SyncMutex<HashMap<QueueId, Arc<Run>>>>,
}

/// A running task.
#[derive(Debug)]
struct Run {
    id: String,
    moved: AtomicU64,
    cancelled: Notify,
}

/// Whether a task is new, or continues after a stop of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    First,
    Again,
}

/// How a task ends; `Err` has the reason of a failure.
type End = Result<Status, String>;

impl Mover {
    /// Continues the tasks that the last stop interrupted. If there are any, the caller must be
    /// within a runtime.
    pub(in crate::sqs::actions) fn new(
        engine: Engine,
        drain: Drain,
        changes: Arc<Mutex<()>>,
        keys: Option<AccessKeys>,
    ) -> Self {
        let mover = Self {
            engine,
            drain,
            changes,
            keys,
            running: Arc::default(),
        };
        for queue in mover.engine.directory().all() {
            let cut_short = task::of(&queue).into_iter().next();
            if let Some(task) = cut_short.filter(|task| !task.status.is_over()) {
                mover.run(&queue, task, Start::Again);
            }
        }
        mover
    }

    /// Runs a task until it ends or the server stops.
    pub(super) fn run(&self, source: &QueueEntry, task: Task, start: Start) {
        let run = Arc::new(Run {
            id: task.id.clone(),
            moved: AtomicU64::new(0),
            cancelled: Notify::new(),
        });
        self.runs().insert(source.id, run.clone());
        let (mover, queue, name) = (self.clone(), source.id, source.name.clone());
        tokio::spawn(async move {
            let end = tokio::select! {
                biased;
                () = mover.drain.begun() => None,
                end = mover.work(&name, &task, &run, start) => end,
            };
            if let Some(end) = end {
                mover.close(queue, &name, &run, end).await;
            }
            mover.runs().remove(&queue);
        });
    }

    pub(super) fn moved(&self, source: QueueId, task: &Task) -> u64 {
        let runs = self.runs();
        let run = runs.get(&source).filter(|run| run.id == task.id);
        run.map_or(task.moved, |run| run.moved.load(Ordering::Relaxed))
    }

    /// Ends the task of a queue after its current step.
    pub(super) fn cancel(&self, source: QueueId) {
        if let Some(run) = self.runs().get(&source) {
            run.cancelled.notify_one();
        }
    }

    /// Stores the tasks of a queue. The caller holds the lock on changes.
    pub(super) async fn save(&self, source: &QueueEntry, tasks: &[Task]) -> Result<(), SqsError> {
        let mut annotations = source.annotations.clone();
        let text = serde_json::to_string(tasks).expect("texts and numbers are JSON");
        annotations.insert(task::ANNOTATION.to_owned(), text);
        let change = ChangeQueue {
            queue: source.name.clone(),
            settings: None,
            annotations: Some(annotations),
            tags: None,
        };
        self.engine.submit(change).await?;
        Ok(())
    }

    /// `None`: the server stops, and the task continues after the next start.
    async fn work(&self, source: &QueueName, task: &Task, run: &Run, start: Start) -> Option<End> {
        if task.status == Status::Cancelling {
            return Some(Ok(Status::Cancelled));
        }
        // After a restart, the number of moved messages follows from the messages that are left.
        let query = DescribeQueue {
            queue: source.clone(),
        };
        if start == Start::Again
            && let Ok(description) = self.engine.query(query).await
        {
            let moved = task.to_move.saturating_sub(description.counts.ready);
            run.moved.store(moved, Ordering::Relaxed);
        }
        let pace = Pace::of(task.rate);
        let mut next = Instant::now();
        let mut cursor = None;
        loop {
            tokio::select! {
                biased;
                () = run.cancelled.notified() => return Some(Ok(Status::Cancelled)),
                () = sleep_until(next) => {}
            }
            next = Instant::now() + pace.every;
            let Some(to) = self.target(source, task) else {
                return Some(Err(denied()));
            };
            let step = Move {
                from: source.clone(),
                to,
                max: pace.step,
                cursor,
            };
            match self.engine.submit(step).await {
                Ok(Moved {
                    moved,
                    stuck,
                    next: rest,
                    ..
                }) => {
                    run.moved.fetch_add(moved, Ordering::Relaxed);
                    if let Some(stuck) = stuck {
                        return Some(Err(stuck_reason(stuck.reason)));
                    }
                    if rest.is_none() {
                        return Some(Ok(Status::Completed));
                    }
                    // It passes over the same messages again until what is in flight has ended.
                    if moved == 0 && rest == cursor {
                        next += RETRY;
                    }
                    cursor = rest;
                }
                // The destination may have room later, and a task can wait.
                Err(
                    EngineError::Overloaded
                    | EngineError::Rejected(Rejection::LogFull { .. } | Rejection::OutOfDescriptors),
                ) => {
                    next += RETRY;
                }
                Err(EngineError::Rejected(rejection)) => {
                    return Some(Err(failure(rejection)));
                }
                // The next start finds out what happened: a step moves all of its messages or none.
                Err(_) => return None,
            }
        }
    }

    /// The destination of the next step. A task may do what the access key that started it may do
    /// at this moment. `None`: the key allows it nothing any more.
    fn target(&self, source: &QueueName, task: &Task) -> Option<MoveTo> {
        let key = match (&self.keys, &task.by) {
            (Some(keys), Some(id)) => Some(keys.get(id)?),
            // Without authentication now, or when the task was started, everything is allowed.
            _ => None,
        };
        let may = |verb, queue| key.as_ref().is_none_or(|key| key.may(verb, queue));
        if !may(Verb::Receive, source) {
            return None;
        }
        match &task.destination {
            Some(to) => may(Verb::Send, to).then(|| MoveTo::Queue(to.clone())),
            None => Some(
                key.as_ref()
                    .map_or(MoveTo::Origins, |key| key.origins(self.engine.directory())),
            ),
        }
    }

    /// Stores how a task ended.
    async fn close(&self, queue: QueueId, name: &QueueName, run: &Run, end: End) {
        loop {
            let alone = self.changes.lock().await;
            let source = self.engine.directory().get(name);
            let Some(source) = source.filter(|source| source.id == queue) else {
                return;
            };
            let mut tasks = task::of(&source);
            let Some(task) = tasks.iter_mut().find(|task| task.id == run.id) else {
                return;
            };
            task.moved = run.moved.load(Ordering::Relaxed);
            match &end {
                Ok(status) => task.status = *status,
                Err(reason) => {
                    task.status = Status::Failed;
                    task.failure = Some(reason.clone());
                }
            }
            match self.save(&source, &tasks).await {
                Ok(()) => return,
                Err(error) if self.drain.has_begun() => {
                    tracing::debug!(%error, "the end of a move task was not written down");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "writing down the end of a move task");
                }
            }
            drop(alone);
            tokio::select! {
                () = self.drain.begun() => return,
                _ = self.engine.stopped() => return,
                () = sleep(RETRY) => {}
            }
        }
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, HashMap<QueueId, Arc<Run>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stuck_reason(reason: StuckReason) -> String {
    match reason {
        StuckReason::OriginGone => failure_code(&SqsError::queue_does_not_exist()),
        StuckReason::OriginNotAllowed => denied(),
        _ => NO_SOURCE.to_owned(),
    }
}

fn denied() -> String {
    ErrorCode::AccessDenied.row().legacy.to_owned()
}

fn failure(rejection: Rejection) -> String {
    failure_code(&rejection.into())
}

fn failure_code(error: &SqsError) -> String {
    error.code.row().legacy.to_owned()
}

//! A worker that runs in one of many processes.

use std::{fmt, time::Duration};

use bytes::Bytes;
use lockgate_consumer::{Ended, StartError, Worker};
use lockgate_core::{
    TransportError,
    coordination::{EndReason, Fence, Term},
};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    career::{HandOver, InFlight, LeaderCareer, Next},
    time::SLICE,
};

/// A career that runs a worker while it leads: of all processes that have one, exactly one consumes.
///
/// ```
/// use lockgate_consumer::{Job, MemoryOptions, MemoryQueue, MemoryRecords, Worker};
/// use lockgate_coordination::{Campaign, RecordsCoordinator, Singleton, WorkerCareer};
/// use lockgate_core::{ElectionName, HolderName, Message};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let queue = MemoryQueue::new(MemoryOptions::default())?;
/// # queue.push(Message::new("post")).await?;
/// # let (done, finished) = tokio::sync::oneshot::channel::<()>();
/// # let done = std::sync::Arc::new(std::sync::Mutex::new(Some(done)));
/// let coordinator = RecordsCoordinator::new(MemoryRecords::new());
/// let campaign = Campaign::new(ElectionName::new("orders")?, HolderName::new("host-1")?);
/// let mut consumes = WorkerCareer::new(|fence| {
///     let epoch = fence.epoch();
/// #   let done = done.clone();
///     Worker::over(queue.clone()).start(move |job: Job| {
/// #       let done = done.clone();
///         async move {
///             println!("{:?} under epoch {}", job.body(), epoch.0);
/// #           done.lock().unwrap().take().map(|done| done.send(()));
///             Ok(())
///         }
///     })
/// });
/// let stop = async { drop(finished.await) };
/// Singleton::new(coordinator, campaign).run_until(&mut consumes, stop).await?;
/// # Ok(())
/// # }
/// ```
///
/// A leader that is asked to go takes no more messages, and hands over when those that it has are done, or after
/// [`drain_within`](Self::drain_within). If its lease is lost, its worker is dropped at once: messages that were under way
/// come again. A *blocking* handler goes on until it returns, so give what it writes to the fence.
pub struct WorkerCareer<F> {
    start: F,
    drain_within: Duration,
    running: Option<Running>,
}

/// A worker in a task of its own, which ends with this.
struct Running {
    task: JoinHandle<Option<Ended>>,
    drain: Option<oneshot::Sender<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerCareerError {
    /// It cannot begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It has ended by itself: the last of its sources is closed, or refuses to give messages.
    #[error("the worker has ended: {0}")]
    Ended(#[source] TransportError),
    /// It has ended by itself, and cannot say why.
    #[error("the worker has ended")]
    Gone,
}

impl<F> fmt::Debug for WorkerCareer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerCareer")
            .field("is_running", &self.running.is_some())
            .finish_non_exhaustive()
    }
}

impl<F: FnMut(&Fence) -> Result<Worker, StartError> + Send> WorkerCareer<F> {
    /// A career whose terms each run the worker that this starts.
    #[must_use]
    pub fn new(start: F) -> Self {
        Self {
            start,
            drain_within: Duration::from_secs(20),
            running: None,
        }
    }

    /// How long the worker may go on with what it has when the leader is asked to go. The singleton's
    /// [`hand_over_within`](crate::Singleton::hand_over_within) must be longer. Default: 20 s.
    #[must_use]
    pub fn drain_within(mut self, within: Duration) -> Self {
        self.drain_within = within;
        self
    }
}

impl<F: FnMut(&Fence) -> Result<Worker, StartError> + Send> LeaderCareer for WorkerCareer<F> {
    type Error = WorkerCareerError;

    /// A unit only waits for the worker, which the hand-over ends.
    fn in_flight(&self) -> InFlight {
        InFlight::Abort
    }

    async fn inaugurate(&mut self, _: &Term, fence: &Fence) -> Result<(), WorkerCareerError> {
        let worker = (self.start)(fence)?;
        let (drain, drained) = oneshot::channel();
        let (fence, within) = (fence.clone(), self.drain_within);
        let task = tokio::spawn(async move {
            let drained = async { drop(drained.await) };
            tokio::select! {
                biased;
                // Whatever becomes of the singleton, no worker outlives its term.
                () = over(&fence) => None,
                ended = worker.run_until(drained, within) => Some(ended),
            }
        });
        let drain = Some(drain);
        self.running = Some(Running { task, drain });
        Ok(())
    }

    async fn execute(&mut self, fence: &Fence) -> Result<Next, WorkerCareerError> {
        let ended = match &mut self.running {
            Some(running) => (&mut running.task).await.ok().flatten(),
            None => None,
        };
        self.running = None;
        match ended {
            // It is over: the call comes.
            None if fence.check().is_err() => Ok(Next::Idle(SLICE)),
            None => Err(WorkerCareerError::Gone),
            Some(ended) => Err(ended
                .error
                .map_or(WorkerCareerError::Gone, WorkerCareerError::Ended)),
        }
    }

    async fn hand_over(
        &mut self,
        hand_over: HandOver<'_>,
    ) -> Result<Option<Bytes>, WorkerCareerError> {
        let Some(mut running) = self.running.take() else {
            return Ok(None);
        };
        if hand_over.reason == EndReason::LeaseLost {
            running.task.abort();
        } else if let Some(drain) = running.drain.take() {
            // Its task may have ended by itself.
            let _ = drain.send(());
        }
        let _ = (&mut running.task).await;
        Ok(None)
    }
}

/// Waits until the term is over by the leader's clock.
async fn over(fence: &Fence) {
    loop {
        match fence.remaining() {
            None => std::future::pending().await,
            Some(Duration::ZERO) => return,
            // It may be renewed meanwhile, and the computer suspended.
            Some(remaining) => tokio::time::sleep(remaining.min(SLICE)).await,
        }
    }
}

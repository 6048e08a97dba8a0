//! Statements on their way on one connection, several at a time.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::mpsc, task, time};

use crate::session::{Failure, Session};

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends statements on a connection without waiting for the answers to those before. The server runs them
/// one after the other, each in a transaction of its own, and their answers are taken in that order.
pub(crate) struct Pipeline {
    session: Arc<Session>,
    runtime: Handle,
    steps: mpsc::UnboundedSender<Step>,
}

impl Pipeline {
    pub(crate) fn new(session: Arc<Session>, runtime: &Handle) -> Self {
        let (steps, mut sent) = mpsc::unbounded_channel::<Step>();
        runtime.spawn(async move {
            while let Some(step) = sent.recv().await {
                step.await;
            }
        });
        Self {
            session,
            runtime: runtime.clone(),
            steps,
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Sends what `asking` sends when it is first polled, before this returns. `done` is called once: in the
    /// thread that moves bytes, and must not wait there, if `is_quick` says so of the answer; else, and for a
    /// failure, in a thread that may wait. Nothing that was sent later is done before.
    pub(crate) fn send<T: Send + 'static>(
        &self,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
        is_quick: fn(&T) -> bool,
        done: impl FnOnce(Result<T, Failure>) + Send + 'static,
    ) {
        // For its timer and its threads.
        let _entered = self.runtime.enter();
        let session = self.session.clone();
        let mut step: Step = Box::pin(async move {
            match time::timeout(session.timeout(), asking).await {
                Ok(Ok(answer)) if is_quick(&answer) => done(Ok(answer)),
                answer => {
                    let judging = task::spawn_blocking(move || done(session.judge(answer.ok())));
                    let _panicked = judging.await;
                }
            }
        });
        let mut nobody = Context::from_waker(Waker::noop());
        if let Poll::Pending = step.as_mut().poll(&mut nobody) {
            // It can only be gone with the whole connection, and then nobody asks any more.
            let _gone = self.steps.send(step);
        }
    }
}

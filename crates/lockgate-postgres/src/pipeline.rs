//! Statements on their way on one connection, several at a time.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::mpsc, task, time};

use crate::session::{End, Failure, Session};

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends statements on a connection without waiting for the answers to those before. The server runs them
/// one after the other, each in a transaction of its own, and their answers are taken in that order.
pub(crate) struct Pipeline {
    session: Arc<Session>,
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
        Self { session, steps }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Sends what `asking` sends when it is first polled, before this returns. `done` is called once: in the
    /// thread that moves bytes, and must not wait there, if `is_quick` says so of the answer; else, and for a
    /// failure, in a thread that may wait. Nothing that was sent later is done before. The time that an answer
    /// may take begins when the one before it is done.
    pub(crate) fn send<T: Send + 'static>(
        &self,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
        is_quick: fn(&T) -> bool,
        done: impl FnOnce(Result<T, Failure>) + Send + 'static,
    ) {
        let session = self.session.clone();
        let done = Done(Some(done), PhantomData);
        let mut asking = Box::pin(asking);
        // Polled once here, so that statements go out in the order of these calls. Who wakes nobody is asked
        // again by the task.
        let mut nobody = Context::from_waker(Waker::noop());
        let mut sent = match asking.as_mut().poll(&mut nobody) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        };
        let step: Step = Box::pin(async move {
            let answer = match sent.take() {
                Some(answer) => Ok(answer),
                None => time::timeout(session.timeout(), asking).await,
            };
            match answer {
                Ok(Ok(answer)) if is_quick(&answer) => done.call(Ok(answer)),
                answer => {
                    let judging =
                        task::spawn_blocking(move || done.call(session.judge(answer.ok())));
                    let _panicked = judging.await;
                }
            }
        });
        // If the task is gone, the step is dropped here, and done with that.
        let _gone = self.steps.send(step);
    }
}

/// Called once, also if the step that has it is dropped: nobody waits for an answer that never comes.
struct Done<T, F: FnOnce(Result<T, Failure>)>(Option<F>, PhantomData<fn(T)>);

impl<T, F: FnOnce(Result<T, Failure>)> Done<T, F> {
    fn call(mut self, answer: Result<T, Failure>) {
        if let Some(done) = self.0.take() {
            done(answer);
        }
    }
}

impl<T, F: FnOnce(Result<T, Failure>)> Drop for Done<T, F> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(Failure::Ended(End::NobodyWaits)));
        }
    }
}

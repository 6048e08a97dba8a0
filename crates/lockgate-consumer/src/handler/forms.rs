//! Forms of handlers.

use std::{
    future::{Future, poll_fn},
    panic::resume_unwind,
    sync::Arc,
};

use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;
use tower_service::Service;

use super::{Failure, Handler, all, not_begun};
use crate::{Batch, Job, dispatch::RunEnd};

/// A handler of whole batches: see [`batches`].
#[derive(Clone, Copy, Debug)]
pub struct Batches<F>(F);

/// A handler that blocks its thread: see [`blocking`].
#[derive(Clone, Debug)]
pub struct Blocking<F>(Arc<F>);

/// A tower service as a handler: see [`service`].
#[derive(Clone, Debug)]
pub struct TowerService<S>(S);

/// Handles [`run_max`](crate::WorkerBuilder::run_max) consecutive messages of a key in one call.
///
/// If it fails, the messages that it has [reported](crate::Context::succeeded) as succeeded are done, the
/// next one has failed, and those behind it were not tried.
pub fn batches<F, Handling>(handle: F) -> Batches<F>
where
    F: Fn(Batch) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = Result<(), Failure>> + Send,
{
    Batches(handle)
}

impl<F, Handling> Handler for Batches<F>
where
    F: Fn(Batch) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = Result<(), Failure>> + Send,
{
    async fn handle(&self, batch: Batch) -> RunEnd {
        let (context, count) = (batch.context().clone(), batch.jobs().len());
        match (self.0)(batch).await {
            Ok(()) => all(count),
            Err(failure) => failure.end(context.done()),
        }
    }
}

/// Handles messages by a function that blocks: on tokio's pool of blocking threads, as many at the same
/// time as the worker runs.
///
/// Nobody can end such a function from outside. When its run is cancelled it may find out by
/// [`Context::why_cancelled`](crate::Context::why_cancelled); until it returns, no other message of its key
/// starts.
pub fn blocking<F>(handle: F) -> Blocking<F>
where
    F: Fn(Job) -> Result<(), Failure> + Send + Sync + 'static,
{
    Blocking(Arc::new(handle))
}

impl<F> Handler for Blocking<F>
where
    F: Fn(Job) -> Result<(), Failure> + Send + Sync + 'static,
{
    async fn handle(&self, batch: Batch) -> RunEnd {
        let (context, handle) = (batch.context().clone(), self.0.clone());
        let progress = context.clone();
        let handling = spawn_blocking(move || {
            let mut done = 0;
            for job in batch.into_jobs() {
                // It may have waited for a thread; and what is behind a cancelled message has not been tried.
                if progress.why_cancelled().is_some() {
                    return not_begun(done);
                }
                if let Err(failure) = handle(job) {
                    return failure.end(done);
                }
                done += 1;
                progress.succeeded(done);
            }
            all(done)
        });
        match handling.await {
            Ok(end) => end,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime ends: it has not begun.
                Err(_) => not_begun(context.done()),
            },
        }
    }

    fn ends_when_dropped(&self) -> bool {
        false
    }
}

/// Handles each message by a [tower service](https://docs.rs/tower-service), once it is ready. The service
/// is cloned for each run.
pub fn service<S>(service: S) -> TowerService<S>
where
    S: Service<Job, Response = ()> + Clone + Send + Sync + 'static,
    S::Error: Into<Failure>,
    S::Future: Send,
{
    TowerService(service)
}

impl<S> Handler for TowerService<S>
where
    S: Service<Job, Response = ()> + Clone + Send + Sync + 'static,
    S::Error: Into<Failure>,
    S::Future: Send,
{
    async fn handle(&self, batch: Batch) -> RunEnd {
        let mut service = self.0.clone();
        let context = batch.context().clone();
        let mut done = 0;
        for job in batch.into_jobs() {
            if context.why_cancelled().is_some() {
                return not_begun(done);
            }
            if let Err(error) = poll_fn(|context| service.poll_ready(context)).await {
                return error.into().end(done);
            }
            if let Err(error) = service.call(job).await {
                return error.into().end(done);
            }
            done += 1;
            context.succeeded(done);
        }
        all(done)
    }
}

/// Handles messages whose bodies are JSON. What is no such JSON is [rejected](Failure::reject), with the
/// place of the error as the reason.
///
/// ```
/// # async fn pay(amount: u64) -> Result<(), std::io::Error> { Ok(()) }
/// use lockgate_consumer::{Job, handler};
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     amount: u64,
/// }
///
/// let handler = handler::json(|order: Order, _job: Job| async move {
///     pay(order.amount).await?;
///     Ok(())
/// });
/// # fn takes(_: impl lockgate_consumer::Handler) {}
/// # takes(handler);
/// ```
pub fn json<T, F, Handling>(handle: F) -> impl Handler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Job) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let parse = |job: &Job| {
        let parsed = serde_json::from_slice(job.body());
        parsed.map_err(|error| format!("the body is not the JSON that is expected: {error}"))
    };
    parsed(parse, handle)
}

/// Handles messages whose bodies are read by `parse`. A message for which it fails is
/// [rejected](Failure::reject), with the error's text as the reason.
pub fn parsed<T, E, P, F, Handling>(parse: P, handle: F) -> impl Handler
where
    T: Send + 'static,
    E: std::fmt::Display,
    P: Fn(&Job) -> Result<T, E> + Send + Sync + 'static,
    F: Fn(T, Job) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = Result<(), Failure>> + Send + 'static,
{
    move |job: Job| {
        let handling = match parse(&job) {
            Ok(value) => Ok(handle(value, job)),
            Err(error) => Err(Failure::reject(error.to_string())),
        };
        async move { handling?.await }
    }
}

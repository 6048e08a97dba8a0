//! What every [`Coordinator`] must do.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

mod cases;

use std::{future::Future, time::Duration};

use lockgate_core::coordination::Coordinator;

/// Where the coordinators under test come from.
pub trait Fixture {
    /// A coordinator.
    type Coordinator: Coordinator + Clone;

    /// The coordinator of another process, always of the same store. Each case uses elections of its own.
    fn process(&mut self) -> impl Future<Output = Self::Coordinator>;

    /// The same, for a process whose tasks run on the runtime of the calling thread: the case stops driving that runtime,
    /// as if the process were frozen. May be called in another thread.
    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Self::Coordinator> + Send>;

    /// How many terms each of eight candidates leads where leaders change all the time, unless `LOCKGATE_TERMS` says it: as many
    /// as take a few seconds.
    fn terms(&self) -> usize {
        25
    }

    /// Lets time pass, for the store and for all processes. False: it cannot, and time passes by itself.
    fn pass(&mut self, span: Duration) -> bool;

    /// Ends the store without warning and starts it again over what it had kept. False: it keeps nothing.
    fn restart(&mut self) -> impl Future<Output = bool>;
}

/// A coordinator that is being made.
pub type BoxedProcess<C> = std::pin::Pin<Box<dyn Future<Output = C>>>;

/// Runs every case. Returns the names of those that the fixture, or the coordinator by its capabilities, could not show.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    cases::run(fixture).await
}

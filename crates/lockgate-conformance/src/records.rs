//! What every store of [`Records`] must do.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

mod cases;
mod fences;
mod lossy;
mod register;

use std::{future::Future, time::Duration};

use lockgate_core::Records;

pub use self::lossy::Lossy;
pub use self::register::{Register, Troubles};

/// Where the records under test come from.
pub trait Fixture {
    /// The store.
    type Records: Records;

    /// The store, always the same one. Each case uses names of its own.
    fn records(&self) -> &Self::Records;

    /// Lets time pass for the store. False: it cannot, and time passes by itself.
    fn pass(&mut self, span: Duration) -> bool;

    /// Ends the store without warning and starts it again over what it had kept. False: it keeps nothing.
    fn restart(&mut self) -> impl Future<Output = bool>;
}

/// Runs every case. Returns the names of those that the fixture could not show.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    cases::run(fixture).await
}

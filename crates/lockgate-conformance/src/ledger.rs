//! What every [`Ledger`] must do.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

mod appends;
mod cases;
mod concurrent;
pub mod databases;
mod lossy;
mod reads;

use std::future::Future;

use lockgate_core::{
    LedgerName, WallTime,
    ledger::{Ledger, LedgerOptions},
};

pub use self::lossy::Lossy;

/// Where the ledgers under test come from.
pub trait Fixture {
    /// A ledger.
    type Ledger: Ledger;

    /// Opens the ledger of that name, which is made with those options if there is none. What is opened twice is one ledger, as
    /// two processes have it. Each case uses names of its own.
    fn open(
        &mut self,
        name: LedgerName,
        options: LedgerOptions,
    ) -> impl Future<Output = Self::Ledger>;

    /// Sets the clock by which the ledgers write times, in either direction, up to a second later than that. It may go on. False:
    /// it cannot.
    fn set_clock(&mut self, wall: WallTime) -> bool;

    /// Ends the store without warning and starts it again over what it had kept. Whoever had a ledger opens it anew. False: it
    /// keeps nothing.
    fn restart(&mut self) -> impl Future<Output = bool>;
}

/// Runs every case. Returns the names of those that the fixture could not show.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    cases::run(fixture).await
}

//! What every [`Sink`] and [`Source`] must do.
//!
//! A fixture gives a queue that is both, so that what comes out can be compared with what went in. What
//! the capabilities say it cannot do is tested as a refusal.

mod cases;
mod through;

use std::{fmt, future::Future, time::Duration};

use lockgate_core::{Sink, Source};

pub use self::through::Through;

/// Where the queues under test come from.
pub trait Fixture {
    /// A queue: messages go in at one end and come out at the other. Clones are the same queue.
    type Queue: Sink + Source;

    /// A new, empty queue; keyed or not. Leases last 30 s unless a receive says otherwise.
    fn queue(&mut self, keyed: bool) -> impl Future<Output = Self::Queue>;

    /// Deletes a queue, with all it holds. False: it cannot.
    fn delete(&mut self, queue: &Self::Queue) -> impl Future<Output = bool>;

    /// Lets time pass for the queues of this fixture. False: it cannot.
    fn pass(&mut self, span: Duration) -> bool;
}

/// Whether a case could be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It holds.
    Holds,
    /// The fixture or the capabilities do not let it be shown.
    NotRun,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::NotRun => "was not run: the fixture cannot",
        })
    }
}

/// Runs every case, each over a queue of its own. Returns the names of the cases the fixture could not
/// show, for the caller to check against what it expects.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    cases::run(fixture).await
}

//! What every store of [`Records`] on a server must do: the suites of [`records`](crate::records) and
//! [`coordination`](crate::coordination) over it, and what it does when its server is killed or frozen, or the network cuts a
//! connection.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

mod clock;
mod faults;
mod fences;
mod fixture;
mod proxy;
mod scripted;
mod shared;

use std::time::Duration;

use lockgate_core::{Records, RecordsError};

pub use self::{
    clock::clocks,
    faults::{Faults, faults},
    proxy::{Proxy, To},
    scripted::Scripted,
    shared::{
        bad_urls_are_told_without_the_password, ended_leases_are_cleared, fences_hold, name, put,
    },
};

/// A server that one test has for itself.
pub trait Server: Send + 'static {
    /// Whether it speaks first on a connection, or answers before it is asked for anything: nothing is asked of one that is
    /// frozen then.
    const GREETS: bool = true;

    /// Its store.
    type Records: Records + Clone + 'static;

    /// Where it is.
    fn url(&self) -> String;

    /// Connects to the store. A command may take so long.
    fn connect(
        url: String,
        timeout: Duration,
    ) -> impl Future<Output = Result<Self::Records, RecordsError>> + Send;

    /// Kills it without warning (kill -9), and starts it again over what it has kept.
    fn crash(&mut self);

    /// Sends a signal, such as `-STOP`, to all its processes.
    fn signal(&self, signal: &str);

    /// A number that falls to zero when no command is under way and no transaction open, but those of who asks.
    fn open_work(url: String) -> impl Future<Output = u64> + Send;
}

/// A server whose time can pass faster.
pub trait Shifts: Server {
    /// Lets all leases end so much earlier, as if time had passed, and has those who watch look again.
    fn shift(url: String, span: Duration) -> impl Future<Output = ()> + Send;
}

/// Runs the suites of records, of busy keys and of coordination, and leaders of many terms at once. Returns the names of the cases
/// that could not be shown.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn suites<S: Shifts>(server: S) -> (S, Vec<&'static str>) {
    fixture::suites(server).await
}

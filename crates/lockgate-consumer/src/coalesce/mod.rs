//! Coalescing: of the triggers of one key, one runs, one waits, and the rest are covered.
//!
//! A *trigger* says that something has to be done for a key: refresh it, send its newest value, count it. While a run
//! for the key goes on, the first trigger waits for the next run, and what comes meanwhile is merged into it. No caller
//! is told that its trigger is done before a run that **started after it** has succeeded.
//!
//! ```
//! use lockgate_consumer::coalesce::{CoalesceOptions, Coalescer, Entered};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # async fn write_profile(_: &str, _: u64, _: &String) -> Result<(), std::io::Error> { Ok(()) }
//! // Of the values that wait, only the newest counts: the default policy.
//! let profiles: Coalescer<&str, String> = Coalescer::new(CoalesceOptions::default())?;
//!
//! match profiles.enter("user-42", "new name".to_owned()).await? {
//!     // Nobody else runs for user-42 until `run` is dropped.
//!     Entered::Run(run) => {
//!         if let Some(newest) = run.payload() {
//!             write_profile(run.key(), run.token().0, newest).await?;
//!         }
//!         run.succeed(())?;
//!     }
//!     // Another caller's run has written this value, or a newer one.
//!     Entered::Covered(_) => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - At most one runs for a key, and one batch waits. Entries are made, changed and removed under one lock.
//! - A run has every trigger that was accepted before it started and that no run has covered.
//! - If a run fails (its [`Run`] is dropped without [`succeed`](Run::succeed): by an error, a panic or a cancellation),
//!   nobody is covered. The caller that waits longest runs next, with what the failed run had and what has come since.
//! - Tokens rise. Whatever an older run does changes nothing; it is told ([`Stale`]) and counted.
//! - A caller that gives up while it waits blocks nobody. If all who wait give up, what waits is forgotten.
//! - No thread waits, and nothing is kept of a key that is idle.
//!
//! # Single flight
//!
//! [`Coalescer::join`] waits for the result of the run that goes on, and says that it
//! [may be older](Covered::may_be_older) than the call.
//!
//! # Across processes
//!
//! A [`SharedCoalescer`] does the same over a store of [`Records`](lockgate_core::Records), for all processes that share
//! the store:
//!
//! ```
//! use lockgate_consumer::{
//!     MemoryRecords,
//!     coalesce::{SharedCoalescer, SharedEntered, SharedOptions},
//! };
//! use lockgate_core::Key;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # async fn refresh(_: u64) {}
//! let profiles = SharedCoalescer::new(MemoryRecords::new(), SharedOptions::default())?;
//! if let SharedEntered::Run(run) = profiles.enter(&Key::new("user-42")?, "new name".into()).await? {
//!     // Extends the run's lease meanwhile.
//!     run.alive(refresh(run.token().0)).await?;
//!     run.succeed().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A trigger stays in the store when its process dies, and the next run for the key has it. A run whose process dies or
//! is frozen ends with its lease. What it does later must be fenced by its token where it matters: no lease can stop a
//! write that is on its way. The [`protocol`] is a pure machine; `lockgate-sim` explores all that it can do, with
//! processes that die, leases that end early, and answers that are lost.

mod local;
mod machine;
mod options;
mod shard;
mod shared;

pub use local::{Coalescer, Entered, Refused, Run, Triggered, Waiting};
pub use machine::{Batch, KeyState, Merge, MergeFn, Rejection, Stale, Token, Verdict};
pub use options::{CoalesceCounts, CoalesceOptions, Covered, MeasureFn};
#[doc(hidden)]
pub use shared::codec::fuzz as fuzz_state;
pub use shared::{SharedCoalescer, SharedEntered, SharedError, SharedOptions, SharedRun, protocol};

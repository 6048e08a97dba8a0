//! Real faults under a real `lockgate serve`: kills, power cuts, syncs that fail, frozen and full
//! file systems.
//!
//! Every fault runs under the same workload of HTTP clients, which write down what they
//! saw, and the same checker judges the histories alone. What must hold: no acknowledged
//! send is lost, no acknowledged ack undone, every key stays in order with one holder at a time,
//! unique ids are remembered, nothing appears that nobody sent or that was refused, a state of a key goes with
//! the ack that wrote it, and what is held is held. Outcomes nobody was told stay open.
//!
//! File systems are made for the test, over loop devices in a mount namespace of an own process, so
//! that nothing stays behind whatever ends it. That needs root on Linux; kills alone need neither.
//!
//! ```
//! use lockgate_torture::{Episode, Fault};
//!
//! let binary = std::env::current_exe().unwrap(); // where the `lockgate` binary is
//! let episode = Episode::new(Fault::Kill, binary);
//! assert_eq!(episode.rounds, 4);
//! assert!(Fault::Kill.obstacle().is_none(), "kills work everywhere");
//! ```

mod checker;
mod client;
mod command;
mod episode;
mod faults;
mod figures;
mod history;
mod keeper;
mod publisher;
mod random;
mod server;
mod volume;
mod workload;

pub use episode::{Episode, enter_namespace, rehearse};
pub use faults::Fault;
pub use figures::Figures;
pub use random::fresh_seed;
pub use volume::FileSystem;

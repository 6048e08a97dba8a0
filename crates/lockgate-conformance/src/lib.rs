//! One suite per seam trait of Lockgate, run against every implementation of it; one for queues, run
//! over every log; and one for registries of busy keys, run over stores of records.
//!
//! A suite is a list of named cases over a fixture that the implementation's tests provide. What an
//! implementation says it cannot do is tested as the documented refusal; a case that needs something
//! the *fixture* cannot do (such as a power cut of a real folder) is reported as not run, by name.
//!
//! ```
//! use lockgate_conformance::log;
//!
//! for case in log::CASES {
//!     println!("{}", case.name);
//! }
//! assert!(log::CASES.iter().any(|case| case.name == "synced_records_survive_a_power_cut"));
//! ```

pub mod busy;
pub mod coalesce;
pub mod coordination;
pub mod ledger;
pub mod log;
pub mod processes;
pub mod queue;
pub mod records;
pub mod servers;
pub mod transport;

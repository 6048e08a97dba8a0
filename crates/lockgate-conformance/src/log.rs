//! What every [`Log`](lockgate_core::Log) must do.

mod cases;
mod owner;

pub use cases::CASES;

use lockgate_core::Storage;

/// Storage for a log, which the suite opens, kills and opens again.
pub trait Fixture {
    /// Starts over with empty storage. Every instance opened before has been dropped.
    fn fresh(&mut self);

    /// Opens an instance over the storage as it is now.
    ///
    /// # Panics
    /// If that fails: the suite opens a second instance at once only if
    /// [`shares_storage`](Self::shares_storage).
    fn open(&mut self) -> Storage;

    /// Whether a second instance can be open at the same time, as with a log on a database. A log
    /// that locks its folder answers false.
    fn shares_storage(&self) -> bool {
        false
    }

    /// Leaves of the storage what the death of the process leaves. Every instance has been dropped.
    fn kill(&mut self);

    /// Changes one byte of the record or piece of a snapshot that has these bytes, wherever the
    /// storage keeps it; false if the fixture cannot do that. No instance is open, unless
    /// [`shares_storage`](Self::shares_storage).
    fn damage(&mut self, payload: &[u8]) -> bool {
        let _ = payload;
        false
    }

    /// Leaves of the storage what a power cut leaves; false if the fixture cannot do that. Instances
    /// that are still open go on as if they were on a machine that is gone.
    fn cut_power(&mut self) -> bool {
        false
    }
}

/// One thing every log must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// What holds, as a name.
    pub name: &'static str,
    /// Panics if it does not hold; false if the fixture cannot show it.
    pub run: fn(&mut dyn Fixture) -> bool,
}

/// Runs every case, each over fresh storage. Returns the names of the cases the fixture could not
/// show, for the caller to check against what it expects.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub fn run(fixture: &mut dyn Fixture) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    for case in CASES {
        println!("log conformance: {}", case.name);
        fixture.fresh();
        if !(case.run)(fixture) {
            println!(
                "log conformance: {} was not run: the fixture cannot",
                case.name
            );
            not_run.push(case.name);
        }
    }
    not_run
}

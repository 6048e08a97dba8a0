//! What queues must do, whatever log is under them.
//!
//! The machine's own tests say what each command does. Here whole shards are run over a log: what
//! was answered is still so after a start, a crash and another owner.

mod cases;
mod shard;

pub use cases::CASES;

use crate::log::Fixture;

/// One thing queues must do over every log.
#[derive(Clone, Copy)]
pub struct Case {
    /// What holds, as a name.
    pub name: &'static str,
    /// Panics if it does not hold; false if the fixture cannot show it.
    pub run: fn(&mut dyn Fixture) -> bool,
}

/// Runs every case, each over fresh storage. Returns the names of the cases the fixture could not
/// show, for the caller to check against what it expects. Not from an async task.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub fn run(fixture: &mut dyn Fixture) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    for case in CASES {
        println!("queue conformance: {}", case.name);
        fixture.fresh();
        if !(case.run)(fixture) {
            println!(
                "queue conformance: {} was not run: the fixture cannot",
                case.name
            );
            not_run.push(case.name);
        }
    }
    not_run
}

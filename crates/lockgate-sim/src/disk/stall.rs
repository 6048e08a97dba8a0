//! Operations that do not come back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::{fmt, sync::Arc};

use lockgate_core::DiskOperation;

use super::{Shared, fault::At};

/// A stall set up by [`FaultyDisk::stall`](super::FaultyDisk::stall): the operations it is for block
/// until it is released or dropped.
pub struct Stall {
    shared: Arc<Shared>,
    id: u64,
}

impl Stall {
    pub(super) fn new(shared: Arc<Shared>, at: At, after: u64) -> Self {
        let id = shared.gates.add(at, after);
        Self { shared, id }
    }

    /// Blocks until an operation has been held up.
    pub fn wait(&self) {
        self.shared.gates.wait_for_blocked(self.id);
    }

    /// How many operations have been held up so far.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        let closed = self.shared.gates.lock();
        let gate = closed.gates.iter().find(|gate| gate.id == self.id);
        gate.map_or(0, |gate| gate.blocked)
    }

    /// Lets everything go on that was held up, and holds nothing up any more.
    pub fn release(self) {}
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.shared.gates.open(self.id);
    }
}

impl fmt::Debug for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stall").field("id", &self.id).finish()
    }
}

/// The stalls of one disk. Apart from its state, so that what is held up holds nothing up itself.
#[derive(Default)]
pub(super) struct Gates {
    closed: Mutex<Closed>,
    changed: Condvar,
}

#[derive(Default)]
struct Closed {
    gates: Vec<Gate>,
    made: u64,
}

struct Gate {
    id: u64,
    at: At,
    after: u64,
    blocked: u64,
}

impl Gates {
    /// Returns when no gate (any more) is closed for the operation.
    pub(super) fn pass(&self, operation: DiskOperation) {
        let mut closed = self.lock();
        let mut held_by = None;
        for gate in &mut closed.gates {
            if !gate.at.is_met_by(operation) {
                continue;
            }
            if gate.after > 0 {
                gate.after -= 1;
            } else if held_by.is_none() {
                gate.blocked += 1;
                held_by = Some(gate.id);
            }
        }
        let Some(id) = held_by else { return };
        self.changed.notify_all();
        while closed.gates.iter().any(|gate| gate.id == id) {
            closed = self
                .changed
                .wait(closed)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a gate is, or will be, closed for the operation.
    pub(super) fn would_hold(&self, operation: DiskOperation) -> bool {
        let closed = self.lock();
        closed.gates.iter().any(|gate| gate.at.is_met_by(operation))
    }

    fn add(&self, at: At, after: u64) -> u64 {
        let mut closed = self.lock();
        closed.made += 1;
        let id = closed.made;
        closed.gates.push(Gate {
            id,
            at,
            after,
            blocked: 0,
        });
        id
    }

    fn open(&self, id: u64) {
        self.lock().gates.retain(|gate| gate.id != id);
        self.changed.notify_all();
    }

    fn wait_for_blocked(&self, id: u64) {
        let mut closed = self.lock();
        while closed
            .gates
            .iter()
            .any(|gate| gate.id == id && gate.blocked == 0)
        {
            closed = self
                .changed
                .wait(closed)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Closed> {
        // Nothing panics between two changes that belong together.
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

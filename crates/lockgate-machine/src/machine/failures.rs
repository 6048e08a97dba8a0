//! What is kept of messages' failures: a row for each message that failed with a reason, found by a flag
//! and a table. Others pay nothing.

use std::sync::Arc;

use lockgate_core::{FailedAttempt, Failures, Now};

use super::{
    Machine,
    state::{FailuresEntry, flag},
};
use crate::{Failed, table::hash_pair};

/// Memory of a failure beside its reason.
const FAILURE_BYTES: usize = 64;

impl Machine {
    /// How a nack fails its message. Where the shard has no room for the reason, it is only counted: many
    /// messages that fail must not use up the memory.
    pub(super) fn failed(&self, reason: Option<&Arc<str>>, now: Now) -> Option<Failed> {
        let reason = reason?;
        let bytes = reason.len() + FAILURE_BYTES;
        let fits = self.failure_bytes + bytes as u64 <= self.limits.failure_bytes_max;
        Some(Failed {
            at: now.wall,
            error: fits.then(|| reason.clone()),
        })
    }

    /// The failures of a message, if there were some.
    pub(super) fn failures(&self, index: u32) -> Option<&Arc<Failures>> {
        if !self.messages[index].has(flag::FAILED) {
            return None;
        }
        let entry = self.by_failed_message.find(hash_pair(index, 0), |entry| {
            self.failures[entry].message == index
        })?;
        Some(&self.failures[entry].failures)
    }

    /// Adds a failure of the attempt that the message has now.
    pub(super) fn note_failure(&mut self, index: u32, failed: &Failed) {
        let attempt = self
            .leased_once(index)
            .map_or(0, |lease_state| u32::from(lease_state.attempts));
        let mut failures = self.take_failures(index).unwrap_or_default();
        let kept = Arc::make_mut(&mut failures);
        match &failed.error {
            Some(error) => kept.add(FailedAttempt {
                attempt,
                at: failed.at,
                error: error.clone(),
            }),
            None => kept.leave_out(),
        }
        self.keep_failures(index, failures);
    }

    /// Gives a message these failures. It must have none.
    pub(super) fn keep_failures(&mut self, index: u32, failures: Arc<Failures>) {
        self.failure_bytes += memory_of(&failures);
        let entry = self.failures.insert(FailuresEntry {
            message: index,
            failures,
        });
        let entries = &self.failures;
        self.by_failed_message
            .insert(hash_pair(index, 0), entry, |entry| {
                hash_pair(entries[entry].message, 0)
            });
        self.messages[index].set(flag::FAILED, true);
    }

    /// Takes the failures of a message away.
    pub(super) fn take_failures(&mut self, index: u32) -> Option<Arc<Failures>> {
        if !self.messages[index].has(flag::FAILED) {
            return None;
        }
        let entries = &self.failures;
        let entry = self
            .by_failed_message
            .remove(hash_pair(index, 0), |entry| entries[entry].message == index)?;
        self.messages[index].set(flag::FAILED, false);
        let failures = self.failures.remove(entry).failures;
        self.failure_bytes -= memory_of(&failures);
        Some(failures)
    }
}

/// What failures take of [`MachineLimits::failure_bytes_max`](crate::MachineLimits::failure_bytes_max).
pub(super) fn memory_of(failures: &Failures) -> u64 {
    (failures.bytes() + failures.kept().len() * FAILURE_BYTES) as u64
}

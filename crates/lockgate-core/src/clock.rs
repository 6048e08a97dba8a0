//! The clock behind which time comes from.

use crate::{Millis, WallTime};

/// Names one boot of the machine: 16 random bytes. Two readings of the same boot id mean that the
/// operating system, and with it everything written but not yet synced, has survived in between.
///
/// Recorded with a term it says two things, each in a half of its own: the first 8 bytes, which clock
/// [`Clock::since_boot`] was read from; the last 8, in which life of the storage it was, where a life
/// ends with whatever may lose what was written and not synced. For storage in the same machine both
/// halves are those of its boot id. A log elsewhere lives and dies on its own: see
/// [`Unsynced`](crate::Unsynced).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Whether time since boot counts from the same instant in both.
    #[must_use]
    pub fn has_clock_of(self, other: Self) -> bool {
        self.0[..8] == other.0[..8]
    }

    /// Whether storage has lost nothing unsynced between the two.
    #[must_use]
    pub fn has_storage_of(self, other: Self) -> bool {
        self.0[8..] == other.0[8..]
    }

    /// The clock of this one, and storage in the life that is named so.
    #[must_use]
    pub fn with_storage(mut self, life: [u8; 8]) -> Self {
        self.0[8..].copy_from_slice(&life);
        self
    }

    /// The clock of this one, and storage in the life in which it was at `other`.
    #[must_use]
    pub fn with_storage_of(mut self, other: Self) -> Self {
        self.0[8..].copy_from_slice(&other.0[8..]);
        self
    }
}

/// Where an engine reads time. Read once per group of commands, never by the machine itself.
///
/// Implementations: the operating system's clock in `lockgate-log`, and [`ManualClock`](crate::ManualClock)
/// for tests.
pub trait Clock: Send + Sync {
    /// The wall clock. May step in either direction.
    fn wall(&self) -> WallTime;

    /// Milliseconds since the boot named by [`Clock::boot_id`], counting time spent suspended.
    /// Never goes back within one boot.
    fn since_boot(&self) -> Millis;

    /// Which boot [`Clock::since_boot`] counts from: random bytes, in which both halves differ between any
    /// two boots.
    fn boot_id(&self) -> BootId;

    /// By how much the time may be later than a reading says, which drops the fraction: a millisecond.
    /// What is to end or come due is looked for so much later, so that nothing is early.
    fn dropped(&self) -> Millis {
        1
    }
}

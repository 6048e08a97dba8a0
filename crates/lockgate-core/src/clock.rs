//! The clock behind which time comes from.

use crate::{Millis, WallTime};

/// Names one boot of the machine by 16 random bytes. If two readings agree, the operating system
/// has survived in between, and with it everything written but not yet synced.
///
/// Recorded with a term it says two things, each in a half of its own. The first 8 bytes name the
/// clock that [`Clock::since_boot`] was read from. The last 8 bytes name the life of the storage;
/// whatever may lose written but unsynced records ends a life. For storage in the same machine both
/// halves are those of its boot id. A log elsewhere lives and dies on its own: see
/// [`Unsynced`](crate::Unsynced).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Tells whether time since boot counts from the same instant in both.
    #[must_use]
    pub fn has_clock_of(self, other: Self) -> bool {
        self.0[..8] == other.0[..8]
    }

    /// Tells whether storage has lost nothing unsynced between the two.
    #[must_use]
    pub fn has_storage_of(self, other: Self) -> bool {
        self.0[8..] == other.0[8..]
    }

    /// Returns an id with the clock of this one and the given life of the storage.
    #[must_use]
    pub fn with_storage(mut self, life: [u8; 8]) -> Self {
        self.0[8..].copy_from_slice(&life);
        self
    }

    /// Returns an id with the clock of this one and the life of the storage of `other`.
    #[must_use]
    pub fn with_storage_of(mut self, other: Self) -> Self {
        self.0[8..].copy_from_slice(&other.0[8..]);
        self
    }
}

/// The source of an engine's time. The engine reads it once for each group of commands; the machine
/// never reads it.
///
/// There are two implementations: the operating system's clock in `lockgate-log`, and
/// [`ManualClock`](crate::ManualClock) for tests.
pub trait Clock: Send + Sync {
    /// Returns the wall clock's time, which may step in either direction.
    fn wall(&self) -> WallTime;

    /// Returns the milliseconds since the boot that [`Clock::boot_id`] names, including time spent
    /// suspended. It never goes back within one boot.
    fn since_boot(&self) -> Millis;

    /// Returns the boot from which [`Clock::since_boot`] counts: random bytes, whose halves both
    /// differ between any two boots.
    fn boot_id(&self) -> BootId;

    /// Returns by how many milliseconds the time may be later than a reading says, because the
    /// reading drops the fraction. The engine looks that much later for what ends or comes due, so
    /// nothing is early.
    fn dropped(&self) -> Millis {
        1
    }
}

//! The clock behind which time comes from.

use crate::{Millis, WallTime};

/// Names one boot of the machine. Two readings of the same boot id mean that the operating system,
/// and with it everything written but not yet synced, has survived in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

/// Where an engine reads time. Read once per group of commands, never by the machine itself.
///
/// Implementations: the operating system's clock in `lockgate-log`, a clock set by hand in
/// `lockgate-sim`.
pub trait Clock: Send + Sync {
    /// The wall clock. May step in either direction.
    fn wall(&self) -> WallTime;

    /// Milliseconds since the boot named by [`Clock::boot_id`], counting time spent suspended.
    /// Never goes back within one boot.
    fn since_boot(&self) -> Millis;

    /// Which boot [`Clock::since_boot`] counts from.
    fn boot_id(&self) -> BootId;
}

//! A clock that stands still until a test moves it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{BootId, Clock, Millis, WallTime};

/// A clock for tests: it stands still until somebody sets it. Clones share the same time. An engine that
/// sleeps until a deadline must be told that its clock was set.
#[derive(Clone, Debug)]
pub struct ManualClock {
    readings: Arc<Mutex<Readings>>,
}

#[derive(Clone, Debug)]
struct Readings {
    wall: WallTime,
    since_boot: Millis,
    boot: u64,
}

impl ManualClock {
    /// A clock at `wall`, one second after its first boot.
    #[must_use]
    pub fn new(wall: WallTime) -> Self {
        let readings = Readings {
            wall,
            since_boot: 1_000,
            boot: 1,
        };
        Self {
            readings: Arc::new(Mutex::new(readings)),
        }
    }

    /// Lets `span` milliseconds pass, on both clocks.
    pub fn advance(&self, span: Millis) {
        let mut readings = self.lock();
        readings.wall = readings.wall.plus(span);
        readings.since_boot += span;
    }

    /// Steps the wall clock, in either direction, without time passing.
    pub fn set_wall(&self, wall: WallTime) {
        self.lock().wall = wall;
    }

    /// Boots the machine anew: another boot id, and `since_boot` starts at `since_boot`. The wall
    /// clock goes on.
    pub fn reboot(&self, since_boot: Millis) {
        let mut readings = self.lock();
        readings.boot += 1;
        readings.since_boot = since_boot;
    }

    /// A clock of its own that shows the same.
    #[must_use]
    pub fn fork(&self) -> Self {
        let readings = self.lock().clone();
        Self {
            readings: Arc::new(Mutex::new(readings)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        // Plain numbers: a panic elsewhere cannot have left them half changed.
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    /// A clock at the start of 2026.
    fn default() -> Self {
        Self::new(WallTime(1_767_225_600_000))
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> WallTime {
        self.lock().wall
    }

    fn since_boot(&self) -> Millis {
        self.lock().since_boot
    }

    fn boot_id(&self) -> BootId {
        let boot = u128::from(self.lock().boot);
        BootId((boot << 64 | boot).to_be_bytes())
    }

    /// Its time is exact.
    fn dropped(&self) -> Millis {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_by_hand() {
        let clock = ManualClock::default();
        let other = clock.clone();
        let (wall, boot, id) = (clock.wall(), clock.since_boot(), clock.boot_id());
        other.advance(5);
        assert_eq!(
            (clock.wall(), clock.since_boot()),
            (wall.plus(5), boot + 5),
            "clones share the time"
        );
        let apart = clock.fork();
        clock.advance(1);
        assert_eq!(apart.wall(), wall.plus(5), "a fork has a time of its own");
        clock.set_wall(WallTime(1));
        assert_eq!((other.wall(), other.since_boot()), (WallTime(1), boot + 6));
        clock.reboot(0);
        assert_ne!(other.boot_id(), id);
        assert_eq!(other.since_boot(), 0);
    }
}

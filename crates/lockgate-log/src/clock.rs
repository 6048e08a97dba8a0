//! The operating system's clocks.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    time::{SystemTime, UNIX_EPOCH},
};

use lockgate_core::{BootId, Clock, Millis, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// The kernel's id of the boot.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The boot clock counts suspended time; only Linux has it.
#[cfg(target_os = "linux")]
const SINCE_BOOT: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const SINCE_BOOT: ClockId = ClockId::Monotonic;

/// The clocks of the operating system.
///
/// The kernel's boot id names the boot. Where it cannot be read (on other systems than Linux, or in
/// a sandbox without `/proc`), every `SystemClock` counts as a new boot. That errs on the safe
/// side: leases then last longer over a restart than promised, never shorter.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    boot: BootId,
}

impl SystemClock {
    /// Reads the boot id. The clocks are read at each call.
    #[must_use]
    pub fn new() -> Self {
        let boot = fs::read_to_string(BOOT_ID_PATH)
            .ok()
            .and_then(|text| parse_boot_id(&text))
            .unwrap_or_else(boot_of_its_own);
        Self { boot }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> WallTime {
        // A time before 1970 means that the clock was never set; zero will do.
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        WallTime(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
    }

    fn since_boot(&self) -> Millis {
        let now = clock_gettime(SINCE_BOOT);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
        seconds * 1_000 + nanos / 1_000_000
    }

    fn boot_id(&self) -> BootId {
        self.boot
    }
}

/// A UUID's text; `None` unless it has exactly 32 hexadecimal digits.
fn parse_boot_id(text: &str) -> Option<BootId> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    let bits = u128::from_str_radix(&digits, 16).ok()?;
    Some(BootId(bits.to_be_bytes()))
}

/// An id whose halves both differ from those of any other start of a process.
fn boot_of_its_own() -> BootId {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let random = RandomState::new();
    let half = |half: u8| u128::from(random.hash_one((half, nanos, std::process::id())));
    BootId((half(0) << 64 | half(1)).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_does_not_go_back_and_keeps_its_boot() {
        let clock = SystemClock::new();
        let mut last = 0;
        for _ in 0..1_000 {
            let now = clock.since_boot();
            assert!(now >= last);
            last = now;
        }
        assert_ne!(clock.boot_id(), BootId::default());
        assert!(clock.wall() > WallTime(1_600_000_000_000));
        if std::path::Path::new(BOOT_ID_PATH).exists() {
            assert_eq!(clock.boot_id(), SystemClock::new().boot_id());
        }
    }

    #[test]
    fn boot_ids_are_read_as_the_kernel_writes_them() {
        let id = parse_boot_id("00010203-0405-0607-0809-0a0b0c0d0e0f\n").unwrap();
        assert_eq!(id.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(parse_boot_id(""), None);
        assert_eq!(parse_boot_id("00010203-0405-0607-0809-0a0b0c0d0e0"), None);
        assert_eq!(parse_boot_id("zz010203-0405-0607-0809-0a0b0c0d0e0f"), None);
        assert_ne!(boot_of_its_own(), BootId::default());
    }
}

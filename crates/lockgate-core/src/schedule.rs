//! Schedules: when a message is sent again and again, and what happens when that time passes unseen.

use std::sync::Arc;

use crate::{Millis, WallTime};

/// When a schedule fires. What a cron expression means, and which time comes next, is computed outside of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Once, at that time.
    At(WallTime),
    /// At a fixed rate: at `from`, and every `period` after it.
    Every {
        /// From [`PERIOD_MIN`](Self::PERIOD_MIN) to [`PERIOD_MAX`](Self::PERIOD_MAX).
        period: Millis,
        /// A time of the series. `None`: the first time is one period after the schedule was made.
        from: Option<WallTime>,
    },
    /// As a cron expression says.
    Cron {
        /// Five fields, or six with seconds first.
        expression: Arc<str>,
        /// A time zone by its IANA name, such as `Europe/Berlin`.
        zone: Arc<str>,
    },
}

impl Timing {
    /// The shortest period: 100 ms.
    pub const PERIOD_MIN: Millis = 100;

    /// The longest period: 36,525 days, in milliseconds.
    pub const PERIOD_MAX: Millis = 36_525 * 86_400_000;

    /// The longest cron expression, and the longest name of a time zone, in bytes.
    pub const TEXT_BYTES_MAX: usize = 256;
}

/// What becomes of times that were missed: a schedule came to them later than its bound for that, because its server was away,
/// its clock stepped forward, or its queue took no message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CatchUp {
    /// It does not fire for them.
    Skip = 1,
    /// It fires once for all of them, for the last one.
    #[default]
    Once = 2,
    /// It fires for each, the oldest first.
    All = 3,
}

/// What happens when a schedule is due and the message of its last firing is still in its queue: nobody has acknowledged it,
/// and it was not dropped or moved to another queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Overlap {
    /// It fires.
    #[default]
    Allow = 1,
    /// It does not fire for that time.
    Skip = 2,
    /// It fires when the last message is gone; the times that pass until then are caught up as [`CatchUp`] says.
    Queue = 3,
    /// It fires and cancels the last message, unless that is in flight: then both are there, and the next firing replaces
    /// only the one that waits.
    Replace = 4,
}

macro_rules! choices {
    ($type:ident: $($variant:ident $word:literal),+) => {
        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its word, in files, flags and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// The one with that word.
            #[must_use]
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == word)
            }

            /// The one with that number, as in `self as u8`.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| *it as u8 == number)
            }
        }
    };
}

choices!(CatchUp: Skip "skip", Once "once", All "all");
choices!(Overlap: Allow "allow", Skip "skip", Queue "queue", Replace "replace");

//! Durability levels, named for what they survive.

use std::{fmt, str::FromStr};

/// What an acknowledged write survives. Ordered: a higher level survives everything a lower one
/// does.
///
/// A queue has a level; a send may ask for a higher one, never for a lower one; a settle has the
/// queue's level. The numbers are written to disk and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Accepted; a crash of the process may take it.
    Memory = 1,
    /// Written to the operating system; survives `kill -9`, not a power cut.
    Process = 2,
    /// Synced to the disk; survives a power cut. The default.
    #[default]
    Disk = 3,
    /// On a replicated log; survives the loss of a machine. Refused by a log that cannot do it.
    Replicated = 4,
}

impl Level {
    /// The level written as `number`, or `None` if no level has that number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Memory),
            2 => Some(Self::Process),
            3 => Some(Self::Disk),
            4 => Some(Self::Replicated),
            _ => None,
        }
    }

    /// The level's name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Process => "process",
            Self::Disk => "disk",
            Self::Replicated => "replicated",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no durability level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no durability level: use memory, process, disk or replicated")]
pub struct ParseLevelError {
    /// What was given.
    pub text: String,
}

impl FromStr for Level {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, ParseLevelError> {
        match text {
            "memory" => Ok(Self::Memory),
            "process" => Ok(Self::Process),
            "disk" => Ok(Self::Disk),
            "replicated" => Ok(Self::Replicated),
            _ => Err(ParseLevelError {
                text: text.to_owned(),
            }),
        }
    }
}

//! Durability levels, named for what they survive.

use std::{fmt, str::FromStr};

/// Says what an answered write survives. A higher level survives everything that a lower one does.
///
/// A queue has a level. A send may ask for a higher level, never for a lower one. A settle has the
/// queue's level. The numbers are written to disk and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Accepted in memory. A crash of the process may take it.
    Memory = 1,
    /// Written to the operating system. It survives `kill -9`, but not a power cut.
    Process = 2,
    /// Synced to the disk. It survives a power cut. This is the default.
    #[default]
    Disk = 3,
    /// Synced to a replicated log. It survives the loss of a machine. A log that cannot do this
    /// refuses it.
    Replicated = 4,
}

impl Level {
    /// Returns the level with this number, or `None` if no level has it.
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

    /// Returns the level's name as users write it, such as `disk`.
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
    /// The text that was given.
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

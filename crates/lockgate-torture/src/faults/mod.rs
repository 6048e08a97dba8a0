//! The faults, each a few lines over the same stage.

use std::fmt;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    episode::{Stage, VOLUME_BYTES},
    volume::{self, Volume},
    workload::Size,
};

mod cut;
mod freeze;
mod full;
mod kill;
mod thin;

/// What happens to a server.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL at random moments, also in the recovery from the one before
    #[default]
    Kill,
    /// The disk loses what was not synced, as in a power cut
    Cut,
    /// A sync fails, and the pages it should have written are gone
    Thin,
    /// The file system takes no write for a while
    Freeze,
    /// The file system is full
    Full,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Cut => "cut",
            Self::Thin => "thin",
            Self::Freeze => "freeze",
            Self::Full => "full",
        })
    }
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kill, Self::Cut, Self::Thin, Self::Freeze, Self::Full];

    /// Whether it strikes a file system of its own.
    pub fn needs_volume(self) -> bool {
        self != Self::Kill
    }

    /// Why it cannot run here; `None` if it can.
    pub fn obstacle(self) -> Option<String> {
        if self.needs_volume() {
            volume::missing()
        } else {
            None
        }
    }

    /// What the server's command line says besides the usual.
    pub(crate) fn arguments(self) -> Vec<String> {
        let arguments: &[&str] = match self {
            Self::Freeze => &["--shutdown-timeout", freeze::SHUTDOWN_TIMEOUT],
            Self::Full => &full::MARKS,
            Self::Kill | Self::Cut | Self::Thin => &[],
        };
        // Small files, so that a short run sees many of them filled, covered by snapshots, given
        // back and used again.
        let small = ["--segment-size", "4MiB"];
        let arguments = small.iter().chain(arguments);
        arguments.map(|word| (*word).to_owned()).collect()
    }

    pub(crate) fn size(self) -> Size {
        match self {
            Self::Full => full::SIZE,
            Self::Kill | Self::Cut | Self::Thin | Self::Freeze => Size::SMALL,
        }
    }

    /// The memory that the image of a thin volume has.
    pub(crate) fn memory(self) -> Option<u64> {
        (self == Self::Thin).then_some(thin::MEMORY_BYTES)
    }

    pub(crate) fn volume_bytes(self) -> u64 {
        match self {
            Self::Full => full::VOLUME_BYTES,
            Self::Kill | Self::Cut | Self::Thin | Self::Freeze => VOLUME_BYTES,
        }
    }
}

/// Lets a fault happen as often as the stage says.
pub(crate) async fn run(
    fault: Fault,
    stage: &mut Stage,
    mut volume: Option<&mut Volume>,
) -> Result<()> {
    for round in 0..stage.rounds {
        let volume = volume.as_deref_mut().context("a volume is needed");
        match fault {
            Fault::Kill => kill::round(stage).await,
            Fault::Cut => cut::round(stage, volume?, round).await,
            Fault::Thin => thin::round(stage, volume?).await,
            Fault::Freeze => freeze::round(stage, volume?, round).await,
            Fault::Full => full::round(stage, volume?, round).await,
        }
        .with_context(|| format!("{fault} {round}"))?;
    }
    if fault == Fault::Cut {
        cut::keys_go_on(stage).await?;
    }
    Ok(())
}

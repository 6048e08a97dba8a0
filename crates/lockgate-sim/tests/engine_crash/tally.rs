//! What was done to the shard, and in which of its states.

use std::{collections::BTreeMap, fmt::Write as _, io::ErrorKind};

use lockgate_core::DiskOperation;
use lockgate_sim::{Damage, Fault, Struck};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The power went off at an operation, or between two.
    PowerCut,
    /// The process died at an operation, or between two.
    Kill,
    /// A sync failed; nothing is durable, nothing is lost.
    FailedSync,
    /// A sync failed, and the next ones lie.
    LyingSync,
    /// A write failed, before it began or half way.
    FailedWrite,
    /// A name could not be changed, a file not opened, measured, allocated or cut.
    FailedName,
    /// A read failed.
    FailedRead,
    /// A write met the end of space.
    NoSpace,
    /// A read gave wrong bytes, once.
    Misread,
    /// Bytes on the disk have changed.
    Decay,
    /// A write went somewhere else.
    Misdirected,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::PowerCut,
        Self::Kill,
        Self::FailedSync,
        Self::LyingSync,
        Self::FailedWrite,
        Self::FailedName,
        Self::FailedRead,
        Self::NoSpace,
        Self::Misread,
        Self::Decay,
        Self::Misdirected,
    ];

    /// `None`: a power cut, which is one or a kill depending on what is made of it.
    pub(crate) fn of(struck: &Struck) -> Option<Self> {
        let operation = struck.operation;
        Some(match struck.fault {
            Fault::PowerOff => return None,
            Fault::LostPages | Fault::LostSome(_) => Self::LyingSync,
            Fault::Misdirected(_) => Self::Misdirected,
            Fault::Misread { lasting: true, .. } => Self::Decay,
            Fault::Misread { .. } => Self::Misread,
            Fault::Error(ErrorKind::StorageFull) => Self::NoSpace,
            _ if operation == DiskOperation::Sync => Self::FailedSync,
            _ if operation == DiskOperation::Write => Self::FailedWrite,
            _ if operation == DiskOperation::Read => Self::FailedRead,
            _ => Self::FailedName,
        })
    }
}

pub(crate) const DAMAGES: [Damage; 3] = [
    Damage::FlippedBit,
    Damage::ZeroedSector,
    Damage::SwappedSectors,
];

/// What the shard was in the middle of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// Recovering, up to the first answer.
    #[default]
    Start,
    /// Deciding and appending a group.
    Append,
    /// Syncing the log.
    Sync,
    Read,
    /// Between two of these.
    Nothing,
    /// Work on the log's storage that nobody waits for.
    Maintenance,
    /// Writing or finishing a snapshot.
    Snapshot,
    /// Trimming, releasing ranges, removing old snapshots.
    Release,
    /// Moving live messages forward.
    Compact,
    /// Anything, while the disk was full.
    Full,
    /// Ending in good order.
    Stop,
}

impl Doing {
    pub(crate) const ALL: [Self; 11] = [
        Self::Start,
        Self::Append,
        Self::Sync,
        Self::Read,
        Self::Nothing,
        Self::Maintenance,
        Self::Snapshot,
        Self::Release,
        Self::Compact,
        Self::Full,
        Self::Stop,
    ];
}

impl Kind {
    /// What the shard must have been doing when this struck, in some history of a run. (Elsewhere it
    /// cannot strike, or does so too rarely to insist on it.)
    fn must_meet(self) -> &'static [Doing] {
        use Doing::{Append, Compact, Full, Maintenance, Nothing, Read, Snapshot, Start, Sync};
        match self {
            Self::PowerCut | Self::Kill => {
                &[Start, Append, Sync, Nothing, Maintenance, Snapshot, Full]
            }
            Self::FailedSync | Self::LyingSync => &[Start, Sync, Maintenance, Snapshot, Full],
            Self::FailedWrite | Self::FailedName | Self::Misdirected => {
                &[Start, Append, Maintenance, Snapshot, Full]
            }
            Self::FailedRead | Self::Misread => &[Start, Read, Compact, Full],
            Self::NoSpace => &[Start, Append, Snapshot, Full],
            Self::Decay => &[Start, Read, Nothing, Snapshot, Compact],
        }
    }
}

/// Counts of one or many histories.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Faults that struck, by kind and by what they struck.
    struck: BTreeMap<(Kind, Doing), u64>,
    /// Of them, faults that could make a difference: a power cut that found something unsynced, a
    /// damage that changed a byte.
    effective: BTreeMap<Kind, u64>,
    /// Everything else, by name.
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn struck(&mut self, kind: Kind, doing: Doing, effective: bool) {
        *self.struck.entry((kind, doing)).or_default() += 1;
        *self.effective.entry(kind).or_default() += u64::from(effective);
    }

    pub(crate) fn count(&mut self, what: &'static str, by: u64) {
        *self.counts.entry(what).or_default() += by;
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn at(&self, kind: Kind, doing: Doing) -> u64 {
        self.struck.get(&(kind, doing)).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (key, count) in &other.struck {
            *self.struck.entry(*key).or_default() += count;
        }
        for (key, count) in &other.effective {
            *self.effective.entry(*key).or_default() += count;
        }
        for (key, count) in &other.counts {
            *self.counts.entry(key).or_default() += count;
        }
    }

    /// Faults that never struck where they must have.
    pub(crate) fn not_covered(&self) -> Vec<(Kind, Doing)> {
        let all = Kind::ALL.into_iter();
        let cells = all.flat_map(|kind| kind.must_meet().iter().map(move |doing| (kind, *doing)));
        cells
            .filter(|(kind, doing)| self.at(*kind, *doing) == 0)
            .collect()
    }

    fn injected(&self, kind: Kind) -> u64 {
        let cells = Doing::ALL.into_iter().map(|doing| self.at(kind, doing));
        cells.sum()
    }

    fn effective(&self, kind: Kind) -> u64 {
        self.effective.get(&kind).copied().unwrap_or(0)
    }

    pub(crate) fn table(&self) -> String {
        let mut table = format!("{:<12}{:>10}{:>10}", "fault", "injected", "effective");
        for doing in Doing::ALL {
            let _ = write!(table, "{:>9}", format!("{doing:?}"));
        }
        for kind in Kind::ALL {
            let (injected, effective) = (self.injected(kind), self.effective(kind));
            let _ = write!(
                table,
                "\n{:<12}{injected:>10}{effective:>10}",
                format!("{kind:?}")
            );
            for doing in Doing::ALL {
                let _ = write!(table, "{:>9}", self.at(kind, doing));
            }
        }
        for (what, count) in &self.counts {
            let _ = write!(table, "\n{what}: {count}");
        }
        table
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let faults = Kind::ALL.map(|kind| {
            let by_state: serde_json::Map<_, _> = Doing::ALL
                .into_iter()
                .map(|doing| {
                    (
                        format!("{doing:?}").to_lowercase(),
                        self.at(kind, doing).into(),
                    )
                })
                .collect();
            serde_json::json!({
                "fault": format!("{kind:?}"),
                "injected": self.injected(kind),
                "effective": self.effective(kind),
                "by_state": by_state,
            })
        });
        serde_json::json!({ "faults": faults, "counts": self.counts })
    }
}

//! What can go wrong with an operation, and when it does.

use std::io;

use lockgate_core::DiskOperation;

/// What happens at a fault point instead of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It fails and changes nothing.
    Error(io::ErrorKind),
    /// It fails and changes nothing: too many files are open.
    OutOfDescriptors,
    /// A write fails half way: the first half of its bytes is there.
    Torn(io::ErrorKind),
    /// A file's sync fails, and the bytes it should have made durable never will be: later syncs
    /// succeed, reads still show the bytes, and a power cut takes them. That is what ext4 and XFS do.
    /// Lengths stay unsynced, and a sync of the folder fails without any of that: a failed journal
    /// lets nothing succeed any more.
    LostPages,
    /// As [`LostPages`](Self::LostPages), but some of the operations, drawn from this seed, did get
    /// through.
    LostSome(u64),
    /// A write is reported as done and reads back well, as long as the system's cache has it; but the
    /// disk writes it somewhere else, to a place in any file that this seed draws.
    Misdirected(u64),
    /// A read succeeds and gives wrong bytes.
    Misread {
        /// In which way.
        damage: Damage,
        /// Whether the bytes have become like this for good (a block that has decayed), or only this
        /// one time (on the way).
        lasting: bool,
        /// Draws where in what is read.
        seed: u64,
    },
    /// The machine stops: the operation takes effect in the cache (a sync does not), its caller sees
    /// an error, and every later operation fails. [`FaultyDisk::crash`](super::FaultyDisk::crash)
    /// tells what is left.
    PowerOff,
}

/// How bytes stop being what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One bit is turned over.
    FlippedBit,
    /// A sector of 512 bytes reads as zeros.
    ZeroedSector,
    /// Two sectors have changed places.
    SwappedSectors,
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struck {
    /// At which kind of operation.
    pub operation: DiskOperation,
    /// On which file, or `folder`.
    pub name: String,
    pub fault: Fault,
}

/// How many operations of each kind there were; the fault points count in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Files opened or created.
    pub opens: u64,
    pub writes: u64,
    /// Changes of a file's length.
    pub set_lens: u64,
    /// Files whose blocks were taken ahead.
    pub allocates: u64,
    /// Syncs of a file or the folder.
    pub syncs: u64,
    pub renames: u64,
    pub removes: u64,
    pub reads: u64,
    /// Listings, and questions for a length or for space.
    pub inspections: u64,
}

impl Operations {
    /// All operations that change something or make it durable: everything but reads, opens and
    /// inspections. (Creating a file changes the folder and is counted as an open all the same: it
    /// can be lost, not fail half way.)
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.writes + self.set_lens + self.allocates + self.syncs + self.renames + self.removes
    }

    /// How many there were of one kind.
    #[must_use]
    pub fn of(mut self, operation: DiskOperation) -> u64 {
        *self.counter(operation)
    }

    fn counter(&mut self, operation: DiskOperation) -> &mut u64 {
        match operation {
            DiskOperation::Open => &mut self.opens,
            DiskOperation::Read => &mut self.reads,
            DiskOperation::Write => &mut self.writes,
            DiskOperation::SetLen => &mut self.set_lens,
            DiskOperation::Allocate => &mut self.allocates,
            DiskOperation::Sync => &mut self.syncs,
            DiskOperation::Rename => &mut self.renames,
            DiskOperation::Remove => &mut self.removes,
            _ => &mut self.inspections,
        }
    }
}

impl std::ops::AddAssign for Operations {
    fn add_assign(&mut self, other: Self) {
        self.opens += other.opens;
        self.writes += other.writes;
        self.set_lens += other.set_lens;
        self.allocates += other.allocates;
        self.syncs += other.syncs;
        self.renames += other.renames;
        self.removes += other.removes;
        self.reads += other.reads;
        self.inspections += other.inspections;
    }
}

/// Which operations a fault or a stall is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Kind(DiskOperation),
    Change,
}

impl At {
    pub(super) fn is_met_by(self, operation: DiskOperation) -> bool {
        match self {
            Self::Kind(kind) => kind == operation,
            Self::Change => !matches!(
                operation,
                DiskOperation::Open | DiskOperation::Read | DiskOperation::Inspect
            ),
        }
    }
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) operations: Operations,
    pub(super) struck: Vec<Struck>,
    armed: Vec<Armed>,
    power_is_off: bool,
}

struct Armed {
    at: At,
    after: u64,
    fault: Fault,
    /// Strikes at every operation from then on.
    always: bool,
}

impl Faults {
    pub(super) fn arm(&mut self, at: At, after: u64, fault: Fault, always: bool) {
        self.armed.push(Armed {
            at,
            after,
            fault,
            always,
        });
    }

    pub(super) fn disarm(&mut self) {
        self.armed.clear();
    }

    /// Notes that an operation met the end of space, which nobody armed.
    pub(super) fn out_of_space(&mut self, operation: DiskOperation, name: &str) -> io::Error {
        let kind = io::ErrorKind::StorageFull;
        self.struck.push(Struck {
            operation,
            name: name.to_owned(),
            fault: Fault::Error(kind),
        });
        kind.into()
    }

    /// Whether a fault is armed for this or a later operation of the kind.
    pub(super) fn may_strike(&self, operation: DiskOperation) -> bool {
        let met = |armed: &Armed| armed.at.is_met_by(operation);
        self.power_is_off || self.armed.iter().any(met)
    }

    /// Counts the operation and says which fault strikes at it, if any.
    pub(super) fn strike(
        &mut self,
        operation: DiskOperation,
        name: &str,
    ) -> io::Result<Option<Fault>> {
        if self.power_is_off {
            return Err(io::Error::other("the power is off"));
        }
        *self.operations.counter(operation) += 1;
        let mut fault = None;
        self.armed.retain_mut(|armed| {
            if !armed.at.is_met_by(operation) {
                return true;
            }
            if armed.after > 0 {
                armed.after -= 1;
                return true;
            }
            if fault.is_some() {
                // Another one strikes here. This one waits for the next operation.
                return true;
            }
            fault = Some(armed.fault);
            armed.always
        });
        if let Some(fault) = fault {
            self.struck.push(Struck {
                operation,
                name: name.to_owned(),
                fault,
            });
            self.power_is_off = fault == Fault::PowerOff;
        }
        Ok(fault)
    }
}

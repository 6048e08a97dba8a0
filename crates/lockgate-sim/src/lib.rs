//! A faulty disk and a manual clock for Lockgate, and the crash tests over them; and an exhaustive search of
//! protocols ([`explore`]).
//!
//! [`FaultyDisk`] is a [`Disk`](lockgate_core::Disk) in memory that behaves as badly as a real one
//! may:
//!
//! - what was not synced (bytes, lengths, allocations, names) can be lost in any subset when the
//!   power goes, and a write be torn at 512 bytes ([`PowerCut`]);
//! - any operation can fail, once or for good; a sync can fail and lie about it afterwards; a write
//!   can land in the wrong place; a read can give wrong bytes ([`Fault`], [`Damage`]);
//! - space ends at any byte, and others take and give it ([`FaultyDisk::set_free_bytes`]);
//! - operations can hang ([`Stall`]).
//!
//! A sector of 512 bytes is written whole or not at all: what a drive does that breaks this promise
//! is [`Damage`], not a power cut.
//!
//! Everything follows from seeds and counters, so a failing history can be run again. Nothing here
//! starts a thread or reads a clock.
//!
//! ```
//! use lockgate_core::{Disk, OpenMode};
//! use lockgate_sim::{FaultyDisk, PowerCut};
//!
//! let disk = FaultyDisk::new();
//! let file = disk.open("a", OpenMode::CreateNew)?;
//! file.write_at(b"synced", 0)?;
//! file.sync()?;
//! disk.sync_folder()?;
//! file.write_at(b"not yet", 6)?;
//!
//! // A killed process loses nothing it has written ...
//! let killed = disk.kill();
//! assert_eq!(killed.contents("a").unwrap(), b"syncednot yet");
//!
//! // ... a power cut takes what was not synced, or any part of it.
//! let after = disk.crash(PowerCut::LoseAllUnsynced);
//! assert_eq!(after.contents("a").unwrap(), b"synced");
//! let after = disk.crash(PowerCut::Seeded(7));
//! assert!(after.contents("a").unwrap().starts_with(b"synced"));
//! # Ok::<(), lockgate_core::DiskError>(())
//! ```

mod disk;
pub mod explore;
mod random;

pub use disk::{Damage, Fault, FaultyDisk, Operations, PowerCut, Stall, Struck};
pub use lockgate_core::ManualClock;
pub use random::SeededRandom;

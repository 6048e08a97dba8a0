//! A faulty disk and a manual clock for Lockgate, and the crash tests over them.
//!
//! [`FaultyDisk`] is a [`Disk`](lockgate_core::Disk) in memory that behaves as badly as a real one
//! may: what was not synced can be lost in any subset when the power goes, the write under way can
//! be torn at 512 bytes, names can be lost although their files were synced, and any operation can
//! be made to fail. Everything follows from seeds and counters, so a failing history can be run
//! again. Nothing here starts a thread or reads a clock.
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

mod clock;
mod disk;
mod random;

pub use clock::ManualClock;
pub use disk::{Fault, FaultyDisk, Operations, PowerCut};
pub use random::SeededRandom;

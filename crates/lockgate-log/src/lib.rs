//! The local log of Lockgate, and the real disk and clock under it.
//!
//! [`LocalLog`] keeps records in the segment files of one folder, checksummed and numbered. It
//! distinguishes a torn tail from damage in the middle. [`FolderDisk`] is that folder on the
//! operating system, and [`SystemClock`] reads the system's clocks. `docs/internals/format.md`
//! describes the bytes. This crate does not know what a record means, and starts no thread.
//!
//! ```
//! use std::sync::Arc;
//!
//! use lockgate_core::{Epoch, Log, LogSource, Position, RecordGroup};
//! use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data");
//! let disk = Arc::new(FolderDisk::open(&path)?);
//! let mut log = LocalLog::open(disk, LocalLogOptions::default())?;
//! let report = log.recover(Position(0), Epoch(0), &mut |record, _| println!("{record:?}"))?;
//! log.begin_epoch(Epoch(report.epoch.0 + 1))?;
//!
//! let mut group = RecordGroup::new(log.capabilities().gap);
//! group.push(|buffer| buffer.extend_from_slice(b"hello"));
//! let at = log.tail();
//! log.append(Epoch(report.epoch.0 + 1), at, &mut group)?;
//!
//! // Written; after a sync it survives a power cut too.
//! let durable = log.progress().sync()?;
//! assert!(at < durable);
//! assert_eq!(log.reader().read(at)?, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod at_once;
mod clock;
mod folder;
mod format;
mod inspect;
mod local;
mod names;
mod options;
mod preallocated;
mod reader;
mod recover;
mod reserve;
mod scan;
mod shared;
mod sizes;
mod snapshots;
mod sync;

pub use clock::SystemClock;
pub use folder::FolderDisk;
pub use inspect::{InspectedHeader, InspectedSegment, InspectedSnapshot, Inspection};
pub use local::LocalLog;
pub use names::{LogFile, is_log_file, segment_file};
pub use options::{LocalLogOptions, OpenError};
pub use reserve::SharedReserve;

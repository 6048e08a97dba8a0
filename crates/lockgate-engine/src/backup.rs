//! Backups: a whole shard as one stream of bytes, taken while it serves, over any log; and a log made
//! of one.
//!
//! A backup is logical. It holds the image of the machine as of one instant, and after it, for each
//! message there was, its payload. The positions in the image mean nothing in another log: a restore
//! writes the payloads into a new one and folds where they are now. The bytes are described in
//! `docs/internals/format.md`, section "Backup".

mod restore;
mod stream;
mod write;

pub use restore::{RestoreError, RestoreReport, restore, verify_backup};
pub use write::{BackupError, BackupReport};
pub(crate) use write::{Source, write};

//! Backups: a whole shard as one stream of bytes, written while the shard serves, over any log. A
//! restore turns such a stream into a log.
//!
//! A backup is logical. It holds the image of the machine at one instant, followed by the payload
//! of each message. The positions in the image mean nothing in another log: a restore writes the
//! payloads into a new log and folds them at their new positions. `docs/internals/format.md`,
//! section "Backup", describes the bytes.

mod restore;
mod stream;
mod write;

pub use restore::{RestoreError, RestoreReport, restore, restore_with_index, verify_backup};
pub use write::{BackupError, BackupReport};
pub(crate) use write::{Source, view_and_freeze, write};

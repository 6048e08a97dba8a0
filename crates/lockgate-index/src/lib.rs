//! Unique ids on disk, with bounded memory.
//!
//! A [`UniqueIndex`] says for an id (the digest of a unique id, 128 bits) for which number it stands: a message of a
//! queue or an event of a ledger. Ids belong to *spaces*, which have numbers; each queue or ledger has one. The index
//! keeps an id in 31 bytes of disk, and needs no more memory than [`IndexOptions`] allows. It starts no thread and
//! knows no runtime; calls block on the disk.
//!
//! A log is the index's journal: whoever folds the log [adds](UniqueIndex::add) ids together with the number up to
//! which its space is complete. What was [synced](UniqueIndex::sync) is there after a crash, each call of `add` as a
//! whole, and the rest is added again from the log. So whoever asks knows the ids up to [`Looked::up_to`] from the
//! index, and must know the later ones itself.
//!
//! ```
//! use lockgate_index::{IndexOptions, UniqueIndex};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("index");
//! let (index, report) = UniqueIndex::open(&folder, &IndexOptions::default())?;
//! assert!(report.new);
//!
//! // The records of space 7 up to number 900 have these ids.
//! index.add(7, &[(0xa11ce, 1), (0xb0b, 2)], 900)?;
//! let looked = index.look_up(7, &[0xb0b, 0xca7])?;
//! assert_eq!(looked.up_to, Some(900));
//! assert_eq!(looked.found, [Some(2), None]);
//!
//! // From now on it survives a power cut.
//! assert_eq!(index.durable_up_to(7), None);
//! index.sync()?;
//! assert_eq!(index.durable_up_to(7), Some(900));
//!
//! // A backup of this point in time, in pieces that may be written anywhere.
//! let copy = folder.with_file_name("copy");
//! let (copy, report) = UniqueIndex::load(&copy, &IndexOptions::default(), index.view()?)?;
//! assert!(!report.new);
//! assert_eq!(copy.look_up(7, &[0xa11ce])?.found, [Some(1)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is made of
//!
//! A log-structured merge tree, the one inside fjall, without fjall's journal and threads. Ids are evenly distributed,
//! so a tree that writes pages in place would write a page for each id; this one writes sorted runs and merges them.
//! A sync writes one run and then the list of runs, and syncs both. So it is atomic, and no journal can lose records in
//! the middle: all that is read, lists and runs, is checked by checksums.
//!
//! # Figures
//!
//! `cargo run --release -p lockgate-index --example many`, 10^7 ids with 64 MiB of memory allowed, on two processors that
//! others used too: 118,000 ids a second were added, with a sync after each 100,000. They took 294 MiB of disk, and 7.7
//! times as much was written. The process had 39 MiB at most. Opening took 9 ms. Of ids that are not there 200,000 a
//! second were looked up, with 0.02 reads each; of those that are, 72,000 with 0.96. It is the processor that limits
//! both.
//!
//! # Damage
//!
//! [`open`](UniqueIndex::open) reads the list of runs and the ends of all runs, not every id, and changes nothing if
//! they do not fit. A damaged block is found when it is read, and then the call fails: an answer is right or there is
//! none. [`check`](UniqueIndex::check) reads every id. An older state of the whole folder is undamaged; whoever asks
//! finds out by comparing [`up_to`](UniqueIndex::up_to) with what it has kept itself.

mod error;
mod files;
mod folder;
mod index;
mod look;
mod open;
mod pieces;
mod rows;
mod salvage;
#[cfg(test)]
mod tests;

pub use error::IndexError;
pub use folder::FolderIndex;
pub use index::{Looked, UniqueIndex};
pub use look::LookedIndex;
pub use open::{IndexOptions, IndexReport, Owner};
pub use pieces::{IndexView, PIECE_BYTES_MAX, PieceCheck};
pub use salvage::Salvaged;

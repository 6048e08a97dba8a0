//! The words of Lockgate and the traits at its seams.
//!
//! This crate holds what every other crate must agree on: identifiers ([`MessageId`],
//! [`LeaseToken`], ...), time as a value ([`Now`]), a [`Message`] with every field a record can
//! carry, durability [`Level`]s, and the traits behind which storage and time live ([`Log`],
//! [`Disk`], [`Clock`]). It does no I/O, reads no clock and draws no random number, and it builds
//! for `wasm32-unknown-unknown`.
//!
//! ```
//! use lockgate_core::{Incarnation, Epoch, MessageId, QueueId, Sequence, ShardId, Term};
//!
//! let shard = ShardId::new(9).unwrap();
//! let term = Term { shard, epoch: Epoch(3), incarnation: Incarnation(0xfeed_beef) };
//! let id = MessageId::new(QueueId(7), Sequence(42), term);
//! assert_eq!(id.shard(), shard);
//! assert_eq!(id.queue(), QueueId(7));
//! assert_eq!(id.sequence(), Sequence(42));
//! assert_eq!(id.to_string().parse::<MessageId>().unwrap(), id);
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod backoff;
mod clock;
pub mod coordination;
mod disk;
mod distribution;
mod error_text;
mod failures;
#[doc(hidden)]
pub mod fields;
mod ids;
mod key_state;
pub mod ledger;
mod level;
pub mod limits;
mod log;
mod manual_clock;
mod message;
mod names;
pub mod pack;
mod producer;
mod records;
mod route_by;
mod schedule;
mod time;
mod transport;
pub mod units;

pub use backoff::Backoff;
pub use clock::{BootId, Clock};
pub use disk::{
    Disk, DiskError, DiskFile, DiskOperation, DiskSpace, FileIdentity, FolderLock, LockError,
    OpenMode,
};
pub use distribution::Distribution;
pub use error_text::{StorageFailure, with_sources};
pub use failures::{FailedAttempt, Failures, REASON_BYTES_MAX, cut_reason};
pub use ids::{
    Epoch, ExchangeId, Incarnation, LeaseNumber, LeaseToken, LedgerId, Location, MessageId,
    ParseMessageIdError, Position, QueueId, ScheduleId, Sequence, ShardId, ShardIdError, Term,
};
pub use key_state::{KeyState, KeyStateWrite, Replaces};
pub use level::{Level, ParseLevelError};
pub use log::{
    AppendError, DamagedRange, Log, LogCapabilities, LogError, LogMaintenance, LogProgress,
    LogRange, LogReader, LogRecord, LogSource, LogSpace, Preview, Progress, Purpose, ReadError,
    RecordGroup, RecordStamp, RecoveryReport, ReserveError, Scanned, SnapshotReader, SnapshotStore,
    SnapshotWriter, SpaceState, StepOutcome, Storage, Unsynced, Watcher,
};
pub use manual_clock::ManualClock;
pub use message::{Header, Message, PRIORITY_MAX, SizeError};
pub use names::{
    ElectionName, ExchangeName, HolderName, InputId, Key, LedgerName, NameError, ProducerName,
    QueueName, ReaderName, RecordName, RoutingKey, ScheduleName, UniqueId, with_prefix,
};
pub use producer::{MarkError, Produced, ProducerIncarnation, ProducerMark, ProducerRefused};
pub use records::{
    DeleteRecord, ExtendRecord, LeaseRecord, ListRecords, PutRecord, RECORD_BYTES_MAX,
    RECORD_LEASE_MAX, Record, RecordLease, RecordPage, RecordVersion, RecordWritten, Records,
    RecordsCapabilities, RecordsError, ReleaseRecord, Revision, WatchRecord, record_memory,
};
pub use route_by::{RouteBy, RouteByError};
pub use schedule::{CatchUp, Overlap, Timing};
pub use time::{MachineTime, Millis, Now, WallTime};
pub use transport::{
    Accepted, Fate, KeyOrder, Leased, MessageName, ReceiveRequest, Settlement, Sink,
    SinkCapabilities, Source, SourceCapabilities, TransportError, Unsupported, one_by_one,
};

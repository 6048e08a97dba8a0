//! The log under a shard: an ordered, checksummed sequence of records that one owner appends to.
//!
//! The trait is narrow so that engines which already replicate (PostgreSQL, NATS JetStream, Kafka)
//! can stand behind it. It knows nothing of queues; a record is bytes.

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::{DiskError, Epoch, Position};

/// What can be read of a log, also by who does not own it: by a view, a standby, a check. Nothing is appended,
/// synced or given back through it, so no engine can serve over it.
///
/// All methods may block and none may be called from an async task.
pub trait LogSource: Send {
    /// What this log can do. Constant for the life of the instance.
    fn capabilities(&self) -> LogCapabilities;

    /// Reads every surviving record that starts at `from` or behind it, hands each to `visit` in
    /// order and with its number, tells a torn tail from damage in the middle, and leaves the log ready for
    /// [`begin_epoch`](Log::begin_epoch). Recovering twice without an append in between visits the
    /// same records.
    ///
    /// Removes and changes nothing that is stored, so that a caller may still decide against what was
    /// found; [`apply_recovery`](Log::apply_recovery) does. A [`Log`] is [claimed](Log::claim) before it
    /// is read: no earlier owner appends anything behind what was visited. Any other source fences nobody.
    ///
    /// `from` is the position of a complete snapshot, or zero for all that can be recovered. What
    /// stands before it is neither read nor judged. New records get positions above `from`, also
    /// where everything behind it was lost.
    ///
    /// `lowest` is the epoch that the caller knows of otherwise, from that snapshot: the
    /// [report's](RecoveryReport::epoch) is not lower, whatever the log has lost, and no lower one can be
    /// [begun](Log::begin_epoch).
    ///
    /// # Errors
    /// If storage fails or holds a newer format. Damaged records are no error: they are counted in
    /// the report.
    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError>;

    /// Where the next record goes.
    fn tail(&self) -> Position;

    /// A handle that reads, for any thread.
    fn reader(&self) -> Arc<dyn LogReader>;

    /// All ranges whose space the log holds, in order: what could be [released](Log::release)
    /// sooner or later. Empty without [`LogCapabilities::releases_ranges`].
    fn ranges(&self) -> Vec<LogRange> {
        Vec::new()
    }

    /// What to call the part of the log from `from` to before `to`, for an operator: the name of a file,
    /// for example.
    fn name_of(&self, from: Position, to: Position) -> String {
        format!("the log from {from} to {to}")
    }
}

/// An append-only sequence of records with exactly one owner.
///
/// # Life of an instance
/// 1. [`preview`](Log::preview), to refuse what cannot be served; then [`claim`](Log::claim): no earlier owner
///    changes anything any more.
/// 2. [`recover`](LogSource::recover) once: hands over every surviving record from a position on, the one
///    of the [snapshot](SnapshotStore) that was loaded before, in order.
/// 3. [`begin_epoch`](Log::begin_epoch) once: fences every earlier owner.
/// 4. [`submit`](Log::submit) any number of times, always at [`tail`](LogSource::tail).
///
/// Groups are on their way when that returns; [`progress`](Log::progress) tells how far they have come,
/// and has them made durable. Reading goes through a handle of its own ([`reader`](LogSource::reader)).
///
/// # Space
/// A record is needed for two things: to be folded at recovery, until a snapshot covers it, and to be
/// read for the payload in it, until the message is gone or was moved forward.
/// [`trim`](Log::trim) ends the first, [`release`](Log::release) the second. Positions that agree in
/// all but their lowest [`range_bits`](LogCapabilities::range_bits) bits form a *range*, the unit in
/// which space comes back.
///
/// # Failure
/// After any error of a submission but [`AppendError::Full`], and after any failure that the
/// [progress](LogProgress::failure) tells of, the instance is dead: every later append and sync fails, and
/// only a new instance over the same storage can tell what survived.
///
/// All methods may block and none may be called from an async task.
pub trait Log: LogSource {
    /// Looks at what there is without claiming it, so that a start that must be refused fences nobody. To be
    /// called before [`claim`](Log::claim). `None` where opening the log has already excluded every other
    /// owner.
    ///
    /// # Errors
    /// If storage fails.
    fn preview(&self) -> Result<Option<Preview>, LogError> {
        Ok(None)
    }

    /// Fences every earlier owner, before anything is read: from here on nothing is appended, no snapshot
    /// completed and no space given back but by this instance. To be called before the snapshots are
    /// listed: a live owner could complete others and trim the log behind those that were listed.
    /// [`recover`](LogSource::recover) does it if nobody did. Nothing to do where opening the log has done it.
    ///
    /// # Errors
    /// If storage fails.
    fn claim(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Does what the last [`recover`](LogSource::recover) has decided: cuts a torn tail, makes all that was
    /// visited durable, removes what is not needed any more. Nothing if there is nothing to do, or it
    /// was done.
    ///
    /// # Errors
    /// If storage fails; a later recovery finds the same.
    fn apply_recovery(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Takes ownership under `epoch`, after [`apply_recovery`](Log::apply_recovery), which it calls if
    /// nobody did. From here on no append under a lower epoch succeeds, on this
    /// instance or any other over the same storage.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if an epoch at least as high was begun before, or another instance has
    /// recovered since this one did.
    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError>;

    /// The number that the next record will have, see [`RecordStamp::number`].
    fn next_number(&self) -> u64;

    /// Where a record with `len` payload bytes will start if it is appended when the tail is
    /// `cursor`; moves the cursor behind it. Pure: this is how commands are decided, with the
    /// positions their records will have, before anything is written.
    fn place(&self, cursor: &mut Position, len: usize) -> Position;

    /// Makes sure that the next `bytes` payload bytes in `records` records will fit, so that a full
    /// disk is met before a command takes effect rather than after. Work that makes room again may
    /// take what is kept back from work that takes more, see [`Purpose`].
    ///
    /// # Errors
    /// [`ReserveError::Full`] changes nothing and may be tried again later.
    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError>;

    /// How much room there is, as last seen. Cheap; asks nobody.
    fn space(&self) -> LogSpace;

    /// Sends the group's records on their way, all in order, starting at `expected`, and moves the
    /// [tail](LogSource::tail) behind them. When [`LogProgress::now`] says that they are written, they have reached
    /// level `process` (or the level of [`LogCapabilities::append_level`]): with some logs that is so when this
    /// returns. Groups are written in the order in which they were submitted, and none behind one that
    /// could not be. May write into the gaps of `group`.
    ///
    /// With as many groups on the way as [`LogCapabilities::groups_in_flight`] says, it waits for one of them.
    ///
    /// After a crash a prefix of the group may survive; a single record survives whole or not at
    /// all.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if a higher epoch was begun, [`AppendError::Position`] if `expected`
    /// is not the tail: nothing was written. Any other error: unknown outcome, the instance is dead. What
    /// is found out later, [`LogProgress::failure`] tells.
    fn submit(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError>;

    /// [Submits](Log::submit) the group and waits until it is written.
    ///
    /// # Errors
    /// As [`submit`](Log::submit) and [`LogProgress::wait_written`].
    fn append(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.submit(epoch, expected, group)?;
        self.progress().wait_written(self.tail())
    }

    /// A handle that tells how far records have come and has them made durable, for any thread.
    fn progress(&self) -> Arc<dyn LogProgress>;

    /// A handle for the work that keeps appends fast and brings space back, for another thread;
    /// `None` if there is no such work. Whoever takes it calls [`LogMaintenance::step`]; while nobody
    /// does, the log does that work where it is needed, and is only slower.
    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        None
    }

    /// Says that no recovery will start before `before`, the position of a complete snapshot. A log
    /// that [releases ranges](LogCapabilities::releases_ranges) keeps the records before it readable
    /// until they are [released](Log::release); any other gives them back now.
    ///
    /// # Errors
    /// If storage fails; the log stays usable unless it says [`LogError::Stopped`] from then on.
    fn trim(&mut self, before: Position) -> Result<(), LogError>;

    /// Gives back the whole range that `range` lies in: no record there will be read again. Space
    /// may come back a little later. The caller has made durable whatever took the place of the
    /// records in it.
    ///
    /// # Errors
    /// [`LogError::Unsupported`] without [`LogCapabilities::releases_ranges`], or if the range is not
    /// all before the position of the last [`trim`](Log::trim). Else if storage fails; the log stays
    /// usable unless it says [`LogError::Stopped`] from then on.
    fn release(&mut self, range: Position) -> Result<(), LogError>;
}

/// How far the records of a log have come. Neither position ever goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every record that starts before it has reached the [level of appends](LogCapabilities::append_level),
    /// and can be read.
    pub written: Position,
    /// Every record that starts before it has reached the [level of syncs](LogCapabilities::sync_level).
    pub durable: Position,
}

/// Tells how far the records of a log have come, and has them made durable. Shared by any number of threads.
pub trait LogProgress: Send + Sync {
    /// How far they have come. Cheap; asks nobody.
    fn now(&self) -> Progress;

    /// Why nothing goes further any more. With [`AppendError::Unknown`] it is not known what became of
    /// records that were not written by then; with any other error none of them was, nor ever will be.
    fn failure(&self) -> Option<AppendError>;

    /// Begins to make every record durable that was submitted before the call, also those that are not written
    /// yet; [`now`](Self::now) tells when they are. At most [`LogCapabilities::syncs_in_flight`] may be on the
    /// way at once. Where that is one, it has ended when this returns.
    ///
    /// # Errors
    /// Any error is final for the log instance.
    fn start_sync(&self) -> Result<(), LogError> {
        self.sync().map(drop)
    }

    /// Makes every record durable that was submitted before the call. Returns the position up to
    /// which that holds. Calls are serialised by the caller, and with [`start_sync`](Self::start_sync).
    ///
    /// # Errors
    /// Any error is final for the log instance.
    fn sync(&self) -> Result<Position, LogError>;

    /// Waits until every record that starts before `position`, which was submitted, is written.
    ///
    /// # Errors
    /// The [failure](Self::failure), if it comes first.
    fn wait_written(&self, position: Position) -> Result<(), AppendError> {
        let _written_when_submitted = position;
        self.failure().map_or(Ok(()), Err)
    }

    /// Has `watcher` called whenever the progress has changed or the failure is there, unless that was in a
    /// call of this handle or of [`Log::submit`]. It is called on a thread of the log's and must not wait; what
    /// it was told before it may be told again. One watcher at a time: the last.
    fn watch(&self, watcher: Watcher) {
        drop(watcher);
    }
}

/// See [`LogProgress::watch`].
pub type Watcher = Box<dyn Fn() + Send + Sync>;

/// The work of a log that nobody waits for: preparing storage before it is needed, giving back what
/// was released, looking at the free space.
pub trait LogMaintenance: Send + Sync {
    /// Does one piece of it, small enough that nobody on the same disk waits long: a MiB written and
    /// synced, or a few names changed. Returns whether there is more to do now; if not, there may be
    /// after the next appends, trims and releases, and after [`pause`](Self::pause). Cheap when there is
    /// nothing to do. Calling it ten times a second is enough while much is appended.
    ///
    /// # Errors
    /// If storage fails or is full; the log stays usable and the step may be tried again later, unless
    /// it says [`LogError::Stopped`] or [`LogError::Deposed`]: then the log is dead, which an owner with
    /// nothing to append would not know otherwise.
    fn step(&self) -> Result<bool, LogError>;

    /// How long [`step`](Self::step) need not be called after it said that there is no more to do, while nothing
    /// is appended, trimmed or released. Default 1 s.
    fn pause(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Looks whether what the log writes to is still where the next start looks for it: somebody may have
    /// removed or replaced it. For a log that several instances can open, also whether it is still this
    /// instance's. Costs a few system calls, or a question to a server; meant for a few times a minute, and
    /// before the log is given up.
    ///
    /// # Errors
    /// If it is not: then the log is dead, and what only the removed part held is lost. No error says
    /// that it is there: where that cannot be found out for now, nothing is said.
    fn check_storage(&self) -> Result<(), LogError> {
        Ok(())
    }
}

/// What can be told of a log at little cost while somebody else owns it. See [`Log::preview`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// No recovery can start before it, as in [`RecoveryReport::trimmed`].
    pub trimmed: Position,
    /// Some of the newest records that verify, in order; none of an older one is left out between them.
    pub newest: Vec<LogRecord>,
    /// Ranges behind the newest snapshot of which nothing is there and whose records are lost, as in
    /// [`RecoveryReport::missing`]. There may be others.
    pub missing: Vec<Range<Position>>,
}

/// Reads single records. Shared by any number of threads.
pub trait LogReader: Send + Sync {
    /// The payload of the record that starts at `at`, verified against its checksum and position.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if no record starts there (any more), [`ReadError::Damaged`] if it
    /// does not verify.
    fn read(&self, at: Position) -> Result<Bytes, ReadError>;

    /// Several records, in that order: what [`read`](Self::read) says of each. A log reads what stands
    /// together at once. Ends behind the first [`ReadError::Log`]: the rest was not tried.
    fn read_all(&self, at: &[Position]) -> Vec<Result<Bytes, ReadError>> {
        let mut records = Vec::with_capacity(at.len());
        for &at in at {
            records.push(self.read(at));
            if matches!(records.last(), Some(Err(ReadError::Log(_)))) {
                break;
            }
        }
        records
    }

    /// The payloads of several records, in that order, if all can be read and verified without waiting:
    /// for a disk, another machine or a connection to it. `None` if not, or if something is wrong with
    /// any of them: [`read_all`](Self::read_all) finds out what.
    ///
    /// The only method that never blocks, and that an async task may call.
    fn try_read_all(&self, _at: &[Position]) -> Option<Vec<Bytes>> {
        None
    }

    /// Where the record of that [number](RecordStamp::number) starts; `None` if there is none that can be read:
    /// not yet, not any more, or because it is damaged. May read as much as a range holds.
    ///
    /// # Errors
    /// If storage fails.
    fn locate(&self, number: u64) -> Result<Option<Position>, ReadError>;

    /// Waits until a record that starts at `beyond` or behind it is durable, for whoever follows the log; not
    /// longer than `wait`, nor if there will never be one. Returns up to where records are durable, which is
    /// how far a follower may go: what is behind it a power cut may still take back. Of a view of a standby it
    /// is where the view ends.
    ///
    /// # Errors
    /// If storage fails.
    fn wait_tail(&self, beyond: Position, wait: Duration) -> Result<Position, LogError>;

    /// Visits the records that start in `from..to`, in order, and what is damaged between them, for
    /// as long as `visit` says [`Continue`](ControlFlow::Continue). `from` is where a record starts,
    /// or the first position of a range. Ranges that were released are passed over.
    ///
    /// # Errors
    /// If storage fails.
    fn scan(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<(), ReadError>;
}

/// What [`LogReader::scan`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// A record that verifies.
    Record {
        /// The record.
        record: LogRecord,
        /// What the log keeps beside it.
        stamp: RecordStamp,
    },
    /// A stretch in which no record verifies.
    Damaged {
        /// Where it starts.
        from: Position,
        /// Where the next record starts, or the scan ends.
        to: Position,
    },
}

/// What a shard is kept in: a log, and beside it the snapshots from which its recovery starts. They may be in one
/// place or in two.
pub struct Storage {
    /// The log.
    pub log: Box<dyn Log>,
    /// Its snapshots.
    pub snapshots: Arc<dyn SnapshotStore>,
}

/// The snapshots beside a log: each a sequence of pieces, complete or not there. What is in a piece
/// is the caller's business.
pub trait SnapshotStore: Send + Sync {
    /// The positions of all complete snapshots, newest first.
    ///
    /// # Errors
    /// If storage fails.
    fn list(&self) -> Result<Vec<Position>, LogError>;

    /// Opens the snapshot of that position.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if there is none, [`ReadError::Damaged`] if its beginning does not
    /// verify, [`LogError::NewerFormat`] in [`ReadError::Log`] if a newer version wrote it.
    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError>;

    /// Removes the snapshot of that position; nothing if there is none.
    ///
    /// # Errors
    /// If storage fails.
    fn remove(&self, at: Position) -> Result<(), LogError>;

    /// Begins a snapshot of the state after every record that starts before `at`, which is the log's tail; the
    /// next record will have that number. For the log's owner, under its epoch. Does no I/O yet; the writer
    /// does, on whatever thread it is used.
    ///
    /// # Errors
    /// [`LogError::Unsupported`] before an epoch was begun, and from a store that is only read.
    fn begin(&self, at: Position, next_number: u64) -> Result<Box<dyn SnapshotWriter>, LogError>;

    /// Takes the snapshot of that position out of use for good, durably: the shard went on from an
    /// older state, which this one no longer fits. Its bytes stay for an operator where the store can
    /// keep them apart. Nothing if there is none.
    ///
    /// # Errors
    /// If storage fails.
    fn set_aside(&self, at: Position) -> Result<(), LogError> {
        self.remove(at)
    }
}

/// Writes one snapshot. Dropped before [`finish`](Self::finish) it leaves nothing behind.
pub trait SnapshotWriter: Send {
    /// The state after all records before this is what belongs into the snapshot.
    fn position(&self) -> Position;

    /// Adds a piece of at most [`LogCapabilities::record_bytes_max`] bytes.
    ///
    /// # Errors
    /// If storage fails, or is full: then only the snapshot is lost.
    fn write(&mut self, piece: &[u8]) -> Result<(), LogError>;

    /// Makes the snapshot complete and durable, in one step: after a crash it is there whole or not
    /// at all. To be called only when every record before its position is durable.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn finish(self: Box<Self>) -> Result<(), LogError>;
}

/// Reads one snapshot.
pub trait SnapshotReader: Send {
    /// Bytes of all pieces, to plan with.
    fn total_bytes(&self) -> u64;

    /// The next piece, verified; `None` behind the last one.
    ///
    /// # Errors
    /// [`ReadError::Damaged`] if it does not verify or is not there.
    fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError>;
}

/// A record handed over at recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it starts.
    pub position: Position,
    /// Its bytes. They may share memory with the records around it: copy what is to be kept.
    pub payload: Bytes,
}

/// What a log keeps beside a record's payload, under the same checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStamp {
    /// One more than that of the record before it, in whichever epoch that was; so a gap tells how many
    /// records are missing.
    pub number: u64,
    /// The epoch it was appended under.
    pub epoch: Epoch,
}

/// What a log can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCapabilities {
    /// Bytes left free in front of each record of a [`RecordGroup`], for the log's own header.
    pub gap: usize,
    /// The largest payload of one record.
    pub record_bytes_max: usize,
    /// The level an append has reached when it returns.
    pub append_level: crate::Level,
    /// The level a sync reaches: [`Level::Disk`](crate::Level::Disk) or higher.
    pub sync_level: crate::Level,
    /// Groups that may be on their way at once: submitted and not written.
    pub groups_in_flight: usize,
    /// Syncs that may be on their way at once.
    pub syncs_in_flight: usize,
    /// Whether [`Log::release`] works.
    pub releases_ranges: bool,
    /// Positions that differ in no more than so many of their lowest bits are in one range.
    pub range_bits: u32,
}

/// What room is reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For what adds to the log's live contents: refused while the log is full.
    Growth,
    /// For what a full log must be able to do to become less full: leases, settles, purges. Has a
    /// reserve.
    Maintenance,
}

/// A range that a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// Its first position.
    pub first: Position,
    /// The space it takes, in bytes.
    pub bytes: u64,
}

/// How much room a log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSpace {
    /// What to think of it.
    pub state: SpaceState,
    /// Bytes the log takes, its snapshots and what it keeps ready included.
    pub used_bytes: u64,
    /// Of them, bytes ready for new records.
    pub ready_bytes: u64,
    /// Bytes of storage nobody has taken yet.
    pub free_bytes: u64,
}

/// See [`LogSpace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceState {
    /// There is enough.
    #[default]
    Normal,
    /// Below the low mark: somebody should look.
    Low,
    /// Below the stop mark: [`Purpose::Growth`] is refused.
    Full,
}

impl SpaceState {
    /// The word for it, wherever people read it: `normal`, `low` or `full`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Low => "low",
            Self::Full => "full",
        }
    }
}

/// Records to append together, in one buffer with a gap in front of each for the log's header, so
/// that a payload is copied once between the caller and the operating system.
#[derive(Debug, Default)]
pub struct RecordGroup {
    gap: usize,
    buffer: Vec<u8>,
    /// Where each record's gap starts in the buffer.
    starts: Vec<usize>,
}

impl RecordGroup {
    /// An empty group whose records have `gap` free bytes in front.
    #[must_use]
    pub fn new(gap: usize) -> Self {
        Self {
            gap,
            ..Self::default()
        }
    }

    /// Adds a record: `write` appends its payload to the buffer. Returns the payload's length.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        self.starts.push(self.buffer.len());
        self.buffer.resize(self.buffer.len() + self.gap, 0);
        let start = self.buffer.len();
        write(&mut self.buffer);
        self.buffer.len() - start
    }

    /// Takes the last record out again, before it was placed: for one that turned out too large.
    pub fn pop(&mut self) {
        if let Some(start) = self.starts.pop() {
            self.buffer.truncate(start);
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The gap in front of each record.
    #[must_use]
    pub fn gap(&self) -> usize {
        self.gap
    }

    /// All gaps and payloads, back to back.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Where the record's gap and payload stand in [`bytes`](Self::bytes).
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn frame(&self, index: usize) -> Range<usize> {
        let end = self
            .starts
            .get(index + 1)
            .copied()
            .unwrap_or(self.buffer.len());
        self.starts[index]..end
    }

    /// The record's gap and payload, for the log to fill in its header.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn frame_mut(&mut self, index: usize) -> (&mut [u8], &mut [u8]) {
        let frame = self.frame(index);
        self.buffer[frame].split_at_mut(self.gap)
    }

    /// The record's payload.
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        let frame = self.frame(index);
        &self.buffer[frame.start + self.gap..frame.end]
    }

    /// Forgets all records and keeps the buffer, unless a rare large group has made it larger than
    /// `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.starts.clear();
        self.buffer.clear();
        self.buffer.shrink_to(keep);
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Records handed over.
    pub records: u64,
    /// Bytes of those records, with what the log put around them. What was read beside them is not
    /// in it, such as blocks that were made ready and not used.
    pub bytes: u64,
    /// The highest epoch found, or that was known before; the next owner must begin a higher one.
    pub epoch: Epoch,
    /// No recovery can start before it: the position of the last [`Log::trim`], zero without one. A
    /// log that was trimmed is of no use without a snapshot.
    pub trimmed: Position,
    /// Bytes of a torn tail that were cut.
    pub tail_bytes_cut: u64,
    /// Damage below the highest position known to have been synced: set aside, and counted by the
    /// missing record numbers.
    pub damaged: Vec<DamagedRange>,
    /// Parts of the log that are not there at all, such as a file that somebody moved away, and that held
    /// durable records or may have: each from the first position of a range to before that of another. What
    /// they are known to have held is counted in `damaged` as well.
    pub missing: Vec<Range<Position>>,
    /// Whether records that were appended and not synced may have been lost since the last owner began.
    pub unsynced: Unsynced,
}

/// Whether a log may have lost records that were appended and not synced. An owner that may have lost
/// some waits until no lease can be left of which it knows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsynced {
    /// The log lives and dies with the operating system of its owner: they are lost if the
    /// [boot id](crate::BootId) is another one than before.
    #[default]
    AskBootId,
    /// None were lost, on whatever host the last owner was.
    Kept,
    /// Some may have been lost. Said at each recovery until an owner that was told has appended
    /// something.
    MayBeLost,
}

impl RecoveryReport {
    /// Number of records that were known to be durable and are lost.
    #[must_use]
    pub fn records_lost(&self) -> u64 {
        self.damaged.iter().map(|range| range.records).sum()
    }
}

/// A stretch of a log that was durable once and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// Where it starts.
    pub from: Position,
    /// Where the next readable record starts.
    pub to: Position,
    /// How many records it held, by the missing numbers.
    pub records: u64,
    /// Where the damaged bytes were set aside, for messages.
    pub kept_as: Option<String>,
}

/// Why [`Log::append`] or [`Log::begin_epoch`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// Somebody else owns the log under a higher epoch. Nothing was written.
    #[error("epoch {ours} was deposed by epoch {theirs}")]
    Fenced {
        /// The epoch given.
        ours: Epoch,
        /// The highest epoch begun.
        theirs: Epoch,
    },
    /// The expected position is not the log's tail. Nothing was written.
    #[error("append expected the tail at {expected}, it is at {tail}")]
    Position {
        /// What the caller expected.
        expected: Position,
        /// Where the tail is.
        tail: Position,
    },
    /// A record is larger than [`LogCapabilities::record_bytes_max`]. Nothing was written.
    #[error("a record of {len} bytes is larger than the log's limit of {max}")]
    TooLarge {
        /// Its payload's length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// There is no room, or no file can be opened for it; nothing was written, and that is certain
    /// also after a crash.
    #[error("the log is full")]
    Full(#[source] ReserveError),
    /// Unknown outcome: the instance is dead.
    #[error("appending to the log; whether the records are written is unknown")]
    Unknown(#[source] LogError),
}

/// Why room could not be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Not enough room; settling and deleting may make some.
    #[error("no room for {needed} more bytes, {free} are free")]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
    /// Nobody can open the file that it needs: too many are open. It passes by itself.
    #[error("no file can be opened for the log")]
    OutOfDescriptors(#[source] DiskError),
    /// Storage failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A log operation that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The storage was written by a newer version.
    #[error("{what} has format version {found}, this program reads up to {known}: use a newer one")]
    NewerFormat {
        /// Which file or table.
        what: String,
        /// Its version.
        found: u32,
        /// The highest version known.
        known: u32,
    },
    /// A file stands under the name of another: files were renamed, swapped or copied. Nothing was
    /// changed; to go on would lose what the other held.
    #[error(
        "{what} is {contents} under a wrong name: give the files their own names back, or move it out \
         of the folder if it is a copy"
    )]
    Misnamed {
        /// The file, and where it is.
        what: String,
        /// Which one it is by its contents.
        contents: String,
    },
    /// An earlier failure ended this instance; the first reason is kept.
    #[error("the log has stopped after an earlier failure: {reason}")]
    Stopped {
        /// The first failure, with its sources.
        reason: String,
    },
    /// Another owner has claimed the log. The instance is dead: every later append and sync says the same.
    #[error("another instance has taken the shard over, under epoch {by} or a later one")]
    Deposed {
        /// The lowest epoch that it can have.
        by: Epoch,
    },
    /// This log cannot do that; see [`LogCapabilities`].
    #[error("this log cannot {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// A remote engine failed, in its own words.
    #[error("{what}")]
    Remote {
        /// What was being done.
        what: String,
        /// The driver's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No record starts there, or it was trimmed or released.
    #[error("no record at {at}")]
    Missing {
        /// The position asked for.
        at: Position,
    },
    /// The record does not verify.
    #[error("the record at {at} is damaged: {what}")]
    Damaged {
        /// The position asked for.
        at: Position,
        /// What did not fit.
        what: &'static str,
    },
    /// Storage failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_gaps_and_payloads_apart() {
        let mut group = RecordGroup::new(4);
        assert_eq!(group.push(|buffer| buffer.extend_from_slice(b"one")), 3);
        assert_eq!(group.push(|_| {}), 0);
        assert_eq!(group.push(|buffer| buffer.extend_from_slice(b"three")), 5);
        let (gap, payload) = group.frame_mut(2);
        gap.copy_from_slice(b"GAP!");
        assert_eq!(payload, b"three");
        assert_eq!(group.payload(0), b"one");
        assert_eq!(group.payload(1), b"");
        assert_eq!(group.bytes(), b"\0\0\0\0one\0\0\0\0GAP!three");
        group.pop();
        assert_eq!(group.bytes(), b"\0\0\0\0one\0\0\0\0");
        group.clear(0);
        assert!(group.is_empty() && group.bytes().is_empty());
    }
}

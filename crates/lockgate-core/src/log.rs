//! The log of a shard: an ordered, checksummed sequence of records that one owner appends to.
//!
//! The traits are narrow, so that engines which already replicate (PostgreSQL, NATS JetStream,
//! Kafka) can stand behind them. A log knows nothing of queues; a record is bytes.

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use crate::{DiskError, Epoch, Position, StorageFailure};

/// The part of a log that anybody may use, also those who do not own it: a view, a standby, a
/// check. It cannot append, sync or give anything back, so no engine can serve over it.
///
/// All methods may block, so an async task must not call them.
pub trait LogSource: Send {
    /// Returns what this log can do. It stays the same for the life of the instance.
    fn capabilities(&self) -> LogCapabilities;

    /// Reads every surviving record that starts at `from` or behind it, and hands each to `visit`,
    /// in order and with its number. It tells a torn tail from damage in the middle, and leaves the
    /// log ready for [`begin_epoch`](Log::begin_epoch). Recovering twice without an append in
    /// between visits the same records.
    ///
    /// It removes and changes nothing that is stored, so the caller may still decide against what
    /// it found; [`apply_recovery`](Log::apply_recovery) makes the changes. A [`Log`] is
    /// [claimed](Log::claim) before it is read, so no earlier owner appends anything behind what
    /// was visited. Other sources fence nobody.
    ///
    /// `from` is the position of a complete snapshot, or zero for everything. The log neither reads
    /// nor judges what stands before it. New records get positions above `from`, also if everything
    /// behind it was lost.
    ///
    /// `lowest` is the epoch that the caller knows from that snapshot. The
    /// [report's](RecoveryReport::epoch) epoch is not lower, whatever the log has lost, and no
    /// lower epoch can be [begun](Log::begin_epoch).
    ///
    /// # Errors
    /// If storage fails or holds a newer format. Damaged records are no error: the report counts
    /// them.
    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError>;

    /// Returns the position of the next record.
    fn tail(&self) -> Position;

    /// Returns a handle that reads records, for any thread.
    fn reader(&self) -> Arc<dyn LogReader>;

    /// Returns all ranges whose space the log holds, in order. These can be
    /// [released](Log::release) sooner or later. Empty without
    /// [`LogCapabilities::releases_ranges`].
    fn ranges(&self) -> Vec<LogRange> {
        Vec::new()
    }

    /// Returns a name for the part of the log from `from` to before `to` that an operator
    /// understands, such as the name of a file.
    fn name_of(&self, from: Position, to: Position) -> String {
        format!("the log from {from} to {to}")
    }
}

/// An append-only sequence of records with exactly one owner.
///
/// # Life of an instance
/// 1. Call [`preview`](Log::preview), to refuse what cannot be served. Then call
///    [`claim`](Log::claim): from then on no earlier owner changes anything.
/// 2. Call [`recover`](LogSource::recover) once. It hands over, in order, every surviving record
///    from the position of the [snapshot](SnapshotStore) on that was loaded before.
/// 3. Call [`begin_epoch`](Log::begin_epoch) once. It fences every earlier owner.
/// 4. Call [`submit`](Log::submit) any number of times, always at [`tail`](LogSource::tail).
///
/// When `submit` returns, the group is on its way. [`progress`](Log::progress) tells how far groups
/// have come, and makes them durable. Reading goes through a handle of its own
/// ([`reader`](LogSource::reader)).
///
/// # Space
/// A record is needed for two things. Recovery folds it, until a snapshot covers it;
/// [`trim`](Log::trim) ends that. Readers read the payload in it, until the message is gone or was
/// moved forward; [`release`](Log::release) ends that. Positions that agree in all but their lowest
/// [`range_bits`](LogCapabilities::range_bits) bits form a *range*, the unit in which space comes
/// back.
///
/// # Failure
/// Any error of a submission except [`AppendError::Full`], and any [failure](LogProgress::failure)
/// that the progress reports, ends the instance. Every later append and sync fails, and only a new
/// instance over the same storage can tell what survived.
///
/// All methods may block, so an async task must not call them.
pub trait Log: LogSource {
    /// Looks at the log without claiming it, so that a start that must be refused fences nobody.
    /// Call it before [`claim`](Log::claim). Returns `None` if opening the log has already excluded
    /// every other owner.
    ///
    /// # Errors
    /// If storage fails.
    fn preview(&self) -> Result<Option<Preview>, LogError> {
        Ok(None)
    }

    /// Fences every earlier owner before anything is read. From then on only this instance appends,
    /// completes snapshots and gives space back. Call it before you list the snapshots: a live
    /// owner could complete others, and trim the log behind those that you listed.
    /// [`recover`](LogSource::recover) claims the log if nobody did. It does nothing if opening the
    /// log has already excluded every other owner.
    ///
    /// # Errors
    /// If storage fails.
    fn claim(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Does what the last [`recover`](LogSource::recover) has decided: cuts a torn tail, makes
    /// everything visited durable, and removes what is not needed any more. It does nothing if
    /// there is nothing to do, or if it was done.
    ///
    /// # Errors
    /// If storage fails; a later recovery finds the same.
    fn apply_recovery(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Takes ownership under `epoch`. Calls [`apply_recovery`](Log::apply_recovery) if nobody did.
    /// From then on no append under a lower epoch succeeds, on this instance or any other over the
    /// same storage.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if an epoch at least as high was begun before, or if another
    /// instance has recovered since this one did.
    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError>;

    /// Returns the number that the next record will have, see [`RecordStamp::number`].
    fn next_number(&self) -> u64;

    /// Returns where a record with `len` payload bytes will start if it is appended when the tail
    /// is `cursor`, and moves the cursor behind it. It is pure: with it the engine decides commands
    /// at the positions that their records will have, before anything is written.
    fn place(&self, cursor: &mut Position, len: usize) -> Position;

    /// Makes sure that the next `bytes` payload bytes in `records` records will fit. So a full disk
    /// shows before a command takes effect and not after. Work that makes room again may take from
    /// a reserve that other work may not take from, see [`Purpose`].
    ///
    /// # Errors
    /// [`ReserveError::Full`] changes nothing; try again later.
    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError>;

    /// Returns how much room there is, as last seen. It is cheap and asks nobody.
    fn space(&self) -> LogSpace;

    /// Sends the group's records on their way, in order, starting at `expected`, and moves the
    /// [tail](LogSource::tail) behind them. Once [`LogProgress::now`] says that they are written,
    /// they have reached the level of [`LogCapabilities::append_level`]. With some logs they have
    /// when this returns. Groups are written in the order in which they were submitted, and none
    /// behind a group that could not be written. It may write into the gaps of `group`.
    ///
    /// If as many groups are on their way as [`LogCapabilities::groups_in_flight`] says, it waits
    /// for one of them.
    ///
    /// After a crash a beginning of the group may survive. A single record survives whole or not at
    /// all.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if a higher epoch was begun, [`AppendError::Position`] if `expected`
    /// is not the tail: nothing was written. Any other error means that the outcome is unknown, and
    /// the instance is dead. [`LogProgress::failure`] reports failures that show later.
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

    /// Returns a handle that tells how far records have come and makes them durable, for any
    /// thread.
    fn progress(&self) -> Arc<dyn LogProgress>;

    /// Returns a handle for the work that keeps appends fast and brings space back, for another
    /// thread; `None` if there is no such work. Whoever takes the handle calls
    /// [`LogMaintenance::step`]. While nobody does, the log does that work when it needs it, and is
    /// only slower.
    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        None
    }

    /// Tells the log that no recovery will start before `before`, the position of a complete
    /// snapshot. A log that [releases ranges](LogCapabilities::releases_ranges) keeps earlier
    /// records readable until they are [released](Log::release). Any other log gives them back now.
    ///
    /// # Errors
    /// If storage fails. The log stays usable unless it says [`LogError::Stopped`] from then on.
    fn trim(&mut self, before: Position) -> Result<(), LogError>;

    /// Gives back the whole range that `range` lies in: nobody will read a record there again.
    /// Space may come back a little later. The caller has already made durable whatever took the
    /// place of these records.
    ///
    /// # Errors
    /// [`LogError::Unsupported`] without [`LogCapabilities::releases_ranges`], or if part of the
    /// range is not before the position of the last [`trim`](Log::trim). Otherwise if storage
    /// fails; the log stays usable unless it says [`LogError::Stopped`] from then on.
    fn release(&mut self, range: Position) -> Result<(), LogError>;
}

/// Says how far the records of a log have come. Neither position ever goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every record that starts before it has reached the [level of appends](LogCapabilities::append_level),
    /// and can be read.
    pub written: Position,
    /// Every record that starts before it has reached the [level of syncs](LogCapabilities::sync_level).
    pub durable: Position,
}

/// Tells how far the records of a log have come, and makes them durable. Any number of threads
/// share it.
pub trait LogProgress: Send + Sync {
    /// Returns how far the records have come. It is cheap and asks nobody.
    fn now(&self) -> Progress;

    /// Returns why the log goes no further. [`AppendError::Unknown`] means that nobody knows what
    /// became of records that were not written by then. Any other error means that none of them was
    /// written, nor ever will be.
    fn failure(&self) -> Option<AppendError>;

    /// Begins to make durable every record that was submitted before the call, also records that
    /// are not written yet. [`now`](Self::now) tells when they are. At most
    /// [`LogCapabilities::syncs_in_flight`] syncs may be on their way at once. If that is one, the
    /// sync has ended when this returns.
    ///
    /// # Errors
    /// Any error is final for the log instance.
    fn start_sync(&self) -> Result<(), LogError> {
        self.sync().map(drop)
    }

    /// Makes durable every record that was submitted before the call, and returns the position up
    /// to which that holds. The caller makes one call at a time, also of
    /// [`start_sync`](Self::start_sync).
    ///
    /// # Errors
    /// Any error is final for the log instance.
    fn sync(&self) -> Result<Position, LogError>;

    /// Waits until every submitted record that starts before `position` is written.
    ///
    /// # Errors
    /// The [failure](Self::failure), if it comes first.
    fn wait_written(&self, position: Position) -> Result<(), AppendError> {
        let _written_when_submitted = position;
        self.failure().map_or(Ok(()), Err)
    }

    /// Calls `watcher` whenever the progress changes or a failure comes, unless that was in a call
    /// of this handle or of [`Log::submit`]. The log calls it on a thread of its own; it must not
    /// wait. It may hear the same twice. There is one watcher at a time: the last.
    fn watch(&self, watcher: Watcher) {
        drop(watcher);
    }
}

/// The function that [`LogProgress::watch`] calls.
pub type Watcher = Box<dyn Fn() + Send + Sync>;

/// What a [`LogMaintenance::step`] leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// There is more to do now.
    More,
    /// There is nothing to do until the next append, trim or release, or the end of the
    /// [`pause`](LogMaintenance::pause).
    Done,
}

/// The work of a log that nobody waits for: it prepares storage before it is needed, gives back
/// what was released, and looks at the free space.
pub trait LogMaintenance: Send + Sync {
    /// Does one piece of work, small enough that nobody on the same disk waits long: it writes and
    /// syncs a MiB, or changes a few names. It is cheap when there is nothing to do. Ten calls a
    /// second are enough while much is appended.
    ///
    /// # Errors
    /// If storage fails or is full. The log stays usable and the step may be tried again later,
    /// unless the error is [`LogError::Stopped`] or [`LogError::Deposed`]: then the log is dead. An
    /// owner with nothing to append would not know it otherwise.
    fn step(&self) -> Result<StepOutcome, LogError>;

    /// Does all there is to do now.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn catch_up(&self) -> Result<(), LogError> {
        while self.step()? == StepOutcome::More {}
        Ok(())
    }

    /// Returns how long nobody need call [`step`](Self::step) after it said that there is no more
    /// to do, while nothing is appended, trimmed or released. Default: 1 s.
    fn pause(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Looks whether the storage that the log writes to is still where the next start looks for it;
    /// somebody may have removed or replaced it. For a log that several instances can open, it also
    /// looks whether the log is still this instance's. It costs a few system calls, or a question
    /// to a server. Call it a few times a minute, and before you give the log up.
    ///
    /// # Errors
    /// If the storage is gone: then the log is dead, and what only the removed part held is lost.
    /// No error means that it is there, or that nobody can find it out for now.
    fn check_storage(&self) -> Result<(), LogError> {
        Ok(())
    }
}

/// What [`Log::preview`] finds at little cost while somebody else owns the log.
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

    /// Reads several records, and returns for each, in that order, what [`read`](Self::read) says.
    /// A log reads at once what stands together. The list ends behind the first [`ReadError::Log`];
    /// the log did not try the rest.
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

    /// Returns the payloads of several records, in that order, if the log can read and verify all
    /// of them without waiting for a disk, another machine or a connection. Returns `None` if it
    /// cannot, or if something is wrong with any of them; [`read_all`](Self::read_all) finds out
    /// what.
    ///
    /// This is the only method that never blocks, so an async task may call it.
    fn try_read_all(&self, _at: &[Position]) -> Option<Vec<Bytes>> {
        None
    }

    /// Returns where the record with this [number](RecordStamp::number) starts; `None` if there is
    /// no such record yet or any more, or if it is damaged. It may read as much as a range holds.
    ///
    /// # Errors
    /// If storage fails.
    fn locate(&self, number: u64) -> Result<Option<Position>, ReadError>;

    /// Waits until a record that starts at `beyond` or behind it is durable, for those who follow
    /// the log. It waits no longer than `wait`, and not at all if there will never be such a
    /// record. Returns up to where records are durable. A follower may go that far: a power cut may
    /// still take back what is behind it. For a view of a standby it is where the view ends.
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

/// The storage of a shard: a log, and the snapshots from which its recovery starts. They may be in
/// one place or in two.
pub struct Storage {
    /// The shard's log.
    pub log: Box<dyn Log>,
    /// The snapshots beside that log.
    pub snapshots: Arc<dyn SnapshotStore>,
}

/// The snapshots beside a log. Each is a sequence of pieces, and either complete or not there. The
/// caller decides what is in a piece.
pub trait SnapshotStore: Send + Sync {
    /// Returns the positions of all complete snapshots, newest first.
    ///
    /// # Errors
    /// If storage fails.
    fn list(&self) -> Result<Vec<Position>, LogError>;

    /// Opens the snapshot of this position.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if there is none, [`ReadError::Damaged`] if its beginning does not
    /// verify, [`LogError::NewerFormat`] in [`ReadError::Log`] if a newer version wrote it.
    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError>;

    /// Removes the snapshot of this position. Does nothing if there is none.
    ///
    /// # Errors
    /// If storage fails.
    fn remove(&self, at: Position) -> Result<(), LogError>;

    /// Begins a snapshot of the state after every record that starts before `at`, which is the
    /// log's tail; the next record will have the number `next_number`. Only the log's owner calls
    /// it, under its epoch. It does no I/O yet; the writer does, on whatever thread uses it.
    ///
    /// # Errors
    /// [`LogError::Unsupported`] before an epoch was begun, and from a store that is only read.
    fn begin(&self, at: Position, next_number: u64) -> Result<Box<dyn SnapshotWriter>, LogError>;

    /// Takes the snapshot of this position out of use for good, durably: the shard went on from an
    /// older state, which this snapshot no longer fits. Its bytes stay for an operator if the store
    /// can keep them apart. Does nothing if there is none.
    ///
    /// # Errors
    /// If storage fails.
    fn set_aside(&self, at: Position) -> Result<(), LogError> {
        self.remove(at)
    }
}

/// Writes one snapshot. Dropping it before [`finish`](Self::finish) leaves nothing behind.
pub trait SnapshotWriter: Send {
    /// Returns the snapshot's position. The snapshot holds the state after all records before it.
    fn position(&self) -> Position;

    /// Adds a piece of at most [`LogCapabilities::record_bytes_max`] bytes.
    ///
    /// # Errors
    /// If storage fails, or is full: then only the snapshot is lost.
    fn write(&mut self, piece: &[u8]) -> Result<(), LogError>;

    /// Makes the snapshot complete and durable in one step: after a crash it is there whole or not
    /// at all. Call it only when every record before its position is durable.
    ///
    /// # Errors
    /// If storage fails, or is full: then only the snapshot is lost.
    fn finish(self: Box<Self>) -> Result<(), LogError>;
}

/// Reads one snapshot.
pub trait SnapshotReader: Send {
    /// Returns the bytes of all pieces, to plan with.
    fn total_bytes(&self) -> u64;

    /// Returns the next piece, verified; `None` behind the last one.
    ///
    /// # Errors
    /// [`ReadError::Damaged`] if it does not verify or is missing.
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
    /// The record's number: one more than that of the record before it, whatever the epochs. So a
    /// gap tells how many records are missing.
    pub number: u64,
    /// The epoch it was appended under.
    pub epoch: Epoch,
}

/// What a log can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCapabilities {
    /// The bytes that a [`RecordGroup`] leaves free in front of each record, for the log's own
    /// header.
    pub gap: usize,
    /// The largest payload of one record, in bytes.
    pub record_bytes_max: usize,
    /// The level an append has reached when it returns.
    pub append_level: crate::Level,
    /// The level a sync reaches: [`Level::Disk`](crate::Level::Disk) or higher.
    pub sync_level: crate::Level,
    /// How many groups may be on their way at once: submitted and not written.
    pub groups_in_flight: usize,
    /// How many syncs may be on their way at once.
    pub syncs_in_flight: usize,
    /// Whether [`Log::release`] works.
    pub releases_ranges: bool,
    /// Positions that differ only in this many of their lowest bits are in one range.
    pub range_bits: u32,
}

/// Says what room is reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For work that adds to the log's live contents. A full log refuses it.
    Growth,
    /// For work by which a full log becomes less full: leases, settles, purges. A reserve is kept
    /// for it.
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
    /// Whether the room is enough.
    pub state: SpaceState,
    /// Bytes the log takes, its snapshots and what it keeps ready included.
    pub used_bytes: u64,
    /// How many of these bytes are ready for new records.
    pub ready_bytes: u64,
    /// Bytes of storage nobody has taken yet.
    pub free_bytes: u64,
}

/// Says whether a log has enough room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceState {
    /// There is enough room.
    #[default]
    Normal,
    /// The room is below the low mark. An operator should look.
    Low,
    /// The room is below the stop mark. The log refuses [`Purpose::Growth`].
    Full,
}

impl SpaceState {
    /// Returns the word for it wherever people read it: `normal`, `low` or `full`.
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

    /// Takes the last record out again before it was placed. The engine does this with a record
    /// that turned out too large.
    pub fn pop(&mut self) {
        if let Some(start) = self.starts.pop() {
            self.buffer.truncate(start);
        }
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Tells whether the group has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the size of the gap in front of each record, in bytes.
    #[must_use]
    pub fn gap(&self) -> usize {
        self.gap
    }

    /// Returns all gaps and payloads, back to back.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns where the record's gap and payload stand in [`bytes`](Self::bytes).
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

    /// Returns the record's gap and its payload; the log writes its header into the gap.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn frame_mut(&mut self, index: usize) -> (&mut [u8], &mut [u8]) {
        let frame = self.frame(index);
        self.buffer[frame].split_at_mut(self.gap)
    }

    /// Returns the record's payload.
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

/// Says what recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Records handed over.
    pub records: u64,
    /// The bytes of those records and of what the log put around them. Other bytes that recovery
    /// read are not counted, such as blocks that were made ready and not used.
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
    /// Parts of the log that are missing altogether, such as a file that somebody moved away, and
    /// that held durable records or may have. Each goes from the first position of a range to
    /// before that of another. `damaged` counts what they are known to have held as well.
    pub missing: Vec<Range<Position>>,
    /// Whether records that were appended and not synced may have been lost since the last owner began.
    pub unsynced: Unsynced,
}

/// Says whether a log may have lost records that were appended and not synced. An owner that may
/// have lost some waits until every lease that it may not know of has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsynced {
    /// The log lives and dies with its owner's operating system: unsynced records are lost if the
    /// [boot id](crate::BootId) differs from the one before.
    #[default]
    AskBootId,
    /// No records were lost, on whatever host the last owner was.
    Kept,
    /// Some records may have been lost. Every recovery says so, until an owner that was told has
    /// appended something.
    MayBeLost,
}

impl RecoveryReport {
    /// Returns how many records were known to be durable and are lost.
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

/// Says why [`Log::append`] or [`Log::begin_epoch`] failed.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// There is no room, or no file can be opened. Nothing was written; that is certain, also after
    /// a crash.
    #[error("the log is full")]
    Full(#[source] ReserveError),
    /// Nobody knows whether the records are written. The instance is dead.
    #[error("appending to the log; whether the records are written is unknown")]
    Unknown(#[source] LogError),
}

/// Says why room could not be reserved.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Not enough room; settling and deleting may make some.
    #[error("no room for {needed} more bytes, {free} are free")]
    Full {
        /// The bytes that were asked for.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// The log needs to open a file, but too many files are open. This passes by itself.
    #[error("no file can be opened for the log")]
    OutOfDescriptors(#[source] DiskError),
    /// Storage failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A log operation that failed.
#[derive(Clone, Debug, thiserror::Error)]
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
        /// The first failure.
        reason: StorageFailure,
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
        source: StorageFailure,
    },
}

/// Why a record could not be read.
#[derive(Clone, Debug, thiserror::Error)]
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

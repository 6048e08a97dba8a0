//! Starts: recovers a log and makes a driver that serves it.

use lockgate_core::{
    BootId, Epoch, Incarnation, Log, LogCapabilities, LogError, LogSource, MachineTime, Millis,
    Now, Position, ReadError, RecoveryReport, ShardId, SnapshotStore, Storage, Term, Unsynced,
    WallTime, with_sources,
};
use lockgate_machine::{
    BatchDecoder, BatchRecord, ClockState, DecodeError, Effect, EngineCommand, ImageError,
    ImageLoader, ListQueues, Machine, MachineLimits, Query, QueryReply, QueueDescription,
    QueuePage, RecordBatch, decode_record,
};

use crate::{
    Driver, EngineOptions, StartError, StartReport, Ticket, WithoutQueue,
    maintenance::Plan,
    missing::{Lacking, MissingPart},
    sync::{Instant, mpsc, thread},
};

/// What a start brings along: readings of the clock, and randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The wall clock's reading.
    pub wall: WallTime,
    /// Time since boot.
    pub since_boot: Millis,
    pub boot_id: BootId,
    /// Drawn for this start.
    pub incarnation: Incarnation,
    /// Drawn for this start; the shard keeps the first it was given.
    pub secret: [u8; 32],
}

impl<T: Ticket> Driver<T> {
    /// Recovers the shard that is kept in `storage` and begins a new term, synced before this returns.
    ///
    /// Recovering is loading the newest snapshot that is whole and folding all records behind it
    /// again: what was ever decided is there, and nothing is decided anew. A thread of its own
    /// reads and decodes the records meanwhile.
    ///
    /// `begin` is called once, when the log is claimed. An owner before this one goes on writing until then, and the
    /// clock must not be read before the last instant it writes down.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn recover(
        storage: impl Into<Storage>,
        options: &EngineOptions,
        begin: impl FnOnce() -> Beginning,
    ) -> Result<(Self, StartReport), StartError> {
        let Storage { mut log, snapshots } = storage.into();
        look_first(&*log, &*snapshots, options)?;
        log.claim().map_err(StartError::Recover)?;
        let beginning = begin();
        let survey = Survey::of(&mut *log, &*snapshots, options)?;
        // From here on the start changes something.
        log.apply_recovery().map_err(StartError::Recover)?;
        for &at in &survey.aside {
            let aside = snapshots.set_aside(at);
            aside.map_err(StartError::Recover)?;
        }
        let FirstCommand {
            command,
            term,
            clock_offset,
            now,
        } = survey.first_command(&beginning);
        log.begin_epoch(term.epoch).map_err(StartError::BeginTerm)?;
        let plan = Plan::new(
            options.snapshot_bytes_min,
            log.capabilities().range_bits,
            survey.snapshots_known(),
            survey.unreadable.iter().map(|(at, _)| *at).collect(),
            survey.recovered.bytes,
            log.space().used_bytes,
        );
        let mut report = survey.report(term);
        let Survey {
            machine,
            lacking,
            recovered,
            started,
            ..
        } = survey;
        let storage = Storage { log, snapshots };
        let mut driver = Self::new(machine, storage, term.epoch, clock_offset, plan, options);
        driver.begin(&command, now)?;
        driver.drop_lost(&lacking.lost, now)?;
        // Also for what was recovered: after a mere kill it may be in the system's cache only.
        let durable = driver.log.progress().sync().map_err(StartError::Sync)?;
        driver.reached(durable);
        if !recovered.missing.is_empty() {
            driver.leave_behind(now);
        }
        // So that nobody takes a disk for empty before maintenance has looked.
        driver.maintenance.space = driver.log.space();

        report.count(&driver.machine, now);
        report.duration = started.elapsed();
        Ok((driver, report))
    }

    /// Machine time minus time since boot, for this term.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.clock_offset
    }

    /// The machine time of this term at `since_boot`.
    #[must_use]
    pub fn machine_time(&self, since_boot: Millis) -> MachineTime {
        machine_time(self.clock_offset, since_boot)
    }

    /// Takes a snapshot of what a start has made of a log with missing records, so that the next start begins
    /// behind them and need not be told again to do without. If it cannot be taken, the next start is
    /// refused as this one would have been.
    fn leave_behind(&mut self, now: Now) {
        if let Err(error) = self.snapshot_now(now) {
            tracing::warn!(
                error = with_sources(&error),
                "no snapshot could be taken behind the missing part of the log: until there is one, each \
                 start has to be told to accept the loss"
            );
        }
    }

    /// Visits all queues, a page at a time.
    pub(crate) fn for_each_queue(&self, now: Now, visit: impl FnMut(QueueDescription)) {
        for_each_queue(&self.machine, now, visit);
    }
}

/// Visits all queues, a page at a time.
pub(crate) fn for_each_queue(machine: &Machine, now: Now, mut visit: impl FnMut(QueueDescription)) {
    let mut after = None;
    loop {
        let page = Query::ListQueues(ListQueues {
            prefix: String::new(),
            after: after.take(),
            limit: 1_000,
        });
        let Ok(QueryReply::Queues(QueuePage { queues, more })) = machine.query(&page, now) else {
            return;
        };
        after = queues.last().map(|queue| queue.name.clone());
        queues.into_iter().for_each(&mut visit);
        if !more || after.is_none() {
            return;
        }
    }
}

impl StartReport {
    fn count(&mut self, machine: &Machine, now: Now) {
        for_each_queue(machine, now, |queue| {
            let counts = &queue.counts;
            self.queues += 1;
            self.messages += counts.ready + counts.in_flight + counts.delayed;
            self.possibly_lost += queue.totals.possibly_lost;
        });
    }
}

/// What a start would make of a shard. See [`try_start`].
#[derive(Debug)]
pub struct Trial {
    /// The state that it would serve.
    pub machine: Machine,
    /// What it would tell.
    pub report: StartReport,
    /// Behind the last record there is.
    pub tail: Position,
}

/// Finds out what [`Driver::recover`] would make of a shard that is only looked at: writes nothing, and
/// deposes nobody.
///
/// # Errors
/// With what the start would be refused.
pub fn try_start(
    source: &mut dyn LogSource,
    snapshots: &dyn SnapshotStore,
    options: &EngineOptions,
    beginning: &Beginning,
) -> Result<Trial, StartError> {
    let survey = Survey::of(source, snapshots, options)?;
    let FirstCommand {
        command, term, now, ..
    } = survey.first_command(beginning);
    let mut report = survey.report(term);
    let mut machine = survey.machine;
    let tail = source.tail();
    let lost = survey.lacking.lost.iter();
    let dropped = lost.map(|&(queue, sequence)| EngineCommand::Damaged { queue, sequence });
    for command in std::iter::once(command).chain(dropped) {
        let decision = machine.decide(&command, now);
        machine.fold(&decision.effects, tail);
    }
    report.count(&machine, now);
    report.duration = survey.started.elapsed();
    Ok(Trial {
        machine,
        report,
        tail,
    })
}

/// Refuses a start on what somebody else may own, before that one is deposed, as far as little reading tells:
/// another shard's number, what a newer version wrote lately, snapshots of which none can be begun to load, parts of the log that are
/// not there. The rest is found out when the log is claimed; what is refused here would be refused then.
fn look_first(
    log: &dyn Log,
    store: &dyn SnapshotStore,
    options: &EngineOptions,
) -> Result<(), StartError> {
    let Some(preview) = log.preview().map_err(StartError::Recover)? else {
        return Ok(());
    };
    let limits = limits(&log.capabilities());
    let mut held = None;
    let mut listed = store.list().map_err(StartError::Recover)?;
    let from = loop {
        let mut unreadable = Vec::new();
        let mut from = None;
        for &at in &listed {
            match begin_loading(store, at, &limits) {
                Ok(shard) => (from, held) = (Some(at), shard),
                // Whether it can be loaded is not known.
                Err(LoadError::Read(ReadError::Log(error)))
                    if !matches!(error, LogError::NewerFormat { .. }) =>
                {
                    return Ok(());
                }
                Err(error) => unreadable.push((at, refusing(at, error)?)),
            }
            if from.is_some() {
                break;
            }
        }
        let from = from.unwrap_or_default();
        if from >= preview.trimmed {
            break from;
        }
        // The owner may have removed what was listed, when there were newer ones.
        let now = store.list().map_err(StartError::Recover)?;
        if now == listed {
            return Err(no_snapshot(preview.trimmed, unreadable));
        }
        listed = now;
    };
    for record in preview
        .newest
        .iter()
        .filter(|record| record.position >= from)
    {
        match decode_record(&record.payload) {
            Ok(effects) => {
                for effect in effects {
                    if let Effect::TermStarted { term, .. } = effect {
                        held = Some(term.shard);
                    }
                }
            }
            Err(error @ DecodeError::NewerFormat { .. }) => {
                return Err(StartError::NewerFormat {
                    at: record.position,
                    source: error.into(),
                });
            }
            // What cannot be decoded is counted, by the start.
            Err(_) => {}
        }
    }
    if let Some(held) = held.filter(|held| *held != options.shard) {
        let given = options.shard;
        return Err(StartError::OtherShard { held, given });
    }
    if preview.missing.is_empty() || options.accept_loss {
        return Ok(());
    }
    let parts = preview.missing.iter();
    let parts =
        parts.map(|range| MissingPart::of_records(range, log.name_of(range.start, range.end)));
    Err(StartError::Missing {
        parts: parts.collect(),
        without_queue: WithoutQueue::default(),
    })
}

/// Loads the first piece of a snapshot, which tells the shard's number.
fn begin_loading(
    store: &dyn SnapshotStore,
    at: Position,
    limits: &MachineLimits,
) -> Result<Option<ShardId>, LoadError> {
    let mut loader = ImageLoader::new(limits.clone());
    match store.open(at)?.next_piece()? {
        Some(piece) => loader.piece(&piece)?,
        // There is none: it says what is wrong.
        None => return Ok(loader.finish()?.shard()),
    }
    Ok(loader.shard())
}

/// The reason for which a snapshot cannot be loaded, unless the start is refused for it.
fn refusing(at: Position, error: LoadError) -> Result<String, StartError> {
    match error {
        LoadError::Read(ReadError::Log(source @ LogError::NewerFormat { .. })) => {
            Err(StartError::Recover(source))
        }
        LoadError::Image(error @ ImageError::NewerFormat { .. }) => {
            let source = error.into();
            Err(StartError::NewerFormat { at, source })
        }
        error => Ok(with_sources(&error)),
    }
}

fn no_snapshot(trimmed: Position, unreadable: Vec<(Position, String)>) -> StartError {
    let explained = unreadable.into_iter();
    StartError::NoSnapshot {
        trimmed,
        unreadable: explained
            .map(|(at, reason)| format!("{at}: {reason}"))
            .collect(),
    }
}

fn limits(capabilities: &LogCapabilities) -> MachineLimits {
    MachineLimits {
        log_level: capabilities.sync_level,
        range_bits: capabilities.range_bits,
        ..MachineLimits::default()
    }
}

/// What there is to start on, found without changing anything.
struct Survey {
    started: Instant,
    machine: Machine,
    /// The snapshot that was loaded, and its bytes.
    at: Option<Position>,
    snapshot_bytes: u64,
    snapshots: Vec<Position>,
    unreadable: Vec<(Position, String)>,
    /// Of these, the ones that must never be loaded again.
    aside: Vec<Position>,
    undecodable: u64,
    ended: bool,
    recovered: RecoveryReport,
    lacking: Lacking,
    without_queue: WithoutQueue,
    shard: ShardId,
}

/// The command with which a term begins.
struct FirstCommand {
    command: EngineCommand,
    term: Term,
    clock_offset: i64,
    now: Now,
}

impl Survey {
    fn of(
        source: &mut dyn LogSource,
        store: &dyn SnapshotStore,
        options: &EngineOptions,
    ) -> Result<Self, StartError> {
        let started = Instant::now();
        let limits = limits(&source.capabilities());
        let loaded = load_snapshot(store, &limits)?;
        let from = loaded.at.unwrap_or_default();
        let snapshots = store.list().map_err(StartError::Recover)?;
        let mut machine = loaded.machine;
        let mut folding = Folding::of(&machine);
        let decoder = BatchDecoder::new(&machine);
        let lowest = machine.term().epoch;
        let recovered = read_ahead(source, (from, lowest), decoder, |records| {
            folding.fold(&mut machine, records);
        })
        .map_err(StartError::Recover)?;
        if from < recovered.trimmed {
            return Err(no_snapshot(recovered.trimmed, loaded.unreadable));
        }
        if let Some(held) = machine.shard()
            && held != options.shard
        {
            let given = options.shard;
            return Err(StartError::OtherShard { held, given });
        }
        if folding.begins_compacted && recovered.damaged.is_empty() {
            return Err(StartError::UnfinishedRestore);
        }
        if let Some((at, error)) = folding.newer {
            let source = error.into();
            return Err(StartError::NewerFormat { at, source });
        }
        let is_all_known = recovered.damaged.is_empty() && folding.undecodable == 0;
        let lacking = Lacking::find(&machine, source, &recovered, is_all_known);
        let without_queue = if is_all_known {
            WithoutQueue::default()
        } else {
            let (ignored, last) = (&folding.ignored, folding.last);
            WithoutQueue::count(&machine, &*source.reader(), ignored, last)
                .map_err(StartError::Recover)?
        };
        let parts = lacking.certain();
        if !parts.is_empty() && !options.accept_loss {
            return Err(StartError::Missing {
                parts,
                without_queue,
            });
        }
        // A snapshot that could not be loaded may be loadable the next time. What it was made of
        // and is lost from the log since would then be there again, under what this term builds
        // without it.
        let is_told_apart = |at: Position| {
            folding.undecodable > 0 || recovered.damaged.iter().any(|range| range.from < at)
        };
        if let Some((at, error)) = loaded.unread
            && is_told_apart(at)
        {
            // It may be whole, and hold all that is lost from the source.
            return Err(StartError::Recover(error));
        }
        let aside = loaded.unreadable.iter().map(|(at, _)| *at);
        let aside = aside.filter(|at| is_told_apart(*at)).collect();
        Ok(Self {
            started,
            machine,
            at: loaded.at,
            snapshot_bytes: loaded.bytes,
            snapshots,
            unreadable: loaded.unreadable,
            aside,
            undecodable: folding.undecodable,
            ended: folding.ended,
            recovered,
            lacking,
            without_queue,
            shard: options.shard,
        })
    }

    /// The snapshots up to the one that was loaded.
    fn snapshots_known(&self) -> Vec<Position> {
        let from = self.at.unwrap_or_default();
        let known = self.snapshots.iter().copied();
        known.filter(|&at| at <= from).collect()
    }

    fn first_command(&self, beginning: &Beginning) -> FirstCommand {
        let term = Term {
            shard: self.shard,
            epoch: self.recovered.epoch.next(),
            incarnation: beginning.incarnation,
        };
        let last_clock = self.machine.clock_state();
        let clock_offset = clock_offset(last_clock, beginning);
        FirstCommand {
            command: EngineCommand::StartTerm {
                term,
                boot_id: boot_id(self.recovered.unsynced, last_clock.boot_id, beginning),
                clock_offset,
                secret: beginning.secret,
            },
            term,
            clock_offset,
            now: Now {
                wall: beginning.wall,
                machine: machine_time(clock_offset, beginning.since_boot),
            },
        }
    }

    /// What there is to tell but for the counts of the queues.
    fn report(&self, term: Term) -> StartReport {
        StartReport {
            term,
            snapshot: self.at,
            snapshot_bytes: self.snapshot_bytes,
            snapshots_unreadable: self.unreadable.clone(),
            records: self.recovered.records,
            bytes: self.recovered.bytes,
            damaged: self.recovered.damaged.clone(),
            missing: self.lacking.missing.clone(),
            cut_short: self.lacking.cut_short.clone(),
            without_queue: self.without_queue,
            undecodable: self.undecodable,
            tail_bytes_cut: self.recovered.tail_bytes_cut,
            // A term ends behind its last snapshot. With nothing there, the one that took the
            // snapshot did not come to its end.
            crashed: (self.recovered.records > 0 || self.at.is_some()) && !self.ended,
            ..StartReport::default()
        }
    }
}

/// The state of the newest snapshot that can be loaded, or of none.
struct Loaded {
    machine: Machine,
    at: Option<Position>,
    bytes: u64,
    /// Newer ones that could not be loaded.
    unreadable: Vec<(Position, String)>,
    /// The newest of them that storage did not hand over: nobody knows what is in it.
    unread: Option<(Position, LogError)>,
}

fn load_snapshot(store: &dyn SnapshotStore, limits: &MachineLimits) -> Result<Loaded, StartError> {
    let mut unreadable = Vec::new();
    let mut unread = None;
    for at in store.list().map_err(StartError::Recover)? {
        match load(store, at, limits) {
            Ok((machine, bytes)) => {
                return Ok(Loaded {
                    machine,
                    at: Some(at),
                    bytes,
                    unreadable,
                    unread,
                });
            }
            Err(LoadError::Read(ReadError::Log(source @ LogError::NewerFormat { .. }))) => {
                return Err(StartError::Recover(source));
            }
            // It says nothing about the snapshot, and an older one needs a file as well.
            Err(LoadError::Read(ReadError::Log(LogError::Disk(error))))
                if error.is_out_of_descriptors() =>
            {
                return Err(StartError::Recover(error.into()));
            }
            Err(LoadError::Image(error @ ImageError::NewerFormat { .. })) => {
                let source = error.into();
                return Err(StartError::NewerFormat { at, source });
            }
            Err(error) => {
                let reason = with_sources(&error);
                tracing::error!(
                    position = %at,
                    error = reason,
                    "a snapshot cannot be loaded"
                );
                unreadable.push((at, reason));
                if let LoadError::Read(ReadError::Log(error)) = error {
                    unread.get_or_insert((at, error));
                }
            }
        }
    }
    Ok(Loaded {
        machine: Machine::new(limits.clone()),
        at: None,
        bytes: 0,
        unreadable,
        unread,
    })
}

/// Why one snapshot cannot be loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// How many batches of records are read ahead.
const AHEAD: usize = 4;

fn load(
    store: &dyn SnapshotStore,
    at: Position,
    limits: &MachineLimits,
) -> Result<(Machine, u64), LoadError> {
    let mut reader = store.open(at)?;
    let bytes = reader.total_bytes();
    let mut loader = ImageLoader::new(limits.clone());
    while let Some(piece) = reader.next_piece()? {
        loader.piece(&piece)?;
    }
    Ok((loader.finish()?, bytes))
}

/// Bytes of records that are handed at a time from the thread that reads and decodes to the one that
/// folds.
const BATCH_BYTES: usize = 256 << 10;

/// Recovers the log on a thread of its own, which decodes too, and folds on this one.
fn read_ahead(
    log: &mut dyn LogSource,
    (from, lowest): (Position, Epoch),
    mut decoder: BatchDecoder,
    mut fold: impl FnMut(&RecordBatch),
) -> Result<RecoveryReport, LogError> {
    let (sender, batches) = mpsc::sync_channel::<RecordBatch>(AHEAD);
    // What was folded goes back, for the memory of the next ones.
    let (folded, done) = mpsc::channel::<RecordBatch>();
    thread::scope(|scope| {
        let recovering = scope.spawn(move || {
            let outcome = log.recover(from, lowest, &mut |record, _| {
                decoder.push(&record.payload, record.position);
                if decoder.bytes() >= BATCH_BYTES {
                    let next = done.try_recv().unwrap_or_default();
                    // The other side takes all there is.
                    let _taken = sender.send(decoder.take(next));
                }
            });
            let _taken = sender.send(decoder.take(RecordBatch::default()));
            outcome
        });
        for batch in batches {
            fold(&batch);
            // At the end nobody takes it.
            let _taken = folded.send(batch);
        }
        match recovering.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

pub(crate) fn machine_time(offset: i64, since_boot: Millis) -> MachineTime {
    MachineTime(since_boot.saturating_add_signed(offset))
}

/// What the term records as its boot: leases are held back if storage is in another life than at `last`.
fn boot_id(unsynced: Unsynced, last: BootId, beginning: &Beginning) -> BootId {
    match unsynced {
        Unsynced::AskBootId => beginning.boot_id,
        Unsynced::Kept => beginning.boot_id.with_storage_of(last),
        // Drawn for this start, so that it is a life that no other term was in.
        Unsynced::MayBeLost => beginning
            .boot_id
            .with_storage(beginning.incarnation.0.to_le_bytes()),
    }
}

/// Within one boot machine time goes on as if nothing had been, so that a lease runs on while the
/// process is down. After a reboot nobody knows how long it was: machine time goes on from the last
/// logged instant, which makes leases last longer than promised, never shorter.
fn clock_offset(last: ClockState, beginning: &Beginning) -> i64 {
    let kept = machine_time(last.clock_offset, beginning.since_boot);
    if last.boot_id.has_clock_of(beginning.boot_id) && kept >= last.now.machine {
        last.clock_offset
    } else {
        last.now
            .machine
            .0
            .wrapping_sub(beginning.since_boot)
            .cast_signed()
    }
}

/// What there is to know of the records beside what they do.
#[derive(Default)]
struct Folding {
    undecodable: u64,
    /// The last record ends a term in good order.
    ended: bool,
    /// A message lives here that no owner ever accepted: what a restore left that did not come to
    /// its snapshot.
    begins_compacted: bool,
    newer: Option<(Position, DecodeError)>,
    /// The record folded last.
    last: Position,
    /// The records with an effect that named something that is not there, in order.
    ignored: Vec<Position>,
    /// Such effects so far, those before the snapshot included.
    effects_ignored: u64,
}

impl Folding {
    fn of(machine: &Machine) -> Self {
        Self {
            effects_ignored: machine.effects_ignored(),
            ..Self::default()
        }
    }

    fn fold(&mut self, machine: &mut Machine, records: &RecordBatch) {
        machine.fold_batch(records, |machine, record| self.look(machine, record));
        self.note_ignored(machine);
    }

    /// Sees the machine after the last record was folded.
    fn note_ignored(&mut self, machine: &Machine) {
        let effects_ignored = machine.effects_ignored();
        if effects_ignored > self.effects_ignored {
            self.effects_ignored = effects_ignored;
            self.ignored.push(self.last);
        }
    }

    /// Sees a record, and the machine before it is folded.
    fn look(&mut self, machine: &Machine, record: BatchRecord<'_>) {
        self.note_ignored(machine);
        let position = record.position;
        self.last = position;
        self.ended = matches!(record.only_effect, Some(Effect::TermEnded { .. }));
        self.begins_compacted |=
            matches!(record.only_effect, Some(Effect::Compacted(_))) && machine.shard().is_none();
        match record.error {
            None => {}
            Some(error @ DecodeError::NewerFormat { .. }) => {
                self.newer.get_or_insert_with(|| (position, error.clone()));
            }
            // Its checksum is good, so it was written like this: by a fault of ours or of memory.
            // Stopping here would hold everything else hostage.
            Some(error) => {
                self.undecodable += 1;
                tracing::error!(
                    %position,
                    error = error as &dyn std::error::Error,
                    "skipped a record that makes no sense"
                );
            }
        }
    }
}

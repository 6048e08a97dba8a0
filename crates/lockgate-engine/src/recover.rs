//! Starts: recovers a log and makes a driver for it.

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
    Driver, EngineOptions, SnapshotError, StartError, StartReport, Ticket, WithoutQueue,
    maintenance::Plan,
    missing::{Lacking, MissingPart},
    sync::{Instant, mpsc, thread},
    unique_ids,
};

/// The inputs of a start: the clock's readings, and randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The wall clock's reading.
    pub wall: WallTime,
    /// Time since boot.
    pub since_boot: Millis,
    pub boot_id: BootId,
    /// Drawn for this start.
    pub incarnation: Incarnation,
    /// Drawn for this start; the shard keeps the first one that it was given.
    pub secret: [u8; 32],
}

impl<T: Ticket> Driver<T> {
    /// Recovers the shard in `storage` and begins a new term, synced before this returns.
    ///
    /// Recovery loads the newest intact snapshot and folds all records behind it again. Everything
    /// that was ever decided is in them, and nothing is decided anew. Another thread reads and
    /// decodes the records meanwhile.
    ///
    /// `begin` is called once, when the log is claimed. The previous owner may write until then,
    /// and the clock must not be read before the last instant in its records.
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
        unique_ids::open(&survey.machine, options)?;
        // From here on the start changes the log.
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
        // Also for recovered records: after a mere kill they may only be in the system's cache.
        let durable = driver.log.progress().sync().map_err(StartError::Sync)?;
        driver.reached(durable);
        if !recovered.missing.is_empty() {
            driver.leave_behind(now);
        }
        // So that the space is known before maintenance checks it.
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

    /// Takes a snapshot after a start on a log with missing records, so that the next start begins
    /// behind them and needs no permission to do without. If the snapshot fails, the next start is
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
            after,
            limit: 1_000,
        });
        let Ok(QueryReply::Queues(QueuePage { queues, next })) = machine.query(&page, now) else {
            return;
        };
        queues.into_iter().for_each(&mut visit);
        if next.is_none() {
            return;
        }
        after = next;
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

/// The result of a trial start. See [`try_start`].
#[derive(Debug)]
pub struct Trial {
    /// The state that it would serve.
    pub machine: Machine,
    /// The report that it would give.
    pub report: StartReport,
    /// The end of the last record.
    pub tail: Position,
}

/// Finds out what [`Driver::recover`] would do with a shard: writes nothing, and deposes nobody.
///
/// # Errors
/// The error of the start.
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
    for command in std::iter::once(command).chain(survey.lacking.lost) {
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

/// Refuses a start before it deposes a possible other owner, as far as a little reading shows a
/// reason: another shard's number, recent records of a newer version, no snapshot that begins to
/// load, or missing parts of the log. The rest is found out when the log is claimed. What is
/// refused here would also be refused then.
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
                Err(SnapshotError::Read(ReadError::Log(error)))
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
        // The owner may have removed listed snapshots because it has newer ones.
        let now = store.list().map_err(StartError::Recover)?;
        if now == listed {
            return Err(StartError::NoSnapshot {
                trimmed: preview.trimmed,
                unreadable,
            });
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
            // The start itself counts what cannot be decoded.
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

/// Loads the first piece of a snapshot, which contains the shard's number.
fn begin_loading(
    store: &dyn SnapshotStore,
    at: Position,
    limits: &MachineLimits,
) -> Result<Option<ShardId>, SnapshotError> {
    let mut loader = ImageLoader::new(limits.clone());
    match store.open(at)?.next_piece()? {
        Some(piece) => loader.piece(&piece)?,
        // The snapshot is empty; the error says what is wrong.
        None => return Ok(loader.finish()?.shard()),
    }
    Ok(loader.shard())
}

/// Why a snapshot cannot be loaded, unless the start is refused for it.
fn refusing(at: Position, error: SnapshotError) -> Result<SnapshotError, StartError> {
    match error {
        SnapshotError::Read(ReadError::Log(source @ LogError::NewerFormat { .. })) => {
            Err(StartError::Recover(source))
        }
        SnapshotError::Image(error @ ImageError::NewerFormat { .. }) => {
            let source = error.into();
            Err(StartError::NewerFormat { at, source })
        }
        error => Ok(error),
    }
}

fn limits(capabilities: &LogCapabilities) -> MachineLimits {
    MachineLimits {
        log_level: capabilities.sync_level,
        range_bits: capabilities.range_bits,
        ..MachineLimits::default()
    }
}

/// What a start can begin with, found without changing anything.
struct Survey {
    started: Instant,
    machine: Machine,
    /// The position of the loaded snapshot, and its bytes.
    at: Option<Position>,
    snapshot_bytes: u64,
    snapshots: Vec<Position>,
    unreadable: Vec<(Position, SnapshotError)>,
    /// Of these, the ones that must never be loaded again.
    aside: Vec<Position>,
    undecodable: u64,
    ended: bool,
    recovered: RecoveryReport,
    lacking: Lacking,
    without_queue: WithoutQueue,
    shard: ShardId,
}

/// The first command of a term.
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
        let mut limits = limits(&source.capabilities());
        limits.unique_id_index = options.index.is_some();
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
            return Err(StartError::NoSnapshot {
                trimmed: recovered.trimmed,
                unreadable: loaded.unreadable,
            });
        }
        if let Some(held) = machine.shard()
            && held != options.shard
        {
            let given = options.shard;
            return Err(StartError::OtherShard { held, given });
        }
        if folding.begins_restored && recovered.damaged.is_empty() && folding.undecodable == 0 {
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
        // A snapshot that could not be loaded now may load the next time. Records from before it that the log
        // has lost since would then be back, together with what this term does without them.
        let is_told_apart = |at: Position| {
            folding.undecodable > 0 || recovered.damaged.iter().any(|range| range.from < at)
        };
        // The newest that storage did not hand over: it may be whole, and hold all that is lost from the
        // source.
        let unread = loaded
            .unreadable
            .iter()
            .find_map(|(at, error)| match error {
                SnapshotError::Read(ReadError::Log(error)) => Some((*at, error)),
                _ => None,
            });
        if let Some((at, error)) = unread
            && is_told_apart(at)
        {
            return Err(StartError::Recover(error.clone()));
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

    /// The snapshots up to the loaded one.
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

    /// The report, without the counts of the queues.
    fn report(&self, term: Term) -> StartReport {
        StartReport {
            term,
            snapshot: self.at,
            snapshot_bytes: self.snapshot_bytes,
            snapshots_unreadable: self
                .unreadable
                .iter()
                .map(|(at, error)| (*at, with_sources(error)))
                .collect(),
            records: self.recovered.records,
            bytes: self.recovered.bytes,
            damaged: self.recovered.damaged.clone(),
            missing: self.lacking.missing.clone(),
            cut_short: self.lacking.cut_short.clone(),
            without_queue: self.without_queue,
            undecodable: self.undecodable,
            tail_bytes_cut: self.recovered.tail_bytes_cut,
            // A term ends behind its last snapshot. With nothing behind the snapshot, the term that
            // took it did not end.
            crashed: (self.recovered.records > 0 || self.at.is_some()) && !self.ended,
            ..StartReport::default()
        }
    }
}

/// The state of the newest snapshot that can be loaded, or an empty one.
struct Loaded {
    machine: Machine,
    at: Option<Position>,
    bytes: u64,
    /// Newer ones that could not be loaded.
    unreadable: Vec<(Position, SnapshotError)>,
}

fn load_snapshot(store: &dyn SnapshotStore, limits: &MachineLimits) -> Result<Loaded, StartError> {
    let mut unreadable = Vec::new();
    for at in store.list().map_err(StartError::Recover)? {
        match load(store, at, limits) {
            Ok((machine, bytes)) => {
                return Ok(Loaded {
                    machine,
                    at: Some(at),
                    bytes,
                    unreadable,
                });
            }
            // It says nothing about the snapshot, and an older one needs a file as well.
            Err(SnapshotError::Read(ReadError::Log(LogError::Disk(error))))
                if error.is_out_of_descriptors() =>
            {
                return Err(StartError::Recover(error.into()));
            }
            Err(error) => {
                let error = refusing(at, error)?;
                tracing::error!(
                    position = %at,
                    error = with_sources(&error),
                    "a snapshot cannot be loaded"
                );
                unreadable.push((at, error));
            }
        }
    }
    Ok(Loaded {
        machine: Machine::new(limits.clone()),
        at: None,
        bytes: 0,
        unreadable,
    })
}

/// How many batches of records are read ahead.
const AHEAD: usize = 4;

fn load(
    store: &dyn SnapshotStore,
    at: Position,
    limits: &MachineLimits,
) -> Result<(Machine, u64), SnapshotError> {
    let mut reader = store.open(at)?;
    let bytes = reader.total_bytes();
    let mut loader = ImageLoader::new(limits.clone());
    while let Some(piece) = reader.next_piece()? {
        loader.piece(&piece)?;
    }
    Ok((loader.finish()?, bytes))
}

/// Bytes of records that the reading and decoding thread passes to the folding thread at a time.
const BATCH_BYTES: usize = 256 << 10;

/// Recovers the log and decodes its records on another thread, and folds them on this one.
fn read_ahead(
    log: &mut dyn LogSource,
    (from, lowest): (Position, Epoch),
    mut decoder: BatchDecoder,
    mut fold: impl FnMut(&RecordBatch),
) -> Result<RecoveryReport, LogError> {
    let (sender, batches) = mpsc::sync_channel::<RecordBatch>(AHEAD);
    // Folded batches go back, to reuse their memory.
    let (folded, done) = mpsc::channel::<RecordBatch>();
    thread::scope(|scope| {
        let recovering = scope.spawn(move || {
            let outcome = log.recover(from, lowest, &mut |record, _| {
                decoder.push(&record.payload, record.position);
                if decoder.bytes() >= BATCH_BYTES {
                    let next = done.try_recv().unwrap_or_default();
                    // The other side takes all batches.
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

/// The boot id that the term records: leases are held back if storage may have lost records since `last`.
fn boot_id(unsynced: Unsynced, last: BootId, beginning: &Beginning) -> BootId {
    match unsynced {
        Unsynced::AskBootId => beginning.boot_id,
        Unsynced::Kept => beginning.boot_id.with_storage_of(last),
        // Drawn for this start, so that it differs from that of every other term.
        Unsynced::MayBeLost => beginning
            .boot_id
            .with_storage(beginning.incarnation.0.to_le_bytes()),
    }
}

/// Within one boot, machine time continues without a gap, so that a lease runs on while the process
/// is down. After a reboot the gap is unknown: machine time continues from the last logged instant,
/// so that leases last longer than promised, never shorter.
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

/// Facts about the records besides their effects.
#[derive(Default)]
struct Folding {
    undecodable: u64,
    /// The last record ends a term in order.
    ended: bool,
    /// The log does not begin with a term: a restore was not finished, so there is no snapshot.
    begins_restored: bool,
    newer: Option<(Position, DecodeError)>,
    /// The record folded last.
    last: Position,
    /// Records with an effect on something that does not exist, in order.
    ignored: Vec<Position>,
    /// The number of such effects so far, including those before the snapshot.
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

    /// Checks the machine after the last record was folded.
    fn note_ignored(&mut self, machine: &Machine) {
        let effects_ignored = machine.effects_ignored();
        if effects_ignored > self.effects_ignored {
            self.effects_ignored = effects_ignored;
            self.ignored.push(self.last);
        }
    }

    /// Checks a record before it is folded.
    fn look(&mut self, machine: &Machine, record: BatchRecord<'_>) {
        self.note_ignored(machine);
        let position = record.position;
        self.last = position;
        self.ended = matches!(record.only_effect, Some(Effect::TermEnded { .. }));
        self.begins_restored |= matches!(record.only_effect, Some(Effect::Advanced { .. }))
            && machine.shard().is_none();
        match record.error {
            None => {}
            Some(error @ DecodeError::NewerFormat { .. }) => {
                self.newer.get_or_insert_with(|| (position, error.clone()));
            }
            // Its checksum is good, so it was written like this, because of a bug or a memory
            // error. Stopping here would make everything else unavailable.
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

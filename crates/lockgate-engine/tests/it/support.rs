//! What all tests here use: a shard in memory, and a log that can be watched and held up.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    ops::ControlFlow,
    pin::Pin,
    sync::{Arc, Condvar, Mutex},
    task::Poll,
};

use bytes::Bytes;
use lockgate_core::{
    AppendError, Clock, Epoch, HolderName, Incarnation, Key, LeaseToken, Level, Log,
    LogCapabilities, LogError, LogMaintenance, LogProgress, LogRange, LogReader, LogRecord,
    LogSource, LogSpace, Message, Now, Position, Progress, Purpose, QueueName, ReadError,
    RecordGroup, RecordStamp, RecoveryReport, ReserveError, Scanned, Storage, StorageFailure,
    UniqueId,
};
use lockgate_engine::{
    Answer, Beginning, Driver, Engine, EngineError, EngineOptions, Output, OutputKind, Request,
    StartReport, Work,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{
    Command, CreateQueue, Delivery, QueueSettings, Receive, Rejection, Reply, SendMessage, Settle,
    SettleAction,
};
use lockgate_sim::{FaultyDisk, ManualClock};

pub(crate) fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

pub(crate) fn create(queue: &str, settings: QueueSettings) -> Command {
    Command::CreateQueue(Box::new(CreateQueue {
        name: name(queue),
        settings,
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    }))
}

pub(crate) fn at_level(level: Level) -> QueueSettings {
    QueueSettings {
        level,
        ..QueueSettings::default()
    }
}

pub(crate) fn send(queue: &str, message: Message) -> Command {
    Command::Send(Box::new(SendMessage {
        queue: name(queue),
        message,
    }))
}

pub(crate) fn text(body: &str) -> Message {
    Message::new(body.to_owned())
}

pub(crate) fn keyed(body: &str, key: &str) -> Message {
    text(body).with_key(Key::new(key).unwrap())
}

pub(crate) fn unique(body: &str, id: &str) -> Message {
    text(body).with_unique_id(UniqueId::new(id).unwrap())
}

pub(crate) fn receive(queue: &str, max: u16) -> Receive {
    Receive {
        queue: name(queue),
        max,
        key_max: None,
        lease: None,
        holder: HolderName::new("test").unwrap(),
    }
}

pub(crate) fn settle(token: LeaseToken, action: SettleAction) -> Command {
    Command::Settle(Settle { token, action })
}

pub(crate) fn local_log(disk: &FaultyDisk) -> LocalLog {
    let options = LocalLogOptions {
        segment_bytes: 1 << 20,
        record_bytes_max: 64 << 10,
        free_bytes_min: 64 << 10,
        generation_seed: Some(1),
        ..LocalLogOptions::default()
    };
    LocalLog::open(Arc::new(disk.clone()), options).unwrap()
}

pub(crate) fn beginning(clock: &ManualClock) -> Beginning {
    Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(1),
        secret: [9; 32],
    }
}

/// Lets other tasks run until it is so. Gives up, for a clear failure, when it never will be.
pub(crate) async fn until(is_so: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(
            started.elapsed().as_secs() < 30,
            "what was waited for never happened"
        );
        tokio::task::yield_now().await;
    }
}

/// Whether a future, polled once, is not ready.
pub(crate) async fn pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// A driver with its disk and clock; tickets are numbers.
pub(crate) struct Shard {
    pub(crate) disk: FaultyDisk,
    pub(crate) clock: ManualClock,
    pub(crate) driver: Driver<u64>,
    pub(crate) progress: Arc<dyn LogProgress>,
    pub(crate) durable: Position,
    pub(crate) next_ticket: u64,
    /// Answers that wait for a sync.
    pub(crate) held: Vec<Answered>,
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) ticket: u64,
    pub(crate) durable: Position,
    pub(crate) result: Result<Answer, EngineError>,
    /// Writes to the disk before it came.
    pub(crate) writes: u64,
}

impl Shard {
    pub(crate) fn new() -> Self {
        Self::with_options(&EngineOptions::default())
    }

    pub(crate) fn with_options(options: &EngineOptions) -> Self {
        Self::start(FaultyDisk::new(), ManualClock::default(), options).0
    }

    pub(crate) fn start(
        disk: FaultyDisk,
        clock: ManualClock,
        options: &EngineOptions,
    ) -> (Self, StartReport) {
        let log = local_log(&disk);
        Self::start_over(log, disk, clock, options)
    }

    /// The same over a log of other options on that disk.
    pub(crate) fn start_over(
        log: LocalLog,
        disk: FaultyDisk,
        clock: ManualClock,
        options: &EngineOptions,
    ) -> (Self, StartReport) {
        let (driver, report) = Driver::recover(log, options, || beginning(&clock)).unwrap();
        let shard = Self {
            progress: driver.progress(),
            durable: driver.tail(),
            disk,
            clock,
            driver,
            next_ticket: 1,
            held: Vec::new(),
        };
        (shard, report)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: self.driver.machine_time(self.clock.since_boot()),
        }
    }

    /// Runs one group. Answers that need not wait for a sync, by ticket; the others are held.
    pub(crate) fn group(&mut self, works: impl IntoIterator<Item = Work>) -> Vec<Answered> {
        let mut requests = Vec::new();
        for work in works {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            requests.push(Request { work, ticket });
        }
        let (now, disk) = (self.now(), self.disk.clone());
        let mut answers = Vec::new();
        self.driver.run_group(requests, now, &mut |output| {
            answers.extend(answer(output, &disk));
        });
        let durable = self.durable;
        self.held
            .extend(answers.extract_if(.., |answer| answer.durable > durable));
        answers
    }

    /// Syncs, and lets time-less consequences happen. Answers that need not wait any more.
    pub(crate) fn sync(&mut self) -> Vec<Answered> {
        self.durable = self.progress.sync().unwrap();
        self.driver.reached(self.durable);
        let durable = self.durable;
        let mut answers: Vec<_> = self
            .held
            .extract_if(.., |answer| answer.durable <= durable)
            .collect();
        answers.extend(self.group([]));
        answers
    }

    /// Runs one command to its end, sync included.
    pub(crate) fn run(&mut self, command: impl Into<Work>) -> Result<Reply, Rejection> {
        let mut answers = self.group([command.into()]);
        answers.extend(self.sync());
        let [answer] = <[Answered; 1]>::try_from(answers).unwrap_or_else(|_| panic!("one answer"));
        answer.reply()
    }

    pub(crate) fn receive_now(&mut self, queue: &str, max: u16) -> Vec<Delivery> {
        let work = Work::Receive {
            receive: receive(queue, max),
            until: None,
        };
        let mut answers = self.group([work]);
        answers.extend(self.sync());
        let [answer] = <[Answered; 1]>::try_from(answers).unwrap_or_else(|_| panic!("one answer"));
        answer.deliveries()
    }

    /// A receive that waits for `wait` milliseconds.
    pub(crate) fn wait_for(&self, queue: &str, wait: u64) -> Work {
        Work::Receive {
            receive: receive(queue, 1),
            until: Some(self.now().machine.plus(wait)),
        }
    }
}

fn answer(output: Output<u64>, disk: &FaultyDisk) -> Option<Answered> {
    let OutputKind::Answer { ticket, result } = output.kind else {
        return None;
    };
    Some(Answered {
        ticket,
        durable: output.durable,
        result,
        writes: disk.operations().writes,
    })
}

impl Answered {
    pub(crate) fn reply(self) -> Result<Reply, Rejection> {
        match self.result.unwrap() {
            Answer::Commands(mut results) => results.pop().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn deliveries(self) -> Vec<Delivery> {
        match self.result.unwrap() {
            Answer::Received(Ok(deliveries)) => deliveries,
            other => panic!("{other:?}"),
        }
    }
}

/// Tickets and numbers of messages of answers to receives.
pub(crate) fn got(answers: Vec<Answered>) -> Vec<(u64, usize)> {
    answers
        .into_iter()
        .map(|answer| (answer.ticket, answer.deliveries().len()))
        .collect()
}

/// A log that can be held up, watched, and made to read badly.
pub(crate) struct WatchedLog {
    log: LocalLog,
    controls: Arc<Controls>,
}

/// The other end of a [`WatchedLog`].
#[derive(Default)]
pub(crate) struct Controls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    hold_appends: bool,
    hold_syncs: bool,
    appends_begun: u64,
    syncs_begun: u64,
    panic_at_append: bool,
    panic_at_sync: bool,
    unreadable: Vec<(Position, Unreadable)>,
    /// It gives back its beginning only, and no ranges.
    is_whole: bool,
    trimmed: Position,
    /// Payload bytes and records that were last reserved.
    reserved: (u64, u64),
    at_claim: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Unreadable {
    Damaged,
    Storage,
}

impl Controls {
    pub(crate) fn hold_appends(&self, hold: bool) {
        self.change(|state| state.hold_appends = hold);
    }

    pub(crate) fn hold_syncs(&self, hold: bool) {
        self.change(|state| state.hold_syncs = hold);
    }

    pub(crate) fn panic_at_append(&self) {
        self.change(|state| state.panic_at_append = true);
    }

    pub(crate) fn panic_at_sync(&self) {
        self.change(|state| state.panic_at_sync = true);
    }

    pub(crate) fn make_unreadable(&self, at: Position, how: Unreadable) {
        self.change(|state| state.unreadable.push((at, how)));
    }

    pub(crate) fn make_readable(&self) {
        self.change(|state| state.unreadable.clear());
    }

    /// Does this once, just before the log is claimed.
    pub(crate) fn at_claim(&self, happen: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_claim = Some(Box::new(happen)));
    }

    /// Where the log was last trimmed to.
    pub(crate) fn trimmed(&self) -> Position {
        self.state.lock().unwrap().trimmed
    }

    fn reserved(&self) -> (u64, u64) {
        self.state.lock().unwrap().reserved
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.state.lock().unwrap().syncs_begun
    }

    /// Waits until `syncs` syncs have begun.
    pub(crate) fn wait_for_syncs(&self, syncs: u64) {
        self.wait(|state| state.syncs_begun >= syncs);
    }

    pub(crate) fn appends(&self) -> u64 {
        self.state.lock().unwrap().appends_begun
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| !until(state))
                .unwrap(),
        );
    }
}

impl From<WatchedLog> for Storage {
    fn from(log: WatchedLog) -> Self {
        Self {
            snapshots: log.log.snapshots(),
            log: Box::new(log),
        }
    }
}

impl LogSource for WatchedLog {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities {
            releases_ranges: !self.controls.state.lock().unwrap().is_whole,
            ..self.log.capabilities()
        }
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        self.log.recover(from, lowest, visit)
    }

    fn tail(&self) -> Position {
        self.log.tail()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(WatchedReader {
            reader: self.log.reader(),
            controls: self.controls.clone(),
        })
    }

    fn ranges(&self) -> Vec<LogRange> {
        if self.capabilities().releases_ranges {
            self.log.ranges()
        } else {
            Vec::new()
        }
    }

    fn name_of(&self, from: Position, to: Position) -> String {
        self.log.name_of(from, to)
    }
}

impl Log for WatchedLog {
    fn claim(&mut self) -> Result<(), LogError> {
        let happen = self.controls.state.lock().unwrap().at_claim.take();
        if let Some(happen) = happen {
            happen();
        }
        self.log.claim()
    }

    fn apply_recovery(&mut self) -> Result<(), LogError> {
        self.log.apply_recovery()
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        self.log.begin_epoch(epoch)
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        self.log.place(cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.log.reserve(bytes, records, purpose)?;
        self.controls
            .change(|state| state.reserved = (bytes, records));
        Ok(())
    }

    fn space(&self) -> LogSpace {
        self.log.space()
    }

    fn submit(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.controls.change(|state| state.appends_begun += 1);
        self.controls.wait(|state| !state.hold_appends);
        let records = 0..group.len();
        let bytes: usize = records.map(|index| group.payload(index).len()).sum();
        let reserved = self.controls.reserved();
        // The record that begins the term needs no reservation.
        if reserved != (0, 0) {
            assert_eq!(reserved, (bytes as u64, group.len() as u64), "reserved");
        }
        let panics = self.controls.state.lock().unwrap().panic_at_append;
        assert!(!panics, "a panic made on purpose");
        self.log.append(epoch, expected, group)
    }

    fn progress(&self) -> Arc<dyn LogProgress> {
        Arc::new(WatchedProgress {
            progress: self.log.progress(),
            controls: self.controls.clone(),
        })
    }

    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        self.log.log_maintenance()
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.controls.change(|state| state.trimmed = before);
        self.log.trim(before)
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.log.release(range)
    }

    fn next_number(&self) -> u64 {
        self.log.next_number()
    }
}

struct WatchedProgress {
    progress: Arc<dyn LogProgress>,
    controls: Arc<Controls>,
}

impl LogProgress for WatchedProgress {
    fn now(&self) -> Progress {
        self.progress.now()
    }

    fn failure(&self) -> Option<AppendError> {
        self.progress.failure()
    }

    fn sync(&self) -> Result<Position, LogError> {
        self.controls.change(|state| state.syncs_begun += 1);
        let panics = self.controls.state.lock().unwrap().panic_at_sync;
        assert!(!panics, "a panic made on purpose");
        // Held up with what was there when it began.
        let synced = self.progress.sync();
        self.controls.wait(|state| !state.hold_syncs);
        synced
    }
}

struct WatchedReader {
    reader: Arc<dyn LogReader>,
    controls: Arc<Controls>,
}

impl LogReader for WatchedReader {
    fn locate(&self, number: u64) -> Result<Option<Position>, ReadError> {
        self.reader.locate(number)
    }

    fn wait_tail(&self, beyond: Position, wait: std::time::Duration) -> Result<Position, LogError> {
        self.reader.wait_tail(beyond, wait)
    }

    fn read(&self, at: Position) -> Result<Bytes, ReadError> {
        let how = {
            let state = self.controls.state.lock().unwrap();
            let bad = state.unreadable.iter().find(|(bad, _)| *bad == at);
            bad.map(|&(_, how)| how)
        };
        match how {
            Some(Unreadable::Damaged) => Err(ReadError::Damaged {
                at,
                what: "made unreadable by a test",
            }),
            Some(Unreadable::Storage) => Err(ReadError::Log(LogError::Stopped {
                reason: StorageFailure::new(std::io::Error::other("made unreadable by a test")),
            })),
            None => self.reader.read(at),
        }
    }

    fn try_read_all(&self, at: &[Position]) -> Option<Vec<Bytes>> {
        let is_readable = self.controls.state.lock().unwrap().unreadable.is_empty();
        is_readable.then(|| self.reader.try_read_all(at))?
    }

    fn scan(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.reader.scan(from, to, visit)
    }
}

/// An engine over a disk in memory that can be held up.
pub(crate) struct Watched {
    pub(crate) engine: Engine,
    pub(crate) disk: FaultyDisk,
    pub(crate) clock: ManualClock,
    pub(crate) controls: Arc<Controls>,
}

impl Watched {
    pub(crate) fn new() -> Self {
        Self::with_options(EngineOptions::default())
    }

    pub(crate) fn with_options(options: EngineOptions) -> Self {
        Self::on(FaultyDisk::new(), ManualClock::default(), options)
    }

    pub(crate) fn on(disk: FaultyDisk, clock: ManualClock, options: EngineOptions) -> Self {
        Self::with_controls(disk, clock, options, Arc::default())
    }

    /// Over a log that gives back its beginning only.
    pub(crate) fn on_whole(options: EngineOptions) -> Self {
        let controls = Arc::<Controls>::default();
        controls.change(|state| state.is_whole = true);
        Self::with_controls(FaultyDisk::new(), ManualClock::default(), options, controls)
    }

    pub(crate) fn with_controls(
        disk: FaultyDisk,
        clock: ManualClock,
        options: EngineOptions,
        controls: Arc<Controls>,
    ) -> Self {
        let log = WatchedLog {
            log: local_log(&disk),
            controls: controls.clone(),
        };
        let (engine, _report) = Engine::start(log, Arc::new(clock.clone()), options).unwrap();
        Self {
            engine,
            disk,
            clock,
            controls,
        }
    }

    pub(crate) async fn with_queue(settings: QueueSettings) -> Self {
        let watched = Self::new();
        watched.engine.submit(create("q", settings)).await.unwrap();
        watched
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, span: u64) {
        self.clock.advance(span);
        self.engine.clock_changed();
    }
}

/// The bytes of a backup in front of its blocks.
const BACKUP_HEAD: usize = 40;

/// The blocks of a backup: the kind and the content of each.
pub(crate) fn blocks(backup: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let (mut blocks, mut rest) = (Vec::new(), &backup[BACKUP_HEAD..]);
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[5..9].try_into().unwrap()) as usize;
        blocks.push((rest[4], rest[9..9 + len].to_vec()));
        rest = &rest[9 + len..];
    }
    blocks
}

/// The backup with other blocks. Every block's checksum covers its number, so all are made anew.
pub(crate) fn with_blocks(backup: &[u8], blocks: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = backup[..BACKUP_HEAD].to_vec();
    for (number, (kind, content)) in (0_u64..).zip(blocks) {
        let mut place = number.to_le_bytes().to_vec();
        place.push(*kind);
        place.extend_from_slice(&u32::try_from(content.len()).unwrap().to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&place), content);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&place[8..]);
        out.extend_from_slice(content);
    }
    out
}

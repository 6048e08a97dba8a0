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
    LogCapabilities, LogError, LogProgress, LogRange, LogReader, LogRecord, LogSource, LogSpace,
    LogUpkeep, Message, Now, Position, Progress, Purpose, QueueName, ReadError, RecordGroup,
    RecordStamp, RecoveryReport, ReserveError, Scanned, Storage, UniqueId,
};
use lockgate_engine::{
    Beginning, Driver, Engine, EngineError, EngineOptions, Outcome, Output, Request, StartReport,
    What, Work,
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
    next_ticket: u64,
    /// Answers that wait for a sync.
    pub(crate) held: Vec<Answer>,
}

pub(crate) struct Answer {
    pub(crate) ticket: u64,
    pub(crate) durable: Position,
    pub(crate) result: Result<Outcome, EngineError>,
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
    pub(crate) fn group(&mut self, works: impl IntoIterator<Item = Work>) -> Vec<Answer> {
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
    pub(crate) fn sync(&mut self) -> Vec<Answer> {
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
    pub(crate) fn run(&mut self, command: Command) -> Result<Reply, Rejection> {
        let mut answers = self.group([Work::one(command)]);
        answers.extend(self.sync());
        let [answer] = <[Answer; 1]>::try_from(answers).ok().expect("one answer");
        answer.reply()
    }

    pub(crate) fn receive_now(&mut self, queue: &str, max: u16) -> Vec<Delivery> {
        let work = Work::Receive {
            receive: receive(queue, max),
            until: None,
        };
        let mut answers = self.group([work]);
        answers.extend(self.sync());
        let [answer] = <[Answer; 1]>::try_from(answers).ok().expect("one answer");
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

fn answer(output: Output<u64>, disk: &FaultyDisk) -> Option<Answer> {
    let What::Answer { ticket, result } = output.what else {
        return None;
    };
    Some(Answer {
        ticket,
        durable: output.durable,
        result,
        writes: disk.operations().writes,
    })
}

impl Answer {
    pub(crate) fn reply(self) -> Result<Reply, Rejection> {
        match self.result.unwrap() {
            Outcome::Commands(mut results) => results.pop().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn deliveries(self) -> Vec<Delivery> {
        match self.result.unwrap() {
            Outcome::Received(Ok(deliveries)) => deliveries,
            other => panic!("{other:?}"),
        }
    }
}

/// Tickets and numbers of messages of answers to receives.
pub(crate) fn got(answers: Vec<Answer>) -> Vec<(u64, usize)> {
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

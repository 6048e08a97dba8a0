//! Pending answers, inbox and tickets, with an owner and a log of a few lines: callers enter
//! requests, the owner decides and files answers, the sync thread lets them leave, and a thread
//! closes the inbox at any moment.

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockgate_core::{
    AppendError, Epoch, LogError, LogProgress, Message, Position, Progress, QueueName,
    StorageFailure, Watcher,
};
use lockgate_machine::{Command, DescribeQueue, Query, SendMessage, SyncWindow};
use lockgate_sim::ManualClock;
use shuttle::{
    future::block_on,
    rand::{Rng as _, thread_rng},
    thread,
};

use super::{check, finds, turn};
use crate::{
    Answer, DriverCounts, EngineError, EngineOptions, MaintenanceCounts, Output, OutputKind,
    Request, StopReason, Work,
    inbox::{AnswerSender, GuardedAnswer, Inbox, Taken},
    pending::{Filed, Filing, PendingAnswers, Room},
    sync::{Condvar, Mutex},
};

/// A deliberate bug.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// The owner sleeps although a sync ended while it decided for the first waiting receive.
    NotLookedAgain,
    /// The sync thread also answers for records that came while it synced.
    SyncAnswersItsEnd,
    /// A log with groups in flight reports them as written when they are submitted.
    WrittenTooEarly,
    /// Such a log does not notify of written groups.
    NewsForgotten,
}

/// Records are numbered from 1; records with a lower number start before a position.
#[derive(Default)]
struct SmallLog {
    appended: AtomicU64,
    durable: AtomicU64,
    /// How far the last sync reported the log durable.
    answered: AtomicU64,
    fails_at: Option<u64>,
    syncs: AtomicU64,
    bug: Option<Bug>,
    /// Groups and syncs take a while.
    is_slow: bool,
    /// With `is_slow`: what is written, and what [`SmallLog::carry`] does next.
    written: AtomicU64,
    /// From this record on, appends fail with certainty.
    refuses_at: Option<u64>,
    refused: AtomicBool,
    way: Mutex<Way>,
    arrived: Condvar,
    watcher: Mutex<Option<Watcher>>,
}

#[derive(Default)]
struct Way {
    steps: VecDeque<Step>,
    is_closed: bool,
}

#[derive(Clone, Copy)]
enum Step {
    Write(u64),
    Sync(u64),
}

impl SmallLog {
    fn with(bug: Bug) -> Self {
        Self {
            bug: Some(bug),
            ..Self::default()
        }
    }

    fn slow(bug: Option<Bug>) -> Self {
        Self {
            is_slow: true,
            bug,
            ..Self::default()
        }
    }

    fn written(&self) -> u64 {
        if self.is_slow {
            self.written.load(Relaxed)
        } else {
            self.appended.load(Relaxed)
        }
    }

    fn submit(&self, end: u64) {
        self.appended.store(end, Relaxed);
        self.send(Step::Write(end));
    }

    fn send(&self, step: Step) {
        if self.is_slow {
            self.way.lock().unwrap().steps.push_back(step);
            self.arrived.notify_one();
        }
    }

    fn close(&self) {
        self.way.lock().unwrap().is_closed = true;
        self.arrived.notify_one();
    }

    /// The log's thread, which reports progress.
    fn carry(&self) {
        loop {
            let mut way = self.way.lock().unwrap();
            let step = loop {
                match way.steps.pop_front() {
                    Some(step) => break step,
                    None if way.is_closed => return,
                    None => way = self.arrived.wait(way).unwrap(),
                }
            };
            drop(way);
            turn();
            match step {
                Step::Write(end) if self.refuses_at.is_some_and(|at| at <= end) => {
                    self.refused.store(true, Relaxed);
                }
                Step::Sync(end) if end > self.written() => {}
                Step::Write(end) => {
                    self.written.fetch_max(end, Relaxed);
                    if self.bug == Some(Bug::NewsForgotten) {
                        continue;
                    }
                }
                Step::Sync(end) => {
                    self.durable.fetch_max(end, Relaxed);
                    self.answered.fetch_max(end, Relaxed);
                }
            }
            if let Some(watcher) = &*self.watcher.lock().unwrap() {
                watcher();
            }
        }
    }
}

impl LogProgress for SmallLog {
    fn now(&self) -> Progress {
        Progress {
            written: Position(if self.bug == Some(Bug::WrittenTooEarly) {
                self.appended.load(Relaxed)
            } else {
                self.written()
            }),
            durable: Position(self.answered.load(Relaxed)),
        }
    }

    fn failure(&self) -> Option<AppendError> {
        turn();
        let refused = self.refused.load(Relaxed);
        turn();
        refused.then_some(AppendError::Fenced {
            ours: Epoch(1),
            theirs: Epoch(2),
        })
    }

    fn start_sync(&self) -> Result<(), LogError> {
        if self.is_slow {
            self.send(Step::Sync(self.appended.load(Relaxed)));
            return Ok(());
        }
        self.sync().map(drop)
    }

    fn watch(&self, watcher: Watcher) {
        *self.watcher.lock().unwrap() = Some(watcher);
    }

    fn sync(&self) -> Result<Position, LogError> {
        let appended = self.appended.load(Relaxed);
        turn();
        if self.fails_at == Some(self.syncs.fetch_add(1, Relaxed)) {
            return Err(LogError::Stopped {
                reason: StorageFailure::new(std::io::Error::other("planned")),
            });
        }
        self.durable.fetch_max(appended, Relaxed);
        turn();
        let answered = match self.bug {
            Some(Bug::SyncAnswersItsEnd) => self.appended.load(Relaxed),
            _ => appended,
        };
        self.answered.fetch_max(answered, Relaxed);
        Ok(Position(answered))
    }
}

struct Shard {
    inbox: Inbox,
    pending: Arc<PendingAnswers>,
    clock: ManualClock,
    log: Arc<SmallLog>,
    /// Room for a few answers that wait for a sync; with room for one, the owner often waits for it.
    answers: Room,
    /// The numbers of answers that reported a durable record, and of those with an unknown outcome.
    told: AtomicU64,
    unknown: AtomicU64,
}

/// Room for two requests of a kind, in units of 64 bytes.
const ROOM: u32 = 2;
const ROOM_BYTES: u32 = 2 << 10;
const UNITS: usize = ROOM_BYTES as usize / 64;

impl Shard {
    fn new(log: SmallLog) -> Arc<Self> {
        let options = EngineOptions {
            inbox_requests_max: ROOM,
            inbox_bytes_max: ROOM_BYTES,
            ..EngineOptions::default()
        };
        Arc::new(Self {
            inbox: Inbox::new(&options),
            pending: Arc::new(PendingAnswers::new(
                Position(0),
                if log.is_slow { 2 } else { 1 },
                MaintenanceCounts::default(),
            )),
            clock: ManualClock::default(),
            log: Arc::new(log),
            answers: Room {
                answers_max: thread_rng().gen_range(1..4),
                bytes_max: usize::MAX,
                groups_max: thread_rng().gen_range(1..3),
            },
            told: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        })
    }

    /// One request from its entry to its answer.
    fn ask(&self, kind: Kind) -> Result<(), EngineError> {
        let (ticket, answer) = AnswerSender::new();
        block_on(async {
            self.inbox
                .enter(
                    Request {
                        work: kind.work(),
                        ticket,
                    },
                    &self.clock,
                )
                .await?;
            // An answer must come, or the model is stuck.
            answer
                .await
                .expect("every ticket that got in is answered")
                .map(|_| ())
        })
    }

    fn deliver(&self, output: Output<AnswerSender>) {
        let OutputKind::Answer { ticket, result } = output.kind else {
            return;
        };
        assert!(
            result.is_err() || output.durable.0 <= self.log.durable.load(Relaxed),
            "an answer left before what it tells was durable"
        );
        assert!(
            result.is_err() || output.written.0 <= self.log.written(),
            "an answer left before what it tells was written"
        );
        self.told.fetch_add(u64::from(result.is_ok()), Relaxed);
        ticket.send(result.map(GuardedAnswer::Other));
    }

    fn failed(&self, reason: StopReason) {
        self.inbox.close(reason.clone());
        self.pending.fail(reason, |output, error| {
            let is_certain = matches!(error, EngineError::Stopped { .. });
            assert!(
                !is_certain || output.written.0 > self.log.written(),
                "one was told that nothing was done, and it is written"
            );
            if let OutputKind::Answer { ticket, .. } = output.kind {
                self.unknown.fetch_add(1, Relaxed);
                ticket.send(Err(error));
            }
        });
    }

    /// Runs like the engine's sync thread.
    fn sync_thread(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let shard = self.clone();
        thread::spawn(move || {
            let log = shard.log.clone();
            let synced =
                shard
                    .pending
                    .run(&*log, |output| shard.deliver(output), || shard.inbox.poke());
            if let Err(reason) = synced {
                shard.failed(reason);
            }
        })
    }

    /// Runs like the engine's owner thread, with a machine of two rules: a send is appended; a
    /// receive waits until all sends before it are durable, then its lease is appended.
    fn own(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let pending = self.pending.clone();
        self.log.watch(Box::new(move || pending.tell()));
        let log = self.log.clone();
        let carrier = thread::spawn(move || log.carry());
        let (shard, sync) = (self.clone(), self.sync_thread());
        thread::spawn(move || {
            shard.serve();
            shard.pending.finish();
            sync.join().unwrap();
            shard.log.close();
            carrier.join().unwrap();
            if let Err(reason) = shard.pending.durable() {
                shard.failed(reason);
            }
        })
    }

    fn serve(&self) {
        let mut taken = Taken::default();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        let mut timeout = None;
        let mut counts = DriverCounts::default();
        let (mut durable, mut appended, mut stopped) = (Position(0), 0, None);
        let mut wanted = Position(0);
        loop {
            let has_room = self.pending.has_room(self.answers) || self.inbox.is_closed();
            let requests_max = if has_room { 2 } else { 0 };
            self.inbox
                .take(timeout, requests_max, usize::MAX, &mut taken);
            match self.pending.durable() {
                Ok(position) => durable = position,
                Err(reason) => stopped = Some(reason),
            }
            for Request { work, ticket } in taken.requests.drain(..) {
                if let Some(reason) = stopped.clone() {
                    ticket.send(Err(reason.unknown_outcome()));
                } else if work.is_send() {
                    appended += 1;
                    counts.records += 1;
                    turn();
                    self.log.submit(appended);
                    wanted = Position(appended);
                    held.push(answer(ticket, wanted, wanted));
                } else {
                    waiting.push((ticket, Position(appended)));
                }
            }
            let is_over = taken.finished || stopped.is_some();
            for (ticket, _) in waiting.extract_if(.., |(_, awaited)| is_over || *awaited <= durable)
            {
                // The lease waits for no sync.
                if stopped.is_none() {
                    appended += 1;
                    counts.records += 1;
                    self.log.submit(appended);
                }
                held.push(answer(ticket, Position(appended), Position(0)));
            }
            let filing = Filing {
                outputs: &mut held,
                submitted: Position(appended),
                submit_took: Duration::ZERO,
                written: self.log.now().written,
                wanted,
                room: self.answers,
                known_durable: durable,
                counts,
                window: SyncWindow::default(),
                waiters: waiting.len(),
                maintenance: MaintenanceCounts::default(),
            };
            let filed = self.pending.file(filing, |output| self.deliver(output));
            if let Some(reason) = &stopped {
                self.failed(reason.clone());
            }
            if taken.finished {
                return;
            }
            let look_again = filed == Filed::LookAgain && self.log.bug != Some(Bug::NotLookedAgain);
            timeout = look_again.then_some(Duration::ZERO);
        }
    }
}

fn answer(ticket: AnswerSender, written: Position, durable: Position) -> Output<AnswerSender> {
    let result = Ok(Answer::Received(Ok(Vec::new())));
    Output {
        written,
        durable,
        kind: OutputKind::Answer { ticket, result },
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Send,
    Receive,
}

impl Kind {
    fn work(self) -> Work {
        let queue = QueueName::new("q").unwrap();
        match self {
            Self::Send => Work::from(Command::Send(Box::new(SendMessage {
                queue,
                message: Message::new("x"),
            }))),
            Self::Receive => Work::Query(Query::DescribeQueue(DescribeQueue { queue })),
        }
    }
}

fn caller(
    shard: &Arc<Shard>,
    kinds: &'static [Kind],
) -> thread::JoinHandle<Vec<Result<(), EngineError>>> {
    let shard = shard.clone();
    thread::spawn(move || kinds.iter().map(|&kind| shard.ask(kind)).collect())
}

const SENDS: &[Kind] = &[Kind::Send; 2];
const RECEIVES: &[Kind] = &[Kind::Receive; 2];

/// Every caller is answered, and all room is free again.
fn serves(log: SmallLog) {
    let shard = Shard::new(log);
    let owner = shard.own();
    let callers = [SENDS, RECEIVES, SENDS].map(|kinds| caller(&shard, kinds));
    for caller in callers {
        assert!(caller.join().unwrap().iter().all(Result::is_ok));
    }
    // The owner gives room back before it answers.
    assert_eq!(shard.inbox.free_room(), (UNITS, UNITS));
    shard.inbox.close(StopReason::ShutDown);
    owner.join().unwrap();
    assert_eq!(
        (shard.told.load(Relaxed), shard.unknown.load(Relaxed)),
        (6, 0)
    );
    assert!(matches!(
        shard.ask(Kind::Send),
        Err(EngineError::Stopped { .. })
    ));
}

#[test]
fn everybody_is_answered_when_it_is_durable_and_all_room_comes_back() {
    check(|| serves(SmallLog::default()));
}

#[test]
fn an_owner_that_misses_the_sync_somebody_waits_for_is_found() {
    finds(|| serves(SmallLog::with(Bug::NotLookedAgain)), "deadlock");
}

#[test]
fn answers_before_their_sync_are_found() {
    finds(
        || serves(SmallLog::with(Bug::SyncAnswersItsEnd)),
        "before what it tells was durable",
    );
}

#[test]
fn everybody_is_answered_while_groups_and_syncs_are_on_their_way() {
    check(|| serves(SmallLog::slow(None)));
}

#[test]
fn answers_before_their_records_are_written_are_found() {
    finds(
        || serves(SmallLog::slow(Some(Bug::WrittenTooEarly))),
        "before what it tells was written",
    );
}

#[test]
fn a_log_that_tells_nobody_of_what_is_written_is_found() {
    finds(
        || serves(SmallLog::slow(Some(Bug::NewsForgotten))),
        "deadlock",
    );
}

/// Every request that got in is answered; the others learn that the engine has stopped.
#[test]
fn a_close_at_any_moment_leaves_nobody_waiting() {
    check(|| closes(SmallLog::default()));
    check(|| closes(SmallLog::slow(None)));
}

fn closes(log: SmallLog) {
    let shard = Shard::new(log);
    let owner = shard.own();
    let callers = [SENDS, RECEIVES, SENDS].map(|kinds| caller(&shard, kinds));
    turn();
    shard.inbox.close(StopReason::ShutDown);
    owner.join().unwrap();
    let mut told = 0;
    for caller in callers {
        for outcome in caller.join().unwrap() {
            match outcome {
                Ok(()) => told += 1,
                Err(EngineError::Stopped {
                    reason: StopReason::ShutDown,
                }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    assert_eq!(
        (shard.told.load(Relaxed), shard.unknown.load(Relaxed)),
        (told, 0)
    );
}

/// Callers of a log that fails: each gets the error that is known.
fn everybody_is_told(shard: &Arc<Shard>) {
    let callers = [SENDS, RECEIVES, SENDS].map(|kinds| caller(shard, kinds));
    for caller in callers {
        for outcome in caller.join().unwrap() {
            let is_told = matches!(
                outcome,
                Ok(()) | Err(EngineError::Stopped { .. } | EngineError::UnknownOutcome { .. })
            );
            assert!(is_told, "{outcome:?}");
        }
    }
}

/// No caller is told that a record is durable if it is not, and none waits for it.
#[test]
fn a_failed_sync_leaves_nobody_waiting() {
    check(|| {
        let shard = Shard::new(SmallLog {
            fails_at: Some(1),
            ..SmallLog::default()
        });
        let owner = shard.own();
        let waiter = thread::spawn({
            let shard = shard.clone();
            move || shard.pending.wait_durable(Position(3))
        });
        everybody_is_told(&shard);
        shard.inbox.close(StopReason::ShutDown);
        owner.join().unwrap();
        let waited = waiter.join().unwrap();
        assert!(waited.is_err() || shard.log.durable.load(Relaxed) >= 3);
    });
}

/// A caller that is told that nothing was done can rely on it.
#[test]
fn a_group_that_is_refused_leaves_nobody_waiting() {
    check(|| {
        let shard = Shard::new(SmallLog {
            refuses_at: Some(3),
            ..SmallLog::slow(None)
        });
        let owner = shard.own();
        everybody_is_told(&shard);
        shard.inbox.close(StopReason::ShutDown);
        owner.join().unwrap();
    });
}

/// A record whose window is open, or has no end: a caller that waits for its sync gets one at once.
#[test]
fn a_wait_for_a_sync_does_not_wait_for_its_window() {
    check(|| window(Some(100)));
    check(|| window(None));
}

fn window(after: Option<u64>) {
    let shard = Shard::new(SmallLog::default());
    let sync = shard.sync_thread();
    let waiter = thread::spawn({
        let shard = shard.clone();
        move || shard.pending.wait_durable(Position(1))
    });
    shard.log.appended.store(1, Relaxed);
    let filing = Filing {
        outputs: &mut Vec::new(),
        submitted: Position(1),
        submit_took: Duration::ZERO,
        written: Position(1),
        wanted: Position(0),
        room: shard.answers,
        known_durable: Position(0),
        counts: DriverCounts {
            records: 1,
            ..DriverCounts::default()
        },
        window: SyncWindow {
            after,
            records: None,
        },
        waiters: 0,
        maintenance: MaintenanceCounts::default(),
    };
    assert_eq!(
        shard.pending.file(filing, |_| {}),
        Filed::Wait,
        "nobody waits for a message"
    );
    // Only the wait, or the window's end, causes the sync.
    assert_eq!(waiter.join().unwrap(), Ok(()));
    shard.pending.finish();
    sync.join().unwrap();
    assert_eq!(shard.pending.durable(), Ok(Position(1)));
}

/// A caller that comes too late for the last sync gets an error and does not wait.
#[test]
fn a_wait_for_a_sync_ends_with_the_sync_thread() {
    check(|| {
        let shard = Shard::new(SmallLog::default());
        shard.log.appended.store(1, Relaxed);
        let sync = shard.sync_thread();
        let waiter = thread::spawn({
            let shard = shard.clone();
            move || shard.pending.wait_durable(Position(1))
        });
        shard.pending.finish();
        let waited = waiter.join().unwrap();
        sync.join().unwrap();
        let is_durable = shard.pending.durable() == Ok(Position(1));
        assert_eq!(waited, if is_durable { Ok(()) } else { Err(None) });
    });
}

/// A caller that leaves while it waits for room keeps no room.
#[test]
fn a_caller_that_leaves_while_it_waits_for_room_takes_none_along() {
    check(|| {
        let shard = Shard::new(SmallLog::default());
        let owner = shard.own();
        let left = thread::spawn({
            let shard = shard.clone();
            move || {
                let (ticket, _answer) = AnswerSender::new();
                let request = Request {
                    work: Kind::Send.work(),
                    ticket,
                };
                let mut entering = pin!(shard.inbox.enter(request, &shard.clock));
                let polled = entering
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                turn();
                matches!(polled, Poll::Ready(Ok(())))
            }
        });
        let callers = [SENDS, SENDS, SENDS].map(|kinds| caller(&shard, kinds));
        for caller in callers {
            assert!(caller.join().unwrap().iter().all(Result::is_ok));
        }
        let _got_in = left.join().unwrap();
        // Behind the other requests, so that the owner has taken those that got in.
        shard.ask(Kind::Send).unwrap();
        assert_eq!(shard.inbox.free_room(), (UNITS, UNITS));
        shard.inbox.close(StopReason::ShutDown);
        owner.join().unwrap();
    });
}

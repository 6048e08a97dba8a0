//! Answers that wait for the log, and the thread that syncs the log for them.

use std::{collections::VecDeque, sync::PoisonError, time::Duration};

use lockgate_core::{AppendError, Distribution, LogProgress, Position, Progress};
use lockgate_machine::SyncWindow;

use crate::{
    DriverCounts, EngineError, MaintenanceCounts, Output, OutputKind, StopReason,
    inbox::AnswerSender,
    sync::{Condvar, Instant, Mutex, MutexGuard},
};

/// Connects the owner thread, which submits groups and files answers, with the sync thread, which
/// syncs the log and lets answers leave. Answers leave from the sync thread, so that a caller need
/// not wait until the owner has time.
pub(crate) struct PendingAnswers {
    state: Mutex<State>,
    work: Condvar,
    /// Signals that more is durable, or that nothing more will be.
    reached: Condvar,
    /// The most syncs in flight.
    syncs_max: usize,
}

struct State {
    /// Answers that wait until their records are written and for no sync, in the order filed.
    held_for_write: VecDeque<Output<AnswerSender>>,
    /// Answers that wait for a sync, in the order filed. An answer may be behind one that waits for
    /// a later sync; then it leaves at most one sync later than it could.
    held: VecDeque<Output<AnswerSender>>,
    /// The approximate memory of both, in bytes.
    held_bytes: usize,
    /// The log's progress, as far as it is known here.
    progress: Progress,
    /// The ends of groups that are submitted and not known to be written, since when, and how long the submission took.
    groups: VecDeque<(Position, Instant, Duration)>,
    /// The end of the last submitted record.
    submitted: Position,
    /// The end of the last record that an answer waits for.
    wanted: Position,
    /// The syncs in flight: how far each makes the log durable, and when it began.
    syncs: VecDeque<(Position, Instant)>,
    /// The log has reported progress or a failure.
    is_told: bool,
    /// Records submitted since the last sync began, the most that may stay unsynced, and when the
    /// next sync for them must begin.
    unsynced_records: u64,
    unsynced_max: u64,
    sync_by: Option<Instant>,
    /// Since when callers have waited for a sync while none ended.
    waiting_since: Option<Instant>,
    /// Whether the owner must learn of progress at once: a receive waits for a message, or there is no room.
    owner_cares: bool,
    sync_thread: SyncThread,
    /// Sync the rest and end.
    finishing: bool,
    /// The sync thread has ended.
    ended: bool,
    failed: Option<Failed>,
    counts: Counts,
}

/// The failure that ended all progress.
#[derive(Clone)]
struct Failed {
    reason: StopReason,
    /// Records behind this were certainly not written. The outcome of earlier unanswered ones is unknown.
    unwritten: Option<Position>,
}

impl Failed {
    /// The error for an answer that was waiting.
    fn error(&self, output: &Output<AnswerSender>) -> EngineError {
        if self.unwritten.is_some_and(|from| output.written > from) {
            EngineError::Stopped {
                reason: self.reason.clone(),
            }
        } else {
            self.reason.unknown_outcome()
        }
    }
}

/// The state of the sync thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncThread {
    /// It syncs, or was told to check for work.
    Awake,
    /// It sleeps until there is something to sync.
    Idle,
    /// It sleeps until the window of records that no answer waits for ends.
    InWindow(Instant),
}

/// Counters of this module, and those that the owner files with its answers for others to read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) driver: DriverCounts,
    pub(crate) waiters: u64,
    pub(crate) maintenance: MaintenanceCounts,
    pub(crate) held: u64,
    pub(crate) syncs: u64,
    pub(crate) sync_time: Duration,
    pub(crate) sync_time_max: Duration,
    pub(crate) sync_age: Duration,
    pub(crate) log_spans: LogSpans,
}

/// How long the log took for what it was given, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSpans {
    /// To write a group of records.
    pub appends: Distribution,
    /// To make records durable: a sync.
    pub syncs: Distribution,
}

impl Default for LogSpans {
    fn default() -> Self {
        Self {
            appends: Distribution::SHORT,
            syncs: Distribution::SHORT,
        }
    }
}

fn record(spans: &mut Distribution, took: Duration) {
    spans.record_micros(took.as_micros().try_into().unwrap_or(u64::MAX));
}

/// How many answers may wait, and how many bytes of them, before nothing more is decided; and how
/// many groups may be in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) answers_max: usize,
    pub(crate) bytes_max: usize,
    pub(crate) groups_max: usize,
}

/// The approximate memory of an answer, in bytes.
fn bytes(output: &Output<AnswerSender>) -> usize {
    let outcome = match &output.kind {
        OutputKind::Answer {
            result: Ok(outcome),
            ..
        } => outcome.bytes(),
        _ => 0,
    };
    size_of_val(output) + outcome
}

/// What the owner does after it has filed.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filed {
    /// Wait until there is something to do.
    Wait,
    /// Check again at once: a sync ended while the owner decided. No receive was waiting yet, so
    /// the owner was not told; now one waits, possibly for that sync.
    LookAgain,
}

/// What the owner reports after a group.
pub(crate) struct Filing<'a> {
    /// Answers that must wait.
    pub(crate) outputs: &'a mut Vec<Output<AnswerSender>>,
    pub(crate) submitted: Position,
    /// How long the submission took.
    pub(crate) submit_took: Duration,
    /// How far the log has written.
    pub(crate) written: Position,
    pub(crate) wanted: Position,
    /// The room for waiting answers.
    pub(crate) room: Room,
    /// The durable position that the machine knew while it decided the group.
    pub(crate) known_durable: Position,
    pub(crate) counts: DriverCounts,
    /// The shortest sync window of the group's records.
    pub(crate) window: SyncWindow,
    pub(crate) waiters: usize,
    pub(crate) maintenance: MaintenanceCounts,
}

impl State {
    fn has_room(&self, room: Room) -> bool {
        self.held.len() + self.held_for_write.len() < room.answers_max
            && self.held_bytes < room.bytes_max
            && self.groups.len() < room.groups_max
    }

    /// Whether an answer waits for records that no sync in flight makes durable.
    fn wants_sync(&self) -> bool {
        let synced = self.syncs.back().map(|(position, _)| *position);
        // An answer may wait for records that are not submitted yet; then the submitted ones decide.
        self.wanted.min(self.submitted) > synced.unwrap_or(self.progress.durable)
    }

    /// Whether to wake the sync thread. In a stream of records that no answer waits for, it is
    /// woken once a window instead of once a group: each wake-up costs two threads a system call.
    fn wake_sync_thread(&mut self) -> bool {
        let wake = match self.sync_thread {
            SyncThread::Awake => false,
            SyncThread::Idle => self.wants_sync() || self.unsynced_records > 0,
            SyncThread::InWindow(end) => {
                self.wants_sync()
                    || self.unsynced_records >= self.unsynced_max
                    || self.sync_by.is_some_and(|by| by < end)
            }
        };
        if wake {
            self.sync_thread = SyncThread::Awake;
        }
        wake
    }

    /// Notes the log's progress, and takes out the answers that need not wait any more.
    fn advance(
        &mut self,
        progress: Progress,
        deliver: &mut impl FnMut(Output<AnswerSender>),
        released: &mut Vec<Output<AnswerSender>>,
    ) {
        self.progress.written = self.progress.written.max(progress.written);
        let was_durable = self.progress.durable;
        self.progress.durable = was_durable.max(progress.durable);
        let Progress { written, durable } = self.progress;
        while let Some((_, since, submit_took)) =
            self.groups.pop_front_if(|(end, ..)| *end <= written)
        {
            let took = submit_took + since.elapsed();
            record(&mut self.counts.log_spans.appends, took);
        }
        while let Some((_, began)) = self.syncs.pop_front_if(|(end, _)| *end <= durable) {
            let took = began.elapsed();
            self.counts.syncs += 1;
            self.counts.sync_time += took;
            self.counts.sync_time_max = self.counts.sync_time_max.max(took);
            record(&mut self.counts.log_spans.syncs, took);
        }
        if durable > was_durable {
            self.waiting_since = None;
            self.note_waiting();
        }
        if durable >= self.submitted {
            self.forget_unsynced();
        }
        for held in [&mut self.held_for_write, &mut self.held] {
            while let Some(output) =
                held.pop_front_if(|output| output.written <= written && output.durable <= durable)
            {
                self.held_bytes -= bytes(&output);
                match output.kind {
                    // Under the lock: once the owner sees how far the log is durable, it may answer
                    // other requests about this queue, and their callers must find the queue.
                    OutputKind::QueueChanged { .. } => deliver(output),
                    OutputKind::Answer { .. } => released.push(output),
                }
            }
        }
    }

    /// Notes records submitted at `now` with this shortest window. Earlier records keep their own window.
    fn note_unsynced(&mut self, records: u64, now: Instant, window: SyncWindow) {
        // A window longer than the clock can express has no end.
        let after = window.after.map(Duration::from_millis);
        let by = after.and_then(|after| now.checked_add(after));
        self.sync_by = self.sync_by.into_iter().chain(by).min();
        self.unsynced_records += records;
        let records_max = window.records.unwrap_or(u64::MAX);
        self.unsynced_max = self.unsynced_max.min(records_max);
    }

    fn forget_unsynced(&mut self) {
        self.unsynced_records = 0;
        self.unsynced_max = u64::MAX;
        self.sync_by = None;
    }

    fn note_waiting(&mut self) {
        if self.wanted > self.progress.durable {
            self.waiting_since.get_or_insert_with(Instant::now);
        }
    }
}

impl PendingAnswers {
    /// For a log that is durable up to its end `end`, and that can have `syncs_max` syncs in flight.
    pub(crate) fn new(end: Position, syncs_max: usize, maintenance: MaintenanceCounts) -> Self {
        Self {
            syncs_max,
            state: Mutex::new(State {
                held_for_write: VecDeque::new(),
                held: VecDeque::new(),
                held_bytes: 0,
                progress: Progress {
                    written: end,
                    durable: end,
                },
                groups: VecDeque::new(),
                submitted: end,
                wanted: Position::default(),
                syncs: VecDeque::new(),
                is_told: false,
                unsynced_records: 0,
                unsynced_max: u64::MAX,
                sync_by: None,
                waiting_since: None,
                owner_cares: false,
                sync_thread: SyncThread::Awake,
                finishing: false,
                ended: false,
                failed: None,
                counts: Counts {
                    maintenance,
                    ..Counts::default()
                },
            }),
            work: Condvar::new(),
            reached: Condvar::new(),
        }
    }

    /// How far the log is durable, or why that will never advance.
    pub(crate) fn durable(&self) -> Result<Position, StopReason> {
        let state = self.lock();
        match &state.failed {
            Some(failed) => Err(failed.reason.clone()),
            None => Ok(state.progress.durable),
        }
    }

    /// Whether there is room for more waiting answers.
    pub(crate) fn has_room(&self, room: Room) -> bool {
        self.lock().has_room(room)
    }

    /// Waits until everything that starts before `position` is durable, and requests a sync at once.
    ///
    /// # Errors
    /// If it never will be: the reason of the failure, if there was one.
    pub(crate) fn wait_durable(&self, position: Position) -> Result<(), Option<StopReason>> {
        let mut state = self.lock();
        state.wanted = state.wanted.max(position);
        state.note_waiting();
        self.work.notify_one();
        loop {
            if state.progress.durable >= position {
                return Ok(());
            }
            if state.failed.is_some() || state.ended {
                return Err(state.failed.as_ref().map(|failed| failed.reason.clone()));
            }
            state = self
                .reached
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Files the results of a group. Delivers at once what need not wait any more.
    pub(crate) fn file(
        &self,
        filing: Filing<'_>,
        mut deliver: impl FnMut(Output<AnswerSender>),
    ) -> Filed {
        let mut state = self.lock();
        // If the sync thread has not seen this progress, the log tells it, and it tells the owner.
        let written = state.progress.written.max(filing.written);
        let records = filing.counts.records - state.counts.driver.records;
        if records > 0 {
            state.submitted = filing.submitted;
            let now = Instant::now();
            if state.submitted > written {
                let group = (filing.submitted, now, filing.submit_took);
                state.groups.push_back(group);
            } else {
                record(&mut state.counts.log_spans.appends, filing.submit_took);
            }
            state.note_unsynced(records, now, filing.window);
        }
        state.wanted = state.wanted.max(filing.wanted);
        state.note_waiting();
        state.counts.driver = filing.counts;
        state.counts.waiters = filing.waiters as u64;
        state.counts.maintenance = filing.maintenance;
        state.owner_cares = filing.waiters > 0;
        let durable = state.progress.durable;
        let look_again = state.owner_cares && durable > filing.known_durable;
        for output in filing.outputs.extract_if(.., |output| {
            output.written > written || output.durable > durable
        }) {
            state.held_bytes += bytes(&output);
            if output.durable > durable {
                state.held.push_back(output);
            } else {
                state.held_for_write.push_back(output);
            }
        }
        // A caller that waits for room must learn of the progress that makes room.
        state.owner_cares |= !state.has_room(filing.room);
        let wake = state.wake_sync_thread();
        drop(state);
        if wake {
            self.work.notify_one();
        }
        filing.outputs.drain(..).for_each(&mut deliver);
        if look_again {
            Filed::LookAgain
        } else {
            Filed::Wait
        }
    }

    /// Fails everything that waits, and the sync thread's further work. Keeps the first reason.
    pub(crate) fn fail(
        &self,
        reason: StopReason,
        mut fail: impl FnMut(Output<AnswerSender>, EngineError),
    ) {
        let mut state = self.lock();
        let failed = state.failed.get_or_insert(Failed {
            reason,
            unwritten: None,
        });
        let failed = failed.clone();
        let held = std::mem::take(&mut state.held_for_write);
        let held = held.into_iter().chain(std::mem::take(&mut state.held));
        state.held_bytes = 0;
        drop(state);
        self.work.notify_one();
        self.reached.notify_all();
        for output in held {
            let error = failed.error(&output);
            fail(output, error);
        }
    }

    /// The log has news. Called by a thread of the log.
    pub(crate) fn tell(&self) {
        let mut state = self.lock();
        state.is_told = true;
        let wake = state.sync_thread != SyncThread::Awake;
        state.sync_thread = SyncThread::Awake;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Tells the sync thread to sync the rest and end.
    pub(crate) fn finish(&self) {
        self.lock().finishing = true;
        self.work.notify_one();
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            held: (state.held.len() + state.held_for_write.len()) as u64,
            sync_age: state
                .waiting_since
                .map_or(Duration::ZERO, |since| since.elapsed()),
            ..state.counts
        }
    }

    /// Runs the sync thread. Ends after [`finish`](Self::finish), or at a failure, whose reason it returns.
    ///
    /// One sync covers everything submitted before it, and no timer delays an answer that waits:
    /// while the most allowed syncs are in flight, the next group gathers.
    pub(crate) fn run(
        &self,
        log: &dyn LogProgress,
        mut deliver: impl FnMut(Output<AnswerSender>),
        mut on_progress: impl FnMut(),
    ) -> Result<(), StopReason> {
        let mut released = Vec::new();
        let mut state = self.lock();
        loop {
            state = self.wait_for_work(state);
            if let Some(failed) = &state.failed {
                return Err(failed.reason.clone());
            }
            let is_due = self.is_sync_due(&state);
            if !is_due && !state.is_told {
                state.ended = true;
                self.reached.notify_all();
                return Ok(());
            }
            let was_told = std::mem::take(&mut state.is_told);
            let mut started = Ok(());
            if is_due {
                state.forget_unsynced();
                let end = state.submitted;
                state.syncs.push_back((end, Instant::now()));
                drop(state);
                started = log.start_sync();
            } else {
                drop(state);
            }
            // The failure first: after a certain one, the log's progress at that time is final.
            let failure = (was_told || started.is_err()).then(|| log.failure());
            let (failure, progress) = (failure.flatten(), log.now());

            state = self.lock();
            let before = state.progress;
            state.advance(progress, &mut deliver, &mut released);
            let is_news = state.progress != before;
            if state.progress.durable > before.durable {
                self.reached.notify_all();
            }
            // A sync is never tried again: the pages may be gone, and the next attempt would succeed.
            let is_certain = failure
                .as_ref()
                .is_some_and(|why| !matches!(why, AppendError::Unknown(_)));
            let reason = match (started, failure) {
                (Err(error), _) => Some(StopReason::of(error)),
                (_, Some(failure)) => Some(StopReason::of(failure)),
                _ => None,
            };
            let reason = reason.map(|reason| {
                let failed = Failed {
                    reason,
                    unwritten: is_certain.then_some(state.progress.written),
                };
                state.failed.get_or_insert(failed).reason.clone()
            });
            let tell_owner = is_news && state.owner_cares;
            drop(state);
            released.drain(..).for_each(&mut deliver);
            if let Some(reason) = reason {
                return Err(reason);
            }
            if tell_owner {
                on_progress();
            }
            state = self.lock();
        }
    }

    /// Whether a sync must begin now.
    fn is_sync_due(&self, state: &State) -> bool {
        let is_window_over = || {
            state.unsynced_records >= state.unsynced_max
                || state.sync_by.is_some_and(|by| by <= Instant::now())
        };
        state.syncs.len() < self.syncs_max
            && (state.wants_sync()
                || state.unsynced_records > 0 && (state.finishing || is_window_over()))
    }

    /// Waits until a sync is due, there is news, or neither will come any more.
    fn wait_for_work<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            let is_over = state.finishing && state.syncs.is_empty() && state.groups.is_empty();
            if state.failed.is_some() || state.is_told || is_over || self.is_sync_due(&state) {
                return state;
            }
            let has_room = state.syncs.len() < self.syncs_max;
            state = match state.sync_by.filter(|_| has_room) {
                Some(end) => {
                    state.sync_thread = SyncThread::InWindow(end);
                    let left = end.saturating_duration_since(Instant::now());
                    self.work
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => {
                    state.sync_thread = SyncThread::Idle;
                    self.work
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            };
            state.sync_thread = SyncThread::Awake;
        }
    }

    /// No code under the lock can panic, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use lockgate_core::{LogError, QueueId};

    use super::*;

    /// A log whose next sync makes it durable up to this position.
    struct SyncsUpTo(Position);

    impl LogProgress for SyncsUpTo {
        fn now(&self) -> Progress {
            Progress {
                written: self.0,
                durable: self.0,
            }
        }

        fn failure(&self) -> Option<AppendError> {
            None
        }

        fn sync(&self) -> Result<Position, LogError> {
            Ok(self.0)
        }
    }

    const END: Position = Position(100);

    fn filing(
        outputs: &mut Vec<Output<AnswerSender>>,
        known_durable: Position,
        waiters: usize,
    ) -> Filing<'_> {
        Filing {
            outputs,
            submitted: END,
            submit_took: Duration::ZERO,
            written: END,
            wanted: END,
            room: Room {
                answers_max: usize::MAX,
                bytes_max: usize::MAX,
                groups_max: 1,
            },
            known_durable,
            counts: DriverCounts {
                records: 1,
                ..DriverCounts::default()
            },
            window: SyncWindow::default(),
            waiters,
            maintenance: MaintenanceCounts::default(),
        }
    }

    fn pending_with(outputs: &mut Vec<Output<AnswerSender>>) -> PendingAnswers {
        let pending = PendingAnswers::new(Position(1), 1, MaintenanceCounts::default());
        let _nothing_new = pending.file(filing(outputs, Position(1), 0), |_| {});
        pending.finish();
        pending
    }

    #[test]
    fn a_sync_that_ends_while_the_owner_decides_is_not_missed_by_whom_it_lets_wait() {
        let mut outputs = Vec::new();
        let pending = pending_with(&mut outputs);
        // No receive waits when the sync ends, so the owner is not told.
        pending
            .run(&SyncsUpTo(END), |_| {}, || panic!("nobody waits"))
            .unwrap();
        let mut file = |known, waiters| pending.file(filing(&mut outputs, known, waiters), |_| {});
        assert_eq!(file(Position(1), 0), Filed::Wait);
        assert_eq!(file(Position(1), 1), Filed::LookAgain);
        assert_eq!(file(END, 1), Filed::Wait);
    }

    /// No answer waits for them, so only their window, or the end, causes a sync.
    #[test]
    fn records_that_came_during_a_sync_are_left_for_the_next_one() {
        struct Busy<'a>(&'a PendingAnswers, AtomicU64);

        impl LogProgress for Busy<'_> {
            fn now(&self) -> Progress {
                let durable = match self.1.load(Ordering::Relaxed) {
                    0 => Position(1),
                    1 => END,
                    _ => Position(200),
                };
                Progress {
                    written: durable,
                    durable,
                }
            }

            fn failure(&self) -> Option<AppendError> {
                None
            }

            fn sync(&self) -> Result<Position, LogError> {
                let later = Position(200);
                if self.1.fetch_add(1, Ordering::Relaxed) > 0 {
                    return Ok(later);
                }
                let mut none = Vec::new();
                let mut more = filing(&mut none, END, 0);
                (more.submitted, more.written) = (later, later);
                more.counts.records = 2;
                let _nothing_new = self.0.file(more, |_| {});
                Ok(END)
            }
        }

        let pending = pending_with(&mut Vec::new());
        let busy = Busy(&pending, AtomicU64::new(0));
        pending.run(&busy, |_| {}, || {}).unwrap();
        assert_eq!(busy.1.load(Ordering::Relaxed), 2);
        assert_eq!(pending.durable(), Ok(Position(200)));
    }

    #[test]
    fn a_wait_for_a_sync_has_an_age_until_one_has_come_to_its_end() {
        let mut outputs = Vec::new();
        let pending = PendingAnswers::new(Position(1), 1, MaintenanceCounts::default());
        assert_eq!(pending.counts().sync_age, Duration::ZERO);
        let _nothing_new = pending.file(filing(&mut outputs, Position(1), 0), |_| {});
        assert!(pending.lock().waiting_since.is_some());
        pending.finish();
        pending.run(&SyncsUpTo(END), |_| {}, || {}).unwrap();
        assert_eq!(pending.counts().sync_age, Duration::ZERO);
    }

    #[test]
    fn records_that_nobody_waits_for_wake_the_sync_thread_once_a_window() {
        let pending = PendingAnswers::new(Position(1), 1, MaintenanceCounts::default());
        let mut state = pending.lock();
        let end = Instant::now() + Duration::from_secs(3_600);
        let in_window = SyncThread::InWindow(end);
        state.unsynced_max = 3;
        state.submitted = Position(9);
        state.sync_by = Some(end);
        let mut wakes = |records, wanted, sync_thread| {
            state.unsynced_records = records;
            state.wanted = Position(wanted);
            state.sync_thread = sync_thread;
            let wakes = state.wake_sync_thread();
            assert!(!wakes || state.sync_thread == SyncThread::Awake);
            wakes
        };
        assert!(!wakes(0, 0, SyncThread::Idle));
        assert!(wakes(1, 0, SyncThread::Idle));
        assert!(!wakes(2, 0, in_window));
        assert!(wakes(3, 0, in_window));
        assert!(wakes(2, 9, in_window));
        let later = SyncThread::InWindow(end + Duration::from_millis(1));
        assert!(
            wakes(1, 0, later),
            "its window ends before the one slept for"
        );
        // An answer may begin to wait for a record of an earlier group.
        assert!(wakes(0, 9, SyncThread::Idle));
        assert!(!wakes(3, 9, SyncThread::Awake));
    }

    #[test]
    fn the_shortest_window_holds_until_a_sync_begins() {
        let window = |after, records| SyncWindow {
            after: Some(after),
            records: Some(records),
        };
        let pending = PendingAnswers::new(Position(1), 1, MaintenanceCounts::default());
        let mut state = pending.lock();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let holds = |state: &State| (state.unsynced_records, state.unsynced_max, state.sync_by);

        state.note_unsynced(1, at(0), window(100, 50));
        assert_eq!(holds(&state), (1, 50, Some(at(100))));
        state.note_unsynced(2, at(10), window(5, 50));
        assert_eq!(holds(&state), (3, 50, Some(at(15))), "it is due before");
        state.note_unsynced(1, at(12), window(5, 7));
        assert_eq!(holds(&state), (4, 7, Some(at(15))), "an older one stays");
        state.note_unsynced(1, at(13), window(900, 900));
        assert_eq!(holds(&state), (5, 7, Some(at(15))), "none lengthens it");
        state.forget_unsynced();
        assert_eq!(holds(&state), (0, u64::MAX, None));
        state.note_unsynced(1, at(20), window(900, 900));
        assert_eq!(holds(&state), (1, 900, Some(at(920))), "nobody else asks");
        state.note_unsynced(1, at(30), window(100, 50));
        assert_eq!(holds(&state), (2, 50, Some(at(130))), "until somebody does");
        state.forget_unsynced();
        state.note_unsynced(1, at(40), SyncWindow::default());
        assert_eq!(holds(&state), (1, u64::MAX, None), "it never ends");
    }

    #[test]
    fn a_queue_is_found_before_anybody_learns_that_it_is_durable() {
        let mut outputs = vec![
            Output {
                written: END,
                durable: END,
                kind: OutputKind::QueueChanged {
                    queue: QueueId(1),
                    entry: None,
                },
            },
            Output {
                written: END,
                durable: END,
                kind: OutputKind::Answer {
                    ticket: AnswerSender::nobody(),
                    result: Err(crate::EngineError::Overloaded),
                },
            },
        ];
        let pending = pending_with(&mut outputs);
        let mut seen = Vec::new();
        let deliver = |output: Output<AnswerSender>| {
            let locked = pending.state.try_lock().is_err();
            seen.push((
                matches!(output.kind, OutputKind::QueueChanged { .. }),
                locked,
            ));
        };
        pending.run(&SyncsUpTo(END), deliver, || {}).unwrap();
        assert_eq!(seen, [(true, true), (false, false)]);
    }
}

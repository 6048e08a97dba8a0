//! Where answers wait for the disk, and the thread that syncs it.

use std::{collections::VecDeque, sync::PoisonError, time::Duration};

use lockgate_core::{LogSync, Position};
use lockgate_machine::SyncWindow;

use crate::{
    DriverCounts, KeeperCounts, Output, StopReason, What,
    inbox::Ticket,
    sync::{Condvar, Instant, Mutex, MutexGuard},
};

/// Between the owner thread, which appends and files answers, and the sync thread, which syncs and
/// lets them out. Answers leave from the sync thread, so that a caller need not wait until the owner
/// has time.
pub(crate) struct Desk {
    state: Mutex<State>,
    work: Condvar,
    /// Something more is durable, or nothing will be any more.
    reached: Condvar,
}

struct State {
    /// In the order filed. An answer may stand behind one that waits for more than itself; the sync
    /// that lets that one out is never more than one later.
    held: VecDeque<Output<Ticket>>,
    /// About how much memory they take.
    held_bytes: usize,
    /// Behind the last record appended.
    appended: Position,
    /// Behind the last record that an answer waits for.
    wanted: Position,
    /// Everything that starts before this is durable.
    durable: Position,
    /// Records appended since the last sync began, how many of them there may be, and when the next
    /// one must begin for them.
    unsynced_records: u64,
    unsynced_max: u64,
    sync_by: Option<Instant>,
    /// Since when somebody has waited for a sync without one coming to its end.
    waiting_since: Option<Instant>,
    /// Whether the owner must know of each sync at once: somebody waits for a message.
    owner_cares: bool,
    sync_thread: SyncThread,
    /// Sync what there is and end.
    finishing: bool,
    /// The sync thread has ended.
    ended: bool,
    failed: Option<StopReason>,
    counts: Counts,
}

/// What the sync thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncThread {
    /// It syncs, or was told to look at what there is.
    Awake,
    /// It sleeps until there is something to sync.
    Idle,
    /// It sleeps until then, when the window of records that nobody waits for ends.
    InWindow(Instant),
}

/// What is counted here, and what the owner files with its answers for others to see.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) driver: DriverCounts,
    pub(crate) waiters: u64,
    pub(crate) keeper: KeeperCounts,
    pub(crate) held: u64,
    pub(crate) syncs: u64,
    pub(crate) sync_time: Duration,
    pub(crate) sync_time_max: Duration,
    pub(crate) sync_age: Duration,
}

/// How many answers may wait for a sync before nothing more is decided, and how many bytes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) answers_max: usize,
    pub(crate) bytes_max: usize,
}

/// About how much memory an answer takes, in bytes.
fn bytes(output: &Output<Ticket>) -> usize {
    let outcome = match &output.what {
        What::Answer {
            result: Ok(outcome),
            ..
        } => outcome.bytes(),
        _ => 0,
    };
    size_of_val(output) + outcome
}

/// What the owner tells after a group.
pub(crate) struct Filing<'a> {
    /// Answers that wait for a sync.
    pub(crate) outputs: &'a mut Vec<Output<Ticket>>,
    pub(crate) appended: Position,
    pub(crate) wanted: Position,
    /// So much room there is for answers that wait.
    pub(crate) room: Room,
    /// What the machine took for durable while it decided the group.
    pub(crate) known_durable: Position,
    pub(crate) counts: DriverCounts,
    /// The shortest window of the group's records.
    pub(crate) window: SyncWindow,
    pub(crate) waiters: usize,
    pub(crate) keeper: KeeperCounts,
}

impl State {
    fn has_room(&self, room: Room) -> bool {
        self.held.len() < room.answers_max && self.held_bytes < room.bytes_max
    }

    /// Whether the sync thread must be told. Beside a stream of records that nobody waits for it is
    /// told once a window, not once a group: each time costs two threads a system call.
    fn wake_sync_thread(&mut self) -> bool {
        let wanted = self.wanted > self.durable;
        let wake = match self.sync_thread {
            SyncThread::Awake => false,
            SyncThread::Idle => wanted || self.unsynced_records > 0,
            SyncThread::InWindow(end) => {
                wanted
                    || self.unsynced_records >= self.unsynced_max
                    || self.sync_by.is_some_and(|by| by < end)
            }
        };
        if wake {
            self.sync_thread = SyncThread::Awake;
        }
        wake
    }

    /// Records were appended at `now`, the shortest of whose windows is that. A record that came
    /// before keeps its own.
    fn note_unsynced(&mut self, records: u64, now: Instant, window: SyncWindow) {
        // A window that ends past the end of time never does.
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
        if self.wanted > self.durable {
            self.waiting_since.get_or_insert_with(Instant::now);
        }
    }
}

impl Desk {
    pub(crate) fn new(durable: Position, keeper: KeeperCounts) -> Self {
        Self {
            state: Mutex::new(State {
                held: VecDeque::new(),
                held_bytes: 0,
                appended: durable,
                wanted: Position::default(),
                durable,
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
                    keeper,
                    ..Counts::default()
                },
            }),
            work: Condvar::new(),
            reached: Condvar::new(),
        }
    }

    /// How far the log is durable, or why it will never be further.
    pub(crate) fn durable(&self) -> Result<Position, StopReason> {
        let state = self.lock();
        match &state.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(state.durable),
        }
    }

    /// Whether more answers may wait here.
    pub(crate) fn has_room(&self, room: Room) -> bool {
        self.lock().has_room(room)
    }

    /// Waits until everything that starts before `position` is durable, and has it synced at once.
    ///
    /// # Errors
    /// If it never will be: the reason of the failure, if there was one.
    pub(crate) fn wait_durable(&self, position: Position) -> Result<(), Option<StopReason>> {
        let mut state = self.lock();
        state.wanted = state.wanted.max(position);
        state.note_waiting();
        self.work.notify_one();
        loop {
            if state.durable >= position {
                return Ok(());
            }
            if state.failed.is_some() || state.ended {
                return Err(state.failed.clone());
            }
            state = self
                .reached
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes in what a group has brought. Hands back at once what need not wait (any more).
    ///
    /// Whether the owner must look again at once: a sync ended while it decided, when nobody waited
    /// for a message yet, so that nobody told it; and the one who waits now may wait for just that.
    #[must_use]
    pub(crate) fn file(&self, filing: Filing<'_>, mut deliver: impl FnMut(Output<Ticket>)) -> bool {
        let mut state = self.lock();
        let records = filing.counts.records - state.counts.driver.records;
        if records > 0 {
            state.appended = filing.appended;
            state.note_unsynced(records, Instant::now(), filing.window);
        }
        state.wanted = state.wanted.max(filing.wanted);
        state.note_waiting();
        state.counts.driver = filing.counts;
        state.counts.waiters = filing.waiters as u64;
        state.counts.keeper = filing.keeper;
        state.owner_cares = filing.waiters > 0;
        let durable = state.durable;
        let look_again = state.owner_cares && durable > filing.known_durable;
        for output in filing
            .outputs
            .extract_if(.., |output| output.durable > durable)
        {
            state.held_bytes += bytes(&output);
            state.held.push_back(output);
        }
        // Who waits for room here must know of the sync that makes some.
        state.owner_cares |= !state.has_room(filing.room);
        let wake = state.wake_sync_thread();
        drop(state);
        if wake {
            self.work.notify_one();
        }
        filing.outputs.drain(..).for_each(&mut deliver);
        look_again
    }

    /// Fails everything that waits, and the sync thread's further work.
    pub(crate) fn fail(&self, reason: StopReason, fail: impl FnMut(Output<Ticket>, &StopReason)) {
        let mut state = self.lock();
        let reason = state.failed.get_or_insert(reason).clone();
        let held = std::mem::take(&mut state.held);
        state.held_bytes = 0;
        drop(state);
        self.work.notify_one();
        self.reached.notify_all();
        let mut fail = fail;
        held.into_iter().for_each(|output| fail(output, &reason));
    }

    /// Has the sync thread sync what there is and end.
    pub(crate) fn finish(&self) {
        self.lock().finishing = true;
        self.work.notify_one();
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            held: state.held.len() as u64,
            sync_age: state
                .waiting_since
                .map_or(Duration::ZERO, |since| since.elapsed()),
            ..state.counts
        }
    }

    /// The sync thread. Ends after [`finish`](Self::finish), or at a failure, whose reason it gives.
    ///
    /// One sync covers everything appended before it, and there is no timer in the way of an answer
    /// that waits: while one sync runs, the next group gathers.
    pub(crate) fn run(
        &self,
        syncer: &dyn LogSync,
        mut deliver: impl FnMut(Output<Ticket>),
        mut on_synced: impl FnMut(),
    ) -> Result<(), StopReason> {
        let mut released = Vec::new();
        let mut state = self.lock();
        loop {
            state = self.wait_for_work(state);
            if let Some(reason) = &state.failed {
                return Err(reason.clone());
            }
            if state.unsynced_records == 0 && state.wanted <= state.durable {
                state.ended = true;
                self.reached.notify_all();
                return Ok(());
            }
            state.forget_unsynced();
            drop(state);

            let started = Instant::now();
            let synced = syncer.sync();
            let took = started.elapsed();

            state = self.lock();
            state.counts.syncs += 1;
            state.counts.sync_time += took;
            state.counts.sync_time_max = state.counts.sync_time_max.max(took);
            match synced {
                Ok(position) => {
                    state.durable = state.durable.max(position);
                    state.waiting_since = None;
                    state.note_waiting();
                    self.reached.notify_all();
                }
                Err(error) => {
                    // Never tried again: the pages may be gone, and the next try would succeed.
                    let reason = StopReason::of(&error);
                    state.failed.get_or_insert_with(|| reason.clone());
                    return Err(reason);
                }
            }
            if state.durable >= state.appended {
                state.forget_unsynced();
            }
            while state
                .held
                .front()
                .is_some_and(|output| output.durable <= state.durable)
                && let Some(output) = state.held.pop_front()
            {
                state.held_bytes -= bytes(&output);
                match output.what {
                    // Under the lock: the owner, once it sees how far the log is durable, may answer
                    // others about this queue, and they must find it.
                    What::QueueChanged { .. } => deliver(output),
                    What::Answer { .. } => released.push(output),
                }
            }
            let tell_owner = state.owner_cares;
            drop(state);
            released.drain(..).for_each(&mut deliver);
            if tell_owner {
                on_synced();
            }
            state = self.lock();
        }
    }

    /// Until a sync is wanted, or there will be none.
    fn wait_for_work<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            if state.failed.is_some() || state.finishing || state.wanted > state.durable {
                return state;
            }
            let left = state
                .sync_by
                .map(|by| (by, by.saturating_duration_since(Instant::now())));
            if left.is_some_and(|(_, left)| left.is_zero())
                || (state.unsynced_records > 0 && state.unsynced_records >= state.unsynced_max)
            {
                return state;
            }
            state = match left {
                Some((end, left)) => {
                    state.sync_thread = SyncThread::InWindow(end);
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

    /// No code that can panic runs under the lock, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use lockgate_core::{LogError, QueueId};

    use super::*;

    /// A log that is durable up to there after the next sync.
    struct SyncsUpTo(Position);

    impl LogSync for SyncsUpTo {
        fn sync(&self) -> Result<Position, LogError> {
            Ok(self.0)
        }
    }

    const END: Position = Position(100);

    fn filing(
        outputs: &mut Vec<Output<Ticket>>,
        known_durable: Position,
        waiters: usize,
    ) -> Filing<'_> {
        Filing {
            outputs,
            appended: END,
            wanted: END,
            room: Room {
                answers_max: usize::MAX,
                bytes_max: usize::MAX,
            },
            known_durable,
            counts: DriverCounts {
                records: 1,
                ..DriverCounts::default()
            },
            window: SyncWindow::default(),
            waiters,
            keeper: KeeperCounts::default(),
        }
    }

    fn desk_with(outputs: &mut Vec<Output<Ticket>>) -> Desk {
        let desk = Desk::new(Position(1), KeeperCounts::default());
        let _nothing_new = desk.file(filing(outputs, Position(1), 0), |_| {});
        desk.finish();
        desk
    }

    #[test]
    fn a_sync_that_ends_while_the_owner_decides_is_not_missed_by_whom_it_lets_wait() {
        let mut outputs = Vec::new();
        let desk = desk_with(&mut outputs);
        // Nobody waits when the sync ends, so the owner is not told.
        desk.run(&SyncsUpTo(END), |_| {}, || panic!("nobody waits"))
            .unwrap();
        assert!(!desk.file(filing(&mut outputs, Position(1), 0), |_| {}));
        assert!(desk.file(filing(&mut outputs, Position(1), 1), |_| {}));
        assert!(!desk.file(filing(&mut outputs, END, 1), |_| {}));
    }

    /// Nobody waits for them, so nothing but their window has them synced, or the end.
    #[test]
    fn records_that_came_during_a_sync_are_left_for_the_next_one() {
        struct Busy<'a>(&'a Desk, AtomicU64);

        impl LogSync for Busy<'_> {
            fn sync(&self) -> Result<Position, LogError> {
                let later = Position(200);
                if self.1.fetch_add(1, Ordering::Relaxed) > 0 {
                    return Ok(later);
                }
                let mut none = Vec::new();
                let mut more = filing(&mut none, END, 0);
                (more.appended, more.counts.records) = (later, 2);
                let _nothing_new = self.0.file(more, |_| {});
                Ok(END)
            }
        }

        let desk = desk_with(&mut Vec::new());
        let busy = Busy(&desk, AtomicU64::new(0));
        desk.run(&busy, |_| {}, || {}).unwrap();
        assert_eq!(busy.1.load(Ordering::Relaxed), 2);
        assert_eq!(desk.durable(), Ok(Position(200)));
    }

    #[test]
    fn a_wait_for_a_sync_has_an_age_until_one_has_come_to_its_end() {
        let mut outputs = Vec::new();
        let desk = Desk::new(Position(1), KeeperCounts::default());
        assert_eq!(desk.counts().sync_age, Duration::ZERO);
        let _nothing_new = desk.file(filing(&mut outputs, Position(1), 0), |_| {});
        assert!(desk.lock().waiting_since.is_some());
        desk.finish();
        desk.run(&SyncsUpTo(END), |_| {}, || {}).unwrap();
        assert_eq!(desk.counts().sync_age, Duration::ZERO);
    }

    #[test]
    fn records_that_nobody_waits_for_wake_the_sync_thread_once_a_window() {
        let desk = Desk::new(Position(1), KeeperCounts::default());
        let mut state = desk.lock();
        let end = Instant::now() + Duration::from_secs(3_600);
        let in_window = SyncThread::InWindow(end);
        state.unsynced_max = 3;
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
        // An answer may come to wait for a record of an earlier group.
        assert!(wakes(0, 9, SyncThread::Idle));
        assert!(!wakes(3, 9, SyncThread::Awake));
    }

    #[test]
    fn the_shortest_window_holds_until_a_sync_begins() {
        let window = |after, records| SyncWindow {
            after: Some(after),
            records: Some(records),
        };
        let desk = Desk::new(Position(1), KeeperCounts::default());
        let mut state = desk.lock();
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
                durable: END,
                what: What::QueueChanged {
                    queue: QueueId(1),
                    entry: None,
                },
            },
            Output {
                durable: END,
                what: What::Answer {
                    ticket: Ticket::nobody(),
                    result: Err(crate::EngineError::Overloaded),
                },
            },
        ];
        let desk = desk_with(&mut outputs);
        let mut seen = Vec::new();
        let deliver = |output: Output<Ticket>| {
            let locked = desk.state.try_lock().is_err();
            seen.push((matches!(output.what, What::QueueChanged { .. }), locked));
        };
        desk.run(&SyncsUpTo(END), deliver, || {}).unwrap();
        assert_eq!(seen, [(true, true), (false, false)]);
    }
}

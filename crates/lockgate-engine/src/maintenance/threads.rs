//! The threads that do the maintenance of engines: one engine's own, or a few for many engines.
//!
//! An engine's maintenance gets a *turn* when its notifier is notified, when the time that its last
//! turn named has come, and at once if its last turn left work. Between two turns it occupies no
//! thread. Threads without a turn sleep, and only one of them sleeps until a time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt, io, mem,
    num::NonZeroUsize,
    sync::{Arc, PoisonError},
    time::Duration,
};

use crate::sync::{AtomicBool, Condvar, Instant, Mutex, MutexGuard, Ordering, thread};

/// After a turn that a notification caused, further notifications wait so long: appends notify all the time.
const REST: Duration = Duration::from_millis(100);

/// Times are rounded up to these, so that many shards cost one wake-up: pauses of at least the
/// first duration end at multiples of the second.
const GRIDS: [(Duration, Duration); 2] = [
    (Duration::from_secs(4), Duration::from_secs(1)),
    (Duration::from_millis(500), Duration::from_millis(250)),
];

/// A longer pause has no end: only a notification ends it.
const PAUSE_MAX: Duration = Duration::from_hours(24);

/// Threads for the maintenance of several engines of one process: snapshots, preallocating and
/// releasing space, and checks of the storage. Engines share the threads if they are given clones
/// of one value in [`EngineOptions::maintenance`](crate::EngineOptions::maintenance).
///
/// The threads start with the first engine and end with the last. Work that hangs, on a disk that
/// does not answer, holds one thread. The maintenance of the other engines continues as long as
/// fewer engines hang than there are threads, and otherwise waits. All engines serve and stop in
/// either case. So give engines on disks that fail independently separate threads for each disk.
#[derive(Clone)]
pub struct MaintenanceThreads(Arc<Pool>);

impl MaintenanceThreads {
    /// The number of threads; at most one is used for each engine.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        Self::named("lockgate-maint".to_owned(), threads)
    }

    pub(crate) fn named(name: String, threads: NonZeroUsize) -> Self {
        Self(Arc::new(Pool {
            name,
            threads_max: threads.get(),
            began: Instant::now(),
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
        }))
    }

    /// A notifier for a member that will be added.
    pub(crate) fn notifier(&self) -> Notifier {
        let mut state = self.0.lock();
        state.next_id += 1;
        Notifier {
            pool: self.0.clone(),
            id: state.next_id,
            notified: Arc::default(),
        }
    }
}

impl Default for MaintenanceThreads {
    fn default() -> Self {
        Self::new(NonZeroUsize::MIN.saturating_add(1))
    }
}

impl PartialEq for MaintenanceThreads {
    /// Whether the two are clones of each other.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MaintenanceThreads {}

impl fmt::Debug for MaintenanceThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaintenanceThreads")
            .field("threads_max", &self.0.threads_max)
            .finish_non_exhaustive()
    }
}

/// A member that is given turns. It must catch its own panics.
pub(crate) trait Turns: Send {
    /// Does a small piece of work. `notified`: the notifier was notified since the last turn began.
    fn turn(&mut self, notified: bool) -> Turn;
}

/// When the next turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// At once: there is more work.
    Again,
    /// When the notifier is notified, or after this time.
    After(Duration),
    Ended,
}

/// Tells that a member may have work.
pub(crate) struct Notifier {
    pool: Arc<Pool>,
    id: u64,
    notified: Arc<AtomicBool>,
}

/// A member's place. Dropping it waits for the end of a running turn; then there are no more turns.
pub(crate) struct Place {
    pool: Arc<Pool>,
    id: u64,
}

struct Pool {
    name: String,
    threads_max: usize,
    /// The start of the rounding grids.
    began: Instant,
    state: Mutex<State>,
    /// Wakes a sleeping thread: there is work.
    work: Condvar,
    /// Signals that a member has left during its turn.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    next_id: u64,
    members: BTreeMap<u64, Member>,
    /// Members that wait for a thread, longest waiting first.
    ready: VecDeque<u64>,
    /// Members that wait for a time.
    due: BTreeSet<(Instant, u64)>,
    threads: usize,
    /// Sleeping threads, and the time until which one of them sleeps.
    asleep: usize,
    watched: Option<Instant>,
}

struct Member {
    /// Taken out during a turn.
    who: Option<Box<dyn Turns>>,
    notified: Arc<AtomicBool>,
    phase: Phase,
    /// There must be no further turn.
    leaving: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Waits for a thread, or has its turn.
    Ready,
    /// Ignores notifications until the first time; idle at the latest until the second.
    Resting(Instant, Option<Instant>),
    /// Idle until this time, if there is one, or until a notification.
    Idle(Option<Instant>),
}

impl Notifier {
    pub(crate) fn notify(&self) {
        if self.notified.swap(true, Ordering::SeqCst) {
            // The first notification woke a thread, or the end of the turn or of the rest will see this one.
            return;
        }
        let mut state = self.pool.lock();
        let Some(member) = state.members.get_mut(&self.id) else {
            return;
        };
        if let Phase::Idle(at) = member.phase {
            member.phase = Phase::Ready;
            if let Some(at) = at {
                state.due.remove(&(at, self.id));
            }
            state.ready.push_back(self.id);
            drop(state);
            self.pool.work.notify_one();
        }
    }

    /// Adds a member; its first turn comes at once.
    ///
    /// # Errors
    /// If another thread is needed and cannot be started.
    pub(crate) fn add(&self, who: Box<dyn Turns>) -> io::Result<Place> {
        let mut state = self.pool.lock();
        let threads = self.pool.threads_max.min(state.members.len() + 1);
        if state.threads < threads {
            let pool = self.pool.clone();
            thread::Builder::new()
                .name(pool.name.clone())
                .spawn(move || pool.run())?;
            state.threads += 1;
        }
        let member = Member {
            who: Some(who),
            notified: self.notified.clone(),
            phase: Phase::Ready,
            leaving: false,
        };
        state.members.insert(self.id, member);
        state.ready.push_back(self.id);
        drop(state);
        self.pool.work.notify_one();
        Ok(Place {
            pool: self.pool.clone(),
            id: self.id,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        while let Some(member) = state.members.get_mut(&self.id) {
            if member.who.is_none() {
                member.leaving = true;
                state = (self.pool.ended.wait(state)).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Phase::Resting(at, _) | Phase::Idle(Some(at)) = member.phase {
                state.due.remove(&(at, self.id));
            }
            state.ready.retain(|&id| id != self.id);
            let gone = state.members.remove(&self.id);
            self.pool.end_if_alone(&state);
            drop(state);
            drop(gone);
            return;
        }
    }
}

impl Pool {
    /// Runs a thread until there are no more members.
    fn run(&self) {
        let mut state = self.lock();
        while !state.members.is_empty() {
            state.wake_due(Instant::now());
            if let Some(id) = state.ready.pop_front() {
                // Another thread must take the remaining work and the waiting for times.
                let time_is_left = state.watched.is_none() && !state.due.is_empty();
                if state.asleep > 0 && (time_is_left || !state.ready.is_empty()) {
                    self.work.notify_one();
                }
                state = self.give_turn(state, id);
                continue;
            }
            let first = state.due.first().map(|&(at, _)| at);
            state.asleep += 1;
            state = match first {
                Some(at) if state.watched.is_none() => {
                    state.watched = Some(at);
                    let left = at.saturating_duration_since(Instant::now());
                    let (mut state, _) = (self.work.wait_timeout(state, left))
                        .unwrap_or_else(PoisonError::into_inner);
                    state.watched = None;
                    state
                }
                _ => (self.work.wait(state)).unwrap_or_else(PoisonError::into_inner),
            };
            state.asleep -= 1;
        }
        state.threads -= 1;
    }

    fn give_turn<'a>(&'a self, mut state: MutexGuard<'a, State>, id: u64) -> MutexGuard<'a, State> {
        let Some(member) = state.members.get_mut(&id) else {
            return state;
        };
        let Some(mut who) = member.who.take() else {
            return state;
        };
        // Before the turn checks anything: a later notification counts for the next turn.
        let notified = member.notified.swap(false, Ordering::SeqCst);
        drop(state);
        let turn = who.turn(notified);
        if turn == Turn::Ended {
            // Before its place is reported as empty, because the member holds the log.
            drop(who);
            return self.gone(id);
        }
        let now = Instant::now();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(member) = state.members.get_mut(&id) else {
            return guard;
        };
        if member.leaving {
            drop(guard);
            drop(who);
            return self.gone(id);
        }
        member.who = Some(who);
        let next = match turn {
            Turn::After(pause) => {
                let idle = self.on_grid(now, pause);
                if notified {
                    let rested = now + REST;
                    Phase::Resting(rested, idle.map(|at| at.max(rested)))
                } else if member.notified.load(Ordering::SeqCst) {
                    Phase::Ready
                } else {
                    Phase::Idle(idle)
                }
            }
            Turn::Again | Turn::Ended => Phase::Ready,
        };
        member.phase = next;
        match next {
            Phase::Ready => state.ready.push_back(id),
            Phase::Resting(at, _) | Phase::Idle(Some(at)) => {
                state.due.insert((at, id));
                // This thread may be busy at that time.
                if state.watched.is_some_and(|until| at < until) {
                    self.work.notify_all();
                }
            }
            Phase::Idle(None) => {}
        }
        guard
    }

    fn gone(&self, id: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.members.remove(&id);
        self.ended.notify_all();
        self.end_if_alone(&state);
        state
    }

    fn end_if_alone(&self, state: &State) {
        if state.members.is_empty() {
            self.work.notify_all();
        }
    }

    /// The end of a pause that begins now; `None` if it has no end.
    fn on_grid(&self, now: Instant, pause: Duration) -> Option<Instant> {
        if pause > PAUSE_MAX {
            return None;
        }
        let end = now + pause;
        let Some((_, grid)) = GRIDS.into_iter().find(|(from, _)| pause >= *from) else {
            return Some(end);
        };
        let over = end.duration_since(self.began).as_nanos() % grid.as_nanos();
        Some(match u64::try_from(over) {
            Ok(over) if over > 0 => end + (grid - Duration::from_nanos(over)),
            _ => end,
        })
    }

    /// No code under the lock can panic, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Queues the members whose time has come.
    fn wake_due(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            match mem::replace(&mut member.phase, Phase::Ready) {
                Phase::Resting(_, idle) if !member.notified.load(Ordering::SeqCst) => {
                    member.phase = Phase::Idle(idle);
                    if let Some(at) = idle {
                        self.due.insert((at, id));
                    }
                }
                _ => self.ready.push_back(id),
            }
        }
    }
}

//! Limits on how often messages are leased: what queues and keys owe, and which keys wait for it.
//!
//! A start is a lease that is given. [`lockgate_core::limits`] decides whether one may be; here is where its
//! numbers are kept, and what waits.
//!
//! **What follows from the log** is what was charged: the debt of each queue, and of each key that owes
//! something, in a row of its own ([`Debtor`]). The rows outlive the messages of a key, a purge and a restart.
//! What goes on is not counted twice: leases of keys and contents are what they are.
//!
//! **Volatile** is who waits. A key that a limit of its own holds leaves the list of ready keys for that of
//! [limited](Content::limited_keys) ones, so a receive examines none of them. A timer in a wheel of its own
//! brings it back; it fires with [`Machine::tick`] and is not logged, because every start is checked against
//! the debts again. A row whose debt is paid is the same as none, so its timer frees it.
//!
//! **Their number has a bound** ([`owing_keys_max`](crate::MachineLimits::owing_keys_max)): while it is reached, a
//! queue gives no lease of a key that would be one more. It is looked at when a lease or a hold is decided, and
//! never when one is folded.
//!
//! **A change of limits** keeps the debts. A [walk](Walks) looks at each key again, in steps; until then the queue
//! gives no leases, so that no receive examines keys that its new limits hold.

use std::collections::BTreeSet;

use lockgate_core::{
    Key, MachineTime, Millis, QueueId,
    limits::{Debt, Limit, LimitState, Limiter, Limits, Scoped, Wait},
};

use super::{
    Machine,
    state::{Content, Place, Queue},
    time::{MOVES_PER_STEP, TIMERS_PER_STEP},
};
use crate::{
    KeyWait, QueueLimited,
    slab::NONE,
    table::{HashSeed, hash_bytes, hash_pair},
};

/// Timers that the fold of a start fires, so that a long replay keeps no more debtors than there are.
const FIRED_PER_START: u32 = 2;

/// What it costs to look at a row again, where passing an empty one costs 1.
const LOOK: u32 = 32;

/// The limits of a queue that has, or had, some.
#[derive(Clone, Debug)]
pub(super) struct QueueLimits {
    /// Those of all messages together.
    pub(super) queue: Limiter,
    /// Those of each key.
    pub(super) key: Limiter,
    /// What the queue as a whole owes.
    pub(super) debt: Debt,
    /// Volatile: when its own limits let go; else `NONE`.
    pub(super) timer: u32,
    /// Volatile: its keys are being looked at again.
    pub(super) walked: bool,
    /// How many keys have a row of debts.
    pub(super) debtors: u64,
}

/// What a key owes under the limits of its queue.
#[derive(Clone, Debug)]
pub(super) struct Debtor {
    pub(super) queue: QueueId,
    /// `None`: the group of messages without one.
    pub(super) key: Option<Key>,
    pub(super) debt: Debt,
    /// Volatile: never later than when it may start, or owes nothing.
    pub(super) timer: u32,
}

/// Looks at the debtors and keys of queues again, whose limits have changed or which are gone. One walk is for all
/// queues that wait when it begins, as it passes the rows of the whole shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Walks {
    /// Queues that the next walk is for.
    next: BTreeSet<QueueId>,
    /// Queues that the walk under way is for.
    queues: BTreeSet<QueueId>,
    stage: Stage,
}

/// How far a walk has come; the numbers are of the row that is next.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// Nothing is under way.
    #[default]
    Over,
    /// First the debtors, whose timers end the waits of keys.
    Debtors(u32),
    Keys(u32),
    /// The queues may give leases again, one after the other.
    Queues,
}

impl Walks {
    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over) && self.next.is_empty()
    }
}

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiter {
    Debtor(u32),
    Queue(u32),
}

impl Waiter {
    fn to_bits(self) -> u64 {
        match self {
            Self::Debtor(index) => u64::from(index),
            Self::Queue(index) => 1 << 32 | u64::from(index),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is the index"
    )]
    fn from_bits(bits: u64) -> Self {
        match bits >> 32 {
            0 => Self::Debtor(bits as u32),
            _ => Self::Queue(bits as u32),
        }
    }
}

/// The two scopes of a queue's limits, each without limits if it has none.
fn both(limits: Scoped<Limits>) -> [Limits; 2] {
    [limits.queue, limits.key].map(Option::unwrap_or_default)
}

impl QueueLimits {
    /// `None`: there are no limits.
    pub(super) fn new(limits: Scoped<Limits>, now: MachineTime) -> Option<Box<Self>> {
        if limits.is_none() {
            return None;
        }
        // Settings are checked before they are stored; a record from elsewhere must not cause a panic.
        let limiter = |limits| Limiter::new(limits, now.0).unwrap_or_default();
        let [queue, key] = both(limits).map(limiter);
        let none = Self::none(now);
        Some(Box::new(Self {
            queue,
            key,
            ..*none
        }))
    }

    /// No limits, for a queue that is only held.
    pub(super) fn none(now: MachineTime) -> Box<Self> {
        let limiter = || Limiter::new(Limits::default(), now.0).unwrap_or_default();
        Box::new(Self {
            queue: limiter(),
            key: limiter(),
            debt: Debt::default(),
            timer: NONE,
            walked: false,
            debtors: 0,
        })
    }

    fn change(&mut self, limits: Scoped<Limits>, now: MachineTime) {
        let [queue, key] = both(limits);
        for (limiter, limits) in [(&mut self.queue, queue), (&mut self.key, key)] {
            // Settings are checked before they are stored.
            let _ = limiter.change(limits, now.0);
        }
    }

    /// What an image keeps of them besides the settings: of the two limiters, and the debt.
    pub(super) fn to_numbers(&self) -> ([[u64; 8]; 2], [u64; 4]) {
        let limiters = [self.queue.saved(), self.key.saved()];
        (limiters, self.debt.to_numbers())
    }

    pub(super) fn from_numbers(
        limits: Scoped<Limits>,
        ([of_queue, of_key], debt): ([[u64; 8]; 2], [u64; 4]),
    ) -> Option<Self> {
        let [queue, key] = both(limits);
        Some(Self {
            queue: Limiter::restored(queue, of_queue).ok()?,
            key: Limiter::restored(key, of_key).ok()?,
            debt: Debt::from_numbers(debt),
            timer: NONE,
            walked: false,
            debtors: 0,
        })
    }

    /// Whether keys come to owe something under these limits.
    pub(super) fn keys_owe(&self) -> bool {
        let limits = self.key.limits();
        limits.rate.is_some() || limits.gap.is_some()
    }
}

/// How much longer; `None`: until a lease ends.
fn remaining(wait: Wait, now: MachineTime) -> Option<Millis> {
    match wait {
        Wait::Until(at) => Some(at.saturating_sub(now.0)),
        Wait::Finish | Wait::Never => None,
    }
}

pub(super) fn debtor_hash(seed: HashSeed, queue: QueueId, key: Option<&Key>) -> u64 {
    let text = key.map_or(0, |key| hash_bytes(seed, key.as_str().as_bytes()));
    hash_pair(queue.0, text)
}

impl Machine {
    /// The time that waits go by: that of the last tick or, in a replay, of the last record.
    pub(super) fn limit_now(&self) -> MachineTime {
        self.ticked.unwrap_or(self.clock.now.machine)
    }

    pub(super) fn debtor(&self, queue: QueueId, key: Option<&Key>) -> Option<u32> {
        let hash = debtor_hash(self.seed, queue, key);
        self.by_debtor.find(hash, |debtor| {
            let debtor = &self.debtors[debtor];
            debtor.queue == queue && debtor.key.as_ref() == key
        })
    }

    /// The queue's limits and index, if the key is of a queue that has some.
    fn limits_of(&self, key: u32) -> Option<(u32, &QueueLimits)> {
        let content = &self.contents[self.keys[key].content];
        if content.dead {
            return None;
        }
        let limits = self.queues[content.queue].limits.as_deref()?;
        Some((content.queue, limits))
    }

    /// What the limits of a key go by.
    pub(super) fn key_limit_state(&self, key: u32) -> LimitState {
        let state = &self.keys[key];
        let debt = self.limits_of(key).filter(|(_, limits)| limits.debtors > 0);
        let debt =
            debt.and_then(|(queue, _)| self.debtor(self.queues[queue].id, state.name.as_ref()));
        let debt = debt.map_or(Debt::default(), |debtor| self.debtors[debtor].debt);
        LimitState::new(debt, state.leased)
    }

    /// What the limits of a queue as a whole go by.
    pub(super) fn queue_limit_state(&self, queue: u32, limits: &QueueLimits) -> LimitState {
        let leased = self.contents[self.queues[queue].content].leased;
        LimitState::new(limits.debt, leased)
    }

    /// Whether limits of the key hold its next message.
    pub(super) fn is_limited(&self, key: u32) -> bool {
        let Some((_, limits)) = self.limits_of(key) else {
            return false;
        };
        if limits.debtors == 0 && *limits.key.limits() == Limits::default() {
            return false;
        }
        let state = self.key_limit_state(key);
        let now = self.limit_now().0;
        limits.key.holds(&state, 1, now).is_some()
    }

    /// Whether limits of the queue as a whole hold its next message, or its keys are being looked at again.
    pub(super) fn is_queue_limited(&self, queue: u32) -> bool {
        self.queues[queue].limits.as_deref().is_some_and(|limits| {
            let state = self.queue_limit_state(queue, limits);
            let now = self.limit_now().0;
            limits.walked
                || limits.queue.holds(&state, 1, now).is_some()
                || self.is_next_key_one_too_many(queue, limits)
        })
    }

    /// How many more keys may come to owe something, or be held.
    pub(super) fn owing_keys_left(&self) -> u64 {
        let max = self.limits.owing_keys_max;
        max.saturating_sub(self.debtors.len() as u64)
    }

    /// Whether a lease of the key waits until other keys owe nothing any more.
    fn is_one_too_many(&self, key: u32, limits: &QueueLimits) -> bool {
        // Who owes something has a row already.
        self.owing_keys_left() == 0
            && limits.keys_owe()
            && self.key_limit_state(key).debt() == Debt::default()
    }

    /// The same of the key whose turn it is. It keeps its turn, as under a limit of the queue as a whole.
    fn is_next_key_one_too_many(&self, queue: u32, limits: &QueueLimits) -> bool {
        let first = self.contents[self.queues[queue].content].ready_keys.first;
        first != NONE && self.is_one_too_many(first, limits)
    }

    /// Whether the queue gives no lease because it is this key's turn, which would be one too many.
    pub(super) fn is_in_the_way(&self, key: u32) -> bool {
        let first = self.contents[self.keys[key].content].ready_keys.first;
        first == key
            && self
                .limits_of(key)
                .is_some_and(|(_, limits)| self.is_one_too_many(key, limits))
    }

    /// Which limit of the queue as a whole holds its messages, and how long.
    pub(super) fn queue_limited(&self, queue: u32) -> Option<QueueLimited> {
        let limits = self.queues[queue].limits.as_deref()?;
        if self.is_next_key_one_too_many(queue, limits) {
            return Some(QueueLimited {
                limit: Limit::OwingKeys,
                remaining: None,
            });
        }
        let now = self.limit_now();
        let state = self.queue_limit_state(queue, limits);
        let (wait, limit) = limits.queue.holds(&state, 1, now.0)?;
        let remaining = remaining(wait, now);
        Some(QueueLimited { limit, remaining })
    }

    /// Which limit holds the key's next message, and how long; limits of the key come before those of the queue,
    /// if they let go together.
    pub(super) fn limit_wait(&self, queue: u32, key: u32, now: MachineTime) -> Option<KeyWait> {
        let limits = self.queues[queue].limits.as_deref()?;
        if limits.walked {
            return Some(KeyWait::LimitsChange);
        }
        let of_key = limits.key.holds(&self.key_limit_state(key), 1, now.0);
        if of_key.is_none()
            && (self.is_one_too_many(key, limits) || self.is_next_key_one_too_many(queue, limits))
        {
            return Some(KeyWait::Limit {
                limit: Limit::OwingKeys,
                of_key: false,
                remaining: None,
            });
        }
        let of_queue = self.queue_limit_state(queue, limits);
        let of_queue = limits.queue.holds(&of_queue, 1, now.0);
        let of_key = of_key.map(|(wait, limit)| (wait, true, limit));
        let of_queue = of_queue.map(|(wait, limit)| (wait, false, limit));
        let (wait, of_key, limit) = of_key.into_iter().chain(of_queue).max()?;
        Some(KeyWait::Limit {
            limit,
            of_key,
            remaining: remaining(wait, now),
        })
    }

    /// Charges a lease to the limits of its queue and its key.
    pub(super) fn charge_limits(&mut self, queue: u32, key: u32, now: MachineTime) {
        let Some(limits) = self.queues[queue].limits.as_deref_mut() else {
            return;
        };
        let mut state = LimitState::new(limits.debt, 0);
        limits.queue.charge(&mut state, 1, now.0);
        limits.debt = state.debt();
        let keys_owe = limits.keys_owe();
        self.await_queue(queue);
        if keys_owe {
            let (id, name) = (self.queues[queue].id, self.keys[key].name.clone());
            self.change_debt(queue, id, name, |limiter, state| {
                limiter.charge(state, 1, now.0);
            });
        }
        let past = self.clock.now.machine;
        self.end_waits(past, FIRED_PER_START, FIRED_PER_START * 4);
    }

    /// Gives back what a lease was charged that was given at `given`: it has not reached anybody.
    pub(super) fn refund_limits(&mut self, queue: u32, key: u32, given: MachineTime) {
        let now = self.clock.now.machine;
        let Some(limits) = self.queues[queue].limits.as_deref_mut() else {
            return;
        };
        let mut state = LimitState::new(limits.debt, 1);
        state.refund(&limits.queue, 1, given.0, now.0);
        limits.debt = state.debt();
        let keys_owe = limits.keys_owe();
        self.await_queue(queue);
        let (id, name) = (self.queues[queue].id, self.keys[key].name.clone());
        if keys_owe && self.debtor(id, name.as_ref()).is_some() {
            self.change_debt(queue, id, name, |limiter, state| {
                state.refund(limiter, 1, given.0, now.0);
            });
        }
    }

    /// Changes what a key of a queue with limits owes, and sets its timer. Returns its row.
    pub(super) fn change_debt(
        &mut self,
        queue: u32,
        id: QueueId,
        name: Option<Key>,
        change: impl FnOnce(&Limiter, &mut LimitState),
    ) -> u32 {
        let debtor = self.debtor(id, name.as_ref()).unwrap_or_else(|| {
            let hash = debtor_hash(self.seed, id, name.as_ref());
            let debtor = self.debtors.insert(Debtor {
                queue: id,
                key: name,
                debt: Debt::default(),
                timer: NONE,
            });
            let (debtors, seed) = (&self.debtors, self.seed);
            self.by_debtor.insert(hash, debtor, |debtor| {
                let debtor = &debtors[debtor];
                debtor_hash(seed, debtor.queue, debtor.key.as_ref())
            });
            if let Some(limits) = self.queues[queue].limits.as_deref_mut() {
                limits.debtors += 1;
            }
            debtor
        });
        if let Some(limits) = self.queues[queue].limits.as_deref() {
            let mut state = LimitState::new(self.debtors[debtor].debt, 0);
            change(&limits.key, &mut state);
            self.debtors[debtor].debt = state.debt();
        }
        self.await_debtor(queue, debtor);
        debtor
    }

    /// Sets a timer for when the key may start again, or else for when it owes nothing. An earlier one stays: it
    /// finds that and sets itself again.
    fn await_debtor(&mut self, queue: u32, debtor: u32) {
        let Some(limits) = self.queues[queue].limits.as_deref() else {
            return;
        };
        let state = LimitState::new(self.debtors[debtor].debt, 0);
        let at = match limits.key.holds(&state, 1, self.limit_now().0) {
            Some((Wait::Until(at), _)) => at,
            _ => state.idle_at(&limits.key).unwrap_or(Millis::MAX),
        };
        let timer = self.debtors[debtor].timer;
        self.debtors[debtor].timer = self.earlier(timer, at, Waiter::Debtor(debtor));
    }

    /// Wakes receives that stopped at the concurrency of the queue as a whole.
    pub(super) fn after_lease_ended(&mut self, content: u32) {
        let state = &self.contents[content];
        if !state.dead && self.queues[state.queue].limits.is_some() {
            self.wake(content);
        }
    }

    /// Sets a timer for when the limits of the queue as a whole let go.
    pub(super) fn await_queue(&mut self, queue: u32) {
        let Some(limits) = self.queues[queue].limits.as_deref() else {
            return;
        };
        let state = LimitState::new(limits.debt, 0);
        let (held, timer) = (
            limits.queue.holds(&state, 1, self.limit_now().0),
            limits.timer,
        );
        if let Some((Wait::Until(at), _)) = held {
            let timer = self.earlier(timer, at, Waiter::Queue(queue));
            if let Some(limits) = self.queues[queue].limits.as_deref_mut() {
                limits.timer = timer;
            }
        }
    }

    /// A timer that is no later than that.
    fn earlier(&mut self, timer: u32, at: Millis, waiter: Waiter) -> u32 {
        if timer != NONE {
            if self.waits.deadline(timer) <= at {
                return timer;
            }
            self.waits.remove(timer);
        }
        self.waits.insert(at, 0, waiter.to_bits())
    }

    /// Ends waits that are over and walks on; called with every tick. Returns whether there is more to do.
    pub(super) fn tick_limits(&mut self, now: MachineTime) -> bool {
        self.ticked = self.ticked.max(Some(now));
        if self.waits.is_empty() && self.walks.is_over() && !self.owing_keys_fell {
            return false;
        }
        let mut left = MOVES_PER_STEP * LOOK;
        while left > 0 && !self.walks.is_over() {
            self.walk_limits(&mut left);
        }
        self.end_waits(now, TIMERS_PER_STEP, MOVES_PER_STEP);
        if std::mem::take(&mut self.owing_keys_fell) {
            let owe = |queue: &Queue| queue.limits.as_ref().is_some_and(|it| it.keys_owe());
            let queues = self.queues.iter().filter(|(_, queue)| owe(queue));
            let contents: Vec<u32> = queues.map(|(_, queue)| queue.content).collect();
            for content in contents {
                if !self.contents[content].ready_keys.is_empty() {
                    self.wake(content);
                }
            }
        }
        !self.walks.is_over() || self.waits.has_due(now.0)
    }

    /// When limits next have something to do.
    pub(super) fn next_wait(&self) -> Option<MachineTime> {
        let is_idle = self.walks.is_over() && !self.owing_keys_fell;
        match (is_idle, self.waits.is_empty()) {
            (false, _) => Some(self.clock.now.machine),
            (true, false) => self.waits.next_deadline().map(MachineTime),
            (true, true) => None,
        }
    }

    fn end_waits(&mut self, now: MachineTime, most: u32, mut moves: u32) {
        if !self.waits.has_due(now.0) {
            return;
        }
        self.waits.prepare(now.0, most as usize, &mut moves);
        for _ in 0..most {
            if self.waits.ready(now.0).next().is_none() {
                return;
            }
            let Some(fired) = self.waits.pop_due(now.0) else {
                return;
            };
            match Waiter::from_bits(fired.payload) {
                Waiter::Debtor(debtor) => {
                    self.debtors[debtor].timer = NONE;
                    self.look_at_debtor(debtor);
                }
                Waiter::Queue(queue) => {
                    if let Some(limits) = self.queues[queue].limits.as_deref_mut() {
                        limits.timer = NONE;
                    }
                    self.await_queue(queue);
                    self.wake(self.queues[queue].content);
                }
            }
        }
    }

    /// Frees a debtor that owes nothing any more, and looks at its key again.
    pub(super) fn look_at_debtor(&mut self, debtor: u32) {
        let id = self.debtors[debtor].queue;
        let Some(queue) = self.queue_index(id) else {
            self.forget_debtor(debtor);
            return;
        };
        let now = self.limit_now().0;
        let state = LimitState::new(self.debtors[debtor].debt, 0);
        let limits = self.queues[queue].limits.as_deref();
        let name = self.debtors[debtor].key.clone();
        if limits.is_none_or(|limits| state.is_idle(&limits.key, now)) {
            self.forget_debtor(debtor);
        } else {
            self.await_debtor(queue, debtor);
        }
        let content = self.queues[queue].content;
        if let Some(key) = self.key_of(content, name.as_ref()) {
            self.refresh(key);
        }
    }

    fn forget_debtor(&mut self, debtor: u32) {
        self.owing_keys_fell |= self.owing_keys_left() == 0;
        let Debtor {
            queue, key, timer, ..
        } = self.debtors.remove(debtor);
        if timer != NONE {
            self.waits.remove(timer);
        }
        let index = self.queue_index(queue);
        if let Some(limits) = index.and_then(|index| self.queues[index].limits.as_deref_mut()) {
            limits.debtors -= 1;
        }
        let hash = debtor_hash(self.seed, queue, key.as_ref());
        self.by_debtor.remove(hash, |other| other == debtor);
    }

    /// Takes over limits of changed settings, and looks at the keys again.
    pub(super) fn change_limits(&mut self, queue: u32) {
        let now = self.clock.now.machine;
        let state = &mut self.queues[queue];
        let limits = state.settings.limits();
        let of_keys = both(limits.clone())[1].clone();
        let before = state
            .limits
            .as_ref()
            .map(|known| known.key.limits().clone());
        match &mut state.limits {
            Some(known) => known.change(limits, now),
            none => *none = QueueLimits::new(limits, now),
        }
        if before.unwrap_or_default() != of_keys
            && let Some(limits) = &mut state.limits
        {
            limits.walked = true;
            self.walks.next.insert(state.id);
        }
        self.await_queue(queue);
    }

    /// Frees what the keys of a deleted queue owe whose number a new one has, which it can have after damage only.
    pub(super) fn forget_earlier_debtors(&mut self, id: QueueId) {
        if self.walks.next.contains(&id) || self.walks.queues.contains(&id) {
            let debtors = self.debtors.iter();
            let earlier = debtors.filter(|(_, debtor)| debtor.queue == id);
            let earlier: Vec<u32> = earlier.map(|(index, _)| index).collect();
            for debtor in earlier {
                self.forget_debtor(debtor);
            }
        }
    }

    /// Frees what the keys of a deleted queue owe.
    pub(super) fn forget_limits(&mut self, id: QueueId, limits: Option<Box<QueueLimits>>) {
        let Some(limits) = limits else { return };
        if limits.timer != NONE {
            self.waits.remove(limits.timer);
        }
        self.walks.next.insert(id);
    }

    /// Walks on, which takes away from what is left: 1 at least, and [`LOOK`] too much at most.
    fn walk_limits(&mut self, left: &mut u32) {
        let mut walks = std::mem::take(&mut self.walks);
        *left = left.saturating_sub(1);
        walks.stage = match walks.stage {
            Stage::Over => {
                walks.queues = std::mem::take(&mut walks.next);
                Stage::Debtors(0)
            }
            Stage::Debtors(at) => match self.walk_debtors(&walks.queues, at, left) {
                Some(at) => Stage::Debtors(at),
                // Queues that are gone have no keys.
                None if !walks
                    .queues
                    .iter()
                    .any(|id| self.queue_index(*id).is_some()) =>
                {
                    Stage::Queues
                }
                None => Stage::Keys(0),
            },
            Stage::Keys(at) => match self.walk_keys(&walks.queues, at, left) {
                Some(at) => Stage::Keys(at),
                None => Stage::Queues,
            },
            Stage::Queues => {
                while *left > 0
                    && let Some(id) = walks.queues.pop_first()
                {
                    *left = left.saturating_sub(LOOK);
                    let Some(queue) = self.queue_index(id) else {
                        continue;
                    };
                    if let Some(limits) = self.queues[queue].limits.as_deref_mut() {
                        limits.walked = walks.next.contains(&id);
                    }
                    self.await_queue(queue);
                    self.wake(self.queues[queue].content);
                }
                match walks.queues.is_empty() {
                    true => Stage::Over,
                    false => Stage::Queues,
                }
            }
        };
        self.walks = walks;
    }

    /// Looks at debtors of these queues again, from that row on. Returns the row to go on with.
    fn walk_debtors(
        &mut self,
        queues: &BTreeSet<QueueId>,
        mut at: u32,
        left: &mut u32,
    ) -> Option<u32> {
        while (at as usize) < self.debtors.slots() {
            if *left == 0 {
                return Some(at);
            }
            *left -= 1;
            let debtor = self.debtors.get(at);
            if debtor.is_some_and(|debtor| queues.contains(&debtor.queue)) {
                *left = left.saturating_sub(LOOK);
                self.look_at_debtor(at);
            }
            at += 1;
        }
        None
    }

    /// The same of keys.
    fn walk_keys(
        &mut self,
        queues: &BTreeSet<QueueId>,
        mut at: u32,
        left: &mut u32,
    ) -> Option<u32> {
        while (at as usize) < self.keys.slots() {
            if *left == 0 {
                return Some(at);
            }
            *left -= 1;
            let of = self.keys.get(at).map(|key| &self.contents[key.content]);
            if of.is_some_and(|of| !of.dead && queues.contains(&self.queues[of.queue].id)) {
                *left = left.saturating_sub(LOOK);
                self.refresh(at);
            }
            at += 1;
        }
        None
    }

    /// Counts the keys that owe, after an image was loaded.
    pub(super) fn count_debtors(&mut self) {
        let ids: Vec<QueueId> = self
            .debtors
            .iter()
            .map(|(_, debtor)| debtor.queue)
            .collect();
        for id in ids {
            let index = self.queue_index(id);
            if let Some(limits) = index.and_then(|index| self.queues[index].limits.as_deref_mut()) {
                limits.debtors += 1;
            }
        }
    }

    /// Begins what is volatile, after an image was loaded.
    pub(super) fn settle_limits(&mut self) {
        let queues: Vec<u32> = self.queues.iter().map(|(index, _)| index).collect();
        for queue in queues {
            self.await_queue(queue);
            if self.queues[queue].limits.is_some() {
                // The image may be of the middle of a walk.
                self.walks.next.insert(self.queues[queue].id);
            }
        }
        // And of one for a queue that is gone by now.
        let of_debtors = self.debtors.iter().map(|(_, debtor)| debtor.queue);
        self.walks.next.extend(of_debtors);
    }
}

impl Content {
    /// The list for keys of that place.
    pub(super) fn keys_of(&mut self, place: Place) -> Option<&mut super::list::List> {
        match place {
            Place::Out => None,
            Place::Ready => Some(&mut self.ready_keys),
            Place::Limited => Some(&mut self.limited_keys),
        }
    }
}

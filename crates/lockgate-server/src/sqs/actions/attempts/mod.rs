//! Receives that can be asked for again: `ReceiveRequestAttemptId` of FIFO queues.
//!
//! Remembered is which leases an attempt was given. A repeat extends them, and reads their messages again.

mod turns;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use lockgate_core::{LeaseToken, MachineTime, Millis, QueueId, QueueName};
use lockgate_engine::{Engine, EngineError, Peeked, Received, ReceivedBatch};
use lockgate_machine::{Delivery, Settle, SettleAction, Transact};

pub(super) use self::turns::Turn;
use self::turns::Turns;
use crate::sqs::error::SqsError;

/// How long after an answer AWS repeats it. Repeating does not prolong it.
const SPAN: Millis = 300_000;

/// Leases that are remembered at most, a few hundred bytes each; beyond that the oldest answers are forgotten.
/// AWS names no limit. A client that repeats does so within seconds, and one that comes too late receives anew,
/// as after five minutes.
const LEASES_MAX: usize = 50_000;

/// Larger answers are not remembered. To restart the timeouts takes a command that grows with the
/// square of the messages of a group, and AWS's answers have ten at most.
const MESSAGES_MAX: usize = 100;

/// What a client calls a receive of a queue, to be able to ask for it again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) queue: QueueId,
    pub(super) id: Arc<str>,
}

/// Answers that can be repeated. Forgotten by a restart, which a client cannot tell from answers that
/// have been there for too long.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    memory: Mutex<Memory>,
    turns: Turns,
}

/// Leases that an answer and its repeats hand out. They go back with the last of these, unless the first byte of one
/// was on its way.
type Pending = Mutex<Option<ReceivedBatch>>;

/// One answer's share in leases.
#[derive(Debug)]
pub(super) struct Claim {
    /// `None`: they are kept already.
    pending: Option<Arc<Pending>>,
    is_kept: Arc<AtomicBool>,
}

impl Attempts {
    /// Waits until no other receive of that attempt is under way. Cancel safe.
    pub(super) async fn turn(&self, attempt: Attempt) -> Turn<'_> {
        self.turns.take(attempt).await
    }

    /// The messages that attempt was given, their timeouts restarted: the first so many as `fits` says
    /// the answer has room for. The others go back, and are no part of the attempt any more. `None`: it
    /// was given none, or not all of them are still its own; it may receive anew.
    pub(super) async fn repeat(
        &self,
        turn: &Turn<'_>,
        engine: &Engine,
        queue: &QueueName,
        lease: Millis,
        fits: impl FnOnce(&[Received]) -> usize,
    ) -> Result<Option<(Vec<Received>, Claim)>, SqsError> {
        let Some((answer, claim)) = self.recall(turn, engine) else {
            return Ok(None);
        };
        let mut received = Vec::with_capacity(answer.deliveries.len());
        for delivery in answer.deliveries.iter().cloned() {
            match engine.peek_one(queue.clone(), delivery.id).await {
                Ok(Peeked {
                    stored: Some(stored),
                    ..
                }) => received.push(Received { delivery, stored }),
                Ok(_) | Err(EngineError::Rejected(_)) => {
                    self.memory().forget(turn.attempt());
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let rest = received.split_off(fits(&received));
        let settle = |received: &Received, action| Settle {
            token: received.delivery.token,
            action,
        };
        let extend = |received| settle(received, SettleAction::Extend { lease });
        // One command: of messages that are not all there any more, none is kept longer.
        let extends = Transact {
            settles: received.iter().map(extend).collect(),
            ..Transact::default()
        };
        match engine.submit(extends).await {
            Ok(_) => {}
            Err(EngineError::Rejected(_)) => {
                self.memory().forget(turn.attempt());
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        if !rest.is_empty() {
            self.memory().shorten(turn.attempt(), received.len());
            // The last first, as they stand one behind the other. One that is not there any more needs
            // nothing.
            let back = rest.iter().rev();
            let back = back.map(|received| settle(received, SettleAction::GiveBack));
            engine.submit_all(back.collect()).await?;
        }
        Ok(Some((received, claim)))
    }

    fn recall(&self, turn: &Turn<'_>, engine: &Engine) -> Option<(Answer, Claim)> {
        let mut memory = self.memory();
        memory.expire(engine.now().machine);
        let answer = memory.get(turn.attempt())?.clone();
        let pending = answer.pending.upgrade();
        if pending.is_none() && !answer.is_kept.load(Ordering::Acquire) {
            memory.forget(turn.attempt());
            return None;
        }
        let is_kept = answer.is_kept.clone();
        Some((answer, Claim { pending, is_kept }))
    }

    /// Remembers what an attempt is given.
    pub(super) fn remember(&self, turn: &Turn<'_>, engine: &Engine, batch: ReceivedBatch) -> Claim {
        let deliveries = batch.iter().map(|received| received.delivery.clone());
        let deliveries = deliveries.collect();
        let pending = Arc::new(Mutex::new(Some(batch)));
        let is_kept = Arc::<AtomicBool>::default();
        let now = engine.now().machine;
        let mut memory = self.memory();
        memory.expire(now);
        memory.forget(turn.attempt());
        let answer = Answer {
            until: now.plus(SPAN),
            deliveries,
            pending: Arc::downgrade(&pending),
            is_kept: is_kept.clone(),
        };
        memory.insert(turn.attempt(), answer);
        Claim {
            pending: Some(pending),
            is_kept,
        }
    }

    /// The client deletes the message or changes its visibility: the answer it came with is not
    /// repeated any more.
    pub(super) fn settled(&self, lease: LeaseToken) {
        let mut memory = self.memory();
        if let Some(&place) = memory.by_lease.get(&lease) {
            memory.remove(place);
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }
}

impl Claim {
    /// The client has the answer, or part of it.
    pub(super) fn keep(self) {
        self.is_kept.store(true, Ordering::Release);
        let batch = self.pending.and_then(|pending| lock(&pending).take());
        drop(batch.map(ReceivedBatch::keep));
    }
}

/// What a receive was answered with.
#[derive(Clone, Debug)]
struct Answer {
    /// It is forgotten then.
    until: MachineTime,
    deliveries: Arc<[Delivery]>,
    pending: Weak<Pending>,
    is_kept: Arc<AtomicBool>,
}

/// An answer's place among all: when it is forgotten, and a number.
type Place = (MachineTime, u64);

#[derive(Debug, Default)]
struct Memory {
    answers: BTreeMap<Place, (Attempt, Answer)>,
    by_attempt: HashMap<Attempt, Place>,
    by_lease: HashMap<LeaseToken, Place>,
    next: u64,
}

impl Memory {
    fn get(&self, attempt: &Attempt) -> Option<&Answer> {
        let place = self.by_attempt.get(attempt)?;
        self.answers.get(place).map(|(_, answer)| answer)
    }

    /// Keeps the answer of an attempt that has none.
    fn insert(&mut self, attempt: &Attempt, answer: Answer) {
        if !(1..=MESSAGES_MAX).contains(&answer.deliveries.len()) {
            return;
        }
        let place = (answer.until, self.next);
        self.next += 1;
        let leases = answer.deliveries.iter().map(|delivery| delivery.token);
        self.by_lease.extend(leases.map(|lease| (lease, place)));
        self.by_attempt.insert(attempt.clone(), place);
        self.answers.insert(place, (attempt.clone(), answer));
        while self.by_lease.len() > LEASES_MAX
            && let Some((&oldest, _)) = self.answers.first_key_value()
        {
            self.remove(oldest);
        }
    }

    /// Leaves the first so many messages of an answer that is still kept.
    fn shorten(&mut self, attempt: &Attempt, len: usize) {
        if let Some(answer) = self.forget(attempt) {
            let deliveries = answer.deliveries[..len].into();
            let shorter = Answer {
                deliveries,
                ..answer
            };
            self.insert(attempt, shorter);
        }
    }

    /// The attempt may not be repeated any more.
    fn forget(&mut self, attempt: &Attempt) -> Option<Answer> {
        let &place = self.by_attempt.get(attempt)?;
        self.remove(place)
    }

    fn expire(&mut self, now: MachineTime) {
        while let Some((&oldest, _)) = self.answers.first_key_value()
            && oldest.0 <= now
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, place: Place) -> Option<Answer> {
        let (attempt, answer) = self.answers.remove(&place)?;
        self.by_attempt.remove(&attempt);
        for delivery in &*answer.deliveries {
            self.by_lease.remove(&delivery.token);
        }
        Some(answer)
    }
}

/// A panic elsewhere leaves nothing half changed in what is locked here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lockgate_core::{
        Epoch, Incarnation, LeaseNumber, Location, MessageId, Sequence, Term, WallTime,
    };

    use super::*;

    #[test]
    fn the_oldest_answers_go_first_and_leave_nothing_behind() {
        let mut memory = Memory::default();
        let term = Term {
            epoch: Epoch(1),
            incarnation: Incarnation(1),
            ..Term::default()
        };
        let delivery = |number| Delivery {
            token: LeaseToken {
                queue: QueueId(1),
                sequence: Sequence(number),
                message: MessageId::from_bits(number.into()),
                term,
                lease: LeaseNumber(number),
            },
            id: MessageId::from_bits(number.into()),
            location: Location::default(),
            attempt: 1,
            first_leased: WallTime(0),
            deadline: MachineTime(0),
            origin: None,
            failures: None,
            state: None,
        };
        let attempt = |number: u64| Attempt {
            queue: QueueId(1),
            id: number.to_string().into(),
        };
        let per_answer = MESSAGES_MAX as u64;
        let answers = LEASES_MAX as u64 / per_answer;
        let answer = |number, len| Answer {
            until: MachineTime(number),
            deliveries: (0..len)
                .map(|at| delivery(number * per_answer + at))
                .collect(),
            pending: Weak::new(),
            is_kept: Arc::default(),
        };
        for number in 0..=answers {
            memory.insert(&attempt(number), answer(number, per_answer));
        }
        assert!(memory.get(&attempt(0)).is_none());
        assert!(memory.get(&attempt(1)).is_some());
        // What is too large is not kept, and pushes nothing out.
        let larger = answers + 1;
        memory.insert(&attempt(larger), answer(larger, per_answer + 1));
        assert!(memory.get(&attempt(larger)).is_none());
        assert_eq!(memory.by_lease.len(), LEASES_MAX);
        memory.expire(MachineTime(answers));
        let left = (memory.answers.len(), memory.by_attempt.len());
        assert_eq!((left, memory.by_lease.len()), ((0, 0), 0));
    }
}

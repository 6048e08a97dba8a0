//! Receives that can be asked for again: `ReceiveRequestAttemptId` of FIFO queues.

mod memory;
mod turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lockgate_core::{LeaseToken, Millis};
use lockgate_engine::{Engine, EngineError, Received, ReceivedBatch};
use lockgate_machine::{Settle, SettleAction, Transact};

pub(super) use self::{memory::Attempt, turns::Turn};
use self::{
    memory::{Limits, Memory},
    turns::Turns,
};
use crate::sqs::error::SqsError;

/// What all remembered answers take at most. AWS names no limit; a client that repeats does so within
/// seconds, and one that comes too late receives anew, as after five minutes.
const LIMITS: Limits = Limits {
    bytes: 64 << 20,
    answers: 10_000,
};

/// Larger answers are not remembered. To restart the timeouts takes a command that grows with the
/// square of the messages of a group, and AWS's answers have ten at most.
const MESSAGES_MAX: usize = 100;

/// About what a message takes beside its body and its attributes.
const MESSAGE_BYTES: usize = 1024;

/// Answers that can be repeated. Forgotten by a restart, which a client cannot tell from answers that
/// have been there for too long.
#[derive(Debug)]
pub(super) struct Attempts {
    memory: Mutex<Memory<Answer>>,
    turns: Turns,
}

/// What a receive was answered with.
#[derive(Clone, Debug)]
struct Answer {
    received: Arc<[Received]>,
    leases: Arc<SharedLeases>,
}

/// Leases that an answer and its repeats hand out: kept when the first byte of any of these is on its
/// way, given back when none of them is left that could be.
#[derive(Debug)]
struct SharedLeases(Mutex<LeaseState>);

#[derive(Debug)]
enum LeaseState {
    /// No client has them yet; so many answers may still reach one.
    Pending {
        batch: ReceivedBatch,
        answers: usize,
    },
    Kept,
    GivenBack,
}

/// One answer's share in leases.
#[derive(Debug)]
pub(super) struct Claim(Arc<SharedLeases>);

impl Default for Attempts {
    fn default() -> Self {
        Self {
            memory: Mutex::new(Memory::new(LIMITS)),
            turns: Turns::default(),
        }
    }
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
        lease: Millis,
        fits: impl FnOnce(&[Received]) -> usize,
    ) -> Result<Option<(Arc<[Received]>, Claim)>, SqsError> {
        let Some((answer, claim)) = self.recall(turn, engine) else {
            return Ok(None);
        };
        let (kept, rest) = answer.received.split_at(fits(&answer.received));
        let settle = |received: &Received, action| Settle {
            token: received.delivery.token,
            action,
        };
        let extend = |received| settle(received, SettleAction::Extend { lease });
        // One command: of messages that are not all there any more, none is kept longer.
        let settles = kept.iter().map(extend).collect();
        let sends = vec![];
        match engine.submit(Transact { settles, sends }).await {
            Ok(_) => {}
            Err(EngineError::Rejected(_)) => {
                self.memory().forget(turn.attempt());
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        if rest.is_empty() {
            return Ok(Some((answer.received, claim)));
        }
        let received: Arc<[Received]> = kept.into();
        let tokens = tokens(&received);
        if tokens.is_empty() {
            self.memory().forget(turn.attempt());
        } else {
            let shorter = Answer {
                received: Arc::clone(&received),
                leases: answer.leases,
            };
            let bytes = received.iter().map(bytes_of).sum();
            self.memory()
                .shorten(turn.attempt(), tokens, bytes, shorter);
        }
        // The last first, as they stand one behind the other. One that is not there any more needs
        // nothing.
        let back = rest.iter().rev();
        let back = back.map(|received| settle(received, SettleAction::GiveBack));
        engine.submit_all(back.collect()).await?;
        Ok(Some((received, claim)))
    }

    fn recall(&self, turn: &Turn<'_>, engine: &Engine) -> Option<(Answer, Claim)> {
        let mut memory = self.memory();
        let answer = memory.recall(turn.attempt(), engine.now().machine)?.clone();
        let Some(claim) = answer.leases.claim() else {
            memory.forget(turn.attempt());
            return None;
        };
        Some((answer, claim))
    }

    /// Remembers what an attempt is given.
    pub(super) fn remember(&self, turn: &Turn<'_>, engine: &Engine, batch: ReceivedBatch) -> Claim {
        let received: Arc<[Received]> = match batch.len() {
            1..=MESSAGES_MAX => batch.iter().map(detached).collect(),
            _ => Arc::default(),
        };
        let leases = Arc::new(SharedLeases(Mutex::new(LeaseState::Pending {
            batch,
            answers: 1,
        })));
        let claim = Claim(Arc::clone(&leases));
        self.remember_answer(turn, engine, received, leases);
        claim
    }

    fn remember_answer(
        &self,
        turn: &Turn<'_>,
        engine: &Engine,
        received: Arc<[Received]>,
        leases: Arc<SharedLeases>,
    ) {
        let attempt = turn.attempt().clone();
        let tokens = tokens(&received);
        let bytes = received.iter().map(bytes_of).sum();
        let mut memory = self.memory();
        if tokens.is_empty() {
            memory.forget(&attempt);
        } else {
            let answer = Answer { received, leases };
            memory.remember(attempt, tokens, bytes, answer, engine.now().machine);
        }
    }

    /// The client deletes the message or changes its visibility: the answer it came with is not
    /// repeated any more.
    pub(super) fn settled(&self, lease: LeaseToken) {
        self.memory().settled(lease);
    }

    fn memory(&self) -> MutexGuard<'_, Memory<Answer>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tokens(received: &[Received]) -> Vec<LeaseToken> {
    let tokens = received.iter().map(|received| received.delivery.token);
    tokens.collect()
}

impl SharedLeases {
    /// A share for one more answer; `None` if the leases are gone.
    fn claim(self: &Arc<Self>) -> Option<Claim> {
        match &mut *self.state() {
            LeaseState::Pending { answers, .. } => *answers += 1,
            LeaseState::Kept => {}
            LeaseState::GivenBack => return None,
        }
        Some(Claim(Arc::clone(self)))
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The client has the answer, or part of it.
    pub(super) fn keep(self) {
        let state = std::mem::replace(&mut *self.0.state(), LeaseState::Kept);
        if let LeaseState::Pending { batch, .. } = state {
            drop(batch.keep());
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let LeaseState::Pending { answers, .. } = &mut *state {
            *answers -= 1;
            if *answers == 0 {
                // Drops the batch, under the lock: no repeat can take the leases for its own first.
                *state = LeaseState::GivenBack;
            }
        }
    }
}

/// The same with bytes of its own: as it comes, it keeps all of the record that it was sent with.
fn detached(received: &Received) -> Received {
    let mut received = received.clone();
    let message = &mut received.stored.message;
    message.body = Bytes::copy_from_slice(&message.body);
    for header in &mut message.headers {
        header.value = Bytes::copy_from_slice(&header.value);
    }
    received
}

fn bytes_of(received: &Received) -> usize {
    let message = &received.stored.message;
    let headers = message.headers.iter().map(|header| {
        size_of_val(header) + header.name.len() + header.kind.len() + header.value.len()
    });
    MESSAGE_BYTES + message.body.len() + headers.sum::<usize>()
}

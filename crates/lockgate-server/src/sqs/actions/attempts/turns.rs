//! One receive of an attempt at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use super::Attempt;

/// Lets the receives of an attempt pass one after the other, so that the second finds the answer of
/// the first and does not take messages of its own.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Attempt, Arc<Line>>>);

/// Those who receive under one attempt now.
#[derive(Debug, Default)]
struct Line {
    first: Arc<AsyncMutex<()>>,
    /// How many have come.
    arrived: watch::Sender<u64>,
}

/// The right to receive under an attempt, until it is dropped.
#[derive(Debug)]
pub(in super::super) struct Turn<'a> {
    turns: &'a Turns,
    attempt: Attempt,
    line: Arc<Line>,
    number: u64,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for those who came before. Cancel safe.
    pub(super) async fn take(&self, attempt: Attempt) -> Turn<'_> {
        let mut turn = {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let line = Arc::clone(lines.entry(attempt.clone()).or_default());
            line.arrived.send_modify(|arrived| *arrived += 1);
            let number = *line.arrived.borrow();
            Turn {
                turns: self,
                attempt,
                line,
                number,
                held: None,
            }
        };
        turn.held = Some(Arc::clone(&turn.line.first).lock_owned().await);
        turn
    }
}

impl Turn<'_> {
    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Waits until somebody else comes for the attempt: whoever asked first has given up on it.
    /// Returns at once if somebody has. Cancel safe.
    pub(in super::super) async fn is_contested(&self) {
        let mut arrived = self.line.arrived.subscribe();
        // The sender is in the line, which we hold.
        let _ = arrived.wait_for(|&arrived| arrived != self.number).await;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Ours and the table's; nobody can join while the table is locked.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.attempt);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task};

    use lockgate_core::QueueId;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = task::Context::from_waker(task::Waker::noop());
        match future.poll(&mut context) {
            task::Poll::Ready(output) => Some(output),
            task::Poll::Pending => None,
        }
    }

    fn attempt(id: &str) -> Attempt {
        Attempt {
            queue: QueueId(1),
            id: id.into(),
        }
    }

    #[test]
    fn receives_of_an_attempt_pass_one_by_one_and_leave_nothing_behind() {
        let turns = Turns::default();
        let first = poll(pin!(turns.take(attempt("a")))).expect("nobody is before it");
        let other = poll(pin!(turns.take(attempt("b")))).expect("another attempt");
        assert!(poll(pin!(first.is_contested())).is_none());
        {
            let mut second = pin!(turns.take(attempt("a")));
            assert!(poll(second.as_mut()).is_none(), "the first has its turn");
            assert!(poll(pin!(first.is_contested())).is_some());
            // Who gives up waiting does not stand in the way.
            assert!(poll(pin!(turns.take(attempt("a")))).is_none());
            drop(first);
            let second = poll(second).expect("its turn has come");
            assert!(poll(pin!(second.is_contested())).is_some(), "by the third");
        }
        drop(other);
        assert!(turns.0.lock().unwrap().is_empty());
    }
}

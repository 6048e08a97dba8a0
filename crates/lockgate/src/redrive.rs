//! Moves messages to another queue, such as dead letters back.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
};

use lockgate_core::QueueName;
use lockgate_engine::Engine;
use lockgate_machine::{Move, MoveTo, Moved};

use crate::{Error, Queue};

/// Builds a move of messages to another queue. Await it to move them.
/// [`Queue::redrive`](crate::Queue::redrive) makes one.
#[derive(Clone)]
#[must_use = "nothing is moved before it is awaited"]
pub struct RedriveBuilder {
    engine: Engine,
    from: QueueName,
    to: MoveTo,
    /// The engine of that queue, which may be under a fence.
    other: Option<Engine>,
    max: u64,
}

impl RedriveBuilder {
    pub(crate) fn new(engine: Engine, from: QueueName) -> Self {
        Self {
            engine,
            from,
            to: MoveTo::Origins,
            other: None,
            max: u64::MAX,
        }
    }

    /// Moves all messages to this queue, which must be keyed exactly if the one they come from is.
    /// Default: each message goes to the queue whose dead letter it is.
    pub fn to(mut self, queue: &Queue) -> Self {
        self.to = MoveTo::Queue(queue.name().clone());
        self.other = Some(queue.engine().clone());
        self
    }

    /// Sets how many messages to move at most. Default: no limit. It moves none that came after it has begun, so
    /// it ends although messages come back meanwhile.
    pub fn max(mut self, messages: u64) -> Self {
        self.max = messages;
        self
    }

    async fn run(self) -> Result<Moved, Error> {
        let Self {
            engine,
            from,
            to,
            other,
            max,
        } = self;
        let engine = engine.joint(&other)?;
        let mut done = Moved {
            moved: 0,
            left: 0,
            stuck: None,
            next: None,
        };
        while done.moved < max {
            let step = u16::try_from(max - done.moved).unwrap_or(u16::MAX);
            let step = step.min(Move::MESSAGES_MAX);
            let command = Move {
                from: from.clone(),
                to: to.clone(),
                max: step,
                cursor: done.next,
            };
            let step = match engine.submit(command).await {
                Ok(moved) => moved,
                Err(source) if done.moved > 0 => {
                    let moved = done.moved;
                    return Err(Error::Redrive { moved, source });
                }
                Err(error) => return Err(error.into()),
            };
            let waits = step.moved == 0 && step.next == done.next;
            done = Moved {
                moved: done.moved + step.moved,
                ..step
            };
            if done.next.is_none() || waits {
                break;
            }
        }
        Ok(done)
    }
}

impl IntoFuture for RedriveBuilder {
    type Output = Result<Moved, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

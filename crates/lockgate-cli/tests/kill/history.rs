//! What every client saw: the only thing the checker reads.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Time since the start of the run, on one monotonic clock for all clients.
pub(crate) type Time = Duration;

/// One attempt to send one message.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) id: String,
    pub(crate) key: String,
    /// Which message of its key it is, from 1, in the order in which its producer sent them.
    pub(crate) number: u64,
    pub(crate) call: Time,
    pub(crate) returned: Time,
    /// What the server answered; `None`: no answer came, the message may or may not be there.
    pub(crate) accepted: Option<Accepted>,
}

/// The server's promise that it has a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) message: String,
    pub(crate) sequence: String,
}

/// One message handed to one consumer.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) as_accepted: Accepted,
    pub(crate) consumer: usize,
    pub(crate) attempt: u32,
    /// Place in the answer that brought it.
    pub(crate) place: usize,
    pub(crate) call: Time,
    pub(crate) returned: Time,
    /// How long the server leases messages out.
    pub(crate) lease: Duration,
}

/// One attempt to settle one delivery.
#[derive(Clone, Debug)]
pub(crate) struct Settle {
    /// Index of the delivery.
    pub(crate) delivery: usize,
    pub(crate) action: Action,
    pub(crate) call: Time,
    pub(crate) returned: Time,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ack,
    /// The message goes back to its place at once.
    Nack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// No answer came.
    Unknown,
    /// The lease had ended: nothing was done.
    Stale,
}

/// All that was seen, each list in the order of the returns.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) sends: Vec<Send>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) settles: Vec<Settle>,
}

impl Records {
    /// How many answers there were: grows as long as the run gets anywhere.
    pub(crate) fn answered(&self) -> usize {
        let sends = self.sends.iter().filter(|send| send.accepted.is_some());
        let settles = self
            .settles
            .iter()
            .filter(|settle| settle.outcome != Outcome::Unknown);
        sends.count() + settles.count() + self.deliveries.len()
    }
}

/// Shared by all clients of a run.
#[derive(Clone)]
pub(crate) struct History {
    started: Instant,
    records: Arc<Mutex<Records>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            records: Arc::default(),
        }
    }
}

impl History {
    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// Reads or adds records.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Records) -> T) -> T {
        // A task that panicked fails the test; its records are still worth showing.
        act(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

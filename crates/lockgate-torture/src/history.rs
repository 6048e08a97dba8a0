//! What every client saw: the only thing the checker reads.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{keeper::Step, publisher};

/// Time since the start of the run, on one monotonic clock for all clients.
pub(crate) type Time = Duration;

/// One attempt to send one message.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) id: String,
    /// `None` on a queue without keys.
    pub(crate) key: Option<String>,
    /// Which message of its key it is, from 1, in the order in which its producer sent them.
    pub(crate) number: u64,
    pub(crate) call: Time,
    pub(crate) returned: Time,
    pub(crate) answer: Answer,
}

/// What the server said to a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted(Accepted),
    Refused,
    /// No answer came, or none that says: the message may or may not be there.
    Unknown,
}

impl Answer {
    pub(crate) fn accepted(&self) -> Option<&Accepted> {
        match self {
            Self::Accepted(accepted) => Some(accepted),
            Self::Refused | Self::Unknown => None,
        }
    }
}

/// The server's promise that it has a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) message: String,
    /// Keyed queues number their messages.
    pub(crate) sequence: Option<String>,
}

/// One message handed to one consumer.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) key: Option<String>,
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
    /// Nothing happened, and it may be asked again.
    Refused,
    /// No answer came.
    Unknown,
    /// The lease had ended: nothing was done.
    Stale,
}

/// Something that happened to the server.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The process was killed.
    Kill,
    /// The disk lost what was not synced, in the life of one boot. Leases are not synced and only a
    /// new boot waits for those it may have lost, so every lease counts as over.
    LoseUnsynced,
    /// The disk lost what was not synced, and the server's next life is in another boot.
    PowerCut,
    /// Nothing could be written from the first to the last instant.
    Freeze,
}

/// All that was seen, each list in the order of the returns.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) sends: Vec<Send>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) settles: Vec<Settle>,
    pub(crate) events: Vec<Event>,
    /// What keepers saw.
    pub(crate) steps: Vec<Step>,
    /// What was published, and what came of it.
    pub(crate) published: Vec<publisher::Seen>,
}

impl Records {
    /// How many answers there were: grows as long as the run gets anywhere.
    pub(crate) fn answered(&self) -> usize {
        let sends = self.sends.iter();
        let settles = self.settles.iter();
        sends.filter(|send| send.answer != Answer::Unknown).count()
            + settles
                .filter(|settle| settle.outcome != Outcome::Unknown)
                .count()
            + self.deliveries.len()
    }

    /// How many requests nobody was told the outcome of.
    pub(crate) fn unknown(&self) -> usize {
        let sends = self.sends.iter();
        let settles = self.settles.iter();
        sends.filter(|send| send.answer == Answer::Unknown).count()
            + settles
                .filter(|settle| settle.outcome == Outcome::Unknown)
                .count()
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
        // A task that panicked fails the run; its records are still worth showing.
        act(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes what happened to the server from an instant until now.
    pub(crate) fn happened(&self, kind: EventKind, from: Time) {
        let to = self.now();
        self.with(|records| records.events.push(Event { kind, from, to }));
    }
}

//! Receives that wait for a message: first come, first served, in each queue.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockgate_core::{MachineTime, QueueId};
use lockgate_machine::Receive;

/// All waiting receives of a shard. Every operation takes O(log n).
#[derive(Debug)]
pub(crate) struct Waiters<T> {
    /// In order of arrival per queue; numbers only grow.
    queues: HashMap<QueueId, BTreeMap<u64, Waiter<T>>>,
    deadlines: BTreeSet<(MachineTime, u64, QueueId)>,
    next_number: u64,
}

#[derive(Debug)]
pub(crate) struct Waiter<T> {
    pub(crate) receive: Receive,
    pub(crate) until: MachineTime,
    pub(crate) ticket: T,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_number: 0,
        }
    }
}

impl<T> Waiters<T> {
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub(crate) fn push(&mut self, queue: QueueId, waiter: Waiter<T>) {
        let number = self.next_number;
        self.next_number += 1;
        self.deadlines.insert((waiter.until, number, queue));
        self.queues.entry(queue).or_default().insert(number, waiter);
    }

    /// The oldest waiter of a queue.
    pub(crate) fn first(&self, queue: QueueId) -> Option<&Waiter<T>> {
        let (_number, waiter) = self.queues.get(&queue)?.first_key_value()?;
        Some(waiter)
    }

    /// Takes the oldest waiter of a queue out.
    pub(crate) fn pop(&mut self, queue: QueueId) -> Option<Waiter<T>> {
        let number = *self.queues.get(&queue)?.first_key_value()?.0;
        self.remove(queue, number)
    }

    /// Takes the waiter with the earliest end out, if its time has run out by `now`.
    pub(crate) fn pop_ended(&mut self, now: MachineTime) -> Option<Waiter<T>> {
        let &(until, number, queue) = self.deadlines.first()?;
        (until <= now).then(|| self.remove(queue, number)).flatten()
    }

    /// When the next waiter's time runs out.
    pub(crate) fn next_deadline(&self) -> Option<MachineTime> {
        self.deadlines.first().map(|&(until, ..)| until)
    }

    /// Removes all waiters that `gone` selects.
    pub(crate) fn sweep(&mut self, gone: impl Fn(&T) -> bool) {
        let deadlines = &mut self.deadlines;
        self.queues.retain(|&queue, waiters| {
            waiters.retain(|&number, waiter| {
                let keep = !gone(&waiter.ticket);
                if !keep {
                    deadlines.remove(&(waiter.until, number, queue));
                }
                keep
            });
            !waiters.is_empty()
        });
    }

    fn remove(&mut self, queue: QueueId, number: u64) -> Option<Waiter<T>> {
        let waiters = self.queues.get_mut(&queue)?;
        let waiter = waiters.remove(&number)?;
        if waiters.is_empty() {
            self.queues.remove(&queue);
        }
        self.deadlines.remove(&(waiter.until, number, queue));
        Some(waiter)
    }
}

//! Requests that wait: receives for a message, first come, first served in each queue; watches for a change of
//! their record.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};

use lockgate_core::MachineTime;

/// All waiting requests of one kind, by what they wait for. Every operation takes O(log n).
#[derive(Debug)]
pub(crate) struct Waiters<K, R, T> {
    /// In order of arrival; numbers only grow.
    waiting: HashMap<K, BTreeMap<u64, Waiter<R, T>>>,
    deadlines: BTreeSet<(MachineTime, u64, K)>,
    next_number: u64,
}

#[derive(Debug)]
pub(crate) struct Waiter<R, T> {
    pub(crate) request: R,
    pub(crate) until: MachineTime,
    pub(crate) ticket: T,
}

impl<K, R, T> Default for Waiters<K, R, T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_number: 0,
        }
    }
}

impl<K: Clone + Ord + Hash, R, T> Waiters<K, R, T> {
    pub(crate) fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub(crate) fn push(&mut self, of: K, waiter: Waiter<R, T>) {
        let number = self.next_number;
        self.next_number += 1;
        self.deadlines.insert((waiter.until, number, of.clone()));
        self.waiting.entry(of).or_default().insert(number, waiter);
    }

    /// The oldest waiter.
    pub(crate) fn first(&self, of: &K) -> Option<&Waiter<R, T>> {
        let (_number, waiter) = self.waiting.get(of)?.first_key_value()?;
        Some(waiter)
    }

    /// Takes the oldest waiter out.
    pub(crate) fn pop(&mut self, of: &K) -> Option<Waiter<R, T>> {
        let number = *self.waiting.get(of)?.first_key_value()?.0;
        self.remove(of, number)
    }

    /// Takes those out whose request is done, oldest first.
    pub(crate) fn take(&mut self, of: &K, is_done: impl Fn(&R) -> bool) -> Vec<Waiter<R, T>> {
        let Some(waiting) = self.waiting.get(of) else {
            return Vec::new();
        };
        let done = waiting.iter().filter(|(_, it)| is_done(&it.request));
        let numbers: Vec<u64> = done.map(|(&number, _)| number).collect();
        let taken = numbers.into_iter();
        taken.filter_map(|number| self.remove(of, number)).collect()
    }

    /// Takes the waiter with the earliest end out, if its time has run out by `now`.
    pub(crate) fn pop_ended(&mut self, now: MachineTime) -> Option<(K, Waiter<R, T>)> {
        let (_, number, of) = self.deadlines.first().filter(|(until, ..)| *until <= now)?;
        let (number, of) = (*number, of.clone());
        let waiter = self.remove(&of, number)?;
        Some((of, waiter))
    }

    /// When the next waiter's time runs out.
    pub(crate) fn next_deadline(&self) -> Option<MachineTime> {
        self.deadlines.first().map(|(until, ..)| *until)
    }

    /// Removes all waiters that `gone` selects.
    pub(crate) fn sweep(&mut self, gone: impl Fn(&T) -> bool) {
        let deadlines = &mut self.deadlines;
        self.waiting.retain(|of, waiters| {
            waiters.retain(|&number, waiter| {
                let keep = !gone(&waiter.ticket);
                if !keep {
                    deadlines.remove(&(waiter.until, number, of.clone()));
                }
                keep
            });
            !waiters.is_empty()
        });
    }

    fn remove(&mut self, of: &K, number: u64) -> Option<Waiter<R, T>> {
        let waiters = self.waiting.get_mut(of)?;
        let waiter = waiters.remove(&number)?;
        if waiters.is_empty() {
            self.waiting.remove(of);
        }
        self.deadlines.remove(&(waiter.until, number, of.clone()));
        Some(waiter)
    }
}

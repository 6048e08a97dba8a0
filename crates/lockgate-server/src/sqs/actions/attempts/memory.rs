//! Which answers may be repeated: no clock, no I/O.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use lockgate_core::{LeaseToken, MachineTime, Millis, QueueId};

/// What a client calls a receive of a queue, to be able to ask for it again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Attempt {
    pub(in super::super) queue: QueueId,
    pub(in super::super) id: Arc<str>,
}

/// What is kept at most, whoever asks. Beyond either, the oldest answers are forgotten first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) answers: usize,
}

/// Answers by their attempts, each for five minutes at most.
#[derive(Debug)]
pub(super) struct Memory<A> {
    limits: Limits,
    /// By number: the oldest first.
    answers: BTreeMap<u64, Remembered<A>>,
    by_attempt: HashMap<Attempt, u64>,
    by_lease: HashMap<LeaseToken, u64>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Remembered<A> {
    attempt: Attempt,
    leases: Vec<LeaseToken>,
    bytes: usize,
    until: MachineTime,
    answer: A,
}

impl<A> Memory<A> {
    /// How long after an answer AWS repeats it. Repeating does not prolong it.
    const SPAN: Millis = 300_000;

    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            answers: BTreeMap::new(),
            by_attempt: HashMap::new(),
            by_lease: HashMap::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Keeps an answer, in place of an earlier one of the same attempt. One that is larger than all
    /// that may be kept is not kept.
    pub(super) fn remember(
        &mut self,
        attempt: Attempt,
        leases: Vec<LeaseToken>,
        bytes: usize,
        answer: A,
        now: MachineTime,
    ) {
        self.forget(&attempt);
        self.expire(now);
        if bytes > self.limits.bytes {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_attempt.insert(attempt.clone(), number);
        self.by_lease
            .extend(leases.iter().map(|lease| (*lease, number)));
        let remembered = Remembered {
            attempt,
            leases,
            bytes,
            until: now.plus(Self::SPAN),
            answer,
        };
        self.answers.insert(number, remembered);
        while self.bytes > self.limits.bytes || self.answers.len() > self.limits.answers {
            self.drop_oldest();
        }
    }

    /// Puts a shorter answer in the place of one that is still kept, for no longer than that would have
    /// been.
    pub(super) fn shorten(
        &mut self,
        attempt: &Attempt,
        leases: Vec<LeaseToken>,
        bytes: usize,
        answer: A,
    ) {
        let Some((number, kept)) = self
            .by_attempt
            .get(attempt)
            .and_then(|&number| self.answers.get_mut(&number).map(|kept| (number, kept)))
        else {
            return;
        };
        self.bytes = self.bytes - kept.bytes + bytes;
        for lease in &kept.leases {
            self.by_lease.remove(lease);
        }
        self.by_lease
            .extend(leases.iter().map(|lease| (*lease, number)));
        (kept.leases, kept.bytes, kept.answer) = (leases, bytes, answer);
    }

    /// The answer that attempt was given, if it may be repeated.
    pub(super) fn recall(&mut self, attempt: &Attempt, now: MachineTime) -> Option<&A> {
        self.expire(now);
        let remembered = self.answers.get(self.by_attempt.get(attempt)?)?;
        Some(&remembered.answer)
    }

    /// The attempt may not be repeated any more.
    pub(super) fn forget(&mut self, attempt: &Attempt) {
        if let Some(&number) = self.by_attempt.get(attempt) {
            self.drop_answer(number);
        }
    }

    /// The client does something with that lease: the answer it came with is over.
    pub(super) fn settled(&mut self, lease: LeaseToken) {
        if let Some(&number) = self.by_lease.get(&lease) {
            self.drop_answer(number);
        }
    }

    fn expire(&mut self, now: MachineTime) {
        while let Some(oldest) = self.answers.first_entry()
            && oldest.get().until <= now
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((&number, _)) = self.answers.first_key_value() {
            self.drop_answer(number);
        }
    }

    fn drop_answer(&mut self, number: u64) {
        let Some(gone) = self.answers.remove(&number) else {
            return;
        };
        self.bytes -= gone.bytes;
        self.by_attempt.remove(&gone.attempt);
        for lease in gone.leases {
            self.by_lease.remove(&lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Epoch, Incarnation, LeaseNumber, MessageId, Sequence, ShardId, Term};

    use super::*;

    const START: MachineTime = MachineTime(1_000);

    fn memory() -> Memory<&'static str> {
        Memory::new(Limits {
            bytes: 100,
            answers: 3,
        })
    }

    fn attempt(queue: u32, id: &str) -> Attempt {
        Attempt {
            queue: QueueId(queue),
            id: id.into(),
        }
    }

    fn lease(number: u64) -> LeaseToken {
        LeaseToken {
            queue: QueueId(1),
            sequence: Sequence(number),
            message: MessageId::from_bits(u128::from(number)),
            term: Term {
                shard: ShardId::default(),
                epoch: Epoch(1),
                incarnation: Incarnation(1),
            },
            lease: LeaseNumber(number),
        }
    }

    fn recall(memory: &mut Memory<&'static str>, attempt: &Attempt, after: Millis) -> String {
        let answer = memory.recall(attempt, START.plus(after));
        answer.copied().unwrap_or_default().to_owned()
    }

    fn is_empty(memory: &Memory<&'static str>) -> bool {
        memory.answers.is_empty()
            && memory.by_attempt.is_empty()
            && memory.by_lease.is_empty()
            && memory.bytes == 0
    }

    #[test]
    fn an_answer_is_repeated_for_five_minutes_on_its_own_queue() {
        let mut memory = memory();
        memory.remember(attempt(1, "a"), vec![lease(1)], 10, "first", START);
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 299_999), "first");
        assert_eq!(recall(&mut memory, &attempt(1, "b"), 299_999), "");
        assert_eq!(recall(&mut memory, &attempt(2, "a"), 299_999), "");
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 300_000), "");
        assert!(is_empty(&memory), "{memory:?}");
    }

    #[test]
    fn a_lease_that_is_settled_ends_its_answer_alone() {
        let mut memory = memory();
        let leases = vec![lease(1), lease(2)];
        memory.remember(attempt(1, "a"), leases.clone(), 10, "first", START);
        memory.remember(attempt(1, "b"), vec![lease(3)], 10, "second", START);
        memory.settled(lease(4));
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 0), "first");
        memory.settled(lease(2));
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 0), "");
        assert_eq!(recall(&mut memory, &attempt(1, "b"), 0), "second");
        memory.forget(&attempt(1, "b"));
        assert!(is_empty(&memory), "{memory:?}");
    }

    #[test]
    fn a_later_answer_takes_the_place_of_an_earlier_one_and_outlives_its_leases() {
        let mut memory = memory();
        memory.remember(attempt(1, "a"), vec![lease(1)], 60, "first", START);
        memory.remember(attempt(1, "a"), vec![lease(2)], 60, "second", START.plus(1));
        memory.settled(lease(1));
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 300_000), "second");
        assert_eq!(memory.bytes, 60);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_large() {
        let mut memory = memory();
        for (id, number) in ["a", "b", "c", "d"].into_iter().zip(1..) {
            memory.remember(attempt(1, id), vec![lease(number)], 10, "small", START);
        }
        assert_eq!(recall(&mut memory, &attempt(1, "a"), 0), "");
        assert_eq!(recall(&mut memory, &attempt(1, "b"), 0), "small");
        // Eighty bytes leave room for two of ten.
        memory.remember(attempt(1, "e"), vec![lease(5)], 80, "large", START);
        assert_eq!(memory.bytes, 100);
        assert_eq!(recall(&mut memory, &attempt(1, "b"), 0), "");
        assert_eq!(recall(&mut memory, &attempt(1, "c"), 0), "small");
        // What would not fit alone does not push out the others.
        memory.remember(attempt(1, "f"), vec![lease(6)], 101, "too large", START);
        assert_eq!(recall(&mut memory, &attempt(1, "f"), 0), "");
        assert_eq!(recall(&mut memory, &attempt(1, "e"), 0), "large");
        // Nor does what it was to replace stay.
        memory.remember(attempt(1, "e"), vec![lease(7)], 101, "too large", START);
        assert_eq!(recall(&mut memory, &attempt(1, "e"), 0), "");
    }
}

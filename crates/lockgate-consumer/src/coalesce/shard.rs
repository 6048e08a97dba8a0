//! A part of the keys: what a coalescer keeps behind one lock.
//!
//! # Invariants
//! - An entry is made, changed and removed under the shard's lock, so there is one for a key. There is one exactly
//!   while somebody runs: what waits without a run is started or forgotten before the lock is given back.
//! - Whoever waits is in `waiters`, until it withdraws or there is something to tell it. It is told after the lock has
//!   been given back.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry as Slot};
use lockgate_core::Millis;

use super::{
    Batch, CoalesceCounts, KeyState, Merge, Rejection, Stale, Token, Verdict, options::MeasureFn,
};

/// What all keys have in common.
pub(super) struct Rules<P> {
    pub(super) merge: Merge<P>,
    pub(super) measure: Arc<MeasureFn<P>>,
    pub(super) lease: Option<Millis>,
}

/// A part of the keys. `S` is by what a caller that waits is told.
pub(super) struct Shard<K, P, S> {
    entries: HashTable<Entry<K, P, S>>,
    /// The last token, and the last number of a caller that waits.
    last: u64,
    pub(super) counts: CoalesceCounts,
}

struct Entry<K, P, S> {
    key: K,
    hash: u64,
    state: KeyState<P>,
    /// Those of the payloads that run or wait.
    bytes: usize,
    /// Those among them of callers that joined the run.
    joined: usize,
    /// By when they came.
    waiters: BTreeMap<u64, Waiter<P, S>>,
}

struct Waiter<P, S> {
    tell: S,
    waits: Waits<P>,
}

enum Waits<P> {
    /// For a run that covers the trigger of this number.
    Trigger(u64),
    /// For the end of the present run. If that fails, this payload becomes a trigger. It has so many
    /// bytes.
    Run(P, usize),
}

/// How a caller enters.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Mode {
    Enter,
    Join,
    Try,
}

/// What became of a caller.
pub(super) enum Entering<P> {
    Run(Started<P>),
    /// Its number, for [`Shard::withdraw`].
    Waits(u64, Verdict),
    Rejected(P, Rejection),
}

pub(super) struct Started<P> {
    pub(super) token: Token,
    pub(super) batch: Arc<Batch<P>>,
    pub(super) failures: u32,
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Succeeded,
    Failed,
    Expired,
}

/// What there is to do when the lock has been given back.
pub(super) struct Tell<P, S> {
    pub(super) starts: Option<(S, Started<P>)>,
    /// Those whom the run covers, and whether it may have started before they came.
    pub(super) covered: Vec<(S, bool)>,
    pub(super) rejected: Vec<(S, P, Rejection)>,
    /// Bytes that are counted no more, and bytes that a merge has added.
    pub(super) freed: usize,
    pub(super) added: usize,
}

impl<P, S> Default for Tell<P, S> {
    fn default() -> Self {
        Self {
            starts: None,
            covered: Vec::new(),
            rejected: Vec::new(),
            freed: 0,
            added: 0,
        }
    }
}

impl<K, P, S> Default for Shard<K, P, S> {
    fn default() -> Self {
        Self {
            entries: HashTable::new(),
            last: 0,
            counts: CoalesceCounts::default(),
        }
    }
}

impl<K: Eq, P: Clone, S> Shard<K, P, S> {
    /// Lets a caller in. Room for the `size` bytes of its payload has been taken; a rejected one keeps it.
    #[expect(clippy::too_many_arguments, reason = "one call site")]
    pub(super) fn enter(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        payload: P,
        size: usize,
        mode: Mode,
        now: Millis,
        tell: impl FnOnce() -> S,
        after: &mut Tell<P, S>,
    ) -> Entering<P>
    where
        K: Clone,
    {
        self.expire_due(rules, hash, key, now, after);
        self.last += 1;
        let (number, until) = (self.last, rules.until(now));
        let counts = &mut self.counts;
        let slot = (self.entries).entry(hash, |entry| entry.key == *key, |entry| entry.hash);
        let mut slot = match slot {
            Slot::Occupied(slot) => slot,
            Slot::Vacant(slot) => {
                let mut state = KeyState::default();
                // A rejection is not possible: nothing of the key waits.
                let _ = state.enter(payload, &rules.merge, Token(number), until);
                let started = Started::of(&state);
                let mut entry = Entry {
                    key: key.clone(),
                    hash,
                    state,
                    bytes: size,
                    joined: 0,
                    waiters: BTreeMap::new(),
                };
                if size > 0 {
                    entry.weigh(rules, after);
                }
                slot.insert(entry);
                counts.run += 1;
                counts.started += 1;
                return Entering::Run(started);
            }
        };
        let entry = slot.get_mut();
        match mode {
            Mode::Try => {
                counts.rejected += 1;
                return Entering::Rejected(payload, Rejection::Busy);
            }
            Mode::Join => {
                counts.joined += 1;
                let size = (rules.measure)(&payload);
                entry.bytes += size;
                entry.joined += size;
                let (tell, waits) = (tell(), Waits::Run(payload, size));
                entry.waiters.insert(number, Waiter { tell, waits });
                return Entering::Waits(number, Verdict::Covered);
            }
            Mode::Enter => {}
        }
        if let Some(why) = entry.state.rejects(&rules.merge) {
            counts.rejected += 1;
            return Entering::Rejected(payload, why);
        }
        // Somebody runs, so the token is not used.
        let verdict = (entry.state).enter(payload, &rules.merge, Token(number), until);
        match verdict {
            Verdict::Pending => counts.pending += 1,
            _ => counts.covered += 1,
        }
        entry.bytes += size;
        entry.weigh(rules, after);
        let waits = Waits::Trigger(entry.state.accepted());
        let waiter = Waiter {
            tell: tell(),
            waits,
        };
        entry.waiters.insert(number, waiter);
        Entering::Waits(number, verdict)
    }

    /// Ends a run, if it is the present one.
    pub(super) fn end(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        token: Token,
        end: End,
        now: Millis,
    ) -> (Result<(), Stale>, Tell<P, S>) {
        let mut after = Tell::default();
        self.expire_due(rules, hash, key, now, &mut after);
        let ended = self.end_now(rules, hash, key, token, end, now, &mut after);
        if ended.is_err() {
            self.counts.stale += 1;
        }
        (ended, after)
    }

    /// Ends the key's run if its lease is over.
    pub(super) fn expire_due(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        now: Millis,
        after: &mut Tell<P, S>,
    ) {
        if rules.lease.is_none() {
            return;
        }
        let state = self.entries.find(hash, |entry| entry.key == *key);
        let state = state.map(|entry| &entry.state);
        if let Some(state) = state.filter(|state| state.until().is_some_and(|until| until <= now))
            && let Some(token) = state.running()
        {
            // It is the present one.
            let _ = self.end_now(rules, hash, key, token, End::Expired, now, after);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "those of `end`")]
    fn end_now(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        token: Token,
        end: End,
        now: Millis,
        after: &mut Tell<P, S>,
    ) -> Result<(), Stale> {
        let slot = self.entries.find_entry(hash, |entry| entry.key == *key);
        let Ok(mut slot) = slot else {
            return Err(Stale { token });
        };
        let entry = slot.get_mut();
        if end == End::Succeeded {
            entry.state.succeed(token)?;
            entry.take_covered(after);
            self.counts.succeeded += 1;
        } else {
            entry.state.fail(&rules.merge, token)?;
            entry.joiners_go_on(rules, after);
            match end {
                End::Expired => self.counts.expired += 1,
                _ => self.counts.failed += 1,
            }
        }
        // Whoever joined has been told or waits with a trigger, so the first one can run.
        let Some((_, next)) = entry.waiters.pop_first() else {
            after.freed += slot.remove().0.bytes;
            return Ok(());
        };
        self.last += 1;
        let _ = (entry.state).start(&rules.merge, Token(self.last), rules.until(now));
        self.counts.started += 1;
        entry.weigh(rules, after);
        after.starts = Some((next.tell, Started::of(&entry.state)));
        Ok(())
    }

    /// A caller waits no more. Returns whether it did.
    pub(super) fn withdraw(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        number: u64,
        after: &mut Tell<P, S>,
    ) -> bool {
        let entry = self.entries.find_mut(hash, |entry| entry.key == *key);
        let Some(entry) = entry else {
            return false;
        };
        let Some(withdrawn) = entry.waiters.remove(&number) else {
            return false;
        };
        if let Waits::Run(_, size) = withdrawn.waits {
            entry.joined -= size;
            entry.bytes -= size;
            after.freed += size;
            return true;
        }
        let mut waiters = entry.waiters.values();
        if !waiters.any(|waiter| matches!(waiter.waits, Waits::Trigger(_))) {
            entry.state.forget_waiting();
            entry.weigh_all(rules, after);
        }
        true
    }

    /// Lets the present run go on for a lease from now.
    pub(super) fn heartbeat(
        &mut self,
        rules: &Rules<P>,
        hash: u64,
        key: &K,
        token: Token,
        now: Millis,
        after: &mut Tell<P, S>,
    ) -> Result<(), Stale> {
        self.expire_due(rules, hash, key, now, after);
        let entry = self.entries.find_mut(hash, |entry| entry.key == *key);
        let extended = match entry {
            Some(entry) => entry.state.extend(token, rules.until(now)),
            None => Err(Stale { token }),
        };
        if extended.is_err() {
            self.counts.stale += 1;
        }
        extended
    }

    /// The key's run, and when its lease ends.
    pub(super) fn running(&self, hash: u64, key: &K) -> Option<(Token, Option<Millis>)> {
        let entry = self.entries.find(hash, |entry| entry.key == *key)?;
        Some((entry.state.running()?, entry.state.until()))
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<K, P: Clone, S> Entry<K, P, S> {
    /// Takes out whom the run that has succeeded covers.
    fn take_covered(&mut self, after: &mut Tell<P, S>) {
        let covered = self.state.covered();
        let told = self
            .waiters
            .extract_if(.., |_, waiter| match &waiter.waits {
                Waits::Trigger(trigger) => *trigger <= covered,
                Waits::Run(..) => true,
            });
        let told = told.map(|(_, waiter)| (waiter.tell, matches!(waiter.waits, Waits::Run(..))));
        after.covered.extend(told);
        self.joined = 0;
    }

    /// The run that some joined has failed: from now on they wait as all others do.
    fn joiners_go_on(&mut self, rules: &Rules<P>, after: &mut Tell<P, S>) {
        let joiners = self.waiters.iter();
        let joiners = joiners.filter(|(_, waiter)| matches!(waiter.waits, Waits::Run(..)));
        let joiners: Vec<u64> = joiners.map(|(number, _)| *number).collect();
        for number in joiners {
            let Some(Waiter {
                tell,
                waits: Waits::Run(payload, _),
            }) = self.waiters.remove(&number)
            else {
                continue;
            };
            if let Some(why) = self.state.rejects(&rules.merge) {
                after.rejected.push((tell, payload, why));
            } else {
                let waits = Waits::Trigger(self.state.accept_safely(payload, &rules.merge));
                self.waiters.insert(number, Waiter { tell, waits });
            }
        }
        self.joined = 0;
    }

    /// Counts the bytes anew after a change that may have dropped payloads or made others of them. With
    /// [`Merge::Append`], which may have many and drops none of them, only when a run ends.
    fn weigh(&mut self, rules: &Rules<P>, after: &mut Tell<P, S>) {
        let is_long = matches!(rules.merge, Merge::Append { .. });
        if !is_long || self.state.waiting().is_none() {
            self.weigh_all(rules, after);
        }
    }

    fn weigh_all(&mut self, rules: &Rules<P>, after: &mut Tell<P, S>) {
        let running = self.state.running_batch().map(|batch| &**batch);
        let batches = running.into_iter().chain(self.state.waiting());
        let payloads = batches.flat_map(Batch::payloads);
        let bytes = payloads.map(|payload| (rules.measure)(payload));
        // A measure that panics leaves the count as it was: whoever ends a run must come to the end of it.
        let Ok(bytes) = catch_unwind(AssertUnwindSafe(|| bytes.sum::<usize>())) else {
            return;
        };
        let bytes = bytes + self.joined;
        after.freed += self.bytes.saturating_sub(bytes);
        after.added += bytes.saturating_sub(self.bytes);
        self.bytes = bytes;
    }
}

impl<P> Rules<P> {
    fn until(&self, now: Millis) -> Option<Millis> {
        self.lease.map(|lease| now.saturating_add(lease))
    }
}

impl<P> Started<P> {
    /// The run that a state has just started.
    fn of(state: &KeyState<P>) -> Self
    where
        P: Clone,
    {
        let batch = state.running_batch().cloned();
        Self {
            token: state.running().unwrap_or_default(),
            batch: batch.unwrap_or_default(),
            failures: state.failures(),
        }
    }
}

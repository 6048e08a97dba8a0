//! Gives leases.
//!
//! A receive walks lists of leasable messages only. It never examines 10,000 locked keys, or the other
//! messages of a key with a million, or keys that a limit of theirs holds. The only messages that it examines without leasing them are those that
//! had all their attempts. The same decision moves each of them away, and their number is bounded.

use lockgate_core::{
    HolderName, LeaseNumber, LeaseToken, Level, MachineTime, Millis, Now, QueueId, Sequence,
    limits::{self, Debt, LimitState},
};

use super::{
    Machine,
    draft::Draft,
    limits::QueueLimits,
    send::check_range,
    state::{Holder, Queue, Timer},
};
use crate::{
    DeadLetterReason, Delivery, Effect, KeyPolicy, QueueSettings, Receive, Rejection, Reply,
    slab::NONE, table::hash_bytes,
};

/// Leases up to this length share a synced lease bound; longer ones are synced themselves. Also how
/// far the bound is raised beyond the end of the lease that needs it.
const LEASE_BOUND_MS: Millis = 30_000;

/// Exhausted messages that one receive moves away, besides the messages that it leases.
const MOVES_MAX: usize = 64;

/// A receive while it is being decided.
struct Choice<'a> {
    queue: u32,
    now: Now,
    deadline: MachineTime,
    holder: &'a HolderName,
    /// After so many leases a message is moved to this queue instead of leased again.
    exhausted: Option<(u16, u32)>,
    wanted: usize,
    /// The most messages of one key.
    key_max: usize,
    moves_left: usize,
    /// Bytes of the messages leased so far.
    bytes: u64,
    /// How many more keys may come to owe something.
    owing_keys_left: u64,
    deliveries: Vec<Delivery>,
    /// The queue's limits, and what it has used with the leases of this receive.
    limits: Option<(&'a QueueLimits, LimitState)>,
}

/// What became of a message that was looked at.
enum Chosen {
    Leased,
    /// It had all its attempts, and leaves the queue.
    Moved,
    /// A limit holds it.
    Held,
}

/// The place of a receive in the lists of one unkeyed group.
struct Turn {
    order: u32,
    returned: u32,
    returned_next: bool,
    used: LimitState,
}

impl Machine {
    pub(super) fn decide_receive(
        &self,
        draft: &mut Draft,
        receive: &Receive,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let index = self.named_queue(&receive.queue)?;
        let queue = &self.queues[index];
        check_range("max", u64::from(receive.max), 1, 1000)?;
        let key_max = receive.key_max.unwrap_or(receive.max);
        check_range("key_max", u64::from(key_max), 1, 1000)?;
        let lease = receive.lease.unwrap_or(queue.settings.lease);
        check_range("lease", lease, 0, QueueSettings::LEASE_MAX)?;

        let content = &self.contents[queue.content];
        let limit = queue.settings.in_flight_max;
        let room = u64::from(limit).saturating_sub(content.counts.in_flight);
        if room == 0 && !queue.settings.keyed {
            return Err(Rejection::InFlightFull {
                queue: receive.queue.clone(),
                max: limit,
            });
        }
        if !self.is_leasable(index) {
            return Ok(Reply::Received(Vec::new()));
        }
        let mut choice = Choice {
            queue: index,
            now,
            deadline: match lease {
                // Over when it is given, even for a tick whose time is a little behind the clock: a
                // reading of the clock drops up to a millisecond.
                0 => MachineTime(now.machine.0.saturating_sub(1)),
                lease => now.machine.plus(lease),
            },
            holder: &receive.holder,
            exhausted: self.attempt_limit(queue),
            wanted: usize::from(receive.max).min(usize::try_from(room).unwrap_or(usize::MAX)),
            key_max: usize::from(key_max),
            moves_left: MOVES_MAX,
            bytes: 0,
            owing_keys_left: self.owing_keys_left(),
            deliveries: Vec::new(),
            limits: queue
                .limits
                .as_deref()
                .map(|limits| (limits, self.queue_limit_state(index, limits))),
        };
        if queue.settings.keyed {
            self.choose_by_key(draft, &mut choice);
        } else {
            self.choose_by_turns(draft, &mut choice);
        }
        if !choice.deliveries.is_empty() {
            self.cover_leases(draft, queue, now, choice.deadline);
        }
        Ok(Reply::Received(choice.deliveries))
    }

    /// Leases as many consecutive messages of one key as fit and may be, then those of the next key.
    fn choose_by_key(&self, draft: &mut Draft, choice: &mut Choice<'_>) {
        let queue = &self.queues[choice.queue];
        let mut key = self.contents[queue.content].ready_keys.first;
        while key != NONE && choice.wants_more() {
            let state = &self.keys[key];
            let leased_before = choice.deliveries.len();
            let mut index = state.order.first;
            let mut used = choice.key_limit_state(self, key);
            while index != NONE
                && choice.wants_more()
                && choice.deliveries.len() - leased_before < choice.key_max
                && self.messages[index].is_leasable()
            {
                if let Chosen::Held = self.choose(draft, choice, index, &mut used) {
                    break;
                }
                index = self.messages[index].order.after;
            }
            if choice.deliveries.len() > leased_before {
                if queue.settings.level >= Level::Disk {
                    // The message before this one is gone, and the state is what it is, only if the record that did it
                    // survives.
                    draft.rest_on(self.unless_durable(state.settled_at()));
                }
                if queue.states.is_some() {
                    let key_state = self.key_state(choice.queue, state.name.as_ref());
                    choice.bytes += key_state
                        .as_ref()
                        .map_or(0, |state| state.value.len() as u64);
                    choice.deliveries[leased_before].state = key_state;
                }
            }
            key = state.links.after;
        }
    }

    /// Leases one message of each ready group in turn.
    fn choose_by_turns(&self, draft: &mut Draft, choice: &mut Choice<'_>) {
        let queue = &self.queues[choice.queue];
        let mut key = self.contents[queue.content].ready_keys.first;
        let mut turns = Vec::new();
        // The first round walks the list; groups with more messages stay for the next rounds.
        while key != NONE && choice.wants_more() {
            let state = &self.keys[key];
            let mut turn = Turn {
                order: state.order.first,
                returned: state.returned.first,
                returned_next: state.returned_next,
                used: choice.key_limit_state(self, key),
            };
            if self.choose_one(draft, choice, &mut turn) {
                turns.push(turn);
            }
            key = state.links.after;
        }
        while choice.wants_more() && !turns.is_empty() {
            turns.retain_mut(|turn| choice.wants_more() && self.choose_one(draft, choice, turn));
        }
    }

    /// Leases one message of the group. Returns false if the group has no more.
    fn choose_one(&self, draft: &mut Draft, choice: &mut Choice<'_>, turn: &mut Turn) -> bool {
        loop {
            let has = |index: u32| index != NONE && self.messages[index].is_leasable();
            let from_returned = match (has(turn.order), has(turn.returned)) {
                (false, false) => return false,
                (true, true) => turn.returned_next,
                (_, returned) => returned,
            };
            let cursor = if from_returned {
                &mut turn.returned
            } else {
                &mut turn.order
            };
            let index = *cursor;
            *cursor = self.messages[index].order.after;
            turn.returned_next = !from_returned;
            match self.choose(draft, choice, index, &mut turn.used) {
                Chosen::Leased => return true,
                Chosen::Held => return false,
                Chosen::Moved => {}
            }
            if !choice.wants_more() {
                return false;
            }
        }
    }

    /// Leases the message, if its key, which has used that, and its queue may start another one. If it had all its
    /// attempts, moves it away.
    fn choose(
        &self,
        draft: &mut Draft,
        choice: &mut Choice<'_>,
        index: u32,
        used: &mut LimitState,
    ) -> Chosen {
        let queue = &self.queues[choice.queue];
        let message = &self.messages[index];
        let lease_state = self.leased_once(index);
        let attempts = lease_state.map_or(0, |lease_state| lease_state.attempts);
        if let Some((attempts_max, to)) = choice.exhausted
            && attempts >= attempts_max
        {
            let moved = self.move_away(
                draft,
                (choice.queue, index),
                to,
                DeadLetterReason::Attempts { attempts },
                choice.now,
                // As for a settle: a caller with this answer finds the message in the other queue.
                queue.settings.level,
            );
            // If that queue has no number left, the message stays and is delivered again.
            if moved.is_ok() {
                choice.moves_left -= 1;
                return Chosen::Moved;
            }
        }
        if let Some((limits, queue)) = &mut choice.limits {
            // As one of the queue: this key keeps its turn.
            let is_one_more = limits.keys_owe() && used.debt() == Debt::default();
            if is_one_more && choice.owing_keys_left == 0 {
                choice.wanted = choice.deliveries.len();
                return Chosen::Held;
            }
            let scopes = [(&limits.queue, queue), (&limits.key, used)];
            if let Err(holds) = limits::start(scopes, 1, choice.now.machine.0) {
                if holds.scope == 0 {
                    // It holds whatever else is there.
                    choice.wanted = choice.deliveries.len();
                }
                return Chosen::Held;
            }
            choice.owing_keys_left -= u64::from(is_one_more);
        }
        choice.bytes += u64::from(message.size);
        let lease = LeaseNumber(self.next_lease + choice.deliveries.len() as u64);
        let sequence = message.sequence();
        draft.add(
            Effect::Leased {
                queue: queue.id,
                sequence,
                lease,
                now: choice.now,
                deadline: choice.deadline,
                holder: choice.holder.clone(),
            },
            Level::Process.min(queue.settings.level),
        );
        let origin = self.origin(index);
        let id = origin.map_or_else(|| queue.id_of(sequence), |origin| origin.id);
        choice.deliveries.push(Delivery {
            token: LeaseToken {
                queue: queue.id,
                sequence,
                message: id,
                term: self.term(),
                lease,
            },
            id,
            location: message.location(),
            attempt: attempts.saturating_add(1),
            first_leased: lease_state
                .filter(|lease_state| lease_state.attempts > 0)
                .map_or(choice.now.wall, |lease_state| lease_state.first_leased()),
            deadline: choice.deadline,
            origin: origin.map(|origin| self.origin_view(origin)),
            failures: self.failures(index).cloned(),
            state: None,
        });
        Chosen::Leased
    }

    /// After how many leases the queue moves a message, and to which queue.
    fn attempt_limit(&self, queue: &Queue) -> Option<(u16, u32)> {
        if queue.policy() != KeyPolicy::Skip {
            return None;
        }
        Some((queue.settings.attempts_max, self.dead_letter_queue(queue)?))
    }

    /// Ensures that after a power cut it is known how long leases up to `deadline` may still be
    /// held: they are within the queue's synced lease bound, or raise it, or are synced themselves.
    /// Unkeyed queues allow two holders and do not need this.
    pub(super) fn cover_leases(
        &self,
        draft: &mut Draft,
        queue: &Queue,
        now: Now,
        deadline: MachineTime,
    ) {
        if !queue.settings.keyed || queue.settings.level < Level::Disk {
            return;
        }
        if deadline.since(now.machine) > LEASE_BOUND_MS {
            draft.level = draft.level.max(Level::Disk);
        } else if deadline > queue.lease_bound {
            draft.add(
                Effect::LeaseBoundRaised {
                    queue: queue.id,
                    until: deadline.plus(LEASE_BOUND_MS),
                },
                Level::Disk,
            );
        } else {
            draft.rest_on(self.unless_durable(queue.lease_bound_at));
        }
    }

    pub(super) fn fold_leased(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        lease: LeaseNumber,
        now: Now,
        deadline: MachineTime,
        holder: &HolderName,
    ) -> Option<()> {
        self.note_time(now);
        self.next_lease = self.next_lease.max(lease.0.saturating_add(1));
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        self.make_ready(index);
        let lease_state = self.lease_state(index, now.wall);
        self.take(index);
        let holder = self.intern_holder(holder);
        let term = u32::try_from(self.terms.len()).unwrap_or(u32::MAX);
        let order = self.timer_order(queue, sequence);
        let timer = Timer::Message(index).to_bits();
        let timer = self.machine.insert(deadline.0, order, timer);
        let lease_state = &mut self.lease_states[lease_state];
        if lease_state.attempts == 0 {
            lease_state.set_first_leased(now.wall);
        }
        lease_state.attempts = lease_state.attempts.saturating_add(1);
        lease_state.set_lease(lease, term);
        lease_state.set_held(now.machine, deadline);
        lease_state.holder = holder;
        lease_state.timer = timer;
        self.queues[queue].totals.leased += 1;
        let key = self.messages[index].key;
        self.charge_limits(queue, key, now.machine);
        self.rotate(key);
        Some(())
    }

    pub(super) fn fold_lease_bound_raised(
        &mut self,
        queue: QueueId,
        until: MachineTime,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        let at = self.folding_at;
        let queue = &mut self.queues[index];
        if until > queue.lease_bound {
            queue.lease_bound = until;
            queue.lease_bound_at = at;
        }
        Some(())
    }
}

impl Choice<'_> {
    fn key_limit_state(&self, machine: &Machine, key: u32) -> LimitState {
        match self.limits {
            Some(_) => machine.key_limit_state(key),
            None => LimitState::default(),
        }
    }

    fn wants_more(&self) -> bool {
        self.deliveries.len() < self.wanted
            && self.moves_left > 0
            && self.bytes < Receive::BYTES_MAX
    }
}

impl Machine {
    /// The interned name, with one more lease counted.
    pub(super) fn intern_holder(&mut self, name: &HolderName) -> u32 {
        let hash = hash_bytes(self.seed, name.as_str().as_bytes());
        let found = self
            .by_holder
            .find(hash, |holder| self.holders[holder].name == *name);
        let holder = found.unwrap_or_else(|| {
            let holder = self.holders.insert(Holder {
                name: name.clone(),
                leases: 0,
            });
            let (holders, seed) = (&self.holders, self.seed);
            self.by_holder.insert(hash, holder, |holder| {
                hash_bytes(seed, holders[holder].name.as_str().as_bytes())
            });
            holder
        });
        self.holders[holder].leases += 1;
        holder
    }

    /// Counts one lease less for that name; forgets the name with its last lease.
    pub(super) fn release_holder(&mut self, holder: u32) {
        if holder == NONE {
            return;
        }
        self.holders[holder].leases -= 1;
        if self.holders[holder].leases == 0 {
            let name = self.holders.remove(holder).name;
            let hash = hash_bytes(self.seed, name.as_str().as_bytes());
            self.by_holder.remove(hash, |other| other == holder);
        }
    }
}

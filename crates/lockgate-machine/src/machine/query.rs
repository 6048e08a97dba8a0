//! Answers queries, which change nothing.

use lockgate_core::{Key, MachineTime, Now, QueueId, QueueName, with_prefix};

use super::{
    Machine,
    key_states::KeyStates,
    producers::Producers,
    state::{State, flag},
};
use crate::{
    DescribeExchange, DescribeLedger, DescribeQueue, ExplainKey, FindLookedUp, FindMessage,
    GetKeyState, GetRecord, KeyStatus, KeyWait, ListKeys, ListMessages, ListQueues, Query,
    QueryReply, QueueCounts, QueueDescription, QueueFigures, QueuePage, QueueTotals, Rejection,
    slab::NONE,
};

/// How many delayed messages of a key a query examines for the first that is due, so that a query
/// stays short.
const DUE_LOOKED_AT_MAX: usize = 1_000;

impl Machine {
    /// Answers a query.
    ///
    /// # Errors
    /// If its queue or key does not exist.
    pub fn query(&self, query: &Query, now: Now) -> Result<QueryReply, Rejection> {
        match query {
            Query::DescribeQueue(DescribeQueue { queue }) => {
                let index = self.named_queue(queue)?;
                Ok(QueryReply::Queue(Box::new(self.describe(index))))
            }
            Query::ListQueues(ListQueues {
                prefix,
                after,
                limit,
            }) => Ok(self.query_queues(prefix, after.as_ref(), *limit)),
            Query::ListMessages(ListMessages {
                queue,
                key,
                after,
                limit,
            }) => self.query_messages(queue, key.as_ref(), *after, *limit, now),
            Query::FindMessage(FindMessage { queue, message }) => {
                self.query_message(queue, *message, now)
            }
            Query::ListKeys(ListKeys {
                queue,
                parked,
                after,
                limit,
            }) => self.query_keys(queue, *parked, *after, *limit, now),
            Query::ExplainKey(ExplainKey { queue, key }) => self
                .query_key(queue, key.as_ref(), now)
                .map(QueryReply::Key),
            Query::GetKeyState(GetKeyState { queue, key }) => {
                let state = self.query_key_state(queue, key)?;
                Ok(QueryReply::KeyState(state.map(Box::new)))
            }
            Query::ListKeyStates(list) => self.query_key_states(list).map(QueryReply::KeyStates),
            Query::GetRecord(GetRecord { name }) => {
                Ok(QueryReply::Record(self.record(name, now).map(Box::new)))
            }
            Query::ListRecords(list) => self.query_records(list, now).map(QueryReply::Records),
            Query::ListProducers(list) => {
                self.query_producers(list, now).map(QueryReply::Producers)
            }
            Query::DescribeLedger(DescribeLedger { ledger }) => {
                self.query_ledger(ledger).map(QueryReply::Ledger)
            }
            Query::ListLedgers(list) => self.query_ledgers(list).map(QueryReply::Ledgers),
            Query::LocateEvents(locate) => self.query_events(locate).map(QueryReply::EventPlaces),
            Query::FindEvent(find) => self.query_event(find, None).map(QueryReply::Event),
            Query::FindLookedUp(FindLookedUp { find, answers }) => {
                let answers = Some(&**answers);
                self.query_event(find, answers).map(QueryReply::Event)
            }
            Query::DescribeExchange(DescribeExchange { exchange }) => {
                let description = self.query_exchange(exchange)?;
                Ok(QueryReply::Exchange(Box::new(description)))
            }
            Query::ListExchanges(list) => self.query_exchanges(list).map(QueryReply::Exchanges),
            Query::DescribeSchedule(crate::DescribeSchedule { schedule }) => {
                let schedule = self.query_schedule(schedule)?;
                Ok(QueryReply::Schedule(Box::new(schedule)))
            }
            Query::ListSchedules(list) => self.query_schedules(list).map(QueryReply::Schedules),
            Query::ListBindings(list) => self.query_bindings(list).map(QueryReply::Bindings),
            Query::ExplainRoute(explain) => {
                let explanation = self.query_route(explain)?;
                Ok(QueryReply::Route(Box::new(explanation)))
            }
        }
    }

    /// The description of the queue with that number; `None` if there is no such queue.
    #[must_use]
    pub fn queue(&self, queue: QueueId) -> Option<QueueDescription> {
        self.queue_index(queue).map(|index| self.describe(index))
    }

    /// The totals over all queues of the shard, including deleted ones. Walks the queues.
    #[must_use]
    pub fn totals(&self) -> QueueTotals {
        let mut totals = self.deleted_totals;
        for (_, queue) in self.queues.iter() {
            totals.add(&queue.totals);
        }
        totals
    }

    /// Heap memory of messages, keys, unique ids, leases and timers, in bytes: what the tables have
    /// allocated, without allocator overhead and the texts of names. Walks the queues.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let remembered: usize = self
            .queues
            .iter()
            .map(|(_, queue)| {
                let states = queue.states.as_deref().map_or(0, KeyStates::table_bytes);
                let producers = queue.producers.as_deref().map_or(0, Producers::bytes);
                queue.dedup.bytes() + queue.key_sequences.bytes() + states + producers
            })
            .sum();
        let by_sequence: usize = self
            .contents
            .iter()
            .map(|(_, content)| content.by_sequence.bytes())
            .sum();
        remembered
            + by_sequence
            + self.queues.bytes()
            + self.contents.bytes()
            + self.keys.bytes()
            + self.by_key.bytes()
            + self.messages.bytes()
            + self.lease_states.bytes()
            + self.holders.bytes()
            + self.origins.bytes()
            + self.by_moved_message.bytes()
            + self.by_moved_id.bytes()
            + self.live.bytes()
            + self.shared.heap_bytes()
            + self.times_to_live.bytes()
            + self.by_ttl_message.bytes()
            + self.failures.bytes()
            + self.debtors.bytes()
            + self.by_debtor.bytes()
            + self.waits.bytes()
            + self.records.entries.bytes()
            + self.ledgers.heap_bytes()
            + self.exchanges.heap_bytes()
            + self.schedules.heap_bytes()
            + usize::try_from(self.records.bytes + self.key_state_bytes).unwrap_or(usize::MAX)
            + self.by_failed_message.bytes()
            + usize::try_from(self.failure_bytes).unwrap_or(usize::MAX)
            + self.wall.bytes()
            + self.machine.bytes()
    }

    pub(super) fn describe(&self, index: u32) -> QueueDescription {
        let queue = &self.queues[index];
        QueueDescription {
            id: queue.id,
            name: queue.name.clone(),
            settings: (*queue.settings).clone(),
            annotations: (*queue.annotations).clone(),
            tags: (*queue.tags).clone(),
            created: queue.created,
            changed: queue.changed,
            paused: queue.paused,
            limited: self.queue_limited(index),
            held: self.queue_held(index, self.limit_now()),
            counts: self.counts(index),
            totals: queue.totals,
        }
    }

    fn counts(&self, index: u32) -> QueueCounts {
        let queue = &self.queues[index];
        let states = queue.states.as_deref();
        let producers = queue.producers.as_deref();
        QueueCounts {
            unique_ids: queue.dedup.len() as u64,
            states: states.map_or(0, KeyStates::len) as u64,
            state_bytes: states.map_or(0, KeyStates::bytes),
            producers: producers.map_or(0, Producers::len),
            producer_openings: producers.map_or(0, Producers::openings),
            oldest: self.oldest(queue.content),
            owing_keys: queue.limits.as_ref().map_or(0, |limits| limits.debtors),
            ..self.contents[queue.content].counts
        }
    }

    /// The figures of up to `limit` queues by name, of those after `after`. They cost much less than descriptions,
    /// which have settings, annotations and tags.
    #[must_use]
    pub fn figures(&self, after: Option<&QueueName>, limit: usize) -> Vec<QueueFigures> {
        let some = with_prefix(&self.queue_names, "", after).take(limit);
        let now = self.limit_now();
        some.map(|(_, &index)| {
            let queue = &self.queues[index];
            QueueFigures {
                id: queue.id,
                name: queue.name.clone(),
                keyed: queue.settings.keyed,
                dead_letter: queue.settings.dead_letter.clone(),
                paused: queue.paused,
                limited: self.queue_limited(index),
                held: self.queue_held(index, now),
                counts: self.counts(index),
                totals: queue.totals,
            }
        })
        .collect()
    }

    fn query_queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> QueryReply {
        let mut matching = with_prefix(&self.queue_names, prefix, after);
        let queues: Vec<_> = matching
            .by_ref()
            .take(limit)
            .map(|(_, &index)| self.describe(index))
            .collect();
        let last = queues.last().filter(|_| matching.next().is_some());
        let next = last.map(|queue| queue.name.clone());
        QueryReply::Queues(QueuePage { queues, next })
    }

    fn query_key(
        &self,
        queue: &QueueName,
        key: Option<&Key>,
        now: Now,
    ) -> Result<KeyStatus, Rejection> {
        let index = self.named_queue(queue)?;
        let state = &self.queues[index];
        if let Some(found) = self.key_of(state.content, key) {
            return Ok(self.key_status(index, found, key, now));
        }
        if key.is_none() && state.settings.keyed {
            let queue = queue.clone();
            return Err(Rejection::NoneWithoutKey { queue });
        }
        let state = key.and_then(|key| self.key_state_status(index, key));
        if let Some(key) = key
            && state.is_none()
            && self.own_hold(index, Some(key), now.machine).is_none()
        {
            return Err(Rejection::KeyNotFound {
                queue: queue.clone(),
                key: key.clone(),
            });
        }
        Ok(KeyStatus {
            key: key.cloned(),
            messages: 0,
            delayed: 0,
            waits_for: KeyWait::NoMessage,
            held: self.key_held(index, key, now.machine),
            state,
        })
    }

    pub(super) fn key_status(
        &self,
        queue: u32,
        found: u32,
        key: Option<&Key>,
        now: Now,
    ) -> KeyStatus {
        let state = &self.queues[queue];
        let waits_for = if state.paused {
            KeyWait::Paused
        } else if let Some(until) = state.held_until {
            KeyWait::LeaseBound {
                remaining: Self::remaining(until, now),
            }
        } else if state.settings.keyed {
            self.key_wait(found, now)
        } else {
            self.group_wait(found)
        };
        let (in_flight, max) = (
            self.contents[state.content].counts.in_flight,
            state.settings.in_flight_max,
        );
        // The key's own reasons come first: they remain when there is room again.
        let waits_for = match waits_for {
            KeyWait::Nothing => self
                .limit_wait(queue, found, now.machine)
                .unwrap_or(KeyWait::Nothing),
            other => other,
        };
        let waits_for = match waits_for {
            KeyWait::Nothing if in_flight >= u64::from(max) => KeyWait::InFlightFull { max },
            other => other,
        };
        let key_state = &self.keys[found];
        KeyStatus {
            key: key.cloned(),
            messages: u64::from(key_state.messages),
            delayed: u64::from(key_state.delayed_count),
            waits_for,
            held: self.key_held(queue, key, now.machine),
            state: key.and_then(|key| self.key_state_status(queue, key)),
        }
    }

    /// When the first delayed message of a key is due, among those examined, which are in the order sent.
    fn first_due(&self, key: u32) -> Option<KeyWait> {
        let first = Some(self.keys[key].delayed.first).filter(|&index| index != NONE);
        std::iter::successors(first, |&index| {
            Some(self.messages[index].order.after).filter(|&after| after != NONE)
        })
        .take(DUE_LOOKED_AT_MAX)
        .map(|index| {
            let message = &self.messages[index];
            let at = self
                .deadline(index)
                .map_or(message.since(), lockgate_core::WallTime);
            (at, message.sequence())
        })
        .min()
        .map(|(at, sequence)| KeyWait::Due { sequence, at })
    }

    /// What a group waits for, apart from its queue.
    fn group_wait(&self, group: u32) -> KeyWait {
        let state = &self.keys[group];
        let new = Some(state.order.first).filter(|&first| first != NONE);
        match (state.returned.first, new) {
            (NONE, Some(first)) if self.messages[first].has(flag::UNSYNCED) => KeyWait::Durability,
            (NONE, None) if state.messages > 0 => KeyWait::InFlight,
            (NONE, None) => self.first_due(group).unwrap_or(KeyWait::NoMessage),
            _ => KeyWait::Nothing,
        }
    }

    /// What a key waits for, apart from its queue.
    fn key_wait(&self, key: u32, now: Now) -> KeyWait {
        let state = &self.keys[key];
        if state.parked {
            return KeyWait::Parked;
        }
        if state.order.first == NONE {
            return self.first_due(key).unwrap_or(KeyWait::NoMessage);
        }
        let strict = state.strict;
        let mut index = state.order.first;
        // Strict profile: a leased message need not be first, but it is among the first.
        while strict && state.leased > 0 && self.messages[index].state != State::Leased {
            match self.messages[index].order.after {
                NONE => break,
                after => index = after,
            }
        }
        let message = &self.messages[index];
        let sequence = message.sequence();
        let lease_state = self.leased_once(index);
        let until = self.deadline(index).map_or(now.machine, MachineTime);
        let remaining = until.since(now.machine);
        match (message.state, lease_state) {
            (State::Leased, Some(lease_state)) => KeyWait::Lease {
                sequence,
                holder: self.holders[lease_state.holder].name.clone(),
                remaining,
                attempt: lease_state.attempts,
            },
            (State::Backoff, _) => KeyWait::Backoff {
                sequence,
                remaining,
            },
            _ if message.has(flag::UNSYNCED) => KeyWait::Durability,
            _ => KeyWait::Nothing,
        }
    }
}

//! Accepting a message, or recognising it.

use lockgate_machine::*;

use super::*;

impl Model {
    pub(super) fn send(
        &mut self,
        send: &SendMessage,
        decision: &Decision,
    ) -> Result<Sent, Rejection> {
        let (term, now, at) = (self.term, self.now, self.at);
        let arrival = self.arrivals;
        let durable = self.durable;
        let name = || send.queue.clone();
        let message = &send.message;
        let queue = self.found_mut(&send.queue)?;
        let settings = queue.settings.clone();
        let key = match settings.keyed {
            true if message.group.is_some() => {
                return Err(Rejection::GroupNotTaken { queue: name() });
            }
            true if message.key.is_none() => {
                return Err(Rejection::KeyRequired { queue: name() });
            }
            true => message.key.clone(),
            false if message.key.is_some() => {
                return Err(Rejection::KeyNotTaken { queue: name() });
            }
            false => message.group.clone(),
        };
        let size = message.size() as u64;
        if size > u64::from(settings.message_bytes_max) {
            return Err(Rejection::MessageTooLarge {
                queue: name(),
                size,
                max: settings.message_bytes_max.into(),
            });
        }
        let level = message.level.unwrap_or(settings.level);
        if level < settings.level || level > Level::Disk {
            return Err(Rejection::Level {
                queue: name(),
                asked: level,
                queue_level: settings.level,
                log_level: Level::Disk,
            });
        }
        if let Some(produced) = &message.producer {
            let waits_for = |record: Position| {
                durable.is_none_or(|durable| record < durable)
                    || record == at
                    || decision.rests_on >= Some(record)
            };
            queue.take_mark(&send.queue, produced, level, waits_for)?;
        }
        if settings.dedup_content && message.unique_id.is_none() {
            return Err(Rejection::UniqueIdRequired { queue: name() });
        }
        let in_scope = |scope| match scope {
            DedupScope::Queue => None,
            DedupScope::Key => key.clone(),
        };
        let other = match settings.dedup_scope {
            DedupScope::Queue => DedupScope::Key,
            DedupScope::Key => DedupScope::Queue,
        };
        let from = settings.dedup_scope_from;
        let (scope, former) = if from.is_some_and(|from| now.machine < from) {
            (in_scope(other), in_scope(settings.dedup_scope))
        } else {
            (in_scope(settings.dedup_scope), in_scope(other))
        };
        let unique = message
            .unique_id
            .clone()
            .filter(|_| settings.dedup_window > 0);
        if let Some(id) = &unique
            && let Some(first) = {
                let find = |scope| {
                    let mut known = queue.remembered.iter();
                    known.find(|known| known.id == *id && known.scope == scope)
                };
                // The other scope is that of ids which were sent before the change.
                find(scope.clone()).or_else(|| {
                    let window = settings.dedup_window;
                    let sent = |known: &Remembered| known.until.0.saturating_sub(window);
                    find(former).filter(|known| from.is_some_and(|from| sent(known) < from.0))
                })
            }
        {
            // The original's answer, and not before the original's record is as safe as asked for.
            let original_durable = durable.is_none_or(|durable| first.position < durable);
            let refused = decision.outcome.is_err();
            if level >= Level::Disk && !original_durable && first.position != at && !refused {
                assert!(
                    decision.rests_on >= Some(first.position),
                    "a duplicate does not wait"
                );
            }
            queue.totals.duplicates += 1;
            let (id, sequence) = (first.message, first.sequence);
            if let Some(produced) = &message.producer {
                queue.raise_mark(produced, now, at);
            }
            return Ok(Sent {
                id,
                sequence,
                duplicate: true,
            });
        }
        let full = |what, max| Rejection::QuotaExceeded {
            queue: name(),
            what,
            max,
        };
        if let Some(max) = settings.quota_messages
            && queue.messages.len() as u64 >= max
        {
            return Err(full("messages", max));
        }
        let bytes: u64 = queue.messages.iter().map(|message| message.size).sum();
        let bytes = bytes + queue.state_bytes();
        if let Some(max) = settings.quota_bytes
            && bytes + size > max
        {
            return Err(full("bytes", max));
        }

        if let Some(produced) = &message.producer {
            queue.raise_mark(produced, now, at);
        }
        let sequence = Sequence(queue.next_sequence);
        queue.next_sequence += 1;
        let id = MessageId::new(queue.id, sequence, term);
        if let Some(unique) = unique {
            queue.remembered.push(Remembered {
                scope,
                id: unique,
                until: now.machine.plus(settings.dedup_window),
                sequence,
                message: id,
                position: at,
            });
        }
        let number = queue.number(key.as_ref(), at);
        if let Some(part) = decision
            .effects
            .get(usize::from(part_of(decision, queue.id, sequence)))
            && let Effect::Accepted(stored) = part
        {
            let told = stored.key_sequence.map(std::num::NonZeroU64::get);
            assert_eq!(told, number, "the number among the key's messages");
        }
        let wanted = message
            .due
            .or_else(|| (settings.delay > 0).then(|| now.wall.plus(settings.delay)));
        let due = wanted.filter(|due| *due > now.wall);
        queue.messages.push(Message {
            sequence,
            id,
            key,
            size,
            state: due.map_or(State::Ready, |due| State::Delayed { due }),
            location: Location {
                position: at,
                part: part_of(decision, queue.id, sequence),
            },
            since: due.unwrap_or(now.wall),
            arrival: due.is_none().then_some(arrival),
            attempts: 0,
            first_leased: WallTime(0),
            last_lease: None,
            returned: false,
            time_to_live: message.time_to_live,
            overdue: false,
            origin: None,
            failures: Vec::new(),
            waits_for: (level >= Level::Disk).then_some(at),
        });
        queue.totals.accepted += 1;
        self.arrivals += 1;
        let refused = decision.outcome.is_err();
        assert!(
            refused || decision.level >= level,
            "answered below its level"
        );
        if level == Level::Memory && !refused {
            let queue = &self.queues[&send.queue];
            let told_below = decision
                .effects
                .iter()
                .filter_map(|effect| match effect {
                    Effect::SequencesReserved { queue: id, below } if *id == queue.id => {
                        Some(below.0)
                    }
                    _ => None,
                })
                .fold(queue.reserved_below, u64::max);
            assert!(sequence.0 < told_below, "told before it was reserved");
        }
        Ok(Sent {
            id,
            sequence,
            duplicate: false,
        })
    }
}

impl Queue {
    /// The next message of the key gets this number, in the record at that position.
    fn number(&mut self, key: Option<&Key>, at: Position) -> Option<u64> {
        let max = self.settings.key_sequences_max as usize;
        let key = key.filter(|_| max > 0)?;
        if self.numbered.0 != at {
            // What a record forgets is forgotten behind it.
            self.numbered = (at, self.key_sequences.iter().cloned().collect());
        }
        let number = self.numbered.1.get(key).map_or(1, |last| last + 1);
        self.numbered.1.insert(key.clone(), number);
        self.key_sequences.retain(|(other, _)| other != key);
        self.key_sequences.push((key.clone(), number));
        for _ in 0..2 {
            if self.key_sequences.len() > max {
                self.key_sequences.remove(0);
            }
        }
        Some(number)
    }
}

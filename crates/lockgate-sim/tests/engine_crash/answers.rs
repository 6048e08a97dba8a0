//! What answers must be, and what the model learns from them.

use bytes::Bytes;
use std::collections::BTreeSet;

use lockgate_core::{LeaseToken, ReadError, limits::HoldScope};
use lockgate_engine::{Answer, EngineError, Output, OutputKind};
use lockgate_machine::{
    Delivery, EngineCommand, QueryReply, Rejection, Reply, Sent, SettleAction, Settled,
    StaleReason, read_message,
};
use lockgate_sim::SeededRandom;

use crate::{
    Violation,
    exchanges::AskedExchange,
    ledgers::AskedLedger,
    model::{Existence, Lease},
    producers::AskedProducer,
    records::AskedRecord,
    states::{AskedState, Whose},
    tally::Doing,
    world::{KEYED, SKIPPING, World},
};

/// What was asked under a ticket, to make sense of its answer: one for each command.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Send {
        message: u64,
    },
    Receive {
        queue: &'static str,
        holder: u64,
        /// See [`Model::cuts`](crate::model::Model::cuts): as many had been asked for before; a
        /// later one may end the leases it gets.
        cuts: u64,
        /// How many holds had been told before.
        holds: u64,
    },
    Settle(AskedSettle),
    Transact {
        settles: Vec<AskedSettle>,
        states: Vec<AskedState>,
        sends: Vec<u64>,
    },
    Cancel {
        message: u64,
    },
    Reschedule,
    /// A purge or a deletion, and the messages that it takes if it happens.
    Empty {
        messages: Vec<u64>,
    },
    Record {
        record: usize,
        asked: AskedRecord,
    },
    Ledger(AskedLedger),
    Exchange(AskedExchange),
    Producer {
        queue: &'static str,
        asked: AskedProducer,
    },
    GetState(Whose),
    State(AskedState),
    Hold {
        queue: &'static str,
        /// The key or group.
        of: Option<u64>,
        asked_at: u64,
        time: u64,
    },
    Nothing,
}

#[derive(Clone, Debug)]
pub(crate) struct AskedSettle {
    pub(crate) token: LeaseToken,
    pub(crate) action: SettleAction,
    pub(crate) asked_at: u64,
}

impl World {
    /// Checks an answer against the model, and lets the model learn from it.
    pub(crate) fn answered(&mut self, output: Output<u64>) -> Result<(), Violation> {
        let OutputKind::Answer { ticket, result } = output.kind else {
            return Ok(());
        };
        let asked = self.asked.remove(&ticket).ok_or("an answer to nothing")?;
        self.tally.count("answers", 1);
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(EngineError::UnknownOutcome { .. }) => {
                self.tally.count("unknown outcomes", 1);
                return Ok(());
            }
            Err(EngineError::Stopped { .. }) => {
                // Nothing happened, for certain.
                for asked in asked {
                    self.nothing_happened(asked);
                }
                return Ok(());
            }
            Err(other) => return Err(format!("{asked:?} was answered by {other}")),
        };
        match outcome {
            Answer::Commands(results) => {
                for (asked, result) in asked.into_iter().zip(results) {
                    self.command_answered(asked, result)?;
                }
                Ok(())
            }
            Answer::Received(result) => match (asked.into_iter().next(), result) {
                (
                    Some(Asked::Receive {
                        queue,
                        holder,
                        cuts,
                        holds,
                    }),
                    Ok(deliveries),
                ) => self.delivered(queue, holder, (cuts, holds), &deliveries),
                (Some(Asked::Exchange(AskedExchange::Receive(queue))), Ok(deliveries)) => {
                    self.copies_delivered(queue, &deliveries)
                }
                // A queue that is deleted and made again.
                (_, Err(Rejection::QueueNotFound { .. })) => Ok(()),
                (_, Err(Rejection::LogFull { .. })) if self.has_no_room() => Ok(()),
                (asked, result) => Err(format!("{asked:?} was answered by {result:?}")),
            },
            Answer::Query(Ok(QueryReply::Record(shown))) => match asked.into_iter().next() {
                Some(Asked::Record { record, .. }) => self.record_shown(record, shown.as_deref()),
                asked => Err(format!("{asked:?} was answered by {shown:?}")),
            },
            Answer::Query(Ok(QueryReply::Event(shown))) => match asked.into_iter().next() {
                Some(Asked::Ledger(asked)) => self.event_shown(asked, shown),
                asked => Err(format!("{asked:?} was answered by {shown:?}")),
            },
            Answer::Query(Ok(QueryReply::KeyState(shown))) => match asked.into_iter().next() {
                Some(Asked::GetState(whose)) => self.state_shown(whose, shown.as_deref()),
                asked => Err(format!("{asked:?} was answered by {shown:?}")),
            },
            Answer::Query(_) => Ok(()),
            Answer::LookUp(look_up) => self.look_up(*look_up, asked),
        }
    }

    /// Whether a log may refuse something for want of room: the reserve for what makes room is made
    /// of segments, and a group may need more than these small ones hold.
    fn has_no_room(&self) -> bool {
        self.disk_failed || self.is_limited
    }

    fn nothing_happened(&mut self, asked: Asked) {
        match asked {
            Asked::Send { message } => self.known(message).state = Existence::Gone,
            Asked::Settle(settle) => self.not_settled(&settle),
            Asked::Exchange(asked) => self.not_asked(asked),
            Asked::Producer { queue, asked } => self.not_produced(queue, asked),
            Asked::Transact { settles, sends, .. } => {
                settles.iter().for_each(|settle| self.not_settled(settle));
                for message in sends {
                    self.known(message).state = Existence::Gone;
                }
            }
            _ => {}
        }
    }

    /// The settle did not happen: the lease goes on, and the message is there if nothing else says
    /// otherwise.
    fn not_settled(&mut self, settle: &AskedSettle) {
        let Some(lease) = self.model.leases.get(&settle.token).cloned() else {
            return;
        };
        if settle.action == SettleAction::Ack {
            let known = self.known(lease.message);
            known.acks_asked = known.acks_asked.saturating_sub(1);
        }
    }

    fn command_answered(
        &mut self,
        asked: Asked,
        result: Result<Reply, Rejection>,
    ) -> Result<(), Violation> {
        match (asked, result) {
            (Asked::Send { message }, Ok(Reply::Sent(sent))) => self.sent(message, sent),
            (Asked::Record { record, asked }, result)
                if !matches!(result, Err(Rejection::LogFull { .. })) =>
            {
                self.record_answered(record, asked, result)
            }
            (Asked::Ledger(asked), result) if !matches!(result, Err(Rejection::LogFull { .. })) => {
                self.ledger_answered(asked, result)
            }
            (asked, Err(Rejection::LogFull { .. })) if self.has_no_room() => {
                self.note(format!("refused for space: {asked:?}"));
                self.tally.count("refused for space", 1);
                self.refused_for_space = true;
                self.nothing_happened(asked);
                Ok(())
            }
            // A queue that is deleted and made again.
            (asked, Err(Rejection::QueueNotFound { .. })) => {
                self.nothing_happened(asked);
                Ok(())
            }
            (Asked::Exchange(asked), result) => self.exchange_answered(asked, result),
            (Asked::Producer { queue, asked }, result) => self.produced(queue, asked, result),
            (Asked::Settle(asked), Ok(Reply::Settled(settled))) => {
                self.settled(&asked, settled);
                Ok(())
            }
            (
                Asked::Transact {
                    settles,
                    states,
                    sends,
                },
                Ok(Reply::Transacted(done)),
            ) => {
                for settle in &settles {
                    self.settled(settle, Settled::Done);
                }
                for (state, version) in states.into_iter().zip(done.states) {
                    self.state_written(state, version)?;
                }
                sends
                    .into_iter()
                    .zip(done.sent)
                    .try_for_each(|(message, sent)| self.sent(message, sent))
            }
            (
                asked @ Asked::Transact { .. },
                Err(Rejection::TransactionStale { .. } | Rejection::TransactionRefused { .. }),
            ) => {
                self.nothing_happened(asked);
                Ok(())
            }
            (
                Asked::Transact {
                    settles,
                    states,
                    sends,
                },
                Err(refused @ Rejection::KeyStateConflict { .. }),
            ) => {
                for state in &states {
                    self.state_refused(*state, &refused)?;
                }
                self.nothing_happened(Asked::Transact {
                    settles,
                    states,
                    sends,
                });
                Ok(())
            }
            (Asked::State(asked), Ok(Reply::StateWritten(version))) => {
                self.state_written(asked, version)
            }
            (Asked::State(asked), Err(refused)) if !self.damaged => {
                self.state_refused(asked, &refused)
            }
            (
                Asked::Hold {
                    queue,
                    of,
                    asked_at,
                    time,
                },
                Ok(Reply::Held(held)),
            ) => {
                if held.is_some() {
                    self.held(queue, of, asked_at, time);
                }
                Ok(())
            }
            (Asked::Cancel { message }, Ok(_)) => {
                self.note(format!("cancelled {message}"));
                let known = self.known(message);
                known.state = Existence::Gone;
                known.ended = true;
                Ok(())
            }
            (Asked::Empty { messages }, Ok(_)) => {
                for message in messages {
                    let known = self.known(message);
                    known.state = Existence::Gone;
                    known.ended = true;
                }
                Ok(())
            }
            (
                Asked::Cancel { .. } | Asked::Reschedule,
                Err(Rejection::MessageNotFound { .. } | Rejection::MessageInFlight { .. }),
            )
            | (Asked::Nothing | Asked::Reschedule, Ok(_))
            | (Asked::Nothing, Err(Rejection::KeyNotFound { .. })) => Ok(()),
            // What it is about may be lost.
            (asked, Err(_)) if self.damaged => {
                self.nothing_happened(asked);
                Ok(())
            }
            (asked, result) => Err(format!("{asked:?} was answered by {result:?}")),
        }
    }

    pub(crate) fn sent(&mut self, message: u64, sent: Sent) -> Result<(), Violation> {
        self.note(format!(
            "sent {message} as {}, {}",
            sent.sequence,
            if sent.duplicate {
                "a duplicate"
            } else {
                "accepted"
            }
        ));
        let known = self.known(message).clone();
        if sent.duplicate {
            self.tally.count("duplicates", 1);
            self.known(message).state = Existence::Gone;
            let unique = known.unique.ok_or("a duplicate without a unique id")?;
            // One that was asked for before a purge may be answered behind the first one after it.
            if !known.doubtful
                && let Some(first) = self.model.unique.get(&(known.queue, unique))
                && (first.id, first.sequence) != (sent.id, sent.sequence)
            {
                return Err(format!(
                    "duplicate {message} got {sent:?}, the first got {first:?}"
                ));
            }
        } else {
            self.tally.count("messages accepted", 1);
            // A duplicate at level `process` may have been answered before the original in a batch
            // that waits for the disk.
            if let Some(unique) = known.unique
                && !known.doubtful
                && let Some(first) = self.model.unique.get(&(known.queue, unique))
                && first.id != sent.id
            {
                return Err(format!(
                    "{message} is a duplicate of {first:?} and was accepted"
                ));
            }
            let known = self.known(message);
            known.id = Some(sent.id);
            known.order = Some((known.enters, sent.sequence));
            if !known.seen && !known.doubtful {
                known.state = Existence::There;
            }
        }
        if let Some(unique) = known.unique
            && !known.doubtful
        {
            let first = Sent {
                duplicate: false,
                ..sent
            };
            self.model.unique.insert((known.queue, unique), first);
        }
        Ok(())
    }

    fn delivered(
        &mut self,
        queue: &'static str,
        holder: u64,
        (cuts, holds): (u64, u64),
        deliveries: &[Delivery],
    ) -> Result<(), Violation> {
        let mut keys = BTreeSet::new();
        let certain = cuts == self.model.cuts(queue);
        let mut earlier = Vec::new();
        let mut all_read = true;
        // What has ended on the way to its holder is not handed over.
        let now = self.now().machine;
        let current = |delivery: &&Delivery| delivery.deadline > now;
        for delivery in deliveries.iter().filter(current) {
            let Some(body) = self.payload(delivery)? else {
                // It is leased all the same; nobody can tell which one it was.
                all_read = false;
                continue;
            };
            let number = number(&body).ok_or("a body that nobody sent")?;
            self.note(format!(
                "{queue} delivers {number} to {holder}, attempt {}",
                delivery.attempt
            ));
            let known = match self.model.messages.get(&number) {
                Some(known) if self.body(number) == body => known.clone(),
                _ => return Err(format!("the body of {number} is not what was sent")),
            };
            if known.state == Existence::Gone {
                return Err(format!("{number} is gone and was delivered"));
            }
            if known.enters > self.wall_max {
                return Err(format!("{number} was delivered before its time"));
            }
            // That it is delivered says that it is there; but it may have been acknowledged between
            // the decision and now.
            self.known(number).seen = true;
            self.model.delivered += 1;
            self.tally.count("deliveries", 1);
            if queue == KEYED && all_read && !self.wall_goes_back && known.order.is_some() {
                self.check_order(number, &earlier)?;
                earlier.push(number);
            }
            self.check_holds(queue, number, holds)?;
            if queue == KEYED || queue == SKIPPING {
                self.check_holder(queue, number, holder)?;
                if let Some(key) = known.key
                    && keys.insert(key)
                    && all_read
                {
                    self.state_shown((queue, key), delivery.state.as_deref())?;
                }
            }
            let until_ms = if certain {
                self.real_ms + delivery.deadline.since(now)
            } else {
                0
            };
            let lease = Lease {
                message: number,
                queue,
                holder,
                until_ms,
            };
            self.model.leases.insert(delivery.token, lease);
        }
        Ok(())
    }

    /// What the delivery's record holds; `None` if it is damaged, as it may be, or the disk failed.
    pub(crate) fn payload(&mut self, delivery: &Delivery) -> Result<Option<Bytes>, Violation> {
        let at = delivery.location;
        let reader = self.shard().reader.clone();
        let record = match self.during(Doing::Read, |_| reader.read(at.position)) {
            Ok(record) => record,
            Err(ReadError::Log(_)) if self.disk_failed => return Ok(None),
            Err(error) if self.damaged || self.misread => {
                self.note(format!("cannot be read: {error}"));
                self.tally.count("payloads reported as damaged", 1);
                // Without damage that lasts it would be there the next time.
                if self.damaged {
                    self.unreadable.push(EngineCommand::Damaged {
                        queue: delivery.token.queue,
                        sequence: delivery.token.sequence,
                    });
                    self.model.taken_for_damaged(delivery.id);
                }
                return Ok(None);
            }
            Err(error) => {
                return Err(format!(
                    "the payload of {:?} cannot be read: {error:?}",
                    delivery.token
                ));
            }
        };
        let stored = read_message(&record, at.part)
            .map_err(|error| format!("no message at {at:?}: {error}"))?;
        if stored.id != delivery.id {
            return Err(format!(
                "{} is stored where {} should be",
                stored.id, delivery.id
            ));
        }
        Ok(Some(stored.message.body))
    }

    /// Nothing of the message's key is in front of it.
    fn check_order(&self, number: u64, earlier: &[u64]) -> Result<(), Violation> {
        let of = &self.model.messages[&number];
        for (&other, known) in &self.model.messages {
            let in_front = known.queue == KEYED
                && known.key == of.key
                && known.state == Existence::There
                && known.order.is_some_and(|order| Some(order) < of.order);
            if in_front && !earlier.contains(&other) {
                return Err(format!(
                    "{number} was delivered before {other}, which is there"
                ));
            }
        }
        Ok(())
    }

    /// Nobody else has any message of the key.
    fn check_holder(&self, queue: &str, number: u64, holder: u64) -> Result<(), Violation> {
        let key = self.model.messages[&number].key;
        for lease in self.model.leases.values() {
            if lease.queue == queue
                && key == self.model.messages[&lease.message].key
                && lease.until_ms > self.real_ms
                && lease.holder != holder
            {
                return Err(format!(
                    "{number} was delivered to {holder} while {} holds {} of its key for {} ms",
                    lease.holder,
                    lease.message,
                    lease.until_ms - self.real_ms
                ));
            }
        }
        Ok(())
    }

    fn settled(&mut self, asked: &AskedSettle, settled: Settled) {
        let token = asked.token;
        self.note(format!(
            "settled {:?}: {settled:?}",
            (token.queue, token.sequence)
        ));
        let Some(lease) = self.model.leases.get(&token).cloned() else {
            return;
        };
        let known = self.known(lease.message);
        if asked.action == SettleAction::Ack {
            known.acks_asked = known.acks_asked.saturating_sub(1);
        }
        match (&asked.action, settled) {
            (SettleAction::Ack, Settled::Done) => {
                known.state = Existence::Gone;
                known.ended = true;
                self.model.leases.remove(&token);
                self.tally.count("messages acknowledged", 1);
            }
            // Nothing happened: the lease goes on, and the message is there.
            (SettleAction::Ack, Settled::Stale(StaleReason::OutOfOrder)) => {
                if known.state == Existence::Perhaps && known.acks_asked == 0 && !known.doubtful {
                    known.state = Existence::There;
                }
            }
            (SettleAction::Extend { lease: span }, Settled::Done | Settled::Extended { .. }) => {
                // Counted from when it was decided, which was not before it was asked.
                let lease = self.model.leases.get_mut(&token).expect("looked at");
                lease.until_ms = if lease.until_ms == 0 {
                    0
                } else {
                    asked.asked_at + span
                };
            }
            (SettleAction::Hold { delay, scope }, Settled::Done) => {
                let of = known.key.filter(|_| *scope == HoldScope::Key);
                self.held(lease.queue, of, asked.asked_at, *delay);
                self.model.leases.remove(&token);
            }
            // The lease is over; whether the message is there is as unknown as before.
            _ => {
                self.model.leases.remove(&token);
            }
        }
    }

    /// A body of a size that depends on its number, so that records and segments end everywhere; or
    /// all of one size, so that records of one use of a file stand where those of another stood.
    pub(crate) fn body(&self, number: u64) -> Bytes {
        let mut body = number.to_le_bytes().to_vec();
        let parts = self.body_parts.unwrap_or(number % 7);
        let len = usize::try_from(parts).expect("small") * 90;
        body.extend(SeededRandom::new(number).bytes(len));
        body.into()
    }
}

pub(crate) fn number(body: &Bytes) -> Option<u64> {
    Some(u64::from_le_bytes(*body.first_chunk::<8>()?))
}

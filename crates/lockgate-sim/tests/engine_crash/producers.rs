//! Producers: records that are sent again until somebody answers, one at a time and in their order.
//!
//! Whatever the disk loses, a record is there once: one that was delivered is not accepted again, and one that was never
//! asked for is not known. No incarnation that was answered is given out again, and one from before may not send.

use std::collections::BTreeMap;

use lockgate_core::{
    Clock as _, Message, Produced, ProducerIncarnation, ProducerMark, ProducerName, ProducerRefused,
};
use lockgate_engine::Request;
use lockgate_machine::{Command, OpenProducer, Rejection, Reply, SendMessage};

use crate::{
    Violation,
    answers::Asked,
    asks::Sending,
    model::Existence,
    world::{KEYED, KEYS, PLAIN, World, key, name},
};

/// What a producer knows of itself and of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spool {
    /// The highest incarnation that was answered, and the one before.
    highest: u64,
    before: u64,
    /// Whether an opening may have happened that was not answered.
    is_doubtful: bool,
    /// The number of the last record whose fate is known.
    settled: u64,
    /// The record that is next, and how often it may have been accepted.
    next: Option<(u64, u32)>,
}

pub(crate) type Spools = BTreeMap<&'static str, Spool>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum AskedProducer {
    Open,
    /// The message with the next record.
    Record(u64),
    /// A message of an earlier incarnation.
    Fenced(u64),
}

impl World {
    pub(crate) fn any_producer_request(&mut self) -> Request<u64> {
        let queue = [KEYED, PLAIN][self.random.index(2)];
        let spool = self.model.spools.get(queue).copied().unwrap_or_default();
        let is_asked =
            |asked: &Asked| matches!(asked, Asked::Producer { queue: of, .. } if *of == queue);
        // It waits for its answers.
        if self.asked.values().flatten().any(is_asked) {
            let sending = Sending {
                queue,
                key: (queue == KEYED).then_some(0),
                ..Sending::default()
            };
            return self.send(&[sending]);
        }
        if spool.highest == 0 || spool.is_doubtful || self.random.chance(10) {
            let open = OpenProducer {
                queue: name(queue),
                producer: producer(),
            };
            self.spool(queue).is_doubtful = true;
            let asked = AskedProducer::Open;
            let asked = Asked::Producer { queue, asked };
            return self.request(Command::from(open).into(), vec![asked]);
        }
        let number = spool.settled + 1;
        let (asked, incarnation, send) = match spool.next {
            _ if spool.before > 0 && self.random.chance(10) => {
                let (message, send) = self.new_record(queue);
                (AskedProducer::Fenced(message), spool.before, send)
            }
            Some((message, times)) => {
                self.spool(queue).next = Some((message, times + 1));
                let send = self.again(queue, message, times == 0);
                (AskedProducer::Record(message), spool.highest, send)
            }
            None => {
                let (message, send) = self.new_record(queue);
                self.spool(queue).next = Some((message, 1));
                (AskedProducer::Record(message), spool.highest, send)
            }
        };
        let mark = ProducerMark::new(producer(), 7, 3, number).unwrap();
        let incarnation = ProducerIncarnation(incarnation);
        let produced = Produced {
            mark,
            incarnation,
            after: 0,
        };
        let send = SendMessage {
            message: send.message.with_producer(produced),
            ..send
        };
        self.note(format!("{queue}: record {number}, {asked:?}"));
        let asked = Asked::Producer { queue, asked };
        self.request(Command::from(send).into(), vec![asked])
    }

    fn spool(&mut self, queue: &'static str) -> &mut Spool {
        self.model.spools.entry(queue).or_default()
    }

    fn new_record(&mut self, queue: &'static str) -> (u64, SendMessage) {
        let key = (queue == KEYED).then(|| self.random.below(KEYS));
        self.sending(Sending {
            queue,
            key,
            ..Sending::default()
        })
    }

    /// `is_first`: every one before it was refused.
    fn again(&mut self, queue: &'static str, message: u64, is_first: bool) -> SendMessage {
        // If this one is accepted, no earlier one was: the message enters its key's order now.
        let now = self.clock.wall();
        let known = self.known(message);
        known.enters = now;
        // A purge or a cancellation says nothing of this one, and a refusal nothing at all.
        if !known.seen {
            known.state = Existence::Perhaps;
            known.doubtful &= !is_first;
        }
        let of_key = known.key;
        let mut again = Message::new(self.body(message));
        again.key = of_key.map(key);
        SendMessage {
            queue: name(queue),
            message: again,
        }
    }

    /// For certain.
    pub(crate) fn not_produced(&mut self, queue: &'static str, asked: AskedProducer) {
        match asked {
            // One that was asked for before may have happened.
            AskedProducer::Open => {}
            AskedProducer::Record(message) => {
                if let Some((next, times)) = &mut self.spool(queue).next
                    && *next == message
                {
                    *times = times.saturating_sub(1);
                }
            }
            AskedProducer::Fenced(message) => self.known(message).state = Existence::Gone,
        }
    }

    pub(crate) fn produced(
        &mut self,
        queue: &'static str,
        asked: AskedProducer,
        result: Result<Reply, Rejection>,
    ) -> Result<(), Violation> {
        let spool = *self.spool(queue);
        let wrong = |what: &str| Err(format!("{queue}, {spool:?}: {asked:?} {what}"));
        match (asked, result) {
            (AskedProducer::Open, Ok(Reply::ProducerOpened(given))) => {
                if given.0 <= spool.highest {
                    return wrong(&format!("got {given}"));
                }
                self.tally.count("producers opened", 1);
                *self.spool(queue) = Spool {
                    highest: given.0,
                    before: spool.highest,
                    is_doubtful: false,
                    ..spool
                };
                Ok(())
            }
            (AskedProducer::Record(message), Ok(Reply::Sent(sent))) => {
                if self.known(message).seen && !self.damaged {
                    return wrong("was accepted after it was delivered");
                }
                self.tally.count("records of producers accepted", 1);
                self.settle_record(queue);
                self.sent(message, sent)
            }
            (AskedProducer::Record(message), Err(Rejection::SentBefore { .. })) => {
                let was_asked = spool.next.is_some_and(|(_, times)| times > 1);
                if !was_asked && !self.damaged {
                    return wrong("is new and was known");
                }
                self.tally.count("records of producers known", 1);
                self.settle_record(queue);
                let known = self.known(message);
                if !known.seen && !known.doubtful {
                    known.state = Existence::There;
                }
                Ok(())
            }
            (
                AskedProducer::Fenced(message),
                Err(Rejection::Producer {
                    refused: ProducerRefused::Fenced { .. },
                    ..
                }),
            ) => {
                self.tally.count("producers fenced", 1);
                self.known(message).state = Existence::Gone;
                Ok(())
            }
            (asked, Err(Rejection::Producer { .. })) if self.damaged => {
                self.not_produced(queue, asked);
                self.spool(queue).is_doubtful = true;
                Ok(())
            }
            (asked, result) => wrong(&format!("{asked:?} was answered by {result:?}")),
        }
    }

    fn settle_record(&mut self, queue: &'static str) {
        let spool = self.spool(queue);
        spool.settled += 1;
        spool.next = None;
    }
}

fn producer() -> ProducerName {
    ProducerName::new("producer").unwrap()
}

//! Producers, and which of their records were accepted.

use lockgate_core::{
    Produced, ProducerIncarnation, ProducerMark, ProducerName, ProducerRefused, Revision,
};
use lockgate_machine::*;

use super::*;

#[derive(Clone, Debug)]
pub(crate) struct Producer {
    pub(crate) incarnation: ProducerIncarnation,
    used: MachineTime,
    opened_at: Position,
    pub(crate) openings: BTreeMap<u64, Opening>,
}

#[derive(Clone, Debug)]
pub(crate) struct Opening {
    /// The highest number of each lane, and the record that brought it.
    pub(crate) lanes: [(u64, Position); ProducerMark::LANES as usize],
    used: MachineTime,
}

impl Model {
    pub(super) fn open_producer(&mut self, open: &OpenProducer) -> Result<Reply, Rejection> {
        let (now, at) = (self.now, self.at);
        let incarnation = self.records.revision.next(now.wall).0;
        let queue = self.found_mut(&open.queue)?;
        let max = queue.settings.producers_max;
        let is_full = queue.producers.len() as u64 >= u64::from(max);
        if is_full && !queue.producers.contains_key(&open.producer) {
            return Err(Rejection::ProducersFull {
                queue: open.queue.clone(),
                what: "producers",
                max,
            });
        }
        let openings = queue.producers.remove(&open.producer);
        let producer = Producer {
            incarnation: ProducerIncarnation(incarnation),
            used: now.machine,
            opened_at: at,
            openings: openings.map(|known| known.openings).unwrap_or_default(),
        };
        queue.producers.insert(open.producer.clone(), producer);
        self.records.revision = Revision(incarnation);
        Ok(Reply::ProducerOpened(ProducerIncarnation(incarnation)))
    }

    pub(super) fn forget_producer(&mut self, forget: &ForgetProducer) -> Result<Reply, Rejection> {
        let queue = self.found_mut(&forget.queue)?;
        match queue.producers.remove(&forget.producer) {
            Some(_) => Ok(Reply::Done),
            None => Err(Rejection::ProducerNotFound {
                queue: forget.queue.clone(),
                producer: forget.producer.clone(),
            }),
        }
    }

    /// The producers of a queue, as a list must show them.
    pub(crate) fn producers(&self, name: &QueueName) -> Vec<ProducerStatus> {
        let queue = self.queues.get(name);
        let producers = queue.into_iter().flat_map(|queue| &queue.producers);
        producers
            .map(|(name, producer)| ProducerStatus {
                producer: name.clone(),
                incarnation: producer.incarnation,
                openings: producer.openings.len() as u64,
                unused: self.now.machine.since(producer.used),
            })
            .collect()
    }
}

impl Queue {
    /// Whether the producer may send its record, and it is new. `waits_for`: whether the decision waits for that record.
    pub(super) fn take_mark(
        &mut self,
        name: &QueueName,
        produced: &Produced,
        level: Level,
        waits_for: impl Fn(Position) -> bool,
    ) -> Result<(), Rejection> {
        let mark = &produced.mark;
        let refused = |refused| {
            Err(Rejection::Producer {
                queue: name.clone(),
                producer: mark.producer().clone(),
                refused,
            })
        };
        let openings: usize = self.producers.values().map(|it| it.openings.len()).sum();
        let Some(producer) = self.producers.get(mark.producer()) else {
            return refused(ProducerRefused::Unknown);
        };
        let current = producer.incarnation;
        if produced.incarnation > current {
            return refused(ProducerRefused::Unknown);
        }
        if produced.incarnation < current {
            assert!(waits_for(producer.opened_at), "fenced by what may be lost");
            self.totals.fenced += 1;
            return refused(ProducerRefused::Fenced { current });
        }
        let opening = producer.openings.get(&mark.opening());
        let lane = usize::from(mark.lane());
        let there = opening.map_or(0, |opening| opening.lanes[lane].0);
        if mark.number() > there && there < produced.after {
            return refused(ProducerRefused::Gap);
        }
        match opening {
            Some(opening) => {
                let (highest, raised_at) = opening.lanes[lane];
                if mark.number() <= highest {
                    let waits = level < Level::Disk || waits_for(raised_at);
                    assert!(waits, "a duplicate by mark does not wait");
                    self.totals.sent_before += 1;
                    return Err(Rejection::SentBefore {
                        queue: name.clone(),
                    });
                }
                Ok(())
            }
            None if openings as u64 >= u64::from(self.settings.producers_max) => {
                Err(Rejection::ProducersFull {
                    queue: name.clone(),
                    what: "openings of producers",
                    max: self.settings.producers_max,
                })
            }
            None => Ok(()),
        }
    }

    pub(super) fn raise_mark(&mut self, produced: &Produced, now: Now, at: Position) {
        let mark = &produced.mark;
        let producer = self.producers.get_mut(mark.producer()).unwrap();
        producer.used = now.machine;
        let opening = producer.openings.entry(mark.opening()).or_insert(Opening {
            lanes: Default::default(),
            used: now.machine,
        });
        opening.used = now.machine;
        opening.lanes[usize::from(mark.lane())] = (mark.number(), at);
    }

    pub(super) fn forget_producers(&mut self, now: Now) {
        let age = self.settings.producer_age;
        let in_use = |used: MachineTime| used.plus(age) > now.machine;
        self.producers.retain(|_, producer| in_use(producer.used));
        for producer in self.producers.values_mut() {
            producer.openings.retain(|_, opening| in_use(opening.used));
        }
    }

    /// How long until something is forgotten.
    pub(super) fn producers_last(&self, now: Now) -> impl Iterator<Item = Millis> {
        let age = self.settings.producer_age;
        let producers = self.producers.values();
        let used = producers.flat_map(|producer| {
            let openings = producer.openings.values().map(|opening| opening.used);
            openings.chain([producer.used])
        });
        used.map(move |used| used.plus(age).since(now.machine))
    }

    pub(crate) fn producer(&self, name: &ProducerName) -> Option<&Producer> {
        self.producers.get(name)
    }
}

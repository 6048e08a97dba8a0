//! Ledgers: what is asked of one, and what answers must be.
//!
//! Every answer about a ledger has reached the disk. So whatever the disk loses, an event that was answered, or was shown, is
//! there at its place, no place is given to two events, a unique id has one place for ever, and a writer from before appends
//! nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    Epoch, LedgerName, UniqueId,
    ledger::{Append, Appended, LedgerError, LedgerOptions, NewEvent, SequenceId},
};
use lockgate_engine::{Request, Work};
use lockgate_machine::{
    AppendEvents, CreateLedger, FindEvent, LocateEvents, Query, QueryReply, Rejection, Reply,
    TrimLedger, read_events,
};

use crate::{Violation, answers::Asked, tally::Doing, world::World};

/// What was answered about the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownLedger {
    /// It was made.
    is_made: bool,
    /// The highest epoch that has appended.
    epoch: u64,
    /// The numbers in the events, by place.
    events: BTreeMap<u64, u64>,
    /// The places of unique ids.
    unique: BTreeMap<u64, u64>,
    /// Numbers that were given to events.
    numbers: u64,
}

impl KnownLedger {
    /// Records were damaged: only the numbers that were used are certain.
    pub(crate) fn forgive(&mut self) {
        *self = Self {
            numbers: self.numbers,
            ..Self::default()
        };
    }

    fn head(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(place, _)| *place)
    }
}

#[derive(Clone, Debug)]
pub(crate) enum AskedLedger {
    Make,
    Append {
        epoch: u64,
        /// The unique id and the number of each event.
        events: Vec<(Option<u64>, u64)>,
    },
    Trim,
    Find {
        unique: u64,
    },
}

fn ledger() -> LedgerName {
    LedgerName::new("ledger").unwrap()
}

fn unique_id(unique: u64) -> UniqueId {
    UniqueId::new(&format!("id-{unique}")).unwrap()
}

impl World {
    pub(crate) fn any_ledger_request(&mut self) -> Request<u64> {
        let known = &self.model.ledger;
        if !known.is_made || self.random.chance(2) {
            let make = CreateLedger {
                name: ledger(),
                options: LedgerOptions {
                    hashed: true,
                    retention: None,
                },
            };
            return self.ask_ledger(make.into(), AskedLedger::Make);
        }
        let (epoch, head, numbers) = (known.epoch, known.head(), known.numbers);
        match self.random.below(20) {
            0 => {
                let first = SequenceId(1 + self.random.below(head / 2 + 1));
                let ledger = ledger();
                let trim = TrimLedger { ledger, first };
                self.ask_ledger(trim.into(), AskedLedger::Trim)
            }
            1..4 => {
                let unique = self.random.below(numbers + 1);
                let find = FindEvent {
                    ledger: ledger(),
                    unique_id: unique_id(unique),
                };
                let asked = AskedLedger::Find { unique };
                self.request(Work::Query(find.into()), vec![Asked::Ledger(asked)])
            }
            what => {
                let epoch = match what {
                    4 => epoch + 1,
                    5 => epoch.saturating_sub(1),
                    _ => epoch,
                };
                let count = 1 + self.random.below(4);
                let events: Vec<_> = (0..count).map(|_| self.any_event()).collect();
                let new = events.iter().map(|(unique, number)| {
                    let size = usize::try_from(number * 7_919 % 700).unwrap();
                    NewEvent {
                        unique_id: unique.map(unique_id),
                        input: None,
                        payload: payload(*number, size),
                    }
                });
                let append = AppendEvents {
                    ledger: ledger(),
                    append: Append {
                        epoch: Epoch(epoch),
                        head: None,
                        events: new.collect(),
                        settled: Vec::new(),
                    },
                    settles: Vec::new(),
                };
                self.ask_ledger(append.into(), AskedLedger::Append { epoch, events })
            }
        }
    }

    fn ask_ledger(
        &mut self,
        command: lockgate_machine::Command,
        asked: AskedLedger,
    ) -> Request<u64> {
        self.request(command.into(), vec![Asked::Ledger(asked)])
    }

    /// Often with the unique id of one that came before.
    fn any_event(&mut self) -> (Option<u64>, u64) {
        let known = &mut self.model.ledger;
        known.numbers += 1;
        let number = known.numbers;
        let unique = match self.random.below(4) {
            0 => None,
            1 => Some(1 + self.random.below(number)),
            _ => Some(number),
        };
        (unique, number)
    }

    /// What is shown is not taken back.
    pub(crate) fn event_shown(
        &mut self,
        asked: AskedLedger,
        shown: Option<SequenceId>,
    ) -> Result<(), Violation> {
        let AskedLedger::Find { unique } = asked else {
            return Err(format!("{asked:?} was answered by {shown:?}"));
        };
        let known = &mut self.model.ledger;
        match (known.unique.get(&unique), shown) {
            (None, None) => Ok(()),
            (None, Some(place)) => {
                known.unique.insert(unique, place.0);
                Ok(())
            }
            (Some(known), Some(place)) if *known == place.0 => Ok(()),
            (known, shown) => Err(format!("id {unique} was at {known:?}, and is at {shown:?}")),
        }
    }

    pub(crate) fn ledger_answered(
        &mut self,
        asked: AskedLedger,
        result: Result<Reply, Rejection>,
    ) -> Result<(), Violation> {
        let known = &mut self.model.ledger;
        let wrong = |what: &str| Err(format!("{asked:?} {what}"));
        match (&asked, result) {
            (AskedLedger::Make, Ok(Reply::Ledger(_))) => known.is_made = true,
            (AskedLedger::Append { epoch, events }, Ok(Reply::Appended(appended))) => {
                if *epoch < known.epoch {
                    return wrong("was done for a writer from before");
                }
                known.epoch = *epoch;
                if let Err(what) = known.learn(events, &appended) {
                    return wrong(&what);
                }
                self.tally.count("events appended", events.len() as u64);
            }
            (
                AskedLedger::Append { epoch, .. },
                Err(Rejection::Ledger(LedgerError::Deposed { newest, .. })),
            ) if newest.0 > *epoch => {}
            (AskedLedger::Trim, Ok(Reply::LedgerHead(head))) => {
                known.events.retain(|place, _| *place >= head.first_id.0);
                self.tally.count("ledger trimmed", 1);
            }
            // It was asked for before its creation was answered, which was lost.
            (_, Err(Rejection::Ledger(LedgerError::NotFound { .. }))) if !known.is_made => {}
            // Trimmed beyond an end that damage has taken.
            (AskedLedger::Trim, Err(Rejection::Ledger(LedgerError::Beyond { .. })))
                if self.damaged => {}
            (_, result) => return wrong(&format!("was answered by {result:?}")),
        }
        Ok(())
    }

    /// Every event that was answered can be read at its place.
    pub(crate) fn check_events(&mut self) -> Result<(), Violation> {
        let machine = self.shard().driver.machine();
        let Some(head) = machine.ledgers().next().map(|ledger| ledger.head) else {
            return match self.model.ledger.is_made {
                true => Err("the ledger is gone".to_owned()),
                false => Ok(()),
            };
        };
        let known = self.model.ledger.clone();
        let mut after = head.first_id.previous();
        let mut found = BTreeMap::new();
        while after < head.sequence_id {
            let locate = Query::LocateEvents(LocateEvents {
                ledger: ledger(),
                after,
                limit: 100,
            });
            let now = lockgate_core::Now::default();
            let places = match self.shard().driver.machine().query(&locate, now) {
                Ok(QueryReply::EventPlaces(places)) => places,
                other => return Err(format!("events behind {after}: {other:?}")),
            };
            for place in places.blocks {
                let position = place.position.ok_or("events count as lost")?;
                let reader = self.shard().reader.clone();
                let record = match self.during(Doing::Read, |_| reader.read(position)) {
                    Ok(record) => record,
                    Err(_) if self.disk_failed || self.misread || self.damaged => return Ok(()),
                    Err(error) => {
                        return Err(format!(
                            "events from {} on cannot be read: {error:?}",
                            place.first
                        ));
                    }
                };
                let block = read_events(&record, places.ledger, place.first)
                    .map_err(|error| error.to_string())?;
                let events = block.into_events().ok_or("the hashes do not fit")?;
                for event in events {
                    after = after.max(event.sequence_id);
                    let number = number(&event.payload).ok_or("a payload is another")?;
                    found.insert(event.sequence_id.0, number);
                }
            }
        }
        for (place, number) in &known.events {
            if *place >= head.first_id.0 && found.get(place) != Some(number) {
                let there = found.get(place);
                return Err(format!("event {place} was {number}, and is {there:?}"));
            }
        }
        Ok(())
    }
}

impl KnownLedger {
    fn learn(&mut self, events: &[(Option<u64>, u64)], appended: &Appended) -> Result<(), String> {
        let head = appended.head.sequence_id.0;
        if head < self.head() || appended.events.len() != events.len() {
            return Err(format!("got the head {head} behind {}", self.head()));
        }
        for ((unique, number), event) in events.iter().zip(&appended.events) {
            let place = event.sequence_id.0;
            if place == 0 || place > head {
                return Err(format!("got the place {place}"));
            }
            if let Some(unique) = unique {
                let known = *self.unique.entry(*unique).or_insert(place);
                if known != place {
                    return Err(format!("got {place} for an id that has {known}"));
                }
            }
            if !event.is_duplicate
                && let Some(other) = self.events.insert(place, *number)
            {
                return Err(format!("got {place}, which event {other} has"));
            }
        }
        Ok(())
    }
}

/// So large that records and segments end everywhere.
fn payload(number: u64, size: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + size, 7);
    bytes.into()
}

fn number(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(payload.get(..8)?.try_into().ok()?))
}

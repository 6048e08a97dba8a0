//! What must hold from each event of a ledger to the next.

use std::{fmt, str::FromStr};

use crate::{Epoch, WallTime};

use super::{Event, LedgerHead, SequenceId};

/// The running hash up to an event: BLAKE3 over the 32 bytes of the hash before it and the payload. Two ledgers with one hash at
/// one place have the same payloads up to there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHash(pub [u8; 32]);

impl EventHash {
    /// Before the first event: 32 zero bytes.
    pub const START: Self = Self([0; 32]);

    /// The hash behind one more event.
    #[must_use]
    pub fn next(&self, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(payload);
        Self(*hasher.finalize().as_bytes())
    }
}

/// In 64 hexadecimal digits.
impl fmt::Display for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is no [`EventHash`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no hash of an event: expected 64 hexadecimal digits")]
pub struct EventHashError {
    /// The text.
    pub text: String,
}

impl FromStr for EventHash {
    type Err = EventHashError;

    fn from_str(text: &str) -> Result<Self, EventHashError> {
        match blake3::Hash::from_hex(text) {
            Ok(hash) => Ok(Self(*hash.as_bytes())),
            Err(_) => Err(EventHashError {
                text: text.chars().take(80).collect(),
            }),
        }
    }
}

/// What a reader knows of the last event that it has, by which it checks the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its place.
    pub sequence_id: SequenceId,
    /// Its hash; `None`: not known, or the ledger has none.
    pub hash: Option<EventHash>,
    /// Its term.
    pub epoch: Epoch,
    /// Its time.
    pub time: WallTime,
}

impl Chain {
    /// Before the first event of a ledger.
    pub const START: Self = Self {
        sequence_id: SequenceId::START,
        hash: Some(EventHash::START),
        epoch: Epoch(0),
        time: WallTime(0),
    };

    /// Behind an event of which only the place is known.
    #[must_use]
    pub fn behind(sequence_id: SequenceId) -> Self {
        if sequence_id == SequenceId::START {
            return Self::START;
        }
        Self {
            sequence_id,
            hash: None,
            ..Self::START
        }
    }

    /// Checks that the event follows, and steps over it.
    ///
    /// # Errors
    /// The first thing that does not hold; then nothing changes.
    pub fn follow(&mut self, event: &Event) -> Result<(), ChainBreak> {
        let at = event.sequence_id;
        if at != self.sequence_id.next() || event.previous_id != self.sequence_id {
            return Err(ChainBreak::Place {
                last: self.sequence_id,
                found: at,
                previous: event.previous_id,
            });
        }
        if event.time < self.time {
            let (last, found) = (self.time, event.time);
            return Err(ChainBreak::Time { at, last, found });
        }
        if event.epoch < self.epoch {
            let (last, found) = (self.epoch, event.epoch);
            return Err(ChainBreak::Epoch { at, last, found });
        }
        match (self.hash, event.hash) {
            (Some(last), Some(found)) => {
                let expected = last.next(&event.payload);
                if found != expected {
                    return Err(ChainBreak::Hash {
                        at,
                        expected,
                        found,
                    });
                }
            }
            // A ledger has hashes of all events, or of none. The start is that of both.
            (Some(_), None) if self.sequence_id != SequenceId::START => {
                return Err(ChainBreak::NoHash { at });
            }
            _ => {}
        }
        *self = Self {
            sequence_id: at,
            hash: event.hash,
            epoch: event.epoch,
            time: event.time,
        };
        Ok(())
    }

    /// Checks that the ledger, whose head this is, holds what the reader has.
    ///
    /// # Errors
    /// If the reader has events that the ledger does not have, or others.
    pub fn agrees_with(&self, head: &LedgerHead) -> Result<(), ChainBreak> {
        let at = self.sequence_id;
        if head.sequence_id < at {
            return Err(ChainBreak::Head {
                at,
                head: head.sequence_id,
            });
        }
        if head.epoch < self.epoch {
            let (last, found) = (self.epoch, head.epoch);
            return Err(ChainBreak::Epoch { at, last, found });
        }
        if at == SequenceId::START || head.sequence_id != at {
            return Ok(());
        }
        match (self.hash, head.hash) {
            (Some(expected), Some(found)) if expected != found => Err(ChainBreak::Hash {
                at,
                expected,
                found,
            }),
            (Some(_), None) => Err(ChainBreak::NoHash { at }),
            _ => Ok(()),
        }
    }
}

/// What does not hold between an event and what comes before it: the ledger is damaged, or these are the events of another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainBreak {
    /// The event is not the next one.
    #[error("event {found} says that {previous} is before it, and stands behind {last}")]
    Place {
        /// The event before it.
        last: SequenceId,
        /// Its place.
        found: SequenceId,
        /// What it says is before it.
        previous: SequenceId,
    },
    /// Time went back.
    #[error("the time of event {at} is {} ms, and that of the event before it {}", found.0, last.0)]
    Time {
        /// Which event.
        at: SequenceId,
        /// The time before.
        last: WallTime,
        /// Its time.
        found: WallTime,
    },
    /// The term went back.
    #[error("the epoch at event {at} is {}, and was {} before", found.0, last.0)]
    Epoch {
        /// Which event.
        at: SequenceId,
        /// The epoch before.
        last: Epoch,
        /// Its epoch.
        found: Epoch,
    },
    /// The payloads up to the event are others.
    #[error("the hash at event {at} is {found}, and not {expected}")]
    Hash {
        /// Which event.
        at: SequenceId,
        /// What it must be.
        expected: EventHash,
        /// What it is.
        found: EventHash,
    },
    /// The ledger is hashed, and the event has no hash.
    #[error("event {at} has no hash, and the event before it has one")]
    NoHash {
        /// Which event.
        at: SequenceId,
    },
    /// The ledger ends before what the reader has.
    #[error("the ledger ends at event {head}, and event {at} was read of it before")]
    Head {
        /// What the reader has.
        at: SequenceId,
        /// Where the ledger ends.
        head: SequenceId,
    },
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn event(id: u64, hash: Option<EventHash>, payload: &'static [u8]) -> Event {
        Event {
            sequence_id: SequenceId(id),
            previous_id: SequenceId(id - 1),
            unique_id: None,
            time: WallTime(id),
            epoch: Epoch(1),
            hash,
            payload: Bytes::from_static(payload),
        }
    }

    /// Each fault of an event alone breaks the chain, and what breaks it is not stepped over.
    #[test]
    fn a_chain_breaks_where_an_event_does_not_follow() {
        let first = EventHash::START.next(b"a");
        let good = event(2, Some(first.next(b"b")), b"b");
        let mut chain = Chain::START;
        chain.follow(&event(1, Some(first), b"a")).unwrap();
        let before = chain;
        let faults: [fn(&mut Event); 7] = [
            |event| event.sequence_id = SequenceId(3),
            |event| event.previous_id = SequenceId(0),
            |event| event.time = WallTime(0),
            |event| event.epoch = Epoch(0),
            |event| event.hash = Some(EventHash::START),
            |event| event.payload = Bytes::from_static(b"c"),
            |event| event.hash = None,
        ];
        for fault in faults {
            let mut event = good.clone();
            fault(&mut event);
            chain.follow(&event).unwrap_err();
            assert_eq!(chain, before);
        }
        chain.follow(&good).unwrap();
        assert_eq!(chain.sequence_id, SequenceId(2));
        let mut head = LedgerHead {
            sequence_id: SequenceId(2),
            epoch: Epoch(1),
            hash: chain.hash,
            ..LedgerHead::start(true)
        };
        chain.agrees_with(&head).unwrap();
        head.hash = None;
        chain.agrees_with(&head).unwrap_err();
    }

    #[test]
    fn a_hash_is_a_text_of_hexadecimal_digits() {
        let hash = EventHash::START.next(b"payload");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        let error = "xyz".parse::<EventHash>().unwrap_err();
        assert!(
            error.to_string().starts_with("\"xyz\" is no hash"),
            "{error}"
        );
    }
}

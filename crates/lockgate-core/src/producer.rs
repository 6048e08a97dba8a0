//! Marks of producers: which record of which producer a message is, so that a record that is sent again after any
//! outage is known.
//!
//! A producer keeps its records in a spool until they are sent. Each time it opens the spool it draws a random number,
//! the *opening*, and numbers the records that it accepts from then on, in each of its [lanes](ProducerMark::LANES)
//! from 1. It may draw several, for records that need not wait for each other. A record keeps its mark for as long as it
//! lives, also when a later opening sends it. So two copies of a spool never give one mark to two records, and a record
//! that both hold has one mark.
//!
//! A queue keeps the highest number of each lane of each opening. It takes a number above that, and knows every other
//! one. That is only right if a lane sends its records in order, and never past one whose fate is unknown. Numbers may
//! be left out.
//!
//! The queue gives a producer that asks for it an [incarnation](ProducerIncarnation), and refuses the sends of older
//! ones, so that of two copies one is told.

use std::fmt;

use crate::ProducerName;

/// Which record of a producer a message is. Two messages of a queue that have equal marks are one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProducerMark {
    producer: ProducerName,
    opening: u64,
    lane: u8,
    number: u64,
}

/// A mark that no record can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MarkError {
    /// The lane is too high.
    #[error("a lane is 0 to {}, this one is {given}", ProducerMark::LANES - 1)]
    Lane {
        /// The lane that was given.
        given: u8,
    },
    /// The number is 0.
    #[error("the records of a lane are numbered from 1, this one has 0")]
    Number,
}

impl ProducerMark {
    /// How many lanes a producer has.
    pub const LANES: u8 = 16;

    /// The mark of record `number`, from 1, in that lane, which is below [`LANES`](Self::LANES), of that opening.
    ///
    /// # Errors
    /// If lane or number is out of range.
    pub fn new(
        producer: ProducerName,
        opening: u64,
        lane: u8,
        number: u64,
    ) -> Result<Self, MarkError> {
        if lane >= Self::LANES {
            return Err(MarkError::Lane { given: lane });
        }
        if number == 0 {
            return Err(MarkError::Number);
        }
        Ok(Self {
            producer,
            opening,
            lane,
            number,
        })
    }

    /// Whose record it is.
    #[must_use]
    pub fn producer(&self) -> &ProducerName {
        &self.producer
    }

    /// The random number that the spool drew when it was opened to accept the record.
    #[must_use]
    pub fn opening(&self) -> u64 {
        self.opening
    }

    /// The lane of the record, below [`LANES`](Self::LANES).
    #[must_use]
    pub fn lane(&self) -> u8 {
        self.lane
    }

    /// The number of the record in its lane, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The number that a queue gives a producer each time the producer opens it: above all that it gave this producer
/// before, also if it forgot the producer since. It is at least the microseconds of the wall clock, so it rises over
/// the restore of a backup too, unless the clock was set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerIncarnation(pub u64);

impl fmt::Display for ProducerIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a producer says of a message that it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Which record it is.
    pub mark: ProducerMark,
    /// What the queue [gave](crate::Sink::open_producer) the producer last. It is no part of the record's identity.
    pub incarnation: ProducerIncarnation,
    /// The number of the record before it in its lane and opening, if that is on its way too: the queue takes this one
    /// only if it has that one. So a lane's records may go in one batch, of which one may fail. 0: all before it are
    /// known to be there, or given up, as of every message that is kept.
    pub after: u64,
}

/// Why a queue does not take the sends of a producer. A sink's error with [`Fate::Stale`](crate::Fate::Stale)
/// [says](crate::TransportError::producer_refused) which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerRefused {
    /// Another opened the queue as this producer since. Only one of them may go on.
    #[error(
        "the queue is open for a later incarnation of this producer ({current}): another one has its name or a copy of \
         its spool"
    )]
    Fenced {
        /// The incarnation that the queue takes.
        current: ProducerIncarnation,
    },
    /// The queue does not know the producer, or not with that incarnation: it forgot it, or an older backup was
    /// restored. Open the queue again.
    #[error("the queue does not know this incarnation of the producer: open the queue again")]
    Unknown,
    /// The record that this one [comes after](Produced::after) is not there. Send both again, in their order.
    #[error("the record before this one is not there: send both again")]
    Gap,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_has_a_lane_of_sixteen_and_a_number_from_one() {
        let mark = |lane, number| {
            let producer = ProducerName::new("billing").unwrap();
            ProducerMark::new(producer, 7, lane, number).map(|mark| (mark.lane(), mark.number()))
        };
        assert_eq!(mark(15, u64::MAX), Ok((15, u64::MAX)));
        assert_eq!(mark(16, 1), Err(MarkError::Lane { given: 16 }));
        assert_eq!(mark(0, 0), Err(MarkError::Number));
    }
}

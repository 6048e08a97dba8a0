//! From where messages are to what is in them.

use std::{collections::VecDeque, iter::zip};

use bytes::Bytes;
use lockgate_core::{Location, LogReader, MessageId, Position, ReadError};
use lockgate_machine::{StoredMessage, read_message};

/// Messages that are read one after the other; their records are read all at once.
pub(crate) struct Reading<'a> {
    reader: &'a dyn LogReader,
    /// Records that were read, in the order of the messages.
    ahead: VecDeque<(Position, Result<Bytes, ReadError>)>,
    /// Consecutive messages of one record share it.
    last: Option<(Position, Bytes)>,
}

impl<'a> Reading<'a> {
    pub(crate) fn of(reader: &'a dyn LogReader, places: impl Iterator<Item = Location>) -> Self {
        let mut positions: Vec<_> = places.map(|place| place.position).collect();
        positions.dedup();
        let records = reader.read_all(&positions);
        Self {
            reader,
            ahead: zip(positions, records).collect(),
            last: None,
        }
    }

    /// The next message.
    pub(crate) fn message(
        &mut self,
        location: Location,
        id: MessageId,
    ) -> Result<StoredMessage, ReadError> {
        let at = location.position;
        let record = self.record(at)?;
        let stored = read_message(&record, location.part).map_err(|_| ReadError::Damaged {
            at,
            what: "no message where one should be",
        })?;
        if stored.id != id {
            return Err(ReadError::Damaged {
                at,
                what: "another message where one should be",
            });
        }
        Ok(stored)
    }

    fn record(&mut self, at: Position) -> Result<Bytes, ReadError> {
        if let Some((position, record)) = &self.last
            && *position == at
        {
            return Ok(record.clone());
        }
        let record = match self.ahead.pop_front_if(|(position, _)| *position == at) {
            Some((_, record)) => record,
            // It could not be read for a message before this one, which has the reason.
            None => self.reader.read(at),
        }?;
        self.last = Some((at, record.clone()));
        Ok(record)
    }
}

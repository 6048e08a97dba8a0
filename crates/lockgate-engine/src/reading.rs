//! Reads the payloads of messages from their positions.

use std::{collections::VecDeque, iter::zip};

use bytes::Bytes;
use lockgate_core::{Location, LogReader, MessageId, Position, ReadError};
use lockgate_machine::{StoredMessage, read_message};

/// Reads messages one after the other; their records are read all at once.
pub(crate) struct Reading<'a> {
    reader: &'a dyn LogReader,
    /// Records that were read already, in the order of the messages.
    ahead: VecDeque<(Position, Result<Bytes, ReadError>)>,
    /// Consecutive messages of one record share it.
    last: Option<(Position, Bytes)>,
}

impl<'a> Reading<'a> {
    /// Reading may wait for storage.
    pub(crate) fn of(reader: &'a dyn LogReader, places: impl Iterator<Item = Location>) -> Self {
        let positions = positions(places);
        let records = reader.read_all(&positions);
        Self {
            reader,
            ahead: zip(positions, records).collect(),
            last: None,
        }
    }

    /// Reads all records without waiting, so that reading the messages does not wait either. `None`
    /// if that is not possible.
    pub(crate) fn at_once(
        reader: &'a dyn LogReader,
        places: impl Iterator<Item = Location>,
    ) -> Option<Self> {
        let positions = positions(places);
        let records = match positions[..] {
            [] => Vec::new(),
            _ => reader.try_read_all(&positions)?,
        };
        Some(Self {
            reader,
            ahead: zip(positions, records.into_iter().map(Ok)).collect(),
            last: None,
        })
    }

    /// The next message.
    pub(crate) fn message(
        &mut self,
        location: Location,
        id: MessageId,
    ) -> Result<StoredMessage, ReadError> {
        let at = location.position;
        let record = self.record(at)?;
        let mut stored = read_message(&record, location.part).map_err(|_| ReadError::Damaged {
            at,
            what: "no message where one should be",
        })?;
        // It is for the queue, not for whoever gets the message.
        stored.message.producer = None;
        stored.marked_at = None;
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
            // Reading stopped at an earlier message, which has the error.
            None => self.reader.read(at),
        }?;
        self.last = Some((at, record.clone()));
        Ok(record)
    }
}

fn positions(places: impl Iterator<Item = Location>) -> Vec<Position> {
    let mut positions: Vec<_> = places.map(|place| place.position).collect();
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use lockgate_core::{Message, QueueId, Scanned, Sequence, Term, WallTime};
    use lockgate_machine::{Effect, encode_record};

    use super::*;

    /// A log of one record.
    struct One(Bytes);

    impl LogReader for One {
        fn locate(&self, _: u64) -> Result<Option<Position>, ReadError> {
            Ok(None)
        }

        fn wait_tail(
            &self,
            beyond: Position,
            _: std::time::Duration,
        ) -> Result<Position, lockgate_core::LogError> {
            Ok(beyond)
        }

        fn read(&self, _at: Position) -> Result<Bytes, ReadError> {
            Ok(self.0.clone())
        }

        fn scan(
            &self,
            _from: Position,
            _to: Position,
            _visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
        ) -> Result<(), ReadError> {
            Ok(())
        }
    }

    #[test]
    fn a_message_is_read_by_its_id_and_no_other_is_taken_for_it() {
        let id = |sequence| MessageId::new(QueueId(1), Sequence(sequence), Term::default());
        let stored = StoredMessage {
            queue: QueueId(1),
            sequence: Sequence(7),
            id: id(7),
            accepted: WallTime(1),
            unique_until: None,
            key_sequence: None,
            marked_at: None,
            payload: lockgate_machine::Payload::Own,
            message: Message::new("seven"),
        };
        let mut record = Vec::new();
        encode_record(&[Effect::Accepted(Box::new(stored))], &mut record);
        let log = One(record.into());
        let place = Location::default();
        let read = |id| Reading::of(&log, [place].into_iter()).message(place, id);
        assert_eq!(read(id(7)).unwrap().message.body, "seven");
        for other in [id(6), id(8)] {
            let error = read(other).unwrap_err();
            assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
        }
        let nowhere = Location { part: 1, ..place };
        let error = Reading::of(&log, [nowhere].into_iter()).message(nowhere, id(7));
        assert!(matches!(error, Err(ReadError::Damaged { .. })), "{error:?}");
    }
}

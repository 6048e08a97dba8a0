//! Events as messages, for queues to which a sequencer publishes.

use std::{str::FromStr, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    Epoch, Header, Message, UniqueId, WallTime,
    ledger::{Event, EventHash, SequenceId},
};

const SEQUENCE_ID: &str = "sequence_id";
const PREVIOUS_ID: &str = "previous_id";
const TIME: &str = "time";
const EPOCH: &str = "epoch";
const UNIQUE_ID: &str = "unique_id";
const HASH: &str = "hash";

/// The event as a message: its payload is the body, and the rest is in the headers `sequence_id`, `previous_id`, `time` (in
/// milliseconds since 1970), `epoch`, and, if it has them, `unique_id` and `hash`.
#[must_use]
pub fn message_of(event: &Event) -> Message {
    let header = |name: &str, kind: &str, value: String| Header {
        name: name.into(),
        kind: kind.into(),
        value: value.into(),
    };
    let number = |name, value: u64| header(name, "Number", value.to_string());
    let mut headers = vec![
        number(SEQUENCE_ID, event.sequence_id.0),
        number(PREVIOUS_ID, event.previous_id.0),
        number(TIME, event.time.0),
        number(EPOCH, event.epoch.0),
    ];
    let unique_id = event.unique_id.as_ref();
    headers.extend(unique_id.map(|id| header(UNIQUE_ID, "String", id.to_string())));
    let hash = event.hash.as_ref();
    headers.extend(hash.map(|hash| header(HASH, "String", hash.to_string())));
    Message {
        headers,
        ..Message::new(event.payload.clone())
    }
}

/// A message is no event: see [`message_of`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoEvent {
    /// It lacks a header.
    #[error("the message has no header {name}, so it is no event")]
    Missing {
        /// Which one.
        name: &'static str,
    },
    /// A header's value is none of its kind.
    #[error("the header {name} of the message is {value:?}, so it is no event")]
    Value {
        /// Which one.
        name: &'static str,
        /// Its value, up to 100 characters of it.
        value: Arc<str>,
    },
}

/// The event that a message is, by [`message_of`]. Other headers are passed over.
///
/// # Errors
/// For a message that is none.
pub fn event_of(message: &Message) -> Result<Event, NoEvent> {
    let required = |name| optional(message, name)?.ok_or(NoEvent::Missing { name });
    Ok(Event {
        sequence_id: SequenceId(required(SEQUENCE_ID)?),
        previous_id: SequenceId(required(PREVIOUS_ID)?),
        unique_id: optional::<Id>(message, UNIQUE_ID)?.map(|id| id.0),
        time: WallTime(required(TIME)?),
        epoch: Epoch(required(EPOCH)?),
        hash: optional::<EventHash>(message, HASH)?,
        payload: message.body.clone(),
    })
}

struct Id(UniqueId);

impl FromStr for Id {
    type Err = lockgate_core::NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UniqueId::new(text).map(Self)
    }
}

fn optional<T: FromStr>(message: &Message, name: &'static str) -> Result<Option<T>, NoEvent> {
    let Some(header) = header(message, name) else {
        return Ok(None);
    };
    let text = str::from_utf8(header).ok();
    match text.and_then(|text| text.parse().ok()) {
        Some(value) => Ok(Some(value)),
        None => Err(NoEvent::Value {
            name,
            value: shown(header).into(),
        }),
    }
}

/// The value of a header.
pub(crate) fn header<'m>(message: &'m Message, name: &str) -> Option<&'m Bytes> {
    let mut headers = message.headers.iter();
    let header = headers.find(|header| &*header.name == name)?;
    Some(&header.value)
}

pub(crate) fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.chars().take(100).collect()
}

/// What a fuzzer gives its bytes to: a header in each line, as `name=value`, and the body behind an empty line. An event is the same
/// when it is a message again.
#[doc(hidden)]
pub fn fuzz_event(bytes: &[u8]) -> Result<(), String> {
    let mut message = Message::default();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let Some(at) = line.iter().position(|byte| *byte == b'=') else {
            break;
        };
        message.headers.push(Header {
            name: String::from_utf8_lossy(&line[..at]).into(),
            kind: "String".into(),
            value: Bytes::copy_from_slice(&line[at + 1..]),
        });
    }
    message.body = Bytes::copy_from_slice(rest);
    let event = event_of(&message).map_err(|error| error.to_string())?;
    assert_eq!(event_of(&message_of(&event)), Ok(event));
    Ok(())
}

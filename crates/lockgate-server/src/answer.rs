//! Limits the size of an answer with messages.
//!
//! A byte of a message's body may take six bytes in an answer: a control character in JSON, a
//! quotation mark in XML. So the length of each message is computed as written, before anything is
//! written.

use lockgate_core::KeyState;
use lockgate_machine::StoredMessage;

/// An answer stops before the message that would take it above this many bytes. It always has its
/// first message, so that every message can be received.
pub(crate) const MESSAGES_BYTES_MAX: usize = 16 << 20;

/// The most bytes that one byte becomes.
const GROWTH_MAX: usize = 6;

/// The approximate length of a message besides its texts: names of members, numbers, times, a
/// receipt.
const MESSAGE_LEN: usize = 768;
/// The approximate length of a header besides its texts.
const HEADER_LEN: usize = 96;

/// Computes the length of a text as written, without its quotation marks.
pub(crate) type TextLen = fn(&[u8]) -> usize;

/// How many of these messages fit into an answer, in order, at least one. `with_bodies`: whether
/// their bodies are written. Beside a message is the state of its key, if the answer shows it.
pub(crate) fn fitting<'m>(
    messages: impl Iterator<Item = (Option<&'m StoredMessage>, Option<&'m KeyState>)> + Clone,
    text_len: TextLen,
    with_bodies: bool,
) -> usize {
    let sum = |text_len: TextLen| {
        let mut sum = 0_usize;
        move |(message, state): (Option<&StoredMessage>, Option<&KeyState>)| {
            sum += message.map_or(MESSAGE_LEN, |message| len(message, text_len, with_bodies));
            sum += state.map_or(0, |state| HEADER_LEN + bytes_len(&state.value, text_len));
            sum
        }
    };
    // Exact lengths matter only near the limit, which few answers reach.
    let mut most = sum(|text| GROWTH_MAX * text.len());
    if messages
        .clone()
        .all(|message| most(message) <= MESSAGES_BYTES_MAX)
    {
        return messages.count();
    }
    let mut sum = sum(text_len);
    let fits = messages.take_while(|&message| sum(message) <= MESSAGES_BYTES_MAX);
    fits.count().max(1)
}

/// Bytes that are no UTF-8 go out as base64, or as one replacement character for each byte.
fn bytes_len(bytes: &[u8], text_len: TextLen) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => text_len(bytes),
        Err(_) => 3 * bytes.len(),
    }
}

fn len(stored: &StoredMessage, text_len: TextLen, with_body: bool) -> usize {
    let message = &stored.message;
    let bytes_len = |bytes: &[u8]| bytes_len(bytes, text_len);
    let of = |text: Option<&str>| text.map_or(0, |text| text_len(text.as_bytes()));
    let headers = message.headers.iter().map(|header| {
        let names = of(Some(&*header.name)) + of(Some(&*header.kind));
        HEADER_LEN + names + bytes_len(&header.value)
    });
    let body = if with_body {
        bytes_len(&message.body)
    } else {
        0
    };
    MESSAGE_LEN
        + body
        + headers.sum::<usize>()
        + of(message.key.as_ref().map(|key| key.as_str()))
        + of(message.unique_id.as_ref().map(|id| id.as_str()))
        + of(message.content_type.as_deref())
        + of(message.trace_context.as_deref())
}

/// The length of a text in JSON.
pub(crate) fn json_len(text: &[u8]) -> usize {
    let len = |&byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.iter().map(len).sum()
}

/// The length of a text in XML.
pub(crate) fn xml_len(text: &[u8]) -> usize {
    let len = |&byte: &u8| match byte {
        b'"' => 6,
        b'&' | b'\r' => 5,
        b'<' | b'>' => 4,
        b'\t' | b'\n' => 1,
        0..=0x1f => 3,
        _ => 1,
    };
    text.iter().map(len).sum()
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Message, MessageId, QueueId, Sequence, Term, WallTime};

    use super::*;

    fn stored(body: String) -> StoredMessage {
        let sequence = Sequence(1);
        StoredMessage {
            queue: QueueId(1),
            sequence,
            id: MessageId::new(QueueId(1), sequence, Term::default()),
            accepted: WallTime(1),
            unique_until: None,
            key_sequence: None,
            marked_at: None,
            payload: lockgate_machine::Payload::Own,
            message: Message::new(body),
        }
    }

    #[test]
    fn texts_have_the_length_that_they_are_written_with() {
        let all: String = (0..0x250).filter_map(char::from_u32).collect();
        let written = serde_json::to_string(&all).unwrap();
        assert_eq!(json_len(all.as_bytes()), written.len() - 2);
    }

    #[test]
    fn messages_are_taken_while_they_fit_as_they_are_written() {
        let fits = |body: String, count| {
            let message = stored(body);
            let messages = std::iter::repeat_n((Some(&message), None), count);
            [
                fitting(messages.clone(), json_len, true),
                fitting(messages.clone(), xml_len, true),
                fitting(messages, json_len, false),
            ]
        };
        assert_eq!(fits("x".to_owned(), 100), [100, 100, 100]);
        assert_eq!(fits("x".repeat(1 << 20), 100), [15, 15, 100]);
        assert_eq!(fits("\u{1}".repeat(1 << 20), 100), [2, 5, 100]);
        assert_eq!(fits("\"".repeat(1 << 20), 100), [7, 2, 100]);
        assert_eq!(fits("\u{1}".repeat(16 << 20), 3), [1, 1, 3]);
        assert_eq!(fits("x".repeat(100), 0), [0, 0, 0]);
        // States count too.
        let (message, state) = (
            stored("x".to_owned()),
            KeyState {
                value: vec![b'"'; 1 << 20].into(),
                version: lockgate_core::RecordVersion(1),
                written: WallTime(1),
            },
        );
        let messages = std::iter::repeat_n((Some(&message), Some(&state)), 100);
        assert_eq!(fitting(messages, json_len, true), 7);
    }
}

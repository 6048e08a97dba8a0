//! A message as a row.

use std::fmt::Write as _;

use lockgate_core::{Header, Key, Level, Message, PRIORITY_MAX, UniqueId, WallTime};

use crate::{Error, error::column};

/// The columns of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Option<String>,
    pub(crate) unique_id: String,
    pub(crate) body: Vec<u8>,
    /// JSON: `[["name", "kind", "value in hexadecimal digits"], ...]`.
    pub(crate) headers: Option<String>,
    pub(crate) message_group: Option<String>,
    pub(crate) due: Option<i64>,
    pub(crate) time_to_live: Option<i64>,
    pub(crate) content_type: Option<String>,
    pub(crate) trace_context: Option<String>,
    pub(crate) level: Option<String>,
    pub(crate) priority: i16,
}

impl Row {
    /// The row of a message. One without a unique id gets one, for this row for ever.
    pub(crate) fn of(message: &Message) -> Result<Self, Error> {
        let unique_id = match &message.unique_id {
            Some(id) => id.to_string(),
            None => new_unique_id()?,
        };
        if message.producer.is_some() {
            return Err(Error::Producer);
        }
        if message.priority > PRIORITY_MAX {
            return Err(Error::Range {
                what: "the priority",
                given: message.priority.into(),
                max: PRIORITY_MAX.into(),
            });
        }
        let due = message.due.map(|due| column("the due time", due.0));
        let time_to_live = message.time_to_live;
        let time_to_live = time_to_live.map(|span| column("the time to live", span));
        Ok(Self {
            key: message.key.as_ref().map(Key::to_string),
            unique_id,
            body: message.body.to_vec(),
            headers: (!message.headers.is_empty()).then(|| headers_text(&message.headers)),
            message_group: message.group.as_ref().map(Key::to_string),
            due: due.transpose()?,
            time_to_live: time_to_live.transpose()?,
            content_type: message.content_type.as_deref().map(str::to_owned),
            trace_context: message.trace_context.as_deref().map(str::to_owned),
            level: message.level.map(|level| level.to_string()),
            priority: message.priority.into(),
        })
    }

    /// The message of a row, or what is wrong with the row.
    pub(crate) fn into_message(self) -> Result<Message, String> {
        fn part<T, E: std::fmt::Display>(
            column: &str,
            text: Option<&str>,
            read: impl Fn(&str) -> Result<T, E>,
        ) -> Result<Option<T>, String> {
            let wrong = |error: E| format!("the column {column} cannot be read: {error}");
            text.map(read).transpose().map_err(wrong)
        }
        let number = |column: &str, value: Option<i64>| {
            let number = value.map(u64::try_from).transpose();
            number.map_err(|_| format!("the column {column} is negative"))
        };
        let headers = part("headers", self.headers.as_deref(), headers)?;
        Ok(Message {
            body: self.body.into(),
            headers: headers.unwrap_or_default(),
            key: part("key", self.key.as_deref(), Key::new)?,
            group: part("message_group", self.message_group.as_deref(), Key::new)?,
            unique_id: part("unique_id", Some(&self.unique_id), UniqueId::new)?,
            due: number("due", self.due)?.map(WallTime),
            time_to_live: number("time_to_live", self.time_to_live)?,
            content_type: self.content_type.map(Into::into),
            trace_context: self.trace_context.map(Into::into),
            level: part("level", self.level.as_deref(), str::parse::<Level>)?,
            priority: priority(self.priority)?,
            producer: None,
        })
    }
}

fn priority(column: i16) -> Result<u8, String> {
    let priority = u8::try_from(column).ok();
    let priority = priority.filter(|&priority| priority <= PRIORITY_MAX);
    priority.ok_or_else(|| format!("the column priority is {column}, not 0 to {PRIORITY_MAX}"))
}

/// 128 random bits.
fn new_unique_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(hex(&bytes))
}

fn headers_text(headers: &[Header]) -> String {
    let triples = headers.iter().map(|header| {
        [&*header.name, &*header.kind, &hex(&header.value)].map(serde_json::Value::from)
    });
    serde_json::Value::from_iter(triples.map(serde_json::Value::from_iter)).to_string()
}

fn headers(text: &str) -> Result<Vec<Header>, String> {
    let triples: Vec<(String, String, String)> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let header = |(name, kind, value): (String, String, String)| {
        Ok(Header {
            value: unhex(&value)
                .ok_or("a value is not in hexadecimal digits")?
                .into(),
            name: name.into(),
            kind: kind.into(),
        })
    };
    triples.into_iter().map(header).collect()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // A string takes whatever is written.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    rest.is_empty().then_some(())?;
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Produced, ProducerIncarnation, ProducerMark, ProducerName};

    use super::*;

    #[test]
    fn a_message_is_kept_whole() {
        let header = |name: &str, value: &'static [u8]| Header {
            name: name.into(),
            kind: "Binary".into(),
            value: value.into(),
        };
        let message = Message {
            body: vec![0, 0xff, b'x'].into(),
            headers: vec![header("a\"\u{0}", &[0, 0xfe]), header("a", &[])],
            key: Some(Key::new("ü").unwrap()),
            group: Some(Key::new("g").unwrap()),
            unique_id: Some(UniqueId::new("own").unwrap()),
            due: Some(WallTime(7)),
            time_to_live: Some(9),
            content_type: Some("text/plain".into()),
            trace_context: Some("00-1".into()),
            level: Some(Level::Process),
            priority: 9,
            producer: None,
        };
        let row = Row::of(&message).unwrap();
        assert_eq!(row.into_message().unwrap(), message);

        let plain = Row::of(&Message::new("a")).unwrap();
        let other = Row::of(&Message::new("a")).unwrap();
        assert_ne!(plain.unique_id, other.unique_id, "each row has its own id");
        let id = plain.unique_id.clone();
        let read = plain.into_message().unwrap();
        assert_eq!(read.unique_id.unwrap().as_str(), id);
    }

    #[test]
    fn a_row_that_is_no_message_is_told_with_its_column() {
        let wrong = |change: fn(&mut Row)| {
            let mut row = Row::of(&Message::new("a")).unwrap();
            change(&mut row);
            row.into_message().unwrap_err()
        };
        assert!(wrong(|row| row.key = Some(String::new())).contains("column key"));
        assert!(wrong(|row| row.level = Some("high".into())).contains("column level"));
        assert!(wrong(|row| row.headers = Some("[1]".into())).contains("column headers"));
        const ODD: &str = r#"[["a","String","abc"]]"#;
        assert!(wrong(|row| row.headers = Some(ODD.into())).contains("hexadecimal"));
        assert!(wrong(|row| row.due = Some(-1)).contains("column due"));
        assert!(wrong(|row| row.priority = 10).contains("column priority"));
        let never = Message::new("a").with_due(WallTime::MAX);
        assert!(matches!(Row::of(&never), Err(Error::Range { .. })));
        let mark = ProducerMark::new(ProducerName::new("p").unwrap(), 1, 0, 1).unwrap();
        let incarnation = ProducerIncarnation(1);
        let marked = Message::new("a").with_producer(Produced {
            mark,
            incarnation,
            after: 0,
        });
        assert!(matches!(Row::of(&marked), Err(Error::Producer)));
        let error = Row::of(&Message::new("a").with_priority(10)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the priority of 10 does not fit into a row: the limit is 9"
        );
    }
}

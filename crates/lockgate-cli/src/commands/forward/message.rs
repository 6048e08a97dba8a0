//! Messages as they come in: checked as the server of the queue checks them, before anybody is answered.

use lockgate_core::{
    Header, Key, Level, Message, Millis, PRIORITY_MAX, UniqueId, WallTime, units::show_millis,
};
use lockgate_machine::QueueSettings;
use lockgate_server::check_message;

use crate::client::{self, Encoding};

/// The message of a line, or what is wrong with it. A delay counts from `now`.
pub(super) fn of_line(line: client::Message, now: WallTime) -> Result<Message, String> {
    let headers = line.headers.into_iter().map(|(name, header)| {
        let value = decode(header.encoding, &header.value)
            .map_err(|error| format!("header {name:?}: {error}"))?;
        Ok(Header {
            name: name.into(),
            kind: header.kind.into(),
            value: value.into(),
        })
    });
    let due = match (line.delay_ms, line.due_at) {
        (Some(_), Some(_)) => return Err("due_at and delay_ms exclude each other".to_owned()),
        (Some(delay), None) => Some(now.plus(span("delay_ms", delay, 0)?)),
        (None, Some(at)) => Some(instant(&at)?),
        (None, None) => None,
    };
    let life = line.time_to_live_ms;
    let message = Message {
        headers: headers.collect::<Result<_, String>>()?,
        key: named("key", line.key.as_deref())?,
        group: named("group", line.group.as_deref())?,
        unique_id: unique_id(line.unique_id.as_deref())?,
        due,
        time_to_live: life
            .map(|life| span("time_to_live_ms", life, 1))
            .transpose()?,
        content_type: line.content_type.map(Into::into),
        trace_context: line.trace_context.map(Into::into),
        level: line.level.as_deref().map(level).transpose()?,
        priority: match line.priority {
            priority @ ..=PRIORITY_MAX => priority,
            priority => return Err(format!("priority is 0 to {PRIORITY_MAX}, not {priority}")),
        },
        ..Message::new(decode(line.body.encoding, &line.body.text)?)
    };
    check_message(&message)?;
    Ok(message)
}

/// A key or a group.
pub(super) fn named(what: &str, text: Option<&str>) -> Result<Option<Key>, String> {
    let key = text.map(Key::new).transpose();
    key.map_err(|error| format!("the {what} is none: {error}"))
}

pub(super) fn unique_id(text: Option<&str>) -> Result<Option<UniqueId>, String> {
    let id = text.map(UniqueId::new).transpose();
    id.map_err(|error| format!("the unique id is none: {error}"))
}

fn decode(encoding: Encoding, text: &str) -> Result<Vec<u8>, String> {
    let bytes = encoding.decode(text);
    bytes.map_err(|error| format!("no base64: {error}"))
}

fn span(what: &str, given: Millis, min: Millis) -> Result<Millis, String> {
    let max = QueueSettings::DELAY_MAX;
    match (min..=max).contains(&given) {
        true => Ok(given),
        false => Err(format!(
            "{what} is {min} to {max} ({}), not {given}",
            show_millis(max)
        )),
    }
}

fn instant(text: &str) -> Result<WallTime, String> {
    let at: jiff::Timestamp = (text.parse()).map_err(|error| format!("due_at: {error}"))?;
    let millis = u64::try_from(at.as_millisecond());
    let millis = millis.map_err(|_| format!("due_at is before 1970: {text}"))?;
    Ok(WallTime(millis))
}

fn level(text: &str) -> Result<Level, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no level: say memory, process, disk or replicated"))
}

/// The wall clock.
pub(super) fn now() -> WallTime {
    let now = jiff::Timestamp::now().as_millisecond();
    WallTime(u64::try_from(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::send::lines::parse;

    fn read(line: &str) -> Result<Message, String> {
        of_line(
            parse(line.as_bytes(), &client::Message::default())?,
            WallTime(1000),
        )
    }

    #[test]
    fn a_line_is_a_message_with_all_it_says() {
        let message = read(
            r#"{"body":"AP8=","body_encoding":"base64","key":"k","unique_id":"u","delay_ms":5,"time_to_live_ms":9,
                "headers":{"b":{"type":"Binary","value":"/w==","encoding":"base64"}},"content_type":"a/b",
                "trace_context":"t","level":"disk","priority":3}"#,
        )
        .unwrap();
        let expected = Message {
            headers: vec![Header {
                name: "b".into(),
                kind: "Binary".into(),
                value: vec![0xff].into(),
            }],
            key: Some(Key::new("k").unwrap()),
            unique_id: Some(UniqueId::new("u").unwrap()),
            due: Some(WallTime(1005)),
            time_to_live: Some(9),
            content_type: Some("a/b".into()),
            trace_context: Some("t".into()),
            level: Some(Level::Disk),
            priority: 3,
            ..Message::new(vec![0, 0xff])
        };
        assert_eq!(message, expected);
        let due = read(r#"{"body":1,"due_at":"1970-01-01T00:00:02Z"}"#).unwrap();
        assert_eq!(due.due, Some(WallTime(2000)));
    }

    /// What the server of the queue would refuse: nobody may be answered for it before.
    #[test]
    fn what_no_server_takes_is_refused() {
        for (line, what) in [
            (r#"{"body":"x","body_encoding":"base64"}"#, "no base64"),
            (r#"{"body":1,"key":""}"#, "the key"),
            (r#"{"body":1,"unique_id":""}"#, "the unique id"),
            (r#"{"body":1,"delay_ms":1,"due_at":"x"}"#, "exclude"),
            (r#"{"body":1,"delay_ms":999999999999999}"#, "delay_ms is 0"),
            (r#"{"body":1,"time_to_live_ms":0}"#, "time_to_live_ms is 1"),
            (r#"{"body":1,"due_at":"x"}"#, "due_at"),
            (r#"{"body":1,"level":"high"}"#, "no level"),
            (r#"{"body":1,"headers":{"a":""}}"#, "header \"a\""),
            (
                r#"{"body":1,"headers":{"a":{"type":"Number","value":"x"}}}"#,
                "number",
            ),
            (r#"{"body":1,"content_type":""}"#, "content type"),
            (r#"{"body":1,"trace_context":"\u0001"}"#, "trace context"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
    }
}

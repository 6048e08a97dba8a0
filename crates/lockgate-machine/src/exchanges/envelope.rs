//! The text in which Amazon SNS wraps a message for a queue: a notification.
//!
//! It is written as AWS writes it, line by line. There is no signature, and nothing to unsubscribe at: these texts are empty,
//! so that all queues of a topic share one text, and who checks a signature refuses it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lockgate_core::{Message, MessageId, WallTime};

/// What makes a name that of a topic whose messages have an order.
const FIFO_SUFFIX: &str = ".fifo";

/// What was published, of which envelopes are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice<'a> {
    pub(crate) id: MessageId,
    /// Its number among the messages that were published to the exchange.
    pub(crate) number: u64,
    pub(crate) subject: Option<&'a str>,
    pub(crate) message: &'a Message,
    pub(crate) at: WallTime,
}

/// The body of a message is no text, which alone can be in an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoText;

impl Notice<'_> {
    /// The envelope in the name of that topic.
    pub(crate) fn text(&self, topic: &str) -> Result<String, NoText> {
        let message = str::from_utf8(&self.message.body).map_err(|_| NoText)?;
        let is_fifo = topic.ends_with(FIFO_SUFFIX);
        let mut out = String::with_capacity(message.len() + 512);
        out.push_str("{\n  \"Type\" : \"Notification\"");
        member(&mut out, "MessageId", &self.id.to_string());
        if is_fifo {
            member(&mut out, "SequenceNumber", &format!("{:020}", self.number));
        }
        member(&mut out, "TopicArn", topic);
        if let Some(subject) = self.subject {
            member(&mut out, "Subject", subject);
        }
        member(&mut out, "Message", message);
        member(&mut out, "Timestamp", &instant(self.at));
        if !is_fifo {
            member(&mut out, "SignatureVersion", "1");
            member(&mut out, "Signature", "");
            member(&mut out, "SigningCertURL", "");
        }
        member(&mut out, "UnsubscribeURL", "");
        self.attributes(&mut out);
        out.push_str("\n}");
        Ok(out)
    }

    fn attributes(&self, out: &mut String) {
        let headers = &self.message.headers;
        if headers.is_empty() {
            return;
        }
        out.push_str(",\n  \"MessageAttributes\" : {");
        for (at, header) in headers.iter().enumerate() {
            out.push_str(if at == 0 { "\n    " } else { ",\n    " });
            quote(out, &header.name);
            out.push_str(" : {\"Type\":");
            let is_binary = header.kind.split('.').next() == Some("Binary");
            match str::from_utf8(&header.value) {
                Ok(value) if !is_binary => {
                    quote(out, &header.kind);
                    out.push_str(",\"Value\":");
                    quote(out, value);
                }
                // Bytes that are no text are bytes, whatever the kind says.
                _ => {
                    quote(out, if is_binary { &header.kind } else { "Binary" });
                    out.push_str(",\"Value\":");
                    quote(out, &STANDARD.encode(&header.value));
                }
            }
            out.push('}');
        }
        out.push_str("\n  }");
    }
}

fn member(out: &mut String, name: &str, value: &str) {
    out.push_str(",\n  ");
    quote(out, name);
    out.push_str(" : ");
    quote(out, value);
}

/// Appends a text of JSON.
fn quote(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// The last millisecond that has four digits for the year.
const LAST: u64 = 253_402_300_799_999;

/// An instant as `2026-11-27T22:00:00.000Z`. Later ones than the year 9999 are its end.
pub(crate) fn instant(at: WallTime) -> String {
    const DAY: u64 = 86_400_000;
    let millis = at.0.min(LAST);
    let (days, within) = (millis / DAY, millis % DAY);
    let (year, month, day) = date(days);
    let (hour, minute) = (within / 3_600_000, within / 60_000 % 60);
    let (second, milli) = (within / 1000 % 60, within % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The date that is so many days after 1970-01-01: in years that begin in March, a leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lockgate_core::{Epoch, Header, Incarnation, QueueId, Sequence, ShardId, Term};

    use super::*;

    fn notice<'a>(message: &'a Message, subject: Option<&'a str>) -> Notice<'a> {
        let term = Term {
            shard: ShardId::new(0).unwrap(),
            epoch: Epoch(1),
            incarnation: Incarnation(1),
        };
        Notice {
            id: MessageId::new(QueueId(1), Sequence(1), term),
            number: 7,
            subject,
            message,
            at: WallTime(1_700_000_000_123),
        }
    }

    #[test]
    fn an_envelope_is_as_aws_writes_it() {
        let mut message = Message::new("a \"b\"\n\u{1}ä".to_owned());
        let header = |name: &str, kind: &str, value: &'static [u8]| Header {
            name: name.into(),
            kind: kind.into(),
            value: Bytes::from_static(value),
        };
        message.headers = vec![
            header("blob", "Binary", b"\x00\xff"),
            header("odd", "String", b"\xff"),
            header("price", "Number", b"1.5"),
        ];
        let notice = notice(&message, Some("hello"));
        let text = notice.text("arn:aws:sns:us-east-1:000000000000:orders");
        assert_eq!(
            text.unwrap(),
            format!(
                r#"{{
  "Type" : "Notification",
  "MessageId" : "{}",
  "TopicArn" : "arn:aws:sns:us-east-1:000000000000:orders",
  "Subject" : "hello",
  "Message" : "a \"b\"\n\u0001ä",
  "Timestamp" : "2023-11-14T22:13:20.123Z",
  "SignatureVersion" : "1",
  "Signature" : "",
  "SigningCertURL" : "",
  "UnsubscribeURL" : "",
  "MessageAttributes" : {{
    "blob" : {{"Type":"Binary","Value":"AP8="}},
    "odd" : {{"Type":"Binary","Value":"/w=="}},
    "price" : {{"Type":"Number","Value":"1.5"}}
  }}
}}"#,
                notice.id
            )
        );
        let ordered = notice.text("arn:aws:sns:us-east-1:000000000000:orders.fifo");
        let ordered: serde_json::Value = serde_json::from_str(&ordered.unwrap()).unwrap();
        assert_eq!(ordered["SequenceNumber"], "00000000000000000007");
        assert_eq!(ordered["Signature"], serde_json::Value::Null);
        assert_eq!(ordered["Message"], "a \"b\"\n\u{1}ä");
    }

    #[test]
    fn what_is_no_text_has_no_envelope() {
        let message = Message::new(&b"\xff"[..]);
        assert_eq!(notice(&message, None).text("t"), Err(NoText));
    }

    #[test]
    fn instants_are_those_of_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(instant(WallTime(millis)), text);
        }
    }
}

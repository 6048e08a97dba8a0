//! A message in the words of SQS, and back.

use std::{collections::HashMap, sync::Arc, time::Duration};

use aws_sdk_sqs::{
    error::BuildError,
    primitives::Blob,
    types::{
        Message as SqsMessage, MessageAttributeValue, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends, MessageSystemAttributeValue,
        SendMessageBatchRequestEntry, builders::SendMessageBatchRequestEntryBuilder,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use lockgate_core::{
    Fate, Header, Key, Message, Millis, SinkCapabilities, TransportError, UniqueId, WallTime,
};

/// The message attribute that says that the body is in base64: its value is `base64`. A body `=` then stands for
/// the empty one, which base64 has no character for.
pub const BODY_ENCODING: &str = "lockgate.body-encoding";
/// The message attribute that has the content type.
pub const CONTENT_TYPE: &str = "content-type";
/// The message attribute that has a trace context other than X-Ray's.
pub const TRACE_CONTEXT: &str = "traceparent";

/// How AWS X-Ray's trace contexts begin, which have a place of their own.
const XRAY: &str = "Root=";
/// What stands for an empty body.
const EMPTY: &str = "=";
const BASE64: &str = "base64";
/// How an id begins that a message without a unique id is given.
const NO_UNIQUE_ID: &str = "lockgate-none-";

const ATTRIBUTES_MAX: usize = 10;
const NAME_LEN_MAX: usize = 256;
const ID_LEN_MAX: usize = 128;
/// Digits of a Number, without zeros in front and behind.
const NUMBER_DIGITS_MAX: usize = 38;
/// The longest DelaySeconds.
pub(crate) const DUE_MAX: Duration = Duration::from_secs(900);

/// What cannot be sent as it is.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(
        "SQS takes a {what} of 1 to {ID_LEN_MAX} printable ASCII characters without spaces, not {given:?}"
    )]
    Id { what: &'static str, given: String },
    #[error(
        "a unique id does not begin with {NO_UNIQUE_ID:?} here: that marks a message without one"
    )]
    MarkedId,
    #[error("{what} is not empty and has only characters of XML 1.0 in SQS")]
    Text { what: String },
    #[error("the header {name:?} is empty, and SQS takes no empty values")]
    EmptyHeader { name: Arc<str> },
    #[error(
        "the header {name:?} is no number that SQS takes: one in decimal, with an exponent or without, of up to {NUMBER_DIGITS_MAX} digits, from 1e-128 to 1e126 or 0"
    )]
    Number { name: Arc<str> },
    #[error("SQS takes no message attribute of the name {name:?}")]
    HeaderName { name: Arc<str> },
    #[error(
        "the type of the header {name:?} is {kind:?}; SQS has String, Number and Binary, each with a dot and a label or without"
    )]
    HeaderKind { name: Arc<str>, kind: Arc<str> },
    #[error("it has two headers of the name {name:?}, and SQS takes one")]
    HeaderTwice { name: Arc<str> },
    #[error(
        "a header named {name:?} would be taken for a part of the message that is carried under this name"
    )]
    HeaderReserved { name: Arc<str> },
    #[error(
        "it needs {given} message attributes, and SQS takes {ATTRIBUTES_MAX}: each header is one, the content type, the trace context and a body that is no text are one each"
    )]
    Attributes { given: usize },
    #[error("it is due in {given} ms, and SQS delays a message for {} ms at most", DUE_MAX.as_millis())]
    Due { given: Millis },
    #[error("a message has {max} bytes at most in this queue, this one has {given}")]
    Bytes { given: u64, max: u64 },
}

impl From<Unfit> for TransportError {
    fn from(unfit: Unfit) -> Self {
        let fate = match unfit {
            Unfit::Bytes { .. } => Fate::Refused,
            _ => Fate::Unsupported,
        };
        Self::new(fate, unfit)
    }
}

/// A message that can be sent.
#[derive(Clone)]
pub(crate) struct Entry {
    builder: SendMessageBatchRequestEntryBuilder,
    /// As SQS counts them.
    pub(crate) bytes: u64,
}

impl Entry {
    /// With its name in the batch.
    pub(crate) fn named(self, id: usize) -> Result<SendMessageBatchRequestEntry, BuildError> {
        self.builder.id(id.to_string()).build()
    }
}

/// What a queue does for messages without a unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoUniqueId {
    /// Nothing: a standard queue.
    Ignored,
    /// It makes one of the body.
    OfBody,
    /// It needs one, which is made here.
    MadeUp,
}

/// A message in the words of SQS, as of `now`.
pub(crate) fn entry(
    message: Message,
    can: &SinkCapabilities,
    without: NoUniqueId,
    now: WallTime,
) -> Result<Entry, TransportError> {
    can.check(&message)?;
    let mut attributes: HashMap<Arc<str>, (Arc<str>, Value)> = HashMap::new();
    for Header { name, kind, value } in message.headers {
        let attribute = header(&name, &kind, value)?;
        if attributes.insert(name.clone(), (kind, attribute)).is_some() {
            return Err(Unfit::HeaderTwice { name }.into());
        }
    }
    let text_body = String::from_utf8(message.body.to_vec()).ok();
    let body = text_body.filter(|body| is_sqs_text(body));
    let mut builder = SendMessageBatchRequestEntry::builder();
    let string = |text: Arc<str>| ("String".into(), Value::Text(text.to_string()));
    let body = body.unwrap_or_else(|| {
        attributes.insert(BODY_ENCODING.into(), string(BASE64.into()));
        match message.body.is_empty() {
            true => EMPTY.to_owned(),
            false => STANDARD.encode(&message.body),
        }
    });
    if let Some(content_type) = message.content_type {
        check_text(&content_type, || "a content type".to_owned())?;
        attributes.insert(CONTENT_TYPE.into(), string(content_type));
    }
    if let Some(trace) = message.trace_context {
        check_text(&trace, || "a trace context".to_owned())?;
        if trace.starts_with(XRAY) {
            let value = MessageSystemAttributeValue::builder();
            let value = value.data_type("String").string_value(&*trace);
            let value = value.build().map_err(unbuilt)?;
            let name = MessageSystemAttributeNameForSends::AwsTraceHeader;
            builder = builder.message_system_attributes(name, value);
        } else {
            attributes.insert(TRACE_CONTEXT.into(), string(trace));
        }
    }
    let given = attributes.len();
    if given > ATTRIBUTES_MAX {
        return Err(Unfit::Attributes { given }.into());
    }
    if let Some(group) = message.key.or(message.group) {
        builder = builder.message_group_id(id("key", group.as_str())?);
    }
    let unique = match (message.unique_id, without) {
        (Some(unique), _) if unique.as_str().starts_with(NO_UNIQUE_ID) => {
            return Err(Unfit::MarkedId.into());
        }
        (Some(unique), _) => Some(id("unique id", unique.as_str())?.to_owned()),
        (None, NoUniqueId::MadeUp) => Some(format!("{NO_UNIQUE_ID}{}", random_id()?)),
        (None, _) => None,
    };
    builder = builder.set_message_deduplication_id(unique);
    if let Some(due) = message.due {
        // One that has passed is sent along: the queue may delay messages that say nothing.
        let given = due.0.saturating_sub(now.0);
        let seconds = given.div_ceil(1000);
        let seconds = i32::try_from(seconds)
            .ok()
            .filter(|_| seconds <= DUE_MAX.as_secs());
        builder = builder.delay_seconds(seconds.ok_or(Unfit::Due { given })?);
    }
    let mut bytes = body.len();
    for (name, (kind, value)) in attributes {
        bytes += name.len() + kind.len() + value.len();
        let attribute = MessageAttributeValue::builder().data_type(&*kind);
        let attribute = match value {
            Value::Text(text) => attribute.string_value(text),
            Value::Bytes(bytes) => attribute.binary_value(Blob::new(bytes)),
        };
        builder = builder.message_attributes(&*name, attribute.build().map_err(unbuilt)?);
    }
    let (given, max) = (bytes as u64, can.message_bytes_max);
    if given > max {
        return Err(Unfit::Bytes { given, max }.into());
    }
    Ok(Entry {
        builder: builder.message_body(body),
        bytes: given,
    })
}

/// 32 random characters.
pub(crate) fn random_id() -> Result<String, TransportError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| TransportError::new(Fate::Retry, error))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

fn unbuilt(error: BuildError) -> TransportError {
    TransportError::new(Fate::Refused, error)
}

fn header(name: &Arc<str>, kind: &Arc<str>, value: bytes::Bytes) -> Result<Value, Unfit> {
    if [BODY_ENCODING, CONTENT_TYPE, TRACE_CONTEXT].contains(&&**name) {
        return Err(Unfit::HeaderReserved { name: name.clone() });
    }
    let lower = name.to_ascii_lowercase();
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len())
        && (name.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.");
    if !is_name {
        return Err(Unfit::HeaderName { name: name.clone() });
    }
    let unfit_kind = || Unfit::HeaderKind {
        name: name.clone(),
        kind: kind.clone(),
    };
    if kind.len() > NAME_LEN_MAX || !is_sqs_text(kind) {
        return Err(unfit_kind());
    }
    match kind.split('.').next() {
        Some("Binary") if value.is_empty() => Err(Unfit::EmptyHeader { name: name.clone() }),
        Some("Binary") => Ok(Value::Bytes(value.into())),
        Some("String" | "Number") => {
            let what = || format!("the header {name:?}");
            let text = std::str::from_utf8(&value).map_err(|_| Unfit::Text { what: what() })?;
            check_text(text, what)?;
            if kind.starts_with("Number") && !is_number(text) {
                return Err(Unfit::Number { name: name.clone() });
            }
            Ok(Value::Text(text.to_owned()))
        }
        _ => Err(unfit_kind()),
    }
}

fn id<'a>(what: &'static str, text: &'a str) -> Result<&'a str, Unfit> {
    let is_good = text.len() <= ID_LEN_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_good {
        true => Ok(text),
        false => Err(Unfit::Id {
            what,
            given: text.to_owned(),
        }),
    }
}

fn check_text(text: &str, what: impl FnOnce() -> String) -> Result<(), Unfit> {
    match is_sqs_text(text) {
        true => Ok(()),
        false => Err(Unfit::Text { what: what() }),
    }
}

/// Whether SQS takes it as a text: not empty, and only characters of XML 1.0.
fn is_sqs_text(text: &str) -> bool {
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    !text.is_empty() && text.chars().all(is_allowed)
}

/// Whether SQS takes it as a Number. It refuses the whole call of one that it does not take.
fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => match exponent.parse::<i32>() {
            Ok(exponent) => (mantissa, i64::from(exponent)),
            Err(_) => return false,
        },
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let from_first = digits.trim_start_matches('0');
    let significant = from_first.trim_end_matches('0');
    if significant.is_empty() {
        return true;
    }
    // Of the first digit that counts: 0 for 1 to 9.99.
    let power = from_first.len() as i64 - fraction.len() as i64 - 1 + exponent;
    let is_in_range = (-128..126).contains(&power) || (power == 126 && significant == "1");
    significant.len() <= NUMBER_DIGITS_MAX && is_in_range
}

/// A message that came, and what SQS says of it.
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) id: String,
    pub(crate) receipt_handle: String,
    pub(crate) attempt: u32,
    pub(crate) accepted: Option<WallTime>,
}

/// Reads a message; `None` if it lacks what SQS always says.
pub(crate) fn received(given: SqsMessage, is_fifo: bool) -> Option<Received> {
    let system = given.attributes.unwrap_or_default();
    let of_system = |name: &System| system.get(name).map(String::as_str);
    let attempt = of_system(&System::ApproximateReceiveCount)?.parse().ok()?;
    let sent = of_system(&System::SentTimestamp).and_then(|text| text.parse().ok());
    // SQS's ids are narrower than Lockgate's.
    let key = match of_system(&System::MessageGroupId) {
        Some(group) => Some(Key::new(group).ok()?),
        None => None,
    };
    let unique_id =
        of_system(&System::MessageDeduplicationId).filter(|id| !id.starts_with(NO_UNIQUE_ID));
    let unique_id = match unique_id {
        Some(id) => Some(UniqueId::new(id).ok()?),
        None => None,
    };
    let mut attributes = given.message_attributes.unwrap_or_default();
    let mut take_text = |name: &str| {
        let is_text = |value: &MessageAttributeValue| value.data_type() == "String";
        attributes.get(name).filter(|value| is_text(value))?;
        attributes.remove(name)?.string_value
    };
    let trace_context = take_text(TRACE_CONTEXT);
    let trace_context =
        trace_context.or_else(|| of_system(&System::AwsTraceHeader).map(ToOwned::to_owned));
    let content_type = take_text(CONTENT_TYPE);
    let text = given.body?;
    let encoding = attributes.get(BODY_ENCODING);
    let is_encoded = encoding.and_then(MessageAttributeValue::string_value) == Some(BASE64);
    let decoded = is_encoded.then(|| match &*text {
        EMPTY => Some(Vec::new()),
        text => STANDARD.decode(text).ok(),
    });
    let body = match decoded.flatten() {
        Some(bytes) => {
            attributes.remove(BODY_ENCODING);
            bytes
        }
        // Somebody else's mark, or none. Its header shows it.
        None => text.into_bytes(),
    };
    let mut headers: Vec<Header> = attributes
        .into_iter()
        .map(|(name, value)| Header {
            name: name.into(),
            kind: value.data_type.into(),
            value: match (value.string_value, value.binary_value) {
                (Some(text), _) => text.into_bytes().into(),
                (None, bytes) => bytes.map(Blob::into_inner).unwrap_or_default().into(),
            },
        })
        .collect();
    headers.sort_by(|a, b| a.name.cmp(&b.name));
    let (key, group) = match is_fifo {
        true => (key, None),
        false => (None, key),
    };
    Some(Received {
        message: Message {
            headers,
            key,
            group,
            unique_id,
            content_type: content_type.map(Into::into),
            trace_context: trace_context.map(Into::into),
            ..Message::new(body)
        },
        id: given.message_id?,
        receipt_handle: given.receipt_handle?,
        attempt,
        accepted: sent.map(WallTime),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_form_that_sqs_takes() {
        let longest = format!("-{}.{}", "9".repeat(20), "9".repeat(18));
        let with_zeros = format!("00{}000", "7".repeat(38));
        for good in [
            "0",
            "-0.0",
            "0e999",
            "7",
            "+7",
            ".5",
            "5.",
            "-1.5e3",
            "1E+10",
            "1e126",
            "-1e126",
            "1e-128",
            "0.1e127",
            "9.9e125",
            &longest,
            &with_zeros,
        ] {
            assert!(is_number(good), "{good}");
        }
        let too_long = "7".repeat(39);
        for bad in [
            "",
            " ",
            "-",
            "+",
            ".",
            "e5",
            "1e",
            "1e5.5",
            "1_000",
            "1,5",
            " 1",
            "1 ",
            "0x10",
            "inf",
            "NaN",
            "--1",
            "149314735990a",
            "1.1e126",
            "1e127",
            "1e-129",
            "1e99999999999",
            "1.2.3",
            "\u{661}",
            &too_long,
        ] {
            assert!(!is_number(bad), "{bad}");
        }
    }
}

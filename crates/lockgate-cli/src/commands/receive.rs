//! `lockgate receive` and `lockgate ack`.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::{Retry, Signals, block_on, client, queue_url, runtime};
use crate::{
    args::{Ack, Receive},
    client::{
        BatchAnswer, CallError, ChangeMessageVisibilityBatch, Client, DeleteMessageBatch, Message,
        MessageAttribute, ReceiptBatch, ReceiptEntry, ReceiveMessage, exit_of,
    },
    exit::{Exit, Failure},
    output::Output,
};

/// The most messages, and the longest wait, one call of the protocol can ask for.
const CALL_MESSAGES_MAX: u64 = 10;
const CALL_WAIT_MAX: Duration = Duration::from_secs(20);

/// How long after a signal an answer is waited for that may be on its way.
const ANSWER_GRACE: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Receive) -> Result<(), Failure> {
    let mut client = client(&args.settings)?;
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let url = tokio::select! {
            url = queue_url(&mut client, &args.queue) => url?,
            exit = signals.next() => return Err(Failure::signal(exit)),
        };
        let mut receiver = Receiver {
            client,
            url,
            args,
            output: Output::new(),
        };
        receiver.run(&mut signals).await
    })
}

pub(crate) fn ack(args: Ack) -> Result<(), Failure> {
    let mut client = client(&args.settings)?;
    block_on(async {
        let url = queue_url(&mut client, &args.queue).await?;
        settle(&mut client, &url, &args.receipts, Settling::Ack).await
    })
}

struct Receiver<'a> {
    client: Client,
    url: String,
    args: &'a Receive,
    output: Output,
}

impl Receiver<'_> {
    async fn run(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut left = match (self.args.max, self.args.follow) {
            (Some(max), _) => max,
            (None, true) => u64::MAX,
            (None, false) => CALL_MESSAGES_MAX,
        };
        let first_by = Instant::now() + self.args.wait;
        let mut received = false;
        while left > 0 {
            let wait = match (self.args.follow, received) {
                (true, _) => CALL_WAIT_MAX,
                (false, true) => Duration::ZERO,
                (false, false) => first_by.saturating_duration_since(Instant::now()),
            };
            // A signal interrupts waiting, never the work on what has been received: it is printed
            // and settled first.
            let (messages, signal) = self
                .receive_or_signal(left.min(CALL_MESSAGES_MAX), wait, signals)
                .await?;
            if let Some(exit) = signal {
                let receipts: Vec<_> = messages.into_iter().map(|m| m.receipt_handle).collect();
                settle(&mut self.client, &self.url, &receipts, Settling::Nack).await?;
                return Err(Failure::signal(exit));
            }
            if messages.is_empty() {
                let waited = received || Instant::now() >= first_by;
                if waited && !self.args.follow {
                    break;
                }
                continue;
            }
            received = true;
            left -= messages.len() as u64;
            self.hand_over(messages).await?;
        }
        Ok(())
    }

    /// One receive, unless there is a signal; with it, the messages of an answer that was on its way.
    async fn receive_or_signal(
        &mut self,
        max: u64,
        wait: Duration,
        signals: &mut Signals,
    ) -> Result<(Vec<Message>, Option<Exit>), CallError> {
        // One that came while others were settled must not begin another receive.
        tokio::select! {
            biased;
            exit = signals.next() => return Ok((Vec::new(), Some(exit))),
            () = std::future::ready(()) => {}
        }
        let mut receive = pin!(self.receive(max, wait));
        let exit = tokio::select! {
            biased;
            messages = &mut receive => return Ok((messages?, None)),
            exit = signals.next() => exit,
        };
        // Nobody would know of leases in an answer that the server has already written. What it
        // cannot write any more it gives back itself.
        let answer = timeout(ANSWER_GRACE, receive).await;
        let messages = answer.ok().and_then(Result::ok).unwrap_or_default();
        Ok((messages, Some(exit)))
    }

    /// One receive; while following, a server that is away for a moment is waited for.
    async fn receive(&mut self, max: u64, wait: Duration) -> Result<Vec<Message>, CallError> {
        // The protocol counts whole seconds. The rest of a wait that an empty answer cut short is
        // rounded up, so that the last call does not come too early.
        let seconds = wait.as_millis().div_ceil(1000);
        let call = ReceiveMessage {
            queue_url: self.url.clone(),
            max_number_of_messages: usize::try_from(max).unwrap_or(usize::MAX),
            wait_time_seconds: u64::try_from(seconds)
                .unwrap_or(u64::MAX)
                .min(CALL_WAIT_MAX.as_secs()),
            visibility_timeout: self.args.lease.map(|lease| lease.as_secs()),
            message_system_attribute_names: &["All"],
            message_attribute_names: &["All"],
        };
        let mut retry = Retry::new(self.client.timeout());
        loop {
            let longer = Duration::from_secs(call.wait_time_seconds);
            match self.client.call_within(&call, longer).await {
                Ok(answer) => return Ok(answer.messages),
                Err(error) if self.args.follow && error.may_pass() && retry.again().await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Prints messages and settles them as asked. What could not be printed goes back to the queue.
    async fn hand_over(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        let mut printed = Vec::with_capacity(messages.len());
        let mut unprinted = Vec::new();
        let mut failure = None;
        for message in messages {
            let receipt = message.receipt_handle.clone();
            let result = match failure {
                None => self.print(message),
                Some(_) => Ok(()),
            };
            if let Err(error) = result {
                failure = Some(error);
            }
            if failure.is_none() {
                printed.push(receipt);
            } else {
                unprinted.push(receipt);
            }
        }
        // Deliberately one after the other: what was printed is settled first.
        if self.args.ack {
            settle(&mut self.client, &self.url, &printed, Settling::Ack).await?;
        }
        if self.args.nack {
            unprinted.splice(0..0, printed);
        }
        settle(&mut self.client, &self.url, &unprinted, Settling::Nack).await?;
        failure.map_or(Ok(()), Err)
    }

    /// Returns only when the operating system has the line.
    fn print(&mut self, message: Message) -> Result<(), Failure> {
        self.output.json(&Line::new(message))?;
        self.output.flush()
    }
}

/// A message as it is printed.
#[derive(Serialize)]
struct Line {
    id: String,
    key: Option<String>,
    unique_id: Option<String>,
    body: String,
    attempt: Option<u64>,
    /// A decimal number too large for many a JSON reader, therefore a string.
    sequence: Option<String>,
    sent_at: Option<String>,
    attributes: BTreeMap<String, Attribute>,
    receipt: String,
}

/// An attribute's value: a string or number where that says all, else an object.
#[derive(Serialize)]
#[serde(untagged)]
enum Attribute {
    Text(String),
    Number(Box<RawValue>),
    Typed {
        r#type: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
}

impl Line {
    fn new(mut message: Message) -> Self {
        let system = &mut message.attributes;
        Self {
            id: message.message_id,
            key: system.remove("MessageGroupId"),
            unique_id: system.remove("MessageDeduplicationId"),
            body: message.body,
            attempt: system
                .remove("ApproximateReceiveCount")
                .and_then(|text| text.parse().ok()),
            sequence: system.remove("SequenceNumber"),
            sent_at: system
                .remove("SentTimestamp")
                .and_then(|text| text.parse().ok())
                .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok())
                .map(|time| format!("{time:.3}")),
            attributes: message
                .message_attributes
                .into_iter()
                .map(|(name, attribute)| (name, Attribute::new(attribute)))
                .collect(),
            receipt: message.receipt_handle,
        }
    }
}

impl Attribute {
    fn new(attribute: MessageAttribute) -> Self {
        match (attribute.data_type.as_str(), attribute.string_value) {
            ("String", Some(text)) => Self::Text(text),
            ("Number", Some(text)) => match number(&text) {
                Some(number) => Self::Number(number),
                None => Self::Typed {
                    r#type: attribute.data_type,
                    value: Some(text),
                    base64: None,
                },
            },
            (_, value) => Self::Typed {
                r#type: attribute.data_type,
                value,
                base64: attribute.binary_value,
            },
        }
    }
}

/// The text as a JSON number with all its digits, if it is one.
fn number(text: &str) -> Option<Box<RawValue>> {
    let starts = text
        .trim_start_matches('-')
        .starts_with(|c: char| c.is_ascii_digit());
    starts
        .then(|| RawValue::from_string(text.to_owned()).ok())
        .flatten()
}

#[derive(Clone, Copy)]
enum Settling {
    Ack,
    Nack,
}

/// Settles leases, ten in a call. All are tried; the first refusal is reported.
async fn settle(
    client: &mut Client,
    url: &str,
    receipts: &[String],
    how: Settling,
) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for chunk in receipts.chunks(10) {
        let entries = chunk
            .iter()
            .enumerate()
            .map(|(index, receipt)| ReceiptEntry {
                id: index.to_string(),
                receipt_handle: receipt.clone(),
                visibility_timeout: match how {
                    Settling::Ack => None,
                    Settling::Nack => Some(0),
                },
            })
            .collect();
        refused.extend(
            settle_call(client, url.to_owned(), entries, how)
                .await?
                .failed,
        );
    }
    let Some(first) = refused.first() else {
        return Ok(());
    };
    let exit = exit_of(hyper::StatusCode::BAD_REQUEST, &first.code, &first.message);
    let verb = match how {
        Settling::Ack => "acknowledged",
        Settling::Nack => "put back",
    };
    Err(Failure::new(
        if exit == Exit::Failed {
            Exit::Conflict
        } else {
            exit
        },
        format!(
            "{} of {} messages could not be {verb}; the first: {} ({})",
            refused.len(),
            receipts.len(),
            first.message,
            first.code
        ),
    ))
}

/// One call. Settling the same lease again does no harm, so it is tried again while the server is
/// away.
async fn settle_call(
    client: &mut Client,
    queue_url: String,
    entries: Vec<ReceiptEntry>,
    how: Settling,
) -> Result<BatchAnswer, CallError> {
    let batch = ReceiptBatch { queue_url, entries };
    let mut retry = Retry::new(client.timeout());
    loop {
        let result = match how {
            Settling::Ack => client.call(&DeleteMessageBatch(&batch)).await,
            Settling::Nack => client.call(&ChangeMessageVisibilityBatch(&batch)).await,
        };
        match result {
            Err(error) if error.may_pass() && retry.again().await => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_printed_with_every_digit_and_type() {
        let message: Message = serde_json::from_str(
            r#"{"MessageId":"i","ReceiptHandle":"r","Body":"b\n",
                "Attributes":{"SentTimestamp":"1700000000123","ApproximateReceiveCount":"2",
                    "SequenceNumber":"10000000000000000001","MessageGroupId":"k"},
                "MessageAttributes":{
                    "a":{"DataType":"String","StringValue":"7"},
                    "b":{"DataType":"Number","StringValue":"0.10000000000000000001"},
                    "c":{"DataType":"Number.int","StringValue":"7"},
                    "d":{"DataType":"Binary","BinaryValue":"AAE="},
                    "e":{"DataType":"Number","StringValue":"+7"}}}"#,
        )
        .unwrap();
        assert_eq!(
            serde_json::to_string(&Line::new(message)).unwrap(),
            r#"{"id":"i","key":"k","unique_id":null,"body":"b\n","attempt":2,"#.to_owned()
                + r#""sequence":"10000000000000000001","sent_at":"2023-11-14T22:13:20.123Z","#
                + r#""attributes":{"a":"7","b":0.10000000000000000001,"#
                + r#""c":{"type":"Number.int","value":"7"},"d":{"type":"Binary","base64":"AAE="},"#
                + r#""e":{"type":"Number","value":"+7"}},"receipt":"r"}"#
        );
    }
}

//! A queue of a server, as a place where messages go and come from.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use hyper::Method;
use lockgate_core::coordination::{Fence, FenceError};
use lockgate_core::{
    Accepted, Failures, Fate, Header, Key, KeyOrder, KeyState, KeyStateWrite, Leased, Message,
    MessageId, MessageName, Millis, ProducerIncarnation, ProducerName, QueueName, ReceiveRequest,
    RecordVersion, Replaces, Sequence, Settlement, Sink, SinkCapabilities, Source,
    SourceCapabilities, TransportError, UniqueId, Unsupported, WallTime, limits::HoldScope,
    one_by_one,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    CallError, Client,
    api::{self, Encoding},
    records::part,
    target::{Problem, ServerInfo, Target, Unfit, all_refused, check_count, check_range},
};

/// The longest delay of a nack or a defer: a year, as the API has it.
const SETTLE_DELAY_MAX: Millis = 366 * 24 * 3600 * 1000;

/// A queue of a server: a [`Sink`] and a [`Source`]. Clones are the same queue. Made by [`Client::queue`].
///
/// # What is carried
/// Messages arrive as they were sent, byte for byte, with three exceptions: headers come in the order of
/// their names; a due time that has passed when a message is accepted is not kept; and where the queue
/// makes unique ids of bodies, a message without one comes with one. A message that JSON cannot say (two
/// headers of one name, a due time beyond the year 9999) is refused as [`Fate::Unsupported`]. The server
/// takes up to ten headers, each such as Amazon SQS takes as an attribute, and refuses others.
///
/// # Bounds
/// The capabilities say what the queue's settings and the server's limits were when it was opened. A batch
/// whose requests would be larger than the server takes goes out in several, one after the other. Where one
/// of them fails, the messages and leases of those behind it are not sent.
///
/// # Fates
/// | what happened | fate |
/// |---|---|
/// | the server cannot be reached, is busy, full or stopping | [`Retry`](Fate::Retry) |
/// | the answer was lost, or did not come in time; storage has failed | [`Unknown`](Fate::Unknown) |
/// | the request is wrong | [`Refused`](Fate::Refused) |
/// | the lease has ended, or a producer [may not send](TransportError::producer_refused) | [`Stale`](Fate::Stale) |
/// | the queue is gone, or the access key is not known, or may not do this, or the clock is wrong | [`Closed`](Fate::Closed) |
///
/// After `Closed`, [open](Client::queue) the queue again: if there is one of that name, its capabilities may
/// be others.
///
/// # Cancellation
/// As [`Client`] has it: a dropped receive gives back its leases, whatever else is dropped may have happened.
#[derive(Clone, Debug)]
pub struct RemoteQueue {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    name: QueueName,
    target: Target,
    source: SourceCapabilities,
}

/// Names a lease of a server: the receipt of `/api/v1`, which is also a receipt handle of the SQS API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(Arc<str>);

impl Receipt {
    /// Returns the receipt as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lease that is not current any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the lease is not current any more ({reason})")]
struct Stale {
    reason: String,
}

#[derive(Deserialize)]
struct Queue {
    keyed: bool,
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    message_bytes_max: u64,
    dedup_window_ms: Millis,
    /// Absent from servers that know no producers.
    producers_max: Option<u64>,
}

#[derive(Deserialize)]
struct Opened {
    incarnation: u64,
}

#[derive(Default, Serialize)]
struct SettleEntry<'a> {
    receipt: &'a str,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateEntry<'a>>,
}

/// A write of a key's state.
#[derive(Serialize)]
struct StateEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_encoding: Option<Encoding>,
    #[serde(skip_serializing_if = "is_false")]
    drop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<u64>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Deserialize)]
struct Transacted {
    state_versions: Vec<Option<u64>>,
}

/// A message of a transaction.
#[derive(Serialize)]
struct TransactionSend<'a> {
    queue: &'a str,
    message: &'a RawValue,
}

#[derive(Deserialize)]
struct Sent {
    sent: Vec<SentMessage>,
}

#[derive(Deserialize)]
struct SentMessage {
    id: Option<String>,
    sequence: Option<u64>,
    duplicate: bool,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum SendResult {
    Sent(SentMessage),
    Refused { problem: Problem },
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum SettleResult {
    Done { remaining_ms: Option<Millis> },
    Stale { reason: String },
    Refused { problem: Problem },
}

#[derive(Serialize)]
struct Receive<'a> {
    max: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_max: Option<usize>,
    wait_ms: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<Millis>,
    holder: &'a str,
}

#[derive(Deserialize)]
struct Received {
    messages: Vec<ReceivedMessage>,
    took_ms: Millis,
}

#[derive(Deserialize)]
struct ReceivedMessage {
    id: String,
    receipt: String,
    attempt: u32,
    remaining_ms: Millis,
    sequence: u64,
    sent_at: String,
    body: String,
    body_encoding: Encoding,
    key: Option<String>,
    group: Option<String>,
    unique_id: Option<String>,
    due_at: Option<String>,
    time_to_live_ms: Option<Millis>,
    #[serde(default)]
    headers: BTreeMap<String, api::Header>,
    content_type: Option<String>,
    trace_context: Option<String>,
    level: Option<String>,
    #[serde(default)]
    priority: u8,
    #[serde(default)]
    failures: Vec<FailedAttempt>,
    #[serde(default)]
    failures_left_out: u64,
    state: Option<State>,
}

/// The state of a key in the words of the API.
#[derive(Deserialize)]
struct State {
    value: String,
    value_encoding: Encoding,
    version: u64,
    written_at: String,
}

/// A failed attempt in the words of the API.
#[derive(Deserialize)]
struct FailedAttempt {
    attempt: u32,
    at: String,
    error: String,
}

impl Client {
    /// Opens a queue: reads its settings and the server's limits. An access key needs the grants `read`, and
    /// `send` or `receive` for what is done with it.
    ///
    /// # Errors
    /// [`CallError::NoQueue`] if it is not there, or not for this caller, and else what prevents a call.
    pub async fn queue(&self, name: &QueueName) -> Result<RemoteQueue, CallError> {
        let path = format!("/queues/{name}");
        let queue: Queue = self.call(Method::GET, &path, None::<&()>).await?;
        let info: ServerInfo = self.call(Method::GET, "/server", None::<&()>).await?;
        let (mut sink, body_bytes_max) = info.sink(self, queue.settings.message_bytes_max)?;
        let limits = info.limits;
        sink.keys = queue.keyed;
        sink.keys_only = queue.keyed;
        sink.groups = !queue.keyed;
        sink.unique_ids = queue.settings.dedup_window_ms > 0;
        let window = Duration::from_millis(queue.settings.dedup_window_ms);
        sink.unique_id_window = Some(window);
        sink.producers = queue.settings.producers_max.is_some();
        let mut source = SourceCapabilities::plain();
        source.receive_max = limits.receive_max;
        source.settle_max = limits.entries_max;
        source.wait_max = Duration::from_millis(limits.wait_ms_max);
        source.key_max = queue.keyed;
        source.key_order = match queue.keyed {
            true => KeyOrder::Locked,
            false => KeyOrder::None,
        };
        source.lease_max = Duration::from_millis(limits.lease_ms_max);
        source.nack_delay_max = Duration::from_millis(SETTLE_DELAY_MAX);
        source.nack_reasons = true;
        source.defer = true;
        source.hold = true;
        source.reject = true;
        source.give_back = true;
        source.key_states = queue.keyed;
        let inner = Inner {
            name: name.clone(),
            target: Target {
                client: self.clone(),
                path,
                sink,
                body_bytes_max,
            },
            source,
        };
        Ok(RemoteQueue {
            inner: Arc::new(inner),
        })
    }
}

impl RemoteQueue {
    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.inner.name
    }

    /// Returns the client that it was opened with.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.target.client
    }

    async fn settle<R>(
        &self,
        entries: Vec<Result<Box<RawValue>, TransportError>>,
        done: impl Fn(Option<Millis>) -> Result<R, TransportError>,
    ) -> Vec<Result<R, TransportError>> {
        if let Err(error) = check_count(entries.len(), self.inner.source.settle_max) {
            return all_refused(&error, entries.len());
        }
        let target = &self.inner.target;
        let results = target.in_requests(entries, ("settle", "settles"), |result| match result {
            SettleResult::Done { remaining_ms } => done(remaining_ms),
            SettleResult::Stale { reason } => {
                Err(TransportError::new(Fate::Stale, Stale { reason }))
            }
            SettleResult::Refused { problem } => Err(target.refused(problem)),
        });
        results.await
    }

    /// A settle in the words of the API.
    fn settle_entry(&self, entry: &SettleEntry<'_>) -> Result<Box<RawValue>, TransportError> {
        if let Some(delay) = entry.delay_ms {
            check_range("a delay", delay, 0, SETTLE_DELAY_MAX)?;
        }
        self.inner.target.written(entry)
    }
}

impl Sink for RemoteQueue {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.inner.target.sink.clone()
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let target = &self.inner.target;
        if let Err(error) = target.check_batch(&messages) {
            return all_refused(&error, messages.len());
        }
        let entries = messages.into_iter().map(|message| target.entry(message));
        let results =
            target.in_requests(
                entries.collect(),
                ("messages", "messages"),
                |result| match result {
                    SendResult::Sent(sent) => accepted(sent),
                    SendResult::Refused { problem } => Err(target.refused(problem)),
                },
            );
        results.await
    }

    /// In as many transactions as requests are needed. If one is refused, one by one up to the message that is to blame.
    async fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let (name, target) = (self.inner.name.as_str(), &self.inner.target);
        let sends = messages.iter().map(|message| match &message.producer {
            None => target.written(&TransactionSend {
                queue: name,
                message: &target.entry(message.clone())?,
            }),
            Some(_) => Err(Unsupported::Producer.into()),
        });
        let sends: Result<Vec<_>, _> = sends.collect();
        let (Ok(sends), 2..) = (sends, messages.len()) else {
            return one_by_one(self, messages).await;
        };
        let answers = |Sent { sent }| sent;
        let results = target.in_order(self, messages, (sends, "sends"), answers, accepted);
        results.await
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        let target = &self.inner.target;
        target.can_carry(message, |message| target.entry(message))
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        let mut inner = (*self.inner).clone();
        inner.target.client = inner.target.client.fenced(fence);
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    async fn open_producer(
        &self,
        producer: ProducerName,
    ) -> Result<ProducerIncarnation, TransportError> {
        if !self.inner.target.sink.producers {
            return Err(Unsupported::Producer.into());
        }
        let target = format!(
            "{}/producers/{}/open",
            self.inner.target.path,
            part(producer.as_str())
        );
        let client = &self.inner.target.client;
        let Opened { incarnation } = client.call(Method::POST, &target, None::<&()>).await?;
        Ok(ProducerIncarnation(incarnation))
    }
}

impl Source for RemoteQueue {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.inner.source.clone()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        check_count(request.max, self.inner.source.receive_max)?;
        let target = format!("{}/receive", self.inner.target.path);
        let body = Receive {
            max: request.max,
            key_max: request.key_max.map(|max| max.min(request.max)),
            wait_ms: millis(request.wait),
            lease_ms: request.lease.map(millis),
            holder: request.holder.as_str(),
        };
        let client = &self.inner.target.client;
        let asked = Instant::now();
        let call = client.call_within(Method::POST, &target, Some(&body), request.wait);
        let Received { messages, took_ms } = call.await?;
        // The leases are older than the answer by its way here. How long that took nobody knows, but request
        // and answer together took no longer than this.
        let on_the_way = asked
            .elapsed()
            .saturating_sub(Duration::from_millis(took_ms));
        let leased = messages.into_iter().map(|received| {
            let mut leased = leased(received)?;
            leased.remaining = leased.remaining.saturating_sub(on_the_way);
            Some(leased)
        });
        let leased = leased.collect::<Option<_>>();
        leased.ok_or_else(|| client.no_lockgate("a message cannot be read").into())
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let entries = settles
            .iter()
            .map(|(receipt, settlement)| self.settle_entry(&settling(receipt, settlement)));
        self.settle(entries.collect(), |_| Ok(())).await
    }

    async fn settle_with_state(
        &self,
        settles: Vec<(Receipt, Settlement)>,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, TransportError> {
        check_count(settles.len(), self.inner.source.settle_max)?;
        if !self.inner.source.key_states {
            return Err(Unfit::States.into());
        }
        let client = &self.inner.target.client;
        let encoded = write.value.as_deref().map(Encoding::of);
        let mut state = Some(StateEntry {
            value: encoded.as_ref().map(|(value, _)| &**value),
            value_encoding: encoded.as_ref().map(|(_, encoding)| *encoding),
            drop: write.value.is_none(),
            replaces: match write.replaces {
                Replaces::Version(version) => version.map(|version| version.0),
                Replaces::Any => return Err(Unfit::AnyState.into()),
            },
        });
        let entries = settles.iter().map(|(receipt, settlement)| {
            self.settle_entry(&SettleEntry {
                state: state.take(),
                ..settling(receipt, settlement)
            })
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        if self.inner.target.fitting(&entries) < entries.len() {
            let given = entries.iter().map(|entry| entry.get().len()).sum();
            let max = self.inner.target.body_bytes_max;
            return Err(Unfit::RequestBytes { given, max }.into());
        }
        let body = BTreeMap::from([("settles", entries)]);
        let call = client.call(Method::POST, "/transactions", Some(&body));
        match call.await {
            Ok(Transacted { state_versions }) => match state_versions[..] {
                [version] => Ok(version.map(RecordVersion)),
                _ => Err(client
                    .no_lockgate("a transaction has no version of its state")
                    .into()),
            },
            Err(CallError::Refused { code, message, .. }) if code == "lease_stale" => {
                let reason = message;
                Err(TransportError::new(Fate::Stale, Stale { reason }))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let entries = receipts.iter().map(|receipt| {
            self.settle_entry(&SettleEntry {
                receipt: receipt.as_str(),
                action: "extend",
                lease_ms: Some(millis(lease)),
                ..SettleEntry::default()
            })
        });
        let client = &self.inner.target.client;
        // It lasts so long from when the server got the request, which was not before now.
        let asked = Instant::now();
        self.settle(entries.collect(), |remaining| match remaining {
            Some(remaining) => Ok(Duration::from_millis(remaining).saturating_sub(asked.elapsed())),
            None => Err(client.no_lockgate("an extended lease has no end").into()),
        })
        .await
    }
}

fn accepted(sent: SentMessage) -> Result<Accepted<MessageId>, TransportError> {
    let id = sent.id.map(|id| id.parse()).transpose();
    Ok(Accepted {
        // It was accepted; which message it is cannot be said without its id.
        id: id.map_err(|error| TransportError::new(Fate::Unknown, error))?,
        sequence: sent.sequence.map(Sequence),
        duplicate: sent.duplicate,
    })
}

/// A settle in the words of the API.
fn settling<'a>(receipt: &'a Receipt, settlement: &'a Settlement) -> SettleEntry<'a> {
    let hold = match settlement {
        Settlement::Hold { scope, .. } => Some(match scope {
            HoldScope::Key => "key",
            HoldScope::Queue => "queue",
        }),
        _ => None,
    };
    let (action, delay, reason) = match settlement {
        Settlement::Ack => ("ack", None, None),
        Settlement::Nack { delay, reason } => ("nack", Some(*delay), reason.as_deref()),
        Settlement::Defer { delay } | Settlement::Hold { delay, .. } => {
            ("defer", Some(*delay), None)
        }
        Settlement::Reject { reason } => ("reject", None, reason.as_deref()),
        Settlement::GiveBack => ("give_back", None, None),
    };
    SettleEntry {
        receipt: receipt.as_str(),
        action,
        delay_ms: delay.map(millis),
        hold,
        reason,
        ..SettleEntry::default()
    }
}

/// A message that came; `None` if no server says so.
fn leased(received: ReceivedMessage) -> Option<Leased<Receipt>> {
    let key = |text: &str| Key::new(text).ok();
    let message = Message {
        body: received.body_encoding.decode(&received.body).ok()?.into(),
        headers: headers(received.headers)?,
        key: read(received.key, key)?,
        group: read(received.group, key)?,
        unique_id: read(received.unique_id, |text| UniqueId::new(text).ok())?,
        due: read(received.due_at, wall_time)?,
        time_to_live: received.time_to_live_ms,
        content_type: received.content_type.map(Into::into),
        trace_context: received.trace_context.map(Into::into),
        level: read(received.level, |text| text.parse().ok())?,
        priority: received.priority,
        producer: None,
    };
    let kept = received.failures.into_iter().map(|failure| {
        Some(lockgate_core::FailedAttempt {
            attempt: failure.attempt,
            at: wall_time(&failure.at)?,
            error: failure.error.into(),
        })
    });
    let failures = Failures::new(kept.collect::<Option<_>>()?, received.failures_left_out);
    let failures = (failures != Failures::default()).then(|| Arc::new(failures));
    Some(Leased {
        receipt: Receipt(received.receipt.into()),
        name: Some(MessageName::Id(received.id.parse().ok()?)),
        message,
        sequence: Some(Sequence(received.sequence)),
        attempt: received.attempt,
        accepted: Some(wall_time(&received.sent_at)?),
        failures,
        state: match received.state {
            None => None,
            Some(state) => Some(KeyState {
                value: state.value_encoding.decode(&state.value).ok()?.into(),
                version: RecordVersion(state.version),
                written: wall_time(&state.written_at)?,
            }),
        },
        remaining: Duration::from_millis(received.remaining_ms),
    })
}

/// What is there and cannot be read is not left out.
pub(crate) fn read<T>(text: Option<String>, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    match text {
        Some(text) => read(&text).map(Some),
        None => Some(None),
    }
}

pub(crate) fn headers(given: BTreeMap<String, api::Header>) -> Option<Vec<Header>> {
    let header = |(name, header): (String, api::Header)| {
        Some(Header {
            name: name.into(),
            kind: header.kind.into(),
            value: header.encoding.decode(&header.value).ok()?.into(),
        })
    };
    given.into_iter().map(header).collect()
}

pub(crate) fn wall_time(text: &str) -> Option<WallTime> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(WallTime)
}

/// Whole milliseconds, rounded up. More than there can be is refused by the server.
pub(crate) fn millis(span: Duration) -> Millis {
    let millis = span.as_nanos().div_ceil(1_000_000);
    Millis::try_from(millis).unwrap_or(Millis::MAX)
}

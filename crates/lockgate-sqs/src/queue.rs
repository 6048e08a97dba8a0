//! A queue of SQS, as a place where messages go and come from.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use aws_sdk_sqs::{
    Client,
    config::{Builder, retry::RetryConfig},
    error::BuildError,
    types::{
        BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry,
        DeleteMessageBatchRequestEntry, MessageSystemAttributeName, QueueAttributeName,
    },
};
use lockgate_core::coordination::{Fence, FenceError};
use lockgate_core::{
    Accepted, Fate, KeyOrder, Leased, Level, Message, MessageName, ReceiveRequest, Settlement,
    Sink, SinkCapabilities, Source, SourceCapabilities, TransportError, WallTime,
};
use tokio::time::Instant;

use crate::{
    fate,
    words::{self, DUE_MAX, Entry, NoUniqueId, Received},
};

/// Messages or leases of one call.
const BATCH_MAX: usize = 10;
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The longest visibility timeout.
const LEASE_MAX: Duration = Duration::from_secs(12 * 3600);

/// A call that would hide a message past [`LEASE_MAX`] from its receive is refused. It may take so long to arrive.
const CALL_TIME: Duration = Duration::from_secs(60);
/// How long a FIFO queue knows a unique id.
const UNIQUE_ID_WINDOW: Duration = Duration::from_secs(300);
/// The largest message, where a queue does not say it, and the largest batch.
const BYTES_MAX: u64 = 1 << 20;

/// What SQS does not say of itself.
#[derive(Clone, Debug)]
pub struct SqsOptions {
    /// The highest level that a message may ask for. No service says how it keeps messages: Amazon's keeps them on
    /// several machines ([`Level::Replicated`]). Default: [`Level::Memory`].
    pub level_max: Level,
    /// Bytes of one batch; 1 or more. Default: 1 MiB, as Amazon has it; older services have 256 KiB.
    pub batch_bytes_max: u64,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            level_max: Level::Memory,
            batch_bytes_max: BYTES_MAX,
        }
    }
}

/// A queue of SQS: a [`Sink`] and a [`Source`]. Clones are the same queue.
///
/// # Two kinds
/// | | FIFO queue | standard queue |
/// |---|---|---|
/// | MessageGroupId | the key; every message needs one | the group (a fair queue), if the message has one |
/// | order | one holder of a key at a time, in order | none |
/// | MessageDeduplicationId | the unique id, known for 5 minutes | none; a message with a unique id is refused |
/// | due time (DelaySeconds) | none; a message with a due time is refused | up to 15 minutes ahead, rounded up to whole seconds |
///
/// SQS has no time to live of a message. Ids have 1 to 128 printable ASCII characters.
///
/// A FIFO queue needs an id of each message. If the message has no unique id and the queue makes none
/// (ContentBasedDeduplication), it is sent with a random one, which is taken off when it is received. An id that the
/// queue has made of the body comes with the message. Where the queue's DeduplicationScope is `messageGroup`, an
/// id counts within its key. SQS accepts a known id without saying so.
///
/// # What is carried
/// | a message's | in SQS |
/// |---|---|
/// | body | the MessageBody, if it is a text that SQS takes; else in base64, with the message attribute [`lockgate.body-encoding`](crate::BODY_ENCODING) |
/// | headers | message attributes of their names and types; they come in the order of their names |
/// | content type | the message attribute [`content-type`](crate::CONTENT_TYPE) |
/// | trace context | AWSTraceHeader, if it begins with `Root=`; else the message attribute [`traceparent`](crate::TRACE_CONTEXT). If a message comes with both, the attribute counts |
///
/// SQS takes ten message attributes, which may not be empty. A Number has up to 38 digits, and is from 1e-128 to 1e126.
/// Due time and level are obeyed, and do not come with the message. What cannot be carried is refused as [`Fate::Unsupported`] before anything is sent.
///
/// A message is called by the queue's ARN and its MessageId. Amazon gives a message a new MessageId when it moves back
/// from the dead letters.
///
/// # Leases
/// A lease is a visibility timeout: whole seconds, rounded up, up to 12 hours from the receive. It is counted from when
/// the call began, so that no lease ends earlier than it says. A wait is therefore made of calls that take at most half
/// as long as the lease, and at least a second: a lease of 1 s may end during that wait. Messages whose leases may have
/// ended when the answer comes are not handed out. They come again, with an attempt more, so leases of 1 s are for
/// receives that do not wait.
///
/// - SQS lets nobody hold or delay a message past 12 hours from its receive. An extension or a delay that would go
///   further ends a minute before them.
/// - A nack sets the visibility timeout to its delay, in whole seconds rounded up. SQS counts each receive, so
///   nothing can be deferred or given back without an attempt, and it cannot reject: the queue's RedrivePolicy moves a
///   message to the dead letters after so many receives.
/// - SQS answers each deletion from a *standard* queue with success, also if the lease has ended and somebody else has
///   the message, which then comes again. A visibility timeout that is changed after the end of the lease may be that
///   of the next holder. Only a receipt that was settled here is known to be stale.
/// - A standard queue promises no order, but mostly keeps it. A worker therefore receives from one with one call at a
///   time, so that messages of a batch that run one after the other do. With `Order::Unordered` it makes
///   several calls side by side.
/// - On a standard queue a receive that does not wait asks some of SQS's servers only, and may find nothing where there
///   is something.
///
/// # Fates
/// | what happened | fate |
/// |---|---|
/// | there is no connection; SQS is throttling, overloaded, or has too many messages in flight; who asks is not allowed to | [`Retry`](Fate::Retry) |
/// | the answer was lost or did not come in time; an internal error; an entry of a batch without a result | [`Unknown`](Fate::Unknown) |
/// | the request is wrong | [`Refused`](Fate::Refused) |
/// | the receipt is not valid any more | [`Stale`](Fate::Stale) |
/// | the queue is gone | [`Closed`](Fate::Closed) |
///
/// Sends and settles are not tried again here, whatever the client's retries are: they would hide what became of the
/// first try. Receives are, as the client has it. On a FIFO queue all tries of a receive have one
/// ReceiveRequestAttemptId, so that an answer that was lost comes again.
///
/// A batch whose messages are larger in SQS's words than a batch may be goes out in several calls. Where one fails, those
/// behind it are not made. If SQS refuses a whole call, its messages are sent again one by one, so that only those at
/// fault are refused, and those behind them are sent.
///
/// # Cancellation
/// The leases of a dropped receive end by themselves, with their visibility timeout. Whatever else is dropped may have
/// happened.
#[derive(Clone)]
pub struct SqsQueue {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    url: String,
    /// What names of messages begin with.
    name: String,
    is_fifo: bool,
    without_unique_id: NoUniqueId,
    /// The queue's visibility timeout.
    lease: Duration,
    sink: SinkCapabilities,
    source: SourceCapabilities,
}

/// Names a lease: SQS's receipt handle.
#[derive(Clone, Debug)]
pub struct Receipt(Arc<Lease>);

#[derive(Debug)]
struct Lease {
    handle: String,
    /// When its receive was asked for.
    asked: Instant,
    /// SQS does not say it of a message that was deleted.
    is_settled: AtomicBool,
}

impl Receipt {
    /// Returns the receipt handle.
    #[must_use]
    pub fn handle(&self) -> &str {
        &self.0.handle
    }

    fn is_settled(&self) -> bool {
        self.0.is_settled.load(Ordering::Relaxed)
    }

    fn within_hold(&self, wanted: i32) -> i32 {
        within_hold(wanted, self.0.asked.elapsed())
    }
}

/// What cannot be asked for.
#[derive(Clone, Debug, thiserror::Error)]
enum Wrong {
    #[error("a call has 1 to {max} of them, this one has {given}")]
    Count { given: usize, max: usize },
    #[error("the messages of a batch have {max} bytes at most, these have {given}")]
    BatchBytes { given: u64, max: u64 },
    #[error("{what} is {max:?} at most in SQS, this one is {given:?}")]
    Range {
        what: &'static str,
        given: Duration,
        max: Duration,
    },
    #[error("SQS counts each receive, and cannot {what}")]
    Settlement { what: &'static str },
    #[error("SQS keeps no reasons of nacks")]
    Reason,
    #[error("the lease was settled")]
    Settled,
    #[error("it was not sent, because what was before it has failed")]
    NotSent,
}

impl From<Wrong> for TransportError {
    fn from(wrong: Wrong) -> Self {
        let fate = match wrong {
            Wrong::Settlement { .. } | Wrong::Reason => Fate::Unsupported,
            Wrong::Settled => Fate::Stale,
            Wrong::NotSent => Fate::Retry,
            _ => Fate::Refused,
        };
        Self::new(fate, wrong)
    }
}

/// Results of a call by the place of the entry.
type Answers<T> = HashMap<String, Result<T, TransportError>>;

/// What one call said of each of its entries. An entry that it does not name is unknown.
fn answers<T>(
    done: impl IntoIterator<Item = (String, T)>,
    failed: &[BatchResultErrorEntry],
) -> Answers<T> {
    let done = done.into_iter().map(|(id, done)| (id, Ok(done)));
    let failed = failed
        .iter()
        .map(|entry| (entry.id().to_owned(), Err(fate::of_entry(entry))));
    done.chain(failed).collect()
}

fn take<T>(answers: &mut Answers<T>, id: usize) -> Result<T, TransportError> {
    let answer = answers.remove(&id.to_string());
    answer.unwrap_or_else(|| {
        Err(fate::unanswered(
            "SQS has not said what became of this entry",
        ))
    })
}

/// One call that says for itself what became of it.
fn once() -> Builder {
    Builder::new().retry_config(RetryConfig::disabled())
}

impl SqsQueue {
    /// Opens the queue of this URL: reads its attributes, for which the client needs the permission
    /// `sqs:GetQueueAttributes`.
    ///
    /// # Errors
    /// [`Fate::Closed`] if there is no such queue, and else what prevents a call.
    pub async fn open(client: Client, url: impl Into<String>) -> Result<Self, TransportError> {
        Self::open_with(client, url, SqsOptions::default()).await
    }

    /// Opens the queue of this URL, with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(
        client: Client,
        url: impl Into<String>,
        options: SqsOptions,
    ) -> Result<Self, TransportError> {
        let url = url.into();
        let call = client.get_queue_attributes().queue_url(&url);
        let call = call.attribute_names(QueueAttributeName::All);
        let attributes = call.send().await.map_err(fate::of_call)?.attributes;
        let attributes = attributes.unwrap_or_default();
        let text = |name: QueueAttributeName| attributes.get(&name).map(String::as_str);
        let number = |name: QueueAttributeName| text(name).and_then(|text| text.parse().ok());
        let lease = number(QueueAttributeName::VisibilityTimeout).ok_or_else(|| {
            fate::unanswered("the queue has no VisibilityTimeout, which every queue of SQS has")
        })?;
        let is_fifo = text(QueueAttributeName::FifoQueue) == Some("true");
        let of_body = text(QueueAttributeName::ContentBasedDeduplication) == Some("true");
        let without_unique_id = match (is_fifo, of_body) {
            (false, _) => NoUniqueId::Ignored,
            (true, true) => NoUniqueId::OfBody,
            (true, false) => NoUniqueId::MadeUp,
        };
        let mut sink = SinkCapabilities::bodies_only(options.level_max);
        sink.batch_max = BATCH_MAX;
        sink.batch_bytes_max = options.batch_bytes_max;
        let bytes_max = number(QueueAttributeName::MaximumMessageSize).unwrap_or(BYTES_MAX);
        sink.message_bytes_max = bytes_max.min(options.batch_bytes_max);
        sink.keys = is_fifo;
        sink.keys_only = is_fifo;
        sink.groups = !is_fifo;
        sink.unique_ids = is_fifo;
        sink.unique_id_window = is_fifo.then_some(UNIQUE_ID_WINDOW);
        sink.due = !is_fifo;
        sink.due_max = Some(DUE_MAX);
        sink.headers = true;
        let mut source = SourceCapabilities::plain();
        source.receive_max = BATCH_MAX;
        source.settle_max = BATCH_MAX;
        source.wait_max = WAIT_MAX;
        source.key_order = match is_fifo {
            true => KeyOrder::Locked,
            false => KeyOrder::None,
        };
        source.lease_max = LEASE_MAX;
        source.nack_delay_max = LEASE_MAX;
        let name = text(QueueAttributeName::QueueArn)
            .unwrap_or(&url)
            .to_owned();
        let inner = Inner {
            client,
            url,
            name,
            is_fifo,
            without_unique_id,
            lease: Duration::from_secs(lease),
            sink,
            source,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the URL of the queue.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Sends entries in one call.
    async fn send(
        &self,
        entries: Vec<(usize, Entry)>,
    ) -> Result<Answers<Arc<str>>, TransportError> {
        let entries = entries.into_iter().map(|(at, entry)| entry.named(at));
        let entries = entries.collect::<Result<_, _>>().map_err(unbuilt)?;
        let call = self.inner.client.send_message_batch();
        let call = call.queue_url(self.url()).set_entries(Some(entries));
        let call = call.customize().config_override(once());
        let said = call.send().await.map_err(fate::of_call)?;
        let sent = said.successful.into_iter();
        Ok(answers(
            sent.map(|entry| (entry.id, entry.message_id.into())),
            &said.failed,
        ))
    }

    async fn delete(&self, entries: &[(usize, &Receipt)]) -> Result<Answers<()>, TransportError> {
        let entries = entries.iter().map(|(at, receipt)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string());
            entry.receipt_handle(receipt.handle()).build()
        });
        let entries = entries.collect::<Result<_, _>>().map_err(unbuilt)?;
        let call = self.inner.client.delete_message_batch();
        let call = call.queue_url(self.url()).set_entries(Some(entries));
        let call = call.customize().config_override(once());
        let said = call.send().await.map_err(fate::of_call)?;
        let done = said.successful.into_iter();
        Ok(answers(done.map(|entry| (entry.id, ())), &said.failed))
    }

    async fn change(
        &self,
        entries: &[(usize, &Receipt, i32)],
    ) -> Result<Answers<()>, TransportError> {
        let entries = entries.iter().map(|(at, receipt, seconds)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(at.to_string());
            let entry = entry.receipt_handle(receipt.handle());
            entry.visibility_timeout(*seconds).build()
        });
        let entries = entries.collect::<Result<_, _>>().map_err(unbuilt)?;
        let call = self.inner.client.change_message_visibility_batch();
        let call = call.queue_url(self.url()).set_entries(Some(entries));
        let call = call.customize().config_override(once());
        let said = call.send().await.map_err(fate::of_call)?;
        let done = said.successful.into_iter();
        Ok(answers(done.map(|entry| (entry.id, ())), &said.failed))
    }

    /// Receives in one call.
    async fn poll(
        &self,
        max: i32,
        wait: i32,
        lease: i32,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let inner = &*self.inner;
        let call = inner.client.receive_message().queue_url(self.url());
        let call = call.max_number_of_messages(max).wait_time_seconds(wait);
        let call = call
            .visibility_timeout(lease)
            .message_attribute_names("All");
        let call = call.message_system_attribute_names(MessageSystemAttributeName::All);
        let attempt = inner.is_fifo.then(words::random_id).transpose()?;
        let call = call.set_receive_request_attempt_id(attempt);
        // The leases began between now and the answer.
        let asked = Instant::now();
        let said = call.send().await.map_err(fate::of_call)?;
        let remaining = seconds(lease).saturating_sub(asked.elapsed());
        let messages = said.messages.unwrap_or_default();
        let count = messages.len();
        let leased = messages.into_iter().filter_map(|message| {
            let Received {
                message,
                id,
                receipt_handle,
                attempt,
                accepted,
            } = words::received(message, inner.is_fifo)?;
            Some(Leased {
                receipt: Receipt(Arc::new(Lease {
                    handle: receipt_handle,
                    asked,
                    is_settled: AtomicBool::new(false),
                })),
                name: Some(MessageName::Text(format!("{}/{id}", inner.name).into())),
                message,
                // SQS's numbers have up to 128 bits.
                sequence: None,
                attempt,
                accepted,
                failures: None,
                state: None,
                remaining,
            })
        });
        let mut leased: Vec<_> = leased.collect();
        // They come again, and become dead letters in the end; the others must not.
        let unreadable = count - leased.len();
        if unreadable > 0 {
            tracing::warn!(
                queue = self.url(),
                unreadable,
                "messages lack what SQS says of every message"
            );
        }
        // Somebody else may have them by now. They come again by themselves.
        if remaining.is_zero() && !leased.is_empty() {
            let ended = leased.len();
            tracing::warn!(
                queue = self.url(),
                ended,
                "leases had ended when SQS's answer came: a longer lease prevents that"
            );
            leased.clear();
        }
        Ok(leased)
    }

    /// The visibility timeout that a settlement asks for; `None`: none, as the message is deleted.
    fn visibility(&self, receipt: &Receipt, how: Settlement) -> Result<Option<i32>, Wrong> {
        let delay = match how {
            Settlement::Ack => None,
            Settlement::Nack {
                reason: Some(_), ..
            } => return Err(Wrong::Reason),
            Settlement::Nack { delay, .. } => Some(whole_seconds(
                "a delay",
                delay,
                self.inner.source.nack_delay_max,
            )?),
            Settlement::Defer { .. } => return Err(Wrong::Settlement { what: "defer" }),
            Settlement::Hold { .. } => return Err(Wrong::Settlement { what: "hold" }),
            Settlement::Reject { .. } => return Err(Wrong::Settlement { what: "reject" }),
            Settlement::GiveBack => {
                let what = "take a lease back without an attempt";
                return Err(Wrong::Settlement { what });
            }
        };
        match receipt.is_settled() {
            true => Err(Wrong::Settled),
            false => Ok(delay.map(|delay| receipt.within_hold(delay))),
        }
    }
}

impl fmt::Debug for SqsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqsQueue").field(&self.inner.url).finish()
    }
}

impl Sink for SqsQueue {
    type Id = Arc<str>;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.inner.sink.clone()
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        let (can, without) = (&self.inner.sink, self.inner.without_unique_id);
        words::entry(message.clone(), can, without, wall_time()).map(drop)
    }

    fn fenced(&self, _: &Fence) -> Result<Self, FenceError> {
        Err(FenceError::Unsupported { what: "Amazon SQS" })
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<Arc<str>>, TransportError>> {
        let (can, count) = (&self.inner.sink, messages.len());
        let given: u64 = messages.iter().map(|message| message.size() as u64).sum();
        let max = can.batch_bytes_max;
        let fits = check_count(count, can.batch_max).and(match given > max {
            true => Err(Wrong::BatchBytes { given, max }),
            false => Ok(()),
        });
        if let Err(wrong) = fits {
            return all(&wrong.into(), count);
        }
        let now = wall_time();
        let without = self.inner.without_unique_id;
        let mut results: Vec<Option<Result<_, TransportError>>> = Vec::with_capacity(count);
        let mut calls: Vec<Vec<(usize, Entry)>> = Vec::new();
        let mut bytes = 0;
        for (at, message) in messages.into_iter().enumerate() {
            match words::entry(message, can, without, now) {
                Ok(entry) => {
                    bytes += entry.bytes;
                    match calls.last_mut().filter(|_| bytes <= max) {
                        Some(call) => call.push((at, entry)),
                        None => {
                            bytes = entry.bytes;
                            calls.push(vec![(at, entry)]);
                        }
                    }
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error))),
            }
        }
        let mut calls = VecDeque::from(calls);
        let mut failed: Option<TransportError> = None;
        while let Some(call) = calls.pop_front() {
            let places: Vec<usize> = call.iter().map(|(at, _)| *at).collect();
            let mut answers = match failed.clone() {
                Some(error) => Err(error),
                None => self.send(call.clone()).await,
            };
            let is_refused = |error: &TransportError| error.fate == Fate::Refused;
            if call.len() > 1 && failed.is_none() && answers.as_ref().is_err_and(is_refused) {
                // One of them may be to blame. Nothing of a refused call was sent.
                for entry in call.into_iter().rev() {
                    calls.push_front(vec![entry]);
                }
                continue;
            }
            for at in places {
                let answer = match &mut answers {
                    Ok(answers) => take(answers, at),
                    Err(error) => Err(error.clone()),
                };
                results[at] = Some(answer.map(|id| Accepted {
                    id: Some(id),
                    sequence: None,
                    duplicate: false,
                }));
            }
            if let Some(error) = answers.err().filter(|error| !is_refused(error)) {
                failed = Some(match error.fate {
                    Fate::Unknown => Wrong::NotSent.into(),
                    _ => error,
                });
            }
        }
        let unknown = || Err(fate::unanswered("it was not answered"));
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or_else(unknown))
            .collect()
    }
}

impl Source for SqsQueue {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.inner.source.clone()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let can = &self.inner.source;
        check_count(request.max, can.receive_max)?;
        whole_seconds("a wait", request.wait, can.wait_max)?;
        let lease = request.lease.unwrap_or(self.inner.lease);
        let lease = whole_seconds("a lease", lease, can.lease_max)?;
        let max = i32::try_from(request.max).unwrap_or(i32::MAX);
        let started = Instant::now();
        loop {
            let left = request.wait.saturating_sub(started.elapsed());
            let wait = whole_seconds("a wait", left, can.wait_max)?;
            // Half of the lease is left at least, if SQS answers in time.
            let wait = wait.min((lease / 2).max(1));
            let asked = Instant::now();
            let leased = self.poll(max, wait, lease).await?;
            // A server that does not wait is not asked on and on.
            let was_early = asked.elapsed() < seconds(wait) / 2;
            if !leased.is_empty() || was_early || started.elapsed() >= request.wait {
                return Ok(leased);
            }
        }
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let count = settles.len();
        if let Err(wrong) = check_count(count, self.inner.source.settle_max) {
            return all(&wrong.into(), count);
        }
        let wanted: Vec<(Receipt, Result<Option<i32>, TransportError>)> = settles
            .into_iter()
            .map(|(receipt, how)| {
                let visibility = self.visibility(&receipt, how);
                (receipt, visibility.map_err(Into::into))
            })
            .collect();
        let (mut deletes, mut changes) = (Vec::new(), Vec::new());
        for (at, (receipt, wanted)) in wanted.iter().enumerate() {
            match wanted {
                Ok(None) => deletes.push((at, receipt)),
                Ok(Some(seconds)) => changes.push((at, receipt, *seconds)),
                Err(_) => {}
            }
        }
        // Acks first: what is acknowledged of a key is in front of what is not.
        let mut deleted = match deletes.is_empty() {
            true => Ok(HashMap::new()),
            false => self.delete(&deletes).await,
        };
        let mut changed = match changes.is_empty() {
            true => Ok(HashMap::new()),
            false => self.change(&changes).await,
        };
        let results = wanted.into_iter().enumerate();
        let results = results.map(|(at, (receipt, wanted))| {
            let answers = match wanted? {
                None => &mut deleted,
                Some(_) => &mut changed,
            };
            match answers {
                Ok(answers) => take(answers, at)?,
                Err(error) => return Err(error.clone()),
            }
            receipt.0.is_settled.store(true, Ordering::Relaxed);
            Ok(())
        });
        results.collect()
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let (can, count) = (&self.inner.source, receipts.len());
        let fits = check_count(count, can.settle_max);
        let lease = match fits.and_then(|()| whole_seconds("a lease", lease, can.lease_max)) {
            Ok(lease) => lease,
            Err(wrong) => return all(&wrong.into(), count),
        };
        let current = receipts.iter().enumerate();
        let current = current.filter(|(_, receipt)| !receipt.is_settled());
        let changes = current.map(|(at, receipt)| (at, receipt, receipt.within_hold(lease)));
        let changes: Vec<_> = changes.collect();
        // It lasts so long from when SQS got the request, which was not before now.
        let asked = Instant::now();
        let mut changed = match changes.is_empty() {
            true => Ok(HashMap::new()),
            false => self.change(&changes).await,
        };
        let took = asked.elapsed();
        let mut results = vec![Err(Wrong::Settled.into()); count];
        for (at, _, lease) in changes {
            results[at] = match &mut changed {
                Ok(answers) => take(answers, at).map(|()| seconds(lease).saturating_sub(took)),
                Err(error) => Err(error.clone()),
            };
        }
        results
    }
}

fn unbuilt(error: BuildError) -> TransportError {
    TransportError::new(Fate::Refused, error)
}

fn all<T>(error: &TransportError, count: usize) -> Vec<Result<T, TransportError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

fn check_count(given: usize, max: usize) -> Result<(), Wrong> {
    match (1..=max).contains(&given) {
        true => Ok(()),
        false => Err(Wrong::Count { given, max }),
    }
}

/// Whole seconds, rounded up.
fn whole_seconds(what: &'static str, given: Duration, max: Duration) -> Result<i32, Wrong> {
    let seconds = given.as_nanos().div_ceil(1_000_000_000);
    let seconds = i32::try_from(seconds).ok().filter(|_| given <= max);
    seconds.ok_or(Wrong::Range { what, given, max })
}

/// The visibility timeout that SQS takes of a message that was received so long ago.
fn within_hold(wanted: i32, held: Duration) -> i32 {
    let longest = LEASE_MAX.saturating_sub(held).saturating_sub(CALL_TIME);
    let longest = i32::try_from(longest.as_secs()).unwrap_or(i32::MAX);
    wanted.min(longest)
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(seconds.unsigned_abs().into())
}

fn wall_time() -> WallTime {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_goes_past_twelve_hours_from_the_receive() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        assert_eq!(within_hold(30, hours(0)), 30);
        assert_eq!(within_hold(12 * 3_600, hours(0)), 12 * 3_600 - 60);
        assert_eq!(within_hold(12 * 3_600, hours(5)), 7 * 3_600 - 60);
        assert_eq!(within_hold(3_600, hours(11)), 3_600 - 60);
        assert_eq!(within_hold(30, hours(13)), 0);
    }
}

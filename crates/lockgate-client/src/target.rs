//! What can be sent to a queue or an exchange of a server, in requests that the server takes.

use std::{collections::BTreeMap, sync::Arc};

use hyper::{Method, StatusCode};
use lockgate_core::{
    Accepted, Fate, Header, Message, MessageId, Millis, ProducerIncarnation, ProducerRefused, Sink,
    SinkCapabilities, TransportError, WallTime, one_by_one,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    CallError, Client,
    api::{self, Encoding},
    error::of_status,
};

/// What a message has in a request beside its body and the values of its headers, at most: names, types,
/// key, unique id, content type and trace context, of which a byte may become two, and names of members.
const MESSAGE_OVERHEAD_MAX: u64 = 16 << 10;

/// The longest time to live: 3,000,000 days, as the API has it.
const SPAN_MAX: Millis = 3_000_000 * 24 * 3600 * 1000;

/// Messages of a transaction.
const TRANSACTION_MAX: usize = 1_000;

/// What a request has beside its entries.
const REQUEST_OVERHEAD: usize = 32;

#[derive(Deserialize)]
pub(crate) struct ServerInfo {
    pub(crate) limits: Limits,
}

#[derive(Deserialize)]
pub(crate) struct Limits {
    pub(crate) body_bytes_max: u64,
    pub(crate) entries_max: usize,
    pub(crate) receive_max: usize,
    pub(crate) wait_ms_max: Millis,
    pub(crate) lease_ms_max: Millis,
    pub(crate) level_max: String,
}

/// A queue or an exchange.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) client: Client,
    /// What it is in the API.
    pub(crate) path: String,
    pub(crate) sink: SinkCapabilities,
    /// The largest request that the server takes.
    pub(crate) body_bytes_max: usize,
}

/// What cannot be sent as it is.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("a call has 1 to {max} of them, this one has {given}")]
    Count { given: usize, max: usize },
    #[error("the messages of a batch have {max} bytes at most, these have {given}")]
    BatchBytes { given: u64, max: u64 },
    #[error("a message has {max} bytes at most, this one has {given}")]
    MessageBytes { given: u64, max: u64 },
    #[error("as JSON it has {given} bytes, and the server takes requests of {max}")]
    RequestBytes { given: usize, max: usize },
    #[error("it has two headers of the name {name:?}, and the API takes one")]
    HeaderTwice { name: Arc<str> },
    #[error("it is due beyond the year 9999")]
    Due,
    #[error("{what} is {min} to {max} ms, this one is {given}")]
    Range {
        what: &'static str,
        given: Millis,
        min: Millis,
        max: Millis,
    },
    #[error("it cannot be written as JSON")]
    Json,
    #[error("the queue is not keyed, and keeps no states of keys")]
    States,
    #[error("a holder names the version of the state that it replaces")]
    AnyState,
}

impl Unfit {
    fn fate(&self) -> Fate {
        match self {
            Self::HeaderTwice { .. } | Self::Due | Self::States => Fate::Unsupported,
            _ => Fate::Refused,
        }
    }
}

impl From<Unfit> for TransportError {
    fn from(unfit: Unfit) -> Self {
        Self::new(unfit.fate(), unfit)
    }
}

/// An entry that was not sent, because the request before it has failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it was not sent, because what was before it has failed")]
struct NotSent;

#[derive(Deserialize)]
struct Results<T> {
    results: Vec<T>,
}

/// Why an entry was refused.
#[derive(Deserialize)]
pub(crate) struct Problem {
    status: u16,
    code: String,
    detail: String,
    field: Option<String>,
    version: Option<u64>,
    queue: Option<String>,
    incarnation: Option<u64>,
    newest_epoch: Option<u64>,
}

impl ServerInfo {
    /// What a sink of the server can carry, as far as the server says it: bodies up to `message_bytes_max`, and what else can be
    /// said of all. Also the largest request.
    pub(crate) fn sink(
        &self,
        client: &Client,
        message_bytes_max: u64,
    ) -> Result<(SinkCapabilities, usize), CallError> {
        let limits = &self.limits;
        let level_max = limits.level_max.parse();
        let level_max = level_max.map_err(|error| client.no_lockgate(error))?;
        let body_bytes_max = usize::try_from(limits.body_bytes_max).unwrap_or(usize::MAX);
        // Base64 makes four bytes of three.
        let fits = limits.body_bytes_max.saturating_sub(MESSAGE_OVERHEAD_MAX) / 4 * 3;
        let mut sink = SinkCapabilities::bodies_only(level_max);
        sink.batch_max = limits.entries_max;
        sink.batch_bytes_max = limits.body_bytes_max;
        sink.message_bytes_max = message_bytes_max.min(fits);
        sink.tells_duplicates = true;
        sink.due = true;
        sink.time_to_live = true;
        sink.headers = true;
        sink.priority = true;
        Ok((sink, body_bytes_max))
    }
}

impl Target {
    /// A message in the words of the API, if it can be sent.
    pub(crate) fn entry(&self, message: Message) -> Result<Box<RawValue>, TransportError> {
        let can = &self.sink;
        can.check(&message)?;
        let (given, max) = (message.size() as u64, can.message_bytes_max);
        if given > max {
            return Err(Unfit::MessageBytes { given, max }.into());
        }
        if let Some(span) = message.time_to_live {
            check_range("a time to live", span, 1, SPAN_MAX)?;
        }
        self.written(&in_words(message)?)
    }

    /// Something as JSON, if a request has room for it.
    pub(crate) fn written(&self, value: &impl Serialize) -> Result<Box<RawValue>, TransportError> {
        let json = serde_json::value::to_raw_value(value).map_err(|_| Unfit::Json)?;
        let given = json.get().len() + REQUEST_OVERHEAD;
        let max = self.body_bytes_max;
        match given > max {
            true => Err(Unfit::RequestBytes { given, max }.into()),
            false => Ok(json),
        }
    }

    /// Whether a batch has the size that the capabilities say.
    pub(crate) fn check_batch(&self, messages: &[Message]) -> Result<(), TransportError> {
        check_count(messages.len(), self.sink.batch_max)?;
        let given: u64 = messages.iter().map(|message| message.size() as u64).sum();
        let max = self.sink.batch_bytes_max;
        match given > max {
            true => Err(Unfit::BatchBytes { given, max }.into()),
            false => Ok(()),
        }
    }

    /// Whether a message can be carried, where `entry` writes it.
    pub(crate) fn can_carry(
        &self,
        message: &Message,
        entry: impl Fn(Message) -> Result<Box<RawValue>, TransportError>,
    ) -> Result<(), TransportError> {
        // Where JSON has six bytes for each and it has room all the same, nothing need be written.
        let most = (message.size() as u64).saturating_mul(6);
        let max = self.body_bytes_max as u64;
        match message.due.is_none() && most.saturating_add(MESSAGE_OVERHEAD_MAX) <= max {
            true => self.sink.carries(message),
            false => entry(message.clone()).map(drop),
        }
    }

    /// Sends entries in as many requests as they take, one after the other, and gives one result for each.
    pub(crate) async fn in_requests<T: DeserializeOwned, R>(
        &self,
        entries: Vec<Result<Box<RawValue>, TransportError>>,
        (operation, list): (&str, &str),
        take: impl Fn(T) -> Result<R, TransportError>,
    ) -> Vec<Result<R, TransportError>> {
        let path = format!("{}/{operation}", self.path);
        let refused: Vec<Option<TransportError>> = (entries.iter())
            .map(|entry| entry.as_ref().err().cloned())
            .collect();
        let entries: Vec<Box<RawValue>> = entries.into_iter().filter_map(Result::ok).collect();
        let mut results = Vec::with_capacity(entries.len());
        while results.len() < entries.len() {
            let rest = &entries[results.len()..];
            let now = &rest[..self.fitting(rest)];
            match self.results(&path, list, now).await {
                Ok(answers) => results.extend(answers.into_iter().map(&take)),
                Err(error) => {
                    let behind = match error.fate {
                        Fate::Unknown => TransportError::new(Fate::Retry, NotSent),
                        _ => error.clone(),
                    };
                    results.extend(now.iter().map(|_| Err(error.clone())));
                    results.resize_with(entries.len(), || Err(behind.clone()));
                }
            }
        }
        let mut results = results.into_iter();
        let unanswered = || Err(TransportError::new(Fate::Unknown, "it was not answered"));
        let each = refused.into_iter().map(|refused| match refused {
            Some(error) => Err(error),
            // There is one for each.
            None => results.next().unwrap_or_else(unanswered),
        });
        each.collect()
    }

    /// How many of the first entries a request takes: one at least.
    pub(crate) fn fitting(&self, entries: &[Box<RawValue>]) -> usize {
        let mut bytes = REQUEST_OVERHEAD;
        let fits = entries.iter().take_while(|entry| {
            bytes += entry.get().len() + ",".len();
            bytes <= self.body_bytes_max
        });
        fits.count().max(1)
    }

    async fn results<T: DeserializeOwned>(
        &self,
        path: &str,
        list: &str,
        entries: &[Box<RawValue>],
    ) -> Result<Vec<T>, TransportError> {
        let client = &self.client;
        let body = BTreeMap::from([(list, entries)]);
        let Results { results } = client.call(Method::POST, path, Some(&body)).await?;
        if results.len() != entries.len() {
            let what = format!("{} results for {}", results.len(), entries.len());
            return Err(client.no_lockgate(what).into());
        }
        Ok(results)
    }

    /// The error of an entry.
    pub(crate) fn refused(&self, problem: Problem) -> TransportError {
        let endpoint = self.client.endpoint().clone();
        if let Some(name) = problem.queue {
            return CallError::NoQueue { endpoint, name }.into();
        }
        if let Some(refused) = producer_refused(&problem.code, problem.incarnation) {
            return refused.into();
        }
        let client = &self.client;
        if let Some(deposed) = client.deposed(&problem.code, problem.newest_epoch) {
            return deposed.into();
        }
        let status = StatusCode::from_u16(problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let error = CallError::Refused {
            status,
            code: problem.code,
            message: problem.detail,
            field: problem.field,
            version: problem.version,
        };
        TransportError::new(of_status(status), error)
    }

    /// Sends the parts of transactions, in as many requests as are needed. If one is refused, `sink` sends one by one up to the
    /// message that is to blame. `list` is what the parts are of a transaction; `answers` gives what became of them.
    pub(crate) async fn in_order<T: DeserializeOwned, R>(
        &self,
        sink: &impl Sink<Id = MessageId>,
        messages: Vec<Message>,
        (parts, list): (Vec<Box<RawValue>>, &str),
        answers: impl Fn(T) -> Vec<R>,
        accepted: impl Fn(R) -> Result<Accepted<MessageId>, TransportError>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let mut results = Vec::with_capacity(parts.len());
        while results.len() < parts.len() {
            let rest = &parts[results.len()..];
            let now = &rest[..self.fitting(rest).min(TRANSACTION_MAX)];
            let body = BTreeMap::from([(list, now)]);
            let call = self.client.call(Method::POST, "/transactions", Some(&body));
            match call.await.map(&answers) {
                Ok(answers) if answers.len() == now.len() => {
                    results.extend(answers.into_iter().map(&accepted));
                }
                Ok(answers) => {
                    let what = format!("{} results for {}", answers.len(), now.len());
                    results.push(Err(self.client.no_lockgate(what).into()));
                    break;
                }
                Err(CallError::Refused { .. }) => {
                    let rest = messages[results.len()..].to_vec();
                    results.extend(one_by_one(sink, rest).await);
                    break;
                }
                Err(error) => {
                    results.push(Err(error.into()));
                    break;
                }
            }
        }
        results
    }
}

/// Why a producer may not send, if it is that.
fn producer_refused(code: &str, incarnation: Option<u64>) -> Option<ProducerRefused> {
    match code {
        "producer_fenced" => Some(ProducerRefused::Fenced {
            current: ProducerIncarnation(incarnation.unwrap_or_default()),
        }),
        "producer_unknown" => Some(ProducerRefused::Unknown),
        "producer_gap" => Some(ProducerRefused::Gap),
        _ => None,
    }
}

/// A message in the words of the API. The sink's capabilities were checked.
pub(crate) fn in_words(message: Message) -> Result<api::Message, Unfit> {
    let mut headers = BTreeMap::new();
    for Header { name, kind, value } in message.headers {
        let (value, encoding) = Encoding::of(&value);
        let header = api::Header {
            kind: kind.to_string(),
            value,
            encoding,
        };
        if headers.insert(name.to_string(), header).is_some() {
            return Err(Unfit::HeaderTwice { name });
        }
    }
    Ok(api::Message {
        body: api::Body::bytes(&message.body),
        key: message.key.map(|key| key.to_string()),
        group: message.group.map(|group| group.to_string()),
        unique_id: message.unique_id.map(|id| id.to_string()),
        delay_ms: None,
        due_at: message.due.map(instant).transpose()?,
        time_to_live_ms: message.time_to_live,
        headers,
        content_type: message.content_type.map(|text| text.to_string()),
        trace_context: message.trace_context.map(|text| text.to_string()),
        level: message.level.map(|level| level.to_string()),
        priority: message.priority,
        producer: message.producer.map(|produced| (*produced).into()),
    })
}

/// An instant as an RFC 3339 text in UTC.
pub(crate) fn instant(time: WallTime) -> Result<String, Unfit> {
    let millis = i64::try_from(time.0).map_err(|_| Unfit::Due)?;
    let time = jiff::Timestamp::from_millisecond(millis).map_err(|_| Unfit::Due)?;
    Ok(format!("{time:.3}"))
}

/// The server refuses a whole request for a number that it never takes.
pub(crate) fn check_range(
    what: &'static str,
    given: Millis,
    min: Millis,
    max: Millis,
) -> Result<(), Unfit> {
    match (min..=max).contains(&given) {
        true => Ok(()),
        false => Err(Unfit::Range {
            what,
            given,
            min,
            max,
        }),
    }
}

pub(crate) fn check_count(given: usize, max: usize) -> Result<(), TransportError> {
    match (1..=max).contains(&given) {
        true => Ok(()),
        false => Err(Unfit::Count { given, max }.into()),
    }
}

pub(crate) fn all_refused<T>(
    error: &TransportError,
    count: usize,
) -> Vec<Result<T, TransportError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

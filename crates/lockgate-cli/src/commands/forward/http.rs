//! Messages over HTTP.

use std::{future::Future, pin::Pin};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
};
use lockgate_core::{Fate, Message, MessageId, QueueName, with_sources};
use lockgate_producer::{Answer, DropReason, Full, Producer, Refusal, Refused, SendError, Ticket};
use lockgate_server::{Handler, HandlerAnswer, HandlerRequest, Verb, check_message};
use serde_json::{Value, json};

use super::{Target, message};
use crate::{client, commands::send::lines};

const KEY: HeaderName = HeaderName::from_static("lockgate-key");
const GROUP: HeaderName = HeaderName::from_static("lockgate-group");
const ID: HeaderName = HeaderName::from_static("lockgate-id");
const TRACE: HeaderName = HeaderName::from_static("traceparent");

/// Lines of one request.
const LINES_MAX: usize = 1000;

/// How long a client waits before it comes again, in seconds.
const RETRY: &str = "1";

/// Takes requests for a producer.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) producer: Producer<Target>,
    pub(super) queue: QueueName,
}

/// Why a message, or a request, is not taken.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    /// The queue may have the message all the same, or will have it from the spool.
    may_be_delivered: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            may_be_delivered: false,
        }
    }

    fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_message", detail)
    }

    fn json(&self) -> Value {
        let mut json = json!({
            "status": self.status.as_u16(), "code": self.code, "detail": self.detail,
        });
        if self.may_be_delivered {
            json["may_be_delivered"] = true.into();
        }
        json
    }
}

impl From<Problem> for HandlerAnswer {
    fn from(problem: Problem) -> Self {
        let kind = "application/problem+json";
        let mut answer = page(problem.status, kind, &problem.json());
        if problem.status == StatusCode::METHOD_NOT_ALLOWED {
            let allowed = HeaderValue::from_static("POST");
            answer.headers.insert(ALLOW, allowed);
        }
        answer
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let detail = with_sources(&refused.why);
        match refused.why {
            Refusal::Full(full) => {
                let code = match full {
                    Full::Buffer | Full::Tenant => "buffer_full",
                    Full::Spool => "spool_full",
                    Full::SpoolFailed => "spool_failed",
                    Full::Fenced => "fenced",
                    _ => "stopping",
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
            }
            Refusal::TooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "message_too_large", detail)
            }
            _ => Self::invalid(detail),
        }
    }
}

impl From<SendError> for Problem {
    fn from(error: SendError) -> Self {
        let detail = with_sources(&error);
        match error {
            SendError::Refused(refused) => refused.into(),
            SendError::Dropped {
                reason,
                may_be_delivered,
                source,
            } => {
                let fate = source.map(|source| source.fate);
                let is_never = fate.is_some_and(Fate::is_never);
                let (status, code) = match reason {
                    DropReason::Refused => (StatusCode::BAD_REQUEST, "refused"),
                    _ if is_never => (StatusCode::BAD_REQUEST, "refused"),
                    reason => (StatusCode::SERVICE_UNAVAILABLE, reason.name()),
                };
                Self {
                    may_be_delivered,
                    ..Self::new(status, code, detail)
                }
            }
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail),
        }
    }
}

impl Handler for Collector {
    fn takes(&self, method: &Method, path: &str) -> Result<(), Box<HandlerAnswer>> {
        let problem = if path != "/" {
            let detail = "messages go to /, by POST; beside it are /healthz, /readyz and /metrics";
            Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
        } else if *method != Method::POST {
            let detail = "a message is sent by POST";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        } else {
            return Ok(());
        };
        Err(Box::new(problem.into()))
    }

    fn answer(
        &self,
        request: HandlerRequest,
    ) -> Pin<Box<dyn Future<Output = HandlerAnswer> + Send + '_>> {
        Box::pin(async move {
            if let Some(sender) = &request.sender
                && !sender.may(Verb::Send, &self.queue)
            {
                let detail = format!("the access key may not send to {}", self.queue);
                return Problem::new(StatusCode::FORBIDDEN, "access_denied", detail).into();
            }
            if is_lines(&request.headers) {
                return self.many(&request).await;
            }
            match self.one(&request).await {
                Ok(answer) => {
                    let (status, json) = reached(answer);
                    page(status, "application/json", &json)
                }
                Err(problem) => problem.into(),
            }
        })
    }

    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async { ready(&self.producer) })
    }

    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        let name = self.producer.name();
        let figures = self.producer.figures().prometheus(name.as_str());
        Box::pin(async move { figures })
    }
}

/// Why nothing can be forwarded, if that is so.
pub(super) fn ready(producer: &Producer<Target>) -> Result<(), String> {
    if let Some(why) = producer.fenced() {
        return Err(with_sources(&why));
    }
    match producer.figures().spool_failed {
        true => Err("the spool has failed: start the command again".to_owned()),
        false => Ok(()),
    }
}

impl Collector {
    async fn one(&self, request: &HandlerRequest) -> Result<Answer<MessageId>, Problem> {
        let message = of_request(request).map_err(Problem::invalid)?;
        Ok(self.start(message).await?.await?)
    }

    async fn start(&self, message: Message) -> Result<Ticket<MessageId>, Problem> {
        Ok(self.producer.send(message).start().await?)
    }

    /// Takes all lines in their order, up to the first that is refused: what is behind it must not overtake it.
    async fn many(&self, request: &HandlerRequest) -> HandlerAnswer {
        let messages = match of_lines(request) {
            Ok(messages) => messages,
            Err(problem) => return problem.into(),
        };
        let mut results: Vec<Result<Ticket<MessageId>, Problem>> =
            Vec::with_capacity(messages.len());
        let count = messages.len();
        for message in messages {
            let result = self.start(message).await;
            let refused = result.is_err();
            results.push(result);
            if refused {
                break;
            }
        }
        results.resize_with(count, || {
            let detail = "it was not taken, because one before it was refused";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(Problem::new(status, "not_taken", detail))
        });
        let (mut all, mut wrong) = (StatusCode::OK, None);
        let mut told = Vec::with_capacity(count);
        for result in results {
            let result = match result {
                Ok(ticket) => ticket.await.map_err(Problem::from),
                Err(problem) => Err(problem),
            };
            let (status, json) = match result {
                Ok(answer) => reached(answer),
                Err(problem) => {
                    let json = json!({"outcome": "refused", "problem": problem.json()});
                    (problem.status, json)
                }
            };
            told.push(json);
            match status.is_success() {
                true => all = all.max(status),
                false => drop(wrong.get_or_insert(status)),
            }
        }
        // The first that is wrong says what to do about the request.
        let status = wrong.unwrap_or(all);
        page(status, "application/json", &json!({ "results": told }))
    }
}

/// Status and words of what a send has come to.
fn reached(answer: Answer<MessageId>) -> (StatusCode, Value) {
    match answer {
        Answer::Accepted => (StatusCode::ACCEPTED, json!({"outcome": "accepted"})),
        Answer::Durable => (StatusCode::ACCEPTED, json!({"outcome": "durable"})),
        Answer::Delivered(accepted) => {
            let mut json = json!({"outcome": "delivered", "duplicate": accepted.duplicate});
            if let Some(id) = accepted.id {
                json["id"] = id.to_string().into();
            }
            if let Some(sequence) = accepted.sequence {
                json["sequence"] = sequence.0.into();
            }
            (StatusCode::OK, json)
        }
    }
}

fn page(status: StatusCode, kind: &'static str, json: &Value) -> HandlerAnswer {
    let mut headers = HeaderMap::with_capacity(3);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Browsers must not guess another type for an answer.
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert("x-content-type-options", nosniff);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY));
    }
    HandlerAnswer {
        status,
        headers,
        body: format!("{json}\n").into(),
    }
}

fn is_lines(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next());
    essence.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/x-ndjson"))
}

/// The only value of a header.
fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(format!("the header {name} comes twice"));
    }
    let text = value
        .map(|value| str::from_utf8(value.as_bytes()))
        .transpose();
    text.map_err(|_| format!("the header {name} is not UTF-8"))
}

/// The message that a request is.
fn of_request(request: &HandlerRequest) -> Result<Message, String> {
    let headers = &request.headers;
    let text = |name| header(headers, name).map(|text| text.map(Into::into));
    let message = Message {
        key: message::named("key", header(headers, &KEY)?)?,
        group: message::named("group", header(headers, &GROUP)?)?,
        unique_id: message::unique_id(header(headers, &ID)?)?,
        content_type: text(&CONTENT_TYPE)?,
        trace_context: text(&TRACE)?,
        // Of its own: what it came in is larger.
        ..Message::new(Bytes::copy_from_slice(&request.body))
    };
    check_message(&message)?;
    Ok(message)
}

/// The messages of a request of many, if all lines are right.
fn of_lines(request: &HandlerRequest) -> Result<Vec<Message>, Problem> {
    for name in [KEY, GROUP, ID] {
        if request.headers.contains_key(&name) {
            let detail = format!("each line has its own: leave the header {name} out");
            return Err(Problem::invalid(detail));
        }
    }
    let now = message::now();
    let lines = request.body.split(|&byte| byte == b'\n').enumerate();
    let mut messages = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        if messages.len() == LINES_MAX {
            let detail = format!("a request has {LINES_MAX} lines at most");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(Problem::new(status, "too_many_lines", detail));
        }
        let message = lines::parse(line, &client::Message::default())
            .and_then(|message| message::of_line(message, now));
        let place = |why| Problem::invalid(format!("line {}: {why}", at + 1));
        messages.push(message.map_err(place)?);
    }
    match messages.is_empty() {
        true => Err(Problem::invalid("there is no line in the body")),
        false => Ok(messages),
    }
}

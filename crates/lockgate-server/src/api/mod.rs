//! The JSON admin API under `/api/v1`: everything that SQS cannot express, in Lockgate's own words.
//!
//! The seam to the `http` module is [`Service::handle`], as it is for the SQS API. Inside, `route`
//! finds the operation of a request, `input` parses the request, an operation (in `actions`) is a
//! function from a typed input to a typed answer (in `shapes`), and `problem` is the form of
//! errors.
//!
//! `openapi.json` describes the API. It is generated from the same types, and a test compares the
//! two.

mod actions;
mod figures;
mod follow;
pub(crate) mod fuzzing;
mod input;
mod problem;
mod route;
mod shapes;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use lockgate_core::{
    ExchangeName, HolderName, Key, LedgerName, QueueName, RecordName, WallTime,
    coordination::{Fence, FenceMark},
};
use lockgate_engine::{Engine, QueueEntry};
use lockgate_machine::HoldTarget;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::Mutex;

pub(crate) use self::{
    follow::{Follow, is_follow},
    problem::{Code, Problem},
    route::{PREFIX, is_append},
};
use self::{
    input::{body, query},
    route::{Found, Operation},
    shapes::Nothing,
};
use crate::{
    auth::{AccessKey, AccessKeys, Verb},
    http::{
        drain::Drain,
        progress::Hangup,
        response::{KeepGuard, Response},
    },
    receipt::Receipts,
};

/// An instant, for people, as everywhere in the API.
pub(crate) fn shown(at: WallTime) -> String {
    shapes::Instant(at).to_string()
}

/// The header with the fence of a request: `ELECTION:EPOCH`, percent-encoded.
pub(crate) const FENCE: &str = "x-lockgate-fence";

/// The largest body of an append to a ledger, if the server's limit is not higher: 8 MiB of payloads in base64, and all
/// the ids that an append may have.
pub(crate) const APPEND_BYTES_MAX: usize = 32 << 20;

/// The description of the API, for programs.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// All operations over one engine.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    engine: Engine,
    drain: Drain,
    started: WallTime,
    receipts: Receipts,
    /// Held while a queue's settings or tags are read, changed and written back; shared with the
    /// SQS API.
    changes: Arc<Mutex<()>>,
    /// The largest body of a request that is let in.
    body_bytes_max: usize,
    /// Those of callers now, where there is authentication.
    keys: Option<AccessKeys>,
}

/// A request to the API. Its body is complete and within the server's limit.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a Method,
    /// Not decoded.
    pub(crate) path: &'a str,
    /// Not decoded; without the question mark.
    pub(crate) query: Option<&'a str>,
    /// The header `Content-Type`, as sent.
    pub(crate) content_type: Option<&'a str>,
    pub(crate) body: Bytes,
    /// The header `x-lockgate-fence`, as sent.
    pub(crate) fence: Option<&'a str>,
    /// The holder of the leases that the request takes, unless the request names one.
    pub(crate) holder: HolderName,
    /// The caller; `None` without authentication.
    pub(crate) identity: Option<Arc<AccessKey>>,
    /// Signals that the client has ended its side: then the request stops waiting for messages.
    pub(crate) hangup: Hangup,
}

/// An answer: a status, a body, and the guard that keeps the leases in it.
struct Answer {
    status: StatusCode,
    body: Vec<u8>,
    on_sent: Option<KeepGuard>,
}

impl Service {
    /// `drain`: once it has begun, waiting receives return empty at once and new ones do not wait.
    pub(crate) fn new(
        engine: Engine,
        drain: Drain,
        changes: Arc<Mutex<()>>,
        body_bytes_max: usize,
        keys: Option<AccessKeys>,
    ) -> Self {
        Self {
            receipts: Receipts::new(engine.term().shard, &engine.secret()),
            started: engine.now().wall,
            engine,
            drain,
            changes,
            body_bytes_max,
            keys,
        }
    }

    /// Answers one request. Dropping the future abandons it and gives back the leases it may have
    /// taken.
    pub(crate) async fn handle(&self, request: Request<'_>) -> Response {
        let answer = match request.fence {
            None => self.answer(&request).await,
            Some(fence) => match self.fenced(&request, fence) {
                Ok(fenced) => fenced.answer(&request).await,
                Err(problem) => Err(problem),
            },
        };
        match answer {
            Ok(answer) => answer.response(),
            Err(problem) => {
                tracing::debug!(
                    method = %request.method,
                    code = problem.code.name(),
                    detail = problem.detail,
                    holder = request.holder.as_str(),
                    "refused a request"
                );
                let mut response = problem.response();
                if problem.code == Code::MethodNotAllowed
                    && let Ok(allowed) = HeaderValue::try_from(route::allowed(request.path))
                {
                    response.headers.insert(ALLOW, allowed);
                }
                response
            }
        }
    }

    /// The same operations for the leader of a term.
    fn fenced(&self, request: &Request<'_>, fence: &str) -> Result<Self, Problem> {
        if fence.contains([',', ' ']) {
            let what = "write one fence, with commas and spaces percent-encoded";
            return Err(Problem::invalid(FENCE, what));
        }
        let decoded = percent_decode_str(fence).decode_utf8_lossy();
        let mark = decoded.parse::<FenceMark>();
        let mark = mark.map_err(|error| Problem::invalid(FENCE, error))?;
        let guard = mark
            .guard()
            .map_err(|error| Problem::invalid(FENCE, error))?;
        // It may be raised, and then others are refused.
        actions::record_of(request, Verb::Manage, guard.as_str())?;
        let fence = Fence::new(mark.election, mark.epoch);
        Ok(Self {
            engine: self.engine.fenced(&fence),
            ..self.clone()
        })
    }

    async fn answer(&self, request: &Request<'_>) -> Result<Answer, Problem> {
        let Found { operation, parts } = route::find(request.method, request.path)?;
        input::check_content_type(request.method, request.content_type)?;
        let given = &*request.body;
        let part = |at: usize| parts.get(at).map_or("", |part| &**part);
        if !takes_parameters(operation) {
            query::<Nothing>(request.query)?;
        }
        if *request.method == Method::DELETE {
            // What it needs is in the address. A generation in a body would guard nothing.
            let Nothing {} = body(given)?;
        }
        match operation {
            Operation::GetServer => ok(&self.server_info()),
            Operation::ListQueues => ok(&self.list_queues(request, query(request.query)?).await?),
            Operation::CreateQueue => {
                let (queue, existed) = self.create_queue(request, body(given)?).await?;
                let status = if existed {
                    StatusCode::OK
                } else {
                    StatusCode::CREATED
                };
                answer(status, &queue)
            }
            Operation::GetQueue => ok(&self.get_queue(request, part(0)).await?),
            Operation::GetSending => ok(&self.get_sending(request, part(0))?),
            Operation::ChangeQueue => {
                ok(&self.change_queue(request, part(0), body(given)?).await?)
            }
            Operation::DeleteQueue => {
                self.delete_queue(request, part(0)).await?;
                ok(&Nothing {})
            }
            Operation::PurgeQueue => {
                let Nothing {} = body(given)?;
                ok(&self.purge_queue(request, part(0)).await?)
            }
            Operation::PauseQueue | Operation::ResumeQueue => {
                let Nothing {} = body(given)?;
                let paused = operation == Operation::PauseQueue;
                ok(&self.pause_queue(request, part(0), paused).await?)
            }
            Operation::HoldQueue => {
                let what = HoldTarget::Queue;
                ok(&self.hold(request, part(0), what, &body(given)?).await?)
            }
            Operation::HoldKey => {
                let what = HoldTarget::Key(Some(key_or_group(part(1))?));
                ok(&self.hold(request, part(0), what, &body(given)?).await?)
            }
            Operation::HoldNoKey => {
                let what = HoldTarget::Key(None);
                ok(&self.hold(request, part(0), what, &body(given)?).await?)
            }
            Operation::ListKeys => ok(&self
                .list_keys(request, part(0), query(request.query)?)
                .await?),
            Operation::ExplainKey => {
                let key = Some(key_or_group(part(1))?);
                ok(&self.explain_key(request, part(0), key).await?)
            }
            Operation::ExplainNoKey => ok(&self.explain_key(request, part(0), None).await?),
            Operation::ParkKey | Operation::ResumeKey => {
                let Nothing {} = body(given)?;
                let park = operation == Operation::ParkKey;
                ok(&self.park_key(request, part(0), part(1), park).await?)
            }
            Operation::DropKey => {
                let Nothing {} = body(given)?;
                ok(&self.drop_key(request, part(0), part(1)).await?)
            }
            Operation::ListKeyStates => ok(&self
                .list_key_states(request, part(0), query(request.query)?)
                .await?),
            Operation::GetKeyState => ok(&self.get_key_state(request, part(0), part(1)).await?),
            Operation::PutKeyState => ok(&self
                .put_key_state(request, part(0), part(1), body(given)?)
                .await?),
            Operation::DropKeyState => {
                let input = query(request.query)?;
                self.drop_key_state(request, part(0), part(1), &input)
                    .await?;
                ok(&Nothing {})
            }
            Operation::SendMessages => {
                ok(&self.send_messages(request, part(0), body(given)?).await?)
            }
            Operation::PeekMessages => ok(&self
                .peek_messages(request, part(0), query(request.query)?)
                .await?),
            Operation::PeekMessage => ok(&self.peek_message(request, part(0), part(1)).await?),
            Operation::CancelMessage => {
                self.cancel_message(request, part(0), part(1)).await?;
                ok(&Nothing {})
            }
            Operation::RescheduleMessage => ok(&self
                .reschedule_message(request, part(0), part(1), body(given)?)
                .await?),
            Operation::ReceiveMessages => {
                let (messages, on_sent) = self
                    .receive_messages(request, part(0), body(given)?)
                    .await?;
                Ok(Answer {
                    on_sent,
                    ..ok(&messages)?
                })
            }
            Operation::SettleMessages => {
                ok(&self.settle_messages(request, part(0), body(given)?).await?)
            }
            Operation::ListProducers => ok(&self
                .list_producers(request, part(0), query(request.query)?)
                .await?),
            Operation::OpenProducer => {
                let Nothing {} = body(given)?;
                ok(&self.open_producer(request, part(0), part(1)).await?)
            }
            Operation::ForgetProducer => {
                self.forget_producer(request, part(0), part(1)).await?;
                ok(&Nothing {})
            }
            Operation::ListDeadLetterSources => {
                let input = query(request.query)?;
                ok(&self.list_dead_letter_sources(request, part(0), input)?)
            }
            Operation::ListDeadLetters => ok(&self
                .list_dead_letters(request, part(0), query(request.query)?)
                .await?),
            Operation::RedriveDeadLetters => ok(&self
                .redrive_dead_letters(request, part(0), body(given)?)
                .await?),
            Operation::Transact => ok(&self.transact(request, body(given)?).await?),
            Operation::ListRecords => {
                ok(&self.list_records(request, query(request.query)?).await?)
            }
            Operation::GetRecord => ok(&self
                .get_record(request, part(0), &query(request.query)?)
                .await?),
            Operation::PutRecord => ok(&self.put_record(request, part(0), body(given)?).await?),
            Operation::DeleteRecord => {
                let input = query(request.query)?;
                self.delete_record(request, part(0), &input).await?;
                ok(&Nothing {})
            }
            Operation::LeaseRecord => {
                ok(&self.lease_record(request, part(0), body(given)?).await?)
            }
            Operation::ExtendRecord => {
                self.extend_record(request, part(0), &body(given)?).await?;
                ok(&Nothing {})
            }
            Operation::ReleaseRecord => {
                self.release_record(request, part(0), &body(given)?).await?;
                ok(&Nothing {})
            }
            Operation::ListLedgers => {
                ok(&self.list_ledgers(request, query(request.query)?).await?)
            }
            Operation::CreateLedger => {
                let (ledger, existed) = self.create_ledger(request, body(given)?).await?;
                let status = if existed {
                    StatusCode::OK
                } else {
                    StatusCode::CREATED
                };
                answer(status, &ledger)
            }
            Operation::GetLedger => ok(&self.get_ledger(request, part(0)).await?),
            Operation::DeleteLedger => {
                self.delete_ledger(request, part(0)).await?;
                ok(&Nothing {})
            }
            Operation::AppendEvents => {
                ok(&self.append_events(request, part(0), body(given)?).await?)
            }
            Operation::ReadEvents => {
                let input = query(request.query)?;
                ok(&self.read_events(request, part(0), &input).await?)
            }
            Operation::FindEvent => ok(&self.find_event(request, part(0), part(1)).await?),
            Operation::ListReaders => ok(&self.list_readers(request, part(0)).await?),
            Operation::MoveReader => {
                let input = Some(body(given)?);
                ok(&self.move_reader(request, part(0), part(1), input).await?)
            }
            Operation::ForgetReader => {
                ok(&self.move_reader(request, part(0), part(1), None).await?)
            }
            Operation::SealLedger => ok(&self.seal_ledger(request, part(0), &body(given)?).await?),
            Operation::TrimLedger => ok(&self.trim_ledger(request, part(0), &body(given)?).await?),
            Operation::ListExchanges => {
                ok(&self.list_exchanges(request, query(request.query)?).await?)
            }
            Operation::CreateExchange => {
                let (exchange, existed) = self.create_exchange(request, body(given)?).await?;
                let status = if existed {
                    StatusCode::OK
                } else {
                    StatusCode::CREATED
                };
                answer(status, &exchange)
            }
            Operation::GetExchange => ok(&self.get_exchange(request, part(0)).await?),
            Operation::ChangeExchange => {
                ok(&self.change_exchange(request, part(0), body(given)?).await?)
            }
            Operation::DeleteExchange => {
                let input = query(request.query)?;
                self.delete_exchange(request, part(0), &input).await?;
                ok(&Nothing {})
            }
            Operation::ListSchedules => {
                ok(&self.list_schedules(request, query(request.query)?).await?)
            }
            Operation::PutSchedule => {
                let put = self.put_schedule(request, part(0), body(given)?).await?;
                let status = match put.created {
                    true => StatusCode::CREATED,
                    false => StatusCode::OK,
                };
                answer(status, &put)
            }
            Operation::GetSchedule => ok(&self.get_schedule(request, part(0)).await?),
            Operation::DeleteSchedule => {
                let input = query(request.query)?;
                self.delete_schedule(request, part(0), &input).await?;
                ok(&Nothing {})
            }
            Operation::RunSchedule => {
                ok(&self.run_schedule(request, part(0), &body(given)?).await?)
            }
            Operation::PauseSchedule => {
                ok(&self.pause_schedule(request, part(0), &body(given)?).await?)
            }
            Operation::ResumeSchedule => ok(&self
                .resume_schedule(request, part(0), &body(given)?)
                .await?),
            Operation::MoveSchedule => {
                ok(&self.move_schedule(request, part(0), &body(given)?).await?)
            }
            Operation::ListBindings => ok(&self
                .list_bindings(request, part(0), query(request.query)?)
                .await?),
            Operation::Bind => ok(&self.bind(request, part(0), body(given)?).await?),
            Operation::Unbind => ok(&self.unbind(request, part(0), body(given)?).await?),
            Operation::PublishMessages => ok(&self
                .publish_messages(request, part(0), body(given)?)
                .await?),
            Operation::ExplainRoute => {
                ok(&self.explain_route(request, part(0), body(given)?).await?)
            }
        }
    }

    /// The queue with that name, if the caller may do `verb` with it. A caller that may not even
    /// read a queue gets the error for a missing queue.
    fn queue(
        &self,
        request: &Request<'_>,
        verb: Verb,
        name: &str,
    ) -> Result<Arc<QueueEntry>, Problem> {
        let found = QueueName::new(name)
            .ok()
            .and_then(|name| self.engine.directory().get(&name));
        let entry = found.ok_or_else(|| Problem::queue_not_found(name))?;
        if request.may(verb, &entry.name) || request.may(Verb::Read, &entry.name) {
            request.check(verb, &entry.name)?;
            Ok(entry)
        } else {
            Err(Problem::queue_not_found(name))
        }
    }
}

impl Request<'_> {
    /// Whether the caller may do `verb` with the queue.
    fn may(&self, verb: Verb, queue: &QueueName) -> bool {
        self.identity
            .as_ref()
            .is_none_or(|key| key.may(verb, queue))
    }

    fn check(&self, verb: Verb, queue: &QueueName) -> Result<(), Problem> {
        if self.may(verb, queue) {
            return Ok(());
        }
        Err(self.denied(verb, format_args!("queue {queue}")))
    }

    /// Whether the caller may do `verb` with the record.
    fn may_with_record(&self, verb: Verb, record: &RecordName) -> bool {
        let key = self.identity.as_ref();
        key.is_none_or(|key| key.may_with_record(verb, record))
    }

    /// Whether the caller may do `verb` with the ledger.
    fn may_with_ledger(&self, verb: Verb, ledger: &LedgerName) -> bool {
        let key = self.identity.as_ref();
        key.is_none_or(|key| key.may_with_ledger(verb, ledger))
    }

    /// Whether the caller may do `verb` with the exchange.
    fn may_with_exchange(&self, verb: Verb, exchange: &ExchangeName) -> bool {
        let key = self.identity.as_ref();
        key.is_none_or(|key| key.may_with_exchange(verb, exchange))
    }

    fn denied(&self, verb: Verb, what: fmt::Arguments<'_>) -> Problem {
        let id = self.identity.as_ref().map_or("", |key| &key.id);
        let verb = verb.as_str();
        Problem::new(
            Code::AccessDenied,
            format!("the access key {id} has no grant of {verb} on {what}"),
        )
    }
}

fn key_or_group(text: &str) -> Result<Key, Problem> {
    Key::new(text).map_err(|error| Problem::invalid("key", error))
}

fn takes_parameters(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ListQueues
            | Operation::ListKeys
            | Operation::ListKeyStates
            | Operation::DropKeyState
            | Operation::PeekMessages
            | Operation::ListProducers
            | Operation::ListDeadLetterSources
            | Operation::ListDeadLetters
            | Operation::ListRecords
            | Operation::GetRecord
            | Operation::DeleteRecord
            | Operation::ListLedgers
            | Operation::ReadEvents
            | Operation::ListExchanges
            | Operation::DeleteExchange
            | Operation::ListSchedules
            | Operation::DeleteSchedule
            | Operation::ListBindings
    )
}

fn ok(body: &impl Serialize) -> Result<Answer, Problem> {
    answer(StatusCode::OK, body)
}

fn answer(status: StatusCode, body: &impl Serialize) -> Result<Answer, Problem> {
    let body = serde_json::to_vec(body)
        .map_err(|error| Problem::new(Code::UnknownOutcome, error.to_string()))?;
    Ok(Answer {
        status,
        body,
        on_sent: None,
    })
}

impl Answer {
    fn response(self) -> Response {
        let mut headers = HeaderMap::with_capacity(3);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Response {
            status: self.status,
            headers,
            body: self.body.into(),
            action: None,
            on_sent: self.on_sent,
        }
    }
}

//! The fuzz target for requests to the admin API: routes and parses as much as needs no queue.

use hyper::Method;
use lockgate_core::ledger::LedgerPage;

use super::{
    Problem,
    actions::{event_view, filter_of, head_view, pattern_of},
    follow,
    input::{body, query},
    route::{self, Operation},
    shapes::{
        AppendEvents, Bind, ChangeExchange, ChangeQueue, CreateExchange, CreateLedger, CreateQueue,
        DeleteExchange, DeleteRecord, DeleteSchedule, DropKeyState, EventPage, ExplainRoute,
        ExtendRecord, FollowEvents, Hold, LeaseRecord, ListBindings, ListDeadLetterSources,
        ListDeadLetters, ListExchanges, ListKeyStates, ListKeys, ListLedgers, ListMessages,
        ListProducers, ListQueues, ListRecords, ListSchedules, MoveReader, MoveSchedule, Nothing,
        OfGeneration, PublishMessages, PutKeyState, PutRecord, PutSchedule, ReadEvents,
        ReceiveMessages, Redrive, ReleaseRecord, Reschedule, SealLedger, SendMessages,
        SettleMessages, Transaction, TrimLedger, Unbind, WatchRecord,
    },
};

/// A page of events as a client gets it.
#[must_use]
pub fn page(page: &LedgerPage) -> Vec<u8> {
    let shown = EventPage {
        events: page.events.iter().map(event_view).collect(),
        head: head_view(&page.head),
    };
    serde_json::to_vec(&shown).unwrap_or_default()
}

/// Reads as much of a binding as needs no exchange.
fn binding(input: Bind<'_>) -> Result<(), Problem> {
    if let Some(policy) = input.filter {
        filter_of(policy, input.filter_scope.unwrap_or_default())?;
    }
    drop(pattern_of(input.routing_key, input.topic, input.headers)?);
    Ok(())
}

/// Input: a method, a space, a path with its parameters, a line feed, a body.
pub fn request(bytes: &[u8]) -> Result<(), String> {
    let at = bytes.iter().position(|&byte| byte == b'\n');
    let at = at.ok_or("there is no line feed")?;
    let line = String::from_utf8_lossy(&bytes[..at]);
    let (method, target) = line.split_once(' ').ok_or("there is no space")?;
    let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    read(&method, path, query, &bytes[at + 1..]).map_err(|problem| {
        // The error's text contains parts of the request.
        let detail = problem.detail.clone();
        assert!(
            !problem.response().body.is_empty(),
            "a problem without a body"
        );
        detail
    })
}

fn read(method: &Method, path: &str, given: Option<&str>, bytes: &[u8]) -> Result<(), Problem> {
    if let Some(ledger) = follow::ledger_in(path) {
        route::decode(ledger)?;
        query::<FollowEvents>(given)?;
        return Ok(());
    }
    let found = route::find(method, path)?;
    match found.operation {
        Operation::ListQueues => drop(query::<ListQueues>(given)?),
        Operation::ListKeys => drop(query::<ListKeys>(given)?),
        Operation::PeekMessages => drop(query::<ListMessages>(given)?),
        Operation::ListProducers => drop(query::<ListProducers>(given)?),
        Operation::ListDeadLetterSources => drop(query::<ListDeadLetterSources>(given)?),
        Operation::ListDeadLetters => drop(query::<ListDeadLetters>(given)?),
        Operation::ListKeyStates => drop(query::<ListKeyStates>(given)?),
        Operation::DropKeyState => {
            query::<DropKeyState>(given)?;
        }
        Operation::PutKeyState => drop(body::<PutKeyState>(bytes)?),
        Operation::CreateQueue => drop(body::<CreateQueue>(bytes)?),
        Operation::ChangeQueue => drop(body::<ChangeQueue>(bytes)?),
        Operation::SendMessages => drop(body::<SendMessages<'_>>(bytes)?),
        Operation::RescheduleMessage => {
            body::<Reschedule>(bytes)?;
        }
        Operation::HoldQueue | Operation::HoldKey | Operation::HoldNoKey => {
            body::<Hold>(bytes)?;
        }
        Operation::ReceiveMessages => drop(body::<ReceiveMessages>(bytes)?),
        Operation::SettleMessages => drop(body::<SettleMessages<'_>>(bytes)?),
        Operation::RedriveDeadLetters => drop(body::<Redrive>(bytes)?),
        Operation::Transact => drop(body::<Transaction<'_>>(bytes)?),
        Operation::ListRecords => drop(query::<ListRecords>(given)?),
        Operation::GetRecord => {
            query::<WatchRecord>(given)?;
        }
        Operation::PutRecord => drop(body::<PutRecord>(bytes)?),
        Operation::DeleteRecord => {
            query::<DeleteRecord>(given)?;
        }
        Operation::LeaseRecord => drop(body::<LeaseRecord>(bytes)?),
        Operation::ExtendRecord => {
            body::<ExtendRecord>(bytes)?;
        }
        Operation::ReleaseRecord => {
            body::<ReleaseRecord>(bytes)?;
        }
        Operation::ListLedgers => drop(query::<ListLedgers>(given)?),
        Operation::CreateLedger => drop(body::<CreateLedger>(bytes)?),
        Operation::AppendEvents => drop(body::<AppendEvents<'_>>(bytes)?),
        Operation::ReadEvents => {
            query::<ReadEvents>(given)?;
        }
        Operation::MoveReader => {
            body::<MoveReader>(bytes)?;
        }
        Operation::SealLedger => {
            body::<SealLedger>(bytes)?;
        }
        Operation::TrimLedger => {
            body::<TrimLedger>(bytes)?;
        }
        Operation::ListExchanges => drop(query::<ListExchanges>(given)?),
        Operation::CreateExchange => drop(body::<CreateExchange>(bytes)?),
        Operation::ChangeExchange => drop(body::<ChangeExchange>(bytes)?),
        Operation::DeleteExchange => {
            query::<DeleteExchange>(given)?;
        }
        Operation::ListSchedules => drop(query::<ListSchedules>(given)?),
        Operation::PutSchedule => drop(body::<PutSchedule>(bytes)?),
        Operation::DeleteSchedule => {
            query::<DeleteSchedule>(given)?;
        }
        Operation::RunSchedule | Operation::PauseSchedule | Operation::ResumeSchedule => {
            body::<OfGeneration>(bytes)?;
        }
        Operation::MoveSchedule => {
            body::<MoveSchedule>(bytes)?;
        }
        Operation::ListBindings => drop(query::<ListBindings>(given)?),
        Operation::Bind => binding(body::<Bind<'_>>(bytes)?)?,
        Operation::Unbind => drop(body::<Unbind>(bytes)?),
        Operation::PublishMessages => drop(body::<PublishMessages<'_>>(bytes)?),
        Operation::ExplainRoute => drop(body::<ExplainRoute>(bytes)?),
        Operation::GetServer
        | Operation::GetQueue
        | Operation::GetSending
        | Operation::DeleteQueue
        | Operation::PurgeQueue
        | Operation::PauseQueue
        | Operation::ResumeQueue
        | Operation::ExplainKey
        | Operation::ExplainNoKey
        | Operation::GetKeyState
        | Operation::ParkKey
        | Operation::ResumeKey
        | Operation::DropKey
        | Operation::PeekMessage
        | Operation::OpenProducer
        | Operation::ForgetProducer
        | Operation::CancelMessage
        | Operation::GetLedger
        | Operation::DeleteLedger
        | Operation::FindEvent
        | Operation::ListReaders
        | Operation::GetExchange
        | Operation::GetSchedule
        | Operation::ForgetReader => {
            query::<Nothing>(given)?;
            let Nothing {} = body(bytes)?;
        }
    }
    Ok(())
}

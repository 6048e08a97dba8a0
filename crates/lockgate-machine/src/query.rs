//! The queries of a machine.

use bytes::Bytes;
use lockgate_core::{
    ExchangeName, Header, Key, KeyState, LedgerName, ListRecords, MessageId, ProducerName,
    QueueName, Record, RecordName, RecordPage, RoutingKey, ScheduleName, Sequence, UniqueId,
    ledger::SequenceId,
};

use crate::{
    BindingsPage, EventPlaces, ExchangeDescription, ExchangesPage, IdAnswers, KeyPage,
    KeyStatePage, KeyStatus, LedgerDescription, LedgersPage, MessagePage, ProducerPage, QueryReply,
    QueueDescription, QueuePage, RouteExplanation, ScheduleDescription, SchedulesPage,
};

/// A query; it changes nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Query {
    DescribeQueue(DescribeQueue),
    ListQueues(ListQueues),
    ListMessages(ListMessages),
    FindMessage(FindMessage),
    ListKeys(ListKeys),
    ExplainKey(ExplainKey),
    GetKeyState(GetKeyState),
    ListKeyStates(ListKeyStates),
    GetRecord(GetRecord),
    ListRecords(ListRecords),
    ListProducers(ListProducers),
    DescribeLedger(DescribeLedger),
    ListLedgers(ListLedgers),
    LocateEvents(LocateEvents),
    FindEvent(FindEvent),
    FindLookedUp(FindLookedUp),
    DescribeExchange(DescribeExchange),
    ListExchanges(ListExchanges),
    ListBindings(ListBindings),
    ExplainRoute(Box<ExplainRoute>),
    DescribeSchedule(DescribeSchedule),
    ListSchedules(ListSchedules),
}

impl Query {
    /// The most messages, keys or states of keys that a page may have.
    pub const LIMIT_MAX: usize = 1_000;
}

/// A query with a reply type. [`Query`] itself is one too, with a [`QueryReply`] of any kind.
pub trait TypedQuery: Into<Query> {
    type Reply;

    /// The reply to this query; `None` if `reply` belongs to another one.
    fn reply(reply: QueryReply) -> Option<Self::Reply>;
}

macro_rules! queries {
    ($($query:ident -> $reply:ty { $pattern:pat => $answer:expr })+) => {$(
        impl From<$query> for Query {
            fn from(query: $query) -> Self {
                Self::$query(query)
            }
        }

        impl TypedQuery for $query {
            type Reply = $reply;

            fn reply(reply: QueryReply) -> Option<$reply> {
                match reply {
                    $pattern => Some($answer),
                    _ => None,
                }
            }
        }
    )+};
}

queries! {
    DescribeQueue -> QueueDescription { QueryReply::Queue(description) => *description }
    ListQueues -> QueuePage { QueryReply::Queues(page) => page }
    ListMessages -> MessagePage { QueryReply::Messages(page) => page }
    FindMessage -> MessagePage { QueryReply::Messages(page) => page }
    ListKeys -> KeyPage { QueryReply::Keys(page) => page }
    ExplainKey -> KeyStatus { QueryReply::Key(status) => status }
    GetKeyState -> Option<KeyState> { QueryReply::KeyState(state) => state.map(|state| *state) }
    ListKeyStates -> KeyStatePage { QueryReply::KeyStates(page) => page }
    GetRecord -> Option<Record> { QueryReply::Record(record) => record.map(|record| *record) }
    ListRecords -> RecordPage { QueryReply::Records(page) => page }
    ListProducers -> ProducerPage { QueryReply::Producers(page) => page }
    DescribeLedger -> LedgerDescription { QueryReply::Ledger(description) => *description }
    ListLedgers -> LedgersPage { QueryReply::Ledgers(page) => page }
    LocateEvents -> EventPlaces { QueryReply::EventPlaces(places) => *places }
    FindEvent -> Option<SequenceId> { QueryReply::Event(place) => place }
    DescribeExchange -> ExchangeDescription { QueryReply::Exchange(description) => *description }
    ListExchanges -> ExchangesPage { QueryReply::Exchanges(page) => page }
    ListBindings -> BindingsPage { QueryReply::Bindings(page) => page }
    DescribeSchedule -> ScheduleDescription { QueryReply::Schedule(schedule) => *schedule }
    ListSchedules -> SchedulesPage { QueryReply::Schedules(page) => page }
}

impl From<ExplainRoute> for Query {
    fn from(query: ExplainRoute) -> Self {
        Self::ExplainRoute(Box::new(query))
    }
}

impl TypedQuery for ExplainRoute {
    type Reply = RouteExplanation;

    fn reply(reply: QueryReply) -> Option<RouteExplanation> {
        match reply {
            QueryReply::Route(route) => Some(*route),
            _ => None,
        }
    }
}

impl TypedQuery for Query {
    type Reply = QueryReply;

    fn reply(reply: QueryReply) -> Option<QueryReply> {
        Some(reply)
    }
}

/// One record, if there is one of that name.
#[derive(Clone, Debug)]
pub struct GetRecord {
    pub name: RecordName,
}

/// Everything about one queue.
#[derive(Clone, Debug)]
pub struct DescribeQueue {
    pub queue: QueueName,
}

/// Queues by name, in order.
#[derive(Clone, Debug)]
pub struct ListQueues {
    /// Only names that start with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<QueueName>,
    pub limit: usize,
}

/// Messages of a queue, or of one of its keys, in the order of their arrival; those that are not
/// due yet come last. Leases nothing. A page examines a bounded number of messages. It may be
/// shorter than asked for, or empty, and still not be the last.
#[derive(Clone, Debug)]
pub struct ListMessages {
    pub queue: QueueName,
    /// Only messages of this key or group.
    pub key: Option<Key>,
    /// Only messages behind this one: the end of the previous page.
    pub after: Option<Sequence>,
    /// The most messages, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// One message in any state, as a page.
#[derive(Clone, Debug)]
pub struct FindMessage {
    pub queue: QueueName,
    pub message: MessageId,
}

/// Keys of a keyed queue in no order, each with what it waits for. Pages work as those of [`ListMessages`].
#[derive(Clone, Debug)]
pub struct ListKeys {
    pub queue: QueueName,
    /// Only parked keys.
    pub parked: bool,
    /// Only keys behind this one: the end of the previous page.
    pub after: Option<u32>,
    /// The most keys, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// The producers of a queue, by name, in order.
#[derive(Clone, Debug)]
pub struct ListProducers {
    pub queue: QueueName,
    /// Only names after this one.
    pub after: Option<ProducerName>,
    /// The most producers, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// What a key or group waits for.
#[derive(Clone, Debug)]
pub struct ExplainKey {
    pub queue: QueueName,
    /// `None`: the messages without a group of an unkeyed queue, which are one group.
    pub key: Option<Key>,
}

/// The state of a key, if it has one.
#[derive(Clone, Debug)]
pub struct GetKeyState {
    pub queue: QueueName,
    pub key: Key,
}

/// The states of keys of a keyed queue, by key, in order, without their values. Shows also those of keys without messages.
#[derive(Clone, Debug)]
pub struct ListKeyStates {
    pub queue: QueueName,
    /// Only keys that start with this.
    pub prefix: String,
    /// Only keys behind this one: the end of the previous page.
    pub after: Option<Key>,
    /// The most states, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Everything about one ledger.
#[derive(Clone, Debug)]
pub struct DescribeLedger {
    pub ledger: LedgerName,
}

/// Ledgers by name, in order.
#[derive(Clone, Debug)]
pub struct ListLedgers {
    /// Only names that start with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<LedgerName>,
    /// The most ledgers, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Where events of a ledger are in the log, for a reader of [`read_events`](crate::read_events).
#[derive(Clone, Debug)]
pub struct LocateEvents {
    pub ledger: LedgerName,
    /// Events behind this one.
    pub after: SequenceId,
    /// The most events, 1 to [`ReadLedger::LIMIT_MAX`](lockgate_core::ledger::ReadLedger::LIMIT_MAX).
    pub limit: usize,
}

/// The event with that unique id, if there was one.
#[derive(Clone, Debug)]
pub struct FindEvent {
    pub ledger: LedgerName,
    pub unique_id: UniqueId,
}

/// The same, with what the index of unique ids says of the id.
#[derive(Clone, Debug)]
pub struct FindLookedUp {
    pub find: FindEvent,
    pub answers: IdAnswers,
}

/// Everything about one exchange, without its bindings.
#[derive(Clone, Debug)]
pub struct DescribeExchange {
    pub exchange: ExchangeName,
}

/// Exchanges by name, in order.
#[derive(Clone, Debug)]
pub struct ListExchanges {
    /// Only names that start with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<ExchangeName>,
    /// The most exchanges, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Bindings of an exchange, in the order in which they were made. A page may be shorter than asked for, or empty, and still not
/// be the last.
#[derive(Clone, Debug)]
pub struct ListBindings {
    pub exchange: ExchangeName,
    /// Only bindings behind the one with this number: the end of the previous page.
    pub after: Option<u32>,
    /// The most bindings, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Where a message would go that is published to an exchange, and why.
#[derive(Clone, Debug)]
pub struct ExplainRoute {
    pub exchange: ExchangeName,
    pub routing_key: RoutingKey,
    pub headers: Vec<Header>,
    /// `None`: filters on the body do not match, and say that it is not known.
    pub body: Option<Bytes>,
    /// The most bindings to show, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Everything about one schedule.
#[derive(Clone, Debug)]
pub struct DescribeSchedule {
    pub schedule: ScheduleName,
}

/// Schedules by name, in order.
#[derive(Clone, Debug)]
pub struct ListSchedules {
    /// Only names that start with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<ScheduleName>,
    /// The most schedules, 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

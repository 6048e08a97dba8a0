//! Finds the operation that a method and a path name.

use std::borrow::Cow;

use hyper::Method;

use super::{
    input::percent_decode,
    problem::{Code, Problem},
};

/// The prefix of all paths of the API.
pub(crate) const PREFIX: &str = "/api/v1";

/// Declares the operations once: the enum, and the method and path template of each.
macro_rules! operations {
    ($($(#[doc = $doc:literal])* $operation:ident = $method:ident $path:literal;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Operation {
            $($(#[doc = $doc])* $operation,)*
        }

        impl Operation {
            pub(super) const ALL: &[Self] = &[$(Self::$operation,)*];

            pub(super) const fn method(self) -> Method {
                match self { $(Self::$operation => Method::$method,)* }
            }

            /// Its path after [`PREFIX`]; `{name}` stands for one part.
            pub(super) const fn path(self) -> &'static str {
                match self { $(Self::$operation => $path,)* }
            }

            /// Its name and its doc comment, for the description of the API.
            #[cfg(test)]
            pub(super) const fn words(self) -> (&'static str, &'static [&'static str]) {
                match self { $(Self::$operation => (stringify!($operation), &[$($doc),*]),)* }
            }
        }
    };
}

operations! {
    /// Show the server's state.
    GetServer = GET "/server";
    /// List queues.
    ///
    /// In order of their names, with exact counts.
    ListQueues = GET "/queues";
    /// Create a queue.
    ///
    /// With the same settings as an existing queue: 200, and nothing changes. With other settings:
    /// `queue_exists`.
    CreateQueue = POST "/queues";
    /// Show a queue.
    GetQueue = GET "/queues/{queue}";
    /// Change a queue's settings and tags.
    ///
    /// The body is a JSON merge patch (RFC 7396): fields that are not named stay, `null` removes.
    ChangeQueue = PATCH "/queues/{queue}";
    /// Delete a queue and all its messages.
    DeleteQueue = DELETE "/queues/{queue}";
    /// Remove all messages of a queue.
    ///
    /// Includes messages in flight and delayed ones, all at one instant.
    PurgeQueue = POST "/queues/{queue}/purge";
    /// Pause a queue: give no leases.
    ///
    /// Durable. Sends and settles continue. Pausing a paused queue changes nothing.
    PauseQueue = POST "/queues/{queue}/pause";
    /// Resume a paused queue.
    ResumeQueue = POST "/queues/{queue}/resume";
    /// Hold a queue: give no leases for a while.
    ///
    /// Durable; such as what the answer 429 of a partner asks for. What is in flight goes on, and sends and settles
    /// continue. A hold that lasts longer already stays.
    HoldQueue = POST "/queues/{queue}/hold";
    /// List keys.
    ///
    /// In no order, each with what it waits for. The server examines a bounded number of keys for a
    /// page, so a page may be short or empty and still have a next page.
    ListKeys = GET "/queues/{queue}/keys";
    /// Explain what a key waits for.
    ///
    /// Of an unkeyed queue, a group.
    ExplainKey = GET "/queues/{queue}/keys/{key}";
    /// Park a key.
    ///
    /// Durable. The key still accepts messages, and a message in flight can be settled. A key
    /// without messages can be parked too.
    ParkKey = POST "/queues/{queue}/keys/{key}/park";
    /// Resume a parked key.
    ///
    /// The attempts of its first message count from zero again.
    ResumeKey = POST "/queues/{queue}/keys/{key}/resume";
    /// Hold a key: give no leases of it for a while.
    ///
    /// Durable; of an unkeyed queue, a group. Its messages keep their order, and other keys flow. A key without
    /// messages can be held too.
    HoldKey = POST "/queues/{queue}/keys/{key}/hold";
    /// Explain what messages without a key wait for.
    ///
    /// They are one group of an unkeyed queue, for limits and holds too. In the answer `key` is absent.
    ExplainNoKey = GET "/queues/{queue}/no-key";
    /// Hold the messages without a key: give no leases of them for a while.
    ///
    /// As for a key. Of an unkeyed queue only: in a keyed one each message has a key.
    HoldNoKey = POST "/queues/{queue}/no-key/hold";
    /// Drop the messages of a key.
    ///
    /// Includes messages that are not due yet; a message in flight can still be settled. A key
    /// without messages is not parked any more.
    DropKey = POST "/queues/{queue}/keys/{key}/drop";
    /// List the states of keys.
    ///
    /// In the order of the keys, without the values. Shows also those of keys without messages.
    ListKeyStates = GET "/queues/{queue}/key-states";
    /// Show the state of a key.
    ///
    /// It comes with the leases of the key's messages too; a key may have one though it has no messages.
    GetKeyState = GET "/queues/{queue}/keys/{key}/state";
    /// Write the state of a key.
    ///
    /// This raises its version, so a holder that has read an earlier one is refused (`state_conflict`) when it
    /// settles with a new state. If the answer is lost, read the state.
    PutKeyState = PUT "/queues/{queue}/keys/{key}/state";
    /// Drop the state of a key.
    DropKeyState = DELETE "/queues/{queue}/keys/{key}/state";
    /// Say what a sender to a queue must know.
    GetSending = GET "/queues/{queue}/sending";
    /// Send messages.
    ///
    /// Each message is accepted or refused independently; the answer has one result for each, in
    /// order. A message with a unique id can safely be sent again within the queue's window.
    SendMessages = POST "/queues/{queue}/messages";
    /// Peek at messages.
    ///
    /// Leases nothing and changes nothing. Messages come in the order of their arrival; those that
    /// are not due yet come last. The server examines a bounded number of messages for a page, so a
    /// page may be short or empty and still have a next page. Messages that arrive or leave between
    /// two pages may be missing.
    PeekMessages = GET "/queues/{queue}/messages";
    /// Peek at a message.
    PeekMessage = GET "/queues/{queue}/messages/{id}";
    /// Cancel a message.
    ///
    /// The message must not be in flight.
    CancelMessage = DELETE "/queues/{queue}/messages/{id}";
    /// Change the due time of a message.
    ///
    /// The message must not be in flight. It counts as accepted when it is due.
    RescheduleMessage = POST "/queues/{queue}/messages/{id}/reschedule";
    /// Receive messages.
    ///
    /// Each message is leased to the holder until it is settled or the lease ends. If the client is
    /// gone before the first byte of the answer, the messages return and the attempt does not
    /// count.
    ReceiveMessages = POST "/queues/{queue}/receive";
    /// Settle received messages.
    ///
    /// Each is settled independently; the answer has one result for each, in order. One with a `state` happens
    /// together with the write of its key's state, or not at all.
    SettleMessages = POST "/queues/{queue}/settle";
    /// List the producers of a queue.
    ///
    /// In order of their names.
    ListProducers = GET "/queues/{queue}/producers";
    /// Open a queue for a producer.
    ///
    /// Gives it an incarnation above all that it had. From then on sends under earlier ones are refused. If the answer is
    /// lost, repeat the request.
    OpenProducer = POST "/queues/{queue}/producers/{producer}/open";
    /// Forget a producer, and which of its records were accepted.
    ///
    /// Records of it that come again are accepted again, once it has opened the queue anew.
    ForgetProducer = DELETE "/queues/{queue}/producers/{producer}";
    /// List the queues that have this queue as dead-letter queue.
    ListDeadLetterSources = GET "/queues/{queue}/dead-letter-sources";
    /// List dead letters.
    ///
    /// Lists the messages that were moved here, with their origin and the reason. Pages work as
    /// those of all messages.
    ListDeadLetters = GET "/queues/{queue}/dead-letters";
    /// Move dead letters back.
    ///
    /// To the queues they came from, or to one that is named, in the order in which a receive would
    /// get them; with no attempts counted. One request moves up to `max`, and ends after it has passed
    /// over 100,000: while its answer has a `next_page`, repeat it with that as `page`. That ends even
    /// if messages come back meanwhile: those stay, and so does what is in flight or parked.
    RedriveDeadLetters = POST "/queues/{queue}/dead-letters/redrive";
    /// Settle, send and publish in one transaction.
    ///
    /// All or nothing; the settles come first, then the sends. One stale lease or refused message refuses the
    /// whole transaction. If the answer is lost, repeat the request: if it happened, the settled leases
    /// are now stale (`gone`).
    Transact = POST "/transactions";
    /// List records.
    ///
    /// In order of their names, with their values. Those that the caller may not read are left out, so a
    /// page may be short and still have a next page.
    ListRecords = GET "/records";
    /// Show a record, or wait until it changes.
    ///
    /// With `wait_ms`, the answer comes as soon as the record is another than `seen`, or as it is when the
    /// wait is over. Of changes that follow one another quickly, the last is seen.
    GetRecord = GET "/records/{record}";
    /// Write a record.
    ///
    /// Names the version that it replaces, so that of two writers one is refused (`record_conflict`). While
    /// the record is leased, only the holder of the lease can write it, by the lease's epoch. If the answer
    /// is lost, read the record.
    PutRecord = PUT "/records/{record}";
    /// Delete a record, and its lease with it.
    DeleteRecord = DELETE "/records/{record}";
    /// Lease a record.
    ///
    /// One that is not there is made, with an empty value. Its epoch is higher than that of every earlier lease.
    /// The holder of the lease is given it again, so if the answer is lost, repeat the request. The answer has the
    /// record's value.
    LeaseRecord = POST "/records/{record}/lease";
    /// Let a lease last longer, or end earlier.
    ExtendRecord = POST "/records/{record}/extend";
    /// End a lease.
    ReleaseRecord = POST "/records/{record}/release";
    /// List ledgers.
    ///
    /// In order of their names. Those that the caller may not read are left out.
    ListLedgers = GET "/ledgers";
    /// Create a ledger.
    ///
    /// With the same options as an existing ledger: 200, and nothing changes. With other options: `ledger_exists`.
    CreateLedger = POST "/ledgers";
    /// Show a ledger.
    GetLedger = GET "/ledgers/{ledger}";
    /// Delete a ledger with all its events, unique ids and readers.
    DeleteLedger = DELETE "/ledgers/{ledger}";
    /// Append events, and settle messages with them.
    ///
    /// All or nothing. An event whose unique id, or else whose input, the ledger knows is a duplicate: nothing is added,
    /// and the answer has the place of the first one. If the answer is lost, repeat the request if each event has an id,
    /// or if it names the head that it expects. The body may have 32 MiB.
    AppendEvents = POST "/ledgers/{ledger}/events";
    /// Read events, or wait for one.
    ///
    /// With `wait_ms`, the answer comes as soon as there is an event behind `after`; of a sealed ledger, at once.
    ReadEvents = GET "/ledgers/{ledger}/events";
    /// Find the event with a unique id.
    FindEvent = GET "/ledgers/{ledger}/unique-ids/{unique_id}";
    /// List how far readers are.
    ListReaders = GET "/ledgers/{ledger}/readers";
    /// Keep how far a reader is.
    MoveReader = PUT "/ledgers/{ledger}/readers/{reader}";
    /// Forget a reader.
    ForgetReader = DELETE "/ledgers/{ledger}/readers/{reader}";
    /// End a ledger: nothing is appended any more.
    ///
    /// Of a sealed ledger it changes nothing.
    SealLedger = POST "/ledgers/{ledger}/seal";
    /// Let go of events at the beginning.
    ///
    /// Unique ids, and the places of all other events, stay.
    TrimLedger = POST "/ledgers/{ledger}/trim";
    /// List exchanges.
    ///
    /// In order of their names. Those that the caller may not read are left out.
    ListExchanges = GET "/exchanges";
    /// Create an exchange.
    ///
    /// With the same kind and rule as an existing exchange: 200, and nothing changes. With others: `exchange_exists`.
    CreateExchange = POST "/exchanges";
    /// Show an exchange.
    GetExchange = GET "/exchanges/{exchange}";
    /// Change what becomes of messages for which an exchange finds no queue.
    ChangeExchange = PATCH "/exchanges/{exchange}";
    /// Delete an exchange with its bindings.
    ///
    /// If another exchange leads to it, it stays (`exchange_used`), unless `force` is true.
    DeleteExchange = DELETE "/exchanges/{exchange}";
    /// List the bindings of an exchange.
    ///
    /// In the order in which they were made. A page may be short or empty and still have a next page.
    ListBindings = GET "/exchanges/{exchange}/bindings";
    /// Bind an exchange to a queue or to another exchange.
    ///
    /// The exchange's kind says by what: `routing_key` of a direct one, `topic` of a topic one, `headers` of a headers
    /// one, nothing of a fanout. If there is a binding by the same to the same place, its options are replaced. A binding
    /// that would lead back to the exchange is refused (`exchange_cycle`).
    Bind = POST "/exchanges/{exchange}/bind";
    /// Remove a binding.
    ///
    /// By the place to which it leads and what it matches by.
    Unbind = POST "/exchanges/{exchange}/unbind";
    /// Publish messages.
    ///
    /// Each message is accepted or refused independently; the answer has one result for each, in order. All queues that a
    /// message is routed to get it, or none does. If the answer is lost, repeat the request if each message has a unique
    /// id and the queues remember them.
    PublishMessages = POST "/exchanges/{exchange}/messages";
    /// Explain where a message would go, and why.
    ExplainRoute = POST "/exchanges/{exchange}/explain";
    /// List schedules.
    ///
    /// In order of their names. Those whose queue or exchange the caller may not read are left out.
    ListSchedules = GET "/schedules";
    /// Make a schedule, or change the one of that name.
    ///
    /// If it is as asked, nothing changes. Otherwise its next time stays unless its timing changes.
    PutSchedule = PUT "/schedules/{schedule}";
    /// Show a schedule.
    GetSchedule = GET "/schedules/{schedule}";
    /// Delete a schedule.
    ///
    /// Messages that it has sent stay.
    DeleteSchedule = DELETE "/schedules/{schedule}";
    /// Fire a schedule now, beside its times.
    ///
    /// Also if it is paused or has no time left. Refused while its last message is there if `overlap` is `skip` or `queue`.
    RunSchedule = POST "/schedules/{schedule}/run";
    /// Pause a schedule.
    ///
    /// It does not fire until it is resumed, and times that pass are not missed.
    PauseSchedule = POST "/schedules/{schedule}/pause";
    /// Resume a schedule, from its first time after now on.
    ResumeSchedule = POST "/schedules/{schedule}/resume";
    /// Fire a schedule at another time instead of its next one.
    ///
    /// Its series goes on behind both.
    MoveSchedule = POST "/schedules/{schedule}/move";
}

/// The operation of a request, with the decoded parts of its path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'p> {
    pub(super) operation: Operation,
    pub(super) parts: Vec<Cow<'p, str>>,
}

/// Finds the operation for a method and a path. `path` is not decoded.
pub(super) fn find<'p>(method: &Method, path: &'p str) -> Result<Found<'p>, Problem> {
    let mut fitting = fitting(path);
    if let Some((operation, parts)) = fitting.find(|(operation, _)| operation.method() == *method) {
        let parts = parts.into_iter().map(decode).collect::<Result<_, _>>()?;
        return Ok(Found { operation, parts });
    }
    let allowed = allowed(path);
    if allowed.is_empty() {
        return Err(Problem::new(
            Code::NotFound,
            format!("there is nothing at {path:?}; the API is described at {PREFIX}/openapi.json"),
        ));
    }
    Err(Problem::new(
        Code::MethodNotAllowed,
        format!("{path:?} takes {allowed}, not {method}"),
    ))
}

/// Whether a request appends to a ledger. `path` is not decoded.
pub(crate) fn is_append(method: &str, path: &str) -> bool {
    let rest = path.strip_prefix(PREFIX).unwrap_or(path);
    let append = Operation::AppendEvents;
    method == append.method().as_str() && parts(append.path(), rest).is_some()
}

/// The methods that a path takes, in the form of the header `Allow`.
pub(super) fn allowed(path: &str) -> String {
    let methods: Vec<String> = fitting(path)
        .map(|(operation, _)| operation.method().to_string())
        .collect();
    methods.join(", ")
}

/// The operations of a path with any method, and the parts of the path.
fn fitting(path: &str) -> impl Iterator<Item = (Operation, Vec<&str>)> {
    let rest = path.strip_prefix(PREFIX).unwrap_or(path);
    Operation::ALL
        .iter()
        .filter_map(move |&operation| Some((operation, parts(operation.path(), rest)?)))
}

/// The values at the places of a template, if the path fits it.
fn parts<'p>(template: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let mut parts = Vec::new();
    let mut given = path.split('/');
    for expected in template.split('/') {
        let part = given.next()?;
        if expected.starts_with('{') {
            if part.is_empty() {
                return None;
            }
            parts.push(part);
        } else if part != expected {
            return None;
        }
    }
    given.next().is_none().then_some(parts)
}

pub(super) fn decode(part: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode(part).map_err(|what| {
        let detail = format!("the part {part:?} of the path {what}");
        Problem::new(Code::MalformedRequest, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_operations_and_their_parts_are_decoded() {
        let found = find(
            &Method::POST,
            "/api/v1/queues/orders.fifo/keys/user%2F%2E%2E%2F%C3%A4/park",
        )
        .unwrap();
        assert_eq!(found.operation, Operation::ParkKey);
        assert_eq!(found.parts, ["orders.fifo", "user/../ä"]);
        let code = |method: Method, path: &str| find(&method, path).unwrap_err().code;
        assert_eq!(code(Method::GET, "/api/v1/"), Code::NotFound);
        assert_eq!(code(Method::GET, "/api/v1/queues/"), Code::NotFound);
        assert_eq!(code(Method::GET, "/api/v1/queues/a/x"), Code::NotFound);
        assert_eq!(
            code(Method::PUT, "/api/v1/queues/a"),
            Code::MethodNotAllowed
        );
        for bad in ["%ff", "%zz", "a%2", "%", "%%41", "%+1"] {
            let path = format!("/api/v1/queues/{bad}");
            assert_eq!(code(Method::GET, &path), Code::MalformedRequest, "{bad}");
        }
        let found = find(&Method::GET, "/api/v1/queues/%25zz").unwrap();
        assert_eq!(found.parts, ["%zz"]);
        let problem = find(&Method::PUT, "/api/v1/queues/a").unwrap_err();
        assert!(problem.detail.contains("GET, PATCH, DELETE"));
    }

    #[test]
    fn no_two_operations_have_the_same_method_and_path() {
        for (at, one) in Operation::ALL.iter().enumerate() {
            for other in &Operation::ALL[..at] {
                let same = one.method() == other.method() && one.path() == other.path();
                assert!(!same, "{one:?} and {other:?}");
            }
        }
    }
}

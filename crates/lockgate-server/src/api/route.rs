//! Which operation a method and a path name.

use std::borrow::Cow;

use hyper::Method;
use percent_encoding::percent_decode_str;

use super::problem::{Code, Problem};

/// What all paths of the API begin with.
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

            /// Its name and what it does, for the description of the API.
            #[cfg(test)]
            pub(super) const fn words(self) -> (&'static str, &'static [&'static str]) {
                match self { $(Self::$operation => (stringify!($operation), &[$($doc),*]),)* }
            }
        }
    };
}

operations! {
    /// Say which server this is.
    GetServer = GET "/server";
    /// List queues.
    ///
    /// In order of their names, with exact counts.
    ListQueues = GET "/queues";
    /// Create a queue.
    ///
    /// Again with the same settings: 200, and nothing changes. With other settings: `queue_exists`.
    CreateQueue = POST "/queues";
    /// Show a queue.
    GetQueue = GET "/queues/{queue}";
    /// Change a queue's settings and tags.
    ///
    /// As a JSON merge patch (RFC 7396): what is not named stays, `null` removes.
    ChangeQueue = PATCH "/queues/{queue}";
    /// Delete a queue and all it holds.
    DeleteQueue = DELETE "/queues/{queue}";
    /// Remove all messages of a queue.
    ///
    /// In flight and delayed ones too, at one instant.
    PurgeQueue = POST "/queues/{queue}/purge";
    /// Stop giving leases.
    ///
    /// Durable. Sends and settles go on. Again: nothing changes.
    PauseQueue = POST "/queues/{queue}/pause";
    /// Give leases again.
    ResumeQueue = POST "/queues/{queue}/resume";
    /// List keys.
    ///
    /// In no order, each with why it does or does not move. Pages look at a bounded number of keys, so
    /// one may be short, or empty, and have a next page all the same.
    ListKeys = GET "/queues/{queue}/keys";
    /// Explain why a key does, or does not, move.
    ExplainKey = GET "/queues/{queue}/keys/{key}";
    /// Freeze a key.
    ///
    /// Durable. It goes on taking messages, and what is in flight may settle. A key that has no
    /// message yet can be parked too.
    ParkKey = POST "/queues/{queue}/keys/{key}/park";
    /// Let a parked key move again.
    ///
    /// The attempts of its first message count from zero.
    ResumeKey = POST "/queues/{queue}/keys/{key}/resume";
    /// Drop the messages of a key.
    ///
    /// Also those not yet due; what is in flight may settle. An emptied key is not parked any more.
    DropKey = POST "/queues/{queue}/keys/{key}/drop";
    /// Send messages.
    ///
    /// Each is accepted or refused by itself; the answer has one result for each, in order. A message
    /// with a unique id can be sent again safely within the queue's window.
    SendMessages = POST "/queues/{queue}/messages";
    /// Peek at messages.
    ///
    /// Leases nothing and changes nothing. In the order in which they arrived; those not yet due come
    /// last. Pages look at a bounded number of messages, so one may be short, or empty, and have a next
    /// page all the same; what comes or goes between pages may be missed.
    PeekMessages = GET "/queues/{queue}/messages";
    /// Peek at a message.
    PeekMessage = GET "/queues/{queue}/messages/{id}";
    /// Cancel a message.
    ///
    /// It must not be in flight.
    CancelMessage = DELETE "/queues/{queue}/messages/{id}";
    /// Give a message another due time.
    ///
    /// It must not be in flight, and counts as accepted when it is due.
    RescheduleMessage = POST "/queues/{queue}/messages/{id}/reschedule";
    /// Receive messages.
    ///
    /// Each is leased to the holder until it is settled or the lease has ended. If the client is gone
    /// before the first byte of the answer, the messages go back and the attempt does not count.
    ReceiveMessages = POST "/queues/{queue}/receive";
    /// Settle received messages.
    ///
    /// Each by itself; the answer has one result for each, in order.
    SettleMessages = POST "/queues/{queue}/settle";
    /// List the queues whose dead letters come here.
    ListDeadLetterSources = GET "/queues/{queue}/dead-letter-sources";
    /// List dead letters.
    ///
    /// Messages that were moved here, with where from and why. Pages are as those of all messages.
    ListDeadLetters = GET "/queues/{queue}/dead-letters";
    /// Move dead letters back.
    ///
    /// To the queues they came from, or to one that is named, in the order in which a receive would
    /// get them; with no attempts counted. One request moves up to `max`: repeat it while the answer
    /// says that there are some left. What is in flight or parked stays.
    RedriveDeadLetters = POST "/queues/{queue}/dead-letters/redrive";
    /// Settle and send, all or nothing.
    ///
    /// Settles come first. One stale lease or refused message refuses all, and nothing happens. If the
    /// answer is lost, repeat it: leases that were settled are then stale (`gone`), which says that it
    /// happened.
    Transact = POST "/transactions";
}

/// A request's operation, with the parts of its path, decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'p> {
    pub(super) operation: Operation,
    pub(super) parts: Vec<Cow<'p, str>>,
}

/// The operation that a method and a path name. `path` is not decoded.
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

/// The methods a path takes, as the header `Allow` lists them.
pub(super) fn allowed(path: &str) -> String {
    let methods: Vec<String> = fitting(path)
        .map(|(operation, _)| operation.method().to_string())
        .collect();
    methods.join(", ")
}

/// The operations of a path, whatever their method, with the parts of the path.
fn fitting(path: &str) -> impl Iterator<Item = (Operation, Vec<&str>)> {
    let rest = path.strip_prefix(PREFIX).unwrap_or(path);
    Operation::ALL
        .iter()
        .filter_map(move |&operation| Some((operation, parts(operation.path(), rest)?)))
}

/// What stands in the places of a template, if the path fits it.
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

fn decode(part: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode_str(part).decode_utf8().map_err(|_| {
        Problem::new(
            Code::MalformedRequest,
            format!("the part {part:?} of the path is not UTF-8"),
        )
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
        assert_eq!(
            code(Method::GET, "/api/v1/queues/%ff"),
            Code::MalformedRequest
        );
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

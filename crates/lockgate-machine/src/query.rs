//! What callers ask about the state.

use lockgate_core::{Key, MessageId, QueueName, Sequence};

use crate::{KeyPage, KeyStatus, MessagePage, QueryReply, QueueDescription, QueuePage};

/// A question that changes nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Query {
    DescribeQueue(DescribeQueue),
    ListQueues(ListQueues),
    ListMessages(ListMessages),
    FindMessage(FindMessage),
    ListKeys(ListKeys),
    ExplainKey(ExplainKey),
}

impl Query {
    /// The most messages or keys that a page may have.
    pub const LIMIT_MAX: usize = 1_000;
}

/// A query that knows what it is answered. [`Query`] itself is one too, answered with a [`QueryReply`]
/// of any kind.
pub trait TypedQuery: Into<Query> {
    type Reply;

    /// Takes the answer out of a reply to this query; `None` if the reply is to another one.
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
}

impl TypedQuery for Query {
    type Reply = QueryReply;

    fn reply(reply: QueryReply) -> Option<QueryReply> {
        Some(reply)
    }
}

/// All about one queue.
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
    /// At most so many.
    pub limit: usize,
}

/// Messages of a queue, or of one of its keys, in the order in which they arrived; those not yet
/// due come last. Leases nothing. A page looks at a bounded number of messages and may be shorter
/// than asked for, or empty, with more to come.
#[derive(Clone, Debug)]
pub struct ListMessages {
    pub queue: QueueName,
    /// Only of this key or group.
    pub key: Option<Key>,
    /// Only what comes behind this one, as the page before said.
    pub after: Option<Sequence>,
    /// At most so many; 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// One message, wherever it stands: a page of it alone.
#[derive(Clone, Debug)]
pub struct FindMessage {
    /// The queue it is in.
    pub queue: QueueName,
    pub message: MessageId,
}

/// Keys of a keyed queue, in no order, each with why it does or does not move. Pages are as those
/// of [`ListMessages`].
#[derive(Clone, Debug)]
pub struct ListKeys {
    pub queue: QueueName,
    /// Only frozen ones.
    pub parked: bool,
    /// Only what comes behind this one, as the page before said.
    pub after: Option<u32>,
    /// At most so many; 1 to [`Query::LIMIT_MAX`].
    pub limit: usize,
}

/// Why a key does, or does not, move.
#[derive(Clone, Debug)]
pub struct ExplainKey {
    pub queue: QueueName,
    pub key: Key,
}
